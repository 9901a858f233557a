/* SPDX-License-Identifier: MIT
 * memory.h: the library's own functions in a memory that is weaker than any machine's. The
 * library's objects are built as for SAN=thread: the compiler calls a function at each access to
 * memory, and passes the order. memory.c has these functions in place of ThreadSanitizer's.
 *
 * A case has up to three threads, which are coroutines of a single thread of the system. Threads
 * change by chance, at accesses only. An atomic load may get any value that the C11 model allows:
 * the newest, or an older value, unless an order forbids. Two accesses to the same bytes, of which
 * one is plain and one writes, must be ordered: else the run has failed. A run also fails when an
 * assertion of the case does not hold. Each run has a seed of its own, and all runs of a case are
 * the same each time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { THREADS_MAX = 3 };

struct order_case {
	const char *name;
	uint32_t runs;
	/* Called before the first run; nothing is simulated. */
	void (*make)(void);
	/* Called by thread 0 before and after each run; nothing is simulated. */
	void (*begin)(void);
	void (*end)(void);
	void (*threads[THREADS_MAX])(void);
};

/* Prints the case and the number of the run, and ends the program. */
_Noreturn void order_failed(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define HOLDS(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			order_failed("%s:%d: %s", __FILE__, __LINE__, #condition);                 \
	} while (0)

/* Runs a case. */
void order_run(const struct order_case *);
/* Another thread may run here. */
void order_yield(void);
/* Calls the function as thread 1, 2 or 3, with nothing simulated. */
void order_as(uint32_t thread, void (*)(void));
uint32_t order_self(void);
void order_stack(uint32_t thread, const void **low, const void **high);
uint32_t order_chance(uint32_t n); /* 0 to n - 1 */
/* How often threads have made their cores execute a serializing instruction, all together. */
extern uint32_t order_serialized;
/* The handler that the library has installed for SIGPROF, and the tag of the library's signals. */
extern void (*order_profile_handler)(int, void *, void *);
extern void *order_profile_tag;
/* The same for SIGUSR1: each such signal counts as the library's own, and none is sent. */
extern void (*order_stop_handler)(int, void *, void *);
/* Marks functions of a case whose accesses are not simulated. */
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))
