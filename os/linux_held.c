/* SPDX-License-Identifier: MIT
 * linux_held.c: files that the library holds for long, by number and identity, because the program
 * may close any number and open another file there: memory without a name, and the process's own
 * memory (/proc/self/mem). No lock. */
#define _GNU_SOURCE
#include "os/linux.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3, include/uapi/linux/memfd.h */
#endif

bool ch__is_held(const struct stat *found, const struct ch__os_held *file)
{
	return found->st_dev == CH_LOAD_RELAXED(&file->device) &&
	       found->st_ino == CH_LOAD_RELAXED(&file->inode);
}

bool ch__os_holds(const struct ch__os_held *file)
{
	struct stat found;
	int fd = ch__os_fd_of(file);
	if (fd >= 0 && fstat(fd, &found) == 0 && ch__is_held(&found, file))
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

static int new_memfd(void)
{
	if (ch__os_may_fail())
		return -1;
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
static int new_nameless_file(const char *folder)
{
	struct statvfs system;
	if (ch__os_may_fail())
		return -1;
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

bool ch__os_memfd(size_t bytes, struct ch__os_held *file)
{
	static const char *const folders[] = {"/dev/shm", "/tmp"};
	struct rlimit limit;
	ch__os_hold(file, -1);
	/* A file operation beyond the limit raises SIGXFSZ, which kills. */
	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
		errno = EFBIG;
		return false;
	}
	int fd = new_memfd();
	bool is_memfd = fd >= 0;
	for (unsigned i = 0; fd < 0 && i < sizeof folders / sizeof *folders; i++)
		fd = new_nameless_file(folders[i]);
	if ((fd = ch__os_fd_apart(fd)) < 0)
		return false;
	/* Sealed against resizing: nobody who finds the descriptor can make code pages raise
	 * SIGBUS. Other files have no seals. */
	if (ch__os_may_fail() || !ch__os_note(ftruncate(fd, (off_t)bytes) == 0, "ftruncate") ||
	    (is_memfd && fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) != 0)) {
		ch__os_close(fd);
		return false;
	}
	return ch__os_hold(file, fd);
}

bool ch__os_fd_commit(const struct ch__os_held *file, size_t offset, size_t bytes)
{
	if (ch__os_may_fail() || !ch__os_has_memory(bytes) || !ch__os_holds(file))
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
	if (ch__os_may_fail())
		return ch__os_hold(file, -1);
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
		size_t more = ch__os_pretended.between_bytes ? 1 : bytes - done;
		if (ch__os_pretended.between_bytes && done)
			ch__os_pretended.between_bytes(to);
		long n = syscall(SYS_pwrite64, ch__os_fd_of(file), (const uint8_t *)from + done,
				 more, (off_t)(uintptr_t)to + (off_t)done);
		if (n > 0)
			done += (size_t)n;
		else if (n == 0 || errno != EINTR)
			return ch__os_note(false, "write to /proc/self/mem");
	}
	return true;
}
