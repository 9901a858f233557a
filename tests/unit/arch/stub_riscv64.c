/* SPDX-License-Identifier: MIT
 * stub_riscv64.c: what a stub hit keeps and what the callback may change: every register,
 * floating-point state, any alignment of sp. Also unwinding at each instruction of the stub entry,
 * longjmp out of the callback, and the image of callee-saved registers. */
#define _GNU_SOURCE
#include "arch/sites.h"
#include "tests/support/known_registers.h"
#include "tests/support/stub_rig.h"

enum {
	RA = 1,
	SP = 2,
	GP = 3,
	TP = 4,
	T1 = 6,
	S0 = 8,
	T3 = 28,
};

/* probe(target, shift): loads every register from probe_in, moves sp down by shift, and jumps to
 * target. The code at probe_landed stores all registers to probe_out. The arrays go by register
 * number. At a site x0, sp, gp, tp, t1 and t3 do not belong to the code. */
void probe(uintptr_t target, uintptr_t shift);
extern char probe_landed[];
uint64_t probe_in[32], probe_out[32], probe_float_in[33], probe_float_out[33];
uint64_t probe_sp_in, probe_sp_out, probe_sp_saved;

/* The registers at a site: callee-saved registers, the others, floating-point registers. */
__asm__("	.text\n"
	"	.option push\n"
	"	.option norelax\n"
	"	.macro probe_by_number op, letter, at, numbers:vararg\n"
	"	.irp n, \\numbers\n"
	"	\\op \\letter\\n, 8*\\n(\\at)\n"
	"	.endr\n"
	"	.endm\n"
	"	.macro probe_kept op, at\n"
	"	probe_by_number \\op, x, \\at, 8,9,18,19,20,21,22,23,24,25,26,27\n"
	"	.endm\n"
	"	.macro probe_others op, at\n"
	"	probe_by_number \\op, x, \\at, 1,5,7,10,11,12,13,14,15,16,17,29,30,31\n"
	"	.endm\n"
	"	.macro probe_floats op, at\n"
	"	probe_by_number \\op, f, \\at, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
	"	probe_by_number \\op, f, \\at, 16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
	"	.endm\n"
	"	.macro probe_keep_sp at\n"
	"	la t0, \\at\n"
	"	sd sp, 0(t0)\n"
	"	.endm\n"
	"probe:\n"
	"	addi sp, sp, -256\n"
	"	probe_kept sd, sp\n"
	"	sd ra, 8(sp)\n"
	"	probe_keep_sp probe_sp_saved\n"
	"	sub sp, sp, a1\n"
	"	addi sp, sp, -256\n"
	"	probe_keep_sp probe_sp_in\n"
	"	mv t1, a0\n"
	"	la t3, probe_float_in\n"
	"	probe_floats fld, t3\n"
	"	ld t0, 256(t3)\n"
	"	fscsr t0\n"
	"	la t3, probe_in\n"
	"	probe_kept ld, t3\n"
	"	probe_others ld, t3\n"
	"	jr t1\n"
	"	ebreak\n"
	"probe_landed:\n"
	"	la t3, probe_out\n"
	"	probe_kept sd, t3\n"
	"	probe_others sd, t3\n"
	"	probe_keep_sp probe_sp_out\n"
	"	la t3, probe_float_out\n"
	"	probe_floats fsd, t3\n"
	"	frcsr t0\n"
	"	sd t0, 256(t3)\n"
	"	fscsr zero\n"
	"	la t0, probe_sp_saved\n"
	"	ld sp, 0(t0)\n"
	"	probe_kept ld, sp\n"
	"	ld ra, 8(sp)\n"
	"	addi sp, sp, 256\n"
	"	ret\n"
	"	.option pop\n");

/* Says whether the code owns the register at a site and the callback may change the register. */
static bool is_free(unsigned i)
{
	return i != 0 && i != SP && i != GP && i != TP && i != T1 && i != T3;
}

static void spoil_state(void)
{
	__asm__ volatile("fscsr zero; fmv.d.x f0, zero; fmv.d.x f10, zero; fmv.d.x f17, zero\n"
			 "fmv.d.x f28, zero; fmv.d.x f31, zero; li t0, 0; li a7, 0; li t6, 0" ::
				 : "f0", "f10", "f17", "f28", "f31", "t0", "a7", "t6");
}

static void hit_and_land(struct ch__arch_stub_context *context, struct ch_regs *regs,
			 uintptr_t return_address)
{
	struct rig *rig = note_hit(context, regs, return_address);
	memcpy(rig->seen_fp, regs->extended, sizeof rig->seen_fp);
	regs->pc = (uintptr_t)probe_landed;
	for (unsigned i = 0; rig->changes && i < 32; i++)
		if (i != SP)
			regs->gpr[i] = ~regs->gpr[i];
	for (unsigned i = 0; rig->changes && i < 32; i++)
		((uint64_t *)regs->extended)[i] = ~probe_float_in[i];
	spoil_state();
}

static void fill_probe(void)
{
	for (unsigned i = 0; i < 32; i++) {
		probe_in[i] = 0x1111111111111111u * (i % 15) + 0x0123456789abcdefu + i;
		probe_float_in[i] = 0x4008000000000000 + i;
	}
	probe_float_in[32] = 0x35; /* rounds toward zero, three flags */
	memset(probe_out, 0, sizeof probe_out);
	memset(probe_float_out, 0, sizeof probe_float_out);
}

static void check_probe(const struct rig *rig)
{
	for (unsigned i = 0; i < 32; i++) {
		if (!is_free(i))
			continue;
		CHECK_EQ(rig->seen.gpr[i], probe_in[i]);
		CHECK_EQ(probe_out[i], rig->changes ? ~probe_in[i] : probe_in[i]);
	}
	for (unsigned i = 0; i < 32; i++) {
		CHECK_EQ(rig->seen_fp[i], probe_float_in[i]);
		CHECK_EQ(probe_float_out[i], rig->changes ? ~probe_float_in[i] : probe_float_in[i]);
	}
	CHECK_EQ(rig->seen_fp[32], probe_float_in[32]);
	CHECK_EQ(probe_float_out[32], probe_float_in[32]);
	CHECK_EQ(rig->seen.gpr[0], 0);
	CHECK_EQ(rig->seen.gpr[SP], probe_sp_in);
	CHECK_EQ(rig->seen.sp, probe_sp_in);
	CHECK_EQ(probe_sp_out, probe_sp_in);
}

static void probe_all(struct rig *rig)
{
	for (uintptr_t shift = 0; shift < 65; shift++)
		for (unsigned changes = 0; changes < 2; changes++) {
			rig->changes = changes;
			fill_probe();
			probe(rig->stub, shift);
			check_probe(rig);
		}
	CHECK_EQ(rig->hits, 65 * 2);
}

/* The thread lives on, so gp and tp stay, although the callback changed the image of both. */
TEST(stub_hit_keeps_or_changes_every_register)
{
	static struct rig rig;
	map_rig(&rig, hit_and_land);
	probe_all(&rig);
	uint64_t gp, tp;
	__asm__("mv %0, gp; mv %1, tp" : "=r"(gp), "=r"(tp));
	CHECK_EQ(rig.seen.gpr[GP], gp);
	CHECK_EQ(rig.seen.gpr[TP], tp);
}

TEST(stub_hit_left_by_longjmp_is_harmless)
{
	static struct rig rig;
	jump_out_of_hits(&rig);
	rig.context.hit = hit_and_land;
	probe_all(&rig);
}

/* --- unwinding through the stub entry into a JIT frame, by the CFI of arch.h --- */

/* Values that the JIT code below leaves in registers, for the unwinder to find. */
enum { SITE_RA = 0x5a5a5a5a, SITE_S1 = 0x1234567, SITE_S11 = 0x7654321 };

/* Enters a frame, loads known words into ra, s1 and s11, and takes the branch. The callback goes on
 * behind the branch, where the code leaves the frame. Returns the entry. */
static uintptr_t write_jit(struct rig *rig)
{
	static const uint32_t code[] = {
		0xfe010113, /* addi sp, sp, -32 */
		0x00113c23, /* sd ra, 24(sp) */
		0x00813823, /* sd s0, 16(sp) */
		0x00913423, /* sd s1, 8(sp) */
		0x01b13023, /* sd s11, 0(sp) */
		0x02010413, /* addi s0, sp, 32 */
		0x5a5a60b7, /* lui ra, 0x5a5a6 */
		0xa5a0809b, /* addiw ra, ra, -0x5a6 */
		0x012344b7, /* lui s1, 0x1234 */
		0x5674849b, /* addiw s1, s1, 0x567 */
		0x07654db7, /* lui s11, 0x7654 */
		0x321d8d9b, /* addiw s11, s11, 0x321 */
		0x0000006f, /* j: the site */
		0x01813083, /* ld ra, 24(sp) */
		0x01013403, /* ld s0, 16(sp) */
		0x00813483, /* ld s1, 8(sp) */
		0x00013d83, /* ld s11, 0(sp) */
		0x02010113, /* addi sp, sp, 32 */
		0x00008067, /* ret */
	};
	enum { JIT_AT = CODE_BYTES - 4096, SITE = 12 };
	uintptr_t entry = (uintptr_t)rig->exec + JIT_AT;
	memcpy(rig->write + JIT_AT, code, sizeof code);
	ch__arch_site_write(CH_JMP, rig->write + JIT_AT + 4 * SITE, entry + 4 * SITE,
			    rig->stub);
	ch__arch_sync(rig->exec, CODE_BYTES);
	leave_to = entry + 4 * SITE + 4;
	frames.jit_low = entry;
	frames.jit_high = (uintptr_t)rig->exec + CODE_BYTES;
	frames.registers[0] = (struct site_register){RA, SITE_RA, "ra is lost"};
	frames.registers[1] = (struct site_register){9, SITE_S1, "s1 is lost"};
	frames.registers[2] = (struct site_register){27, SITE_S11, "s11 is lost"};
	jit_range_register(entry, CODE_BYTES - JIT_AT, ch__arch_cfi_frame_pointer,
			   sizeof ch__arch_cfi_frame_pointer);
	return entry;
}

TEST(unwinder_passes_from_the_callback_into_the_jit_frame)
{
	static struct rig rig;
	map_rig(&rig, hit_and_backtrace);
	uintptr_t caller = call_jit(write_jit(&rig));
	jit_range_forget();
	const char *wrong = judge_frames(rig.stub + CH_ARCH_STUB_CALL_BYTES, caller);
	if (wrong)
		FAIL("%s", wrong);
}

TEST(unwinder_passes_at_every_instruction_of_the_stub_entry)
{
	enum { JR_T1 = 0x00030067, EBREAK = 0x00100073, LEAVING = 5 };
	static struct rig rig;
	map_rig(&rig, hit_and_backtrace);
	step_through(&rig, write_jit(&rig), JR_T1, LEAVING, EBREAK);
}

/* --- images --- */

enum { KNOWN_RA = 12 }; /* index of the word with the caller's address */
__asm__("	.text\n"
	"	.globl call_with_known, known_next\n"
	"	.hidden call_with_known, known_next\n"
	"	.type call_with_known, @function\n"
	"call_with_known:\n"
	"	addi sp, sp, -208; sd ra, 96(sp)\n"
	"	sd s0, 0(sp); sd s1, 8(sp); sd s2, 16(sp); sd s3, 24(sp)\n"
	"	sd s4, 32(sp); sd s5, 40(sp); sd s6, 48(sp); sd s7, 56(sp)\n"
	"	sd s8, 64(sp); sd s9, 72(sp); sd s10, 80(sp); sd s11, 88(sp)\n"
	"	fsd fs0, 104(sp); fsd fs1, 112(sp); fsd fs2, 120(sp); fsd fs3, 128(sp)\n"
	"	fsd fs4, 136(sp); fsd fs5, 144(sp); fsd fs6, 152(sp); fsd fs7, 160(sp)\n"
	"	fsd fs8, 168(sp); fsd fs9, 176(sp); fsd fs10, 184(sp); fsd fs11, 192(sp)\n"
	"	la t1, known_sp; sd sp, 0(t1)\n"
	"	mv t0, a0; mv a0, a1\n"
	"	la t1, known\n"
	"	ld s0, 0(t1); ld s1, 8(t1); ld s2, 16(t1); ld s3, 24(t1)\n"
	"	ld s4, 32(t1); ld s5, 40(t1); ld s6, 48(t1); ld s7, 56(t1)\n"
	"	ld s8, 64(t1); ld s9, 72(t1); ld s10, 80(t1); ld s11, 88(t1)\n"
	"	fld fs0, 104(t1); fld fs1, 112(t1); fld fs2, 120(t1); fld fs3, 128(t1)\n"
	"	fld fs4, 136(t1); fld fs5, 144(t1); fld fs6, 152(t1); fld fs7, 160(t1)\n"
	"	fld fs8, 168(t1); fld fs9, 176(t1); fld fs10, 184(t1); fld fs11, 192(t1)\n"
	"	jalr t0\n"
	"known_next:\n"
	"	ld s0, 0(sp); ld s1, 8(sp); ld s2, 16(sp); ld s3, 24(sp)\n"
	"	ld s4, 32(sp); ld s5, 40(sp); ld s6, 48(sp); ld s7, 56(sp)\n"
	"	ld s8, 64(sp); ld s9, 72(sp); ld s10, 80(sp); ld s11, 88(sp)\n"
	"	fld fs0, 104(sp); fld fs1, 112(sp); fld fs2, 120(sp); fld fs3, 128(sp)\n"
	"	fld fs4, 136(sp); fld fs5, 144(sp); fld fs6, 152(sp); fld fs7, 160(sp)\n"
	"	fld fs8, 168(sp); fld fs9, 176(sp); fld fs10, 184(sp); fld fs11, 192(sp)\n"
	"	ld ra, 96(sp); addi sp, sp, 208\n"
	"	ret\n"
	"	.size call_with_known, . - call_with_known\n");

TEST(each_register_that_a_function_keeps_is_saved_and_passed_on)
{
	expect_known_are_saved(KNOWN_RA);
	expect_known_are_passed_on(KNOWN_RA);
}

TEST(saved_registers_hold_what_the_caller_has)
{
	struct ch__arch_saved saved;
	uintptr_t sp, next;
	register struct ch__arch_saved *a0 __asm__("a0") = &saved;
	__asm__ volatile("li s1, 0x101; li s2, 0x202; li s10, 0x1010; li s11, 0x1111\n"
			 "fmv.d.x fs0, s1; fmv.d.x fs11, s11\n"
			 "call ch__arch_save_registers\n"
			 "1: mv %0, sp; la %1, 1b"
			 : "=&r"(sp), "=&r"(next), "+r"(a0)
			 :
			 : "s1", "s2", "s10", "s11", "ra", "t0", "fs0", "fs11", "memory");
	CHECK_EQ(saved.sp, sp);
	CHECK_EQ(saved.words[0], (uintptr_t)__builtin_frame_address(0));
	CHECK_EQ(saved.words[1], 0x101);
	CHECK_EQ(saved.words[2], 0x202);
	CHECK_EQ(saved.words[10], 0x1010);
	CHECK_EQ(saved.words[11], 0x1111);
	CHECK_EQ(saved.words[12], next);
	CHECK_EQ(saved.words[13], 0x101);
	CHECK_EQ(saved.words[24], 0x1111);
}

static struct ch__arch_saved passed;
static void keep_passed(const struct ch__arch_saved *saved)
{
	passed = *saved;
}

/* The whole body is the jump, so only the link register in the image names the caller. */
__attribute__((naked, noinline)) static void pass_on(void)
{
	__asm__("la a0, keep_passed_address; ld a0, 0(a0); tail ch__arch_with_registers");
}
__attribute__((used)) void (*const keep_passed_address)(const struct ch__arch_saved *) =
	keep_passed;

TEST(registers_passed_on_name_the_caller)
{
	uintptr_t sp, next;
	__asm__ volatile("li s3, 0x303; fmv.d.x fs0, s3; fmv.d.x fs11, s3\n"
			 "jalr %2\n"
			 "1: mv %0, sp; la %1, 1b"
			 : "=&r"(sp), "=&r"(next)
			 : "r"(pass_on)
			 : "s3", "fs0", "fs11", "ra", "t0", "t1", "t2", "t3", "t4", "t5", "t6",
			   "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "memory");
	CHECK_EQ(passed.sp, sp);
	CHECK_EQ(passed.words[3], 0x303);
	CHECK_EQ(passed.words[12], next);
	CHECK_EQ(passed.words[13], 0x303);
	CHECK_EQ(passed.words[24], 0x303);
	CHECK_EQ(passed.words[0], (uintptr_t)__builtin_frame_address(0));
}

static uintptr_t trapped_at, trapped_words[CH_ARCH_CONTEXT_WORDS], trapped_sp, trapped_fp,
	trapped_pc, trapped_return;

static void note_trap(int signal, siginfo_t *info, void *ucontext)
{
	trapped_at = ch__arch_trap_address(signal, info->si_code, ucontext);
	trapped_sp = ch__arch_context_sp(ucontext);
	trapped_fp = ch__arch_context_fp(ucontext);
	trapped_pc = ch__arch_context_pc(ucontext);
	trapped_return = ch__arch_context_return(ucontext);
	for (unsigned i = 0; i < CH_ARCH_CONTEXT_WORDS; i++)
		trapped_words[i] = ch__arch_context_word(ucontext, i);
	((ucontext_t *)ucontext)->uc_mcontext.__gregs[REG_PC] += 2;
}

TEST(each_register_of_a_signal_context_has_its_place)
{
	ucontext_t context;
	memset(&context, 0, sizeof context);
	for (unsigned i = 0; i < CH_ARCH_CONTEXT_WORDS; i++)
		context.uc_mcontext.__gregs[i] = 0x1000 + i;
	for (unsigned i = 0; i < CH_ARCH_CONTEXT_WORDS; i++)
		CHECK_EQ(ch__arch_context_word(&context, i), 0x1000 + i);
}

TEST(signal_context_gives_every_register_and_the_trapping_address)
{
	struct sigaction action = {.sa_sigaction = note_trap, .sa_flags = SA_SIGINFO};
	uintptr_t here, sp, fp;
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	__asm__ volatile("la %0, 1f; mv %1, sp; mv %2, s0\n"
			 "li t6, 0x1515; li t2, 0x77; li ra, 0xcccc\n1: c.ebreak"
			 : "=&r"(here), "=&r"(sp), "=&r"(fp)::"t6", "t2", "ra", "memory");
	CHECK_EQ(trapped_at, here);
	CHECK_EQ(trapped_pc, here);
	CHECK_EQ(trapped_words[0], here); /* the pc takes the element of x0 */
	CHECK_EQ(trapped_words[SP], sp);
	CHECK_EQ(trapped_words[RA], 0xcccc);
	CHECK_EQ(trapped_words[7], 0x77);
	CHECK_EQ(trapped_words[31], 0x1515);
	CHECK_EQ(trapped_sp, sp);
	CHECK_EQ(trapped_fp, fp);
	CHECK_EQ(trapped_return, 0xcccc);
	CHECK_EQ(ch__arch_strip(here), here);
	uintptr_t caller_fp, return_address;
	ch__arch_frame_step((uintptr_t)__builtin_frame_address(0), &caller_fp, &return_address);
	CHECK_EQ(return_address, (uintptr_t)__builtin_return_address(0));
}

/* --- what a signal interrupted --- */

static uintptr_t unrecorded_at(const void *code)
{
	ucontext_t context;
	memset(&context, 0, sizeof context);
	context.uc_mcontext.__gregs[REG_PC] = (uintptr_t)code;
	context.uc_mcontext.__gregs[REG_RA] = 0x1110;
	return ch__arch_unrecorded_return(&context);
}

/* A diverter; addi sp, sp, -32; sd ra, 24(sp); sd s0, 16(sp); addi s0, sp, 32; a nop; addi sp, sp,
 * 32; ret. Each in 4 bytes, or compressed. */
TEST(code_without_a_frame_record_has_its_caller_in_ra)
{
	_Alignas(64) static const uint32_t whole[] = {0x00000037, 0xfe010113, 0x00113c23,
						      0x00813823, 0x02010413, 0x00000013,
						      0x02010113, 0x00008067};
	_Alignas(64) static const uint16_t compressed[] = {0x0037, 0x0000, 0x1101, 0xec06, 0xe822,
							   0x1000, 0x0001, 0x6105, 0x8082};
	_Alignas(64) static const uint16_t large[] = {0x7139, 0xec06}, illegal[] = {0xe822, 0};
	for (unsigned i = 0; i < 8; i++)
		CHECK_EQ(unrecorded_at(whole + i), i == 5 ? 0 : 0x1110);
	CHECK_EQ(unrecorded_at(compressed), 0x1110);
	for (unsigned i = 2; i < 9; i++)
		CHECK_EQ(unrecorded_at(compressed + i), i == 6 ? 0 : 0x1110);
	CHECK_EQ(unrecorded_at(large), 0x1110);
	CHECK_EQ(unrecorded_at(illegal + 1), 0);
	CHECK_EQ(unrecorded_at((const uint8_t *)whole + 1), 0);
	/* c.addi of a0, then c.sdsp ra, or ret; sd ra, 0(a0); addi sp, then a nop */
	_Alignas(64) static const uint16_t others[] = {0x0505, 0xec06, 0x0505, 0x8082};
	_Alignas(64) static const uint32_t others_whole[] = {0x00153023, 0xfe010113, 0x00000013};
	CHECK_EQ(unrecorded_at(others), 0);
	CHECK_EQ(unrecorded_at(others + 2), 0);
	CHECK_EQ(unrecorded_at(others_whole), 0);
	CHECK_EQ(unrecorded_at(others_whole + 1), 0);
}

/* The pages before and behind the code cannot be read. */
TEST(caller_is_read_off_code_to_the_last_byte_of_its_page)
{
	size_t page = CH_ARCH_SMALLEST_PAGE;
	uint8_t *code = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(code != MAP_FAILED);
	code += page;
	CHECK_EQ(mprotect(code, page, PROT_READ | PROT_WRITE), 0);
	const uint16_t first_half = 0x0113, ret = 0x8082, sets_s0 = 0x1000, moves_sp = 0x6105;
	memcpy(code, &sets_s0, sizeof sets_s0);
	CHECK_EQ(unrecorded_at(code), 0);
	memcpy(code + page - 2, &moves_sp, sizeof moves_sp);
	CHECK_EQ(unrecorded_at(code + page - 2), 0);
	memcpy(code + page - 2, &first_half, sizeof first_half);
	CHECK_EQ(unrecorded_at(code + page - 2), 0);
	memcpy(code + page - 2, &ret, sizeof ret);
	CHECK_EQ(unrecorded_at(code + page - 2), 0x1110);
}

TEST(vectors_of_a_signal_end_behind_all_its_records)
{
	enum { FLOATS = 256, AT = 520, VECTORS = 96, SHADOW = 16 };
	static struct {
		ucontext_t context;
		uint8_t more[512];
	} frame;
	uintptr_t low = (uintptr_t)&frame.context.uc_mcontext.__fpregs, end = 0;
	const uint32_t vectors[] = {0x53465457, VECTORS}, shadow[] = {0x9487, SHADOW};
	frame.context.uc_mcontext.__gregs[REG_SP] = (uintptr_t)(&frame + 1);
	CHECK_EQ(ch__arch_context_vectors(&frame.context, &end), low);
	CHECK_EQ(end, low + FLOATS);
	memcpy((uint8_t *)low + AT, vectors, sizeof vectors);
	memcpy((uint8_t *)low + AT + VECTORS, shadow, sizeof shadow);
	CHECK_EQ(ch__arch_context_vectors(&frame.context, &end), low);
	CHECK_EQ(end, low + AT + VECTORS + SHADOW);
	/* No record is longer than what is left of the frame. */
	frame.context.uc_mcontext.__gregs[REG_SP] = low + AT + VECTORS;
	CHECK_EQ(ch__arch_context_vectors(&frame.context, &end), low);
	CHECK_EQ(end, low + AT + VECTORS);
	frame.context.uc_mcontext.__gregs[REG_SP] = low + AT + VECTORS - 8;
	CHECK_EQ(ch__arch_context_vectors(&frame.context, &end), low);
	CHECK_EQ(end, low + FLOATS);
	/* A handler has a stack of its own. */
	frame.context.uc_mcontext.__gregs[REG_SP] = 0;
	frame.context.uc_stack.ss_sp = &frame;
	frame.context.uc_stack.ss_size = sizeof frame;
	CHECK_EQ(ch__arch_context_vectors(&frame.context, &end), low);
	CHECK_EQ(end, low + AT + VECTORS + SHADOW);
	/* Nothing says where the frame ends. */
	frame.context.uc_stack.ss_size = 0;
	CHECK_EQ(ch__arch_context_vectors(&frame.context, &end), low);
	CHECK_EQ(end, low + FLOATS);
	/* A record is not shorter than its head. */
	frame.context.uc_stack.ss_size = sizeof frame;
	memcpy((uint8_t *)low + AT + 4, &(uint32_t){4}, 4);
	CHECK_EQ(ch__arch_context_vectors(&frame.context, &end), low);
	CHECK_EQ(end, low + FLOATS);
}

TEST(breakpoint_of_a_debugger_is_seen)
{
	/* c.ebreak, ebreak; ecall, a nop */
	static const uint16_t halves[][2] = {{0x9002, 1}, {0x0073, 0x10}, {0x0073, 0}, {0x13, 0}};
	for (unsigned i = 0; i < 4; i++)
		CHECK_EQ(ch__arch_has_breakpoint(halves[i]), i < 2);
	for (unsigned i = 0; i < 4; i++) /* c.ebreak is the library's, and others are no traps */
		CHECK_EQ(ch__arch_trap_is_foreign((const uint8_t *)halves[i]), i == 1);
}
