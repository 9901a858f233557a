/* SPDX-License-Identifier: MIT
 * steps.h: code that says, for each of its instructions, where its caller's frame is: pages of one
 * FDE whose rule finds the block by itself. A DWARF expression may read memory: it finds, by the pc
 * of the frame, the note that lies behind the block's code. */
#ifndef CH_UNWIND_STEPS_H
#define CH_UNWIND_STEPS_H

#include "unwind/sink.h"

/* As struct ch_frame of the public header, which says what the fields mean. */
struct ch__step {
	uint16_t at, cfa;
};
struct ch__save {
	uint8_t reg, below;
	uint16_t at;
};
struct ch__frame {
	const struct ch__step *steps;
	const struct ch__save *saves;
	uint8_t steps_n, saves_n;
};

enum {
	CH__STEPS_MOST = 12,
	CH__NOTE_SAVES_AT = 4,
	CH__NOTE_STEPS_AT = CH__NOTE_SAVES_AT + 4 * CH_ARCH_STEPS_KEPT,
	/* The state at the call comes before the steps, and an end behind them. */
	CH__NOTE_MOST_BYTES = (CH__NOTE_STEPS_AT + 4 * (CH__STEPS_MOST + 2) + 7) & ~7,
	/* Offsets have 16 bits, of which the highest is the end. */
	CH__STEPS_CODE_BYTES = 65000,
	CH__STEPS_PROGRAM_BYTES = 1000,
};

/* Of a heap. The map has, for each 8 bytes of the pool, how many of them farther on the note of the
 * block begins that lies there, + 1; 0: no block with a note. */
struct ch__steps {
	uintptr_t pool_exec;
	size_t map_bytes;
	_Atomic(uint16_t) *map;
	uint32_t program_bytes;
	uint8_t program[CH__STEPS_PROGRAM_BYTES]; /* of the CIE */
};

/* False: no memory. */
bool ch__steps_begin(struct ch__steps *, uintptr_t pool_exec, size_t pool_bytes)
	CH_EXCLUDES(CH__STANDING);
void ch__steps_end(struct ch__steps *) CH_EXCLUDES(CH__STANDING);
/* Why unwinders may not be given a frame: the field of an array's entry, or of the frame, where array
 * is NULL; its value, and what that should be. */
struct ch__frame_fault {
	const char *array, *field, *rule;
	unsigned nth, value;
};
/* The first fault of the frame of so many bytes of code. */
bool ch__frame_has_fault(const struct ch__frame *, uint32_t code_bytes, struct ch__frame_fault *);
/* Writes the note that lies so many bytes behind the code's first; returns its bytes. */
uint32_t ch__frame_note(uint8_t *write, const struct ch__frame *, uint32_t behind);
/* From the block's first granule to its note, which is one of them: before it is reachable. */
void ch__steps_live(struct ch__steps *, uintptr_t exec, uintptr_t note);
/* Of the block whose code exec lies in; 0: of none. */
uintptr_t ch__steps_note(const struct ch__steps *, uintptr_t exec);
/* After it was poisoned. */
void ch__steps_dead(struct ch__steps *, uintptr_t exec, size_t bytes);
/* The instructions of an FDE for the block at exec, whose CIE says the frame of LEAF, into
 * CH__STEPS_FDE_BYTES; returns how many, 0: there is no note. */
enum { CH__STEPS_FDE_BYTES = 160 };
size_t ch__steps_fde(const struct ch__steps *, uintptr_t exec, uint8_t *out);

#endif
