/* SPDX-License-Identifier: MIT
 * refusals.c: values outside of an enumeration, calls out of turn, things of another heap, heaps
 * that are gone, and pools full of one kind. Each call is refused with a sentence, and changes
 * nothing. */
#define _GNU_SOURCE
#include "codeheap/base/heap.h"
#include "codeheap/collector.h"
#include "os/os.h"
#include "tests/support/heap_rig.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <ucontext.h>

/* Checks that the call returns the status, and that the sentence has the words. */
#define REFUSED(call, status, words)                                                          \
	do {                                                                                  \
		CHECK_EQ((call), (status));                                                   \
		if (!strstr(ch_why(), words))                                                 \
			FAIL("not in it: %s; the sentence is: %s", words, ch_why());          \
	} while (0)

TEST_RIG_BY(nothing_dies_of_a_cycle_without_stacks, rig_start_host(1 << 20))
{
	struct ch_block block = rig_block(rig_owner(&rig, "f"), 7);
	struct ch_marker *marker;
	for (int i = 0; i < 4; i++) {
		CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
		CHECK_EQ(ch_mark_end(marker, true), CH_E_STATE);
		CHECK(strstr(ch_why(), "neither ch_mark_stacks nor ch_mark_stack came before"));
		CHECK(rig_is_there(block));
	}
	for (int cycle = 1; cycle <= 3; cycle++) {
		CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
		ch_mark_stack(marker, &rig, &rig);
		CHECK_EQ(ch_mark_end(marker, true), CH_OK);
		CHECK_EQ(rig_is_there(block), cycle < 3);
	}
}

TEST_RIG(release_of_no_known_kind_frees_nothing)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block block = rig_block(owner, 7);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	struct emitter e;
	struct ch_open open = {.heap = rig.heap, .hot_bytes = 16};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	for (int how = -1; how < 10; how += 3) {
		if (how == CH_RELEASE_COLLECT || how == CH_RELEASE_NOT_RUNNING)
			continue;
		REFUSED(ch_owner_release(owner, (enum ch_release)how), CH_E_ARG,
			"not one of enum ch_release");
		REFUSED(ch_code_free(rig.heap, e.code.exec, (enum ch_release)how), CH_E_ARG,
			"not one of enum ch_release");
	}
	rig_collect(&rig, 3);
	CHECK_EQ(code_call_owner(owner), 7);
	CHECK(rig_is_there(e.code.block));
	CHECK_EQ(ch_code_free(rig.heap, e.code.exec, CH_RELEASE_NOT_RUNNING), CH_OK);
	REFUSED(ch_code_free(rig.heap, e.code.exec, CH_RELEASE_NOT_RUNNING), CH_E_STALE,
		"freed already, or OPEN");
}

TEST_RIG_BY(collection_that_was_not_begun_is_not_ended, rig_start_host(1 << 20))
{
	struct ch_marker *marker;
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
	ch_mark_stacks(marker);
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
	for (int is_complete = 0; is_complete < 2; is_complete++)
		REFUSED(ch_mark_end(marker, is_complete), CH_E_STATE, "not between ch_mark_begin");
	CHECK_EQ(rig_stats(&rig).cycles, 1);
	/* The thread takes locks as before, and begins another collection. */
	struct ch_owner owner = rig_owner(&rig, "owner");
	CHECK_EQ(ch_owner_set_entry(owner, rig_block(owner, 3)), CH_OK);
	CHECK_EQ(code_call_owner(owner), 3);
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
}

/* --- marking out of turn --- */

static unsigned refs_seen;

static uintptr_t count_ref(void *user, uintptr_t word)
{
	(void)user;
	refs_seen++;
	return word;
}

static uintptr_t count_visit(void *arg, uintptr_t word, bool *is_young)
{
	*is_young = true;
	return count_ref(arg, word);
}

struct marked {
	struct rig rig;
	struct ch_owner owner;
	struct ch_marker *marker;
};

/* A heap of the host's driver with an owner, whose block has a ref. */
static struct marked start_marked(void)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops ops = {.size = sizeof ops, .ref = count_ref};
	struct emitter e;
	config.driver = CH_DRIVER_HOST;
	struct marked m = {.rig = rig_create(&config, &ops, NULL)};
	m.owner = rig_owner(&m.rig, "owner");
	emit_open(&e, m.owner, 64, 0);
	CHECK_EQ(ch_ref_attach(e.code.block, emit_ref_word(&e, 0x1000)), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_set_entry(m.owner, e.code.block), CH_OK);
	return m;
}

static void collect_marked(struct marked *m)
{
	refs_seen = 0;
	CHECK_EQ(ch_mark_begin(m->rig.heap, &m->marker), CH_OK);
	ch_mark_owner(m->marker, m->owner);
	ch_mark_stacks(m->marker);
	CHECK_EQ(ch_mark_end(m->marker, true), CH_OK);
	CHECK_EQ(refs_seen, 1);
}

#define OUT_OF_TURN "CH_E_STATE: the calling thread is not between ch_mark_begin and ch_mark_end"
/* Another sentence, so that the words are the next call's. */
static void forget_why(void)
{
	REFUSED(ch_heap_destroy(NULL), CH_E_ARG, "is NULL");
}

static void expect_out_of_turn(struct marked *m)
{
	REFUSED(ch_refs_visit(m->marker, CH_REFS_ALL, count_visit, NULL), CH_E_STATE, OUT_OF_TURN);
	forget_why();
	ch_mark_owner(m->marker, m->owner);
	CHECK_STR(ch_why(), OUT_OF_TURN);
	forget_why();
	ch_mark_stack(m->marker, m, m + 1);
	CHECK_STR(ch_why(), OUT_OF_TURN);
	forget_why();
	ch_mark_stacks(m->marker);
	CHECK_STR(ch_why(), OUT_OF_TURN);
}

TEST(marking_outside_of_a_collection_is_told_and_leaves_the_next_collection_whole)
{
	struct marked m = start_marked();
	collect_marked(&m);
	for (int i = 0; i < 3; i++) {
		refs_seen = 0;
		expect_out_of_turn(&m);
		CHECK_EQ(refs_seen, 0);
		CHECK(!m.rig.heap->cycle_has_begun);
		collect_marked(&m);
	}
	CHECK_EQ(rig_stats(&m.rig).cycles, 4);
	rig_end(&m.rig);
}

static void *mark_as_another(void *arg)
{
	struct marked *m = arg;
	expect_out_of_turn(m);
	return NULL;
}

TEST(marking_by_another_thread_than_began_is_told)
{
	struct marked m = start_marked();
	pthread_t thread;
	CHECK_EQ(ch_mark_begin(m.rig.heap, &m.marker), CH_OK);
	ch_mark_stacks(m.marker);
	refs_seen = 0;
	CHECK_EQ(pthread_create(&thread, NULL, mark_as_another, &m), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(refs_seen, 0);
	CHECK_EQ(ch_mark_end(m.marker, false), CH_OK);
	collect_marked(&m);
	rig_end(&m.rig);
}

TEST(owner_of_another_heap_is_not_marked_in_silence)
{
	struct marked m = start_marked();
	struct rig other = rig_start(1 << 20);
	struct ch_owner stranger = rig_owner(&other, "stranger");
	CHECK_EQ(ch_mark_begin(m.rig.heap, &m.marker), CH_OK);
	ch_mark_owner(m.marker, stranger);
	CHECK(strstr(ch_why(), "CH_E_STALE: owner #"));
	CHECK_EQ(ch_mark_end(m.marker, false), CH_OK);
	rig_end(&other);
	rig_end(&m.rig);
}

TEST_RIG_BY(call_for_an_open_block_says_that_a_collection_is_open, rig_start_host(1 << 20))
{
	struct ch_open open = {.size = sizeof open, .heap = rig.heap, .hot_bytes = 16};
	struct ch_code code;
	struct ch_marker *marker;
	const void *at;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
	REFUSED(ch_block_abort(&code), CH_E_STATE, "ch_mark_end");
	REFUSED(ch_block_veneer(&code, &rig, &at), CH_E_STATE, "ch_mark_end");
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
	REFUSED(ch_block_abort(&code), CH_E_STATE, "ch_code.block is not OPEN");
	REFUSED(ch_block_veneer(&code, &rig, &at), CH_E_STATE, "ch_code.block is not OPEN");
}

static bool end_in_visit(void *arg, const struct ch_info *info)
{
	(void)info;
	REFUSED(ch_mark_end(arg, true), CH_E_STATE, "not between ch_mark_begin");
	return true;
}

TEST_RIG_BY(visit_of_blocks_is_not_ended_as_a_collection, rig_start_host(1 << 20))
{
	struct ch_marker *marker;
	rig_block(rig_owner(&rig, "owner"), 3);
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	CHECK_EQ(ch_block_each(rig.heap, NULL, end_in_visit, marker), CH_OK);
}

/* With a foreign stack pointer the whole stack of the fiber is scanned, and nothing else. */
TEST_RIG(fiber_that_is_left_with_a_foreign_stack_pointer_holds_what_is_on_its_stack)
{
	static uintptr_t around[192], *const stack = around + 64;
	static char elsewhere;
	const void *const wrong[] = {&elsewhere, NULL, (const void *)(UINTPTR_MAX - 15), around,
				     around + 129};
	struct emitter e;
	struct ch_fiber *fiber;
	struct ch_owner owner = rig_owner(&rig, "owner");
	emit_open(&e, owner, 16, 0);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	struct ch_block block = e.code.block;
	stack[0] = (uintptr_t)e.code.exec;
	e.code.exec = NULL;
	CHECK_EQ(ch_fiber_attach(rig.heap, stack, stack + 64, &fiber), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		ch_fiber_suspend(fiber, wrong[i]);
		rig_collect(&rig, 2);
		CHECK(rig_is_there(block));
		ch_fiber_resume(fiber);
	}
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
}

TEST_RIG(fiber_that_was_detached_is_neither_left_nor_entered)
{
	static uintptr_t stack[64];
	struct ch_fiber *fiber;
	CHECK_EQ(ch_fiber_attach(rig.heap, stack, stack + 64, &fiber), CH_OK);
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
	REFUSED((ch_fiber_suspend(fiber, stack), CH_OK), CH_OK, "the fiber is not attached");
	REFUSED(ch_vm_detach(NULL), CH_E_ARG, "vm, is NULL");
	REFUSED((ch_fiber_resume(fiber), CH_OK), CH_OK, "the fiber is not attached");
	REFUSED(ch_vm_detach(NULL), CH_E_ARG, "vm, is NULL");
	REFUSED(ch_fiber_detach(fiber), CH_E_STATE, "the fiber is not attached");
}

TEST_RIG(branch_that_no_room_was_asked_for_is_not_attached)
{
	struct ch_open open = {.size = sizeof open, .heap = rig.heap, .hot_bytes = 64};
	struct ch_code code;
	struct ch_branch branch;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	struct ch_branch_site site = {.at = code.exec, .kind = CH_LITERAL};
	REFUSED(ch_branch_attach(code.block, &site, &branch), CH_E_FULL, "branch_room is 0 or");
	CHECK_EQ(ch_block_abort(&code), CH_OK);
}

TEST_RIG_BY(branch_is_not_attached_to_data, rig_start(4 << 20))
{
	for (int kind = CH_KIND_RODATA; kind <= CH_KIND_DATA; kind++) {
		struct ch_open open = {.size = sizeof open, .heap = rig.heap, .hot_bytes = 64};
		open.kind = (enum ch_kind)kind;
		struct ch_code code;
		struct ch_branch branch;
		CHECK_EQ(ch_block_open(&open, &code), CH_OK);
		struct ch_branch_site site = {.at = code.exec, .kind = CH_JMP};
		REFUSED(ch_branch_attach(code.block, &site, &branch), CH_E_STATE, "is data");
		CHECK_EQ(branch.bits, 0);
		CHECK_EQ(ch_block_abort(&code), CH_OK);
	}
}

TEST(what_is_of_another_heap_is_called_so)
{
	struct rig rig = rig_start(1 << 20), other = rig_start(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "owner"), foreign = rig_owner(&other, "foreign");
	struct ch_block block = rig_block(foreign, 5);
	size_t freed = 1, kept = 1;
	CHECK_EQ(ch_owner_set_entry(foreign, block), CH_OK);
	REFUSED(ch_vm_discard(rig.heap, other.vm, &freed, &kept), CH_E_ARG, "another heap's");
	CHECK_EQ(freed + kept, 0);
	REFUSED(ch_owner_set_entry(owner, block), CH_E_STALE, "another heap's");
	struct emitter e[2];
	emit_open(&e[0], owner, 16, 0);
	emit_open(&e[1], foreign, 16, 0);
	struct ch_code codes[2];
	for (int i = 0; i < 2; i++) {
		emit_ret(&e[i]);
		codes[i] = e[i].code;
		codes[i].used_to = e[i].at;
	}
	REFUSED(ch_block_commit(codes, 2), CH_E_STATE, "another heap than the first");
	for (int i = 0; i < 2; i++)
		CHECK_EQ(ch_block_abort(&codes[i]), CH_OK);
	CHECK_EQ(code_call_owner(foreign), 5);
	rig_end(&other);
	rig_end(&rig);
}

/* A pool of one chunk has code or data, and the refusal says so. A second chunk takes data. */
TEST(pool_of_one_chunk_says_that_it_has_one_kind)
{
	for (size_t chunks = 1; chunks <= 2; chunks++) {
		struct rig rig = rig_start(chunks << 20);
		struct ch_owner owner = rig_owner(&rig, "owner");
		struct ch_code code;
		struct ch_open open = {.size = sizeof open, .heap = rig.heap, .hot_bytes = 64};
		open.kind = CH_KIND_RODATA;
		(void)rig_block(owner, 1);
		if (chunks == 1) {
			REFUSED(ch_block_open(&open, &code), CH_E_FULL, "of another kind");
		} else {
			CHECK_EQ(ch_block_open(&open, &code), CH_OK);
			CHECK_EQ(ch_block_abort(&code), CH_OK);
		}
		rig_end(&rig);
	}
}

TEST_RIG(full_pool_tells_of_the_pages_that_a_block_in_place_takes)
{
	struct ch_open open = {.size = sizeof open, .heap = rig.heap, .hot_bytes = 64};
	struct ch_code code;
	enum ch_status status;
	char words[64];
	open.flags = CH_OPEN_IN_PLACE;
	while ((status = ch_block_open(&open, &code)) == CH_OK)
		continue;
	snprintf(words, sizeof words, "no room for %zu bytes in", rig_page_bytes());
	REFUSED(status, CH_E_FULL, words);
}

/* The first values that are none. */
TEST_RIG(open_of_no_known_entry_and_no_registered_frame_is_refused)
{
	static const uint8_t rule[] = {0x0c, 7, 8, 0}; /* DW_CFA_def_cfa, DW_CFA_nop */
	struct ch_open open = {.size = sizeof open, .owner = rig_owner(&rig, "o"), .hot_bytes = 64};
	struct ch_code code;
	open.entry = (enum ch_entry)(CH_ENTRY_GUARD + 1);
	REFUSED(ch_block_open(&open, &code), CH_E_ARG, "ch_open.entry is 3: not 0 to 2");
	open.entry = CH_ENTRY_NONE;
	for (unsigned last = CH_FRAME_STEPS; last < CH_FRAME_STEPS + 2; last++) {
		open.frame = (uint8_t)(last + 1);
		REFUSED(ch_block_open(&open, &code), CH_E_ARG, "the last that is registered");
		uint8_t frame;
		CHECK_EQ(ch_frame_register(rig.heap, rule, last, &frame), CH_OK); /* 3, then 4 */
		CHECK_EQ(frame, last + 1);
	}
}

TEST_RIG_BY(patch_point_of_other_bytes_or_to_data_is_refused, rig_start(4 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "o");
	struct ch_open as = {.size = sizeof as, .owner = owner, .hot_bytes = 64,
			     .kind = CH_KIND_RODATA};
	struct ch_code data;
	CHECK_EQ(ch_block_open(&as, &data), CH_OK);
	memset(data.write, 0, data.hot_bytes);
	CHECK_EQ(ch_block_commit(&data, 1), CH_OK);
	struct emitter e;
	emit_open(&e, owner, 96, 0);
	const void *other = emit_here(&e);
	emit_value(&e, 1);
	const void *point = emit_point(&e);
	emit_ret(&e);
	REFUSED(ch_patch_point_attach(e.code.block, other, e.code.exec, NULL), CH_E_SITE,
		"has other bytes than a patch point");
	REFUSED(ch_patch_point_attach(e.code.block, point, data.exec, NULL), CH_E_ARG,
		"in no code: the exit");
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, e.code.exec, NULL), CH_OK);
	REFUSED(ch_patch_point_attach(e.code.block, point, e.code.exec, NULL), CH_E_SITE,
		"shares bytes with what is attached");
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

TEST_RIG(patchable_entry_that_was_written_over_is_named)
{
	struct emitter e;
	struct ch_open open = {.owner = rig_owner(&rig, "o"), .hot_bytes = 64};
	open.entry = CH_ENTRY_PATCH;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK(e.code.entry_bytes > 0);
	memset(e.code.write, 0x90, 16);
	e.code.used_to = 32;
	REFUSED(ch_block_commit(&e.code, 1), CH_E_SITE, "emit behind its entry_bytes");
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

static bool never_stops(void *vm_user)
{
	(void)vm_user;
	return false;
}

/* The driver of a HOST heap stops the threads, and asks no vm. */
TEST_RIG_BY(vm_of_a_host_heap_has_no_stop_of_its_own, rig_start_host(1 << 20))
{
	struct ch_ops ops = {.size = sizeof ops, .stop_world = never_stops};
	struct ch_vm *vm = rig.vm;
	REFUSED(ch_vm_attach(rig.heap, &ops, NULL, &vm), CH_E_ARG, "for CH_DRIVER_BUILTIN only");
	CHECK(!vm);
	ops.stop_world = NULL;
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &vm), CH_OK);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
}

TEST_RIG(set_of_sinks_has_no_status)
{
	static const unsigned sets[] = {0, CH_SINK_UNWIND | CH_SINK_PERF_MAP, 77, 1u << 31};
	const char *path = NULL;
	CHECK(ch_sink_status(rig.heap, CH_SINK_UNWIND, &path, NULL));
	CHECK(!*path); /* it has no file */
	for (unsigned i = 0; i < sizeof sets / sizeof *sets; i++) {
		int failed = 0;
		path = NULL;
		if (ch_sink_status(rig.heap, (enum ch_sink)sets[i], &path, &failed))
			FAIL("a sink %u is on", sets[i]);
		CHECK_EQ(failed, EINVAL);
		CHECK(!*path);
	}
}

/* ch_code_add and calls by an address take NULL otherwise. */
static void expect_no_heap(struct ch_heap *heap, const char *words)
{
	struct ch_ops ops = {.size = sizeof ops};
	struct ch_stats stats = {.size = sizeof stats};
	struct ch_vm *vm;
	struct ch_fiber *fiber;
	struct ch_marker *marker;
	uint8_t frame;
	REFUSED(ch_vm_attach(heap, &ops, NULL, &vm), CH_E_ARG, words);
	REFUSED(ch_vm_discard(heap, NULL, NULL, NULL), CH_E_ARG, words);
	REFUSED(ch_thread_attach(heap, NULL, NULL), CH_E_ARG, words);
	REFUSED(ch_thread_detach(heap), CH_E_ARG, words);
	REFUSED(ch_fiber_attach(heap, &ops, &ops + 1, &fiber), CH_E_ARG, words);
	REFUSED(ch_frame_register(heap, "\x0c", 1, &frame), CH_E_ARG, words);
	REFUSED(ch_block_each(heap, NULL, NULL, NULL), CH_E_ARG, words);
	REFUSED(ch_sink_set(heap, CH_SINK_UNWIND), CH_E_ARG, words);
	REFUSED(ch_sink_flush(heap), CH_E_ARG, words);
	REFUSED(ch_trap_install(heap), CH_E_ARG, words);
	REFUSED(ch_heap_stats(heap, &stats), CH_E_ARG, words);
	REFUSED(ch_heap_check(heap, NULL, 0), CH_E_ARG, words);
	REFUSED(ch_heap_collect(heap), CH_E_ARG, words);
	REFUSED(ch_mark_begin(heap, &marker), CH_E_ARG, words);
	REFUSED(ch_heap_destroy(heap), CH_E_ARG, words);
	CHECK(!ch_thread_poll_word(heap));
	static const enum ch_sink sinks[] = {CH_SINK_UNWIND, CH_SINK_STATS_FILE};
	for (unsigned i = 0; i < sizeof sinks / sizeof *sinks; i++) {
		const char *path = NULL;
		int failed = 0;
		CHECK(!ch_sink_status(heap, sinks[i], NULL, NULL));
		CHECK(!ch_sink_status(heap, sinks[i], &path, &failed));
		CHECK_EQ(failed, EINVAL);
		CHECK(!*path);
	}
	const void *pcs[4];
	CHECK_EQ(ch_backtrace(heap, CH_BACKTRACE_FRAMES, NULL, pcs, 4), 0);
	CHECK_EQ(ch_backtrace(heap, CH_BACKTRACE_TABLES, NULL, pcs, 4), 0);
	char text[8];
	CHECK(ch_address_name(heap, NULL, false, text, sizeof text) > 0);
	CHECK_STR(text, "+0x0");
	siginfo_t info = {.si_signo = SIGTRAP, .si_code = 1};
	static ucontext_t context;
	CHECK_EQ(ch_trap_describe(heap, &info, &context, text, sizeof text), 0);
}

TEST(heap_that_is_null_or_gone_is_refused)
{
	struct rig rig = rig_start(1 << 20);
	struct ch_heap *gone = rig.heap;
	struct ch_open open = {.size = sizeof open, .heap = gone, .hot_bytes = 64};
	struct ch_code code;
	struct ch_owner owner;
	struct ch_assumption fact;
	void *f;
	rig_end(&rig);
	expect_no_heap(gone, "it was destroyed, or never was");
	expect_no_heap(NULL, "heap, or vm, is NULL");
	REFUSED(ch_block_open(&open, &code), CH_E_ARG, "it was destroyed");
	REFUSED(ch_code_add(gone, "\0\0\0", 4, "f", &f), CH_E_ARG, "it was destroyed");
	REFUSED(ch_code_write(gone, gone, "", 1, CH_WRITE_WORD), CH_E_ARG, "it was destroyed");
	REFUSED(ch_code_free(gone, gone, CH_RELEASE_COLLECT), CH_E_ARG, "it was destroyed");
	REFUSED(ch_owner_create(NULL, "o", NULL, NULL, &owner), CH_E_ARG, "vm, is NULL");
	REFUSED(ch_assumption_create(NULL, &fact), CH_E_ARG, "vm, is NULL");
	REFUSED(ch_vm_detach(NULL), CH_E_ARG, "vm, is NULL");
}

/* The limits are lowered to what the heap has. */
TEST_RIG(sentence_tells_a_limit_of_records_from_missing_memory)
{
	struct ch_owner owner = rig_owner(&rig, "o"), more;
	struct ch_assumption fact;
	struct ch_code code;
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 16};
	char says[80];
	struct ch_owner last = rig_owner(&rig, "o");
	rig.heap->names.limit = rig.heap->names.used;
	uint64_t side_bytes = rig_stats(&rig).metadata_bytes_now;
	REFUSED(ch_owner_create(rig.vm, "p", NULL, NULL, &more), CH_E_MEMORY, " names, its limit");
	CHECK_EQ(rig_stats(&rig).metadata_bytes_now, side_bytes);
	open.name = "b";
	REFUSED(ch_block_open(&open, &code), CH_E_MEMORY, " names, its limit");
	open.name = NULL;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	struct ch_line line = {code.exec, 1};
	REFUSED(ch_block_lines(code.block, "f", &line, 1), CH_E_MEMORY, " names, its limit");
	rig.heap->names.limit = CH__INDEX_MAX;
	rig.heap->assumptions.limit = 1;
	REFUSED(ch_assumption_create(rig.vm, &fact), CH_E_MEMORY, " assumptions, its limit");
	rig.heap->owners.limit = rig.heap->owners.used;
	snprintf(says, sizeof says, "the heap has %u owners, its limit: end some, and collect",
		 rig.heap->owners.used - 1);
	REFUSED(ch_owner_create(rig.vm, "o", NULL, NULL, &more), CH_E_MEMORY, says);
	CHECK_EQ(ch_owner_release(last, CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(ch_owner_create(rig.vm, "o", NULL, NULL, &more), CH_OK);
	/* The thread has some records of its own left, and the table has few. */
	rig.heap->blocks.limit = rig.heap->blocks.used + 3;
	while (ch_block_open(&open, &code) == CH_OK)
		continue;
	REFUSED(ch_block_open(&open, &code), CH_E_MEMORY, " blocks, its limit: ");
}

TEST(sentence_says_how_a_handle_is_stale)
{
	struct rig rig = rig_start(1 << 20), other = rig_start(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "o"), foreign = rig_owner(&other, "p");
	struct ch_assumption fact;
	struct ch_block none = {0}, block = rig_block(foreign, 5);
	CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
	CHECK_EQ(ch_assumption_break(fact, NULL), CH_OK);
	REFUSED(ch_assumption_break(fact, NULL), CH_E_STALE, " broke already, ");
	/* The generation of a record that is free is nobody's. */
	fact.bits += (uint64_t)1 << 32;
	REFUSED(ch_assumption_break(fact, NULL), CH_E_STALE, " broke already, ");
	REFUSED(ch_owner_set_entry(owner, block), CH_E_STALE, ", or another heap's");
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	REFUSED(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_E_STALE, " released, or");
	rig_end(&other);
	REFUSED(ch_owner_set_entry(foreign, none), CH_E_STALE, " is of a heap that was destroyed");
	rig_end(&rig);
}

/* Whatever was attached before: at some counts, the point has room and the edge none besides. */
TEST_RIG(patch_point_without_memory_leaves_no_edge_to_its_exit)
{
	struct ch_owner owner = rig_owner(&rig, "o");
	struct ch_block other = rig_block(owner, 1);
	unsigned refused = 0;
	for (unsigned edges = 1; edges <= 16; edges++) {
		struct ch_owner exits = rig_owner(&rig, "exits");
		struct ch_block exit = rig_block(exits, 2);
		struct emitter e;
		emit_open(&e, owner, 64, 0);
		const void *point = emit_point(&e);
		emit_ret(&e);
		for (unsigned i = 0; i < edges; i++)
			CHECK_EQ(ch_edge_attach(e.code.block, other), CH_OK);
		ch__os_fail_at(1, true);
		enum ch_status status = ch_patch_point_attach(e.code.block, point,
							      block_info(exit).exec, NULL);
		ch__os_fail_at(0, false);
		CHECK(status == CH_OK || status == CH_E_MEMORY);
		refused += status == CH_E_MEMORY;
		CHECK_EQ(ch_owner_release(exits, CH_RELEASE_NOT_RUNNING), CH_OK);
		CHECK_EQ(rig_is_there(exit), status == CH_OK);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	}
	CHECK(refused > 0);
}

TEST_RIG(half_of_the_bounds_of_a_stack_is_refused)
{
	char here[64];
	const void *above = (const void *)((uintptr_t)here + 4096);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	CHECK_EQ(ch_thread_attach(rig.heap, here, NULL), CH_E_ARG);
	CHECK(strstr(ch_why(), " to high 0x0 is not the caller's stack"));
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, above), CH_E_ARG);
	CHECK(strstr(ch_why(), "low 0x0 to high 0x"));
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
}

/* Stubs lie in front of the VM's cold bytes: more unused bytes than there are would be theirs. */
TEST_RIG(commit_takes_no_cold_room_that_the_open_did_not_give)
{
	struct emitter e;
	struct ch_open open = {.owner = rig_owner(&rig, "owner"), .hot_bytes = 64, .cold_bytes = 64,
			       .branch_room = 2};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	struct ch_info info = block_info(e.code.block);
	uint32_t stubs = info.cold_bytes - e.code.cold_bytes;
	struct ch_code code = e.code;
	code.used_to = 16;
	code.cold_bytes += 8;
	CHECK_EQ(ch_block_commit(&code, 1), CH_E_ARG);
	CHECK(strstr(ch_why(), "[0].cold_used is 0: of 72 cold bytes, which the block must have"));
	code.cold_bytes -= 8;
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	CHECK_EQ(ch_block_info(code.block, &info), CH_OK);
	CHECK_EQ(info.cold_bytes, stubs);
}

/* Each value is the first that is wrong. */
TEST_RIG(commit_is_refused_at_the_first_byte_beyond_a_bound)
{
	static const struct {
		enum ch_entry entry;
		uint32_t to, from, entry_offset, cold;
		const char *words;
		uint8_t frame;
	} rows[] = {
		{CH_ENTRY_NONE, 16, 16, 0, 0, "[0].used_from is 16: not a multiple of 8 below", 0},
		{CH_ENTRY_NONE, 16, 0, 16, 0, "[0].entry_offset is 16: not from used_from", 0},
		{CH_ENTRY_NONE, 16, 0, 0, 1, "[0].cold_used is 1: of 0 cold bytes", 0},
		/* Code that fills its room is committed by a path of its own. */
		{CH_ENTRY_NONE, 64, 0, 0, 1, "[0].cold_used is 1: of 0 cold bytes", 0},
		{CH_ENTRY_PATCH, 16, 0, 8, 0, "[0].entry_offset is 8: 0 with CH_ENTRY_PATCH", 0},
		{CH_ENTRY_PATCH, 16, 8, 0, 0, "[0].used_from is 8: 0 with CH_ENTRY_PATCH", 0},
		/* The steps are kept there. */
		{CH_ENTRY_NONE, 72, 0, 0, 0, "[0].used_to is 72: of 64 hot bytes", CH_FRAME_STEPS},
	};
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct emitter e;
		struct ch_open open = {.owner = rig_owner(&rig, "owner"), .hot_bytes = 64,
				       .entry = rows[i].entry, .frame = rows[i].frame};
		if (rows[i].frame == CH_FRAME_STEPS && !CH_ARCH_HAS_STEPS)
			continue;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		CHECK_EQ(e.code.cold_bytes, 0);
		struct ch_code code = e.code;
		code.used_to = rows[i].to;
		code.used_from = rows[i].from;
		code.entry_offset = rows[i].entry_offset;
		code.cold_used = rows[i].cold;
		CHECK_EQ(ch_block_commit(&code, 1), CH_E_ARG);
		if (!strstr(ch_why(), rows[i].words))
			FAIL("row %u: the sentence is: %s", i, ch_why());
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	}
}
