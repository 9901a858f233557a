/* SPDX-License-Identifier: MIT
 * flame_svg.c: a flame graph as one SVG file that needs nothing else. The file is whole without the
 * script: names are cut to their boxes here, and a title has the full name. Each box is an svg
 * element, to clip a name that a viewer's font makes too wide. The begin and the end of each box
 * are rounded from exact sums by one rule, so boxes never leave their parents or overlap. */
#include "flame/flame_tree.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

__extension__ typedef unsigned __int128 product;

enum {
	WIDTH = 1200, /* in pixels, as all of these */
	MARGIN = 10,
	FULL = WIDTH - 2 * MARGIN,
	ROW = 17,
	BOX_HEIGHT = 16,
	TOP = 104,
	BOTTOM = 30,
	PADDING = 3,    /* beside a name in its box */
	PARTS = 1000,   /* of a pixel: the unit of places */
	COLUMN = 7250,  /* parts: the width of a character in any monospaced font */
	NARROW = 10,    /* boxes of less than 1 / NARROW of a pixel are left out */
	LEAST_NAME = 3, /* columns: a shorter name says nothing */
	LINE = 150,     /* columns of a line of text above the boxes */
	TITLE = 105,    /* columns of the title, with wider letters */
	LETTER = 6,     /* the largest width of a letter in the legend */
	SHADES = 3,
	THIN = 2, /* boxes of fewer pixels have no line around them */
};

static const struct {
	const char *class, *text;
} kinds[] = {
	[CH__FLAME_NATIVE] = {"native", "native"},
	[CH__FLAME_INTERPRETER] = {"interpreter", "VM interpreter"},
	[CH__FLAME_CODE] = {"hot", "JIT hot"},
	[CH__FLAME_COLD] = {"cold", "cold, stubs"},
	[CH__FLAME_TRAMPOLINE] = {"trampoline", "trampoline"},
	[CH__FLAME_OTHER] = {"other", "other"},
};
_Static_assert(sizeof kinds / sizeof kinds[0] == CH__FLAME_KINDS, "a row for each kind");

struct picture {
	struct ch__flame_text out;
	struct ch__flame *flame;
	const struct ch__flame_view *view;
	uint64_t total; /* never 0 */
	uint32_t depth; /* of the deepest drawn box; the root has 0 */
	uint64_t left_out;
	bool is_whole; /* all boxes were drawn */
};

/* --- words and numbers --- */

static void put(struct picture *picture, const char *text)
{
	ch__flame_put_text(&picture->out, text);
}

/* For words of the file and whole numbers only: printf writes decimals by the locale. */
__attribute__((format(printf, 2, 3))) static void put_format(struct picture *picture,
							      const char *format, ...)
{
	char text[512];
	va_list values;
	va_start(values, format);
	vsnprintf(text, sizeof text, format, values);
	va_end(values);
	put(picture, text);
}

/* 1,234,567 */
static void put_grouped(struct picture *picture, uint64_t number)
{
	uint64_t unit = 1;
	while (number / unit >= 1000)
		unit *= 1000;
	put_format(picture, "%" PRIu64, number / unit);
	while (unit /= 1000)
		put_format(picture, ",%03" PRIu64, number / unit % 1000);
}

static void put_share(struct picture *picture, uint64_t weight)
{
	uint64_t share =
		(uint64_t)(((product)weight * 10000 + picture->total / 2) / picture->total);
	put_format(picture, "%" PRIu64 ".%02" PRIu64 " %%", share / 100, share % 100);
}

static void put_escaped_character(struct picture *picture, uint32_t character)
{
	if (character == '<' || character == '>' || character == '&' || character == '"')
		put_format(picture, "&#%" PRIu32 ";", character);
	else
		ch__flame_put_character(&picture->out, character);
}

static void put_escaped(struct picture *picture, const char *text)
{
	while (*text)
		put_escaped_character(picture, ch__flame_character(text, &text));
}

/* From U+1100 on most characters take two columns. */
static unsigned columns_of(uint32_t character)
{
	return character >= 0x1100 ? 2 : 1;
}

/* Writes the text; a text of more columns is cut, with an ellipsis in the last column. */
static void put_cut(struct picture *picture, const char *text, uint64_t columns)
{
	const char *end = text;
	uint64_t needed = 0;
	while (*end && needed <= columns)
		needed += columns_of(ch__flame_character(end, &end));
	if (needed <= columns) {
		put_escaped(picture, text);
		return;
	}
	for (uint64_t used = 1; *text;) {
		uint32_t character = ch__flame_character(text, &text);
		used += columns_of(character);
		if (used > columns)
			break;
		put_escaped_character(picture, character);
	}
	put(picture, "\xe2\x80\xa6");
}

/* --- boxes --- */

/* The place, in parts of a pixel, where this much weight ends. */
static uint64_t place_of(const struct picture *picture, uint64_t weight)
{
	return (uint64_t)((product)weight * FULL * PARTS / picture->total);
}

static bool is_narrow(const struct picture *picture, const struct ch__flame_box *box)
{
	return (product)box->weight * FULL * NARROW < picture->total;
}

/* Shades of a kind tell neighbours apart; a name has the same shade in every picture. */
static unsigned shade_of(const char *name)
{
	uint32_t hash = 0;
	for (; *name; name++)
		hash = hash * 31 + (uint8_t)*name;
	return (hash ^ hash >> 16) % SHADES;
}

static void put_about(struct picture *picture, const struct ch__flame_box *box)
{
	/* A picture of nothing has a box, too. */
	uint64_t weight = picture->flame->weight ? box->weight : 0;
	put(picture, "<title>");
	put_escaped(picture, box->name);
	put_format(picture, "\n%s: ", kinds[box->kind].text);
	put_grouped(picture, weight);
	put(picture, " ");
	put_escaped(picture, picture->view->unit);
	put(picture, ", ");
	put_share(picture, weight);
	if (box->self && !picture->view->is_reversed) {
		put(picture, ", ");
		put_grouped(picture, box->self);
		put(picture, " of its own");
	}
	put(picture, "</title>");
}

/* The depth counts the root as 0 here. */
static void put_box(struct picture *picture, const struct ch__flame_box *box)
{
	uint64_t left = place_of(picture, box->start);
	uint64_t width = place_of(picture, box->start + box->weight) - left;
	uint64_t x = (uint64_t)MARGIN * PARTS + left;
	uint64_t row = picture->view->is_icicle ? box->depth : picture->depth - box->depth;
	/* A line around the box would hide the box. */
	const char *thin = width < (uint64_t)THIN * PARTS ? " thin" : "";
	put_format(picture, "<svg class=\"frame %s s%u%s\"", kinds[box->kind].class,
		   shade_of(box->name), thin);
	put_format(picture, " x=\"%" PRIu64 ".%03" PRIu64 "\" y=\"%" PRIu64 "\"", x / PARTS,
		   x % PARTS, TOP + row * ROW);
	put_format(picture, " width=\"%" PRIu64 ".%03" PRIu64 "\" height=\"%d\"", width / PARTS,
		   width % PARTS, BOX_HEIGHT);
	put_format(picture, " data-start=\"%" PRIu64 "\" data-count=\"%" PRIu64 "\"", box->start,
		   box->weight);
	put_format(picture, " data-self=\"%" PRIu64 "\" data-depth=\"%" PRIu32 "\">", box->self,
		   box->depth);
	put_about(picture, box);
	put(picture, "<rect width=\"100%\" height=\"100%\"/>");
	uint64_t padding = (uint64_t)2 * PADDING * PARTS;
	uint64_t columns = width > padding ? (width - padding) / COLUMN : 0;
	if (columns >= LEAST_NAME) {
		put(picture, "<text x=\"3\" y=\"12\">");
		put_cut(picture, box->name, columns);
		put(picture, "</text>");
	}
	put(picture, "</svg>\n");
}

/* Draws the boxes, or at first finds depth and left_out only. Returns false without memory. */
static bool each_box(struct picture *picture, bool is_drawn)
{
	struct ch__flame_walk walk;
	struct ch__flame_box box;
	enum ch__flame_step step = CH__FLAME_NO_MEMORY;
	if (ch__flame_walk_begin(&walk, picture->flame, picture->view->is_reversed, false))
		do {
			step = ch__flame_walk_next(&walk, &box);
			if (step != CH__FLAME_BOX)
				break;
			box.depth++;
			if (is_narrow(picture, &box)) {
				ch__flame_walk_skip(&walk);
				picture->left_out += !is_drawn;
			} else if (is_drawn) {
				put_box(picture, &box);
			} else if (picture->depth < box.depth) {
				picture->depth = box.depth;
			}
		} while (!picture->out.has_failed);
	ch__flame_walk_end(&walk);
	return step != CH__FLAME_NO_MEMORY;
}

/* --- around the boxes --- */

static void put_line(struct picture *picture, const char *class, unsigned y, const char *text,
		     unsigned columns)
{
	put_format(picture, "<text class=\"%s\" x=\"%d\" y=\"%u\">", class, MARGIN, y);
	put_cut(picture, text, columns);
	put(picture, "</text>\n");
}

/* Each kind with its colour and the share of weight that ends in the kind. */
static void put_legend(struct picture *picture)
{
	const struct ch__flame *flame = picture->flame;
	uint64_t ended[CH__FLAME_KINDS] = {0};
	for (size_t i = 0; i < flame->nodes_used; i++)
		ended[flame->frames[flame->nodes[i].frame].kind] += flame->nodes[i].self;
	size_t x = MARGIN;
	put(picture, "<g class=\"legend\">\n");
	for (unsigned kind = 0; kind < CH__FLAME_KINDS; kind++) {
		put_format(picture, "<g class=\"kind %s%s\" data-self=\"%" PRIu64 "\">",
			   kinds[kind].class, ended[kind] ? "" : " absent", ended[kind]);
		put_format(picture, "<rect x=\"%zu\" y=\"56\" width=\"14\" height=\"12\"/>", x);
		put_format(picture, "<text x=\"%zu\" y=\"66\">%s", x + 20, kinds[kind].text);
		if (ended[kind]) {
			put(picture, " ");
			put_share(picture, ended[kind]);
		}
		put(picture, "</text></g>\n");
		x += 48 + LETTER * (strlen(kinds[kind].text) + strlen("100.00 %"));
	}
	put(picture, "</g>\n");
}

/* --- the template: each known @place@ is filled, any other @ stays --- */

static void put_unit(struct picture *picture)
{
	put_escaped(picture, picture->view->unit);
}

static void put_title(struct picture *picture)
{
	const struct ch__flame_view *view = picture->view;
	const char *kind = view->is_icicle ? "Icicle graph" : "Flame graph";
	put_escaped(picture, view->title ? view->title : kind);
}

static void put_above(struct picture *picture)
{
	const struct ch__flame_view *view = picture->view;
	if (view->title)
		put_line(picture, "title", 27, view->title, TITLE);
	if (view->subtitle)
		put_line(picture, "subtitle", 46, view->subtitle, LINE);
	put_legend(picture);
}

static void put_frames(struct picture *picture)
{
	struct ch__flame_box all = {
		.name = "all", .kind = CH__FLAME_OTHER, .weight = picture->total};
	put_box(picture, &all);
	picture->is_whole = each_box(picture, true);
}

/* Below the boxes. */
static uint64_t end_of_rows(const struct picture *picture)
{
	return TOP + ((uint64_t)picture->depth + 1) * ROW;
}

static void put_below(struct picture *picture)
{
	if (!picture->left_out)
		return;
	put_format(picture, "<text class=\"note\" x=\"%d\" y=\"%" PRIu64 "\">", MARGIN,
		   end_of_rows(picture) + BOTTOM / 2);
	put_grouped(picture, picture->left_out);
	put(picture, picture->left_out == 1 ? " frame narrower" : " frames narrower");
	put(picture, " than a tenth of a pixel left out, with all beyond</text>\n");
}

/* Fills the place named behind an @. Returns the rest of the template. */
static const char *put_place(struct picture *picture, const char *name)
{
	const struct {
		const char *name; /* with the @ behind it */
		void (*put)(struct picture *);
		uint64_t number;
	} places[] = {
		{"width@", .number = WIDTH},
		{"height@", .number = end_of_rows(picture) + BOTTOM},
		{"total@", .number = picture->flame->weight},
		{"left-out@", .number = picture->left_out},
		{"icicle@", .number = picture->view->is_icicle},
		{"reversed@", .number = picture->view->is_reversed},
		{"unit@", .put = put_unit},
		{"title@", .put = put_title},
		{"above@", .put = put_above},
		{"frames@", .put = put_frames},
		{"below@", .put = put_below},
	};
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		size_t length = strlen(places[i].name);
		if (strncmp(name, places[i].name, length) != 0)
			continue;
		if (places[i].put)
			places[i].put(picture);
		else
			put_format(picture, "%" PRIu64, places[i].number);
		return name + length;
	}
	put(picture, "@");
	return name;
}

bool ch__flame_write_svg(struct ch__flame *flame, const struct ch__flame_view *view,
			 ch__flame_write *write, void *arg)
{
	struct picture picture = {.out = {.write = write, .arg = arg},
				  .flame = flame,
				  .view = view,
				  .total = flame->weight ? flame->weight : 1};
	if (!each_box(&picture, false))
		return false;
	const char *at = ch__flame_template;
	for (const char *place; (place = strchr(at, '@')); at = put_place(&picture, place + 1))
		ch__flame_put(&picture.out, at, (size_t)(place - at));
	put(&picture, at);
	return ch__flame_text_end(&picture.out) && picture.is_whole;
}
