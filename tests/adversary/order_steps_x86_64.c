/* SPDX-License-Identifier: MIT
 * order_steps_x86_64.c: the order in which a call takes code out of use, as others see it. The call
 * is made with the trap flag set, and the handler looks behind each instruction. */
#define _GNU_SOURCE
#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/branch.h"
#include "codeheap/graph/handles.h"
#include "codeheap/places/places.h"
#include "tests/support/heap_rig.h"
#include "tests/support/trap_flag_x86_64.h"

#include <errno.h>
#include <signal.h>

enum { WAYS = 5, WAY_BYTES = 4, PARTS_APART = 16 };

/* A way into the block or out of it: code or a word that an invalidation changes. */
struct way {
	const char *name;
	const void *at;
	uint8_t before[WAY_BYTES];
	unsigned changed_at; /* the step; 0: not changed */
};

static struct play {
	struct rig rig;
	void (*look)(struct play *);
	unsigned step;
	/* An invalidation */
	struct way ways[WAYS];
	struct ch__block *record;
	unsigned not_entrant_at; /* the step */
	/* The end of a block */
	const uint8_t *exec;
	unsigned lost_at; /* the step at which the address was nobody's */
} play;

static void on_trap(int signal)
{
	int error = errno;
	(void)signal;
	play.step++;
	play.look(&play);
	errno = error;
}

static void begin(void (*look)(struct play *))
{
	struct sigaction action = {.sa_handler = on_trap};
	play.rig = rig_start(1 << 20);
	play.look = look;
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
}

/* --- an invalidation --- */

static void see_ways(struct play *p)
{
	for (int i = 0; i < WAYS; i++) {
		struct way *way = &p->ways[i];
		if (!way->changed_at && memcmp(way->at, way->before, WAY_BYTES) != 0)
			way->changed_at = p->step;
	}
	if (!p->not_entrant_at && ch__block_state(p->record) == CH_BLOCK_NOTENTRANT)
		p->not_entrant_at = p->step;
}

static void add_way(int i, const char *name, const void *at)
{
	play.ways[i] = (struct way){.name = name, .at = at};
	memcpy(play.ways[i].before, at, WAY_BYTES);
}

/* A block with an entry that is patched, a jump, and a patch point with its exit. */
static struct ch_block make_block(struct ch_owner owner, const void **point,
				  struct ch_branch *branch)
{
	struct ch_open open = {.owner = owner, .hot_bytes = 128, .branch_room = 1,
			       .entry = CH_ENTRY_PATCH};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_nops(&e, PARTS_APART);
	*point = emit_point(&e);
	emit_nops(&e, PARTS_APART);
	*branch = emit_jmp(&e, NULL);
	CHECK_EQ(ch_patch_point_attach(e.code.block, *point, emit_here(&e), NULL), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

/* I13. */
TEST(invalidation_shuts_all_ways_in_order_before_the_block_says_so)
{
	const void *point;
	struct ch_branch in, out;
	begin(see_ways);
	struct ch_heap *heap = play.rig.heap;
	struct ch_owner owner = rig_owner(&play.rig, "shut");
	struct ch_block block = make_block(owner, &point, &out);
	rig_jumper(owner, NULL, &in);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	CHECK_EQ(ch_branch_link(in, block), CH_OK);
	CHECK_EQ(ch_branch_link(out, rig_block(owner, 7)), CH_OK);
	play.record = ch__block_at(heap, rig_record(block));
	add_way(0, "the entry", block_info(block).entry);
	add_way(1, "the cell", ch_owner_cell(owner));
	add_way(2, "the list of jumps to the block", &play.record->in_head);
	add_way(3, "the block's jump",
		&ch__branch_at(heap, ch__handle_index(out.bits))->target_kind);
	add_way(4, "the patch point", point);
	trap_flag_set();
	enum ch_status status = ch_blocks_invalidate(&block, 1, NULL);
	trap_flag_clear();
	CHECK_EQ(status, CH_OK);
	for (int i = 0; i < WAYS; i++) {
		const struct way *way = &play.ways[i];
		unsigned next = i + 1 < WAYS ? way[1].changed_at : play.not_entrant_at;
		if (!way->changed_at || way->changed_at >= next)
			FAIL("%s is shut at step %u, what comes next at step %u", way->name,
			     way->changed_at, next);
	}
	rig_end(&play.rig);
}

/* --- a thread between a linked branch and its target --- */

static struct ch_block block_ahead;
static const void *ahead;
static uint64_t take_argument(uint64_t argument)
{
	trap_flag_clear();
	return argument;
}

static void shut_what_is_ahead(int signal, siginfo_t *info, void *context)
{
	const ucontext_t *interrupted = context;
	(void)signal, (void)info;
	if ((uintptr_t)interrupted->uc_mcontext.gregs[REG_RIP] == (uintptr_t)ahead)
		CHECK_EQ(ch_blocks_invalidate(&block_ahead, 1, NULL), CH_OK);
}

TEST(thread_between_a_linked_branch_and_a_shut_entry_comes_to_not_entrant_with_its_registers)
{
	enum { ARGUMENT = 77 };
	struct sigaction action = {.sa_sigaction = shut_what_is_ahead, .sa_flags = SA_SIGINFO};
	struct rig rig = rig_start(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "ahead");
	struct ch_open open = {.owner = owner, .hot_bytes = 16, .entry = CH_ENTRY_PATCH,
			       .not_entrant = (const void *)(uintptr_t)take_argument};
	struct emitter e;
	struct ch_branch in;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	block_ahead = e.code.block;
	ahead = block_info(block_ahead).entry;
	struct ch_block jumper = rig_jumper(owner, NULL, &in);
	CHECK_EQ(ch_branch_link(in, block_ahead), CH_OK);
	uint64_t (*enter)(uint64_t);
	const void *entry = block_info(jumper).entry;
	memcpy(&enter, &entry, sizeof enter);
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	trap_flag_set();
	uint64_t got = enter(ARGUMENT);
	trap_flag_clear();
	CHECK_EQ(got, ARGUMENT);
	CHECK_EQ(block_info(block_ahead).state, CH_BLOCK_NOTENTRANT);
	rig_end(&rig);
}

/* --- the end of a block --- */

static void see_place(struct play *p)
{
	struct ch__place place;
	ch__place_find(p->rig.heap, ch__offset(p->rig.heap, (uintptr_t)p->exec), &place);
	if (!p->lost_at && (place.state == CH_BLOCK_FREE || strcmp(place.name, "ends") != 0))
		p->lost_at = p->step;
}

static void release_in_steps(struct ch_owner owner, const char *whose)
{
	trap_flag_set();
	enum ch_status status = ch_owner_release(owner, CH_RELEASE_NOT_RUNNING);
	trap_flag_clear();
	CHECK_EQ(status, CH_OK);
	CHECK(play.step > 0);
	if (play.lost_at)
		FAIL("the code is %s at step %u of %u", whose, play.lost_at, play.step);
}

/* I8: the tombstone stands before the record is out of use. */
TEST(code_that_ends_is_known_at_each_instruction_of_its_end)
{
	begin(see_place);
	struct ch_owner owner = rig_owner(&play.rig, "ends");
	play.exec = block_info(rig_block(owner, 1)).entry;
	release_in_steps(owner, "nobody's");
	rig_end(&play.rig);
}

static void see_second(struct play *p)
{
	struct ch__place place;
	uint32_t offset = ch__offset(p->rig.heap, (uintptr_t)p->exec);
	if (!p->lost_at && ch__place_find_freed(p->rig.heap, offset, &place) &&
	    strcmp(place.name, "second") != 0)
		p->lost_at = p->step;
}

static struct ch_owner owner_of(const char *name, const uint8_t **exec)
{
	struct ch_owner owner = rig_owner(&play.rig, "owner");
	struct ch_open open = {.owner = owner, .hot_bytes = 20, .name = name};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	*exec = e.code.exec;
	return owner;
}

/* The heap remembers one block, and the second takes the record of the first. */
TEST(tombstone_that_is_written_over_has_no_name_of_two_blocks)
{
	const uint8_t *of_first;
	begin(see_second);
	play.rig.heap->config.remembered_dead = 1;
	struct ch_owner first = owner_of("first", &of_first);
	struct ch_owner second = owner_of("second", &play.exec);
	CHECK_EQ(ch_owner_release(first, CH_RELEASE_NOT_RUNNING), CH_OK);
	release_in_steps(second, "another's by its name");
	struct ch__place place;
	CHECK(ch__place_find_freed(play.rig.heap,
				   ch__offset(play.rig.heap, (uintptr_t)play.exec), &place));
	CHECK_STR(place.name, "second");
	rig_end(&play.rig);
}
