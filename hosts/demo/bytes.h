/* SPDX-License-Identifier: MIT
 * bytes.h: the machine code of the demo's short programs; bytes_<arch>.c has it.
 */
#pragma once

#include <stdint.h>

enum { DEMO_BYTES = 16, DEMO_CALL_BYTES = 32 };

/* Both write at most DEMO_BYTES, for a multiple of 8, where blocks begin, and return the number of
 * bytes: a function that returns the number; the same with a jump for the return. */
uint32_t demo_return_number(uint8_t *write, uint8_t number);
uint32_t demo_number_and_jump(uint8_t *write, uint8_t number, uint32_t *jump_at);
/* A function that calls an address without telling the library: at most DEMO_CALL_BYTES. */
uint32_t demo_call(uint8_t *write, const void *address);
