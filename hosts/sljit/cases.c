/* SPDX-License-Identifier: MIT
 * cases.c: the allocator of codeheap_sljit.h, called as sljit calls an allocator. */
#include "../cases.h"
#include "codeheap_sljit.h"

#include <execinfo.h>
#include <pthread.h>

struct ch_heap *codeheap_sljit_heap;

static uint64_t open_blocks(void)
{
	return stats_of(codeheap_sljit_heap).blocks_open_now;
}

/* Makes code of one byte. A byte behind the room makes the commit fail. */
static void *made(bool is_refused)
{
	uint8_t *write = SLJIT_MALLOC_EXEC(64, NULL);
	CHECK(write);
	uint8_t *exec = write + SLJIT_EXEC_OFFSET(write);
	*write = 0xc3;
	if (is_refused)
		memset(write + codeheap_sljit_code.hot_bytes, 0x90, 4);
	SLJIT_UPDATE_WX_FLAGS(write, exec + 1, 1);
	return exec;
}

static void *make_refused(void *unused)
{
	(void)unused;
	return made(true);
}

static void *free_code(void *exec)
{
	SLJIT_FREE_EXEC(exec, NULL);
	CHECK(ch_thread_detach(codeheap_sljit_heap) == CH_E_THREAD);
	return NULL;
}

static void *in_a_thread(void *(*run)(void *), void *exec)
{
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, run, exec));
	CHECK(!pthread_join(thread, &exec));
	return exec;
}

CASE(failed_commit_leaves_no_block)
{
	void *refused = made(true);
	CHECK(open_blocks() == 1);
	CHECK(*(volatile uint8_t *)refused != 0xc3);
	void *good = made(false);
	SLJIT_FREE_EXEC(refused, NULL);
	CHECK(open_blocks() == 0);
	OK(ch_thread_detach(codeheap_sljit_heap)); /* attached by the call that made code */
	SLJIT_FREE_EXEC(good, NULL);
}

CASE(any_thread_frees_what_was_not_committed)
{
	in_a_thread(free_code, made(true));
	CHECK(open_blocks() == 0);
	SLJIT_FREE_EXEC(in_a_thread(make_refused, NULL), NULL);
	CHECK(open_blocks() == 0);
}

CASE(code_has_the_name_that_is_its_data)
{
	struct ch_spot spot = {.size = sizeof spot};
	struct ch_info info = {.size = sizeof info};
	uint8_t *write = SLJIT_MALLOC_EXEC(64, "pattern 7");
	uint8_t *exec = write + SLJIT_EXEC_OFFSET(write);
	*write = 0xc3;
	SLJIT_UPDATE_WX_FLAGS(exec, exec + 1, 1);
	CHECK(ch_code_at(codeheap_sljit_heap, exec, false, &spot));
	CHECK(!ch_block_info(spot.block, &info) && !strcmp(info.name, "pattern 7"));
	SLJIT_FREE_EXEC(exec, NULL);
}

CASE(code_of_more_than_4_gib_is_refused)
{
	CHECK(!SLJIT_MALLOC_EXEC((UINT64_C(1) << 32) + 64, NULL));
}

static void *make_good(void *unused)
{
	(void)unused;
	return made(false);
}

CASE(threads_make_code_at_one_time)
{
	uint8_t *write = SLJIT_MALLOC_EXEC(64, NULL);
	SLJIT_FREE_EXEC(in_a_thread(make_good, NULL), NULL);
	uint8_t *exec = write + SLJIT_EXEC_OFFSET(write);
	*write = 0xc3;
	SLJIT_UPDATE_WX_FLAGS(exec, exec + 1, 1);
	CHECK(open_blocks() == 0);
	((void (*)(void))(uintptr_t)exec)();
	SLJIT_FREE_EXEC(exec, NULL);
}

static void look_around(void)
{
	void *frames[64];
	CHECK(backtrace(frames, 64) == 2); /* this function, and the code */
}

CASE(unwinding_ends_at_code_that_uses_the_frame_pointer)
{
	/* push rbp; mov ebp, 8; mov rax, look_around; call rax; pop rbp; ret */
	uint8_t bytes[] = {0x55, 0xbd, 8, 0, 0, 0, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0,
			   0xff, 0xd0, 0x5d, 0xc3};
	void (*const called)(void) = look_around;
	memcpy(bytes + 8, &called, sizeof called);
	uint8_t *write = SLJIT_MALLOC_EXEC(sizeof bytes, NULL);
	uint8_t *exec = write + SLJIT_EXEC_OFFSET(write);
	memcpy(write, bytes, sizeof bytes);
	SLJIT_UPDATE_WX_FLAGS(exec, exec + sizeof bytes, 1);
	((void (*)(void))(uintptr_t)exec)();
	SLJIT_FREE_EXEC(exec, NULL);
}

CASE(second_heap_has_code)
{
	SLJIT_FREE_EXEC(made(false), NULL);
	OK(ch_heap_destroy(codeheap_sljit_heap));
	OK(ch_heap_create(NULL, &codeheap_sljit_heap));
	SLJIT_FREE_EXEC(made(false), NULL);
}

int main(int count, char **words)
{
	OK(ch_heap_create(NULL, &codeheap_sljit_heap));
	int status = run_cases(count, words);
	OK(ch_heap_destroy(codeheap_sljit_heap));
	return status;
}
