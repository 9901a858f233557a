/* SPDX-License-Identifier: MIT
 * stop_signal.c: the stop signal outside of a stop: a late signal, a signal of another sender,
 * handlers before and behind the library's; a VM's own stop by a signal. Registers and stacks of a
 * stopped thread are tested in stops.c. */
#define _GNU_SOURCE
#include "tests/support/published.h"
#include "os/threads.h"
#include "tests/support/stage.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct play {
	struct stage *stage;
	_Atomic(int) go; /* passed to code: 1 the code spins, 2 the code may go on */
	bool raises;     /* the thread, before its spin */
	struct method m;
	_Atomic(int) step;
	uintptr_t inverted; /* the address of m's kept code */
	bool loads;         /* a thread that looks at m has loaded the address */
};

static _Atomic(unsigned) heard;
static siginfo_t heard_info;
static bool spoils_errno;

static void hear(int signal, siginfo_t *info, void *ucontext)
{
	(void)signal, (void)ucontext;
	heard_info = *info;
	atomic_fetch_add(&heard, 1);
	if (spoils_errno)
		errno = EILSEQ;
}

static void install(int signal, struct sigaction *old)
{
	struct sigaction action = {.sa_sigaction = hear, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	CHECK_EQ(sigaction(signal, &action, old), 0);
}

static void set_blocked(int signal, bool is_blocked)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, signal);
	CHECK_EQ(pthread_sigmask(is_blocked ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL), 0);
}

static bool is_pending(int signal)
{
	sigset_t set;
	CHECK_EQ(sigpending(&set), 0);
	return sigismember(&set, signal);
}

/* --- a late signal of the library --- */

static void leave_with_one_pending(struct stage *stage, void *arg)
{
	struct play *p = arg;
	set_blocked(STAGE_STOP_SIGNAL, true);
	atomic_store(&p->step, 1);
	while (atomic_load(&p->step) == 1)
		usleep(100);
	CHECK(is_pending(STAGE_STOP_SIGNAL));
	CHECK_EQ(ch_thread_detach(stage->heap), CH_OK);
	set_blocked(STAGE_STOP_SIGNAL, false); /* delivered here */
	CHECK(!is_pending(STAGE_STOP_SIGNAL));
	CHECK_EQ(ch_thread_attach(stage->heap, NULL, NULL), CH_OK);
}

static void stop_in_vain(struct play *p)
{
	struct stage_thread t;
	stage_spawn(p->stage, &t, leave_with_one_pending, p);
	stage_wait(&p->step, 1);
	p->stage->heap->config.stop_wait_ms = 50;
	CHECK_EQ(stage_try_collect(p->stage), CH_E_BUSY);
	p->stage->heap->config.stop_wait_ms = TEST_PATIENCE_MS;
	atomic_store(&p->step, 2);
	stage_join(&t);
	stage_collect(p->stage);
}

static struct play *new_play(void)
{
	struct stage *stage = stage_new(STAGE_SIGNALS);
	return stage_play(stage, sizeof(struct play));
}

TEST(stop_signal_that_comes_after_the_detachment_ends_nobody)
{
	struct play *p = new_play();
	stop_in_vain(p);
	stage_end(p->stage);
}

TEST(stop_signal_that_comes_after_the_detachment_reaches_no_handler)
{
	install(STAGE_STOP_SIGNAL, NULL);
	struct play *p = new_play();
	stop_in_vain(p);
	CHECK_EQ(heard, 0);
	stage_end(p->stage);
}

/* The queue of signals has no room: the kernel sends the signal all the same, without the sender
 * and the tag. */
TEST(stop_signal_that_lost_its_tag_stops_and_ends_nobody)
{
	struct play *p = new_play();
	struct rlimit limit = {0, 0};
	CHECK_EQ(setrlimit(RLIMIT_SIGPENDING, &limit), 0);
	stop_in_vain(p);
	stage_end(p->stage);
}

/* A thread has one pending signal of a number. While a signal of the program's is pending, the
 * signals of a stop are lost. */
static void unblock_in_a_stop(struct stage *stage, void *arg)
{
	struct play *p = arg;
	set_blocked(STAGE_STOP_SIGNAL, true);
	CHECK_EQ(raise(STAGE_STOP_SIGNAL), 0);
	atomic_store(&p->step, 1);
	TEST_UNTIL(atomic_load(&stage->heap->stopping))
		sched_yield();
	usleep(5000); /* the first is lost, or comes later */
	set_blocked(STAGE_STOP_SIGNAL, false);
	TEST_UNTIL(atomic_load(&p->step) == 2)
		sched_yield();
}

TEST(stop_signal_that_was_lost_is_sent_again)
{
	install(STAGE_STOP_SIGNAL, NULL);
	struct play *p = new_play();
	struct stage_thread t;
	stage_spawn(p->stage, &t, unblock_in_a_stop, p);
	stage_wait(&p->step, 1);
	stage_collect(p->stage);
	CHECK_EQ(heard, 1);
	atomic_store(&p->step, 2);
	stage_join(&t);
	stage_end(p->stage);
}

/* --- signals of other senders --- */

static void *raise_in_a_stranger(void *arg)
{
	CHECK_EQ(raise(*(int *)arg), 0);
	return NULL;
}

static void spin(struct stage *stage, void *arg)
{
	struct play *p = arg;
	if (p->raises)
		CHECK_EQ(raise(stage->config.stop_signal), 0);
	CHECK_EQ(method_call(&p->m, &p->go), 6);
}

/* No poll, no call. */
static void build_spinner(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	method_new(stage, &p->m, "spinner");
	method_open(&e, &p->m);
	emit_tell(&e, 1);
	emit_wait_for(&e, 2);
	emit_answer(&e, 6);
	method_commit(&e, &p->m);
}

/* Collects beside a thread in code, which only the signal can stop. */
static void expect_stops(struct play *p)
{
	struct stage_thread t;
	atomic_store(&p->go, 0);
	stage_apart(p->stage, build_spinner, p);
	stage_spawn(p->stage, &t, spin, p);
	stage_wait(&p->go, 1);
	for (int i = 0; i < 3; i++)
		stage_collect(p->stage);
	CHECK_EQ(stage_stats(p->stage).cycles_abandoned, 0);
	atomic_store(&p->go, 2);
	stage_join(&t);
	method_drop(p->stage, &p->m);
}

/* --- a table of kept code: m is a record of the VM's --- */

static void build_kept(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	method_new(stage, &p->m, "kept");
	struct ch_open open = {.owner = p->m.owner,
			       .hot_bytes = 64,
			       .flags = CH_OPEN_KEPT,
			       .user = &p->m};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 6);
	CHECK_EQ(emit_commit(&e), CH_OK);
	p->m.block = e.code.block;
	p->inverted = ~(uintptr_t)e.code.exec;
}

static void look(struct stage *stage, void *arg)
{
	struct play *p = arg;
	const void *volatile entry = p->loads ? (const void *)~p->inverted : NULL;
	(void)stage;
	atomic_store(&p->step, 1);
	TEST_UNTIL(atomic_load(&p->step) == 2)
		sched_yield();
	(void)entry;
}

static void end_kept(struct stage *stage, void *arg)
{
	struct play *p = arg;
	CHECK_EQ(ch_blocks_invalidate(&p->m.block, 1, NULL), CH_OK);
	CHECK_EQ(ch_code_free(stage->heap, (const void *)~p->inverted, CH_RELEASE_COLLECT), CH_OK);
}

/* The address of the code holds the code, and so the record; the address of the record does not. */
TEST(stop_signal_comes_between_the_record_of_kept_code_and_its_entry)
{
	struct play *p = new_play();
	for (int loads = 0; loads <= 1; loads++) {
		struct stage_thread t;
		p->loads = loads;
		p->m.freed = 0;
		stage_apart(p->stage, build_kept, p);
		stage_spawn(p->stage, &t, look, p);
		stage_wait(&p->step, 1);
		stage_apart(p->stage, end_kept, p);
		stage_collect(p->stage);
		CHECK_EQ(stage_stats(p->stage).cycles_abandoned, 0);
		CHECK_EQ(p->m.freed, !loads);
		atomic_store(&p->step, 2);
		stage_join(&t);
		stage_collect(p->stage);
		CHECK_EQ(p->m.freed, 1);
		method_drop(p->stage, &p->m);
	}
	stage_end(p->stage);
}

/* A collecting thread publishes its registers, and may be stopped before its cycle reads. */
static struct play *collecting;

static void wait_for_collections(void)
{
	atomic_store(&collecting->go, 1);
	while (atomic_load(&collecting->go) == 1)
		usleep(100);
}

static void publish_half_way(const struct ch__arch_saved *saved)
{
	publish_and_keep(collecting->stage->heap, saved, wait_for_collections);
}

static void begin_to_collect(struct stage *stage, void *arg)
{
	(void)stage, (void)arg;
	ch__arch_with_registers(publish_half_way);
}

TEST(stop_signals_leave_what_a_thread_published_before)
{
	struct play *p = collecting = new_play();
	struct stage_thread t;
	stage_spawn(p->stage, &t, begin_to_collect, p);
	stage_wait(&p->go, 1);
	for (int i = 0; i < 2; i++)
		stage_collect(p->stage);
	CHECK_EQ(stage_stats(p->stage).cycles_abandoned, 0);
	atomic_store(&p->go, 2);
	stage_join(&t);
	stage_end(p->stage);
}

TEST(signal_that_is_ignored_by_default_leaves_the_handler_there)
{
	static int ignored[] = {SIGURG, SIGWINCH, SIGCONT};
	for (unsigned i = 0; i < sizeof ignored / sizeof *ignored; i++) {
		struct stage *stage = stage_new(STAGE_SIGNALS);
		stage->config.stop_signal = ignored[i];
		struct play *p = stage_play(stage, sizeof *p);
		p->raises = true;
		pthread_t stranger;
		CHECK_EQ(pthread_create(&stranger, NULL, raise_in_a_stranger, &ignored[i]), 0);
		CHECK_EQ(pthread_join(stranger, NULL), 0);
		expect_stops(p);
		stage_end(stage);
	}
}

TEST(signal_of_others_reaches_the_handler_that_was_there)
{
	install(STAGE_STOP_SIGNAL, NULL);
	struct play *p = new_play();
	spoils_errno = true;
	errno = 0;
	CHECK_EQ(raise(STAGE_STOP_SIGNAL), 0); /* an attached thread */
	CHECK_EQ(errno, 0);
	spoils_errno = false;
	CHECK_EQ(heard, 1);
	CHECK_EQ(heard_info.si_pid, getpid());
	/* Like the signal of another copy of the library. */
	CHECK(ch__os_thread_signal(ch__os_thread_id(), STAGE_STOP_SIGNAL, &heard));
	CHECK_EQ(heard, 2);
	CHECK(heard_info.si_value.sival_ptr == (void *)&heard);
	p->raises = true;
	expect_stops(p);
	CHECK_EQ(heard, 3);
	stage_end(p->stage);
}

TEST(signal_of_others_ends_the_process_by_default)
{
	struct play *p = new_play();
	pid_t child = fork_child();
	if (child == 0) {
		raise(STAGE_STOP_SIGNAL);
		_exit(1);
	}
	int status;
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == STAGE_STOP_SIGNAL);
	stage_end(p->stage);
}

/* A later handler, of another copy of the library or of the program. */
static struct sigaction librarys;
static void pass_on(int signal, siginfo_t *info, void *ucontext)
{
	atomic_fetch_add(&heard, 1);
	librarys.sa_sigaction(signal, info, ucontext);
}

TEST(handler_that_came_later_passes_the_stop_signal_on)
{
	struct play *p = new_play();
	struct sigaction action = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	CHECK_EQ(sigaction(STAGE_STOP_SIGNAL, NULL, &librarys), 0);
	CHECK_EQ(sigaction(STAGE_STOP_SIGNAL, &action, NULL), 0);
	expect_stops(p);
	CHECK(heard > 0);
	stage_end(p->stage);
}

static void wait_without_a_poll(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	atomic_store(&p->step, 1);
	TEST_UNTIL(atomic_load(&p->step) == 2)
		usleep(100);
}

/* As a library installs it that knows nothing of the heap. */
TEST(handler_that_came_later_and_keeps_the_stop_signal_is_suspected)
{
	struct play *p = new_play();
	struct stage_thread t;
	stage_spawn(p->stage, &t, wait_without_a_poll, p);
	stage_wait(&p->step, 1);
	install(STAGE_STOP_SIGNAL, NULL);
	p->stage->heap->config.stop_wait_ms = 50;
	CHECK_EQ(stage_try_collect(p->stage), CH_E_BUSY);
	CHECK(strstr(ch_why(), " did not stop in time: it blocks stop_signal, another handler "
			       "took the signal, or it had no processor"));
	p->stage->heap->config.stop_wait_ms = TEST_PATIENCE_MS;
	TEST_UNTIL(heard > 0)
		usleep(100);
	atomic_store(&p->step, 2);
	stage_join(&t);
	stage_end(p->stage);
}

/* --- a VM that stops threads by a signal of its own, too --- */

static struct {
	pthread_mutex_t lock; /* around each stop, the VM's and the library's */
	pthread_t thread;
	_Atomic(int) stands;
	_Atomic(bool) is_stop;
} own = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* With all signals blocked, as in VMs that stop threads so. */
static void stand(int signal)
{
	(void)signal;
	atomic_store(&own.stands, 1);
	TEST_UNTIL(!atomic_load(&own.is_stop))
		usleep(10);
	atomic_store(&own.stands, 0);
}

static void own_stop_begins(void)
{
	atomic_store(&own.is_stop, true);
	CHECK_EQ(pthread_kill(own.thread, SIGUSR1), 0);
	TEST_UNTIL(atomic_load(&own.stands))
		usleep(10);
}

static void own_stop_ends(void)
{
	atomic_store(&own.is_stop, false);
	TEST_UNTIL(!atomic_load(&own.stands))
		usleep(10);
}

static void install_own_stop(void)
{
	struct sigaction action = {.sa_handler = stand, .sa_flags = SA_RESTART};
	sigfillset(&action.sa_mask);
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	own.thread = pthread_self();
}

/* No sanitizer puts signals off in a usleep. */
static void lock_stops(void)
{
	TEST_UNTIL(pthread_mutex_trylock(&own.lock) == 0)
		usleep(10);
}

static void stop_the_collecting_thread(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	while (atomic_load(&p->step) == 0) {
		lock_stops();
		own_stop_begins();
		own_stop_ends();
		pthread_mutex_unlock(&own.lock);
		usleep(10); /* the lock is for both */
	}
}

TEST(stops_by_two_signals_take_turns_under_one_lock)
{
	enum { ROUNDS = 300 };
	struct play *p = new_play();
	struct stage_thread t;
	install_own_stop();
	stage_spawn(p->stage, &t, stop_the_collecting_thread, p);
	for (int i = 0; i < ROUNDS; i++) {
		lock_stops();
		CHECK_EQ(stage_try_collect(p->stage), CH_OK);
		pthread_mutex_unlock(&own.lock);
		usleep(10);
	}
	atomic_store(&p->step, 1);
	stage_join(&t);
	stage_end(p->stage);
}

static void note_the_thread(struct stage *stage, void *arg)
{
	own.thread = pthread_self();
	wait_without_a_poll(stage, arg);
}

TEST(thread_that_the_vm_stopped_by_its_own_signal_keeps_a_collection_waiting)
{
	struct play *p = new_play();
	struct stage_thread t;
	install_own_stop();
	stage_spawn(p->stage, &t, note_the_thread, p);
	stage_wait(&p->step, 1);
	own_stop_begins();
	p->stage->heap->config.stop_wait_ms = 50;
	CHECK_EQ(stage_try_collect(p->stage), CH_E_BUSY);
	CHECK(strstr(ch_why(), " did not stop in time: it blocks stop_signal, another handler "
			       "took the signal, or it had no processor"));
	p->stage->heap->config.stop_wait_ms = TEST_PATIENCE_MS;
	own_stop_ends();
	CHECK_EQ(stage_try_collect(p->stage), CH_OK);
	atomic_store(&p->step, 2);
	stage_join(&t);
	stage_end(p->stage);
}

/* --- a stop that a fork cuts off --- */

enum { SPINS = 1, IS_HELD, MAY_GO };
static struct {
	struct ch_heap *heap;
	pthread_t thread;
	_Atomic(int) step;
} held;

/* On top of the library's handler: the thread stays there when the stop is over. */
static void hold(int signal)
{
	(void)signal;
	atomic_store(&held.step, IS_HELD);
	TEST_UNTIL(held.step == MAY_GO)
		usleep(100);
}

static void hold_the_stopped_thread(void *vm_user, struct ch_marker *marker)
{
	(void)vm_user, (void)marker;
	if (held.step != SPINS)
		return;
	CHECK_EQ(pthread_kill(held.thread, SIGUSR1), 0);
	TEST_UNTIL(held.step == IS_HELD)
		usleep(100);
}

static void *spin_attached(void *unused)
{
	CHECK_EQ(ch_thread_attach(held.heap, NULL, NULL), CH_OK);
	atomic_store(&held.step, SPINS);
	while (held.step != MAY_GO)
		continue;
	return unused;
}

/* The child's thread takes the record of the thread that the child does not have. */
TEST(child_of_a_fork_behind_a_stop_looks_for_no_registers_on_a_stack_that_went)
{
	enum { STACK_BYTES = 2 << 20 }; /* a sanitizer's least */
	struct ch_ops ops = {.size = sizeof ops, .roots = hold_the_stopped_thread};
	struct sigaction action = {.sa_handler = hold};
	struct ch_config config;
	struct ch_vm *vm;
	pthread_attr_t attributes;
	void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			   -1, 0);
	CHECK(stack != MAP_FAILED);
	ch_config_init(&config);
	config.stop_signal = STAGE_STOP_SIGNAL;
	config.stop_wait_ms = TEST_PATIENCE_MS;
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	CHECK_EQ(ch_heap_create(&config, &held.heap), CH_OK);
	CHECK_EQ(ch_vm_attach(held.heap, &ops, NULL, &vm), CH_OK);
	CHECK_EQ(pthread_attr_init(&attributes), 0);
	CHECK_EQ(pthread_attr_setstack(&attributes, stack, STACK_BYTES), 0);
	CHECK_EQ(pthread_create(&held.thread, &attributes, spin_attached, NULL), 0);
	TEST_UNTIL(held.step == SPINS)
		usleep(100);
	CHECK_EQ(ch_heap_collect(held.heap), CH_OK);
	CHECK_EQ(held.step, IS_HELD);
	pid_t child = fork_child();
	if (child == 0) {
		CHECK_EQ(mprotect(stack, STACK_BYTES, PROT_NONE), 0);
		CHECK_EQ(ch_thread_attach(held.heap, NULL, NULL), CH_OK);
		_exit(ch_heap_collect(held.heap) != CH_OK);
	}
	expect_exit(child, 0);
	atomic_store(&held.step, MAY_GO);
	CHECK_EQ(pthread_join(held.thread, NULL), 0);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(held.heap), CH_OK);
}
