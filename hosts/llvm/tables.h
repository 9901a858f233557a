/* SPDX-License-Identifier: MIT
 * tables.h: unwind tables that live as long as their block. One is the `user` of a block of code;
 * the vm's block_freed hands it back. */
#ifndef CODEHEAP_LLVM_TABLES_H
#define CODEHEAP_LLVM_TABLES_H

#include <pthread.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct table {
	struct table *next, **link; /* of the list, under its lock */
	uint8_t *bytes;             /* malloc'ed; NULL = none */
};

/* All of one vm. The lock is held for some instructions, and over no call of the heap. */
struct tables {
	pthread_mutex_t lock;
	struct table *first;
};

/* ret   0 | what pthread_mutex_init says */
int tables_start(struct tables *tables);
/* tables_end: frees what is left. After ch_vm_detach, when no block_freed comes any more and
 * unwinders have forgotten them. */
void tables_end(struct tables *tables);
/* ret   NULL = no memory */
struct table *table_new(struct tables *tables);
/* table_free: NULL is passed over. */
void table_free(struct tables *tables, struct table *table);

#ifdef __cplusplus
}
#endif
#endif
