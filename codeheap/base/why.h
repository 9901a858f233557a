/* SPDX-License-Identifier: MIT
 * why.h: the sentence beside a status (why.c). A function that finds something wrong says so by the
 * name of the argument or field, with its value and the values that may be there:
 *
 *     return ch__because(CH_E_ARG, "ch_open.hot_bytes is %u: the pool has %zu", bytes, pool);
 */
#pragma once

#include "arch/base.h"
#include "codeheap/codeheap.h"
#include "os/text.h"

/* Makes the sentence of the calling thread, and returns the status. Formats: %s, %d, %u, %x, %lu,
 * %zu, %lx, and %m: the refused call of the system, and errno's name. errno stays. Signal-safe. */
CH_GUEST enum ch_status ch__because(enum ch_status, const char *format, ...)
	__attribute__((format(printf, 2, 3))) CH_COLD;
/* The same for faults of the program's user: the sentence goes to stderr in any case. */
CH_GUEST enum ch_status ch__because_user(enum ch_status, const char *format, ...)
	__attribute__((format(printf, 2, 3))) CH_COLD;

/* Writes the thread's sentence to stderr, behind `before`, of 48 bytes at most. */
void ch__why_print(const char *before) CH_COLD;

/* For each call with a lock, between ch_mark_begin and ch_mark_end and in ref, roots and visit. */
enum ch_status ch__because_marking(void) CH_COLD;
/* For a call that waited in vain for a lock of the heap. */
enum ch_status ch__because_locked(void) CH_COLD;
/* For a call that only an attached thread may make. */
enum ch_status ch__because_stranger(void) CH_COLD;
/* For missing memory of the heap's own records. */
enum ch_status ch__because_memory(const char *what) CH_COLD;
/* For no record in the table: its limit is reached, or memory is missing. */
struct ch__table;
enum ch_status ch__because_no_record(const struct ch__table *, const char *records) CH_COLD;
/* Tells compilers and checkers, which read one file at a time, that none of these says CH_OK. */
static inline enum ch_status ch__refusal(enum ch_status status)
{
	if (status == CH_OK)
		__builtin_unreachable();
	return status;
}
#define ch__because(...) ch__refusal(ch__because(__VA_ARGS__))
#define ch__because_marking() ch__refusal(ch__because_marking())
#define ch__because_stranger() ch__refusal(ch__because_stranger())
#define ch__because_memory(what) ch__refusal(ch__because_memory(what))
#define ch__because_no_record(table, what) ch__refusal(ch__because_no_record(table, what))

/* A status whose sentence was made where the fault was found. */
static inline enum ch_status ch__told(enum ch_status status)
{
	return status;
}
