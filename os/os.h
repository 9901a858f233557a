/* SPDX-License-Identifier: MIT
 * os.h: memory, time and the process. This header, threads.h and files.h are the core's only gate
 * to the operating system. Tests put functions of theirs between callers and most calls that may
 * fail, so that the Nth call fails (tests/support/os_failing.h). Nothing here takes a library lock.
 * A port to another system is another set of files beside linux*.c. Unless the line of a function
 * says otherwise, false and NULL are failures, with errno from the OS. */
#pragma once

#include "arch/base.h"

#include <errno.h>

struct ch__text;
/* Returns is_done. If false, notes with errno that the system refused this thread the call. */
bool ch__os_note(bool is_done, const char *call);
/* Appends the name of an error, with the last noted call in front if that call was refused with
 * this error: "mremap EPERM". Forgets the noted call. */
void ch__os_put_error(struct ch__text *, int error);
/* "SEGV"; NULL: the C library knows no name. */
const char *ch__os_signal_name(int signal);

/* COPY: of a file, RW, and what is written is the mapping's own. */
enum ch__os_view { CH__OS_NONE, CH__OS_R, CH__OS_RX, CH__OS_RW, CH__OS_COPY };
size_t ch__os_page_bytes(void);
/* If the calling thread's personality has READ_IMPLIES_EXEC, readable memory may run: from then on
 * views other than RX are made without the flag, or fail. Called before views are made, not for
 * each view: a filter that comes later may kill a process that asks. */
void ch__os_look_at_personality(void);
/* Reserves `bytes` of address space without access, so that (address + offset) is aligned, and no
 * multiple of 4 GiB: within 1 GiB of a hint, or 1.5 GiB for a GiB and more, where there is room; at
 * a random place when hint is 0; where the system likes when hint is ch__os_anywhere. */
static const uintptr_t ch__os_anywhere = UINTPTR_MAX;
void *ch__os_reserve(size_t bytes, size_t align, size_t offset, uintptr_t hint) CH_MAY_WAIT;
/* Whether the process has a limit of address space (RLIMIT_AS). */
bool ch__os_space_is_limited(void);
/* exactly at `at`; EEXIST when something is mapped there */
bool ch__os_reserve_at(void *at, size_t bytes) CH_MAY_WAIT;
void ch__os_unreserve(void *at, size_t bytes) CH_MAY_WAIT; /* keeps errno */
/* Shared anonymous memory mapped RX over a reservation (dual backend). */
bool ch__os_map_shared_rx(void *at, size_t bytes) CH_MAY_WAIT;
/* A second view of the shared mapping at `from`, moved onto the reservation `to`, then made RW. */
bool ch__os_duplicate_rw(void *from, size_t bytes, void *to) CH_MAY_WAIT;
/* Makes `at` RX again from the mapped RX address `from` below, without gaining X by mprotect. */
bool ch__os_revive_from(void *from, void *at, size_t bytes) CH_MAY_WAIT;
/* Files that stay open: of sinks, and of code (memfd, procmem). A program that closes a descriptor
 * of the library by mistake may get the number for its own file: each use below first compares
 * device and inode, and fails with EBADF. A close after the look is not noticed. */
struct ch__os_held {
	_Atomic(int) fd;                 /* -1: none. All three are relaxed: a mixture */
	_Atomic(uint64_t) device, inode; /* of two files matches no file */
};
/* Takes a descriptor, or -1 for none. Returns false with errno when there is no such file. */
bool ch__os_hold(struct ch__os_held *, int fd);
/* Returns false and EBADF when the file is not held any more. */
bool ch__os_holds(const struct ch__os_held *);
/* Closes the file, if still held; device and inode stay. */
void ch__os_let_go(struct ch__os_held *) CH_MAY_WAIT;
/* memfd backend. If memfd_create is refused: a file without a name in /dev/shm or /tmp. */
bool ch__os_memfd(size_t bytes, struct ch__os_held *) CH_MAY_WAIT;
bool ch__os_map_fd(const struct ch__os_held *, size_t offset, void *at, size_t bytes,
		   enum ch__os_view) CH_MAY_WAIT;
/* Maps RX memory RX again, excluded from forks; no injected failure, since stores into code have no
 * status. On an emulator each write ends with this call, also a write in a region. */
bool ch__os_map_again(const struct ch__os_held *, size_t offset, void *at, size_t bytes);
bool ch__os_fd_commit(const struct ch__os_held *, size_t offset, size_t bytes) CH_MAY_WAIT;
void ch__os_close(int fd) CH_MAY_WAIT; /* keeps errno */

/* Private zeroed memory over a reservation, or over old memory, which is given back. */
bool ch__os_map_private(void *at, size_t bytes, enum ch__os_view) CH_MAY_WAIT;
/* Lets perf know that a reservation will have code. May do nothing. */
void ch__os_announce_code(void *at, size_t bytes) CH_MAY_WAIT;
/* The calling process's memory as a file, to write where no mapping may be written. A child that
 * inherits the file would write to its parent. */
bool ch__os_self_memory(struct ch__os_held *) CH_MAY_WAIT;
/* No injected failure: stores into code have no status. */
bool ch__os_self_write(const struct ch__os_held *, void *to, const void *from, size_t bytes);
/* Makes the range readable, or writable too, and no longer executable. On failure, at the map-count
 * limit, a part of the range may have changed. */
bool ch__os_protect(void *at, size_t bytes, bool is_writable) CH_MAY_WAIT;
/* Drops to no access; may split a mapping and so fail at the map-count limit. */
bool ch__os_protect_none(void *at, size_t bytes) CH_MAY_WAIT;
/* Takes 128 mappings, so that a caller who uses up the rest leaves these to the process. NULL: the
 * process can have no more. */
void *ch__os_hold_mappings(void) CH_MAY_WAIT;
void ch__os_let_mappings_go(void *) CH_MAY_WAIT;
/* Commits memory through the RW view: fails with an error, never SIGBUS. */
bool ch__os_populate(void *rw, size_t bytes) CH_MAY_WAIT;
enum ch__os_advice {
	CH__OS_DROP,        /* private memory reads as zero again */
	CH__OS_DISCARD,     /* the same of a shared mapping, by a view that is RW */
	CH__OS_DONT_FORK,   /* a child of fork does not have the mapping */
	CH__OS_DONT_DUMP,   /* core files do not have the memory */
	CH__OS_DUMP,        /* they have it again */
	CH__OS_LARGE_PAGES, /* so that a fork copies fewer entries */
	CH__OS_WIPE,        /* private memory reads as zero in a child of fork */
};
bool ch__os_advise(void *at, size_t bytes, enum ch__os_advice) CH_MAY_WAIT;
/* The same, but may do nothing; keeps errno. */
void ch__os_suggest(void *at, size_t bytes, enum ch__os_advice) CH_MAY_WAIT;
/* Moves the mapping `from` onto `to`, replacing what is there. */
bool ch__os_move_over(void *from, size_t bytes, void *to) CH_MAY_WAIT;
/* Private zeroed memory for tables. */
void *ch__os_private(size_t bytes) CH_MAY_WAIT;
/* The same, within 1 GiB of the hint where there is room; bytes is a multiple of the page. */
void *ch__os_private_near(size_t bytes, uintptr_t hint) CH_MAY_WAIT;
void ch__os_unmap(void *at, size_t bytes) CH_MAY_WAIT; /* keeps errno */

int ch__os_process_id(void);
const char *ch__os_environment(const char *name); /* NULL when unset, or in a set-uid program */
void ch__os_random(void *bytes, size_t n);
uint64_t ch__os_now_ns(void);
