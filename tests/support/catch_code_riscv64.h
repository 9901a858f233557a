/* SPDX-License-Identifier: MIT
 * catch_code_riscv64.h: the instructions of tests/support/frames_rig.h for riscv64, with the unwind
 * rules that describe them. catch_code_<arch>.h has the same for the others. */
#ifndef CH_TESTS_CATCH_CODE_RISCV64_H
#define CH_TESTS_CATCH_CODE_RISCV64_H

namespace frames
{

/* CFA = sp + 48, ra at CFA - 48 */
static const uint8_t frameless_cfi[] = {0x0c, 2, 48, 0x80 | 1, 6};

enum : uint32_t { RA = 1, SP = 2, T1 = 6, S0 = 8, S1 = 9, A0 = 10, A1 = 11, S2 = 18 };

inline uint32_t addi(uint32_t rd, uint32_t rs, int32_t number)
{
	return 0x13 | rd << 7 | rs << 15 | uint32_t(number) << 20;
}
inline uint32_t ld(uint32_t rd, uint32_t rs, int32_t offset)
{
	return 0x3003 | rd << 7 | rs << 15 | uint32_t(offset) << 20;
}
inline uint32_t sd(uint32_t source, uint32_t rs, int32_t offset)
{
	return 0x3023 | rs << 15 | source << 20 | (uint32_t(offset) & 31) << 7 |
	       uint32_t(offset) >> 5 << 25;
}
inline uint32_t jalr(uint32_t rd, uint32_t rs)
{
	return 0x67 | rd << 7 | rs << 15;
}
inline bytes instructions(std::initializer_list<uint32_t> words)
{
	bytes b;
	for (uint32_t word : words)
		b.word(word);
	return b;
}
inline void append(bytes &b, const bytes &more)
{
	b.at.insert(b.at.end(), more.at.begin(), more.at.end());
}
/* auipc t1, 0; ld t1, 12(t1); j over the word; it; jalr t1. The word need not be aligned. */
inline bytes call_of(const void *function)
{
	bytes b = instructions({0x17 | T1 << 7, ld(T1, T1, 12), 0x00c0006f});
	b.word(reinterpret_cast<uintptr_t>(function));
	return b.word(jalr(RA, T1));
}

inline bytes plain_code(shape kind)
{
	if (kind == FRAMED)
		return instructions({addi(SP, SP, -16), sd(RA, SP, 8), sd(S0, SP, 0),
				     addi(S0, SP, 16), addi(T1, A0, 0), addi(A0, A1, 0),
				     jalr(RA, T1), ld(RA, SP, 8), ld(S0, SP, 0), addi(SP, SP, 16),
				     jalr(0, RA)});
	return instructions({addi(SP, SP, -48), sd(RA, SP, 0), addi(T1, A0, 0), addi(A0, A1, 0),
			     jalr(RA, T1), ld(RA, SP, 0), addi(SP, SP, 48), jalr(0, RA)});
}

enum { RETURN_BYTES = 4, CALL_AT = 40, CALL_BYTES = 4, LANDING_AT = 68 };

inline bytes return_code()
{
	return instructions({jalr(0, RA)});
}

/* Saves s1 and s2 and changes them before it calls. */
inline bytes catching_code()
{
	bytes b = instructions({addi(SP, SP, -32), sd(RA, SP, 24), sd(S0, SP, 16), addi(S0, SP, 32),
				sd(S1, SP, 8), sd(S2, SP, 0), addi(T1, A0, 0), addi(A0, A1, 0),
				addi(S1, 0, 0), addi(S2, 0, 0), jalr(RA, T1)});
	bytes leave = instructions({ld(S1, SP, 8), ld(S2, SP, 0), ld(RA, SP, 24), ld(S0, SP, 16),
				    addi(SP, SP, 32), jalr(0, RA)});
	append(b, leave);
	/* The exception lands here, in a0. */
	append(b, call_of(reinterpret_cast<const void *>(&__cxa_begin_catch)));
	b.word(0x00052483); /* lw s1, 0(a0) */
	append(b, call_of(reinterpret_cast<const void *>(&__cxa_end_catch)));
	b.word(addi(A0, S1, CAUGHT));
	append(b, leave);
	return b;
}

/* Of a CIE: the return address is in ra; CFA = sp. */
enum { RETURN_COLUMN = 1 };
inline void initial_rules(bytes &b)
{
	b({0x0c, 2, 0});
}
inline void catching_rules(bytes &b)
{
	b({0x44, 0x0e, 32});                  /* after addi: CFA = sp + 32 */
	b({0x48, 0x80 | 1, 1, 0x80 | 8, 2});  /* after two stores: ra, s0 */
	b({0x44, 0x0c, 8, 0});                /* after addi: CFA = s0 */
	b({0x48, 0x80 | 9, 3, 0x80 | 18, 4}); /* after two stores: s1, s2 */
}
inline void frameless_rules(bytes &b)
{
	b({0x0c, 2, 48, 0x80 | 1, 6}); /* as frameless_cfi */
}

} // namespace frames

#define FRAMES_CHANGE_REGISTERS()                                                            \
	asm volatile("li s1, 0; li s2, 0; li s3, 0; li s4, 0; li s5, 0; li s6, 0; li s7, 0;" \
		     "li s8, 0; li s9, 0; li s10, 0; li s11, 0" ::                           \
			     : "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11")

asm(R"(
	.text
	.p2align 2
	.globl frames_keeps_registers
	.hidden frames_keeps_registers
	.type frames_keeps_registers, @function
frames_keeps_registers:
	.cfi_startproc
	addi sp, sp, -128
	.cfi_def_cfa_offset 128
	sd ra, 120(sp)
	sd s0, 112(sp)
	.cfi_offset ra, -8
	.cfi_offset s0, -16
	addi s0, sp, 128
	.cfi_def_cfa s0, 0
	sd s1, 104(sp)
	sd s2, 96(sp)
	sd s3, 88(sp)
	sd s4, 80(sp)
	sd s5, 72(sp)
	sd s6, 64(sp)
	sd s7, 56(sp)
	sd s8, 48(sp)
	sd s9, 40(sp)
	sd s10, 32(sp)
	sd s11, 24(sp)
	.cfi_offset s1, -24
	.cfi_offset s2, -32
	.cfi_offset s3, -40
	.cfi_offset s4, -48
	.cfi_offset s5, -56
	.cfi_offset s6, -64
	.cfi_offset s7, -72
	.cfi_offset s8, -80
	.cfi_offset s9, -88
	.cfi_offset s10, -96
	.cfi_offset s11, -104
	sd a2, 16(sp)
	sd s0, 8(sp)
	mv t1, a0
	mv a0, a1
	li s1, 0x1b1b1b1b
	.irp n, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
	addi s\n, s1, \n
	.endr
	jalr t1
	ld a2, 16(sp)
	sw a0, 0(a2)
	li t0, 0x1b1b1b1b
	sub t2, s1, t0
	.irp n, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
	sub t3, s\n, t0
	addi t3, t3, -\n
	or t2, t2, t3
	.endr
	ld t3, 8(sp)
	sub t3, t3, s0
	or t2, t2, t3
	seqz a0, t2
	ld s1, 104(sp)
	ld s2, 96(sp)
	ld s3, 88(sp)
	ld s4, 80(sp)
	ld s5, 72(sp)
	ld s6, 64(sp)
	ld s7, 56(sp)
	ld s8, 48(sp)
	ld s9, 40(sp)
	ld s10, 32(sp)
	ld s11, 24(sp)
	ld ra, 120(sp)
	ld s0, 112(sp)
	.cfi_restore ra
	.cfi_restore s0
	.cfi_def_cfa sp, 128
	addi sp, sp, 128
	.cfi_def_cfa_offset 0
	ret
	.cfi_endproc
	.size frames_keeps_registers, . - frames_keeps_registers
)");

#endif
