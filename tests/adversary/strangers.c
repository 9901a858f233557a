/* SPDX-License-Identifier: MIT
 * strangers.c: threads that no heap knows. A stranger calls each function of the public headers. A
 * function for attached threads says CH_E_THREAD and changes nothing, a function that makes code
 * attaches the stranger, every other function works. A stub taken by a stranger is a panic. The
 * test reads the headers: no function is left out. */
#define _GNU_SOURCE
#include "codeheap/collector.h"
#include "codeheap/look.h"
#include "codeheap/profile.h"
#include "tests/support/stage.h"

#include <string.h>
#include <ucontext.h>

#if CH_TEST_BDW
#define GC_THREADS 1
#define GC_NO_THREAD_REDIRECTS 1
#include "codeheap/codeheap_bdw.h"
#endif

static struct stage *on;
static struct ch_vm *spare_vm;
static struct method live, spare;
static void *ownerless; /* code without an owner */
static const uint8_t zeros[8];
static struct emitter open_block; /* the main thread's */
static struct ch_assumption fact, broken;
static struct ch_fiber *fiber;
static uint8_t fiber_stack[4096];
static bool is_host, is_boehm;

#define OK_IF(condition) ((condition) ? CH_OK : CH_E_BROKEN)

/* --- a call of each function: its status, or CH_OK when the result is right --- */

static enum ch_status call_status_text(void)
{
	return OK_IF(strlen(ch_status_text(CH_E_THREAD)) > 5);
}
static enum ch_status call_why(void)
{
	struct ch_heap *heap;
	struct ch_config config = {.size = 1};
	enum ch_status status = ch_heap_create(&config, &heap);
	return OK_IF(status != CH_OK && strstr(ch_why(), "CH_E_") == ch_why());
}
static enum ch_status call_heap_create(void)
{
	struct ch_heap *heap;
	enum ch_status status = ch_heap_create(NULL, &heap);
	return status == CH_OK ? ch_heap_destroy(heap) : status;
}
static enum ch_status call_heap_destroy(void)
{
	return ch_heap_destroy(on->heap);
}
static enum ch_status call_heap_stats(void)
{
	struct ch_stats stats = {.size = sizeof stats};
	return ch_heap_stats(on->heap, &stats);
}
static enum ch_status call_heap_check(void)
{
	return ch_heap_check(on->heap, NULL, 0);
}
static enum ch_status call_vm_attach(void)
{
	struct ch_ops ops = {.size = sizeof ops};
	return ch_vm_attach(on->heap, &ops, NULL, &spare_vm);
}
static enum ch_status call_vm_discard(void)
{
	size_t freed, kept;
	enum ch_status status = ch_vm_discard(on->heap, spare_vm, &freed, &kept);
	return freed + kept ? CH_E_BROKEN : status;
}
static enum ch_status call_vm_detach(void)
{
	return ch_vm_detach(spare_vm);
}
static enum ch_status call_thread_attach(void)
{
	enum ch_status status = ch_thread_attach(on->heap, NULL, NULL);
	return status == CH_OK ? ch_thread_detach(on->heap) : status;
}
static enum ch_status call_thread_detach(void)
{
	return ch_thread_detach(on->heap);
}
static enum ch_status call_thread_park(void)
{
	ch_thread_park();
	ch_thread_park();
	return CH_OK;
}
static enum ch_status call_thread_unpark(void)
{
	ch_thread_unpark();
	ch_thread_unpark();
	return CH_OK;
}
static enum ch_status call_thread_poll(void)
{
	ch_thread_poll();
	return CH_OK;
}
static enum ch_status call_thread_poll_word(void)
{
	return ch_thread_poll_word(on->heap) ? CH_OK : CH_E_STATE;
}
static enum ch_status call_fiber_attach(void)
{
	return ch_fiber_attach(on->heap, fiber_stack, fiber_stack + sizeof fiber_stack, &fiber);
}
static enum ch_status call_fiber_suspend(void)
{
	if (fiber)
		ch_fiber_suspend(fiber, fiber_stack + 2048);
	return CH_OK;
}
static enum ch_status call_fiber_resume(void)
{
	if (fiber)
		ch_fiber_resume(fiber);
	return CH_OK;
}
static enum ch_status call_fiber_detach(void)
{
	return ch_fiber_detach(fiber);
}
static enum ch_status call_owner_create(void)
{
	struct ch_owner owner;
	enum ch_status status = ch_owner_create(on->vm, "stranger's", stage_fallback, NULL, &owner);
	return status == CH_OK ? ch_owner_release(owner, CH_RELEASE_NOT_RUNNING) : status;
}
static enum ch_status call_owner_set_entry(void)
{
	return ch_owner_set_entry(live.owner, live.block);
}
static enum ch_status call_owner_cell(void)
{
	return OK_IF(ch_owner_cell(live.owner) == live.cell);
}
static enum ch_status call_owner_release(void)
{
	return ch_owner_release(spare.owner, CH_RELEASE_NOT_RUNNING);
}
static enum ch_status call_owner_info(void)
{
	struct ch_owner_facts facts = {.size = sizeof facts};
	return ch_owner_info(live.owner, &facts);
}
static enum ch_status call_block_open(void)
{
	struct emitter e;
	struct ch_open open = {.owner = live.owner, .hot_bytes = 8};
	enum ch_status status = emit_open_as(&e, &open);
	if (status == CH_OK)
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	return status;
}
static enum ch_status call_code_add(void)
{
	void *to;
	return ch_code_add(on->heap, zeros, sizeof zeros, "stranger's", &to);
}
static enum ch_status call_code_free(void)
{
	return ch_code_free(on->heap, ownerless, CH_RELEASE_NOT_RUNNING);
}
static enum ch_status call_code_write(void)
{
	return ch_code_write(on->heap, ownerless, ownerless, 4, CH_WRITE_NOT_RUNNING);
}
static enum ch_status call_block_veneer(void)
{
	const void *at;
	return ch_block_veneer(&open_block.code, stage_fallback, &at);
}
static enum ch_status call_block_commit(void)
{
	struct ch_code code = open_block.code;
	code.used_to = open_block.at;
	return ch_block_commit(&code, 1);
}
static enum ch_status call_block_abort(void)
{
	struct ch_code code = open_block.code;
	return ch_block_abort(&code);
}
static enum ch_status call_block_info(void)
{
	struct ch_info info = {.size = sizeof info};
	return ch_block_info(live.block, &info);
}
static enum ch_status call_branch_attach(void)
{
	struct ch_branch branch;
	struct ch_branch_site site = {.at = open_block.code.exec, .kind = CH_JMP};
	return ch_branch_attach(open_block.code.block, &site, &branch);
}
static enum ch_status call_branch_link(void)
{
	enum ch_status status = ch_branch_link(live.branch[0], live.block);
	return status == CH_OK ? ch_branch_link(live.branch[0], (struct ch_block){0}) : status;
}
static enum ch_status call_edge_attach(void)
{
	return ch_edge_attach(open_block.code.block, live.block);
}
static enum ch_status call_edge_attach_owner(void)
{
	return ch_edge_attach_owner(open_block.code.block, live.owner);
}
static enum ch_status call_ref_attach(void)
{
	return ch_ref_attach(open_block.code.block, open_block.code.exec + 8);
}
static enum ch_status call_patch_point_attach(void)
{
	const uint8_t *exec = open_block.code.exec;
	return ch_patch_point_attach(open_block.code.block, exec, exec + 16, NULL);
}
static enum ch_status call_block_lines(void)
{
	struct ch_line line = {open_block.code.exec, 7};
	return ch_block_lines(open_block.code.block, "file", &line, 1);
}
static bool visit_site(void *arg, const struct ch_site *site)
{
	(void)site;
	++*(int *)arg;
	return true;
}
static enum ch_status call_block_sites(void)
{
	int sites = 0;
	enum ch_status status = ch_block_sites(live.block, visit_site, &sites);
	return status != CH_OK ? status : OK_IF(sites);
}
static enum ch_status call_frame_register(void)
{
	uint8_t frame, nop = 0; /* DW_CFA_nop */
	return ch_frame_register(on->heap, &nop, 1, &frame);
}
static enum ch_status call_trampoline_make(void)
{
	struct ch_block block;
	return ch_trampoline_make(live.owner, CH_TRAMPOLINE_TAIL, stage_fallback, 0, NULL, NULL,
				  &block);
}
static enum ch_status call_assumption_create(void)
{
	return ch_assumption_create(on->vm, &broken);
}
static enum ch_status call_block_assume(void)
{
	return ch_block_assume(open_block.code.block, fact);
}
static enum ch_status call_assumption_break(void)
{
	return ch_assumption_break(broken, NULL);
}
static enum ch_status call_blocks_invalidate(void)
{
	struct ch_block none = {0};
	return ch_blocks_invalidate(&none, 1, NULL);
}
static enum ch_status call_heap_collect(void)
{
	return ch_heap_collect(on->heap);
}
static struct ch_marker *marker;
static enum ch_status call_mark_begin(void)
{
	return ch_mark_begin(on->heap, &marker);
}
static enum ch_status call_mark_owner(void)
{
	if (marker)
		ch_mark_owner(marker, live.owner);
	return CH_OK;
}
static enum ch_status call_mark_stack(void)
{
	if (marker)
		ch_mark_stack(marker, fiber_stack, fiber_stack + sizeof fiber_stack);
	return CH_OK;
}
static enum ch_status call_mark_stacks(void)
{
	if (marker)
		ch_mark_stacks(marker);
	return CH_OK;
}
static enum ch_status call_mark_end(void)
{
	return marker ? ch_mark_end(marker, false) : CH_OK;
}
static uintptr_t visit_word(void *arg, uintptr_t word, bool *is_young)
{
	(void)arg, (void)is_young;
	return word;
}
static enum ch_status call_refs_visit(void)
{
	return marker ? ch_refs_visit(marker, CH_REFS_ALL, visit_word, NULL) : CH_OK;
}
static enum ch_status call_code_at(void)
{
	struct ch_spot spot = {.size = sizeof spot};
	return OK_IF(ch_code_at(on->heap, *live.cell, false, &spot) &&
		     spot.block.bits == live.block.bits);
}
static bool visit_block(void *arg, const struct ch_info *info)
{
	(void)info;
	++*(int *)arg;
	return true;
}
static enum ch_status call_block_each(void)
{
	int blocks = 0;
	enum ch_status status = ch_block_each(on->heap, NULL, visit_block, &blocks);
	return status != CH_OK ? status : OK_IF(blocks >= 2);
}
static enum ch_status call_backtrace(void)
{
	const void *pcs[16];
	/* Without the bounds of the stack no walk by frame pointers is possible. */
	if (ch_backtrace(on->heap, CH_BACKTRACE_FRAMES, NULL, pcs, 16))
		return CH_E_BROKEN;
	return OK_IF(ch_backtrace(on->heap, CH_BACKTRACE_TABLES, NULL, pcs, 16) > 0);
}
static enum ch_status call_address_name(void)
{
	char name[100];
	return OK_IF(ch_address_name(on->heap, *live.cell, false, name, sizeof name) > 3);
}
static enum ch_status call_trap_describe(void)
{
	char text[100];
	siginfo_t info = {.si_signo = SIGTRAP};
	ucontext_t context;
	memset(&context, 0, sizeof context);
	return OK_IF(!ch_trap_describe(on->heap, &info, &context, text, sizeof text));
}
static enum ch_status call_trap_install(void)
{
	return ch_trap_install(on->heap);
}
static enum ch_status call_sink_set(void)
{
	return ch_sink_set(on->heap, CH_SINK_UNWIND);
}
static enum ch_status call_sink_flush(void)
{
	return ch_sink_flush(on->heap);
}
static enum ch_status call_sink_status(void)
{
	return OK_IF(ch_sink_status(on->heap, CH_SINK_UNWIND, NULL, NULL));
}
static enum ch_status call_profile_start(void)
{
	return ch_profile_start(on->heap, 100, NULL);
}
static enum ch_status call_profile_stop(void)
{
	return ch_profile_stop(on->heap, NULL);
}
static enum ch_status call_profile_write(void)
{
	return ch_profile_write(on->heap, "/dev/null", NULL);
}
static enum ch_status call_stats_file_enable(void)
{
	return ch_stats_file_enable();
}
#if CH_TEST_BDW
static enum ch_status call_bdw_heap_create(void)
{
	struct ch_heap *heap;
	return is_boehm ? ch_bdw_heap_create(NULL, &heap) : CH_E_THREAD;
}
static enum ch_status call_bdw_owner_create(void)
{
	struct ch_owner owner;
	void *anchor;
	return is_boehm ? ch_bdw_owner_create(on->vm, "stranger's", stage_fallback, NULL, &owner,
					      &anchor)
			: CH_E_THREAD;
}
/* For registered threads, and without a status: only the function's presence is tested. */
static enum ch_status call_bdw_do_blocking(void)
{
	return CH_OK;
}
#define BDW_CALLS(X)                \
	X(bdw_heap_create, THREAD)  \
	X(bdw_owner_create, THREAD) \
	X(bdw_do_blocking, OK)
#else
#define BDW_CALLS(X)
#endif

/* In this order. HOST and COLLECT depend on the driver. */
#define CALLS(X)                                                                                   \
	X(status_text, OK) X(why, OK)                                                              \
	X(heap_create, OK) X(heap_destroy, BUSY) X(heap_stats, OK) X(                           \
		heap_check, OK) X(vm_attach, OK) X(vm_discard, OK) X(vm_detach,                    \
								     OK) X(thread_attach,          \
									   OK) X(thread_detach,    \
										 THREAD)           \
		X(thread_park, OK) X(thread_unpark, OK) X(thread_poll, OK) X(fiber_attach, OK) X(  \
			fiber_suspend,                                                             \
			OK) X(fiber_resume, OK) X(fiber_detach,                                    \
						  OK) X(owner_create,                              \
							OWNER) X(owner_set_entry,                  \
								 OK) X(owner_cell,                 \
								       OK) X(owner_release,        \
									     OK) X(owner_info, OK) \
			X(code_add, MAKES) X(code_write, OK) X(code_free, OK)                      \
			X(block_open, MAKES)                                                       \
			X(block_veneer, THREAD) X(block_commit, THREAD) X(                        \
				block_abort, THREAD) X(block_info,                                 \
						       OK) X(branch_attach,                        \
							     THREAD) X(branch_link,                \
								       OK) X(edge_attach, THREAD)  \
				X(edge_attach_owner, THREAD) X(ref_attach, THREAD) X(              \
					patch_point_attach,                                        \
					THREAD) X(block_lines, THREAD) X(block_sites,              \
									 OK) X(frame_register, OK) \
					X(trampoline_make, MAKES) X(assumption_create, OK) X(     \
						block_assume,                                      \
						THREAD) X(assumption_break,                        \
							  OK) X(blocks_invalidate,                 \
								OK) X(heap_collect,                \
								      COLLECT) X(mark_begin, HOST) \
						X(mark_owner, OK) X(mark_stack, OK) X(             \
							mark_stacks, OK) X(refs_visit,             \
									   OK) X(mark_end, OK)     \
							X(code_at, OK) X(block_each, OK) X(       \
								backtrace, OK) X(address_name, OK) \
								X(trap_describe,                   \
								  OK) X(trap_install,              \
									OK) X(sink_set, OK)        \
									X(sink_flush,              \
									  OK) X(sink_status, OK)   \
	X(thread_poll_word, OK)                                                                    \
	X(profile_start, OK) X(profile_stop, OK) X(profile_write, OK) X(stats_file_enable, OK)     \
	BDW_CALLS(X)

enum expected { OK, BUSY, THREAD, MAKES, OWNER, COLLECT, HOST };

static const struct {
	const char *name;
	enum ch_status (*call)(void);
	enum expected expected;
} calls[] = {
#define X(name, expected) {"ch_" #name, call_##name, expected},
	CALLS(X)
#undef X
};
enum { CALLS_COUNT = sizeof calls / sizeof calls[0] };

static enum ch_status status_of(enum expected expected)
{
	switch (expected) {
	case BUSY:
		return CH_E_BUSY;
	case THREAD:
		return CH_E_THREAD;
	case MAKES: /* by a thread that libgc does not know */
		return is_boehm ? CH_E_THREAD : CH_OK;
	case OWNER: /* Boehm: owners have anchors */
		return is_boehm ? CH_E_ARG : CH_OK;
	case COLLECT:
		return is_host ? CH_E_STATE : is_boehm ? CH_E_THREAD : CH_OK;
	case HOST:
		return is_host ? CH_OK : CH_E_STATE;
	default:
		return CH_OK;
	}
}

static void *call_all(void *arg)
{
	(void)arg;
	for (int i = 0; i < CALLS_COUNT; i++) {
		struct ch_stats before = {.size = sizeof before}, after = before;
		CHECK_EQ(marker ? CH_OK : ch_heap_stats(on->heap, &before), CH_OK);
		enum ch_status status = calls[i].call();
		if (status != status_of(calls[i].expected))
			FAIL("%s says \"%s\" to a stranger", calls[i].name, ch_status_text(status));
		if (!strcmp(calls[i].name, "ch_mark_end"))
			marker = NULL;
		bool may_attach = calls[i].expected == MAKES && status == CH_OK;
		if (!ch__thread_self(on->heap) == may_attach)
			FAIL("%s attached a stranger, or not", calls[i].name);
		if (may_attach)
			CHECK_EQ(ch_thread_detach(on->heap), CH_OK);
		if (status == CH_OK || marker)
			continue;
		CHECK_EQ(ch_heap_stats(on->heap, &after), CH_OK);
		if (memcmp(&before, &after, sizeof before))
			FAIL("%s was refused and changed something", calls[i].name);
	}
	return NULL;
}

static void prepare(struct stage *stage)
{
	struct emitter e;
	on = stage;
	is_host = stage->driver == STAGE_HOST;
	is_boehm = stage->driver == STAGE_BOEHM;
	stage_start(stage);
	method_new(stage, &live, "live");
	method_open(&e, &live);
	emit_value(&e, 1);
	method_jmp(&e, &live, 0);
	method_commit(&e, &live);
	method_new(stage, &spare, "spare");
	CHECK_EQ(ch_code_add(on->heap, zeros, sizeof zeros, "ownerless", &ownerless), CH_OK);
	CHECK_EQ(ch_assumption_create(stage->vm, &fact), CH_OK);
	struct ch_open open = {.owner = live.owner, .hot_bytes = 64, .branch_room = 1};
	CHECK_EQ(emit_open_as(&open_block, &open), CH_OK);
	emit_site_jmp(&open_block);
	emit_ret(&open_block);
}

EVERY_DRIVER(stranger_gets_a_clear_status_from_every_function)
{
	pthread_t stranger;
	prepare(stage);
	ch_thread_park();
	CHECK_EQ(pthread_create(&stranger, NULL, call_all, NULL), 0);
	CHECK_EQ(pthread_join(stranger, NULL), 0);
	ch_thread_unpark();
	CHECK_EQ(block_state(live.block), CH_BLOCK_LIVE);
	CHECK_EQ(ch_block_abort(&open_block.code), CH_OK);
	if (is_host || is_boehm)
		method_drop(stage, &spare);
}

/* --- the table is complete --- */

static void expect_in_table(const char *name, size_t length)
{
	for (int i = 0; i < CALLS_COUNT; i++)
		if (strlen(calls[i].name) == length && !strncmp(calls[i].name, name, length))
			return;
	FAIL("no stranger calls %.*s", (int)length, name);
}

/* Each declaration has CH_API, and the function's name is the first word with a parenthesis. */
static int read_header(const char *path)
{
	static char text[1 << 17];
	FILE *file = fopen(path, "r");
	if (!file)
		FAIL("%s is not below the working directory", path);
	size_t bytes = fread(text, 1, sizeof text - 1, file);
	text[bytes] = 0;
	fclose(file);
	int count = 0;
	for (char *at = text; (at = strstr(at, "\nCH_API ")) != NULL; count++) {
		at = strstr(at, "ch_");
		while (at[strcspn(at, " *(\n")] != '(')
			at = strstr(at + 1, "ch_");
		expect_in_table(at, strcspn(at, "("));
	}
	return count;
}

TEST(every_function_of_the_headers_is_called_by_a_stranger)
{
	int functions = read_header("codeheap/codeheap.h") + read_header("codeheap/collector.h") +
			read_header("codeheap/look.h") + read_header("codeheap/profile.h");
#if CH_TEST_BDW
	functions += read_header("codeheap/codeheap_bdw.h");
#endif
	CHECK_EQ(functions, CALLS_COUNT);
}

/* --- a stub --- */

static void *run_code(void *arg)
{
	(void)arg;
	method_call(&live, NULL);
	return NULL;
}

static void take_stub(void *arg)
{
	pthread_t stranger;
	prepare(arg);
	CHECK_EQ(pthread_create(&stranger, NULL, run_code, NULL), 0);
	CHECK_EQ(pthread_join(stranger, NULL), 0);
}

EVERY_DRIVER(stub_that_a_stranger_takes_is_a_panic)
{
	char text[1000];
	expect_signal_text(take_stub, stage, SIGABRT, text, sizeof text);
	if (!strstr(text, "a thread that is not attached took a stub: it calls ch_thread_attach"))
		FAIL("it said: %s", text);
	stage_keep();
	free(stage);
}

/* --- within a cycle of the caller --- */

/* Whether the function takes no lock. */
static bool works_within_a_cycle(const char *name)
{
	static const char *const all[] = {
		"ch_status_text", "ch_why", "ch_thread_park", "ch_thread_unpark",
		"ch_thread_poll", "ch_thread_poll_word", "ch_fiber_suspend",
		"ch_fiber_resume", "ch_owner_cell", "ch_mark_owner", "ch_mark_stack",
		"ch_mark_stacks", "ch_refs_visit", "ch_code_at", "ch_backtrace",
		"ch_address_name", "ch_trap_describe", "ch_sink_status",
		"ch_stats_file_enable"};
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(all[i], name))
			return true;
	return false;
}

static void call_all_within(struct ch_marker *mine)
{
	for (int i = 0; i < CALLS_COUNT; i++) {
		const char *name = calls[i].name;
		marker = mine;
		if (!strcmp(name, "ch_mark_end") || !strncmp(name, "ch_bdw_", 7))
			continue;
		enum ch_status status = calls[i].call();
		if (works_within_a_cycle(name) ? status == CH_E_STATE : status != CH_E_STATE)
			FAIL("%s says \"%s\" within a cycle or visit", name,
			     ch_status_text(status));
	}
}

TEST(caller_with_a_cycle_gets_a_status_from_every_function_that_locks)
{
	struct stage *stage = stage_new(STAGE_HOST);
	prepare(stage);
	/* Makes a profile that could be written. */
	CHECK_EQ(ch_profile_start(stage->heap, 100, NULL), CH_OK);
	CHECK_EQ(ch_profile_stop(stage->heap, NULL), CH_OK);
	struct ch_marker *mine;
	CHECK_EQ(ch_mark_begin(stage->heap, &mine), CH_OK);
	call_all_within(mine);
	CHECK_EQ(ch_mark_end(mine, false), CH_OK);
	marker = NULL;
	CHECK_EQ(stage_stats(stage).blocks_open_now, 1);
	CHECK_EQ(ch_block_abort(&open_block.code), CH_OK);
	stage_end(stage);
}

/* --- within a visit --- */

static bool call_all_of_a_block(void *count, const struct ch_info *info)
{
	call_all_within(NULL);
	++*(int *)count;
	return info->block.bits != live.block.bits;
}

static bool call_all_of_a_site(void *count, const struct ch_site *site)
{
	(void)site;
	call_all_within(NULL);
	++*(int *)count;
	return false;
}

static void visit_and_call(struct stage *stage)
{
	int visits = 0;
	prepare(stage);
	CHECK_EQ(ch_block_each(stage->heap, NULL, call_all_of_a_block, &visits), CH_OK);
	CHECK(visits > 0);
	visits = 0;
	CHECK_EQ(ch_block_sites(live.block, call_all_of_a_site, &visits), CH_OK);
	CHECK_EQ(visits, 1);
	CHECK_EQ(stage_stats(stage).blocks_open_now, 1);
	CHECK_EQ(ch_block_abort(&open_block.code), CH_OK);
	stage_collect(stage);
}
STAGE_CASE(visit_gets_a_status_from_every_function_that_locks, _polls, STAGE_POLLS, visit_and_call)
STAGE_CASE(visit_gets_a_status_from_every_function_that_locks, _host, STAGE_HOST, visit_and_call)
