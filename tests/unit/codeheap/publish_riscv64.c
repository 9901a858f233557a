/* SPDX-License-Identifier: MIT
 * publish_riscv64.c: publishing code has each hart fetch all the code's bytes anew. This program
 * replaces the C library's function that asks the kernel for the flush, and notes the ranges. */
#define _GNU_SOURCE
#include "tests/support/flush_notes.h"

#include <sys/cachectl.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned local;

int __riscv_flush_icache(void *from, void *to, unsigned long flags)
{
	if (flags)
		local++;
	note_flush((uintptr_t)from, (uintptr_t)to);
	return (int)syscall(SYS_riscv_flush_icache, from, to, flags);
}

TEST(each_byte_that_is_published_is_fetched_anew)
{
	expect_a_new_block_is_noted();
}

TEST(each_byte_that_is_published_is_fetched_anew_where_views_need_no_step)
{
	expect_a_published_block_is_noted();
}

TEST(serializing_function_asks_for_its_own_hart)
{
	unsigned before = local;
	ch__arch_serialize();
	CHECK_EQ(local, before + 1);
}
