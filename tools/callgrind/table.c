// SPDX-License-Identifier: MIT
/* A hash table with open addressing; entries are never taken out, so that a search ends at the
 * first empty slot. */
#include "tools/callgrind/table.h"

#include <stdlib.h>
#include <string.h>

bool cg_text_is(struct cg_text text, const char *wanted)
{
	return text.length == strlen(wanted) && !memcmp(text.at, wanted, text.length);
}

int cg_text_compare(struct cg_text left, struct cg_text right)
{
	size_t shorter = left.length < right.length ? left.length : right.length;
	int order = shorter ? memcmp(left.at, right.at, shorter) : 0;
	return order ? order : (left.length > right.length) - (left.length < right.length);
}

void *cg_with_room(void *array, size_t count, size_t *room, size_t size)
{
	size_t wanted = *room ? *room * 2 : 256;
	if (count < *room)
		return array;
	void *larger = realloc(array, wanted * size);
	if (larger)
		*room = wanted;
	return larger;
}

/* FNV-1a, 64 bits. */
static uint64_t hash(const void *key, size_t length)
{
	const unsigned char *bytes = key;
	uint64_t h = 0xcbf29ce484222325;
	for (size_t i = 0; i < length; i++)
		h = (h ^ bytes[i]) * 0x100000001b3;
	return h ^ h >> 32;
}

/* Where the key is, or where it would be put. */
static struct cg_entry **slot_of(const struct cg_table *table, const void *key, size_t length)
{
	size_t mask = table->slot_count - 1;
	for (size_t i = hash(key, length) & mask;; i = (i + 1) & mask) {
		struct cg_entry *entry = table->slots[i];
		if (!entry || (entry->key.length == length &&
			       (!length || !memcmp(entry->key.at, key, length))))
			return &table->slots[i];
	}
}

struct cg_entry *cg_table_find(const struct cg_table *table, const void *key, size_t length)
{
	return table->slot_count ? *slot_of(table, key, length) : NULL;
}

static bool grow(struct cg_table *table)
{
	struct cg_table larger = {.slot_count = table->slot_count ? table->slot_count * 2 : 64};
	larger.slots = calloc(larger.slot_count, sizeof *larger.slots);
	if (!larger.slots)
		return false;
	larger.count = table->count;
	for (size_t i = 0; i < table->slot_count; i++) {
		struct cg_entry *entry = table->slots[i];
		if (entry)
			*slot_of(&larger, entry->key.at, entry->key.length) = entry;
	}
	free(table->slots);
	*table = larger;
	return true;
}

struct cg_entry *cg_table_make(struct cg_table *table, const void *key, size_t length)
{
	if (table->count * 2 >= table->slot_count && !grow(table))
		return NULL;
	struct cg_entry **slot = slot_of(table, key, length);
	struct cg_entry *entry = *slot;
	if (entry)
		return entry;
	entry = calloc(1, sizeof *entry + length);
	if (!entry)
		return NULL;
	if (length)
		memcpy(entry + 1, key, length);
	entry->key = cg_text((const char *)(entry + 1), length);
	table->count++;
	*slot = entry;
	return entry;
}

void cg_table_end(struct cg_table *table)
{
	for (size_t i = 0; i < table->slot_count; i++)
		free(table->slots[i]);
	free(table->slots);
	*table = (struct cg_table){0};
}
