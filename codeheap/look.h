/* SPDX-License-Identifier: MIT
 * look.h: what tools of a VM ask a heap: the size of an owner, the sites of a block, backtraces,
 * names of addresses. Nothing here changes a heap. All else of a heap is in codeheap.h; the head of
 * codeheap.h says how functions are described. */
#ifndef CODEHEAP_LOOK_H
#define CODEHEAP_LOOK_H

#include <codeheap/codeheap.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ch_owner_facts {
	size_t size; /* in: sizeof(struct ch_owner_facts) */
	struct ch_vm *vm;
	void *user;
	bool is_released;
	const char *name; /* "" without one; valid while the owner is alive */
	struct ch_block entry;
	uint64_t blocks_now; /* dead ones too, until their place is free */
	uint64_t code_bytes_now, metadata_bytes_now;
};

/* ch_owner_info: what the heap knows of an owner.
 * out   info  info->size is set by the caller
 * ret   CH_OK | CH_E_STALE | CH_E_ARG size
 * lock  heap
 * safe  any thread
 * cost  O(blocks of the owner, and their branches) */
CH_API CH_CHECKED enum ch_status ch_owner_info(struct ch_owner owner, struct ch_owner_facts *info);

enum ch_site_kind { CH_SITE_BRANCH, CH_SITE_STUB, CH_SITE_REF, CH_SITE_PATCH_POINT };
struct ch_site {
	enum ch_site_kind kind;
	const uint8_t *at;
	const void *leads_to; /* BRANCH, PATCH_POINT: its target; NULL otherwise */
	enum ch_branch_kind branch_kind;
	bool is_linked;          /* BRANCH: linked; PATCH_POINT: diverted */
	struct ch_branch branch; /* BRANCH, STUB */
	void *user;
	uintptr_t word; /* REF: the word */
};

/* ch_block_sites: visit what is attached to a block, for disassemblers.
 * in    visit  returns false to end
 * ret   CH_OK | CH_E_STALE
 * lock  heap
 * safe  any thread
 * cost  O(what is attached to the block) */
CH_API CH_CHECKED enum ch_status
ch_block_sites(struct ch_block block, bool (*visit)(void *arg, const struct ch_site *site),
	       void *arg);

/* FRAMES: by frame pointers, safe in signal handlers; native code without frame pointers ends the
 * walk or is left out. TABLES: by nongnu libunwind when its sink is on, else by the process's
 * unwinder, through native code of all kinds; where the unwinder ends in code of the heap, frame
 * pointers go on. */
enum ch_backtrace { CH_BACKTRACE_FRAMES, CH_BACKTRACE_TABLES };

/* ch_backtrace: the return addresses of the calling thread, native ones and the heap's.
 * in    ucontext  the signal's, in a signal handler; or NULL = from the caller (by FRAMES not on an
 *                 alternate signal stack)
 * out   pcs       innermost first; a ucontext's pc comes first, and is no return address
 * ret   how many; 0 if heap is NULL or destroyed; FRAMES: 0 in a thread that is not attached, or
 *       on a stack that the heap does not know
 * lock  none of the library; TABLES: the unwinder's
 * safe  FRAMES: an attached thread, signal handlers in it. TABLES: any thread; in a handler only of
 *       a signal that cannot have interrupted an unwinder, a loader or an allocator
 * cost  FRAMES: 1 to 2 ns a frame; TABLES: 0.1 to 1 us
 * note  FRAMES ends at a record that lies outside of the stack, is not aligned, or is not above the
 *       record before; also at a saved frame pointer of 0, and at a return address of 0 or 1. The
 *       call of a return address has the byte before the address */
CH_API size_t ch_backtrace(const struct ch_heap *heap, enum ch_backtrace how, const void *ucontext,
			   const void **pcs, size_t max);

/* ch_address_name: the code at an address: "OWNER BLOCK+0x1c" from the block's first byte, as perf
 * counts, "function(int)+0x8" with C++ names as written, "object+0x1234" where no symbol is
 * exported, "[code of another heap]+0x13" by the block there, "code memory+0x40" where no block is
 * (or in a visit of another heap), "+0x7f..." where nothing is known.
 * in    heap       NULL, or destroyed: only native code and other heaps' have names
 *       is_return  the address is a return address: name the call before the address
 * out   text       0-terminated unless bytes is 0; control characters are '?'
 * ret   the length without the 0; >= bytes when the text was cut
 * lock  heap, shortly; the dynamic linker's
 * safe  any thread; not in signal handlers: there, ch_code_at, and names afterwards
 * cost  in native code O(symbols of the object) */
CH_API size_t ch_address_name(struct ch_heap *heap, const void *address, bool is_return, char *text,
			      size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
