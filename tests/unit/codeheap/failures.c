/* SPDX-License-Identifier: MIT
 * failures.c: each function of the public headers, while each call of the OS and of side memory
 * inside fails in turn (failures.h). A function without a row fails
 * failures_have_a_row_for_each_function. The calls of a row's preparation do not fail.
 * length: the test that no function is left out needs all rows in one program. */
#include "tests/support/failures.h"
#include "codeheap/base/heap.h"
#include "codeheap/base/park.h"
#include "codeheap/codeheap_bdw.h"
#include "codeheap/profile.h"
#include "codeheap/collector.h"
#include "codeheap/look.h"
#include "os/os.h"
#include "tests/support/stage_code.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#if CH_TEST_BDW
#define GC_THREADS 1
#define GC_NO_THREAD_REDIRECTS 1
#include <gc/gc.h>
#endif

enum {
	ALL_SINKS = CH_SINK_UNWIND | CH_SINK_PERF_MAP | CH_SINK_JITDUMP | CH_SINK_GDB,
	ROWS_MOST = 150,
	MANY = 70,
	SPAN_BYTES = 1500000,
	MOST_BYTES = 2200000, /* the scene's pool has no room for two */
};

static enum ch_status plain_owner(struct ch_vm *vm, const char *name, const void *fallback,
				  void *user, struct ch_owner *owner, void **anchor)
{
	(void)anchor;
	return ch_owner_create(vm, name, fallback, user, owner);
}

static enum ch_status create_that_stops(const struct ch_config *config, struct ch_heap **heap)
{
	struct ch_config stops = *config;
	stops.stops_world = true;
	stops.stop_signal = SIGURG;
	return ch_heap_create(&stops, heap);
}

static const struct failures_setting settings[] = {
	{"dual", CH_BACKEND_DUAL, CH_SINK_UNWIND, CH_DRIVER_BUILTIN, false, ch_heap_create,
	 plain_owner},
	{"memfd", CH_BACKEND_MEMFD, CH_SINK_UNWIND, CH_DRIVER_BUILTIN, false, ch_heap_create,
	 plain_owner},
	{"procmem", CH_BACKEND_PROCMEM, CH_SINK_UNWIND, CH_DRIVER_BUILTIN, false, ch_heap_create,
	 plain_owner},
	{"all sinks'", CH_BACKEND_DUAL, ALL_SINKS, CH_DRIVER_BUILTIN, false, ch_heap_create,
	 plain_owner},
	{"host", CH_BACKEND_DUAL, CH_SINK_UNWIND, CH_DRIVER_HOST, false, ch_heap_create,
	 plain_owner},
	{"host that stops", CH_BACKEND_DUAL, CH_SINK_UNWIND, CH_DRIVER_HOST, false,
	 create_that_stops, plain_owner},
#if CH_TEST_BDW
	{"Boehm", CH_BACKEND_DUAL, CH_SINK_UNWIND, CH_DRIVER_BUILTIN, true, ch_bdw_heap_create,
	 ch_bdw_owner_create},
#endif
};
enum { SETTINGS = sizeof settings / sizeof *settings };

/* Only constructors of this file fill the rows. */
static const struct failures_row *rows[ROWS_MOST];
static unsigned row_count;

#ifndef FAILS_ROWS_ONLY
/* Emulators and checkers refuse the system calls of `dual`: settings about something else use
 * `memfd` there. */
static bool has_dual(void)
{
	const char *emulator = getenv("CODEHEAP_TEST_EMULATOR");
	return !emulator || !*emulator;
}

/* The files of the sinks lie in a folder of the case. */
static void walk_settings(const struct failures_row *row)
{
	char folder[] = "/tmp/codeheap.XXXXXX";
	bool has_walked = false;
	bool has_failed = row->flags & (ROW_MAKES_NO_CALL | ROW_MAY_MAKE_NO_CALL);
	CHECK(mkdtemp(folder) != NULL);
	CHECK_EQ(setenv("CODEHEAP_PERF_MAP_DIR", folder, 1), 0);
	CHECK_EQ(setenv("JITDUMPDIR", folder, 1), 0);
#if CH_TEST_BDW
	GC_INIT();
#endif
	for (unsigned i = has_dual() ? 0 : 1; i < SETTINGS; i++) {
		struct failures_setting setting = settings[i], *s = &setting;
		bool is_host = s->driver == CH_DRIVER_HOST;
		if (!has_dual() && s->backend == CH_BACKEND_DUAL)
			s->backend = CH_BACKEND_MEMFD;
		if (s->backend == CH_BACKEND_PROCMEM && !CH_ARCH_LEAD_BYTES)
			continue; /* refused on this architecture */
		if ((row->flags & ROW_ON_HOST) ? !is_host
					       : is_host && !(row->flags & ROW_ALL_SETTINGS))
			continue;
		if ((row->flags & (s->is_boehm ? ROW_NOT_ON_BOEHM : ROW_ON_BOEHM)) != 0)
			continue;
		has_failed |= failures_walk(row, s);
		has_walked = true;
	}
	/* On other machines, and where another backend is given, procmem is left out. */
	const char *given = getenv("CODEHEAP_WX");
	bool has_procmem = CH_ARCH_LEAD_BYTES != 0 && (!given || !strcmp(given, "procmem"));
	CHECK(has_failed || !has_walked || !has_dual() || !has_procmem);
	/* A child of fork has its own files. Nothing else was left in the folder. */
	struct dirent *entry;
	DIR *files = opendir(folder);
	CHECK(files);
	while ((entry = readdir(files)) != NULL)
		if (fnmatch("perf-*.map", entry->d_name, 0) == 0 ||
		    fnmatch("jit-*.dump", entry->d_name, 0) == 0 ||
		    strcmp(entry->d_name, "profile.svg") == 0)
			CHECK_EQ(unlinkat(dirfd(files), entry->d_name, 0), 0);
	closedir(files);
	CHECK_EQ(rmdir(folder), 0);
}
#endif

/* tests/adversary/profile_steps_<arch>.c uses the rows in another way. */
#ifndef FAILS_CASE
#define FAILS_CASE(case_)                    \
	TEST(case_)                          \
	{                                    \
		walk_settings(&row_##case_); \
	}
#endif

/* FAILS(case, "function", prepare, call, flags) */
#define FAILS_REPAIRED(case_, function_, prepare_, call_, flags_, repair_)           \
	static const struct failures_row row_##case_ = {#case_, function_, prepare_, \
							call_,  flags_,    repair_}; \
	__attribute__((constructor)) static void add_##case_(void)                   \
	{                                                                            \
		rows[row_count++] = &row_##case_;                                    \
	}                                                                            \
	FAILS_CASE(case_)
#define FAILS(case_, function_, prepare_, call_, flags_) \
	FAILS_REPAIRED(case_, function_, prepare_, call_, flags_, NULL)

/* --- heap and vm --- */

static enum ch_status call_text(struct scene *s)
{
	(void)s;
	CHECK(*ch_status_text(CH_E_FULL));
	return CH_OK;
}
FAILS(failures_status_text, "ch_status_text", NULL, call_text, ROW_MAKES_NO_CALL)

static enum ch_status call_why(struct scene *s)
{
	(void)s;
	CHECK(ch_why());
	return CH_OK;
}
FAILS(failures_why, "ch_why", NULL, call_why, ROW_MAKES_NO_CALL)

static enum ch_status create_other(struct scene *s)
{
	struct ch_config config;
	ch_config_init(&config);
	config.pool_bytes = 1 << 20;
	config.page_bytes = test_page_bytes();
	config.backend = s->setting->backend;
	config.driver = s->setting->driver;
	config.sinks = s->setting->sinks;
	s->other = (struct ch_heap *)(uintptr_t)8;
	enum ch_status status = s->setting->create(&config, &s->other);
	CHECK((status == CH_OK) == (s->other != NULL));
	/* Code without an owner is the record's. */
	CHECK(status != CH_OK || ch__table_backed_bytes(&s->other->owners));
	return status;
}
static void drop_heap(struct scene *s)
{
	CHECK_EQ(ch_block_abort(&s->open.code), CH_OK);
	CHECK_EQ(ch_vm_detach(s->vm), CH_OK);
	s->vm = NULL;
}
static void drop_heap_at_once(struct scene *s)
{
	drop_heap(s);
	CHECK_EQ(ch_heap_destroy(s->heap), CH_OK);
	s->heap = NULL;
}
FAILS(failures_heap_create, "ch_heap_create", NULL, create_other,
      ROW_ALL_SETTINGS | ROW_NOT_ON_BOEHM)
FAILS(failures_heap_create_alone, "ch_heap_create", drop_heap_at_once, create_other,
      ROW_ALL_SETTINGS | ROW_NOT_ON_BOEHM)

static enum ch_status call_destroy(struct scene *s)
{
	enum ch_status status = ch_heap_destroy(s->heap);
	s->heap = status == CH_OK ? NULL : s->heap;
	return status;
}
FAILS(failures_heap_destroy, "ch_heap_destroy", drop_heap, call_destroy, ROW_ALL_SETTINGS)

static enum ch_status call_stats(struct scene *s)
{
	struct ch_stats stats = {.size = sizeof stats};
	return ch_heap_stats(s->heap, &stats);
}
FAILS(failures_heap_stats, "ch_heap_stats", NULL, call_stats, ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

static enum ch_status call_check(struct scene *s)
{
	char report[300];
	return ch_heap_check(s->heap, report, sizeof report);
}
FAILS(failures_heap_check, "ch_heap_check", NULL, call_check, ROW_ALL_SETTINGS)

static enum ch_status call_vm_attach(struct scene *s)
{
	struct ch_ops ops = {.size = sizeof ops};
	enum ch_status status = ch_vm_attach(s->heap, &ops, NULL, &s->other_vm);
	CHECK((status == CH_OK) == (s->other_vm != NULL));
	return status;
}
FAILS(failures_vm_attach, "ch_vm_attach", NULL, call_vm_attach,
      ROW_ALL_SETTINGS | ROW_MAY_MAKE_NO_CALL)

static void commit_one(struct ch_owner owner, uint32_t hot_bytes)
{
	struct emitter e;
	emit_open(&e, owner, hot_bytes, 0);
	emit_value(&e, 3);
	emit_filler(&e, hot_bytes - CODE_RETURN_BYTES);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
}
static void prepare_vm(struct scene *s)
{
	CHECK_EQ(call_vm_attach(s), CH_OK);
	CHECK_EQ(s->setting->owner(s->other_vm, "of the other",
				   (const void *)(uintptr_t)scene_fallback, NULL, &s->made,
				   &s->made_anchor),
		 CH_OK);
	commit_one(s->made, 64);
}
static enum ch_status call_vm_detach(struct scene *s)
{
	struct ch_vm *vm = s->other_vm;
	s->other_vm = NULL;
	return ch_vm_detach(vm);
}
FAILS(failures_vm_detach, "ch_vm_detach", prepare_vm, call_vm_detach, ROW_ALL_SETTINGS)

static enum ch_status call_discard(struct scene *s)
{
	size_t freed, kept;
	return ch_vm_discard(s->heap, NULL, &freed, &kept);
}
FAILS(failures_vm_discard, "ch_vm_discard", NULL, call_discard, ROW_ALL_SETTINGS)

/* --- threads and fibers --- */

static void prepare_other(struct scene *s)
{
	CHECK_EQ(create_other(s), CH_OK);
}
static enum ch_status call_attach(struct scene *s)
{
	return ch_thread_attach(s->other, NULL, NULL);
}
static void prepare_attached(struct scene *s)
{
	prepare_other(s);
	CHECK_EQ(call_attach(s), CH_OK);
}
static enum ch_status call_detach(struct scene *s)
{
	return ch_thread_detach(s->other);
}
FAILS(failures_thread_attach, "ch_thread_attach", prepare_other, call_attach, ROW_ALL_SETTINGS)
FAILS(failures_thread_detach, "ch_thread_detach", prepare_attached, call_detach,
      ROW_ALL_SETTINGS | ROW_MAY_MAKE_NO_CALL)

static enum ch_status call_park(struct scene *s)
{
	(void)s;
	ch_thread_park();
	ch_thread_unpark();
	return CH_OK;
}
FAILS(failures_thread_park, "ch_thread_park", NULL, call_park, ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)
FAILS(failures_thread_unpark, "ch_thread_unpark", NULL, call_park,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

static enum ch_status call_poll(struct scene *s)
{
	(void)s;
	ch_thread_poll();
	return CH_OK;
}
FAILS(failures_thread_poll, "ch_thread_poll", NULL, call_poll, ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

static enum ch_status call_poll_word(struct scene *s)
{
	return ch_thread_poll_word(s->heap) ? CH_OK : CH_E_STATE;
}
FAILS(failures_thread_poll_word, "ch_thread_poll_word", NULL, call_poll_word,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

/* Dead, unswept code: the blocks of `spare`, and whole chunks that the pool gives back. */
static void prepare_garbage(struct scene *s)
{
	s->made = scene_owner(s, "large", &s->made_anchor);
	commit_one(s->made, SPAN_BYTES);
	CHECK_EQ(ch_owner_release(s->made, CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_owner_release(s->spare, CH_RELEASE_COLLECT), CH_OK);
	s->made_anchor = s->anchors[1] = NULL;
	for (int cycle = 0; cycle < 2; cycle++) /* newborn blocks live through two cycles */
		CHECK_EQ(scene_collect(s), CH_OK);
}
static void prepare_marked(struct scene *s)
{
	struct ch_marker *marker;
	prepare_garbage(s);
	CHECK_EQ(ch_mark_begin(s->heap, &marker), CH_OK);
	ch_mark_owner(marker, s->owner);
	ch_mark_stacks(marker);
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
}
FAILS(failures_thread_poll_with_work, "ch_thread_poll", prepare_marked, call_poll,
      ROW_ON_HOST | ROW_MAY_MAKE_NO_CALL)

static uint64_t fiber_stack[16];
static enum ch_status call_fiber_attach(struct scene *s)
{
	enum ch_status status = ch_fiber_attach(s->heap, fiber_stack, fiber_stack + 16, &s->fiber);
	CHECK((status == CH_OK) == (s->fiber != NULL));
	return status;
}
static void prepare_fiber(struct scene *s)
{
	CHECK_EQ(call_fiber_attach(s), CH_OK);
}
static enum ch_status call_fiber_suspend(struct scene *s)
{
	ch_fiber_suspend(s->fiber, fiber_stack + 8);
	return CH_OK;
}
static void prepare_suspended(struct scene *s)
{
	prepare_fiber(s);
	ch_fiber_suspend(s->fiber, fiber_stack + 8);
}
static enum ch_status call_fiber_resume(struct scene *s)
{
	ch_fiber_resume(s->fiber);
	return CH_OK;
}
static enum ch_status call_fiber_detach(struct scene *s)
{
	struct ch_fiber *fiber = s->fiber;
	s->fiber = NULL;
	return ch_fiber_detach(fiber);
}
FAILS(failures_fiber_attach, "ch_fiber_attach", NULL, call_fiber_attach, ROW_ALL_SETTINGS)
FAILS(failures_fiber_suspend, "ch_fiber_suspend", prepare_fiber, call_fiber_suspend,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)
FAILS(failures_fiber_resume, "ch_fiber_resume", prepare_suspended, call_fiber_resume,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)
FAILS(failures_fiber_detach, "ch_fiber_detach", prepare_suspended, call_fiber_detach,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

/* --- owners --- */

static enum ch_status call_owner_create(struct scene *s)
{
	return s->setting->owner(s->vm, "a name of its own",
				 (const void *)(uintptr_t)scene_fallback, NULL, &s->made,
				 &s->made_anchor);
}
/* The next record begins a step of its table. */
static void prepare_last_owner(struct scene *s)
{
	while (s->heap->owners.used < s->heap->owners.backed)
		s->made = scene_owner(s, "one of many", &s->made_anchor);
}
FAILS(failures_owner_create, "ch_owner_create", NULL, call_owner_create,
      ROW_ALL_SETTINGS | ROW_NOT_ON_BOEHM)
FAILS(failures_owner_create_in_a_new_step, "ch_owner_create", prepare_last_owner,
      call_owner_create, ROW_NOT_ON_BOEHM)

static enum ch_status call_set_entry(struct scene *s)
{
	return ch_owner_set_entry(s->owner, s->source);
}
FAILS(failures_owner_set_entry, "ch_owner_set_entry", NULL, call_set_entry,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

static enum ch_status call_cell(struct scene *s)
{
	CHECK(ch_owner_cell(s->owner) != NULL);
	return CH_OK;
}
FAILS(failures_owner_cell, "ch_owner_cell", NULL, call_cell, ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

static enum ch_status call_release(struct scene *s)
{
	return ch_owner_release(s->spare, CH_RELEASE_COLLECT);
}
static enum ch_status call_release_now(struct scene *s)
{
	return ch_owner_release(s->spare, CH_RELEASE_NOT_RUNNING);
}
FAILS(failures_owner_release, "ch_owner_release", NULL, call_release,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)
FAILS(failures_owner_release_not_running, "ch_owner_release", NULL, call_release_now,
      ROW_ALL_SETTINGS)

static enum ch_status call_owner_info(struct scene *s)
{
	struct ch_owner_facts facts = {.size = sizeof facts};
	return ch_owner_info(s->owner, &facts);
}
FAILS(failures_owner_info, "ch_owner_info", NULL, call_owner_info,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

/* --- blocks --- */

static enum ch_status open_as(struct scene *s, struct ch_open open)
{
	static const struct ch_code none;
	open.size = sizeof open;
	open.owner = s->owner;
	enum ch_status status = ch_block_open(&open, &s->code);
	if (status != CH_OK)
		CHECK(!memcmp(&s->code, &none, sizeof none));
	return status;
}
static enum ch_status call_open(struct scene *s)
{
	return open_as(s, (struct ch_open){.hot_bytes = 64});
}
static enum ch_status call_open_named(struct scene *s)
{
	static const char name[] = "a block's own name";
	enum ch_status status = open_as(s, (struct ch_open){.hot_bytes = 64, .name = name});
	struct ch_info info = {.size = sizeof info};
	if (status == CH_OK)
		CHECK(ch_block_info(s->code.block, &info) == CH_OK && !strcmp(info.name, name));
	return status;
}
static enum ch_status call_open_patch(struct scene *s)
{
	return open_as(
		s, (struct ch_open){.hot_bytes = 64, .entry = CH_ENTRY_PATCH, .branch_room = 20});
}
static enum ch_status call_open_guard(struct scene *s)
{
	return open_as(s, (struct ch_open){.hot_bytes = 64, .entry = CH_ENTRY_GUARD});
}
static enum ch_status call_open_span(struct scene *s)
{
	return open_as(s, (struct ch_open){.hot_bytes = SPAN_BYTES});
}
static enum ch_status call_open_room(struct scene *s)
{
	return open_as(s, (struct ch_open){.hot_bytes = MOST_BYTES});
}
static enum ch_status call_open_own(struct scene *s)
{
	return open_as(s, (struct ch_open){.hot_bytes = 64, .flags = CH_OPEN_OWN_FRAMES});
}
static enum ch_status call_open_in_place(struct scene *s)
{
	return open_as(s, (struct ch_open){.hot_bytes = 64, .flags = CH_OPEN_IN_PLACE});
}
static enum ch_status call_open_data(struct scene *s)
{
	struct ch_open open = {.hot_bytes = SPAN_BYTES, .kind = CH_KIND_DATA};
	enum ch_status status = open_as(s, open);
	if (status == CH_OK) /* else the scene would run the data */
		CHECK_EQ(ch_block_abort(&s->code), CH_OK);
	s->code.block.bits = 0;
	return status;
}
static enum ch_status call_open_collecting(struct scene *s)
{
	return open_as(s, (struct ch_open){.hot_bytes = MOST_BYTES, .flags = CH_OPEN_MAY_COLLECT});
}
static void prepare_full(struct scene *s)
{
	s->made = scene_owner(s, "large", &s->made_anchor);
	commit_one(s->made, MOST_BYTES);
	CHECK_EQ(scene_collect(s), CH_OK); /* after both cycles the block is not newborn */
	CHECK_EQ(scene_collect(s), CH_OK);
	CHECK_EQ(ch_owner_release(s->made, CH_RELEASE_COLLECT), CH_OK);
	s->made_anchor = NULL;
}
/* The loop takes pages and chunks on the way. Opens all blocks or none. */
static enum ch_status call_open_many(struct scene *s)
{
	static struct ch_code codes[MANY];
	enum ch_status status = CH_OK;
	int made = 0;
	while (made < MANY) {
		status = open_as(s, (struct ch_open){.hot_bytes = 9000});
		if (status != CH_OK)
			break;
		codes[made++] = s->code;
	}
	while (made)
		CHECK_EQ(ch_block_abort(&codes[--made]), CH_OK);
	return status;
}
/* The next record begins a step of its table. */
static void prepare_last_block(struct scene *s)
{
	const struct ch__thread *self = ch__thread_self(s->heap);
	while (s->heap->blocks.used < s->heap->blocks.backed || self->free_count)
		commit_one(s->spare, 16);
}
FAILS(failures_block_open, "ch_block_open", NULL, call_open,
      ROW_ALL_SETTINGS | ROW_MAY_MAKE_NO_CALL)
FAILS(failures_block_open_named, "ch_block_open", NULL, call_open_named, ROW_ALL_SETTINGS)
FAILS(failures_block_open_patch, "ch_block_open", NULL, call_open_patch, 0)
FAILS(failures_block_open_guard, "ch_block_open", NULL, call_open_guard, 0)
FAILS(failures_block_open_span, "ch_block_open", NULL, call_open_span, ROW_ALL_SETTINGS)
FAILS(failures_block_open_room, "ch_block_open", NULL, call_open_room, ROW_ALL_SETTINGS)
FAILS(failures_block_open_own_frames, "ch_block_open", NULL, call_open_own, 0)
FAILS(failures_block_open_in_place, "ch_block_open", NULL, call_open_in_place, ROW_ALL_SETTINGS)
FAILS(failures_block_open_data, "ch_block_open", NULL, call_open_data, ROW_ALL_SETTINGS)
FAILS(failures_block_open_that_collects, "ch_block_open", prepare_full, call_open_collecting,
      ROW_COLLECTS)
FAILS(failures_block_open_many, "ch_block_open", NULL, call_open_many, 0)
FAILS(failures_block_open_in_a_new_step, "ch_block_open", prepare_last_block, call_open, 0)

static enum ch_status call_veneer(struct scene *s)
{
	const void *at;
	enum ch_status status =
		ch_block_veneer(&s->open.code, (const void *)(uintptr_t)scene_fallback, &at);
	CHECK((status == CH_OK) == (at != NULL));
	return status;
}
FAILS(failures_block_veneer, "ch_block_veneer", NULL, call_veneer,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

static void (*added)(void);

static enum ch_status call_add(struct scene *s)
{
	static const uint8_t bytes[64];
	enum ch_status status = ch_code_add(s->heap, bytes, sizeof bytes, "added", &added);
	CHECK((status == CH_OK) == (added != NULL));
	return status;
}
static void prepare_added(struct scene *s)
{
	CHECK_EQ(call_add(s), CH_OK);
}
static enum ch_status call_free(struct scene *s)
{
	return ch_code_free(s->heap, (const void *)(uintptr_t)added, CH_RELEASE_COLLECT);
}
static enum ch_status call_free_now(struct scene *s)
{
	(void)s;
	return ch_code_free(NULL, (const void *)(uintptr_t)added, CH_RELEASE_NOT_RUNNING);
}
/* On procmem a write of more than one byte exchanges the page. */
static enum ch_status call_write(struct scene *s)
{
	static const uint8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	uintptr_t at = ((uintptr_t)added + 7) & ~(uintptr_t)7;
	return ch_code_write(s->heap, (const void *)at, bytes, sizeof bytes, CH_WRITE_WORD);
}
static enum ch_status call_write_not_running(struct scene *s)
{
	static const uint8_t bytes[32] = {1, 2};
	(void)s;
	return ch_code_write(NULL, (const void *)(uintptr_t)added, bytes, sizeof bytes,
			     CH_WRITE_NOT_RUNNING);
}
FAILS(failures_code_write, "ch_code_write", prepare_added, call_write, ROW_ALL_SETTINGS)
FAILS(failures_code_write_not_running, "ch_code_write", prepare_added, call_write_not_running,
      ROW_ALL_SETTINGS)
FAILS(failures_code_add, "ch_code_add", NULL, call_add, ROW_ALL_SETTINGS)
FAILS(failures_code_free, "ch_code_free", prepare_added, call_free,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)
FAILS(failures_code_free_not_running, "ch_code_free", prepare_added, call_free_now,
      ROW_ALL_SETTINGS)

static enum ch_status call_commit(struct scene *s)
{
	return ch_block_commit(&s->open.code, 1);
}
static void prepare_inner(struct scene *s)
{
	s->open.code.entry_offset = 5;
}
/* A named block with everything that a commit has to see to. */
static void prepare_full_block(struct scene *s)
{
	struct emitter *e = &s->open;
	struct ch_open open = {.owner = s->owner,
			       .hot_bytes = 200,
			       .cold_bytes = 40,
			       .branch_room = 2,
			       .name = "of a name",
			       .entry = CH_ENTRY_GUARD};
	CHECK_EQ(ch_block_abort(&e->code), CH_OK);
	CHECK_EQ(emit_open_as(e, &open), CH_OK);
	struct ch_line line = {e->code.exec, 3};
	CHECK_EQ(ch_block_lines(e->code.block, "/src/full", &line, 1), CH_OK);
	CHECK_EQ(ch_ref_attach(e->code.block, emit_ref_word(e, 1)), CH_OK);
	CHECK_EQ(ch_block_assume(e->code.block, s->fact), CH_OK);
	emit_jmp(e, NULL);
	e->code.used_to = e->at;
}
static void prepare_own_frames(struct scene *s)
{
	static _Alignas(8) uint32_t table[16];
	static const uint8_t cie[] = {1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x80 | 16, 1, 0, 0};
	struct emitter *e = &s->open;
	struct ch_open open = {
		.owner = s->owner, .hot_bytes = 100, .name = "own", .flags = CH_OPEN_OWN_FRAMES};
	CHECK_EQ(ch_block_abort(&e->code), CH_OK);
	CHECK_EQ(emit_open_as(e, &open), CH_OK);
	emit_answer(e, 5);
	/* One CIE without augmentation, one FDE, the end. */
	memset(table, 0, sizeof table);
	table[0] = 4 + sizeof cie;
	memcpy(table + 2, cie, sizeof cie);
	table[5] = 20;
	table[6] = 24;
	memcpy(table + 7, &e->code.exec, sizeof e->code.exec);
	memcpy(table + 9, &(uint64_t){e->at}, sizeof(uint64_t));
	e->code.eh_frame = table;
	e->code.used_to = e->at;
}
FAILS(failures_block_commit, "ch_block_commit", NULL, call_commit, ROW_ALL_SETTINGS)
FAILS(failures_block_commit_inner_entry, "ch_block_commit", prepare_inner, call_commit, 0)
FAILS(failures_block_commit_of_everything, "ch_block_commit", prepare_full_block, call_commit,
      ROW_ALL_SETTINGS)
FAILS(failures_block_commit_own_frames, "ch_block_commit", prepare_own_frames, call_commit, 0)

static void open_instead(struct scene *s, struct ch_open *open)
{
	CHECK_EQ(ch_block_abort(&s->open.code), CH_OK);
	CHECK_EQ(emit_open_as(&s->open, open), CH_OK);
	emit_value(&s->open, 5);
	emit_ret(&s->open);
	s->open.code.used_to = s->open.at;
}
static void prepare_in_place(struct scene *s)
{
	open_instead(s, &(struct ch_open){
				.owner = s->owner, .hot_bytes = 100, .flags = CH_OPEN_IN_PLACE});
}
static void prepare_constants(struct scene *s)
{
	open_instead(s, &(struct ch_open){.owner = s->owner,
					  .hot_bytes = 100,
					  .kind = CH_KIND_RODATA,
					  .flags = CH_OPEN_IN_PLACE});
}
static void prepare_room(struct scene *s)
{
	open_instead(s, &(struct ch_open){.owner = s->owner, .hot_bytes = MOST_BYTES});
}
FAILS(failures_block_commit_in_place, "ch_block_commit", prepare_in_place, call_commit,
      ROW_ALL_SETTINGS)
FAILS(failures_block_commit_constants, "ch_block_commit", prepare_constants, call_commit,
      ROW_ALL_SETTINGS)
FAILS(failures_block_commit_of_a_room, "ch_block_commit", prepare_room, call_commit,
      ROW_ALL_SETTINGS)

static enum ch_status call_abort(struct scene *s)
{
	return ch_block_abort(&s->open.code);
}
FAILS(failures_block_abort_in_place, "ch_block_abort", prepare_in_place, call_abort,
      ROW_ALL_SETTINGS)
FAILS(failures_block_abort_of_a_room, "ch_block_abort", prepare_room, call_abort, ROW_ALL_SETTINGS)
FAILS(failures_block_abort, "ch_block_abort", NULL, call_abort, ROW_ALL_SETTINGS)
FAILS(failures_block_abort_of_everything, "ch_block_abort", prepare_full_block, call_abort,
      ROW_ALL_SETTINGS | ROW_MAY_MAKE_NO_CALL)

static enum ch_status call_block_info(struct scene *s)
{
	struct ch_info info = {.size = sizeof info};
	return ch_block_info(s->live, &info);
}
FAILS(failures_block_info, "ch_block_info", NULL, call_block_info,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

/* --- attaching --- */

static enum ch_status call_branch_attach(struct scene *s)
{
	struct ch_branch_site site = {.at = s->site, .kind = CH_JMP};
	struct ch_branch branch;
	return ch_branch_attach(s->open.code.block, &site, &branch);
}
static enum ch_status call_link(struct scene *s)
{
	return ch_branch_link(s->branch, s->live);
}
static enum ch_status call_edge(struct scene *s)
{
	return ch_edge_attach(s->open.code.block, s->live);
}
static enum ch_status call_edge_owner(struct scene *s)
{
	return ch_edge_attach_owner(s->open.code.block, s->spare);
}
static enum ch_status call_ref(struct scene *s)
{
	return ch_ref_attach(s->open.code.block, s->ref);
}
static enum ch_status call_point(struct scene *s)
{
	struct ch_info info = block_info(s->live);
	return ch_patch_point_attach(s->open.code.block, s->point, info.exec, NULL);
}
static enum ch_status call_lines(struct scene *s)
{
	struct ch_line lines[] = {{s->open.code.exec, 1}, {s->open.code.exec + 8, 2}};
	return ch_block_lines(s->open.code.block, "/src/a name of its own", lines, 2);
}
/* The next item needs a longer list. */
static void prepare_list(struct scene *s)
{
	for (int i = 0; i < 4; i++)
		CHECK_EQ(call_edge(s), CH_OK);
}
FAILS(failures_branch_attach, "ch_branch_attach", NULL, call_branch_attach,
      ROW_ALL_SETTINGS | ROW_MAY_MAKE_NO_CALL)
FAILS(failures_branch_link, "ch_branch_link", NULL, call_link, ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)
FAILS(failures_edge_attach, "ch_edge_attach", NULL, call_edge, ROW_ALL_SETTINGS)
FAILS(failures_edge_attach_to_a_full_list, "ch_edge_attach", prepare_list, call_edge, 0)
FAILS(failures_edge_attach_owner, "ch_edge_attach_owner", NULL, call_edge_owner, ROW_ALL_SETTINGS)
FAILS(failures_edge_attach_owner_to_a_full_list, "ch_edge_attach_owner", prepare_list,
      call_edge_owner, 0)
FAILS(failures_ref_attach, "ch_ref_attach", NULL, call_ref, ROW_ALL_SETTINGS)
FAILS(failures_ref_attach_to_a_full_list, "ch_ref_attach", prepare_list, call_ref, 0)
FAILS(failures_patch_point_attach, "ch_patch_point_attach", NULL, call_point, ROW_ALL_SETTINGS)
FAILS(failures_patch_point_attach_to_a_full_list, "ch_patch_point_attach", prepare_list, call_point,
      0)
FAILS(failures_block_lines, "ch_block_lines", NULL, call_lines, ROW_ALL_SETTINGS)

static bool end_at_once(void *arg, const struct ch_site *site)
{
	(void)arg, (void)site;
	return false;
}
static enum ch_status call_sites(struct scene *s)
{
	return ch_block_sites(s->dropped, end_at_once, NULL);
}
FAILS(failures_block_sites, "ch_block_sites", NULL, call_sites,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

static enum ch_status call_frame(struct scene *s)
{
	static const uint8_t nop;
	uint8_t frame;
	return ch_frame_register(s->heap, &nop, 1, &frame);
}
FAILS(failures_frame_register, "ch_frame_register", NULL, call_frame,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

static enum ch_status make_trampoline(struct scene *s, enum ch_trampoline kind, const char *name)
{
	struct ch_block block = {1};
	enum ch_status status = ch_trampoline_make(
		s->owner, kind, (const void *)(uintptr_t)scene_fallback, 1, name, NULL, &block);
	CHECK((status == CH_OK) == (block.bits != 0));
	return status;
}
static enum ch_status call_trampoline(struct scene *s)
{
	return make_trampoline(s, CH_TRAMPOLINE_FRAMED, NULL);
}
static enum ch_status call_trampoline_named(struct scene *s)
{
	return make_trampoline(s, CH_TRAMPOLINE_TAIL, "its own name");
}
FAILS(failures_trampoline_make, "ch_trampoline_make", NULL, call_trampoline, ROW_ALL_SETTINGS)
FAILS(failures_trampoline_make_named, "ch_trampoline_make", NULL, call_trampoline_named, 0)

/* --- assumptions and invalidation --- */

static enum ch_status call_fact(struct scene *s)
{
	struct ch_assumption fact = {1};
	enum ch_status status = ch_assumption_create(s->vm, &fact);
	CHECK((status == CH_OK) == (fact.bits != 0));
	return status;
}
static void prepare_last_fact(struct scene *s)
{
	while (s->heap->assumptions.used < s->heap->assumptions.backed)
		CHECK_EQ(call_fact(s), CH_OK);
}
static enum ch_status call_assume(struct scene *s)
{
	return ch_block_assume(s->open.code.block, s->fact);
}
static void prepare_assumed(struct scene *s)
{
	for (int i = 0; i < 6; i++) /* with the scene's two, eight dependents */
		CHECK_EQ(call_assume(s), CH_OK);
}
static enum ch_status call_break(struct scene *s)
{
	size_t count;
	return ch_assumption_break(s->fact, &count);
}
static enum ch_status call_invalidate(struct scene *s)
{
	struct ch_block blocks[] = {s->live, s->source, s->dropped};
	size_t count;
	enum ch_status status = ch_blocks_invalidate(blocks, 3, &count);
	CHECK_EQ(count, 3);
	return status;
}
FAILS(failures_assumption_create, "ch_assumption_create", NULL, call_fact,
      ROW_ALL_SETTINGS | ROW_MAY_MAKE_NO_CALL)
FAILS(failures_assumption_create_in_a_new_step, "ch_assumption_create", prepare_last_fact,
      call_fact, 0)
FAILS(failures_block_assume, "ch_block_assume", NULL, call_assume, ROW_ALL_SETTINGS)
FAILS(failures_block_assume_in_a_full_list, "ch_block_assume", prepare_assumed, call_assume, 0)
FAILS(failures_assumption_break, "ch_assumption_break", NULL, call_break,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)
FAILS(failures_blocks_invalidate, "ch_blocks_invalidate", NULL, call_invalidate,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

/* --- collection --- */

static enum ch_status call_collect(struct scene *s)
{
	return ch_heap_collect(s->heap);
}
FAILS(failures_heap_collect, "ch_heap_collect", NULL, call_collect, 0)
FAILS(failures_heap_collect_garbage, "ch_heap_collect", prepare_garbage, call_collect, 0)

static enum ch_status call_mark_begin(struct scene *s)
{
	struct ch_marker *marker = (struct ch_marker *)(uintptr_t)8;
	enum ch_status status = ch_mark_begin(s->heap, &marker);
	CHECK((status == CH_OK) == (marker != NULL));
	s->marker = marker;
	return status;
}
static void prepare_mark(struct scene *s)
{
	CHECK_EQ(call_mark_begin(s), CH_OK);
}
static enum ch_status call_mark_owner(struct scene *s)
{
	ch_mark_owner(s->marker, s->owner);
	return CH_OK;
}
static enum ch_status call_mark_stack(struct scene *s)
{
	ch_mark_stack(s->marker, fiber_stack, fiber_stack + 16);
	return CH_OK;
}
static enum ch_status call_mark_stacks(struct scene *s)
{
	ch_mark_stacks(s->marker);
	return CH_OK;
}
static void prepare_marking(struct scene *s)
{
	prepare_garbage(s);
	prepare_mark(s);
	ch_mark_owner(s->marker, s->owner);
	ch_mark_stacks(s->marker);
}
static enum ch_status call_mark_end(struct scene *s)
{
	struct ch_marker *marker = s->marker;
	s->marker = NULL;
	return ch_mark_end(marker, true);
}
FAILS(failures_mark_begin, "ch_mark_begin", NULL, call_mark_begin, ROW_ON_HOST)
FAILS(failures_mark_owner, "ch_mark_owner", prepare_mark, call_mark_owner,
      ROW_ON_HOST | ROW_MAKES_NO_CALL)
FAILS(failures_mark_stack, "ch_mark_stack", prepare_mark, call_mark_stack,
      ROW_ON_HOST | ROW_MAKES_NO_CALL)
FAILS(failures_mark_stacks, "ch_mark_stacks", prepare_mark, call_mark_stacks,
      ROW_ON_HOST | ROW_MAKES_NO_CALL)
FAILS(failures_mark_end, "ch_mark_end", prepare_marking, call_mark_end,
      ROW_ON_HOST | ROW_MAY_MAKE_NO_CALL)

static uintptr_t visit_ref(void *arg, uintptr_t word, bool *is_young)
{
	(void)arg;
	*is_young = true;
	return word;
}
static enum ch_status call_refs(struct scene *s)
{
	return ch_refs_visit(s->marker, CH_REFS_ALL, visit_ref, NULL);
}
static void prepare_visit(struct scene *s)
{
	prepare_full_block(s);
	prepare_mark(s);
}
FAILS(failures_refs_visit, "ch_refs_visit", prepare_visit, call_refs,
      ROW_ON_HOST | ROW_MAKES_NO_CALL)

/* --- looking --- */

static enum ch_status call_at(struct scene *s)
{
	struct ch_spot spot = {.size = sizeof spot};
	CHECK(!ch_code_at(NULL, s, true, &spot));
	CHECK(!ch_code_at(s->heap, s, false, &spot));
	return CH_OK;
}
static bool end_here(void *arg, const struct ch_info *info)
{
	(void)arg, (void)info;
	return false;
}
static enum ch_status call_each(struct scene *s)
{
	return ch_block_each(s->heap, NULL, end_here, NULL);
}
static enum ch_status call_backtrace(struct scene *s)
{
	const void *pcs[20];
	CHECK(ch_backtrace(s->heap, CH_BACKTRACE_FRAMES, NULL, pcs, 20) > 0);
	CHECK(ch_backtrace(s->heap, CH_BACKTRACE_TABLES, NULL, pcs, 20) > 0);
	return CH_OK;
}
static enum ch_status call_name(struct scene *s)
{
	char text[100];
	struct ch_info info = block_info(s->live);
	CHECK(ch_address_name(s->heap, info.exec, false, text, sizeof text) > 0);
	CHECK(ch_address_name(s->heap, (const void *)(uintptr_t)strtol, false, text, sizeof text) >
	      0);
	return CH_OK;
}
static enum ch_status call_describe(struct scene *s)
{
	static ucontext_t context;
	static siginfo_t info;
	char text[200];
	CHECK_EQ(ch_trap_describe(s->heap, &info, &context, text, sizeof text), 0);
	return CH_OK;
}
FAILS(failures_code_at, "ch_code_at", NULL, call_at, ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)
FAILS(failures_block_each, "ch_block_each", NULL, call_each, ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)
FAILS(failures_backtrace, "ch_backtrace", NULL, call_backtrace, ROW_MAKES_NO_CALL)
FAILS(failures_address_name, "ch_address_name", NULL, call_name, 0)
FAILS(failures_trap_describe, "ch_trap_describe", NULL, call_describe,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

/* --- sinks --- */

static enum ch_status call_sinks_on(struct scene *s)
{
	return ch_sink_set(s->heap, ALL_SINKS);
}
static enum ch_status call_sinks_off(struct scene *s)
{
	return ch_sink_set(s->heap, CH_SINK_NONE);
}
/* A failed sink stays off, and each flush says so, until the sink is switched on again. */
static void turn_sinks_on(struct scene *s)
{
	CHECK_EQ(ch_sink_set(s->heap, s->setting->sinks), CH_OK);
}
static enum ch_status call_flush(struct scene *s)
{
	return ch_sink_flush(s->heap);
}
static enum ch_status call_sink_status(struct scene *s)
{
	const char *path;
	int failed;
	CHECK(ch_sink_status(s->heap, CH_SINK_UNWIND, &path, &failed));
	return CH_OK;
}
FAILS(failures_sink_set_on, "ch_sink_set", NULL, call_sinks_on, ROW_ALL_SETTINGS)
FAILS(failures_sink_set_off, "ch_sink_set", NULL, call_sinks_off,
      ROW_ALL_SETTINGS | ROW_SWITCHES_SINKS)
FAILS_REPAIRED(failures_sink_flush, "ch_sink_flush", NULL, call_flush, ROW_ALL_SETTINGS,
	       turn_sinks_on)
FAILS(failures_sink_status, "ch_sink_status", NULL, call_sink_status,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)

/* --- fork: a failure in the library must not fail the process --- */

static enum ch_status call_fork(struct scene *s)
{
	struct ch_info info = block_info(s->live);
	pid_t child = fork_child();
	if (!child) {
		ch__os_fail_at(0, false);
		signal(SIGSEGV, SIG_DFL);
		_exit(code_call(info.entry) == 1 ? 0 : 1);
	}
	int how;
	CHECK_EQ(waitpid(child, &how, 0), child);
	/* The child has a copy of the code, or no code, and then faults. */
	if (WIFSIGNALED(how) ? WTERMSIG(how) != SIGSEGV || !s->is_failing : WEXITSTATUS(how) != 0)
		FAIL("the child ends with 0x%x", how);
	return CH_OK;
}
static void prepare_data(struct scene *s)
{
	struct emitter e;
	struct ch_open open = {.owner = s->owner,
			       .hot_bytes = 100,
			       .kind = CH_KIND_DATA,
			       .flags = CH_OPEN_IMMORTAL};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
}
FAILS(failures_fork, NULL, NULL, call_fork, ROW_ALL_SETTINGS)
FAILS(failures_fork_with_data, NULL, prepare_data, call_fork, ROW_ALL_SETTINGS)

/* --- the Boehm driver --- */

#if CH_TEST_BDW
static void *give_back(void *arg)
{
	return arg;
}
static enum ch_status call_blocking(struct scene *s)
{
	CHECK(ch_bdw_do_blocking(give_back, s) == s);
	return CH_OK;
}
FAILS(failures_bdw_heap_create, "ch_bdw_heap_create", NULL, create_other, ROW_ON_BOEHM)
FAILS(failures_bdw_owner_create, "ch_bdw_owner_create", NULL, call_owner_create, ROW_ON_BOEHM)
FAILS(failures_bdw_owner_create_in_a_new_step, "ch_bdw_owner_create", prepare_last_owner,
      call_owner_create, ROW_ON_BOEHM)
FAILS(failures_bdw_do_blocking, "ch_bdw_do_blocking", NULL, call_blocking,
      ROW_ON_BOEHM | ROW_MAKES_NO_CALL)
#endif

/* --- profile --- */

/* At this rate no sample comes: the worker's calls would be counted, too. */
static enum ch_status call_profile_start(struct scene *s)
{
	return ch_profile_start(s->heap, 1, NULL);
}
static void prepare_profile(struct scene *s)
{
	CHECK_EQ(ch_profile_start(s->heap, 1, NULL), CH_OK);
}
static enum ch_status call_profile_stop(struct scene *s)
{
	struct ch_profile_counts counts = {.size = sizeof counts};
	enum ch_status status = ch_profile_stop(s->heap, &counts);
	CHECK_EQ(counts.threads, 1);
	return status;
}
static void prepare_stopped_profile(struct scene *s)
{
	prepare_profile(s);
	CHECK_EQ(ch_profile_stop(s->heap, NULL), CH_OK);
}
static enum ch_status call_profile_write(struct scene *s)
{
	char path[100];
	snprintf(path, sizeof path, "%s/profile.svg", getenv("CODEHEAP_PERF_MAP_DIR"));
	return ch_profile_write(s->heap, path, NULL);
}
FAILS(failures_profile_start, "ch_profile_start", NULL, call_profile_start, ROW_ALL_SETTINGS)
FAILS(failures_profile_stop, "ch_profile_stop", prepare_profile, call_profile_stop,
      ROW_ALL_SETTINGS)
FAILS(failures_profile_write, "ch_profile_write", prepare_stopped_profile, call_profile_write,
      ROW_ALL_SETTINGS)
static enum ch_status call_stats_file_enable(struct scene *s)
{
	(void)s;
	return ch_stats_file_enable();
}
FAILS(failures_stats_file_enable, "ch_stats_file_enable", NULL, call_stats_file_enable,
      ROW_MAKES_NO_CALL | ROW_ALL_SETTINGS)
#ifndef FAILS_ROWS_ONLY

/* --- calls that a process makes once: a child for each step --- */

struct once {
	uint64_t n;
	enum ch_status (*call)(struct ch_heap *);
	bool needs_heap;
};

static enum ch_status call_install(struct ch_heap *heap)
{
	static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGABRT};
	enum ch_status status = ch_trap_install(heap);
	struct sigaction is;
	for (unsigned i = 0; status == CH_OK && i < sizeof signals / sizeof *signals; i++)
		CHECK(sigaction(signals[i], NULL, &is) == 0 && is.sa_handler != SIG_DFL);
	CHECK((status == CH_OK) == heap->reports_traps);
	return status;
}

static enum ch_status create_one(int stop_signal, struct ch_heap **heap)
{
	struct ch_config config;
	ch_config_init(&config);
	config.pool_bytes = 1 << 20;
	config.page_bytes = test_page_bytes();
	config.stop_signal = stop_signal;
	config.sinks = ALL_SINKS;
	enum ch_status status = ch_heap_create(&config, heap);
	CHECK((status == CH_OK) == (*heap != NULL));
	return status;
}

static enum ch_status call_first_heap(struct ch_heap *none)
{
	(void)none;
	return create_one(SIGUSR2, &none);
}

/* Exits 0 when no call failed. */
static void run_once(void *arg)
{
	const struct once *o = arg;
	struct ch_heap *heap = NULL;
	if (o->needs_heap)
		CHECK_EQ(create_one(0, &heap), CH_OK);
	ch__os_fail_as(o->n, false, EPERM);
	enum ch_status status = o->call(heap);
	int error = errno;
	bool is_over = ch__os_failable_calls() < o->n;
	ch__os_fail_at(0, false);
	if (status != CH_OK) {
		CHECK(!is_over);
		CHECK(status == CH_E_MEMORY || (status == CH_E_OS && error == EPERM));
		CHECK_EQ(o->call(heap), CH_OK);
	}
	_exit(is_over ? 0 : 9);
}

static void walk_once(enum ch_status (*call)(struct ch_heap *), bool needs_heap)
{
	char folder[] = "/tmp/codeheap.XXXXXX", command[80];
	CHECK(mkdtemp(folder) != NULL);
	CHECK_EQ(setenv("CODEHEAP_PERF_MAP_DIR", folder, 1), 0);
	CHECK_EQ(setenv("JITDUMPDIR", folder, 1), 0);
	struct once o = {.call = call, .needs_heap = needs_heap};
	int how;
	do {
		o.n++;
		pid_t child = fork_child();
		if (!child)
			run_once(&o);
		CHECK_EQ(waitpid(child, &how, 0), child);
		CHECK(o.n < 300);
	} while (WIFEXITED(how) && WEXITSTATUS(how) == 9);
	snprintf(command, sizeof command, "rm -r %s", folder);
	CHECK_EQ(system(command), 0);
	if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
		FAIL("call %llu failed, and the process did not survive it",
		     (unsigned long long)o.n);
	CHECK(o.n > 1); /* something did fail */
}

static const struct failures_row row_trap_install = {
	"failures_trap_install", "ch_trap_install", NULL, NULL, 0, NULL};
__attribute__((constructor)) static void add_trap_install(void)
{
	rows[row_count++] = &row_trap_install;
}
TEST(failures_trap_install)
{
	walk_once(call_install, true);
}
TEST(failures_first_heap_of_a_process)
{
	walk_once(call_first_heap, false);
}

/* --- no function is left out --- */

static void find_row(const char *function, void *arg)
{
	unsigned *count = arg;
	++*count;
	for (unsigned i = 0; i < row_count; i++)
		if (rows[i]->function && !strcmp(rows[i]->function, function))
			return;
	if (strncmp(function, "ch_bdw_", 7) != 0 || CH_TEST_BDW)
		FAIL("%s has no row: nothing fails its calls", function);
}

TEST(failures_have_a_row_for_each_function)
{
	unsigned count = 0;
	failures_each_function(find_row, &count);
	CHECK_EQ(count, 65 + 4);
	for (unsigned i = 0; i < row_count; i++)
		if (rows[i]->function && !failures_documented(rows[i]->function))
			FAIL("%s is in no header", rows[i]->function);
	CHECK_EQ(failures_documented("ch_branch_link"),
		 1u << CH_OK | 1u << CH_E_STALE | 1u << CH_E_STATE);
}

#endif
