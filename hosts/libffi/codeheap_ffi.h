/* SPDX-License-Identifier: MIT
 * codeheap_ffi.h: closures of libffi whose code lies in a code heap: named, never writable where
 * they run, freed when their owner says so and nothing is in them. To copy with codeheap_ffi.c,
 * codeheap_ffi_frame.h and codeheap_ffi_ARCH.c (x86_64); C11 and C++17, libffi 3.4.
 *
 *     struct ch_ffi *ffi;
 *     ch_ffi_open(heap, NULL, &ffi);
 *     ch_ffi_closure_create(ffi, &cif, compare, &order, "compare", &closure);
 *     qsort(words, n, sizeof *words, (int (*)(const void *, const void *))closure.code);
 *     ch_ffi_closure_release(closure, CH_RELEASE_COLLECT);
 *
 * What it asks: a heap with the built-in driver; threads that create or call closures are attached
 * to it (README.md says what else may call them). */
#ifndef CODEHEAP_FFI_H
#define CODEHEAP_FFI_H

#include <codeheap/codeheap.h>
#include <ffi.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ch_ffi;

/* A value; code 0 = none. */
struct ch_ffi_closure {
	void *code; /* what C calls: valid until the closure is released */
};

/* Zero what you do not need. */
struct ch_ffi_options {
	/* A released closure is gone, and no call of its function runs: `user` and the cif may go.
	 * Once a closure, from ch_thread_poll or ch_heap_collect, in create as well; under no lock.
	 * Not for those that ch_ffi_close ends. */
	void (*freed)(void *user);
	/* create never polls and collects by itself; the program does. */
	bool may_not_collect;
};

/* ch_ffi_open: a place for closures: a vm of the heap.
 * in    heap     BUILTIN driver
 *       options  NULL = none
 * out   ffi      NULL on failure
 * ret   CH_OK | CH_E_MEMORY | CH_E_FULL the heap has 12 of the VM's frame shapes | CH_E_ARG
 * safe  any thread */
CH_CHECKED enum ch_status ch_ffi_open(struct ch_heap *heap, const struct ch_ffi_options *options,
				      struct ch_ffi **ffi);

/* ch_ffi_close: ends all its closures.
 * in    ffi  nobody calls one, or will; no other thread polls, collects or creates meanwhile
 * safe  any thread */
void ch_ffi_close(struct ch_ffi *ffi);

/* ch_ffi_closure_create: code that calls fun(cif, result, arguments, user).
 * in    cif   stays as it is until the closure is freed
 *       name  copied; what perf, gdb and traps say
 * out   closure  none on failure
 * ret   CH_OK | CH_E_ARG libffi refused the cif | CH_E_FULL | CH_E_MEMORY | CH_E_THREAD | CH_E_OS
 * safe  an attached thread; unless may_not_collect is set it polls and may collect: the caller
 *       holds no lock that another attached thread waits for unparked */
CH_CHECKED enum ch_status ch_ffi_closure_create(struct ch_ffi *ffi, ffi_cif *cif,
						void (*fun)(ffi_cif *, void *, void **, void *),
						void *user, const char *name,
						struct ch_ffi_closure *closure);

/* ch_ffi_closure_release: nobody takes the closure's address from where he keeps it any more.
 * in    how  COLLECT: it goes when no call of it runs and no stack has its address; its own
 *            function may say so. NOT_RUNNING: at once: no call of it runs
 * ret   CH_OK | CH_E_STALE released already
 * safe  any thread */
CH_CHECKED enum ch_status ch_ffi_closure_release(struct ch_ffi_closure closure,
						 enum ch_release how);

#ifdef __cplusplus
}
#endif
#endif
