/* SPDX-License-Identifier: MIT
 * write.h: the one write path: from an exec address to the place for writing, and back to execution
 * (sync.c); traps. */
#pragma once

#include "pages/pool.h"

static inline bool ch__pool_has(const struct ch__pool *pool, uintptr_t exec)
{
	return exec - pool->exec_base < pool->pool_bytes;
}
/* Whether the address is in the pool, or in the runtime page before it. */
static inline bool ch__pool_knows(const struct ch__pool *pool, uintptr_t exec)
{
	return exec - pool->runtime_exec < pool->runtime_bytes + pool->pool_bytes;
}
/* Opens a write window; ch__pool_sync of the written bytes ends it, in the same function. */
static inline uint8_t *ch__pool_write(const struct ch__pool *pool, uintptr_t exec)
	CH_ACQUIRES(ch__role_window) CH_UNANALYSED("it makes the role")
{
	return (uint8_t *)(exec + (uintptr_t)pool->delta);
}
/* For an OPEN block: the commit syncs all of the block, before anything leads there. */
static inline uint8_t *ch__pool_lend(const struct ch__pool *pool, uintptr_t exec)
{
	return (uint8_t *)(exec + (uintptr_t)pool->delta);
}
/* Code is read through the RW view, too, which has access wherever code is, also for a signal
 * handler. */
static inline const uint8_t *ch__pool_read(const struct ch__pool *pool, uintptr_t exec)
{
	return (const uint8_t *)(exec + (uintptr_t)pool->delta);
}

/* The exec address of a byte of the write view. */
static inline uintptr_t ch__pool_exec_of(const struct ch__pool *pool, uintptr_t write)
{
	return write - (uintptr_t)pool->delta;
}

/* Steps beside the instruction cache until execution follows a store. */
enum ch__sync_step {
	CH__SYNC_VALGRIND = 1, /* for Valgrind: exec gets access, translations are discarded */
	CH__SYNC_REMAP = 2,    /* the page is mapped again: emulators forget their translations */
	CH__SYNC_COPY = 4,     /* the bytes were written to a copy, and are carried over */
};
void ch__pool_sync_steps(const struct ch__pool *, uintptr_t exec, size_t bytes) CH_COLD;
/* The ledger of checked builds (sync.c): the written bytes of a range must be the published
 * bytes, or the process dies and says `what`. The caller keeps other threads from writing. */
#if CH_CHECK >= 2
/* By offsets from the runtime page: an address would stay on the stack, and hold its block. */
void ch__ledger_note(const struct ch__pool *, size_t offset, size_t bytes);
void ch__ledger_check(const struct ch__pool *, size_t offset, size_t bytes, const char *what);
#define CH_PUBLISHED(pool, exec, bytes, what) \
	ch__ledger_check(pool, (exec) - (pool)->runtime_exec, bytes, what)
#else
#define ch__ledger_note(pool, offset, bytes) ((void)0)
#define CH_PUBLISHED(pool, exec, bytes, what) ((void)0)
#endif
/* Publishes lent bytes: execution at the RX address follows. */
static inline void ch__pool_publish(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
{
	/* Checked builds look whether the range has access. */
	if (CH_UNLIKELY(pool->sync_steps || CH_CHECK >= 2))
		ch__pool_sync_steps(pool, exec, bytes);
	else
		ch__arch_sync((const uint8_t *)exec, bytes);
	ch__ledger_note(pool, exec - pool->runtime_exec, bytes);
}
/* Publishes the bytes that were written in a window, and ends the window. */
static inline void ch__pool_sync(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
	CH_RELEASES(ch__role_window) CH_UNANALYSED("it makes the role")
{
	ch__pool_publish(pool, exec, bytes);
}
/* Changes the aligned 8 bytes at exec at once, while threads may run or load them, and publishes.
 * Returns false with errno; then nothing changed. The caller keeps other threads from writing. */
bool ch__pool_store(const struct ch__pool *, uintptr_t exec, uint64_t word);
/* Fills with traps, then syncs. */
void ch__pool_poison(const struct ch__pool *, uintptr_t exec, size_t bytes);

/* What Valgrind is told (valgrind.c), where pool->is_translated. */
/* A part of a block has its final place; a part was withdrawn and holds traps. */
void ch__valgrind_part_born(const struct ch__pool *, uintptr_t exec, size_t bytes) CH_COLD;
void ch__valgrind_part_dead(const struct ch__pool *, uintptr_t exec) CH_COLD;
