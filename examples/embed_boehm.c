/* SPDX-License-Identifier: MIT
 * embed_boehm.c: a whole VM on the Boehm collector, on libcodeheap. x86-64.
 *
 * A function is x -> x + bias * scale; `scale` is global. The first call compiles the function:
 * then bias * scale is a number that the code alone names. Another scale throws such code away. */
#include <codeheap/codeheap_bdw.h>

#include <gc/gc.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1000, MADE = 2 * COUNT };
static struct function { /* allocated by the collector */
	long bias;
	struct ch_owner owner;
	void *anchor; /* while the collector sees this word, the owner's code is alive */
} * functions[COUNT]; /* a root of the collector */
typedef long entry(struct function *, long);

static struct ch_heap *heap;
static struct ch_vm *vm;
static struct ch_assumption scale_stays;
static long scale = 2;

#define MUST(what) ((what) ? (void)0 : (fprintf(stderr, "failed: %s\n", #what), exit(1)))
#define OK(call) \
	((call) == CH_OK ? (void)0 : (fprintf(stderr, "%s: %s\n", #call, ch_why()), exit(1)))

/* Called by the code. Allocates, so may collect: the frame above holds the constant. */
static long add(const long *constant, long x)
{
	long *sum = GC_MALLOC_ATOMIC(sizeof *sum);
	MUST(sum);
	*sum = *constant + x;
	if (x % 999 == 0)
		GC_gcollect(); /* as it may at any allocation */
	return *sum;
}
static long (*const helper)(const long *, long) = add;

/* push rbp; mov rbp, rsp; mov rdi, constant; mov rax, add; call rax; pop rbp; ret. x is in rsi.
 * Only a return comes behind the call, so no patch point is needed there. */
static const char template[] = "\x55\x48\x89\xe5\x48\xbf--------\x48\xb8--------\xff\xd0\x5d\xc3";
enum { CONSTANT_AT = 6, ADD_AT = 16, BYTES = sizeof template - 1 };

static void compile(struct function *function)
{
	long *constant = GC_MALLOC_ATOMIC(sizeof *constant);
	struct ch_code code;
	struct ch_open open = {.size = sizeof open, .owner = function->owner, .hot_bytes = BYTES};
	MUST(constant);
	if (ch_block_open(&open, &code) != CH_OK)
		return; /* the pool is full: the interpreter goes on */
	bool is_made = ch_block_assume(code.block, scale_stays) == CH_OK; /* assume, then read */
	*constant = function->bias * scale;
	memcpy(code.write, template, BYTES);
	memcpy(code.write + ADD_AT, &helper, sizeof helper);
	memcpy(code.write + CONSTANT_AT, &constant, sizeof constant);
	OK(ch_ref_attach(code.block, code.exec + CONSTANT_AT)); /* marked from here on */
	code.used_to = BYTES;
	struct ch_block block = code.block;
	is_made = is_made && ch_block_commit(&code, 1) == CH_OK;
	if (!is_made) /* the assumption broke, or memory is short */
		(void)!ch_block_abort(&code);
	memset(&code, 0, sizeof code); /* addresses on a stack would hold the block */
	if (is_made) /* refused: the next call compiles again */
		(void)!ch_owner_set_entry(function->owner, block);
}

/* The fallback of each owner: called in place of missing code. */
static long interpret(struct function *function, long x)
{
	compile(function);
	return function->bias * scale + x;
}

int main(void)
{
	struct ch_ops ops = {.size = sizeof ops};
	GC_INIT(); /* before the first heap of any kind */
	OK(ch_bdw_heap_create(NULL, &heap));
	OK(ch_vm_attach(heap, &ops, NULL, &vm));
	OK(ch_thread_attach(heap, NULL, NULL)); /* other threads: GC_register_my_thread first */
	for (int i = 0; i < COUNT; i++) {
		struct function *made = functions[i] = GC_MALLOC(sizeof *made);
		MUST(made);
		made->bias = i;
		OK(ch_bdw_owner_create(vm, "adds", (const void *)interpret, NULL, &made->owner,
				       &made->anchor));
	}
	OK(ch_assumption_create(vm, &scale_stays));
	for (int i = 0; i < 20 * COUNT; i++) {
		struct function *function = functions[i % COUNT];
		entry *const *cell = (entry *const *)ch_owner_cell(function->owner);
		if (i == 10 * COUNT) {
			scale = 4; /* change first, break then */
			OK(ch_assumption_break(scale_stays, NULL));
			OK(ch_assumption_create(vm, &scale_stays));
		}
		MUST((*cell)(function, i) == i % COUNT * scale + i); /* the code, or interpret() */
		ch_thread_poll(); /* a safe place: maybe a step of the sweep */
	}
	memset(functions, 0, sizeof functions); /* nothing else is asked of the VM */
	for (int i = 0; i < 2; i++)
		OK(ch_heap_collect(heap)); /* GC_gcollect, and a sweep of the code */
	struct ch_stats stats = {.size = sizeof stats};
	OK(ch_heap_stats(heap, &stats));
	MUST(stats.blocks_committed == MADE); /* one for each scale */
	MUST(stats.blocks_now <= 50);         /* words that look like references may hold some */
	printf("the code of all but %d of %d compilations is freed\n", (int)stats.blocks_now, MADE);
	OK(ch_vm_detach(vm));
	OK(ch_heap_destroy(heap));
	return 0;
}
