// SPDX-License-Identifier: MIT
/* A table from bytes to a value that the table holds: names and ids of a profile. What it holds
 * stays where it is. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A piece of a text that somebody else keeps; not ended by a zero. */
struct cg_text {
	const char *at;
	size_t length;
};

static inline struct cg_text cg_text(const char *at, size_t length)
{
	return (struct cg_text){at, length};
}
bool cg_text_is(struct cg_text text, const char *wanted);
/* Byte by byte: less than, equal to, or greater than 0. */
int cg_text_compare(struct cg_text left, struct cg_text right);

/* The array with room for one more; NULL, and the array as it was: no memory. */
void *cg_with_room(void *array, size_t count, size_t *room, size_t size);

struct cg_entry {
	struct cg_text key;  /* the table's own copy */
	struct cg_text text; /* the rest is the user's, zero at first */
	const void *owner;
	uint64_t number;
	size_t part;
	bool flag;
};

struct cg_table {
	struct cg_entry **slots;
	size_t slot_count; /* a power of two, or 0 */
	size_t count;
};

/* The entry of these bytes, or NULL: when there is none and `make` is false, or memory has run
 * out. */
struct cg_entry *cg_table_find(const struct cg_table *table, const void *key, size_t length);
struct cg_entry *cg_table_make(struct cg_table *table, const void *key, size_t length);
void cg_table_end(struct cg_table *table);
