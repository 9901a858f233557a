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

uint32_t demo_call(uint8_t *write, const void *address)
{
	/* push rbp; mov rbp, rsp; mov rax, address; call rax; pop rbp; ret */
	const uint8_t bytes[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8, 0,    0,    0,
				 0,    0,    0,    0,    0,    0xff, 0xd0, 0x5d, 0xc3};

	memcpy(write, bytes, sizeof bytes);
	memcpy(write + 6, &address, sizeof address);
	return sizeof bytes;
}
