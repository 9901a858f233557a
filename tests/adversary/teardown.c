/* SPDX-License-Identifier: MIT
 * teardown.c: ends while a thread is inside: a heap that is destroyed, a process that exits, unwind
 * tables whose memory goes. The library's calls to take a table from the unwinder pass through this
 * program, which looks at each table. */
#define _GNU_SOURCE
#include "tests/support/stage.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

struct play {
	struct stage *stage;
	struct method m, other;
	_Atomic(int) inside; /* 1 code is in its callee, 2 code may return, 3 code returned */
	uint64_t result;
};

/* --- 40: a heap --- */

static uint64_t wait_inside(void *arg)
{
	struct play *p = arg;
	atomic_store(&p->inside, 1);
	stage_wait(&p->inside, 2);
	return 40;
}

static void build_waiting(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m, "waiting", (void *)wait_inside);
}

static void enter_waiting(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	p->result = method_call(&p->m, p);
	atomic_store(&p->inside, 3);
}

static void check_destroy_is_refused(const struct stage *stage, const char *who)
{
	if (ch_heap_destroy(stage->heap) != CH_E_BUSY)
		FAIL("destroy: a heap went while %s", who);
}

/* The vm is gone already: its code is invalid, and still there for returning threads. */
EVERY_DRIVER(s40_heap_with_a_thread_inside_is_not_destroyed)
{
	struct play *p = stage_play(stage, sizeof *p);
	struct stage_thread t;
	stage_apart(stage, build_waiting, p);
	stage_spawn(stage, &t, enter_waiting, p);
	stage_wait(&p->inside, 1);
	check_destroy_is_refused(stage, "its vm was attached");
	CHECK_EQ(ch_vm_detach(stage->vm), CH_OK);
	stage->vm = NULL;
	CHECK_EQ(block_state(p->m.block), CH_BLOCK_NOTENTRANT);
	CHECK(method_has_fallback(&p->m));
	check_destroy_is_refused(stage, "a thread was in its code");
	stage_check(stage);
	stage_collect(stage); /* a refusal has changed nothing */
	CHECK_EQ(block_state(p->m.block), CH_BLOCK_NOTENTRANT);
	atomic_store(&p->inside, 2);
	stage_join(&t);
	CHECK_EQ(p->result, 40);
}

static uint64_t yield_inside(void *arg)
{
	fiber_yield(arg);
	return 41;
}

static void build_yielding(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m, "yielding", (void *)yield_inside);
}

static void enter_yielding(struct fiber *f, void *arg)
{
	struct play *p = arg;
	p->result = method_call(&p->m, f);
}

EVERY_DRIVER(s40_heap_with_a_suspended_fiber_is_not_destroyed)
{
	struct play *p = stage_play(stage, sizeof *p);
	struct fiber f;
	stage_apart(stage, build_yielding, p);
	fiber_start(stage, &f, enter_yielding, p);
	fiber_resume(&f);
	CHECK(!f.is_done);
	CHECK_EQ(ch_vm_detach(stage->vm), CH_OK);
	stage->vm = NULL;
	check_destroy_is_refused(stage, "a fiber was suspended in its code");
	stage_check(stage);
	fiber_resume(&f);
	CHECK(f.is_done);
	CHECK_EQ(p->result, 41);
	fiber_end(&f);
}

/* --- 40: a process --- */

static struct play *leaving;

static void outlive_exit(struct stage *stage, void *arg)
{
	struct play *p = arg;
	enter_waiting(stage, p);
	/* A thread not stopped by the exit goes on as ever. */
	method_constant(stage, &p->other, "late", 9);
	CHECK_EQ(method_call(&p->other, NULL), 9);
	method_drop(stage, &p->other);
	stage_collect(stage);
	stage_check(stage);
	atomic_store(&p->inside, 4);
}

/* 101: behind every destructor of the library, and behind the functions of atexit. */
__attribute__((destructor(101))) static void return_after_exit(void)
{
	struct play *p = leaving;
	if (!p)
		return;
	/* A host's cycle waits for nobody. */
	ch_thread_park();
	atomic_store(&p->inside, 2);
	stage_wait(&p->inside, 4);
	ch_thread_unpark();
	if (p->result != 40)
		FAIL("exit: a thread came back from code with %llu", (unsigned long long)p->result);
}

EVERY_DRIVER(s40_exit_leaves_code_to_the_threads_inside)
{
	stage->config.sinks = CH_SINK_UNWIND | CH_SINK_GDB;
	struct play *p = stage_play(stage, sizeof *p);
	static struct stage_thread t;
	stage_apart(stage, build_waiting, p);
	stage_spawn(stage, &t, outlive_exit, p);
	stage_wait(&p->inside, 1);
	stage_keep();
	if (CH_TSAN) { /* TSan reports each thread left at the end */
		ch_thread_park();
		atomic_store(&p->inside, 2);
		stage_join(&t);
		ch_thread_unpark();
		return;
	}
	leaving = p;
	/* The case returns, and the process ends around the thread. */
}

/* --- 41 --- */

static uintptr_t watched; /* only tables of this address's pool are looked at */
static size_t watched_bytes;
static _Atomic(int) withdrawn, unreadable, ill_formed;

/* A write from unreadable memory fails, too. */
static bool is_readable(uintptr_t address)
{
	int ends[2];
	CHECK_EQ(pipe(ends), 0);
	bool is_read = write(ends[1], (const void *)address, 1) == 1;
	close(ends[0]);
	close(ends[1]);
	return is_read;
}

static uint32_t word_at(const uint8_t *at)
{
	uint32_t word;
	memcpy(&word, at, sizeof word);
	return word;
}

/* Steps over the records like an unwinder that looks for the section's range once more. FDEs lead
 * back to a CIE of version 1, and the described code is still there. */
static void look_at(const uint8_t *section)
{
	uintptr_t pc = 0;
	bool is_sound = word_at(section) >= 8 && word_at(section + 4) == 0;
	const uint8_t *at = section, *end = section + (1 << 20);
	for (; is_sound && at < end && word_at(at); at += 4 + word_at(at)) {
		uint32_t distance = word_at(at + 4);
		is_sound = word_at(at) % 4 == 0 && word_at(at) <= 4096;
		if (!distance)
			continue;
		const uint8_t *cie = at + 4 - distance;
		is_sound &= cie >= section && cie < at;
		is_sound = is_sound && word_at(cie + 4) == 0 && cie[8] == 1;
		if (!pc)
			memcpy(&pc, at + 8, sizeof pc);
	}
	if (!is_sound)
		atomic_fetch_add(&ill_formed, 1);
	else if (pc - watched < watched_bytes && !is_readable(pc))
		atomic_fetch_add(&unreadable, 1);
	if (!is_sound || pc - watched < watched_bytes)
		atomic_fetch_add(&withdrawn, 1);
}

void *__deregister_frame_info(const void *begin);
void *__deregister_frame_info(const void *begin)
{
	void *(*real)(const void *);
	if (watched_bytes)
		look_at(begin);
	*(void **)&real = dlsym(RTLD_NEXT, "__deregister_frame_info");
	CHECK(real);
	/* An unwinder that misses a table ends the process: a broken table is reported instead. */
	return ill_formed ? NULL : real(begin);
}

static void check_withdrawals(int least)
{
	if (atomic_load(&ill_formed))
		FAIL("unwinder: a table's memory was given back before the unwinder forgot it");
	if (atomic_load(&unreadable))
		FAIL("unwinder: it still knew code whose memory was gone already");
	CHECK(atomic_load(&withdrawn) >= least);
}

static void watch(const struct stage *stage)
{
	watched = stage->heap->pool->exec_base;
	watched_bytes = stage->heap->pool->pool_bytes;
}

/* Several chunks of unused code. */
static void fill_chunks(struct stage *stage, void *arg)
{
	(void)arg;
	for (int i = 0; i < 120; i++) {
		struct method m;
		struct emitter e;
		method_new(stage, &m, "large");
		struct ch_open open = {.owner = m.owner, .hot_bytes = 30000};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_filler(&e, 29000);
		emit_answer(&e, (uint32_t)i);
		method_commit(&e, &m);
		CHECK_EQ(method_call(&m, NULL), i);
		method_drop(stage, &m);
	}
}

/* Chunks go back to the system singly while the heap lives. */
EVERY_DRIVER(s41_unwinder_forgets_a_chunk_before_its_memory_goes)
{
	stage->config.pool_bytes = 8 << 20;
	stage->counts_only = true;
	struct play *p = stage_play(stage, sizeof *p);
	watch(stage);
	stage_apart(stage, fill_chunks, NULL);
	for (int i = 0; i < 3; i++)
		stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
	CHECK(stage_stats(stage).committed_bytes_now <= 1 << 20);
	check_withdrawals(2);
}

/* Code in several chunks, trampolines and a block with frames of its own would each have a table.
 * The heap's end withdraws all tables first; then side memory and pool go. */
EVERY_DRIVER(s41_unwinder_forgets_everything_before_a_heap_goes)
{
	stage->config.pool_bytes = 8 << 20;
	stage->counts_only = true;
	struct play *p = stage_play(stage, sizeof *p);
	struct ch_block trampoline;
	watch(stage);
	stage_apart(stage, fill_chunks, NULL);
	method_new(stage, &p->m, "stamped");
	CHECK_EQ(ch_trampoline_make(p->m.owner, CH_TRAMPOLINE_FRAMED, stage_fallback, 0, NULL, NULL,
				    &trampoline),
		 CH_OK);
	stage_end(p->stage);
	check_withdrawals(4);
}
