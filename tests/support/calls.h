/* SPDX-License-Identifier: MIT
 * calls.h: calls of the public header in the form in which most tests make them. This header has
 * no tests. */
#pragma once

#include "tests/support/block_at.h"
#include "tests/support/harness.h"

#include <pthread.h>

static inline struct ch_info block_info(struct ch_block block)
{
	struct ch_info info;
	memset(&info, 0xaa, sizeof info); /* the call writes each member */
	info.size = sizeof info;
	CHECK_EQ(ch_block_info(block, &info), CH_OK);
	return info;
}

/* Joins a thread that a cycle may wait for. */
static inline void join_parked(pthread_t thread)
{
	ch_thread_park();
	CHECK_EQ(pthread_join(thread, NULL), 0);
	ch_thread_unpark();
}
