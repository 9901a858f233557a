/* SPDX-License-Identifier: MIT
 * trap_text.c: the line of a trap: the caller, names of every length and kind, room of every size,
 * and the memory for the records of the dead. */
#define _GNU_SOURCE
#include "codeheap/graph/block_parts.h"
#include "codeheap/places/places.h"
#include "tests/support/trap_rig.h"

#include <sys/mman.h>
#include <unistd.h>

/* --- the caller --- */

static uint32_t call_end; /* of the last calling block, from exec */

static struct ch_block calling_block(const struct rig *rig, const char *owner, const void *callee,
				     const uint8_t **exec)
{
	struct emitter e;
	struct ch_owner caller = rig_owner(rig, owner);
	emit_open(&e, caller, 48, 0);
	emit_enter(&e);
	emit_call_c(&e, callee);
	call_end = e.at;
	emit_leave(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_set_entry(caller, e.code.block), CH_OK);
	*exec = e.code.exec;
	return e.code.block;
}

static const uint8_t *freed_block(const struct rig *rig, const char *name, struct ch_block *block)
{
	struct ch_owner owner = rig_owner(rig, name);
	*block = rig_block(owner, 3);
	const uint8_t *at = block_info(*block).exec;
	/* The place must stay free: nothing else is opened there. */
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	return at;
}

TEST(caller_in_a_block_is_named)
{
	struct rig rig = rig_start(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "gone");
	struct ch_block gone = rig_block(owner, 3), caller;
	const uint8_t *target = block_info(gone).exec, *exec;
	char wanted[200];
	catch_traps(rig.heap);
	caller = calling_block(&rig, "caller", target, &exec);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	jump_to(exec);
	CHECK_EQ(caught.signal, SIGTRAP);
	check_begins(caught.text, "block `gone` (#");
	uint32_t at = call_end;
	snprintf(wanted, sizeof wanted,
		 "; return address (a guess) 0x%lx in block `caller` (#%u.%u, owner `caller`) "
		 "+0x%x",
		 (unsigned long)(uintptr_t)exec + at, ch__handle_index(caller.bits),
		 ch__handle_generation(caller.bits), at);
	check_has(caught.text, wanted);
	CHECK_STR(strstr(caught.text, "; return"), wanted); /* and no more */
	rig_end(&rig);
}

/* Describes a trap at an address, with no code on top of the stack, and a record at fp. */
static void describe_with_record(const struct rig *rig, const void *at, const void *record)
{
	struct made_up m;
	uintptr_t fp = (uintptr_t)record - (uintptr_t)(intptr_t)CH_ARCH_RECORD_AT;
	make_up(&m, at, 1);
	memcpy((uint8_t *)&m.context + CH_ARCH_CONTEXT_AT + CH_ARCH_CONTEXT_FP * sizeof fp, &fp,
	       sizeof fp);
	caught.length =
		describe_made_up(rig->heap, &m);
}

TEST(frame_record_says_who_called_where_the_stack_does_not)
{
	static const char none[] = "; return address (a guess) 0x1 in no code that is known";
	struct rig rig = rig_start(1 << 20);
	struct ch_block gone, caller = rig_block(rig_owner(&rig, "caller"), 3);
	const uint8_t *at = freed_block(&rig, "gone", &gone);
	uintptr_t record[3] = {0, (uintptr_t)block_info(caller).exec + 1, 2};
	const uint8_t *closed = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(closed != MAP_FAILED);
	describe_with_record(&rig, at, record);
	check_has(caught.text, " in block `caller` (#");
	record[1] = (uintptr_t)block_info(caller).exec; /* behind the head, and so behind no call */
	describe_with_record(&rig, at, record);
	check_has(caught.text, ", owner `caller`) +0x0");
	describe_with_record(&rig, at, record + 1); /* leads to no code */
	check_has(caught.text, none);
	describe_with_record(&rig, at, (const uint8_t *)record + 1);
	check_has(caught.text, none);
	describe_with_record(&rig, at, closed);
	check_has(caught.text, none);
	rig_end(&rig);
}

TEST(cell_of_an_owner_without_a_fallback_leads_to_a_trap_that_says_so)
{
	static const char line[] = "the cell of an owner without an entry and a fallback (0x";
	struct rig rig = rig_start(1 << 20);
	struct ch_owner owner;
	CHECK_EQ(ch_owner_create(rig.vm, "nowhere", NULL, NULL, &owner), CH_OK);
	const void *const *cell = ch_owner_cell(owner);
	catch_traps(rig.heap);
	jump_to(*cell);
	CHECK_EQ(caught.signal, SIGTRAP);
	check_begins(caught.text, line);
	struct ch_block block = rig_block(owner, 3);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	CHECK_EQ(((uint32_t(*)(void))(uintptr_t)*cell)(), 3);
	CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
	caught.text[0] = 0;
	jump_to(*cell);
	check_begins(caught.text, line);
	rig_end(&rig);
}

static const char *said_of_return(const struct rig *rig, const void *at, uintptr_t return_to)
{
	struct made_up m;
	make_up(&m, at, return_to);
	CHECK(describe_made_up(rig->heap, &m));
	const char *said = strstr(caught.text, "; return");
	CHECK(said);
	return said;
}

TEST_RIG(code_of_a_group_without_a_name_is_known_by_its_own)
{
	struct ch_owner group = rig_owner(&rig, NULL);
	struct ch_open open = {
		.owner = group, .hot_bytes = 16, .flags = CH_OPEN_KEPT, .name = "member"};
	struct emitter e;
	char text[160];
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	ch_address_name(rig.heap, e.code.exec, false, text, sizeof text);
	CHECK_EQ(strncmp(text, "member+", 7), 0);
	CHECK_EQ(ch_code_free(rig.heap, e.code.exec, CH_RELEASE_NOT_RUNNING), CH_OK);
	check_begins(describe_at(rig.heap, e.code.exec), "block `member` (#");
	CHECK(!strstr(caught.text, "owner `"));
}

TEST(call_of_an_address_without_code_names_its_caller)
{
	const void *targets[] = {NULL, &call_end};
	struct rig rig = rig_start(1 << 20);
	struct made_up m;
	const uint8_t *exec = NULL;
	char wanted[200];
	catch_traps(rig.heap);
	for (size_t i = 0; i < 2; i++) {
		(void)calling_block(&rig, "caller", targets[i], &exec);
		jump_to(exec);
		CHECK(caught.signal == SIGSEGV || caught.signal == SIGBUS);
		snprintf(wanted, sizeof wanted,
			 "executed where no code is (0x%lx); return address (a guess) 0x%lx in "
			 "block `caller` (#", (unsigned long)(uintptr_t)targets[i],
			 (unsigned long)(uintptr_t)exec + call_end);
		check_begins(caught.text, wanted);
	}
	/* A fault of data in a function that code called, and a call by others. */
	make_up(&m, NULL, (uintptr_t)exec + call_end);
	m.info.si_signo = SIGSEGV;
	m.info.si_code = SEGV_MAPERR;
	m.info.si_addr = (void *)ch__arch_context_pc(&m.context);
	CHECK(describe_made_up(rig.heap, &m) > 0);
	m.info.si_addr = wanted;
	CHECK_EQ(describe_made_up(rig.heap, &m), 0);
	make_up(&m, NULL, (uintptr_t)targets[1]);
	m.info.si_signo = SIGSEGV;
	m.info.si_addr = (void *)ch__arch_context_pc(&m.context);
	CHECK_EQ(describe_made_up(rig.heap, &m), 0);
	rig_end(&rig);
}

TEST_RIG(caller_elsewhere_is_named)
{
	struct ch_block block;
	const uint8_t *at = freed_block(&rig, "gone", &block);
	const struct ch__pool *pool = rig.heap->pool;
	uintptr_t base = pool->exec_base;
	char wanted[200];
	snprintf(wanted, sizeof wanted, " in freed block `gone` (#%u.%u, owner `gone`) +0x2",
		 ch__handle_index(block.bits), ch__handle_generation(block.bits));
	check_has(said_of_return(&rig, at, (uintptr_t)at + 2), wanted);
	check_has(said_of_return(&rig, at, base + pool->pool_bytes / 2), " in no block");
	CHECK_STR(strstr(caught.text, " in no block"), " in no block");
	check_has(said_of_return(&rig, at, base + pool->pool_bytes), " in no block");
	check_has(said_of_return(&rig, at, pool->runtime_exec + 3),
		  " in the heap's runtime page +0x3");
	check_has(said_of_return(&rig, at, 16), " 0x10 in no code that is known");
	/* Native code has its object. Sanitizers put no own function before said_of_return. */
	check_has(said_of_return(&rig, at, (uintptr_t)labs + 1), "/libc.so.6 +0x");
	check_has(said_of_return(&rig, at, (uintptr_t)said_of_return + 1),
		  "adversary_trap_text +0x");
}

static int freed_comparison(const void *a, const void *b)
{
	(void)a;
	(void)b;
	return 0;
}

/* Freed code is called by the C library, and the C library by this test. */
TEST_RIG(caller_in_the_c_library_is_named)
{
	struct ch_block block;
	int key = 1, array[3] = {1, 2, 3};
	int (*compare)(const void *, const void *) = freed_comparison;
	/* The header has bsearch in line. */
	void *(*volatile search)(const void *, const void *, size_t, size_t,
				 int (*)(const void *, const void *)) = bsearch;
	catch_traps(rig.heap);
	const uint8_t *at = freed_block(&rig, "compare", &block);
	memcpy(&compare, &at, sizeof compare);
	if (!sigsetjmp(caught.back, 1))
		search(&key, array, 3, sizeof key, compare);
	CHECK_EQ(caught.signal, SIGTRAP);
	check_has(caught.text, "/libc.so.6 +0x");
}

/* --- an unreadable stack --- */

#if !TEST_SANITIZED
struct lost {
	struct rig rig;
	const void *freed, *stack;
};

static void jump_without_stack(void *arg)
{
	static _Alignas(16) uint8_t handlers[1 << 15];
	struct lost *lost = arg;
	stack_t stack = {.ss_sp = handlers, .ss_size = sizeof handlers};
	CHECK_EQ(sigaltstack(&stack, NULL), 0);
	CHECK_EQ(ch_trap_install(lost->rig.heap), CH_OK);
	code_jump_on_stack(lost->stack, lost->freed);
}

TEST(stack_that_cannot_be_read_is_said)
{
	struct lost lost = {.rig = rig_start(1 << 20)};
	struct ch_block block;
	char text[800];
	uint8_t *none = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(none != MAP_FAILED);
	lost.freed = freed_block(&lost.rig, "gone", &block);
	for (uintptr_t skew = 0; skew < 8; skew += 4) {
		lost.stack = none + 4096 + skew;
		expect_signal_text(jump_without_stack, &lost, SIGTRAP, text, sizeof text);
		check_begins(text, "libcodeheap: block `gone` (#");
		/* A link register can be read whatever the stack. */
		check_has(text, CH_ARCH_HAS_LINK_REGISTER
					? "; return address (a guess) 0x"
					: "; no return address: its stack cannot be read\n");
	}
	rig_end(&lost.rig);
}
#endif

/* --- names --- */

static const char *name_said(const struct rig *rig, const char *name)
{
	static char said[400];
	struct ch_block block;
	freed_block(rig, name, &block);
	const char *at = describe_at(
		rig->heap,
		(const void *)ch__exec(
			rig->heap,
			ch__block_at(rig->heap, ch__handle_index(block.bits))->hot_offset));
	check_begins(at, "block `");
	snprintf(said, sizeof said, "%s", at + strlen("block `"));
	char *end = strchr(said, '`');
	CHECK(end);
	*end = 0;
	return said;
}

/* Neither the block nor its owner has a name. */
TEST_RIG(code_without_a_name_is_told_by_its_number)
{
	struct ch_block block;
	char wanted[60];
	const uint8_t *at = freed_block(&rig, "", &block);
	snprintf(wanted, sizeof wanted, "block (#%u.%u), freed ", ch__handle_index(block.bits),
		 ch__handle_generation(block.bits));
	check_begins(describe_at(rig.heap, at), wanted);
}

static void repeat(char *text, const char *piece, int times, const char *last)
{
	*text = 0;
	while (times--)
		strcat(text, piece);
	strcat(text, last);
}

TEST_RIG(names_of_every_length_and_kind)
{
	char name[5000], wanted[200];
	CHECK_STR(name_said(&rig, "K\xc3\xb6nigstochter"), "K\xc3\xb6nigstochter");
	CHECK_STR(name_said(&rig, "two\nlines\tand\x7f\x1b[0m"), "two?lines?and??[0m");
	/* Controls of UTF-8, too: the sequence begun here would clear a terminal. */
	CHECK_STR(name_said(&rig, "K\xc3\xb6nig\xc2\x9b"
				  "2J"),
		  "K\xc3\xb6nig??2J");
	repeat(name, "a", 63, ""); /* the longest short name */
	CHECK_STR(name_said(&rig, name), name);
	repeat(name, "a", 64, "");
	repeat(wanted, "a", 60, "...");
	CHECK_STR(name_said(&rig, name), wanted);
	repeat(name, "a", 4000, "");
	CHECK_STR(name_said(&rig, name), wanted);
	/* Cut at a character of 2, 3 or 4 bytes, at each offset. */
	static const char *const characters[] = {"\xc3\xb6",	"\xdf\xbf",
						 "\xe0\xa4\x85",	"\xe2\x82\xac",
						 "\xef\xbf\xbd",	"\xf0\x9f\x8d\x8e",
						 "\xf4\x8f\xbf\xbd"};
	for (size_t c = 0; c < sizeof characters / sizeof *characters; c++) {
		int bytes = (int)strlen(characters[c]);
		for (int skew = 0; skew < bytes; skew++) {
			memset(name, 'x', sizeof name);
			repeat(name + skew, characters[c], 40, "");
			memset(wanted, 'x', sizeof wanted);
			repeat(wanted + skew, characters[c], (60 - skew) / bytes, "...");
			CHECK_STR(name_said(&rig, name), wanted);
		}
	}
	/* Elsewhere the name is whole. */
	struct ch_owner owner = rig_owner(&rig, name);
	struct ch_owner_facts facts = {.size = sizeof facts};
	CHECK_EQ(ch_owner_info(owner, &facts), CH_OK);
	CHECK_STR(facts.name, name);
}

/* --- code without an owner --- */

static void free_code(const struct rig *rig, void *arg)
{
	uintptr_t *inverted = arg;
	uint8_t bytes[CODE_LANDING_BYTES + 8] = {0};
	void (*f)(void);
	CHECK_EQ(ch_code_add(rig->heap, bytes, sizeof bytes, "alone", &f), CH_OK);
	CHECK_EQ(ch_code_free(NULL, (const void *)(uintptr_t)f, (enum ch_release)*inverted), CH_OK);
	*inverted = ~(uintptr_t)f;
}

static void check_told(enum ch_release how, const char *because)
{
	struct rig rig = rig_start(1 << 20);
	struct made_up m;
	uintptr_t inverted = how;
	rig_apart(&rig, free_code, &inverted);
	rig_collect(&rig, 1);
	make_up(&m, (const void *)~inverted, 1);
	CHECK(describe_made_up(rig.heap, &m));
	check_begins(caught.text, "block `alone` (#");
	check_has(caught.text, because);
	CHECK(!strstr(caught.text, "owner"));
	rig_end(&rig);
}

TEST(freed_code_without_an_owner_has_its_name_and_how_it_was_freed)
{
	check_told(CH_RELEASE_NOT_RUNNING,
		   ", freed after collection 0 because of ch_code_free (NOT_RUNNING)");
	check_told(CH_RELEASE_COLLECT, ", freed in collection 1 because of ch_code_free (COLLECT), "
				       "and nothing held it");
}

/* --- room --- */

static bool is_whole_utf8(const char *text)
{
	const uint8_t *at = (const uint8_t *)text;
	while (*at) {
		int more = *at >= 0xf0 ? 3 : *at >= 0xe0 ? 2 : *at >= 0xc0 ? 1 : 0;
		if (!more && *at >= 0x80)
			return false;
		for (at++; more; more--, at++)
			if ((*at & 0xc0) != 0x80)
				return false;
	}
	return true;
}

TEST_RIG(room_of_every_size_holds_a_whole_text)
{
	struct made_up m;
	struct ch_block block;
	char whole[1000], text[1000];
	static const char name[] =
		"\xc3\xb6\xdf\xbf\xe0\xa4\x85\xe2\x82\xac\xef\xbf\xbd\xf0\x9f\x8d\x8e";
	make_up(&m, freed_block(&rig, name, &block), 1);
	size_t length = ch_trap_describe(rig.heap, &m.info, &m.context, whole, sizeof whole);
	CHECK_EQ(length, strlen(whole));
	CHECK_EQ(ch_trap_describe(rig.heap, &m.info, &m.context, NULL, 0), length);
	for (size_t room = 1; room < length + 3; room++) {
		memset(text, '!', sizeof text);
		CHECK_EQ(ch_trap_describe(rig.heap, &m.info, &m.context, text, room), length);
		size_t kept = strlen(text);
		CHECK(kept < room && !strncmp(text, whole, kept));
		CHECK(is_whole_utf8(text));
		/* Some byte of the next character has no room. */
		memcpy(text, whole, room);
		text[room - 1] = 0;
		for (size_t i = kept + 1; i < room && kept < length; i++) {
			text[i] = 0;
			CHECK(!is_whole_utf8(text));
			text[i] = i < length ? whole[i] : 0;
		}
		for (size_t i = room; i < sizeof text; i++)
			CHECK_EQ(text[i], '!');
	}
}

/* --- how many are remembered --- */

static void die(struct ch_owner owner, const char *name)
{
	struct ch_open open = {.owner = owner, .hot_bytes = 20, .name = name};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

/* Frees two spans. Nothing else needs the two places. */
static void free_spans(const struct rig *rig, const void *at[2])
{
	static const char *const names[] = {"eldest", "second"};
	struct ch_owner owners[2];
	for (int i = 0; i < 2; i++) {
		struct emitter e;
		owners[i] = rig_owner(rig, names[i]);
		emit_open(&e, owners[i], 100000, 0);
		emit_ret(&e);
		at[i] = e.code.exec;
		CHECK_EQ(emit_commit(&e), CH_OK);
	}
	for (int i = 0; i < 2; i++)
		CHECK_EQ(ch_owner_release(owners[i], CH_RELEASE_NOT_RUNNING), CH_OK);
}

TEST_RIG_BY(tombstones_are_65536_in_bounded_memory, rig_start(4 << 20))
{
	enum { STONES = 1 << 16, STONE_BYTES = 44 };
	const void *at[2];
	struct ch_owner owner = rig_owner(&rig, "others");
	die(owner, NULL); /* gives the thread a page, and lists */
	free_spans(&rig, at);
	for (int i = 0; i < 100; i++)
		die(owner, NULL);
	uint64_t before = rig_stats(&rig).metadata_bytes_now;
	for (int i = 0; i < STONES - 102; i++)
		die(owner, NULL);
	check_begins(describe_at(rig.heap, at[0]), "block `eldest` (#");
	check_begins(describe_at(rig.heap, at[1]), "block `second` (#");
	die(owner, NULL);
	check_begins(describe_at(rig.heap, at[0]), "no block: a byte of page ");
	check_has(caught.text, " that never had one, or freed code, record expired (0x");
	check_begins(describe_at(rig.heap, at[1]), "block `second` (#");
	die(owner, NULL);
	check_has(describe_at(rig.heap, at[1]), "record expired");
	uint64_t full = rig_stats(&rig).metadata_bytes_now;
	CHECK(full - before <= (STONES + 2048) * STONE_BYTES);
	for (int i = 0; i < STONES / 8; i++)
		die(owner, NULL);
	CHECK(rig_stats(&rig).metadata_bytes_now <= full + 4096);
}

/* Such code has a longer head. */
TEST_RIG(freed_code_that_was_written_in_place_says_its_offset)
{
	struct ch_owner owner = rig_owner(&rig, "placed");
	struct ch_open open = {.size = sizeof open,
			       .owner = owner,
			       .hot_bytes = 128,
			       .flags = CH_OPEN_IN_PLACE};
	struct ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	ch__arch_fill_traps(code.write, 128);
	code.used_to = 128;
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	check_has(describe_at(rig.heap, code.exec + 16), "; executed at +0x10 ");
}

TEST(as_many_dead_are_remembered_as_the_configuration_says)
{
	struct ch_config config = rig_config(1 << 20);
	config.remembered_dead = 64;
	struct rig rig = rig_create(&config, NULL, NULL);
	const void *at[2];
	struct ch_owner owner = rig_owner(&rig, "others");
	die(owner, NULL); /* gives the thread a page, and lists */
	free_spans(&rig, at);
	const uint8_t *unused = (const uint8_t *)rig.heap->pool->exec_base;
	unused += rig.heap->pool->pool_bytes - CH_ARCH_TRAP_UNIT_BYTES;
	for (int i = 0; i < 61; i++)
		die(owner, NULL);
	/* 64 have died. */
	CHECK(!strstr(describe_at(rig.heap, unused), "expired"));
	die(owner, NULL);
	check_has(describe_at(rig.heap, unused), "record expired");
	check_begins(describe_at(rig.heap, at[0]), "block `eldest` (#");
	die(owner, NULL);
	check_has(describe_at(rig.heap, at[0]), "record expired");
	check_begins(describe_at(rig.heap, at[1]), "block `second` (#");
	rig_end(&rig);
}

/* Each tombstone has a long name of its own, and keeps a bounded part. */
TEST_RIG_BY(tombstones_of_long_names_are_bounded, rig_start(4 << 20))
{
	enum { STONES = 1 << 16, STONE_BYTES = 44, NAME_BYTES = 32 + 64 + 8 };
	struct ch_owner owner = rig_owner(&rig, "o");
	char name[2000];
	uint64_t before = rig_stats(&rig).metadata_bytes_now, full = 0;
	int rounds = getenv("CODEHEAP_TEST_SLOW") ? STONES / 8 : STONES + STONES / 4;
	memset(name, 'n', sizeof name - 1);
	name[sizeof name - 1] = 0;
	for (int i = 0; i < rounds; i++) {
		int n = snprintf(name, sizeof name, "%d ", i);
		name[n] = 'n';
		die(owner, name);
		if (i == STONES)
			full = rig_stats(&rig).metadata_bytes_now;
	}
	uint64_t last = rig_stats(&rig).metadata_bytes_now;
	CHECK(last - before <= (STONES + 2048) * (STONE_BYTES + NAME_BYTES));
	CHECK(!full || last <= full + (64 << 10));
}

/* Without memory no trap is told wrongly: the text says that records are missing. */
TEST_RIG(tombstone_without_memory_is_missed)
{
	struct ch_owner owner = rig_owner(&rig, "gone");
	const uint8_t *at = block_info(rig_block(owner, 3)).exec;
	ch__os_fail_at(1, true);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	ch__os_fail_at(0, false);
	check_begins(describe_at(rig.heap, at), "no block: a byte of page ");
	check_has(caught.text, " that never had one (as far as is known: memory was short, records "
			       "lost: 1) (0x");
	struct ch_block block;
	at = freed_block(&rig, "next", &block); /* the same place */
	check_begins(describe_at(rig.heap, at), "block `next` (#");
}

TEST(tombstone_without_memory_is_not_missed_for_ever)
{
	enum { REMEMBERED = 64 };
	struct ch_config config = rig_config(1 << 20);
	config.remembered_dead = REMEMBERED;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_owner gone = rig_owner(&rig, "gone"), owner = rig_owner(&rig, "owner");
	const uint8_t *at = block_info(rig_block(gone, 3)).exec;
	(void)rig_block(owner, 3); /* keeps the page */
	ch__os_fail_at(1, true);
	CHECK_EQ(ch_owner_release(gone, CH_RELEASE_NOT_RUNNING), CH_OK);
	ch__os_fail_at(0, false);
	for (int i = 1; i < 2 * REMEMBERED; i++)
		die(owner, NULL);
	describe_at(rig.heap, at);
	check_has(caught.text, "memory was short, records lost: 1)");
	die(owner, NULL);
	CHECK(!strstr(describe_at(rig.heap, at), "memory was short"));
	rig_end(&rig);
}

/* --- names under a reader --- */

TEST_RIG(what_a_reader_may_look_at_is_not_freed)
{
	struct emitter e;
	char name[40] = "a name that goes with its block";
	struct ch_owner owner = rig_owner(&rig, "o");
	struct ch_open open = {.owner = owner, .hot_bytes = 20, .name = name};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	const struct ch__block *block = ch__block_at(rig.heap, ch__handle_index(e.code.block.bits));
	uint32_t index = block->side_list->name;
	const char *text = ch__name_text(rig.heap, index);
	rig.heap->config.remembered_dead = 1; /* the next death overwrites this tombstone */
	ch__place_read_begin();
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	for (int i = 0; i < 50; i++) {
		snprintf(name, sizeof name, "another name, number %08d", i);
		die(owner, name);
	}
	if (strcmp(text, "a name that goes with its block") != 0)
		FAIL("trap: a name was freed while it was read");
	CHECK_STR(ch__name_text(rig.heap, index), ""); /* the name is not found */
	ch__place_read_end();
	CHECK(rig.heap->names_parked);
	die(owner, "the next one");
	CHECK(!rig.heap->names_parked);
}

/* The tombstones of a release begin behind `before` others, in a ring of 1 << ring_log2. */
static void names_of_one_release(unsigned ring_log2, int before)
{
	enum { BLOCKS = 48 };
	const uint8_t *at[BLOCKS];
	char name[16], wanted[40];
	struct rig rig = rig_start(1 << 20);
	struct ch_owner others = rig_owner(&rig, "others"), owner = rig_owner(&rig, "owner");
	rig.heap->config.remembered_dead = 1u << ring_log2;
	for (int i = 0; i < BLOCKS; i++) {
		struct emitter e;
		struct ch_open open = {.owner = owner, .hot_bytes = 16, .name = name};
		snprintf(name, sizeof name, "block %d", i);
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		at[i] = e.code.exec;
	}
	for (int i = 0; i < before; i++)
		die(others, NULL);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	for (int i = 0; i < BLOCKS; i++) {
		snprintf(wanted, sizeof wanted, "block `block %d` (#", i);
		check_begins(describe_at(rig.heap, at[i]), wanted);
	}
	rig_end(&rig);
}

/* The last slot of a ring of this size is the first of a step. */
TEST(names_of_blocks_that_die_over_the_end_of_the_ring)
{
	names_of_one_release(CH__TOMBSTONES_LOG2, (1 << CH__TOMBSTONES_LOG2) - 24);
}

TEST(names_of_blocks_that_die_over_the_end_of_a_step)
{
	int records = CH__TABLE_STEP_BYTES / (int)sizeof(struct ch__tombstone);
	names_of_one_release(CH__TOMBSTONES_LOG2, records - 24);
}

TEST_RIG(first_bytes_of_the_pool_have_nothing_in_front_of_them)
{
	uintptr_t first = rig.heap->pool->exec_base;
	for (int has_code = 0; has_code < 2; has_code++) {
		if (has_code)
			rig_block(rig_owner(&rig, "first"), 3);
		for (uintptr_t at = first; at < first + 8; at += CH_ARCH_TRAP_UNIT_BYTES)
			check_begins(describe_at(rig.heap, (const void *)at),
				     has_code ? "live block `first`" : "no block: ");
	}
}
