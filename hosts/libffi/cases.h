/* SPDX-License-Identifier: MIT
 * cases.h: shared by the cases of closures: a heap with closures, and a closure. */
#pragma once

#include "../cases.h"
#include "codeheap_ffi.h"

#ifdef __cplusplus
extern "C" {
#endif

struct place {
	struct ch_heap *heap;
	struct ch_ffi *ffi;
};

/* pool_bytes 0, sinks 0: the defaults. freed may be NULL. */
struct place place_open(size_t pool_bytes, unsigned sinks, void (*freed)(void *user));
/* Checks the heap, then ends the closures and the heap. */
void place_close(struct place *place);
typedef void closure_function(ffi_cif *cif, void *result, void **arguments, void *user);
struct ch_ffi_closure closure_of(const struct place *place, ffi_cif *cif, closure_function *fun,
				 void *user, const char *name);

/* int f(int), and a function for it: n + *(int *)user. */
extern ffi_cif cif_int_int;
void add_user(ffi_cif *cif, void *result, void **arguments, void *user);
typedef int int_int(int);

#ifdef __cplusplus
}
#endif
