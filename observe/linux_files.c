/* SPDX-License-Identifier: MIT
 * linux_files.c: files of observers: locked files of a living process, files to read, and files
 * named by the user. Not async-signal-safe. No lock. */
#define _GNU_SOURCE
#include "observe/system.h"
#include "os/files.h"
#include "os/linux.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* The lock belongs to the open file, not to the process. So closing another descriptor of the same
 * file keeps the lock; the older F_SETLK would lose the lock then. */
static bool is_locked_by_another(const char *path)
{
	struct stat found;
	if (lstat(path, &found) != 0 || !S_ISREG(found.st_mode))
		return false;
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	bool is_locked = fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
	if (fd >= 0)
		close(fd);
	return is_locked;
}

int ch__os_file_create_locked(const char *path, bool *is_locked)
{
	*is_locked = false;
	int cancel = ch__cancel_hold();
	bool is_anothers = is_locked_by_another(path);
	ch__cancel_allow(cancel);
	if (is_anothers) {
		errno = EBUSY;
		return -1;
	}
	int fd = ch__os_file_create(path, NULL, 0);
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	*is_locked = fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0;
	return fd;
}

void ch__os_file_unlock(int fd)
{
	struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
	(void)fcntl(fd, F_OFD_SETLK, &lock);
}

bool ch__os_file_has_name(int fd)
{
	struct stat ours;
	errno = ENOENT;
	return fstat(fd, &ours) == 0 && ours.st_nlink > 0;
}

bool ch__os_file_rewind(int fd)
{
	return lseek(fd, 0, SEEK_SET) == 0;
}

bool ch__os_file_close(int fd)
{
	int cancel = ch__cancel_hold();
	bool is_closed = close(fd) == 0 || errno == EINTR;
	ch__cancel_allow(cancel);
	return is_closed;
}

/* Without O_NONBLOCK, opening a pipe would wait for a writer. */
int ch__os_file_open(const char *path)
{
	struct stat found;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return -1;
	if (fstat(fd, &found) == 0 && S_ISREG(found.st_mode))
		return fd;
	close(fd);
	errno = EINVAL;
	return -1;
}

/* --- files that the user names --- */

void ch__os_file_take_mode(int fd, const char *path)
{
	enum { PERMISSIONS = 0777 };
	struct stat found;
	if (lstat(path, &found) == 0 && S_ISREG(found.st_mode))
		(void)!fchmod(fd, found.st_mode & PERMISSIONS);
}

bool ch__os_file_is_plain(const char *path)
{
	struct stat found;
	return lstat(path, &found) != 0 || S_ISREG(found.st_mode);
}

/* The standard stream that writes to the regular file at the path, or -1. */
static int stream_to(const char *path)
{
	struct stat found, stream;
	bool is_file = stat(path, &found) == 0 && S_ISREG(found.st_mode);
	for (int fd = 0; is_file && fd <= STDERR_FILENO; fd++)
		if (fstat(fd, &stream) == 0 && stream.st_dev == found.st_dev &&
		    stream.st_ino == found.st_ino && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
			return fd;
	return -1;
}

int ch__os_file_straight(const char *path)
{
	enum { FLAGS = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, MODE = 0600 };
	int cancel = ch__cancel_hold(), stream = stream_to(path);
	/* The program writes on where this call ends: the stream has one place in its file. */
	int fd = stream >= 0 ? fcntl(stream, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)
			     : ch__os_fd_apart(open(path, FLAGS, MODE));
	ch__cancel_allow(cancel);
	return fd;
}

const char *ch__os_process_name(void)
{
	return program_invocation_short_name;
}
