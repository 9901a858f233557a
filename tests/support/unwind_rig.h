/* SPDX-License-Identifier: MIT
 * unwind_rig.h: the bed of the tests of unwind/: a pool of executable memory without a heap, sinks
 * on the pool, and names.
 */
#pragma once

#include "tests/support/harness.h"
#include "tests/support/libgcc_knows.h"
#include "tests/support/two_views.h"
#include "sinks/sinks.h"
#include "unwind/unwind.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum {
	BED_PAGE_BYTES = 16384,
	BED_CHUNK_BYTES = 1 << 20,
	BED_CHUNKS = 3,
	BED_POOL_BYTES = BED_CHUNKS * BED_CHUNK_BYTES,
	BED_PAGES_PER_CHUNK = BED_CHUNK_BYTES / BED_PAGE_BYTES,
};

struct bed {
	struct ch__sinks_config config;
	struct ch__sinks *sinks;
	uint8_t *runtime;
	uint8_t *pool;  /* readable and executable; int3 everywhere */
	uint8_t *write; /* the write view of runtime and pool */
};

static inline size_t bed_name(void *context, uint64_t key, char *out, size_t out_bytes)
{
	(void)context;
	return (size_t)snprintf(out, out_bytes, "fn_%llu", (unsigned long long)key);
}

static inline void bed_each(void *context, void (*visit)(void *, const struct ch__sink_range *),
			    void *arg)
{
	(void)context, (void)visit, (void)arg;
}

static inline struct ch__sinks_config bed_config(struct ch__meta *meta, uint8_t *map)
{
	return (struct ch__sinks_config){
		.pool_exec = (uintptr_t)map + BED_PAGE_BYTES,
		.pool_bytes = BED_POOL_BYTES,
		.page_bytes = BED_PAGE_BYTES,
		.chunk_bytes = BED_CHUNK_BYTES,
		.runtime_exec = (uintptr_t)map,
		.runtime_bytes = BED_PAGE_BYTES,
		.meta = meta,
		.name = bed_name,
		.each = bed_each,
	};
}

static inline void bed_map(struct bed *bed)
{
	size_t bytes = BED_PAGE_BYTES + BED_POOL_BYTES;
	uint8_t *write, *map = two_views_map(bytes, &write);
	struct ch__meta *meta = ch__meta_create();
	CHECK(meta != NULL);
	*bed = (struct bed){.config = bed_config(meta, map),
			    .runtime = map,
			    .pool = map + BED_PAGE_BYTES,
			    .write = write};
}

static inline struct bed *bed_open(struct bed *bed, unsigned wanted)
{
	bed_map(bed);
	CHECK_EQ(ch__sinks_create(&bed->config, wanted, &bed->sinks), 0);
	return bed;
}

/* The same, with names of the case's own. */
static inline void bed_open_named(struct bed *bed, unsigned wanted,
				  size_t (*name)(void *, uint64_t, char *, size_t))
{
	bed_map(bed);
	bed->config.name = name;
	CHECK_EQ(ch__sinks_create(&bed->config, wanted, &bed->sinks), 0);
}

static inline void bed_close(struct bed *bed)
{
	ch__sinks_destroy(bed->sinks);
	CHECK_EQ(ch__meta_bytes(bed->config.meta), 0);
	ch__meta_destroy(bed->config.meta);
	two_views_unmap(bed->runtime, bed->write, BED_PAGE_BYTES + BED_POOL_BYTES);
}
/* A case with a bed whose sinks are these. */
#define TEST_BED(name, wanted) \
	TEST_WITH(name, struct bed *, bed, bed_open(&(struct bed){0}, wanted), bed_close(bed))

/* Puts code at an offset of the pool; no thread runs code meanwhile. */
static inline void *bed_code(struct bed *bed, size_t offset, const void *code, size_t n)
{
	memcpy(bed->write + BED_PAGE_BYTES + offset, code, n);
	ch__arch_sync(bed->pool + offset, n);
	return bed->pool + offset;
}

/* Pages of the bed, save page 5, come and go until is_over. */
struct flipper {
	struct bed *bed;
	uint32_t pages;
	_Atomic(bool) is_over;
	_Atomic(uint64_t) flips;
};

static inline void *flip_other_pages(void *arg)
{
	struct flipper *f = arg;
	struct test_random random = test_random_new();
	while (!atomic_load(&f->is_over)) {
		/* Chunk 0 has the unwound page. Chunk 1 also goes away, which the pages of chunk 1
		 * survive. */
		uint32_t page = (uint32_t)test_random_below(&random, f->pages);
		if (page == 5)
			continue;
		CHECK(ch__sinks_page_live(f->bed->sinks, page, 1, 0));
		ch__sinks_page_dead(f->bed->sinks, page, 1);
		if (page == 100)
			ch__sinks_chunk_gone(f->bed->sinks, 1);
		f->flips++;
	}
	return NULL;
}
