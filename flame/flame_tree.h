/* SPDX-License-Identifier: MIT
 * flame_tree.h: what the writers of a flame graph share, private to flame*.c: the tree, a walk over
 * it in the order in which it is drawn, and a buffer for text on its way out. */
#ifndef CH_FLAME_FLAME_TREE_H
#define CH_FLAME_FLAME_TREE_H

#include "flame/flame.h"

#include <string.h>

struct ch__flame_frame {
	char *name;
	size_t bytes; /* of the name, with its end */
	uint32_t hash;
	enum ch__flame_kind kind;
};

struct ch__flame_node {
	uint32_t parent;            /* has a lower index; the root is its own */
	uint32_t frame;             /* 0 is "[unknown]", the root's */
	uint32_t first_child, next; /* 0: none */
	uint64_t self;              /* what ended here */
	uint64_t total;             /* and in what it called; right while a walk is under way */
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

/* A frame of a stack under way: in a walk from the root, a node; in one from the leaves, the node
 * that the stack has come to, and all that this stack weighs. */
struct ch__flame_entry {
	uint32_t rank, node;
	uint64_t weight;
};

/* Neighbours of one parent: entries, sorted by rank. */
struct ch__flame_level {
	size_t begin, at, end;
	uint64_t start; /* of the next box */
};

/* Boxes in pre-order: parents before children, siblings by name as bytes, then by kind. */
struct ch__flame_walk {
	struct ch__flame *flame;
	bool is_reversed, ignores_kinds;
	uint32_t *ranks;  /* by frame: its place in the order, the same for frames not told apart */
	uint32_t *framed; /* by rank: one such frame */
	struct ch__flame_entry *entries;
	struct ch__flame_level *levels;
	size_t entries_used, entries_room, levels_used, levels_room;
	size_t group, group_end; /* entries of the last box, not looked into yet */
	uint64_t group_start;
};

struct ch__flame_box {
	uint32_t depth; /* 0: called by the root */
	const char *name;
	enum ch__flame_kind kind;
	uint64_t start;  /* all that is left of it in its level */
	uint64_t weight; /* its children's and its own */
	uint64_t self;
};

/* ignores_kinds: frames of one name are one frame. False: no memory; end is called all the same. */
bool ch__flame_walk_begin(struct ch__flame_walk *, struct ch__flame *, bool is_reversed,
			  bool ignores_kinds);
enum ch__flame_step { CH__FLAME_BOX, CH__FLAME_DONE, CH__FLAME_NO_MEMORY };
enum ch__flame_step ch__flame_walk_next(struct ch__flame_walk *, struct ch__flame_box *);
/* Passes over what the last box called. */
void ch__flame_walk_skip(struct ch__flame_walk *);
void ch__flame_walk_end(struct ch__flame_walk *);

/* Room for `wanted` items in the array that the pointer leads to; false: no memory, all is as it
 * was. */
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
/* Writes what is left; false if any write was refused. */
bool ch__flame_text_end(struct ch__flame_text *);

/* The next character of a name: its code point, and where it ends. Control characters become their
 * visible pictures, and bytes that are no UTF-8 or that XML cannot carry the replacement
 * character, so that what is written is text to every reader. */
uint32_t ch__flame_character(const char *name, const char **end);
void ch__flame_put_character(struct ch__flame_text *, uint32_t code_point);

/* What each picture has, as text: template.svg. */
extern const char ch__flame_template[];

#endif
