/* SPDX-License-Identifier: MIT
 * jit_emit.c: the common part of the emitters of all architectures: the scratch image and the lists
 * to settle when the place of the code is known. No encoding is here.
 */
#include "jit_emit.h"

#include <string.h>

#include <codeheap/codeheap.h>

void emit_reset(struct emitter *e, int is_arena)
{
	e->section = HOT;
	e->used[HOT] = e->used[COLD] = 0;
	e->is_arena = is_arena;
	e->overflowed = 0;
	e->label_count = e->fix_count = e->site_count = e->ref_count = e->point_count = 0;
	e->literal_count = 0;
	e->line_count[HOT] = e->line_count[COLD] = 0;
}

void emit_bytes(struct emitter *e, const void *bytes, uint32_t count)
{
	uint32_t at = e->used[e->section];

	if (count > SECTION_ROOM - at) {
		e->overflowed = 1;
		return;
	}
	memcpy(e->bytes[e->section] + at, bytes, count);
	e->used[e->section] = at + count;
}

struct emit_fix *emit_fix(struct emitter *e, enum emit_fix_kind kind)
{
	static __thread struct emit_fix spare;

	if (e->fix_count == MAX_FIXES) {
		e->overflowed = 1;
		return &spare;
	}
	struct emit_fix *f = &e->fixes[e->fix_count++];
	f->kind = kind;
	f->section = e->section;
	f->at = e->used[e->section];
	return f;
}

void emit_mark(struct emitter *e, struct emit_mark *marks, int *count, int room, int label)
{
	if (*count == room) {
		e->overflowed = 1;
		return;
	}
	marks[*count].section = e->section;
	marks[*count].at = e->used[e->section];
	marks[(*count)++].label = label;
}

struct emit_branch *emit_add_site(struct emitter *e, enum emit_site kind, int record, int exit)
{
	if (e->site_count == MAX_SITES) {
		e->overflowed = 1;
		return NULL;
	}
	struct emit_branch *site = &e->sites[e->site_count++];
	site->kind = kind;
	site->section = e->section;
	site->at = e->used[e->section];
	site->record = record;
	site->exit = exit;
	return site;
}

int emit_label(struct emitter *e)
{
	if (e->label_count == MAX_LABELS) {
		e->overflowed = 1;
		return 0;
	}
	e->labels[e->label_count].is_bound = 0;
	return e->label_count++;
}

void emit_bind(struct emitter *e, int label)
{
	e->labels[label].is_bound = 1;
	e->labels[label].section = e->section;
	e->labels[label].at = e->used[e->section];
}

/* ---- registers at a site ---- */

struct context *emit_site_context(const struct ch_regs *regs)
{
	return (struct context *)regs->gpr[emit_numbers[CTX]];
}

uint64_t *emit_site_frame(const struct ch_regs *regs)
{
	return (uint64_t *)regs->gpr[emit_numbers[FPTR]];
}

void emit_site_go_on(struct ch_regs *regs, const void *at, uint64_t arg2)
{
	regs->gpr[emit_numbers[ARG2]] = arg2;
	regs->pc = (uint64_t)at;
}
