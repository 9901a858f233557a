# SPDX-License-Identifier: MIT
"""codeheap break and delete: breakpoints in code of a heap.

gdb cannot write an INT3 into the executable view, which is a shared mapping without write access.
A hardware breakpoint needs no write, but there are four. Beyond them the INT3 is written through
the write view, while the process runs only: taken out at each stop, put back when it goes on, each
time only if the block is still the same and its byte is what was left there. A thread that stands
at an INT3 gets past it because that place alone is a hardware breakpoint until the next stop
elsewhere: gdb steps off those by itself.
"""
import re

import gdb

from codeheap_gdb import commands, disassemble, heaps, machine, memory

HARDWARE_TYPES = (gdb.BP_HARDWARE_BREAKPOINT, gdb.BP_HARDWARE_WATCHPOINT,
                  gdb.BP_READ_WATCHPOINT, gdb.BP_ACCESS_WATCHPOINT)


class Place:
    """An instruction of a block; says whether that block is still there."""

    def __init__(self, block, address):
        self.heap_address = block.heap.record.address
        self.machine = block.heap.machine
        self.index = block.index
        self.generation = block.generation
        self.address = address
        self.write_address = block.heap.poke_address(address)
        self.text = f"{block.label} of {block.full_name} {block.place(address)}"

    def is_there(self):
        """The generation of a record changes before its block's bytes are given back."""
        try:
            block = next(heap.block(self.index) for heap in heaps.all_heaps(False)
                         if heap.record.address == self.heap_address)
            return (block is not None and block.generation == self.generation
                    and block.is_published and block.has(self.address))
        except Exception:  # the heap is gone, or its records are damaged
            return False


class HardwareBreak(gdb.Breakpoint):
    """A breakpoint of gdb's own on a place; it ends with the block, and with the last process."""

    def __init__(self, place, wanted):
        super().__init__(f"*{place.address:#x}", type=gdb.BP_HARDWARE_BREAKPOINT)
        self.place = place
        self.wanted = wanted  # a condition, or ""; gdb allows none of its own beside stop()

    def stop(self):
        if not self.place.is_there():
            print(f"Breakpoint {self.number} is deleted: {self.place.text} was freed, "
                  "or its record is damaged.")
            gdb.post_event(lambda: self.delete() if self.is_valid() else None)
            return False
        try:
            return not self.wanted or bool(gdb.parse_and_eval(self.wanted))
        except gdb.error as error:
            print(f"Breakpoint {self.number}: the condition `{self.wanted}` fails: {error}")
            return True


def hardware_breaks():
    return [point for point in gdb.breakpoints() if isinstance(point, HardwareBreak)]


class StandIn(gdb.Breakpoint):
    """The hardware breakpoint at a trap that a thread stands on."""

    def __init__(self, trap):
        super().__init__(f"*{trap.place.address:#x}", type=gdb.BP_HARDWARE_BREAKPOINT,
                         internal=True)
        self.trap = trap

    def stop(self):
        return self.trap.place.is_there()


class Trap:
    """An INT3 in the code of a block, in place only while the process runs."""

    def __init__(self, number, place):
        self.number = number
        self.place = place
        self.inferior = gdb.selected_inferior().num  # as gdb calls a process
        self.hits = 0
        self.original = None  # the byte under the INT3 while it is in place
        self.stand_in = None

    def stands_in(self):
        return self.stand_in is not None and self.stand_in.is_valid() and self.stand_in.enabled

    def put(self):
        byte = memory.read(self.place.address, 1)
        trap = self.place.machine.TRAP
        if byte != trap:
            gdb.selected_inferior().write_memory(self.place.write_address, trap)
            self.original = byte

    def take_out(self):
        """True when the INT3 was still there; freed code is full of INT3s that stay."""
        byte, self.original = self.original, None
        if byte is None or not self.place.is_there():
            return False
        if memory.read(self.place.address, 1) != self.place.machine.TRAP:
            return False
        gdb.selected_inferior().write_memory(self.place.write_address, byte)
        return True

    def stand(self, is_wanted):
        """Makes the place a hardware breakpoint, or an INT3 again."""
        if is_wanted and (self.stand_in is None or not self.stand_in.is_valid()):
            self.stand_in = StandIn(self)
        elif self.stand_in is not None and self.stand_in.is_valid():
            if self.stand_in.enabled != is_wanted:
                self.stand_in.enabled = is_wanted

    def end(self):
        self.take_out()
        if self.stand_in is not None and self.stand_in.is_valid():
            self.stand_in.delete()

    def report(self):
        self.hits += 1
        times = "once" if self.hits == 1 else f"{self.hits} times"
        print(f"Codeheap breakpoint {self.number}, {self.place.address:#x} in {self.place.text}, "
              f"hit {times}")


class Traps:
    """All INT3 breakpoints of the process, and gdb's events that put them in and out."""

    def __init__(self):
        self.list = []
        self.last_number = 0
        gdb.events.cont.connect(self.on_continue)
        gdb.events.stop.connect(self.on_stop)
        gdb.events.exited.connect(self.on_exit)
        gdb.events.new_inferior.connect(self.on_fork)
        gdb.events.gdb_exiting.connect(self.on_gdb_exit)

    def add(self, place):
        self.last_number += 1
        trap = Trap(self.last_number, place)
        self.list.append(trap)
        if gdb.selected_frame().pc() == place.address:
            trap.stand(True)
        return trap

    def here(self):
        """Those of the selected process: gdb reads and writes no other's memory."""
        return [trap for trap in self.list if trap.inferior == gdb.selected_inferior().num]

    def drop_freed(self):
        for trap in [trap for trap in self.here() if not trap.place.is_there()]:
            print(f"Codeheap breakpoint {trap.number} is deleted: {trap.place.text} was freed, "
                  "or its record is damaged.")
            self.list.remove(trap)
            trap.end()

    def on_continue(self, _):
        """gdb sends it before any thread runs, and again for each further thread."""
        for trap in self.here() if runs_alone() else ():
            if trap.original is None and not trap.stands_in() and trap.place.is_there():
                trap.put()

    def on_stop(self, event):
        if not self.here():
            return
        hit = self.hit_by(event)
        for trap in self.here():
            if not trap.take_out() and trap is hit:
                hit = None  # a trap of freed code, not ours
        gdb.invalidate_cached_frames()  # gdb may have unwound by code with an INT3 in it
        if isinstance(event, gdb.BreakpointEvent):
            for breakpoint in event.breakpoints:
                if isinstance(breakpoint, StandIn):
                    breakpoint.trap.report()
        if hit:
            gdb.execute(f"set $pc = {hit.place.address:#x}", to_string=True)
            hit.report()
        pc = gdb.selected_frame().pc()
        for trap in self.here():
            trap.stand(trap.place.address == pc)
        self.drop_freed()

    def hit_by(self, event):
        """The trap whose INT3 the selected thread has just run, or None."""
        if isinstance(event, gdb.BreakpointEvent) or not is_trap_signal():
            return None
        pc = gdb.selected_frame().pc()
        for trap in self.here():
            if trap.original is not None and trap.place.address == pc - trap.place.machine.TRAP_PC:
                return trap
        return None

    def on_gdb_exit(self, _):
        """gdb may leave a process that it had not started, while it runs."""
        for trap in self.here():
            trap.take_out()

    def on_fork(self, _):
        """gdb goes with the child, and may leave the parent to run on by itself."""
        if gdb.parameter("follow-fork-mode") == "child":
            self.on_gdb_exit(None)

    def on_exit(self, event):
        for trap in [trap for trap in self.list if trap.inferior == event.inferior.num]:
            trap.original = None
            trap.end()
            self.list.remove(trap)
        # A child that gdb follows has the parent's code, and its breakpoints.
        if not any(other.pid for other in gdb.inferiors() if other != event.inferior):
            for point in hardware_breaks():
                point.delete()


def is_trap_signal():
    """Whether the selected thread stopped by an INT3, and not at the end of a step."""
    try:
        info, known = gdb.parse_and_eval("$_siginfo"), machine.find()
        signal = (int(info["si_signo"]), int(info["si_code"]))
        return known is not None and signal == known.TRAP_SIGNAL
    except gdb.error:
        return False


_traps = Traps()


# --- where ---

def is_rewritten(block, address):
    """Whether the library may store an opcode there: at patch points and patchable entries."""
    points = [block.heap.exec_base + at for item, at, _ in block.items() if item == "POINT"]
    return address in points or address == block.patchable_entry


# --- which kind ---

def is_hardware(kind, block, address, wanted):
    """Which of the two a breakpoint is to be; one register is left for a thread's stand-in."""
    if kind == "-int3" and wanted:
        memory.fail("A condition needs a hardware breakpoint: use -hw.")
    if kind == "-int3" and is_rewritten(block, address):
        memory.fail(f"{address:#x} is rewritten by the library when the block is invalidated: "
                    "use -hw there.")
    if kind or wanted:
        return kind != "-int3"
    taken = sum(point.type in HARDWARE_TYPES and point.enabled for point in gdb.breakpoints())
    return taken < block.heap.machine.DEBUG_REGISTERS - 1 or is_rewritten(block, address)


def runs_alone():
    """Whether gdb resumes no other process, of which it would take no INT3 out at a stop."""
    return (not gdb.parameter("schedule-multiple")
            or sum(inferior.pid != 0 for inferior in gdb.inferiors()) < 2)


def demand_int3():
    """The sentence when gdb would not stop at an INT3 as this module needs it."""
    try:
        gdb.selected_frame()
    except gdb.error:
        memory.fail("The selected thread runs or has ended: select a stopped one, or use -hw.")
    if str(gdb.parameter("non-stop")) in ("True", "on"):
        memory.fail("In non-stop mode only hardware breakpoints work: use -hw.")
    if not runs_alone():
        memory.fail("gdb resumes several processes at once (schedule-multiple): use -hw.")
    row = gdb.execute("info signals SIGTRAP", to_string=True).splitlines()[-1].split()
    if row[1] != "Yes":
        memory.fail("gdb does not stop at SIGTRAP: `handle SIGTRAP stop nopass` first, or use -hw.")


def demand_process():
    memory.demand_libraries()
    machine.demand()
    connection = gdb.selected_inferior().connection
    if connection and connection.type == "core":
        memory.fail("A core does not run: there is nothing to break in.")


def set_one(kind, block, address, wanted):
    if not block.is_published:
        memory.fail(f"{block.label} of {block.full_name} is {block.state}: nothing runs it.")
    if not disassemble.is_instruction(block, address):
        memory.fail(f"{address:#x} is within an instruction or a literal of {block.label}; "
                    f"`codeheap disassemble {block.number}` shows where they begin.")
    alike = _traps.here() + [point for point in hardware_breaks() if point.wanted == wanted]
    if any(point.place.address == address for point in alike):
        memory.fail(f"There is a codeheap breakpoint at {address:#x} already.")
    place = Place(block, address)
    if is_hardware(kind, block, address, wanted):
        HardwareBreak(place, wanted)
        return
    demand_int3()
    trap = _traps.add(place)
    print(f"Codeheap breakpoint {trap.number} (INT3) at {address:#x}: {place.text}")


class Break(commands.Command):
    """A breakpoint in code of a heap: codeheap break [-hw | -int3] PLACE [if CONDITION]

PLACE is an ADDRESS, the number or name of a BLOCK, or the name of an OWNER; a name's first
word does. Without an argument: lists them. An OWNER means its entry and where code of
others branches to it; blocks that it gets later are not covered.
A breakpoint ends with its block: code that is put there later is left alone.
-hw    a hardware breakpoint of gdb's own: `if`, commands and `delete` work; `condition`
       does not. Four exist. Used while fewer than three are taken, with a condition, and
       where the library rewrites code (patch points, patchable entries). On some virtual
       machines it never stops; then -int3 misses hits, too.
-int3  an INT3 written through the heap's write view, used otherwise: gdb's own software
       breakpoints do not work in code of a heap. It stops, counts and is stepped off like
       any breakpoint, has no condition, and goes by `codeheap delete N`. It is in the
       code only while the process runs, so detach, kill and generate-core-file find none;
       but a child of fork runs a copy with it, and it does not stop a function that gdb
       calls. It is in no code while gdb resumes several processes at once
       (schedule-multiple). Needs one hardware breakpoint while a thread stands at it."""

    def __init__(self):
        super().__init__("codeheap break", completer_class=gdb.COMPLETE_EXPRESSION)

    def run(self, argument):
        demand_process()
        if not argument:
            print_list()
            return
        # A name may have the word: delete-if.
        rest, *condition = re.split(r"(?:^|\s)if(?=[\s(]|$)", argument, maxsplit=1)
        rest, wanted = rest.strip(), "".join(condition).strip()
        if condition and not wanted:
            memory.fail("`if` needs a condition behind it.")
        kind = ""
        while rest.startswith("-"):
            kind, _, rest = rest.partition(" ")
            rest = rest.strip()
            if kind not in ("-hw", "-int3"):
                memory.fail(f"codeheap break knows -hw and -int3, not {kind}.")
        if not rest:
            memory.fail("codeheap break needs an address, a block or an owner.")
        for block, address in commands.places_of(rest, heaps.all_heaps()):
            set_one(kind, block, address, wanted)


def print_list():
    rows = [(f"codeheap {trap.number}", "INT3", trap.place, "", trap.hits) for trap in _traps.list]
    rows += [(f"gdb {point.number}", "hardware", point.place,
              f" if {point.wanted}" if point.wanted else "", point.hit_count)
             for point in hardware_breaks()]
    for name, kind, place, wanted, hits in rows:
        print(f"{name:<12} {kind:<9} {place.address:#x} {place.text}{wanted}, hit {hits} times")
    print(f"{len(rows)} breakpoints in code of heaps")


class Delete(commands.Command):
    """Deletes INT3 breakpoints: codeheap delete [N]

All of them without a number. Hardware breakpoints are gdb's: `delete N`."""

    def __init__(self):
        super().__init__("codeheap delete", completer_class=gdb.COMPLETE_NONE)

    def run(self, argument):
        gone = [trap for trap in _traps.list if argument in ("", str(trap.number))]
        if argument and not gone:
            memory.fail(f"There is no codeheap breakpoint {argument}.")
        for trap in gone:
            _traps.list.remove(trap)
            trap.end()


def register():
    Break()
    Delete()
