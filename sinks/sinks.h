/* SPDX-License-Identifier: MIT
 * sinks.h: the table of a heap's sinks: what the outside world is told about code. Lock: the sinks
 * lock, inside; never taken in a stopped world. */
#ifndef CH_SINKS_SINKS_H
#define CH_SINKS_SINKS_H

#include "unwind/sink.h"

struct ch__sinks;

/* 0 or errno. `wanted` is a set of ch__sink bits. */
int ch__sinks_create(const struct ch__sinks_config *, unsigned wanted, struct ch__sinks **)
	CH_EXCLUDES(CH__STANDING);
void ch__sinks_destroy(struct ch__sinks *) CH_EXCLUDES(CH__STANDING);
/* Parses a list such as "unwind,perfmap" ("none" = 0); false on an unknown name. */
bool ch__sinks_parse(const char *list, unsigned *wanted);
/* The inverse; bytes is at least 96. */
void ch__sinks_print(unsigned on, char *list, size_t bytes);
unsigned ch__sinks_on(const struct ch__sinks *);
/* 0 or errno; pages and ranges that are live are told to a new sink. Calls do not overlap, and no
 * range is removed meanwhile; ranges may be added. A sink that is turned off leaves its file; its
 * pages are dead to unwinders. */
int ch__sinks_set(struct ch__sinks *, unsigned wanted) CH_EXCLUDES(CH__STANDING);
/* 0, or the errno that switched it off */
int ch__sinks_status(struct ch__sinks *, enum ch__sink)
	CH_EXCLUDES(CH__STANDING);
const char *ch__sinks_path(const struct ch__sinks *, enum ch__sink); /* of its file, or "" */

/* A page holds code of the frame shape (0 = frame pointer) from now on / no more. Registers the
 * chunk's object on first use. One aligned store each after that; page_live comes before
 * reachability, page_dead after poison. page_live: false = no memory for its unwind data, and the
 * page stays dead. A page may be taken for another shape before it was told dead: it is, first. */
bool ch__sinks_page_live(struct ch__sinks *, uint32_t page, uint32_t pages, uint8_t frame)
	CH_EXCLUDES(CH__STANDING);
void ch__sinks_page_dead(struct ch__sinks *, uint32_t page, uint32_t pages)
	CH_EXCLUDES(CH__STANDING);
/* The frame number CH__FRAME_SLOTS + kind becomes a slot shape whose slots are copies of the
 * template, code_at bytes into a slot; the first lies at slots_at of a page. All slot shapes have
 * the same places. 0, also when it is one already; ENOENT or ENOTSUP: the process has no table for
 * the template, or one that cannot be copied. */
int ch__sinks_slots_register(struct ch__sinks *, enum ch__template kind, uint16_t slots_at,
			     uint16_t slot_bytes, uint8_t code_at);
/* A slot of a live page holds code from now on / no more: before it is reachable, after it is
 * poisoned. No lock of this room is taken; calls do not overlap with ch__sinks_set. */
void ch__sinks_slot_live(struct ch__sinks *, uintptr_t exec, uint8_t frame)
	CH_EXCLUDES(CH__STANDING);
void ch__sinks_slot_dead(struct ch__sinks *, uintptr_t exec) CH_EXCLUDES(CH__STANDING);
bool ch__sinks_slot_is_live(struct ch__sinks *, uintptr_t exec); /* to the unwinder, which is on */
/* Before its memory goes back to the OS, or another zone takes it: its pages are dead. */
void ch__sinks_chunk_gone(struct ch__sinks *, uint32_t chunk) CH_EXCLUDES(CH__STANDING);
/* dead; NULL: no memory */
struct ch__own *ch__sinks_own_create(struct ch__sinks *)
	CH_EXCLUDES(CH__STANDING);
/* Before its code is reachable; the section stays as it is until own_dead. */
void ch__sinks_own_live(struct ch__sinks *, struct ch__own *, const void *section)
	CH_EXCLUDES(CH__STANDING);
/* Nothing of its code is on a stack. One that is dead stays so. False: it stays, for unwinders that
 * still know it. */
bool ch__sinks_own_dead(struct ch__sinks *, struct ch__own *) CH_EXCLUDES(CH__STANDING);
/* dead first; NULL is nothing */
void ch__sinks_own_destroy(struct ch__sinks *, struct ch__own *)
	CH_EXCLUDES(CH__STANDING);

/* Ranges of the pool. One that overlaps a removed one is told after the remove; flush makes files
 * agree. */
void ch__sinks_add(struct ch__sinks *, const struct ch__sink_range *, size_t n)
	CH_EXCLUDES(CH__STANDING);
void ch__sinks_remove(struct ch__sinks *, const struct ch__sink_range *, size_t n)
	CH_EXCLUDES(CH__STANDING);
void ch__sinks_flush(struct ch__sinks *, enum ch__flush) CH_EXCLUDES(CH__STANDING);
/* After adds, and again later while it returns false: what some heap told is buffered, and writing
 * it would take too much of the time. No lock of the caller's is needed. */
bool ch__sinks_catch_up(void) CH_EXCLUDES(CH__STANDING);
/* In the handler of a signal that ends the process: whoever reads the core finds what is live. */
void ch__sinks_fatal(struct ch__sinks *);
static inline bool ch__sinks_want_ranges(unsigned on)
{
	return (on & ~(unsigned)(CH__SINK_UNWIND | CH__SINK_LIBUNWIND)) != 0;
}

void ch__sinks_lock(struct ch__sinks *) CH_ACQUIRES(ch__role_sinks)
	CH_EXCLUDES(CH__RIGHT_OF_SINKS);
void ch__sinks_unlock(struct ch__sinks *) CH_RELEASES(ch__role_sinks);
/* The pool is the child's, which has the lock. */
void ch__sinks_fork_child(struct ch__sinks *, bool has_code)
	CH_RELEASES(ch__role_sinks);
/* The file lock and the files are the process's: prepare comes once, after every heap's, because
 * threads that hold a heap's locks may wait for it; done once, before any heap's. The child's files
 * are opened under its pid and name every live range, so names are asked for there. */
void ch__sinks_fork_files_prepare(void);
void ch__sinks_fork_files_done(bool is_child);

/* A custom frame shape: CFI instructions of a CIE (initial) used for every block of the shape.
 * Returns the shape's number, from CH__FRAMES_FIXED on, or 0 when there is no room. */
uint8_t ch__sinks_frame_register(struct ch__sinks *, const uint8_t *cfi, size_t bytes);

/* Before a page is taken for code with steps; false: no memory. Then the map of notes: a block with
 * steps has its note there from before the block is reachable until it is poisoned, and the note is
 * forgotten before its place serves again. No lock of this room is taken. */
bool ch__sinks_steps_begin(struct ch__sinks *) CH_EXCLUDES(CH__STANDING);
struct ch__steps *ch__sinks_steps(const struct ch__sinks *); /* NULL: not begun */

/* NULL while the sink is off; it stays until the sinks are destroyed. */
const void *ch__sinks_state(const struct ch__sinks *, enum ch__sink);
bool ch__sinks_have(const struct ch__sinks *, uintptr_t pc); /* in the pool or the runtime page */

#endif
