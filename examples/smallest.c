/* SPDX-License-Identifier: MIT
 * smallest.c: the first function: made of bytes, called, freed. */
#include <codeheap/codeheap.h>

#include <stdio.h>

int main(void)
{
	struct ch_heap *heap;
	int (*f)(void); // x86-64: mov eax, 42; ret
	if (ch_heap_create(NULL, &heap) || ch_code_add(heap, "\xb8\x2a\0\0\0\xc3", 6, "f", &f))
		return fprintf(stderr, "%s\n", ch_why()), 1;
	printf("%d\n", f());
	return ch_code_free(heap, (void *)(uintptr_t)f, CH_RELEASE_NOT_RUNNING);
}
