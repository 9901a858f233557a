/* SPDX-License-Identifier: MIT
 * profiler_inner.h: what the files of the profiler share and nobody else sees.
 *
 * Field tags: [const] set at create, [profile] under the profile lock, [own] the handler of the
 * thread only, [atomic: ...] with the pair. */
#ifndef CH_OBSERVE_PROFILER_INNER_H
#define CH_OBSERVE_PROFILER_INNER_H

#include "arch/arch.h"
#include "observe/profiler.h"
#include "observe/system.h"
#include "os/lock.h"

enum {
	CH__RING_WORDS_LOG2 = 14, /* of a thread; fewer where memory is bounded so */
	CH__RING_WORDS_LOG2_MIN = 11,
	CH__NODES_LOG2 = 9,    /* of one piece of the tree */
	CH__KNOWN_CODES = 256, /* a power of two */
};

/* --- rings --- */

/* A sample is a header and its frames, innermost first. It lies in one piece: behind the words that
 * are counted there is room for the longest one. */
#define CH__SAMPLE_CUT (UINT64_C(1) << 31)
static inline uint64_t ch__sample_header(uint32_t weight, uint32_t frames, bool is_cut)
{
	return (uint64_t)weight << 32 | (is_cut ? CH__SAMPLE_CUT : 0) | frames;
}

/* Executable memory, rising by address. */
struct ch__ranges {
	size_t bytes; /* of all of this */
	uint32_t count;
	struct ch__range {
		uintptr_t low, high;
	} at[];
};

struct ch__sampler {
	struct ch__profiler *profiler; /* [const] */
	uint64_t *ring;                /* [const] */
	uint64_t words;                /* a power of two [const] */
	size_t ring_bytes;             /* [const] */
	/* Words that were ever written, and read. */
	_Atomic(uint64_t) head;    /* [own] release; pairs with the acquire of merge */
	_Atomic(uint64_t) tail;    /* [profile] release; pairs with the acquire of the handler */
	_Atomic(uint64_t) dropped; /* weights [own], read relaxed */
	uint32_t last_range;       /* that was hit [own] */
	bool is_elsewhere;         /* the thread has other heaps, in this sample [own] */
	struct ch__known_code {
		uintptr_t pc;
		uint64_t key;
	} known[CH__KNOWN_CODES];      /* what was looked up last, by address [own] */
	struct ch__os_timer timer;     /* of who adds and removes */
	struct ch__sampler_slot *slot; /* NULL: removed [profile] */
	struct ch__sampler *next;      /* [profile] */
};

/* --- tree --- */

/* A stack is a path from the root, node 0, its outermost frame first. A child has a higher number
 * than its parent. */
struct ch__node {
	uint64_t word;
	uint64_t weight; /* of samples that end here */
	uint32_t parent, next_in_bucket;
};

/* What is known of a code; [profile]. */
struct ch__code_name {
	uint64_t key;   /* not cold; 0: the place is free */
	char *text;     /* NULL: not taken yet, or lost */
	uint32_t bytes; /* of text */
	bool is_taken, is_slot;
};

struct ch__tree {
	struct ch__node **pieces;
	uint32_t pieces_max, count; /* count: nodes */
	uint32_t *buckets, buckets_mask;
	struct ch__code_name *names; /* open addressing */
	uint32_t names_mask, names_count;
};

/* --- maps --- */

/* Executable memory that was seen, and what it was of: one file at one place, however its mapping
 * was split since. */
struct ch__seen {
	uintptr_t low, high;
	uintptr_t base; /* where the file's first byte would be; 0 without a file */
	uint64_t device, inode;
	char *path;
};
struct ch__seen_list {
	struct ch__seen *at;
	uint32_t count, capacity;
	uint32_t next;     /* what is mapped behind what was noted last, most likely */
	uintptr_t highest; /* no entry reaches above it */
	bool is_whole;     /* nothing was left out for want of memory */
};

struct ch__profiler {
	struct ch__profiler_config config; /* [const] */
	struct ch__meta *meta; /* of all that it has, itself too [const] */
	struct ch__lock lock;
	struct ch__os_thread worker;
	bool has_worker;               /* false: nobody started it [const] */
	_Atomic(uint32_t) ending;      /* futex of the worker */
	_Atomic(uint32_t) maps_wanted; /* a handler met memory that it does not know; relaxed */
	_Atomic(struct ch__ranges *) ranges; /* release; pairs with the acquire of handlers */
	CH_BY_GUEST struct ch__sampler *samplers;
	CH_BY_GUEST size_t used_bytes;
	CH_BY_GUEST struct ch__tree tree;
	CH_BY_GUEST struct ch__seen_list seen;
	CH_BY_GUEST uint64_t maps_read_ns;
	CH_BY_GUEST struct ch__profiler_counts counts; /* dropped: by the tree, and of who left */
};

static inline void ch__profile_lock(struct ch__profiler *p) CH_ACQUIRES(ch__role_guest)
	CH_EXCLUDES(CH__RIGHT_OF_GUEST) CH_UNANALYSED("it makes the role")
{
	ch__lock_take(&p->lock, CH__RANK_GUEST);
}
static inline void ch__profile_unlock(struct ch__profiler *p) CH_RELEASES(ch__role_guest)
	CH_UNANALYSED("it makes the role")
{
	ch__lock_release(&p->lock, CH__RANK_GUEST);
}

/* Zeroed memory that counts as the profile's; NULL: the bound is reached, or there is none. */
void *ch__profile_alloc(struct ch__profiler *, size_t bytes) CH_REQUIRES(ch__role_guest);
void ch__profile_free(struct ch__profiler *, void *at, size_t bytes) CH_REQUIRES(ch__role_guest);

/* --- profiler.c --- */
/* All that rings have is in the tree, and counted. */
void ch__profiler_merge(struct ch__profiler *, struct ch__profiler_counts *)
	CH_REQUIRES(ch__role_guest);

/* --- profiler_tree.c --- */
bool ch__tree_create(struct ch__profiler *) CH_REQUIRES(ch__role_guest);
/* False: no memory, and the stack is not there. Frames: innermost first. */
bool ch__tree_add(struct ch__profiler *, const uint64_t *frames, uint32_t count, bool is_cut,
		  uint32_t weight) CH_REQUIRES(ch__role_guest);
static inline struct ch__node *ch__tree_node(const struct ch__tree *tree, uint32_t index)
{
	return &tree->pieces[index >> CH__NODES_LOG2][index & ((1u << CH__NODES_LOG2) - 1)];
}
/* NULL: no stack has it. */
struct ch__code_name *ch__tree_name(const struct ch__tree *, uint64_t key);
/* Asks for the name, once. */
void ch__tree_take_name(struct ch__profiler *, struct ch_heap *, struct ch__code_name *,
			bool is_dying) CH_REQUIRES(ch__role_guest);

/* --- profiler_maps.c --- */
/* Reads what is mapped, notes what was not seen, and gives handlers the ranges. 0 or errno. */
int ch__maps_read(struct ch__profiler *) CH_REQUIRES(ch__role_guest);
/* What is mapped by now: a list in side memory that counts as nobody's. False: errno. */
bool ch__seen_now(struct ch__meta *, struct ch__seen_list *);
bool ch__seen_copy(struct ch__meta *, const struct ch__seen_list *, struct ch__seen_list *copy);
/* What the address was of; NULL: nothing known, or (*is_several) now this and now that. */
const struct ch__seen *ch__seen_find(const struct ch__seen_list *, uintptr_t address,
				     bool *is_several);
bool ch__seen_is_same(const struct ch__seen *, const struct ch__seen *);

/* --- profiler_memory.c --- */
/* Every handler that had ranges, or a sampler, before the call, is out of it: that of one slot, or
 * all of them. False: one is not, after a second. */
bool ch__handler_left(struct ch__sampler_slot *);
bool ch__handlers_left(struct ch__profiler *) CH_REQUIRES(ch__role_guest);

#endif
