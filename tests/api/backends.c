/* SPDX-License-Identifier: MIT
 * backends.c: backends through the public interface. The environment chooses the backend; a heap
 * for servers that fork is on procmem and copies nothing. Behaviour common to all backends is
 * tested by running every other test on each backend (make check BACKEND=name). */
#define _GNU_SOURCE
#include "codeheap/graph/block.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static const size_t pool_bytes = 16 << 20;

/* --- wishes of the environment --- */

static enum ch_status create_by_default(void)
{
	struct ch_heap *heap;
	enum ch_status status = ch_heap_create(NULL, &heap);
	if (status == CH_OK)
		CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	else
		CHECK_EQ((uintptr_t)heap, 0);
	return status;
}

static void create_misspelt(void *arg)
{
	(void)arg;
	CHECK_EQ(create_by_default(), CH_E_ARG);
}

TEST(misspelt_wish_of_the_environment_is_told)
{
	static const char *const wishes[][3] = {
		{"CODEHEAP_WX", "dula",
		 "codeheap: CH_E_ARG: CODEHEAP_WX must be dual, memfd or procmem, "
		 "and is `dula`\n"},
		{"CODEHEAP_DEAD_NAMES", "keep",
		 "codeheap: CH_E_ARG: CODEHEAP_DEAD_NAMES must be replaced or kept, "
		 "and is `keep`\n"},
		{"CODEHEAP_SINKS", "unwind,perfmpa",
		 "codeheap: CH_E_ARG: CODEHEAP_SINKS must be none, or some of "},
	};
	for (unsigned i = 0; i < 3; i++) {
		char text[400];
		CHECK_EQ(setenv(wishes[i][0], wishes[i][1], 1), 0);
		expect_signal_text(create_misspelt, NULL, 0, text, sizeof text);
		const char *line = strstr(text, wishes[i][2]);
		if (!line)
			FAIL("%s=%s: stderr has %s", wishes[i][0], wishes[i][1], text);
		CHECK(i < 2 || strstr(line, "perfmap,gdb, and is `unwind,perfmpa`\n"));
		/* An empty value asks for nothing. */
		CHECK_EQ(setenv(wishes[i][0], "", 1), 0);
		CHECK_EQ(create_by_default(), CH_OK);
		unsetenv(wishes[i][0]);
	}
}

TEST(environment_chooses_the_backend)
{
	static const char *const names[] = {"memfd", "procmem"};
	for (unsigned i = 0; i < (CH_ARCH_LEAD_BYTES ? 2 : 1); i++) {
		struct ch_config config = rig_config(1 << 20);
		config.backend = CH_BACKEND_DUAL;
		CHECK_EQ(setenv("CODEHEAP_WX", names[i], 1), 0);
		struct rig rig = rig_create(&config, NULL, NULL);
		CHECK_STR(ch__backend_names[rig.heap->pool->backend], names[i]);
		CHECK_EQ(rig.heap->pool->stub_lead_bytes, i ? CH_ARCH_LEAD_BYTES : 0);
		rig_end(&rig);
	}
}

static void expect_forks_copy_by(const char *backend)
{
	struct ch_config config = rig_config(1 << 20);
	skip_without_procmem();
	config.fork = CH_FORK_COW;
	CHECK_EQ(setenv("CODEHEAP_WX", backend, 1), 0);
	struct rig rig = rig_create(&config, NULL, NULL);
	CHECK_STR(ch__backend_names[rig.heap->pool->backend], backend);
	struct ch_owner owner = rig_owner(&rig, "code");
	struct ch_branch from;
	struct ch_block jumper = rig_jumper(owner, NULL, &from);
	CHECK_EQ(ch_branch_link(from, rig_block(owner, 1)), CH_OK);
	struct ch_block other = rig_block(owner, 2);
	pid_t pid = fork_child();
	if (pid == 0) {
		CHECK_EQ(code_call(block_info(jumper).entry), 1);
		CHECK_EQ(ch_branch_link(from, other), CH_OK);
		CHECK_EQ(code_call(block_info(jumper).entry), 2);
		_exit(0);
	}
	expect_exit(pid, 0);
	CHECK_EQ(code_call(block_info(jumper).entry), 1);
	rig_end(&rig);
}

TEST(environment_that_asks_for_shared_memory_makes_forks_copy_dual)
{
	expect_forks_copy_by("dual");
}

TEST(environment_that_asks_for_shared_memory_makes_forks_copy_memfd)
{
	expect_forks_copy_by("memfd");
}

/* --- forks without a copy --- */

TEST(configuration_for_forks_asks_for_private_memory)
{
	skip_without_procmem();
	struct ch_config config = rig_config(pool_bytes);
	struct ch_heap *heap;
	unsetenv("CODEHEAP_WX");
	config.fork = CH_FORK_COW;
	static const enum ch_backend shared[] = {CH_BACKEND_DUAL, CH_BACKEND_MEMFD};
	for (int i = 0; i < 2; i++) {
		config.backend = shared[i];
		CHECK_EQ(ch_heap_create(&config, &heap), CH_E_ARG);
	}
	static const enum ch_backend private[] = {CH_BACKEND_AUTO, CH_BACKEND_PROCMEM};
	for (int i = 0; i < 2; i++) {
		config.backend = private[i];
		CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
		CHECK_STR(ch__backend_names[heap->pool->backend], "procmem");
		CHECK_EQ(heap->pool->chunk_log2, 21); /* a fork copies few entries */
		CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	}
}

/* The Private_Dirty of the code and of the memory that the code is written from, in KiB. */
static uint64_t private_dirty(const struct ch__pool *pool)
{
	return private_kib(pool->exec_base, pool->pool_bytes) +
	       private_kib(pool->exec_base + (uintptr_t)pool->delta, pool->pool_bytes);
}

enum { BLOCKS = 1000, BLOCK_BYTES = 2000, FEW_KIB = 64 };
static struct ch_block blocks[BLOCKS];
static struct ch_branch branch;

static void *use_code(const struct rig *rig, uint32_t number)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		CHECK_EQ(code_call(block_info(blocks[i]).entry), i);
	if (private_dirty(rig->heap->pool) > FEW_KIB)
		FAIL("a fork, or code that runs, copied %u KiB of code",
		     (unsigned)private_dirty(rig->heap->pool));
	CHECK_EQ(ch_branch_link(branch, blocks[number]), CH_OK);
	/* The link copies a page of the code and a page of the write view, and no more. */
	if (private_dirty(rig->heap->pool) > FEW_KIB)
		FAIL("one link made %u KiB of code the child's own",
		     (unsigned)private_dirty(rig->heap->pool));
	return NULL;
}

TEST(fork_for_servers_copies_no_code_and_isolates)
{
	skip_without_procmem();
	struct ch_config config = rig_config(pool_bytes);
	unsetenv("CODEHEAP_WX");
	config.fork = CH_FORK_COW;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_owner owner = rig_owner(&rig, "code");
	struct emitter e;
	for (uint32_t i = 0; i < BLOCKS; i++) {
		struct ch_open open = {
			.owner = owner, .hot_bytes = BLOCK_BYTES, .flags = CH_OPEN_IMMORTAL};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_nops(&e, BLOCK_BYTES - 16);
		emit_answer(&e, i);
		CHECK_EQ(emit_commit(&e), CH_OK);
		blocks[i] = e.code.block;
	}
	struct ch_block jumper = rig_jumper(owner, NULL, &branch);
	CHECK_EQ(ch_owner_set_entry(owner, jumper), CH_OK);
	CHECK_EQ(ch_branch_link(branch, blocks[1]), CH_OK);
	CHECK(private_dirty(rig.heap->pool) > BLOCKS * BLOCK_BYTES / 1024);
	for (int i = 0; i < 3; i++) {
		pid_t pid = fork_child();
		if (pid == 0) {
			use_code(&rig, 7);
			CHECK_EQ(code_call(block_info(jumper).entry), 7);
			rig_check(&rig);
			_exit(0);
		}
		expect_exit(pid, 0);
		CHECK_EQ(code_call(block_info(jumper).entry), 1);
	}
	rig_end(&rig);
}
