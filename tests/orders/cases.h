/* SPDX-License-Identifier: MIT
 * cases.h: shared by the cases of `make orders`: a heap to which threads 1 and 2 are attached. */
#pragma once

#include "codeheap/graph/block.h"
#include "tests/orders/memory.h"

struct scene {
	struct ch_heap *heap;
	struct ch_vm *vm;
};
extern struct scene scene;
void scene_make(void);
/* Makes a small heap without sinks; without a statistics file, too, when stats_file is NULL. */
struct ch_heap *scene_heap(const char *stats_file);
/* Makes a profiler of the scene's heap; the profiler does not know the heap's code. */
struct ch__profiler *scene_profiler(void);

extern const struct order_case cases_stop[];
extern const struct order_case cases_find[];
extern const struct order_case cases_data[];
extern const struct order_case cases_once[];
