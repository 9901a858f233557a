/* SPDX-License-Identifier: MIT
 * poke.h: changes bytes of a record, and puts the old back, for tests of checks of a state. */
#pragma once

#include "tests/support/harness.h"

#include <string.h>

enum { POKES = 16, POKE_BYTES = 16 };

static struct {
	void *at;
	size_t bytes;
	uint8_t old[POKE_BYTES];
} pokes[POKES];
static unsigned poke_count;

static inline void poke_bytes(void *at, const void *bytes, size_t n)
{
	CHECK(poke_count < POKES && n <= POKE_BYTES);
	pokes[poke_count].at = at;
	pokes[poke_count].bytes = n;
	memcpy(pokes[poke_count++].old, at, n);
	memcpy(at, bytes, n);
}

/* Pokes a plain or atomic field; the value is converted to the field's size, little end first. */
#define POKE(field, value)                                                             \
	do {                                                                           \
		uint64_t poke_value = (uint64_t)(value);                               \
		poke_bytes((void *)(uintptr_t) & (field), &poke_value, sizeof(field)); \
	} while (0)

static inline void poke_undo(void)
{
	while (poke_count) {
		poke_count--;
		memcpy(pokes[poke_count].at, pokes[poke_count].old, pokes[poke_count].bytes);
	}
}
