# SPDX-License-Identifier: MIT
"""Reads the library's records: layouts from its debug information, bytes from the process or core.

It knows C types, not what they mean. Records are read whole and decoded here, since a gdb.Value for
each field of a hundred thousand blocks would take minutes.
"""
import os
import re

import gdb

WORD = 8
MOST_READ, MOST_TEXT = 1 << 30, 1 << 16  # bytes; damaged records ask for more

NO_PROCESS = "There is no process and no core to look at."
NOT_USED = ("The program does not use libcodeheap, or was linked statically and stripped of it: "
            "none of its files has the symbol ch_heap_create.")
STRIPPED = ("libcodeheap is in the program, but its debug information is missing: the variable "
            "ch__heaps and the library's types are not known. Use a library that was built with -g "
            "and not stripped, or load its symbols with `symbol-file` or `add-symbol-file`.")


def fail(text):
    """Ends the command with a sentence instead of a Python traceback."""
    raise gdb.GdbError(text)


def read(address, size):
    """Bytes of the process or core; gdb.MemoryError when they are not there."""
    if size > MOST_READ:  # gdb ends when it has no memory for them
        raise gdb.MemoryError(f"no record has {size} bytes")
    try:
        # gdb 14 and later refuse to read no bytes.
        return bytes(gdb.selected_inferior().read_memory(address, size)) if size else b""
    except gdb.error as error:  # gdb 18: a plain one where the core leaves out a file's pages
        raise gdb.MemoryError(str(error)) from None


def read_int(address, size=WORD):
    return int.from_bytes(read(address, size), "little")


def shown(text):
    """What a terminal would obey, such as an escape sequence in a name, is a question mark."""
    return "".join(c if c.isprintable() else "?" for c in text)


def read_text(address):
    """A 0-terminated string of the program; "" for a null pointer or unreadable memory."""
    text = b""
    while b"\0" not in text and len(text) < MOST_TEXT:
        try:
            text += read(address, 64 - address % 64)  # up to a boundary, never into a further page
        except gdb.MemoryError:
            break
        address += 64 - address % 64
    return shown(text.split(b"\0")[0].decode("utf-8", "replace"))


def is_signed(field_type):
    plain = field_type.strip_typedefs()
    return plain.code == gdb.TYPE_CODE_INT and plain.is_signed


class Layout:
    """Where the fields of a struct lie: name -> (offset, size, signed, layout of one inside)."""

    def __init__(self, struct):
        self.size = struct.sizeof
        self.fields = {}
        for field in struct.fields():
            plain = field.type.strip_typedefs()
            if not field.name:  # a union of names by state
                for name, (offset, *rest) in Layout(plain).fields.items():
                    self.fields[name] = (field.bitpos // 8 + offset, *rest)
                continue
            inner = Layout(plain) if plain.code == gdb.TYPE_CODE_STRUCT and plain.fields() else None
            self.fields[field.name] = (field.bitpos // 8, plain.sizeof, is_signed(plain), inner)

    def offset(self, name):
        return self.fields[name][0]


class Record:
    """One struct of the library; record["field"] is a number, or a Record for a struct inside."""

    def __init__(self, layout, address, data=None):
        self.layout = layout
        self.address = address
        self.data = read(address, layout.size) if data is None else data

    def __getitem__(self, name):
        offset, size, signed, inner = self.layout.fields[name]
        data = self.data[offset:offset + size]
        if inner:
            return Record(inner, self.address + offset, data)
        return int.from_bytes(data, "little", signed=signed)

    def address_of(self, name):
        return self.address + self.layout.offset(name)


class Table:
    """A table of records (codeheap/base/table.h: struct ch__table)."""

    def __init__(self, record, layout):
        if record["record_bytes"] != layout.size:
            fail("The debug information does not fit the process: a record has "
                 f"{record['record_bytes']} bytes there and {layout.size} here.")
        self.layout = layout
        self.used = record["used"]
        self.base = record["base"]

    def at(self, index):
        """The record of an index, or None when there is none."""
        if not 0 < index < self.used:
            return None
        return Record(self.layout, self.base + index * self.layout.size)

    def each(self):
        """(index, record) of every record that was handed out; many are read at once."""
        size, many = self.layout.size, 1024
        for first in range(1, self.used, many):
            at, count = self.base + first * size, min(many, self.used - first)
            data = read(at, count * size)
            for i in range(count):
                yield (first + i,
                       Record(self.layout, at + i * size, data[i * size:(i + 1) * size]))


class Library:
    """libcodeheap as one object file of the program has it: its types and its list of heaps."""

    def __init__(self, objfile, symbol):
        self.objfile = objfile
        self.symbol = symbol  # of another objfile, where the debug information is in a file of its own
        self.block = symbol.symtab.static_block() if symbol.symtab else None
        self.layouts = {}
        self.constants = {}
        self.own_list = (None, 0)  # what own_list_at has found, and for which place of the object

    @property
    def object(self):
        """The name of the file that has this copy."""
        return shown(os.path.basename(self.objfile.filename))

    def find_type(self, name):
        try:
            return gdb.lookup_type(name, self.block) if self.block else gdb.lookup_type(name)
        except gdb.error:
            fail(f"The debug information of libcodeheap has no `{name}`. " + STRIPPED)

    def layout(self, struct):
        """The layout of `struct STRUCT`."""
        if struct not in self.layouts:
            self.layouts[struct] = Layout(self.find_type("struct " + struct).strip_typedefs())
        return self.layouts[struct]

    def constant(self, name):
        """The value of an enumerator."""
        if name not in self.constants:
            symbol = gdb.lookup_symbol(name, self.block)[0] if self.block else None
            symbol = symbol or gdb.lookup_global_symbol(name) or gdb.lookup_static_symbol(name)
            if not symbol:
                fail(f"The debug information of libcodeheap has no `{name}`. " + STRIPPED)
            self.constants[name] = int(symbol.value())
        return self.constants[name]

    def enum_names(self, enum, prefix):
        """value -> name without the prefix, of `enum ENUM`."""
        key = "enum " + enum
        if key not in self.constants:
            fields = self.find_type(key).fields()
            self.constants[key] = {f.enumval: f.name[len(prefix):] for f in fields}
        return self.constants[key]

    def record(self, struct, address):
        return Record(self.layout(struct), address)

    def table(self, record, struct):
        return Table(record, self.layout(struct))

    def own_list_at(self):
        """The address of this copy's list of heaps, by the object's own symbol table.

        gdb takes a variable of a name that several objects have for that of the first. So does this
        of an object with a line break in its name, behind which gdb would obey the rest."""
        objfile = self.symbol.symtab.objfile
        create = objfile.lookup_global_symbol("ch_heap_create")
        place = int(create.value().address) if create else 0
        if self.own_list[0] != place:
            name = re.sub(r'(["\\])', r"\\\1", objfile.filename)
            text = "" if "\n" in name else gdb.execute(
                f'maint print msymbols -objfile "{name}"', to_string=True)
            found = re.search(r"^\[ *\d+\] [bBdD] (0x[0-9a-f]+) ch__heaps\b", text, re.M)
            at = int(found.group(1), 16) if found else int(self.symbol.value().address)
            self.own_list = (place, at)
        return self.own_list[1]

    def heap_pointers(self, is_alone):
        """Addresses of the heaps that exist in this copy; is_alone: no other copy is known."""
        at = int(self.symbol.value().address) if is_alone else self.own_list_at()
        data = read(at, self.symbol.type.sizeof)
        words = (int.from_bytes(data[i:i + WORD], "little") for i in range(0, len(data), WORD))
        return [word for word in words if word]


_known = {}


def libraries():
    """Every copy of the library in the program whose debug information is there."""
    found = []
    for objfile in gdb.objfiles():
        if objfile.owner:  # of which it is the debug information alone
            continue
        name = objfile.filename
        old = _known.get(name)
        if old and old.symbol.is_valid() and old.objfile == objfile:
            found.append(old)
            continue
        symbol = objfile.lookup_global_symbol("ch__heaps")
        if symbol:
            _known[name] = Library(objfile, symbol)
            found.append(_known[name])
    return found


def demand_libraries():
    """libraries(), or the sentence that says what is missing."""
    if not gdb.selected_inferior().threads():
        fail(NO_PROCESS)
    found = libraries()
    if found:
        return found
    try:
        gdb.parse_and_eval("&ch_heap_create")
    except gdb.error:
        fail(NOT_USED)
    fail(STRIPPED)
