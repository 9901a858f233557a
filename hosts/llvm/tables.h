/* SPDX-License-Identifier: MIT
 * tables.h: unwind tables that live as long as their block. A table is the `user` of a block of
 * code; the vm's block_freed hands the table back, at ch_vm_detach too (ch_ops.tells_detached). */
#pragma once

#include <stdint.h>
#include <stdlib.h>

struct table {
	uint8_t *bytes; /* malloc'ed; NULL = none */
};

/* ret   NULL = no memory */
static inline struct table *table_new(void)
{
	return (struct table *)calloc(1, sizeof(struct table));
}

static inline void table_free(struct table *table)
{
	if (table)
		free(table->bytes);
	free(table);
}
