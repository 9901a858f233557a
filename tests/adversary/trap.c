/* SPDX-License-Identifier: MIT
 * trap.c: the handler of ch_trap_install, on every way out of a process. The handler says what a
 * trap in code means, shows code to GDB, goes on to the previous action, and ends in time whatever
 * the dying thread held. Each fatal signal hits a child. */
#define _GNU_SOURCE
#include "arch/arch.h"
#include "arch/registers.h"
#include "codeheap/base/heap.h"
#include "codeheap/graph/names.h"
#include "os/os.h"
#include "tests/support/gdb_list.h"
#include "tests/support/heap_rig.h"
#include "tests/support/stage_code.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct trap {
	struct rig rig;
	const void *freed; /* address of a freed block */
	char text[800];
};

static void build_freed(const struct rig *rig, void *arg)
{
	struct trap *t = arg;
	struct ch_owner owner = rig_owner(rig, "Rumpelstilzchen");
	struct ch_block block = rig_block(owner, 3);
	t->freed = block_info(block).exec;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
}

static void trap_start(struct trap *t, unsigned sinks)
{
	struct ch_config config = rig_config(1 << 20);
	config.sinks = CH_SINK_UNWIND | sinks;
	*t = (struct trap){.rig = rig_create(&config, NULL, NULL)};
	struct ch_owner owner = rig_owner(&t->rig, "Rapunzel");
	CHECK_EQ(ch_owner_set_entry(owner, rig_block(owner, 4)), CH_OK);
	rig_apart(&t->rig, build_freed, t);
	rig_collect(&t->rig, 1);
}

static void run_freed(void *arg)
{
	struct trap *t = arg;
	CHECK_EQ(ch_trap_install(t->rig.heap), CH_OK);
	code_call(t->freed);
}

/* The process runs freed code, ends by the signal (0: exits), and says whose the code was. */
static void expect_told(unsigned sinks, void (*run)(void *), int signal)
{
	struct trap t;
	trap_start(&t, sinks);
	expect_signal_text(run, &t, signal, t.text, sizeof t.text);
	CHECK(strstr(t.text, "Rumpelstilzchen"));
	rig_end(&t.rig);
}

TEST(trap_in_freed_code_is_described_and_kills)
{
	struct trap t;
	trap_start(&t, 0);
	expect_signal_text(run_freed, &t, SIGTRAP, t.text, sizeof t.text);
	CHECK(strstr(t.text, "libcodeheap: block "));
	CHECK(strstr(t.text, "Rumpelstilzchen"));
	CHECK(strchr(t.text, '\n') && !strchr(t.text, '\n')[1]); /* one line */
	rig_end(&t.rig);
}

/* As threads of a VM that leaves signals to one thread of its own. */
static void run_freed_deaf(void *arg)
{
	sigset_t all;
	sigfillset(&all);
	CHECK_EQ(pthread_sigmask(SIG_BLOCK, &all, NULL), 0);
	run_freed(arg);
}

TEST(trap_in_a_thread_deaf_to_signals_kills_without_the_line)
{
	struct trap t;
	trap_start(&t, 0);
	expect_signal_text(run_freed_deaf, &t, SIGTRAP, t.text, sizeof t.text);
	CHECK(!strstr(t.text, "Rumpelstilzchen"));
	rig_end(&t.rig);
}

#if !TEST_SANITIZED /* sanitizers take such a signal themselves */
static void run_destroyed(void *arg)
{
	struct trap *t = arg;
	CHECK_EQ(ch_trap_install(t->rig.heap), CH_OK);
	rig_end(&t->rig);
	code_call(t->freed);
}

static void load_destroyed(void *arg)
{
	struct trap *t = arg;
	CHECK_EQ(ch_trap_install(t->rig.heap), CH_OK);
	rig_end(&t->rig);
	struct rig later = rig_start(1 << 20);
	rig_end(&later);
	(void)*(const volatile uint8_t *)t->freed;
}

/* The address is the sender's word. */
static void send_address_of_destroyed(void *arg)
{
	struct trap *t = arg;
	siginfo_t info = {.si_signo = SIGSEGV, .si_code = SI_QUEUE};
	CHECK_EQ(ch_trap_install(t->rig.heap), CH_OK);
	rig_end(&t->rig);
	info.si_addr = (void *)(uintptr_t)t->freed;
	syscall(SYS_rt_tgsigqueueinfo, getpid(), (int)syscall(SYS_gettid), SIGSEGV, &info);
	_exit(3);
}

/* Other memory of the program lies where the pool was, and refuses a store. */
static void store_where_the_pool_was(void *arg)
{
	enum { BYTES = 1 << 16 };
	struct trap *t = arg;
	CHECK_EQ(ch_trap_install(t->rig.heap), CH_OK);
	rig_end(&t->rig);
	void *at = (void *)((uintptr_t)t->freed & ~(uintptr_t)(BYTES - 1));
	CHECK(mmap(at, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
		   0) == at);
	*(volatile uint8_t *)(uintptr_t)t->freed = 1;
}

TEST(code_of_a_heap_that_was_destroyed_is_told)
{
	struct trap t;
	char wanted[120];
	trap_start(&t, 0);
	expect_signal_text(run_destroyed, &t, SIGSEGV, t.text, sizeof t.text);
	snprintf(wanted, sizeof wanted, "libcodeheap: executed at 0x%lx in the pool of a heap that "
		 "was destroyed\n", (unsigned long)(uintptr_t)t.freed);
	CHECK_STR(t.text, wanted);
	expect_signal_text(load_destroyed, &t, SIGSEGV, t.text, sizeof t.text);
	CHECK(strstr(t.text, "libcodeheap: a load or store at 0x"));
	expect_signal_text(send_address_of_destroyed, &t, SIGSEGV, t.text, sizeof t.text);
	CHECK_STR(t.text, "");
	expect_signal_text(store_where_the_pool_was, &t, SIGSEGV, t.text, sizeof t.text);
	CHECK_STR(t.text, "");
	rig_end(&t.rig);
}
#endif

static int raised;

static void raise_one(void *arg)
{
	struct trap *t = arg;
	CHECK_EQ(ch_trap_install(t->rig.heap), CH_OK);
	CHECK_EQ(ch_trap_install(t->rig.heap), CH_OK);
	if (raised == SIGABRT)
		abort();
	raise(raised);
	_exit(3);
}

TEST(every_signal_of_the_handler_kills_as_without_it)
{
	static const int all[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGABRT};
	struct trap t;
	trap_start(&t, CH_SINK_GDB);
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		raised = all[i];
		expect_signal_text(raise_one, &t, raised, t.text, sizeof t.text);
		CHECK_STR(t.text, ""); /* the signal is not from code */
	}
	rig_end(&t.rig);
}

/* --- the previous action goes on --- */

static const void *expected_pc;

static void leave_if_shown(int signal, siginfo_t *info, void *context)
{
	bool is_same = ch__arch_context_pc(context) ==
		       (uintptr_t)expected_pc + CODE_TRAP_BEHIND_BYTES;
	(void)info;
	for (const struct gdb_entry *entry = __jit_debug_descriptor.first; entry;
	     entry = entry->next) {
		for (size_t i = 0; i < gdb_symbol_count(entry); i++) {
			const char *name;
			gdb_symbol(entry, i, &name);
			if (!strcmp(name, "Rapunzel"))
				_exit(signal == SIGTRAP && is_same ? 0 : 4);
		}
	}
	_exit(5);
}

static void trap_behind_handler(void *arg)
{
	struct trap *t = arg;
	struct sigaction action = {.sa_sigaction = leave_if_shown, .sa_flags = SA_SIGINFO};
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	CHECK_EQ(gdb_list_length(), 0);
	expected_pc = t->freed;
	run_freed(t);
}

/* The previous handler finds the signal unchanged, and the list filled. */
TEST(code_is_shown_to_gdb_before_the_process_dies)
{
	expect_told(CH_SINK_GDB, trap_behind_handler, 0);
}

static sigjmp_buf recovery;

static void recover(int signal)
{
	siglongjmp(recovery, signal);
}

static void fault_and_go_on(void *arg)
{
	struct trap *t = arg;
	volatile int rounds = 0;
	volatile uintptr_t nowhere = 16;
	struct sigaction action = {.sa_handler = recover};
	CHECK_EQ(sigaction(SIGSEGV, &action, NULL), 0);
	CHECK_EQ(ch_trap_install(t->rig.heap), CH_OK);
	if (sigsetjmp(recovery, 1))
		rounds++;
	if (rounds < 3)
		*(volatile int *)nowhere = 1;
	code_call(t->freed); /* the handler still reports */
}

TEST(handler_before_may_leave_by_longjmp)
{
	expect_told(0, fault_and_go_on, SIGTRAP);
}

/* --- a fault in the report --- */

/* Whoever destroys a heap frees nothing that a report reads. */
static void recover_from_report(int signal)
{
	if (atomic_load(&ch__place_readers) != 1)
		_exit(4);
	siglongjmp(recovery, signal);
}

static void fault_in_a_report(void *arg)
{
	struct trap *t = arg;
	struct ch_heap *heap = t->rig.heap;
	struct ch__sinks *sinks = heap->sinks;
	struct sigaction action = {.sa_handler = recover_from_report};
	CHECK_EQ(sigaction(SIGSEGV, &action, NULL), 0);
	CHECK_EQ(ch_trap_install(heap), CH_OK);
	if (!sigsetjmp(recovery, 1)) {
		heap->sinks = (struct ch__sinks *)16; /* nothing is there */
		code_call(t->freed);
	}
	heap->sinks = sinks;
	code_call(t->freed);
}

TEST(fault_in_a_report_goes_on_and_the_next_trap_is_told)
{
	struct trap t;
	trap_start(&t, 0);
	expect_signal_text(fault_in_a_report, &t, SIGTRAP, t.text, sizeof t.text);
	const char *first = strchr(t.text, '\n');
	CHECK(first && strstr(first, "Rumpelstilzchen"));
	rig_end(&t.rig);
}

static void leave_by_errno(int signal)
{
	(void)signal;
	_exit(errno == EXDEV ? 0 : 6);
}

static void trap_without_memory(void *arg)
{
	struct trap *t = arg;
	struct sigaction action = {.sa_handler = leave_by_errno};
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	CHECK_EQ(ch_trap_install(t->rig.heap), CH_OK);
	ch__os_fail_at(1, true);
	errno = EXDEV;
	code_call(t->freed);
}

TEST(report_that_lacks_memory_leaves_errno_alone)
{
	expect_told(CH_SINK_GDB, trap_without_memory, 0);
}

/* Sanitizers need a larger stack. */
#if !TEST_SANITIZED
static void trap_on_small_stack(void *arg)
{
	static _Alignas(16) uint8_t small[8192];
	stack_t stack = {.ss_sp = small, .ss_size = sizeof small};
	CHECK_EQ(sigaltstack(&stack, NULL), 0);
	run_freed(arg);
}

TEST(handler_fits_a_signal_stack_of_8_kib)
{
	expect_told(CH_SINK_GDB, trap_on_small_stack, SIGTRAP);
}

enum { PAINT = 0x5a };
static const struct ch_heap *described_heap;
static _Alignas(16) uint8_t painted[1 << 15];

static void describe_and_measure(int signal, siginfo_t *info, void *ucontext)
{
	static char text[1024];
	const uint8_t *deepest = painted, *here = __builtin_frame_address(0);
	(void)signal;
	size_t n = ch_trap_describe(described_heap, info, ucontext, text, sizeof text);
	while (*deepest == PAINT)
		deepest++;
	dprintf(STDERR_FILENO, "%s: %zd bytes\n", text, here - deepest);
	_exit(n && here - deepest <= 4096 ? 0 : 1);
}

static void trap_on_painted_stack(void *arg)
{
	struct trap *t = arg;
	stack_t stack = {.ss_sp = painted, .ss_size = sizeof painted};
	struct sigaction action = {.sa_sigaction = describe_and_measure,
				   .sa_flags = SA_SIGINFO | SA_ONSTACK};
	described_heap = t->rig.heap;
	memset(painted, PAINT, sizeof painted);
	CHECK_EQ(sigaltstack(&stack, NULL), 0);
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	code_call(t->freed);
}

TEST(description_takes_4_kib_of_the_handlers_stack)
{
	expect_told(0, trap_on_painted_stack, 0);
}
#endif

/* --- heaps --- */

static void run_freed_of_second(void *arg)
{
	struct trap *both = arg;
	CHECK_EQ(ch_trap_install(both[0].rig.heap), CH_OK);
	run_freed(&both[1]);
}

static void run_freed_of_other(void *arg)
{
	struct trap *both = arg;
	CHECK_EQ(ch_trap_install(both[0].rig.heap), CH_OK);
	code_call(both[1].freed);
}

TEST(each_heap_asks_for_itself)
{
	struct trap both[2];
	trap_start(&both[0], 0);
	trap_start(&both[1], 0);
	expect_signal_text(run_freed_of_second, both, SIGTRAP, both[0].text, sizeof both[0].text);
	CHECK(strstr(both[0].text, "Rumpelstilzchen"));
	expect_signal_text(run_freed_of_other, both, SIGTRAP, both[0].text, sizeof both[0].text);
	CHECK_STR(both[0].text, "");
	rig_end(&both[0].rig);
	rig_end(&both[1].rig);
}

static void die_after_the_heap(void *arg)
{
	struct trap *t = arg;
	CHECK_EQ(ch_trap_install(t->rig.heap), CH_OK);
	rig_end(&t->rig);
	code_raise(SIGTRAP);
}

TEST(handler_outlives_its_heap)
{
	struct trap t;
	trap_start(&t, CH_SINK_GDB);
	expect_signal_text(die_after_the_heap, &t, SIGTRAP, t.text, sizeof t.text);
	CHECK_STR(t.text, "");
	rig_end(&t.rig);
}

/* --- code half made when another thread forked --- */

struct maker {
	struct trap *trap;
	struct emitter e;
	_Atomic(int) state; /* 1 the block is open, 2 the thread may go on */
};

static void *make_half(void *arg)
{
	struct maker *m = arg;
	struct ch_heap *heap = m->trap->rig.heap;
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_OK);
	emit_open(&m->e, rig_owner(&m->trap->rig, "Dornroeschen"), 40, 0);
	emit_value(&m->e, 5);
	emit_ret(&m->e);
	atomic_store(&m->state, 1);
	ch_thread_park();
	while (atomic_load(&m->state) != 2)
		usleep(500);
	ch_thread_unpark();
	CHECK_EQ(emit_commit(&m->e), CH_OK);
	CHECK_EQ(code_call(m->e.code.exec), 5);
	CHECK_EQ(ch_thread_detach(heap), CH_OK);
	return NULL;
}

static void run_half_made(void *arg)
{
	struct maker *m = arg;
	char report[300];
	if (ch_heap_check(m->trap->rig.heap, report, sizeof report) != CH_OK)
		FAIL("heap check: %s", report);
	CHECK_EQ(ch_trap_install(m->trap->rig.heap), CH_OK);
	code_call(m->e.code.exec);
}

/* The child has traps for the code's bytes and knows why. The parent's thread goes on. */
TEST(code_whose_maker_is_not_in_the_child_of_a_fork_is_told)
{
	struct trap t;
	trap_start(&t, 0);
	struct maker maker = {.trap = &t};
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, make_half, &maker), 0);
	while (atomic_load(&maker.state) != 1)
		usleep(500);
	expect_signal_text(run_half_made, &maker, SIGTRAP, t.text, sizeof t.text);
	if (!strstr(t.text, "Dornroeschen") || !strstr(t.text, "is not in this child of a fork"))
		FAIL("trap: said: %s", t.text);
	ch_thread_park();
	atomic_store(&maker.state, 2);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	ch_thread_unpark();
	rig_end(&t.rig);
}
