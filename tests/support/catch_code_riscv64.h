/* SPDX-License-Identifier: MIT
 * catch_code_riscv64.h: the instructions of tests/support/frames_rig.h for riscv64, with the unwind
 * rules that describe them. catch_code_<arch>.h has the same for the others. */
#pragma once

namespace frames
{

/* CFA = sp + 48, ra at CFA - 48 */
static const uint8_t frameless_cfi[] = {0x0c, 2, 48, 0x80 | 1, 6};

enum : uint32_t { RA = 1, SP = 2, T1 = 6, S0 = 8, S1 = 9, A0 = 10, A1 = 11, S2 = 18 };
/* fsd and fld differ from sd and ld by this bit. */
enum : uint32_t { AS_FLOAT = 4 };

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
/* auipc t1, 0; ld t1, 12(t1); j over the word; the word, at any alignment; jalr t1 */
inline bytes call_of(const void *function)
{
	bytes b = instructions({0x17 | T1 << 7, ld(T1, T1, 12), 0x00c0006f});
	b.word(reinterpret_cast<uintptr_t>(function));
	return b.word(jalr(RA, T1));
}

/* The nth of s1 to s11, then of fs0 to fs11; is_float says which. */
inline uint32_t saved_register(int nth, bool *is_float)
{
	*is_float = nth >= 11;
	int of_its_kind = *is_float ? nth - 11 : nth + 1;
	return uint32_t(of_its_kind < 2 ? 8 + of_its_kind : 16 + of_its_kind);
}
inline bytes saving_code()
{
	bool is_float;
	bytes b = instructions({addi(SP, SP, -16), sd(RA, SP, 8), sd(S0, SP, 0), addi(S0, SP, 16),
				addi(SP, SP, -192)});
	for (int i = 0; i < 23; i++) {
		uint32_t reg = saved_register(i, &is_float);
		b.word(sd(reg, S0, -24 - 8 * i) | (is_float ? uint32_t(AS_FLOAT) : 0));
		/* fmv.d.x reg, x0; li reg, 0 */
		b.word(is_float ? 0xf2000053 | reg << 7 : addi(reg, 0, 0));
	}
	append(b, instructions({addi(T1, A0, 0), addi(A0, A1, 0), jalr(RA, T1)}));
	for (int i = 0; i < 23; i++) {
		uint32_t reg = saved_register(i, &is_float);
		b.word(ld(reg, S0, -24 - 8 * i) | (is_float ? uint32_t(AS_FLOAT) : 0));
	}
	append(b, instructions({addi(SP, S0, -16), ld(RA, SP, 8), ld(S0, SP, 0), addi(SP, SP, 16),
				jalr(0, RA)}));
	return b;
}

inline bytes plain_code(shape kind)
{
	if (kind == SAVING)
		return saving_code();
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

/* Saves s1 and s2, changes both, and calls. */
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

/* In a CIE: the return address is in ra; CFA = sp. */
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
			     : "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", \
			       "fs0", "fs1", "fs2", "fs3", "fs4", "fs5", "fs6", "fs7", "fs8",      \
			       "fs9", "fs10", "fs11")

asm(R"(
	.text
	.p2align 2
	.globl frames_keeps_registers
	.hidden frames_keeps_registers
	.type frames_keeps_registers, @function
frames_keeps_registers:
	.cfi_startproc
	addi sp, sp, -224
	.cfi_def_cfa_offset 224
	sd ra, 216(sp)
	sd s0, 208(sp)
	.cfi_offset ra, -8
	.cfi_offset s0, -16
	addi s0, sp, 224
	.cfi_def_cfa s0, 0
	sd s1, 200(sp)
	sd s2, 192(sp)
	sd s3, 184(sp)
	sd s4, 176(sp)
	sd s5, 168(sp)
	sd s6, 160(sp)
	sd s7, 152(sp)
	sd s8, 144(sp)
	sd s9, 136(sp)
	sd s10, 128(sp)
	sd s11, 120(sp)
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
	.irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
	fsd fs\n, (112 - 8 * \n)(sp)
	.cfi_offset fs\n, -112 - 8 * \n
	.endr
	sd a2, 16(sp)
	sd s0, 8(sp)
	mv t1, a0
	mv a0, a1
	li s1, 0x1b1b1b1b
	.irp n, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
	addi s\n, s1, \n
	.endr
	.irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
	addi t0, s1, \n
	fmv.d.x fs\n, t0
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
	.irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
	fmv.x.d t3, fs\n
	sub t3, t3, t0
	addi t3, t3, -\n
	or t2, t2, t3
	.endr
	ld t3, 8(sp)
	sub t3, t3, s0
	or t2, t2, t3
	seqz a0, t2
	ld s1, 200(sp)
	ld s2, 192(sp)
	ld s3, 184(sp)
	ld s4, 176(sp)
	ld s5, 168(sp)
	ld s6, 160(sp)
	ld s7, 152(sp)
	ld s8, 144(sp)
	ld s9, 136(sp)
	ld s10, 128(sp)
	ld s11, 120(sp)
	ld ra, 216(sp)
	ld s0, 208(sp)
	.irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
	fld fs\n, (112 - 8 * \n)(sp)
	.endr
	.cfi_restore ra
	.cfi_restore s0
	.cfi_def_cfa sp, 224
	addi sp, sp, 224
	.cfi_def_cfa_offset 0
	ret
	.cfi_endproc
	.size frames_keeps_registers, . - frames_keeps_registers
)");
