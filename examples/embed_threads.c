/* SPDX-License-Identifier: MIT
 * embed_threads.c: a whole VM with two threads and a precise collector in two generations, on
 * libcodeheap, which stops the threads. x86-64.
 *
 * A function is x -> x + bias * SCALE. The first call compiles the function: then bias * SCALE is
 * an object that the code alone names. Each thread makes functions, calls and forgets them, and
 * makes objects in a nursery of its own. The thread with a full nursery collects for both:
 *
 *   minor   moves objects that code names out of the nurseries; no code dies
 *   full    moves objects that living code names out of both generations; the code of forgotten
 *           functions dies, and its objects are not moved
 *
 * The other thread stands still meanwhile: at a poll, or in a call of the library that waits. */
#include <codeheap/codeheap.h>
#include <codeheap/collector.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 2, COUNT = 250, ROUNDS = 20, CALLS = 4, SCALE = 3 };
enum { YOUNG = 200, ALL_YOUNG = THREADS * YOUNG, OLD = 4000 };
enum { MADE = THREADS * ROUNDS * COUNT };

struct object {
	long value;
	struct object *moved; /* the new address, in an object left behind */
};
struct function {
	struct ch_owner owner;
	long bias;
};
static struct mutator {
	struct function functions[COUNT];
	struct object young[YOUNG];
	size_t used;
} mutators[THREADS];
static _Thread_local struct mutator *self;

static struct object spaces[2][OLD], *old = spaces[0];
static size_t old_used;
static bool is_full; /* the collection is full */
static int minors, fulls;

static struct ch_heap *heap;
static struct ch_vm *vm;

#define MUST(what) ((what) ? (void)0 : (fprintf(stderr, "failed: %s\n", #what), exit(1)))
#define OK(call) \
	((call) == CH_OK ? (void)0 : (fprintf(stderr, "%s: %s\n", #call, ch_why()), exit(1)))

/* --- the collector --- */

static bool is_old(const struct object *object)
{
	return object >= spaces[0] && object < spaces[1] + OLD;
}

/* Moves an object, and returns the new address. Objects name no objects, so nothing is scanned. */
static uintptr_t move(uintptr_t word)
{
	struct object *object = (struct object *)word;
	if (!object || (is_old(object) && !is_full))
		return word;
	if (!object->moved) {
		MUST(old_used < OLD);
		object->moved = &old[old_used++];
		*object->moved = (struct object){.value = object->value};
	}
	return (uintptr_t)object->moved;
}

/* ops.ref: the full collection reached code that names the object. */
static uintptr_t move_ref(void *vm_user, uintptr_t word)
{
	(void)vm_user;
	return move(word);
}

static uintptr_t visit_ref(void *unused, uintptr_t word, bool *is_young)
{
	(void)unused;
	*is_young = false; /* moved to the old generation */
	return move(word);
}

/* Called under no lock, where the collector finds every word that the thread needs. Another thread
 * may wait here, too, until the end of this collection. */
static void collect(bool wants_full)
{
	struct ch_marker *marker;
	OK(ch_mark_begin(heap, &marker)); /* the other threads stand still from here on */
	is_full = wants_full || old_used + ALL_YOUNG > OLD;
	if (is_full) {
		old = old == spaces[0] ? spaces[1] : spaces[0];
		old_used = 0;
		for (int i = 0; i < THREADS * COUNT; i++)
			ch_mark_owner(marker, mutators[i / COUNT].functions[i % COUNT].owner);
		ch_mark_stacks(marker); /* code that frames return to, and what is being made */
		fulls++;
	} else {
		OK(ch_refs_visit(marker, CH_REFS_YOUNG, visit_ref, NULL));
		minors++;
	}
	for (int i = 0; i < THREADS; i++) {
		memset(mutators[i].young, 0xdb, sizeof mutators[i].young);
		mutators[i].used = 0;
	}
	OK(ch_mark_end(marker, is_full)); /* and go on from here */
}

/* The object stays in place until this thread polls, allocates or calls the library. */
static struct object *allocate(long value)
{
	while (self->used == YOUNG)
		collect(false);
	struct object *made = &self->young[self->used++];
	*made = (struct object){.value = value};
	return made;
}

/* --- the compiler --- */

/* Called by the code. Reads the constant first: the allocation may move the constant. */
static long add(struct object *constant, long x)
{
	long sum = constant->value + x;
	return allocate(sum)->value;
}
static long (*const helper)(struct object *, long) = add;

/* push rbp; mov rbp, rsp; mov rdi, constant; mov rax, add; call rax; pop rbp; ret. x is in rsi. */
static const char template[] = "\x55\x48\x89\xe5\x48\xbf\0\0\0\0\0\0\0\0\x48\xb8--------"
			       "\xff\xd0\x5d\xc3";
enum { CONSTANT_AT = 6, ADD_AT = 16, BYTES = sizeof template - 1 };

/* Every call of the library may wait for a collection of the other thread. So the ref is attached
 * while still NULL, and no call stands between the object's making and the store. */
static void compile(struct function *function)
{
	struct ch_code code;
	struct ch_open open = {.size = sizeof open, .owner = function->owner, .hot_bytes = BYTES};
	if (ch_block_open(&open, &code) != CH_OK)
		return; /* the pool is full: the interpreter goes on */
	memcpy(code.write, template, BYTES);
	memcpy(code.write + ADD_AT, &helper, sizeof helper);
	OK(ch_ref_attach(code.block, code.exec + CONSTANT_AT));
	struct object *constant = allocate(function->bias * SCALE);
	memcpy(code.write + CONSTANT_AT, &constant, sizeof constant);
	code.used_to = BYTES;
	struct ch_block block = code.block;
	bool is_made = ch_block_commit(&code, 1) == CH_OK;
	if (!is_made) /* memory is short */
		(void)!ch_block_abort(&code);
	memset(&code, 0, sizeof code); /* addresses on a stack would hold the block */
	/* CH_E_STALE if three full collections came since: the next call compiles again. */
	if (is_made)
		(void)!ch_owner_set_entry(function->owner, block);
}

/* The fallback of each owner: called in place of missing code. */
static long interpret(struct function *function, long x)
{
	compile(function);
	return function->bias * SCALE + x;
}

/* --- the threads --- */

static void make_function(struct function *function, long bias)
{
	struct ch_owner owner;
	OK(ch_owner_create(vm, "adds", (const void *)interpret, NULL, &owner));
	*function = (struct function){owner, bias}; /* the old function is forgotten */
}

static long call(struct function *function, long x)
{
	typedef long entry(struct function *, long);
	entry *const *cell = (entry *const *)ch_owner_cell(function->owner);
	/* The code, or interpret(): another thread may store the cell. */
	return __atomic_load_n(cell, __ATOMIC_RELAXED)(function, x);
}

static void *run(void *mutator)
{
	self = mutator;
	OK(ch_thread_attach(heap, NULL, NULL)); /* detached at the thread's end */
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < COUNT; i++)
			make_function(&self->functions[i], round * COUNT + i);
		for (int i = 0; i < CALLS * COUNT; i++) {
			struct function *function = &self->functions[i % COUNT];
			MUST(call(function, i) == function->bias * SCALE + i);
			ch_thread_poll(); /* stands still here while the other thread collects */
		}
	}
	return NULL;
}

int main(void)
{
	struct ch_ops ops = {.size = sizeof ops, .ref = move_ref};
	struct ch_config config;
	pthread_t threads[THREADS];
	ch_config_init(&config);
	config.driver = CH_DRIVER_HOST;
	config.stops_world = true; /* ch_mark_begin stops the threads, ch_mark_end lets them go */
	OK(ch_heap_create(&config, &heap));
	OK(ch_vm_attach(heap, &ops, NULL, &vm));
	OK(ch_thread_attach(heap, NULL, NULL));
	for (int i = 0; i < THREADS; i++)
		MUST(pthread_create(&threads[i], NULL, run, &mutators[i]) == 0);
	ch_thread_park(); /* a wait of the VM's own: no collection waits for a parked thread */
	for (int i = 0; i < THREADS; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
	ch_thread_unpark();
	memset(mutators, 0, sizeof mutators);
	collect(true);
	while (*ch_thread_poll_word(heap)) /* each poll sweeps a step */
		ch_thread_poll();
	struct ch_stats stats = {.size = sizeof stats};
	OK(ch_heap_stats(heap, &stats));
	MUST(stats.blocks_committed >= MADE && minors > ROUNDS && fulls > 1);
	MUST(stats.blocks_now <= 50); /* words that look like references may hold some */
	printf("%d threads called %d functions %d times, each sum right, beside minor and full "
	       "collections;\nthe code of all of them is freed, but for what chance holds\n",
	       THREADS, MADE, CALLS);
	OK(ch_vm_detach(vm));
	OK(ch_heap_destroy(heap));
	return 0;
}
