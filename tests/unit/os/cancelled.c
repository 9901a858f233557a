/* SPDX-License-Identifier: MIT
 * cancelled.c: calls of the gate to the OS in a thread that is cancelled already: the C library
 * ends the thread at the first system call that it may, unless the gate holds that off. */
#define _GNU_SOURCE
#include "os/files.h"
#include "os/os.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[] = "/tmp/codeheap-cancelled-XXXXXX";
static char path[sizeof folder + 8];
static struct ch__os_held held;
static int fd;

static void take_random_bytes(void)
{
	uint64_t word;
	ch__os_random(&word, sizeof word);
}

/* Without memfd_create. */
static void make_nameless_file(void)
{
	ch__os_fail_at(1, false);
	bool is_made = ch__os_memfd(ch__os_page_bytes(), &held);
	ch__os_fail_at(0, false);
	if (is_made)
		ch__os_let_go(&held);
}

static void commit(void)
{
	(void)ch__os_fd_commit(&held, 0, ch__os_page_bytes());
}

static void open_self_memory(void)
{
	struct ch__os_held memory;
	if (ch__os_self_memory(&memory))
		ch__os_let_go(&memory);
}

static void create_file(void)
{
	fd = ch__os_file_create(path, NULL, 0);
}

static void put(void)
{
	(void)ch__os_file_put(fd, "x", 1);
}

static void read_file(void)
{
	char byte;
	(void)ch__os_file_read(fd, 0, &byte, 1);
}

struct call {
	void (*function)(void);
	bool is_back;
};

static void *call_while_cancelled(void *arg)
{
	struct call *call = arg;
	pthread_cancel(pthread_self());
	call->function();
	call->is_back = true;
	pthread_testcancel();
	return NULL;
}

static void expect_back(void (*function)(void), const char *name)
{
	struct call call = {function, false};
	pthread_t thread;
	void *result;
	CHECK_EQ(pthread_create(&thread, NULL, call_while_cancelled, &call), 0);
	CHECK_EQ(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
	if (!call.is_back)
		FAIL("the thread ended in %s", name);
}
#define EXPECT_BACK(function) expect_back(function, #function)

TEST(thread_that_is_cancelled_comes_back_from_each_call)
{
	CHECK(mkdtemp(folder));
	snprintf(path, sizeof path, "%s/file", folder);
	EXPECT_BACK(take_random_bytes);
	EXPECT_BACK(make_nameless_file);
	EXPECT_BACK(open_self_memory);
	CHECK(ch__os_memfd(ch__os_page_bytes(), &held));
	EXPECT_BACK(commit);
	ch__os_let_go(&held);
	EXPECT_BACK(create_file);
	CHECK(fd >= 0);
	EXPECT_BACK(put);
	EXPECT_BACK(read_file);
	ch__os_close(fd);
	ch__os_file_remove(path);
	rmdir(folder);
}
