/* SPDX-License-Identifier: MIT
 * stand_in.c: functions that the lower rooms declare and leave to codeheap/, for unit tests that
 * are linked without codeheap/. The file is an archive member, so a test may bring its own instead.
 */
#include <stdio.h>
#include <stdlib.h>

#include "arch/base.h"

void ch__panic(const char *reason)
{
	fprintf(stderr, "panic: %s\n", reason);
	abort();
}
