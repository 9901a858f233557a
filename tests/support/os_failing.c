/* SPDX-License-Identifier: MIT
 * os_failing.c: the gate to the OS as tests have it: a chosen call fails, or the system is believed
 * to be another. Linked with the objects of os/ that tests link. */
#include "tests/support/os_failing.h"
#include "os/files.h"
#include "os/linux.h"
#include "os/meta.h"
#include "os/threads.h"

#include <stdlib.h>
#include <sys/mman.h>

static _Atomic(uint64_t) fail_nth, calls;
static _Atomic(bool) fail_later;
static _Atomic(int) fail_error;

void ch__os_fail_as(uint64_t nth, bool every_later_one, int error)
{
	atomic_store(&fail_nth, 0);
	atomic_store(&calls, 0);
	atomic_store(&fail_later, every_later_one);
	atomic_store(&fail_error, error);
	atomic_store(&fail_nth, nth);
}

void ch__os_fail_at(uint64_t nth, bool every_later_one)
{
	ch__os_fail_as(nth, every_later_one, ENOMEM);
}

uint64_t ch__os_failable_calls(void)
{
	return atomic_load(&calls);
}

static bool refuse(int error)
{
	errno = error;
	return ch__os_note(false, "a call that a test fails");
}

bool ch__os_may_fail(void)
{
	uint64_t nth = atomic_load_explicit(&fail_nth, memory_order_relaxed);
	if (CH_LIKELY(nth == 0))
		return false;
	uint64_t call = atomic_fetch_add(&calls, 1) + 1;
	if (call != nth && !(call > nth && atomic_load(&fail_later)))
		return false;
	return !refuse(atomic_load(&fail_error));
}

struct ch__os_pretence ch__os_pretended;

/* Before main: a test may create its heap in a constructor of its own. */
__attribute__((constructor(101))) static void read_environment(void)
{
	const char *text = getenv("CODEHEAP_TEST_SYSTEM_PAGE");
	ch__os_pretended.page_bytes = text ? strtoul(text, NULL, 0) : 0;
}

/* The kernel refuses an unaligned address and rounds an unaligned length up, beyond the range. */
static bool is_of_pages(const void *at, size_t bytes)
{
	size_t page = ch__os_pretended.page_bytes;
	return !page || ((uintptr_t)at | bytes) % page == 0 || refuse(EINVAL);
}

/* For calls that report nothing: one that gives a part of a mapping back must name whole pages. */
static bool is_part(const void *at, size_t bytes)
{
	if (!is_of_pages(at, bytes))
		ch__panic("pages: a range that is not of whole pages of the system");
	return false;
}

static bool has_memory(size_t bytes)
{
	int error = ch__os_pretended.commit_error;
	return !error || bytes <= ch__os_pretended.commit_bytes || refuse(error);
}

static bool has_room(size_t bytes)
{
	size_t most = ch__os_pretended.reserve_bytes;
	return !most || bytes <= most || refuse(ENOMEM);
}

static bool fails(const void *at, size_t bytes)
{
	return ch__os_may_fail() || !is_of_pages(at, bytes);
}

/* --- memory --- */

#define RANGE void *at, size_t bytes
#define AT at, bytes
INSTEAD(ch__os_page_bytes, size_t, ch__os_pretended.page_bytes, ch__os_pretended.page_bytes,
	(void), ())
INSTEAD(ch__os_space_is_limited, bool, true, ch__os_pretended.reserve_bytes, (void), ())
INSTEAD(ch__os_unreserve, void, (void)0, is_part(AT), (RANGE), (AT))
INSTEAD(ch__os_announce_code, void, (void)0, is_part(AT), (RANGE), (AT))
INSTEAD(ch__os_suggest, void, (void)0, is_part(AT), (RANGE, enum ch__os_advice advice),
	(AT, advice))
INSTEAD(ch__os_map_again, bool, false, is_part(at, bytes | offset),
	(const struct ch__os_held *file, size_t offset, RANGE), (file, offset, AT))
INSTEAD(ch__os_move_over, bool, false, fails(to, bytes), (void *from, size_t bytes, void *to),
	(from, bytes, to))
INSTEAD(ch__os_reserve, void *, NULL,
	fails(NULL, bytes) || !has_room(bytes + (hint == ch__os_anywhere ? 2 * align : 0)),
	(size_t bytes, size_t align, size_t offset, uintptr_t hint), (bytes, align, offset, hint))
INSTEAD(ch__os_reserve_at, bool, false, fails(AT) || !has_room(bytes), (RANGE), (AT))
INSTEAD(ch__os_map_shared_rx, bool, false, fails(AT), (RANGE), (AT))
INSTEAD(ch__os_map_private, bool, false, fails(AT), (RANGE, enum ch__os_view view), (AT, view))
INSTEAD(ch__os_map_fd, bool, false, fails(at, bytes | offset),
	(const struct ch__os_held *file, size_t offset, RANGE, enum ch__os_view view),
	(file, offset, AT, view))
INSTEAD(ch__os_protect, bool, false, fails(AT), (RANGE, bool is_writable), (AT, is_writable))
INSTEAD(ch__os_protect_none, bool, false, fails(AT), (RANGE), (AT))
INSTEAD(ch__os_advise, bool, false, fails(AT), (RANGE, enum ch__os_advice advice), (AT, advice))
INSTEAD(ch__os_populate, bool, false, fails(AT) || !has_memory(bytes), (RANGE), (AT))
INSTEAD(ch__os_fd_commit, bool, false, ch__os_may_fail() || !has_memory(bytes),
	(const struct ch__os_held *file, size_t offset, size_t bytes), (file, offset, bytes))
REFUSES(ch__os_hold_mappings, void *, NULL, (void), ())
REFUSES(ch__os_read_memory, long, -1, (void *to, uintptr_t from, size_t bytes), (to, from, bytes))
REFUSES(ch__meta_create, struct ch__meta *, NULL, (void), ())
REFUSES(ch__meta_alloc, void *, (errno = ENOMEM, NULL), (struct ch__meta *meta, size_t bytes),
	(meta, bytes))

/* A place of whole pretended pages, where the system likes. */
static void *place_for(size_t bytes)
{
	size_t page = ch__os_pretended.page_bytes;
	return __real_ch__os_reserve(CH_ROUND_UP(bytes, page), page, 0, ch__os_anywhere);
}
static void *map_pages(size_t bytes, int protection, int flags, int fd)
{
	void *at = place_for(bytes);
	bytes = CH_ROUND_UP(bytes, ch__os_pretended.page_bytes);
	if (!at || ch__os_note(mmap(at, bytes, protection, flags | MAP_FIXED, fd, 0) == at, "mmap"))
		return at;
	__real_ch__os_unreserve(at, bytes);
	return NULL;
}
BETWEEN(ch__os_private, void *, (size_t bytes))
{
	if (ch__os_may_fail())
		return NULL;
	return !ch__os_pretended.page_bytes
		       ? __real_ch__os_private(bytes)
		       : map_pages(bytes, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
}
BETWEEN(ch__os_file_marker, void *, (int fd))
{
	if (ch__os_may_fail())
		return NULL;
	return !ch__os_pretended.page_bytes ? __real_ch__os_file_marker(fd)
					    : map_pages(1, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd);
}
BETWEEN(ch__os_duplicate, void *, (void *from, size_t bytes, void *to))
{
	if (fails(from, bytes) || !is_of_pages(to, 0))
		return NULL;
	void *got = __real_ch__os_duplicate(from, bytes, to), *at;
	if (!got || to || !ch__os_pretended.page_bytes)
		return got;
	if ((at = place_for(bytes)) && __real_ch__os_move_over(got, bytes, at))
		return at;
	__real_ch__os_unreserve(got, bytes);
	if (at)
		__real_ch__os_unreserve(at, bytes);
	return NULL;
}

/* --- files --- */

REFUSES(ch__os_new_memfd, int, -1, (void), ())
REFUSES(ch__os_new_nameless_file, int, -1, (const char *folder), (folder))
REFUSES(ch__os_fix_size, bool, false, (int fd, size_t bytes, bool is_memfd), (fd, bytes, is_memfd))
REFUSES(ch__os_self_memory, bool, ch__os_hold(file, -1), (struct ch__os_held *file), (file))
REFUSES(ch__os_file_create, int, -1,
	(const char *path, const struct ch__os_held *own, uint64_t own_bytes),
	(path, own, own_bytes))
REFUSES(ch__os_file_read, int64_t, -1, (int fd, uint64_t offset, void *bytes, size_t n),
	(fd, offset, bytes, n))
REFUSES(ch__os_file_put, size_t, 0, (int fd, const void *bytes, size_t n), (fd, bytes, n))
REFUSES(ch__os_file_is_at, bool, false, (int fd, const char *path), (fd, path))
REFUSES(ch__os_file_rename, bool, false, (const char *from, const char *to), (from, to))
/* The file is held all the same. */
BETWEEN(ch__os_file_hold, bool, (int fd, struct ch__os_held *file))
{
	return __real_ch__os_file_hold(fd, file) && !ch__os_may_fail();
}
BETWEEN(ch__os_self_write, bool,
	(const struct ch__os_held *file, void *to, const void *from, size_t bytes))
{
	size_t done = 0, step = ch__os_pretended.between_bytes ? 1 : bytes;
	while (done < bytes && __real_ch__os_self_write(file, (uint8_t *)to + done,
							(const uint8_t *)from + done, step))
		if ((done += step) < bytes)
			ch__os_pretended.between_bytes(to);
	return done >= bytes;
}

/* --- the process, threads and time --- */

REFUSES(ch__os_symbol, void *, NULL, (const char *library, const char *name), (library, name))
REFUSES(ch__os_stack_bounds, bool, false, (const void **low, const void **high), (low, high))
REFUSES(ch__os_at_thread_end, bool, false, (void (*call)(void *)), (call))
REFUSES(ch__os_signal_install, bool, false,
	(int signal, void (*handler)(int, void *, void *), struct ch__os_action *old,
	enum ch__os_manner manner), (signal, handler, old, manner))
REFUSES(ch__os_atfork, bool, false,
	(void (*prepare)(void), void (*parent)(void), void (*child)(void)),
	(prepare, parent, child))
REFUSES(ch__os_thread_signal, bool, false, (int id, int signal, const void *tag), (id, signal, tag))
REFUSES(ch__os_membarrier_fence, bool, false, (void), ())
REFUSES(ch__os_membarrier_core_sync, bool, false, (void), ())
BETWEEN(ch__os_membarrier_register, void, (bool *fast_fence, bool *core_sync))
{
	bool has_no_fence = ch__os_may_fail(), has_no_sync = ch__os_may_fail();
	__real_ch__os_membarrier_register(fast_fence, core_sync);
	*fast_fence &= !has_no_fence;
	*core_sync &= !has_no_sync;
}
INSTEAD(ch__os_now_ns, uint64_t, ch__os_pretended.clock(0), ch__os_pretended.clock, (void), ())
INSTEAD(ch__os_futex_wait, void, (void)ch__os_pretended.clock(ns), ns && ch__os_pretended.clock,
	(_Atomic(uint32_t) *word, uint32_t value, uint64_t ns), (word, value, ns))
