/* SPDX-License-Identifier: MIT
 * profile_storm.c: a profile of code that comes and goes. Four threads and their fibers compile,
 * call, invalidate and drop chains of blocks, while a fifth thread collects and discards. So most
 * code is freed, and most addresses are used again, before the report is written.
 *
 * The oracle is in the names. An owner's name has the owner's number and the number of the owner's
 * only caller; no other owner ever has these numbers. A block's name has a checksum of the
 * instructions, and the number is in the instructions. So a stack is right when each frame of code
 * is called by the frame before, and a name of other code makes an impossible stack. A function
 * without a frame hides its direct caller only: the caller of the innermost frame may be missing.
 * Where a handler's frame record holds the link register, code interrupted in a stub may be there
 * twice. */
#define _GNU_SOURCE
#include "codeheap/profile.h"
#include "tests/support/folded_reader.h"
#include "tests/support/stage.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	THREADS = 4,
	CREWS = 6, /* stacks of chains: more than threads, so that they change threads */
	DEPTH = 6,
	RATE = 5000,
	STORM_MS = 20000,
	POOL_BYTES = 1 << 20,
	NUMBERS = 1 << 24,
	PAYLOAD_BYTES = 64,
	FREED_WANTED = 100, /* samples in a storm of a second, at least */
	REUSED_WANTED = 50,
};

/* Facts of the owner with this number. */
struct fact {
	uint32_t caller, check;
	_Atomic(uint32_t) place; /* of the last block, in granules of the pool, plus 1 */
	_Atomic(uint32_t) is_freed;
};

struct crew {
	struct play *play;
	struct fiber fiber;
	struct test_random dice;
};

struct play {
	struct stage *stage;
	struct fact *facts;
	_Atomic(uint32_t) *tenants; /* by place: the number of the last block there */
	_Atomic(uint32_t) numbers;
	_Atomic(struct crew *) waiting[CREWS];
	_Atomic(unsigned) switches, calls;
	_Atomic(bool) is_over;
	_Atomic(int) at_work; /* threads */
	uintptr_t pool;
	char path[64];
};

/* The argument of the function called by a framed block. */
struct call {
	struct crew *crew;
	struct method *middle, *leaf;
	uint32_t number;
	int depth;
};

/* --- code --- */

static uint32_t check_of(const uint8_t *bytes, uint32_t n)
{
	uint32_t sum = 2166136261u;
	for (uint32_t i = 0; i < n; i++)
		sum = (sum ^ bytes[i]) * 16777619u;
	return sum;
}

/* Emits the block's answer: the number, in bytes that are the same at each address. */
static void emit_payload(struct emitter *e, uint32_t number)
{
	emit_value(e, number);
	emit_add(e, number * 2654435761u >> 8);
}

static uint32_t check_of_payload(uint32_t number)
{
	uint8_t bytes[PAYLOAD_BYTES];
	struct emitter e = {.code = {.write = bytes, .exec = bytes, .hot_bytes = sizeof bytes}};
	emit_payload(&e, number);
	return check_of(bytes, e.at);
}

static uint64_t answer_of(uint32_t number)
{
	return (uint32_t)(number + (number * 2654435761u >> 8));
}

static uint32_t new_number(struct play *p, uint32_t caller)
{
	uint32_t number = atomic_fetch_add(&p->numbers, 1) + 1;
	CHECK(number < NUMBERS);
	p->facts[number].caller = caller;
	p->facts[number].check = check_of_payload(number);
	return number;
}

static void open_code(struct play *p, struct emitter *e, const struct method *m, uint32_t number)
{
	char name[16];
	snprintf(name, sizeof name, "c%08x", p->facts[number].check);
	struct ch_open open = {.owner = m->owner,
			       .hot_bytes = 400,
			       .branch_room = 1,
			       .name = name,
			       .user = (void *)(uintptr_t)number};
	enum ch_status status;
	/* A full pool has room after the collector's next cycle. */
	while ((status = emit_open_as(e, &open)) == CH_E_FULL) {
		stage_pause();
		stage_poll(p->stage);
	}
	CHECK_EQ(status, CH_OK);
}

/* Since the collector discards without end, a block may be gone before it is an entry. */
static bool close_code(struct play *p, struct emitter *e, struct method *m, uint32_t number)
{
	uint32_t place = (uint32_t)((uintptr_t)e->code.exec - p->pool) / 8;
	CHECK_EQ(emit_commit(e), CH_OK);
	m->block = e->code.block;
	enum ch_status status = ch_owner_set_entry(m->owner, m->block);
	CHECK(status == CH_OK || status == CH_E_STALE || status == CH_E_STATE);
	atomic_store(&p->facts[number].place, place + 1);
	atomic_store(&p->facts[number].is_freed, 0);
	atomic_store(&p->tenants[place], number);
	return status == CH_OK;
}

static void make_owner(struct play *p, struct method *m, uint32_t number)
{
	char name[32];
	snprintf(name, sizeof name, "n%up%u", number, p->facts[number].caller);
	method_new(p->stage, m, name);
}

static void make_leaf(struct play *p, struct method *m, uint32_t number, bool has_frame)
{
	enum { ROUNDS = 20000 };
	struct emitter e;
	make_owner(p, m, number);
	do {
		open_code(p, &e, m, number);
		if (has_frame)
			emit_frame(&e);
		emit_count_down(&e, ROUNDS);
		if (has_frame)
			emit_frame_end(&e);
		emit_payload(&e, number);
		emit_ret(&e);
	} while (!close_code(p, &e, m, number));
}

static uint64_t step(void *arg);

static void make_middle(struct play *p, struct method *m, uint32_t number)
{
	struct emitter e;
	make_owner(p, m, number);
	do {
		open_code(p, &e, m, number);
		emit_frame(&e);
		m->branch[0] = emit_attach(&e, emit_site_call(&e), CH_CALL, m);
		emit_frame_argument(&e);
		emit_call_c(&e, (const void *)(uintptr_t)step);
		emit_payload(&e, number);
		emit_frame_end(&e);
		emit_ret(&e);
	} while (!close_code(p, &e, m, number));
}

static void notice(struct stage *stage, struct method *user)
{
	struct play *p = stage->play;
	atomic_store(&p->facts[(uintptr_t)user].is_freed, 1);
}

/* --- the threads' work --- */

static void run_chain(struct crew *crew, uint32_t caller, int depth)
{
	struct play *p = crew->play;
	struct method middle, leaf;
	struct call call = {crew, &middle, &leaf, new_number(p, caller), depth};
	uint32_t leaf_number = new_number(p, call.number);
	make_leaf(p, &leaf, leaf_number, test_random_below(&crew->dice, 2) != 0);
	make_middle(p, &middle, call.number);
	enum ch_status status = ch_branch_link(middle.branch[0], leaf.block);
	CHECK(status == CH_OK || status == CH_E_STALE || status == CH_E_STATE);
	uint64_t times = 1 + test_random_below(&crew->dice, 3);
	while (times--) {
		uint64_t answer = method_call(&middle, &call);
		CHECK((uint32_t)answer == answer_of(call.number) || answer == STAGE_FALLBACK);
		atomic_fetch_add(&p->calls, 1);
	}
	if (test_random_below(&crew->dice, 2))
		CHECK_EQ(ch_blocks_invalidate(&middle.block, 1, NULL), CH_OK);
	method_drop(p->stage, &leaf);
	method_drop(p->stage, &middle);
}

static uint64_t step(void *arg)
{
	struct call *call = arg;
	struct crew *crew = call->crew;
	uint64_t what = test_random_below(&crew->dice, 16);
	if (what < 3)
		CHECK_EQ(ch_blocks_invalidate(&call->leaf->block, 1, NULL), CH_OK);
	if (what == 3) /* under its running frame */
		CHECK_EQ(ch_blocks_invalidate(&call->middle->block, 1, NULL), CH_OK);
	if (what < 8 && call->depth < DEPTH)
		run_chain(crew, call->number, call->depth + 1);
	if (what >= 12) {
		atomic_fetch_add(&crew->play->switches, 1);
		fiber_yield(&crew->fiber);
	}
	stage_poll(crew->play->stage);
	return 0;
}

static void run_crew(struct fiber *f, void *arg)
{
	struct crew *crew = arg;
	(void)f;
	while (!atomic_load(&crew->play->is_over))
		run_chain(crew, 0, 1);
}

/* A yielded fiber goes on in any thread that takes it next. */
static void work(struct stage *stage, void *arg)
{
	struct play *p = arg;
	int ended = 0;
	while (ended < CREWS) {
		ended = 0;
		for (int i = 0; i < CREWS; i++) {
			struct crew *crew = atomic_exchange(&p->waiting[i], NULL);
			if (crew && !crew->fiber.is_done)
				fiber_resume(&crew->fiber);
			ended += crew && crew->fiber.is_done;
			if (crew)
				atomic_store(&p->waiting[i], crew);
			stage_poll(stage);
		}
	}
	atomic_fetch_sub(&p->at_work, 1);
}

/* --- the report --- */

struct verdict {
	struct play *p;
	/* Samples: with code, with freed code, with code at reused places, with unnamed code. */
	uint64_t code, freed, reused, unnamed;
	unsigned astray; /* stacks from a native function to code of another caller */
};

/* Returns the number of a frame of code, or 0 for another frame. */
static uint32_t read_frame(const struct play *p, const char *frame)
{
	unsigned number, caller, check;
	int end = 0;
	if (sscanf(frame, "n%up%u c%8x%n", &number, &caller, &check, &end) < 3 || end == 0) {
		if (frame[0] == 'n' && frame[1] >= '0' && frame[1] <= '9')
			FAIL("half a name: %s", frame);
		return 0;
	}
	if (strcmp(frame + end, "") != 0 && strcmp(frame + end, " (cold)") != 0)
		FAIL("a name and more: %s", frame);
	if (!number || number > atomic_load(&p->numbers))
		FAIL("code that was never there: %s", frame);
	const struct fact *fact = &p->facts[number];
	if (fact->caller != caller || fact->check != check)
		FAIL("names of two blocks in one: %s", frame);
	return number;
}

static void fail_of(const struct folded_line *line, size_t at, uint32_t before)
{
	for (size_t i = 0; i < line->count; i++)
		fprintf(stderr, "%s%s\n", line->frames[i], i == at ? " <-" : "");
	FAIL("%s stands behind %u", line->frames[at], before);
}

static void judge(void *arg, const struct folded_line *line)
{
	struct verdict *v = arg;
	uint32_t before = 0;
	bool has_code = false, has_freed = false, has_reused = false, has_unnamed = false;
	for (size_t i = 0; i < line->count; i++) {
		has_unnamed |= strcmp(line->frames[i], "[freed code]") == 0;
		uint32_t number = read_frame(v->p, line->frames[i]);
		if (!number)
			continue;
		const struct fact *fact = &v->p->facts[number];
		uint32_t above = fact->caller, place = atomic_load(&fact->place);
		if (CODE_HANDLER_RECORDS_LINK && number == before)
			continue;
		/* ThreadSanitizer gives a handler earlier registers: the stack is different. */
		if (!CH_TSAN && above != before &&
		    !(i + 1 == line->count && above && v->p->facts[above].caller == before)) {
			/* The C library's functions keep no frame records. The value in the
			 * register leads to words of earlier calls now and then. */
			if (read_frame(v->p, line->frames[line->count - 1]))
				fail_of(line, i, before);
			v->astray++;
			return;
		}
		before = number;
		has_code = true;
		has_freed |= atomic_load(&fact->is_freed) != 0;
		has_reused |= atomic_load(&v->p->tenants[place - 1]) != number;
	}
	v->code += has_code ? line->weight : 0;
	v->freed += has_freed ? line->weight : 0;
	v->reused += has_reused ? line->weight : 0;
	v->unnamed += has_unnamed ? line->weight : 0;
}

static struct verdict report(struct play *p, uint64_t *weights)
{
	struct verdict verdict = {.p = p};
	struct ch_profile_view view = {.size = sizeof view, .flags = CH_PROFILE_FOLDED};
	CHECK_EQ(ch_profile_write(p->stage->heap, p->path, &view), CH_OK);
	*weights = folded_read(p->path, judge, &verdict);
	CHECK_EQ(unlink(p->path), 0);
	return verdict;
}

/* --- the storm --- */

static struct play *start(struct stage *stage)
{
	stage->config.pool_bytes = POOL_BYTES;
	stage->counts_only = true;
	stage->hit = stage_no_target; /* of an invalidated target */
	stage->gone = notice;
	struct play *p = stage_play(stage, sizeof *p);
	struct ch_stats stats = stage_stats(stage);
	size_t bytes = NUMBERS * sizeof *p->facts;
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(memory != MAP_FAILED);
	p->facts = memory;
	p->tenants = calloc(stats.pool_bytes / 8, sizeof *p->tenants);
	CHECK(p->tenants);
	p->pool = stage->heap->pool->exec_base;
	snprintf(p->path, sizeof p->path, "/tmp/codeheap-storm-%d.folded", getpid());
	for (int i = 0; i < CREWS; i++) {
		struct crew *crew = calloc(1, sizeof *crew);
		CHECK(crew);
		*crew = (struct crew){.play = p, .dice = test_random_new()};
		crew->dice.state += (uint64_t)i * 0x9e3779b97f4a7c15u;
		fiber_start(stage, &crew->fiber, run_crew, crew);
		atomic_store(&p->waiting[i], crew);
	}
	return p;
}

static void end(struct play *p)
{
	struct fact *facts = p->facts;
	_Atomic(uint32_t) *tenants = p->tenants;
	for (int i = 0; i < CREWS; i++) {
		struct crew *crew = atomic_load(&p->waiting[i]);
		fiber_end(&crew->fiber);
		free(crew);
	}
	stage_collect(p->stage);
	stage_end(p->stage); /* notices come to the end */
	free(tenants);
	munmap(facts, NUMBERS * sizeof *facts);
}

static void collect_once(struct play *p, uint64_t n)
{
	(void)stage_cycle_came(p->stage, stage_try_collect(p->stage));
	if (n % 16 == 7)
		(void)stage_cycle_came(p->stage, ch_vm_discard(p->stage->heap, NULL, NULL, NULL));
}

/* Whether the storm met enough of freed and reused code to prove anything. */
static bool is_enough(const struct play *p, const struct verdict *v)
{
	const char *emulator = getenv("CODEHEAP_TEST_EMULATOR");
	bool is_slow = CH_TSAN || (emulator && *emulator);
	return p->switches > 0 && v->code > 0 &&
	       (is_slow || (v->freed >= FREED_WANTED && v->reused >= REUSED_WANTED));
}

/* Collects, and reports twice or more. A busy machine goes on until there is enough to judge. */
static void collect_for(struct play *p, unsigned ms)
{
	uint64_t half_ns = ms * UINT64_C(500000), next = now_ns() + half_ns, weights;
	unsigned reports = 0;
	for (uint64_t n = 0;; n++) {
		collect_once(p, n);
		if (now_ns() >= next) {
			struct verdict verdict = report(p, &weights);
			if (++reports >= 2 && is_enough(p, &verdict))
				return;
			next = now_ns() + half_ns;
		}
		stage_sleep(1);
	}
}

static void storm(struct stage *stage, bool judges_shares)
{
	struct play *p = start(stage);
	struct ch_profile_options options = {
		.size = sizeof options, .by_wall_clock = true, .memory_bytes = (size_t)1 << 30};
	struct ch_profile_counts counts = {.size = sizeof counts};
	struct stage_thread threads[THREADS];
	unsigned ms = storm_ms_of(STORM_MS);
	uint64_t weights;
	CHECK_EQ(ch_profile_start(stage->heap, RATE, &options), CH_OK);
	atomic_store(&p->at_work, THREADS);
	for (int i = 0; i < THREADS; i++)
		stage_spawn(stage, &threads[i], work, p);
	collect_for(p, ms);
	atomic_store(&p->is_over, true);
	/* With a full pool the threads wait for a cycle. */
	for (uint64_t n = 0; atomic_load(&p->at_work); n++) {
		collect_once(p, n);
		stage_sleep(1);
	}
	for (int i = 0; i < THREADS; i++)
		stage_join(&threads[i]);
	CHECK_EQ(ch_profile_stop(stage->heap, &counts), CH_OK);
	stage_collect(stage);
	struct verdict verdict = report(p, &weights);
	printf("%u blocks, %u calls, %u switches; %llu samples, %llu dropped, %llu of code, %llu "
	       "of code freed since, %llu of addresses used again since, %llu of code without a "
	       "name, %u stacks astray\n",
	       (unsigned)p->numbers, (unsigned)p->calls, (unsigned)p->switches,
	       (unsigned long long)counts.samples, (unsigned long long)counts.dropped,
	       (unsigned long long)verdict.code, (unsigned long long)verdict.freed,
	       (unsigned long long)verdict.reused, (unsigned long long)verdict.unnamed,
	       verdict.astray);
	CHECK(!judges_shares || verdict.astray <= 3 + counts.samples / 20000);
	CHECK_EQ(weights, counts.samples + counts.dropped);
	CHECK_EQ(counts.threads, THREADS + 1);
	/* Code dies under a frame just sampled, or under a frame told by old registers. This is
	 * rare, unless the machine delays the thread that names the code. */
	CHECK(!judges_shares || CH_TSAN || verdict.unnamed <= verdict.code / 10);
	CHECK(!judges_shares || counts.dropped <= counts.samples / 5);
	end(p);
}

#define PROFILE_STORM(name, test, driver, judges_shares) \
	test(name, 90)                                   \
	{                                                \
		storm(stage_new(driver), judges_shares); \
	}
PROFILE_STORM(storm_names_no_code_wrongly_polls, TEST_LIMIT, STAGE_POLLS, false)
PROFILE_STORM(storm_names_no_code_wrongly_signals, TEST_LIMIT, STAGE_SIGNALS, false)
PROFILE_STORM(storm_leaves_little_code_unnamed_polls, TEST_TIMED, STAGE_POLLS, true)
PROFILE_STORM(storm_leaves_little_code_unnamed_signals, TEST_TIMED, STAGE_SIGNALS, true)
#if CH_TEST_BDW
PROFILE_STORM(storm_names_no_code_wrongly_boehm, TEST_LIMIT, STAGE_BOEHM, false)
PROFILE_STORM(storm_leaves_little_code_unnamed_boehm, TEST_TIMED, STAGE_BOEHM, true)
#endif
