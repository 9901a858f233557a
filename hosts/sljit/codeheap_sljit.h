/* SPDX-License-Identifier: MIT
 * codeheap_sljit.h: the executable allocator of sljit on a code heap. A build of sljit, or PCRE2,
 * starts with this file: -include codeheap_sljit.h. One file of the program defines `struct ch_heap
 * *codeheap_sljit_heap` and sets the heap before the first code is made. */
#ifndef CODEHEAP_SLJIT_H
#define CODEHEAP_SLJIT_H

#include <codeheap/codeheap.h>
#include <codeheap/look.h>

/* Code is written at one address and runs at another, at a distance of its own. */
#define SLJIT_EXECUTABLE_ALLOCATOR 0
#define SLJIT_PROT_EXECUTABLE_ALLOCATOR 1
#define SLJIT_WX_EXECUTABLE_ALLOCATOR 0
#define SLJIT_MALLOC_EXEC(bytes, data) codeheap_sljit_open(bytes, data)
#define SLJIT_FREE_EXEC(exec, data) codeheap_sljit_free(exec)
#define SLJIT_EXEC_OFFSET(ptr) \
	((intptr_t)codeheap_sljit_code.exec - (intptr_t)codeheap_sljit_code.write)
#define SLJIT_UPDATE_WX_FLAGS(from, to, may_run) codeheap_sljit_commit(to, may_run)

extern struct ch_heap *codeheap_sljit_heap;
/* A thread makes one piece of code at a time. */
static _Thread_local struct ch_code codeheap_sljit_code;

/* The number of a shape at which unwinding ends: sljit keeps other things in the frame pointer.
 * Returns 0 on failure. */
static inline uint8_t codeheap_sljit_frame(void)
{
	/* DWARF, for every machine: the CFA is 0; register 16 (x86-64), 30 (aarch64) or 1 (riscv64)
	 * is the return address: undefined. */
	static const uint8_t ends[] = {0x0f, 1, 0x30, 0x07, 16, 0x07, 30, 0x07, 1};
	uint8_t frame;
	(void)!ch_frame_register(codeheap_sljit_heap, ends, sizeof ends, &frame);
	return frame;
}
/* data: exec_allocator_data of sljit_create_compiler: the name of the code, or NULL. */
static inline void *codeheap_sljit_open(size_t bytes, const void *data)
{
	struct ch_open open = {.size = sizeof open,
			       .heap = codeheap_sljit_heap,
			       .hot_bytes = bytes <= UINT32_MAX ? (uint32_t)bytes : UINT32_MAX,
			       .frame = codeheap_sljit_frame(),
			       .name = data ? (const char *)data : "sljit"};
	if (!open.frame || ch_block_open(&open, &codeheap_sljit_code))
		return NULL;
	return codeheap_sljit_code.write;
}
/* sljit hears of no failure here: code that was not committed becomes 0xff, which is no instruction
 * of x86-64, aarch64 or riscv64. */
static inline void codeheap_sljit_commit(const void *end, bool may_run)
{
	struct ch_code *code = &codeheap_sljit_code;
	if (!may_run)
		return;
	code->used_to = (uint32_t)((const uint8_t *)end - code->exec);
	if (ch_block_commit(code, 1) && code->write)
		memset(code->write, 0xff, code->hot_bytes);
}
static inline bool codeheap_sljit_visit(void *arg, const struct ch_info *info)
{
	struct ch_code *code = arg;
	if (info->exec == code->exec)
		code->block = info->block;
	return !code->block.bits;
}
static inline void codeheap_sljit_free(void *exec)
{
	struct ch_code code = {.exec = exec};
	if (ch_code_free(codeheap_sljit_heap, exec, CH_RELEASE_NOT_RUNNING) != CH_E_STALE)
		return;
	/* The commit failed, and the block is OPEN: only an attached thread ends it. */
	struct ch_heap *heap = codeheap_sljit_heap;
	/* Only in an attached thread a walk by frame pointers knows the stack. */
	const void *caller;
	bool is_guest = !ch_backtrace(heap, CH_BACKTRACE_FRAMES, NULL, &caller, 1) &&
			ch_thread_attach(heap, NULL, NULL) == CH_OK;
	(void)!ch_block_each(heap, NULL, codeheap_sljit_visit, &code);
	(void)!ch_block_abort(&code);
	if (is_guest)
		(void)!ch_thread_detach(heap);
}
#endif
