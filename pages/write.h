/* SPDX-License-Identifier: MIT
 * write.h: the one write path: from an address that runs to where it is written, and back to what
 * runs (sync.c); traps. */
#ifndef CH_PAGES_WRITE_H
#define CH_PAGES_WRITE_H

#include "pages/pool.h"

static inline bool ch__pool_has(const struct ch__pool *pool, uintptr_t exec)
{
	return exec - pool->exec_base < pool->pool_bytes;
}
/* Opens a write window, which ch__pool_sync of what was written ends in the same function. */
static inline uint8_t *ch__pool_write(const struct ch__pool *pool, uintptr_t exec)
	CH_ACQUIRES(ch__role_window) CH_UNANALYSED("it makes the role")
{
	return (uint8_t *)(exec + (uintptr_t)pool->delta);
}
/* The same of an OPEN block, whose commit syncs all of it: nothing leads there before. */
static inline uint8_t *ch__pool_lend(const struct ch__pool *pool, uintptr_t exec)
{
	return (uint8_t *)(exec + (uintptr_t)pool->delta);
}
/* Code bytes are read through the RW view too: it is never without access, so a signal handler may
 * read it. */
static inline const uint8_t *ch__pool_read(const struct ch__pool *pool, uintptr_t exec)
{
	return (const uint8_t *)(exec + (uintptr_t)pool->delta);
}

/* --- the end of the one write path --- */
/* What execution needs beside the instruction cache to follow a store. */
enum ch__sync_step {
	CH__SYNC_VALGRIND = 1, /* its translations are discarded */
	CH__SYNC_REMAP = 2,    /* the page is mapped again: emulators forget its translations */
	CH__SYNC_COPY = 4,     /* what was written is a copy, and is carried over */
};
void ch__pool_sync_steps(const struct ch__pool *, uintptr_t exec, size_t bytes) CH_COLD;
/* The ledger of checked builds (ledger.c): what is written in a range must be what was published
 * there, or the process dies and says of what. The caller holds what keeps others from writing. */
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
/* Publish bytes that were lent: execution at the RX address follows. */
static inline void ch__pool_publish(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
{
	if (CH_UNLIKELY(pool->sync_steps))
		ch__pool_sync_steps(pool, exec, bytes);
	else
		ch__arch_sync((const uint8_t *)exec, bytes);
	ch__ledger_note(pool, exec - pool->runtime_exec, bytes);
}
/* The same of what was written in a window, which it ends. */
static inline void ch__pool_sync(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
	CH_RELEASES(ch__role_window) CH_UNANALYSED("it makes the role")
{
	ch__pool_publish(pool, exec, bytes);
}
/* The aligned 8 bytes at exec change as one, while others run or load them, and are published.
 * False: errno, and nothing changed. The caller keeps others from writing them. */
bool ch__pool_store(const struct ch__pool *, uintptr_t exec, uint64_t word);
/* Fill with traps, then sync. */
void ch__pool_poison(const struct ch__pool *, uintptr_t exec, size_t bytes);

/* --- what Valgrind is told (valgrind.c), where pool->is_translated --- */
/* A block's part has its final place; is withdrawn and holds traps. */
void ch__valgrind_part_born(const struct ch__pool *, uintptr_t exec, size_t bytes) CH_COLD;
void ch__valgrind_part_dead(const struct ch__pool *, uintptr_t exec) CH_COLD;

#endif
