/* SPDX-License-Identifier: MIT
 * address_name.c: what code an address is in, as text: blocks by owner and name, native code by the
 * dynamic linker. Not signal-safe. Lock: heap, for names of blocks. */
#include "codeheap/look.h"
#include "codeheap/places/places.h"
#include "os/files.h"

/* Under the heap lock names and records stay. */
static bool put_block(struct ch_heap *heap, uintptr_t at, uintptr_t address, struct ch__text *t)
{
	struct ch__found found;
	if (!ch__find_whole(heap, at, &found))
		return false;
	const struct ch__block *block = found.block;
	const char *own = block->side_list ? ch__name_text(heap, block->side_list->name) : "";
	const char *owner = ch__name_text(heap, ch__owner_at(heap, block->owner)->name);
	if (!*own && !*owner)
		owner = "[code without a name]";
	uintptr_t in_part = found.at + (address - at);
	ch__text_format(t, "%s%s%s%s+%lx", owner, *own && *owner ? " " : "", own,
			found.is_cold ? " (cold)" : "",
			in_part > found.head ? in_part - found.head : 0);
	return true;
}

static void put_code(struct ch_heap *heap, uintptr_t at, uintptr_t address, struct ch__text *t)
{
	const struct ch__pool *pool = heap->pool;
	if (!ch__pool_has(pool, at)) {
		ch__text_format(t, "runtime page of the code heap+%lx",
				address - pool->runtime_exec);
		return;
	}
	bool is_block = false;
	if (ch__lock_is_mine(&heap->lock)) { /* in a visit */
		is_block = put_block(heap, at, address, t);
	} else if (!ch__is_marking()) {
		ch__heap_lock(heap);
		is_block = put_block(heap, at, address, t);
		ch__heap_unlock(heap);
	}
	if (is_block)
		return;
	/* Free, or an OPEN block's: only a committed block is found by its address. */
	ch__text_format(t, "code memory+%lx", address - pool->exec_base);
}

static void put_native(uintptr_t at, uintptr_t address, struct ch__text *t)
{
	struct ch__os_place place;
	if (!ch__os_place_of(at, &place)) {
		/* The other heap may end meanwhile, and with it its names. */
		struct ch_spot spot = {.size = sizeof spot};
		bool is_code = ch_code_at(NULL, (const void *)address, at != address, &spot);
		ch__text_format(t, "%s+%lx", is_code ? "[code of another heap]" : "",
				is_code ? spot.offset : address);
		return;
	}
	if (place.is_symbol)
		ch__os_put_symbol(place.name, t);
	else
		ch__text_put_name(t, place.name);
	ch__text_format(t, "+%lx", address - place.at);
	ch__os_place_end(&place);
}

size_t ch_address_name(struct ch_heap *heap, const void *address, bool is_return, char *text,
		       size_t bytes)
{
	struct ch__text t = {text, bytes, 0};
	const struct ch__pool *pool = ch__heap_lives(heap) ? heap->pool : NULL;
	uintptr_t given = (uintptr_t)address;
	/* A call may be the last instruction: then the return address is of the next code. */
	uintptr_t at = given - (is_return && given);
	if (pool && ch__pool_knows(pool, at))
		put_code(heap, at, given, &t);
	else
		put_native(at, given, &t);
	return ch__text_end(&t);
}
