/* SPDX-License-Identifier: MIT
 * output.c: a statistics file as JSON, and as the picture of a heap. */
#include "flame/flame.h"
#include "tools/draw/draw_heap.h"
#include "tools/codeheap-top/view.h"

#include <inttypes.h>
#include <stdlib.h>

/* ASCII only: what reads it need not know in what encoding. */
static void put_string(FILE *file, const char *text)
{
	size_t length;
	fputc('"', file);
	for (; *text; text += length) {
		uint32_t c = ch__flame_decode(text, SIZE_MAX, &length);
		if (c == '"' || c == '\\')
			fprintf(file, "\\%c", (char)c);
		else if (c >= ' ' && c <= '~')
			fputc((int)c, file);
		else if (c < 0x10000)
			fprintf(file, "\\u%04" PRIx32, c);
		else
			fprintf(file, "\\u%04" PRIx32 "\\u%04" PRIx32,
				0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
	}
	fputc('"', file);
}

static void put_kinds(FILE *file, const char *name, const struct ch__stats_kind *at, size_t count)
{
	fprintf(file, ",\"%s\":{", name);
	for (size_t i = 0; i < count; i++) {
		fputs(i ? "," : "", file);
		put_string(file, at[i].name);
		fprintf(file,
			":{\"live_blocks\":%" PRIu64 ",\"live_bytes\":%" PRIu64
			",\"notentrant_blocks\":%" PRIu64 ",\"notentrant_bytes\":%" PRIu64
			",\"dead_blocks\":%" PRIu64 ",\"dead_bytes\":%" PRIu64 "}",
			at[i].live_blocks, at[i].live_bytes, at[i].notentrant_blocks,
			at[i].notentrant_bytes, at[i].dead_blocks, at[i].dead_bytes);
	}
	fputc('}', file);
}

static void put_history(FILE *file, const struct top_stats *stats)
{
	fputs(",\"pauses\":[", file);
	for (size_t i = 0; i < stats->pauses.count; i++)
		fprintf(file, "%s{\"at_ns\":%" PRIu64 ",\"ns\":%" PRIu64 "}", i ? "," : "",
			stats->pauses.at[i].at_ns, stats->pauses.at[i].ns);
	fputs("],\"samples\":[", file);
	for (size_t i = 0; i < stats->samples.count; i++) {
		const struct ch__stats_sample *s = &stats->samples.at[i];
		fprintf(file,
			"%s{\"at_ns\":%" PRIu64 ",\"blocks_opened\":%" PRIu64
			",\"bytes_opened\":%" PRIu64 ",\"blocks_freed\":%" PRIu64
			",\"bytes_freed\":%" PRIu64 ",\"blocks_invalidated\":%" PRIu64
			",\"cycles\":%" PRIu64 ",\"code_bytes\":%" PRIu64 "}",
			i ? "," : "", s->at_ns, s->blocks_opened, s->bytes_opened, s->blocks_freed,
			s->bytes_freed, s->blocks_invalidated, s->cycles, s->code_bytes);
	}
	fputc(']', file);
}

static void put_pages(FILE *file, const struct top_stats *stats)
{
	static const char *const kinds[CH__STATS_PAGE_KINDS] = {"code", "trampolines", "own_frames",
								"data"};
	fputs(",\"pages\":[", file);
	for (size_t i = 0; i < stats->pages.count; i++) {
		const struct ch__stats_page *p = &stats->pages.at[i];
		fprintf(file,
			"%s{\"page\":%" PRIu32 ",\"pages\":%" PRIu32
			",\"kind\":\"%s\",\"blocks\":%" PRIu32 ",\"hot_bytes\":%" PRIu32
			",\"cold_bytes\":%" PRIu32 ",\"notentrant_bytes\":%" PRIu32
			",\"dead_bytes\":%" PRIu32 ",\"free_bytes\":%" PRIu32 "}",
			i ? "," : "", p->page, p->pages,
			p->kind < CH__STATS_PAGE_KINDS ? kinds[p->kind] : "unknown", p->blocks,
			p->hot_bytes, p->cold_bytes, p->notentrant_bytes, p->dead_bytes,
			p->free_bytes);
	}
	fprintf(file, "],\"pages_left_out\":%" PRIu32, stats->pages.left_out);
}

void view_print_json(FILE *file, const struct top_stats *stats)
{
	fprintf(file,
		"{\"state\":\"%s\",\"pid\":%" PRIu32 ",\"heap\":%" PRIu32
		",\"written_ns\":%" PRIu64,
		view_state(stats), stats->head.process, stats->head.heap, stats->head.written_ns);
	for (size_t i = 0; i < stats->texts.count; i++) {
		fputc(',', file);
		put_string(file, stats->texts.at[i].name);
		fputc(':', file);
		put_string(file, stats->texts.at[i].text);
	}
	fputs(",\"stats\":{", file);
	for (size_t i = 0; i < stats->numbers.count; i++) {
		fputs(i ? "," : "", file);
		put_string(file, stats->numbers.at[i].name);
		fprintf(file, ":%" PRIu64, stats->numbers.at[i].value);
	}
	fputc('}', file);
	put_kinds(file, "owner_kinds", stats->owner_kinds.at, stats->owner_kinds.count);
	put_kinds(file, "block_kinds", stats->block_kinds.at, stats->block_kinds.count);
	put_history(file, stats);
	put_pages(file, stats);
	fputs("}\n", file);
}

/* --- the picture --- */

bool view_draw(FILE *file, const struct top_stats *stats)
{
	static const enum drawn_kind kinds[CH__STATS_PART_KINDS] = {
		[CH__STATS_PART_HOT] = DRAWN_HOT,
		[CH__STATS_PART_COLD] = DRAWN_COLD,
		[CH__STATS_PART_NOTENTRANT] = DRAWN_NOTENTRANT,
		[CH__STATS_PART_DEAD] = DRAWN_DEAD};
	struct drawn_number *numbers = calloc(stats->numbers.count + 1, sizeof *numbers);
	struct drawn_part *parts = calloc(stats->parts.count + 1, sizeof *parts);
	struct drawn_heap heap = {.numbers = numbers, .parts = parts};
	char title[160];
	snprintf(title, sizeof title, "%s, process %" PRIu32 ", heap %" PRIu32,
		 top_text(stats, "process"), stats->head.process, stats->head.heap);
	heap.title = title;
	for (size_t i = 0; numbers && i < stats->numbers.count; i++)
		numbers[heap.number_count++] = (struct drawn_number){stats->numbers.at[i].name,
								     stats->numbers.at[i].value};
	for (size_t i = 0; parts && i < stats->parts.count; i++) {
		uint32_t word = stats->parts.at[i].bytes_kind, kind = word >> CH__STATS_PART_SHIFT;
		if (kind < CH__STATS_PART_KINDS)
			parts[heap.part_count++] = (struct drawn_part){
				stats->parts.at[i].offset,
				word & ((1u << CH__STATS_PART_SHIFT) - 1), kinds[kind]};
	}
	/* Of the pages behind those whose parts are listed there is the number only. */
	uint64_t page_bytes = top_number(stats, "page_bytes"), behind = 0;
	for (size_t i = 0; page_bytes && i < stats->parts.count; i++)
		if (stats->parts.at[i].offset / page_bytes >= behind)
			behind = stats->parts.at[i].offset / page_bytes + 1;
	heap.pages_left_out = stats->pages.left_out;
	for (size_t i = 0; i < stats->pages.count; i++) {
		const struct ch__stats_page *page = &stats->pages.at[i];
		bool is_mapped = page->page < behind;
		heap.block_count += is_mapped ? page->blocks : 0;
		heap.pages_left_out += page->blocks && !is_mapped;
	}
	bool is_drawn = numbers && parts && draw_heaps(file, &heap, 1);
	free(numbers);
	free(parts);
	return is_drawn;
}
