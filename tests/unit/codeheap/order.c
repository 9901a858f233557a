/* SPDX-License-Identifier: MIT
 * order.c: the order of steps when a block is published, aborted and withdrawn, and the steps taken
 * back by a failing call. The linker leads the library's calls between rooms through this file
 * (--wrap), so that a case sees the moment itself. */
#include "codeheap/graph/block.h"
#include "codeheap/graph/block_parts.h"
#include "codeheap/places/places.h"
#include "codeheap/base/park.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <sched.h>

static struct rig rig;

/* --- calls led through this file --- */

static void (*on_remove)(const struct ch__sink_range *, size_t);
static void (*on_add)(const struct ch__sink_range *, size_t);
static void (*on_start)(uint32_t offset);
static void (*on_kill)(uint32_t index);
static void (*on_table)(const struct ch__own *);

void __real_ch__sinks_remove(struct ch__sinks *, const struct ch__sink_range *, size_t);
void __wrap_ch__sinks_remove(struct ch__sinks *, const struct ch__sink_range *, size_t);
void __wrap_ch__sinks_remove(struct ch__sinks *sinks, const struct ch__sink_range *ranges, size_t n)
{
	if (on_remove)
		on_remove(ranges, n);
	__real_ch__sinks_remove(sinks, ranges, n);
}

void __real_ch__sinks_add(struct ch__sinks *, const struct ch__sink_range *, size_t);
void __wrap_ch__sinks_add(struct ch__sinks *, const struct ch__sink_range *, size_t);
void __wrap_ch__sinks_add(struct ch__sinks *sinks, const struct ch__sink_range *ranges, size_t n)
{
	if (on_add)
		on_add(ranges, n);
	__real_ch__sinks_add(sinks, ranges, n);
}

void __real_ch__page_set_start(struct ch__pool *, uint32_t, bool);
void __wrap_ch__page_set_start(struct ch__pool *, uint32_t, bool);
void __wrap_ch__page_set_start(struct ch__pool *pool, uint32_t offset, bool begins)
{
	if (on_start && begins)
		on_start(offset);
	__real_ch__page_set_start(pool, offset, begins);
}

void __real_ch__blocks_kill(struct ch_heap *, const uint32_t *, uint32_t, enum ch__death);
void __wrap_ch__blocks_kill(struct ch_heap *, const uint32_t *, uint32_t, enum ch__death);
void __wrap_ch__blocks_kill(struct ch_heap *heap, const uint32_t *blocks, uint32_t count,
			    enum ch__death death)
{
	for (uint32_t i = 0; on_kill && i < count; i++)
		on_kill(blocks[i]);
	__real_ch__blocks_kill(heap, blocks, count, death);
}

void __real_ch__sinks_own_destroy(struct ch__sinks *, struct ch__own *);
void __wrap_ch__sinks_own_destroy(struct ch__sinks *, struct ch__own *);
void __wrap_ch__sinks_own_destroy(struct ch__sinks *sinks, struct ch__own *own)
{
	if (on_table && own)
		on_table(own);
	__real_ch__sinks_own_destroy(sinks, own);
}

/* --- names and traps --- */

static unsigned removed;

static void expect_code(const struct ch__sink_range *ranges, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const uint8_t *read = ch__pool_read(rig.heap->pool, ranges[i].exec);
		CHECK(!ch__arch_are_traps(read, ranges[i].bytes));
	}
	removed += (unsigned)n;
}

static struct ch_block new_two_parts(struct ch_owner owner)
{
	struct emitter e;
	struct ch_open open = {.owner = owner, .hot_bytes = 16, .cold_bytes = 32};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 1);
	struct emitter cold = emit_cold(&e);
	emit_answer(&cold, 2);
	emit_cold_end(&e, &cold);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

static void start_with_names(size_t pool_bytes)
{
	struct ch_config config = rig_config(pool_bytes);
	config.sinks = CH_SINK_GDB;
	rig = rig_create(&config, NULL, NULL);
}

TEST(released_code_is_no_trap_while_it_has_a_name)
{
	start_with_names(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "released");
	new_two_parts(owner);
	on_remove = expect_code;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(removed, 2);
	rig_end(&rig);
}

static void make_dead(const struct rig *of, void *arg)
{
	(void)arg;
	struct ch_owner owner = rig_owner(of, "unreached");
	new_two_parts(owner);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
}

TEST(unreached_code_is_no_trap_while_it_has_a_name)
{
	start_with_names(1 << 20);
	rig_apart(&rig, make_dead, NULL);
	on_remove = expect_code;
	rig_collect(&rig, 3);
	CHECK_EQ(removed, 2);
	rig_end(&rig);
}

/* --- publication --- */

static struct ch_code published;
static unsigned starts_set;

static void expect_live(uint32_t offset)
{
	uint32_t index = ch__handle_index(published.block.bits);
	(void)offset;
	CHECK_EQ(ch__block_state(ch__block_at(rig.heap, index)), CH_BLOCK_LIVE);
	starts_set++;
}

TEST_SHARED_RIG(block_is_live_before_an_address_leads_to_it, rig_start(1 << 20))
{
	struct emitter e;
	struct ch_open open = {.owner = rig_owner(&rig, "two"), .hot_bytes = 16, .cold_bytes = 16};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 1);
	e.code.used_to = e.at;
	e.code.cold_used = e.code.cold_bytes;
	published = e.code;
	on_start = expect_live;
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK_EQ(starts_set, 2);
}

static struct ch_owner early_owner;
static pthread_t early_thread;

static void *enter_early(void *unused)
{
	(void)unused;
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	CHECK_EQ(ch_owner_set_entry(early_owner, published.block), CH_OK);
	CHECK_EQ(code_call_owner(early_owner), RIG_FALLBACK);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

/* Another thread enters the block, which is LIVE, and takes the stub before the start is set. */
static void enter_before_start(uint32_t offset)
{
	(void)offset;
	on_start = NULL;
	CHECK_EQ(pthread_create(&early_thread, NULL, enter_early, NULL), 0);
	TEST_UNTIL(atomic_load(&rig.heap->freeze));
}

TEST_SHARED_RIG(stub_is_taken_before_the_start_of_its_block_is_set, rig_start(1 << 20))
{
	early_owner = rig_owner(&rig, "early");
	struct emitter e;
	emit_open(&e, early_owner, 32, 1);
	emit_jmp(&e, NULL);
	published = e.code;
	on_start = enter_before_start;
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK(!on_start);
	join_parked(early_thread);
}

/* --- batches of names --- */

enum { BATCH = 64, BLOCKS = 3 * BATCH };
static struct ch_code codes[BLOCKS];
static unsigned told, batches;
static uintptr_t last_told;

/* The two ranges of a block with a cold part come in the same batch. */
static void expect_batch(const struct ch__sink_range *ranges, size_t n)
{
	CHECK(n > 0 && n <= BATCH);
	CHECK(!ranges[0].is_cold);
	told += (unsigned)n;
	batches++;
	last_told = ranges[n - 1].exec;
}

static void open_one(struct ch_owner owner, unsigned i, bool has_cold)
{
	struct emitter e;
	struct ch_open open = {
		.owner = owner, .hot_bytes = 16, .cold_bytes = has_cold ? 16 : 0};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, i);
	e.code.used_to = e.at;
	e.code.cold_used = e.code.cold_bytes;
	codes[i] = e.code;
}

/* Behind an odd number of ranges, the two ranges of a block do not fit into the last place. */
TEST(commit_of_many_blocks_tells_each_name_once)
{
	for (unsigned first_cold = 0; first_cold < 4; first_cold++) {
		start_with_names(1 << 20);
		struct ch_owner owner = rig_owner(&rig, "many");
		unsigned ranges = 0;
		for (unsigned i = 0; i < BLOCKS; i++) {
			open_one(owner, i, i >= first_cold);
			ranges += i >= first_cold ? 2 : 1;
		}
		told = batches = 0;
		on_add = expect_batch;
		CHECK_EQ(ch_block_commit(codes, BLOCKS), CH_OK);
		on_add = NULL;
		CHECK_EQ(told, ranges);
		CHECK(batches <= ranges / (BATCH - 1) + 1);
		CHECK_EQ(last_told,
			 (uintptr_t)codes[BLOCKS - 1].cold_exec);
		rig_end(&rig);
	}
}

/* --- a failing commit --- */

static uint64_t names_now; /* sum of the keys told and not withdrawn */

static void add_names(const struct ch__sink_range *ranges, size_t n)
{
	for (size_t i = 0; i < n; i++)
		names_now += ranges[i].key ^ ranges[i].exec;
	told += (unsigned)n;
}

static void remove_names(const struct ch__sink_range *ranges, size_t n)
{
	for (size_t i = 0; i < n; i++)
		names_now -= ranges[i].key ^ ranges[i].exec;
}

TEST(commit_that_comes_too_late_leaves_no_name_told)
{
	start_with_names(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "late");
	for (unsigned i = 0; i < BATCH; i++)
		open_one(owner, i, true);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	on_add = add_names;
	on_remove = remove_names;
	CHECK_EQ(ch_block_commit(codes, BATCH), CH_E_STALE);
	CHECK_EQ(told, 2 * BATCH);
	CHECK_EQ(names_now, 0);
	for (unsigned i = 0; i < BATCH; i++)
		CHECK(!rig_is_there(codes[i].block));
	rig_end(&rig);
}

static int killed[2];
static unsigned kills;

static void note_kind(uint32_t index)
{
	CHECK(kills < 2);
	killed[kills++] = ch__block_is_data(rig.heap, ch__block_at(rig.heap, index));
}

TEST_SHARED_RIG(commit_that_comes_too_late_aborts_code_before_data, rig_start(4 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "late");
	struct emitter e;
	struct ch_open data = {.owner = owner, .hot_bytes = 256, .kind = CH_KIND_DATA};
	CHECK_EQ(emit_open_as(&e, &data), CH_OK);
	open_one(owner, 1, false);
	codes[0] = e.code;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	on_kill = note_kind;
	CHECK_EQ(ch_block_commit(codes, 2), CH_E_STALE);
	CHECK_EQ(kills, 2);
	CHECK(!killed[0] && killed[1]);
}

/* --- data with the table of code --- */

static uint8_t table[256];
static unsigned tables_seen;

static uint8_t *put4(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, sizeof value);
	return at + sizeof value;
}

/* Writes a CIE of the default frame, and an FDE. */
static void write_table(uint8_t *section, uintptr_t exec, uint64_t bytes)
{
	uint8_t *p = put4(section + 4, 0);
	*p++ = 1;
	*p++ = 0; /* no augmentation */
	*p++ = CH_ARCH_DWARF_CODE_ALIGN;
	*p++ = CH_ARCH_DWARF_DATA_ALIGN & 0x7f;
	*p++ = CH_ARCH_DWARF_RETURN;
	memcpy(p, ch__arch_cfi_frame_pointer, sizeof ch__arch_cfi_frame_pointer);
	for (p += sizeof ch__arch_cfi_frame_pointer; (p - section) % 8;)
		*p++ = 0;
	put4(section, (uint32_t)(p - section - 4));
	uint8_t *fde = p;
	p = put4(p + 4, (uint32_t)(p + 4 - section));
	memcpy(p, &exec, 8);
	memcpy(p + 8, &bytes, 8);
	p += 16;
	put4(fde, (uint32_t)(p - fde - 4));
	put4(p, 0);
}

static void expect_table(const struct ch__own *own)
{
	if (!own->section)
		return;
	CHECK_EQ(memcmp(own->section, table, sizeof table), 0);
	tables_seen++;
}

/* An owner's blocks are freed 64 at a time, the newest first: the data before the code. */
TEST_SHARED_RIG(data_outlives_the_code_whose_table_it_holds, rig_start(8 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "table");
	struct emitter e, data;
	struct ch_open own = {.owner = owner, .hot_bytes = 16, .flags = CH_OPEN_OWN_FRAMES};
	struct ch_open in_data = {.owner = owner, .hot_bytes = 512, .kind = CH_KIND_DATA};
	CHECK_EQ(emit_open_as(&e, &own), CH_OK);
	emit_answer(&e, 1);
	e.code.used_to = e.at;
	for (unsigned i = 0; i < BATCH; i++)
		rig_block(owner, i);
	CHECK_EQ(emit_open_as(&data, &in_data), CH_OK);
	write_table(table, (uintptr_t)e.code.exec, e.at);
	memcpy(data.code.write, table, sizeof table);
	struct ch_code both[] = {data.code, e.code};
	both[1].eh_frame = data.code.exec;
	CHECK_EQ(ch_block_commit(both, 2), CH_OK);
	on_table = expect_table;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(tables_seen, 1);
}

/* Opens a block of an owner of its own, with room for an unwind table. */
static struct ch__own *open_own(struct emitter *e, uint32_t hot_bytes, unsigned flags)
{
	struct ch_open own = {.owner = rig_owner(&rig, "own"),
			      .hot_bytes = hot_bytes,
			      .flags = CH_OPEN_OWN_FRAMES | flags};
	CHECK_EQ(emit_open_as(e, &own), CH_OK);
	emit_answer(e, 1);
	e->code.used_to = e->at;
	e->code.eh_frame = table;
	const struct ch__block *block = ch__block_at(rig.heap, rig_record(e->code.block));
	return ch__side_pointer(block->side_list, CH__ITEM_OWN);
}

/* The commit gives the pages behind the used bytes to the next run, which has its own table. */
TEST(table_over_pages_that_a_commit_gives_back_is_refused)
{
	for (int in_place = 0; in_place < 2; in_place++) {
		struct emitter e;
		rig = rig_start(8 << 20);
		uint32_t page_bytes = (uint32_t)rig_page_bytes();
		uint32_t head = in_place ? CH__IN_PLACE_HEAD_BYTES : CH__HEAD_BYTES;
		open_own(&e, 3 * page_bytes, in_place ? CH_OPEN_IN_PLACE : 0);
		write_table(table, (uintptr_t)e.code.exec, page_bytes);
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_E_ARG);
		char words[80]; /* the FDE lies behind the CIE's length and the CIE */
		snprintf(words, sizeof words,
			 "CH_E_ARG: ch_code.eh_frame, byte %d: an FDE of other code", *table + 4);
		CHECK_STR(ch_why(), words);
		CHECK_EQ(block_info(e.code.block).state, CH_BLOCK_OPEN);
		write_table(table, (uintptr_t)e.code.exec, page_bytes - head);
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		rig_end(&rig); /* the table is the block's up to here */
	}
}

/* A commit tells unwinders of the table before the block is LIVE. */
TEST(detach_withdraws_the_table_of_a_commit_under_way)
{
	struct emitter e;
	rig = rig_start(8 << 20);
	struct ch__own *own = open_own(&e, 100, 0);
	write_table(table, (uintptr_t)e.code.exec, e.at);
	ch__sinks_own_live(rig.heap->sinks, own, table);
	CHECK_EQ(ch_vm_detach(rig.vm), CH_OK);
	CHECK(!own->section);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
}

/* --- a failing open --- */

TEST_SHARED_RIG(open_that_fails_gives_its_records_back, rig_start(64 << 10))
{
	struct ch_owner owner = rig_owner(&rig, "full");
	struct ch_open open = {.owner = owner, .hot_bytes = 512, .branch_room = 3};
	struct emitter e;
	enum ch_status status;
	do
		status = emit_open_as(&e, &open);
	while (status == CH_OK);
	CHECK_EQ(status, CH_E_FULL);
	uint32_t branches = rig.heap->branches.used, blocks = rig.heap->blocks.used;
	for (int i = 0; i < 100; i++)
		CHECK_EQ(emit_open_as(&e, &open), CH_E_FULL);
	CHECK_EQ(rig.heap->branches.used, branches);
	CHECK_EQ(rig.heap->blocks.used, blocks);
}

static unsigned tables_ended;

static void expect_heap_lock(const struct ch__own *own)
{
	(void)own;
	CHECK(!ch__lock_is_free(&rig.heap->lock));
	tables_ended++;
}

/* The name and the list of the block go back to memory that all threads of the heap share. */
TEST_SHARED_RIG(open_that_fails_gives_its_list_back_under_the_heap_lock, rig_start(64 << 10))
{
	struct ch_open open = {.owner = rig_owner(&rig, "full"),
			       .hot_bytes = 512,
			       .flags = CH_OPEN_OWN_FRAMES};
	struct emitter e;
	enum ch_status status;
	on_table = expect_heap_lock;
	do
		status = emit_open_as(&e, &open);
	while (status == CH_OK);
	CHECK_EQ(status, CH_E_FULL);
	CHECK_EQ(tables_ended, 1);
	on_table = NULL;
}

/* --- a vm that has gone --- */

static unsigned freed_calls;

static void count_freed(void *user, void *block_user)
{
	(void)user, (void)block_user;
	freed_calls++;
}

static void make_of_vm(const struct rig *of, void *arg)
{
	struct ch_owner owner;
	CHECK_EQ(ch_owner_create(arg, "gone", (const void *)(uintptr_t)rig_fallback, NULL, &owner),
		 CH_OK);
	rig_block(owner, 1);
	(void)of;
}

TEST(notice_of_a_block_ends_with_its_vm)
{
	struct ch_ops ops = {
		.size = sizeof ops, .branch_hit = rig_no_target, .block_freed = count_freed};
	for (int goes = 0; goes < 2; goes++) {
		struct ch_vm *vm;
		rig = rig_start(1 << 20);
		CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &vm), CH_OK);
		rig_apart(&rig, make_of_vm, vm);
		freed_calls = 0;
		if (goes)
			CHECK_EQ(ch_vm_detach(vm), CH_OK);
		uint64_t freed = rig_stats(&rig).blocks_freed;
		rig_collect(&rig, 4);
		CHECK_EQ(rig_stats(&rig).blocks_freed, freed + 1);
		CHECK_EQ(freed_calls, !goes);
		if (!goes)
			CHECK_EQ(ch_vm_detach(vm), CH_OK);
		rig_end(&rig);
	}
}

/* --- a sink that comes on late --- */

static void *turn_on(void *arg)
{
	(void)arg;
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_GDB), CH_OK);
	return NULL;
}

/* A commit in a region that begins after the freeze finds the wish, and tells the sink (I19). */
TEST(wish_for_a_sink_stands_before_regions_are_awaited)
{
	struct ch_config config = rig_config(1 << 20);
	config.stop_wait_ms = TEST_PATIENCE_MS;
	rig = rig_create(&config, NULL, NULL);
	struct ch__thread *self = ch__thread_self(rig.heap);
	pthread_t thread;
	ch__region_enter(self);
	CHECK(!(atomic_load(&rig.heap->sinks_on) & CH_SINK_GDB));
	CHECK_EQ(pthread_create(&thread, NULL, turn_on, NULL), 0);
	while (!atomic_load(&rig.heap->freeze))
		sched_yield();
	CHECK(atomic_load(&rig.heap->sinks_on) & CH_SINK_GDB);
	ch__region_leave(self);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	/* A commit or a death makes no ranges for a sink that is off. */
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_NONE), CH_OK);
	CHECK_EQ(atomic_load(&rig.heap->sinks_on), 0);
	rig_end(&rig);
}
