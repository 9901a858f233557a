/* SPDX-License-Identifier: MIT
 * open_check.c: ch_block_open and ch_frame_register, up to where the request is known to be valid.
 * open.c makes the room. */
#include "codeheap/base/sized.h"
#include "codeheap/life/life.h"
#include "unwind/steps.h"

/* A page is at least as large, and begins at a multiple of this. */
enum { ALIGN_MOST = 4096 };

/* Each field by itself, in the order of the structure; then fields that do not go together. The
 * library writes nothing among bytes written in place, nor in data. The note of CH_FRAME_STEPS lies
 * behind all code of the block, and describes hot bytes only. */
static CH_COLD enum ch_status check_rules(const struct ch_heap *heap, const struct ch_open *open)
{
	const unsigned known = CH_OPEN_MAY_COLLECT | CH_OPEN_IMMORTAL | CH_OPEN_OWN_FRAMES |
			       CH_OPEN_IN_PLACE | CH_OPEN_KEPT;
	unsigned entry = (unsigned)open->entry, kind = (unsigned)open->kind, flags = open->flags;
	bool has_own = (flags & CH_OPEN_OWN_FRAMES) != 0, is_data = kind != CH_KIND_CODE;
	bool has_steps = open->frame == CH_FRAME_STEPS;
	bool is_in_place = is_data || (flags & CH_OPEN_IN_PLACE);
	bool is_bare = has_steps || is_in_place;
	uint32_t last_frame = CH_LOAD_RELAXED(&heap->last_frame);
	const struct {
		bool is_broken;
		uint64_t is;
		const char *format; /* of the value, and of last_frame */
	} rules[] = {
		{!open->hot_bytes, 0, "ch_open.hot_bytes is %lu: 1 at least"},
		{open->branch_room > CH__RUN_MAX, open->branch_room,
		 "ch_open.branch_room is %lu: not 0 to 512"},
		{entry > CH_ENTRY_GUARD, entry, "ch_open.entry is %lu: not 0 to 2"},
		{open->frame > last_frame, open->frame,
		 "ch_open.frame is %lu: not 0 to %u, the last that is registered"},
		{(flags & ~known) != 0, flags,
		 "ch_open.flags is %lx: it has bits that are none of enum ch_open_flags"},
		{kind > CH_KIND_DATA, kind, "ch_open.kind is %lu: not 0 to 2"},
		{open->align > ALIGN_MOST || (open->align & (open->align - 1)), open->align,
		 "ch_open.align is %lu: not a power of two up to 4096"},
		{open->heap && open->owner.bits, 0, "ch_open: heap and owner are set: one of both"},
		{open->heap && entry, entry,
		 "ch_open.entry is %lu: code without an owner is entered by its address"},
		{has_own && open->frame, open->frame,
		 "ch_open.frame is %lu: 0 beside CH_OPEN_OWN_FRAMES"},
		{has_steps && (!CH_ARCH_HAS_STEPS || is_in_place), open->frame,
		 "ch_open.frame is %lu: CH_FRAME_STEPS is not for this machine, or for data and "
		 "what is written in place"},
		{has_steps && open->hot_bytes > CH__STEPS_CODE_BYTES, open->hot_bytes,
		 "ch_open.hot_bytes is %lu: at most 65000 with CH_FRAME_STEPS"},
		{is_bare && entry == CH_ENTRY_PATCH, entry,
		 "ch_open.entry is %lu: not CH_ENTRY_PATCH with CH_FRAME_STEPS, of data, or of "
		 "what is written in place"},
		{is_bare && open->branch_room, open->branch_room,
		 "ch_open.branch_room is %lu: 0 with CH_FRAME_STEPS, of data, or of what is "
		 "written in place"},
		{is_bare && open->cold_bytes, open->cold_bytes,
		 "ch_open.cold_bytes is %lu: 0 with CH_FRAME_STEPS, of data, or of what is "
		 "written in place"},
		{is_data && entry, entry, "ch_open.entry is %lu: data is not entered"},
		{is_data && open->frame, open->frame, "ch_open.frame is %lu: data has no frames"},
		{is_data && has_own, flags,
		 "ch_open.flags is %lu: CH_OPEN_OWN_FRAMES: data has no frames"},
	};
	for (unsigned i = 0; i < sizeof rules / sizeof *rules; i++)
		if (rules[i].is_broken)
			return ch__because(CH_E_ARG, rules[i].format, rules[i].is, last_frame);
	return CH_OK;
}

/* Most opens leave rare fields 0, and break no rule of the others. */
static inline bool is_plain(const struct ch_open *open)
{
	return !((unsigned)open->entry | (unsigned)open->kind | open->flags | open->frame) &&
	       open->hot_bytes && open->branch_room <= CH__RUN_MAX &&
	       open->align <= ALIGN_MOST && !(open->align & (open->align - 1)) &&
	       !(open->heap && open->owner.bits);
}

static enum ch_status CH_COLD open_sized(const struct ch_open *open, struct ch_code *code)
{
	struct ch_open whole;
	enum ch_status status = CH__SIZED_CHECK(ch_open, open, hot_bytes, align);
	if (status != CH_OK)
		return status;
	ch__sized_take(&whole, sizeof whole, open);
	return ch_block_open(&whole, code);
}

static enum ch_status CH_COLD because_dead(const struct ch_open *open)
{
	if (open->heap)
		return ch__because_refused(open->heap);
	if (!open->owner.bits)
		return ch__because(CH_E_ARG, "ch_open: heap and owner are both none");
	return ch__because_stale("owner", open->owner.bits);
}

static inline enum ch_status open_by(struct ch_heap *heap, struct ch__thread *self,
				     const struct ch_open *open, struct ch_code *code)
{
	enum ch_status status = ch__thread_need(heap, &self);
	return CH_LIKELY(status == CH_OK) ? ch__block_open(heap, self, open, code) : status;
}

/* Where only stops synchronize, what a collection freed waits for the stop of the next. */
static enum ch_status CH_COLD open_again(struct ch_heap *heap, const struct ch_open *open,
					 struct ch_code *code)
{
	enum ch_status status = ch__told(CH_E_FULL);
	int tries = heap->has_core_sync ? 1 : 2;
	while (status == CH_E_FULL && tries-- &&
	       (ch__collect_if_unasked(heap) || ch__await_unasked(heap)))
		status = open_by(heap, ch__thread_now(heap), open, code);
	return status;
}

/* Without an owner, the thread makes the collections that no vm is asked for. After a collection
 * the caller may be another thread (I14). */
enum ch_status ch_block_open(const struct ch_open *open, struct ch_code *code)
{
	ch__code_clear(code);
	if (ch__is_marking())
		return ch__because_marking();
	if (CH_UNLIKELY(open->size != sizeof *open))
		return open_sized(open, code);
	struct ch_heap *heap = open->heap ? open->heap : ch__handle_heap(open->owner.bits);
	struct ch__thread *self = ch__thread_self(heap);
	if (CH_UNLIKELY(open->heap ? !self && !ch__heap_is_listed(heap)
				   : !heap || !ch__owner_is_live(heap, open->owner)))
		return because_dead(open);
	enum ch_status status =
		CH_LIKELY(is_plain(open)) ? CH_OK : check_rules(heap, open);
	if (CH_UNLIKELY(status != CH_OK))
		return status;
	if (open->heap && ch__collect_if_unasked(heap))
		self = ch__thread_now(heap);
	status = open_by(heap, self, open, code);
	if (CH_UNLIKELY(status == CH_E_FULL) && open->heap &&
	    !(open->flags & CH_OPEN_MAY_COLLECT))
		status = open_again(heap, open, code);
	return status;
}

enum ch_status ch_frame_register(struct ch_heap *heap, const void *cfi, size_t bytes,
				 uint8_t *frame)
{
	*frame = 0;
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	if (!cfi || !bytes || bytes > 64)
		return ch__because(CH_E_ARG, "bytes is %zu: not 1 to 64, or cfi is NULL", bytes);
	*frame = ch__sinks_frame_register(heap->sinks, cfi, bytes);
	if (!*frame)
		return ch__because(CH_E_FULL, "%d frame shapes are registered, the most",
				   CH__FRAME_SHAPES - (CH_FRAME_STEPS + 1));
	/* Shapes are numbered in order; two threads may come here in reverse order. */
	uint32_t last = atomic_load(&heap->last_frame);
	while (last < *frame && !atomic_compare_exchange_weak(&heap->last_frame, &last, *frame))
		continue;
	return CH_OK;
}
