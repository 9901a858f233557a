/* SPDX-License-Identifier: MIT
 * stub_rig.h: for the test of each architecture's stubs: a stub with its trampoline in two views,
 * a callback that longjmp leaves, and what the unwinder finds below the stub, in the callback and
 * at each instruction of the stub entry. The test has the machine's code. This header has no
 * tests. */
#pragma once

#include "arch/arch.h"
#include "arch/stubs.h"
#include "tests/support/jit_range.h"
#include "tests/support/two_views.h"

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unwind.h>

enum {
	CODE_BYTES = 1 << 16,
	TRAMPOLINE_AT = 256,
	STUB_INDEX = 0xabcdef,
	STUB_AT = CODE_BYTES - CH_ARCH_STUB_BYTES,
};

struct rig {
	struct ch__arch_stub_context context; /* first: the callback casts back */
	uint8_t *exec, *write;
	uintptr_t stub;
	uintptr_t hits;
	bool changes;
	struct ch_regs seen;
	uint64_t seen_fp[33]; /* of regs->extended, what the machine's test compares */
	jmp_buf out;
};

static inline void map_rig(struct rig *rig,
			   void (*hit)(struct ch__arch_stub_context *, struct ch_regs *, uintptr_t))
{
	memset(rig, 0, sizeof *rig);
	rig->exec = two_views_map(CODE_BYTES, &rig->write);
	ch__arch_stub_context_init(&rig->context);
	rig->context.hit = hit;
	size_t bytes = ch__arch_trampoline_write(rig->write + TRAMPOLINE_AT, &rig->context);
	CHECK(bytes > 0 && bytes <= 64);
	rig->stub = (uintptr_t)rig->exec + STUB_AT;
	ch__arch_stub_write(rig->write + STUB_AT, rig->stub, (uintptr_t)rig->exec + TRAMPOLINE_AT,
			    STUB_INDEX);
	ch__arch_sync(rig->exec, CODE_BYTES);
}

/* What holds of every hit. */
static inline struct rig *note_hit(struct ch__arch_stub_context *context,
				   const struct ch_regs *regs, uintptr_t return_address)
{
	struct rig *rig = (struct rig *)context;
	CHECK_EQ(return_address, rig->stub + CH_ARCH_STUB_CALL_BYTES);
	const uint8_t *read = rig->write + (return_address - (uintptr_t)rig->exec);
	CHECK_EQ(ch__arch_stub_index(read), STUB_INDEX);
	CHECK_EQ((uintptr_t)__builtin_frame_address(0) & 15, 0);
	rig->seen = *regs;
	rig->hits++;
	return rig;
}

static inline void hit_and_jump_out(struct ch__arch_stub_context *context, struct ch_regs *regs,
				    uintptr_t return_address)
{
	struct rig *rig = (struct rig *)context;
	(void)regs;
	(void)return_address;
	rig->hits++;
	longjmp(rig->out, 1);
}

/* Leaves 1,000 hits by longjmp. The rig then hits as before. */
static inline void jump_out_of_hits(struct rig *rig)
{
	map_rig(rig, hit_and_jump_out);
	for (volatile unsigned i = 0; i < 1000; i++)
		if (setjmp(rig->out) == 0)
			((void (*)(void))rig->stub)();
	CHECK_EQ(rig->hits, 1000);
	rig->hits = 0;
}

/* --- what the unwinder finds --- */

static struct {
	uintptr_t ip[64];
	unsigned count;
	uintptr_t jit_low, jit_high;
	/* Where the test's JIT code leaves known words, by the unwinder's numbers. */
	struct site_register {
		int number;
		uint64_t value; /* 0: the address of the JIT code's caller */
		const char *lost; /* what is wrong with another value; NULL: no register */
	} registers[3];
	uint64_t found[3];
} frames;

static uintptr_t leave_to; /* where the callback goes on */

static inline _Unwind_Reason_Code note_frame(struct _Unwind_Context *context, void *arg)
{
	(void)arg;
	uintptr_t ip = _Unwind_GetIP(context);
	if (frames.count < 64)
		frames.ip[frames.count++] = ip;
	if (ip - 1 >= frames.jit_low && ip - 1 < frames.jit_high)
		for (unsigned r = 0; r < 3 && frames.registers[r].lost; r++)
			frames.found[r] = _Unwind_GetGR(context, frames.registers[r].number);
	return _URC_NO_REASON;
}

static inline void backtrace(void)
{
	frames.count = 0;
	memset(frames.found, 0, sizeof frames.found);
	_Unwind_Backtrace(note_frame, NULL);
}

static inline void hit_and_backtrace(struct ch__arch_stub_context *context, struct ch_regs *regs,
				     uintptr_t return_address)
{
	(void)context;
	(void)return_address;
	backtrace();
	regs->pc = leave_to;
}

static __attribute__((noinline)) uintptr_t call_jit(uintptr_t entry)
{
	((void (*)(void))entry)();
	__asm__ volatile("");
	return (uintptr_t)__builtin_return_address(0);
}

/* Judges the frames seen from below the stub. Returns NULL, or a text that says what is wrong. */
static inline const char *judge_frames(uintptr_t at_jit, uintptr_t caller)
{
	unsigned i = 0;
	while (i < frames.count && frames.ip[i] != at_jit)
		i++;
	if (i + 2 >= frames.count)
		return "the JIT frame is not there";
	if (frames.ip[i + 1] <= (uintptr_t)call_jit || frames.ip[i + 1] >= (uintptr_t)call_jit + 64)
		return "its caller is not there";
	if (caller && frames.ip[i + 2] != caller)
		return "the caller's caller is not there";
	for (unsigned r = 0; r < 3 && frames.registers[r].lost; r++) {
		const struct site_register *site = &frames.registers[r];
		if (frames.found[r] != (site->value ? site->value : frames.ip[i + 1]))
			return site->lost;
	}
	return NULL;
}

/* --- at each instruction of the stub entry, of 4 bytes each: a trap's handler unwinds --- */

void ch__arch_stub_entry(void);

static struct {
	uint32_t kept[256];
	unsigned count, leaving, steps;
	uintptr_t low, at_jit;
	const char *wrong;
	unsigned wrong_at;
} stepped;

static inline void step(int signal, siginfo_t *info, void *ucontext)
{
	(void)signal, (void)info;
	uintptr_t pc = ch__arch_context_pc(ucontext);
	unsigned i = (unsigned)(pc - stepped.low) / 4;
	if (pc < stepped.low || i >= stepped.count)
		_exit(3);
	backtrace();
	/* At the last instructions the frame is gone, and the pc goes where the callback said. */
	bool is_leaving = i + stepped.leaving >= stepped.count;
	const char *wrong = judge_frames(is_leaving ? leave_to : stepped.at_jit, 0);
	if (wrong && !stepped.wrong) {
		stepped.wrong = wrong;
		stepped.wrong_at = i;
	}
	stepped.steps++;
	((uint32_t *)stepped.low)[i] = stepped.kept[i];
	ch__arch_sync((uint8_t *)pc, 4);
}

/* Counts the instructions from the symbol to the first jump that leaves. */
static inline unsigned count_instructions(const uint32_t *code, uint32_t jump)
{
	unsigned n = 0;
	while (code[n] != jump)
		CHECK(++n < 256);
	return n + 1;
}

static inline void make_writable(void)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), low = stepped.low & ~(page - 1);
	CHECK_EQ(mprotect((void *)low, 2 * page, PROT_READ | PROT_WRITE | PROT_EXEC), 0);
}

/* The rig backtraces, and the JIT code at `entry` takes the stub. The stub entry ends with `jump`;
 * at its last `leaving` instructions the return address is the jump's target. */
static inline void step_through(const struct rig *rig, uintptr_t entry, uint32_t jump,
				unsigned leaving, uint32_t breakpoint)
{
	uint32_t *code = (uint32_t *)(uintptr_t)ch__arch_stub_entry;
	stepped.low = (uintptr_t)code;
	stepped.count = count_instructions(code, jump);
	stepped.leaving = leaving;
	stepped.at_jit = rig->stub + CH_ARCH_STUB_CALL_BYTES;
	memcpy(stepped.kept, code, 4 * stepped.count);
	backtrace(); /* the unwinder's first look sorts tables: not in the handler */
	make_writable();
	for (unsigned i = 0; i < stepped.count; i++)
		code[i] = breakpoint;
	ch__arch_sync((uint8_t *)code, 4 * stepped.count);
	struct sigaction action = {.sa_sigaction = step, .sa_flags = SA_SIGINFO};
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	call_jit(entry);
	jit_range_forget();
	if (stepped.wrong)
		FAIL("at instruction %u of %u of the stub entry: %s", stepped.wrong_at,
		     stepped.count, stepped.wrong);
	CHECK_EQ(stepped.steps, stepped.count);
}
