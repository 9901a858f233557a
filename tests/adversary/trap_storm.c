/* SPDX-License-Identifier: MIT
 * trap_storm.c: signals are described while other threads allocate, free and use places again. Each
 * line belongs to a single block. And heaps go while a handler looks for heaps. */
#define _GNU_SOURCE
#include "codeheap/graph/block_parts.h"
#include "codeheap/places/places.h"
#include "tests/support/trap_rig.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

/* A block's name tells the owner, the size and the kind of death. The parts of a line must
 * agree. */
enum { CHURNERS = 2, OWNERS = 3, SIZES = 5 };

struct storm {
	struct rig rig;
	_Atomic(bool) is_over;
	_Atomic(unsigned) deaths, described, freed, live, open;
};
struct churner {
	struct storm *storm;
	bool aborts;
	pthread_t thread;
};

static void *churn(void *arg)
{
	struct churner *c = arg;
	const struct rig *rig = &c->storm->rig;
	char name[40];
	CHECK_EQ(ch_thread_attach(rig->heap, NULL, NULL), CH_OK);
	for (unsigned i = 0; !c->storm->is_over; i++) {
		unsigned size = 20 + 16 * (i % SIZES);
		snprintf(name, sizeof name, "%s%u", c->aborts ? "aborted" : "released", i % OWNERS);
		struct ch_owner owner = rig_owner(rig, name);
		snprintf(name, sizeof name, "%s%u/%u", c->aborts ? "aborted" : "released",
			 i % OWNERS, size);
		struct ch_open open = {.owner = owner, .hot_bytes = size, .name = name};
		struct emitter e;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_filler(&e, size);
		if (c->aborts) {
			CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		} else {
			CHECK_EQ(emit_commit(&e), CH_OK);
			CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
		}
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		c->storm->deaths++;
	}
	CHECK_EQ(ch_thread_detach(rig->heap), CH_OK);
	return NULL;
}

static void check_agrees(struct storm *s, const char *text)
{
	char kind[20], how[200], own[80], owner[80];
	unsigned size, number, owned, index, generation, at;
	bool is_freed = !strncmp(text, "block `", 7), is_open = !strncmp(text, "open ", 5);
	const char *block = strstr(text, "block `");
	if (!block || !strncmp(text, "no block", 8))
		return;
	int n = sscanf(block,
		       "block `%79[^`]` (#%u.%u, owner `%79[^`]`)%199[^;]; executed at +0x%x", own,
		       &index, &generation, owner, how, &at);
	/* Without text between, the fifth field is empty. */
	if (n == 4) {
		*how = 0;
		n = 1 + sscanf(strstr(block, "; executed"), "; executed at +0x%x", &at) + 4;
	}
	if (n != 6)
		FAIL("trap: %d fields in: %s", n, text);
	if (sscanf(own, "%19[a-z]%u/%u", kind, &number, &size) != 3 ||
	    sscanf(owner + strlen(kind), "%u", &owned) != 1)
		FAIL("trap: names of nobody: %s", text);
	bool aborts = !strcmp(kind, "aborted");
	if (strncmp(owner, kind, strlen(kind)) != 0 || owned != number ||
	    at >= (size + CH__HEAD_BYTES + 7) / 8 * 8 || !(generation & 1))
		FAIL("trap: not of one block: %s", text);
	if (is_freed && !strstr(how, aborts ? "because it was aborted, never published"
					    : "because its owner was released (NOT_RUNNING)"))
		FAIL("trap: not its end: %s", text);
	s->freed += is_freed;
	s->open += is_open;
	s->live += !strncmp(text, "live ", 5);
}

static void storm(unsigned tombstones_log2)
{
	struct storm s = {.rig = rig_start(1 << 20)};
	struct churner churners[CHURNERS];
	struct made_up m;
	uint64_t end = now_ns() + storm_ms_of(600) * UINT64_C(1000000);
	s.rig.heap->config.remembered_dead = 1u << tombstones_log2;
	for (int i = 0; i < CHURNERS; i++) {
		churners[i] = (struct churner){&s, i % 2 == 0, 0};
		CHECK_EQ(pthread_create(&churners[i].thread, NULL, churn, &churners[i]), 0);
	}
	const uint8_t *base = (const uint8_t *)s.rig.heap->pool->exec_base;
	const size_t page = (size_t)1 << s.rig.heap->pool->page_log2;
	ch_thread_park();
	for (uint32_t i = 0;
	     now_ns() < end || s.deaths < 1000 || !s.freed || !s.live || !s.open; i++) {
		/* The first bytes of some pages: places used again all the time. */
		make_up(&m, base + i % 3 * page + i * 7 % 160, (uintptr_t)base + 40);
		if (!ch_trap_describe(s.rig.heap, &m.info, &m.context, caught.text,
				      sizeof caught.text))
			continue;
		check_agrees(&s, caught.text);
		s.described++;
	}
	s.is_over = true;
	for (int i = 0; i < CHURNERS; i++)
		pthread_join(churners[i].thread, NULL);
	ch_thread_unpark();
	printf("%u deaths, %u described: %u freed, %u live, %u open\n", s.deaths, s.described,
	       s.freed, s.live, s.open);
	CHECK_EQ(ch__place_readers, 0);
	rig_end(&s.rig);
}

TEST(lines_are_of_one_block_while_others_free)
{
	storm(CH__TOMBSTONES_LOG2);
}

/* Every death writes over the only tombstone. */
TEST(line_of_a_tombstone_that_is_written_over_is_of_one_block)
{
	storm(0);
}

TEST(lines_are_of_one_block_in_a_short_ring)
{
	storm(2);
}

/* --- heaps that go --- */

static _Atomic(bool) is_over;
static _Atomic(unsigned) handled;

static void note_handled(int signal, siginfo_t *info, void *ucontext)
{
	(void)signal;
	(void)info;
	code_step_over_trap(ucontext);
	handled++;
}

static void *trap_elsewhere(void *arg)
{
	(void)arg;
	while (!is_over)
		code_raise(SIGTRAP);
	return NULL;
}

TEST(heaps_go_while_handlers_look_for_them)
{
	struct sigaction action = {.sa_sigaction = note_handled, .sa_flags = SA_SIGINFO};
	pthread_t thread;
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	uint64_t end = now_ns() + storm_ms_of(500) * UINT64_C(1000000);
	struct rig rig = rig_start(1 << 20);
	CHECK_EQ(ch_trap_install(rig.heap), CH_OK);
	CHECK_EQ(pthread_create(&thread, NULL, trap_elsewhere, NULL), 0);
	while (now_ns() < end || handled < 100) {
		struct rig other = rig_start(1 << 20);
		CHECK_EQ(ch_trap_install(other.heap), CH_OK);
		rig_end(&other);
	}
	is_over = true;
	pthread_join(thread, NULL);
	CHECK_EQ(ch__place_readers, 0);
	rig_end(&rig);
}

struct slow_reader {
	_Atomic(int) state; /* 1 the thread reads, 2 the thread is about to end */
	_Atomic(bool) goes_on; /* the thread reads on until this is false */
};

static void *read_slowly(void *arg)
{
	struct slow_reader *reader = arg;
	ch__place_read_begin();
	reader->state = 1;
	usleep(50000);
	while (reader->goes_on)
		usleep(100);
	reader->state = 2;
	ch__place_read_end();
	return NULL;
}

/* A destroy waits for a second at most: the thread may have died while it read. */
TEST(heap_waits_for_a_handler_before_it_goes)
{
	struct slow_reader reader = {0};
	struct rig rig = rig_start(1 << 20);
	pthread_t thread;
	CHECK_EQ(ch_vm_detach(rig.vm), CH_OK);
	CHECK_EQ(pthread_create(&thread, NULL, read_slowly, &reader), 0);
	while (!reader.state)
		usleep(100);
	uint64_t before = now_ns();
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
	bool is_late = now_ns() - before > UINT64_C(900000000);
	if (reader.state != 2 && !is_late)
		FAIL("trap: a heap went while a handler was reading it");
	pthread_join(thread, NULL);
}

static bool is_mapped(const void *at)
{
	unsigned char is_resident;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	return mincore((void *)((uintptr_t)at & ~(page - 1)), page, &is_resident) == 0;
}

/* The thread of the handler has died, or is not let run. */
/* Until the next heap goes, or comes. */
static void leave_a_heap(bool comes)
{
	struct rig rig = rig_start(1 << 20);
	const uint8_t *code = block_info(rig_block(rig_owner(&rig, "o"), 3)).entry;
	uint8_t first = *code;
	CHECK_EQ(ch_vm_detach(rig.vm), CH_OK);
	ch__place_read_begin();
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
	struct rig other = rig_start(1 << 20);
	if (!is_mapped(code) || *code != first)
		FAIL("trap: a heap went while a handler was reading it");
	ch__place_read_end();
	struct rig next = comes ? rig_start(1 << 20) : other;
	CHECK(!comes || !ch__heaps_left);
	if (comes)
		rig_end(&next);
	rig_end(&other);
	if (!comes && is_mapped(code))
		FAIL("trap: a heap stays though nobody reads it");
}

TEST(heap_that_is_read_for_longer_is_left_until_nobody_reads)
{
	leave_a_heap(false);
	leave_a_heap(true);
}

/* In a child of fork the readers of other threads do not exist. */
static void churn_in_child(void *arg)
{
	struct rig *rig = arg;
	CHECK_EQ(ch__place_readers, 0);
	struct ch_open open = {.owner = rig_owner(rig, "o"), .hot_bytes = 20, .name = "n"};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK(!rig->heap->names_parked);
}

TEST_RIG(child_of_a_fork_has_no_readers)
{
	struct slow_reader reader = {.goes_on = true};
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, read_slowly, &reader), 0);
	while (!reader.state)
		usleep(100);
	CHECK_EQ(ch__place_readers, 1);
	expect_signal(churn_in_child, &rig, 0);
	reader.goes_on = false;
	pthread_join(thread, NULL);
}
