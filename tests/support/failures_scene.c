/* SPDX-License-Identifier: MIT
 * failures_scene.c: the heap of a step of a walk, with one of everything, and the fingerprint, a
 * number that changes when anything in the heap changes. This file injects no failures. */
#include "codeheap/collector.h"
#include "codeheap/look.h"
#include "tests/support/failures.h"
#include "tests/support/stage_code.h"

#include <string.h>
#include <unistd.h>

enum { FALLBACK = 0xfa11, POOL_BYTES = 4 << 20 };

uint32_t scene_fallback(void)
{
	return FALLBACK;
}

static struct ch_block no_hit(void *user, struct ch_branch branch, void *branch_user,
			      struct ch_regs *regs)
{
	(void)user, (void)branch, (void)branch_user, (void)regs;
	return (struct ch_block){0};
}

static uintptr_t same_ref(void *user, uintptr_t word)
{
	(void)user;
	return word;
}

struct ch_owner scene_owner(struct scene *s, const char *name, void **anchor)
{
	struct ch_owner owner;
	CHECK_EQ(s->setting->owner(s->vm, name, (const void *)(uintptr_t)scene_fallback, NULL,
				   &owner, anchor),
		 CH_OK);
	return owner;
}

static struct ch_block make_block(struct ch_owner owner, uint32_t value,
				  const struct ch_assumption *fact)
{
	struct emitter e;
	emit_open(&e, owner, 16, 0);
	emit_answer(&e, value);
	if (fact)
		CHECK_EQ(ch_block_assume(e.code.block, *fact), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

/* A block of spare with everything for the sweep to take apart. */
static void make_dropped(struct scene *s)
{
	struct emitter e;
	struct ch_open open = {.owner = s->spare,
			       .hot_bytes = 64,
			       .branch_room = 2,
			       .name = "dropped",
			       .entry = CH_ENTRY_PATCH};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	struct ch_line line = {e.code.exec, 7};
	CHECK_EQ(ch_block_lines(e.code.block, "/src/dropped", &line, 1), CH_OK);
	CHECK_EQ(ch_edge_attach(e.code.block, s->live), CH_OK);
	CHECK_EQ(ch_block_assume(e.code.block, s->fact), CH_OK);
	struct ch_branch branch = emit_jmp(&e, NULL);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_branch_link(branch, s->live), CH_OK);
	s->dropped = e.code.block;
}

static void make_open(struct scene *s)
{
	struct emitter *e = &s->open;
	emit_open(e, s->owner, 160, 3);
	s->ref = emit_ref_word(e, 0);
	s->point = emit_point(e);
	s->site = emit_site_jmp(e);
	emit_answer(e, 2);
	e->code.used_to = e->at;
}

void scene_start(struct scene *s, const struct failures_setting *setting)
{
	memset(s, 0, sizeof *s);
	s->setting = setting;
	struct ch_config config;
	ch_config_init(&config);
	config.pool_bytes = POOL_BYTES;
	config.page_bytes = test_page_bytes();
	config.backend = setting->backend;
	config.driver = setting->driver;
	config.sinks = setting->sinks;
	CHECK_EQ(setting->create(&config, &s->heap), CH_OK);
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = no_hit, .ref = same_ref};
	CHECK_EQ(ch_vm_attach(s->heap, &ops, NULL, &s->vm), CH_OK);
	CHECK_EQ(ch_thread_attach(s->heap, NULL, NULL), CH_OK);
	s->owner = scene_owner(s, "owner", &s->anchors[0]);
	s->spare = scene_owner(s, "spare", &s->anchors[1]);
	CHECK_EQ(ch_assumption_create(s->vm, &s->fact), CH_OK);
	s->live = make_block(s->owner, 1, &s->fact);
	CHECK_EQ(ch_owner_set_entry(s->owner, s->live), CH_OK);
	struct emitter e;
	emit_open(&e, s->owner, 32, 1);
	s->branch = emit_jmp(&e, NULL);
	CHECK_EQ(emit_commit(&e), CH_OK);
	s->source = e.code.block;
	make_dropped(s);
	make_open(s);
}

static void end_block(struct ch_code *code)
{
	struct ch_info info = {.size = sizeof info};
	if (code->block.bits && ch_block_info(code->block, &info) == CH_OK &&
	    info.state == CH_BLOCK_OPEN)
		CHECK_EQ(ch_block_abort(code), CH_OK);
}

void scene_end(struct scene *s)
{
	if (s->marker)
		CHECK_EQ(ch_mark_end(s->marker, false), CH_OK);
	if (s->other) {
		enum ch_status status = ch_thread_detach(s->other);
		CHECK(status == CH_OK || status == CH_E_THREAD);
		CHECK_EQ(ch_heap_destroy(s->other), CH_OK);
	}
	if (!s->heap)
		return;
	end_block(&s->open.code);
	end_block(&s->code);
	if (s->fiber)
		CHECK_EQ(ch_fiber_detach(s->fiber), CH_OK);
	if (s->other_vm)
		CHECK_EQ(ch_vm_detach(s->other_vm), CH_OK);
	if (s->vm)
		CHECK_EQ(ch_vm_detach(s->vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(s->heap), CH_OK);
	s->heap = NULL;
}

/* --- the fingerprint --- */

struct sum {
	uint64_t value;
};

static void add(struct sum *sum, uint64_t word)
{
	sum->value = (sum->value ^ word) * UINT64_C(0x100000001b3) + 1;
}

static void add_text(struct sum *sum, const char *text)
{
	for (; text && *text; text++)
		add(sum, (uint8_t)*text);
}

static bool add_site(void *arg, const struct ch_site *site)
{
	struct sum *sum = arg;
	add(sum, site->kind);
	add(sum, (uintptr_t)site->at);
	add(sum, (uintptr_t)site->leads_to);
	add(sum, site->is_linked);
	add(sum, site->branch.bits);
	add(sum, site->kind == CH_SITE_REF ? site->word : (uintptr_t)site->user);
	return true;
}

struct known {
	struct sum *sum;
	struct ch_block blocks[400];
	unsigned count;
};

static bool add_block(void *arg, const struct ch_info *info)
{
	struct known *known = arg;
	struct sum *sum = known->sum;
	add(sum, info->block.bits);
	add(sum, info->owner.bits);
	add(sum, info->state);
	add(sum, (uintptr_t)info->exec);
	add(sum, (uintptr_t)info->cold_exec);
	add(sum, (uintptr_t)info->entry);
	add(sum, (uint64_t)info->hot_bytes << 32 | info->cold_bytes);
	add(sum, info->branches_now);
	add_text(sum, info->name);
	if (known->count < sizeof known->blocks / sizeof *known->blocks)
		known->blocks[known->count++] = info->block;
	return true;
}

static void add_owner(struct sum *sum, struct ch_owner owner)
{
	struct ch_owner_facts facts = {.size = sizeof facts};
	enum ch_status status = ch_owner_info(owner, &facts);
	add(sum, status);
	if (status != CH_OK)
		return;
	const void *const *cell = ch_owner_cell(owner);
	add(sum, facts.entry.bits);
	add(sum, facts.blocks_now);
	add(sum, facts.code_bytes_now);
	add(sum, facts.is_released);
	add(sum, (uintptr_t)cell);
	add(sum, cell ? (uintptr_t)*cell : 0);
}

/* Callers cannot see room made by a failed call, times, or the counts of syncs, refusals and
 * freezes: the fingerprint leaves these out. */
static void add_stats(struct sum *sum, struct ch_heap *heap)
{
	struct ch_stats s = {.size = sizeof s};
	CHECK_EQ(ch_heap_stats(heap, &s), CH_OK);
	const uint64_t words[] = {
		s.code_bytes_now,
		s.hot_bytes_now,
		s.cold_bytes_now,
		s.stub_bytes_now,
		s.blocks_now,
		s.notentrant_bytes_now,
		s.blocks_open_now,
		s.branches_now,
		s.blocks_notentrant_now,
		s.owners_now,
		s.assumptions_now,
		s.threads_now,
		s.fibers_now,
		s.vms_now,
		s.blocks_committed,
		s.blocks_freed,
		s.blocks_invalidated,
		s.branches_linked,
		s.branches_unlinked,
		s.patch_points_armed,
		s.blocks_opened - s.blocks_aborted,
	};
	for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
		add(sum, words[i]);
}

uint64_t scene_fingerprint(const struct scene *s)
{
	struct sum sum = {0};
	if (s->other)
		add_stats(&sum, s->other);
	if (!s->heap || s->marker)
		return sum.value;
	add_stats(&sum, s->heap);
	struct known known = {.sum = &sum};
	CHECK_EQ(ch_block_each(s->heap, NULL, add_block, &known), CH_OK);
	for (unsigned i = 0; i < known.count; i++) {
		/* A block that a cycle found dead is there until the sweep, without its sites. */
		enum ch_status status = ch_block_sites(known.blocks[i], add_site, &sum);
		CHECK(status == CH_OK || status == CH_E_STALE);
		add(&sum, status);
	}
	add_owner(&sum, s->owner);
	add_owner(&sum, s->spare);
	/* The bytes of the open block, and the struct given to the caller. */
	for (size_t i = 0; i < sizeof s->open.code; i += sizeof(uint64_t)) {
		uint64_t word;
		memcpy(&word, (const char *)&s->open.code + i, sizeof word);
		add(&sum, word);
	}
	if (s->open.code.write)
		for (uint32_t i = 0; i < s->open.at; i++)
			add(&sum, s->open.code.write[i]);
	return sum.value;
}

void scene_check(const struct scene *s)
{
	char report[300];
	if (s->other && ch_heap_check(s->other, report, sizeof report) != CH_OK)
		FAIL("heap check of the other heap: %s", report);
	if (s->heap && !s->marker && ch_heap_check(s->heap, report, sizeof report) != CH_OK)
		FAIL("heap check: %s", report);
}

enum ch_status scene_collect(struct scene *s)
{
	struct ch_marker *marker;
	if (s->setting->driver != CH_DRIVER_HOST)
		return ch_heap_collect(s->heap);
	enum ch_status status = ch_mark_begin(s->heap, &marker);
	if (status != CH_OK)
		return status;
	ch_mark_owner(marker, s->owner);
	ch_mark_owner(marker, s->spare);
	ch_mark_stacks(marker);
	status = ch_mark_end(marker, true);
	ch_thread_poll();
	return status;
}

void scene_still_works(struct scene *s)
{
	if (!s->heap || !s->vm || s->marker)
		return;
	struct ch_owner owner = scene_owner(s, "after", &s->anchors[2]);
	CHECK_EQ(ch_owner_set_entry(owner, make_block(owner, 42, NULL)), CH_OK);
	CHECK_EQ(code_call_owner(owner), 42);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(scene_collect(s), CH_OK);
	struct ch_info info = {.size = sizeof info};
	/* The room given by the call is really there. */
	if (s->code.block.bits && ch_block_info(s->code.block, &info) == CH_OK &&
	    info.state == CH_BLOCK_OPEN) {
		struct emitter e = {.code = s->code, .at = s->code.entry_bytes};
		emit_landing(&e);
		emit_filler(&e, e.code.hot_bytes - CODE_ANSWER_BYTES);
		emit_answer(&e, 7);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(code_call(e.code.exec), 7);
	}
	/* A block still runs unless the row ended the block. */
	if (ch_block_info(s->live, &info) == CH_OK && info.state == CH_BLOCK_LIVE)
		CHECK_EQ(code_call(info.entry), 1);
}
