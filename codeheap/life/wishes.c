/* SPDX-License-Identifier: MIT
 * wishes.c: reads the environment. The user of a program overrides the program there: the backend,
 * the sinks, the names of dead code. Paths are read where the files are made.
 * An empty value asks for nothing. Backends and sinks are known here by name only. No lock.
 *
 * An unknown value of these three is refused, with a line on stderr: the program sees only a
 * status, and the user would look in vain for the wanted sink or backend. An unknown value of
 * CODEHEAP_DEBUG has the line only. */
#include "codeheap/life/life.h"

#include <errno.h>

enum { LINE_BYTES = 128 };

static const char *wish(const char *variable)
{
	const char *value = ch__os_environment(variable);
	return value && *value ? value : NULL;
}

/* The value may be anything: its control characters are taken out, and its end may be cut off. */
static enum ch_status refuse(const char *variable, const char *set, const char *values)
{
	return ch__because_user(CH_E_ARG, "%s must be %s%s, and is `%s`", variable, set, values,
				wish(variable));
}

static enum ch_status read_sinks(struct ch_config *config, unsigned *wanted)
{
	char names[LINE_BYTES];
	const char *list = wish("CODEHEAP_SINKS");
	*wanted = config->sinks == CH_SINK_DEFAULT ? CH_SINK_UNWIND : config->sinks;
	*wanted &= ~(unsigned)CH_SINK_NONE;
	if (list && ch__sinks_parse(list, wanted))
		return CH_OK;
	if (!list && !(*wanted & ~(unsigned)CH__SINKS_ALL))
		return CH_OK;
	ch__sinks_print((unsigned)CH__SINKS_ALL, names, sizeof names);
	if (!list)
		return ch__because(CH_E_ARG, "ch_config.sinks is %x: not a set of %s",
				   config->sinks, names);
	return refuse("CODEHEAP_SINKS", "none, or some of ", names);
}

/* For a wish in the environment stderr has a line. For a wish of the program CODEHEAP_DEBUG=1
 * writes the line, and the program asks ch_sink_status. */
void ch__wishes_tell_off(const struct ch_heap *heap, unsigned wanted)
{
	bool is_users = wish("CODEHEAP_SINKS") != NULL;
	for (unsigned bit = 1; bit & CH__SINKS_ALL; bit <<= 1) {
		char name[LINE_BYTES];
		int error = wanted & bit ? ch__sinks_status(heap->sinks, (enum ch_sink)bit) : 0;
		if (!error)
			continue;
		ch__sinks_print(bit, name, sizeof name);
		errno = error;
		if (is_users)
			(void)ch__because_user(CH_E_OS, "CODEHEAP_SINKS: %s is off, with %m", name);
		else
			(void)ch__because(CH_E_OS, "ch_config.sinks: %s is off, with %m", name);
	}
}

/* Reads all variables before failing, so that one run tells of each mistake. CODEHEAP_DEBUG changes
 * no heap: a wrong value has the line only. */
enum ch_status ch__wishes_read(struct ch_config *config, unsigned *wanted)
{
	enum ch_status status = CH_OK;
	const char *backend = wish("CODEHEAP_WX"), *names = wish("CODEHEAP_DEAD_NAMES");
	if (backend && !ch__backend_of_name(backend, &config->backend))
		status = refuse("CODEHEAP_WX", "", "dual, memfd or procmem");
	if (names && strcmp(names, "kept") == 0)
		config->dead_names = CH_DEAD_NAMES_KEPT;
	else if (names && strcmp(names, "replaced") == 0)
		config->dead_names = CH_DEAD_NAMES_REPLACED;
	else if (names)
		status = refuse("CODEHEAP_DEAD_NAMES", "", "replaced or kept");
	enum ch_status sinks = read_sinks(config, wanted);
	const char *debug = wish("CODEHEAP_DEBUG");
	if (debug && strcmp(debug, "0") != 0 && strcmp(debug, "1") != 0)
		(void)refuse("CODEHEAP_DEBUG", "", "0 or 1");
	return status != CH_OK ? status : sinks;
}
