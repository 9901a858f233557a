/* SPDX-License-Identifier: MIT
 * cases.h: what the cases of `make orders` share: a heap whose threads 1 and 2 are attached. */
#ifndef CH_TESTS_ORDERS_CASES_H
#define CH_TESTS_ORDERS_CASES_H

#include "codeheap/graph/block.h"
#include "tests/orders/memory.h"

struct scene {
	struct ch_heap *heap;
	struct ch_vm *vm;
};
extern struct scene scene;
void scene_make(void);
/* A small heap that no sink is told of; NULL: without a statistics file. */
struct ch_heap *scene_heap(const char *stats_file);
/* Of the scene's heap, whose code it does not know. */
struct ch__profiler *scene_profiler(void);

extern const struct order_case cases_stop[];
extern const struct order_case cases_find[];
extern const struct order_case cases_data[];
extern const struct order_case cases_once[];

#endif
