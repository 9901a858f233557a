/* SPDX-License-Identifier: MIT
 * model.c: which block holds which. A cycle may free exactly the blocks that are not reached here,
 * and must free them when no stack that is scanned word by word could hold them by chance. */
#define _GNU_SOURCE /* strchrnul */
#include "fuzz/fuzz.h"
#include "tests/support/block_at.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

bool fuzz_is_there(int block)
{
	return block != FUZZ_NONE && fuzz.blocks[block].state != CH_BLOCK_FREE;
}

/* --- reach --- */

static void reach_owner(int owner);

static void reach(int at)
{
	if (!fuzz_is_there(at) || fuzz.blocks[at].is_reached)
		return;
	struct fuzz_block *b = &fuzz.blocks[at];
	b->is_reached = true;
	reach(b->link);
	if (b->edge != FUZZ_NONE && fuzz.blocks[b->edge].life == b->edge_life)
		reach(b->edge);
	if (b->owner_edge != FUZZ_NONE)
		reach_owner(b->owner_edge);
}

static void reach_owner(int owner)
{
	struct fuzz_owner *o = &fuzz.owners[owner];
	if (o->is_reached)
		return;
	o->is_reached = true;
	if (o->state == OWNER_ALIVE)
		reach(o->entry);
}

static void reach_life(int block, int life)
{
	if (block != FUZZ_NONE && fuzz.blocks[block].life == life)
		reach(block);
}

static bool is_root(const struct fuzz_block *b)
{
	return b->state == CH_BLOCK_OPEN || b->is_immortal ||
	       (b->state == CH_BLOCK_LIVE && !b->is_held && b->age < 2);
}

void fuzz_mark(void)
{
	for (int i = 0; i < FUZZ_OWNERS; i++)
		fuzz.owners[i].is_reached = false;
	for (int i = 0; i < FUZZ_BLOCKS; i++)
		fuzz.blocks[i].is_reached = false;
	for (int i = 0; i < FUZZ_OWNERS; i++)
		if (fuzz.owners[i].state == OWNER_ALIVE)
			reach_owner(i);
	for (int i = 0; i < FUZZ_BLOCKS; i++)
		if (fuzz_is_there(i) && is_root(&fuzz.blocks[i]))
			reach(i);
	for (int n = 0; n < fuzz.nested; n++)
		for (int f = 0; f < fuzz.runs[n].depth; f++)
			reach_life(fuzz.runs[n].frames[f].block, fuzz.runs[n].frames[f].life);
	for (int f = 0; f < FUZZ_FIBERS; f++)
		for (int i = 0; fuzz.fibers[f].is_suspended && i < 2; i++)
			reach_life(fuzz.fibers[f].blocks[i], fuzz.fibers[f].lives[i]);
}

/* --- moves --- */

static void unlink_from_all(int at)
{
	for (int i = 0; i < FUZZ_BLOCKS; i++)
		if (fuzz.blocks[i].link == at)
			fuzz.blocks[i].link = FUZZ_NONE;
}

static void leave_entry(int at)
{
	for (int i = 0; i < FUZZ_OWNERS; i++)
		if (fuzz.owners[i].entry == at)
			fuzz.owners[i].entry = FUZZ_NONE;
}

void fuzz_invalidated(int at)
{
	struct fuzz_block *b = &fuzz.blocks[at];
	b->state = CH_BLOCK_NOTENTRANT;
	b->link = FUZZ_NONE;
	unlink_from_all(at);
	leave_entry(at);
}

void fuzz_bury(int at)
{
	struct fuzz_block *b = &fuzz.blocks[at];
	fuzz.gone[fuzz.gone_count++ % FUZZ_GONE] = b->handle;
	fuzz.is_gone[b->number] = true;
	if (b->state == CH_BLOCK_OPEN)
		fuzz.tells[b->number] = 0;
	b->state = CH_BLOCK_FREE;
	b->link = FUZZ_NONE;
	unlink_from_all(at);
	leave_entry(at);
}

void fuzz_check_told(void)
{
	for (int i = 0; i < fuzz.lives; i++)
		if (fuzz.is_gone[i] && fuzz.tells[i] && !fuzz.is_told[i])
			FAIL("nobody was told that block %d is gone", i);
}

/* A present block keeps the targets of its edge and its link. */
static void check_closed(int at)
{
	const struct fuzz_block *b = &fuzz.blocks[at];
	struct ch_info info = {.size = sizeof info};
	if (b->edge != FUZZ_NONE && fuzz_is_there(b->edge) &&
	    fuzz.blocks[b->edge].life == b->edge_life && b->state != CH_BLOCK_OPEN &&
	    ch_block_info(fuzz.blocks[b->edge].handle, &info) != CH_OK)
		FAIL("block %d is there, and the block that it has an edge to is not", b->life);
	if (b->link != FUZZ_NONE && ch_block_info(fuzz.blocks[b->link].handle, &info) != CH_OK)
		FAIL("block %d is there, and the block that it is linked to is not", b->life);
}

static void check_refs(bool is_exact)
{
	for (int i = 0; i < FUZZ_BLOCKS; i++) {
		const struct fuzz_block *b = &fuzz.blocks[i];
		if (!fuzz_is_there(i) || !b->has_ref)
			continue;
		if (b->is_reached && !fuzz.ref_seen[b->life])
			FAIL("a ref of block %d was not reported", b->life);
		if (is_exact && !b->is_reached && fuzz.ref_seen[b->life])
			FAIL("a ref of block %d, which is dead, was reported", b->life);
	}
}

void fuzz_cycle_done(bool is_exact)
{
	bool is_gone[FUZZ_BLOCKS] = {false};
	check_refs(is_exact);
	for (int i = 0; i < FUZZ_BLOCKS; i++) {
		struct fuzz_block *b = &fuzz.blocks[i];
		struct ch_info info = {.size = sizeof info};
		if (!fuzz_is_there(i))
			continue;
		enum ch_status status = ch_block_info(b->handle, &info);
		is_gone[i] = status == CH_E_STALE;
		CHECK(is_gone[i] || status == CH_OK);
		if (is_gone[i] && b->is_reached)
			FAIL("block %d is gone, and something holds it", b->life);
		if (!is_gone[i] && is_exact && !b->is_reached)
			FAIL("block %d is there, and nothing holds it", b->life);
		if (!is_gone[i])
			check_closed(i);
		b->age += b->state == CH_BLOCK_LIVE;
	}
	for (int i = 0; i < FUZZ_BLOCKS; i++)
		if (is_gone[i])
			fuzz_bury(i);
	fuzz_check_told();
	fuzz_check_heap();
}

/* --- the heap's own words --- */

static void check_protections(void)
{
	static char text[256 << 10];
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	size_t n = 0;
	ssize_t got;
	CHECK(fd >= 0);
	while (n < sizeof text - 1 && (got = read(fd, text + n, sizeof text - 1 - n)) > 0)
		n += (size_t)got;
	CHECK_EQ(close(fd), 0);
	text[n] = 0;
	for (char *line = text; *line; line = strchrnul(line, '\n') + 1) {
		const char *rights = strchr(line, ' ');
		if (rights && rights[2] == 'w' && rights[3] == 'x')
			FAIL("writable and executable at once: %.60s", line);
		if (!*strchrnul(line, '\n'))
			break;
	}
}

static void check_info(int at)
{
	const struct fuzz_block *b = &fuzz.blocks[at];
	const struct fuzz_owner *o = &fuzz.owners[b->owner];
	struct ch_info info = {.size = sizeof info};
	struct ch_block found;
	if (ch_block_info(b->handle, &info) != CH_OK)
		FAIL("block %d is gone", b->life);
	CHECK(info.kind == CH_KIND_CODE && info.owner.bits == o->handle.bits);
	CHECK(!o->vm || info.vm == o->vm); /* a vm that is gone has no handle to compare */
	CHECK(info.exec == b->code.exec);
	CHECK_EQ(info.branches_now, b->branch.bits != 0);
	if (b->state != CH_BLOCK_OPEN && b->life != FUZZ_FALLBACK)
		CHECK(info.hot_bytes - b->code.used_to < 8); /* of a granule */
	if (fuzz.is_told[b->number] || info.user != (void *)(uintptr_t)(b->number + 1))
		FAIL("block %d was told to be freed, or is of another user", b->life);
	if (info.state != b->state)
		FAIL("block %d is in state %d, and should be in %d", b->life, info.state, b->state);
	if ((b->state == CH_BLOCK_LIVE) != (info.entry != NULL))
		FAIL("block %d has an entry and should not, or the other way round", b->life);
	if (b->state != CH_BLOCK_OPEN &&
	    (!block_at(fuzz.heap, info.exec + info.hot_bytes - 1, &found) ||
	     found.bits != b->handle.bits))
		FAIL("an address in block %d is not known to be", b->life);
}

static void check_gone(void)
{
	struct ch_info info = {.size = sizeof info};
	for (int i = 0; i < FUZZ_GONE && i < fuzz.gone_count; i++)
		CHECK_EQ(ch_block_info(fuzz.gone[i], &info), CH_E_STALE);
}

static void check_owner(const struct fuzz_owner *o)
{
	struct ch_owner_facts facts = {.size = sizeof facts};
	CHECK_EQ(ch_owner_info(o->handle, &facts), CH_OK);
	CHECK(facts.vm == o->vm && !facts.is_released);
	CHECK_EQ(facts.entry.bits, o->entry == FUZZ_NONE ? 0 : fuzz.blocks[o->entry].handle.bits);
	uint64_t blocks = 0;
	for (int i = 0; i < FUZZ_BLOCKS; i++)
		blocks += fuzz_is_there(i) && &fuzz.owners[fuzz.blocks[i].owner] == o;
	CHECK(facts.blocks_now >= blocks); /* dead ones count until their place is free */
}

void fuzz_compare(void)
{
	uint64_t blocks = 0, opens = 0, invalid = 0, branches = 0;
	uint64_t facts = 0, fibers = 0, owners = 0;
	for (int i = 0; i < FUZZ_BLOCKS; i++) {
		if (!fuzz_is_there(i))
			continue;
		check_info(i);
		blocks++;
		opens += fuzz.blocks[i].state == CH_BLOCK_OPEN;
		invalid += fuzz.blocks[i].state == CH_BLOCK_NOTENTRANT;
		branches += fuzz.blocks[i].life != FUZZ_FALLBACK; /* trampolines have none */
	}
	check_gone();
	struct ch_stats stats = {.size = sizeof stats};
	CHECK_EQ(ch_heap_stats(fuzz.heap, &stats), CH_OK);
	CHECK_EQ(stats.blocks_now, blocks);
	CHECK_EQ(stats.blocks_open_now, opens);
	CHECK_EQ(stats.blocks_notentrant_now, invalid);
	CHECK_EQ(stats.branches_now, branches);
	for (int i = 0; i < FUZZ_FACTS; i++)
		facts += fuzz.facts[i].is_there;
	for (int i = 0; i < FUZZ_FIBERS; i++)
		fibers += fuzz.fibers[i].fiber != NULL;
	CHECK_EQ(stats.assumptions_now, facts);
	CHECK_EQ(stats.fibers_now, fibers);
	CHECK_EQ(stats.threads_now, 1);
	CHECK_EQ(stats.vms_now, FUZZ_VMS);
	for (int i = 0; i < FUZZ_OWNERS; i++) {
		const struct fuzz_owner *o = &fuzz.owners[i];
		if (o->state != OWNER_ALIVE)
			continue;
		owners++;
		const void *const *cell = ch_owner_cell(o->handle);
		CHECK(cell);
		const void *leads =
			o->entry == FUZZ_NONE ? fuzz_fallback() : fuzz.blocks[o->entry].entry;
		if (*cell != leads)
			FAIL("the cell of owner %d does not lead where it should", i);
		check_owner(o);
	}
	CHECK(stats.owners_now >= owners); /* released ones count until their last place is free */
	check_protections();
}

void fuzz_check_heap(void)
{
	char report[300];
	if (ch_heap_check(fuzz.heap, report, sizeof report) != CH_OK)
		FAIL("heap check: %s", report);
}
