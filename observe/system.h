/* SPDX-License-Identifier: MIT
 * system.h: what observers alone ask of the operating system: timers, threads, files of their own,
 * mappings, and the files that the process was loaded from. os/os.h says what holds of every such
 * call. */
#ifndef CH_OBSERVE_SYSTEM_H
#define CH_OBSERVE_SYSTEM_H

#include "os/os.h"
#include "os/threads.h"

#include <stdatomic.h>
#include <sys/types.h>

/* --- timers (linux_timers.c) --- */
struct ch__os_timer {
	void *system;
};
/* Sends SIGPROF to the thread again and again, each time when so much of its CPU time, or of
 * everybody's, has passed. A child of fork does not have it. False: errno, also when the thread is
 * gone. */
bool ch__os_timer_start(struct ch__os_timer *, int thread_id, bool by_wall_clock,
			uint64_t interval_ns, void *value) CH_EXCLUDES(CH__STANDING);
/* A signal of it may still come. */
void ch__os_timer_stop(struct ch__os_timer *) CH_EXCLUDES(CH__STANDING);
bool ch__os_thread_exists(int thread_id); /* in this process */
/* Whether the signal is of such a timer, or another of POSIX; how often that expired since the
 * signal before. Async-signal-safe, and so is ch__os_profile_chain. */
bool ch__os_timer_expired(const void *siginfo, void **value, uint32_t *times);
/* As ch__os_signal_chain, as the last thing that such a handler does: what it blocked is open. */
void ch__os_profile_chain(void *info, void *ucontext, struct ch__os_action *);

/* --- a thread of the library's own (linux_worker.c); not in a signal handler --- */
/* All its signals are blocked, its stack is small, and it calls no VM: no collector knows it. A
 * child of fork does not have it: there the owner forgets the record and joins nothing. */
struct ch__os_thread {
	void (*run)(void *arg);
	void *arg;
	pthread_t system; /* joined once */
	_Atomic(uint32_t) is_done; /* it returned; futex: release pairs with ch__os_thread_ends */
};
/* The record stays where it is until the thread is joined. False: errno. */
bool ch__os_thread_start(struct ch__os_thread *, void (*run)(void *arg), void *arg)
	CH_EXCLUDES(CH__STANDING);
/* ThreadSanitizer ends a child of fork that starts one. */
bool ch__os_child_may_start_threads(void);
/* Waits until it returned; asking it to is its owner's affair. */
void ch__os_thread_join(struct ch__os_thread *) CH_EXCLUDES(CH__STANDING);
/* Whether it returns by then: who exits waits for no thread for ever. */
bool ch__os_thread_ends(struct ch__os_thread *, uint64_t until_ns) CH_EXCLUDES(CH__STANDING);

/* --- files (linux_files.c); not in a signal handler --- */
/* As ch__os_file_create, save that a file which a living process has locked by this call stays:
 * EBUSY. The file is locked until it is closed, by a child of fork, too; where its file system has
 * no such locks, *is_locked is false. */
int ch__os_file_create_locked(const char *path, bool *is_locked) CH_EXCLUDES(CH__STANDING);
/* Whether the open file has a name, this or another one; false: ENOENT, nobody can open it. */
bool ch__os_file_has_name(int fd) CH_EXCLUDES(CH__STANDING);
bool ch__os_file_rewind(int fd); /* what is written next is its beginning */
/* Some file systems say only here that what was written found no room. */
bool ch__os_file_close(int fd) CH_EXCLUDES(CH__STANDING);
/* A file that is there, to read; no device, no pipe. -1: errno. */
int ch__os_file_open(const char *path) CH_EXCLUDES(CH__STANDING);
/* Files of the user's: whether the path is a regular file's, or nobody's; and to write to what it
 * leads to, as a terminal. -1: errno. */
bool ch__os_file_is_plain(const char *path);
int ch__os_file_straight(const char *path) CH_EXCLUDES(CH__STANDING);
/* The permissions of the regular file at the path, if there is one, for the open file. */
void ch__os_file_take_mode(int fd, const char *path);
const char *ch__os_process_name(void); /* of the program's file, without its folder */

/* --- mappings (linux_timers.c) --- */
struct ch__os_mapping {
	uintptr_t low, high;
	uint64_t offset, device, inode; /* of its file; inode 0: it has none */
	bool is_executable;
	const char *path; /* "" without a name */
};
/* Rising by address, while visit returns true. False: errno. */
bool ch__os_each_mapping(bool (*visit)(void *arg, const struct ch__os_mapping *), void *arg)
	CH_EXCLUDES(CH__STANDING);

/* --- objects of the process (linux_images.c); none of it in a signal handler --- */
/* The process has a library from then on, for ch__os_symbol to look in; its symbols are nobody
 * else's. False: there is none, or the program is static: it would get a second C library. */
bool ch__os_library_load(const char *library) CH_EXCLUDES(CH__STANDING);
/* The object that was loaded around an address. */
enum { CH__OS_HEAD_BYTES = 1024 };
struct ch__os_image {
	uintptr_t low, high;
	uintptr_t bias;    /* what it adds to the addresses in its file */
	char path[4096];   /* of the file that it was loaded from, which may be another by now */
	bool is_program;   /* and not a library */
	size_t head_bytes; /* 0: the beginning of the file is not in memory */
	uint8_t head[CH__OS_HEAD_BYTES]; /* the file as it was loaded */
};
bool ch__os_image_of(uintptr_t address, struct ch__os_image *) CH_EXCLUDES(CH__STANDING);
/* The object's file, to read; -1: errno. That it is the one that was loaded is not said: its head
 * tells. */
int ch__os_image_open(const struct ch__os_image *) CH_EXCLUDES(CH__STANDING);

#endif
