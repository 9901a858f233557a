/* SPDX-License-Identifier: MIT
 * trap.c: what a fatal signal in the pool means (P4), in one line: the block that was freed there,
 * by which collection, why, and what took it out of use before. Signal-safe: no lock, no
 * allocation, own formatting; what lies where is place.c's. */
#include "codeheap/block.h"

#include <signal.h>

/* --- a line of text --- */

struct line {
	char *at;
	size_t room, length; /* length: of the whole text, of which room - 1 bytes are kept */
};

static void put_byte(struct line *line, char byte)
{
	if (line->length + 1 < line->room)
		line->at[line->length] = byte;
	line->length++;
}

static void put(struct line *line, const char *text)
{
	for (; *text; text++)
		put_byte(line, *text);
}

static void put_number(struct line *line, uint64_t value, unsigned base)
{
	char digits[24];
	int n = 0;
	do
		digits[n++] = "0123456789abcdef"[value % base];
	while (value /= base);
	if (base == 16)
		put(line, "0x");
	while (n)
		put_byte(line, digits[--n]);
}

/* What a VM calls its code may hold anything; the text is one line. */
static void put_name(struct line *line, const char *name)
{
	put(line, "`");
	for (; *name; name++)
		put_byte(line, (char)((uint8_t)*name < ' ' || *name == 0x7f ? '?' : *name));
	put(line, "`");
}

static bool is_inside_character(char byte)
{
	return ((uint8_t)byte & 0xc0) == 0x80;
}

/* Ends the text; one that was cut ends with a whole character. */
static size_t end(struct line *line)
{
	if (!line->room)
		return line->length;
	size_t n = line->length;
	if (n >= line->room) {
		/* The byte that found no room last is the one behind what is kept. */
		n = line->room - 1;
		size_t start = n;
		while (start && is_inside_character(line->at[start - 1]) &&
		       !CH_MUTANT(CH__MUTANT_TEXT_CUT_ANYWHERE))
			start--;
		size_t bytes = start && (uint8_t)line->at[start - 1] >= 0xc0 ? n - start + 1 : 0;
		uint8_t first = bytes ? (uint8_t)line->at[start - 1] : 0;
		size_t whole = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
		if (bytes && bytes < whole)
			n = start - 1;
	}
	line->at[n] = 0;
	return line->length;
}

/* --- words --- */

static const char *why(enum ch__death death)
{
	switch (death) {
	case CH__DEATH_OWNER_RELEASED:
		return "its owner was released (COLLECT) and nothing held it";
	case CH__DEATH_OWNER_UNREACHED:
		return "the VM's collector did not reach its owner";
	case CH__DEATH_VM_GONE:
		return "its vm was detached";
	case CH__DEATH_NOT_RUNNING:
		return "its owner was released (NOT_RUNNING)";
	case CH__DEATH_ABORTED:
		return "it was aborted, never published";
	case CH__DEATH_COMMIT_FAILED:
		return "its commit failed, never published";
	case CH__DEATH_FORKED:
		return "the thread that was making it is not in this child of a fork, "
		       "never published";
	case CH__DEATH_NO_COPY:
		return "this child of a fork has no copy of it";
	default:
		return "nothing reached it";
	}
}

static void put_cause(struct line *line, const struct ch__place *place)
{
	switch (place->cause) {
	case CH__CAUSE_REPLACED:
		put(line, ", replaced as its owner's entry");
		break;
	case CH__CAUSE_INVALIDATED:
		put(line, ", invalidated by ch_blocks_invalidate");
		break;
	case CH__CAUSE_ASSUMPTION:
		put(line, ", invalidated by a broken assumption");
		if (!place->by)
			break;
		put(line, " (#");
		put_number(line, place->by, 10);
		put(line, ".");
		put_number(line, place->by_generation, 10);
		put(line, ")");
		break;
	case CH__CAUSE_DISCARDED:
		put(line, ", invalidated by ch_vm_discard");
		break;
	case CH__CAUSE_DETACHED:
		put(line, ", invalidated by ch_vm_detach");
		break;
	default:
		break;
	}
}

static void put_block(struct line *line, const struct ch__place *place)
{
	put(line, place->is_slot ? "trampoline " : "block ");
	put_name(line, place->name);
	put(line, " (#");
	put_number(line, place->block, 10);
	put(line, ".");
	put_number(line, place->generation, 10);
	put(line, ", owner ");
	put_name(line, place->owner);
	put(line, ")");
}

static void put_end_of(struct line *line, const struct ch__place *place)
{
	bool is_sweep = place->death <= CH__DEATH_VM_GONE;
	put(line, is_sweep ? ", freed in collection " : ", freed after collection ");
	put_number(line, place->collection, 10);
	put(line, " because ");
	put(line, why(place->death));
	put_cause(line, place);
}

static void put_unused(struct line *line, const struct ch_heap *heap, uint32_t offset, bool header)
{
	uint32_t page = offset >> heap->pool->page_log2;
	uint64_t written = atomic_load_explicit(&heap->tombstones_written, memory_order_acquire);
	put(line, header ? "the header of page " : "no block: a byte of page ");
	put_number(line, page, 10);
	if (!header && written > UINT64_C(1) << heap->tombstones_log2)
		put(line, " that never had one, or freed code, record expired");
	else if (!header)
		put(line, " that never had one");
}

/* A death whose record was lost for want of memory may be the last one at any address. */
static void put_lost(struct line *line, const struct ch_heap *heap)
{
	uint64_t lost = atomic_load_explicit(&heap->tombstones_lost, memory_order_acquire);
	if (!lost || CH_MUTANT(CH__MUTANT_LOST_TOMBSTONE_NOT_TOLD))
		return;
	put(line, " (as far as is known: memory was short, records lost: ");
	put_number(line, lost, 10);
	put(line, ")");
}

static void put_place(struct line *line, const struct ch_heap *heap, uint32_t offset)
{
	struct ch__place place;
	ch__place_find(heap, offset, &place);
	switch (place.kind) {
	case CH__PLACE_FREED:
		put_block(line, &place);
		put_end_of(line, &place);
		put_lost(line, heap);
		break;
	case CH__PLACE_LIVE:
		put(line, "live ");
		put_block(line, &place);
		break;
	case CH__PLACE_NOTENTRANT:
		put(line, "not yet freed ");
		put_block(line, &place);
		put_cause(line, &place);
		break;
	case CH__PLACE_OPEN:
		put(line, "open ");
		put_block(line, &place);
		put(line, ", not committed");
		break;
	default:
		put_unused(line, heap, offset, place.kind == CH__PLACE_HEADER);
		put_lost(line, heap);
		return;
	}
	put(line, "; executed at ");
	put(line, place.is_cold ? "cold +" : "+");
	put_number(line, place.at, 16);
	if (place.kind == CH__PLACE_FREED || !ch__place_find_freed(heap, offset, &place))
		return;
	put(line, ", where before it lay ");
	put_block(line, &place);
	put_end_of(line, &place);
	put_lost(line, heap);
}

/* --- where it came from --- */

static void put_origin(struct line *line, const struct ch_heap *heap, uintptr_t address)
{
	struct ch__os_object object;
	struct ch__place place;
	uintptr_t call = address - 1; /* its last byte */
	put_number(line, address, 16);
	if (ch__pool_has(heap->pool, call)) {
		ch__place_find(heap, ch__offset(heap, call), &place);
		if (place.kind <= CH__PLACE_HEADER) {
			put(line, " in no block");
			return;
		}
		put(line, place.kind == CH__PLACE_FREED ? " in freed " : " in ");
		put_block(line, &place);
		put(line, place.is_cold ? " cold +" : " +");
		put_number(line, place.at + 1, 16);
	} else if (call - heap->pool->runtime_exec < heap->pool->runtime_bytes) {
		put(line, " in the heap's runtime page +");
		put_number(line, address - heap->pool->runtime_exec, 16);
	} else if (ch__os_object_of(address, &object)) {
		put(line, " in ");
		put(line, object.symbol ? object.symbol : object.path);
		put(line, " +");
		put_number(line, address - (object.symbol ? object.symbol_at : object.at), 16);
	} else {
		put(line, " in no code that is known");
	}
}

/* The word on top of the stack, or the link register, is the return address of a call that led
 * here; of a jump, that of the caller of the code which jumped. */
static void put_return(struct line *line, const struct ch_heap *heap, const void *ucontext)
{
	const void *sp = (const void *)ch__arch_context_sp(ucontext);
	if (!CH_ARCH_HAS_LINK_REGISTER &&
	    ((uintptr_t)sp % sizeof(uintptr_t) || !ch__os_is_readable(sp)) &&
	    !CH_MUTANT(CH__MUTANT_STACK_NOT_PROBED)) {
		put(line, "; no return address: its stack cannot be read");
		return;
	}
	put(line, "; return address (a guess) ");
	put_origin(line, heap, ch__arch_context_return(ucontext));
}

/* Whether the bytes of a trap say that it is another's; the last ones of the pool have none behind
 * them that could. */
static bool is_foreign(const struct ch_heap *heap, uintptr_t address)
{
	enum { WORD_BYTES = 4 };
	if (CH_MUTANT(CH__MUTANT_FOREIGN_TRAP_CLAIMED) || address % CH_ARCH_TRAP_UNIT_BYTES ||
	    !ch__pool_has(heap->pool, address + WORD_BYTES - 1))
		return false;
	return ch__arch_trap_is_foreign(ch__pool_read(heap->pool, address));
}

size_t ch_trap_describe(const struct ch_heap *heap, const void *siginfo, const void *ucontext,
			char *text, size_t bytes)
{
	const siginfo_t *info = siginfo;
	struct line line = {text, bytes, 0};
	uintptr_t address = ch__arch_trap_address(info->si_signo, info->si_code, ucontext);
	if (bytes)
		text[0] = 0;
	/* Somebody sent it: wherever the thread stood, it did nothing. */
	if ((info->si_code <= 0 && !CH_MUTANT(CH__MUTANT_SENT_IS_DESCRIBED)) ||
	    !ch__pool_has(heap->pool, address))
		return 0;
	if (heap->process != ch__os_process_id()) {
		/* No handler of a fork ran: not even the library may look at code. */
		put(&line, "code that a child of a raw clone has no copy of (");
		put_number(&line, address, 16);
		put(&line, ")");
		return end(&line);
	}
	if (info->si_signo == SIGTRAP && is_foreign(heap, address))
		return 0;
	uint32_t offset = ch__offset(heap, address);
	ch__place_read_begin();
	put_place(&line, heap, offset);
	put(&line, " (");
	put_number(&line, address, 16);
	put(&line, ")");
	put_return(&line, heap, ucontext);
	ch__place_read_end();
	return end(&line);
}
