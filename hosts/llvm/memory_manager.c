/* SPDX-License-Identifier: MIT
 * memory_manager.c: sections of LLVM's MCJIT are parts of blocks, written in place.
 *
 *   engine = one memory manager = one owner
 *   batch  = all allocations of LLVM up to a call of finalizeMemory: rooms of three kinds,
 *            committed together
 *   room   = an open block; sections of its kind fill the block in turn, since C++ modules have a
 *            section for each inline function and a block takes whole pages
 *
 * LLVM's users call functions by address, so all blocks are kept (CH_OPEN_KEPT) until the owner is
 * released. LLVM resolves relocations between its parts once, so from then on all blocks of a batch
 * live together: a ring of edges joins them. A later batch leads to the batch before. LLVM disposes
 * of the manager after MCJIT has withdrawn its own .eh_frame; then the owner is released. From then
 * on unwinders know only the tables made here, which stay until their block is freed.
 *
 * MCJIT 14 ends the process when a section gets no memory, and does not look at the result of
 * finalizeMemory. So where the heap has no room, a section gets memory of malloc, which cannot run,
 * and the module tells the error. */
#define _POSIX_C_SOURCE 200809L /* posix_memalign, strdup: also with -std=c11 */
#include "codeheap_llvm.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frames.h"

/* A room is a page of the heap, less the block's own bytes there, unless a section is larger. */
enum { ROOM_PAGE_LESS = 128 };

struct codeheap_llvm {
	struct ch_vm *vm;
	unsigned flags;
	size_t room_bytes;
	_Atomic(size_t) modules;
};

struct room {
	struct ch_code code;
	enum ch_kind kind;
	uint32_t used;
};

struct section {
	uint8_t *at;
	size_t bytes;
};

struct codeheap_llvm_module {
	struct codeheap_llvm *llvm;
	struct ch_owner owner;
	struct ch_block last; /* of the batch before; holds all earlier batches */
	struct room *rooms;   /* of the open batch */
	size_t rooms_used, rooms_room;
	struct section *frames; /* .eh_frame sections of the batch */
	size_t frames_used, frames_room;
	void **strays; /* sections without room in the heap */
	size_t strays_used, strays_room;
	char failed[300]; /* the failed step, and why; "" = all went well */
};

/* Grows an array by one. Returns false and changes nothing when memory is out. */
static bool grow(void **array, size_t used, size_t *room, size_t item)
{
	if (used < *room)
		return true;
	size_t more = *room * 2 + 8;
	void *larger = realloc(*array, more * item);
	if (!larger)
		return false;
	*array = larger;
	*room = more;
	return true;
}

/* --- the vm --- */

enum ch_status codeheap_llvm_create(struct ch_heap *heap, unsigned flags,
				    struct codeheap_llvm **made)
{
	struct ch_ops ops = {.size = sizeof ops};
	struct ch_stats stats = {.size = sizeof stats};
	*made = NULL;
	enum ch_status status = ch_heap_stats(heap, &stats);
	if (status != CH_OK)
		return status;
	struct codeheap_llvm *llvm = calloc(1, sizeof *llvm);
	if (!llvm)
		return CH_E_MEMORY;
	llvm->flags = flags;
	llvm->room_bytes = (size_t)stats.page_bytes - ROOM_PAGE_LESS;
	status = ch_vm_attach(heap, &ops, NULL, &llvm->vm);
	if (status != CH_OK) {
		free(llvm);
		return status;
	}
	*made = llvm;
	return CH_OK;
}

enum ch_status codeheap_llvm_destroy(struct codeheap_llvm *llvm)
{
	if (llvm->modules != 0)
		return CH_E_BUSY;
	enum ch_status status = ch_vm_detach(llvm->vm);
	if (status != CH_OK)
		return status;
	free(llvm);
	return CH_OK;
}

/* --- sections --- */

static const char no_memory[] = "no memory";

static void fail(struct codeheap_llvm_module *module, const char *what, const char *why)
{
	if (!*module->failed) /* the first cause matters */
		snprintf(module->failed, sizeof module->failed, "codeheap: %s: %s", what, why);
}

/* The offset at which `bytes` fit into a room, or UINT32_MAX. */
static uint32_t place_in(const struct room *room, size_t bytes, size_t alignment)
{
	uintptr_t base = (uintptr_t)room->code.exec;
	uintptr_t at = (base + room->used + alignment - 1) & ~(uintptr_t)(alignment - 1);
	uintptr_t end = base + room->code.hot_bytes;
	return at <= end && bytes <= end - at ? (uint32_t)(at - base) : UINT32_MAX;
}

static unsigned may_collect(const struct codeheap_llvm *llvm)
{
	return llvm->flags & CODEHEAP_LLVM_MAY_COLLECT ? CH_OPEN_MAY_COLLECT : 0;
}

static struct room *open_room(struct codeheap_llvm_module *module, enum ch_kind kind, size_t bytes)
{
	struct codeheap_llvm *llvm = module->llvm;
	size_t room_bytes = bytes > llvm->room_bytes ? bytes : llvm->room_bytes;
	struct ch_open open = {.size = sizeof open, .owner = module->owner, .kind = kind};
	open.hot_bytes = room_bytes <= UINT32_MAX ? (uint32_t)room_bytes : UINT32_MAX;
	open.flags = CH_OPEN_IN_PLACE | CH_OPEN_KEPT | may_collect(llvm) |
		     (kind == CH_KIND_CODE ? CH_OPEN_OWN_FRAMES : 0);
	if (!grow((void **)&module->rooms, module->rooms_used, &module->rooms_room,
		  sizeof *module->rooms)) {
		fail(module, "a section", no_memory);
		return NULL;
	}
	/* Not on the stack, where its addresses would hold the block. */
	struct room *room = &module->rooms[module->rooms_used];
	*room = (struct room){.kind = kind};
	if (ch_block_open(&open, &room->code) != CH_OK) {
		fail(module, "a section", ch_why());
		return NULL;
	}
	module->rooms_used++;
	return room;
}

/* Memory for LLVM to write a section to. The memory never runs. */
static uint8_t *stray(struct codeheap_llvm_module *module, size_t bytes, size_t alignment)
{
	void *at = NULL;
	if (!grow((void **)&module->strays, module->strays_used, &module->strays_room,
		  sizeof *module->strays) ||
	    posix_memalign(&at, alignment < sizeof at ? sizeof at : alignment, bytes) != 0)
		return NULL;
	memset(at, 0, bytes);
	module->strays[module->strays_used++] = at;
	return at;
}

static uint8_t *allocate(struct codeheap_llvm_module *module, enum ch_kind kind, size_t bytes,
			 size_t alignment)
{
	if (alignment == 0)
		alignment = 16;
	for (size_t i = module->rooms_used; !*module->failed && i-- > 0;) {
		struct room *room = &module->rooms[i];
		uint32_t at = room->kind == kind ? place_in(room, bytes, alignment) : UINT32_MAX;
		if (at != UINT32_MAX) {
			room->used = at + (uint32_t)bytes;
			return room->code.exec + at;
		}
	}
	struct room *room = *module->failed ? NULL : open_room(module, kind, bytes + alignment);
	if (!room)
		return stray(module, bytes, alignment);
	uint32_t at = place_in(room, bytes, alignment);
	room->used = at + (uint32_t)bytes;
	return room->code.exec + at;
}

static uint8_t *on_code_section(void *opaque, uintptr_t bytes, unsigned alignment, unsigned id,
				const char *name)
{
	(void)id;
	(void)name;
	return allocate(opaque, CH_KIND_CODE, bytes, alignment);
}

static uint8_t *on_data_section(void *opaque, uintptr_t bytes, unsigned alignment, unsigned id,
				const char *name, LLVMBool is_read_only)
{
	struct codeheap_llvm_module *module = opaque;
	uint8_t *at =
		allocate(module, is_read_only ? CH_KIND_RODATA : CH_KIND_DATA, bytes, alignment);
	(void)id;
	if (strcmp(name, ".eh_frame") != 0)
		return at;
	if (!grow((void **)&module->frames, module->frames_used, &module->frames_room,
		  sizeof *module->frames)) {
		fail(module, "an unwind table", no_memory);
		return at;
	}
	module->frames[module->frames_used++] = (struct section){at, bytes};
	return at;
}

/* --- the end of a batch --- */

/* Gives each room of code a table of the frames in it. */
static void make_tables(struct codeheap_llvm_module *module)
{
	size_t count = module->rooms_used;
	struct frames_range *ranges = calloc(count, sizeof *ranges);
	enum frames_status status = ranges ? FRAMES_OK : FRAMES_NO_MEMORY;
	for (size_t i = 0; ranges && i < count; i++) {
		const struct room *room = &module->rooms[i];
		ranges[i].low = (uintptr_t)room->code.exec;
		ranges[i].high = ranges[i].low + room->used;
	}
	for (size_t i = 0; i < module->frames_used && status == FRAMES_OK; i++)
		status = frames_add(module->frames[i].at, module->frames[i].bytes,
				    (uintptr_t)module->frames[i].at, ranges, count);
	if (status != FRAMES_OK)
		fail(module, "an unwind table",
		     status == FRAMES_MALFORMED ? "LLVM's is malformed" : no_memory);
	for (size_t i = 0; i < count && !*module->failed; i++)
		if (module->rooms[i].kind == CH_KIND_CODE &&
		    frames_give(&ranges[i], module->owner, may_collect(module->llvm),
				&module->rooms[i].code) != CH_OK)
			fail(module, "an unwind table", ch_why());
	if (ranges)
		frames_free(ranges, count);
	free(ranges);
}

static enum ch_status attach_edges(const struct codeheap_llvm_module *module)
{
	size_t count = module->rooms_used;
	enum ch_status status = CH_OK;
	for (size_t i = 0; count > 1 && i < count && status == CH_OK; i++)
		status = ch_edge_attach(module->rooms[i].code.block,
					module->rooms[(i + 1) % count].code.block);
	if (status == CH_OK && module->last.bits)
		status = ch_edge_attach(module->rooms[0].code.block, module->last);
	return status;
}

static void commit(struct codeheap_llvm_module *module)
{
	struct ch_code *codes = calloc(module->rooms_used, sizeof *codes);
	if (!codes) {
		fail(module, "a commit", no_memory);
		return;
	}
	make_tables(module);
	for (size_t i = 0; i < module->rooms_used; i++) {
		codes[i] = module->rooms[i].code;
		codes[i].used_to = module->rooms[i].used;
	}
	if (!*module->failed && (attach_edges(module) != CH_OK ||
				 ch_block_commit(codes, module->rooms_used) != CH_OK))
		fail(module, "a commit", ch_why());
	free(codes);
	if (*module->failed)
		return;
	module->last = module->rooms[0].code.block;
	module->rooms_used = 0;
	module->frames_used = 0;
}

static LLVMBool on_finalize(void *opaque, char **message)
{
	struct codeheap_llvm_module *module = opaque;
	if (!*module->failed && module->rooms_used)
		commit(module);
	if (!*module->failed)
		return 0;
	if (message)
		*message = strdup(module->failed); /* LLVM frees it */
	return 1;
}

/* LLVM is done with the engine. Code that a stack holds stays; all other code goes with the next
 * cycle. Blocks that are still OPEN never ran. */
static void on_destroy(void *opaque)
{
	struct codeheap_llvm_module *module = opaque;
	struct codeheap_llvm *llvm = module->llvm;
	for (size_t i = 0; i < module->rooms_used; i++)
		(void)!ch_block_abort(&module->rooms[i].code);
	if (ch_owner_release(module->owner, CH_RELEASE_COLLECT) != CH_OK)
		fprintf(stderr, "codeheap: a module's owner was released already\n");
	for (size_t i = 0; i < module->strays_used; i++)
		free(module->strays[i]);
	free(module->strays);
	free(module->frames);
	free(module->rooms);
	free(module);
	llvm->modules--;
}

/* --- modules --- */

enum ch_status codeheap_llvm_module_create(struct codeheap_llvm *llvm, const char *name,
					   struct codeheap_llvm_module **made,
					   LLVMMCJITMemoryManagerRef *manager)
{
	*made = NULL;
	*manager = NULL;
	struct codeheap_llvm_module *module = calloc(1, sizeof *module);
	if (!module)
		return CH_E_MEMORY;
	module->llvm = llvm;
	enum ch_status status = ch_owner_create(llvm->vm, name, NULL, NULL, &module->owner);
	if (status != CH_OK) {
		free(module);
		return status;
	}
	*manager = LLVMCreateSimpleMCJITMemoryManager(module, on_code_section, on_data_section,
						      on_finalize, on_destroy);
	llvm->modules++;
	*made = module;
	return CH_OK;
}

const char *codeheap_llvm_module_error(const struct codeheap_llvm_module *module)
{
	return *module->failed ? module->failed : NULL;
}
