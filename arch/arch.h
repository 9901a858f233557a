/* SPDX-License-Identifier: MIT
 * arch.h: the contract of an architecture: traps, patch sites, stubs, register images, CFI facts.
 * One .h, one .c and one .S with the machine's name implement it. `write` is an address in the
 * writable view, `exec` the address the bytes run at; all writers store with one aligned store
 * where another core may be executing the bytes. Nothing here calls the OS, save ch__arch_sync and
 * ch__arch_serialize where only the kernel can reach the instruction caches of all cores.
 *
 * The machine's header, chosen below, has the constants, the functions that are asked for so often
 * that they are inline, and the machine's rules for sites. */
#ifndef CH_ARCH_ARCH_H
#define CH_ARCH_ARCH_H

#include "arch/base.h"

#include <string.h>

/* The list of ports. */
#if defined(__x86_64__)
#include "arch/x86_64.h"
#elif defined(__aarch64__)
#include "arch/aarch64.h"
#elif defined(__riscv) && __riscv_xlen == 64
#include "arch/riscv64.h"
#else
#error "there is no port to this machine: docs/porting.md says how one is made"
#endif

/* Constants of a machine's header:
 *   CH_ARCH_TRAP_UNIT_BYTES    a trap's length, and the distance between two of them
 *   CH_ARCH_STUB_BYTES         the length of a stub, its branch index at its end
 *   CH_ARCH_STUB_CALL_BYTES    a stub's return address, or what stands for it, from its start
 *   CH_ARCH_STUB_LEADS_FAR     1: a site may not reach all of the pool, and its stub leads on
 *   CH_ARCH_LEAD_BYTES         the length of a lead before a stub; 0: code is not written as a file
 *   CH_ARCH_STUB_LITERAL       where the stub, or its lead, has what it leads on by; aligned to 8
 *   CH_ARCH_DIVERTER_BYTES     the length of a diverter
 *   CH_ARCH_VENEER_BYTES       the length of a veneer with its literal
 *   CH_ARCH_RED_ZONE_BYTES     what a function may use below its sp
 *   CH_ARCH_HAS_LINK_REGISTER  1: a call leaves its return address in a register
 *   CH_ARCH_RECORD_AT          where a frame's record begins, from its frame pointer: the caller's
 *                              frame pointer, then the return address
 *   CH_ARCH_CONTEXT_WORDS      general registers of a signal's context, and its pc
 *   CH_ARCH_CONTEXT_AT         where they are in a ucontext; ..._PC, _SP, _FP: which word is which
 *   CH_ARCH_SAVED_WORDS        registers that a called function keeps, and the link register
 *   CH_ARCH_TEMPLATE_BYTES     the length of the longest template of a trampoline
 *   CH_ARCH_ELF_MACHINE        e_machine in ELF files
 *   CH_ARCH_DWARF_FP           the frame pointer, in DWARF's numbers
 *   CH_ARCH_DWARF_SP           sp, likewise
 *   CH_ARCH_DWARF_RETURN       the return address, likewise
 *   CH_ARCH_DWARF_CODE_ALIGN   the unit of distances in code
 *   CH_ARCH_LANDING_BYTES      the length of a landing pad before a patchable entry's diverter
 *   ch__arch_landing           its instruction
 *   ch__arch_cfi_saves         the other registers that a callee keeps, from a frame's record on
 *                              downwards, as DW_CFA_offset says it
 *   ch__arch_cfi_leaf          the frame of code that has none, as at its call
 *   CH_ARCH_HAS_STEPS          1: a rule may find what code says by a frame's pc
 *   CH_ARCH_STEPS_CFA          the caller's sp above sp at the call
 *   ch__arch_steps_kept        the registers that such code may save; CH_ARCH_STEPS_KEPT of them
 *   ch__arch_traps             the bytes of traps at a multiple of 8
 *   CH_ARCH_SITE_LEAST_BYTES   the length of the shortest site
 *   CH_ARCH_POOL_LOG2_MAX      of the largest pool
 *   CH_ARCH_FETCH_FOLLOWS      1: other cores run what was published, not what was there before
 *   CH_ARCH_NONGNU_...         nongnu libunwind: the machine in the names of its functions, its
 *                              numbers of pc, sp and frame pointer, and the words of a cursor */

/* Kinds of sites; the public header has the same values. The machine's header says what each is. */
enum ch__site {
	CH__SITE_JMP,
	CH__SITE_JCC,
	CH__SITE_CALL,
	CH__SITE_LEA,
	CH__SITE_LITERAL, /* aligned 8-byte absolute address */
};

/* Registers at a branch site, laid out as struct ch_regs of the public header. */
struct ch__arch_regs {
	uint64_t gpr[32]; /* in the order of the machine's header */
	uint64_t pc;      /* where to go on */
	uint64_t sp;      /* sp at the site */
	void *extended; /* floating point and vectors, as the machine's header says */
};
_Static_assert(offsetof(struct ch__arch_regs, pc) == 256, "each .S stores here");
_Static_assert(offsetof(struct ch__arch_regs, sp) == 264, "each .S stores here");
_Static_assert(offsetof(struct ch__arch_regs, extended) == 272, "each .S stores here");
_Static_assert(sizeof(struct ch__arch_regs) == 280, "each .S reserves it");

/* What a stub's trampoline hands to the stub entry; embedded in the heap. hit() returns with
 * regs->pc set. */
struct ch__arch_stub_context {
	void (*hit)(struct ch__arch_stub_context *, struct ch__arch_regs *,
		    uintptr_t return_address);
	/* Read where the entry of the machine saves by them (x86_64.S). */
	uint64_t extended_bytes; /* size of the xsave image, multiple of 64; 0 = fxsave, 512 */
	uint64_t extended_mask;  /* state components that xsave keeps */
	uint64_t shadow_stack;   /* 1 = who has one leaves by dropping an entry and jumping */
};
_Static_assert(offsetof(struct ch__arch_stub_context, hit) == 0, "each .S loads it");

/* Callee-saved registers, the link register, and sp of a thread that parks. */
struct ch__arch_saved {
	uintptr_t words[CH_ARCH_SAVED_WORDS];
	uintptr_t sp;
};

/* --- traps --- */
static inline uint8_t ch__arch_trap_byte(const uint8_t *at)
{
	return (uint8_t)(ch__arch_traps >> (uintptr_t)at % sizeof ch__arch_traps * 8);
}

/* Any range: each address gets the byte that a unit of the trap has there. */
static inline void ch__arch_fill_traps(uint8_t *write, size_t bytes)
{
	if (CH_ARCH_TRAP_UNIT_BYTES == 1) {
		memset(write, (uint8_t)ch__arch_traps, bytes);
		return;
	}
	for (; bytes && (uintptr_t)write % sizeof ch__arch_traps; bytes--, write++)
		*write = ch__arch_trap_byte(write);
	for (; bytes >= sizeof ch__arch_traps; bytes -= sizeof ch__arch_traps) {
		memcpy(write, &ch__arch_traps, sizeof ch__arch_traps);
		write += sizeof ch__arch_traps;
	}
	memcpy(write, &ch__arch_traps, bytes);
}

/* From the ninth byte on a range of traps repeats itself. */
static inline bool ch__arch_are_traps(const uint8_t *read, size_t bytes)
{
	size_t first = bytes < sizeof ch__arch_traps ? bytes : sizeof ch__arch_traps;
	for (size_t i = 0; i < first; i++)
		if (read[i] != ch__arch_trap_byte(read + i))
			return false;
	return memcmp(read + first, read, bytes - first) == 0;
}

/* --- caches --- */
/* Publishes bytes written through another view. No system call, save where only the kernel reaches
 * the instruction caches of all cores. */
static inline void ch__arch_sync(const uint8_t *exec, size_t bytes);

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
size_t ch__arch_site_bytes(enum ch__site kind);

/* Whether one instruction of the VM's at exec may become another one of so many bytes, within one
 * aligned 8, while others run it. */
bool ch__arch_may_change(uintptr_t exec, const uint8_t *from, const uint8_t *to, size_t bytes);

/* --- diverter: a patch point or a patchable entry: falls through, or once armed jumps to its
 * target, which is the same in each call --- */
void ch__arch_diverter_write(uint8_t *write, uintptr_t exec, uintptr_t target);
/* Whether the instruction of an unarmed diverter stands there, whatever it leads to. */
bool ch__arch_diverter_is_there(const uint8_t *read);
bool ch__arch_diverter_reaches(uintptr_t exec, uintptr_t target);
/* Whether an unarmed one stands there, which leads to the target if its bytes say where. */
bool ch__arch_diverter_is_valid(const uint8_t *read, uintptr_t exec, uintptr_t target);
void ch__arch_diverter_arm(uint8_t *write, uintptr_t exec, uintptr_t target);
bool ch__arch_diverter_is_armed(const uint8_t *read);
/* Of an armed one. */
uintptr_t ch__arch_diverter_target(const uint8_t *read, uintptr_t exec);
/* What an entry begins with where an indirect call may land at marked places only. */
static inline void ch__arch_landing_write(uint8_t *write)
{
	memcpy(write, &ch__arch_landing, CH_ARCH_LANDING_BYTES);
}
static inline bool ch__arch_landing_is_there(const uint8_t *read)
{
	return memcmp(read, &ch__arch_landing, CH_ARCH_LANDING_BYTES) == 0;
}

/* --- stubs, trampoline, veneers --- */
void ch__arch_stub_write(uint8_t *write, uintptr_t exec, uintptr_t trampoline, uint32_t index);
/* The branch index of the stub whose call pushed the return address that `read` corresponds to. */
uint32_t ch__arch_stub_index(const uint8_t *read_return_address);
bool ch__arch_stub_is_valid(const uint8_t *read, uintptr_t exec, uintptr_t trampoline,
			    uint32_t index);
/* Where CH_ARCH_STUB_LEADS_FAR: the address that the stub's jump goes to, the trampoline at first;
 * any other makes the stub a veneer of its branch. Where a stub has a lead before it: the address
 * that the lead's jump goes to, in data. One aligned store, which may be done while others run the
 * stub. */
static inline void ch__arch_stub_lead(uint8_t *write, uintptr_t target)
{
	uint64_t *at = (uint64_t *)(void *)(write + CH_ARCH_STUB_LITERAL);
	__atomic_store_n(at, target, __ATOMIC_RELEASE);
}
static inline uintptr_t ch__arch_stub_leads_to(const uint8_t *read)
{
	const uint64_t *at = (const uint64_t *)(const void *)(read + CH_ARCH_STUB_LITERAL);
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
/* A lead stands before a stub where code is not patched while it runs (procmem): a jump by the
 * literal that the write view has there, delta further on, at an address 4 above a multiple of 8.
 * Where CH_ARCH_LEAD_BYTES is 0 no delta is reached. */
static inline bool ch__arch_lead_reaches(ptrdiff_t delta);
static inline void ch__arch_lead_write(uint8_t *write, ptrdiff_t delta, uintptr_t target);
static inline bool ch__arch_lead_is_valid(const uint8_t *read, ptrdiff_t delta);
/* Write the trampoline that stubs call: it enters the stub entry with the context. Returns its
 * bytes. */
size_t ch__arch_trampoline_write(uint8_t *write, struct ch__arch_stub_context *);
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
 * register that no argument is in. FRAMED calls it from a frame of its own, which keeps the frame
 * pointer; TAIL jumps. */
enum ch__template { CH__TEMPLATE_FRAMED, CH__TEMPLATE_TAIL, CH__TEMPLATES };
struct ch__arch_template {
	/* At a multiple of 8, as the code of a block is; a copy at such an address, its literals
	 * filled, is a trampoline. One FDE covers exactly its bytes. */
	const uint8_t *begin;
	uint16_t bytes;                 /* code, then the literals */
	uint16_t target_at, payload_at; /* 8-byte literals, from begin; aligned in a copy */
};
_Static_assert(sizeof(struct ch__arch_template) == 16, "each .S writes the table");
_Static_assert(offsetof(struct ch__arch_template, target_at) == 10, "each .S writes it");
_Static_assert(offsetof(struct ch__arch_template, payload_at) == 12, "each .S writes it");
extern const struct ch__arch_template ch__arch_templates[CH__TEMPLATES]; /* by kind; in the .S */

/* --- register images --- */
/* Callee-saved registers as the caller sees them, and the caller's sp after the call. */
void ch__arch_save_registers(struct ch__arch_saved *);
/* Calls fn with them. A function whose whole body is this call passes its own caller's. */
void ch__arch_with_registers(void (*fn)(const struct ch__arch_saved *));
/* The same, with two arguments more; returns what fn does. */
uint32_t ch__arch_call_with_registers(uint32_t (*fn)(const struct ch__arch_saved *, void *, void *),
				       void *, void *);
/* A general register, or the pc, of a signal's ucontext; i is below CH_ARCH_CONTEXT_WORDS. */
static inline uintptr_t ch__arch_context_word(const void *ucontext, unsigned i)
{
	uintptr_t word;
	const uint8_t *words = (const uint8_t *)ucontext + CH_ARCH_CONTEXT_AT;
	memcpy(&word, words + i * sizeof word, sizeof word);
	return word;
}
static inline uintptr_t ch__arch_context_pc(const void *ucontext)
{
	return ch__arch_context_word(ucontext, CH_ARCH_CONTEXT_PC);
}
static inline uintptr_t ch__arch_context_sp(const void *ucontext)
{
	return ch__arch_context_word(ucontext, CH_ARCH_CONTEXT_SP);
}
static inline uintptr_t ch__arch_context_fp(const void *ucontext)
{
	return ch__arch_context_word(ucontext, CH_ARCH_CONTEXT_FP);
}
/* Where a signal's frame has all registers beside those: floating point, vectors, extensions; the
 * first address, and *end. Equal: nowhere. */
uintptr_t ch__arch_context_vectors(const void *ucontext, uintptr_t *end);
/* Where a call that trapped came from: a guess, for messages. */
uintptr_t ch__arch_context_return(const void *ucontext);
/* Where code returns to that was interrupted at an instruction at which it has no frame record: it
 * is about to make one, or has taken it down. 0: the instruction says nothing of the kind. Readable
 * are the system page in which the pc lies, and two words at sp. */
uintptr_t ch__arch_unrecorded_return(const void *ucontext);
/* No system has smaller ones: memory is of one kind within. */
enum { CH_ARCH_SMALLEST_PAGE = 4096 };
/* The address whose trap raised the signal, which came with this code: the pc, or before it. */
uintptr_t ch__arch_trap_address(int signal, int code, const void *ucontext);
/* Whether the trap at an address, which raised SIGTRAP, says by its bytes that it is another's. */
bool ch__arch_trap_is_foreign(const uint8_t *read);
/* Removes a pointer signature, where there is one. Inline: it is asked of every stack word. */
static inline uintptr_t ch__arch_strip(uintptr_t word);
/* Whether a debugger's software breakpoint stands on the first instruction of a function. Inline,
 * since it is asked at every commit. */
static inline bool ch__arch_has_breakpoint(const void *function);
/* One step of a frame-pointer walk: the caller's fp and return address. Another frame's words:
 * sanitizers must not judge the read. */
__attribute__((no_sanitize("address", "thread"))) static inline void
ch__arch_frame_step(uintptr_t fp, uintptr_t *caller_fp, uintptr_t *return_address)
{
	const uintptr_t *record = (const uintptr_t *)(fp + (uintptr_t)(intptr_t)CH_ARCH_RECORD_AT);
	*caller_fp = record[0];
	*return_address = record[1];
}
/* What a loop that waits for another core does. */
static inline void ch__arch_pause(void);

/* --- self-test: a function without arguments that returns the value; returns its bytes --- */
size_t ch__arch_constant_function_write(uint8_t *write, uint32_t value);

/* --- CFI of the frame shapes of each heap, for CIEs that sinks build --- */
enum { CH_ARCH_DWARF_DATA_ALIGN = -8 };
/* The return address is not signed: a VM that signs registers a shape of its own. */
static const uint8_t ch__arch_cfi_frame_pointer[] = {
	0x0c, CH_ARCH_DWARF_FP, 16 + CH_ARCH_RECORD_AT, /* DW_CFA_def_cfa: the record's end */
	0x80 | CH_ARCH_DWARF_RETURN, 1,                 /* DW_CFA_offset: at cfa - 8 */
	0x80 | CH_ARCH_DWARF_FP, 2,                     /* at cfa - 16 */
};

#endif
