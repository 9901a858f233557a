/* SPDX-License-Identifier: MIT
 * tell.c: names, source lines and ranges of blocks by key, for the sinks of a heap, and the calls
 * that choose sinks. Formats and files belong to sinks/.
 *
 * A key is a block's handle. Sinks ask only about blocks that are published or being published, and
 * observers under the heap lock, so the record stays. Lock: heap for the calls that set or flush,
 * none for the functions of sinks. */
#include "codeheap/events/events.h"
#include "codeheap/places/places.h"
#include "unwind/nongnu.h"

static char *add_name(const char *name, char *at, const char *end)
{
	size_t n = strnlen(name, (size_t)(end - at));
	return (char *)memcpy(at, name, n) + n;
}

size_t ch__tell_name(void *context, uint64_t key, char *out, size_t out_bytes)
{
	const struct ch_heap *heap = context;
	const struct ch__block *block = ch__block_at(heap, ch__handle_index(key));
	const struct ch__side_list *list = block->side_list;
	const char *own = list ? ch__name_text(heap, list->name) : "";
	const char *owner = ch__name_text(heap, ch__owner_at(heap, block->owner)->name);
	char *end = out + out_bytes - 1, *at = add_name(owner, out, end);
	if (at != out && *own)
		at = add_name(" ", at, end);
	end = add_name(own, at, end);
	for (at = out; (at = memchr(at, '\n', (size_t)(end - at)));)
		*at = ' ';
	size_t n = (size_t)(end - out);
	return n == out_bytes - 1 ? ch__text_whole(out, n) : n;
}

/* Lines and file live as long as the block is published. */
static const struct ch__sink_line *lines_of(void *context, uint64_t key, const char **file,
					    size_t *n)
{
	const struct ch_heap *heap = context;
	const struct ch__block *block = ch__block_at(heap, ch__handle_index(key));
	const struct ch__lines *lines = ch__side_pointer(block->side_list, CH__ITEM_LINES);
	*n = lines ? lines->count : 0;
	if (lines)
		*file = ch__name_text(heap, lines->file);
	return lines ? lines->at : NULL;
}

static const uint8_t *section_of(void *context, uint64_t key)
{
	const struct ch__block *block = ch__block_at(context, ch__handle_index(key));
	const struct ch__own *own = ch__side_pointer(block->side_list, CH__ITEM_OWN);
	return own ? own->section : NULL;
}

/* Under the heap lock, or nobody has the heap: no block is published or withdrawn meanwhile. */
static CH_COLD void each_range(void *context,
			       void (*visit)(void *arg, const struct ch__sink_range *), void *arg)
{
	struct ch_heap *heap = context;
	for (uint32_t i = 1; i < heap->blocks.used; i++) {
		const struct ch__block *block = ch__block_at(heap, i);
		if (!ch__block_is_published(block) || ch__block_is_data(heap, block))
			continue;
		struct ch__sink_range ranges[2];
		size_t n = ch__block_ranges(heap, block, ch__block_handle(heap, i).bits, ranges);
		for (size_t part = 0; part < n; part++)
			visit(arg, &ranges[part]);
	}
}

enum ch_status ch__tell_create(struct ch_heap *heap, unsigned wanted)
{
	const struct ch__pool *pool = heap->pool;
	char *dir = NULL;
	if (heap->config.jitdump_dir) {
		size_t bytes = strlen(heap->config.jitdump_dir) + 1;
		if (!(dir = ch__meta_alloc(heap->meta, bytes)))
			return ch__because_memory("ch_config.jitdump_dir");
		memcpy(dir, heap->config.jitdump_dir, bytes);
	}
	heap->config.jitdump_dir = dir; /* freed with the heap's side memory */
	struct ch__sinks_config sinks = {
		.pool_exec = pool->exec_base,
		.pool_bytes = pool->pool_bytes,
		.page_bytes = (size_t)1 << pool->page_log2,
		.chunk_bytes = (size_t)1 << pool->chunk_log2,
		.runtime_exec = pool->runtime_exec,
		.runtime_bytes = pool->runtime_bytes,
		.head_bytes = CH__HEAD_BYTES,
		.slot_bytes = CH__SLOT_BYTES,
		.meta = heap->meta,
		.context = heap,
		.name = ch__tell_name,
		.lines = lines_of,
		.section = section_of,
		.keeps_dead_names = heap->config.dead_names == CH_DEAD_NAMES_KEPT,
		.jitdump_dir = heap->config.jitdump_dir,
		.each = each_range,
	};
	if (ch__sinks_create(&sinks, wanted, &heap->sinks))
		return ch__because_memory("the sinks");
	atomic_store(&heap->sinks_on, ch__sinks_on(heap->sinks));
	return CH_OK;
}

/* Asks the sinks always: sinks_wait says only that lines waited once, and another heap or an
 * observer may have written them. Relaxed: a thread stores 0 before it asks, and POLLS after it
 * asked; the questions are ordered by the file's lock. */
enum { POLLS = 16 };
void ch__tell_catch_up(struct ch_heap *heap)
{
	CH_STORE_RELAXED(&heap->sinks_wait, 0);
	if (ch__sinks_catch_up())
		return;
	CH_STORE_RELAXED(&heap->sinks_wait, POLLS);
	ch__poll_want(heap);
	ch__listeners_names_wait();
}

/* A look reads the clock, and polls come by the thousand: one in POLLS looks. The thread parks for
 * the write, so a stop waits neither for the write nor for the file's lock. */
void ch__tell_poll(struct ch_heap *heap)
{
	uint32_t polls = CH_LOAD_RELAXED(&heap->sinks_wait);
	if (polls == 1 && ch__sinks_wait_for_time())
		polls += POLLS;
	if (polls > 1) {
		CH_STORE_RELAXED(&heap->sinks_wait, polls - 1);
		return;
	}
	ch__thread_park_here();
	ch__tell_catch_up(heap);
	ch_thread_unpark();
}

/* Of an error names the sinks that failed; errno says how. */
static enum ch_status status_of_sinks(const struct ch_heap *heap, int error)
{
	char names[96];
	unsigned failed = 0;
	if (!error)
		return CH_OK;
	for (unsigned bit = 1; bit & CH__SINKS_ALL; bit <<= 1)
		if (ch__sinks_status(heap->sinks, (enum ch_sink)bit))
			failed |= bit;
	ch__sinks_print(failed, names, sizeof names);
	errno = error;
	return ch__because(CH_E_OS, "failed and off: %s, with %m", names);
}

enum ch_status ch_sink_set(struct ch_heap *heap, unsigned sinks)
{
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	unsigned wanted = sinks & ~(unsigned)CH_SINK_NONE;
	if (wanted & ~(unsigned)CH__SINKS_ALL)
		return ch__because(CH_E_ARG, "sinks is %lx: not a set of enum ch_sink",
				   (uint64_t)sinks);
	if (sinks == CH_SINK_DEFAULT)
		wanted = CH_SINK_UNWIND;
	if (wanted & CH_SINK_LIBUNWIND)
		ch__nongnu_find();
	uint64_t until = ch__stop_limit(heap, ch__os_now_ns());
	if (!ch__heap_lock_until(heap, until))
		return ch__because_locked();
	/* Before the freeze and the walk (I19). */
	atomic_store(&heap->sinks_on, atomic_load(&heap->sinks_on) | wanted);
	int error = 0;
	bool is_through = ch__await_regions(heap, until);
	if (is_through)
		error = ch__sinks_set(heap->sinks, wanted);
	atomic_store(&heap->sinks_on, ch__sinks_on(heap->sinks));
	ch__heap_unlock(heap);
	return is_through ? status_of_sinks(heap, error) : ch__told(CH_E_BUSY);
}

enum ch_status ch_sink_flush(struct ch_heap *heap)
{
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	ch__heap_lock(heap);
	ch__sinks_flush(heap->sinks, CH__FLUSH_EXACT);
	int error = 0;
	for (unsigned bit = 1; bit & CH__SINKS_ALL; bit <<= 1)
		if (!error)
			error = ch__sinks_status(heap->sinks, (enum ch_sink)bit);
	ch__heap_unlock(heap);
	return status_of_sinks(heap, error);
}

bool ch_sink_status(struct ch_heap *heap, enum ch_sink sink, const char **path, int *failed)
{
	const char *no_path = NULL;
	int no_error = 0;
	path = path ? path : &no_path;
	failed = failed ? failed : &no_error;
	*path = "";
	*failed = EINVAL;
	if (!ch__heap_is_listed(heap))
		return false;
	if (sink == CH_SINK_STATS_FILE)
		return ch__listeners_file(heap, path, failed);
	*path = ch__sinks_path(heap->sinks, sink);
	unsigned on = ch__sinks_on(heap->sinks); /* first: a sink that is off says why */
	*failed = ch__sinks_status(heap->sinks, sink);
	return !*failed && (on & (unsigned)sink) != 0;
}
