/* SPDX-License-Identifier: MIT
 * sites_rig.h: for the test of each architecture's sites: code in two views, checks that ask for no
 * instruction, and a storm of patches against a thread that executes the code. This header has no
 * tests. */
#pragma once

#include "arch/arch.h"
#include "arch/sites.h"
#include "arch/stubs.h"
#include "tests/support/two_views.h"

#include <pthread.h>
#include <stdatomic.h>

struct views {
	uint8_t *exec, *write;
};

static inline struct views map_views(size_t bytes)
{
	struct views v;
	v.exec = two_views_map(bytes, &v.write);
	return v;
}

static inline void call_address(void *address)
{
	((void (*)(void))(uintptr_t)address)();
}

static inline int answer(void)
{
	return 42;
}

/* Fills a range among zeros; a byte follows the range. */
static inline void expect_traps_are_known(uint8_t *bytes, size_t from, size_t n)
{
	memset(bytes, 0, from + n + 1);
	ch__arch_fill_traps(bytes + from, n);
	CHECK(ch__arch_are_traps(bytes + from, n));
	for (size_t i = from; i < from + n; i++) {
		bytes[i] ^= 1;
		CHECK(!ch__arch_are_traps(bytes + from, n));
		bytes[i] ^= 1;
	}
	CHECK(!from || bytes[from - 1] == 0);
	CHECK_EQ(bytes[from + n], 0);
}

/* A literal is a word, and its neighbours stay. */
static inline void expect_literal_is_written(uintptr_t target)
{
	uint64_t literal[3] = {1, 2, 3};
	ch__arch_site_write(CH_LITERAL, (uint8_t *)&literal[1], 0x1000, target);
	CHECK_EQ(literal[0], 1);
	CHECK_EQ(literal[1], target);
	CHECK_EQ(literal[2], 3);
	CHECK_EQ(ch__arch_site_target(CH_LITERAL, (uint8_t *)&literal[1], 0), target);
}

/* The diverter at an offset falls through to code that returns 1, and armed leads to code at
 * another offset, which returns 2; a target that is `beside` bytes further is another. */
static inline void expect_diverter_leads_when_armed(struct views v, size_t at, size_t target_at,
						    unsigned beside)
{
	uint8_t *write = v.write + at;
	uintptr_t exec = (uintptr_t)v.exec + at, target = (uintptr_t)v.exec + target_at;
	int (*function)(void) = (int (*)(void))exec;
	ch__arch_diverter_write(write, exec, target);
	ch__arch_constant_function_write(write + CH_ARCH_DIVERTER_BYTES, 1);
	ch__arch_constant_function_write(v.write + target_at, 2);
	ch__arch_sync(v.exec, target_at + 64);
	CHECK(ch__arch_diverter_is_valid(write, exec, target));
	CHECK(!ch__arch_diverter_is_valid(write, exec, target + beside));
	CHECK(ch__arch_diverter_is_there(write));
	CHECK(!ch__arch_diverter_is_armed(write));
	ch__arch_serialize();
	CHECK_EQ(function(), 1);
	ch__arch_diverter_arm(write, exec, target);
	ch__arch_sync((uint8_t *)exec, CH_ARCH_DIVERTER_BYTES);
	CHECK(ch__arch_diverter_is_armed(write));
	CHECK(!ch__arch_diverter_is_there(write));
	CHECK(!ch__arch_diverter_is_valid(write, exec, target));
	CHECK_EQ(ch__arch_diverter_target(write, exec), target);
	CHECK_EQ(function(), 2);
}

static inline void expect_no_valgrind_answers(void)
{
	enum { RUNNING_ON_VALGRIND = 0x1001 };
	const uintptr_t words[6] = {RUNNING_ON_VALGRIND, 1, 2, 3, 4, 5};
	CHECK_EQ(ch__arch_valgrind_ask(words), 0);
	for (uintptr_t i = 1; i < 6; i++)
		CHECK_EQ(words[i], i);
}

/* --- storms: one thread patches, the other must reach one of the targets every time --- */

struct storm {
	struct views v;
	void (*patch)(struct storm *, bool is_high); /* the target that the code leads to */
	enum ch_branch_kind site;
	size_t at;
	uint64_t seen[2]; /* how often the target that returns 1, and 2, was reached */
	uint64_t bad;     /* how often neither was */
	_Atomic(bool) stop;
	_Atomic(uint64_t) patches;
};

static inline void *patch_all_the_time(void *arg)
{
	struct storm *s = arg;
	while (!atomic_load_explicit(&s->stop, memory_order_relaxed)) {
		s->patch(s, s->patches & 1);
		s->patches++;
	}
	return NULL;
}

/* An emulator that misses a store goes on with old translated code: no tearing shows, and both
 * targets show only by luck. */
static inline bool saw_both(const struct storm *s)
{
	return s->v.write == s->v.exec ? s->seen[0] + s->seen[1] > 0 : s->seen[0] && s->seen[1];
}

/* Executes the code at the offset until the given time, and longer while the patcher does not get
 * to run or no patch was seen. */
static inline void execute_under_patches(struct storm *s, size_t offset, uint64_t until)
{
	enum { PATCHES_LEAST = 100 };
	pthread_t patcher;
	uint64_t enough = atomic_load(&s->patches) + PATCHES_LEAST;
	int (*function)(int) = (int (*)(int))((uintptr_t)s->v.exec + offset);
	atomic_store(&s->stop, false);
	CHECK_EQ(pthread_create(&patcher, NULL, patch_all_the_time, s), 0);
	while (now_ns() < until || !saw_both(s) || atomic_load(&s->patches) < enough)
		for (unsigned i = 0; i < 100; i++) {
			int got = function(0);
			if (got == 1 || got == 2)
				s->seen[got - 1]++;
			else
				s->bad++;
		}
	atomic_store(&s->stop, true);
	pthread_join(patcher, NULL);
}

static inline void expect_no_patch_tore(const struct storm *s)
{
	printf("%llu patches, %llu and %llu executions\n", (unsigned long long)s->patches,
	       (unsigned long long)s->seen[0], (unsigned long long)s->seen[1]);
	CHECK_EQ(s->bad, 0);
}
