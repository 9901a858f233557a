/* SPDX-License-Identifier: MIT
 * trap_flag_x86_64.h: a thread takes SIGTRAP behind each instruction from trap_flag_set on. */
#pragma once

enum { TRAP_FLAG = 0x100 };

/* Not inline: the pushed words may not lie in a caller's red zone. */
__attribute__((noinline, unused)) static void trap_flag_set(void)
{
	__asm__ volatile("pushfq; orl %0, (%%rsp); popfq" ::"i"(TRAP_FLAG) : "memory", "cc");
}

__attribute__((noinline, unused)) static void trap_flag_clear(void)
{
	__asm__ volatile("pushfq; andl %0, (%%rsp); popfq" ::"i"(~TRAP_FLAG) : "memory", "cc");
}
