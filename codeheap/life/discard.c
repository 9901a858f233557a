/* SPDX-License-Identifier: MIT
 * discard.c: ch_vm_discard, for one vm or all: invalidate/discard.c invalidates the blocks, and a
 * cycle frees all but the blocks that stacks hold. */
#include "codeheap/base/why.h"
#include "codeheap/base/park.h"
#include "codeheap/events/trigger.h"
#include "invalidate/invalidate.h"

enum ch_status ch_vm_discard(struct ch_heap *heap, struct ch_vm *vm, size_t *freed, size_t *kept)
{
	size_t unused = 0;
	freed = freed ? freed : &unused;
	kept = kept ? kept : &unused;
	*freed = *kept = 0;
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	if (vm && vm->heap != heap)
		return ch__because(CH_E_ARG, "the vm is another heap's");
	/* A VM with a collector of its own runs the next cycle itself. */
	bool collects = heap->config.driver == CH_DRIVER_BUILTIN && !heap->driver.collect;
	struct ch__discard found;
	ch__discard_begin(heap, vm, collects, &found);
	enum ch_status status = CH_OK;
	size_t left = found.count;
	if (collects) {
		status = ch_heap_collect(heap);
		left = ch__discard_end(heap, vm, &found);
	} else {
		ch__trigger_tell(heap);
	}
	*freed = found.count - left;
	*kept = left;
	return status;
}
