/* SPDX-License-Identifier: MIT
 * backtrace.c: backtraces by frame pointers and by tables, through C with and without frame
 * pointers, through code of both kinds of frame shape, from signals and over broken frames. Then
 * the names of the addresses found. */
#define _GNU_SOURCE
#include "codeheap/graph/block.h"
#include "tests/support/frames_code.h"
#include "tests/support/heap_rig.h"
#include "tests/support/stage_code.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unwind.h>

enum { MOST = 128 };

static struct rig rig;
static const void *pcs[MOST], *other[MOST];
static size_t count;

/* No clones: frames of a function are recognized by the address of its only body. */
#if defined(__clang__)
#define ONE_BODY __attribute__((noinline))
#else
#define ONE_BODY __attribute__((noinline, noclone))
#endif
#define NO_TAIL_CALL() __asm__ volatile("" ::: "memory")

/* --- C functions and code on the stack; each calls its argument --- */
ONE_BODY void with_c_frame(callee *fn)
{
	fn();
	NO_TAIL_CALL();
}

struct made {
	const uint8_t *entry, *call_end; /* call_end: the return address of the call */
	struct ch_block block;
};

static struct made commit(struct emitter *e, uint32_t call_end)
{
	struct made made = {.entry = e->code.exec + e->code.entry_bytes, .block = e->code.block};
	made.call_end = e->code.exec + call_end;
	CHECK_EQ(emit_commit(e), CH_OK);
	return made;
}

static struct made make_framed(const char *name)
{
	struct emitter e;
	emit_open(&e, rig_owner(&rig, name), 40, 0);
	uint32_t from = e.at;
	emit_bytes(&e, code_framed, sizeof code_framed);
	return commit(&e, from + CODE_FRAMED_RETURNS_AT);
}

static struct made make_frameless(const char *name)
{
	uint8_t frame;
	CHECK_EQ(ch_frame_register(rig.heap, code_frameless_cfi, sizeof code_frameless_cfi, &frame),
		 CH_OK);
	struct emitter e;
	struct ch_open open = {.owner = rig_owner(&rig, name), .hot_bytes = 40, .frame = frame};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	uint32_t from = e.at;
	emit_bytes(&e, code_frameless, sizeof code_frameless);
	return commit(&e, from + CODE_FRAMELESS_RETURNS_AT);
}

ONE_BODY void call_code(const void *entry, callee *fn)
{
	((void (*)(callee *))(uintptr_t)entry)(fn);
	NO_TAIL_CALL();
}

/* --- taking and reading a backtrace --- */
static enum ch_backtrace how;

ONE_BODY void trace(void)
{
	count = ch_backtrace(rig.heap, how, NULL, pcs, MOST);
	NO_TAIL_CALL();
}

static size_t find(const void *pc)
{
	for (size_t i = 0; i < count; i++)
		if (pcs[i] == pc)
			return i;
	return SIZE_MAX;
}

/* Whether a frame belongs to a function, by unwind tables: a static program has no names. */
static bool is_in(size_t frame, void *function)
{
	return frame < count &&
	       _Unwind_FindEnclosingFunction((uint8_t *)(uintptr_t)pcs[frame] - 1) == function;
}
#define IS_IN(frame, function) is_in((frame), (void *)(uintptr_t)(function))

/* Whether exported functions have names. In a static program no function has a name. */
static bool has_names(void)
{
	Dl_info info;
	return dladdr((void *)(uintptr_t)with_c_frame, &info) && info.dli_sname;
}

static const char *name_of(const void *pc, bool is_return)
{
	static char text[256];
	size_t n = ch_address_name(rig.heap, pc, is_return, text, sizeof text);
	CHECK(n > 0 && n < sizeof text);
	CHECK_EQ(strlen(text), n);
	return text;
}

#define CHECK_BEGINS(text, with)                                           \
	do {                                                               \
		const char *check_text = (text);                           \
		if (strncmp(check_text, (with), strlen(with)) != 0)        \
			FAIL("%s begins with \"%s\"", check_text, (with)); \
	} while (0)

static void start(unsigned sinks)
{
	struct ch_config config = rig_config(1 << 20);
	config.sinks = sinks;
	rig = rig_create(&config, NULL, NULL);
}

/* --- walks --- */
static struct made outer, inner;

ONE_BODY void into_inner(void)
{
	call_code(inner.entry, trace);
	NO_TAIL_CALL();
}

/* Expects the inner code first, then C functions, then the outer code. */
static void expect_both_codes(void)
{
	CHECK_EQ(find(inner.call_end), 1);
	CHECK(IS_IN(2, call_code));
	CHECK(IS_IN(3, into_inner));
	CHECK_EQ(find(outer.call_end), 4);
}

ONE_BODY void check_both_ways_pass_code_and_c(void)
{
	outer = make_framed("outer");
	inner = make_framed("inner");
	for (how = CH_BACKTRACE_FRAMES; how <= CH_BACKTRACE_TABLES; how++) {
		call_code(outer.entry, into_inner);
		CHECK(IS_IN(0, trace));
		expect_both_codes();
		CHECK(IS_IN(6, check_both_ways_pass_code_and_c));
		CHECK_BEGINS(name_of(pcs[1], true), "inner+0x");
		if (has_names())
			CHECK_BEGINS(name_of(pcs[2], true), "call_code+0x");
		CHECK_BEGINS(name_of(pcs[4], true), "outer+0x");
		CHECK(count > 8);
	}
}

#define TEST_SINKS(name, sinks) TEST_BETWEEN(name, start(sinks), rig_end(&rig))

TEST_SINKS(backtraces_pass_code_and_c, CH_SINK_UNWIND)
{
	check_both_ways_pass_code_and_c();
}

ONE_BODY void into_c_without(void)
{
	without_frame_pointer(trace);
	NO_TAIL_CALL();
}

TEST_SINKS(backtrace_by_tables_passes_c_without_frame_pointers, CH_SINK_UNWIND)
{
	outer = make_framed("outer");
	how = CH_BACKTRACE_TABLES;
	call_code(outer.entry, into_c_without);
	CHECK(IS_IN(0, trace));
	CHECK(IS_IN(1, without_frame_pointer));
	CHECK(IS_IN(2, into_c_without));
	CHECK_EQ(find(outer.call_end), 3);
	CHECK(IS_IN(4, call_code));
	/* without_frame_pointer has a number in the frame pointer, so the walk ends. */
	how = CH_BACKTRACE_FRAMES;
	call_code(outer.entry, into_c_without);
	CHECK_EQ(count, 2);
	CHECK(IS_IN(1, without_frame_pointer));
}

TEST_SINKS(backtrace_by_tables_passes_code_of_another_shape, CH_SINK_UNWIND)
{
	inner = make_frameless("frameless");
	outer = make_framed("outer");
	how = CH_BACKTRACE_TABLES;
	call_code(outer.entry, into_inner);
	expect_both_codes();
	CHECK_BEGINS(name_of(pcs[1], true), "frameless+0x");
	how = CH_BACKTRACE_FRAMES;
	call_code(outer.entry, into_inner);
	CHECK_EQ(count, 2);
	CHECK_EQ(find(inner.call_end), 1);
}

/* No unwinder knows the pages: the tables end in the first code, and frame pointers go on. */
TEST_SINKS(frame_pointers_go_on_where_tables_end_in_code, CH_SINK_NONE)
{
	outer = make_framed("outer");
	inner = make_framed("inner");
	how = CH_BACKTRACE_TABLES;
	call_code(outer.entry, into_inner);
	expect_both_codes();
	CHECK(count > 6);
}

/* LLVM's unwinder leaves out the frame of code without a table. So does the walk here: the linker
 * (--wrap) leads _Unwind_Backtrace to a wrapper that ends before code of the heap. */
static bool hides_code;
struct shown {
	_Unwind_Trace_Fn fn;
	void *arg;
};

static _Unwind_Reason_Code show_native(struct _Unwind_Context *context, void *arg)
{
	const struct shown *shown = arg;
	const struct ch__pool *pool = rig.heap->pool;
	uintptr_t pc = (uintptr_t)_Unwind_GetIP(context);
	return hides_code && pc - pool->exec_base < pool->pool_bytes
		       ? _URC_END_OF_STACK
		       : shown->fn(context, shown->arg);
}

_Unwind_Reason_Code __real__Unwind_Backtrace(_Unwind_Trace_Fn, void *);
_Unwind_Reason_Code __wrap__Unwind_Backtrace(_Unwind_Trace_Fn, void *);
_Unwind_Reason_Code __wrap__Unwind_Backtrace(_Unwind_Trace_Fn fn, void *arg)
{
	struct shown shown = {fn, arg};
	return __real__Unwind_Backtrace(show_native, &shown);
}

TEST_SINKS(frame_pointers_go_on_where_tables_end_before_code, CH_SINK_NONE)
{
	outer = make_framed("outer");
	inner = make_framed("inner");
	how = CH_BACKTRACE_TABLES;
	hides_code = true;
	call_code(outer.entry, into_inner);
	expect_both_codes();
	CHECK(count > 6);
}

ONE_BODY void compare_with_glibc(void)
{
	void *theirs[MOST];
	size_t n = (size_t)backtrace(theirs, MOST);
	count = ch_backtrace(rig.heap, CH_BACKTRACE_TABLES, NULL, pcs, MOST);
	size_t frames = ch_backtrace(rig.heap, CH_BACKTRACE_FRAMES, NULL, other, MOST);
	CHECK(IS_IN(0, compare_with_glibc));
	/* A sanitizer adds a frame between the test and glibc. */
	CHECK(count > 4 && n >= count && n <= count + 1);
	/* The first entries are two different places in compare_with_glibc. */
	for (size_t i = 1; i < count; i++)
		CHECK_EQ(pcs[i], theirs[i + n - count]);
	/* The C library has no frame pointers: the walks agree as far as the test's own code. */
	size_t in_harness = find(outer.call_end) + 2;
	CHECK(frames > in_harness);
	for (size_t i = 1; i <= in_harness; i++)
		CHECK_EQ(other[i], pcs[i]);
}

TEST_SINKS(backtraces_agree_with_glibc, CH_SINK_UNWIND)
{
	outer = make_framed("outer");
	call_code(outer.entry, compare_with_glibc);
}

static void check_room(void)
{
	size_t all = ch_backtrace(rig.heap, how, NULL, other, MOST);
	for (size_t max = 0; max <= all; max++) {
		memset(pcs, 0, sizeof pcs);
		CHECK_EQ(ch_backtrace(rig.heap, how, NULL, pcs, max), max);
		for (size_t i = 1; i < max; i++)
			CHECK_EQ(pcs[i], other[i]);
		CHECK(!pcs[max]);
	}
}

TEST_SINKS(backtrace_writes_no_more_than_there_is_room, CH_SINK_UNWIND)
{
	outer = make_framed("outer");
	for (how = CH_BACKTRACE_FRAMES; how <= CH_BACKTRACE_TABLES; how++)
		call_code(outer.entry, check_room);
}

void *trace_unattached(void *arg)
{
	(void)arg;
	how = CH_BACKTRACE_FRAMES;
	trace();
	CHECK_EQ(count, 0);
	how = CH_BACKTRACE_TABLES;
	trace();
	CHECK(count >= 2);
	CHECK(IS_IN(1, trace_unattached));
	return NULL;
}

TEST_SINKS(thread_that_is_not_attached_has_tables_only, CH_SINK_UNWIND)
{
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, trace_unattached, NULL), 0);
	pthread_join(thread, NULL);
}

/* --- signals --- */
static void trace_context(int signal, siginfo_t *info, void *ucontext)
{
	(void)signal, (void)info;
	count = ch_backtrace(rig.heap, how, ucontext, pcs, MOST);
	code_step_over_trap(ucontext);
}

static void on_sigtrap(int flags)
{
	static uint8_t stack[64 << 10];
	stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
	struct sigaction action = {.sa_sigaction = trace_context, .sa_flags = SA_SIGINFO | flags};
	CHECK_EQ(sigaltstack(&alternate, NULL), 0);
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
}

/* Code with a trap, and with or without a frame; call_end is the trap's pc. */
static struct made make_trap(enum ch_frame_shape frame)
{
	struct emitter e;
	struct ch_open open = {.owner = rig_owner(&rig, "trap"), .hot_bytes = 40, .frame = frame};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	if (frame == CH_FRAME_POINTER)
		emit_enter(&e);
	uint32_t end = e.at + CODE_TRAP_BEHIND_BYTES;
	emit_breakpoint(&e);
	if (frame == CH_FRAME_POINTER)
		emit_leave(&e);
	else
		emit_ret(&e);
	return commit(&e, end);
}

ONE_BODY void into_trap(void)
{
	call_code(inner.entry, NULL);
	NO_TAIL_CALL();
}

TEST_SINKS(backtraces_start_in_code_that_a_signal_interrupted, CH_SINK_UNWIND)
{
	inner = make_trap(CH_FRAME_POINTER);
	outer = make_framed("outer");
	/* The first walk over a table sorts the table, and no handler may sort. */
	how = CH_BACKTRACE_TABLES;
	call_code(outer.entry, trace);
	for (int flags = 0; flags <= SA_ONSTACK; flags += SA_ONSTACK) {
		on_sigtrap(flags);
		for (how = CH_BACKTRACE_FRAMES; how <= CH_BACKTRACE_TABLES; how++) {
			call_code(outer.entry, into_trap);
			CHECK_EQ(find(inner.call_end), 0);
			CHECK(IS_IN(1, call_code));
			CHECK(IS_IN(2, into_trap));
			CHECK_EQ(find(outer.call_end), 3);
			CHECK_BEGINS(name_of(pcs[0], false), "trap+0x");
		}
	}
}

static void trace_here(int signal)
{
	(void)signal;
	trace();
}

/* The heap does not know where the alternate stack ends. */
TEST_SINKS(frames_of_a_stack_that_the_heap_does_not_know_are_not_walked, CH_SINK_UNWIND)
{
	on_sigtrap(SA_ONSTACK);
	how = CH_BACKTRACE_FRAMES;
	for (int flags = 0; flags <= SA_ONSTACK; flags += SA_ONSTACK) {
		struct sigaction action = {.sa_handler = trace_here, .sa_flags = flags};
		CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
		CHECK_EQ(raise(SIGUSR1), 0);
		CHECK_EQ(count > 0, flags == 0);
	}
}

TEST_SINKS(code_without_a_frame_that_a_signal_interrupted_has_its_caller, CH_SINK_UNWIND)
{
	inner = make_trap(CH_FRAME_LEAF);
	outer = make_framed("outer");
	how = CH_BACKTRACE_TABLES;
	call_code(outer.entry, trace);
	on_sigtrap(0);
	call_code(outer.entry, into_trap);
	CHECK_EQ(find(inner.call_end), 0);
	CHECK(IS_IN(1, call_code));
	CHECK(IS_IN(2, into_trap));
	CHECK_EQ(find(outer.call_end), 3);
}

/* --- the callback of a branch --- */
static struct made branching;

static struct ch_block trace_hit(void *user, struct ch_branch branch, void *branch_user,
				 struct ch_regs *regs)
{
	(void)user, (void)branch, (void)branch_user, (void)regs;
	count = ch_backtrace(rig.heap, how, NULL, pcs, MOST);
	return (struct ch_block){0};
}

/* The branch is a call, so the target may return into a whole frame. */
static struct made make_branching(void)
{
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "branching"), 48, 1);
	emit_enter(&e);
	const void *site = emit_site_call(&e);
	emit_attach(&e, site, CH_CALL, NULL);
	uint32_t end = e.at;
	emit_leave(&e);
	return commit(&e, end);
}

ONE_BODY void into_branching(void)
{
	call_code(branching.entry, NULL);
	NO_TAIL_CALL();
}

TEST(backtraces_of_a_branchs_callback_find_its_block)
{
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = trace_hit};
	struct ch_config config = rig_config(1 << 20);
	config.sinks = CH_SINK_UNWIND;
	rig = rig_create(&config, &ops, NULL);
	outer = make_framed("outer");
	branching = make_branching();
	for (how = CH_BACKTRACE_FRAMES; how <= CH_BACKTRACE_TABLES; how++) {
		call_code(outer.entry, into_branching);
		size_t in_stub = 0;
		while (in_stub < count &&
		       strncmp(name_of(pcs[in_stub], true), "branching (cold)", 16) != 0)
			in_stub++;
		CHECK(in_stub > 0 && in_stub < count);
		/* The call in the block has made no frame yet. */
		CHECK(IS_IN(in_stub + 1, call_code));
		CHECK(IS_IN(in_stub + 2, into_branching));
		CHECK_EQ(find(outer.call_end), in_stub + 3);
		CHECK(count > in_stub + 4);
	}
	rig_end(&rig);
}

/* --- broken frames: each test continues the chain of `trace` with its own records --- */
struct record {
	const void *caller, *return_address;
};

/* The frame pointer of a frame with the given record. */
static const void *frame_of(const void *record)
{
	return record ? (const void *)((uintptr_t)record - (uintptr_t)(intptr_t)CH_ARCH_RECORD_AT)
		      : NULL;
}

/* The number of frames behind `trace` and with_frame_pointer. */
static size_t frames_beyond(const void *record)
{
	how = CH_BACKTRACE_FRAMES;
	with_frame_pointer(frame_of(record), trace);
	CHECK(count >= 2);
	CHECK(IS_IN(0, trace));
	CHECK(IS_IN(1, with_frame_pointer));
	return count - 2;
}

TEST(frame_walk_follows_records_in_the_stack)
{
	struct record last = {NULL, (void *)0x40000}, first = {frame_of(&last), (void *)0x30000};
	start(CH_SINK_UNWIND);
	/* The compiler chooses whether `first` or `last` lies higher. */
	if ((uintptr_t)&first > (uintptr_t)&last) {
		first = (struct record){NULL, (void *)0x40000};
		last = (struct record){frame_of(&first), (void *)0x30000};
	}
	const struct record *lower = &first < &last ? &first : &last;
	CHECK_EQ(frames_beyond(lower), 2);
	CHECK_EQ((uintptr_t)pcs[2], 0x30000);
	CHECK_EQ((uintptr_t)pcs[3], 0x40000);
	rig_end(&rig);
}

TEST(frame_walk_ends_at_an_unaligned_record)
{
	_Alignas(16) uint8_t bytes[4 * sizeof(struct record)];
	struct record record = {NULL, (void *)0x30000};
	start(CH_SINK_UNWIND);
	memcpy(bytes + 4, &record, sizeof record);
	if (frames_beyond(bytes + 4) != 0)
		FAIL("frame walk: it reads an unaligned record");
	rig_end(&rig);
}

TEST_SINKS(frame_walk_ends_where_records_do_not_rise, CH_SINK_UNWIND)
{
	struct record records[4];
	memset(records, 0, sizeof records);
	records[2] = (struct record){frame_of(&records[0]), (void *)0x30000};
	records[0] = (struct record){NULL, (void *)0x40000};
	if (frames_beyond(&records[2]) != 1)
		FAIL("frame walk: it goes down the stack");
	records[0] = (struct record){frame_of(&records[2]), (void *)0x40000}; /* a ring */
	CHECK_EQ(frames_beyond(&records[0]), 2);
	records[2].caller = frame_of(&records[2]); /* a ring of a single record */
	CHECK_EQ(frames_beyond(&records[2]), 1);
}

static void *walk_out_of_the_stack(void *above)
{
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	if (frames_beyond(above) != 0)
		FAIL("frame walk: it reads outside the stack");
	CHECK_EQ(frames_beyond((void *)8), 0);
	CHECK_EQ(frames_beyond((void *)(UINTPTR_MAX - 7)), 0);
	struct record inside = {frame_of(above), (void *)0x30000};
	CHECK_EQ(frames_beyond(&inside), 1);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

TEST(frame_walk_ends_outside_the_stack)
{
	/* Stacks of threads lie below the first thread's stack, so `above` lies outside the walking
	 * thread's stack. In all else the record is good. */
	struct record above = {NULL, (void *)0x40000};
	pthread_t thread;
	start(CH_SINK_UNWIND);
	ch_thread_park();
	CHECK_EQ(pthread_create(&thread, NULL, walk_out_of_the_stack, &above), 0);
	pthread_join(thread, NULL);
	ch_thread_unpark();
	rig_end(&rig);
}

TEST(frame_walk_ends_at_the_outermost_frame)
{
	struct record records[2];
	start(CH_SINK_UNWIND);
	records[1] = (struct record){NULL, (void *)0x40000};
	for (uintptr_t mark = 0; mark <= 1; mark++) {
		records[0] = (struct record){frame_of(&records[1]), (void *)mark};
		if (frames_beyond(&records[0]) != 0)
			FAIL("frame walk: it passes a return address of %zu", (size_t)mark);
	}
	records[0].return_address = (void *)2;
	CHECK_EQ(frames_beyond(&records[0]), 2);
	CHECK_EQ(frames_beyond(NULL), 0);
	rig_end(&rig);
}

/* The register of the frame pointer has a number of the VM's. */
TEST_SINKS(interrupted_code_without_a_frame_pointer_is_in_its_backtrace, CH_SINK_UNWIND)
{
	static ucontext_t context;
	uintptr_t stack[2];
	inner = make_framed("inner");
	code_make_trap(&context, inner.entry, stack, 1);
	CHECK_EQ(ch_backtrace(rig.heap, CH_BACKTRACE_FRAMES, &context, pcs, MOST), 1);
	CHECK_BEGINS(name_of(pcs[0], false), "inner+0x");
}

/* --- names --- */
TEST(address_in_code_has_the_names_of_owner_and_block)
{
	start(CH_SINK_UNWIND);
	struct emitter e;
	struct ch_open open = {
		.owner = rig_owner(&rig, "fib"), .name = "loop", .hot_bytes = 32, .branch_room = 1};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_jmp(&e, NULL);
	CHECK_EQ(emit_commit(&e), CH_OK);
	struct ch_info info = block_info(e.code.block);
	CHECK_STR(name_of(info.exec, false), "fib loop+0x0");
	CHECK_STR(name_of(info.exec + 3, false), "fib loop+0x3");
	CHECK_STR(name_of(info.exec - 1, false), "fib loop+0x0");
	CHECK(info.cold_bytes);
	CHECK_STR(name_of(info.cold_exec + 4, false), "fib loop (cold)+0x4");
	/* The block ends with a call, so the return address lies behind the block. */
	const uint8_t *end = info.exec + info.hot_bytes;
	char wanted[64];
	snprintf(wanted, sizeof wanted, "fib loop+0x%x", info.hot_bytes);
	CHECK_STR(name_of(end, true), wanted);
	CHECK_BEGINS(name_of(end, false), "code memory+0x");
	rig_end(&rig);
}

TEST_SINKS(address_in_the_runtime_page_is_named, CH_SINK_UNWIND)
{
	struct emitter e;
	const void *veneer;
	emit_open(&e, rig_owner(&rig, "caller"), 16, 0);
	CHECK_EQ(ch_block_veneer(&e.code, (const void *)(uintptr_t)puts, &veneer), CH_OK);
	CHECK_BEGINS(name_of(veneer, false), "runtime page of the code heap+0x");
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

TEST_SINKS(code_without_a_name_is_called_so, CH_SINK_UNWIND)
{
	const void *at = block_info(rig_block(rig_owner(&rig, NULL), 1)).exec;
	CHECK_STR(name_of(at, false), "[code without a name]+0x0");
}

TEST_SINKS(open_block_is_not_called_free, CH_SINK_UNWIND)
{
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "maker"), 16, 0);
	CHECK_BEGINS(name_of(e.code.exec, false), "code memory+0x");
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_BEGINS(name_of(e.code.exec, false), "maker+0x0");
}

TEST_SINKS(freed_code_has_no_name, CH_SINK_UNWIND)
{
	struct ch_owner owner = rig_owner(&rig, "short life");
	const void *at = block_info(rig_block(owner, 1)).exec;
	CHECK_BEGINS(name_of(at, false), "short life+0x0");
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_BEGINS(name_of(at, false), "code memory+0x");
}

/* A function with the C++ name of foo::bar(int), and unnamed bytes behind the function. */
void cxx_function(int) __asm__("_ZN3foo3barEi");
__asm__(".text\n.p2align 2\n.globl _ZN3foo3barEi\n.type _ZN3foo3barEi, STT_FUNC\n"
	"_ZN3foo3barEi:\nnop\nnop\nret\n.size _ZN3foo3barEi, . - _ZN3foo3barEi\n"
	".fill 64, 1, 0xcc\n");
#define LETTERS_60 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefgh"
#define LETTERS_300 LETTERS_60 LETTERS_60 LETTERS_60 LETTERS_60 LETTERS_60
void cxx_long_function(void) __asm__("_ZN300" LETTERS_300 "300" LETTERS_300 "Ev");
__asm__(".text\n.globl _ZN300" LETTERS_300 "300" LETTERS_300 "Ev\n"
	"_ZN300" LETTERS_300 "300" LETTERS_300 "Ev:\nnop\n");

TEST_SINKS(address_of_native_code_has_symbol_or_object, CH_SINK_UNWIND)
{
	const char *at = (const char *)(uintptr_t)with_c_frame;
	CHECK_STR(name_of(at, false), "with_c_frame+0x0");
	CHECK_STR(name_of(at + 3, false), "with_c_frame+0x3");
	CHECK_STR(name_of(at + 3, true), "with_c_frame+0x3");
	/* `find` is static, so only the object has a name. */
	CHECK_BEGINS(name_of((const char *)(uintptr_t)find + 4, false), "api_backtrace+0x");
	CHECK_STR(name_of((void *)0x10, false), "+0x10");
	CHECK_STR(name_of(NULL, true), "+0x0");
}

TEST_SINKS(names_of_cxx_are_demangled_where_the_process_can, CH_SINK_UNWIND)
{
	const char *at = (const char *)(uintptr_t)cxx_function;
	/* A sanitizer loads the C++ runtime itself. */
	if (!dlsym(RTLD_DEFAULT, "__cxa_demangle"))
		CHECK_STR(name_of(at + 1, false), "_ZN3foo3barEi+0x1");
	CHECK(dlopen("libstdc++.so.6", RTLD_NOW | RTLD_LOCAL));
	CHECK_STR(name_of(at + 1, false), "foo::bar(int)+0x1");
	CHECK_BEGINS(name_of(at + 32, false), "api_backtrace+0x");
	char text[1024];
	ch_address_name(rig.heap, (void *)(uintptr_t)cxx_long_function, false, text, sizeof text);
	CHECK_STR(text, LETTERS_300 "::" LETTERS_300 "()+0x0");
	CHECK_BEGINS(name_of((void *)(uintptr_t)with_c_frame, false), "with_c_frame+0x0");
}

TEST_SINKS(name_that_is_too_long_is_cut, CH_SINK_UNWIND)
{
	char text[16];
	struct ch_block block = rig_block(rig_owner(&rig, "a name of some length"), 1);
	const void *at = block_info(block).exec;
	size_t length = ch_address_name(rig.heap, at, false, text, sizeof text);
	CHECK_EQ(length, strlen("a name of some length+0x0"));
	CHECK_STR(text, "a name of some ");
	CHECK_EQ(ch_address_name(rig.heap, at, false, text, 1), length);
	CHECK_STR(text, "");
	CHECK_EQ(ch_address_name(rig.heap, at, false, NULL, 0), length);
}

/* A terminal would obey control characters, among them CSI, a character of UTF-8 (C2 9B). */
TEST_SINKS(name_has_no_control_characters, CH_SINK_UNWIND)
{
	static const char name[] = "red\033[31m\nbell\007\x7f \xc2\x9b"
				   "2J \xc3\xa9\xc2";
	struct ch_block block = rig_block(rig_owner(&rig, name), 1);
	CHECK_STR(name_of(block_info(block).exec, false), "red?[31m?bell?? ??2J \xc3\xa9\xc2+0x0");
}

/* --- while blocks die --- */
enum { PLACES = 64 };
static _Atomic(uintptr_t) places[PLACES];
static _Atomic(bool) is_over;

static void *make_blocks(void *arg)
{
	(void)arg;
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	for (uint32_t i = 0; !atomic_load(&is_over); i++) {
		char name[40];
		snprintf(name, sizeof name, "method number %u", i);
		struct ch_owner owner = rig_owner(&rig, name);
		struct ch_block block = rig_block(owner, i);
		atomic_store(&places[i % PLACES], (uintptr_t)block_info(block).exec);
		CHECK_EQ(ch_owner_release(owner,
					  i % 3 ? CH_RELEASE_NOT_RUNNING : CH_RELEASE_COLLECT),
			 CH_OK);
		if (i % 512 == 0)
			CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		ch_thread_poll();
	}
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

TEST_SINKS(names_are_whole_while_blocks_die, CH_SINK_UNWIND)
{
	pthread_t maker;
	CHECK_EQ(pthread_create(&maker, NULL, make_blocks, NULL), 0);
	uint64_t end = now_ns() + storm_ms() * UINT64_C(1000000), named = 0;
	for (uint32_t i = 0; now_ns() < end || !named; i++) {
		uintptr_t at = atomic_load(&places[i % PLACES]);
		if (at) {
			const char *name = name_of((const void *)at, false);
			bool is_free = strncmp(name, "code memory+0x", 14) == 0;
			if (!is_free)
				CHECK_BEGINS(name, "method number ");
			named += !is_free;
		}
		ch_thread_poll();
	}
	atomic_store(&is_over, true);
	ch_thread_park();
	pthread_join(maker, NULL);
	ch_thread_unpark();
}
