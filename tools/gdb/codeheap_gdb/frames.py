# SPDX-License-Identifier: MIT
"""Frames in code of a heap: an unwinder through them, and how `bt` shows them.

The unwinder serves the library's own shapes (enum ch_frame_shape), trampolines, and shapes that a
VM registered, whatever was told to gdb: without it gdb takes code without symbols for code without
a frame and loses the caller.
"""
import itertools

import gdb
from gdb.FrameDecorator import FrameDecorator
from gdb.unwinder import Unwinder, register_unwinder

from codeheap_gdb import heaps, machine, memory


class FrameId:
    """What identifies a frame: its caller's sp and the start of its code."""

    def __init__(self, sp, pc):
        self.sp = word(sp)
        self.pc = word(pc)


def word(value):
    return gdb.Value(value).cast(gdb.lookup_type("unsigned long"))


class CodeUnwinder(Unwinder):
    """Steps out of code of the heaps by the frame shape of its page."""

    def __init__(self):
        super().__init__("codeheap")

    def __call__(self, pending):
        try:
            return self.step(pending)
        except Exception:  # damaged records; gdb's own unwinders may know better
            return None

    def step(self, pending):
        known = machine.find()
        if not known:
            return None
        pc = int(pending.read_register(known.PC))
        for heap in heaps.all_heaps(False):
            if heap.has_runtime(pc):
                return self.out(pending, heap, heap.pool["runtime_exec"], known.out_of_runtime)
            if heap.has(pc):
                block = heap.find(pc)
                if not block and heap.is_first_freed(pc, known.TRAP_PC):
                    return self.out(pending, heap, pc, known.out_of_call)
                return self.out(pending, heap, block.hot_code[0] if block else pc, known.out_of)
        return None

    def out(self, pending, heap, start, rule):
        """The caller's registers, by the rule of the machine.

        Nothing is said of registers that the rule leaves out: code may have saved them anywhere."""
        known = heap.machine
        pc, sp, fp = (int(pending.read_register(name)) for name in (known.PC, known.SP, known.FP))
        found = rule(heap, pc, sp, fp)
        if found is None:
            return None
        cfa, places = found
        values = {known.PC: memory.read_int(cfa - memory.WORD) if places else 0, known.SP: cfa}
        for name, place in places.items():
            try:
                values[name] = (int(pending.read_register(name)) if place is None
                                else memory.read_int(place))
            except gdb.error:  # a frame further in has not said where it is
                pass
        info = pending.create_unwind_info(FrameId(cfa, start))
        for name, value in values.items():
            info.add_saved_register(name, word(value).cast(pending.read_register(name).type))
        return info


def printable(text):
    """With question marks for what the host's charset lacks: gdb would print an error for the frame."""
    return text.encode(gdb.host_charset(), "replace").decode(gdb.host_charset())


class CodeFrame(FrameDecorator):
    """A frame in code of a heap: owner, state, and the line that the VM gave."""

    def __init__(self, frame, name, line):
        super().__init__(frame)
        self.name = printable(name)
        self.place = printable(line[0]), line[1]

    def function(self):
        return self.name

    def filename(self):
        return self.place[0] or super().filename()

    def line(self):
        return self.place[1] or super().line()


def call_address(frame):
    """The pc of a frame, or for one that waits for a call the address of that call."""
    newer = frame.newer()
    if newer is None or newer.type() in (gdb.SIGTRAMP_FRAME, gdb.DUMMY_FRAME):
        return frame.pc()
    return frame.pc() - 1


def decorate(decorator, found):
    frame = decorator.inferior_frame()
    address = call_address(frame)
    for heap in found:
        if heap.has_runtime(address):
            return CodeFrame(decorator, f"[{heap.describe_runtime(address)}]", ("", 0))
        if heap.has(address):
            block = heap.find(address)
            if not block:
                return CodeFrame(decorator, f"[{heap.describe_gap(address)}]", ("", 0))
            return CodeFrame(decorator, f"{block.full_name} [{block.state}]",
                             block.line_at(address))
    return decorator


def decorate_safely(decorator, found):
    """gdb's own frame where damaged records cannot be followed: an error would end the backtrace."""
    try:
        return decorate(decorator, found)
    except Exception:
        return decorator


class CodeFilter:
    """The frame filter `codeheap`; `disable frame-filter global codeheap` shows plain frames."""

    def __init__(self):
        self.name = "codeheap"
        self.priority = 100
        self.enabled = True
        gdb.frame_filters[self.name] = self

    def filter(self, frames):
        try:
            found = heaps.all_heaps(False)
        except Exception:
            return frames
        if not found:
            return frames
        # A frame of pc 0 says that code has no caller; the newest one, that NULL was called.
        frames = itertools.takewhile(lambda frame: frame.inferior_frame().pc() or
                                     not frame.inferior_frame().newer(), frames)
        return map(lambda frame: decorate_safely(frame, found), frames)


def register():
    CodeFilter()
    register_unwinder(None, CodeUnwinder(), replace=True)
