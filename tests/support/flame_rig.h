/* SPDX-License-Identifier: MIT
 * flame_rig.h: shared by the tests of flame graphs: a tree made from folded lines, and writers into
 * memory. */
#pragma once

#include "os/os.h"
#include "tests/support/harness.h"
#include "flame/flame.h"

#include <stdlib.h>
#include <string.h>

struct flame_text {
	char *text; /* ends with a zero */
	size_t bytes, room;
	size_t limit; /* 0, or the bytes after which writes are refused */
};

static inline bool flame_take(void *arg, const char *text, size_t bytes)
{
	struct flame_text *to = arg;
	if (to->limit && to->bytes + bytes > to->limit)
		return false;
	if (to->bytes + bytes + 1 > to->room) {
		to->room = (to->bytes + bytes + 1) * 2;
		to->text = realloc(to->text, to->room);
		CHECK(to->text);
	}
	memcpy(to->text + to->bytes, text, bytes);
	to->bytes += bytes;
	to->text[to->bytes] = 0;
	return true;
}

static struct ch__meta *meta;

static inline struct ch__flame *new_flame(void)
{
	if (!meta)
		meta = ch__meta_create();
	CHECK(meta);
	struct ch__flame *flame = ch__flame_create(meta);
	CHECK(flame);
	return flame;
}

/* Adds a stack `outer;inner`, all frames of one kind. Returns false when memory ran out. */
static inline bool flame_add(struct ch__flame *flame, const char *stack, enum ch__flame_kind kind,
			     uint64_t weight)
{
	char copy[4096];
	uint32_t node = 0;
	CHECK(strlen(stack) < sizeof copy);
	strcpy(copy, stack);
	char *rest = copy;
	for (char *name; (name = strsep(&rest, ";"));)
		if (!(node = ch__flame_child(flame, node, name, kind)))
			return false;
	ch__flame_weigh(flame, node, weight);
	return true;
}

/* The caller frees the text. */
static inline char *flame_folded(struct ch__flame *flame, bool is_reversed)
{
	struct flame_text out = {0};
	CHECK(flame_take(&out, "", 0));
	CHECK(ch__flame_write_folded(flame, is_reversed, flame_take, &out));
	return out.text;
}

static inline void check_folded(struct ch__flame *flame, bool is_reversed, const char *wanted)
{
	char *folded = flame_folded(flame, is_reversed);
	CHECK_STR(folded, wanted);
	free(folded);
}
