/* SPDX-License-Identifier: MIT
 * table.c: the sinks that there are, and their names in lists. */
#include "sinks/table.h"
#include "unwind/unwinders.h"

#include <stdio.h>

const struct ch__sink_ops *const ch__sinks_table[] = {
	&ch__sink_libgcc,
	&ch__sink_libunwind,
	&ch__sink_jitdump,
	&ch__sink_perfmap,
	&ch__sink_gdb,
};

CH__LOCK_FUNCTIONS(ch__sinks_lock, ch__sinks_unlock, struct ch__sinks *s, ch__lock_take, s->lock,
		   CH__RANK_SINKS)

bool ch__sinks_parse(const char *list, unsigned *wanted)
{
	*wanted = 0;
	if (!strcmp(list, "none"))
		return true;
	for (const char *at = list;; at++) {
		size_t length = strcspn(at, ",");
		unsigned i = 0;
		while (i < CH__SINKS_COUNT &&
		       (strncmp(ch__sinks_table[i]->name, at, length) != 0 ||
			ch__sinks_table[i]->name[length]))
			i++;
		if (i == CH__SINKS_COUNT)
			return false;
		*wanted |= ch__sinks_table[i]->bit;
		at += length;
		if (!*at)
			return true;
	}
}

void ch__sinks_print(unsigned on, char *list, size_t bytes)
{
	size_t used = 0;
	for (unsigned i = 0; i < CH__SINKS_COUNT; i++)
		if (on & (unsigned)ch__sinks_table[i]->bit)
			used += (size_t)snprintf(list + used, bytes - used, "%s%s", used ? "," : "",
						 ch__sinks_table[i]->name);
	if (!used)
		snprintf(list, bytes, "none");
}

unsigned ch__sinks_on(const struct ch__sinks *s)
{
	return atomic_load(&s->on);
}
