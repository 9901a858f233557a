/* SPDX-License-Identifier: MIT
 * check.c: ch_heap_check sees each broken invariant of blocks, branches, owners, slots and
 * assumptions, names the record and the fault, and sees nothing once the heap is whole again. */
#include "codeheap/graph/block.h"
#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/branch.h"
#include "codeheap/graph/handles.h"
#include "tests/support/heap_rig.h"
#include "tests/support/poke.h"

/* Record indices, one of each kind. The walk meets source before target; a branch of source is
 * linked to target. The walk meets early before late_source, whose branch is linked to early. */
static struct rig rig;
static struct ch_heap *heap;
static uint32_t source, target, late_source, early, patched, closed, own, slot;
static uint32_t linked, unlinked, late_link;
static uint32_t owner, bare_owner, other_owner, assumption;

static struct ch__block *block(uint32_t index)
{
	return ch__block_at(heap, index);
}

static uint32_t index_of(struct ch_block b)
{
	uint32_t index = ch__block_resolve(heap, b);
	CHECK(index);
	return index;
}

static uint8_t *write_at(uintptr_t exec)
{
	return ch__pool_write(heap->pool, exec);
}

static void change_byte(uintptr_t exec)
{
	POKE(*write_at(exec), *write_at(exec) ^ 0xff);
}

/* --- the stage --- */

static struct ch_block make_source(struct ch_owner of, struct ch_branch branches[2],
				   struct ch_block edge_to)
{
	struct emitter e;
	emit_open(&e, of, 100, 2);
	const void *point = emit_point(&e);
	emit_answer(&e, 3);
	const void *exit = emit_here(&e);
	branches[0] = emit_attach(&e, emit_site_jmp(&e), CH_JMP, NULL);
	branches[1] = emit_attach(&e, emit_site_jmp(&e), CH_JMP, NULL);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, exit, NULL), CH_OK);
	if (edge_to.bits)
		CHECK_EQ(ch_edge_attach(e.code.block, edge_to), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

static struct ch_block make_as(struct ch_owner of, struct ch_assumption fact, enum ch_entry entry,
			       unsigned flags)
{
	struct emitter e;
	struct ch_open open = {.owner = of, .hot_bytes = 60, .entry = entry, .flags = flags};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(ch_edge_attach_owner(e.code.block, of), CH_OK);
	CHECK_EQ(ch_block_assume(e.code.block, fact), CH_OK);
	emit_answer(&e, 4);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

static void start(void)
{
	struct ch_branch of_source[2], of_late[2], of_closed[2];
	rig = rig_start(4 << 20);
	heap = rig.heap;
	struct ch_owner o = rig_owner(&rig, "one"), none = rig_owner(&rig, "without code"),
			other = rig_owner(&rig, "other");
	struct ch_block target_block = rig_block(o, 2);
	struct ch_block source_block = make_source(o, of_source, target_block);
	struct ch_block late_block = make_source(o, of_late, (struct ch_block){0});
	struct ch_block early_block = rig_block(o, 1);
	struct ch_block closed_block = make_source(other, of_closed, (struct ch_block){0});
	struct ch_block slot_block;
	CHECK_EQ(ch_branch_link(of_source[0], target_block), CH_OK);
	CHECK_EQ(ch_branch_link(of_late[0], early_block), CH_OK);
	CHECK_EQ(ch_owner_set_entry(o, target_block), CH_OK);
	CHECK_EQ(ch_blocks_invalidate(&closed_block, 1, NULL), CH_OK);
	CHECK_EQ(ch_trampoline_make(other, CH_TRAMPOLINE_TAIL, (void *)rig_fallback, 1, "slot",
				    NULL, &slot_block),
		 CH_OK);
	source = index_of(source_block), target = index_of(target_block);
	late_source = index_of(late_block), early = index_of(early_block);
	closed = index_of(closed_block), slot = index_of(slot_block);
	struct ch_assumption fact;
	CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
	patched = index_of(make_as(o, fact, CH_ENTRY_PATCH, 0));
	own = index_of(make_as(other, fact, CH_ENTRY_NONE, CH_OPEN_OWN_FRAMES));
	assumption = ch__handle_index(fact.bits);
	linked = ch__handle_index(of_source[0].bits);
	unlinked = ch__handle_index(of_source[1].bits);
	late_link = ch__handle_index(of_late[0].bits);
	owner = ch__owner_look_up(heap, o), bare_owner = ch__owner_look_up(heap, none);
	other_owner = ch__owner_look_up(heap, other);
	/* A thread's record indices fall: the walk meets the younger of two records first. */
	CHECK(source < target && early < late_source);
	rig_check(&rig);
}

/* --- ways to break the heap --- */

static void index_in_head(void)
{
	POKE(write_at(ch__exec(heap, block(target)->hot_offset))[7], 0x77);
}
static void traps_in_head(void)
{
	POKE(*write_at(ch__exec(heap, block(target)->hot_offset)), 0x77);
}
static void index_in_cold_head(void)
{
	POKE(write_at(ch__exec(heap, ch__cold_offset(heap, block(source))))[7], 0x77);
}
static void no_start(void)
{
	uint32_t granule = block(target)->hot_offset / CH__GRANULE_BYTES;
	POKE(heap->pool->starts[granule / 64],
	     heap->pool->starts[granule / 64] & ~(UINT64_C(1) << granule % 64));
}
static void start_inside(void)
{
	const struct ch__block *b = block(target);
	uint32_t granule = (b->hot_offset + ch__hot_bytes(b)) / CH__GRANULE_BYTES - 1;
	POKE(heap->pool->starts[granule / 64],
	     heap->pool->starts[granule / 64] | UINT64_C(1) << granule % 64);
}
static void no_table(void)
{
	POKE(block(own)->side_list->kinds[0], CH__ITEM_ASSUME);
}
static void no_site(void)
{
	uintptr_t at = ch__exec(heap, ch__branch_at(heap, linked)->site);
	uint8_t other[8];
	ch__arch_fill_traps(other, sizeof other);
	poke_bytes(write_at(at), other, ch__arch_site_bytes(CH_JMP));
}
static void no_stub(void)
{
	change_byte(ch__stub_exec(heap, block(source), linked));
}
static void branch_without_target(void)
{
	struct ch__branch *branch = ch__branch_at(heap, linked);
	POKE(branch->target_kind, branch->target_kind & ~CH__INDEX_MAX);
}
static void branch_with_target(void)
{
	struct ch__branch *branch = ch__branch_at(heap, unlinked);
	POKE(branch->target_kind, branch->target_kind | target);
}
static void set_state(uint32_t index, enum ch_block_state state)
{
	POKE(block(index)->state, state);
}
static void target_closed(void)
{
	set_state(target, CH_BLOCK_NOTENTRANT);
}
static void early_closed(void)
{
	set_state(early, CH_BLOCK_NOTENTRANT);
}
static void foreign_edge(void)
{
	POKE(block(target)->in_head, unlinked);
}
static void circle(void)
{
	POKE(ch__branch_at(heap, linked)->next, linked);
}
static struct ch__item *item(uint32_t index, enum ch__item_kind kind)
{
	struct ch__side_list *list = block(index)->side_list;
	for (uint32_t i = 0; i < list->count; i++)
		if (list->kinds[i] == kind)
			return &ch__side_items(list)[i];
	FAIL("block %u has no item %d", index, kind);
}
static void point(void)
{
	change_byte(ch__exec(heap, item(source, CH__ITEM_POINT)->at));
}
static void armed_point_elsewhere(void)
{
	struct ch__item *p = item(closed, CH__ITEM_POINT);
	POKE(p->value, p->value + CH_ARCH_DIVERTER_BYTES);
}
static void armed_point_of_live(void)
{
	set_state(closed, CH_BLOCK_LIVE);
}
static void edge(void)
{
	struct ch__item *e = item(source, CH__ITEM_EDGE);
	POKE(e->at, e->at + 2);
}
static void owner_edge(void)
{
	POKE(item(patched, CH__ITEM_OWNER_EDGE)->at, 8 + 1);
}
static void dependent(void)
{
	struct ch__item *relies = item(patched, CH__ITEM_ASSUME);
	POKE(relies->value, relies->value + 1);
}
static void gate(void)
{
	change_byte(ch__block_gate_exec(heap, block(patched)));
}
static void landing(void)
{
	change_byte(ch__exec(heap, block(patched)->hot_offset) + CH__HEAD_BYTES);
}
static void open_gate(void)
{
	set_state(patched, CH_BLOCK_NOTENTRANT);
}
static void generation(void)
{
	POKE(block(late_source)->generation, block(late_source)->generation + 1);
}
static void closed_entry(void)
{
	POKE(ch__owner_at(heap, owner)->entry, closed);
}
static void cell(void)
{
	POKE(ch__owner_at(heap, owner)->cell, &rig);
}
static void cell_of_none(void)
{
	POKE(ch__owner_at(heap, bare_owner)->cell, &rig);
}
static void stolen_block(void)
{
	POKE(block(target)->owner, other_owner);
}
static void link_back(void)
{
	POKE(block(target)->owner_prev, slot);
}

static const struct way {
	void (*breaks)(void);
	uint32_t *which; /* the number in the report */
	const char *says;
} ways[] = {
	{index_in_head, &target, "the head of its hot part was written over"},
	{traps_in_head, &target, "the head of its hot part was written over"},
	{index_in_cold_head, &source, "the head of its cold part was written over"},
	{no_start, &target, "its hot part is not found by address"},
	{start_inside, &target, "its hot part is not found by address"},
	{no_table, &own, "disagree on whose unwind table it is"},
	{no_site, &source, "no valid site at the attached branch"},
	{no_stub, &source, "the stub of branch"},
	{branch_without_target, &source, "does not lead to its stub"},
	{branch_with_target, &source, "do not lead to block"},
	{target_closed, &source, "which is not LIVE"},
	{early_closed, &early, "not entrant, but a branch leads to it"},
	{foreign_edge, &target, "its list of incoming branches is not its own"},
	{circle, &target, "its list of incoming branches is not its own"},
	{point, &source, "the bytes of a patch point changed"},
	{armed_point_elsewhere, &closed, "a patch point leads elsewhere than its exit"},
	{armed_point_of_live, &closed, "a patch point is not as its state"},
	{edge, &source, "an edge leads to the free block"},
	{owner_edge, &patched, "which is another one"},
	{dependent, &assumption, "does not know that it relies on it"},
	{gate, &patched, "the bytes of the entry changed"},
	{open_gate, &patched, "the entry is not as its state"},
	{generation, &late_source, "generation and state"},
	{closed_entry, &owner, "is not LIVE"},
	{cell, &owner, "its cell leads elsewhere than its entry"},
	{cell_of_none, &bare_owner, "its cell is not its fallback"},
	{stolen_block, &owner, "on its list is another's"},
	{link_back, &owner, "or its links disagree"},
};

static void expect_report(const char *what, uint32_t number, const char *says)
{
	char report[300], wanted[20];
	enum ch_status status = ch_heap_check(heap, report, sizeof report);
	poke_undo();
	snprintf(wanted, sizeof wanted, " %u", number);
	if (status != CH_E_BROKEN || !strstr(report, says) || !strstr(report, wanted))
		FAIL("%s: it should say \"%s\" of %u, and says \"%s\"", what, says, number, report);
	rig_check(&rig);
}

TEST(heap_check_sees_each_invariant_broken)
{
	start();
	for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
		char what[20];
		snprintf(what, sizeof what, "way %u", i);
		ways[i].breaks();
		expect_report(what, *ways[i].which, ways[i].says);
	}
	if (CH_ARCH_LANDING_BYTES) {
		landing();
		expect_report("landing", patched, "the bytes before the entry changed");
	}
	rig_end(&rig);
}

static void owners_now(void)
{
	POKE(heap->owners_now, heap->owners_now + 1);
}
static void owners_of_vms(void)
{
	POKE(heap->vms->owners_now, heap->vms->owners_now + 1);
}
static void blocks_of_owners(void)
{
	POKE(ch__owner_at(heap, owner)->blocks_now, ch__owner_at(heap, owner)->blocks_now + 1);
}
static void blocks_notentrant(void)
{
	POKE(heap->blocks_notentrant, heap->blocks_notentrant + 1);
}
static void bytes_notentrant(void)
{
	POKE(heap->notentrant_bytes, heap->notentrant_bytes + 8);
}
static void assumptions_now(void)
{
	POKE(heap->assumptions_now, heap->assumptions_now + 1);
}
static void bytes_that_wait(void)
{
	POKE(heap->quarantine_bytes, heap->quarantine_bytes + 8);
}

struct sum {
	void (*breaks)(void);
	const char *says; /* at the beginning, or behind the number of a block */
};

static void expect_each(const struct sum *sums, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char report[300];
		sums[i].breaks();
		enum ch_status status = ch_heap_check(heap, report, sizeof report);
		poke_undo();
		const char *said = strncmp(report, "block ", 6) ? report : strchr(report, ':') + 2;
		if (status != CH_E_BROKEN || strncmp(said, sums[i].says, strlen(sums[i].says)))
			FAIL("it should say \"%s\", and says \"%s\"", sums[i].says, report);
	}
	rig_check(&rig);
}

TEST(heap_check_sees_each_sum_that_is_wrong)
{
	static const struct sum sums[] = {{owners_now, "owners: "},
					  {owners_of_vms, "owners of vms: "},
					  {blocks_of_owners, "blocks of owners: "},
					  {blocks_notentrant, "blocks not entrant: "},
					  {bytes_notentrant, "bytes not entrant: "},
					  {assumptions_now, "assumptions: "},
					  {bytes_that_wait, "bytes on the quarantine: "}};
	start();
	expect_each(sums, sizeof sums / sizeof *sums);
	rig_end(&rig);
}

static void quarantine_tail(void)
{
	POKE(heap->quarantine_tail, heap->quarantine_tail + 1);
}
static void notice_tail(void)
{
	POKE(heap->notice_tail, heap->notice_tail + 1);
}
static void alive_one_waits(void)
{
	POKE(heap->quarantine_waits, source);
}
static void no_notice(void)
{
	struct ch__block *b = block(heap->notice_head);
	POKE(b->flags, b->flags & ~(unsigned)CH__FLAG_NOTICE);
}

static void on_freed(void *vm_user, void *block_user)
{
	(void)vm_user, (void)block_user;
}

/* A block that a branch led to waits for a core sync, and for a poll that tells of its end. */
TEST(heap_check_sees_lists_of_the_dead_that_are_wrong)
{
	static const struct sum lists[] = {
		{quarantine_tail, "the list of the quarantine ends elsewhere"},
		{notice_tail, "the list of notices ends elsewhere"},
		{alive_one_waits, "waits for a core sync, but not on the quarantine"},
		{no_notice, "on the list of notices, but not dead or not due"}};
	struct ch_ops ops = {.size = sizeof ops, .block_freed = on_freed};
	struct ch_config config = rig_config(4 << 20);
	struct ch_branch branches[2];
	rig = rig_create(&config, &ops, NULL);
	heap = rig.heap;
	struct ch_owner leads = rig_owner(&rig, "leads"), ends = rig_owner(&rig, "ends");
	struct ch_block dead = rig_block(ends, 1);
	source = index_of(make_source(leads, branches, (struct ch_block){0}));
	target = index_of(dead);
	CHECK_EQ(ch_branch_link(branches[0], dead), CH_OK);
	CHECK_EQ(ch_owner_release(ends, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(heap->quarantine_head == target && heap->notice_head == target);
	expect_each(lists, sizeof lists / sizeof *lists);
	rig_end(&rig);
}

TEST(heap_check_fills_the_room_that_it_is_given)
{
	char cut[8], one[1];
	start();
	cell();
	CHECK_EQ(ch_heap_check(heap, NULL, 0), CH_E_BROKEN);
	CHECK_EQ(ch_heap_check(heap, one, sizeof one), CH_E_BROKEN);
	CHECK_EQ(one[0], 0);
	CHECK_EQ(ch_heap_check(heap, cut, sizeof cut), CH_E_BROKEN);
	CHECK(!strncmp(cut, "owner ", 6) && strlen(cut) == sizeof cut - 1);
	CHECK_EQ(ch_heap_check(NULL, cut, sizeof cut), CH_E_ARG);
	CHECK_EQ(cut[0], 0);
	poke_undo();
	rig_end(&rig);
}
