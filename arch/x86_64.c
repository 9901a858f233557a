/* SPDX-License-Identifier: MIT
 * x86_64.c: encodings of patch sites, diverters, stubs and veneers of x86-64, and register images
 * of signals. Nothing here allocates, takes a lock or makes a system call; every function but
 * ch__arch_stub_context_init is async-signal-safe. */
#define _GNU_SOURCE /* register names of ucontext */
#include "arch/arch.h"
#include "arch/fields.h"
#include "arch/registers.h"
#include "arch/stubs.h"

#include <cpuid.h>
#include <signal.h>
#include <stdatomic.h>
#include <ucontext.h>

_Static_assert(offsetof(struct ch__arch_stub_context, extended_bytes) == 8, "x86_64.S loads it");
_Static_assert(offsetof(struct ch__arch_stub_context, extended_mask) == 16, "x86_64.S loads it");
_Static_assert(offsetof(ucontext_t, uc_mcontext.gregs) == CH_ARCH_CONTEXT_AT, "x86_64.h");
_Static_assert(offsetof(struct ch__arch_saved, sp) == 48, "x86_64.S stores here");

enum {
	INT3 = 0xcc,
	JMP = 0xe9,
	CALL = 0xe8,
	TEST_EAX = 0xa9,
	FXSAVE_BYTES = 512,
	XSAVE_ALIGN = 64,
};

/* A displacement counts from its end. */
static bool field_reaches(uintptr_t exec, uintptr_t target)
{
	int64_t distance = (int64_t)(target - (exec + 4));
	return distance == (int32_t)distance;
}

static int32_t displacement(uintptr_t exec, uintptr_t target)
{
	CH_ASSERT(field_reaches(exec, target), "jump out of reach");
	return (int32_t)(target - (exec + 4));
}

void ch__arch_serialize(void)
{
	unsigned a = 0, b, c = 0, d;
	__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d) : : "memory");
}

static const uint8_t field_at[] = {
	[CH_JMP] = 1, [CH_JCC] = 2, [CH_CALL] = 1, [CH_LEA] = 3, [CH_LITERAL] = 0};

static bool is_instruction_of(enum ch_branch_kind kind, const uint8_t *read)
{
	switch (kind) {
	case CH_JMP:
		return read[0] == JMP;
	case CH_CALL:
		return read[0] == CALL;
	case CH_JCC:
		return read[0] == 0x0f && (read[1] & 0xf0) == 0x80;
	case CH_LEA: /* REX.W, any register: mod = 00, rm = 101 is rip-relative */
		return (read[0] & 0xfb) == 0x48 && read[1] == 0x8d && (read[2] & 0xc7) == 0x05;
	default:
		return false;
	}
}

bool ch__arch_may_change(uintptr_t exec, const uint8_t *from, const uint8_t *to, size_t bytes)
{
	(void)exec, (void)from, (void)to, (void)bytes;
	return true;
}

/* A displacement inside one aligned 8 need not be 4-aligned. C has no unaligned atomic; the
 * processor has: a mov inside one aligned 8 is one access (Intel SDM 3A, 8.1.1). The asm, here and
 * in field_target, makes sure of one instruction. */
static void write_field(enum ch_branch_kind kind, uint8_t *write, uintptr_t exec, uintptr_t target)
{
	int32_t value = displacement(exec, target);
	(void)kind;
	__asm__ volatile("movl %1, %0" : "=m"(*(uint8_t(*)[4])write) : "r"(value) : "memory");
}

static uintptr_t field_target(const uint8_t *read, uintptr_t exec)
{
	int32_t value;
	__asm__ volatile("movl %1, %0" : "=r"(value) : "m"(*(const uint8_t(*)[4])read) : "memory");
	return exec + 4 + (uintptr_t)(intptr_t)value;
}

/* --- diverter: `test eax, imm32` whose immediate is already the displacement of the jump --- */

void ch__arch_diverter_write(uint8_t *write, uintptr_t exec, uintptr_t target)
{
	write[0] = TEST_EAX;
	ch__arch_site_write(CH_JMP, write, exec, target);
}

bool ch__arch_diverter_is_there(const uint8_t *read)
{
	return read[0] == TEST_EAX;
}

bool ch__arch_diverter_is_valid(const uint8_t *read, uintptr_t exec, uintptr_t target)
{
	return read[0] == TEST_EAX && ch__arch_diverter_target(read, exec) == target;
}

void ch__arch_diverter_arm(uint8_t *write, uintptr_t exec, uintptr_t target)
{
	(void)exec, (void)target; /* the displacement is there already */
	__atomic_store_n(write, JMP, __ATOMIC_RELEASE);
}

bool ch__arch_diverter_is_armed(const uint8_t *read)
{
	return __atomic_load_n(read, __ATOMIC_ACQUIRE) == JMP;
}

static uint64_t encode_stub(uintptr_t exec, uintptr_t trampoline, uint32_t index)
{
	uint32_t distance = (uint32_t)displacement(exec + field_at[CH_CALL], trampoline);
	return CALL | (uint64_t)distance << 8 | (uint64_t)index << 40;
}

void ch__arch_stub_write(uint8_t *write, uintptr_t exec, uintptr_t trampoline, uint32_t index)
{
	uint64_t stub = encode_stub(exec, trampoline, index);
	CH_ASSERT(index < UINT32_C(1) << 24, "branch index too large for a stub");
	memcpy(write, &stub, CH_ARCH_STUB_BYTES);
}

/* Reads the last byte of the call too: four bytes at the return address may end beyond the pool.
 * The thread has just run these bytes, so code published them, which the thread sanitizer does not
 * see. */
__attribute__((no_sanitize("thread"))) uint32_t
ch__arch_stub_index(const uint8_t *read_return_address)
{
	uint32_t word;
	memcpy(&word, read_return_address - 1, 4);
	return word >> 8;
}

bool ch__arch_stub_is_valid(const uint8_t *read, uintptr_t exec, uintptr_t trampoline,
			    uint32_t index)
{
	uint64_t stub;
	memcpy(&stub, read, CH_ARCH_STUB_BYTES);
	return field_reaches(exec + field_at[CH_CALL], trampoline) &&
	       stub == encode_stub(exec, trampoline, index);
}

void ch__arch_stub_entry(void);

size_t ch__arch_trampoline_write(uint8_t *write, struct ch__arch_stub_context *context)
{
	static const uint8_t code[16] = {
		0xff, 0x35, 10,   0,    0, 0, /* push qword [rip + 10]: the context, at +16 */
		0xff, 0x25, 12,   0,    0, 0, /* jmp qword [rip + 12]: the stub entry, at +24 */
		INT3, INT3, INT3, INT3,
	};
	return ch__arch_put_literals(write, code, sizeof code, (uintptr_t)context,
				     (uintptr_t)ch__arch_stub_entry);
}

/* All argument registers, al (the count of vector registers of a call with variable arguments) and
 * r11 stay as they were. r10, which the ABI sets apart for the static chain, gets the payload. The
 * frame is for walks by frame pointers; the tables go by rsp. */
size_t ch__arch_template_write(enum ch_trampoline kind, uint8_t *write, uintptr_t target,
			       uint64_t payload)
{
	static const uint8_t framed[24] = {
		0xf3, 0x0f, 0x1e, 0xfa,       /* endbr64 */
		0x55,                         /* push rbp */
		0x48, 0x89, 0xe5,             /* mov rbp, rsp */
		0x4c, 0x8b, 0x15, 17, 0, 0, 0, /* mov r10, [rip + 17]: the payload, at +32 */
		0xff, 0x15, 3,    0,  0, 0,    /* call qword [rip + 3]: the target, at +24 */
		0x5d, 0xc3,                   /* pop rbp; ret */
		INT3,
	};
	static const uint8_t tail[24] = {
		0xf3, 0x0f, 0x1e, 0xfa,        /* endbr64 */
		0x4c, 0x8b, 0x15, 21, 0, 0, 0, /* mov r10, [rip + 21]: the payload, at +32 */
		0xff, 0x25, 7,    0,  0, 0,    /* jmp qword [rip + 7]: the target, at +24 */
		INT3, INT3, INT3, INT3, INT3, INT3, INT3,
	};
	return ch__arch_put_literals(write, kind == CH_TRAMPOLINE_FRAMED ? framed : tail,
				     sizeof framed, target, payload);
}

bool ch__arch_jump_reaches(uintptr_t exec, uintptr_t target)
{
	return ch__arch_site_reaches(CH_JMP, exec, target);
}

uintptr_t ch__arch_jump_target(const uint8_t *read, uintptr_t exec)
{
	return ch__arch_site_target(CH_JMP, read, exec);
}

void ch__arch_jump_write(uint8_t *write, uintptr_t exec, uintptr_t target)
{
	write[0] = JMP;
	ch__arch_site_write(CH_JMP, write, exec, target);
}

void ch__arch_veneer_write(uint8_t *write, uintptr_t target)
{
	static const uint8_t code[8] = {0xff, 0x25, 2,    0,
					0,    0,    INT3, INT3}; /* jmp qword [rip + 2] */
	uint64_t literal = target;
	memcpy(write, code, sizeof code);
	memcpy(write + sizeof code, &literal, sizeof literal);
}

uintptr_t ch__arch_veneer_target(const uint8_t *read)
{
	uint64_t literal;
	memcpy(&literal, read + 8, sizeof literal);
	return literal;
}

/* Leaf 13 of cpuid exists where the system uses xsave, and has the length of a standard-form image
 * with all state that the system enables (Intel SDM 1, 13.4.3). In a virtual machine each cpuid is
 * an exit, for microseconds: a process asks once. */
void ch__arch_stub_context_init(struct ch__arch_stub_context *context)
{
	static _Atomic(uint32_t) known; /* no order needed: every thread finds the same */
	unsigned a, b, c, d;
	uint32_t bytes = CH_LOAD_RELAXED(&known);
	if (!bytes && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_OSXSAVE)) {
		__cpuid_count(0xd, 0, a, b, c, d);
		bytes = CH_ROUND_UP(b, XSAVE_ALIGN);
		CH_STORE_RELAXED(&known, bytes);
	}
	context->extended_bytes = bytes;
	if (bytes) {
		__asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
		context->extended_mask = ch__arch_kept_state((uint64_t)d << 32 | a);
	}
}

/* An fxsave image. The rest of xsave follows (upper halves of vectors, masks, further registers) if
 * two words that fxsave reserves have a magic number and the whole length (Linux, asm/sigcontext.h,
 * struct _fpx_sw_bytes). */
uintptr_t ch__arch_context_vectors(const void *ucontext, uintptr_t *end)
{
	enum { AT_MAGIC = 464, AT_BYTES = 468, MOST_BYTES = 1 << 20 };
	const uint32_t magic = 0x46505853; /* FP_XSTATE_MAGIC1 */
	const uint8_t *state =
		(const void *)((const ucontext_t *)ucontext)->uc_mcontext.fpregs;
	uint32_t has, bytes;
	*end = (uintptr_t)state;
	if (!state)
		return 0;
	memcpy(&has, state + AT_MAGIC, sizeof has);
	memcpy(&bytes, state + AT_BYTES, sizeof bytes);
	*end += has == magic && bytes > FXSAVE_BYTES && bytes < MOST_BYTES ? bytes : FXSAVE_BYTES;
	return (uintptr_t)state;
}

uintptr_t ch__arch_context_return(const void *ucontext)
{
	return *(volatile uintptr_t *)ch__arch_context_sp(ucontext);
}

/* Four bytes of code, lowest first. Returns 0, which begins no instruction here, unless all are in
 * the page of the pc. Code may be patched meanwhile: sanitizers must not judge the read. */
__attribute__((no_sanitize("address", "thread"))) static uint32_t load_near(uintptr_t pc,
									    uintptr_t at)
{
	const volatile uint8_t *read = (const volatile uint8_t *)at;
	if ((pc ^ at) / CH_ARCH_SMALLEST_PAGE || (pc ^ (at + 3)) / CH_ARCH_SMALLEST_PAGE)
		return 0;
	return read[0] | (uint32_t)read[1] << 8 | (uint32_t)read[2] << 16 | (uint32_t)read[3] << 24;
}

/* push rbp; mov rbp, rsp, in either form of the mov */
static bool begins_frame(uint32_t code)
{
	return code == 0xe5894855 || code == 0xec8b4855;
}

/* A diverter may stand before the push, and ENDBR64 before or behind the diverter. The frame ends
 * with pop rbp or leave, then ret. */
__attribute__((no_sanitize("address", "thread"))) uintptr_t
ch__arch_unrecorded_return(const void *ucontext)
{
	enum { RET = 0xc3, RET_POP = 0xc2, ENDBR64_BYTES = 4 };
	const uint32_t endbr64 = 0xfa1e0ff3;
	uintptr_t pc = ch__arch_context_pc(ucontext), sp = ch__arch_context_sp(ucontext), at = pc;
	const volatile uintptr_t *stack = (const volatile uintptr_t *)sp;
	uint8_t first = *(const volatile uint8_t *)pc;
	if (sp % sizeof(uintptr_t))
		return 0;
	if (first == RET || first == RET_POP)
		return stack[0];
	if (begins_frame(load_near(pc, pc - 1)))
		return stack[1];
	if (load_near(pc, at) == endbr64)
		at += ENDBR64_BYTES;
	if ((load_near(pc, at) & 0xff) == TEST_EAX)
		at += CH_ARCH_DIVERTER_BYTES;
	if (load_near(pc, at) == endbr64)
		at += ENDBR64_BYTES;
	return begins_frame(load_near(pc, at)) ? stack[0] : 0;
}

/* INT3 is a trap: the pc is already behind the INT3. A fault, a step and a debug register leave the
 * pc at the instruction. */
uintptr_t ch__arch_trap_address(int signal, int code, const void *ucontext)
{
	bool is_int3 = signal == SIGTRAP && code != TRAP_TRACE && code != TRAP_HWBKPT;
	return ch__arch_context_pc(ucontext) - (is_int3 ? 1 : 0);
}

/* The byte of an INT3 does not show who wrote the INT3. */
bool ch__arch_trap_is_foreign(const uint8_t *read)
{
	(void)read;
	return false;
}

size_t ch__arch_constant_function_write(uint8_t *write, uint32_t value)
{
	write[0] = 0xb8; /* mov eax, imm32 */
	memcpy(write + 1, &value, 4);
	write[5] = 0xc3; /* ret */
	return 6;
}

/* Rotations of rdi by 128 bits in all: Valgrind reads them as a request. rax points to the words of
 * the request, rdx gets the answer. */
uintptr_t ch__arch_valgrind_ask(const uintptr_t words[6])
{
	uintptr_t answer = 0;
	__asm__ volatile("rolq $3, %%rdi; rolq $13, %%rdi; rolq $61, %%rdi; rolq $51, %%rdi\n\t"
			 "xchgq %%rbx, %%rbx"
			 : "+d"(answer)
			 : "a"(words)
			 : "cc", "memory", "rdi");
	return answer;
}
