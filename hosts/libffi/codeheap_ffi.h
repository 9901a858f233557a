/* SPDX-License-Identifier: MIT
 * codeheap_ffi.h: closures of libffi whose code lies in a code heap: named, never writable where
 * they run, freed when the owner says so and nothing is in them. To copy with codeheap_ffi.c, which
 * is C11; libffi 3.4.
 *
 *     struct ch_ffi *ffi;
 *     ch_ffi_open(heap, NULL, &ffi);
 *     ch_ffi_closure_create(ffi, &cif, compare, &order, "compare", &closure);
 *     qsort(words, n, sizeof *words, (int (*)(const void *, const void *))closure.code);
 *     ch_ffi_closure_release(closure, CH_RELEASE_COLLECT);
 *
 * Needs a heap with the built-in driver. Threads that create or call closures are attached to the
 * heap (README.md says which other threads may call closures). Where malloc fails, or libffi
 * refuses a cif, ch_why has no sentence: ch_status_text. */
#ifndef CODEHEAP_FFI_H
#define CODEHEAP_FFI_H

#include <codeheap/codeheap.h>
#include <ffi.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ch_ffi;

/* A value. code NULL = no closure. */
struct ch_ffi_closure {
	void *code; /* for C to call: valid until the closure is released */
};

/* Zero = the default. */
struct ch_ffi_options {
	/* A released closure is gone, and no call of its function runs: `user` and the cif may go.
	 * Called once a closure, from ch_thread_poll, ch_heap_collect and ch_ffi_close, in create
	 * as well; under no lock. */
	void (*freed)(void *user);
	/* True: create never polls and never collects; the program's polls do. */
	bool may_not_collect;
};

/* ch_ffi_open: a place for closures: a vm of the heap.
 * in    heap     BUILTIN driver
 *       options  NULL = none
 * out   ffi      NULL on failure
 * ret   CH_OK | CH_E_MEMORY | CH_E_ARG
 * safe  any thread */
CH_CHECKED enum ch_status ch_ffi_open(struct ch_heap *heap, const struct ch_ffi_options *options,
				      struct ch_ffi **ffi);

/* ch_ffi_close: ends all closures of the place.
 * in    ffi  no thread is in a closure, or will be; no other thread polls, collects or creates
 * safe  any thread */
void ch_ffi_close(struct ch_ffi *ffi);

/* ch_ffi_closure_create: code that calls fun(cif, result, arguments, user).
 * in    cif   must not change until the closure is freed
 *       name  copied; what perf, gdb and traps say
 * out   closure  none on failure
 * ret   CH_OK | CH_E_ARG libffi refused the cif | CH_E_FULL | CH_E_MEMORY | CH_E_THREAD | CH_E_OS
 *       CH_E_STATE the thread is parked | CH_E_BROKEN the heap cannot commit any more
 * safe  an attached thread; unless may_not_collect is set the call polls and may collect: the
 *       caller holds no lock that another attached thread waits for unparked */
CH_CHECKED enum ch_status ch_ffi_closure_create(struct ch_ffi *ffi, ffi_cif *cif,
						void (*fun)(ffi_cif *, void *, void **, void *),
						void *user, const char *name,
						struct ch_ffi_closure *closure);

/* ch_ffi_closure_release: no code loads the closure's address from memory any more.
 * in    how  COLLECT: the closure goes when no call of it runs and no stack has its address; its
 *            own function may release it. NOT_RUNNING: goes at once: no call of it runs
 *       Release once: other code that lies there by then would be freed
 * ret   CH_OK | CH_E_STALE nothing lies there any more | CH_E_ARG closure.code is NULL
 * safe  any thread */
CH_CHECKED enum ch_status ch_ffi_closure_release(struct ch_ffi_closure closure,
						 enum ch_release how);

#ifdef __cplusplus
}
#endif
#endif
