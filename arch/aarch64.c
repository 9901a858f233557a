/* SPDX-License-Identifier: MIT
 * aarch64.c: encodings of patch sites, diverters, stubs and veneers of aarch64, and register images
 * of signals. Nothing here allocates, takes a lock or makes a system call; every function is
 * async-signal-safe.
 *
 * Concurrent modification: a core may execute a word while another core changes it only if both the
 * old and the new word are B, BL, NOP, BRK, ISB, SVC, HVC or SMC (Arm ARM, B2.6.5). So B and BL
 * change their target, NOP becomes B, and anything else that changes is an aligned literal of 8
 * bytes, which is read as data. Conditional branches and ADR never change: a site has a B behind
 * the condition, or a literal instead. Where a site's B does not reach the target, the stub leads
 * on by a literal.
 *
 * Every place that an indirect branch may reach has a landing pad (BTI), also where no page is
 * guarded. x16 and x17 are free at a call and at a branch (AAPCS64, 6.1.1: a linker's veneer may
 * change them): stubs and veneers use no other registers. */
#define _GNU_SOURCE /* fields of ucontext */
#include "arch/arch.h"
#include "arch/fields.h"
#include "arch/registers.h"
#include "arch/slots.h"

#include <ucontext.h>

_Static_assert(offsetof(ucontext_t, uc_mcontext.regs) == CH_ARCH_CONTEXT_AT, "aarch64.h");
_Static_assert(offsetof(struct ch__arch_saved, sp) == 160, "aarch64.S stores here");

static const uint32_t insn_nop = 0xd503201f;
static const uint32_t insn_bti_jc = 0xd50324df; /* a call or any jump may land here */
static const uint32_t insn_brk = 0xd4200000;    /* immediate in bits 5 to 20 */
static const uint32_t insn_b = 0x14000000;
static const uint32_t insn_bl = 0x94000000;
static const uint32_t insn_br_x16 = 0xd61f0200;
static const uint32_t insn_ret = 0xd65f03c0;
static const uint32_t insn_adr_x17 = 0x10000011;     /* immhi at bit 5, in units of 4 */
static const uint32_t insn_ldr_x16 = 0x58000010;     /* imm19 at bit 5, in units of 4 */
static const uint32_t insn_ldr_x15 = 0x5800000f;
static const uint32_t insn_stp_x16_x17 = 0xa9bf47f0; /* stp x16, x17, [sp, #-16]! */
static const uint32_t insn_movz_w0 = 0x52800000;
static const uint32_t insn_movk_w0_high = 0x72a00000; /* lsl #16 */

enum {
	BRANCH_BITS = 26,
	JCC_BRANCH_AT = 4,  /* the B behind the condition */
	LEA_LITERAL_AT = 8, /* behind LDR and B */
};

static uint32_t load_word(const uint8_t *at)
{
	uint32_t word;
	memcpy(&word, at, sizeof word);
	return word;
}

static uint32_t load_published(const uint8_t *at)
{
	return __atomic_load_n((const uint32_t *)(const void *)at, __ATOMIC_ACQUIRE);
}

static void store_published(uint8_t *at, uint32_t word)
{
	__atomic_store_n((uint32_t *)(void *)at, word, __ATOMIC_RELEASE);
}

static bool field_reaches(uintptr_t exec, uintptr_t target)
{
	int64_t words = (int64_t)(target - exec) / 4;
	return ((target - exec) & 3) == 0 && words >= -(1 << (BRANCH_BITS - 1)) &&
	       words < 1 << (BRANCH_BITS - 1);
}

static uint32_t encode_branch(uint32_t insn, uintptr_t exec, uintptr_t target)
{
	CH_ASSERT(field_reaches(exec, target), "jump out of reach");
	return insn | ((uint32_t)((target - exec) >> 2) & ((1u << BRANCH_BITS) - 1));
}

static uintptr_t branch_target(uint32_t word, uintptr_t exec)
{
	int64_t words = (int32_t)(word << (32 - BRANCH_BITS)) >> (32 - BRANCH_BITS);
	return exec + (uintptr_t)(words * 4);
}

static bool is_branch(uint32_t word, uint32_t insn)
{
	return (word & ~((1u << BRANCH_BITS) - 1)) == insn;
}

void ch__arch_serialize(void)
{
	__asm__ volatile("isb" ::: "memory");
}

static bool may_be_exchanged(uint32_t word)
{
	return is_branch(word, insn_b) || is_branch(word, insn_bl) || word == insn_nop ||
	       (word & 0xffe0001f) == insn_brk;
}

bool ch__arch_may_change(uintptr_t exec, const uint8_t *from, const uint8_t *to, size_t bytes)
{
	return bytes == 4 && exec % 4 == 0 && may_be_exchanged(load_word(from)) &&
	       may_be_exchanged(load_word(to));
}

/* B.cond, CBZ, CBNZ, TBZ or TBNZ to the instruction after the next one. */
static bool skips_one(uint32_t word)
{
	if ((word & 0xff000010) == 0x54000000 || (word & 0x7e000000) == 0x34000000)
		return (word >> 5 & 0x7ffff) == 2;
	return (word & 0x7e000000) == 0x36000000 && (word >> 5 & 0x3fff) == 2;
}

static bool is_instruction_of(enum ch_branch_kind kind, const uint8_t *read)
{
	switch (kind) {
	case CH_JMP:
		return is_branch(load_word(read), insn_b);
	case CH_CALL:
		return is_branch(load_word(read), insn_bl);
	case CH_JCC:
		return skips_one(load_word(read)) &&
		       is_branch(load_word(read + JCC_BRANCH_AT), insn_b);
	case CH_LEA: /* any register: ldr x, +8; b +12 */
		return (load_word(read) & ~31u) == (insn_ldr_x16 & ~31u) + (2u << 5) &&
		       load_word(read + 4) == insn_b + 3;
	default:
		return false;
	}
}

static const uint8_t field_at[] = {[CH_JMP] = 0,
				   [CH_JCC] = JCC_BRANCH_AT,
				   [CH_CALL] = 0,
				   [CH_LEA] = LEA_LITERAL_AT,
				   [CH_LITERAL] = 0};

static void write_field(enum ch_branch_kind kind, uint8_t *write, uintptr_t exec, uintptr_t target)
{
	store_published(write, encode_branch(kind == CH_CALL ? insn_bl : insn_b, exec, target));
}

static uintptr_t field_target(const uint8_t *read, uintptr_t exec)
{
	return branch_target(load_published(read), exec);
}

/* --- diverter: a NOP, whose target the caller knows, and a B once armed --- */

void ch__arch_diverter_write(uint8_t *write, uintptr_t exec, uintptr_t target)
{
	CH_ASSERT(field_reaches(exec, target), "jump out of reach");
	memcpy(write, &insn_nop, sizeof insn_nop);
}

bool ch__arch_diverter_is_there(const uint8_t *read)
{
	return ((uintptr_t)read & 3) == 0 && load_published(read) == insn_nop;
}

bool ch__arch_diverter_is_valid(const uint8_t *read, uintptr_t exec, uintptr_t target)
{
	return ch__arch_diverter_is_there(read) && field_reaches(exec, target);
}

void ch__arch_diverter_arm(uint8_t *write, uintptr_t exec, uintptr_t target)
{
	store_published(write, encode_branch(insn_b, exec, target));
}

bool ch__arch_diverter_is_armed(const uint8_t *read)
{
	return is_branch(load_published(read), insn_b);
}

/* A stub leaves x30, which may hold a caller's return address, alone. x17 has the address behind
 * the stub's code, which serves as a return address does (CH_ARCH_STUB_CALL_BYTES). */
static void put_slot_code(uint32_t code[SLOT_CODE_WORDS], uintptr_t address)
{
	code[0] = insn_bti_jc;
	code[1] = insn_ldr_x16 | (literal_at(address) / 4 - 1) << 5; /* words to the literal */
	code[2] = insn_adr_x17 | 2u << 5;
	code[3] = insn_br_x16;
}

void ch__arch_stub_entry(void);

size_t ch__arch_trampoline_write(uint8_t *write, struct ch__arch_stub_context *context)
{
	const uint32_t code[6] = {
		ch__arch_landing,
		insn_ldr_x16 | 5u << 5, /* the context, at +24 */
		insn_stp_x16_x17,
		insn_ldr_x16 | 5u << 5, /* the stub entry, at +32 */
		insn_br_x16,
		(uint32_t)ch__arch_traps,
	};
	return ch__arch_put_literals(write, code, sizeof code, (uintptr_t)context,
				     (uintptr_t)ch__arch_stub_entry);
}

/* All argument registers stay as they were, also x8, in which a caller passes the address of a
 * large result. x15 gets the payload, and x16 the target: a page of BTI takes a jump by x16 where
 * it takes a call. The frame is for walks by frame pointers; the tables go by sp. */
size_t ch__arch_template_write(enum ch_trampoline kind, uint8_t *write, uintptr_t target,
			       uint64_t payload)
{
	const uint32_t framed[8] = {
		ch__arch_landing,
		0xa9bf7bfd,             /* stp x29, x30, [sp, #-16]! */
		0x910003fd,             /* mov x29, sp */
		insn_ldr_x16 | 5u << 5, /* the target, at +32 */
		insn_ldr_x15 | 6u << 5, /* the payload, at +40 */
		0xd63f0200,             /* blr x16 */
		0xa8c17bfd,             /* ldp x29, x30, [sp], #16 */
		insn_ret,
	};
	const uint32_t tail[4] = {
		ch__arch_landing,
		insn_ldr_x16 | 3u << 5, /* the target, at +16 */
		insn_ldr_x15 | 4u << 5, /* the payload, at +24 */
		insn_br_x16,
	};
	return kind == CH_TRAMPOLINE_FRAMED
		       ? ch__arch_put_literals(write, framed, sizeof framed, target, payload)
		       : ch__arch_put_literals(write, tail, sizeof tail, target, payload);
}

/* The literal is aligned to 8 wherever the veneer begins. Views differ by whole pages. */
static size_t veneer_literal_at(uintptr_t address)
{
	return (address & 7) ? 12 : 16;
}

void ch__arch_veneer_write(uint8_t *write, uintptr_t target)
{
	size_t at = veneer_literal_at((uintptr_t)write);
	const uint32_t code[3] = {ch__arch_landing, insn_ldr_x16 | (uint32_t)(at - 4) / 4 << 5,
				  insn_br_x16};
	uint64_t literal = target;
	memcpy(write, code, sizeof code);
	ch__arch_fill_traps(write + sizeof code, CH_ARCH_VENEER_BYTES - sizeof code);
	memcpy(write + at, &literal, sizeof literal);
}

uintptr_t ch__arch_veneer_target(const uint8_t *read)
{
	uint64_t literal;
	memcpy(&literal, read + veneer_literal_at((uintptr_t)read), sizeof literal);
	return literal;
}

void ch__arch_stub_context_init(struct ch__arch_stub_context *context)
{
	(void)context;
}

/* Records follow each other. One kind of record has the address and the size of further records,
 * which lie later in the same frame (Linux, asm/sigcontext.h). */
uintptr_t ch__arch_context_vectors(const void *ucontext, uintptr_t *end)
{
	enum { HEAD_BYTES = 8, EXTRA_BYTES = 24, MOST_BYTES = 1 << 20 };
	const uint32_t extra = 0x45585401; /* EXTRA_MAGIC */
	const mcontext_t *context = &((const ucontext_t *)ucontext)->uc_mcontext;
	const uint8_t *records = context->__reserved;
	uintptr_t behind = (uintptr_t)(records + sizeof context->__reserved);
	uint32_t magic, bytes;
	*end = behind;
	for (uintptr_t at = (uintptr_t)records; at + EXTRA_BYTES <= behind; at += bytes) {
		uint64_t data;
		uint32_t data_bytes;
		memcpy(&magic, (const void *)at, sizeof magic);
		memcpy(&bytes, (const uint8_t *)at + 4, sizeof bytes);
		if (!magic || bytes < HEAD_BYTES || bytes > behind - at)
			break;
		if (magic != extra)
			continue;
		memcpy(&data, (const uint8_t *)at + HEAD_BYTES, sizeof data);
		memcpy(&data_bytes, (const uint8_t *)at + 2 * HEAD_BYTES, sizeof data_bytes);
		if (data - (uintptr_t)records < MOST_BYTES && data_bytes < MOST_BYTES &&
		    data + data_bytes > *end)
			*end = data + data_bytes;
	}
	return (uintptr_t)records;
}

uintptr_t ch__arch_context_return(const void *ucontext)
{
	return ch__arch_strip(ch__arch_context_word(ucontext, 30));
}

/* Returns 0, which is no instruction, outside the page of the pc. Code may be patched meanwhile. */
__attribute__((no_sanitize("address", "thread"))) static uint32_t load_near(uintptr_t pc,
									    uintptr_t at)
{
	return (pc ^ at) / CH_ARCH_SMALLEST_PAGE ? 0 : *(const volatile uint32_t *)at;
}

/* stp x29, x30, [sp, #-bytes]! */
static bool pushes_record(uint32_t word)
{
	return (word & 0xffc07fff) == 0xa9807bfd;
}

/* The frame begins with stp x29, x30; mov x29, sp. A landing pad, a diverter and PACIASP may stand
 * before that. The frame ends with the ldp of both, AUTIASP and a return. */
uintptr_t ch__arch_unrecorded_return(const void *ucontext)
{
	const uint32_t paciasp = 0xd503233f, autiasp = 0xd50323bf, retaa = 0xd65f0bff;
	const uint32_t mov_x29_sp = 0x910003fd;
	uintptr_t pc = ch__arch_context_pc(ucontext);
	if (pc % sizeof(uint32_t))
		return 0;
	uintptr_t at = pc;
	uint32_t word = load_near(pc, at);
	bool is_unrecorded = word == insn_ret || word == retaa || word == autiasp;
	is_unrecorded |= word == mov_x29_sp && pushes_record(load_near(pc, pc - 4));
	if (word == ch__arch_landing || word == insn_bti_jc)
		word = load_near(pc, at += 4);
	if (word == insn_nop)
		word = load_near(pc, at += CH_ARCH_DIVERTER_BYTES);
	is_unrecorded |= word == paciasp || pushes_record(word);
	return is_unrecorded ? ch__arch_context_return(ucontext) : 0;
}

/* BRK is a fault: the pc stays at the BRK. */
uintptr_t ch__arch_trap_address(int signal, int code, const void *ucontext)
{
	(void)signal, (void)code;
	return ch__arch_context_pc(ucontext);
}

bool ch__arch_trap_is_foreign(const uint8_t *read)
{
	uint32_t word = load_word(read);
	return (word & 0xffe0001f) == insn_brk && word != (uint32_t)ch__arch_traps;
}

size_t ch__arch_constant_function_write(uint8_t *write, uint32_t value)
{
	const uint32_t code[4] = {ch__arch_landing, insn_movz_w0 | (value & 0xffff) << 5,
				  insn_movk_w0_high | value >> 16 << 5, insn_ret};
	memcpy(write, code, sizeof code);
	return sizeof code;
}

/* Rotations of x12 by 128 bits in all: Valgrind reads them as a request. x4 points to the words of
 * the request, x3 gets the answer. */
uintptr_t ch__arch_valgrind_ask(const uintptr_t words[6])
{
	register uintptr_t x3 __asm__("x3") = 0;
	register const uintptr_t *x4 __asm__("x4") = words;
	__asm__ volatile("ror x12, x12, #3; ror x12, x12, #13; ror x12, x12, #51; "
			 "ror x12, x12, #61; orr x10, x10, x10"
			 : "+r"(x3)
			 : "r"(x4)
			 : "memory");
	return x3;
}
