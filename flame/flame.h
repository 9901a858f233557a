/* SPDX-License-Identifier: MIT
 * flame.h: weighted call stacks as a tree, written as folded stacks or as one SVG picture that any
 * viewer shows and a browser makes live. It knows neither heaps nor samples: the profiler and
 * callgrind-names fill it.
 *
 * One thread at a time uses a tree; no call of it is for signal handlers. What memory does not
 * suffice for returns 0 or false, and the tree is as it was. */
#ifndef CH_FLAME_FLAME_H
#define CH_FLAME_FLAME_H

#include "os/meta.h"

struct ch__flame;

/* What a frame is; each kind has a colour, and a class that programs can read. */
enum ch__flame_kind {
	CH__FLAME_NATIVE,
	CH__FLAME_INTERPRETER, /* native code that runs a VM's program */
	CH__FLAME_CODE,        /* hot bytes of a block */
	CH__FLAME_COLD,        /* its cold bytes, and stubs */
	CH__FLAME_TRAMPOLINE,
	CH__FLAME_OTHER, /* [dropped], [cut], what nobody knows */
	CH__FLAME_KINDS,
};

/* NULL: no memory. All that the tree has is of the side memory, and goes with it. */
struct ch__flame *ch__flame_create(struct ch__meta *);

/* The frame of this name and kind that the parent called, made if there is none; node 0 is the
 * root, which is no frame. The name is copied and may be of any bytes; "" is "[unknown]". 0: no
 * memory, or no such parent. */
uint32_t ch__flame_child(struct ch__flame *, uint32_t parent, const char *name,
			 enum ch__flame_kind);
/* Adds what ended in this very frame, not in one that it called. Of the root: a stack without
 * frames, which is shown as "[unknown]". Sums stay at 2^64 - 1. */
void ch__flame_weigh(struct ch__flame *, uint32_t node, uint64_t weight);

/* Takes a piece of the text; false ends the writing, which returns false then. */
typedef bool ch__flame_write(void *arg, const char *text, size_t bytes);

/* Lines `outer;inner WEIGHT`, sorted by frames, one for each stack; reversed: `inner;outer`. In
 * names a `;` is written `:`, control characters and invalid UTF-8 as in the picture. */
bool ch__flame_write_folded(struct ch__flame *, bool is_reversed, ch__flame_write *, void *arg);

struct ch__flame_view {
	const char *title;    /* NULL: none */
	const char *subtitle; /* NULL: none; what the caller tells about the numbers, a line */
	const char *unit;     /* "samples", "Ir" */
	bool is_icicle;       /* the root is on top */
	bool is_reversed; /* stacks begin at the frame where they ended: its callers grow from it */
};
bool ch__flame_write_svg(struct ch__flame *, const struct ch__flame_view *, ch__flame_write *,
			 void *arg);

#endif
