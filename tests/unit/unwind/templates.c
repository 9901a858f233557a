/* SPDX-License-Identifier: MIT
 * templates.c: the frames of templates. A frame is right at every instruction of a copy, and is
 * wrong when any one CFI instruction is dropped. The slots of a page come and go with it. */
#define _GNU_SOURCE
#include "tests/support/template_probe.h"
#include "tests/support/unwind_rig.h"
#include "sinks/table.h"
#include "unwind/unwinders.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LITERALS_BYTES = 16 }; /* behind the code */
enum { CODE_AT = 8, SLOT_BYTES = (CODE_AT + CH_ARCH_TEMPLATE_BYTES + 7) & ~7 };

extern void __register_frame_info(const void *begin, void *object);

static uint8_t frame_of(enum ch_trampoline kind)
{
	return (uint8_t)(CH__FRAME_SLOTS + kind);
}

static void open_slots(struct bed *bed, unsigned wanted)
{
	bed_map(bed);
	bed->config.head_bytes = CODE_AT;
	bed->config.slot_bytes = SLOT_BYTES;
	CHECK_EQ(ch__sinks_create(&bed->config, wanted, &bed->sinks), 0);
}

static size_t slot_offset(uint32_t page, uint32_t slot)
{
	return (size_t)page * BED_PAGE_BYTES + (size_t)slot * SLOT_BYTES;
}

static const uint32_t slots_in_page = BED_PAGE_BYTES / SLOT_BYTES;

/* Writes a trampoline to probe_target into a slot. Returns the trampoline's code. */
static const uint8_t *put_trampoline(struct bed *bed, enum ch_trampoline kind, size_t offset,
				     uint64_t payload)
{
	_Alignas(8) uint8_t code[CH_ARCH_TEMPLATE_BYTES];
	size_t bytes = ch__arch_template_write(kind, code, (uintptr_t)probe_target, payload);
	return bed_code(bed, offset + CODE_AT, code, bytes);
}

/* Steps through the code. Returns how many instructions had a wrong caller. */
static unsigned count_wrong(const uint8_t *code, enum ch_trampoline kind)
{
	static const unsigned instructions[CH__TEMPLATES] = {PROBE_FRAMED_STEPS, PROBE_TAIL_STEPS};
	uint8_t same[CH_ARCH_TEMPLATE_BYTES];
	size_t bytes = ch__arch_template_write(kind, same, 0, 0);
	probe_fill(kind + 77);
	probe_step(code, bytes - LITERALS_BYTES, kind == CH_TRAMPOLINE_FRAMED);
	CHECK_EQ(probe_steps.steps, instructions[kind]);
	CHECK(probe_steps.target_steps >= PROBE_TARGET_STEPS);
	return probe_steps.wrong;
}

TEST(unwinder_finds_the_caller_at_every_instruction)
{
	struct bed bed;
	open_slots(&bed, CH_SINK_UNWIND);
	for (unsigned kind = 0; kind < CH__TEMPLATES; kind++) {
		uint32_t page = 5 + kind, slots[] = {0, 1, 100, slots_in_page - 1};
		CHECK(ch__sinks_page_live(bed.sinks, page, 1, frame_of((enum ch_trampoline)kind)));
		for (unsigned i = 0; i < sizeof slots / sizeof slots[0]; i++) {
			size_t at = slot_offset(page, slots[i]);
			const uint8_t *code =
				put_trampoline(&bed, (enum ch_trampoline)kind, at, 4711 + i);
			if (count_wrong(code, (enum ch_trampoline)kind))
				FAIL("template %u: a wrong caller at its byte %lld", kind,
				     (long long)(probe_steps.wrong_pc - (uintptr_t)code));
			probe_check(4711 + i,
				    kind == CH_TRAMPOLINE_FRAMED ? PROBE_FRAMED_BYTES : 0);
		}
	}
	bed_close(&bed);
}

/* Without a table no caller is found, so the test above sees the slot's FDE. */
TEST(unwinder_finds_no_caller_without_the_page)
{
	struct bed bed;
	open_slots(&bed, CH_SINK_UNWIND);
	const uint8_t *code = put_trampoline(&bed, CH_TRAMPOLINE_TAIL, slot_offset(5, 9), 1);
	CHECK_EQ(count_wrong(code, CH_TRAMPOLINE_TAIL), PROBE_TAIL_STEPS);
	bed_close(&bed);
}

/* --- one instruction dropped --- */

/* Returns the bytes of a CFI instruction, for the instructions that templates have. */
static size_t cfa_bytes(const uint8_t *at)
{
	if (*at == 0 || (*at & 0xc0) == 0x40 || (*at & 0xc0) == 0xc0)
		return 1; /* nop, advance_loc, restore */
	if (*at == 0x0e || *at == 0x0d || (*at & 0xc0) == 0x80)
		return 2; /* def_cfa_offset, def_cfa_register, offset */
	if (*at == 0x0c)
		return 3; /* def_cfa */
	FAIL("an instruction that this test does not know: %02x", *at);
}

struct dropped {
	struct ch__frame_shape shapes[CH__FRAMES];
	struct bed *bed;
	const uint8_t *code;
	uint8_t *section;
};

/* Works in a child: a wrong rule may lead the unwinder anywhere. Exits 0 with no wrong caller. */
static bool is_noticed(struct dropped *d)
{
	pid_t child = fork_child();
	if (!child) {
		uintptr_t object[16] = {0};
		uint8_t frame = CH__FRAME_SLOTS + CH_TRAMPOLINE_FRAMED;
		struct ch__eh_place place = {
			(uintptr_t)d->bed->pool, BED_PAGE_BYTES, 4, SLOT_BYTES, CODE_AT};
		size_t bytes = (ch__eh_frame_bytes(&place) + 15) & ~15UL;
		uint8_t *section = aligned_alloc(16, bytes);
		CHECK(section);
		memset(section, 0, bytes); /* as side memory comes */
		ch__eh_frame_write(section, &place, d->shapes);
		uint32_t slot = 2 * slots_in_page + 3;
		ch__eh_frame_live(section, slot, SLOT_BYTES - CODE_AT, d->shapes, frame);
		__register_frame_info(section, object);
		_exit(count_wrong(d->code, CH_TRAMPOLINE_FRAMED) != 0);
	}
	int status;
	CHECK_EQ(waitpid(child, &status, 0), child);
	return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

TEST(each_instruction_of_the_frame_is_needed)
{
	struct bed bed;
	bed_map(&bed);
	struct dropped d = {.bed = &bed};
	struct ch__frame_shape *shape = &d.shapes[CH__FRAME_SLOTS + CH_TRAMPOLINE_FRAMED];
	ch__sinks_fixed_shapes(d.shapes, SLOT_BYTES);
	d.code = put_trampoline(&bed, CH_TRAMPOLINE_FRAMED, slot_offset(2, 3), 5);
	CHECK(!is_noticed(&d));
	unsigned dropped = 0;
	for (size_t at = 0, n; at < shape->fde_bytes; at += n) {
		uint8_t kept[4];
		n = cfa_bytes(shape->fde + at);
		if (!shape->fde[at])
			continue;
		memcpy(kept, shape->fde + at, n);
		memset(shape->fde + at, 0, n);
		if (!is_noticed(&d))
			FAIL("nobody misses the instruction at byte %zu of the frame's", at);
		memcpy(shape->fde + at, kept, n);
		dropped++;
	}
	CHECK_EQ(dropped, PROBE_FRAMED_RULES);
	CHECK(!is_noticed(&d));
	ch__meta_destroy(bed.config.meta);
	munmap(bed.runtime, BED_PAGE_BYTES + BED_POOL_BYTES);
}

/* --- slots come and go --- */

static void check_slots(const struct bed *bed, uint32_t page, bool are_live)
{
	for (uint32_t i = 0; i < slots_in_page; i++) {
		const uint8_t *slot = bed->pool + slot_offset(page, i);
		CHECK_EQ(libgcc_knows(slot + CODE_AT), are_live);
		CHECK_EQ(libgcc_knows(slot + CODE_AT + 20), are_live);
		CHECK_EQ(libgcc_knows(slot + SLOT_BYTES - 1), are_live);
		CHECK(!libgcc_knows(slot) && !libgcc_knows(slot + CODE_AT - 1));
	}
	CHECK(!libgcc_knows(bed->pool + (size_t)page * BED_PAGE_BYTES - 1));
}

TEST(slots_come_and_go_with_their_page)
{
	enum { ROUNDS = 40 };
	struct bed bed;
	static const uint32_t pages[] = {15, 16, 63, 64};
	bool live[4] = {false};
	struct test_random random = test_random_new();
	open_slots(&bed, CH_SINK_UNWIND);
	for (int round = 0; round < ROUNDS; round++) {
		unsigned p = (unsigned)test_random_below(&random, 4);
		uint8_t kind = (uint8_t)test_random_below(&random, CH__TEMPLATES);
		live[p] = !live[p];
		if (live[p])
			CHECK(ch__sinks_page_live(bed.sinks, pages[p], 1,
						  frame_of((enum ch_trampoline)kind)));
		else
			ch__sinks_page_dead(bed.sinks, pages[p], 1);
		check_slots(&bed, pages[p], live[p]);
	}
	bed_close(&bed);
}

TEST(chunk_of_slots_is_forgotten_as_a_whole)
{
	struct bed bed;
	open_slots(&bed, CH_SINK_UNWIND);
	size_t before = ch__meta_bytes(bed.config.meta);
	uintptr_t exec = (uintptr_t)bed.pool + slot_offset(70, 7);
	for (int round = 0; round < 3; round++) {
		/* As slots, then as ordinary code, then as slots of the other kind. */
		uint8_t frame = (uint8_t)(round == 1 ? 0 : CH__FRAME_SLOTS + (round & 1));
		CHECK(ch__sinks_page_live(bed.sinks, 70, 1, frame));
		CHECK(libgcc_knows((const uint8_t *)exec + CODE_AT));
		ch__sinks_page_dead(bed.sinks, 70, 1);
		CHECK(!libgcc_knows((const uint8_t *)exec + CODE_AT));
		ch__sinks_chunk_gone(bed.sinks, 1);
		CHECK_EQ(ch__meta_bytes(bed.config.meta), before);
	}
	bed_close(&bed);
}

/* The slots of a chunk have several sections; all sections go with the chunk. */
TEST(each_section_of_slots_goes_with_its_chunk)
{
	struct bed bed;
	open_slots(&bed, CH_SINK_UNWIND);
	size_t before = ch__meta_bytes(bed.config.meta);
	uint8_t frame = frame_of(CH_TRAMPOLINE_FRAMED);
	CHECK(ch__sinks_page_live(bed.sinks, BED_PAGES_PER_CHUNK, BED_PAGES_PER_CHUNK, frame));
	for (uint32_t page = BED_PAGES_PER_CHUNK; page < 2 * BED_PAGES_PER_CHUNK; page++) {
		uintptr_t exec = (uintptr_t)bed.pool + slot_offset(page, 3);
		CHECK(libgcc_knows((const uint8_t *)exec + CODE_AT));
	}
	CHECK(ch__meta_bytes(bed.config.meta) > before);
	ch__sinks_page_dead(bed.sinks, BED_PAGES_PER_CHUNK, BED_PAGES_PER_CHUNK);
	ch__sinks_chunk_gone(bed.sinks, 1);
	CHECK_EQ(ch__meta_bytes(bed.config.meta), before);
	bed_close(&bed);
}

/* --- turned on late --- */

static uintptr_t published[2];
static void each_published(void *context, void (*visit)(void *, const struct ch__sink_range *),
			   void *arg)
{
	(void)context;
	for (unsigned i = 0; i < 2; i++) {
		struct ch__sink_range range = {published[i] + CODE_AT, SLOT_BYTES - CODE_AT,
						i + 1, false};
		visit(arg, &range);
	}
}

TEST(unwind_turned_on_late_knows_live_slots)
{
	struct bed bed;
	bed_map(&bed);
	bed.config.head_bytes = CODE_AT;
	bed.config.slot_bytes = SLOT_BYTES;
	bed.config.each = each_published;
	CHECK_EQ(ch__sinks_create(&bed.config, 0, &bed.sinks), 0);
	uint8_t frame = frame_of(CH_TRAMPOLINE_TAIL);
	CHECK(ch__sinks_page_live(bed.sinks, 3, 1, frame));
	CHECK(ch__sinks_page_live(bed.sinks, 100, 1, 0));
	published[0] = (uintptr_t)bed.pool + slot_offset(3, 30);
	published[1] = (uintptr_t)bed.pool + 100 * BED_PAGE_BYTES + 64;
	const uint8_t *code = (const uint8_t *)published[0] + CODE_AT;
	for (int round = 0; round < 3; round++) {
		CHECK(!libgcc_knows(code));
		CHECK_EQ(ch__sinks_set(bed.sinks, CH_SINK_UNWIND), 0);
		CHECK(libgcc_knows(code));
		CHECK(!libgcc_knows(code - 1));
		CHECK(libgcc_knows((const uint8_t *)published[1]));
		CHECK_EQ(ch__sinks_set(bed.sinks, 0), 0);
	}
	ch__sinks_destroy(bed.sinks);
	CHECK_EQ(ch__meta_bytes(bed.config.meta), 0);
	ch__meta_destroy(bed.config.meta);
	munmap(bed.runtime, BED_PAGE_BYTES + BED_POOL_BYTES);
}
