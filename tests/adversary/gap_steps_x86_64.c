/* SPDX-License-Identifier: MIT
 * gap_steps_x86_64.c: a call stands still between two of its steps, which take different locks or
 * none, while other threads make the calls that the gap lets in. The call is made with the trap
 * flag set, and stands at the first instruction where the scene's question says so. */
#define _GNU_SOURCE
#include "codeheap/events/events.h"
#include "codeheap/graph/block.h"
#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/names.h"
#include "codeheap/life/life.h"
#include "pages/granules.h"
#include "pages/inner.h"
#include "sinks/sinks.h"
#include "tests/support/heap_rig.h"
#include "tests/support/trap_flag_x86_64.h"
#include "tests/support/unwind_rig.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

struct play {
	struct rig rig;
	bool (*is_here)(struct play *); /* asked before each instruction of the call */
	void (*call)(struct play *);
	enum ch_status status;                 /* of the call */
	_Atomic(int) is_there, may_go, is_over; /* the call stands; may go on; has returned */
	/* A page */
	struct ch_owner filler, owner;
	struct ch_open open;
	struct ch_code code;
	bool fails, took_records, took_place;
	_Atomic(int) may_open;
	struct ch_code code_of_other;
	enum ch_status status_of_other;
	/* A page that is let go */
	bool had_records;
	unsigned looks;
	/* A look-up */
	const void *pc;
	unsigned steps_as_reader;
	/* A fact that breaks */
	struct ch_assumption fact;
	bool commits, was_inside;
	unsigned regions, steps, wanted;
	_Atomic(int) is_broken;
	/* Data that loses its last user */
	struct ch_owner user;
	struct ch_code both[2]; /* the user and its data */
	/* A snapshot */
	struct ch_stats stats;
};

static struct play *stepped;

static void on_trap(int signal, siginfo_t *info, void *context)
{
	int error = errno;
	struct play *p = stepped;
	ucontext_t *at = context;
	(void)signal, (void)info;
	if (!atomic_load(&p->is_there) && p->is_here(p)) {
		atomic_store(&p->is_there, 1);
		TEST_UNTIL(atomic_load(&p->may_go))
			usleep(100);
		at->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)TRAP_FLAG;
	}
	errno = error;
}

static void *make_call(void *arg)
{
	struct play *p = arg;
	CHECK_EQ(ch_thread_attach(p->rig.heap, NULL, NULL), CH_OK);
	trap_flag_set();
	p->call(p);
	trap_flag_clear();
	atomic_store(&p->is_over, 1);
	CHECK_EQ(ch_thread_detach(p->rig.heap), CH_OK);
	return NULL;
}

/* Returns when the call stands, or has returned. */
static pthread_t start_call(struct play *p)
{
	struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
	pthread_t thread;
	stepped = p;
	atomic_store(&p->is_there, 0);
	atomic_store(&p->may_go, 0);
	atomic_store(&p->is_over, 0);
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	CHECK_EQ(pthread_create(&thread, NULL, make_call, p), 0);
	TEST_UNTIL(atomic_load(&p->is_there) || atomic_load(&p->is_over))
		usleep(100);
	return thread;
}

/* --- an open page that no unwinder knows --- */

static bool has_open_page(const struct play *p)
{
	const struct ch__pool *pool = p->rig.heap->pool;
	for (uint32_t i = 0; i < pool->page_count; i++)
		if (atomic_load(&pool->pages[i].state) == CH__PAGE_OPEN)
			return true;
	return false;
}

/* The open found no page for itself, and has not looked at the pages of others. */
static bool found_no_page(struct play *p)
{
	struct ch_heap *heap = p->rig.heap;
	bool has_records = atomic_load(&heap->records.word) != CH__LOCK_FREE;
	if (!atomic_load(&heap->opens_in_need))
		return false;
	if (has_records && p->fails && has_open_page(p))
		ch__os_fail_at(1, true);
	p->took_records = p->took_records || has_records;
	/* A page that cannot be told goes back after the records are let go. */
	return p->took_records && !has_records && !(p->fails && has_open_page(p)) &&
	       atomic_load(&heap->pool->inner->lock.word) == CH__LOCK_FREE;
}

static void open_block(struct play *p)
{
	p->status = ch_block_open(&p->open, &p->code);
}

static void *open_other(void *arg)
{
	struct play *p = arg;
	struct ch_open warm = {.size = sizeof warm,
			       .owner = p->owner,
			       .hot_bytes = 16,
			       .flags = CH_OPEN_OWN_FRAMES};
	struct ch_code code;
	CHECK_EQ(ch_thread_attach(p->rig.heap, NULL, NULL), CH_OK);
	/* Then a record and a place in the list of young blocks need no memory. */
	if (p->fails) {
		CHECK_EQ(ch_block_open(&warm, &code), CH_OK);
		CHECK_EQ(ch_block_abort(&code), CH_OK);
	}
	atomic_fetch_add(&p->may_open, 1);
	TEST_UNTIL(atomic_load(&p->may_open) == 2)
		usleep(100);
	p->status_of_other = ch_block_open(&p->open, &p->code_of_other);
	CHECK_EQ(ch_thread_detach(p->rig.heap), CH_OK);
	return NULL;
}

static bool is_unwound(const struct ch_code *code)
{
	return libgcc_knows(code->exec + 1);
}

/* A thread takes a page, and stops before the page is told. Meanwhile the call goes on. */
static void play_page(struct play *p)
{
	struct ch_heap *heap = p->rig.heap;
	pthread_t caller, other;
	p->is_here = found_no_page;
	p->call = open_block;
	CHECK_EQ(pthread_create(&other, NULL, open_other, p), 0);
	TEST_UNTIL(atomic_load(&p->may_open))
		usleep(100);
	caller = start_call(p);
	CHECK(atomic_load(&p->is_there));
	ch__os_fail_at(0, false);
	if (!p->fails)
		CHECK_EQ(ch_owner_release(p->filler, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(!has_open_page(p));
	ch__sinks_lock(heap->sinks);
	atomic_store(&p->may_open, 2);
	TEST_UNTIL(has_open_page(p))
		usleep(100);
	if (p->fails)
		ch__os_fail_at(1, true);
	atomic_store(&p->may_go, 1);
	TEST_UNTIL(atomic_load(&p->is_over) ||
		   atomic_load(&heap->records.word) == CH__LOCK_AWAITED)
		usleep(100);
	bool was_over = atomic_load(&p->is_over);
	bool is_hidden = was_over && p->status == CH_OK && !is_unwound(&p->code);
	ch__sinks_unlock(heap->sinks);
	CHECK_EQ(pthread_join(caller, NULL), 0);
	CHECK_EQ(pthread_join(other, NULL), 0);
	ch__os_fail_at(0, false);
	if (is_hidden)
		FAIL("a block lies in a page that the unwinder does not know");
	CHECK_EQ(p->status_of_other, p->fails ? CH_E_MEMORY : CH_OK);
	/* With large pages one page has memory at first. If it is the other's, the pool is full. */
	if (!p->fails || p->status != CH_E_FULL)
		CHECK_EQ(p->status, p->status_of_other);
	if (p->fails)
		return;
	CHECK(is_unwound(&p->code) && is_unwound(&p->code_of_other));
	CHECK_EQ(ch_block_abort(&p->code), CH_OK);
	CHECK_EQ(ch_block_abort(&p->code_of_other), CH_OK);
}

static void begin(struct play *p, size_t pool_bytes)
{
	struct ch_config config = rig_config(pool_bytes);
	config.sinks = CH_SINK_UNWIND;
	p->rig = rig_create(&config, NULL, NULL);
	p->owner = rig_owner(&p->rig, "opener");
	p->open = (struct ch_open){.size = sizeof p->open,
				   .owner = p->owner,
				   .hot_bytes = (uint32_t)rig_page_bytes() / 4 - 8};
}

/* On a thread that ends, and leaves no page open. */
static void fill_pages(const struct rig *rig, void *arg)
{
	struct play *p = arg;
	struct ch_open open = p->open;
	struct emitter e;
	p->filler = open.owner = rig_owner(rig, "filler");
	while (emit_open_as(&e, &open) == CH_OK) {
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
	}
}

TEST(page_of_another_thread_is_shared_only_when_the_unwinder_knows_it)
{
	static struct play play;
	begin(&play, 4 * rig_page_bytes());
	rig_apart(&play.rig, fill_pages, &play);
	play_page(&play);
	rig_end(&play.rig);
}

static void *release_filler(void *arg)
{
	struct play *p = arg;
	CHECK_EQ(ch_owner_release(p->filler, CH_RELEASE_NOT_RUNNING), CH_OK);
	return NULL;
}

/* An open takes the page before the thread that freed the page has told so. */
TEST(page_that_is_taken_as_it_comes_free_stays_known)
{
	static struct play play;
	begin(&play, 4 * rig_page_bytes());
	rig_apart(&play.rig, fill_pages, &play);
	struct ch_heap *heap = play.rig.heap;
	pthread_t thread;
	uint32_t page;
	ch__records_lock(heap);
	CHECK_EQ(pthread_create(&thread, NULL, release_filler, &play), 0);
	TEST_UNTIL(atomic_load(&heap->records.word) == CH__LOCK_AWAITED &&
		   (page = ch__pool_take_page(heap->pool, 0)) != CH__PAGE_NONE)
		usleep(100);
	CHECK(ch__sinks_page_live(heap->sinks, page, 1, 0));
	ch__records_unlock(heap);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(ch__sinks_page_is_live(heap->sinks, page, 0));
	ch__page_retire(heap, page);
	rig_end(&play.rig);
}

/* Whether the call, an open in need, has just left a region. Counts how often it had the records:
 * it looks for a page under their lock, and at open pages in a region. */
static bool leaves_a_region_in_need(struct play *p)
{
	struct ch_heap *heap = p->rig.heap;
	bool is_inside = atomic_load(&ch__thread_self(heap)->inside);
	bool has_records = atomic_load(&heap->records.word) != CH__LOCK_FREE;
	if (!atomic_load(&heap->opens_in_need))
		return false;
	p->looks += p->had_records && !has_records;
	p->had_records = has_records;
	bool leaves = p->was_inside && !is_inside;
	p->was_inside = is_inside;
	return leaves;
}

/* The second time that the open found no page for itself, and has not looked at open pages. Between
 * its two looks a block ends in the page that another thread has open. */
static bool found_no_page_again(struct play *p)
{
	if (leaves_a_region_in_need(p) && p->looks == 1 && !atomic_load(&p->may_open)) {
		atomic_store(&p->may_open, 1);
		TEST_UNTIL(atomic_load(&p->may_open) == 2)
			usleep(100);
	}
	return p->looks == 2 && !p->had_records;
}

static void *free_between(void *arg)
{
	struct play *p = arg;
	TEST_UNTIL(atomic_load(&p->may_open))
		usleep(100);
	(void)release_filler(p);
	atomic_store(&p->may_open, 2);
	return NULL;
}

/* Makes a block that uses all its bytes, the entry of a new owner. Returns false: no room. */
static bool make_whole(const struct play *p, struct ch_owner *owner)
{
	struct ch_open open = p->open;
	struct emitter e;
	open.owner = rig_owner(&p->rig, "filler");
	if (emit_open_as(&e, &open) != CH_OK)
		return false;
	emit_ret(&e);
	e.at = open.hot_bytes;
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_set_entry(open.owner, e.code.block), CH_OK);
	*owner = open.owner;
	return true;
}

/* A thread that goes, or opens elsewhere, lets its page go as a page with room. An open in need
 * that looked for such pages before, and looks at open pages afterwards, has to hear of it. */
TEST(page_that_is_let_go_while_an_open_looks_is_counted_as_space)
{
	static struct play play = {.is_here = found_no_page_again, .call = open_block};
	begin(&play, 4 * rig_page_bytes());
	struct ch_heap *heap = play.rig.heap;
	while (make_whole(&play, &play.filler))
		continue;
	pthread_t letter;
	CHECK_EQ(pthread_create(&letter, NULL, free_between, &play), 0);
	pthread_t caller = start_call(&play);
	CHECK(atomic_load(&play.is_there));
	CHECK_EQ(pthread_join(letter, NULL), 0);
	CHECK(has_open_page(&play));
	uint64_t seen = ch__space_now(heap);
	CHECK_EQ(ch_thread_detach(heap), CH_OK);
	CHECK(!has_open_page(&play));
	atomic_store(&play.may_go, 1);
	CHECK_EQ(pthread_join(caller, NULL), 0);
	CHECK_EQ(play.status, CH_E_FULL);
	if (ch__space_now(heap) == seen)
		FAIL("an open missed the page of a thread that left, and hears of no space");
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_OK);
	CHECK_EQ(ch_block_open(&play.open, &play.code_of_other), CH_OK);
	CHECK_EQ(ch_block_abort(&play.code_of_other), CH_OK);
	rig_end(&play.rig);
}

/* The open has looked twice for a page and at open pages, and not yet at full ones. */
static bool has_looked_at_open_pages(struct play *p)
{
	return leaves_a_region_in_need(p) && p->looks == 2;
}

/* Three blocks that lie side by side in a full page end. */
static void fill_and_leave_a_hole(const struct rig *rig, void *arg)
{
	enum { FIRST = 8, HOLE = 3 };
	struct ch_owner owners[FIRST + HOLE], last;
	(void)rig;
	for (unsigned i = 0; i < FIRST + HOLE; i++)
		CHECK(make_whole(arg, &owners[i]));
	while (make_whole(arg, &last))
		continue;
	for (unsigned i = FIRST; i < FIRST + HOLE; i++)
		CHECK_EQ(ch_owner_release(owners[i], CH_RELEASE_NOT_RUNNING), CH_OK);
}

/* Another open takes the page by a part of its hole. */
TEST(full_page_that_is_taken_while_an_open_looks_is_counted_as_space)
{
	static struct play play = {.is_here = has_looked_at_open_pages, .call = open_block};
	begin(&play, 4 * rig_page_bytes());
	struct ch_heap *heap = play.rig.heap;
	play.open.hot_bytes = 24;
	rig_apart(&play.rig, fill_and_leave_a_hole, &play);
	CHECK(!has_open_page(&play));
	pthread_t caller = start_call(&play);
	CHECK(atomic_load(&play.is_there));
	uint64_t seen = ch__space_now(heap);
	CHECK_EQ(ch_block_open(&play.open, &play.code_of_other), CH_OK);
	CHECK(has_open_page(&play));
	atomic_store(&play.may_go, 1);
	CHECK_EQ(pthread_join(caller, NULL), 0);
	CHECK_EQ(play.status, CH_E_FULL);
	if (ch__space_now(heap) == seen)
		FAIL("an open missed the page that another open took, and hears of no space");
	CHECK_EQ(ch_block_open(&play.open, &play.code), CH_OK);
	CHECK_EQ(ch_block_abort(&play.code), CH_OK);
	CHECK_EQ(ch_block_abort(&play.code_of_other), CH_OK);
	rig_end(&play.rig);
}

/* The page's first chunk needs memory for unwind data, and there is none. */
TEST(page_that_no_unwinder_can_know_is_never_shared)
{
	static struct play play = {.fails = true};
	begin(&play, 4 << 20);
	play_page(&play);
	rig_end(&play.rig);
}

/* --- a place without a block --- */

/* Outside of its region the open has a place, and no block: a fork would leave it to nobody. */
static bool has_lost_place(struct play *p)
{
	const struct ch__pool *pool = p->rig.heap->pool;
	uint32_t used = 0;
	for (uint32_t i = 0; i < ch__pool_pages_end(pool); i++)
		used += atomic_load(&pool->pages[i].used_granules);
	p->took_place = p->took_place || used;
	return used && !atomic_load(&ch__thread_self(p->rig.heap)->inside);
}

/* As when the owner dies between the look at the owner and the place. */
static void open_for_dead_owner(struct play *p)
{
	struct ch__thread *self = ch__thread_self(p->rig.heap);
	p->status = ch__block_open(p->rig.heap, self, &p->open, &p->code);
}

TEST(open_that_fails_has_its_place_in_one_region)
{
	static struct play play = {.is_here = has_lost_place, .call = open_for_dead_owner};
	begin(&play, 4 << 20);
	CHECK_EQ(ch_owner_release(play.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	play.open.cold_bytes = 40;
	pthread_t caller = start_call(&play);
	bool is_lost = atomic_load(&play.is_there);
	atomic_store(&play.may_go, 1);
	CHECK_EQ(pthread_join(caller, NULL), 0);
	CHECK_EQ(play.status, CH_E_STALE);
	CHECK(play.took_place && !is_lost);
	rig_end(&play.rig);
}

/* --- a look-up that is given no heap --- */

static bool counts_steps_as_reader(struct play *p)
{
	p->steps_as_reader += ch__place_is_read();
	return false;
}

static void look_up_anywhere(struct play *p)
{
	struct ch_spot spot = {.size = sizeof spot};
	p->status = ch_code_at(NULL, p->pc, false, &spot) ? CH_OK : CH_E_STALE;
}

/* A heap that is destroyed stays while there is a reader. The look-up is a reader of the heap that
 * it found for most of its instructions. */
TEST(look_up_that_is_given_no_heap_is_a_reader_of_the_heap_it_found)
{
	enum { STEPS_LEAST = 50 };
	static struct play play = {.is_here = counts_steps_as_reader, .call = look_up_anywhere};
	begin(&play, 4 << 20);
	play.pc = block_info(rig_block(play.owner, 1)).entry;
	pthread_t caller = start_call(&play);
	CHECK_EQ(pthread_join(caller, NULL), 0);
	CHECK_EQ(play.status, CH_OK);
	CHECK(play.steps_as_reader >= STEPS_LEAST);
	CHECK(!ch__place_is_read());
	rig_end(&play.rig);
}

/* --- a fact that breaks in the middle of a commit --- */

/* At a step of the second region, in which the commit judges the fact and the block goes LIVE. */
static bool is_going_live(struct play *p)
{
	bool is_inside =
		p->commits && atomic_load(&ch__thread_self(p->rig.heap)->inside) != 0;
	p->regions += is_inside && !p->was_inside;
	p->was_inside = is_inside;
	return is_inside && p->regions == 2 && ++p->steps == p->wanted;
}

static void commit_on_a_fact(struct play *p)
{
	struct emitter e;
	trap_flag_clear();
	p->commits = p->was_inside = false;
	p->regions = p->steps = 0;
	emit_open(&e, p->owner, 16, 0);
	emit_ret(&e);
	CHECK_EQ(ch_block_assume(e.code.block, p->fact), CH_OK);
	e.code.used_to = e.at;
	p->commits = true;
	trap_flag_set();
	p->status = ch_block_commit(&e.code, 1);
	trap_flag_clear();
	p->commits = false;
	p->code = e.code;
}

static void *break_the_fact(void *arg)
{
	struct play *p = arg;
	size_t blocks;
	p->status_of_other = ch_assumption_break(p->fact, &blocks);
	atomic_store(&p->is_broken, 1);
	return NULL;
}

/* Whichever comes first: no LIVE block is left that depends on the fact. */
TEST(fact_that_breaks_while_a_block_goes_live_leaves_it_dead_or_not_entrant)
{
	enum { STRIDE = 13, SCENES_LEAST = 4 };
	static struct play play = {.is_here = is_going_live, .call = commit_on_a_fact};
	unsigned scenes = 0;
	begin(&play, 4 << 20);
	for (play.wanted = 1;; play.wanted += STRIDE, scenes++) {
		pthread_t other;
		CHECK_EQ(ch_assumption_create(play.rig.vm, &play.fact), CH_OK);
		atomic_store(&play.is_broken, 0);
		pthread_t caller = start_call(&play);
		bool is_there = atomic_load(&play.is_there);
		CHECK_EQ(pthread_create(&other, NULL, break_the_fact, &play), 0);
		TEST_UNTIL(atomic_load(&play.is_broken) ||
			   atomic_load(&play.rig.heap->lock_waits))
			usleep(100);
		atomic_store(&play.may_go, 1);
		CHECK_EQ(pthread_join(caller, NULL), 0);
		CHECK_EQ(pthread_join(other, NULL), 0);
		CHECK_EQ(play.status_of_other, CH_OK);
		if (play.status == CH_OK)
			CHECK_EQ(block_info(play.code.block).state, CH_BLOCK_NOTENTRANT);
		else
			CHECK_EQ(play.status, CH_E_STALE);
		if (!is_there)
			break;
	}
	CHECK(scenes >= SCENES_LEAST);
	rig_end(&play.rig);
}

/* --- data that gets a user when its last user has ended --- */

static bool has_orphan(struct play *p)
{
	struct ch_heap *heap = p->rig.heap;
	return heap->orphans_count && !atomic_load(&ch__thread_self(heap)->inside);
}

static void release_the_user(struct play *p)
{
	p->status = ch_owner_release(p->user, CH_RELEASE_NOT_RUNNING);
}

TEST(data_that_gets_a_user_while_its_last_user_ends_stays)
{
	static struct play play = {.is_here = has_orphan, .call = release_the_user};
	begin(&play, 4 << 20);
	struct ch_open open = {.size = sizeof open,
			       .owner = play.owner,
			       .hot_bytes = 16,
			       .kind = CH_KIND_RODATA};
	struct ch_code data;
	struct emitter user, late;
	CHECK_EQ(ch_block_open(&open, &data), CH_OK);
	memset(data.write, 0, data.hot_bytes);
	CHECK_EQ(ch_block_commit(&data, 1), CH_OK);
	play.user = rig_owner(&play.rig, "user");
	emit_open(&user, play.user, 16, 0);
	emit_ret(&user);
	CHECK_EQ(ch_edge_attach(user.code.block, data.block), CH_OK);
	CHECK_EQ(emit_commit(&user), CH_OK);
	/* With a name the block has a list already, and the attach takes no lock. */
	struct ch_open named = {.owner = play.owner, .hot_bytes = 16, .name = "late"};
	CHECK_EQ(emit_open_as(&late, &named), CH_OK);
	emit_ret(&late);
	pthread_t caller = start_call(&play);
	CHECK(atomic_load(&play.is_there));
	CHECK_EQ(ch_edge_attach(late.code.block, data.block), CH_OK);
	atomic_store(&play.may_go, 1);
	CHECK_EQ(pthread_join(caller, NULL), 0);
	CHECK_EQ(play.status, CH_OK);
	CHECK(rig_is_there(data.block) && !rig_is_there(user.code.block));
	CHECK_EQ(emit_commit(&late), CH_OK);
	rig_end(&play.rig);
}

/* The commit has published the user, and not yet the data. */
static bool has_user_alone(struct play *p)
{
	struct ch_heap *heap = p->rig.heap;
	const struct ch__block *user, *data;
	if (!p->commits)
		return false;
	user = ch__block_at(heap, ch__handle_index(p->both[0].block.bits));
	data = ch__block_at(heap, ch__handle_index(p->both[1].block.bits));
	return ch__page_has_start(heap->pool, user->hot_offset) &&
	       ch__block_state(data) == CH_BLOCK_OPEN;
}

static void commit_both(struct play *p)
{
	struct ch_open open = {.size = sizeof open,
			       .owner = p->owner,
			       .hot_bytes = 16,
			       .kind = CH_KIND_RODATA};
	struct emitter user;
	trap_flag_clear();
	emit_open(&user, p->user, 16, 0);
	emit_ret(&user);
	user.code.used_to = user.at;
	CHECK_EQ(ch_block_open(&open, &p->both[1]), CH_OK);
	memset(p->both[1].write, 0, p->both[1].hot_bytes);
	CHECK_EQ(ch_edge_attach(user.code.block, p->both[1].block), CH_OK);
	p->both[0] = user.code;
	p->commits = true;
	trap_flag_set();
	p->status = ch_block_commit(p->both, 2);
}

TEST(data_whose_user_ends_in_the_middle_of_their_commit_goes_live)
{
	static struct play play = {.is_here = has_user_alone, .call = commit_both};
	begin(&play, 4 << 20);
	play.user = rig_owner(&play.rig, "user");
	pthread_t caller = start_call(&play);
	CHECK(atomic_load(&play.is_there));
	CHECK_EQ(ch_owner_release(play.user, CH_RELEASE_NOT_RUNNING), CH_OK);
	atomic_store(&play.may_go, 1);
	CHECK_EQ(pthread_join(caller, NULL), 0);
	CHECK_EQ(play.status, CH_OK);
	CHECK(!rig_is_there(play.both[0].block));
	CHECK_EQ(block_info(play.both[1].block).state, CH_BLOCK_LIVE);
	rig_end(&play.rig);
}

/* --- a snapshot beside a thread that makes code --- */

/* While the call reads counters, each of its instructions waits for one more block. */
static bool has_one_more(struct play *p)
{
	enum { BLOCKS_MOST = 4000 };
	if (!ch__lock_is_mine(&p->rig.heap->lock) || p->steps == BLOCKS_MOST)
		return false;
	p->steps++;
	atomic_store(&p->may_open, 1);
	TEST_UNTIL(!atomic_load(&p->may_open))
		sched_yield();
	return false;
}

static void *make_blocks(void *arg)
{
	struct play *p = arg;
	CHECK_EQ(ch_thread_attach(p->rig.heap, NULL, NULL), CH_OK);
	TEST_UNTIL(atomic_load(&p->is_over))
	{
		struct emitter e;
		sched_yield();
		if (!atomic_load(&p->may_open))
			continue;
		CHECK_EQ(emit_open_as(&e, &p->open), CH_OK);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		atomic_store(&p->may_open, 0);
	}
	CHECK_EQ(ch_thread_detach(p->rig.heap), CH_OK);
	return NULL;
}

static void take_snapshot(struct play *p)
{
	p->stats.size = sizeof p->stats;
	p->status = ch_heap_stats(p->rig.heap, &p->stats);
}

/* Counters are read one by one, and no gauge is a difference below zero. */
TEST(snapshot_beside_a_thread_that_makes_code_has_no_gauge_below_zero)
{
	static struct play play = {.is_here = has_one_more, .call = take_snapshot};
	pthread_t maker;
	begin(&play, 4 << 20);
	play.open.hot_bytes = 8;
	CHECK_EQ(pthread_create(&maker, NULL, make_blocks, &play), 0);
	pthread_t caller = start_call(&play);
	CHECK_EQ(pthread_join(caller, NULL), 0);
	CHECK_EQ(pthread_join(maker, NULL), 0);
	CHECK_EQ(play.status, CH_OK);
	CHECK(play.steps > 0 && play.stats.blocks_open_now <= 1);
	rig_end(&play.rig);
}
