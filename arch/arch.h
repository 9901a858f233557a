/* SPDX-License-Identifier: MIT
 * arch.h: the contract of an architecture: traps, patch sites, stubs, register images, CFI facts.
 * One .c and one .S implement it. `write` is an address in the writable view, `exec` the address
 * the bytes run at; all writers store with one aligned store where another core may be executing
 * the bytes. Nothing here calls the OS, save ch__arch_sync and ch__arch_serialize where only the
 * kernel can reach the instruction caches of all cores (riscv64).
 *
 * Site rules. x86-64 (AMD APM 2, 7.6.1): the bytes that change lie in one naturally aligned 8,
 * within one instruction. aarch64 (Arm ARM B2.6.5): one aligned word, and both the old and the new
 * one are B, BL, NOP or BRK; or an aligned literal of 8 bytes, which is data. riscv64: one
 * aligned word, jal, or the lui of x0 that a jal takes the place of; or such a literal. */
#ifndef CH_ARCH_ARCH_H
#define CH_ARCH_ARCH_H

#include "arch/base.h"

#if defined(__riscv)
#include <sys/cachectl.h>
#endif

#if defined(__x86_64__)
enum {
	CH_ARCH_TRAP_UNIT_BYTES = 1,  /* INT3 traps at every offset */
	CH_ARCH_STUB_BYTES = 8,       /* call rel32 + 24-bit branch index */
	CH_ARCH_STUB_CALL_BYTES = 5,  /* a return address into a stub is stub + 5 */
	CH_ARCH_STUB_LEADS_FAR = 0,   /* a site reaches the whole pool by itself */
	CH_ARCH_DIVERTER_BYTES = 5,   /* test eax, imm32 <-> jmp rel32 */
	CH_ARCH_VENEER_BYTES = 16,    /* jmp [rip + 2], pad, literal */
	CH_ARCH_RED_ZONE_BYTES = 128,
	CH_ARCH_HAS_LINK_REGISTER = 0, /* a call leaves its return address on the stack */
	CH_ARCH_RECORD_AT = 0,         /* of a frame's record, from its frame pointer */
	CH_ARCH_CONTEXT_WORDS = 17,   /* 16 general registers and the pc */
	CH_ARCH_SAVED_WORDS = 6,      /* callee-saved registers */
	CH_ARCH_TEMPLATE_BYTES = 44,  /* the longest template of a trampoline */
	CH_ARCH_ELF_MACHINE = 62,     /* EM_X86_64 */
	CH_ARCH_DWARF_FP = 6,         /* the frame pointer, in DWARF's numbers */
	CH_ARCH_LANDING_BYTES = 0,    /* before the diverter of a patchable entry */
	CH_ARCH_SITE_LEAST_BYTES = 5, /* the shortest site */
	CH_ARCH_POOL_LOG2_MAX = 30,   /* all of it and its runtime is within reach of a jump */
	CH_ARCH_FETCH_FOLLOWS = 1,    /* other cores run what was published, not what was there */
};
/* nongnu libunwind: the architecture in the names of its functions, its numbers of registers, and
 * the room that a cursor needs. */
#define CH_ARCH_NONGNU_NAME "x86_64"
enum {
	CH_ARCH_NONGNU_PC = 16,
	CH_ARCH_NONGNU_SP = 7,
	CH_ARCH_NONGNU_FP = 6,
	CH_ARCH_NONGNU_CURSOR_WORDS = 127
};
#elif defined(__aarch64__)
enum {
	CH_ARCH_TRAP_UNIT_BYTES = 4,   /* BRK; elsewhere an alignment fault */
	CH_ARCH_STUB_BYTES = 16,       /* bti jc; adr x17, index; b trampoline; index */
	CH_ARCH_STUB_CALL_BYTES = 12,  /* a return address into a stub, x17, is stub + 12 */
	CH_ARCH_STUB_LEADS_FAR = 0,
	CH_ARCH_DIVERTER_BYTES = 4,    /* nop <-> b */
	CH_ARCH_VENEER_BYTES = 24,     /* bti c; ldr x16, literal; br x16; the aligned literal */
	CH_ARCH_RED_ZONE_BYTES = 0,
	CH_ARCH_HAS_LINK_REGISTER = 1, /* a call leaves its return address in x30 */
	CH_ARCH_RECORD_AT = 0,
	CH_ARCH_CONTEXT_WORDS = 33,    /* x0 to x30, sp, pc */
	CH_ARCH_SAVED_WORDS = 20,      /* x19 to x30, d8 to d15 */
	CH_ARCH_TEMPLATE_BYTES = 52,   /* the longest template of a trampoline */
	CH_ARCH_ELF_MACHINE = 183,     /* EM_AARCH64 */
	CH_ARCH_DWARF_FP = 29,
	CH_ARCH_LANDING_BYTES = 4, /* bti c, which may not change, before a patchable entry */
	CH_ARCH_SITE_LEAST_BYTES = 4,
	CH_ARCH_POOL_LOG2_MAX = 26, /* B reaches 128 MiB, and the runtime lies before the pool */
	CH_ARCH_FETCH_FOLLOWS = 0, /* not before each has synchronized its context */
};
#define CH_ARCH_NONGNU_NAME "aarch64"
enum {
	CH_ARCH_NONGNU_PC = 32,
	CH_ARCH_NONGNU_SP = 31,
	CH_ARCH_NONGNU_FP = 29,
	CH_ARCH_NONGNU_CURSOR_WORDS = 250
};
#elif defined(__riscv) && __riscv_xlen == 64
enum {
	CH_ARCH_TRAP_UNIT_BYTES = 2,   /* c.ebreak traps at every halfword */
	CH_ARCH_STUB_BYTES = 24,       /* auipc, ld, jr, literal, branch index */
	CH_ARCH_STUB_CALL_BYTES = 12,  /* what stands for a return address into a stub */
	CH_ARCH_STUB_LEADS_FAR = 1,    /* jal reaches 1 MiB; the stub's literal leads on */
	CH_ARCH_DIVERTER_BYTES = 4,    /* lui x0, imm20 <-> jal x0, imm20 */
	CH_ARCH_VENEER_BYTES = 24,     /* auipc, ld, jr, pad, literal */
	CH_ARCH_RED_ZONE_BYTES = 0,
	CH_ARCH_HAS_LINK_REGISTER = 1, /* ra */
	CH_ARCH_RECORD_AT = -16,       /* the record ends where s0 points */
	CH_ARCH_CONTEXT_WORDS = 32,    /* x1 to x31 and the pc */
	CH_ARCH_SAVED_WORDS = 25,      /* s0 to s11, ra, fs0 to fs11 */
	CH_ARCH_TEMPLATE_BYTES = 68,   /* the longest template of a trampoline */
	CH_ARCH_ELF_MACHINE = 243,     /* EM_RISCV */
	CH_ARCH_DWARF_FP = 8,
	CH_ARCH_LANDING_BYTES = 0,
	CH_ARCH_SITE_LEAST_BYTES = 4,
	CH_ARCH_POOL_LOG2_MAX = 30, /* stubs lead anywhere */
	CH_ARCH_FETCH_FOLLOWS = 1,  /* publishing has each hart execute fence.i, and waits for it */
};
#define CH_ARCH_NONGNU_NAME "riscv"
enum {
	CH_ARCH_NONGNU_PC = 64,
	CH_ARCH_NONGNU_SP = 2,
	CH_ARCH_NONGNU_FP = 8,
	CH_ARCH_NONGNU_CURSOR_WORDS = 4096
};
#endif

/* Kinds of sites; the public header has the same values. By x86-64 | aarch64 | riscv64: */
enum ch__site {
	CH__SITE_JMP,     /* E9 rel32 | B | jal x0 */
	CH__SITE_JCC,     /* 0F 8x rel32 | B.cond, CBZ or TBZ over the B behind it, which changes |
			   * a branch over the jal x0 behind it, which changes */
	CH__SITE_CALL,    /* E8 rel32 | BL | jal ra */
	CH__SITE_LEA,     /* lea reg, [rip + disp32] | LDR of the literal behind the B behind it |
			   * auipc, ld of the literal behind the jal x0 behind them */
	CH__SITE_LITERAL, /* aligned 8-byte absolute address */
};

/* Registers at a branch site, laid out as struct ch_regs of the public header. */
struct ch__arch_regs {
	/* x86-64: rax rcx rdx rbx rsp rbp rsi rdi r8..r15, in encoding order; aarch64: x0 to x30,
	 * sp; riscv64: x0 to x31 */
	uint64_t gpr[32];
	uint64_t pc;    /* where to go on */
	uint64_t sp;    /* sp at the site */
	/* xsave/fxsave image; aarch64: q0 to q31, fpsr, fpcr; riscv64: f0 to f31, fcsr */
	void *extended;
};

/* What a stub's trampoline hands to the stub entry; embedded in the heap. hit() returns with
 * regs->pc set. */
struct ch__arch_stub_context {
	void (*hit)(struct ch__arch_stub_context *, struct ch__arch_regs *,
		    uintptr_t return_address);
	/* Read by the entry of x86-64 only. */
	uint64_t extended_bytes; /* size of the xsave image, multiple of 64; 0 = fxsave, 512 */
	uint64_t extended_mask;  /* state components that xsave keeps */
	uint64_t shadow_stack;   /* 1 = who has one leaves by dropping an entry and jumping */
};

/* Callee-saved registers, the link register, and sp of a thread that parks. */
struct ch__arch_saved {
	uintptr_t words[CH_ARCH_SAVED_WORDS];
	uintptr_t sp;
};

/* --- traps --- */
/* Any range: each address gets the byte that a unit of the trap has there. */
void ch__arch_fill_traps(uint8_t *write, size_t bytes);
bool ch__arch_are_traps(const uint8_t *read, size_t bytes);

/* --- caches: publish bytes written through another view; no system call on x86-64 and aarch64 ---
 */
#if defined(__x86_64__)
/* x86-64 snoops stores by physical address: only the compiler must not move them. */
static inline void ch__arch_sync(const uint8_t *exec, size_t bytes)
{
	(void)exec;
	(void)bytes;
	__asm__ volatile("" ::: "memory");
}
#elif defined(__aarch64__)
/* By the address that runs: data caches work by physical address, instruction caches need not. */
static inline void ch__arch_sync(const uint8_t *exec, size_t bytes)
{
	__builtin___clear_cache((char *)(uintptr_t)exec, (char *)(uintptr_t)exec + bytes);
}
#elif defined(__riscv)
/* fence.i is one core's, and a thread may move: the kernel reaches all cores (riscv_flush_icache).
 * By its name: clang makes __builtin___clear_cache a call of libgcc's function, which is empty. */
static inline void ch__arch_sync(const uint8_t *exec, size_t bytes)
{
	void *begin = (void *)(uintptr_t)exec;
	/* Old code would run. */
	if (CH_UNLIKELY(__riscv_flush_icache(begin, (char *)begin + bytes, 0) != 0))
		ch__panic("the system does not let code be published any more");
}
#endif

/* Whether the kernel was seen to store an aligned 8 bytes at once that are written to a process's
 * memory as to a file. */
#if defined(__x86_64__)
enum { CH_ARCH_FILE_STORES_WHOLE = 1 };
#else
enum { CH_ARCH_FILE_STORES_WHOLE = 0 };
#endif

/* The calling thread executes nothing that it fetched before: another core's stores to code that
 * it could see are what it runs from here on. */
void ch__arch_serialize(void);

/* --- Valgrind: six words, the request and its arguments; 0 where no Valgrind runs, and then no
 * effect --- */
uintptr_t ch__arch_valgrind_ask(const uintptr_t words[6]) CH_COLD;

/* --- sites --- */
/* Whether a well-formed site of the kind starts at read (exec gives its alignment); reads the bytes
 * of a site of the kind. */
bool ch__arch_site_is_valid(enum ch__site kind, const uint8_t *read, uintptr_t exec);
bool ch__arch_site_reaches(enum ch__site kind, uintptr_t exec, uintptr_t target);
void ch__arch_site_write(enum ch__site kind, uint8_t *write, uintptr_t exec, uintptr_t target);
uintptr_t ch__arch_site_target(enum ch__site kind, const uint8_t *read, uintptr_t exec);
size_t ch__arch_site_bytes(enum ch__site kind, const uint8_t *read);

/* --- diverter: a patch point or a patchable entry: falls through, or once armed jumps to its
 * target, which is the same in each call --- */
void ch__arch_diverter_write(uint8_t *write, uintptr_t exec, uintptr_t target);
/* Whether the instruction of an unarmed diverter stands there, whatever it leads to. */
bool ch__arch_diverter_is_there(const uint8_t *read);
bool ch__arch_diverter_reaches(uintptr_t exec, uintptr_t target);
/* Whether an unarmed one stands there, which leads to the target if its bytes say where (x86-64,
 * riscv64). */
bool ch__arch_diverter_is_valid(const uint8_t *read, uintptr_t exec, uintptr_t target);
void ch__arch_diverter_arm(uint8_t *write, uintptr_t exec, uintptr_t target);
bool ch__arch_diverter_is_armed(const uint8_t *read);
/* Of an armed one. */
uintptr_t ch__arch_diverter_target(const uint8_t *read, uintptr_t exec);
/* What an entry begins with where an indirect call may land at marked places only. */
void ch__arch_landing_write(uint8_t *write);
bool ch__arch_landing_is_there(const uint8_t *read);

/* --- stubs, trampoline, veneers --- */
void ch__arch_stub_write(uint8_t *write, uintptr_t exec, uintptr_t trampoline, uint32_t index);
/* The branch index of the stub whose call pushed the return address that `read` corresponds to. */
uint32_t ch__arch_stub_index(const uint8_t *read_return_address);
bool ch__arch_stub_is_valid(const uint8_t *read, uintptr_t exec, uintptr_t trampoline,
			    uint32_t index);
/* Where CH_ARCH_STUB_LEADS_FAR: the address that the stub's jump goes to, the trampoline at first;
 * any other makes the stub a veneer of its branch. One aligned store, which may be done while
 * others run the stub. */
#if defined(__riscv)
void ch__arch_stub_lead(uint8_t *write, uintptr_t target);
uintptr_t ch__arch_stub_leads_to(const uint8_t *read);
#else
static inline void ch__arch_stub_lead(uint8_t *write, uintptr_t target)
{
	(void)write;
	(void)target;
}
static inline uintptr_t ch__arch_stub_leads_to(const uint8_t *read)
{
	(void)read;
	return 0;
}
#endif
/* Write the trampoline that stubs call: it enters the stub entry with the context. Returns its
 * bytes. */
size_t ch__arch_trampoline_write(uint8_t *write, uintptr_t exec, struct ch__arch_stub_context *);
void ch__arch_stub_context_init(struct ch__arch_stub_context *);
/* A plain jump in a stub slot, its target within reach; the slot keeps the target whatever it leads
 * to later. */
bool ch__arch_jump_reaches(uintptr_t exec, uintptr_t target);
void ch__arch_jump_write(uint8_t *write, uintptr_t exec, uintptr_t target);
uintptr_t ch__arch_jump_target(const uint8_t *read, uintptr_t exec);
void ch__arch_veneer_write(uint8_t *write, uintptr_t exec, uintptr_t target);
uintptr_t ch__arch_veneer_target(const uint8_t *read);

/* --- trampolines: templates with CFI of their own in the linked image --- */
/* Both pass every argument register and the return value on, and hand the target the payload in a
 * register that no argument is in (x86-64: r10; aarch64: x15; riscv64: t2). FRAMED calls it from a
 * frame of its own, which keeps the frame pointer; TAIL jumps. */
enum ch__template { CH__TEMPLATE_FRAMED, CH__TEMPLATE_TAIL, CH__TEMPLATES };
struct ch__arch_template {
	/* 4 bytes above a multiple of 8, as the code of a block is; a copy at such an address, its
	 * literals filled, is a trampoline. One FDE covers exactly its bytes. */
	const uint8_t *begin;
	uint16_t bytes;                 /* code, then the literals */
	uint16_t target_at, payload_at; /* 8-byte literals, from begin; aligned in a copy */
};
extern const struct ch__arch_template ch__arch_templates[CH__TEMPLATES]; /* by kind; in the .S */

/* --- register images --- */
/* Callee-saved registers as the caller sees them, and the caller's sp after the call. */
void ch__arch_save_registers(struct ch__arch_saved *);
/* Calls fn with them. A function whose whole body is this call passes its own caller's. */
void ch__arch_with_registers(void (*fn)(const struct ch__arch_saved *));
/* Copies every general register and the pc of a signal's ucontext. */
void ch__arch_context_words(const void *ucontext, uintptr_t words[CH_ARCH_CONTEXT_WORDS]);
/* Where a signal's frame has all registers beside those: floating point, vectors, extensions; the
 * first address, and *end. Equal: nowhere. */
uintptr_t ch__arch_context_vectors(const void *ucontext, uintptr_t *end);
uintptr_t ch__arch_context_pc(const void *ucontext);
uintptr_t ch__arch_context_sp(const void *ucontext);
uintptr_t ch__arch_context_fp(const void *ucontext);
/* Where a call that trapped came from: a guess, for messages. */
uintptr_t ch__arch_context_return(const void *ucontext);
/* Where code returns to that was interrupted at an instruction at which it has no frame record: it
 * is about to make one, or has taken it down. 0: the instruction says nothing of the kind. Readable
 * are the system page in which the pc lies, and two words at sp. */
uintptr_t ch__arch_unrecorded_return(const void *ucontext);
/* No system has smaller ones: memory is of one kind within. */
enum { CH_ARCH_SMALLEST_PAGE = 4096 };
/* The address whose trap raised the signal (x86-64 INT3: pc - 1; elsewhere the pc), which came with
 * this code. */
uintptr_t ch__arch_trap_address(int signal, int code, const void *ucontext);
/* Whether the trap at an address, which raised SIGTRAP, says by its bytes that it is another's. */
bool ch__arch_trap_is_foreign(const uint8_t *read);
#if defined(__x86_64__) || defined(__riscv)
/* Removes a pointer signature: there is none here. Inline: it is asked of every stack word. */
__attribute__((always_inline)) static inline uintptr_t ch__arch_strip(uintptr_t word)
{
	return word;
}
/* The return address as a function whose frame is at sp stores it: with the signature, where the
 * processor makes one. For tests of the former. */
static inline uintptr_t ch__arch_sign(uintptr_t return_address, uintptr_t sp)
{
	(void)sp;
	return return_address;
}
#elif defined(__aarch64__)
/* XPACLRI, which is a no-op where the processor signs nothing. */
__attribute__((always_inline)) static inline uintptr_t ch__arch_strip(uintptr_t word)
{
	register uintptr_t x30 __asm__("x30") = word;
	__asm__("hint #7" : "+r"(x30));
	return x30;
}
/* PACIA1716. */
static inline uintptr_t ch__arch_sign(uintptr_t return_address, uintptr_t sp)
{
	register uintptr_t x17 __asm__("x17") = return_address;
	register uintptr_t x16 __asm__("x16") = sp;
	__asm__("hint #8" : "+r"(x17) : "r"(x16));
	return x17;
}
#endif
/* Whether a debugger's software breakpoint stands on the first instruction of a function. Inline,
 * since it is asked at every commit. */
#if defined(__x86_64__)
static inline bool ch__arch_has_breakpoint(const void *function)
{
	return *(const volatile uint8_t *)function == 0xcc; /* INT3 */
}
#elif defined(__aarch64__)
static inline bool ch__arch_has_breakpoint(const void *function)
{
	return *(const volatile uint32_t *)function == 0xd4200000; /* BRK #0, which gdb writes */
}
#elif defined(__riscv)
static inline bool ch__arch_has_breakpoint(const void *function)
{
	const volatile uint16_t *halves = (const volatile uint16_t *)function;
	/* c.ebreak, or the first half of ebreak, which system calls and CSR instructions share */
	return halves[0] == 0x9002 || (halves[0] == 0x0073 && halves[1] == 0x0010);
}
#endif
#if defined(__x86_64__) || defined(__aarch64__)
/* One step of a frame-pointer walk: the caller's fp and return address; frame layout is the
 * architecture's. Another frame's words: sanitizers must not judge the read. */
__attribute__((no_sanitize("address", "thread"))) static inline void
ch__arch_frame_step(uintptr_t fp, uintptr_t *caller_fp, uintptr_t *return_address)
{
	const uintptr_t *frame = (const uintptr_t *)fp;
	*caller_fp = frame[0];
	*return_address = frame[1];
}
#elif defined(__riscv)
__attribute__((no_sanitize("address", "thread"))) static inline void
ch__arch_frame_step(uintptr_t fp, uintptr_t *caller_fp, uintptr_t *return_address)
{
	const uintptr_t *end = (const uintptr_t *)fp;
	*caller_fp = end[-2];
	*return_address = end[-1];
}
#endif
static inline void ch__arch_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield" ::: "memory");
#elif defined(__riscv)
	__asm__ volatile(".word 0x0100000f"); /* pause, which older processors take for a fence */
#endif
}

/* --- self-test: a function without arguments that returns the value; returns its bytes --- */
size_t ch__arch_constant_function_write(uint8_t *write, uint32_t value);

/* --- CFI of the frame-pointer shape, for CIEs that unwind/ builds --- */
struct ch__arch_cfi {
	uint8_t code_align, return_register;
	int8_t data_align;
	uint8_t bytes; /* used bytes of program */
	uint8_t program[24];
};
const struct ch__arch_cfi *ch__arch_cfi_frame_pointer(void);

#endif
