/* SPDX-License-Identifier: MIT
 * listener.h: how an observer hears of a heap. An observer (a profiler, a statistics file) is a
 * guest: the heap knows only a table of the guest's functions, and works the same without a guest.
 * Beside the public headers, why.h and sized.h, heap and guest know of each other only by this
 * header and by guest_look.h, for what an observer sees.
 *
 * The words in parentheses at each function name the locks that are held: heaps (no heap comes or
 * goes), and of the heap registry (no thread comes or goes), heap (no block dies) or freeze (no
 * thread is in a region: one call at a time). The function may take locks right of the held lock
 * only, and may not call the public interface. */
#pragma once

#include "arch/base.h"
#include "codeheap/codeheap.h"

#include <stdatomic.h>

struct ch__thread;
struct ch__listener;

/* The release of the core. A guest must be of the same release: everything marked CH_GUEST may be
 * another thing in another release. A guest leaves everything alone if this text differs, or if the
 * process has no such function and so no core. */
CH_GUEST const char *ch__listener_release(void);

/* Functions of a listener, which the heap calls; NULL: left out. */

enum { CH__LOOK_DEATHS_MOST = 64 };
struct ch__listener_calls {
	/* The thread is attached, or about to leave. Called by the thread. (registry) */
	void (*thread_comes)(struct ch__listener *, struct ch__thread *);
	void (*thread_leaves)(struct ch__listener *, struct ch__thread *);
	/* Handles of at most CH__LOOK_DEATHS_MOST blocks that no lookup finds any more.
	 * ch__look_name still knows the names. (heap) */
	void (*blocks_die)(struct ch__listener *, const uint64_t *handles, size_t n);
	/* Threads were held up for `ns`, until at_ns. May neither wait nor allocate. (freeze) */
	void (*paused)(struct ch__listener *, uint64_t at_ns, uint64_t ns);
	/* The heap is used (an open takes pages, a poll or a call has work) for the first time
	 * since ch__listener_await_use. No lock is held. */
	void (*used)(struct ch__listener *);
	/* Around a fork of the process: the locks of every heap are held. The child's call comes
	 * when the memory of the heap is whole. */
	void (*fork_prepare)(struct ch__listener *);
	void (*fork_parent)(struct ch__listener *);
	void (*fork_child)(struct ch__listener *);
	/* The last call. No thread is attached. (heaps) */
	void (*ends)(struct ch__listener *);
	/* Answers ch_sink_status(CH_SINK_STATS_FILE): whether the listener's file is on. */
	bool (*file)(struct ch__listener *, const char **path, int *failed);
};

struct ch__listener {
	const struct ch__listener_calls *calls; /* [const] */
	struct ch_heap *heap;                   /* set by ch__listener_add [const] */
	struct ch__listener *next;              /* likewise */
};

/* Adds a listener, until `ends` is called: the memory must stay as long. The listener added last
 * hears first. (heaps) */
CH_GUEST void ch__listener_add(struct ch_heap *, struct ch__listener *);
/* The next use of the heap calls `used` of each listener, once. */
CH_GUEST void ch__listener_await_use(struct ch_heap *);

/* A guest that hears of each new heap. Static memory, which stays. */
struct ch__greeter {
	/* Called before any other thread knows the heap. *stats_file is the file that is asked for,
	 * or NULL; a greeter that serves the wish stores NULL. `may_fail`: the environment asks, so
	 * the wish may fail. A status other than CH_OK becomes that of ch_heap_create. (heaps) */
	enum ch_status (*begins)(struct ch_heap *, const char **stats_file, bool may_fail);
	struct ch__greeter *next;
};
CH_GUEST void ch__listener_greet(struct ch__greeter *);

/* Called by a thread that commits or polls, under no lock: names of some heap wait to be written to
 * the perf map, since commits come thick. The next call of any heap writes the names, but no call
 * may come. The process has one such function; another or NULL replaces it. */
typedef void ch__listener_names_wait(void);
CH_GUEST void ch__listener_on_names(ch__listener_names_wait *);
