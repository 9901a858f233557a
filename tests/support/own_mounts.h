/* SPDX-License-Identifier: MIT
 * own_mounts.h: mounts that no other process sees. Linux only; the including file defines
 * _GNU_SOURCE. */
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static inline bool own_mounts_write(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	bool done = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	close(fd);
	return done;
}

/* A user who is not root becomes root of a namespace of users; files made there need an owner in
 * the namespace. Returns whether the kernel allows the mounts; if not, errno says why. */
static inline bool own_mounts(void)
{
	char users[40], groups[40];
	unsigned uid = getuid(), gid = getgid();
	snprintf(users, sizeof users, "%u %u 1", uid, uid);
	snprintf(groups, sizeof groups, "%u %u 1", gid, gid);
	if (unshare(CLONE_NEWNS) != 0 && (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 ||
					  !own_mounts_write("/proc/self/uid_map", users) ||
					  !own_mounts_write("/proc/self/setgroups", "deny") ||
					  !own_mounts_write("/proc/self/gid_map", groups)))
		return false;
	return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}
