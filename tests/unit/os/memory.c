/* SPDX-License-Identifier: MIT
 * memory.c: memory from the gate to the OS: the kind of file behind, the address when much address
 * space is taken, the advice about large pages, signals that come meanwhile; stacks. */
#define _GNU_SOURCE
#include "os/os.h"
#include "os/threads.h"
#include "tests/support/refuse_call.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *path_of(const struct ch__os_held *file)
{
	static char path[128];
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", file->fd);
	ssize_t n = readlink(link, path, sizeof path - 1);
	CHECK(n > 0);
	path[n] = 0;
	return path;
}

static bool begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

TEST(memory_of_a_file_is_a_memfd_and_only_where_that_is_refused_another)
{
	size_t page = ch__os_page_bytes();
	struct ch__os_held file;
	int given = memfd_create("", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (given < 0)
		skip("the system gives none");
	close(given);
	CHECK(ch__os_memfd(page, &file));
	CHECK(begins(path_of(&file), "/memfd:codeheap"));
	ch__os_let_go(&file);
	ch__os_fail_at(1, false);
	CHECK(ch__os_memfd(page, &file));
	ch__os_fail_at(0, false);
	if (!begins(path_of(&file), "/dev/shm/") && !begins(path_of(&file), "/tmp/"))
		FAIL("where no memfd is, it is %s", path_of(&file));
	ch__os_let_go(&file);
}

/* Linux before 6.3 refuses a flag that it does not know. */
TEST(kernel_that_knows_fewer_flags_gives_a_sealed_memfd)
{
	enum { NOEXEC_SEAL = 8, BOTH = F_SEAL_GROW | F_SEAL_SHRINK };
	struct ch__os_held file;
	int given = memfd_create("", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	refuse_call_with(SYS_memfd_create, EINVAL, 1, NOEXEC_SEAL);
	CHECK(ch__os_memfd(ch__os_page_bytes(), &file));
	CHECK_EQ(begins(path_of(&file), "/memfd:codeheap"), given >= 0);
	CHECK(given < 0 || (fcntl(file.fd, F_GET_SEALS) & BOTH) == BOTH);
	ch__os_let_go(&file);
	close(given);
}

TEST(file_that_was_refused_is_held_by_nobody)
{
	size_t page = ch__os_page_bytes();
	struct ch__os_held file;
	struct rlimit limit;
	CHECK(ch__os_memfd(page, &file) && ch__os_holds(&file));
	CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = page;
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	int fd = file.fd;
	CHECK(!ch__os_memfd(2 * page, &file));
	CHECK_EQ(errno, EFBIG);
	CHECK(!ch__os_holds(&file));
	CHECK_EQ(close(fd), 0);
}

/* A process that closed its standard input opens files with the number 0. */
TEST(file_with_the_number_0_is_held)
{
	struct ch__os_held file;
	CHECK_EQ(close(0), 0);
	CHECK_EQ(open("/dev/zero", O_RDONLY | O_CLOEXEC), 0);
	CHECK(ch__os_hold(&file, 0) && ch__os_holds(&file));
	ch__os_let_go(&file);
	CHECK_EQ(fcntl(0, F_GETFD), -1);
}

enum { MIB = 1 << 20, ROUNDS = 16 };
static const uintptr_t hint = UINT64_C(0x200000000000);

static void *reserve_near(void)
{
	void *at = ch__os_reserve(MIB, MIB, 0, hint);
	CHECK(at);
	ch__os_unreserve(at, MIB);
	return at;
}

TEST(place_near_an_address_is_below_it_while_there_is_one)
{
	if (CH_TSAN)
		skip("memory may lie in some ranges only");
	for (int i = 0; i < ROUNDS; i++) {
		uintptr_t at = (uintptr_t)reserve_near();
		CHECK(at < hint && hint - at <= (uintptr_t)1 << 30);
	}
	/* All space below is taken, so places lie above. */
	CHECK(ch__os_reserve_at((void *)(hint - 1024ul * MIB), 1024ul * MIB));
	for (int i = 0; i < ROUNDS; i++) {
		uintptr_t at = (uintptr_t)reserve_near();
		CHECK(at >= hint && at - hint < (uintptr_t)1 << 30);
	}
}

/* No place near the end of the address space is the program's, and none is near the beginning. */
TEST(place_near_the_end_of_the_address_space_is_not_at_its_beginning)
{
	for (uintptr_t below = 1; below < 64 * MIB; below = 2 * below + 1) {
		uintptr_t at = (uintptr_t)ch__os_reserve(MIB, 64ul * MIB, 0, UINTPTR_MAX - below);
		CHECK(at >= (uintptr_t)2 << 30 && at % (64ul * MIB) == 0);
		ch__os_unreserve((void *)at, MIB);
	}
}

/* When a place is taken, another place is tried. */
TEST(place_near_an_address_is_found_where_half_is_taken)
{
	if (CH_TSAN)
		skip("memory may lie in some ranges only");
	CHECK(ch__os_reserve_at((void *)(hint - 1024ul * MIB), 512 * MIB));
	CHECK(ch__os_reserve_at((void *)(hint + 512ul * MIB), 512 * MIB));
	for (int i = 0; i < ROUNDS; i++) {
		uintptr_t at = (uintptr_t)reserve_near();
		CHECK(at >= hint - 512ul * MIB && at < hint);
	}
}

/* There the second half of an address is a small number, as stale words of a stack have. */
TEST(no_place_begins_at_a_multiple_of_4_gib)
{
	if (CH_TSAN)
		skip("memory may lie in some ranges only");
	for (int i = 0; i < ROUNDS; i++) {
		char *at = ch__os_reserve(MIB, 64ul * MIB, 4096, hint + 512ul * MIB);
		CHECK(at && (uint32_t)(uintptr_t)(at + 4096));
		/* Every second place that the system likes is such a multiple. */
		at = ch__os_reserve(MIB, 2048ul * MIB, 4096, ch__os_anywhere);
		CHECK(at && (uintptr_t)(at + 4096) % (4096ul * MIB) == 2048ul * MIB);
	}
}

/* A jump reaches 2 GiB. The largest pool has two guards and a page besides. */
TEST(place_of_more_than_a_gib_near_an_address_is_in_reach)
{
	size_t bytes = 1024ul * MIB + 3 * (64 << 10);
	if (CH_TSAN)
		skip("memory may lie in some ranges only");
	uintptr_t at = (uintptr_t)ch__os_reserve(bytes, 64ul * MIB, 2 * (64 << 10), hint);
	CHECK(at && hint - at < 2048ul * MIB);
	at = (uintptr_t)ch__os_reserve(bytes, 64ul * MIB, 2 * (64 << 10), hint);
	CHECK(at > hint && at + bytes - hint < 2048ul * MIB);
}

TEST(memory_that_is_for_large_pages_is_known_to_the_system_as_such)
{
	uint8_t *at = mmap(NULL, 4 * MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED && !mapping_has_flag(at, " hg"));
	if (madvise(at + 2 * MIB, 2 * MIB, MADV_HUGEPAGE) != 0 ||
	    !mapping_has_flag(at + 2 * MIB, " hg"))
		skip("the kernel has no large pages, or does not say so");
	ch__os_suggest(at, 2 * MIB, CH__OS_LARGE_PAGES);
	CHECK(mapping_has_flag(at, " hg"));
	munmap(at, 4 * MIB);
}

/* Replaces fallocate in the whole program. Like the tmpfs of older kernels under a timer: the call
 * ends at any signal, and a try takes longer than the time between two. What no mask holds back, as
 * a debugger's stop, ends one try more. */
static unsigned interrupted;
int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
	enum { TRIES = 100 };
	static bool is_stopped;
	sigset_t blocked;
	pthread_sigmask(SIG_BLOCK, NULL, &blocked);
	if (sigismember(&blocked, SIGALRM) && is_stopped)
		return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
	if (interrupted++ == TRIES)
		FAIL("the signals never let it end");
	is_stopped = sigismember(&blocked, SIGALRM);
	errno = EINTR;
	return -1;
}

TEST(memory_of_a_file_comes_though_signals_keep_coming)
{
	size_t page = ch__os_page_bytes();
	struct ch__os_held file;
	sigset_t blocked;
	CHECK(ch__os_memfd(2 * page, &file));
	CHECK(ch__os_fd_commit(&file, 0, 2 * page));
	CHECK(interrupted > 0);
	pthread_sigmask(SIG_BLOCK, NULL, &blocked);
	CHECK_EQ(sigismember(&blocked, SIGALRM), 0);
	ch__os_let_go(&file);
}

/* Replaces personality in the whole program: a filter of system calls may refuse each change. */
static bool is_personality_kept;
int personality(unsigned long persona)
{
	if (is_personality_kept && persona != (unsigned long)-1) {
		errno = EPERM;
		return -1;
	}
	return (int)syscall(SYS_personality, persona);
}

TEST(view_that_would_be_executable_is_refused_where_the_personality_is_kept)
{
	size_t page = ch__os_page_bytes();
	int before = personality((unsigned long)-1);
	if (before == -1 || personality((unsigned long)before | READ_IMPLIES_EXEC) == -1)
		skip("the system keeps the personality");
	void *place = ch__os_reserve(page, page, 0, ch__os_anywhere);
	CHECK(place);
	ch__os_look_at_personality();
	CHECK(ch__os_map_private(place, page, CH__OS_RW));
	is_personality_kept = true;
	errno = 0;
	CHECK(!ch__os_map_private(place, page, CH__OS_RW));
	CHECK_EQ(errno, EPERM);
	CHECK(ch__os_map_private(place, page, CH__OS_RX));
	is_personality_kept = false;
}

static uint64_t copied_from[2048], copied_to[2048];
static size_t copied;

static void copy_alone(void)
{
	CHECK_EQ(ch__os_copy(copied_to, (uintptr_t)copied_from, sizeof copied_to), copied);
}

/* Without the kernel a copy ends with a page, and faults where the page goes meanwhile. */
TEST(kernel_copies_memory_behind_the_end_of_the_first_thread)
{
	struct iovec to = {copied_to, sizeof copied_to}, from = {copied_from, sizeof copied_from};
	bool does_copy = process_vm_readv(getpid(), &to, 1, &from, 1, 0) == sizeof copied_to;
	copied = ch__os_copy(copied_to, (uintptr_t)copied_from, sizeof copied_to);
	CHECK(!does_copy || copied == sizeof copied_to);
	run_behind_first_thread(copy_alone);
}

static void *expect_own_bounds(void *low)
{
	const void *found, *high;
	CHECK(ch__os_stack_bounds(&found, &high));
	CHECK_EQ((uintptr_t)found, (uintptr_t)low);
	return NULL;
}

/* Only the bounds of the process's first stack are known for good. */
TEST(stack_in_the_place_of_a_larger_one_has_bounds_of_its_own)
{
	size_t bytes = 4 * MIB; /* ThreadSanitizer wants the most of a half. */
	uint8_t *at = ch__os_private(bytes);
	CHECK(at);
	for (uint8_t *low = at; low < at + bytes; low += bytes / 2) {
		pthread_attr_t attributes;
		pthread_t thread;
		size_t room = (size_t)(at + bytes - low);
		CHECK_EQ(pthread_attr_init(&attributes), 0);
		CHECK_EQ(pthread_attr_setstack(&attributes, low, room), 0);
		CHECK_EQ(pthread_create(&thread, &attributes, expect_own_bounds, low), 0);
		CHECK_EQ(pthread_join(thread, NULL), 0);
	}
}

static bool is_undisturbed;
static void look_at_mask(int signal, void *info, void *context)
{
	sigset_t now;
	(void)info, (void)context;
	CHECK_EQ(pthread_sigmask(SIG_BLOCK, NULL, &now), 0);
	is_undisturbed = signal == SIGUSR1 && sigismember(&now, SIGUSR2);
}

TEST(handler_that_nothing_disturbs_runs_with_every_signal_blocked)
{
	struct ch__os_action old;
	CHECK(ch__os_signal_install(SIGUSR1, look_at_mask, &old, CH__OS_UNDISTURBED));
	CHECK_EQ(raise(SIGUSR1), 0);
	CHECK(is_undisturbed);
}

TEST(first_stack_without_a_limit_begins_where_memory_is_mapped)
{
	const void *low, *high;
	struct rlimit limit;
	CHECK(ch__os_stack_bounds(&low, &high));
	CHECK_EQ(getrlimit(RLIMIT_STACK, &limit), 0);
	if (limit.rlim_max != RLIM_INFINITY)
		skip("the stack has a limit that stays");
	limit.rlim_cur = RLIM_INFINITY;
	CHECK_EQ(setrlimit(RLIMIT_STACK, &limit), 0);
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);
	uintptr_t from = ch__os_first_stack_low(here, (uintptr_t)high);
	CHECK(from <= here && ch__os_is_readable((const void *)from));
	/* SystemCallFilter=@system-service of a systemd service would kill there. */
	refuse_call(SYS_mincore, EPERM);
	CHECK_EQ(ch__os_first_stack_low(here, (uintptr_t)high), from);
	/* From then on the kernel does not say whether pages are mapped. */
	refuse_call(SYS_msync, EPERM);
	CHECK_EQ(ch__os_first_stack_low(here, (uintptr_t)high), here);
}

TEST(call_that_is_refused_leaves_errno_alone)
{
	const void *low, *high;
	CHECK(ch__os_stack_bounds(&low, &high));
	refuse_call(SYS_close, EIO);
	refuse_call(SYS_prlimit64, EPERM);
	errno = E2BIG;
	ch__os_close(STDIN_FILENO);
	CHECK_EQ(errno, E2BIG);
	ch__os_first_stack_low((uintptr_t)low, (uintptr_t)high);
	CHECK_EQ(errno, E2BIG);
}

/* Number 0 is what a sender has that does not say who it is. */
TEST(signal_to_a_thread_says_who_sent_it)
{
	sigset_t set;
	siginfo_t info;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	CHECK_EQ(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
	if (!getuid() && setuid(1) != 0)
		skip("the process has number 0, and keeps it");
	CHECK(ch__os_thread_signal(ch__os_thread_id(), SIGUSR1, &set));
	CHECK_EQ(sigwaitinfo(&set, &info), SIGUSR1);
	CHECK(info.si_pid == getpid() && info.si_uid == getuid());
	CHECK_EQ(ch__os_signal_sender(&info, &set), CH__OS_SENDER_TAGGED);
	info.si_pid++; /* a child has the tag at the same address */
	CHECK_EQ(ch__os_signal_sender(&info, &set), CH__OS_SENDER_OTHER);
}

static void *ask_many_times(void *arg)
{
	enum { TIMES = 1000, FEW = 1000 };
	const void *low, *high;
	(void)arg;
	CHECK(ch__os_stack_bounds(&low, &high));
	size_t before = mallinfo2().uordblks;
	for (int i = 0; i < TIMES; i++)
		CHECK(ch__os_stack_bounds(&low, &high));
	CHECK(mallinfo2().uordblks < before + FEW);
	return NULL;
}

/* The C library keeps a set of processors beside the bounds. */
TEST(bounds_of_a_stack_take_no_memory)
{
	pthread_t thread;
	mallopt(M_ARENA_MAX, 1); /* the one that is counted */
	CHECK_EQ(pthread_create(&thread, NULL, ask_many_times, NULL), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* The C library asks for the processors of the thread, too, and sets no errno. */
static void ask_for_bounds(void *arg)
{
	const void *low, *high;
	(void)arg;
	refuse_call(SYS_sched_getaffinity, EPERM);
	errno = 0;
	CHECK(!ch__os_stack_bounds(&low, &high));
	CHECK_EQ(errno, EPERM);
}

TEST(bounds_of_a_stack_that_are_not_known_have_an_errno)
{
	run_on_ended_thread(ask_for_bounds, NULL);
}
