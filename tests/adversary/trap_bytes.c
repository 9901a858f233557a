/* SPDX-License-Identifier: MIT
 * trap_bytes.c: the text of a trap, at every byte of blocks of all kinds that were freed in every
 * way, and at every other kind of byte of the pool. Freed bytes are really run. */
#define _GNU_SOURCE
#include "codeheap/graph/block_parts.h"
#include "tests/support/trap_rig.h"

#include <sys/mman.h>
#include <unistd.h>

/* --- blocks of all kinds --- */

struct shape {
	const char *name, *own_name; /* of the owner, of the block */
	uint32_t hot, cold, branches, points;
	enum ch_entry entry;
	unsigned flags;
	int trampoline; /* 1 + kind, or 0 */
};

/* Hot bytes: PAGES + n are n pages and some; PAGES alone is exactly one page. */
enum { PAGES = 1 << 20 };

static const struct shape shapes[] = {
	{"tiny", NULL, 1, 0, 0, 0, CH_ENTRY_NONE, 0, 0},
	{"granule", NULL, 4, 0, 0, 0, CH_ENTRY_NONE, 0, 0},
	{"one more", NULL, 5, 0, 0, 0, CH_ENTRY_NONE, 0, 0},
	{"named", "its own name", 61, 0, 0, 0, CH_ENTRY_NONE, 0, 0},
	{"cold", NULL, 100, 33, 0, 0, CH_ENTRY_NONE, 0, 0},
	{"stubs", NULL, 200, 0, 3, 0, CH_ENTRY_NONE, 0, 0},
	{"all of it", "a/b:c", 301, 77, 5, 4, CH_ENTRY_NONE, 0, 0},
	{"patched entry", NULL, 40, 20, 1, 1, CH_ENTRY_PATCH, 0, 0},
	{"guarded", NULL, 40, 0, 0, 1, CH_ENTRY_GUARD, 0, 0},
	{"page", NULL, PAGES, 0, 0, 0, CH_ENTRY_NONE, 0, 0},           /* exactly one page */
	{"span", NULL, PAGES + 1, 0, 2, 0, CH_ENTRY_NONE, 0, 0},       /* some pages */
	{"cold span", "s", PAGES + 2, 600, 2, 0, CH_ENTRY_NONE, 0, 0}, /* and a cold part */
	{"framed", NULL, 0, 0, 0, 0, CH_ENTRY_NONE, 0, 1 + CH_TRAMPOLINE_FRAMED},
	{"tail", "t", 0, 0, 0, 0, CH_ENTRY_NONE, 0, 1 + CH_TRAMPOLINE_TAIL},
	{"own table", NULL, 90, 40, 1, 0, CH_ENTRY_NONE, CH_OPEN_OWN_FRAMES, 0},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

struct part {
	uintptr_t from; /* inverted: on no stack */
	uint32_t bytes;
};
struct dying {
	const struct shape *shape;
	struct ch_owner owner;
	struct ch_block block;
	struct ch_assumption assumption;
	struct part hot, cold;
	uint32_t generation;
	bool has_entry;
};

static uint32_t hot_bytes_of(const struct shape *shape)
{
	uint32_t page = (uint32_t)rig_page_bytes();
	if (shape->hot < PAGES)
		return shape->hot < CODE_NOP_BYTES ? CODE_NOP_BYTES : shape->hot;
	return shape->hot > PAGES ? (shape->hot - PAGES) * page + 100
				  : page - CH__HEAD_BYTES;
}

static void note_parts(struct ch_heap *heap, struct dying *d)
{
	const struct ch__block *block = ch__block_at(heap, ch__handle_index(d->block.bits));
	d->generation = ch__handle_generation(d->block.bits);
	d->hot = (struct part){~ch__exec(heap, block->hot_offset), ch__hot_bytes(block)};
	d->cold = (struct part){0, ch__cold_bytes(block)};
	if (d->cold.bytes)
		d->cold.from = ~ch__exec(heap, ch__cold_offset(heap, block));
}

static void fill(struct emitter *e, const struct shape *shape, uint32_t hot)
{
	const void *exit = e->code.exec + e->code.entry_bytes;
	for (uint32_t i = 0; i < shape->branches; i++)
		emit_attach(e, emit_site_jmp(e), CH_JMP, NULL);
	for (uint32_t i = 0; i < shape->points; i++)
		CHECK_EQ(ch_patch_point_attach(e->code.block, emit_point(e), exit, NULL), CH_OK);
	emit_filler(e, e->code.entry_bytes + hot);
	if (e->code.cold_bytes)
		memset(e->code.cold_write, 0x90, e->code.cold_bytes);
	e->code.cold_used = e->code.cold_bytes;
}

static void build(const struct rig *rig, void *arg)
{
	struct dying *d = arg;
	const struct shape *shape = d->shape;
	struct ch_vm *vm = rig->vm;
	CHECK_EQ(ch_owner_create(vm, shape->name, (const void *)(uintptr_t)rig_fallback, NULL,
				 &d->owner),
		 CH_OK);
	if (shape->trampoline) {
		CHECK_EQ(ch_trampoline_make(d->owner, (enum ch_trampoline)(shape->trampoline - 1),
					    (void *)(uintptr_t)rig_fallback, 1, shape->own_name,
					    NULL, &d->block),
			 CH_OK);
	} else {
		uint32_t hot = hot_bytes_of(shape);
		struct emitter e;
		struct ch_open open = {.owner = d->owner,
				       .hot_bytes = hot,
				       .cold_bytes = shape->cold,
				       .branch_room = shape->branches,
				       .entry = shape->entry,
				       .flags = shape->flags,
				       .name = shape->own_name};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		if (d->assumption.bits)
			CHECK_EQ(ch_block_assume(e.code.block, d->assumption), CH_OK);
		fill(&e, shape, hot);
		CHECK_EQ(emit_commit(&e), CH_OK);
		d->block = e.code.block;
	}
	if (d->has_entry)
		CHECK_EQ(ch_owner_set_entry(d->owner, d->block), CH_OK);
	note_parts(rig->heap, d);
}

/* --- every byte --- */

/* Pages of a chunk that went back to the system have no access. */
static bool may_be_gone;

static void check_byte(const struct dying *d, uintptr_t part, uint32_t at, bool is_cold,
		       const char *how)
{
	char wanted[400];
	const struct shape *shape = d->shape;
	const uint32_t head = CH__HEAD_BYTES;
	snprintf(wanted, sizeof wanted,
		 "%s `%s` (#%u.%u, owner `%s`), %s; executed at %s+0x%x (0x%lx); return address "
		 "(a guess) 0x",
		 shape->trampoline ? "trampoline" : "block",
		 shape->own_name ? shape->own_name : shape->name, ch__handle_index(d->block.bits),
		 d->generation, shape->name, how, is_cold ? "cold " : "", at > head ? at - head : 0,
		 (unsigned long)part + at);
	jump_to((const void *)(part + at));
	if (!may_be_gone || caught.signal != SIGSEGV)
		CHECK_EQ(caught.signal, SIGTRAP);
	check_begins(caught.text, wanted);
	CHECK_EQ(caught.length, strlen(caught.text));
	check_has(caught.text, "adversary_trap_bytes +0x"); /* where jump_to is */
}

static void check_part(const struct dying *d, const struct part *part, bool is_cold,
		       const char *how)
{
	enum { WHOLE = 1200 };
	uint32_t page = (uint32_t)rig_page_bytes();
	/* Checks less of the inside of large parts where the whole would take long. */
	bool is_quick = page <= 16384 && !getenv("CODEHEAP_TEST_SLOW");
	/* Only whole traps can be executed. */
	for (uint32_t at = 0; at < part->bytes; at += CH_ARCH_TRAP_UNIT_BYTES) {
		bool at_border = at % page < 40 || at % page > page - 40;
		bool is_chosen = at / CH_ARCH_TRAP_UNIT_BYTES % 61 == 0;
		if (is_quick || at < WHOLE || part->bytes - at < WHOLE || at_border || is_chosen)
			check_byte(d, ~part->from, at, is_cold, how);
	}
}

static void check_all_bytes(const struct dying *d, const char *how)
{
	CHECK(!rig_is_there(d->block));
	check_part(d, &d->hot, false, how);
	check_part(d, &d->cold, true, how);
}

struct freed {
	struct rig rig;
	struct dying all[SHAPES];
};

static void start_all(struct freed *f, bool has_entry)
{
	*f = (struct freed){.rig = rig_start(8 << 20)};
	catch_traps(f->rig.heap);
	for (size_t i = 0; i < SHAPES; i++) {
		f->all[i].shape = &shapes[i];
		f->all[i].has_entry = has_entry;
		rig_apart(&f->rig, build, &f->all[i]);
	}
}

TEST(every_byte_of_code_released_at_once_names_its_block)
{
	struct freed f;
	start_all(&f, false);
	may_be_gone = true;
	for (size_t i = 0; i < SHAPES; i++)
		CHECK_EQ(ch_owner_release(f.all[i].owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	for (size_t i = 0; i < SHAPES; i++)
		check_all_bytes(&f.all[i],
				"freed after collection 0 because its owner was released "
				"(NOT_RUNNING)");
	rig_end(&f.rig);
}

TEST(every_byte_of_collected_code_names_its_block)
{
	struct freed f;
	start_all(&f, true);
	rig_collect(&f.rig, 3); /* the owners hold the code */
	for (size_t i = 0; i < SHAPES; i++)
		CHECK_EQ(ch_owner_release(f.all[i].owner, CH_RELEASE_COLLECT), CH_OK);
	may_be_gone = true;
	rig_collect(&f.rig, 1); /* most are in quarantine */
	for (size_t i = 0; i < SHAPES; i++)
		check_all_bytes(&f.all[i],
				"freed in collection 4 because its owner was released (COLLECT) "
				"and nothing held it");
	rig_collect(&f.rig, 2); /* places are free, and some pages */
	for (size_t i = 0; i < SHAPES; i++)
		check_part(&f.all[i], &f.all[i].hot, false,
			   "freed in collection 4 because its owner was released (COLLECT) "
			   "and nothing held it");
	rig_end(&f.rig);
}

/* --- every way to die --- */

struct death {
	const char *says;
	void (*kill)(struct rig *, struct dying *);
	bool has_entry, assumes;
	int collections; /* afterwards */
};

static void do_nothing(struct rig *rig, struct dying *d)
{
	(void)rig;
	(void)d;
}
static void invalidate(struct rig *rig, struct dying *d)
{
	(void)rig;
	CHECK_EQ(ch_blocks_invalidate(&d->block, 1, NULL), CH_OK);
}
static void invalidate_then_release(struct rig *rig, struct dying *d)
{
	invalidate(rig, d);
	CHECK_EQ(ch_owner_release(d->owner, CH_RELEASE_COLLECT), CH_OK);
}
static void invalidate_then_discard(struct rig *rig, struct dying *d)
{
	invalidate(rig, d);
	CHECK_EQ(ch_vm_discard(rig->heap, NULL, NULL, NULL), CH_OK);
}
static void break_assumption(struct rig *rig, struct dying *d)
{
	(void)rig;
	CHECK_EQ(ch_assumption_break(d->assumption, NULL), CH_OK);
}
static void discard(struct rig *rig, struct dying *d)
{
	size_t kept = 0;
	(void)d;
	CHECK_EQ(ch_vm_discard(rig->heap, rig->vm, NULL, &kept), CH_OK);
	CHECK_EQ(kept, 0);
}
static void replace(struct rig *rig, struct dying *d)
{
	(void)rig;
	CHECK_EQ(ch_owner_set_entry(d->owner, rig_block(d->owner, 5)), CH_OK);
}
static void reset_entry(struct rig *rig, struct dying *d)
{
	(void)rig;
	CHECK_EQ(ch_owner_set_entry(d->owner, (struct ch_block){0}), CH_OK);
}
static void detach(struct rig *rig, struct dying *d)
{
	struct ch_ops none = {.size = sizeof none};
	(void)d;
	CHECK_EQ(ch_vm_detach(rig->vm), CH_OK);
	CHECK_EQ(ch_vm_attach(rig->heap, &none, NULL, &rig->vm), CH_OK);
}

static const struct death deaths[] = {
	{"freed in collection 3 because nothing reached it;", do_nothing, false, false, 3},
	{"freed in collection 1 because nothing reached it, invalidated by ch_blocks_invalidate;",
	 invalidate, true, false, 1},
	{"freed in collection 1 because its owner was released (COLLECT) and nothing held it, "
	 "invalidated by ch_blocks_invalidate;",
	 invalidate_then_release, true, false, 1},
	{"freed in collection 1 because nothing reached it, invalidated by ch_blocks_invalidate;",
	 invalidate_then_discard, true, false, 0},
	{"freed in collection 1 because nothing reached it, invalidated by a broken assumption;",
	 break_assumption, true, true, 1},
	{"freed in collection 1 because nothing reached it, invalidated by ch_vm_discard;", discard,
	 true, false, 0},
	{"freed in collection 1 because nothing reached it;", replace, true, false, 1},
	{"freed in collection 1 because nothing reached it;", reset_entry, true, false, 1},
	{"freed in collection 1 because its vm was detached, invalidated by ch_vm_detach;", detach,
	 true, false, 1},
};

struct way {
	struct rig *rig;
	struct dying *dying;
	const struct death *death;
};

static void kill_one(const struct rig *rig, void *arg)
{
	struct way *way = arg;
	(void)rig;
	way->death->kill(way->rig, way->dying);
}

/* The next heap may have its first block at the same address: this heap's address stays on no
 * living stack. */
static void check_told(const struct rig *rig, void *arg)
{
	const struct way *way = arg;
	check_has(describe_at(rig->heap, (const void *)~way->dying->hot.from), way->death->says);
}

TEST(each_way_to_die_is_told)
{
	static const struct shape shape = {"f", "g", 20, 0, 0, 0, CH_ENTRY_NONE, 0, 0};
	for (size_t i = 0; i < sizeof deaths / sizeof deaths[0]; i++) {
		struct rig rig = rig_start(1 << 20);
		struct dying d = {.shape = &shape, .has_entry = deaths[i].has_entry};
		struct way way = {&rig, &d, &deaths[i]};
		if (deaths[i].assumes)
			CHECK_EQ(ch_assumption_create(rig.vm, &d.assumption), CH_OK);
		rig_apart(&rig, build, &d);
		/* The killer's stack is no root of a collection within the kill. */
		rig_apart(&rig, kill_one, &way);
		rig_collect(&rig, deaths[i].collections);
		rig_alone(&rig, check_told, &way);
		rig_end(&rig);
	}
}

TEST_RIG(code_that_was_never_published_is_told)
{
	struct ch_assumption assumption;
	struct emitter e;
	catch_traps(rig.heap);
	CHECK_EQ(ch_assumption_create(rig.vm, &assumption), CH_OK);
	struct ch_owner owner = rig_owner(&rig, "f");
	emit_open(&e, owner, 16, 0);
	const uint8_t *at = e.code.exec;
	jump_to(at); /* bytes not emitted trap */
	CHECK_EQ(caught.signal, SIGTRAP);
	check_begins(caught.text, "open block `f` (#");
	check_has(caught.text, "owner `f`), not committed; executed at +0x0 (");
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	jump_to(at);
	check_has(caught.text, "), freed after collection 0 because it was aborted, never "
			       "published; executed at +0x0 (");
	emit_open(&e, owner, 16, 0);
	CHECK_EQ((uintptr_t)e.code.exec, (uintptr_t)at);
	CHECK_EQ(ch_block_assume(e.code.block, assumption), CH_OK);
	emit_ret(&e);
	CHECK_EQ(ch_assumption_break(assumption, NULL), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_E_STALE);
	jump_to(at);
	check_has(caught.text, "), freed after collection 0 because its commit failed, never "
			       "published; executed at +0x0 (");
}

/* --- other bytes of the pool --- */

struct pair {
	struct ch_owner owners[2];
	struct ch_block blocks[2];
	const uint8_t *at[2]; /* first bytes */
};

static void build_pair(const struct rig *rig, void *arg)
{
	struct pair *p = arg;
	for (int i = 0; i < 2; i++) {
		struct emitter e;
		p->owners[i] = rig_owner(rig, i ? "second" : "first");
		struct ch_open open = {.owner = p->owners[i], .hot_bytes = 56 - CODE_LANDING_BYTES};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_filler(&e, 56 - CODE_RETURN_BYTES);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		p->blocks[i] = e.code.block;
		p->at[i] = e.code.exec - CH__HEAD_BYTES;
		CHECK_EQ(ch_owner_set_entry(p->owners[i], p->blocks[i]), CH_OK);
	}
}

/* Few have died: the record of no death has expired. */
static void free_run_of_pages(const struct rig *rig)
{
	struct emitter e;
	struct ch_owner owner = rig_owner(rig, "run");
	emit_open(&e, owner, (uint32_t)rig_page_bytes() + 1, 0);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

TEST_RIG(bytes_that_no_block_has_are_told)
{
	struct pair p;
	const struct ch__pool *pool = rig.heap->pool;
	const uint8_t *base = (const uint8_t *)pool->exec_base;
	catch_traps(rig.heap);
	/* No byte is in front of the pool's first one. */
	check_begins(describe_at(rig.heap, base),
		     "no block: a byte of page 0 that never had one (0x");
	build_pair(&rig, &p);
	free_run_of_pages(&rig);
	size_t page_bytes = (size_t)1 << pool->page_log2;
	size_t page = (size_t)(p.at[0] - base) / page_bytes;
	char wanted[100];
	snprintf(wanted, sizeof wanted, "no block: a byte of page %zu that never had one (0x",
		 page);
	/* Where the code in front ends, that code may have run on. */
	for (size_t i = CH_ARCH_TRAP_UNIT_BYTES; i < 64; i += CH_ARCH_TRAP_UNIT_BYTES) {
		jump_to(p.at[1] + 64 + i);
		CHECK_EQ(caught.signal, SIGTRAP);
		check_begins(caught.text, wanted);
	}
	snprintf(wanted, sizeof wanted, "no block: a byte of page %u that never had one (0x",
		 pool->page_count - 1);
	check_begins(describe_at(rig.heap, base + pool->pool_bytes - 1), wanted);
	/* The pool's last trap is looked at; bytes behind it are not. */
	check_begins(describe_at(rig.heap, base + pool->pool_bytes - CH_ARCH_TRAP_UNIT_BYTES),
		     wanted);
	/* A byte outside, on either side, and NULL. */
	describe_at(rig.heap, base - 1);
	CHECK_EQ(caught.length, 0);
	CHECK_STR(caught.text, "");
	describe_at(rig.heap, base + pool->pool_bytes);
	CHECK_EQ(caught.length, 0);
	describe_at(rig.heap, NULL);
	CHECK_EQ(caught.length, 0);
}

TEST_RIG(code_in_quarantine_is_told)
{
	struct pair p;
	catch_traps(rig.heap);
	rig_apart(&rig, build_pair, &p);
	uintptr_t first = ~(uintptr_t)p.at[0];
	memset(p.at, 0, sizeof p.at);
	CHECK_EQ(ch_owner_release(p.owners[0], CH_RELEASE_COLLECT), CH_OK);
	rig_collect(&rig, 1);
	CHECK_EQ(rig_stats(&rig).quarantine_bytes_now, 64);
	for (uint32_t i = 0; i < 64; i += CH_ARCH_TRAP_UNIT_BYTES) {
		jump_to((const void *)(~first + i));
		CHECK_EQ(caught.signal, SIGTRAP);
		check_begins(caught.text, "block `first` (#");
		check_has(caught.text, ", owner `first`), freed in collection 1 because its owner "
				       "was released (COLLECT) and nothing held it; executed at +");
	}
	CHECK_EQ(rig_stats(&rig).quarantine_bytes_now, 64);
}

/* A place after two lives: the later block, and the rest of the earlier block. */
TEST_RIG(place_that_was_used_again_is_told)
{
	struct pair p;
	struct emitter e;
	char wanted[100];
	catch_traps(rig.heap);
	build_pair(&rig, &p);
	CHECK_EQ(ch_owner_release(p.owners[1], CH_RELEASE_NOT_RUNNING), CH_OK);
	/* If cores may keep fetched code, the place waits for a core sync. */
	if (!CH_ARCH_FETCH_FOLLOWS)
		rig_collect(&rig, 2);
	struct ch_owner owner = rig_owner(&rig, "third");
	struct ch_open open = {.owner = owner, .hot_bytes = 12 - CODE_LANDING_BYTES};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ((uintptr_t)e.code.exec - CH__HEAD_BYTES, (uintptr_t)p.at[1]);
	uint32_t from = e.at;
	emit_nops(&e, 1);
	emit_breakpoint(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	jump_to(e.code.exec);
	CHECK_EQ(caught.signal, SIGTRAP);
	check_begins(caught.text, "live block `third` (#");
	snprintf(wanted, sizeof wanted,
		 ", owner `third`); executed at +0x%x, where before it lay block `second` (#",
		 from + CODE_NOP_BYTES);
	check_has(caught.text, wanted);
	check_has(caught.text, ", owner `second`), freed after collection 0 because its owner was "
			       "released (NOT_RUNNING) (0x");
	jump_to(p.at[1] + 24);
	check_begins(caught.text, "block `second` (#");
	check_has(caught.text, "; executed at +0x10 (0x");
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	jump_to(p.at[1] + 4); /* in the head, behind the end of the first */
	check_begins(caught.text, "live block `first` (#");
	check_has(caught.text, ", behind its end, where before it lay block `third` (#");
	jump_to(p.at[1] + CH__HEAD_BYTES);
	check_begins(caught.text, "block `third` (#");
	jump_to(p.at[1] + 16);
	check_begins(caught.text, "block `second` (#");
	jump_to(p.at[0] + 64 + 16); /* the same, from the neighbour's end */
	check_begins(caught.text, "block `second` (#");
}

/* --- faults of live code --- */

TEST(faults_of_live_code_name_block_and_offset)
{
	struct rig rig = rig_start(1 << 20);
	catch_traps(rig.heap);
	for (int i = 0; i < CODE_FAULTS; i++) {
		struct emitter e;
		char wanted[200];
		struct ch_open open = {.owner = rig_owner(&rig, "o"), .hot_bytes = 40, .name = "b"};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_fault(&e, code_faults[i].signal);
		CHECK_EQ(emit_commit(&e), CH_OK);
		jump_to(e.code.exec);
		CHECK_EQ(caught.signal, code_faults[i].signal);
		snprintf(wanted, sizeof wanted,
			 "live block `b` (#%u.%u, owner `o`); executed at +0x%x (0x%lx); return ",
			 ch__handle_index(e.code.block.bits),
			 ch__handle_generation(e.code.block.bits),
			 code_faults[i].at,
			 (unsigned long)(uintptr_t)e.code.exec + code_faults[i].at);
		check_begins(caught.text, wanted);
	}
	rig_end(&rig);
}

TEST_RIG(fault_in_an_invalidated_block_says_by_what)
{
	struct emitter e;
	char wanted[100];
	struct ch_owner owner = rig_owner(&rig, "o");
	catch_traps(rig.heap);
	emit_open(&e, owner, 40, 0);
	emit_fault(&e, SIGTRAP);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
	jump_to(e.code.exec);
	check_begins(caught.text, "not yet freed block `o` (#");
	snprintf(wanted, sizeof wanted,
		 ", owner `o`), invalidated by ch_blocks_invalidate; executed at +0x%x (0x",
		 code_faults[0].at);
	check_has(caught.text, wanted);
	CHECK(!strstr(caught.text, "its own trap"));
}

TEST_RIG(bus_error_of_live_code_says_at_which_address)
{
	struct made_up m;
	static int word;
	char wanted[60];
	make_up(&m, block_info(rig_block(rig_owner(&rig, "o"), 1)).exec, 1);
	m.info.si_signo = SIGBUS;
	m.info.si_code = BUS_ADRERR;
	m.info.si_addr = &word;
	describe_made_up(rig.heap, &m);
	check_begins(caught.text, "live block `o` (#");
	snprintf(wanted, sizeof wanted, "; SIGBUS at address 0x%lx",
		 (unsigned long)(uintptr_t)&word);
	check_has(caught.text, wanted);
}

/* A step and a debug register leave the pc unchanged. */
TEST_RIG(traps_of_debuggers_are_at_the_pc)
{
	struct pair p;
	struct made_up m;
	char wanted[60];
	build_pair(&rig, &p);
	static const int codes[] = {TRAP_TRACE, TRAP_HWBKPT};
	for (int i = 0; i < 2; i++) {
		make_up(&m, p.at[0] + 8, 1);
		m.info.si_code = codes[i];
		describe_made_up(rig.heap, &m);
		snprintf(wanted, sizeof wanted, "executed at +0x%x (", CODE_TRAP_BEHIND_BYTES);
		check_has(caught.text, wanted);
	}
}

/* The code did not cause a signal that was sent. */
TEST_RIG(signals_that_were_sent_are_not_described)
{
	struct pair p;
	struct made_up m;
	build_pair(&rig, &p);
	static const int codes[] = {SI_USER, SI_TKILL, SI_QUEUE, SI_TIMER};
	for (int i = 0; i < 4; i++) {
		make_up(&m, p.at[0] + 8, 1);
		m.info.si_code = codes[i];
		CHECK_EQ(describe_made_up(rig.heap, &m),
			 0);
		CHECK_STR(caught.text, "");
	}
}
