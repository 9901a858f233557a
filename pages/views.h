/* SPDX-License-Identifier: MIT
 * views.h: the two views of a pool's memory, by each backend; for the files of pages/ only. */
#ifndef CH_PAGES_VIEWS_H
#define CH_PAGES_VIEWS_H

#include "os/lock.h"
#include "pages/pool.h"

struct ch__views {
	enum ch__backend backend; /* not AUTO */
	struct ch__os_held file;  /* MEMFD: the memory, open for the life of the views; PROCMEM: the
				   * process's memory; else none */
	uint8_t *exec, *write;    /* offset 0 of the RX and of the RW view; of private memory, write
				   * is a copy */
	_Atomic(uint32_t) *is_own; /* PROCMEM: file leads to the process, not to a parent */
	_Atomic(uint32_t) *exchanges; /* PROCMEM: odd while a page is exchanged; wiped in a child */
	struct ch__lock *opening;  /* PROCMEM: held while file is opened, nobody waits for it; free
				    * in a child: wiped */
	size_t bytes;             /* of the memory */
	size_t runtime_bytes;     /* committed first, never given back: revives other ranges */
	size_t guard_bytes;       /* without access, on both sides of both views */
	bool has_exec, has_write; /* the address ranges are reserved */
	bool is_part_inherited;   /* a child of fork has some of the ranges all the same */
	bool has_large_pages;     /* asked for, so that a fork copies fewer entries */
	uint8_t sync_steps;       /* set of enum ch__sync_step */
	bool has_code; /* the ranges hold the memory: false in the child of a fork without copy */
};

/* Whether the code is private memory, with a copy of the code at write. */
static inline bool ch__views_are_private(const struct ch__views *v)
{
	return v->backend == CH__BACKEND_PROCMEM;
}
/* The end of the one write path. Returns false with errno when execution does not follow. */
bool ch__views_sync(struct ch__views *, const uint8_t *exec, size_t bytes);
/* Returns 0 or errno. The runtime page is committed and trap-filled, the rest not executable. */
int ch__views_create(struct ch__views *, const struct ch__pool_config *);
void ch__views_destroy(struct ch__views *);
/* Memory, then traps, then execute access. Returns false with errno: the range is as before. */
bool ch__views_commit(struct ch__views *, size_t offset, size_t bytes);
/* Takes access, then memory. Returns false when the system refused one of both: the write view
 * keeps its bytes, and the range may have lost access. */
bool ch__views_decommit(struct ch__views *, size_t offset, size_t bytes);

/* Gives the write view of a range without memory private copies of one chunk of traps, which take
 * memory as they are written. False: the range has some copies; ch__views_leave_room ends them. */
bool ch__views_room(struct ch__views *, size_t offset, size_t bytes, size_t chunk_bytes);
/* Commits a range with what the copies hold. Returns false with errno; all bytes are as before. */
bool ch__views_land_room(struct ch__views *, size_t offset, size_t bytes);
/* Maps the range's memory in place of the copies. False: the write view of the range may have no
 * access. */
bool ch__views_leave_room(struct ch__views *, size_t offset, size_t bytes);

/* For a child of fork: a write view of the same kind of memory and, for DUAL, an exec view. The
 * copy has memory where ch__views_populate gives some. */
bool ch__views_copy(const struct ch__views *, struct ch__views *copy);
bool ch__views_populate(const struct ch__views *, size_t offset, size_t bytes);
/* In the child, where the views are gone (DONTFORK): reserves their addresses, without access. */
bool ch__views_reserve_again(struct ch__views *);
/* Puts the copy at the views' addresses, with access everywhere. */
bool ch__views_adopt(struct ch__views *, struct ch__views *copy);
/* Makes lent pages RX again, with the bytes of the write view. Returns false with errno when the
 * system refused; some pages may have changed. */
bool ch__views_take_back(struct ch__views *, size_t offset, size_t bytes);
void ch__views_forget(struct ch__views *);  /* all access away, memory unreferenced */
bool ch__views_exclude(struct ch__views *); /* from fork, and the RW view from core dumps */

bool ch__private_map(struct ch__views *);
void ch__private_destroy(struct ch__views *);
bool ch__private_decommit(struct ch__views *, size_t offset, size_t bytes);
bool ch__private_take_back(struct ch__views *, size_t offset, size_t bytes);
/* Carries the copy to exec. Where threads run, at most 1 byte of each aligned 8 may differ. */
bool ch__private_write(struct ch__views *, size_t from, size_t to);
/* Exchanges the system's page around the offset for a page with the copy's bytes, between two
 * instructions of threads in the page. Returns false with errno; then nothing changed. */
bool ch__private_exchange(struct ch__views *, size_t offset);
/* Makes file lead to the calling process's memory; a child of fork inherits the parent's. */
bool ch__private_open(struct ch__views *);

#endif
