/* SPDX-License-Identifier: MIT
 * graph_emit.h: the machine code of the graph level's blocks, written by graph_emit_<arch>.c. The
 * code knows the harness only by given addresses.
 *
 * A block keeps a frame pointer and, once graph_emit_locals ran, a word that says whether the block
 * goes on: 0 until the first graph_emit_step. */
#pragma once

#include "codeheap/codeheap.h"

struct graph_emitter {
	uint8_t *write;
	const uint8_t *exec;
	uint32_t at, room;
	uint32_t literal_use; /* user of the literal of graph_emit_call_literal; 0 = none */
};

/* Room for a block without graph_emit_pad, and for graph_emit_return alone. */
extern const uint32_t graph_emit_hot_bytes, graph_emit_return_bytes;

/* The landing pad of indirect branches, before everything but the bytes of the library. */
void graph_emit_landing(struct graph_emitter *e);
/* Returns `fallback` when the guard is set. */
void graph_emit_guard(struct graph_emitter *e, const uint32_t *guard, uint32_t fallback);
void graph_emit_enter(struct graph_emitter *e);
void graph_emit_locals(struct graph_emitter *e);
/* Puts a word into the code. Returns its exec address, for ch_ref_attach. */
const void *graph_emit_ref(struct graph_emitter *e, uint64_t word);
/* Calls step(number, is_again, frame); graph_emit_unless tests the answer. */
void graph_emit_step(struct graph_emitter *e, uint32_t number, const void *step);
/* Room for a patch point, for ch_patch_point_attach. */
const void *graph_emit_point(struct graph_emitter *e);
/* The code up to graph_emit_otherwise runs only when the step gave this answer. */
uint32_t graph_emit_unless(struct graph_emitter *e, int answer);
void graph_emit_otherwise(struct graph_emitter *e, uint32_t from);
/* Puts a site. Returns its exec address, for ch_branch_attach. CALL, LEA: of a call; JMP: leaves
 * the frame and jumps; JCC: the same, under a condition that always holds. LITERAL: the word that
 * graph_emit_call_literal loads, behind code that does not fall into the word. */
const void *graph_emit_site(struct graph_emitter *e, enum ch_branch_kind kind);
/* The target of a site, by the site's bytes. */
const uint8_t *graph_emit_target(const uint8_t *at, enum ch_branch_kind kind);
/* Where a stub leads its site on; the stub itself if it does not. */
const uint8_t *graph_emit_lead(const uint8_t *stub);
void graph_emit_call_literal(struct graph_emitter *e);
/* The call behind a LEA. */
void graph_emit_call_lea(struct graph_emitter *e);
void graph_emit_call_cell(struct graph_emitter *e, const void *const *cell);
void graph_emit_goto(struct graph_emitter *e, uint32_t to);
/* Leaves the frame and returns the value. */
void graph_emit_return(struct graph_emitter *e, uint32_t value);
/* Fills the rest of the block. */
void graph_emit_pad(struct graph_emitter *e);

/* Calls that leave the address in no frame. */
uint64_t graph_emit_call(const void *const *cell);
uint64_t graph_emit_call_at(const void *entry);
/* The target of trampolines: returns the payload. */
void graph_emit_payload(void);

/* --- stacks --- */

/* Saves the callee-saved registers of the C ABI, and goes on where the stack `to` was left. */
void graph_emit_switch(uintptr_t *from, uintptr_t to);
/* The stack pointer of a stack that starts at entry(arg). */
uintptr_t graph_emit_stack(uint8_t *high, void (*entry)(void *arg), void *arg);
/* The caller's stack pointer. */
uintptr_t graph_emit_sp(void);

/* --- for graph_emit_<arch>.c --- */

void graph_fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
static inline void graph_emit_bytes(struct graph_emitter *e, const void *bytes, uint32_t count)
{
	if (e->at + count > e->room)
		graph_fail("the harness emitted more than it asked for");
	memcpy(e->write + e->at, bytes, count);
	e->at += count;
}
static inline const uint8_t *graph_emit_here(const struct graph_emitter *e)
{
	return e->exec + e->at;
}
