/* SPDX-License-Identifier: MIT
 * profiler.c: the life of a profile: samplers and their timers, the worker that empties the rings,
 * the names of dying code. Knows no format and no file. Lock: profile.
 *
 * A handler stores 1 to its slot's `inside`, reads the sampler and the ranges, and stores 0 within
 * microseconds: every signal is blocked. To take a sampler or ranges away, a thread stores the new
 * pointer, then reads `inside`: the handler sees the new pointer, or the thread the handler. */
#include "observe/profiler_inner.h"

#include <errno.h>

enum {
	NS_PER_S = 1000000000,
	NS_PER_MS = 1000000,
	WORKER_NS = 4 * NS_PER_MS,       /* between two looks at the rings */
	MAPS_WANTED_NS = 20 * NS_PER_MS, /* between two readings on request of a handler */
	MAPS_NS = 100 * NS_PER_MS,       /* between two readings without a request */
	MEMORY_DEFAULT_BYTES = 64 << 20,
	RINGS_SHARE = 4, /* a ring above the least size takes at most a fourth of the rest */
};

/* --- rings --- */

/* The longest sample may begin at the last word. */
static size_t ring_bytes(uint64_t words)
{
	return (size_t)(words + CH__PROFILE_FRAMES_MAX + 2) * sizeof(uint64_t);
}

/* A large ring is cheap: pages never written take no memory. */
static bool make_ring(struct ch__profiler *p, struct ch__sampler *s) CH_REQUIRES(ch__role_guest)
{
	size_t left = (p->config.asked.memory_bytes - p->used_bytes) / RINGS_SHARE;
	uint64_t words = UINT64_C(1) << CH__RING_WORDS_LOG2;
	while (ring_bytes(words) > left && words > UINT64_C(1) << CH__RING_WORDS_LOG2_MIN)
		words /= 2;
	s->words = words;
	s->ring_bytes = ring_bytes(words);
	if (s->ring_bytes > p->config.asked.memory_bytes - p->used_bytes)
		return false;
	s->ring = ch__os_private(s->ring_bytes);
	if (s->ring)
		p->used_bytes += s->ring_bytes;
	return s->ring != NULL;
}

static void merge(struct ch__profiler *p, struct ch__sampler *s) CH_REQUIRES(ch__role_guest)
{
	/* Acquire: pairs with the release of the handler. */
	uint64_t head = atomic_load_explicit(&s->head, memory_order_acquire);
	uint64_t tail = CH_LOAD_RELAXED(&s->tail);
	while (tail != head) {
		const uint64_t *at = s->ring + (tail & (s->words - 1));
		uint32_t count = (uint32_t)(*at & (CH__SAMPLE_CUT - 1));
		uint32_t weight = (uint32_t)(*at >> 32);
		bool is_cut = (*at & CH__SAMPLE_CUT) != 0;
		if (ch__tree_add(p, at + 1, count, is_cut, weight)) {
			p->counts.samples += weight;
			p->counts.cut += is_cut ? weight : 0;
		} else {
			p->counts.dropped += weight;
		}
		tail += 1 + count;
		/* Release: the sample was read; pairs with the acquire of the handler. */
		atomic_store_explicit(&s->tail, tail, memory_order_release);
	}
}

static void merge_all(struct ch__profiler *p) CH_REQUIRES(ch__role_guest)
{
	for (struct ch__sampler *s = p->samplers; s; s = s->next)
		merge(p, s);
}

/* --- the worker --- */

static void work_once(struct ch__profiler *p)
{
	ch__profile_lock(p);
	merge_all(p);
	uint64_t passed = ch__os_now_ns() - p->maps_read_ns;
	bool is_wanted = CH_LOAD_RELAXED(&p->maps_wanted) != 0;
	if ((is_wanted && passed > MAPS_WANTED_NS) || passed > MAPS_NS) {
		CH_STORE_RELAXED(&p->maps_wanted, 0);
		/* Refused for once: what handlers have stays. */
		(void)ch__maps_read(p);
	}
	ch__profile_unlock(p);
}

static void work(void *arg)
{
	struct ch__profiler *p = arg;
	/* Acquire: pairs with the release of ch__profiler_stop. */
	while (!atomic_load_explicit(&p->ending, memory_order_acquire)) {
		ch__os_futex_wait(&p->ending, 0, WORKER_NS);
		work_once(p);
	}
}

/* --- life --- */

static void nobody_else_knows(const struct ch__profiler *p) CH_VOUCHES(ch__role_guest)
	CH_UNANALYSED("before its heap has it, or after")
{
	(void)p;
}

/* Unmaps the rings. All else lies in the profiler's side memory, which goes as a whole. If a
 * handler does not end, everything stays for good. */
static void free_profiler(struct ch__profiler *p) CH_REQUIRES(ch__role_guest)
{
	if (!ch__handlers_left(p))
		return;
	for (struct ch__sampler *s = p->samplers; s; s = s->next)
		ch__os_unmap(s->ring, s->ring_bytes);
	ch__meta_destroy(p->meta);
}

int ch__profiler_create(const struct ch__profiler_config *config, struct ch__profiler **out)
{
	struct ch__meta *meta = ch__meta_create();
	if (!meta)
		return ENOMEM;
	struct ch__profiler *p = ch__meta_alloc(meta, sizeof *p);
	if (!p) {
		ch__meta_destroy(meta);
		return ENOMEM;
	}
	p->meta = meta;
	p->config = *config;
	if (!p->config.asked.memory_bytes)
		p->config.asked.memory_bytes = MEMORY_DEFAULT_BYTES;
	nobody_else_knows(p);
	p->seen.is_whole = true;
	int error = ch__tree_create(p) ? ch__maps_read(p) : ENOMEM;
	if (!error && !ch__os_thread_start(&p->worker, work, p))
		error = errno;
	if (error) {
		free_profiler(p);
		return error;
	}
	*out = p;
	return 0;
}

size_t ch__profiler_least_bytes(void)
{
	return ch__tree_least_bytes() + sizeof(struct ch__sampler) +
	       ring_bytes(UINT64_C(1) << CH__RING_WORDS_LOG2_MIN);
}

static struct ch__sampler *make_sampler(struct ch__profiler *p, struct ch__sampler_slot *slot)
{
	ch__profile_lock(p);
	struct ch__sampler *s = ch__profile_alloc(p, sizeof *s);
	if (s && !make_ring(p, s)) {
		ch__profile_free(p, s, sizeof *s);
		s = NULL;
	}
	if (s) {
		s->profiler = p;
		s->slot = slot;
		s->next = p->samplers;
		p->samplers = s;
	}
	ch__profile_unlock(p);
	return s;
}

static void free_sampler(struct ch__profiler *p, struct ch__sampler *s)
	CH_REQUIRES(ch__role_guest)
{
	struct ch__sampler **link = &p->samplers;
	while (*link != s)
		link = &(*link)->next;
	*link = s->next;
	p->counts.dropped += CH_LOAD_RELAXED(&s->dropped);
	p->used_bytes -= s->ring_bytes;
	ch__os_unmap(s->ring, s->ring_bytes);
	ch__profile_free(p, s, sizeof *s);
}

/* The ring goes at once: the rings of threads that come and go would fill the memory that the
 * profile may take. A handler that does not end keeps its sampler for good. */
static void end_sampler(struct ch__profiler *p, struct ch__sampler_slot *slot,
			struct ch__sampler *s)
{
	atomic_store_explicit(&slot->sampler, NULL, memory_order_seq_cst);
	if (!ch__handler_left(slot))
		return;
	ch__profile_lock(p);
	merge(p, s);
	free_sampler(p, s);
	ch__profile_unlock(p);
}

static int add(struct ch__profiler *p, struct ch__sampler_slot *slot, int thread_id)
{
	struct ch__sampler *s = slot ? make_sampler(p, slot) : NULL;
	if (!s)
		return ENOMEM;
	/* seq_cst, as each store of it: against the handler. */
	atomic_store_explicit(&slot->sampler, s, memory_order_seq_cst);
	if (ch__os_timer_start(&s->timer, thread_id, p->config.asked.by_wall_clock,
			       NS_PER_S / p->config.rate, p->config.timer_value))
		return 0;
	int error = errno;
	end_sampler(p, slot, s);
	return ch__os_thread_is_gone(thread_id) ? ESRCH : error;
}

int ch__profiler_add(struct ch__profiler *p, struct ch__sampler_slot *slot, int thread_id)
{
	int error = add(p, slot, thread_id);
	ch__profile_lock(p);
	if (!error)
		p->counts.threads++;
	else if (error != ESRCH)
		p->counts.refused++;
	ch__profile_unlock(p);
	return error;
}

void ch__profiler_remove(struct ch__profiler *p, struct ch__sampler_slot *slot)
{
	struct ch__sampler *s = CH_LOAD_RELAXED(&slot->sampler);
	if (!s)
		return;
	ch__os_timer_stop(&s->timer);
	end_sampler(p, slot, s);
}

static struct ch__sampler_slot *any_slot(struct ch__profiler *p)
{
	struct ch__sampler_slot *slot = NULL;
	ch__profile_lock(p);
	for (struct ch__sampler *s = p->samplers; s && !slot; s = s->next)
		if (atomic_load(&s->slot->sampler) == s)
			slot = s->slot;
	ch__profile_unlock(p);
	return slot;
}

void ch__profiler_stop(struct ch__profiler *p)
{
	struct ch__sampler_slot *slot;
	while ((slot = any_slot(p)))
		ch__profiler_remove(p, slot);
	ch__os_thread_tell(&p->ending, 1);
	(void)ch__os_thread_join(&p->worker, UINT64_MAX);
	ch__profile_lock(p);
	/* What is mapped at the end is seen, too. */
	(void)ch__maps_read(p);
	ch__profile_unlock(p);
}

void ch__profiler_destroy(struct ch__profiler *p)
{
	if (!p)
		return;
	nobody_else_knows(p);
	free_profiler(p);
}

/* --- names, counts --- */

void ch__profiler_dying(struct ch__profiler *p, struct ch_heap *heap, const uint64_t *keys,
			size_t n)
{
	ch__profile_lock(p);
	merge_all(p);
	for (size_t i = 0; i < n; i++) {
		struct ch__code_name *name = ch__tree_name(&p->tree, keys[i]);
		if (name)
			ch__tree_take_name(p, heap, name, true);
	}
	ch__profile_unlock(p);
}

void ch__profiler_name_all(struct ch__profiler *p, struct ch_heap *heap, uint32_t heap_id)
{
	ch__profile_lock(p);
	merge_all(p);
	for (uint32_t i = 0; i <= p->tree.names_mask; i++)
		if (p->tree.names[i].key >> CH__LOOK_HEAP_SHIFT == heap_id)
			ch__tree_take_name(p, heap, &p->tree.names[i], false);
	ch__profile_unlock(p);
}

void ch__profiler_merge(struct ch__profiler *p, struct ch_profile_counts *counts)
{
	merge_all(p);
	*counts = p->counts;
	for (struct ch__sampler *s = p->samplers; s; s = s->next)
		counts->dropped += CH_LOAD_RELAXED(&s->dropped);
}

void ch__profiler_count(struct ch__profiler *p, struct ch_profile_counts *counts)
{
	ch__profile_lock(p);
	ch__profiler_merge(p, counts);
	ch__profile_unlock(p);
}

/* --- fork --- */

void ch__profiler_fork_prepare(struct ch__profiler *p) CH_UNANALYSED("the two others let it go")
{
	ch__profile_lock(p);
}

void ch__profiler_fork_parent(struct ch__profiler *p) CH_UNANALYSED("of prepare")
{
	ch__profile_unlock(p);
}

/* The child has no timers and no worker; only the forking thread may be in a handler. */
void ch__profiler_fork_child(struct ch__profiler *p) CH_UNANALYSED("of prepare")
{
	for (struct ch__sampler *s = p->samplers; s; s = s->next) {
		atomic_store(&s->slot->sampler, NULL);
		atomic_store(&s->slot->inside, 0);
	}
	ch__profile_unlock(p);
}
