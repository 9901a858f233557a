/* SPDX-License-Identifier: MIT
 * codeheap_ffi_x86_64.c: the frame of libffi's closure code: endbr64, lea, jmp. */
#include "codeheap_ffi_frame.h"

const uint8_t ch_ffi_frame[] = {
	0x0c,      7, 8, /* DW_CFA_def_cfa rsp + 8 */
	0x80 | 16, 1,    /* return address at cfa - 8 */
};
const size_t ch_ffi_frame_bytes = sizeof ch_ffi_frame;
