/* SPDX-License-Identifier: MIT
 * profile.c: the profile of a heap: which threads are sampled, what its blocks are called, and the
 * file that is written of it. How samples are taken and kept is the profiler's, what they look like
 * that of flame.h.
 *
 * Lock: registry for start and stop; heap, too, for what the sweep and the writer read. Files are
 * written under no lock. */
#include "codeheap/handles.h"

#include <errno.h>
#include <stdio.h>

enum { FALLBACKS_MAX = 256, TEMPORARY_BYTES = 16, BUFFER_BYTES = 1 << 16 };

/* --- names --- */

static size_t name_of(void *context, uint64_t key, bool is_dying, char *text, size_t bytes)
{
	struct ch_heap *heap = context;
	uint32_t index = (uint32_t)key & CH__INDEX_MAX, generation = (uint32_t)(key >> 24);
	if (index >= heap->blocks.used || !heap->blocks.segments[index >> CH__SEGMENT_LOG2])
		return 0;
	/* Even: it was withdrawn (I3), and has its record until it was heard of here. */
	uint32_t is =
		atomic_load_explicit(&ch__block_at(heap, index)->generation, memory_order_acquire);
	if (is != generation + is_dying)
		return 0;
	size_t n = ch__tell_name(heap, ch__block_handle(heap, index).bits, text, bytes);
	return n ? n : (size_t)snprintf(text, bytes, "[code without a name]");
}

void ch__profile_blocks_die(struct ch_heap *heap, const uint64_t *handles, size_t n)
{
	uint64_t keys[CH__KILLED_AT_ONCE];
	CH_ASSERT(n <= CH__KILLED_AT_ONCE, "profile: more deaths than a step has");
	for (size_t i = 0; i < n; i++)
		keys[i] = (uint64_t)ch__handle_generation(handles[i]) << 24 |
			  ch__handle_index(handles[i]);
	ch__profiler_dying(heap->profile.hears, keys, n);
}

/* Where owners are entered without code: functions that interpret. Owners may be many, such
 * functions are few. */
static uint32_t gather_fallbacks(struct ch_heap *heap, uintptr_t *fallbacks)
	CH_REQUIRES(ch__role_heap)
{
	uint32_t count = 0;
	for (uint32_t i = 1; i < heap->owners.used && count < FALLBACKS_MAX; i++) {
		if (!heap->owners.segments[i >> CH__SEGMENT_LOG2])
			continue;
		const struct ch__owner *owner = ch__owner_at(heap, i);
		uintptr_t fallback = (uintptr_t)owner->fallback;
		if (!(atomic_load(&owner->generation) & 1) || !fallback)
			continue;
		uint32_t at = 0;
		while (at < count && fallbacks[at] != fallback)
			at++;
		if (at == count)
			fallbacks[count++] = fallback;
	}
	return count;
}

/* --- threads --- */

void ch__profile_thread_comes(struct ch__thread *thread)
{
	int error = errno;
	/* It is attached all the same, and not sampled where that is refused: that is counted. */
	(void)ch__profiler_add(thread->heap->profile.hears, &thread->sampling, thread->thread_id);
	errno = error;
}

void ch__profile_thread_leaves(struct ch__thread *thread)
{
	ch__profiler_remove(thread->heap->profile.hears, &thread->sampling);
}

/* --- start and stop --- */

static enum ch_status status_of(int error)
{
	errno = error;
	return !error ? CH_OK : error == ENOMEM ? CH_E_MEMORY : CH_E_OS;
}

static void set_hears(struct ch_heap *heap, struct ch__profiler *p) CH_REQUIRES(ch__role_registry)
{
	ch__heap_lock(heap);
	heap->profile.hears = p;
	ch__heap_unlock(heap);
}

static void forget(struct ch_heap *heap) CH_REQUIRES(ch__role_heap)
{
	struct ch__profile *profile = &heap->profile;
	ch__profiler_destroy(profile->profiler);
	ch__meta_free(heap->meta, profile->fallbacks, FALLBACKS_MAX * sizeof(uintptr_t));
	*profile = (struct ch__profile){0};
}

/* It hears of deaths before a thread is sampled; the profile before it stays until it cannot fail
 * any more. */
static int begin(struct ch_heap *heap, unsigned rate, const struct ch_profile_options *options)
	CH_REQUIRES(ch__role_registry)
{
	struct ch__profiler_config config = {
		.meta = heap->meta,
		.rate = rate,
		.by_wall_clock = options && options->by_wall_clock,
		.memory_bytes = options ? options->memory_bytes : 0,
		.pool_exec = heap->pool->exec_base,
		.pool_bytes = heap->pool->pool_bytes,
		.runtime_exec = heap->pool->runtime_exec,
		.runtime_bytes = heap->pool->runtime_bytes,
		.frames = options ? options->frames : NULL,
		.frames_user = options ? options->user : NULL,
		.context = heap,
		.timer_value = ch__profile_tag(heap),
		.key_of = ch__profile_key,
		.name = name_of,
	};
	struct ch__profiler *p = NULL;
	uintptr_t *fallbacks = ch__meta_alloc(heap->meta, FALLBACKS_MAX * sizeof *fallbacks);
	int error = fallbacks ? ch__profiler_create(&config, &p) : ENOMEM;
	if (!error)
		set_hears(heap, p);
	for (struct ch__thread *t = heap->threads; t && !error; t = t->next) {
		if (!t->is_attached)
			continue;
		error = ch__profiler_add(p, &t->sampling, t->thread_id);
		/* Who ended without leaving the heap. */
		if (error == ESRCH)
			error = 0;
	}
	if (error) {
		set_hears(heap, NULL);
		if (p)
			ch__profiler_stop(p);
		ch__profiler_destroy(p);
		ch__meta_free(heap->meta, fallbacks, FALLBACKS_MAX * sizeof *fallbacks);
		return error;
	}
	ch__heap_lock(heap);
	forget(heap);
	heap->profile = (struct ch__profile){.profiler = p, .hears = p, .fallbacks = fallbacks};
	ch__heap_unlock(heap);
	return 0;
}

enum ch_status ch_profile_start(struct ch_heap *heap, unsigned rate,
				const struct ch_profile_options *options)
{
	if (ch__is_marking())
		return CH_E_STATE;
	if (!rate || rate > CH__PROFILE_RATE_MAX || (options && options->size != sizeof *options))
		return CH_E_ARG;
	ch__registry_lock(heap);
	bool is_running = heap->profile.hears != NULL;
	int error = 0;
	if (!is_running)
		error = ch__profile_install() ? begin(heap, rate, options) : errno;
	ch__registry_unlock(heap);
	return is_running ? CH_E_STATE : status_of(error);
}

/* Names are taken while blocks have some: from then on it needs nothing of the heap. */
static void end(struct ch_heap *heap) CH_REQUIRES(ch__role_registry)
{
	struct ch__profile *profile = &heap->profile;
	ch__profiler_stop(profile->hears);
	ch__heap_lock(heap);
	ch__profiler_name_all(profile->hears);
	profile->fallback_count = gather_fallbacks(heap, profile->fallbacks);
	profile->hears = NULL;
	ch__heap_unlock(heap);
}

enum ch_status ch_profile_stop(struct ch_heap *heap, struct ch_profile_counts *counts)
{
	if (ch__is_marking())
		return CH_E_STATE;
	if (counts && counts->size != sizeof *counts)
		return CH_E_ARG;
	ch__registry_lock(heap);
	bool is_running = heap->profile.hears != NULL;
	if (is_running) {
		struct ch__profiler_counts c;
		end(heap);
		ch__profiler_count(heap->profile.profiler, &c);
		if (counts)
			*counts = (struct ch_profile_counts){sizeof *counts, c.samples, c.dropped,
							     c.cut,          c.threads, c.refused};
	}
	ch__registry_unlock(heap);
	return is_running ? CH_OK : CH_E_STATE;
}

void ch__profile_destroy(struct ch_heap *heap)
{
	ch__registry_lock(heap);
	if (heap->profile.hears)
		end(heap);
	ch__heap_lock(heap);
	forget(heap);
	ch__heap_unlock(heap);
	ch__registry_unlock(heap);
}

/* --- fork: the locks of the heap are held --- */

void ch__profile_fork_prepare(struct ch_heap *heap)
{
	if (heap->profile.profiler)
		ch__profiler_fork_prepare(heap->profile.profiler);
}

void ch__profile_fork_parent(struct ch_heap *heap)
{
	if (heap->profile.profiler)
		ch__profiler_fork_parent(heap->profile.profiler);
}

void ch__profile_fork_child(struct ch_heap *heap)
{
	if (!heap->profile.profiler)
		return;
	ch__profiler_fork_child(heap->profile.profiler);
	forget(heap);
}

/* --- writing --- */

struct file {
	int fd;
	int error;
	size_t used;
	char *buffer;
};

static bool flush(struct file *file)
{
	if (file->used && !file->error && !ch__os_file_write(file->fd, file->buffer, file->used))
		file->error = errno;
	file->used = 0;
	return !file->error;
}

static bool put(void *arg, const char *text, size_t n)
{
	struct file *file = arg;
	while (n) {
		size_t room = BUFFER_BYTES - file->used, part = n < room ? n : room;
		memcpy(file->buffer + file->used, text, part);
		file->used += part;
		text += part;
		n -= part;
		if (file->used == BUFFER_BYTES && !flush(file))
			return false;
	}
	return true;
}

/* What is at the path stays until all is written: then the new file takes its name. */
static int write_file(struct ch_heap *heap, const char *path, struct ch__profiler_copy *copy,
		      const struct ch__profiler_view *view)
{
	bool is_plain = ch__os_file_is_plain(path);
	size_t bytes = strlen(path) + TEMPORARY_BYTES;
	char *beside = ch__meta_alloc(heap->meta, bytes);
	struct file file = {.fd = -1, .buffer = ch__meta_alloc(heap->meta, BUFFER_BYTES)};
	int error = beside && file.buffer ? 0 : ENOMEM;
	if (!error) {
		uint32_t number;
		ch__os_random(&number, sizeof number);
		snprintf(beside, bytes, "%s.%08x", path, number);
		file.fd = is_plain ? ch__os_file_create(beside) : ch__os_file_straight(path);
		error = file.fd < 0 ? errno : 0;
		if (!error && is_plain)
			ch__os_file_take_mode(file.fd, path);
	}
	if (!error)
		error = ch__profiler_report(copy, view, put, &file);
	if (!error && !flush(&file))
		error = file.error;
	if (error == -1)
		error = file.error;
	if (file.fd >= 0 && !ch__os_file_close(file.fd) && !error)
		error = errno;
	if (!error && is_plain && !ch__os_file_rename(beside, path))
		error = errno;
	if (error && file.fd >= 0 && is_plain)
		ch__os_file_remove(beside);
	ch__meta_free(heap->meta, file.buffer, BUFFER_BYTES);
	ch__meta_free(heap->meta, beside, bytes);
	return error;
}

static bool is_view(const struct ch_profile_view *view)
{
	const unsigned known = CH_PROFILE_FOLDED | CH_PROFILE_ICICLE | CH_PROFILE_REVERSED;
	return !view || (view->size == sizeof *view && !(view->flags & ~known));
}

/* A copy of all that is written; NULL: no memory. */
static struct ch__profiler_copy *copy_profile(struct ch_heap *heap, uintptr_t *fallbacks,
					      size_t *count) CH_REQUIRES(ch__role_heap)
{
	struct ch__profile *profile = &heap->profile;
	if (profile->hears) {
		*count = gather_fallbacks(heap, fallbacks);
	} else {
		*count = profile->fallback_count;
		memcpy(fallbacks, profile->fallbacks, *count * sizeof *fallbacks);
	}
	return ch__profiler_copy(profile->profiler);
}

enum ch_status ch_profile_write(struct ch_heap *heap, const char *path,
				const struct ch_profile_view *view)
{
	if (ch__is_marking())
		return CH_E_STATE;
	struct ch_profile_view none = {.size = sizeof none};
	uintptr_t fallbacks[FALLBACKS_MAX];
	if (!path || !*path || !is_view(view))
		return CH_E_ARG;
	if (!view)
		view = &none;
	struct ch__profiler_view seen = {
		.is_folded = (view->flags & CH_PROFILE_FOLDED) != 0,
		.is_icicle = (view->flags & CH_PROFILE_ICICLE) != 0,
		.is_reversed = (view->flags & CH_PROFILE_REVERSED) != 0,
		.title = view->title,
		.interpreter = view->interpreter,
		.fallbacks = fallbacks,
	};
	ch__heap_lock(heap);
	bool is_there = heap->profile.profiler != NULL;
	struct ch__profiler_copy *copy =
		is_there ? copy_profile(heap, fallbacks, &seen.fallback_count) : NULL;
	ch__heap_unlock(heap);
	if (!is_there)
		return CH_E_STATE;
	int error = copy ? write_file(heap, path, copy, &seen) : ENOMEM;
	ch__profiler_copy_free(copy);
	return status_of(error);
}
