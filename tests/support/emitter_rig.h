/* SPDX-License-Identifier: MIT
 * emitter_rig.h: shared by the tests of the Scheme JIT's emitter: a heap, code placed as by the
 * JIT, as a function of a state that C looks at, and operands around the limits of encodings.
 */
#pragma once

#include "codeheap/codeheap.h"
#include "hosts/scheme/jit_emit.h"
#include "tests/support/harness.h"

#include <math.h>
#include <string.h>

/* Stands for a piece of the JIT, which is not linked: the arena's stubs alone lead there. */
const char jit_arena_thunk[16];

enum { SLOTS = 64, FAR_WORDS = 20000 };

/* The data that code under test reads and writes, by the register CTX. */
struct state {
	uint64_t kept_context, kept_frame;
	uint64_t in[SLOTS], out[SLOTS];
	double number_in[4], number_out[4];
	uint64_t below[FAR_WORDS], middle, above[FAR_WORDS];
};
static struct state state;
/* The address is taken in the whole state: the word in the middle is only a small part. */
static inline uint8_t *from_middle(int32_t bytes)
{
	return (uint8_t *)&state + offsetof(struct state, middle) + bytes;
}
#define IN(n) ((int32_t)(offsetof(struct state, in) + 8 * (size_t)(n)))
#define OUT(n) ((int32_t)(offsetof(struct state, out) + 8 * (size_t)(n)))

static struct emitter emitter, *const e = &emitter;
static struct ch_heap *heap;
static struct ch_vm *vm;
static struct ch_owner owner;

/* Immediates and operands: around each limit of an encoding. */
static const int32_t immediates[] = {
	0,          1,      2,         3,       5,         7,         8,
	10,         62,     -1,        -2,      127,       128,       -128,
	-129,       255,    256,       -255,    -256,      -257,      4095,
	4096,       -4095,  -4096,     4097,    0x7ffff,   0xfff000,  0xfff001,
	65535,      65536,  -65536,    0x10001, INT32_MAX, INT32_MIN, INT32_MIN + 1,
	0x55555555, 0x0ff0, -0x1000000};
static const uint64_t words[] = {0,
				 1,
				 2,
				 3,
				 7,
				 0x52,
				 0xffff,
				 0x10000,
				 0xffff0000,
				 UINT32_MAX,
				 (uint64_t)UINT32_MAX + 1,
				 0x123456789abcdef0,
				 0xffff000000000000,
				 0x0000ffff0000ffff,
				 UINT64_MAX,
				 UINT64_MAX - 1,
				 0xffffffffffff0000,
				 0xffff1234ffffffff,
				 (uint64_t)INT64_MAX,
				 (uint64_t)INT64_MIN,
				 (uint64_t)INT64_MIN + 1,
				 0x7fff00001234,
				 0xffffffff80000000,
				 (uint64_t)INT32_MIN - 1,
				 0x8000000000000001,
				 (uint64_t)-5,
				 (uint64_t)-4096};
static const int32_t offsets[] = {0,    8,     -8,     -256,  -264,   248,    256,    264,    4,
				  12,   -4,    255,    -255,  257,    32760,  32768,  32776,  4095,
				  4096, 65536, -65536, 80000, -80000, 131072, 159000, -159000};
#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- places ---- */

static inline const uint8_t *address_of(const struct ch_code *code, enum emit_section section,
					uint32_t at)
{
	return (section == HOT ? code->exec : code->cold_exec) + at;
}
static inline const uint8_t *label_at(const struct ch_code *code, int label)
{
	CHECK(e->labels[label].is_bound);
	return address_of(code, e->labels[label].section, e->labels[label].at);
}

static uint64_t records[8];

/* Places code as the JIT does. */
static inline void settle(struct ch_code *code)
{
	memcpy(code->write, e->bytes[HOT], e->used[HOT]);
	if (e->used[COLD]) /* else there is no address */
		memcpy(code->cold_write, e->bytes[COLD], e->used[COLD]);
	for (int i = 0; i < e->fix_count; i++) {
		const struct emit_fix *fix = &e->fixes[i];
		uint8_t *write = (fix->section == HOT ? code->write : code->cold_write) + fix->at;
		const uint8_t *exec = address_of(code, fix->section, fix->at);
		const void *target = fix->function;
		if (fix->kind == FIX_RECORD) {
			const uintptr_t record = (uintptr_t)&records[fix->record];
			memcpy(write, &record, sizeof record);
			continue;
		}
		if (fix->kind == FIX_LABEL)
			target = label_at(code, fix->label);
		if (!emit_reaches(exec, target))
			CHECK_EQ(ch_block_veneer(code, target, &target), CH_OK);
		emit_fill_rel(write, exec, target);
	}
}

static struct ch_branch branches[MAX_SITES];

static inline void attach(const struct ch_code *code)
{
	static const enum ch_branch_kind kinds[] = {
		[SITE_JUMP] = CH_JMP, [SITE_JUMP_IF] = CH_JCC, [SITE_CALL] = CH_CALL};

	for (int i = 0; i < e->ref_count; i++)
		CHECK_EQ(ch_ref_attach(code->block,
				       address_of(code, e->refs[i].section, e->refs[i].at)),
			 CH_OK);
	for (int i = 0; i < e->point_count; i++)
		CHECK_EQ(ch_patch_point_attach(
				 code->block,
				 address_of(code, e->points[i].section, e->points[i].at),
				 label_at(code, e->points[i].label), NULL),
			 CH_OK);
	for (int i = 0; i < e->site_count; i++) {
		const struct emit_branch *b = &e->sites[i];
		struct ch_branch_site site = {.at = address_of(code, b->section, b->at),
					      .kind = kinds[b->kind],
					      .user = (void *)(intptr_t)b->record,
					      .exit = b->exit < 0 ? NULL : label_at(code, b->exit)};
		CHECK_EQ(ch_branch_attach(code->block, &site, &branches[i]), CH_OK);
	}
}

/* Returns the block, LIVE and entered by the owner. */
static inline struct ch_block place(void)
{
	emit_end(e);
	CHECK(!e->overflowed);
	struct ch_open open = {.size = sizeof open,
			       .owner = owner,
			       .hot_bytes = e->used[HOT],
			       .cold_bytes = e->used[COLD],
			       .branch_room = (uint32_t)e->site_count};
	static struct ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK_EQ((uintptr_t)code.exec % 8, 0);
	CHECK(!e->used[COLD] || (uintptr_t)code.cold_exec % 8 == 0);
	settle(&code);
	attach(&code);
	code.used_from = 0;
	code.used_to = e->used[HOT];
	code.cold_used = e->used[COLD];
	struct ch_block block = code.block;
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	return block;
}

/* ---- a function of the state ---- */

static inline void begin(void)
{
	emit_start(e, 0);
	emit_enter(e);
	emit_store(e, ARG0, offsetof(struct state, kept_context), CTX);
	emit_store(e, ARG0, offsetof(struct state, kept_frame), FPTR);
	emit_move(e, CTX, ARG0);
}
static inline void end(void)
{
	emit_load(e, FPTR, CTX, offsetof(struct state, kept_frame));
	emit_load(e, CTX, CTX, offsetof(struct state, kept_context));
	emit_leave(e);
	emit_return(e);
}
static inline uint64_t call(void)
{
	uint64_t (*const *cell)(struct state *) =
		(uint64_t(*const *)(struct state *))ch_owner_cell(owner);
	return (*cell)(&state);
}
static inline void run(void)
{
	end();
	place();
	call();
}

static inline uint64_t fallback(struct state *s)
{
	(void)s;
	return 0xfa11;
}

static struct ch_block (*on_hit)(struct ch_branch branch, void *user, struct ch_regs *regs);
static inline struct ch_block hit(void *vm_user, struct ch_branch branch, void *user,
				  struct ch_regs *regs)
{
	(void)vm_user;
	return on_hit(branch, user, regs);
}
static uintptr_t seen_ref;
static inline uintptr_t note_ref(void *vm_user, uintptr_t word)
{
	(void)vm_user;
	seen_ref = word;
	return word + 1;
}

static inline void start(void)
{
	static const struct ch_ops ops = {.size = sizeof ops, .branch_hit = hit, .ref = note_ref};
	struct ch_config config;

	ch_config_init(&config);
	config.pool_bytes = 1 << 20;
	config.page_bytes = test_page_bytes();
	config.near_address = (const void *)(uintptr_t)fallback;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	CHECK_EQ(ch_vm_attach(heap, &ops, NULL, &vm), CH_OK);
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_OK);
	CHECK_EQ(ch_owner_create(vm, "emitter", (const void *)(uintptr_t)fallback, NULL, &owner),
		 CH_OK);
}

static const enum emit_cond all_conditions[] = {IF_EQ, IF_NE,    IF_LT,       IF_LE,   IF_GT,
						IF_GE, IF_BELOW, IF_ABOVE_EQ, IF_ABOVE};

/* out[slot] = whether the condition holds; the flags outlive the stores between. */
static inline void store_condition(enum emit_cond cond, int slot)
{
	int yes = emit_label(e);

	emit_imm(e, R3, 1);
	emit_goto_if(e, cond, yes);
	emit_imm(e, R3, 0);
	emit_bind(e, yes);
	emit_store(e, CTX, OUT(slot), R3);
}
static inline void store_conditions(int from)
{
	for (size_t i = 0; i < COUNT(all_conditions); i++)
		store_condition(all_conditions[i], from + (int)i);
}
