/* SPDX-License-Identifier: MIT
 * sink_files.c: files of sinks among foreign files and on bad disks. Anything found at the name of
 * a file is neither followed nor harmed. Whatever happens to the file, the VM runs on; the sink
 * says that it is off and why, and can be switched on again. Each case runs for each sink with a
 * file. */
#define _GNU_SOURCE
#include "codeheap/events/events.h"
#include "codeheap/listener.h"
#include "observe/late_names.h"
#include "observe/system.h"
#include "os/threads.h"
#include "sinks/tools.h"
#include "tests/support/own_mounts.h"
#include "tests/support/sink_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Each file lies in a folder of the case, where nothing is left behind the body. */
#define EVERY_FILE(case_)                                \
	static void case_(const struct sink_file *sink); \
	FILE_CASE(perf_map_##case_, case_, perf_map)     \
	FILE_CASE(jitdump_##case_, case_, jitdump)       \
	static void case_(const struct sink_file *sink)
#define FILE_CASE(name, body, sink)  \
	TEST(name)                   \
	{                            \
		use_folder(&sink);   \
		body(&sink);         \
		leave_folder(&sink); \
	}

/* --- things found at the name --- */
static void check_refused(const struct sink_file *sink, int error)
{
	struct stat before, after;
	CHECK_EQ(lstat(path, &before), 0);
	struct rig rig = start(sink);
	check_off(&rig, sink, error);
	live_and_die(&rig, 10);
	CHECK_EQ(lstat(path, &after), 0);
	if (before.st_ino != after.st_ino || before.st_mode != after.st_mode)
		FAIL_SINK("it replaced what was not its own");
	CHECK_EQ(remove(path), 0);
	check_comes_back(&rig, sink);
	rig_end(&rig);
}

EVERY_FILE(is_not_written_through_a_link)
{
	write_other();
	CHECK_EQ(symlink(other, path), 0);
	check_refused(sink, EEXIST);
	check_other(sink);
}

EVERY_FILE(is_not_made_where_a_dangling_link_leads)
{
	struct stat st;
	CHECK_EQ(symlink(other, path), 0);
	check_refused(sink, EEXIST);
	CHECK_EQ(lstat(other, &st), -1);
}

EVERY_FILE(waits_at_no_fifo)
{
	CHECK_EQ(mkfifo(path, 0666), 0);
	check_refused(sink, EEXIST);
}

EVERY_FILE(is_not_made_over_a_folder)
{
	CHECK_EQ(mkdir(path, 0700), 0);
	check_refused(sink, EEXIST);
}

EVERY_FILE(of_another_user_is_not_touched)
{
	if (geteuid() != 0) {
		leave_folder(sink);
		skip("only root can make a file of another user");
	}
	write_other();
	CHECK_EQ(rename(other, path), 0);
	CHECK_EQ(chown(path, 65534, 65534), 0);
	check_refused(sink, EEXIST);
}

/* Makes the last write of the file an hour old, and so older than the process. */
static void make_old(const char *file)
{
	struct timespec hour_ago[2];
	CHECK_EQ(clock_gettime(CLOCK_REALTIME, &hour_ago[0]), 0);
	hour_ago[0].tv_sec -= 3600;
	hour_ago[1] = hour_ago[0];
	CHECK_EQ(utimensat(AT_FDCWD, file, hour_ago, 0), 0);
}

/* Another compiler of the process writes a file of the same name. */
EVERY_FILE(that_is_open_in_this_process_is_left_alone)
{
	write_other();
	CHECK_EQ(rename(other, path), 0);
	make_old(path);
	int fd = open(path, O_WRONLY | O_APPEND);
	CHECK(fd >= 0);
	check_refused(sink, EBUSY);
	CHECK_EQ(close(fd), 0);
}

EVERY_FILE(that_is_younger_than_the_process_is_left_alone)
{
	write_other();
	CHECK_EQ(rename(other, path), 0);
	check_refused(sink, EBUSY);
}

EVERY_FILE(of_a_heap_that_has_gone_is_replaced)
{
	for (int i = 0; i < 3; i++) {
		struct rig rig = start(sink);
		check_on(&rig, sink);
		live_and_die(&rig, 10);
		rig_end(&rig);
	}
}

/* The name of an earlier process's file is free to take. The file itself may have another name. */
EVERY_FILE(is_new_and_its_owner_s_alone)
{
	struct stat st;
	write_other();
	make_old(other);
	CHECK_EQ(link(other, path), 0);
	umask(0);
	struct rig rig = start(sink);
	check_on(&rig, sink);
	CHECK_EQ(lstat(path, &st), 0);
	if (st.st_nlink != 1 || st.st_uid != geteuid())
		FAIL_SINK("its file is not a new one of ours");
	if (st.st_mode & (S_IRWXG | S_IRWXO))
		FAIL_SINK("others may read or write its file");
	live_and_die(&rig, 10);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	check_other(sink);
	rig_end(&rig);
}

EVERY_FILE(without_a_folder_is_off)
{
	CHECK_EQ(rmdir(folder), 0);
	struct rig rig = start(sink);
	check_off(&rig, sink, ENOENT);
	live_and_die(&rig, 10);
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_UNWIND | (unsigned)sink->bit), CH_E_OS);
	CHECK_EQ(errno, ENOENT);
	CHECK_EQ(mkdir(folder, 0700), 0);
	check_comes_back(&rig, sink);
	rig_end(&rig);
}

/* --- changes while the sink writes --- */

EVERY_FILE(of_a_removed_folder_is_off)
{
	struct rig rig = start(sink);
	live_and_write(&rig);
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(rmdir(folder), 0);
	check_failed(&rig, sink, ENOENT);
	CHECK_EQ(mkdir(folder, 0700), 0);
	check_comes_back(&rig, sink);
	rig_end(&rig);
}

static void check_replaced(struct rig *rig, const struct sink_file *sink)
{
	struct stat before, after;
	CHECK_EQ(lstat(path, &before), 0);
	check_failed(rig, sink, EEXIST);
	CHECK_EQ(lstat(path, &after), 0);
	if (before.st_ino != after.st_ino || before.st_mode != after.st_mode)
		FAIL_SINK("it replaced what was put at its place");
	CHECK_EQ(remove(path), 0);
	check_comes_back(rig, sink);
	rig_end(rig);
}

EVERY_FILE(replaced_by_a_fifo_is_off)
{
	struct rig rig = start(sink);
	live_and_write(&rig);
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(mkfifo(path, 0666), 0);
	check_replaced(&rig, sink);
}

EVERY_FILE(replaced_by_a_link_is_off)
{
	write_other();
	struct rig rig = start(sink);
	live_and_write(&rig);
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(symlink(other, path), 0);
	check_replaced(&rig, sink);
}

EVERY_FILE(replaced_by_a_link_leaves_its_target)
{
	write_other();
	struct rig rig = start(sink);
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(symlink(other, path), 0);
	check_failed(&rig, sink, EEXIST);
	check_other(sink);
	rig_end(&rig);
}

EVERY_FILE(replaced_by_a_file_is_off)
{
	write_other();
	struct rig rig = start(sink);
	live_and_write(&rig);
	CHECK_EQ(rename(other, path), 0);
	check_replaced(&rig, sink);
}

/* --- disks and limits --- */
/* Room for the records of a few blocks, and far too little for LIVES blocks. */
enum { LIMIT_BYTES = 512 << 10, LIVES = 20000 };

static void write_until_off(struct rig *rig, const struct sink_file *sink)
{
	struct ch_owner owner = rig_owner(rig, "one_owner_of_everything_that_is_alive_here");
	for (int i = 0; i < LIVES && ch_sink_status(rig->heap, sink->bit, NULL, NULL); i++)
		rig_block(owner, 1);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
}

static volatile sig_atomic_t signals;

static void count_signal(int signal)
{
	(void)signal;
	signals = signals + 1;
}

EVERY_FILE(beyond_the_limit_of_files_is_off)
{
	struct rlimit limit = {LIMIT_BYTES, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
	CHECK(signal(SIGXFSZ, count_signal) != SIG_ERR);
	struct rig rig = start(sink);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	write_until_off(&rig, sink);
	check_failed(&rig, sink, EFBIG);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
	if (signals)
		FAIL_SINK("the program got SIGXFSZ for a write of the library's");
	check_comes_back(&rig, sink);
	rig_end(&rig);
}

/* The call that turns the sink on says that the names of live code found no room. */
static void fill_while_turned_on(const struct sink_file *sink)
{
	enum { FEW_BYTES = 20000, ALIVE = 1000 };
	struct rlimit limit = {FEW_BYTES, RLIM_INFINITY};
	use_folder(sink);
	struct rig rig = start(sink);
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_UNWIND), CH_OK);
	struct ch_owner owner = rig_owner(&rig, "one_owner_of_everything_that_is_alive_here");
	for (int i = 0; i < ALIVE; i++)
		rig_block(owner, 1);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_UNWIND | (unsigned)sink->bit), CH_E_OS);
	CHECK_EQ(errno, EFBIG);
	check_off(&rig, sink, EFBIG);
	rig_end(&rig);
	leave_folder(sink);
}

TEST(perf_map_without_room_for_live_code_is_not_turned_on)
{
	fill_while_turned_on(&perf_map);
}

TEST(jitdump_without_room_for_live_code_is_not_turned_on)
{
	fill_while_turned_on(&jitdump);
}

/* The heap beside has told nothing since. */
static void fail_beside(const struct sink_file *sink)
{
	struct rlimit limit = {LIMIT_BYTES, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
	use_folder(sink);
	struct rig rig = start(sink), beside = start(sink);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	write_until_off(&rig, sink);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
	check_off(&beside, sink, EFBIG);
	CHECK_EQ(ch_sink_set(beside.heap, CH_SINK_UNWIND | (unsigned)sink->bit), CH_OK);
	check_on(&beside, sink);
	rig_end(&beside);
	rig_end(&rig);
	leave_folder(sink);
}

TEST(perf_map_that_failed_for_another_heap_comes_back)
{
	fail_beside(&perf_map);
}

TEST(jitdump_that_failed_for_another_heap_comes_back)
{
	fail_beside(&jitdump);
}

/* A small disk over the folder, in mounts of the test's own. */
static bool mount_small_disk(const char *at)
{
	char options[32];
	snprintf(options, sizeof options, "size=%d", LIMIT_BYTES);
	return own_mounts() && mount("none", at, "tmpfs", 0, options) == 0;
}

EVERY_FILE(on_a_full_disk_is_off)
{
	if (!mount_small_disk(folder)) {
		leave_folder(sink);
		skip("the kernel refuses a mount of our own");
	}
	struct rig rig = start(sink);
	check_on(&rig, sink);
	write_until_off(&rig, sink);
	check_failed(&rig, sink, ENOSPC);
	rig_collect(&rig, 3);
	CHECK_EQ(unlink(path), 0);
	check_comes_back(&rig, sink);
	rig_end(&rig);
	CHECK_EQ(umount2(folder, MNT_DETACH), 0);
}

EVERY_FILE(that_cannot_be_made_on_a_full_disk_is_off)
{
	char filler[4096] = "";
	if (!mount_small_disk(folder)) {
		leave_folder(sink);
		skip("the kernel refuses a mount of our own");
	}
	int fd = open(other, O_CREAT | O_WRONLY, 0600);
	while (write(fd, filler, sizeof filler) > 0)
		continue;
	CHECK_EQ(close(fd), 0);
	struct rig rig = start(sink);
	if (ch_sink_status(rig.heap, sink->bit, NULL, NULL))
		check_failed(&rig, sink, ENOSPC);
	check_off(&rig, sink, ENOSPC);
	CHECK_EQ(unlink(other), 0);
	unlink(path);
	check_comes_back(&rig, sink);
	rig_end(&rig);
	CHECK_EQ(umount2(folder, MNT_DETACH), 0);
}

/* --- after the process --- */
static void run_and_exit(const struct sink_file *sink)
{
	struct rig rig = start(sink);
	rig_block(rig_owner(&rig, "name_for_whoever_comes_later"), 1);
	live_and_die(&rig, 1);
	exit(0); /* no flush, no destroy */
}

static bool file_names(const char *name)
{
	static char text[1 << 18];
	int fd = open(path, O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
	if (fd >= 0)
		close(fd);
	return n > 0 && memmem(text, (size_t)n, name, strlen(name));
}

/* Commits nothing more, like a program in the steady state, until killed. */
static void run_until_killed(const struct sink_file *sink, int told)
{
	struct rig rig = start(sink);
	for (int i = 0; i < 3; i++)
		rig_block(rig_owner(&rig, i == 2 ? "name_of_the_hot_code" : "name_before"), 1);
	CHECK_EQ(write(told, "x", 1), 1);
	for (;;)
		pause();
}

static pid_t start_and_wait(const struct sink_file *sink)
{
	char name[64], byte;
	int ends[2];
	CHECK_EQ(pipe(ends), 0);
	pid_t pid = fork();
	if (pid == 0)
		run_until_killed(sink, ends[1]);
	close(ends[1]);
	CHECK_EQ(read(ends[0], &byte, 1), 1);
	close(ends[0]);
	snprintf(name, sizeof name, sink->name, (int)pid);
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return pid;
}

static void kill_and_check(const struct sink_file *sink, pid_t pid)
{
	int status;
	CHECK_EQ(kill(pid, SIGKILL), 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (!file_names("name_of_the_hot_code"))
		FAIL_SINK("the file of a process that was killed does not name its code");
	leave_folder(sink);
}

EVERY_FILE(names_the_code_of_a_process_that_is_killed)
{
	pid_t pid = start_and_wait(sink);
	TEST_UNTIL(file_names("name_of_the_hot_code"))
		usleep(1000);
	kill_and_check(sink, pid);
}

TEST(perf_map_names_code_when_its_commit_returns)
{
	use_folder(&perf_map);
	kill_and_check(&perf_map, start_and_wait(&perf_map));
}

static struct ch_heap *storm_heap;

static void check_names_of_a_storm(void (*meanwhile)(void))
{
	use_folder(&perf_map);
	struct rig rig = start(&perf_map);
	storm_heap = rig.heap;
	for (int i = 0; i < 3000; i++)
		rig_block(rig_owner(&rig, "name_before"), 1);
	rig_block(rig_owner(&rig, "name_of_the_hot_code"), 1);
	TEST_UNTIL(file_names("name_of_the_hot_code"))
		meanwhile();
	rig_block(rig_owner(&rig, "name_behind"), 1); /* who wrote the names goes on */
	rig_end(&rig);
	leave_folder(&perf_map);
}

/* Names of a storm of commits wait for the next call; a poll is enough. */
TEST(perf_map_names_the_code_of_a_storm_at_the_next_poll)
{
	ch__listener_on_names(NULL);
	check_names_of_a_storm(ch_thread_poll);
}

static void collect(void)
{
	CHECK_EQ(ch_heap_collect(storm_heap), CH_OK);
	CHECK(file_names("name_of_the_hot_code"));
}

TEST(perf_map_names_the_code_of_a_storm_at_a_collection)
{
	ch__listener_on_names(NULL);
	check_names_of_a_storm(collect);
}

static void call_nothing(void)
{
	usleep(1000);
}

TEST(perf_map_names_the_code_of_a_storm_though_no_thread_calls)
{
	ch__late_names_come();
	check_names_of_a_storm(call_nothing);
}

static uint64_t processor_ms(void)
{
	struct timespec used;
	CHECK_EQ(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used), 0);
	return (uint64_t)used.tv_sec * 1000 + (uint64_t)used.tv_nsec / 1000000;
}

TEST(perf_map_s_thread_that_waits_for_names_uses_no_time)
{
	enum { REST_MS = 300 };
	ch__late_names_come();
	check_names_of_a_storm(call_nothing);
	uint64_t before = processor_ms();
	usleep(REST_MS * 1000);
	uint64_t used = processor_ms() - before;
	if (used > REST_MS / 4)
		FAIL("a process that rests for %d ms uses %d ms of a processor", REST_MS,
		     (int)used);
}

/* Two heaps: the perf map names the code of `named`, and meanwhile `other` is stopped. */
struct polled {
	struct rig named, other;
	_Atomic(int) tid;
};

static void *poll_names(void *arg)
{
	struct polled *p = arg;
	CHECK_EQ(ch_thread_attach(p->named.heap, NULL, NULL), CH_OK);
	CHECK_EQ(ch_thread_attach(p->other.heap, NULL, NULL), CH_OK);
	atomic_store(&p->named.heap->sinks_wait, 1);
	ch__poll_want(p->named.heap);
	atomic_store(&p->tid, (int)gettid());
	ch_thread_poll();
	CHECK_EQ(*ch_thread_poll_word(p->named.heap), 0);
	CHECK_EQ(ch_thread_detach(p->other.heap), CH_OK);
	CHECK_EQ(ch_thread_detach(p->named.heap), CH_OK);
	return NULL;
}

/* The case takes the word of the file's lock itself, like a thread whose write does not come to an
 * end. */
TEST(stop_waits_for_no_poll_that_writes_names)
{
	struct ch_config config = rig_config(1 << 20);
	struct polled p = {0};
	pthread_t thread;
	_Atomic(uint32_t) *word = &ch__sink_perfmap.tool->lock.word;
	use_folder(&perf_map);
	config.stop_wait_ms = 1000;
	p.named = start(&perf_map);
	p.other = rig_create(&config, NULL, NULL);
	atomic_store(word, CH__LOCK_TAKEN);
	CHECK_EQ(pthread_create(&thread, NULL, poll_names, &p), 0);
	TEST_UNTIL(atomic_load(&p.tid) && thread_is_asleep(atomic_load(&p.tid)))
		call_nothing();
	CHECK_EQ(ch_heap_collect(p.other.heap), CH_OK);
	atomic_store(word, CH__LOCK_FREE);
	ch__os_futex_wake(word);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	rig_end(&p.other);
	rig_end(&p.named);
	leave_folder(&perf_map);
}

static uint64_t told_ns;
static uint64_t tell_time(uint64_t waited_ns)
{
	return told_ns += waited_ns;
}

/* Another thread, whose write does not come to an end, has the file's lock. */
TEST(poll_does_not_wait_for_the_perf_map_before_waiting_names_may_be_written)
{
	enum { POLLS = 100 };
	_Atomic(uint32_t) *word = &ch__sink_perfmap.tool->lock.word;
	ch__listener_on_names(NULL);
	use_folder(&perf_map);
	struct rig rig = start(&perf_map);
	told_ns = UINT64_C(1) << 40;
	ch__os_pretended.clock = tell_time;
	do
		rig_block(rig_owner(&rig, "waits"), 1);
	while (!atomic_load(&rig.heap->sinks_wait));
	rig_block(rig_owner(&rig, "last_of_all"), 1);
	atomic_store(word, CH__LOCK_TAKEN);
	for (int i = 0; i < POLLS; i++)
		ch_thread_poll();
	atomic_store(word, CH__LOCK_FREE);
	CHECK(!file_names("last_of_all"));
	told_ns += UINT64_C(1000000000);
	for (int i = 0; i < POLLS; i++)
		ch_thread_poll();
	CHECK(file_names("last_of_all"));
	CHECK_EQ(*ch_thread_poll_word(rig.heap), 0);
	ch__os_pretended.clock = NULL;
	rig_end(&rig);
	leave_folder(&perf_map);
}

/* An observer wrote the waiting names, and did not tell the heap. The next commit is no part of a
 * storm. Eight rounds, since some commits would ask the sinks by chance. */
TEST(perf_map_names_code_that_comes_long_after_a_storm)
{
	ch__late_names_come();
	use_folder(&perf_map);
	struct rig rig = start(&perf_map);
	for (int storm = 0; storm < 8; storm++) {
		char last[32], late[32];
		snprintf(last, sizeof last, "last_of_storm_%d", storm);
		snprintf(late, sizeof late, "after_storm_%d", storm);
		for (int i = 0; i < 500; i++)
			rig_block(rig_owner(&rig, "name_before"), 1);
		rig_block(rig_owner(&rig, last), 1);
		TEST_UNTIL(file_names(last))
			call_nothing();
		rig_block(rig_owner(&rig, late), 1);
		TEST_UNTIL(file_names(late))
			call_nothing();
	}
	rig_end(&rig);
	leave_folder(&perf_map);
}

/* The heap is gone before the fork, so the child asks for no lock that the thread may hold. A wait
 * of two seconds for the thread would wake each ms. */
TEST(child_that_ran_no_handler_of_fork_waits_at_its_exit_for_no_thread)
{
	enum { STORM = 500 };
	ch__late_names_come();
	use_folder(&perf_map);
	struct rig rig = start(&perf_map);
	for (int i = 0; i < STORM; i++)
		rig_block(rig_owner(&rig, "name_before"), 1);
	rig_end(&rig);
	pid_t pid = _Fork();
	if (pid == 0)
		exit(0);
	expect_exit_at_once(pid, NULL);
	leave_folder(&perf_map);
}

static pthread_key_t key;
static pthread_t main_thread;
static _Atomic(bool) has_run, has_ended;

/* Runs some time after the thread's function has returned. Only a join waits so long. */
static void note_end(void *unused)
{
	enum { LATE_US = 50000 };
	(void)unused;
	usleep(LATE_US);
	atomic_store(&has_ended, true);
}

/* A pretended clock. The names' thread waits a little before a write, and is noted then. */
static uint64_t see_thread(uint64_t waited_ns)
{
	if (waited_ns && !pthread_equal(pthread_self(), main_thread)) {
		pthread_setspecific(key, &key);
		atomic_store(&has_run, true);
	}
	usleep((useconds_t)(waited_ns / 1000));
	return now_ns();
}

/* The last destructor of the program, behind the library's destructors. */
__attribute__((destructor(101))) static void check_that_the_thread_has_ended(void)
{
	if (atomic_load(&has_run) && !atomic_load(&has_ended))
		_exit(1);
}

TEST(perf_map_s_thread_ends_before_its_process_does)
{
	if (!ch__os_child_may_start_threads())
		skip("a child may start no thread here");
	ch__late_names_come();
	CHECK_EQ(pthread_key_create(&key, note_end), 0);
	pid_t pid = fork_child();
	if (pid == 0) {
		main_thread = pthread_self();
		ch__os_pretended.clock = see_thread;
		ch__listeners_names_wait();
		TEST_UNTIL(atomic_load(&has_run))
			usleep(1000);
		exit(0);
	}
	expect_exit(pid, 0);
}

/* A wait of two seconds for a thread would wake each ms. */
TEST(process_that_gets_no_thread_for_names_waits_at_its_exit_for_none)
{
	ch__late_names_come();
	pid_t pid = fork_child();
	if (pid == 0) {
		ch__os_fail_as(1, true, EAGAIN);
		ch__listeners_names_wait();
		ch__os_fail_at(0, false);
		exit(0);
	}
	expect_exit_at_once(pid, NULL);
}

TEST(child_of_a_process_that_got_no_thread_for_names_has_one)
{
	enum { CHILD_S = 20 };
	if (!ch__os_child_may_start_threads())
		skip("a child may start no thread here");
	ch__late_names_come();
	ch__os_fail_as(1, true, EAGAIN);
	ch__listeners_names_wait();
	ch__os_fail_at(0, false);
	pid_t pid = fork_child();
	if (pid == 0) {
		alarm(CHILD_S);
		check_names_of_a_storm(call_nothing);
		_exit(0);
	}
	expect_exit(pid, 0);
}

/* A pretended clock that stands still for the case. Only the thread for names waits meanwhile. */
static _Atomic(uint64_t) stands_at;
static _Atomic(int) waits;

static uint64_t stand_still(uint64_t waited_ns)
{
	uint64_t at = atomic_load(&stands_at);
	waits += waited_ns != 0;
	usleep((useconds_t)(waited_ns / 1000));
	return at ? at : now_ns();
}

/* While the clock stands still, the lines of the storm have used up the time for writing. */
TEST(perf_map_s_thread_tries_again_to_write_names_until_it_may)
{
	enum { TRIES = 3 };
	ch__late_names_come();
	use_folder(&perf_map);
	struct rig rig = start(&perf_map);
	atomic_store(&stands_at, now_ns());
	ch__os_pretended.clock = stand_still;
	for (int i = 0; i < 3000; i++)
		rig_block(rig_owner(&rig, "name_before"), 1);
	rig_block(rig_owner(&rig, "name_that_waits"), 1);
	atomic_store(&waits, 0); /* no commit asks the thread any more */
	TEST_UNTIL(atomic_load(&waits) >= TRIES)
		call_nothing();
	CHECK(!file_names("name_that_waits"));
	atomic_store(&stands_at, 0);
	TEST_UNTIL(file_names("name_that_waits"))
		call_nothing();
	ch__os_pretended.clock = NULL;
	rig_end(&rig);
	leave_folder(&perf_map);
}

EVERY_FILE(stays_after_exit)
{
	static char text[1 << 18]; /* more than a page's bytes in a dump */
	char name[64];
	pid_t pid = fork();
	if (pid == 0)
		run_and_exit(sink);
	expect_exit(pid, 0);
	snprintf(name, sizeof name, sink->name, (int)pid);
	snprintf(path, sizeof path, "%s/%s", folder, name);
	int fd = open(path, O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (n <= 0 || !memmem(text, (size_t)n, "name_for_whoever_comes_later", 28))
		FAIL_SINK("the file of a process that has exited does not name its code");
	if (sink == &jitdump && !memmem(text, (size_t)n, "[freed]", 7)) /* it waited in memory */
		FAIL_SINK("the file of a process that has exited does not name what it freed");
	CHECK_EQ(close(fd), 0);
}
