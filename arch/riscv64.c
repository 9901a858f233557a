/* SPDX-License-Identifier: MIT
 * riscv64.c: encodings of patch sites, diverters, stubs and veneers of RV64GC, and register images
 * of signals. Nothing here allocates or takes a lock. The only system call flushes the calling
 * thread's instruction cache. Every function is async-signal-safe.
 *
 * Concurrent modification: the architecture promises nothing beyond fence.i. In practice an
 * instruction that is one naturally aligned 4-byte word is fetched whole, old or new, and an
 * aligned 8-byte load is one access. So a site changes one such word (a jal, or the lui that a jal
 * replaces) or a literal; auipc pairs never change. Where a site's jal does not reach the target,
 * the stub leads on by a literal. Stubs clobber t1 and t3, as linkers' stubs do (psABI, PLT). */
#define _GNU_SOURCE /* register names of ucontext */
#include "arch/arch.h"
#include "arch/fields.h"
#include "arch/registers.h"
#include "arch/slots.h"

#include <ucontext.h>

_Static_assert(offsetof(ucontext_t, uc_mcontext.__gregs) == CH_ARCH_CONTEXT_AT, "riscv64.h");
_Static_assert(offsetof(struct ch__arch_saved, sp) == 200, "riscv64.S stores here");
_Static_assert(sizeof(struct ch__arch_saved) == 208, "riscv64.S reserves it");

enum {
	C_EBREAK = 0x9002,
	/* Opcode and destination: the low 12 bits of jumps and of U-type instructions. */
	JAL_X0 = 0x06f,
	JAL_RA = 0x0ef,
	LUI_X0 = 0x037, /* a hint without effect; its immediate is that of a jal */
	LOW_12 = 0xfff,
	JAL_REACH = 1 << 20,
	AUIPC = 0x17,
	LD = 0x3003,
	BRANCH = 0x63,
	T1 = 6,
	T3 = 28,
	/* In an address-load site, from the first byte: auipc, ld, a jump over the literal. */
	LEA_LITERAL = 12,
	LEA_BYTES = 20,
};

static uint32_t load_word(const uint8_t *at)
{
	return __atomic_load_n((const uint32_t *)(const void *)at, __ATOMIC_ACQUIRE);
}

/* Another hart may be running the word. */
static void store_word(uint8_t *at, uint32_t word)
{
	__atomic_store_n((uint32_t *)(void *)at, word, __ATOMIC_RELEASE);
}

static bool field_reaches(uintptr_t exec, uintptr_t target)
{
	int64_t distance = (int64_t)(target - exec);
	return distance >= -JAL_REACH && distance < JAL_REACH && distance % 2 == 0;
}

/* Bits 31 to 12 of a jal: 20, 10:1, 11, 19:12. */
static uint32_t jal_field(uintptr_t exec, uintptr_t target)
{
	CH_ASSERT(field_reaches(exec, target), "jump out of reach");
	uint32_t d = (uint32_t)(target - exec);
	return (d >> 20 & 1) << 31 | (d >> 1 & 0x3ff) << 21 | (d >> 11 & 1) << 20 |
	       (d >> 12 & 0xff) << 12;
}

static uintptr_t jal_target(uint32_t word, uintptr_t exec)
{
	uint32_t d = (word >> 31) << 20 | (word >> 21 & 0x3ff) << 1 | (word >> 20 & 1) << 11 |
		     (word >> 12 & 0xff) << 12;
	return exec + (uintptr_t)((intptr_t)((uint64_t)d << 43) >> 43);
}

static uint32_t encode_ld(unsigned rd, unsigned base, unsigned offset)
{
	return LD | rd << 7 | base << 15 | offset << 20;
}

static uint32_t encode_sd(unsigned source, unsigned base, unsigned offset)
{
	return 0x3023 | base << 15 | source << 20 | (offset & 31) << 7 | (offset >> 5) << 25;
}

static uint32_t encode_jr(unsigned base)
{
	return 0x67 | base << 15;
}

/* auipc t1, 0; ld t3, literal(t1); jr t3. The target finds the jump's own address in t1. */
static void put_slot_code(uint32_t code[SLOT_CODE_WORDS], uintptr_t address)
{
	code[0] = AUIPC | T1 << 7;
	code[1] = encode_ld(T3, T1, literal_at(address));
	code[2] = encode_jr(T3);
}

/* Not by fence.i, which works on one hart: the thread may be on another hart afterwards. */
void ch__arch_serialize(void)
{
	enum { LOCAL = 1 }; /* SYS_RISCV_FLUSH_ICACHE_LOCAL of the kernel */
	__riscv_flush_icache(NULL, NULL, LOCAL);
}

/* Neither the old nor the new 4 bytes are two compressed instructions. */
bool ch__arch_may_change(uintptr_t exec, const uint8_t *from, const uint8_t *to, size_t bytes)
{
	return bytes == 4 && exec % 4 == 0 && (*from & *to & 3) == 3;
}

static const uint8_t field_at[] = {[CH_JMP] = 0,
				   [CH_JCC] = 4,
				   [CH_CALL] = 0,
				   [CH_LEA] = LEA_LITERAL,
				   [CH_LITERAL] = 0};

/* A branch over the next instruction, a jal. */
static bool is_branch_over_one(uint32_t word)
{
	enum { OFFSET_BITS = 0xfe000f80, OVER_ONE = 8 << 7 };
	uint32_t condition = word >> 12 & 7;
	return (word & 0x7f) == BRANCH && (word & OFFSET_BITS) == OVER_ONE && condition != 2 &&
	       condition != 3;
}

/* auipc rd, 0; ld rd, 12(rd); jal x0, 12 */
static bool is_address_load(const uint8_t *read)
{
	uint32_t first = load_word(read), rd = first >> 7 & 31;
	return first == (AUIPC | rd << 7) && rd != 0 &&
	       load_word(read + 4) == encode_ld(rd, rd, LEA_LITERAL) &&
	       load_word(read + 8) == (JAL_X0 | jal_field(0, LEA_BYTES - 8));
}

static bool is_instruction_of(enum ch_branch_kind kind, const uint8_t *read)
{
	switch (kind) {
	case CH_JMP:
		return (load_word(read) & LOW_12) == JAL_X0;
	case CH_CALL:
		return (load_word(read) & LOW_12) == JAL_RA;
	case CH_JCC:
		return is_branch_over_one(load_word(read)) &&
		       (load_word(read + 4) & LOW_12) == JAL_X0;
	case CH_LEA:
		return is_address_load(read);
	default:
		return false;
	}
}

static void write_field(enum ch_branch_kind kind, uint8_t *write, uintptr_t exec, uintptr_t target)
{
	(void)kind;
	store_word(write, (load_word(write) & LOW_12) | jal_field(exec, target));
}

static uintptr_t field_target(const uint8_t *read, uintptr_t exec)
{
	return jal_target(load_word(read), exec);
}

/* --- diverter: `lui x0` whose immediate is already the displacement of the jump --- */

void ch__arch_diverter_write(uint8_t *write, uintptr_t exec, uintptr_t target)
{
	store_word(write, LUI_X0 | jal_field(exec, target));
}

bool ch__arch_diverter_is_there(const uint8_t *read)
{
	return (uintptr_t)read % 4 == 0 && (load_word(read) & LOW_12) == LUI_X0;
}

bool ch__arch_diverter_is_valid(const uint8_t *read, uintptr_t exec, uintptr_t target)
{
	return ch__arch_diverter_is_there(read) && ch__arch_diverter_target(read, exec) == target;
}

void ch__arch_diverter_arm(uint8_t *write, uintptr_t exec, uintptr_t target)
{
	store_word(write, JAL_X0 | jal_field(exec, target));
}

bool ch__arch_diverter_is_armed(const uint8_t *read)
{
	return (load_word(read) & LOW_12) == JAL_X0;
}

void ch__arch_stub_entry(void);

enum { RA = 1, SP = 2, T2 = 7, S0 = 8 };

/* On entry t1 is the stub and t3 the trampoline's own address. */
size_t ch__arch_trampoline_write(uint8_t *write, struct ch__arch_stub_context *context)
{
	enum { LITERALS = 32 };
	static const uint32_t first[2] = {
		0xff010113,                                                /* addi sp, sp, -16 */
		0x13 | T1 << 7 | T1 << 15 | CH_ARCH_STUB_CALL_BYTES << 20, /* addi t1, t1, 12 */
	};
	uint32_t code[LITERALS / 4] = {
		first[0],
		first[1],
		encode_sd(T1, SP, 8),
		encode_ld(T1, T3, LITERALS),
		encode_sd(T1, SP, 0),
		encode_ld(T3, T3, LITERALS + 8),
		encode_jr(T3),
		C_EBREAK << 16 | C_EBREAK,
	};
	CH_ASSERT((uintptr_t)write % 8 == 0, "the trampoline's literals are not aligned");
	return ch__arch_put_literals(write, code, sizeof code, (uintptr_t)context,
				     (uintptr_t)ch__arch_stub_entry);
}

/* All argument registers stay as they were. t2, the register of the static chain (an extra argument
 * of nested functions), gets the payload; t1 is clobbered. The frame is for walks by frame
 * pointers; the tables go by sp. */
size_t ch__arch_template_write(enum ch_trampoline kind, uint8_t *write, uintptr_t target,
			       uint64_t payload)
{
	enum { AUIPC_AT = 16, FRAMED_BYTES = 48, TAIL_BYTES = 16 };
	const uint32_t framed[FRAMED_BYTES / 4] = {
		0xff010113, /* addi sp, sp, -16 */
		encode_sd(RA, SP, 8),
		encode_sd(S0, SP, 0),
		0x01010413, /* addi s0, sp, 16 */
		AUIPC | T1 << 7,
		encode_ld(T2, T1, FRAMED_BYTES - AUIPC_AT + 8),
		encode_ld(T1, T1, FRAMED_BYTES - AUIPC_AT),
		encode_jr(T1) | RA << 7, /* jalr t1 */
		encode_ld(RA, SP, 8),
		encode_ld(S0, SP, 0),
		0x01010113, /* addi sp, sp, 16 */
		encode_jr(RA),
	};
	const uint32_t tail[TAIL_BYTES / 4] = {
		AUIPC | T1 << 7,
		encode_ld(T2, T1, TAIL_BYTES + 8),
		encode_ld(T1, T1, TAIL_BYTES),
		encode_jr(T1),
	};
	return kind == CH_TRAMPOLINE_FRAMED
		       ? ch__arch_put_literals(write, framed, sizeof framed, target, payload)
		       : ch__arch_put_literals(write, tail, sizeof tail, target, payload);
}

void ch__arch_stub_context_init(struct ch__arch_stub_context *context)
{
	(void)context;
}

/* The literal is aligned wherever the veneer lies. */
void ch__arch_veneer_write(uint8_t *write, uintptr_t target)
{
	put_slot(write, target, (uint32_t)ch__arch_traps);
}

uintptr_t ch__arch_veneer_target(const uint8_t *read)
{
	return ch__arch_stub_leads_to(read);
}

enum { FLOATS_BYTES = 32 * 8, VECTORS_BYTES_MAX = 1 << 20 };

/* The latest possible end of the frame: an emulator's frame may be shorter than the kernel's. */
static uintptr_t frame_end(const ucontext_t *context, uintptr_t low)
{
	uintptr_t sp = (uintptr_t)context->uc_mcontext.__gregs[REG_SP];
	uintptr_t stack = (uintptr_t)context->uc_stack.ss_sp;
	if (sp - low < VECTORS_BYTES_MAX)
		return sp;
	return low - stack < context->uc_stack.ss_size ? stack + context->uc_stack.ss_size
						       : low + FLOATS_BYTES;
}

/* The room for f0 to f31 and fcsr ends with 8 bytes in which a first record begins; further records
 * follow (Linux, asm/sigcontext.h, struct __riscv_extra_ext_header). */
uintptr_t ch__arch_context_vectors(const void *ucontext, uintptr_t *end)
{
	enum { AT_RECORD = 520, HEAD_BYTES = 8 };
	const uint32_t vectors = 0x53465457, shadow_stack = 0x9487; /* RISCV_V_MAGIC, ZICFISS_ */
	const ucontext_t *context = ucontext;
	uintptr_t low = (uintptr_t)&context->uc_mcontext.__fpregs;
	uintptr_t limit = frame_end(context, low), at = low + AT_RECORD;
	uint32_t magic, bytes;
	for (*end = low + FLOATS_BYTES; at + HEAD_BYTES <= limit; *end = at += bytes) {
		memcpy(&magic, (const void *)at, sizeof magic);
		memcpy(&bytes, (const uint8_t *)at + 4, sizeof bytes);
		if ((magic != vectors && magic != shadow_stack) || bytes < HEAD_BYTES ||
		    bytes > limit - at)
			break;
	}
	return low;
}

uintptr_t ch__arch_context_return(const void *ucontext)
{
	return ch__arch_context_word(ucontext, REG_RA);
}

/* Loads an instruction of either length; returns 0, which is none, outside the page of the pc. */
__attribute__((no_sanitize("address", "thread"))) static uint32_t load_near(uintptr_t pc,
									    uintptr_t at)
{
	const volatile uint16_t *halves = (const volatile uint16_t *)at;
	if ((pc ^ at) / CH_ARCH_SMALLEST_PAGE)
		return 0;
	if ((halves[0] & 3) != 3)
		return halves[0];
	return (pc ^ (at + 2)) / CH_ARCH_SMALLEST_PAGE ? 0 : halves[0] | (uint32_t)halves[1] << 16;
}

/* addi sp, sp, bytes; c.addi and c.addi16sp, too */
static bool moves_sp(uint32_t insn)
{
	return (insn & 0x000fffff) == 0x00010113 || (insn & 0xffffef83) == 0x0101 ||
	       (insn & 0xffffef83) == 0x6101;
}
/* sd, or c.sdsp, of a register into the frame */
static bool saves(uint32_t insn, uint32_t number)
{
	return (insn & 0x01fff07f) == (0x00013023 | number << 20) ||
	       (insn & 0xffffe07f) == (0xe002 | number << 2);
}
/* addi s0, sp, bytes; c.addi4spn, too */
static bool sets_s0(uint32_t insn)
{
	return (insn & 0x000fffff) == 0x00010413 || (insn && (insn & 0xffffe01f) == 0);
}
static bool returns(uint32_t insn)
{
	return insn == 0x8082 || insn == encode_jr(1);
}

/* The instruction behind the instruction at `at`. */
static uint32_t load_next(uintptr_t pc, uintptr_t at)
{
	return load_near(pc, at + ((load_near(pc, at) & 3) == 3 ? 4 : 2));
}

/* The frame begins with addi sp; sd ra; sd s0; addi s0. A diverter may stand before that. The frame
 * ends with loads of both, addi sp and ret. */
uintptr_t ch__arch_unrecorded_return(const void *ucontext)
{
	uintptr_t pc = ch__arch_context_pc(ucontext), at = pc;
	if (pc % sizeof(uint16_t))
		return 0;
	uint32_t insn = load_near(pc, pc);
	bool is_unrecorded = returns(insn) || saves(insn, RA) || saves(insn, S0);
	is_unrecorded |= moves_sp(insn) && returns(load_next(pc, pc));
	is_unrecorded |= sets_s0(insn) &&
			 (saves(load_near(pc, pc - 4), S0) || saves(load_near(pc, pc - 2), S0));
	if ((insn & LOW_12) == LUI_X0)
		at += CH_ARCH_DIVERTER_BYTES;
	is_unrecorded |= moves_sp(load_near(pc, at)) && saves(load_next(pc, at), RA);
	return is_unrecorded ? ch__arch_context_return(ucontext) : 0;
}

/* ebreak is an exception, not a trap: the pc stays at the ebreak. */
uintptr_t ch__arch_trap_address(int signal, int code, const void *ucontext)
{
	(void)signal;
	(void)code;
	return ch__arch_context_pc(ucontext);
}

/* The 4-byte ebreak is foreign: compilers and debuggers write it over instructions of 4 bytes. */
bool ch__arch_trap_is_foreign(const uint8_t *read)
{
	uint16_t halves[2];
	memcpy(halves, read, sizeof halves);
	return halves[0] == 0x0073 && halves[1] == 0x0010;
}

size_t ch__arch_constant_function_write(uint8_t *write, uint32_t value)
{
	uint32_t low = value & LOW_12, high = (value + 0x800) & ~(uint32_t)LOW_12;
	uint32_t code[3] = {
		0x37 | 10 << 7 | high,                 /* lui a0, high */
		0x1b | 10 << 7 | 10 << 15 | low << 20, /* addiw a0, a0, low */
		encode_jr(1),                          /* ret */
	};
	memcpy(write, code, sizeof code);
	return sizeof code;
}

/* Shifts into x0, which are hints: Valgrind (3.25 and later) reads them as a request. a4 points to
 * the words of the request, a3 gets the answer. */
uintptr_t ch__arch_valgrind_ask(const uintptr_t words[6])
{
	register uintptr_t answer __asm__("a3") = 0;
	register const uintptr_t *request __asm__("a4") = words;
	__asm__ volatile(".option push\n\t"
			 ".option norvc\n\t"
			 "srli zero, zero, 3; srli zero, zero, 13\n\t"
			 "srli zero, zero, 51; srli zero, zero, 61\n\t"
			 "or a0, a0, a0\n\t"
			 ".option pop"
			 : "+r"(answer)
			 : "r"(request)
			 : "memory");
	return answer;
}
