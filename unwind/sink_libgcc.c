/* SPDX-License-Identifier: MIT
 * sink_libgcc.c: makes code pages known to the unwinder of the process, so that exceptions and
 * backtraces pass through code. Whole pages are told, never blocks, and CFI is written by
 * eh_frame.c. docs/unwinders.md, section 2, says why, and what LLVM's libunwind needs besides.
 *
 * A section is registered on the first use of its chunk, or of its 256 KiB of slots. Only
 * chunk_gone and destroy deregister: then nothing of the chunk is on any stack. The sections of two
 * chunks have disjoint ranges, because libgcc stops at the first section whose range may hold the
 * pc; a span may cross chunks.
 *
 * Lock: the sinks lock is held in every entry but destroy. Inside come the unwinder's own locks. */
#include "unwind/unwinders.h"

#include <errno.h>

enum { ROW_BYTES = 256 << 10, RUNTIME = 0, FIRST_CHUNK };

extern void __register_frame_info(const void *begin, void *object);
extern void *__deregister_frame_info(const void *begin);
/* LLVM libunwind */
extern void __unw_add_dynamic_fde(uintptr_t fde) __attribute__((weak));
extern void __unw_remove_dynamic_fde(uintptr_t fde) __attribute__((weak));

struct part {
	uintptr_t object[CH__OBJECT_WORDS];
	struct ch__eh_place place;
	_Alignas(16) uint8_t section[];
};

struct libgcc {
	const struct ch__sinks_config *config;
	size_t row_bytes; /* what a section of slots covers */
	uint32_t rows; /* of slots, in a chunk */
	uint32_t end;  /* parts from here on never were: no walk reads them */
	/* Of the runtime page, one FDE. Then for each chunk: of its pages, of its slots by row.
	 * NULL: not registered. */
	struct part *parts[];
};

static uint32_t index_of_chunk(const struct libgcc *g, uint32_t chunk)
{
	return FIRST_CHUNK + chunk * (g->rows + 1);
}

static uint32_t index_of_row(const struct libgcc *g, uint32_t row)
{
	return index_of_chunk(g, row / g->rows) + 1 + row % g->rows;
}

/* Returns NULL when a part that is not registered yet finds no memory. */
static struct part *register_part(struct libgcc *g, uint32_t i, const struct ch__eh_place *place)
{
	struct part *part = g->parts[i];
	size_t bytes = sizeof *part + ch__eh_frame_bytes(place);
	if (part || !(part = ch__meta_alloc(g->config->meta, bytes)))
		return part;
	part->place = *place;
	ch__eh_frame_write(part->section, place, g->config->shapes);
	__register_frame_info(part->section, part->object);
	g->parts[i] = part;
	g->end = i < g->end ? g->end : i + 1;
	return part;
}

static void set_live(const struct libgcc *g, struct part *part, uint32_t page, uint8_t frame)
{
	const struct ch__frame_shape *shapes = g->config->shapes;
	uint32_t fdes = ch__eh_frame_of_page(&part->place), end = (page + 1) * fdes;
	size_t slot_bytes = part->place.slot_bytes;
	size_t bytes = slot_bytes ? slot_bytes - part->place.code_at : part->place.page_bytes;
	for (uint32_t i = page * fdes; i < end; i++) {
		if (ch__eh_frame_is_live(part->section, i))
			continue;
		ch__eh_frame_live(part->section, i, bytes, shapes, frame);
		if (__unw_add_dynamic_fde)
			__unw_add_dynamic_fde((uintptr_t)ch__eh_frame_fde(part->section, i));
	}
}

static void set_dead(struct part *part, uint32_t page, uint32_t pages)
{
	uint32_t fdes = part ? ch__eh_frame_of_page(&part->place) : 0;
	for (uint32_t i = page * fdes; i < (page + pages) * fdes; i++) {
		if (!ch__eh_frame_is_live(part->section, i))
			continue;
		if (__unw_remove_dynamic_fde)
			__unw_remove_dynamic_fde((uintptr_t)ch__eh_frame_fde(part->section, i));
		ch__eh_frame_dead(part->section, i);
	}
}

static void deregister_part(struct libgcc *g, uint32_t i)
{
	struct part *part = g->parts[i];
	if (!part)
		return;
	set_dead(part, 0, part->place.pages);
	g->parts[i] = NULL;
	__deregister_frame_info(part->section);
	ch__meta_free(g->config->meta, part, sizeof *part + ch__eh_frame_bytes(&part->place));
}

static size_t state_bytes(const struct ch__sinks_config *config, size_t row_bytes)
{
	/* Larger side memory comes as fresh pages, and a new heap touches the first alone. */
	enum { FRESH_BYTES = 16 << 10 };
	size_t pool = config->pool_bytes;
	size_t parts = FIRST_CHUNK + pool / config->chunk_bytes + pool / row_bytes;
	size_t bytes = sizeof(struct libgcc) + parts * sizeof(struct part *);
	return bytes > FRESH_BYTES ? bytes : FRESH_BYTES;
}

static struct libgcc *make_state(const struct ch__sinks_config *config)
{
	size_t row = config->chunk_bytes < ROW_BYTES ? config->chunk_bytes : ROW_BYTES;
	struct libgcc *g = ch__meta_alloc(config->meta, state_bytes(config, row));
	if (!g)
		return NULL;
	g->config = config;
	g->row_bytes = row;
	g->rows = (uint32_t)(config->chunk_bytes / row);
	return g;
}

/* Nothing returns into the runtime page, which has jumps and a trampoline. Neither touches the
 * frame pointer: so a sampler gets the caller of the block that jumped there. */
static bool register_runtime(struct libgcc *g)
{
	size_t bytes = g->config->runtime_bytes;
	struct ch__eh_place place = {
		.exec = g->config->runtime_exec, .page_bytes = bytes, .pages = 1};
	struct part *part = register_part(g, RUNTIME, &place);
	if (part)
		set_live(g, part, 0, 0);
	return part != NULL;
}

static int open_libgcc(const struct ch__sinks_config *config, void **state)
{
	struct libgcc *g = *state;
	if (!g)
		g = *state = make_state(config);
	return g && register_runtime(g) ? 0 : ENOMEM;
}

/* Sections stay registered, with the FDE of the runtime page alone. */
static void close_libgcc(void *state, int error)
{
	struct libgcc *g = state;
	(void)error;
	for (uint32_t i = FIRST_CHUNK; i < g->end; i++)
		if (g->parts[i])
			set_dead(g->parts[i], 0, g->parts[i]->place.pages);
}

static void destroy_libgcc(void *state)
{
	struct libgcc *g = state;
	for (uint32_t i = 0; i < g->end; i++)
		deregister_part(g, i);
	ch__meta_free(g->config->meta, g, state_bytes(g->config, g->row_bytes));
}

/* The section for a page of the frame shape, and the page's index there; NULL: no memory. */
static struct part *part_for(struct libgcc *g, uint32_t page, uint8_t frame, uint32_t *index)
{
	const struct ch__frame_shape *shape = &g->config->shapes[frame];
	size_t page_bytes = g->config->page_bytes, at = page * page_bytes;
	size_t bytes = shape->slot_bytes ? g->row_bytes : g->config->chunk_bytes;
	uint32_t i = (uint32_t)(at / bytes);
	struct ch__eh_place place = {
		.exec = g->config->pool_exec + i * bytes,
		.page_bytes = page_bytes,
		.pages = (uint32_t)(bytes / page_bytes),
		.slot_bytes = shape->slot_bytes,
		.code_at = shape->slot_bytes ? g->config->head_bytes : 0,
	};
	*index = (uint32_t)(at % bytes / page_bytes);
	i = shape->slot_bytes ? index_of_row(g, i) : index_of_chunk(g, i);
	return register_part(g, i, &place);
}

static bool tell_pages_live(void *state, uint32_t page, uint32_t pages, uint8_t frame)
{
	struct libgcc *g = state;
	uint32_t index, end = page + pages;
	for (; page < end; page++) {
		struct part *part = part_for(g, page, frame, &index);
		if (!part)
			return false; /* other parts serve a later use */
		set_live(g, part, index, frame);
	}
	return true;
}

static void tell_pages_dead(void *state, uint32_t page, uint32_t pages)
{
	struct libgcc *g = state;
	uint32_t a_chunk = (uint32_t)(g->config->chunk_bytes / g->config->page_bytes);
	uint32_t a_row = (uint32_t)(g->row_bytes / g->config->page_bytes);
	for (uint32_t end = page + pages; page < end; page++) {
		set_dead(g->parts[index_of_chunk(g, page / a_chunk)], page % a_chunk, 1);
		set_dead(g->parts[index_of_row(g, page / a_row)], page % a_row, 1);
	}
}

static void drop_chunk(void *state, uint32_t chunk)
{
	struct libgcc *g = state;
	for (uint32_t i = index_of_chunk(g, chunk); i < index_of_chunk(g, chunk + 1); i++)
		deregister_part(g, i);
}

/* LLVM's libunwind has a call for sections, too, but version 14 does not end at a section's end. */
static void each_fde(const uint8_t *section, void (*tell)(uintptr_t fde))
{
	struct ch__eh_frame_fde fde;
	for (size_t at = 0; tell && ch__eh_frame_next(section, &at, &fde);)
		tell((uintptr_t)fde.record);
}

/* A table is an object of its own, in chunks that have no section here. */
static void register_own(void *state, struct ch__own *own)
{
	(void)state;
	__register_frame_info(own->section, own->object);
	each_fde(own->section, __unw_add_dynamic_fde);
}

static void deregister_own(void *state, struct ch__own *own)
{
	(void)state;
	if (!own->section)
		return;
	each_fde(own->section, __unw_remove_dynamic_fde);
	__deregister_frame_info(own->section);
}

const struct ch__sink_ops ch__sink_libgcc = {
	.name = "unwind",
	.bit = CH_SINK_UNWIND,
	.open = open_libgcc,
	.close = close_libgcc,
	.destroy = destroy_libgcc,
	.page_live = tell_pages_live,
	.page_dead = tell_pages_dead,
	.chunk_gone = drop_chunk,
	.own_live = register_own,
	.own_dead = deregister_own,
};
