/* SPDX-License-Identifier: MIT
 * meta_grow.c: arrays in side memory that grow. Apart from meta.c, so that tests can have
 * ch__meta_alloc fail here, too. No lock. */
#include "os/meta.h"

#include <string.h>

bool ch__meta_grow(struct ch__meta *meta, void *array, uint32_t *capacity, uint32_t least,
		   size_t item_bytes)
{
	size_t had = *capacity * item_bytes;
	uint32_t longer = *capacity ? *capacity * 2 : least;
	void *old, *grown = longer ? ch__meta_alloc(meta, longer * item_bytes) : NULL;
	if (!grown)
		return false;
	memcpy(&old, array, sizeof old);
	if (had)
		memcpy(grown, old, had);
	ch__meta_free(meta, old, had);
	memcpy(array, &grown, sizeof grown);
	*capacity = longer;
	return true;
}
