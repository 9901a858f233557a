/* SPDX-License-Identifier: MIT
 * views.h: the two views of a pool's memory, by each backend; seen by the files of pages/ only. */
#ifndef CH_PAGES_VIEWS_H
#define CH_PAGES_VIEWS_H

#include "os/lock.h"
#include "pages/pool.h"

struct ch__views {
	enum ch__backend backend; /* not AUTO */
	struct ch__os_held file;  /* MEMFD: the memory, open for the life of the views; PROCMEM: the
				   * process's; others: none */
	uint8_t *exec, *write;    /* offset 0 in the RX and in the RW view, a copy where the memory
				   * is private */
	_Atomic(uint32_t) *is_own; /* PROCMEM: file is of this process, not of its parent */
	_Atomic(uint32_t) *exchanges; /* PROCMEM: odd while a page is exchanged; wiped in a child */
	struct ch__lock *opening;  /* PROCMEM: around who opens file; wiped in a child, so free */
	size_t bytes;             /* of the memory */
	size_t runtime_bytes;     /* committed first, never given back: what revives other ranges */
	size_t guard_bytes;       /* without access, on both sides of both views */
	bool has_exec, has_write; /* the address ranges are ours */
	bool is_part_inherited;   /* the system refused to keep some of exec from children */
	bool has_large_pages;     /* is asked for, so that a fork copies fewer entries */
	uint8_t sync_steps;       /* set of enum ch__sync_step */
	bool has_code; /* and hold the memory: false in the child of a fork without copy */
};

/* The code is private memory, and write leads to a copy of it. */
static inline bool ch__views_are_private(const struct ch__views *v)
{
	return v->backend == CH__BACKEND_PROCMEM;
}
/* The end of the one write path; false: execution does not follow, errno. */
bool ch__views_sync(struct ch__views *, const uint8_t *exec, size_t bytes);
/* 0 or errno. The runtime page is committed and trap-filled, the rest has no execute access. */
int ch__views_create(struct ch__views *, const struct ch__pool_config *);
void ch__views_destroy(struct ch__views *);
/* Memory, then traps, then execute access; on failure as before, errno set. */
bool ch__views_commit(struct ch__views *, size_t offset, size_t bytes);
/* Access away, then memory; false: it stays mapped and holds what it held. */
bool ch__views_decommit(struct ch__views *, size_t offset, size_t bytes);

/* Memory of the same kind as the views', to be theirs in a child of fork: a write view, and of DUAL
 * an exec view. It has what ch__views_populate gives it. */
bool ch__views_copy(const struct ch__views *, struct ch__views *copy);
bool ch__views_populate(const struct ch__views *, size_t offset, size_t bytes);
/* In the child, whose views are gone (DONTFORK): take their addresses again, without access. */
bool ch__views_reserve_again(struct ch__views *);
/* Put the copy at the views' addresses, with access everywhere. */
bool ch__views_adopt(struct ch__views *, struct ch__views *copy);
/* Pages that were lent are RX again, with what the write view holds. False: as it was, or a part of
 * them is. */
bool ch__views_take_back(struct ch__views *, size_t offset, size_t bytes);
void ch__views_forget(struct ch__views *);  /* all access away, memory unreferenced */
bool ch__views_exclude(struct ch__views *); /* from fork, and the RW view from core dumps */

bool ch__private_map(struct ch__views *);
void ch__private_destroy(struct ch__views *);
bool ch__private_decommit(struct ch__views *, size_t offset, size_t bytes);
bool ch__private_take_back(struct ch__views *, size_t offset, size_t bytes);
/* Carries the copy over to where it runs. Where threads run one byte of each 8 may differ. */
bool ch__private_write(struct ch__views *, size_t from, size_t to);
/* The system's page around the offset becomes one that holds what the copy does, between two
 * instructions of those who run it. False: errno, and nothing changed. */
bool ch__private_exchange(struct ch__views *, size_t offset);
/* The file leads to this process's memory, as it does not yet in a child of fork. */
bool ch__private_open(struct ch__views *);

#endif
