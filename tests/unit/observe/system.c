/* SPDX-License-Identifier: MIT
 * system.c: the system calls that only observers make. Observers' threads take no signal of the
 * process, and a file that the user names is open to the user only. */
#define _GNU_SOURCE
#include "observe/system.h"
#include "os/files.h"
#include "tests/support/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

/* --- threads --- */

static _Atomic(unsigned) handled;

static void note_signal(int signal)
{
	(void)signal;
	handled++;
}

struct look {
	_Atomic(uint32_t) state; /* 1 the worker runs, 2 it is to end */
	sigset_t blocked;
	size_t stack_bytes;
	int thread_id;
	char name[32];
};

static void look_around(void *arg)
{
	struct look *look = arg;
	const void *low, *high;
	pthread_sigmask(SIG_BLOCK, NULL, &look->blocked);
	if (ch__os_stack_bounds(&low, &high))
		look->stack_bytes = (size_t)((const char *)high - (const char *)low);
	pthread_getname_np(pthread_self(), look->name, sizeof look->name);
	look->thread_id = ch__os_thread_id();
	atomic_store(&look->state, 1);
	ch__os_futex_wake(&look->state);
	while (atomic_load(&look->state) != 2)
		ch__os_futex_wait(&look->state, 1, 0);
}

/* What the process's thread-local data need of a stack. */
static size_t least_stack;

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
			  void *arg)
{
	size_t bytes = SIZE_MAX;
	if (attributes)
		CHECK_EQ(pthread_attr_getstacksize(attributes, &bytes), 0);
	return bytes < least_stack ? EINVAL : __real_pthread_create(thread, attributes, run, arg);
}

static unsigned joins;

int __real_pthread_join(pthread_t, void **);
int __wrap_pthread_join(pthread_t, void **);
int __wrap_pthread_join(pthread_t thread, void **result)
{
	joins++;
	return __real_pthread_join(thread, result);
}

static void wait_until_it_looked(struct look *look)
{
	while (atomic_load(&look->state) == 0)
		ch__os_futex_wait(&look->state, 0, 0);
}

/* All threads of the process block the signal, which stays pending: the worker must not take the
 * signal. */
TEST(worker_blocks_all_signals_and_has_a_small_stack)
{
	struct look look = {0};
	struct ch__os_thread worker;
	sigset_t usr1, before, after, pending;
	signal(SIGUSR1, note_signal);
	pthread_sigmask(SIG_BLOCK, NULL, &before);
	CHECK(ch__os_thread_start(&worker, look_around, &look));
	pthread_sigmask(SIG_BLOCK, NULL, &after);
	for (int signal = 1; signal < SIGRTMAX; signal++)
		CHECK_EQ(sigismember(&before, signal), sigismember(&after, signal));
	wait_until_it_looked(&look);
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &usr1, NULL);
	CHECK_EQ(kill(getpid(), SIGUSR1), 0);
	usleep(20000);
	CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1));
	CHECK_EQ(handled, 0);
	CHECK(sigismember(&look.blocked, SIGPROF) && sigismember(&look.blocked, SIGTERM));
	CHECK(look.thread_id != ch__os_thread_id());
	CHECK_STR(look.name, "codeheap");
	CHECK(look.stack_bytes > 0 && look.stack_bytes <= 1 << 20);
	atomic_store(&look.state, 2);
	ch__os_futex_wake(&look.state);
	CHECK(ch__os_thread_join(&worker, UINT64_MAX));
	/* The thread ends: a join returns a little before the kernel has forgotten the thread. */
	while (ch__os_thread_signal(look.thread_id, 0, NULL))
		usleep(1000);
	pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
	CHECK_EQ(handled, 1);
}

static struct ch__os_action before_ours;
static int order[2], heard;

static void hear(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	int nth = heard++;
	order[nth % 2] = info->si_value.sival_int;
}

static void pass_on(int signal, void *info, void *context)
{
	(void)signal;
	ch__os_profile_chain(info, context, &before_ours);
}

/* The kernel delivers the signal of the thread first. That of the process waits until the handler
 * has ended. */
TEST(sigprof_of_others_comes_to_their_handler_in_order)
{
	struct sigaction theirs = {.sa_sigaction = hear, .sa_flags = SA_SIGINFO};
	sigset_t prof;
	CHECK_EQ(sigaction(SIGPROF, &theirs, NULL), 0);
	CHECK(ch__os_signal_install(SIGPROF, pass_on, &before_ours, CH__OS_PLAIN));
	sigemptyset(&prof);
	sigaddset(&prof, SIGPROF);
	pthread_sigmask(SIG_BLOCK, &prof, NULL);
	CHECK_EQ(sigqueue(getpid(), SIGPROF, (union sigval){.sival_int = 2}), 0);
	CHECK_EQ(pthread_sigqueue(pthread_self(), SIGPROF, (union sigval){.sival_int = 1}), 0);
	pthread_sigmask(SIG_UNBLOCK, &prof, NULL);
	TEST_UNTIL(heard == 2)
		usleep(1000);
	CHECK(order[0] == 1 && order[1] == 2);
}

static void count_up(void *arg)
{
	atomic_fetch_add((_Atomic(uint32_t) *)arg, 1);
}

static void join_nothing_in_a_child(void *arg)
{
	struct ch__os_thread again;
	const _Atomic(uint32_t) *count = arg;
	/* ThreadSanitizer allows no threads in a child of a process with threads. */
	if (!CH_TSAN && !ch__os_thread_start(&again, count_up, arg))
		_exit(2);
	if (!CH_TSAN && !ch__os_thread_join(&again, UINT64_MAX))
		_exit(4);
	if (atomic_load(count) != !CH_TSAN)
		_exit(3);
	raise(SIGKILL);
}

TEST(worker_has_a_larger_stack_where_thread_local_data_need_it)
{
	struct look look = {0};
	struct ch__os_thread worker;
	least_stack = 1 << 20;
	CHECK(ch__os_thread_start(&worker, look_around, &look));
	wait_until_it_looked(&look);
	CHECK(look.stack_bytes >= least_stack);
	atomic_store(&look.state, 2);
	ch__os_futex_wake(&look.state);
	CHECK(ch__os_thread_join(&worker, UINT64_MAX));
}

TEST(worker_that_cannot_start_says_so_and_a_child_has_its_own)
{
	struct ch__os_thread worker;
	_Atomic(uint32_t) count = 0;
	errno = 0;
	ch__os_fail_as(1, false, EAGAIN);
	CHECK(!ch__os_thread_start(&worker, count_up, &count));
	CHECK_EQ(errno, EAGAIN);
	ch__os_fail_at(0, false);
	CHECK_EQ(count, 0);
	struct look look = {0};
	CHECK(ch__os_thread_start(&worker, look_around, &look));
	wait_until_it_looked(&look);
	expect_signal(join_nothing_in_a_child, &count, SIGKILL);
	atomic_store(&look.state, 2);
	ch__os_futex_wake(&look.state);
	CHECK(ch__os_thread_join(&worker, UINT64_MAX));
	for (unsigned i = 1; i <= 1000; i++) {
		CHECK(ch__os_thread_start(&worker, count_up, &count));
		CHECK(ch__os_thread_join(&worker, UINT64_MAX));
		CHECK_EQ(count, i);
	}
}

/* The system keeps the stack of a thread that nobody joined; a second join is no call to make. */
TEST(worker_is_joined_once_whoever_waits_for_it)
{
	struct ch__os_thread worker = {0};
	_Atomic(uint32_t) count = 0;
	CHECK(ch__os_thread_join(&worker, 0));
	CHECK_EQ(joins, 0);
	CHECK(ch__os_thread_start(&worker, count_up, &count));
	for (int i = 0; i < 2; i++) {
		CHECK(ch__os_thread_join(&worker, UINT64_MAX));
		CHECK_EQ(joins, 1);
	}
}

static void rest(void *arg)
{
	usleep(*(const useconds_t *)arg);
}

static uint64_t processor_us(void)
{
	struct timespec used;
	CHECK_EQ(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used), 0);
	return (uint64_t)used.tv_sec * 1000000 + (uint64_t)used.tv_nsec / 1000;
}

TEST(wait_for_the_end_of_a_worker_uses_no_time)
{
	struct ch__os_thread worker;
	useconds_t rest_us = 300000;
	CHECK(ch__os_thread_start(&worker, rest, &rest_us));
	uint64_t before = processor_us();
	CHECK(!ch__os_thread_join(&worker, ch__os_now_ns() + 20000000));
	CHECK(ch__os_thread_join(&worker, ch__os_now_ns() + UINT64_C(60000000000)));
	uint64_t used = processor_us() - before;
	if (used > rest_us / 3)
		FAIL("a wait for %u us uses %llu us of a processor", (unsigned)rest_us,
		     (unsigned long long)used);
	CHECK(ch__os_thread_join(&worker, UINT64_MAX));
}

/* --- files --- */

static char folder[] = "/tmp/codeheap-observe-XXXXXX", path[64];

static void make_folder(void)
{
	CHECK(mkdtemp(folder));
	snprintf(path, sizeof path, "%s/file", folder);
}

static void remove_folder(void)
{
	ch__os_file_remove(path);
	CHECK_EQ(rmdir(folder), 0);
}

TEST(file_that_the_user_names_is_its_owner_s_alone)
{
	struct stat s;
	make_folder();
	umask(0);
	int fd = ch__os_file_straight(path);
	CHECK(fd >= 0 && fstat(fd, &s) == 0);
	CHECK_EQ(s.st_mode & 07777, 0600);
	CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
	close(fd);
	remove_folder();
}

/* A failing close reports the error once, and the descriptor is free nevertheless. */
TEST(close_that_fails_says_so)
{
	make_folder();
	errno = 0;
	CHECK(!ch__os_file_close(-1));
	CHECK_EQ(errno, EBADF);
	int fd = ch__os_file_straight(path);
	CHECK(fd >= 0);
	ch__os_fail_at(1, false);
	CHECK(!ch__os_file_close(fd));
	ch__os_fail_at(0, false);
	CHECK_EQ(fcntl(fd, F_GETFD), -1);
	fd = ch__os_file_straight(path);
	CHECK(ch__os_file_close(fd));
	remove_folder();
}

static size_t bytes_of_file(void)
{
	struct stat found;
	CHECK_EQ(stat(path, &found), 0);
	return (size_t)found.st_size;
}

/* The file of a standard stream keeps its bytes, and the stream goes on behind what was written.
 * Any other file is emptied. */
TEST(file_of_a_standard_stream_is_written_on)
{
	make_folder();
	for (int stream = 0; stream <= STDERR_FILENO + 1; stream++) {
		int kept = fcntl(stream, F_DUPFD_CLOEXEC, 10);
		int fd = ch__os_file_create(path, NULL, 0);
		CHECK(fd >= 0 && ch__os_file_put(fd, "before", 6) == 6);
		CHECK_EQ(dup2(fd, stream), stream);
		if (fd != stream)
			close(fd);
		int straight = ch__os_file_straight(path);
		bool is_kept = bytes_of_file() == 6;
		bool is_written = straight >= 0 && ch__os_file_put(straight, "+", 1) == 1;
		if (straight >= 0)
			close(straight);
		bool goes_on = write(stream, "after", 5) == 5;
		if (kept >= 0) {
			dup2(kept, stream);
			close(kept);
		}
		CHECK(is_written && goes_on && straight > STDERR_FILENO);
		if (is_kept != (stream <= STDERR_FILENO))
			FAIL("the file of descriptor %d: %zu bytes", stream, bytes_of_file());
		CHECK_EQ(bytes_of_file(), is_kept ? 12 : 11); /* 6 + 5: at the stream's own place */
	}
	remove_folder();
}

/* --- timers --- */

TEST(timer_that_cannot_be_set_is_taken_back)
{
	enum { IDS = 16 }; /* the system numbers a process's timers from 0 on */
	struct itimerspec left;
	struct ch__os_timer timer;
	ch__os_fail_at(2, false);
	CHECK(!ch__os_timer_start(&timer, gettid(), true, 1000000, NULL));
	ch__os_fail_at(0, false);
	for (long id = 0; id < IDS; id++)
		CHECK(syscall(SYS_timer_gettime, id, &left) != 0);
	CHECK(ch__os_timer_start(&timer, gettid(), true, UINT64_C(3600000000000), NULL));
	ch__os_timer_stop(&timer);
}

/* Threads that live for less than an interval have their share of the samples. */
TEST(timer_begins_at_a_random_point_of_its_interval)
{
	enum { TIMERS = 32, SECONDS = 3600 };
	long early = 0, late = 0;
	for (int i = 0; i < TIMERS; i++) {
		struct itimerspec left;
		struct ch__os_timer timer;
		CHECK(ch__os_timer_start(&timer, gettid(), i & 1, UINT64_C(3600000000000), NULL));
		CHECK_EQ(timer_gettime((timer_t)timer.system, &left), 0);
		ch__os_timer_stop(&timer);
		CHECK_EQ(left.it_interval.tv_sec, SECONDS);
		CHECK(left.it_value.tv_sec <= SECONDS);
		early += left.it_value.tv_sec < SECONDS / 2;
		late += left.it_value.tv_sec >= SECONDS / 2;
	}
	CHECK(early && late);
}

/* --- reading --- */

TEST(what_is_no_file_is_not_opened_and_says_so)
{
	int next = dup(STDERR_FILENO);
	CHECK_EQ(close(next), 0);
	errno = 0;
	CHECK_EQ(ch__os_file_open("/"), -1);
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(ch__os_file_open("/nowhere"), -1);
	CHECK_EQ(errno, ENOENT);
	CHECK_EQ(dup(STDERR_FILENO), next);
}

/* To open a pipe would let its writer go on, and to open a device may do anything. */
TEST(what_lies_where_a_locked_file_shall_be_is_not_opened)
{
	char pipe_path[64], event[256];
	bool is_locked;
	snprintf(pipe_path, sizeof pipe_path, "/tmp/codeheap-system-%d.pipe", (int)getpid());
	CHECK_EQ(mkfifo(pipe_path, 0600), 0);
	int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	CHECK(watch >= 0 && inotify_add_watch(watch, pipe_path, IN_OPEN) >= 0);
	CHECK_EQ(ch__os_file_create_locked(pipe_path, &is_locked), -1);
	CHECK_EQ(errno, EEXIST);
	CHECK_EQ(read(watch, event, sizeof event), -1);
	CHECK_EQ(unlink(pipe_path), 0);
}

/* A program without standard input gets descriptor 0 for the next file. */
TEST(file_that_gets_the_first_number_is_opened)
{
	CHECK_EQ(close(STDIN_FILENO), 0);
	CHECK_EQ(ch__os_file_open("/proc/self/exe"), STDIN_FILENO);
}

TEST(lock_is_seen_by_a_descriptor_of_the_first_number)
{
	bool is_locked;
	char locked[64];
	snprintf(locked, sizeof locked, "/tmp/codeheap-system-%d.locked", (int)getpid());
	CHECK(ch__os_file_create_locked(locked, &is_locked) > STDIN_FILENO);
	if (!is_locked)
		skip("the file system of /tmp has no locks of open files");
	CHECK_EQ(close(STDIN_FILENO), 0);
	CHECK_EQ(ch__os_file_create_locked(locked, &is_locked), -1);
	CHECK_EQ(errno, EBUSY);
	CHECK_EQ(fcntl(STDIN_FILENO, F_GETFD), -1);
	CHECK_EQ(unlink(locked), 0);
}

/* --- mappings --- */

static bool find_code(void *is_found, const struct ch__os_mapping *mapping)
{
	uintptr_t code = (uintptr_t)&find_code;
	*(bool *)is_found |= mapping->is_executable && code >= mapping->low &&
			     code < mapping->high;
	return true;
}

static void look_alone(void)
{
	bool is_found = false;
	CHECK(ch__os_each_mapping(find_code, &is_found));
	CHECK(is_found);
}

TEST(mappings_are_read_after_the_end_of_the_first_thread)
{
	run_behind_first_thread(look_alone);
}

static bool count_one(void *arg, const struct ch__os_mapping *mapping)
{
	(void)mapping;
	++*(unsigned *)arg;
	return false;
}

TEST(visit_of_mappings_ends_when_told)
{
	unsigned seen = 0, files = open_files();
	CHECK(ch__os_each_mapping(count_one, &seen));
	CHECK_EQ(seen, 1);
	CHECK_EQ(open_files(), files);
}

/* Replaces open in the whole program: the mappings may be read from a pipe. */
static int mappings_pipe = -1;
static const char *piped = "/proc/self/maps"; /* part of the names that lead to the pipe */
int open(const char *name, int flags, ...)
{
	va_list more;
	va_start(more, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
	va_end(more);
	return mappings_pipe >= 0 && strstr(name, piped)
		       ? dup(mappings_pipe)
		       : (int)syscall(SYS_openat, AT_FDCWD, name, flags, mode);
}

static bool check_in_turn(void *seen, const struct ch__os_mapping *mapping)
{
	uintptr_t low = (uintptr_t)++*(int *)seen << 12;
	CHECK(mapping->low == low && mapping->high == low + 4096 && mapping->is_executable);
	CHECK(mapping->offset == 0x1a000 && mapping->inode == 12 &&
	      mapping->device == makedev(8, 0x1b));
	CHECK_STR(mapping->path, "/lib/a b");
	return true;
}

/* Kernels with pages of 64 KiB give lines in pieces, and a path may be of any length. The end of a
 * long line looks like a mapping, wherever it is cut. */
TEST(lines_of_mappings_are_put_together_and_other_text_is_passed_over)
{
	enum { LINES = 400, LONG = 20000 };
	static const char *const wrong[] = {
		"", "x", "1000", "1000-2000r-xp", "1000-2000 r-x 0 8:1 2", "1000-2000 r-xp - 8:1 2",
		"1000-2000 r-xp 0 8-1 2", "1000-2000 r-xp 0 8:1 /", "-2000 r-xp 0 8:1 2"};
	static char longest[LONG];
	int ends[2], seen = 0;
	CHECK_EQ(pipe(ends), 0);
	memset(longest, 'a', LONG);
	for (int i = 1; i <= LINES; i++) {
		CHECK(dprintf(ends[1], "%x-%x r-xp 0001a000 08:1b 12      /lib/a b\n%s\n", i << 12,
			      (i + 1) << 12, wrong[i % (sizeof wrong / sizeof *wrong)]) > 0);
		if (i == LINES / 2)
			CHECK(dprintf(ends[1], "1-2 r-xp 0 8:1 2 /%.*s-b r-xp 0 8:1 2 /\n", LONG,
				      longest) > LONG);
	}
	close(ends[1]);
	mappings_pipe = ends[0];
	CHECK(ch__os_each_mapping(check_in_turn, &seen));
	CHECK_EQ(seen, LINES);
}

TEST(mappings_that_were_visited_are_not_visited_again_after_a_failure)
{
	int ends[2], seen = 0;
	CHECK_EQ(pipe2(ends, O_NONBLOCK), 0);
	CHECK(dprintf(ends[1], "1000-2000 r-xp 0001a000 08:1b 12      /lib/a b\n") > 0);
	mappings_pipe = ends[0];
	CHECK(!ch__os_each_mapping(check_in_turn, &seen));
	CHECK_EQ(errno, EAGAIN);
	CHECK_EQ(seen, 1);
	close(ends[1]);
	piped = "/maps";
	errno = 0;
	CHECK(!ch__os_each_mapping(check_in_turn, &seen));
	CHECK_EQ(errno, ENODATA);
}
