/* SPDX-License-Identifier: MIT
 * jit_emit_x86_64.c: the emitter of x86-64, with all encodings of the JIT; the fixed pieces of code
 * are in jit_pieces_x86_64.c. rbx holds the context, r12 the frame. The displacement of a site lies
 * in one aligned 8 bytes.
 */
#include "jit_emit.h"

#include <string.h>

const char emit_objdump[] = "objdump -m i386:x86-64";
const intptr_t emit_arena_reach = INT32_MAX;

const uint8_t emit_numbers[] = {
	[R0] = 0,   [R1] = 1,   [R2] = 2,  [R3] = 8,    [ARG0] = 7,  [ARG1] = 6,
	[ARG2] = 2, [ARG3] = 1, [CTX] = 3, [FPTR] = 12, [FRAME] = 5, [SP] = 4};

/* ---- bytes ---- */

static void byte(struct emitter *e, unsigned b)
{
	uint32_t at = e->used[e->section];

	if (at >= SECTION_ROOM) {
		e->overflowed = 1;
		return;
	}
	e->bytes[e->section][at] = (uint8_t)b;
	e->used[e->section] = at + 1;
}

static void word32(struct emitter *e, uint32_t word)
{
	emit_bytes(e, &word, sizeof word);
}

static void word64(struct emitter *e, uint64_t word)
{
	emit_bytes(e, &word, sizeof word);
}

void emit_start(struct emitter *e, int is_arena)
{
	emit_reset(e, is_arena);
}
void emit_end(struct emitter *e)
{
	(void)e; /* literals are not needed: every word is an immediate */
}

/* ---- operands ---- */

static void rex(struct emitter *e, int wide, int reg, int index, int base)
{
	int bits = wide << 3 | (reg >> 3) << 2 | (index >> 3) << 1 | base >> 3;

	if (bits)
		byte(e, 0x40 | (unsigned)bits);
}

static void displaced(struct emitter *e, int reg, int base, int32_t offset, int sib)
{
	int mod = offset == 0 && (base & 7) != 5 ? 0 : offset == (int8_t)offset ? 1 : 2;
	int rm = sib >= 0 || (base & 7) == 4 ? 4 : base & 7;

	byte(e, (unsigned)(mod << 6 | (reg & 7) << 3 | rm));
	if (rm == 4)
		byte(e, sib >= 0 ? (unsigned)sib : 0x24);
	if (mod == 1)
		byte(e, (uint8_t)offset);
	else if (mod == 2)
		word32(e, (uint32_t)offset);
}

static void memory(struct emitter *e, int wide, unsigned opcode, int reg, enum emit_reg base,
		   int32_t offset)
{
	rex(e, wide, reg, 0, emit_numbers[base]);
	byte(e, opcode);
	displaced(e, reg, emit_numbers[base], offset, -1);
}

static void both(struct emitter *e, int wide, unsigned opcode, int reg, int rm)
{
	rex(e, wide, reg, 0, rm);
	byte(e, opcode);
	byte(e, (unsigned)(0xc0 | (reg & 7) << 3 | (rm & 7)));
}

/* ---- moves ---- */

void emit_load(struct emitter *e, enum emit_reg to, enum emit_reg base, int32_t offset)
{
	memory(e, 1, 0x8b, emit_numbers[to], base, offset);
}
void emit_store(struct emitter *e, enum emit_reg base, int32_t offset, enum emit_reg from)
{
	memory(e, 1, 0x89, emit_numbers[from], base, offset);
}
void emit_store_imm(struct emitter *e, enum emit_reg base, int32_t offset, int32_t word)
{
	memory(e, 1, 0xc7, 0, base, offset);
	word32(e, (uint32_t)word);
}

static void wide_imm(struct emitter *e, enum emit_reg to)
{
	rex(e, 1, 0, 0, emit_numbers[to]);
	byte(e, 0xb8u | (emit_numbers[to] & 7));
}

void emit_imm(struct emitter *e, enum emit_reg to, uint64_t word)
{
	if (word <= UINT32_MAX) {
		rex(e, 0, 0, 0, emit_numbers[to]);
		byte(e, 0xb8u | (emit_numbers[to] & 7));
		word32(e, (uint32_t)word);
	} else {
		wide_imm(e, to);
		word64(e, word);
	}
}
void emit_ref(struct emitter *e, enum emit_reg to, uint64_t word)
{
	wide_imm(e, to);
	emit_mark(e, e->refs, &e->ref_count, MAX_REFS, -1);
	word64(e, word);
}
void emit_record(struct emitter *e, enum emit_reg to, int record)
{
	wide_imm(e, to);
	emit_fix(e, FIX_RECORD)->record = record;
	word64(e, 0);
}
void emit_move(struct emitter *e, enum emit_reg to, enum emit_reg from)
{
	if (emit_numbers[to] != emit_numbers[from])
		both(e, 1, 0x89, emit_numbers[from], emit_numbers[to]);
}
void emit_address(struct emitter *e, enum emit_reg to, enum emit_reg base, int32_t offset)
{
	memory(e, 1, 0x8d, emit_numbers[to], base, offset);
}

/* ---- arithmetic ---- */

static const uint8_t op_digits[] = {
	[DO_ADD] = 0, [DO_SUB] = 5, [DO_AND] = 4, [DO_OR] = 1, [DO_CMP] = 7};

void emit_op(struct emitter *e, enum emit_op op, enum emit_reg to, enum emit_reg from)
{
	both(e, 1, op == DO_TEST ? 0x85u : op_digits[op] * 8u + 1, emit_numbers[from],
	     emit_numbers[to]);
}
static void immediate(struct emitter *e, int32_t word)
{
	if (word == (int8_t)word)
		byte(e, (uint8_t)word);
	else
		word32(e, (uint32_t)word);
}
void emit_op_imm(struct emitter *e, enum emit_op op, enum emit_reg to, int32_t word)
{
	both(e, 1, word == (int8_t)word ? 0x83 : 0x81, op_digits[op], emit_numbers[to]);
	immediate(e, word);
}
void emit_op_load(struct emitter *e, enum emit_op op, enum emit_reg to, enum emit_reg base,
		  int32_t offset)
{
	memory(e, 1, op_digits[op] * 8u + 3, emit_numbers[to], base, offset);
}
void emit_cmp_imm(struct emitter *e, enum emit_reg base, int32_t offset, int32_t word)
{
	memory(e, 1, word == (int8_t)word ? 0x83 : 0x81, 7, base, offset);
	immediate(e, word);
}
void emit_cmp_imm32(struct emitter *e, enum emit_reg base, int32_t offset, int32_t word)
{
	memory(e, 0, word == (int8_t)word ? 0x83 : 0x81, 7, base, offset);
	immediate(e, word);
}
void emit_test_bits(struct emitter *e, enum emit_reg reg, int bits)
{
	/* The low byte of rsi, rdi needs a REX prefix. */
	int n = emit_numbers[reg];

	if (n >= 4)
		byte(e, 0x40u | (unsigned)(n >> 3));
	byte(e, 0xf6);
	byte(e, 0xc0u | (n & 7));
	byte(e, (unsigned)bits);
}
void emit_shift_right(struct emitter *e, enum emit_reg to, int bits)
{
	both(e, 1, 0xc1, 7, emit_numbers[to]);
	byte(e, (unsigned)bits);
}
void emit_shift_left(struct emitter *e, enum emit_reg to, int bits)
{
	both(e, 1, 0xc1, 4, emit_numbers[to]);
	byte(e, (unsigned)bits);
}
void emit_multiply(struct emitter *e, enum emit_reg to, enum emit_reg from, int overflow)
{
	rex(e, 1, emit_numbers[to], 0, emit_numbers[from]);
	byte(e, 0x0f);
	byte(e, 0xaf);
	byte(e, 0xc0u | (unsigned)(emit_numbers[to] & 7) << 3 | (emit_numbers[from] & 7));
	emit_goto_if(e, IF_OVERFLOW, overflow);
}

/* Dividing 32 bits is several times faster, when both numbers fit. */
void emit_divide(struct emitter *e)
{
	static const uint8_t code[] = {
		0x48, 0x89, 0xc2,     /* mov rdx, rax */
		0x48, 0x09, 0xca,     /* or rdx, rcx */
		0x48, 0xc1, 0xea, 31, /* shr rdx, 31 */
		0x75, 4,              /* jne wide */
		0xf7, 0xf1,           /* div ecx; edx = 0 */
		0xeb, 5,              /* jmp done */
		0x48, 0x99,           /* wide: cqo */
		0x48, 0xf7, 0xf9,     /* idiv rcx */
	};

	for (size_t i = 0; i < sizeof code; i++)
		byte(e, code[i]);
}

static void indexed(struct emitter *e, unsigned opcode, int reg, enum emit_reg base,
		    enum emit_reg index, int scale, int32_t offset, int wide)
{
	int log2 = scale == 8 ? 3 : scale == 4 ? 2 : 0;
	int sib = log2 << 6 | (emit_numbers[index] & 7) << 3 | (emit_numbers[base] & 7);

	rex(e, wide, reg, emit_numbers[index], emit_numbers[base]);
	byte(e, opcode);
	displaced(e, reg, emit_numbers[base], offset, sib);
}
void emit_load_index(struct emitter *e, enum emit_reg to, enum emit_reg base, enum emit_reg index,
		     int scale, int32_t offset)
{
	indexed(e, 0x8b, emit_numbers[to], base, index, scale, offset, scale == 8);
}
void emit_store_index(struct emitter *e, enum emit_reg base, enum emit_reg index, int scale,
		      int32_t offset, enum emit_reg from)
{
	indexed(e, 0x89, emit_numbers[from], base, index, scale, offset, 1);
}

/* ---- floating point ---- */

static void scalar(struct emitter *e, unsigned opcode, int reg, enum emit_reg base, int32_t offset)
{
	byte(e, 0xf2);
	rex(e, 0, reg, 0, emit_numbers[base]);
	byte(e, 0x0f);
	byte(e, opcode);
	displaced(e, reg, emit_numbers[base], offset, -1);
}
void emit_fload(struct emitter *e, int to, enum emit_reg base, int32_t offset)
{
	scalar(e, 0x10, to, base, offset);
}
void emit_fstore(struct emitter *e, enum emit_reg base, int32_t offset, int from)
{
	scalar(e, 0x11, from, base, offset);
}
void emit_ffrom(struct emitter *e, int to, enum emit_reg from)
{
	byte(e, 0xf2);
	rex(e, 1, to, 0, emit_numbers[from]);
	byte(e, 0x0f);
	byte(e, 0x2a);
	byte(e, 0xc0u | (unsigned)to << 3 | (emit_numbers[from] & 7));
}
void emit_fop(struct emitter *e, enum emit_fop op, int to, int from)
{
	static const uint8_t opcodes[] = {
		[FDO_ADD] = 0x58, [FDO_SUB] = 0x5c, [FDO_MUL] = 0x59, [FDO_DIV] = 0x5e};

	byte(e, 0xf2);
	byte(e, 0x0f);
	byte(e, opcodes[op]);
	byte(e, 0xc0u | (unsigned)to << 3 | (unsigned)from);
}
void emit_fcompare(struct emitter *e, enum emit_fcmp cmp, int left, int right)
{
	static const uint8_t predicates[] = {[FCMP_EQ] = 0, [FCMP_LT] = 1, [FCMP_LE] = 2};

	byte(e, 0xf2); /* cmpsd left, right, predicate: all ones when it holds */
	byte(e, 0x0f);
	byte(e, 0xc2);
	byte(e, 0xc0u | (unsigned)left << 3 | (unsigned)right);
	byte(e, predicates[cmp]);
	byte(e, 0x66); /* movd eax, left */
	byte(e, 0x0f);
	byte(e, 0x7e);
	byte(e, 0xc0u | (unsigned)left << 3);
	byte(e, 0x85); /* test eax, eax */
	byte(e, 0xc0);
}

/* ---- control ---- */

static const uint8_t conditions[] = {
	[IF_EQ] = 4,  [IF_NE] = 5,    [IF_LT] = 12,      [IF_LE] = 14,   [IF_GT] = 15,
	[IF_GE] = 13, [IF_BELOW] = 2, [IF_ABOVE_EQ] = 3, [IF_ABOVE] = 7, [IF_OVERFLOW] = 0};

void emit_goto(struct emitter *e, int label)
{
	byte(e, 0xe9);
	emit_fix(e, FIX_LABEL)->label = label;
	word32(e, 0);
}
void emit_goto_if(struct emitter *e, enum emit_cond cond, int label)
{
	byte(e, 0x0f);
	byte(e, 0x80u | conditions[cond]);
	emit_fix(e, FIX_LABEL)->label = label;
	word32(e, 0);
}
void emit_call(struct emitter *e, const void *function)
{
	byte(e, 0xe8);
	emit_fix(e, FIX_FUNCTION)->function = function;
	word32(e, 0);
}
void emit_tail(struct emitter *e, const void *function)
{
	byte(e, 0xe9);
	emit_fix(e, FIX_FUNCTION)->function = function;
	word32(e, 0);
}
void emit_call_at(struct emitter *e, enum emit_reg base, int32_t offset)
{
	memory(e, 0, 0xff, 2, base, offset);
}
void emit_jump_at(struct emitter *e, enum emit_reg base, int32_t offset)
{
	memory(e, 0, 0xff, 4, base, offset);
}
void emit_return(struct emitter *e)
{
	byte(e, 0xc3);
}
void emit_enter(struct emitter *e)
{
	byte(e, 0x55);
	both(e, 1, 0x89, 4, 5);
}
void emit_leave(struct emitter *e)
{
	byte(e, 0x5d);
}
uint32_t emit_site_field(enum emit_site kind)
{
	return kind == SITE_JUMP_IF ? 2 : 1;
}

void emit_site(struct emitter *e, enum emit_site kind, enum emit_cond cond, int record, int exit)
{
	uint32_t field = e->used[e->section] + emit_site_field(kind);
	unsigned pad = (field & 7) <= 4 ? 0 : 8 - (field & 7);

	/* Prefixes without a meaning: a nop would be one more instruction between a comparison and
	 * its jump, which the processor fuses. */
	for (unsigned i = 0; i < pad; i++)
		byte(e, 0x2e);
	if (!emit_add_site(e, kind, record, exit))
		return;
	if (kind == SITE_JUMP_IF) {
		byte(e, 0x0f);
		byte(e, 0x80u | conditions[cond]);
	} else {
		byte(e, kind == SITE_CALL ? 0xe8 : 0xe9);
	}
	word32(e, 0);
}

void emit_patch_point(struct emitter *e, int exit)
{
	if (e->is_arena)
		return;
	emit_mark(e, e->points, &e->point_count, MAX_POINTS, exit);
	byte(e, 0xa9);
	word32(e, 0);
}

/* ---- placing ---- */

int emit_reaches(const uint8_t *exec, const void *target)
{
	intptr_t distance = (intptr_t)target - (intptr_t)(exec + 4);

	return distance == (int32_t)distance;
}
void emit_fill_rel(uint8_t *write, const uint8_t *exec, const void *target)
{
	int32_t distance = (int32_t)((intptr_t)target - (intptr_t)(exec + 4));

	memcpy(write, &distance, sizeof distance);
}
void emit_patch_rel(uint8_t *at, const void *target)
{
	int32_t distance = (int32_t)((intptr_t)target - (intptr_t)(at + 4));

	__asm__ volatile("movl %1, %0" : "=m"(*(uint8_t(*)[4])at) : "r"(distance) : "memory");
}
void emit_publish(const uint8_t *exec, uint32_t bytes)
{
	(void)exec; /* stores reach the instruction cache without help */
	(void)bytes;
}

void emit_arena_stub(uint8_t *write, const uint8_t *exec, const void *record)
{
	write[0] = 0x48; /* mov rax, record; jmp thunk */
	write[1] = 0xb8;
	memcpy(write + 2, &record, 8);
	write[10] = 0xe9;
	emit_fill_rel(write + 11, exec + 11, jit_arena_thunk);
	write[15] = 0xcc;
}
