/* SPDX-License-Identifier: MIT
 * target.c: the life of one heap from the bytes of one input. */
#include "fuzz/fuzz.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>

struct fuzz fuzz;

uint8_t fuzz_byte(void)
{
	if (!fuzz.left)
		return 0;
	fuzz.left--;
	return *fuzz.bytes++;
}

int fuzz_below(int bound)
{
	return fuzz_byte() % bound;
}

void test_fail(const char *file, int line, const char *format, ...)
{
	va_list rest;
	va_start(rest, format);
	fprintf(stderr, "%s:%d: ", file, line);
	vfprintf(stderr, format, rest);
	va_end(rest);
	fputc('\n', stderr);
	abort();
}

struct thread_call {
	void (*fn)(void *);
	void *arg;
};

static void *call_on_thread(void *arg)
{
	const struct thread_call *call = arg;
	call->fn(call->arg);
	return NULL;
}

void run_on_ended_thread(void (*fn)(void *), void *arg)
{
	struct thread_call call = {fn, arg};
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, call_on_thread, &call), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* --- callbacks --- */

static void block_freed(void *vm_user, void *block_user)
{
	uintptr_t life = (uintptr_t)block_user - 1;
	CHECK(life < (uintptr_t)fuzz.lives);
	if ((uintptr_t)vm_user != fuzz.tells[life])
		FAIL("the end of block %d is told to the wrong VM", (int)life);
	if (fuzz.is_told[life])
		FAIL("block %d is told to be freed twice", (int)life);
	fuzz.is_told[life] = true;
}

static uintptr_t ref(void *vm_user, uintptr_t word)
{
	CHECK(word < FUZZ_LIVES);
	CHECK_EQ((uintptr_t)vm_user, fuzz.tells[word]);
	fuzz.ref_seen[word] = true;
	return word;
}

/* --- a life --- */

/* Asked, and so the only one who collects: the model says when. */
static void collect_wanted(void *user)
{
	(void)user;
}

void fuzz_attach_vm(int at)
{
	struct ch_ops ops = {.size = sizeof ops,
			     .branch_hit = fuzz_branch_hit,
			     .ref = ref,
			     .collect_wanted = collect_wanted,
			     .block_freed = block_freed};
	fuzz.vm_numbers[at] = ++fuzz.vms_made;
	CHECK_EQ(ch_vm_attach(fuzz.heap, &ops, (void *)fuzz.vms_made, &fuzz.vms[at]), CH_OK);
}

static void begin(const uint8_t *bytes, size_t count)
{
	memset(&fuzz, 0, sizeof fuzz);
	fuzz.bytes = bytes;
	fuzz.left = count;
	fuzz.is_loud = getenv("FUZZ_LOUD") != NULL;
	struct ch_config config;
	ch_config_init(&config);
	uint8_t how = fuzz_byte();
	config.page_bytes = how & 1 ? 4096 : 16384;
	config.pool_bytes = how & 2 ? config.page_bytes : 4u << 20;
	fuzz.is_roomy = !(how & 2);
	config.backend = how & 4    ? CH_BACKEND_MEMFD
			 : how & 32 ? CH_BACKEND_PROCMEM
				    : CH_BACKEND_AUTO;
	config.step_blocks = how & 8 ? 1 : 0;
	config.sinks = how & 16 ? CH_SINK_UNWIND | CH_SINK_GDB : CH_SINK_DEFAULT;
	enum ch_status status = ch_heap_create(&config, &fuzz.heap);
	if (status == CH_E_OS && config.backend == CH_BACKEND_PROCMEM) { /* not on this machine */
		config.backend = CH_BACKEND_AUTO;
		status = ch_heap_create(&config, &fuzz.heap);
	}
	CHECK_EQ(status, CH_OK);
	for (int i = 0; i < FUZZ_VMS; i++)
		fuzz_attach_vm(i);
	CHECK_EQ(ch_thread_attach(fuzz.heap, NULL, NULL), CH_OK);
	for (int i = 0; i < FUZZ_OWNERS; i++)
		fuzz.owners[i].entry = FUZZ_NONE;
	for (int i = 0; i < FUZZ_BLOCKS; i++)
		fuzz.blocks[i].link = FUZZ_NONE;
}

/* Drops all holders and ends the heap; block_freed checks that no block is told twice. */
static void end(void)
{
	for (int i = 0; i < FUZZ_FIBERS; i++)
		if (fuzz.fibers[i].fiber)
			CHECK_EQ(ch_fiber_detach(fuzz.fibers[i].fiber), CH_OK);
	for (int i = 0; i < FUZZ_BLOCKS; i++)
		if (fuzz.blocks[i].state == CH_BLOCK_OPEN)
			CHECK_EQ(ch_block_abort(&fuzz.blocks[i].code), CH_OK);
	for (int i = 0; i < FUZZ_VMS; i++)
		CHECK_EQ(ch_vm_detach(fuzz.vms[i]), CH_OK);
	CHECK_EQ(ch_thread_detach(fuzz.heap), CH_OK);
	CHECK_EQ(ch_heap_destroy(fuzz.heap), CH_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
	begin(bytes, count);
	fuzz_compare();
	while (fuzz.left)
		fuzz_operation();
	fuzz_check_heap();
	end();
	return 0;
}

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t count, size_t most) __attribute__((weak));
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t most, unsigned seed);
/* Each eighth program is as long as may be, and random: mutations seldom lengthen a program, and a
 * long one finds what records and places that many blocks had before lead to. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t most, unsigned seed)
{
	uint64_t random = seed;
	if (seed % 8)
		return LLVMFuzzerMutate(bytes, count, most);
	for (size_t i = 0; i < most; i++) {
		random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		bytes[i] = (uint8_t)(random >> 56);
	}
	return most;
}
