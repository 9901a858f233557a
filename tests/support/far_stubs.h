/* SPDX-License-Identifier: MIT
 * far_stubs.h: what holds of stubs that lead on by a literal, on each machine that has such stubs
 * (CH_ARCH_STUB_LEADS_FAR). The header has no tests. */
#pragma once

#include "arch/arch.h"
#include "arch/stubs.h"
#include "tests/support/two_views.h"

#include <pthread.h>
#include <stdatomic.h>

/* Every byte of the stub is read, and none behind the stub. */
static inline void expect_stub_is_judged(uint8_t *write, uintptr_t exec, uintptr_t trampoline)
{
	static const uint32_t indexes[] = {0, 1, 0x123456, 0xffffff};
	for (unsigned i = 0; i < 4; i++) {
		ch__arch_stub_write(write, exec, trampoline, indexes[i]);
		CHECK_EQ(ch__arch_stub_index(write + CH_ARCH_STUB_CALL_BYTES), indexes[i]);
		CHECK_EQ(ch__arch_stub_leads_to(write), trampoline);
		CHECK(ch__arch_stub_is_valid(write, exec, trampoline, indexes[i]));
		CHECK(!ch__arch_stub_is_valid(write, exec, trampoline, indexes[i] ^ 1));
		CHECK(!ch__arch_stub_is_valid(write, exec, trampoline + 1, indexes[i]));
		for (unsigned b = 0; b < CH_ARCH_STUB_BYTES; b++) {
			write[b] ^= 0x10;
			CHECK(!ch__arch_stub_is_valid(write, exec, trampoline, indexes[i]));
			write[b] ^= 0x10;
		}
	}
}

static inline int far_answer(void)
{
	return 42;
}

static inline int far_call(uintptr_t exec)
{
	return ((int (*)(void))exec)();
}

/* The stub lies at `at`, and its home, a function, at home_at. */
static inline void expect_stub_leads_on(uint8_t *exec_base, uint8_t *write_base, size_t at,
					size_t home_at)
{
	uint8_t *write = write_base + at;
	uintptr_t exec = (uintptr_t)exec_base + at, home = (uintptr_t)exec_base + home_at;
	size_t bytes = ch__arch_constant_function_write(write_base + home_at, 7);
	ch__arch_sync(exec_base + home_at, bytes);
	ch__arch_stub_write(write, exec, home, 0x123456);
	ch__arch_sync((uint8_t *)exec, CH_ARCH_STUB_BYTES);
	CHECK_EQ(far_call(exec), 7);
	ch__arch_stub_lead(write, (uintptr_t)far_answer);
	CHECK_EQ(ch__arch_stub_leads_to(write), (uintptr_t)far_answer);
	CHECK_EQ(far_call(exec), 42);
	CHECK(ch__arch_stub_is_valid(write, exec, (uintptr_t)far_answer, 0x123456));
	ch__arch_stub_lead(write, home);
	CHECK_EQ(far_call(exec), 7);
	CHECK(ch__arch_stub_is_valid(write, exec, home, 0x123456));
	/* A jump in the slot keeps its target while the slot leads elsewhere. */
	ch__arch_jump_write(write, exec, home);
	ch__arch_sync((uint8_t *)exec, CH_ARCH_STUB_BYTES);
	CHECK_EQ(far_call(exec), 7);
	ch__arch_stub_lead(write, (uintptr_t)far_answer);
	CHECK_EQ(far_call(exec), 42);
	CHECK_EQ(ch__arch_jump_target(write, exec), home);
	static const int64_t ends[] = {0x7fffffff, -0x80000000ll};
	for (unsigned i = 0; i < 2; i++) {
		uintptr_t target = exec + (uintptr_t)ends[i], beyond = target + (i ? -1ul : 1);
		CHECK(ch__arch_jump_reaches(exec, target) && !ch__arch_jump_reaches(exec, beyond));
		ch__arch_jump_write(write, exec, target);
		CHECK_EQ(ch__arch_jump_target(write, exec), target);
		CHECK_EQ(ch__arch_stub_leads_to(write), target);
	}
}

struct far_storm {
	uint8_t *write;
	uintptr_t targets[2];
	_Atomic(bool) stop;
	_Atomic(uint64_t) patches;
};

static inline void *far_lead_all_the_time(void *arg)
{
	struct far_storm *s = arg;
	while (!atomic_load_explicit(&s->stop, memory_order_relaxed))
		ch__arch_stub_lead(s->write, s->targets[s->patches++ & 1]);
	return NULL;
}

/* One thread changes the literal. Another thread, which runs the stub, reaches one of the targets
 * every time. The targets lie in the same mapping as the stub, and have other high bytes. */
static inline void expect_leads_never_tear(uint8_t *exec_base, uint8_t *write_base, size_t at)
{
	enum { LOW = 0x1008, HIGH = 0x2aaa8, PATCHES_LEAST = 100 };
	struct far_storm s = {.write = write_base + at};
	uintptr_t exec = (uintptr_t)exec_base + at;
	s.targets[0] = (uintptr_t)exec_base + LOW, s.targets[1] = (uintptr_t)exec_base + HIGH;
	ch__arch_constant_function_write(write_base + LOW, 1);
	ch__arch_constant_function_write(write_base + HIGH, 2);
	ch__arch_stub_write(s.write, exec, s.targets[0], 1);
	ch__arch_sync(exec_base, HIGH + 4096);
	pthread_t patcher;
	uint64_t seen[3] = {0}, until = now_ns() + (uint64_t)storm_ms() * 500000;
	CHECK_EQ(pthread_create(&patcher, NULL, far_lead_all_the_time, &s), 0);
	while (now_ns() < until || !seen[1] || !seen[2] || atomic_load(&s.patches) < PATCHES_LEAST)
		for (unsigned i = 0; i < 100; i++) {
			int got = far_call(exec);
			seen[got == 1 || got == 2 ? got : 0]++;
		}
	atomic_store(&s.stop, true);
	pthread_join(patcher, NULL);
	printf("%llu patches, %llu and %llu executions\n", (unsigned long long)s.patches,
	       (unsigned long long)seen[1], (unsigned long long)seen[2]);
	CHECK_EQ(seen[0], 0);
}
