/* SPDX-License-Identifier: MIT
 * remains.c: what calls of the gate to the OS leave behind: no mapping, no descriptor, no signal,
 * and words that name the error. */
#define _GNU_SOURCE
#include "os/files.h"
#include "os/os.h"
#include "os/text.h"
#include "os/threads.h"
#include "tests/support/refuse_call.h"
#include "tests/support/stage_code.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *words_of(int error)
{
	static char bytes[64];
	struct ch__text text = {bytes, sizeof bytes, 0};
	ch__os_put_error(&text, error);
	ch__text_end(&text);
	return bytes;
}

/* --- reads and writes --- */

/* Calls of the whole program do half of what is asked, or nothing. */
static bool does_half;
static int writes_of_nothing, interrupted;

static bool is_interrupted(void)
{
	errno = EINTR;
	return interrupted > 0 && interrupted--;
}

ssize_t write(int fd, const void *bytes, size_t n)
{
	if (is_interrupted())
		return -1;
	if (!writes_of_nothing)
		return syscall(SYS_write, fd, bytes, does_half ? (n + 1) / 2 : n);
	writes_of_nothing--;
	return 0;
}

ssize_t pread(int fd, void *bytes, size_t n, off_t offset)
{
	if (is_interrupted())
		return -1;
	return syscall(SYS_pread64, fd, bytes, does_half ? (n + 1) / 2 : n, offset);
}

/* As a file of a file system in user space may answer. */
TEST(write_that_takes_no_byte_ends_as_on_a_full_device)
{
	writes_of_nothing = 1000;
	size_t done = ch__os_file_put(STDERR_FILENO, "\n", 1);
	int error = errno;
	writes_of_nothing = 0;
	CHECK_EQ(done, 0);
	CHECK_EQ(error, ENOSPC);
}

TEST(call_that_does_half_goes_on_behind_it)
{
	char path[] = "/tmp/codeheap-half-XXXXXX", bytes[8] = "";
	CHECK(mkdtemp(path) && rmdir(path) == 0);
	int fd = ch__os_file_create(path, NULL, 0);
	does_half = true;
	interrupted = 2;
	CHECK(ch__os_file_put(fd, "abcdefg", 7) == 7);
	interrupted = 2;
	CHECK_EQ(ch__os_file_read(fd, 0, bytes, 7), 7);
	does_half = false;
	CHECK_STR(bytes, "abcdefg");
	CHECK_EQ(ch__os_file_bytes(fd), 7);
	close(fd);
	ch__os_file_remove(path);
}

/* --- mappings --- */

enum { BYTES = 1 << 20, TIMES = 64, LEFT_MOST = 16 * BYTES };

static void expect_nothing_mapped_since(size_t before)
{
	size_t after = mapped_bytes();
	if (after > before + LEFT_MOST)
		FAIL("%zu bytes stay mapped", after - before);
}

TEST(private_memory_that_is_refused_half_way_leaves_no_mapping)
{
	size_t before = mapped_bytes();
	for (int i = 0; i < TIMES; i++) {
		ch__os_fail_at(2, true);
		CHECK(!ch__os_private_near(BYTES, ch__os_anywhere));
		ch__os_fail_at(0, false);
	}
	expect_nothing_mapped_since(before);
}

TEST(tail_that_is_revived_leaves_no_copy_of_what_is_before)
{
	uint8_t *at = ch__os_reserve(2 * BYTES, BYTES, 0, ch__os_anywhere);
	CHECK(at && ch__os_map_shared_rx(at, 2 * BYTES));
	size_t before = mapped_bytes();
	for (int i = 0; i < TIMES; i++)
		CHECK(ch__os_revive_from(at, at + BYTES, BYTES));
	expect_nothing_mapped_since(before);
	CHECK_EQ(munmap(at, BYTES), 0);
	errno = 0;
	CHECK(!ch__os_revive_from(at, at + BYTES, BYTES));
	CHECK_EQ(errno, EFAULT);
	ch__os_unreserve(at + BYTES, BYTES);
}

/* The copy is there when the tail cannot be moved. */
TEST(tail_that_is_not_revived_leaves_no_copy)
{
	uint8_t *at = ch__os_reserve(2 * BYTES, BYTES, 0, ch__os_anywhere);
	CHECK(at && ch__os_map_shared_rx(at, 2 * BYTES));
	size_t before = mapped_bytes();
	for (int i = 0; i < TIMES; i++) {
		ch__os_fail_at(2, true);
		CHECK(!ch__os_revive_from(at, at + BYTES, BYTES));
		ch__os_fail_at(0, false);
	}
	expect_nothing_mapped_since(before);
	ch__os_unreserve(at, 2 * BYTES);
}

/* What is before the place and behind it goes back, wherever the system put the whole. */
TEST(place_anywhere_leaves_nothing_around_it)
{
	size_t align = 4 * BYTES, page = ch__os_page_bytes(), before = mapped_bytes();
	for (int i = 0; i < TIMES; i++) {
		size_t offset = align / TIMES * i & ~(page - 1);
		uint8_t *at = ch__os_reserve(page, align, offset, ch__os_anywhere);
		CHECK(at && ((uintptr_t)at + offset) % align == 0);
		ch__os_unreserve(at, page);
	}
	expect_nothing_mapped_since(before);
}

/* --- descriptors --- */

/* Descriptor 0 is valid where a program has closed its input. Whatever errno was before, one file
 * is made, and none stays at 0. */
static void make_at_0(int error, const char *name)
{
	struct ch__os_held file;
	close(STDIN_FILENO);
	errno = error;
	CHECK(ch__os_memfd(ch__os_page_bytes(), &file));
	CHECK_STR(words_of(error), name);
	CHECK(fcntl(STDIN_FILENO, F_GETFD) < 0);
	/* A file of a file system has no seals. */
	int seals = fcntl(atomic_load(&file.fd), F_GET_SEALS), both = F_SEAL_GROW | F_SEAL_SHRINK;
	CHECK(seals < 0 || (seals & both) == both);
	ch__os_let_go(&file);
}

TEST(file_without_a_name_that_begins_as_descriptor_0_was_not_refused)
{
	make_at_0(E2BIG, "E2BIG");
	make_at_0(EINVAL, "EINVAL");
}

TEST(file_without_a_name_that_gets_no_bytes_leaves_no_descriptor)
{
	struct ch__os_held file;
	int next = dup(STDERR_FILENO);
	close(next);
	ch__os_fail_at(2, true);
	CHECK(!ch__os_memfd(ch__os_page_bytes(), &file));
	ch__os_fail_at(0, false);
	CHECK_EQ(dup(STDERR_FILENO), next);
}

TEST(file_that_begins_as_descriptor_0_is_made_once)
{
	char path[] = "/tmp/codeheap-remains-XXXXXX";
	CHECK(mkdtemp(path) && rmdir(path) == 0);
	close(STDIN_FILENO);
	errno = EEXIST;
	int fd = ch__os_file_create(path, NULL, 0);
	CHECK(fd > STDERR_FILENO);
	CHECK(fcntl(STDIN_FILENO, F_GETFD) < 0);
	close(fd);
	ch__os_file_remove(path);
}

/* The process may have no descriptor above the standard streams. */
TEST(file_that_gets_no_number_is_taken_back)
{
	const struct ch__os_held none = {.fd = -1};
	struct rlimit before;
	char path[] = "/tmp/codeheap-remains-XXXXXX";
	CHECK(mkdtemp(path) && rmdir(path) == 0);
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
	close(STDIN_FILENO);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1, before.rlim_max}), 0);
	CHECK(ch__os_file_create(path, &none, 0) == -1 && errno == EINVAL);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
	int fd = ch__os_file_create(path, &none, 0);
	CHECK(fd > STDERR_FILENO);
	close(fd);
	ch__os_file_remove(path);
}

/* A stream that a program closed is the next descriptor: each of the three, also alone. */
TEST(file_takes_the_place_of_no_standard_stream)
{
	char path[] = "/tmp/codeheap-remains-XXXXXX";
	CHECK(mkdtemp(path) && rmdir(path) == 0);
	for (int stream = 0; stream <= STDERR_FILENO; stream++) {
		struct ch__os_held memory;
		int kept = fcntl(stream, F_DUPFD_CLOEXEC, 10);
		close(stream);
		int fd = ch__os_file_create(path, NULL, 0);
		bool is_held = ch__os_self_memory(&memory);
		bool is_left = fcntl(stream, F_GETFD) < 0;
		int numbered = is_held ? atomic_load(&memory.fd) : -1;
		if (kept >= 0)
			CHECK_EQ(dup2(kept, stream), stream);
		close(kept);
		CHECK(is_left && fd > STDERR_FILENO);
		CHECK(!is_held || numbered > STDERR_FILENO);
		ch__os_let_go(&memory);
		close(fd);
		ch__os_file_remove(path);
	}
}

/* A sandbox may show the folder of the process alone. */
static bool is_sandboxed;
int open(const char *path, int flags, ...)
{
	va_list more;
	va_start(more, flags);
	bool is_made = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
	mode_t mode = is_made ? va_arg(more, mode_t) : 0;
	va_end(more);
	if (is_sandboxed && strstr(path, "/thread-self/")) {
		errno = EACCES;
		return -1;
	}
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static void expect_closed_by_exec(struct ch__os_held *file)
{
	CHECK(fcntl(atomic_load(&file->fd), F_GETFD) & FD_CLOEXEC);
	ch__os_let_go(file);
}

static void hold_files(void)
{
	size_t page = ch__os_page_bytes();
	struct ch__os_held file;
	CHECK(ch__os_memfd(page, &file));
	expect_closed_by_exec(&file);
	ch__os_fail_at(1, false); /* without memfd_create */
	CHECK(ch__os_memfd(page, &file));
	ch__os_fail_at(0, false);
	expect_closed_by_exec(&file);
	bool has_memory = ch__os_self_memory(&file);
	if (has_memory)
		expect_closed_by_exec(&file);
	is_sandboxed = true;
	CHECK_EQ(ch__os_self_memory(&file), has_memory);
	is_sandboxed = false;
	if (has_memory)
		expect_closed_by_exec(&file);
}

TEST(files_that_are_held_are_no_program_s_that_is_executed)
{
	hold_files();
	close(STDIN_FILENO); /* from here on files get another number */
	hold_files();
}

/* Somebody else in the process makes the file right behind a look that finds none. */
static const char *comes_between;
static const char *goes_before; /* somebody else removes the file right before the look */
static bool is_elsewhere;	/* the file that is found has its number on another device */

int __real_lstat(const char *path, struct stat *found);
int __wrap_lstat(const char *path, struct stat *found);
int __wrap_lstat(const char *path, struct stat *found)
{
	if (goes_before)
		unlink(goes_before);
	int result = __real_lstat(path, found), error = errno;
	if (result == 0 && is_elsewhere)
		found->st_dev++;
	if (result != 0 && comes_between) {
		int fd = open(comes_between, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		CHECK(fd >= 0 && write(fd, "keep", 4) == 4);
		close(fd);
		comes_between = NULL;
	}
	errno = error;
	return result;
}

TEST(file_that_comes_between_a_look_and_the_open_is_not_replaced)
{
	const struct ch__os_held none = {.fd = -1};
	struct stat found;
	char path[] = "/tmp/codeheap-remains-XXXXXX";
	close(mkstemp(path));
	goes_before = comes_between = path;
	int fd = ch__os_file_create(path, &none, 0);
	goes_before = NULL;
	CHECK(!comes_between && fd < 0);
	CHECK(__real_lstat(path, &found) == 0);
	CHECK_EQ(found.st_size, 4);
	ch__os_file_remove(path);
}

TEST(file_that_goes_before_it_is_looked_at_is_made)
{
	char path[] = "/tmp/codeheap-remains-XXXXXX";
	close(mkstemp(path));
	goes_before = path;
	int fd = ch__os_file_create(path, NULL, 0);
	goes_before = NULL;
	CHECK(fd >= 0);
	close(fd);
	ch__os_file_remove(path);
}

/* Numbers of files are of one device, and /tmp of another user is no place for ours. */
static uid_t other_user;
uid_t geteuid(void)
{
	return other_user ? other_user : (uid_t)syscall(SYS_geteuid);
}

TEST(file_of_another_device_or_user_is_not_ours)
{
	char path[] = "/tmp/codeheap-remains-XXXXXX";
	struct ch__os_held file;
	int fd = mkstemp(path);
	CHECK(ch__os_file_hold(fd, &file));
	is_elsewhere = true;
	CHECK(!ch__os_file_is_at(fd, path) && errno == EEXIST);
	CHECK(ch__os_file_create(path, &file, 0) < 0 && errno == EBUSY);
	is_elsewhere = false;
	CHECK(ch__os_file_is_at(fd, path));
	other_user = geteuid() + 1;
	CHECK(ch__os_file_create(path, NULL, 0) < 0 && errno == EEXIST);
	other_user = 0;
	CHECK(ch__os_file_is_at(fd, path));
	close(fd);
	ch__os_file_remove(path);
}

/* Another descriptor of the same file may take the number. */
TEST(file_that_was_let_go_is_not_held_by_its_number)
{
	struct ch__os_held file;
	CHECK(ch__os_memfd(ch__os_page_bytes(), &file));
	int fd = atomic_load(&file.fd), other = dup(fd);
	CHECK(other >= 0);
	ch__os_let_go(&file);
	CHECK_EQ(dup2(other, fd), fd);
	CHECK(!ch__os_holds(&file));
	ch__os_let_go(&file);
	CHECK(fcntl(fd, F_GETFD) >= 0);
	close(fd);
	close(other);
}

/* The descriptor's number has two digits. */
TEST(file_of_an_early_date_is_this_process_s_while_it_is_open)
{
	enum { NUMBER = 27 };
	const struct timespec early[2] = {{0}};
	const struct ch__os_held none = {.fd = -1};
	char path[] = "/tmp/codeheap-early-XXXXXX";
	int fd = mkstemp(path);
	CHECK(fd >= 0 && dup2(fd, NUMBER) == NUMBER);
	close(fd);
	CHECK_EQ(utimensat(AT_FDCWD, path, early, 0), 0);
	int next = dup(STDERR_FILENO);
	close(next);
	CHECK_EQ(ch__os_file_create(path, &none, 1), -1);
	CHECK_EQ(errno, EBUSY);
	CHECK_EQ(dup(STDERR_FILENO), next); /* the search left no descriptor */
	close(NUMBER);
	fd = ch__os_file_create(path, &none, 1);
	CHECK(fd >= 0);
	close(fd);
	ch__os_file_remove(path);
}

TEST(file_is_this_process_s_where_nobody_can_tell_which_are_open)
{
	const struct timespec early[2] = {{0}};
	const struct ch__os_held none = {.fd = -1};
	char path[] = "/tmp/codeheap-early-XXXXXX";
	int fd = mkstemp(path);
	CHECK(fd >= 0);
	CHECK_EQ(utimensat(AT_FDCWD, path, early, 0), 0);
	refuse_call_with(SYS_openat, EACCES, 2, O_DIRECTORY);
	CHECK_EQ(ch__os_file_create(path, &none, 1), -1);
	CHECK_EQ(errno, EBUSY);
	close(fd);
	ch__os_file_remove(path);
}

TEST(file_that_is_held_is_written_at_its_end_whoever_else_writes)
{
	struct ch__os_held file;
	char path[] = "/tmp/codeheap-held-XXXXXX", bytes[8] = "";
	CHECK(mkdtemp(path) && rmdir(path) == 0);
	int fd = ch__os_file_create(path, NULL, 0);
	int other = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
	CHECK(other >= 0 && ch__os_file_hold(fd, &file));
	CHECK(ch__os_file_put(fd, "a", 1) == 1 && ch__os_file_put(other, "b", 1) == 1);
	CHECK(ch__os_file_put(fd, "c", 1) == 1);
	CHECK_EQ(ch__os_file_read(fd, 0, bytes, sizeof bytes), 3);
	CHECK_STR(bytes, "abc");
	close(other);
	ch__os_let_go(&file);
	ch__os_file_remove(path);
}

TEST(file_as_large_as_the_limit_of_files_is_made)
{
	struct ch__os_held file;
	struct rlimit limit = {ch__os_page_bytes(), RLIM_INFINITY};
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	CHECK(ch__os_memfd(limit.rlim_cur, &file));
	ch__os_let_go(&file);
	CHECK(!ch__os_memfd(limit.rlim_cur + 1, &file));
	CHECK_EQ(errno, EFBIG);
}

/* A child of a bare fork call, which runs no handler, has no view at all. */
TEST(view_that_is_mapped_again_is_not_inherited)
{
	struct ch__os_held file;
	size_t page = ch__os_page_bytes();
	unsigned char resident;
	void *at = ch__os_reserve(page, page, 0, ch__os_anywhere);
	CHECK(at && ch__os_memfd(page, &file));
	CHECK(ch__os_map_again(&file, 0, at, page));
	pid_t child = fork();
	if (child == 0)
		_exit(mincore(at, page, &resident) == 0);
	int status = -1;
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	ch__os_let_go(&file);
	ch__os_unreserve(at, page);
}

/* --- words and names --- */

TEST(names_keep_all_but_control_characters)
{
	char bytes[32];
	struct ch__text text = {bytes, sizeof bytes, 0};
	ch__text_put_name(&text, "\x1f \x7e\x7f\xc2\x80\xc2\x9f\xc2\xa0\xc3\x80");
	ch__text_end(&text);
	CHECK_STR(bytes, "? \x7e?????\xc2\xa0\xc3\x80");
}

TEST(call_that_was_refused_is_named_once)
{
	errno = ENOMEM;
	ch__os_note(false, "mmap");
	CHECK_STR(words_of(ENOMEM), "mmap ENOMEM");
	CHECK_STR(words_of(ENOMEM), "ENOMEM");
}

TEST(error_without_a_name_is_told_by_its_number)
{
	CHECK_STR(words_of(99999), "errno 99999");
}

/* The library of the name need not exist. */
TEST(symbol_of_the_program_itself_is_found)
{
	CHECK(ch__os_symbol("libnothing-codeheap.so.0", "malloc") == dlsym(RTLD_DEFAULT, "malloc"));
	CHECK(!ch__os_symbol("libnothing-codeheap.so.0", "no_such_symbol_of_codeheap"));
}

TEST(object_at_an_address_has_the_linkers_base)
{
	struct ch__os_object object;
	Dl_info info;
	uintptr_t address = (uintptr_t)dlsym(RTLD_DEFAULT, "qsort");
	if (!ch__os_object_of(address + 1, &object))
		skip("the C library has no lookup for handlers");
	CHECK(dladdr((void *)address, &info));
	CHECK_EQ(object.at, (uintptr_t)info.dli_fbase);
	CHECK_STR(object.path, info.dli_fname);
#ifdef DLFO_STRUCT_HAS_EH_DBASE
	/* Of a return address behind the last call of the object, and before the first. */
	struct dl_find_object found;
	CHECK_EQ(_dl_find_object((void *)address, &found), 0);
	CHECK(ch__os_object_of((uintptr_t)found.dlfo_map_end, &object));
	CHECK_EQ(object.at, (uintptr_t)info.dli_fbase);
	CHECK(!ch__os_object_of((uintptr_t)found.dlfo_map_start, &object) ||
	      object.at != (uintptr_t)info.dli_fbase);
#endif
}

/* --- signals --- */

static void write_in_vain(int fd, int raised, int other)
{
	sigset_t blocked, pending;
	sigemptyset(&blocked);
	sigaddset(&blocked, raised);
	CHECK_EQ(sigprocmask(SIG_SETMASK, &blocked, NULL), 0);
	for (int is_others = 0; is_others < 2; is_others++) {
		if (is_others)
			raise(raised);
		CHECK(ch__os_file_put(fd, "", 1) != 1);
		CHECK_EQ(sigpending(&pending), 0);
		CHECK_EQ(sigismember(&pending, raised), is_others);
	}
	CHECK_EQ(sigprocmask(SIG_BLOCK, NULL, &blocked), 0);
	CHECK(sigismember(&blocked, raised) && !sigismember(&blocked, other));
	signal(raised, SIG_IGN); /* drops the one that waits */
}

TEST(failed_write_takes_back_its_own_signal_and_no_other)
{
	const struct rlimit none = {0, 0};
	char path[] = "/tmp/codeheap-remains-XXXXXX";
	int ends[2], fd = mkstemp(path);
	CHECK(fd >= 0 && unlink(path) == 0);
	CHECK_EQ(pipe(ends), 0);
	close(ends[0]);
	write_in_vain(ends[1], SIGPIPE, SIGXFSZ);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
	write_in_vain(fd, SIGXFSZ, SIGPIPE);
	close(ends[1]);
	close(fd);
}

static struct ch__os_action before;

static unsigned chained;

static void chain_at_last(int signal, void *info, void *ucontext)
{
	chained++;
	ch__os_signal_chain(signal, info, ucontext, &before, true);
}

static void trap_behind_the_last_handler(void *arg)
{
	(void)arg;
	if (getpid() != 1 || !ch__os_signal_install(SIGTRAP, chain_at_last, &before, CH__OS_PLAIN))
		_exit(2);
	/* The kernel lets the first process live, and the handler stays. */
	raise(SIGTRAP);
	raise(SIGTRAP);
	if (chained == 2)
		code_raise(SIGTRAP);
	_exit(3); /* the handler or the trap was lost */
}

TEST(trap_of_the_first_process_of_a_namespace_kills)
{
	if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0)
		skip("the system gives no namespace of processes");
	expect_signal(trap_behind_the_last_handler, NULL, SIGTRAP);
}

/* A wait lets a signal through that the waiting thread blocks, before and after. */
static void wait_for(int signal)
{
	sigset_t blocked, none;
	sigemptyset(&none);
	sigemptyset(&blocked);
	sigaddset(&blocked, signal);
	CHECK_EQ(sigprocmask(SIG_BLOCK, &blocked, NULL), 0);
	CHECK_EQ(raise(signal), 0);
	CHECK_EQ(sigsuspend(&none), -1);
}

static void note_mask(int signal)
{
	sigset_t blocked;
	pthread_sigmask(SIG_BLOCK, NULL, &blocked);
	chained += sigismember(&blocked, signal) ? 100 : 1;
}

TEST(handler_of_a_signal_that_only_a_wait_lets_through_has_the_mask_of_the_wait)
{
	struct sigaction action = {.sa_handler = note_mask, .sa_flags = SA_NODEFER};
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	wait_for(SIGUSR1);
	CHECK_EQ(chained, 1);
	CHECK(ch__os_signal_install(SIGUSR1, chain_at_last, &before, CH__OS_PLAIN));
	wait_for(SIGUSR1);
	CHECK_EQ(chained, 3); /* the last handler, and the handler before */
}

/* Replaces sigaction in the whole program: a signal may come before the call has returned. */
static bool comes_at_once;
int __sigaction(int signal, const struct sigaction *action, struct sigaction *old);
int sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
	int (*real)(int, const struct sigaction *, struct sigaction *);
	*(void **)&real = dlsym(RTLD_NEXT, "sigaction");
	/* A static program has no next one. */
	int result = (real ? real : __sigaction)(signal, action, old);
	if (comes_at_once && action)
		raise(signal);
	return result;
}

TEST(signal_that_comes_while_a_handler_is_installed_goes_to_the_handler_before)
{
	struct sigaction action = {.sa_handler = note_mask, .sa_flags = SA_NODEFER};
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	comes_at_once = true;
	CHECK(ch__os_signal_install(SIGUSR1, chain_at_last, &before, CH__OS_PLAIN));
	comes_at_once = false;
	CHECK_EQ(chained, 2); /* the last handler, and the handler before */
}

static bool has_come;

static void note_coming(int signal)
{
	(void)signal;
	has_come = true;
}

static void expect_none_before(int signal)
{
	(void)signal;
	CHECK(!has_come);
	chained++;
}

static void chain_behind_another_signal(int signal, void *info, void *ucontext)
{
	raise(SIGUSR2);
	ch__os_signal_chain(signal, info, ucontext, &before, true);
}

TEST(signal_that_the_handler_before_blocks_waits_for_it_from_the_first_moment)
{
	struct sigaction action = {.sa_handler = note_coming};
	CHECK_EQ(sigaction(SIGUSR2, &action, NULL), 0);
	action.sa_handler = expect_none_before;
	sigaddset(&action.sa_mask, SIGUSR2);
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	CHECK(ch__os_signal_install(SIGUSR1, chain_behind_another_signal, &before,
				    CH__OS_LIKE_OLD));
	raise(SIGUSR1);
	CHECK_EQ(chained, 1);
	CHECK(has_come);
}

static void chain(int signal, void *info, void *ucontext)
{
	ch__os_signal_chain(signal, info, ucontext, &before, false);
}

static void wait_behind_a_handler(void *is_last)
{
	if (!ch__os_signal_install(SIGTRAP, is_last ? chain_at_last : chain, &before,
				   CH__OS_PLAIN))
		_exit(2);
	wait_for(SIGTRAP);
	_exit(3); /* the process outlived the signal */
}

TEST(signal_that_only_a_wait_lets_through_kills_by_default)
{
	expect_signal(wait_behind_a_handler, NULL, SIGTRAP);
	expect_signal(wait_behind_a_handler, "", SIGTRAP);
}

static void nothing(void *arg)
{
	(void)arg;
}

TEST(call_at_a_thread_s_end_for_which_no_key_is_left_is_refused_for_that)
{
	pthread_key_t keys[PTHREAD_KEYS_MAX];
	int count = 0, error;
	while ((error = pthread_key_create(&keys[count], NULL)) == 0)
		count++;
	errno = 0;
	CHECK(!ch__os_at_thread_end(nothing));
	CHECK_EQ(errno, error);
	while (count > 0)
		CHECK_EQ(pthread_key_delete(keys[--count]), 0);
	CHECK(ch__os_at_thread_end(nothing));
}
