/* SPDX-License-Identifier: MIT
 * embed_precise.c: a whole VM with a precise collector of its own, on libcodeheap. x86-64.
 *
 * A function is x -> x + bias * scale; `scale` is global. The first call compiles the function:
 * then bias * scale is a number that the code alone names. Another scale throws such code away. The
 * collector marks, and sweeps while allocating; moving.c has a copying collector. */
#include <codeheap/codeheap.h>
#include <codeheap/collector.h>

#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1000, MADE = 2 * COUNT, ROOM = 5000 };
static struct object {
	long reached, value;   /* reached: the number of a collection; free if older */
	struct ch_owner owner; /* of a function, whose value is the bias */
} objects[ROOM], *functions[COUNT];
typedef long entry(struct object *, long);

static struct ch_heap *heap;
static struct ch_vm *vm;
static struct ch_assumption scale_stays;
static long scale = 2, collection = 1;

#define MUST(what) ((what) ? (void)0 : (fprintf(stderr, "failed: %s\n", #what), exit(1)))
#define OK(call) \
	((call) == CH_OK ? (void)0 : (fprintf(stderr, "%s: %s\n", #call, ch_why()), exit(1)))

/* ops.ref: the mark reached code that names the object, which names no other and does not move. */
static uintptr_t mark(void *vm_user, uintptr_t word)
{
	(void)vm_user;
	((struct object *)word)->reached = collection;
	return word;
}

/* Functions that the mark does not reach are freed, and so is their code: nobody releases them. */
static void collect(void)
{
	struct ch_marker *marker;
	OK(ch_mark_begin(heap, &marker)); /* other threads, if there were any, have stopped */
	collection++;
	for (int i = 0; i < COUNT && functions[i]; i++) {
		functions[i]->reached = collection;
		ch_mark_owner(marker, functions[i]->owner);
	}
	ch_mark_stacks(marker); /* code that a frame returns to, and what it names */
	OK(ch_mark_end(marker, true));
}

static struct object *allocate(long value)
{
	static long next;
	while (objects[next % ROOM].reached == collection)
		if (++next % ROOM == 0)
			collect();
	objects[next % ROOM] = (struct object){.reached = collection, .value = value};
	return &objects[next % ROOM];
}

/* Called by the code. Allocates, so may collect: the frame above holds the constant. */
static long add(struct object *constant, long x)
{
	return allocate(x)->value + constant->value;
}
static long (*const helper)(struct object *, long) = add;

/* push rbp; mov rbp, rsp; mov rdi, constant; mov rax, add; call rax; pop rbp; ret. x is in rsi.
 * Only a return comes behind the call, so no patch point is needed there. */
static const char template[] = "\x55\x48\x89\xe5\x48\xbf--------\x48\xb8--------\xff\xd0\x5d\xc3";
enum { CONSTANT_AT = 6, ADD_AT = 16, BYTES = sizeof template - 1 };

static void compile(struct object *function)
{
	struct ch_code code;
	struct ch_open open = {.size = sizeof open, .owner = function->owner, .hot_bytes = BYTES};
	struct object *constant = allocate(0);
	if (ch_block_open(&open, &code) != CH_OK)
		return; /* the pool is full: the interpreter goes on */
	bool is_made = ch_block_assume(code.block, scale_stays) == CH_OK; /* assume, then read */
	constant->value = function->value * scale;
	memcpy(code.write, template, BYTES);
	memcpy(code.write + ADD_AT, &helper, sizeof helper);
	memcpy(code.write + CONSTANT_AT, &constant, sizeof constant);
	OK(ch_ref_attach(code.block, code.exec + CONSTANT_AT)); /* no collection in between */
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
static long interpret(struct object *function, long x)
{
	compile(function);
	return function->value * scale + x;
}

int main(void)
{
	struct ch_ops ops = {.size = sizeof ops, .ref = mark};
	struct ch_config config;
	ch_config_init(&config);
	config.driver = CH_DRIVER_HOST;
	OK(ch_heap_create(&config, &heap));
	OK(ch_vm_attach(heap, &ops, NULL, &vm));
	OK(ch_thread_attach(heap, NULL, NULL));
	for (int i = 0; i < COUNT; i++) {
		struct object *made = functions[i] = allocate(i);
		OK(ch_owner_create(vm, "adds", (const void *)interpret, NULL, &made->owner));
	}
	OK(ch_assumption_create(vm, &scale_stays));
	for (int i = 0; i < 20 * COUNT; i++) {
		struct object *function = functions[i % COUNT];
		entry *const *cell = (entry *const *)ch_owner_cell(function->owner);
		if (i == 10 * COUNT) {
			scale = 4; /* change first, break then */
			OK(ch_assumption_break(scale_stays, NULL));
			OK(ch_assumption_create(vm, &scale_stays));
		}
		MUST((*cell)(function, i) == i % COUNT * scale + i); /* the code, or interpret() */
		ch_thread_poll(); /* a safe place: maybe a step of the sweep */
	}
	memset(functions, 0, sizeof functions);
	collect();
	for (int i = 0; i < 100; i++)
		ch_thread_poll();
	struct ch_stats stats = {.size = sizeof stats};
	OK(ch_heap_stats(heap, &stats));
	MUST(stats.blocks_committed == MADE); /* one for each scale */
	MUST(stats.blocks_now <= 50);         /* words that look like references may hold some */
	printf("the code of all but %d of %d compilations is freed\n", (int)stats.blocks_now, MADE);
	OK(ch_vm_detach(vm));
	OK(ch_heap_destroy(heap));
	return 0;
}
