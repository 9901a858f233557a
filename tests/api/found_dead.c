/* SPDX-License-Identifier: MIT
 * found_dead.c: blocks and owners found dead by a cycle, and not yet swept. A call that would turn
 * a handle into an address, an edge or an entry says CH_E_STALE. No refs are visited. */
#include "codeheap/collect/collect.h"
#include "codeheap/events/events.h"
#include "tests/support/heap_rig.h"

enum { LIVE_WORD = 111, DEAD_WORD = 222, VALUE = 7 };

/* The block is the owner's entry. The block has a jump, a ref, and room for one more branch. */
struct method {
	struct ch_owner owner;
	struct ch_block block;
	struct ch_branch branch;
	const void *late_site, *exit;
};

static struct rig rig;
static struct method live, dead;

static void make(struct method *m, const char *name, uint64_t word)
{
	struct emitter e;
	m->owner = rig_owner(&rig, name);
	emit_open(&e, m->owner, 128, 2);
	const void *ref = emit_ref_word(&e, word);
	m->exit = emit_here(&e);
	emit_answer(&e, VALUE);
	m->branch = emit_jmp(&e, NULL);
	m->late_site = emit_site_jmp(&e);
	CHECK_EQ(ch_ref_attach(e.code.block, ref), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	m->block = e.code.block;
	CHECK_EQ(ch_owner_set_entry(m->owner, m->block), CH_OK);
}

static void start_host(unsigned step_blocks)
{
	struct ch_config config = rig_config(4 << 20);
	config.driver = CH_DRIVER_HOST;
	config.step_blocks = step_blocks;
	rig = rig_create(&config, NULL, NULL);
}

/* The VM's collector reaches the owner of `live` only. The sweep is put off to the end of the case:
 * an open that takes a page would sweep. */
static void start(void)
{
	start_host(0);
	make(&live, "live", LIVE_WORD);
	make(&dead, "dead", DEAD_WORD);
	rig_alone(&rig, rig_mark, &live.owner);
	CHECK(atomic_exchange(&rig.heap->sweep_pending, false));
}

static void end(void)
{
	CHECK_EQ(rig_stats(&rig).blocks_freed, 0);
	atomic_store(&rig.heap->sweep_pending, true);
	ch__poll_want(rig.heap);
	ch_thread_poll();
	CHECK_EQ(rig_stats(&rig).blocks_freed, 1);
	CHECK(rig_is_there(live.block));
	rig_end(&rig);
}

TEST(handle_of_a_block_that_was_found_dead_is_stale)
{
	struct ch_info info = {.size = sizeof info};
	struct ch_branch made;
	struct ch_branch_site site = {.kind = CH_JMP};
	start();
	site.at = dead.late_site;
	CHECK_EQ(ch_block_info(dead.block, &info), CH_E_STALE);
	CHECK_EQ(ch_branch_attach(dead.block, &site, &made), CH_E_STALE);
	CHECK_EQ(ch_branch_link(live.branch, dead.block), CH_E_STALE);
	CHECK_EQ(ch_branch_link(dead.branch, live.block), CH_E_STALE);
	CHECK_EQ(ch_owner_set_entry(live.owner, dead.block), CH_E_STALE);
	site.at = live.late_site;
	CHECK_EQ(ch_branch_attach(live.block, &site, &made), CH_OK);
	CHECK_EQ(ch_branch_link(live.branch, live.block), CH_OK);
	end();
}

TEST(invalidation_passes_over_what_was_found_dead)
{
	size_t count = 1;
	start();
	CHECK_EQ(ch_blocks_invalidate(&dead.block, 1, &count), CH_OK);
	CHECK_EQ(count, 0);
	CHECK_EQ(ch_blocks_invalidate(&live.block, 1, &count), CH_OK);
	CHECK_EQ(count, 1);
	end();
}

TEST(handle_of_an_owner_that_was_found_dead_is_stale)
{
	struct ch_block none = {0}, block;
	struct ch_code code;
	struct ch_marker *marker;
	start();
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
	ch_mark_owner(marker, dead.owner);
	CHECK(strstr(ch_why(), "CH_E_STALE: owner #"));
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	struct ch_open open = {.size = sizeof open, .owner = dead.owner, .hot_bytes = 16};
	CHECK_EQ(ch_owner_set_entry(dead.owner, dead.block), CH_E_STALE);
	CHECK_EQ(ch_owner_set_entry(dead.owner, none), CH_E_STALE);
	CHECK_EQ(ch_block_open(&open, &code), CH_E_STALE);
	CHECK_EQ(ch_trampoline_make(dead.owner, CH_TRAMPOLINE_TAIL, (void *)rig_fallback, 0, NULL,
				    NULL, &block),
		 CH_E_STALE);
	end();
}

static bool count_site(void *arg, const struct ch_site *site)
{
	++*(unsigned *)arg;
	CHECK(site->kind != CH_SITE_REF || site->word == LIVE_WORD);
	return true;
}

TEST(sites_of_what_was_found_dead_are_not_visited)
{
	unsigned sites = 0;
	start();
	CHECK_EQ(ch_block_sites(dead.block, count_site, &sites), CH_E_STALE);
	CHECK_EQ(sites, 0);
	CHECK_EQ(ch_block_sites(live.block, count_site, &sites), CH_OK);
	CHECK_EQ(sites, 3); /* a branch, its stub, a ref */
	end();
}

TEST(nothing_has_an_edge_to_what_was_found_dead)
{
	struct emitter e;
	start();
	emit_open(&e, live.owner, 64, 0);
	CHECK_EQ(ch_edge_attach(e.code.block, dead.block), CH_E_STALE);
	CHECK_EQ(ch_edge_attach_owner(e.code.block, dead.owner), CH_E_STALE);
	const void *point = emit_point(&e);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, dead.exit, NULL), CH_E_STALE);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, live.exit, NULL), CH_OK);
	CHECK_EQ(ch_edge_attach(e.code.block, live.block), CH_OK);
	CHECK_EQ(ch_edge_attach_owner(e.code.block, live.owner), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	end();
}

static bool note_dead(void *arg, const struct ch_info *info)
{
	*(unsigned *)arg += info->block.bits == dead.block.bits && info->state == CH_BLOCK_LIVE;
	return true;
}

/* Whoever reads an address or a name, a debugger for one, does so as long as the bytes are code. */
TEST(what_was_found_dead_has_its_address_and_its_name_until_the_sweep)
{
	unsigned visits = 0;
	struct ch_spot spot = {.size = sizeof spot};
	start();
	CHECK_EQ(ch_block_each(rig.heap, "dead", note_dead, &visits), CH_OK);
	CHECK_EQ(visits, 1);
	CHECK(ch_code_at(rig.heap, dead.exit, false, &spot));
	CHECK(spot.block.bits == dead.block.bits && spot.state == CH_BLOCK_LIVE);
	end();
}

static uintptr_t visit_live(void *arg, uintptr_t word, bool *is_young)
{
	++*(unsigned *)arg;
	CHECK_EQ(word, LIVE_WORD);
	*is_young = true;
	return word;
}

TEST(refs_of_what_was_found_dead_are_not_visited)
{
	unsigned visits = 0;
	start();
	rig_visit_refs(&rig, CH_REFS_YOUNG, visit_live, &visits);
	CHECK_EQ(visits, 1);
	rig_visit_refs(&rig, CH_REFS_ALL, visit_live, &visits);
	CHECK_EQ(visits, 2);
	end();
}

/* The block was OPEN when its owner was found dead: it never lives. */
TEST(block_of_an_owner_that_was_found_dead_is_not_committed)
{
	struct emitter e;
	start_host(0);
	make(&live, "live", LIVE_WORD);
	emit_open(&e, rig_owner(&rig, "dead"), 16, 0);
	emit_ret(&e);
	rig_alone(&rig, rig_mark, &live.owner);
	CHECK_EQ(emit_commit(&e), CH_E_STALE);
	CHECK(strstr(ch_why(), "the owner of a block died"));
	ch_thread_poll();
	CHECK(rig_is_there(live.block) && !rig_is_there(e.code.block));
	rig_end(&rig);
}

/* A VM that stops its threads itself, or has libgc stop them, may have no polls. */
TEST(opens_sweep_what_was_found_dead_while_nobody_polled)
{
	enum { ROUND = 1000 };
	start_host(0);
	live.owner = rig_owner(&rig, "live");
	for (int i = 0; i < ROUND; i++)
		(void)rig_block(rig_owner(&rig, "dead"), VALUE);
	/* Newborn blocks outlive two cycles. */
	for (int i = 0; i < 3; i++)
		rig_alone(&rig, rig_mark, &live.owner);
	CHECK_EQ(rig_stats(&rig).blocks_freed, 0);
	/* An open that takes a page sweeps at least as many as the page has room for. */
	for (int i = 0; i < ROUND; i++)
		(void)rig_block(live.owner, VALUE);
	CHECK_EQ(rig_stats(&rig).blocks_freed, ROUND);
	rig_end(&rig);
}

/* A poll looks at 8,192 records. A sweep that began anew with each cycle would never come to the
 * block behind these records, nor to its end. */
TEST(sweep_goes_on_where_cycles_are_more_frequent)
{
	enum { CODES = 9000 };
	start_host(0);
	make(&live, "live", LIVE_WORD);
	for (int i = 0; i < CODES; i++) {
		void *code;
		CHECK_EQ(ch_code_add(rig.heap, "\0\0\0", 4, NULL, &code), CH_OK);
	}
	make(&dead, "dead", DEAD_WORD);
	for (int i = 0; i < 4; i++) {
		rig_alone(&rig, rig_mark, &live.owner);
		ch_thread_poll();
	}
	CHECK_EQ(rig_stats(&rig).blocks_freed, 1);
	CHECK_EQ(rig_stats(&rig).quarantine_bytes_now, 0);
	rig_end(&rig);
}

/* The sweep had passed the record of `live` when the second cycle found it dead. */
TEST(sweep_to_the_end_frees_what_a_cycle_found_in_its_middle)
{
	struct method last;
	start_host(1);
	make(&last, "last", DEAD_WORD); /* a thread's first records are taken from the last on */
	make(&dead, "dead", DEAD_WORD);
	make(&live, "live", LIVE_WORD);
	rig_alone(&rig, rig_mark, &live.owner);
	ch_thread_poll();
	CHECK(rig_is_there(live.block) && !rig_is_there(dead.block));
	rig_alone(&rig, rig_mark, NULL);
	CHECK_EQ(rig_stats(&rig).blocks_freed, 1);
	ch__sweep_steps(rig.heap, UINT32_MAX);
	CHECK_EQ(rig_stats(&rig).blocks_freed, 3);
	rig_end(&rig);
}
