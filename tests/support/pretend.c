/* SPDX-License-Identifier: MIT
 * pretend.c: makes a test program believe that the system's pages have the size
 * CODEHEAP_TEST_SYSTEM_PAGE: the gate to the OS refuses calls as a kernel with such pages would.
 * Linked into every test, tests of rooms without pages included. */
#include "os/os.h"

#include <stdlib.h>

#pragma weak ch__os_pretended

/* Before main: a test may create its heap in a constructor of its own. */
__attribute__((constructor(101))) static void read_environment(void)
{
	const char *text = getenv("CODEHEAP_TEST_SYSTEM_PAGE");
	if (text && &ch__os_pretended)
		ch__os_pretended.page_bytes = strtoul(text, NULL, 0);
}
