/* SPDX-License-Identifier: MIT
 * heap_map.c: the data for the picture of a code heap, from the public interface: blocks by
 * ch_block_each, numbers by ch_heap_stats. tools/draw/draw_heap.c draws the picture. */
#include "heap_map.h"
#include "tools/draw/draw_heap.h"

#include <stdlib.h>

enum { HEAD_BYTES = 8, PANELS_MOST = 8 };

struct heap_map_panel {
	char title[80];
	struct ch_stats stats;
	struct drawn_part *parts;
	size_t count, capacity, blocks;
	bool has_failed;
};

/* Adds a part with its head, which lies before exec. */
static bool add_part(struct heap_map_panel *panel, const uint8_t *exec, uint32_t bytes,
		     uint32_t head, enum drawn_kind kind)
{
	if (panel->count == panel->capacity) {
		size_t capacity = panel->capacity ? panel->capacity * 2 : 1024;
		struct drawn_part *grown = realloc(panel->parts, capacity * sizeof *grown);
		if (!grown) {
			panel->has_failed = true;
			return false;
		}
		panel->parts = grown;
		panel->capacity = capacity;
	}
	panel->parts[panel->count++] = (struct drawn_part){(uintptr_t)exec - head,
							   bytes + head, kind};
	return true;
}

static bool add_block(void *arg, const struct ch_info *info)
{
	struct heap_map_panel *panel = arg;
	if (info->state != CH_BLOCK_LIVE && info->state != CH_BLOCK_NOTENTRANT)
		return true;
	bool is_live = info->state == CH_BLOCK_LIVE;
	panel->blocks++;
	return add_part(panel, info->exec, info->hot_bytes, HEAD_BYTES,
			is_live ? DRAWN_HOT : DRAWN_NOTENTRANT) &&
	       (!info->cold_exec ||
		add_part(panel, info->cold_exec, info->cold_bytes, HEAD_BYTES,
			 is_live ? DRAWN_COLD : DRAWN_NOTENTRANT));
}

struct heap_map_panel *heap_map_take(struct ch_heap *heap, const char *title)
{
	struct heap_map_panel *panel = calloc(1, sizeof *panel);
	if (!panel)
		return NULL;
	snprintf(panel->title, sizeof panel->title, "%s", title);
	panel->stats.size = sizeof panel->stats;
	if (ch_block_each(heap, NULL, add_block, panel) != CH_OK || panel->has_failed ||
	    ch_heap_stats(heap, &panel->stats) != CH_OK) {
		heap_map_free(panel);
		return NULL;
	}
	return panel;
}

void heap_map_free(struct heap_map_panel *panel)
{
	if (panel)
		free(panel->parts);
	free(panel);
}

bool heap_map_write(FILE *file, struct heap_map_panel *const *panels, int count)
{
	enum {
#define X(name) AT_##name,
		CH_STATS_LIST(X)
#undef X
			NUMBERS
	};
	struct drawn_number numbers[PANELS_MOST][NUMBERS];
	struct drawn_heap heaps[PANELS_MOST];
	if (count > PANELS_MOST)
		return false;
	for (int i = 0; i < count; i++) {
		const struct ch_stats *stats = &panels[i]->stats;
#define X(name) numbers[i][AT_##name] = (struct drawn_number){#name, stats->name};
		CH_STATS_LIST(X)
#undef X
		heaps[i] = (struct drawn_heap){
			.title = panels[i]->title,
			.numbers = numbers[i],
			.number_count = NUMBERS,
			.parts = panels[i]->parts,
			.part_count = panels[i]->count,
			.block_count = panels[i]->blocks,
		};
	}
	return draw_heaps(file, heaps, count);
}
