/* SPDX-License-Identifier: MIT
 * large.c: large and strictly aligned data of all three kinds: constants, initialized variables,
 * zeros. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { ZEROS = 6 << 20, CONSTANTS = 1 << 16 };

static uint8_t zeros[ZEROS];
static _Alignas(1 << 16) uint32_t page[1024] = {1, 2, 3}; /* above the heap's page */
static _Alignas(256) const uint64_t aligned[4] = {10, 20, 30, 40};

#define FOUR(x) (x), (x)*3 + 1, (x)*5 + 2, (x)*7 + 3
#define SIXTEEN(x) FOUR(x), FOUR((x) + 4), FOUR((x) + 8), FOUR((x) + 12)
#define MANY(x) SIXTEEN(x), SIXTEEN((x) + 16), SIXTEEN((x) + 32), SIXTEEN((x) + 48)
#define MORE(x) MANY(x), MANY((x) + 64), MANY((x) + 128), MANY((x) + 192)
#define MOST(x) MORE(x), MORE((x) + 256), MORE((x) + 512), MORE((x) + 768)
static const uint32_t constants[CONSTANTS] = {MOST(0u), MOST(1024u), MOST(2048u), MOST(4096u)};
static uint32_t variables[CONSTANTS] = {MOST(7u), MOST(77u)};
int common_name[5000];

static uint64_t digest(const void *data, size_t bytes)
{
	const uint8_t *at = data;
	uint64_t h = 1469598103934665603u;
	for (size_t i = 0; i < bytes; i++)
		h = (h ^ at[i]) * 1099511628211u;
	return h;
}

int main(void)
{
	printf("%llx\n", (unsigned long long)digest(zeros, sizeof zeros));
	printf("%llx\n", (unsigned long long)digest(constants, sizeof constants));
	printf("%llx\n", (unsigned long long)digest(variables, sizeof variables));
	for (size_t i = 0; i < sizeof zeros; i += 4093)
		zeros[i] = (uint8_t)i;
	memmove(variables + 1, variables, sizeof variables - sizeof variables[0]);
	common_name[4999] = page[2] + (int)aligned[3];
	printf("%llx\n", (unsigned long long)digest(zeros, sizeof zeros));
	printf("%llx %d\n", (unsigned long long)digest(variables, sizeof variables),
	       common_name[4999]);
	printf("%d %d\n", (int)((uintptr_t)page % (1 << 16)), (int)((uintptr_t)aligned % 256));
	return 0;
}
