/* SPDX-License-Identifier: MIT
 * patch_rules_x86_64.c: why the rules of patching exist. Each rule is broken in code of this file
 * alone, in a child process, and the failure has to be seen; the same code that keeps the rule runs
 * beside and must not fail. No library takes part: the child writes and runs its own bytes.
 *
 * Failures are a matter of chance, about one in a million executions for a displacement across a
 * line; a child tries for some seconds, the parent starts several children. Writer and runner are
 * on separate cores, without which no failure can be seen. So all but one are timed cases. */
#define _GNU_SOURCE
#include "tests/support/harness.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	CODE_BYTES = 1 << 18,
	/* Targets on both sides, so that all four bytes of the displacement change: a torn
	 * displacement leads to traps within the mapping. */
	SITE_AT = 0x20000,
	LOW_AT = SITE_AT - 0x1f80,
	HIGH_AT = SITE_AT + 0x2140,
	TRY_MS = 4000,
	RIGHT_MS = 300,
	TRIES = 8,
	WRONG_VALUE = 3, /* exit code of a child whose code gave an answer of no version */
};

struct raw {
	uint8_t *exec, *write;
	uint32_t site; /* offset of the patched bytes; code is entered at SITE_AT */
	bool is_right;
	_Atomic(bool) stop;
	_Alignas(64) _Atomic(uint64_t) ran;
	_Alignas(64) _Atomic(uint32_t) told;
	uint64_t stale, changes;
};

/* --- cores, bytes, threads --- */

static int cores[2];

static void find_cores(void)
{
	cpu_set_t allowed;
	int found = 0;
	CHECK_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
	for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
		if (CPU_ISSET(cpu, &allowed))
			cores[found++] = cpu;
	if (found < 2)
		skip("the process may run on one processor only");
}

static void run_on(int cpu)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
}

static void map_code(struct raw *r)
{
	int fd = memfd_create("raw code", MFD_CLOEXEC);
	CHECK(fd >= 0);
	CHECK_EQ(ftruncate(fd, CODE_BYTES), 0);
	r->exec = mmap(NULL, CODE_BYTES, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
	r->write = mmap(NULL, CODE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(r->exec != MAP_FAILED && r->write != MAP_FAILED);
	close(fd);
	memset(r->write, 0xcc, CODE_BYTES);
}

static void put(struct raw *r, uint32_t at, const void *bytes, size_t count)
{
	memcpy(r->write + at, bytes, count);
}

/* mov eax, value; ret */
static void put_value(struct raw *r, uint32_t at, uint32_t value)
{
	uint8_t code[] = {0xb8, 0, 0, 0, 0, 0xc3};
	memcpy(code + 1, &value, 4);
	put(r, at, code, sizeof code);
}

static void put_relative(struct raw *r, uint32_t at, uint8_t opcode, uint32_t target)
{
	uint8_t code[5] = {opcode};
	int32_t distance = (int32_t)(target - (at + 5));
	memcpy(code + 1, &distance, 4);
	put(r, at, code, sizeof code);
}

static uint32_t call(struct raw *r, uint32_t at)
{
	return ((uint32_t(*)(void))(uintptr_t)(r->exec + at))();
}

static void *run_site(void *arg)
{
	struct raw *r = arg;
	run_on(cores[1]);
	while (!atomic_load_explicit(&r->stop, memory_order_relaxed)) {
		for (int i = 0; i < 100; i++) {
			uint32_t value = call(r, SITE_AT);
			if (value != 1 && value != 2)
				_exit(WRONG_VALUE);
		}
		atomic_fetch_add_explicit(&r->ran, 100, memory_order_relaxed);
	}
	return NULL;
}

/* Patches all the time while the other core runs the code. */
static void storm(struct raw *r, void *(*run)(void *), void (*toggle)(struct raw *, uint32_t round))
{
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, run, r), 0);
	run_on(cores[0]);
	uint64_t start = now_ns();
	uint64_t end = start + (r->is_right ? RIGHT_MS : TRY_MS) * UINT64_C(1000000);
	for (uint32_t round = 0; round % 256 || now_ns() < end; round++)
		toggle(r, round);
	atomic_store(&r->stop, true);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* --- children --- */

enum outcome { NOTHING_SEEN, SEEN };

static enum outcome try_in_child(void (*fn)(struct raw *), bool is_right)
{
	struct rlimit none = {0, 0};
	int status;
	fflush(NULL);
	pid_t pid = fork_child();
	if (pid == 0) {
		struct raw *r = aligned_alloc(64, sizeof *r);
		memset(r, 0, sizeof *r);
		setrlimit(RLIMIT_CORE, &none);
		/* A sanitizer's handlers would turn the signal into an exit code. */
		signal(SIGTRAP, SIG_DFL);
		signal(SIGSEGV, SIG_DFL);
		signal(SIGILL, SIG_DFL);
		r->is_right = is_right;
		map_code(r);
		fn(r);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return NOTHING_SEEN;
	if (WIFEXITED(status) && WEXITSTATUS(status) == WRONG_VALUE)
		return SEEN;
	if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGTRAP || WTERMSIG(status) == SIGSEGV ||
				    WTERMSIG(status) == SIGILL || WTERMSIG(status) == SIGBUS))
		return SEEN;
	FAIL("the child ended with status 0x%x", status);
}

static void wrong_is_seen(void (*fn)(struct raw *), const char *rule)
{
	uint64_t start = now_ns();
	if (try_in_child(fn, true) == SEEN)
		FAIL("%s: the code that keeps the rule failed", rule);
	for (int n = 1; n <= TRIES; n++)
		if (try_in_child(fn, false) == SEEN) {
			printf("%s: seen in try %d, after %llu ms\n", rule, n,
			       (unsigned long long)((now_ns() - start) / 1000000));
			return;
		}
	FAIL("%s: the code that breaks the rule did not fail in %d tries", rule, TRIES);
}

/* --- a single store within an aligned 8 --- */

static void repoint(struct raw *r, uint32_t round)
{
	int32_t distance = (int32_t)((round & 1 ? HIGH_AT : LOW_AT) - (r->site + 5));
	__asm__ volatile("movl %1, %0"
			 : "=m"(*(uint8_t(*)[4])(r->write + r->site + 1))
			 : "r"(distance)
			 : "memory");
}

static void repoint_by_bytes(struct raw *r, uint32_t round)
{
	uint32_t distance = (round & 1 ? HIGH_AT : LOW_AT) - (r->site + 5);
	volatile uint8_t *to = r->write + r->site + 1;
	for (int i = 0; i < 4; i++)
		to[i] = (uint8_t)(distance >> 8 * i);
}

/* NOPs up to the jump, whose displacement begins `in_line` bytes into the line. */
static void put_jump(struct raw *r, uint32_t in_line)
{
	r->site = SITE_AT + 64 + in_line - 1;
	memset(r->write + SITE_AT, 0x90, r->site - SITE_AT);
	put_value(r, LOW_AT, 1);
	put_value(r, HIGH_AT, 2);
	put_relative(r, r->site, 0xe9, LOW_AT);
}

static void patch_across_a_line(struct raw *r)
{
	put_jump(r, r->is_right ? 56 : 62);
	storm(r, run_site, repoint);
}

static void patch_by_bytes(struct raw *r)
{
	put_jump(r, 8);
	storm(r, run_site, r->is_right ? repoint : repoint_by_bytes);
}

TEST_TIMED(displacement_across_a_line_is_seen_torn, 90)
{
	find_cores();
	wrong_is_seen(patch_across_a_line, "a displacement lies in one aligned 8");
}

TEST_TIMED(displacement_stored_byte_by_byte_is_seen_torn, 90)
{
	find_cores();
	wrong_is_seen(patch_by_bytes, "a displacement changes by one store");
}

/* --- a single instruction --- */

static void toggle_entry(struct raw *r, uint32_t round)
{
	static const uint8_t one_nop[8] = {0x0f, 0x1f, 0x44, 0x00, 0x00, 0x90, 0x90, 0x90};
	static const uint8_t two_nops[8] = {0x90, 0x0f, 0x1f, 0x40, 0x00, 0x90, 0x90, 0x90};
	uint64_t word;
	memcpy(&word, r->is_right ? one_nop : two_nops, 8);
	uint32_t distance = HIGH_AT - (SITE_AT + 5);
	if (round & 1)
		word = 0xe9 | (uint64_t)distance << 8 | UINT64_C(0x909090) << 40;
	__atomic_store_n((uint64_t *)(void *)(r->write + SITE_AT), word, __ATOMIC_RELEASE);
}

static void patch_an_entry(struct raw *r)
{
	put_value(r, SITE_AT + 8, 1);
	put_value(r, HIGH_AT, 2);
	toggle_entry(r, 0);
	storm(r, run_site, toggle_entry);
}

TEST_TIMED(entry_of_two_instructions_is_seen_to_fail, 90)
{
	find_cores();
	wrong_is_seen(patch_an_entry, "what is patched is one instruction");
}

/* --- a stub outlives its helper --- */

enum { STUB_AT = SITE_AT, THUNK_AT = SITE_AT + 0x1000, TRAMPOLINE_AT = SITE_AT + 0x2000 };
static struct raw *helped;

/* As a collection in the helper does: only the helper's frame needs the stub's block. */
static void free_stub(void)
{
	memset(helped->write + STUB_AT, 0xcc, 64);
}

/* mov rax, helper; jmp rax */
static void put_thunk(struct raw *r, void (*helper)(void))
{
	uint8_t code[12] = {0x48, 0xb8};
	uint64_t address = (uintptr_t)helper;
	memcpy(code + 2, &address, 8);
	memcpy(code + 10, (const uint8_t[]){0xff, 0xe0}, 2);
	put(r, THUNK_AT, code, sizeof code);
}

/* The helper's return address lies in the stub, or in the trampoline, which is never freed and
 * drops the stub's return address. Here nothing else decides: the stub is no root of any scan. */
static void call_through_a_stub(struct raw *r)
{
	static const uint8_t drop[4] = {0x48, 0x83, 0xec, 0x08}; /* sub rsp, 8 */
	static const uint8_t take[4] = {0x48, 0x83, 0xc4, 0x08}; /* add rsp, 8 */
	helped = r;
	put_thunk(r, free_stub);
	if (r->is_right) {
		put_relative(r, STUB_AT, 0xe8, TRAMPOLINE_AT);
		put_relative(r, TRAMPOLINE_AT, 0xe8, THUNK_AT);
		put(r, TRAMPOLINE_AT + 5, take, sizeof take);
		put_value(r, TRAMPOLINE_AT + 9, 2);
	} else {
		put(r, STUB_AT, drop, sizeof drop);
		put_relative(r, STUB_AT + 4, 0xe8, THUNK_AT);
		put(r, STUB_AT + 9, take, sizeof take);
		put_value(r, STUB_AT + 13, 2);
	}
	if (call(r, STUB_AT) != 2)
		_exit(WRONG_VALUE);
}

TEST(stub_freed_while_its_helper_runs_is_seen_to_fail)
{
	wrong_is_seen(call_through_a_stub, "a stub is there until its helper has returned");
}

/* --- bytes are used again after threads have left --- */

enum { PAUSES = 200 };

static void put_long_function(struct raw *r)
{
	for (uint32_t i = 0; i < PAUSES; i++)
		put(r, LOW_AT + 2 * i, (const uint8_t[]){0xf3, 0x90}, 2);
	put_value(r, LOW_AT + 2 * PAUSES, 1);
}

/* Waits until the runner was outside of the code, as at a poll. */
static void wait_for_a_poll(struct raw *r)
{
	uint64_t from = atomic_load(&r->ran);
	while (atomic_load(&r->ran) < from + 200 && !atomic_load(&r->stop))
		sched_yield();
}

static void unlink_and_use_again(struct raw *r, uint32_t round)
{
	(void)round;
	put_long_function(r);
	repoint(r, 0);
	wait_for_a_poll(r);
	repoint(r, 1);
	if (r->is_right)
		wait_for_a_poll(r);
	memset(r->write + LOW_AT, 0xcc, 2 * PAUSES + 6);
}

static void use_again(struct raw *r)
{
	put_jump(r, 8);
	put_long_function(r);
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, run_site, r), 0);
	run_on(cores[0]);
	for (uint64_t end = now_ns() + (r->is_right ? RIGHT_MS : TRY_MS) * UINT64_C(1000000);
	     now_ns() < end;)
		unlink_and_use_again(r, 0);
	atomic_store(&r->stop, true);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

TEST_TIMED(bytes_used_again_before_threads_have_left_are_seen_to_fail, 90)
{
	find_cores();
	wrong_is_seen(use_again, "bytes are used again when nothing runs them");
}

/* --- and after a core sync: cannot be shown here --- */

/* Reads the writer's word about the code, then runs the code. The core fetches the code long before
 * the word comes, flushed out of all caches. Code older than the word is stale. */
static void *run_what_was_told(void *arg)
{
	struct raw *r = arg;
	uint32_t last = 0;
	run_on(cores[1]);
	while (!atomic_load_explicit(&r->stop, memory_order_relaxed)) {
		uint32_t told, got;
		__asm__ volatile("clflush %2\n\t"
				 "mfence\n\t"
				 "movl %2, %0\n\t"
				 "call *%3"
				 : "=&r"(told), "=&a"(got)
				 : "m"(r->told), "r"(r->exec + SITE_AT)
				 : "memory", "cc", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10",
				   "r11");
		r->stale += (int32_t)(got - told) < 0;
		r->changes += got != last;
		last = got;
		atomic_store_explicit(&r->ran, r->changes, memory_order_relaxed);
	}
	return NULL;
}

/* Writes new bytes, then the word; the control of the experiment writes the word first. */
static void change_and_tell(struct raw *r, uint32_t round)
{
	uint32_t *value = (uint32_t *)(void *)(r->write + SITE_AT + 4);
	if (!r->is_right)
		atomic_store_explicit(&r->told, round + 1, memory_order_release);
	__atomic_store_n(value, round + 1, __ATOMIC_RELEASE);
	if (r->is_right)
		atomic_store_explicit(&r->told, round + 1, memory_order_release);
	for (int i = 0; i < 50; i++)
		__builtin_ia32_pause();
}

static void tell_of_new_bytes(struct raw *r)
{
	enum { ENOUGH = 2000 };
	memset(r->write + SITE_AT, 0x90, 3);
	put_value(r, SITE_AT + 3, 0);
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, run_what_was_told, r), 0);
	run_on(cores[0]);
	uint64_t start = now_ns(), least = start + RIGHT_MS * UINT64_C(1000000);
	uint64_t most = start + 10 * TRY_MS * UINT64_C(1000000);
	for (uint32_t round = 0;
	     now_ns() < least || (atomic_load(&r->ran) < ENOUGH && now_ns() < most); round++)
		change_and_tell(r, round);
	atomic_store(&r->stop, true);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(r->changes >= ENOUGH);
	if (r->stale)
		_exit(WRONG_VALUE);
}

/* A core that has fetched bytes, and then learns from data that the bytes are new, may run the old
 * bytes: so bytes of freed code wait for a core sync (I8). No core at hand does so. In 2 * 10^9
 * executions with 8 * 10^6 changes, the word cached or not, the code close by or some lines ahead,
 * no old byte ran: a store to a line drops the bytes fetched from the line. So this test shows
 * something else: a release as NOT_RUNNING, the shortcut that waits for no core sync, is sound on
 * this machine. The test fails on a machine where the shortcut is not sound. The control shows that
 * an old byte would be noticed. */
TEST_TIMED(bytes_used_again_without_a_core_sync_run_new_on_this_machine, 120)
{
	find_cores();
	for (int n = 0; n < 3; n++)
		if (try_in_child(tell_of_new_bytes, true) == SEEN)
			FAIL("old bytes were run after the thread had learnt of new ones");
	for (int n = 0; n < TRIES; n++)
		if (try_in_child(tell_of_new_bytes, false) == SEEN)
			return;
	FAIL("old bytes are not noticed");
}
