/* SPDX-License-Identifier: MIT
 * harness.c: main() of every test program, checks, child processes, time and random numbers. A
 * start runs one case only; limits, parallel runs and the count of results are the duty of
 * tests/runner/runner.c.
 */
#include "tests/support/harness.h"
#include "arch/arch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct test_case *cases, **cases_end = &cases;

void test_add(struct test_case *t)
{
	*cases_end = t;
	cases_end = &t->next;
}

void test_fail(const char *file, int line, const char *format, ...)
{
	char text[1000];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	fflush(stdout);
	dprintf(STDERR_FILENO, "%s:%d: %s\n", file, line, text);
	_exit(1);
}

bool test_str_equal(const char *a, const char *b)
{
	return a && b && strcmp(a, b) == 0;
}

void skip(const char *format, ...)
{
	char text[500];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	fflush(stdout);
	dprintf(STDERR_FILENO, "skip: %s\n", text);
	_exit(TEST_SKIPPED);
}

struct thread_call {
	void (*fn)(void *);
	void *arg;
};

static void *call_on_thread(void *p)
{
	struct thread_call *call = p;
	call->fn(call->arg);
	return NULL;
}

void run_on_ended_thread(void (*fn)(void *), void *arg)
{
	struct thread_call call = {fn, arg};
	pthread_attr_t attr;
	pthread_t thread;
	enum { STACK_BYTES = 64 << 20 };
	CHECK_EQ(pthread_attr_init(&attr), 0);
	CHECK_EQ(pthread_attr_setstacksize(&attr, STACK_BYTES), 0);
	CHECK_EQ(pthread_create(&thread, &attr, call_on_thread, &call), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	pthread_attr_destroy(&attr);
}

void wipe_stack(void)
{
	volatile char below[1 << 15];
	for (size_t i = 0; i < sizeof below; i++)
		below[i] = 0;
}

static void forbid_core(void)
{
	struct rlimit none = {0, 0};
	setrlimit(RLIMIT_CORE, &none);
}

/* Reads until the pipe ends, and drops text that does not fit, so that the child never blocks on a
 * full pipe. */
static void drain(int fd, char *text, size_t text_bytes)
{
	size_t used = 0;
	for (;;) {
		char piece[512];
		ssize_t n = read(fd, piece, sizeof piece);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		size_t fits = text_bytes - 1 - used < (size_t)n ? text_bytes - 1 - used : (size_t)n;
		memcpy(text + used, piece, fits);
		used += fits;
	}
	text[used] = 0;
}

void expect_signal_text(void (*fn)(void *), void *arg, int expected, char *text, size_t text_bytes)
{
	int ends[2] = {-1, -1}, status;
	if (text)
		CHECK_EQ(pipe(ends), 0);
	fflush(stdout);
	fflush(stderr);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		forbid_core();
		if (text) {
			dup2(ends[1], STDERR_FILENO);
			close(ends[0]);
			close(ends[1]);
		}
		if (expected)
			signal(expected, SIG_DFL);
		fn(arg);
		_exit(0);
	}
	if (text) {
		close(ends[1]);
		drain(ends[0], text, text_bytes);
		close(ends[0]);
		/* Drops the emulator's message on a signal that kills, behind the child's text. */
		char *emulators = strstr(text, "qemu: uncaught target signal");
		if (emulators)
			*emulators = 0;
	}
	while (waitpid(pid, &status, 0) < 0)
		CHECK_EQ(errno, EINTR);
	if (expected == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return;
	if (expected != 0 && WIFSIGNALED(status) && WTERMSIG(status) == expected)
		return;
	if (text)
		dprintf(STDERR_FILENO, "%s", text);
	if (WIFSIGNALED(status))
		FAIL("child died of %s", strsignal(WTERMSIG(status)));
	FAIL("child exited with %d, not by signal %d", WEXITSTATUS(status), expected);
}

void expect_signal(void (*fn)(void *), void *arg, int expected)
{
	expect_signal_text(fn, arg, expected, NULL, 0);
}

void run_case_again(const char *name)
{
	/* Behind an emulator the kernel cannot start this program's own machine code. */
	enum { WORDS_MAX = 24 };
	char words[1000], self[1000], *argv[WORDS_MAX + 3];
	const char *emulator = getenv("CODEHEAP_TEST_EMULATOR");
	int n = 0;
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	CHECK(length > 0);
	self[length] = 0;
	snprintf(words, sizeof words, "%s", emulator ? emulator : "");
	for (char *word = strtok(words, " "); word && n < WORDS_MAX; word = strtok(NULL, " "))
		argv[n++] = word;
	argv[n++] = self;
	argv[n++] = (char *)(uintptr_t)name;
	argv[n] = NULL;
	/* The path of the program may lead elsewhere once something was mounted. */
	execvp(n > 2 ? argv[0] : "/proc/self/exe", argv);
	FAIL("%s: %s", argv[0], strerror(errno));
}

int fork_child(void)
{
	int pid = fork();
	CHECK(pid >= 0);
	return pid;
}

void expect_exit(int pid, int code)
{
	int status;
	CHECK(pid > 0);
	while (waitpid(pid, &status, 0) < 0)
		CHECK_EQ(errno, EINTR);
	if (WIFSIGNALED(status))
		FAIL("the child died of %s", strsignal(WTERMSIG(status)));
	if (WEXITSTATUS(status) != code)
		FAIL("the child exited with %d", WEXITSTATUS(status));
}

void expect_exit_at_once(int pid, const long *wakes_before)
{
	enum { WAKES = 500 };
	struct rusage used;
	int status;
	CHECK_EQ(wait4(pid, &status, 0, &used), pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(used.ru_nvcsw - (wakes_before ? *wakes_before : 0) < WAKES);
}

static void *call_alone(void *fn)
{
	/* /proc/self is the first thread's, which has no memory after its end. */
	TEST_UNTIL(mapped_bytes() == 0)
		sched_yield();
	(*(void (**)(void))fn)();
	_exit(0);
}

void run_behind_first_thread(void (*fn)(void))
{
	static void (*called)(void);
	pthread_t thread;
	called = fn;
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK_EQ(pthread_create(&thread, NULL, call_alone, &called), 0);
		pthread_exit(NULL);
	}
	expect_exit(pid, 0);
}

static uint64_t number_of_environment(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);
	if (!text || !*text)
		return otherwise;
	char *end;
	errno = 0;
	uint64_t value = strtoull(text, &end, 0);
	if (errno || *end)
		FAIL("%s=%s is not a number", name, text);
	return value;
}

unsigned storm_ms_of(unsigned full_ms)
{
	uint64_t allowed = number_of_environment("CODEHEAP_TEST_STORM_MS", TEST_STORM_DEFAULT_MS);
	return allowed < full_ms ? (unsigned)allowed : full_ms;
}

unsigned storm_ms(void)
{
	return storm_ms_of(TEST_STORM_DEFAULT_MS);
}

struct test_random test_random_new(void)
{
	uint64_t seed = number_of_environment("CODEHEAP_TEST_SEED", 0);
	if (seed == 0)
		seed = (now_ns() * 0x9e3779b97f4a7c15ull) | 1;
	printf("seed: CODEHEAP_TEST_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
	return (struct test_random){seed};
}

uint64_t test_random_next(struct test_random *r)
{
	r->state ^= r->state >> 12;
	r->state ^= r->state << 25;
	r->state ^= r->state >> 27;
	return r->state * 0x2545f4914f6cdd1dull;
}

uint64_t test_random_below(struct test_random *r, uint64_t bound)
{
	return bound ? test_random_next(r) % bound : 0;
}

uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t test_waits(uint64_t since_ns, const char *file, int line, const char *condition)
{
	enum { LONG_S = 10 };
	if (since_ns == UINT64_MAX || now_ns() < since_ns + LONG_S * UINT64_C(1000000000))
		return since_ns;
	dprintf(STDERR_FILENO, "%s:%d: waits for %s\n", file, line, condition);
	return UINT64_MAX;
}

bool thread_is_asleep(int tid)
{
	char path[64], text[256] = "";
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
	FILE *f = fopen(path, "r");
	if (f && !fgets(text, sizeof text, f))
		text[0] = 0;
	if (f)
		fclose(f);
	const char *behind_name = strrchr(text, ')');
	return behind_name && strncmp(behind_name, ") S", 3) == 0;
}

/* Returns number `nth` of statm, from 0 on, in bytes; statm counts pages. */
static size_t statm_bytes(int nth)
{
	char text[100] = "", *at = text;
	int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
	close(fd);
	for (; nth; nth--)
		(void)strtoull(at, &at, 10);
	return strtoull(at, NULL, 10) * (size_t)sysconf(_SC_PAGESIZE);
}

size_t mapped_bytes(void)
{
	return statm_bytes(0);
}

size_t resident_bytes(void)
{
	return statm_bytes(1);
}

unsigned open_files(void)
{
	unsigned n = 0;
	DIR *folder = opendir("/proc/self/fd");
	CHECK(folder);
	while (readdir(folder))
		n++;
	closedir(folder);
	return n - 3; /* ".", ".." and the folder itself */
}

int descriptor_of(const char *letters)
{
	for (int fd = STDERR_FILENO + 1; fd < 256; fd++) {
		char link[40], name[300];
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(link, name, sizeof name - 1);
		name[n > 0 ? n : 0] = 0;
		if (strstr(name, letters))
			return fd;
	}
	return -1;
}

bool mapping_has_flag(const void *at, const char *flag)
{
	char line[512];
	unsigned long low, high;
	bool is_it = false, has = false;
	FILE *smaps = fopen("/proc/self/smaps", "r");
	CHECK(smaps);
	while (fgets(line, sizeof line, smaps)) {
		if (sscanf(line, "%lx-%lx ", &low, &high) == 2)
			is_it = low <= (uintptr_t)at && (uintptr_t)at < high;
		else if (is_it && strncmp(line, "VmFlags:", 8) == 0)
			has = strstr(line, flag) != NULL;
	}
	fclose(smaps);
	return has;
}

uint64_t private_kib(uintptr_t from, size_t bytes)
{
	char line[512];
	unsigned long low, high, kib;
	bool is_inside = false;
	uint64_t sum = 0;
	FILE *smaps = fopen("/proc/self/smaps", "r");
	CHECK(smaps);
	while (fgets(line, sizeof line, smaps)) {
		if (sscanf(line, "%lx-%lx ", &low, &high) == 2)
			is_inside = low < from + bytes && high > from;
		else if (is_inside && sscanf(line, "Private_Dirty: %lu kB", &kib) == 1)
			sum += kib;
	}
	fclose(smaps);
	return sum;
}

size_t test_page_bytes(void)
{
	return (size_t)number_of_environment("CODEHEAP_TEST_PAGE", 0);
}

long count_mappings(void)
{
	char piece[4096];
	long lines = 0;
	ssize_t n;
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	while ((n = read(fd, piece, sizeof piece)) > 0)
		for (ssize_t i = 0; i < n; i++)
			lines += piece[i] == '\n';
	close(fd);
	return lines;
}

void fill_maps(long left)
{
	char text[40] = "";
	int fd = open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
	close(fd);
	long wanted = strtol(text, NULL, 10) - count_mappings() - left;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	if (wanted <= 0)
		return;
	/* Neighbours of different protection do not merge. A child of fork has room again: copying
	 * so many maps would take long. */
	uint8_t *at = mmap(NULL, (size_t)wanted * page, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(at != MAP_FAILED);
	for (long i = 1; i < wanted; i += 2)
		CHECK_EQ(mprotect(at + (size_t)i * page, page, PROT_READ), 0);
	CHECK_EQ(madvise(at, (size_t)wanted * page, MADV_DONTFORK), 0);
}

bool map_one(void)
{
	return mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1,
		    0) != MAP_FAILED;
}

/* The library puts cancellation off only while calling the system. */
static void check_cancelability(void)
{
	int state;
	CHECK_EQ(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state), 0);
	if (state != PTHREAD_CANCEL_ENABLE)
		FAIL("the thread cannot be cancelled any more");
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		for (struct test_case *t = cases; t; t = t->next)
			printf("%s %d %d %s\n", t->name, t->limit_s, t->signal, t->mode);
		return 0;
	}
	for (struct test_case *t = cases; t; t = t->next) {
		if (strcmp(t->name, argv[1]) != 0)
			continue;
		forbid_core();
		if (getenv("CODEHEAP_TEST_MAPS_LEFT"))
			fill_maps((long)number_of_environment("CODEHEAP_TEST_MAPS_LEFT", 0));
		/* A sanitizer's handler would turn the awaited signal into an exit code. */
		if (t->signal)
			signal(t->signal, SIG_DFL);
		t->run();
		check_cancelability();
		return 0;
	}
	fprintf(stderr, "%s: no case %s\n", argv[0], argv[1]);
	return 1;
}

void skip_without_procmem(void)
{
	if (!CH_ARCH_LEAD_BYTES)
		skip("this architecture has no backend procmem");
}

void skip_if_allocator_forgets_forks(void)
{
	const char *sanitizers = getenv("CODEHEAP_TEST_SAN");
	if (sanitizers && strstr(sanitizers, "address"))
		skip("AddressSanitizer's allocator keeps its locks over a fork");
}
