/* SPDX-License-Identifier: MIT
 * states.c: the legal moves of states (I20). A child tries every move that no table has, and must
 * die with a line that names the record and both states. Every move of a table is tried without its
 * conditions, and is made by a scripted life. */
#include "codeheap/graph/block.h"
#include "codeheap/base/park.h"
#include "codeheap/collect/collect.h"
#include "pages/granules.h"
#include "pages/inner.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

_Static_assert(CH_CHECK >= 2, "tests link checked objects");

static struct ch__moves *const tables[] = {
	&ch__page_moves, &ch__block_moves,      &ch__owner_moves,  &ch__branch_moves,
	&ch__gate_moves, &ch__assumption_moves, &ch__thread_moves,
};
enum { TABLES = sizeof tables / sizeof tables[0], EVERYTHING = 63 };

static const struct ch__move *row_of(const struct ch__moves *table, uint32_t from, uint32_t to)
{
	for (const struct ch__move *row = table->rows; row->by; row++)
		if (row->from == from && row->to == to)
			return row;
	return NULL;
}

/* Returns a function that may move to the state, from any state. */
static const char *maker_of(const struct ch__moves *table, uint32_t to)
{
	for (const struct ch__move *row = table->rows; row->by; row++)
		if (row->to == to)
			return row->by;
	return table->rows->by;
}

/* --- the tables --- */

struct attempt {
	struct ch__moves *table;
	uint32_t from, to, held;
	const char *by;
};

static void try_move(void *arg)
{
	const struct attempt *a = arg;
	ch__move(a->table, 7, 3, a->from, a->to, a->held, a->by);
}

static void expect_refusal(struct attempt *a, const char *why)
{
	char text[400] = "", wanted[200];
	expect_signal_text(try_move, a, SIGABRT, text, sizeof text);
	snprintf(wanted, sizeof wanted,
		 "broken invariant: %s 7.3 may not move from %s to %s%s (%s)", a->table->noun,
		 a->table->states[a->from], a->table->states[a->to], why, a->by);
	if (!strstr(text, wanted))
		FAIL("wanted \"%s\", got \"%s\"", wanted, text);
}

static void move_to_nowhere(void *to)
{
	ch__move(&ch__block_moves, 7, 3, CH_BLOCK_FREE, *(uint32_t *)to, EVERYTHING, "nobody");
}

TEST(move_to_a_state_without_a_name_says_so)
{
	uint32_t beyond[] = {CH_BLOCK_DEAD + 1, CH__MOVE_STATES};
	for (unsigned i = 0; i < 2; i++) {
		char text[400] = "";
		expect_signal_text(move_to_nowhere, &beyond[i], SIGABRT, text, sizeof text);
		CHECK(strstr(text, "may not move from FREE to no state (nobody)"));
	}
}

TEST(move_that_no_table_has_dies_and_says_which)
{
	int tried = 0;
	for (int t = 0; t < TABLES; t++)
		for (uint32_t from = 0; tables[t]->states[from]; from++)
			for (uint32_t to = 0; tables[t]->states[to]; to++) {
				if (row_of(tables[t], from, to))
					continue;
				struct attempt a = {tables[t], from, to, EVERYTHING,
						    maker_of(tables[t], to)};
				expect_refusal(&a, "");
				tried++;
			}
	CHECK(tried > 40);
}

TEST(move_by_another_function_dies_and_says_so)
{
	for (int t = 0; t < TABLES; t++)
		for (const struct ch__move *row = tables[t]->rows; row->by; row++) {
			struct attempt a = {tables[t], row->from, row->to, EVERYTHING, "somebody"};
			if (row_of(tables[t], row->from, row->to) == row)
				expect_refusal(&a, ": not by this function");
		}
}

TEST(move_without_what_it_asks_for_dies_and_says_what)
{
	static const struct {
		uint32_t bit;
		const char *why;
	} parts[] = {
		{CH__IN_REGION, " outside a region"},
		{CH__UNDER_HEAP, " without the heap lock"},
		{CH__UNDER_REGISTRY, " without the registry lock"},
		{CH__UNDER_PAGES, " without the pages lock"},
		{CH__UNDER_BUSY, " without the page's busy"},
		{CH__UNDER_OWNER, " without the owner's busy"},
	};
	for (int t = 0; t < TABLES; t++)
		for (const struct ch__move *row = tables[t]->rows; row->by; row++)
			for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
				struct attempt a = {tables[t], row->from, row->to,
						    EVERYTHING & ~parts[p].bit, row->by};
				if (row->held & parts[p].bit)
					expect_refusal(&a, parts[p].why);
			}
}

/* A table must not allow a move twice for the same function, nor a move to the same state. */
TEST(tables_have_each_move_of_a_function_once)
{
	for (int t = 0; t < TABLES; t++) {
		uint32_t rows = 0;
		for (const struct ch__move *row = tables[t]->rows; row->by; row++, rows++) {
			CHECK(row->from != row->to && tables[t]->states[row->from] &&
			      tables[t]->states[row->to]);
			for (const struct ch__move *other = row + 1; other->by; other++)
				CHECK(other->from != row->from || other->to != row->to ||
				      strcmp(other->by, row->by) != 0);
		}
		CHECK(rows > 0 && rows < CH__MOVE_ROWS);
	}
}

/* --- a real block in each of its states --- */

struct subject {
	struct rig rig;
	struct ch_heap *heap;
	uint32_t index, to;
	const char *by;
};

static uint32_t index_of(struct ch_block block)
{
	return ch__handle_index(block.bits);
}

/* Makes a block in the given state, by the steps of a block's life. */
static uint32_t block_in(struct rig *rig, enum ch_block_state state)
{
	struct ch_owner owner = rig_owner(rig, "owner");
	struct ch_block block;
	if (state == CH_BLOCK_OPEN) {
		struct emitter e;
		emit_open(&e, owner, 16, 0);
		return index_of(e.code.block);
	}
	block = rig_block(owner, 1);
	if (state == CH_BLOCK_NOTENTRANT)
		CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
	if (state == CH_BLOCK_DEAD) {
		/* A branch leads to the block: the place waits for a core sync. */
		struct ch_branch branch;
		rig_jumper(rig_owner(rig, "source"), NULL, &branch);
		CHECK_EQ(ch_branch_link(branch, block), CH_OK);
	}
	if (state == CH_BLOCK_DEAD || state == CH_BLOCK_FREE)
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	if (state == CH_BLOCK_FREE)
		rig_settle(rig);
	return index_of(block);
}

static void put_block(void *arg)
{
	struct subject *s = arg;
	struct ch__owner *owner = ch__owner_at(s->heap, ch__block_at(s->heap, s->index)->owner);
	ch__heap_lock(s->heap);
	ch__region_enter(ch__thread_or_guest(s->heap));
	ch__owner_lock(owner);
	ch__block_set_state(s->heap, ch__block_at(s->heap, s->index), s->index,
			    (enum ch_block_state)s->to, CH__CAUSE_NONE, s->by);
}

TEST(block_put_in_a_state_that_its_own_does_not_lead_to_dies_and_is_named)
{
	for (int from = CH_BLOCK_FREE; from <= CH_BLOCK_DEAD; from++) {
		struct subject s = {.rig = rig_start(1 << 20)};
		s.heap = s.rig.heap;
		s.index = block_in(&s.rig, (enum ch_block_state)from);
		const struct ch__block *block = ch__block_at(s.heap, s.index);
		CHECK_EQ(ch__block_state(block), from);
		for (uint32_t to = CH_BLOCK_FREE; to <= CH_BLOCK_DEAD; to++) {
			char text[400] = "", wanted[100];
			if (row_of(&ch__block_moves, (uint32_t)from, to))
				continue;
			s.to = to;
			s.by = maker_of(&ch__block_moves, to);
			snprintf(wanted, sizeof wanted, "block %u.%u may not move from %s to %s",
				 s.index, block->generation, ch__block_moves.states[from],
				 ch__block_moves.states[to]);
			expect_signal_text(put_block, &s, SIGABRT, text, sizeof text);
			if (!strstr(text, wanted))
				FAIL("wanted \"%s\", got \"%s\"", wanted, text);
		}
		/* An OPEN block goes with the heap. */
		CHECK_EQ(ch_vm_detach(s.rig.vm), CH_OK);
	}
}

/* --- a life with every legal move --- */

static bool was_made(const struct ch__moves *table, const char *by, uint32_t from, uint32_t to)
{
	for (uint32_t i = 0; table->rows[i].by; i++)
		if (table->rows[i].from == from && table->rows[i].to == to &&
		    strcmp(table->rows[i].by, by) == 0)
			return atomic_load(&table->made) >> i & 1;
	FAIL("%s has no such move of %s", table->noun, by);
}

static void wait_until_made(const struct ch__moves *table, const char *by, uint32_t from,
			    uint32_t to)
{
	TEST_UNTIL(was_made(table, by, from, to))
		usleep(200);
}

static void check_all_made(const struct ch__moves *table)
{
	for (uint32_t i = 0; table->rows[i].by; i++)
		if (!(atomic_load(&table->made) >> i & 1))
			FAIL("no %s moved from %s to %s by %s", table->noun,
			     table->states[table->rows[i].from], table->states[table->rows[i].to],
			     table->rows[i].by);
}

/* Reserves the rest of the page, 8 bytes at a time. Returns the offset of the first part. */
static uint32_t fill_page(struct ch__pool *pool, uint32_t page)
{
	uint32_t hot, cold, first = UINT32_MAX;
	ch__page_lock(&pool->pages[page]);
	while (ch__page_reserve(pool, page, CH__GRANULE_BYTES, 0, 0, &hot, &cold))
		first = hot < first ? hot : first;
	ch__page_unlock(&pool->pages[page]);
	return first;
}

static void give_back(struct ch__pool *pool, uint32_t page, uint32_t offset, uint32_t bytes)
{
	ch__page_lock(&pool->pages[page]);
	ch__page_give_back(pool, page, offset, bytes);
	ch__page_unlock(&pool->pages[page]);
	(void)ch__pool_note_freed(pool, page);
}

/* Pages of data go as spans of one page, from each state. */
static void live_as_data(struct ch__pool *pool)
{
	uint32_t hot, room = 1u << pool->page_log2;
	for (int i = 0; i < 3; i++) {
		uint32_t page = ch__pool_take_page(pool, CH__FRAME_DATA);
		CHECK_EQ(pool->pages[page].span_use, CH__PAGE_DATA);
		hot = i ? fill_page(pool, page) : 0;
		ch__pool_retire_page(pool, page);
		if (i == 1)
			give_back(pool, page, hot, room / 2);
		if (i)
			give_back(pool, page, i == 1 ? hot + room / 2 : hot,
				  i == 1 ? room / 2 : room);
		CHECK_EQ(pool->pages[page].state, CH__PAGE_FREE);
		CHECK_EQ(pool->pages[page].span_use, CH__SPAN_CODE);
	}
}

static void live_as_page(struct ch__pool *pool)
{
	uint32_t hot, cold, room = 1u << pool->page_log2;
	uint32_t page = ch__pool_take_page(pool, 0);
	ch__pool_retire_page(pool, page);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_FREE);
	page = ch__pool_take_page(pool, 0);
	ch__page_lock(&pool->pages[page]);
	CHECK(ch__page_reserve(pool, page, 64, 0, 0, &hot, &cold));
	ch__page_unlock(&pool->pages[page]);
	/* Bytes given back to a page in use do not move the page. */
	give_back(pool, page, hot, 64);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_OPEN);
	ch__page_lock(&pool->pages[page]);
	CHECK(ch__page_reserve(pool, page, 64, 0, 0, &hot, &cold));
	ch__page_unlock(&pool->pages[page]);
	ch__pool_retire_page(pool, page);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_PARTLY);
	CHECK_EQ(ch__pool_take_page(pool, 0), page);
	fill_page(pool, page);
	ch__pool_retire_page(pool, page);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_FULL);
	/* A few bytes came free, and are taken in need. */
	give_back(pool, page, hot, 8);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_FULL);
	CHECK_EQ(ch__pool_take_page_in_need(pool, 0, 8, 0), page);
	ch__pool_retire_page(pool, page);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_FULL);
	give_back(pool, page, hot + 8, room / 2 - 8);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_PARTLY);
	give_back(pool, page, hot + room / 2, room - room / 2);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_FREE);
	page = ch__pool_take_page(pool, 0);
	hot = fill_page(pool, page);
	ch__pool_retire_page(pool, page);
	give_back(pool, page, hot, room);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_FREE);
	/* The pages become executable again at the second try. */
	page = ch__pool_take_span(pool, 2, 0, CH__SPAN_CODE);
	ch__pool_cut_span(pool, page, 1);
	CHECK_EQ(pool->pages[page + 1].state, CH__PAGE_FREE);
	ch__pool_release_span(pool, page);
	page = ch__pool_take_span(pool, 1, 0, CH__SPAN_DATA);
	ch__os_fail_at(1, true);
	ch__pool_release_span(pool, page);
	ch__os_fail_at(0, false);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_SPAN);
	ch__pool_trim(pool);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_FREE);
	live_as_data(pool);
	ch__os_fail_at(1, false);
	CHECK_EQ(ch__pool_take_page(pool, CH__FRAME_DATA), CH__PAGE_NO_ACCESS);
	ch__os_fail_at(0, false);
	check_all_made(&ch__page_moves);
}

/* Takes and drops runs of a whole chunk, so that a trim has chunks to give up. */
static void take_and_drop_chunks(struct ch__pool *pool, bool must_fail)
{
	enum { SPANS = 3 };
	uint32_t first[SPANS], pages = CH__CHUNK_BYTES >> pool->page_log2;
	for (int i = 0; i < SPANS; i++)
		CHECK((first[i] = ch__pool_take_span(pool, pages, 0, CH__SPAN_CODE)) !=
		      CH__PAGE_NONE);
	for (int i = 0; i < SPANS; i++)
		ch__pool_release_span(pool, first[i]);
	ch__os_fail_at(must_fail ? 1 : 0, true);
	ch__pool_trim(pool);
	ch__os_fail_at(0, false);
}

static uint32_t lingering(const struct ch__pool *pool)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < pool->chunk_count; i++)
		count += pool->inner->chunks[i].lingers;
	return count;
}

static void *sleep_attached(void *arg)
{
	const struct rig *rig = arg;
	CHECK_EQ(ch_thread_attach(rig->heap, NULL, NULL), CH_OK);
	for (;;)
		pause();
}

/* The child of a fork drops the parent's other threads, and the chunks that linger. The record of
 * the other thread is RUNNING first, then SIGNALLED. */
static void live_as_child(struct rig *rig)
{
	struct ch__thread *self = ch__thread_self(rig->heap), *other = NULL;
	pthread_t sleeper;
	CHECK_EQ(pthread_create(&sleeper, NULL, sleep_attached, rig), 0);
	while (!other)
		for (struct ch__thread *t = rig->heap->threads; t; t = t->next)
			if (t != self && atomic_load(&t->is_attached))
				other = t;
	static const enum ch__thread_state states[] = {CH__RUNNING, CH__SIGNALLED};
	for (int i = 0; i < 2; i++) {
		atomic_store(&other->state, states[i]);
		pid_t pid = fork();
		if (pid == 0)
			_exit(!was_made(&ch__thread_moves, "drop_other_threads", states[i],
					CH__PARKED) ||
			      lingering(rig->heap->pool));
		expect_exit(pid, 0);
	}
	/* Notes the children's moves, for the sum at the end. */
	for (uint32_t i = 0; ch__thread_moves.rows[i].by; i++)
		if (strcmp(ch__thread_moves.rows[i].by, "drop_other_threads") == 0)
			atomic_fetch_or(&ch__thread_moves.made, 1u << i);
	atomic_store(&other->state, CH__PARKED);
}

TEST(each_legal_move_of_pages_and_chunks_is_made)
{
	unsetenv("CODEHEAP_WX"); /* private views would keep the chunks in a child */
	struct rig rig = rig_start(16 << 20);
	struct ch__pool *pool = rig.heap->pool;
	take_and_drop_chunks(pool, false);
	CHECK_EQ(lingering(pool), 0);
	take_and_drop_chunks(pool, true);
	uint32_t refused = lingering(pool);
	CHECK(refused > 0);
	/* The chunks linger: taken again, and then given up for good. */
	take_and_drop_chunks(pool, false);
	CHECK_EQ(lingering(pool), 0);
	take_and_drop_chunks(pool, true);
	CHECK_EQ(lingering(pool), refused);
	ch__pool_trim(pool);
	CHECK_EQ(lingering(pool), 0);
	take_and_drop_chunks(pool, true);
	CHECK_EQ(lingering(pool), refused);
	live_as_page(pool);
	live_as_child(&rig);
	rig_check(&rig);
}

/* --- blocks, owners, branches, gates, assumptions --- */

struct race {
	struct rig *rig;
	struct ch_owner owner;
	enum ch_status status;
};

static void *open_late(void *arg)
{
	struct race *race = arg;
	CHECK_EQ(ch_thread_attach(race->rig->heap, NULL, NULL), CH_OK);
	struct ch_open open = {.size = sizeof open, .owner = race->owner, .hot_bytes = 16};
	struct ch_code code;
	race->status = ch_block_open(&open, &code);
	CHECK_EQ(ch_thread_detach(race->rig->heap), CH_OK);
	return NULL;
}

/* The owner dies while a thread that found the owner alive makes room for a block. */
static void open_for_an_owner_that_dies(struct rig *rig)
{
	struct race race = {.rig = rig, .owner = rig_owner(rig, "dies")};
	struct ch__owner *owner = ch__owner_at(rig->heap, ch__handle_index(race.owner.bits));
	uint32_t made = atomic_exchange(&ch__block_moves.made, 0);
	pthread_t thread;
	ch__owner_lock(owner);
	CHECK_EQ(pthread_create(&thread, NULL, open_late, &race), 0);
	wait_until_made(&ch__block_moves, "write_record", CH_BLOCK_FREE, CH_BLOCK_OPEN);
	uint32_t mark = atomic_exchange(&owner->mark, rig->heap->completed - 1);
	ch__owner_unlock(owner);
	join_parked(thread);
	CHECK_EQ(race.status, CH_E_STALE);
	atomic_store(&owner->mark, mark);
	atomic_fetch_or(&ch__block_moves.made, made);
}

static struct ch_block open_gated(struct ch_owner owner, enum ch_entry entry,
				  struct ch_assumption fact)
{
	struct emitter e;
	struct ch_open open = {.owner = owner, .hot_bytes = 64, .cold_bytes = 32, .entry = entry};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	const void *point = emit_point(&e);
	emit_value(&e, 1);
	const void *exit = emit_here(&e);
	emit_ret(&e);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, exit, NULL), CH_OK);
	if (fact.bits)
		CHECK_EQ(ch_block_assume(e.code.block, fact), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

static void live_as_blocks(const struct rig *rig, void *arg)
{
	(void)arg;
	struct ch_assumption fact;
	struct ch_branch branch;
	struct emitter e;
	struct ch_owner owner = rig_owner(rig, "collected"), other = rig_owner(rig, "at once");
	CHECK_EQ(ch_assumption_create(rig->vm, &fact), CH_OK);
	struct ch_block target = open_gated(owner, CH_ENTRY_PATCH, fact);
	open_gated(owner, CH_ENTRY_GUARD, fact);
	rig_jumper(other, NULL, &branch);
	CHECK_EQ(ch_branch_link(branch, target), CH_OK);
	emit_open(&e, owner, 16, 0);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(ch_assumption_break(fact, NULL), CH_OK);
	/* The LIVE block, the NOTENTRANT block and the block with the branch die. */
	CHECK_EQ(ch_owner_release(other, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
}

/* A host's collector did not reach an owner. */
static void drop_owner_by_host(void)
{
	struct rig rig = rig_start_host(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "unreached");
	for (int cycle = 0; cycle < 3; cycle++) {
		rig_mark(&rig, NULL);
		ch_thread_poll();
	}
	struct ch_owner_facts facts = {.size = sizeof facts};
	CHECK_EQ(ch_owner_info(owner, &facts), CH_E_STALE);
	rig_end(&rig);
}

TEST(each_legal_move_of_blocks_and_their_records_is_made)
{
	struct rig rig = rig_start(1 << 20);
	rig_apart(&rig, live_as_blocks, NULL);
	open_for_an_owner_that_dies(&rig);
	rig_collect(&rig, 4);
	rig_check(&rig);
	drop_owner_by_host();
	rig_end(&rig);
	check_all_made(&ch__block_moves);
	check_all_made(&ch__owner_moves);
	check_all_made(&ch__branch_moves);
	check_all_made(&ch__gate_moves);
	check_all_made(&ch__assumption_moves);
}

/* --- threads --- */

struct worker {
	struct rig rig;
	_Atomic(int) is_attached, may_unpark, must_end;
	pthread_t running, parked;
};

static void *run_until_told(void *arg)
{
	struct worker *w = arg;
	CHECK_EQ(ch_thread_attach(w->rig.heap, NULL, NULL), CH_OK);
	atomic_fetch_add(&w->is_attached, 1);
	while (!atomic_load(&w->must_end))
		usleep(100);
	CHECK_EQ(ch_thread_detach(w->rig.heap), CH_OK);
	return NULL;
}

static void *unpark_in_a_stop(void *arg)
{
	struct worker *w = arg;
	CHECK_EQ(ch_thread_attach(w->rig.heap, NULL, NULL), CH_OK);
	ch_thread_park();
	atomic_fetch_add(&w->is_attached, 1);
	while (!atomic_load(&w->may_unpark))
		usleep(100);
	ch_thread_unpark();
	CHECK_EQ(ch_thread_detach(w->rig.heap), CH_OK);
	return NULL;
}

/* In the stopped world the parked thread comes back, sees the stop and parks again. The thread that
 * the signal stopped does likewise. */
static void let_it_unpark(void *user, struct ch_marker *marker)
{
	struct worker *w = user;
	(void)marker;
	atomic_store(&w->may_unpark, 1);
	wait_until_made(&ch__thread_moves, "run_parked", CH__RUNNING, CH__PARKED);
	wait_until_made(&ch__thread_moves, "run_signalled", CH__RUNNING, CH__SIGNALLED);
}

TEST(each_legal_move_of_threads_is_made)
{
	struct worker w = {.must_end = 0};
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops ops = {.size = sizeof ops, .roots = let_it_unpark};
	config.stop_signal = SIGUSR1;
	w.rig = rig_create(&config, &ops, &w);
	CHECK_EQ(pthread_create(&w.running, NULL, run_until_told, &w), 0);
	CHECK_EQ(pthread_create(&w.parked, NULL, unpark_in_a_stop, &w), 0);
	while (atomic_load(&w.is_attached) < 2)
		usleep(100);
	CHECK_EQ(ch_heap_collect(w.rig.heap), CH_OK);
	atomic_store(&w.must_end, 1);
	ch_thread_park();
	CHECK_EQ(pthread_join(w.running, NULL), 0);
	CHECK_EQ(pthread_join(w.parked, NULL), 0);
	ch_thread_unpark();
	for (uint32_t i = 0; ch__thread_moves.rows[i].by; i++) {
		const struct ch__move *row = &ch__thread_moves.rows[i];
		/* A case above makes fork's move; tests/bdw/stacks.c makes the Boehm driver's. */
		if (strcmp(row->by, "drop_other_threads") == 0 ||
		    strcmp(row->by, "stop_with") == 0 || strcmp(row->by, "publish_collector") == 0)
			continue;
		if (!was_made(&ch__thread_moves, row->by, row->from, row->to))
			FAIL("no thread moved from %s to %s by %s",
			     ch__thread_moves.states[row->from], ch__thread_moves.states[row->to],
			     row->by);
	}
	rig_end(&w.rig);
}

/* --- between two stores of a release --- */

struct half_done {
	struct ch_owner owner;
	struct ch_block block;
};

static void release_half(const struct rig *rig, void *arg)
{
	struct half_done *h = arg;
	h->owner = rig_owner(rig, "half released");
	h->block = rig_block(h->owner, 42);
	CHECK_EQ(ch_owner_set_entry(h->owner, h->block), CH_OK);
	struct ch__owner *owner = ch__owner_at(rig->heap, ch__handle_index(h->owner.bits));
	/* ch_owner_release stops here, in no region. */
	CHECK_EQ(atomic_fetch_or(&owner->generation, CH__LIFE_RELEASING) & CH__LIFE,
		 CH__LIFE_IN_USE);
}

static void call_and_end_release(const struct rig *rig, void *arg)
{
	struct half_done *h = arg;
	struct ch__owner *owner = ch__owner_at(rig->heap, ch__handle_index(h->owner.bits));
	CHECK_EQ(code_call_owner(h->owner), 42);
	atomic_store(&owner->cell, owner->fallback);
	atomic_fetch_xor(&owner->generation, CH__LIFE_RELEASING | CH__LIFE_RELEASED);
}

static void collect_by_host(const struct rig *rig, void *owner)
{
	rig_mark(rig, owner);
	ch__sweep_steps(rig->heap, UINT32_MAX);
}

static void check_half_release(enum ch_driver driver)
{
	struct ch_config config = rig_config(1 << 20);
	struct half_done h;
	config.driver = driver;
	struct rig rig = rig_create(&config, NULL, NULL);
	rig_apart(&rig, release_half, &h);
	for (int cycle = 0; cycle < 6; cycle++) {
		if (driver == CH_DRIVER_BUILTIN)
			rig_collect(&rig, 1);
		else
			rig_alone(&rig, collect_by_host, &h.owner);
		if (cycle == 2) {
			if (!rig_is_there(h.block))
				FAIL("the cell of an owner leads into a block that a cycle freed");
			rig_check(&rig);
			rig_apart(&rig, call_and_end_release, &h);
		}
	}
	CHECK(!rig_is_there(h.block));
	rig_end(&rig);
}

TEST(release_that_is_stopped_half_way_keeps_what_its_cell_leads_to)
{
	check_half_release(CH_DRIVER_BUILTIN);
	check_half_release(CH_DRIVER_HOST);
}

/* The releasing thread does not exist in the child. */
TEST_RIG(child_of_fork_ends_a_release_that_its_parent_began)
{
	struct half_done h;
	rig_apart(&rig, release_half, &h);
	pid_t pid = fork();
	if (pid == 0) {
		struct ch_owner_facts facts = {.size = sizeof facts};
		bool is_led_back = code_call_owner(h.owner) == RIG_FALLBACK;
		rig_collect(&rig, 6);
		_exit(!is_led_back || ch_owner_info(h.owner, &facts) != CH_E_STALE);
	}
	expect_exit(pid, 0);
	rig_apart(&rig, call_and_end_release, &h);
}
