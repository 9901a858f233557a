# SPDX-License-Identifier: MIT
"""codeheap disassemble: a block's instructions with what the library knows of them beside."""
import linecache
import os

import gdb

from codeheap_gdb import commands, heaps, memory

LITERAL_BYTES = 8
CALL_LITERAL, JUMP_LITERAL = b"\xff\x15", b"\xff\x25"  # then a displacement from behind it
JUMP = b"\xe9"  # what invalidation stores at a patch point and a patchable entry


class Notes:
    """What stands beside the instructions of a block, by exec address."""

    def __init__(self, block):
        self.block = block
        self.beside = {}   # address -> texts
        self.literals = set()
        self.stubs = {}    # address of a stub slot -> text
        kinds = block.heap.library.enum_names("ch_branch_kind", "CH_")
        for index, record, stub in block.branches():
            self.note_branch(index, record, stub, kinds)
        self.note_items()
        entry = block.patchable_entry
        if entry:
            is_patched = block.heap.code(entry, 1) == JUMP
            self.add(entry, "patchable entry" + (", not entrant" if is_patched else ""))
        if block.heap.frame_shape(block.hot[0]) in ("FRAMED", "TAIL"):
            self.note_trampoline()

    def add(self, address, text):
        self.beside.setdefault(address, []).append(text)

    def note_branch(self, index, record, stub, kinds):
        library = self.block.heap.library
        word = record["target_kind"]
        target = self.block.heap.block(word & heaps.INDEX_MASK)
        kind = kinds.get((word >> library.constant("CH__BRANCH_KIND_SHIFT")) & 7, "?")
        has_exit = word & library.constant("CH__BRANCH_OWN_EXIT")
        unlinked = f"to {'an exit by way of ' if has_exit else 'its stub '}{stub:#x}"
        if target:
            text = f"linked to {target.label} of {target.full_name} ({target.state})"
        else:
            text = "not linked, " + unlinked
        at = self.block.heap.exec_base + record["site"]
        self.add(at, f"branch {index}: {text}")
        for part in (stub, stub + self.block.heap.lead_bytes):
            self.stubs[part] = f"{'exit' if has_exit else 'stub'} of branch {index}"
        if kind == "LITERAL":
            self.literals.add(at)

    def note_trampoline(self):
        """The literals of a template: the target of its one indirect call or jump, the payload."""
        start, size = self.block.hot_code
        code = self.block.heap.code(start, size)
        for opcode in (CALL_LITERAL, JUMP_LITERAL):
            at = code.find(opcode) + len(opcode)
            if at < len(opcode):
                continue
            literal = start + at + 4 + int.from_bytes(code[at:at + 4], "little")
            target = int.from_bytes(self.block.heap.code(literal, LITERAL_BYTES), "little")
            self.literals.update((literal, literal + LITERAL_BYTES))
            self.add(literal, f"trampoline to {heaps.gdb_symbol(target)}")
            self.add(literal + LITERAL_BYTES, "payload")

    def note_items(self):
        heap = self.block.heap
        for kind, at, value in self.block.items():
            address = heap.exec_base + at
            if kind == "REF":
                self.add(address, f"ref {int.from_bytes(heap.code(address, 8), 'little'):#x}")
            elif kind == "POINT":
                armed = heap.code(address, 1) == JUMP
                self.add(address, f"patch point, exit {heap.exec_base + value:#x}"
                                  + (", diverted to it" if armed else ""))


def edges_text(block):
    """Edges that have no place in the code: blocks and owners it needs."""
    texts = []
    for kind, _, value in block.items():
        if kind == "EDGE":
            other = block.heap.block(value)
            texts.append(f"{other.label} of {other.full_name}" if other else f"block {value}")
        elif kind == "OWNER_EDGE":
            texts.append(f"owner {block.heap.owner_name(value)}")
    return texts


def source_text(file, line):
    """The line of the source, when its file can be read here."""
    text = linecache.getline(file, line).strip() if os.path.isfile(file) else ""
    return f"  {memory.shown(text.expandtabs(4))}" if text else ""


def print_lines(lines, address, length):
    """The source lines that begin within an instruction."""
    file, places = lines
    for at, line in places:
        if address <= at < address + length:
            print(f"{file}:{line}{source_text(file, line)}" if line else "(no source line)")


def print_one(address, text, marks, shown):
    arrow = "=>" if address == shown else "  "
    tail = "   ; " + "; ".join(marks) if marks else ""
    print(f"{arrow} {address:#x}:  {text.expandtabs(4)}{tail}")


def instructions(block, notes, start, end):
    """(address, bytes, text) from start to end; literals and veneers, whose end is data, are one."""
    architecture = gdb.selected_inferior().architecture()
    address = start
    while address < end:
        target = block.heap.veneer_target(address)
        if address in notes.literals:
            length = LITERAL_BYTES
            text = f".quad {int.from_bytes(block.heap.code(address, length), 'little'):#x}"
        elif target is not None:
            length = block.heap.machine.VENEER_BYTES
            text = f"jmp {heaps.gdb_symbol(target)}   ; veneer"
        else:
            found = architecture.disassemble(address, count=1)[0]
            length, text = found["length"], found["asm"]
        yield address, length, text
        address += length


def print_code(block, start, end, notes, lines, shown):
    for address, length, text in instructions(block, notes, start, end):
        marks = [mark for at in range(address, address + length)
                 for mark in notes.beside.get(at, [])]
        print_lines(lines, address, length)
        print_one(address, text, marks, shown)


def is_instruction(block, address):
    """Whether an instruction of the block begins there, and no literal."""
    notes = Notes(block)
    start, size = block.hot
    first = start + block.head_bytes
    if not start <= address < start + size:
        first = block.stubs_end()
    found = {at for at, _, _ in instructions(block, notes, first, address + 1)} | set(notes.stubs)
    return address in found and address not in notes.literals


def code_end(block, start, size):
    """The end of a part without the traps that fill it up to a granule."""
    data = block.heap.code(start, size)
    fill = size - len(data.rstrip(block.heap.machine.TRAP))
    return start + size - min(fill, heaps.GRANULE_BYTES - 1)


def demand_code(block):
    try:
        memory.read(block.hot[0], block.hot[1])
    except gdb.MemoryError:
        memory.fail(f"The code of {block.label} cannot be read: a core has it only where shared "
                    "memory is dumped (bit 1, for memfd bit 3, of /proc/PID/coredump_filter).")


def print_block(block, shown):
    demand_code(block)
    notes, lines = Notes(block), block.lines()
    hot, hot_bytes = block.hot_code
    cold, cold_bytes = block.cold_code
    print(f"{block.label} of {block.full_name}, {block.state}: "
          f"{hot_bytes} hot bytes, {cold_bytes} cold bytes")
    for text in edges_text(block):
        print(f"   needs {text}")
    print_code(block, hot, code_end(block, hot, hot_bytes), notes, lines, shown)
    if not cold_bytes:
        return
    print("   cold:")
    for address in sorted(notes.stubs):
        asm = gdb.selected_inferior().architecture().disassemble(address, count=1)[0]["asm"]
        print_one(address, asm, [notes.stubs[address]], shown)
    print_code(block, block.stubs_end(), code_end(block, cold, cold_bytes), notes, lines, shown)


class Disassemble(commands.Command):
    """The code of blocks: codeheap disassemble [PLACE]

PLACE is as for `codeheap break`: an ADDRESS ($pc without one), the number or name of a
BLOCK as `codeheap blocks` prints it, or the name of an OWNER. Beside the instructions:
branches and what they are linked to, stubs, refs, patch points; above them the source
lines the VM gave. `=>` marks the address. Where PLACE is a name, a number or
an entry, it marks $pc if that is in the block, and otherwise the entry."""

    def __init__(self):
        super().__init__("codeheap disassemble", completer_class=gdb.COMPLETE_EXPRESSION)

    def run(self, argument):
        for block, shown in commands.places_of(argument, heaps.all_heaps()):
            print_block(block, commands.pc_in(block) if shown == block.entry else shown)


def register():
    Disassemble()
