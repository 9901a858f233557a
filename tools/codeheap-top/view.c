/* SPDX-License-Identifier: MIT
 * view.c: a statistics file as lines for a terminal: figures, bars, rates over the last seconds,
 * pauses, kinds of owners, and the pages as far as the window goes. */
#include "tools/codeheap-top/view.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
	LINE_BYTES = 512,
	NAME_WIDTH = 11,
	RATE_NS = 2000000000, /* over how long rates are taken */
	BAR_MOST = 60,
	GRAPH_MOST = 32,
};

struct page {
	FILE *file;
	const struct view *view;
	int lines;
};

/* --- lines --- */

/* Bytes of the file that a terminal would take for a command do not reach it. */
static void put_line(struct page *page, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static void put_line(struct page *page, const char *format, ...)
{
	char text[LINE_BYTES];
	va_list rest;
	if (page->view->rows && page->lines >= page->view->rows)
		return;
	va_start(rest, format);
	vsnprintf(text, sizeof text, format, rest);
	va_end(rest);
	if (page->lines++)
		fputc('\n', page->file);
	for (int i = 0; i < page->view->columns && text[i]; i++) {
		/* A number of which digits are missing would be taken for another one. */
		bool is_cut = text[i + 1] && i + 1 == page->view->columns;
		fputc(is_cut ? '>' : text[i] >= ' ' && text[i] <= '~' ? text[i] : '?', page->file);
	}
	if (page->view->has_colours)
		fputs("\033[K", page->file);
}

static const char *bytes_text(double value, char *text, size_t room)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	unsigned unit = 0;
	for (; value >= 1024 && unit < 4; unit++)
		value /= 1024;
	snprintf(text, room, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return text;
}
#define BYTES(n) bytes_text((double)(n), (char[24]){0}, 24)

static const char *time_text(uint64_t ns, char *text, size_t room)
{
	if (ns < 1000000)
		snprintf(text, room, "%.1f us", (double)ns / 1e3);
	else if (ns < 1000000000)
		snprintf(text, room, "%.2f ms", (double)ns / 1e6);
	else
		snprintf(text, room, "%.2f s", (double)ns / 1e9);
	return text;
}
#define TIME(ns) time_text(ns, (char[24]){0}, 24)

/* A bar of the shares, each in its own letter; shares may be more than the whole. */
static void put_bar(char *bar, int width, const uint64_t *shares, const char *letters, int count,
		    uint64_t whole)
{
	int at = 0;
	uint64_t sum = 0;
	for (int i = 0; i < count; i++) {
		sum += shares[i];
		double end = whole ? (double)sum / (double)whole * width : 0;
		int to = end > width ? width : (int)(end + 0.5);
		/* What there is a little of is seen, too. */
		if (shares[i] && to <= at && at < width)
			to = at + 1;
		while (at < to)
			bar[at++] = letters[i];
	}
	while (at < width)
		bar[at++] = '.';
	bar[at] = 0;
}

static int bar_width(const struct page *page)
{
	int width = page->view->columns - NAME_WIDTH - 24;
	return width < 8 ? 8 : width > BAR_MOST ? BAR_MOST : width;
}

/* --- parts of the view --- */

const char *view_state(const struct top_stats *stats)
{
	if (stats->head.state != CH__STATS_RUNNING)
		return "ended";
	return stats->has_no_writer ? "gone" : "running";
}

static void put_head(struct page *page, const struct top_stats *stats)
{
	static const char *const says[] = {"", "; the figures are its last ones",
					   "; its process was killed, or the file turned off"};
	const char *state = view_state(stats);
	int which = *state == 'r' ? 0 : *state == 'e' ? 1 : 2;
	put_line(page, "codeheap-top: %s, process %" PRIu32 ", heap %" PRIu32 ", %s%s",
		 top_text(stats, "process"), stats->head.process, stats->head.heap, state,
		 says[which]);
	put_line(page, "%-*slibcodeheap %s, backend %s, sinks %s; written %.1f s ago", NAME_WIDTH,
		 "library", top_text(stats, "version"), top_text(stats, "backend"),
		 top_text(stats, "sinks"), stats->age_s < 0 ? 0.0 : stats->age_s);
}

static void put_memory(struct page *page, const struct top_stats *stats)
{
	char bar[BAR_MOST + 1];
	uint64_t live = 0, notentrant = 0, dead = 0, pool = top_number(stats, "pool_bytes");
	uint64_t page_bytes = top_number(stats, "page_bytes"), now = top_number(stats, "pages_now");
	uint64_t used = now * page_bytes;
	for (size_t i = 0; i < stats->block_kinds.count; i++) {
		live += stats->block_kinds.at[i].live_bytes;
		notentrant += stats->block_kinds.at[i].notentrant_bytes;
		dead += stats->block_kinds.at[i].dead_bytes;
	}
	put_bar(bar, bar_width(page), (const uint64_t[]){used}, "#", 1, pool);
	put_line(page, "%-*s[%s] %s of %s", NAME_WIDTH, "pool", bar, BYTES(used), BYTES(pool));
	put_bar(bar, bar_width(page), (const uint64_t[]){live, notentrant, dead}, "#!x", 3, used);
	put_line(page, "%-*s[%s] %s", NAME_WIDTH, "code", bar, BYTES(live + notentrant));
	put_line(page, "%-*s# live %s, ! not entrant %s, x dead %s, . free %s", NAME_WIDTH, "",
		 BYTES(live), BYTES(notentrant), BYTES(dead),
		 BYTES(used > live + notentrant + dead ? used - live - notentrant - dead : 0));
	put_line(page, "%-*s%" PRIu64 " of %s, at most %" PRIu64 "; committed %s, metadata %s",
		 NAME_WIDTH, "pages", now, BYTES(page_bytes), top_number(stats, "pages_peak"),
		 BYTES(top_number(stats, "committed_bytes_now")),
		 BYTES(top_number(stats, "metadata_bytes_now")));
	put_line(page,
		 "%-*s%" PRIu64 " blocks (%" PRIu64 " not entrant), %" PRIu64 " branches, %" PRIu64
		 " owners, %" PRIu64 " threads, %" PRIu64 " fibers",
		 NAME_WIDTH, "now", top_number(stats, "blocks_now"),
		 top_number(stats, "blocks_notentrant_now"), top_number(stats, "branches_now"),
		 top_number(stats, "owners_now"), top_number(stats, "threads_now"),
		 top_number(stats, "fibers_now"));
}

/* A file that is not written any more has no rates. */
static void put_rates(struct page *page, const struct top_stats *stats)
{
	size_t last = stats->samples.count - 1, first = last;
	const struct ch__stats_sample *at = stats->samples.at;
	if (stats->samples.count < 2 || *view_state(stats) != 'r') {
		put_line(page, "%-*s-", NAME_WIDTH, "a second");
		return;
	}
	while (first > 0 && at[last].at_ns - at[first].at_ns < RATE_NS)
		first--;
	double s = (double)(at[last].at_ns - at[first].at_ns) / 1e9;
	s = s > 0 ? s : 1;
#define RATE(field) ((double)(at[last].field - at[first].field) / s)
	put_line(page, "%-*sopened %.0f blocks, %s; freed %.0f, %s; invalidated %.0f; cycles %.1f",
		 NAME_WIDTH, "a second", RATE(blocks_opened), BYTES(RATE(bytes_opened)),
		 RATE(blocks_freed), BYTES(RATE(bytes_freed)), RATE(blocks_invalidated),
		 RATE(cycles));
#undef RATE
}

static void put_pauses(struct page *page, const struct top_stats *stats)
{
	static const char heights[] = " .:-=+*#";
	char graph[GRAPH_MOST + 1] = "";
	uint64_t most = 1;
	size_t count = stats->pauses.count < GRAPH_MOST ? stats->pauses.count : GRAPH_MOST;
	const struct ch__stats_pause *at = stats->pauses.at + stats->pauses.count - count;
	for (size_t i = 0; i < count; i++)
		most = at[i].ns > most ? at[i].ns : most;
	for (size_t i = 0; i < count; i++)
		graph[i] = heights[(size_t)((double)at[i].ns / (double)most * 7)];
	put_line(page, "%-*slast %s, longest %s, %" PRIu64 " cycles (%" PRIu64 " given up) [%s]",
		 NAME_WIDTH, "pauses", TIME(top_number(stats, "pause_ns_last")),
		 TIME(top_number(stats, "pause_ns_max")), top_number(stats, "cycles"),
		 top_number(stats, "cycles_abandoned"), graph);
}

static int by_bytes(const void *a, const void *b)
{
	const struct ch__stats_kind *x = a, *y = b;
	uint64_t of_x = x->live_bytes + x->notentrant_bytes + x->dead_bytes;
	uint64_t of_y = y->live_bytes + y->notentrant_bytes + y->dead_bytes;
	return of_x == of_y ? strcmp(x->name, y->name) : of_x < of_y ? 1 : -1;
}

static void put_kinds(struct page *page, const char *title, struct ch__stats_kind *at, size_t count)
{
	put_line(page, "%-*s%10s %12s %12s %12s", NAME_WIDTH + 8, title, "blocks", "live",
		 "not entrant", "dead");
	if (count)
		qsort(at, count, sizeof *at, by_bytes);
	for (size_t i = 0; i < count; i++)
		if (at[i].live_blocks + at[i].notentrant_blocks + at[i].dead_blocks)
			put_line(page, "%-*s%10" PRIu64 " %12s %12s %12s", NAME_WIDTH + 8,
				 at[i].name,
				 at[i].live_blocks + at[i].notentrant_blocks + at[i].dead_blocks,
				 BYTES(at[i].live_bytes), BYTES(at[i].notentrant_bytes),
				 BYTES(at[i].dead_bytes));
}

/* One letter a page: what most of it is. */
static char letter_of(const struct ch__stats_page *page)
{
	uint64_t live = (uint64_t)page->hot_bytes + page->cold_bytes;
	if (page->dead_bytes > live && page->dead_bytes > page->notentrant_bytes)
		return 'x';
	if (page->notentrant_bytes > live)
		return '!';
	if (page->free_bytes > live + page->notentrant_bytes + page->dead_bytes)
		return (char)(live ? '+' : '.');
	if (page->kind == CH__STATS_PAGE_TRAMPOLINES)
		return 'T';
	return (char)(page->kind == CH__STATS_PAGE_DATA ? 'D' : '#');
}

static void put_pages(struct page *page, const struct top_stats *stats)
{
	char line[LINE_BYTES];
	int width = page->view->columns < LINE_BYTES - 1 ? page->view->columns : LINE_BYTES - 1;
	if (!stats->pages.count || width < 1)
		return;
	put_line(page, "pages in use: # code, T trampolines, D data, + more free than code, "
		       "! not entrant, x dead");
	for (size_t i = 0; i < stats->pages.count;) {
		int at = 0;
		while (at < width && i < stats->pages.count)
			line[at++] = letter_of(&stats->pages.at[i++]);
		line[at] = 0;
		put_line(page, "%s", line);
	}
}

void view_print(FILE *file, const struct top_stats *stats, const struct view *view)
{
	struct page page = {file, view, 0};
	put_head(&page, stats);
	put_memory(&page, stats);
	put_rates(&page, stats);
	put_pauses(&page, stats);
	put_kinds(&page, "owners", stats->owner_kinds.at, stats->owner_kinds.count);
	put_kinds(&page, "kinds", stats->block_kinds.at, stats->block_kinds.count);
	put_pages(&page, stats);
	fputc('\n', file);
}
