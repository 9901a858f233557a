/* SPDX-License-Identifier: MIT
 * unwind.h: unwind tables, whether they are well-formed, their FDEs; walks by frame pointers. */
#pragma once

#include "arch/base.h"

/* Why unwinders may not be given the 0-terminated section, and at which byte; NULL: they may. Every
 * record is well-formed, every FDE lies in [low, high), at least one covers something. */
const char *ch__eh_frame_fault(const void *section, uintptr_t low, uintptr_t high, size_t *at);
/* An FDE, and from its CIE the version, letters, alignments and return register as written there,
 * and the programs. */
struct ch__eh_frame_fde {
	const uint8_t *record;
	uint64_t low, bytes;
	const char *letters;
	const uint8_t *facts, *initial, *program;
	uint32_t facts_bytes, initial_bytes, program_bytes;
	uint8_t version, encoding;
};
/* The next FDE of a sound section from *at on, 0 the first time. Returns false at the end. */
bool ch__eh_frame_next(const uint8_t *section, size_t *at, struct ch__eh_frame_fde *);

/* Walks by frame pointers; signal-safe. Writes pc unless pc is 0, then return addresses, innermost
 * first, while records lie in [low, high). Returns how many words were written. */
size_t ch__walk(uintptr_t pc, uintptr_t fp, uintptr_t low, uintptr_t high, uintptr_t *out,
		size_t max);
