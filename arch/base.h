/* SPDX-License-Identifier: MIT
 * base.h: what every room of the library shares: attributes, thread-safety annotations, check
 * levels and the branch-prediction hints. Nothing here depends on code, pages or architectures. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 1 compiles the hooks that only tests use, such as failures of system calls (os/os.h). A library
 * is built with 0. */
#ifndef CH_TESTING
#define CH_TESTING 0
#endif
/* 0 off, 1 cheap assertions, 2 also what costs: moves of states and ranks of locks (os/locks/), the
 * ledger (pages/). Tests link a build with 2, and make DEBUG=1 makes one. */
#ifndef CH_CHECK
#define CH_CHECK (CH_TESTING ? 2 : 1)
#endif

/* 1 in a ThreadSanitizer build, whose shadow allows memory in some ranges of addresses only. */
#if defined(__SANITIZE_THREAD__)
#define CH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CH_TSAN 1
#endif
#endif
#ifndef CH_TSAN
#define CH_TSAN 0
#endif

enum { CH__LINE_BYTES = 64 }; /* a cache line on each machine with a port */

/* Of an atomic: the access is whole. An order, if needed, comes from what stands beside it. The
 * pair and the reason of each order in the library stand in docs/memory_orders.md. */
#define CH_LOAD_RELAXED(at) atomic_load_explicit((at), memory_order_relaxed)
#define CH_STORE_RELAXED(at, value) atomic_store_explicit((at), (value), memory_order_relaxed)

/* To a power of two. */
#define CH_ROUND_UP(bytes, to) (((uint64_t)(bytes) + (to) - 1) & ~((uint64_t)(to) - 1))

#define CH_LIKELY(x) __builtin_expect(!!(x), 1)
#define CH_UNLIKELY(x) __builtin_expect(!!(x), 0)
/* For functions that guests call (codeheap/listener.h, guest_look.h): the libraries of the core
 * export them in a version node for guests alone (tools/codeheap.map). */
#define CH_GUEST __attribute__((visibility("default")))
#define CH_COLD __attribute__((cold, noinline))
/* The compiler does not look into the body: all arguments, also in memory, are there at entry. */
#if defined(__clang__)
#define CH_OPAQUE __attribute__((noinline))
#else
#define CH_OPAQUE __attribute__((noipa))
#endif

/* Contracts that clang checks (make tidy) and gcc does not know. A role is a right that a thread
 * holds to touch the data that the role guards. Locks of one rank share a role, whatever heap they
 * are of, because in C only a variable can guard a field: clang misses the lock of a wrong heap.
 * Clang sees a lock that is missing, too many, out of order, or kept on a way out, and acts that
 * are forbidden in a region or in the stopped world. A role has no memory and no definition. */
#if defined(__clang__)
#define CH_TSA(x) __attribute__((x))
#else
#define CH_TSA(x)
#endif
#define CH_CAPABILITY(name) CH_TSA(capability(name))
/* Guards the field; guards the memory that the field points to. */
#define CH_GUARDED_BY(role) CH_TSA(guarded_by(role))
#define CH_PT_GUARDED_BY(role) CH_TSA(pt_guarded_by(role))
#define CH_REQUIRES(...) CH_TSA(requires_capability(__VA_ARGS__))
#define CH_ACQUIRES(...) CH_TSA(acquire_capability(__VA_ARGS__))
#define CH_RELEASES(...) CH_TSA(release_capability(__VA_ARGS__))
/* The first argument is the value returned when the roles are held. */
#define CH_TRY_ACQUIRES(...) CH_TSA(try_acquire_capability(__VA_ARGS__))
#define CH_EXCLUDES(...) CH_TSA(locks_excluded(__VA_ARGS__))
/* The role is held from here on: the function that says so knows why. */
#define CH_VOUCHES(...) CH_TSA(assert_capability(__VA_ARGS__))
/* Clang checks the callers, not the body, which begins or ends a role or has the reason given. */
#define CH_UNANALYSED(reason) CH_TSA(no_thread_safety_analysis)

struct CH_CAPABILITY("role") ch__role;
/* Locks, in the order in which they are taken. */
extern struct ch__role ch__role_heaps; /* the set of heaps: of observers only */
extern struct ch__role ch__role_registry, ch__role_sweep, ch__role_heap, ch__role_records,
	ch__role_pages, ch__role_sinks, ch__role_file, ch__role_guest;
extern struct ch__role ch__role_region; /* the caller is inside a region (I1) */
/* Held in a region: a page's busy, and the busy of an owner's list. */
extern struct ch__role ch__role_busy, ch__role_owner;
extern struct ch__role ch__role_frozen;  /* no thread is in a region, and none enters */
extern struct ch__role ch__role_stopped; /* frozen, and no thread runs code: marks are read */
extern struct ch__role ch__role_window;  /* code bytes were written and not yet published */
/* Before a field's type, for the whole declaration. */
#define CH_BY_HEAP CH_GUARDED_BY(ch__role_heap)
#define CH_BY_RECORDS CH_GUARDED_BY(ch__role_records)
#define CH_BY_PAGES CH_GUARDED_BY(ch__role_pages)
#define CH_BY_SINKS CH_GUARDED_BY(ch__role_sinks)
#define CH_BY_FILE CH_GUARDED_BY(ch__role_file)
#define CH_BY_GUEST CH_GUARDED_BY(ch__role_guest)
/* Held where a thread may not allocate, wait or ask the system. */
#define CH__STANDING ch__role_region, ch__role_stopped
/* The roles that a thread must not hold when taking the named lock. */
#define CH__RIGHT_OF_GUEST CH__STANDING
#define CH__RIGHT_OF_FILE ch__role_guest, CH__RIGHT_OF_GUEST
#define CH__RIGHT_OF_SINKS ch__role_file, CH__RIGHT_OF_FILE
#define CH__RIGHT_OF_PAGES ch__role_sinks, CH__RIGHT_OF_SINKS
#define CH__RIGHT_OF_RECORDS ch__role_pages, CH__RIGHT_OF_PAGES
#define CH__RIGHT_OF_HEAP ch__role_records, CH__RIGHT_OF_RECORDS
#define CH__RIGHT_OF_SWEEP ch__role_heap, CH__RIGHT_OF_HEAP
#define CH__RIGHT_OF_REGISTRY ch__role_sweep, CH__RIGHT_OF_SWEEP
/* None of them is held where code of the VM may run. */
#define CH__ANY ch__role_registry, ch__role_frozen, CH__RIGHT_OF_REGISTRY
/* The commonest contracts. The caller has the lock, is in the region, or has frozen or stopped. */
#define CH_HAS_HEAP CH_REQUIRES(ch__role_heap)
#define CH_HAS_REGION CH_REQUIRES(ch__role_region)
#define CH_HAS_HEAP_AND_REGION CH_REQUIRES(ch__role_heap, ch__role_region)
#define CH_HAS_PAGES CH_REQUIRES(ch__role_pages)
#define CH_HAS_FILE CH_REQUIRES(ch__role_file)
#define CH_HAS_FREEZE CH_REQUIRES(ch__role_frozen)
#define CH_HAS_STOP CH_REQUIRES(ch__role_frozen, ch__role_stopped)
#define CH_MAY_WAIT CH_EXCLUDES(CH__STANDING)
#define CH_HOLDS_NONE CH_EXCLUDES(CH__ANY)

/* The broken-invariant exit of every room (codeheap/base/panic.c), and the hook that hears of it
 * first: the last heap's that was configured with one. */
_Noreturn CH_GUEST void ch__panic(const char *reason) CH_COLD;
void ch__panic_set_hook(void (*hook)(const char *));

#if CH_CHECK
#define CH_ASSERT(cond, reason) (CH_LIKELY(cond) ? (void)0 : ch__panic(reason))
#else
#define CH_ASSERT(cond, reason) ((void)sizeof(cond))
#endif
