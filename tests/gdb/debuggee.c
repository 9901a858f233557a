/* SPDX-License-Identifier: MIT
 * debuggee.c: the program that tests/tool/gdb_commands.sh debugs. The program makes blocks of known
 * shape, prints the facts (addresses, names) as `fact NAME VALUE`, runs the blocks with checkpoints
 * in C between, and checks the results: gdb must not have changed what the code does.
 *
 * usage: debuggee SUMS [THREADS]: each thread calls the code of `outer` SUMS times through two
 * trampolines; `outer` calls `sum`, which calls `square` five times. */
#include <codeheap/codeheap.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
	SUM_TO = 5,
	SUM_OF_SQUARES = 55,
	REF_WORD = 0x1234,
	MOST_THREADS = 8,
	LARGE_BYTES = 600000,
	MANY = 3000
};

static struct ch_heap *heap, *other_heap;
static struct ch_vm *vm, *other_vm;
static struct ch_owner square, sum, outer, framed, tail, gone, fresh, other;
static struct ch_code square_code, sum_code, outer_code;
static int (*loose)(void), (*nameless)(void);
static int sums;

static void ok(enum ch_status status, const char *what)
{
	if (status == CH_OK)
		return;
	fprintf(stderr, "debuggee: %s: %s\n", what, ch_status_text(status));
	exit(1);
}
#define OK(call) ok((call), #call)

static void fact(const char *name, const void *address)
{
	printf("fact %s %p\n", name, address);
}

/* gdb stops here; the code of `square` calls this function. */
__attribute__((noinline)) long checkpoint(long n)
{
	__asm__ volatile("" ::: "memory");
	return n * n;
}
__attribute__((noinline)) void code_is_ready(void)
{
	__asm__ volatile("" ::: "memory");
}
__attribute__((noinline)) void code_was_reused(void)
{
	__asm__ volatile("" ::: "memory");
}

static long not_compiled(void)
{
	return -1;
}

/* Links the call in `sum` when the call is first taken. */
static struct ch_block branch_hit(void *user, struct ch_branch branch, void *branch_user,
				  struct ch_regs *regs)
{
	(void)user;
	(void)branch;
	(void)branch_user;
	(void)regs;
	return square_code.block;
}

/* --- emitters --- */

static uint32_t at; /* the offset in the hot bytes of the block that is being emitted */

static void bytes(struct ch_code *code, const char *text, size_t n)
{
	memcpy(code->write + at, text, n);
	at += (uint32_t)n;
}
#define EMIT(code, text) bytes((code), text, sizeof(text) - 1)

static void emit_word(struct ch_code *code, uint64_t word)
{
	memcpy(code->write + at, &word, sizeof word);
	at += sizeof word;
}

/* The distance counts from the end of the four bytes. */
static void emit_displacement(struct ch_code *code, const void *target)
{
	int32_t distance = (int32_t)((const uint8_t *)target - (code->exec + at + 4));
	memcpy(code->write + at, &distance, sizeof distance);
	at += sizeof distance;
}

static const uint8_t *here(const struct ch_code *code)
{
	return code->exec + at;
}

/* Emits nops until the displacement of a site, `skip` bytes on, lies in an aligned 8 bytes. */
static void pad(struct ch_code *code, unsigned skip)
{
	while ((((uintptr_t)here(code) + skip) & 7) > 4)
		EMIT(code, "\x90");
}

static void open_block(struct ch_owner owner, const char *name, uint32_t hot_bytes,
		       uint32_t branches, struct ch_code *code)
{
	struct ch_open open = {.size = sizeof open,
			       .owner = owner,
			       .hot_bytes = hot_bytes,
			       .branch_room = branches,
			       .name = name};
	OK(ch_block_open(&open, code));
	at = 0;
}

static void commit(struct ch_owner owner, struct ch_code *code)
{
	code->used_to = at;
	OK(ch_block_commit(code, 1));
	OK(ch_owner_set_entry(owner, code->block));
}

/* Calls checkpoint by a veneer. */
static void make_square(void)
{
	const void *veneer;
	open_block(square, "by C", 32, 0, &square_code);
	OK(ch_block_veneer(&square_code, (const void *)checkpoint, &veneer));
	EMIT(&square_code, "\x55\x48\x89\xe5\xe8"); /* push rbp; mov rbp, rsp; call veneer */
	emit_displacement(&square_code, veneer);
	fact("square_return", here(&square_code));
	EMIT(&square_code, "\x5d\xc3"); /* pop rbp; ret */
	commit(square, &square_code);
	fact("square_entry", square_code.exec);
	fact("veneer", veneer);
}

/* The code of `outer` has a patchable entry, and calls `sum` through the cell of `sum`. */
static void make_outer(void)
{
	struct ch_open open = {
		.size = sizeof open, .owner = outer, .hot_bytes = 64, .entry = CH_ENTRY_PATCH};
	OK(ch_block_open(&open, &outer_code));
	at = outer_code.entry_bytes;
	EMIT(&outer_code, "\x55\x48\x89\xe5\x48\xb8"); /* push rbp; mov rbp, rsp; mov rax, .. */
	emit_word(&outer_code, (uintptr_t)ch_owner_cell(sum));
	EMIT(&outer_code, "\xff\x10\x5d\xc3"); /* call [rax]; pop rbp; ret */
	OK(ch_edge_attach_owner(outer_code.block, sum));
	commit(outer, &outer_code);
	fact("outer_entry", outer_code.exec);
}

static void attach(struct ch_code *code, const char *name, const uint8_t *site,
		   enum ch_branch_kind kind)
{
	struct ch_branch_site branch_site = {.at = site, .kind = kind};
	struct ch_branch branch;
	OK(ch_branch_attach(code->block, &branch_site, &branch));
	fact(name, site);
}

/* Returns the sum of the squares from edi down to 1. */
static void make_sum(const char *source)
{
	struct ch_line lines[4];
	struct ch_code *code = &sum_code;
	open_block(sum, NULL, 128, 2, code);
	lines[0] = (struct ch_line){here(code), 11};
	EMIT(code, "\x55\x48\x89\xe5\x53\x41\x54"); /* push rbp; mov rbp, rsp; push rbx; push r12 */
	EMIT(code, "\x89\xfb\x45\x31\xe4");         /* mov ebx, edi; xor r12d, r12d */
	uint32_t loop = at;
	lines[1] = (struct ch_line){here(code), 12};
	fact("sum_loop", here(code));
	EMIT(code, "\x89\xdf"); /* mov edi, ebx */
	pad(code, 1);
	lines[2] = (struct ch_line){here(code), 13};
	const uint8_t *call_site = here(code);
	EMIT(code, "\xe8\0\0\0\0");
	attach(code, "sum_call", call_site, CH_CALL);
	fact("sum_return", here(code));
	lines[3] = (struct ch_line){here(code), 14}; /* the call ends its line */
	EMIT(code, "\x49\x01\xc4\xff\xcb\x75"); /* add r12, rax; dec ebx; jne loop */
	bytes(code, (char[]){(char)(loop - at - 1)}, 1);
	EMIT(code, "\x48\xb9"); /* mov rcx, ref */
	const uint8_t *ref = here(code);
	emit_word(code, REF_WORD);
	OK(ch_ref_attach(code->block, ref));
	const uint8_t *point = here(code);
	EMIT(code, "\xa9\0\0\0\0\x49\x83\xfc\xff"); /* patch point; cmp r12, -1 */
	pad(code, 2);
	const uint8_t *site = here(code);
	EMIT(code, "\x0f\x84\0\0\0\0"); /* je: never taken */
	attach(code, "sum_never", site, CH_JCC);
	OK(ch_patch_point_attach(code->block, point, here(code), NULL));
	fact("sum_point", point);
	fact("sum_exit", here(code));
	EMIT(code, "\x4c\x89\xe0\x41\x5c\x5b\x5d\xc3"); /* mov rax, r12; pop r12, rbx, rbp; ret */
	OK(ch_block_lines(code->block, source, lines, 4));
	const uint8_t *stubs_end = code->cold_exec;
	commit(sum, code);
	fact("sum_entry", code->exec);
	fact("sum_stubs_end", stubs_end);
}

/* mov eax, value; ret */
static void make_constant(struct ch_owner owner, char value, struct ch_code *code)
{
	open_block(owner, NULL, 8, 0, code);
	bytes(code, (char[]){(char)0xb8, value, 0, 0, 0, (char)0xc3}, 6);
	commit(owner, code);
}

/* push value; pop rax; ret: begins with another byte than the code of make_constant. */
static void make_other_constant(struct ch_owner owner, char value, struct ch_code *code)
{
	open_block(owner, NULL, 8, 0, code);
	bytes(code, (char[]){0x6a, value, 0x58, (char)0xc3}, 4);
	commit(owner, code);
}

/* --- runs --- */

static long call(struct ch_owner owner, int n)
{
	long (*const *cell)(int) = (long (*const *)(int))ch_owner_cell(owner);
	return (*cell)(n);
}

static void want(const char *what, long got, long wanted)
{
	if (got == wanted)
		return;
	fprintf(stderr, "debuggee: %s is %ld, not %ld\n", what, got, wanted);
	exit(1);
}

/* The target of the framed trampoline. */
static __attribute__((noinline)) long call_outer(int n)
{
	return call(outer, n);
}

static struct ch_block make_trampoline(struct ch_owner owner, enum ch_trampoline kind,
				       const void *target)
{
	struct ch_block block;
	struct ch_info info = {.size = sizeof info};
	OK(ch_trampoline_make(owner, kind, target, REF_WORD, NULL, NULL, &block));
	OK(ch_owner_set_entry(owner, block));
	OK(ch_block_info(block, &info));
	fact(kind == CH_TRAMPOLINE_TAIL ? "tail_entry" : "framed_entry", info.entry);
	return block;
}

/* tail jumps to framed, which calls call_outer. */
static void make_trampolines(void)
{
	struct ch_info info = {.size = sizeof info};
	OK(ch_block_info(make_trampoline(framed, CH_TRAMPOLINE_FRAMED, (const void *)call_outer),
			 &info));
	make_trampoline(tail, CH_TRAMPOLINE_TAIL, info.entry);
}

static void *run_sums(void *arg)
{
	if (arg)
		OK(ch_thread_attach(heap, NULL, NULL));
	for (int i = 0; i < sums; i++)
		want("sum", call(tail, SUM_TO), SUM_OF_SQUARES);
	if (arg)
		OK(ch_thread_detach(heap));
	return NULL;
}

static void run_threads(int count)
{
	pthread_t threads[MOST_THREADS];
	for (int i = 1; i < count && i < MOST_THREADS; i++)
		if (pthread_create(&threads[i], NULL, run_sums, heap))
			exit(1);
	run_sums(NULL);
	ch_thread_park();
	for (int i = 1; i < count && i < MOST_THREADS; i++)
		pthread_join(threads[i], NULL);
	ch_thread_unpark();
}

/* Stacks are scanned: words that earlier calls left below this frame must not hold a block. */
static __attribute__((noinline)) void wipe_stack(void)
{
	volatile char room[8192];
	for (size_t i = 0; i < sizeof room; i++)
		room[i] = 0;
}

/* Returns the complement of the code's address, since the complement holds no block. */
static __attribute__((noinline)) uintptr_t use_gone(void)
{
	static struct ch_code code;
	make_constant(gone, 7, &code);
	fact("victim", code.exec);
	uintptr_t hidden = ~(uintptr_t)code.exec;
	code_is_ready();
	want("gone", call(gone, 0), 7);
	code_is_ready();
	OK(ch_blocks_invalidate(&code.block, 1, NULL));
	return hidden;
}

/* A call, so that the compiler keeps no plain address. */
static __attribute__((noinline)) bool is_complement(uintptr_t address, uintptr_t hidden)
{
	return ~address == hidden;
}

/* `gone` dies, and blocks of `fresh` are made until a block takes the place of `gone`. With a
 * breakpoint there the block must run as written. */
static void reuse(void)
{
	static struct ch_code code;
	uintptr_t hidden = use_gone();
	bool was_reused = false;
	for (int i = 0; i < 200 && !was_reused; i++) {
		wipe_stack();
		OK(ch_heap_collect(heap));
		for (int j = 0; j < 64 && !was_reused; j++) {
			make_other_constant(fresh, 9, &code);
			was_reused = is_complement((uintptr_t)code.exec, hidden);
		}
	}
	printf("reused %d\n", was_reused);
	code_was_reused();
	want("fresh", call(fresh, 0), 9);
}

/* --- frame shapes --- */

static const void *make_shape(struct ch_owner *owner, const char *name, uint8_t shape,
			      const char *text, uint32_t n, const struct ch_frame *frame)
{
	static struct ch_code code;
	struct ch_open open = {.size = sizeof open, .hot_bytes = n, .frame = shape};
	OK(ch_owner_create(vm, name, (const void *)not_compiled, NULL, owner));
	open.owner = *owner;
	OK(ch_block_open(&open, &code));
	at = 0;
	bytes(&code, text, n);
	code.frame = frame;
	commit(*owner, &code);
	return code.exec;
}

/* Calls the code with a function that the code calls by way of another function. */
static __attribute__((noinline)) long call_shapes(const void *code, const void *by_way_of,
						  const void *function)
{
	long (*shape)(const void *, const void *);
	memcpy(&shape, &code, sizeof shape);
	return shape(by_way_of, function) + 1;
}

/* All code changes each register that it saves, so that a debugger must find it on the stack. */
static void run_shapes(void)
{
	/* push rbp; mov rbp, rsp; push rbx, r12, r13, r14, r15, rax; mov rax, rdi; mov rdi, rsi;
	 * xor ebx, ebx; mov r12, rbx; mov r13, rbx; mov r14, rbx; mov r15, rbx; call rax;
	 * pop rcx, r15, r14, r13, r12, rbx, rbp; ret */
	static const char saving[] =
		"\x55\x48\x89\xe5\x53\x41\x54\x41\x55\x41\x56\x41\x57\x50\x48\x89\xf8\x48\x89\xf7"
		"\x31\xdb\x49\x89\xdc\x49\x89\xdd\x49\x89\xde\x49\x89\xdf\xff\xd0"
		"\x59\x41\x5f\x41\x5e\x41\x5d\x41\x5c\x5b\x5d\xc3";
	/* push rbp; push rbx; push rax; mov rbx, rdi; xor ebp, ebp; mov edi, 6; call rbx;
	 * pop rcx, rbx, rbp; ret */
	static const char stepping[] = "\x55\x53\x50\x48\x89\xfb\x31\xed\xbf\x06\0\0\0\xff\xd3"
				       "\x59\x5b\x5d\xc3";
	static const struct ch_frame_step steps[] = {{1, 16}, {2, 24}, {3, 32},
						     {16, 24}, {17, 16}, {18, 8}};
	static const struct ch_frame_save saves[] = {{6, 2, 1}, {3, 3, 2}};
	static const struct ch_frame frame = {
		.steps = steps, .saves = saves, .steps_n = 6, .saves_n = 2};
	static const char leaf[] = "\x89\xf8\xff\xc0\xc3"; /* mov eax, edi; inc eax; ret */
	static struct ch_owner owners[3];
	const void *saves_all = make_shape(&owners[0], "saving", CH_FRAME_KEEPS_ALL, saving,
					   sizeof saving - 1, NULL);
	const void *by_steps = make_shape(&owners[1], "stepping", CH_FRAME_STEPS, stepping,
					  sizeof stepping - 1, &frame);
	const void *is_leaf = make_shape(&owners[2], "leaf", CH_FRAME_LEAF, leaf, sizeof leaf - 1,
					 NULL);
	/* 1, behind more nops than a debugger reads at once */
	static const char nops_first[] =
		"\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90"
		"\x31\xc0\xff\xc0\xc3";
	OK(ch_code_add(heap, nops_first, sizeof nops_first - 1, "loose-if code", &loose));
	OK(ch_code_add(heap, "\xc3", 1, NULL, &nameless));
	code_is_ready();
	want("leaf", call_shapes(saves_all, by_steps, is_leaf), 8);
	want("checkpoint", call_shapes(saves_all, by_steps, (const void *)checkpoint), 37);
}

static void end_heap(struct ch_heap *h, struct ch_vm *v)
{
	char report[200];
	ok(ch_heap_check(h, report, sizeof report), report);
	OK(ch_vm_detach(v));
	OK(ch_heap_destroy(h));
}

static void make_freed(void)
{
	static struct ch_code code;
	struct ch_owner dead;
	OK(ch_owner_create(vm, "dead", (const void *)not_compiled, NULL, &dead));
	make_constant(dead, 1, &code);
	fact("freed_entry", code.exec);
	OK(ch_blocks_invalidate(&code.block, 1, NULL));
	memset(&code, 0, sizeof code);
	OK(ch_heap_collect(heap));
}

/* Blocks with pages of their own: code with a stub, which lies at the end, data that is written in
 * place, and code that was freed; data that shares a page; and more records than a debugger reads
 * at once. */
static void make_apart(void)
{
	static struct ch_owner owner;
	static struct ch_code large, data, dead;
	OK(ch_owner_create(vm, "apart", (const void *)not_compiled, NULL, &owner));
	open_block(owner, "large", LARGE_BYTES, 1, &large);
	for (int i = 0; i < LARGE_BYTES; i++)
		EMIT(&large, "\xc3");
	large.entry_offset = 16;
	commit(owner, &large);
	fact("large", large.exec);
	fact("large_cold", large.cold_exec);
	for (int i = 0; i < 2; i++) {
		open_block(owner, i ? "dead" : "dead before", LARGE_BYTES, 1, &dead);
		dead.used_to = LARGE_BYTES;
		OK(ch_block_commit(&dead, 1));
		fact("dead", dead.exec);
		fact("dead_cold", dead.cold_exec);
		OK(ch_blocks_invalidate(&dead.block, 1, NULL));
		memset(&dead, 0, sizeof dead);
		wipe_stack();
		OK(ch_heap_collect(heap)); /* the second cycle gives the place back */
		OK(ch_heap_collect(heap));
	}
	for (int i = 0; i < 2; i++) {
		struct ch_open open = {.size = sizeof open,
				       .owner = owner,
				       .kind = CH_KIND_DATA,
				       .hot_bytes = 100,
				       .flags = i ? 0 : CH_OPEN_IN_PLACE,
				       .name = i ? "small" : "data"};
		OK(ch_block_open(&open, &data));
		OK(ch_block_commit(&data, 1));
		fact(open.name, data.exec);
	}
	for (int i = 0; i < MANY; i++)
		OK(ch_code_add(heap, "\xc3", 1, "many", &loose));
	loose = NULL;
}

static void make_heap(struct ch_heap **h, struct ch_vm **v)
{
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = branch_hit};
	struct ch_config config;
	ch_config_init(&config);
	config.pool_bytes = 4 << 20; /* trampolines take a chunk of their own */
	OK(ch_heap_create(&config, h));
	OK(ch_vm_attach(*h, &ops, NULL, v));
	OK(ch_thread_attach(*h, NULL, NULL));
}

static void make_owner(struct ch_vm *of, const char *name, struct ch_owner *owner)
{
	OK(ch_owner_create(of, name, (const void *)not_compiled, NULL, owner));
}

int main(int argc, char **argv)
{
	static struct ch_code code;
	sums = argc > 1 ? atoi(argv[1]) : 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	make_heap(&heap, &vm);
	make_owner(vm, "square", &square);
	make_owner(vm, "sum", &sum);
	make_owner(vm, "outer", &outer);
	make_owner(vm, "framed", &framed);
	make_owner(vm, "tail", &tail);
	make_owner(vm, "gone", &gone);
	make_owner(vm, "fresh", &fresh);
	if (getenv("DEBUGGEE_TWO_HEAPS")) {
		make_heap(&other_heap, &other_vm);
		make_owner(other_vm, "other", &other);
		make_constant(other, 3, &code);
		fact("other_entry", code.exec);
	}
	make_freed();
	make_square();
	make_sum(argv[0]);
	make_outer();
	make_trampolines();
	if (getenv("DEBUGGEE_SHAPES"))
		run_shapes();
	if (getenv("DEBUGGEE_APART"))
		make_apart();
	code_is_ready();
	if (getenv("DEBUGGEE_FORKS") && fork() == 0)
		_exit(0);
	run_threads(argc > 2 ? atoi(argv[2]) : 1);
	if (loose)
		want("loose code", loose(), 1);
	if (getenv("DEBUGGEE_REUSE"))
		reuse();
	if (other_heap)
		end_heap(other_heap, other_vm);
	end_heap(heap, vm);
	printf("result right\n");
	return 0;
}
