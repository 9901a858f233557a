/* SPDX-License-Identifier: MIT
 * spots.c: ch_code_at gives the VM's words of a block and of a call in the block, by an address of
 * code. Signal handlers and callbacks of a collector may call ch_code_at, too. */
#include "tests/support/heap_rig.h"
#include "tests/support/stage_code.h"

#include <signal.h>

enum { HOT_BYTES = 96, COLD_BYTES = 24, CALLS = 2 };

/* No member keeps what was there before. */
static struct ch_spot spot_at(const struct ch_heap *heap, const void *pc, bool is_return)
{
	struct ch_spot spot;
	memset(&spot, 0xaa, sizeof spot);
	spot.size = sizeof spot;
	if (!ch_code_at(heap, pc, is_return, &spot))
		FAIL("%p has no code", pc);
	return spot;
}

static bool is_code(const struct ch_heap *heap, const void *pc)
{
	struct ch_spot none = {.size = sizeof none}, spot = none;
	spot.offset = 1;
	bool is_found = ch_code_at(heap, pc, false, &spot);
	if (!is_found)
		CHECK(!memcmp(&spot, &none, sizeof none));
	return is_found;
}

/* Two calls with a word each, and a place without a word. */
struct calls {
	struct emitter e;
	struct ch_owner owner;
	const void *site[CALLS], *returns[CALLS + 1];
	char words[CALLS], user;
};

static void open_calls(const struct rig *rig, struct calls *c)
{
	c->owner = rig_owner(rig, "calls");
	struct ch_open open = {.owner = c->owner,
			       .hot_bytes = HOT_BYTES,
			       .cold_bytes = COLD_BYTES,
			       .branch_room = CALLS + 1,
			       .user = &c->user};
	CHECK_EQ(emit_open_as(&c->e, &open), CH_OK);
	emit_enter(&c->e);
	for (int i = 0; i < CALLS; i++) {
		c->site[i] = emit_site_call(&c->e);
		c->returns[i] = emit_here(&c->e);
	}
	emit_value(&c->e, 1);
	c->returns[CALLS] = emit_here(&c->e);
	emit_leave(&c->e);
	struct emitter cold = emit_cold(&c->e);
	emit_filler(&cold, COLD_BYTES);
	emit_cold_end(&c->e, &cold);
}

static void check_site(const struct ch_heap *heap, const struct calls *c, int call)
{
	struct ch_spot spot = spot_at(heap, c->returns[call], true);
	CHECK_EQ(spot.has_site, call < CALLS);
	CHECK(spot.site_user == (call < CALLS ? (const void *)&c->words[call] : NULL));
	CHECK_EQ(spot.offset, (const uint8_t *)c->returns[call] - c->e.code.exec);
	/* As an instruction's address the same address has no site. */
	CHECK(!spot_at(heap, c->returns[call], false).has_site);
}

TEST(address_says_the_words_of_its_block_and_where_in_it_it_is)
{
	struct rig rig = rig_start(1 << 20);
	struct calls c;
	open_calls(&rig, &c);
	for (uint32_t at = 0; at < HOT_BYTES; at++)
		CHECK(!is_code(rig.heap, c.e.code.exec + at));
	CHECK_EQ(emit_commit(&c.e), CH_OK);
	struct ch_info info = block_info(c.e.code.block);
	for (uint32_t at = 0; at < info.hot_bytes + info.cold_bytes; at++) {
		bool is_cold = at >= info.hot_bytes;
		const uint8_t *exec = is_cold ? info.cold_exec : info.exec;
		uint32_t offset = is_cold ? at - info.hot_bytes : at;
		struct ch_spot spot = spot_at(rig.heap, exec + offset, false);
		CHECK_EQ(spot.size, sizeof spot);
		CHECK_EQ(spot.block.bits, info.block.bits);
		CHECK_EQ(spot.owner.bits, c.owner.bits);
		CHECK(spot.user == &c.user && spot.exec == exec);
		CHECK_EQ(spot.offset, offset);
		CHECK_EQ(spot.is_cold, is_cold);
		CHECK_EQ(spot.state, CH_BLOCK_LIVE);
		CHECK(!spot.has_site && !spot.site_user);
	}
	/* The address behind a part is no code, but as a return address belongs to the part. */
	struct ch_spot end = spot_at(rig.heap, info.exec + info.hot_bytes, true);
	CHECK(end.exec == info.exec && !end.is_cold);
	CHECK_EQ(end.offset, info.hot_bytes);
	CHECK(!is_code(rig.heap, info.cold_exec + info.cold_bytes));
	CHECK_EQ(spot_at(rig.heap, info.cold_exec + info.cold_bytes, true).offset, info.cold_bytes);
	rig_end(&rig);
}

/* Behind the cold part lies a hole: that of a block whose cold part lay there before. Behind the
 * hot part no block was. */
TEST_RIG(address_behind_a_part_is_no_code)
{
	struct calls c[2];
	for (int i = 0; i < 2; i++) {
		open_calls(&rig, &c[i]);
		CHECK_EQ(emit_commit(&c[i].e), CH_OK);
	}
	struct ch_info info = block_info(c[1].e.code.block);
	const uint8_t *end = info.cold_exec + info.cold_bytes;
	CHECK(end == block_info(c[0].e.code.block).cold_exec - 8);
	CHECK_EQ(ch_owner_release(c[0].owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(is_code(rig.heap, end - 1) && !is_code(rig.heap, end));
	end = info.exec + info.hot_bytes;
	CHECK(is_code(rig.heap, end - 1) && !is_code(rig.heap, end));
}

/* The first call is a branch. */
static struct rig start_with_a_call(struct calls *c)
{
	struct rig rig = rig_start(1 << 20);
	open_calls(&rig, c);
	emit_attach(&c->e, c->site[0], CH_CALL, &c->words[0]);
	CHECK_EQ(emit_commit(&c->e), CH_OK);
	return rig;
}

TEST(return_address_behind_a_call_has_the_word_of_its_branch)
{
	struct calls c;
	struct rig rig = start_with_a_call(&c);
	check_site(rig.heap, &c, 0);
	CHECK(!spot_at(rig.heap, c.returns[1], true).has_site);
	/* The block is LIVE. */
	emit_attach(&c.e, c.site[1], CH_CALL, &c.words[1]);
	for (int i = 0; i <= CALLS; i++)
		check_site(rig.heap, &c, i);
	CHECK(!spot_at(rig.heap, (const uint8_t *)c.returns[0] - 1, true).has_site);
	rig_end(&rig);
}

/* Two points with a word each, then a call with a third point behind. */
TEST_RIG(return_address_behind_a_call_has_the_word_of_its_point)
{
	struct emitter e;
	const void *point[2];
	char words[3];
	emit_open(&e, rig_owner(&rig, "points"), 96, 1);
	emit_enter(&e);
	for (int i = 0; i < 2; i++) {
		point[i] = emit_point(&e);
		CHECK_EQ(ch_patch_point_attach(e.code.block, point[i], e.code.exec, &words[i]),
			 CH_OK);
	}
	const void *call = emit_site_call(&e);
	emit_attach(&e, call, CH_CALL, &words[2]);
	const void *behind = emit_here(&e);
	CHECK_EQ(ch_patch_point_attach(e.code.block, emit_point(&e), e.code.exec, NULL), CH_OK);
	emit_leave(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	for (int times = 0; times < 2; times++) {
		for (int i = 0; i < 2; i++) {
			CHECK(spot_at(rig.heap, point[i], true).has_site);
			CHECK(spot_at(rig.heap, point[i], true).site_user == &words[i]);
			CHECK(!spot_at(rig.heap, point[i], false).has_site);
		}
		CHECK(spot_at(NULL, behind, true).site_user == &words[2]);
		CHECK(!spot_at(rig.heap, (const uint8_t *)point[0] + 1, true).has_site);
		CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
	}
}

TEST_RIG(invalidated_code_has_its_words_and_freed_code_none)
{
	struct calls c;
	open_calls(&rig, &c);
	for (int i = 0; i < CALLS; i++)
		emit_attach(&c.e, c.site[i], CH_CALL, &c.words[i]);
	CHECK_EQ(emit_commit(&c.e), CH_OK);
	CHECK_EQ(ch_blocks_invalidate(&c.e.code.block, 1, NULL), CH_OK);
	CHECK_EQ(spot_at(rig.heap, c.e.code.exec, false).state, CH_BLOCK_NOTENTRANT);
	for (int i = 0; i <= CALLS; i++)
		check_site(rig.heap, &c, i);
	CHECK_EQ(ch_owner_release(c.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(!is_code(rig.heap, c.e.code.exec) && !is_code(NULL, c.e.code.exec));
}

TEST_RIG_BY(code_and_data_without_an_owner_have_none, rig_start(4 << 20))
{
	static const uint8_t bytes[8];
	const uint8_t *at;
	CHECK_EQ(ch_code_add(rig.heap, bytes, sizeof bytes, "bytes", &at), CH_OK);
	CHECK_EQ(spot_at(rig.heap, at + 3, false).owner.bits, 0);
	CHECK_EQ(spot_at(rig.heap, at + 3, false).offset, 3);
	struct ch_open open = {.size = sizeof open,
			       .heap = rig.heap,
			       .hot_bytes = 100,
			       .kind = CH_KIND_RODATA,
			       .flags = CH_OPEN_IN_PLACE,
			       .user = &rig};
	struct ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	code.used_to = 100;
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	struct ch_spot spot = spot_at(rig.heap, code.exec + 50, false);
	CHECK(spot.user == &rig && spot.exec == code.exec);
	CHECK_EQ(spot.offset, 50);
}

TEST(code_is_found_in_whichever_heap_has_it)
{
	struct rig rigs[3];
	const void *entry[3];
	for (int i = 0; i < 3; i++) {
		rigs[i] = rig_start(1 << 20);
		entry[i] = block_info(rig_block(rig_owner(&rigs[i], "one of three"), 1)).entry;
	}
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(spot_at(NULL, entry[i], false).block.bits,
			 spot_at(rigs[i].heap, entry[i], false).block.bits);
		CHECK(!is_code(rigs[(i + 1) % 3].heap, entry[i]));
	}
	CHECK(!is_code(NULL, &rigs) && !is_code(NULL, NULL));
	for (int i = 0; i < 3; i++)
		rig_end(&rigs[i]);
	CHECK(!is_code(NULL, entry[1]));
}

/* --- from a name --- */

struct named {
	struct ch_block blocks[4];
	unsigned count;
};

static bool note_named(void *arg, const struct ch_info *info)
{
	struct named *named = arg;
	CHECK(named->count < 4);
	named->blocks[named->count++] = info->block;
	return true;
}

static unsigned count_named(const struct rig *rig, const char *name)
{
	struct named named = {0};
	CHECK_EQ(ch_block_each(rig->heap, name, note_named, &named), CH_OK);
	return named.count;
}

TEST_RIG(name_leads_to_the_code_that_has_it)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block plain = rig_block(owner, 1);
	struct ch_open open = {.owner = owner, .hot_bytes = 16, .name = "own"};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	CHECK_EQ(count_named(&rig, "own"), 1);
	CHECK_EQ(count_named(&rig, "owner"), 1);
	CHECK(!strcmp(block_info(e.code.block).name, "own"));
	CHECK_EQ(emit_commit(&e), CH_OK);
	struct named named = {0};
	CHECK_EQ(ch_block_each(rig.heap, "own", note_named, &named), CH_OK);
	CHECK_EQ(named.count, 1);
	CHECK_EQ(named.blocks[0].bits, e.code.block.bits);
	named.count = 0;
	CHECK_EQ(ch_block_each(rig.heap, "owner", note_named, &named), CH_OK);
	CHECK_EQ(named.count, 1);
	CHECK_EQ(named.blocks[0].bits, plain.bits);
	CHECK_EQ(count_named(&rig, "ow"), 0);
	CHECK_EQ(count_named(&rig, NULL), 2);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(count_named(&rig, "own") + count_named(&rig, "owner"), 0);
}

/* A struct that ends before the word of the call says that there is a word. */
TEST(spot_of_an_older_header_says_which_call_a_return_is_of)
{
	struct calls c;
	struct rig rig = start_with_a_call(&c);
	for (int is_given = 0; is_given < 2; is_given++) {
		struct ch_spot spot = {.size = offsetof(struct ch_spot, site_user)};
		CHECK(ch_code_at(is_given ? rig.heap : NULL, c.returns[0], true, &spot));
		CHECK(spot.has_site && !spot.site_user);
		CHECK_EQ(spot.offset, (const uint8_t *)c.returns[0] - c.e.code.exec);
	}
	rig_end(&rig);
}

/* --- questions from handlers and callbacks --- */

/* The caller's call is linked to a block that calls C. */
static struct stack {
	struct rig rig;
	struct calls calls;
	const void *asked;
	char name[64]; /* of the asked, outside of marking */
	unsigned found, in_ref, in_roots, in_handler;
} stack;

static void find_call(unsigned *found)
{
	struct ch_spot spot = spot_at(NULL, stack.asked, true);
	CHECK_EQ(spot.block.bits, stack.calls.e.code.block.bits);
	CHECK(spot.user == &stack.calls.user && spot.has_site);
	CHECK(spot.site_user == &stack.calls.words[0]);
	++*found;
}
static uintptr_t ref(void *user, uintptr_t word)
{
	(void)user;
	find_call(&stack.in_ref);
	return word;
}
/* A name needs the heap's lock, which the thread that marks has. */
static void roots(void *user, struct ch_marker *marker)
{
	char text[64];
	(void)user, (void)marker;
	find_call(&stack.in_roots);
	CHECK(ch_address_name(stack.rig.heap, stack.asked, true, text, sizeof text) > 0);
	CHECK_STR(text, stack.name);
}
static void handle(int signal)
{
	(void)signal;
	find_call(&stack.in_handler);
}

/* The caller's frame gives the caller's block and the word of the waiting call. */
static void look_at_stack(void)
{
	const void *pcs[16];
	size_t count = ch_backtrace(stack.rig.heap, CH_BACKTRACE_FRAMES, NULL, pcs, 16);
	for (size_t i = 0; i < count; i++) {
		struct ch_spot spot = {.size = sizeof spot};
		if (!ch_code_at(NULL, pcs[i], i > 0, &spot) || !spot.has_site)
			continue;
		stack.asked = pcs[i];
		ch_address_name(stack.rig.heap, stack.asked, true, stack.name, sizeof stack.name);
		find_call(&stack.found);
	}
	CHECK_EQ(stack.found, 1);
	CHECK_EQ(raise(SIGUSR1), 0);
	CHECK_EQ(ch_heap_collect(stack.rig.heap), CH_OK);
}

static void build_stack(void)
{
	struct emitter callee;
	struct calls *c = &stack.calls;
	emit_open(&callee, rig_owner(&stack.rig, "callee"), 64, 0);
	emit_enter(&callee);
	emit_call_c(&callee, (const void *)(uintptr_t)look_at_stack);
	emit_leave(&callee);
	CHECK_EQ(emit_commit(&callee), CH_OK);
	c->owner = rig_owner(&stack.rig, "caller");
	struct ch_open open = {
		.owner = c->owner, .hot_bytes = HOT_BYTES, .branch_room = 1, .user = &c->user};
	CHECK_EQ(emit_open_as(&c->e, &open), CH_OK);
	emit_enter(&c->e);
	c->site[0] = emit_site_call(&c->e);
	struct ch_branch branch = emit_attach(&c->e, c->site[0], CH_CALL, &c->words[0]);
	emit_leave(&c->e);
	const void *word = emit_ref_word(&c->e, 8);
	CHECK_EQ(ch_ref_attach(c->e.code.block, word), CH_OK);
	CHECK_EQ(emit_commit(&c->e), CH_OK);
	CHECK_EQ(ch_owner_set_entry(c->owner, c->e.code.block), CH_OK);
	CHECK_EQ(ch_branch_link(branch, callee.code.block), CH_OK);
}

TEST(running_call_says_its_word_to_a_handler_and_while_it_is_marked)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops ops = {.size = sizeof ops, .ref = ref, .roots = roots};
	struct sigaction action = {.sa_handler = handle};
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	stack.rig = rig_create(&config, &ops, NULL);
	build_stack();
	code_call_owner(stack.calls.owner);
	CHECK(stack.in_handler && stack.in_ref && stack.in_roots);
	/* From here on nobody asks for the address. */
	CHECK_EQ(ch_owner_release(stack.calls.owner, CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_vm_detach(stack.rig.vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(stack.rig.heap), CH_OK);
}
