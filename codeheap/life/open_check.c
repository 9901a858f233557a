/* SPDX-License-Identifier: MIT
 * open_check.c: ch_block_open and ch_frame_register, up to where the request is known to be valid.
 * open.c makes the room. */
#include "codeheap/base/sized.h"
#include "codeheap/collect/collect.h"
#include "codeheap/graph/handles.h"
#include "codeheap/life/life.h"
#include "unwind/steps.h"

static enum ch_status CH_COLD because_open(const char *field, uint64_t value, const char *rule)
{
	return ch__because(CH_E_ARG, "ch_open.%s is %lu: %s", field, value, rule);
}

/* The library writes nothing among bytes written in place, nor in data. The note of CH_FRAME_STEPS
 * lies behind all code of the block, and describes hot bytes only. */
static CH_COLD enum ch_status check_plain(const struct ch_open *open)
{
	bool has_steps = open->frame == CH_FRAME_STEPS;
	bool is_in_place = open->kind != CH_KIND_CODE || (open->flags & CH_OPEN_IN_PLACE);
	const char *rule = has_steps ? "0 with CH_FRAME_STEPS"
				     : "0 of data, or of what is written in place";
	if (!has_steps && !is_in_place)
		return CH_OK;
	if (has_steps && (!CH_ARCH_HAS_STEPS || is_in_place))
		return because_open("frame", CH_FRAME_STEPS,
				    "CH_FRAME_STEPS is not for this machine, or for data and what "
				    "is written in place");
	if (has_steps && open->hot_bytes > CH__STEPS_CODE_BYTES)
		return because_open("hot_bytes", open->hot_bytes,
				    "at most 65000 with CH_FRAME_STEPS");
	if (open->entry == CH_ENTRY_PATCH)
		return because_open("entry", CH_ENTRY_PATCH,
				    has_steps ? "not CH_ENTRY_PATCH with CH_FRAME_STEPS"
					      : "not CH_ENTRY_PATCH of data, or of what is "
						"written in place");
	if (open->branch_room)
		return because_open("branch_room", open->branch_room, rule);
	if (open->cold_bytes)
		return because_open("cold_bytes", open->cold_bytes, rule);
	return CH_OK;
}

static enum ch_status check_data(const struct ch_open *open)
{
	if (open->entry != CH_ENTRY_NONE)
		return because_open("entry", open->entry, "data is not entered");
	if (open->frame)
		return because_open("frame", open->frame, "data has no frames");
	if (open->flags & CH_OPEN_OWN_FRAMES)
		return because_open("flags", open->flags, "CH_OPEN_OWN_FRAMES: data has no frames");
	return CH_OK;
}

/* A page is at least as large, and begins at a multiple of this. */
enum { ALIGN_MOST = 4096 };

/* Fields that most opens leave 0. */
static CH_COLD enum ch_status check_rare_fields(const struct ch_heap *heap,
						const struct ch_open *open)
{
	const unsigned known = CH_OPEN_MAY_COLLECT | CH_OPEN_IMMORTAL | CH_OPEN_OWN_FRAMES |
			       CH_OPEN_IN_PLACE | CH_OPEN_KEPT;
	uint32_t last_frame = CH_LOAD_RELAXED(&heap->last_frame);
	if ((unsigned)open->entry > CH_ENTRY_GUARD)
		return because_open("entry", (unsigned)open->entry, "not 0 to 2");
	if (open->frame > last_frame)
		return ch__because(CH_E_ARG, "ch_open.frame is %u: not 0 to %u, the last that is "
					     "registered", open->frame, last_frame);
	if (open->flags & ~known)
		return ch__because(CH_E_ARG, "ch_open.flags is %x: it has bits that are none of "
					     "enum ch_open_flags", open->flags);
	if ((unsigned)open->kind > CH_KIND_DATA)
		return because_open("kind", (unsigned)open->kind, "not 0 to 2");
	return CH_OK;
}

/* Each field by itself, in the order of the structure; then fields that do not go together. */
static enum ch_status check_open(const struct ch_heap *heap, const struct ch_open *open)
{
	bool is_plain =
		!((unsigned)open->entry | (unsigned)open->kind | open->flags | open->frame);
	if (!open->hot_bytes)
		return because_open("hot_bytes", 0, "1 at least");
	if (open->branch_room > CH__RUN_MAX)
		return because_open("branch_room", open->branch_room, "not 0 to 512");
	enum ch_status status = is_plain ? CH_OK : check_rare_fields(heap, open);
	if (status != CH_OK)
		return status;
	if (open->align > ALIGN_MOST || (open->align & (open->align - 1)))
		return because_open("align", open->align, "not a power of two up to 4096");
	if (open->heap && open->owner.bits)
		return ch__because(CH_E_ARG, "ch_open: heap and owner are set: one of both");
	if (is_plain)
		return CH_OK;
	if (open->heap && open->entry != CH_ENTRY_NONE)
		return because_open("entry", open->entry,
				    "code without an owner is entered by its address");
	if ((open->flags & CH_OPEN_OWN_FRAMES) && open->frame)
		return because_open("frame", open->frame, "0 beside CH_OPEN_OWN_FRAMES");
	status = check_plain(open);
	return status == CH_OK && open->kind != CH_KIND_CODE ? check_data(open) : status;
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
	enum ch_status status = check_open(heap, open);
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
