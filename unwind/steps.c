/* SPDX-License-Identifier: MIT
 * steps.c: what unwinders read of code with a frame that is right at each instruction: the map of a
 * heap, the notes of blocks, and the program of a CIE that finds a note by the pc. Nothing is
 * registered here, and no lock is taken: one writer a block; unwinders read without atomics,
 * ordered by how the code became reachable.
 *
 *   note      +0 bytes back to the code's first (u32)
 *             +4 for each register of ch__arch_steps_kept: from which offset on it is saved
 *                (0xffff: never), how many bytes below the caller's sp (u16 each)
 *             then steps: from which offset on, the caller's sp above sp (u16 each); the first is
 *                of offset 0, the end is 0xffff
 *
 * Only on x86-64 can an expression name a pc register with the pc of the frame itself, for a call
 * and for a signal: libgcc, nongnu and LLVM's libunwind, gdb, lldb. A saved register's expression
 * counts the CFA anew, because libunwind before 1.7 hands over a stale CFA.
 * Sources: DWARF 4, 2.5.1 and 6.4.2. */
#include "unwind/steps.h"

#include "os/text.h"

enum {
	NEVER = 0xffff,
	OP_ADDR = 0x03,
	OP_DEREF = 0x06,
	OP_CONST1S = 0x09,
	OP_DUP = 0x12,
	OP_DROP = 0x13,
	OP_OVER = 0x14,
	OP_PICK = 0x15,
	OP_SWAP = 0x16,
	OP_AND = 0x1a,
	OP_MINUS = 0x1c,
	OP_PLUS = 0x22,
	OP_PLUS_UCONST = 0x23,
	OP_SHL = 0x24,
	OP_SHR = 0x25,
	OP_BRA = 0x28,
	OP_GT = 0x2b,
	OP_SKIP = 0x2f,
	OP_LIT0 = 0x30,
	OP_BREG0 = 0x70,
	OP_PC = OP_BREG0 + CH_ARCH_DWARF_RETURN,
	OP_DEREF_SIZE = 0x94,
	OP_NOP = 0x96,
	CFA_OFFSET = 0x80,
	CFA_DEF_CFA_EXPRESSION = 0x0f,
	CFA_VAL_EXPRESSION = 0x16,
};
_Static_assert(CH__NOTE_STEPS_AT + 2 < 128, "places in a note are one byte of ULEB128");

/* For code without a note: the frame as at the call, nothing saved. */
static const struct {
	uint32_t back;
	uint16_t saves[CH_ARCH_STEPS_KEPT][2];
	uint16_t steps[2][2];
} none = {
	.saves = {[0 ... CH_ARCH_STEPS_KEPT - 1] = {NEVER, NEVER}},
	.steps = {{0, CH_ARCH_STEPS_CFA}, {NEVER, 0}},
};

#define PUT(s, ...) put((s), (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__}))
static void put(struct ch__steps *s, const uint8_t *bytes, size_t n)
{
	CH_ASSERT(s->program_bytes + n <= sizeof s->program, "a program is longer than it can be");
	memcpy(s->program + s->program_bytes, bytes, n);
	s->program_bytes += (uint32_t)n;
}

static void put_address(struct ch__steps *s, const volatile void *address)
{
	uint64_t word = (uintptr_t)address;
	PUT(s, OP_ADDR);
	put(s, (const uint8_t *)&word, sizeof word);
}

/* An operation with two bytes that land or end_expression writes. */
static uint32_t put_gap(struct ch__steps *s, uint8_t op)
{
	PUT(s, op, 0, 0);
	return s->program_bytes;
}

static void land(struct ch__steps *s, uint32_t jump)
{
	s->program[jump - 2] = (uint8_t)(s->program_bytes - jump);
}

/* Writes the length of the expression, below 128, in the two bytes before it: ULEB128. */
static void end_expression(struct ch__steps *s, uint32_t from)
{
	s->program[from - 2] = (uint8_t)(0x80 | (s->program_bytes - from));
}

/* Leaves the note, and above the note the pc's offset in the code. */
static void put_find(struct ch__steps *s)
{
	PUT(s, OP_PC, 0);
	put_address(s, (const void *)s->pool_exec);
	PUT(s, OP_MINUS, OP_LIT0 + 3, OP_SHR, OP_LIT0 + 1, OP_SHL);
	put_address(s, s->map);
	PUT(s, OP_PLUS, OP_DEREF_SIZE, 2, OP_DUP);
	uint32_t has_note = put_gap(s, OP_BRA);
	PUT(s, OP_DROP);
	put_address(s, &none);
	PUT(s, OP_LIT0);
	uint32_t has_none = put_gap(s, OP_SKIP);
	land(s, has_note);
	/* note = (pc & -8) + 8 * (distance - 1); offset = pc - note + back */
	PUT(s, OP_LIT0 + 1, OP_MINUS, OP_LIT0 + 3, OP_SHL);
	PUT(s, OP_PC, 0, OP_CONST1S, 0xf8, OP_AND, OP_PLUS);
	PUT(s, OP_DUP, OP_DEREF_SIZE, 4, OP_OVER, OP_MINUS, OP_PC, 0, OP_PLUS);
	land(s, has_none);
}

/* Offset, first step -> offset, CFA: by the last step at or below the offset. */
static void put_walk(struct ch__steps *s)
{
	uint32_t again = s->program_bytes;
	PUT(s, OP_DUP, OP_PLUS_UCONST, 4, OP_DEREF_SIZE, 2, OP_PICK, 2, OP_GT);
	uint32_t found = put_gap(s, OP_BRA);
	PUT(s, OP_PLUS_UCONST, 4);
	uint32_t back = again - (s->program_bytes + 3);
	PUT(s, OP_SKIP, (uint8_t)back, (uint8_t)(back >> 8));
	land(s, found);
	PUT(s, OP_PLUS_UCONST, 2, OP_DEREF_SIZE, 2, OP_BREG0 + CH_ARCH_DWARF_SP, 0, OP_PLUS);
}

/* Returns the offset in a note of the register `nth` of ch__arch_steps_kept. */
static size_t save_at(unsigned nth)
{
	return CH__NOTE_SAVES_AT + (size_t)4 * nth;
}

/* Leaves the value of the nth register that may be saved. */
static void put_saved(struct ch__steps *s, unsigned nth)
{
	uint8_t at = (uint8_t)save_at(nth);
	PUT(s, CFA_VAL_EXPRESSION);
	uint32_t from = put_gap(s, ch__arch_steps_kept[nth]);
	put_find(s);
	PUT(s, OP_OVER, OP_PLUS_UCONST, at, OP_DEREF_SIZE, 2, OP_OVER, OP_GT);
	uint32_t kept = put_gap(s, OP_BRA);
	PUT(s, OP_OVER, OP_PLUS_UCONST, CH__NOTE_STEPS_AT);
	put_walk(s);
	PUT(s, OP_PICK, 2, OP_PLUS_UCONST, (uint8_t)(at + 2), OP_DEREF_SIZE, 2, OP_MINUS, OP_DEREF);
	uint32_t end = put_gap(s, OP_SKIP);
	land(s, kept);
	PUT(s, (uint8_t)(OP_BREG0 + ch__arch_steps_kept[nth]), 0);
	land(s, end);
	PUT(s, OP_NOP); /* lldb refuses a jump to the end */
	end_expression(s, from);
}

bool ch__steps_begin(struct ch__steps *s, uintptr_t pool_exec, size_t pool_bytes)
{
	memset(s, 0, sizeof *s);
	s->pool_exec = pool_exec;
	s->map_bytes = pool_bytes / 8 * sizeof *s->map;
	s->map = ch__os_private(s->map_bytes);
	if (!s->map)
		return false;
	uint32_t cfa = put_gap(s, CFA_DEF_CFA_EXPRESSION);
	put_find(s);
	PUT(s, OP_SWAP, OP_PLUS_UCONST, CH__NOTE_STEPS_AT);
	put_walk(s);
	end_expression(s, cfa);
	PUT(s, CFA_OFFSET | CH_ARCH_DWARF_RETURN, 1);
	for (unsigned i = 0; i < CH_ARCH_STEPS_KEPT; i++)
		put_saved(s, i);
	return true;
}

void ch__steps_end(struct ch__steps *s)
{
	ch__os_unmap(s->map, s->map_bytes);
}

static unsigned kept_index(uint8_t reg)
{
	unsigned i = 0;
	while (i < CH_ARCH_STEPS_KEPT && ch__arch_steps_kept[i] != reg)
		i++;
	return i;
}

/* Puts what is wrong in a step, if anything; put_save_fault does so for a save. */
static void put_step_fault(struct ch__text *fault, const struct ch_frame *f, unsigned i,
			   uint32_t code_bytes)
{
	enum { CFA_MOST = 32767 };
	const struct ch_frame_step *step = &f->steps[i];
	if (step->at >= code_bytes)
		ch__text_format(fault, "steps[%u].at is %u: not in the bytes that are used", i,
				step->at);
	else if (i && step->at <= step[-1].at)
		ch__text_format(fault, "steps[%u].at is %u: not above that of the step before", i,
				step->at);
	/* Below the least, the difference is large. */
	else if (step->cfa % 8 ||
		 (uint32_t)step->cfa - CH_ARCH_STEPS_CFA > CFA_MOST - CH_ARCH_STEPS_CFA)
		ch__text_format(fault, "steps[%u].cfa is %u: not a multiple of 8, from 8 to 32760",
				i, step->cfa);
}

/* The first word below the caller's sp is the return address. */
static void put_save_fault(struct ch__text *fault, const struct ch_frame *f, unsigned i,
			   uint32_t code_bytes, uint32_t *seen)
{
	const struct ch_frame_save *save = &f->saves[i];
	unsigned kept = kept_index(save->reg);
	if (kept == CH_ARCH_STEPS_KEPT || (*seen & 1u << kept))
		ch__text_format(fault,
				"saves[%u].reg is %u: none that a callee keeps, or there twice", i,
				save->reg);
	else if (save->below < 2)
		ch__text_format(fault, "saves[%u].below is %u: not 2 or more", i, save->below);
	else if (save->at >= code_bytes)
		ch__text_format(fault, "saves[%u].at is %u: not in the bytes that are used", i,
				save->at);
	*seen |= 1u << kept;
}

void ch__frame_fault(struct ch__text *fault, const struct ch_frame *f, uint32_t code_bytes)
{
	uint32_t seen = 0;
	bool has_steps = f->steps_n > CH__STEPS_MOST;
	if (has_steps || f->saves_n > CH__STEPS_MOST)
		ch__text_format(fault, "%s is %u: at most %u", has_steps ? "steps_n" : "saves_n",
				has_steps ? f->steps_n : f->saves_n, CH__STEPS_MOST);
	for (unsigned i = 0; i < f->steps_n && !fault->length; i++)
		put_step_fault(fault, f, i, code_bytes);
	for (unsigned i = 0; i < f->saves_n && !fault->length; i++)
		put_save_fault(fault, f, i, code_bytes, &seen);
}

static uint8_t *put_pair(uint8_t *at, uint32_t first, uint32_t second)
{
	uint16_t words[2] = {(uint16_t)first, (uint16_t)second};
	memcpy(at, words, sizeof words);
	return at + sizeof words;
}

uint32_t ch__frame_note(uint8_t *write, const struct ch_frame *f, uint32_t behind)
{
	uint8_t *at = write + CH__NOTE_STEPS_AT;
	memcpy(write, &behind, sizeof behind);
	memset(write + CH__NOTE_SAVES_AT, 0xff, (size_t)4 * CH_ARCH_STEPS_KEPT);
	for (unsigned i = 0; i < f->saves_n; i++)
		put_pair(write + save_at(kept_index(f->saves[i].reg)), f->saves[i].at,
			 8u * f->saves[i].below);
	if (!f->steps_n || f->steps[0].at)
		at = put_pair(at, 0, CH_ARCH_STEPS_CFA);
	for (unsigned i = 0; i < f->steps_n; i++)
		at = put_pair(at, f->steps[i].at, f->steps[i].cfa);
	at = put_pair(at, NEVER, 0);
	return (uint32_t)(at - write);
}

static _Atomic(uint16_t) *map_at(const struct ch__steps *s, uintptr_t exec)
{
	return &s->map[(exec - s->pool_exec) / 8];
}

void ch__steps_live(struct ch__steps *s, uintptr_t exec, uintptr_t note)
{
	for (uintptr_t at = exec & ~(uintptr_t)7; at <= note; at += 8)
		CH_STORE_RELAXED(map_at(s, at), (uint16_t)((note - at) / 8 + 1));
}

uintptr_t ch__steps_note(const struct ch__steps *s, uintptr_t exec)
{
	uint16_t distance = CH_LOAD_RELAXED(map_at(s, exec));
	return distance ? (exec & ~(uintptr_t)7) + (uintptr_t)8 * (distance - 1) : 0;
}

void ch__steps_dead(struct ch__steps *s, uintptr_t exec, size_t bytes)
{
	for (uintptr_t at = exec & ~(uintptr_t)7; at < exec + bytes; at += 8)
		CH_STORE_RELAXED(map_at(s, at), 0);
}
