/* SPDX-License-Identifier: MIT
 * unwind.cc: unwinding while other threads publish and withdraw code. Exceptions, backtraces and
 * cancellations pass frames of live blocks of every shape, step by step between two changes, and in
 * storms. At the end of each round unwinders know the pages with blocks, and no other pages. */
#include "tests/support/frames_rig.h"

#include <atomic>
#include <execinfo.h>
#include <pthread.h>
#include <unistd.h>

using namespace frames;

enum { MIB = 1 << 20, DEPTH_MOST = 12, FRAMES_MOST = 128 };

/* LLVM's unwinder, when present. For backtrace() and cancellation the C library has libgcc's
 * unwinder, which knows no code then. */
extern "C" void __unw_add_dynamic_fde(uintptr_t) __attribute__((weak));
static bool has_llvm()
{
	return __unw_add_dynamic_fde != nullptr;
}

/* --- the bottom of a chain of blocks --- */

enum act { THROW, BACKTRACE, UNWIND_BACKTRACE, RETURN, LEAVE_AND_THROW, WAIT_FOR_CANCEL };

/* A thread's chain: each block calls `nest`, which calls the next. */
struct chain {
	const rig *r;
	const block *blocks[DEPTH_MOST];
	unsigned depth;
	bool catches; /* some block has a catch */
	act what;
	const void *mark; /* a return address in the thread's outermost function of this test */
	void (*before)(chain *); /* runs at the bottom, first; NULL: nothing */
	void *arg;
};
static thread_local chain *current;

/* Each block of the chain has a frame, and the caller of the whole chain is there. */
static void judge_trace(void *const *pcs, int count)
{
	unsigned in_code = 0;
	bool has_mark = false;
	for (int i = 0; i < count; i++) {
		ch_block found;
		auto before = reinterpret_cast<uintptr_t>(pcs[i]) - 1; /* the outermost pc is 0 */
		in_code += block_at(current->r->heap, reinterpret_cast<void *>(before), &found);
		has_mark |= pcs[i] == current->mark;
	}
	if (in_code != current->depth || !has_mark)
		FAIL("a backtrace has %u of %u frames of code, and %s to the caller", in_code,
		     current->depth, has_mark ? "leads" : "does not lead");
}

struct trace {
	void *pcs[FRAMES_MOST];
	int count;
};

static _Unwind_Reason_Code note_frame(_Unwind_Context *context, void *arg)
{
	auto *t = static_cast<trace *>(arg);
	if (t->count == FRAMES_MOST)
		return _URC_NORMAL_STOP;
	t->pcs[t->count++] = reinterpret_cast<void *>(_Unwind_GetIP(context));
	return _URC_NO_REASON;
}

__attribute__((noinline)) static int act_now(int number)
{
	FRAMES_CHANGE_REGISTERS();
	trace t;
	t.count = 0;
	if (current->before)
		current->before(current);
	switch (current->what) {
	case BACKTRACE:
		if (has_llvm())
			return number;
		t.count = backtrace(t.pcs, FRAMES_MOST);
		judge_trace(t.pcs, t.count);
		return number;
	case UNWIND_BACKTRACE:
		_Unwind_Backtrace(note_frame, &t);
		judge_trace(t.pcs, t.count);
		return number;
	case RETURN:
		return number;
	case WAIT_FOR_CANCEL:
		for (;;) {
			pthread_testcancel(); /* and nowhere in the library */
			pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
			ch_thread_poll();
			usleep(50);
			pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
		}
	default:
		throw number;
	}
}

/* Bottom up: `left` blocks are still to be called. */
static int nest(int left)
{
	FRAMES_CHANGE_REGISTERS();
	if (left == 0)
		return act_now(7);
	const block *next = current->blocks[current->depth - static_cast<unsigned>(left)];
	int result = next->run()(nest, left - 1);
	asm volatile("" ::: "memory"); /* not a tail call */
	return result;
}

__attribute__((noinline)) static int enter_chain(chain *c)
{
	c->mark = __builtin_return_address(0);
	current = c;
	try {
		return nest(static_cast<int>(c->depth));
	} catch (int caught) {
		return -caught;
	}
}

static int enter_from_registers(const run *r)
{
	int result = enter_chain(reinterpret_cast<chain *>(const_cast<run *>(r)));
	asm volatile("" ::: "memory");
	return result;
}

static void run_chain(chain *c)
{
	int result = 0;
	if (!frames_keeps_registers(enter_from_registers, reinterpret_cast<run *>(c), &result))
		FAIL("a callee-saved register is another one behind the catch");
	bool throws = c->what == THROW || c->what == LEAVE_AND_THROW;
	int expected = !throws ? 7 : c->catches ? CAUGHT + 7 : -7;
	CHECK_EQ(result, expected);
}

/* --- blocks that live through a test --- */

enum kind { PLAIN, WITHOUT_POINTER, STAMPED, WITH_TABLE, CATCHER, KINDS };
alignas(8) static uint8_t cast_tables[KINDS][TABLE_BYTES];

struct cast { /* a block of each kind */
	block of[KINDS];
};

/* table: for WITH_TABLE and CATCHER. */
static block new_kind(const rig &r, unsigned kind, uint8_t *table, mourner *last)
{
	switch (kind) {
	case PLAIN:
		return new_block(r, FRAMED, "framed");
	case WITHOUT_POINTER:
		return new_block(r, FRAMELESS, "frameless");
	case STAMPED:
		return new_stamped(r, "stamped");
	case WITH_TABLE:
		return new_plain_own(r, "table", table, last);
	default:
		return new_catcher(r, "catcher", table, last);
	}
}

static cast new_cast(const rig &r)
{
	cast made;
	for (unsigned kind = 0; kind < KINDS; kind++)
		made.of[kind] = new_kind(r, kind, cast_tables[kind], nullptr);
	return made;
}

static void check_cast(const cast &c)
{
	for (const block &b : c.of)
		CHECK(is_block_known(b));
}

static chain random_chain(const rig &r, const cast &c, test_random *random, unsigned kinds)
{
	chain made = {};
	made.r = &r;
	made.depth = 1 + static_cast<unsigned>(test_random_below(random, DEPTH_MOST));
	for (unsigned i = 0; i < made.depth; i++) {
		auto kind = static_cast<unsigned>(test_random_below(random, kinds));
		made.blocks[i] = &c.of[kind];
		made.catches |= kind == CATCHER;
	}
	return made;
}

/* --- step by step: before, between and after changes by another thread --- */

enum { CHANGED = 2 * KINDS };

struct change {
	const rig *r;
	void (*fn)(change *);
	block made[CHANGED];
	uint8_t (*tables)[TABLE_BYTES];
};

static void *change_on_thread(void *arg)
{
	auto *c = static_cast<change *>(arg);
	CHECK_EQ(ch_thread_attach(c->r->heap, nullptr, nullptr), CH_OK);
	c->fn(c);
	CHECK_EQ(ch_thread_detach(c->r->heap), CH_OK);
	return nullptr;
}

static void publish_some(change *c)
{
	for (unsigned i = 0; i < CHANGED; i++)
		c->made[i] = new_kind(*c->r, i % KINDS, c->tables[i], nullptr);
	for (const block &b : c->made)
		CHECK(is_block_known(b));
}

static void withdraw_some(change *c)
{
	for (unsigned i = 0; i < CHANGED; i++) {
		release(c->made[i]);
		std::memset(c->tables[i], 0xff, TABLE_BYTES);
	}
	CHECK_EQ(ch_heap_collect(c->r->heap), CH_OK);
}

/* Runs at the bottom of a chain: all frames of the chain are on the stack meanwhile. */
static void change_meanwhile(chain *c)
{
	pthread_t thread;
	ch_thread_park();
	CHECK_EQ(pthread_create(&thread, nullptr, change_on_thread, c->arg), 0);
	pthread_join(thread, nullptr);
	ch_thread_unpark();
}

TEST(unwinding_passes_frames_between_changes_by_another_thread)
{
	alignas(8) static uint8_t tables[CHANGED][TABLE_BYTES];
	rig r = start(8 * MIB);
	cast c = new_cast(r);
	test_random random = test_random_new();
	change near = {&r, publish_some, {}, tables};
	for (int round = 0; round < 60; round++) {
		chain made = random_chain(r, c, &random, KINDS);
		made.what = static_cast<act>(test_random_below(&random, RETURN));
		run_chain(&made); /* before */
		near.fn = publish_some;
		made.before = change_meanwhile;
		made.arg = &near;
		run_chain(&made); /* with a publication below the frames */
		made.before = nullptr;
		run_chain(&made);
		near.fn = withdraw_some;
		made.before = change_meanwhile;
		run_chain(&made); /* with a withdrawal below the frames */
		made.before = nullptr;
		run_chain(&made);
		check_cast(c);
	}
	end(r);
}

/* --- storms --- */

enum { CHURNERS = 2, UNWINDERS = 2, TABLES = 96 };

struct storm {
	rig r;
	cast c;
	std::atomic<bool> is_over;
	std::atomic<unsigned> throws, traces, cancels, blocks, shrinks;
};

/* Tables of blocks that come and go. The notice of a block's end frees the table. */
struct slot {
	alignas(8) uint8_t table[TABLE_BYTES];
	std::atomic<bool> is_taken;
	mourner last;
};
static slot slots[TABLES];

static void free_slot(void *arg)
{
	auto *s = static_cast<slot *>(arg);
	std::memset(s->table, 0xff, sizeof s->table);
	s->is_taken.store(false, std::memory_order_release);
}

static slot *take_slot()
{
	for (slot &s : slots)
		if (!s.is_taken.exchange(true, std::memory_order_acquire)) {
			s.last = {free_slot, &s};
			return &s;
		}
	return nullptr;
}

/* Makes a block that lives until a release. Returns false when no table is free. */
static bool new_any(storm *s, unsigned kind, block *made)
{
	slot *own = kind >= WITH_TABLE ? take_slot() : nullptr;
	if (kind >= WITH_TABLE && !own)
		return false;
	*made = new_kind(s->r, kind, own ? own->table : nullptr, own ? &own->last : nullptr);
	return true;
}

static unsigned any_kind(test_random *random)
{
	return static_cast<unsigned>(test_random_below(random, KINDS));
}

/* A run of pages larger than a chunk: chunks come and go with the run. */
static void pass_a_span(storm *s, bool own)
{
	ch_owner owner = new_owner(s->r, "span");
	ch_open open = {};
	open.size = sizeof open;
	open.owner = owner;
	open.hot_bytes = 3 * MIB / 2;
	open.cold_bytes = 8; /* the span stays whole */
	open.flags = own ? CH_OPEN_OWN_FRAMES : 0;
	ch_code code;
	ch_status status = ch_block_open(&open, &code);
	if (status == CH_OK) {
		bytes b = plain_code(FRAMED);
		block made = commit_block(code, b, owner);
		CHECK_EQ(catch_from(made, return_it, 3), 3);
		CHECK(own ? !is_known(code.exec) : is_known(code.exec + open.hot_bytes - 1));
	} else {
		CHECK_EQ(status, CH_E_FULL);
	}
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
}

static uint64_t committed(const storm *s)
{
	ch_stats stats;
	stats.size = sizeof stats;
	CHECK_EQ(ch_heap_stats(s->r.heap, &stats), CH_OK);
	return stats.committed_bytes_now;
}

static void collect(storm *s)
{
	uint64_t before = committed(s);
	ch_status status = ch_heap_collect(s->r.heap);
	CHECK(status == CH_OK || status == CH_E_BUSY);
	if (committed(s) < before)
		s->shrinks++;
}

static void *churn(void *arg)
{
	auto *s = static_cast<storm *>(arg);
	enum { HELD = 24 };
	static thread_local block held[HELD];
	bool is_held[HELD] = {};
	test_random random = test_random_new();
	CHECK_EQ(ch_thread_attach(s->r.heap, nullptr, nullptr), CH_OK);
	while (!s->is_over) {
		auto at = static_cast<unsigned>(test_random_below(&random, HELD));
		if (is_held[at]) {
			/* The table of a block released at once waits for the notice, too. */
			if (test_random_below(&random, 2))
				release(held[at]);
			else
				CHECK_EQ(ch_owner_release(held[at].owner, CH_RELEASE_COLLECT),
					 CH_OK);
			is_held[at] = false;
		} else if (new_any(s, any_kind(&random), &held[at])) {
			CHECK(is_block_known(held[at]));
			is_held[at] = true;
			s->blocks++;
		}
		uint64_t also = test_random_below(&random, 64);
		if (also == 0)
			pass_a_span(s, false);
		if (also == 1)
			pass_a_span(s, true);
		if (also == 2)
			collect(s);
		ch_thread_poll();
	}
	for (unsigned i = 0; i < HELD; i++)
		if (is_held[i])
			release(held[i]);
	std::memset(held, 0, sizeof held);
	ch_thread_poll();
	CHECK_EQ(ch_thread_detach(s->r.heap), CH_OK);
	return nullptr;
}

/* Gives up the chain's first block while the block runs, held by the frame. */
static void leave_first(chain *c)
{
	auto *s = static_cast<storm *>(c->arg);
	CHECK_EQ(ch_owner_release(c->blocks[0]->owner, CH_RELEASE_COLLECT), CH_OK);
	collect(s);
}

static void unwind_once(storm *s, test_random *random)
{
	chain c = random_chain(s->r, s->c, random, KINDS);
	c.what = static_cast<act>(test_random_below(random, WAIT_FOR_CANCEL));
	block mine;
	unsigned kind = any_kind(random);
	if (c.what == LEAVE_AND_THROW) {
		if (test_random_below(random, 16) || !new_any(s, kind, &mine)) {
			c.what = THROW;
		} else {
			c.blocks[0] = &mine;
			c.before = leave_first;
			c.arg = s;
			c.catches = false;
			for (unsigned i = 1; i < c.depth; i++)
				c.catches |= c.blocks[i] == &s->c.of[CATCHER];
			c.catches |= kind == CATCHER;
		}
	}
	run_chain(&c);
	s->throws += c.what == THROW || c.what == LEAVE_AND_THROW;
	s->traces += c.what == BACKTRACE || c.what == UNWIND_BACKTRACE;
}

static void unwind(storm *s)
{
	test_random random = test_random_new();
	CHECK_EQ(ch_thread_attach(s->r.heap, nullptr, nullptr), CH_OK);
	while (!s->is_over) {
		unwind_once(s, &random);
		check_cast(s->c);
		ch_thread_poll();
	}
	CHECK_EQ(ch_thread_detach(s->r.heap), CH_OK);
}

static void *unwind_on_thread(void *arg)
{
	unwind(static_cast<storm *>(arg));
	return nullptr;
}

/* --- cancellation: the whole stack is unwound, through code --- */

struct detaching { /* its destructor runs if the unwinder comes past the code */
	storm *s;
	~detaching()
	{
		CHECK_EQ(ch_thread_detach(s->r.heap), CH_OK);
		s->cancels++;
	}
};

static void *be_cancelled(void *arg)
{
	auto *c = static_cast<chain *>(arg);
	auto *s = static_cast<storm *>(c->arg);
	CHECK_EQ(ch_thread_attach(s->r.heap, nullptr, nullptr), CH_OK);
	detaching at_end = {s};
	current = c;
	nest(static_cast<int>(c->depth));
	FAIL("a cancelled thread went on");
	return nullptr;
}

static void *cancel(void *arg)
{
	auto *s = static_cast<storm *>(arg);
	test_random random = test_random_new();
	while (!s->is_over) {
		unsigned before = s->cancels;
		pthread_t thread;
		void *result;
		/* Without catches: a swallowed cancellation ends the process. */
		chain c = random_chain(s->r, s->c, &random, CATCHER);
		c.what = WAIT_FOR_CANCEL;
		c.arg = s;
		CHECK_EQ(pthread_create(&thread, nullptr, be_cancelled, &c), 0);
		usleep(500);
		CHECK_EQ(pthread_cancel(thread), 0);
		CHECK_EQ(pthread_join(thread, &result), 0);
		/* A thread cancelled before its attach has nothing to unwind. */
		CHECK(result == PTHREAD_CANCELED);
		CHECK(s->cancels == before + 1 || s->cancels == before);
	}
	return nullptr;
}

/* --- the knowledge of unwinders between two storms, with no thread attached --- */

struct census {
	std::vector<ch_info> infos;
};

static bool count_in(void *arg, const ch_info *info)
{
	static_cast<census *>(arg)->infos.push_back(*info);
	return true;
}

static void check_known(const storm *s)
{
	census all;
	for (int i = 0; i < 3; i++)
		CHECK_EQ(ch_heap_collect(s->r.heap), CH_OK); /* through the quarantine */
	CHECK_EQ(ch_block_each(s->r.heap, nullptr, count_in, &all), CH_OK);
	CHECK_EQ(all.infos.size(), KINDS);
	ch_stats stats;
	stats.size = sizeof stats;
	CHECK_EQ(ch_heap_stats(s->r.heap, &stats), CH_OK);
	uintptr_t pool = reinterpret_cast<uintptr_t>(s->c.of[0].exec) & ~(stats.pool_bytes - 1);
	for (uintptr_t page = pool; page < pool + stats.pool_bytes; page += stats.page_bytes) {
		bool has_block = false, has_own = false;
		for (unsigned kind = 0; kind < KINDS; kind++) {
			auto at = reinterpret_cast<uintptr_t>(s->c.of[kind].exec);
			bool is_here = at >= page && at < page + stats.page_bytes;
			has_block |= is_here && kind < STAMPED;
			has_own |= is_here && kind >= STAMPED;
		}
		if (has_own)
			continue; /* known where its table says */
		for (uintptr_t at :
		     {page, page + stats.page_bytes / 2, page + stats.page_bytes - 1})
			if (is_known(reinterpret_cast<void *>(at)) != has_block)
				FAIL("libgcc %s a page %s blocks", has_block ? "misses" : "finds",
				     has_block ? "with" : "without");
	}
	check_cast(s->c);
	check(s->r);
}

TEST_LIMIT(storm_of_unwinding_while_code_comes_and_goes, 90)
{
	static storm s;
	s.r = start(16 * MIB);
	s.c = new_cast(s.r);
	/* Sanitizers lose a cancelled thread: the stack stays poisoned, the locks unseen. */
	const char *sanitizer = getenv("CODEHEAP_TEST_SAN");
	bool has_cancels = (!sanitizer || !*sanitizer) && !has_llvm();
	uint64_t end_ns = now_ns() + storm_ms_of(20000) * UINT64_C(1000000);
	do {
		pthread_t threads[CHURNERS + UNWINDERS];
		pthread_t canceller;
		CHECK_EQ(ch_thread_detach(s.r.heap), CH_OK);
		s.is_over = false;
		for (unsigned i = 0; i < CHURNERS + UNWINDERS; i++)
			CHECK_EQ(pthread_create(&threads[i], nullptr,
						i < CHURNERS ? churn : unwind_on_thread, &s),
				 0);
		if (has_cancels)
			CHECK_EQ(pthread_create(&canceller, nullptr, cancel, &s), 0);
		uint64_t round_ns = now_ns() + UINT64_C(700000000);
		while (now_ns() < round_ns)
			usleep(5000);
		s.is_over = true;
		for (pthread_t thread : threads)
			pthread_join(thread, nullptr);
		if (has_cancels)
			pthread_join(canceller, nullptr);
		check_known(&s);
		CHECK_EQ(ch_thread_attach(s.r.heap, nullptr, nullptr), CH_OK);
		/* A slow or busy machine goes on until all was done once. */
	} while (now_ns() < end_ns || !s.throws || !s.traces || !s.blocks || !s.shrinks ||
		 (has_cancels && !s.cancels));
	printf("%u throws, %u backtraces, %u cancellations, %u blocks, %u times chunks went\n",
	       s.throws.load(), s.traces.load(), s.cancels.load(), s.blocks.load(),
	       s.shrinks.load());
	end(s.r);
}

/* --- a thread cancelled in the library leaves the library first --- */

struct worker {
	const rig *r;
	std::atomic<unsigned> rounds;
	bool is_inside; /* in a call of the library */
};

struct leaving {
	worker *w;
	~leaving()
	{
		if (w->is_inside)
			FAIL("a call of the library was left by a cancellation");
		CHECK_EQ(ch_thread_detach(w->r->heap), CH_OK);
	}
};

/* The memory of code comes and goes, and the perf map is written. */
static void *work_until_cancelled(void *arg)
{
	auto *w = static_cast<worker *>(arg);
	CHECK_EQ(ch_thread_attach(w->r->heap, nullptr, nullptr), CH_OK);
	leaving at_end = {w};
	for (;;) {
		w->is_inside = true;
		ch_owner owner = new_owner(*w->r, "worked");
		ch_open open = {};
		open.size = sizeof open;
		open.owner = owner;
		open.hot_bytes = 3 * MIB / 2;
	open.cold_bytes = 8; /* the span stays whole */
		ch_code code;
		CHECK_EQ(ch_block_open(&open, &code), CH_OK);
		commit_block(code, plain_code(FRAMED), owner);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		CHECK_EQ(ch_sink_flush(w->r->heap), CH_OK);
		CHECK_EQ(ch_heap_collect(w->r->heap), CH_OK);
		w->is_inside = false;
		w->rounds++;
		pthread_testcancel();
	}
	return nullptr;
}

TEST(cancelled_thread_leaves_the_library_first)
{
	const char *sanitizer = getenv("CODEHEAP_TEST_SAN");
	if ((sanitizer && *sanitizer) || has_llvm())
		skip("a sanitizer, or a second unwinder, loses a cancelled thread");
	setenv("CODEHEAP_WX", "memfd", 1);
	setenv("CODEHEAP_SINKS", "unwind,perfmap", 1);
	rig r = start(8 * MIB);
	CHECK_EQ(ch_thread_detach(r.heap), CH_OK);
	test_random random = test_random_new();
	unsigned rounds = 0;
	for (int i = 0; i < 200; i++) {
		worker w;
		w.r = &r;
		w.rounds = 0;
		w.is_inside = false;
		pthread_t thread;
		void *result;
		CHECK_EQ(pthread_create(&thread, nullptr, work_until_cancelled, &w), 0);
		usleep(static_cast<unsigned>(test_random_below(&random, 3000)));
		while (i == 0 && !w.rounds) /* some thread gets so far on any machine */
			usleep(100);
		CHECK_EQ(pthread_cancel(thread), 0);
		CHECK_EQ(pthread_join(thread, &result), 0);
		CHECK(result == PTHREAD_CANCELED);
		rounds += w.rounds;
	}
	CHECK(rounds > 0);
	CHECK_EQ(ch_thread_attach(r.heap, nullptr, nullptr), CH_OK);
	const char *path;
	CHECK(ch_sink_status(r.heap, CH_SINK_PERF_MAP, &path, nullptr));
	unlink(path);
	end(r);
}
