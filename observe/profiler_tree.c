/* SPDX-License-Identifier: MIT
 * profiler_tree.c: samples merged into a tree of stacks, and the names of the codes in the tree.
 * Bounded: a sample without room is left out, and counted. Lock: profile, but for a copy none. */
#include "observe/profiler_inner.h"

#include <string.h>

enum { PIECE_BYTES = (1 << CH__NODES_LOG2) * sizeof(struct ch__node) };
enum { BUCKETS_MIN = 256, NAMES_MIN = 64 };

static uint32_t hash_of(uint64_t word, uint32_t parent)
{
	uint64_t h = (word ^ (uint64_t)parent << 40 ^ parent) * UINT64_C(0x9e3779b97f4a7c15);
	return (uint32_t)(h >> 32) ^ (uint32_t)h;
}

/* --- nodes --- */

size_t ch__tree_least_bytes(void)
{
	const struct ch__tree *tree = NULL;
	return BUCKETS_MIN * sizeof *tree->buckets + NAMES_MIN * sizeof *tree->names + PIECE_BYTES +
	       CH__PROFILE_NAMES_LEAST * CH__PROFILE_NAME_BYTES;
}

bool ch__tree_create(struct ch__profiler *p)
{
	struct ch__tree *tree = &p->tree;
	size_t pieces = p->config.asked.memory_bytes / PIECE_BYTES;
	size_t most = UINT32_MAX >> CH__NODES_LOG2;
	tree->pieces_max = (uint32_t)(pieces < most ? pieces : most);
	/* Not counted as used memory: the size follows from the bound of the profile. */
	tree->pieces = ch__meta_alloc(p->meta, tree->pieces_max * sizeof *tree->pieces);
	tree->buckets = ch__profile_alloc(p, BUCKETS_MIN * sizeof *tree->buckets);
	tree->names = ch__profile_alloc(p, NAMES_MIN * sizeof *tree->names);
	tree->buckets_mask = BUCKETS_MIN - 1;
	tree->names_mask = NAMES_MIN - 1;
	if (!tree->pieces || !tree->buckets || !tree->names)
		return false;
	tree->pieces[0] = ch__profile_alloc(p, PIECE_BYTES);
	tree->count = 1; /* the root */
	return tree->pieces[0] != NULL;
}

/* Doubles the buckets. Without memory the chains grow longer instead. */
static void widen(struct ch__profiler *p) CH_REQUIRES(ch__role_guest)
{
	struct ch__tree *tree = &p->tree;
	uint32_t old = tree->buckets_mask + 1, mask = old * 2 - 1;
	uint32_t *wider = ch__profile_alloc(p, (size_t)old * 2 * sizeof *wider);
	if (!wider)
		return;
	for (uint32_t i = 1; i < tree->count; i++) {
		struct ch__node *node = ch__tree_node(tree, i);
		uint32_t *bucket = &wider[hash_of(node->word, node->parent) & mask];
		node->next_in_bucket = *bucket;
		*bucket = i;
	}
	ch__profile_free(p, tree->buckets, old * sizeof *wider);
	tree->buckets = wider;
	tree->buckets_mask = mask;
}

static bool note_code(struct ch__profiler *p, uint64_t word) CH_REQUIRES(ch__role_guest);

/* Finds or makes the child for a word. Returns 0 if there is no memory. */
static uint32_t child(struct ch__profiler *p, uint32_t parent, uint64_t word)
	CH_REQUIRES(ch__role_guest)
{
	struct ch__tree *tree = &p->tree;
	uint32_t *bucket = &tree->buckets[hash_of(word, parent) & tree->buckets_mask];
	for (uint32_t i = *bucket; i; i = ch__tree_node(tree, i)->next_in_bucket) {
		const struct ch__node *node = ch__tree_node(tree, i);
		if (node->word == word && node->parent == parent)
			return i;
	}
	uint32_t piece = tree->count >> CH__NODES_LOG2;
	if (piece >= tree->pieces_max || !note_code(p, word))
		return 0;
	if (!tree->pieces[piece] && !(tree->pieces[piece] = ch__profile_alloc(p, PIECE_BYTES)))
		return 0;
	uint32_t index = tree->count++;
	struct ch__node *node = ch__tree_node(tree, index);
	*node = (struct ch__node){.word = word, .parent = parent, .next_in_bucket = *bucket};
	*bucket = index;
	if (tree->count > tree->buckets_mask)
		widen(p);
	return index;
}

bool ch__tree_add(struct ch__profiler *p, const uint64_t *frames, uint32_t count, bool is_cut,
		  uint32_t weight)
{
	uint32_t at = 0;
	if (is_cut && !(at = child(p, 0, CH__FRAME_WORD_CUT)))
		return false;
	while (count--)
		if (!(at = child(p, at, frames[count])))
			return false;
	ch__tree_node(&p->tree, at)->weight += weight;
	return true;
}

/* --- names --- */

static struct ch__code_name *place_of(const struct ch__tree *tree, uint64_t key)
{
	uint32_t at = hash_of(key, 0) & tree->names_mask;
	while (tree->names[at].key && tree->names[at].key != key)
		at = (at + 1) & tree->names_mask;
	return &tree->names[at];
}

struct ch__code_name *ch__tree_name(const struct ch__tree *tree, uint64_t key)
{
	struct ch__code_name *name = place_of(tree, key & ~CH__LOOK_COLD);
	return name->key ? name : NULL;
}

static bool widen_names(struct ch__profiler *p) CH_REQUIRES(ch__role_guest)
{
	struct ch__tree *tree = &p->tree, old = *tree;
	size_t count = (size_t)old.names_mask + 1;
	struct ch__code_name *wider = ch__profile_alloc(p, 2 * count * sizeof *wider);
	if (!wider)
		return false;
	tree->names = wider;
	tree->names_mask = (uint32_t)(2 * count - 1);
	for (size_t i = 0; i < count; i++)
		if (old.names[i].key)
			*place_of(tree, old.names[i].key) = old.names[i];
	ch__profile_free(p, old.names, count * sizeof *wider);
	return true;
}

/* Makes a place for the name of a new code. Returns false if there is no memory. */
static bool note_code(struct ch__profiler *p, uint64_t word)
{
	struct ch__tree *tree = &p->tree;
	uint64_t key = word & ~CH__LOOK_COLD;
	if (!ch__frame_is_code(word) || ch__tree_name(tree, key))
		return true;
	if (tree->names_count >= tree->names_mask / 2 && !widen_names(p))
		return false;
	/* A profile that is full can still say what it has: the name's room is kept until then. */
	if (CH__PROFILE_NAME_BYTES > p->config.asked.memory_bytes - p->used_bytes)
		return false;
	p->used_bytes += CH__PROFILE_NAME_BYTES;
	place_of(tree, key)->key = key;
	tree->names_count++;
	return true;
}

void ch__tree_take_name(struct ch__profiler *p, struct ch_heap *heap, struct ch__code_name *name,
			bool is_dying)
{
	char text[CH__PROFILE_NAME_BYTES];
	if (name->is_taken)
		return;
	name->is_taken = true;
	p->used_bytes -= CH__PROFILE_NAME_BYTES;
	size_t n = ch__look_name(heap, name->key, is_dying, text, sizeof text, &name->is_slot);
	if (!n)
		return;
	name->text = ch__profile_alloc(p, n + 1);
	if (name->text)
		memcpy(name->text, text, n);
}
