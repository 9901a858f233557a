/* SPDX-License-Identifier: MIT
 * heaps.c: a profile whose threads run code of other heaps, too. The profile names the other heaps'
 * code, whatever happens to the blocks and the heap before the profile is written. */
#include "codeheap/base/heap.h"
#include "tests/support/profile_rig.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

static struct profile_rig rig;
static struct stage *other;

static void make_other(void)
{
	other = stage_new(STAGE_POLLS);
	stage_start(other);
}

/* Makes the profiled heap and another heap; the thread attaches to both. */
static void begin(void)
{
	profile_begin(&rig, STAGE_POLLS);
	make_other();
	profile_start_still(&rig, 0);
}

static void end(void)
{
	if (other)
		stage_end(other);
	profile_end(&rig);
}

static const void *make_code(struct stage *stage, struct method *m, const char *name)
{
	struct ch_info info = {.size = sizeof info};
	method_constant(stage, m, name, 1);
	CHECK_EQ(ch_block_info(m->block, &info), CH_OK);
	return info.exec;
}

/* Nothing else was sampled, and no sample lost the name. */
static void expect_lines(const char *first, uint64_t first_weight, const char *second,
			 uint64_t second_weight)
{
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, first), first_weight);
	CHECK_EQ(profile_weight(&rig, second), second_weight);
	CHECK_EQ(profile_weight(&rig, ""), first_weight + second_weight);
}

TEST(code_of_another_heap_has_its_name)
{
	struct method host, guest;
	begin();
	profile_take_pc(&rig, make_code(rig.stage, &host, "host"), 3);
	profile_take_pc(&rig, make_code(other, &guest, "guest"), 5);
	expect_lines(";host;", 3, ";guest;", 5);
	profile_stop(&rig);
	expect_lines(";host;", 3, ";guest;", 5);
	end();
}

TEST(free_memory_of_another_heap_has_no_block)
{
	struct method host;
	begin();
	const struct ch__pool *pool = other->heap->pool;
	profile_take_pc(&rig, make_code(rig.stage, &host, "host"), 3);
	profile_take_pc(&rig, (const void *)(pool->exec_base + pool->pool_bytes - 8), 5);
	expect_lines(";host;", 3, ";[code memory without a block];", 5);
	end();
}

/* The handles of both blocks differ only in the heap's number. */
TEST(codes_of_two_heaps_are_not_one)
{
	struct method host, guest;
	begin();
	profile_take_pc(&rig, make_code(other, &guest, "guest"), 5);
	profile_take_pc(&rig, make_code(rig.stage, &host, "host"), 3);
	CHECK_EQ(guest.block.bits & ~UINT64_C(0xff000000), host.block.bits & ~UINT64_C(0xff000000));
	profile_stop(&rig);
	expect_lines(";host;", 3, ";guest;", 5);
	end();
}

static void expect_the_dead_named(void)
{
	struct method first, again;
	const void *at = make_code(other, &first, "first");
	profile_take_pc(&rig, at, 3);
	CHECK_EQ(ch_owner_release(first.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	stage_settle(other);
	profile_take_pc(&rig, make_code(other, &again, "again"), 5);
	expect_lines(";first;", 3, ";again;", 5);
	CHECK_EQ(ch_owner_release(again.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	profile_stop(&rig);
	expect_lines(";first;", 3, ";again;", 5);
	end();
}

TEST(code_that_died_in_another_heap_has_its_name)
{
	begin();
	expect_the_dead_named();
}

/* While the profiled heap is made, the other heap has all numbers but the last. */
static void begin_with_the_last_number(void)
{
	make_other();
	for (int id = 2; id < CH__HEAPS_MAX; id++)
		atomic_store(&ch__heaps[id], other->heap);
	profile_begin(&rig, STAGE_POLLS);
	for (int id = 2; id < CH__HEAPS_MAX; id++)
		atomic_store(&ch__heaps[id], NULL);
	CHECK_EQ(rig.stage->heap->id, CH__HEAPS_MAX);
	profile_start_still(&rig, 0);
}

TEST(profile_of_the_heap_with_the_last_number_has_names_of_the_dead)
{
	begin_with_the_last_number();
	expect_the_dead_named();
}

TEST(code_of_the_heap_with_the_last_number_has_its_name)
{
	struct method m;
	begin_with_the_last_number();
	profile_take_pc(&rig, make_code(rig.stage, &m, "last"), 3);
	expect_lines(";last;", 3, ";other;", 0);
	profile_stop(&rig);
	expect_lines(";last;", 3, ";other;", 0);
	end();
}

/* A later heap gets the number, and most likely the memory, of the ended heap. */
TEST(heap_that_ends_or_comes_while_a_profile_runs_leaves_its_names)
{
	struct method first, again;
	begin();
	profile_take_pc(&rig, make_code(other, &first, "first"), 3);
	stage_end(other);
	make_other();
	profile_take_pc(&rig, make_code(other, &again, "again"), 5);
	CHECK_EQ(ch_owner_release(again.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	stage_end(other);
	other = NULL;
	profile_stop(&rig);
	expect_lines(";first;", 3, ";again;", 5);
	end();
}

/* The listeners of a heap that could not be made end under the maker's lock. */
TEST(heap_that_cannot_be_made_while_a_profile_runs_leaves_it_alone)
{
	struct ch_config config;
	struct ch_heap *heap = NULL;
	struct method guest;
	unsetenv("CODEHEAP_STATS");
	begin();
	ch_config_init(&config);
	config.stats_file = "/nowhere/file";
	CHECK_EQ(ch_heap_create(&config, &heap), CH_E_OS);
	profile_take_pc(&rig, make_code(other, &guest, "guest"), 5);
	profile_stop(&rig);
	expect_lines(";guest;", 5, ";nobody;", 0);
	end();
}

/* The profile goes with the heap, and the other heaps are not asked for code any more. */
TEST(heap_that_ends_while_it_is_profiled_leaves_others_alone)
{
	struct method guest;
	begin();
	const void *at = make_code(other, &guest, "guest");
	profile_take_pc(&rig, at, 5);
	profile_end(&rig);
	CHECK_EQ(ch_owner_release(guest.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	profile_begin(&rig, STAGE_POLLS);
	profile_start_still(&rig, 0);
	profile_take_pc(&rig, make_code(other, &guest, "guest"), 7);
	profile_stop(&rig);
	expect_lines(";guest;", 7, ";nobody;", 0);
	end();
}

TEST(each_of_two_profiles_names_the_code_of_both_heaps)
{
	struct method host, guest;
	struct profile_rig own = {.stage = NULL};
	begin();
	own.stage = other;
	snprintf(own.path, sizeof own.path, "/tmp/codeheap-profile.%d.other", (int)getpid());
	profile_start_still(&own, 0);
	const void *in_host = make_code(rig.stage, &host, "host");
	const void *in_guest = make_code(other, &guest, "guest");
	profile_take_pc(&rig, in_host, 3);
	profile_take_pc(&rig, in_guest, 5);
	profile_take_pc(&own, in_host, 7);
	profile_take_pc(&own, in_guest, 11);
	CHECK_EQ(ch_owner_release(host.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_owner_release(guest.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	profile_stop(&rig);
	profile_stop(&own);
	expect_lines(";host;", 3, ";guest;", 5);
	profile_read(&own, 0);
	CHECK_EQ(profile_weight(&own, ";host;"), 7);
	CHECK_EQ(profile_weight(&own, ";guest;"), 11);
	free(own.text);
	unlink(own.path);
	end();
}

/* Code of a heap is called by code of the other heap. The callee is sampled at each instruction,
 * also before the callee has a frame record. */
TEST(callers_of_code_of_another_heap_are_shown)
{
	enum { MOMENTS = sizeof code_moments / sizeof *code_moments, RECORD = 4 };
	static uintptr_t words[64];
	struct method host, guest;
	struct emitter e;
	struct ch_info caller = {.size = sizeof caller}, callee = {.size = sizeof callee};
	uint64_t with_record = 0;
	begin();
	method_new(rig.stage, &host, "host");
	method_open(&e, &host);
	emit_moments(&e);
	method_commit(&e, &host);
	CHECK_EQ(ch_block_info(host.block, &caller), CH_OK);
	method_new(other, &guest, "guest");
	method_open(&e, &guest);
	emit_moments(&e);
	method_commit(&e, &guest);
	CHECK_EQ(ch_block_info(guest.block, &callee), CH_OK);
	for (unsigned i = 0; i < MOMENTS; i++) {
		uintptr_t return_to = (uintptr_t)caller.exec + 4;
		ucontext_t context = {0};
		words[RECORD] = 0;
		words[RECORD + 1] = return_to;
		code_make_trap(&context,
			       (const uint8_t *)callee.exec + code_moments[i].at -
				       CODE_TRAP_BEHIND_BYTES,
			       words, return_to);
		words[0] = 0;
		words[code_moments[i].words] = return_to;
		struct ch__sampler_stack stack = {.pc = (uintptr_t)callee.exec + code_moments[i].at,
						  .fp = (uintptr_t)(words + RECORD) -
							(uintptr_t)(intptr_t)CH_ARCH_RECORD_AT,
						  .sp = (uintptr_t)words,
						  .high = (uintptr_t)(words + 64),
						  .ucontext = &context};
		profile_take(&rig, &stack, 1);
		with_record += code_moments[i].has_record;
	}
	profile_stop(&rig);
	expect_lines(";host;guest;", MOMENTS, ";nobody;", 0);
	CHECK_EQ(profile_weight(&rig, ";host;host;guest;"), MOMENTS - with_record);
	end();
}

/* The profiler asks each of the thread's other heaps first. */
TEST(native_code_is_of_no_other_heap)
{
	begin();
	profile_take_pc(&rig, (const void *)((uintptr_t)profile_burn_all + 8), 5);
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, ""), 5);
	CHECK_EQ(profile_weight(&rig, "["), 0);
	end();
}

TEST(heap_that_the_thread_has_left_names_no_code_of_it)
{
	struct method guest;
	begin();
	const void *at = make_code(other, &guest, "guest");
	stage_detach(other);
	profile_take_pc(&rig, at, 5);
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, "guest"), 0);
	CHECK_EQ(profile_weight(&rig, ""), 5);
	stage_attach(other);
	end();
}

/* The child has no profile, and no profile hears of blocks that die in the child. The child does
 * not inherit the rings of the parent's threads. */
TEST(child_of_fork_forgets_the_profile_in_each_heap)
{
	struct method host, guest;
	uint64_t *ring;
	profile_skip_if_signals_wait();
	begin();
	profile_take_pc(&rig, make_code(rig.stage, &host, "host"), 3);
	profile_take_pc(&rig, make_code(other, &guest, "guest"), 5);
	struct ch__profiler *p = profile_running(&rig);
	ch__profile_lock(p);
	ring = p->samplers->ring;
	ch__profile_unlock(p);
	CHECK_EQ(msync(ring, 1, MS_ASYNC), 0);
	/* As if the handler ran in a thread of the parent. */
	struct ch__sampler_slot *slot = profile_slot(&rig);
	atomic_store(&slot->inside, 1);
	pid_t child = fork_child();
	if (child == 0) {
		CHECK(!atomic_load(&slot->sampler) && !atomic_load(&slot->inside));
		CHECK(msync(ring, 1, MS_ASYNC) != 0 && errno == ENOMEM);
		CHECK_EQ(ch_profile_write(rig.stage->heap, rig.path, NULL), CH_E_STATE);
		CHECK_EQ(ch_owner_release(guest.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		CHECK_EQ(ch_owner_release(host.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		for (unsigned number = 1; number <= CH__LOOK_HEAPS_MAX; number++)
			CHECK(!ch__profile_of(other->heap)->heard_by[number / 64]);
		_exit(0);
	}
	atomic_store(&slot->inside, 0);
	expect_exit(child, 0);
	CHECK_EQ(ch_owner_release(guest.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	profile_stop(&rig);
	expect_lines(";host;", 3, ";guest;", 5);
	end();
}

static _Atomic(int) forking_tid;
static _Atomic(bool) has_forked;

static void *fork_once(void *arg)
{
	atomic_store(&forking_tid, (int)syscall(SYS_gettid));
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	atomic_store(&has_forked, true);
	CHECK(child > 0);
	expect_exit(child, 0);
	return arg;
}

/* A child never has half a merge. */
TEST(fork_waits_while_rings_are_emptied)
{
	pthread_t thread;
	begin();
	struct ch__profiler *p = profile_running(&rig);
	ch__profile_lock(p);
	CHECK_EQ(pthread_create(&thread, NULL, fork_once, NULL), 0);
	TEST_UNTIL(atomic_load(&forking_tid) && thread_is_asleep(atomic_load(&forking_tid)))
		usleep(1000);
	CHECK(!atomic_load(&has_forked));
	ch__profile_unlock(p);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(atomic_load(&has_forked));
	end();
}

struct ending {
	struct ch__listener listener; /* first */
	pthread_t forker;
	_Atomic(bool) has_forked;
};

/* The child makes a heap and a profile: nothing of the ending heap's profile is in its way. */
static void *fork_into_a_profile(void *arg)
{
	struct ending *ending = arg;
	pid_t child = fork();
	if (child == 0) {
		struct ch_heap *heap;
		CHECK_EQ(ch_heap_create(NULL, &heap), CH_OK);
		CHECK_EQ(ch_profile_start(heap, 1, NULL), CH_OK);
		CHECK_EQ(ch_profile_stop(heap, NULL), CH_OK);
		CHECK_EQ(ch_heap_destroy(heap), CH_OK);
		_exit(0);
	}
	atomic_store(&ending->has_forked, true);
	expect_exit(child, 0);
	return NULL;
}

/* Hears of the end before the profile does, as it was added later. */
static void fork_in_the_middle(struct ch__listener *listener)
{
	struct ending *ending = (struct ending *)listener;
	CHECK_EQ(pthread_create(&ending->forker, NULL, fork_into_a_profile, ending), 0);
	TEST_UNTIL(atomic_load(&ch__heaps_lock.word) == CH__LOCK_AWAITED ||
		   atomic_load(&ending->has_forked))
		usleep(100);
	CHECK(!atomic_load(&ending->has_forked));
}

TEST(child_of_fork_has_no_heap_whose_profile_is_ending)
{
	static const struct ch__listener_calls calls = {.ends = fork_in_the_middle};
	struct ending ending = {.listener.calls = &calls};
	struct ch_heap *heap;
	profile_skip_if_signals_wait();
	CHECK_EQ(ch_heap_create(NULL, &heap), CH_OK);
	CHECK_EQ(ch_profile_start(heap, 1, NULL), CH_OK);
	ch__listener_add(heap, &ending.listener);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	CHECK_EQ(pthread_join(ending.forker, NULL), 0);
}
