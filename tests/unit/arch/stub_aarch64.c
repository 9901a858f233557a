/* SPDX-License-Identifier: MIT
 * stub_aarch64.c: what a stub hit keeps and what the callback may change: every register but x16
 * and x17, flags, vector state. Also unwinding at each instruction of the stub entry, even where
 * only x30 has the caller's address; longjmp out of the callback; the images of registers;
 * signatures of return addresses. */
#define _GNU_SOURCE
#include "tests/support/code.h"
#include "tests/support/known_registers.h"
#include "tests/support/stub_rig.h"

#include <sys/auxv.h>

enum {
	X16 = 16,
	X17 = 17,
	SP = 31,
};

/* probe(target, shift): loads every register from probe_in, moves sp down by shift, and jumps to
 * target. The code at probe_landed stores all registers to probe_out. The arrays go by register
 * number; sp's element holds the flags. At a site x16 and x17 do not belong to the code. */
void probe(uintptr_t target, uintptr_t shift);
extern char probe_landed[];
uint64_t probe_in[32], probe_out[32];
uint64_t probe_sp_in, probe_sp_out, probe_sp_saved;
/* q0 to q31, fpsr, fpcr */
_Alignas(16) uint8_t probe_vector_in[32][16], probe_vector_out[32][16];
uint64_t probe_fp_in[2], probe_fp_out[2];

__asm__("	.text\n"
	"	.globl probe, probe_landed\n"
	"	.hidden probe, probe_landed\n"
	"	.macro address_of register, name\n"
	"	adrp \\register, \\name\n"
	"	add \\register, \\register, :lo12:\\name\n"
	"	.endm\n"
	"	.macro own op\n" /* callee-saved ones, at sp */
	"	\\op x19, x20, [sp]\n	\\op x21, x22, [sp, #16]\n"
	"	\\op x23, x24, [sp, #32]\n	\\op x25, x26, [sp, #48]\n"
	"	\\op x27, x28, [sp, #64]\n	\\op x29, x30, [sp, #80]\n"
	"	\\op d8, d9, [sp, #96]\n	\\op d10, d11, [sp, #112]\n"
	"	\\op d12, d13, [sp, #128]\n	\\op d14, d15, [sp, #144]\n"
	"	.endm\n"
	"	.macro all op\n" /* but x16 and x17, which is the base */
	"	\\op x0, x1, [x17]\n	\\op x2, x3, [x17, #16]\n"
	"	\\op x4, x5, [x17, #32]\n	\\op x6, x7, [x17, #48]\n"
	"	\\op x8, x9, [x17, #64]\n	\\op x10, x11, [x17, #80]\n"
	"	\\op x12, x13, [x17, #96]\n	\\op x14, x15, [x17, #112]\n"
	"	\\op x18, x19, [x17, #144]\n	\\op x20, x21, [x17, #160]\n"
	"	\\op x22, x23, [x17, #176]\n	\\op x24, x25, [x17, #192]\n"
	"	\\op x26, x27, [x17, #208]\n	\\op x28, x29, [x17, #224]\n"
	"	.endm\n"
	"	.macro vectors_at op, base\n"
	"	\\op q0, q1, [\\base]\n	\\op q2, q3, [\\base, #32]\n"
	"	\\op q4, q5, [\\base, #64]\n	\\op q6, q7, [\\base, #96]\n"
	"	\\op q8, q9, [\\base, #128]\n	\\op q10, q11, [\\base, #160]\n"
	"	\\op q12, q13, [\\base, #192]\n	\\op q14, q15, [\\base, #224]\n"
	"	\\op q16, q17, [\\base, #256]\n	\\op q18, q19, [\\base, #288]\n"
	"	\\op q20, q21, [\\base, #320]\n	\\op q22, q23, [\\base, #352]\n"
	"	\\op q24, q25, [\\base, #384]\n	\\op q26, q27, [\\base, #416]\n"
	"	\\op q28, q29, [\\base, #448]\n	\\op q30, q31, [\\base, #480]\n"
	"	.endm\n"
	"	.p2align 2\n"
	"probe:	hint #34\n"
	"	sub sp, sp, #160\n"
	"	own stp\n"
	"	mov x16, x0\n"
	"	address_of x17, probe_sp_saved\n"
	"	mov x9, sp\n"
	"	str x9, [x17]\n"
	"	sub sp, sp, x1\n"
	"	sub sp, sp, #256\n"
	"	address_of x17, probe_sp_in\n"
	"	mov x9, sp\n"
	"	str x9, [x17]\n"
	"	address_of x17, probe_vector_in\n"
	"	vectors_at ldp, x17\n"
	"	address_of x17, probe_fp_in\n"
	"	ldp x9, x10, [x17]\n"
	"	msr fpsr, x9\n"
	"	msr fpcr, x10\n"
	"	address_of x17, probe_in\n"
	"	ldr x30, [x17, #240]\n"
	"	ldr x9, [x17, #248]\n"
	"	msr nzcv, x9\n"
	"	all ldp\n"
	"	br x16\n"
	"probe_landed:\n"
	"	hint #34\n"
	"	address_of x17, probe_out\n"
	"	all stp\n"
	"	str x16, [x17, #128]\n"
	"	mrs x9, nzcv\n"
	"	stp x30, x9, [x17, #240]\n"
	"	address_of x17, probe_sp_out\n"
	"	mov x9, sp\n"
	"	str x9, [x17]\n"
	"	address_of x17, probe_vector_out\n"
	"	vectors_at stp, x17\n"
	"	address_of x17, probe_fp_out\n"
	"	mrs x9, fpsr\n"
	"	mrs x10, fpcr\n"
	"	stp x9, x10, [x17]\n"
	"	msr fpcr, xzr\n"
	"	address_of x17, probe_sp_saved\n"
	"	ldr x9, [x17]\n"
	"	mov sp, x9\n"
	"	own ldp\n"
	"	add sp, sp, #160\n"
	"	ret\n");

/* --- kept state --- */

static void spoil_state(void)
{
	static _Alignas(16) const uint8_t spoilt[512] = {1, 2, 3};
	register const uint8_t *x16 __asm__("x16") = spoilt;
	__asm__ volatile("vectors_at ldp, x16; cmp xzr, xzr; msr fpsr, xzr; msr fpcr, xzr"
			 :
			 : "r"(x16), "m"(spoilt)
			 : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",
			   "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21",
			   "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31",
			   "cc");
}

static void hit_and_land(struct ch__arch_stub_context *context, struct ch_regs *regs,
			 uintptr_t return_address)
{
	struct rig *rig = note_hit(context, regs, return_address);
	CHECK(memcmp(regs->extended, probe_vector_in, sizeof probe_vector_in) == 0);
	memcpy(rig->seen_fp, (uint8_t *)regs->extended + 512, sizeof probe_fp_in);
	regs->pc = (uintptr_t)probe_landed;
	for (unsigned i = 0; rig->changes && i < 31; i++)
		regs->gpr[i] = ~probe_in[i];
	spoil_state();
}

static void fill_probe(uint64_t flags)
{
	for (unsigned i = 0; i < 32; i++)
		probe_in[i] = 0x1111111111111111u * i + 0x0123456789abcdefu;
	probe_in[SP] = flags;
	for (unsigned i = 0; i < sizeof probe_vector_in; i++)
		probe_vector_in[i / 16][i % 16] = (uint8_t)(0x80 + i * 7 + i / 256);
	probe_fp_in[0] = 0x08000015; /* QC and some exception flags */
	probe_fp_in[1] = 0x00c00000; /* rounds toward zero */
	memset(probe_out, 0, sizeof probe_out);
	memset(probe_vector_out, 0, sizeof probe_vector_out);
}

static void check_probe(const struct rig *rig)
{
	for (unsigned i = 0; i < 31; i++) {
		if (i == X17 || i == X16)
			continue;
		CHECK_EQ(rig->seen.gpr[i], probe_in[i]);
		CHECK_EQ(probe_out[i], rig->changes ? ~probe_in[i] : probe_in[i]);
	}
	CHECK_EQ(rig->seen.gpr[X16], 0);
	CHECK_EQ(rig->seen.gpr[X17], 0);
	CHECK_EQ(probe_out[X16], rig->changes ? ~probe_in[X16] : 0);
	CHECK_EQ(rig->seen.gpr[SP], probe_sp_in);
	CHECK_EQ(rig->seen.sp, probe_sp_in);
	CHECK_EQ(probe_sp_out, probe_sp_in);
	CHECK_EQ(probe_out[SP], probe_in[SP]);
	CHECK(memcmp(probe_vector_in, probe_vector_out, sizeof probe_vector_in) == 0);
	for (unsigned i = 0; i < 2; i++) {
		CHECK_EQ(rig->seen_fp[i], probe_fp_in[i]);
		CHECK_EQ(probe_fp_out[i], probe_fp_in[i]);
	}
}

static void probe_all(struct rig *rig)
{
	for (uint64_t flags = 0; flags < 16; flags++)
		for (uintptr_t shift = 0; shift < 5 * 16; shift += 16)
			for (unsigned changes = 0; changes < 2; changes++) {
				rig->changes = changes;
				fill_probe(flags << 28);
				probe(rig->stub, shift);
				check_probe(rig);
			}
	CHECK_EQ(rig->hits, 16 * 5 * 2);
}

TEST(stub_hit_keeps_or_changes_every_register)
{
	static struct rig rig;
	map_rig(&rig, hit_and_land);
	CHECK_EQ(memcmp(rig.write + TRAMPOLINE_AT, &ch__arch_landing, CH_ARCH_LANDING_BYTES), 0);
	probe_all(&rig);
}

TEST(stub_hit_left_by_longjmp_is_harmless)
{
	static struct rig rig;
	jump_out_of_hits(&rig);
	rig.context.hit = hit_and_land;
	probe_all(&rig);
}

/* --- unwinding through the stub entry into a JIT frame --- */

/* Values that the JIT code below leaves in registers, for the unwinder to find. */
enum { SITE_LR = 0x5a5a, SITE_X19 = 0x1234, SITE_X28 = 0x7654 };

/* Enters a frame, loads known words into x30, x19 and x28, and takes the branch. The callback goes
 * on behind the branch, where the code leaves the frame. */
static const uint32_t code_with_frame[] = {
	0xd503245f, /* bti c */
	0xa9bf7bfd, /* stp x29, x30, [sp, #-16]! */
	0x910003fd, /* mov x29, sp */
	0xa9bf73f3, /* stp x19, x28, [sp, #-16]! */
	0xd28b4b5e, /* mov x30, #0x5a5a */
	0xd2824693, /* mov x19, #0x1234 */
	0xd28eca9c, /* mov x28, #0x7654 */
	0x14000000, /* b: the site */
	0xa8c173f3, /* ldp x19, x28, [sp], #16 */
	0xa8c17bfd, /* ldp x29, x30, [sp], #16 */
	0xd65f03c0, /* ret */
};
/* The caller's address is in x30 only. */
static const uint32_t code_of_leaf[] = {
	0xd503245f, /* bti c */
	0xaa1303e9, /* mov x9, x19 */
	0xaa1c03ea, /* mov x10, x28 */
	0xd2824693, /* mov x19, #0x1234 */
	0xd28eca9c, /* mov x28, #0x7654 */
	0x14000000, /* b: the site */
	0xaa0903f3, /* mov x19, x9 */
	0xaa0a03fc, /* mov x28, x10 */
	0xd65f03c0, /* ret */
};

static uintptr_t write_jit(struct rig *rig, bool is_leaf)
{
	static const uint8_t cfi_of_leaf[] = {0x0c, 31, 0}; /* cfa = sp, return address in x30 */
	enum { JIT_AT = CODE_BYTES - 4096 };
	unsigned site = is_leaf ? 5 : 7;
	uintptr_t entry = (uintptr_t)rig->exec + JIT_AT;
	memcpy(rig->write + JIT_AT, is_leaf ? code_of_leaf : code_with_frame,
	       is_leaf ? sizeof code_of_leaf : sizeof code_with_frame);
	ch__arch_site_write(CH_JMP, rig->write + JIT_AT + 4 * site, entry + 4 * site,
			    rig->stub);
	ch__arch_sync(rig->exec, CODE_BYTES);
	leave_to = entry + 4 * site + 4;
	frames.jit_low = entry;
	frames.jit_high = (uintptr_t)rig->exec + CODE_BYTES;
	frames.registers[0] = (struct site_register){30, is_leaf ? 0 : SITE_LR, "x30 is lost"};
	frames.registers[1] = (struct site_register){19, SITE_X19, "x19 is lost"};
	frames.registers[2] = (struct site_register){28, SITE_X28, "x28 is lost"};
	jit_range_register(entry, CODE_BYTES - JIT_AT,
			   is_leaf ? cfi_of_leaf : ch__arch_cfi_frame_pointer,
			   is_leaf ? sizeof cfi_of_leaf : sizeof ch__arch_cfi_frame_pointer);
	return entry;
}

TEST(unwinder_passes_from_the_callback_into_the_jit_frame)
{
	static struct rig rig;
	map_rig(&rig, hit_and_backtrace);
	for (int is_leaf = 0; is_leaf < 2; is_leaf++) {
		uintptr_t caller = ch__arch_strip(call_jit(write_jit(&rig, is_leaf)));
		jit_range_forget();
		const char *wrong = judge_frames(rig.stub + CH_ARCH_STUB_CALL_BYTES, caller);
		if (wrong)
			FAIL("%s: %s", is_leaf ? "leaf" : "frame", wrong);
	}
}

/* --- unwinding at each instruction of the stub entry --- */

static void step_through_jit(bool is_leaf)
{
	enum { BR_X17 = 0xd61f0220, BRK_1 = 0xd4200020, LEAVING = 1 };
	static struct rig rig;
	map_rig(&rig, hit_and_backtrace);
	step_through(&rig, write_jit(&rig, is_leaf), BR_X17, LEAVING, BRK_1);
}

TEST(unwinder_passes_at_every_instruction_of_the_stub_entry)
{
	step_through_jit(false);
}

TEST(unwinder_passes_a_leaf_at_every_instruction_of_the_stub_entry)
{
	step_through_jit(true);
}

/* --- images --- */

enum { KNOWN_X30 = 11 }; /* index of the word with the caller's address */
__asm__("	.text\n"
	"	.globl call_with_known, known_next\n"
	"	.hidden call_with_known, known_next\n"
	"	.type call_with_known, %function\n"
	"call_with_known:\n"
	"	stp x29, x30, [sp, #-160]!\n"
	"	stp x19, x20, [sp, #16]; stp x21, x22, [sp, #32]; stp x23, x24, [sp, #48]\n"
	"	stp x25, x26, [sp, #64]; stp x27, x28, [sp, #80]; stp d8, d9, [sp, #96]\n"
	"	stp d10, d11, [sp, #112]; stp d12, d13, [sp, #128]; stp d14, d15, [sp, #144]\n"
	"	adrp x10, known_sp; add x10, x10, :lo12:known_sp; mov x9, sp; str x9, [x10]\n"
	"	mov x9, x0; mov x0, x1\n"
	"	adrp x10, known; add x10, x10, :lo12:known\n"
	"	ldp x19, x20, [x10]; ldp x21, x22, [x10, #16]; ldp x23, x24, [x10, #32]\n"
	"	ldp x25, x26, [x10, #48]; ldp x27, x28, [x10, #64]; ldr x29, [x10, #80]\n"
	"	ldp d8, d9, [x10, #96]; ldp d10, d11, [x10, #112]; ldp d12, d13, [x10, #128]\n"
	"	ldp d14, d15, [x10, #144]\n"
	"	blr x9\n"
	"known_next:\n"
	"	ldp x19, x20, [sp, #16]; ldp x21, x22, [sp, #32]; ldp x23, x24, [sp, #48]\n"
	"	ldp x25, x26, [sp, #64]; ldp x27, x28, [sp, #80]; ldp d8, d9, [sp, #96]\n"
	"	ldp d10, d11, [sp, #112]; ldp d12, d13, [sp, #128]; ldp d14, d15, [sp, #144]\n"
	"	ldp x29, x30, [sp], #160\n"
	"	ret\n"
	"	.size call_with_known, . - call_with_known\n");

TEST(each_register_that_a_function_keeps_is_saved_and_passed_on)
{
	expect_known_are_saved(KNOWN_X30);
	expect_known_are_passed_on(KNOWN_X30);
}

TEST(saved_registers_hold_what_the_caller_has)
{
	struct ch__arch_saved saved;
	uintptr_t sp, next;
	register struct ch__arch_saved *x0 __asm__("x0") = &saved;
	__asm__ volatile("mov x19, #0x1919; mov x20, #0x2020; mov x27, #0x2727; mov x28, #0x2828\n"
			 "fmov d8, x19; fmov d15, x28\n"
			 "bl ch__arch_save_registers\n"
			 "1: mov %0, sp; adr %1, 1b"
			 : "=&r"(sp), "=&r"(next), "+r"(x0)
			 :
			 : "x19", "x20", "x27", "x28", "x30", "x9", "v8", "v15", "memory");
	CHECK_EQ(saved.sp, sp);
	CHECK_EQ(saved.words[0], 0x1919);
	CHECK_EQ(saved.words[1], 0x2020);
	CHECK_EQ(saved.words[8], 0x2727);
	CHECK_EQ(saved.words[9], 0x2828);
	CHECK_EQ(saved.words[10], (uintptr_t)__builtin_frame_address(0));
	CHECK_EQ(saved.words[11], next);
	CHECK_EQ(saved.words[12], 0x1919);
	CHECK_EQ(saved.words[19], 0x2828);
}

static struct ch__arch_saved passed;
static void keep_passed(const struct ch__arch_saved *saved)
{
	passed = *saved;
}

/* The whole body is the jump, so only x30 has the caller's address; x30 is in the image. */
void pass_on(void (*fn)(const struct ch__arch_saved *));
__asm__("	.text\n	.globl pass_on\n	.hidden pass_on\n	.p2align 2\n"
	"pass_on: hint #34\n	b ch__arch_with_registers\n");

TEST(registers_that_are_passed_hold_the_callers_address)
{
	uintptr_t sp, next;
	register uintptr_t x0 __asm__("x0") = (uintptr_t)keep_passed;
	__asm__ volatile("mov x19, #0x1919; mov x28, #0x2828; fmov d8, x19; fmov d15, x28\n"
			 "bl pass_on\n"
			 "1: mov %0, sp; adr %1, 1b"
			 : "=&r"(sp), "=&r"(next), "+r"(x0)
			 :
			 : "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11",
			   "x12", "x13", "x14", "x15", "x16", "x17", "x18", "x19", "x28", "x30",
			   "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v15",
			   "v16", "v17", "v18",
			   "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28",
			   "v29", "v30", "v31", "cc", "memory");
	CHECK_EQ(passed.sp, sp);
	CHECK_EQ(passed.words[0], 0x1919);
	CHECK_EQ(passed.words[9], 0x2828);
	CHECK_EQ(passed.words[10], (uintptr_t)__builtin_frame_address(0));
	CHECK_EQ(passed.words[11], next);
	CHECK_EQ(passed.words[12], 0x1919);
	CHECK_EQ(passed.words[19], 0x2828);
}

static uintptr_t trapped_at, trapped_words[CH_ARCH_CONTEXT_WORDS], trapped_sp, trapped_fp,
	trapped_return;

static void note_trap(int signal, siginfo_t *info, void *ucontext)
{
	trapped_at = ch__arch_trap_address(signal, info->si_code, ucontext);
	trapped_sp = ch__arch_context_sp(ucontext);
	trapped_fp = ch__arch_context_fp(ucontext);
	trapped_return = ch__arch_context_return(ucontext);
	for (unsigned i = 0; i < CH_ARCH_CONTEXT_WORDS; i++)
		trapped_words[i] = ch__arch_context_word(ucontext, i);
	((ucontext_t *)ucontext)->uc_mcontext.pc += 4;
}

TEST(signal_context_gives_every_register_and_the_trapping_address)
{
	struct sigaction action = {.sa_sigaction = note_trap, .sa_flags = SA_SIGINFO};
	uintptr_t here, sp, fp;
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	__asm__ volatile("adr %0, 1f; mov %1, sp; mov %2, x29\n"
			 "mov x0, #0x100; mov x18, #0x118; mov x28, #0x128; mov x30, #0x130\n"
			 "1: brk #7"
			 : "=&r"(here), "=&r"(sp), "=&r"(fp)::"x0", "x18", "x28", "x30", "memory");
	CHECK_EQ(trapped_at, here);
	CHECK_EQ(trapped_words[32], here);
	CHECK_EQ(trapped_words[31], sp);
	CHECK_EQ(trapped_words[0], 0x100);
	CHECK_EQ(trapped_words[18], 0x118);
	CHECK_EQ(trapped_words[28], 0x128);
	CHECK_EQ(trapped_words[30], 0x130);
	CHECK_EQ(trapped_return, 0x130);
	CHECK_EQ(trapped_sp, sp);
	CHECK_EQ(trapped_fp, fp);
	uintptr_t caller_fp, return_address;
	ch__arch_frame_step((uintptr_t)__builtin_frame_address(0), &caller_fp, &return_address);
	CHECK_EQ(ch__arch_strip(return_address),
		 ch__arch_strip((uintptr_t)__builtin_return_address(0)));
}

TEST(each_register_of_a_signal_context_has_its_place)
{
	ucontext_t context;
	memset(&context, 0, sizeof context);
	for (unsigned i = 0; i < 31; i++)
		context.uc_mcontext.regs[i] = 0x1000 + i;
	context.uc_mcontext.sp = 0x1000 + 31;
	context.uc_mcontext.pc = 0x1000 + 32;
	for (unsigned i = 0; i < CH_ARCH_CONTEXT_WORDS; i++)
		CHECK_EQ(ch__arch_context_word(&context, i), 0x1000 + i);
}

/* --- signatures --- */

static int signer(int n)
{
	return n + 1;
}

/* Where the processor signs, most signed addresses differ from the plain address. Stripping gives
 * the plain address on every processor, and leaves a plain address alone. */
TEST(signature_is_stripped_from_a_return_address)
{
	uintptr_t address = (uintptr_t)signer;
	unsigned signed_ones = 0;
	for (uintptr_t sp = 0x7000; sp < 0x7000 + 16 * 64; sp += 16) {
		uintptr_t word = code_sign(address, sp);
		signed_ones += word != address;
		CHECK_EQ(ch__arch_strip(word), address);
		ucontext_t context;
		context.uc_mcontext.regs[30] = word;
		CHECK_EQ(ch__arch_context_return(&context), address);
	}
	CHECK_EQ(ch__arch_strip(address), address);
	bool has_pac = (getauxval(AT_HWCAP) & HWCAP_PACA) != 0;
	printf("%u of 64 are signed\n", signed_ones);
	CHECK(has_pac ? signed_ones > 32 : signed_ones == 0);
}

/* --- what a signal interrupted --- */

static uintptr_t unrecorded_at(const uint32_t *code)
{
	ucontext_t context;
	memset(&context, 0, sizeof context);
	context.uc_mcontext.pc = (uintptr_t)code;
	context.uc_mcontext.regs[30] = 0x1110;
	return ch__arch_unrecorded_return(&context);
}

TEST(code_without_a_frame_record_has_its_caller_in_the_link_register)
{
	enum { BTI_JC = 0xd50324df, NOP = 0xd503201f, RET = 0xd65f03c0, RETAA = 0xd65f0bff };
	enum { PACIASP = 0xd503233f, AUTIASP = 0xd50323bf, ADD = 0x91000400 };
	enum { STP = 0xa9be7bfd, MOV = 0x910003fd }; /* stp x29, x30, [sp, #-32]!; mov x29, sp */
	_Alignas(64) const uint32_t begin[] = {ch__arch_landing, NOP, PACIASP, STP, MOV, ADD};
	_Alignas(64) const uint32_t short_begin[] = {BTI_JC, STP};
	_Alignas(64) const uint32_t end[] = {ADD, AUTIASP, RET, RETAA, ADD, MOV};
	for (unsigned i = 0; i < 5; i++)
		CHECK_EQ(unrecorded_at(begin + i), 0x1110);
	CHECK_EQ(unrecorded_at(begin + 5), 0);
	CHECK_EQ(unrecorded_at(short_begin), 0x1110);
	for (unsigned i = 0; i < 6; i++)
		CHECK_EQ(unrecorded_at(end + i), i >= 1 && i <= 3 ? 0x1110 : 0);
	CHECK_EQ(unrecorded_at((const uint32_t *)((uintptr_t)end + 2)), 0);
	/* stp x29, x19; stp x19, x30; stp x29, x30, [x0, #-32]!; stp x29, x30, [sp, #16] */
	static const uint32_t others[] = {0xa9be4ffd, 0xa9be7bf3, 0xa9be781d, 0xa9017bfd};
	for (unsigned i = 0; i < 4; i++)
		CHECK_EQ(unrecorded_at(others + i), 0);
}

/* The pages before and behind the code cannot be read. */
TEST(caller_is_read_off_code_between_the_ends_of_its_page)
{
	enum { NOP = 0xd503201f, MOV = 0x910003fd };
	size_t page = CH_ARCH_SMALLEST_PAGE;
	uint8_t *code = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(code != MAP_FAILED);
	code += page;
	CHECK_EQ(mprotect(code, page, PROT_READ | PROT_WRITE), 0);
	uint32_t *first = (void *)code, *last = (void *)(code + page - 4);
	*first = MOV;
	CHECK_EQ(unrecorded_at(first), 0);
	*last = ch__arch_landing;
	CHECK_EQ(unrecorded_at(last), 0);
	*last = NOP;
	CHECK_EQ(unrecorded_at(last), 0);
	CHECK_EQ(unrecorded_at((const uint32_t *)(uintptr_t)(code + page - 2)), 0);
}

/* The frame of a signal has a record that says where further records lie. */
TEST(vectors_of_a_signal_end_behind_all_its_records)
{
	enum { AT = 528, EXTRA_BYTES = 32, MORE = 64 };
	static struct {
		ucontext_t context;
		uint8_t more[MORE];
	} frame;
	uint8_t *records = frame.context.uc_mcontext.__reserved;
	const uint32_t vectors[] = {0x46508001, AT}, extra[] = {0x45585401, EXTRA_BYTES};
	const uint64_t more = (uintptr_t)frame.more;
	const uint32_t bytes = MORE;
	uintptr_t behind = (uintptr_t)records + sizeof frame.context.uc_mcontext.__reserved, end;
	memcpy(records, vectors, sizeof vectors);
	CHECK_EQ(ch__arch_context_vectors(&frame.context, &end), (uintptr_t)records);
	CHECK_EQ(end, behind);
	memcpy(records + AT, extra, sizeof extra);
	memcpy(records + AT + 8, &more, sizeof more);
	memcpy(records + AT + 16, &bytes, sizeof bytes);
	CHECK_EQ(ch__arch_context_vectors(&frame.context, &end), (uintptr_t)records);
	CHECK_EQ(end, (uintptr_t)(frame.more + MORE));
}

/* A record ends the search when it is no record: empty, too short, or the mark of the end; and what
 * a record says of further records counts only if that may be so. */
TEST(vectors_of_a_signal_end_at_a_record_that_is_none)
{
	enum { EXTRA = 0x45585401, EXTRA_BYTES = 32, MORE = 64, FAR = 1 << 21 };
	static struct {
		ucontext_t context;
		uint64_t more[MORE / 8];
	} frame;
	uint8_t *records = frame.context.uc_mcontext.__reserved;
	const uint32_t bytes = sizeof frame.context.uc_mcontext.__reserved;
	const uintptr_t more = (uintptr_t)frame.more, behind = (uintptr_t)records + bytes;
	const struct {
		uint32_t words[4]; /* the first record, and one that begins in the first */
		uint32_t at;       /* of the record that says more */
		uint64_t data;
		uint32_t data_bytes;
		uintptr_t end;
	} lists[] = {
		{{1, 16}, 16, more, MORE, more + MORE},
		{{0, 16}, 16, more, MORE, behind},
		{{1, 4, 8}, 12, more, MORE, behind},
		{{1, bytes - 8}, bytes - 8, 0, 0, behind},
		{{1, 16}, 16, behind + FAR, 8, behind},
		{{1, 16}, 16, more, FAR, behind},
	};
	for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++) {
		const uint32_t extra[] = {EXTRA, EXTRA_BYTES};
		memset(records, 0, bytes);
		memcpy(records, lists[i].words, sizeof lists[i].words);
		memcpy(records + lists[i].at, extra, sizeof extra);
		if (lists[i].at + EXTRA_BYTES < bytes) {
			memcpy(records + lists[i].at + 8, &lists[i].data, 8);
			memcpy(records + lists[i].at + 16, &lists[i].data_bytes, 4);
		} else {
			const uint32_t short_one[] = {EXTRA, 8};
			memcpy(records + lists[i].at, short_one, sizeof short_one);
			frame.more[0] = more;
			frame.more[1] = MORE;
		}
		uintptr_t end = 0;
		CHECK_EQ(ch__arch_context_vectors(&frame.context, &end), (uintptr_t)records);
		CHECK_EQ(end, lists[i].end);
	}
}

/* An indirect jump enters them: by a stub's trampoline, or by a pointer. */
TEST(functions_of_the_machine_begin_with_a_landing_pad)
{
	void (*const functions[])(void) = {ch__arch_stub_entry,
					   (void (*)(void))ch__arch_save_registers,
					   (void (*)(void))ch__arch_with_registers};
	for (unsigned i = 0; i < 3; i++)
		CHECK(ch__arch_landing_is_there((const uint8_t *)(uintptr_t)functions[i]));
}

TEST(breakpoint_of_a_debugger_is_seen)
{
	_Alignas(8) static const uint32_t words[] = {0xd4200000, 0xd4200020, 0xd503245f};
	for (unsigned i = 0; i < 3; i++)
		CHECK_EQ(ch__arch_has_breakpoint(words + i), i == 0);
}
