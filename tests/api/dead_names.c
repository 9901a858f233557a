/* SPDX-License-Identifier: MIT
 * dead_names.c: the name and the place of freed code while the perf map is on. A dead name is
 * replaced, or kept until the pool is full otherwise. */
#include "tests/support/heap_rig.h"
#include "tests/support/perfmap_reader.h"


static char path[128];

static struct rig start(size_t pool_bytes, enum ch_dead_names dead_names)
{
	struct ch_config config = rig_config(pool_bytes);
	config.sinks = CH_SINK_UNWIND | CH_SINK_PERF_MAP;
	config.dead_names = dead_names;
	use_own_folder();
	path_of(getpid(), path);
	return rig_create(&config, NULL, NULL);
}

static void end(struct rig *rig)
{
	rig_end(rig);
	remove_own_folder();
}

static void check_name_at(const struct rig *rig, const void *exec, const char *name)
{
	CHECK_EQ(ch_sink_flush(rig->heap), CH_OK);
	check_named(path, exec, name);
}

static void release(struct ch_owner owner)
{
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
}

/* The address is inverted: a collection would find a plain address on the stack. */
static uintptr_t place_of(struct ch_block block)
{
	return ~(uintptr_t)block_info(block).exec;
}

static const void *exec_of(uintptr_t place)
{
	return (const void *)~place;
}

/* The sinks hear of the block before the commit sees that the fact is none any more. */
TEST(commit_that_comes_too_late_leaves_no_name)
{
	struct rig rig = start(0, CH_DEAD_NAMES_REPLACED);
	struct ch_assumption fact;
	struct emitter e;
	size_t broken;
	(void)rig_block(rig_owner(&rig, "first"), 1);
	emit_open(&e, rig_owner(&rig, "late"), 16, 0);
	emit_ret(&e);
	CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
	CHECK_EQ(ch_block_assume(e.code.block, fact), CH_OK);
	CHECK_EQ(ch_assumption_break(fact, &broken), CH_OK);
	const void *exec = e.code.exec;
	CHECK_EQ(emit_commit(&e), CH_E_STALE);
	check_name_at(&rig, exec, NULL);
	end(&rig);
}

TEST(replaced_name_of_released_code_goes_and_its_place_is_used_again)
{
	struct rig rig = start(0, CH_DEAD_NAMES_REPLACED);
	struct ch_owner gone = rig_owner(&rig, "gone\n\nfar");
	uintptr_t place = place_of(rig_block(gone, 1));
	check_name_at(&rig, exec_of(place), "gone  far");
	release(gone);
	check_name_at(&rig, exec_of(place), NULL);
	rig_settle(&rig);
	CHECK_EQ(rig_stats(&rig).quarantine_bytes_now, 0);
	struct ch_owner next = rig_owner(&rig, "next");
	CHECK_EQ(place_of(rig_block(next, 2)), place);
	check_name_at(&rig, exec_of(place), "next");
	end(&rig);
}

static struct ch_block long_block(struct ch_owner owner)
{
	struct emitter e;
	emit_open(&e, owner, 96, 0);
	for (uint32_t i = 0; i < 10; i++)
		emit_value(&e, i);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
	return e.code.block;
}

/* A single dead name is not worth a rewrite of the file. */
TEST(replaced_name_yields_when_its_place_is_used_again)
{
	struct rig rig = start(rig_page_bytes(), CH_DEAD_NAMES_REPLACED);
	struct ch_owner gone = rig_owner(&rig, "gone"), other = rig_owner(&rig, "other");
	uintptr_t place = place_of(long_block(gone)), stays = place_of(long_block(other));
	rig_collect(&rig, 1);
	check_named(path, exec_of(place), "gone");
	release(gone);
	rig_collect(&rig, 1);
	check_named(path, exec_of(place), "gone");
	struct ch_owner next = rig_owner(&rig, "next");
	uintptr_t at = 0;
	for (unsigned n = 0; place - at >= 48; n++) { /* places are complements */
		CHECK(n < rig_page_bytes() / 16);
		at = place_of(rig_block(next, 2));
	}
	rig_collect(&rig, 1);
	check_named(path, exec_of(at), "next");
	check_named(path, exec_of(stays), "other");
	end(&rig);
}

TEST(kept_name_of_released_code_stays_and_its_place_is_not_used_again)
{
	struct rig rig = start(0, CH_DEAD_NAMES_KEPT);
	struct ch_owner gone = rig_owner(&rig, "gone");
	uintptr_t place = place_of(rig_block(gone, 1));
	release(gone);
	for (int i = 0; i < 100; i++) {
		struct ch_owner next = rig_owner(&rig, "next");
		if (place_of(rig_block(next, 2)) == place)
			FAIL("perf map: the address of a kept name is used again");
		release(next);
	}
	check_name_at(&rig, exec_of(place), "gone");
	CHECK(rig_stats(&rig).quarantine_bytes_now > 0);
	CHECK(ch__arch_are_traps((const uint8_t *)exec_of(place), 8)); /* like any freed code */
	rig_check(&rig);
	end(&rig);
}

static void make_owner(const struct rig *rig, void *arg)
{
	uintptr_t *place = arg;
	struct ch_owner owner = rig_owner(rig, "collected");
	struct ch_block block = rig_block(owner, 1);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	*place = place_of(block);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
}

TEST(kept_name_of_collected_code_stays_until_the_sink_is_turned_off)
{
	struct rig rig = start(0, CH_DEAD_NAMES_KEPT);
	uintptr_t place = 0;
	rig_apart(&rig, make_owner, &place);
	rig_collect(&rig, 5);
	CHECK_EQ(rig_stats(&rig).blocks_freed, 1);
	CHECK(rig_stats(&rig).quarantine_bytes_now > 0);
	check_name_at(&rig, exec_of(place), "collected");
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_UNWIND), CH_OK);
	rig_collect(&rig, 2);
	CHECK_EQ(rig_stats(&rig).quarantine_bytes_now, 0);
	check_named(path, exec_of(place), "collected"); /* earlier samples need the name */
	end(&rig);
}

static void read_own_map(const struct rig *rig, uintptr_t gone, uintptr_t stays)
{
	path_of(getpid(), path);
	check_name_at(rig, exec_of(gone), NULL); /* the code never ran in the child */
	check_name_at(rig, exec_of(stays), "stays");
	struct ch_owner owner = rig_owner(rig, "of the child");
	uintptr_t place = place_of(rig_block(owner, 1));
	release(owner);
	check_name_at(rig, exec_of(place), "of the child");
	rig_check(rig);
	unlink(path);
	_exit(0);
}

TEST(kept_names_of_a_parent_are_not_its_childs)
{
	struct rig rig = start(0, CH_DEAD_NAMES_KEPT);
	struct ch_owner owner = rig_owner(&rig, "gone");
	uintptr_t gone = place_of(rig_block(owner, 1));
	uintptr_t stays = place_of(rig_block(rig_owner(&rig, "stays"), 1));
	release(owner);
	pid_t pid = fork();
	if (pid == 0)
		read_own_map(&rig, gone, stays);
	expect_exit(pid, 0);
	check_name_at(&rig, exec_of(gone), "gone");
	end(&rig);
}

/* Short lives, of which a single page has room for a seventh: no open fails, and no address has two
 * names. */
TEST(kept_names_yield_to_a_full_pool)
{
	enum { LIFE_BYTES = 16, TIMES = 7 };
	const unsigned lives = (unsigned)(TIMES * rig_page_bytes() / LIFE_BYTES);
	struct rig rig = start(rig_page_bytes(), CH_DEAD_NAMES_KEPT);
	struct ch_owner stays = rig_owner(&rig, "stays");
	const void *stays_at = block_info(rig_block(stays, 1)).exec;
	uint64_t waiting = 0;
	unsigned needs = 0;
	for (unsigned i = 0; i < lives; i++) {
		char name[16];
		snprintf(name, sizeof name, "life_%u", i);
		struct ch_owner owner = rig_owner(&rig, name);
		struct ch_block block = rig_block(owner, 1);
		uint64_t waiting_now = rig_stats(&rig).quarantine_bytes_now;
		if (waiting_now < waiting) {
			/* When places of dead blocks came free, their names left the file. */
			struct map_file *map = read_map(path);
			size_t is_told = line_of(map, (uintptr_t)block_info(block).exec) != NULL;
			if (map->count != 2 + is_told)
				FAIL("perf map: %zu names of freed code whose places are free",
				     map->count - 2 - is_told);
			CHECK_STR(map->lines[0].name, "codeheap_runtime");
			CHECK_STR(line_of(map, (uintptr_t)stays_at)->name, "stays");
			free(map);
			needs++;
		}
		waiting = waiting_now;
		if (i % 97 == 0)
			check_name_at(&rig, block_info(block).exec, name);
		release(owner);
		waiting = rig_stats(&rig).quarantine_bytes_now;
	}
	CHECK(needs >= TIMES - 1);
	CHECK_EQ(rig_stats(&rig).opens_full, 0);
	check_name_at(&rig, stays_at, "stays");
	end(&rig);
}

TEST(kept_names_of_a_sink_that_fails_hold_no_place)
{
	struct rig rig = start(rig_page_bytes(), CH_DEAD_NAMES_KEPT);
	unlink(path);
	/* The blocks need more bytes than the page has. */
	for (size_t bytes = 0; bytes < 2 * rig_page_bytes(); bytes += 24) {
		struct ch_owner owner = rig_owner(&rig, "life");
		rig_block(owner, 1);
		release(owner);
	}
	int failed = 0;
	CHECK(!ch_sink_status(rig.heap, CH_SINK_PERF_MAP, NULL, &failed));
	CHECK(failed != 0);
	CHECK_EQ(rig_stats(&rig).opens_full, 0);
	end(&rig);
}

/* Whether dead names are kept, by the configuration and the environment. */
static bool is_kept(enum ch_dead_names configured, const char *environment)
{
	CHECK_EQ(setenv("CODEHEAP_DEAD_NAMES", environment, 1), 0);
	struct ch_config config = rig_config(0);
	config.sinks = CH_SINK_UNWIND | CH_SINK_PERF_MAP;
	config.dead_names = configured;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_owner owner = rig_owner(&rig, "one");
	rig_block(owner, 1);
	release(owner);
	rig_settle(&rig);
	bool kept = rig_stats(&rig).quarantine_bytes_now > 0;
	rig_end(&rig);
	return kept;
}

TEST(environment_says_what_becomes_of_dead_names)
{
	struct ch_heap *heap;
	use_own_folder();
	CHECK(is_kept(CH_DEAD_NAMES_REPLACED, "kept"));
	CHECK(!is_kept(CH_DEAD_NAMES_KEPT, "replaced"));
	CHECK_EQ(setenv("CODEHEAP_DEAD_NAMES", "keep", 1), 0);
	CHECK_EQ(ch_heap_create(NULL, &heap), CH_E_ARG);
	remove_own_folder();
}
