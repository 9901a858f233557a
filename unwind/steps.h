/* SPDX-License-Identifier: MIT
 * steps.h: frames that are right at each instruction. A page of such code has one FDE, with a rule
 * that finds the block by itself. A DWARF expression may read memory: by the frame's pc, it finds
 * the note behind the block's code. */
#pragma once

#include "unwind/sink.h"

struct ch__text;

enum {
	/* Six registers saved and loaded, room made and given back, and a call with arguments. */
	CH__STEPS_MOST = 16,
	CH__NOTE_SAVES_AT = 4,
	CH__NOTE_STEPS_AT = CH__NOTE_SAVES_AT + 4 * CH_ARCH_STEPS_KEPT,
	/* The state at the call comes before the steps, and an end behind the steps. */
	CH__NOTE_MOST_BYTES = CH_ROUND_UP(CH__NOTE_STEPS_AT + 4 * (CH__STEPS_MOST + 2), 8),
	/* Offsets have 16 bits; the highest value is the end. */
	CH__STEPS_CODE_BYTES = 65000,
	CH__STEPS_PROGRAM_BYTES = 1000,
};

/* Of a heap. A map entry is for 8 bytes of the pool: the distance to the note of the block there,
 * in units of 8 bytes, + 1; or 0 for no block with a note. */
struct ch__steps {
	uintptr_t pool_exec;
	size_t map_bytes;
	_Atomic(uint16_t) *map;
	uint32_t program_bytes;
	uint8_t program[CH__STEPS_PROGRAM_BYTES]; /* of the CIE */
};

/* Returns false when there is no memory. */
bool ch__steps_begin(struct ch__steps *, uintptr_t pool_exec, size_t pool_bytes) CH_MAY_WAIT;
void ch__steps_end(struct ch__steps *) CH_MAY_WAIT;
/* Puts why unwinders may not be given the frame for so many bytes of code, if so: the first field
 * that is wrong, its value and the rule for the value. */
void ch__frame_fault(struct ch__text *, const struct ch_frame *, uint32_t code_bytes);
/* Writes the note, `behind` bytes behind the code's first. Returns the note's bytes. */
uint32_t ch__frame_note(uint8_t *write, const struct ch_frame *, uint32_t behind);
/* Maps the granules from the block's first to its note, before the block is reachable. */
void ch__steps_live(struct ch__steps *, uintptr_t exec, uintptr_t note);
/* Returns the note of the block with code at exec; 0 when there is none. */
uintptr_t ch__steps_note(const struct ch__steps *, uintptr_t exec);
/* Call after the poison. */
void ch__steps_dead(struct ch__steps *, uintptr_t exec, size_t bytes);
