/* SPDX-License-Identifier: MIT
 * sink.h: the shape of one sink, who hears of code: an unwinder (unwind/) or a tool (sinks/). Sinks
 * know address ranges and opaque 64-bit keys, never blocks; names come through a function that
 * codeheap/ sets. A new sink is one file that defines a struct ch__sink_ops and one line in the
 * table of sinks/sinks.c. It holds no state of its own. */
#ifndef CH_UNWIND_SINK_H
#define CH_UNWIND_SINK_H

#include "arch/arch.h"
#include "arch/stubs.h"
#include "os/lock.h"
#include "os/meta.h"
#include "os/os.h"

#include <stdatomic.h>

/* Frame numbers: ordinary shapes, first those that each heap has, as in the public header, then the
 * slot shapes. */
enum {
	CH__FRAME_POINTER,
	CH__FRAME_KEEPS_ALL,
	CH__FRAME_LEAF,
	CH__FRAME_STEPS,
	CH__FRAMES_FIXED,
	CH__FRAME_SHAPES = 16,
	CH__FRAME_SLOTS = CH__FRAME_SHAPES, /* plus enum ch__template */
	CH__FRAMES = CH__FRAME_SLOTS + CH__TEMPLATES
};
static inline bool ch__frame_has_slots(uint8_t frame)
{
	return frame >= CH__FRAME_SLOTS && frame < CH__FRAMES;
}

enum ch__sink { /* bits, as in the public header */
		CH__SINK_UNWIND = 1,
		CH__SINK_PERF_MAP = 2,
		CH__SINK_JITDUMP = 4,
		CH__SINK_GDB = 8,
		CH__SINK_LIBUNWIND = 16,
		CH__SINKS_ALL = 31
};

struct ch__sink_range {
	uintptr_t exec;
	size_t bytes;
	uint64_t key;
	bool is_cold; /* the second range of its key */
};

/* From exec to the next line's exec, code comes from this line of the file; 0: from none. */
struct ch__sink_line {
	uintptr_t exec;
	uint32_t line;
};

struct ch__sinks_config {
	uintptr_t pool_exec;
	size_t pool_bytes, page_bytes, chunk_bytes; /* a chunk is the pool at most */
	uintptr_t runtime_exec; /* the runtime page: trampoline and veneers */
	size_t runtime_bytes;
	size_t head_bytes; /* before each range, that are no code, and no other range has */
	struct ch__meta *meta;
	/* By page: the frame shape of its code, + 1; 0: the page is dead, or its code has unwind
	 * tables of its own. The table of sinks sets it. A page keeps its shape while a range of it
	 * is told: so relaxed. */
	const _Atomic(uint8_t) *frames;
	void *context;
	/* Writes the name of a key, without newline; returns its length, 0 for none. Asked under
	 * the file lock, from the add of a range until its remove returns; takes no lock. */
	size_t (*name)(void *context, uint64_t key, char *out, size_t out_bytes);
	/* Source lines of a key, rising by address: writes at most max, returns how many there
	 * are; 0: none, and *file is not written. Asked when name may be. */
	size_t (*lines)(void *context, uint64_t key, const char **file, struct ch__sink_line *out,
			size_t max);
	/* Perf map: the lines of removed ranges stay; the caller does not use their addresses again
	 * before a flush IN_NEED. */
	bool keeps_dead_names;
	const char *jitdump_dir; /* NULL = JITDUMPDIR or the default */
	/* Calls visit for every range that is published: for a sink that is turned on late, by
	 * ch__sinks_set, and for one that knows time when it is turned off or destroyed, and in a
	 * child of fork. No lock of this room is held, save the sinks lock in the child. It may
	 * take those of its caller's order. */
	void (*each)(void *context, void (*visit)(void *arg, const struct ch__sink_range *),
		     void *arg);
};

/* What libgcc keeps of a section, in our memory: six or seven words up to GCC 14. */
enum { CH__OBJECT_WORDS = 16 };

/* The unwind table of one block: a whole .eh_frame section of the VM's, told beside the pages'.
 * Its code lies in chunks of which no page is ever live. */
struct ch__own {
	struct ch__own *next, *prev; /* [sinks] live ones */
	const uint8_t *section;      /* [sinks] NULL while dead */
	uintptr_t object[CH__OBJECT_WORDS];  /* libgcc's: telling cannot fail */
	struct ch__nongnu_object *libunwind; /* what libunwind has; NULL: it was not told */
};

/* BUFFERED: what is buffered is written. COLLECTION: many dead names are worth a rewrite. EXACT: no
 * dead name is left but those that are kept. IN_NEED: nor those. */
enum ch__flush { CH__FLUSH_BUFFERED, CH__FLUSH_COLLECTION, CH__FLUSH_EXACT, CH__FLUSH_IN_NEED };

enum { CH__FRAME_CFI_BYTES = 96, CH__FRAME_FDE_BYTES = 24 };

/* What the CIE of a frame shape says, and of a slot shape each FDE; bytes == 0 and
 * return_register == 0: the shape is not registered.
 *
 * An ordinary shape's program holds at every pc of its pages. A page of a slot shape is a row of
 * slots of one size, the first at slots_at of the page; in each that is live runs the same code,
 * code_bytes long from code_at of the slot on, with an FDE of its own: the program `fde`, whose
 * locations count from the first byte of the code. A range that is told of such a page is one whole
 * slot from its code on.
 *
 * Of the shape of steps the program is that of code which is at its call; what unwinders are told
 * is in `steps` (steps.h), which also has what a block's own FDE says. NULL: nobody has used it. */
struct ch__steps;
struct ch__frame_shape {
	uint8_t cfi[CH__FRAME_CFI_BYTES];
	uint8_t bytes, return_register;
	uint8_t code_align;
	int8_t data_align;
	uint16_t slot_bytes; /* 0: an ordinary shape, and the rest is 0 too */
	uint16_t slots_at;
	uint8_t code_at, code_bytes;
	uint8_t fde_bytes;
	uint8_t fde[CH__FRAME_FDE_BYTES]; /* behind fde_bytes: 0, DW_CFA_nop */
	const struct ch__steps *steps;
};

/* Entries that a sink has no use for are NULL. `state` is what open made; it stays until destroy,
 * also while the sink is off, so that a caller that has just read it may still call. Of a tool
 * open, close, add, remove, flush, catch_up and fork_child are called under its lock, and those
 * that have a state while it is on, save open. Pages, shapes and tables of blocks are told under
 * the sinks lock. */
struct ch__sink_ops {
	const char *name; /* in lists of sinks */
	enum ch__sink bit;
	/* Its records have a time: ranges are removed before close, and told again in a child of
	 * fork, whose file begins empty. */
	bool knows_time;
	struct ch__tool *tool; /* sinks/tools.h; NULL: it is an unwinder */
	/* 0 or errno; *state is NULL the first time and the old state when the sink was on
	 * before. */
	int (*open)(const struct ch__sinks_config *, const struct ch__frame_shape *, void **state);
	void (*close)(void *state);
	void (*destroy)(void *state); /* it is closed; of an unwinder */
	/* False: the sink has failed and hears nothing more; its state has the errno. */
	bool (*add)(void *state, const struct ch__sink_range *, size_t n, bool may_be_known);
	bool (*remove)(void *state, const struct ch__sink_range *, size_t n);
	bool (*flush)(void *state, enum ch__flush how);
	/* Writes what all heaps told and is buffered, unless that would take too much of the time:
	 * false, it waits. */
	bool (*catch_up)(void);
	/* The process is about to die: show what there is. In a signal handler: tries locks for a
	 * short while, allocates nothing but mappings. */
	void (*fatal)(void *state);
	bool (*page_live)(void *state, uint32_t page, uint32_t pages, uint8_t frame);
	void (*page_dead)(void *state, uint32_t page, uint32_t pages);
	/* The slot that begins at exec, of a live page; under no lock of this room. */
	void (*slot_live)(void *state, uintptr_t exec, uint8_t frame);
	void (*slot_dead)(void *state, uintptr_t exec);
	bool (*slot_is_live)(void *state, uintptr_t exec);
	void (*chunk_gone)(void *state, uint32_t chunk);
	void (*shape_added)(void *state, uint8_t frame);
	void (*own_live)(void *state, struct ch__own *); /* its section is set */
	void (*own_dead)(void *state, struct ch__own *);
	/* What the sink has of the process, not of a heap, beside a tool's lock. */
	void (*fork_prepare)(void);
	void (*fork_parent)(void);
	void (*fork_child)(void);
};

#endif
