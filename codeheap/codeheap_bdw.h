/* SPDX-License-Identifier: MIT
 * codeheap_bdw.h: a code heap whose blocks live and die by the mark of the Boehm collector (libgc
 * 8). Link with libcodeheap-bdw and libgc. Everything else is in codeheap.h and works alike.
 *
 * The VM's method object holds the owner's anchor, a small object of the collector's heap. While
 * the collector reaches the anchor, the owner's code is alive, and so is every VM object that refs
 * of the code name: cycles through code, constants and methods die together. A block on a stack is
 * alive without an anchor. No finalizer is involved; an object that a finalizer revives keeps its
 * code.
 *
 * The VM
 *   - calls GC_INIT first, in the main thread, before the first heap of any kind.
 *   - sets collector hooks of its own before the first heap, or chains the hooks found there; the
 *     library chains the hooks set before: GC_set_on_collection_event, GC_set_push_other_roots,
 *     GC_set_start_callback, and the action of the collector's suspend signal.
 *   - registers a thread with the collector before ch_thread_attach. A thread that is attached and
 *     not registered is never stopped: the code under the thread could be freed.
 *   - blocks in ch_bdw_do_blocking, or parks (ch_thread_park) around GC_do_blocking: else the
 *     thread's whole stack is scanned, and objects that only registers hold are lost.
 *   - polls (ch_thread_poll) if it has block_freed, though libgc stops threads without polls:
 *     block_freed waits, with the record of its block, for a poll or for ch_heap_collect.
 *   - reports fibers' stacks to the collector: ch_fiber_* cares for code only.
 *   - has the suspend signal blocked in handlers that run on an alternate stack.
 *   - does not fork in a thread that has the suspend signal blocked, and calls there only functions
 *     whose contract says "signal handlers". Another call may wait for a collection, which waits
 *     for the thread: then libgc says "Signals delivery fails constantly", and aborts.
 *
 * The collector marks refs as an object's words: interior pointers only where the collector knows
 * such pointers; ops.ref is not called. The collector stops the threads, and ops.stop_world and
 * ops.resume_world are not called. Collections that the collector starts by itself collect code,
 * too.
 *
 * The library collects only in ch_heap_collect and in opens with MAY_COLLECT. Polls, ch_code_add
 * and other opens collect nothing, also if no vm has collect_wanted. The collector does not see
 * how much code there is. So a VM that makes much code, and allocates little, has collect_wanted.
 *
 * ch_heap_collect is GC_gcollect and a sweep: finalizers may run in it; CH_E_THREAD in a thread
 * that is not registered; CH_E_BUSY where the collector is disabled or gave the collection up.
 * ch_owner_release works as in other heaps, and is not needed.
 *
 * Incremental mode (GC_enable_incremental) is served, at this price: code is traced in the
 * stopped world only, so the longest pause grows with the live code; a collection that is not
 * full frees no code, and keeps the objects that refs of all code name, reached or not. */
#ifndef CODEHEAP_CODEHEAP_BDW_H
#define CODEHEAP_CODEHEAP_BDW_H

#include <codeheap/codeheap.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A thread that the collector does not know gets CH_E_THREAD. */

/* ch_bdw_heap_create: ch_heap_create with the Boehm collector as the driver.
 * in    config  NULL = all defaults; driver stays 0; stop_signal: not used
 * ret   CH_OK | CH_E_ARG a field is out of range | CH_E_OS errno kept | CH_E_MEMORY | CH_E_THREAD
 * lock  the collector's; of the set of heaps; heap
 * safe  any registered thread; attach threads and vms afterwards
 * cost  that of ch_heap_create; of the process's first one, a collection
 * note  runs GC_INIT where nobody did. The first heap of a process collects once, so finalizers
 *       may run here. CH_E_OS with ENOTRECOVERABLE in a child: when the parent forked, another
 *       thread was making the first heap */
CH_API CH_CHECKED enum ch_status ch_bdw_heap_create(const struct ch_config *config,
						    struct ch_heap **heap);

/* ch_bdw_owner_create: ch_owner_create for a Boehm heap.
 * in    user    any word; the collector does not see it
 * out   anchor  for the method object: the owner is alive while the collector reaches the anchor;
 *               afterwards the next full collection ends the owner. NULL while the call runs
 * ret   CH_OK | CH_E_ARG also: another heap's vm | CH_E_MEMORY | CH_E_THREAD | CH_E_STATE the vm
 *       was detached
 * lock  the collector's, then heap
 * safe  any registered thread that holds no lock: the allocation may collect and run finalizers */
CH_API CH_CHECKED enum ch_status ch_bdw_owner_create(struct ch_vm *vm, const char *name,
						     const void *fallback, void *user,
						     struct ch_owner *owner, void **anchor);

/* ch_bdw_do_blocking: GC_do_blocking with the caller parked: collections neither stop the caller
 * nor wait.
 * in    fn   makes no use of the collector's heap, and ends by a return only; to run code of a
 *            heap again from inside it, unpark within GC_call_with_gc_active, and park again at
 *            its end
 *       arg  its argument
 * ret   what fn returned
 * lock  none while fn runs
 * safe  any registered thread */
CH_API void *ch_bdw_do_blocking(void *(*fn)(void *arg), void *arg);

#ifdef __cplusplus
}
#endif
#endif
