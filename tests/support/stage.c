/* SPDX-License-Identifier: MIT
 * stage.c: the VM of the adversary tests: drivers, threads and methods (fibers are in
 * stage_fibers.c, instructions in stage_<arch>.c). stage.c judges nothing, save that calls which
 * must succeed do. */
#define _GNU_SOURCE
#include "tests/support/stage.h"

#include "codeheap/collector.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if CH_TEST_BDW
#define GC_THREADS 1
#define GC_NO_THREAD_REDIRECTS 1
#include "codeheap/codeheap_bdw.h"
#include "os/threads.h"
#include <gc/gc.h>
/* Roots of the collector, like the stage's owners; nothing else reads the anchors. */
static void *volatile anchors[STAGE_OWNERS];
#endif

static uint64_t answer_fallback(void *arg)
{
	(void)arg;
	return STAGE_FALLBACK;
}
const void *const stage_fallback = (const void *)answer_fallback;

/* --- callbacks --- */

static struct ch_block on_hit(void *user, struct ch_branch branch, void *branch_user,
			      struct ch_regs *regs)
{
	struct stage *s = user;
	atomic_fetch_add(&s->hits, 1);
	if (!s->hit)
		FAIL("a branch led to its stub");
	return s->hit(s, branch, branch_user, regs);
}

struct ch_block stage_no_target(struct stage *s, struct ch_branch branch, void *user,
				struct ch_regs *regs)
{
	(void)s, (void)branch, (void)user, (void)regs;
	return (struct ch_block){0};
}

static uintptr_t on_ref(void *user, uintptr_t word)
{
	struct stage *s = user;
	return s->ref ? s->ref(s, word) : word;
}

static void on_roots(void *user, struct ch_marker *marker)
{
	struct stage *s = user;
	if (s->roots)
		s->roots(s, marker);
}

static void on_freed(void *user, void *block_user)
{
	struct stage *s = user;
	atomic_fetch_add(&s->freed, 1);
	if (block_user && !s->counts_only)
		__atomic_fetch_add(&((struct method *)block_user)->freed, 1, __ATOMIC_RELAXED);
	if (s->gone)
		s->gone(s, block_user);
}

static void on_wanted(void *user)
{
	atomic_fetch_add(&((struct stage *)user)->wanted, 1);
}

static void on_space(void *user)
{
	atomic_fetch_add(&((struct stage *)user)->space, 1);
}

/* --- the world of a host: running threads share the world, a collecting thread has it alone --- */

static pthread_rwlock_t world;
static bool has_world;
static _Thread_local int outside; /* how many times the thread has left the world */

static void leave_world(void)
{
	ch_thread_park();
	if (!outside++ && has_world)
		CHECK_EQ(pthread_rwlock_unlock(&world), 0);
}

static void enter_world(void)
{
	if (!--outside && has_world)
		CHECK_EQ(pthread_rwlock_rdlock(&world), 0);
	ch_thread_unpark();
}

static void make_world(void)
{
	pthread_rwlockattr_t attributes;
	CHECK_EQ(pthread_rwlockattr_init(&attributes), 0);
	/* A collecting thread does not wait for ever. */
	CHECK_EQ(pthread_rwlockattr_setkind_np(&attributes,
					       PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP),
		 0);
	CHECK_EQ(pthread_rwlock_init(&world, &attributes), 0);
	pthread_rwlockattr_destroy(&attributes);
	CHECK_EQ(pthread_rwlock_rdlock(&world), 0);
	has_world = true;
}

static void stop_world(void)
{
	leave_world();
	if (has_world)
		CHECK_EQ(pthread_rwlock_wrlock(&world), 0);
	ch_thread_unpark();
}

static void resume_world(void)
{
	ch_thread_park();
	if (has_world)
		CHECK_EQ(pthread_rwlock_unlock(&world), 0);
	enter_world();
}

void stage_poll(const struct stage *s)
{
	ch_thread_poll();
	if (s->has_world) {
		leave_world();
		enter_world();
	}
}

/* --- life --- */

struct stage *stage_new(enum stage_driver driver)
{
	struct stage *s = calloc(1, sizeof *s);
	CHECK(s);
	s->driver = driver;
	CHECK_EQ(pthread_mutex_init(&s->lock, NULL), 0);
	ch_config_init(&s->config);
	s->config.pool_bytes = 4 << 20;
	s->config.page_bytes = test_page_bytes();
	s->config.driver = driver == STAGE_HOST ? CH_DRIVER_HOST : CH_DRIVER_BUILTIN;
	if (driver == STAGE_SIGNALS)
		s->config.stop_signal = STAGE_STOP_SIGNAL;
	if (!CH_TSAN || driver != STAGE_SIGNALS)
		s->config.stop_wait_ms = TEST_PATIENCE_MS;
	return s;
}

struct stage *stage_new_host(int stop_signal)
{
	struct stage *s = stage_new(STAGE_HOST);
	s->config.stops_world = true;
	s->config.stop_signal = stop_signal;
	return s;
}

#if CH_TEST_BDW
/* CODEHEAP_TEST_BOEHM: "markers" means four marking threads, "incremental" marking in steps between
 * which the world runs, anything else libgc's defaults. */
static bool is_incremental;
static void start_collector(void)
{
	const char *mode = getenv("CODEHEAP_TEST_BOEHM");
	bool has_markers = mode && !strcmp(mode, "markers");
	is_incremental = mode && !strcmp(mode, "incremental");
	if (has_markers)
		CHECK_EQ(setenv("GC_MARKERS", "4", 1), 0);
	GC_INIT();
	GC_allow_register_threads();
	if (is_incremental)
		GC_enable_incremental();
	/* The number of markers beside the collecting thread. */
	CHECK(!has_markers || GC_get_parallel() == 3);
	CHECK(!is_incremental || GC_is_incremental_mode());
}
#endif

void stage_start(struct stage *s)
{
	struct ch_ops ops = {.size = sizeof ops,
			     .branch_hit = on_hit,
			     .ref = on_ref,
			     .roots = on_roots,
			     .block_freed = on_freed,
			     .collect_wanted = on_wanted,
			     .space_free = on_space};
#if CH_TEST_BDW
	if (s->driver == STAGE_BOEHM) {
		start_collector();
		CHECK_EQ(ch_bdw_heap_create(&s->config, &s->heap), CH_OK);
	}
#endif
	if (!s->heap)
		CHECK_EQ(ch_heap_create(&s->config, &s->heap), CH_OK);
	CHECK_EQ(ch_vm_attach(s->heap, &ops, s, &s->vm), CH_OK);
	CHECK_EQ(ch_thread_attach(s->heap, NULL, NULL), CH_OK);
	if (s->has_world)
		make_world();
}

void *stage_memory(struct stage *s, size_t bytes)
{
	s->play = s->user = calloc(1, bytes);
	CHECK(s->play);
	return s->play;
}

void *stage_play(struct stage *s, size_t bytes)
{
	*(struct stage **)stage_memory(s, bytes) = s;
	stage_start(s);
	return s->play;
}

void stage_check(struct stage *s)
{
	char report[300];
	if (ch_heap_check(s->heap, report, sizeof report) != CH_OK)
		FAIL("heap check: %s", report);
}

struct ch_stats stage_stats(struct stage *s)
{
	struct ch_stats stats = {.size = sizeof stats};
	CHECK_EQ(ch_heap_stats(s->heap, &stats), CH_OK);
	return stats;
}

/* What stage_run has to end. */
static struct stage *running;

void stage_end(struct stage *s)
{
	if (s == running)
		running = NULL;
	stage_check(s);
	if (s->vm)
		CHECK_EQ(ch_vm_detach(s->vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(s->heap), CH_OK);
	pthread_mutex_destroy(&s->lock);
	free(s->play);
	free(s);
}

void stage_run(struct stage *s, void (*body)(struct stage *))
{
	running = s;
	body(s);
	if (running)
		stage_end(running);
}

void stage_keep(void)
{
	running = NULL;
}

/* --- collections --- */

void stage_mark(struct stage *s, struct ch_marker *marker)
{
	for (unsigned i = 0; i < STAGE_OWNERS; i++)
		if (s->owners[i].bits)
			ch_mark_owner(marker, s->owners[i]);
	ch_mark_stacks(marker);
}

static enum ch_status collect_host(struct stage *s)
{
	struct ch_marker *marker;
	stop_world();
	enum ch_status status = ch_mark_begin(s->heap, &marker);
	if (status == CH_OK) {
		stage_mark(s, marker);
		status = ch_mark_end(marker, true);
	}
	resume_world();
	if (status != CH_OK)
		return status;
	while (atomic_load(&s->heap->sweep_pending))
		ch_thread_poll();
	ch_thread_poll();
	return CH_OK;
}

__attribute__((noinline)) enum ch_status stage_try_collect_now(struct stage *s)
{
	return s->driver == STAGE_HOST ? collect_host(s) : ch_heap_collect(s->heap);
}

__attribute__((noinline)) void stage_collect_now(struct stage *s)
{
	CHECK_EQ(stage_try_collect_now(s), CH_OK);
}

/* --- threads --- */

void stage_attach(struct stage *s)
{
#if CH_TEST_BDW
	struct GC_stack_base base;
	if (s->driver == STAGE_BOEHM) {
		CHECK_EQ(GC_get_stack_base(&base), GC_SUCCESS);
		CHECK_EQ(GC_register_my_thread(&base), GC_SUCCESS);
	}
#endif
	CHECK_EQ(ch_thread_attach(s->heap, NULL, NULL), CH_OK);
}

void stage_signal_stack(struct stage *s, void *at, size_t bytes)
{
#if CH_TEST_BDW
	const void *low, *high;
	CHECK(ch__os_stack_bounds(&low, &high));
	if (s->driver == STAGE_BOEHM)
		GC_register_altstack((void *)(uintptr_t)low,
				     (GC_word)((uintptr_t)high - (uintptr_t)low), at, bytes);
#else
	(void)s, (void)at, (void)bytes;
#endif
}

void stage_leave_collector(const struct stage *s)
{
#if CH_TEST_BDW
	if (s->driver == STAGE_BOEHM)
		CHECK_EQ(GC_unregister_my_thread(), GC_SUCCESS);
#else
	(void)s;
#endif
}

void stage_detach(struct stage *s)
{
	CHECK_EQ(ch_thread_detach(s->heap), CH_OK);
	stage_leave_collector(s);
}

static void *run_attached(void *p)
{
	struct stage_thread *t = p;
	if (t->stage->has_world)
		CHECK_EQ(pthread_rwlock_rdlock(&world), 0);
	stage_attach(t->stage);
	t->fn(t->stage, t->arg);
	stage_detach(t->stage);
	if (t->stage->has_world)
		CHECK_EQ(pthread_rwlock_unlock(&world), 0);
	return NULL;
}

void stage_spawn(struct stage *s, struct stage_thread *t, void (*fn)(struct stage *, void *),
		 void *arg)
{
	*t = (struct stage_thread){.stage = s, .fn = fn, .arg = arg};
	CHECK_EQ(pthread_create(&t->thread, NULL, run_attached, t), 0);
}

void stage_join(struct stage_thread *t)
{
	leave_world();
	CHECK_EQ(pthread_join(t->thread, NULL), 0);
	enter_world();
}

enum ch_fork stage_fork_kind(void)
{
	const char *backend = getenv("CODEHEAP_WX");
	return backend && strcmp(backend, "procmem") == 0 ? CH_FORK_COW : CH_FORK_COPY;
}

void stage_apart(struct stage *s, void (*fn)(struct stage *, void *), void *arg)
{
	struct stage_thread t;
	/* Parked before the new thread can start a host's cycle, which waits for nobody. */
	leave_world();
	stage_spawn(s, &t, fn, arg);
	stage_join(&t);
	enter_world();
}

void stage_wait(_Atomic(int) *word, int value)
{
	leave_world();
	TEST_UNTIL(atomic_load(word) == value)
		usleep(100);
	enter_world();
}

void stage_sleep(unsigned ms)
{
	uint64_t end = now_ns() + ms * UINT64_C(1000000);
	leave_world();
	while (now_ns() < end)
		usleep(200);
	enter_world();
}

void stage_pause(void)
{
	leave_world();
	usleep(20);
	enter_world();
}

/* --- methods --- */

static unsigned keep_owner(struct stage *s, struct ch_owner owner)
{
	CHECK_EQ(pthread_mutex_lock(&s->lock), 0);
	unsigned i = 0;
	while (s->owners[i].bits)
		if (++i == STAGE_OWNERS)
			FAIL("too many owners");
	s->owners[i] = owner;
	CHECK_EQ(pthread_mutex_unlock(&s->lock), 0);
	return i;
}

void method_new(struct stage *s, struct method *m, const char *name)
{
	memset(m, 0, sizeof *m);
#if CH_TEST_BDW
	if (s->driver == STAGE_BOEHM) {
		enum { GC_PAGE_BYTES = 4096 };
		void *anchor;
		/* So that a collection is under way, as a rule. */
		if (is_incremental)
			GC_collect_a_little();
		/* Frames of libgc may hold the address of the last page that libgc looked at, and
		 * so for ever the object at the page's start: such an object is left to libgc. */
		do
			CHECK_EQ(ch_bdw_owner_create(s->vm, name, stage_fallback, m, &m->owner,
						     &anchor),
				 CH_OK);
		while (is_incremental && (uintptr_t)anchor % GC_PAGE_BYTES == 0);
		anchors[keep_owner(s, m->owner)] = anchor;
	}
#endif
	if (!m->owner.bits) {
		CHECK_EQ(ch_owner_create(s->vm, name, stage_fallback, m, &m->owner), CH_OK);
		if (s->driver == STAGE_HOST)
			keep_owner(s, m->owner);
	}
	m->cell = ch_owner_cell(m->owner);
	CHECK(m->cell);
}

void method_drop(struct stage *s, struct method *m)
{
	if (s->driver != STAGE_HOST && s->driver != STAGE_BOEHM) {
		CHECK_EQ(ch_owner_release(m->owner, CH_RELEASE_COLLECT), CH_OK);
		return;
	}
	CHECK_EQ(pthread_mutex_lock(&s->lock), 0);
	for (unsigned i = 0; i < STAGE_OWNERS; i++) {
		if (s->owners[i].bits != m->owner.bits)
			continue;
		s->owners[i].bits = 0;
#if CH_TEST_BDW
		anchors[i] = NULL;
#endif
	}
	CHECK_EQ(pthread_mutex_unlock(&s->lock), 0);
}

void method_open(struct emitter *e, struct method *m)
{
	struct ch_open open = {.owner = m->owner, .hot_bytes = 200, .branch_room = 4, .user = m};
	CHECK_EQ(emit_open_as(e, &open), CH_OK);
}

void method_commit_only(struct emitter *e, struct method *m)
{
	CHECK_EQ(emit_commit(e), CH_OK);
	m->block = e->code.block;
}

void method_commit(struct emitter *e, struct method *m)
{
	method_commit_only(e, m);
	CHECK_EQ(ch_owner_set_entry(m->owner, m->block), CH_OK);
}

struct ch_branch method_jmp(struct emitter *e, struct method *m, unsigned n)
{
	m->branch[n] = emit_jmp(e, m);
	return m->branch[n];
}

void method_constant(struct stage *s, struct method *m, const char *name, uint32_t value)
{
	method_new(s, m, name);
	enum ch_status status = CH_E_STALE;
	/* While other threads collect or discard without end, a newborn block may be gone, or not
	 * LIVE, before its thread gives the block an entry: a VM then compiles again. */
	while (status == CH_E_STALE || status == CH_E_STATE) {
		struct emitter e;
		method_open(&e, m);
		emit_answer(&e, value);
		method_commit_only(&e, m);
		status = ch_owner_set_entry(m->owner, m->block);
	}
	CHECK_EQ(status, CH_OK);
}

void method_jumper(struct stage *s, struct method *m, const char *name)
{
	struct emitter e;
	method_new(s, m, name);
	method_open(&e, m);
	method_jmp(&e, m, 0);
	method_commit(&e, m);
}

void method_callee(struct stage *s, struct method *m, const char *name)
{
	struct emitter e;
	method_new(s, m, name);
	method_open(&e, m);
	emit_frame(&e);
	m->branch[0] = emit_attach(&e, emit_site_call(&e), CH_CALL, m);
	emit_add(&e, 1);
	emit_frame_end(&e);
	emit_ret(&e);
	method_commit(&e, m);
}

void method_native(struct stage *s, struct method *m, const char *name, void *fn)
{
	struct emitter e;
	method_new(s, m, name);
	method_open(&e, m);
	emit_frame(&e);
	emit_call_c(&e, fn);
	emit_frame_end(&e);
	emit_ret(&e);
	method_commit(&e, m);
}

void method_link(struct method *m, unsigned branch, const struct method *target)
{
	CHECK_EQ(ch_branch_link(m->branch[branch], target->block), CH_OK);
}

bool block_is_known(struct ch_block block)
{
	struct ch_info info = {.size = sizeof info};
	bool is_known = ch_block_info(block, &info) == CH_OK;
	memset(&info, 0, sizeof info);
	__asm__ volatile("" ::"r"(&info) : "memory");
	return is_known;
}

enum ch_block_state block_state(struct ch_block block)
{
	struct ch_info info = {.size = sizeof info};
	enum ch_block_state state = CH_BLOCK_FREE;
	if (ch_block_info(block, &info) == CH_OK)
		state = info.state;
	memset(&info, 0, sizeof info);
	__asm__ volatile("" ::"r"(&info) : "memory");
	return state;
}

unsigned stage_fill(struct ch_owner owner)
{
	static const uint32_t sizes[] = {2000, 200, 20, 4};
	unsigned count = 0;
	for (unsigned i = 0; i < 4; i++) {
		struct ch_open open = {.owner = owner, .hot_bytes = sizes[i]};
		struct emitter e;
		enum ch_status status;
		while ((status = emit_open_as(&e, &open)) == CH_OK) {
			emit_ret(&e);
			e.code.used_to = sizes[i];
			CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
			count++;
		}
		CHECK_EQ(status, CH_E_FULL);
	}
	return count;
}

void method_invalidate(const struct method *m)
{
	size_t count;
	CHECK_EQ(ch_blocks_invalidate(&m->block, 1, &count), CH_OK);
	CHECK_EQ(count, 1);
}

bool method_has_fallback(const struct method *m)
{
	return __atomic_load_n(m->cell, __ATOMIC_ACQUIRE) == stage_fallback;
}

/* --- refusals --- */

void stage_refuse_membarrier(enum stage_refusal how)
{
	enum {
		CORE_SYNC = MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE |
			    MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE
	};
	uint32_t error = how == STAGE_REFUSE_ENOSYS ? ENOSYS : EPERM;
	uint32_t commands = how == STAGE_REFUSE_CORE_SYNC ? CORE_SYNC : UINT32_MAX;
	/* The command is the low half of the first argument; QUERY is 0 and passes. */
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, commands, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
	CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	CHECK_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program),
		 0);
	bool is_all = how != STAGE_REFUSE_CORE_SYNC;
	CHECK_EQ(syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0), is_all ? -1 : 0);
	CHECK_EQ(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0),
		 -1);
	CHECK_EQ(errno, (int)error);
}
