/* SPDX-License-Identifier: MIT
 * lazy.c: two functions that call each other by branches. The first call through a branch compiles
 * the callee and links the branch. Then one function is replaced. x86-64. */
#include <codeheap/codeheap.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct function { /* f(n) = n > 0 ? step + callee(n - 1) : 0 */
	int (*interpret)(int), step, compiled;
	struct function *callee;
	struct ch_owner owner;
	struct ch_block block; /* [vm_lock] none: to be compiled */
};
static pthread_mutex_t vm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct function ping, pong;

#define OK(call) ((call) == CH_OK ? (void)0 : (fprintf(stderr, "lazy: %s\n", ch_why()), exit(1)))

static int call(const struct function *f, int n)
{
	/* Another thread may store the cell meanwhile. */
	return __atomic_load_n((int (*const *)(int))ch_owner_cell(f->owner), __ATOMIC_RELAXED)(n);
}
static int interpret_ping(int n)
{
	return n > 0 ? ping.step + call(&pong, n - 1) : 0;
}
static int interpret_pong(int n)
{
	return n > 0 ? pong.step + call(&ping, n - 1) : 0;
}

/* push rbp; mov rbp, rsp; xor eax, eax; test edi, edi; jg +2; pop rbp; ret; dec edi; NOPs; call
 * callee; add eax, step; pop rbp; ret. Replaced code that a thread returns into adds the old step,
 * which does no harm: so no patch point is behind the call. The caller holds vm_lock. */
static void compile(struct function *f)
{
	static const char enter[] = "\x55\x48\x89\xe5\x31\xc0\x85\xff\x7f\x02\x5d\xc3\xff\xcf";
	static const char leave[] = "\xe8----\x05----\x5d\xc3";
	uint32_t at = sizeof enter - 1; /* of the call */
	struct ch_branch branch;
	struct ch_code code;
	struct ch_open open = {sizeof open, .owner = f->owner, .hot_bytes = 40, .branch_room = 1};
	if (ch_block_open(&open, &code) != CH_OK)
		return; /* the thread goes on in the interpreter */
	memcpy(code.write, enter, at);
	/* The displacement, from the call's second byte on, lies in one aligned 8 bytes. */
	while ((((uintptr_t)code.exec + at + 1) & 7) > 4)
		code.write[at++] = 0x90;
	memcpy(code.write + at, leave, sizeof leave - 1);
	memcpy(code.write + at + 6, &f->step, 4);
	code.used_to = at + sizeof leave - 1;
	struct ch_branch_site site = {.at = code.exec + at, .kind = CH_CALL, .user = f->callee};
	OK(ch_branch_attach(code.block, &site, &branch)); /* writes the displacement */
	struct ch_block block = code.block;
	bool is_made = ch_block_commit(&code, 1) == CH_OK;
	if (!is_made) /* memory is short */
		(void)!ch_block_abort(&code);
	memset(&code, 0, sizeof code); // addresses on a stack would hold the block
	if (!is_made)
		return;
	f->block = block;
	(void)!ch_owner_set_entry(f->owner, block); /* refused: the next call compiles again */
	f->compiled++;
}

/* A thread that waits for a lock unparked holds up every collection. */
static void lock(void)
{
	ch_thread_park();
	pthread_mutex_lock(&vm_lock);
	ch_thread_unpark();
}

/* Looks under the lock: another thread may have compiled the callee meanwhile. The preset pc is the
 * interpreter of the caller, but the registers are those of a call of the callee. */
static struct ch_block branch_hit(void *vm, struct ch_branch branch, void *of, struct ch_regs *regs)
{
	struct function *callee = of;
	struct ch_info info = {.size = sizeof info};
	(void)vm, (void)branch;
	regs->pc = (uintptr_t)callee->interpret;
	lock();
	/* A block that was invalidated or is gone is no target any more. */
	if (ch_block_info(callee->block, &info) != CH_OK || info.state != CH_BLOCK_LIVE)
		compile(callee);
	struct ch_block block = callee->block;
	pthread_mutex_unlock(&vm_lock);
	return block;
}

int main(void)
{
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = branch_hit};
	struct ch_heap *heap;
	struct ch_vm *vm;
	ping = (struct function){interpret_ping, 1, 0, &pong, {0}, {0}};
	pong = (struct function){interpret_pong, 10, 0, &ping, {0}, {0}};
	OK(ch_heap_create(NULL, &heap));
	OK(ch_vm_attach(heap, &ops, NULL, &vm));
	OK(ch_owner_create(vm, "ping", (const void *)interpret_ping, NULL, &ping.owner));
	OK(ch_owner_create(vm, "pong", (const void *)interpret_pong, NULL, &pong.owner));
	compile(&ping);              /* without the lock: no other thread knows ping yet */
	int first = call(&ping, 10); /* compiles pong, and links both branches */
	lock();
	pong.step = 100;
	OK(ch_blocks_invalidate(&pong.block, 1, NULL)); /* ping's branch leads to its stub again */
	pthread_mutex_unlock(&vm_lock);
	int second = call(&ping, 10); /* compiles pong anew */
	OK(ch_heap_collect(heap));    /* frees the old code */
	printf("%d, then %d; pong was compiled %d times\n", first, second, pong.compiled);
	OK(ch_vm_detach(vm));
	OK(ch_heap_destroy(heap));
	return first != 55 || second != 505 || pong.compiled != 2;
}
