# SPDX-License-Identifier: MIT
"""The commands that show a heap: codeheap blocks, at, stats; and how arguments name blocks."""
import re

import gdb

from codeheap_gdb import heaps, memory

MOST_PLACES = 16  # that one name means
STATES = ("OPEN", "LIVE", "NOTENTRANT", "DEAD")


class Command(gdb.Command):
    """A gdb command whose failures are sentences; subclasses have run(argument)."""

    def __init__(self, name, **how):
        super().__init__(name, gdb.COMMAND_DATA, **how)

    def invoke(self, argument, from_tty):
        try:
            self.run(argument.strip())
        except gdb.GdbError:
            raise
        except Exception as error:  # damaged records lead to errors of every kind
            memory.fail(f"The heap's records cannot be followed: {error}")


class Prefix(gdb.Command):
    """Code heaps of libcodeheap: their blocks, what an address is, breakpoints in their code.

Works on a process and on a core. Blocks are called by number (12, or 2.12 when the
program has several heaps, or 2.12@plugin.so when two copies of the library have a heap 2),
addresses by any expression."""

    def __init__(self):
        super().__init__("codeheap", gdb.COMMAND_DATA, gdb.COMPLETE_NONE, True)


# --- arguments ---

def address_of(text):
    """The value of an expression as an address."""
    try:
        value = gdb.parse_and_eval(text)
        return int(value.cast(gdb.lookup_type("unsigned long"))) & heaps.ALL_BITS
    except (gdb.error, OverflowError, ValueError) as error:
        return memory.fail(f"`{text}` is no address: {error}")


def heaps_called(number, of, found):
    """The heaps with that number, all without one; of: "@OBJECT", or "" for any."""
    those = [heap for heap in found if number in (None, str(heap.id))
             and of in ("", "@" + heap.library.object)]
    return those or memory.fail(f"There is no heap {number or ''}{of}.")


def block_numbered(text, found):
    """The block of "12", "2.12" or "2.12@plugin.so"; None when the text is no such number."""
    match = re.fullmatch(r"(?:(\d+)\.)?(\d{1,18})(@.+)?", text)
    if not match:
        return None
    number, index, of = match.group(1), int(match.group(2)), match.group(3) or ""
    if number is None and len(found) > 1:
        memory.fail(f"There are {len(found)} heaps: write HEAP.{text}, e.g. "
                    f"{found[0].number_of(index)}.")
    those = heaps_called(number, of, found)
    if len(those) > 1:
        memory.fail(f"There are {len(those)} heaps {number}, one in each copy of the library: "
                    f"write {' or '.join(heap.number_of(index) for heap in those)}.")
    block = those[0].block(index)
    if block and block.state != "FREE":
        return block
    return memory.fail(f"Heap {those[0].called} has no block {index}.")


def block_at(address, found):
    """The block of an address in either view, or the sentence that says what is there."""
    for heap in found:
        address = heap.exec_address(address) or address
    heap = next((heap for heap in found if heap.has(address)), None)
    block = heap and (heap.find(address) or heap.search(address))
    if not block:
        memory.fail(describe(address, found))
    return block, address


def block_named(text, found):
    """(block, address) of a block's number or of an address, `$pc` without a text."""
    block = block_numbered(text, found)
    return (block, block.entry) if block else block_at(address_of(text or "$pc"), found)


def code_of(places):
    """Those places that lie in code: in data a breakpoint would change a variable."""
    block = places[0][0]
    code = [place for place in places if not place[0].is_data]
    return code or memory.fail(f"{block.label} of {block.full_name} is data.")


def pc_in(block):
    """The pc of the selected frame where it is in the block, else the block's entry."""
    try:
        pc = address_of("$pc")
    except gdb.GdbError:  # the thread runs, or has ended
        return block.entry
    found = block.heap.find(pc)
    return pc if found and found.index == block.index else block.entry


def is_entered(block, owner):
    """Whether others enter the owner here: by its cell, or by a branch of another owner's code."""
    if owner["entry"] == block.index:
        return True
    sources = (block.heap.find(block.heap.exec_base + branch["site"])
               for branch in block.incoming())
    return any(source and source.record["owner"] != block.record["owner"] for source in sources)


def entries_of(name, found):
    """The blocks by which owners with that name are entered; None when no owner has it."""
    blocks, is_known = [], False
    for heap in found:
        for owner in heap.owners_named(name):
            is_known = True
            own = [block for block in heap.blocks_of(owner) if block.is_published]
            blocks += [block for block in own if is_entered(block, owner)] or own
    return blocks if is_known else None


def blocks_called(name, found):
    """The published blocks with that name, or whose whole name it is; None when none has it."""
    blocks = [block for heap in found for block in heap.each_block()
              if block.is_published
              and (heaps.is_name(block.own_name, name) or block.full_name == name)]
    return blocks or None


def places_of(text, found):
    """(block, address) of each place that an argument names: a block's number, the name of an
    owner or of a block, an address; `$pc` without a text."""
    is_expression = re.match(r"$|\$|0x|[\d.]+(@|$)", text)
    blocks = entries_of(text, found) if text else None
    if blocks is None and not is_expression:  # which reads all records
        blocks = blocks_called(text, found)
    if blocks is None:
        try:
            return code_of([block_named(text, found)])
        except gdb.GdbError as error:
            if is_expression:
                raise
            memory.fail(f"{error} And no owner and no block has that name; "
                        "`codeheap blocks` lists names.")
    if not blocks:
        memory.fail(f"{text} has no code at this moment.")
    if len(blocks) > MOST_PLACES:
        memory.fail(f"{text} has {len(blocks)} places to enter: give one of its blocks, "
                    f"`codeheap blocks` lists them.")
    return code_of([(block, block.entry) for block in blocks])


# --- at ---

def describe(address, found):
    """One line: what lies at the address."""
    for heap in found:
        executed = heap.exec_address(address)
        if executed is not None:
            return f"{address:#x} is the write view of {executed:#x}: " + what(executed, heap)
        if heap.has(address) or heap.has_runtime(address):
            return f"{address:#x}: " + what(address, heap)
    return f"{heaps.gdb_symbol(address)} is not in any code heap."


def state_text(block):
    return block.state + (" data" if block.is_data else "")


def what(address, heap):
    """The same for an exec address of the heap."""
    if heap.has_runtime(address):
        return heap.describe_runtime(address)
    block = heap.find(address) or heap.search(address)
    if not block:
        return heap.describe_gap(address)
    file, line = block.line_at(address)
    place = block.place(address) + (f", {file}:{line}" if line else "")
    return f"{block.label} of {block.full_name}, {state_text(block)}, at {place}"


class At(Command):
    """What lies at an address: codeheap at ADDRESS

The block of code and its place in it, or the block that was freed there and why (of the
freed blocks that the heap remembers), a free page, the runtime page, or nothing of a heap. Addresses
of the write view are told from those where code runs."""

    def __init__(self):
        super().__init__("codeheap at", completer_class=gdb.COMPLETE_EXPRESSION)

    def run(self, argument):
        if not argument:
            memory.fail("codeheap at needs an address, e.g. `codeheap at $pc`.")
        found = heaps.all_heaps()
        print(describe(address_of(argument), found))


# --- blocks ---

class Filter:
    """The words of `codeheap blocks`: states, a heap's number, patterns of names."""

    def __init__(self, text):
        self.states, self.patterns, self.heap = set(), [], None
        words = text.split()
        while words:
            word = words.pop(0)
            if word.upper() in STATES:
                self.states.add(word.upper())
            elif word == "heap" and words and re.match(r"\d+(@|$)", words[0]):
                number, at, name = words.pop(0).partition("@")
                self.heap = (number, at + name)
            else:
                self.patterns.append(compile_pattern(word))

    def has(self, block):
        if self.states and block.state not in self.states:
            return False
        name = block.full_name if self.patterns else ""
        return all(pattern.search(name) for pattern in self.patterns)


def compile_pattern(word):
    try:
        return re.compile(word)
    except (re.error, OverflowError, RecursionError) as error:
        return memory.fail(f"`{word}` is no state and no regular expression: {error}")


def branches_text(block):
    found = block.branches()
    linked = sum(1 for _, record, _ in found if record["target_kind"] & heaps.INDEX_MASK)
    return f"{linked}/{len(found)}" if found else "-"


class Blocks(Command):
    """The blocks of all heaps: codeheap blocks [FILTER]

FILTER is any of: a state (open, live, notentrant, dead), `heap N`, regular expressions
that the name must match. Columns: block, address of its hot part and of its cold part
with their bytes, state (and whether it is data), branches (linked/attached), owner's
name and the block's own."""

    def __init__(self):
        super().__init__("codeheap blocks", completer_class=gdb.COMPLETE_NONE)

    def run(self, argument):
        wanted, found = Filter(argument), heaps.all_heaps()
        if wanted.heap is not None:
            found = heaps_called(*wanted.heap, found)
        self.print_table(found, wanted)

    def print_table(self, found, wanted):
        shown = 0
        row = "{:>9} {:>14} {:>6} {:>14} {:>6} {:<10} {:>7} {}"
        print(row.format("block", "hot", "bytes", "cold", "bytes", "state", "links", "name"))
        for heap in found:
            for block in filter(wanted.has, heap.each_block()):
                hot, hot_bytes = block.hot_code
                cold, cold_bytes = block.cold_code
                shown += 1
                print(row.format(block.number, f"{hot:#x}", hot_bytes,
                                 f"{cold:#x}" if cold_bytes else "-", cold_bytes or "-",
                                 state_text(block), branches_text(block), block.full_name))
        print(f"{shown} blocks")


# --- stats ---

def sinks_text(heap):
    """What ch_heap_stats names: the heap's own copy learns late that a sink failed."""
    is_on = heap.library.record("ch__sinks", heap.record["sinks"])["on"]
    names = heap.library.enum_names("ch_sink", "CH_SINK_")
    on = [name.lower().replace("_", "") for bit, name in sorted(names.items())
          if bit & (bit - 1) == 0 and is_on & bit]
    return ",".join(on) or "none"


def counts_text(heap):
    """Blocks and bytes by state."""
    counts = {}
    for block in heap.each_block():
        count, size = counts.get(block.state, (0, 0))
        counts[block.state] = (count + 1, size + block.hot[1] + block.cold[1])
    return ", ".join(f"{count} {state} ({size} bytes)"
                     for state, (count, size) in sorted(counts.items())) or "none"


def print_stats(heap):
    record, pool = heap.record, heap.pool
    backend = heap.library.enum_names("ch_backend", "CH_BACKEND_").get(pool["backend"], "?")
    base = heap.exec_base
    print(f"heap {heap.called} at {record.address:#x}")
    print(f"  code      {base:#x} .. {base + heap.pool_bytes:#x}, "
          f"written at {heap.write_address(base):#x} ({backend.lower()}), "
          f"pages of {1 << heap.page_log2}")
    print(f"  pages     {pool['pages_used']} used, {pool['pages_peak']} at most, "
          f"of {pool['page_count']}; {pool['pages_committed']} have memory")
    print(f"  blocks    {counts_text(heap)}")
    print(f"  owners    {record['owners_now']}; assumptions {record['assumptions_now']}")
    print(f"  cycles    {record['stats']['cycles']}, {record['stats']['cycles_abandoned']} abandoned; "
          f"freed {record['tombstones_written']} blocks")
    print(f"  branches  {record['branches_linked']} times linked, "
          f"{record['branches_unlinked']} times unlinked")
    print(f"  blocks invalidated so far: {record['blocks_invalidated']}")
    print(f"  sinks     {sinks_text(heap)}")


class Stats(Command):
    """Figures of all heaps: codeheap stats"""

    def __init__(self):
        super().__init__("codeheap stats", completer_class=gdb.COMPLETE_NONE)

    def run(self, argument):
        if argument:
            memory.fail("codeheap stats takes no argument.")
        for heap in heaps.all_heaps():
            print_stats(heap)


def register():
    for command in (Prefix, At, Blocks, Stats):
        command()
