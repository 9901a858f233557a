/* SPDX-License-Identifier: MIT
 * harness.h: included by a test file to define cases. Each file is one program; each case runs in a
 * process of its own, started by tests/runner/runner.c. The harness knows nothing of the library.
 *
 * Without arguments a program lists its cases. With the name of a case the program runs the case,
 * and exits 0 (passed), 77 (skipped, reason printed) or 1 (failed); a TEST_TRAPS case passes when
 * the named signal kills the process.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "tests/support/os_failing.h"

enum { TEST_SKIPPED = 77, TEST_LIMIT_DEFAULT_S = 60, TEST_STORM_DEFAULT_MS = 5000 };

/* A wait that ends by itself (an alarm, or a cycle that waits for a thread) lasts as long as the
 * runner may let a case wait for a processor: a loaded machine keeps threads from running. */
enum { TEST_PATIENCE_S = 10 * TEST_LIMIT_DEFAULT_S, TEST_PATIENCE_MS = TEST_PATIENCE_S * 1000 };

struct test_case {
	const char *name;
	void (*run)(void);
	int limit_s; /* then the runner kills the case; waits for a processor do not count */
	int signal;  /* 0, or the signal that must kill the case */
	/* "alone": no other case runs beside, for the case fills the machine. "timed": the verdict
	 * hangs on time, load or luck, and `make check` leaves the case to `make check-timed`. */
	const char *mode;
	struct test_case *next;
};

void test_add(struct test_case *);

#define TEST_CASE(case_, limit_, signal_, mode_)                                    \
	static void test_##case_(void);                                             \
	static struct test_case test_case_##case_ = {#case_,  test_##case_, limit_, \
						     signal_, mode_,        NULL};  \
	__attribute__((constructor)) static void test_add_##case_(void)             \
	{                                                                           \
		test_add(&test_case_##case_);                                       \
	}                                                                           \
	static void test_##case_(void)

#define TEST(name) TEST_CASE(name, TEST_LIMIT_DEFAULT_S, 0, "-")
#define TEST_LIMIT(name, seconds) TEST_CASE(name, seconds, 0, "-")
#define TEST_EXCLUSIVE(name, seconds) TEST_CASE(name, seconds, 0, "alone")
#define TEST_TIMED(name, seconds) TEST_CASE(name, seconds, 0, "timed")
#define TEST_TRAPS(name, signal_) TEST_CASE(name, TEST_LIMIT_DEFAULT_S, signal_, "-")

/* For files whose cases begin and end alike: a case between two statements; and a case with a value
 * `with`, which `begin` gives, and which `end` ends behind the body. The body has a copy. */
#define TEST_BETWEEN(name, begin, end)  \
	static void body_##name(void);  \
	TEST(name)                      \
	{                               \
		begin;                  \
		body_##name();          \
		end;                    \
	}                               \
	static void body_##name(void)
#define TEST_WITH(name, type, with, begin, end) \
	static void body_##name(type);          \
	TEST(name)                              \
	{                                       \
		type with = begin;              \
		body_##name(with);              \
		end;                            \
	}                                       \
	static void body_##name(__attribute__((unused)) type with)

/* A failed check prints file, line and expression and ends the whole case, from any thread. */
__attribute__((noreturn, format(printf, 3, 4))) void test_fail(const char *file, int line,
							       const char *format, ...);
#define FAIL(...) test_fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(expr)                                                 \
	do {                                                        \
		if (!(expr))                                        \
			test_fail(__FILE__, __LINE__, "%s", #expr); \
	} while (0)

/* Integers, enums and pointers; both values are printed. */
#define CHECK_EQ(a, b)                                                                             \
	do {                                                                                       \
		uint64_t check_a = (uint64_t)(a), check_b = (uint64_t)(b);                         \
		if (check_a != check_b)                                                            \
			test_fail(__FILE__, __LINE__, "%s == %s: %lld (0x%llx) and %lld (0x%llx)", \
				  #a, #b, (long long)check_a, (unsigned long long)check_a,         \
				  (long long)check_b, (unsigned long long)check_b);                \
	} while (0)
#define CHECK_STR(a, b)                                                                      \
	do {                                                                                 \
		const char *check_a = (a), *check_b = (b);                                   \
		if (!test_str_equal(check_a, check_b))                                       \
			test_fail(__FILE__, __LINE__, "%s == %s: \"%s\" and \"%s\"", #a, #b, \
				  check_a, check_b);                                         \
	} while (0)
bool test_str_equal(const char *, const char *);

/* Ends the case as skipped. Strict runners accept skips of cases in tests/cannot_run.list only. */
__attribute__((noreturn, format(printf, 1, 2))) void skip(const char *format, ...);

/* Runs fn on a fresh thread and joins the thread. Afterwards no word that fn left on its stack is
 * on any live stack, so a conservative scan finds only blocks that are really held. */
void run_on_ended_thread(void (*fn)(void *), void *arg);
/* Runs fn in a child, in a thread that goes on after the child's first thread has ended. */
void run_behind_first_thread(void (*fn)(void));

/* Overwrites words that earlier calls left below the caller's frame. A collection's frames may
 * leave such words in place, and a scan would see the words. */
void wipe_stack(void);

/* Forks, runs fn in the child without core dump, and fails unless `signal` killed the child (0:
 * unless the child exits 0). */
void expect_signal(void (*fn)(void *), void *arg, int signal);
/* The same, and copies the child's stderr to text, for panics and trap reports. */
void expect_signal_text(void (*fn)(void *), void *arg, int signal, char *text, size_t text_bytes);

/* Starts this program anew, in this process, for the case of this name. Environment variables that
 * the case has set are then there before any library starts. */
__attribute__((noreturn)) void run_case_again(const char *name);

int fork_child(void); /* fork, which must not fail */
/* Waits for a child of fork, and fails unless the child exited with the code. */
void expect_exit(int pid, int code);
/* The child exits with 0, and is not awake each ms for a wait of two seconds. wakes_before: how
 * often it was awake until it called exit; NULL = never. */
void expect_exit_at_once(int pid, const long *wakes_before);

/* How long a storm (random work on several threads) runs: CODEHEAP_TEST_STORM_MS, at most 5 s. A
 * longer storm names its full length, and runs for the full length where the environment allows. */
unsigned storm_ms(void);
unsigned storm_ms_of(unsigned full_ms);

/* xorshift64*. The case prints the seed at the first use; CODEHEAP_TEST_SEED sets the seed. */
struct test_random {
	uint64_t state;
};
struct test_random test_random_new(void);
uint64_t test_random_next(struct test_random *);
uint64_t test_random_below(struct test_random *, uint64_t bound);

/* 1 when memory, maps and frames are also a sanitizer's. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SANITIZED 1
#endif
#endif
#ifndef TEST_SANITIZED
#define TEST_SANITIZED 0
#endif

/* Ends the case as skipped under AddressSanitizer, whose allocator keeps its locks over a fork: a
 * child of a program with allocating threads may wait for ever. */
void skip_if_allocator_forgets_forks(void);
/* Ends the case as skipped on an architecture without backend procmem. */
void skip_without_procmem(void);

/* Maps pages until the process may have `left` maps more (vm.max_map_count). By
 * CODEHEAP_TEST_MAPS_LEFT this is done before a case runs (tests/runner/hostile.c). */
void fill_maps(long left);
/* Makes a mapping without a neighbour. Returns false at the limit of mappings. */
bool map_one(void);
long count_mappings(void); /* allocates nothing */

uint64_t now_ns(void);
/* A loop until the condition holds. A long loop prints its condition; the runner, which knows
 * whether the machine lets the case run, ends cases that hang. */
#define TEST_UNTIL(condition)                          \
	for (uint64_t since_ = now_ns(); !(condition); \
	     since_ = test_waits(since_, __FILE__, __LINE__, #condition))
uint64_t test_waits(uint64_t since_ns, const char *file, int line, const char *condition);
/* Whether a thread of this process waits in the kernel; false after the thread has ended. */
bool thread_is_asleep(int tid);
/* The bytes of this process's address space, and of the process's memory. Allocates nothing. */
size_t mapped_bytes(void);
size_t resident_bytes(void);
/* What a range has changed and shares with no other process (Private_Dirty), in KiB. */
uint64_t private_kib(uintptr_t from, size_t bytes);
/* How many descriptors are open. */
unsigned open_files(void);
/* A descriptor behind the standard ones of a file with these letters in its name, or -1. */
int descriptor_of(const char *letters);
/* Whether the mapping at the address has a flag of proc(5), VmFlags: " dd" is not dumped. */
bool mapping_has_flag(const void *at, const char *flag);
/* Page size of this run (CODEHEAP_TEST_PAGE), 0 = the library's default. */
size_t test_page_bytes(void);

#ifdef __cplusplus
}
#endif
