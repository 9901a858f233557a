/* SPDX-License-Identifier: MIT
 * lookup.c: lookups without a lock, from a reader thread and from a signal handler, while threads
 * allocate and collect. No lookup finds a wrong block. A block on the caller's own stack is always
 * found. */
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>

enum { ADDRESSES = 256, MAKERS = 2 };

static struct rig rig;
static _Atomic(uintptr_t) addresses[ADDRESSES]; /* of blocks, many already gone */
static _Atomic(bool) is_over;
static _Atomic(uint64_t) found_count, none_count, handler_runs;

/* The handler's last result, for the interrupted thread. The handler calls only the lookup. */
static struct {
	uintptr_t pc;
	struct ch_block block;
	bool is_found;
} seen;
/* In make_blocks a block's user word is even, and the next number is the branch's word. */
static uintptr_t own_pc;
static struct ch_block own_block;

static void *make_blocks(void *arg)
{
	uint64_t slot = (uintptr_t)arg;
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	while (!atomic_load(&is_over)) {
		struct ch_owner owner = rig_owner(&rig, "short life");
		for (int i = 0; i < 20; i++) {
			struct emitter e;
			struct ch_open open = {.owner = owner,
					       .hot_bytes = 16 + (uint32_t)(slot % 60),
					       .branch_room = slot % 3 ? 1 : 0,
					       .user = (void *)(2 * slot)};
			CHECK_EQ(emit_open_as(&e, &open), CH_OK);
			if (slot % 3 == 1)
				emit_jmp(&e, (void *)(2 * slot + 1));
			if (slot % 3 == 2)
				emit_attach(&e, emit_site_call(&e), CH_CALL,
					    (void *)(2 * slot + 1));
			uintptr_t at = (uintptr_t)emit_here(&e);
			emit_ret(&e);
			CHECK_EQ(emit_commit(&e), CH_OK);
			atomic_store(&addresses[slot * 7 % ADDRESSES], at);
			slot++;
		}
		CHECK_EQ(ch_owner_release(owner, slot % 2 ? CH_RELEASE_COLLECT
							  : CH_RELEASE_NOT_RUNNING),
			 CH_OK);
		if (slot % 1024 < 20)
			CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		ch_thread_poll();
	}
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

/* A found block that is still there must cover the address. */
static void judge(uintptr_t pc, struct ch_block block)
{
	struct ch_info info = {.size = sizeof info};
	if (ch_block_info(block, &info) != CH_OK)
		return;
	bool in_hot = pc - (uintptr_t)info.exec < info.hot_bytes;
	bool in_cold = info.cold_exec && pc - (uintptr_t)info.cold_exec < info.cold_bytes;
	if (!in_hot && !in_cold)
		FAIL("%p was found in a block at %p of %u bytes", (void *)pc,
		     (const void *)info.exec, info.hot_bytes);
}

/* Looks up a return address. All fields of the answer must come from a single block. */
static bool look_at_return(struct ch_heap *heap, uintptr_t pc, struct ch_block *block)
{
	struct ch_spot spot = {.size = sizeof spot};
	bool is_found = ch_code_at(heap, (const void *)pc, true, &spot);
	uintptr_t word = (uintptr_t)spot.user;
	if (is_found && (uintptr_t)spot.exec + spot.offset != pc)
		abort();
	if (spot.has_site && (uintptr_t)spot.site_user != word + 1)
		abort();
	/* Every third block has no branch; the rest end behind their branch. */
	if (is_found && word / 2 % 3 == 0 && spot.has_site)
		abort();
	*block = spot.block;
	return is_found;
}

static void look(uint64_t i)
{
	struct ch_block block;
	uintptr_t pc = atomic_load(&addresses[i % ADDRESSES]);
	if (pc && look_at_return(rig.heap, pc, &block)) {
		judge(pc - 1, block);
		atomic_fetch_add(&found_count, 1);
	} else {
		atomic_fetch_add(&none_count, 1);
	}
	CHECK(block_at(rig.heap, (const void *)own_pc, &block));
	CHECK_EQ(block.bits, own_block.bits);
}

static void handle(int signal)
{
	(void)signal;
	struct ch_spot spot = {.size = sizeof spot};
	uint64_t run = atomic_fetch_add(&handler_runs, 1);
	seen.pc = atomic_load(&addresses[run % ADDRESSES]);
	seen.is_found = look_at_return(run % 2 ? rig.heap : NULL, seen.pc, &seen.block);
	if (!ch_code_at(rig.heap, (const void *)own_pc, false, &spot) ||
	    spot.block.bits != own_block.bits || spot.user != &own_pc)
		abort();
}

static bool enough_happened(void)
{
	return atomic_load(&found_count) > 100 && atomic_load(&none_count) > 100 &&
	       atomic_load(&handler_runs) > 10;
}

/* Runs inside own_block, so every lookup finds own_block. */
static void look_for_long(void)
{
	uint64_t end = now_ns() + (uint64_t)storm_ms() * 1000000, i = 0;
	while (now_ns() < end || !enough_happened()) {
		look(i++);
		/* If the handler runs between two loads, the loads mix two runs. */
		uint64_t run = atomic_load(&handler_runs);
		bool is_found = seen.is_found;
		uintptr_t pc = seen.pc;
		struct ch_block block = seen.block;
		if (is_found && atomic_load(&handler_runs) == run)
			judge(pc - 1, block);
		ch_thread_poll();
	}
}

static const void *make_own(const struct rig *r)
{
	struct emitter e;
	struct ch_owner owner = rig_owner(r, "reader");
	struct ch_open open = {.owner = owner, .hot_bytes = 64, .user = &own_pc};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_enter(&e);
	emit_call_c(&e, (const void *)(uintptr_t)look_for_long);
	own_pc = (uintptr_t)emit_here(&e) - 1;
	emit_leave(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	/* Once the code runs, only its frame holds the block. */
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	own_block = e.code.block;
	return e.code.exec;
}

TEST_SHARED_RIG(lookups_never_find_a_wrong_block, rig_start(8 << 20))
{
	const void *entry = make_own(&rig);
	struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
	CHECK_EQ(sigaction(SIGALRM, &action, NULL), 0);
	pthread_t makers[MAKERS];
	sigset_t block, old;
	sigemptyset(&block);
	sigaddset(&block, SIGALRM);
	/* The makers leave the signal to the main thread. */
	pthread_sigmask(SIG_BLOCK, &block, &old);
	for (uintptr_t i = 0; i < MAKERS; i++)
		CHECK_EQ(pthread_create(&makers[i], NULL, make_blocks, (void *)(i * 100)), 0);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
	setitimer(ITIMER_REAL, &often, NULL);
	code_call(entry);
	setitimer(ITIMER_REAL, &never, NULL);
	atomic_store(&is_over, true);
	ch_thread_park();
	for (int i = 0; i < MAKERS; i++)
		pthread_join(makers[i], NULL);
	ch_thread_unpark();
	printf("%llu found, %llu gone, %llu in handlers\n",
	       (unsigned long long)atomic_load(&found_count),
	       (unsigned long long)atomic_load(&none_count),
	       (unsigned long long)atomic_load(&handler_runs));
}

TEST_SHARED_RIG(every_address_of_a_page_has_its_block_or_none, rig_start(rig_page_bytes()))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block blocks[64];
	for (uint32_t i = 0; i < 64; i++) {
		struct ch_branch branch;
		blocks[i] = i % 2 ? rig_block(owner, i) : rig_jumper(owner, NULL, &branch);
	}
	const uint8_t *base = (const uint8_t *)((uintptr_t)block_info(blocks[0]).exec &
						~(rig_page_bytes() - 1));
	uint32_t covered = 0, bytes = 0;
	for (uint32_t i = 0; i < 64; i++)
		bytes += block_info(blocks[i]).hot_bytes + block_info(blocks[i]).cold_bytes;
	for (size_t at = 0; at < rig_page_bytes(); at++) {
		struct ch_block found;
		if (!block_at(rig.heap, base + at, &found))
			continue;
		judge((uintptr_t)base + at, found);
		covered++;
	}
	CHECK_EQ(covered, bytes);
}

TEST_SHARED_RIG(information_has_the_entry_of_live_code_only, rig_start(1 << 20))
{
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "owner"), 16, 0);
	emit_ret(&e);
	CHECK_EQ(block_info(e.code.block).entry, NULL);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(block_info(e.code.block).entry, e.code.exec);
	CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
	CHECK_EQ(block_info(e.code.block).entry, NULL);
}
