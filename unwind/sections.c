/* SPDX-License-Identifier: MIT
 * sections.c: makes code pages known to an unwinder. Whole pages are told, never blocks, and CFI is
 * written by eh_frame.c. docs/unwinders.md, sections 2 and 3, say why.
 *
 * A section is told on the first use of its chunk, or of its 256 KiB of slots; pages come and go by
 * one store. Only chunk_gone and destroy take a section back: then nothing of the chunk is on any
 * stack. The sections of two chunks have disjoint ranges, because libgcc stops at the first section
 * whose range may hold the pc; a span may cross chunks.
 *
 * Lock: the sinks lock is held in every entry but destroy. Inside come the unwinder's own locks. */
#include "unwind/unwinders.h"

enum { ROW_BYTES = 256 << 10, RUNTIME = 0, FIRST_CHUNK };

struct ch__part {
	struct ch__own own;
	struct ch__eh_place place;
	_Alignas(16) uint8_t section[];
};

static uint32_t index_of_chunk(const struct ch__sections *s, uint32_t chunk)
{
	return FIRST_CHUNK + chunk * (s->rows + 1);
}

static uint32_t index_of_row(const struct ch__sections *s, uint32_t row)
{
	return index_of_chunk(s, row / s->rows) + 1 + row % s->rows;
}

static void free_part(struct ch__sections *s, struct ch__part *part)
{
	if (!s->memory)
		ch__meta_free(s->config->meta, part,
			      sizeof *part + ch__eh_frame_bytes(&part->place));
}

/* Returns NULL when a part that is not told yet finds no memory. */
static struct ch__part *tell_part(struct ch__sections *s, uint32_t i,
				  const struct ch__eh_place *place)
{
	struct ch__part *part = s->parts[i];
	size_t bytes = sizeof *part + ch__eh_frame_bytes(place);
	if (part)
		return part;
	part = s->memory ? (void *)(s->memory + i * s->part_bytes)
			 : ch__meta_alloc(s->config->meta, bytes);
	if (!part)
		return NULL;
	part->place = *place;
	part->own = (struct ch__own){.section = part->section, .is_of_pages = true};
	ch__eh_frame_write(part->section, place, s->config->shapes);
	if (!s->ops->own_live(s, &part->own)) {
		free_part(s, part);
		return NULL;
	}
	s->parts[i] = part;
	s->end = i < s->end ? s->end : i + 1;
	return part;
}

static void set_live(const struct ch__sections *s, struct ch__part *part, uint32_t page,
		     uint8_t frame)
{
	uint32_t fdes = ch__eh_frame_of_page(&part->place), end = (page + 1) * fdes;
	size_t slot_bytes = part->place.slot_bytes;
	size_t bytes = slot_bytes ? slot_bytes - part->place.code_at : part->place.page_bytes;
	for (uint32_t i = page * fdes; i < end; i++) {
		if (ch__eh_frame_is_live(part->section, i))
			continue;
		ch__eh_frame_live(part->section, i, bytes, s->config->shapes, frame);
		if (s->ops->fde_live)
			s->ops->fde_live((uintptr_t)ch__eh_frame_fde(part->section, i));
	}
}

static void set_dead(const struct ch__sections *s, struct ch__part *part, uint32_t page,
		     uint32_t pages)
{
	uint32_t fdes = part ? ch__eh_frame_of_page(&part->place) : 0;
	for (uint32_t i = page * fdes; i < (page + pages) * fdes; i++) {
		if (!ch__eh_frame_is_live(part->section, i))
			continue;
		if (s->ops->fde_dead)
			s->ops->fde_dead((uintptr_t)ch__eh_frame_fde(part->section, i));
		ch__eh_frame_dead(part->section, i);
	}
}

static uint32_t parts_of(const struct ch__sections *s)
{
	return index_of_chunk(s, (uint32_t)(s->config->pool_bytes / s->config->chunk_bytes));
}

static size_t state_bytes(const struct ch__sections *s)
{
	/* Larger side memory comes as fresh pages, and a new heap touches the first alone. */
	enum { FRESH_BYTES = 16 << 10 };
	size_t bytes = sizeof *s + parts_of(s) * sizeof *s->parts;
	return bytes > FRESH_BYTES ? bytes : FRESH_BYTES;
}

static void free_state(struct ch__sections *s)
{
	if (s->memory)
		ch__os_unmap(s->memory, s->memory_bytes);
	ch__meta_free(s->config->meta, s, state_bytes(s));
}

/* All code must be within reach of an offset from every section. */
static bool take_memory(struct ch__sections *s)
{
	const struct ch__sinks_config *c = s->config;
	struct ch__eh_place chunk = {.pages = (uint32_t)(c->chunk_bytes / c->page_bytes)};
	s->part_bytes = CH_ROUND_UP(sizeof(struct ch__part) + ch__eh_frame_bytes(&chunk), 16);
	s->memory_bytes = CH_ROUND_UP(parts_of(s) * s->part_bytes, ch__os_page_bytes());
	s->memory = ch__os_private_near(s->memory_bytes, c->pool_exec);
	uintptr_t low = (uintptr_t)s->memory, high = low + s->memory_bytes;
	return low && (int64_t)(c->runtime_exec - high) > INT32_MIN &&
	       (int64_t)(c->pool_exec + c->pool_bytes - low) < INT32_MAX;
}

static struct ch__sections *make_state(const struct ch__sinks_config *config,
				       const struct ch__sink_ops *ops)
{
	size_t row = config->chunk_bytes < ROW_BYTES ? config->chunk_bytes : ROW_BYTES;
	struct ch__sections fresh = {
		.config = config,
		.ops = ops,
		.row_bytes = row,
		.rows = ops->is_near ? 0 : (uint32_t)(config->chunk_bytes / row),
	};
	struct ch__sections *s = ch__meta_alloc(config->meta, state_bytes(&fresh));
	if (!s)
		return NULL;
	*s = fresh;
	if (!ops->is_near || take_memory(s))
		return s;
	free_state(s);
	return NULL;
}

/* Nothing returns into the runtime page, which has jumps and a trampoline. Neither touches the
 * frame pointer: so a sampler gets the caller of the block that jumped there. */
int ch__sections_open(const struct ch__sinks_config *config, const struct ch__sink_ops *ops,
		      void **state)
{
	struct ch__sections *s = *state ? *state : make_state(config, ops);
	struct ch__eh_place place = {
		.exec = config->runtime_exec, .page_bytes = config->runtime_bytes, .pages = 1};
	struct ch__part *part = s ? tell_part(s, RUNTIME, &place) : NULL;
	if (!part) {
		if (s && !*state)
			free_state(s);
		return ENOMEM;
	}
	*state = s;
	set_live(s, part, 0, 0);
	return 0;
}

/* Sections stay told, with the FDE of the runtime page alone. */
void ch__sections_close(void *state, int error)
{
	struct ch__sections *s = state;
	(void)error;
	for (uint32_t i = FIRST_CHUNK; i < s->end; i++)
		if (s->parts[i])
			set_dead(s, s->parts[i], 0, s->parts[i]->place.pages);
	if (s->ops->forget)
		s->ops->forget();
}

static void drop_part(struct ch__sections *s, uint32_t i)
{
	struct ch__part *part = s->parts[i];
	if (!part)
		return;
	s->parts[i] = NULL;
	s->ops->own_dead(s, &part->own);
	free_part(s, part);
}

void ch__sections_destroy(void *state)
{
	struct ch__sections *s = state;
	for (uint32_t i = 0; i < s->end; i++)
		drop_part(s, i);
	free_state(s);
}

void ch__sections_chunk_gone(void *state, uint32_t chunk)
{
	struct ch__sections *s = state;
	for (uint32_t i = index_of_chunk(s, chunk); i < index_of_chunk(s, chunk + 1); i++)
		drop_part(s, i);
}

bool ch__sections_live(void *state, uint32_t page, uint32_t pages, uint8_t frame)
{
	struct ch__sections *s = state;
	const struct ch__sinks_config *c = s->config;
	if (!s->rows && ch__frame_has_slots(frame))
		frame = 0;
	size_t slot_bytes = c->shapes[frame].slot_bytes;
	size_t bytes = slot_bytes ? s->row_bytes : c->chunk_bytes;
	struct ch__eh_place place = {
		.page_bytes = c->page_bytes,
		.pages = (uint32_t)(bytes / c->page_bytes),
		.slot_bytes = slot_bytes,
		.code_at = slot_bytes ? c->head_bytes : 0,
	};
	for (uint32_t end = page + pages; page < end; page++) {
		uint32_t i = page / place.pages;
		place.exec = c->pool_exec + i * bytes;
		i = slot_bytes ? index_of_row(s, i) : index_of_chunk(s, i);
		struct ch__part *part = tell_part(s, i, &place);
		if (!part)
			return false; /* other parts serve a later use */
		set_live(s, part, page % place.pages, frame);
	}
	return true;
}

void ch__sections_dead(void *state, uint32_t page, uint32_t pages)
{
	struct ch__sections *s = state;
	uint32_t a_chunk = (uint32_t)(s->config->chunk_bytes / s->config->page_bytes);
	uint32_t a_row = (uint32_t)(s->row_bytes / s->config->page_bytes);
	for (uint32_t end = page + pages; page < end; page++) {
		set_dead(s, s->parts[index_of_chunk(s, page / a_chunk)], page % a_chunk, 1);
		if (s->rows)
			set_dead(s, s->parts[index_of_row(s, page / a_row)], page % a_row, 1);
	}
	if (s->ops->forget)
		s->ops->forget();
}
