/* SPDX-License-Identifier: MIT
 * trap_install.c: the handler of ch_trap_install for signals that end a process, for all heaps that
 * asked. It says what a trap in code means (trap.c), lets sinks show live code to readers of the
 * core, and goes on to the action that was there before. Signal-safe: no allocation but mappings;
 * locks are tried, for a bounded time. Lock of ch_trap_install: heaps. */
#include "codeheap/places/places.h"

#include <signal.h>

static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGABRT};
enum { SIGNALS = sizeof signals / sizeof signals[0], LINE_BYTES = 1024 };

static struct ch__os_action before[SIGNALS];
static bool installed[SIGNALS] CH_GUARDED_BY(ch__heaps_lock);

static void say(const struct ch_heap *heap, const void *info, const void *ucontext)
{
	static const char program[] = "libcodeheap: ";
	char line[LINE_BYTES];
	size_t n = sizeof program - 1;
	memcpy(line, program, n);
	size_t told = ch_trap_describe(heap, info, ucontext, line + n, sizeof line - n);
	if (!told)
		return;
	n += strlen(line + n);
	line[n++] = '\n'; /* in the place of the 0 */
	ch__os_write_last(line, n);
}

/* Tells of a fault in a destroyed heap's pool, where other memory of the program may lie since. A
 * code of 0 or less: somebody sent the signal. */
static void say_gone(int signal, const siginfo_t *info, const void *ucontext)
{
	char line[LINE_BYTES];
	struct ch__text text = {line, sizeof line, 0};
	uintptr_t at = ch__arch_trap_address(signal, info->si_code, ucontext);
	bool is_data = !ch__heaps_had(at) && (signal == SIGSEGV || signal == SIGBUS);
	if (is_data)
		at = (uintptr_t)info->si_addr;
	if (info->si_code <= 0 || !ch__heaps_had(at) ||
	    ch__os_is_readable((const void *)(at & ~(uintptr_t)7)))
		return;
	ch__text_format(&text, "libcodeheap: %s %lx in the pool of a heap that was destroyed\n",
			is_data ? "a load or store at" : "executed at", at);
	ch__os_write_last(line, text.length);
}

static void report(int signal, void *info, void *ucontext)
{
	static _Thread_local bool is_reporting; /* a fault in the report goes to the next handler */
	unsigned at = 0;
	while (at + 1 < SIGNALS && signals[at] != signal)
		at++;
	/* A fault in the report clears the flag: the next handler may leave by a jump. */
	is_reporting = !is_reporting;
	if (is_reporting) {
		int error = errno;
		/* A heap found from here on is not freed before ch__place_read_end. */
		ch__place_read_begin();
		CH__EACH_HEAP(heap) {
			if (!atomic_load(&heap->reports_traps))
				continue;
			say(heap, info, ucontext);
			/* Tables may lie in the pool, which a child of a raw clone lacks. */
			if (heap->process == ch__os_process_id())
				ch__sinks_fatal(heap->sinks);
		}
		say_gone(signal, info, ucontext);
		ch__place_read_end();
		is_reporting = false;
		errno = error;
	}
	ch__os_signal_chain(signal, info, ucontext, &before[at], true);
}

/* The second caller waits for the first: code may run after the return. A fork waits, too, so a
 * child knows of each signal whether the handler is there. */
enum ch_status ch_trap_install(struct ch_heap *heap)
{
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	enum ch_status status = CH_OK;
	ch__heaps_take();
	for (unsigned i = 0; status == CH_OK && i < SIGNALS; i++) {
		installed[i] = installed[i] || ch__os_signal_install(signals[i], report, &before[i],
								     CH__OS_LIKE_OLD);
		/* Handlers that are installed only pass signals on, until a later call succeeds. */
		if (!installed[i])
			status = ch__because(CH_E_OS, "no handler for signal %d: %m", signals[i]);
	}
	ch__heaps_let_go();
	if (status == CH_OK)
		atomic_store(&heap->reports_traps, true);
	return status;
}
