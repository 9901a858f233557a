/* SPDX-License-Identifier: MIT
 * catch_code_aarch64.h: the instructions of tests/support/frames_rig.h for aarch64, with the unwind
 * rules that describe them. catch_code_<arch>.h has the same for the others. */
#pragma once

namespace frames
{

/* CFA = sp + 48, x30 at CFA - 48 */
static const uint8_t frameless_cfi[] = {0x0c, 31, 48, 0x80 | 30, 6};

/* x16 = function; blr x16 */
inline bytes call_of(const void *function)
{
	uint64_t word = reinterpret_cast<uintptr_t>(function);
	return instructions({0xd2800010 | uint32_t(word & 0xffff) << 5,
			     0xf2a00010 | uint32_t(word >> 16 & 0xffff) << 5,
			     0xf2c00010 | uint32_t(word >> 32 & 0xffff) << 5,
			     0xf2e00010 | uint32_t(word >> 48) << 5, 0xd63f0200});
}

/* stp a, a + 1, [sp, -16]!, a pair from x19 on or, if is_vector, from d8 on; ldp and sp + 16; 0
 * into both registers */
inline uint32_t push_pair(uint32_t a, bool is_vector)
{
	return (is_vector ? 0x6dbf0000 : 0xa9bf0000) | (a + 1) << 10 | 31 << 5 | a;
}
inline uint32_t pop_pair(uint32_t a, bool is_vector)
{
	return (is_vector ? 0x6cc10000 : 0xa8c10000) | (a + 1) << 10 | 31 << 5 | a;
}
inline bytes clear_pair(uint32_t a, bool is_vector)
{
	uint32_t clear = is_vector ? 0x9e6703e0 : 0xaa1f03e0; /* fmov d, xzr; mov x, xzr */
	return instructions({clear | a, clear | (a + 1)});
}
inline bytes saving_code()
{
	static const uint32_t pairs[] = {19, 21, 23, 25, 27, 8, 10, 12, 14};
	/* bti c; stp x29, x30, [sp, -16]!; mov x29, sp */
	bytes b = instructions({0xd503245f, 0xa9bf7bfd, 0x910003fd});
	for (uint32_t pair : pairs)
		b.word(push_pair(pair, pair < 19));
	for (uint32_t pair : pairs)
		append(b, clear_pair(pair, pair < 19));
	append(b, instructions({0xaa0003f0, 0x2a0103e0, 0xd63f0200}));
	for (int i = 8; i >= 0; i--)
		b.word(pop_pair(pairs[i], pairs[i] < 19));
	append(b, instructions({0xa8c17bfd, 0xd65f03c0}));
	return b;
}

inline bytes plain_code(shape kind)
{
	if (kind == SAVING)
		return saving_code();
	/* bti c; stp x29, x30, [sp, -16]!; mov x29, sp; mov x16, x0; mov w0, w1; blr x16;
	 * ldp x29, x30, [sp], 16; ret */
	if (kind == FRAMED)
		return instructions({0xd503245f, 0xa9bf7bfd, 0x910003fd, 0xaa0003f0, 0x2a0103e0,
				     0xd63f0200, 0xa8c17bfd, 0xd65f03c0});
	/* bti c; str x30, [sp, -48]!; mov x16, x0; mov w0, w1; blr x16; ldr x30, [sp], 48; ret */
	return instructions({0xd503245f, 0xf81d0ffe, 0xaa0003f0, 0x2a0103e0, 0xd63f0200, 0xf84307fe,
			     0xd65f03c0});
}

enum { RETURN_BYTES = 4, CALL_AT = 32, CALL_BYTES = 4, LANDING_AT = 48 };

inline bytes return_code()
{
	return instructions({0xd65f03c0});
}

/* Saves x19 and x20 and changes them before it calls. */
inline bytes catching_code()
{
	/* bti c; stp x29, x30, [sp, -32]!; mov x29, sp; stp x19, x20, [sp, 16]; mov x16, x0;
	 * mov w0, w1; mov x19, 0; mov x20, 0; blr x16 */
	bytes b = instructions({0xd503245f, 0xa9be7bfd, 0x910003fd, 0xa90153f3, 0xaa0003f0,
				0x2a0103e0, 0xaa1f03f3, 0xaa1f03f4, 0xd63f0200});
	/* ldp x19, x20, [sp, 16]; ldp x29, x30, [sp], 32; ret */
	bytes leave = instructions({0xa94153f3, 0xa8c27bfd, 0xd65f03c0});
	append(b, leave);
	b.word(0xd503249f); /* bti j: the exception lands here, in x0 */
	append(b, call_of(reinterpret_cast<const void *>(&__cxa_begin_catch)));
	b.word(0xb9400013); /* ldr w19, [x0] */
	append(b, call_of(reinterpret_cast<const void *>(&__cxa_end_catch)));
	b.word(0x11000260 | uint32_t(CAUGHT) << 10); /* add w0, w19, CAUGHT */
	append(b, leave);
	return b;
}

/* In a CIE: the return address is in x30; CFA = sp. */
enum { RETURN_COLUMN = 30 };
inline void initial_rules(bytes &b)
{
	b({0x0c, 31, 0});
}
inline void catching_rules(bytes &b)
{
	/* behind bti and stp: CFA = sp + 32, x29 at CFA - 32, x30 at CFA - 24 */
	b({0x48, 0x0e, 32, 0x80 | 29, 4, 0x80 | 30, 3});
	b({0x44, 0x0d, 29});                   /* after mov: CFA = x29 + 32 */
	b({0x44, 0x80 | 19, 2, 0x80 | 20, 1}); /* after stp: x19, x20 */
}
inline void frameless_rules(bytes &b)
{
	b({0x0c, 31, 48, 0x80 | 30, 6}); /* as frameless_cfi */
}

} // namespace frames

#define FRAMES_CHANGE_REGISTERS()                                                              \
	asm volatile("mov x19, xzr; mov x20, xzr; mov x21, xzr; mov x22, xzr; mov x23, xzr;"   \
		     "mov x24, xzr; mov x25, xzr; mov x26, xzr; mov x27, xzr; mov x28, xzr" :: \
			     : "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27",  \
			       "x28", "d8", "d9", "d10", "d11", "d12", "d13", "d14", "d15")

asm(R"(
	.text
	.p2align 4
	.globl frames_keeps_registers
	.hidden frames_keeps_registers
	.type frames_keeps_registers, %function
frames_keeps_registers:
	.cfi_startproc
	hint #34
	stp x29, x30, [sp, #-176]!
	.cfi_def_cfa_offset 176
	.cfi_offset 29, -176
	.cfi_offset 30, -168
	mov x29, sp
	.cfi_def_cfa_register 29
	stp x19, x20, [sp, #16]
	stp x21, x22, [sp, #32]
	stp x23, x24, [sp, #48]
	stp x25, x26, [sp, #64]
	stp x27, x28, [sp, #80]
	.cfi_offset 19, -160
	.cfi_offset 20, -152
	.cfi_offset 21, -144
	.cfi_offset 22, -136
	.cfi_offset 23, -128
	.cfi_offset 24, -120
	.cfi_offset 25, -112
	.cfi_offset 26, -104
	.cfi_offset 27, -96
	.cfi_offset 28, -88
	str x2, [sp, #96]
	str x29, [sp, #104]
	stp d8, d9, [sp, #112]
	stp d10, d11, [sp, #128]
	stp d12, d13, [sp, #144]
	stp d14, d15, [sp, #160]
	.irp n, 0, 1, 2, 3, 4, 5, 6, 7
	.cfi_offset 72 + \n, -64 + 8 * \n
	.endr
	mov x16, x0
	mov x0, x1
	mov x19, #0x1b1b
	movk x19, #0x1b1b, lsl #16
	movk x19, #0x1b1b, lsl #32
	movk x19, #0x1b1b, lsl #48
	.irp n, 20, 21, 22, 23, 24, 25, 26, 27, 28
	add x\n, x19, #\n
	.endr
	.irp n, 8, 9, 10, 11, 12, 13, 14, 15
	add x9, x19, #\n
	fmov d\n, x9
	.endr
	blr x16
	ldr x2, [sp, #96]
	str w0, [x2]
	mov x9, #0x1b1b
	movk x9, #0x1b1b, lsl #16
	movk x9, #0x1b1b, lsl #32
	movk x9, #0x1b1b, lsl #48
	sub x10, x19, x9
	.irp n, 20, 21, 22, 23, 24, 25, 26, 27, 28
	sub x11, x\n, x9
	sub x11, x11, #\n
	orr x10, x10, x11
	.endr
	.irp n, 8, 9, 10, 11, 12, 13, 14, 15
	fmov x11, d\n
	sub x11, x11, x9
	sub x11, x11, #\n
	orr x10, x10, x11
	.endr
	ldr x11, [sp, #104]
	sub x11, x11, x29
	orr x10, x10, x11
	cmp x10, #0
	cset w0, eq
	ldp x19, x20, [sp, #16]
	ldp x21, x22, [sp, #32]
	ldp x23, x24, [sp, #48]
	ldp x25, x26, [sp, #64]
	ldp x27, x28, [sp, #80]
	ldp d8, d9, [sp, #112]
	ldp d10, d11, [sp, #128]
	ldp d12, d13, [sp, #144]
	ldp d14, d15, [sp, #160]
	ldp x29, x30, [sp], #176
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa 31, 0
	ret
	.cfi_endproc
	.size frames_keeps_registers, . - frames_keeps_registers
)");
