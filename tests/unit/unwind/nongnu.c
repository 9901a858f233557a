/* SPDX-License-Identifier: MIT
 * nongnu.c: the objects for pages in libunwind's list. A process never frees objects, so the next
 * heap takes the objects of an ended heap. tests/tool/libunwind.c shows that libunwind reads the
 * objects. */
#define _GNU_SOURCE
#include "os/locks/ranks.h"
#include "os/os.h"
#include "tests/support/harness.h"
#include "sinks/sinks.h"
#include "unwind/nongnu.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Without memory of the system: objects that nobody has. */
static struct ch__nongnu_object *take_free(void)
{
	ch__os_fail_at(1, true);
	struct ch__nongnu_object *object = ch__nongnu_take();
	ch__os_fail_at(0, false);
	return object;
}

/* A page of the system has many objects. */
TEST(objects_of_a_page_are_all_taken_before_the_next_page)
{
	size_t a_page = ch__os_page_bytes() / sizeof(struct ch__nongnu_object);
	CHECK(ch__nongnu_take() != NULL);
	for (size_t i = 1; i < a_page; i++)
		CHECK(take_free() != NULL);
	CHECK(take_free() == NULL);
}

TEST(objects_that_are_given_back_are_those_that_are_taken)
{
	struct ch__nongnu_object *one = ch__nongnu_take(), *other = ch__nongnu_take();
	CHECK(one && other && one != other);
	while (take_free())
		continue;
	ch__nongnu_give(one);
	ch__nongnu_give(other);
	struct ch__nongnu_object *first = take_free(), *second = take_free();
	CHECK((first == one && second == other) || (first == other && second == one));
	CHECK(take_free() == NULL);
}

/* A walk that read the start before a fill, and the end behind it, takes no pc for the object's. */
TEST(object_that_covers_nothing_begins_behind_all_code)
{
	struct ch__nongnu_object object = {.start = 4096, .end = 8192};
	ch__nongnu_give(&object);
	CHECK_EQ(object.start, UINTPTR_MAX);
	CHECK_EQ(object.end, 0);
}

static _Atomic(int) tid;
static void *take_one(void *arg)
{
	(void)arg;
	atomic_store(&tid, (int)gettid());
	struct ch__nongnu_object *taken = ch__nongnu_take();
	CHECK(taken != NULL);
	ch__nongnu_give(taken);
	return NULL;
}

/* The child would have a list that another thread was changing, and a lock that nobody lets go. */
TEST(objects_stay_as_they_are_while_the_process_forks)
{
	pthread_t thread;
	ch__sinks_fork_files_prepare();
	CHECK_EQ(pthread_create(&thread, NULL, take_one, NULL), 0);
	TEST_UNTIL(atomic_load(&tid) && thread_is_asleep(atomic_load(&tid)))
		usleep(1000);
	pid_t child = fork_child();
	if (child == 0) {
		ch__sinks_fork_files_done(true);
		take_one(NULL);
		_exit(0);
	}
	ch__sinks_fork_files_done(false);
	expect_exit(child, 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void take(void)
{
	(void)ch__nongnu_take();
}

static void give(void)
{
	static struct ch__nongnu_object object;
	ch__nongnu_give(&object);
}

/* Checked builds refuse a second lock of a rank, and so show that a call takes the lock. */
static bool takes_the_lock(void (*call)(void))
{
	int status;
	pid_t child = fork_child();
	if (child == 0) {
		ch__rank_note(CH__RANK_UNWINDER, true);
		call();
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

TEST(objects_are_taken_and_given_under_their_lock)
{
	CHECK(takes_the_lock(take));
	CHECK(takes_the_lock(give));
}

/* The lowest 2 GiB are full. Valgrind maps there what may lie anywhere. */
void *__wrap_ch__os_private_near(size_t bytes, uintptr_t at);
void *__wrap_ch__os_private_near(size_t bytes, uintptr_t at)
{
	(void)at;
	void *high = (void *)((uintptr_t)1 << 36);
	void *got = mmap(high, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return got == MAP_FAILED ? NULL : got;
}

static void add_nothing(struct ch__nongnu_object *object)
{
	(void)object;
}

TEST(proof_without_a_low_address_has_no_memory)
{
	static const struct ch__frame_shape shapes[CH__FRAMES];
	CHECK_EQ(ch__nongnu_prove(shapes), ENOSYS);
	ch__nongnu.add = add_nothing;
	CHECK_EQ(ch__nongnu_prove(shapes), ENOMEM);
}
