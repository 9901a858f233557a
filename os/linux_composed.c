/* SPDX-License-Identifier: MIT
 * linux_composed.c: functions of the gate that are made of others, which lie in other files: so a
 * test can make each of the others fail (tests/support/os_failing.h). No lock. */
#include "os/linux.h"

#include <sys/resource.h>

void *ch__os_private_near(size_t bytes, uintptr_t hint)
{
	void *at = ch__os_reserve(bytes, ch__os_page_bytes(), 0, hint);
	if (at && !ch__os_protect(at, bytes, true)) {
		ch__os_unreserve(at, bytes);
		return NULL;
	}
	return at;
}

void ch__os_unmap(void *at, size_t bytes)
{
	ch__os_unreserve(at, CH_ROUND_UP(bytes, ch__os_page_bytes()));
}

bool ch__os_duplicate_rw(void *from, size_t bytes, void *to)
{
	return ch__os_duplicate(from, bytes, to) && ch__os_protect(to, bytes, true);
}

/* Duplicates from..at + bytes somewhere, since mremap takes no offset. Moves the tail onto `at`. */
bool ch__os_revive_from(void *from, void *at, size_t bytes)
{
	size_t skip = (size_t)((uint8_t *)at - (uint8_t *)from);
	uint8_t *copy = ch__os_duplicate(from, skip + bytes, NULL);
	bool is_moved = copy && ch__os_move_over(copy + skip, bytes, at);
	if (copy)
		ch__os_unreserve(copy, is_moved ? skip : skip + bytes);
	return is_moved;
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
	int fd = ch__os_new_memfd();
	bool is_memfd = fd >= 0;
	for (unsigned i = 0; fd < 0 && i < sizeof folders / sizeof *folders; i++)
		fd = ch__os_new_nameless_file(folders[i]);
	if ((fd = ch__os_fd_apart(fd)) < 0)
		return false;
	if (!ch__os_fix_size(fd, bytes, is_memfd)) {
		ch__os_close(fd);
		return false;
	}
	return ch__os_hold(file, fd);
}
