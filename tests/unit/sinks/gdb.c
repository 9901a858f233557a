/* SPDX-License-Identifier: MIT
 * gdb.c: GDB's JIT interface as a debugger reads it. No image is made until somebody looks; then
 * exactly one image shows each live range, and none shows a removed range. A SIGTRAP handler plays
 * the debugger, behind a breakpoint on the function that GDB watches. gdb_image.c tests the content
 * of an image. */
#define _GNU_SOURCE
#include "tests/support/frames_code.h"
#include "arch/registers.h"
#include "tests/unit/sinks/gdb.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>

TEST(nothing_is_made_until_somebody_asks)
{
	struct bed bed;
	open_gdb(&bed);
	CHECK(ch__sinks_page_live(bed.sinks, 0, 1, 0));
	add(&bed, 64, 40, 7);
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	ch__sinks_flush(bed.sinks, CH__FLUSH_COLLECTION);
	CHECK_EQ(gdb_list_length(), 0);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	CHECK_EQ(gdb_list_length(), 2); /* the runtime's image, and the chunk's */
	check_shown(&bed, 64, "fn_7");
	CHECK_STR(gdb_name_of((uintptr_t)bed.runtime), "codeheap_runtime");
	bed_close(&bed);
	CHECK_EQ(gdb_list_length(), 0);
}

/* --- withdrawal --- */
TEST_GDB(removed_range_is_in_no_image_when_its_collection_has_ended)
{
	for (size_t i = 0; i < 100; i++)
		add(bed, i * 640, 64, i); /* four pages */
	add(bed, BED_CHUNK_BYTES, 64, 900);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	for (size_t i = 0; i < 100; i += 2)
		discard(bed, i * 640, 64, i);
	ch__sinks_flush(bed->sinks, CH__FLUSH_COLLECTION);
	for (size_t i = 0; i < 100; i += 2)
		check_shown(bed, i * 640, NULL);
	check_shown(bed, BED_CHUNK_BYTES, "fn_900"); /* the chunk did not change */
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	for (size_t i = 0; i < 100; i++) {
		char name[40];
		bed_name(NULL, i, name, sizeof name);
		check_shown(bed, i * 640, i % 2 ? name : NULL);
	}
	add(bed, 0, 32, 1000);
	add(bed, 32, 32, 1001);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	check_shown(bed, 0, "fn_1000");
	check_shown(bed, 32, "fn_1001");
	gdb_list_length();
}

TEST_GDB(page_that_is_taken_again_has_the_frame_of_its_last_code)
{
	CHECK(ch__sinks_page_live(bed->sinks, 0, 1, CH_FRAME_POINTER));
	add(bed, 64, 64, 1);
	discard(bed, 64, 64, 1);
	ch__sinks_page_dead(bed->sinks, 0, 1);
	CHECK(ch__sinks_page_live(bed->sinks, 0, 1, CH_FRAME_LEAF));
	add(bed, 64, 64, 2);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	uintptr_t at = (uintptr_t)bed->pool + 64;
	const uint8_t *fde = gdb_fde_at(gdb_entry_of(at), at);
	CHECK(fde && !memcmp(program_of(fde), ch__arch_cfi_leaf, sizeof ch__arch_cfi_leaf));
}

TEST_GDB(chunk_that_goes_leaves_the_list)
{
	add(bed, 64, 64, 1);
	add(bed, BED_CHUNK_BYTES + 64, 64, 2);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	discard(bed, BED_CHUNK_BYTES + 64, 64, 2);
	ch__sinks_chunk_gone(bed->sinks, 1);
	CHECK_EQ(gdb_list_length(), 2);
	check_shown(bed, BED_CHUNK_BYTES + 64, NULL);
	check_shown(bed, 64, "fn_1");
}

static struct ch__sink_range told_late; /* the first of so many in a row */
static unsigned told_late_count;

static void tell_late(void *context, void (*visit)(void *, const struct ch__sink_range *),
		      void *arg)
{
	struct ch__sink_range range = told_late;
	(void)context;
	for (unsigned i = 0; i < told_late_count; i++, range.key++, range.exec += range.bytes)
		visit(arg, &range);
}

TEST(sink_that_is_off_is_not_in_the_list)
{
	struct bed bed;
	use_heads(&bed);
	bed.config.each = tell_late;
	told_late = range_at(&bed, 640, 64, 77);
	told_late_count = 1;
	CHECK_EQ(ch__sinks_create(&bed.config, CH_SINK_GDB, &bed.sinks), 0);
	add(&bed, 64, 64, 1);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	CHECK_EQ(gdb_list_length(), 2);
	CHECK_EQ(ch__sinks_set(bed.sinks, 0), 0);
	CHECK_EQ(gdb_list_length(), 0);
	add(&bed, 128, 64, 2); /* no sink is told */
	CHECK_EQ(ch__sinks_set(bed.sinks, CH_SINK_GDB), 0);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	check_shown(&bed, 640, "fn_77");
	check_shown(&bed, 64, NULL);
	bed_close(&bed);
}

/* A page that died in between may have had a block with its own frames, so the shape is unknown. */
TEST_GDB(sink_that_was_off_does_not_know_the_shapes_of_the_dead)
{
	CHECK(ch__sinks_page_live(bed->sinks, 0, 1, 0));
	CHECK(ch__sinks_page_live(bed->sinks, 1, 1, 0));
	CHECK_EQ(ch__sinks_set(bed->sinks, 0), 0);
	ch__sinks_page_dead(bed->sinks, 0, 1);
	CHECK_EQ(ch__sinks_set(bed->sinks, CH_SINK_GDB), 0);
	add(bed, 64, 40, 1);
	add(bed, BED_PAGE_BYTES + 64, 40, 2);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	uintptr_t pool = (uintptr_t)bed->pool;
	check_shown(bed, 64, "fn_1");
	if (gdb_fde_at(gdb_entry_of(pool + 64), pool + 64))
		FAIL("gdb: a page that died while the sink was off has a frame");
	CHECK(gdb_fde_at(gdb_entry_of(pool + 64), pool + BED_PAGE_BYTES + 64));
}

TEST_GDB(range_that_nobody_told_of_is_removed_without_harm)
{
	discard(bed, 64, 64, 1);
	add(bed, 64, 64, 1);
	add(bed, 192, 64, 2);
	discard(bed, 128, 64, 3);
	discard(bed, 256, 64, 4);
	discard(bed, BED_CHUNK_BYTES, 64, 5);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	check_shown(bed, 64, "fn_1");
	check_shown(bed, 192, "fn_2");
}

TEST(heaps_share_the_list)
{
	struct bed first, second;
	open_gdb(&first);
	open_gdb(&second);
	add(&first, 64, 64, 1);
	add(&second, 64, 64, 2);
	ch__sinks_flush(first.sinks, CH__FLUSH_EXACT);
	ch__sinks_flush(second.sinks, CH__FLUSH_EXACT);
	CHECK_EQ(gdb_list_length(), 4);
	check_shown(&first, 64, "fn_1");
	check_shown(&second, 64, "fn_2");
	uintptr_t gone = (uintptr_t)first.pool + 64;
	bed_close(&first);
	CHECK_EQ(gdb_list_length(), 2);
	CHECK(gdb_name_of(gone) == NULL);
	check_shown(&second, 64, "fn_2");
	bed_close(&second);
}

/* --- a debugger that listens --- */
enum { MOST_FILES = 1024 };

static struct {
	struct gdb_entry *files[MOST_FILES]; /* files that the debugger was told of */
	unsigned count, events;
	size_t symbols; /* read by the debugger */
	bool is_bad;    /* some event made no sense to a debugger */
	uint8_t first_bytes[sizeof code_debuggers_trap];
} debugger;

/* A debugger that attaches at this moment reads the list, and hears of no entry again. */
static bool is_listed(const struct gdb_entry *entry)
{
	const struct gdb_entry *at = __jit_debug_descriptor.first;
	while (at && at != entry)
		at = at->next;
	return at != NULL;
}

static void hear(void)
{
	struct gdb_entry *entry = __jit_debug_descriptor.relevant;
	unsigned at = 0;
	while (at < debugger.count && debugger.files[at] != entry)
		at++;
	bool is_known = at < debugger.count;
	debugger.events++;
	if (is_listed(entry) != (__jit_debug_descriptor.action == 1)) {
		debugger.is_bad = true;
	} else if (__jit_debug_descriptor.action == 1 && entry && !is_known && at < MOST_FILES) {
		debugger.files[debugger.count++] = entry;
		debugger.symbols += gdb_symbol_count(entry);
	} else if (__jit_debug_descriptor.action == 2 && is_known) {
		debugger.files[at] = debugger.files[--debugger.count];
	} else {
		debugger.is_bad = true;
	}
}

/* At the breakpoint the function returns at once. */
static void at_breakpoint(int signal, siginfo_t *info, void *context)
{
	if (ch__arch_trap_address(signal, info->si_code, context) !=
	    (uintptr_t)__jit_debug_register_code)
		_exit(9);
	hear();
	code_leave_at_trap(context);
}

/* Writes as a debugger does, past the protection of the page. */
static void put_first_bytes(const uint8_t *bytes)
{
	uint8_t *function = (uint8_t *)(uintptr_t)__jit_debug_register_code;
	int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	CHECK_EQ(pwrite(fd, bytes, sizeof debugger.first_bytes, (off_t)(uintptr_t)function),
		 sizeof debugger.first_bytes);
	close(fd);
	ch__arch_sync(function, sizeof debugger.first_bytes);
}

static void attach_debugger(void)
{
	struct sigaction action = {.sa_sigaction = at_breakpoint, .sa_flags = SA_SIGINFO};
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	for (struct gdb_entry *entry = __jit_debug_descriptor.first; entry; entry = entry->next)
		debugger.files[debugger.count++] = entry;
	memcpy(debugger.first_bytes, (const void *)(uintptr_t)__jit_debug_register_code,
	       sizeof debugger.first_bytes);
	put_first_bytes(code_debuggers_trap);
}

static void detach_debugger(void)
{
	put_first_bytes(debugger.first_bytes);
	CHECK(!debugger.is_bad);
	CHECK_EQ(debugger.count, gdb_list_length());
}

TEST_GDB(debugger_knows_a_range_when_its_add_returns)
{
	add(bed, 64, 64, 1);
	attach_debugger();
	CHECK_EQ(debugger.events, 0);
	add(bed, 640, 64, 2);
	CHECK(debugger.events > 0);
	check_shown(bed, 64, "fn_1"); /* with the code from before */
	check_shown(bed, 640, "fn_2");
	discard(bed, 64, 64, 1);
	ch__sinks_flush(bed->sinks, CH__FLUSH_COLLECTION);
	check_shown(bed, 64, NULL);
	check_shown(bed, 640, "fn_2");
	detach_debugger();
	discard(bed, 640, 64, 2);
	ch__sinks_flush(bed->sinks, CH__FLUSH_COLLECTION);
	CHECK_EQ(gdb_list_length(), 1); /* the runtime's image */
}

/* Not range by range, with an image for each. */
TEST(debugger_reads_what_comes_late_at_once)
{
	struct bed bed;
	use_heads(&bed);
	bed.config.each = tell_late;
	told_late = range_at(&bed, 64, 64, 0);
	told_late_count = 100;
	CHECK_EQ(ch__sinks_create(&bed.config, 0, &bed.sinks), 0);
	attach_debugger();
	CHECK_EQ(ch__sinks_set(bed.sinks, CH_SINK_GDB), 0);
	CHECK_EQ(debugger.events, 2); /* the runtime, and the chunk */
	check_shown(&bed, 64 + 99 * 64, "fn_99");
	detach_debugger();
	bed_close(&bed);
}

static bool hears_of(const struct gdb_entry *entry)
{
	for (unsigned i = 0; i < debugger.count; i++)
		if (debugger.files[i] == entry)
			return true;
	return false;
}

/* gdb 13 remembers the function that `finish` leaves, and dies when the function's image goes. */
TEST_GDB(image_stays_while_what_it_shows_lives)
{
	attach_debugger();
	add(bed, 64, 64, 1);
	const struct gdb_entry *first = gdb_entry_of((uintptr_t)bed->pool + 64);
	for (size_t i = 2; i < 400; i++)
		add(bed, i * 64, 64, i);
	CHECK(hears_of(first));
	CHECK(gdb_entry_of((uintptr_t)bed->pool + 64) == first);
	discard(bed, 5 * 64, 64, 5);
	add(bed, 5 * 64, 64, 1000); /* in the place of the dead code */
	CHECK(hears_of(first));
	check_shown(bed, 5 * 64, "fn_1000");
	discard(bed, 64, 64, 1);
	ch__sinks_flush(bed->sinks, CH__FLUSH_COLLECTION);
	CHECK(!hears_of(first));
	check_shown(bed, 64, NULL);
	detach_debugger();
}

TEST_GDB(what_outlives_its_neighbour_is_shown_apart_from_what_is_new)
{
	struct ch__sink_range two[] = {range_at(bed, 64, 64, 1), range_at(bed, 128, 64, 2)};
	uintptr_t pool = (uintptr_t)bed->pool;
	attach_debugger();
	ch__sinks_add(bed->sinks, two, 2);
	CHECK(gdb_entry_of(pool + 64) == gdb_entry_of(pool + 128));
	discard(bed, 64, 64, 1);
	add(bed, 192, 64, 3);
	const struct gdb_entry *left = gdb_entry_of(pool + 128);
	CHECK(left && left != gdb_entry_of(pool + 192));
	discard(bed, 192, 64, 3);
	add(bed, 192, 64, 4);
	CHECK(gdb_entry_of(pool + 128) == left);
	check_shown(bed, 192, "fn_4");
	detach_debugger();
}

TEST_GDB(images_become_one_a_chunk_when_nobody_listens)
{
	attach_debugger();
	for (size_t i = 1; i < 20; i++)
		add(bed, i * 64, 64, i);
	CHECK_EQ(gdb_list_length(), 20); /* with the runtime's image */
	detach_debugger();
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	CHECK_EQ(gdb_list_length(), 2);
	for (size_t i = 1; i < 20; i++)
		CHECK(gdb_name_of((uintptr_t)bed->pool + i * 64));
}

/* A core that gcore makes has the image. A mark in the image goes with it. */
TEST_GDB(image_stays_when_nobody_listens_and_nothing_of_it_is_removed)
{
	add(bed, 64, 64, 1);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	const struct gdb_entry *entry = gdb_entry_of((uintptr_t)bed->pool + 64);
	uint8_t *mark = (uint8_t *)(uintptr_t)&entry->file[EI_NIDENT - 1];
	*mark = 1;
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	add(bed, 640, 64, 2);
	ch__sinks_flush(bed->sinks, CH__FLUSH_COLLECTION);
	entry = gdb_entry_of((uintptr_t)bed->pool + 64);
	CHECK(entry && entry->file[EI_NIDENT - 1] == 1);
}

/* The image has the code shown before and the new code. */
TEST_GDB(chunk_has_one_image_when_nobody_listened_to_a_part_of_it)
{
	attach_debugger();
	add(bed, 64, 64, 1);
	add(bed, 128, 64, 2);
	detach_debugger();
	add(bed, 192, 64, 3);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	CHECK_EQ(gdb_list_length(), 2); /* with the runtime's image */
	const struct gdb_entry *entry = gdb_entry_of((uintptr_t)bed->pool + 64);
	CHECK(entry && entry == gdb_entry_of((uintptr_t)bed->pool + 128));
	CHECK(entry == gdb_entry_of((uintptr_t)bed->pool + 192));
}

/* The sink did not hear of the old range's end. The old name goes, and the other ranges of the old
 * image are shown again. */
TEST_GDB(range_that_is_told_twice_is_shown_by_its_last_name)
{
	struct ch__sink_range two[] = {range_at(bed, 64, 64, 1), range_at(bed, 128, 64, 2)};
	attach_debugger();
	ch__sinks_add(bed->sinks, two, 2);
	CHECK_EQ(gdb_list_length(), 2);
	add(bed, 64, 64, 3);
	check_shown(bed, 64, "fn_3");
	check_shown(bed, 128, "fn_2");
	CHECK_EQ(gdb_list_length(), 3);
	for (const struct gdb_entry *e = __jit_debug_descriptor.first; e; e = e->next) {
		const char *name;
		if (gdb_symbol_at(e, (uintptr_t)bed->pool + 64, &name))
			CHECK_STR(name, "fn_3");
	}
	detach_debugger();
}

/* A debugger reads the new ranges each time, and all ranges now and then. */
TEST_GDB(what_a_debugger_reads_does_not_grow_with_the_square)
{
	enum { RANGES = 4000, BYTES = 160, A_PAGE = BED_PAGE_BYTES / BYTES, MOST = 600 };
	attach_debugger();
	for (size_t i = 0; i < RANGES; i++) {
		add(bed, i / A_PAGE * BED_PAGE_BYTES + i % A_PAGE * BYTES, BYTES, i);
		CHECK(debugger.count < MOST);
	}
	CHECK(debugger.events <= 3 * RANGES);
	CHECK(debugger.symbols < (size_t)RANGES * 10);
	detach_debugger();
}

/* Each page of an old chunk has a hole. The debugger reads only the ranges added there, and those
 * of a chunk that has one range at a time. */
TEST(debugger_of_an_old_chunk_reads_what_is_new)
{
	enum { BYTES = 160, A_PAGE = BED_PAGE_BYTES / BYTES, RANGES = 1000 };
	struct bed bed;
	struct test_random random = test_random_new();
	open_gdb(&bed);
	for (size_t page = 0; page < BED_PAGES_PER_CHUNK; page++)
		for (size_t i = 0; i + 1 < A_PAGE; i++)
			add(&bed, page * BED_PAGE_BYTES + i * BYTES, BYTES, i);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	CHECK_EQ(gdb_list_length(), 2); /* one image for all the code */
	attach_debugger();
	for (size_t i = 0; i < RANGES; i++) {
		size_t page = test_random_below(&random, BED_PAGES_PER_CHUNK);
		size_t at = page * BED_PAGE_BYTES + (A_PAGE - 1) * BYTES;
		add(&bed, at, BYTES, i);
		CHECK(gdb_name_of((uintptr_t)bed.pool + at));
		discard(&bed, at, BYTES, i);
		add(&bed, BED_CHUNK_BYTES, BYTES, i);
		discard(&bed, BED_CHUNK_BYTES, BYTES, i);
		CHECK(debugger.symbols <= 2 * (i + 1));
	}
	CHECK(debugger.count < 20);
	detach_debugger();
	bed_close(&bed);
}

/* --- a storm against a model: 64-byte cells; key 0 = none --- */
enum {
	CELL = 64,
	CELLS_A_PAGE = BED_PAGE_BYTES / CELL,
	PAGES = BED_PAGES_PER_CHUNK + 8,
	CELLS = PAGES * CELLS_A_PAGE
};

struct model {
	struct bed bed;
	struct test_random random;
	uint64_t keys[CELLS];
	bool was_removed[CELLS]; /* since the last collection */
};

static void model_step(struct model *m, uint64_t *next_key)
{
	/* Works on few pages at a time, as threads compile into pages of their own. */
	size_t page = test_random_below(&m->random, PAGES);
	for (uint64_t n = 1 + test_random_below(&m->random, 8); n > 0; n--) {
		size_t cell = page * CELLS_A_PAGE + test_random_below(&m->random, CELLS_A_PAGE);
		if (m->keys[cell]) {
			discard(&m->bed, cell * CELL, CELL, m->keys[cell]);
			m->keys[cell] = 0;
			m->was_removed[cell] = true;
		} else {
			m->keys[cell] = ++*next_key;
			add(&m->bed, cell * CELL, CELL, m->keys[cell]);
		}
	}
}

/* Checks that every cell is shown with its name. With may_lag a removed cell may still be shown,
 * and a new cell may be missing. */
static void model_check(const struct model *m, bool may_lag)
{
	static const char *shown[CELLS];
	memset(shown, 0, sizeof shown);
	for (const struct gdb_entry *entry = __jit_debug_descriptor.first; entry;
	     entry = entry->next) {
		for (size_t i = 0; i < gdb_symbol_count(entry); i++) {
			const char *name;
			const Elf64_Sym *symbol = gdb_symbol(entry, i, &name);
			size_t cell = (symbol->st_value - (uintptr_t)m->bed.pool) / CELL;
			if (cell >= CELLS)
				continue; /* symbol of the runtime */
			if (shown[cell])
				FAIL("gdb: cell %zu is shown twice", cell);
			shown[cell] = name;
		}
	}
	for (size_t cell = 0; cell < CELLS; cell++) {
		char name[40];
		bed_name(NULL, m->keys[cell], name, sizeof name);
		if (!m->keys[cell] && shown[cell] && !(may_lag && m->was_removed[cell]))
			FAIL("gdb: %s is shown in cell %zu, which is free", shown[cell], cell);
		if (m->keys[cell] && !shown[cell] && !may_lag)
			FAIL("gdb: cell %zu with %s is not shown", cell, name);
		if (m->keys[cell] && shown[cell] && !may_lag)
			CHECK_STR(shown[cell], name);
	}
	gdb_list_length();
}

/* No two images claim a cell. */
static void check_sections(const struct model *m)
{
	for (size_t cell = 0; cell < CELLS; cell++)
		gdb_entry_of((uintptr_t)m->bed.pool + cell * CELL);
}

TEST(storm_shows_what_lives)
{
	struct model *m = calloc(1, sizeof *m);
	uint64_t next_key = 0;
	CHECK(m != NULL);
	open_gdb(&m->bed);
	m->random = test_random_new();
	uint64_t end = now_ns() + storm_ms() * UINT64_C(500000);
	bool is_attached = false;
	while (now_ns() < end) {
		if (test_random_below(&m->random, 64) == 0) {
			if (is_attached)
				detach_debugger();
			else
				attach_debugger();
			is_attached = !is_attached;
			if (!is_attached)
				debugger.count = 0;
		}
		for (uint64_t n = test_random_below(&m->random, 30); n > 0; n--)
			model_step(m, &next_key);
		unsigned how = (unsigned)test_random_below(&m->random, 3);
		ch__sinks_flush(m->bed.sinks, (enum ch__flush)how);
		if (how != CH__FLUSH_BUFFERED)
			memset(m->was_removed, 0, sizeof m->was_removed);
		model_check(m, !is_attached && how != CH__FLUSH_EXACT);
		check_sections(m);
	}
	if (is_attached)
		detach_debugger();
	CHECK_EQ(ch__sinks_status(m->bed.sinks, CH_SINK_GDB), 0);
	bed_close(&m->bed);
	free(m);
}

/* --- threads --- */
static void *churn(void *arg)
{
	struct bed *bed = arg;
	uint64_t end = now_ns() + storm_ms() * UINT64_C(300000);
	for (size_t i = 0; now_ns() < end; i++) {
		size_t at = BED_CHUNK_BYTES + i % 1000 * 64;
		add(bed, at, 64, i + 1);
		if (i % 50 == 0)
			ch__sinks_flush(bed->sinks, (enum ch__flush)(i / 50 % 3));
		discard(bed, at, 64, i + 1);
	}
	return NULL;
}

TEST(threads_that_tell_two_heaps_leave_the_list_whole)
{
	struct bed first, second;
	pthread_t thread;
	open_gdb(&first);
	open_gdb(&second);
	add(&second, 64, 64, 1);
	CHECK_EQ(pthread_create(&thread, NULL, churn, &first), 0);
	churn(&second);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	ch__sinks_flush(first.sinks, CH__FLUSH_EXACT);
	ch__sinks_flush(second.sinks, CH__FLUSH_EXACT);
	gdb_list_length();
	check_shown(&second, 64, "fn_1");
	check_shown(&first, BED_CHUNK_BYTES, NULL);
	bed_close(&first);
	bed_close(&second);
	CHECK_EQ(gdb_list_length(), 0);
}

/* --- fork --- */
static void fork_prepare(struct bed *bed)
{
	ch__sinks_lock(bed->sinks);
	ch__sinks_fork_files_prepare();
}

TEST(child_has_a_list_of_its_own)
{
	struct bed bed;
	open_gdb(&bed);
	add(&bed, 64, 64, 1);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	fork_prepare(&bed);
	pid_t child = fork();
	if (child == 0) {
		ch__sinks_fork_files_done(true);
		ch__sinks_fork_child(bed.sinks, true);
		check_shown(&bed, 64, "fn_1");
		discard(&bed, 64, 64, 1);
		add(&bed, 640, 64, 2);
		ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
		check_shown(&bed, 64, NULL);
		check_shown(&bed, 640, "fn_2");
		bed_close(&bed);
		_exit(gdb_list_length() == 0 ? 0 : 1);
	}
	ch__sinks_fork_files_done(false);
	ch__sinks_unlock(bed.sinks);
	expect_exit(child, 0);
	CHECK_EQ(gdb_list_length(), 2);
	check_shown(&bed, 64, "fn_1");
	check_shown(&bed, 640, NULL);
	bed_close(&bed);
}

/* --- failures --- */
static int run_until_failure(struct bed *bed)
{
	for (size_t i = 0; i < 40; i++)
		add(bed, i % 4 * BED_PAGE_BYTES + i * 64, 64, i);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	discard(bed, 64 + BED_PAGE_BYTES, 64, 1);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	add(bed, BED_CHUNK_BYTES, 64, 100);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	return ch__sinks_status(bed->sinks, CH_SINK_GDB);
}

TEST(each_failure_switches_off_and_says_why)
{
	struct bed bed;
	unsigned failed = 0;
	for (uint64_t nth = 1;; nth++) {
		CHECK(nth < 200);
		use_heads(&bed);
		ch__os_fail_at(nth, false);
		int error = ch__sinks_create(&bed.config, CH_SINK_GDB, &bed.sinks);
		if (!error)
			error = run_until_failure(&bed);
		bool is_hit = ch__os_failable_calls() >= nth;
		ch__os_fail_at(0, false);
		if (!is_hit) {
			CHECK_EQ(error, 0);
			CHECK_EQ(ch__sinks_on(bed.sinks), CH_SINK_GDB);
			bed_close(&bed);
			break;
		}
		failed++;
		CHECK(!bed.sinks || ch__sinks_status(bed.sinks, CH_SINK_GDB) == ENOMEM);
		CHECK(!bed.sinks || ch__sinks_on(bed.sinks) == 0);
		CHECK_EQ(gdb_list_length(), 0);
		if (bed.sinks) { /* the sink can be turned on again */
			CHECK_EQ(ch__sinks_set(bed.sinks, CH_SINK_GDB), 0);
			add(&bed, 64, 64, 1);
			ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
			check_shown(&bed, 64, "fn_1");
			CHECK_EQ(ch__sinks_status(bed.sinks, CH_SINK_GDB), 0);
		}
		bed_close(&bed);
	}
	CHECK(failed >= 8);
}

/* --- the path of a fatal signal --- */
static struct ch__sinks *dying;

static size_t name_that_dies(void *context, uint64_t key, char *out, size_t out_bytes)
{
	struct ch__sinks *sinks = dying;
	dying = NULL;
	if (sinks)
		ch__sinks_fatal(sinks); /* as the handler does, above the lock's holder */
	return bed_name(context, key, out, out_bytes);
}

TEST(fatal_path_shows_all_and_waits_for_no_lock)
{
	struct bed bed;
	open_gdb(&bed);
	add(&bed, 64, 64, 1);
	ch__sinks_fatal(bed.sinks);
	check_shown(&bed, 64, "fn_1");
	bed_close(&bed);
	use_heads(&bed);
	bed.config.name = name_that_dies;
	CHECK_EQ(ch__sinks_create(&bed.config, CH_SINK_GDB, &bed.sinks), 0);
	add(&bed, 64, 64, 1);
	dying = bed.sinks;
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	CHECK(dying == NULL);
	check_shown(&bed, 64, "fn_1");
	bed_close(&bed);
}
