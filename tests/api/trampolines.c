/* SPDX-License-Identifier: MIT
 * trampolines.c: trampolines as a VM uses them: the values passed on; entering, naming, finding,
 * stepping through, staying while a call runs, collection, traps, making again; by thousands, in a
 * full pool, and beside threads that unwind. */
#define _GNU_SOURCE
#include "tests/support/describe_signal.h"
#include "tests/support/heap_rig.h"
#include "tests/support/libgcc_knows.h"
#include "tests/support/template_probe.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static struct ch_block make(struct ch_owner owner, enum ch_trampoline kind, const void *target,
			    uint64_t payload)
{
	struct ch_block block;
	CHECK_EQ(ch_trampoline_make(owner, kind, target, payload, NULL, NULL, &block), CH_OK);
	return block;
}

/* The trampoline's payload, from the register for payloads. */
static uint64_t payload_of(void)
{
	uint64_t payload;
	PROBE_READ_PAYLOAD(payload);
	return payload;
}

static uint64_t call(const void *code)
{
	return ((uint64_t(*)(void))(uintptr_t)code)();
}

static uint64_t call_owner(struct ch_owner owner)
{
	return call(*ch_owner_cell(owner));
}

/* --- values passed on --- */

TEST_RIG_BY(trampoline_passes_everything_on, rig_start(0))
{
	for (int kind = 0; kind < 2; kind++) {
		struct ch_owner owner = rig_owner(&rig, "passes");
		uint64_t payload = 0x1234567890abcdef + (uint64_t)kind;
		struct ch_block block =
			make(owner, (enum ch_trampoline)kind, (void *)probe_target, payload);
		CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
		probe_fill(payload);
		probe_enter(*ch_owner_cell(owner), 0);
		probe_check(payload, kind == CH_TRAMPOLINE_FRAMED ? PROBE_FRAMED_BYTES : 0);
	}
}

TEST_RIG_BY(trampoline_unwinds_at_every_instruction, rig_start(0))
{
	static const unsigned instructions[2] = {PROBE_FRAMED_STEPS, PROBE_TAIL_STEPS};
	/* Ordinary code lies in chunks of its own. */
	struct ch_owner other = rig_owner(&rig, "other");
	struct ch_info ordinary = block_info(rig_block(other, 5));
	for (int kind = 0; kind < 2; kind++) {
		struct ch_owner owner = rig_owner(&rig, "stepped");
		for (int i = 0; i < 3; i++) {
			struct ch_info info = block_info(
				make(owner, (enum ch_trampoline)kind, (void *)probe_target, 1));
			probe_fill(9);
			/* The literals are the last 16 used bytes of the block. */
			probe_step(info.entry, PROBE_CODE_BYTES, kind == CH_TRAMPOLINE_FRAMED);
			CHECK_EQ(probe_steps.steps, instructions[kind]);
			CHECK(probe_steps.target_steps >= PROBE_TARGET_STEPS);
			if (probe_steps.wrong)
				FAIL("unwinder: kind %d, a wrong caller at byte %lld", kind,
				     (long long)(probe_steps.wrong_pc - (uintptr_t)info.entry));
			CHECK_EQ(probe_seen_payload, 1);
		}
	}
	CHECK(libgcc_knows(ordinary.exec));
}

TEST_RIG_BY(trampoline_is_found_and_named, rig_start(0))
{
	struct ch_owner owner = rig_owner(&rig, "scm::fact");
	int user = 0;
	struct ch_block named, plain = make(owner, CH_TRAMPOLINE_FRAMED, (void *)answer_payload, 1);
	CHECK_EQ(ch_trampoline_make(owner, CH_TRAMPOLINE_TAIL, (void *)answer_payload, 2, "its own",
				    &user, &named),
		 CH_OK);
	struct ch_info info = block_info(plain), other = block_info(named);
	CHECK_STR(info.name, "scm::fact");
	CHECK_STR(other.name, "its own");
	CHECK(other.user == &user && info.user == NULL);
	CHECK(info.state == CH_BLOCK_LIVE && info.owner.bits == owner.bits && info.vm == rig.vm);
	for (uint32_t i = 0; i < info.hot_bytes; i++) {
		struct ch_block found;
		CHECK(block_at(rig.heap, info.exec + i, &found));
		CHECK_EQ(found.bits, plain.bits);
	}
	CHECK_EQ(call(info.entry), 1);
	CHECK_EQ(call(other.entry), 2);
}

TEST_RIG_BY(trampoline_refuses_what_it_must, rig_start(0))
{
	struct ch_owner owner = rig_owner(&rig, "owner"), gone = rig_owner(&rig, "gone");
	const void *target = (const void *)(uintptr_t)answer_payload;
	struct ch_block block = {77};
	CHECK_EQ(ch_owner_release(gone, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_trampoline_make(gone, CH_TRAMPOLINE_TAIL, target, 0, NULL, NULL, &block),
		 CH_E_STALE);
	CHECK_EQ(block.bits, 0);
	CHECK_EQ(ch_trampoline_make((struct ch_owner){0}, CH_TRAMPOLINE_TAIL, target, 0, NULL, NULL,
				    &block),
		 CH_E_STALE);
	CHECK_EQ(ch_trampoline_make(owner, (enum ch_trampoline)2, target, 0, NULL, NULL, &block),
		 CH_E_ARG);
	CHECK_EQ(ch_trampoline_make(owner, CH_TRAMPOLINE_TAIL, NULL, 0, NULL, NULL, &block),
		 CH_E_ARG);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	CHECK_EQ(ch_trampoline_make(owner, CH_TRAMPOLINE_TAIL, target, 0, NULL, NULL, &block),
		 CH_OK);
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	/* Pages of slots take no blocks of another size. */
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 8, .frame = 16};
	struct ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_E_ARG);
}

TEST_RIG_BY(invalidated_trampoline_gives_the_cell_back, rig_start(0))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block block = make(owner, CH_TRAMPOLINE_FRAMED, (void *)answer_payload, 6);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	CHECK_EQ(call_owner(owner), 6);
	CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
	CHECK_EQ((uint32_t)call_owner(owner), RIG_FALLBACK);
	CHECK_EQ(block_info(block).state, CH_BLOCK_NOTENTRANT);
}

/* --- death --- */

struct dying {
	const struct ch_heap *heap;
	uintptr_t hidden; /* the entry's complement: no scan takes it for an address */
	struct ch_owner owner;
	struct ch_block block;
	unsigned freed;
};

static void count_freed(void *vm_user, void *block_user)
{
	struct dying *d = block_user;
	CHECK(vm_user == block_user);
	d->freed++;
}

static struct rig start_dying(struct dying *d)
{
	struct ch_config config = rig_config(0);
	struct ch_ops ops = {.size = sizeof ops, .block_freed = count_freed};
	memset(d, 0, sizeof *d);
	return rig_create(&config, &ops, d);
}

static void make_entry(const struct rig *rig, void *arg)
{
	struct dying *d = arg;
	d->owner = rig_owner(rig, "scm::doomed");
	CHECK_EQ(ch_trampoline_make(d->owner, CH_TRAMPOLINE_FRAMED, (void *)answer_payload, 3, NULL,
				    d, &d->block),
		 CH_OK);
	CHECK_EQ(ch_owner_set_entry(d->owner, d->block), CH_OK);
	d->hidden = ~(uintptr_t)block_info(d->block).entry;
}

static void jump_to_freed(void *arg)
{
	struct dying *d = arg;
	describe_signal(d->heap, SIGTRAP);
	call((const void *)~d->hidden);
}

TEST(released_trampoline_is_withdrawn_and_poisoned)
{
	for (int how = 0; how < 2; how++) {
		struct dying d;
		char text[300];
		struct rig rig = start_dying(&d);
		struct ch_block found;
		rig_apart(&rig, make_entry, &d);
		CHECK(libgcc_knows((const uint8_t *)~d.hidden));
		CHECK(libgcc_knows((const uint8_t *)~d.hidden + 20));
		rig_collect(&rig, 4);
		CHECK(d.freed == 0 && rig_is_there(d.block)); /* the owner lives */
		CHECK_EQ(ch_owner_release(d.owner,
					  how ? CH_RELEASE_NOT_RUNNING : CH_RELEASE_COLLECT),
			 CH_OK);
		rig_collect(&rig, 2); /* the second cycle passes the quarantine */
		ch_thread_poll();
		CHECK_EQ(d.freed, 1);
		CHECK(!rig_is_there(d.block));
		CHECK(!block_at(rig.heap, (const void *)~d.hidden, &found));
		for (int i = 0; i < 44; i++)
			if (libgcc_knows((const uint8_t *)~d.hidden + (uintptr_t)i))
				FAIL("unwinder: byte %d of a freed trampoline is known", i);
		d.heap = rig.heap;
		expect_signal_text(jump_to_freed, &d, SIGTRAP, text, sizeof text);
		CHECK(strstr(text, "scm::doomed"));
		rig_end(&rig);
	}
}

/* The unwinder knows the neighbours of a freed slot, and the neighbours run. */
TEST_RIG_BY(freed_slot_serves_again_and_its_neighbours_stay, rig_start(0))
{
	enum { COUNT = 9 };
	struct ch_owner owners[COUNT];
	uintptr_t entries[COUNT];
	for (int i = 0; i < COUNT; i++) {
		owners[i] = rig_owner(&rig, "neighbour");
		entries[i] = (uintptr_t)block_info(make(owners[i], CH_TRAMPOLINE_FRAMED,
						      (void *)answer_payload, 100 + (uint64_t)i))
				     .entry;
	}
	for (int i = 0; i < COUNT; i += 3)
		CHECK_EQ(ch_owner_release(owners[i], CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_settle(&rig);
	for (int i = 0; i < COUNT; i++) {
		uintptr_t last = entries[i] + CH_ARCH_TEMPLATE_BYTES - 1;
		if (i % 3 == 0)
			continue;
		CHECK(libgcc_knows((const void *)entries[i]) && libgcc_knows((const void *)last));
		CHECK_EQ(call((const void *)entries[i]), 100 + (uint64_t)i);
	}
}

/* --- death while running --- */

struct inside {
	const struct rig *rig;
	struct ch_owner owner;
	struct ch_block block;
	bool was_there;
};

/* The VM drops a procedure, and all code, from inside the procedure's own trampoline. */
static uint64_t drop_from_inside(void)
{
	struct inside *inside = (struct inside *)(uintptr_t)payload_of();
	CHECK_EQ(ch_owner_release(inside->owner, CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_vm_discard(inside->rig->heap, NULL, NULL, NULL), CH_OK);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(ch_heap_collect(inside->rig->heap), CH_OK);
	inside->was_there = rig_is_there(inside->block);
	return 99;
}

TEST(trampoline_outlives_the_call_through_it)
{
	struct rig rig = rig_start(0);
	struct inside inside = {.rig = &rig, .owner = rig_owner(&rig, "dropped inside")};
	inside.block = make(inside.owner, CH_TRAMPOLINE_FRAMED, (void *)drop_from_inside,
			    (uintptr_t)&inside);
	CHECK_EQ(ch_owner_set_entry(inside.owner, inside.block), CH_OK);
	CHECK_EQ(call_owner(inside.owner), 99);
	CHECK(inside.was_there);
	rig_collect(&rig, 2);
	CHECK(!rig_is_there(inside.block));
	rig_end(&rig);
}

/* --- many --- */

static void use_many(const struct rig *rig, void *arg)
{
	enum { PLACES = 700, MADE = 10000 };
	struct test_random random = test_random_new();
	static struct {
		struct ch_owner owner;
		const void *entry;
		uint64_t payload;
	} all[PLACES];
	(void)arg;
	for (uint64_t made = 0; made < MADE; made++) {
		uint64_t at = test_random_below(&random, PLACES);
		if (all[at].entry) {
			CHECK_EQ(call(all[at].entry), all[at].payload);
			enum ch_release how = test_random_below(&random, 2)
						      ? CH_RELEASE_COLLECT
						      : CH_RELEASE_NOT_RUNNING;
			CHECK(libgcc_knows(all[at].entry));
			CHECK_EQ(ch_owner_release(all[at].owner, how), CH_OK);
		}
		enum ch_trampoline kind = (enum ch_trampoline)test_random_below(&random, 2);
		all[at].owner = rig_owner(rig, "one of many");
		all[at].payload = made;
		struct ch_block block = make(all[at].owner, kind, (void *)answer_payload, made);
		CHECK_EQ(ch_owner_set_entry(all[at].owner, block), CH_OK);
		all[at].entry = *ch_owner_cell(all[at].owner);
		if (made % 997 == 0) {
			CHECK_EQ(ch_heap_collect(rig->heap), CH_OK);
			rig_check(rig);
		}
	}
	for (unsigned i = 0; i < PLACES; i++) {
		if (!all[i].entry)
			continue;
		CHECK_EQ(call(all[i].entry), all[i].payload);
		CHECK_EQ(ch_owner_release(all[i].owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		all[i].entry = NULL;
	}
}

TEST_RIG_BY(ten_thousand_trampolines_come_and_go, rig_start(8 << 20))
{
	rig_apart(&rig, use_many, NULL);
	rig_collect(&rig, 3);
	CHECK_EQ(rig_stats(&rig).blocks_now, 0);
	CHECK_EQ(rig_stats(&rig).code_bytes_now, 0);
	CHECK_EQ(rig_stats(&rig).pages_now, 0);
}

/* --- a full pool --- */

struct filled {
	struct ch_owner owner;
	struct ch_block last;
	unsigned made;
};

static void fill(const struct rig *rig, void *arg)
{
	struct filled *f = arg;
	f->owner = rig_owner(rig, "filler");
	for (f->made = 0;; f->made++) {
		struct ch_block block;
		enum ch_status status =
			ch_trampoline_make(f->owner, CH_TRAMPOLINE_FRAMED, (void *)answer_payload,
					   f->made, NULL, NULL, &block);
		if (status != CH_OK) {
			CHECK_EQ(status, CH_E_FULL);
			CHECK_EQ(block.bits, 0);
			return;
		}
		CHECK(f->made < 200000);
		f->last = block;
	}
}

/* Room of slots is room for other code again. The thread ends, and gives its page back. */
static void use_ordinary(const struct rig *rig, void *arg)
{
	(void)arg;
	struct ch_owner owner = rig_owner(rig, "ordinary");
	CHECK_EQ(ch_owner_set_entry(owner, rig_block(owner, 8)), CH_OK);
	CHECK_EQ(code_call_owner(owner), 8);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	/* Slots by the same thread. An empty page of the thread would keep a chunk. */
	owner = rig_owner(rig, "slot");
	for (int i = 0; i < 100; i++)
		make(owner, CH_TRAMPOLINE_TAIL, (void *)answer_payload, 1);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
}

TEST_RIG_BY(full_pool_says_so_and_serves_again, rig_start(2 << 20))
{
	struct filled f[3];
	unsigned slot_bytes = (8 + CH_ARCH_TEMPLATE_BYTES + 7) & ~7;
	unsigned slots = (unsigned)rig_page_bytes() / slot_bytes;
	for (int round = 0; round < 3; round++) {
		rig_apart(&rig, fill, &f[round]);
		CHECK_EQ(f[round].made, slots * ((2 << 20) / rig_page_bytes()));
		CHECK_EQ(call(block_info(f[round].last).entry), f[round].made - 1);
		rig_check(&rig);
		CHECK_EQ(ch_owner_release(f[round].owner,
					  round == 1 ? CH_RELEASE_NOT_RUNNING : CH_RELEASE_COLLECT),
			 CH_OK);
		rig_collect(&rig, 3);
		CHECK_EQ(rig_stats(&rig).pages_now, 0);
		rig_apart(&rig, use_ordinary, NULL);
		rig_check(&rig);
	}
}

/* A pool of one chunk has one kind at a time. An empty page gives way, even while the thread has
 * the page open. */
TEST_RIG(slots_and_other_code_take_turns_in_one_chunk)
{
	for (int round = 0; round < 4; round++) {
		struct ch_owner owner = rig_owner(&rig, "in turn");
		if (round % 2) {
			make(owner, CH_TRAMPOLINE_TAIL, (void *)answer_payload, 1);
			struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 8};
			struct ch_code code;
			CHECK_EQ(ch_block_open(&open, &code), CH_E_FULL);
		} else {
			rig_block(owner, 1);
			struct ch_block block;
			CHECK_EQ(ch_trampoline_make(owner, CH_TRAMPOLINE_TAIL,
						    (void *)answer_payload, 1, NULL, NULL, &block),
				 CH_E_FULL);
		}
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		rig_check(&rig);
	}
}

/* --- threads --- */

struct storm {
	const struct rig *rig;
	_Atomic(bool) is_over;
	_Atomic(uint64_t) made;
	const void *entry;
};

/* Returns false if the pool is full of blocks that wait for a collection. */
static bool make_and_call(const struct rig *rig, unsigned number, struct ch_owner *owner)
{
	struct ch_block block;
	*owner = rig_owner(rig, "of a storm");
	enum ch_status status =
		ch_trampoline_make(*owner, (enum ch_trampoline)(number % 2), (void *)answer_payload,
				   number, NULL, NULL, &block);
	if (status == CH_E_FULL)
		return false;
	CHECK_EQ(status, CH_OK);
	/* Another thread collects, so the newborn block may be dead already. */
	if (ch_owner_set_entry(*owner, block) == CH_OK)
		CHECK_EQ(call_owner(*owner), number);
	return true;
}

static void *make_and_release(void *arg)
{
	struct storm *storm = arg;
	CHECK_EQ(ch_thread_attach(storm->rig->heap, NULL, NULL), CH_OK);
	while (!atomic_load(&storm->is_over)) {
		struct ch_owner owners[40];
		bool is_full = false;
		unsigned made = 0;
		while (made < 40 && !is_full) {
			is_full = !make_and_call(storm->rig, made, &owners[made]);
			made++;
		}
		for (unsigned i = 0; i < made; i++)
			CHECK_EQ(ch_owner_release(owners[i], i % 3 ? CH_RELEASE_NOT_RUNNING
								   : CH_RELEASE_COLLECT),
				 CH_OK);
		atomic_fetch_add(&storm->made, made);
		if (is_full) {
			enum ch_status status = ch_heap_collect(storm->rig->heap);
			CHECK(status == CH_OK || status == CH_E_BUSY);
		}
		ch_thread_poll();
	}
	CHECK_EQ(ch_thread_detach(storm->rig->heap), CH_OK);
	return NULL;
}

static _Unwind_Reason_Code count_frame(struct _Unwind_Context *context, void *arg)
{
	unsigned *seen = arg;
	uintptr_t ip = _Unwind_GetIP(context);
	/* The next frame is the caller of the trampoline. */
	if (*seen == 1) {
		*seen = 2;
		return _URC_END_OF_STACK;
	}
	struct storm *storm = (struct storm *)(uintptr_t)probe_args[0];
	if (ip > (uintptr_t)storm->entry && ip < (uintptr_t)storm->entry + PROBE_CODE_BYTES)
		*seen = 1;
	return _URC_NO_REASON;
}

static uint64_t walk_stack(void)
{
	unsigned seen = 0;
	_Unwind_Backtrace(count_frame, &seen);
	return seen;
}

TEST(unwinder_passes_one_trampoline_while_others_come_and_go)
{
	struct rig rig = rig_start(8 << 20);
	struct storm storm = {.rig = &rig};
	pthread_t threads[2];
	struct ch_owner owner = rig_owner(&rig, "walked");
	struct ch_block block = make(owner, CH_TRAMPOLINE_FRAMED, (void *)walk_stack, 0);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	storm.entry = *ch_owner_cell(owner);
	probe_args[0] = (uintptr_t)&storm;
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, make_and_release, &storm), 0);
	uint64_t end = now_ns() + storm_ms() * UINT64_C(1000000), cycles = 0;
	/* On a busy machine the loop goes on until enough has happened. */
	while (now_ns() < end || atomic_load(&storm.made) < 200 || cycles < 8) {
		for (int i = 0; i < 200; i++)
			if (call(storm.entry) != 2)
				FAIL("unwinder: the frame of a live trampoline is not passed");
		if (++cycles % 8 == 0) {
			enum ch_status status = ch_heap_collect(rig.heap);
			CHECK(status == CH_OK || status == CH_E_BUSY);
		}
		ch_thread_poll();
	}
	atomic_store(&storm.is_over, true);
	ch_thread_park();
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	ch_thread_unpark();
	rig_end(&rig);
}

/* --- fork --- */

static void use_after_fork(void *arg)
{
	struct rig *rig = arg;
	struct ch_owner owner = rig_owner(rig, "of a child");
	struct ch_block block = make(owner, CH_TRAMPOLINE_FRAMED, (void *)answer_payload, 55);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	CHECK_EQ(call_owner(owner), 55);
	CHECK(libgcc_knows(*ch_owner_cell(owner)));
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_check(rig);
}

/* From the fork on, parent and child have trampolines of their own. */
TEST_RIG_BY(trampolines_go_on_in_the_child_of_a_fork, rig_start(0))
{
	struct ch_owner owner = rig_owner(&rig, "before the fork");
	struct ch_block block = make(owner, CH_TRAMPOLINE_FRAMED, (void *)probe_target, 7);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	expect_signal(use_after_fork, &rig, 0);
	use_after_fork(&rig);
	probe_fill(7);
	probe_step(*ch_owner_cell(owner), PROBE_CODE_BYTES, true);
	CHECK(probe_steps.steps == PROBE_FRAMED_STEPS && probe_steps.wrong == 0);
}

/* --- sinks --- */

static unsigned lines_with(const char *path, const char *text)
{
	char line[400];
	unsigned lines = 0;
	FILE *f = fopen(path, "r");
	CHECK(f);
	while (fgets(line, sizeof line, f))
		lines += strstr(line, text) != NULL;
	fclose(f);
	return lines;
}

TEST_RIG_BY(trampoline_is_told_to_sinks_and_withdrawn, rig_start(0))
{
	const char *path;
	struct ch_owner owner = rig_owner(&rig, "scm::told file.scm:3");
	const void *entry =
		block_info(make(owner, CH_TRAMPOLINE_FRAMED, (void *)answer_payload, 1)).entry;
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_PERF_MAP), CH_OK);
	CHECK(!libgcc_knows(entry));
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_PERF_MAP | CH_SINK_UNWIND), CH_OK);
	CHECK(libgcc_knows(entry));
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	CHECK(ch_sink_status(rig.heap, CH_SINK_PERF_MAP, &path, NULL));
	CHECK_EQ(lines_with(path, "scm::told file.scm:3"), 1);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_settle(&rig);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	CHECK_EQ(lines_with(path, "scm::told"), 0);
	unlink(path);
}
