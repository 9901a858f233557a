/* SPDX-License-Identifier: MIT
 * frames.c: what unwinders are told: pages with code of a frame shape, the shapes, slots, steps,
 * and the tables of blocks that bring their own. The table remembers the live pages, the live
 * tables of blocks and the shapes for an unwinder that is turned on late. */
#include "sinks/table.h"

static void set_frames(struct ch__sinks *s, uint32_t page, uint32_t pages, uint8_t frame)
{
	CH_ASSERT(CH_CHECK < 2 || ch__lock_is_mine(&s->lock),
		  "sinks: pages change without the lock");
	CH_ASSERT(page < s->page_count && pages <= s->page_count - page,
		  "sinks: pages outside the pool");
	for (uint32_t end = page + pages; page < end; page++)
		atomic_store_explicit(&s->frames[page], frame, memory_order_release);
}

struct ch__steps *ch__sinks_steps(const struct ch__sinks *s)
{
	return atomic_load_explicit(&s->steps, memory_order_acquire);
}

/* Appends instructions to the shape's program. */
static void write_shape(struct ch__frame_shape *shape, const uint8_t *cfi, size_t bytes)
{
	memcpy(shape->cfi + shape->bytes, cfi, bytes);
	shape->bytes = (uint8_t)(shape->bytes + bytes);
}

_Static_assert(sizeof ch__arch_cfi_frame_pointer + sizeof ch__arch_cfi_saves <=
			       CH__FRAME_CFI_BYTES &&
		       sizeof ch__arch_cfi_framed <= CH__FRAME_FDE_BYTES,
	       "a shape has room for the longest programs of its own");
void ch__sinks_fixed_shapes(struct ch__frame_shape *shapes, uint16_t slot_bytes)
{
	static const uint8_t *const record = ch__arch_cfi_frame_pointer;
	write_shape(&shapes[CH_FRAME_POINTER], record, sizeof ch__arch_cfi_frame_pointer);
	write_shape(&shapes[CH_FRAME_KEEPS_ALL], record, sizeof ch__arch_cfi_frame_pointer);
	write_shape(&shapes[CH_FRAME_KEEPS_ALL], ch__arch_cfi_saves, sizeof ch__arch_cfi_saves);
	write_shape(&shapes[CH_FRAME_LEAF], ch__arch_cfi_leaf, sizeof ch__arch_cfi_leaf);
	write_shape(&shapes[CH_FRAME_STEPS], ch__arch_cfi_leaf, sizeof ch__arch_cfi_leaf);
	for (unsigned kind = 0; kind < CH__TEMPLATES; kind++) {
		struct ch__frame_shape *shape = &shapes[CH__FRAME_SLOTS + kind];
		write_shape(shape, ch__arch_cfi_leaf, sizeof ch__arch_cfi_leaf);
		shape->slot_bytes = slot_bytes;
	}
	struct ch__frame_shape *framed = &shapes[CH__FRAME_SLOTS + CH_TRAMPOLINE_FRAMED];
	memcpy(framed->fde, ch__arch_cfi_framed, sizeof ch__arch_cfi_framed);
	framed->fde_bytes = sizeof ch__arch_cfi_framed;
}

static void kill_pages(struct ch__sinks *s, uint32_t page, uint32_t pages)
{
	set_frames(s, page, pages, 0);
	CH__SINKS_EACH(s, i, state, page_dead)
		ch__sinks_table[i]->page_dead(state, page, pages);
}

bool ch__sinks_page_live(struct ch__sinks *s, uint32_t page, uint32_t pages, uint8_t frame)
{
	bool ok = true;
	ch__sinks_lock(s);
	CH_ASSERT(page < s->page_count && pages <= s->page_count - page &&
			  (frame < s->shape_count || ch__frame_has_slots(frame)),
		  "sinks: a live page outside the pool, or of no frame shape");
	for (uint32_t i = page; i < page + pages; i++)
		if (ch__sink_frame(&s->config, i) && ch__sink_frame(&s->config, i) != frame + 1)
			kill_pages(s, i, 1);
	CH__SINKS_EACH(s, i, state, page_live)
		ok = ok && ch__sinks_table[i]->page_live(state, page, pages, frame);
	if (ok) {
		set_frames(s, page, pages, (uint8_t)(frame + 1));
		s->page_end = page + pages > s->page_end ? page + pages : s->page_end;
	} else {
		kill_pages(s, page, pages);
	}
	ch__sinks_unlock(s);
	return ok;
}

bool ch__sinks_page_is_live(const struct ch__sinks *s, uint32_t page, uint8_t frame)
{
	return ch__sink_frame(&s->config, page) == frame + 1;
}

void ch__sinks_page_dead(struct ch__sinks *s, uint32_t page, uint32_t pages)
{
	ch__sinks_lock(s);
	kill_pages(s, page, pages);
	ch__sinks_unlock(s);
}

/* Sinks that are off are told, too, since they may hold registrations of an earlier time. */
void ch__sinks_chunk_gone(struct ch__sinks *s, uint32_t chunk)
{
	uint32_t pages = (uint32_t)(s->config.chunk_bytes / s->config.page_bytes);
	ch__sinks_lock(s);
	set_frames(s, chunk * pages, pages, 0);
	for (unsigned i = 0; i < CH__SINKS_COUNT; i++) {
		if (ch__sinks_state_of(s, i) && ch__sinks_table[i]->chunk_gone)
			ch__sinks_table[i]->chunk_gone(ch__sinks_state_of(s, i), chunk);
	}
	ch__sinks_unlock(s);
}

uint8_t ch__sinks_frame_register(struct ch__sinks *s, const uint8_t *cfi, size_t bytes)
{
	uint8_t frame = CH__FRAMES_FIXED;
	ch__sinks_lock(s);
	while (frame < s->shape_count &&
	       (s->shapes[frame].bytes != bytes || memcmp(s->shapes[frame].cfi, cfi, bytes) != 0))
		frame++;
	if (frame == CH__FRAME_SHAPES) {
		frame = 0;
	} else if (frame == s->shape_count) {
		s->shape_count++;
		write_shape(&s->shapes[frame], cfi, bytes);
	}
	ch__sinks_unlock(s);
	return frame;
}

bool ch__sinks_steps_begin(struct ch__sinks *s)
{
	if (CH_LIKELY(ch__sinks_steps(s) != NULL))
		return true;
	ch__sinks_lock(s);
	struct ch__steps *steps = ch__sinks_steps(s);
	if (!steps) {
		steps = ch__meta_alloc(s->config.meta, sizeof *steps);
		if (steps && !ch__steps_begin(steps, s->config.pool_exec, s->config.pool_bytes)) {
			ch__meta_free(s->config.meta, steps, sizeof *steps);
			steps = NULL;
		}
		if (steps) {
			s->shapes[CH_FRAME_STEPS].steps = steps;
			atomic_store_explicit(&s->steps, steps, memory_order_release);
		}
	}
	ch__sinks_unlock(s);
	return steps != NULL;
}

struct ch__own *ch__sinks_own_create(struct ch__sinks *s)
{
	return ch__meta_alloc(s->config.meta, sizeof(struct ch__own));
}

void ch__sinks_own_live(struct ch__sinks *s, struct ch__own *own, const void *section)
{
	ch__sinks_lock(s);
	CH_ASSERT(!own->section, "sinks: a block's table is live already");
	own->section = section;
	own->prev = NULL;
	own->next = s->own;
	if (s->own)
		s->own->prev = own;
	s->own = own;
	CH__SINKS_EACH(s, i, state, own_live)
		ch__sinks_table[i]->own_live(state, own);
	ch__sinks_unlock(s);
}

bool ch__sinks_own_dead(struct ch__sinks *s, struct ch__own *own)
{
	ch__sinks_lock(s);
	/* In memory that a child of fork lacks libgcc would read the end of a section, and cannot
	 * be told that the section is gone. */
	uintptr_t at = (uintptr_t)own->section - s->config.pool_exec;
	bool is_kept = s->is_codeless && at < s->config.pool_bytes, was_live = own->section != NULL;
	s->keeps_tables |= is_kept;
	if (is_kept)
		own->section = NULL;
	if (was_live) {
		/* Unwinders come first, and read the section. */
		CH__SINKS_EACH(s, i, state, own_dead) {
			if (ch__sinks_table[i]->tool)
				own->section = NULL;
			ch__sinks_table[i]->own_dead(state, own);
		}
		*(own->prev ? &own->prev->next : &s->own) = own->next;
		if (own->next)
			own->next->prev = own->prev;
	}
	own->section = NULL;
	ch__sinks_unlock(s);
	return !is_kept;
}

void ch__sinks_own_destroy(struct ch__sinks *s, struct ch__own *own)
{
	if (own && ch__sinks_own_dead(s, own))
		ch__meta_free(s->config.meta, own, sizeof *own);
}
