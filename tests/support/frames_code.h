/* SPDX-License-Identifier: MIT
 * frames_code.h: code of the architecture that calls its first argument from frames of several
 * kinds, for tests of unwinding, and the trap of a debugger. Each frames_code_<arch>.h has the same
 * names; mk/hosts.mk names the header. A program includes it once, with _GNU_SOURCE.
 *
 * code_framed has the frame of the default shape. code_frameless has a shape of its own, given by
 * code_frameless_cfi; there the register of frame pointers is 0. The calls return at the bytes
 * CODE_..._RETURNS_AT. */
#pragma once

#include <stdint.h>
#include <ucontext.h>

#include CH_TEST_FRAMES

typedef void callee(void);

/* As compiled without frame pointers: the register of frame pointers has any value. */
void without_frame_pointer(callee *);
/* The frame record of the callee leads to `fp`. */
void with_frame_pointer(const void *fp, callee *);
