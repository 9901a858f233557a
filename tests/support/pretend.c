/* SPDX-License-Identifier: MIT
 * pretend.c: has a test program believe that the system's pages have the size that
 * CODEHEAP_TEST_SYSTEM_PAGE says: the gate to the OS refuses what a kernel with such pages would
 * refuse. Linked into every test, also into those of rooms that know no pages. */
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
