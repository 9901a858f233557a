/* SPDX-License-Identifier: MIT
 * pool_fork.c: a pool over a fork (I16): both views are left out of the child (DONTFORK), and the
 * child gets a copy, made before the fork. Private memory needs none. Lock: pages. */
#include "pages/granules.h"
#include "pages/chunks.h"

/* Threads of the VM may be writing OPEN blocks, which the child drops. The thread sanitizer must
 * not judge this copy, and judges every memcpy. */
__attribute__((no_sanitize("thread"))) static void copy_bytes(uint8_t *to, const uint8_t *from,
							      size_t bytes)
{
	if (!CH_TSAN) {
		memcpy(to, from, bytes);
		return;
	}
	for (size_t at = 0; at < bytes; at += sizeof(uint64_t))
		*(volatile uint64_t *)(volatile void *)(to + at) =
			*(const volatile uint64_t *)(const volatile void *)(from + at);
}

static bool copy_range(struct ch__pool_inner *inner, size_t offset, size_t bytes)
{
	if (!ch__views_populate(&inner->copy, offset, bytes, inner->copy.write + offset))
		return false;
	copy_bytes(inner->copy.write + offset, inner->views.write + offset, bytes);
	return true;
}

/* A room that the system did not take back has no bytes, and its write view may have no access. */
static bool waits(const struct ch__pool *pool, uint32_t page) CH_HAS_PAGES
{
	const struct ch__page *p = &pool->pages[page];
	uint32_t first = CH_LOAD_RELAXED(&p->span_first);
	unsigned both = CH__SPAN_ROOM | CH__SPAN_RETIRED;
	return ch__page_state(p) == CH__PAGE_SPAN &&
	       (ch__pool_span_word(pool, first) & both) == both;
}

/* Copies the runtime page and the pages with memory, their traps included. */
static bool copy_pool(struct ch__pool *pool) CH_HAS_PAGES
{
	struct ch__pool_inner *inner = pool->inner;
	if (!ch__views_copy(&inner->views, &inner->copy))
		return false;
	bool is_copied = copy_range(inner, 0, pool->runtime_bytes);
	uint32_t had = ch__pool_pages_end(pool);
	for (uint32_t page = 0, end; is_copied && page < had; page = end + 1) {
		for (end = page;
		     end < had && ch__pool_page_is_backed(pool, end) && !waits(pool, end);)
			end++;
		if (end != page)
			is_copied = copy_range(inner, ch__pool_page_offset(pool, page),
					       (size_t)(end - page) << pool->page_log2);
	}
	return is_copied;
}

void ch__pool_fork_prepare(struct ch__pool *pool, bool has_child_code)
{
	struct ch__pool_inner *inner = pool->inner;
	ch__pages_lock(pool);
	/* Memcheck would report the copy's reads of unused bytes. */
	ch__valgrind_reports(false);
	inner->has_copy = has_child_code && inner->views.has_code &&
			  (ch__views_are_private(&inner->views) || copy_pool(pool));
	ch__valgrind_reports(true);
}

void ch__pool_fork_parent(struct ch__pool *pool)
{
	ch__views_destroy(&pool->inner->copy);
	ch__pages_unlock(pool);
}

/* The adopted RX view has access everywhere; ranges without memory would read as zeros, which
 * execute. */
static bool close_the_rest(struct ch__pool *pool) CH_HAS_PAGES
{
	uint8_t *exec = pool->inner->views.exec + pool->runtime_bytes;
	for (uint32_t chunk = 0; chunk < pool->chunk_count; chunk++)
		pool->inner->chunks[chunk].lingers = false;
	uint32_t had = ch__pool_pages_end(pool);
	for (uint32_t page = 0, end; page < pool->page_count; page = end + 1) {
		for (end = page; end < had && !ch__pool_page_is_backed(pool, end);)
			end++;
		end = end == had ? pool->page_count : end;
		if (end != page && !ch__os_protect_none(exec + ((size_t)page << pool->page_log2),
							(size_t)(end - page) << pool->page_log2))
			return false;
	}
	return true;
}

static bool take_code(struct ch__pool *pool) CH_HAS_PAGES
{
	struct ch__pool_inner *inner = pool->inner;
	if (ch__views_are_private(&inner->views))
		return inner->has_copy && ch__private_open(&inner->views);
	return ch__views_reserve_again(&inner->views) && inner->has_copy &&
	       ch__views_adopt(&inner->views, &inner->copy) && close_the_rest(pool) &&
	       ch__spans_lend_again(pool) && ch__views_exclude(&inner->views);
}

bool ch__pool_fork_child(struct ch__pool *pool)
{
	struct ch__pool_inner *inner = pool->inner;
	bool is_usable = take_code(pool);
	if (!is_usable) {
		inner->spans_retired = 0; /* no access comes back */
		ch__views_forget(&inner->views);
		ch__spans_leave_zeros(pool);
	}
	ch__views_destroy(&inner->copy);
	/* To memcheck all of the adopted memory is in use. */
	uint32_t judged = is_usable && pool->is_translated ? ch__pool_pages_end(pool) : 0;
	for (uint32_t i = 0; i < judged; i++)
		if (ch__pool_page_is_backed(pool, i) &&
		    ch__page_state(&pool->pages[i]) != CH__PAGE_SPAN)
			ch__granules_revoke_unused(pool, i);
	ch__pages_unlock(pool);
	return is_usable;
}
