/* SPDX-License-Identifier: MIT
 * system.h: calls of the operating system that only observers need: timers, threads, files,
 * mappings, and the object files of the process. os/os.h has the rules for all such calls. */
#pragma once

#include "os/os.h"
#include "os/threads.h"

#include <stdatomic.h>
#include <sys/types.h>

/* --- timers (linux_timers.c) --- */
struct ch__os_timer {
	void *system;
};
/* Sends SIGPROF to the thread at a random point of the first interval of its CPU time, or of
 * wall-clock time, and an interval later each time. A child of fork does not have the timer.
 * Returns false with errno, also when the thread is gone. */
bool ch__os_timer_start(struct ch__os_timer *, int thread_id, bool by_wall_clock,
			uint64_t interval_ns, void *value) CH_MAY_WAIT;
/* A signal of the timer may still come. */
void ch__os_timer_stop(struct ch__os_timer *) CH_MAY_WAIT;
/* Whether the signal is of a POSIX timer, the library's or not. *times: how often the timer expired
 * since its last signal. Async-signal-safe, and so is ch__os_profile_chain. */
bool ch__os_timer_expired(const void *siginfo, void **value, uint32_t *times);
/* Whether SIGPROF has a handler, the library's or not. */
bool ch__os_profile_is_handled(void);
/* For the end of a SIGPROF handler: unblocks the handler's signals, then ch__os_signal_chain. */
void ch__os_profile_chain(void *info, void *ucontext, struct ch__os_action *);

/* --- a thread of the library's own (linux_worker.c); not in a signal handler --- */
/* The thread has all signals blocked and a small stack. It calls no VM, and no collector knows it.
 * No child of the process has the thread. Zeros are a record without a thread. */
struct ch__os_thread {
	void (*run)(void *arg);
	void *arg;
	pthread_t system; /* joined once */
	/* that has a thread to join, or 0; release after the start, acquire before the join */
	_Atomic(int) process;
	_Atomic(uint32_t) is_done; /* run returned; futex: release pairs with ch__os_thread_join */
};
/* Stores a word that a thread of the library waits for (release), and wakes the thread. */
void ch__os_thread_tell(_Atomic(uint32_t) *word, uint32_t value);
/* The record stays in place until the thread is joined. Returns false with errno. */
bool ch__os_thread_start(struct ch__os_thread *, void (*run)(void *arg), void *arg) CH_MAY_WAIT;
/* Returns false under ThreadSanitizer, which ends a child of fork that starts a thread. */
bool ch__os_child_may_start_threads(void);
/* Waits until the thread, which the owner has asked to end, returns; then the first of two callers
 * joins it: ThreadSanitizer reports a thread that nobody joins. Returns false at until_ns, since an
 * exit waits for no thread for ever. Returns true at once in a process that has no such thread. */
bool ch__os_thread_join(struct ch__os_thread *, uint64_t until_ns) CH_MAY_WAIT;
/* Holds the cancellation of the calling thread off until ch__os_cancel_allow of the result. For
 * calls of other libraries, and ch__os_file_open; the other calls here do so by themselves. */
int ch__os_cancel_hold(void);
void ch__os_cancel_allow(int before);

/* --- files (linux_files.c); not in a signal handler --- */
/* As ch__os_file_create, but EBUSY if a living process has locked the file by this call. The lock
 * lasts until ch__os_file_unlock, or until the file is closed, also by each child of fork.
 * *is_locked is false if the file system has no such locks. */
int ch__os_file_create_locked(const char *path, bool *is_locked) CH_MAY_WAIT;
/* A child that another thread has just forked may have the file open: closing would not do. */
void ch__os_file_unlock(int fd);
/* Whether the open file has a name. Returns false with ENOENT if nobody can open the file. */
bool ch__os_file_has_name(int fd) CH_MAY_WAIT;
bool ch__os_file_rewind(int fd); /* the next write is at the beginning */
/* Some file systems report only here that the disk had no room. */
bool ch__os_file_close(int fd) CH_MAY_WAIT;
/* Opens an existing regular file to read, no device, no pipe. Returns -1 with errno. */
int ch__os_file_open(const char *path) CH_MAY_WAIT;
/* For paths of the user. is_plain: the path is a regular file, or nothing is there. straight: opens
 * the target of the path, such as a terminal, for writing, or returns -1 with errno. */
bool ch__os_file_is_plain(const char *path);
int ch__os_file_straight(const char *path) CH_MAY_WAIT;
/* Gives the open file the permissions of the regular file at the path, if there is one. */
void ch__os_file_take_mode(int fd, const char *path);
const char *ch__os_process_name(void); /* of the program's file, without its folder */

/* --- mappings (linux_timers.c) --- */
struct ch__os_mapping {
	uintptr_t low, high;
	uint64_t offset, device, inode; /* of the file; inode 0: no file */
	bool is_executable;
	const char *path; /* "" without a name */
};
/* Visits the mappings, rising by address, while visit returns true. False: errno. */
bool ch__os_each_mapping(bool (*visit)(void *arg, const struct ch__os_mapping *), void *arg)
	CH_MAY_WAIT;

/* --- objects of the process (linux_images.c); none of it in a signal handler --- */
/* Loads a library for ch__os_symbol; nobody else sees its symbols. Returns false if there is no
 * library, or in a static program, where a second C library would come along. */
bool ch__os_library_load(const char *library) CH_MAY_WAIT;
/* The object loaded around an address. */
enum { CH__OS_HEAD_BYTES = 1024 };
struct ch__os_image {
	uintptr_t low, high;
	uintptr_t bias;    /* added to the addresses in the file */
	char path[4096];   /* of the loaded file; another file may have the path by now */
	bool is_program;   /* and not a library */
	size_t head_bytes; /* 0: the beginning of the file is not in memory */
	uint8_t head[CH__OS_HEAD_BYTES]; /* the file as it was loaded */
};
bool ch__os_image_of(uintptr_t address, struct ch__os_image *) CH_MAY_WAIT;
/* Opens the object's file to read, or returns -1. The file may have been replaced:
 * compare its beginning with `head`. */
int ch__os_image_open(const struct ch__os_image *) CH_MAY_WAIT;
