/* SPDX-License-Identifier: MIT
 * lock_self.c: what the library's objects for tests leave to the program (os/locks/lock.h). */
#include "os/locks/lock.h"

uintptr_t ch__lock_self(void)
{
	return ch__arch_thread_pointer();
}
