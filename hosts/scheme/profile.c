/* SPDX-License-Identifier: MIT
 * profile.c: profiles of programs, as flame graphs: --profile and with-flame-profile. The code heap
 * takes the samples. This file records the request, and writes the report on each way out of a body
 * and of the process. A process has one profile at a time, for it has one code heap.
 *
 * During a profile SIGINT, SIGTERM and SIGHUP write the report, too, if they would have ended the
 * process: the handler only wakes a thread, which writes and raises the signal again.
 *
 * A child of fork has no profile: only the parent writes a profile begun by the parent.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <codeheap/profile.h>

#include "jit.h"
#include "profile.h"

static const int ending_signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { ENDING_SIGNALS = sizeof ending_signals / sizeof *ending_signals };

/* Functions of the interpreter, and functions it calls to go on: the interpreter in pictures. */
static const char *const interpreter[] = {
	"interp_run", "interp_activate", "interp_entry",   "interp_finish",    "frame_prepare",
	"call_other", "apply",           "trampoline_run", "trampoline_entry", NULL};

/* Lock order: life, then lock. A thread that begins or ends a profile holds life until the watcher
 * has begun or ended; the watcher takes lock only. A thread that ends the process keeps life. */
static struct {
	pthread_mutex_t life, lock;
	int64_t token;                   /* of the running profile; 0: none [lock] */
	int64_t tokens;                  /* given so far [lock] */
	char *path, *title;              /* [lock] */
	unsigned flags;                  /* enum ch_profile_flags [lock] */
	struct ch_profile_counts counts; /* of the last ended profile [lock] */
} profile = {.life = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER};

/* The thread woken by signals. [life] */
static struct {
	pthread_t thread;
	sem_t wake;
	struct sigaction before[ENDING_SIGNALS];
	int is_mine[ENDING_SIGNALS];
} watch;
static volatile sig_atomic_t caught; /* the signal; 0: the profile has ended [handler, watcher] */

/* ctx NULL: a thread not attached. */
static void lock_parked(struct context *ctx, pthread_mutex_t *lock)
{
	if (pthread_mutex_trylock(lock) == 0)
		return;
	if (ctx)
		ch_thread_park();
	pthread_mutex_lock(lock);
	if (ctx)
		ch_thread_unpark();
}

static void lock_profile(struct context *ctx)
{
	lock_parked(ctx, &profile.life);
	lock_parked(ctx, &profile.lock);
}

static void unlock_profile(void)
{
	pthread_mutex_unlock(&profile.lock);
	pthread_mutex_unlock(&profile.life);
}

/* ---- stop and write ---- */

/* Under lock. */
static int write_report(char *why)
{
	const struct ch_profile_view view = {.size = sizeof view,
					     .flags = profile.flags,
					     .title = profile.title,
					     .interpreter = interpreter};

	enum ch_status status = ch_profile_write(jit_heap(), profile.path, &view);
	int error = errno;
	if (status != CH_OK)
		snprintf(why, PROFILE_WHY_BYTES, "%.200s cannot be written: %s", profile.path,
			 status == CH_E_OS ? strerror(error) : ch_why());
	return status == CH_OK;
}

/* Under lock. */
static void forget(void)
{
	free(profile.path);
	free(profile.title);
	profile.path = profile.title = NULL;
	profile.token = 0;
}

/* Under lock, with a running profile. */
static int stop_and_write(char *why)
{
	profile.counts = (struct ch_profile_counts){.size = sizeof profile.counts};
	enum ch_status status = ch_profile_stop(jit_heap(), &profile.counts);
	int is_written = status == CH_OK && write_report(why);

	if (status != CH_OK)
		snprintf(why, PROFILE_WHY_BYTES, "%s", ch_why());
	forget();
	return is_written;
}

/* ---- signals ---- */

static void on_signal(int number)
{
	int error = errno;

	caught = number;
	sem_post(&watch.wake);
	errno = error;
}

static void *wait_for_signal(void *unused)
{
	char why[PROFILE_WHY_BYTES];
	sigset_t set;

	(void)unused;
	while (sem_wait(&watch.wake))
		;
	int number = caught;
	if (!number)
		return NULL;
	pthread_mutex_lock(&profile.lock);
	if (profile.token && !stop_and_write(why))
		fprintf(stderr, "scheme: %s\n", why);
	pthread_mutex_unlock(&profile.lock);
	/* The action of the signal is the default one again (SA_RESETHAND). */
	sigemptyset(&set);
	sigaddset(&set, number);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	raise(number);
	return NULL;
}

static int start_watcher(void)
{
	sigset_t all, outer;

	caught = 0;
	if (sem_init(&watch.wake, 0, 0))
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &outer);
	int failed = pthread_create(&watch.thread, NULL, wait_for_signal, NULL);
	pthread_sigmask(SIG_SETMASK, &outer, NULL);
	if (failed)
		return 0;
	for (int i = 0; i < ENDING_SIGNALS; i++) {
		/* A second signal ends the process at once. */
		struct sigaction action = {.sa_handler = on_signal,
					   .sa_flags = SA_RESTART | SA_RESETHAND};
		sigaction(ending_signals[i], NULL, &watch.before[i]);
		watch.is_mine[i] = !(watch.before[i].sa_flags & SA_SIGINFO) &&
				   watch.before[i].sa_handler == SIG_DFL;
		if (watch.is_mine[i])
			sigaction(ending_signals[i], &action, NULL);
	}
	return 1;
}

static void give_signals_back(void)
{
	for (int i = 0; i < ENDING_SIGNALS; i++)
		if (watch.is_mine[i])
			sigaction(ending_signals[i], &watch.before[i], NULL);
}

/* Call under life, not under lock: after a signal the watcher takes lock first, and the process
 * ends in pthread_join. */
static void stop_watcher(void)
{
	sem_post(&watch.wake);
	pthread_join(watch.thread, NULL);
}

/* ---- forks ---- */

static void before_fork(void)
{
	lock_profile(NULL);
}

static void in_child(void)
{
	if (profile.token) {
		give_signals_back();
		forget();
	}
	unlock_profile();
}

static void register_fork(void)
{
	if (pthread_atfork(before_fork, unlock_profile, in_child))
		abort();
}

/* ---- begin, end ---- */

static int refuse_file(char *why, int error)
{
	snprintf(why, PROFILE_WHY_BYTES, "cannot be written (%s)", strerror(error));
	return 0;
}

/* For a link whose target does not exist yet. */
static int may_make(const char *path, char *why)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0)
		return refuse_file(why, errno);
	close(fd);
	char *made = realpath(path, NULL);
	if (made)
		unlink(made);
	free(made);
	return 1;
}

/* Checks before the first sample that the file can be written, so that no work is lost. A regular
 * file is replaced by a new file made beside it; any other file is written in place. */
static int may_write(const char *path, char *why)
{
	enum { NAME_KEPT = 64 };
	struct stat there, link = {.st_mode = 0};
	char *beside;
	int is_there = stat(path, &there) == 0;

	if (lstat(path, &link) != 0 && errno != ENOENT)
		return refuse_file(why, errno);
	int is_link = S_ISLNK(link.st_mode);
	if (is_there && S_ISDIR(there.st_mode))
		return refuse_file(why, EISDIR);
	if (is_there && (is_link || !S_ISREG(there.st_mode)))
		return access(path, W_OK) == 0 || refuse_file(why, errno);
	if (is_link)
		return may_make(path, why);
	/* As long as the name of the library's temporary file, which keeps so much of the name. */
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	if (asprintf(&beside, "%.*s%0*d.--XXXXXX", (int)(name - path), path,
		     (int)strnlen(name, NAME_KEPT), 0) < 0)
		return refuse_file(why, ENOMEM);
	int fd = mkstemp(beside), error = errno;
	if (fd >= 0) {
		close(fd);
		unlink(beside);
	}
	free(beside);
	return fd >= 0 || refuse_file(why, error);
}

/* Under lock. */
static int start(const struct profile_request *request, char *why)
{
	const struct ch_profile_options options = {.size = sizeof options,
						   .by_wall_clock = request->by_wall_clock != 0};

	profile.path = strdup(request->path);
	profile.title = request->title ? strdup(request->title) : NULL;
	if (!profile.path || (request->title && !profile.title) || !start_watcher()) {
		forget();
		snprintf(why, PROFILE_WHY_BYTES, "no memory, or no thread");
		return 0;
	}
	enum ch_status status = ch_profile_start(jit_heap(), (unsigned)request->rate, &options);
	int error = errno;
	if (status != CH_OK) {
		give_signals_back();
		forget();
		pthread_mutex_unlock(&profile.lock);
		stop_watcher();
		pthread_mutex_lock(&profile.lock);
		snprintf(why, PROFILE_WHY_BYTES, "%s",
			 status == CH_E_OS ? strerror(error) : ch_why());
		return 0;
	}
	profile.flags = (request->is_folded ? CH_PROFILE_FOLDED : 0) |
			(request->is_icicle ? CH_PROFILE_ICICLE : 0) |
			(request->is_reversed ? CH_PROFILE_REVERSED : 0);
	profile.token = ++profile.tokens;
	return 1;
}

int64_t profile_begin(struct context *ctx, const struct profile_request *request, char *why)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int64_t token = PROFILE_REFUSED;

	if (!jit_has_heap(ctx)) {
		snprintf(why, PROFILE_WHY_BYTES, "%s",
			 "only programs run by --jit or with --trampolines have profiles");
		return PROFILE_REFUSED;
	}
	if (request->rate < 1 || request->rate > PROFILE_RATE_MOST) {
		snprintf(why, PROFILE_WHY_BYTES, "the rate is not 1 to %d", PROFILE_RATE_MOST);
		return PROFILE_REFUSED;
	}
	pthread_once(&once, register_fork);
	lock_profile(ctx);
	if (profile.token)
		snprintf(why, PROFILE_WHY_BYTES, "a profile (%.200s) is running already",
			 profile.path);
	else if (!may_write(request->path, why))
		token = PROFILE_NO_FILE;
	else if (start(request, why))
		token = profile.token;
	unlock_profile();
	return token;
}

/* token 0: any profile. Life stays locked. */
static int end_in_life(struct context *ctx, int64_t token, char *why)
{
	int is_written = 1;

	lock_profile(ctx);
	int is_mine = profile.token && (!token || token == profile.token);
	if (is_mine) {
		is_written = stop_and_write(why);
		give_signals_back();
	}
	pthread_mutex_unlock(&profile.lock);
	if (is_mine)
		stop_watcher();
	return is_written;
}

static int end(struct context *ctx, int64_t token, char *why)
{
	int is_written = end_in_life(ctx, token, why);

	pthread_mutex_unlock(&profile.life);
	return is_written;
}

/* Life is never unlocked: another thread that wants to begin a profile waits for the end of the
 * process, and no file is left half tried. */
int profile_finish(struct context *ctx)
{
	char why[PROFILE_WHY_BYTES];

	if (end_in_life(jit_has_heap(ctx) ? ctx : NULL, 0, why))
		return 1;
	fprintf(stderr, "scheme: %s\n", why);
	return 0;
}

void profile_describe(char *text, size_t bytes)
{
	pthread_mutex_lock(&profile.lock);
	snprintf(text, bytes, "%" PRIu64 " samples, %" PRIu64 " dropped, %" PRIu64 " cut",
		 profile.counts.samples, profile.counts.dropped, profile.counts.cut);
	pthread_mutex_unlock(&profile.lock);
}

/* ---- procedures for the prelude's %with-flame-profile ---- */

static const struct word {
	const char *name;
	enum { RATE, TITLE, FLAG } kind;
	size_t offset;
} words[] = {
	{":rate", RATE, offsetof(struct profile_request, rate)},
	{":title", TITLE, offsetof(struct profile_request, title)},
	{":wall", FLAG, offsetof(struct profile_request, by_wall_clock)},
	{":folded", FLAG, offsetof(struct profile_request, is_folded)},
	{":icicle", FLAG, offsetof(struct profile_request, is_icicle)},
	{":reversed", FLAG, offsetof(struct profile_request, is_reversed)},
};

static const struct word *find_word(value symbol)
{
	for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
		if (symbol == intern(words[i].name))
			return &words[i];
	}
	return NULL;
}

int profile_is_word(value symbol)
{
	return find_word(symbol) != NULL;
}

/* Returns true for lines, false for a picture: the default by the file's name. */
int profile_is_folded(const char *path)
{
	static const char suffix[] = ".folded";
	size_t bytes = strlen(path), tail = sizeof suffix - 1;

	return bytes >= tail && !strcmp(path + bytes - tail, suffix);
}

/* (%profile-begin FILE KEYWORD VALUE ...), as the form has them. */
static void read_request(struct context *ctx, value *args, int64_t argc,
			 struct profile_request *request)
{
	static const char who[] = "with-flame-profile";

	request->path = text_arg(ctx, who, "file name", args[0]);
	if (!*request->path)
		raise_type(ctx, who, "file name", args[0]);
	request->is_folded = profile_is_folded(request->path);
	for (int64_t i = 1; i + 1 < argc; i += 2) {
		value v = args[i + 1];
		const struct word *word = find_word(args[i]);
		void *to = (char *)request + (word ? word->offset : 0);
		if (!word) {
			raise_type(ctx, who, "keyword", args[i]);
		} else if (word->kind == FLAG) {
			*(int *)to = v != V_FALSE;
		} else if (word->kind == TITLE) {
			*(const char **)to =
				v == V_FALSE ? NULL : text_arg(ctx, who, "string for :title", v);
		} else {
			if (!is_fixnum(v))
				raise_type(ctx, who, "whole number for :rate", v);
			*(int64_t *)to = fixnum_of(v);
		}
	}
}

PRIM(begin_of)
{
	struct profile_request request = {.rate = PROFILE_RATE};
	char why[PROFILE_WHY_BYTES], text[PROFILE_WHY_BYTES + 32];

	read_request(ctx, args, argc, &request);
	int64_t token = profile_begin(ctx, &request, why);
	if (token <= 0) {
		snprintf(text, sizeof text, "with-flame-profile: %s:", why);
		raise_error(ctx, token == PROFILE_NO_FILE ? "file" : "error", text, 1, args[0]);
	}
	return make_fixnum(token);
}

/* A failure to write is only reported: the body's value counts more than its profile. */
PRIM(end_of)
{
	char why[PROFILE_WHY_BYTES];

	if (!is_fixnum(args[0]) || fixnum_of(args[0]) <= 0)
		raise_type(ctx, "%profile-end", "profile", args[0]);
	if (!jit_has_heap(ctx) || end(ctx, fixnum_of(args[0]), why))
		return V_UNSPEC;
	vm_flush(ctx->vm);
	fprintf(stderr, "scheme: with-flame-profile: %s\n", why);
	return V_UNSPEC;
}

/* Errors leave from this catcher, not from the place of the error: an error that has used up the
 * stack skips all winders on the way to the next catcher. The outer winders still run. */
PRIM(run_body)
{
	struct catcher catcher;
	int volatile is_thrown = 0;
	value volatile v = V_UNSPEC;

	catcher_enter(ctx, &catcher);
	if (_setjmp(catcher.target) == 0)
		v = apply(ctx, args[0], 0, NULL);
	else
		is_thrown = 1;
	catcher_leave(ctx, &catcher);
	if (is_thrown)
		throw_to(ctx, ctx->now.catcher, catcher.error);
	return v;
}

void init_profiles(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"%profile-begin", begin_of, 1, -1},
		{"%profile-body", run_body, 1, 1},
		{"%profile-end", end_of, 1, 1},
	};

	DEFINE_PRIMS(ctx, defs);
}
