/* SPDX-License-Identifier: MIT
 * wishes.c: what the user of a program asks for in the environment, which is stronger than what the
 * program says: the backend, the sinks, the names of dead code. The other variables are paths, and
 * read where the files are made. An empty value asks for nothing. It makes no heap, and knows
 * backends and sinks by their names only. No lock.
 *
 * A value that nobody knows is refused, whichever variable has it, and told on stderr: the program
 * knows the status only, and its user would look for what was asked for in vain. */
#include "codeheap/life/life.h"

#include <errno.h>
#include <stdio.h>

enum { LINE_BYTES = 256 };

static const char *wish(const char *variable)
{
	const char *value = ch__os_environment(variable);
	return value && *value ? value : NULL;
}

/* Says so in one line; the value itself may be anything, and is not repeated. */
static void refuse(const char *variable, const char *values)
{
	char line[LINE_BYTES];
	int n = snprintf(line, sizeof line, "codeheap: %s must be %s\n", variable, values);
	ch__os_write_last(line, n < LINE_BYTES ? (size_t)n : sizeof line - 1);
}

static bool read_backend(struct ch_config *config)
{
	const char *name = wish("CODEHEAP_WX");
	enum ch__backend backend = CH__BACKEND_AUTO;
	if (!name)
		return true;
	if (!ch__backend_of_name(name, &backend)) {
		refuse("CODEHEAP_WX", "dual, memfd or procmem");
		return false;
	}
	config->backend = (enum ch_backend)backend;
	return true;
}

static bool read_dead_names(struct ch_config *config)
{
	const char *name = wish("CODEHEAP_DEAD_NAMES");
	if (!name)
		return true;
	if (strcmp(name, "kept") != 0 && strcmp(name, "replaced") != 0) {
		refuse("CODEHEAP_DEAD_NAMES", "replaced or kept");
		return false;
	}
	config->dead_names = *name == 'k' ? CH_DEAD_NAMES_KEPT : CH_DEAD_NAMES_REPLACED;
	return true;
}

static bool read_sinks(struct ch_config *config, unsigned *wanted)
{
	char names[LINE_BYTES / 2], values[LINE_BYTES - 64];
	const char *list = wish("CODEHEAP_SINKS");
	*wanted = config->sinks == CH_SINK_DEFAULT ? CH_SINK_UNWIND : config->sinks;
	*wanted &= ~(unsigned)CH_SINK_NONE;
	if (!list)
		return (*wanted & ~(unsigned)CH__SINKS_ALL) == 0;
	if (ch__sinks_parse(list, wanted))
		return true;
	ch__sinks_print((unsigned)CH__SINKS_ALL, names, sizeof names);
	snprintf(values, sizeof values, "none, or some of %s", names);
	refuse("CODEHEAP_SINKS", values);
	return false;
}

/* All of them are looked at, so that one run tells of each mistake. */
enum ch_status ch__wishes_read(struct ch_config *config, unsigned *wanted)
{
	bool is_good = read_backend(config);
	is_good &= read_dead_names(config);
	is_good &= read_sinks(config, wanted);
	return is_good ? CH_OK : CH_E_ARG;
}
