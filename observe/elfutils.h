/* SPDX-License-Identifier: MIT
 * elfutils.h: the part of elfutils' libdw that the library needs, declared here because neither
 * building nor linking needs libdw. An installed libdw is loaded when names are wanted; tests run
 * on a real one. Source: libdwfl.h and gelf.h of elfutils 0.158 and later (one interface). */
#pragma once

#include "arch/base.h"

#define CH__ELFUTILS_LIBRARY "libdw.so.1"

struct ch__elfutils_session; /* Dwfl */
struct ch__elfutils_module;  /* Dwfl_Module */

/* Returns the descriptor of the debug file, for libdw to own; -1 and errno 0: there is none. *path
 * is from malloc, or stays NULL. */
typedef int ch__elfutils_find_debug(struct ch__elfutils_module *, void **user, const char *module,
				    uint64_t base, const char *file, const char *link,
				    uint32_t link_crc, char **path);
/* Dwfl_Callbacks; unused members are NULL. */
struct ch__elfutils_callbacks {
	void *find_elf;
	ch__elfutils_find_debug *find_debug;
	void *section_address;
	char **debug_path;
};

/* GElf_Sym */
struct ch__elfutils_symbol {
	uint32_t name;
	uint8_t info, other;
	uint16_t section;
	uint64_t value, bytes;
};

struct ch__elfutils {
	struct ch__elfutils_session *(*begin)(const struct ch__elfutils_callbacks *);
	void (*end)(struct ch__elfutils_session *);
	/* Modules reported before stay. */
	void (*report_begin)(struct ch__elfutils_session *);
	/* With adds_addresses, base is added to the addresses in the file. libdw owns fd when the
	 * result is not NULL. */
	struct ch__elfutils_module *(*report)(struct ch__elfutils_session *, const char *module,
					      const char *file, int fd, uint64_t base,
					      bool adds_addresses);
	int (*report_end)(struct ch__elfutils_session *, void *removed, void *arg);
	/* The symbol around an address; the last three may be NULL. */
	const char *(*symbol)(struct ch__elfutils_module *, uint64_t address, uint64_t *offset,
			      struct ch__elfutils_symbol *, uint32_t *section, void **elf,
			      uint64_t *bias);
	/* Finds the debug file with the module's build ID on the machine. */
	ch__elfutils_find_debug *find_by_build_id;
};
