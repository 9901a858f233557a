/* SPDX-License-Identifier: MIT
 * why.c: the sentence beside a status names the field and the range, the environment variable, each
 * backend tried, or the thread that did not stop. Each thread has its own sentence. */
#define _GNU_SOURCE
#include "os/os.h"
#include "tests/support/heap_rig.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WHY_MOST = 239 };

/* Checks that the sentence of the last call has the words. */
#define SAYS(...)                                                                             \
	do {                                                                                  \
		char says_words[WHY_MOST + 1];                                                \
		snprintf(says_words, sizeof says_words, __VA_ARGS__);                         \
		if (!strstr(ch_why(), says_words))                                            \
			FAIL("not in it: %s; the sentence is: %s", says_words, ch_why());     \
	} while (0)

/* --- configuration --- */

static void refuses(struct ch_config config, const char *words)
{
	struct ch_heap *heap;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_E_ARG);
	SAYS("CH_E_ARG: ch_config.%s", words);
}

TEST(sentence_names_the_field_of_a_configuration_and_its_range)
{
	struct ch_config ok = rig_config(1 << 20), c;
	c = ok, c.size = 8, refuses(c, "size is 8");
	c = ok, c.pool_bytes = 3 << 20, refuses(c, "pool_bytes is 3145728: not a power of two");
	c = ok, c.pool_bytes = (size_t)1 << 40, refuses(c, "pool_bytes is 1099511627776: not ");
	c = ok, c.page_bytes = 12288, refuses(c, "page_bytes is 12288: not a power of two");
	c = ok, c.page_bytes = 131072, refuses(c, "page_bytes is 131072: not 4096 to 65536");
	c = ok, c.driver = (enum ch_driver)7, refuses(c, "driver is 7: not 0 to 1");
	c = ok, c.backend = (enum ch_backend)9, refuses(c, "backend is 9: not 0 to 3");
	c = ok, c.fork = (enum ch_fork)9, refuses(c, "fork is 9: not 0 to 2");
	c = ok, c.stop_signal = 65, refuses(c, "stop_signal is 65: not 0 to 64");
	c = ok, c.stop_signal = -1, refuses(c, "stop_signal is -1: not 0 to 64");
	c = ok, c.stop_signal = SIGSEGV, refuses(c, "stop_signal is 11: a fault raises it");
	c = ok, c.stop_signal = SIGFPE, refuses(c, "stop_signal is 8: a fault raises it");
	c = ok, c.stop_signal = SIGABRT, refuses(c, "stop_signal is 6: a fault raises it");
	c = ok, c.step_blocks = 65, refuses(c, "step_blocks is 65: not 0 to 64");
	c = ok, c.remembered_dead = 96, refuses(c, "remembered_dead is 96: not a power of two");
	c = ok, c.dead_names = (enum ch_dead_names)2, refuses(c, "dead_names is 2: not 0 to 1");
	c = ok, c.stops_world = true, refuses(c, "stops_world is for CH_DRIVER_HOST only");
	unsetenv("CODEHEAP_SINKS");
	c = ok, c.sinks = 1 << 9, refuses(c, "sinks is 0x200: not a set of unwind,");
	unsetenv("CODEHEAP_WX");
	c = ok, c.fork = CH_FORK_COW, c.backend = CH_BACKEND_DUAL;
	refuses(c, "fork is CH_FORK_COW, and backend is dual");
}

TEST(sentence_names_the_variable_of_the_environment)
{
	static const char *const wishes[][3] = {
		{"CODEHEAP_WX", "dula", "dual, memfd or procmem"},
		{"CODEHEAP_DEAD_NAMES", "keep", "replaced or kept"},
		{"CODEHEAP_SINKS", "unwind,perfmpa", "none, or some of unwind,"},
	};
	for (unsigned i = 0; i < 3; i++) {
		struct ch_heap *heap;
		CHECK_EQ(setenv(wishes[i][0], wishes[i][1], 1), 0);
		CHECK_EQ(ch_heap_create(NULL, &heap), CH_E_ARG);
		SAYS("CH_E_ARG: %s must be %s", wishes[i][0], wishes[i][2]);
		unsetenv(wishes[i][0]);
	}
}

/* --- the system --- */

/* A system that refuses memory for code, on every backend. */
TEST(sentence_names_each_backend_that_was_tried_and_the_refused_call)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_heap *heap;
	unsetenv("CODEHEAP_WX");
	ch__os_pretended.commit_error = EPERM;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_E_OS);
	CHECK_EQ(errno, EPERM);
	SAYS("CH_E_OS: no pool of 1048576 bytes: dual: a call that a test fails EPERM; memfd: ");
	CHECK(strstr(ch_why(), "fails EPERM; procmem: ") && !strstr(ch_why(), "EPERM; EPERM"));
	ch__os_pretended.commit_error = 0;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

TEST(sentence_about_the_system_has_the_name_of_the_call)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_heap *heap;
	unsetenv("CODEHEAP_WX");
	config.stop_signal = 9; /* SIGKILL has no handlers */
	CHECK_EQ(ch_heap_create(&config, &heap), CH_E_ARG);
	CHECK_EQ(errno, EINVAL);
	SAYS("CH_E_ARG: no handler for ch_config.stop_signal 9: sigaction EINVAL");
}

/* --- threads --- */

struct runner {
	struct ch_heap *heap;
	bool by_call;
	pthread_barrier_t barrier;
	_Atomic(bool) ends;
	int thread_id;
};

static void *run_without_a_poll(void *arg)
{
	struct runner *r = arg;
	CHECK_STR(ch_why(), "");
	void (*f)(void);
	CHECK_EQ(r->by_call ? ch_code_add(r->heap, "\0\0\0", 4, "made", &f)
			    : ch_thread_attach(r->heap, NULL, NULL),
		 CH_OK);
	r->thread_id = (int)syscall(SYS_gettid);
	pthread_barrier_wait(&r->barrier);
	while (!atomic_load(&r->ends))
		usleep(1000);
	CHECK_EQ(ch_thread_detach(r->heap), CH_OK);
	return NULL;
}

static void expect_runner_is_named(bool by_call, const char *how)
{
	struct ch_config config = rig_config(1 << 20);
	config.stop_wait_ms = 200;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct runner r = {.heap = rig.heap, .by_call = by_call};
	pthread_t thread;
	CHECK_EQ(pthread_barrier_init(&r.barrier, NULL, 2), 0);
	CHECK_EQ(pthread_create(&thread, NULL, run_without_a_poll, &r), 0);
	pthread_barrier_wait(&r.barrier);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_E_BUSY);
	SAYS("CH_E_BUSY: thread %d%s did not stop in time: it neither polled nor parked; "
	     "ch_config.stop_signal stops such threads",
	     r.thread_id, how);
	CHECK_EQ(ch_vm_detach(rig.vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_E_BUSY);
	SAYS("CH_E_BUSY: other attached threads: 1; one is %d%s", r.thread_id, how);
	atomic_store(&r.ends, true);
	pthread_join(thread, NULL);
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
}

TEST(sentence_names_the_thread_that_did_not_stop)
{
	expect_runner_is_named(false, "");
	expect_runner_is_named(true, " (which a call that made code attached)");
}

static void *end_unseen(void *arg)
{
	struct runner *r = arg;
	CHECK_EQ(ch_thread_attach(r->heap, NULL, NULL), CH_OK);
	r->thread_id = (int)syscall(SYS_gettid);
	syscall(SYS_exit, 0); /* no destructor of a key runs */
	return NULL;
}

TEST_RIG(code_is_not_made_while_the_thread_is_parked)
{
	struct ch_open open = {
		.size = sizeof open, .owner = rig_owner(&rig, "owner"), .hot_bytes = 64};
	struct ch_code code;
	struct ch_block block;
	void (*f)(void);
	int id = (int)syscall(SYS_gettid);
	ch_thread_park();
	for (int parks = 2; parks; parks--) {
		CHECK_EQ(ch_block_open(&open, &code), CH_E_STATE);
		SAYS("CH_E_STATE: thread %d is parked: ch_thread_unpark comes first", id);
		CHECK_EQ(ch_code_add(rig.heap, "\0\0\0", 4, "made", &f), CH_E_STATE);
		CHECK_EQ(ch_trampoline_make(open.owner, CH_TRAMPOLINE_FRAMED, rig_start, 0, NULL,
					    NULL, &block),
			 CH_E_STATE);
		CHECK_EQ(rig_stats(&rig).blocks_open_now, 0);
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		if (parks == 2) {
			ch_thread_park();
			ch_thread_unpark();
		}
	}
	ch_thread_unpark();
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
}

/* A park is the thread's, not a heap's. */
TEST_RIG(code_of_no_other_heap_is_made_while_the_thread_is_parked)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops ops = {.size = sizeof ops};
	struct ch_stats stats = {.size = sizeof stats};
	struct ch_open open = {.size = sizeof open, .hot_bytes = 64};
	struct ch_heap *heap;
	struct ch_vm *vm;
	struct ch_code code;
	struct ch_block block;
	void (*f)(void);
	int id = (int)syscall(SYS_gettid);
	CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	CHECK_EQ(ch_vm_attach(heap, &ops, NULL, &vm), CH_OK);
	CHECK_EQ(ch_owner_create(vm, "owner", NULL, NULL, &open.owner), CH_OK);
	ch_thread_park();
	CHECK_EQ(ch_block_open(&open, &code), CH_E_STATE);
	SAYS("CH_E_STATE: thread %d is parked: ch_thread_unpark comes first", id);
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_E_STATE);
	SAYS("CH_E_STATE: thread %d is parked: ch_thread_unpark comes first", id);
	CHECK_EQ(ch_code_add(heap, "\0\0\0", 4, "made", &f), CH_E_STATE);
	CHECK_EQ(ch_trampoline_make(open.owner, CH_TRAMPOLINE_FRAMED, rig_start, 0, NULL, NULL,
				    &block),
		 CH_E_STATE);
	CHECK_EQ(ch_heap_stats(heap, &stats), CH_OK);
	CHECK_EQ(stats.threads_now, 0);
	ch_thread_unpark();
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	/* The open attached the thread. */
	ch_thread_park();
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_E_STATE);
	SAYS("CH_E_STATE: thread %d is parked: ch_thread_unpark comes first", id);
	ch_thread_unpark();
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_OK);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
	CHECK_EQ(ch_thread_detach(heap), CH_OK);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

TEST(sentence_says_that_the_thread_ended_and_is_attached)
{
	struct ch_config config = rig_config(1 << 20);
	config.stop_wait_ms = 200;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct runner gone = {.heap = rig.heap}, there = {.heap = rig.heap};
	pthread_t threads[2];
	CHECK_EQ(pthread_create(&threads[0], NULL, end_unseen, &gone), 0);
	CHECK_EQ(pthread_join(threads[0], NULL), 0);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_E_BUSY);
	SAYS("CH_E_BUSY: thread %d (which ended and is attached) did not stop in time: "
	     "it neither polled nor parked",
	     gone.thread_id);
	/* The ended thread is named, not the running thread. */
	CHECK_EQ(pthread_barrier_init(&there.barrier, NULL, 2), 0);
	CHECK_EQ(pthread_create(&threads[1], NULL, run_without_a_poll, &there), 0);
	pthread_barrier_wait(&there.barrier);
	CHECK_EQ(ch_vm_detach(rig.vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_E_BUSY);
	SAYS("CH_E_BUSY: other attached threads: 2; one is %d (which ended and is attached)",
	     gone.thread_id);
	atomic_store(&there.ends, true);
	CHECK_EQ(pthread_join(threads[1], NULL), 0);
}

/* --- stderr --- */

static void fail_with_debug(void *arg)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_heap *heap;
	config.step_blocks = 65;
	CHECK_EQ(setenv("CODEHEAP_DEBUG", arg, 1), 0);
	CHECK_EQ(ch_heap_create(&config, &heap), CH_E_ARG);
}

TEST(debug_writes_each_sentence_to_stderr)
{
	static const char line[] = "codeheap: CH_E_ARG: ch_config.step_blocks is 65: not 0 to 64\n";
	char text[400];
	expect_signal_text(fail_with_debug, "1", 0, text, sizeof text);
	CHECK(strstr(text, line));
	expect_signal_text(fail_with_debug, "0", 0, text, sizeof text);
	CHECK(!strstr(text, line));
}

static void make_heap_with_debug(void *arg)
{
	struct ch_heap *heap;
	unsetenv("CODEHEAP_SINKS");
	CHECK_EQ(setenv("CODEHEAP_DEBUG", arg, 1), 0);
	CHECK_EQ(ch_heap_create(NULL, &heap), CH_OK);
}

TEST(value_of_debug_that_is_none_is_told)
{
	static const char line[] =
		"codeheap: CH_E_ARG: CODEHEAP_DEBUG must be 0 or 1, and is `yes`\n";
	static const char *const values[] = {"yes", "", "0", "1"};
	char text[400];
	for (unsigned i = 0; i < 4; i++) {
		expect_signal_text(make_heap_with_debug, (void *)(uintptr_t)values[i], 0, text,
				   sizeof text);
		CHECK_EQ(strstr(text, line) != NULL, i == 0);
	}
}

struct sink_wish {
	const char *sinks, *debug;
};

static void make_heap_without_jitdump(void *arg)
{
	const struct sink_wish *wish = arg;
	struct ch_config config = rig_config(1 << 20);
	struct ch_heap *heap;
	config.jitdump_dir = "/dev/null/none";
	config.sinks = wish->sinks ? 0 : CH_SINK_UNWIND | CH_SINK_JITDUMP;
	CHECK_EQ(setenv("CODEHEAP_SINKS", wish->sinks ? wish->sinks : "", 1), 0);
	CHECK_EQ(setenv("CODEHEAP_DEBUG", wish->debug, 1), 0);
	CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

/* The heap is made in spite of the refused sink. */
TEST(sink_that_a_heap_could_not_have_is_told)
{
	struct sink_wish users = {"unwind,jitdump", "0"}, debugged = {NULL, "1"};
	struct sink_wish quiet = {NULL, "0"};
	char text[800];
	expect_signal_text(make_heap_without_jitdump, &users, 0, text, sizeof text);
	CHECK(strstr(text, "codeheap: CH_E_OS: CODEHEAP_SINKS: jitdump is off, with "));
	CHECK(!strstr(text, "unwind is off"));
	expect_signal_text(make_heap_without_jitdump, &debugged, 0, text, sizeof text);
	CHECK(strstr(text, "codeheap: CH_E_OS: ch_config.sinks: jitdump is off, with "));
	expect_signal_text(make_heap_without_jitdump, &quiet, 0, text, sizeof text);
	CHECK(!strstr(text, "is off"));
}

/* --- blocks --- */

static void open_refuses(struct ch_open open, enum ch_status wanted, const char *words)
{
	struct ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), wanted);
	SAYS("%s", words);
}

TEST(sentence_names_what_is_wrong_with_a_request_for_a_block)
{
	struct rig rig = rig_start(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_open ok = {.size = sizeof ok, .owner = owner, .hot_bytes = 64}, o;
	o = ok, o.hot_bytes = 0, open_refuses(o, CH_E_ARG, "CH_E_ARG: ch_open.hot_bytes is 0");
	o = ok, o.hot_bytes = 2 << 20, open_refuses(o, CH_E_ARG, "hot and 0 cold bytes of the ");
	o = ok, o.align = 3, open_refuses(o, CH_E_ARG, "ch_open.align is 3: not a power of two up");
	o = ok, o.frame = 200, open_refuses(o, CH_E_ARG, "ch_open.frame is 200: not 0 to 3, the ");
	o = ok, o.flags = 0x4000, open_refuses(o, CH_E_ARG, "ch_open.flags is 0x4000: it has ");
	o = ok, o.branch_room = UINT32_MAX;
	open_refuses(o, CH_E_ARG, "ch_open.branch_room is 4294967295: not 0 to 512");
	o = ok, o.entry = (enum ch_entry)5, open_refuses(o, CH_E_ARG, "ch_open.entry is 5: not 0");
	o = ok, o.kind = (enum ch_kind)7, open_refuses(o, CH_E_ARG, "ch_open.kind is 7: not 0");
	o = ok, o.kind = CH_KIND_DATA, o.frame = 1;
	open_refuses(o, CH_E_ARG, "ch_open.frame is 1: data has no frames");
	o = ok, o.kind = CH_KIND_DATA, o.flags = CH_OPEN_OWN_FRAMES;
	open_refuses(o, CH_E_ARG, "ch_open.flags is 4: CH_OPEN_OWN_FRAMES: data has no frames");
	o = ok, o.kind = CH_KIND_DATA, o.cold_bytes = 8;
	open_refuses(o, CH_E_ARG, "ch_open.cold_bytes is 8: 0 with CH_FRAME_STEPS, of data, or ");
	o = ok, o.flags = CH_OPEN_IN_PLACE, o.branch_room = 2;
	open_refuses(o, CH_E_ARG, "ch_open.branch_room is 2: 0 with CH_FRAME_STEPS, of data, or ");
	o = ok, o.flags = CH_OPEN_OWN_FRAMES, o.frame = 2;
	open_refuses(o, CH_E_ARG, "ch_open.frame is 2: 0 beside CH_OPEN_OWN_FRAMES");
	o = ok, o.heap = rig.heap, open_refuses(o, CH_E_ARG, "ch_open: heap and owner are set");
	o = ok, o.owner.bits = 0;
	open_refuses(o, CH_E_ARG, "CH_E_ARG: ch_open: heap and owner are both none");
	o.heap = rig.heap, o.entry = CH_ENTRY_GUARD;
	open_refuses(o, CH_E_ARG, "ch_open.entry is 2: code without an owner is entered by its ");
	enum ch_status status;
	struct ch_code code;
	CHECK_EQ(ch_block_open(&ok, &code), CH_OK);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	CHECK_EQ(ch_block_commit(&code, 1), CH_E_THREAD);
	SAYS("CH_E_THREAD: thread %d is not attached to the heap", (int)syscall(SYS_gettid));
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	ok.hot_bytes = 60000;
	while ((status = ch_block_open(&ok, &code)) == CH_OK)
		continue;
	CHECK_EQ(status, CH_E_FULL);
	SAYS("bytes in a pool of 1048576, and no collection: ch_heap_collect, or CH_OPEN_MAY_COL");
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	open_refuses(ok, CH_E_STALE, "CH_E_STALE: owner #");
}

/* In the order of the structure. */
static const char *const fields[] = {"hot_bytes", "branch_room", "entry", "frame", "flags",
				     "kind", "align"};

static void spoil(struct ch_open *open, unsigned field)
{
	switch (field) {
	case 0: open->hot_bytes = 0; break;
	case 1: open->branch_room = UINT32_MAX; break;
	case 2: open->entry = (enum ch_entry)5; break;
	case 3: open->frame = 200; break;
	case 4: open->flags = 0x4000; break;
	case 5: open->kind = (enum ch_kind)7; break;
	default: open->align = 3;
	}
}

TEST_RIG(sentence_names_the_first_of_two_wrong_fields)
{
	enum { FIELDS = sizeof fields / sizeof *fields };
	char says[80];
	for (unsigned first = 0; first < FIELDS; first++)
		for (unsigned second = first; second < FIELDS; second++) {
			struct ch_open open = {.size = sizeof open, .hot_bytes = 64};
			open.owner = rig_owner(&rig, "owner");
			spoil(&open, second);
			spoil(&open, first);
			snprintf(says, sizeof says, "CH_E_ARG: ch_open.%s is ", fields[first]);
			open_refuses(open, CH_E_ARG, says);
		}
}

static void commit_refuses(struct ch_code ok, struct ch_code wrong, const char *words)
{
	ok.used_from = wrong.used_from;
	ok.cold_used = wrong.cold_used;
	ok.entry_offset = wrong.entry_offset;
	ok.frame = wrong.frame;
	ok.eh_frame = wrong.eh_frame;
	CHECK_EQ(ch_block_commit(&ok, 1), CH_E_ARG);
	SAYS("CH_E_ARG: ch_code%s", words);
}

TEST_RIG(sentence_names_the_argument_of_code_that_is_ready)
{
	void *f;
	CHECK_EQ(ch_code_add(NULL, "\0\0\0", 4, "f", &f), CH_E_ARG);
	SAYS("CH_E_ARG: heap is NULL");
	CHECK_EQ(ch_code_add(rig.heap, NULL, 4, "f", &f), CH_E_ARG);
	SAYS("CH_E_ARG: bytes is NULL");
	CHECK(!f);
	CHECK_EQ(ch_code_add(rig.heap, "\0\0\0", 4, "f", NULL), CH_E_ARG);
	SAYS("CH_E_ARG: to is NULL");
	CHECK_EQ(ch_code_add(rig.heap, "\0\0\0", 0, "f", &f), CH_E_ARG);
	SAYS("CH_E_ARG: n is 0: not 1 to 4294967295");
}

TEST_RIG(sentence_names_what_is_wrong_with_steps_of_a_frame)
{
	struct ch_open open = {.size = sizeof open,
			       .owner = rig_owner(&rig, "o"),
			       .hot_bytes = 64,
			       .frame = CH_FRAME_STEPS};
	struct ch_code code;
	if (ch_block_open(&open, &code) == CH_E_ARG)
		skip("this machine has no CH_FRAME_STEPS");
	static const struct {
		struct ch_frame_step steps[2];
		struct ch_frame_save save;
		uint8_t steps_n, saves_n;
		const char *words;
	} rows[] = {
		{{{0, 15}}, {0, 0, 0}, 1, 0, "steps[0].cfa is 15: not a multiple of 8, from 8 to"},
		{{{1, 16}, {1, 8}}, {0, 0, 0}, 2, 0, "steps[1].at is 1: not above that of the "},
		{{{70, 16}}, {0, 0, 0}, 1, 0, "steps[0].at is 70: not in the bytes that are used"},
		{{{0, 16}}, {0, 2, 1}, 1, 1, "saves[0].reg is 0: none that a callee keeps, or"},
		{{{0, 16}}, {6, 1, 1}, 1, 1, "saves[0].below is 1: not 2 or more"},
		{{{0, 16}}, {6, 2, 70}, 1, 1, "saves[0].at is 70: not in the bytes that are used"},
		{{{0, 16}}, {6, 2, 1}, 17, 1, "steps_n is 17: at most 16"},
		{{{0, 16}}, {6, 2, 1}, 1, 17, "saves_n is 17: at most 16"},
	};
	code.used_to = 64;
	CHECK_EQ(ch_block_commit(&code, 1), CH_E_ARG);
	SAYS("CH_E_ARG: ch_code.frame is NULL: the block was opened with CH_FRAME_STEPS");
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ch_frame frame = {rows[i].steps, &rows[i].save, rows[i].steps_n,
					 rows[i].saves_n};
		code.frame = &frame;
		CHECK_EQ(ch_block_commit(&code, 1), CH_E_ARG);
		SAYS("CH_E_ARG: ch_code.frame: %s", rows[i].words);
	}
	CHECK_EQ(ch_block_abort(&code), CH_OK);
	open.cold_bytes = 8;
	open_refuses(open, CH_E_ARG, "ch_open.cold_bytes is 8: 0 with CH_FRAME_STEPS");
}

TEST_RIG(sentence_names_the_field_of_code_that_is_committed)
{
	struct ch_open open = {.owner = rig_owner(&rig, "o"), .hot_bytes = 64, .name = "n"};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_value(&e, 5);
	struct ch_code ok = e.code;
	ok.used_to = e.at;
	commit_refuses(ok, (struct ch_code){.used_from = 4}, "[0].used_from is 4: not a ");
	commit_refuses(ok, (struct ch_code){.used_from = 64}, "[0].used_from is 64: not a ");
	commit_refuses(ok, (struct ch_code){.cold_used = 80}, "[0].cold_used is 80: of ");
	commit_refuses(ok, (struct ch_code){.entry_offset = 60},
		       "[0].entry_offset is 60: not from used_from, 0, to below used_to, ");
	commit_refuses(ok, (struct ch_code){.frame = (const void *)&open},
		       ".frame is set: the block was opened without CH_FRAME_STEPS");
	commit_refuses(ok, (struct ch_code){.eh_frame = &open},
		       ".eh_frame is set: the block was opened without CH_OPEN_OWN_FRAMES");
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

TEST_RIG(sentence_names_what_is_wrong_with_a_commit_or_a_site)
{
	struct ch_open open = {.owner = rig_owner(&rig, "o"), .hot_bytes = 64, .branch_room = 1};
	struct emitter e;
	struct ch_branch branch;
	struct ch_branch_site site = {.kind = CH_JMP};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_value(&e, 5);
	CHECK_EQ(ch_block_commit(&e.code, 0), CH_E_ARG);
	SAYS("CH_E_ARG: count is 0");
	CHECK_EQ(ch_block_commit(&e.code, SIZE_MAX), CH_E_ARG);
	SAYS("CH_E_ARG: count is %zu", SIZE_MAX);
	CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_E_STATE);
	SAYS("CH_E_STATE: block 0 of 1 is OPEN");
	struct ch_code twice[2] = {e.code, e.code};
	twice[0].used_to = twice[1].used_to = e.at;
	CHECK_EQ(ch_block_commit(twice, 2), CH_E_ARG);
	SAYS("CH_E_ARG: ch_code 1 is there twice");
	twice[0].used_to = e.code.hot_bytes + 1;
	CHECK_EQ(ch_block_commit(twice, 1), CH_E_ARG);
	SAYS("CH_E_ARG: ch_code[0].used_to is %u: of %u hot bytes", e.code.hot_bytes + 1,
	     e.code.hot_bytes);
	twice[0].used_to = 0;
	CHECK_EQ(ch_block_commit(twice, 1), CH_E_ARG);
	SAYS("CH_E_ARG: ch_code[0].used_to is 0: ");
	site.at = e.code.exec + 4096;
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_E_ARG);
	SAYS("CH_E_ARG: ch_branch_site.at 0x%lx is not in the block",
	     (unsigned long)(uintptr_t)site.at);
	site.at = e.code.exec;
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_E_SITE);
	SAYS("CH_E_SITE: ch_branch_site.at 0x%lx: another instruction than CH_JMP has",
	     (unsigned long)(uintptr_t)e.code.exec);
	site.kind = CH_LITERAL, site.at = e.code.exec + 3;
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_E_SITE);
	SAYS("CH_E_SITE: ch_branch_site.at 0x%lx: this CH_LITERAL is unaligned: pad by 5 bytes",
	     (unsigned long)(uintptr_t)site.at);
	site.kind = CH_LITERAL + 1;
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_E_ARG);
	SAYS("CH_E_ARG: ch_branch_site.kind is 5: ");
	CHECK_EQ(ch_ref_attach(e.code.block, e.code.write), CH_E_ARG);
	SAYS("CH_E_ARG: the ref 0x%lx is an address of write: its exec is 0x%lx",
	     (unsigned long)(uintptr_t)e.code.write, (unsigned long)(uintptr_t)e.code.exec);
	CHECK_EQ(ch_patch_point_attach(e.code.block, e.code.exec + 4096, e.code.exec, NULL),
		 CH_E_ARG);
	SAYS("CH_E_ARG: the point ");
	CHECK_EQ(ch_ref_attach(e.code.block, e.code.exec + 4096), CH_E_ARG);
	SAYS("CH_E_ARG: the ref ");
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_E_STATE);
	SAYS("CH_E_STATE: ch_code 0 of 1 is not OPEN");
	CHECK_EQ(ch_ref_attach(e.code.block, e.code.exec), CH_E_STATE);
	SAYS("CH_E_STATE: the block is not OPEN");
	uint8_t frame;
	CHECK_EQ(ch_frame_register(rig.heap, e.code.exec, 65, &frame), CH_E_ARG);
	SAYS("CH_E_ARG: bytes is 65: not 1 to 64");
}

TEST_RIG(sentence_names_which_block_of_a_commit_is_wrong)
{
	struct ch_owner owner = rig_owner(&rig, "o");
	struct ch_code codes[2];
	for (int i = 0; i < 2; i++) {
		struct emitter e;
		emit_open(&e, owner, 64, 0);
		emit_value(&e, 5);
		e.code.used_to = e.at;
		codes[i] = e.code;
	}
	codes[1].used_to = codes[1].hot_bytes + 1;
	CHECK_EQ(ch_block_commit(codes, 2), CH_E_ARG);
	SAYS("CH_E_ARG: ch_code[1].used_to is %u: of ", codes[1].used_to);
	CHECK_EQ(ch_block_abort(&codes[0]), CH_OK);
	CHECK_EQ(ch_block_commit(codes, 1), CH_E_STATE);
	SAYS("CH_E_STATE: ch_code 0 of 1 is not OPEN");
	CHECK(!strstr(ch_why(), "another heap"));
	CHECK_EQ(ch_block_abort(&codes[1]), CH_OK);
}

TEST_RIG(sentence_about_an_exit_leads_to_the_mistake)
{
	struct emitter e;
	struct ch_branch branch;
	emit_open(&e, rig_owner(&rig, "o"), 128, 1);
	struct ch_branch_site site = {.at = emit_site_jmp(&e), .kind = CH_JMP};
	const uint8_t *point = emit_point(&e), *exec = e.code.exec + 64, *write = e.code.write + 64;
	site.exit = write;
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_E_ARG);
	SAYS("CH_E_ARG: ch_branch_site.exit 0x%lx is an address of write: its exec is 0x%lx",
	     (unsigned long)(uintptr_t)write, (unsigned long)(uintptr_t)exec);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, write, NULL), CH_E_ARG);
	SAYS("CH_E_ARG: in no code: the exit 0x%lx is an address of write: its exec is 0x%lx",
	     (unsigned long)(uintptr_t)write, (unsigned long)(uintptr_t)exec);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, &rig, NULL), CH_E_ARG);
	SAYS("CH_E_ARG: in no code: the exit 0x%lx is not in the block",
	     (unsigned long)(uintptr_t)&rig);
	if (CH_ARCH_TRAP_UNIT_BYTES == 1) {
		CHECK_EQ(ch_patch_point_attach(e.code.block, point, point + 2, NULL), CH_E_SITE);
		SAYS("CH_E_SITE: the point 0x%lx: the exit 0x%lx leads inside of what is attached",
		     (unsigned long)(uintptr_t)point, (unsigned long)(uintptr_t)point + 2);
	}
	CHECK_EQ(ch_patch_point_attach(e.code.block, site.at, exec, NULL), CH_E_SITE);
	SAYS("CH_E_SITE: the point 0x%lx has other bytes than a patch point",
	     (unsigned long)(uintptr_t)site.at);
	CHECK_EQ(ch_ref_attach(e.code.block, e.code.exec + e.code.hot_bytes - 4), CH_E_ARG);
	SAYS("is not in the block, or not all of it");
	CHECK_EQ(ch_code_free(rig.heap, e.code.exec, CH_RELEASE_NOT_RUNNING), CH_E_STALE);
	SAYS("freed already, or OPEN: ch_block_abort ends that");
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

TEST_RIG(sentence_names_the_bad_site_of_a_commit)
{
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "o"), 64, 1);
	emit_value(&e, 5);
	const uint8_t *at = emit_site_jmp(&e);
	unsigned offset = (unsigned)(at - e.code.exec);
	struct ch_branch branch;
	struct ch_branch_site site = {.at = at, .kind = CH_JMP, .exit = e.code.exec};
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_OK);
	struct ch_code cut = e.code, written = e.code;
	cut.used_to = offset;
	CHECK_EQ(ch_block_commit(&cut, 1), CH_E_SITE);
	SAYS("CH_E_SITE: ch_code 0: a branch at 0x%lx, exec + %u, is outside of what is used",
	     (unsigned long)(uintptr_t)at, offset);
	written.used_to = e.at;
	written.write[offset] ^= 1;
	CHECK_EQ(ch_block_commit(&written, 1), CH_E_SITE);
	SAYS("exec + %u, was written over", offset);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

/* Each call that a creation can do without is refused once, with the error of a later call. */
TEST(sentence_does_not_blame_a_call_that_was_refused_earlier)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_heap *heap;
	unsigned survived = 0;
	unsetenv("CODEHEAP_WX");
	config.jitdump_dir = "/dev/null/none";
	for (uint64_t nth = 1, is_through = 0; !is_through; nth++) {
		ch__os_fail_as(nth, false, ENOTDIR);
		enum ch_status status = ch_heap_create(&config, &heap);
		is_through = ch__os_failable_calls() < nth;
		ch__os_fail_at(0, false);
		if (status != CH_OK)
			continue;
		survived += !is_through;
		CHECK_EQ(ch_sink_set(heap, CH_SINK_JITDUMP | CH_SINK_UNWIND), CH_E_OS);
		SAYS("CH_E_OS: failed and off: jitdump, with ENOTDIR");
		CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	}
	CHECK(survived > 0);
}

/* What a refused creation gives back does not take the name of the refused call. */
TEST(sentence_names_the_call_that_a_creation_was_refused)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_heap *heap;
	unsigned refused = 0, named = 0;
	unsetenv("CODEHEAP_WX");
	for (int backend = CH_BACKEND_DUAL; backend <= CH_BACKEND_PROCMEM; backend++) {
		config.backend = (enum ch_backend)backend;
		bool is_through = ch_heap_create(&config, &heap) != CH_OK;
		if (!is_through)
			CHECK_EQ(ch_heap_destroy(heap), CH_OK);
		for (uint64_t nth = 1; !is_through; nth++) {
			ch__os_fail_as(nth, false, EPIPE);
			enum ch_status status = ch_heap_create(&config, &heap);
			is_through = ch__os_failable_calls() < nth;
			ch__os_fail_at(0, false);
			if (status == CH_OK) {
				CHECK_EQ(ch_heap_destroy(heap), CH_OK);
			} else {
				const char *at = strstr(ch_why(), "a call that a test fails EPIPE");
				CHECK(at || status == CH_E_MEMORY); /* or an allocator's refusal */
				refused += status == CH_E_OS;
				named += at && status == CH_E_MEMORY;
			}
		}
	}
	CHECK(refused > 0 && named > 0);
}

TEST(sentence_names_what_a_handle_or_an_address_leads_to)
{
	struct rig rig = rig_start(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "o"), other = rig_owner(&rig, "p");
	struct ch_block block = rig_block(owner, 5), none = {0}, trampoline;
	struct ch_branch branch;
	struct ch_block jumper = rig_jumper(other, NULL, &branch);
	struct ch_assumption fact;
	struct emitter e;
	CHECK_EQ(ch_owner_set_entry(other, block), CH_E_ARG);
	SAYS("CH_E_ARG: block #%u is of no owner, or of another", rig_record(block));
	CHECK_EQ((uintptr_t)ch_owner_cell((struct ch_owner){0}), 0);
	SAYS("CH_E_STALE: the handle of the owner is none");
	CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_E_STATE);
	SAYS("CH_E_STATE: block #%u is NOTENTRANT", rig_record(block));
	CHECK_EQ(ch_branch_link(branch, block), CH_E_STATE);
	SAYS("CH_E_STATE: block #%u is NOTENTRANT", rig_record(block));
	emit_open(&e, owner, 32, 1);
	struct ch_branch early = emit_jmp(&e, NULL);
	CHECK_EQ(ch_branch_link(early, jumper), CH_E_STATE);
	SAYS("CH_E_STATE: the branch's block is OPEN: link after commit");
	CHECK_EQ(ch_edge_attach(e.code.block, none), CH_E_STALE);
	SAYS("CH_E_STALE: the handle of the block is none");
	CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
	CHECK_EQ(ch_assumption_break(fact, NULL), CH_OK);
	CHECK_EQ(ch_assumption_break(fact, NULL), CH_E_STALE);
	SAYS("CH_E_STALE: assumption #%u.%u broke already, or is another heap's",
	     (unsigned)fact.bits & 0xffffff, (unsigned)(fact.bits >> 32));
	CHECK_EQ(ch_block_assume(e.code.block, fact), CH_E_STALE);
	SAYS("CH_E_STALE: assumption #%u.%u broke already, or is another heap's",
	     (unsigned)fact.bits & 0xffffff, (unsigned)(fact.bits >> 32));
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(ch_trampoline_make(owner, CH_TRAMPOLINE_TAIL, NULL, 0, NULL, NULL, &trampoline),
		 CH_E_ARG);
	SAYS("CH_E_ARG: target is NULL");
	CHECK_EQ(ch_trampoline_make(owner, (enum ch_trampoline)2, &rig, 0, NULL, NULL,
				    &trampoline), CH_E_ARG);
	SAYS("CH_E_ARG: kind is 2: not 0 to 1");
	CHECK_EQ(ch_code_free(rig.heap, &rig, CH_RELEASE_COLLECT), CH_E_ARG);
	SAYS("CH_E_ARG: no code of the heap begins at 0x%lx", (unsigned long)(uintptr_t)&rig);
	CHECK_EQ(ch_sink_set(rig.heap, 1 << 9), CH_E_ARG);
	SAYS("CH_E_ARG: sinks is 0x200: not a set");
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, none), CH_E_STALE);
	SAYS("CH_E_STALE: owner #");
	CHECK_EQ(ch_branch_link(branch, block), CH_E_STALE);
	SAYS("CH_E_STALE: block #%u.", rig_record(block));
	struct ch_fiber *fiber;
	CHECK_EQ(ch_fiber_attach(rig.heap, &rig, &rig, &fiber), CH_E_ARG);
	SAYS("CH_E_ARG: low 0x");
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_E_THREAD);
	SAYS("CH_E_THREAD: thread %d is attached already", (int)syscall(SYS_gettid));
	CHECK_EQ(ch_vm_detach(rig.vm), CH_OK);
	CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_E_STATE);
	SAYS("CH_E_STATE: the vm was detached");
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
	CHECK_EQ(ch_vm_detach(NULL), CH_E_ARG);
	SAYS("CH_E_ARG: heap, or vm, is NULL");
}

TEST_RIG(sentence_names_the_line_that_does_not_rise)
{
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "lines"), 32, 0);
	CHECK_EQ(ch_block_lines(e.code.block, NULL, NULL, 0), CH_E_ARG);
	SAYS("CH_E_ARG: file is NULL");
	struct ch_line lines[] = {{.at = e.code.exec + 8}, {.at = e.code.exec + 8}};
	CHECK_EQ(ch_block_lines(e.code.block, "file", lines, 0), CH_E_ARG);
	SAYS("CH_E_ARG: n is 0: not 1 to ");
	CHECK_EQ(ch_block_lines(e.code.block, "file", lines, 2), CH_E_ARG);
	SAYS("CH_E_ARG: lines[1].at is 0x%lx: not above the one before",
	     (unsigned long)(uintptr_t)lines[1].at);
	lines[0].at = NULL;
	CHECK_EQ(ch_block_lines(e.code.block, "file", lines, 2), CH_E_ARG);
	SAYS("CH_E_ARG: lines[0].at is 0x0: not in the block");
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}
