/* SPDX-License-Identifier: MIT
 * listener.c: the listeners of a heap: a list that only grows while the heap lives, walked without
 * a lock. An addition holds the lock of all heaps, and so does the end of a heap. */
#include "codeheap/events/events.h"
#include "codeheap/base/why.h"

const char *ch__listener_release(void)
{
	return CH_VERSION_TEXT;
}

void ch__listener_add(struct ch_heap *heap, struct ch__listener *listener)
{
	listener->heap = heap;
	listener->next = CH_LOAD_RELAXED(&heap->listeners);
	atomic_store_explicit(&heap->listeners, listener, memory_order_release);
}

void ch__listener_await_use(struct ch_heap *heap)
{
	atomic_store(&heap->use_is_awaited, 1);
}

static _Atomic(struct ch__greeter *) greeters;

void ch__listener_greet(struct ch__greeter *greeter)
{
	struct ch__greeter *first = atomic_load(&greeters);
	do
		greeter->next = first;
	while (!atomic_compare_exchange_weak_explicit(&greeters, &first, greeter,
						      memory_order_release, memory_order_relaxed));
}

static _Atomic(ch__listener_names_wait *) who_hears_of_names;

void ch__listener_on_names(ch__listener_names_wait *call)
{
	atomic_store(&who_hears_of_names, call);
}

enum ch_status ch__listeners_begin(struct ch_heap *heap)
{
	static const char line[] =
		"codeheap: CODEHEAP_STATS needs libcodeheap-profile, which this process has not\n";
	static _Atomic(uint32_t) is_told;
	const char *wish = ch__os_environment("CODEHEAP_STATS");
	const char *stats_file = wish ? wish : heap->config.stats_file;
	enum ch_status status = CH_OK;
	for (struct ch__greeter *g = atomic_load_explicit(&greeters, memory_order_acquire);
	     g && status == CH_OK; g = g->next)
		status = g->begins(heap, &stats_file, wish != NULL);
	if (status == CH_OK && stats_file && *stats_file) {
		heap->no_file = errno = ENOSYS;
		/* Told once: a user who asked in the environment sees no status, and would look for
		 * the file. */
		if (wish && !atomic_exchange(&is_told, 1))
			ch__os_write_last(line, strlen(line));
		if (!wish)
			status = ch__because(CH_E_OS, "ch_config.stats_file needs "
					     "ch_stats_file_enable of libcodeheap-profile: %m");
	}
	if (status != CH_OK) {
		int error = errno;
		ch__listeners_end(heap);
		errno = error;
	}
	return status;
}

void ch__listeners_use(struct ch_heap *heap)
{
	int error = errno;
	if (CH_LOAD_RELAXED(&heap->use_is_awaited) && atomic_exchange(&heap->use_is_awaited, 0))
		CH__TELL(heap, used);
	errno = error;
}

void ch__listeners_names_wait(void)
{
	ch__listener_names_wait *call = atomic_load(&who_hears_of_names);
	int error = errno;
	if (call)
		call();
	errno = error;
}

void ch__listeners_end(struct ch_heap *heap)
{
	struct ch__listener *listener = atomic_exchange(&heap->listeners, NULL), *next;
	for (; listener; listener = next) {
		next = listener->next; /* a listener may free itself */
		if (listener->calls->ends)
			listener->calls->ends(listener);
	}
}

bool ch__listeners_file(const struct ch_heap *heap, const char **path, int *failed)
{
	*failed = heap->no_file;
	for (struct ch__listener *l = ch__listeners_first(heap); l; l = l->next)
		if (l->calls->file)
			return l->calls->file(l, path, failed);
	return false;
}
