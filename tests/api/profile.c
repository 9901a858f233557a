/* SPDX-License-Identifier: MIT
 * profile.c: the profiler through the public header: the times and the names that a profile shows,
 * and the calls that the profiler refuses. */
#define _GNU_SOURCE
#include "tests/support/profile_rig.h"

#include <errno.h>
#include <glob.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>

static struct profile_rig rig;

static struct method most, least;

static void begin_to_split(void)
{
	profile_begin(&rig, STAGE_POLLS);
	method_native(rig.stage, &most, "three", (void *)profile_burn_all);
	method_native(rig.stage, &least, "one", (void *)profile_burn_all);
}

TEST_EXCLUSIVE(folded_profile_shows_how_work_is_split, 60)
{
	begin_to_split();
	uint64_t from_ns = profile_cpu_ns();
	CHECK_EQ(ch_profile_start(rig.stage->heap, 1000, NULL), CH_OK);
	profile_call_until(&rig, &most, ";three;", 60);
	profile_call_until(&rig, &least, ";one;", 20);
	struct ch_profile_counts counts = profile_stop(&rig);
	uint64_t ticks_most = profile_ticks_most(from_ns, 1000);
	profile_read(&rig, 0);
	uint64_t three = profile_weight(&rig, ";three;"), one = profile_weight(&rig, ";one;");
	CHECK_EQ(counts.threads, 1);
	CHECK_EQ(profile_weight(&rig, ""), counts.samples + counts.dropped);
	CHECK_EQ(profile_weight(&rig, ";[dropped];"), counts.dropped);
	CHECK(three >= 60 && one >= 20 && three + one <= counts.samples);
	CHECK(counts.samples + counts.dropped <= ticks_most);
	profile_end(&rig);
}

TEST_TIMED(folded_profile_splits_work_by_its_time, 60)
{
	begin_to_split();
	CHECK_EQ(ch_profile_start(rig.stage->heap, 1000, NULL), CH_OK);
	method_call(&most, (void *)900);
	uint64_t most_ms = profile_spent_ms;
	method_call(&least, (void *)300);
	uint64_t percent = most_ms * 100 / profile_spent_ms;
	struct ch_profile_counts counts = profile_stop(&rig);
	profile_read(&rig, 0);
	uint64_t three = profile_weight(&rig, ";three;"), one = profile_weight(&rig, ";one;");
	CHECK_EQ(counts.threads, 1);
	CHECK_EQ(counts.dropped, 0);
	CHECK_EQ(profile_weight(&rig, ""), counts.samples);
	CHECK(one > 100 && three + one <= counts.samples);
	/* About 75 %, within 5 points. */
	CHECK(three * 100 >= (three + one) * (percent - 5) &&
	      three * 100 <= (three + one) * (percent + 5));
	profile_end(&rig);
}

/* --- headers of older and newer versions --- */

static void says(const char *words)
{
	if (strncmp(ch_why(), words, strlen(words)) != 0)
		FAIL("%s is not how it begins: %s", words, ch_why());
}

TEST_PROFILE(structs_of_an_older_header_end_where_they_end)
{
	enum { GARBAGE = 0xa5 };
	struct ch_heap *heap = rig.stage->heap;
	struct ch_profile_options options;
	struct ch_profile_counts counts;
	struct ch_profile_view view;
	memset(&options, GARBAGE, sizeof options);
	memset(&counts, GARBAGE, sizeof counts);
	memset(&view, GARBAGE, sizeof view);
	options.size = offsetof(struct ch_profile_options, frames);
	options.by_wall_clock = false, options.memory_bytes = 0;
	counts.size = offsetof(struct ch_profile_counts, refused);
	view.size = offsetof(struct ch_profile_view, title);
	view.flags = CH_PROFILE_FOLDED;
	CHECK_EQ(ch_profile_start(heap, 100, &options), CH_OK);
	CHECK_EQ(ch_profile_stop(heap, &counts), CH_OK);
	CHECK(counts.threads != 0);
	for (size_t i = counts.size; i < sizeof counts; i++)
		CHECK_EQ(((const uint8_t *)&counts)[i], GARBAGE);
	CHECK_EQ(ch_profile_write(heap, rig.path, &view), CH_OK);
}

TEST_PROFILE(structs_of_a_newer_header_are_refused_by_name)
{
	struct ch_heap *heap = rig.stage->heap;
	struct ch_profile_options options = {.size = sizeof options + 8};
	struct ch_profile_counts counts = {.size = sizeof counts + 8};
	struct ch_profile_view view = {.size = sizeof view + 8};
	CHECK_EQ(ch_profile_start(heap, 100, &options), CH_E_ARG);
	says("CH_E_ARG: ch_profile_options.size is ");
	CHECK_EQ(ch_profile_stop(heap, &counts), CH_E_ARG);
	says("CH_E_ARG: ch_profile_counts.size is ");
	CHECK_EQ(ch_profile_write(heap, rig.path, &view), CH_E_ARG);
	says("CH_E_ARG: ch_profile_view.size is ");
}

/* --- refusals --- */

TEST_PROFILE(profiles_say_what_they_refuse)
{
	struct ch_heap *heap = rig.stage->heap;
	struct ch_profile_options options = {.size = sizeof options + 8};
	struct ch_profile_counts counts = {.size = 3};
	struct ch_profile_view view = {.size = sizeof view, .flags = 8};
	CHECK_EQ(ch_profile_stop(heap, NULL), CH_E_STATE);
	CHECK_EQ(ch_profile_write(heap, rig.path, NULL), CH_E_STATE);
	CHECK_EQ(ch_profile_start(heap, 0, NULL), CH_E_ARG);
	CHECK_EQ(ch_profile_start(heap, 20001, NULL), CH_E_ARG);
	CHECK_EQ(ch_profile_start(heap, 100, &options), CH_E_ARG);
	options = (struct ch_profile_options){.size = sizeof options, .memory_bytes = 1000};
	CHECK_EQ(ch_profile_start(heap, 100, &options), CH_E_ARG);
	const char *words = "CH_E_ARG: ch_profile_options.memory_bytes is 1000: neither 0 nor ";
	CHECK(strstr(ch_why(), words) == ch_why());
	options.memory_bytes = strtoul(ch_why() + strlen(words), NULL, 10);
	CHECK_EQ(ch_profile_start(heap, 100, &options), CH_OK);
	CHECK_EQ(ch_profile_stop(heap, NULL), CH_OK);
	options.memory_bytes--;
	CHECK_EQ(ch_profile_start(heap, 100, &options), CH_E_ARG);
	CHECK_EQ(ch_profile_start(heap, 20000, NULL), CH_OK);
	CHECK_EQ(ch_profile_start(heap, 100, NULL), CH_E_STATE);
	CHECK_EQ(ch_profile_stop(heap, &counts), CH_E_ARG);
	CHECK_EQ(ch_profile_write(heap, rig.path, &view), CH_E_ARG);
	view = (struct ch_profile_view){.size = 1};
	CHECK_EQ(ch_profile_write(heap, rig.path, &view), CH_E_ARG);
	CHECK_EQ(ch_profile_write(heap, NULL, NULL), CH_E_ARG);
	CHECK_EQ(ch_profile_write(heap, "", NULL), CH_E_ARG);
	errno = 0;
	CHECK_EQ(ch_profile_write(heap, "/nowhere/at/all", NULL), CH_E_OS);
	CHECK_EQ(errno, ENOENT);
	says("CH_E_OS: the profile: ENOENT: /nowhere/at/all");
	counts.size = sizeof counts;
	CHECK_EQ(ch_profile_stop(heap, &counts), CH_OK);
	CHECK_EQ(ch_profile_stop(heap, &counts), CH_E_STATE);
	CHECK_EQ(ch_profile_write(heap, "/dev/null", NULL), CH_OK);
	CHECK_EQ(ch_profile_write(heap, rig.path, NULL), CH_OK);
	/* A failed start leaves the earlier profile. */
	options.memory_bytes = 1000;
	CHECK_EQ(ch_profile_start(heap, 100, &options), CH_E_ARG);
	CHECK_EQ(ch_profile_write(heap, rig.path, NULL), CH_OK);
}

TEST(profiles_of_a_heap_that_is_null_or_gone_are_refused)
{
	static const char *const words[] = {"heap, or vm, is NULL", "it was destroyed"};
	struct ch_profile_counts counts = {.size = sizeof counts};
	profile_begin(&rig, STAGE_POLLS);
	struct ch_heap *heaps[] = {NULL, rig.stage->heap};
	profile_end(&rig);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(ch_profile_start(heaps[i], 100, NULL), CH_E_ARG);
		CHECK(strstr(ch_why(), words[i]));
		CHECK_EQ(ch_profile_stop(heaps[i], &counts), CH_E_ARG);
		CHECK(strstr(ch_why(), words[i]));
		CHECK_EQ(ch_profile_write(heaps[i], "/dev/null", NULL), CH_E_ARG);
		CHECK(strstr(ch_why(), words[i]));
	}
}

enum { NEW_NAME = 100 };

static int watch_tmp(void)
{
	int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	CHECK(watch >= 0 && inotify_add_watch(watch, "/tmp", IN_CREATE) >= 0);
	return watch;
}

/* Reads the name of a new file that begins with `file`. */
static void read_new_name(int watch, const char *file, char name[NEW_NAME])
{
	char events[8192] __attribute__((aligned(8)));
	ssize_t n;
	*name = 0;
	while ((n = read(watch, events, sizeof events)) > 0)
		for (ssize_t at = 0; at < n;) {
			const struct inotify_event *event = (const void *)(events + at);
			if (event->len && !strncmp(event->name, file, strlen(file)))
				snprintf(name, NEW_NAME, "%s", event->name);
			at += (ssize_t)(sizeof *event + event->len);
		}
}

TEST_PROFILE(each_writer_has_a_file_of_its_own_beside_that_of_the_path)
{
	char names[2][NEW_NAME];
	profile_start_still(&rig, 0);
	int watch = watch_tmp();
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(ch_profile_write(rig.stage->heap, rig.path, NULL), CH_OK);
		read_new_name(watch, strrchr(rig.path, '/') + 1, names[i]);
		CHECK(names[i][0]);
	}
	if (!strcmp(names[0], names[1]))
		FAIL("both are called %s", names[0]);
	close(watch);
	profile_stop(&rig);
}

/* Also those that a killed process of the same number left. */
static unsigned files_beside(const char *path)
{
	char pattern[100];
	glob_t found;
	snprintf(pattern, sizeof pattern, "%s.*", path);
	unsigned count = glob(pattern, 0, NULL, &found) == 0 ? (unsigned)found.gl_pathc : 0;
	globfree(&found);
	return count;
}

TEST(file_stays_as_it_was_when_writing_fails)
{
	static const char before[] = "what stood here before";
	/* An emulator writes more bytes than its program, and may get SIGXFSZ. */
	signal(SIGXFSZ, SIG_IGN);
	profile_begin(&rig, STAGE_POLLS);
	CHECK_EQ(ch_profile_start(rig.stage->heap, 100, NULL), CH_OK);
	profile_stop(&rig);
	int fd = open(rig.path, O_WRONLY | O_CREAT, 0600);
	CHECK_EQ(write(fd, before, sizeof before), sizeof before);
	close(fd);
	unsigned beside = files_beside(rig.path);
	struct rlimit limit, little;
	CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
	little = limit;
	little.rlim_cur = 64;
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
	errno = 0;
	CHECK_EQ(ch_profile_write(rig.stage->heap, rig.path, NULL), CH_E_OS);
	CHECK_EQ(errno, EFBIG);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	char *text = profile_file(rig.path);
	CHECK_STR(text, before);
	free(text);
	CHECK_EQ(files_beside(rig.path), beside);
	CHECK_EQ(ch_profile_write(rig.stage->heap, rig.path, NULL), CH_OK);
	text = profile_file(rig.path);
	CHECK(strstr(text, "<svg"));
	free(text);
	CHECK_EQ(files_beside(rig.path), beside);
	profile_end(&rig);
}

/* File systems allow 255 bytes. The file beside has the first 31 of the 127 characters. */
TEST(file_may_have_the_longest_name)
{
	enum { CHARACTERS = 127, KEPT = 31 };
	char path[300] = "/tmp/a", beside[NEW_NAME] = "a", found[NEW_NAME];
	for (int i = 0; i < CHARACTERS; i++) {
		strcat(path, "\xc3\xa9");
		strcat(beside, i < KEPT ? "\xc3\xa9" : "");
	}
	strcat(beside, ".");
	profile_begin(&rig, STAGE_POLLS);
	profile_start_still(&rig, 0);
	int watch = watch_tmp();
	CHECK_EQ(ch_profile_write(rig.stage->heap, path, NULL), CH_OK);
	CHECK_EQ(unlink(path), 0);
	read_new_name(watch, beside, found);
	CHECK(found[0]);
	close(watch);
	profile_stop(&rig);
	profile_end(&rig);
}

static _Atomic(bool) has_returned;

static void *write_cancelled(void *arg)
{
	(void)arg;
	CHECK_EQ(pthread_cancel(pthread_self()), 0);
	CHECK_EQ(ch_profile_write(rig.stage->heap, rig.path, NULL), CH_OK);
	has_returned = true;
	return NULL;
}

/* Names of native code are looked for in files. */
TEST(cancellation_comes_after_the_file_is_written)
{
	pthread_t thread;
	begin_to_split();
	CHECK_EQ(ch_profile_start(rig.stage->heap, 1000, NULL), CH_OK);
	profile_call_until(&rig, &most, ";three;", 1);
	profile_stop(&rig);
	unsigned beside = files_beside(rig.path);
	CHECK_EQ(pthread_create(&thread, NULL, write_cancelled, NULL), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(has_returned);
	CHECK_EQ(files_beside(rig.path), beside);
	profile_end(&rig);
}

static unsigned mode_of(const char *path)
{
	struct stat found;
	CHECK_EQ(stat(path, &found), 0);
	return found.st_mode & 07777;
}

TEST(file_is_its_owner_s_alone_unless_it_was_there)
{
	umask(0);
	profile_begin(&rig, STAGE_POLLS);
	CHECK_EQ(ch_profile_start(rig.stage->heap, 100, NULL), CH_OK);
	profile_stop(&rig);
	CHECK_EQ(ch_profile_write(rig.stage->heap, rig.path, NULL), CH_OK);
	CHECK_EQ(mode_of(rig.path), 0600);
	CHECK_EQ(chmod(rig.path, 04644), 0);
	CHECK_EQ(ch_profile_write(rig.stage->heap, rig.path, NULL), CH_OK);
	CHECK_EQ(mode_of(rig.path), 0644);
	profile_end(&rig);
}

TEST_PROFILE(picture_is_turned_as_the_view_says)
{
	static const struct {
		unsigned flags;
		const char *said;
	} rows[] = {{0, " data-icicle=\"0\" data-reversed=\"0\">"},
		    {CH_PROFILE_ICICLE, " data-icicle=\"1\" data-reversed=\"0\">"},
		    {CH_PROFILE_REVERSED, " data-icicle=\"0\" data-reversed=\"1\">"}};
	profile_start_still(&rig, 0);
	profile_stop(&rig);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ch_profile_view view = {.size = sizeof view, .flags = rows[i].flags};
		CHECK_EQ(ch_profile_write(rig.stage->heap, rig.path, &view), CH_OK);
		char *text = profile_file(rig.path);
		CHECK(strstr(text, rows[i].said));
		free(text);
	}
}

/* --- threads --- */

static uint64_t late_ticks_most, held_ms;

static void *come_late(void *arg)
{
	struct method *m = arg;
	errno = ERANGE;
	stage_attach(rig.stage);
	CHECK_EQ(errno, ERANGE); /* whether sampled or not */
	method_call(m, (void *)200);
	late_ticks_most = profile_ticks_most(0, 500);
	stage_detach(rig.stage);
	return NULL;
}

/* The ticks of a thread that comes while a profile runs, and leaves before the profile ends. */
static uint64_t ticks_of_late_thread(void *work)
{
	profile_begin(&rig, STAGE_POLLS);
	struct method m;
	pthread_t late;
	method_native(rig.stage, &m, "late", work);
	CHECK_EQ(ch_profile_start(rig.stage->heap, 500, NULL), CH_OK);
	ch_thread_park();
	CHECK_EQ(pthread_create(&late, NULL, come_late, &m), 0);
	CHECK_EQ(pthread_join(late, NULL), 0);
	ch_thread_unpark();
	struct ch_profile_counts counts = profile_stop(&rig);
	profile_read(&rig, 0);
	uint64_t ticks = profile_weight(&rig, ";late;");
	CHECK_EQ(counts.threads, 2);
	CHECK(ticks <= late_ticks_most);
	profile_end(&rig);
	return ticks;
}

/* The last signal stands for all ticks of a time that another timer saw. ThreadSanitizer does not
 * pass on a blocked signal. */
static uint64_t burn_with_signal_held(void *ms)
{
	sigset_t prof;
	if (CH_TSAN)
		return profile_burn_all(ms);
	sigemptyset(&prof);
	sigaddset(&prof, SIGPROF);
	pthread_sigmask(SIG_BLOCK, &prof, NULL);
	do
		profile_burn((uintptr_t)ms);
	while (profile_seen_ms < (uintptr_t)ms / 2);
	held_ms = profile_seen_ms;
	pthread_sigmask(SIG_UNBLOCK, &prof, NULL);
	return 1;
}

TEST_EXCLUSIVE(thread_that_comes_later_and_leaves_is_seen, 60)
{
	uint64_t ticks = ticks_of_late_thread((void *)burn_with_signal_held);
	/* Every tick counts, not every signal of the kernel. ThreadSanitizer (at the thread's next
	 * call) and emulators pass on a single signal of several. */
	const char *emulator = getenv("CODEHEAP_TEST_EMULATOR");
	bool is_passed_on = !CH_TSAN && (!emulator || !*emulator);
	CHECK(ticks >= 1 && (!is_passed_on || ticks + 2 >= held_ms / 2));
}

TEST_TIMED(thread_that_comes_later_has_each_tick, 60)
{
	/* 100 ticks in 200 ms. */
	CHECK(ticks_of_late_thread((void *)profile_burn_all) >= (CH_TSAN ? 1 : 80));
}

/* Each timer counts as a pending signal, so the limit leaves no timer. */
TEST_PROFILE(thread_that_gets_no_timer_is_counted)
{
	struct method m;
	struct rlimit limit, none;
	pthread_t late;
	method_native(rig.stage, &m, "late", (void *)profile_burn_all);
	profile_start_still(&rig, 0);
	CHECK_EQ(getrlimit(RLIMIT_SIGPENDING, &limit), 0);
	none = limit;
	none.rlim_cur = 0;
	CHECK_EQ(setrlimit(RLIMIT_SIGPENDING, &none), 0);
	CHECK_EQ(pthread_create(&late, NULL, come_late, &m), 0);
	CHECK_EQ(pthread_join(late, NULL), 0);
	stage_detach(rig.stage);
	errno = 0;
	stage_attach(rig.stage);
	CHECK_EQ(errno, 0);
	CHECK_EQ(setrlimit(RLIMIT_SIGPENDING, &limit), 0);
	struct ch_profile_counts counts = profile_stop(&rig);
	CHECK_EQ(counts.threads, 1);
	CHECK_EQ(counts.refused, 2);
	CHECK_EQ(ch_profile_write(rig.stage->heap, rig.path, NULL), CH_OK);
	char *text = profile_file(rig.path);
	CHECK(strstr(text, " of 1 thread (2 more were refused), "));
	free(text);
}

static _Atomic(int) step;
static uint64_t waiting_ticks_most;

static void *wait_in_vain(void *arg)
{
	stage_attach(rig.stage);
	method_call(arg, NULL);
	waiting_ticks_most = profile_ticks_most(0, 200);
	stage_detach(rig.stage);
	return NULL;
}

static uint64_t sleep_parked(void *arg)
{
	(void)arg;
	ch_thread_park();
	atomic_store(&step, 1);
	while (atomic_load(&step) == 1)
		usleep(1000);
	ch_thread_unpark();
	return 1;
}

/* The weight of a wait of half a second, or of a longer wait until the weight is reached. */
static uint64_t waiting_weight(bool by_wall_clock, uint64_t weight)
{
	struct method m;
	pthread_t waiting;
	struct ch_profile_options options = {.size = sizeof options,
					     .by_wall_clock = by_wall_clock};
	atomic_store(&step, 0);
	method_native(rig.stage, &m, "waits", (void *)sleep_parked);
	CHECK_EQ(ch_profile_start(rig.stage->heap, 200, &options), CH_OK);
	CHECK_EQ(pthread_create(&waiting, NULL, wait_in_vain, &m), 0);
	while (atomic_load(&step) != 1)
		stage_sleep(1);
	do {
		stage_sleep(500);
		profile_read(&rig, 0);
	} while (profile_weight(&rig, ";waits;") < weight);
	atomic_store(&step, 2);
	CHECK_EQ(pthread_join(waiting, NULL), 0);
	profile_stop(&rig);
	profile_read(&rig, 0);
	return profile_weight(&rig, ";waits;");
}

TEST_EXCLUSIVE(wall_clock_sees_a_thread_that_waits, 60)
{
	profile_skip_if_signals_wait();
	profile_begin(&rig, STAGE_POLLS);
	uint64_t from_ns = now_ns(), waited = waiting_weight(true, 50);
	CHECK(waited <= (now_ns() - from_ns) / 5000000 + 1);
	uint64_t worked = waiting_weight(false, 0);
	CHECK(worked <= waiting_ticks_most);
	profile_end(&rig);
}

TEST_TIMED(wall_clock_counts_a_whole_wait, 60)
{
	profile_skip_if_signals_wait();
	profile_begin(&rig, STAGE_POLLS);
	CHECK(waiting_weight(true, 0) > 50);
	CHECK(waiting_weight(false, 0) < 20);
	profile_end(&rig);
}

static uint64_t fiber_burns_ms;

static void burn_on_fiber(struct fiber *fiber, void *arg)
{
	while (fiber_burns_ms) {
		method_call(arg, (void *)(uintptr_t)fiber_burns_ms);
		fiber_yield(fiber);
	}
}

/* The ticks of a fiber that had so many turns, and more turns until `ticks_least` is reached. */
static uint64_t ticks_of_fiber(int turns, uint64_t ticks_least)
{
	struct method m;
	struct fiber fiber;
	uint64_t from_ns = profile_cpu_ns();
	fiber_burns_ms = 150;
	profile_begin(&rig, STAGE_POLLS);
	method_native(rig.stage, &m, "on-fiber", (void *)profile_burn_all);
	CHECK_EQ(ch_profile_start(rig.stage->heap, 500, NULL), CH_OK);
	fiber_start(rig.stage, &fiber, burn_on_fiber, &m);
	for (int i = 0; i < turns || profile_weight(&rig, ";on-fiber;") < ticks_least; i++) {
		fiber_resume(&fiber);
		profile_read(&rig, 0);
	}
	fiber_burns_ms = 0;
	fiber_resume(&fiber);
	CHECK(fiber.is_done);
	fiber_end(&fiber);
	profile_stop(&rig);
	profile_read(&rig, 0);
	uint64_t ticks = profile_weight(&rig, ";on-fiber;");
	CHECK(ticks <= profile_ticks_most(from_ns, 500));
	profile_end(&rig);
	return ticks;
}

TEST_EXCLUSIVE(stack_of_a_fiber_is_walked, 60)
{
	profile_skip_if_signals_wait();
	ticks_of_fiber(2, 40);
}

TEST_TIMED(stack_of_a_fiber_is_walked_at_each_tick, 60)
{
	profile_skip_if_signals_wait();
	CHECK(ticks_of_fiber(2, 0) >= 120);
}

/* --- signals --- */

static _Atomic(int) foreign, others;

static void count_foreign(int signal)
{
	(void)signal;
	/* SIGUSR1 is open here, though the library's handler blocks every signal. */
	raise(SIGUSR1);
	errno = EDOM;
	atomic_fetch_add(&foreign, atomic_load(&others));
}
static void count_other(int signal)
{
	(void)signal;
	atomic_fetch_add(&others, 1);
}

TEST(sigprof_of_others_goes_to_their_handler)
{
	struct sigaction action = {.sa_handler = count_foreign};
	CHECK_EQ(sigaction(SIGPROF, &action, NULL), 0);
	action.sa_handler = count_other;
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	profile_begin(&rig, STAGE_POLLS);
	profile_start_still(&rig, 0);
	errno = 0;
	raise(SIGPROF);
	CHECK_EQ(errno, 0);
	CHECK_EQ(atomic_load(&foreign), 1);
	timer_t timer;
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGPROF};
	struct itimerspec soon = {.it_value.tv_nsec = 1000000};
	CHECK_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
	CHECK_EQ(timer_settime(timer, 0, &soon, NULL), 0);
	while (atomic_load(&foreign) < 3)
		stage_sleep(1);
	CHECK_EQ(profile_stop(&rig).samples, 0);
	raise(SIGPROF);
	CHECK_EQ(atomic_load(&foreign), 6);
	timer_delete(timer);
	profile_end(&rig);
}

static void (*handler_of_sigprof(void))(int)
{
	struct sigaction now;
	CHECK_EQ(sigaction(SIGPROF, NULL, &now), 0);
	return now.sa_handler;
}

TEST_PROFILE(start_installs_the_handler_that_was_taken_away_and_no_second_one)
{
	profile_start_still(&rig, 0);
	profile_stop(&rig);
	void (*own)(int) = handler_of_sigprof();
	void (*const taken_away[])(int) = {SIG_DFL, SIG_IGN};
	for (int i = 0; i < 2; i++) {
		CHECK(signal(SIGPROF, taken_away[i]) == own);
		profile_start_still(&rig, 0);
		CHECK(handler_of_sigprof() == own);
		profile_stop(&rig);
	}
	raise(SIGPROF); /* is ignored, as the program said last */
	CHECK(signal(SIGPROF, count_foreign) == own);
	profile_start_still(&rig, 0);
	CHECK(handler_of_sigprof() == count_foreign);
	profile_stop(&rig);
}

TEST_PROFILE(stop_says_that_the_handler_was_taken_away)
{
	struct ch_profile_counts counts = {.size = sizeof counts, .threads = 77};
	struct ch_heap *heap = rig.stage->heap;
	profile_start_still(&rig, 0);
	CHECK(signal(SIGPROF, SIG_IGN) != SIG_ERR);
	errno = 0;
	CHECK_EQ(ch_profile_stop(heap, &counts), CH_E_OS);
	CHECK_EQ(errno, ENOENT);
	CHECK(strstr(ch_why(), "SIGPROF has no handler any more"));
	CHECK(counts.threads != 77);
	/* It ended all the same, and can be written. */
	CHECK_EQ(ch_profile_stop(heap, &counts), CH_E_STATE);
	CHECK_EQ(ch_profile_write(heap, rig.path, NULL), CH_OK);
}

/* The default action of SIGPROF would kill. */
TEST_EXCLUSIVE(late_signals_do_no_harm, 60)
{
	sigset_t prof;
	sigemptyset(&prof);
	sigaddset(&prof, SIGPROF);
	for (int how = 0; how < 3; how++) {
		profile_begin(&rig, STAGE_POLLS);
		CHECK_EQ(ch_profile_start(rig.stage->heap, 1000, NULL), CH_OK);
		pthread_sigmask(SIG_BLOCK, &prof, NULL);
		profile_burn(50);
		if (how == 0)
			profile_stop(&rig);
		if (how == 1) {
			CHECK_EQ(ch_thread_detach(rig.stage->heap), CH_OK);
			pthread_sigmask(SIG_UNBLOCK, &prof, NULL);
			CHECK_EQ(ch_thread_attach(rig.stage->heap, NULL, NULL), CH_OK);
		}
		if (how == 2)
			profile_end(&rig);
		pthread_sigmask(SIG_UNBLOCK, &prof, NULL);
		if (how < 2)
			profile_end(&rig);
	}
}

/* --- a collection meanwhile --- */

static _Atomic(int) writing_tid;

static void write_to_a_pipe(struct stage *stage, void *arg)
{
	atomic_store(&writing_tid, (int)syscall(SYS_gettid));
	CHECK_EQ(ch_profile_write(stage->heap, arg, NULL), CH_OK);
}

TEST(profile_is_written_while_the_heap_is_collected)
{
	struct stage_thread writer;
	struct stage *stage = stage_new(STAGE_POLLS);
	stage->config.stop_wait_ms = 5000;
	profile_begin_in(&rig, stage);
	profile_start_still(&rig, 0);
	CHECK_EQ(mkfifo(rig.path, 0600), 0);
	stage_spawn(rig.stage, &writer, write_to_a_pipe, rig.path);
	TEST_UNTIL(atomic_load(&writing_tid) && thread_is_asleep(atomic_load(&writing_tid)))
		stage_sleep(1);
	CHECK_EQ(stage_try_collect(rig.stage), CH_OK);
	/* The writer waits for a reader. */
	FILE *reader = fopen(rig.path, "r");
	CHECK(reader);
	while (getc(reader) != EOF)
		continue;
	fclose(reader);
	stage_join(&writer);
	profile_stop(&rig);
	profile_end(&rig);
}

/* --- fork --- */

enum { FORKS = 4, CHILD_LEAST = 10, TIMED_FORKS = 10 };

static void burn_in_child(struct method *m)
{
	struct ch_heap *heap = rig.stage->heap;
	CHECK_EQ(ch_profile_stop(heap, NULL), CH_E_STATE);
	CHECK_EQ(ch_profile_write(heap, rig.path, NULL), CH_E_STATE);
	profile_burn(30);
	snprintf(rig.path, sizeof rig.path, "/tmp/codeheap-profile.%d", (int)getpid());
	uint64_t from_ns = profile_cpu_ns();
	CHECK_EQ(ch_profile_start(heap, 500, NULL), CH_OK);
	profile_call_until(&rig, m, ";parent-and-child;", CHILD_LEAST);
	CHECK_EQ(profile_stop(&rig).threads, 1);
	profile_read(&rig, 0);
	unlink(rig.path);
	CHECK(profile_weight(&rig, ";parent-and-child;") <= profile_ticks_most(from_ns, 500));
	_exit(0);
}

/* No tick of the parent before a fork gets lost. */
TEST_EXCLUSIVE(child_of_fork_has_a_profile_of_its_own_only, 60)
{
	profile_skip_if_signals_wait();
	profile_begin(&rig, STAGE_POLLS);
	struct method m;
	uint64_t ticks = 0, from_ns = profile_cpu_ns();
	method_native(rig.stage, &m, "parent-and-child", (void *)profile_burn_all);
	CHECK_EQ(ch_profile_start(rig.stage->heap, 1000, NULL), CH_OK);
	for (int i = 0; i < FORKS; i++) {
		profile_call_until(&rig, &m, ";parent-and-child;", ticks + 5);
		ticks = profile_weight(&rig, ";parent-and-child;");
		pid_t child = fork_child();
		if (!child)
			burn_in_child(&m);
		expect_exit(child, 0);
	}
	struct ch_profile_counts counts = profile_stop(&rig);
	CHECK(counts.samples + counts.dropped <= profile_ticks_most(from_ns, 1000));
	profile_read(&rig, 0);
	CHECK(profile_weight(&rig, ";parent-and-child;") >= ticks);
	CHECK(profile_weight(&rig, ";parent-and-child;") <= counts.samples);
	profile_end(&rig);
}

TEST_TIMED(fork_costs_a_profile_no_ticks, 60)
{
	profile_skip_if_signals_wait();
	profile_begin(&rig, STAGE_POLLS);
	struct method m;
	method_native(rig.stage, &m, "parent", (void *)profile_burn_all);
	CHECK_EQ(ch_profile_start(rig.stage->heap, 1000, NULL), CH_OK);
	for (int i = 0; i < TIMED_FORKS; i++) {
		method_call(&m, (void *)30);
		pid_t child = fork_child();
		if (!child)
			_exit(0);
		expect_exit(child, 0);
	}
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK(profile_weight(&rig, ";parent;") >= 30 * TIMED_FORKS * 8 / 10);
	profile_end(&rig);
}

/* --- ends --- */

static void expect_no_timer(void)
{
	sigset_t held, before, pending;
	sigemptyset(&held);
	sigaddset(&held, SIGPROF);
	CHECK_EQ(pthread_sigmask(SIG_BLOCK, &held, &before), 0);
	profile_burn(5);
	CHECK_EQ(sigpending(&pending), 0);
	CHECK(!sigismember(&pending, SIGPROF));
	CHECK_EQ(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
}

TEST_EXCLUSIVE(heap_that_goes_ends_its_profile, 60)
{
	for (int i = 0; i < 20; i++) {
		profile_begin(&rig, STAGE_POLLS);
		CHECK_EQ(ch_profile_start(rig.stage->heap, 5000, NULL), CH_OK);
		profile_burn(5);
		profile_end(&rig);
		expect_no_timer();
	}
}
