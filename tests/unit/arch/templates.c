/* SPDX-License-Identifier: MIT
 * templates.c: trampolines as they are written. A trampoline passes every argument register, the
 * results and the payload, keeps the stack aligned, and begins where an indirect jump may land.
 * tests/unit/unwind/templates.c tests the unwind rules of trampolines. */
#define _GNU_SOURCE
#include "arch/arch.h"
#include "arch/registers.h"
#include "arch/stubs.h"
#include "tests/support/template_probe.h"
#include "tests/support/two_views.h"

enum { COPY_BYTES = 4096, COPY_AT = 8 };

struct copy {
	uint8_t *exec, *write; /* where the first byte goes */
	size_t at;
};

/* Makes a copy as in a block: `at` is a multiple of 8. */
static struct copy copy_of(enum ch_trampoline kind, size_t at, uint64_t payload)
{
	uint8_t *write, *exec = two_views_map(COPY_BYTES, &write);
	ch__arch_template_write(kind, write + at, (uintptr_t)probe_target, payload);
	ch__arch_sync(exec, COPY_BYTES);
	return (struct copy){exec + at, write + at, at};
}

static void drop_copy(struct copy copy)
{
	two_views_unmap(copy.exec - copy.at, copy.write - copy.at, COPY_BYTES);
}

TEST(template_passes_arguments_results_and_the_payload)
{
	for (unsigned kind = 0; kind < CH__TEMPLATES; kind++) {
		for (size_t at = COPY_AT; at < COPY_AT + 64; at += 8) {
			uint64_t payload = 0xfeed00000000 + kind * 1000 + at;
			struct copy code = copy_of((enum ch_trampoline)kind, at, payload);
			probe_fill(payload);
			probe_enter(code.exec, 0);
			probe_check(payload,
				    kind == CH_TRAMPOLINE_FRAMED ? PROBE_FRAMED_BYTES : 0);
			drop_copy(code);
		}
	}
}

TEST(template_lies_as_the_contract_says)
{
	for (unsigned kind = 0; kind < CH__TEMPLATES; kind++) {
		_Alignas(8) uint8_t code[CH_ARCH_TEMPLATE_BYTES + 8];
		uint64_t literals[2];
		memset(code, 0xee, sizeof code);
		size_t bytes = ch__arch_template_write((enum ch_trampoline)kind, code, 4711, 815);
		CHECK(bytes <= CH_ARCH_TEMPLATE_BYTES && bytes % 8 == 0);
		/* A slot is not wider than needed. */
		CHECK(kind != CH_TRAMPOLINE_FRAMED || bytes == CH_ARCH_TEMPLATE_BYTES);
		CHECK(!memcmp(code, probe_landing, sizeof probe_landing));
		memcpy(literals, code + bytes - sizeof literals, sizeof literals);
		CHECK_EQ(literals[0], 4711);
		CHECK_EQ(literals[1], 815);
		CHECK_EQ(code[bytes], 0xee);
	}
}

/* A walk by frame pointers from the target passes the framed trampoline. */
static uintptr_t walked[2];
__attribute__((noinline)) static void do_nothing(void)
{
	__asm__ volatile("");
}
static void walk(void)
{
	do_nothing(); /* a leaf function need not store its return address (riscv64) */
	uintptr_t fp = (uintptr_t)__builtin_frame_address(0);
	ch__arch_frame_step(fp, &fp, &walked[0]);
	ch__arch_frame_step(fp, &fp, &walked[1]);
	walked[0] = ch__arch_strip(walked[0]);
	walked[1] = ch__arch_strip(walked[1]);
}

/* The call's address lies in the first bytes of this function. */
__attribute__((noinline)) static void call_framed(void (*framed)(void))
{
	framed();
	__asm__ volatile("");
}

TEST(framed_template_keeps_the_frame_pointer)
{
	struct copy copy = copy_of(CH_TRAMPOLINE_FRAMED, COPY_AT, 0);
	uint8_t *code = copy.exec;
	ch__arch_template_write(CH_TRAMPOLINE_FRAMED, copy.write, (uintptr_t)walk, 0);
	ch__arch_sync(code, CH_ARCH_TEMPLATE_BYTES);
	call_framed((void (*)(void))(uintptr_t)code);
	CHECK(walked[0] > (uintptr_t)code && walked[0] < (uintptr_t)code + CH_ARCH_TEMPLATE_BYTES);
	CHECK(walked[1] > (uintptr_t)call_framed && walked[1] < (uintptr_t)call_framed + 256);
}
