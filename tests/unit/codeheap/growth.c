/* SPDX-License-Identifier: MIT
 * growth.c: the memory that a heap keeps of ended vms, fibers and names. The test counts the
 * records. counters.c tests counters that run out. */
#include "codeheap/guest_look.h"
#include "codeheap/base/heap.h"
#include "codeheap/graph/block.h"
#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/names.h"
#include "codeheap/places/places.h"
#include "tests/support/heap_rig.h"
#include "tests/support/names_now.h"
#include "tests/support/os_failing.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* --- vms --- */

static uint32_t vm_records(const struct ch_heap *heap)
{
	uint32_t n = 0;
	for (const struct ch_vm *vm = heap->vms; vm; vm = vm->next)
		n++;
	return n;
}

static struct ch_vm *come(struct ch_heap *heap, const struct ch_ops *ops, void *user)
{
	struct ch_vm *vm;
	CHECK_EQ(ch_vm_attach(heap, ops, user, &vm), CH_OK);
	return vm;
}

TEST_RIG(vm_comes_without_memory_where_another_went)
{
	struct ch_ops none = {.size = sizeof none};
	struct ch_vm *went = come(rig.heap, &none, NULL), *vm;
	CHECK_EQ(ch_vm_detach(went), CH_OK);
	ch__os_fail_at(1, true);
	CHECK_EQ(ch_vm_attach(rig.heap, &none, NULL, &vm), CH_OK);
	CHECK(vm == went);
	CHECK_EQ(ch_vm_attach(rig.heap, &none, NULL, &went), CH_E_MEMORY);
	ch__os_fail_at(0, false);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
}

TEST_RIG(vms_that_went_leave_records_for_those_that_come)
{
	struct ch_ops none = {.size = sizeof none};
	for (int i = 0; i < 10000; i++)
		CHECK_EQ(ch_vm_detach(come(rig.heap, &none, NULL)), CH_OK);
	CHECK(vm_records(rig.heap) < 100);
	CHECK_EQ(rig_stats(&rig).vms_now, 1);
}

TEST(vms_with_code_that_went_leave_records_once_it_is_collected)
{
	struct rig rig = rig_start(1 << 20), other = rig;
	struct ch_ops none = {.size = sizeof none};
	for (int i = 0; i < 2000; i++) {
		other.vm = come(rig.heap, &none, NULL);
		CHECK_EQ(code_call(block_info(rig_block(rig_owner(&other, "gone"), 7)).entry), 7);
		CHECK_EQ(ch_vm_detach(other.vm), CH_OK);
		if (i % 50 == 49)
			rig_collect(&rig, 2);
	}
	CHECK(vm_records(rig.heap) < 300);
	rig_end(&rig);
}

/* The user word of a vm counts the vm's notices of freed blocks. */
static void note_freed(void *user, void *block_user)
{
	(void)block_user;
	++*(int *)user;
}

TEST(vm_whose_code_is_not_gone_yet_is_no_other_vm)
{
	struct rig rig = rig_start(1 << 20), gone = rig;
	struct ch_ops told = {.size = sizeof told, .block_freed = note_freed};
	int freed_of_gone = 0, freed_of_others = 0;
	gone.vm = come(rig.heap, &told, &freed_of_gone);
	struct ch_owner owner = rig_owner(&gone, "gone");
	struct ch_block block = rig_block(owner, 7);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	CHECK_EQ(ch_vm_detach(gone.vm), CH_OK);
	struct ch_vm *others[100];
	for (int i = 0; i < 100; i++) {
		others[i] = come(rig.heap, &told, &freed_of_others);
		CHECK(others[i] != gone.vm);
		CHECK_EQ(ch_vm_detach(others[i]), CH_OK);
	}
	for (int i = 0; i < 100; i++) {
		others[i] = come(rig.heap, &told, &freed_of_others);
		CHECK(others[i] != gone.vm);
	}
	CHECK(rig_is_there(block));
	rig_collect(&rig, 3);
	ch_thread_poll();
	CHECK(!rig_is_there(block));
	CHECK_EQ(freed_of_gone, 0);
	CHECK_EQ(freed_of_others, 0);
	bool is_used_again = false;
	for (int i = 0; i < 100; i++)
		CHECK_EQ(ch_vm_detach(others[i]), CH_OK);
	for (int i = 0; i < 100; i++) {
		others[i] = come(rig.heap, &told, &freed_of_others);
		is_used_again |= others[i] == gone.vm;
	}
	CHECK(is_used_again);
	/* The record's new vm hears of its own blocks. */
	owner = rig_owner(&gone, "later");
	(void)rig_block(owner, 7);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_collect(&rig, 3);
	ch_thread_poll();
	CHECK_EQ(freed_of_others, 1);
	for (int i = 0; i < 100; i++)
		CHECK_EQ(ch_vm_detach(others[i]), CH_OK);
	rig_end(&rig);
}

/* --- fibers --- */

TEST_RIG(records_of_blocks_that_a_thread_had_serve_those_that_come)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	rig_apart(&rig, rig_open_and_abort, &owner);
	uint32_t used = rig.heap->blocks.used;
	for (int i = 0; i < 100; i++)
		rig_apart(&rig, rig_open_and_abort, &owner);
	CHECK_EQ(rig.heap->blocks.used, used);
	rig_open_and_abort(&rig, &owner); /* also a thread that was there before */
	CHECK_EQ(rig.heap->blocks.used, used);
}

static void leave_within_a_fiber(const struct rig *rig, void *fiber)
{
	(void)rig;
	ch_fiber_resume(*(struct ch_fiber **)fiber);
}

static void expect_no_fiber(const struct rig *rig, void *record)
{
	const struct ch__thread *thread = ch__thread_self(rig->heap);
	CHECK_EQ(thread, record);
	CHECK_EQ(atomic_load(&thread->fiber), NULL);
}

TEST_RIG(thread_has_nothing_of_a_fiber_of_who_had_its_record)
{
	static uint64_t stack[64];
	struct ch_fiber *fiber;
	CHECK_EQ(ch_fiber_attach(rig.heap, stack, stack + 64, &fiber), CH_OK);
	rig_apart(&rig, leave_within_a_fiber, &fiber);
	rig_apart(&rig, expect_no_fiber, atomic_load(&rig.heap->threads));
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
}

/* The test takes minutes if each attach looks at all fibers attached before. */
TEST_RIG(fibers_by_the_hundred_thousand_are_attached)
{
	enum { FIBERS = 250000 };
	struct ch_fiber **fibers = malloc(FIBERS * sizeof(struct ch_fiber *));
	static char stack[64];
	CHECK(fibers);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < FIBERS; i++)
			CHECK_EQ(ch_fiber_attach(rig.heap, stack, stack + sizeof stack, &fibers[i]),
				 CH_OK);
		CHECK_EQ(rig_stats(&rig).fibers_now, FIBERS);
		for (int i = 0; i < FIBERS; i++)
			CHECK_EQ(ch_fiber_detach(fibers[i]), CH_OK);
	}
	uint32_t records = 0;
	for (const struct ch_fiber *f = rig.heap->fibers; f; f = f->next)
		records++;
	CHECK_EQ(records, FIBERS);
	free(fibers);
}

TEST_RIG(fiber_is_detached_once)
{
	struct ch_fiber *fiber, *others[2];
	char stack[64] = {0};
	CHECK_EQ(ch_fiber_attach(rig.heap, stack, stack + sizeof stack, &fiber), CH_OK);
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
	CHECK_EQ(ch_fiber_detach(fiber), CH_E_STATE);
	CHECK_EQ(rig_stats(&rig).fibers_now, 0);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(ch_fiber_attach(rig.heap, stack, stack + sizeof stack, &others[i]), CH_OK);
	CHECK(others[0] != others[1]);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(ch_fiber_detach(others[i]), CH_OK);
}

/* --- names --- */

/* While anybody counts as a reader, no text that is taken away is freed. */
TEST_RIG(look_at_code_is_a_reader_no_longer_than_it_lasts)
{
	const void *entry = block_info(rig_block(rig_owner(&rig, "read"), 7)).entry;
	for (int is_given = 0; is_given < 2; is_given++) {
		struct ch_spot spot = {.size = sizeof spot};
		CHECK(ch_code_at(is_given ? rig.heap : NULL, entry, false, &spot));
		CHECK(!ch__place_is_read());
	}
}

/* Record 0 of each kind stands for none. Valgrind has less address space. */
TEST_RIG_BY(heap_has_as_many_records_of_each_kind_as_the_header_says, rig_start(0))
{
	const struct ch_heap *heap = rig.heap;
	const struct ch__table *tables[] = {&heap->blocks, &heap->owners, &heap->branches,
					    &heap->assumptions, &heap->names};
	bool is_large = heap->pool->pool_bytes >= 256 << 20;
	for (int i = !is_large; i < 5 && !heap->pool->is_translated; i++)
		CHECK_EQ(tables[i]->limit - 1, 16777214);
}

/* A sampler asks again with the answer for the same address. */
TEST_RIG(look_at_cold_code_says_so_each_time)
{
	struct ch_open open = {
		.owner = rig_owner(&rig, "cold"), .hot_bytes = 16, .cold_bytes = 64};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	memset(e.code.cold_write, 0, 64);
	e.code.cold_used = 64;
	uintptr_t cold = (uintptr_t)e.code.cold_exec + 8;
	CHECK_EQ(emit_commit(&e), CH_OK);
	uint64_t word = ch__look_code(rig.heap, cold, 0);
	CHECK(word & CH__LOOK_COLD);
	CHECK_EQ(ch__look_code(rig.heap, cold, word), word);
}

/* A patch point takes two places of the list, and one is left. */
TEST_RIG(list_of_attachments_grows_before_the_last_takes_two_places)
{
	struct ch_owner owner = rig_owner(&rig, "o");
	struct emitter e;
	emit_open(&e, owner, 64, 0);
	for (int i = 0; i < CH__SIDE_FIRST - 1; i++)
		CHECK_EQ(ch_edge_attach_owner(e.code.block, owner), CH_OK);
	const void *at = emit_point(&e);
	CHECK_EQ(ch_patch_point_attach(e.code.block, at, emit_here(&e), NULL), CH_OK);
	emit_ret(&e);
	const struct ch__side_list *list =
		ch__block_at(rig.heap, ch__handle_index(e.code.block.bits))->side_list;
	CHECK_EQ(list->count, CH__SIDE_FIRST + 1);
	CHECK(list->count <= list->capacity);
	CHECK_EQ(emit_commit(&e), CH_OK);
}

TEST(name_of_a_block_goes_when_its_tombstone_does)
{
	enum { REMEMBERED = 64 };
	struct ch_config config = rig_config(1 << 20);
	config.remembered_dead = REMEMBERED;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_owner owner = rig_owner(&rig, "o");
	uint32_t count = names_now(rig.heap);
	char name[40];
	for (int i = 0; i < 4 * REMEMBERED; i++) {
		struct emitter e;
		struct ch_open open = {.owner = owner, .hot_bytes = 16, .name = name};
		snprintf(name, sizeof name, "name %d", i);
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	}
	CHECK(names_now(rig.heap) <= count + REMEMBERED);
	rig_end(&rig);
}

/* Neither the short form of a long name nor its text stays when the rest has no memory. */
TEST_RIG(long_name_without_memory_leaves_nothing)
{
	struct ch_heap *heap = rig.heap;
	char text[200];
	uint32_t count = names_now(heap);
	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = 0;
	ch__heap_lock(heap);
	uint32_t name = 0;
	for (uint64_t nth = 1; !name; nth++) {
		size_t before = ch__meta_bytes(heap->meta);
		ch__os_fail_at(nth, false);
		name = ch__name_take(heap, text);
		ch__os_fail_at(0, false);
		CHECK(name || ch__meta_bytes(heap->meta) == before);
		CHECK(name || names_now(heap) == count);
		CHECK(!name || nth > 1);
	}
	CHECK_EQ(names_now(heap), count + 2);
	ch__name_drop(heap, name);
	CHECK_EQ(names_now(heap), count);
	ch__heap_unlock(heap);
}

/* Of one length, with one end: each takes the place of the one before, and goes by itself. */
TEST_RIG(names_of_one_place_are_shared_while_they_are_the_last_there)
{
	static const char *const texts[] = {"<anonymous> of one.scm", "<anonymous> or one.scm"};
	struct ch_heap *heap = rig.heap;
	uint32_t count = names_now(heap), names[2];
	ch__heap_lock(heap);
	for (int first = 0; first < 2; first++) {
		for (int i = 0; i < 2; i++)
			CHECK((names[i] = ch__name_take(heap, texts[i])));
		CHECK(names[0] != names[1]);
		for (int i = 0; i < 2; i++)
			CHECK_STR(ch__name_text(heap, names[i]), texts[i]);
		ch__name_drop(heap, names[first]);
		uint32_t other = ch__name_take(heap, texts[!first]);
		CHECK_EQ(other == names[!first], !first);
		ch__name_drop(heap, other);
		ch__name_drop(heap, names[!first]);
		CHECK_EQ(names_now(heap), count);
	}
	ch__heap_unlock(heap);
}

/* By turns, each time in other memory, as a collector that moves strings has them. */
TEST_RIG(names_that_come_by_turns_are_shared_each)
{
	enum { ROUNDS = 3, NAMES = 10, BYTES = 16 };
	struct ch_heap *heap = rig.heap;
	uint32_t names[NAMES] = {0};
	ch__heap_lock(heap);
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < NAMES; i++) {
			char text[ROUNDS][BYTES];
			snprintf(text[round], BYTES, "lambda-%d", i);
			uint32_t name = ch__name_take(heap, text[round]);
			CHECK(!round || name == names[i]);
			names[i] = name;
		}
	ch__heap_unlock(heap);
}

/* Of two characters of two and three bytes; files of names have whole characters only. */
TEST_RIG(name_that_a_sink_has_no_room_for_ends_with_a_character)
{
	static const char name[] = "\xc3\xa9 \xe2\x82\xac";
	static const size_t whole[] = {0, 0, 2, 3, 3, 3, 6, 6};
	uint64_t key = rig_block(rig_owner(&rig, name), 7).bits;
	char text[sizeof name + 1];
	for (size_t most = 0; most < sizeof whole / sizeof *whole; most++) {
		CHECK_EQ(ch__tell_name(rig.heap, key, text, most + 1), whole[most]);
		CHECK_EQ(memcmp(text, name, whole[most]), 0);
	}
	/* Bytes that are no UTF-8 stay where there is room. */
	key = rig_block(rig_owner(&rig, "caf\xe9"), 7).bits;
	CHECK_EQ(ch__tell_name(rig.heap, key, text, 6), 4);
}

TEST_RIG(name_that_came_last_and_went_is_made_anew)
{
	static const char text[] = "one";
	struct ch_heap *heap = rig.heap;
	ch__heap_lock(heap);
	uint32_t count = names_now(heap), one = ch__name_take(heap, text);
	CHECK_EQ(ch__name_take(heap, text), one);
	ch__name_drop(heap, one);
	CHECK_EQ(names_now(heap), count + 1);
	ch__name_drop(heap, one);
	CHECK_EQ(names_now(heap), count);
	one = ch__name_take(heap, text);
	CHECK_EQ(names_now(heap), count + 1);
	CHECK_STR(ch__name_text(heap, one), text);
	ch__heap_unlock(heap);
}

TEST_RIG(name_of_an_owner_that_went_is_forgotten)
{
	uint32_t count = names_now(rig.heap);
	struct ch_owner owner = rig_owner(&rig, "nobody else's");
	CHECK_EQ(names_now(rig.heap), count + 1);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(names_now(rig.heap), count);
}

/* --- records of threads --- */

enum { RECORDS = 40, IN_WHOLE_LINES = CH__LINE_BYTES / 8 };
_Static_assert(sizeof(struct ch__block) % 8 == 0, "so many records end with a line");

static void take_records(struct ch_heap *heap, uint32_t *records, int count)
{
	for (int i = 0; i < count; i++)
		CHECK((records[i] = ch__record_take(heap, ch__thread_self(heap))));
}

static uint32_t of_other[RECORDS];

static void *take_apart(void *arg)
{
	struct ch_heap *heap = arg;
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_OK);
	take_records(heap, of_other, RECORDS);
	ch__records_give_back(heap, of_other, RECORDS);
	CHECK_EQ(ch_thread_detach(heap), CH_OK);
	return NULL;
}

TEST_RIG(fresh_records_of_two_threads_lie_in_lines_of_their_own)
{
	uint32_t own[RECORDS];
	pthread_t thread;
	take_records(rig.heap, own, 1);
	CHECK_EQ(pthread_create(&thread, NULL, take_apart, rig.heap), 0);
	pthread_join(thread, NULL);
	take_records(rig.heap, own + 1, 8);
	for (int i = 0; i < 9; i++)
		for (int k = 0; k < RECORDS; k++)
			CHECK(own[i] / IN_WHOLE_LINES != of_other[k] / IN_WHOLE_LINES);
	ch__records_give_back(rig.heap, own, 9);
}

/* --- sites --- */

/* The thread's map covers the OPEN block from first byte to last, in any page. */
TEST_RIG(map_of_sites_is_of_all_of_the_open_block)
{
	enum { SITES = 12, BLOCKS = 16 };
	struct ch_owner owner = rig_owner(&rig, "owner");
	const struct ch__site_map *map = &ch__thread_self(rig.heap)->sites;
	uint32_t seen = 0;
	for (int n = 0; n < BLOCKS; n++) {
		struct emitter e;
		emit_open(&e, owner, rig_page_bytes() / 4, SITES);
		for (int i = 0; i < SITES; i++)
			(void)emit_attach(&e, emit_site_jmp(&e), CH_JMP, NULL);
		const struct ch__block *block = map->block;
		CHECK(map->is_made && block);
		uint32_t offset = ch__offset(rig.heap, (uintptr_t)e.code.exec);
		CHECK(offset - block->hot_offset < ch__hot_bytes(block));
		if (block->hot_offset < map->base ||
		    block->hot_offset + ch__hot_bytes(block) > map->base + map->capacity)
			FAIL("a block at %x has a map of %x and %x bytes", block->hot_offset,
			     map->base, map->capacity);
		seen |= 1u << (block->hot_offset >> rig.heap->pool->page_log2 & 1);
		e.at = rig_page_bytes() / 4 - 64; /* traps, so that the block keeps all its bytes */
		CHECK_EQ(emit_commit(&e), CH_OK);
	}
	CHECK_EQ(seen, 3); /* an even and an odd page number */
}

struct emitting {
	struct ch_owner owner;
	_Atomic(int) step; /* 1: the thread has made a map; 2: the thread may end */
};

static void make_a_map(const struct rig *rig, void *arg)
{
	enum { SITES = 12 };
	struct emitting *own = arg;
	struct emitter e;
	emit_open(&e, own->owner, rig_page_bytes() / 4, SITES);
	for (int i = 0; i < SITES; i++)
		(void)emit_attach(&e, emit_site_jmp(&e), CH_JMP, NULL);
	CHECK(ch__thread_self(rig->heap)->sites.is_made);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	atomic_store(&own->step, 1);
}

static void make_a_map_and_stay(const struct rig *rig, void *arg)
{
	struct emitting *own = arg;
	make_a_map(rig, arg);
	TEST_UNTIL(atomic_load(&own->step) == 2);
}

static struct emitting emitting;
static struct rig emitting_rig;

static void *emit_beside(void *unused)
{
	struct rig_call call = {&emitting_rig, make_a_map_and_stay, &emitting};
	rig_call_attached(&call);
	return unused;
}

/* The fork comes when the thread has freed its map and has no other yet. The memory is another's
 * since, here the case's. In the child a new thread has the record of the lost thread. */
TEST(s31_child_does_not_free_what_a_lost_thread_had_just_freed)
{
	enum { BYTES = 512, ALLOCATIONS = 64 };
	uint8_t others[BYTES];
	pthread_t thread;
	skip_if_allocator_forgets_forks();
	emitting_rig = rig_start(1 << 20);
	struct ch_heap *heap = emitting_rig.heap;
	emitting.owner = rig_owner(&emitting_rig, "owner");
	CHECK_EQ(pthread_create(&thread, NULL, emit_beside, NULL), 0);
	TEST_UNTIL(atomic_load(&emitting.step) == 1);
	struct ch__thread *lost = heap->threads;
	lost = lost == ch__thread_self(heap) ? lost->next : lost;
	struct ch__site_map before = lost->sites;
	CHECK(before.capacity >= BYTES);
	memset(others, 0x5a, sizeof others);
	memcpy(before.bytes, others, sizeof others);
	lost->sites.capacity = 0;
	pid_t child = fork();
	if (!child) {
		rig_apart(&emitting_rig, make_a_map, &emitting);
		CHECK(lost->sites.is_made);
		for (int i = 0; i < ALLOCATIONS; i++)
			CHECK(ch__meta_alloc(heap->meta, 16));
		_exit(memcmp(before.bytes, others, sizeof others) != 0);
	}
	expect_exit(child, 0);
	lost->sites = before;
	atomic_store(&emitting.step, 2);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	rig_end(&emitting_rig);
}

/* --- heaps --- */

static void note_that_the_pool_goes(struct ch_heap *heap)
{
	ch__lock_take(&ch__heaps_lock, CH__RANK_HEAPS);
	ch__heaps_pool_goes(heap);
	ch__lock_release(&ch__heaps_lock, CH__RANK_HEAPS);
}

/* The first heap is still there, as another one would be that came to its place. */
TEST(pool_that_went_is_known_from_its_first_byte_to_its_last)
{
	struct rig rig = rig_start(1 << 20);
	uintptr_t from = rig.heap->pool->exec_base, bytes = rig.heap->pool->pool_bytes;
	note_that_the_pool_goes(rig.heap);
	CHECK(!ch__heaps_had(from) && !ch__heaps_had(from + bytes - 1));
	rig_end(&rig);
	CHECK(ch__heaps_had(from) && ch__heaps_had(from + bytes - 1));
	CHECK(!ch__heaps_had(from - 1) && !ch__heaps_had(from + bytes));
}

/* Owners need no code. */
TEST_RIG_BY(heap_of_a_small_pool_may_have_as_many_owners_as_any, rig_start(rig_page_bytes()))
{
	if (!rig.heap->pool->is_translated)
		CHECK_EQ(rig.heap->owners.limit, CH__INDEX_MAX);
}

enum { KEPT_BY_EACH = 200 };
static _Atomic(unsigned) keepers;
static _Atomic(int) may_end;

static void *keep_records(void *arg)
{
	const struct rig *rig = arg;
	struct ch_open open = {.size = sizeof open, .heap = rig->heap, .hot_bytes = 8};
	struct ch_code codes[KEPT_BY_EACH];
	CHECK_EQ(ch_thread_attach(rig->heap, NULL, NULL), CH_OK);
	for (int i = 0; i < KEPT_BY_EACH; i++)
		CHECK_EQ(ch_block_open(&open, &codes[i]), CH_OK);
	for (int i = 0; i < KEPT_BY_EACH; i++)
		CHECK_EQ(ch_block_abort(&codes[i]), CH_OK);
	atomic_fetch_add(&keepers, 1);
	TEST_UNTIL(atomic_load(&may_end))
		usleep(100);
	CHECK_EQ(ch_thread_detach(rig->heap), CH_OK);
	return NULL;
}

/* Free records that threads keep for themselves are no blocks that others lack. */
TEST_RIG_BY(threads_that_keep_records_leave_as_many_blocks_to_others, rig_start(rig_page_bytes()))
{
	enum { THREADS_MOST = 65536 / CH__GRANULE_BYTES / KEPT_BY_EACH + 1 };
	pthread_t threads[THREADS_MOST];
	unsigned n = (unsigned)(rig_page_bytes() / CH__GRANULE_BYTES / KEPT_BY_EACH) + 1;
	ch_thread_park();
	for (unsigned i = 0; i < n; i++) {
		CHECK_EQ(pthread_create(&threads[i], NULL, keep_records, &rig), 0);
		TEST_UNTIL(atomic_load(&keepers) == i + 1)
			usleep(100);
	}
	atomic_store(&may_end, 1);
	for (unsigned i = 0; i < n; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	ch_thread_unpark();
}

/* A heap reserves some 3 GiB for its tables, and riscv64 has 256 GiB for a process. */
TEST(many_heaps_leave_address_space_to_others)
{
	enum { HEAPS = 40, MOST = 32 };
	struct ch_heap *heaps[HEAPS];
	struct ch_config config = rig_config(rig_page_bytes());
	int reserving = 0;
	for (int i = 0; i < HEAPS; i++) {
		CHECK_EQ(ch_heap_create(&config, &heaps[i]), CH_OK);
		reserving += heaps[i]->tables->is_reserved;
	}
	bool has_random_places = !CH_TSAN && !heaps[0]->pool->is_translated;
	CHECK(reserving <= MOST || !has_random_places);
	for (int i = 0; i < HEAPS; i++)
		CHECK_EQ(ch_heap_destroy(heaps[i]), CH_OK);
}

TEST(process_has_255_heaps_and_the_next_is_a_status)
{
	struct ch_heap *heaps[CH__HEAPS_MAX], *more;
	struct ch_config config = rig_config(rig_page_bytes());
	for (int i = 0; i < CH__HEAPS_MAX; i++)
		CHECK_EQ(ch_heap_create(&config, &heaps[i]), CH_OK);
	config.pool_bytes = 64 << 20;
	errno = 0;
	CHECK_EQ(ch_heap_create(&config, &more), CH_E_OS);
	CHECK_EQ(errno, EMFILE);
	CHECK(!more);
	CHECK_EQ(ch_heap_destroy(heaps[100]), CH_OK);
	CHECK_EQ(ch_heap_create(&config, &heaps[100]), CH_OK);
	for (int i = 0; i < CH__HEAPS_MAX; i++)
		CHECK_EQ(ch_heap_destroy(heaps[i]), CH_OK);
}
