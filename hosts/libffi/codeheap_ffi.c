/* SPDX-License-Identifier: MIT
 * codeheap_ffi.c: closures of libffi in blocks of a code heap. A block has libffi's closure and,
 * behind the closure, the function to call:
 *
 *   +0 code of libffi | its cif, function (call_bound), user (the address +56) | +56 struct bound
 *
 * libffi's code jumps, and leaves no return address in the block: so a cycle would not find the
 * closure while its function runs. The user that libffi passes on is therefore an address in the
 * block itself. From the first instruction to the return of the function a register or the stack
 * has that address, so the closure, its cif and its user stay until then. */
#include "codeheap_ffi.h"

#include <stdlib.h>

struct ch_ffi {
	struct ch_vm *vm;
	struct ch_owner owner; /* a group: the owner of all closures */
	struct ch_ffi_options options;
};

struct bound {
	void (*fun)(ffi_cif *, void *, void **, void *);
	void *user;
};

/* The bytes of a block. */
struct image {
	ffi_closure closure;
	struct bound bound;
};

static void call_bound(ffi_cif *cif, void *result, void **arguments, void *user)
{
	const struct bound *bound = (const struct bound *)user;
	bound->fun(cif, result, arguments, bound->user);
	/* Until here the address is in this frame, or in a callee-saved register. */
	__asm__ volatile("" : : "r"(user) : "memory");
}

static void tell_freed(void *vm_user, void *user)
{
	const struct ch_ffi *ffi = (const struct ch_ffi *)vm_user;
	if (ffi->options.freed)
		ffi->options.freed(user);
}

enum ch_status ch_ffi_open(struct ch_heap *heap, const struct ch_ffi_options *options,
			   struct ch_ffi **out)
{
	struct ch_ops ops = {
		.size = sizeof ops, .block_freed = tell_freed, .tells_detached = true};
	*out = NULL;
	struct ch_ffi *ffi = (struct ch_ffi *)calloc(1, sizeof *ffi);
	if (!ffi)
		return CH_E_MEMORY;
	if (options)
		ffi->options = *options;
	enum ch_status status = ch_vm_attach(heap, &ops, ffi, &ffi->vm);
	if (status == CH_OK)
		status = ch_owner_create(ffi->vm, NULL, NULL, NULL, &ffi->owner);
	if (status == CH_OK)
		*out = ffi;
	else if (ffi->vm)
		ch_ffi_close(ffi);
	else
		free(ffi);
	return status;
}

void ch_ffi_close(struct ch_ffi *ffi)
{
	enum ch_status status;
	while ((status = ch_vm_detach(ffi->vm)) == CH_E_BUSY)
		continue; /* a thread of the heap is held in a commit */
	if (status == CH_OK)
		free(ffi);
}

static enum ch_status fill(struct ch_code *code, ffi_cif *cif, const struct bound *bound)
{
	/* Zeroed: a libffi with static trampolines looks for a trampoline in the closure, and
	 * writes no code where it finds one. */
	struct image image = {.bound = *bound};
	void *its_bound = code->exec + offsetof(struct image, bound);
	if (ffi_prep_closure_loc(&image.closure, cif, call_bound, its_bound, code->exec) != FFI_OK)
		return CH_E_ARG;
	memcpy(code->write, &image, sizeof image);
	code->used_to = sizeof image;
	return CH_OK;
}

enum ch_status ch_ffi_closure_create(struct ch_ffi *ffi, ffi_cif *cif,
				     void (*fun)(ffi_cif *, void *, void **, void *), void *user,
				     const char *name, struct ch_ffi_closure *closure)
{
	const struct bound bound = {.fun = fun, .user = user};
	struct ch_open open = {.size = sizeof open,
			       .owner = ffi->owner,
			       .hot_bytes = sizeof(struct image),
			       .flags = CH_OPEN_KEPT,
			       .frame = CH_FRAME_LEAF, /* libffi's code jumps to call_bound */
			       .name = name,
			       .user = user};
	struct ch_code code;
	closure->code = NULL;
	if (!ffi->options.may_not_collect) {
		ch_thread_poll(); /* makes the calls of `freed`; may collect */
		open.flags |= CH_OPEN_MAY_COLLECT;
	}
	enum ch_status status = ch_block_open(&open, &code);
	if (status != CH_OK)
		return status;
	status = fill(&code, cif, &bound);
	if (status == CH_OK)
		status = ch_block_commit(&code, 1);
	if (status == CH_OK)
		closure->code = code.exec;
	else
		(void)!ch_block_abort(&code); /* CH_E_STATE where the commit aborted the block */
	memset(&code, 0, sizeof code); /* addresses on a stack would hold the block */
	__asm__ volatile("" : : "r"(&code) : "memory");
	return status;
}

enum ch_status ch_ffi_closure_release(struct ch_ffi_closure closure, enum ch_release how)
{
	return ch_code_free(NULL, closure.code, how);
}
