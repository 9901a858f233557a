/* SPDX-License-Identifier: MIT
 * patch_x86_64.c: bytes patched while other cores run the bytes. The RAW mutants
 * (tests/breaks/tests.rows) break the architecture's rule in the code of this file only: the
 * crashes of the mutants are the reason for the rule. */
#define _GNU_SOURCE
#include "arch/base.h"
#include "tests/support/two_views.h"

#include <pthread.h>
#include <stdatomic.h>

/* Bytes run at exec and written at write, with traps in all other places. */
struct raw {
	uint8_t *exec, *write;
	_Atomic(int) stop;
	_Atomic(uint64_t) seen[2]; /* how often 1 was returned, and 2 */
};

enum { RAW_BYTES = 8192, FIRST_AT = 0x0110, SECOND_AT = 0x0a40, SITE_AT = 0x0040 };

static void raw_open(struct raw *r)
{
	memset(r, 0, sizeof *r);
	r->exec = two_views_map(RAW_BYTES, &r->write);
}

/* mov eax, value; ret */
static void raw_function(struct raw *r, uint32_t at, uint32_t value)
{
	r->write[at] = 0xb8;
	memcpy(r->write + at + 1, &value, 4);
	r->write[at + 5] = 0xc3;
}

static void *raw_run(void *arg)
{
	struct raw *r = arg;
	uint32_t (*code)(void) = (uint32_t(*)(void))(uintptr_t)r->exec;
	while (!atomic_load_explicit(&r->stop, memory_order_relaxed)) {
		uint32_t value = code();
		CHECK(value == 1 || value == 2);
		atomic_fetch_add_explicit(&r->seen[value - 1], 1, memory_order_relaxed);
	}
	return NULL;
}

/* Where both views are one, both values show only by luck. */
static bool is_enough(const struct raw *r)
{
	return r->exec == r->write ? r->seen[0] + r->seen[1] : r->seen[0] && r->seen[1];
}

static void raw_storm(struct raw *r, void (*toggle)(struct raw *, int))
{
	enum { RUNNERS = 2 };
	pthread_t threads[RUNNERS];
	for (int i = 0; i < RUNNERS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, raw_run, r), 0);
	uint64_t end = now_ns() + storm_ms_of(2000) * UINT64_C(1000000);
	for (int round = 0; round % 256 || now_ns() < end || !is_enough(r); round++)
		toggle(r, round & 1);
	atomic_store(&r->stop, 1);
	for (int i = 0; i < RUNNERS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

/* --- 34: re-pointing a jump --- */

static void repoint(struct raw *r, int second)
{
	int32_t distance = (second ? SECOND_AT : FIRST_AT) - (SITE_AT + 5);
	uint8_t *to = r->write + SITE_AT + 1;
	__asm__ volatile("movl %1, %0" : "=m"(*(uint8_t(*)[4])to) : "r"(distance) : "memory");
}

TEST(s34_jump_is_repointed_by_one_store_while_it_runs)
{
	struct raw r;
	raw_open(&r);
	raw_function(&r, FIRST_AT, 1);
	raw_function(&r, SECOND_AT, 2);
	memset(r.write, 0x90, SITE_AT);
	r.write[SITE_AT] = 0xe9;
	repoint(&r, 0);
	raw_storm(&r, repoint);
}

/* --- 35: an entry that becomes a jump --- */

static void toggle_entry(struct raw *r, int is_jump)
{
	static const uint8_t one_nop[8] = {0x0f, 0x1f, 0x44, 0x00, 0x00, 0x90, 0x90, 0x90};
	int32_t distance = SECOND_AT - 5;
	uint64_t word;
	memcpy(&word, one_nop, 8);
	if (is_jump)
		word = 0xe9 | (uint64_t)(uint32_t)distance << 8 | UINT64_C(0x909090) << 40;
	__atomic_store_n((uint64_t *)(void *)r->write, word, __ATOMIC_RELEASE);
}

TEST(s35_entry_of_one_instruction_becomes_a_jump_while_it_runs)
{
	struct raw r;
	raw_open(&r);
	raw_function(&r, 8, 1);
	raw_function(&r, SECOND_AT, 2);
	toggle_entry(&r, 0);
	raw_storm(&r, toggle_entry);
}
