/* SPDX-License-Identifier: MIT
 * exceptions.cc: C++ exceptions and code of a heap: thrown through blocks of every frame shape,
 * caught inside a block that brings its own unwind table, and how long unwinders know that
 * table. */
#include "tests/support/frames_rig.h"

extern "C" {
#include "tests/support/gdb_list.h"
}

#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace frames;

enum { MIB = 1 << 20 };

alignas(8) static uint8_t tables[64][TABLE_BYTES];

TEST_FRAMES(exception_passes_blocks_of_every_shape)
{
	block blocks[] = {new_block(r, FRAMED, "framed"), new_block(r, FRAMELESS, "less"),
			  new_block(r, SAVING, "saving")};
	for (int i = 1; i < 100; i++)
		for (const block &b : blocks) {
			CHECK_EQ(catch_from(b, throw_it, i), -i);
			CHECK_EQ(catch_from(b, return_it, i), i);
		}
}

/* What CH_FRAME_POINTER does not promise: the unwinder takes the code's register for its caller's.
 */
TEST_FRAMES(register_saved_under_the_pointer_shape_comes_back_wrong)
{
	block b = new_block(r, MISTAKEN, "mistaken");
	run returns = {&b, return_it, 5}, throws = {&b, throw_it, 6};
	int result = 0;
	CHECK(frames_keeps_registers(run_and_catch, &returns, &result));
	CHECK_EQ(result, 5);
	CHECK(!frames_keeps_registers(run_and_catch, &throws, &result));
	CHECK_EQ(result, -6);
}

static void catch_inside(encoding pcs)
{
	rig r = start(8 * MIB);
	block before = new_block(r, FRAMED, "before");
	block catcher = new_catcher(r, "catcher", tables[0], nullptr, pcs);
	block after = new_block(r, FRAMELESS, "after");
	for (int i = 1; i < 100; i++) {
		CHECK_EQ(catch_from(catcher, throw_it, i), CAUGHT + i);
		CHECK_EQ(catch_from(catcher, return_it, i), i);
		CHECK_EQ(catch_from(before, throw_it, i), -i);
		CHECK_EQ(catch_from(after, throw_it, i), -i);
	}
	check(r);
	end(r);
}

TEST(exception_is_caught_inside_a_block_with_absolute_pcs)
{
	catch_inside(ABSOLUTE);
}

TEST(exception_is_caught_inside_a_block_with_relative_pcs)
{
	catch_inside(PC_RELATIVE);
}

/* Frees the table as a VM would: from the notice on its memory holds something else. */
static void scramble(void *memory)
{
	std::memset(memory, 0xff, TABLE_BYTES);
}

/* --- an invalidated block catches what its callee throws --- */

enum { SPOILED = 20 };
static const rig *spoiled_rig;
static block spoiled;
static mourner mourners[SPOILED];

static int spoil_and_throw(int number)
{
	size_t count;
	CHECK_EQ(ch_blocks_invalidate(&spoiled.handle, 1, &count), CH_OK);
	CHECK_EQ(count, 1);
	CHECK_EQ(ch_owner_release(spoiled.owner, CH_RELEASE_COLLECT), CH_OK);
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(ch_heap_collect(spoiled_rig->heap), CH_OK);
		ch_info info = {};
		info.size = sizeof info;
		CHECK_EQ(ch_block_info(spoiled.handle, &info), CH_OK);
		CHECK_EQ(info.state, CH_BLOCK_NOTENTRANT);
	}
	return throw_it(number);
}

static void catch_spoiled(void *)
{
	CHECK_EQ(ch_thread_attach(spoiled_rig->heap, nullptr, nullptr), CH_OK);
	for (int i = 1; i < SPOILED; i++) {
		mourners[i] = {scramble, tables[i]};
		spoiled = new_catcher(*spoiled_rig, "spoiled", tables[i], &mourners[i]);
		CHECK_EQ(catch_from(spoiled, spoil_and_throw, i), CAUGHT + i);
	}
	spoiled = block();
	CHECK_EQ(ch_thread_detach(spoiled_rig->heap), CH_OK);
}

TEST_FRAMES(exception_is_caught_inside_a_block_that_was_invalidated_meanwhile)
{
	spoiled_rig = &r;
	ch_thread_park();
	run_on_ended_thread(catch_spoiled, nullptr);
	ch_thread_unpark();
	for (int i = 0; i < 2; i++)
		CHECK_EQ(ch_heap_collect(r.heap), CH_OK);
	for (int i = 1; i < SPOILED; i++)
		CHECK_EQ(tables[i][0], 0xff); /* its notice came, and only now */
	check(r);
}

TEST_FRAMES(debugger_has_the_table_of_a_block)
{
	CHECK_EQ(ch_sink_set(r.heap, CH_SINK_UNWIND | CH_SINK_GDB), CH_OK);
	new_block(r, FRAMED, "before");
	block catcher = new_catcher(r, "catcher", tables[0], nullptr);
	CHECK_EQ(ch_sink_flush(r.heap), CH_OK);
	ch_info info = {};
	info.size = sizeof info;
	CHECK_EQ(ch_block_info(catcher.handle, &info), CH_OK);
	uintptr_t at = (uintptr_t)info.entry;
	CHECK(gdb_fde_at(gdb_entry_of(at), at) != nullptr);
}

/* --- how long the table is known --- */

static block new_ownerless_catcher(const rig &r, uint8_t *memory)
{
	bytes b = catching_code();
	ch_open open = {};
	open.size = sizeof open;
	open.heap = r.heap;
	open.hot_bytes = b.size();
	open.flags = CH_OPEN_OWN_FRAMES;
	ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	bytes section = catching_section(memory, code.exec, b.size(), ABSOLUTE);
	std::memcpy(memory, section.at.data(), section.size());
	std::memcpy(code.write, b.at.data(), b.size());
	code.used_to = b.size();
	code.eh_frame = memory;
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	return {ch_owner(), code.block, code.exec, b.size()};
}

TEST_FRAMES(table_leaves_the_unwinder_with_its_block)
{
	block neighbour = new_block(r, FRAMED, "neighbour");
	for (int round = 0; round < 20; round++) {
		mourner last = {scramble, tables[0]};
		block catcher = new_catcher(r, "catcher", tables[0], &last);
		CHECK(is_block_known(catcher));
		CHECK_EQ(catch_from(catcher, throw_it, 7), CAUGHT + 7);
		release(catcher);
		if (is_block_known(catcher))
			FAIL("libgcc still finds the table of a freed block");
		ch_thread_poll();
		CHECK_EQ(tables[0][0], 0xff); /* the notice came */
		CHECK(is_block_known(neighbour));
		CHECK_EQ(catch_from(neighbour, throw_it, 5), -5);
	}
}

/* Nothing reads the table any more: its memory is gone. */
TEST_FRAMES(table_of_code_without_an_owner_may_go_when_the_code_was_freed)
{
	CHECK_EQ(ch_sink_set(r.heap, CH_SINK_UNWIND | CH_SINK_GDB), CH_OK);
	block neighbour = new_block(r, FRAMED, "neighbour");
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	for (int round = 0; round < 20; round++) {
		void *memory = mmap(nullptr, page, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(memory != MAP_FAILED);
		block catcher = new_ownerless_catcher(r, static_cast<uint8_t *>(memory));
		CHECK_EQ(catch_from(catcher, throw_it, 7), CAUGHT + 7);
		CHECK_EQ(ch_code_free(r.heap, catcher.exec, CH_RELEASE_NOT_RUNNING), CH_OK);
		CHECK_EQ(munmap(memory, page), 0);
		CHECK(!is_block_known(catcher));
		CHECK_EQ(catch_from(neighbour, throw_it, 5), -5);
		CHECK_EQ(ch_sink_flush(r.heap), CH_OK);
	}
}

/* Blocks built in a frame that has gone, so that no stack holds them. */
__attribute__((noinline)) static void build_dead(const rig *r, mourner *last, const uint8_t **at,
						 uint32_t *size)
{
	block catcher = new_catcher(*r, "dropped", tables[1], last);
	CHECK(is_block_known(catcher));
	*at = reinterpret_cast<const uint8_t *>(~reinterpret_cast<uintptr_t>(catcher.exec));
	*size = catcher.size;
	CHECK_EQ(ch_owner_release(catcher.owner, CH_RELEASE_COLLECT), CH_OK);
}

struct apart {
	const rig *r;
	mourner *last;
	const uint8_t *hidden;
	uint32_t size;
	unsigned notices;
};

static void build_apart(void *arg)
{
	auto *a = static_cast<apart *>(arg);
	CHECK_EQ(ch_thread_attach(a->r->heap, nullptr, nullptr), CH_OK);
	build_dead(a->r, a->last, &a->hidden, &a->size);
	CHECK_EQ(ch_thread_detach(a->r->heap), CH_OK);
}

static void expect_forgotten(void *arg)
{
	auto *a = static_cast<apart *>(arg);
	auto *exec = reinterpret_cast<const uint8_t *>(~reinterpret_cast<uintptr_t>(a->hidden));
	CHECK(!is_known(exec));
	CHECK(!is_known(exec + a->size - 1));
	a->notices++;
}

/* The notice may come before the place is free for others: the table is forgotten by then. */
TEST_FRAMES(table_of_a_collected_block_is_forgotten_before_its_notice)
{
	apart a = {};
	mourner last = {expect_forgotten, &a};
	a.r = &r;
	a.last = &last;
	ch_thread_park();
	run_on_ended_thread(build_apart, &a);
	ch_thread_unpark();
	for (int cycle = 0; cycle < 4 && !a.notices; cycle++)
		CHECK_EQ(ch_heap_collect(r.heap), CH_OK);
	CHECK_EQ(a.notices, 1);
}

/* libgcc 12 takes the table whose first pc is the next one below: one that lies among pages would
 * hide those behind it. */
TEST(pages_around_a_table_stay_known)
{
	rig r = start(16 * MIB);
	std::vector<block> plain;
	std::vector<block> catchers;
	for (unsigned i = 0; i < 12; i++) {
		/* Owners of their own pages: a page holds one shape. */
		plain.push_back(new_block(r, i % 2 ? FRAMED : FRAMELESS, "plain"));
		catchers.push_back(new_catcher(r, "catcher", tables[i], nullptr));
		ch_open open = {};
		open.size = sizeof open;
		open.owner = plain.back().owner;
		open.hot_bytes = 30000; /* the next plain block lies behind it */
		ch_code code;
		CHECK_EQ(ch_block_open(&open, &code), CH_OK);
		std::memcpy(code.write, return_code().at.data(), RETURN_BYTES);
		code.used_to = RETURN_BYTES;
		CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
		CHECK(is_known(code.exec));
		for (const block &b : plain) {
			if (!is_block_known(b))
				FAIL("a table of a block hides the pages behind it from libgcc");
			CHECK_EQ(catch_from(b, throw_it, 3), -3);
		}
		for (const block &b : catchers) {
			CHECK(is_block_known(b));
			CHECK_EQ(catch_from(b, throw_it, 3), CAUGHT + 3);
		}
	}
	for (unsigned i = 0; i < 12; i += 2)
		release(catchers[i]);
	for (unsigned i = 0; i < 12; i++) {
		CHECK(is_block_known(plain[i]));
		CHECK_EQ(is_block_known(catchers[i]), i % 2);
	}
	check(r);
	end(r);
}

TEST_FRAMES(many_tables_come_and_go_in_any_order)
{
	test_random random = test_random_new();
	block live[32];
	bool is_live[32] = {};
	for (int i = 0; i < 2000; i++) {
		auto at = static_cast<unsigned>(test_random_below(&random, 32));
		if (is_live[at]) {
			release(live[at]);
			CHECK(!is_block_known(live[at]));
			std::memset(tables[at], 0xff, TABLE_BYTES);
		} else {
			live[at] = new_catcher(r, "catcher", tables[at], nullptr);
		}
		is_live[at] = !is_live[at];
		auto other = static_cast<unsigned>(test_random_below(&random, 32));
		if (is_live[other])
			CHECK_EQ(catch_from(live[other], throw_it, 9), CAUGHT + 9);
	}
}

/* --- a table that lies in the heap --- */

struct image {
	ch_block constants;
	block code;
};

static image new_image(const rig &r, encoding pcs, size_t code_at = 1)
{
	bytes b = catching_code();
	ch_owner owner = new_owner(r, "image");
	ch_code codes[2];
	ch_code &code = codes[code_at], &table = codes[1 - code_at];
	ch_open open = {};
	open.size = sizeof open;
	open.owner = owner;
	open.hot_bytes = b.size();
	open.flags = CH_OPEN_OWN_FRAMES | CH_OPEN_IN_PLACE;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	open.hot_bytes = TABLE_BYTES;
	open.flags = 0;
	open.kind = CH_KIND_RODATA;
	CHECK_EQ(ch_block_open(&open, &table), CH_OK);
	bytes section = catching_section(table.exec, code.exec, b.size(), pcs);
	std::memcpy(table.write, section.at.data(), section.size());
	std::memcpy(code.write, b.at.data(), b.size());
	code.used_to = b.size();
	code.eh_frame = table.exec;
	CHECK_EQ(ch_edge_attach(code.block, table.block), CH_OK);
	CHECK_EQ(ch_block_commit(codes, 2), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, code.block), CH_OK);
	return {table.block, {owner, code.block, code.exec, b.size()}};
}

static void catch_by_tables(rig r)
{
	for (unsigned turn = 0; turn < 4; turn++) {
		image made = new_image(r, turn < 2 ? ABSOLUTE : PC_RELATIVE, turn % 2);
		for (int i = 0; i < 3; i++) {
			CHECK_EQ(catch_from(made.code, throw_it, 8), CAUGHT + 8);
			CHECK_EQ(ch_heap_collect(r.heap), CH_OK);
		}
		CHECK(is_block_known(made.code));
		release(made.code);
		CHECK(!is_block_known(made.code));
	}
	end(r);
}

TEST(exception_is_caught_by_a_table_in_the_heap)
{
	catch_by_tables(start(8 * MIB));
}

/* A commit reads the table where the table has no byte yet. */
TEST(exception_is_caught_by_a_table_in_the_heap_procmem)
{
	skip_without_procmem();
	unsetenv("CODEHEAP_WX");
	ch_config config = config_of(8 * MIB);
	config.backend = CH_BACKEND_PROCMEM;
	catch_by_tables(start_with(config));
}

/* Inverted addresses, which hold no block. */
static uintptr_t dropped[20];

static void drop_images(void *arg)
{
	auto *r = static_cast<const rig *>(arg);
	CHECK_EQ(ch_thread_attach(r->heap, nullptr, nullptr), CH_OK);
	for (uintptr_t &hidden : dropped) {
		image made = new_image(*r, PC_RELATIVE);
		CHECK(is_block_known(made.code));
		hidden = ~reinterpret_cast<uintptr_t>(made.code.exec);
		CHECK_EQ(ch_owner_release(made.code.owner, CH_RELEASE_COLLECT), CH_OK);
	}
	CHECK_EQ(ch_thread_detach(r->heap), CH_OK);
}

TEST(tables_in_the_heap_go_with_their_code)
{
	rig r = start(16 * MIB);
	block neighbour = new_block(r, FRAMED, "neighbour");
	for (int i = 0; i < 5; i++) {
		ch_thread_park();
		run_on_ended_thread(drop_images, &r);
		ch_thread_unpark();
		CHECK_EQ(ch_heap_collect(r.heap), CH_OK);
		CHECK_EQ(stats_of(r).blocks_now, 1);
		for (uintptr_t hidden : dropped)
			CHECK(!is_known(reinterpret_cast<const uint8_t *>(~hidden)));
		CHECK_EQ(catch_from(neighbour, throw_it, 5), -5);
	}
	check(r);
	end(r);
}

/* The child's unwinder was told of a table that the child does not have. */
TEST(child_without_copy_throws_though_a_table_lay_in_the_heap)
{
	ch_config config = config_of(8 * MIB);
	config.fork = CH_FORK_NONE;
	rig r = start_with(config);
	/* Tables that the child has, of blocks that die before the others, and behind them. */
	(void)new_catcher(r, "first", tables[0], nullptr);
	image known = new_image(r, PC_RELATIVE), unknown = new_image(r, PC_RELATIVE);
	(void)new_catcher(r, "last", tables[1], nullptr);
	CHECK(is_block_known(known.code));
	pid_t child = fork_child();
	if (child == 0) {
		/* What was freed has another use. */
		for (unsigned length = 1; length < 300; length++)
			new_owner(r, std::string(length, '~').c_str());
		for (int i = 0; i < 3; i++) {
			CHECK(!is_block_known(known.code));
			CHECK(!is_block_known(unknown.code));
			try {
				throw_it(i);
			} catch (int thrown) {
				CHECK_EQ(thrown, i);
			}
			CHECK_EQ(ch_heap_collect(r.heap), CH_OK);
		}
		end(r);
		rig other = start(16 * MIB);
		block code = new_block(other, FRAMED, "other");
		CHECK_EQ(catch_from(code, throw_it, 5), -5);
		CHECK(!is_block_known(known.code));
		end(other);
		_exit(3);
	}
	expect_exit(child, 3);
	CHECK_EQ(catch_from(unknown.code, throw_it, 8), CAUGHT + 8);
	end(r);
}

static void end_seven(int)
{
	_exit(7);
}

/* The report of the fault looks at no table in the pool. */
TEST(fault_of_a_child_of_a_raw_clone_reaches_the_handler_that_was_there)
{
	CHECK(signal(SIGSEGV, end_seven) != SIG_ERR);
	rig r = start(8 * MIB);
	CHECK_EQ(ch_trap_install(r.heap), CH_OK);
	CHECK_EQ(ch_sink_set(r.heap, CH_SINK_UNWIND | CH_SINK_GDB), CH_OK);
	image made = new_image(r, PC_RELATIVE);
	auto pid = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK_EQ(catch_from(made.code, throw_it, 8), CAUGHT + 8);
		_exit(8); /* procmem: the child has the code */
	}
	expect_exit(pid, std::strcmp(stats_of(r).backend, "procmem") == 0 ? 8 : 7);
	end(r);
}

/* --- without a table, and with a wrong one --- */

static ch_status commit_with(const rig &r, const bytes &section, bool own)
{
	bytes b = catching_code();
	ch_owner owner = new_owner(r, "tried");
	ch_code code;
	CHECK_EQ(open_block(r, own ? OWN : FRAMED, b.size(), owner, nullptr, &code), CH_OK);
	std::memcpy(code.write, b.at.data(), b.size());
	code.used_to = b.size();
	std::memset(tables[0], 0x5a, TABLE_BYTES);
	std::memcpy(tables[0], section.at.data(), section.size());
	code.eh_frame = tables[0];
	ch_status status = ch_block_commit(&code, 1);
	if (status != CH_OK) {
		CHECK(!own || !is_known(code.exec));
		CHECK_EQ(ch_block_abort(&code), CH_OK); /* it is open still */
	}
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(!own || !is_known(code.exec));
	return status;
}

/* Where the next block of OWN frames will lie. */
static const uint8_t *next_own(const rig &r)
{
	ch_owner owner = new_owner(r, "probe");
	ch_code code;
	CHECK_EQ(open_block(r, OWN, catching_code().size(), owner, nullptr, &code), CH_OK);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	return code.exec;
}

TEST_FRAMES(block_without_a_table_is_not_known)
{
	bytes b = plain_code(FRAMED);
	ch_owner owner = new_owner(r, "none");
	ch_code code;
	CHECK_EQ(open_block(r, OWN, b.size(), owner, nullptr, &code), CH_OK);
	block none = commit_block(code, b, owner);
	CHECK(!is_block_known(none));
	CHECK_EQ(catch_from(none, return_it, 4), 4);
}

TEST_FRAMES(table_may_describe_the_cold_bytes)
{
	ch_owner owner = new_owner(r, "cold");
	bytes b = plain_code(FRAMELESS);
	ch_open open = {};
	open.size = sizeof open;
	open.owner = owner;
	open.hot_bytes = b.size();
	open.cold_bytes = 64;
	open.flags = CH_OPEN_OWN_FRAMES;
	ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	std::memcpy(code.cold_write, b.at.data(), b.size());
	code.cold_used = b.size();
	bytes section = plain_section(code.cold_exec, code.cold_bytes);
	std::memcpy(tables[0], section.at.data(), section.size());
	code.eh_frame = tables[0];
	block made = commit_block(code, b, owner);
	CHECK(is_known(code.cold_exec) && is_known(code.cold_exec + code.cold_bytes - 1));
	release(made);
	CHECK(!is_known(code.cold_exec));
}

TEST_FRAMES(own_frames_take_no_frame_shape)
{
	ch_open open = {};
	open.size = sizeof open;
	open.owner = new_owner(r, "both");
	open.hot_bytes = 16;
	open.frame = r.frameless;
	open.flags = CH_OPEN_OWN_FRAMES;
	ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_E_ARG);
}

struct damage {
	uint32_t at;
	uint32_t word;
};

/* The lengths, the ids, the version and the pcs of a section that is right otherwise. */
TEST_FRAMES(wrong_tables_are_refused)
{
	uint32_t size = catching_code().size();
	block keeper = new_catcher(r, "keeper", tables[1], nullptr); /* of the chunk's zone */
	for (encoding pcs : {ABSOLUTE, PC_RELATIVE}) {
		const uint8_t *exec = next_own(r);
		bytes good = catching_section(tables[0], exec, size, pcs);
		CHECK_EQ(commit_with(r, good, true), CH_OK);
		CHECK_EQ(commit_with(r, good, false), CH_E_ARG); /* was not announced */
		/* The place of code that was released may have to wait. */
		exec = next_own(r);
		good = catching_section(tables[0], exec, size, pcs);
		uint32_t cie_bytes, fde_length;
		std::memcpy(&cie_bytes, good.at.data(), 4);
		cie_bytes += 4;
		std::memcpy(&fde_length, good.at.data() + cie_bytes, 4);
		uint32_t end_at = cie_bytes + 4 + fde_length;
		const damage damages[] = {
			{0, 0},                 /* nothing in it */
			{0, 0xffffffff},        /* 64-bit lengths */
			{0, 2 << 20},           /* leads out of any bound */
			{0, cie_bytes - 4 + 2}, /* the next record is not aligned */
			{4, 8},                 /* no CIE, and an FDE's CIE is before the section */
			{8, 'z' << 8 | 2},      /* version 2 */
			{8, 'e' << 8 | 1},      /* an augmentation that nobody knows */
			{cie_bytes, 4},         /* no room for pcs */
			{cie_bytes + 4, 0},     /* a second CIE, which is none */
			{cie_bytes + 4, 8},     /* its CIE is not one */
			{cie_bytes + 4, 1 << 16},
			{cie_bytes + 8, 0x1000}, /* pcs elsewhere */
			{end_at, 0x5a5a5a5a},    /* no end */
		};
		for (const damage &d : damages) {
			bytes bad = good;
			std::memcpy(bad.at.data() + d.at, &d.word, sizeof d.word);
			if (commit_with(r, bad, true) != CH_E_ARG)
				FAIL("word %u at %u was accepted", d.word, d.at);
		}
		CHECK_EQ(commit_with(r, catching_section(tables[0], exec - 64, size, pcs), true),
			 CH_E_ARG);
		CHECK_EQ(commit_with(r, catching_section(tables[0], exec, size + 65536, pcs), true),
			 CH_E_ARG);
		CHECK_EQ(commit_with(r, catching_section(tables[0], exec, 0, pcs), true), CH_E_ARG);
	}
	CHECK_EQ(catch_from(keeper, throw_it, 5), CAUGHT + 5);
}

/* --- sinks, discard, detach, fork --- */

TEST_FRAMES(sink_turned_off_and_on_forgets_and_knows_the_table)
{
	block plain = new_block(r, FRAMED, "plain");
	block catcher = new_catcher(r, "catcher", tables[0], nullptr);
	for (int round = 0; round < 3; round++) {
		CHECK_EQ(ch_sink_set(r.heap, CH_SINK_NONE), CH_OK);
		CHECK(!is_block_known(catcher) && !is_block_known(plain));
		/* What is made and freed meanwhile is told, or not told, later. */
		block quiet = new_catcher(r, "quiet", tables[1], nullptr);
		block gone = new_catcher(r, "gone", tables[2], nullptr);
		CHECK(!is_block_known(quiet));
		release(gone);
		std::memset(tables[2], 0xff, TABLE_BYTES);
		CHECK_EQ(ch_sink_set(r.heap, CH_SINK_UNWIND), CH_OK);
		CHECK(is_block_known(catcher) && is_block_known(plain) && is_block_known(quiet));
		CHECK(!is_block_known(gone));
		CHECK_EQ(catch_from(catcher, throw_it, 6), CAUGHT + 6);
		CHECK_EQ(catch_from(quiet, throw_it, 6), CAUGHT + 6);
		release(quiet);
		CHECK(!is_block_known(quiet));
	}
}

TEST_FRAMES(table_is_not_told_when_its_commit_fails)
{
	ch_assumption assumption;
	CHECK_EQ(ch_assumption_create(r.vm, &assumption), CH_OK);
	bytes b = catching_code();
	ch_owner owner = new_owner(r, "stale");
	ch_code code;
	CHECK_EQ(open_block(r, OWN, b.size(), owner, nullptr, &code), CH_OK);
	bytes section = catching_section(tables[0], code.exec, b.size(), ABSOLUTE);
	std::memcpy(tables[0], section.at.data(), section.size());
	std::memcpy(code.write, b.at.data(), b.size());
	code.used_to = b.size();
	code.eh_frame = tables[0];
	CHECK_EQ(ch_block_assume(code.block, assumption), CH_OK);
	CHECK_EQ(ch_assumption_break(assumption, nullptr), CH_OK);
	CHECK_EQ(ch_block_commit(&code, 1), CH_E_STALE);
	std::memset(tables[0], 0xff, TABLE_BYTES);
	CHECK(!is_known(code.exec));
	CHECK_EQ(catch_from(new_catcher(r, "next", tables[1], nullptr), throw_it, 2), CAUGHT + 2);
}

TEST_FRAMES(tables_are_forgotten_when_their_vm_detaches)
{
	ch_vm *other;
	ch_ops ops = {};
	ops.size = sizeof ops;
	CHECK_EQ(ch_vm_attach(r.heap, &ops, nullptr, &other), CH_OK);
	block stays = new_catcher(r, "stays", tables[0], nullptr);
	rig second = {r.heap, other, r.frameless};
	block goes = new_catcher(second, "goes", tables[1], nullptr); /* this stack holds it */
	CHECK(is_block_known(goes));
	CHECK_EQ(ch_vm_detach(other), CH_OK);
	if (is_block_known(goes))
		FAIL("libgcc still finds the table of a vm that is gone");
	std::memset(tables[1], 0xff, TABLE_BYTES);
	CHECK_EQ(catch_from(stays, throw_it, 8), CAUGHT + 8);
}

TEST_FRAMES(discard_frees_blocks_with_tables)
{
	mourner last = {scramble, tables[1]};
	apart a = {&r, &last, nullptr, 0, 0};
	ch_thread_park();
	run_on_ended_thread(build_apart, &a);
	ch_thread_unpark();
	size_t freed, kept;
	CHECK_EQ(ch_vm_discard(r.heap, nullptr, &freed, &kept), CH_OK);
	CHECK_EQ(freed + kept, 1);
	for (int cycle = 0; cycle < 3 && tables[1][0] != 0xff; cycle++)
		CHECK_EQ(ch_heap_collect(r.heap), CH_OK);
	auto *exec = reinterpret_cast<const uint8_t *>(~reinterpret_cast<uintptr_t>(a.hidden));
	CHECK_EQ(tables[1][0], 0xff);
	CHECK(!is_known(exec));
}

TEST(heap_destroyed_with_its_tables_leaves_the_unwinder_whole)
{
	for (int round = 0; round < 5; round++) {
		rig r = start(8 * MIB);
		block plain = new_block(r, FRAMED, "plain");
		block catcher = new_catcher(r, "catcher", tables[0], nullptr);
		CHECK_EQ(catch_from(catcher, throw_it, 8), CAUGHT + 8);
		end(r);
		std::memset(tables[0], 0xff, TABLE_BYTES);
		CHECK(!is_known(plain.exec) && !is_known(catcher.exec));
	}
	bool is_caught = false;
	try {
		throw_it(1);
	} catch (int) {
		is_caught = true;
	}
	CHECK(is_caught);
}

TEST_FRAMES(child_and_parent_free_their_tables_apart)
{
	block catcher = new_catcher(r, "catcher", tables[0], nullptr);
	block plain = new_block(r, FRAMELESS, "plain");
	pid_t child = fork_child();
	if (child == 0) {
		CHECK_EQ(catch_from(catcher, throw_it, 3), CAUGHT + 3);
		release(catcher);
		CHECK(!is_block_known(catcher));
		std::memset(tables[0], 0xff, TABLE_BYTES);
		CHECK_EQ(catch_from(plain, throw_it, 3), -3);
		block next = new_catcher(r, "next", tables[1], nullptr);
		CHECK_EQ(catch_from(next, throw_it, 3), CAUGHT + 3);
		check(r);
		_exit(0);
	}
	int status;
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	CHECK_EQ(catch_from(catcher, throw_it, 3), CAUGHT + 3);
	release(catcher);
	CHECK(!is_block_known(catcher));
}
