/* SPDX-License-Identifier: MIT
 * trap_foreign.c: signals that are not the heap's pass the handler of ch_trap_install unharmed, to
 * the previous action: with its stack, its mask and its flags. The heap's own signals are told
 * anywhere: in fibers, in threads that are not attached, in children, behind handlers that came
 * later. */
#define _GNU_SOURCE
#include "tests/support/stage.h"
#include "tests/support/trap_rig.h"

#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGABRT};
enum { SIGNALS = sizeof signals / sizeof signals[0] };

struct foreign {
	struct rig rig;
	struct ch_owner owner;
	const uint8_t *freed;
	char text[1000];
};

static void build_freed(const struct rig *rig, void *arg)
{
	struct foreign *f = arg;
	f->owner = rig_owner(rig, "gone");
	f->freed = block_info(rig_block(f->owner, 3)).exec;
	CHECK_EQ(ch_owner_release(f->owner, CH_RELEASE_NOT_RUNNING), CH_OK);
}

static void start(struct foreign *f)
{
	*f = (struct foreign){.rig = rig_start(1 << 20)};
	rig_apart(&f->rig, build_freed, f);
}

static void install(const struct foreign *f)
{
	CHECK_EQ(ch_trap_install(f->rig.heap), CH_OK);
}

/* --- how a process ends --- */

/* Makes a fault of the process itself by number of the signal, with the pc outside of the pool. */
static void fault(int signal)
{
	volatile uintptr_t nowhere = 16;
	if (signal == SIGSEGV)
		*(volatile int *)nowhere = 1;
	/* Where no instruction makes the fault, raise() sends the signal. */
	else if (!code_raise(signal))
		raise(signal);
}

enum way { FAULT, RAISE, KILL, QUEUE, ABORT, WAYS };

static void end_by(enum way way, int signal)
{
	union sigval value = {.sival_int = 7};
	switch (way) {
	case FAULT:
		fault(signal);
		break;
	case RAISE:
		raise(signal);
		break;
	case KILL:
		kill(getpid(), signal);
		break;
	case QUEUE:
		sigqueue(getpid(), signal, value);
		break;
	default:
		abort();
	}
}

/* Returns the status of a child's end. Cores are as the system has them. */
static int status_of(const struct foreign *f, bool installed, void (*before)(int), enum way way,
		     int signal, char *text, size_t room)
{
	int ends[2], status;
	CHECK_EQ(pipe(ends), 0);
	fflush(NULL);
	pid_t child = fork_child();
	if (child == 0) {
		struct rlimit none = {0, 0};
		setrlimit(RLIMIT_CORE, &none);
		alarm(TEST_PATIENCE_S); /* a swallowed fault comes again and again */
		dup2(ends[1], STDERR_FILENO);
		before(signal);
		if (installed)
			install(f);
		end_by(way, signal);
		_exit(9);
	}
	close(ends[1]);
	ssize_t n, length = 0;
	while ((n = read(ends[0], text + length, room - 1 - (size_t)length)) > 0)
		length += n;
	text[length] = 0;
	close(ends[0]);
	CHECK_EQ(waitpid(child, &status, 0), child);
	return status;
}

static void action_default(int signal)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	sigaction(signal, &action, NULL);
}
static void action_ignore(int signal)
{
	struct sigaction action = {.sa_handler = SIG_IGN};
	sigaction(signal, &action, NULL);
}
/* The flag belongs to a handler, and there is none. */
static void action_default_with_info(int signal)
{
	struct sigaction action = {.sa_handler = SIG_DFL, .sa_flags = SA_SIGINFO};
	sigaction(signal, &action, NULL);
}
static void action_ignore_with_info(int signal)
{
	struct sigaction action = {.sa_handler = SIG_IGN, .sa_flags = SA_SIGINFO};
	sigaction(signal, &action, NULL);
}

/* Each fault, and each way to send the signal, ends the process exactly where the process would end
 * without the handler. */
TEST(process_ends_as_without_the_handler)
{
	static void (*const actions[])(int) = {action_default, action_ignore,
					       action_default_with_info, action_ignore_with_info};
	struct foreign f;
	char with[400], without[400];
	start(&f);
	for (size_t i = 0; i < SIGNALS; i++) {
		for (int way = FAULT; way < WAYS; way++) {
			bool is_fault = signals[i] != SIGBUS && signals[i] != SIGABRT;
			if ((way == FAULT && !is_fault) || (way == ABORT && signals[i] != SIGABRT))
				continue;
			/* ThreadSanitizer takes the flag for a handler, too. */
			for (int a = 0; a < (CH_TSAN ? 2 : 4); a++) {
				int wanted = status_of(&f, false, actions[a], (enum way)way,
						       signals[i], without, sizeof without);
				int found = status_of(&f, true, actions[a], (enum way)way,
						      signals[i], with, sizeof with);
				if (found != wanted)
					FAIL("trap: signal %d, way %d, action %d: status 0x%x and "
					     "not 0x%x",
					     signals[i], way, a, found, wanted);
				CHECK_STR(with, without);
			}
		}
	}
	rig_end(&f.rig);
}

/* --- the state found by a handler --- */

struct seen {
	int count, signal, code, value;
	uintptr_t pc, address, sp;
	bool blocks_own, blocks_masked, blocks_other;
};
static struct seen seen;

static bool is_blocked(int signal)
{
	sigset_t blocked;
	CHECK_EQ(pthread_sigmask(SIG_BLOCK, NULL, &blocked), 0);
	return sigismember(&blocked, signal);
}

static void note(int signal)
{
	seen.count++;
	seen.signal = signal;
	seen.blocks_own = is_blocked(signal);
	seen.blocks_masked = is_blocked(SIGUSR1);
	seen.blocks_other = is_blocked(SIGUSR2);
	seen.sp = (uintptr_t)__builtin_frame_address(0);
}

static void note_plain(int signal)
{
	note(signal);
}

static uint8_t handlers_stack[1 << 16];

/* Always from the same instruction, so that the pc can be compared. */
static __attribute__((noinline)) void trap_or_send(bool sends)
{
	union sigval value = {.sival_int = 7};
	memset(&seen, 0, sizeof seen);
	if (sends)
		sigqueue(getpid(), SIGTRAP, value);
	else
		code_raise(SIGTRAP);
}

/* ThreadSanitizer's own handler stands between the kernel and each handler here, behind a mask of
 * its own. */
#if !CH_TSAN
static void note_info(int signal, siginfo_t *info, void *ucontext)
{
	note(signal);
	seen.code = info->si_code;
	seen.value = info->si_code == SI_QUEUE ? info->si_value.sival_int : 0;
	seen.address = info->si_code == SI_QUEUE ? 0 : (uintptr_t)info->si_addr;
	seen.pc = ch__arch_context_pc(ucontext);
	if (info->si_code != SI_QUEUE)
		code_step_over_trap(ucontext);
}

static bool equal(const struct seen *a, const struct seen *b)
{
	return a->count == b->count && a->signal == b->signal && a->code == b->code &&
	       a->value == b->value && a->address == b->address && a->pc == b->pc &&
	       a->blocks_own == b->blocks_own &&
	       a->blocks_masked == b->blocks_masked && a->blocks_other == b->blocks_other;
}

static bool is_on_handlers_stack(uintptr_t sp)
{
	return sp - (uintptr_t)handlers_stack < sizeof handlers_stack;
}

/* With every set of flags, the previous handler finds the same as without the library. */
TEST(handler_before_finds_what_the_kernel_gives)
{
	static const int flags[] = {SA_SIGINFO, SA_NODEFER, SA_ONSTACK, SA_RESTART};
	struct foreign f;
	stack_t stack = {.ss_sp = handlers_stack, .ss_size = sizeof handlers_stack};
	CHECK_EQ(sigaltstack(&stack, NULL), 0);
	start(&f);
	for (int set = 0; set < 64; set++) {
		struct sigaction action, standard = {.sa_handler = SIG_DFL};
		memset(&action, 0, sizeof action);
		for (int i = 0; i < 4; i++)
			action.sa_flags |= set >> i & 1 ? flags[i] : 0;
		if (action.sa_flags & SA_SIGINFO)
			action.sa_sigaction = note_info;
		else
			action.sa_handler = note_plain;
		sigaddset(&action.sa_mask, SIGUSR1);
		if (set >> 4 & 1)
			sigaddset(&action.sa_mask, SIGTRAP);
		/* A handler without a context cannot step over a trap where the trap runs again. */
		bool sends = set >> 5 & 1 ||
			     (!CODE_TRAP_BEHIND_BYTES && !(action.sa_flags & SA_SIGINFO));
		CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
		trap_or_send(sends);
		struct seen wanted = seen;
		CHECK_EQ(wanted.count, 1);
		/* In a child, since the handler stays installed. */
		fflush(NULL);
		pid_t child = fork();
		if (child == 0) {
			install(&f);
			trap_or_send(sends);
			if (!equal(&seen, &wanted))
				FAIL("trap: flags 0x%x: a handler finds something else",
				     (unsigned)action.sa_flags);
			if (is_on_handlers_stack(seen.sp) != is_on_handlers_stack(wanted.sp))
				FAIL("trap: flags 0x%x: another stack", (unsigned)action.sa_flags);
			if (is_blocked(SIGTRAP) || is_blocked(SIGUSR1))
				FAIL("trap: signals stay blocked");
			_exit(0);
		}
		int status;
		CHECK_EQ(waitpid(child, &status, 0), child);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			FAIL("trap: flags 0x%x: status 0x%x", (unsigned)action.sa_flags,
			     (unsigned)status);
		CHECK_EQ(sigaction(SIGTRAP, &standard, NULL), 0);
	}
	rig_end(&f.rig);
}
#endif

static void reset_after_one(void *arg)
{
	struct foreign *f = arg;
	struct sigaction action = {.sa_handler = note_plain, .sa_flags = (int)SA_RESETHAND};
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	install(f);
	trap_or_send(!CODE_TRAP_BEHIND_BYTES);
	if (seen.count != 1)
		_exit(4);
	code_raise(SIGTRAP); /* kills */
	_exit(5);
}

TEST(handler_that_is_reset_is_called_once)
{
	struct foreign f;
	start(&f);
	expect_signal_text(reset_after_one, &f, SIGTRAP, f.text, sizeof f.text);
	CHECK_STR(f.text, "");
	rig_end(&f.rig);
}

/* An interrupted call goes on, or does not, as the previous handler wanted. */
static void read_interrupted(struct foreign *f, int flags)
{
	struct sigaction action = {.sa_handler = note_plain, .sa_flags = flags};
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	install(f);
	int ends[2];
	char byte;
	CHECK_EQ(pipe(ends), 0);
	alarm(TEST_PATIENCE_S); /* a call that goes on and on */
	pid_t parent = getpid(), child = fork();
	if (child == 0) {
		/* Until the parent goes on, or for long enough that a signal came while it read. */
		for (int sent = 0; !(flags & SA_RESTART) || sent < 50; sent++) {
			usleep(2000);
			if (kill(parent, SIGTRAP) != 0 || getppid() != parent)
				_exit(0);
		}
		_exit(write(ends[1], "", 1) != 1);
	}
	ssize_t n = read(ends[0], &byte, 1);
	int error = errno;
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	if (flags & SA_RESTART)
		_exit(n == 1 && seen.count > 0 ? 0 : 7);
	_exit(n == -1 && error == EINTR ? 0 : 6);
}

static void read_to_the_interruption(void *arg)
{
	read_interrupted(arg, 0);
}

static void read_on(void *arg)
{
	read_interrupted(arg, (int)SA_RESTART);
}

TEST(interrupted_calls_end_as_the_handler_before_wanted)
{
	struct foreign f;
	start(&f);
	expect_signal(read_to_the_interruption, &f, 0);
	expect_signal(read_on, &f, 0);
	rig_end(&f.rig);
}

/* --- handlers that come later --- */

static struct sigaction ours;

static void later(int signal, siginfo_t *info, void *ucontext)
{
	seen.count++;
	ours.sa_sigaction(signal, info, ucontext);
}

static void trap_behind_later(void *arg)
{
	struct foreign *f = arg;
	struct sigaction action = {.sa_sigaction = later, .sa_flags = SA_SIGINFO | SA_NODEFER};
	install(f);
	CHECK_EQ(sigaction(SIGTRAP, &action, &ours), 0);
	memset(&seen, 0, sizeof seen);
	code_call(f->freed);
}

static void foreign_behind_later(void *arg)
{
	struct foreign *f = arg;
	struct sigaction action = {.sa_sigaction = later, .sa_flags = SA_SIGINFO | SA_NODEFER};
	install(f);
	CHECK_EQ(sigaction(SIGTRAP, &action, &ours), 0);
	code_trap_or_end();
	_exit(3);
}

TEST(handler_that_came_later_chains_to_ours)
{
	struct foreign f;
	start(&f);
	expect_signal_text(trap_behind_later, &f, SIGTRAP, f.text, sizeof f.text);
	check_begins(f.text, "libcodeheap: block `gone` (#");
	expect_signal_text(foreign_behind_later, &f, SIGTRAP, f.text, sizeof f.text);
	CHECK_STR(f.text, "");
	rig_end(&f.rig);
}

/* --- traps anywhere --- */

static void *run_freed(void *arg)
{
	const struct foreign *f = arg;
	code_call(f->freed);
	return NULL;
}

static void trap_in_a_thread(void *arg)
{
	struct foreign *f = arg;
	pthread_t thread;
	install(f);
	CHECK_EQ(pthread_create(&thread, NULL, run_freed, f), 0); /* attached to nothing */
	pthread_join(thread, NULL);
}

static void trap_in_a_grandchild(void *arg)
{
	struct foreign *f = arg;
	int status;
	install(f);
	pid_t child = fork();
	if (child == 0)
		run_freed(f);
	CHECK_EQ(waitpid(child, &status, 0), child);
	_exit(WIFSIGNALED(status) && WTERMSIG(status) == SIGTRAP ? 0 : 4);
}

static void trap_on_a_stack_for_signals(void *arg)
{
	stack_t stack = {.ss_sp = handlers_stack, .ss_size = sizeof handlers_stack};
	CHECK_EQ(sigaltstack(&stack, NULL), 0);
	install(arg);
	run_freed(arg);
}

#if !CH_TSAN /* TSan blocks all signals while a handler runs */
/* The handler of another signal, on the alternate stack, runs freed code: the trap nests there. */
static const struct foreign *handled;
static void run_freed_in_handler(int signal)
{
	(void)signal;
	code_call(handled->freed);
}
static void trap_in_a_handler(void *arg)
{
	stack_t stack = {.ss_sp = handlers_stack, .ss_size = sizeof handlers_stack};
	struct sigaction action = {.sa_handler = run_freed_in_handler, .sa_flags = SA_ONSTACK};
	handled = arg;
	CHECK_EQ(sigaltstack(&stack, NULL), 0);
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	install(arg);
	raise(SIGUSR1);
}
#endif

TEST(trap_is_told_wherever_it_happens)
{
	static void (*const places[])(void *) = {
		trap_in_a_thread,
		trap_on_a_stack_for_signals,
#if !CH_TSAN
		trap_in_a_handler,
#endif
	};
	struct foreign f;
	start(&f);
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
		expect_signal_text(places[i], &f, SIGTRAP, f.text, sizeof f.text);
		check_begins(f.text, "libcodeheap: block `gone` (#");
		check_has(f.text, ", freed after collection 0 because its owner was released "
				  "(NOT_RUNNING); executed at +0x0 (0x");
	}
	expect_signal_text(trap_in_a_grandchild, &f, 0, f.text, sizeof f.text);
	check_begins(f.text, "libcodeheap: block `gone` (#");
	rig_end(&f.rig);
}

/* --- in a fiber --- */

struct in_fiber {
	struct stage *stage;
	uintptr_t freed; /* inverted */
	bool has_signal_stack;
	char text[1000];
};

static void build_in_stage(struct stage *stage, void *arg)
{
	static struct method m; /* the notice comes after this thread */
	struct in_fiber *f = arg;
	struct ch_info info = {.size = sizeof info};
	method_constant(stage, &m, "gone", 7);
	CHECK_EQ(ch_block_info(m.block, &info), CH_OK);
	f->freed = ~(uintptr_t)info.exec;
	method_invalidate(&m);
	method_drop(stage, &m);
}

static void run_in_fiber(struct fiber *fiber, void *arg)
{
	const struct in_fiber *f = arg;
	(void)fiber;
	code_call((const void *)~f->freed);
}

static void trap_in_a_fiber(void *arg)
{
	struct in_fiber *f = arg;
	struct fiber fiber;
	stack_t stack = {.ss_sp = handlers_stack, .ss_size = sizeof handlers_stack};
	if (f->has_signal_stack)
		CHECK_EQ(sigaltstack(&stack, NULL), 0);
	CHECK_EQ(ch_trap_install(f->stage->heap), CH_OK);
	fiber_start(f->stage, &fiber, run_in_fiber, f);
	fiber_resume(&fiber);
}

EVERY_DRIVER(trap_in_a_fiber_is_told)
{
	struct in_fiber f = {.stage = stage};
	stage_start(stage);
	stage_apart(stage, build_in_stage, &f);
	stage_collect(stage);
	for (int i = 0; i < 2; i++) {
		f.has_signal_stack = i;
		expect_signal_text(trap_in_a_fiber, &f, SIGTRAP, f.text, sizeof f.text);
		check_begins(f.text, "libcodeheap: block `gone` (#");
		check_has(f.text, ", invalidated by ch_blocks_invalidate; executed at +0x0 (0x");
		check_has(f.text, stage->driver == STAGE_HOST || stage->driver == STAGE_BOEHM
					  ? "because the VM's collector did not reach its owner,"
					  : "because its owner was released (COLLECT) and nothing "
					    "held it,");
	}
}
