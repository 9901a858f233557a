/* SPDX-License-Identifier: MIT
 * operations.c: one byte is a call, the next bytes are operands. Calls get live handles, stale
 * handles and wrong arguments, and must answer as the model says. CH_E_FULL may come where room is
 * asked for: then nothing has changed. */
#include "fuzz/fuzz.h"

enum { CALLS_A_CHECK = 16 };

static struct ch_block handle_of(int block)
{
	return fuzz.blocks[block].handle;
}

static bool is_room(enum ch_status status)
{
	bool may_be_full = !fuzz.is_roomy || fuzz.lives >= FUZZ_ROOMY;
	return status == CH_OK || (status == CH_E_FULL && may_be_full);
}

/* --- owners --- */

static void make_owner(void)
{
	int at = fuzz_below(FUZZ_OWNERS), vm = fuzz_below(FUZZ_VMS);
	struct fuzz_owner *o = &fuzz.owners[at];
	if (o->state == OWNER_ALIVE)
		return;
	/* Blocks of the owner before, and edges to that owner, must be gone. */
	for (int i = 0; i < FUZZ_BLOCKS; i++)
		if (fuzz_is_there(i) &&
		    (fuzz.blocks[i].owner == at || fuzz.blocks[i].owner_edge == at))
			return;
	CHECK_EQ(ch_owner_create(fuzz.vms[vm], "owner", fuzz_fallback(), NULL, &o->handle), CH_OK);
	o->state = OWNER_ALIVE;
	o->vm = fuzz.vms[vm];
	o->vm_number = fuzz.vm_numbers[vm];
	o->entry = FUZZ_NONE;
}

static bool is_busy(int owner)
{
	for (int i = 0; i < FUZZ_BLOCKS; i++) {
		const struct fuzz_block *b = &fuzz.blocks[i];
		if (!fuzz_is_there(i) || b->owner != owner)
			continue;
		if (fuzz_is_running(i))
			return true;
		for (int f = 0; f < FUZZ_FIBERS; f++)
			for (int w = 0; fuzz.fibers[f].is_suspended && w < 2; w++)
				if (fuzz.fibers[f].blocks[w] == i &&
				    fuzz.fibers[f].lives[w] == b->life)
					return true;
	}
	return false;
}

static void release_owner(void)
{
	int at = fuzz_below(FUZZ_OWNERS);
	bool at_once = fuzz_below(2);
	struct fuzz_owner *o = &fuzz.owners[at];
	if (o->state == OWNER_NONE || (at_once && is_busy(at)))
		return;
	enum ch_status status =
		ch_owner_release(o->handle, at_once ? CH_RELEASE_NOT_RUNNING : CH_RELEASE_COLLECT);
	CHECK_EQ(status, o->state == OWNER_ALIVE ? CH_OK : CH_E_STALE);
	if (status != CH_OK)
		return;
	o->state = OWNER_RELEASED;
	o->entry = FUZZ_NONE;
	for (int i = 0; i < FUZZ_BLOCKS && at_once; i++) {
		struct fuzz_block *b = &fuzz.blocks[i];
		if (!fuzz_is_there(i) || b->owner != at)
			continue;
		b->is_immortal = false;
		if (b->state != CH_BLOCK_OPEN && !b->is_edged)
			fuzz_bury(i);
	}
}

static void set_entry(void)
{
	int owner = fuzz_below(FUZZ_OWNERS), block = fuzz_below(FUZZ_BLOCKS + 1);
	struct fuzz_owner *o = &fuzz.owners[owner];
	if (o->state == OWNER_NONE)
		return;
	if (block == FUZZ_BLOCKS) {
		enum ch_status status = ch_owner_set_entry(o->handle, (struct ch_block){0});
		CHECK_EQ(status, o->state == OWNER_ALIVE ? CH_OK : CH_E_STALE);
		o->entry = FUZZ_NONE;
		return;
	}
	struct fuzz_block *b = &fuzz.blocks[block];
	if (!b->handle.bits)
		return;
	enum ch_status expected = CH_OK;
	if (o->state != OWNER_ALIVE || b->state == CH_BLOCK_FREE)
		expected = CH_E_STALE;
	else if (b->owner != owner)
		expected = CH_E_ARG;
	else if (b->state != CH_BLOCK_LIVE)
		expected = CH_E_STATE;
	CHECK_EQ(ch_owner_set_entry(o->handle, b->handle), expected);
	if (expected == CH_OK) {
		o->entry = block;
		b->is_held = true;
	}
}

static void run_owner(void)
{
	int owner = fuzz_below(FUZZ_OWNERS);
	if (fuzz.owners[owner].state == OWNER_ALIVE)
		fuzz_run_owner(owner);
}

static void run_entry(void)
{
	int block = fuzz_below(FUZZ_BLOCKS);
	const struct fuzz_block *b = &fuzz.blocks[block];
	if (b->entry_kind == CH_ENTRY_PATCH &&
	    (b->state == CH_BLOCK_LIVE || b->state == CH_BLOCK_NOTENTRANT))
		fuzz_run_entry(block);
}

/* --- blocks --- */

/* A slot without a block, as far as the model knows. */
static int empty_slot(void)
{
	for (int i = 0; i < FUZZ_BLOCKS; i++)
		if (!fuzz_is_there(i))
			return i;
	return FUZZ_NONE;
}

static void draw_shape(struct fuzz_block *b, uint8_t bits, uint8_t more)
{
	b->shape = (enum fuzz_shape)(bits % SHAPES);
	b->entry_kind = (enum ch_entry)(more % 3);
	b->has_call = more & 4;
	b->has_point = more & 8;
	b->has_ref = more & 16;
	b->is_immortal = (more >> 5) == 7;
}

static void open_block(void)
{
	int owner = fuzz_below(FUZZ_OWNERS), at = empty_slot();
	uint8_t bits = fuzz_byte(), more = fuzz_byte();
	if (at == FUZZ_NONE || fuzz.owners[owner].state == OWNER_NONE || fuzz.lives == FUZZ_LIVES)
		return;
	struct fuzz_block *b = &fuzz.blocks[at];
	struct fuzz_block fresh = {.life = fuzz.lives,
				   .number = fuzz.lives,
				   .owner = owner,
				   .edge = FUZZ_NONE,
				   .link = FUZZ_NONE,
				   .owner_edge = FUZZ_NONE,
				   .fact = FUZZ_NONE};
	draw_shape(&fresh, bits, more);
	uint32_t hot = bits == 0xff ? 0 : 160 + (bits >> 4) * 200u;
	struct ch_open open = {.size = sizeof open,
			       .owner = fuzz.owners[owner].handle,
			       .hot_bytes = hot,
			       .cold_bytes = bits & 1 ? 40 : 0,
			       .branch_room = 1,
			       .entry = fresh.entry_kind,
			       .frame = (uint8_t)(fuzz.is_roomy ? fuzz.lives % 3 : 0),
			       .align = fuzz.lives % 4 ? 0 : 64,
			       .flags = fresh.is_immortal ? CH_OPEN_IMMORTAL : 0,
			       .name = bits & 2 ? "named" : NULL,
			       .user = (void *)(uintptr_t)(fresh.life + 1)};
	enum ch_status status = ch_block_open(&open, &fresh.code);
	if (fuzz.owners[owner].state != OWNER_ALIVE)
		CHECK(status == CH_E_STALE || (!hot && status == CH_E_ARG));
	else if (!hot)
		CHECK_EQ(status, CH_E_ARG);
	else
		CHECK(is_room(status));
	if (status != CH_OK) {
		CHECK_EQ(fresh.code.block.bits, 0);
		return;
	}
	fuzz.tells[fuzz.lives++] = fuzz.owners[owner].vm_number;
	*b = fresh;
	b->handle = fresh.code.block;
	b->state = CH_BLOCK_OPEN;
	CHECK_EQ((uintptr_t)b->code.exec % (open.align ? open.align : 8), 0);
	fuzz_emit(at);
}

/* An OPEN block with an edge to the block cannot be committed any more. */
static void doom_holders(int at)
{
	for (int i = 0; i < FUZZ_BLOCKS; i++)
		if (fuzz.blocks[i].state == CH_BLOCK_OPEN && fuzz.blocks[i].edge == at &&
		    fuzz.blocks[i].edge_life == fuzz.blocks[at].life)
			fuzz.blocks[i].is_doomed = true;
}

/* Whether a block of the list has an edge to an OPEN block outside of the list. */
static bool waits_for_others(const int *slots, int count)
{
	for (int i = 0; i < count; i++) {
		const struct fuzz_block *b = &fuzz.blocks[slots[i]];
		bool is_among = false;
		for (int j = 0; j < count; j++)
			is_among |= slots[j] == b->edge;
		if (b->edge != FUZZ_NONE && !is_among &&
		    fuzz.blocks[b->edge].life == b->edge_life &&
		    fuzz.blocks[b->edge].state == CH_BLOCK_OPEN)
			return true;
	}
	return false;
}

static void commit_block(void)
{
	struct ch_code codes[3];
	int slots[3], wanted = 1 + fuzz_below(3), count = 0;
	bool is_doomed = false;
	for (int i = fuzz_below(FUZZ_BLOCKS); i < FUZZ_BLOCKS && count < wanted; i++) {
		struct fuzz_block *b = &fuzz.blocks[i];
		if (b->state != CH_BLOCK_OPEN)
			continue;
		is_doomed |= b->is_doomed || fuzz.owners[b->owner].state != OWNER_ALIVE;
		slots[count] = i;
		codes[count++] = b->code;
	}
	if (!count)
		return;
	if (waits_for_others(slots, count)) {
		CHECK_EQ(ch_block_commit(codes, (size_t)count), CH_E_STATE);
		return;
	}
	CHECK_EQ(ch_block_commit(codes, (size_t)count), is_doomed ? CH_E_STALE : CH_OK);
	for (int i = 0; i < count; i++) {
		struct fuzz_block *b = &fuzz.blocks[slots[i]];
		struct ch_info info = {.size = sizeof info};
		if (is_doomed) {
			doom_holders(slots[i]);
			fuzz_bury(slots[i]);
			continue;
		}
		CHECK_EQ(ch_block_info(b->handle, &info), CH_OK);
		CHECK(info.entry == b->code.exec + b->code.entry_offset);
		b->state = CH_BLOCK_LIVE;
		b->entry = info.entry;
	}
}

static void abort_block(void)
{
	int at = fuzz_below(FUZZ_BLOCKS);
	struct fuzz_block *b = &fuzz.blocks[at];
	if (!b->handle.bits)
		return;
	CHECK_EQ(ch_block_abort(&b->code), b->state == CH_BLOCK_OPEN ? CH_OK : CH_E_STATE);
	if (b->state == CH_BLOCK_OPEN) {
		doom_holders(at);
		fuzz_bury(at);
	}
}

static void attach_edge(void)
{
	int from = fuzz_below(FUZZ_BLOCKS), to = fuzz_below(FUZZ_BLOCKS);
	struct fuzz_block *b = &fuzz.blocks[from], *t = &fuzz.blocks[to];
	if (!b->handle.bits || !t->handle.bits || b->edge != FUZZ_NONE)
		return;
	enum ch_status expected = CH_OK;
	if (b->state == CH_BLOCK_FREE)
		expected = CH_E_STALE;
	else if (b->state != CH_BLOCK_OPEN)
		expected = CH_E_STATE;
	else if (t->state == CH_BLOCK_FREE)
		expected = CH_E_STALE;
	CHECK_EQ(ch_edge_attach(b->handle, t->handle), expected);
	if (expected != CH_OK || from == to)
		return;
	b->edge = to;
	b->edge_life = t->life;
	t->is_held = t->is_edged = true;
}

static void attach_owner_edge(void)
{
	int from = fuzz_below(FUZZ_BLOCKS), to = fuzz_below(FUZZ_OWNERS);
	struct fuzz_block *b = &fuzz.blocks[from];
	if (b->state != CH_BLOCK_OPEN || fuzz.owners[to].state != OWNER_ALIVE ||
	    b->owner_edge != FUZZ_NONE)
		return;
	CHECK_EQ(ch_edge_attach_owner(b->handle, fuzz.owners[to].handle), CH_OK);
	b->owner_edge = to;
}

static void link_branch(void)
{
	int from = fuzz_below(FUZZ_BLOCKS), to = fuzz_below(FUZZ_BLOCKS + 1);
	struct fuzz_block *b = &fuzz.blocks[from];
	struct fuzz_block *t = to < FUZZ_BLOCKS ? &fuzz.blocks[to] : NULL;
	if (!b->branch.bits || (t && !t->handle.bits))
		return;
	enum ch_status expected = CH_OK;
	if (b->state == CH_BLOCK_FREE || (t && t->state == CH_BLOCK_FREE))
		expected = CH_E_STALE;
	else if (b->state != CH_BLOCK_LIVE || (t && t->state != CH_BLOCK_LIVE))
		expected = CH_E_STATE;
	else if (t && b->shape == SHAPE_LEA && t->entry_kind == CH_ENTRY_NONE)
		expected = CH_E_STATE;
	CHECK_EQ(ch_branch_link(b->branch, t ? t->handle : (struct ch_block){0}), expected);
	if (expected != CH_OK)
		return;
	b->link = t ? to : FUZZ_NONE;
	if (t)
		t->is_held = true;
}

static void make_trampoline(void)
{
	int owner = fuzz_below(FUZZ_OWNERS), at = empty_slot();
	struct ch_block block;
	struct ch_info info = {.size = sizeof info};
	enum ch_trampoline kind = (enum ch_trampoline)fuzz_below(2);
	if (at == FUZZ_NONE || fuzz.owners[owner].state == OWNER_NONE || fuzz.lives == FUZZ_LIVES)
		return;
	enum ch_status status =
		ch_trampoline_make(fuzz.owners[owner].handle, kind, fuzz_fallback(), 1, NULL,
				   (void *)(uintptr_t)(fuzz.lives + 1), &block);
	if (fuzz.owners[owner].state != OWNER_ALIVE)
		CHECK_EQ(status, CH_E_STALE);
	else
		CHECK(is_room(status));
	if (status != CH_OK)
		return;
	CHECK_EQ(ch_block_info(block, &info), CH_OK);
	CHECK_EQ(code_call(info.entry), FUZZ_FALLBACK);
	fuzz.blocks[at] = (struct fuzz_block){.state = CH_BLOCK_LIVE,
					      .life = FUZZ_FALLBACK,
					      .number = fuzz.lives,
					      .handle = block,
					      .entry = info.entry,
					      .owner = owner,
					      .link = FUZZ_NONE,
					      .edge = FUZZ_NONE,
					      .owner_edge = FUZZ_NONE,
					      .fact = FUZZ_NONE};
	fuzz.blocks[at].code.block = block;
	fuzz.blocks[at].code.exec = (uint8_t *)info.exec;
	fuzz.tells[fuzz.lives++] = fuzz.owners[owner].vm_number;
}

/* --- invalidation --- */

static void invalidate(void)
{
	struct ch_block handles[4];
	int slots[4], count = 1 + fuzz_below(4);
	size_t done, expected = 0;
	bool is_open = false;
	for (int i = 0; i < count; i++) {
		slots[i] = fuzz_below(FUZZ_BLOCKS);
		handles[i] = handle_of(slots[i]);
		is_open |= fuzz.blocks[slots[i]].state == CH_BLOCK_OPEN;
	}
	CHECK_EQ(ch_blocks_invalidate(handles, (size_t)count, &done), is_open ? CH_E_STATE : CH_OK);
	for (int i = 0; i < count && !is_open; i++)
		if (fuzz.blocks[slots[i]].state == CH_BLOCK_LIVE) {
			fuzz_invalidated(slots[i]);
			expected++;
		}
	CHECK_EQ(done, expected);
}

static void make_fact(void)
{
	int at = fuzz_below(FUZZ_FACTS), vm = fuzz_below(FUZZ_VMS);
	if (fuzz.facts[at].is_there)
		return;
	CHECK_EQ(ch_assumption_create(fuzz.vms[vm], &fuzz.facts[at].handle), CH_OK);
	fuzz.facts[at].is_there = true;
}

static void assume(void)
{
	int block = fuzz_below(FUZZ_BLOCKS), fact = fuzz_below(FUZZ_FACTS);
	struct fuzz_block *b = &fuzz.blocks[block];
	if (b->state != CH_BLOCK_OPEN || !fuzz.facts[fact].handle.bits || b->fact != FUZZ_NONE)
		return;
	bool is_there = fuzz.facts[fact].is_there;
	CHECK_EQ(ch_block_assume(b->handle, fuzz.facts[fact].handle),
		 is_there ? CH_OK : CH_E_STALE);
	if (is_there)
		b->fact = fact;
}

static void break_fact(void)
{
	int fact = fuzz_below(FUZZ_FACTS);
	size_t done, expected = 0;
	if (!fuzz.facts[fact].handle.bits)
		return;
	bool was_there = fuzz.facts[fact].is_there;
	CHECK_EQ(ch_assumption_break(fuzz.facts[fact].handle, &done),
		 was_there ? CH_OK : CH_E_STALE);
	fuzz.facts[fact].is_there = false;
	for (int i = 0; i < FUZZ_BLOCKS && was_there; i++) {
		struct fuzz_block *b = &fuzz.blocks[i];
		if (!fuzz_is_there(i) || b->fact != fact)
			continue;
		b->fact = FUZZ_NONE;
		b->is_doomed = b->state == CH_BLOCK_OPEN;
		if (b->state == CH_BLOCK_LIVE) {
			fuzz_invalidated(i);
			expected++;
		}
	}
	CHECK_EQ(done, expected);
}

/* --- cycles --- */

static void collect_alone(void *arg)
{
	(void)arg;
	CHECK_EQ(ch_heap_collect(fuzz.heap), CH_OK);
}

static void start_cycle(void)
{
	memset(fuzz.ref_seen, 0, sizeof fuzz.ref_seen);
	fuzz_mark();
}

static void collect(void)
{
	bool is_exact = !fuzz.nested && fuzz_below(4);
	start_cycle();
	if (is_exact) {
		CHECK_EQ(ch_thread_detach(fuzz.heap), CH_OK);
		run_on_ended_thread(collect_alone, NULL);
		CHECK_EQ(ch_thread_attach(fuzz.heap, NULL, NULL), CH_OK);
	} else {
		collect_alone(NULL);
	}
	fuzz_cycle_done(is_exact);
}

static int invalidate_all(const struct ch_vm *vm)
{
	int count = 0;
	for (int i = 0; i < FUZZ_BLOCKS; i++) {
		const struct fuzz_block *b = &fuzz.blocks[i];
		if (!fuzz_is_there(i) || (vm && fuzz.owners[b->owner].vm != vm) || b->is_immortal)
			continue;
		if (b->state == CH_BLOCK_LIVE)
			fuzz_invalidated(i);
		count += b->state == CH_BLOCK_NOTENTRANT;
	}
	return count;
}

static void discard(void)
{
	int which = fuzz_below(FUZZ_VMS + 1);
	struct ch_vm *vm = which < FUZZ_VMS ? fuzz.vms[which] : NULL;
	size_t freed, kept;
	int doomed = invalidate_all(vm), left = 0;
	start_cycle();
	CHECK_EQ(ch_vm_discard(fuzz.heap, vm, &freed, &kept), CH_OK);
	fuzz_cycle_done(false);
	for (int i = 0; i < FUZZ_BLOCKS; i++)
		left += fuzz.blocks[i].state == CH_BLOCK_NOTENTRANT &&
			!fuzz.blocks[i].is_immortal &&
			(!vm || fuzz.owners[fuzz.blocks[i].owner].vm == vm);
	CHECK_EQ(freed + kept, doomed);
	CHECK_EQ(kept, left);
}

/* A VM ends, and a new VM takes its place. */
static void change_vm(void)
{
	int at = fuzz_below(FUZZ_VMS);
	struct ch_vm *vm = fuzz.vms[at];
	for (int i = 0; i < FUZZ_BLOCKS; i++)
		if (fuzz_is_there(i) && fuzz.owners[fuzz.blocks[i].owner].vm == vm &&
		    (fuzz.blocks[i].state == CH_BLOCK_OPEN || is_busy(fuzz.blocks[i].owner)))
			return;
	invalidate_all(vm);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	/* Blocks with a thread inside stay; their refs are reported to nobody. */
	for (int i = 0; i < FUZZ_BLOCKS; i++)
		if (fuzz_is_there(i) && fuzz.owners[fuzz.blocks[i].owner].vm == vm)
			fuzz.blocks[i].has_ref = false;
	for (int i = 0; i < FUZZ_OWNERS; i++)
		if (fuzz.owners[i].state == OWNER_ALIVE && fuzz.owners[i].vm == vm) {
			fuzz.owners[i].state = OWNER_RELEASED;
			fuzz.owners[i].entry = FUZZ_NONE;
		}
	/* A vm that is gone is told nothing; the next one may have its address. */
	for (int i = 0; i < FUZZ_OWNERS; i++)
		if (fuzz.owners[i].vm == vm)
			fuzz.owners[i].vm = NULL;
	for (int i = 0; i < fuzz.lives; i++)
		if (fuzz.tells[i] == fuzz.vm_numbers[at])
			fuzz.tells[i] = 0;
	fuzz_attach_vm(at);
}

/* --- threads and fibers --- */

static void detached(void)
{
	struct ch_code code;
	struct ch_open open = {.size = sizeof open, .owner = fuzz.owners[0].handle, .hot_bytes = 8};
	struct ch_stats stats = {.size = sizeof stats};
	CHECK_EQ(ch_thread_attach(fuzz.heap, NULL, NULL), CH_E_THREAD);
	if (fuzz.nested)
		return;
	CHECK_EQ(ch_thread_detach(fuzz.heap), CH_OK);
	CHECK_EQ(ch_thread_detach(fuzz.heap), CH_E_THREAD);
	/* An open attaches the thread, too, and keeps the attachment for the next call. */
	if (fuzz.owners[0].state == OWNER_ALIVE) {
		enum ch_status status = ch_block_open(&open, &code);
		CHECK(is_room(status));
		if (status == CH_OK)
			CHECK_EQ(ch_block_abort(&code), CH_OK);
		CHECK_EQ(ch_heap_stats(fuzz.heap, &stats), CH_OK);
		CHECK_EQ(stats.threads_now, 1);
	}
	CHECK_EQ(ch_thread_attach(fuzz.heap, NULL, NULL), CH_OK);
}

static void point_at(struct fuzz_fiber *f, int word)
{
	int block = fuzz_below(FUZZ_BLOCKS);
	const struct fuzz_block *b = &fuzz.blocks[block];
	uint8_t how = fuzz_byte();
	struct ch_info info = {.size = sizeof info};
	f->blocks[word] = FUZZ_NONE;
	if (b->state != CH_BLOCK_LIVE && b->state != CH_BLOCK_NOTENTRANT)
		return;
	CHECK_EQ(ch_block_info(b->handle, &info), CH_OK);
	f->blocks[word] = block;
	f->lives[word] = b->life;
	/* Inside the block: a word right behind the end may hold the next block, too. */
	f->stack[8 + 9 * word] = (uintptr_t)info.exec + how % info.hot_bytes;
	if (f->stack[8 + 9 * word] == (uintptr_t)info.exec)
		f->stack[8 + 9 * word]++;
}

static void use_fiber(void)
{
	struct fuzz_fiber *f = &fuzz.fibers[fuzz_below(FUZZ_FIBERS)];
	if (!f->fiber) {
		memset(f->stack, 0, sizeof f->stack);
		CHECK_EQ(ch_fiber_attach(fuzz.heap, f->stack, f->stack + FUZZ_FIBER_WORDS,
					 &f->fiber),
			 CH_OK);
		point_at(f, 0);
		point_at(f, 1);
		ch_fiber_suspend(f->fiber, f->stack + 2);
		f->is_suspended = true;
	} else if (f->is_suspended && fuzz_below(2)) {
		ch_fiber_resume(f->fiber);
		f->is_suspended = false;
	} else {
		CHECK_EQ(ch_fiber_detach(f->fiber), CH_OK);
		f->fiber = NULL;
		f->is_suspended = false;
	}
}

static void use_gone(void)
{
	struct ch_block gone = fuzz.gone[fuzz_below(FUZZ_GONE)];
	struct ch_site *none = NULL;
	size_t count;
	if (!gone.bits)
		return;
	CHECK_EQ(ch_block_sites(gone, NULL, none), CH_E_STALE);
	CHECK_EQ(ch_blocks_invalidate(&gone, 1, &count), CH_OK);
	CHECK_EQ(count, 0);
	CHECK_EQ(ch_ref_attach(gone, NULL), CH_E_STALE);
	CHECK_EQ(ch_patch_point_attach(gone, NULL, NULL, NULL), CH_E_STALE);
	CHECK_EQ(ch_block_assume(gone, fuzz.facts[0].handle), CH_E_STALE);
}

/* --- writing again --- */

/* Whether some of the bytes are those of a site, a ref, a patch point or a patchable entry. */
static bool is_of_library(const struct fuzz_block *b, const uint8_t *at, size_t n)
{
	for (int i = 0; i < FUZZ_SITES; i++)
		if (b->sites[i].at < at + n && at < b->sites[i].at + b->sites[i].n)
			return true;
	return b->entry_kind == CH_ENTRY_PATCH &&
	       at < b->code.exec + CH_ARCH_LANDING_BYTES + CH_ARCH_DIVERTER_BYTES;
}

/* Writes other hot bytes into a block, and then the same again. Takes no byte of the program, so
 * that the corpus keeps its meaning. */
static void write_again(void)
{
	const struct fuzz_block *b = &fuzz.blocks[fuzz.calls % FUZZ_BLOCKS];
	struct ch_info info = {.size = sizeof info};
	if (b->state == CH_BLOCK_FREE || ch_block_info(b->handle, &info) != CH_OK)
		return;
	const uint8_t *at = info.exec + fuzz.calls * 7 % info.hot_bytes;
	const struct fuzz_site *site = &b->sites[fuzz.calls / 2 % FUZZ_SITES];
	if (site->n && fuzz.calls % 2) /* there, or a little before */
		at = site->at - fuzz.calls / 8 % 4;
	size_t n = 1 + fuzz.calls % 13;
	enum ch_write how = (enum ch_write)(fuzz.calls % 3);
	bool is_word = n <= 8 && !(n & (n - 1)) && (uintptr_t)at % n == 0;
	bool may_run = (uintptr_t)at % 8 + n <= 8; /* x86-64: any bytes of an aligned 8 */
	enum ch_status expected = CH_OK;
	if (b->state == CH_BLOCK_OPEN || at + n > info.exec + info.hot_bytes)
		expected = CH_E_ARG;
	else if (b->life == FUZZ_FALLBACK)
		expected = CH_E_STATE;
	else if (is_of_library(b, at, n) || (how == CH_WRITE_WORD && !is_word) ||
		 (how == CH_WRITE_INSTRUCTION && !may_run))
		expected = CH_E_SITE;
	struct ch_heap *heap = fuzz.calls / 3 % 3 ? fuzz.heap : NULL;
	uint8_t was[13] = {0}, others[13];
	if (expected != CH_E_ARG)
		memcpy(was, at, n);
	for (size_t i = 0; i < n; i++)
		others[i] = (uint8_t)~was[i];
	CHECK_EQ(ch_code_write(heap, at, others, n, how), expected);
	CHECK(expected == CH_E_ARG || !memcmp(at, expected ? was : others, n));
	CHECK_EQ(ch_code_write(heap, at, was, n, how), expected);
	CHECK(expected == CH_E_ARG || !memcmp(at, was, n));
}

/* Adds code without an owner, runs and frees the code. Takes no byte, either. */
static void add_and_free(void)
{
	static const uint8_t bytes[] = {0xb8, 42, 0, 0, 0, 0xc3}; /* mov eax, 42; ret */
	const void *code;
	enum ch_status status = ch_code_add(fuzz.heap, bytes, sizeof bytes, "loose", &code);
	CHECK(is_room(status));
	if (status != CH_OK)
		return;
	CHECK_EQ(code_call(code), 42);
	CHECK_EQ(ch_code_free(fuzz.heap, code, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_code_free(fuzz.heap, code, CH_RELEASE_NOT_RUNNING), CH_E_STALE);
}

static void poll(void)
{
	ch_thread_poll();
	fuzz_check_told();
	write_again();
	add_and_free();
}

#define OPERATIONS(X)                                                                             \
	X(make_owner)                                                                             \
	X(release_owner) X(set_entry) X(set_entry) X(run_owner) X(run_owner) X(run_entry)         \
		X(open_block) X(open_block) X(open_block) X(commit_block) X(commit_block)         \
			X(abort_block) X(attach_edge) X(attach_owner_edge) X(link_branch)         \
				X(link_branch) X(invalidate) X(make_trampoline) X(make_fact)      \
					X(assume) X(break_fact) X(collect) X(collect) X(discard)  \
						X(change_vm) X(detached) X(use_fiber) X(use_gone) \
							X(poll)

void fuzz_operation(void)
{
	static const struct {
		const char *name;
		void (*call)(void);
	} operations[] = {
#define X(name) {#name, name},
		OPERATIONS(X)
#undef X
	};
	int at = fuzz_below(sizeof operations / sizeof *operations);
	if (fuzz.is_loud)
		fprintf(stderr, "%*s%s %d %d %d\n", 2 * fuzz.nested, "", operations[at].name,
			fuzz.left > 0 ? fuzz.bytes[0] : 0, fuzz.left > 1 ? fuzz.bytes[1] : 0,
			fuzz.left > 2 ? fuzz.bytes[2] : 0);
	operations[at].call();
	fuzz_compare();
	if (++fuzz.calls % CALLS_A_CHECK == 0)
		fuzz_check_heap();
}
