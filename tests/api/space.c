/* SPDX-License-Identifier: MIT
 * space.c: the callback space_free: which vms are told, when, how often and by which calls, and
 * what the callback may do. */
#include "os/os.h"
#include "tests/support/full_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

struct hearer {
	struct rig rig; /* the shared heap, with a vm of its own */
	_Atomic(int) told;
	bool compiles;
	struct ch_owner owner;
	uint32_t value;
};

static _Thread_local bool may_be_told;

static void hear(void *user)
{
	struct hearer *h = user;
	if (!may_be_told)
		FAIL("space_free came from another call than a poll or a collection");
	atomic_fetch_add(&h->told, 1);
	if (!h->compiles)
		return;
	/* No lock is held: the callback compiles, runs, invalidates and collects. */
	h->owner = rig_owner(&h->rig, "made in the callback");
	struct ch_block block = rig_block(h->owner, h->value);
	CHECK_EQ(ch_owner_set_entry(h->owner, block), CH_OK);
	CHECK_EQ(code_call_owner(h->owner), h->value);
	CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
	CHECK_EQ(code_call_owner(h->owner), RIG_FALLBACK);
	h->compiles = false;
	CHECK_EQ(ch_heap_collect(h->rig.heap), CH_OK);
	rig_check(&h->rig);
}

static void poll_here(void)
{
	may_be_told = true;
	ch_thread_poll();
	may_be_told = false;
}

static struct ch_heap *heap_of_hearers(struct hearer *hearers, int count, size_t pages)
{
	struct ch_config config = rig_config(pages * rig_page_bytes());
	struct ch_ops ops = {.size = sizeof ops, .space_free = hear};
	struct ch_heap *heap;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_OK);
	for (int i = 0; i < count; i++) {
		hearers[i] = (struct hearer){.rig = {heap, NULL}, .value = 70 + (uint32_t)i};
		CHECK_EQ(ch_vm_attach(heap, &ops, &hearers[i], &hearers[i].rig.vm), CH_OK);
	}
	return heap;
}

static void end_hearers(struct hearer *hearers, int count, struct ch_heap *heap)
{
	rig_check(&hearers[0].rig);
	for (int i = 0; i < count; i++)
		CHECK_EQ(ch_vm_detach(hearers[i].rig.vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

TEST(each_waiting_vm_is_told_of_space_once_and_the_others_are_not)
{
	enum { VMS = 3, WAITING = 2 };
	struct hearer hearers[VMS];
	struct ch_heap *heap = heap_of_hearers(hearers, VMS, 2);
	struct filled f = fill_pool(&hearers[0].rig, 2, 60);
	/* The first vm has several failed opens, the second vm a single failed open. */
	for (int i = 0; i < 5; i++)
		CHECK_EQ(try_open(f.owners[0], 60, 0), CH_E_FULL);
	struct ch_owner other = rig_owner(&hearers[1].rig, "of the second");
	CHECK_EQ(try_open(other, 60, 0), CH_E_FULL);
	poll_here();
	for (int i = 0; i < VMS; i++)
		CHECK_EQ(hearers[i].told, 0);
	/* A release and an invalidation tell nobody, though space came. */
	for (uint32_t i = 1; i < f.count / 2; i++)
		CHECK_EQ(ch_owner_release(f.owners[i], CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_blocks_invalidate(&f.blocks[0], 1, NULL), CH_OK);
	for (int i = 0; i < VMS; i++)
		CHECK_EQ(hearers[i].told, 0);
	for (int i = 0; i < 3; i++)
		poll_here();
	for (int i = 0; i < VMS; i++)
		CHECK_EQ(hearers[i].told, i < WAITING);
	/* The promised space is there. */
	CHECK_EQ(try_open(other, 60, 0), CH_OK);
	CHECK_EQ(try_open(f.owners[0], 60, 0), CH_OK);
	forget(&f);
	end_hearers(hearers, VMS, heap);
}

static struct hearer *leaver;
static void leave_heap(void *user)
{
	leaver = user;
	CHECK_EQ(ch_thread_detach(leaver->rig.heap), CH_OK);
	leaver->told++;
}

/* Those that a poll tells behind such a vm are told by the next poll. */
TEST(vm_is_told_of_space_though_the_callback_of_another_took_the_thread_out_of_the_heap)
{
	enum { VMS = 3 };
	struct ch_ops ops = {.size = sizeof ops, .space_free = leave_heap};
	struct hearer h, leavers[VMS];
	struct ch_heap *heap = heap_of_hearers(&h, 1, 2);
	struct filled f = fill_pool(&h.rig, 2, 60);
	CHECK_EQ(try_open(f.owners[0], 60, 0), CH_E_FULL);
	for (int i = 0; i < VMS; i++) {
		leavers[i] = (struct hearer){.rig = {heap, NULL}};
		CHECK_EQ(ch_vm_attach(heap, &ops, &leavers[i], &leavers[i].rig.vm), CH_OK);
		CHECK_EQ(try_open(rig_owner(&leavers[i].rig, "full"), 60, 0), CH_E_FULL);
	}
	CHECK_EQ(ch_owner_release(f.owners[1], CH_RELEASE_NOT_RUNNING), CH_OK);
	for (int polls = 0; polls < 2 * VMS; polls++) {
		poll_here();
		if (leaver)
			CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_OK);
		leaver = NULL;
	}
	CHECK_EQ(h.told, 1);
	for (int i = 0; i < VMS; i++) {
		CHECK_EQ(leavers[i].told, 1);
		CHECK_EQ(ch_vm_detach(leavers[i].rig.vm), CH_OK);
	}
	forget(&f);
	end_hearers(&h, 1, heap);
}

/* The records of vms are used again, after others. */
TEST(vm_in_the_record_of_one_that_waited_for_space_is_not_told_of_it)
{
	enum { RECORDS_MOST = 1000 };
	struct hearer h, later = {.told = 0};
	struct ch_ops ops = {.size = sizeof ops, .space_free = hear};
	struct ch_heap *heap = heap_of_hearers(&h, 1, 2);
	struct filled f = fill_pool(&h.rig, 2, 60);
	struct ch_vm *waits, *vm = NULL;
	CHECK_EQ(ch_vm_attach(heap, &ops, &later, &waits), CH_OK);
	struct ch_owner owner = rig_owner(&(struct rig){heap, waits}, "of a vm that goes");
	CHECK_EQ(try_open(owner, 60, 0), CH_E_FULL);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_vm_detach(waits), CH_OK);
	for (int i = 0; vm != waits; i++) {
		CHECK(i < RECORDS_MOST);
		CHECK_EQ(ch_vm_attach(heap, &ops, &later, &vm), CH_OK);
		if (vm != waits)
			CHECK_EQ(ch_vm_detach(vm), CH_OK);
	}
	CHECK_EQ(ch_owner_release(f.owners[1], CH_RELEASE_NOT_RUNNING), CH_OK);
	may_be_told = true;
	rig_settle(&h.rig);
	poll_here();
	CHECK(h.told == 1 && later.told == 0);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	forget(&f);
	end_hearers(&h, 1, heap);
}

/* Memory for records and a mapping may come free, too; memory for the pool may not. */
static void lack_mappings(enum ch_kind kind, uint32_t flags)
{
	struct hearer h;
	struct ch_heap *heap = heap_of_hearers(&h, 1, 1024); /* chunks of data, too */
	struct ch_open open = {.size = sizeof open,
			       .owner = rig_owner(&h.rig, "lent"),
			       .hot_bytes = 100,
			       .kind = kind,
			       .flags = flags};
	struct ch_code code;
	enum ch_status status = CH_E_OS;
	int lacking = 0;
	for (uint64_t n = 1; status != CH_OK; n++) {
		struct ch_owner owner = rig_owner(&h.rig, "dies");
		CHECK_EQ(ch_owner_set_entry(owner, rig_block(owner, 1)), CH_OK);
		ch__os_fail_at(n, true);
		status = ch_block_open(&open, &code);
		ch__os_fail_at(0, false);
		lacking += status == CH_E_OS && strstr(ch_why(), "gives no page");
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		may_be_told = true;
		CHECK_EQ(ch_heap_collect(heap), CH_OK);
		may_be_told = false;
		poll_here();
		CHECK(atomic_load(&h.told) >= lacking);
	}
	CHECK(lacking > 0);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
	CHECK_EQ(ch_owner_release(open.owner, CH_RELEASE_COLLECT), CH_OK);
	end_hearers(&h, 1, heap);
}

TEST(vm_whose_open_lacked_a_mapping_is_told_of_space_too)
{
	lack_mappings(CH_KIND_CODE, CH_OPEN_IN_PLACE);
	lack_mappings(CH_KIND_DATA, 0);
	lack_mappings(CH_KIND_RODATA, 0);
}

TEST(space_free_holds_no_lock_and_may_compile_and_collect)
{
	for (int by_collection = 0; by_collection < 2; by_collection++) {
		struct hearer h;
		struct ch_heap *heap = heap_of_hearers(&h, 1, 2);
		struct filled f = fill_pool(&h.rig, 2, 60);
		h.compiles = true;
		for (uint32_t i = 0; i < f.count; i++)
			CHECK_EQ(ch_owner_release(f.owners[i], by_collection
								       ? CH_RELEASE_COLLECT
								       : CH_RELEASE_NOT_RUNNING),
				 CH_OK);
		may_be_told = true;
		if (by_collection)
			CHECK_EQ(ch_heap_collect(heap), CH_OK);
		else
			ch_thread_poll();
		may_be_told = false;
		CHECK_EQ(h.told, 1);
		CHECK_EQ(code_call_owner(h.owner), RIG_FALLBACK);
		forget(&f);
		end_hearers(&h, 1, heap);
	}
}

/* An open failed, then some room came, then a larger open failed. space_free still comes. */
TEST(word_of_space_for_a_small_block_is_not_lost_to_a_large_one)
{
	struct hearer h;
	struct ch_heap *heap = heap_of_hearers(&h, 1, 2);
	struct filled f = fill_pool(&h.rig, 2, 60);
	CHECK_EQ(try_open(f.owners[0], 60, 0), CH_E_FULL);
	CHECK_EQ(ch_owner_release(f.owners[1], CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(try_open(f.owners[0], (uint32_t)rig_page_bytes() / 2, 0), CH_E_FULL);
	poll_here();
	if (h.told != 1)
		FAIL("space_free: an open that failed later took the word from an earlier one");
	CHECK_EQ(try_open(f.owners[0], 60, 0), CH_OK);
	forget(&f);
	end_hearers(&h, 1, heap);
}

/* Room comes without a death: by the unused bytes of a commit, and by the empty page of a leaving
 * thread. */
TEST(room_that_a_commit_gives_back_is_told)
{
	struct hearer h;
	struct ch_heap *heap = heap_of_hearers(&h, 1, 1);
	struct emitter e;
	struct ch_owner owner = rig_owner(&h.rig, "all of it");
	emit_open(&e, owner, (uint32_t)rig_page_bytes() - HEAD_BYTES, 0);
	CHECK_EQ(try_open(owner, 600, 0), CH_E_FULL);
	poll_here();
	CHECK_EQ(h.told, 0);
	emit_answer(&e, 3);
	CHECK_EQ(emit_commit(&e), CH_OK);
	poll_here();
	if (h.told != 1)
		FAIL("space_free: not told of what a commit gave back");
	CHECK_EQ(try_open(owner, 600, 0), CH_OK);
	end_hearers(&h, 1, heap);
}

struct leaver {
	const struct rig *rig;
	pthread_barrier_t barrier;
};

static void *open_page_and_leave(void *arg)
{
	struct leaver *l = arg;
	CHECK_EQ(ch_thread_attach(l->rig->heap, NULL, NULL), CH_OK);
	CHECK_EQ(try_open(rig_owner(l->rig, "leaver"), 16, 0), CH_OK);
	pthread_barrier_wait(&l->barrier);
	ch_thread_park();
	pthread_barrier_wait(&l->barrier);
	ch_thread_unpark();
	CHECK_EQ(ch_thread_detach(l->rig->heap), CH_OK);
	return NULL;
}

TEST(page_of_a_thread_that_leaves_is_told_as_space)
{
	struct hearer h;
	struct ch_heap *heap = heap_of_hearers(&h, 1, 2);
	struct leaver l = {.rig = &h.rig};
	pthread_t thread;
	CHECK_EQ(pthread_barrier_init(&l.barrier, NULL, 2), 0);
	CHECK_EQ(pthread_create(&thread, NULL, open_page_and_leave, &l), 0);
	pthread_barrier_wait(&l.barrier);
	struct ch_owner owner = rig_owner(&h.rig, "two pages");
	uint32_t both = 2 * (uint32_t)rig_page_bytes() - HEAD_BYTES;
	CHECK_EQ(try_open(owner, both, CH_OPEN_MAY_COLLECT), CH_E_FULL);
	poll_here();
	CHECK_EQ(h.told, 0);
	ch_thread_park();
	pthread_barrier_wait(&l.barrier);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	ch_thread_unpark();
	poll_here();
	if (h.told != 1)
		FAIL("space_free: not told of a page that a thread left");
	CHECK_EQ(try_open(owner, both, 0), CH_OK);
	end_hearers(&h, 1, heap);
}

struct nester {
	struct rig rig;
	struct filled f;
	uint32_t released, depth, most;
};

static void release_one(struct nester *n)
{
	if (n->released + 1 < n->f.count)
		CHECK_EQ(ch_owner_release(n->f.owners[++n->released], CH_RELEASE_NOT_RUNNING),
			 CH_OK);
}

/* Fills the room that came, and makes room: the next word is due before this callback ends. */
static void fill_and_release(void *user)
{
	struct nester *n = user;
	struct ch_open open = {.owner = n->f.owners[0], .hot_bytes = n->f.hot_bytes};
	struct emitter e;
	n->most = ++n->depth > n->most ? n->depth : n->most;
	while (emit_open_as(&e, &open) == CH_OK) {
		emit_answer(&e, 1);
		e.at = open.hot_bytes;
		CHECK_EQ(emit_commit(&e), CH_OK);
	}
	release_one(n);
	if (n->released % 2)
		ch_thread_poll();
	else
		CHECK_EQ(ch_heap_collect(n->rig.heap), CH_OK);
	n->depth--;
}

TEST(space_free_that_opens_and_polls_goes_no_deeper_each_time)
{
	struct ch_config config = rig_config(2 * rig_page_bytes());
	struct ch_ops ops = {.size = sizeof ops, .space_free = fill_and_release};
	struct nester n = {.released = 0};
	CHECK_EQ(ch_heap_create(&config, &n.rig.heap), CH_OK);
	CHECK_EQ(ch_vm_attach(n.rig.heap, &ops, &n, &n.rig.vm), CH_OK);
	n.f = fill_pool(&n.rig, 2, 60);
	CHECK_EQ(try_open(n.f.owners[0], 60, 0), CH_E_FULL);
	release_one(&n);
	while (n.released + 1 < n.f.count)
		ch_thread_poll();
	CHECK(n.most > 1 && n.most <= 64);
	forget(&n.f);
	rig_end(&n.rig);
}
