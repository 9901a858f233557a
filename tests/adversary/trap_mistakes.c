/* SPDX-License-Identifier: MIT
 * trap_mistakes.c: first mistakes with the library, told by name: a store to exec instead of write,
 * a call of write instead of exec, a fault inside live code, a jump into freed code by a thread
 * that is not attached, or parked. */
#define _GNU_SOURCE
#include "codeheap/graph/block_parts.h"
#include "tests/support/trap_rig.h"

#include <pthread.h>

/* No sanitizer looks at the store first: the store has to fault. */
__attribute__((noinline, no_sanitize("address", "thread", "undefined"))) static void
store(volatile uint8_t *at)
{
	*at = 1;
}

static void store_to(uint8_t *at)
{
	caught.signal = 0;
	caught.text[0] = 0;
	if (!sigsetjmp(caught.back, 1))
		store(at);
	CHECK(caught.signal == SIGSEGV || caught.signal == SIGBUS);
}

static void check_is_own(const char *said)
{
	check_has(said, "; by 0x");
	check_has(said, "adversary_trap_mistakes +0x");
}

TEST_RIG(store_to_exec_of_an_open_block_is_told_to_use_write)
{
	struct emitter e;
	struct ch_open open = {.owner = rig_owner(&rig, "o"), .hot_bytes = 64, .name = "b"};
	char wanted[200];
	catch_traps(rig.heap);
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	store_to(e.code.exec + 3);
	snprintf(wanted, sizeof wanted,
		 "a store to exec of open block `b` (#%u.%u, owner `o`), +0x%x (0x%lx): exec is "
		 "never writable, emit at ch_code.write; by 0x",
		 ch__handle_index(e.code.block.bits), ch__handle_generation(e.code.block.bits),
		 3, (unsigned long)(uintptr_t)e.code.exec + 3);
	check_begins(caught.text, wanted);
	check_is_own(caught.text);
	CHECK_EQ(caught.length, strlen(caught.text));
	/* Code emitted through the write address runs. */
	emit_answer(&e, 7);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(code_call(e.code.exec), 7);
	store_to(e.code.exec);
	check_begins(caught.text, "a store to exec of live block `b` (#");
	check_has(caught.text, "): exec is never writable, use ch_code_write; "
			       "variables are CH_KIND_DATA; by 0x");
	CHECK_EQ(code_call(e.code.exec), 7);
}

static void call_of_write_is_told(const struct ch_heap *heap, struct ch_owner owner)
{
	struct emitter e;
	struct ch_open open = {.owner = owner, .hot_bytes = 64, .name = "b"};
	char wanted[300];
	catch_traps(heap);
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 7);
	const uint8_t *write = e.code.write;
	jump_to(write);
	CHECK(caught.signal == SIGSEGV || caught.signal == SIGBUS);
	snprintf(wanted, sizeof wanted,
		 "executed at the write address of open block `b` (#%u.%u, owner `o`), +0x0 "
		 "(0x%lx): code runs at ch_code.exec, from its commit on; return address",
		 ch__handle_index(e.code.block.bits), ch__handle_generation(e.code.block.bits),
		 (unsigned long)(uintptr_t)write);
	check_begins(caught.text, wanted);
	check_has(caught.text, "adversary_trap_mistakes +0x");
	CHECK_EQ(caught.length, strlen(caught.text));
	CHECK_EQ(emit_commit(&e), CH_OK);
	jump_to(write + 4);
	check_begins(caught.text, "executed at the write address of live block `b` (#");
	check_has(caught.text, ", +0x4 (0x");
	check_has(caught.text, "): code runs at ch_code.exec; return address");
	CHECK_EQ(code_call(e.code.exec), 7);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	jump_to(write);
	check_begins(caught.text, "executed at the write address of freed block `b` (#");
}

/* On each backend of the machine, the backend of the run included. */
TEST(call_of_the_write_address_is_told_to_use_exec)
{
	int tried = 0;
	for (int backend = CH_BACKEND_AUTO; backend <= CH_BACKEND_PROCMEM; backend++) {
		struct ch_config config = rig_config(1 << 20);
		struct ch_heap *heap;
		config.backend = (enum ch_backend)backend;
		if (backend != CH_BACKEND_AUTO)
			unsetenv("CODEHEAP_WX");
		if (ch_heap_create(&config, &heap) != CH_OK)
			continue;
		CHECK_EQ(ch_heap_destroy(heap), CH_OK);
		struct rig rig = rig_create(&config, NULL, NULL);
		call_of_write_is_told(rig.heap, rig_owner(&rig, "o"));
		rig_end(&rig);
		tried++;
	}
	CHECK(tried >= 2);
}

/* By docs/embedding.md, section 14, a mistake that works by luck elsewhere shows on procmem. */
TEST(private_memory_runs_nothing_before_the_commit_and_no_late_store)
{
	skip_without_procmem();
	struct ch_config config = rig_config(1 << 20);
	config.backend = CH_BACKEND_PROCMEM;
	unsetenv("CODEHEAP_WX");
	struct rig rig = rig_create(&config, NULL, NULL);
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "o"), 64, 0);
	emit_answer(&e, 7);
	uint8_t *write = e.code.write;
	catch_traps(rig.heap);
	jump_to(e.code.exec);
	CHECK(caught.signal == SIGTRAP || caught.signal == SIGILL);
	check_has(caught.text, ", not committed; executed at +0x0 ");
	CHECK_EQ(emit_commit(&e), CH_OK);
	ch__arch_fill_traps(write, CH_ARCH_TRAP_UNIT_BYTES);
	CHECK_EQ(code_call(e.code.exec), 7);
	memcpy(write, e.code.exec, CH_ARCH_TRAP_UNIT_BYTES);
	rig_end(&rig);
}

TEST_RIG(store_to_freed_code_is_told_whose_it_was)
{
	struct ch_owner owner = rig_owner(&rig, "gone");
	uint8_t *at = (uint8_t *)(uintptr_t)block_info(rig_block(owner, 3)).exec;
	catch_traps(rig.heap);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	store_to(at);
	check_begins(caught.text, "a store to exec of freed block `gone` (#");
	check_has(caught.text, "): exec is never writable; by 0x");
	check_is_own(caught.text);
}

/* Constants that share pages, and constants with pages of their own. */
TEST_RIG_BY(store_to_a_constant_and_its_call_say_that_it_is_data, rig_start(4 << 20))
{
	catch_traps(rig.heap);
	for (uint32_t bytes = 16; bytes <= 160000; bytes *= 100) {
		struct ch_code code;
		struct ch_open open = {.size = sizeof open,
				       .heap = rig.heap,
				       .hot_bytes = bytes,
				       .kind = CH_KIND_RODATA,
				       .name = "table"};
		CHECK_EQ(ch_block_open(&open, &code), CH_OK);
		memset(code.write, 0, bytes);
		CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
		store_to(code.exec);
		check_begins(caught.text, "a store to exec of live data `table` (#");
		check_has(caught.text, "): exec is never writable; by 0x");
		/* The fault's address is the pc: nobody stored. */
		jump_to(code.exec);
		check_begins(caught.text, "live data `table` (#");
		check_has(caught.text, "; executed at +0x0 (");
	}
}

/* On aarch64 and riscv64 a misaligned atomic access has this signal: a load, or a store to data. */
TEST_RIG_BY(misaligned_access_of_data_is_no_store_to_exec, rig_start(4 << 20))
{
	struct ch_code code;
	struct made_up m;
	struct ch_open open = {.size = sizeof open,
			       .heap = rig.heap,
			       .hot_bytes = 64,
			       .kind = CH_KIND_DATA,
			       .name = "variable"};
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	make_up(&m, block_info(rig_block(rig_owner(&rig, "o"), 1)).exec, 1);
	m.info.si_signo = SIGBUS;
	m.info.si_code = BUS_ADRALN;
	m.info.si_addr = code.exec + 1;
	describe_made_up(rig.heap, &m);
	check_begins(caught.text, "SIGBUS at exec of live data `variable` (#");
	CHECK(!strstr(caught.text, "never writable"));
	check_has(caught.text, "; by 0x");
}

TEST_RIG(fault_inside_live_code_says_its_signal_and_address)
{
	catch_traps(rig.heap);
	for (size_t i = 0; i < sizeof code_faults / sizeof code_faults[0]; i++) {
		struct emitter e;
		struct ch_open open = {.owner = rig_owner(&rig, "o"), .hot_bytes = 40, .name = "b"};
		int signal = code_faults[i].signal;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_fault(&e, signal);
		CHECK_EQ(emit_commit(&e), CH_OK);
		jump_to(e.code.exec);
		CHECK_EQ(caught.signal, signal);
		check_begins(caught.text, "live block `b` (#");
		check_has(caught.text, signal == SIGSEGV   ? "; SIGSEGV at address 0x"
				       : signal == SIGBUS  ? "; SIGBUS at address 0x"
				       : signal == SIGILL  ? "; SIGILL"
				       : signal == SIGFPE  ? "; SIGFPE"
				       : signal == SIGTRAP ? "; SIGTRAP: its own trap, or"
							   : "no such signal");
	}
}

/* Fills both parts of a block without a return, each up to the head of the next part. */
static void open_endless(struct emitter *e, struct ch_owner owner)
{
	enum { HOT_BYTES = 64, COLD_BYTES = 8 };
	struct ch_open open = {.owner = owner,
			       .hot_bytes = HOT_BYTES,
			       .cold_bytes = COLD_BYTES,
			       .name = "endless"};
	struct emitter cold = {.code = {.hot_bytes = COLD_BYTES}};
	CHECK_EQ(emit_open_as(e, &open), CH_OK);
	emit_value(e, 7);
	while (e->at < HOT_BYTES)
		emit_nops(e, 1);
	cold.code.write = e->code.cold_write;
	while (cold.at < COLD_BYTES)
		emit_nops(&cold, 1);
	e->code.cold_used = COLD_BYTES;
}

/* The code runs into the head of the next part. */
static void check_runs_on(const uint8_t *from, const uint8_t *head, const char *part)
{
	char wanted[100];
	jump_to(from);
	CHECK_EQ(caught.signal, SIGTRAP);
	check_begins(caught.text, "live block `endless` (#");
	snprintf(wanted, sizeof wanted, "; executed at %s+0x%x, behind its end (0x%lx)", part,
		 (unsigned)(head - from), (unsigned long)(uintptr_t)head);
	check_has(caught.text, wanted);
}

/* A head traps at its first byte whatever record it belongs to: no byte of an index runs. */
TEST_RIG(code_that_runs_on_into_the_next_head_traps_there_and_is_named)
{
	enum { COUNT = 300 };
	struct emitter e, next;
	catch_traps(rig.heap);
	struct ch_owner owner = rig_owner(&rig, "o"), last = rig_owner(&rig, "p");
	open_endless(&e, owner);
	for (int i = 0; i < COUNT; i++) {
		open_endless(&next, i + 1 < COUNT ? owner : last);
		const uint8_t *exec = e.code.exec, *cold = next.code.cold_exec;
		const uint8_t *head = next.code.exec - CH__HEAD_BYTES,
			      *cold_head = e.code.cold_exec - CH__HEAD_BYTES;
		bool is_next = exec + e.at == head, is_cold_next = cold + 8 == cold_head;
		/* A page may end between the two. */
		CHECK(is_next || head - exec > 1000 || exec > head);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(emit_commit(&next), CH_OK);
		if (is_next)
			check_runs_on(exec, head, "");
		if (is_cold_next)
			check_runs_on(cold, cold_head, "cold ");
		CHECK(i || (is_next && is_cold_next));
		if (i + 1 == COUNT)
			break;
		open_endless(&e, owner);
	}
	/* A head behind unused bytes has no code in front. */
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	jump_to(next.code.exec - CH__HEAD_BYTES);
	check_begins(caught.text, "live block `endless` (#");
	check_has(caught.text, ", owner `p`); executed at +0x0 (0x");
}

/* Behind the code lies code that was freed, or no code yet. */
TEST_RIG(code_that_runs_on_into_freed_or_unused_bytes_is_named)
{
	struct emitter e, next;
	catch_traps(rig.heap);
	struct ch_owner owner = rig_owner(&rig, "o"), last = rig_owner(&rig, "p");
	open_endless(&e, owner);
	open_endless(&next, last);
	const uint8_t *exec = e.code.exec, *end = exec + e.at, *last_exec = next.code.exec;
	const uint8_t *cold = next.code.cold_exec;
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(emit_commit(&next), CH_OK);
	CHECK_EQ((uintptr_t)end, (uintptr_t)last_exec - CH__HEAD_BYTES);
	check_runs_on(last_exec, last_exec + next.at, "");
	check_has(caught.text, ", owner `p`)");
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	jump_to(cold); /* goes on in the head of freed code */
	check_begins(caught.text, "live block `endless` (#");
	check_has(caught.text, "; executed at cold +0x8, behind its end, where before it lay block "
			       "`endless` (#");
	check_has(caught.text, ", owner `o`), freed after collection 0 because its owner was ");
	jump_to(end - CODE_NOP_BYTES);
	check_begins(caught.text, "block `endless` (#"); /* freed, and not at its beginning */
}

/* On x86-64 a misaligned operand and an address that is not canonical have no address: the system
 * says 0, which is no store to NULL. */
TEST_RIG(fault_without_an_address_says_so)
{
	struct made_up m;
	const uint8_t *at = block_info(rig_block(rig_owner(&rig, "o"), 3)).exec;
	make_up(&m, at, 1);
	m.info.si_signo = SIGSEGV;
	describe_made_up(rig.heap, &m);
	check_has(caught.text,
		  "; SIGSEGV without an address: misaligned, not canonical or privileged");
	m.info.si_code = SEGV_MAPERR;
	describe_made_up(rig.heap, &m);
	check_has(caught.text, "; SIGSEGV at address 0x0");
}

TEST_RIG(call_of_a_cell_is_told_to_call_what_the_cell_holds)
{
	struct ch_owner owner = rig_owner(&rig, "o");
	catch_traps(rig.heap);
	const void *cell = ch_owner_cell(owner);
	jump_to(cell);
	CHECK(caught.signal == SIGSEGV || caught.signal == SIGBUS);
	check_begins(caught.text, "executed at an owner's cell: call what it holds (0x");
	check_has(caught.text, "adversary_trap_mistakes +0x");
	/* Records that nobody had are no cells, nor is what lies in front of the first. */
	const char *records = rig.heap->owners.base;
	struct made_up m;
	make_up(&m, records - 8, 1);
	CHECK_EQ(ch_trap_describe(rig.heap, &m.info, &m.context, caught.text, 8), 0);
	make_up(&m, records + rig.heap->owners.used * sizeof(struct ch__owner), 1);
	CHECK_EQ(ch_trap_describe(rig.heap, &m.info, &m.context, caught.text, 8), 0);
}

static void *jump_unattached(void *at)
{
	jump_to(at);
	return NULL;
}

TEST_RIG(jump_into_freed_code_by_a_thread_that_is_not_attached_says_so)
{
	static const char words[] = "; by a thread that is not attached";
	struct ch_owner owner = rig_owner(&rig, "gone");
	const uint8_t *at = block_info(rig_block(owner, 3)).exec;
	pthread_t thread;
	catch_traps(rig.heap);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(pthread_create(&thread, NULL, jump_unattached, (void *)(uintptr_t)at), 0);
	pthread_join(thread, NULL);
	check_begins(caught.text, "block `gone` (#");
	check_has(caught.text, words);
	jump_to(at);
	check_begins(caught.text, "block `gone` (#");
	CHECK(!strstr(caught.text, "; by a thread"));
}

/* A parked thread counts as stopped, and nothing below its park keeps code alive. */
TEST_RIG(jump_into_freed_code_by_a_thread_that_is_parked_says_so)
{
	struct ch_owner owner = rig_owner(&rig, "gone");
	const uint8_t *at = block_info(rig_block(owner, 3)).exec;
	catch_traps(rig.heap);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	ch_thread_park();
	jump_to(at);
	ch_thread_unpark();
	check_begins(caught.text, "block `gone` (#");
	check_has(caught.text, "; by a thread that is parked");
}
