/* SPDX-License-Identifier: MIT
 * linux_process.c: what belongs to the process rather than to memory: stack bounds, signal actions,
 * fork handlers, environment, and files. A file that the library holds for long is known by number
 * and identity, because the program may close any number and open another file there. Not
 * async-signal-safe, save what is done with a file that is held. No lock. */
#define _GNU_SOURCE
#include "os/linux.h"
#include "os/files.h"
#include "os/threads.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3, include/uapi/linux/memfd.h */
#endif
_Static_assert(sizeof(struct ch__old_action) <= sizeof(struct ch__os_action), "room for it");

size_t ch__os_page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

bool ch__os_stack_bounds(const void **low, const void **high)
{
	/* Bounds of the process's first stack, which the C library looks up in /proc/self/maps:
	 * once. Only the first thread stands there. Relaxed: a mixture of two has the same end. */
	static _Atomic(const void *) first_low, first_high;
	pthread_attr_t attributes;
	void *base;
	size_t bytes;
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);
	*low = CH_LOAD_RELAXED(&first_low);
	*high = CH_LOAD_RELAXED(&first_high);
	if (here >= (uintptr_t)*low && here < (uintptr_t)*high)
		return true;
	int error = pthread_getattr_np(pthread_self(), &attributes);
	if (error == 0) {
		error = pthread_attr_getstack(&attributes, &base, &bytes);
		pthread_attr_destroy(&attributes);
	}
	if (error) {
		errno = error;
		return false;
	}
	*low = base;
	*high = (uint8_t *)base + bytes;
	if (ch__os_is_first_stack(*low, *high)) {
		CH_STORE_RELAXED(&first_low, *low);
		CH_STORE_RELAXED(&first_high, *high);
	}
	return true;
}

bool ch__os_at_thread_end(void (*call)(void *))
{
	static _Atomic(uint64_t) key_made; /* the key + 1; 0 = none */
	pthread_key_t fresh;
	int error = 0;
	uint64_t known = atomic_load(&key_made);
	if (!known && (error = pthread_key_create(&fresh, call)) == 0) {
		if (atomic_compare_exchange_strong(&key_made, &known, (uint64_t)fresh + 1))
			known = (uint64_t)fresh + 1;
		else
			pthread_key_delete(fresh); /* another thread made it first */
	}
	if (!error)
		error = pthread_setspecific((pthread_key_t)(known - 1), &key_made);
	if (error)
		errno = error;
	return !error;
}

bool ch__os_signal_install(int signal, void (*handler)(int, void *, void *),
			   struct ch__os_action *old_action, enum ch__os_manner manner)
{
	struct sigaction action;
	struct ch__old_action old;
	memset(&action, 0, sizeof action);
	memset(&old, 0, sizeof old);
	/* Only the pointed-to type of the second parameter differs. */
	action.sa_sigaction = (void (*)(int, siginfo_t *, void *))(void (*)(void))handler;
	action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
	/* Stored first: the new handler chains to the old action, and may run at once. */
	if (!ch__os_note(sigaction(signal, NULL, &old.actions[0]) == 0, "sigaction"))
		return false;
	memcpy(old_action, &old, sizeof old);
	if (manner == CH__OS_UNDISTURBED)
		sigfillset(&action.sa_mask);
	if (manner == CH__OS_LIKE_OLD && ch__is_handler(&old.actions[0])) {
		action.sa_mask = old.actions[0].sa_mask;
		action.sa_flags =
			SA_SIGINFO | (old.actions[0].sa_flags & (SA_ONSTACK | SA_RESTART));
	}
	struct ch__old_action *kept = (void *)old_action;
	if (!ch__os_note(sigaction(signal, &action, &kept->actions[1]) == 0, "sigaction"))
		return false;
	/* Another handler may have come since the look. Release: pairs with ch__replaced. */
	atomic_store_explicit(&kept->is_exact, 1, memory_order_release);
	return true;
}

bool ch__os_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
	int error = pthread_atfork(prepare, parent, child);
	if (error)
		errno = error;
	return ch__os_note(error == 0, "pthread_atfork");
}

int ch__os_process_id(void)
{
	return getpid();
}

const char *ch__os_environment(const char *name)
{
	return secure_getenv(name);
}

/* Whether the file that was found is the one that is held, or was let go. */
static bool is_held(const struct stat *found, const struct ch__os_held *file)
{
	return found->st_dev == CH_LOAD_RELAXED(&file->device) &&
	       found->st_ino == CH_LOAD_RELAXED(&file->inode);
}

bool ch__os_holds(const struct ch__os_held *file)
{
	struct stat found;
	int fd = ch__os_fd_of(file);
	if (fd >= 0 && fstat(fd, &found) == 0 && is_held(&found, file))
		return true;
	errno = EBADF;
	return false;
}

bool ch__os_hold(struct ch__os_held *file, int fd)
{
	struct stat found;
	if (fd >= 0 && fstat(fd, &found) != 0) {
		ch__os_close(fd);
		fd = -1;
	}
	if (fd >= 0) {
		CH_STORE_RELAXED(&file->device, found.st_dev);
		CH_STORE_RELAXED(&file->inode, found.st_ino);
	}
	CH_STORE_RELAXED(&file->fd, fd);
	return fd >= 0;
}

void ch__os_let_go(struct ch__os_held *file)
{
	int error = errno;
	if (ch__os_holds(file))
		ch__os_close(ch__os_fd_of(file));
	ch__os_hold(file, -1);
	errno = error;
}

int ch__os_fd_apart(int fd)
{
	if (fd < 0 || fd > STDERR_FILENO)
		return fd;
	int apart = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	ch__os_close(fd);
	return apart;
}

int ch__os_new_memfd(void)
{
	/* NOEXEC_SEAL forbids to execute the file itself, not to map it; kernels before 6.3 do not
	 * know it. */
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	long fd = syscall(SYS_memfd_create, "codeheap", flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL)
		fd = syscall(SYS_memfd_create, "codeheap", flags);
	ch__os_note(fd >= 0, "memfd_create");
	return (int)fd;
}

/* Makes a file without a name. A file system mounted noexec is refused: no mapping could run. */
int ch__os_new_nameless_file(const char *folder)
{
	struct statvfs system;
	int cancel = ch__cancel_hold();
	int fd = open(folder, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	ch__cancel_allow(cancel);
	ch__os_note(fd >= 0, "open with O_TMPFILE");
	if (fd >= 0 && fstatvfs(fd, &system) == 0 && (system.f_flag & ST_NOEXEC)) {
		ch__os_close(fd);
		errno = EPERM;
		return -1;
	}
	return fd;
}

bool ch__os_fix_size(int fd, size_t bytes, bool is_memfd)
{
	/* Sealed against resizing: nobody who finds the descriptor can make code pages raise
	 * SIGBUS. Other files have no seals. */
	return ch__os_note(ftruncate(fd, (off_t)bytes) == 0, "ftruncate") &&
	       (!is_memfd || fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0);
}

bool ch__os_fd_commit(const struct ch__os_held *file, size_t offset, size_t bytes)
{
	if (!ch__os_holds(file))
		return false;
	/* The file has its full size already: RLIMIT_FSIZE, a limit of growth, does not matter. */
	int result, cancel = ch__cancel_hold();
	bool is_masked = false;
	sigset_t all, before;
	sigfillset(&all);
	/* Some kernels end the call at any signal, and take the memory back. Under a timer of the
	 * program's no try of a large range would end: the next tries have no signals. */
	while ((result = fallocate(ch__os_fd_of(file), 0, (off_t)offset, (off_t)bytes)) != 0 &&
	       errno == EINTR) {
		pthread_sigmask(SIG_SETMASK, &all, is_masked ? NULL : &before);
		is_masked = true;
	}
	if (is_masked)
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	ch__cancel_allow(cancel);
	return ch__os_note(result == 0, "fallocate");
}

void ch__os_close(int fd)
{
	int error = errno, cancel = ch__cancel_hold();
	close(fd);
	ch__cancel_allow(cancel);
	errno = error;
}

bool ch__os_self_memory(struct ch__os_held *file)
{
	int cancel = ch__cancel_hold();
	/* The folder of the process is its first thread's, which has no memory after its end. A
	 * sandbox may allow that folder alone. */
	int fd = open("/proc/thread-self/mem", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	ch__cancel_allow(cancel);
	ch__os_note(fd >= 0, "open of /proc/self/mem");
	return ch__os_hold(file, ch__os_fd_apart(fd));
}

/* Not pwrite, which is a cancellation point. */
bool ch__os_self_write(const struct ch__os_held *file, void *to, const void *from, size_t bytes)
{
	for (size_t done = 0; done < bytes;) {
		if (!ch__os_holds(file))
			return false;
		long n = syscall(SYS_pwrite64, ch__os_fd_of(file), (const uint8_t *)from + done,
				 bytes - done, (off_t)(uintptr_t)to + (off_t)done);
		if (n > 0)
			done += (size_t)n;
		else if (n == 0 || errno != EINTR)
			return ch__os_note(false, "write to /proc/self/mem");
	}
	return true;
}

static bool is_same(const struct stat *one, const struct stat *other)
{
	return one->st_dev == other->st_dev && one->st_ino == other->st_ino;
}

/* A name in the folder is a descriptor's number; "." and ".." pass for 0. If the folder cannot be
 * read, the answer is true. /proc/self/fd ends with the first thread. */
static bool is_open_here(const struct stat *file)
{
	DIR *folder = opendir("/proc/thread-self/fd");
	const struct dirent *entry;
	struct stat found;
	bool is_open;
	if (!folder)
		return true;
	do {
		errno = 0;
		entry = readdir(folder);
		is_open = entry ? fstat(atoi(entry->d_name), &found) == 0 && is_same(&found, file)
				: errno != 0;
	} while (entry && !is_open);
	closedir(folder);
	return is_open;
}

static int64_t ns_of(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Whether the file is open here, or was written since this process began, by the clock of files, or
 * some ms before. Where nobody knows the beginning, the answer is true. */
static bool is_of_this_process(const struct stat *found)
{
	enum { STARTED = 20 }; /* spaces between the end of the name and the field */
	char text[1024];
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	text[n < 0 ? 0 : n] = 0;
	const char *at = strrchr(text, ')');
	for (int i = 0; at && i < STARTED; i++)
		at = strchr(at + 1, ' ');
	long ticks = sysconf(_SC_CLK_TCK);
	if (!at || ticks <= 0)
		return true;
	/* A file has the time of the last tick, and the start time is cut to a whole tick. */
	const int64_t slack_ns = 20000000;
	int64_t after_boot = strtoll(at, NULL, 10) * (1000000000 / ticks);
	int64_t birth = ns_of(CLOCK_REALTIME) - ns_of(CLOCK_BOOTTIME) + after_boot - slack_ns;
	int64_t changed = (int64_t)found->st_mtim.tv_sec * 1000000000 + found->st_mtim.tv_nsec;
	return changed >= birth || is_open_here(found);
}

/* A file at a sink's name may be somebody's trap, or the leftover of an earlier process with the
 * same number (docs/design.md, section 8). Only a leftover is replaced. Of files in the process,
 * `own` alone is replaced. Without `own`, each leftover is. */
static bool remove_leftover(const char *path, const struct ch__os_held *own, uint64_t bytes)
{
	struct stat found;
	if (lstat(path, &found) != 0)
		return errno == ENOENT;
	bool is_ours = S_ISREG(found.st_mode) && found.st_uid == geteuid();
	if (is_ours && (!own || (is_held(&found, own) && (uint64_t)found.st_size == bytes) ||
			!is_of_this_process(&found)))
		return unlink(path) == 0;
	errno = is_ours ? EBUSY : EEXIST;
	return false;
}

/* Looks only when the open found a file: behind a look that finds none, somebody may make one. */
int ch__os_file_create(const char *path, const struct ch__os_held *own, uint64_t own_bytes)
{
	enum { FLAGS = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, MODE = 0600 };
	int cancel = ch__cancel_hold();
	int fd = open(path, FLAGS, MODE);
	if (fd < 0 && errno == EEXIST && remove_leftover(path, own, own_bytes))
		fd = open(path, FLAGS, MODE);
	bool is_made = fd >= 0;
	fd = ch__os_fd_apart(fd);
	if (is_made && fd < 0) /* else the next try takes the file for another compiler's */
		unlink(path);
	ch__cancel_allow(cancel);
	ch__os_note(fd >= 0, NULL); /* not the call that was refused before */
	return fd;
}

bool ch__os_file_hold(int fd, struct ch__os_held *file)
{
	return ch__os_hold(file, fd) && fcntl(fd, F_SETFL, O_APPEND) == 0;
}

int64_t ch__os_file_bytes(int fd)
{
	struct stat found;
	return fstat(fd, &found) == 0 ? (int64_t)found.st_size : -1;
}

int64_t ch__os_file_read(int fd, uint64_t offset, void *bytes, size_t n)
{
	size_t done = 0;
	ssize_t got;
	int cancel = ch__cancel_hold();
	do {
		got = pread(fd, (uint8_t *)bytes + done, n - done, (off_t)(offset + done));
		done += got > 0 ? (size_t)got : 0;
	} while (got < 0 ? errno == EINTR : got && done < n);
	ch__cancel_allow(cancel);
	return got < 0 ? -1 : (int64_t)done;
}

static size_t write_all(int fd, const uint8_t *bytes, size_t n)
{
	size_t done = 0;
	while (done < n) {
		ssize_t written = write(fd, bytes + done, n - done);
		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0) {
			errno = written == 0 ? ENOSPC : errno;
			break;
		}
		done += (size_t)written;
	}
	return done;
}

/* A write beyond RLIMIT_FSIZE raises SIGXFSZ in this thread, a write to a closed pipe SIGPIPE. Both
 * stay blocked and are taken back, except a signal of somebody else, pending before the write. Only
 * a signal that was blocked can be pending, so most threads need not ask the system. */
size_t ch__os_file_put(int fd, const void *bytes, size_t n)
{
	static const struct timespec at_once = {0, 0};
	sigset_t ours, before, pending;
	sigemptyset(&ours);
	sigaddset(&ours, SIGXFSZ);
	sigaddset(&ours, SIGPIPE);
	sigemptyset(&pending);
	int cancel = ch__cancel_hold();
	pthread_sigmask(SIG_BLOCK, &ours, &before);
	if (sigismember(&before, SIGXFSZ) || sigismember(&before, SIGPIPE))
		sigpending(&pending);
	size_t done = write_all(fd, bytes, n);
	int error = errno;
	if (done < n && (error == EFBIG || error == EPIPE)) {
		int raised = error == EFBIG ? SIGXFSZ : SIGPIPE;
		sigset_t one;
		sigemptyset(&one);
		sigaddset(&one, raised);
		if (!sigismember(&pending, raised))
			sigtimedwait(&one, NULL, &at_once);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	ch__cancel_allow(cancel);
	errno = error;
	return done;
}

bool ch__os_file_is_at(int fd, const char *path)
{
	struct stat ours, found;
	if (fstat(fd, &ours) != 0 || lstat(path, &found) != 0)
		return false;
	if (is_same(&ours, &found))
		return true;
	errno = EEXIST;
	return false;
}

bool ch__os_file_rename(const char *from, const char *to)
{
	return rename(from, to) == 0;
}

void ch__os_file_remove(const char *path)
{
	unlink(path);
}
