/* SPDX-License-Identifier: MIT
 * bytes_x86_64.c: bytes.h for x86-64. The displacement of a jump lies in one aligned 8 bytes.
 */
#include "bytes.h"

#include <string.h>

uint32_t demo_return_number(uint8_t *write, uint8_t number)
{
	const uint8_t bytes[] = {0xb8, number, 0, 0, 0, 0xc3}; /* mov eax, number; ret */

	memcpy(write, bytes, sizeof bytes);
	return sizeof bytes;
}

uint32_t demo_number_and_jump(uint8_t *write, uint8_t number, uint32_t *jump_at)
{
	/* mov eax, number; a NOP of two bytes; jmp, its displacement at 8 */
	const uint8_t bytes[] = {0xb8, number, 0, 0, 0, 0x66, 0x90, 0xe9, 0, 0, 0, 0};

	memcpy(write, bytes, sizeof bytes);
	*jump_at = 7;
	return sizeof bytes;
}
