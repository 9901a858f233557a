/* SPDX-License-Identifier: MIT
 * pool_rig.h: shared by the unit tests of pages/: a pool of the run's page size and backend,
 * functions written into the pool, fork handlers. */
#pragma once

#include "pages/chunks.h"
#include "os/text.h"
#include "os/threads.h"
#include "pages/granules.h"
#include "pages/write.h"
#include "tests/support/harness.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct pool_rig {
	struct ch__pool *pool;
};

/* As a trim begins. */
static inline bool rig_retry_retired(struct ch__pool *pool)
{
	ch__pages_lock(pool);
	bool is_back = ch__spans_retry_retired(pool);
	ch__pages_unlock(pool);
	return is_back;
}

/* Returns false when there is no memory for the child's copy. */
static inline bool rig_copy_for_child(struct ch__pool *pool, bool has_child_code)
	CH_ACQUIRES(ch__role_pages)
{
	ch__pool_fork_prepare(pool, has_child_code);
	return !has_child_code || pool->inner->has_copy;
}

static inline void rig_chunk_gone(void *arg, uint32_t chunk)
{
	(void)arg, (void)chunk;
}

static inline struct ch__pool_config rig_config(size_t pool_bytes)
{
	static char bytes[300];
	static struct ch__text tried = {bytes, sizeof bytes, 0};
	size_t page_bytes = test_page_bytes(), least = ch__os_page_bytes();
	return (struct ch__pool_config){.pool_bytes = pool_bytes,
					.page_bytes = page_bytes      ? page_bytes
						      : least > 16384 ? least
								      : 16384,
					.gone = rig_chunk_gone,
					.tried = &tried};
}

/* Emulators and checkers refuse dual; procmem is refused where nobody saw how the kernel stores. */
static inline bool rig_may_have(enum ch_backend backend)
{
	const char *emulator = getenv("CODEHEAP_TEST_EMULATOR");
	if (backend == CH_BACKEND_DUAL)
		return !emulator || !*emulator;
	return backend != CH_BACKEND_PROCMEM || CH_ARCH_LEAD_BYTES > 0;
}

/* Only a heap reads CODEHEAP_WX; here the backend of CODEHEAP_WX takes the place of AUTO. */
static inline struct ch__pool_config rig_wished(struct ch__pool_config config)
{
	const char *backend = getenv("CODEHEAP_WX");
	if (backend && *backend && config.backend == CH_BACKEND_AUTO)
		CHECK(ch__backend_of_name(backend, &config.backend));
	return config;
}

static inline struct pool_rig rig_create(const struct ch__pool_config *config)
{
	struct pool_rig rig;
	struct ch__pool_config wished = rig_wished(*config);
	int error = ch__pool_create(&wished, &rig.pool);
	if (error)
		FAIL("pool: %s", strerror(error));
	return rig;
}
static inline struct pool_rig rig_start(size_t pool_bytes)
{
	struct ch__pool_config config = rig_config(pool_bytes);
	return rig_create(&config);
}

/* A child of expect_signal has the pool only if the pool is copied for the child, as by the heap's
 * fork handlers. */
static struct ch__pool *rig_forked;
static inline void rig_fork_prepare(void)
{
	CHECK(rig_copy_for_child(rig_forked, true));
}
static inline void rig_fork_parent(void)
{
	ch__pool_fork_parent(rig_forked);
}
static inline void rig_fork_child(void)
{
	CHECK(ch__pool_fork_child(rig_forked));
}
static inline void rig_follow_forks(const struct pool_rig *rig)
{
	rig_forked = rig->pool;
	CHECK(ch__os_atfork(rig_fork_prepare, rig_fork_parent, rig_fork_child));
}

/* Whether the pool is sound, or else why not. */
static inline bool rig_is_sound(struct ch__pool *pool, char *reason, size_t bytes)
{
	struct ch__text text = {reason, bytes, 0};
	bool is_sound = ch__pool_check(pool, &text);
	ch__text_end(&text);
	return is_sound;
}

static inline void rig_check(const struct pool_rig *rig)
{
	char reason[200];
	if (!rig_is_sound(rig->pool, reason, sizeof reason))
		FAIL("%s", reason);
}

/* Counts the chunks with pages that have memory. */
static inline uint32_t rig_chunks(const struct pool_rig *rig)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < rig->pool->chunk_count; i++)
		count += rig->pool->inner->chunks[i].pages != 0;
	return count;
}

static inline void rig_destroy(struct pool_rig *rig)
{
	rig_check(rig);
	ch__pool_destroy(rig->pool);
}
/* A case with a pool of the run's page size and backend. */
#define TEST_POOL(name, pool_bytes) \
	TEST_WITH(name, struct pool_rig, rig, rig_start(pool_bytes), rig_destroy(&rig))

static inline uint32_t rig_take(const struct pool_rig *rig)
{
	uint32_t page = ch__pool_take_page(rig->pool, 0);
	CHECK(page != CH__PAGE_NONE);
	return page;
}

static inline uintptr_t rig_reserve(const struct pool_rig *rig, uint32_t page, size_t bytes)
{
	uint32_t hot, cold;
	ch__page_lock(&rig->pool->pages[page]);
	bool is_reserved = ch__page_reserve(rig->pool, page, bytes, 0, 0, &hot, &cold);
	ch__page_unlock(&rig->pool->pages[page]);
	CHECK(is_reserved);
	return rig->pool->exec_base + hot;
}

static inline void rig_give_back(const struct pool_rig *rig, uintptr_t exec, size_t bytes)
{
	uint32_t offset = (uint32_t)(exec - rig->pool->exec_base),
		 page = offset >> rig->pool->page_log2;
	ch__pool_poison(rig->pool, exec, (bytes + 7) & ~(size_t)7);
	ch__page_lock(&rig->pool->pages[page]);
	ch__page_give_back(rig->pool, page, offset, bytes);
	ch__page_unlock(&rig->pool->pages[page]);
	ch__pool_note_freed(rig->pool, page);
}

static inline void rig_write(const struct pool_rig *rig, uintptr_t exec, uint32_t value)
{
	size_t bytes = ch__arch_constant_function_write(ch__pool_write(rig->pool, exec), value);
	ch__pool_sync(rig->pool, exec, bytes);
}

/* clang 17's -fsanitize=undefined looks for a type in front of the function that is called. A block
 * has its head there, the first page of a pool nothing. */
__attribute__((no_sanitize("undefined"))) static inline uint32_t rig_call(uintptr_t exec)
{
	return ((uint32_t(*)(void))exec)();
}
