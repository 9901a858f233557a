/* SPDX-License-Identifier: MIT
 * write.c: ch_code_write: committed code gets other bytes. Some places are refused, with the name
 * of the library's site in the way. tests/adversary/write.c runs the code meanwhile. */
#include "codeheap/base/heap.h"
#include "tests/support/heap_rig.h"
#include "tests/support/stage.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

static const enum ch_write NOT_RUNNING = CH_WRITE_NOT_RUNNING;

static uint32_t answer_of(struct ch_block block)
{
	return code_call(block_info(block).entry);
}

/* Writes code that returns the value, and that may run at any address. Returns its size. */
static uint32_t make_answer(uint32_t value, uint8_t bytes[64])
{
	struct emitter e = {.code = {.write = bytes, .exec = bytes, .hot_bytes = 64}};
	emit_landing(&e);
	emit_answer(&e, value);
	return e.at;
}

static enum ch_status write_at(const void *at, size_t n, enum ch_write how)
{
	static const uint8_t zeros[1 << 12];
	return ch_code_write(NULL, at, zeros, n, how);
}

static void expect(enum ch_status got, enum ch_status status, const char *why)
{
	CHECK_EQ(got, status);
	if (!strstr(ch_why(), why))
		FAIL("the reason \"%s\" does not say \"%s\"", ch_why(), why);
}

TEST_RIG(committed_code_gets_other_bytes)
{
	uint8_t bytes[64];
	void *code;
	CHECK_EQ(ch_code_add(rig.heap, bytes, make_answer(1, bytes), "f", &code), CH_OK);
	for (uint32_t value = 2; value < 70000; value += 34567) {
		uint32_t n = make_answer(value, bytes);
		CHECK_EQ(code_call(code), value == 2 ? 1 : value - 34567);
		CHECK_EQ(ch_code_write(value % 2 ? rig.heap : NULL, code, bytes, n, NOT_RUNNING),
			 CH_OK);
		CHECK_EQ(code_call(code), value);
	}
}

TEST_RIG(calls_that_succeed_leave_errno_alone)
{
	struct ch_info info = block_info(rig_block(rig_owner(&rig, "owner"), 1));
	errno = ENOTTY;
	CHECK_EQ(ch_code_write(rig.heap, info.entry, info.entry, 4, NOT_RUNNING), CH_OK);
	CHECK_EQ(errno, ENOTTY);
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_DEFAULT), CH_OK);
	CHECK_EQ(errno, ENOTTY);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	CHECK_EQ(errno, ENOTTY);
}

TEST_RIG(write_synchronizes_the_cores)
{
	struct ch_info info = block_info(rig_block(rig_owner(&rig, "owner"), 1));
	uint64_t before = rig_stats(&rig).core_syncs;
	CHECK_EQ(ch_code_write(rig.heap, info.entry, info.entry, 4, NOT_RUNNING), CH_OK);
	CHECK_EQ(rig_stats(&rig).core_syncs > before, atomic_load(&rig.heap->has_core_sync));
}

TEST_RIG(write_of_a_word_that_code_loads_synchronizes_no_core)
{
	struct ch_info info = block_info(rig_block(rig_owner(&rig, "owner"), 1));
	uint64_t before = rig_stats(&rig).core_syncs;
	CHECK_EQ(ch_code_write(rig.heap, info.entry, info.entry, 4, CH_WRITE_WORD), CH_OK);
	CHECK_EQ(rig_stats(&rig).core_syncs, before);
}

TEST_RIG(code_that_is_not_entrant_is_written)
{
	struct ch_block block = rig_block(rig_owner(&rig, "owner"), 1);
	const uint8_t *entry = block_info(block).entry;
	uint8_t bytes[64];
	CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
	CHECK_EQ(ch_code_write(NULL, entry, bytes, make_answer(2, bytes), NOT_RUNNING), CH_OK);
	CHECK_EQ(code_call(entry), 2);
}

/* Code in a page, code in several pages, and code in place. */
TEST_RIG_BY(code_in_any_place_is_written, rig_start(4 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_open opens[] = {{.owner = owner, .hot_bytes = 64},
				  {.owner = owner, .hot_bytes = 200000},
				  {.owner = owner, .hot_bytes = 64, .flags = CH_OPEN_IN_PLACE}};
	for (unsigned i = 0; i < sizeof opens / sizeof *opens; i++) {
		struct emitter e;
		uint8_t bytes[64];
		CHECK_EQ(emit_open_as(&e, &opens[i]), CH_OK);
		emit_answer(&e, 1);
		emit_nops(&e, 4);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(answer_of(e.code.block), 1);
		const uint8_t *entry = block_info(e.code.block).entry;
		CHECK_EQ(ch_code_write(NULL, entry, bytes, make_answer(2, bytes), NOT_RUNNING),
			 CH_OK);
		CHECK_EQ(answer_of(e.code.block), 2);
		uintptr_t at = ((uintptr_t)entry + 7) & ~(uintptr_t)7;
		uint64_t word = ~*(const uint64_t *)at;
		CHECK_EQ(ch_code_write(NULL, (const void *)at, &word, 8, CH_WRITE_WORD), CH_OK);
		CHECK_EQ(*(const volatile uint64_t *)at, word);
	}
}

TEST_RIG(write_stays_in_one_part_of_a_committed_block)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e, open;
	struct ch_open two = {.owner = owner, .hot_bytes = 64, .cold_bytes = 64};
	CHECK_EQ(emit_open_as(&e, &two), CH_OK);
	struct emitter cold = emit_cold(&e);
	emit_answer(&e, 1);
	emit_nops(&cold, 8);
	emit_cold_end(&e, &cold);
	CHECK_EQ(emit_commit(&e), CH_OK);
	struct ch_info info = block_info(e.code.block);
	const uint8_t *hot_end = info.exec + info.hot_bytes, *at = e.code.cold_exec;
	CHECK_EQ(ch_code_write(NULL, info.entry, info.entry, e.at, NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_code_write(NULL, at, at, cold.at, NOT_RUNNING), CH_OK);
	expect(write_at(info.entry, 0, NOT_RUNNING), CH_E_ARG, "not in one part");
	expect(write_at(hot_end - 1, 2, NOT_RUNNING), CH_E_ARG, "not in one part");
	expect(write_at(info.entry, 4000, NOT_RUNNING), CH_E_ARG, "not in one part");
	expect(write_at(info.entry, SIZE_MAX, NOT_RUNNING), CH_E_ARG, "not in one part");
	expect(write_at(at + cold.at, SIZE_MAX - 8, NOT_RUNNING), CH_E_ARG, "not in one part");
	expect(write_at(&rig, 1, NOT_RUNNING), CH_E_ARG, "in no heap");
	expect(write_at(info.entry, 1, (enum ch_write)3), CH_E_ARG, "how is 3");
	CHECK_EQ(ch_code_write(rig.heap, &rig, &rig, 1, NOT_RUNNING), CH_E_ARG);
	emit_open(&open, owner, 64, 0);
	expect(write_at(open.code.exec, 4, NOT_RUNNING), CH_E_ARG, "not in one part");
	CHECK_EQ(ch_block_abort(&open.code), CH_OK);
	CHECK_EQ(answer_of(e.code.block), 1);
}

TEST_RIG_BY(data_and_trampolines_are_not_written, rig_start(4 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block tramp;
	enum ch_kind kinds[] = {CH_KIND_RODATA, CH_KIND_DATA};
	for (int i = 0; i < 2; i++) {
		struct ch_code code;
		struct ch_open open = {.size = sizeof open,
				       .owner = owner,
				       .hot_bytes = 64,
				       .kind = kinds[i],
				       .flags = CH_OPEN_IN_PLACE};
		CHECK_EQ(ch_block_open(&open, &code), CH_OK);
		CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
		expect(write_at(code.exec, 8, NOT_RUNNING), CH_E_STATE, "data");
	}
	CHECK_EQ(ch_trampoline_make(owner, CH_TRAMPOLINE_TAIL,
				    (const void *)(uintptr_t)rig_fallback, 0, NULL, NULL, &tramp),
		 CH_OK);
	expect(write_at(block_info(tramp).entry, 1, NOT_RUNNING), CH_E_STATE, "trampoline");
	CHECK_EQ(answer_of(tramp), RIG_FALLBACK);
}

/* --- sites that stop a write --- */

/* Each byte of the range is refused, alone and with neighbours. */
static void expect_kept(const uint8_t *from, size_t n, const char *why)
{
	for (size_t i = 0; i < n; i++) {
		expect(write_at(from + i, 1, NOT_RUNNING), CH_E_SITE, why);
		expect(ch_code_write(NULL, from + i, from + i, 1, CH_WRITE_WORD), CH_E_SITE, why);
	}
	expect(write_at(from, n, NOT_RUNNING), CH_E_SITE, why);
}

static void expect_free(const uint8_t *at, size_t n)
{
	CHECK_EQ(ch_code_write(NULL, at, at, n, NOT_RUNNING), CH_OK);
}

TEST_RIG(what_is_attached_is_not_written)
{
	struct emitter e;
	struct ch_open open = {.owner = rig_owner(&rig, "owner"),
			       .hot_bytes = 200,
			       .branch_room = 1,
			       .entry = CH_ENTRY_PATCH};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	const uint8_t *code = emit_here(&e), *body, *jump, *end;
	emit_nops(&e, 4);
	const uint8_t *ref = emit_ref_word(&e, 7);
	CHECK_EQ(ch_ref_attach(e.code.block, ref), CH_OK);
	body = emit_here(&e);
	const uint8_t *point = emit_point(&e);
	emit_nops(&e, 4);
	jump = emit_site_jmp(&e);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, body, NULL), CH_OK);
	emit_attach(&e, jump, CH_JMP, NULL);
	end = emit_here(&e);
	emit_nops(&e, 4);
	CHECK_EQ(emit_commit(&e), CH_OK);
	expect_kept(e.code.exec, e.code.entry_bytes, "the patchable entry");
	expect_free(code, 4);
	expect_kept(ref, 8, "a ref");
	expect_kept(point, CH_ARCH_DIVERTER_BYTES, "a patch point");
	expect_free(point + CH_ARCH_DIVERTER_BYTES, 4);
	expect_free(jump - 4, 4);
	expect_kept(jump, (size_t)(end - jump), "a branch");
	expect_free(end, 4);
	struct ch_info info = block_info(e.code.block);
	expect_kept(info.cold_exec + 4, CH_ARCH_STUB_BYTES, "a stub");
	expect(write_at(code, (size_t)(end + 4 - code), NOT_RUNNING), CH_E_SITE, "among the");
}

TEST_RIG(steps_of_a_frame_are_not_written)
{
	if (!CH_ARCH_HAS_STEPS)
		skip("the machine has no steps");
	struct emitter e;
	struct ch_frame none = {0};
	struct ch_open open = {
		.owner = rig_owner(&rig, "owner"), .hot_bytes = 64, .frame = CH_FRAME_STEPS};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 1);
	e.code.frame = &none;
	CHECK_EQ(emit_commit(&e), CH_OK);
	struct ch_info info = block_info(e.code.block);
	uint32_t room = (uint32_t)(info.exec + info.hot_bytes - info.entry), note = e.at;
	while ((uintptr_t)(info.entry + note) % 8)
		note++;
	expect_free(info.entry, note);
	for (uint32_t at = note; at < room; at++)
		expect(write_at(info.entry + at, 1, NOT_RUNNING), CH_E_SITE, "ch_code.frame");
	expect(write_at(info.entry, note + 1, NOT_RUNNING), CH_E_SITE, "ch_code.frame");
}

/* --- writes for running threads --- */

TEST_RIG(what_others_load_is_an_aligned_word)
{
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "owner"), 64, 0);
	emit_nops(&e, 32 / CODE_NOP_BYTES);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	const uint8_t *code = e.code.exec;
	for (unsigned at = 0; at < 16; at++)
		for (size_t n = 1; n < 12; n++) {
			bool is_word = (n == 1 || n == 2 || n == 4 || n == 8) &&
				       (uintptr_t)(code + at) % n == 0;
			enum ch_status status =
				ch_code_write(NULL, code + at, code + at, n, CH_WRITE_WORD);
			CHECK_EQ(status, is_word ? CH_OK : CH_E_SITE);
			bool crosses = (uintptr_t)(code + at) % 8 + n > 8;
			status = ch_code_write(NULL, code + at, code + at, n, CH_WRITE_INSTRUCTION);
			if (crosses)
				expect(status, CH_E_SITE, "no instruction in an aligned 8");
			else if (CH_ARCH_TRAP_UNIT_BYTES == 1)
				CHECK_EQ(status, CH_OK);
			else
				CHECK_EQ(status == CH_OK,
					 n == 4 && (uintptr_t)(code + at) % 4 == 0);
		}
}

/* --- membarrier --- */

/* The refusal comes by a filter after the heap was made. */
TEST_RIG(write_needs_core_synchronization_only_where_cores_go_on_with_what_they_fetched)
{
	struct ch_info info = block_info(rig_block(rig_owner(&rig, "owner"), 1));
	uint8_t bytes[64];
	uint32_t n = make_answer(2, bytes);
	stage_refuse_membarrier(STAGE_REFUSE_CORE_SYNC);
	for (int i = 0; i < 2; i++) {
		enum ch_status status = ch_code_write(NULL, info.entry, bytes, n, NOT_RUNNING);
		CHECK_EQ(status, CH_ARCH_FETCH_FOLLOWS ? CH_OK : CH_E_OS);
		CHECK_EQ(code_call(info.entry), CH_ARCH_FETCH_FOLLOWS ? 2 : 1);
		CHECK_EQ(ch_code_write(NULL, info.exec, info.exec, 4, CH_WRITE_WORD), CH_OK);
	}
}

/* --- fork --- */

TEST_RIG(write_in_a_child_of_fork_is_its_own)
{
	uint8_t one[64], two[64];
	uint32_t n = make_answer(1, one);
	void *code;
	CHECK_EQ(make_answer(2, two), n);
	CHECK_EQ(ch_code_add(rig.heap, one, n, "f", &code), CH_OK);
	pid_t child = fork_child();
	if (!child) {
		CHECK_EQ(ch_code_write(rig.heap, code, two, n, NOT_RUNNING), CH_OK);
		CHECK_EQ(code_call(code), 2);
		_exit(0);
	}
	expect_exit(child, 0);
	CHECK_EQ(code_call(code), 1);
}

/* --- a system that refuses --- */

static struct rig start_private(void)
{
	struct ch_config config = rig_config(1 << 20);
	skip_without_procmem();
	unsetenv("CODEHEAP_WX");
	config.backend = CH_BACKEND_PROCMEM;
	return rig_create(&config, NULL, NULL);
}

/* On procmem, a write of more than a byte of running code needs a new mapping of the page. */
TEST(write_that_gets_no_mapping_changes_nothing)
{
	if (TEST_SANITIZED)
		skip("a sanitizer maps memory of its own");
	struct rig rig = start_private();
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "owner"), 64, 0);
	while ((uintptr_t)emit_here(&e) % 8 != 7)
		emit_nops(&e, 1);
	emit_answer(&e, 1);
	CHECK_EQ(emit_commit(&e), CH_OK);
	const uint8_t *value = e.code.exec + e.at - CODE_RETURN_BYTES - 4;
	fill_maps(0);
	errno = 0;
	expect(ch_code_write(NULL, value, &(uint32_t){0x02020202}, 4, CH_WRITE_INSTRUCTION),
	       CH_E_OS, "cannot be exchanged");
	CHECK_EQ(errno, ENOMEM);
	CHECK_EQ(answer_of(e.code.block), 1);
	/* Two bytes differ: the lowest two, or bytes in the middle of the word. */
	static const uint32_t two_bytes[] = {0x00000202, 0x00020201, 0x02000201};
	for (unsigned i = 0; i < sizeof two_bytes / sizeof *two_bytes; i++) {
		expect(ch_code_write(NULL, value, &two_bytes[i], 4, CH_WRITE_INSTRUCTION), CH_E_OS,
		       "cannot be exchanged");
		CHECK_EQ(answer_of(e.code.block), 1);
	}
	CHECK_EQ(ch_code_write(NULL, value, &(uint32_t){7}, 4, CH_WRITE_INSTRUCTION), CH_OK);
	CHECK_EQ(answer_of(e.code.block), 7);
	CHECK_EQ(ch_code_write(NULL, value, &(uint32_t){0x02020202}, 4, NOT_RUNNING), CH_OK);
	CHECK_EQ(answer_of(e.code.block), 0x02020202);
	rig_end(&rig);
}

TEST_RIG(write_ends_with_the_commit_that_succeeds)
{
	struct ch_code codes[2];
	for (int i = 0; i < 2; i++) {
		struct emitter e;
		emit_open(&e, rig_owner(&rig, "o"), 64, 64);
		emit_answer(&e, 5);
		e.code.used_to = 0;
		codes[i] = e.code;
		codes[0].used_to = e.at;
	}
	CHECK_EQ(ch_block_commit(codes, 2), CH_E_ARG);
	for (int i = 0; i < 2; i++)
		CHECK(codes[i].write && codes[i].cold_write);
	codes[1].used_to = codes[0].used_to;
	CHECK_EQ(ch_block_commit(codes, 2), CH_OK);
	for (int i = 0; i < 2; i++) {
		CHECK(!codes[i].write && !codes[i].cold_write);
		CHECK_EQ(code_call(codes[i].exec), 5);
	}
}

TEST_RIG(write_ends_with_the_end_of_its_block)
{
	struct ch_assumption fact;
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "o"), 64, 64);
	CHECK(e.code.write && e.code.cold_write);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK(!e.code.write && !e.code.cold_write);
	CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
	emit_open(&e, rig_owner(&rig, "o"), 64, 64);
	emit_value(&e, 5);
	CHECK_EQ(ch_block_assume(e.code.block, fact), CH_OK);
	CHECK_EQ(ch_assumption_break(fact, NULL), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_E_STALE);
	CHECK(!e.code.write && !e.code.cold_write);
}
