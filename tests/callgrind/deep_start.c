// SPDX-License-Identifier: MIT
/* Blocks that call: outer calls middle three times; middle calls C code that begins the profile,
 * and then leaf, a block that calls C code. So the profile begins two frames of blocks deep. With
 * an argument the profile is on from the beginning. x86-64. */
#include <codeheap/codeheap.h>
#include <valgrind/callgrind.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int calls_left = 1;
static volatile long sink;

__attribute__((noipa)) static void begin_profile(void)
{
	if (calls_left-- == 1)
		CALLGRIND_START_INSTRUMENTATION;
}

__attribute__((noipa)) static void work(void)
{
	for (int i = 0; i < 100; i++)
		sink += i;
}

__attribute__((noipa)) static void end_profile(void)
{
	CALLGRIND_STOP_INSTRUMENTATION;
}

static void ok(enum ch_status status)
{
	if (status == CH_OK)
		return;
	fprintf(stderr, "deep_start: %s\n", ch_status_text(status));
	exit(1);
}

/* Compiles a block with a frame. The block calls the callees in turn, up to a NULL. */
static const void *compile(struct ch_vm *vm, const char *name, const void *const *callees)
{
	static const unsigned char enter[] = {0x55, 0x48, 0x89, 0xe5}, leave[] = {0x5d, 0xc3};
	struct ch_owner owner;
	struct ch_code code;
	ok(ch_owner_create(vm, name, (const void *)abort, NULL, &owner));
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 128};
	ok(ch_block_open(&open, &code));
	unsigned char *at = code.write + code.entry_bytes;
	memcpy(at, enter, sizeof enter);
	at += sizeof enter;
	for (; *callees; callees++) {
		static const unsigned char move[] = {0x48, 0xb8}, call[] = {0xff, 0xd0};
		memcpy(at, move, sizeof move); /* movabs rax, callee; call rax */
		memcpy(at + 2, callees, 8);
		memcpy(at + 10, call, sizeof call);
		at += 12;
	}
	memcpy(at, leave, sizeof leave);
	code.used_to = (uint32_t)(at + sizeof leave - code.write);
	ok(ch_block_commit(&code, 1));
	ok(ch_owner_set_entry(owner, code.block));
	return *ch_owner_cell(owner);
}

int main(int argc, char **argv)
{
	struct ch_ops ops = {.size = sizeof ops};
	struct ch_heap *heap;
	struct ch_vm *vm;
	(void)argv;
	if (argc > 1)
		calls_left = 0;
	ok(ch_heap_create(NULL, &heap));
	ok(ch_vm_attach(heap, &ops, NULL, &vm));
	ok(ch_thread_attach(heap, NULL, NULL));
	const void *const of_leaf[] = {(const void *)work, NULL};
	const void *leaf = compile(vm, "leaf", of_leaf);
	const void *const of_middle[] = {(const void *)begin_profile, leaf, leaf, NULL};
	const void *middle = compile(vm, "middle", of_middle);
	const void *const of_outer[] = {middle, middle, middle, NULL};
	const void *outer = compile(vm, "outer", of_outer);
	((void (*)(void))outer)();
	end_profile();
	return 0;
}
