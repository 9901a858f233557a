/* SPDX-License-Identifier: MIT
 * flame_walk.c: the boxes of a flame graph in the order of drawing, from the root or from the
 * leaves. A walk from the leaves makes no second tree. Stacks with the same last frames are
 * neighbours in an array, and each level sorts them anew by the next frame. So memory grows with
 * the number of stacks and their depth only. */
#include "flame/flame_tree.h"

#include <stdlib.h>

/* --- the order of frames --- */

struct ranked {
	const char *name;
	enum ch__flame_kind kind;
	uint32_t frame;
};

/* Compares names as written, so that names that are written alike are neighbours. */
static int compare_written(const char *a, const char *b)
{
	for (;;) {
		uint32_t x = *a ? ch__flame_folded_character(a, &a) : 0;
		uint32_t y = *b ? ch__flame_folded_character(b, &b) : 0;
		if (x != y || !x)
			return x < y ? -1 : x > y;
	}
}

static int by_written_name(const void *a, const void *b)
{
	return compare_written(((const struct ranked *)a)->name, ((const struct ranked *)b)->name);
}

static int by_name_and_kind(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;
	int order = strcmp(x->name, y->name);
	return order ? order : (x->kind > y->kind) - (x->kind < y->kind);
}

static bool rank_frames(struct ch__flame_walk *walk)
{
	const struct ch__flame *flame = walk->flame;
	size_t count = flame->frames_used;
	int (*compare)(const void *, const void *) =
		walk->ignores_kinds ? by_written_name : by_name_and_kind;
	struct ranked *order = ch__meta_alloc(flame->meta, count * sizeof *order);
	walk->ranks = ch__meta_alloc(flame->meta, count * sizeof *walk->ranks);
	walk->framed = ch__meta_alloc(flame->meta, count * sizeof *walk->framed);
	bool has_memory = order && walk->ranks && walk->framed;
	if (has_memory) {
		for (uint32_t i = 0; i < count; i++)
			order[i] = (struct ranked){flame->frames[i].name, flame->frames[i].kind, i};
		qsort(order, count, sizeof *order, compare);
		for (uint32_t i = 0, rank = 0; i < count; i++) {
			rank += i && compare(&order[i - 1], &order[i]) != 0;
			walk->ranks[order[i].frame] = rank;
			walk->framed[rank] = order[i].frame;
		}
	}
	ch__meta_free(flame->meta, order, count * sizeof *order);
	return has_memory;
}

/* --- levels --- */

static int by_rank(const void *a, const void *b)
{
	uint32_t x = ((const struct ch__flame_entry *)a)->rank,
		 y = ((const struct ch__flame_entry *)b)->rank;
	return x < y ? -1 : x > y;
}

static bool push_level(struct ch__flame_walk *walk, size_t begin, size_t end, uint64_t start)
{
	if (begin == end)
		return true;
	if (!ch__flame_reserve(walk->flame->meta, &walk->levels, &walk->levels_room,
			       walk->levels_used + 1, sizeof *walk->levels))
		return false;
	/* Far from the leaves the stacks usually share their next frame, and are sorted already. A
	 * sort would cost the most there. */
	bool is_sorted = true;
	for (size_t i = begin + 1; i < end && is_sorted; i++)
		is_sorted = walk->entries[i - 1].rank <= walk->entries[i].rank;
	if (!is_sorted)
		qsort(walk->entries + begin, end - begin, sizeof *walk->entries, by_rank);
	walk->levels[walk->levels_used++] = (struct ch__flame_level){begin, begin, end, start};
	return true;
}

static bool add_entry(struct ch__flame_walk *walk, uint32_t node, uint64_t weight)
{
	if (!ch__flame_reserve(walk->flame->meta, &walk->entries, &walk->entries_room,
			       walk->entries_used + 1, sizeof *walk->entries))
		return false;
	uint32_t rank = walk->ranks[walk->flame->nodes[node].frame];
	walk->entries[walk->entries_used++] = (struct ch__flame_entry){rank, node, weight};
	return true;
}

/* Adds entries for the children of a node, but not for children without weight. */
static bool add_children(struct ch__flame_walk *walk, uint32_t node)
{
	const struct ch__flame_node *nodes = walk->flame->nodes;
	for (uint32_t child = nodes[node].first_child; child; child = nodes[child].next)
		if (nodes[child].total && !add_entry(walk, child, nodes[child].total))
			return false;
	return true;
}

static void sum_up(struct ch__flame *flame)
{
	for (size_t i = 0; i < flame->nodes_used; i++)
		flame->nodes[i].total = flame->nodes[i].self;
	for (size_t i = flame->nodes_used; --i > 0;)
		flame->nodes[flame->nodes[i].parent].total += flame->nodes[i].total;
}

bool ch__flame_walk_begin(struct ch__flame_walk *walk, struct ch__flame *flame, bool is_reversed,
			  bool ignores_kinds)
{
	*walk = (struct ch__flame_walk){
		.flame = flame, .is_reversed = is_reversed, .ignores_kinds = ignores_kinds};
	if (!rank_frames(walk))
		return false;
	sum_up(flame);
	/* The root's own weight is of stacks without frames: the box shows "[unknown]". */
	if (flame->nodes[0].self && !add_entry(walk, 0, flame->nodes[0].self))
		return false;
	if (is_reversed) {
		for (uint32_t i = 1; i < flame->nodes_used; i++)
			if (flame->nodes[i].self && !add_entry(walk, i, flame->nodes[i].self))
				return false;
	} else if (!add_children(walk, 0)) {
		return false;
	}
	return push_level(walk, 0, walk->entries_used, 0);
}

/* Makes a level of the children of the last box's nodes. */
static bool look_into_nodes(struct ch__flame_walk *walk)
{
	size_t begin = walk->entries_used;
	for (size_t i = walk->group; i < walk->group_end; i++)
		if (walk->entries[i].node && !add_children(walk, walk->entries[i].node))
			return false;
	return push_level(walk, begin, walk->entries_used, walk->group_start);
}

/* Makes a level of the callers in the stacks of the last box. The callers overwrite the stacks'
 * entries, which nobody reads again. */
static bool look_into_stacks(struct ch__flame_walk *walk)
{
	const struct ch__flame_node *nodes = walk->flame->nodes;
	size_t end = walk->group;
	for (size_t i = walk->group; i < walk->group_end; i++) {
		struct ch__flame_entry entry = walk->entries[i];
		entry.node = nodes[entry.node].parent;
		if (!entry.node)
			continue;
		entry.rank = walk->ranks[nodes[entry.node].frame];
		walk->entries[end++] = entry;
	}
	return push_level(walk, walk->group, end, walk->group_start);
}

/* The weight that ends in the entry's frame: from the leaves, at the outermost frame. */
static uint64_t ends_in(const struct ch__flame_walk *walk, const struct ch__flame_entry *entry)
{
	const struct ch__flame_node *node = &walk->flame->nodes[entry->node];
	if (walk->is_reversed)
		return node->parent ? 0 : entry->weight;
	return node->self;
}

enum ch__flame_step ch__flame_walk_next(struct ch__flame_walk *walk, struct ch__flame_box *box)
{
	if (walk->group < walk->group_end &&
	    !(walk->is_reversed ? look_into_stacks(walk) : look_into_nodes(walk)))
		return CH__FLAME_NO_MEMORY;
	struct ch__flame_level *level = NULL;
	while (walk->levels_used) {
		level = &walk->levels[walk->levels_used - 1];
		if (level->at < level->end)
			break;
		walk->entries_used = level->begin;
		walk->levels_used--;
	}
	if (!walk->levels_used)
		return CH__FLAME_DONE;
	uint32_t rank = walk->entries[level->at].rank;
	const struct ch__flame_frame *frame = &walk->flame->frames[walk->framed[rank]];
	*box = (struct ch__flame_box){.depth = (uint32_t)walk->levels_used - 1,
				      .name = frame->name,
				      .kind = frame->kind,
				      .start = level->start};
	walk->group = level->at;
	walk->group_start = level->start;
	while (level->at < level->end && walk->entries[level->at].rank == rank) {
		box->weight += walk->entries[level->at].weight;
		box->self += ends_in(walk, &walk->entries[level->at++]);
	}
	walk->group_end = level->at;
	level->start += box->weight;
	return CH__FLAME_BOX;
}

void ch__flame_walk_skip(struct ch__flame_walk *walk)
{
	walk->group = walk->group_end;
}

void ch__flame_walk_end(struct ch__flame_walk *walk)
{
	struct ch__meta *meta = walk->flame->meta;
	size_t count = walk->flame->frames_used;
	ch__meta_free(meta, walk->ranks, count * sizeof *walk->ranks);
	ch__meta_free(meta, walk->framed, count * sizeof *walk->framed);
	ch__meta_free(meta, walk->entries, walk->entries_room * sizeof *walk->entries);
	ch__meta_free(meta, walk->levels, walk->levels_room * sizeof *walk->levels);
}
