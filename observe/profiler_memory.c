/* SPDX-License-Identifier: MIT
 * profiler_memory.c: the bounded memory of a profiler, and the wait until no signal handler reads
 * memory that is about to be freed. */
#include "observe/profiler_inner.h"

enum { NS_PER_MS = 1000000 };

void *ch__profile_alloc(struct ch__profiler *p, size_t bytes)
{
	if (bytes > p->config.asked.memory_bytes - p->used_bytes)
		return NULL;
	void *at = ch__meta_alloc(p->meta, bytes);
	if (at)
		p->used_bytes += bytes;
	return at;
}

void ch__profile_free(struct ch__profiler *p, void *at, size_t bytes)
{
	ch__meta_free(p->meta, at, bytes);
	p->used_bytes -= bytes;
}

static bool has_left(struct ch__sampler_slot *slot, int patience_ms)
{
	enum { SPINS = 1000 };
	static _Atomic(uint32_t) never;
	for (int i = 0; i < SPINS + patience_ms; i++) {
		if (!atomic_load_explicit(&slot->inside, memory_order_seq_cst))
			return true;
		if (i < SPINS)
			ch__arch_pause();
		else
			ch__os_futex_wait(&never, 0, NS_PER_MS);
	}
	return false;
}

bool ch__handler_left(struct ch__sampler_slot *slot)
{
	enum { PATIENCE_MS = 1000 };
	return has_left(slot, PATIENCE_MS);
}

bool ch__handlers_left(struct ch__profiler *p)
{
	for (struct ch__sampler *s = p->samplers; s; s = s->next)
		if (!has_left(s->slot, 0))
			return false;
	return true;
}
