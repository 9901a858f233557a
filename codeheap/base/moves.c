/* SPDX-License-Identifier: MIT
 * moves.c: the legal moves of blocks, owners, branches, gates, assumptions and threads (I20). Empty
 * in a build without these checks.
 *
 * A row's function makes the move, under the row's locks; no other move exists. A dead owner keeps
 * its state until its last block is free. A record on a free list is FREE or NONE. */
#include "codeheap/base/heap.h"

#if CH_CHECK >= 2

#define REGION CH__IN_REGION
#define HEAP CH__UNDER_HEAP
#define HEAP_AND_REGION (CH__UNDER_HEAP | CH__IN_REGION)
#define HELD (CH__UNDER_HEAP | CH__IN_REGION | CH__UNDER_OWNER)

struct ch__moves ch__block_moves = {
	.noun = "block",
	.states = {"FREE", "OPEN", "LIVE", "NOTENTRANT", "DEAD"},
	.rows = {
		/* The place is reserved; the generation becomes odd afterwards. */
		{"write_record", CH_BLOCK_FREE, CH_BLOCK_OPEN, REGION},
		/* The owner died meanwhile: the generation stays even. */
		{"write_record", CH_BLOCK_OPEN, CH_BLOCK_FREE, REGION},
		/* The instruction cache and the sinks were told before. */
		{"go_live", CH_BLOCK_OPEN, CH_BLOCK_LIVE, REGION},
		/* Entry, cell, branches and patch points lead elsewhere (I13). */
		{"ch__invalidate_block", CH_BLOCK_LIVE, CH_BLOCK_NOTENTRANT, HELD},
		/* An abort, a stale commit, a child of fork without the thread or code. */
		{"kill", CH_BLOCK_OPEN, CH_BLOCK_DEAD, HELD},
		/* The sweep of a dead block; NOT_RUNNING; a child of fork without code. */
		{"kill", CH_BLOCK_LIVE, CH_BLOCK_DEAD, HELD},
		{"kill", CH_BLOCK_NOTENTRANT, CH_BLOCK_DEAD, HELD},
		/* Withdrawn, trapped, place back (I8), notice given. */
		{"ch__block_recycle", CH_BLOCK_DEAD, CH_BLOCK_FREE, HEAP},
	},
};

struct ch__moves ch__owner_moves = {
	.noun = "owner",
	.states = {"NONE", "LIVE", "RELEASING", "RELEASED"},
	.rows = {
		{"ch__owner_make", CH__OWNER_NONE, CH__OWNER_LIVE, HEAP_AND_REGION},
		/* From anywhere, in one step. The record then belongs to the releasing thread. */
		{"ch__owner_let_go", CH__OWNER_LIVE, CH__OWNER_RELEASING, 0},
		/* The cell leads to the fallback. */
		{"end_release", CH__OWNER_RELEASING, CH__OWNER_RELEASED, 0},
		/* A collector found the owner dead: host and Boehm. */
		{"ch__owner_try_free", CH__OWNER_LIVE, CH__OWNER_NONE, HEAP_AND_REGION},
		{"ch__owner_try_free", CH__OWNER_RELEASED, CH__OWNER_NONE, HEAP_AND_REGION},
	},
};

struct ch__moves ch__branch_moves = {
	.noun = "branch",
	.states = {"NONE", "UNLINKED", "LINKED"},
	.rows = {
		/* For a LIVE block, under heap too. */
		{"attach", CH__BRANCH_NONE, CH__BRANCH_UNLINKED, REGION},
		{"link_locked", CH__BRANCH_UNLINKED, CH__BRANCH_LINKED, HEAP_AND_REGION},
		{"unlink_branch", CH__BRANCH_LINKED, CH__BRANCH_UNLINKED, HEAP_AND_REGION},
		{"ch__branches_free", CH__BRANCH_UNLINKED, CH__BRANCH_NONE, HEAP},
	},
};

/* An entry of either kind, or a patch point. The index is the place in the pool. */
struct ch__moves ch__gate_moves = {
	.noun = "gate",
	.states = {"OPEN", "SHUT"},
	.rows = {
		{"shut", CH__GATE_OPEN, CH__GATE_SHUT, HEAP_AND_REGION},
		{"shut_entry", CH__GATE_OPEN, CH__GATE_SHUT, HEAP_AND_REGION},
	},
};

struct ch__moves ch__assumption_moves = {
	.noun = "assumption",
	.states = {"NONE", "HOLDS"},
	.rows = {
		{"ch_assumption_create", CH__ASSUMPTION_NONE, CH__ASSUMPTION_HOLDS, HEAP},
		{"ch_assumption_break", CH__ASSUMPTION_HOLDS, CH__ASSUMPTION_NONE, HEAP},
	},
};

/* A thread moves itself, with two exceptions: the collector stands in for the thread that collects,
 * and a child of fork for threads that do not exist. The last four rows are the Boehm driver's. */
struct ch__moves ch__thread_moves = {
	.noun = "thread",
	.states = {"RUNNING", "PARKED", "SIGNALLED"},
	.rows = {
		{"attach", CH__PARKED, CH__RUNNING, CH__UNDER_REGISTRY},
		{"ch_thread_detach", CH__RUNNING, CH__PARKED, CH__UNDER_REGISTRY},
		{"drop_other_threads", CH__RUNNING, CH__PARKED, CH__UNDER_REGISTRY},
		{"drop_other_threads", CH__SIGNALLED, CH__PARKED, CH__UNDER_REGISTRY},
		{"park_with", CH__RUNNING, CH__PARKED, 0},
		{"run_parked", CH__PARKED, CH__RUNNING, 0},
		/* The world is stopping: the thread goes back. */
		{"run_parked", CH__RUNNING, CH__PARKED, 0},
		{"stop_from", CH__RUNNING, CH__SIGNALLED, 0},
		{"run_signalled", CH__SIGNALLED, CH__RUNNING, 0},
		{"run_signalled", CH__RUNNING, CH__SIGNALLED, 0},
		{"stop_with", CH__RUNNING, CH__SIGNALLED, 0},
		{"stop_with", CH__SIGNALLED, CH__RUNNING, 0},
		{"publish_collector", CH__RUNNING, CH__SIGNALLED, 0},
		{"publish_collector", CH__SIGNALLED, CH__RUNNING, 0},
	},
};

#endif
