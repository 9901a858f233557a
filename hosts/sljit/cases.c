/* SPDX-License-Identifier: MIT
 * cases.c: the allocator of codeheap_sljit.h, called as sljit calls an allocator. */
#include "codeheap_sljit.h"

#include <execinfo.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ch_heap *codeheap_sljit_heap;

static void must(bool holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "%s (%s)\n", what, ch_why());
		_Exit(1);
	}
}

static uint64_t open_blocks(void)
{
	struct ch_stats stats = {.size = sizeof stats};
	must(!ch_heap_stats(codeheap_sljit_heap, &stats), "counts");
	return stats.blocks_open_now;
}

/* Makes code of one byte. A byte behind the room makes the commit fail. */
static void *made(bool is_refused)
{
	uint8_t *write = SLJIT_MALLOC_EXEC(64, NULL);
	must(write, "no room");
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
	must(ch_thread_detach(codeheap_sljit_heap) == CH_E_THREAD, "collections wait for it");
	return NULL;
}

static void *in_a_thread(void *(*run)(void *), void *exec)
{
	pthread_t thread;
	must(!pthread_create(&thread, NULL, run, exec), "no thread");
	must(!pthread_join(thread, &exec), "a thread that does not end");
	return exec;
}

static void failed_commit_leaves_no_block(void)
{
	void *refused = made(true);
	must(open_blocks() == 1, "the commit did not fail");
	must(*(volatile uint8_t *)refused != 0xc3, "code that was not committed runs");
	void *good = made(false);
	SLJIT_FREE_EXEC(refused, NULL);
	must(open_blocks() == 0, "the block of the refused code stays");
	SLJIT_FREE_EXEC(good, NULL);
}

static void any_thread_frees_what_was_not_committed(void)
{
	in_a_thread(free_code, made(true));
	must(open_blocks() == 0, "a thread that made no code does not free any");
	SLJIT_FREE_EXEC(in_a_thread(make_refused, NULL), NULL);
	must(open_blocks() == 0, "the code of a thread that ended stays");
}

static void code_has_the_name_that_is_its_data(void)
{
	struct ch_spot spot = {.size = sizeof spot};
	struct ch_info info = {.size = sizeof info};
	uint8_t *write = SLJIT_MALLOC_EXEC(64, "pattern 7");
	uint8_t *exec = write + SLJIT_EXEC_OFFSET(write);
	*write = 0xc3;
	SLJIT_UPDATE_WX_FLAGS(exec, exec + 1, 1);
	must(ch_code_at(codeheap_sljit_heap, exec, false, &spot), "no code");
	must(!ch_block_info(spot.block, &info) && !strcmp(info.name, "pattern 7"), "its name");
	SLJIT_FREE_EXEC(exec, NULL);
}

static void code_of_more_than_4_gib_is_refused(void)
{
	must(!SLJIT_MALLOC_EXEC((UINT64_C(1) << 32) + 64, NULL), "a size was cut");
}

static void *make_good(void *unused)
{
	(void)unused;
	return made(false);
}

static void threads_make_code_at_one_time(void)
{
	uint8_t *write = SLJIT_MALLOC_EXEC(64, NULL);
	SLJIT_FREE_EXEC(in_a_thread(make_good, NULL), NULL);
	uint8_t *exec = write + SLJIT_EXEC_OFFSET(write);
	*write = 0xc3;
	SLJIT_UPDATE_WX_FLAGS(exec, exec + 1, 1);
	must(open_blocks() == 0, "the code of one thread was taken for that of another");
	((void (*)(void))(uintptr_t)exec)();
	SLJIT_FREE_EXEC(exec, NULL);
}

static void look_around(void)
{
	void *frames[64];
	must(backtrace(frames, 64) == 2, "unwinding goes on"); /* this function, and the code */
}

static void unwinding_ends_at_code_that_uses_the_frame_pointer(void)
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

static void second_heap_has_code(void)
{
	SLJIT_FREE_EXEC(made(false), NULL);
	must(!ch_heap_destroy(codeheap_sljit_heap), "a heap stays");
	must(!ch_heap_create(NULL, &codeheap_sljit_heap), "no second heap");
	SLJIT_FREE_EXEC(made(false), NULL);
}

int main(int count, char **words)
{
	must(!ch_heap_create(NULL, &codeheap_sljit_heap), "no heap");
#define RUN(name)                                   \
	if (count == 2 && !strcmp(words[1], #name)) \
		return name(), ch_heap_destroy(codeheap_sljit_heap) != CH_OK;
	RUN(failed_commit_leaves_no_block)
	RUN(any_thread_frees_what_was_not_committed)
	RUN(code_has_the_name_that_is_its_data)
	RUN(code_of_more_than_4_gib_is_refused)
	RUN(threads_make_code_at_one_time)
	RUN(unwinding_ends_at_code_that_uses_the_frame_pointer)
	RUN(second_heap_has_code)
	return 2;
}
