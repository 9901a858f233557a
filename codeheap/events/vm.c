/* SPDX-License-Identifier: MIT
 * vm.c: the records of vms: attached, detached, used again. The rest of a vm's end is in
 * invalidate/. Lock: heap. */
#include "codeheap/base/park.h"
#include "codeheap/base/sized.h"
#include "codeheap/events/events.h"

/* So many records rest before the longest resting record is used again, while there is memory. A
 * second detach of a vm, or a late use, then likely meets a resting record, and is refused. */
enum { VMS_RESTING = 64 };

/* As many records as vms were attached at once, plus resting records and records with an owner. */
static struct ch_vm *take_vm(struct ch_heap *heap) CH_HAS_HEAP
{
	struct ch_vm *vm = NULL;
	if (heap->free_vms_now <= VMS_RESTING)
		vm = ch__meta_alloc(heap->meta, sizeof *vm);
	if (vm) {
		vm->heap = heap;
		vm->next = heap->vms;
		atomic_store_explicit(&heap->vms, vm, memory_order_release);
	} else if (heap->free_vms_now) {
		vm = heap->free_vms;
		heap->free_vms = vm->next_free;
		heap->free_vms_now--;
	}
	return vm;
}

/* Dying blocks find the vm's callbacks by their owners: the last owner lets the record go. */
void ch__vm_owner_gone(struct ch_vm *vm)
{
	struct ch_heap *heap = vm->heap;
	if (--vm->owners_now || vm->is_attached)
		return;
	if (heap->free_vms_now++)
		heap->free_vms_last->next_free = vm;
	else
		heap->free_vms = vm;
	heap->free_vms_last = vm;
}

void ch__vm_told(struct ch_vm *vm)
{
	vm->told = UINT32_MAX;
	ch__vm_owner_gone(vm);
}

/* While such a vm is attached, no collection comes unasked. */
static bool decides_when(const struct ch_vm *vm)
{
	return vm->ops.collect_wanted || vm->ops.stop_world;
}

void ch__vm_leave(struct ch_vm *vm)
{
	CH_ASSERT(CH_CHECK < 2 || ch__lock_is_mine(&vm->heap->lock), "leaves without the lock");
	vm->is_attached = false;
	ch__space_came(vm->heap); /* polls find that nobody waits, if so */
	if (decides_when(vm))
		atomic_fetch_sub_explicit(&vm->heap->vms_asked, 1, memory_order_relaxed);
}

enum ch_status ch_vm_attach(struct ch_heap *heap, const struct ch_ops *ops, void *user,
			    struct ch_vm **out)
{
	*out = NULL;
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	if (!ops)
		return ch__because(CH_E_ARG, "ops is NULL");
	enum ch_status status = CH__SIZED_CHECK(ch_ops, ops, branch_hit, resume_world);
	if (status != CH_OK)
		return status;
	struct ch_ops all = {0};
	ch__sized_take(&all, sizeof all, ops);
	if (all.stop_world && heap->config.driver == CH_DRIVER_HOST)
		return ch__because(CH_E_ARG, "ch_ops.stop_world is for CH_DRIVER_BUILTIN only: the "
					     "driver of a HOST heap stops the threads");
	ch__heap_lock(heap);
	struct ch_vm *vm = take_vm(heap);
	if (vm) {
		vm->ops = all;
		vm->user = user;
		vm->wants_space = false;
		vm->told = 0;
		if (decides_when(vm))
			atomic_fetch_add_explicit(&heap->vms_asked, 1, memory_order_relaxed);
		if (vm->ops.stop_world)
			atomic_store(&heap->stops_apart, true);
		atomic_store_explicit(&vm->is_attached, true, memory_order_release);
		/* A wish of before, told to others or to nobody, is told to this vm, too. */
		if (vm->ops.collect_wanted)
			ch__trigger_tell_again(heap);
		*out = vm;
	}
	ch__heap_unlock(heap);
	return vm ? CH_OK : ch__because_memory("a vm");
}
