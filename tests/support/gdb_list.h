/* SPDX-License-Identifier: MIT
 * gdb_list.h: reads GDB's JIT interface in this process as a debugger would: the list, the ELF
 * images, symbols, call frames and source lines. The reader trusts nothing, and fails the case on
 * data no debugger could take. */
#pragma once

#include "tests/support/harness.h"

#include <elf.h>
#include <string.h>

struct gdb_entry {
	struct gdb_entry *next, *previous;
	const uint8_t *file;
	uint64_t file_bytes;
};

struct gdb_descriptor {
	uint32_t version, action;
	struct gdb_entry *relevant, *first;
};

extern struct gdb_descriptor __jit_debug_descriptor;
extern void __jit_debug_register_code(void);

/* --- an image --- */
static inline const Elf64_Ehdr *gdb_header(const struct gdb_entry *entry)
{
	const Elf64_Ehdr *header = (const Elf64_Ehdr *)(const void *)entry->file;
	CHECK(entry->file_bytes > sizeof *header && !memcmp(header->e_ident, ELFMAG, SELFMAG));
	CHECK(header->e_shoff + header->e_shnum * sizeof(Elf64_Shdr) <= entry->file_bytes);
	return header;
}

static inline const Elf64_Shdr *gdb_sections(const struct gdb_entry *entry, unsigned *count)
{
	const Elf64_Ehdr *header = gdb_header(entry);
	*count = header->e_shnum;
	return (const Elf64_Shdr *)(const void *)(entry->file + header->e_shoff);
}

static inline const char *gdb_section_name(const struct gdb_entry *entry, const Elf64_Shdr *section)
{
	unsigned count;
	const Elf64_Shdr *all = gdb_sections(entry, &count);
	const Elf64_Shdr *names = &all[gdb_header(entry)->e_shstrndx];
	CHECK(section->sh_name < names->sh_size);
	return (const char *)entry->file + names->sh_offset + section->sh_name;
}

static inline const Elf64_Shdr *gdb_section(const struct gdb_entry *entry, const char *name)
{
	unsigned count;
	const Elf64_Shdr *all = gdb_sections(entry, &count);
	for (unsigned i = 1; i < count; i++)
		if (!strcmp(gdb_section_name(entry, &all[i]), name)) {
			CHECK(all[i].sh_type == SHT_NOBITS ||
			      all[i].sh_offset + all[i].sh_size <= entry->file_bytes);
			return &all[i];
		}
	return NULL;
}

/* Whether the image claims the address; and the bytes of code that the image claims in all. */
static inline bool gdb_claims(const struct gdb_entry *entry, uintptr_t pc)
{
	unsigned count;
	const Elf64_Shdr *all = gdb_sections(entry, &count);
	for (unsigned i = 1; i < count; i++)
		if (all[i].sh_type == SHT_NOBITS && pc - all[i].sh_addr < all[i].sh_size)
			return true;
	return false;
}

static inline size_t gdb_symbol_count(const struct gdb_entry *entry)
{
	const Elf64_Shdr *symbols = gdb_section(entry, ".symtab");
	CHECK(symbols && symbols->sh_size >= sizeof(Elf64_Sym));
	return symbols->sh_size / sizeof(Elf64_Sym) - 1;
}

static inline const Elf64_Sym *gdb_symbol(const struct gdb_entry *entry, size_t i,
					  const char **name)
{
	unsigned count;
	const Elf64_Shdr *all = gdb_sections(entry, &count);
	const Elf64_Shdr *symbols = gdb_section(entry, ".symtab");
	const Elf64_Shdr *names = &all[symbols->sh_link];
	const Elf64_Sym *symbol =
		(const Elf64_Sym *)(const void *)(entry->file + symbols->sh_offset) + i + 1;
	CHECK(symbol->st_name < names->sh_size);
	CHECK(memchr(entry->file + names->sh_offset + symbol->st_name, 0,
		     names->sh_size - symbol->st_name));
	const Elf64_Shdr *text = &all[symbol->st_shndx];
	CHECK(symbol->st_value >= text->sh_addr &&
	      symbol->st_value + symbol->st_size <= text->sh_addr + text->sh_size);
	*name = (const char *)entry->file + names->sh_offset + symbol->st_name;
	return symbol;
}

static inline const Elf64_Sym *gdb_symbol_at(const struct gdb_entry *entry, uintptr_t pc,
					     const char **name)
{
	for (size_t i = 0; i < gdb_symbol_count(entry); i++) {
		const Elf64_Sym *symbol = gdb_symbol(entry, i, name);
		if (pc - symbol->st_value < symbol->st_size)
			return symbol;
	}
	return NULL;
}

/* The FDE of the pc. */
static inline const uint8_t *gdb_fde_at(const struct gdb_entry *entry, uintptr_t pc)
{
	const Elf64_Shdr *section = gdb_section(entry, ".eh_frame");
	CHECK(section);
	const uint8_t *at = entry->file + section->sh_offset, *end = at + section->sh_size;
	for (uint32_t length, id; at < end; at += length + 4) {
		uint64_t low, bytes;
		CHECK(at + 4 <= end);
		memcpy(&length, at, 4);
		if (length == 0)
			break;
		CHECK(length >= 4 && at + 4 + length <= end);
		memcpy(&id, at + 4, 4);
		if (id == 0)
			continue;
		CHECK(length >= 20);
		/* The distance must lead back to a CIE. */
		CHECK(id <= (size_t)(at + 4 - entry->file) &&
		      !memcmp(at + 4 - id + 4, "\0\0\0\0", 4));
		memcpy(&low, at + 8, 8);
		memcpy(&bytes, at + 16, 8);
		if (pc - low < bytes)
			return at;
	}
	return NULL;
}

/* --- the list --- */

/* Walks the list as a debugger that attaches would; returns the length. */
static inline size_t gdb_list_length(void)
{
	size_t n = 0;
	const struct gdb_entry *previous = NULL;
	CHECK_EQ(__jit_debug_descriptor.version, 1);
	CHECK_EQ(__jit_debug_descriptor.action, 0);
	CHECK(__jit_debug_descriptor.relevant == NULL);
	for (const struct gdb_entry *entry = __jit_debug_descriptor.first; entry;
	     entry = entry->next) {
		CHECK(entry->previous == previous);
		gdb_header(entry);
		previous = entry;
		n++;
	}
	return n;
}

/* A debugger that finds overlapping sections ignores a section, with the section's symbols. */
static inline void gdb_check_disjoint(const struct gdb_entry *entry, const struct gdb_entry *other)
{
	unsigned count, other_count;
	const Elf64_Shdr *all = gdb_sections(entry, &count);
	const Elf64_Shdr *others = gdb_sections(other, &other_count);
	for (unsigned i = 1; i < count; i++)
		for (unsigned j = 1; j < other_count; j++)
			if (all[i].sh_type == SHT_NOBITS && others[j].sh_type == SHT_NOBITS &&
			    &all[i] != &others[j] &&
			    all[i].sh_addr < others[j].sh_addr + others[j].sh_size &&
			    others[j].sh_addr < all[i].sh_addr + all[i].sh_size)
				FAIL("gdb: the .text at %lx overlaps the one at %lx",
				     (unsigned long)all[i].sh_addr,
				     (unsigned long)others[j].sh_addr);
}

static inline void gdb_check_sections(void)
{
	for (const struct gdb_entry *entry = __jit_debug_descriptor.first; entry;
	     entry = entry->next)
		for (const struct gdb_entry *other = entry; other; other = other->next)
			gdb_check_disjoint(entry, other);
}

/* The only entry that claims the address, or NULL. */
static inline const struct gdb_entry *gdb_entry_of(uintptr_t pc)
{
	const struct gdb_entry *found = NULL;
	for (const struct gdb_entry *entry = __jit_debug_descriptor.first; entry;
	     entry = entry->next)
		if (gdb_claims(entry, pc)) {
			if (found)
				FAIL("gdb: two images claim %lx", (unsigned long)pc);
			found = entry;
		}
	return found;
}

static inline const char *gdb_name_of(uintptr_t pc)
{
	const struct gdb_entry *entry = gdb_entry_of(pc);
	const char *name = NULL;
	return entry && gdb_symbol_at(entry, pc, &name) ? name : NULL;
}

/* --- source lines, of the opcodes in images --- */
static inline uint64_t gdb_unsigned(const uint8_t **at)
{
	uint64_t value = 0;
	for (unsigned shift = 0;; shift += 7) {
		uint8_t byte = *(*at)++;
		value |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			return value;
	}
}

static inline int64_t gdb_signed(const uint8_t **at)
{
	uint64_t value = 0;
	for (unsigned shift = 0;; shift += 7) {
		uint8_t byte = *(*at)++;
		value |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			return (int64_t)(byte & 0x40 ? value | ~UINT64_C(0) << (shift + 7) : value);
	}
}

/* Runs a unit's line program. Returns line and file of the row that holds the pc; 0: no row. */
static inline unsigned gdb_unit_line(const uint8_t *at, const uint8_t *end, uintptr_t pc,
				     const char **file)
{
	uint32_t header_bytes;
	memcpy(&header_bytes, at + 2, 4);
	const uint8_t *program = at + 6 + header_bytes;
	const char *name = (const char *)at + 6 + 6 + 12 + 1;
	uint64_t address = 0, row_address = 0;
	int64_t line = 1, row_line = 0;
	for (at = program; at < end;) {
		bool is_row = false, is_end = false;
		uint8_t op = *at++;
		if (op == 0) {
			uint64_t bytes = gdb_unsigned(&at);
			is_end = *at == 1;
			CHECK(is_end || (*at == 2 && bytes == 9));
			if (!is_end)
				memcpy(&address, at + 1, 8);
			at += bytes;
		} else if (op == 2) {
			address += gdb_unsigned(&at);
		} else if (op == 3) {
			line += gdb_signed(&at);
		} else {
			CHECK_EQ(op, 1);
			is_row = true;
		}
		if (!is_row && !is_end)
			continue;
		if (row_line && pc >= row_address && pc < address) {
			*file = name;
			return (unsigned)row_line;
		}
		row_address = address;
		row_line = is_end ? 0 : line;
		CHECK(!is_end || at == end);
	}
	return 0;
}

static inline unsigned gdb_line_of(uintptr_t pc, const char **file)
{
	const struct gdb_entry *entry = gdb_entry_of(pc);
	const Elf64_Shdr *section = entry ? gdb_section(entry, ".debug_line") : NULL;
	if (!section)
		return 0;
	const uint8_t *at = entry->file + section->sh_offset, *end = at + section->sh_size;
	for (uint32_t bytes; at < end; at += 4 + bytes) {
		memcpy(&bytes, at, 4);
		CHECK(at + 4 + bytes <= end && at[4] == 4 && at[5] == 0);
		unsigned line = gdb_unit_line(at + 4, at + 4 + bytes, pc, file);
		if (line)
			return line;
	}
	return 0;
}
