/* SPDX-License-Identifier: MIT
 * flame.c: the tree of weighted stacks. Names are kept once for each kind. A table finds a child by
 * its parent and name, so that a stack of n frames costs n look-ups, however wide the tree is.
 * Indices are of 32 bits: a node is 32 bytes and some 16 of table. */
#include "flame/flame_tree.h"

enum { FIRST_ROOM = 64 };

/* --- tables --- */

bool ch__flame_reserve(struct ch__meta *meta, void *pointer, size_t *room, size_t wanted,
		       size_t item_bytes)
{
	void *array;
	if (wanted <= *room)
		return true;
	size_t grown = *room ? *room : FIRST_ROOM;
	while (grown < wanted)
		grown *= 2;
	/* Indices are of 32 bits. */
	void *fresh = grown > UINT32_MAX ? NULL : ch__meta_alloc(meta, grown * item_bytes);
	if (!fresh)
		return false;
	memcpy(&array, pointer, sizeof array);
	if (array)
		memcpy(fresh, array, *room * item_bytes);
	ch__meta_free(meta, array, *room * item_bytes);
	memcpy(pointer, &fresh, sizeof fresh);
	*room = grown;
	return true;
}

static bool reserve_node(struct ch__flame *flame)
{
	return ch__flame_reserve(flame->meta, &flame->nodes, &flame->nodes_room,
				 flame->nodes_used + 1, sizeof *flame->nodes);
}

static uint32_t hash_of_name(const char *name, enum ch__flame_kind kind)
{
	uint32_t hash = 2166136261u ^ (uint32_t)kind;
	for (; *name; name++)
		hash = (hash ^ (uint8_t)*name) * 16777619u;
	return hash ^ hash >> 15;
}

static uint32_t hash_of_node(uint32_t parent, uint32_t frame)
{
	uint64_t mixed = ((uint64_t)parent << 32 | frame) * UINT64_C(0x9e3779b97f4a7c15);
	return (uint32_t)(mixed >> 32);
}

static uint32_t hash_at(const struct ch__flame *flame, bool is_name, uint32_t index)
{
	if (is_name)
		return flame->frames[index].hash;
	return hash_of_node(flame->nodes[index].parent, flame->nodes[index].frame);
}

static void insert(struct ch__flame_table *table, uint32_t hash, uint32_t index)
{
	size_t at = hash & (table->size - 1);
	while (table->slots[at])
		at = (at + 1) & (table->size - 1);
	table->slots[at] = index;
}

/* Makes room for one index more. `used` counts the indices, that one and 0, which has no slot. */
static bool grow_table(struct ch__flame *flame, struct ch__flame_table *table, bool is_name,
		       size_t used)
{
	if (used * 2 <= table->size)
		return true;
	struct ch__flame_table fresh = {.size = table->size ? table->size * 2
							    : (size_t)FIRST_ROOM * 2};
	fresh.slots = ch__meta_alloc(flame->meta, fresh.size * sizeof *fresh.slots);
	if (!fresh.slots)
		return false;
	for (uint32_t index = 1; index + 1 < used; index++)
		insert(&fresh, hash_at(flame, is_name, index), index);
	ch__meta_free(flame->meta, table->slots, table->size * sizeof *table->slots);
	*table = fresh;
	return true;
}

/* --- frames and nodes --- */

static bool add_frame(struct ch__flame *flame, const char *name, enum ch__flame_kind kind,
		      uint32_t hash)
{
	size_t bytes = strlen(name) + 1;
	if (!ch__flame_reserve(flame->meta, &flame->frames, &flame->frames_room,
			       flame->frames_used + 1, sizeof *flame->frames) ||
	    !grow_table(flame, &flame->by_name, true, flame->frames_used + 1))
		return false;
	char *copy = ch__meta_alloc(flame->meta, bytes);
	if (!copy)
		return false;
	memcpy(copy, name, bytes);
	flame->frames[flame->frames_used++] = (struct ch__flame_frame){copy, hash, kind};
	return true;
}

/* Returns false if there is no memory. */
static bool find_frame(struct ch__flame *flame, const char *name, enum ch__flame_kind kind,
		       uint32_t *frame)
{
	uint32_t hash = hash_of_name(name, kind);
	const struct ch__flame_table *table = &flame->by_name;
	for (size_t at = hash & (table->size - 1); table->slots[at];
	     at = (at + 1) & (table->size - 1)) {
		const struct ch__flame_frame *known = &flame->frames[table->slots[at]];
		if (known->hash == hash && known->kind == kind && strcmp(known->name, name) == 0) {
			*frame = table->slots[at];
			return true;
		}
	}
	if (!add_frame(flame, name, kind, hash))
		return false;
	*frame = (uint32_t)flame->frames_used - 1;
	insert(&flame->by_name, hash, *frame);
	return true;
}

static bool begin(struct ch__flame *flame)
{
	if (!grow_table(flame, &flame->by_name, true, 1) ||
	    !grow_table(flame, &flame->by_parent, false, 1) ||
	    !add_frame(flame, "[unknown]", CH__FLAME_OTHER, 0) || !reserve_node(flame))
		return false;
	flame->nodes_used = 1; /* the root: all its fields are 0 */
	return true;
}

struct ch__flame *ch__flame_create(struct ch__meta *meta)
{
	struct ch__flame *flame = ch__meta_alloc(meta, sizeof *flame);
	if (!flame)
		return NULL;
	flame->meta = meta;
	return begin(flame) ? flame : NULL;
}

uint32_t ch__flame_child(struct ch__flame *flame, uint32_t parent, const char *name,
			 enum ch__flame_kind kind)
{
	uint32_t frame;
	if (!find_frame(flame, *name ? name : "[unknown]", kind, &frame))
		return 0;
	struct ch__flame_table *table = &flame->by_parent;
	uint32_t hash = hash_of_node(parent, frame);
	for (size_t at = hash & (table->size - 1); table->slots[at];
	     at = (at + 1) & (table->size - 1)) {
		const struct ch__flame_node *known = &flame->nodes[table->slots[at]];
		if (known->parent == parent && known->frame == frame)
			return table->slots[at];
	}
	if (!reserve_node(flame) || !grow_table(flame, table, false, flame->nodes_used + 1))
		return 0;
	uint32_t node = (uint32_t)flame->nodes_used++;
	flame->nodes[node] = (struct ch__flame_node){
		.parent = parent, .frame = frame, .next = flame->nodes[parent].first_child};
	flame->nodes[parent].first_child = node;
	insert(table, hash, node);
	return node;
}

void ch__flame_weigh(struct ch__flame *flame, uint32_t node, uint64_t weight)
{
	/* The sum of all weights stays in range, and so does each part. */
	if (weight > UINT64_MAX - flame->weight)
		weight = UINT64_MAX - flame->weight;
	flame->weight += weight;
	flame->nodes[node].self += weight;
}
