/* SPDX-License-Identifier: MIT
 * codeheap_ffi_frame.h: how an unwinder passes libffi's code, which jumps and has no frame of its
 * own: at each instruction the caller's frame is as it was at the call. DWARF call-frame
 * instructions, one file an architecture: codeheap_ffi_ARCH.c. */
#ifndef CODEHEAP_FFI_FRAME_H
#define CODEHEAP_FFI_FRAME_H

#include <stddef.h>
#include <stdint.h>

extern const uint8_t ch_ffi_frame[];
extern const size_t ch_ffi_frame_bytes;

#endif
