/* SPDX-License-Identifier: MIT
 * listener.h: how an observer hears of a heap. An observer (a profiler, a statistics file) is a
 * guest: the heap knows nothing of it but the table of its calls, and works the same without it.
 * This header, and guest_look.h for what an observer sees, are all that the two know of each other
 * beside the public header.
 *
 * The words in parentheses at each call say which locks are held: heaps (no heap comes or goes), or
 * of the heap registry (no thread comes or goes) or heap (no block dies). A call may take locks
 * right of those only, and may not call the public interface. */
#ifndef CH_CODEHEAP_LISTENER_H
#define CH_CODEHEAP_LISTENER_H

#include "arch/base.h"
#include "codeheap/codeheap.h"

#include <stdatomic.h>

struct ch__thread;
struct ch__listener;

/* The release of the core. A guest is of the same one: what it shares with the core, all that is
 * marked CH_GUEST, may be another thing in each. A guest that finds another text, or in a process
 * without a core no such function, leaves everything alone. */
CH_GUEST const char *ch__listener_release(void);

/* What a listener hears; a call that is NULL is left out. */

enum { CH__LOOK_DEATHS_MOST = 64 };
struct ch__listener_calls {
	/* The thread is attached, or about to leave. Called by the thread itself. (registry) */
	void (*thread_comes)(struct ch__listener *, struct ch__thread *);
	void (*thread_leaves)(struct ch__listener *, struct ch__thread *);
	/* Handles of blocks that nobody finds any more, CH__LOOK_DEATHS_MOST at most; ch__look_name
	 * knows their names. (heap) */
	void (*blocks_die)(struct ch__listener *, const uint64_t *handles, size_t n);
	/* The heap is used (an open takes a page, a thread polls) for the first time since
	 * ch__listener_await_use. No lock is held. */
	void (*used)(struct ch__listener *);
	/* Around a fork of the process: the locks of every heap are held. The child's call comes
	 * when the memory of the heap is whole. */
	void (*fork_prepare)(struct ch__listener *);
	void (*fork_parent)(struct ch__listener *);
	void (*fork_child)(struct ch__listener *);
	/* The last call. No thread is attached, no lock is held. */
	void (*ends)(struct ch__listener *);
	/* Answers ch_sink_status(CH_SINK_STATS_FILE): whether the listener's file is on. */
	bool (*file)(struct ch__listener *, const char **path, int *failed);
};

struct ch__listener {
	const struct ch__listener_calls *calls; /* [const] */
	struct ch_heap *heap;                   /* set by ch__listener_add [const] */
	struct ch__listener *next;              /* likewise */
};

/* The heap's listener from here on, until `ends`: its memory stays as long. The last one that came
 * hears first. */
CH_GUEST void ch__listener_add(struct ch_heap *, struct ch__listener *);
#if CH_TESTING
/* The heap's listener with this table; NULL: there is none. */
struct ch__listener *ch__listener_find(const struct ch_heap *, const struct ch__listener_calls *);
#endif
/* The next use of the heap calls `used` of its listeners, once. */
CH_GUEST void ch__listener_await_use(struct ch_heap *);

/* Who hears of each heap that is made. Static memory, and stays. */
struct ch__greeter {
	/* Nobody else knows the heap yet. `stats_file` is the file that is asked for, or NULL; a
	 * greeter that serves the wish stores NULL there. The wish may_fail where it is that of the
	 * environment. Another status than CH_OK is that of ch_heap_create. (heaps) */
	enum ch_status (*begins)(struct ch_heap *, const char **stats_file, bool may_fail);
	struct ch__greeter *next;
};
CH_GUEST void ch__listener_greet(struct ch__greeter *);

/* Names of some heap wait to be written to the perf map, since commits come thick: the next call of
 * any heap writes them, but none may come. Called by who commits or polls, under no lock. One for
 * the process, until another or NULL comes. */
typedef void ch__listener_names_wait(void);
CH_GUEST void ch__listener_on_names(ch__listener_names_wait *);

#endif
