/* SPDX-License-Identifier: MIT
 * write.c: writes bytes of committed code again: by any stores where nobody runs the bytes, else by
 * one store that the architecture allows (I12). Bytes of the library in a block are refused. Lock:
 * heap, so that no site in the same 8 bytes changes meanwhile, and the block stays. */
#include "invalidate/invalidate.h"
#include "unwind/steps.h"

static enum ch_status check_place(const struct ch_heap *heap, uintptr_t at, size_t n) CH_HAS_HEAP
{
	uint32_t index = ch__find(heap, at, NULL);
	const struct ch__block *block = ch__block_at(heap, index);
	if (!n || !index || !ch__block_has(heap, block, at, n))
		return ch__because(CH_E_ARG, "n is %zu: the bytes at %lx are not in one part of "
					     "a block that is committed", n, at);
	if (ch__block_is_data(heap, block) || ch__place_is_slot(heap, block->hot_offset))
		return ch__because(CH_E_STATE, "%lx is in data, or in a trampoline", at);
	const char *among = ch__sites_among(heap, block, at, n);
	if (ch__place_has_steps(heap, block->hot_offset)) {
		uintptr_t note = ch__steps_note(ch__sinks_steps(heap->sinks), at);
		among = at + n <= note ? among : "ch_code.frame";
	}
	if (among)
		return ch__because(CH_E_SITE, "n is %zu: among the bytes at %lx are some of %s", n,
				   at, among);
	return CH_OK;
}

static bool may_change(const struct ch_heap *heap, uintptr_t at, const uint8_t *bytes, size_t n,
		       enum ch_write how)
{
	enum { UNIT = 8 };
	if (how == CH_WRITE_NOT_RUNNING)
		return true;
	if (n > UNIT - at % UNIT)
		return false;
	if (how == CH_WRITE_WORD)
		return (n & (n - 1)) == 0 && at % n == 0;
	return ch__arch_may_change(at, ch__pool_read(heap->pool, at), bytes, n);
}

static enum ch_status write_locked(struct ch_heap *heap, uintptr_t at, const void *bytes, size_t n,
				   enum ch_write how) CH_HAS_HEAP
{
	enum ch_status status = check_place(heap, at, n);
	if (status != CH_OK)
		return status;
	if (!may_change(heap, at, bytes, n, how))
		return ch__because(CH_E_SITE, "n is %zu: the bytes at %lx are no %s that may "
					      "change while others run it", n, at,
				   how == CH_WRITE_WORD ? "aligned word"
							: "instruction in an aligned 8");
	/* No core has fetched a word that code loads: the next load sees the store. */
	bool is_run = how != CH_WRITE_WORD;
	/* Before the bytes change: with the sync refused, cores may go on with the old bytes. */
	if (is_run && !CH_ARCH_FETCH_FOLLOWS) {
		int before = errno;
		errno = ENOTSUP; /* of a refusal that needs no call */
		if (!ch__core_sync(heap))
			return ch__because(CH_E_OS, "membarrier's core synchronization is "
						    "refused: %m");
		errno = before;
	}
	if (how == CH_WRITE_NOT_RUNNING) {
		memcpy(ch__pool_write(heap->pool, at), bytes, n);
		ch__pool_sync(heap->pool, at, n);
	} else {
		uint64_t word;
		uintptr_t skip = at % sizeof word;
		memcpy(&word, ch__pool_read(heap->pool, at - skip), sizeof word);
		memcpy((uint8_t *)&word + skip, bytes, n);
		if (!ch__pool_store(heap->pool, at - skip, word))
			return ch__because(CH_E_OS, "the page of %lx cannot be exchanged: %m", at);
	}
	CH_PUBLISHED(heap->pool, at, n, "write");
	if (is_run && !ch__core_sync(heap) && !CH_ARCH_FETCH_FOLLOWS)
		ch__panic("the system does not let code be written any more");
	return CH_OK;
}

enum ch_status ch_code_write(struct ch_heap *heap, const void *at, const void *bytes, size_t n,
			     enum ch_write how)
{
	if (heap ? ch__heap_refuses(heap) : ch__is_marking())
		return ch__because_refused(heap);
	if ((unsigned)how > CH_WRITE_INSTRUCTION)
		return ch__because(CH_E_ARG, "how is %d: not one of enum ch_write", (int)how);
	if (!heap && !(heap = ch__find_heap((uintptr_t)at)))
		return ch__because(CH_E_ARG, "%lx is in no heap", (uintptr_t)at);
	ch__heap_lock(heap);
	enum ch_status status = write_locked(heap, (uintptr_t)at, bytes, n, how);
	ch__heap_unlock(heap);
	return status;
}
