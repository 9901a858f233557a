/* SPDX-License-Identifier: MIT
 * names.c: an address with one owner and then another: its name in the perf map, in the jitdump
 * file and by the library itself, on every driver. Unit tests have the formats. */
#include "codeheap/look.h"
#include "tests/support/jitdump_reader.h"
#include "tests/support/perfmap_reader.h"
#include "tests/support/stage.h"

struct play {
	struct stage *stage;
	struct method old, fresh;
	uintptr_t place; /* the complement, no address to a scan */
	uint64_t lived_at;
};

static struct play *new_play(struct stage *stage, unsigned sinks)
{
	use_own_folder();
	stage->config.jitdump_dir = folder;
	stage->config.sinks = CH_SINK_UNWIND | sinks;
	/* One page: the next block gets the place of the dead block. */
	stage->config.pool_bytes = test_page_bytes() ? test_page_bytes() : 16384;
	return stage_play(stage, sizeof(struct play));
}

static void build_old(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct ch_info info = {.size = sizeof info};
	method_constant(stage, &p->old, "Schneeweisschen", 1);
	CHECK_EQ(method_call(&p->old, NULL), 1);
	CHECK_EQ(ch_block_info(p->old.block, &info), CH_OK);
	CHECK_EQ(ch_sink_flush(stage->heap), CH_OK);
	p->place = ~(uintptr_t)info.exec;
}

static const void *place_of(const struct play *p)
{
	return (const void *)~p->place;
}

static void let_old_die(struct play *p)
{
	stage_apart(p->stage, build_old, p);
	p->lived_at = now_ns();
	method_drop(p->stage, &p->old);
	for (int i = 0; i < 3; i++) /* through the quarantine, too */
		stage_collect(p->stage);
	CHECK_EQ(p->old.freed, 1);
}

static void build_fresh(struct play *p)
{
	struct ch_info info = {.size = sizeof info};
	method_constant(p->stage, &p->fresh, "Rosenrot", 2);
	CHECK_EQ(method_call(&p->fresh, NULL), 2);
	CHECK_EQ(ch_block_info(p->fresh.block, &info), CH_OK);
	CHECK_EQ((uintptr_t)info.exec, (uintptr_t)place_of(p));
}

static void check_library_says(const struct play *p, const char *wanted)
{
	char text[100], whole[120];
	snprintf(whole, sizeof whole, "%s+", wanted);
	ch_address_name(p->stage->heap, place_of(p), false, text, sizeof text);
	if (strncmp(text, whole, strlen(whole)) != 0)
		FAIL("names: %p is \"%s\" and should be of \"%s\"", place_of(p), text, wanted);
}

/* Nobody asks for a file without dead names. The dead name of a place in use again must go all the
 * same, or the address has two names. */
EVERY_DRIVER(s52_perf_map_has_one_line_for_an_address_with_two_owners)
{
	struct play *p = new_play(stage, CH_SINK_PERF_MAP);
	char path[128];
	path_of(getpid(), path);
	let_old_die(p);
	build_fresh(p);
	stage_collect(stage); /* writes buffered lines */
	check_named(path, place_of(p), "Rosenrot");
	check_library_says(p, "Rosenrot");
	const void *place = place_of(p);
	stage_end(stage);
	/* The file's readers come later. */
	check_named(path, place, "Rosenrot");
	remove_own_folder();
}

static void build_unflushed(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct ch_info info = {.size = sizeof info};
	method_constant(stage, &p->old, "Schneeweisschen", 1);
	CHECK_EQ(ch_block_info(p->old.block, &info), CH_OK);
	p->place = ~(uintptr_t)info.exec;
}

/* The first owner's line is still in the buffer when the block dies and the second owner comes. */
EVERY_DRIVER(s52_line_that_was_not_written_yet_does_not_stand_beside_the_new_one)
{
	struct play *p = new_play(stage, CH_SINK_PERF_MAP);
	char path[128];
	path_of(getpid(), path);
	stage_apart(stage, build_unflushed, p);
	CHECK_EQ(ch_owner_release(p->old.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	stage_settle(stage);
	build_fresh(p);
	stage_collect(stage);
	check_named(path, place_of(p), "Rosenrot");
	if (stage->driver == STAGE_HOST || stage->driver == STAGE_BOEHM)
		method_drop(stage, &p->old);
	stage_end(stage);
	remove_own_folder();
}

EVERY_DRIVER(s52_newest_record_of_the_jitdump_owns_an_address)
{
	struct play *p = new_play(stage, CH_SINK_JITDUMP);
	char path[128];
	snprintf(path, sizeof path, "%s/jit-%d.dump", folder, (int)getpid());
	let_old_die(p);
	uint64_t nobodys_at = now_ns();
	build_fresh(p);
	uint64_t used_again_at = now_ns();
	CHECK_EQ(ch_sink_flush(stage->heap), CH_OK);
	struct dump *dump = dump_read(path);
	dump_check_owner(dump, place_of(p), p->lived_at, "Schneeweisschen");
	dump_check_owner(dump, place_of(p), nobodys_at, "[freed]");
	dump_check_owner(dump, place_of(p), used_again_at, "Rosenrot");
	dump_free(dump);
	check_library_says(p, "Rosenrot");
	stage_end(stage);
	CHECK_EQ(unlink(path), 0);
	remove_own_folder();
}
