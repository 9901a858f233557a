/* SPDX-License-Identifier: MIT
 * sizes.c: structs that begin with a size. A program with an older header gives a shorter struct,
 * with foreign memory behind; a program with a newer header gives a longer struct. Then structs
 * that grow into spare words. */
#include "codeheap/look.h"
#include "tests/support/heap_rig.h"

enum { GARBAGE = 0xa5 };

/* The size of the struct in an older header, with `field` in the last word. */
#define UP_TO(type, field) (CH_ROUND_UP(offsetof(type, field) + sizeof(((type *)0)->field), 8))

static void check_untouched(const void *whole, size_t from, size_t bytes)
{
	for (size_t i = from; i < bytes; i++)
		CHECK_EQ(((const uint8_t *)whole)[i], GARBAGE);
}

TEST(configuration_of_an_older_header_has_defaults_for_what_it_lacks)
{
	struct ch_config now = rig_config(1 << 20), older;
	struct ch_heap *heap;
	memset(&older, GARBAGE, sizeof older);
	memcpy(&older, &now, UP_TO(struct ch_config, driver));
	older.size = UP_TO(struct ch_config, driver);
	CHECK_EQ(ch_heap_create(&older, &heap), CH_OK);
	struct ch_stats stats = {.size = sizeof stats};
	CHECK_EQ(ch_heap_stats(heap, &stats), CH_OK);
	CHECK_EQ(stats.pool_bytes, 1 << 20);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

static struct ch_block no_block(void *user, struct ch_branch branch, void *branch_user,
				struct ch_regs *regs)
{
	(void)user, (void)branch, (void)branch_user, (void)regs;
	return (struct ch_block){0};
}

TEST(callbacks_of_an_older_header_end_where_it_ends)
{
	struct ch_ops older;
	memset(&older, GARBAGE, sizeof older);
	older.branch_hit = no_block;
	older.size = UP_TO(struct ch_ops, branch_hit);
	struct ch_config config = rig_config(1 << 20);
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_vm *vm;
	CHECK_EQ(ch_vm_attach(rig.heap, &older, NULL, &vm), CH_OK);
	/* If the size were ignored, roots, block_freed and stop_world would run at GARBAGE. */
	struct ch_owner owner;
	CHECK_EQ(ch_owner_create(vm, "older", (const void *)(uintptr_t)rig_fallback, NULL, &owner),
		 CH_OK);
	rig_block(owner, 1);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	rig_end(&rig);
}

TEST_RIG(answers_of_the_library_end_where_the_older_struct_ends)
{
	struct ch_owner owner = rig_owner(&rig, "method");
	struct ch_block block = rig_block(owner, 3);
	struct ch_info info;
	memset(&info, GARBAGE, sizeof info);
	info.size = UP_TO(struct ch_info, name);
	CHECK_EQ(ch_block_info(block, &info), CH_OK);
	CHECK_EQ(info.block.bits, block.bits);
	CHECK_STR(info.name, "method");
	CHECK_EQ(info.size, UP_TO(struct ch_info, name));
	check_untouched(&info, info.size, sizeof info);
	struct ch_stats stats;
	memset(&stats, GARBAGE, sizeof stats);
	stats.size = UP_TO(struct ch_stats, pages_now);
	CHECK_EQ(ch_heap_stats(rig.heap, &stats), CH_OK);
	CHECK_EQ(stats.pool_bytes, 1 << 20);
	check_untouched(&stats, UP_TO(struct ch_stats, pages_now), sizeof stats);
	struct ch_owner_facts facts;
	memset(&facts, GARBAGE, sizeof facts);
	facts.size = UP_TO(struct ch_owner_facts, name);
	CHECK_EQ(ch_owner_info(owner, &facts), CH_OK);
	CHECK_STR(facts.name, "method");
	check_untouched(&facts, UP_TO(struct ch_owner_facts, name), sizeof facts);
	struct ch_spot spot;
	memset(&spot, GARBAGE, sizeof spot);
	spot.size = UP_TO(struct ch_spot, user);
	struct ch_info whole = block_info(block);
	CHECK(ch_code_at(rig.heap, whole.entry, false, &spot));
	CHECK_EQ(spot.block.bits, block.bits);
	check_untouched(&spot, UP_TO(struct ch_spot, user), sizeof spot);
	CHECK(!ch_code_at(rig.heap, &whole, false, &spot));
	check_untouched(&spot, UP_TO(struct ch_spot, user), sizeof spot);
}

TEST_RIG(spot_of_the_least_size_gets_the_handle_alone)
{
	struct ch_block block = rig_block(rig_owner(&rig, "method"), 1);
	struct ch_info info = block_info(block);
	struct ch_spot spot;
	memset(&spot, GARBAGE, sizeof spot);
	spot.size = UP_TO(struct ch_spot, block);
	CHECK(ch_code_at(rig.heap, info.entry, false, &spot));
	CHECK_EQ(spot.block.bits, block.bits);
	CHECK_EQ(spot.size, UP_TO(struct ch_spot, block));
	check_untouched(&spot, spot.size, sizeof spot);
	CHECK(!ch_code_at(rig.heap, &info, false, &spot));
	CHECK_EQ(spot.block.bits, 0);
	check_untouched(&spot, spot.size, sizeof spot);
}

static void says(const char *words)
{
	if (strncmp(ch_why(), words, strlen(words)) != 0)
		FAIL("%s is not how it begins: %s", words, ch_why());
}

TEST_RIG(structs_of_a_newer_header_are_refused_by_name)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops ops = {.size = sizeof ops + 8};
	struct ch_stats stats = {.size = sizeof stats + 8};
	struct ch_info info = {.size = sizeof info + 8};
	struct ch_owner_facts facts = {.size = sizeof facts + 8};
	struct ch_owner owner = rig_owner(&rig, "method");
	struct ch_spot spot = {.size = sizeof spot + 8};
	struct ch_heap *heap;
	struct ch_vm *vm;
	config.size += 8;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_E_ARG);
	says("CH_E_ARG: ch_config.size is ");
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &vm), CH_E_ARG);
	says("CH_E_ARG: ch_ops.size is ");
	CHECK_EQ(ch_heap_stats(rig.heap, &stats), CH_E_ARG);
	says("CH_E_ARG: ch_stats.size is ");
	CHECK_EQ(ch_block_info(rig_block(owner, 1), &info), CH_E_ARG);
	says("CH_E_ARG: ch_info.size is ");
	CHECK_EQ(ch_owner_info(owner, &facts), CH_E_ARG);
	says("CH_E_ARG: ch_owner_facts.size is ");
	struct ch_info found = block_info(rig_block(owner, 2));
	CHECK(!ch_code_at(rig.heap, found.entry, false, &spot));
	spot.size = sizeof spot.size; /* has no field */
	CHECK(!ch_code_at(rig.heap, found.entry, false, &spot));
	spot.size = sizeof spot;
	CHECK(ch_code_at(rig.heap, found.entry, false, &spot));
}

TEST_RIG(size_that_cuts_a_field_in_two_is_refused)
{
	struct ch_open open = {.size = offsetof(struct ch_open, name) + 2,
			       .heap = rig.heap,
			       .hot_bytes = 64,
			       .name = "cut"};
	struct ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_E_ARG);
	says("CH_E_ARG: ch_open.size is ");
	struct ch_info found = block_info(rig_block(rig_owner(&rig, "method"), 1));
	struct ch_spot spot = {.size = offsetof(struct ch_spot, user) + 4};
	CHECK(!ch_code_at(rig.heap, found.entry, false, &spot));
	spot.size += 4;
	CHECK(ch_code_at(rig.heap, found.entry, false, &spot));
}

TEST_RIG(open_of_an_older_header_asks_for_nothing_behind_its_end)
{
	struct ch_open older;
	struct ch_code code;
	memset(&older, GARBAGE, sizeof older);
	older.size = UP_TO(struct ch_open, cold_bytes);
	older.heap = NULL;
	older.owner = rig_owner(&rig, "older");
	older.hot_bytes = 64;
	older.cold_bytes = 0;
	CHECK_EQ(ch_block_open(&older, &code), CH_OK);
	CHECK(code.hot_bytes >= 64 && code.cold_bytes == 0 && code.entry_bytes == 0);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
}

TEST_RIG(spare_words_are_0_and_a_field_of_a_newer_header_is_refused_by_name)
{
	struct ch_open open = {.owner = rig_owner(&rig, "o"), .hot_bytes = 64, .branch_room = 1};
	struct ch_branch_site site = {.kind = CH_JMP};
	struct ch_branch branch;
	struct emitter e;
	memset(&e, GARBAGE, sizeof e);
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	site.at = emit_site_jmp(&e);
	e.code.used_to = e.at;
	for (size_t i = 0; i < sizeof site.spare / sizeof *site.spare; i++) {
		site.spare[i] = 1;
		CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_E_ARG);
		says("CH_E_ARG: ch_branch_site.spare is not 0: ");
		site.spare[i] = 0;
	}
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_OK);
	for (size_t i = 0; i < sizeof e.code.spare / sizeof *e.code.spare; i++) {
		CHECK_EQ(e.code.spare[i], 0);
		e.code.spare[i] = 1;
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_E_ARG);
		says("CH_E_ARG: ch_code.spare is not 0: ");
		e.code.spare[i] = 0;
	}
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
}
