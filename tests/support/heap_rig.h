/* SPDX-License-Identifier: MIT
 * heap_rig.h: shared by tests of the public header: a heap of the run's page size and backend with
 * a vm and the calling thread attached, owners, blocks that return a number, and calls that leave
 * no trace on a stack that a conservative scan would see. */
#pragma once

#include "codeheap/codeheap.h"
#include "codeheap/collector.h"
#include "codeheap/look.h"
#include "tests/support/calls.h"
#include "tests/support/code.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

enum { RIG_FALLBACK = 0xfa11 };

/* The record of a block; earlier and later blocks have the same record. */
static inline uint32_t rig_record(struct ch_block block)
{
	return (uint32_t)block.bits & ((1 << 24) - 1);
}

struct rig {
	struct ch_heap *heap;
	struct ch_vm *vm;
};

/* The interpreter of these tests, which answers for missing code. */
static inline uint32_t rig_fallback(void)
{
	return RIG_FALLBACK;
}

/* CODEHEAP_TEST_PAGE chooses the page size, CODEHEAP_WX the backend. A cycle waits longer than by
 * default for a thread to stop, since a loaded machine may be slow. */
static inline struct ch_config rig_config(size_t pool_bytes)
{
	struct ch_config config;
	ch_config_init(&config);
	config.stop_wait_ms = TEST_PATIENCE_MS;
	config.pool_bytes = pool_bytes;
	config.page_bytes = test_page_bytes();
	if (config.pool_bytes && config.pool_bytes < config.page_bytes)
		config.pool_bytes = config.page_bytes;
	return config;
}

static inline size_t rig_page_bytes(void)
{
	return test_page_bytes() ? test_page_bytes() : 16384;
}

/* A branch without a link leads to the fallback in these tests. */
static inline struct ch_block rig_no_target(void *user, struct ch_branch branch, void *branch_user,
					    struct ch_regs *regs)
{
	struct ch_block none = {0};
	(void)user, (void)branch, (void)branch_user, (void)regs;
	return none;
}

/* A collect_wanted of a vm whose user word is a counter. */
static inline void rig_count_asked(void *user)
{
	++*(unsigned *)user;
}

static inline struct rig rig_create(const struct ch_config *config, const struct ch_ops *ops,
				    void *user)
{
	struct rig rig = {0};
	struct ch_ops own = {.size = sizeof own};
	if (ops)
		own = *ops;
	if (!own.branch_hit)
		own.branch_hit = rig_no_target;
	CHECK_EQ(ch_heap_create(config, &rig.heap), CH_OK);
	CHECK_EQ(ch_vm_attach(rig.heap, &own, user, &rig.vm), CH_OK);
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	return rig;
}

/* A heap with default settings and a small pool. */
static inline struct rig rig_start(size_t pool_bytes)
{
	struct ch_config config = rig_config(pool_bytes);
	return rig_create(&config, NULL, NULL);
}

static inline struct rig rig_start_host(size_t pool_bytes)
{
	struct ch_config config = rig_config(pool_bytes);
	config.driver = CH_DRIVER_HOST;
	return rig_create(&config, NULL, NULL);
}

static inline void rig_check(const struct rig *rig)
{
	char report[300];
	if (ch_heap_check(rig->heap, report, sizeof report) != CH_OK)
		FAIL("heap check: %s", report);
}

static inline struct ch_stats rig_stats(const struct rig *rig)
{
	struct ch_stats stats;
	memset(&stats, 0xaa, sizeof stats); /* the call writes each member */
	stats.size = sizeof stats;
	CHECK_EQ(ch_heap_stats(rig->heap, &stats), CH_OK);
	return stats;
}

/* Visits refs as a minor collection of a HOST heap does. */
static inline void rig_visit_refs(const struct rig *rig, enum ch_refs which,
				  uintptr_t (*visit)(void *, uintptr_t, bool *), void *arg)
{
	struct ch_marker *marker;
	CHECK_EQ(ch_mark_begin(rig->heap, &marker), CH_OK);
	CHECK_EQ(ch_refs_visit(marker, which, visit, arg), CH_OK);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
}

static inline void rig_end(struct rig *rig)
{
	rig_check(rig);
	CHECK_EQ(ch_vm_detach(rig->vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(rig->heap), CH_OK);
}

/* A case with a heap of its own, `rig`, which is checked and destroyed behind the body: a heap with
 * a pool of 1 MiB, or the one that the call `start` makes. */
#define TEST_RIG(name) TEST_RIG_BY(name, rig_start(1 << 20))
#define TEST_RIG_BY(name, start) TEST_WITH(name, struct rig, rig, start, rig_end(&rig))
/* The same where the file's functions share the heap `rig`. */
#define TEST_SHARED_RIG(name, start) TEST_BETWEEN(name, rig = start, rig_end(&rig))

/* --- owners and blocks --- */

static inline struct ch_owner rig_owner(const struct rig *rig, const char *name)
{
	struct ch_owner owner;
	CHECK_EQ(ch_owner_create(rig->vm, name, (const void *)(uintptr_t)rig_fallback, NULL,
				 &owner),
		 CH_OK);
	return owner;
}

/* A committed block of the owner, whose code returns the value; not entered yet. */
static inline struct ch_block rig_block(struct ch_owner owner, uint32_t value)
{
	struct emitter e;
	emit_open(&e, owner, 16, 0);
	emit_answer(&e, value);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

/* A committed block that jumps on through a branch, unlinked yet. */
static inline struct ch_block rig_jumper(struct ch_owner owner, void *user,
					 struct ch_branch *branch)
{
	struct emitter e;
	emit_open(&e, owner, 32, 1);
	*branch = emit_jmp(&e, user);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

/* A core may go on with fetched instructions: then released memory is free only after a cycle. */
static inline void rig_settle(const struct rig *rig)
{
	if (!CH_ARCH_FETCH_FOLLOWS)
		CHECK_EQ(ch_heap_collect(rig->heap), CH_OK);
}

static inline bool rig_is_there(struct ch_block block)
{
	struct ch_info info = {.size = sizeof info};
	return ch_block_info(block, &info) == CH_OK;
}

/* --- without a trace on the stack --- */

struct rig_call {
	const struct rig *rig;
	void (*fn)(const struct rig *, void *);
	void *arg;
};

static inline void rig_call_attached(void *arg)
{
	const struct rig_call *call = arg;
	CHECK_EQ(ch_thread_attach(call->rig->heap, NULL, NULL), CH_OK);
	call->fn(call->rig, call->arg);
	CHECK_EQ(ch_thread_detach(call->rig->heap), CH_OK);
}

/* Runs fn on an attached thread, which then ends; the caller is parked meanwhile. */
static inline void rig_apart(const struct rig *rig, void (*fn)(const struct rig *, void *),
			     void *arg)
{
	struct rig_call call = {rig, fn, arg};
	ch_thread_park();
	run_on_ended_thread(rig_call_attached, &call);
	ch_thread_unpark();
}

/* For rig_apart: takes a record, and gives it back. */
static inline void rig_open_and_abort(const struct rig *rig, void *owner)
{
	struct emitter e;
	(void)rig;
	emit_open(&e, *(struct ch_owner *)owner, 16, 0);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

static inline void rig_call_foreign(void *arg)
{
	const struct rig_call *call = arg;
	call->fn(call->rig, call->arg);
}

/* Runs fn on a thread that is not attached, with the caller detached, too: no stack is a root. */
static inline void rig_alone(const struct rig *rig, void (*fn)(const struct rig *, void *),
			     void *arg)
{
	struct rig_call call = {rig, fn, arg};
	CHECK_EQ(ch_thread_detach(rig->heap), CH_OK);
	run_on_ended_thread(rig_call_foreign, &call);
	CHECK_EQ(ch_thread_attach(rig->heap, NULL, NULL), CH_OK);
}

static inline void rig_collect_here(const struct rig *rig, void *arg)
{
	(void)arg;
	CHECK_EQ(ch_heap_collect(rig->heap), CH_OK);
}

/* A cycle of a HOST heap that reaches the owner, NULL for none, and what the stacks hold. */
static inline void rig_mark(const struct rig *rig, void *owner)
{
	struct ch_marker *marker;
	CHECK_EQ(ch_mark_begin(rig->heap, &marker), CH_OK);
	if (owner)
		ch_mark_owner(marker, *(struct ch_owner *)owner);
	ch_mark_stacks(marker);
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
}

/* Runs full cycles without this thread's stack. A block that nothing ever referred to dies in the
 * third cycle. */
static inline void rig_collect(const struct rig *rig, int cycles)
{
	while (cycles--)
		rig_alone(rig, rig_collect_here, NULL);
}
