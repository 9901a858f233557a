/* SPDX-License-Identifier: MIT
 * sink.h: the shape of a sink, which is told of code: an unwinder (unwind/) or a tool (sinks/).
 * Sinks know address ranges and opaque 64-bit keys, never blocks; names come through a function
 * that codeheap/ sets. */
#pragma once

#include "arch/stubs.h"
#include "os/locks/lock.h"
#include "os/meta.h"
#include "os/os.h"

/* Frame numbers: each heap's fixed shapes, further shapes, slot shapes. */
enum {
	CH__FRAMES_FIXED = CH_FRAME_STEPS + 1, /* enum ch_frame_shape */
	CH__FRAME_SHAPES = 16,
	CH__FRAME_SLOTS = CH__FRAME_SHAPES, /* plus enum ch_trampoline */
	CH__FRAMES = CH__FRAME_SLOTS + CH__TEMPLATES
};
static inline bool ch__frame_has_slots(uint8_t frame)
{
	return frame >= CH__FRAME_SLOTS && frame < CH__FRAMES;
}

enum { CH__SINKS_ALL = 2 * CH_SINK_LIBUNWIND - 1 }; /* each bit below is a sink's */

struct ch__sink_range {
	uintptr_t exec;
	size_t bytes;
	uint64_t key;
	bool is_cold; /* the second range of the key */
};

/* A source line begins. */
struct ch__sink_line {
	uint32_t offset; /* in the pool */
	uint32_t line;
};

struct ch__frame_shape;
struct ch__sinks_config {
	uintptr_t pool_exec;
	size_t pool_bytes, page_bytes, chunk_bytes; /* a chunk is the pool at most */
	uintptr_t runtime_exec; /* the runtime page, before the pool: trampoline and veneers */
	size_t runtime_bytes;
	size_t head_bytes; /* before each range: no code, and of no other range */
	uint16_t slot_bytes; /* a trampoline's, with its head */
	struct ch__meta *meta;
	/* By page: the frame shape of its code, + 1; 0: the page is dead, or its code has unwind
	 * tables of its own. The table of sinks sets a shape when each sink knows the page: a
	 * release, which pairs with the acquire of ch__sink_frame. */
	const _Atomic(uint8_t) *frames;
	const struct ch__frame_shape *shapes; /* the table of sinks has them */
	/* The table has both: bits of the sinks that are on, and by the number of a sink's bit the
	 * errno that switched the sink off. A tool's sink goes on under the tool's lock. */
	_Atomic(unsigned) *on;
	_Atomic(int) *errors;
	void *context;
	/* Writes the name of a key, without newline, which would end the line of a file; returns
	 * its length, below out_bytes, 0 for none. Called under the file lock, from the add of a
	 * range until its remove returns; takes no lock. */
	size_t (*name)(void *context, uint64_t key, char *out, size_t out_bytes);
	/* Returns the source lines of a key, *n of them, rising by offset; for 0 *file is not
	 * written. Called when name may be; lines and file stay as long. */
	const struct ch__sink_line *(*lines)(void *context, uint64_t key, const char **file,
					     size_t *n);
	/* Returns the .eh_frame that a key's block brought, while the unwinders know it, or NULL.
	 * Called when name may be. */
	const uint8_t *(*section)(void *context, uint64_t key);
	/* Perf map: the lines of removed ranges stay; the caller does not use the addresses again
	 * before a flush IN_NEED. */
	bool keeps_dead_names;
	const char *jitdump_dir; /* NULL = JITDUMPDIR or the default */
	/* Calls visit for every range that is published. Called for a sink that comes on; for a
	 * sink that knows time also before it goes off, at its end, and in a child of fork. No lock
	 * of this room is held, save the sinks lock in the child. May take locks of its caller's
	 * order. */
	void (*each)(void *context, void (*visit)(void *arg, const struct ch__sink_range *),
		     void *arg);
};

/* libgcc's words about a section, in memory of the library: six or seven up to GCC 14. */
enum { CH__OBJECT_WORDS = 16 };

/* An unwind table, a whole .eh_frame section: of a block, and then the VM's, for code in chunks
 * without live pages; or of pages (sections.c). */
struct ch__own {
	struct ch__own *next, *prev; /* [sinks] live ones of blocks */
	/* NULL while dead [sinks]. A tool reads it under the tool's lock, and the tool's own_dead
	 * waits for that lock. */
	_Atomic(const uint8_t *) section;
	bool is_of_pages; /* a section of the library's, whose FDEs come to life later */
	uintptr_t object[CH__OBJECT_WORDS];  /* libgcc's, so that telling cannot fail */
	struct ch__nongnu_object *libunwind; /* libunwind's; NULL: libunwind was not told */
};

/* BUFFERED: the buffer is written. COLLECTION: many dead names are worth a rewrite. EXACT: no dead
 * name is left save kept names. IN_NEED: no dead name is left. */
enum ch__flush { CH__FLUSH_BUFFERED, CH__FLUSH_COLLECTION, CH__FLUSH_EXACT, CH__FLUSH_IN_NEED };

enum { CH__FRAME_CFI_BYTES = 119, CH__FRAME_FDE_BYTES = 24 };

/* The instructions of a frame shape's CIE, and for a slot shape of each FDE. A shape of 0 bytes is
 * not registered.
 *
 * An ordinary shape's program holds at every pc of its pages. A page of a slot shape is a row of
 * slots of one size. Each slot runs the same code behind its head, with an FDE of its own: the
 * program `fde` has locations from the first byte of the code on. A range that is told of such a
 * page is a whole slot from its code on.
 *
 * For the shape of steps, `cfi` is right for code at its call. Unwinders and debuggers are told the
 * program of `steps` (steps.h). NULL: nobody has used the shape. */
struct ch__steps;
struct ch__frame_shape {
	uint8_t cfi[CH__FRAME_CFI_BYTES];
	uint8_t bytes;
	uint16_t slot_bytes; /* 0: an ordinary shape, without `fde` */
	uint8_t fde_bytes;
	uint8_t fde[CH__FRAME_FDE_BYTES]; /* behind fde_bytes: 0, DW_CFA_nop */
	const struct ch__steps *steps;
};

/* Entries are NULL when a sink has no use for them. `state` is made by open and stays until
 * destroy, also while the sink is off: a caller that has just read the state may still call. A
 * tool's open, close, add, remove, flush and fork_child are called under the tool's lock, and all
 * but open only while the tool is on. Pages, shapes and tables of blocks are told under the sinks
 * lock; an unwinder hears of those that live while it comes on. chunk_gone and destroy come for a
 * sink that is off, too. */
struct ch__sink_ops {
	const char *name; /* in lists of sinks */
	enum ch_sink bit;
	/* Records have a time, and bytes: ranges are removed before close. In a child of fork the
	 * file begins empty, and ranges are told again; without code there the sink stays off. */
	bool knows_time;
	struct ch__tool *tool; /* sinks/tools.h; NULL: an unwinder */
	/* Returns 0 or errno. *state is NULL at first, later the old state. */
	int (*open)(const struct ch__sinks_config *, void **state);
	void (*close)(void *state, int error); /* why a tool is off from then on */
	void (*destroy)(void *state); /* after close; for unwinders */
	/* A sink that fails is off from then on. is_late: a flush follows the last late range. */
	void (*add)(void *state, const struct ch__sink_range *, size_t n, bool is_late);
	void (*remove)(void *state, const struct ch__sink_range *, size_t n);
	void (*flush)(void *state, enum ch__flush how);
	/* The process is about to die: show what there is. In a signal handler: tries locks for a
	 * short while, allocates nothing but mappings. */
	void (*fatal)(void *state);
	/* Returns false without memory: then some are live, and page_dead or close follows. */
	bool (*page_live)(void *state, uint32_t page, uint32_t pages, uint8_t frame);
	void (*page_dead)(void *state, uint32_t page, uint32_t pages);
	void (*chunk_gone)(void *state, uint32_t chunk);
	/* own->section is set. Returns false when there was no memory to tell of it. */
	bool (*own_live)(void *state, struct ch__own *);
	/* own->section is NULL where it cannot be read any more, and always for a tool. */
	void (*own_dead)(void *state, struct ch__own *);
	void (*fork_child)(void); /* for what the sink has once in the process */
	/* How unwind/sections.c tells an unwinder: of each FDE, and when some have died. is_near:
	 * sections lie within 2 GiB of the code. Pages of slots are told as pages of the frame
	 * pointer: returns into a slot lead behind a call of the framed template. Otherwise slots
	 * have sections of their own. */
	void (*fde_live)(uintptr_t fde), (*fde_dead)(uintptr_t fde);
	void (*forget)(void);
	bool is_near;
};
