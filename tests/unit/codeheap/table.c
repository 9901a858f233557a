/* SPDX-License-Identifier: MIT
 * table.c: where tables of records take their address space and their memory from. */
#include "codeheap/base/table.h"
#include "os/os.h"
#include "tests/support/harness.h"

enum { RECORD_BYTES = 64, STEP_RECORDS = CH__TABLE_STEP_BYTES / RECORD_BYTES, STEPS = 4 };

static struct ch__table two[2];

static void place(bool is_limited)
{
	for (int i = 0; i < 2; i++)
		two[i] = (struct ch__table){.record_bytes = RECORD_BYTES,
					    .limit = STEPS * STEP_RECORDS};
	CHECK(ch__tables_place(two, 2, is_limited));
}

/* Whether something is mapped in the table's nth step. */
static bool is_mapped(const struct ch__table *table, unsigned step)
{
	char *at = table->base + (size_t)step * CH__TABLE_STEP_BYTES;
	if (!ch__os_reserve_at(at, CH__TABLE_STEP_BYTES))
		return true;
	ch__os_unreserve(at, CH__TABLE_STEP_BYTES);
	return false;
}

/* Takes all records of the table's next step, and writes and reads the last one. */
static void take_a_step(struct ch__table *table)
{
	uint32_t first = table->used ? table->used : 1, last = table->backed + STEP_RECORDS - 1;
	for (uint32_t i = first; i <= last; i++)
		CHECK_EQ(ch__table_take(table), i);
	CHECK_EQ(table->backed, last + 1);
	CHECK(ch__table_has(table, last) && !ch__table_has(table, last + 1));
	CHECK_EQ(*(char *)ch__table_at(table, last), 0);
	memset(ch__table_at(table, last), 0x5a, RECORD_BYTES);
}

TEST(table_has_address_space_for_all_records_and_takes_memory_in_steps)
{
	place(false);
	CHECK_EQ(two[1].base - two[0].base, STEPS * CH__TABLE_STEP_BYTES);
	for (unsigned step = 0; step < STEPS; step++) {
		CHECK(is_mapped(&two[0], step) && is_mapped(&two[1], step));
		CHECK_EQ(ch__table_backed_bytes(&two[0]), step * CH__TABLE_STEP_BYTES);
		take_a_step(&two[0]);
	}
	CHECK_EQ(ch__table_take(&two[0]), 0);
	CHECK_EQ(two[1].backed, 0);
	ch__tables_free(two, 2);
	CHECK(!is_mapped(&two[0], 0) && !is_mapped(&two[1], STEPS - 1));
}

static bool is_dumped(const struct ch__table *table, unsigned step)
{
	return !mapping_has_flag(table->base + (size_t)step * CH__TABLE_STEP_BYTES, " dd");
}

TEST(cores_have_what_has_records_and_one_step_behind_it)
{
	place(false);
	CHECK(!is_dumped(&two[0], 0));
	for (unsigned step = 0; step < STEPS; step++) {
		take_a_step(&two[0]);
		for (unsigned i = 0; i < STEPS; i++)
			CHECK_EQ(is_dumped(&two[0], i), i <= step + 1);
		CHECK(!is_dumped(&two[1], 0));
	}
	ch__tables_free(two, 2);
}

TEST(table_in_limited_address_space_takes_it_with_each_step)
{
	place(true);
	CHECK(!is_mapped(&two[0], 0) && !is_mapped(&two[1], 0));
	for (unsigned step = 0; step < 2; step++) {
		take_a_step(&two[0]);
		CHECK(is_mapped(&two[0], step) && !is_mapped(&two[0], step + 1));
	}
	take_a_step(&two[1]);
	ch__tables_free(two, 2);
	CHECK(!is_mapped(&two[0], 0) && !is_mapped(&two[0], 1) && !is_mapped(&two[1], 0));
}

/* The next heap's generations begin above those of each record. */
TEST(generations_of_a_table_are_those_of_its_oldest_record)
{
	enum { FIRST = 64, LIVES = 9 };
	place(false);
	two[0].first_generation = FIRST;
	for (uint32_t i = 1; i < 4; i++)
		CHECK_EQ(ch__table_take(&two[0]), i);
	*ch__table_generation(&two[0], 2) = FIRST + LIVES;
	CHECK_EQ(ch__table_generations(&two[0]), LIVES);
	ch__tables_free(two, 2);
}

/* The second and third call look at the tables' first steps; a table's first step asks next. */
TEST(tables_are_not_put_where_another_mapping_is)
{
	for (uint64_t nth = 2; nth <= 3; nth++) {
		ch__os_fail_at(nth, false);
		place(true);
		/* The next place, and a look at both tables there. */
		CHECK_EQ(ch__os_failable_calls(), nth + 3);
		take_a_step(&two[0]);
		take_a_step(&two[1]);
		ch__os_fail_at(0, false);
		ch__tables_free(two, 2);
	}
}

TEST(mapping_in_the_way_of_a_table_stays)
{
	place(true);
	take_a_step(&two[0]);
	char *other = two[0].base + CH__TABLE_STEP_BYTES;
	CHECK(ch__os_reserve_at(other, CH__TABLE_STEP_BYTES));
	CHECK(ch__os_map_private(other, CH__TABLE_STEP_BYTES, CH__OS_RW));
	memset(other, 7, CH__TABLE_STEP_BYTES);
	CHECK_EQ(ch__table_take(&two[0]), 0);
	CHECK_EQ(two[0].backed, STEP_RECORDS);
	CHECK_EQ(other[0], 7);
	ch__os_unreserve(other, CH__TABLE_STEP_BYTES);
	take_a_step(&two[0]);
	/* Nor does it go with the table. */
	other += CH__TABLE_STEP_BYTES;
	CHECK(ch__os_reserve_at(other, CH__TABLE_STEP_BYTES));
	ch__tables_free(two, 2);
	CHECK(!is_mapped(&two[0], 1) && is_mapped(&two[0], 2));
	ch__os_unreserve(other, CH__TABLE_STEP_BYTES);
}

/* In limited space a step asks for space, then for memory; else for memory alone. */
TEST(step_that_is_refused_leaves_nothing_mapped)
{
	for (int nth = 1; nth <= 2; nth++) {
		place(true);
		ch__os_fail_at((uint64_t)nth, false);
		CHECK_EQ(ch__table_take(&two[0]), 0);
		ch__os_fail_at(0, false);
		CHECK(!is_mapped(&two[0], 0));
		CHECK_EQ(two[0].backed, 0);
		take_a_step(&two[0]);
		ch__tables_free(two, 2);
	}
	place(false);
	ch__os_fail_at(1, false);
	CHECK_EQ(ch__table_take(&two[0]), 0);
	ch__os_fail_at(0, false);
	take_a_step(&two[0]);
	ch__tables_free(two, 2);
}

TEST(step_that_is_refused_leaves_the_mapping_behind_it)
{
	place(true);
	take_a_step(&two[0]);
	char *other = two[0].base + 2 * CH__TABLE_STEP_BYTES;
	CHECK(ch__os_reserve_at(other, CH__TABLE_STEP_BYTES));
	ch__os_fail_at(2, false);
	CHECK_EQ(ch__table_take(&two[0]), 0);
	ch__os_fail_at(0, false);
	CHECK(!is_mapped(&two[0], 1) && is_mapped(&two[0], 2));
	ch__os_unreserve(other, CH__TABLE_STEP_BYTES);
	ch__tables_free(two, 2);
}

TEST(tables_that_find_no_space_for_all_records_take_it_with_each_step)
{
	ch__os_pretended.reserve_bytes = CH__TABLE_STEP_BYTES;
	place(false);
	CHECK(!is_mapped(&two[0], 0));
	take_a_step(&two[0]);
	ch__tables_free(two, 2);
	ch__os_pretended.reserve_bytes = 1;
	for (int i = 0; i < 2; i++)
		two[i].base = NULL;
	CHECK(!ch__tables_place(two, 2, false));
	ch__tables_free(two, 2);
	ch__os_pretended.reserve_bytes = 0;
}
