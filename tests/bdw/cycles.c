/* SPDX-License-Identifier: MIT
 * cycles.c: the Boehm driver frees exactly the blocks that no method reaches, cycles through code,
 * constants and methods included; with a single marker thread and with four; with several heaps. */
#include "os/os.h"
#include "tests/bdw/support.h"

enum { RINGS = 40, RING_METHODS = 10, DIRECT = 3 };

static struct method *kept[RINGS]; /* a root of the collector */

/* A ring: each constant refers to the next method; every second method also jumps to a direct
 * neighbour. */
static void build_rings(struct rig *rig, void *arg)
{
	int keep_from = *(int *)arg;
	for (int r = 0; r < RINGS; r++) {
		struct method *ring[RING_METHODS];
		for (int i = 0; i < RING_METHODS; i++)
			ring[i] = new_method(rig, (uint64_t)(r * 100 + i + 1));
		for (int i = 0; i < RING_METHODS; i++)
			CHECK(compile(ring[i], i % 2 ? ring[i - 1] : NULL,
				      ring[(i + 1) % RING_METHODS], plain_callee));
		kept[r] = r >= keep_from ? ring[r % RING_METHODS] : NULL;
	}
}

static void run_kept(struct rig *rig, void *arg)
{
	(void)rig, (void)arg;
	for (int r = 0; r < RINGS; r++)
		if (kept[r])
			CHECK_EQ(run_method(kept[r]), kept[r]->sum);
}

static void check_rings(void)
{
	struct rig rig = start_rig(0);
	int keep_from = RINGS / 2;
	run_apart(&rig, build_rings, &keep_from);
	collect(&rig);
	struct ch_stats stats = stats_of(rig.heap);
	CHECK_EQ(stats.blocks_now, RINGS / 2 * RING_METHODS);
	CHECK_EQ(stats.blocks_freed, RINGS / 2 * RING_METHODS);
	check_heap(rig.heap);
	run_apart(&rig, run_kept, NULL);
	/* Nothing more dies or comes back. The record of an owner outlives the owner's blocks by a
	 * core sync. */
	collect(&rig);
	stats = stats_of(rig.heap);
	CHECK_EQ(stats.blocks_freed, RINGS / 2 * RING_METHODS);
	CHECK(stats.marked_blocks_last >= RINGS / 2 * RING_METHODS);
	CHECK_EQ(stats.owners_now, RINGS / 2 * RING_METHODS);
	memset(kept, 0, sizeof kept);
	collect(&rig);
	stats = stats_of(rig.heap);
	CHECK_EQ(stats.blocks_now, 0);
	collect(&rig);
	CHECK_EQ(stats_of(rig.heap).owners_now, 0);
	end_rig(&rig);
}

TEST(bdw_unreachable_cycles_are_freed_exactly)
{
	check_rings();
}

/* libgc reads the environment at its start, so the case sets GC_MARKERS and starts itself again. */
TEST(bdw_unreachable_cycles_are_freed_exactly_by_four_markers)
{
	if (!getenv("GC_MARKERS")) {
		CHECK_EQ(setenv("GC_MARKERS", "4", 1), 0);
		run_case_again("bdw_unreachable_cycles_are_freed_exactly_by_four_markers");
	}
	start_collector();
	CHECK_EQ(GC_get_parallel(), 3);
	check_rings();
}

enum { ROUNDS = 40, ROUND_METHODS = 1000 };

static void build_and_forget(struct rig *rig, void *arg)
{
	(void)arg;
	for (int i = 0; i < ROUND_METHODS; i++)
		CHECK(compile(new_method(rig, 1), NULL, NULL, plain_callee));
}

/* libgc stops threads by its signals, so a VM may have no polls. */
TEST_BDW(bdw_opens_sweep_what_died_while_nobody_polled)
{
	for (int i = 0; i < ROUNDS; i++) {
		run_apart(&rig, build_and_forget, NULL);
		GC_gcollect();
	}
	struct ch_stats stats = stats_of(rig.heap);
	CHECK_EQ(stats.opens_full, 0);
	CHECK(stats.blocks_freed > ROUNDS * ROUND_METHODS / 2);
}

static void build_one(struct rig *rig, void *arg)
{
	struct method **slot = arg;
	struct method *leaf = new_method(rig, 5), *m = new_method(rig, 2);
	CHECK(compile(leaf, NULL, NULL, plain_callee));
	CHECK(compile(m, leaf, NULL, plain_callee));
	*slot = m;
}

/* Only the ref in code reaches the constant. */
TEST_BDW(bdw_refs_keep_their_objects)
{
	run_apart(&rig, build_one, &kept[0]);
	for (int i = 0; i < 3; i++) {
		collect(&rig);
		for (int n = 0; n < 10000; n++)
			memset(GC_MALLOC(16), 0x5a, 16);
	}
	run_apart(&rig, run_kept, NULL);
	CHECK_EQ(stats_of(rig.heap).blocks_now, 2);
}

/* The target's method is gone; the branch holds the target's code. */
TEST_BDW(bdw_branch_keeps_target_of_dead_method)
{
	run_apart(&rig, build_one, &kept[0]);
	collect(&rig);
	CHECK_EQ(stats_of(rig.heap).blocks_now, 2);
	kept[0] = NULL;
	collect(&rig);
	CHECK_EQ(stats_of(rig.heap).blocks_now, 0);
}

TEST_BDW(bdw_released_owner_is_freed_though_its_anchor_lives)
{
	run_apart(&rig, build_one, &kept[0]);
	CHECK_EQ(ch_owner_release(kept[0]->owner, CH_RELEASE_COLLECT), CH_OK);
	collect(&rig);
	CHECK_EQ(stats_of(rig.heap).blocks_now, 0);
	struct emitter e;
	CHECK(open_code(&e, kept[0]->owner, 0) == CH_E_STALE ||
	      (e.code.used_to = 1, ch_block_commit(&e.code, 1) == CH_E_STALE));
}

/* An anchor names a heap: equal index and generation in another heap mean another owner. */
TEST(bdw_two_heaps_do_not_mix)
{
	struct rig first = start_rig(0), second;
	run_apart(&first, build_one, &kept[0]);
	second = start_rig(0);
	run_apart(&second, build_one, &kept[1]);
	kept[1] = NULL;
	collect(&second);
	collect(&first);
	CHECK_EQ(stats_of(first.heap).blocks_now, 2);
	CHECK_EQ(stats_of(second.heap).blocks_now, 0);
	/* The third heap takes the place of the destroyed first heap, whose anchor a method still
	 * has. */
	end_rig(&first);
	collect(&second);
	struct rig third = start_rig(0);
	run_apart(&third, build_one, &kept[1]);
	kept[1] = NULL;
	collect(&third);
	CHECK(kept[0] != NULL);
	CHECK_EQ(stats_of(third.heap).blocks_now, 0);
	end_rig(&third);
	end_rig(&second);
}

TEST_BDW(bdw_wrong_use_is_a_status)
{
	struct ch_owner owner;
	void *anchor = &owner;
	CHECK_EQ(ch_owner_create(rig.vm, "x", (const void *)no_code, NULL, &owner), CH_E_ARG);
	CHECK(!owner.bits);
	struct ch_heap *heap;
	struct ch_config config;
	ch_config_init(&config);
	config.driver = CH_DRIVER_HOST;
	CHECK_EQ(ch_bdw_heap_create(&config, &heap), CH_E_ARG);
	CHECK(!heap);
	config = (struct ch_config){.size = sizeof config + 8};
	CHECK_EQ(ch_bdw_heap_create(&config, &heap), CH_E_ARG);
	config.size = 0;
	CHECK_EQ(ch_bdw_heap_create(&config, &heap), CH_E_ARG);
	CHECK(!heap);
	/* A builtin heap's owner has no anchor. */
	CHECK_EQ(ch_heap_create(NULL, &heap), CH_OK);
	struct ch_vm *vm;
	struct ch_ops ops = {.size = sizeof ops};
	CHECK_EQ(ch_vm_attach(heap, &ops, NULL, &vm), CH_OK);
	CHECK_EQ(ch_bdw_owner_create(vm, "x", (const void *)no_code, NULL, &owner, &anchor),
		 CH_E_ARG);
	CHECK(!anchor && !owner.bits);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &vm), CH_OK);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	anchor = &owner;
	CHECK_EQ(ch_bdw_owner_create(vm, "x", (const void *)no_code, NULL, &owner, &anchor),
		 CH_E_STATE);
	CHECK(!anchor && !owner.bits);
}

TEST_BDW(bdw_collection_that_cannot_run_is_busy)
{
	GC_disable();
	CHECK_EQ(ch_heap_collect(rig.heap), CH_E_BUSY);
	CHECK(strstr(ch_why(), "is disabled"));
	GC_enable();
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
}

/* The next owner lets each of the driver's queues grow once, from 16 KiB to 32 KiB. */
TEST_BDW(bdw_queue_that_grows_takes_the_place_of_the_shorter_one)
{
	enum { BLOCKS = 17000, QUEUES = 4, GROWTH = 16 << 10 };
	static const uint8_t zeros[8];
	void *code;
	new_method(&rig, 1);
	for (int i = 0; i < BLOCKS; i++)
		CHECK_EQ(ch_code_add(rig.heap, zeros, sizeof zeros, "", &code), CH_OK);
	uint64_t before = stats_of(rig.heap).metadata_bytes_now;
	new_method(&rig, 2);
	uint64_t taken = stats_of(rig.heap).metadata_bytes_now - before;
	CHECK(taken >= QUEUES * GROWTH && taken < (QUEUES + 1) * GROWTH);
}

static void *volatile anchors[1 << 13];

/* The collector's heap is full, and no object of the kind of anchors is free. */
TEST_BDW(bdw_owner_without_memory_of_the_collector_is_refused)
{
	enum ch_status status = CH_OK;
	struct ch_owner owner;
	void *anchor, **volatile all = NULL, **next;
	GC_set_warn_proc(GC_ignore_warn_proc);
	GC_set_max_heap_size(GC_get_heap_size());
	while ((next = GC_MALLOC(1024))) {
		*next = all;
		all = next;
	}
	for (unsigned i = 0; status == CH_OK && i < sizeof anchors / sizeof *anchors; i++) {
		status = ch_bdw_owner_create(rig.vm, "x", (const void *)no_code, NULL, &owner,
					     &anchor);
		anchors[i] = anchor;
	}
	CHECK_EQ(status, CH_E_MEMORY);
	CHECK(!anchor && !owner.bits);
	CHECK(strstr(ch_why(), "an owner"));
}

/* Call number `nth` to the OS or for memory fails, and so do all later calls. The creation returns
 * a status and makes no heap, and a later try succeeds. */
TEST(bdw_heap_whose_creation_fails_is_none)
{
	start_collector();
	struct ch_heap *heap = NULL;
	uint64_t nth = 1;
	for (enum ch_status status = CH_E_OS; status != CH_OK && nth < 1000; nth++) {
		ch__os_fail_at(nth, true);
		status = ch_bdw_heap_create(NULL, &heap);
		ch__os_fail_at(0, false);
		CHECK((status == CH_OK) == (heap != NULL));
	}
	CHECK(heap && nth > 5);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	struct rig rig = start_rig(0);
	run_apart(&rig, build_one, &kept[0]);
	collect(&rig);
	CHECK_EQ(stats_of(rig.heap).blocks_now, 2);
	end_rig(&rig);
}
