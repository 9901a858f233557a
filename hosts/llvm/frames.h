/* SPDX-License-Identifier: MIT
 * frames.h: one unwind table per range of code, made from an .eh_frame section of the compiler's.
 * The heap wants a table for the frames of a single block, unchanged until the block is free. The
 * compiler's section has the frames of a whole module and dies with the module, so each range gets
 * a copy of its own frames, in the heap. A copy may lie anywhere: all pointers are absolute. */
#pragma once

#include <codeheap/codeheap.h>

#ifdef __cplusplus
extern "C" {
#endif

enum frames_status { FRAMES_OK, FRAMES_MALFORMED, FRAMES_NO_MEMORY };

/* A range of code and its table. */
struct frames_range {
	uintptr_t low, high;
	/* malloc'ed, ended by a length of 0; NULL while no frame lies in the range */
	uint8_t *table;
	size_t bytes, room;
};

/* frames_add: add each frame of a section to the table of the frame's range. Frames of code outside
 * all ranges are passed over.
 * in    section  relocated bytes, up to `bytes` or to a length of 0
 *       address  of the section at run time; the base of relative pointers
 *       ranges   their tables may hold frames of earlier sections
 * note  frames_free also frees the tables of a failed call */
enum frames_status frames_add(const uint8_t *section, size_t bytes, uintptr_t address,
			      struct frames_range *ranges, size_t count);

/* frames_give: code.eh_frame becomes a copy of the range's table, in a committed block of read-only
 * data that the code's block has an edge to. Without a table nothing is done.
 * in    owner, flags  as the code's at its open; of flags only CH_OPEN_MAY_COLLECT
 * ret   CH_OK | a status of ch_block_open, ch_block_commit or ch_edge_attach */
enum ch_status frames_give(const struct frames_range *range, struct ch_owner owner, unsigned flags,
			   struct ch_code *code);

/* frames_free: forget the tables. */
void frames_free(struct frames_range *ranges, size_t count);

#ifdef __cplusplus
}
#endif
