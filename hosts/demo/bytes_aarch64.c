/* SPDX-License-Identifier: MIT
 * bytes_aarch64.c: bytes.h for aarch64. Code that is called through a register begins with a
 * landing pad.
 */
#include "bytes.h"

#include <string.h>

enum { BTI_C = 0xd503245f, MOVZ_W0 = 0x52800000, RET = 0xd65f03c0, B = 0x14000000 };
/* The literal is 16 bytes behind its load. */
enum { STP = 0xa9bf7bfd, LDR_X16 = 0x58000090, BLR_X16 = 0xd63f0200, LDP = 0xa8c17bfd };

static uint32_t put(uint8_t *write, uint8_t number, uint32_t last)
{
	const uint32_t insns[] = {BTI_C, MOVZ_W0 | (uint32_t)number << 5, last};

	memcpy(write, insns, sizeof insns);
	return sizeof insns;
}

uint32_t demo_return_number(uint8_t *write, uint8_t number)
{
	return put(write, number, RET);
}

uint32_t demo_number_and_jump(uint8_t *write, uint8_t number, uint32_t *jump_at)
{
	*jump_at = 8;
	return put(write, number, B);
}

uint32_t demo_call(uint8_t *write, const void *address)
{
	const uint32_t insns[] = {BTI_C, STP, LDR_X16, BLR_X16, LDP, RET};

	memcpy(write, insns, sizeof insns);
	memcpy(write + sizeof insns, &address, sizeof address);
	return sizeof insns + sizeof address;
}
