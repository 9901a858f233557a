/* SPDX-License-Identifier: MIT
 * status.c: each documented status of each public function. A call that fails changes nothing:
 * statistics before and after are equal, and the heap check is clean. */
#include "os/os.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <ucontext.h>

static struct rig rig;
static struct ch_stats before;

static void expect_unchanged(int line)
{
	struct ch_stats after = rig_stats(&rig);
#define X(name)                                                                               \
	if (after.name != before.name && strcmp(#name, "freezes"))                            \
		FAIL("line %d: " #name " was %llu, is %llu", line,                            \
		     (unsigned long long)before.name, (unsigned long long)after.name);
	CH_STATS_LIST(X)
#undef X
	rig_check(&rig);
}

/* Checks that the call returns the status and changes nothing. */
#define FAILS(call, status)                       \
	do {                                      \
		before = rig_stats(&rig);         \
		CHECK_EQ((call), (status));       \
		expect_unchanged(__LINE__);       \
	} while (0)

static void start(void)
{
	rig = rig_start(1 << 20);
}

/* --- texts --- */

TEST(status_text_is_a_sentence_for_every_value)
{
	for (int s = CH_OK; s <= CH_E_BROKEN; s++) {
		CHECK(strlen(ch_status_text((enum ch_status)s)) > 5);
		for (int other = CH_OK; other < s; other++)
			CHECK(strcmp(ch_status_text((enum ch_status)s),
				     ch_status_text((enum ch_status)other)));
	}
	CHECK(ch_status_text((enum ch_status)1000) != NULL);
	CHECK(ch_status_text((enum ch_status)-1) != NULL);
}

/* --- heap --- */

static void refuses(struct ch_config config)
{
	struct ch_heap *heap = (struct ch_heap *)(uintptr_t)8;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_E_ARG);
	CHECK_EQ(heap, NULL);
}

TEST(heap_create_refuses_each_field_out_of_range)
{
	struct ch_config ok = rig_config(1 << 20), c;
	c = ok, c.size = 8, refuses(c);
	c = ok, c.pool_bytes = 3 << 20, refuses(c);
	c = ok, c.pool_bytes = (size_t)2 << 30, refuses(c);
	c = ok, c.page_bytes = 12288, refuses(c);
	c = ok, c.page_bytes = 2048, refuses(c);
	c = ok, c.page_bytes = 131072, refuses(c);
	c = ok, c.pool_bytes = 4096, c.page_bytes = 65536, refuses(c);
	c = ok, c.driver = (enum ch_driver)7, refuses(c);
	c = ok, c.backend = (enum ch_backend)9, refuses(c);
	c = ok, c.fork = (enum ch_fork)9, refuses(c);
	c = ok, c.stop_signal = 65, refuses(c);
	c = ok, c.stop_signal = -1, refuses(c);
	/* Two signals have no handlers, and the C library keeps two for itself. */
	c = ok, c.stop_signal = 9, refuses(c);
	c = ok, c.stop_signal = 19, refuses(c);
	c = ok, c.stop_signal = 32, refuses(c);
	c = ok, c.stop_signal = 33, refuses(c);
	c = ok, c.sinks = 1 << 9, refuses(c);
	c = ok, c.step_blocks = 65, refuses(c);
	c = ok, c.remembered_dead = 32, refuses(c);
	c = ok, c.remembered_dead = 96, refuses(c);
	c = ok, c.remembered_dead = 2 << 20, refuses(c);
}

TEST(heap_create_takes_no_configuration_at_all)
{
	struct ch_heap *heap;
	CHECK_EQ(ch_heap_create(NULL, &heap), CH_OK);
	struct ch_stats stats = {.size = sizeof stats};
	struct rlimit space;
	CHECK_EQ(getrlimit(RLIMIT_AS, &space), 0);
	bool is_small = space.rlim_cur != RLIM_INFINITY || CH_ARCH_POOL_LOG2 < 28;
	CHECK_EQ(ch_heap_stats(heap, &stats), CH_OK);
	CHECK_EQ(stats.pool_bytes, is_small ? 64 << 20 : 256 << 20);
	CHECK_EQ(stats.page_bytes, ch__os_page_bytes() > 16384 ? ch__os_page_bytes() : 16384);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

static void *attach_and_wait(void *arg)
{
	pthread_barrier_t *barrier = arg;
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	ch_thread_park();
	pthread_barrier_wait(barrier);
	pthread_barrier_wait(barrier);
	ch_thread_unpark();
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

TEST(heap_destroy_with_a_vm_or_a_thread_is_E_BUSY)
{
	start();
	pthread_barrier_t barrier;
	pthread_t thread;
	FAILS(ch_heap_destroy(rig.heap), CH_E_BUSY);
	CHECK_EQ(pthread_barrier_init(&barrier, NULL, 2), 0);
	CHECK_EQ(pthread_create(&thread, NULL, attach_and_wait, &barrier), 0);
	pthread_barrier_wait(&barrier);
	FAILS(ch_heap_destroy(rig.heap), CH_E_BUSY);
	CHECK_EQ(ch_vm_detach(rig.vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_E_BUSY);
	pthread_barrier_wait(&barrier);
	pthread_join(thread, NULL);
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
}

#define TEST_STATUS(name) TEST_BETWEEN(name, start(), rig_end(&rig))

TEST_STATUS(stats_of_another_size_are_E_ARG)
{
	struct ch_stats stats = {.size = 8, .pool_bytes = 77};
	FAILS(ch_heap_stats(rig.heap, &stats), CH_E_ARG);
	CHECK_EQ(stats.pool_bytes, 77);
}

/* --- vm, thread, fiber --- */

TEST_STATUS(vm_thread_fiber_calls_give_each_status)
{
	struct ch_vm *vm = rig.vm;
	struct ch_ops ops = {.size = 8};
	FAILS(ch_vm_attach(rig.heap, &ops, NULL, &vm), CH_E_ARG);
	CHECK_EQ(vm, NULL);
	FAILS(ch_vm_attach(rig.heap, NULL, NULL, &vm), CH_E_ARG);
	FAILS(ch_thread_attach(rig.heap, NULL, NULL), CH_E_THREAD);
	struct ch_fiber *fiber = (struct ch_fiber *)(uintptr_t)8;
	char stack[64];
	FAILS(ch_fiber_attach(rig.heap, stack + 8, stack + 8, &fiber), CH_E_ARG);
	CHECK_EQ(fiber, NULL);
	CHECK_EQ(ch_fiber_attach(rig.heap, stack, stack + 64, &fiber), CH_OK);
	CHECK_EQ(rig_stats(&rig).fibers_now, 1);
	ch_fiber_suspend(fiber, stack + 32);
	ch_fiber_resume(fiber);
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
	CHECK_EQ(rig_stats(&rig).fibers_now, 0);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	FAILS(ch_thread_detach(rig.heap), CH_E_THREAD);
	FAILS(ch_thread_attach(rig.heap, stack + 8, stack), CH_E_ARG);
	ch_thread_park(); /* no effect in an unattached thread */
	ch_thread_unpark();
	ch_thread_poll();
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
}

static void detach_twice(const struct rig *own, void *arg)
{
	struct ch_vm *vm;
	struct ch_ops ops = {.size = sizeof ops};
	struct ch_owner owner = {7};
	struct ch_assumption fact = {7};
	(void)arg;
	CHECK_EQ(ch_vm_attach(own->heap, &ops, NULL, &vm), CH_OK);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	FAILS(ch_vm_detach(vm), CH_E_STATE);
	FAILS(ch_owner_create(vm, "x", (void *)rig_fallback, NULL, &owner), CH_E_STATE);
	CHECK_EQ(owner.bits, 0);
	FAILS(ch_assumption_create(vm, &fact), CH_E_STATE);
	CHECK_EQ(fact.bits, 0);
}

TEST_STATUS(vm_that_was_detached_makes_nothing_and_is_not_detached_again)
{
	rig_apart(&rig, detach_twice, NULL);
}

TEST_STATUS(branch_without_an_exit_needs_a_callback)
{
	struct ch_vm *vm;
	struct ch_ops ops = {.size = sizeof ops};
	struct ch_owner owner;
	struct ch_branch branch = {7};
	struct emitter e;
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &vm), CH_OK);
	CHECK_EQ(ch_owner_create(vm, "x", (void *)rig_fallback, NULL, &owner), CH_OK);
	emit_open(&e, owner, 64, 1);
	struct ch_branch_site site = {.at = emit_site_jmp(&e), .kind = CH_JMP};
	FAILS(ch_branch_attach(e.code.block, &site, &branch), CH_E_ARG);
	CHECK_EQ(branch.bits, 0);
	site.exit = emit_here(&e);
	emit_ret(&e);
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
}

/* --- owner --- */

TEST_STATUS(owner_calls_give_each_status)
{
	struct ch_owner owner = {7}, other, none = {0};
	owner = rig_owner(&rig, "owner");
	other = rig_owner(&rig, "other");
	struct emitter e;
	emit_open(&e, owner, 16, 0);
	FAILS(ch_owner_set_entry(owner, e.code.block), CH_E_STATE);
	emit_answer(&e, 1);
	CHECK_EQ(emit_commit(&e), CH_OK);
	FAILS(ch_owner_set_entry(other, e.code.block), CH_E_ARG);
	FAILS(ch_owner_set_entry(none, e.code.block), CH_E_STALE);
	CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
	CHECK_EQ(code_call_owner(owner), 1);
	CHECK_EQ(ch_owner_set_entry(owner, (struct ch_block){0}), CH_OK);
	CHECK_EQ(code_call_owner(owner), RIG_FALLBACK);
	size_t count = 0;
	CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, &count), CH_OK);
	CHECK_EQ(count, 1);
	FAILS(ch_owner_set_entry(owner, e.code.block), CH_E_STATE);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	struct ch_owner_facts facts = {.size = sizeof facts};
	FAILS(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_E_STALE);
	FAILS(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_E_STALE);
	FAILS(ch_owner_set_entry(owner, (struct ch_block){0}), CH_E_STALE);
	rig_settle(&rig);
	FAILS(ch_owner_info(owner, &facts), CH_E_STALE);
	FAILS(ch_owner_info(none, &facts), CH_E_STALE);
	CHECK_EQ(ch_owner_cell(owner), NULL);
	CHECK_EQ(ch_owner_cell(none), NULL);
	CHECK_EQ(ch_owner_release(other, CH_RELEASE_COLLECT), CH_OK);
	FAILS(ch_owner_release(other, CH_RELEASE_COLLECT), CH_E_STALE);
	FAILS(ch_owner_set_entry(other, (struct ch_block){0}), CH_E_STALE);
}

TEST_STATUS(owner_info_tells_what_was_given)
{
	struct ch_owner owner;
	int word;
	CHECK_EQ(ch_owner_create(rig.vm, "sum-of-squares", (const void *)(uintptr_t)rig_fallback,
				 &word, &owner),
		 CH_OK);
	struct ch_block block = rig_block(owner, 3);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	struct ch_owner_facts facts = {.size = sizeof facts};
	CHECK_EQ(ch_owner_info(owner, &facts), CH_OK);
	CHECK_STR(facts.name, "sum-of-squares");
	CHECK_EQ(facts.user, &word);
	CHECK_EQ(facts.vm, rig.vm);
	CHECK_EQ(facts.entry.bits, block.bits);
	CHECK_EQ(facts.blocks_now, 1);
	CHECK_EQ(facts.code_bytes_now, rig_stats(&rig).code_bytes_now);
	CHECK(facts.metadata_bytes_now >= 56);
	CHECK(!facts.is_released);
	/* An OPEN block counts with its list, which has the name. */
	uint64_t metadata[2];
	for (int i = 0; i < 2; i++) {
		struct ch_open open = {
			.owner = owner, .hot_bytes = 16, .name = i ? "named" : NULL};
		struct emitter e;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		CHECK_EQ(ch_owner_info(owner, &facts), CH_OK);
		metadata[i] = facts.metadata_bytes_now;
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	}
	CHECK(metadata[0] < metadata[1]);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_owner_info(owner, &facts), CH_OK);
	CHECK(facts.is_released);
}

/* --- block --- */

static enum ch_status try_open(struct ch_open open)
{
	struct ch_code code;
	memset(&code, 0xff, sizeof code);
	enum ch_status status = ch_block_open(&open, &code);
	struct ch_code zero = {0};
	if (status != CH_OK)
		CHECK(!memcmp(&code, &zero, sizeof code));
	return status;
}

static void *commit_unattached(void *arg)
{
	CHECK_EQ(ch_block_commit(arg, 1), CH_E_THREAD);
	CHECK_EQ(ch_block_abort(arg), CH_E_THREAD);
	return NULL;
}

TEST_STATUS(block_open_gives_each_status)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_open ok = {.size = sizeof ok, .owner = owner, .hot_bytes = 64}, o;
	o = ok, o.size = 8;
	FAILS(try_open(o), CH_E_ARG);
	o = ok, o.hot_bytes = 0;
	FAILS(try_open(o), CH_E_ARG);
	o = ok, o.hot_bytes = UINT32_MAX;
	FAILS(try_open(o), CH_E_ARG);
	/* A size that never fits is CH_E_ARG, not a lack of room. */
	o = ok, o.hot_bytes = (uint32_t)rig_stats(&rig).pool_bytes;
	FAILS(try_open(o), CH_E_ARG);
	o.flags = CH_OPEN_IN_PLACE | CH_OPEN_MAY_COLLECT;
	FAILS(try_open(o), CH_E_ARG);
	o = ok, o.cold_bytes = UINT32_MAX;
	FAILS(try_open(o), CH_E_ARG);
	o = ok, o.branch_room = UINT32_MAX;
	FAILS(try_open(o), CH_E_ARG);
	o = ok, o.entry = (enum ch_entry)5;
	FAILS(try_open(o), CH_E_ARG);
	o = ok, o.frame = 200;
	FAILS(try_open(o), CH_E_ARG);
	o = ok, o.frame = CH_FRAME_STEPS + 1; /* never registered */
	FAILS(try_open(o), CH_E_ARG);
	o = ok, o.flags = 0x4000;
	FAILS(try_open(o), CH_E_ARG);
	o = ok, o.owner.bits = 0;
	FAILS(try_open(o), CH_E_ARG);
	struct ch_code code;
	CHECK_EQ(ch_block_open(&ok, &code), CH_OK);
	before = rig_stats(&rig);
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, commit_unattached, &code), 0);
	pthread_join(thread, NULL);
	expect_unchanged(__LINE__);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	FAILS(try_open(ok), CH_E_STALE);
}

static enum ch_status commit_as(struct ch_code code, uint32_t from, uint32_t to, uint32_t cold,
				uint32_t entry)
{
	code.used_from = from;
	code.used_to = to;
	code.cold_used = cold;
	code.entry_offset = entry;
	return ch_block_commit(&code, 1);
}

TEST_STATUS(block_commit_and_abort_give_each_status)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_open open = {.owner = owner, .hot_bytes = 64, .cold_bytes = 16};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 5);
	uint32_t hot = e.code.hot_bytes;
	FAILS(commit_as(e.code, 0, 0, 0, 0), CH_E_ARG);
	FAILS(commit_as(e.code, 0, hot + 1, 0, 0), CH_E_ARG);
	FAILS(commit_as(e.code, 16, 16, 0, 16), CH_E_ARG);
	FAILS(commit_as(e.code, 4, 16, 0, 4), CH_E_ARG);
	FAILS(commit_as(e.code, 8, 16, 0, 0), CH_E_ARG);
	FAILS(commit_as(e.code, 0, 16, 0, 16), CH_E_ARG);
	FAILS(commit_as(e.code, 0, 16, e.code.cold_bytes + 1, 0), CH_E_ARG);
	FAILS(ch_block_commit(&e.code, 0), CH_E_ARG);
	struct ch_code none = {0};
	FAILS(ch_block_commit(&none, 1), CH_E_STATE);
	FAILS(ch_block_abort(&none), CH_E_STATE);
	CHECK_EQ(emit_commit(&e), CH_OK);
	FAILS(ch_block_commit(&e.code, 1), CH_E_STATE);
	FAILS(ch_block_abort(&e.code), CH_E_STATE);
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	FAILS(ch_block_abort(&e.code), CH_E_STATE);
	FAILS(ch_block_commit(&e.code, 1), CH_E_STATE);
	CHECK_EQ(rig_stats(&rig).blocks_aborted, 1);
}

TEST_STATUS(block_info_and_each_give_what_was_opened)
{
	struct ch_owner owner = rig_owner(&rig, "method");
	int word;
	struct ch_open open = {.owner = owner,
			       .hot_bytes = 64,
			       .cold_bytes = 8,
			       .branch_room = 2,
			       .name = "loop 3",
			       .user = &word};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	struct ch_info info = block_info(e.code.block);
	CHECK_EQ(info.state, CH_BLOCK_OPEN);
	CHECK_EQ(info.entry, NULL);
	emit_jmp(&e, NULL);
	CHECK_EQ(emit_commit(&e), CH_OK);
	info = block_info(e.code.block);
	CHECK_EQ(info.state, CH_BLOCK_LIVE);
	CHECK_EQ(info.entry, e.code.exec);
	CHECK_EQ(info.exec, e.code.exec);
	CHECK_EQ(info.user, &word);
	CHECK_EQ(info.owner.bits, owner.bits);
	CHECK_EQ(info.vm, rig.vm);
	CHECK_EQ(info.branches_now, 1);
	CHECK_EQ(info.block.bits, e.code.block.bits);
	CHECK(info.hot_bytes >= e.at && info.cold_bytes >= 16);
	struct ch_block none = {0}, foreign = {e.code.block.bits ^ ((uint64_t)2 << 32)};
	FAILS(ch_block_info(none, &info), CH_E_STALE);
	FAILS(ch_block_info(foreign, &info), CH_E_STALE);
}

static bool count_blocks(void *arg, const struct ch_info *info)
{
	int *left = arg;
	CHECK(info->state != CH_BLOCK_FREE);
	return --*left > 0;
}

TEST_STATUS(block_each_visits_all_and_ends_when_told)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	for (uint32_t i = 0; i < 10; i++)
		rig_block(owner, i);
	int left = 100;
	CHECK_EQ(ch_block_each(rig.heap, NULL, count_blocks, &left), CH_OK);
	CHECK_EQ(left, 90);
	left = 3;
	CHECK_EQ(ch_block_each(rig.heap, NULL, count_blocks, &left), CH_OK);
	CHECK_EQ(left, 0);
}

TEST_STATUS(veneer_is_shared_and_full_at_last)
{
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "owner"), 64, 0);
	const void *at, *again;
	CHECK_EQ(ch_block_veneer(&e.code, (const void *)(uintptr_t)rig_fallback, &at), CH_OK);
	CHECK_EQ(ch_block_veneer(&e.code, (const void *)(uintptr_t)rig_fallback, &again), CH_OK);
	CHECK_EQ(at, again);
	CHECK_EQ(code_call(at), RIG_FALLBACK);
	CHECK((uintptr_t)at - (uintptr_t)e.code.exec + ((uintptr_t)1 << 31) < (uintptr_t)1 << 32);
	enum ch_status status = CH_OK;
	uintptr_t target = 1;
	for (; status == CH_OK && target < 100000; target++)
		status = ch_block_veneer(&e.code, (const void *)target, &at);
	CHECK_EQ(status, CH_E_FULL);
	CHECK_EQ(at, NULL);
	FAILS(ch_block_veneer(&e.code, (const void *)target, &at), CH_E_FULL);
	/* The pool is empty: a VM that collects and tries again does so in vain. */
	CHECK(strstr(ch_why(), "full for good"));
	CHECK(!strstr(ch_status_text(CH_E_FULL), "the pool has no room"));
	CHECK(target * 24 + 256 > rig_stats(&rig).page_bytes); /* as the header says, or more */
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	FAILS(ch_block_veneer(&e.code, (const void *)target, &at), CH_E_FULL);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	FAILS(ch_block_veneer(&e.code, (const void *)(uintptr_t)rig_fallback, &at), CH_E_STATE);
}

/* --- graph --- */

static enum ch_status try_branch(struct ch_block block, const void *at, enum ch_branch_kind kind,
				 const void *exit)
{
	struct ch_branch_site site = {.at = at, .kind = kind, .exit = exit};
	struct ch_branch branch = {1};
	enum ch_status status = ch_branch_attach(block, &site, &branch);
	CHECK((status == CH_OK) == (branch.bits != 0));
	return status;
}

TEST_STATUS(branch_attach_gives_each_status)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e;
	emit_open(&e, owner, 128, 1);
	struct ch_block block = e.code.block;
	const void *jmp = emit_site_jmp(&e);
	emit_nops(&e, 16);
	FAILS(try_branch((struct ch_block){0}, jmp, CH_JMP, NULL), CH_E_STALE);
	FAILS(try_branch(block, jmp, CH_CALL, NULL), CH_E_SITE);
	FAILS(try_branch(block, jmp, (enum ch_branch_kind)9, NULL), CH_E_ARG);
	FAILS(try_branch(block, e.code.exec - 4, CH_JMP, NULL), CH_E_ARG);
	FAILS(try_branch(block, e.code.exec + e.code.hot_bytes - 3, CH_JMP, NULL), CH_E_ARG);
	FAILS(try_branch(block, jmp, CH_JMP, (const void *)((uintptr_t)1 << 62)), CH_E_REACH);
	uint8_t *misaligned = e.code.write + 64;
	while ((((uintptr_t)misaligned + 1) & 7) <= 4)
		misaligned++;
	*misaligned = 0xe9;
	FAILS(try_branch(block, e.code.exec + (misaligned - e.code.write), CH_JMP, NULL),
	      CH_E_SITE);
	CHECK_EQ(try_branch(block, jmp, CH_JMP, NULL), CH_OK);
	FAILS(try_branch(block, jmp, CH_JMP, NULL), CH_E_FULL);
	CHECK_EQ(emit_commit(&e), CH_OK);
	FAILS(try_branch(block, jmp, CH_JMP, NULL), CH_E_FULL);
	CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
	FAILS(try_branch(block, jmp, CH_JMP, NULL), CH_E_STATE);
}

TEST_STATUS(branch_link_gives_each_status)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e;
	emit_open(&e, owner, 64, 2);
	struct ch_branch jmp = emit_attach(&e, emit_site_jmp(&e), CH_JMP, NULL);
	struct ch_branch lea = emit_attach(&e, emit_site_lea(&e), CH_LEA, NULL);
	struct ch_block target = rig_block(owner, 9), none = {0}, stale = {target.bits + 2};
	FAILS(ch_branch_link(jmp, target), CH_E_STATE); /* the branch's block is OPEN */
	CHECK_EQ(emit_commit(&e), CH_OK);
	FAILS(ch_branch_link((struct ch_branch){0}, target), CH_E_STALE);
	FAILS(ch_branch_link(jmp, stale), CH_E_STALE);
	FAILS(ch_branch_link(lea, target), CH_E_STATE); /* ENTRY_NONE */
	struct emitter other;
	emit_open(&other, owner, 16, 0);
	FAILS(ch_branch_link(jmp, other.code.block), CH_E_STATE);
	CHECK_EQ(ch_block_abort(&other.code), CH_OK);
	FAILS(ch_branch_link(jmp, other.code.block), CH_E_STALE);
	CHECK_EQ(ch_branch_link(jmp, target), CH_OK);
	CHECK_EQ(code_call(e.code.exec), 9);
	CHECK_EQ(ch_branch_link(jmp, none), CH_OK);
	CHECK_EQ(ch_blocks_invalidate(&target, 1, NULL), CH_OK);
	FAILS(ch_branch_link(jmp, target), CH_E_STATE);
	CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
	struct ch_block fresh = rig_block(owner, 1);
	FAILS(ch_branch_link(jmp, fresh), CH_E_STATE);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	FAILS(ch_branch_link(jmp, none), CH_E_STALE);
}

TEST_STATUS(attachments_give_each_status)
{
	struct ch_owner owner = rig_owner(&rig, "owner"), dead = rig_owner(&rig, "dead");
	CHECK_EQ(ch_owner_release(dead, CH_RELEASE_NOT_RUNNING), CH_OK);
	struct ch_block live = rig_block(owner, 1), none = {0};
	struct ch_info info = block_info(live);
	struct emitter e;
	emit_open(&e, owner, 64, 0);
	const void *end = e.code.exec + e.code.hot_bytes;
	FAILS(ch_edge_attach(none, live), CH_E_STALE);
	FAILS(ch_edge_attach(live, live), CH_E_STATE);
	FAILS(ch_edge_attach(e.code.block, none), CH_E_STALE);
	CHECK_EQ(ch_edge_attach(e.code.block, live), CH_OK);
	FAILS(ch_edge_attach_owner(none, owner), CH_E_STALE);
	FAILS(ch_edge_attach_owner(live, owner), CH_E_STATE);
	FAILS(ch_edge_attach_owner(e.code.block, dead), CH_E_STALE);
	CHECK_EQ(ch_edge_attach_owner(e.code.block, owner), CH_OK);
	FAILS(ch_ref_attach(none, e.code.exec), CH_E_STALE);
	FAILS(ch_ref_attach(live, info.exec), CH_E_STATE);
	FAILS(ch_ref_attach(e.code.block, (const uint8_t *)end - 7), CH_E_ARG);
	FAILS(ch_ref_attach(e.code.block, &end), CH_E_ARG);
	CHECK_EQ(ch_ref_attach(e.code.block, (const uint8_t *)end - 8), CH_OK);
	EMIT(&e, 0x90, 0x90, 0x90);
	const void *at = emit_point(&e);
	FAILS(ch_patch_point_attach(none, at, at, NULL), CH_E_STALE);
	FAILS(ch_patch_point_attach(live, info.exec, info.exec, NULL), CH_E_STATE);
	FAILS(ch_patch_point_attach(e.code.block, end, at, NULL), CH_E_ARG);
	FAILS(ch_patch_point_attach(e.code.block, at, (const void *)((uintptr_t)1 << 62), NULL),
	      CH_E_ARG);
	/* Near the pool, and before it: a pool of 1 MiB begins at a multiple of 1 MiB. */
	CHECK_EQ(rig_stats(&rig).pool_bytes, 1 << 20);
	uintptr_t pool = (uintptr_t)at & ~(uintptr_t)((1 << 20) - 1);
	FAILS(ch_patch_point_attach(e.code.block, at, (const void *)(pool - 64), NULL), CH_E_ARG);
	FAILS(ch_patch_point_attach(e.code.block, at, (const uint8_t *)end + 256, NULL), CH_E_ARG);
	CHECK_EQ(ch_patch_point_attach(e.code.block, at, info.exec, NULL), CH_OK);
	struct ch_assumption fact, no_fact = {0};
	CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
	FAILS(ch_block_assume(none, fact), CH_E_STALE);
	FAILS(ch_block_assume(live, fact), CH_E_STATE);
	FAILS(ch_block_assume(e.code.block, no_fact), CH_E_STALE);
	size_t count = 7;
	FAILS(ch_assumption_break(no_fact, &count), CH_E_STALE);
	CHECK_EQ(count, 0);
	CHECK_EQ(ch_assumption_break(fact, NULL), CH_OK);
	FAILS(ch_assumption_break(fact, NULL), CH_E_STALE);
	FAILS(ch_block_assume(e.code.block, fact), CH_E_STALE);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

TEST(an_assumption_of_another_heap_is_stale)
{
	start();
	struct ch_assumption first, second;
	CHECK_EQ(ch_assumption_create(rig.vm, &first), CH_OK);
	struct rig mine = rig;
	start();
	CHECK_EQ(ch_assumption_create(rig.vm, &second), CH_OK);
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "owner"), 16, 0);
	FAILS(ch_block_assume(e.code.block, first), CH_E_STALE);
	CHECK_EQ(ch_block_assume(e.code.block, second), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	rig_end(&rig);
	rig_end(&mine);
}

/* --- invalidate, collect, look --- */

TEST_STATUS(invalidate_passes_over_the_dead_and_refuses_the_open)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e;
	emit_open(&e, owner, 16, 0);
	struct ch_block blocks[4] = {rig_block(owner, 1), {0}, e.code.block, rig_block(owner, 2)};
	size_t count = 9;
	FAILS(ch_blocks_invalidate(blocks, 4, &count), CH_E_STATE);
	CHECK_EQ(count, 0);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(ch_blocks_invalidate(blocks, 4, &count), CH_OK);
	CHECK_EQ(count, 2);
	CHECK_EQ(ch_blocks_invalidate(blocks, 4, &count), CH_OK);
	CHECK_EQ(count, 0);
	CHECK_EQ(block_info(blocks[0]).state, CH_BLOCK_NOTENTRANT);
	CHECK_EQ(block_info(blocks[0]).entry, NULL);
	FAILS(ch_blocks_invalidate(blocks, 0, &count), CH_OK);
}

static uintptr_t same_word(void *arg, uintptr_t word, bool *is_young)
{
	(void)arg;
	*is_young = false;
	return word;
}

TEST(collect_calls_belong_to_their_driver)
{
	start();
	struct ch_marker *marker;
	FAILS(ch_mark_begin(rig.heap, &marker), CH_E_STATE);
	CHECK_EQ(marker, NULL);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	rig_end(&rig);
	struct ch_config config = rig_config(1 << 20);
	config.driver = CH_DRIVER_HOST;
	rig = rig_create(&config, NULL, NULL);
	FAILS(ch_heap_collect(rig.heap), CH_E_STATE);
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
	CHECK_EQ(ch_refs_visit(marker, CH_REFS_ALL, same_word, NULL), CH_OK);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	CHECK_EQ(rig_stats(&rig).cycles_abandoned, 0);
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
	ch_mark_owner(marker, (struct ch_owner){0});
	ch_mark_stacks(marker);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	CHECK_EQ(rig_stats(&rig).cycles, 0);
	CHECK_EQ(rig_stats(&rig).cycles_abandoned, 1);
	rig_end(&rig);
}

TEST_STATUS(lookup_of_foreign_addresses_finds_none)
{
	struct ch_block block = {5};
	CHECK(!block_at(rig.heap, &rig, &block));
	CHECK_EQ(block.bits, 0);
	CHECK(!block_at(rig.heap, NULL, &block));
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block made = rig_block(owner, 1);
	struct ch_info info = block_info(made);
	for (uint32_t i = 0; i < info.hot_bytes; i++) {
		CHECK(block_at(rig.heap, info.exec + i, &block));
		CHECK_EQ(block.bits, made.bits);
	}
	CHECK(!block_at(rig.heap, info.exec + info.hot_bytes, &block));
	const void *pcs[32];
	CHECK(ch_backtrace(rig.heap, CH_BACKTRACE_FRAMES, NULL, pcs, 32) >= 1);
	CHECK_EQ(ch_backtrace(rig.heap, CH_BACKTRACE_FRAMES, NULL, pcs, 0), 0);
}

/* --- frames and sinks --- */

TEST_STATUS(frame_register_gives_each_status)
{
	uint8_t frame = 9;
	/* cfa = rsp + 8, ra at -8; each DW_CFA_nop behind makes other bytes. */
	static const uint8_t leaf[5 + 13] = {0x0c, 0x07, 0x08, 0x90, 0x01};
	FAILS(ch_frame_register(rig.heap, NULL, 5, &frame), CH_E_ARG);
	CHECK_EQ(frame, 0);
	FAILS(ch_frame_register(rig.heap, leaf, 0, &frame), CH_E_ARG);
	FAILS(ch_frame_register(rig.heap, leaf, 65, &frame), CH_E_ARG);
	int shapes = 0;
	while (ch_frame_register(rig.heap, leaf, (size_t)(5 + shapes), &frame) == CH_OK) {
		CHECK_EQ(frame, CH_FRAME_STEPS + ++shapes);
		struct ch_open open = {.owner = rig_owner(&rig, "leaf"),
				       .hot_bytes = 16,
				       .frame = frame};
		struct emitter e;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	}
	CHECK_EQ(shapes, 12);
	FAILS(ch_frame_register(rig.heap, leaf, sizeof leaf, &frame), CH_E_FULL);
	for (int i = 0; i < shapes; i++) {
		CHECK_EQ(ch_frame_register(rig.heap, leaf, (size_t)(5 + i), &frame), CH_OK);
		CHECK_EQ(frame, CH_FRAME_STEPS + 1 + i);
	}
}

TEST_STATUS(sinks_can_be_switched_and_say_why_not)
{
	const char *path;
	int failed;
	FAILS(ch_sink_set(rig.heap, 1 << 7), CH_E_ARG);
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_NONE), CH_OK);
	CHECK(!ch_sink_status(rig.heap, CH_SINK_UNWIND, &path, &failed));
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_UNWIND), CH_OK);
	CHECK(ch_sink_status(rig.heap, CH_SINK_UNWIND, &path, &failed));
	CHECK_EQ(failed, 0);
	CHECK_STR(path, "");
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	CHECK(ch_sink_status(rig.heap, CH_SINK_UNWIND, NULL, NULL));
}

static bool count_sites(void *arg, const struct ch_site *site)
{
	int *counts = arg;
	counts[site->kind]++;
	if (site->kind == CH_SITE_REF)
		CHECK_EQ(site->word, 0x1234567890abcdef);
	if (site->kind == CH_SITE_PATCH_POINT)
		CHECK_EQ(site->user, (void *)(uintptr_t)0xfedcba9876543210);
	return true;
}

TEST_STATUS(block_sites_visits_all_that_is_attached)
{
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "owner"), 64, 2);
	const void *ref = emit_ref_word(&e, 0x1234567890abcdef);
	CHECK_EQ(ch_ref_attach(e.code.block, ref), CH_OK);
	const void *point = emit_point(&e);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, e.code.exec,
				       (void *)(uintptr_t)0xfedcba9876543210),
		 CH_OK);
	emit_jmp(&e, NULL);
	CHECK_EQ(emit_commit(&e), CH_OK);
	int counts[4] = {0};
	CHECK_EQ(ch_block_sites(e.code.block, count_sites, counts), CH_OK);
	for (int kind = 0; kind < 4; kind++)
		CHECK_EQ(counts[kind], 1);
	FAILS(ch_block_sites((struct ch_block){0}, count_sites, counts), CH_E_STALE);
}

TEST_STATUS(trap_describe_leaves_foreign_signals_alone)
{
	char text[100] = "untouched";
	siginfo_t info = {.si_signo = SIGSEGV, .si_addr = &info};
	ucontext_t context;
	memset(&context, 0, sizeof context);
	CHECK_EQ(ch_trap_describe(rig.heap, &info, &context, text, sizeof text), 0);
	CHECK_STR(text, "");
}
