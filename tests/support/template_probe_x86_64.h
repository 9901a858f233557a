/* SPDX-License-Identifier: MIT
 * template_probe_x86_64.h: the part of template_probe.h that knows registers: calls a trampoline
 * from a frame whose callee-saved registers hold known words, and steps through a trampoline by the
 * trap flag. */
#pragma once

#include "tests/support/harness.h"

#include <signal.h>
#include <string.h>
#include <ucontext.h>
#include <unwind.h>

enum {
	PROBE_ARGS = 8,
	PROBE_KEPT = 6,
	PROBE_FRAMED_BYTES = 16, /* bytes of FRAMED on the stack at the target's entry */
	PROBE_FRAMED_STEPS = 7,  /* instructions */
	PROBE_FRAMED_RULES = 6,  /* instructions of FRAMED's FDE that are not nops */
	PROBE_TAIL_STEPS = 3,
	PROBE_TARGET_STEPS = 20, /* at least, in the target */
	PROBE_CODE_BYTES = 27,   /* of FRAMED without literals; TAIL has fewer */
};

/* endbr64: where an indirect jump may land */
static const uint8_t probe_landing[4] = {0xf3, 0x0f, 0x1e, 0xfa};
/* rdi rsi rdx rcx r8 r9, rax (al), r11 | xmm0 to xmm7, whole */
uint64_t probe_args[PROBE_ARGS], probe_seen[PROBE_ARGS], probe_seen_payload, probe_seen_sp;
_Alignas(16) uint8_t probe_vectors[8][16], probe_seen_vectors[8][16];
/* rax rdx | xmm0 xmm1 */
uint64_t probe_result[2], probe_got[2];
_Alignas(16) uint8_t probe_result_vectors[2][16], probe_got_vectors[2][16];
/* rbx rbp r12 r13 r14 r15 */
uint64_t probe_kept[PROBE_KEPT], probe_kept_after[PROBE_KEPT];
uint64_t probe_sp; /* before the call and after it */

/* Reads the payload of a trampoline, first of all in the target; and a target that returns it. */
#define PROBE_READ_PAYLOAD(payload) __asm__ volatile("movq %%r10, %0" : "=r"(payload))
uint64_t answer_payload(void);
__asm__("	.text\n"
	"answer_payload: endbr64; movq %r10, %rax; ret\n");

void probe_enter(const void *code, uint64_t more_flags);
void probe_target(void);
extern const uint8_t probe_returned[], probe_target_end[];

__asm__("	.text\n"
	"probe_enter:\n"
	"	.cfi_startproc\n"
	"	pushq %rbx; pushq %rbp; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
	"	.cfi_adjust_cfa_offset 48\n"
	"	subq $8, %rsp\n"
	"	pushfq\n"
	"	.cfi_adjust_cfa_offset 16\n"
	"	orq %rsi, (%rsp)\n"
	"	leaq 8(%rsp), %rax; movq %rax, probe_sp(%rip)\n"
	"	pushq %rdi\n"
	"	leaq probe_vectors(%rip), %rax\n"
	"	movaps (%rax), %xmm0; movaps 16(%rax), %xmm1; movaps 32(%rax), %xmm2\n"
	"	movaps 48(%rax), %xmm3; movaps 64(%rax), %xmm4; movaps 80(%rax), %xmm5\n"
	"	movaps 96(%rax), %xmm6; movaps 112(%rax), %xmm7\n"
	"	leaq probe_kept(%rip), %rax\n"
	"	movq (%rax), %rbx; movq 8(%rax), %rbp; movq 16(%rax), %r12; movq 24(%rax), %r13\n"
	"	movq 32(%rax), %r14; movq 40(%rax), %r15\n"
	"	leaq probe_args(%rip), %rax\n"
	"	movq (%rax), %rdi; movq 8(%rax), %rsi; movq 16(%rax), %rdx; movq 24(%rax), %rcx\n"
	"	movq 32(%rax), %r8; movq 40(%rax), %r9; movq 56(%rax), %r11; movq 48(%rax), %rax\n"
	"	popq %r10\n"
	"	popfq\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	call *%r10\n"
	"probe_returned:\n"
	"	movq %rax, probe_got(%rip); movq %rdx, 8+probe_got(%rip)\n"
	"	movaps %xmm0, probe_got_vectors(%rip); movaps %xmm1, 16+probe_got_vectors(%rip)\n"
	"	leaq probe_kept_after(%rip), %rax\n"
	"	movq %rbx, (%rax); movq %rbp, 8(%rax); movq %r12, 16(%rax); movq %r13, 24(%rax)\n"
	"	movq %r14, 32(%rax); movq %r15, 40(%rax)\n"
	"	pushfq; andq $~0x100, (%rsp); popfq\n"
	"	addq $8, %rsp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %r15; popq %r14; popq %r13; popq %r12; popq %rbp; popq %rbx\n"
	"	.cfi_adjust_cfa_offset -48\n"
	"	ret\n"
	"	.cfi_endproc\n"
	"probe_target:\n"
	"	.cfi_startproc\n"
	"	endbr64\n"
	"	movq %rdi, probe_seen(%rip); movq %rsi, 8+probe_seen(%rip)\n"
	"	movq %rdx, 16+probe_seen(%rip); movq %rcx, 24+probe_seen(%rip)\n"
	"	movq %r8, 32+probe_seen(%rip); movq %r9, 40+probe_seen(%rip)\n"
	"	movq %rax, 48+probe_seen(%rip); movq %r11, 56+probe_seen(%rip)\n"
	"	movq %r10, probe_seen_payload(%rip); movq %rsp, probe_seen_sp(%rip)\n"
	"	leaq probe_seen_vectors(%rip), %rax\n"
	"	movaps %xmm0, (%rax); movaps %xmm1, 16(%rax); movaps %xmm2, 32(%rax)\n"
	"	movaps %xmm3, 48(%rax); movaps %xmm4, 64(%rax); movaps %xmm5, 80(%rax)\n"
	"	movaps %xmm6, 96(%rax); movaps %xmm7, 112(%rax)\n"
	"	movaps probe_result_vectors(%rip), %xmm0\n"
	"	movaps 16+probe_result_vectors(%rip), %xmm1\n"
	"	movq 8+probe_result(%rip), %rdx; movq probe_result(%rip), %rax\n"
	"	ret\n"
	"	.cfi_endproc\n"
	"probe_target_end:\n");

/* The ABI: at a function's entry sp + 8 is a multiple of 16. */
static inline void probe_check_stack(uint64_t frame_bytes)
{
	CHECK_EQ(probe_seen_sp % 16, 8);
	CHECK_EQ(probe_seen_sp, probe_sp - 8 - frame_bytes);
}

/* Whether the unwinder has found the frame of probe_enter. */
static inline bool probe_is_caller(struct _Unwind_Context *context)
{
	static const int dwarf[PROBE_KEPT] = {3, 6, 12, 13, 14, 15};
	if (_Unwind_GetIP(context) != (uintptr_t)probe_returned ||
	    _Unwind_GetCFA(context) != probe_sp)
		return false;
	for (unsigned i = 0; i < PROBE_KEPT; i++)
		if (_Unwind_GetGR(context, dwarf[i]) != probe_kept[i])
			return false;
	return true;
}

static void probe_look(uintptr_t pc, uintptr_t sp);

static void probe_on_step(int signal, siginfo_t *info, void *ucontext)
{
	(void)signal, (void)info;
	ucontext_t *context = ucontext;
	probe_look((uintptr_t)context->uc_mcontext.gregs[REG_RIP],
		   (uintptr_t)context->uc_mcontext.gregs[REG_RSP]);
}

/* The trap flag is set from before the call until after the call. */
static inline void probe_run_steps(const uint8_t *code)
{
	enum { TRAP_FLAG = 0x100 };
	struct sigaction action = {.sa_sigaction = probe_on_step, .sa_flags = SA_SIGINFO}, old;
	CHECK_EQ(sigaction(SIGTRAP, &action, &old), 0);
	probe_enter(code, TRAP_FLAG);
	CHECK_EQ(sigaction(SIGTRAP, &old, NULL), 0);
}
