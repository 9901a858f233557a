/* SPDX-License-Identifier: MIT
 * full.c: a full pool still serves: a status, invalidation without space, then room after a
 * collection. Callbacks come exactly when promised. Then spans and fragmentation. */
#include "codeheap/base/park.h"
#include "tests/support/full_rig.h"
#include "tests/support/stage_code.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static int wanted_calls, space_calls;
static void *last_user;

static void count_wanted(void *user)
{
	last_user = user;
	wanted_calls++;
}
static void count_space(void *user)
{
	last_user = user;
	space_calls++;
}

static struct rig start_pages(size_t pages)
{
	struct ch_config config = rig_config(pages * rig_page_bytes());
	struct ch_ops ops = {
		.size = sizeof ops, .collect_wanted = count_wanted, .space_free = count_space};
	wanted_calls = space_calls = 0;
	return rig_create(&config, &ops, &wanted_calls);
}

TEST(a_full_pool_serves_again_after_a_collection)
{
	for (size_t pages = 1; pages <= 4; pages *= 2) {
		struct rig rig = start_pages(pages);
		struct filled f = fill_pool(&rig, pages, 60);
		CHECK_EQ(f.count, pages * (rig_page_bytes() / 72));
		CHECK(wanted_calls == 1 && last_user == &wanted_calls);
		CHECK_EQ(rig_stats(&rig).opens_full, 1);
		CHECK_EQ(space_calls, 0);
		rig_check(&rig);
		/* All code still runs, and invalidation needs no space. */
		for (uint32_t i = 0; i < f.count; i++)
			CHECK_EQ(code_call_owner(f.owners[i]), i);
		size_t count;
		CHECK_EQ(ch_blocks_invalidate(f.blocks, f.count - 1, &count), CH_OK);
		CHECK_EQ(count, f.count - 1);
		CHECK_EQ(ch_blocks_invalidate(&f.blocks[f.count - 1], 1, &count), CH_OK);
		CHECK_EQ(count, 1);
		for (uint32_t i = 0; i < f.count; i++)
			CHECK_EQ(code_call_owner(f.owners[i]), RIG_FALLBACK);
		CHECK_EQ(space_calls, 0);
		rig_collect(&rig, 1);
		ch_thread_poll();
		CHECK_EQ(space_calls, 1);
		rig_collect(&rig, 2);
		ch_thread_poll();
		CHECK_EQ(space_calls, 1);
		CHECK_EQ(rig_stats(&rig).blocks_now, 0);
		CHECK_EQ(try_open(f.owners[0], 60, 0), CH_OK);
		forget(&f);
		struct filled again = fill_pool(&rig, pages, 60);
		CHECK_EQ(again.count, f.count);
		forget(&again);
		rig_end(&rig);
	}
}

TEST_RIG_BY(space_is_not_told_before_it_came, start_pages(2))
{
	/* A sweep frees blocks before the second fill wants space. */
	struct filled f = fill_pool(&rig, 2, 60);
	for (uint32_t i = 0; i < f.count; i++)
		CHECK_EQ(ch_owner_release(f.owners[i], CH_RELEASE_COLLECT), CH_OK);
	rig_collect(&rig, 1);
	ch_thread_poll();
	CHECK_EQ(space_calls, 1);
	forget(&f);
	f = fill_pool(&rig, 2, 60);
	ch_thread_poll();
	CHECK_EQ(space_calls, 1);
	rig_collect(&rig, 1); /* nothing is dead */
	ch_thread_poll();
	CHECK_EQ(space_calls, 1);
	/* A release frees a single block at once. */
	CHECK_EQ(ch_owner_release(f.owners[0], CH_RELEASE_NOT_RUNNING), CH_OK);
	ch_thread_poll();
	CHECK_EQ(space_calls, 2);
	/* A full page is looked at again when a 32nd of the page came free. */
	uint32_t some = 2 + (uint32_t)rig_page_bytes() / 32 / 64;
	for (uint32_t i = 1; i < some; i++)
		CHECK_EQ(ch_owner_release(f.owners[i], CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(try_open(f.owners[some], 60, 0), CH_OK);
	forget(&f);
}

TEST_RIG_BY(may_collect_collects_once_and_then_says_full, start_pages(4))
{
	struct filled f = fill_pool(&rig, 4, 60);
	uint64_t cycles = rig_stats(&rig).cycles;
	for (int i = 1; i <= 20; i++) {
		CHECK_EQ(try_open(f.owners[0], 60, CH_OPEN_MAY_COLLECT), CH_E_FULL);
		CHECK_EQ(rig_stats(&rig).cycles, cycles + (uint64_t)i);
		CHECK_EQ(try_open(f.owners[0], 60, 0), CH_E_FULL);
		CHECK_EQ(rig_stats(&rig).cycles, cycles + (uint64_t)i);
	}
	/* A cycle has at most one request, however many opens fail. */
	CHECK(wanted_calls <= 1 + 20);
	for (uint32_t i = 1; i < f.count; i += 2)
		CHECK_EQ(ch_owner_release(f.owners[i], CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(try_open(f.owners[0], 60, 0), CH_E_FULL);
	CHECK_EQ(try_open(f.owners[0], 60, CH_OPEN_MAY_COLLECT), CH_OK);
	for (uint32_t i = 0; i < f.count; i += 2)
		CHECK_EQ(code_call_owner(f.owners[i]), i);
	rig_check(&rig);
	forget(&f);
}

TEST_RIG_BY(a_loop_of_failing_opens_does_not_ask_for_ever, start_pages(2))
{
	struct filled f = fill_pool(&rig, 2, 60);
	for (int i = 0; i < 1000; i++) {
		CHECK_EQ(try_open(f.owners[0], 60, 0), CH_E_FULL);
		ch_thread_poll();
	}
	CHECK_EQ(wanted_calls, 1);
	CHECK_EQ(rig_stats(&rig).opens_full, 1001);
	CHECK_EQ(rig_stats(&rig).cycles, 0);
	forget(&f);
}

static _Atomic(int) step;

static void *hold_registry(void *arg)
{
	struct ch_heap *heap = arg;
	ch__registry_lock(heap);
	atomic_store(&step, 1);
	TEST_UNTIL(atomic_load(&step) == 2);
	ch__registry_unlock(heap);
	return NULL;
}

TEST_RIG_BY(open_whose_collection_was_given_up_speaks_of_no_collection_that_was_made,
	    start_pages(2))
{
	pthread_t thread;
	struct filled f = fill_pool(&rig, 2, 60);
	uint32_t patience_ms = rig.heap->config.stop_wait_ms;
	CHECK_EQ(try_open(f.owners[0], 60, CH_OPEN_MAY_COLLECT), CH_E_FULL);
	CHECK(strstr(ch_why(), ", after a collection"));
	CHECK_EQ(pthread_create(&thread, NULL, hold_registry, rig.heap), 0);
	TEST_UNTIL(atomic_load(&step) == 1);
	rig.heap->config.stop_wait_ms = 20;
	atomic_store(&rig.heap->held_up_by, 1); /* an earlier stop was in vain */
	CHECK_EQ(try_open(f.owners[0], 60, CH_OPEN_MAY_COLLECT), CH_E_FULL);
	CHECK(strstr(ch_why(), ", and a collection was given up"));
	rig.heap->config.stop_wait_ms = patience_ms;
	atomic_store(&step, 2);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	forget(&f);
}

static void *block_the_signal(void *arg)
{
	sigset_t signals;
	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	CHECK_EQ(ch_thread_attach(arg, NULL, NULL), CH_OK);
	atomic_store(&step, 1);
	TEST_UNTIL(atomic_load(&step) == 2);
	return NULL;
}

TEST(full_pool_beside_a_thread_that_blocks_the_signal_advises_no_signal)
{
	struct ch_config config = rig_config(2 * rig_page_bytes());
	config.stop_signal = SIGUSR2;
	config.stop_wait_ms = 20;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct filled f = fill_pool(&rig, 2, 60);
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, block_the_signal, rig.heap), 0);
	TEST_UNTIL(atomic_load(&step) == 1);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_E_BUSY);
	CHECK(strstr(ch_why(), "it blocks stop_signal, another handler took the "
			       "signal, or it had no processor"));
	CHECK_EQ(try_open(f.owners[0], 60, CH_OPEN_MAY_COLLECT), CH_E_FULL);
	CHECK(strstr(ch_why(), "did not stop: it blocks stop_signal, another handler took the "
			       "signal, or it had no processor"));
	atomic_store(&step, 2);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	forget(&f);
	rig_end(&rig);
}

TEST(full_pool_after_a_ch_mark_begin_that_met_a_lock_names_no_earlier_thread)
{
	struct ch_config config = rig_config(2 * rig_page_bytes());
	config.driver = CH_DRIVER_HOST;
	config.stops_world = true;
	config.stop_wait_ms = 20;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct filled f = fill_pool(&rig, 2, 60);
	struct ch_marker *marker;
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, hold_registry, rig.heap), 0);
	TEST_UNTIL(atomic_load(&step) == 1);
	atomic_store(&rig.heap->held_up_by, 1); /* an earlier stop was in vain */
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_E_BUSY);
	CHECK(strstr(ch_why(), "held a lock of the heap"));
	atomic_store(&step, 2);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(try_open(f.owners[0], 60, CH_OPEN_MAY_COLLECT), CH_E_FULL);
	CHECK(!strstr(ch_why(), "did not stop"));
	/* The flag helps no open of such a heap. */
	for (unsigned flags = 0; flags <= CH_OPEN_MAY_COLLECT; flags += CH_OPEN_MAY_COLLECT) {
		CHECK_EQ(try_open(f.owners[0], 60, flags), CH_E_FULL);
		CHECK(strstr(ch_why(), ", and a HOST heap is collected by ch_mark_begin"));
	}
	forget(&f);
	rig_end(&rig);
}

/* --- spans --- */

TEST_RIG_BY(a_block_of_a_whole_page_and_one_byte_more, start_pages(4))
{
	uint32_t page = (uint32_t)rig_page_bytes();
	struct ch_owner owner = rig_owner(&rig, "owner");
	for (uint32_t pages = 1; pages <= 4; pages++) {
		for (uint32_t more = 0; more < 2; more++) {
			struct ch_open open = {.owner = owner,
					       .hot_bytes = pages * page - HEAD_BYTES + more};
			struct emitter e;
			enum ch_status status = emit_open_as(&e, &open);
			if (pages == 4 && more) {
				CHECK_EQ(status, CH_E_ARG);
				continue;
			}
			CHECK_EQ(status, CH_OK);
			/* The thread may hold a further page, for small blocks. */
			CHECK(rig_stats(&rig).pages_now - pages - more <= 1);
			emit_answer(&e, pages);
			emit_filler(&e, open.hot_bytes - CODE_RETURN_BYTES);
			emit_ret(&e);
			e.at = open.hot_bytes;
			CHECK_EQ(emit_commit(&e), CH_OK);
			CHECK_EQ(code_call(e.code.exec), pages);
			struct ch_block found;
			CHECK(block_at(rig.heap, e.code.exec + open.hot_bytes - 1, &found));
			CHECK_EQ(found.bits, e.code.block.bits);
			rig_check(&rig);
			/* A span shares no page with a small block. */
			struct ch_owner mine = rig_owner(&rig, "mine");
			if (pages + more == 4)
				CHECK_EQ(try_open(mine, 100, 0), CH_E_FULL);
			CHECK_EQ(ch_owner_release(mine, CH_RELEASE_NOT_RUNNING), CH_OK);
			CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
			owner = rig_owner(&rig, "owner");
		}
	}
}

TEST_RIG_BY(a_span_has_branches_exits_and_a_cold_part, start_pages(4))
{
	uint32_t page = (uint32_t)rig_page_bytes();
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_open open = {.owner = owner,
			       .hot_bytes = page + 100,
			       .cold_bytes = 64,
			       .branch_room = 3,
			       .entry = CH_ENTRY_PATCH};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_filler(&e, page);
	struct ch_branch branch = emit_jmp(&e, NULL);
	struct emitter cold = emit_cold(&e);
	emit_landing(&cold);
	emit_answer(&cold, 33);
	emit_cold_end(&e, &cold);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_branch_link(branch, rig_block(owner, 33)), CH_OK);
	CHECK_EQ(code_call(e.code.exec), 33);
	CHECK_EQ(code_call(e.code.cold_exec), 33);
	struct ch_block found;
	CHECK(block_at(rig.heap, e.code.cold_exec + cold.at - 1, &found));
	CHECK_EQ(found.bits, e.code.block.bits);
	CHECK(block_at(rig.heap, e.code.exec + page, &found));
	rig_check(&rig);
	CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
	CHECK_EQ(code_call(e.code.exec), RIG_FALLBACK);
}

TEST_RIG_BY(a_span_needs_pages_in_a_row, start_pages(4))
{
	uint32_t page = (uint32_t)rig_page_bytes();
	struct filled f = fill_pool(&rig, 4, page - HEAD_BYTES);
	CHECK_EQ(f.count, 4);
	struct ch_owner owner = rig_owner(&rig, "span");
	/* Blocks lie in pages in the order of filling, so every second page becomes free. */
	CHECK_EQ(ch_owner_release(f.owners[0], CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_owner_release(f.owners[2], CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(try_open(owner, 2 * page - HEAD_BYTES, CH_OPEN_MAY_COLLECT), CH_E_FULL);
	CHECK_EQ(try_open(owner, page - HEAD_BYTES, 0), CH_OK);
	CHECK_EQ(ch_owner_release(f.owners[1], CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(try_open(owner, 2 * page - HEAD_BYTES, CH_OPEN_MAY_COLLECT), CH_OK);
	CHECK_EQ(code_call_owner(f.owners[3]), 3);
	forget(&f);
}

/* Random sizes in a nearly full pool for a long time: each open succeeds or says CH_E_FULL. After
 * all further slots are released, an open succeeds again. */
TEST_RIG_BY(a_crowded_pool_never_stops_serving, start_pages(4))
{
	enum { SLOTS = 64 };
	struct ch_owner owners[SLOTS] = {{0}};
	struct test_random random = test_random_new();
	uint64_t end = now_ns() + (uint64_t)storm_ms() * 1000000, opened = 0, full = 0;
	while (now_ns() < end) {
		uint64_t slot = test_random_below(&random, SLOTS);
		if (owners[slot].bits)
			CHECK_EQ(ch_owner_release(owners[slot],
						  test_random_below(&random, 2)
							  ? CH_RELEASE_COLLECT
							  : CH_RELEASE_NOT_RUNNING),
				 CH_OK);
		owners[slot] = rig_owner(&rig, "slot");
		uint32_t bytes = 16 + (uint32_t)test_random_below(&random, rig_page_bytes() / 8);
		struct ch_open open = {.owner = owners[slot],
				       .hot_bytes = bytes,
				       .flags = CH_OPEN_MAY_COLLECT};
		struct emitter e;
		enum ch_status status = emit_open_as(&e, &open);
		if (status == CH_E_FULL) {
			full++;
			for (int i = 0; i < SLOTS; i++)
				if (owners[i].bits && (size_t)i != slot) {
					CHECK_EQ(ch_owner_release(owners[i],
								  CH_RELEASE_NOT_RUNNING),
						 CH_OK);
					owners[i].bits = 0;
				}
			CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		} else {
			CHECK_EQ(status, CH_OK);
		}
		opened++;
		emit_answer(&e, (uint32_t)slot);
		e.at = bytes > e.at ? bytes : e.at;
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_owner_set_entry(owners[slot], e.code.block), CH_OK);
		uint64_t other = test_random_below(&random, SLOTS);
		if (owners[other].bits)
			CHECK_EQ(code_call_owner(owners[other]), other);
	}
	printf("%llu opened, %llu found the pool full\n", (unsigned long long)opened,
	       (unsigned long long)full);
}

/* --- callbacks inside an open --- */

enum { OPEN_BEFORE = 48, OPEN_INSIDE = 40, FREED = 12 };

struct nested {
	struct ch_owner owner;
	struct ch_code codes[OPEN_BEFORE + OPEN_INSIDE + 1];
	uint32_t count;
};

static struct ch_code *open_one(struct nested *n, uint32_t bytes, unsigned flags)
{
	struct ch_open open = {
		.size = sizeof open, .owner = n->owner, .hot_bytes = bytes, .flags = flags};
	struct ch_code *code = &n->codes[n->count++];
	CHECK_EQ(ch_block_open(&open, code), CH_OK);
	return code;
}

static void open_more(void *vm_user, void *block_user)
{
	struct nested *n = vm_user;
	(void)block_user;
	while (n->count < OPEN_BEFORE + OPEN_INSIDE)
		open_one(n, 16, 0);
}

/* Delivered notices open blocks, and so use up the reserve of the open that collects. */
TEST(open_that_collects_finds_its_room_after_opens_of_callbacks)
{
	struct nested n = {.count = 0};
	struct ch_config config = rig_config(16 * rig_page_bytes());
	struct ch_ops ops = {.size = sizeof ops, .block_freed = open_more};
	struct rig rig = rig_create(&config, &ops, &n);
	uint32_t most = (uint32_t)rig_page_bytes() - 64;
	n.owner = rig_owner(&rig, "emitting");
	for (int i = 0; i < OPEN_BEFORE; i++)
		open_one(&n, 16, 0);
	for (int i = 0; i < FREED; i++) {
		struct ch_owner owner = rig_owner(&rig, "gone");
		struct ch_open open = {.owner = owner, .hot_bytes = most};
		struct emitter e;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_ret(&e);
		e.at = most;
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
		memset(&e, 0, sizeof e);
	}
	while (n.count < OPEN_BEFORE + OPEN_INSIDE) {
		struct ch_code code;
		struct ch_open open = {.size = sizeof open,
				       .owner = n.owner,
				       .hot_bytes = most,
				       .flags = CH_OPEN_MAY_COLLECT};
		CHECK_EQ(ch_block_open(&open, &code), CH_OK);
		CHECK_EQ(ch_block_abort(&code), CH_OK);
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	}
	rig_check(&rig);
	for (uint32_t i = 0; i < n.count; i++)
		CHECK_EQ(ch_block_abort(&n.codes[i]), CH_OK);
	rig_end(&rig);
}

/* --- a collecting open gets the room that its cycles freed --- */

struct rival {
	struct ch_heap *heap;
	struct ch_owner owner;
	uint32_t bytes;
	pthread_t thread;
	_Atomic(bool) is_done;
	bool has_begun;
	enum ch_status status;
};

/* Fills each page with a block. The first block is released, and all others stay. */
static struct filled fill_but_one(const struct rig *rig, struct rival *r, size_t pages)
{
	r->heap = rig->heap;
	r->bytes = (uint32_t)rig_page_bytes() - HEAD_BYTES;
	struct filled f = fill_pool(rig, pages, r->bytes);
	CHECK_EQ(f.count, pages);
	r->owner = rig_owner(rig, "rival");
	CHECK_EQ(ch_owner_release(f.owners[0], CH_RELEASE_COLLECT), CH_OK);
	return f;
}

static void *open_as_rival(void *arg)
{
	struct rival *r = arg;
	struct ch_code code;
	struct ch_open open = {.size = sizeof open,
			       .owner = r->owner,
			       .hot_bytes = r->bytes,
			       .flags = CH_OPEN_MAY_COLLECT};
	r->status = ch_block_open(&open, &code);
	atomic_store(&r->is_done, true);
	if (r->status == CH_OK)
		CHECK_EQ(ch_block_abort(&code), CH_OK);
	return NULL;
}

/* The sweep of an open's cycle is over, and the freed place is not taken yet. */
static void bring_rival(void *vm_user, void *block_user)
{
	struct rival *r = vm_user;
	(void)block_user;
	if (r->has_begun)
		return;
	r->has_begun = true;
	CHECK_EQ(pthread_create(&r->thread, NULL, open_as_rival, r), 0);
	TEST_UNTIL(atomic_load(&r->is_done) ||
		   atomic_load(&r->heap->need.word) == CH__LOCK_AWAITED) {
		ch_thread_park();
		usleep(100);
		ch_thread_unpark();
	}
}

TEST(what_a_cycle_freed_is_kept_for_the_open_that_asked_for_it)
{
	enum { PAGES = 4 };
	struct rival r = {.has_begun = false};
	struct ch_config config = rig_config(PAGES * rig_page_bytes());
	struct ch_ops ops = {.size = sizeof ops, .block_freed = bring_rival};
	struct rig rig = rig_create(&config, &ops, &r);
	struct filled f = fill_but_one(&rig, &r, PAGES);
	struct ch_owner owner = rig_owner(&rig, "first");
	struct ch_code code;
	struct ch_open open = {.size = sizeof open,
			       .owner = owner,
			       .hot_bytes = r.bytes,
			       .flags = CH_OPEN_MAY_COLLECT};
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK(r.has_begun);
	join_parked(r.thread);
	CHECK_EQ(r.status, CH_E_FULL);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
	forget(&f);
	rig_end(&rig);
}

/* An open inside the callback uses the outer open's room, since there is no further room. */
static void open_inside(void *vm_user, void *block_user)
{
	struct rival *r = vm_user;
	(void)block_user;
	if (r->has_begun)
		return;
	r->has_begun = true;
	(void)open_as_rival(r);
}

TEST(open_that_collects_inside_the_callback_of_one_goes_along_with_it)
{
	enum { PAGES = 4 };
	struct rival r = {.has_begun = false};
	struct ch_config config = rig_config(PAGES * rig_page_bytes());
	struct ch_ops ops = {.size = sizeof ops, .block_freed = open_inside};
	struct rig rig = rig_create(&config, &ops, &r);
	struct filled f = fill_but_one(&rig, &r, PAGES);
	CHECK_EQ(try_open(rig_owner(&rig, "outer"), r.bytes, CH_OPEN_MAY_COLLECT), CH_OK);
	CHECK_EQ(r.status, CH_OK);
	forget(&f);
	rig_end(&rig);
}

/* --- newborn blocks --- */

static void fill_with_newborns(const struct rig *rig, void *arg)
{
	enum ch_status status = CH_OK;
	uint32_t *count = arg;
	for (*count = 0; status == CH_OK; ++*count) {
		struct ch_owner owner = rig_owner(rig, "newborn");
		struct ch_open open = {.owner = owner,
				       .hot_bytes = (uint32_t)rig_page_bytes() - HEAD_BYTES};
		struct emitter e;
		status = emit_open_as(&e, &open);
		if (status != CH_OK)
			break;
		emit_ret(&e);
		e.at = open.hot_bytes;
		CHECK_EQ(emit_commit(&e), CH_OK);
	}
	CHECK_EQ(status, CH_E_FULL);
}

TEST_RIG_BY(open_that_collects_waits_until_what_was_just_made_has_aged, start_pages(4))
{
	uint32_t count;
	rig_apart(&rig, fill_with_newborns, &count);
	CHECK_EQ(count, 4);
	CHECK_EQ(rig_stats(&rig).cycles, 0);
	CHECK_EQ(try_open(rig_owner(&rig, "next"), 60, CH_OPEN_MAY_COLLECT), CH_OK);
	CHECK(rig_stats(&rig).cycles <= 4);
}

/* No cycle frees a block that is open: another cycle is not worth a try. */
TEST_RIG_BY(open_that_collects_waits_for_no_block_that_is_open, start_pages(4))
{
	struct ch_open open = {.owner = rig_owner(&rig, "open"), .hot_bytes = 60};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	struct filled f = fill_pool(&rig, 4, 60);
	CHECK_EQ(try_open(f.owners[0], 60, CH_OPEN_MAY_COLLECT), CH_E_FULL);
	CHECK_EQ(rig_stats(&rig).cycles, 1);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	forget(&f);
}

/* A block of more than half a page shares its page with none: docs/embedding.md, section 6. */
TEST(large_pages_have_less_room_beside_blocks_of_nine_kib)
{
	enum { POOL = 1 << 20, BYTES = 9200 };
	for (size_t wanted = 16384; wanted <= 65536; wanted *= 4) {
		struct ch_config config = rig_config(POOL);
		config.page_bytes = wanted;
		struct rig rig = rig_create(&config, NULL, NULL);
		size_t page = rig_stats(&rig).page_bytes;
		struct filled f = fill_pool(&rig, POOL / rig_page_bytes(), BYTES);
		CHECK_EQ(f.count, POOL / page * (page / (BYTES + HEAD_BYTES)));
		forget(&f);
		rig_end(&rig);
	}
}

enum { CROWD = 3400, CROWD_BYTES = 1000, CROWDED_POOL = 4 << 20 };

/* The words of a thread that ended hold no block. */
static void leave_one(const struct rig *rig, void *bytes)
{
	void *code;
	CHECK_EQ(ch_code_add(rig->heap, bytes, CROWD_BYTES, NULL, &code), CH_OK);
	CHECK_EQ(ch_code_free(rig->heap, code, CH_RELEASE_COLLECT), CH_OK);
}

/* Fills more than three quarters of a pool with code that is replaced, and freed at once. A piece
 * was left to a collection before. A held piece has an edge from code that lives. Returns the
 * cycles, and how much was opened. */
static uint64_t cycles_of_a_crowd(const struct rig *rig, bool is_held, uint64_t *opened)
{
	static uint8_t bytes[CROWD_BYTES];
	static void *code[CROWD];
	if (is_held) {
		struct ch_open open = {.heap = rig->heap, .hot_bytes = 16};
		struct emitter both[2];
		for (int i = 0; i < 2; i++) {
			CHECK_EQ(emit_open_as(&both[i], &open), CH_OK);
			emit_ret(&both[i]);
		}
		CHECK_EQ(ch_edge_attach(both[0].code.block, both[1].code.block), CH_OK);
		for (int i = 2; i-- > 0;)
			CHECK_EQ(emit_commit(&both[i]), CH_OK);
		CHECK_EQ(ch_code_free(rig->heap, both[1].code.exec, CH_RELEASE_COLLECT), CH_OK);
	} else {
		rig_alone(rig, leave_one, bytes);
	}
	for (int i = 0; i < 10 * CROWD; i++) {
		void **at = &code[i % CROWD];
		if (i >= CROWD)
			CHECK_EQ(ch_code_free(rig->heap, *at, CH_RELEASE_NOT_RUNNING), CH_OK);
		CHECK_EQ(ch_code_add(rig->heap, bytes, CROWD_BYTES, NULL, at), CH_OK);
	}
	struct ch_stats stats = rig_stats(rig);
	CHECK(stats.pages_now * stats.page_bytes * 4 > stats.pool_bytes * 3);
	*opened = stats.bytes_opened;
	return stats.cycles;
}

/* A held piece may die without a word. */
TEST_RIG_BY(crowded_pool_collects_what_is_held_once_a_sixteenth_at_most, rig_start(CROWDED_POOL))
{
	uint64_t opened, cycles = cycles_of_a_crowd(&rig, true, &opened);
	CHECK(cycles > 10);
	CHECK(cycles <= opened / (CROWDED_POOL / 16) + 1);
}

/* Where only stops synchronize, the places of the dead wait for cycles. */
TEST_RIG_BY(crowded_pool_collects_no_more_once_what_was_left_is_gone, rig_start(CROWDED_POOL))
{
	uint64_t opened, cycles = cycles_of_a_crowd(&rig, false, &opened);
	CHECK(cycles > 0);
	CHECK(cycles <= 2 || !rig.heap->has_core_sync);
}
