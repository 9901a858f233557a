/* SPDX-License-Identifier: MIT
 * sink_libgcc.c: makes code pages known to the unwinder of the process, so that exceptions and
 * backtraces pass through code. It tells whole pages, never blocks, and writes no CFI itself
 * (eh_frame.c does); pages of slots are libgcc_slots.c's.
 *
 * One section a chunk is registered on the first use of the chunk and stays registered, because an
 * unwinder may be inside it at any time: libgcc before 13 searches sections one after the other, so
 * there must be few; libgcc from 13 on frees a section's node under readers. Pages come and go by
 * one store in the section. Only chunk_gone and destroy deregister: then nothing of the chunk is on
 * any stack. The sections of two chunks have disjoint ranges, because libgcc stops at the first
 * whose range may hold the pc; every page of a span has its own live FDE (eh_frame.c says why), so
 * a span may cross chunks.
 *
 * LLVM's libunwind does nothing in __register_frame_info and copies an FDE's range when it is told
 * of it: there pages are told one by one. Both may be in one process, and which of them unwinds is
 * decided by the order of libraries, so both are told.
 *
 * A block may bring a section of its own (struct ch__own): one more object, registered before the
 * block is reachable and deregistered when it is freed.
 * Lock: the sinks lock is held in every entry; inside come the unwinder's own. */
#include "unwind/unwinders.h"

#include <errno.h>
#include <string.h>

/* libgcc's struct object is private: six or seven words up to GCC 14. The memory is ours, so
 * registering cannot fail. */
enum { OBJECT_WORDS = 16 };

extern void __register_frame_info(const void *begin, void *object);
extern void *__deregister_frame_info(const void *begin);
/* LLVM libunwind */
extern void __unw_add_dynamic_fde(uintptr_t fde) __attribute__((weak));
extern void __unw_remove_dynamic_fde(uintptr_t fde) __attribute__((weak));

struct part {
	uintptr_t object[OBJECT_WORDS];
	size_t bytes; /* of the allocation */
	uint32_t pages;
	uint32_t pad;
	uint8_t section[]; /* 16-aligned, as the part is */
};
_Static_assert(offsetof(struct part, section) % 16 == 0, "sections are aligned");
_Static_assert(sizeof(((struct ch__own *)0)->object) == OBJECT_WORDS * sizeof(uintptr_t),
	       "libgcc's object fits");

struct libgcc {
	const struct ch__sinks_config *config;
	const struct ch__frame_shape *shapes;
	uint32_t pages_per_chunk, chunk_count;
	bool is_open;
	struct part *runtime; /* the runtime page as one FDE */
	struct ch__libgcc_slots *slots;
	struct part *parts[]; /* by chunk; NULL: not registered */
};

static struct part *register_part(struct libgcc *g, uintptr_t exec, uint32_t pages,
				  size_t page_bytes)
{
	size_t bytes = sizeof(struct part) + ch__eh_frame_bytes(pages);
	struct part *part = ch__meta_alloc(g->config->meta, bytes);
	if (!part)
		return NULL;
	part->bytes = bytes;
	part->pages = pages;
	ch__eh_frame_write(part->section, exec, pages, page_bytes, g->shapes);
	__register_frame_info(part->section, part->object);
	return part;
}

static void set_live(struct part *part, uint32_t index, size_t page_bytes, uint8_t frame)
{
	if (ch__eh_frame_is_live(part->section, index))
		return;
	ch__eh_frame_live(part->section, index, page_bytes, frame);
	if (__unw_add_dynamic_fde)
		__unw_add_dynamic_fde((uintptr_t)ch__eh_frame_fde(part->section, index));
}

static void set_dead(struct part *part, uint32_t index)
{
	if (!ch__eh_frame_is_live(part->section, index))
		return;
	if (__unw_remove_dynamic_fde)
		__unw_remove_dynamic_fde((uintptr_t)ch__eh_frame_fde(part->section, index));
	ch__eh_frame_dead(part->section, index);
}

static void deregister_part(struct libgcc *g, struct part *part)
{
	if (!part)
		return;
	__deregister_frame_info(part->section);
	ch__meta_free(g->config->meta, part, part->bytes);
}

/* The runtime page holds jumps and a trampoline, and nothing returns into it; whoever asks about a
 * pc in it (a sampler) gets the caller of the block that jumped there, because they leave the frame
 * pointer alone. */
static bool register_runtime(struct libgcc *g)
{
	if (g->runtime || !g->config->runtime_bytes)
		return true;
	g->runtime = register_part(g, g->config->runtime_exec, 1, g->config->runtime_bytes);
	if (g->runtime)
		set_live(g->runtime, 0, g->config->runtime_bytes, 0);
	return g->runtime != NULL;
}

static int open_libgcc(const struct ch__sinks_config *config, const struct ch__frame_shape *shapes,
		       void **state)
{
	struct libgcc *g = *state;
	if (!g) {
		size_t chunk_bytes = config->chunk_bytes < config->pool_bytes ? config->chunk_bytes
									      : config->pool_bytes;
		size_t chunks = (config->pool_bytes + chunk_bytes - 1) / chunk_bytes;
		g = ch__meta_alloc(config->meta, sizeof *g + chunks * sizeof g->parts[0]);
		if (!g)
			return ENOMEM;
		g->slots = ch__libgcc_slots_create(config, shapes);
		if (!g->slots) {
			ch__meta_free(config->meta, g, sizeof *g + chunks * sizeof g->parts[0]);
			return ENOMEM;
		}
		g->config = config;
		g->shapes = shapes;
		g->pages_per_chunk = (uint32_t)(chunk_bytes / config->page_bytes);
		g->chunk_count = (uint32_t)chunks;
		*state = g;
	}
	if (!register_runtime(g))
		return ENOMEM;
	g->is_open = true;
	return 0;
}

/* Sections stay registered, with nothing live in them. */
static void close_libgcc(void *state)
{
	struct libgcc *g = state;
	for (uint32_t chunk = 0; chunk < g->chunk_count; chunk++)
		for (uint32_t i = 0; g->parts[chunk] && i < g->parts[chunk]->pages; i++)
			set_dead(g->parts[chunk], i);
	ch__libgcc_slots_close(g->slots);
	g->is_open = false;
}

static void destroy_libgcc(void *state)
{
	struct libgcc *g = state;
	if (g->is_open)
		close_libgcc(g);
	if (g->runtime)
		set_dead(g->runtime, 0);
	for (uint32_t chunk = 0; chunk < g->chunk_count; chunk++)
		deregister_part(g, g->parts[chunk]);
	deregister_part(g, g->runtime);
	ch__libgcc_slots_destroy(g->slots);
	ch__meta_free(g->config->meta, g, sizeof *g + g->chunk_count * sizeof g->parts[0]);
}

static bool register_chunks(struct libgcc *g, uint32_t first, uint32_t last)
{
	size_t chunk_bytes = g->pages_per_chunk * g->config->page_bytes;
	for (uint32_t chunk = first; chunk <= last; chunk++) {
		if (g->parts[chunk])
			continue;
		g->parts[chunk] = register_part(g, g->config->pool_exec + chunk * chunk_bytes,
						g->pages_per_chunk, g->config->page_bytes);
		if (!g->parts[chunk])
			return false; /* the others serve their chunks' next use */
	}
	return true;
}

static bool tell_pages_live(void *state, uint32_t page, uint32_t pages, uint8_t frame)
{
	struct libgcc *g = state;
	uint32_t end = page + pages;
	if (ch__frame_has_slots(frame))
		return ch__libgcc_slots_page(g->slots, page, frame); /* never a span */
	if (!register_chunks(g, page / g->pages_per_chunk, (end - 1) / g->pages_per_chunk))
		return false;
	for (; page < end; page++)
		set_live(g->parts[page / g->pages_per_chunk], page % g->pages_per_chunk,
			 g->config->page_bytes, frame);
	return true;
}

static void tell_pages_dead(void *state, uint32_t page, uint32_t pages)
{
	struct libgcc *g = state;
	for (uint32_t end = page + pages; page < end; page++) {
		struct part *part = g->parts[page / g->pages_per_chunk];
		if (part)
			set_dead(part, page % g->pages_per_chunk);
	}
}

static void drop_chunk(void *state, uint32_t chunk)
{
	struct libgcc *g = state;
	struct part *part = g->parts[chunk];
	ch__libgcc_slots_chunk_gone(g->slots, chunk);
	if (!part)
		return;
	for (uint32_t i = 0; i < part->pages; i++)
		set_dead(part, i);
	g->parts[chunk] = NULL;
	deregister_part(g, part);
}

/* --- tables of blocks: each is an object of its own, in chunks that have no section here --- */

/* LLVM's has a call for sections, too, but version 14's does not end at the section's end. */
static void each_fde(const uint8_t *section, void (*tell)(uintptr_t fde))
{
	for (uint32_t record[2];; section += record[0] + sizeof record[0]) {
		memcpy(record, section, sizeof record[0]);
		if (!record[0])
			return;
		memcpy(record, section, sizeof record);
		if (record[1])
			tell((uintptr_t)section);
	}
}

static void register_own(void *state, struct ch__own *own)
{
	(void)state;
	memset(own->object, 0, sizeof own->object);
	__register_frame_info(own->section, own->object);
	if (__unw_add_dynamic_fde)
		each_fde(own->section, __unw_add_dynamic_fde);
}

static void deregister_own(void *state, struct ch__own *own)
{
	(void)state;
	if (__unw_remove_dynamic_fde)
		each_fde(own->section, __unw_remove_dynamic_fde);
	__deregister_frame_info(own->section);
}

static void write_shape(void *state, uint8_t frame)
{
	struct libgcc *g = state;
	if (ch__frame_has_slots(frame)) {
		ch__libgcc_slots_shape(g->slots, frame);
		return;
	}
	for (uint32_t chunk = 0; chunk < g->chunk_count; chunk++)
		if (g->parts[chunk])
			ch__eh_frame_shape(g->parts[chunk]->section, frame, &g->shapes[frame]);
}

static void tell_slot_live(void *state, uintptr_t exec, uint8_t frame)
{
	struct libgcc *g = state;
	ch__libgcc_slots_live(g->slots, exec, frame);
}

static void tell_slot_dead(void *state, uintptr_t exec)
{
	struct libgcc *g = state;
	ch__libgcc_slots_dead(g->slots, exec);
}

static bool ask_slot(void *state, uintptr_t exec)
{
	struct libgcc *g = state;
	return ch__libgcc_slots_is_live(g->slots, exec);
}

const struct ch__sink_ops ch__sink_libgcc = {
	.name = "unwind",
	.bit = CH__SINK_UNWIND,
	.open = open_libgcc,
	.close = close_libgcc,
	.destroy = destroy_libgcc,
	.page_live = tell_pages_live,
	.page_dead = tell_pages_dead,
	.slot_live = tell_slot_live,
	.slot_dead = tell_slot_dead,
	.slot_is_live = ask_slot,
	.chunk_gone = drop_chunk,
	.shape_added = write_shape,
	.own_live = register_own,
	.own_dead = deregister_own,
};
