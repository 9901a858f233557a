/* SPDX-License-Identifier: MIT
 * template_probe.h: calls a trampoline with every argument register filled, from a frame whose
 * callee-saved registers hold known words, and says what the target saw and what came back. Does
 * the same step by step, asking the unwinder of the process for the caller at each instruction.
 * template_probe_<arch>.h, named by mk/hosts.mk, has the registers. A program includes the header
 * once. */
#pragma once

#include CH_TEST_PROBE

/* Distinct words everywhere. */
static inline void probe_fill(uint64_t salt)
{
	for (unsigned i = 0; i < PROBE_ARGS; i++)
		probe_args[i] = salt * 0x9e3779b97f4a7c15 + 0x1000 + i;
	for (unsigned i = 0; i < 8; i++)
		memset(probe_vectors[i], (int)(salt + 0x40 + i), 16);
	for (unsigned i = 0; i < 2; i++) {
		probe_result[i] = ~salt - i;
		memset(probe_result_vectors[i], (int)(salt + 0x80 + i), 16);
	}
	/* The words are readable addresses, so that a wrong rule for the frame leads somewhere. */
	static uint64_t ground[PROBE_KEPT][64];
	for (unsigned i = 0; i < PROBE_KEPT; i++)
		probe_kept[i] = (uint64_t)(uintptr_t)&ground[i][32];
	memset(probe_seen, 0, sizeof probe_seen);
	memset(probe_got, 0, sizeof probe_got);
	memset(probe_seen_vectors, 0, sizeof probe_seen_vectors);
	probe_seen_payload = 0;
}

static inline void probe_check(uint64_t payload, uint64_t frame_bytes)
{
	for (unsigned i = 0; i < PROBE_ARGS; i++)
		CHECK_EQ(probe_seen[i], probe_args[i]);
	CHECK(!memcmp(probe_seen_vectors, probe_vectors, sizeof probe_vectors));
	if (probe_seen_payload != payload)
		FAIL("the payload literal is not what was given: %llx, not %llx",
		     (unsigned long long)probe_seen_payload, (unsigned long long)payload);
	probe_check_stack(frame_bytes);
	CHECK_EQ(probe_got[0], probe_result[0]);
	CHECK_EQ(probe_got[1], probe_result[1]);
	CHECK(!memcmp(probe_got_vectors, probe_result_vectors, sizeof probe_got_vectors));
	for (unsigned i = 0; i < PROBE_KEPT; i++)
		CHECK_EQ(probe_kept_after[i], probe_kept[i]);
}

/* --- step by step --- */

struct probe_walk {
	uintptr_t low, high; /* the trampoline's code; high is where its literals begin */
	bool has_frame;
	uintptr_t pc;
	enum { ABOVE, AT_PC, IN_TRAMPOLINE, AT_CALLER } place;
	bool has_caller;
};
static struct {
	uintptr_t low, high;
	bool has_frame;
	unsigned steps, target_steps, wrong;
	uintptr_t wrong_pc;
} probe_steps;

static _Unwind_Reason_Code probe_frame(struct _Unwind_Context *context, void *arg)
{
	struct probe_walk *walk = arg;
	uintptr_t ip = _Unwind_GetIP(context);
	if (walk->place == ABOVE) {
		walk->place = ip == walk->pc ? AT_PC : ABOVE;
		return _URC_NO_REASON;
	}
	bool is_inside = walk->pc >= walk->low && walk->pc < walk->high;
	if (walk->place == AT_PC && !is_inside && walk->has_frame) {
		walk->place = IN_TRAMPOLINE;
		return ip > walk->low && ip < walk->high ? _URC_NO_REASON : _URC_END_OF_STACK;
	}
	walk->has_caller = probe_is_caller(context);
	walk->place = AT_CALLER;
	return _URC_END_OF_STACK;
}

/* Called by the handler of a signal that stopped at pc. */
static void probe_look(uintptr_t pc, uintptr_t sp)
{
	bool is_inside = pc >= probe_steps.low && pc < probe_steps.high;
	bool is_target = pc >= (uintptr_t)probe_target && pc < (uintptr_t)probe_target_end;
	if (!is_inside && !is_target)
		return;
	struct probe_walk walk = {.low = probe_steps.low,
				  .high = probe_steps.high,
				  .has_frame = probe_steps.has_frame,
				  .pc = pc};
	/* The trampoline keeps nothing below sp, and no unwinder may rely on bytes there. */
	if (is_inside)
		memset((void *)(sp - 64), 0x5a, 64);
	_Unwind_Backtrace(probe_frame, &walk);
	probe_steps.steps += is_inside;
	probe_steps.target_steps += is_target;
	if (!walk.has_caller && !probe_steps.wrong++)
		probe_steps.wrong_pc = pc;
}

/* Runs the trampoline step by step; probe_steps has the results. */
static inline void probe_step(const uint8_t *code, size_t code_bytes, bool has_frame)
{
	memset(&probe_steps, 0, sizeof probe_steps);
	probe_steps.low = (uintptr_t)code;
	probe_steps.high = (uintptr_t)code + code_bytes;
	probe_steps.has_frame = has_frame;
	/* The unwinder sorts tables at the first look, which must not come in the handler. */
	_Unwind_Backtrace(probe_frame, &(struct probe_walk){0});
	probe_run_steps(code);
}
