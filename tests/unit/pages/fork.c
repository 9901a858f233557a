/* SPDX-License-Identifier: MIT
 * fork.c: neither process of a fork sees the other's writes to code. The child runs its copy under
 * PR_SET_MDWE, too, and a child without a copy has no code at all. */
#define _GNU_SOURCE
#include "pages/chunks.h"
#include "tests/support/pool_rig.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

struct meeting { /* shared by parent and child */
	_Atomic(uint32_t) parent_wrote, child_wrote;
};

static struct meeting *meeting_new(void)
{
	struct meeting *m =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(m != MAP_FAILED);
	return m;
}

static void await(_Atomic(uint32_t) *word)
{
	while (atomic_load(word) == 0)
		usleep(100);
}

static void expect_success(pid_t pid)
{
	int status;
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		FAIL("child status 0x%x", status);
}

enum { BACKENDS = 3 };
static const enum ch_backend backends[BACKENDS] = {CH_BACKEND_DUAL, CH_BACKEND_MEMFD,
						    CH_BACKEND_PROCMEM};

enum { OTHER_ZONE_FRAME = 1 };

static struct pool_rig create_as(enum ch_backend backend)
{
	struct ch__pool_config config = rig_config(8 * MIB);
	config.backend = backend;
	config.zones[OTHER_ZONE_FRAME] = CH__ZONE_OWN;
	unsetenv("CODEHEAP_WX");
	return rig_create(&config);
}

static struct pool_rig create_with_code(enum ch_backend backend, uint32_t value, uintptr_t *code)
{
	struct pool_rig rig = create_as(backend);
	*code = rig_reserve(&rig, rig_take(&rig), 16);
	rig_write(&rig, *code, value);
	return rig;
}

/* Runs through the whole life of the pool in the child. */
static void live_on(const struct pool_rig *rig)
{
	rig_check(rig);
	uint32_t span = ch__pool_take_span(rig->pool, rig->pool->page_count / 2, 0, CH__SPAN_CODE);
	CHECK(span != CH__PAGE_NONE);
	uintptr_t code = rig->pool->exec_base + ((uintptr_t)span << rig->pool->page_log2) + 64;
	rig_write(rig, code, 9);
	CHECK_EQ(rig_call(code), 9);
	ch__pool_release_span(rig->pool, span);
	ch__pool_trim(rig->pool);
	rig_check(rig);
}

static void fork_and_write(struct pool_rig *rig, bool is_mdwe)
{
	struct ch__pool *pool = rig->pool;
	struct meeting *m = meeting_new();
	uint32_t page = rig_take(rig);
	uintptr_t mine = rig_reserve(rig, page, 16), yours = rig_reserve(rig, page, 16);
	rig_write(rig, mine, 1);
	rig_write(rig, yours, 2);
	uint8_t *runtime = ch__pool_write(pool, pool->runtime_exec);
	ch__pool_sync(pool, pool->runtime_exec, ch__arch_constant_function_write(runtime, 3));
	CHECK(rig_copy_for_child(pool, true));
	pid_t pid = fork_child();
	if (pid == 0) {
		if (is_mdwe)
			CHECK_EQ(prctl(65 /* PR_SET_MDWE */, 1, 0, 0, 0), 0);
		CHECK(ch__pool_fork_child(pool));
		await(&m->parent_wrote);
		CHECK_EQ(rig_call(mine), 1); /* the parent has poisoned its code */
		CHECK_EQ(rig_call(yours), 2);
		CHECK_EQ(rig_call(pool->runtime_exec), 3);
		rig_write(rig, yours, 22);
		CHECK_EQ(rig_call(yours), 22);
		atomic_store(&m->child_wrote, 1);
		live_on(rig);
		rig_destroy(rig);
		_exit(0);
	}
	ch__pool_fork_parent(pool);
	ch__pool_poison(pool, mine, 16);
	atomic_store(&m->parent_wrote, 1);
	await(&m->child_wrote);
	CHECK_EQ(rig_call(yours), 2);
	expect_success(pid);
	CHECK_EQ(rig_call(yours), 2);
	live_on(rig);
}

TEST(fork_isolates_dual)
{
	struct pool_rig rig = create_as(CH_BACKEND_DUAL);
	fork_and_write(&rig, false);
	rig_destroy(&rig);
}

TEST(fork_isolates_memfd)
{
	struct pool_rig rig = create_as(CH_BACKEND_MEMFD);
	fork_and_write(&rig, false);
	rig_destroy(&rig);
}

TEST(fork_isolates_procmem)
{
	skip_without_procmem();
	struct pool_rig rig = create_as(CH_BACKEND_PROCMEM);
	fork_and_write(&rig, false);
	rig_destroy(&rig);
}

/* The parent's memory lies where the child's next chunk is born, and must stay the parent's. */
static void commit_beside(struct pool_rig *rig)
{
	struct meeting *m = meeting_new();
	uint8_t *place = ch__os_reserve(MIB, ch__os_page_bytes(), 0, ch__os_anywhere);
	CHECK(place);
	ch__os_unreserve(place, MIB);
	pid_t pid = _Fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		await(&m->parent_wrote);
		/* Takes memory of the size of the place: a whole chunk. */
		uint32_t span = ch__pool_take_span(rig->pool, ch__pool_chunk_pages(rig->pool), 0,
						   CH__SPAN_CODE);
		CHECK(span != CH__PAGE_NONE);
		uintptr_t code = ch__pool_page_exec(rig->pool, span) + 64;
		rig_write(rig, code, 2);
		_exit(rig_call(code) != 2);
	}
	CHECK_EQ(ch__pool_chunk_bytes(rig->pool), MIB);
	CHECK(mmap(place, MIB, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == place);
	atomic_store(&m->parent_wrote, 1);
	expect_success(pid);
	for (size_t i = 0; i < MIB; i++)
		if (place[i])
			FAIL("a child without handlers filled its parent's memory with traps");
	CHECK_EQ(munmap(place, MIB), 0);
}

TEST(memory_of_a_child_without_handlers_is_its_own)
{
	skip_without_procmem();
	struct pool_rig rig = create_as(CH_BACKEND_PROCMEM);
	commit_beside(&rig);
	rig_destroy(&rig);
}

/* The inherited file is the parent's memory. */
TEST(writes_of_a_child_without_handlers_are_its_own)
{
	skip_without_procmem();
	struct pool_rig rig = create_as(CH_BACKEND_PROCMEM);
	uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
	rig_write(&rig, code, 1);
	pid_t pid = _Fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		rig_write(&rig, code, 2);
		_exit(rig_call(code) != 2);
	}
	int status;
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (rig_call(code) != 1)
		FAIL("a child without handlers wrote to its parent's code");
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	rig_write(&rig, code, 3);
	CHECK_EQ(rig_call(code), 3);
	rig_destroy(&rig);
}

TEST(fork_isolates_under_mdwe)
{
	if (prctl(66 /* PR_GET_MDWE */, 0, 0, 0, 0) < 0)
		skip("this kernel has no PR_SET_MDWE");
	for (unsigned i = 0; i < BACKENDS; i++) {
		if (!rig_may_have(backends[i]))
			continue;
		struct pool_rig rig = create_as(backends[i]);
		fork_and_write(&rig, true);
		rig_destroy(&rig);
	}
}

static void fork_generations(struct pool_rig *rig, uintptr_t code, unsigned depth)
{
	if (depth == 0)
		return;
	CHECK(rig_copy_for_child(rig->pool, true));
	pid_t pid = fork_child();
	if (pid == 0) {
		CHECK(ch__pool_fork_child(rig->pool));
		CHECK_EQ(rig_call(code), depth);
		rig_write(rig, code, depth - 1);
		fork_generations(rig, code, depth - 1);
		live_on(rig);
		_exit(0);
	}
	ch__pool_fork_parent(rig->pool);
	expect_success(pid);
	CHECK_EQ(rig_call(code), depth);
}

TEST(grandchildren_have_their_own_copy_too)
{
	for (unsigned i = 0; i < BACKENDS; i++) {
		if (!rig_may_have(backends[i]))
			continue;
		uintptr_t code;
		struct pool_rig rig = create_with_code(backends[i], 4, &code);
		fork_generations(&rig, code, 4);
		rig_destroy(&rig);
	}
}

/* --- contents of the child --- */

static void expect_same_runtime_page(const struct ch__pool *pool, const uint8_t *before)
{
	const uint8_t *runtime = (const uint8_t *)pool->runtime_exec;
	for (size_t i = 0; i < pool->runtime_bytes; i++)
		if (runtime[i] != before[i])
			FAIL("byte %zu of the runtime page is not the parent's", i);
}

/* Pages without memory would read as zeros, which execute. */
static void expect_backed_only(const struct ch__pool *pool)
{
	for (uint32_t page = 0; page < pool->page_count; page++)
		CHECK_EQ(ch__os_is_readable((const void *)ch__pool_page_exec(pool, page)),
			 ch__pool_page_is_backed(pool, page));
}

TEST(child_has_the_whole_runtime_page_and_memory_where_its_parent_has_some)
{
	for (unsigned i = 0; i < BACKENDS; i++) {
		if (!rig_may_have(backends[i]))
			continue;
		struct pool_rig rig = create_as(backends[i]);
		struct ch__pool *pool = rig.pool;
		rig_write(&rig, rig_reserve(&rig, rig_take(&rig), 16), 4);
		/* Memory ends within the first chunk, and within the second one. */
		uint32_t pages = ch__pool_chunk_pages(pool);
		CHECK(pool->chunk_count > 2 && pool->pages_committed < pages);
		CHECK_EQ(ch__pool_take_page(pool, OTHER_ZONE_FRAME), pages);
		CHECK(pool->pages_committed < pages);
		uint8_t *before = malloc(pool->runtime_bytes);
		CHECK(before);
		uint8_t *runtime = ch__pool_write(pool, pool->runtime_exec);
		for (size_t at = 0; at < pool->runtime_bytes; at += 512)
			ch__arch_constant_function_write(runtime + at, (uint32_t)at);
		ch__pool_sync(pool, pool->runtime_exec, pool->runtime_bytes);
		memcpy(before, runtime, pool->runtime_bytes);
		expect_same_runtime_page(pool, before);
		expect_backed_only(pool);
		CHECK(rig_copy_for_child(pool, true));
		pid_t pid = fork_child();
		if (pid == 0) {
			CHECK(ch__pool_fork_child(pool));
			expect_same_runtime_page(pool, before);
			expect_backed_only(pool);
			_exit(0);
		}
		ch__pool_fork_parent(pool);
		expect_success(pid);
		free(before);
		rig_destroy(&rig);
	}
}

/* The child must neither run code that the parent changes, nor change code that the parent runs. */
TEST(child_without_handlers_has_neither_view_of_shared_memory)
{
	for (unsigned i = 0; i < BACKENDS; i++) {
		if (backends[i] == CH_BACKEND_PROCMEM || !rig_may_have(backends[i]))
			continue;
		uintptr_t code;
		struct pool_rig rig = create_with_code(backends[i], 1, &code);
		const void *write = ch__pool_write(rig.pool, code);
		CHECK(ch__os_is_readable((const void *)code) && ch__os_is_readable(write));
		pid_t pid = _Fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(ch__os_is_readable((const void *)code) ? 1
			      : ch__os_is_readable(write)	     ? 2
								     : 0);
		expect_success(pid);
		rig_destroy(&rig);
	}
}

static bool is_mapped(uint8_t *at)
{
	return msync(at, ch__os_page_bytes(), MS_ASYNC) == 0;
}

/* A mapping that came to a view's place before the handler ran belongs to somebody, and stays, also
 * in the place of constants, which would read as zero. The copy goes. */
static void have_place_taken(const struct pool_rig *rig)
{
	const struct ch__views *v = &rig->pool->inner->views;
	struct ch__views copy = rig->pool->inner->copy;
	CHECK(is_mapped(copy.write));
	for (unsigned i = 0; i < 2; i++) {
		uint8_t *place = i ? v->write : v->exec, *taken = place + v->runtime_bytes;
		pid_t pid = fork_child();
		if (pid == 0) {
			CHECK(mmap(taken, v->guard_bytes, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
				   0) == taken);
			memset(taken, 0x5a, v->guard_bytes);
			CHECK(!ch__pool_fork_child(rig->pool));
			CHECK(!is_mapped(copy.write));
			CHECK(!copy.has_exec || !is_mapped(copy.exec));
			/* The child's child has none either; inherited views go first there. */
			CHECK(!rig_copy_for_child(rig->pool, true));
			CHECK(!ch__pool_fork_child(rig->pool));
			for (size_t at = 0; at < v->guard_bytes; at++)
				CHECK_EQ(taken[at], 0x5a);
			_exit(0);
		}
		expect_success(pid);
	}
}

TEST(child_whose_place_is_taken_has_no_code_and_takes_nothing)
{
	for (unsigned i = 0; i < BACKENDS; i++) {
		if (backends[i] == CH_BACKEND_PROCMEM || !rig_may_have(backends[i]))
			continue;
		struct pool_rig rig = create_as(backends[i]);
		CHECK_EQ(ch__pool_take_span(rig.pool, 1, 0, CH__SPAN_RODATA), 0);
		CHECK(rig_copy_for_child(rig.pool, true));
		have_place_taken(&rig);
		ch__pool_fork_parent(rig.pool);
		rig_destroy(&rig);
	}
}

/* The system would not keep a part of the parent's view from children, so the child gave its places
 * up. The child's own views are kept from its children. */
TEST(child_of_a_process_that_kept_a_part_has_places_as_any_other)
{
	if (!rig_may_have(CH_BACKEND_MEMFD))
		skip("no memfd here");
	struct pool_rig rig = create_as(CH_BACKEND_MEMFD);
	rig.pool->inner->views.is_part_inherited = true;
	CHECK(rig_copy_for_child(rig.pool, true));
	pid_t pid = fork_child();
	if (pid == 0) {
		CHECK(ch__pool_fork_child(rig.pool));
		CHECK(rig_copy_for_child(rig.pool, true));
		have_place_taken(&rig);
		_exit(0);
	}
	ch__pool_fork_parent(rig.pool);
	expect_success(pid);
	rig_destroy(&rig);
}

static void expect_free(uint8_t *at, size_t bytes)
{
	CHECK(mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
		   0) == at);
}

/* Such a child inherits its parent's reservations, which are without memory. */
static void lose_code_twice(struct pool_rig *rig)
{
	struct ch__views v = rig->pool->inner->views;
	size_t whole = v.bytes + 2 * v.guard_bytes;
	CHECK(!ch__pool_fork_child(rig->pool));
	CHECK(!rig_copy_for_child(rig->pool, true));
	pid_t pid = fork_child();
	if (pid == 0) {
		CHECK(!ch__pool_fork_child(rig->pool));
		rig_destroy(rig);
		expect_free(v.exec - v.guard_bytes, whole);
		expect_free(v.write - v.guard_bytes, whole);
		_exit(0);
	}
	ch__pool_fork_parent(rig->pool);
	expect_success(pid);
}

TEST(child_of_a_child_without_code_gives_its_places_back)
{
	for (unsigned i = 0; i < BACKENDS; i++) {
		if (!rig_may_have(backends[i]))
			continue;
		struct pool_rig rig = create_as(backends[i]);
		CHECK(rig_copy_for_child(rig.pool, false));
		pid_t pid = fork_child();
		if (pid == 0) {
			lose_code_twice(&rig);
			_exit(0);
		}
		ch__pool_fork_parent(rig.pool);
		expect_success(pid);
		rig_destroy(&rig);
	}
}

struct call {
	struct pool_rig *rig;
	uintptr_t at;
	bool runs_handler;
};

static void call_without_code(void *arg)
{
	struct call *call = arg;
	if (call->runs_handler) {
		CHECK(!ch__pool_fork_child(call->rig->pool));
		uint64_t bytes, largest;
		ch__pool_count_free(call->rig->pool, &bytes, &largest);
		CHECK(bytes == 0 && largest == 0);
	}
	rig_call(call->at);
}

static void write_without_code(void *arg)
{
	struct call *call = arg;
	if (call->runs_handler)
		CHECK(!ch__pool_fork_child(call->rig->pool));
	*ch__pool_write(call->rig->pool, call->at) = 0;
}

TEST(child_without_copy_has_no_code)
{
	for (unsigned i = 0; i < BACKENDS; i++)
		/* Private memory is the child's own unless a handler takes the memory away. */
		for (unsigned runs_handler = backends[i] == CH_BACKEND_PROCMEM;
		     runs_handler < 2 && rig_may_have(backends[i]); runs_handler++) {
			struct pool_rig rig = create_as(backends[i]);
			uint32_t full = rig_take(&rig), partly = rig_take(&rig);
			uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
			struct call call = {&rig, code, runs_handler};
			rig_write(&rig, code, 6);
			/* Room in `partly` needs no new memory, and still no child may use it. */
			rig_write(&rig, rig_reserve(&rig, partly, 16), 7);
			size_t room = (size_t)1 << rig.pool->page_log2;
			rig_reserve(&rig, full, room - 64);
			ch__pool_retire_page(rig.pool, partly);
			ch__pool_retire_page(rig.pool, full);
			CHECK_EQ(ch__page_state(&rig.pool->pages[full]), CH__PAGE_FULL);
			CHECK_EQ(ch__page_state(&rig.pool->pages[partly]), CH__PAGE_PARTLY);
			CHECK(rig_copy_for_child(rig.pool, false));
			expect_signal(call_without_code, &call, SIGSEGV);
			expect_signal(write_without_code, &call, SIGSEGV);
			ch__pool_fork_parent(rig.pool);
			CHECK_EQ(rig_call(code), 6);
			rig_destroy(&rig);
		}
}

/* A thread of the parent had taken the pages, and is not in the child. */
TEST(child_without_copy_gives_pages_back_and_touches_no_byte)
{
	for (unsigned i = 0; i < BACKENDS; i++) {
		if (!rig_may_have(backends[i]))
			continue;
		struct pool_rig rig = create_as(backends[i]);
		uint32_t span = ch__pool_take_span(rig.pool, 2, 0, CH__SPAN_CODE);
		CHECK(span != CH__PAGE_NONE);
		CHECK(rig_copy_for_child(rig.pool, false));
		pid_t pid = fork_child();
		if (pid == 0) {
			CHECK(!ch__pool_fork_child(rig.pool));
			ch__pool_release_span(rig.pool, span);
			_exit(ch__page_state(&rig.pool->pages[span]) != CH__PAGE_FREE);
		}
		ch__pool_fork_parent(rig.pool);
		expect_success(pid);
		ch__pool_release_span(rig.pool, span);
		rig_destroy(&rig);
	}
}

/* A failing child has no access; a surviving child has all that it asked the system for. */
struct failing {
	struct pool_rig *rig;
	uint64_t nth;
	bool is_for_good;
};

static void fail_in_child(void *arg)
{
	struct failing *f = arg;
	ch__os_fail_at(f->nth, f->is_for_good);
	bool is_usable = ch__pool_fork_child(f->rig->pool);
	bool is_whole = ch__os_failable_calls() < f->nth;
	ch__os_fail_at(0, false);
	CHECK_EQ(is_usable, is_whole);
	rig_check(f->rig);
	rig_destroy(f->rig);
}

static void expect_one_in_a_core(const struct ch__pool *pool, uintptr_t code)
{
	CHECK(!mapping_has_flag((const void *)code, " dd"));
	CHECK(mapping_has_flag((const void *)(code + (uintptr_t)pool->delta), " dd"));
}

/* A core has the code by the view that runs, and needs no second copy. */
TEST(code_is_in_a_core_once)
{
	for (unsigned i = 0; i < BACKENDS; i++) {
		if (!rig_may_have(backends[i]))
			continue;
		uintptr_t code;
		struct pool_rig rig = create_with_code(backends[i], 6, &code);
		expect_one_in_a_core(rig.pool, code);
		CHECK(rig_copy_for_child(rig.pool, true));
		pid_t pid = fork_child();
		if (pid == 0) {
			CHECK(ch__pool_fork_child(rig.pool));
			expect_one_in_a_core(rig.pool, code);
			_exit(0);
		}
		ch__pool_fork_parent(rig.pool);
		expect_success(pid);
		rig_destroy(&rig);
	}
}

/* A failing call of the copy leaves the parent whole. */
TEST(each_failing_call_of_a_fork_is_survived)
{
	for (unsigned i = 0; i < BACKENDS; i++) {
		if (!rig_may_have(backends[i]))
			continue;
		uintptr_t code;
		struct pool_rig rig = create_with_code(backends[i], 6, &code);
		bool is_copied = false;
		for (uint64_t n = 1; !is_copied; n++) {
			ch__os_fail_at(n, true);
			is_copied = rig_copy_for_child(rig.pool, true);
			ch__os_fail_at(0, false);
			CHECK(n < 100);
			if (!is_copied)
				CHECK_EQ(errno, ENOMEM);
			ch__pool_fork_parent(rig.pool);
			CHECK_EQ(rig_call(code), 6);
		}
		for (unsigned n = 2; n < 40; n++) {
			struct failing f = {&rig, n / 2, n % 2};
			CHECK(rig_copy_for_child(rig.pool, true));
			expect_signal(fail_in_child, &f, 0);
			ch__pool_fork_parent(rig.pool);
		}
		rig_destroy(&rig);
	}
}
