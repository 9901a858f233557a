/* SPDX-License-Identifier: MIT
 * min.c: the shortest program with an owner: one block of code, called through its owner's cell,
 * invalidated, collected. The code is x86-64's. smallest.c has code without an owner. */
#include <codeheap/codeheap.h>

#include <stdio.h>
#include <stdlib.h>

static void ok(enum ch_status status)
{
	if (status == CH_OK)
		return;
	fprintf(stderr, "min: %s\n", ch_why());
	exit(1);
}

static int interpret(void)
{
	return -1;
}

int main(void)
{
	static const unsigned char code_42[] = {0xb8, 42, 0, 0, 0, 0xc3}; /* mov eax, 42; ret */
	struct ch_ops ops = {.size = sizeof ops};
	struct ch_heap *heap;
	struct ch_vm *vm;
	struct ch_owner owner;
	struct ch_code code;
	ok(ch_heap_create(NULL, &heap));
	ok(ch_trap_install(heap)); // a jump into freed code says on stderr what was freed there
	ok(ch_vm_attach(heap, &ops, NULL, &vm));
	ok(ch_thread_attach(heap, NULL, NULL));
	ok(ch_owner_create(vm, "answer", (const void *)interpret, NULL, &owner));
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = sizeof code_42};
	ok(ch_block_open(&open, &code));
	memcpy(code.write, code_42, sizeof code_42); // emit at write, relative to exec
	code.used_to = sizeof code_42;
	ok(ch_block_commit(&code, 1));
	struct ch_block block = code.block;
	memset(&code, 0, sizeof code); // addresses on a stack would hold the block
	ok(ch_owner_set_entry(owner, block));
	int (*const *cell)(void) = (int (*const *)(void))ch_owner_cell(owner);
	printf("compiled: %d\n", (*cell)());
	ok(ch_blocks_invalidate(&block, 1, NULL)); // the cell leads to interpret() again
	printf("invalidated: %d\n", (*cell)());
	ok(ch_heap_collect(heap)); // no thread runs the block: withdrawn and filled with traps
	struct ch_info info = {.size = sizeof info};
	printf("collected: %s\n", ch_block_info(block, &info) == CH_E_STALE ? "yes" : "no");
	ok(ch_owner_release(owner, CH_RELEASE_COLLECT));
	ok(ch_vm_detach(vm));
	ok(ch_heap_destroy(heap));
	return 0;
}
