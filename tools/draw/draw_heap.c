/* SPDX-License-Identifier: MIT
 * draw_heap.c: code heaps as SVG. Each page is a bar from its first to its last byte. */
#include "tools/draw/draw_heap.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
	BAR_WIDTH = 520,
	BAR_GAP = 2,
	BAR_LEAST = 7, /* heights of a bar, by how many there are */
	BAR_MOST = 26,
	BARS_HEIGHT = 640,
	PANEL_WIDTH = 600,
	TOP = 150,
	PAGES_DRAWN = 96,
	NUMBERS_DRAWN = 256,
	LEGEND_WIDTH = 190,
};

struct panel {
	const struct drawn_heap *heap;
	uint64_t page_bytes;
	uint64_t *pages; /* addresses of the pages with blocks, sorted */
	size_t rows;
	int bar_height;
	double left;
};

static uint64_t number_of(const struct drawn_heap *heap, const char *name)
{
	for (size_t i = 0; i < heap->number_count; i++)
		if (!strcmp(heap->numbers[i].name, name))
			return heap->numbers[i].value;
	return 0;
}

static void put_text(FILE *file, const char *text)
{
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;
		if (c == '<' || c == '>' || c == '&' || c == '"')
			fprintf(file, "&#%d;", c);
		else
			putc(c < ' ' || c > '~' ? '?' : c, file);
	}
}

/* Names of numbers become names of attributes, which no escaping makes harmless, and of which an
 * element has one each. */
static bool is_attribute(const struct drawn_heap *heap, size_t n)
{
	const char *name = heap->numbers[n].name;
	for (size_t i = 0; i < n; i++)
		if (!strcmp(heap->numbers[i].name, name))
			return false;
	return *name && strcmp(name, "drawn") != 0 &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(name);
}

/* --- pages --- */

static int compare_pages(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static bool list_pages(struct panel *panel)
{
	const struct drawn_heap *heap = panel->heap;
	panel->pages = malloc((heap->part_count + 1) * sizeof *panel->pages);
	if (!panel->pages)
		return false;
	for (size_t i = 0; i < heap->part_count; i++)
		panel->pages[i] = heap->parts[i].at / panel->page_bytes;
	qsort(panel->pages, heap->part_count, sizeof *panel->pages, compare_pages);
	for (size_t i = 0; i < heap->part_count; i++)
		if (!panel->rows || panel->pages[panel->rows - 1] != panel->pages[i])
			panel->pages[panel->rows++] = panel->pages[i];
	return true;
}

/* --- drawing --- */

static const char *const classes[DRAWN_KINDS] = {"hot", "cold", "notentrant", "dead"};

static void draw_part(FILE *file, const struct panel *panel, const struct drawn_part *part)
{
	uint64_t page = part->at / panel->page_bytes;
	const uint64_t *found =
		bsearch(&page, panel->pages, panel->rows, sizeof page, compare_pages);
	long row = found ? (long)(found - panel->pages) : PAGES_DRAWN;
	if (row >= PAGES_DRAWN)
		return;
	double page_bytes = (double)panel->page_bytes;
	double x = panel->left + (double)(part->at % panel->page_bytes) / page_bytes * BAR_WIDTH;
	double width = part->bytes / page_bytes * BAR_WIDTH;
	/* A block longer than a page is drawn to the end of its first one. */
	if (x + width > panel->left + BAR_WIDTH)
		width = panel->left + BAR_WIDTH - x;
	fprintf(file, "<rect class=\"%s\" x=\"%.2f\" y=\"%ld\" width=\"%.2f\" height=\"%d\"/>\n",
		classes[part->kind], x, TOP + row * (panel->bar_height + BAR_GAP), width,
		panel->bar_height);
}

static void draw_numbers(FILE *file, const struct panel *panel)
{
	const struct drawn_heap *heap = panel->heap;
	fprintf(file, "<text class=\"title\" x=\"%.0f\" y=\"66\">", panel->left);
	put_text(file, heap->title);
	fprintf(file,
		"</text>\n<text x=\"%.0f\" y=\"86\">%" PRIu64 " blocks, %" PRIu64
		" bytes of code (%" PRIu64 " hot, %" PRIu64 " cold)</text>\n",
		panel->left, number_of(heap, "blocks_now"), number_of(heap, "code_bytes_now"),
		number_of(heap, "hot_bytes_now"), number_of(heap, "cold_bytes_now"));
	fprintf(file,
		"<text x=\"%.0f\" y=\"104\">%" PRIu64 " pages of %" PRIu64 " bytes, %" PRIu64
		" not-entrant blocks with %" PRIu64 " bytes</text>\n",
		panel->left, number_of(heap, "pages_now"), panel->page_bytes,
		number_of(heap, "blocks_notentrant_now"), number_of(heap, "notentrant_bytes_now"));
	fprintf(file,
		"<text x=\"%.0f\" y=\"122\">%" PRIu64 " blocks freed in %" PRIu64
		" collections, %" PRIu64 " bytes of metadata</text>\n",
		panel->left, number_of(heap, "blocks_freed"), number_of(heap, "cycles"),
		number_of(heap, "metadata_bytes_now"));
}

static void draw_panel(FILE *file, const struct panel *panel)
{
	const struct drawn_heap *heap = panel->heap;
	fprintf(file, "<g class=\"panel\"");
	for (size_t i = 0; i < heap->number_count && i < NUMBERS_DRAWN; i++)
		if (is_attribute(heap, i))
			fprintf(file, " data-%s=\"%" PRIu64 "\"", heap->numbers[i].name,
				heap->numbers[i].value);
	fprintf(file, " data-drawn=\"%zu\">\n", heap->block_count);
	draw_numbers(file, panel);
	for (size_t row = 0; row < panel->rows && row < PAGES_DRAWN; row++)
		fprintf(file,
			"<rect class=\"free\" x=\"%.0f\" y=\"%zu\" width=\"%d\" height=\"%d\"/>\n",
			panel->left, TOP + row * (size_t)(panel->bar_height + BAR_GAP), BAR_WIDTH,
			panel->bar_height);
	for (size_t i = 0; i < heap->part_count; i++)
		draw_part(file, panel, &heap->parts[i]);
	size_t drawn = panel->rows < PAGES_DRAWN ? panel->rows : PAGES_DRAWN;
	size_t more = heap->pages_left_out + panel->rows - drawn;
	if (more)
		fprintf(file, "<text x=\"%.0f\" y=\"%zu\">and %zu more pages</text>\n", panel->left,
			TOP + drawn * (size_t)(panel->bar_height + BAR_GAP) + 14, more);
	fprintf(file, "</g>\n");
}

static void draw_legend(FILE *file)
{
	static const char *const entries[][2] = {{"hot", "hot code"},
						 {"cold", "cold code and stubs"},
						 {"notentrant", "not entrant"},
						 {"dead", "dead, not reused yet"},
						 {"free", "free, filled with traps"}};
	for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
		double x = 20 + (double)i * LEGEND_WIDTH;
		fprintf(file,
			"<rect class=\"%s\" x=\"%.0f\" y=\"34\" width=\"14\" height=\"10\"/>"
			"<text x=\"%.0f\" y=\"43\">%s</text>\n",
			entries[i][0], x, x + 20, entries[i][1]);
	}
}

static void draw(FILE *file, struct panel *panels, int count)
{
	int width = 20 + (count < 2 ? 2 : count) * PANEL_WIDTH, rows = 1;
	for (int i = 0; i < count; i++)
		if ((int)panels[i].rows > rows)
			rows = (int)panels[i].rows;
	rows = rows > PAGES_DRAWN ? PAGES_DRAWN : rows;
	int bar = BARS_HEIGHT / rows - BAR_GAP;
	bar = bar < BAR_LEAST ? BAR_LEAST : bar > BAR_MOST ? BAR_MOST : bar;
	int height = TOP + rows * (bar + BAR_GAP) + 30;
	fprintf(file,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
		"viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n",
		width, height, width, height);
	fprintf(file, "<style>.hot{fill:#2f7d4f}.cold{fill:#4a7fb5}.notentrant{fill:#d9822b}"
		      ".dead{fill:#b04a5a}.free{fill:#e4e4e4}"
		      ".title{font-size:15px;font-weight:bold}</style>\n"
		      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
		      "<text class=\"title\" x=\"20\" y=\"22\">libcodeheap: the pool, each bar one "
		      "page from its first to its last byte</text>\n");
	draw_legend(file);
	for (int i = 0; i < count; i++) {
		panels[i].bar_height = bar;
		panels[i].left = 20 + i * PANEL_WIDTH;
		draw_panel(file, &panels[i]);
	}
	fprintf(file, "</svg>\n");
}

bool draw_heaps(FILE *file, const struct drawn_heap *heaps, int count)
{
	struct panel *panels = calloc((size_t)count, sizeof *panels);
	bool has_memory = panels != NULL;
	for (int i = 0; has_memory && i < count; i++) {
		panels[i].heap = &heaps[i];
		panels[i].page_bytes = number_of(&heaps[i], "page_bytes");
		if (!panels[i].page_bytes)
			panels[i].page_bytes = 1;
		has_memory = list_pages(&panels[i]);
	}
	if (has_memory)
		draw(file, panels, count);
	for (int i = 0; panels && i < count; i++)
		free(panels[i].pages);
	free(panels);
	return has_memory && !ferror(file);
}
