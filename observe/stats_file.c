/* SPDX-License-Identifier: MIT
 * stats_file.c: the statistics file of a heap (layout: stats_file.h). On request a thread writes
 * the file after a pause of 250 ms to 2 s, and at the end of the heap. The thread calls no VM and
 * knows no reader.
 *
 * The file is written by system calls, not through a mapping. A store into a mapped file is a
 * SIGBUS in the VM if the disk is full or somebody cut the file, whatever was reserved before. A
 * failed call turns the file off, and ch_sink_status (CH_SINK_STATS_FILE) reports the error.
 *
 * A child of fork has no writing thread, and never writes to the parent's file. If the name has %p,
 * the child makes its own file when the child compiles or collects. The handler of the fork makes
 * no file: a child that only replaces itself (exec) would leave the file behind.
 *
 * The writing thread owns the fields without a tag while it runs. Before and after, the thread that
 * starts and joins it owns them. Lock: heap for each look at the heap, none while writing. */
#define _GNU_SOURCE /* stpcpy */
#include "observe/stats_file.h"

#include "codeheap/base/why.h"
#include "codeheap/profile.h"
#include "observe/core.h"
#include "observe/stats_walk.h"
#include "observe/system.h"
#include "os/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	PERIOD_MS = 250, /* the shortest pause */
	NS_PER_MS = 1000000,
	WORK_SHARE = 100, /* up to the longest, a pause is so many times the work and its waits */
	SLEEP_MOST_MS = 2000,
	SAMPLES = 64,
	TEXTS = 4,
	SECTIONS = 8,
	NUMBERS_MOST = 64,
};

enum wish { WISH_NONE, WISH_END };

struct ch__stats_file {
	struct ch__listener listener; /* first */
	struct ch__meta *meta;        /* [const] */
	struct ch__look_heap heap;    /* [const] */
	const char *pattern;          /* [const]; %p is the process's number */
	char path[CH__OS_PATH_BYTES]; /* [const] from start to fork */
	struct ch__os_held held; /* zeros match no file */
	bool is_locked;
	/* the errno that turned the file off; relaxed: no other data depends on the value */
	_Atomic(int) failed;
	_Atomic(uint32_t) is_on;   /* release when the path is there; pairs with status */
	_Atomic(uint32_t) is_due;  /* a child of fork has yet to make its file; `used` ends it */
	_Atomic(uint64_t) period_ns; /* between two writes; 0: no pause, for tests */
	_Atomic(uint32_t) wish;    /* enum wish, futex; release pairs with the thread's acquire */
	struct ch__os_thread thread;
	uint64_t sequence;
	struct ch__stats_sample samples[SAMPLES]; /* the oldest first */
	uint32_t samples_count;
	struct ch__stats_pauses pauses; /* by the thread that has the heap frozen */
	struct ch__stats_walk walk;
	uint8_t *body; /* has room for the largest body */
	size_t body_room, body_bytes;
};

/* --- the sections --- */

static void add_section(struct ch__stats_file *file, enum ch__stats_section_kind kind,
			const void *entries, uint32_t entry_bytes, uint32_t count,
			uint32_t left_out)
{
	struct ch__stats_section head = {kind, entry_bytes, count, left_out};
	size_t bytes = (size_t)entry_bytes * count;
	CH_ASSERT(file->body_bytes + sizeof head + bytes <= file->body_room,
		  "the statistics file has room for each section");
	memcpy(file->body + file->body_bytes, &head, sizeof head);
	memcpy(file->body + file->body_bytes + sizeof head, entries, bytes);
	file->body_bytes += sizeof head + bytes;
}

static size_t body_room(const struct ch__stats_walk *walk)
{
	return SECTIONS * sizeof(struct ch__stats_section) + TEXTS * sizeof(struct ch__stats_text) +
	       NUMBERS_MOST * sizeof(struct ch__stats_number) + sizeof walk->owners +
	       sizeof walk->blocks + SAMPLES * sizeof(struct ch__stats_sample) +
	       CH__STATS_PAUSES_MOST * sizeof(struct ch__stats_pause) +
	       walk->pages_room * sizeof *walk->pages + walk->parts_room * sizeof *walk->parts;
}

static void add_texts(struct ch__stats_file *file, const struct ch_stats *stats)
{
	struct ch__stats_text texts[TEXTS];
	char sinks[CH__STATS_TEXT_BYTES];
	ch__look_sinks(stats->sinks_on, sinks, sizeof sinks);
	const char *const pairs[TEXTS][2] = {{"process", ch__os_process_name()},
					     {"version", stats->version},
					     {"backend", stats->backend},
					     {"sinks", sinks}};
	memset(texts, 0, sizeof texts);
	for (int i = 0; i < TEXTS; i++) {
		snprintf(texts[i].name, sizeof texts[i].name, "%s", pairs[i][0]);
		snprintf(texts[i].text, sizeof texts[i].text, "%s", pairs[i][1]);
	}
	add_section(file, CH__STATS_TEXTS, texts, sizeof *texts, TEXTS, 0);
}

static void add_numbers(struct ch__stats_file *file, const struct ch_stats *stats)
{
	static const char *const names[] = {
#define X(name) #name,
		CH_STATS_LIST(X)
#undef X
	};
	const uint64_t values[] = {
#define X(name) stats->name,
		CH_STATS_LIST(X)
#undef X
	};
	enum { COUNT = sizeof names / sizeof *names };
	_Static_assert((int)COUNT <= (int)NUMBERS_MOST, "room for the numbers");
	struct ch__stats_number numbers[COUNT];
	memset(numbers, 0, sizeof numbers);
	for (int i = 0; i < COUNT; i++) {
		snprintf(numbers[i].name, sizeof numbers[i].name, "%s", names[i]);
		numbers[i].value = values[i];
	}
	add_section(file, CH__STATS_NUMBERS, numbers, sizeof *numbers, COUNT, 0);
}

static void add_samples(struct ch__stats_file *file, const struct ch_stats *stats)
{
	if (file->samples_count == SAMPLES) {
		memmove(file->samples, file->samples + 1, (SAMPLES - 1) * sizeof *file->samples);
		file->samples_count--;
	}
	file->samples[file->samples_count++] = (struct ch__stats_sample){
		.at_ns = ch__os_now_ns(),
		.blocks_opened = stats->blocks_opened,
		.bytes_opened = stats->bytes_opened,
		.blocks_freed = stats->blocks_freed,
		.bytes_freed = stats->bytes_freed,
		.blocks_invalidated = stats->blocks_invalidated,
		.cycles = stats->cycles,
		.code_bytes = stats->code_bytes_now,
	};
	add_section(file, CH__STATS_SAMPLES, file->samples, sizeof *file->samples,
		    file->samples_count, 0);
}

void ch__stats_pauses_note(struct ch__stats_pauses *p, uint64_t at_ns, uint64_t ns)
{
	uint32_t noted = CH_LOAD_RELAXED(&p->noted);
	struct ch__stats_noted *pause = &p->at[noted % CH__STATS_PAUSES_MOST];
	atomic_store_explicit(&pause->at_ns, at_ns, memory_order_release);
	atomic_store_explicit(&pause->ns, ns, memory_order_release);
	atomic_store_explicit(&p->noted, noted + 1, memory_order_release);
}

uint32_t ch__stats_pauses_read(const struct ch__stats_pauses *p,
			       struct ch__stats_pause out[CH__STATS_PAUSES_MOST])
{
	const uint32_t most = CH__STATS_PAUSES_MOST;
	uint32_t noted = atomic_load_explicit(&p->noted, memory_order_acquire), kept = 0;
	for (uint32_t n = noted < most ? 0 : noted - most + 1; n != noted; n++) {
		const struct ch__stats_noted *pause = &p->at[n % most];
		out[kept].at_ns = atomic_load_explicit(&pause->at_ns, memory_order_acquire);
		out[kept].ns = atomic_load_explicit(&pause->ns, memory_order_acquire);
		/* A later pause may have taken the place meanwhile, or be about to take it. */
		kept = CH_LOAD_RELAXED(&p->noted) - n < most ? kept + 1 : 0;
	}
	return kept;
}

static void add_pauses(struct ch__stats_file *file)
{
	struct ch__stats_pause pauses[CH__STATS_PAUSES_MOST];
	uint32_t count = ch__stats_pauses_read(&file->pauses, pauses);
	add_section(file, CH__STATS_PAUSES, pauses, sizeof *pauses, count, 0);
}

/* Returns the ns of work, without the pauses between steps. Of a heap in the making, which is in no
 * table yet, nothing is gathered, and no sentence says so. */
static uint64_t gather(struct ch__stats_file *file)
	CH_UNANALYSED("the heap's end waits for the calling thread")
{
	struct ch__stats_walk *walk = &file->walk;
	struct ch_stats stats = {.size = sizeof stats};
	uint64_t worked = ch__stats_walk_run(walk, &file->wish), from = ch__os_now_ns();
	if (ch__look_heap_of(file->heap.id) != file->listener.heap ||
	    ch_heap_stats(file->listener.heap, &stats) != CH_OK)
		return worked;
	file->body_bytes = 0;
	add_texts(file, &stats);
	add_numbers(file, &stats);
	add_section(file, CH__STATS_OWNER_KINDS, walk->owners, sizeof *walk->owners,
		    walk->owners_count, 0);
	add_section(file, CH__STATS_BLOCK_KINDS, walk->blocks, sizeof *walk->blocks,
		    CH__STATS_BLOCK_KINDS_COUNT, 0);
	add_samples(file, &stats);
	add_pauses(file);
	add_section(file, CH__STATS_PAGES, walk->pages, sizeof *walk->pages, walk->pages_count,
		    walk->pages_left_out);
	add_section(file, CH__STATS_PARTS, walk->parts, sizeof *walk->parts, walk->parts_count,
		    walk->parts_left_out);
	return worked + ch__os_now_ns() - from;
}

/* --- the file --- */

/* Returns -1 with EBADF when the program closed the descriptor: its number may lead elsewhere. */
static int fd_of(const struct ch__stats_file *file)
{
	return ch__os_holds(&file->held) ? file->held.fd : -1;
}

static bool write_file(struct ch__stats_file *file, enum ch__stats_state state)
{
	struct ch__stats_head head = {
		.magic = CH__STATS_FILE_MAGIC,
		.byte_order = CH__STATS_FILE_ORDER,
		.format = CH__STATS_FILE_FORMAT,
		.sequence = file->sequence + 1,
		.body_bytes = file->body_bytes,
		.checksum = ch__stats_checksum(file->body, file->body_bytes),
		.written_ns = ch__os_now_ns(),
		.process = (uint32_t)ch__os_process_id(),
		.heap = file->heap.id,
		.state = state,
		.flags = file->is_locked ? CH__STATS_FILE_LOCKED : 0,
	};
	if (!ch__os_file_rewind(fd_of(file)) ||
	    ch__os_file_put(fd_of(file), &head, sizeof head) != sizeof head ||
	    ch__os_file_put(fd_of(file), file->body, file->body_bytes) != file->body_bytes)
		return false;
	head.sequence = file->sequence += 2;
	return ch__os_file_rewind(fd_of(file)) &&
	       ch__os_file_put(fd_of(file), &head, sizeof head) == sizeof head;
}

/* A partly written file stays: its odd sequence tells readers that the file is not whole. */
static void turn_off(struct ch__stats_file *file, int error)
{
	CH_STORE_RELAXED(&file->failed, error);
	atomic_store_explicit(&file->is_on, 0, memory_order_release);
	ch__os_file_unlock(fd_of(file));
	ch__os_let_go(&file->held);
}

static void write_on(void *arg)
{
	struct ch__stats_file *file = arg;
	while (atomic_load_explicit(&file->wish, memory_order_acquire) == WISH_NONE) {
		uint64_t worked = gather(file), from = ch__os_now_ns();
		if (!file->body_bytes) { /* the heap is in the making */
			ch__os_futex_wait(&file->wish, WISH_NONE, NS_PER_MS);
			continue;
		}
		if (!ch__os_file_has_name(fd_of(file)) || !write_file(file, CH__STATS_RUNNING)) {
			int error = errno;
			/* For CODEHEAP_DEBUG: nobody asks this thread why. */
			(void)ch__because(CH_E_OS, "the statistics file %s is off: %m", file->path);
			turn_off(file, error);
			return;
		}
		worked += ch__os_now_ns() - from;
		uint64_t pause = atomic_load(&file->period_ns);
		if (pause && pause < worked * WORK_SHARE)
			pause = worked * WORK_SHARE;
		if (pause > (uint64_t)SLEEP_MOST_MS * NS_PER_MS)
			pause = (uint64_t)SLEEP_MOST_MS * NS_PER_MS;
		if (pause)
			ch__os_futex_wait(&file->wish, WISH_NONE, pause);
	}
	gather(file);
	/* A failure here is reported nowhere: readers see whether the file is whole. A file of a
	 * heap that was not made goes. */
	if (file->body_bytes)
		(void)write_file(file, CH__STATS_ENDED);
	else if (ch__os_file_is_at(fd_of(file), file->path))
		ch__os_file_remove(file->path);
	ch__os_file_unlock(fd_of(file));
}

/* --- its name --- */

/* Replaces each %p by the process's number. The file of the second heap ends in ".2", and so on. */
static bool print_path(struct ch__stats_file *file)
{
	char number[16], rank[16] = "";
	snprintf(number, sizeof number, "%d", ch__os_process_id());
	if (file->heap.id > 1)
		snprintf(rank, sizeof rank, ".%u", file->heap.id);
	size_t length = 0;
	for (const char *from = file->pattern; *from; from++) {
		bool is_number = from[0] == '%' && from[1] == 'p';
		if (length + sizeof number + sizeof rank > sizeof file->path) {
			*file->path = 0;
			errno = ENAMETOOLONG;
			return false;
		}
		if (is_number)
			length = (size_t)(stpcpy(file->path + length, number) - file->path);
		else
			file->path[length++] = *from;
		from += is_number;
	}
	snprintf(file->path + length, sizeof file->path - length, "%s", rank);
	return true;
}

/* --- its life --- */

static const struct ch__listener_calls calls;

static bool open_and_start(struct ch__stats_file *file)
{
	if (!print_path(file))
		return false;
	if (!ch__os_hold(&file->held, ch__os_file_create_locked(file->path, &file->is_locked)))
		return false;
	atomic_store(&file->wish, WISH_NONE);
	atomic_store_explicit(&file->is_on, 1, memory_order_release);
	if (!ch__os_thread_start(&file->thread, write_on, file)) {
		int error = errno;
		ch__os_file_remove(file->path);
		errno = error;
		return false;
	}
	return true;
}

/* Returns NULL if there is no memory. */
static struct ch__stats_file *create(struct ch_heap *heap, const char *pattern)
{
	size_t bytes = strlen(pattern) + 1;
	struct ch__meta *meta = ch__meta_create();
	struct ch__stats_file *file = meta ? ch__meta_alloc(meta, sizeof *file + bytes) : NULL;
	if (!file) {
		if (meta)
			ch__meta_destroy(meta);
		return NULL;
	}
	memcpy(file + 1, pattern, bytes);
	file->pattern = (const char *)(file + 1);
	file->listener.calls = &calls;
	file->meta = meta;
	atomic_store(&file->period_ns, (uint64_t)PERIOD_MS * NS_PER_MS);
	ch__look_heap(heap, &file->heap);
	return file;
}

static bool make_room(struct ch__stats_file *file, struct ch_heap *heap)
{
	if (!ch__stats_walk_create(&file->walk, heap, &file->heap, file->meta))
		return false;
	file->body_room = body_room(&file->walk);
	file->body = ch__meta_alloc(file->meta, file->body_room);
	return file->body != NULL;
}

/* The files of the process, by heap number. A heap's end and the process's exit may meet: the one
 * that takes the file out has its memory. */
static _Atomic(struct ch__stats_file *) files[CH__LOOK_HEAPS_MAX + 1];

/* Returns false, with errno, if there is no file. */
static bool begin(struct ch__stats_file *file, struct ch_heap *heap)
{
	ch__listener_add(heap, &file->listener);
	atomic_store(&files[file->heap.id], file);
	int error = make_room(file, heap) ? 0 : ENOMEM;
	if (!error && open_and_start(file))
		return true;
	error = error ? error : errno;
	turn_off(file, error);
	errno = error;
	return false;
}

/* A user who asked in the environment sees no status, and would look for the file: so stderr has a
 * line. */
static enum ch_status because_no_file(const char *path, bool may_fail)
{
	enum ch_status status = errno == ENOMEM ? CH_E_MEMORY : CH_E_OS;
	bool is_other = errno == EEXIST;
	if (!may_fail && is_other)
		return ch__because(status, "the statistics file %s: no regular file of the user",
				   path);
	if (!may_fail)
		return ch__because(status, "the statistics file %s: %m", path);
	if (is_other)
		(void)ch__because_user(
			status, "CODEHEAP_STATS: %s is no regular file of the user", path);
	else
		(void)ch__because_user(status, "CODEHEAP_STATS: %s cannot be made: %m", path);
	return CH_OK;
}

/* If only the environment asks (may_fail), a file that cannot be made is CH_OK: the record listens
 * and reports the reason, as stderr does. Without memory for the record the call fails. */
static enum ch_status heap_begins(struct ch_heap *heap, const char **asked, bool may_fail)
{
	const char *pattern = *asked;
	*asked = NULL;
	if (!pattern || !*pattern)
		return CH_OK;
	struct ch__stats_file *file = create(heap, pattern);
	if (!file)
		return ch__because(CH_E_MEMORY, "no memory for the statistics file");
	if (begin(file, heap))
		return CH_OK;
	return because_no_file(*file->path ? file->path : pattern, may_fail);
}

static void end_thread(struct ch__stats_file *file, uint64_t until_ns)
{
	ch__os_thread_tell(&file->wish, WISH_END);
	(void)ch__os_thread_join(&file->thread, until_ns);
}

/* Waits for the thread, which looks at the heap. A file that the exit took out stays in memory. */
static void heap_ends(struct ch__listener *listener)
{
	struct ch__stats_file *file = (struct ch__stats_file *)listener;
	end_thread(file, UINT64_MAX);
	ch__os_let_go(&file->held);
	if (atomic_exchange(&files[file->heap.id], NULL) == file)
		ch__meta_destroy(file->meta);
}

/* Waits 2 s at most, since another thread may hold the heap lock for good. The limit leaves time
 * for a busy machine, since an unfinished file says that the process was killed. The heaps may end
 * meanwhile: only the files are looked at. */
__attribute__((destructor)) static void end_all_at_exit(void)
{
	const uint64_t exit_wait_ns = 2000000000;
	uint64_t until_ns = ch__os_now_ns() + exit_wait_ns;
	for (int id = 1; id <= CH__LOOK_HEAPS_MAX; id++) {
		struct ch__stats_file *file = atomic_exchange(&files[id], NULL);
		if (file)
			end_thread(file, until_ns);
	}
}

static void fork_child(struct ch__listener *listener)
{
	struct ch__stats_file *file = (struct ch__stats_file *)listener;
	ch__os_let_go(&file->held);
	file->samples_count = 0;
	atomic_store(&file->pauses.noted, 0);
	bool was_on = atomic_exchange(&file->is_on, 0) || atomic_load(&file->is_due);
	atomic_store(&file->thread.process, 0);
	if (was_on && strstr(file->pattern, "%p")) {
		atomic_store(&file->is_due, 1);
		ch__listener_await_use(listener->heap);
	}
}

static void used(struct ch__listener *listener)
{
	struct ch__stats_file *file = (struct ch__stats_file *)listener;
	if (!atomic_load(&file->is_due))
		return;
	if (!open_and_start(file))
		turn_off(file, errno);
	/* After is_on: a fork by another thread finds one of both. */
	atomic_store(&file->is_due, 0);
}

static void paused(struct ch__listener *listener, uint64_t at_ns, uint64_t ns)
{
	ch__stats_pauses_note(&((struct ch__stats_file *)listener)->pauses, at_ns, ns);
}

static bool status(struct ch__listener *listener, const char **path, int *failed)
{
	const struct ch__stats_file *file = (const struct ch__stats_file *)listener;
	bool is_on = atomic_load_explicit(&file->is_on, memory_order_acquire);
	*path = is_on ? file->path : "";
	*failed = CH_LOAD_RELAXED(&file->failed);
	return is_on;
}

static const struct ch__listener_calls calls = {
	.paused = paused,
	.used = used,
	.fork_child = fork_child,
	.ends = heap_ends,
	.file = status,
};

#if CH_TESTING
_Atomic(uint64_t) *ch__stats_file_period(struct ch__listener *listener)
{
	return &((struct ch__stats_file *)listener)->period_ns;
}
#endif

enum ch_status ch_stats_file_enable(void)
{
	static struct ch__greeter greeter = {.begins = heap_begins};
	static _Atomic(uint32_t) is_enabled;
	if (!ch__core_is_ours()) {
		errno = ELIBBAD;
		return CH_E_OS;
	}
	if (!atomic_exchange(&is_enabled, 1))
		ch__listener_greet(&greeter);
	return CH_OK;
}

__attribute__((constructor)) static void come(void)
{
	enum ch_status status = ch_stats_file_enable();
	(void)status;
}
