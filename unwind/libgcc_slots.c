/* SPDX-License-Identifier: MIT
 * libgcc_slots.c: the part of the libgcc sink that serves pages of slots: sections in which each
 * slot has an FDE (eh_slots.c writes them), registered once and switched slot by slot. What
 * sink_libgcc.c says of sections holds here as well; a chunk has the ones or the others.
 *
 * A section covers a part of a chunk: its FDEs, one a slot, all exist from the start, so that a
 * small user pays for 256 KiB of slots, and a pool full of slots is still a few hundred sections.
 * Lock: the sinks lock is held where pages and sections come and go. A slot is switched without it,
 * by whoever owns its place; its section stays, since its page is in use. */
#include "unwind/unwinders.h"

#include <stdatomic.h>

enum { PART_BYTES = 256 << 10, OBJECT_WORDS = 16 };

extern void __register_frame_info(const void *begin, void *object);
extern void *__deregister_frame_info(const void *begin);
extern void __unw_add_dynamic_fde(uintptr_t fde) __attribute__((weak));
extern void __unw_remove_dynamic_fde(uintptr_t fde) __attribute__((weak));

struct part {
	uintptr_t object[OBJECT_WORDS]; /* libgcc's, as in sink_libgcc.c */
	struct ch__eh_slots place;
	size_t bytes; /* of the allocation */
	_Alignas(16) uint8_t section[];
};

struct ch__libgcc_slots {
	const struct ch__sinks_config *config;
	const struct ch__frame_shape *shapes; /* the first slot shape's */
	size_t part_bytes;
	uint32_t part_count, parts_per_chunk;
	_Atomic(struct part *) parts[]; /* release when registered; pairs with part_of */
};

static size_t state_bytes(uint32_t part_count)
{
	return sizeof(struct ch__libgcc_slots) + part_count * sizeof(_Atomic(struct part *));
}

struct ch__libgcc_slots *ch__libgcc_slots_create(const struct ch__sinks_config *config,
						 const struct ch__frame_shape *shapes)
{
	size_t chunk =
		config->chunk_bytes < config->pool_bytes ? config->chunk_bytes : config->pool_bytes;
	size_t part_bytes = chunk < PART_BYTES ? chunk : PART_BYTES;
	uint32_t count = (uint32_t)(config->pool_bytes / part_bytes);
	struct ch__libgcc_slots *s = ch__meta_alloc(config->meta, state_bytes(count));
	if (!s)
		return NULL;
	s->config = config;
	s->shapes = shapes + CH__FRAME_SLOTS;
	s->part_bytes = part_bytes;
	s->part_count = count;
	s->parts_per_chunk = (uint32_t)(chunk / part_bytes);
	return s;
}

static struct part *part_of(struct ch__libgcc_slots *s, uintptr_t exec)
{
	size_t at = exec - s->config->pool_exec;
	return atomic_load_explicit(&s->parts[at / s->part_bytes], memory_order_acquire);
}

static struct part *register_part(struct ch__libgcc_slots *s, uint32_t index,
				  const struct ch__frame_shape *shape)
{
	struct ch__eh_slots place = {
		.exec = s->config->pool_exec + index * s->part_bytes,
		.page_bytes = s->config->page_bytes,
		.pages = (uint32_t)(s->part_bytes / s->config->page_bytes),
		.slots_at = shape->slots_at,
		.slot_bytes = shape->slot_bytes,
		.code_at = shape->code_at,
	};
	size_t bytes = sizeof(struct part) + ch__eh_slots_bytes(&place);
	struct part *part = ch__meta_alloc(s->config->meta, bytes);
	if (!part)
		return NULL;
	part->place = place;
	part->bytes = bytes;
	ch__eh_slots_write(part->section, &place, s->shapes);
	__register_frame_info(part->section, part->object);
	atomic_store_explicit(&s->parts[index], part, memory_order_release);
	return part;
}

static void set_dead(struct part *part, uint32_t index)
{
	if (!ch__eh_slots_is_live(part->section, index))
		return;
	if (__unw_remove_dynamic_fde)
		__unw_remove_dynamic_fde((uintptr_t)ch__eh_slots_fde(part->section, index));
	ch__eh_slots_dead(part->section, index);
}

bool ch__libgcc_slots_page(struct ch__libgcc_slots *s, uint32_t page, uint8_t frame)
{
	const struct ch__frame_shape *shape = &s->shapes[frame - CH__FRAME_SLOTS];
	uintptr_t exec = s->config->pool_exec + page * s->config->page_bytes;
	struct part *part = part_of(s, exec);
	if (!part)
		part = register_part(s, (uint32_t)(page * s->config->page_bytes / s->part_bytes),
				     shape);
	if (!part)
		return false;
	uint32_t in_part = (uint32_t)((exec - part->place.exec) / s->config->page_bytes);
	ch__eh_slots_page(part->section, &part->place, in_part, frame - CH__FRAME_SLOTS, shape);
	return true;
}

void ch__libgcc_slots_live(struct ch__libgcc_slots *s, uintptr_t exec, uint8_t frame)
{
	struct part *part = part_of(s, exec);
	if (!part)
		return;
	uint32_t index = ch__eh_slots_index(&part->place, exec);
	if (ch__eh_slots_is_live(part->section, index))
		return;
	ch__eh_slots_live(part->section, index, &s->shapes[frame - CH__FRAME_SLOTS]);
	if (__unw_add_dynamic_fde)
		__unw_add_dynamic_fde((uintptr_t)ch__eh_slots_fde(part->section, index));
}

void ch__libgcc_slots_dead(struct ch__libgcc_slots *s, uintptr_t exec)
{
	struct part *part = part_of(s, exec);
	if (part)
		set_dead(part, ch__eh_slots_index(&part->place, exec));
}

bool ch__libgcc_slots_is_live(struct ch__libgcc_slots *s, uintptr_t exec)
{
	struct part *part = part_of(s, exec);
	return part &&
	       ch__eh_slots_is_live(part->section, ch__eh_slots_index(&part->place, exec));
}

void ch__libgcc_slots_shape(struct ch__libgcc_slots *s, uint8_t frame)
{
	unsigned which = frame - CH__FRAME_SLOTS;
	for (uint32_t i = 0; i < s->part_count; i++) {
		struct part *part = atomic_load_explicit(&s->parts[i], memory_order_relaxed);
		if (part)
			ch__eh_slots_shape(part->section, which, &s->shapes[which]);
	}
}

static void kill_part(struct part *part)
{
	uint32_t slots = part->place.pages * ch__eh_slots_in_page(&part->place);
	for (uint32_t i = 0; i < slots; i++)
		set_dead(part, i);
}

static void deregister_part(struct ch__libgcc_slots *s, uint32_t index)
{
	struct part *part = atomic_load_explicit(&s->parts[index], memory_order_relaxed);
	if (!part)
		return;
	kill_part(part);
	atomic_store_explicit(&s->parts[index], NULL, memory_order_release);
	__deregister_frame_info(part->section);
	ch__meta_free(s->config->meta, part, part->bytes);
}

void ch__libgcc_slots_close(struct ch__libgcc_slots *s)
{
	for (uint32_t i = 0; i < s->part_count; i++) {
		struct part *part = atomic_load_explicit(&s->parts[i], memory_order_relaxed);
		if (part)
			kill_part(part);
	}
}

void ch__libgcc_slots_chunk_gone(struct ch__libgcc_slots *s, uint32_t chunk)
{
	for (uint32_t i = 0; i < s->parts_per_chunk; i++)
		deregister_part(s, chunk * s->parts_per_chunk + i);
}

void ch__libgcc_slots_destroy(struct ch__libgcc_slots *s)
{
	for (uint32_t i = 0; i < s->part_count; i++)
		deregister_part(s, i);
	ch__meta_free(s->config->meta, s, state_bytes(s->part_count));
}
