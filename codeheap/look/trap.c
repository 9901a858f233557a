/* SPDX-License-Identifier: MIT
 * trap.c: says in one line what a fatal signal in the pool means (P4). Signal-safe: no lock, no
 * allocation. place.c finds the block at an address. */
#define _GNU_SOURCE
#include "codeheap/places/places.h"

#include <signal.h>

static const char *const deaths[] = {
	[CH__DEATH_UNREACHED] = "nothing reached it",
	[CH__DEATH_OWNER_RELEASED] = "its owner was released (COLLECT) and nothing held it",
	[CH__DEATH_OWNER_UNREACHED] = "the VM's collector did not reach its owner",
	[CH__DEATH_VM_GONE] = "its vm was detached",
	[CH__DEATH_NOT_RUNNING] = "its owner was released (NOT_RUNNING)",
	[CH__DEATH_ABORTED] = "it was aborted, never published",
	[CH__DEATH_COMMIT_FAILED] = "its commit failed, never published",
	[CH__DEATH_FORKED] = ("the thread that was making it is not in this child of a fork, "
			      "never published"),
	[CH__DEATH_NO_COPY] = "this child of a fork has no copy of it",
	[CH__DEATH_FREED] = "of ch_code_free (COLLECT), and nothing held it",
	[CH__DEATH_FREED_NOT_RUNNING] = "of ch_code_free (NOT_RUNNING)",
};

static const char *const causes[] = {
	[CH__CAUSE_NONE] = "",
	[CH__CAUSE_INVALIDATED] = ", invalidated by ch_blocks_invalidate",
	[CH__CAUSE_ASSUMPTION] = ", invalidated by a broken assumption",
	[CH__CAUSE_DISCARDED] = ", invalidated by ch_vm_discard",
	[CH__CAUSE_DETACHED] = ", invalidated by ch_vm_detach",
};

static const char *const kinds[] = {
	[CH_BLOCK_OPEN] = "open ",
	[CH_BLOCK_LIVE] = "live ",
	[CH_BLOCK_NOTENTRANT] = "not yet freed ",
	[CH_BLOCK_DEAD] = "",
};

static void put_block(struct ch__text *line, const struct ch__place *place)
{
	ch__text_put(line, place->is_slot ? "trampoline" : place->is_data ? "data" : "block");
	if (*place->name)
		ch__text_format(line, " `%s`", place->name);
	ch__text_format(line, " (#%u.%u", place->block, place->generation);
	if (*place->owner)
		ch__text_format(line, ", owner `%s`", place->owner);
	ch__text_put(line, ")");
}

/* A tombstone lost for want of memory may be of the last death at this address. The ring takes its
 * memory in the first lap, so behind the second no lost one would be left. */
static void put_lost(struct ch__text *line, const struct ch_heap *heap)
{
	uint64_t lost = atomic_load_explicit(&heap->tombstones_lost, memory_order_acquire);
	uint64_t written = atomic_load_explicit(&heap->tombstones_written, memory_order_acquire);
	if (lost && written / 2 < heap->config.remembered_dead)
		ch__text_format(line, " (as far as is known: memory was short, records lost: %lu)",
				lost);
}

static void put_end_of(struct ch__text *line, const struct ch_heap *heap,
		       const struct ch__place *place)
{
	bool is_sweep = place->death <= CH__DEATH_VM_GONE || place->death == CH__DEATH_FREED;
	ch__text_format(line, ", freed %s collection %u because %s%s", is_sweep ? "in" : "after",
			place->collection, deaths[place->death], causes[place->cause]);
	put_lost(line, heap);
}

static bool is_in_use(enum ch_block_state state)
{
	return state != CH_BLOCK_FREE && state != CH_BLOCK_DEAD;
}

/* No thread jumps to a head. Code in front of a head, or of unused bytes, ran on behind its end. In
 * front of the pool no block is found. */
static bool find_in_front(const struct ch_heap *heap, uint32_t offset, struct ch__place *place)
{
	uint32_t back = place->state == CH_BLOCK_FREE ? 1 : place->into_head;
	if (!back)
		return false;
	ch__place_find(heap, offset - back, place);
	bool is_behind = is_in_use(place->state);
	if (is_behind)
		place->at += back;
	else
		ch__place_find(heap, offset, place);
	return is_behind;
}

static enum ch_block_state put_place(struct ch__text *line, const struct ch_heap *heap,
				     uint32_t offset)
{
	struct ch__place place;
	ch__place_find(heap, offset, &place);
	bool is_behind = find_in_front(heap, offset, &place);
	enum ch_block_state state = place.state;
	if (place.state == CH_BLOCK_FREE) {
		uint64_t written =
			atomic_load_explicit(&heap->tombstones_written, memory_order_acquire);
		bool is_expired = written > heap->config.remembered_dead;
		ch__text_format(line, "no block: a byte of page %u that never had one%s",
				offset >> heap->pool->page_log2,
				is_expired ? ", or freed code, record expired" : "");
		put_lost(line, heap);
		return state;
	}
	ch__text_put(line, kinds[place.state]);
	put_block(line, &place);
	if (place.state == CH_BLOCK_OPEN)
		ch__text_put(line, ", not committed");
	else if (place.state == CH_BLOCK_NOTENTRANT)
		ch__text_put(line, causes[place.cause]);
	else if (place.state == CH_BLOCK_DEAD)
		put_end_of(line, heap, &place);
	ch__text_format(line, "; executed at %s+%x%s", place.is_cold ? "cold " : "", place.at,
			is_behind ? ", behind its end" : "");
	if (!is_in_use(state) || !ch__place_find_freed(heap, offset, &place))
		return state;
	ch__text_put(line, ", where before it lay ");
	put_block(line, &place);
	put_end_of(line, heap, &place);
	return state;
}

static void put_origin(struct ch__text *line, const struct ch_heap *heap, const char *words,
		       uintptr_t address, uint32_t back)
{
	struct ch__os_object object;
	struct ch__place place;
	uintptr_t call = address - back; /* the last byte of a call */
	ch__text_format(line, "%s%lx", words, address);
	if (ch__pool_has(heap->pool, call)) {
		ch__place_find(heap, ch__offset(heap, call), &place);
		if (place.state == CH_BLOCK_FREE) {
			ch__text_put(line, " in no block");
			return;
		}
		ch__text_put(line, place.state == CH_BLOCK_DEAD ? " in freed " : " in ");
		put_block(line, &place);
		ch__text_format(line, " %s+%x", place.is_cold ? "cold " : "",
				place.into_head ? 0 : place.at + back);
	} else if (call - heap->pool->runtime_exec < heap->pool->runtime_bytes) {
		ch__text_format(line, " in the heap's runtime page +%lx",
				address - heap->pool->runtime_exec);
	} else if (ch__os_object_of(address, &object)) {
		ch__text_format(line, " in %s +%lx", object.path, address - object.at);
	} else {
		ch__text_put(line, " in no code that is known");
	}
}

/* Whether there is code at an address, as far as put_origin can tell. */
static bool is_in_code(const struct ch_heap *heap, uintptr_t address)
{
	struct ch__os_object object;
	return ch__pool_knows(heap->pool, address - 1) || ch__os_object_of(address, &object);
}

/* Returns the return address in the frame record where that leads to code, else the guess. */
static uintptr_t recorded_return(const struct ch_heap *heap, const void *ucontext, uintptr_t guess)
{
	uintptr_t fp = ch__arch_context_fp(ucontext), caller, address;
	const uintptr_t *record = (const uintptr_t *)(fp + (uintptr_t)(intptr_t)CH_ARCH_RECORD_AT);
	if (fp % sizeof fp || !ch__os_is_readable(record) || !ch__os_is_readable(record + 1))
		return guess;
	ch__arch_frame_step(fp, &caller, &address);
	address = ch__arch_strip(address);
	return is_in_code(heap, address) ? address : guess;
}

/* After a call, the word on top of the stack, or the link register, is the return address. Returns
 * false where the stack cannot be read. */
static bool top_return(const void *ucontext, uintptr_t *address)
{
	const void *sp = (const void *)ch__arch_context_sp(ucontext);
	bool is_there = CH_ARCH_HAS_LINK_REGISTER ||
			((uintptr_t)sp % sizeof(uintptr_t) == 0 && ch__os_is_readable(sp));
	*address = is_there ? ch__arch_context_return(ucontext) : 0;
	return is_there;
}

/* After a jump, the word on top returns to the caller of the code that jumped. If the word leads to
 * no code, the code that trapped has a frame, whose record has the return address. */
static void put_return(struct ch__text *line, const struct ch_heap *heap, const void *ucontext)
{
	uintptr_t guess;
	if (!top_return(ucontext, &guess)) {
		ch__text_put(line, "; no return address: its stack cannot be read");
		return;
	}
	if (!is_in_code(heap, guess))
		guess = recorded_return(heap, ucontext, guess);
	put_origin(line, heap, "; return address (a guess) ", guess, 1);
}

static bool has_data_address(const siginfo_t *info)
{
	return info->si_signo == SIGSEGV || info->si_signo == SIGBUS;
}

/* A trap in live code is the VM's own, or a trap of the fill behind the VM's bytes. */
static void put_signal(struct ch__text *line, const siginfo_t *info, enum ch_block_state state)
{
	const char *name = ch__os_signal_name(info->si_signo);
	ch__text_format(line, "; %s%s", name ? "SIG" : "a signal", name ? name : "");
	if (has_data_address(info) && info->si_code == SI_KERNEL)
		ch__text_put(line, " without an address: misaligned, not canonical or privileged");
	else if (has_data_address(info))
		ch__text_format(line, " at address %lx", (uintptr_t)info->si_addr);
	if (info->si_signo == SIGTRAP && state == CH_BLOCK_LIVE)
		ch__text_put(line, ": its own trap, or it ran on behind its end");
}

/* Names the block at the mistaken exec or write address. */
static void put_mistaken(struct ch__text *line, const struct ch__place *place, uintptr_t at)
{
	if (place->state == CH_BLOCK_FREE) {
		ch__text_put(line, " in no block");
	} else {
		ch__text_format(line, " of %s",
				place->state == CH_BLOCK_DEAD ? "freed " : kinds[place->state]);
		put_block(line, place);
		ch__text_format(line, ", %s+%x", place->is_cold ? "cold " : "", place->at);
	}
	ch__text_format(line, " (%lx)", at);
}

/* A store to an address that can be read raised SIGSEGV, or a misaligned access SIGBUS. Returns
 * false where the address is not the heap's, or the page has no access at all. */
static bool put_store(struct ch__text *line, const struct ch_heap *heap, const siginfo_t *info,
		      uintptr_t pc)
{
	uintptr_t at = (uintptr_t)info->si_addr;
	if (!has_data_address(info) || at == pc || !ch__pool_has(heap->pool, at) ||
	    !ch__os_is_readable((const void *)(at & ~(uintptr_t)7)))
		return false;
	struct ch__place place;
	ch__place_find(heap, ch__offset(heap, at), &place);
	bool is_store = info->si_signo == SIGSEGV;
	ch__text_put(line, is_store ? "a store to exec" : "SIGBUS at exec");
	put_mistaken(line, &place, at);
	if (!is_store)
		return true;
	ch__text_put(line, ": exec is never writable");
	if (place.state == CH_BLOCK_OPEN)
		ch__text_put(line, ", emit at ch_code.write");
	else if (place.state == CH_BLOCK_LIVE && !place.is_data)
		ch__text_put(line, ", use ch_code_write; variables are CH_KIND_DATA");
	return true;
}

/* The write view is never executable: a jump to ch_code.write faults before the first byte. */
static void put_written(struct ch__text *line, const struct ch_heap *heap, uintptr_t write,
			const void *ucontext)
{
	ch__text_put(line, "executed at the write address");
	struct ch__place place;
	ch__place_find(heap, ch__offset(heap, ch__pool_exec_of(heap->pool, write)), &place);
	put_mistaken(line, &place, write);
	ch__text_put(line, ": code runs at ch_code.exec");
	if (place.state == CH_BLOCK_OPEN)
		ch__text_put(line, ", from its commit on");
	put_return(line, heap, ucontext);
}

/* Whether the bytes at a trap are another tool's, say a BRK with another number. The last bytes of
 * the pool are too few for such a trap. */
static bool is_foreign(const struct ch_heap *heap, uintptr_t address)
{
	enum { WORD_BYTES = 4 };
	if (address % CH_ARCH_TRAP_UNIT_BYTES ||
	    !ch__pool_has(heap->pool, address + WORD_BYTES - 1))
		return false;
	return ch__arch_trap_is_foreign(ch__pool_read(heap->pool, address));
}

/* Whether code of the pool called an address without code, say NULL. */
static bool is_lost(const struct ch_heap *heap, const siginfo_t *info, const void *ucontext)
{
	uintptr_t back, at = (uintptr_t)info->si_addr;
	return has_data_address(info) && at == ch__arch_context_pc(ucontext) &&
	       top_return(ucontext, &back) && ch__pool_has(heap->pool, back - 1);
}

static void describe(struct ch__text *line, const struct ch_heap *heap, const siginfo_t *info,
		     const void *ucontext)
{
	uintptr_t address = ch__arch_trap_address(info->si_signo, info->si_code, ucontext);
	bool is_nowhere = address == (uintptr_t)heap->no_fallback;
	/* A cell is a word of its owner's record: data, so a call of the cell itself faults. */
	uint64_t used = CH_LOAD_RELAXED(&heap->owners.used);
	bool is_cell = address - (uintptr_t)heap->owners.base < used * sizeof(struct ch__owner);
	bool is_in_pool = ch__pool_has(heap->pool, address);
	bool is_here = is_nowhere || is_cell || is_in_pool || is_lost(heap, info, ucontext);
	bool is_written = ch__pool_has(heap->pool, ch__pool_exec_of(heap->pool, address));
	bool is_ours = is_here || is_written;
	is_ours |= has_data_address(info) && ch__pool_has(heap->pool, (uintptr_t)info->si_addr);
	/* Somebody sent the signal: wherever the thread stood, it did nothing. */
	if (info->si_code <= 0 || !is_ours)
		return;
	if (heap->process != ch__os_process_id()) {
		/* No fork handler ran: not even the library may look at code. */
		ch__text_format(line, "code that a child of a raw clone has no copy of (%lx)",
				address);
		return;
	}
	if (info->si_signo == SIGTRAP && is_foreign(heap, address))
		return;
	if (put_store(line, heap, info, address)) {
		put_origin(line, heap, "; by ", address, 0);
	} else if (is_written) {
		put_written(line, heap, address, ucontext);
	} else if (is_here) {
		enum ch_block_state state = CH_BLOCK_FREE;
		if (is_nowhere)
			ch__text_put(line, "the cell of an owner without an entry and a fallback");
		else if (is_cell)
			ch__text_put(line, "executed at an owner's cell: call what it holds");
		else if (!is_in_pool)
			ch__text_put(line, "executed where no code is");
		else
			state = put_place(line, heap, ch__offset(heap, address));
		ch__text_format(line, " (%lx)", address);
		put_return(line, heap, ucontext);
		const struct ch__thread *self = ch__thread_self(heap);
		if (is_in_use(state))
			put_signal(line, info, state);
		else if (!self || self->park_depth)
			ch__text_put(line, self ? "; by a thread that is parked"
						 : "; by a thread that is not attached");
	}
}

size_t ch_trap_describe(const struct ch_heap *heap, const void *siginfo, const void *ucontext,
			char *text, size_t bytes)
{
	struct ch__text line = {text, bytes, 0};
	/* First: a heap that is found from here on is not freed before the end. */
	ch__place_read_begin();
	if (ch__heap_lives(heap))
		describe(&line, heap, siginfo, ucontext);
	ch__place_read_end();
	return ch__text_end(&line);
}
