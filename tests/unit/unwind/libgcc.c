/* SPDX-License-Identifier: MIT
 * libgcc.c: code pages in the unwinder. A page is found while live and at no other time, passed by
 * a real backtrace, and undisturbed by other pages that come and go. */
#define _GNU_SOURCE
#include "tests/support/frames_code.h"
#include "tests/support/unwind_rig.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unwind.h>

static const uint8_t *page_at(const struct bed *bed, uint32_t page)
{
	return bed->pool + (size_t)page * BED_PAGE_BYTES;
}

/* Says whether the whole page is known; fails when its bytes disagree. */
static bool is_page_known(const struct bed *bed, uint32_t page)
{
	const uint8_t *at = page_at(bed, page);
	bool first = libgcc_knows(at);
	CHECK_EQ(libgcc_knows(at + BED_PAGE_BYTES / 2), first);
	CHECK_EQ(libgcc_knows(at + BED_PAGE_BYTES - 1), first);
	return first;
}

static void check_only_live(const struct bed *bed, uint32_t first, uint32_t pages)
{
	for (uint32_t page = 0; page < BED_CHUNKS * BED_PAGES_PER_CHUNK; page++)
		CHECK_EQ(is_page_known(bed, page), page >= first && page < first + pages);
}

TEST_BED(page_is_known_only_while_live, CH_SINK_UNWIND)
{
	static const uint32_t pages[] = {0, 1, 63, 64, 100, 191};
	check_only_live(bed, 0, 0);
	for (unsigned i = 0; i < sizeof pages / sizeof pages[0]; i++) {
		CHECK(ch__sinks_page_live(bed->sinks, pages[i], 1, 0));
		check_only_live(bed, pages[i], 1);
		ch__sinks_page_dead(bed->sinks, pages[i], 1);
		check_only_live(bed, 0, 0);
	}
	CHECK(!libgcc_knows(bed->pool + BED_POOL_BYTES));
}

/* A pointer to the part of the runtime page, of each chunk, and of each 256 KiB of slots. */
TEST_BED(state_has_room_for_the_parts_of_a_large_pool, 0)
{
	struct ch__sinks_config config = bed->config;
	struct ch__sinks *sinks;
	config.pool_bytes = (size_t)4 << 30;
	size_t parts = 1 + config.pool_bytes / config.chunk_bytes + config.pool_bytes / (256 << 10);
	CHECK_EQ(ch__sinks_create(&config, 0, &sinks), 0);
	size_t before = ch__meta_bytes(config.meta);
	CHECK_EQ(ch__sinks_set(sinks, CH_SINK_UNWIND), 0);
	CHECK(ch__meta_bytes(config.meta) - before >= parts * sizeof(void *));
	CHECK(ch__sinks_destroy(sinks));
}

TEST_BED(page_dead_leaves_neighbours_known, CH_SINK_UNWIND)
{
	for (uint32_t page = 60; page < 68; page++)
		CHECK(ch__sinks_page_live(bed->sinks, page, 1, 0));
	check_only_live(bed, 60, 8);
	ch__sinks_page_dead(bed->sinks, 63, 1);
	CHECK(!is_page_known(bed, 63));
	for (uint32_t page = 60; page < 68; page++)
		CHECK_EQ(is_page_known(bed, page), page != 63);
}

TEST_BED(span_over_chunks_is_known_at_every_page, CH_SINK_UNWIND)
{
	CHECK(ch__sinks_page_live(bed->sinks, 50, 100, 0));
	check_only_live(bed, 50, 100);
	ch__sinks_page_dead(bed->sinks, 50, 100);
	check_only_live(bed, 0, 0);
}

TEST_BED(chunk_gone_is_unknown_and_comes_back, CH_SINK_UNWIND)
{
	size_t before = ch__meta_bytes(bed->config.meta);
	for (int round = 0; round < 3; round++) {
		CHECK(ch__sinks_page_live(bed->sinks, 70, 1, 0));
		CHECK(is_page_known(bed, 70));
		ch__sinks_page_dead(bed->sinks, 70, 1);
		if (round == 2) /* a sink that is off has its sections */
			CHECK_EQ(ch__sinks_set(bed->sinks, 0), 0);
		ch__sinks_chunk_gone(bed->sinks, 1);
		check_only_live(bed, 0, 0);
		CHECK_EQ(ch__meta_bytes(bed->config.meta), before);
	}
}

TEST_BED(chunk_gone_leaves_its_neighbours_known, CH_SINK_UNWIND)
{
	for (uint32_t chunk = 0; chunk < BED_CHUNKS; chunk++)
		CHECK(ch__sinks_page_live(bed->sinks, chunk * BED_PAGES_PER_CHUNK, 1, 0));
	ch__sinks_page_dead(bed->sinks, BED_PAGES_PER_CHUNK, 1);
	CHECK(ch__sinks_page_live(bed->sinks, 2 * BED_PAGES_PER_CHUNK - 1, 1, 0));
	ch__sinks_chunk_gone(bed->sinks, 1);
	CHECK(!ch__sinks_page_is_live(bed->sinks, 2 * BED_PAGES_PER_CHUNK - 1, 0));
	for (uint32_t chunk = 0; chunk < BED_CHUNKS; chunk++)
		CHECK_EQ(is_page_known(bed, chunk * BED_PAGES_PER_CHUNK), chunk != 1);
}

TEST_BED(unwind_turned_on_late_knows_live_pages, 0)
{
	CHECK_EQ(ch__sinks_on(bed->sinks), 0);
	CHECK(ch__sinks_page_live(bed->sinks, 10, 60, 0));
	CHECK(ch__sinks_page_live(bed->sinks, 9, 1, 0));
	ch__sinks_page_dead(bed->sinks, 9, 6);
	check_only_live(bed, 0, 0);
	CHECK_EQ(ch__sinks_set(bed->sinks, CH_SINK_UNWIND), 0);
	CHECK_EQ(ch__sinks_on(bed->sinks), CH_SINK_UNWIND);
	check_only_live(bed, 15, 55);
	CHECK_EQ(ch__sinks_set(bed->sinks, 0), 0);
	check_only_live(bed, 0, 0);
	ch__sinks_page_dead(bed->sinks, 15, 54);
	CHECK_EQ(ch__sinks_set(bed->sinks, CH_SINK_UNWIND), 0);
	check_only_live(bed, 69, 1);
}

TEST_BED(page_without_metadata_is_refused, CH_SINK_UNWIND)
{
	CHECK(ch__sinks_page_live(bed->sinks, 0, 1, 0));
	ch__os_fail_at(1, false);
	CHECK(!ch__sinks_page_live(bed->sinks, 63, 2, 0));
	CHECK(!ch__sinks_page_is_live(bed->sinks, 63, 0));
	ch__os_fail_at(0, false);
	check_only_live(bed, 0, 1);
	CHECK(ch__sinks_page_live(bed->sinks, 63, 2, 0));
	ch__sinks_page_dead(bed->sinks, 0, 1);
	check_only_live(bed, 63, 2);
}

TEST_BED(error_of_an_unwinder_ends_when_nobody_wants_it, 0)
{
	ch__os_fail_at(1, true);
	CHECK_EQ(ch__sinks_set(bed->sinks, CH_SINK_UNWIND), ENOMEM);
	ch__os_fail_at(0, false);
	CHECK_EQ(ch__sinks_status(bed->sinks, CH_SINK_UNWIND), ENOMEM);
	CHECK_EQ(ch__sinks_set(bed->sinks, 0), 0);
	CHECK_EQ(ch__sinks_status(bed->sinks, CH_SINK_UNWIND), 0);
}

/* A call fails after some of the live pages have been told. */
TEST(unwind_that_cannot_be_turned_on_knows_no_page)
{
	enum { PAGES = BED_CHUNKS * BED_PAGES_PER_CHUNK };
	int error = ENOMEM;
	for (uint64_t n = 1; error; n++) {
		struct bed bed;
		bed_open(&bed, 0);
		CHECK(ch__sinks_page_live(bed.sinks, 0, PAGES, 0));
		ch__os_fail_at(n, true);
		error = ch__sinks_set(bed.sinks, CH_SINK_UNWIND);
		ch__os_fail_at(0, false);
		check_only_live(&bed, 0, error ? 0 : PAGES);
		CHECK(error || n > 2 + BED_CHUNKS);
		bed_close(&bed);
	}
}

TEST(pool_is_unknown_after_destroy)
{
	struct bed bed;
	bed_open(&bed, CH_SINK_UNWIND);
	CHECK(ch__sinks_page_live(bed.sinks, 191, 1, 0)); /* the last chunk first */
	CHECK(ch__sinks_page_live(bed.sinks, 0, 191, 0));
	CHECK(libgcc_knows(bed.runtime));
	const uint8_t *pool = bed.pool, *runtime = bed.runtime;
	bed_close(&bed);
	CHECK(!libgcc_knows(pool));
	CHECK(!libgcc_knows(pool + BED_POOL_BYTES - 1));
	CHECK(!libgcc_knows(runtime));
}

/* --- ranges of objects --- */

enum { OBJECTS_MOST = 64 };
static struct {
	uintptr_t low, high;
} objects[OBJECTS_MOST];
static _Atomic(unsigned) objects_count;

/* A libgcc from version 13 on finds an object by the range of its pcs when it is registered, those
 * of a range of 0 bytes included. Earlier ones look at every object. Weak: a static program has
 * libgcc's own, and no other. */
__attribute__((weak)) void __register_frame_info(const void *begin, void *object);
void __register_frame_info(const void *begin, void *object)
{
	void (*real)(const void *, void *);
	struct ch__eh_frame_fde fde;
	unsigned n = atomic_fetch_add(&objects_count, 1);
	if (n < OBJECTS_MOST)
		objects[n].low = UINTPTR_MAX;
	for (size_t at = 0; n < OBJECTS_MOST && ch__eh_frame_next(begin, &at, &fde);) {
		uintptr_t end = fde.low + fde.bytes;
		objects[n].low = fde.low < objects[n].low ? fde.low : objects[n].low;
		objects[n].high = end > objects[n].high ? end : objects[n].high;
	}
	*(void **)&real = dlsym(RTLD_NEXT, "__register_frame_info");
	CHECK(real);
	real(begin, object);
}

TEST_BED(ranges_of_registered_objects_overlap_nowhere, CH_SINK_UNWIND)
{
	for (uint32_t page = 0; page < BED_CHUNKS * BED_PAGES_PER_CHUNK; page++)
		CHECK(ch__sinks_page_live(bed->sinks, page, 1, 0));
	unsigned count = atomic_load(&objects_count);
	CHECK(count > 1 && count <= OBJECTS_MOST);
	for (unsigned i = 0; i < count; i++) {
		CHECK(objects[i].low < objects[i].high);
		for (unsigned j = 0; j < i; j++)
			CHECK(objects[i].high <= objects[j].low ||
			      objects[j].high <= objects[i].low);
	}
}

/* libgcc 12 unwinds without a lock until it is told of an object. Another library may have told of
 * its own when it was loaded. */
TEST(libgcc_is_told_of_no_object_without_its_sink)
{
	unsigned before = atomic_load(&objects_count);
	struct bed bed;
	bed_open(&bed, CH_SINK_NONE);
	for (uint32_t page = 0; page < BED_CHUNKS * BED_PAGES_PER_CHUNK; page++)
		CHECK(ch__sinks_page_live(bed.sinks, page, 1, 0));
	CHECK_EQ(atomic_load(&objects_count), before);
	bed_close(&bed);
}

/* --- real backtraces --- */

struct trace {
	uintptr_t code_return; /* return address in the code */
	uintptr_t caller;      /* the next frame is in the body of this function */
	bool has_code, has_beyond;
};

static _Thread_local struct trace trace;

static _Unwind_Reason_Code see_frame(struct _Unwind_Context *context, void *arg)
{
	(void)arg;
	uintptr_t pc = (uintptr_t)_Unwind_GetIP(context);
	if (trace.has_code && pc > trace.caller && pc < trace.caller + 256)
		trace.has_beyond = true;
	if (pc == trace.code_return)
		trace.has_code = true;
	return _URC_NO_REASON;
}

static void take_backtrace(void)
{
	_Unwind_Backtrace(see_frame, NULL);
}

/* The function must have a single body at its address. */
#if defined(__clang__)
#define ONE_BODY __attribute__((noinline))
#else
#define ONE_BODY __attribute__((noinline, noclone))
#endif

typedef void trampoline(void (*)(void));

/* Returns true when a backtrace from inside the code goes on into `passes`. */
ONE_BODY static bool passes(void *code, size_t return_offset)
{
	trampoline *run = (trampoline *)code;
	trace = (struct trace){.code_return = (uintptr_t)code + return_offset};
	trace.caller = (uintptr_t)passes;
	run(take_backtrace);
	return trace.has_beyond;
}

TEST_BED(backtrace_passes_framed_code, CH_SINK_UNWIND)
{
	void *code = bed_code(bed, 5 * BED_PAGE_BYTES + 64, code_framed, sizeof code_framed);
	CHECK(!passes(code, CODE_FRAMED_RETURNS_AT));
	CHECK(ch__sinks_page_live(bed->sinks, 5, 1, 0));
	CHECK(passes(code, CODE_FRAMED_RETURNS_AT));
	ch__sinks_page_dead(bed->sinks, 5, 1);
	CHECK(!passes(code, CODE_FRAMED_RETURNS_AT));
}

TEST_BED(backtrace_passes_code_of_another_shape, CH_SINK_UNWIND)
{
	void *code = bed_code(bed, 5 * BED_PAGE_BYTES + 64, code_frameless, sizeof code_frameless);
	CHECK(ch__sinks_page_live(bed->sinks, 6, 1,
				  0)); /* the chunk is registered before the shape */
	uint8_t shape =
		ch__sinks_frame_register(bed->sinks, code_frameless_cfi, sizeof code_frameless_cfi);
	CHECK_EQ(shape, CH__FRAMES_FIXED);
	CHECK(ch__sinks_page_live(bed->sinks, 5, 1, shape));
	CHECK(passes(code, CODE_FRAMELESS_RETURNS_AT));
	/* The page comes back for code with frame pointers. */
	ch__sinks_page_dead(bed->sinks, 5, 1);
	code = bed_code(bed, 5 * BED_PAGE_BYTES + 64, code_framed, sizeof code_framed);
	CHECK(ch__sinks_page_live(bed->sinks, 5, 1, 0));
	CHECK(passes(code, CODE_FRAMED_RETURNS_AT));
}

/* For the bottom of a stack of the VM's own: nothing above the frame is read. */
TEST_BED(backtrace_ends_at_code_whose_shape_has_no_return_address, CH_SINK_UNWIND)
{
	const uint8_t *cfi = code_frameless_cfi; /* DW_CFA_def_cfa, then DW_CFA_offset of the pc */
	const uint8_t end[] = {cfi[0], cfi[1], cfi[2], 0x07, cfi[3] & 0x3f}; /* DW_CFA_undefined */
	void *code = bed_code(bed, 5 * BED_PAGE_BYTES + 64, code_frameless, sizeof code_frameless);
	uint8_t shape = ch__sinks_frame_register(bed->sinks, end, sizeof end);
	CHECK(ch__sinks_page_live(bed->sinks, 5, 1, shape));
	CHECK(libgcc_knows(code));
	CHECK(!passes(code, CODE_FRAMELESS_RETURNS_AT));
	CHECK(trace.has_code);
}

/* The section of the chunk stays registered while the sink is off. */
TEST_BED(backtrace_passes_code_of_a_shape_that_came_while_the_sink_was_off, CH_SINK_UNWIND)
{
	void *code = bed_code(bed, 5 * BED_PAGE_BYTES + 64, code_frameless, sizeof code_frameless);
	CHECK(ch__sinks_page_live(bed->sinks, 6, 1, 0));
	CHECK_EQ(ch__sinks_set(bed->sinks, 0), 0);
	uint8_t shape =
		ch__sinks_frame_register(bed->sinks, code_frameless_cfi, sizeof code_frameless_cfi);
	CHECK_EQ(ch__sinks_set(bed->sinks, CH_SINK_UNWIND), 0);
	CHECK(ch__sinks_page_live(bed->sinks, 5, 1, shape));
	CHECK(passes(code, CODE_FRAMELESS_RETURNS_AT));
}

/* A freed page may serve code of another shape before the sinks hear of the page's end. */
TEST_BED(page_taken_for_another_shape_has_that_shape, CH_SINK_UNWIND)
{
	uint8_t shape =
		ch__sinks_frame_register(bed->sinks, code_frameless_cfi, sizeof code_frameless_cfi);
	CHECK_EQ(shape, CH__FRAMES_FIXED);
	void *code = bed_code(bed, 5 * BED_PAGE_BYTES + 64, code_frameless, sizeof code_frameless);
	CHECK(ch__sinks_page_live(bed->sinks, 4, 3, 0));
	CHECK(ch__sinks_page_live(bed->sinks, 5, 1, shape));
	CHECK(passes(code, CODE_FRAMELESS_RETURNS_AT));
	check_only_live(bed, 4, 3);
}

TEST_BED(pages_of_a_chunk_that_is_gone_do_not_come_back_with_the_sink, CH_SINK_UNWIND)
{
	CHECK(ch__sinks_page_live(bed->sinks, 60, 8, 0));
	ch__sinks_chunk_gone(bed->sinks, 1); /* pages 64 to 67 were not told dead */
	check_only_live(bed, 60, 4);
	CHECK_EQ(ch__sinks_set(bed->sinks, 0), 0);
	CHECK_EQ(ch__sinks_set(bed->sinks, CH_SINK_UNWIND), 0);
	check_only_live(bed, 60, 4);
}

TEST_BED(backtrace_passes_while_other_pages_flip, CH_SINK_UNWIND)
{
	void *code = bed_code(bed, 5 * BED_PAGE_BYTES + 64, code_framed, sizeof code_framed);
	CHECK(ch__sinks_page_live(bed->sinks, 5, 1, 0));
	struct flipper flipper = {.bed = bed, .pages = 128};
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, flip_other_pages, &flipper), 0);
	uint64_t end = now_ns() + storm_ms() * UINT64_C(1000000), passed = 0;
	while (now_ns() < end || !passed || !atomic_load(&flipper.flips)) {
		CHECK(passes(code, CODE_FRAMED_RETURNS_AT));
		passed++;
	}
	atomic_store(&flipper.is_over, true);
	pthread_join(thread, NULL);
}
TEST_BED(frame_shapes_run_out, 0)
{
	uint8_t cfi[CH__FRAME_CFI_BYTES] = {0};
	for (unsigned i = CH__FRAMES_FIXED; i < CH__FRAME_SHAPES; i++) {
		cfi[sizeof cfi - 1] = (uint8_t)i;
		CHECK_EQ(ch__sinks_frame_register(bed->sinks, cfi, sizeof cfi), i);
		CHECK_EQ(ch__sinks_frame_register(bed->sinks, cfi, sizeof cfi), i);
	}
	CHECK_EQ(ch__sinks_frame_register(bed->sinks, cfi, 1), 0);
}

TEST(lists_of_sinks_are_parsed)
{
	unsigned wanted = 7;
	CHECK(ch__sinks_parse("unwind,perfmap", &wanted));
	CHECK_EQ(wanted, CH_SINK_UNWIND | CH_SINK_PERF_MAP);
	CHECK(ch__sinks_parse("perfmap", &wanted));
	CHECK_EQ(wanted, CH_SINK_PERF_MAP);
	CHECK(ch__sinks_parse("libunwind,unwind", &wanted));
	CHECK_EQ(wanted, CH_SINK_UNWIND | CH_SINK_LIBUNWIND);
	CHECK(ch__sinks_parse("none", &wanted));
	CHECK_EQ(wanted, 0);
	CHECK(!ch__sinks_parse("unwind,perf", &wanted));
	CHECK(!ch__sinks_parse("unwind,,perfmap", &wanted));
	CHECK(!ch__sinks_parse("unwind,", &wanted));
	CHECK(!ch__sinks_parse("", &wanted));
}
