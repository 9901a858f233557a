/* SPDX-License-Identifier: MIT
 * why.c: the texts of a status: a constant text, and the sentence of the calling thread about the
 * call. The sentence is made in the thread's own memory: no lock, no allocation, and no call of the
 * C library except for names of errors, and to read the environment, once. A signal handler that
 * fails a call while it interrupts another call mixes two sentences, and harms nothing. */
#include "codeheap/base/why.h"
#include "codeheap/base/table.h"
#include "os/locks/ranks.h"
#include "os/os.h"
#include "os/threads.h"

enum { WHY_BYTES = 240 };
static _Thread_local char why[WHY_BYTES];

static const struct {
	const char *name, *text;
} statuses[] = {
#define X(name, text) {#name, text},
	CH_STATUS_LIST(X)
#undef X
};

const char *ch_status_text(enum ch_status status)
{
	if ((unsigned)status >= sizeof statuses / sizeof *statuses)
		return "unknown status";
	return statuses[status].text;
}

const char *ch_why(void)
{
	return why;
}

/* Two threads that read the variable at once get the same answer. */
static bool is_debugging(void)
{
	enum { UNREAD, NO, YES };
	static _Atomic(uint32_t) answer;
	uint32_t known = atomic_load(&answer);
	if (known == UNREAD) {
		const char *value = ch__os_environment("CODEHEAP_DEBUG");
		known = value && value[0] == '1' && !value[1] ? YES : NO;
		atomic_store(&answer, known);
	}
	return known == YES;
}

/* One write, so that lines of two threads do not mix. */
void ch__why_print(const char *before)
{
	char line[WHY_BYTES + 64];
	struct ch__text text = {line, sizeof line, 0};
	ch__text_format(&text, "codeheap: %s%s\n", before, why);
	ch__os_write_last(line, text.length);
}

/* After a region, not inside (I1): a thread waits where nobody reads stderr. */
static void say(enum ch_status status, const char *format, va_list *args, bool prints)
{
	struct ch__text text = {why, sizeof why, 0};
	ch__rank_check_for(CH__RANK_REGION, "a sentence");
	ch__text_format(&text, "%s: ", statuses[status].name);
	ch__text_put_list(&text, format, args);
	ch__text_end(&text);
	if (CH_UNLIKELY(prints))
		ch__why_print("");
}

enum ch_status(ch__because)(enum ch_status status, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	say(status, format, &args, is_debugging());
	va_end(args);
	return status;
}

enum ch_status ch__because_user(enum ch_status status, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	say(status, format, &args, true);
	va_end(args);
	return status;
}

enum ch_status(ch__because_marking)(void)
{
	return ch__because(CH_E_STATE, "the calling thread is between ch_mark_begin and "
				       "ch_mark_end, or in ref, roots or visit");
}

enum ch_status ch__because_locked(void)
{
	return ch__because(CH_E_BUSY, "another thread held a lock of the heap");
}

enum ch_status(ch__because_stranger)(void)
{
	return ch__because(CH_E_THREAD, "thread %d is not attached to the heap",
			   ch__os_thread_id());
}

enum ch_status(ch__because_memory)(const char *what)
{
	return ch__because(CH_E_MEMORY, "no side memory for %s", what);
}

/* A block's branches find no place where fewer than CH__RUN_MAX records are left. */
enum ch_status(ch__because_no_record)(const struct ch__table *table, const char *records)
{
	if (atomic_load(&table->used) + CH__RUN_MAX <= table->limit)
		return ch__because_memory(records);
	return ch__because(CH_E_MEMORY, "the heap has %u %s, its limit: end some, and collect",
			   table->limit - 1, records);
}
