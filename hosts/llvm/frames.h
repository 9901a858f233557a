/* SPDX-License-Identifier: MIT
 * frames.h: one unwind table per range of code, made from an .eh_frame section of the compiler's.
 * The heap wants a table whose frames lie in one block, and which stays as it is until that block
 * is free. The compiler's section speaks of all code of its module and dies with it, so each range
 * gets a copy of what concerns it. Copies may lie anywhere: every pointer in them is absolute. */
#ifndef CODEHEAP_LLVM_FRAMES_H
#define CODEHEAP_LLVM_FRAMES_H

#include <stddef.h>
#include <stdint.h>

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

/* frames_add: add the frames of a section to the tables of the ranges that they lie in; those of
 * other code are passed over.
 * in    section  relocated bytes; they end at `bytes` or at a length of 0
 *       address  where the section is at run time; pointers in it may be relative to that
 *       ranges   their tables may hold frames of other sections already
 * note  what a failure leaves in the tables is freed by frames_free, too */
enum frames_status frames_add(const uint8_t *section, size_t bytes, uintptr_t address,
			      struct frames_range *ranges, size_t count);

/* frames_free: forget the tables. One that was handed on is set to NULL before. */
void frames_free(struct frames_range *ranges, size_t count);

#ifdef __cplusplus
}
#endif
#endif
