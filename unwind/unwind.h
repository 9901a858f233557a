/* SPDX-License-Identifier: MIT
 * unwind.h: what the outside world is told about code. Sinks know address ranges and opaque 64-bit
 * keys, never blocks; names come through a function that codeheap/ sets. Lock: the sinks lock,
 * inside; never taken in a stopped world. */
#ifndef CH_UNWIND_UNWIND_H
#define CH_UNWIND_UNWIND_H

#include "arch/arch.h"
#include "os/meta.h"
#include "os/os.h"

struct ch__sinks;

/* Frame numbers: ordinary shapes, the frame pointer's first, then the slot shapes. */
enum {
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
	size_t pool_bytes, page_bytes, chunk_bytes;
	uintptr_t runtime_exec; /* the runtime page: trampoline and veneers */
	size_t runtime_bytes;
	size_t head_bytes; /* at the start of a range, that are no code */
	struct ch__meta *meta;
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

/* 0 or errno. `wanted` is a set of ch__sink bits. */
int ch__sinks_create(const struct ch__sinks_config *, unsigned wanted, struct ch__sinks **)
	CH_EXCLUDES(CH__STANDING);
void ch__sinks_destroy(struct ch__sinks *) CH_EXCLUDES(CH__STANDING);
/* Parses a list such as "unwind,perfmap" ("none" = 0); false on an unknown name. */
bool ch__sinks_parse(const char *list, unsigned *wanted);
/* The inverse; bytes is at least 96. */
void ch__sinks_print(unsigned on, char *list, size_t bytes);
unsigned ch__sinks_on(const struct ch__sinks *);
/* 0 or errno; pages and ranges that are live are told to a new sink. Calls do not overlap, and no
 * range is removed meanwhile; ranges may be added. A sink that is turned off leaves its file; its
 * pages are dead to unwinders. */
int ch__sinks_set(struct ch__sinks *, unsigned wanted) CH_EXCLUDES(CH__STANDING);
/* 0, or the errno that switched it off */
int ch__sinks_status(struct ch__sinks *, enum ch__sink)
	CH_EXCLUDES(CH__STANDING);
const char *ch__sinks_path(const struct ch__sinks *, enum ch__sink); /* of its file, or "" */
unsigned ch__sinks_known(void); /* bits of the sinks that this build has */

/* A page holds code of the frame shape (0 = frame pointer) from now on / no more. Registers the
 * chunk's object on first use. One aligned store each after that; page_live comes before
 * reachability, page_dead after poison. page_live: false = no memory for its unwind data, and the
 * page stays dead. A page may be taken for another shape before it was told dead: it is, first. */
bool ch__sinks_page_live(struct ch__sinks *, uint32_t page, uint32_t pages, uint8_t frame)
	CH_EXCLUDES(CH__STANDING);
void ch__sinks_page_dead(struct ch__sinks *, uint32_t page, uint32_t pages)
	CH_EXCLUDES(CH__STANDING);
/* The frame number CH__FRAME_SLOTS + kind becomes a slot shape whose slots are copies of the
 * template, code_at bytes into a slot; the first lies at slots_at of a page. All slot shapes have
 * the same places. 0, also when it is one already; ENOENT or ENOTSUP: the process has no table for
 * the template, or one that cannot be copied. */
int ch__sinks_slots_register(struct ch__sinks *, enum ch__template kind, uint16_t slots_at,
			     uint16_t slot_bytes, uint8_t code_at);
/* A slot of a live page holds code from now on / no more: before it is reachable, after it is
 * poisoned. No lock of this room is taken; calls do not overlap with ch__sinks_set. */
void ch__sinks_slot_live(struct ch__sinks *, uintptr_t exec, uint8_t frame)
	CH_EXCLUDES(CH__STANDING);
void ch__sinks_slot_dead(struct ch__sinks *, uintptr_t exec) CH_EXCLUDES(CH__STANDING);
bool ch__sinks_slot_is_live(struct ch__sinks *, uintptr_t exec); /* to the unwinder, which is on */
/* Before its memory goes back to the OS, or another zone takes it: its pages are dead. */
void ch__sinks_chunk_gone(struct ch__sinks *, uint32_t chunk) CH_EXCLUDES(CH__STANDING);

/* The unwind table of one block: a whole .eh_frame section of the VM's, told beside the pages'.
 * Its code lies in chunks of which no page is ever live. */
struct ch__own {
	struct ch__own *next, *prev; /* [sinks] live ones */
	const uint8_t *section;      /* [sinks] NULL while dead */
	uintptr_t object[16];        /* what an unwinder keeps of it: telling cannot fail */
	struct ch__libunwind_own *libunwind; /* what libunwind keeps; NULL: it was not told */
};
/* Whether unwinders may be given the section, which is 0-terminated: every record is well-formed,
 * every FDE lies in [low, high), at least one covers something. */
bool ch__eh_frame_is_sound(const void *section, uintptr_t low, uintptr_t high);
/* An FDE and what it takes from its CIE: version, letters, alignments and return register as they
 * stand there, and the programs. data_bytes: of the FDE's own augmentation. */
struct ch__eh_frame_fde {
	const uint8_t *record;
	uint64_t low, bytes;
	const char *letters;
	const uint8_t *facts, *initial, *program;
	uint32_t facts_bytes, initial_bytes, data_bytes, program_bytes;
	uint8_t version;
	bool has_data;
};
/* The FDE that an unwinder found in the linked image; false: in a form that is not judged. */
bool ch__eh_frame_of_image(const uint8_t *record, struct ch__eh_frame_fde *);
/* The next FDE of a sound section from *at on, 0 the first time; false: there is none. */
bool ch__eh_frame_next(const uint8_t *section, size_t *at, struct ch__eh_frame_fde *);
/* dead; NULL: no memory */
struct ch__own *ch__sinks_own_create(struct ch__sinks *)
	CH_EXCLUDES(CH__STANDING);
/* Before its code is reachable; the section stays as it is until own_dead. */
void ch__sinks_own_live(struct ch__sinks *, struct ch__own *, const void *section)
	CH_EXCLUDES(CH__STANDING);
/* Nothing of its code is on a stack. One that is dead stays so. */
void ch__sinks_own_dead(struct ch__sinks *, struct ch__own *) CH_EXCLUDES(CH__STANDING);
/* dead first; NULL is nothing */
void ch__sinks_own_destroy(struct ch__sinks *, struct ch__own *)
	CH_EXCLUDES(CH__STANDING);

/* Ranges of the pool. One that overlaps a removed one is told after the remove; flush makes files
 * agree. */
void ch__sinks_add(struct ch__sinks *, const struct ch__sink_range *, size_t n)
	CH_EXCLUDES(CH__STANDING);
void ch__sinks_remove(struct ch__sinks *, const struct ch__sink_range *, size_t n)
	CH_EXCLUDES(CH__STANDING);
/* BUFFERED: what is buffered is written. COLLECTION: many dead names are worth a rewrite. EXACT: no
 * dead name is left but those that are kept. IN_NEED: nor those. */
enum ch__flush { CH__FLUSH_BUFFERED, CH__FLUSH_COLLECTION, CH__FLUSH_EXACT, CH__FLUSH_IN_NEED };
void ch__sinks_flush(struct ch__sinks *, enum ch__flush) CH_EXCLUDES(CH__STANDING);
/* In the handler of a signal that ends the process: whoever reads the core finds what is live. */
void ch__sinks_fatal(struct ch__sinks *);
static inline bool ch__sinks_want_ranges(unsigned on)
{
	return (on & ~(unsigned)(CH__SINK_UNWIND | CH__SINK_LIBUNWIND)) != 0;
}

/* takes the sinks lock */
void ch__sinks_fork_prepare(struct ch__sinks *)
	CH_ACQUIRES(ch__role_sinks);
void ch__sinks_fork_parent(struct ch__sinks *) CH_RELEASES(ch__role_sinks);
/* the pool is the child's */
void ch__sinks_fork_child(struct ch__sinks *, bool has_code)
	CH_RELEASES(ch__role_sinks);
/* The file lock and the files are the process's: prepare comes once, after every heap's, because
 * threads that hold a heap's locks may wait for it; parent and child once, before any heap's. The
 * child's files are opened under its pid and name every live range, so names are asked for
 * there. */
void ch__sinks_fork_files_prepare(void);
void ch__sinks_fork_files_parent(void);
void ch__sinks_fork_files_child(void);

/* A custom frame shape: CFI instructions of a CIE (initial) used for every block of the shape.
 * Shape 0 is the frame pointer's. Returns the shape's number (1..15), or 0 when there is no
 * room. */
uint8_t ch__sinks_frame_register(struct ch__sinks *, const uint8_t *cfi, size_t bytes,
				 uint8_t return_register);

/* Frame-pointer walk (signal-safe): out[0] = pc unless that is 0, then return addresses, innermost
 * first, while records lie in [low, high). Returns how many words it wrote. */
size_t ch__walk(uintptr_t pc, uintptr_t fp, uintptr_t low, uintptr_t high, uintptr_t *out,
		size_t max);
/* The same by the tables of the process's unwinder (walk_tables.c; not signal-safe), of the calling
 * thread; where they end in code of the heap, frame pointers go on in [low, high). First comes the
 * frame of the ucontext, or without one the frame that goes on at `first`. Returns 0 when the
 * unwinder does not get there. */
size_t ch__walk_tables(const struct ch__sinks *, void *ucontext, uintptr_t first, uintptr_t low,
		       uintptr_t high, uintptr_t *out, size_t max);

#endif
