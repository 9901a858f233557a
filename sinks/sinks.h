/* SPDX-License-Identifier: MIT
 * sinks.h: the table of a heap's sinks, through which the outside world hears of code. Pages,
 * shapes and tables are told under the sinks lock, ranges under each tool's; nobody takes either in
 * a stopped world. */
#pragma once

#include "unwind/sink.h"

struct ch__sinks;

/* Returns 0 or an errno. `wanted` is a set of enum ch_sink. LIBUNWIND is on where ch__nongnu_find
 * found it before. */
int ch__sinks_create(const struct ch__sinks_config *, unsigned wanted, struct ch__sinks **)
	CH_MAY_WAIT;
/* Returns false when an unwinder keeps tables: the pool and the side memory must stay. */
bool ch__sinks_destroy(struct ch__sinks *) CH_MAY_WAIT;
/* Parses a list such as "unwind,perfmap" ("none" = 0). Returns false for an unknown name. */
bool ch__sinks_parse(const char *list, unsigned *wanted);
/* Writes such a list; `bytes` is at least 96. */
void ch__sinks_print(unsigned on, char *list, size_t bytes);
unsigned ch__sinks_on(const struct ch__sinks *);
/* Turns sinks on and off. Returns 0 or an errno. A new sink is told of all live pages and ranges. A
 * sink that is turned off leaves its file; an unwinder takes the pages for dead. Calls do not
 * overlap, and meanwhile no range is added or removed. */
int ch__sinks_set(struct ch__sinks *, unsigned wanted) CH_MAY_WAIT;
/* Returns 0, or the errno that switched the sink off. */
int ch__sinks_status(struct ch__sinks *, enum ch_sink) CH_MAY_WAIT;
const char *ch__sinks_path(const struct ch__sinks *, enum ch_sink); /* of the file, or "" */

/* From here on the pages hold code of the frame shape (0 = frame pointer), or no code. The first
 * use of a chunk registers the chunk's object; after that a page costs one aligned store. page_live
 * comes before the code is reachable, page_dead after poison. Returns false when there is no memory
 * for unwind data; the pages stay dead. A page of another live shape is told dead first. */
bool ch__sinks_page_live(struct ch__sinks *, uint32_t page, uint32_t pages, uint8_t frame)
	CH_MAY_WAIT;
void ch__sinks_page_dead(struct ch__sinks *, uint32_t page, uint32_t pages) CH_MAY_WAIT;
/* Whether page_live returned true for the page, with this frame shape. Takes no lock. */
bool ch__sinks_page_is_live(const struct ch__sinks *, uint32_t page, uint8_t frame);
/* Comes before a chunk goes back to the OS or to another zone. All of its pages are FREE; one that
 * was not told dead yet counts as dead from here on. */
void ch__sinks_chunk_gone(struct ch__sinks *, uint32_t chunk) CH_MAY_WAIT;
/* Makes a dead table. Returns NULL when there is no memory. */
struct ch__own *ch__sinks_own_create(struct ch__sinks *) CH_MAY_WAIT;
/* Comes before the code is reachable. The section stays unchanged until own_dead. */
void ch__sinks_own_live(struct ch__sinks *, struct ch__own *, const void *section) CH_MAY_WAIT;
/* No stack holds the code. A dead table stays dead. The first call returns false when unwinders
 * still know the table, so that the record must stay: in a child of fork without code, whose tables
 * are all dropped (fork.c) before a second call could come. */
bool ch__sinks_own_dead(struct ch__sinks *, struct ch__own *) CH_MAY_WAIT;
/* Calls own_dead first. NULL is allowed. */
void ch__sinks_own_destroy(struct ch__sinks *, struct ch__own *) CH_MAY_WAIT;

/* Ranges of the pool, of a byte and more. A range is added after the removal of each range that it
 * overlaps. The table itself adds the runtime page, with key 0, to a sink that comes on. flush
 * makes files agree. */
void ch__sinks_add(struct ch__sinks *, const struct ch__sink_range *, size_t n) CH_MAY_WAIT;
void ch__sinks_remove(struct ch__sinks *, const struct ch__sink_range *, size_t n) CH_MAY_WAIT;
void ch__sinks_flush(struct ch__sinks *, enum ch__flush) CH_MAY_WAIT;
/* Called after adds: writes what all heaps told and is buffered. Returns false, without a write,
 * when a write would take too much of the time; call again later then. The caller needs no lock. */
bool ch__sinks_catch_up(void) CH_MAY_WAIT;
/* Whether catch_up would answer false if names wait. Without a lock: a guess. */
bool ch__sinks_wait_for_time(void);
/* For the handler of a signal that ends the process: a reader of the core finds live code. */
void ch__sinks_fatal(struct ch__sinks *);
static inline bool ch__sinks_want_ranges(unsigned on)
{
	return (on & ~(unsigned)(CH_SINK_UNWIND | CH_SINK_LIBUNWIND)) != 0;
}

void ch__sinks_lock(struct ch__sinks *) CH_ACQUIRES(ch__role_sinks) CH_EXCLUDES(CH__RIGHT_OF_SINKS);
void ch__sinks_unlock(struct ch__sinks *) CH_RELEASES(ch__role_sinks);
/* In a child of fork, which has a pool of its own and holds the lock. */
void ch__sinks_fork_child(struct ch__sinks *, bool has_code) CH_RELEASES(ch__role_sinks);
/* Files and file locks belong to the process. prepare comes once, after every heap's prepare, since
 * threads that hold locks of a heap may wait for a file lock. done comes once, before any heap's.
 * The child opens files under its own pid, and asks for the names of all live ranges. */
void ch__sinks_fork_files_prepare(void);
void ch__sinks_fork_files_done(bool is_child);

/* Registers a custom frame shape: 1 to CH__FRAME_CFI_BYTES of initial CFI instructions for every
 * block of it. Returns the shape's number, from CH__FRAMES_FIXED on, one for equal bytes; 0 when
 * there is no room. */
uint8_t ch__sinks_frame_register(struct ch__sinks *, const uint8_t *cfi, size_t bytes);

/* Comes before a page is taken for code with steps. Returns false when there is no memory. Then the
 * map of notes has the note of a block with steps from before the block is reachable until poison;
 * the note is forgotten before the place serves again. Notes take no lock of this room. */
bool ch__sinks_steps_begin(struct ch__sinks *) CH_MAY_WAIT;
struct ch__steps *ch__sinks_steps(const struct ch__sinks *); /* NULL before steps_begin */
