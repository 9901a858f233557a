/* SPDX-License-Identifier: MIT
 * failures.h: for a scripted call of a public function, the Nth call of the OS or of side memory
 * fails, N = 1, 2, .. until none fails any more. Each step has a fresh heap with one of everything
 * (the scene, failures_scene.c). failures.c has the walk and the checks after each failure;
 * tests/unit/codeheap/failures.c has the calls, a row or more for each function. */
#pragma once

#include "codeheap/codeheap.h"
#include "tests/support/calls.h"
#include "tests/support/code.h"
#include "tests/support/harness.h"

/* How the heaps of a walk are made. */
struct failures_setting {
	const char *name;
	enum ch_backend backend;
	unsigned sinks;
	enum ch_driver driver;
	bool is_boehm;
	enum ch_status (*create)(const struct ch_config *, struct ch_heap **);
	/* Makes an owner, and keeps the owner alive by the word at anchor. */
	enum ch_status (*owner)(struct ch_vm *, const char *, const void *, void *,
				struct ch_owner *, void **anchor);
};

struct scene {
	const struct failures_setting *setting;
	struct ch_heap *heap;
	struct ch_vm *vm;
	struct ch_owner owner, spare;
	void *anchors[3];
	struct ch_block live;    /* entry of owner, returns 1; relies on fact */
	struct ch_block source;  /* jumps through branch, unlinked */
	struct ch_block dropped; /* of spare, linked to live; an edge, lines */
	struct ch_branch branch;
	struct ch_assumption fact;
	struct emitter open; /* an OPEN block: code, a spare ref word, a spare patch point */
	const void *ref, *point, *site;
	/* Made or changed by a row; the end of the scene takes all of it away. */
	struct ch_heap *other;
	struct ch_vm *other_vm;
	struct ch_fiber *fiber;
	struct ch_marker *marker; /* not NULL: between ch_mark_begin and ch_mark_end */
	struct ch_code code;      /* of the block that the call opened */
	struct ch_owner made;
	void *made_anchor;
	bool is_failing; /* during a call whose nth call fails */
};

enum failures_flags {
	ROW_MAKES_NO_CALL = 1, /* no call of the OS or for side memory: counted, not believed */
	ROW_ON_HOST = 2,       /* of HOST heaps only */
	ROW_NOT_ON_BOEHM = 4,
	ROW_ON_BOEHM = 8,        /* of Boehm heaps only */
	ROW_COLLECTS = 16,       /* the failing call may lead to the freeing of other code */
	ROW_ALL_SETTINGS = 32,   /* HOST heaps, too */
	ROW_SWITCHES_SINKS = 64, /* sinks of the setting may be off */
	ROW_MAY_MAKE_NO_CALL = 128, /* what grows seldom, or gives back */
};

struct failures_row {
	const char *name; /* of the case */
	const char
		*function; /* of a public header; NULL = fork(), which no test can cause to fail */
	void (*prepare)(struct scene *); /* may be NULL */
	enum ch_status (*call)(struct scene *);
	unsigned flags;
	void (*repair)(struct scene *); /* before the call is repeated; may be NULL */
};

/* Walks the row in the setting; a failed check ends the case. Returns whether any call failed. */
bool failures_walk(const struct failures_row *, const struct failures_setting *);
/* The statuses that the header lists at `ret` of the function, as bits; 0: it is not there. */
unsigned failures_documented(const char *function);
/* Calls visit with each function that a public header declares. */
void failures_each_function(void (*visit)(const char *name, void *arg), void *arg);

/* --- the scene --- */

void scene_start(struct scene *, const struct failures_setting *);
void scene_end(struct scene *);
uint32_t scene_fallback(void);
/* A number for all that callers can see: gauges, counters of work, blocks, sites, owners, cells,
 * the open block. Sinks do not count: a sink that failed is off. */
uint64_t scene_fingerprint(const struct scene *);
void scene_check(const struct scene *);
/* The heap makes, enters, runs and frees a block. */
void scene_still_works(struct scene *);
struct ch_owner scene_owner(struct scene *, const char *name, void **anchor);
/* A full cycle and its sweep, by the heap's driver. */
enum ch_status scene_collect(struct scene *);
