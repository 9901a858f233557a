/* SPDX-License-Identifier: MIT
 * os_failing.h: what a case has the gate to the OS refuse or pretend (os_failing.c). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes the nth failable call (OS or metadata) from this one on fail with ENOMEM; 0 = none. Counted
 * per process, and only while nth is not 0: pass UINT64_MAX to count without a failure. Release
 * calls cannot fail and do not count. */
void ch__os_fail_at(uint64_t nth, bool every_later_one);
void ch__os_fail_as(uint64_t nth, bool every_later_one, int error); /* the same, with an errno */
uint64_t ch__os_failable_calls(void); /* since the last ch__os_fail_at */
bool ch__os_may_fail(void);           /* counts a call; true: it must fail */

/* The machine that a test pretends. */
struct ch__os_pretence {
	/* Larger system pages: calls refuse a range that is not whole pages. */
	size_t page_bytes;
	/* The largest reservation that the address space has room for; 0 = any. */
	size_t reserve_bytes;
	/* errno with which the system refuses memory for code; 0 = no refusal. */
	int commit_error;
	/* What it refuses: more than so many bytes at once. */
	size_t commit_bytes;
	/* Called between two bytes of a self-write, which some machines store byte by byte. */
	void (*between_bytes)(const void *to);
	/* Returns the time after a wait of waited_ns; a wait with a limit does not sleep. */
	uint64_t (*clock)(uint64_t waited_ns);
};
extern struct ch__os_pretence ch__os_pretended;

/* What the linker puts between the callers of a function of the gate and the function, which is
 * __real_NAME: mk/tests.mk takes the names from here, and calls within a file are left alone. A
 * program with a __wrap_NAME of its own calls gate_NAME. */
#define BETWEEN(name, type, parameters)                                            \
	type __real_##name parameters;                                             \
	type gate_##name parameters;                                               \
	type __wrap_##name parameters __attribute__((weak, alias("gate_" #name))); \
	type gate_##name parameters
#define INSTEAD(name, type, result, when, parameters, arguments)    \
	BETWEEN(name, type, parameters)                             \
	{                                                           \
		return (when) ? (result) : __real_##name arguments; \
	}
#define REFUSES(name, type, failed, parameters, arguments) \
	INSTEAD(name, type, failed, ch__os_may_fail(), parameters, arguments)
