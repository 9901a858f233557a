/* SPDX-License-Identifier: MIT
 * panic.c: the end of the process on a broken invariant. Signal-safe, save for the hook of the
 * VM. */
#include "os/threads.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void (*_Atomic panic_hook)(const char *);

void ch__panic_set_hook(void (*hook)(const char *))
{
	atomic_store(&panic_hook, hook);
}

static void say(const char *text)
{
	ch__os_write_last(text, strlen(text));
}

_Noreturn void ch__panic(const char *reason)
{
	void (*hook)(const char *) = atomic_exchange(&panic_hook, NULL);
	if (hook)
		hook(reason);
	say("libcodeheap: broken invariant: ");
	say(reason);
	say("\n");
	abort();
}
