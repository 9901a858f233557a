/* SPDX-License-Identifier: MIT
 * walk.c: the frame-pointer walk. It reads only words inside the given stack, takes no lock and
 * calls nothing but the architecture's frame step, so it may run in a signal handler, on the
 * interrupted thread's registers. It cannot tell a wrong frame pointer that looks right: such a
 * walk yields words of the stack and ends.
 *
 * It ends at a record that does not lie in the stack whole or is not aligned, at one that is not
 * above the one before (a saved frame pointer of 0, which an outermost frame has, is none), and at
 * a return address of 0 or 1, by which runtimes mark their outermost frames. Small numbers above
 * that are handed out: what code they are of is for the reader to look up. */
#include "unwind/unwind.h"

#include "arch/arch.h"
#include "arch/registers.h"

/* A record holds two words, caller's frame pointer and return address. */
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
