/* SPDX-License-Identifier: MIT
 * object.c: a shared object with functions of each kind that reports name: unit_observe_native
 * loads the object whole, stripped with a debug link, stripped bare, and under other names. */
#include "arch/base.h"

#ifndef NATIVE_HIDDEN
#define NATIVE_HIDDEN hidden_step
#else
/* A symbol without a size, and a label that assemblers leave behind. */
__asm__(".text\n.globl native_unsized\nnative_unsized: .long 0\n\"$label\": .long 0\n");
#endif

int native_elsewhere(int n); /* defined nowhere: the call goes through the linkage table */

CH_OPAQUE static int NATIVE_HIDDEN(int n)
{
	return n * 3 + 1;
}

int native_exported(int n)
{
	return NATIVE_HIDDEN(n) + 1;
}

int native_calls_out(int n)
{
	return native_elsewhere(n) + 1;
}

uintptr_t native_hidden_at(void)
{
	return (uintptr_t)NATIVE_HIDDEN;
}
