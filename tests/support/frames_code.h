/* SPDX-License-Identifier: MIT
 * frames_code.h: code of the architecture that calls its first argument from a frame of one kind or
 * another, for tests of unwinding, and the trap that a debugger writes. Each frames_code_<arch>.h
 * has the same names; mk/hosts.mk names the one. One program includes it once, with _GNU_SOURCE.
 *
 * code_framed has the frame of the default shape. code_frameless has a shape of its own, which
 * code_frameless_cfi says; the register of frame pointers is 0 there. Their calls return at the
 * bytes CODE_..._RETURNS_AT. */
#ifndef CH_TESTS_FRAMES_CODE_H
#define CH_TESTS_FRAMES_CODE_H

#include <stdint.h>
#include <ucontext.h>

#include CH_TEST_FRAMES

typedef void callee(void);

/* As a compiler writes it without frame pointers: their register is one like any other. */
void without_frame_pointer(callee *);
/* Its callee's frame record leads to `fp`. */
void with_frame_pointer(const void *fp, callee *);

#endif
