/* SPDX-License-Identifier: MIT
 * flame_tree.h: private to the writers, flame*.c: the tree, a walk over the tree in the order of
 * drawing, and a buffer for the text. */
#pragma once

#include "flame/flame.h"

#include <string.h>

struct ch__flame_frame {
	char *name;
	uint32_t hash;
	enum ch__flame_kind kind;
};

struct ch__flame_node {
	uint32_t parent;            /* has a lower index; the root is its own */
	uint32_t frame;             /* 0 is "[unknown]", the root's */
	uint32_t first_child, next; /* 0: none */
	uint64_t self;              /* weight of stacks that end here */
	uint64_t total;             /* self and the totals of all children; right during a walk */
};

/* Open addressing over indices of frames or nodes, 0 free; at most half full. */
struct ch__flame_table {
	uint32_t *slots;
	size_t size; /* a power of two */
};

struct ch__flame {
	struct ch__meta *meta;
	struct ch__flame_frame *frames;
	struct ch__flame_node *nodes;
	size_t frames_used, frames_room, nodes_used, nodes_room;
	struct ch__flame_table by_name, by_parent;
	uint64_t weight; /* of all stacks */
};

/* An entry of a walk. From the root: a node and its total. From the leaves: a stack, with the node
 * that the walk has reached and the weight of the whole stack. */
struct ch__flame_entry {
	uint32_t rank, node;
	uint64_t weight;
};

/* The children of a box: a range of entries, sorted by rank. */
struct ch__flame_level {
	size_t begin, at, end;
	uint64_t start; /* of the next box */
};

/* Boxes in pre-order: parents before children, siblings by name as bytes, then by kind. */
struct ch__flame_walk {
	struct ch__flame *flame;
	bool is_reversed, ignores_kinds;
	uint32_t *ranks;  /* by frame: its place in the order; frames not told apart share a rank */
	uint32_t *framed; /* by rank: a frame of the rank */
	struct ch__flame_entry *entries;
	struct ch__flame_level *levels;
	size_t entries_used, entries_room, levels_used, levels_room;
	size_t group, group_end; /* entries of the last box, not expanded yet */
	uint64_t group_start;
};

struct ch__flame_box {
	uint32_t depth; /* 0: called by the root */
	const char *name;
	enum ch__flame_kind kind;
	uint64_t start;  /* where the box begins, in weight */
	uint64_t weight; /* of the box with its children */
	uint64_t self;
};

/* ignores_kinds: frames of one name are one frame. Returns false if there is no memory. Call
 * ch__flame_walk_end in any case. */
bool ch__flame_walk_begin(struct ch__flame_walk *, struct ch__flame *, bool is_reversed,
			  bool ignores_kinds);
enum ch__flame_step { CH__FLAME_BOX, CH__FLAME_DONE, CH__FLAME_NO_MEMORY };
enum ch__flame_step ch__flame_walk_next(struct ch__flame_walk *, struct ch__flame_box *);
/* Skips the children of the last box. */
void ch__flame_walk_skip(struct ch__flame_walk *);
void ch__flame_walk_end(struct ch__flame_walk *);

/* Makes room for `wanted` items in the array at *pointer; false: no memory, nothing changed. */
bool ch__flame_reserve(struct ch__meta *, void *pointer, size_t *room, size_t wanted,
		       size_t item_bytes);

struct ch__flame_text {
	ch__flame_write *write;
	void *arg;
	bool has_failed;
	size_t used;
	char bytes[8192];
};

void ch__flame_put(struct ch__flame_text *, const char *text, size_t bytes);
void ch__flame_put_text(struct ch__flame_text *, const char *text);
/* Writes the rest. Returns false if any write was refused. */
bool ch__flame_text_end(struct ch__flame_text *);

/* Returns the code point of the next character of a name, and sets *end behind the character.
 * Control characters become visible pictures. Bytes that are no UTF-8, or that XML cannot carry,
 * become the replacement character, so that every reader can read the text. */
uint32_t ch__flame_character(const char *name, const char **end);
/* The same for a name in folded stacks: there a `;` is `:`, and the space before a number at the
 * end is `_`. */
uint32_t ch__flame_folded_character(const char *name, const char **end);
void ch__flame_put_character(struct ch__flame_text *, uint32_t code_point);

/* The text of template.svg, the same in each picture. */
extern const char ch__flame_template[];
