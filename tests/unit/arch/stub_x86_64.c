/* SPDX-License-Identifier: MIT
 * stub_x86_64.c: what a stub hit keeps and what the callback may change: every register, flags,
 * vector state, any alignment of sp. Also unwinding and longjmp out of the callback, the image of
 * callee-saved registers, and what a signal's context says about its code. */
#define _GNU_SOURCE
#include "arch/sites.h"
#include "tests/support/known_registers.h"
#include "tests/support/stub_rig.h"

#include <cpuid.h>

/* probe(target, shift): loads every register from probe_in, moves sp down by shift, and jumps to
 * target. The code at probe_landed stores all registers to probe_out. The arrays are in encoding
 * order; the element of rsp holds the flags. */
void probe(uintptr_t target, uintptr_t shift);
extern char probe_landed[];
uint64_t probe_in[16], probe_out[16];
uint64_t probe_sp_in, probe_sp_out, probe_sp_saved, probe_target;
_Alignas(64) uint8_t probe_vector_in[32], probe_vector_out[32];
uint32_t probe_mxcsr_in, probe_mxcsr_out;

__asm__("	.text\n"
	"probe:	pushq %rbx; pushq %rbp; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
	"	movq %rsp, probe_sp_saved(%rip)\n"
	"	movq %rdi, probe_target(%rip)\n"
	"	subq %rsi, %rsp\n"
	"	subq $256, %rsp\n"
	"	movq %rsp, probe_sp_in(%rip)\n"
	"	movups probe_vector_in(%rip), %xmm0\n"
	"	movups 16+probe_vector_in(%rip), %xmm15\n"
	"	ldmxcsr probe_mxcsr_in(%rip)\n"
	"	leaq probe_in(%rip), %rax\n"
	"	pushq 32(%rax); popfq\n"
	"	movq 8(%rax), %rcx; movq 16(%rax), %rdx; movq 24(%rax), %rbx\n"
	"	movq 40(%rax), %rbp; movq 48(%rax), %rsi; movq 56(%rax), %rdi\n"
	"	movq 64(%rax), %r8; movq 72(%rax), %r9; movq 80(%rax), %r10\n"
	"	movq 88(%rax), %r11; movq 96(%rax), %r12; movq 104(%rax), %r13\n"
	"	movq 112(%rax), %r14; movq 120(%rax), %r15; movq 0(%rax), %rax\n"
	"	jmp *probe_target(%rip)\n"
	"	ud2\n"
	"probe_landed:\n"
	"	movq %rax, probe_out(%rip)\n"
	"	movq %rsp, probe_sp_out(%rip)\n"
	"	leaq probe_out(%rip), %rax\n"
	"	pushfq; popq 32(%rax)\n"
	"	movq %rcx, 8(%rax); movq %rdx, 16(%rax); movq %rbx, 24(%rax)\n"
	"	movq %rbp, 40(%rax); movq %rsi, 48(%rax); movq %rdi, 56(%rax)\n"
	"	movq %r8, 64(%rax); movq %r9, 72(%rax); movq %r10, 80(%rax)\n"
	"	movq %r11, 88(%rax); movq %r12, 96(%rax); movq %r13, 104(%rax)\n"
	"	movq %r14, 112(%rax); movq %r15, 120(%rax)\n"
	"	movups %xmm0, probe_vector_out(%rip)\n"
	"	movups %xmm15, 16+probe_vector_out(%rip)\n"
	"	stmxcsr probe_mxcsr_out(%rip)\n"
	"	movq probe_sp_saved(%rip), %rsp\n"
	"	cld\n"
	"	popq %r15; popq %r14; popq %r13; popq %r12; popq %rbp; popq %rbx\n"
	"	ret\n");

static void spoil_state(void)
{
	__asm__ volatile("xorps %%xmm0, %%xmm0; xorps %%xmm15, %%xmm15; cmp %%rsp, %%rsp" ::
				 : "xmm0", "xmm15", "cc");
	uint32_t mxcsr = 0x1f80;
	__asm__ volatile("ldmxcsr %0" ::"m"(mxcsr));
}

static void hit_and_land(struct ch__arch_stub_context *context, struct ch_regs *regs,
			 uintptr_t return_address)
{
	const struct rig *rig = note_hit(context, regs, return_address);
	regs->pc = (uintptr_t)probe_landed;
	if (rig->changes)
		for (unsigned i = 0; i < 16; i++)
			regs->gpr[i] = ~probe_in[i];
	spoil_state();
}

static void fill_probe(uint64_t flags)
{
	for (unsigned i = 0; i < 16; i++)
		probe_in[i] = 0x1111111111111111u * i + 0x0123456789abcdefu;
	probe_in[4] = flags;
	for (unsigned i = 0; i < 32; i++)
		probe_vector_in[i] = (uint8_t)(0x80 + i);
	probe_mxcsr_in = 0x7f80; /* rounds toward zero */
	memset(probe_out, 0, sizeof probe_out);
	memset(probe_vector_out, 0, sizeof probe_vector_out);
}

static void check_probe(const struct rig *rig)
{
	for (unsigned i = 0; i < 16; i++) {
		if (i == 4)
			continue;
		CHECK_EQ(rig->seen.gpr[i], probe_in[i]);
		CHECK_EQ(probe_out[i], rig->changes ? ~probe_in[i] : probe_in[i]);
	}
	CHECK_EQ(rig->seen.gpr[4], probe_sp_in);
	CHECK_EQ(rig->seen.sp, probe_sp_in);
	CHECK_EQ(probe_sp_out, probe_sp_in);
	CHECK_EQ(probe_out[4] & 0xcd5, probe_in[4] & 0xcd5); /* CF PF AF ZF SF DF OF */
	CHECK(memcmp(probe_vector_in, probe_vector_out, sizeof probe_vector_in) == 0);
	CHECK_EQ(probe_mxcsr_out, probe_mxcsr_in);
}

static void probe_all(struct rig *rig)
{
	static const uint64_t flags[] = {0x202, 0x202 | 0x8d5, 0x202 | 0x400, 0x202 | 0x1};
	for (unsigned f = 0; f < 4; f++)
		for (uintptr_t shift = 0; shift < 65; shift++)
			for (unsigned changes = 0; changes < 2; changes++) {
				rig->changes = changes;
				fill_probe(flags[f]);
				probe(rig->stub, shift);
				check_probe(rig);
			}
	CHECK_EQ(rig->hits, 4 * 65 * 2);
}

TEST(stub_hit_keeps_or_changes_every_register)
{
	static struct rig rig;
	map_rig(&rig, hit_and_land);
	CHECK(rig.context.extended_bytes == 0 || rig.context.extended_bytes >= 576);
	CHECK_EQ(rig.context.extended_bytes % 64, 0);
	probe_all(&rig);
}

/* Few processors have protection keys, so the test asks for the bit alone. */
TEST(stub_hit_keeps_all_state_but_protection_keys)
{
	enum { PROTECTION_KEYS = 1 << 9 };
	CHECK_EQ(ch__arch_kept_state(UINT64_MAX), ~(uint64_t)PROTECTION_KEYS);
	CHECK_EQ(ch__arch_kept_state(PROTECTION_KEYS), 0);
	CHECK_EQ(ch__arch_kept_state(0xe7), 0xe7);
}

TEST(stub_hit_keeps_state_without_xsave)
{
	static struct rig rig;
	map_rig(&rig, hit_and_land);
	rig.context.extended_bytes = 0;
	probe_all(&rig);
}

/* Some string functions of the C library clear the upper halves likewise. */
static void hit_and_clear_halves(struct ch__arch_stub_context *context, struct ch_regs *regs,
				 uintptr_t return_address)
{
	hit_and_land(context, regs, return_address);
	__asm__ volatile("vzeroupper");
}

TEST(stub_hit_keeps_the_upper_halves_of_vectors)
{
	static struct rig rig;
	static uint8_t in[2][16], out[2][16];
	if (!__builtin_cpu_supports("avx"))
		skip("this processor has no AVX");
	map_rig(&rig, hit_and_clear_halves);
	fill_probe(0x202);
	memset(in, 0x5a, sizeof in);
	__asm__ volatile("vinsertf128 $1, %0, %%ymm0, %%ymm0\n"
			 "vinsertf128 $1, %1, %%ymm15, %%ymm15" ::"m"(in[0]),
			 "m"(in[1])
			 : "xmm0", "xmm15");
	probe(rig.stub, 0);
	__asm__ volatile("vextractf128 $1, %%ymm0, %0\n"
			 "vextractf128 $1, %%ymm15, %1\n"
			 "vzeroupper"
			 : "=m"(out[0]), "=m"(out[1]));
	check_probe(&rig);
	CHECK(memcmp(in, out, sizeof in) == 0);
}

/* Kept across the stub: eight numbers of the x87, which a callback may use, too. */
static long double sum_of_callback;

static void hit_and_add(struct ch__arch_stub_context *context, struct ch_regs *regs,
			uintptr_t return_address)
{
	volatile long double sum = 0;
	for (int i = 1; i <= 100; i++)
		sum = sum + i;
	sum_of_callback = sum;
	hit_and_land(context, regs, return_address);
}

static void probe_x87(struct rig *rig)
{
	static const uint8_t numbers[8] = {1, 2, 3, 5, 8, 13, 21, 34};
	static long double in[8], out[8];
	fill_probe(0x202);
	sum_of_callback = 0;
	for (unsigned i = 0; i < 8; i++) {
		in[i] = numbers[i];
		__asm__ volatile("fldt %0" ::"m"(in[i]));
	}
	probe(rig->stub, 0);
	for (unsigned i = 8; i-- > 0;)
		__asm__ volatile("fstpt %0" : "=m"(out[i]));
	check_probe(rig);
	for (unsigned i = 0; i < 8; i++)
		CHECK_EQ((unsigned)out[i], numbers[i]);
	CHECK_EQ((unsigned)sum_of_callback, 5050);
}

TEST(callback_of_a_stub_may_use_the_x87_while_the_site_does)
{
	static struct rig rig;
	map_rig(&rig, hit_and_add);
	probe_x87(&rig);
	rig.context.extended_bytes = 0;
	probe_x87(&rig);
}

TEST(stub_hit_left_by_longjmp_is_harmless)
{
	static struct rig rig;
	jump_out_of_hits(&rig);
	rig.context.hit = hit_and_land;
	probe_all(&rig);
}

static sigjmp_buf off_the_stack;
static uintptr_t faulted;

static void leave_the_stack(int signal, siginfo_t *info, void *ucontext)
{
	(void)signal, (void)ucontext;
	faulted = (uintptr_t)info->si_addr;
	siglongjmp(off_the_stack, 1);
}

static void hit_below_the_guard(struct ch__arch_stub_context *context, struct ch_regs *regs,
				uintptr_t return_address)
{
	(void)context, (void)regs, (void)return_address;
	siglongjmp(off_the_stack, 2);
}

/* A canary fills the memory below the guard page. */
static void hit_near_the_guard(struct rig *rig, uint8_t *guard, uintptr_t bytes_left)
{
	enum { PAGE = CH_ARCH_SMALLEST_PAGE };
	uint8_t *stack = guard + PAGE;
	memset(guard - 8 * PAGE, 0xaa, 8 * PAGE);
	faulted = 0;
	if (!sigsetjmp(off_the_stack, 1))
		__asm__ volatile("movq %0, %%rsp; jmp *%1" ::"r"(stack + bytes_left), "r"(rig->stub)
				 : "memory");
	CHECK(faulted - (uintptr_t)guard < PAGE);
	for (uint8_t *at = guard - 8 * PAGE; at < guard; at++)
		CHECK_EQ(*at, 0xaa);
}

/* The state of AMX makes images of three pages. */
TEST(stub_with_a_large_image_steps_over_no_guard_page)
{
	enum { PAGE = CH_ARCH_SMALLEST_PAGE, PAGES = 16 };
	static struct rig rig;
	static uint8_t other_stack[1 << 16];
	stack_t other = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
	struct sigaction action = {.sa_sigaction = leave_the_stack,
				   .sa_flags = SA_SIGINFO | SA_ONSTACK};
	map_rig(&rig, hit_below_the_guard);
	if (!rig.context.extended_bytes)
		skip("this processor has no xsave");
	uint8_t *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	uint8_t *guard = memory + 8 * PAGE;
	CHECK_EQ(mprotect(guard, PAGE, PROT_NONE), 0);
	CHECK_EQ(sigaltstack(&other, NULL), 0);
	CHECK_EQ(sigaction(SIGSEGV, &action, NULL), 0);
	rig.context.extended_bytes += 2 * PAGE;
	for (uintptr_t left = 512; left < 2 * PAGE; left += 64)
		hit_near_the_guard(&rig, guard, left);
	rig.context.hit = hit_and_land;
	probe_all(&rig);
}

/* --- unwinding through the stub entry into a JIT frame, by the CFI of arch.h --- */

TEST(unwinder_passes_from_the_callback_into_the_jit_frame)
{
	static struct rig rig;
	static const uint8_t prologue[] = {0x55, 0x48, 0x89, 0xe5,
					   0x41, 0x54, 0x53}; /* push rbp.. r12, rbx */
	static const uint8_t epilogue[] = {0x5b, 0x41, 0x5c, 0x5d, 0xc3};
	map_rig(&rig, hit_and_backtrace);
	uint8_t *write = rig.write + 4096;
	uintptr_t entry = (uintptr_t)rig.exec + 4096, site = entry + sizeof prologue + 1;
	memcpy(write, prologue, sizeof prologue);
	write[sizeof prologue] = 0x90;
	write[site - entry] = 0xe9;
	ch__arch_site_write(CH_JMP, write + (site - entry), site, rig.stub);
	leave_to = site + 5;
	memcpy(write + (leave_to - entry), epilogue, sizeof epilogue);
	jit_range_register((uintptr_t)rig.exec + 4096, CODE_BYTES - 4096,
			   ch__arch_cfi_frame_pointer, sizeof ch__arch_cfi_frame_pointer);
	uintptr_t caller = call_jit(entry);
	jit_range_forget();
	const char *wrong = judge_frames(rig.stub + CH_ARCH_STUB_CALL_BYTES, caller);
	if (wrong)
		FAIL("%s", wrong);
}

/* By the ABI's register numbers: the CFA by an expression of rbp, rsp and pc, with its length; the
 * return address at cfa - 8, rbp at cfa - 16. */
TEST(frame_with_rbp_is_told_in_the_numbers_of_the_abi)
{
	static const uint8_t rule[] = {0x90, 1, 0x86, 2};
	const uint8_t *program = ch__arch_cfi_frame_pointer;
	CHECK_EQ(CH_ARCH_DWARF_CODE_ALIGN, 1);
	CHECK_EQ(CH_ARCH_DWARF_DATA_ALIGN, -8);
	CHECK_EQ(CH_ARCH_DWARF_RETURN, 16);
	CHECK_EQ(program[0], 0x0f);
	CHECK_EQ(sizeof ch__arch_cfi_frame_pointer, 2u + program[1] + sizeof rule);
	CHECK(!memcmp(program + 2 + program[1], rule, sizeof rule));
}

static size_t bytes_of_operation(uint8_t op)
{
	if (op == 0x0a || op == 0x28 || op == 0x2f) /* const2u, bra, skip */
		return 3;
	/* const1u, pick, plus_uconst, deref_size; breg with a small offset */
	return op == 0x08 || op == 0x15 || op == 0x23 || op == 0x94 || (op >= 0x70 && op < 0x90)
		       ? 2
		       : 1;
}

/* LLDB 14 evaluates no expression with a jump to its end. */
TEST(jumps_of_the_frame_rule_lead_to_operations)
{
	const uint8_t *rule = ch__arch_cfi_frame_pointer + 2;
	uint8_t begins[256] = {0};
	size_t bytes = rule[-1], at;
	for (at = 0; at < bytes; at += bytes_of_operation(rule[at]))
		begins[at] = 1;
	CHECK_EQ(at, bytes);
	for (at = 0; at < bytes; at += bytes_of_operation(rule[at])) {
		int16_t by;
		memcpy(&by, rule + at + 1, sizeof by);
		if (rule[at] == 0x28 || rule[at] == 0x2f)
			CHECK(begins[at + 3 + (size_t)by]);
	}
}

/* --- images --- */

__asm__("	.text\n"
	"	.globl call_with_known, known_next\n"
	"	.hidden call_with_known, known_next\n"
	"	.type call_with_known, @function\n"
	"call_with_known:\n"
	"	pushq %rbx; pushq %rbp; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
	"	subq $8, %rsp\n"
	"	movq %rsp, known_sp(%rip)\n"
	"	movq %rdi, %rax; movq %rsi, %rdi\n"
	"	movq known(%rip), %rbx; movq 8+known(%rip), %rbp; movq 16+known(%rip), %r12\n"
	"	movq 24+known(%rip), %r13; movq 32+known(%rip), %r14; movq 40+known(%rip), %r15\n"
	"	call *%rax\n"
	"known_next:\n"
	"	addq $8, %rsp\n"
	"	popq %r15; popq %r14; popq %r13; popq %r12; popq %rbp; popq %rbx\n"
	"	ret\n"
	"	.size call_with_known, . - call_with_known\n");

TEST(saved_registers_hold_what_the_caller_has)
{
	expect_known_are_saved(NO_CALLER);
}

TEST(registers_that_are_passed_on_are_those_of_the_caller)
{
	expect_known_are_passed_on(NO_CALLER);
}

static uintptr_t trapped_at, trapped_words[CH_ARCH_CONTEXT_WORDS], trapped_sp, trapped_fp,
	trapped_pc;

static void note_trap(int signal, siginfo_t *info, void *ucontext)
{
	trapped_at = ch__arch_trap_address(signal, info->si_code, ucontext);
	trapped_sp = ch__arch_context_sp(ucontext);
	trapped_fp = ch__arch_context_fp(ucontext);
	trapped_pc = ch__arch_context_pc(ucontext);
	for (unsigned i = 0; i < CH_ARCH_CONTEXT_WORDS; i++)
		trapped_words[i] = ch__arch_context_word(ucontext, i);
}

/* A step and a debug register stop before the instruction, as a fault does. */
TEST(pc_is_behind_an_int3_only)
{
	const uintptr_t pc = 0x10000;
	ucontext_t context;
	memset(&context, 0, sizeof context);
	ch__arch_context_go_to(&context, pc);
	CHECK_EQ(ch__arch_trap_address(SIGTRAP, SI_KERNEL, &context), pc - 1);
	CHECK_EQ(ch__arch_trap_address(SIGTRAP, TRAP_TRACE, &context), pc);
	CHECK_EQ(ch__arch_trap_address(SIGTRAP, TRAP_HWBKPT, &context), pc);
	CHECK_EQ(ch__arch_trap_address(SIGSEGV, SI_KERNEL, &context), pc);
}

TEST(signal_context_gives_every_register_and_the_trapping_address)
{
	struct sigaction action = {.sa_sigaction = note_trap, .sa_flags = SA_SIGINFO};
	uintptr_t here, sp, fp;
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	__asm__ volatile("lea 1f(%%rip), %0; mov %%rsp, %1; mov %%rbp, %2\n"
			 "mov $0x1515, %%r15d; mov $0xcccc, %%ecx\n1: int3"
			 : "=&r"(here), "=&r"(sp), "=&r"(fp)::"r15", "rcx", "memory");
	CHECK_EQ(trapped_at, here);
	CHECK_EQ(trapped_pc, here + 1);
	CHECK_EQ(trapped_words[REG_RIP], here + 1);
	CHECK_EQ(trapped_words[REG_RSP], sp);
	CHECK_EQ(trapped_words[REG_RCX], 0xcccc);
	CHECK_EQ(trapped_words[REG_R15], 0x1515);
	CHECK_EQ(trapped_sp, sp);
	CHECK_EQ(trapped_fp, fp);
	CHECK_EQ(ch__arch_strip(here), here);
	uintptr_t caller_fp, return_address;
	ch__arch_frame_step((uintptr_t)__builtin_frame_address(0), &caller_fp, &return_address);
	CHECK_EQ(return_address, (uintptr_t)__builtin_return_address(0));
}

TEST(each_register_of_a_signal_context_has_its_place)
{
	static const int order[] = {REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13,
				    REG_R14, REG_R15, REG_RDI, REG_RSI, REG_RBP, REG_RBX,
				    REG_RDX, REG_RAX, REG_RCX, REG_RSP, REG_RIP};
	ucontext_t context;
	memset(&context, 0, sizeof context);
	for (unsigned i = 0; i < NGREG; i++)
		context.uc_mcontext.gregs[i] = 0x1000 + i;
	for (unsigned i = 0; i < CH_ARCH_CONTEXT_WORDS; i++)
		CHECK_EQ(ch__arch_context_word(&context, i), 0x1000 + order[i]);
}

/* --- code without a frame record --- */

static uintptr_t unrecorded_at(const uint8_t *code, const uintptr_t *stack)
{
	ucontext_t context;
	memset(&context, 0, sizeof context);
	context.uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)code;
	context.uc_mcontext.gregs[REG_RSP] = (greg_t)(uintptr_t)stack;
	return ch__arch_unrecorded_return(&context);
}

TEST(return_of_either_kind_has_its_caller_on_top_of_the_stack)
{
	static const uint8_t ret[8] = {0xc3}, ret_pop[8] = {0xc2, 16, 0}, leave[8] = {0xc9, 0xc3};
	const uintptr_t stack[2] = {0x1111, 0x2222};
	CHECK_EQ(unrecorded_at(ret, stack), 0x1111);
	CHECK_EQ(unrecorded_at(ret_pop, stack), 0x1111);
	CHECK_EQ(unrecorded_at(leave, stack), 0);
}

/* Assemblers choose either form of the mov: a profile has the caller before the mov and at it. */
TEST(frame_that_begins_by_either_form_of_a_mov_has_its_caller)
{
	static const uint8_t forms[2][16] = {
		{0xf3, 0x0f, 0x1e, 0xfa, 0xa9, 1, 2, 3, 4, 0x55, 0x48, 0x89, 0xe5},
		{0xf3, 0x0f, 0x1e, 0xfa, 0xa9, 1, 2, 3, 4, 0x55, 0x48, 0x8b, 0xec}};
	/* The library's diverter is the first instruction of a block. */
	static const uint8_t entry[16] = {0xa9, 1,    2,    3,    4,    0xf3, 0x0f,
					  0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5};
	const uintptr_t stack[2] = {0x1111, 0x2222};
	CHECK_EQ(unrecorded_at(entry, stack), 0x1111);
	CHECK_EQ(unrecorded_at(entry + 5, stack), 0x1111);
	for (unsigned i = 0; i < 2; i++) {
		CHECK_EQ(unrecorded_at(forms[i], stack), 0x1111);
		CHECK_EQ(unrecorded_at(forms[i] + 4, stack), 0x1111);
		CHECK_EQ(unrecorded_at(forms[i] + 9, stack), 0x1111);
		CHECK_EQ(unrecorded_at(forms[i] + 10, stack), 0x2222);
		CHECK_EQ(unrecorded_at(forms[i] + 13, stack), 0);
	}
}

/* --- state of the thread --- */

/* Protection keys belong to the thread: a callback may change the keys for good. */
TEST(stub_keeps_no_protection_keys)
{
	enum { PKRU = 9 };
	struct ch__arch_stub_context context = {0};
	ch__arch_stub_context_init(&context);
	CHECK(!(context.extended_mask >> PKRU & 1));
}

/* The stub keeps all state that the system enables, save protection keys. The image must have room:
 * the processor writes every requested component, and the page behind cannot be written. */
TEST(stub_keeps_each_state_that_the_system_enables)
{
	enum { PKRU = 9, MOST_BYTES = 1 << 16 };
	struct ch__arch_stub_context context = {0};
	unsigned a, b, c, d;
	ch__arch_stub_context_init(&context);
	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) {
		CHECK_EQ(context.extended_bytes, 0);
		return;
	}
	__asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
	CHECK_EQ(context.extended_mask, ((uint64_t)d << 32 | a) & ~(UINT64_C(1) << PKRU));
	CHECK(context.extended_bytes <= MOST_BYTES);
	CHECK_EQ(context.extended_bytes % 64, 0);
	uint8_t *image = mmap(NULL, 2 * MOST_BYTES, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(image != MAP_FAILED);
	CHECK_EQ(mprotect(image + MOST_BYTES, MOST_BYTES, PROT_NONE), 0);
	image += MOST_BYTES - context.extended_bytes;
	__asm__ volatile("xsave64 (%0)" ::"r"(image), "a"((uint32_t)context.extended_mask),
			 "d"((uint32_t)(context.extended_mask >> 32))
			 : "memory");
}

TEST(word_that_a_trap_would_return_to_is_on_top_of_the_stack)
{
	uintptr_t words[] = {0x1111, 0x2222};
	ucontext_t context = {0};
	context.uc_mcontext.gregs[REG_RSP] = (greg_t)(uintptr_t)words;
	CHECK_EQ(ch__arch_context_return(&context), words[0]);
}

/* Only the magic number says that a length is there. */
TEST(vectors_of_a_signal_are_longer_where_the_frame_says_so)
{
	enum { FXSAVE = 512, WHOLE = 832 };
	static struct {
		_Alignas(64) uint8_t bytes[FXSAVE];
	} state;
	const uint32_t magic = 0x46505853, lengths[] = {WHOLE, FXSAVE, 0, 1u << 20};
	const size_t wanted[] = {WHOLE, FXSAVE, FXSAVE, FXSAVE};
	ucontext_t context = {0};
	uintptr_t end = 1;
	CHECK_EQ(ch__arch_context_vectors(&context, &end), 0);
	CHECK_EQ(end, 0);
	context.uc_mcontext.fpregs = (void *)&state;
	for (unsigned i = 0; i < 4; i++) {
		memcpy(state.bytes + 464, &magic, sizeof magic);
		memcpy(state.bytes + 468, &lengths[i], sizeof lengths[i]);
		CHECK_EQ(ch__arch_context_vectors(&context, &end), (uintptr_t)&state);
		CHECK_EQ(end, (uintptr_t)&state + wanted[i]);
		state.bytes[464] ^= 1;
		CHECK_EQ(ch__arch_context_vectors(&context, &end), (uintptr_t)&state);
		CHECK_EQ(end, (uintptr_t)&state + FXSAVE);
	}
}

/* The page behind the code cannot be read. */
TEST(caller_is_read_off_code_to_the_last_byte_of_its_page)
{
	static const uint8_t begin[] = {0x55, 0x48, 0x89, 0xe5}; /* push rbp; mov rbp, rsp */
	uintptr_t words[] = {0x1111, 0x2222};
	size_t page = CH_ARCH_SMALLEST_PAGE;
	uint8_t *code =
		mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(code != MAP_FAILED);
	CHECK_EQ(mprotect(code + page, page, PROT_NONE), 0);
	ucontext_t context = {0};
	context.uc_mcontext.gregs[REG_RSP] = (greg_t)(uintptr_t)words;
	memcpy(code + page - sizeof begin, begin, sizeof begin);
	context.uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)(code + page - 4);
	CHECK_EQ(ch__arch_unrecorded_return(&context), words[0]);
	context.uc_mcontext.gregs[REG_RIP] = (greg_t)(uintptr_t)(code + page - 3);
	CHECK_EQ(ch__arch_unrecorded_return(&context), words[1]);
	memcpy(code + page - 3, begin, 3);
	CHECK_EQ(ch__arch_unrecorded_return(&context), 0);
}
