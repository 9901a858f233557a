/* SPDX-License-Identifier: MIT
 * linux_random.c: random bytes, of the kernel where it gives them. No lock. */
#define _GNU_SOURCE
#include "os/linux.h"
#include "os/os.h"

#include <sys/random.h>
#include <unistd.h>

/* It chooses places of mappings and the keys of hashes: where the kernel gives nothing, time and
 * addresses will do. */
void ch__os_random(void *bytes, size_t n)
{
	uint8_t *at = bytes;
	int cancel = ch__cancel_hold();
	ssize_t got = getrandom(bytes, n, GRND_NONBLOCK);
	ch__cancel_allow(cancel);
	if (got == (ssize_t)n)
		return;
	uint64_t state = ch__os_now_ns() ^ (uintptr_t)&state ^ (uint64_t)getpid() << 32;
	for (size_t i = 0; i < n; i++) {
		state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		at[i] = (uint8_t)(state >> 56);
	}
}
