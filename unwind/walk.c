/* SPDX-License-Identifier: MIT
 * walk.c: the frame-pointer walk. Only words inside the given stack are read, no lock is taken, and
 * only the architecture's frame step and strip are called: so the walk may run in a signal handler,
 * on the interrupted thread's registers. A wrong frame pointer that looks right is not noticed: the
 * walk then yields words of the stack and ends.
 *
 * The walk ends at a record that is not aligned or not whole in the stack, or not above the record
 * before: so at a saved frame pointer of 0, which an outermost frame has. The walk ends at a return
 * address of 0 or 1, by which runtimes mark outermost frames. Small numbers above 1 are handed out:
 * the reader looks up whether there is code. */
#include "unwind/unwind.h"

#include "arch/registers.h"

/* A record holds the caller's frame pointer and the return address. */
enum { RECORD_BYTES = 16, LAST_MARK = 1 };

static bool is_record(uintptr_t fp, uintptr_t low, uintptr_t high)
{
	uintptr_t at = fp + (uintptr_t)(intptr_t)CH_ARCH_RECORD_AT;
	if (fp % sizeof(uintptr_t) != 0)
		return false;
	return at >= low && at < high && high - at >= RECORD_BYTES;
}

/* Records rise strictly, so the walk ends within the stack even if its words make a ring. */
size_t ch__walk(uintptr_t pc, uintptr_t fp, uintptr_t low, uintptr_t high, uintptr_t *out,
		size_t max)
{
	size_t n = 0;
	if (pc && n < max)
		out[n++] = pc;
	while (n < max && is_record(fp, low, high)) {
		uintptr_t caller_fp, return_address;
		ch__arch_frame_step(fp, &caller_fp, &return_address);
		return_address = ch__arch_strip(return_address);
		if (return_address <= LAST_MARK)
			break;
		out[n++] = return_address;
		if (caller_fp <= fp)
			break;
		fp = caller_fp;
	}
	return n;
}
