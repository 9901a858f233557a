/* SPDX-License-Identifier: MIT
 * names.c: names of owners and blocks, counted. Lock: heap, except for the signal-safe
 * ch__name_text: records are type-stable, and a text is freed only after the last reference and the
 * last reader that began before. */
#include "codeheap/graph/names.h"
#include "os/text.h"

_Atomic(uint32_t) ch__place_readers;

const char *ch__name_text(const struct ch_heap *heap, uint32_t index)
{
	if (!index)
		return "";
	const struct ch__name *name = ch__name_at(heap, index);
	const char *text = atomic_load_explicit(&name->text, memory_order_seq_cst);
	return text ? text : "";
}

void ch__name_cut(char short_text[CH__NAME_SHORT_BYTES], const char *text)
{
	static const char dots[] = "...";
	struct ch__text cut = {short_text, CH__NAME_SHORT_BYTES, 0};
	ch__text_put(&cut, text);
	if (ch__text_end(&cut) >= CH__NAME_SHORT_BYTES) {
		size_t whole = ch__text_whole(text, CH__NAME_SHORT_BYTES - sizeof dots);
		memcpy(short_text + whole, dots, sizeof dots);
	}
}

static uint32_t make(struct ch_heap *heap, const char *text, size_t bytes) CH_HAS_HEAP
{
	uint32_t short_name = 0;
	if (bytes > CH__NAME_SHORT_BYTES) {
		char cut[CH__NAME_SHORT_BYTES];
		ch__name_cut(cut, text);
		short_name = ch__name_take(heap, cut);
		if (!short_name)
			return 0;
	}
	char *copy = ch__meta_alloc(heap->meta, bytes);
	uint32_t index = copy ? ch__table_take(&heap->names) : 0;
	if (!index) {
		ch__meta_free(heap->meta, copy, bytes);
		ch__name_drop(heap, short_name);
		return 0;
	}
	memcpy(copy, text, bytes);
	struct ch__name *name = ch__name_at(heap, index);
	name->references = 1;
	name->short_name = short_name;
	atomic_store_explicit(&name->text, copy, memory_order_release);
	return index;
}

uint32_t ch__name_take(struct ch_heap *heap, const char *text)
{
	enum { MOST = 4 };
	size_t length = strlen(text);
	/* The place among the last names, by the length and the last bytes, where most names
	 * differ. A name takes the place of the one before: so scripts, which choose names, can
	 * make no search long. */
	uint32_t place = (uint32_t)length;
	for (size_t i = length > MOST ? length - MOST : 0; i < length; i++)
		place = place * 31 + (uint8_t)text[i];
	place %= CH__NAMES_LAST;
	uint32_t index = heap->names_last[place];
	if (index && !strcmp(ch__name_at(heap, index)->text, text)) {
		ch__name_at(heap, index)->references++;
		return index;
	}
	index = make(heap, text, length + 1);
	if (index) {
		ch__name_at(heap, index)->place = place;
		heap->names_last[place] = index;
	}
	return index;
}

void ch__names_free_parked(struct ch_heap *heap)
{
	uint32_t index;
	if (!heap->names_parked || ch__place_is_read())
		return;
	while ((index = heap->names_parked) != 0) {
		struct ch__name *name = ch__name_at(heap, index);
		heap->names_parked = name->next;
		ch__meta_free(heap->meta, name->parked, strlen(name->parked) + 1);
		ch__table_give(&heap->names, index, false);
	}
}

void ch__name_park(struct ch_heap *heap, uint32_t index)
{
	while (index) {
		struct ch__name *name = ch__name_at(heap, index);
		if (--name->references)
			return;
		if (heap->names_last[name->place] == index)
			heap->names_last[name->place] = 0;
		name->parked = atomic_exchange(&name->text, NULL);
		name->next = heap->names_parked;
		heap->names_parked = index;
		index = name->short_name;
	}
}

void ch__name_drop(struct ch_heap *heap, uint32_t index)
{
	ch__name_park(heap, index);
	ch__names_free_parked(heap);
}
