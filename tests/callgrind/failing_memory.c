// SPDX-License-Identifier: MIT
/* Linked with -Wl,--wrap: the allocation that CODEHEAP_TEST_FAIL_AT counts to finds no memory. */
#include <stdlib.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

static int fails(void)
{
	static long left = -1; /* 0: none is left to fail */
	const char *at = getenv("CODEHEAP_TEST_FAIL_AT");
	if (left < 0)
		left = at ? atol(at) : 0;
	return left && --left == 0;
}

void *__wrap_malloc(size_t bytes)
{
	return fails() ? NULL : __real_malloc(bytes);
}
void *__wrap_calloc(size_t count, size_t bytes)
{
	return fails() ? NULL : __real_calloc(count, bytes);
}
void *__wrap_realloc(void *old, size_t bytes)
{
	return fails() ? NULL : __real_realloc(old, bytes);
}
