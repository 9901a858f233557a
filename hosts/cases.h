/* SPDX-License-Identifier: MIT
 * cases.h: shared by the cases of hosts in C and C++: a list of cases, each run in a process of its
 * own by its name; checks; what a heap, the stack and the process look like from outside. */
#pragma once

#include <codeheap/codeheap.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : case_failed(__FILE__, __LINE__, #what))
#define OK(call) CHECK((call) == 0)

__attribute__((noreturn)) static inline void case_failed(const char *file, int line,
							 const char *what)
{
	fprintf(stderr, "%s:%d: %s (%s)\n", file, line, what, ch_why());
	_exit(1);
}

/* The machine lacks what a case needs. */
__attribute__((noreturn)) static inline void case_skip(const char *reason)
{
	printf("skip: %s\n", reason);
	exit(77);
}

/* --- the list --- */

struct host_case {
	const char *name;
	void (*run)(void);
	struct host_case *next;
};
/* One for all files of a program. */
__attribute__((weak)) struct host_case *host_cases;

#define CASE(name)                                                                 \
	static void name(void);                                                    \
	__attribute__((constructor)) static void add_##name(void)                  \
	{                                                                          \
		static struct host_case self = {#name, name, NULL};                \
		self.next = host_cases;                                            \
		host_cases = &self;                                                \
	}                                                                          \
	static void name(void)

/* `PROGRAM NAME` runs a case; without a name the list is printed. */
static inline int run_cases(int argc, char **argv)
{
	for (const struct host_case *c = host_cases; c; c = c->next) {
		if (argc < 2) {
			puts(c->name);
		} else if (!strcmp(c->name, argv[1])) {
			c->run();
			return 0;
		}
	}
	return argc < 2 ? 0 : 2;
}

/* --- heaps --- */

/* 0: the default of each. */
static inline struct ch_heap *heap_of(size_t pool_bytes, unsigned sinks, const void *near_address)
{
	struct ch_config config;
	struct ch_heap *heap;
	ch_config_init(&config);
	config.pool_bytes = pool_bytes;
	config.sinks = sinks;
	config.near_address = near_address;
	config.stop_signal = SIGUSR2;
	config.stop_wait_ms = 20000; /* a loaded machine is no stopped thread's fault */
	OK(ch_heap_create(&config, &heap));
	return heap;
}

static inline struct ch_stats stats_of(struct ch_heap *heap)
{
	struct ch_stats stats;
	stats.size = sizeof stats;
	OK(ch_heap_stats(heap, &stats));
	return stats;
}

static inline void check_heap(struct ch_heap *heap)
{
	char report[512];
	if (ch_heap_check(heap, report, sizeof report) != CH_OK)
		case_failed(__FILE__, __LINE__, report);
}

static inline void end_heap(struct ch_heap *heap)
{
	check_heap(heap);
	OK(ch_heap_destroy(heap));
}

static inline bool is_code(struct ch_heap *heap, const void *address)
{
	struct ch_spot spot;
	spot.size = sizeof spot;
	return ch_code_at(heap, address, false, &spot);
}

/* Clears the dead frames below sp: stale words of earlier calls would hold code. */
__attribute__((noinline, unused)) static void scrub_stack(void)
{
	volatile char bytes[32768];
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = 0;
}

/* Three cycles: a new block without an entry is held through the second one. */
static inline void collect(struct ch_heap *heap)
{
	scrub_stack();
	for (int i = 0; i < 3; i++)
		OK(ch_heap_collect(heap));
}

/* --- the process --- */

/* No memory of the process may become executable from here on. */
static inline void deny_new_code(void)
{
	enum { SET_MDWE = 65, REFUSE_EXEC_GAIN = 1 }; /* Linux 6.3, include/uapi/linux/prctl.h */
	if (prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0L, 0L, 0L) != 0)
		case_skip("the kernel has no PR_SET_MDWE");
}

/* Whether a line of a file has the text. */
static inline bool file_has(const char *path, const char *text)
{
	char line[512];
	bool found = false;
	FILE *file = fopen(path, "r");
	CHECK(file);
	while (fgets(line, sizeof line, file))
		found = found || strstr(line, text);
	fclose(file);
	return found;
}

static inline void no_mapping_is_writable_and_executable(void)
{
	CHECK(!file_has("/proc/self/maps", " rwx"));
}

static inline const char *perf_map(void)
{
	static char path[64];
	snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
	return path;
}

/* --- shared by closures and functions of a runtime --- */

/* 100,000 pieces of code, made with numbers from 0 on, of which 16 live at a time. Memory is flat
 * from EARLY rounds on: the heap remembers the last 65,536 freed blocks. */
static inline void churn(struct ch_heap *heap, void *(*make)(int number),
			 void (*call_and_release)(void *code, int number))
{
	enum { ROUNDS = 100000, EARLY = 70000, KEPT = 16, MIB = 1 << 20 };
	static void *kept[KEPT]; /* static: addresses on a stack hold code */
	struct ch_stats early = stats_of(heap);
	for (int i = 0; i < ROUNDS; i++) {
		void **slot = &kept[i % KEPT];
		if (i >= KEPT)
			call_and_release(*slot, i - KEPT);
		*slot = make(i);
		if (i == EARLY) {
			CHECK(stats_of(heap).blocks_freed > EARLY / 2); /* nobody has asked */
			collect(heap);
			early = stats_of(heap);
		}
	}
	/* How many blocks wait for the next cycle depends on timing, and is no leak. */
	CHECK(stats_of(heap).blocks_freed > early.blocks_freed + (ROUNDS - EARLY) / 2);
	collect(heap);
	struct ch_stats late = stats_of(heap);
	printf("committed %lu, %lu KiB; metadata %lu, %lu KiB; %lu cycles\n",
	       (unsigned long)early.committed_bytes_now >> 10,
	       (unsigned long)late.committed_bytes_now >> 10,
	       (unsigned long)early.metadata_bytes_now >> 10,
	       (unsigned long)late.metadata_bytes_now >> 10, (unsigned long)late.cycles);
	CHECK(late.committed_bytes_now <= early.committed_bytes_now + MIB);
	CHECK(late.metadata_bytes_now <= early.metadata_bytes_now + MIB);
	for (int i = 0; i < KEPT; i++)
		call_and_release(kept[i], ROUNDS - KEPT + i);
	memset(kept, 0, sizeof kept);
	collect(heap);
	/* Stale words on the stack may hold some blocks. */
	CHECK(stats_of(heap).blocks_now <= KEPT / 2);
}

#ifdef __cplusplus
/* What code returns; or less what is thrown through the code, with all registers as they were. */
template <class Number>
__attribute__((noinline)) static Number caught_from(Number (*fn)(Number), Number n)
{
	/* Held in callee-saved registers over the throw. */
	long a = n * 3, b = n * 5, c = n * 7, d = n * 11;
	__asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
	try {
		return fn(n);
	} catch (Number caught) {
		__asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
		CHECK(a == n * 3 && b == n * 5 && c == n * 7 && d == n * 11);
		return -caught;
	}
}
#endif
