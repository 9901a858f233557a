/* SPDX-License-Identifier: MIT
 * seams.c: the time (ch__os_pretended.clock), the collector (struct ch__driver) and listeners: a
 * heap takes each from outside through a single place. Nobody sleeps here: hours pass by the
 * pretended clock, and a wait by the true clock would exceed the case's limit. failures.c makes
 * each call of the system and of side memory fail. */
#include "codeheap/base/heap.h"
#include "codeheap/collect/collect.h"
#include "codeheap/events/events.h"
#include "codeheap/graph/block.h"
#include "codeheap/guest_look.h"
#include "codeheap/listener.h"
#include "codeheap/places/places.h"
#include "tests/support/heap_rig.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#define NS_OF_A_SECOND UINT64_C(1000000000)
#define NS_OF_AN_HOUR (3600 * NS_OF_A_SECOND)

/* --- the time --- */

/* A look at the clock takes look_ns; a wait takes a minute, or the asked time if longer. */
static _Atomic(uint64_t) time_ns, look_ns, waits;
static _Atomic(uint64_t) polls_from_ns; /* when the other thread begins to poll */
static _Atomic(int) may_poll, is_over;

static uint64_t get(_Atomic(uint64_t) *value)
{
	return atomic_load(value);
}

static uint64_t pretend_time(uint64_t waited_ns)
{
	uint64_t passed = get(&look_ns);
	if (waited_ns) {
		atomic_fetch_add(&waits, 1);
		passed = 60 * NS_OF_A_SECOND > waited_ns ? 60 * NS_OF_A_SECOND : waited_ns;
	}
	if (get(&time_ns) < get(&polls_from_ns))
		return atomic_fetch_add(&time_ns, passed) + passed;
	/* The time stands still while the other thread proceeds. */
	atomic_store(&may_poll, 1);
	sched_yield();
	return get(&time_ns);
}

static void begin_time(void)
{
	atomic_store(&time_ns, NS_OF_AN_HOUR);
	atomic_store(&look_ns, 1000);
	atomic_store(&polls_from_ns, UINT64_MAX);
	ch__os_pretended.clock = pretend_time;
}

static void *run_without_polls(void *arg)
{
	struct ch_heap *heap = arg;
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_OK);
	atomic_store(&is_over, 0);
	while (!atomic_load(&is_over))
		if (atomic_load(&may_poll))
			ch_thread_poll();
	CHECK_EQ(ch_thread_detach(heap), CH_OK);
	return NULL;
}

static struct rig start_with_runner(uint32_t stop_wait_ms, pthread_t *thread)
{
	struct ch_config config = rig_config(1 << 20);
	config.stop_wait_ms = stop_wait_ms;
	struct rig rig = rig_create(&config, NULL, NULL);
	atomic_store(&is_over, -1);
	CHECK_EQ(pthread_create(thread, NULL, run_without_polls, rig.heap), 0);
	while (atomic_load(&is_over))
		sched_yield();
	return rig;
}

static void end_runner(struct rig *rig, pthread_t thread)
{
	atomic_store(&is_over, 1);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	ch__os_pretended.clock = NULL;
	rig_end(rig);
}

TEST(clock_ends_a_bounded_wait_for_a_thread_that_never_stops)
{
	pthread_t thread;
	struct rig rig = start_with_runner(3600 * 1000, &thread);
	begin_time();
	uint64_t before = get(&time_ns);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_E_BUSY);
	uint64_t passed = get(&time_ns) - before;
	CHECK(passed > NS_OF_AN_HOUR && passed < 2 * NS_OF_AN_HOUR);
	CHECK(get(&waits) >= 59 && get(&waits) <= 61);
	CHECK_EQ(rig_stats(&rig).cycles_abandoned, 1);
	end_runner(&rig, thread);
}

/* Here the host stops the world. */
TEST(cycle_that_cannot_begin_has_no_marker)
{
	struct ch_config config = rig_config(1 << 20);
	config.driver = CH_DRIVER_HOST;
	config.stop_wait_ms = 1000;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_marker *marker = (struct ch_marker *)(void *)&config;
	pthread_t thread;
	atomic_store(&is_over, -1);
	CHECK_EQ(pthread_create(&thread, NULL, run_without_polls, rig.heap), 0);
	while (atomic_load(&is_over))
		sched_yield();
	struct ch__thread *inside = rig.heap->threads;
	while (inside == ch__thread_self(rig.heap))
		inside = inside->next;
	atomic_store(&inside->inside, 1);
	begin_time();
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_E_BUSY);
	CHECK(!marker);
	CHECK_EQ(rig_stats(&rig).freezes, 0);
	atomic_store(&inside->inside, 0);
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
	CHECK_EQ(rig.heap->stats.freezes, 1);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	end_runner(&rig, thread);
}

TEST(clock_lets_a_thread_come_to_its_poll_half_an_hour_later)
{
	pthread_t thread;
	struct rig rig = start_with_runner(UINT32_MAX, &thread);
	begin_time();
	atomic_store(&polls_from_ns, get(&time_ns) + NS_OF_AN_HOUR / 2);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK(get(&waits) >= 30);
	struct ch_stats stats = rig_stats(&rig);
	CHECK_EQ(stats.cycles_abandoned, 0);
	CHECK(stats.pause_ns_last >= NS_OF_AN_HOUR / 2);
	CHECK_EQ(stats.pause_ns_max, stats.pause_ns_last);
	end_runner(&rig, thread);
}

static bool stop_slowly(void *user)
{
	(void)user;
	atomic_fetch_add(&time_ns, 2 * NS_OF_AN_HOUR);
	return true;
}

TEST(time_that_a_vm_takes_to_stop_its_world_is_none_of_the_wait)
{
	struct ch_ops ops = {.size = sizeof ops, .stop_world = stop_slowly};
	struct ch_vm *vm;
	pthread_t thread;
	struct rig rig = start_with_runner(3600 * 1000, &thread);
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &vm), CH_OK);
	begin_time();
	atomic_store(&polls_from_ns, get(&time_ns) + 2 * NS_OF_AN_HOUR + NS_OF_AN_HOUR / 2);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	end_runner(&rig, thread);
}

/* The least values of the triggers double while collections take more than a tenth of the time, and
 * come down when collections take less than a fortieth. */
TEST_RIG(clock_says_how_much_of_the_time_collections_take)
{
	begin_time();
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	uint32_t doublings = atomic_load(&rig.heap->floor_doublings);
	/* All the time is spent in looks at the clock, mostly inside the cycle. */
	atomic_store(&look_ns, NS_OF_A_SECOND);
	for (int i = 1; i <= 3; i++) {
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		CHECK_EQ(atomic_load(&rig.heap->floor_doublings), ++doublings);
	}
	atomic_store(&look_ns, 1000);
	for (int i = 1; i <= 3; i++) {
		atomic_fetch_add(&time_ns, NS_OF_AN_HOUR);
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		CHECK_EQ(atomic_load(&rig.heap->floor_doublings), --doublings);
	}
	ch__os_pretended.clock = NULL;
}

/* --- the collector --- */

static int collections, ends;
static enum ch_status answer;

static enum ch_status collect(struct ch_heap *heap)
{
	CHECK(!ch__lock_is_mine(&heap->lock) && !ch__lock_is_mine(&heap->registry));
	collections++;
	return answer;
}
static void end(struct ch_heap *heap)
{
	(void)heap;
	ends++;
}

TEST(collector_of_another_kind_is_asked_through_its_driver)
{
	static const struct ch__driver driver = {.collect = collect, .destroy = end};
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops none = {.size = sizeof none};
	struct ch_heap *heap;
	struct ch_vm *vm;
	CHECK_EQ(ch__heap_create(&config, &driver, &heap), CH_OK);
	CHECK_EQ(ch_vm_attach(heap, &none, NULL, &vm), CH_OK);
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_OK);
	/* The driver makes the owners, together with the objects that keep the owners alive. */
	struct ch_owner owner;
	CHECK_EQ(ch_owner_create(vm, "owner", (const void *)(uintptr_t)rig_fallback, NULL, &owner),
		 CH_E_ARG);
	CHECK_EQ(ch_heap_collect(heap), CH_OK);
	answer = CH_E_BUSY;
	CHECK_EQ(ch_heap_collect(heap), CH_E_BUSY);
	CHECK_EQ(collections, 2);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	CHECK_EQ(ends, 0);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	CHECK_EQ(ends, 1);
}

/* --- listeners --- */

static int used, named, over;

static void change_errno_at_use(struct ch__listener *listener)
{
	(void)listener;
	used++;
	errno = EINTR;
}

static void change_errno_at_names(void)
{
	named++;
	errno = EINTR;
}

static void change_errno_at_end(struct ch__listener *listener)
{
	(void)listener;
	over++;
	errno = EINTR;
}

static const struct ch__listener_calls calls = {.used = change_errno_at_use,
						.ends = change_errno_at_end};
static struct ch__listener listener = {.calls = &calls};

static void change_errno_at_death(struct ch__listener *dying, const uint64_t *blocks, size_t n)
{
	(void)dying, (void)blocks, (void)n;
	errno = EINTR;
}

/* Each call of the system fails once. Code that gets no memory for its commit is aborted, and what
 * the abort meets is not told. */
TEST_RIG_BY(code_that_is_given_up_has_the_errno_of_its_commit, rig_start(32 << 20))
{
	enum { LARGE = 5 << 20 };
	static const struct ch__listener_calls deaths = {.blocks_die = change_errno_at_death};
	static struct ch__listener hears = {.calls = &deaths};
	static uint8_t bytes[LARGE];
	bool was_last = false;
	unsigned refused = 0;
	ch__listener_add(rig.heap, &hears);
	for (uint64_t nth = 1; !was_last; nth++) {
		void *code;
		ch__os_fail_as(nth, false, EXDEV);
		enum ch_status status = ch_code_add(rig.heap, bytes, LARGE, "large", &code);
		int error = errno;
		was_last = ch__os_failable_calls() < nth;
		ch__os_fail_at(0, false);
		CHECK(status != CH_E_OS || error == EXDEV);
		refused += status == CH_E_OS;
		CHECK(status != CH_OK ||
		      ch_code_free(rig.heap, code, CH_RELEASE_NOT_RUNNING) == CH_OK);
	}
	/* Elsewhere large code has its memory from the open on. */
	const struct ch__pool *pool = rig.heap->pool;
	CHECK(refused > 0 || pool->backend == CH_BACKEND_PROCMEM || pool->is_translated);
}

/* Both calls come where the VM knows of no call of the system. */
TEST(listeners_leave_errno_alone)
{
	struct rig rig = rig_start(1 << 20);
	ch__listener_add(rig.heap, &listener);
	ch__listener_await_use(rig.heap);
	ch__listener_on_names(change_errno_at_names);
	errno = EXDEV;
	for (int i = 0; i < 2; i++) {
		ch__listeners_use(rig.heap);
		CHECK_EQ(errno, EXDEV);
		CHECK_EQ(used, 1);
	}
	ch__listeners_names_wait();
	CHECK_EQ(errno, EXDEV);
	CHECK_EQ(named, 1);
	ch__listener_on_names(NULL);
	rig_end(&rig);
	CHECK_EQ(over, 1);
}

/* A thread of the parent that did not stop holds up nothing in the child. */
TEST_RIG(child_of_fork_blames_no_thread_of_its_parent)
{
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = rig_count_asked};
	struct ch_vm *vm;
	unsigned asked = 0;
	/* The vm is asked for collections, so no open makes one, which would forget the thread. */
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, &asked, &vm), CH_OK);
	atomic_store(&rig.heap->held_up_by, 1);
	atomic_store(&rig.heap->waits_for_cycle, true);
	pid_t child = fork_child();
	if (child == 0) {
		struct ch_open open = {.size = sizeof open, .heap = rig.heap, .hot_bytes = 64000};
		struct ch_code code;
		enum ch_status status;
		while ((status = ch_block_open(&open, &code)) == CH_OK)
			;
		_exit(status != CH_E_FULL || strstr(ch_why(), "did not stop"));
	}
	expect_exit(child, 0);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
}

static uint64_t dead_handles[8];
static size_t dead_count;

static void note_deaths(struct ch__listener *of, const uint64_t *handles, size_t n)
{
	(void)of;
	CHECK(n <= 8 - dead_count);
	memcpy(dead_handles + dead_count, handles, n * sizeof *handles);
	dead_count += n;
}

static bool was_told_dead(struct ch_block block)
{
	for (size_t i = 0; i < dead_count; i++)
		if (dead_handles[i] == block.bits)
			return true;
	return false;
}

/* The blocks of a released owner end together, and the listener hears of them in one call. */
TEST_RIG(listener_hears_of_each_block_that_dies_by_its_handle)
{
	static const struct ch__listener_calls deaths = {.blocks_die = note_deaths};
	enum { BLOCKS = 3 };
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block blocks[BLOCKS];
	listener.calls = &deaths;
	ch__listener_add(rig.heap, &listener);
	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks[i] = rig_block(owner, i);
	CHECK_EQ(dead_count, 0);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(dead_count, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		CHECK(was_told_dead(blocks[i]));
}

static struct ch__owner *goes;
static size_t told_dead;

static void give_record_away(struct ch__listener *of, const uint64_t *handles, size_t n)
{
	(void)of;
	(void)handles;
	told_dead += n;
	if (goes)
		atomic_fetch_add(&goes->generation, CH__LIVES);
	goes = NULL;
}

/* Between two batches other threads have their turn: the last blocks may die, and the record may
 * become another owner's. */
TEST_RIG(release_leaves_the_owner_that_got_the_record_alone)
{
	static const struct ch__listener_calls deaths = {.blocks_die = give_record_away};
	struct ch_owner handle = rig_owner(&rig, "owner");
	struct ch__owner *owner = ch__owner_at(rig.heap, ch__handle_index(handle.bits));
	listener.calls = &deaths;
	ch__listener_add(rig.heap, &listener);
	for (uint32_t i = 0; i < CH__KILLED_AT_ONCE + 3; i++)
		(void)rig_block(handle, i);
	uint32_t mark = owner->mark;
	goes = owner;
	CHECK_EQ(ch_owner_release(handle, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(told_dead, CH__KILLED_AT_ONCE);
	CHECK_EQ(owner->mark, mark);
	atomic_fetch_sub(&owner->generation, CH__LIVES);
	rig_collect(&rig, 3);
	CHECK_EQ(told_dead, CH__KILLED_AT_ONCE + 3);
}

static struct rig *of_code;

static void *leave_to_a_collection(void *code)
{
	CHECK_EQ(ch_code_free(of_code->heap, code, CH_RELEASE_COLLECT), CH_OK);
	return NULL;
}

TEST_RIG(code_that_a_stranger_leaves_to_a_collection_counts_as_dead)
{
	struct ch_open open = {.heap = rig.heap, .hot_bytes = 16};
	struct emitter e;
	pthread_t stranger;
	of_code = &rig;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	uint64_t before = rig.heap->dead_bytes;
	CHECK_EQ(pthread_create(&stranger, NULL, leave_to_a_collection, e.code.exec), 0);
	CHECK_EQ(pthread_join(stranger, NULL), 0);
	CHECK(rig.heap->dead_bytes > before);
}

/* A profile and a statistics file listen to the same heap. */
TEST_RIG(each_listener_of_a_heap_hears_of_a_death)
{
	static const struct ch__listener_calls deaths = {.blocks_die = note_deaths};
	static struct ch__listener two[2] = {{.calls = &deaths}, {.calls = &deaths}};
	struct ch_owner owner = rig_owner(&rig, "owner");
	for (int i = 0; i < 2; i++)
		ch__listener_add(rig.heap, &two[i]);
	(void)rig_block(owner, 1);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(dead_count, 2);
}

static unsigned ended;

static void go_with_all_memory(struct ch__listener *of)
{
	memset(of, 0xff, sizeof *of);
	ended++;
}

TEST(listener_that_ends_may_take_its_memory_along)
{
	static const struct ch__listener_calls end = {.ends = go_with_all_memory};
	static struct ch__listener two[2] = {{.calls = &end}, {.calls = &end}};
	struct rig rig = rig_start(1 << 20);
	for (int i = 0; i < 2; i++)
		ch__listener_add(rig.heap, &two[i]);
	rig_end(&rig);
	CHECK_EQ(ended, 2);
}

static unsigned forks, forks_over;

static void count_fork(struct ch__listener *of)
{
	(void)of;
	forks++;
}

static void count_fork_over(struct ch__listener *of)
{
	(void)of;
	forks_over++;
}

/* A process has no 255 heaps for this case: the one heap takes the last number. */
TEST_RIG(listener_of_the_last_heap_hears_of_a_fork)
{
	static const struct ch__listener_calls both = {.fork_prepare = count_fork,
						       .fork_parent = count_fork_over};
	listener.calls = &both;
	ch__listener_add(rig.heap, &listener);
	atomic_store(&ch__heaps[CH__HEAPS_MAX], rig.heap);
	atomic_store(&ch__heaps[rig.heap->id], NULL);
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	atomic_store(&ch__heaps[rig.heap->id], rig.heap);
	atomic_store(&ch__heaps[CH__HEAPS_MAX], NULL);
	CHECK_EQ(forks, 1);
	CHECK_EQ(forks_over, 1);
	expect_exit(child, 0);
}

static struct ch__block *edged;
static unsigned walks;

/* A release that comes to the block takes the flag away. */
static void count_walks(struct ch__listener *of, const uint64_t *handles, size_t n)
{
	(void)of, (void)handles, (void)n;
	walks += !(edged->flags & CH__FLAG_IMMORTAL);
	edged->flags |= CH__FLAG_IMMORTAL;
}

static struct ch_block make(struct ch_owner owner, enum ch_kind kind, struct ch_block edge_to)
{
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 16, .kind = kind};
	struct ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	memset(code.write, 0, 16);
	code.used_to = 16;
	if (edge_to.bits)
		CHECK_EQ(ch_edge_attach(code.block, edge_to), CH_OK);
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	return code.block;
}

/* The first 64 blocks of the walk end with code, and the block that comes next is the code's data:
 * data goes with the code, so the walk goes on behind a block that died meanwhile. */
TEST_RIG_BY(release_passes_a_block_once_that_other_code_has_an_edge_to, rig_start(4 << 20))
{
	static const struct ch__listener_calls deaths = {.blocks_die = count_walks};
	struct ch_owner owner = rig_owner(&rig, "owner"), other = rig_owner(&rig, "other");
	struct ch_block none = {0}, to;
	for (int i = 0; i < 200; i++)
		(void)make(owner, CH_KIND_CODE, make(owner, CH_KIND_DATA, none));
	to = make(owner, CH_KIND_CODE, none);
	(void)make(other, CH_KIND_CODE, to);
	edged = ch__block_at(rig.heap, rig_record(to));
	edged->flags |= CH__FLAG_IMMORTAL;
	listener.calls = &deaths;
	ch__listener_add(rig.heap, &listener);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(walks, 1);
	CHECK_EQ(rig_stats(&rig).blocks_now, 2);
	edged->flags &= (uint8_t)~CH__FLAG_IMMORTAL;
}

static enum ch_status refuse(struct ch_heap *heap, const char **stats_file, bool may_fail)
{
	(void)stats_file, (void)may_fail;
	/* A fork waits for the heap. */
	CHECK(ch__lock_is_mine(&ch__heaps_lock));
	ch__listener_add(heap, &listener);
	errno = EXDEV;
	return CH_E_OS;
}

/* The listener that refused ends, and errno says why it refused. */
TEST(heap_that_a_listener_refuses_has_its_errno)
{
	static struct ch__greeter greeter = {.begins = refuse};
	struct ch_config config = rig_config(1 << 20);
	struct ch_heap *heap;
	ch__listener_greet(&greeter);
	CHECK_EQ(ch_heap_create(&config, &heap), CH_E_OS);
	CHECK_EQ(errno, EXDEV);
	CHECK(over > 0); /* once for each backend that is tried */
}

static bool hears[2];

static enum ch_status hear_first(struct ch_heap *heap, const char **stats_file, bool may_fail)
{
	(void)heap, (void)stats_file, (void)may_fail;
	hears[0] = true;
	return CH_OK;
}

static enum ch_status hear_second(struct ch_heap *heap, const char **stats_file, bool may_fail)
{
	(void)heap, (void)stats_file, (void)may_fail;
	hears[1] = true;
	return CH_OK;
}

TEST(each_observer_hears_of_a_heap)
{
	static struct ch__greeter first = {.begins = hear_first}, second = {.begins = hear_second};
	ch__listener_greet(&first);
	ch__listener_greet(&second);
	struct rig rig = rig_start(1 << 20);
	CHECK(hears[0] && hears[1]);
	rig_end(&rig);
}

/* A question takes a lock and reads the clock. */
TEST_RIG(poll_seldom_asks_for_names_that_wait)
{
	atomic_store(&rig.heap->sinks_wait, 3);
	for (uint32_t left = 2; left > 0; left--) {
		ch__tell_poll(rig.heap);
		CHECK_EQ(atomic_load(&rig.heap->sinks_wait), left);
	}
	ch__tell_poll(rig.heap);
	CHECK_EQ(atomic_load(&rig.heap->sinks_wait), 0);
}

static void wish_twice(void *unused)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_heap *heap;
	(void)unused;
	CHECK_EQ(setenv("CODEHEAP_STATS", "/nowhere", 1), 0);
	for (int i = 0; i < 2; i++) {
		int failed = 0;
		CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
		CHECK(!ch_sink_status(heap, CH_SINK_STATS_FILE, NULL, &failed));
		CHECK_EQ(failed, ENOSYS);
		CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	}
}

/* This program has no libcodeheap-profile. */
TEST(statistics_file_that_nobody_can_write_is_refused_and_the_environments_told_once)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_heap *heap;
	char text[400];
	unsetenv("CODEHEAP_STATS");
	config.stats_file = "";
	CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	config.stats_file = "/nowhere";
	errno = 0;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_E_OS);
	CHECK_EQ(errno, ENOSYS);
	CHECK_STR(ch_why(), "CH_E_OS: ch_config.stats_file needs ch_stats_file_enable of "
			    "libcodeheap-profile: ENOSYS");
	expect_signal_text(wish_twice, NULL, 0, text, sizeof text);
	CHECK_STR(text, "codeheap: CODEHEAP_STATS needs libcodeheap-profile, which this process "
			"has not\n");
}

TEST_RIG(fallbacks_are_as_many_as_there_is_room_for)
{
	uintptr_t found[3] = {0};
	struct ch_owner owner;
	for (uintptr_t fallback = 8; fallback <= 24; fallback += 8)
		CHECK_EQ(ch_owner_create(rig.vm, NULL, (const void *)fallback, NULL, &owner),
			 CH_OK);
	ch__look_lock_blocks(rig.heap);
	CHECK_EQ(ch__look_fallbacks(rig.heap, found, 2), 2);
	ch__look_unlock_blocks(rig.heap);
	CHECK(found[0] && found[1] && !found[2]);
}

TEST_RIG(owners_that_are_gone_or_were_given_no_fallback_have_none)
{
	uintptr_t found[2] = {0};
	struct ch_owner gone, bare;
	CHECK_EQ(ch_owner_create(rig.vm, NULL, (const void *)8, NULL, &gone), CH_OK);
	CHECK_EQ(ch_owner_create(rig.vm, NULL, NULL, NULL, &bare), CH_OK);
	CHECK_EQ(ch_owner_release(gone, CH_RELEASE_NOT_RUNNING), CH_OK);
	ch__look_lock_blocks(rig.heap);
	CHECK_EQ(ch__look_fallbacks(rig.heap, found, 2), 0);
	ch__look_unlock_blocks(rig.heap);
}

TEST_RIG(cell_of_a_released_owner_holds_the_fallback_before_any_cycle)
{
	struct ch_owner owner = rig_owner(&rig, "o"), bare = rig_owner(&rig, "bare");
	CHECK_EQ(ch_owner_set_entry(owner, rig_block(owner, 1)), CH_OK);
	const void *const *cell = ch_owner_cell(owner);
	CHECK(*cell != *ch_owner_cell(bare));
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	CHECK(*cell == *ch_owner_cell(bare));
}
