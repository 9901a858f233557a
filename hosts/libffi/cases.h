/* SPDX-License-Identifier: MIT
 * cases.h: shared by the cases of closures: checks, a heap with closures, words on the stack. */
#pragma once

#include "codeheap_ffi.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CHECK(what) ((what) ? (void)0 : case_failed(__FILE__, __LINE__, #what))
#define OK(call) CHECK((call) == 0)

__attribute__((noreturn)) static inline void case_failed(const char *file, int line,
							 const char *what)
{
	fprintf(stderr, "%s:%d: %s\n", file, line, what);
	_exit(1);
}

struct place {
	struct ch_heap *heap;
	struct ch_ffi *ffi;
};

/* pool_bytes 0, sinks 0: the defaults. freed may be NULL. */
struct place place_open(size_t pool_bytes, unsigned sinks, void (*freed)(void *user));
/* Checks the heap, then ends the closures and the heap. */
void place_close(struct place *place);
/* Runs full cycles, until all blocks without a holder are freed. */
void place_collect(const struct place *place);
/* Clears dead frames below sp: stale words would hold code. */
void scrub_stack(void);
bool is_code(const struct place *place, const void *address);
struct ch_stats stats_of(const struct place *place);

typedef void closure_function(ffi_cif *cif, void *result, void **arguments, void *user);
struct ch_ffi_closure closure_of(const struct place *place, ffi_cif *cif, closure_function *fun,
				 void *user, const char *name);

/* int f(int), and a function for it: n + *(int *)user. */
extern ffi_cif cif_int_int;
void add_user(ffi_cif *cif, void *result, void **arguments, void *user);
typedef int int_int(int);

/* The cases of cases_unwind.cc. */
void exception_passes_a_closure(void);
void each_instruction_is_unwound(void);

#ifdef __cplusplus
}
#endif
