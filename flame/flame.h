/* SPDX-License-Identifier: MIT
 * flame.h: weighted call stacks as a tree, written as folded stacks or as an SVG picture. Any
 * viewer shows the picture, and a browser runs its script. The tree knows neither heaps nor
 * samples: the profiler and callgrind-names fill the tree.
 *
 * One thread at a time uses a tree, and no signal handler. Without memory a call returns 0 or
 * false, and the tree is as before. */
#pragma once

#include "os/meta.h"

struct ch__flame;

/* The kind of a frame. Each kind has a colour, and a class that programs can read. */
enum ch__flame_kind {
	CH__FLAME_NATIVE,
	CH__FLAME_INTERPRETER, /* native code that runs a VM's program */
	CH__FLAME_CODE,        /* hot bytes of a block */
	CH__FLAME_COLD,        /* cold bytes of a block, and stubs */
	CH__FLAME_TRAMPOLINE,
	CH__FLAME_OTHER, /* [dropped], [cut], unknown code */
	CH__FLAME_KINDS,
};

/* Returns NULL if there is no memory. The tree lies in the side memory, and goes with it. */
struct ch__flame *ch__flame_create(struct ch__meta *);

/* Finds or makes the child of the parent with the name and kind. Node 0 is the root, which is no
 * frame. The name is copied and may have any bytes; "" is "[unknown]". Returns 0 if there is no
 * memory. */
uint32_t ch__flame_child(struct ch__flame *, uint32_t parent, const char *name,
			 enum ch__flame_kind);
/* Adds the weight of stacks that ended in the frame itself, not in a callee. A weight of the root
 * is a stack without frames, shown as "[unknown]". Sums stop at 2^64 - 1. */
void ch__flame_weigh(struct ch__flame *, uint32_t node, uint64_t weight);

/* Takes a piece of the text. If it returns false, the writer stops and returns false. */
typedef bool ch__flame_write(void *arg, const char *text, size_t bytes);

/* Writes a line `outer;inner WEIGHT` for each stack, sorted by frames; reversed: `inner;outer`. In
 * names a `;` is written `:`, the space before a number at the end `_`, control characters and
 * invalid UTF-8 as in the picture. */
bool ch__flame_write_folded(struct ch__flame *, bool is_reversed, ch__flame_write *, void *arg);

/* Returns the code point of the character at the beginning of a text that is not empty, and its
 * bytes. A byte that begins no UTF-8 is U+FFFD, of a single byte. */
uint32_t ch__flame_decode(const char *text, size_t bytes, size_t *length);

struct ch__flame_view {
	const char *title;    /* NULL: none */
	const char *subtitle; /* NULL: none; a line about the numbers */
	const char *unit;     /* "samples", "Ir" */
	bool is_icicle;       /* the root is on top */
	bool is_reversed; /* stacks begin at the innermost frame, and callers grow from there */
};
bool ch__flame_write_svg(struct ch__flame *, const struct ch__flame_view *, ch__flame_write *,
			 void *arg);
