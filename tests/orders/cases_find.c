/* SPDX-License-Identifier: MIT
 * cases_find.c: blocks are made and freed in a place while another thread looks at the place
 * without a lock (I3, I4). The look finds the present block or an earlier block, never a
 * mixture. */
#include "codeheap/graph/block_parts.h"
#include "codeheap/places/places.h"
#include "codeheap/graph/handles.h"
#include "invalidate/invalidate.h"
#include "tests/orders/cases.h"
#include "tests/support/code.h"

#include <stdio.h>

enum { BLOCKS = 3, SMALL_BYTES = 64, LARGE_BYTES = 128, LOOKED_AT = 96, NAMES = 100 };

/* The facts of the blocks of a run; every reader must see these facts. */
static struct truth {
	uint32_t index, generation;
	bool is_committed, is_large;
	uint64_t owner_bits;
	uint32_t number;
	bool has_site;
	char name[16], owner[16];
} truth[BLOCKS];
static uint32_t truths, serial;
static const uint8_t *place;

UNSEEN static void note_open(struct ch_block block, uint64_t owner, uint32_t number,
			     bool is_large)
{
	struct truth *t = &truth[truths++];
	t->index = ch__handle_index(block.bits);
	t->generation = (uint32_t)ch__handle_generation(block.bits);
	t->is_committed = false;
	t->is_large = is_large;
	t->owner_bits = owner;
	t->number = number;
	t->has_site = false;
	snprintf(t->name, sizeof t->name, "block%u", number);
	snprintf(t->owner, sizeof t->owner, "owner%u", number);
}
UNSEEN static void note_site(void)
{
	truth[truths - 1].has_site = true;
}
UNSEEN static void note_commit(void)
{
	truth[truths - 1].is_committed = true;
}
UNSEEN static const struct truth *truth_of(uint32_t index, uint32_t generation)
{
	for (uint32_t i = 0; i < truths; i++)
		if (truth[i].index == index && truth[i].generation == generation)
			return &truth[i];
	return NULL;
}

/* The VM's words of the block with this number, and of the block's site. */
static void *word_of(uint32_t number)
{
	return (void *)(uintptr_t)(number * 2);
}
static void *call_of(uint32_t number)
{
	return (void *)(uintptr_t)(number * 2 + 1);
}
static enum { NO_SITE, A_CALL, A_POINT } site_there = A_CALL;
/* The next block has no name, and so no side list; or no site, and so an empty side list. */
static bool is_bare, bare_comes, siteless_comes;
/* A call that returns to the place that readers look at. */
static const uint8_t call[] = {CODE_CALL_BYTES};
static void attach_call(const struct ch_code *code, uint32_t number)
{
	struct ch_branch_site site = {.at = code->exec + LOOKED_AT - sizeof call,
				      .kind = CH_CALL,
				      .user = call_of(number),
				      .exit = code->exec};
	struct ch_branch branch;
	if (ch_branch_attach(code->block, &site, &branch) != CH_OK)
		order_failed("%s", ch_why());
}

/* A patch point at the place that readers look at. */
static void attach_point(const struct ch_code *code, uint32_t number)
{
	static const uint8_t point[] = {CODE_POINT_BYTES};
	memcpy(code->write + LOOKED_AT, point, sizeof point);
	HOLDS(ch_patch_point_attach(code->block, code->exec + LOOKED_AT, code->exec,
				    call_of(number)) == CH_OK);
}

static void make_block(struct ch_code *code, struct ch_owner *owner, bool is_large)
{
	char name[16], owner_name[16];
	uint32_t number = ++serial % NAMES;
	snprintf(name, sizeof name, "block%u", number);
	snprintf(owner_name, sizeof owner_name, "owner%u", number);
	HOLDS(ch_owner_create(scene.vm, owner_name, (const void *)&serial, NULL, owner) == CH_OK);
	struct ch_open open = {.size = sizeof open,
			       .owner = *owner,
			       .hot_bytes = LARGE_BYTES,
			       .branch_room = 1,
			       .name = is_bare ? NULL : name,
			       .user = word_of(number)};
	HOLDS(ch_block_open(&open, code) == CH_OK);
	note_open(code->block, owner->bits, number, is_large);
	if (is_large) /* A site may come when the block is LIVE and cannot be written. */
		memcpy(code->write + LOOKED_AT - sizeof call, call, sizeof call);
	if (is_large && site_there == A_CALL)
		attach_call(code, number);
	if (is_large && site_there == A_POINT)
		attach_point(code, number);
	if (is_large && site_there != NO_SITE)
		note_site();
	/* The commit makes the block smaller. */
	code->used_to = is_large ? LARGE_BYTES : SMALL_BYTES;
	note_commit();
	HOLDS(ch_block_commit(code, 1) == CH_OK);
}
static void make_and_free(void)
{
	for (int i = 0; i < BLOCKS; i++) {
		struct ch_owner owner;
		struct ch_code code;
		make_block(&code, &owner, i % 2 == 0);
		HOLDS(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING) == CH_OK);
	}
}

static void one_block(void)
{
	struct ch_owner owner;
	struct ch_code code;
	make_block(&code, &owner, true);
	place = code.exec + LOOKED_AT;
	HOLDS(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING) == CH_OK);
}
static void make(void)
{
	scene_make();
	/* Few tombstones: new deaths overwrite old tombstones, and names in old tombstones go. */
	scene.heap->config.remembered_dead = 4;
	for (int i = 0; i < 3; i++) {
		truths = 0;
		order_as(1, one_block);
	}
}
static void begin(void)
{
	truths = 0;
}

UNSEEN static const struct truth *found_block(uint32_t index, uint32_t generation)
{
	const struct truth *t = truth_of(index, generation);
	/* No small block contains the address. */
	HOLDS(t && t->is_committed && t->is_large);
	return t;
}
UNSEEN static void found(const struct ch_spot *spot)
{
	const struct truth *t = found_block(ch__handle_index(spot->block.bits),
					    ch__handle_generation(spot->block.bits));
	HOLDS(spot->user == word_of(t->number) && spot->owner.bits == t->owner_bits);
	HOLDS(spot->exec + spot->offset == place);
	if (spot->has_site ? spot->site_user != call_of(t->number) : t->has_site)
		order_failed("block %u has %s, a word %p", t->number,
			     spot->has_site ? "a site" : "none", spot->site_user);
}
/* Waits a random time, so that the look comes at any moment of the writing thread. */
static void come_late(void)
{
	for (uint32_t n = order_chance(60); n; n--)
		order_yield();
}
static void look_up(void)
{
	struct ch_spot spot = {.size = sizeof spot};
	uint32_t generation, index = ch__find(scene.heap, (uintptr_t)place - 1, &generation);
	if (index)
		found_block(index, generation);
	if (ch_code_at(scene.heap, place, true, &spot))
		found(&spot);
	/* A lookup of an instruction reads fewer fields; the fields must be right by themselves. */
	if (!ch_code_at(scene.heap, place - 1, false, &spot))
		return;
	const struct truth *t = found_block(ch__handle_index(spot.block.bits),
					    ch__handle_generation(spot.block.bits));
	HOLDS(spot.user == word_of(t->number) && spot.owner.bits == t->owner_bits);
}
static void looks_up(void)
{
	for (int i = 0; i < 3; i++) {
		come_late();
		look_up();
	}
}

UNSEEN static void seen(const struct ch__place *p)
{
	const struct truth *t;
	switch (p->state) {
	case CH_BLOCK_OPEN:
	case CH_BLOCK_LIVE:
	case CH_BLOCK_NOTENTRANT:
	case CH_BLOCK_DEAD:
		/* The block was freed before this run. */
		t = truth_of(p->block, p->generation);
		if (!t && p->state == CH_BLOCK_DEAD)
			return;
		/* A block that was OPEN when the place was read may be LIVE and smaller here. */
		HOLDS(p->state == CH_BLOCK_OPEN || t);
		HOLDS(p->state != CH_BLOCK_DEAD || t->is_large);
		if (t && (strcmp(p->name, t->name) || strcmp(p->owner, t->owner)))
			order_failed("%s of %s is told as %s of %s, state %d", t->name, t->owner,
				     p->name, p->owner, (int)p->state);
		break;
	default:
		break;
	}
}
static void ask(bool late)
{
	for (int i = 0; i < 3; i++) {
		struct ch__place p;
		if (late)
			come_late();
		ch__place_read_begin();
		ch__place_find(scene.heap, ch__offset(scene.heap, (uintptr_t)place), &p);
		ch__place_read_end();
		seen(&p);
	}
}

static void asks(void)
{
	ask(true);
}

/* --- one death --- */

static struct ch_owner dying;
static bool is_large_first = true;

static void make_dying(void)
{
	struct ch_code code;
	make_block(&code, &dying, is_large_first);
}
static void begin_death(void)
{
	truths = 0;
	order_as(1, make_dying);
}
static void asks_at_once(void)
{
	ask(false);
}
static void dies(void)
{
	HOLDS(ch_owner_release(dying, CH_RELEASE_NOT_RUNNING) == CH_OK);
}

/* Another block takes the same record and the same place. */
static void begin_reuse(void)
{
	is_large_first = order_chance(2);
	begin_death();
}
static void is_replaced(void)
{
	struct ch_code code;
	dies();
	make_block(&code, &dying, !is_large_first);
}
static void end_reuse(void)
{
	order_as(1, dies);
}
static void looks_at_once(void)
{
	for (int i = 0; i < 3; i++)
		look_up();
}

/* Another block takes the same record of a branch, too. */
static void begin_calls(void)
{
	is_large_first = true;
	begin_death();
}
/* Another block takes the same side list, too. */
static void begin_points(void)
{
	site_there = A_POINT;
	begin_calls();
}
static void begin_bare(void)
{
	begin_points();
	bare_comes = true;
}
static void begin_siteless(void)
{
	begin_points();
	siteless_comes = true;
}
static void is_replaced_by_its_like(void)
{
	struct ch_code code;
	dies();
	is_bare = bare_comes;
	if (bare_comes || siteless_comes)
		site_there = NO_SITE;
	make_block(&code, &dying, true);
}
static void end_points(void)
{
	order_as(1, dies);
	site_there = A_CALL;
	is_bare = bare_comes = siteless_comes = false;
}

/* A call is attached to a block that readers know. */
static struct ch_code known;

static void make_known(void)
{
	make_block(&known, &dying, true);
}
static void begin_late(void)
{
	truths = 0;
	site_there = NO_SITE;
	order_as(1, make_known);
}
static void end_late(void)
{
	site_there = A_CALL;
	order_as(1, dies);
}
static void call_comes(void)
{
	attach_call(&known, truth[0].number);
}

/* --- a stub whose branch another thread links --- */

static struct ch_code caller, callee;
static struct ch_owner callers, callees;
static uintptr_t hit, entry;

static struct ch_block answers_nothing(void *user, struct ch_branch branch, void *asked,
				       struct ch_regs *regs)
{
	(void)user, (void)branch, (void)asked, (void)regs;
	return (struct ch_block){0};
}
static void make_linked(void)
{
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = answers_nothing};
	scene_make();
	HOLDS(ch_vm_attach(scene.heap, &ops, NULL, &scene.vm) == CH_OK);
}
static void open_one(struct ch_code *code, struct ch_owner *owner, size_t bytes)
{
	HOLDS(ch_owner_create(scene.vm, "owner", &serial, NULL, owner) == CH_OK);
	struct ch_open open = {.size = sizeof open,
			       .owner = *owner,
			       .hot_bytes = bytes,
			       .branch_room = 1,
			       .entry = CH_ENTRY_NONE};
	HOLDS(ch_block_open(&open, code) == CH_OK);
	code->used_to = bytes;
}
static struct ch_branch branch;
static void make_caller(void)
{
	open_one(&callee, &callees, SMALL_BYTES);
	HOLDS(ch_block_commit(&callee, 1) == CH_OK);
	open_one(&caller, &callers, SMALL_BYTES);
	memcpy(caller.write + SMALL_BYTES - sizeof call, call, sizeof call);
	struct ch_branch_site site = {.at = caller.exec + SMALL_BYTES - sizeof call,
				      .kind = CH_CALL};
	HOLDS(ch_branch_attach(caller.block, &site, &branch) == CH_OK);
	HOLDS(ch_block_commit(&caller, 1) == CH_OK);
	const struct ch__block *block =
		ch__block_at(scene.heap, ch__handle_index(caller.block.bits));
	uintptr_t stub = ch__stub_exec(scene.heap, block, ch__handle_index(branch.bits));
	hit = ch__stub_hit_exec(scene.heap, stub) + CH_ARCH_STUB_CALL_BYTES;
}
static void begin_linked(void)
{
	entry = 0;
	order_as(1, make_caller);
}
UNSEEN static void note_entry(void)
{
	entry = (uintptr_t)callee.exec;
}
/* The next callee has the record of the last one, and another place: the caller is behind it. */
static void links_the_next(void)
{
	uint32_t index = ch__handle_index(callee.block.bits);
	HOLDS(ch_owner_release(callees, CH_RELEASE_NOT_RUNNING) == CH_OK);
	open_one(&callee, &callees, LARGE_BYTES);
	HOLDS(ch__handle_index(callee.block.bits) == index);
	HOLDS(ch_block_commit(&callee, 1) == CH_OK);
	note_entry();
	HOLDS(ch_branch_link(branch, callee.block) == CH_OK);
}
UNSEEN static bool is_right(uintptr_t pc)
{
	return pc == (uintptr_t)&serial || pc == entry;
}
UNSEEN static bool is_early(void)
{
	return !entry;
}
/* Takes the stub about when the branch is linked, and later. */
static void takes_the_stub(void)
{
	while (is_early())
		order_yield();
	for (int i = 0; i < 3; i++) {
		struct ch_regs regs = {.pc = 0};
		come_late();
		scene.heap->stub.hit(&scene.heap->stub, &regs, hit);
		HOLDS(is_right(regs.pc));
	}
}
static void free_callers(void)
{
	HOLDS(ch_owner_release(callers, CH_RELEASE_NOT_RUNNING) == CH_OK);
	HOLDS(ch_owner_release(callees, CH_RELEASE_NOT_RUNNING) == CH_OK);
}
static void end_linked(void)
{
	order_as(1, free_callers);
}

/* --- a record of a span, used again by a small block --- */

/* The VM's bytes of a block that is written in place begin further behind the head. */
static struct ch_code in_place;

static void make_in_place(void)
{
	HOLDS(ch_owner_create(scene.vm, "in place", &serial, NULL, &dying) == CH_OK);
	struct ch_open open = {.size = sizeof open,
			       .owner = dying,
			       .hot_bytes = SMALL_BYTES,
			       .flags = CH_OPEN_IN_PLACE};
	HOLDS(ch_block_open(&open, &in_place) == CH_OK);
	in_place.used_to = SMALL_BYTES;
	HOLDS(ch_block_commit(&in_place, 1) == CH_OK);
}
static void begin_apart(void)
{
	order_as(1, make_in_place);
}
static void is_replaced_by_a_small_one(void)
{
	uint32_t index = ch__handle_index(in_place.block.bits);
	dies();
	open_one(&callee, &dying, SMALL_BYTES);
	HOLDS(ch__handle_index(callee.block.bits) == index);
	HOLDS(ch_block_commit(&callee, 1) == CH_OK);
}
static void looks_in_place(void)
{
	for (int i = 0; i < 3; i++) {
		struct ch_spot spot = {.size = sizeof spot};
		if (ch_code_at(scene.heap, in_place.exec + SMALL_BYTES / 2, false, &spot))
			HOLDS(spot.block.bits == in_place.block.bits && spot.exec == in_place.exec);
	}
}

/* --- an edge to a block whose record is used again --- */

static struct ch_owner next_owner;
static struct ch_code source;

static void make_source(void)
{
	open_one(&callee, &callees, SMALL_BYTES);
	HOLDS(ch_block_commit(&callee, 1) == CH_OK);
	HOLDS(ch_owner_create(scene.vm, "next", &serial, NULL, &next_owner) == CH_OK);
}
/* With a name, and so with room for the edge: the attach takes no lock before the look. */
static void open_source(void)
{
	HOLDS(ch_owner_create(scene.vm, "source", &serial, NULL, &callers) == CH_OK);
	struct ch_open open = {.size = sizeof open,
			       .owner = callers,
			       .hot_bytes = SMALL_BYTES,
			       .name = "source"};
	HOLDS(ch_block_open(&open, &source) == CH_OK);
}
static bool is_known_dead;
UNSEEN static void note_death(bool is)
{
	is_known_dead = is;
}
UNSEEN static bool is_dead(void)
{
	return is_known_dead;
}
static void begin_edge(void)
{
	note_death(false);
	order_as(1, make_source);
	order_as(2, open_source);
}
static void target_is_replaced(void)
{
	struct ch_open open = {.size = sizeof open, .owner = next_owner, .hot_bytes = SMALL_BYTES};
	struct ch_code next;
	HOLDS(ch_owner_release(callees, CH_RELEASE_NOT_RUNNING) == CH_OK);
	note_death(true);
	HOLDS(ch_block_open(&open, &next) == CH_OK);
}
static void attaches_an_edge(void)
{
	while (!is_dead())
		order_yield();
	for (uint32_t n = order_chance(20); n; n--)
		order_yield();
	enum ch_status status = ch_edge_attach(source.block, callee.block);
	HOLDS(status == CH_OK || status == CH_E_STALE);
}
static void release_both(void)
{
	HOLDS(ch_owner_release(callers, CH_RELEASE_NOT_RUNNING) == CH_OK);
	HOLDS(ch_owner_release(next_owner, CH_RELEASE_NOT_RUNNING) == CH_OK);
}
static void abort_source(void)
{
	HOLDS(ch_block_abort(&source) == CH_OK);
}
/* No edge leads to the next block: the attach was of the block before, or was refused. */
static void end_edge(void)
{
	const struct ch__block *block =
		ch__block_at(scene.heap, ch__handle_index(callee.block.bits));
	HOLDS(!(block->flags & CH__FLAG_EDGED) || ch__block_is(block, callee.block));
	order_as(2, abort_source);
	order_as(1, release_both);
}

/* --- what a record and a page say of a block that dies --- */

static void make_invalid(void)
{
	size_t count;
	make_dying();
	struct ch_block block = {ch__handle(scene.heap->id, truth[0].index, truth[0].generation)};
	HOLDS(ch_blocks_invalidate(&block, 1, &count) == CH_OK && count == 1);
}
static void begin_invalid(void)
{
	truths = 0;
	is_large_first = true;
	order_as(1, make_invalid);
}
static void asks_the_cause(void)
{
	for (int i = 0; i < 3; i++) {
		struct ch__place p;
		ch__place_find(scene.heap, ch__offset(scene.heap, (uintptr_t)place), &p);
		HOLDS(p.state != CH_BLOCK_NOTENTRANT || p.cause == CH__CAUSE_INVALIDATED);
	}
}

/* The page of the block gets blocks of another frame shape. */
static void begin_frame(void)
{
	order_as(1, make_source);
}
static void page_is_taken_again(void)
{
	enum { TAKEN = 8 };
	uint32_t taken[TAKEN], n = 0, offset = ch__offset(scene.heap, (uintptr_t)callee.exec);
	uint32_t page = offset >> scene.heap->pool->page_log2;
	struct ch__thread *self = ch__thread_self(scene.heap);
	HOLDS(ch_owner_release(callees, CH_RELEASE_NOT_RUNNING) == CH_OK);
	ch__thread_use_page(self, CH_FRAME_POINTER, 0);
	do
		taken[n] = ch__pool_take_page(scene.heap->pool, CH_FRAME_LEAF);
	while (taken[n++] != page && n < TAKEN);
	HOLDS(taken[n - 1] == page);
	while (n-- > 0)
		ch__page_retire(scene.heap, taken[n]);
	HOLDS(ch_owner_release(next_owner, CH_RELEASE_NOT_RUNNING) == CH_OK);
}
static void asks_the_frame(void)
{
	for (int i = 0; i < 3; i++) {
		struct ch__place p;
		come_late();
		ch__place_find(scene.heap, ch__offset(scene.heap, (uintptr_t)callee.exec), &p);
	}
}

/* --- names --- */

/* Readers may hold back all names of a run, so that each name has a record of its own. */
enum { NAMES_OF_A_RUN = 3 };
static uint32_t named;

static void name_comes(void)
{
	ch__heap_lock(scene.heap);
	named = ch__name_take(scene.heap, "one name");
	ch__heap_unlock(scene.heap);
	HOLDS(named && named <= NAMES_OF_A_RUN);
}
static void begin_names(void)
{
	order_as(1, name_comes);
}
static void parked_names_go(void)
{
	ch__heap_lock(scene.heap);
	ch__names_free_parked(scene.heap);
	ch__heap_unlock(scene.heap);
}
static void end_names(void)
{
	order_as(1, parked_names_go);
}
/* The present name goes, then further names come and go. */
static void names_come_and_go(void)
{
	uint32_t name = named;
	for (int i = 0; i < NAMES_OF_A_RUN; i++) {
		ch__heap_lock(scene.heap);
		if (i)
			name = ch__name_take(scene.heap, i % 2 ? "another name" : "one name");
		ch__name_drop(scene.heap, name);
		ch__heap_unlock(scene.heap);
	}
}
/* At first reads the name that is going: both sides are between a store and a load. Later reads an
 * index whose name may be gone or replaced. */
static void name_is_read(void)
{
	char text[CH__NAME_SHORT_BYTES];
	for (int i = 0; i < 3; i++) {
		uint32_t index = i ? 1 + order_chance(NAMES_OF_A_RUN) : named;
		if (i)
			come_late();
		ch__place_read_begin();
		ch__name_cut(text, ch__name_text(scene.heap, index));
		ch__place_read_end();
		HOLDS(!*text || !strcmp(text, "one name") || !strcmp(text, "another name"));
	}
}

/* --- tombstones --- */

static void one_tombstone(void)
{
	make();
	scene.heap->config.remembered_dead = 1;
}
static void asks_who_died(void)
{
	for (int i = 0; i < 4; i++) {
		struct ch__place p;
		memset(&p, 0, sizeof p);
		come_late();
		ch__place_read_begin();
		bool is_found = ch__place_find_freed(
			scene.heap, ch__offset(scene.heap, (uintptr_t)place), &p);
		ch__place_read_end();
		if (is_found)
			seen(&p);
	}
}

const struct order_case cases_find[] = {
	{"lookup", 1500, make, begin, NULL, {make_and_free, looks_up}},
	{"place", 30000, make, begin, NULL, {make_and_free, asks}},
	{"tombstone", 6000, one_tombstone, begin, NULL, {make_and_free, asks_who_died}},
	{"death", 9000, make, begin_death, NULL, {dies, asks_at_once}},
	{"reuse", 400000, make, begin_reuse, end_reuse, {is_replaced, looks_at_once}},
	{"reuse_asked", 12000, make, begin_reuse, end_reuse, {is_replaced, asks_at_once}},
	{"late_site", 3000, make, begin_late, end_late, {call_comes, looks_at_once}},
	{"calls", 60000, make, begin_calls, end_reuse, {is_replaced_by_its_like, looks_at_once}},
	{"points", 40000, make, begin_points, end_points, {is_replaced_by_its_like, looks_at_once}},
	{"bare", 40000, make, begin_bare, end_points, {is_replaced_by_its_like, looks_at_once}},
	{"siteless", 24000, make, begin_siteless, end_points,
	 {is_replaced_by_its_like, looks_at_once}},
	{"linked", 60000, make_linked, begin_linked, end_linked, {links_the_next, takes_the_stub}},
	{"cause", 9000, make, begin_invalid, NULL, {dies, asks_the_cause}},
	{"frame", 1000, make_linked, begin_frame, NULL, {page_is_taken_again, asks_the_frame}},
	{"apart", 20000, make_linked, begin_apart, end_reuse,
	 {is_replaced_by_a_small_one, looks_in_place}},
	{"edge", 2700, make_linked, begin_edge, end_edge, {target_is_replaced, attaches_an_edge}},
	{"names", 9000, scene_make, begin_names, end_names, {names_come_and_go, name_is_read}},
	{NULL},
};
