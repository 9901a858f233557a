/* SPDX-License-Identifier: MIT
 * panic.c: the end of a process whose code heap broke an invariant: the hook of the VM, the reason
 * and the last events on stderr, abort(). */
#include "codeheap/events/event.h"
#include "os/threads.h"

#include <stdlib.h>

static void (*_Atomic panic_hook)(const char *);

void ch__panic_set_hook(void (*hook)(const char *))
{
	atomic_store(&panic_hook, hook);
}

static void say(const char *text)
{
	ch__os_write_last(text, strlen(text));
}

/* Oldest first. */
static void say_events(void)
{
	char text[CH__EVENT_TEXT_BYTES];
	bool is_first = true;
	for (unsigned age = CH__EVENTS_KEPT; age-- > 0;) {
		if (!ch__event_text(age, text))
			continue;
		if (is_first)
			say("libcodeheap: what happened last:\n");
		is_first = false;
		say(text);
	}
}

_Noreturn void ch__panic(const char *reason)
{
	void (*hook)(const char *) = atomic_exchange(&panic_hook, NULL);
	if (hook)
		hook(reason);
	say("libcodeheap: broken invariant: ");
	say(reason);
	say("\n");
	say_events();
	abort();
}
