/* SPDX-License-Identifier: MIT
 * jit_range.h: tells libgcc's unwinder of a range of code by a CIE and an FDE that the test builds,
 * for tests that have no heap. A single range at a time. */
#pragma once

#include "arch/arch.h"
#include "tests/support/harness.h"

#include <string.h>

void __register_frame(void *);
void __deregister_frame(void *);

static uint8_t jit_eh_frame[256];

static inline uint8_t *jit_put4(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, 4);
	return at + 4;
}

/* Addresses are absolute; the program holds from the first byte of the range to the last. */
static inline void jit_range_register(uintptr_t start, uint64_t bytes, const uint8_t *program,
				      size_t program_bytes)
{
	uint8_t *p = jit_eh_frame + 4;
	memset(jit_eh_frame, 0, sizeof jit_eh_frame);
	p = jit_put4(p, 0); /* CIE */
	*p++ = 1;
	*p++ = 0; /* no augmentation */
	*p++ = CH_ARCH_DWARF_CODE_ALIGN;
	*p++ = CH_ARCH_DWARF_DATA_ALIGN & 0x7f;
	*p++ = CH_ARCH_DWARF_RETURN;
	CHECK(program_bytes <= 128);
	memcpy(p, program, program_bytes);
	p += program_bytes;
	while ((p - jit_eh_frame) % 8)
		*p++ = 0;
	jit_put4(jit_eh_frame, (uint32_t)(p - jit_eh_frame - 4));
	uint8_t *fde = p;
	p = jit_put4(p + 4, (uint32_t)(p + 4 - jit_eh_frame));
	memcpy(p, &start, 8);
	memcpy(p + 8, &bytes, 8);
	p += 16;
	jit_put4(fde, (uint32_t)(p - fde - 4));
	__register_frame(jit_eh_frame);
}

static inline void jit_range_forget(void)
{
	__deregister_frame(jit_eh_frame);
}
