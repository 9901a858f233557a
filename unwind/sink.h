/* SPDX-License-Identifier: MIT
 * sink.h: the shape of one sink, private to unwind/. A new observer is one file that defines a
 * struct ch__sink_ops and one line in the table of sinks.c. It holds no state of its own. */
#ifndef CH_UNWIND_SINK_H
#define CH_UNWIND_SINK_H

#include "os/lock.h"
#include "unwind/unwind.h"


enum { CH__FRAME_CFI_BYTES = 96, CH__FRAME_FDE_BYTES = 24 };

/* What the CIE of a frame shape says, and of a slot shape each FDE; bytes == 0 and
 * return_register == 0: the shape is not registered.
 *
 * An ordinary shape's program holds at every pc of its pages. A page of a slot shape is a row of
 * slots of one size, the first at slots_at of the page; in each that is live runs the same code,
 * code_bytes long from code_at of the slot on, with an FDE of its own: the program `fde`, whose
 * locations count from the first byte of the code. A range that is told of such a page is one whole
 * slot. */
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
};

/* Entries that a sink has no use for are NULL. `state` is what open made; it stays until destroy,
 * also while the sink is off, so that a caller that has just read it may still call. add, remove
 * and flush lock by themselves; the page entries run under the sinks lock. */
struct ch__sink_ops {
	const char *name; /* in lists of sinks */
	enum ch__sink bit;
	/* Its records have a time: ranges are removed before close, and told again in a child of
	 * fork, whose file begins empty. */
	bool knows_time;
	/* 0 or errno; *state is NULL the first time and the old state when the sink was on
	 * before. */
	int (*open)(const struct ch__sinks_config *, const struct ch__frame_shape *, void **state);
	void (*close)(void *state);
	void (*destroy)(void *state);
	/* False: the sink has failed and hears nothing more; status tells why. */
	bool (*add)(void *state, const struct ch__sink_range *, size_t n, bool may_be_known);
	bool (*remove)(void *state, const struct ch__sink_range *, size_t n);
	bool (*flush)(void *state, enum ch__flush how);
	/* The process is about to die: show what there is. In a signal handler: tries locks for a
	 * short while, allocates nothing but mappings. */
	void (*fatal)(void *state);
	int (*status)(void *state);
	const char *(*path)(void *state); /* of its file, "" while it writes none */
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
	/* What the sink has of the process, not of a heap. */
	void (*fork_prepare)(void);
	void (*fork_parent)(void);
	void (*fork_child)(void);
};

extern const struct ch__sink_ops ch__sink_libgcc, ch__sink_perfmap, ch__sink_gdb;
extern const struct ch__sink_ops ch__sink_jitdump;
extern const struct ch__sink_ops ch__sink_libunwind;

/* --- sinks.c --- */
/* NULL while the sink is off; it stays until the sinks are destroyed. */
const void *ch__sinks_state(const struct ch__sinks *, enum ch__sink);
bool ch__sinks_have(const struct ch__sinks *, uintptr_t pc); /* in the pool or the runtime page */

/* --- sink_libunwind.c --- */
struct ch__nongnu;
const struct ch__nongnu *ch__sink_libunwind_its(const void *state);

/* --- libunwind_own.c: the part of the libunwind sink that serves tables of blocks --- */
struct ch__libunwind_owns {
	const struct ch__nongnu *its;
	struct ch__meta *meta;
	struct ch__libunwind_own *all, *free;
};
void ch__libunwind_own_live(struct ch__libunwind_owns *, struct ch__own *);
void ch__libunwind_own_dead(struct ch__libunwind_owns *, struct ch__own *);
void ch__libunwind_own_destroy(struct ch__libunwind_owns *); /* all are dead */

/* --- eh_frame.c: a section of one CIE a shape, one FDE a page, and a last sentinel --- */
enum { CH__CIE_BYTES = 128 };
void ch__eh_frame_cie(uint8_t *cie, const struct ch__frame_shape *); /* into zeroed bytes */
size_t ch__eh_frame_bytes(uint32_t pages);
/* All FDEs dead, all with the CIE of shape 0. */
void ch__eh_frame_write(uint8_t *section, uintptr_t exec, uint32_t pages, size_t page_bytes,
			const struct ch__frame_shape *shapes);
void ch__eh_frame_shape(uint8_t *section, uint8_t frame, const struct ch__frame_shape *);
/* The page is dead before; page_bytes is the one given to write. */
void ch__eh_frame_live(uint8_t *section, uint32_t page, size_t page_bytes, uint8_t frame);
bool ch__eh_frame_is_live(uint8_t *section, uint32_t page);
void ch__eh_frame_dead(uint8_t *section, uint32_t page);
uint8_t *ch__eh_frame_fde(uint8_t *section, uint32_t page);

/* --- eh_slots.c: a section of one CIE a slot shape, one FDE a slot, and a last sentinel --- */
struct ch__eh_slots { /* where it covers what */
	uintptr_t exec;
	size_t page_bytes;
	uint32_t pages;
	uint16_t slots_at, slot_bytes, code_at;
};
uint32_t ch__eh_slots_in_page(const struct ch__eh_slots *);
size_t ch__eh_slots_bytes(const struct ch__eh_slots *);
/* All FDEs dead; shapes: the first slot shape's. */
void ch__eh_slots_write(uint8_t *section, const struct ch__eh_slots *,
			const struct ch__frame_shape *shapes);
void ch__eh_slots_shape(uint8_t *section, unsigned which, const struct ch__frame_shape *shape);
/* The slots of a page are of this slot shape from here on; all are dead, or of it already. */
void ch__eh_slots_page(uint8_t *section, const struct ch__eh_slots *s, uint32_t page,
		       unsigned which, const struct ch__frame_shape *shape);
uint8_t *ch__eh_slots_fde(uint8_t *section, uint32_t index);
/* The slot that begins at exec; its page's are counted before it. */
uint32_t ch__eh_slots_index(const struct ch__eh_slots *, uintptr_t exec);
bool ch__eh_slots_is_live(uint8_t *section, uint32_t index);
void ch__eh_slots_live(uint8_t *section, uint32_t index, const struct ch__frame_shape *);
void ch__eh_slots_dead(uint8_t *section, uint32_t index);

/* --- libgcc_slots.c: the part of the libgcc sink that serves slot shapes --- */
struct ch__libgcc_slots;
struct ch__libgcc_slots *ch__libgcc_slots_create(const struct ch__sinks_config *,
						 const struct ch__frame_shape *shapes);
void ch__libgcc_slots_destroy(struct ch__libgcc_slots *);
bool ch__libgcc_slots_page(struct ch__libgcc_slots *, uint32_t page, uint8_t frame);
void ch__libgcc_slots_live(struct ch__libgcc_slots *, uintptr_t exec, uint8_t frame);
void ch__libgcc_slots_dead(struct ch__libgcc_slots *, uintptr_t exec);
bool ch__libgcc_slots_is_live(struct ch__libgcc_slots *, uintptr_t exec);
void ch__libgcc_slots_shape(struct ch__libgcc_slots *, uint8_t frame);
void ch__libgcc_slots_close(struct ch__libgcc_slots *); /* all dead */
void ch__libgcc_slots_chunk_gone(struct ch__libgcc_slots *, uint32_t chunk);

/* --- template_cfi.c: what the linked image says of a template's frame --- */
/* Fills what the CIE and the FDE of the template say, and code_bytes. 0 or errno: ENOENT the
 * process has no table for it; ENOTSUP it has one, but in a form that cannot be copied. */
int ch__template_cfi(const struct ch__arch_template *, struct ch__frame_shape *);

/* The lock of a sink's file, or of what is the process's besides: the last that is taken. */
static inline void ch__file_lock(struct ch__lock *lock, enum ch__rank rank)
	CH_ACQUIRES(ch__role_file) CH_EXCLUDES(CH__RIGHT_OF_FILE)
	CH_UNANALYSED("it makes the role")
{
	ch__lock_take(lock, rank);
}
static inline bool ch__file_try_lock(struct ch__lock *lock, enum ch__rank rank)
	CH_TRY_ACQUIRES(true, ch__role_file) CH_UNANALYSED("it makes the role")
{
	return ch__lock_try(lock, rank);
}
static inline void ch__file_unlock(struct ch__lock *lock, enum ch__rank rank)
	CH_RELEASES(ch__role_file) CH_UNANALYSED("it makes the role")
{
	ch__lock_release(lock, rank);
}

#endif
