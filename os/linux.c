/* SPDX-License-Identifier: MIT
 * linux.c: memory, membarrier and random bytes of Linux. The one user of sys/mman.h. Executable
 * memory is mapped executable at birth (P3). views.c decides what is mapped where. No lock. */
#define _GNU_SOURCE
#include "os/linux.h"
#include "os/files.h"
#include "os/threads.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { PLACE_TRIES = 48, POPULATE_TRIES = 100, REMAP_TRIES = 1000 };
static const uintptr_t near_bytes = UINT64_C(1) << 30;
static const uintptr_t lowest_place = UINT64_C(1) << 20; /* above every vm.mmap_min_addr in use */

bool ch__os_space_is_limited(void)
{
	struct rlimit limit;
	return getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

/* If the compiler marks where an indirect branch may land, code pages are guarded, too: a branch to
 * any other place traps (arm64: Documentation/arch/arm64/elf_hwcaps.rst, HWCAP2_BTI). */
static int protection_of(enum ch__os_view view)
{
#if defined(__ARM_FEATURE_BTI_DEFAULT)
	if (view == CH__OS_RX && (getauxval(AT_HWCAP2) & HWCAP2_BTI))
		return PROT_READ | PROT_EXEC | PROT_BTI;
#endif
	return view >= CH__OS_RW   ? PROT_READ | PROT_WRITE
	       : view == CH__OS_RX ? PROT_READ | PROT_EXEC
	       : view == CH__OS_R  ? PROT_READ
				   : PROT_NONE;
}

/* The personality with READ_IMPLIES_EXEC that a thread had at a look; 0: none had it. relaxed */
static _Atomic(int) implying;

void ch__os_look_at_personality(void)
{
	enum { ASK = -1 };
	int found = personality((unsigned long)ASK);
	if (found != -1 && (found & READ_IMPLIES_EXEC))
		CH_STORE_RELAXED(&implying, found);
}

/* Around a call that makes a view. *before is for restore_implied; -1: nothing to restore. Returns
 * false with errno when the system lets nobody change the personality. */
static bool withhold_implied(enum ch__os_view view, int *before)
{
	int found = CH_LOAD_RELAXED(&implying);
	*before = -1;
	if (CH_LIKELY(!found) || view == CH__OS_RX)
		return true;
	*before = personality((unsigned long)(found & ~READ_IMPLIES_EXEC));
	return *before != -1;
}

static void restore_implied(int before)
{
	int error = errno;
	if (before != -1)
		personality((unsigned long)before);
	errno = error;
}

static bool map_view(void *at, size_t bytes, enum ch__os_view view, int flags, int fd, off_t offset)
{
	int before;
	if (!withhold_implied(view, &before))
		return false;
	bool is_mapped = mmap(at, bytes, protection_of(view), flags | MAP_FIXED, fd, offset) !=
			 MAP_FAILED;
	restore_implied(before);
	return ch__os_note(is_mapped, "mmap");
}

/* Takes the access to `at` away by moving `made`, a mapping of the same memory elsewhere, there.
 * perf records mmap and mprotect, not mremap: after an mprotect it would give no names to code that
 * comes there later. DONTDUMP: a core file would hold the range as zeros. */
static bool move_without_access(void *made, void *at, size_t bytes)
{
	if (made == MAP_FAILED)
		return false;
	madvise(made, bytes, MADV_DONTDUMP);
	if (mprotect(made, bytes, PROT_NONE) == 0 &&
	    mremap(made, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED)
		return true;
	munmap(made, bytes);
	return false;
}

/* Maps exactly at `at`, if not NULL; EEXIST when something is mapped there. The address is only a
 * hint, and a mapping elsewhere is given back. MAP_FIXED_NOREPLACE would not do: ThreadSanitizer
 * drops an address for which it has no shadow, and the call then gets page 0 where the process may
 * have page 0. */
static void *map_none(void *at, size_t bytes)
{
	void *got = mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!ch__os_note(got != MAP_FAILED, "mmap"))
		return NULL;
	if (at && got != at) {
		munmap(got, bytes);
		errno = EEXIST;
		return NULL;
	}
	return got;
}

bool ch__os_reserve_at(void *at, size_t bytes)
{
	return map_none(at, bytes) != NULL;
}

/* For places and names: when the kernel gives no bytes, time and addresses will do. */
void ch__os_random(void *bytes, size_t n)
{
	uint8_t *at = bytes;
	int cancel = ch__cancel_hold();
	ssize_t got = getrandom(bytes, n, GRND_NONBLOCK);
	ch__cancel_allow(cancel);
	if (got == (ssize_t)n)
		return;
	uint64_t state = ch__os_now_ns() ^ (uintptr_t)&state ^ (uint64_t)getpid() << 32;
	for (size_t i = 0; i < n; i++) {
		state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		at[i] = (uint8_t)(state >> 56);
	}
}

/* A stale address, half written over by a small number, would lead there. */
static bool is_multiple_of_4_gib(uintptr_t at)
{
	return !(uint32_t)at;
}

/* Reserves in [low, high), at an address whose sum with offset is aligned. The first try is random,
 * the next tries are evenly spaced from there, so that of few places each is tried once. */
static void *reserve_between(uintptr_t low, uintptr_t high, size_t bytes, size_t align,
			     size_t offset)
{
	if (low < lowest_place)
		low = lowest_place;
	uintptr_t first = CH_ROUND_UP(low + offset, align), at;
	if (high < bytes || first < low || high - bytes + offset < first)
		return NULL;
	uintptr_t places = (high - bytes + offset - first) / align + 1;
	uintptr_t tries = places < PLACE_TRIES ? places : PLACE_TRIES;
	ch__os_random(&at, sizeof at);
	for (uintptr_t i = 0; i < tries; i++, at += places / tries) {
		at %= places;
		if (is_multiple_of_4_gib(first + at * align))
			continue;
		void *got = map_none((void *)(first - offset + at * align), bytes);
		if (got || errno != EEXIST)
			return got;
	}
	return NULL;
}

static void *reserve_anywhere(size_t bytes, size_t align, size_t offset)
{
	size_t spare = 2 * align;
	uint8_t *wide = map_none(NULL, bytes + spare);
	if (!wide)
		return NULL;
	size_t skip = (0 - ((uintptr_t)wide + offset)) & (align - 1);
	skip += is_multiple_of_4_gib((uintptr_t)wide + skip + offset) ? align : 0;
	if (skip)
		munmap(wide, skip);
	munmap(wide + skip + bytes, spare - skip);
	return wide + skip;
}

void *ch__os_reserve(size_t bytes, size_t align, size_t offset, uintptr_t hint)
{
	void *got = NULL;
	if (hint == 0) {
		/* Half of user space, which has 47 bits on x86-64, 38 to 48 elsewhere. The system
		 * puts the first stack, where the bytes of AT_RANDOM lie, near its end. */
		const uintptr_t most = UINT64_C(1) << 46;
		uintptr_t on_stack = getauxval(AT_RANDOM);
		uintptr_t end = on_stack ? (uintptr_t)1 << (63 - __builtin_clzll(on_stack)) : most;
		end = end < most ? end : most;
		got = reserve_between(end / 64, end, bytes, align, offset);
	} else if (hint != ch__os_anywhere) {
		/* Below first: an executable's brk heap grows above the executable, and the stack
		 * ends above the libraries. */
		uintptr_t near = bytes < near_bytes ? near_bytes : near_bytes / 2 * 3;
		got = reserve_between(hint > near ? hint - near : 0, hint, bytes, align, offset);
		if (!got)
			got = reserve_between(hint, hint + near, bytes, align, offset);
	}
	return got ? got : reserve_anywhere(bytes, align, offset);
}

void ch__os_unreserve(void *at, size_t bytes)
{
	int error = errno;
	munmap(at, bytes);
	errno = error;
}

static void *map_anywhere(size_t bytes, int protection, int flags, int fd)
{
	size_t mapped = CH_ROUND_UP(bytes, ch__os_page_bytes());
	void *got = mmap(NULL, mapped, protection, flags, fd, 0);
	return ch__os_note(got != MAP_FAILED, "mmap") ? got : NULL;
}

void *ch__os_private(size_t bytes)
{
	return map_anywhere(bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
}

void *ch__os_file_marker(int fd)
{
	return map_anywhere(ch__os_page_bytes(), PROT_READ | PROT_EXEC, MAP_PRIVATE, fd);
}

bool ch__os_map_shared_rx(void *at, size_t bytes)
{
	return map_view(at, bytes, CH__OS_RX, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

/* With an old size of 0 mremap maps the same memory a second time, with the first mapping's
 * protection. Linux before 6.17 leaves nothing at `to` where the limit of address space refuses.
 * What is at `to` counts already, so only a limit that another thread has just lowered refuses. */
void *ch__os_duplicate(void *from, size_t bytes, void *to)
{
	void *got = mremap(from, 0, bytes, MREMAP_MAYMOVE | (to ? MREMAP_FIXED : 0), to);
	return ch__os_note(got != MAP_FAILED, "mremap") ? got : NULL;
}

bool ch__os_move_over(void *from, size_t bytes, void *to)
{
	void *got = mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	return ch__os_note(got != MAP_FAILED, "mremap");
}

bool ch__os_map_fd(const struct ch__os_held *file, size_t offset, void *at, size_t bytes,
		   enum ch__os_view view)
{
	return ch__os_holds(file) &&
	       map_view(at, bytes, view, view == CH__OS_COPY ? MAP_PRIVATE : MAP_SHARED,
			ch__os_fd_of(file), (off_t)offset);
}

/* At the limit of mappings the kernel refuses to replace a part of a mapping, until other threads
 * give some back. */
bool ch__os_map_again(const struct ch__os_held *file, size_t offset, void *at, size_t bytes)
{
	for (unsigned i = 0; i < REMAP_TRIES && ch__os_holds(file); i++) {
		if (map_view(at, bytes, CH__OS_RX, MAP_SHARED, ch__os_fd_of(file), (off_t)offset))
			return madvise(at, bytes, MADV_DONTFORK) == 0;
		sched_yield();
	}
	return false;
}

bool ch__os_map_private(void *at, size_t bytes, enum ch__os_view view)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	return (view == CH__OS_NONE &&
		move_without_access(mmap(NULL, bytes, PROT_NONE, flags, -1, 0), at, bytes)) ||
	       map_view(at, bytes, view, flags, -1, 0);
}

void ch__os_announce_code(void *at, size_t bytes)
{
	int error = errno;
	/* At the limit of mappings: one whole mapping is not split. perf has no names then. */
	if (ch__os_map_private(at, bytes, CH__OS_RX) && !ch__os_map_private(at, bytes, CH__OS_NONE))
		mprotect(at, bytes, PROT_NONE);
	errno = error;
}

/* mprotect never gives execute access here: the parameters cannot ask for PROT_EXEC. */
bool ch__os_protect(void *at, size_t bytes, bool is_writable)
{
	enum ch__os_view view = is_writable ? CH__OS_RW : CH__OS_R;
	int before;
	if (!withhold_implied(view, &before))
		return false;
	bool is_changed = mprotect(at, bytes, protection_of(view)) == 0;
	restore_implied(before);
	return ch__os_note(is_changed, "mprotect");
}

bool ch__os_protect_none(void *at, size_t bytes)
{
	if (move_without_access(mremap(at, 0, bytes, MREMAP_MAYMOVE), at, bytes))
		return true;
	bool is_changed = ch__os_note(mprotect(at, bytes, PROT_NONE) == 0, "mprotect");
	if (is_changed)
		madvise(at, bytes, MADV_DONTDUMP);
	return is_changed;
}

enum { HELD_MAPPINGS = 128 }; /* neighbours of different access do not merge */

void *ch__os_hold_mappings(void)
{
	size_t page = ch__os_page_bytes();
	uint8_t *at = map_none(NULL, HELD_MAPPINGS * page);
	for (size_t i = 1; at && i < HELD_MAPPINGS; i += 2)
		if (mprotect(at + i * page, page, PROT_READ) != 0) {
			ch__os_let_mappings_go(at);
			return NULL;
		}
	return at;
}

void ch__os_let_mappings_go(void *at)
{
	munmap(at, HELD_MAPPINGS * ch__os_page_bytes());
}

bool ch__os_populate(void *rw, size_t bytes)
{
	for (unsigned i = 0; i < POPULATE_TRIES; i++) {
		if (madvise(rw, bytes, MADV_POPULATE_WRITE) == 0)
			return true;
		if (errno != EINTR && errno != EAGAIN)
			return ch__os_note(false, "madvise");
	}
	return false;
}

static const int advices[] = {
	[CH__OS_DROP] = MADV_DONTNEED,       [CH__OS_DISCARD] = MADV_REMOVE,
	[CH__OS_DONT_FORK] = MADV_DONTFORK,  [CH__OS_DONT_DUMP] = MADV_DONTDUMP,
	[CH__OS_DUMP] = MADV_DODUMP,         [CH__OS_LARGE_PAGES] = MADV_HUGEPAGE,
	[CH__OS_WIPE] = MADV_WIPEONFORK,
};

bool ch__os_advise(void *at, size_t bytes, enum ch__os_advice advice)
{
	return ch__os_note(madvise(at, bytes, advices[advice]) == 0, "madvise");
}

void ch__os_suggest(void *at, size_t bytes, enum ch__os_advice advice)
{
	int error = errno;
	madvise(at, bytes, advices[advice]);
	errno = error;
}

static bool membarrier(int command)
{
	return syscall(SYS_membarrier, command, 0, 0) == 0;
}

/* When a process with several threads registers, the kernel waits for a grace period, some 10 ms
 * each time; a registered process does not wait. So the process registers before threads exist. */
__attribute__((constructor)) static void register_before_threads(void)
{
	syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
	syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0);
}

void ch__os_membarrier_register(bool *fast_fence, bool *core_sync)
{
	*fast_fence = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
	*core_sync = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE);
}

bool ch__os_membarrier_fence(void)
{
	return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

bool ch__os_membarrier_core_sync(void)
{
	return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE);
}
