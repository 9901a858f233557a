/* SPDX-License-Identifier: MIT
 * templates.c: the templates of trampolines. A copy with filled literals passes every argument
 * register, the results and the payload, keeps the stack aligned, and begins where an indirect jump
 * may land. tests/unit/unwind/templates.c tests the unwind rules of templates. */
#define _GNU_SOURCE
#include "arch/arch.h"
#include "arch/registers.h"
#include "arch/stubs.h"
#include "tests/support/template_probe.h"
#include "tests/support/two_views.h"

enum { COPY_BYTES = 4096, COPY_AT = 8 };

struct copy {
	uint8_t *exec, *write; /* where the template's first byte goes */
	size_t at;
};

/* Makes a copy as in a block: `at` is a multiple of 8. */
static struct copy copy_of(enum ch_trampoline kind, size_t at, uint64_t payload)
{
	struct ch__arch_template t = ch__arch_templates[kind];
	uint64_t target = (uintptr_t)probe_target;
	uint8_t *write, *exec = two_views_map(COPY_BYTES, &write);
	memcpy(write + at, t.begin, t.bytes);
	memcpy(write + at + t.target_at, &target, 8);
	memcpy(write + at + t.payload_at, &payload, 8);
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
		struct ch__arch_template t = ch__arch_templates[kind];
		CHECK_EQ((uintptr_t)t.begin % 8, 0);
		CHECK(t.bytes <= CH_ARCH_TEMPLATE_BYTES);
		CHECK(!memcmp(t.begin, probe_landing, sizeof probe_landing));
		uint16_t literals[2] = {t.target_at, t.payload_at};
		CHECK(t.target_at != t.payload_at);
		for (unsigned i = 0; i < 2; i++) {
			uint64_t literal;
			CHECK_EQ((uintptr_t)(t.begin + literals[i]) % 8, 0);
			CHECK(literals[i] + 8 <= t.bytes);
			memcpy(&literal, t.begin + literals[i], 8);
			CHECK_EQ(literal, 0); /* the loader has nothing to write into the code */
		}
	}
	struct ch__arch_template longest = ch__arch_templates[CH_TRAMPOLINE_FRAMED];
	CHECK_EQ(longest.bytes, CH_ARCH_TEMPLATE_BYTES); /* a slot is not wider than needed */
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

TEST(framed_template_keeps_the_frame_pointer)
{
	struct ch__arch_template t = ch__arch_templates[CH_TRAMPOLINE_FRAMED];
	struct copy copy = copy_of(CH_TRAMPOLINE_FRAMED, COPY_AT, 0);
	uint8_t *code = copy.exec;
	uint64_t target = (uintptr_t)walk;
	memcpy(copy.write + t.target_at, &target, 8);
	((void (*)(void))(uintptr_t)code)();
	CHECK(walked[0] > (uintptr_t)code && walked[0] < (uintptr_t)code + t.target_at);
	CHECK(walked[1] != 0 && (walked[1] < (uintptr_t)code || walked[1] > (uintptr_t)code + 64));
}
