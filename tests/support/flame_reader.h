/* SPDX-License-Identifier: MIT
 * flame_reader.h: reads a flame graph's SVG as a strict reader of XML does: SVG that is not well
 * formed fails the case. The reader keeps the boxes and the attributes of the root. */
#pragma once

#include "tests/support/flame_rig.h"

struct flame_box {
	double x, y, width;
	uint64_t start, count, self, depth;
	char class[40];
	char title[2000]; /* entities resolved */
	char label[400];  /* "" when the box has none */
};

struct flame_svg {
	struct flame_box *boxes;
	size_t count, room;
	char root[1000];  /* the tag of the root element */
	char text[20000]; /* all text outside of boxes, style and script, a line each */
	size_t text_bytes;
	bool has_script;
};

/* The value of an attribute of a tag; fails when the tag has no such attribute. */
static inline const char *flame_attribute(const char *tag, const char *name, char *value,
					  size_t room)
{
	char wanted[60];
	snprintf(wanted, sizeof wanted, " %s=\"", name);
	const char *at = strstr(tag, wanted);
	if (!at)
		FAIL("no %s in %s", name, tag);
	at += strlen(wanted);
	size_t length = strcspn(at, "\"");
	CHECK(length < room);
	memcpy(value, at, length);
	value[length] = 0;
	return value;
}

static inline double flame_number(const char *tag, const char *name)
{
	char value[60], *end;
	double number = strtod(flame_attribute(tag, name, value, sizeof value), &end);
	CHECK(end != value && !*end && number >= 0);
	return number;
}

static inline uint64_t flame_whole(const char *tag, const char *name)
{
	char value[60], *end;
	uint64_t number = strtoull(flame_attribute(tag, name, value, sizeof value), &end, 10);
	CHECK(end != value && !*end);
	return number;
}

/* XML forbids control characters anywhere, and bytes that are no UTF-8. */
static inline void check_characters(const char *text)
{
	for (const uint8_t *at = (const uint8_t *)text; *at;) {
		unsigned more = *at < 0x80 ? 0 : *at < 0xe0 ? 1 : *at < 0xf0 ? 2 : 3;
		uint32_t character = more ? *at & (0x3fu >> more) : *at;
		CHECK(*at < 0x80 || (*at >= 0xc2 && *at <= 0xf4));
		for (at++; more; more--, at++) {
			CHECK((*at & 0xc0) == 0x80);
			character = character << 6 | (*at & 0x3f);
		}
		CHECK(character >= 0x20 || character == '\n');
		CHECK(character < 0x7f || character >= 0xa0);
		CHECK(character != 0xfffe && character != 0xffff && character <= 0x10ffff);
		CHECK(character < 0xd800 || character >= 0xe000);
	}
}

/* Text between tags, entities resolved; ends at the next tag. */
static inline const char *flame_text_of(const char *at, char *to, size_t room)
{
	static const char *const entities[][2] = {
		{"&#60;", "<"}, {"&#62;", ">"}, {"&#38;", "&"}, {"&#34;", "\""}};
	size_t used = 0;
	while (*at && *at != '<') {
		CHECK(strncmp(at, "]]>", 3) != 0);
		char character = *at;
		size_t length = 1;
		if (*at == '&') {
			length = 0;
			for (size_t i = 0; i < 4 && !length; i++)
				if (strncmp(at, entities[i][0], strlen(entities[i][0])) == 0) {
					character = *entities[i][1];
					length = strlen(entities[i][0]);
				}
			CHECK(length);
		}
		if (used + 1 < room)
			to[used++] = character;
		at += length;
	}
	to[used] = 0;
	return at;
}

/* Keeps as much of the words as there is room for. */
static inline void flame_keep(char *to, size_t room, const char *words)
{
	size_t length = strnlen(words, room - 1);
	memcpy(to, words, length);
	to[length] = 0;
}

static inline void check_tag(const char *tag)
{
	size_t quotes = 0;
	for (const char *at = tag; *at; at++) {
		quotes += *at == '"';
		CHECK(*at != '<');
		if (*at == '=' && quotes % 2 == 0)
			CHECK(at[1] == '"');
	}
	CHECK_EQ(quotes % 2, 0);
}

static inline void flame_begin_box(struct flame_svg *svg, const char *tag)
{
	if (svg->count == svg->room) {
		svg->room = svg->room ? svg->room * 2 : 256;
		svg->boxes = realloc(svg->boxes, svg->room * sizeof *svg->boxes);
		CHECK(svg->boxes);
	}
	struct flame_box *box = &svg->boxes[svg->count++];
	*box = (struct flame_box){.x = flame_number(tag, "x"),
				  .y = flame_number(tag, "y"),
				  .width = flame_number(tag, "width"),
				  .start = flame_whole(tag, "data-start"),
				  .count = flame_whole(tag, "data-count"),
				  .self = flame_whole(tag, "data-self"),
				  .depth = flame_whole(tag, "data-depth")};
	flame_attribute(tag, "class", box->class, sizeof box->class);
}

/* Reads from a `<` that opens or closes an element to behind the `>`, for style and script to
 * behind their text. `stack` has the names of open elements. */
static inline const char *flame_tag(struct flame_svg *svg, const char *at, char (*stack)[20],
				    unsigned *depth)
{
	char tag[1000];
	/* No attribute has a `>`: the writer escapes `>`. */
	size_t length = strcspn(at, ">");
	CHECK(length < sizeof tag);
	memcpy(tag, at, length);
	tag[length] = 0;
	const char *next = at + length + 1;
	if (tag[1] == '/') {
		CHECK(*depth > 0);
		CHECK_STR(tag + 2, stack[--*depth]);
		return next;
	}
	check_tag(tag + 1);
	if (tag[length - 1] == '/')
		return next;
	CHECK(*depth < 8);
	snprintf(stack[(*depth)++], 20, "%.*s", (int)strcspn(tag + 1, " "), tag + 1);
	const char *name = stack[*depth - 1];
	if (*depth == 1)
		flame_keep(svg->root, sizeof svg->root, tag);
	else if (strcmp(name, "svg") == 0)
		flame_begin_box(svg, tag);
	if (strcmp(name, "script") == 0) {
		svg->has_script = true;
		CHECK(strncmp(next, "<![CDATA[", 9) == 0);
		next = strstr(next, "]]>");
		CHECK(next);
		next += 3;
		CHECK(strncmp(next, "</script>", 9) == 0);
	}
	return next;
}

static inline void flame_read(struct flame_svg *svg, const char *text)
{
	char stack[8][20], words[4000];
	unsigned depth = 0;
	memset(svg, 0, sizeof *svg);
	check_characters(text);
	const char *at = strstr(text, "?>");
	CHECK(at && strncmp(text, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>", 38) == 0);
	at += 3;
	while (*at) {
		bool is_in_box = depth >= 3 && strcmp(stack[2], "svg") == 0;
		const char *end = flame_text_of(at, words, sizeof words);
		const char *name = depth ? stack[depth - 1] : "";
		struct flame_box *box = is_in_box ? &svg->boxes[svg->count - 1] : NULL;
		if (box && strcmp(name, "title") == 0)
			flame_keep(box->title, sizeof box->title, words);
		else if (box && strcmp(name, "text") == 0)
			flame_keep(box->label, sizeof box->label, words);
		else if (strcmp(name, "text") == 0 || strcmp(name, "title") == 0)
			svg->text_bytes +=
				(size_t)snprintf(svg->text + svg->text_bytes,
						 sizeof svg->text - svg->text_bytes, "%s\n", words);
		else if (strcmp(name, "style") != 0)
			CHECK(strspn(words, "\n") == strlen(words));
		CHECK(svg->text_bytes < sizeof svg->text);
		if (!*end)
			break;
		at = flame_tag(svg, end, stack, &depth);
	}
	CHECK_EQ(depth, 0);
}

static inline void flame_forget(struct flame_svg *svg)
{
	free(svg->boxes);
}

/* The only box of this name at this depth. */
static inline const struct flame_box *flame_find(const struct flame_svg *svg, const char *name,
						 uint64_t depth)
{
	const struct flame_box *found = NULL;
	for (size_t i = 0; i < svg->count; i++) {
		const struct flame_box *box = &svg->boxes[i];
		size_t length = strcspn(box->title, "\n");
		if (box->depth == depth && strlen(name) == length &&
		    memcmp(name, box->title, length) == 0) {
			CHECK(!found);
			found = box;
		}
	}
	if (!found)
		FAIL("no box %s at depth %llu", name, (unsigned long long)depth);
	return found;
}
