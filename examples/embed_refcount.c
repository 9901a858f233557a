/* SPDX-License-Identifier: MIT
 * embed_refcount.c: a whole VM whose objects have reference counts, on libcodeheap. x86-64.
 *
 * A function is x -> x + bias * scale; `scale` is global. The first call compiles the function:
 * then bias * scale is a number that the code alone names. Another scale throws such code away. */
#include <codeheap/codeheap.h>

#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 4000, MADE = 2 * COUNT };
struct function {
	long count, bias;
	struct ch_owner owner;
};
typedef long entry(struct function *, long);

static struct ch_heap *heap;
static struct ch_vm *vm;
static struct ch_assumption scale_stays;
static long scale = 2, freed;
static struct function *victim; /* the next addition drops this function, below its own code */

#define MUST(what) ((what) ? (void)0 : (fprintf(stderr, "failed: %s\n", #what), exit(1)))
#define OK(call) \
	((call) == CH_OK ? (void)0 : (fprintf(stderr, "%s: %s\n", #call, ch_why()), exit(1)))

/* Frees no code: frames may return to it. It goes when no stack and no live block leads there. */
static void function_drop(struct function *function)
{
	if (--function->count)
		return;
	OK(ch_owner_release(function->owner, CH_RELEASE_COLLECT));
	free(function);
}

/* Once for each block, when nothing runs it any more: only now may go what the code names. */
static void block_freed(void *vm_user, void *constant)
{
	(void)vm_user;
	freed++;
	free(constant);
}

/* Called by the code. May free code and collect. The caller's code is on the stack, and stays. */
static long add(const long *constant, long x)
{
	if (victim) {
		function_drop(victim);
		OK(ch_heap_collect(heap));
	}
	return *constant + x;
}
static long (*const helper)(const long *, long) = add;

/* push rbp; mov rbp, rsp; mov rdi, constant; mov rax, add; call rax; pop rbp; ret. x is in rsi.
 * Only a return comes behind the call, so no patch point is needed there. */
static const char template[] = "\x55\x48\x89\xe5\x48\xbf--------\x48\xb8--------\xff\xd0\x5d\xc3";
enum { CONSTANT_AT = 6, ADD_AT = 16, BYTES = sizeof template - 1 };

static void compile(struct function *function)
{
	struct ch_code code;
	struct ch_open open = {.size = sizeof open, .owner = function->owner, .hot_bytes = BYTES};
	long *constant = open.user = malloc(sizeof *constant); /* the block's; see block_freed */
	MUST(constant);
	if (ch_block_open(&open, &code) == CH_OK) { /* else the pool is full */
		/* Assume first, read then. */
		bool is_made = ch_block_assume(code.block, scale_stays) == CH_OK;
		*constant = function->bias * scale;
		memcpy(code.write, template, BYTES);
		memcpy(code.write + CONSTANT_AT, &constant, sizeof constant);
		memcpy(code.write + ADD_AT, &helper, sizeof helper);
		code.used_to = BYTES;
		struct ch_block block = code.block;
		is_made = is_made && ch_block_commit(&code, 1) == CH_OK;
		if (!is_made) /* the assumption broke, or memory is short */
			(void)!ch_block_abort(&code);
		memset(&code, 0, sizeof code); /* addresses on a stack would hold the block */
		if (is_made) {
			/* Refused: the next call compiles again. */
			(void)!ch_owner_set_entry(function->owner, block);
			return;
		}
	}
	free(constant); /* the interpreter goes on */
}

/* The fallback of each owner: called in place of missing code. */
static long interpret(struct function *function, long x)
{
	compile(function);
	return function->bias * scale + x;
}

int main(void)
{
	static struct function *functions[COUNT];
	struct ch_ops ops = {.size = sizeof ops, .block_freed = block_freed};
	ops.tells_detached = true; /* block_freed comes for what is left then, too */
	OK(ch_heap_create(NULL, &heap));
	OK(ch_vm_attach(heap, &ops, NULL, &vm));
	OK(ch_thread_attach(heap, NULL, NULL));
	for (int i = 0; i < COUNT; i++) {
		struct function *made = functions[i] = malloc(sizeof *made);
		MUST(made);
		*made = (struct function){.count = 1, .bias = i};
		OK(ch_owner_create(vm, "adds", (const void *)interpret, NULL, &made->owner));
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
		victim = i >= 19 * COUNT ? function : NULL;
		MUST((*cell)(function, i) == i % COUNT * scale + i); /* the code, or interpret() */
		ch_thread_poll(); /* may collect, here where the VM holds no lock */
	}
	OK(ch_heap_collect(heap));
	MUST(freed <= MADE && freed >= MADE - 50); /* chance words may hold some */
	printf("the code of all but %ld of %d compilations is freed\n", MADE - freed, MADE);
	OK(ch_vm_detach(vm));
	MUST(freed == MADE);
	OK(ch_heap_destroy(heap));
	return 0;
}
