/* SPDX-License-Identifier: MIT
 * peer_boehm.c: the same graph as one Boehm object per block, marked by one thread. The only file
 * of bench/ that includes the collector's header. */
#include "bench/bench.h"

#define GC_THREADS /* declares the count of markers */
#define GC_NO_THREAD_REDIRECTS
#include <gc/gc.h>

enum { OBJECT_BYTES = 64 };

static void **root;

void peer_boehm_build(const uint32_t *edges, uint32_t blocks, uint32_t edges_a_block)
{
	GC_set_markers_count(1);
	GC_INIT();
	void ***objects = GC_MALLOC_UNCOLLECTABLE(blocks * sizeof *objects);
	if (!objects)
		bench_die("no memory for the peer");
	for (uint32_t i = 0; i < blocks; i++)
		objects[i] = GC_MALLOC(OBJECT_BYTES);
	for (uint32_t i = 0; i < blocks; i++)
		for (uint32_t k = 0; k < edges_a_block; k++)
			objects[i][k] = objects[edges[i * edges_a_block + k]];
	root = objects[0];
	GC_FREE(objects);
}

double peer_boehm_collect_ns(void)
{
	double start = bench_cpu_ns();
	GC_gcollect();
	return root ? bench_cpu_ns() - start : 0;
}
