/* SPDX-License-Identifier: MIT
 * meta.c: side memory from one jemalloc arena a heap, or from malloc (CH_ALLOC_MALLOC: libraries
 * that are dlopen-ed, sanitizers, foreign architectures). The one user of jemalloc. The locks are
 * leaves: only the allocator is called under them.
 *
 * An explicit tcache makes an allocation of the arena ten times cheaper and is not safe for
 * threads. So there are some tcaches, each with a lock; the address of a thread's thread-local
 * storage selects the thread's tcache. */
#include "os/meta.h"
#include "os/locks/lock.h"
#include "os/os.h"

enum { ALIGN = 16, SHARDS = 8 };

static size_t rounded(size_t bytes)
{
	return bytes ? CH_ROUND_UP(bytes, ALIGN) : ALIGN;
}

#if CH_ALLOC_MALLOC

#include <stdlib.h>

/* Behind each allocation, so that destroying the heap finds all allocations. Callers' pointers lead
 * to the beginning of malloc's memory, as checkers of leaks want it. */
struct link {
	void *memory; /* first: what writes beyond its end is noticed when the memory goes */
	/* volatile: the order of stores keeps the forward chain whole at any moment */
	struct link *volatile next;
	struct link *prev;
};

struct ch__meta {
	struct ch__lock lock;
	struct link list; /* circular [lock] */
	size_t bytes;     /* [lock] */
};

struct ch__meta *ch__meta_create(void)
{
	struct ch__meta *meta = calloc(1, sizeof *meta);
	if (!meta)
		return NULL;
	meta->list.next = meta->list.prev = &meta->list;
	return meta;
}

void ch__meta_destroy(struct ch__meta *meta)
{
	for (struct link *at = meta->list.next, *next; at != &meta->list; at = next) {
		next = at->next;
		free(at->memory);
	}
	free(meta);
}

void *ch__meta_alloc(struct ch__meta *meta, size_t bytes)
{
	size_t size = rounded(bytes), all = size + sizeof(struct link);
	uint8_t *memory = all < bytes ? NULL : calloc(1, all);
	if (!memory) {
		errno = ENOMEM;
		return NULL;
	}
	struct link *at = (void *)(memory + size);
	at->memory = memory;
	ch__lock_take(&meta->lock, CH__RANK_META);
	at->next = meta->list.next;
	at->prev = &meta->list;
	at->next->prev = at;
	meta->list.next = at;
	meta->bytes += size;
	ch__lock_release(&meta->lock, CH__RANK_META);
	return memory;
}

void ch__meta_free(struct ch__meta *meta, void *memory, size_t bytes)
{
	if (!memory)
		return;
	struct link *at = (void *)((uint8_t *)memory + rounded(bytes));
	CH_ASSERT(at->memory == memory,
		  "side memory is given back with another size than it was taken with");
	ch__lock_take(&meta->lock, CH__RANK_META);
	at->prev->next = at->next;
	at->next->prev = at->prev;
	meta->bytes -= rounded(bytes);
	ch__lock_release(&meta->lock, CH__RANK_META);
	free(memory);
}

size_t ch__meta_bytes(struct ch__meta *meta)
{
	ch__lock_take(&meta->lock, CH__RANK_META);
	size_t bytes = meta->bytes;
	ch__lock_release(&meta->lock, CH__RANK_META);
	return bytes;
}

void ch__meta_fork_child(struct ch__meta *meta)
{
	if (!ch__lock_set_free(&meta->lock))
		return;
	/* A thread that is gone was changing the list: the forward chain is whole, the backward
	 * chain is made anew. */
	struct link *prev = &meta->list;
	do {
		prev->next->prev = prev;
		prev = prev->next;
	} while (prev != &meta->list);
}

#else

#include <jemalloc/jemalloc.h>
#include <stdio.h>

/* The last options that the library's copy of jemalloc reads, after MALLOC_CONF. By default a
 * thread's first call makes an unused tcache, chooses one of several arenas for it, and crashes if
 * memory is short and the arena missing. The first arena exists as soon as any call is answered. */
extern const char *malloc_conf_2_conf_harder;
const char *malloc_conf_2_conf_harder = "narenas:1,tcache:false";

struct shard {
	struct ch__lock lock;
	int tcache_flags;       /* 0: not made yet [lock] */
	unsigned calls;         /* without a tcache [lock] */
	_Atomic(int64_t) bytes; /* stored under lock; negative where others' memory is freed */
} __attribute__((aligned(64)));

struct ch__meta {
	struct shard shards[SHARDS];
	unsigned arena;
};

static struct shard *own_shard(struct ch__meta *meta)
{
	static _Thread_local char here;
	/* Blocks of thread-local storage are at least a page apart. */
	uintptr_t mixed = ((uintptr_t)&here >> 12) * UINT64_C(0x9e3779b97f4a7c15);
	return &meta->shards[mixed >> 61];
}
_Static_assert(SHARDS == 1 << (64 - 61), "own_shard takes the top bits");

/* Few calls are served without a tcache: a tcache would be most of an empty heap's memory, and much
 * of the time that makes a heap, since jemalloc gives fresh pages to each tcache. */
static int tcache_of(struct shard *shard)
{
	enum { FEW = 16 };
	unsigned index;
	size_t size = sizeof index;
	CH_ASSERT(ch__lock_is_mine(&shard->lock), "a cache of metadata is used without its lock");
	if (CH_UNLIKELY(!shard->tcache_flags)) {
		if (shard->calls++ < FEW)
			return MALLOCX_TCACHE_NONE;
		/* Without a tcache the arena serves directly: slower, never wrong. */
		bool is_made = mallctl("tcache.create", &index, &size, NULL, 0) == 0;
		shard->tcache_flags = is_made ? MALLOCX_TCACHE(index) : MALLOCX_TCACHE_NONE;
	}
	return shard->tcache_flags;
}

/* jemalloc leaves the first 2 MiB of a destroyed arena mapped for ever. So arenas of ended heaps
 * wait here, emptied, for the next heap. Number + 1; 0 = none. */
enum { IDLE_ARENAS = 16 };
static _Atomic(unsigned) idle_arenas[IDLE_ARENAS];

static CH_COLD void tell_arena(unsigned arena, const char *what)
{
	char name[40];
	snprintf(name, sizeof name, "arena.%u.%s", arena, what);
	mallctl(name, NULL, NULL, NULL, 0);
}

static int take_arena(unsigned *arena)
{
	size_t size = sizeof *arena;
	for (unsigned i = 0; i < IDLE_ARENAS; i++) {
		unsigned idle = atomic_exchange(&idle_arenas[i], 0);
		*arena = idle - 1;
		if (idle)
			return 0;
	}
	return mallctl("arenas.create", arena, &size, NULL, 0);
}

static CH_COLD void drop_arena(unsigned arena)
{
	tell_arena(arena, "reset");
	tell_arena(arena, "purge"); /* frees memory, keeps addresses */
	for (unsigned i = 0; i < IDLE_ARENAS; i++) {
		unsigned none = 0;
		if (atomic_compare_exchange_strong(&idle_arenas[i], &none, arena + 1))
			return;
	}
	tell_arena(arena, "destroy");
}

struct ch__meta *ch__meta_create(void)
{
	unsigned arena;
	errno = ENOMEM; /* jemalloc sets none, and lacks memory or numbers of arenas */
	if (take_arena(&arena) != 0)
		return NULL;
	int flags = MALLOCX_TCACHE_NONE | MALLOCX_ZERO | MALLOCX_ALIGN(64);
	struct ch__meta *meta = mallocx(sizeof *meta, MALLOCX_ARENA(arena) | flags);
	if (!meta) {
		drop_arena(arena);
		return NULL;
	}
	meta->arena = arena;
	return meta;
}

void ch__meta_destroy(struct ch__meta *meta)
{
	unsigned arena = meta->arena;
	for (unsigned i = 0; i < SHARDS; i++) {
		int flags = meta->shards[i].tcache_flags;
		/* The inverse of MALLOCX_TCACHE, which adds 2 and shifts by 8 bits. */
		unsigned index = ((unsigned)flags >> 8) - 2;
		if (flags && flags != MALLOCX_TCACHE_NONE)
			mallctl("tcache.destroy", NULL, NULL, &index, sizeof index);
	}
	drop_arena(arena); /* and with it meta itself */
}

static void count(struct shard *shard, int64_t bytes)
{
	CH_STORE_RELAXED(&shard->bytes, CH_LOAD_RELAXED(&shard->bytes) + bytes);
}

void *ch__meta_alloc(struct ch__meta *meta, size_t bytes)
{
	size_t size = rounded(bytes); /* multiples of 16 are aligned to 16 */
	if (size < bytes) {
		errno = ENOMEM;
		return NULL;
	}
	struct shard *shard = own_shard(meta);
	ch__lock_take(&shard->lock, CH__RANK_META);
	void *at = mallocx(size, MALLOCX_ARENA(meta->arena) | tcache_of(shard) | MALLOCX_ZERO);
	if (at)
		count(shard, (int64_t)size);
	ch__lock_release(&shard->lock, CH__RANK_META);
	if (!at)
		errno = ENOMEM;
	return at;
}

void ch__meta_free(struct ch__meta *meta, void *at, size_t bytes)
{
	size_t size = rounded(bytes);
	if (!at)
		return;
	struct shard *shard = own_shard(meta);
	/* jemalloc believes the size, and would put the memory among memory of that size. */
	CH_ASSERT(CH_CHECK < 2 || sallocx(at, 0) == nallocx(size, MALLOCX_ARENA(meta->arena)),
		  "side memory is given back with another size than it was taken with");
	ch__lock_take(&shard->lock, CH__RANK_META);
	sdallocx(at, size, tcache_of(shard));
	count(shard, -(int64_t)size);
	ch__lock_release(&shard->lock, CH__RANK_META);
}

size_t ch__meta_bytes(struct ch__meta *meta)
{
	int64_t sum = 0;
	for (unsigned i = 0; i < SHARDS; i++)
		sum += CH_LOAD_RELAXED(&meta->shards[i].bytes);
	return sum > 0 ? (size_t)sum : 0;
}

/* jemalloc's own handlers have repaired the arena. If a vanished thread was changing a tcache, the
 * tcache is never used again: the memory it holds goes with the arena. */
void ch__meta_fork_child(struct ch__meta *meta)
{
	for (unsigned i = 0; i < SHARDS; i++) {
		if (ch__lock_set_free(&meta->shards[i].lock))
			meta->shards[i].tcache_flags = 0;
	}
}

#endif
