/* SPDX-License-Identifier: MIT
 * stats_file.c: how long a statistics file's thread sleeps, and what a child of fork does with the
 * parent's file. tests/api/stats_file.c tests the file's content. */
#define _GNU_SOURCE
#include "codeheap/base/park.h"
#include "codeheap/profile.h"
#include "observe/stats_walk.h"
#include "tests/support/heap_rig.h"
#include "tests/support/stats_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static char folder[] = "/tmp/codeheap.XXXXXX";
enum { PATH_BYTES = sizeof folder + 5 };

static struct rig start_with(const char *pattern)
{
	struct ch_config config = rig_config(1 << 20);
	unsetenv("CODEHEAP_STATS");
	config.stats_file = pattern;
	return rig_create(&config, NULL, NULL);
}

static void use_folder(char path[PATH_BYTES])
{
	CHECK(mkdtemp(folder));
	snprintf(path, PATH_BYTES, "%s/file", folder);
}
static void leave_folder(const char *path)
{
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(rmdir(folder), 0);
}

/* The name of the process's file, with the number of the process. */
static void name_own(char *own, size_t bytes)
{
	snprintf(own, bytes, "%s/file.%d", folder, getpid());
}

/* A heap whose file has the number of the process in its name, which is written to `own`. */
static struct rig start_numbered(char *own, size_t bytes)
{
	static char pattern[sizeof folder + 10];
	CHECK(mkdtemp(folder));
	snprintf(pattern, sizeof pattern, "%s/file.%%p", folder);
	name_own(own, bytes);
	return start_with(pattern);
}

static bool is_there(const char *path)
{
	struct stat found;
	return lstat(path, &found) == 0;
}

/* The thread sleeps a hundred times as long as the work took, at most two seconds. At least one of
 * six walks takes less than ten milliseconds on any machine. */
TEST(pause_between_two_writes_is_short_where_work_is_little)
{
	enum { WRITES = 6, NS_PER_MS = 1000000, SHORT_MS = 1000 };
	char path[PATH_BYTES];
	use_folder(path);
	struct rig rig = start_with(path);
	CHECK_EQ(atomic_exchange(ch__stats_file_period(rig.heap->listeners), NS_PER_MS),
		 250 * NS_PER_MS);
	struct stats_image *image = stats_read(path, WRITES);
	struct ch__stats_section section;
	for (uint32_t kind = CH__STATS_TEXTS; kind <= CH__STATS_PARTS; kind++) {
		(void)stats_section(image, kind, &section);
		CHECK_EQ(section.left_out, 0);
	}
	const struct ch__stats_sample *sample = stats_section(image, CH__STATS_SAMPLES, &section);
	uint64_t least = UINT64_MAX;
	CHECK(section.count >= WRITES);
	for (uint32_t i = 1; i < section.count; i++)
		if (sample[i].at_ns - sample[i - 1].at_ns < least)
			least = sample[i].at_ns - sample[i - 1].at_ns;
	if (least < NS_PER_MS || least > (uint64_t)SHORT_MS * NS_PER_MS)
		FAIL("the shortest pause took %llu ns", (unsigned long long)least);
	free(image);
	rig_end(&rig);
	leave_folder(path);
}

/* In ns. */
static uint64_t processor_time_of_the_writer(void)
{
	struct timespec used = {0};
	int number;
	CHECK_EQ(stats_threads(&number), 1);
	/* The kernel's number for the clock of a thread. */
	CHECK_EQ(clock_gettime((clockid_t)(~(unsigned)number << 3 | 6), &used), 0);
	uint64_t ns = (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
	CHECK(ns);
	return ns;
}

/* What the sleep itself takes is no work: hence less than a hundred times. */
TEST(writer_sleeps_many_times_as_long_as_it_works)
{
	enum { WRITES = 10, TIMES = 20 };
	char path[PATH_BYTES];
	use_folder(path);
	struct rig rig = start_with(path);
	atomic_store(ch__stats_file_period(rig.heap->listeners), 1);
	free(stats_read(path, 1)); /* it slept the first period before */
	uint64_t from = ch__os_now_ns(), worked = processor_time_of_the_writer();
	free(stats_read(path, WRITES));
	worked = processor_time_of_the_writer() - worked;
	uint64_t passed = ch__os_now_ns() - from;
	if (worked * TIMES > passed)
		FAIL("it worked %llu ns of %llu", (unsigned long long)worked,
		     (unsigned long long)passed);
	rig_end(&rig);
	leave_folder(path);
}

TEST(writer_sleeps_two_seconds_at_most)
{
	char path[PATH_BYTES];
	use_folder(path);
	struct rig rig = start_with(path);
	atomic_store(ch__stats_file_period(rig.heap->listeners), UINT64_MAX);
	free(stats_read(path, 3)); /* it slept the first period before */
	rig_end(&rig);
	leave_folder(path);
}

static void skip_without_threads_in_children(void)
{
	if (CH_TSAN)
		skip("ThreadSanitizer has no threads in a child of a process with some");
}

/* The file is closed only once: later the number may belong to another file. */
TEST(file_that_was_turned_off_is_closed)
{
	char path[PATH_BYTES];
	use_folder(path);
	struct rig rig = start_with(path);
	atomic_store(ch__stats_file_period(rig.heap->listeners), 1);
	free(stats_read(path, 1));
	int fd = descriptor_of(path);
	CHECK(fd >= 0);
	CHECK_EQ(unlink(path), 0);
	TEST_UNTIL(descriptor_of(path) < 0)
		usleep(1000);
	CHECK(!ch_sink_status(rig.heap, CH_SINK_STATS_FILE, NULL, NULL));
	CHECK_EQ(dup2(STDERR_FILENO, fd), fd);
	rig_end(&rig);
	CHECK(fcntl(fd, F_GETFD) >= 0);
	CHECK_EQ(rmdir(folder), 0);
}

static void expect_untouched(const char *other, int fd)
{
	char text[8] = "";
	struct stat named, open_file;
	CHECK_EQ(stat(other, &named), 0);
	if (fstat(fd, &open_file) != 0 || open_file.st_ino != named.st_ino)
		FAIL("it closed somebody's descriptor");
	CHECK_EQ(pread(fd, text, sizeof text, 0), 5);
	CHECK_STR(text, "other");
}

/* The program closes all descriptors, and gets the number for a file of its own. */
static void lose_number(bool is_written_on)
{
	char path[PATH_BYTES], other[sizeof folder + 6];
	int failed = 0;
	snprintf(path, sizeof path, "%s/file", folder);
	snprintf(other, sizeof other, "%s/other", folder);
	struct rig rig = start_with(path);
	free(stats_read(path, 1));
	int fd = descriptor_of(path), others = open(other, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0 && others >= 0);
	CHECK_EQ(write(others, "other", 5), 5);
	CHECK_EQ(dup2(others, fd), fd);
	if (is_written_on) {
		atomic_store(ch__stats_file_period(rig.heap->listeners), 1);
		TEST_UNTIL(!ch_sink_status(rig.heap, CH_SINK_STATS_FILE, NULL, &failed))
			expect_untouched(other, fd);
		CHECK_EQ(failed, EBADF);
	}
	pid_t pid = fork_child();
	if (pid == 0) {
		expect_untouched(other, fd);
		/* ThreadSanitizer would report the parent's thread, which has ended. */
		syscall(SYS_exit_group, 0);
	}
	expect_exit(pid, 0);
	rig_end(&rig);
	expect_untouched(other, fd);
	CHECK_EQ(close(fd), 0);
	CHECK_EQ(close(others), 0);
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(unlink(other), 0);
}

TEST(file_whose_number_another_file_got_leaves_that_file_alone)
{
	CHECK(mkdtemp(folder));
	lose_number(true);
	lose_number(false);
	CHECK_EQ(rmdir(folder), 0);
}

/* As every child is for a moment, before its fork handlers or its exec close the files. */
static pid_t child_without_handlers(void)
{
	pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	CHECK(child >= 0);
	while (child == 0)
		syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
	return child;
}

static void turn_off(struct ch_heap *heap)
{
	struct rlimit limit;
	CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
	atomic_store(ch__stats_file_period(heap->listeners), 1);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &(struct rlimit){100, limit.rlim_max}), 0);
	TEST_UNTIL(!ch_sink_status(heap, CH_SINK_STATS_FILE, NULL, NULL))
		usleep(1000);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Another thread may just have forked, or be about to start a program. */
TEST(file_is_nobody_s_when_its_heap_has_ended_or_turned_it_off)
{
	char path[PATH_BYTES];
	use_folder(path);
	for (int is_off = 0; is_off < 2; is_off++) {
		struct rig rig = start_with(path);
		free(stats_read(path, 1));
		pid_t child = child_without_handlers();
		if (is_off)
			turn_off(rig.heap);
		rig_end(&rig);
		CHECK_EQ(descriptor_of(path), -1);
		rig = start_with(path);
		rig_end(&rig);
		CHECK_EQ(kill(child, SIGKILL), 0);
		CHECK_EQ(waitpid(child, NULL, 0), child);
	}
	leave_folder(path);
}

/* A wait of two seconds for the file's thread would wake each ms. */
TEST(child_that_ran_no_handler_of_fork_waits_at_its_exit_for_no_file)
{
	char path[PATH_BYTES];
	use_folder(path);
	struct rig rig = start_with(path);
	free(stats_read(path, 1));
	pid_t pid = _Fork();
	if (pid == 0)
		exit(0);
	expect_exit_at_once(pid, NULL);
	rig_end(&rig);
	leave_folder(path);
}

TEST(child_that_ran_no_handler_of_fork_ends_a_heap_with_a_file)
{
	char path[PATH_BYTES];
	use_folder(path);
	struct rig rig = start_with(path);
	free(stats_read(path, 1));
	pid_t pid = _Fork();
	if (pid == 0) {
		rig_end(&rig);
		_exit(0);
	}
	expect_exit_at_once(pid, NULL);
	CHECK(is_there(path));
	rig_end(&rig);
	leave_folder(path);
}

TEST(exit_waits_for_no_file_that_could_not_be_made)
{
	char path[PATH_BYTES], second[PATH_BYTES + 8];
	struct ch_heap *heaps[2];
	use_folder(path);
	snprintf(second, sizeof second, "%s.2", path);
	CHECK_EQ(mkdir(second, 0700), 0);
	CHECK_EQ(setenv("CODEHEAP_STATS", path, 1), 0);
	long *wakes = mmap(NULL, sizeof *wakes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			   -1, 0);
	CHECK(wakes != MAP_FAILED);
	pid_t pid = fork_child();
	if (pid == 0) {
		for (int i = 0; i < 2; i++)
			CHECK_EQ(ch_heap_create(NULL, &heaps[i]), CH_OK);
		CHECK(ch_sink_status(heaps[0], CH_SINK_STATS_FILE, NULL, NULL));
		CHECK(!ch_sink_status(heaps[1], CH_SINK_STATS_FILE, NULL, NULL));
		/* This waits for the thread of the first file. */
		CHECK_EQ(ch_heap_destroy(heaps[0]), CH_OK);
		struct rusage used;
		CHECK_EQ(getrusage(RUSAGE_SELF, &used), 0);
		*wakes = used.ru_nvcsw;
		exit(0);
	}
	expect_exit_at_once(pid, wakes);
	CHECK_EQ(rmdir(second), 0);
	leave_folder(path);
}

/* The heap notices that its file is gone, and turns it off. */
static void lose_file(const struct rig *rig, const char *own)
{
	atomic_store(ch__stats_file_period(rig->heap->listeners), 1);
	free(stats_read(own, 1));
	CHECK_EQ(unlink(own), 0);
	TEST_UNTIL(!ch_sink_status(rig->heap, CH_SINK_STATS_FILE, NULL, NULL))
		usleep(1000);
}

/* A file that was turned off stays off in a child. */
TEST(child_of_fork_makes_no_file_where_its_parent_has_lost_it)
{
	char own[sizeof folder + 20];
	skip_without_threads_in_children();
	struct rig rig = start_numbered(own, sizeof own);
	lose_file(&rig, own);
	pid_t pid = fork_child();
	if (pid == 0) {
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		name_own(own, sizeof own);
		bool has_file = is_there(own);
		rig_end(&rig);
		_exit(has_file || is_there(own));
	}
	expect_exit(pid, 0);
	rig_end(&rig);
	CHECK_EQ(rmdir(folder), 0);
}

/* The child neither compiles nor collects before the child forks. */
TEST(child_of_an_idle_child_makes_a_file_of_its_own)
{
	char own[sizeof folder + 20];
	skip_without_threads_in_children();
	struct rig rig = start_numbered(own, sizeof own);
	pid_t pid = fork_child();
	if (pid == 0) {
		CHECK_EQ(descriptor_of(own), -1);
		pid = fork_child();
		if (pid != 0) {
			expect_exit(pid, 0);
			_exit(0);
		}
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		name_own(own, sizeof own);
		free(stats_read(own, 1));
		rig_end(&rig);
		CHECK_EQ(unlink(own), 0);
		_exit(0);
	}
	expect_exit(pid, 0);
	rig_end(&rig);
	leave_folder(own);
}

/* The child's own file, too. */
TEST(child_of_a_child_that_has_lost_its_file_makes_none)
{
	char own[sizeof folder + 20];
	skip_without_threads_in_children();
	struct rig rig = start_numbered(own, sizeof own);
	pid_t pid = fork_child();
	if (pid == 0) {
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		name_own(own, sizeof own);
		lose_file(&rig, own);
		pid = fork_child();
		if (pid != 0) {
			expect_exit(pid, 0);
			_exit(0);
		}
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		name_own(own, sizeof own);
		_exit(is_there(own));
	}
	expect_exit(pid, 0);
	rig_end(&rig);
	leave_folder(own);
}

/* The heap of a process that is about to make its file; another thread forks meanwhile. */
static struct ch_heap *forks_with;

static void *fork_meanwhile(void *heap)
{
	char own[sizeof folder + 20];
	pid_t pid = fork_child();
	if (pid == 0) {
		CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_OK);
		CHECK_EQ(ch_heap_collect(heap), CH_OK);
		name_own(own, sizeof own);
		free(stats_read(own, 1));
		CHECK_EQ(unlink(own), 0);
		_exit(0);
	}
	expect_exit(pid, 0);
	return NULL;
}

static bool has_no_locks;

int __real_ch__os_file_create_locked(const char *path, bool *is_locked);
int __wrap_ch__os_file_create_locked(const char *path, bool *is_locked);
int __wrap_ch__os_file_create_locked(const char *path, bool *is_locked)
{
	pthread_t thread;
	struct ch_heap *heap = forks_with;
	forks_with = NULL;
	if (heap) {
		CHECK_EQ(pthread_create(&thread, NULL, fork_meanwhile, heap), 0);
		CHECK_EQ(pthread_join(thread, NULL), 0);
	}
	int fd = __real_ch__os_file_create_locked(path, is_locked);
	*is_locked = *is_locked && !has_no_locks;
	return fd;
}

/* A reader asks for the lock, or, on a file system without locks, for the process. */
TEST(file_says_whether_its_file_system_has_locks)
{
	char path[PATH_BYTES];
	use_folder(path);
	for (int i = 0; i < 2; i++) {
		has_no_locks = i != 0;
		struct rig rig = start_with(path);
		struct stats_image *image = stats_read(path, 1);
		CHECK_EQ(image->head.flags, has_no_locks ? 0 : CH__STATS_FILE_LOCKED);
		free(image);
		rig_end(&rig);
	}
	leave_folder(path);
}

/* The body is too long for the process's limit, and the head is not. */
TEST(file_that_is_not_written_whole_says_so)
{
	char path[PATH_BYTES];
	struct ch__stats_head head;
	use_folder(path);
	struct rig rig = start_with(path);
	free(stats_read(path, 1));
	struct rlimit limit = {sizeof head, RLIM_INFINITY};
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	TEST_UNTIL(!ch_sink_status(rig.heap, CH_SINK_STATS_FILE, NULL, NULL))
		usleep(1000);
	limit.rlim_cur = RLIM_INFINITY;
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && read(fd, &head, sizeof head) == sizeof head);
	CHECK_EQ(close(fd), 0);
	CHECK_EQ(head.sequence % 2, 1);
	rig_end(&rig);
	leave_folder(path);
}

/* Computed by another program: a reader of another release computes the same. */
TEST(checksum_is_the_same_in_every_release)
{
	static const uint64_t words[][2] = {{1, 2}, {2, 1}};
	CHECK_EQ(ch__stats_checksum(words[0], sizeof words[0]), UINT64_C(0x4fa2308dce7dd455));
	CHECK_EQ(ch__stats_checksum(words[1], sizeof words[1]), UINT64_C(0xe02ec8e69f34b87a));
}

TEST(child_of_a_child_that_makes_its_file_makes_one_of_its_own)
{
	char own[sizeof folder + 20];
	skip_without_threads_in_children();
	struct rig rig = start_numbered(own, sizeof own);
	pid_t pid = fork_child();
	if (pid == 0) {
		forks_with = rig.heap;
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		CHECK(!forks_with);
		rig_end(&rig);
		name_own(own, sizeof own);
		CHECK_EQ(unlink(own), 0);
		_exit(0);
	}
	expect_exit(pid, 0);
	rig_end(&rig);
	leave_folder(own);
}

static _Thread_local bool is_exiting;
static _Atomic(bool) has_asked, has_ended;

/* The exit waits for the thread once, until the heap has ended, and finds then that the thread has
 * ended, too. */
static uint64_t stand_still(uint64_t waited_ns)
{
	if (!waited_ns || !is_exiting)
		return UINT64_C(3600000000000);
	if (atomic_exchange(&has_asked, true))
		_exit(1);
	while (!atomic_load(&has_ended))
		usleep(1000);
	return 0;
}

static void *leave_process(void *unused)
{
	(void)unused;
	is_exiting = true;
	exit(0);
}

/* The call says so, and nobody finds an empty file. One failure alone is made up for: the heap is
 * made in another way. */
TEST(heap_that_cannot_be_made_leaves_no_file)
{
	char own[sizeof folder + 20];
	bool has_failed = true;
	struct rig rig = start_numbered(own, sizeof own);
	rig_end(&rig);
	struct ch_config config = rig_config(1 << 20);
	config.stats_file = own;
	for (uint64_t nth = 1; has_failed; nth++) {
		struct ch_heap *heap;
		unlink(own);
		ch__os_fail_at(nth, true);
		enum ch_status status = ch_heap_create(&config, &heap);
		has_failed = ch__os_failable_calls() >= nth;
		ch__os_fail_at(0, false);
		CHECK(status == CH_OK || !is_there(own));
		if (status == CH_OK)
			CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	}
	leave_folder(own);
}

/* The memory of the file's record is there while the exit looks at the record. The next heap would
 * have the same memory for its record. */
TEST(heap_ends_while_its_process_exits)
{
	char path[PATH_BYTES];
	use_folder(path);
	fflush(NULL);
	pid_t pid = fork_child();
	if (pid == 0) {
		pthread_t thread;
		ch__os_pretended.clock = stand_still;
		struct rig rig = start_with(path);
		free(stats_read(path, 1));
		ch__heap_lock(rig.heap);
		CHECK_EQ(pthread_create(&thread, NULL, leave_process, NULL), 0);
		while (!atomic_load(&has_asked))
			usleep(1000);
		ch__heap_unlock(rig.heap);
		rig_end(&rig);
		rig = start_with(path);
		atomic_store(&has_ended, true);
		pthread_join(thread, NULL);
	}
	expect_exit(pid, 0);
	leave_folder(path);
}

static void make_heap_with_stats_at(void *arg)
{
	struct ch_heap *heap;
	CHECK_EQ(setenv("CODEHEAP_STATS", arg, 1), 0);
	CHECK_EQ(ch_heap_create(NULL, &heap), CH_OK);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

TEST(wish_of_the_environment_that_fails_is_told)
{
	static char nowhere[] = "/nonexistent/x.%p", device[] = "/dev/full";
	char text[800];
	struct ch_heap *heap;
	expect_signal_text(make_heap_with_stats_at, nowhere, 0, text, sizeof text);
	CHECK(strstr(text, "codeheap: CH_E_OS: CODEHEAP_STATS: /nonexistent/x."));
	CHECK(!strstr(text, "%p"));
	CHECK(strstr(text, "ENOENT"));
	expect_signal_text(make_heap_with_stats_at, device, 0, text, sizeof text);
	CHECK(strstr(text, "CODEHEAP_STATS: /dev/full is no regular file of the user\n"));
	unsetenv("CODEHEAP_STATS");
	struct ch_config config = rig_config(1 << 20);
	config.stats_file = device;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_E_OS);
	CHECK_STR(ch_why(), "CH_E_OS: the statistics file /dev/full: no regular file of the user");
}

static bool refuses;

static enum ch_status refuse(struct ch_heap *heap, const char **stats_file, bool may_fail)
{
	(void)heap, (void)stats_file, (void)may_fail;
	if (!refuses)
		return CH_OK;
	errno = EXDEV;
	return CH_E_OS;
}

/* Greets before the library's own greeter, and is asked behind it. */
__attribute__((constructor(101))) static void greet_first(void)
{
	static struct ch__greeter greeter = {.begins = refuse};
	ch__listener_greet(&greeter);
}

/* The writing thread begins before the heap is one of the process's. */
TEST(file_of_a_heap_that_was_not_made_goes)
{
	char path[PATH_BYTES];
	struct ch_heap *heap;
	use_folder(path);
	struct ch_config config = rig_config(1 << 20);
	config.stats_file = path;
	refuses = true;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_E_OS);
	CHECK(!is_there(path));
	CHECK_EQ(rmdir(folder), 0);
}

/* A second greeter in the list would be its own follower: no heap's creation would end. */
TEST(files_that_are_enabled_again_are_enabled_once)
{
	char path[PATH_BYTES];
	for (int i = 0; i < 3; i++)
		CHECK_EQ(ch_stats_file_enable(), CH_OK);
	use_folder(path);
	struct rig rig = start_with(path);
	rig_end(&rig);
	leave_folder(path);
}
