/* SPDX-License-Identifier: MIT
 * waits.c: a call that changes guarded data waits for the lock. The case takes the word of the lock
 * itself, as another thread would, and a signal to this thread frees the word. A call that returns
 * earlier has not waited. No machine is too slow: an early signal hides a break, and fails
 * nothing. A heap waits for the handlers of forks. */
#define _GNU_SOURCE
#include "codeheap/base/heap.h"
#include "codeheap/base/park.h"
#include "codeheap/collect/collect.h"
#include "codeheap/events/events.h"
#include "codeheap/graph/block.h"
#include "codeheap/graph/names.h"
#include "codeheap/life/life.h"
#include "pages/inner.h"
#include "sinks/tools.h"
#include "tests/support/heap_rig.h"
#include "tests/support/trap_rig.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/single_threaded.h>
#include <sys/time.h>
#include <unistd.h>

enum { HELD_US = 20000 };

/* Only the low byte of the word is ever set. */
static _Atomic(uint8_t) *held;
static _Atomic(bool) was_held;

static void let_go(int signal)
{
	(void)signal;
	was_held = false;
	atomic_store(held, 0);
	/* The wait of another thread is not ended by the signal. */
	ch__os_futex_wake((_Atomic(uint32_t) *)(void *)held);
}

/* --- who waits for the heap lock is counted, and let go first (ch__heap_pass) --- */

static void *make_owner(void *of)
{
	(void)rig_owner(of, "waits");
	return NULL;
}

TEST_RIG(thread_that_waits_for_the_heap_lock_is_counted_until_it_has_the_lock)
{
	pthread_t thread;
	ch__heap_lock(rig.heap);
	CHECK_EQ(pthread_create(&thread, NULL, make_owner, &rig), 0);
	TEST_UNTIL(atomic_load(&rig.heap->lock.word) == CH__LOCK_AWAITED)
		usleep(1000);
	CHECK_EQ(atomic_load(&rig.heap->lock_waits), 1);
	ch__heap_unlock(rig.heap);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(atomic_load(&rig.heap->lock_waits), 0);
}

/* The release believes that another thread waits. */
TEST_RIG(release_that_lets_others_go_first_goes_on_when_nobody_came)
{
	enum { MANY = 2 * CH__KILLED_AT_ONCE + 2 };
	struct ch_owner owner = rig_owner(&rig, "many");
	struct ch_block blocks[MANY];
	for (unsigned i = 0; i < MANY; i++)
		blocks[i] = rig_block(owner, 1);
	atomic_store(&rig.heap->lock_waits, 1);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	atomic_store(&rig.heap->lock_waits, 0);
	for (unsigned i = 0; i < MANY; i++)
		CHECK(!rig_is_there(blocks[i]));
}

TEST_RIG(child_of_a_fork_counts_no_thread_of_its_parent)
{
	atomic_store(&rig.heap->lock_waits, 1);
	pid_t child = fork_child();
	if (child == 0)
		_exit((int)atomic_load(&rig.heap->lock_waits));
	expect_exit(child, 0);
	CHECK_EQ(atomic_load(&rig.heap->lock_waits), 1);
	atomic_store(&rig.heap->lock_waits, 0);
}

/* A wait for such a thread would end by its limit only. */
TEST_RIG(child_of_a_fork_waits_for_nothing_that_a_lost_thread_had_begun)
{
	struct ch_heap *heap = rig.heap;
	CHECK(ch__lock_seize(&heap->need));
	atomic_store(&heap->need_is, 1);
	atomic_store(&heap->collects_unasked, 1);
	atomic_fetch_add(&heap->core_syncs_begun, 1);
	atomic_store(&ch__place_readers, 1);
	pid_t child = fork_child();
	if (child == 0) {
		int left = ch__lock_is_free(&heap->need) ? 0 : 1;
		left += atomic_load(&heap->need_is) ? 2 : 0;
		left += atomic_load(&heap->collects_unasked) ? 4 : 0;
		left += heap->core_syncs_begun != heap->core_syncs ? 8 : 0;
		left += atomic_load(&ch__place_readers) ? 16 : 0;
		left += ch__thread_self(heap)->thread_id != gettid() ? 32 : 0;
		_exit(left);
	}
	expect_exit(child, 0);
	atomic_store(&ch__place_readers, 0);
	atomic_fetch_sub(&heap->core_syncs_begun, 1);
	atomic_store(&heap->collects_unasked, 0);
	atomic_store(&heap->need_is, 0);
	ch__lock_let_go(&heap->need);
}

/* --- the turn of an open in need --- */

TEST_RIG(turn_that_was_taken_over_is_ended_by_who_took_it)
{
	const struct ch__thread *self = ch__thread_self(rig.heap);
	static const struct ch__thread other;
	rig.heap->config.stop_wait_ms = 1;
	uintptr_t away = ch__need_enter(rig.heap, self);
	CHECK_EQ(away, (uintptr_t)self);
	uintptr_t later = ch__need_enter(rig.heap, &other);
	CHECK_EQ(later, (uintptr_t)&other);
	ch__need_leave(rig.heap, away);
	CHECK_EQ(atomic_load(&rig.heap->need_is), later);
	CHECK(!ch__lock_is_free(&rig.heap->need));
	ch__need_leave(rig.heap, later);
	CHECK_EQ(atomic_load(&rig.heap->need_is), 0);
	CHECK(ch__lock_is_free(&rig.heap->need));
}

/* Who has the lock has not said so yet, or no more. */
TEST_RIG(turn_of_nobody_is_not_taken_over)
{
	rig.heap->config.stop_wait_ms = 1;
	CHECK(ch__lock_seize(&rig.heap->need));
	CHECK_EQ(ch__need_enter(rig.heap, ch__thread_self(rig.heap)), 0);
	CHECK_EQ(atomic_load(&rig.heap->need_is), 0);
	ch__lock_let_go(&rig.heap->need);
}

static bool stop_nobody(void *user)
{
	(void)user;
	return true;
}

/* The heap cannot know whom a wait for the turn would stop. */
TEST_RIG(heap_whose_vm_stops_its_threads_itself_has_no_turns)
{
	struct ch_ops ops = {.size = sizeof ops, .stop_world = stop_nobody};
	struct ch_vm *vm;
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &vm), CH_OK);
	CHECK_EQ(ch__need_enter(rig.heap, ch__thread_self(rig.heap)), 0);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	CHECK_EQ(ch__need_enter(rig.heap, ch__thread_self(rig.heap)), 0);
}

/* Else the thread's next wait for another's freeze would be a panic (ch__region_wait). */
TEST_RIG(thread_that_froze_a_heap_is_forgotten_when_the_freeze_ends)
{
	ch__freeze(rig.heap);
	CHECK(atomic_load(&rig.heap->freezer) == ch__lock_self());
	ch__unfreeze(rig.heap);
	CHECK(!atomic_load(&rig.heap->freezer));
}

/* All threads that are not attached have one record, without a number. */
TEST_RIG(stranger_that_is_held_inside_a_call_is_told_as_not_attached)
{
	atomic_store(&rig.heap->guest.inside, 1);
	CHECK(!ch__freeze_until(rig.heap, 1));
	CHECK(strstr(ch_why(), "thread 0 (not attached) is held inside a call of the library"));
	atomic_store(&rig.heap->guest.inside, 0);
}

/* --- a heap with something of everything --- */

struct scene {
	struct rig rig;
	struct ch_owner owner, bare;
	struct ch_block block, target; /* both owned by `owner` */
	struct ch_branch branch;       /* of `block`, unlinked */
	struct emitter open;           /* an OPEN block of `owner`, with unused room */
	struct ch_assumption fact;
	struct ch_fiber *fiber;
};

static char fiber_stack[4096];

static void make_scene(struct scene *s)
{
	s->rig = rig_start(4 << 20);
	s->owner = rig_owner(&s->rig, "owner");
	s->bare = rig_owner(&s->rig, "bare");
	s->target = rig_block(s->owner, 1);
	s->block = rig_jumper(s->owner, NULL, &s->branch);
	CHECK_EQ(ch_assumption_create(s->rig.vm, &s->fact), CH_OK);
	CHECK_EQ(ch_fiber_attach(s->rig.heap, fiber_stack, fiber_stack + sizeof fiber_stack,
				 &s->fiber),
		 CH_OK);
	emit_open(&s->open, s->owner, 512, 1);
	/* The list of attachments has room from here on. */
	CHECK_EQ(ch_edge_attach_owner(s->open.code.block, s->owner), CH_OK);
	emit_value(&s->open, 2);
	emit_ret(&s->open);
}

static void open_one(struct scene *s)
{
	struct emitter e;
	emit_open(&e, s->owner, 16, 0);
}

static void open_with_branches(struct scene *s)
{
	struct emitter e;
	emit_open(&e, s->owner, 16, 7);
}

static void open_run(struct scene *s)
{
	struct emitter e;
	emit_open(&e, s->owner, 1 << 20, 0);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

static void commit(struct scene *s)
{
	CHECK_EQ(emit_commit(&s->open), CH_OK);
}

static void abort_one(struct scene *s)
{
	CHECK_EQ(ch_block_abort(&s->open.code), CH_OK);
}

static void release(struct scene *s)
{
	CHECK_EQ(ch_owner_release(s->owner, CH_RELEASE_NOT_RUNNING), CH_OK);
}

static void release_bare(struct scene *s)
{
	CHECK_EQ(ch_owner_release(s->bare, CH_RELEASE_NOT_RUNNING), CH_OK);
}

static void attach_edge(struct scene *s)
{
	CHECK_EQ(ch_edge_attach(s->open.code.block, s->target), CH_OK);
}

static void attach_edge_to_owner(struct scene *s)
{
	CHECK_EQ(ch_edge_attach_owner(s->open.code.block, s->bare), CH_OK);
}

static void link_branch(struct scene *s)
{
	CHECK_EQ(ch_branch_link(s->branch, s->target), CH_OK);
}

static void set_entry(struct scene *s)
{
	CHECK_EQ(ch_owner_set_entry(s->owner, s->target), CH_OK);
}

static void *set_entry_apart(void *scene)
{
	set_entry(scene);
	return NULL;
}

/* The guest's region is one, and serves one stranger at a time. */
static void set_entry_by_stranger(struct scene *s)
{
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, set_entry_apart, s), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* The exit lies in a committed block, whose sites other threads attach. */
static void attach_point(struct scene *s)
{
	const struct ch__block *to = ch__block_at(s->rig.heap, ch__handle_index(s->target.bits));
	const void *exit = (const void *)ch__block_entry(s->rig.heap, to);
	CHECK_EQ(ch_patch_point_attach(s->open.code.block, emit_point(&s->open), exit, NULL),
		 CH_OK);
}

static void invalidate(struct scene *s)
{
	CHECK_EQ(ch_blocks_invalidate(&s->target, 1, NULL), CH_OK);
}

static void assume(struct scene *s)
{
	CHECK_EQ(ch_block_assume(s->open.code.block, s->fact), CH_OK);
}

static void break_fact(struct scene *s)
{
	CHECK_EQ(ch_assumption_break(s->fact, NULL), CH_OK);
}

static void create_fact(struct scene *s)
{
	CHECK_EQ(ch_assumption_create(s->rig.vm, &s->fact), CH_OK);
}

static void create_owner(struct scene *s)
{
	rig_owner(&s->rig, "another");
}

static void attach_vm(struct scene *s)
{
	struct ch_ops ops = {.size = sizeof ops};
	struct ch_vm *vm;
	CHECK_EQ(ch_vm_attach(s->rig.heap, &ops, NULL, &vm), CH_OK);
}

static void discard(struct scene *s)
{
	CHECK_EQ(ch_vm_discard(s->rig.heap, s->rig.vm, NULL, NULL), CH_OK);
}

/* This vm is told of nothing: no step of its own waits for a commit. */
static void detach_vm(struct scene *s)
{
	CHECK_EQ(ch_vm_detach(s->rig.vm), CH_OK);
}

static void look(struct scene *s)
{
	rig_stats(&s->rig);
}

static void install_traps(struct scene *s)
{
	CHECK_EQ(ch_trap_install(s->rig.heap), CH_OK);
}

static void check(struct scene *s)
{
	rig_check(&s->rig);
}

static void detach(struct scene *s)
{
	CHECK_EQ(ch_thread_detach(s->rig.heap), CH_OK);
}

static void attach_fiber(struct scene *s)
{
	static char stack[4096];
	struct ch_fiber *fiber;
	CHECK_EQ(ch_fiber_attach(s->rig.heap, stack, stack + sizeof stack, &fiber), CH_OK);
}

static void detach_fiber(struct scene *s)
{
	CHECK_EQ(ch_fiber_detach(s->fiber), CH_OK);
}

static void collect(struct scene *s)
{
	CHECK_EQ(ch_heap_collect(s->rig.heap), CH_OK);
}

static void take_record(struct scene *s)
{
	/* The thread has no cached records any more. */
	ch__records_flush(s->rig.heap, ch__thread_self(s->rig.heap));
	open_one(s);
}

/* Without a vm, whose look takes the same lock. */
static void ask_for_space(struct scene *s)
{
	struct ch_heap *heap = s->rig.heap;
	struct ch_vm *vms = atomic_exchange(&heap->vms, NULL);
	atomic_store(&heap->anyone_wants_space, true);
	atomic_store(&heap->space_came, true);
	ch__trigger_poll(heap);
	atomic_store(&heap->vms, vms);
}

/* --- calls and their locks --- */

static void *owner_busy(struct scene *s)
{
	return &ch__owner_at(s->rig.heap, ch__handle_index(s->owner.bits))->busy;
}

static void *bare_busy(struct scene *s)
{
	return &ch__owner_at(s->rig.heap, ch__handle_index(s->bare.bits))->busy;
}

static void *page_busy(struct scene *s)
{
	struct ch__pool *pool = s->rig.heap->pool;
	uintptr_t at = (uintptr_t)s->open.code.exec - pool->exec_base;
	return &pool->pages[at >> pool->page_log2].busy;
}

static void *pages_lock(struct scene *s)
{
	return &s->rig.heap->pool->inner->lock.word;
}

static void *heaps_lock(struct scene *s)
{
	(void)s;
	return &ch__heaps_lock.word;
}

static void *heap_lock(struct scene *s)
{
	return &s->rig.heap->lock.word;
}

static void *registry(struct scene *s)
{
	return &s->rig.heap->registry.word;
}

static void *freeze(struct scene *s)
{
	return &s->rig.heap->freeze;
}

static void *records(struct scene *s)
{
	return &s->rig.heap->records.word;
}

static void *sweep(struct scene *s)
{
	return &s->rig.heap->sweep.word;
}

/* As if a commit were under way. */
static void *guest_inside(struct scene *s)
{
	return &s->rig.heap->guest.inside;
}

#define ROW(lock, call) {#call, #lock, lock, call}
static const struct row {
	const char *name, *what;
	void *(*word)(struct scene *);
	void (*call)(struct scene *);
} rows[] = {
	ROW(owner_busy, open_one), ROW(owner_busy, abort_one), ROW(owner_busy, release),
	ROW(owner_busy, attach_edge), ROW(owner_busy, set_entry),
	ROW(owner_busy, invalidate), ROW(bare_busy, release_bare),
	ROW(page_busy, open_one), ROW(page_busy, commit), ROW(page_busy, abort_one),
	ROW(page_busy, release), ROW(page_busy, detach), ROW(page_busy, check),
	ROW(pages_lock, open_run), ROW(pages_lock, detach), ROW(pages_lock, check),
	ROW(pages_lock, collect), ROW(heaps_lock, install_traps),
	ROW(heap_lock, abort_one), ROW(heap_lock, release), ROW(heap_lock, link_branch),
	ROW(heap_lock, invalidate), ROW(heap_lock, assume), ROW(heap_lock, attach_point),
	ROW(heap_lock, set_entry_by_stranger),
	ROW(heap_lock, break_fact), ROW(heap_lock, create_fact), ROW(heap_lock, create_owner),
	ROW(heap_lock, attach_vm), ROW(heap_lock, discard), ROW(heap_lock, look),
	ROW(heap_lock, check), ROW(heap_lock, collect), ROW(heap_lock, ask_for_space),
	ROW(registry, detach), ROW(registry, attach_fiber), ROW(registry, detach_fiber),
	ROW(registry, collect), ROW(registry, check),
	ROW(records, open_with_branches), ROW(records, open_run), ROW(records, abort_one),
	ROW(records, release), ROW(records, detach), ROW(records, take_record),
	ROW(sweep, collect), ROW(guest_inside, detach_vm),
	ROW(freeze, open_one), ROW(freeze, attach_edge), ROW(freeze, attach_edge_to_owner),
	ROW(freeze, assume), ROW(freeze, commit), ROW(freeze, set_entry), ROW(freeze, link_branch),
	ROW(freeze, invalidate), ROW(freeze, create_owner), ROW(freeze, release_bare),
};

static void hold(void *word)
{
	struct itimerval once = {.it_value = {0, HELD_US}};
	held = word;
	was_held = true;
	__libc_single_threaded = 0; /* as if another thread had it */
	CHECK_EQ(atomic_exchange(held, 1), 0);
	CHECK_EQ(setitimer(ITIMER_REAL, &once, NULL), 0);
}

TEST(calls_wait_for_the_locks_of_what_they_change)
{
	signal(SIGALRM, let_go);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const struct row *row = &rows[i];
		struct scene s;
		/* Otherwise dead places wait for a core sync, which changes no page. */
		if (row->word == page_busy && row->call == release && !CH_ARCH_FETCH_FOLLOWS)
			continue;
		make_scene(&s);
		hold(row->word(&s));
		row->call(&s);
		if (was_held)
			FAIL("%s did not wait for %s", row->name, row->what);
	}
}

static void release_later(struct scene *s)
{
	CHECK_EQ(ch_owner_release(s->owner, CH_RELEASE_COLLECT), CH_OK);
}

/* Nobody lets the lock go: a call that takes it does not end. */
TEST(calls_of_an_attached_thread_that_say_so_take_no_lock_of_the_heap)
{
	static void (*const calls[])(struct scene *) = {set_entry, release_later};
	struct scene s;
	make_scene(&s);
	__libc_single_threaded = 0; /* as if another thread had it */
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		CHECK_EQ(atomic_exchange(&s.rig.heap->lock.word, 1), 0);
		calls[i](&s);
		CHECK_EQ(atomic_exchange(&s.rig.heap->lock.word, 0), 1);
	}
}

/* --- a thread that waits is let go first --- */

static _Atomic(bool) is_collected;

static void *collect_apart(void *heap)
{
	CHECK_EQ(ch_heap_collect(heap), CH_OK);
	atomic_store(&is_collected, true);
	return NULL;
}

/* A release of many blocks asks for the number of these threads. */
TEST(collection_that_waits_for_the_lock_is_counted)
{
	struct ch_config config = rig_config(1 << 20);
	config.stop_wait_ms = 10000;
	struct rig rig = rig_create(&config, NULL, NULL);
	pthread_t thread;
	ch__heap_lock(rig.heap);
	CHECK_EQ(pthread_create(&thread, NULL, collect_apart, rig.heap), 0);
	TEST_UNTIL(atomic_load(&rig.heap->lock_waits) == 1);
	ch__heap_unlock(rig.heap);
	join_parked(thread);
	CHECK(atomic_load(&is_collected));
	CHECK_EQ(atomic_load(&rig.heap->lock_waits), 0);
	rig_end(&rig);
}

/* A cycle takes back an owner's record without blocks, but not while somebody holds the record. */
TEST_RIG(record_of_an_owner_is_taken_back_when_nobody_holds_it)
{
	struct ch_owner handle = rig_owner(&rig, "gone");
	struct ch__owner *owner = ch__owner_at(rig.heap, ch__handle_index(handle.bits));
	signal(SIGALRM, let_go);
	CHECK_EQ(ch_owner_release(handle, CH_RELEASE_COLLECT), CH_OK);
	for (int cycle = 0; owner->generation & CH__LIFE_IN_USE; cycle++) {
		CHECK(cycle < 5);
		hold(&owner->busy);
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		if (was_held && !(owner->generation & CH__LIFE_IN_USE))
			FAIL("an owner that was held has gone");
		while (was_held)
			ch__arch_pause();
	}
}

/* --- a heap that ends while a handler looks for it --- */

static struct ch_heap *ending; /* by another thread, as soon as a look has found it */
static pthread_t ender;
static _Atomic(bool) has_ended;

static void *end_heap(void *heap)
{
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	atomic_store(&has_ended, true);
	return NULL;
}

bool __real_ch__heap_is_listed(const struct ch_heap *heap);
bool __wrap_ch__heap_is_listed(const struct ch_heap *heap);
bool __wrap_ch__heap_is_listed(const struct ch_heap *heap)
{
	bool is_listed = __real_ch__heap_is_listed(heap);
	if (is_listed && heap == ending) {
		uint32_t id = heap->id;
		struct ch_heap *ends = ending;
		ending = NULL;
		CHECK_EQ(pthread_create(&ender, NULL, end_heap, ends), 0);
		/* The end is through, or has left the table and waits for readers. */
		TEST_UNTIL(atomic_load(&has_ended) ||
			   (!atomic_load(&ch__heaps[id]) && ch__place_is_read()))
			usleep(1000);
	}
	return is_listed;
}

TEST(heap_that_a_trap_is_described_for_is_not_freed_meanwhile)
{
	struct rig rig = rig_start(1 << 20);
	static struct made_up trap;
	char text[1024];
	make_up(&trap, (const void *)rig.heap->pool->exec_base, 0);
	CHECK_EQ(ch_vm_detach(rig.vm), CH_OK);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	ending = rig.heap;
	CHECK(ch_trap_describe(rig.heap, &trap.info, &trap.context, text, sizeof text) > 0);
	CHECK_EQ(pthread_join(ender, NULL), 0);
	CHECK_EQ(ch_trap_describe(rig.heap, &trap.info, &trap.context, text, sizeof text), 0);
}

/* --- the handlers of forks --- */

static _Atomic(bool) is_registering, may_register, is_slow, is_refused, stays;
static _Atomic(int) registered;

bool gate_ch__os_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));
bool __wrap_ch__os_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));
bool __wrap_ch__os_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
	atomic_store(&is_registering, true);
	TEST_UNTIL(!atomic_load(&is_slow) || atomic_load(&may_register))
		usleep(1000);
	bool is_done = !atomic_load(&is_refused) && gate_ch__os_atfork(prepare, parent, child);
	registered += is_done;
	TEST_UNTIL(!atomic_load(&stays))
		usleep(1000);
	return is_done;
}

static void *make_heap(void *tid)
{
	atomic_store((_Atomic(int) *)tid, (int)gettid());
	struct rig rig = rig_start(1 << 20);
	CHECK(atomic_load(&may_register));
	rig_end(&rig);
	return NULL;
}

TEST(no_heap_is_there_before_the_handlers_of_forks_are)
{
	pthread_t threads[2];
	_Atomic(int) tids[2] = {0, 0};
	atomic_store(&is_slow, true);
	CHECK_EQ(pthread_create(&threads[0], NULL, make_heap, &tids[0]), 0);
	TEST_UNTIL(atomic_load(&is_registering))
		usleep(1000);
	CHECK_EQ(pthread_create(&threads[1], NULL, make_heap, &tids[1]), 0);
	TEST_UNTIL(atomic_load(&tids[1]) && thread_is_asleep(atomic_load(&tids[1])))
		usleep(1000);
	atomic_store(&may_register, true);
	CHECK_EQ(pthread_join(threads[0], NULL), 0);
	CHECK_EQ(pthread_join(threads[1], NULL), 0);
}

static void *make_one_heap(void *unused)
{
	(void)unused;
	struct rig rig = rig_start(1 << 20);
	rig_end(&rig);
	return NULL;
}

/* Handlers that stand twice take each lock twice. */
TEST(child_of_a_fork_has_the_handlers_that_a_lost_thread_had_registered)
{
	pthread_t thread;
	atomic_store(&stays, true);
	CHECK_EQ(pthread_create(&thread, NULL, make_one_heap, NULL), 0);
	TEST_UNTIL(atomic_load(&registered))
		usleep(1000);
	pid_t child = fork_child();
	atomic_store(&stays, false);
	if (child == 0) {
		(void)make_one_heap(NULL);
		_exit(atomic_load(&registered) != 1);
	}
	expect_exit(child, 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

TEST(child_of_a_process_that_made_its_first_heap_makes_heaps)
{
	pthread_t thread;
	atomic_store(&is_slow, true);
	CHECK_EQ(pthread_create(&thread, NULL, make_one_heap, NULL), 0);
	TEST_UNTIL(atomic_load(&is_registering))
		usleep(1000);
	pid_t pid = fork_child();
	if (pid == 0) {
		atomic_store(&is_slow, false);
		make_one_heap(NULL);
		_exit(0);
	}
	expect_exit(pid, 0);
	atomic_store(&may_register, true);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

TEST(heap_that_comes_after_handlers_were_refused_has_them_registered)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_heap *heap;
	atomic_store(&is_refused, true);
	CHECK_EQ(ch_heap_create(&config, &heap), CH_E_OS);
	atomic_store(&is_refused, false);
	atomic_store(&is_registering, false);
	struct rig rig = rig_start(1 << 20);
	CHECK(atomic_load(&is_registering));
	rig_end(&rig);
}

/* Otherwise the child would have the lock, and no thread that gives it back. */
TEST_RIG(fork_waits_for_who_writes_a_file_of_names)
{
	signal(SIGALRM, let_go);
	hold(&ch__sink_perfmap.tool->lock.word);
	pid_t pid = fork_child();
	if (pid == 0)
		_exit(was_held);
	CHECK(!was_held);
	expect_exit(pid, 0);
}

/* --- the linker has a lock, and runs constructors under it, which may call the library --- */

static struct ch_heap *asked_by;
static unsigned asked;

void *__wrap_ch__os_symbol(const char *library, const char *name);
void *__wrap_ch__os_symbol(const char *library, const char *name)
{
	(void)library, (void)name;
	CHECK(!ch__lock_is_mine(&ch__heaps_lock));
	CHECK(!asked_by || !ch__lock_is_mine(&asked_by->lock));
	asked++;
	return NULL;
}

TEST_RIG(linker_is_asked_for_libunwind_under_no_lock)
{
	struct ch_config config;
	struct ch_heap *other;
	ch_config_init(&config);
	config.sinks = CH_SINK_UNWIND | CH_SINK_LIBUNWIND;
	CHECK_EQ(ch_heap_create(&config, &other), CH_OK);
	CHECK_EQ(asked, 1);
	asked_by = rig.heap;
	CHECK_EQ(ch_sink_set(rig.heap, config.sinks), CH_E_OS);
	CHECK_EQ(errno, ENOSYS);
	CHECK_EQ(asked, 2);
	CHECK_EQ(ch_heap_destroy(other), CH_OK);
}
