# SPDX-License-Identifier: MIT
"""What a heap's records mean: blocks, owners, branches, freed blocks, pages; addresses to blocks.

Mirrors codeheap/places/find.c, names.c, side_list.c and trap.c, with memory.py's records and no call into the
program. The process may have stopped anywhere, so whatever is followed is checked.
"""
import gdb

from codeheap_gdb import machine, memory

HEAD_BYTES = 8  # that a part begins with: traps, then the index of its record
INDEX_AT = 4
IN_PLACE_HEAD_BYTES = 64
GRANULE_BYTES = 8
INDEX_MASK = 0xffffff  # table.h: indices beside other bits have 24
ALL_BITS = (1 << 64) - 1
FIXED_SHAPES = ("POINTER", "KEEPS_ALL", "LEAF", "STEPS")
STATE_MASK = 7  # of a block's state; its cause is above


def joined(owner_name, own_name, what="code"):
    return " ".join(filter(None, (owner_name, own_name))) or f"{what} without a name"


class Block:
    """A block's record, and what follows from it."""

    def __init__(self, heap, index, record):
        self.heap = heap
        self.index = index
        self.record = record
        self.generation = record["generation"]
        states = heap.library.enum_names("ch_block_state", "CH_BLOCK_")
        self.state = states.get(record["state"] & STATE_MASK, "?")

    @property
    def is_published(self):
        return self.generation & 1 == 1 and self.state in ("LIVE", "NOTENTRANT")

    @property
    def is_span(self):
        return self.record["flags"] & self.heap.library.constant("CH__FLAG_APART") != 0

    @property
    def hot(self):
        """(exec address, bytes) of the hot part, its head included."""
        granules = self.record["hot_granules"]
        if self.is_span:
            granules |= self.record["cold_granule"] << 16
        return self.heap.exec_base + self.record["hot_offset"], granules * GRANULE_BYTES

    @property
    def cold(self):
        """(exec address, bytes) of the cold part; no bytes when there is none."""
        size = self.record["cold_granules"] * GRANULE_BYTES
        if not size:
            return 0, 0
        page = self.record["hot_offset"] >> self.heap.page_log2
        if self.is_span:
            pages = self.heap.page(page)["span_pages"]
            start = ((page + pages) << self.heap.page_log2) - size
        else:
            start = (page << self.heap.page_log2) + self.record["cold_granule"] * GRANULE_BYTES
        return self.heap.exec_base + start, size

    @property
    def use(self):
        """Of its pages: enum ch__span_use."""
        page = self.heap.page(self.record["hot_offset"] >> self.heap.page_log2)
        return page["span_use"] & self.heap.library.constant("CH__SPAN_USE") if self.is_span else 0

    @property
    def is_data(self):
        return self.use >= self.heap.library.constant("CH__SPAN_RODATA")

    @property
    def head_bytes(self):
        """Of its hot part: what lies before the VM's bytes."""
        constant = self.heap.library.constant
        is_in_place = constant("CH__SPAN_IN_PLACE") <= self.use <= constant("CH__SPAN_DATA")
        return IN_PLACE_HEAD_BYTES if is_in_place else HEAD_BYTES

    @property
    def hot_code(self):
        """(exec address, bytes) of the hot part behind its head: what the VM knows of it."""
        start, size = self.hot
        return start + self.head_bytes, size - self.head_bytes

    @property
    def cold_code(self):
        """The same of the cold part, stubs included; no bytes when there is none."""
        start, size = self.cold
        return (start + HEAD_BYTES, size - HEAD_BYTES) if size else (0, 0)

    @property
    def side_list(self):
        """The record of the side list, or None."""
        address = self.record["side_list"]
        return self.heap.library.record("ch__side_list", address) if address else None

    @property
    def entry(self):
        side_list = self.side_list
        return self.hot[0] + HEAD_BYTES + (side_list["entry_offset"] if side_list else 0)

    @property
    def patchable_entry(self):
        """The address of the instruction that invalidation makes a jump, or None."""
        library = self.heap.library
        kind = self.record["flags"] & library.constant("CH__FLAG_ENTRY")
        is_patch = library.enum_names("ch_entry", "CH_ENTRY_").get(kind) == "PATCH"
        return self.hot[0] + HEAD_BYTES if is_patch else None

    @property
    def owner_name(self):
        return self.heap.owner_name(self.record["owner"])

    @property
    def own_name(self):
        side_list = self.side_list
        return self.heap.name(side_list["name"]) if side_list else ""

    @property
    def full_name(self):
        return joined(self.owner_name, self.own_name, "data" if self.is_data else "code")

    @property
    def label(self):
        """How messages call it: block 12, or block 2.12 where there are several heaps."""
        return f"block {self.number}"

    @property
    def number(self):
        return self.heap.number_of(self.index)

    def has(self, address):
        return any(0 <= address - start < size for start, size in (self.hot, self.cold))

    def place(self, address):
        """"+0x8" in the hot part, "cold +0x8" in the other; from the start of its code."""
        start, size = self.hot
        if 0 <= address - start < size:
            return f"{address - start - self.head_bytes:+#x}"
        return f"cold {address - self.cold[0] - HEAD_BYTES:+#x}"

    def branches(self):
        """(index, record, address of the stub) of each branch that is attached."""
        index, found = self.record["first_branch"], []
        stub = self.cold[0] + HEAD_BYTES
        while index:
            record = self.heap.branches.at(index)
            if record is None:
                break
            if record["site"]:
                found.append((index, record, stub))
            if record["target_kind"] & self.heap.library.constant("CH__BRANCH_LAST"):
                break
            index, stub = index + 1, stub + self.heap.stub_bytes
        return found

    def incoming(self):
        """Records of the branches that are linked to it, which is published."""
        index, found = self.record["in_head"], []
        while index and len(found) < self.heap.branches.used:
            found.append(self.heap.branches.at(index))
            index = found[-1]["next"] if found[-1] else 0
        return [record for record in found if record]

    def stubs_end(self):
        """Where the stub slots end and the VM's own cold bytes begin."""
        index, count = self.record["first_branch"], 0
        last = self.heap.library.constant("CH__BRANCH_LAST")
        while index:
            count += 1
            record = self.heap.branches.at(index + count - 1)
            if record is None or record["target_kind"] & last:
                break
        return self.cold[0] + HEAD_BYTES + count * self.heap.stub_bytes

    def items(self):
        """(kind, at, value) of its side list, kinds without their prefix: EDGE, REF, POINT, ..."""
        side_list = self.side_list
        if not side_list:
            return []
        library = self.heap.library
        names = library.enum_names("ch__item_kind", "CH__ITEM_")
        count, capacity = side_list["count"], side_list["capacity"]
        kinds_at = side_list.address_of("kinds")
        kinds = memory.read(kinds_at, count)
        items = memory.read(kinds_at + ((capacity + 7) & ~7), count * 8)
        return [(names.get(kinds[i], "?"), int.from_bytes(items[i * 8:i * 8 + 4], "little"),
                 int.from_bytes(items[i * 8 + 4:i * 8 + 8], "little")) for i in range(count)]

    def lines(self):
        """(file, [(exec address, line)]), rising; ("", []) without."""
        found = [item for item in self.items() if item[0] == "LINES"]
        if not found:
            return "", []
        _, low, high = found[0]
        record = self.heap.library.record("ch__lines", low | high << 32)
        data = memory.read(record.address_of("at"), record["count"] * 8)
        words = [int.from_bytes(data[i:i + 4], "little") for i in range(0, len(data), 4)]
        base = self.heap.exec_base
        return self.heap.name(record["file"]), [(base + at, line)
                                                for at, line in zip(words[::2], words[1::2])]

    def line_at(self, address):
        """(file, line) that the address comes from; ("", 0) when that is not known.

        A line ends with the part it begins in; a stub has the line of its branch."""
        file, lines = self.lines()
        for _, branch, stub in self.branches() if lines else ():
            if stub <= address < stub + self.heap.stub_bytes:
                address = self.heap.exec_base + branch["site"]
        start, size = self.hot
        is_hot = start <= address < start + size
        found = 0
        for at, line in lines:
            if at <= address and is_hot == (start <= at < start + size):
                found = line
        return (file, found) if found else ("", 0)


class Heap:
    """A heap at one stop of the process."""

    def __init__(self, library, address, has_peers):
        self.library = library
        self.machine = machine.find()
        self.record = library.record("ch_heap", address)
        self.has_peers = has_peers
        self.id = self.record["id"]
        self.suffix = ""  # what tells it from the heap of another copy that has the same number
        self.pool = library.record("ch__pool", self.record["pool"])
        self.exec_base = self.pool["exec_base"]
        self.delta = self.pool["delta"]
        self.pool_bytes = self.pool["pool_bytes"]
        self.page_log2 = self.pool["page_log2"]
        self.lead_bytes = self.pool["stub_lead_bytes"]  # in front of each stub: on procmem
        self.stub_bytes = self.lead_bytes + self.machine.STUB_BYTES
        self.blocks = library.table(self.record["blocks"], "ch__block")

    @property
    def called(self):
        return f"{self.id}{self.suffix}"

    def number_of(self, index):
        """What a block is called: 12, 2.12 with several heaps, 2.12@plugin.so with two heaps 2."""
        return f"{self.id}.{index}{self.suffix}" if self.has_peers else str(index)

    @property
    def branches(self):
        return self.library.table(self.record["branches"], "ch__branch")

    @property
    def owners(self):
        return self.library.table(self.record["owners"], "ch__owner")

    # --- addresses ---

    def has(self, address):
        return 0 <= address - self.exec_base < self.pool_bytes

    def has_runtime(self, address):
        return 0 <= address - self.pool["runtime_exec"] < self.pool["runtime_bytes"]

    def write_address(self, address):
        return (address + self.delta) & ALL_BITS

    def poke_address(self, address):
        """Where a debugger writes code: on procmem to the code itself, which is private memory."""
        is_private = self.pool["backend"] == self.library.constant("CH_BACKEND_PROCMEM")
        return address if is_private else self.write_address(address)

    def exec_address(self, address):
        """The exec address of one in the write view, or None."""
        address = (address - self.delta) & ALL_BITS
        return address if self.delta and (self.has(address) or self.has_runtime(address)) else None

    def code(self, address, size):
        """Code bytes; a core may have one view only."""
        try:
            return memory.read(address, size)
        except gdb.MemoryError:
            return memory.read(self.write_address(address), size)

    def code_up_to(self, address, most):
        """Code bytes, fewer where the pool or the runtime page ends."""
        end = self.exec_base + (0 if self.has_runtime(address) else self.pool_bytes)
        return self.code(address, min(most, end - address))

    def veneer_target(self, address):
        """Where the veneer at an address leads, or None when there is none."""
        known = self.machine
        code = self.code_up_to(address, known.VENEER_BYTES)
        is_one = code.startswith(known.VENEER)
        return int.from_bytes(code[known.VENEER_LITERAL:], "little") if is_one else None

    def page(self, number):
        size = self.library.layout("ch__page").size
        return self.library.record("ch__page", self.pool["pages"] + number * size)

    def page_state(self, number):
        names = self.library.enum_names("ch__page_state", "CH__PAGE_")
        return names.get(self.page(number)["state"], "?")

    def frame_number(self, address):
        return self.page((address - self.exec_base) >> self.page_log2)["frame"]

    def frame_shape(self, address):
        """The frame shape of a page: as in enum ch_frame_shape, a template's name, or "OTHER"."""
        number = self.frame_number(address)
        slots = self.library.constant("CH__FRAME_SLOTS")
        if number >= slots:
            names = self.library.enum_names("ch_trampoline", "CH_TRAMPOLINE_")
            return names.get(number - slots, "OTHER")
        return next((shape for shape in FIXED_SHAPES
                     if number == self.library.constant("CH_FRAME_" + shape)), "OTHER")

    def frame_rule(self, address):
        """The call-frame instructions of a page whose shape a VM registered."""
        shape = self.library.layout("ch__frame_shape")
        at = self.record["sinks"] + self.library.layout("ch__sinks").offset("shapes")
        at += self.frame_number(address) * shape.size
        size = memory.read_int(at + shape.offset("bytes"), 1)
        return memory.read(at + shape.offset("cfi"), size)

    def frame_note(self, address):
        """Address of the note of code with steps (unwind/steps.c), or None: as at the call."""
        at = self.record["sinks"] + self.library.layout("ch__sinks").offset("steps")
        steps = memory.read_int(at)
        if not steps:
            return None
        notes = self.library.record("ch__steps", steps)["map"]
        distance = memory.read_int(notes + (address - self.exec_base) // GRANULE_BYTES * 2, 2)
        return (address & -GRANULE_BYTES) + GRANULE_BYTES * (distance - 1) if distance else None

    # --- blocks ---

    def block(self, index):
        record = self.blocks.at(index)
        return Block(self, index, record) if record else None

    def each_block(self):
        """Every block whose record is in use: OPEN, LIVE, NOTENTRANT, DEAD."""
        for index, record in self.blocks.each():
            if record["state"]:
                yield Block(self, index, record)

    def find_start(self, offset):
        """Offset of the last start at or below offset in its page or span, or None."""
        page = offset >> self.page_log2
        record, first = self.page(page), page
        if self.page_state(page) == "SPAN" and record["span_first"] <= page:
            first = record["span_first"]
        bitmap_bytes = 1 << (self.page_log2 - 6)  # of a page: one bit a granule of 8 bytes
        for number in range(page, first - 1, -1):
            bits = memory.read_int(self.pool["starts"] + number * bitmap_bytes, bitmap_bytes)
            granule = (offset >> 3) - (number << (self.page_log2 - 3))
            bits &= (1 << (granule + 1)) - 1
            if bits:
                return (number << self.page_log2) + (bits.bit_length() - 1) * GRANULE_BYTES
        return None

    def find(self, address):
        """The LIVE or NOTENTRANT block that the address lies in, or None."""
        if not self.has(address):
            return None
        start = self.find_start(address - self.exec_base)
        if start is None:
            return None
        try:
            head = self.code(self.exec_base + start, HEAD_BYTES)
            index = int.from_bytes(head[INDEX_AT:], "little")
        except gdb.MemoryError:
            return self.search(address)
        block = self.block(index)
        return block if block and block.is_published and block.has(address) else None

    def search(self, address):
        """The same by all records, for a core without code bytes, and for OPEN blocks."""
        for block in self.each_block():
            if block.state != "DEAD" and block.generation & 1 and block.has(address):
                return block
        return None

    # --- owners and names ---

    def name(self, index):
        """An interned name."""
        name = self.library.table(self.record["names"], "ch__name").at(index)
        return memory.read_text(name["text"]) if name else ""

    def owner_name(self, index):
        owner = self.owners.at(index)
        return self.name(owner["name"]) if owner else ""

    def blocks_of(self, owner):
        """The blocks of an owner's record."""
        index, found = owner["first_block"], []
        while index and len(found) < self.blocks.used:
            block = self.block(index)
            if block is None:
                break
            found.append(block)
            index = block.record["owner_next"]
        return found

    def owners_named(self, name):
        """Records of the owners with that name, or with a name of which it is the first word."""
        return [owner for _, owner in self.owners.each()
                if owner["generation"] & 1 and is_name(self.name(owner["name"]), name)]

    # --- what is not a block ---

    def tombstone(self, address):
        """(slot, newest record) of a block that was freed where the address is, or None."""
        offset = address - self.exec_base
        stones = self.library.table(self.record["tombstones"], "ch__tombstone")
        size = int(self.record["config"]["remembered_dead"])
        written = self.record["tombstones_written"]
        stones.used = min(written, size) + 1  # slots are numbered by deaths, not handed out
        found, age = None, None
        for slot, stone in stones.each():
            younger = (written - slot) % size  # 0 = the one written last
            if slot <= written and (age is None or younger < age) and self.stone_has(stone, offset):
                found, age = (slot, stone), younger
        return found

    def is_first_freed(self, address, trap_bytes):
        """Whether a call, and no return, may have led there: to the first byte of freed code."""
        found = self.tombstone(address)
        if found is None:
            return False
        low, _, head = self.parts_of(found[1])[0]
        return address - self.exec_base - low - head in (0, trap_bytes)

    def stone_name(self, slot, stone):
        """As a block's full name."""
        return joined(self.name(stone["owner_name"]), self.name(stone["name"]))

    def parts_of(self, stone):
        """(offset, bytes, bytes of the head) of the hot and of the cold part."""
        hot, cold, size = stone["hot_offset"], stone["cold"], stone["hot_granules"] * GRANULE_BYTES
        shift = self.library.constant("CH__TOMB_COLD_SHIFT")
        granule = cold >> shift & self.library.constant("CH__TOMB_COLD_GRANULE")
        page = hot >> self.page_log2 << self.page_log2
        is_span = cold & self.library.constant("CH__TOMB_SPAN")
        is_in_place = is_span and cold & self.library.constant("CH__TOMB_IN_PLACE")
        return ((hot, size, IN_PLACE_HEAD_BYTES if is_in_place else HEAD_BYTES),
                (hot + size if is_span else page + granule * GRANULE_BYTES,
                 (cold & self.library.constant("CH__TOMB_COLD_GRANULES")) * GRANULE_BYTES,
                 HEAD_BYTES))

    def stone_has(self, stone, offset):
        return stone["dead"] and any(0 <= offset - low < size for low, size, _ in self.parts_of(stone))

    def describe_gap(self, address):
        """What lies at an address of the pool that no block covers."""
        found = self.tombstone(address)
        if found:
            slot, stone = found
            offset, how = address - self.exec_base, stone["dead"] >> 32
            parts = self.parts_of(stone)
            index = how & 0xffffff
            number = self.number_of(index)
            deaths = self.library.enum_names("ch__death", "CH__DEATH_")
            is_invalidated = how >> 28 >= self.library.constant("CH__CAUSE_INVALIDATED")
            cause = ("invalidated" if is_invalidated
                     else deaths.get(how >> 24 & 15, "?").lower().replace("_", " "))
            at = next(max(offset - low - head, 0) for low, size, head in parts
                      if 0 <= offset - low < size)
            return (f"freed code: block {number} of {self.stone_name(slot, stone)}, "
                    f"freed at collection {stone['collection']} ({cause}), at +{at:#x}")
        page = (address - self.exec_base) >> self.page_log2
        state = self.page_state(page)
        if state == "FREE":
            return f"free page {page} of heap {self.called}"
        return (f"unused bytes of page {page} of heap {self.called} ({state}): no block, "
                "and none freed there on record")

    def describe_runtime(self, address):
        """What lies at an address of the runtime page: the trampoline, veneers."""
        offset = address - self.pool["runtime_exec"]
        if offset < self.record["veneers_from"]:
            return f"runtime page of heap {self.called}: the stubs' trampoline {offset:+#x}"
        if offset < self.record["veneers_to"]:
            return (f"runtime page of heap {self.called}: a veneer, jumps to "
                    + gdb_symbol(self.veneer_target(address - offset % self.machine.VENEER_BYTES)))
        return f"runtime page of heap {self.called}: unused"


def is_name(name, wanted):
    return name == wanted or name.split(" ")[0] == wanted


def gdb_symbol(address):
    """0x1234 <symbol+5>, as gdb knows it."""
    text = gdb.execute(f"info symbol {address:#x}", to_string=True)
    if text.startswith("No symbol"):
        return f"{address:#x}"
    return f"{address:#x} <{text.split(' in section ')[0].strip().replace(' + ', '+')}>"


def all_heaps(demand=True):
    """The heaps of the program; with demand, a sentence instead of an empty list."""
    libraries = memory.demand_libraries() if demand else memory.libraries()
    if demand:
        machine.demand()
    elif not machine.find():
        return []
    is_alone = len(libraries) == 1
    pointers = {}  # copies that the dynamic linker bound together have one list
    for library in libraries:
        for at in library.heap_pointers(is_alone):
            pointers.setdefault(at, library)
    heaps = []
    for at, library in pointers.items():
        try:
            heaps.append(Heap(library, at, len(pointers) > 1))
        except gdb.MemoryError:
            if demand:
                memory.fail(f"The heap at {at:#x} cannot be read: the core does not have it.")
    for heap in heaps:
        if sum(other.id == heap.id for other in heaps) > 1:
            heap.suffix = "@" + heap.library.object
    if demand and not heaps:
        memory.fail("The program has no code heap at this moment.")
    return heaps
