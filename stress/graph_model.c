/* SPDX-License-Identifier: MIT
 * graph_model.c: the state of the blocks at a quiescent point, when no thread is attached. The
 * model follows the machine code: the bytes at each site say where a block can go, the cells where
 * the VM can go, and the frames of suspended fibers which blocks run on. A reached block must live,
 * and answer rightly when run. A block that is not reached, and is no newborn, must be freed by two
 * cycles, save a few that chance words keep. */
#include "graph_emit.h"
#include "graph_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	NEWBORN_CYCLES = 2,
	POLLS = 400,
	POOL_BYTES = 8 << 20,
	SLACK_BYTES = 256, /* bytes scanned below a suspended sp */
};

static uint32_t sorted[GRAPH_NODES], sorted_count;
static uint32_t queue[GRAPH_NODES], queued;
static bool is_owner_seen[GRAPH_OWNERS];

static uint32_t node_count(void)
{
	uint32_t count = atomic_load(&graph_world.node_count);
	return count < GRAPH_NODES ? count : GRAPH_NODES;
}

/* --- present blocks --- */

/* Each byte leads to the block, whether the heap is named or not. */
static void judge_lookup(const struct graph_node *node, const struct ch_info *info)
{
	const uint8_t *const places[] = {info->exec, info->exec + info->hot_bytes - 1,
					 info->cold_exec, info->cold_exec + info->cold_bytes - 1};
	for (int i = 0; i < (info->cold_bytes ? 4 : 2); i++) {
		struct ch_spot spot = {.size = sizeof spot};
		const struct ch_heap *heap = i % 2 ? NULL : graph_heap_of(node)->heap;
		if (!ch_code_at(heap, places[i], false, &spot) || spot.user != node ||
		    spot.block.bits != node->handle.bits || spot.state != info->state ||
		    spot.is_cold != (i >= 2))
			graph_fail("%p in block g%u does not lead to the block",
				   (const void *)places[i], node->number);
	}
}

static void judge_state(const struct graph_node *node, const struct ch_info *info)
{
	const struct graph_heap *h = graph_heap_of(node);
	if (info->user != node)
		graph_fail("the handle of block g%u is of another block", node->number);
	if (info->exec != node->exec)
		graph_fail("block g%u is said to lie elsewhere", node->number);
	/* A guest's vm may end before its blocks, which are told then. */
	if (atomic_load(&node->notices) && !graph_owner(node->owner)->guest)
		graph_fail("there was a notice of block g%u, which is there", node->number);
	if (info->state == CH_BLOCK_NOTENTRANT && !graph_run_may_be_invalid(node))
		graph_fail("nobody invalidated block g%u, and it is not entrant", node->number);
	if (info->state != CH_BLOCK_LIVE)
		return;
	if (atomic_load(&node->is_invalid))
		graph_fail("block g%u is live after its invalidation", node->number);
	if (node->fact && atomic_load(&graph_world.facts[node->fact].is_broken))
		graph_fail("block g%u is live, what it assumed is broken", node->number);
	/* A discard passes over immortal code and data. */
	if (!(node->shape & GRAPH_IMMORTAL) && !node->is_data &&
	    atomic_load(&node->committed_at) <
		    atomic_load(&h->discarded_at[graph_owner(node->owner)->vm]))
		graph_fail("block g%u outlived a discard as a live one", node->number);
}

static int by_place(const void *a, const void *b)
{
	const struct graph_node *x = graph_node(*(const uint32_t *)a);
	const struct graph_node *y = graph_node(*(const uint32_t *)b);
	return x->exec < y->exec ? -1 : x->exec > y->exec;
}

static void observe(void)
{
	sorted_count = 0;
	for (uint32_t i = 1; i < node_count(); i++) {
		struct graph_node *node = graph_node(i);
		struct ch_info info = {.size = sizeof info};
		node->is_there = node->is_entrant = false;
		if (atomic_load(&node->state) != NODE_COMMITTED ||
		    graph_allow(ch_block_info(node->handle, &info),
				GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_STALE), "information") != CH_OK)
			continue;
		judge_state(node, &info);
		judge_lookup(node, &info);
		node->is_there = true;
		node->is_entrant = info.state == CH_BLOCK_LIVE;
		sorted[sorted_count++] = i;
	}
	qsort(sorted, sorted_count, sizeof *sorted, by_place);
	for (uint32_t i = 1; i < sorted_count; i++) {
		const struct graph_node *low = graph_node(sorted[i - 1]);
		if (low->exec + low->hot_bytes > graph_node(sorted[i])->exec)
			graph_fail("blocks g%u and g%u share a place", low->number, sorted[i]);
	}
}

/* The present block whose hot bytes have the address; 0 = none. */
static uint32_t node_at(const uint8_t *address)
{
	uint32_t low = 0, high = sorted_count;
	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (graph_node(sorted[middle])->exec <= address)
			low = middle + 1;
		else
			high = middle;
	}
	if (!low)
		return 0;
	const struct graph_node *node = graph_node(sorted[low - 1]);
	return address < node->exec + node->hot_bytes ? node->number : 0;
}

/* --- where the code leads --- */

static const uint8_t *leads_to(const struct graph_arm *arm, int number)
{
	static const uint8_t kinds[GRAPH_ARMS + 1] = {0,      CH_CALL, CH_JMP,
						      CH_JCC, CH_LEA,  CH_LITERAL};
	return graph_emit_target(arm->at, (enum ch_branch_kind)kinds[number]);
}

static bool is_stub(const struct graph_node *node, const uint8_t *address)
{
	return address >= node->cold && address < node->cold + node->cold_bytes;
}

/* The block that an arm leads to; 0 = the arm's stub. */
static uint32_t target_of(struct graph_node *node, int number)
{
	const uint8_t *address = leads_to(&node->arms[number], number);
	/* Where running code is not patched, the site stays and its stub leads on. */
	if (is_stub(node, address))
		address = graph_emit_lead(address);
	uint32_t to = node_at(address);
	if (!to) {
		if (address != node->veneer && !is_stub(node, address))
			graph_fail("arm %d of block g%u leads to %p, where no block is and not its "
				   "stub",
				   number, node->number, (const void *)address);
		return 0;
	}
	const struct graph_node *target = graph_node(to);
	if (address != target->entry)
		graph_fail("arm %d of block g%u leads into block g%u", number, node->number, to);
	if (!target->is_entrant)
		graph_fail("arm %d of block g%u leads to block g%u, which is not entrant", number,
			   node->number, to);
	if (!node->is_entrant)
		graph_fail(
			"arm %d of block g%u leads to block g%u, though it is not entrant itself",
			number, node->number, to);
	if (!graph_code_is_candidate(node, number, to))
		graph_fail("arm %d of block g%u leads to block g%u, to which nobody linked it",
			   number, node->number, to);
	return to;
}

static uint32_t entry_of(const struct graph_owner *owner)
{
	const uint8_t *address = __atomic_load_n(owner->cell, __ATOMIC_ACQUIRE);
	if (address == (const uint8_t *)(uintptr_t)graph_code_fallback)
		return 0;
	uint32_t number = node_at(address);
	if (!number || graph_node(number)->entry != address ||
	    graph_owner(graph_node(number)->owner) != owner)
		graph_fail("the cell of owner %td leads to %p, which is no entry of its",
			   owner - graph_world.owners, (const void *)address);
	if (!graph_node(number)->is_entrant && !owner->loose)
		graph_fail("the cell of owner %td leads to block g%u, which is not entrant",
			   owner - graph_world.owners, number);
	return number;
}

/* --- reached blocks --- */

static bool is_perhaps_enough; /* reach all blocks that may live, not only blocks that must */

static void reach(uint32_t number, const char *from, uint32_t whose)
{
	struct graph_node *node = graph_node(number);
	if (!number || (is_perhaps_enough ? node->is_perhaps : node->is_reached))
		return;
	if (is_perhaps_enough && !node->is_there)
		return;
	if (!node->is_there)
		graph_fail("block g%u must live and is gone: %s %u leads to it", number, from,
			   whose);
	node->is_perhaps = true;
	node->is_reached |= !is_perhaps_enough;
	queue[queued++] = number;
}

static bool is_root_owner(const struct graph_owner *owner)
{
	return atomic_load(&owner->is_born) && !atomic_load(&owner->is_dropped) &&
	       !atomic_load(&owner->is_released);
}

static void reach_owner(uint32_t number)
{
	struct graph_owner *owner = graph_owner(number);
	if (!number || is_owner_seen[number] || !atomic_load(&owner->is_born))
		return;
	is_owner_seen[number] = true;
	if (!atomic_load(&owner->is_released)) {
		reach(entry_of(owner), "the cell of owner", number);
		return;
	}
	/* A released owner's cell leads to no code, but the heap may still keep the entry. */
	for (uint32_t i = 0; is_perhaps_enough && i < sorted_count; i++)
		if (graph_node(sorted[i])->owner == number)
			reach(sorted[i], "owner", number);
}

static void reach_from(struct graph_node *node)
{
	for (int arm = 1; arm < GRAPH_ARMS; arm++)
		if (node->arms[arm].at)
			reach(target_of(node, arm), "an arm of block", node->number);
	reach(node->edge, "an edge of block", node->number);
	reach(node->shared_exit, "a patch point of block", node->number);
	reach(node->data, "data of block", node->number);
	reach_owner(node->edge_owner);
	if (graph_world.program->driver == GRAPH_HOST || graph_world.program->driver == GRAPH_BOEHM)
		reach_owner(node->ref_owner);
}

/* A block whose hot or cold bytes hold the address, or end there. */
static void reach_address(const uint8_t *address, uint32_t fiber)
{
	for (uint32_t i = 0; i < sorted_count; i++) {
		const struct graph_node *node = graph_node(sorted[i]);
		if ((address >= node->exec && address <= node->exec + node->hot_bytes) ||
		    (address >= node->cold && address <= node->cold + node->cold_bytes))
			reach(node->number, "a word of fiber", fiber);
	}
}

/* The scan of a suspended stack is conservative: any word like an address holds a block. */
static void reach_words(const struct graph_stack *s, uint32_t fiber)
{
	const uint8_t *low = graph_node(sorted[0])->exec - POOL_BYTES;
	const uint8_t *high = graph_node(sorted[sorted_count - 1])->exec + POOL_BYTES;
	for (uintptr_t at = s->sp - SLACK_BYTES; at < (uintptr_t)s->high; at += sizeof low) {
		const uint8_t *word = *(const uint8_t *const *)at;
		if (word >= low && word < high)
			reach_address(word, fiber);
	}
}

static void reach_roots(void)
{
	uint32_t owners = atomic_load(&graph_world.owner_count);
	for (uint32_t i = 1; i < owners && i < GRAPH_OWNERS; i++)
		if (is_root_owner(graph_owner(i)))
			reach_owner(i);
	for (int f = 0; f < GRAPH_FIBERS; f++) {
		const struct graph_stack *s = &graph_world.fibers[f];
		for (int i = 0; atomic_load(&s->state) == STACK_SUSPENDED && i < s->depth; i++)
			reach(s->frames[i].node->number, "a frame of fiber", (uint32_t)f);
		if (is_perhaps_enough && sorted_count && atomic_load(&s->state) == STACK_SUSPENDED)
			reach_words(s, (uint32_t)f);
	}
	for (uint32_t i = 0; i < sorted_count; i++) {
		const struct graph_node *node = graph_node(sorted[i]);
		uint64_t age = graph_cycles(graph_owner(node->owner)->heap) -
			       atomic_load(&node->cycles_at);
		if ((node->shape & GRAPH_IMMORTAL) ||
		    (is_perhaps_enough && !atomic_load(&node->is_held) && age < NEWBORN_CYCLES))
			reach(node->number, "the life of heap", 0);
	}
}

static void reach_all(bool is_perhaps)
{
	is_perhaps_enough = is_perhaps;
	memset(is_owner_seen, 0, sizeof is_owner_seen);
	for (uint32_t i = 1; i < node_count(); i++) {
		graph_node(i)->is_perhaps = false;
		if (!is_perhaps)
			graph_node(i)->is_reached = false;
	}
	queued = 0;
	reach_roots();
	/* Each block is in the queue once. */
	for (uint32_t i = 0; i < queued; i++)
		reach_from(graph_node(queue[i]));
}

/* --- running blocks that must live --- */

static void run_arms(struct graph_node *node)
{
	for (int arm = 1; arm < GRAPH_ARMS; arm++) {
		if (!node->arms[arm].at || !target_of(node, arm))
			continue;
		/* The block takes the arm, the next block leaves, and so does the first, if the
		 * first goes on. */
		const int script[] = {arm, 0, 0};
		graph_run_node(node, script, 3);
	}
}

static void run_reached(void)
{
	static const int leave[] = {GRAPH_GO_LEAVE};
	for (uint32_t i = 0; i < sorted_count; i++) {
		struct graph_node *node = graph_node(sorted[i]);
		if (!node->is_reached || !node->is_entrant || node->is_exit || node->is_data)
			continue;
		GRAPH_COUNT(graph_must_live, 1);
		graph_run_node(node, leave, 1);
		run_arms(node);
	}
}

/* Blocks that are gone leave no record behind, and no call that failed did. At the end of a round
 * no thread is attached. */
static void judge_counts(int heap, const struct ch_stats *stats)
{
	uint64_t branches = 0, invalid = 0, blocks = 0, facts = 0, fibers = 0;
	for (uint32_t i = 0; i < sorted_count; i++) {
		const struct graph_node *node = graph_node(sorted[i]);
		if (graph_owner(node->owner)->heap != heap)
			continue;
		blocks++;
		branches += node->branch_room;
		invalid += !node->is_entrant;
	}
	for (uint32_t i = 1; i < atomic_load(&graph_world.fact_count); i++)
		facts += graph_world.facts[i].heap == heap &&
			 !atomic_load(&graph_world.facts[i].is_broken);
	for (int i = 0; i < GRAPH_FIBERS; i++)
		fibers += graph_world.fibers[i].fibers[heap] != NULL;
	const struct {
		const char *what;
		uint64_t counted, are;
	} rows[] = {
		{"blocks", stats->blocks_now, blocks},
		{"branches", stats->branches_now, branches},
		{"invalid blocks", stats->blocks_notentrant_now, invalid},
		{"open blocks", stats->blocks_open_now, 0},
		{"assumptions", stats->assumptions_now, facts},
		{"fibers", stats->fibers_now, fibers},
		{"threads", stats->threads_now, 0},
		{"vms", stats->vms_now, (uint64_t)graph_world.program->vms},
	};
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
		if (rows[i].counted != rows[i].are)
			graph_fail("%llu %s are counted, not %llu",
				   (unsigned long long)rows[i].counted, rows[i].what,
				   (unsigned long long)rows[i].are);
}

static void check_heaps(const char *when)
{
	char report[300];
	for (int i = 0; i < graph_world.program->heaps; i++)
		if (ch_heap_check(graph_world.heaps[i].heap, report, sizeof report) != CH_OK)
			graph_fail("heap check %s: %s", when, report);
}

/* --- names --- */

/* Lines of a heap that left the map stay there, also of blocks that died before or since. */
static void judge_name(const struct ch_heap *heap, const char *line)
{
	const char *name = strrchr(line, 'g');
	unsigned number;
	if (!name || name == line || name[-1] != ' ' || sscanf(name, "g%u", &number) != 1)
		return;
	struct graph_node *node = graph_node(number < node_count() ? number : 0);
	if (atomic_load(&node->state) != NODE_COMMITTED || graph_heap_of(node)->heap != heap)
		return;
	if (!node->is_there)
		graph_fail("the perf map still has the name of block g%u: %s", number, line);
	node->is_named |= (const uint8_t *)(uintptr_t)strtoull(line, NULL, 16) == node->exec;
}

static void check_names(struct ch_heap *heap)
{
	char line[256];
	const char *path;
	if (!ch_sink_status(heap, CH_SINK_PERF_MAP, &path, NULL) || ch_sink_flush(heap) != CH_OK)
		return;
	for (uint32_t i = 0; i < sorted_count; i++)
		graph_node(sorted[i])->is_named = false;
	FILE *file = fopen(path, "r");
	if (!file)
		graph_fail("there is no perf map %s", path);
	while (fgets(line, sizeof line, file))
		judge_name(heap, line);
	fclose(file);
	for (uint32_t i = 0; i < sorted_count; i++) {
		const struct graph_node *node = graph_node(sorted[i]);
		if (graph_heap_of(node)->heap == heap && node->is_entrant && !node->is_data &&
		    !node->is_named)
			graph_fail("the perf map has no name of block g%u", node->number);
	}
}

/* --- a thread of the model's own, whose stack is gone before any count --- */

static void *in_thread(void *arg)
{
	struct graph_thread *t = &graph_world.threads[GRAPH_THREADS];
	graph_driver_enter_thread(t);
	((void (*)(void))(uintptr_t)arg)();
	graph_driver_leave_thread(t);
	return NULL;
}

static void apart(void (*fn)(void))
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, in_thread, (void *)(uintptr_t)fn) ||
	    pthread_join(thread, NULL))
		graph_fail("no thread");
}

static void poll_often(void)
{
	for (int i = 0; i < POLLS; i++)
		ch_thread_poll();
}

/* --- a round --- */

static void predict(void)
{
	for (uint32_t i = 0; i < sorted_count; i++) {
		struct graph_node *node = graph_node(sorted[i]);
		node->is_predicted_dead = !node->is_perhaps && !node->is_counted;
		node->is_counted |= node->is_predicted_dead;
		if (node->is_predicted_dead)
			GRAPH_COUNT(graph_predicted_dead, 1);
	}
}

static void compare(void)
{
	for (uint32_t i = 1; i < node_count(); i++) {
		struct graph_node *node = graph_node(i);
		if (atomic_load(&node->state) == NODE_LOST && atomic_load(&node->notices))
			graph_fail("there was a notice of block g%u, which never was committed", i);
		if (atomic_load(&node->state) != NODE_COMMITTED)
			continue;
		if (node->is_reached && !node->is_there)
			graph_fail("block g%u must live and was freed", i);
		if (node->is_predicted_dead && !node->is_there)
			GRAPH_COUNT(graph_predicted_freed, 1);
		node->is_predicted_dead = false;
		if (!node->is_there && !atomic_load(&node->notices) &&
		    !graph_owner(node->owner)->loose)
			graph_fail("block g%u was freed, and there was no notice", i);
	}
}

static void collect_twice(void)
{
	for (int cycle = 0; cycle < 2; cycle++) {
		for (int i = 0; i < graph_world.program->heaps; i++)
			graph_driver_collect_alone(i);
		apart(poll_often);
	}
}

void graph_model_round(bool is_last)
{
	/* So that no block is newborn at the last prediction. */
	if (is_last)
		collect_twice();
	check_heaps("at rest");
	observe();
	reach_all(false);
	apart(run_reached);
	reach_all(true);
	predict();
	collect_twice();
	check_heaps("after two cycles");
	observe();
	compare();
	for (int i = 0; i < graph_world.program->heaps; i++) {
		struct ch_stats stats = {.size = sizeof stats};
		graph_allow(ch_heap_stats(graph_world.heaps[i].heap, &stats), GRAPH_BIT(CH_OK),
			    "statistics");
		judge_counts(i, &stats);
		check_names(graph_world.heaps[i].heap);
	}
	GRAPH_COUNT(graph_rounds, 1);
}

void graph_model_child(void)
{
	check_heaps("in a child");
	observe();
	reach_all(false);
	run_reached();
	for (int i = 0; i < 2 * graph_world.program->heaps; i++)
		graph_driver_collect(i / 2);
	observe();
	for (uint32_t i = 1; i < node_count(); i++)
		if (graph_node(i)->is_reached && !graph_node(i)->is_there)
			graph_fail("block g%u must live and was freed in a child", i);
	run_reached();
	check_heaps("in a child, after two cycles");
}
