/* SPDX-License-Identifier: MIT
 * names.c: interned names of owners and blocks, counted. Lock: heap, except for the signal-safe
 * ch__name_text: records are type-stable, and a text is freed only after the last reference and the
 * last reader that began before. */
#include "codeheap/graph/names.h"
#include "os/text.h"

_Atomic(uint32_t) ch__place_readers;

/* The hash is SipHash-1-3 (Aumasson and Bernstein, 2012). Names come from scripts. Without the
 * heap's secret key no script can choose names for one bucket. */
static uint64_t rotate(uint64_t word, int bits)
{
	return word << bits | word >> (64 - bits);
}

static inline __attribute__((always_inline)) void sip_round(uint64_t v[4])
{
	v[0] += v[1], v[2] += v[3];
	v[1] = rotate(v[1], 13) ^ v[0], v[3] = rotate(v[3], 16) ^ v[2];
	v[0] = rotate(v[0], 32);
	v[2] += v[1], v[0] += v[3];
	v[1] = rotate(v[1], 17) ^ v[2], v[3] = rotate(v[3], 21) ^ v[0];
	v[2] = rotate(v[2], 32);
}

/* The last word: less than 8 bytes, and the low 8 bits of the length on top. It is put together in
 * a register: a load waits for smaller stores into its bytes. */
static uint64_t last_word(const char *text, size_t n, size_t bytes)
{
	uint64_t word = 0;
	while (n-- > 0)
		word = word << 8 | (uint8_t)text[n];
	return word | (uint64_t)bytes << 56;
}

uint64_t ch__name_hash(const uint64_t key[2], const char *text, size_t bytes)
{
	uint64_t v[4] = {key[0] ^ UINT64_C(0x736f6d6570736575),
			 key[1] ^ UINT64_C(0x646f72616e646f6d),
			 key[0] ^ UINT64_C(0x6c7967656e657261),
			 key[1] ^ UINT64_C(0x7465646279746573)};
	for (size_t at = 0; at <= bytes; at += 8) {
		uint64_t word; /* little-endian */
		if (bytes - at < 8)
			word = last_word(text + at, bytes - at, bytes);
		else
			memcpy(&word, text + at, sizeof word);
		v[3] ^= word;
		sip_round(v);
		v[0] ^= word;
	}
	v[2] ^= 0xff;
	for (int i = 0; i < 3; i++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

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

static bool grow_hash(struct ch_heap *heap) CH_REQUIRES(ch__role_heap)
{
	uint32_t mask = heap->name_hash ? heap->name_hash_mask * 2 + 1 : 63;
	uint32_t *buckets = ch__meta_alloc(heap->meta, (mask + 1) * sizeof *buckets);
	if (!buckets)
		return heap->name_hash != NULL;
	for (uint32_t i = 0; heap->name_hash && i <= heap->name_hash_mask; i++) {
		for (uint32_t at = heap->name_hash[i], next; at; at = next) {
			struct ch__name *name = ch__name_at(heap, at);
			next = name->next;
			name->next = buckets[name->hash & mask];
			buckets[name->hash & mask] = at;
		}
	}
	ch__meta_free(heap->meta, heap->name_hash, (heap->name_hash_mask + 1) * sizeof *buckets);
	heap->name_hash = buckets;
	heap->name_hash_mask = mask;
	return true;
}

static uint32_t make(struct ch_heap *heap, const char *text, size_t bytes, uint32_t hash,
		     uint32_t short_name) CH_REQUIRES(ch__role_heap)
{
	char *copy = ch__meta_alloc(heap->meta, bytes);
	uint32_t index = copy ? ch__table_take(&heap->names) : 0;
	if (!index) {
		ch__meta_free(heap->meta, copy, bytes);
		return 0;
	}
	memcpy(copy, text, bytes);
	struct ch__name *name = ch__name_at(heap, index);
	uint32_t *bucket = &heap->name_hash[hash & heap->name_hash_mask];
	name->references = 1;
	name->hash = hash;
	name->short_name = short_name;
	name->next = *bucket;
	*bucket = index;
	heap->names_count++;
	atomic_store_explicit(&name->text, copy, memory_order_release);
	return index;
}

uint32_t ch__name_intern(struct ch_heap *heap, const char *text)
{
	/* Many owners, or pieces of code, of one name come one after the other: no hash then. */
	uint32_t last = heap->name_last;
	if (last && !strcmp(ch__name_at(heap, last)->text, text)) {
		ch__name_at(heap, last)->references++;
		return last;
	}
	size_t bytes = strlen(text) + 1;
	uint32_t hash = (uint32_t)ch__name_hash(heap->name_key, text, bytes - 1);
	if (heap->names_count >= heap->name_hash_mask && !grow_hash(heap))
		return 0;
	uint32_t at = heap->name_hash[hash & heap->name_hash_mask], short_name = 0;
	for (struct ch__name *name; at; at = name->next) {
		name = ch__name_at(heap, at);
		if (name->hash == hash && !strcmp(name->text, text)) {
			name->references++;
			return heap->name_last = at;
		}
	}
	if (bytes > CH__NAME_SHORT_BYTES) {
		char cut[CH__NAME_SHORT_BYTES];
		ch__name_cut(cut, text);
		short_name = ch__name_intern(heap, cut);
		if (!short_name)
			return 0;
	}
	uint32_t index = make(heap, text, bytes, hash, short_name);
	if (!index)
		ch__name_drop(heap, short_name);
	return heap->name_last = index;
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
		uint32_t *link = &heap->name_hash[name->hash & heap->name_hash_mask];
		while (*link != index)
			link = &ch__name_at(heap, *link)->next;
		*link = name->next;
		if (heap->name_last == index)
			heap->name_last = 0;
		name->parked = atomic_exchange(&name->text, NULL);
		name->next = heap->names_parked;
		heap->names_parked = index;
		heap->names_count--;
		index = name->short_name;
	}
}

void ch__name_drop(struct ch_heap *heap, uint32_t index)
{
	ch__name_park(heap, index);
	ch__names_free_parked(heap);
}
