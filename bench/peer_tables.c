/* SPDX-License-Identifier: MIT
 * peer_tables.c: how JITs without such a library tell unwinder and debugger of a block: with one
 * __register_frame and one symbol file in memory a block. No debugger works here: GDB reads another
 * list. */
#include "bench/bench.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>

void __register_frame(void *);
void __deregister_frame(void *);

/* A section: a CIE for code that keeps rbp, an FDE and the end. */
struct section {
	uint8_t cie[24], fde[32], end[8];
};

static void write_section(struct section *section, const void *exec, uint64_t bytes)
{
	static const uint8_t cie[24] = {
		20,   0, 0,  0,         0,    0,        0,
		0,    1, 0,  1,         0x78, 16, /* version 1, "", align 1, -8, rip */
		0x0c, 6, 16, 0x80 | 16, 1,    0x80 | 6, 2};
	static const uint8_t fde[8] = {28, 0, 0, 0, 28};
	uint64_t start = (uint64_t)(uintptr_t)exec;
	memset(section, 0, sizeof *section);
	memcpy(section->cie, cie, sizeof cie);
	memcpy(section->fde, fde, sizeof fde);
	memcpy(section->fde + 8, &start, sizeof start);
	memcpy(section->fde + 16, &bytes, sizeof bytes);
}

double peer_frames_ns(const uint8_t *code, uint32_t bytes, int blocks)
{
	struct section *sections = calloc((size_t)blocks, sizeof *sections);
	if (!sections)
		bench_die("no memory");
	double start = bench_cpu_ns();
	for (int i = 0; i < blocks; i++) {
		write_section(&sections[i], code + (size_t)i * bytes, bytes);
		__register_frame(&sections[i]);
	}
	double time = bench_cpu_ns() - start;
	for (int i = blocks; i-- > 0;) /* deregistering the last section first is cheap */
		__deregister_frame(&sections[i]);
	free(sections);
	return time / blocks;
}

struct entry {
	struct entry *next, *prev;
	const void *file;
	uint64_t bytes;
};

enum { SECTIONS = 5 };

/* Headers, two symbols, and a table of strings for sections and symbols. */
struct symfile {
	struct entry entry;
	Elf64_Ehdr header;
	Elf64_Shdr sections[SECTIONS];
	Elf64_Sym symbols[2];
	char strings[96];
};

static struct entry *first_entry;

__attribute__((noinline)) static void tell_debugger(void)
{
	__asm__ volatile("" ::: "memory");
}

static void write_symfile(struct symfile *file, const void *exec, uint64_t bytes, int number)
{
	static const char names[] = "\0.text\0.symtab\0.strtab\0";
	size_t base = offsetof(struct symfile, header);
	memset(file, 0, sizeof *file);
	memcpy(file->header.e_ident, ELFMAG "\2\1\1", 7);
	file->header.e_type = ET_REL;
	file->header.e_machine = EM_X86_64;
	file->header.e_version = EV_CURRENT;
	file->header.e_shoff = offsetof(struct symfile, sections) - base;
	file->header.e_ehsize = sizeof file->header;
	file->header.e_shentsize = sizeof file->sections[0];
	file->header.e_shnum = 4;
	file->header.e_shstrndx = 3;
	file->sections[1] = (Elf64_Shdr){.sh_name = 1,
					 .sh_type = SHT_NOBITS,
					 .sh_flags = SHF_ALLOC | SHF_EXECINSTR,
					 .sh_addr = (uintptr_t)exec,
					 .sh_size = bytes};
	file->sections[2] = (Elf64_Shdr){.sh_name = 7,
					 .sh_type = SHT_SYMTAB,
					 .sh_offset = offsetof(struct symfile, symbols) - base,
					 .sh_size = sizeof file->symbols,
					 .sh_link = 3,
					 .sh_info = 1,
					 .sh_entsize = sizeof file->symbols[0]};
	file->sections[3] = (Elf64_Shdr){.sh_name = 15,
					 .sh_type = SHT_STRTAB,
					 .sh_offset = offsetof(struct symfile, strings) - base,
					 .sh_size = sizeof file->strings};
	file->symbols[1] = (Elf64_Sym){.st_name = sizeof names,
				       .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
				       .st_shndx = 1,
				       .st_size = bytes};
	memcpy(file->strings, names, sizeof names);
	snprintf(file->strings + sizeof names, sizeof file->strings - sizeof names,
		 "scm::procedure%d", number);
}

double peer_symfiles_ns(const uint8_t *code, uint32_t bytes, int blocks)
{
	double start = bench_cpu_ns();
	for (int i = 0; i < blocks; i++) {
		struct symfile *file = malloc(sizeof *file);
		if (!file)
			bench_die("no memory");
		write_symfile(file, code + (size_t)i * bytes, bytes, i);
		file->entry = (struct entry){first_entry, NULL, &file->header,
					     sizeof *file - offsetof(struct symfile, header)};
		if (first_entry)
			first_entry->prev = &file->entry;
		first_entry = &file->entry;
		tell_debugger();
	}
	double time = bench_cpu_ns() - start;
	while (first_entry) {
		struct entry *next = first_entry->next;
		free((struct symfile *)(void *)first_entry);
		first_entry = next;
	}
	return time / blocks;
}
