/* SPDX-License-Identifier: MIT
 * gate.c: promises of the gate to the OS that tests of pools do not show: safe creation of files,
 * writes that do not kill, chained signal handlers, futexes, bounds, membarrier. */
#define _GNU_SOURCE
#include "os/os.h"
#include "os/files.h"
#include "os/text.h"
#include "os/threads.h"
#include "tests/support/harness.h"
#include "tests/support/stage_code.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static bool scribbles; /* sets errno in successful calls, as a call may */
static char folder[64] = "/tmp/codeheap-os-XXXXXX";

static const char *path_of(const char *name)
{
	static char path[128];
	static bool is_made; /* the finished name may hold an X, too */
	if (!is_made && !mkdtemp(folder))
		FAIL("mkdtemp: %s", strerror(errno));
	is_made = true;
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return path;
}

static void remove_folder(void)
{
	CHECK_EQ(rmdir(folder), 0);
}

TEST(file_create_takes_no_bait)
{
	char target[128];
	strcpy(target, path_of("victim"));
	int fd = ch__os_file_create(target, NULL, 0);
	CHECK(fd >= 0 && ch__os_file_put(fd, "keep", 4) == 4);
	close(fd);
	const char *path = path_of("bait");
	CHECK_EQ(symlink(target, path), 0);
	scribbles = true;
	CHECK_EQ(ch__os_file_create(path, NULL, 0), -1);
	CHECK_EQ(errno, EEXIST);
	scribbles = false;
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(mkfifo(path, 0600), 0); /* opening it would block for ever */
	CHECK_EQ(ch__os_file_create(path, NULL, 0), -1);
	CHECK_EQ(unlink(path), 0);
	struct stat s;
	CHECK(stat(target, &s) == 0 && s.st_size == 4);
	/* A leftover of this process is replaced by a new file; an open descriptor keeps the old
	 * file. */
	int old = open(target, O_RDONLY), again = ch__os_file_create(target, NULL, 0);
	CHECK(again >= 0 && fstat(again, &s) == 0 && s.st_size == 0);
	CHECK(fstat(old, &s) == 0 && s.st_size == 4);
	close(old);
	close(again);
	CHECK(ch__os_file_rename(target, path_of("other")));
	ch__os_file_remove(path_of("other"));
	remove_folder();
}

/* A kernel without large pages refuses the wish; the refusal leaves no trace. */
TEST(wish_for_large_pages_that_is_refused_leaves_errno_alone)
{
	size_t bytes = ch__os_page_bytes();
	void *at = ch__os_reserve(bytes, bytes, 0, ch__os_anywhere);
	CHECK(at);
	ch__os_unreserve(at, bytes);
	errno = E2BIG;
	CHECK(madvise(at, bytes, MADV_HUGEPAGE) != 0 && errno != E2BIG);
	errno = E2BIG;
	ch__os_suggest(at, bytes, CH__OS_LARGE_PAGES);
	CHECK_EQ(errno, E2BIG);
}

/* Handlers and loops of locks ask these questions, and must not change their caller's errno. */
TEST(questions_that_the_system_refuses_leave_errno_alone)
{
	_Atomic(uint32_t) word = 1;
	uintptr_t to[2];
	char *hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(hole != MAP_FAILED);
	errno = E2BIG;
	ch__os_futex_wait(&word, 0, 0); /* EAGAIN */
	CHECK_EQ(errno, E2BIG);
	ch__os_futex_wait(&word, 1, 1000); /* ETIMEDOUT */
	CHECK_EQ(errno, E2BIG);
	ch__os_futex_wake(&word);
	CHECK_EQ(errno, E2BIG);
	CHECK(!ch__os_is_readable(hole));
	CHECK_EQ(errno, E2BIG);
	CHECK(ch__os_is_readable(to));
	CHECK_EQ(errno, E2BIG);
	CHECK_EQ(ch__os_copy(to, (uintptr_t)hole, sizeof to), 0);
	CHECK_EQ(errno, E2BIG);
	int words = dup(STDERR_FILENO);
	close(STDERR_FILENO);
	ch__os_write_last("nothing", 7);
	int error = errno;
	dup2(words, STDERR_FILENO);
	CHECK_EQ(error, E2BIG);
	munmap(hole, 4096);
}

/* close(2) ends a cancelled thread, with whatever locks the thread has. */
static void *close_while_cancelled(void *fd)
{
	pthread_cancel(pthread_self());
	ch__os_close(*(int *)fd);
	*(int *)fd = -1;
	pthread_testcancel();
	return NULL;
}

TEST(thread_that_is_cancelled_comes_back_from_a_close)
{
	pthread_t thread;
	void *result;
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	CHECK_EQ(pthread_create(&thread, NULL, close_while_cancelled, &fd), 0);
	CHECK_EQ(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
	CHECK_EQ(fd, -1);
}

TEST(new_file_is_its_owner_s_alone)
{
	struct stat s;
	umask(0);
	int fd = ch__os_file_create(path_of("file"), NULL, 0);
	CHECK(fd >= 0 && fstat(fd, &s) == 0);
	CHECK_EQ(s.st_mode & 07777, 0600);
	close(fd);
	ch__os_file_remove(path_of("file"));
	remove_folder();
}

/* Dates the file long before or after `when`. */
static void date_file(const char *path, const struct timespec *when, int64_t later_ns)
{
	int64_t ns = (int64_t)when->tv_sec * 1000000000 + when->tv_nsec + later_ns;
	struct timespec at[2] = {{.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}};
	at[1] = at[0];
	CHECK_EQ(utimensat(AT_FDCWD, path, at, 0), 0);
}

/* A file belongs to this process if it changed after the process's start, which is known to 50 ms.
 * Each forked process starts at another fraction of a second. */
TEST(file_is_an_earlier_process_s_until_this_one_began)
{
	enum { PROCESSES = 4, BEFORE_NS = 60000000 };
	for (int i = 0; i < PROCESSES; i++) {
		struct timespec began;
		CHECK_EQ(clock_gettime(CLOCK_REALTIME, &began), 0);
		pid_t pid = fork_child();
		if (pid == 0) {
			const struct ch__os_held none = {.fd = -1};
			int fd = ch__os_file_create(path_of("file"), NULL, 0);
			CHECK(fd >= 0);
			close(fd);
			CHECK_EQ(ch__os_file_create(path_of("file"), &none, 0), -1);
			CHECK_EQ(errno, EBUSY);
			CHECK_EQ(dup(STDERR_FILENO), fd); /* looking left no descriptor */
			close(fd);
			date_file(path_of("file"), &began, -BEFORE_NS);
			fd = ch__os_file_create(path_of("file"), &none, 0);
			CHECK(fd >= 0);
			close(fd);
			ch__os_file_remove(path_of("file"));
			remove_folder();
			_exit(0);
		}
		expect_exit(pid, 0);
		usleep(230000);
	}
}

static _Atomic(unsigned) fatal_signals;

static void count_signal(int signal)
{
	(void)signal;
	fatal_signals++;
}

TEST(file_write_beyond_limits_is_an_error_not_a_signal)
{
	struct rlimit limit = {100, RLIM_INFINITY};
	char bytes[200] = {0};
	int ends[2], fd = ch__os_file_create(path_of("file"), NULL, 0);
	signal(SIGXFSZ, count_signal);
	signal(SIGPIPE, count_signal);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	CHECK(ch__os_file_put(fd, bytes, 100) == 100);
	CHECK(ch__os_file_put(fd, bytes, 1) != 1);
	CHECK_EQ(errno, EFBIG);
	limit.rlim_cur = RLIM_INFINITY;
	setrlimit(RLIMIT_FSIZE, &limit);
	CHECK_EQ(pipe(ends), 0);
	close(ends[0]);
	CHECK(ch__os_file_put(ends[1], bytes, 1) != 1);
	CHECK_EQ(errno, EPIPE);
	CHECK_EQ(fatal_signals, 0);
	int full = open("/dev/full", O_WRONLY);
	CHECK(full < 0 || (ch__os_file_put(full, bytes, 1) != 1 && errno == ENOSPC));
	ch__os_file_remove(path_of("file"));
	remove_folder();
}

TEST(file_is_read_to_its_end_and_known_by_its_place)
{
	char bytes[8] = "";
	char path[128];
	strcpy(path, path_of("file"));
	int fd = ch__os_file_create(path, NULL, 0);
	CHECK(ch__os_file_put(fd, "abcdef", 6) == 6);
	CHECK_EQ(ch__os_file_read(fd, 2, bytes, sizeof bytes), 4);
	CHECK_STR(bytes, "cdef");
	CHECK_EQ(ch__os_file_read(fd, 6, bytes, sizeof bytes), 0);
	CHECK_EQ(ch__os_file_read(-1, 0, bytes, sizeof bytes), -1);
	CHECK(ch__os_file_is_at(fd, path));
	CHECK(ch__os_file_rename(path, path_of("other")));
	CHECK(!ch__os_file_is_at(fd, path) && errno == ENOENT);
	CHECK_EQ(symlink(path_of("other"), path), 0); /* a link is not the place */
	CHECK(!ch__os_file_is_at(fd, path) && errno == EEXIST);
	ch__os_file_remove(path);
	ch__os_file_remove(path_of("other"));
	close(fd);
	remove_folder();
}

/* --- chained handlers --- */

static struct ch__os_action old_action;
static _Atomic(unsigned) ours, theirs;
static siginfo_t *seen_info;

static void our_handler(int signal, void *info, void *ucontext)
{
	ours++;
	ch__os_signal_chain(signal, info, ucontext, &old_action, false);
}

static void their_handler(int signal, siginfo_t *info, void *ucontext)
{
	(void)ucontext;
	sigset_t blocked;
	pthread_sigmask(SIG_BLOCK, NULL, &blocked);
	CHECK(signal == SIGUSR1 && sigismember(&blocked, SIGUSR2) && info->si_pid == getpid());
	seen_info = info;
	theirs++;
}

TEST(chain_calls_the_handler_that_was_there)
{
	struct sigaction action = {.sa_sigaction = their_handler, .sa_flags = SA_SIGINFO};
	sigaddset(&action.sa_mask, SIGUSR2);
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	CHECK(ch__os_signal_install(SIGUSR1, our_handler, &old_action, CH__OS_PLAIN));
	CHECK(ch__os_thread_signal(ch__os_thread_id(), SIGUSR1, NULL));
	CHECK_EQ(ours, 1);
	CHECK_EQ(theirs, 1);
	CHECK(seen_info);
	signal(SIGUSR2, SIG_IGN);
	CHECK(ch__os_signal_install(SIGUSR2, our_handler, &old_action, CH__OS_PLAIN));
	CHECK(ch__os_thread_signal(ch__os_thread_id(), SIGUSR2, NULL));
	CHECK_EQ(ours, 2);
}

static void note_own_id(void *id)
{
	*(int *)id = ch__os_thread_id();
}

TEST(thread_is_gone_by_the_answer_of_its_own_question)
{
	int id = 0;
	errno = ESRCH;
	CHECK(!ch__os_thread_is_gone(ch__os_thread_id()));
	CHECK_EQ(errno, ESRCH);
	run_on_ended_thread(note_own_id, &id);
	errno = 0;
	TEST_UNTIL(ch__os_thread_is_gone(id));
	CHECK_EQ(errno, 0);
}

/* Replaces sigaction in the whole program: another handler may come between look and change. */
static const struct sigaction *comes_between;
int __sigaction(int signal, const struct sigaction *action, struct sigaction *old);
int sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
	int (*real)(int, const struct sigaction *, struct sigaction *);
	*(void **)&real = dlsym(RTLD_NEXT, "sigaction");
	if (!real) /* a static program */
		real = __sigaction;
	const struct sigaction *between = comes_between;
	if (between && action) {
		comes_between = NULL;
		CHECK_EQ(real(signal, between, NULL), 0);
	}
	return real(signal, action, old);
}

TEST(handler_that_comes_while_ours_is_installed_is_chained_to)
{
	struct sigaction action = {.sa_sigaction = their_handler, .sa_flags = SA_SIGINFO};
	sigaddset(&action.sa_mask, SIGUSR2);
	comes_between = &action;
	CHECK(ch__os_signal_install(SIGUSR1, our_handler, &old_action, CH__OS_PLAIN));
	CHECK(!comes_between);
	CHECK(ch__os_thread_signal(ch__os_thread_id(), SIGUSR1, NULL));
	CHECK_EQ(ours, 1);
	CHECK_EQ(theirs, 1);
}

TEST(handler_that_the_system_refuses_is_not_installed)
{
	errno = 0;
	CHECK(!ch__os_signal_install(SIGKILL, our_handler, &old_action, CH__OS_PLAIN));
	CHECK_EQ(errno, EINVAL);
	for (uint64_t nth = 1; nth <= 2; nth++) {
		ch__os_fail_at(nth, true);
		bool is_installed = ch__os_signal_install(SIGUSR1, our_handler, &old_action,
							  CH__OS_PLAIN);
		CHECK_EQ(is_installed, ch__os_failable_calls() < nth);
		ch__os_fail_at(0, false);
	}
}

static void look_at_mask(int signal)
{
	sigset_t blocked;
	pthread_sigmask(SIG_BLOCK, NULL, &blocked);
	CHECK_EQ(sigismember(&blocked, signal), 1);
	theirs++;
}

/* The caller's own handler may have SA_NODEFER, so that nobody has blocked the signal. */
TEST(handler_that_is_chained_to_has_its_signal_blocked)
{
	struct sigaction action = {.sa_handler = look_at_mask};
	siginfo_t info = {.si_signo = SIGUSR1};
	ucontext_t context;
	sigset_t blocked;
	memset(&context, 0, sizeof context);
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	CHECK(ch__os_signal_install(SIGUSR1, our_handler, &old_action, CH__OS_PLAIN));
	ch__os_signal_chain(SIGUSR1, &info, &context, &old_action, false);
	CHECK_EQ(theirs, 1);
	pthread_sigmask(SIG_BLOCK, NULL, &blocked);
	CHECK_EQ(sigismember(&blocked, SIGUSR1), 0);
}

static void trap_behind_our_handler(void *ignored)
{
	if (ignored)
		signal(SIGTRAP, SIG_IGN);
	if (!ch__os_signal_install(SIGTRAP, our_handler, &old_action, CH__OS_PLAIN))
		_exit(2);
	code_raise(SIGTRAP);
	_exit(3); /* the trap was lost */
}

TEST(chain_to_the_default_dies_at_the_trap)
{
	expect_signal(trap_behind_our_handler, NULL, SIGTRAP);
	expect_signal(trap_behind_our_handler, "", SIGTRAP);
}

TEST(chain_to_the_default_stops_where_the_system_does)
{
	static const int stops[] = {SIGTSTP, SIGTTIN, SIGTTOU};
	for (unsigned i = 0; i < sizeof stops / sizeof stops[0]; i++) {
		int status;
		pid_t pid = fork_child();
		if (pid == 0) {
			CHECK(ch__os_signal_install(stops[i], our_handler, &old_action,
						    CH__OS_PLAIN));
			raise(stops[i]);
			_exit(ours);
		}
		CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
		CHECK(WIFSTOPPED(status));
		CHECK_EQ(WSTOPSIG(status), SIGSTOP);
		CHECK_EQ(kill(pid, SIGCONT), 0);
		expect_exit(pid, 1);
	}
}

/* --- threads --- */

static _Atomic(uint32_t) word;

static void *wake_later(void *arg)
{
	(void)arg;
	usleep(20000);
	atomic_store(&word, 1);
	ch__os_futex_wake(&word);
	return NULL;
}

TEST(futex_wakes_and_times_out)
{
	uint64_t start = ch__os_now_ns();
	ch__os_futex_wait(&word, 0, 10000000);
	CHECK(ch__os_now_ns() - start >= 9000000);
	ch__os_futex_wait(&word, 5, 0); /* another value: returns at once */
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, wake_later, NULL), 0);
	while (atomic_load(&word) == 0)
		ch__os_futex_wait(&word, 0, 0);
	pthread_join(thread, NULL);
}

static void check_bounds(void *arg)
{
	const void *low, *high, *here = __builtin_frame_address(0);
	(void)arg;
	CHECK(ch__os_stack_bounds(&low, &high));
	CHECK(here > low && here < high);
}

static uint64_t copied_to[3 * 4096 / sizeof(uint64_t)];

/* The kernel copies as far as memory is readable; without the kernel the library does likewise. */
static void copy_around_guard(uint8_t *at, bool is_refused)
{
	const size_t page = CH_ARCH_SMALLEST_PAGE, system = (size_t)sysconf(_SC_PAGESIZE);
	uintptr_t last = (uintptr_t)at + system - page;
	memset(copied_to, 0, sizeof copied_to);
	ch__os_fail_at(is_refused, is_refused);
	size_t before = ch__os_copy(copied_to, last + 8, 2 * page);
	size_t within = ch__os_copy(copied_to, (uintptr_t)at + system, page);
	size_t behind = ch__os_copy(copied_to, (uintptr_t)at + 2 * system, 64);
	ch__os_fail_at(0, false);
	CHECK_EQ(before, page - 8);
	CHECK_EQ(within, 0);
	CHECK_EQ(behind, 64);
	CHECK_EQ(copied_to[0], UINT64_C(0x2222222222222222));
	CHECK_EQ(copied_to[page / 8 - 2], UINT64_C(0x1111111111111111));
}

TEST(memory_that_cannot_be_read_is_not_copied)
{
	size_t system = (size_t)sysconf(_SC_PAGESIZE);
	uint8_t *at = mmap(NULL, 3 * system, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			   -1, 0);
	CHECK(at != MAP_FAILED);
	memset(at, 0x11, system);
	memset(at + 2 * system, 0x22, system);
	CHECK_EQ(mprotect(at + system, system, PROT_NONE), 0);
	copy_around_guard(at, false);
	copy_around_guard(at, true);
	CHECK_EQ(munmap(at + system, system), 0);
	copy_around_guard(at, false);
	copy_around_guard(at, true);
}

TEST(stack_that_the_process_began_on_is_known)
{
	const void *low, *high;
	CHECK(ch__os_stack_bounds(&low, &high));
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);
	CHECK(ch__os_is_first_stack(low, high));
	uintptr_t from = ch__os_first_stack_low((uintptr_t)low, (uintptr_t)high);
	CHECK(from <= here && ch__os_is_readable((const void *)from));
	/* Nothing is mapped far below the stack, and a handler may ask. */
	errno = ERANGE;
	from = ch__os_first_stack_low((uintptr_t)low & ~UINT64_C(0xffff), (uintptr_t)high);
	CHECK_EQ(errno, ERANGE);
	CHECK(from <= here);
	void *other = malloc(1 << 16);
	CHECK(other && !ch__os_is_first_stack(other, (char *)other + (1 << 16)));
	free(other);
}

/* The C library finds the first stack in /proc, which fails when no descriptor is left. */
enum { SIGNAL_STACK_BYTES = 1 << 16 };
static uint8_t *signal_stack;
static uintptr_t signal_stack_ends[4];

static void look_at_signal_stack(int signal)
{
	uintptr_t low = (uintptr_t)signal_stack, end = low + SIGNAL_STACK_BYTES;
	uintptr_t at[] = {low - 1, low, end - 1, end};
	(void)signal;
	for (unsigned i = 0; i < 4; i++)
		signal_stack_ends[i] = ch__os_signal_stack_end(at[i]);
}

/* Another stack may begin at the end of this stack. */
TEST(stack_of_signals_ends_with_its_last_byte)
{
	stack_t stack = {.ss_sp = signal_stack = malloc(SIGNAL_STACK_BYTES),
			 .ss_size = SIGNAL_STACK_BYTES};
	struct sigaction action = {.sa_handler = look_at_signal_stack, .sa_flags = SA_ONSTACK};
	uintptr_t end = (uintptr_t)signal_stack + SIGNAL_STACK_BYTES;
	CHECK(signal_stack && sigaltstack(&stack, NULL) == 0);
	CHECK_EQ(ch__os_signal_stack_end(end - 1), 0); /* nobody runs on the stack */
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	CHECK_EQ(raise(SIGUSR1), 0);
	CHECK_EQ(signal_stack_ends[0], 0);
	CHECK_EQ(signal_stack_ends[1], end);
	CHECK_EQ(signal_stack_ends[2], end);
	CHECK_EQ(signal_stack_ends[3], 0);
	stack.ss_flags = SS_DISABLE;
	CHECK_EQ(sigaltstack(&stack, NULL), 0);
	free(signal_stack);
}

TEST(stack_bounds_that_the_c_library_cannot_tell_are_an_error)
{
	struct rlimit before;
	const void *low, *high;
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
	const struct rlimit none = {0, before.rlim_max};
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
	errno = 0;
	CHECK(!ch__os_stack_bounds(&low, &high));
	CHECK_EQ(errno, EMFILE);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0); /* LeakSanitizer opens files at the end */
}

TEST(stack_bounds_enclose_the_frame_of_every_thread)
{
	check_bounds(NULL);
	run_on_ended_thread(check_bounds, NULL);
}

TEST(membarrier_works_once_registered_or_says_no)
{
	bool fast_fence, core_sync;
	ch__os_membarrier_register(&fast_fence, &core_sync);
	long can = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
	CHECK_EQ(fast_fence, can > 0 && (can & MEMBARRIER_CMD_PRIVATE_EXPEDITED));
	CHECK_EQ(core_sync, can > 0 && (can & MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE));
	CHECK_EQ(ch__os_membarrier_fence(), fast_fence);
	CHECK_EQ(ch__os_membarrier_core_sync(), core_sync);
	ch__os_fail_at(1, true);
	ch__os_membarrier_register(&fast_fence, &core_sync);
	CHECK(!fast_fence && !core_sync);
	ch__os_fail_at(0, false);
}

TEST(random_bytes_differ_and_the_environment_is_read)
{
	uint64_t a, b;
	ch__os_random(&a, sizeof a);
	ch__os_random(&b, sizeof b);
	CHECK(a != b);
	setenv("CODEHEAP_NO_SUCH", "x", 1);
	CHECK_STR(ch__os_environment("CODEHEAP_NO_SUCH"), "x");
	unsetenv("CODEHEAP_NO_SUCH");
	CHECK(!ch__os_environment("CODEHEAP_NO_SUCH"));
	CHECK_EQ(ch__os_process_id(), getpid());
}

TEST(reserve_at_refuses_what_is_mapped)
{
	size_t page = ch__os_page_bytes();
	uint8_t *at = ch__os_reserve(4 * page, page, 0, ch__os_anywhere);
	CHECK(at);
	size_t mapped = mapped_bytes();
	for (int i = 0; i < 64; i++) {
		CHECK(!ch__os_reserve_at(at + page, page));
		CHECK_EQ(errno, EEXIST);
	}
	/* The memory that the system gave at another place went back. */
	CHECK(CH_TSAN || mapped_bytes() < mapped + 64 * page);
	ch__os_unreserve(at, 4 * page);
	CHECK(ch__os_reserve_at(at, 4 * page));
	ch__os_unreserve(at, 4 * page);
}

/* Near an address, anywhere and at random, whatever the alignment. A refused call takes nothing. */
TEST(reserve_where_there_is_no_space_says_so)
{
	size_t page = ch__os_page_bytes();
	const uintptr_t hints[] = {0, (uintptr_t)ch__os_reserve, ch__os_anywhere};
	for (unsigned i = 0; i < sizeof hints / sizeof *hints; i++) {
		uint8_t *at = ch__os_reserve(8 * page, 4 * page, page, hints[i]);
		CHECK(at && ((uintptr_t)at + page) % (4 * page) == 0);
		/* All pages are taken, and the pages beside are unchanged. */
		CHECK(!ch__os_reserve_at(at, page) && !ch__os_reserve_at(at + 7 * page, page));
		ch__os_unreserve(at, 8 * page);
		ch__os_pretended.reserve_bytes = 7 * page;
		errno = 0;
		CHECK(!ch__os_reserve(8 * page, 4 * page, page, hints[i]));
		CHECK_EQ(errno, ENOMEM);
		ch__os_pretended.reserve_bytes = 0;
		CHECK(ch__os_reserve_at(at, 8 * page));
		ch__os_unreserve(at, 8 * page);
	}
}

/* Of 16 places on each side one is free; the places below the address are tried first. */
TEST(only_place_that_is_left_near_an_address_is_found)
{
	size_t place = 64 << 20, near = 16 * place;
	uint8_t *all = mmap(NULL, 2 * near + place, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(all != MAP_FAILED);
	uint8_t *low = (uint8_t *)(((uintptr_t)all + place - 1) & ~(uintptr_t)(place - 1));
	for (uint8_t *at = low; at < low + 2 * near; at += place) {
		ch__os_unreserve(at, place);
		if ((uint32_t)(uintptr_t)at) /* no pool begins at a multiple of 4 GiB */
			CHECK(ch__os_reserve(place, place, 0, (uintptr_t)low + near) == at);
	}
}

/* --- interrupted calls --- */

static unsigned refusals, calls_seen;
static int refusal;

static bool is_refused(void)
{
	calls_seen++;
	if (!refusals)
		return false;
	refusals--;
	errno = refusal;
	return true;
}

int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes)
{
	return is_refused() ? -1 : __real_fallocate(fd, mode, offset, bytes);
}

int __real_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice)
{
	return is_refused() ? -1 : __real_madvise(at, bytes, advice);
}

static void refuse(unsigned times, int error)
{
	refusals = times;
	refusal = error;
	calls_seen = 0;
	errno = EINTR; /* from an earlier call */
}

TEST(memory_is_asked_for_again_where_a_signal_came_and_only_there)
{
	struct ch__os_held file;
	size_t page = ch__os_page_bytes();
	CHECK(ch__os_memfd(4 * page, &file));
	uint8_t *at = ch__os_private(4 * page);
	CHECK(at);
	refuse(0, 0);
	CHECK(ch__os_fd_commit(&file, page, 2 * page));
	CHECK_EQ(calls_seen, 1);
	refuse(3, EINTR);
	CHECK(ch__os_fd_commit(&file, page, 2 * page));
	CHECK_EQ(calls_seen, 4);
	refuse(1, ENOSPC);
	CHECK(!ch__os_fd_commit(&file, page, 2 * page));
	CHECK_EQ(errno, ENOSPC);
	CHECK_EQ(calls_seen, 1);
	refuse(0, 0);
	CHECK(ch__os_populate(at, 4 * page));
	CHECK_EQ(calls_seen, 1);
	refuse(3, EINTR);
	CHECK(ch__os_populate(at, 4 * page));
	CHECK_EQ(calls_seen, 4);
	refuse(3, EAGAIN);
	CHECK(ch__os_populate(at, 4 * page));
	CHECK_EQ(calls_seen, 4);
	refuse(1, ENOMEM);
	CHECK(!ch__os_populate(at, 4 * page));
	CHECK_EQ(errno, ENOMEM);
	CHECK_EQ(calls_seen, 1);
	/* The repetition has an end. */
	refuse(100000, EAGAIN);
	CHECK(!ch__os_populate(at, 4 * page));
	refuse(0, 0);
	ch__os_unmap(at, 4 * page);
	ch__os_let_go(&file);
}

/* --- errno --- */

int __real_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes);
int __wrap_munmap(void *at, size_t bytes)
{
	int result = __real_munmap(at, bytes);
	if (scribbles)
		errno = ENOTTY;
	return result;
}

int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
	int result = __real_close(fd);
	if (scribbles)
		errno = ENOTTY;
	return result;
}

int __real_lstat(const char *path, struct stat *found);
int __wrap_lstat(const char *path, struct stat *found);
int __wrap_lstat(const char *path, struct stat *found)
{
	int result = __real_lstat(path, found);
	if (scribbles && result == 0)
		errno = ENOTTY;
	return result;
}

enum { NEAR, FILE_OF_CODE, REVIVED, MAKERS };

static bool make_one(int maker, uint8_t *shared, size_t page)
{
	struct ch__os_held file;
	void *at;
	switch (maker) {
	case NEAR:
		at = ch__os_private_near(page, ch__os_anywhere);
		if (at)
			munmap(at, page);
		return at;
	case FILE_OF_CODE:
		if (!ch__os_memfd(page, &file))
			return false;
		ch__os_let_go(&file);
		return true;
	default:
		return ch__os_revive_from(shared, shared + 2 * page, page);
	}
}

/* The undoing calls succeed, and must not change the errno of the failure. */
TEST(call_that_fails_half_way_says_why)
{
	size_t page = ch__os_page_bytes();
	uint8_t *shared = ch__os_reserve(4 * page, page, 0, ch__os_anywhere);
	CHECK(shared && ch__os_map_shared_rx(shared, 4 * page));
	for (int maker = 0; maker < MAKERS; maker++)
		for (uint64_t nth = 1, is_through = 0; !is_through; nth++) {
			scribbles = true;
			errno = 0;
			ch__os_fail_as(nth, true, ENFILE);
			bool is_made = make_one(maker, shared, page);
			int error = errno;
			is_through = ch__os_failable_calls() < nth;
			ch__os_fail_at(0, false);
			scribbles = false;
			CHECK_EQ(is_made, is_through);
			if (!is_made)
				CHECK_EQ(error, ENFILE);
		}
	ch__os_unreserve(shared, 4 * page);
	/* Letting go of a lost file changes no errno. */
	struct ch__os_held none = {.fd = -1}, lost;
	CHECK(ch__os_memfd(page, &lost));
	CHECK_EQ(close(atomic_load(&lost.fd)), 0);
	errno = ERANGE;
	ch__os_let_go(&none);
	CHECK_EQ(errno, ERANGE);
	ch__os_let_go(&lost);
	CHECK_EQ(errno, ERANGE);
	CHECK(!ch__os_holds(&lost));
	CHECK_EQ(errno, EBADF);
}
