/* SPDX-License-Identifier: MIT
 * memory.h: the library's own functions in a memory that is weaker than any machine's. The
 * library's objects are those of SAN=thread, whose compiler calls a function at each access to
 * memory, with its order; memory.c has these functions in place of ThreadSanitizer's.
 *
 * A case has up to three threads, which are coroutines of one thread of the system: it goes over
 * from one to another at accesses only, by chance. An atomic load may get any value that the C11
 * model lets it get: the newest, or an older one, unless an order forbids that. Two accesses to
 * the same bytes, of which one is plain and one writes, must be ordered: else the run has failed,
 * as has one in which a case's own assertion does not hold. Each run has a seed of its own, and
 * all runs of a case are the same ones each time. */
#ifndef CH_TESTS_ORDERS_MEMORY_H
#define CH_TESTS_ORDERS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { THREADS_MAX = 3 };

struct order_case {
	const char *name;
	uint32_t runs;
	/* Before the first run; nothing is simulated. */
	void (*make)(void);
	/* Before and after each run, by the thread that made it; nothing is simulated. */
	void (*begin)(void);
	void (*end)(void);
	void (*threads[THREADS_MAX])(void);
};

/* Ends the program, with the case and the number of the run. */
_Noreturn void order_failed(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define HOLDS(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			order_failed("%s:%d: %s", __FILE__, __LINE__, #condition);                 \
	} while (0)

/* Runs a case; false: not one run came to its end, or something else than a run failed. */
bool order_run(const struct order_case *);
/* Another thread may run here. */
void order_yield(void);
/* Calls the function as thread 1, 2 or 3, with nothing simulated. */
void order_as(uint32_t thread, void (*)(void));
uint32_t order_self(void);
void order_stack(uint32_t thread, const void **low, const void **high);
uint32_t order_chance(uint32_t n); /* 0 to n - 1 */
/* How often the thread that runs had its core execute a serializing instruction, of all threads. */
extern uint32_t order_serialized;
/* What the library has installed for SIGPROF, and the tag that its signals are given. */
extern void (*order_profile_handler)(int, void *, void *);
extern void *order_profile_tag;
/* The same for SIGUSR1: each of its signals is the library's own, and none is sent. */
extern void (*order_stop_handler)(int, void *, void *);
/* What a case knows besides is no access of the simulated memory. */
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))

#endif
