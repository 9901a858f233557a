// SPDX-License-Identifier: MIT
/* A function's own cost is split over the ways that lead to it. The share of a way is the product
 * of its edges' shares, and an edge's share is what was spent in it by what was spent in all edges
 * to its callee that are not cut (ways.c), and where no edge is; if that is nothing, calls by
 * calls. So a function's callers get its cost in proportion, whoever called them, as gprof has it;
 * where a function costs the same whoever calls it, this is what stacks would have said.
 *
 * Costs are whole numbers: each way gets its share rounded down, and those that lost most by that
 * get one more, so the sum over all ways is the function's own cost, to the unit, and the sum of
 * all stacks that of the profile. A function's widest way always stays; of the others those that
 * carry at least 1/FINEST of the profile, and WAYS_MOST at the most. They share in proportion what
 * the rest had: graphs have more ways than anybody could look at. All numbers are integers, so that
 * nothing depends on the machine. */
#include "tools/callgrind/stacks.h"

#include "tools/callgrind/output.h"

#include <stdlib.h>
#include <string.h>

enum { WAYS_MOST = 256, FINEST = 1 << 16 };
static const uint64_t whole = UINT64_C(1) << 62;

typedef unsigned __int128 wide;

/* A stack that ends in a node, or, while they are collected, in one of its callers. */
struct way {
	uint64_t share;   /* of the node's cost, of `whole` */
	uint64_t rest;    /* what rounding took */
	uint32_t stack;   /* the frame in the flame graph */
	uint32_t ordinal; /* decides between equal ones */
};

struct fold {
	struct cg_ways ways;
	struct ch__flame *flame;
	struct way **ways_of; /* by node */
	uint32_t *way_count;
	struct cg_table names; /* of functions, and with their files: .number nodes have it */
	uint64_t least;        /* width of a way */
	struct way *found;     /* of the node at hand */
	size_t found_count, found_room;
};

/* ---- names ----------------------------------------------------------------------------------- */

/* The function with its file behind a zero. */
static bool count_names(struct fold *fold)
{
	const struct cg_graph *graph = fold->ways.graph;
	struct cg_output key = {0};
	bool is_good = true;
	for (size_t i = 0; i < graph->node_count && is_good; i++) {
		const struct cg_node *node = &graph->nodes[i];
		key.length = 0;
		cg_output_text(&key, node->function);
		size_t bare = key.length;
		cg_output_put(&key, "", 1);
		if (!cg_output_text(&key, node->file))
			break;
		struct cg_entry *one = cg_table_make(&fold->names, key.at, bare);
		struct cg_entry *two = cg_table_make(&fold->names, key.at, key.length);
		is_good = one && two;
		if (is_good)
			one->number++, two->number++;
	}
	is_good = is_good && !key.failed;
	cg_output_end(&key);
	return is_good;
}

/* Does another node have this name, or this name in this file? */
static bool is_shared(const struct fold *fold, const struct cg_output *key)
{
	const struct cg_entry *entry = cg_table_find(&fold->names, key->at, key->length);
	return entry && entry->number > 1;
}

/* What is in no object has names with colons from VMs; libcodeheap's own code has none. */
static enum ch__flame_kind kind_of(const struct cg_node *node, const char *name)
{
	size_t n = strlen(name);
	if (!node->is_anonymous)
		return CH__FLAME_NATIVE;
	if (!strncmp(name, "0x", 2) || !strncmp(name, "[unnamed]", 9))
		return CH__FLAME_OTHER;
	if (!strcmp(name, "codeheap_runtime") || (n > 7 && !strcmp(name + n - 7, " [cold]")))
		return CH__FLAME_COLD;
	return !strstr(name, "::") && strstr(name, "trampoline") ? CH__FLAME_TRAMPOLINE
								 : CH__FLAME_CODE;
}

/* The function; where several nodes have it, its file, and if that does not do, its object. */
static bool put_label(const struct fold *fold, const struct cg_node *node, struct cg_output *label)
{
	cg_output_text(label, node->function);
	if (label->failed || !is_shared(fold, label))
		return cg_output_put(label, "", 1);
	size_t bare = label->length;
	cg_output_put(label, "", 1);
	if (!cg_output_text(label, node->file))
		return false;
	bool has_object = is_shared(fold, label);
	label->length = bare;
	cg_output_put(label, " (", 2);
	cg_output_text(label, node->file);
	if (has_object) {
		cg_output_put(label, ", ", 2);
		cg_output_text(label, node->object);
	}
	return cg_output_put(label, ")", 2);
}

static uint32_t make_frame(struct fold *fold, uint32_t stack, const struct cg_node *node)
{
	struct cg_output label = {0};
	uint32_t made = 0;
	if (put_label(fold, node, &label)) {
		for (size_t i = 0; i + 1 < label.length; i++)
			label.at[i] = (char)(label.at[i] ? label.at[i] : '?');
		made = ch__flame_child(fold->flame, stack, label.at, kind_of(node, label.at));
	}
	cg_output_end(&label);
	return made;
}

/* ---- ways ------------------------------------------------------------------------------------ */

static bool add_way(struct fold *fold, uint32_t stack, uint64_t share)
{
	struct way *larger =
		cg_with_room(fold->found, fold->found_count, &fold->found_room, sizeof *larger);
	if (!larger)
		return false;
	fold->found = larger;
	uint32_t ordinal = (uint32_t)fold->found_count;
	fold->found[fold->found_count++] =
		(struct way){.share = share, .stack = stack, .ordinal = ordinal};
	return true;
}

static uint64_t part_of(uint64_t share, wide part, wide all)
{
	/* Both fit into 64 bits but for sums of many edges. */
	while (all > UINT64_MAX)
		all >>= 1, part >>= 1;
	return all ? (uint64_t)((wide)share * part / all) : 0;
}

/* The weight of an edge, or of no edge: by cost, by calls, or, if it is nothing, all alike. */
enum measure { BY_COST, BY_CALLS, ALIKE };

static wide weight(const struct cg_ways *ways, uint32_t edge, enum measure measure)
{
	const struct cg_edge *e = &ways->graph->edges[edge];
	return measure == BY_COST ? e->inclusive[ways->event] : measure == BY_CALLS ? e->calls : 1;
}

static wide weigh_all(const struct cg_ways *ways, uint32_t node, enum measure measure)
{
	wide all = measure == BY_COST ? ways->entered[node] : 0;
	for (uint32_t i = ways->first_in[node]; i < ways->first_in[node + 1]; i++)
		all += ways->is_cut[ways->in[i]] ? 0 : weight(ways, ways->in[i], measure);
	return all;
}

/* The ways to the node's callers, each with its share of the node's cost. */
static bool collect_ways(struct fold *fold, uint32_t node)
{
	const struct cg_ways *ways = &fold->ways;
	enum measure measure = BY_COST;
	wide all;
	fold->found_count = 0;
	while ((all = weigh_all(ways, node, measure)) == 0 && measure != ALIKE)
		measure++;
	uint64_t entered = measure == BY_COST ? ways->entered[node] : 0;
	if ((!all || entered) && !add_way(fold, 0, all ? part_of(whole, entered, all) : whole))
		return false;
	for (uint32_t i = ways->first_in[node]; i < ways->first_in[node + 1]; i++) {
		uint32_t edge = ways->in[i], caller = ways->graph->edges[edge].caller;
		if (ways->is_cut[edge])
			continue;
		wide part = weight(ways, edge, measure);
		for (uint32_t k = 0; k < fold->way_count[caller]; k++) {
			const struct way *way = &fold->ways_of[caller][k];
			uint64_t share = part_of(way->share, part, all);
			if (share && !add_way(fold, way->stack, share))
				return false;
		}
	}
	return fold->found_count || add_way(fold, 0, whole);
}

static int widest_first(const void *left, const void *right)
{
	const struct way *a = left, *b = right;
	if (a->share != b->share)
		return a->share > b->share ? -1 : 1;
	return (a->ordinal > b->ordinal) - (a->ordinal < b->ordinal);
}

/* What rounding took most from comes first. */
static int poorest_first(const void *left, const void *right)
{
	const struct way *a = left, *b = right;
	if (a->rest != b->rest)
		return a->rest > b->rest ? -1 : 1;
	return (a->ordinal > b->ordinal) - (a->ordinal < b->ordinal);
}

/* Keeps those that are wide enough, and the widest in any case; shares are of `whole` then. */
static void choose_ways(struct fold *fold, uint32_t node)
{
	const struct cg_ways *ways = &fold->ways;
	wide width = ways->graph->nodes[node].self[ways->event];
	for (uint32_t e = ways->first_out[node]; e < ways->first_out[node + 1]; e++)
		width += ways->is_cut[e] ? 0 : weight(ways, e, BY_COST);
	width = width > UINT64_MAX ? UINT64_MAX : width;
	if (fold->found_count)
		qsort(fold->found, fold->found_count, sizeof *fold->found, widest_first);
	if (fold->found_count > WAYS_MOST)
		fold->found_count = WAYS_MOST;
	while (fold->found_count > 1 &&
	       fold->found[fold->found_count - 1].share * width / whole < fold->least)
		fold->found_count--;
	wide all = 0;
	for (size_t i = 0; i < fold->found_count; i++)
		all += fold->found[i].share;
	if (!all)
		all = fold->found[0].share = whole;
	for (size_t i = 0; i < fold->found_count; i++) {
		fold->found[i].share = (uint64_t)((wide)fold->found[i].share * whole / all);
		fold->found[i].ordinal = (uint32_t)i;
	}
}

/* Gives each way its part of the node's own cost. */
static void weigh_ways(struct fold *fold, uint64_t cost)
{
	wide all = 0;
	uint64_t left = cost;
	for (size_t i = 0; i < fold->found_count; i++)
		all += fold->found[i].share;
	for (size_t i = 0; i < fold->found_count; i++) {
		struct way *way = &fold->found[i];
		wide product = (wide)way->share * cost;
		uint64_t part = (uint64_t)(product / all);
		way->rest = (uint64_t)(product % all);
		left -= part;
		ch__flame_weigh(fold->flame, way->stack, part);
	}
	if (fold->found_count)
		qsort(fold->found, fold->found_count, sizeof *fold->found, poorest_first);
	for (size_t i = 0; left; i++, left--)
		ch__flame_weigh(fold->flame, fold->found[i].stack, 1);
}

static bool fold_node(struct fold *fold, uint32_t node)
{
	const struct cg_node *it = &fold->ways.graph->nodes[node];
	if (!collect_ways(fold, node))
		return false;
	choose_ways(fold, node);
	for (size_t i = 0; i < fold->found_count; i++) {
		fold->found[i].stack = make_frame(fold, fold->found[i].stack, it);
		if (!fold->found[i].stack)
			return false;
	}
	weigh_ways(fold, it->self[fold->ways.event]);
	struct way *kept = malloc((fold->found_count + !fold->found_count) * sizeof *kept);
	if (!kept)
		return false;
	memcpy(kept, fold->found, fold->found_count * sizeof *kept);
	fold->ways_of[node] = kept;
	fold->way_count[node] = (uint32_t)fold->found_count;
	return true;
}

bool cg_stacks_add(struct ch__flame *flame, const struct cg_graph *graph, unsigned event)
{
	struct fold fold = {.flame = flame};
	bool is_good = cg_ways_find(&fold.ways, graph, event);
	fold.least = graph->totals[event] / FINEST > 1 ? graph->totals[event] / FINEST : 1;
	fold.ways_of = calloc(graph->node_count + 1, sizeof *fold.ways_of);
	fold.way_count = calloc(graph->node_count + 1, sizeof *fold.way_count);
	is_good = is_good && fold.ways_of && fold.way_count && count_names(&fold);
	for (size_t i = 0; is_good && i < graph->node_count; i++)
		is_good = fold_node(&fold, fold.ways.order[i]);
	for (size_t i = 0; fold.ways_of && i < graph->node_count; i++)
		free(fold.ways_of[i]);
	free(fold.ways_of);
	free(fold.way_count);
	free(fold.found);
	cg_table_end(&fold.names);
	cg_ways_end(&fold.ways);
	return is_good;
}
