/* SPDX-License-Identifier: MIT
 * base.h: what every room of the library shares: attributes, thread-safety annotations, check
 * levels and the branch-prediction hints. It knows nothing of code, pages or architectures. */
#ifndef CH_ARCH_BASE_H
#define CH_ARCH_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 1 compiles what only tests use: calls of the system that fail, and what it is said to be
 * (os/os.h). A library has none of it. */
#ifndef CH_TESTING
#define CH_TESTING 0
#endif
/* 0 off, 1 cheap assertions, 2 also the legal moves of states (os/moves.h). What tests link is a
 * checked build, and so is make DEBUG=1. */
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

enum { CH__LINE_BYTES = 64 }; /* of the caches of each machine that there is a port to */

#define CH_LIKELY(x) __builtin_expect(!!(x), 1)
#define CH_UNLIKELY(x) __builtin_expect(!!(x), 0)
/* Guests call it (codeheap/listener.h, guest_look.h): the libraries of the core export it to them,
 * by a node of its own (tools/codeheap.map), and to nobody else. */
#define CH_GUEST __attribute__((visibility("default")))
#define CH_COLD __attribute__((cold, noinline))
/* What a caller passes to the function, also through memory, is there when it is entered. */
#if defined(__clang__)
#define CH_OPAQUE __attribute__((noinline))
#else
#define CH_OPAQUE __attribute__((noipa))
#endif

/* Contracts that clang checks (make tidy) and gcc does not know. A role is what a thread holds when
 * it may touch what the role guards: locks of one rank are one role, whatever heap they are of,
 * because in C a field can be guarded by a variable only. So the lock of a wrong heap is not seen;
 * a missing one, one too many or out of order, one that is kept on a way out, and what may not be
 * done in a region or in the stopped world are. A role has no memory and no definition. */
#if defined(__clang__)
#define CH_TSA(x) __attribute__((x))
#else
#define CH_TSA(x)
#endif
#define CH_CAPABILITY(name) CH_TSA(capability(name))
/* The field; what it points to. */
#define CH_GUARDED_BY(role) CH_TSA(guarded_by(role))
#define CH_PT_GUARDED_BY(role) CH_TSA(pt_guarded_by(role))
#define CH_REQUIRES(...) CH_TSA(requires_capability(__VA_ARGS__))
#define CH_ACQUIRES(...) CH_TSA(acquire_capability(__VA_ARGS__))
#define CH_RELEASES(...) CH_TSA(release_capability(__VA_ARGS__))
/* First what it returns when it has them. */
#define CH_TRY_ACQUIRES(...) CH_TSA(try_acquire_capability(__VA_ARGS__))
#define CH_EXCLUDES(...) CH_TSA(locks_excluded(__VA_ARGS__))
/* Held from here on: the function that says so knows why. */
#define CH_VOUCHES(...) CH_TSA(assert_capability(__VA_ARGS__))
/* The body is not looked at, its callers are: it begins or ends a role, or has the reason given. */
#define CH_UNANALYSED(reason) CH_TSA(no_thread_safety_analysis)

struct CH_CAPABILITY("role") ch__role;
/* Locks, in the order in which they are taken. */
extern struct ch__role ch__role_heaps; /* the set of heaps: of observers only */
extern struct ch__role ch__role_registry, ch__role_sweep, ch__role_heap, ch__role_records,
	ch__role_pages, ch__role_sinks, ch__role_file, ch__role_guest;
extern struct ch__role ch__role_region; /* the caller is inside one (I1) */
/* In a region, of one page and of one owner's list. */
extern struct ch__role ch__role_busy, ch__role_owner;
extern struct ch__role ch__role_frozen;  /* no thread is in a region, and none comes in */
extern struct ch__role ch__role_stopped; /* nor does any run code: marks and stacks are read */
extern struct ch__role ch__role_window;  /* code bytes were written and not yet published */
/* Before a field's type, for all of the declaration; AT: what it points to. */
#define CH_BY_HEAP CH_GUARDED_BY(ch__role_heap)
#define CH_BY_RECORDS CH_GUARDED_BY(ch__role_records)
#define CH_BY_PAGES CH_GUARDED_BY(ch__role_pages)
#define CH_AT_PAGES CH_PT_GUARDED_BY(ch__role_pages)
#define CH_BY_SINKS CH_GUARDED_BY(ch__role_sinks)
#define CH_BY_FILE CH_GUARDED_BY(ch__role_file)
#define CH_BY_GUEST CH_GUARDED_BY(ch__role_guest)
/* Where nothing may be allocated, waited for or asked of the system. */
#define CH__STANDING ch__role_region, ch__role_stopped
/* What may not be held by who takes a lock. */
#define CH__RIGHT_OF_GUEST CH__STANDING
#define CH__RIGHT_OF_FILE ch__role_guest, CH__RIGHT_OF_GUEST
#define CH__RIGHT_OF_SINKS ch__role_file, CH__RIGHT_OF_FILE
#define CH__RIGHT_OF_PAGES ch__role_sinks, CH__RIGHT_OF_SINKS
#define CH__RIGHT_OF_RECORDS ch__role_pages, CH__RIGHT_OF_PAGES
#define CH__RIGHT_OF_HEAP ch__role_records, CH__RIGHT_OF_RECORDS
#define CH__RIGHT_OF_SWEEP ch__role_heap, CH__RIGHT_OF_HEAP
#define CH__RIGHT_OF_REGISTRY ch__role_sweep, CH__RIGHT_OF_SWEEP
/* Where code of the VM may run. */
#define CH__ANY ch__role_registry, ch__role_frozen, CH__RIGHT_OF_REGISTRY

/* The broken-invariant exit of every room; codeheap/base/panic.c sets the hook of the heap's
 * configuration. */
_Noreturn CH_GUEST void ch__panic(const char *reason) CH_COLD;

#if CH_CHECK
#define CH_ASSERT(cond, reason) (CH_LIKELY(cond) ? (void)0 : ch__panic(reason))
#else
#define CH_ASSERT(cond, reason) ((void)sizeof(cond))
#endif

#endif
