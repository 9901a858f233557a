/* SPDX-License-Identifier: MIT
 * profile_steps_x86_64.c: the profiler's handler at every instruction. A thread runs with the trap
 * flag set. Each SIGTRAP calls the handler of SIGPROF on the interrupted registers, as a timer
 * would have done there: inside each public function, by the rows of
 * tests/unit/codeheap/failures.c, and in code with frames and without, on any stack, with anything
 * in rbp.
 *
 * A thread that starts a thread or a process runs on without the flag: the new thread would inherit
 * the flag. The C library blocks all signals meanwhile, and the kernel would kill a stepping thread
 * that blocks SIGTRAP: so prepare_call takes SIGTRAP out of the masks. */
#define _GNU_SOURCE
#define FAILS_ROWS_ONLY
#define FAILS_CASE(case_)
#include "codeheap/collector.h"
#include "codeheap/look.h"
#include "os/threads.h"
#include "tests/unit/codeheap/failures.c"

#include "codeheap/base/heap.h"
#include "observe/profile.h"
#include "tests/support/folded_reader.h"
#include "tests/support/trap_flag_x86_64.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>

static struct {
	struct ch_heap *heap; /* NULL: nobody is sampled */
	void (*handler)(int, siginfo_t *, void *);
	volatile uint64_t steps, samples;
	volatile bool is_on, is_waiting;
	uint64_t most; /* instructions of a call */
} stepper;

/* --- stepping --- */

static void sample(ucontext_t *context)
{
	siginfo_t info = {.si_signo = SIGPROF, .si_code = SI_TIMER};
	info.si_value.sival_ptr = ch__profile_tag(stepper.heap->id);
	stepper.samples++;
	stepper.handler(SIGPROF, &info, context);
}

/* Keeps a system call, if the next instruction is one, from ending the steps. */
static void prepare_call(ucontext_t *context)
{
	static sigset_t masks[2];
	static unsigned n;
	greg_t *regs = context->uc_mcontext.gregs;
	const uint8_t *next = (const uint8_t *)regs[REG_RIP];
	if (next[0] != 0x0f || next[1] != 0x05)
		return;
	long call = (long)regs[REG_RAX];
	if (call == SYS_clone || call == SYS_clone3 || call == SYS_fork || call == SYS_vfork) {
		stepper.is_on = false;
		regs[REG_EFL] &= ~(greg_t)TRAP_FLAG;
	}
	if (call == SYS_rt_sigprocmask && regs[REG_RSI] && regs[REG_RDI] != SIG_UNBLOCK) {
		sigset_t *mask = &masks[n++ % 2];
		memset(mask, 0, sizeof *mask);
		memcpy(mask, (const void *)regs[REG_RSI], (size_t)regs[REG_R10]);
		sigdelset(mask, SIGTRAP);
		regs[REG_RSI] = (greg_t)(uintptr_t)mask;
	}
}

static void on_trap(int signal, siginfo_t *info, void *ucontext)
{
	ucontext_t *context = ucontext;
	int error = errno;
	(void)signal, (void)info;
	if (!stepper.is_on || stepper.steps == stepper.most) {
		stepper.is_on = false;
		context->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)TRAP_FLAG;
		return;
	}
	stepper.steps++;
	if (stepper.heap)
		sample(context);
	prepare_call(context);
	errno = error;
}

/* The alarm comes somewhere in the call: the steps go on from here. */
static void on_alarm(int signal, siginfo_t *info, void *ucontext)
{
	ucontext_t *context = ucontext;
	(void)signal, (void)info;
	if (stepper.is_waiting) {
		stepper.is_waiting = false;
		stepper.is_on = true;
		context->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
	}
}

static void set_alarm(uint64_t ns)
{
	struct itimerval when = {{0, 0}, {0, (suseconds_t)(ns / 1000)}};
	CHECK_EQ(setitimer(ITIMER_REAL, &when, NULL), 0);
}

__attribute__((noinline)) static void steps_begin(void)
{
	stepper.is_on = true;
	trap_flag_set();
}

__attribute__((noinline)) static void steps_end(void)
{
	trap_flag_clear();
	stepper.is_on = stepper.is_waiting = false;
}

static const struct ch_profile_view folded = {.size = sizeof folded, .flags = CH_PROFILE_FOLDED};

/* Timers exist, and nearly never expire: after a second of the thread's own time, however long the
 * thread waits for the machine. */
static void profile_start(struct ch_heap *heap)
{
	struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO}, prof;
	CHECK_EQ(ch_profile_start(heap, 1, NULL), CH_OK);
	struct sigaction alarm = {.sa_sigaction = on_alarm, .sa_flags = SA_SIGINFO | SA_RESTART};
	sigfillset(&action.sa_mask);
	sigfillset(&alarm.sa_mask);
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	CHECK_EQ(sigaction(SIGALRM, &alarm, NULL), 0);
	if (!stepper.most)
		stepper.most = UINT64_MAX;
	CHECK_EQ(sigaction(SIGPROF, NULL, &prof), 0);
	stepper.heap = heap;
	stepper.handler = prof.sa_sigaction;
	stepper.steps = stepper.samples = 0;
}

/* Every sample was taken, or counted as dropped. */
static void profile_stop(struct ch_heap *heap, const char *what)
{
	struct ch_profile_counts counts = {.size = sizeof counts};
	CHECK_EQ(ch_profile_stop(heap, &counts), CH_OK);
	if (counts.samples + counts.dropped < stepper.samples)
		FAIL("%s: %llu samples, %llu of them dropped, of %llu", what,
		     (unsigned long long)counts.samples, (unsigned long long)counts.dropped,
		     (unsigned long long)stepper.samples);
}

static const char *own_path(void)
{
	static char path[64];
	snprintf(path, sizeof path, "/tmp/codeheap-steps-%d.folded", getpid());
	return path;
}

/* --- each public function --- */

static struct {
	uint64_t weight, in_call;
} rows_seen;

/* No frame has the name of code that this heap never had. */
static void judge_row(void *arg, const struct folded_line *line)
{
	const char *row = arg;
	bool is_in_call = false;
	for (size_t i = 0; i < line->count; i++) {
		const char *frame = line->frames[i];
		if (strcmp(frame, "[freed code]") == 0 || strcmp(frame, "after") == 0)
			FAIL("%s: %s is on the stack", row, frame);
		is_in_call |= strcmp(frame, "step_row") == 0;
	}
	rows_seen.weight += line->weight;
	rows_seen.in_call += is_in_call ? line->weight : 0;
}

CH_OPAQUE static enum ch_status step_row(struct scene *s, const struct failures_row *row,
					 uint64_t delay_ns)
{
	if (delay_ns) {
		stepper.is_waiting = true;
		set_alarm(delay_ns);
	} else {
		steps_begin();
	}
	enum ch_status status = row->call(s);
	steps_end();
	return status;
}

/* These functions leave no profile to stop. */
static bool ends_profile(const struct failures_row *row)
{
	return strncmp(row->function, "ch_profile_", 11) == 0 ||
	       strcmp(row->function, "ch_heap_destroy") == 0;
}

/* Steps from the beginning of the call, or from some time after. Returns the number of steps. */
static uint64_t walk_row(const struct failures_row *row, const struct failures_setting *setting,
			 uint64_t delay_ns)
{
	static struct scene s; /* the Boehm collector finds anchors here */
	scene_start(&s, setting);
	if (row->prepare)
		row->prepare(&s);
	struct ch_heap *heap = s.heap;
	struct ch_marker *marker = s.marker;
	stepper.steps = stepper.samples = 0;
	/* During a mark the start of a profile would wait for the mark's end. */
	if (!heap || marker || ch_profile_stop(heap, NULL) == CH_OK) {
		scene_end(&s);
		return 0;
	}
	profile_start(heap);
	enum ch_status status = step_row(&s, row, delay_ns);
	if (status != CH_OK && !ends_profile(row))
		FAIL("%s: %s", row->name, ch_status_text(status));
	stepper.heap = NULL;
	if (s.marker)
		CHECK_EQ(ch_mark_end(s.marker, false), CH_OK);
	s.marker = NULL;
	if (!ends_profile(row)) {
		scene_check(&s);
		profile_stop(heap, row->name);
		CHECK_EQ(ch_profile_write(heap, own_path(), &folded), CH_OK);
		folded_read(own_path(), judge_row, (void *)(uintptr_t)row->name);
		CHECK_EQ(unlink(own_path()), 0);
	}
	scene_check(&s);
	scene_still_works(&s);
	scene_end(&s);
	if (!stepper.steps && !delay_ns)
		FAIL("%s: no step was made", row->name);
	return stepper.steps;
}

static bool has_setting(const struct failures_row *row, const struct failures_setting *s)
{
	if ((row->flags & ROW_ON_HOST) ? s->driver != CH_DRIVER_HOST : s->driver == CH_DRIVER_HOST)
		return false;
	return !(row->flags & (s->is_boehm ? ROW_NOT_ON_BOEHM : ROW_ON_BOEHM));
}

/* A trap costs some 40 us on a virtual machine. In the longest calls each run sees the beginning
 * and two other places, different in each run. */
static void walk_rows(const char *wanted, uint64_t most)
{
	enum { LONGEST_NS = 2000000 };
	char folder[] = "/tmp/codeheap.XXXXXX", command[80];
	struct test_random dice = test_random_new();
	uint64_t steps = 0, long_calls = 0;
	CHECK(mkdtemp(folder) != NULL);
	CHECK_EQ(setenv("CODEHEAP_PERF_MAP_DIR", folder, 1), 0);
	CHECK_EQ(setenv("JITDUMPDIR", folder, 1), 0);
#if CH_TEST_BDW
	GC_INIT();
#endif
	stepper.most = most = most * storm_ms() / TEST_STORM_DEFAULT_MS;
	for (unsigned i = 0; i < SETTINGS; i++) {
		const struct failures_setting *setting = &settings[i];
		for (unsigned r = 0; r < row_count && strcmp(setting->name, wanted) == 0; r++) {
			if (!rows[r]->function || !has_setting(rows[r], setting))
				continue;
			uint64_t its = walk_row(rows[r], setting, 0);
			steps += its;
			if (its < most)
				continue;
			long_calls++;
			for (int more = 0; more < 2; more++)
				steps += walk_row(rows[r], setting,
						  1000 + test_random_below(&dice, LONGEST_NS));
		}
	}
	snprintf(command, sizeof command, "rm -r %s", folder);
	CHECK_EQ(system(command), 0);
	printf("%llu instructions, %llu calls with more, %llu%% of the samples seen in their "
	       "call\n",
	       (unsigned long long)steps, (unsigned long long)long_calls,
	       (unsigned long long)(rows_seen.in_call * 100 /
				    (rows_seen.weight ? rows_seen.weight : 1)));
	CHECK(steps > 1000);
	/* Functions of the C library, in which calls may spend most of the time, keep no frame
	 * pointer. Without libdw no static function has a name. */
	if (dlopen("libdw.so.1", RTLD_LAZY))
		CHECK(rows_seen.in_call > rows_seen.weight / 10);
}

TEST_LIMIT(signal_at_each_instruction_of_each_function_dual, 120)
{
	walk_rows("dual", 8000);
}
TEST_LIMIT(signal_at_each_instruction_of_each_function_host, 120)
{
	walk_rows("host", 20000);
}
TEST_LIMIT(signal_at_each_instruction_of_each_function_all_sinks, 120)
{
	walk_rows("all sinks'", 4000);
}
#if CH_TEST_BDW
TEST_LIMIT(signal_at_each_instruction_of_each_function_boehm, 120)
{
	walk_rows("Boehm", 4000);
}
#endif

/* --- false frames --- */

static struct ch_heap *hostile_heap;
static struct ch_vm *hostile_vm;

static struct ch_block links_nothing(void *user, struct ch_branch branch, void *branch_user,
				     struct ch_regs *regs)
{
	(void)user, (void)branch, (void)branch_user, (void)regs;
	return (struct ch_block){0};
}

static void hostile_start(void)
{
	struct ch_config config;
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = links_nothing};
	ch_config_init(&config);
	config.pool_bytes = 1 << 20;
	config.page_bytes = test_page_bytes();
	CHECK_EQ(ch_heap_create(&config, &hostile_heap), CH_OK);
	CHECK_EQ(ch_vm_attach(hostile_heap, &ops, NULL, &hostile_vm), CH_OK);
	CHECK_EQ(ch_thread_attach(hostile_heap, NULL, NULL), CH_OK);
	profile_start(hostile_heap);
}

static void hostile_end(void)
{
	stepper.heap = NULL;
	CHECK_EQ(ch_vm_detach(hostile_vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(hostile_heap), CH_OK);
}

struct shape {
	size_t frames; /* of the longest stack */
	uint64_t weight;
};

static void measure(void *arg, const struct folded_line *line)
{
	struct shape *shape = arg;
	shape->weight += line->weight;
	if (line->count > shape->frames)
		shape->frames = line->count;
}

static struct shape read_shape(void)
{
	struct shape shape = {0};
	CHECK_EQ(ch_profile_write(hostile_heap, own_path(), &folded), CH_OK);
	folded_read(own_path(), measure, &shape);
	CHECK_EQ(unlink(own_path()), 0);
	return shape;
}

static void (*in_handler)(const ucontext_t *);

static void on_signal(int signal, siginfo_t *info, void *ucontext)
{
	(void)signal, (void)info;
	in_handler(ucontext);
}

/* Calls fn with the registers interrupted by a signal. */
static void interrupt(void (*fn)(const ucontext_t *))
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
	in_handler = fn;
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	CHECK_EQ(raise(SIGUSR1), 0);
}

static void sample_as(const ucontext_t *context, uintptr_t pc, uintptr_t sp, uintptr_t fp)
{
	ucontext_t changed = *context;
	changed.uc_mcontext.gregs[REG_RIP] = (greg_t)pc;
	changed.uc_mcontext.gregs[REG_RSP] = (greg_t)sp;
	changed.uc_mcontext.gregs[REG_RBP] = (greg_t)fp;
	sample(&changed);
}

/* A sample with these registers has so many frames. */
static void expect_frames(const ucontext_t *context, uintptr_t fp, size_t frames, const char *what)
{
	uintptr_t pc = (uintptr_t)sample_as, sp = (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
	if (ch_profile_stop(hostile_heap, NULL) == CH_OK)
		profile_start(hostile_heap);
	sample_as(context, pc, sp, fp);
	struct shape shape = read_shape();
	if (shape.frames != frames)
		FAIL("%s: %zu frames, and not %zu", what, shape.frames, frames);
	CHECK_EQ(shape.weight, 1);
}

static void *sleep_elsewhere(void *arg)
{
	uintptr_t own = (uintptr_t)&arg;
	__atomic_store_n((uintptr_t *)arg, own & ~(uintptr_t)15, __ATOMIC_RELEASE);
	for (;;)
		pause();
	return NULL;
}

static uintptr_t code(unsigned n)
{
	static void (*const functions[])(void) = {hostile_start, hostile_end, steps_begin,
						  steps_end};
	return (uintptr_t)functions[n] + 8;
}

/* The records are locals of this function, so on the stack. */
static void try_records(const ucontext_t *context)
{
	volatile uintptr_t r[32];
	uintptr_t at = (uintptr_t)r;
	static uintptr_t data[4];
	for (unsigned i = 0; i < 32; i++)
		r[i] = 0;
	ucontext_t below = *context;
	/* The interrupted stack pointer lies above this frame. */
	below.uc_mcontext.gregs[REG_RSP] = (greg_t)(at - 64);
	const struct {
		const char *what;
		uintptr_t next, back;
		size_t frames;
	} cases[] = {
		{"a record that leads to itself", at, code(0), 2},
		{"one that leads down", at - 16, code(0), 2},
		{"one whose caller is data", at + 64, (uintptr_t)data, 1},
		{"one whose caller is the stack", at + 64, at, 1},
		{"one whose caller is unmapped", at + 64, 0x10, 1},
		{"one whose caller is the kernel's", at + 64, UINTPTR_MAX - 4095, 1},
		{"one whose caller has no address", at + 64, 0x8000000000000000u, 1},
		{"one that is the last", 0, code(0), 2},
		{"one without a caller", at + 64, 0, 1},
		{"one that leads to an odd place", at + 65, code(0), 2},
		{"one that leads out of the stack", (uintptr_t)data, code(0), 2},
		{"one that leads to nothing mapped", 0x1000, code(0), 2},
		{"one that leads to the kernel's", UINTPTR_MAX - 15, code(0), 2},
		{"two", at + 64, code(0), 3},
	};
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
		r[0] = cases[i].next;
		r[1] = cases[i].back;
		r[8] = 0;
		r[9] = code(1);
		expect_frames(&below, at, cases[i].frames, cases[i].what);
	}
}

/* Words that are no records at all. */
static void try_words(const ucontext_t *context)
{
	uintptr_t sp = (uintptr_t)context->uc_mcontext.gregs[REG_RSP], other = 0;
	const void *low, *high;
	pthread_t thread;
	CHECK(ch__os_stack_bounds(&low, &high));
	CHECK_EQ(pthread_create(&thread, NULL, sleep_elsewhere, &other), 0);
	while (!__atomic_load_n(&other, __ATOMIC_ACQUIRE))
		sched_yield();
	uint8_t *gone = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(gone != MAP_FAILED);
	const uintptr_t words[] = {0,
				   1,
				   8,
				   sp - 16,
				   (uintptr_t)low - 16,
				   (uintptr_t)low,
				   (uintptr_t)high - 8,
				   (uintptr_t)high,
				   (uintptr_t)high + 16,
				   sp + 1,
				   sp + 4,
				   other,
				   (uintptr_t)gone,
				   (uintptr_t)gone + 4096,
				   (uintptr_t)words,
				   UINTPTR_MAX,
				   UINTPTR_MAX - 7,
				   UINTPTR_MAX / 2 + 1};
	for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
		if (words[i] != (uintptr_t)words)
			expect_frames(context, words[i], 1, "a word");
}

/* Any registers at all: each sample is there, whatever its frames. */
static void try_anything(const ucontext_t *context)
{
	enum { TRIES = 200000 };
	struct test_random dice = test_random_new();
	uintptr_t sp = (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
	for (int i = 0; i < TRIES; i++) {
		uintptr_t near = sp + test_random_below(&dice, 8192) - 1024;
		uintptr_t far =
			(uintptr_t)(test_random_next(&dice) >> test_random_below(&dice, 40));
		uintptr_t in_pool = hostile_heap->pool->exec_base +
				    test_random_below(&dice, hostile_heap->pool->pool_bytes);
		uintptr_t pc = i % 3 == 0 ? far : i % 3 == 1 ? in_pool : (uintptr_t)sample_as;
		uintptr_t its_sp = i % 5 == 0 ? far : i % 5 == 1 ? near : sp;
		sample_as(context, pc, its_sp, i % 4 == 0 ? far : near);
	}
}

TEST(words_that_are_no_frames_end_the_stack)
{
	hostile_start();
	interrupt(try_words);
	hostile_end();
	_exit(0); /* the other thread sleeps for ever */
}

TEST(records_that_lead_nowhere_end_the_stack)
{
	hostile_start();
	interrupt(try_records);
	hostile_end();
}

TEST(no_registers_harm_the_profiler)
{
	hostile_start();
	interrupt(try_anything);
	profile_stop(hostile_heap, "any registers");
	CHECK(stepper.samples == 200000);
	hostile_end();
}

/* --- each instruction of code with a frame, and without --- */

static uint32_t no_code(void)
{
	return 0xfa11;
}

static struct ch_owner hostile_owner(const char *name)
{
	struct ch_owner owner;
	CHECK_EQ(ch_owner_create(hostile_vm, name, (const void *)(uintptr_t)no_code, NULL, &owner),
		 CH_OK);
	return owner;
}

/* `outer` and `middle` have frames, `leaf` has none: `outer` calls `middle`, `middle` `leaf`. */
static const void *const *make_code(void)
{
	static const char *const names[] = {"leaf", "middle", "outer"};
	struct ch_owner owner = {0}, before = {0};
	for (int i = 0; i < 3; i++) {
		struct emitter e;
		struct ch_branch branch = {0};
		owner = hostile_owner(names[i]);
		emit_open(&e, owner, 100, 1);
		if (i) {
			emit_frame(&e);
			branch = emit_attach(&e, emit_site_call(&e), CH_CALL, NULL);
			emit_value(&e, 5);
			emit_frame_end(&e);
		} else {
			emit_count_down(&e, 3);
			emit_value(&e, 5);
		}
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
		if (i) {
			struct ch_owner_facts facts = {.size = sizeof facts};
			CHECK_EQ(ch_owner_info(before, &facts), CH_OK);
			CHECK_EQ(ch_branch_link(branch, facts.entry), CH_OK);
		}
		before = owner;
	}
	return ch_owner_cell(owner);
}

static struct {
	/* One frame only; the leaf below both, and below outer only; middle below outer. */
	uint64_t alone, whole, without_caller, framed;
} code_seen;

/* Each frame belongs to the caller of the next frame. Only the leaf's caller may be missing, since
 * the leaf has no frame. */
static void judge_code(void *arg, const struct folded_line *line)
{
	static const char *const names[] = {"outer", "middle", "leaf"};
	int last = -1;
	bool has_outer = false, has_middle = false;
	(void)arg;
	if (line->count == 1) {
		for (int n = 0; n < 3; n++)
			code_seen.alone +=
				strcmp(line->frames[0], names[n]) == 0 ? line->weight : 0;
		return;
	}
	for (size_t i = 0; i < line->count; i++)
		for (int n = 0; n < 3; n++) {
			if (strcmp(line->frames[i], names[n]) != 0)
				continue;
			bool is_innermost = i + 1 == line->count;
			if (n != last + 1 && !(is_innermost && n == 2 && last == 0))
				FAIL("%s stands behind %s", names[n], last < 0 ? "C" : names[last]);
			last = n;
			has_outer |= n == 0;
			has_middle |= n == 1;
		}
	if (last == 2 && has_outer && has_middle)
		code_seen.whole += line->weight;
	if (last == 2 && has_outer && !has_middle)
		code_seen.without_caller += line->weight;
	if (last == 1)
		code_seen.framed += line->weight;
}

static const void *const *code_cell;

static void step_through_code(const ucontext_t *context)
{
	(void)context;
	steps_begin();
	uint32_t answer = code_call(*code_cell);
	steps_end();
	CHECK_EQ(answer, 5);
}

static void judge_steps(bool on_signal_stack)
{
	profile_stop(hostile_heap, "code");
	CHECK_EQ(ch_profile_write(hostile_heap, own_path(), &folded), CH_OK);
	memset(&code_seen, 0, sizeof code_seen);
	folded_read(own_path(), judge_code, NULL);
	CHECK_EQ(unlink(own_path()), 0);
	/* The bounds of a signal stack are not looked for: interrupted code there stands alone. On
	 * other stacks the leaf keeps the caller's frame pointer, so the caller is missing until
	 * the leaf returns. */
	CHECK_EQ(code_seen.alone > 0, on_signal_stack);
	CHECK_EQ(code_seen.without_caller >= 6, !on_signal_stack);
	CHECK_EQ(code_seen.whole, !on_signal_stack);
	CHECK_EQ(code_seen.framed >= 6, !on_signal_stack);
}

TEST(each_instruction_of_code_has_its_callers_in_order)
{
	hostile_start();
	code_cell = make_code();
	step_through_code(NULL);
	judge_steps(false);
	hostile_end();
}

TEST(each_instruction_of_code_on_a_signal_stack_stands_alone)
{
	enum { STACK_BYTES = 128 << 10 };
	static uint8_t stack[STACK_BYTES] __attribute__((aligned(16)));
	stack_t its = {.ss_sp = stack, .ss_size = sizeof stack};
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	hostile_start();
	code_cell = make_code();
	CHECK_EQ(sigaltstack(&its, NULL), 0);
	in_handler = step_through_code;
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	CHECK_EQ(raise(SIGUSR1), 0);
	judge_steps(true);
	its.ss_flags = SS_DISABLE;
	CHECK_EQ(sigaltstack(&its, NULL), 0);
	hostile_end();
}
