// SPDX-License-Identifier: MIT
/* Has functions of the same names as shapes.c, in another file. */
#include "tests/callgrind/shapes.h"

FUNCTION int same_name(int x)
{
	return inlined_loop(x) + 2;
}

int statics_of_b(int x)
{
	int y = same_name(x) + same_name(x + 1);
	return y + same_name(x + 2);
}
