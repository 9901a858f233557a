// SPDX-License-Identifier: MIT
/* Shared by the shapes: functions that stay functions, and code that is inlined from here. */
#pragma once

#define FUNCTION __attribute__((noipa)) static

int statics_of_b(int x);
static inline __attribute__((always_inline)) int inlined_loop(int x)
{
	for (int i = 0; i < 7; i++)
		x = x * 31 + (x >> 3);
	return x;
}

__attribute__((unused)) FUNCTION int header_leaf(int x)
{
	return x + 4;
}

/* The call stands in a line of this file, wherever it is inlined, and leads to this file. */
static inline __attribute__((always_inline)) int inlined_hop(int x)
{
	return header_leaf(x * 3) + 1;
}
