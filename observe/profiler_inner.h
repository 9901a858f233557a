/* SPDX-License-Identifier: MIT
 * profiler_inner.h: private to the files of the profiler.
 *
 * Field tags: [const] set at create, [profile] under the profile lock, [own] only the handler of
 * the thread. */
#pragma once

#include "arch/arch.h"
#include "observe/profiler.h"
#include "observe/system.h"
#include "os/locks/lock.h"

enum {
	CH__RING_WORDS_LOG2 = 14, /* of a thread; fewer if memory is short */
	CH__RING_WORDS_LOG2_MIN = 11,
	CH__NODES_LOG2 = 9,    /* of one piece of the tree */
	CH__KNOWN_CODES = 256, /* a power of two */
};

/* --- rings --- */

/* A sample is a header and its frames, innermost first. A sample does not wrap: behind the counted
 * words the ring has room for the longest sample. */
#define CH__SAMPLE_CUT (UINT64_C(1) << 31)
static inline uint64_t ch__sample_header(uint32_t weight, uint32_t frames, bool is_cut)
{
	return (uint64_t)weight << 32 | (is_cut ? CH__SAMPLE_CUT : 0) | frames;
}

/* Executable memory, rising by address. */
struct ch__ranges {
	size_t bytes; /* of the whole struct */
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
	/* Counts of all words ever written, and ever read. */
	_Atomic(uint64_t) head;    /* [own] release; pairs with the acquire of merge */
	_Atomic(uint64_t) tail;    /* [profile] release; pairs with the acquire of the handler */
	_Atomic(uint64_t) dropped; /* weights [own], read relaxed */
	uint32_t last_range;       /* of the last hit [own] */
	struct ch__known_code {
		uintptr_t pc;
		uint64_t key;
	} known[CH__KNOWN_CODES];      /* the last look-ups, by address [own] */
	struct ch__os_timer timer;     /* for add and remove only */
	struct ch__sampler_slot *slot; /* [const] */
	struct ch__sampler *next;      /* [profile] */
};

/* --- tree --- */

/* A stack is a path from node 0, the root, with the outermost frame first. A child has a higher
 * number than its parent. */
struct ch__node {
	uint64_t word;
	uint64_t weight; /* of samples that end here */
	uint32_t parent, next_in_bucket;
};

/* The name of a code; [profile]. */
struct ch__code_name {
	uint64_t key;   /* without CH__LOOK_COLD; 0: a free place */
	char *text;     /* NULL: not taken yet, or lost */
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

/* Executable memory that was seen: a file at a place, or memory without a file. The parts of a
 * mapping that was split are the same entry. */
struct ch__seen {
	uintptr_t low, high;
	uintptr_t base; /* where the file's first byte would be; 0 without a file */
	uint64_t device, inode;
	char *path;
};
struct ch__seen_list {
	struct ch__seen *at;
	uint32_t count, capacity;
	uint32_t next;     /* where the next search begins */
	uintptr_t highest; /* no entry reaches above it */
	bool is_whole;     /* nothing was left out for want of memory */
};

struct ch__profiler {
	struct ch__profiler_config config; /* [const] */
	struct ch__meta *meta; /* all memory but the rings, its own too [const] */
	struct ch__lock lock;
	struct ch__os_thread worker;
	_Atomic(uint32_t) ending;      /* futex of the worker */
	_Atomic(uint32_t) maps_wanted; /* a handler met unknown memory; relaxed */
	_Atomic(struct ch__ranges *) ranges; /* seq_cst, against `inside` of handlers */
	/* The ranges before these: handlers may be reading them. */
	CH_BY_GUEST struct ch__ranges *replaced;
	CH_BY_GUEST struct ch__sampler *samplers;
	CH_BY_GUEST size_t used_bytes;
	CH_BY_GUEST struct ch__tree tree;
	CH_BY_GUEST struct ch__seen_list seen;
	CH_BY_GUEST uint64_t maps_read_ns;
	CH_BY_GUEST struct ch_profile_counts counts; /* dropped: by the tree and freed samplers */
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

/* Zeroed memory, counted for the profile; NULL: the bound is reached, or no memory. */
void *ch__profile_alloc(struct ch__profiler *, size_t bytes) CH_REQUIRES(ch__role_guest);
void ch__profile_free(struct ch__profiler *, void *at, size_t bytes) CH_REQUIRES(ch__role_guest);

/* --- profiler.c --- */
/* Merges all rings into the tree, and stores the counts. */
void ch__profiler_merge(struct ch__profiler *, struct ch_profile_counts *)
	CH_REQUIRES(ch__role_guest);

/* --- profiler_tree.c --- */
size_t ch__tree_least_bytes(void);
bool ch__tree_create(struct ch__profiler *) CH_REQUIRES(ch__role_guest);
/* Adds a stack; frames: innermost first. Returns false if there is no memory for the stack. */
bool ch__tree_add(struct ch__profiler *, const uint64_t *frames, uint32_t count, bool is_cut,
		  uint32_t weight) CH_REQUIRES(ch__role_guest);
static inline struct ch__node *ch__tree_node(const struct ch__tree *tree, uint32_t index)
{
	return &tree->pieces[index >> CH__NODES_LOG2][index & ((1u << CH__NODES_LOG2) - 1)];
}
/* Returns NULL if no stack has the code. */
struct ch__code_name *ch__tree_name(const struct ch__tree *, uint64_t key);
/* Asks the heap for the name, once. */
void ch__tree_take_name(struct ch__profiler *, struct ch_heap *, struct ch__code_name *,
			bool is_dying) CH_REQUIRES(ch__role_guest);

/* --- profiler_maps.c --- */
/* Reads the mappings, notes new mappings, gives handlers the ranges. Returns 0 or errno; EBUSY: a
 * handler has not ended since the reading before. */
int ch__maps_read(struct ch__profiler *) CH_REQUIRES(ch__role_guest);
/* Lists the mappings, in side memory that no bound counts. Returns false with errno. */
bool ch__seen_now(struct ch__meta *, struct ch__seen_list *);
/* Copies the text; NULL: no memory. */
char *ch__text_copy(struct ch__meta *, const char *text);
bool ch__seen_copy(struct ch__meta *, const struct ch__seen_list *, struct ch__seen_list *copy);
/* Finds the mapping of an address; NULL: none was seen, or several were (*is_several). */
const struct ch__seen *ch__seen_find(const struct ch__seen_list *, uintptr_t address,
				     bool *is_several);
bool ch__seen_is_same(const struct ch__seen *, const struct ch__seen *);

/* --- profiler_memory.c --- */
/* Whether the handler of a slot, or every handler, has left that may use a sampler or ranges from
 * before the call. The first waits for a second, the other for some microseconds. */
bool ch__handler_left(struct ch__sampler_slot *);
bool ch__handlers_left(struct ch__profiler *) CH_REQUIRES(ch__role_guest);
