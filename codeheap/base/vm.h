/* SPDX-License-Identifier: MIT
 * vm.h: the records of vms (vm.c). */
#ifndef CH_CODEHEAP_BASE_VM_H
#define CH_CODEHEAP_BASE_VM_H

#include "codeheap/base/heap.h"

/* An owner that had the vm is gone. When it was the last one of a vm that is detached, the record
 * may be used again. */
void ch__vm_owner_gone(struct ch_vm *) CH_REQUIRES(ch__role_heap);
/* The vm is detached from here on. */
void ch__vm_leave(struct ch_vm *) CH_REQUIRES(ch__role_heap);
/* Refs of its code are reported. A detached vm's may lead to nothing, and its code runs no more. */
static inline bool ch__vm_is_told(const struct ch_vm *vm)
{
	return atomic_load_explicit(&vm->is_attached, memory_order_relaxed);
}

#endif
