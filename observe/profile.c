/* SPDX-License-Identifier: MIT
 * profile.c: the profile of a heap: the threads to sample, the names of sampled blocks in all heaps
 * of these threads, and the written file. profiler*.c take and keep samples, flame.h draws them.
 *
 * Lock: heaps and registry for start and stop; also heap, one heap at a time, for fields that the
 * sweep reads. Files are written under no lock. */
#include "observe/profile.h"

#include "codeheap/base/sized.h"
#include "codeheap/base/why.h"
#include "observe/core.h"
#include "observe/system.h"
#include "os/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	FALLBACKS_MAX = 256,
	TEMPORARY_BYTES = 16,
	NAME_KEPT = 64, /* of a file's name, in the name of the temporary file */
};

/* --- listening to heaps --- */

static struct ch__profile profiles[CH__LOOK_HEAPS_MAX + 1]; /* by the numbers of heaps */
static const struct ch__listener_calls calls;

static uint32_t number_of(const struct ch_heap *heap)
{
	struct ch__look_heap look;
	ch__look_heap(heap, &look);
	return look.id;
}

struct ch__profile *ch__profile_of(const struct ch_heap *heap)
{
	return &profiles[number_of(heap)];
}

static struct ch__profile *listen_to(struct ch_heap *heap) CH_REQUIRES(ch__role_heaps)
{
	struct ch__profile *profile = ch__profile_of(heap);
	if (!profile->listener.heap) {
		profile->listener.calls = &calls;
		ch__listener_add(heap, &profile->listener);
	}
	return profile;
}

static void set_heard_by(struct ch__profile *profile, uint32_t number, bool is_heard)
{
	uint64_t bit = UINT64_C(1) << number % 64, *word = &profile->heard_by[number / 64];
	*word = is_heard ? *word | bit : *word & ~bit;
}

/* The next running profile, from *number on, that hears of deaths in the heap; NULL: none. */
static struct ch__profiler *next_hearer(const struct ch__profile *profile, uint32_t *number)
{
	for (; *number <= CH__LOOK_HEAPS_MAX; ++*number)
		if (profile->heard_by[*number / 64] >> *number % 64 & 1)
			return profiles[(*number)++].hears;
	return NULL;
}

static void blocks_die(struct ch__listener *listener, const uint64_t *handles, size_t n)
{
	uint64_t keys[CH__LOOK_DEATHS_MOST];
	for (size_t i = 0; i < n; i++)
		keys[i] = ch__look_key(handles[i]);
	uint32_t number = 1;
	for (struct ch__profiler *p;
	     (p = next_hearer((const struct ch__profile *)listener, &number));)
		ch__profiler_dying(p, listener->heap, keys, n);
}

/* Starts or stops listening for deaths in each heap. Under the lock no heap comes or goes. */
static void hear_all(uint32_t number, bool hears) CH_REQUIRES(ch__role_heaps)
{
	for (uint32_t id = 1; id <= CH__LOOK_HEAPS_MAX; id++) {
		struct ch_heap *heap = ch__look_heap_of(id);
		if (!heap)
			continue;
		struct ch__profile *profile = listen_to(heap);
		ch__look_lock_blocks(heap);
		set_heard_by(profile, number, hears);
		ch__look_unlock_blocks(heap);
	}
}

/* Takes the name of each code sampled so far: these codes need no heap for a name later. */
static void take_names(struct ch__profiler *p) CH_REQUIRES(ch__role_heaps)
{
	for (uint32_t id = 1; id <= CH__LOOK_HEAPS_MAX; id++) {
		struct ch_heap *heap = ch__look_heap_of(id);
		if (!heap)
			continue;
		ch__look_lock_blocks(heap);
		ch__profiler_name_all(p, heap, id);
		ch__look_unlock_blocks(heap);
	}
}

/* Nobody else knows the new heap. An earlier heap may have had the number. */
static enum ch_status heap_begins(struct ch_heap *heap, const char **stats_file, bool may_fail)
	CH_REQUIRES(ch__role_heaps)
{
	(void)stats_file, (void)may_fail;
	*ch__profile_of(heap) = (struct ch__profile){.meta = NULL};
	for (uint32_t number = 1; number <= CH__LOOK_HEAPS_MAX; number++)
		if (profiles[number].hears)
			set_heard_by(listen_to(heap), number, true);
	return CH_OK;
}

/* --- threads --- */

struct ch__sampler_slot *ch__profile_slot(struct ch__profile *profile, struct ch__thread *thread)
{
	_Atomic(void *) *word = ch__look_thread_word(thread);
	struct ch__sampler_slot *slot = CH_LOAD_RELAXED(word);
	if (!slot) {
		slot = ch__meta_alloc(profile->meta, sizeof *slot);
		/* Release: pairs with the acquire of the handler. */
		atomic_store_explicit(word, slot, memory_order_release);
	}
	return slot;
}

static int sample(struct ch__profile *profile, struct ch__profiler *p, struct ch__thread *thread)
	CH_REQUIRES(ch__role_registry)
{
	return ch__profiler_add(p, ch__profile_slot(profile, thread), ch__look_thread_id(thread));
}

static void thread_comes(struct ch__listener *listener, struct ch__thread *thread)
	CH_REQUIRES(ch__role_registry)
{
	struct ch__profile *profile = (struct ch__profile *)listener;
	int error = errno;
	/* A refused timer does not stop the attach: the thread is counted, and not sampled. */
	if (profile->hears)
		(void)sample(profile, profile->hears, thread);
	errno = error;
}

static void thread_leaves(struct ch__listener *listener, struct ch__thread *thread)
	CH_REQUIRES(ch__role_registry)
{
	struct ch__profile *profile = (struct ch__profile *)listener;
	_Atomic(void *) *word = ch__look_thread_word(thread);
	struct ch__sampler_slot *slot = CH_LOAD_RELAXED(word);
	if (profile->hears && slot)
		ch__profiler_remove(profile->hears, slot);
}

/* --- start and stop --- */

static enum ch_status status_of(int error)
{
	errno = error;
	return !error ? CH_OK
		      : ch__because(error == ENOMEM ? CH_E_MEMORY : CH_E_OS, "the profile: %m");
}

static void forget(struct ch__profile *profile) CH_HAS_HEAP
{
	ch__profiler_destroy(profile->profiler);
	ch__meta_free(profile->meta, profile->fallbacks, FALLBACKS_MAX * sizeof(uintptr_t));
	profile->profiler = NULL;
	profile->fallbacks = NULL;
	profile->fallback_count = 0;
}

static void set_hears(struct ch__profile *profile, struct ch__profiler *p)
	CH_REQUIRES(ch__role_heaps, ch__role_registry)
{
	struct ch_heap *heap = profile->listener.heap;
	if (!p)
		hear_all(number_of(heap), false);
	ch__look_lock_blocks(heap);
	profile->hears = p;
	ch__look_unlock_blocks(heap);
	if (p)
		hear_all(number_of(heap), true);
}

struct addition {
	struct ch__profile *profile;
	struct ch__profiler *profiler;
	int error;
};

static bool add_thread(void *arg, struct ch__thread *thread) CH_UNANALYSED("of begin only")
{
	struct addition *addition = arg;
	addition->error = sample(addition->profile, addition->profiler, thread);
	/* The thread ended without leaving the heap. */
	if (addition->error == ESRCH)
		addition->error = 0;
	return !addition->error;
}

/* The new profile hears of deaths before a thread is sampled. The old profile stays until the new
 * profile cannot fail any more. */
static int begin(struct ch__profile *profile, unsigned rate,
		 const struct ch_profile_options *options)
	CH_REQUIRES(ch__role_heaps, ch__role_registry)
{
	struct ch__profiler_config config = {
		.rate = rate,
		.asked = *options,
		.heap = profile->listener.heap,
		.timer_value = ch__profile_tag(number_of(profile->listener.heap)),
	};
	ch__look_heap(profile->listener.heap, &config.look);
	struct addition addition = {.profile = profile};
	uintptr_t *fallbacks = ch__meta_alloc(profile->meta, FALLBACKS_MAX * sizeof *fallbacks);
	addition.error = fallbacks ? ch__profiler_create(&config, &addition.profiler) : ENOMEM;
	struct ch__profiler *p = addition.profiler;
	if (!addition.error) {
		set_hears(profile, p);
		ch__look_threads(profile->listener.heap, add_thread, &addition);
	}
	if (addition.error) {
		set_hears(profile, NULL);
		if (p)
			ch__profiler_stop(p);
		ch__profiler_destroy(p);
		ch__meta_free(profile->meta, fallbacks, FALLBACKS_MAX * sizeof *fallbacks);
		return addition.error;
	}
	ch__look_lock_blocks(profile->listener.heap);
	forget(profile);
	profile->profiler = p;
	profile->fallbacks = fallbacks;
	ch__look_unlock_blocks(profile->listener.heap);
	return 0;
}

/* --- life --- */

/* Returns 0 or errno. */
static int start(struct ch__profile *profile, unsigned rate,
		 const struct ch_profile_options *options)
	CH_REQUIRES(ch__role_heaps, ch__role_registry)
{
	static struct ch__greeter greeter = {.begins = heap_begins};
	static bool is_greeting CH_GUARDED_BY(ch__role_heaps);
	if (!is_greeting)
		ch__listener_greet(&greeter);
	is_greeting = true;
	if (!profile->meta)
		profile->meta = ch__meta_create();
	if (!profile->meta)
		return ENOMEM;
	return ch__profile_install() ? begin(profile, rate, options) : errno;
}

enum ch_status ch_profile_start(struct ch_heap *heap, unsigned rate,
				const struct ch_profile_options *options)
{
	if (!ch__core_is_ours()) {
		errno = ELIBBAD;
		return CH_E_OS;
	}
	enum ch_status status = ch__look_refuses(heap);
	if (CH_UNLIKELY(status != CH_OK))
		return status;
	if (!rate || rate > CH__PROFILE_RATE_MAX)
		return ch__because(CH_E_ARG, "rate is %u: not 1 to %d", rate, CH__PROFILE_RATE_MAX);
	struct ch_profile_options whole = {.size = sizeof whole};
	if (options) {
		status = CH__SIZED_CHECK(ch_profile_options, options, by_wall_clock, user);
		if (status != CH_OK)
			return status;
		ch__sized_take(&whole, sizeof whole, options);
	}
	size_t least = ch__profiler_least_bytes();
	if (whole.memory_bytes && whole.memory_bytes < least)
		return ch__because(CH_E_ARG,
				   "ch_profile_options.memory_bytes is %zu: neither 0 nor %zu or "
				   "more", whole.memory_bytes, least);
	ch__look_lock_heaps();
	ch__look_lock_threads(heap);
	struct ch__profile *profile = listen_to(heap);
	bool is_running = profile->hears;
	int error = is_running ? 0 : start(profile, rate, &whole);
	ch__look_unlock_threads(heap);
	ch__look_unlock_heaps();
	return is_running ? ch__because(CH_E_STATE, "a profile is running") : status_of(error);
}

/* Takes names while blocks have names: a stopped profile needs nothing of the heap. */
static void end(struct ch__profile *profile) CH_REQUIRES(ch__role_heaps, ch__role_registry)
{
	struct ch_heap *heap = profile->listener.heap;
	ch__profiler_stop(profile->hears);
	take_names(profile->hears);
	ch__look_lock_blocks(heap);
	profile->fallback_count = ch__look_fallbacks(heap, profile->fallbacks, FALLBACKS_MAX);
	ch__look_unlock_blocks(heap);
	set_hears(profile, NULL);
}

enum ch_status ch_profile_stop(struct ch_heap *heap, struct ch_profile_counts *counts)
{
	if (!ch__core_is_ours())
		return CH_E_STATE;
	enum ch_status status = ch__look_refuses(heap);
	if (status == CH_OK && counts)
		status = CH__SIZED_CHECK(ch_profile_counts, counts, samples, refused);
	if (status != CH_OK)
		return status;
	ch__look_lock_heaps();
	ch__look_lock_threads(heap);
	struct ch__profile *profile = ch__profile_of(heap);
	bool is_running = profile->hears, is_handled = ch__os_profile_is_handled();
	if (is_running) {
		struct ch_profile_counts all;
		end(profile);
		ch__profiler_count(profile->profiler, &all);
		if (counts)
			ch__sized_give(counts, &all);
	}
	ch__look_unlock_threads(heap);
	ch__look_unlock_heaps();
	if (!is_running)
		return ch__because(CH_E_STATE, "no profile is running");
	if (is_handled)
		return CH_OK;
	errno = ENOENT;
	return ch__because(CH_E_OS, "the profile ended, but SIGPROF has no handler any more: since "
				    "it went there are no samples");
}

/* Ends the heap's own profile. Other profiles take the names of the heap's code. */
static void heap_ends(struct ch__listener *listener) CH_REQUIRES(ch__role_heaps)
{
	struct ch__profile *profile = (struct ch__profile *)listener;
	struct ch_heap *heap = listener->heap;
	ch__look_lock_threads(heap);
	if (profile->hears)
		end(profile);
	ch__look_lock_blocks(heap);
	forget(profile);
	uint32_t number = 1;
	for (struct ch__profiler *p; (p = next_hearer(profile, &number));)
		ch__profiler_name_all(p, heap, number_of(heap));
	ch__look_unlock_blocks(heap);
	ch__look_unlock_threads(heap);
	if (profile->meta)
		ch__meta_destroy(profile->meta);
}

/* --- fork: the locks of all heaps are held, and so side memory of profiles is whole --- */

static void fork_prepare(struct ch__listener *listener)
{
	struct ch__profile *profile = (struct ch__profile *)listener;
	if (profile->profiler)
		ch__profiler_fork_prepare(profile->profiler);
}

static void fork_parent(struct ch__listener *listener)
{
	struct ch__profile *profile = (struct ch__profile *)listener;
	if (profile->profiler)
		ch__profiler_fork_parent(profile->profiler);
}

static void fork_child(struct ch__listener *listener) CH_HAS_HEAP
{
	struct ch__profile *profile = (struct ch__profile *)listener;
	memset(profile->heard_by, 0, sizeof profile->heard_by);
	if (!profile->profiler)
		return;
	ch__profiler_fork_child(profile->profiler);
	profile->hears = NULL;
	forget(profile);
}

static const struct ch__listener_calls calls = {
	.thread_comes = thread_comes,
	.thread_leaves = thread_leaves,
	.blocks_die = blocks_die,
	.fork_prepare = fork_prepare,
	.fork_parent = fork_parent,
	.fork_child = fork_child,
	.ends = heap_ends,
};

/* --- writing --- */

struct file {
	int fd, error;
};

static bool put(void *arg, const char *text, size_t n)
{
	struct file *file = arg;
	if (ch__os_file_put(file->fd, text, n) != n)
		file->error = errno;
	return !file->error;
}

/* Prints the path of a temporary file beside `path`. The file's name is cut, at a character of
 * UTF-8: with the number behind, a whole name could be longer than file systems allow. A folder too
 * long for `beside` is too long for the system. */
static void print_beside(char *beside, size_t bytes, const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	size_t kept = strnlen(name, NAME_KEPT);
	uint32_t number;
	while (kept && ((uint8_t)name[kept] & 0xc0) == 0x80)
		kept--;
	ch__os_random(&number, sizeof number);
	snprintf(beside, bytes, "%.*s.%08x", (int)(name - path + kept), path, number);
}

/* Writes a file beside the path and renames the file at the end: the old file stays until then. */
static int write_file(const char *path, struct ch__profiler_copy *copy,
		      const struct ch__profiler_view *view)
{
	char beside[CH__OS_PATH_BYTES + TEMPORARY_BYTES];
	bool is_plain = ch__os_file_is_plain(path);
	print_beside(beside, sizeof beside, path);
	struct file file = {
		.fd = is_plain ? ch__os_file_create(beside, NULL, 0) : ch__os_file_straight(path)};
	int error = file.fd < 0 ? errno : 0;
	if (!error && is_plain)
		ch__os_file_take_mode(file.fd, path);
	if (!error)
		error = ch__profiler_report(copy, view, put, &file);
	if (file.error)
		error = file.error;
	if (file.fd >= 0 && !ch__os_file_close(file.fd) && !error)
		error = errno;
	if (!error && is_plain && !ch__os_file_rename(beside, path))
		error = errno;
	if (error && file.fd >= 0 && is_plain)
		ch__os_file_remove(beside);
	return error;
}

/* Fills `whole` from the caller's view, or with zeros if there is no view. */
static enum ch_status take_view(struct ch_profile_view *whole, const struct ch_profile_view *view)
{
	const unsigned known = CH_PROFILE_FOLDED | CH_PROFILE_ICICLE | CH_PROFILE_REVERSED;
	*whole = (struct ch_profile_view){.size = sizeof *whole};
	if (!view)
		return CH_OK;
	enum ch_status status = CH__SIZED_CHECK(ch_profile_view, view, flags, interpreter);
	if (status != CH_OK)
		return status;
	ch__sized_take(whole, sizeof *whole, view);
	return whole->flags & ~known ? ch__because(CH_E_ARG, "ch_profile_view.flags is %u: others "
							     "than enum ch_profile_flags has",
						   whole->flags)
				     : CH_OK;
}

/* Copies all data to write. Returns NULL if there is no memory. Names are taken after the copy, so
 * each code of the copy has a name. */
static struct ch__profiler_copy *copy_profile(const struct ch__profile *profile,
					      uintptr_t *fallbacks, size_t *count)
	CH_REQUIRES(ch__role_heaps)
{
	struct ch__profiler_copy *copy = ch__profiler_copy(profile->profiler);
	if (profile->hears) {
		take_names(profile->hears);
		ch__look_lock_blocks(profile->listener.heap);
		*count = ch__look_fallbacks(profile->listener.heap, fallbacks, FALLBACKS_MAX);
		ch__look_unlock_blocks(profile->listener.heap);
	} else {
		*count = profile->fallback_count;
		memcpy(fallbacks, profile->fallbacks, *count * sizeof *fallbacks);
	}
	if (copy && ch__profiler_copy_names(profile->profiler, copy))
		return copy;
	ch__profiler_copy_free(copy);
	return NULL;
}

enum ch_status ch_profile_write(struct ch_heap *heap, const char *path,
				const struct ch_profile_view *asked)
{
	if (!ch__core_is_ours())
		return CH_E_STATE;
	enum ch_status status = ch__look_refuses(heap);
	if (CH_UNLIKELY(status != CH_OK))
		return status;
	struct ch_profile_view view;
	uintptr_t fallbacks[FALLBACKS_MAX];
	if (!path || !*path)
		return ch__because(CH_E_ARG, "path is empty");
	status = take_view(&view, asked);
	if (status != CH_OK)
		return status;
	struct ch__profiler_view seen = {
		.is_folded = (view.flags & CH_PROFILE_FOLDED) != 0,
		.is_icicle = (view.flags & CH_PROFILE_ICICLE) != 0,
		.is_reversed = (view.flags & CH_PROFILE_REVERSED) != 0,
		.title = view.title,
		.interpreter = view.interpreter,
		.fallbacks = fallbacks,
	};
	struct ch__profile *profile = ch__profile_of(heap);
	ch__look_lock_heaps();
	bool is_there = profile->profiler != NULL;
	struct ch__profiler_copy *copy =
		is_there ? copy_profile(profile, fallbacks, &seen.fallback_count) : NULL;
	ch__look_unlock_heaps();
	if (!is_there)
		return ch__because(CH_E_STATE, "there was no profile");
	/* The file may take long, or be a pipe that nobody reads: no cycle waits for it. */
	ch_thread_park();
	/* libdw opens files. A thread that ended there would leave the copy and the file beside. */
	int cancel = ch__os_cancel_hold();
	int error = copy ? write_file(path, copy, &seen) : ENOMEM;
	ch__os_cancel_allow(cancel);
	ch__profiler_copy_free(copy);
	ch_thread_unpark();
	if (error && error != ENOMEM) {
		errno = error;
		return ch__because(CH_E_OS, "the profile: %m: %s", path);
	}
	return status_of(error);
}
