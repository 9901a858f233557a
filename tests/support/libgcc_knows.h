/* SPDX-License-Identifier: MIT
 * libgcc_knows.h: whether libgcc's unwinder has a frame for the code at an address. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dwarf_eh_bases {
	void *tbase, *dbase, *func;
};
extern const void *_Unwind_Find_FDE(void *pc, struct dwarf_eh_bases *);

static inline bool libgcc_knows(const void *pc)
{
	struct dwarf_eh_bases bases;
	return _Unwind_Find_FDE((void *)(uintptr_t)pc, &bases) != NULL;
}
