/* SPDX-License-Identifier: MIT
 * young_refs.c: a host visits refs that may be young, of many blocks. Each ref is visited however
 * long the list of young refs gets, even without memory for the list. */
#include "codeheap/base/heap.h"
#include "codeheap/collect/collect.h"
#include "os/os.h"
#include "tests/support/heap_rig.h"

enum { BLOCKS = 1500, WORDS = 1000000 };

static struct rig rig;
static struct ch_owner owner;
static uint32_t made;

static void start(void)
{
	struct ch_config config = rig_config(4 << 20);
	config.driver = CH_DRIVER_HOST;
	rig = rig_create(&config, NULL, NULL);
	owner = rig_owner(&rig, "owner");
	made = 0;
}

/* Each block holds a different word. */
static void open_with_ref(struct emitter *e, struct ch_owner of)
{
	emit_open(e, of, 32, 0);
	CHECK_EQ(ch_ref_attach(e->code.block, emit_ref_word(e, WORDS + made++)), CH_OK);
	emit_ret(e);
}

/* With `fails`, the commit gets nothing from the system. */
static void make(uint32_t count, bool fails)
{
	while (count--) {
		struct emitter e;
		open_with_ref(&e, owner);
		ch__os_fail_at(fails, true);
		enum ch_status status = emit_commit(&e);
		ch__os_fail_at(0, false);
		CHECK_EQ(status, CH_OK);
	}
}

struct visits {
	uint32_t times[2 * BLOCKS];
	uint32_t count, stays_from; /* words from there on stay young */
};

static uintptr_t visit_ref(void *arg, uintptr_t word, bool *is_young)
{
	struct visits *v = arg;
	CHECK(word >= WORDS && word < WORDS + made);
	v->times[word - WORDS]++;
	v->count++;
	*is_young = word - WORDS >= v->stays_from;
	return word;
}

/* Expects one visit of each ref from `low` on, and no other. Refs from `stays` on stay young. */
static void visit(enum ch_refs which, uint32_t low, uint32_t stays, const char *what)
{
	static struct visits v;
	memset(&v, 0, sizeof v);
	v.stays_from = stays;
	rig_visit_refs(&rig, which, visit_ref, &v);
	for (uint32_t i = 0; i < made; i++)
		if (v.times[i] != (i < low ? 0 : 1))
			FAIL("%s: the ref of block %u of %u is visited %u times", what, i, made,
			     v.times[i]);
}

#define TEST_YOUNG(name) TEST_BETWEEN(name, start(), rig_end(&rig))

TEST_YOUNG(young_refs_of_many_blocks_are_visited_once_each)
{
	make(BLOCKS, false);
	visit(CH_REFS_YOUNG, 0, 0, "all are young");
	visit(CH_REFS_YOUNG, 0, BLOCKS / 2, "half of them stay so");
	make(10, false);
	visit(CH_REFS_YOUNG, BLOCKS / 2, BLOCKS, "the other half, and new ones");
	visit(CH_REFS_YOUNG, BLOCKS, UINT32_MAX, "the new ones");
	visit(CH_REFS_YOUNG, UINT32_MAX, 0, "none");
	visit(CH_REFS_ALL, 0, 0, "all, whatever their age");
}

TEST_YOUNG(young_refs_of_a_record_that_is_used_again_are_visited_once)
{
	struct emitter first, second, third;
	struct ch_owner other = rig_owner(&rig, "other");
	open_with_ref(&first, owner);
	CHECK_EQ(ch_block_abort(&first.code), CH_OK);
	open_with_ref(&second, other);
	CHECK_EQ(rig_record(second.code.block), rig_record(first.code.block));
	CHECK_EQ(emit_commit(&second), CH_OK);
	CHECK_EQ(ch_owner_release(other, CH_RELEASE_NOT_RUNNING), CH_OK);
	open_with_ref(&third, owner);
	/* Without CH_ARCH_FETCH_FOLLOWS the record waits for a cycle. */
	CHECK(!CH_ARCH_FETCH_FOLLOWS ||
	      rig_record(third.code.block) == rig_record(first.code.block));
	visit(CH_REFS_YOUNG, 2, 0, "the third block is open");
	CHECK_EQ(emit_commit(&third), CH_OK);
	visit(CH_REFS_YOUNG, 2, 0, "it is committed");
}

/* The word that stays young is the first one, and the last one asked for is old. */
TEST_YOUNG(block_of_which_one_ref_stays_young_is_visited_again)
{
	struct emitter e;
	emit_open(&e, owner, 64, 0);
	made = 2;
	for (uint32_t i = made; i-- > 0;)
		CHECK_EQ(ch_ref_attach(e.code.block, emit_ref_word(&e, WORDS + i)), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	visit(CH_REFS_YOUNG, 0, 1, "the block is new");
	visit(CH_REFS_YOUNG, 0, UINT32_MAX, "one ref stayed young");
	visit(CH_REFS_YOUNG, UINT32_MAX, 0, "none did");
}

/* Else a host that makes minor collections rarely has a list of all code that there ever was. */
TEST_YOUNG(list_of_young_refs_is_no_longer_than_the_table_of_blocks)
{
	for (int i = 0; i < BLOCKS; i++) {
		struct ch_owner passing = rig_owner(&rig, "passing");
		struct emitter e;
		open_with_ref(&e, passing);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_owner_release(passing, CH_RELEASE_NOT_RUNNING), CH_OK);
		/* Where only a core sync makes room, a HOST heap has no other cycle here. */
		ch__heap_lock(rig.heap);
		(void)ch__quarantine_advance(rig.heap, true);
		ch__heap_unlock(rig.heap);
	}
	CHECK(rig.heap->young_refs_count <= rig.heap->blocks.used + 1);
	CHECK(rig.heap->blocks.used < BLOCKS / 2);
}

/* A full collection that leaves objects young has all refs visited by the next minor one. */
TEST_YOUNG(young_refs_that_a_visit_of_all_finds_are_visited_again)
{
	struct emitter open;
	make(20, false);
	visit(CH_REFS_YOUNG, 0, UINT32_MAX, "none stays young");
	visit(CH_REFS_ALL, 0, 10, "ten are young again");
	visit(CH_REFS_YOUNG, 10, 15, "the ten");
	open_with_ref(&open, owner);
	visit(CH_REFS_ALL, 0, 18, "two of them stay so, and an OPEN block is young");
	visit(CH_REFS_YOUNG, 18, 19, "the two, and the OPEN block");
	CHECK_EQ(emit_commit(&open), CH_OK);
	visit(CH_REFS_YOUNG, 19, UINT32_MAX, "one of them, and the new block");
	visit(CH_REFS_YOUNG, UINT32_MAX, 0, "none");
}

/* A commit puts its block on the list before the block is LIVE. */
TEST_YOUNG(block_whose_commit_has_begun_stays_on_the_list_in_a_visit_of_all)
{
	struct emitter open;
	open_with_ref(&open, owner);
	ch__young_refs_add(rig.heap, &open.code, 1);
	visit(CH_REFS_ALL, 0, 0, "an OPEN block is on the list");
	CHECK_EQ(rig.heap->young_refs_count, 1);
	CHECK_EQ(ch_block_abort(&open.code), CH_OK);
}

/* Without a list every block counts as young. The same holds with a list that is too short, until
 * the young blocks fit. */
TEST_YOUNG(young_refs_without_memory_for_their_list_are_visited_all_the_same)
{
	make(300, true);
	visit(CH_REFS_YOUNG, 0, 200, "all are young, and have no list");
	visit(CH_REFS_YOUNG, 0, UINT32_MAX, "some stayed so, and have none either");
	visit(CH_REFS_YOUNG, UINT32_MAX, 0, "none");
	make(200, false);
	make(100, true); /* the list has room for 256 */
	make(50, false);
	visit(CH_REFS_ALL, 0, 0, "all, more than a list has room for");
	visit(CH_REFS_YOUNG, 0, 300, "a list that is too short");
	visit(CH_REFS_YOUNG, 0, 500, "those that stayed so are too many for it");
	visit(CH_REFS_YOUNG, 500, 600, "those on the list");
	visit(CH_REFS_YOUNG, 600, UINT32_MAX, "the rest of them");
	visit(CH_REFS_YOUNG, UINT32_MAX, 0, "none");
}

/* The list knows a block whose commit has begun before the list has too little room. */
TEST_YOUNG(block_whose_commit_has_begun_is_on_the_list_once_behind_a_loss)
{
	struct emitter open;
	make(200, false);
	open_with_ref(&open, owner);
	ch__young_refs_add(rig.heap, &open.code, 1);
	make(100, true);
	CHECK(rig.heap->young_refs_lost);
	visit(CH_REFS_YOUNG, 0, 200, "the OPEN block and those behind it stay young");
	CHECK_EQ(rig.heap->young_refs_count, 101);
	visit(CH_REFS_YOUNG, 200, UINT32_MAX, "each once");
	CHECK_EQ(ch_block_abort(&open.code), CH_OK);
}

/* --- the end of a collection, in its own callbacks --- */

static struct ch_marker *marker_now;
static unsigned refused;

static void refuse_the_end(void)
{
	CHECK_EQ(ch_mark_end(marker_now, false), CH_E_STATE);
	refused++;
}

static uintptr_t end_in_a_visit(void *arg, uintptr_t word, bool *is_young)
{
	(void)arg, (void)is_young;
	refuse_the_end();
	return word;
}

static uintptr_t end_in_a_ref(void *user, uintptr_t word)
{
	(void)user;
	refuse_the_end();
	return word;
}

static void end_in_roots(void *user, struct ch_marker *marker)
{
	(void)user, (void)marker;
	refuse_the_end();
}

TEST(collection_does_not_end_in_its_own_callbacks)
{
	struct ch_ops ops = {.size = sizeof ops, .ref = end_in_a_ref, .roots = end_in_roots};
	struct ch_config config = rig_config(4 << 20);
	config.driver = CH_DRIVER_HOST;
	rig = rig_create(&config, &ops, NULL);
	owner = rig_owner(&rig, "owner");
	made = 0;
	make(3, false);
	CHECK_EQ(ch_mark_begin(rig.heap, &marker_now), CH_OK);
	CHECK_EQ(ch_refs_visit(marker_now, CH_REFS_ALL, end_in_a_visit, NULL), CH_OK);
	CHECK_EQ(refused, 3);
	ch_mark_owner(marker_now, owner);
	CHECK_EQ(refused, 6);
	ch_mark_stacks(marker_now);
	CHECK_EQ(refused, 7);
	CHECK_EQ(ch_mark_end(marker_now, true), CH_OK);
	rig_end(&rig);
}

TEST_YOUNG(visit_of_no_known_set_is_refused)
{
	struct ch_marker *marker;
	make(3, false);
	refused = 0;
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
	CHECK_EQ(ch_refs_visit(marker, (enum ch_refs)7, end_in_a_visit, NULL), CH_E_ARG);
	CHECK_STR(ch_why(), "CH_E_ARG: which is 7: not one of enum ch_refs");
	CHECK_EQ(refused, 0);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
}

static uintptr_t mark_in_a_visit(void *arg, uintptr_t word, bool *is_young)
{
	(void)is_young;
	ch_mark_owner(marker_now, *(const struct ch_owner *)arg);
	CHECK_EQ(ch_mark_end(marker_now, false), CH_E_STATE);
	return word;
}

/* The first mark of a collection may come from a ref that a visit names. */
TEST_YOUNG(collection_that_begins_to_mark_in_a_visit_ends)
{
	struct ch_marker *marker;
	make(3, false);
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
	marker_now = marker;
	CHECK_EQ(ch_refs_visit(marker, CH_REFS_ALL, mark_in_a_visit, &owner), CH_OK);
	ch_mark_stacks(marker);
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
}

static uintptr_t visit_in_a_visit(void *arg, uintptr_t word, bool *is_young)
{
	++*(int *)arg;
	*is_young = true;
	CHECK_EQ(ch_refs_visit(marker_now, CH_REFS_YOUNG, visit_in_a_visit, arg), CH_E_STATE);
	CHECK(strstr(ch_why(), "in ref, roots or visit"));
	return word;
}

TEST_YOUNG(visit_does_not_begin_in_another_visit)
{
	static const enum ch_refs each[] = {CH_REFS_YOUNG, CH_REFS_ALL};
	make(3, false);
	for (int i = 0; i < 2; i++) {
		int visits = 0;
		CHECK_EQ(ch_mark_begin(rig.heap, &marker_now), CH_OK);
		CHECK_EQ(ch_refs_visit(marker_now, each[i], visit_in_a_visit, &visits), CH_OK);
		CHECK_EQ(ch_mark_end(marker_now, false), CH_OK);
		CHECK_EQ(visits, 3);
	}
	visit(CH_REFS_YOUNG, 0, 0, "all are young");
}

/* --- a VM whose closures hold code by address, and which marks the owner of each such code --- */

enum { LAMBDA_HEAD = 16 }; /* in front of the entry: the owner, and a ref */
static struct ch_block lambda;
static const uint8_t *lambda_entry;
static uint32_t lambda_refs;

static uintptr_t count_lambda_ref(void *user, uintptr_t word)
{
	(void)user;
	lambda_refs++;
	return word;
}

/* Returns how many refs the cycle hands to the VM. */
static uint32_t lambda_cycle(bool is_marked)
{
	struct ch_marker *marker;
	struct ch_owner of;
	lambda_refs = 0;
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
	if (is_marked) {
		memcpy(&of, lambda_entry - LAMBDA_HEAD, sizeof of);
		ch_mark_owner(marker, of);
	}
	ch_mark_stack(marker, &rig, &rig); /* no stack has code */
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
	return lambda_refs;
}

static void make_lambda(unsigned flags, unsigned marks)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops ops = {.size = sizeof ops, .ref = count_lambda_ref};
	struct emitter e;
	config.driver = CH_DRIVER_HOST;
	rig = rig_create(&config, &ops, NULL);
	struct ch_owner of = rig_owner(&rig, "lambda");
	struct ch_open open = {.owner = of, .hot_bytes = 32, .flags = flags};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	e.at = 0;
	emit_u64(&e, of.bits);
	emit_u64(&e, WORDS);
	CHECK_EQ(ch_ref_attach(e.code.block, emit_here(&e) - 8), CH_OK);
	e.code.entry_offset = LAMBDA_HEAD;
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	lambda = e.code.block;
	lambda_entry = block_info(lambda).entry;
	if (!flags)
		CHECK_EQ(ch_owner_set_entry(of, lambda), CH_OK);
	while (marks--)
		CHECK_EQ(lambda_cycle(true), 1);
	CHECK(rig_is_there(lambda));
}

TEST(lambda_with_an_entry_ends_in_the_cycle_that_does_not_mark_it)
{
	for (unsigned marks = 0; marks < 4; marks++) {
		make_lambda(0, marks);
		CHECK_EQ(lambda_cycle(false), 0);
		CHECK(!rig_is_there(lambda));
		rig_end(&rig);
	}
}

TEST(lambda_that_is_invalidated_ends_though_its_owner_is_marked)
{
	make_lambda(0, 1);
	CHECK_EQ(ch_blocks_invalidate(&lambda, 1, NULL), CH_OK);
	CHECK_EQ(lambda_cycle(true), 0);
	CHECK(!rig_is_there(lambda));
	rig_end(&rig);
}

/* Its refs are roots once more, so the VM marks what nothing else reaches. */
TEST(lambda_of_kept_code_ends_a_cycle_later)
{
	for (unsigned marks = 0; marks < 4; marks++) {
		make_lambda(CH_OPEN_KEPT, marks);
		CHECK_EQ(lambda_cycle(false), 1);
		CHECK(rig_is_there(lambda));
		CHECK_EQ(lambda_cycle(false), 0);
		CHECK(!rig_is_there(lambda));
		rig_end(&rig);
	}
}
