/* SPDX-License-Identifier: MIT
 * os.h: the one gate to the operating system. Every call that may fail passes through a counter so
 * that a test can make the Nth one fail; errno is the OS's. Nothing here takes a library lock. A
 * port of the library to another system is another set of files beside linux*.c. All functions
 * returning bool or a pointer report failure by false/NULL with errno set. */
#ifndef CH_OS_OS_H
#define CH_OS_OS_H

#include "arch/base.h"

/* --- errors --- */
struct ch__text;
/* Notes for the calling thread that the system refused a call, errno saying why, unless is_done,
 * which is returned. */
bool ch__os_note(bool is_done, const char *call);
/* The name of an error, behind that of the call that was refused with it, which is forgotten then:
 * "mremap EPERM". */
void ch__os_put_error(struct ch__text *, int error);

/* --- views --- */
enum ch__os_view { CH__OS_NONE, CH__OS_R, CH__OS_RX, CH__OS_RW };
size_t ch__os_page_bytes(void);
/* Where READ_IMPLIES_EXEC is in the personality of the calling thread, what may be read may run:
 * from then on views other than RX are made without it, or not at all. Asked before views are made,
 * and not for each: a filter that came later may kill who asks. */
void ch__os_look_at_personality(void);
/* Reserve `bytes` of address space without access, so that (address + offset) is aligned: within 1
 * GiB of a hint where there is room, at a random place when hint is 0, where the system likes when
 * hint is ch__os_anywhere. */
static const uintptr_t ch__os_anywhere = UINTPTR_MAX;
void *ch__os_reserve(size_t bytes, size_t align, size_t offset, uintptr_t hint)
	CH_EXCLUDES(CH__STANDING);
/* Whether the process may have so much address space and no more (RLIMIT_AS). */
bool ch__os_space_is_limited(void);
/* exactly there; EEXIST when something is mapped */
bool ch__os_reserve_at(void *at, size_t bytes) CH_EXCLUDES(CH__STANDING);
void ch__os_unreserve(void *at, size_t bytes) CH_EXCLUDES(CH__STANDING);
/* Shared anonymous memory mapped RX over a reservation (dual backend). */
bool ch__os_map_shared_rx(void *at, size_t bytes) CH_EXCLUDES(CH__STANDING);
/* A second view of the shared mapping at `from`, moved onto the reservation `to`, then made RW. */
bool ch__os_duplicate_rw(void *from, size_t bytes, void *to) CH_EXCLUDES(CH__STANDING);
/* RX again for `at` from the mapped RX address `from` below it, without gaining X by mprotect. */
bool ch__os_revive_from(void *from, void *at, size_t bytes) CH_EXCLUDES(CH__STANDING);
/* --- files of code (memfd, procmem) ---
 * A program that closes what it did not open may have a file of its own at our number. So the
 * number is never believed: each call below looks first whether it leads to the file that was
 * opened (EBADF), and does nothing to another one. What the program does between the look and the
 * use is not seen. */
struct ch__os_held {
	_Atomic(int) fd;                 /* -1: none. Relaxed, as the others: a mixture of two */
	_Atomic(uint64_t) device, inode; /* files is taken for neither */
};
bool ch__os_holds(const struct ch__os_held *);
/* Closes it, if it is there. */
void ch__os_let_go(struct ch__os_held *) CH_EXCLUDES(CH__STANDING);
/* memfd backend. Where memfd_create is refused, a file without a name in /dev/shm or /tmp. */
bool ch__os_memfd(size_t bytes, struct ch__os_held *) CH_EXCLUDES(CH__STANDING);
bool ch__os_map_fd(const struct ch__os_held *, size_t offset, void *at, size_t bytes,
		   enum ch__os_view) CH_EXCLUDES(CH__STANDING);
/* RX again where it is RX already, excluded from forks; no injected failure. It ends writes where
 * an emulator runs, those in regions too. */
bool ch__os_map_again(const struct ch__os_held *, size_t offset, void *at, size_t bytes);
bool ch__os_fd_commit(const struct ch__os_held *, size_t offset, size_t bytes)
	CH_EXCLUDES(CH__STANDING);
void ch__os_close(int fd) CH_EXCLUDES(CH__STANDING);
/* --- private memory (procmem) --- */
/* Private zeroed memory over a reservation, or over what is there, which is given back. */
bool ch__os_map_private(void *at, size_t bytes, enum ch__os_view) CH_EXCLUDES(CH__STANDING);
/* Larger pages where the system has some: a fork copies fewer entries. It may do nothing. */
void ch__os_large_pages(void *at, size_t bytes) CH_EXCLUDES(CH__STANDING);
/* Private memory reads as zero again. */
bool ch__os_drop(void *at, size_t bytes) CH_EXCLUDES(CH__STANDING);
/* The calling process's memory as a file, to write where no mapping may be written. A child that
 * inherits it would write to its parent. */
bool ch__os_self_memory(struct ch__os_held *) CH_EXCLUDES(CH__STANDING);
/* A page of words that hold 0, also in each child of fork whatever was stored. NULL: errno. */
_Atomic(uint32_t) *ch__os_words_wiped_by_fork(void);
/* No injected failure: what a store leads to has no status. */
bool ch__os_self_write(const struct ch__os_held *, void *to, const void *from, size_t bytes);
/* The range is readable, or writable too, and executable no more. It may have changed a part of the
 * range when it fails, at the map-count limit. */
bool ch__os_protect(void *at, size_t bytes, bool is_writable) CH_EXCLUDES(CH__STANDING);
/* Drops to no access; may split a mapping and so fail at the map-count limit. */
bool ch__os_protect_none(void *at, size_t bytes) CH_EXCLUDES(CH__STANDING);
/* Commit memory of a shared mapping through its RW view: an error, never SIGBUS. */
bool ch__os_populate(void *rw, size_t bytes) CH_EXCLUDES(CH__STANDING);
/* Give the memory of a shared mapping back; it reads as zero from then on. */
bool ch__os_discard(void *rw, size_t bytes) CH_EXCLUDES(CH__STANDING);
bool ch__os_dont_fork(void *at, size_t bytes) CH_EXCLUDES(CH__STANDING);
bool ch__os_dont_dump(void *at, size_t bytes) CH_EXCLUDES(CH__STANDING);
/* Move the mapping `from` onto `to`, replacing what is there. */
bool ch__os_move_over(void *from, size_t bytes, void *to) CH_EXCLUDES(CH__STANDING);
/* Private zeroed memory for tables. */
void *ch__os_private(size_t bytes) CH_EXCLUDES(CH__STANDING);
/* The same, within 1 GiB of the hint where there is room; bytes is a multiple of the page. */
void *ch__os_private_near(size_t bytes, uintptr_t hint) CH_EXCLUDES(CH__STANDING);
#if CH_CHECK >= 2
/* The same for notes of checked builds, which do without it: no injected failure. */
void *ch__os_notes(size_t bytes) CH_EXCLUDES(CH__STANDING);
#endif
void ch__os_unmap(void *at, size_t bytes) CH_EXCLUDES(CH__STANDING);

/* --- the process --- */
int ch__os_process_id(void);
const char *ch__os_environment(const char *name); /* NULL when unset, or in a set-uid program */
void ch__os_random(void *bytes, size_t n);
uint64_t ch__os_now_ns(void);

/* --- what only tests do --- */
/* What a test pretends of the machine; in a library nothing, and what asks is no code there. */
struct ch__os_pretence {
	/* Of a system with larger pages: ranges that are not of whole ones are refused. */
	size_t page_bytes;
	/* Of an address space that has no room for a larger reservation; 0 = it has. */
	size_t reserve_bytes;
	/* errno of a system that gives code no more memory; 0 = it does. */
	int commit_error;
	/* What an emulator does between the two runs of a backend's self-test: 1 dual, 2 memfd. */
	void (*between_runs)(int backend, uint8_t *exec, uint8_t *write, size_t bytes);
	/* Self-writes store byte by byte, as some machines do; between two of them. */
	void (*between_bytes)(const void *to);
	/* The time, when somebody has waited so long: nobody sleeps who gives a limit. */
	uint64_t (*clock)(uint64_t waited_ns);
};
#if CH_TESTING
/* Make the nth failable call (OS or metadata) from this one on fail with ENOMEM; 0 = none. Counted
 * per process, and only while nth is not 0: give UINT64_MAX to count without a failure. Release
 * calls cannot fail and do not count. */
void ch__os_fail_at(uint64_t nth, bool every_later_one);
void ch__os_fail_as(uint64_t nth, bool every_later_one, int error); /* the same, with an errno */
uint64_t ch__os_failable_calls(void); /* since the last ch__os_fail_at */
bool ch__os_may_fail(void);           /* true: the gate says this call fails; used by meta.c too */
extern struct ch__os_pretence ch__os_pretended;
#else
static const struct ch__os_pretence ch__os_pretended = {0};
static inline bool ch__os_may_fail(void)
{
	return false;
}
#endif

#endif
