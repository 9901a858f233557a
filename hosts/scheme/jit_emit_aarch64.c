/* SPDX-License-Identifier: MIT
 * jit_emit_aarch64.c: the emitter of aarch64, with all encodings of the JIT; the fixed pieces of
 * code are in jit_pieces_aarch64.c. x19 holds the context, x20 the frame. x16 and x17 are the
 * emitter's own: x16 for a value, x17 for an offset or an immediate. Neither lives from one
 * operation to the next, nor across a branch, as veneers use both.
 *
 * A change of running code is a change of one word, from B, BL or NOP to B, BL or NOP: a
 * conditional site is the opposite condition over a B. Words that the collector reads, and words
 * known only with the place of the code, are literals behind the cold code. Every block begins with
 * a landing pad, because stubs and cells lead to blocks through a register.
 */
#include "jit_emit.h"

#include <string.h>

const char emit_objdump[] = "$(command -v aarch64-linux-gnu-objdump || echo objdump) -m aarch64";
const intptr_t emit_arena_reach = 128 << 20;

enum { VALUE = 16, OTHER = 17, ZERO = 31, STACK = 31 };
const uint8_t emit_numbers[] = {
	[R0] = 0,   [R1] = 9,   [R2] = 10,  [R3] = 11,   [ARG0] = 0,   [ARG1] = 1,
	[ARG2] = 2, [ARG3] = 3, [CTX] = 19, [FPTR] = 20, [FRAME] = 29, [SP] = STACK};

#define NOP 0xd503201fu
#define BTI_C 0xd503245fu /* for BLR, and for BR of x16 or x17 */
#define B 0x14000000u
#define BL 0x94000000u
#define B_COND 0x54000000u
#define LDR_LITERAL 0x58000000u

static void word(struct emitter *e, uint32_t insn)
{
	emit_bytes(e, &insn, sizeof insn);
}
/* d = n op m, for instructions with Rm, Rn and Rd in their usual places. */
static void three(struct emitter *e, uint32_t opcode, unsigned d, unsigned n, unsigned m)
{
	word(e, opcode | m << 16 | n << 5 | d);
}

void emit_start(struct emitter *e, int is_arena)
{
	emit_reset(e, is_arena);
	word(e, BTI_C);
}

/* ---- literals ---- */

static void load_literal(struct emitter *e, enum emit_reg to, int kind, uint64_t content)
{
	struct emit_literal *literal = e->literals, *end = literal + e->literal_count;

	while (literal < end && ((int)literal->kind != kind || literal->word != content))
		literal++;
	if (literal == end) {
		if (e->literal_count == MAX_LITERALS) {
			e->overflowed = 1;
			return;
		}
		e->literal_count++;
		literal->kind = kind == LITERAL_REF ? LITERAL_REF : LITERAL_RECORD;
		literal->word = content;
		literal->label = emit_label(e);
	}
	emit_fix(e, FIX_LABEL)->label = literal->label;
	word(e, LDR_LITERAL | emit_numbers[to]);
}

void emit_end(struct emitter *e)
{
	emit_in(e, COLD);
	while (e->literal_count && e->used[COLD] & 7)
		word(e, NOP);
	for (int i = 0; i < e->literal_count; i++) {
		const struct emit_literal *literal = &e->literals[i];
		emit_bind(e, literal->label);
		if (literal->kind == LITERAL_REF)
			emit_mark(e, e->refs, &e->ref_count, MAX_REFS, -1);
		else
			emit_fix(e, FIX_RECORD)->record = (int)literal->word;
		emit_bytes(e, &literal->word, sizeof literal->word);
	}
}

void emit_ref(struct emitter *e, enum emit_reg to, uint64_t content)
{
	load_literal(e, to, LITERAL_REF, content);
}
void emit_record(struct emitter *e, enum emit_reg to, int record)
{
	load_literal(e, to, LITERAL_RECORD, (uint64_t)record);
}

/* ---- immediates ---- */

static void immediate(struct emitter *e, unsigned to, uint64_t content)
{
	int zeros = 0, ones = 0, is_first = 1;

	for (int shift = 0; shift < 64; shift += 16) {
		zeros += (uint16_t)(content >> shift) == 0;
		ones += (uint16_t)(content >> shift) == 0xffff;
	}
	uint16_t rest = ones > zeros ? 0xffff : 0;
	for (unsigned part = 0; part < 4; part++) {
		uint16_t bits = (uint16_t)(content >> (16 * part));
		if (bits == rest && !(is_first && part == 3))
			continue;
		uint32_t opcode = !is_first ? 0xf2800000 /* movk */
				  : rest    ? 0x92800000 /* movn */
					    : 0xd2800000 /* movz */;
		if (is_first && rest)
			bits = (uint16_t)~bits;
		word(e, opcode | part << 21 | (uint32_t)bits << 5 | to);
		is_first = 0;
	}
}

/* A run of ones, as encoded in bits 22 to 10 of logical instructions. Returns 0 for other words. */
static uint32_t run_of_ones(uint64_t bits)
{
	if (bits == 0 || bits == UINT64_MAX)
		return 0;
	unsigned low = (unsigned)__builtin_ctzll(bits);
	uint64_t run = bits >> low;
	if (run & (run + 1))
		return 0;
	unsigned ones = (unsigned)__builtin_popcountll(run);
	return 1u << 22 | ((64 - low) & 63) << 16 | (ones - 1) << 10;
}

/* to = from + n or from - n, with flags or without. */
static void add_immediate(struct emitter *e, unsigned to, unsigned from, int64_t n, int subtracts,
			  int sets_flags)
{
	if (n < 0) {
		n = -n;
		subtracts = !subtracts;
	}
	uint32_t choice = (uint32_t)subtracts << 30 | (uint32_t)sets_flags << 29;
	if (n <= 0xfff) {
		word(e, 0x91000000 | choice | (uint32_t)n << 10 | from << 5 | to);
	} else if ((n & 0xfff) == 0 && n <= 0xfff000) {
		word(e, 0x91400000 | choice | (uint32_t)n >> 12 << 10 | from << 5 | to);
	} else {
		immediate(e, OTHER, (uint64_t)n);
		/* In this form 31 is sp; as the destination of a comparison it is zero. */
		three(e, 0x8b206000 | choice, to, from, OTHER);
	}
}

void emit_imm(struct emitter *e, enum emit_reg to, uint64_t content)
{
	immediate(e, emit_numbers[to], content);
}

/* ---- moves ---- */

/* `opcode` is the form with a scaled offset of 12 bits; the forms with an unscaled offset and with
 * a register follow from `opcode`. */
static void memory(struct emitter *e, uint32_t opcode, unsigned reg, unsigned base, int32_t offset)
{
	unsigned log2 = opcode >> 30;

	if (offset >= 0 && (offset & ((1 << log2) - 1)) == 0 && offset >> log2 <= 0xfff) {
		word(e, opcode | (uint32_t)offset >> log2 << 10 | base << 5 | reg);
	} else if (offset >= -256 && offset < 256) {
		opcode &= ~(1u << 24);
		word(e, opcode | ((uint32_t)offset & 0x1ff) << 12 | base << 5 | reg);
	} else {
		immediate(e, OTHER, (uint64_t)(int64_t)offset);
		three(e, (opcode & ~(1u << 24)) | 0x206800, reg, base, OTHER);
	}
}
#define LDR 0xf9400000u
#define LDR_32 0xb9400000u
#define STR 0xf9000000u
#define LDR_D 0xfd400000u
#define STR_D 0xfd000000u

void emit_load(struct emitter *e, enum emit_reg to, enum emit_reg base, int32_t offset)
{
	memory(e, LDR, emit_numbers[to], emit_numbers[base], offset);
}
void emit_store(struct emitter *e, enum emit_reg base, int32_t offset, enum emit_reg from)
{
	memory(e, STR, emit_numbers[from], emit_numbers[base], offset);
}
void emit_store_imm(struct emitter *e, enum emit_reg base, int32_t offset, int32_t content)
{
	if (content)
		immediate(e, VALUE, (uint64_t)(int64_t)content);
	memory(e, STR, content ? VALUE : ZERO, emit_numbers[base], offset);
}
void emit_move(struct emitter *e, enum emit_reg to, enum emit_reg from)
{
	if (emit_numbers[to] != emit_numbers[from])
		three(e, 0xaa0003e0, emit_numbers[to], 0, emit_numbers[from]);
}
void emit_address(struct emitter *e, enum emit_reg to, enum emit_reg base, int32_t offset)
{
	add_immediate(e, emit_numbers[to], emit_numbers[base], offset, 0, 0);
}

static void scale_index(struct emitter *e, enum emit_reg base, enum emit_reg index, int scale)
{
	uint32_t log2 = scale == 8 ? 3 : scale == 4 ? 2 : 0;

	three(e, 0x8b000000 | log2 << 10, VALUE, emit_numbers[base], emit_numbers[index]);
}
void emit_load_index(struct emitter *e, enum emit_reg to, enum emit_reg base, enum emit_reg index,
		     int scale, int32_t offset)
{
	scale_index(e, base, index, scale);
	memory(e, scale == 8 ? LDR : LDR_32, emit_numbers[to], VALUE, offset);
}
void emit_store_index(struct emitter *e, enum emit_reg base, enum emit_reg index, int scale,
		      int32_t offset, enum emit_reg from)
{
	scale_index(e, base, index, scale);
	memory(e, STR, emit_numbers[from], VALUE, offset);
}

/* ---- arithmetic ---- */

static void op_number(struct emitter *e, enum emit_op op, unsigned to, unsigned from)
{
	static const uint32_t opcodes[] = {
		[DO_ADD] = 0xab000000, [DO_SUB] = 0xeb000000, [DO_AND] = 0xea000000,
		[DO_OR] = 0xaa000000,  [DO_CMP] = 0xeb000000, [DO_TEST] = 0xea000000};

	if (op == DO_CMP && to == STACK)
		three(e, 0xeb206000, ZERO, STACK, from);
	else
		three(e, opcodes[op], op == DO_CMP || op == DO_TEST ? ZERO : to, to, from);
}
void emit_op(struct emitter *e, enum emit_op op, enum emit_reg to, enum emit_reg from)
{
	op_number(e, op, emit_numbers[to], emit_numbers[from]);
}

static void op_immediate(struct emitter *e, enum emit_op op, unsigned to, int32_t n)
{
	uint32_t run = run_of_ones((uint64_t)(int64_t)n);

	if (op == DO_ADD || op == DO_SUB || op == DO_CMP) {
		add_immediate(e, op == DO_CMP ? ZERO : to, to, n, op != DO_ADD, 1);
	} else if (run) {
		uint32_t opcode = op == DO_OR ? 0xb2000000 : 0xf2000000;
		word(e, opcode | run | to << 5 | (op == DO_TEST ? ZERO : to));
	} else {
		immediate(e, OTHER, (uint64_t)(int64_t)n);
		op_number(e, op, to, OTHER);
	}
}
void emit_op_imm(struct emitter *e, enum emit_op op, enum emit_reg to, int32_t n)
{
	op_immediate(e, op, emit_numbers[to], n);
}
void emit_op_load(struct emitter *e, enum emit_op op, enum emit_reg to, enum emit_reg base,
		  int32_t offset)
{
	memory(e, LDR, VALUE, emit_numbers[base], offset);
	op_number(e, op, emit_numbers[to], VALUE);
}
void emit_cmp_imm(struct emitter *e, enum emit_reg base, int32_t offset, int32_t n)
{
	memory(e, LDR, VALUE, emit_numbers[base], offset);
	op_immediate(e, DO_CMP, VALUE, n);
}
void emit_cmp_imm32(struct emitter *e, enum emit_reg base, int32_t offset, int32_t n)
{
	memory(e, LDR_32, VALUE, emit_numbers[base], offset);
	immediate(e, OTHER, (uint32_t)n);
	three(e, 0x6b000000, ZERO, VALUE, OTHER);
}
void emit_test_bits(struct emitter *e, enum emit_reg reg, int bits)
{
	op_immediate(e, DO_TEST, emit_numbers[reg], bits);
}
void emit_shift_right(struct emitter *e, enum emit_reg to, int bits)
{
	three(e, 0x9340fc00, emit_numbers[to], emit_numbers[to], (unsigned)bits);
}
void emit_shift_left(struct emitter *e, enum emit_reg to, int bits)
{
	uint32_t left = (uint32_t)bits & 63;

	three(e, 0xd3400000 | (63 - left) << 10, emit_numbers[to], emit_numbers[to],
	      (64 - left) & 63);
}
/* The product fits if the upper half is all sign. */
void emit_multiply(struct emitter *e, enum emit_reg to, enum emit_reg from, int overflow)
{
	three(e, 0x9b407c00, VALUE, emit_numbers[to], emit_numbers[from]); /* smulh */
	three(e, 0x9b007c00, emit_numbers[to], emit_numbers[to], emit_numbers[from]);
	three(e, 0xeb80fc00, ZERO, VALUE, emit_numbers[to]); /* cmp x16, to, asr 63 */
	emit_goto_if(e, IF_NE, overflow);
}
void emit_divide(struct emitter *e)
{
	three(e, 0x9ac00c00, VALUE, emit_numbers[R0], emit_numbers[R1]);
	three(e, 0x9b008000 | (uint32_t)emit_numbers[R0] << 10, emit_numbers[R2], VALUE,
	      emit_numbers[R1]);
	three(e, 0xaa0003e0, emit_numbers[R0], 0, VALUE);
}

/* ---- floating point ---- */

void emit_fload(struct emitter *e, int to, enum emit_reg base, int32_t offset)
{
	memory(e, LDR_D, (unsigned)to, emit_numbers[base], offset);
}
void emit_fstore(struct emitter *e, enum emit_reg base, int32_t offset, int from)
{
	memory(e, STR_D, (unsigned)from, emit_numbers[base], offset);
}
void emit_ffrom(struct emitter *e, int to, enum emit_reg from)
{
	three(e, 0x9e620000, (unsigned)to, emit_numbers[from], 0);
}
void emit_fop(struct emitter *e, enum emit_fop op, int to, int from)
{
	static const uint32_t opcodes[] = {[FDO_ADD] = 0x1e602800,
					   [FDO_SUB] = 0x1e603800,
					   [FDO_MUL] = 0x1e600800,
					   [FDO_DIV] = 0x1e601800};

	three(e, opcodes[op], (unsigned)to, (unsigned)to, (unsigned)from);
}
/* The tested conditions do not hold for a NaN: a NaN sets the flags of "greater", with overflow. */
void emit_fcompare(struct emitter *e, enum emit_fcmp cmp, int left, int right)
{
	static const uint8_t opposites[] = {
		[FCMP_EQ] = 1 /* ne */, [FCMP_LT] = 5 /* pl */, [FCMP_LE] = 8 /* hi */};

	three(e, 0x1e602000, 0, (unsigned)left, (unsigned)right);
	word(e, 0x9a9f07e0 | (uint32_t)opposites[cmp] << 12 | VALUE); /* cset x16 */
	op_immediate(e, DO_CMP, VALUE, 0);
}

/* ---- control ---- */

static const uint8_t conditions[] = {
	[IF_EQ] = 0,  [IF_NE] = 1,    [IF_LT] = 11,      [IF_LE] = 13,   [IF_GT] = 12,
	[IF_GE] = 10, [IF_BELOW] = 3, [IF_ABOVE_EQ] = 2, [IF_ABOVE] = 8, [IF_OVERFLOW] = 6};

void emit_goto(struct emitter *e, int label)
{
	emit_fix(e, FIX_LABEL)->label = label;
	word(e, B);
}
void emit_goto_if(struct emitter *e, enum emit_cond cond, int label)
{
	emit_fix(e, FIX_LABEL)->label = label;
	word(e, B_COND | conditions[cond]);
}
void emit_call(struct emitter *e, const void *function)
{
	emit_fix(e, FIX_FUNCTION)->function = function;
	word(e, BL);
}
void emit_tail(struct emitter *e, const void *function)
{
	emit_fix(e, FIX_FUNCTION)->function = function;
	word(e, B);
}
void emit_call_at(struct emitter *e, enum emit_reg base, int32_t offset)
{
	memory(e, LDR, VALUE, emit_numbers[base], offset);
	word(e, 0xd63f0000 | VALUE << 5); /* blr x16 */
}
void emit_jump_at(struct emitter *e, enum emit_reg base, int32_t offset)
{
	memory(e, LDR, VALUE, emit_numbers[base], offset);
	word(e, 0xd61f0000 | VALUE << 5); /* br x16 */
}
void emit_return(struct emitter *e)
{
	word(e, 0xd65f03c0);
}
void emit_enter(struct emitter *e)
{
	word(e, 0xa9bf7bfd); /* stp x29, x30, [sp, -16]! */
	word(e, 0x910003fd); /* mov x29, sp */
}
void emit_leave(struct emitter *e)
{
	word(e, 0xa8c17bfd); /* ldp x29, x30, [sp], 16 */
}

uint32_t emit_site_field(enum emit_site kind)
{
	return kind == SITE_JUMP_IF ? 4 : 0;
}

void emit_site(struct emitter *e, enum emit_site kind, enum emit_cond cond, int record, int exit)
{
	if (!emit_add_site(e, kind, record, exit))
		return;
	if (kind == SITE_JUMP_IF)
		word(e, B_COND | 2u << 5 | (conditions[cond] ^ 1u));
	word(e, kind == SITE_CALL ? BL : B);
}

void emit_patch_point(struct emitter *e, int exit)
{
	if (e->is_arena)
		return;
	emit_mark(e, e->points, &e->point_count, MAX_POINTS, exit);
	word(e, NOP);
}

/* ---- placing ---- */

/* The reach of B and BL; branches with a shorter reach, and loads, stay in their block. */
int emit_reaches(const uint8_t *exec, const void *target)
{
	intptr_t distance = (intptr_t)target - (intptr_t)exec;

	return distance >= -(128 << 20) && distance < 128 << 20;
}

static uint32_t lead_to(uint32_t insn, const uint8_t *exec, const void *target)
{
	uint32_t distance = (uint32_t)(((intptr_t)target - (intptr_t)exec) >> 2);

	if ((insn & 0x7c000000) == B)
		return (insn & 0xfc000000) | (distance & 0x3ffffff);
	return (insn & 0xff00001f) | (distance & 0x7ffff) << 5;
}
void emit_fill_rel(uint8_t *write, const uint8_t *exec, const void *target)
{
	uint32_t insn;

	memcpy(&insn, write, sizeof insn);
	insn = lead_to(insn, exec, target);
	memcpy(write, &insn, sizeof insn);
}
void emit_publish(const uint8_t *exec, uint32_t bytes)
{
	__builtin___clear_cache((char *)(uintptr_t)exec, (char *)(uintptr_t)exec + bytes);
}
void emit_patch_rel(uint8_t *at, const void *target)
{
	uint32_t *insn = (uint32_t *)(void *)at;

	__atomic_store_n(insn, lead_to(*insn, at, target), __ATOMIC_RELEASE);
	emit_publish(at, sizeof *insn);
}

void emit_arena_stub(uint8_t *write, const uint8_t *exec, const void *record)
{
	const uint32_t insns[] = {LDR_LITERAL | 2u << 5 | emit_numbers[R0], B};

	memcpy(write, insns, sizeof insns);
	emit_fill_rel(write + 4, exec + 4, jit_arena_thunk);
	memcpy(write + 8, &record, sizeof record);
}
