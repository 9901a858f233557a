/* SPDX-License-Identifier: MIT
 * program.c: a program of every call of codeheap.h, collector.h, look.h and profile.h, with machine
 * code of x86-64. `tests/tool/old_header.sh write` makes program-VERSION-x86_64.s of it, the
 * binary of a release, which tests assemble, link with today's libraries, and run. */
#define _GNU_SOURCE
#include <codeheap/collector.h>
#include <codeheap/look.h>
#include <codeheap/profile.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

static struct ch_heap *heap;
static struct ch_block next;
static int hits, freed, visited;
static uintptr_t words[8];

static void wrong(int line)
{
	printf("line %d: %s\n", line, ch_why());
	exit(3);
}
#define OK(status) ((status) == CH_OK ? (void)0 : wrong(__LINE__))
#define IS(what) ((what) ? (void)0 : wrong(__LINE__))

static struct ch_block hit(void *vm_user, struct ch_branch branch, void *user, struct ch_regs *regs)
{
	IS(vm_user == words && branch.bits && user == &hits && regs->pc);
	hits++;
	return next;
}
static uintptr_t ref(void *vm_user, uintptr_t word)
{
	IS(vm_user == words);
	return word;
}
static void roots(void *vm_user, struct ch_marker *marker)
{
	IS(vm_user == words);
	ch_mark_stack(marker, words, words + 8);
}
static void block_freed(void *vm_user, void *block_user)
{
	IS(vm_user == words && (!block_user || block_user == &freed));
	freed++;
}
static const struct ch_ops ops = {.size = sizeof ops,
				  .branch_hit = hit,
				  .ref = ref,
				  .roots = roots,
				  .block_freed = block_freed,
				  .tells_detached = true};
static int fallback(void)
{
	return -1;
}
static int call(const void *entry)
{
	return ((int (*)(void))(uintptr_t)entry)();
}

/* mov eax, 41; jmp to the stub; a word; test eax, 0; ret at 32 */
static const uint8_t first_code[40] = {0xb8, 41, 0, 0, 0, 0x90, 0x90, 0x90, 0xe9, [24] = 0xa9, [32] = 0xc3};
/* inc eax; ret */
static const uint8_t second_code[] = {0xff, 0xc0, 0xc3};
/* mov eax, 7; ret */
static const uint8_t seven_code[] = {0xb8, 7, 0, 0, 0, 0xc3};

static bool visit_block(void *arg, const struct ch_info *info)
{
	IS(arg == words && info->size && info->block.bits);
	return ++visited;
}
static bool visit_site(void *arg, const struct ch_site *site)
{
	IS(arg == words && site->at);
	return ++visited;
}
static uintptr_t visit_ref(void *arg, uintptr_t word, bool *is_young)
{
	IS(arg == words);
	*is_young = false;
	return word;
}

static void open_in(struct ch_owner owner, const uint8_t *bytes, uint32_t n, struct ch_code *code)
{
	static uint8_t frame;
	static const uint8_t cfi[] = {0x0c, 6, 16, 0x86, 2, 0x90, 1};
	if (!frame)
		OK(ch_frame_register(heap, cfi, sizeof cfi, &frame));
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = n, .cold_bytes = 64,
			       .branch_room = 1, .frame = frame, .name = "block", .user = &freed};
	OK(ch_block_open(&open, code));
	memcpy(code->write, bytes, n);
	code->used_to = n;
}

static struct ch_branch attach(const struct ch_code *code, struct ch_code *to, struct ch_owner owner,
			       struct ch_assumption fact)
{
	struct ch_branch branch;
	const uint8_t *at = code->exec;
	const void *veneer;
	struct ch_branch_site site = {.at = at + 8, .kind = CH_JMP, .user = &hits};
	struct ch_line lines[] = {{at, 1}, {at + 8, 2}};
	OK(ch_branch_attach(code->block, &site, &branch));
	OK(ch_ref_attach(code->block, at + 16));
	OK(ch_patch_point_attach(code->block, at + 24, at + 32, &visited));
	OK(ch_edge_attach(code->block, to->block));
	OK(ch_edge_attach_owner(code->block, owner));
	OK(ch_block_assume(code->block, fact));
	OK(ch_block_lines(code->block, "/old.c", lines, 2));
	OK(ch_block_veneer(code, (const void *)fallback, &veneer));
	IS(call(veneer) == -1);
	return branch;
}

static void look(struct ch_owner owner, struct ch_block block)
{
	struct ch_info info = {.size = sizeof info};
	struct ch_spot spot = {.size = sizeof spot};
	struct ch_stats stats = {.size = sizeof stats};
	struct ch_owner_facts facts = {.size = sizeof facts};
	siginfo_t signal = {0};
	ucontext_t context = {0};
	const void *pcs[4];
	const char *path;
	char text[200];
	int failed;
	OK(ch_block_info(block, &info));
	IS(info.state == CH_BLOCK_LIVE && !strcmp(info.name, "block") && info.user == &freed);
	IS(ch_code_at(NULL, info.entry, false, &spot) && spot.block.bits == block.bits);
	OK(ch_heap_stats(heap, &stats));
	IS(stats.blocks_now >= 2 && stats.pool_bytes == 8 << 20 && stats.vms_now == 1);
	OK(ch_owner_info(owner, &facts));
	IS(!strcmp(facts.name, "first") && facts.blocks_now == 1);
	OK(ch_block_each(heap, NULL, visit_block, words));
	IS(visited >= 2);
	visited = 0;
	OK(ch_block_sites(block, visit_site, words));
	IS(visited >= 3);
	OK(ch_heap_check(heap, text, sizeof text));
	IS(ch_address_name(heap, info.entry, false, text, sizeof text) && strstr(text, "block"));
	(void)ch_backtrace(heap, CH_BACKTRACE_FRAMES, NULL, pcs, 4);
	OK(ch_trap_install(heap));
	IS(ch_trap_describe(heap, &signal, &context, text, sizeof text) == 0);
	OK(ch_sink_set(heap, CH_SINK_UNWIND));
	OK(ch_sink_flush(heap));
	IS(ch_sink_status(heap, CH_SINK_UNWIND, &path, &failed) && !failed);
}

static void run_graph(struct ch_vm *vm)
{
	struct ch_owner first, second;
	struct ch_code codes[2];
	struct ch_assumption fact;
	size_t count;
	OK(ch_owner_create(vm, "first", (const void *)fallback, NULL, &first));
	OK(ch_owner_create(vm, "second", (const void *)fallback, NULL, &second));
	OK(ch_assumption_create(vm, &fact));
	open_in(first, first_code, sizeof first_code, &codes[0]);
	open_in(second, second_code, sizeof second_code, &codes[1]);
	struct ch_branch branch = attach(&codes[0], &codes[1], second, fact);
	OK(ch_block_commit(codes, 2));
	next = codes[1].block;
	OK(ch_owner_set_entry(first, codes[0].block));
	const void *const *cell = ch_owner_cell(first);
	IS(call(*cell) == 42 && hits == 1);
	OK(ch_branch_link(branch, (struct ch_block){0}));
	IS(call(*cell) == 42 && hits == 2);
	OK(ch_branch_link(branch, next));
	IS(call(*cell) == 42 && hits == 2);
	look(first, codes[0].block);
	OK(ch_assumption_break(fact, &count));
	IS(count == 1 && call(*cell) == -1);
	OK(ch_blocks_invalidate(&next, 1, &count));
	IS(count == 1);
	open_in(second, second_code, sizeof second_code, &codes[0]);
	OK(ch_block_abort(&codes[0]));
	OK(ch_owner_release(first, CH_RELEASE_COLLECT));
	OK(ch_owner_release(second, CH_RELEASE_NOT_RUNNING));
}

static void run_code(struct ch_vm *vm)
{
	int (*seven)(void);
	struct ch_owner owner;
	struct ch_block block;
	struct ch_info info = {.size = sizeof info};
	OK(ch_code_add(heap, seven_code, sizeof seven_code, "seven", &seven));
	IS(seven() == 7);
	OK(ch_code_write(heap, (const char *)(uintptr_t)seven + 1, "\x08", 1, CH_WRITE_NOT_RUNNING));
	IS(seven() == 8);
	OK(ch_owner_create(vm, "calls", NULL, NULL, &owner));
	OK(ch_trampoline_make(owner, CH_TRAMPOLINE_FRAMED, (const void *)fallback, 1, NULL, NULL, &block));
	OK(ch_block_info(block, &info));
	IS(call(info.entry) == -1);
	OK(ch_code_free(heap, (const void *)(uintptr_t)seven, CH_RELEASE_NOT_RUNNING));
}

static void run_fiber(void)
{
	static _Alignas(16) char stack[4096];
	struct ch_fiber *fiber;
	OK(ch_fiber_attach(heap, stack, stack + sizeof stack, &fiber));
	ch_fiber_suspend(fiber, stack);
	ch_fiber_resume(fiber);
	OK(ch_fiber_detach(fiber));
	ch_thread_park();
	ch_thread_unpark();
	ch_thread_poll();
	IS(ch_thread_poll_word(heap));
}

static void run_profile(void)
{
	struct ch_profile_options options = {.size = sizeof options, .by_wall_clock = true};
	struct ch_profile_counts counts = {.size = sizeof counts};
	struct ch_profile_view view = {.size = sizeof view, .title = "old"};
	OK(ch_stats_file_enable());
	OK(ch_profile_start(heap, 100, &options));
	OK(ch_profile_stop(heap, &counts));
	IS(counts.threads == 1);
	OK(ch_profile_write(heap, "/dev/null", &view));
}

static void run_collector(void)
{
	struct ch_config config;
	struct ch_vm *vm;
	struct ch_owner owner;
	struct ch_marker *marker;
	ch_config_init(&config);
	config.pool_bytes = 8 << 20;
	config.driver = CH_DRIVER_HOST;
	OK(ch_heap_create(&config, &heap));
	OK(ch_vm_attach(heap, &ops, words, &vm));
	OK(ch_owner_create(vm, "marked", NULL, NULL, &owner));
	OK(ch_mark_begin(heap, &marker));
	ch_mark_owner(marker, owner);
	OK(ch_refs_visit(marker, CH_REFS_ALL, visit_ref, words));
	ch_mark_stacks(marker);
	OK(ch_mark_end(marker, true));
	IS(ch_owner_cell(owner) != NULL);
	OK(ch_vm_detach(vm));
	OK(ch_heap_destroy(heap));
}

int main(void)
{
	struct ch_config config;
	struct ch_vm *vm;
	size_t count, kept;
	IS(!strcmp(ch_status_text(CH_OK), "success"));
	ch_config_init(&config);
	config.pool_bytes = 8 << 20;
	OK(ch_heap_create(&config, &heap));
	OK(ch_vm_attach(heap, &ops, words, &vm));
	OK(ch_thread_attach(heap, NULL, NULL));
	run_graph(vm);
	run_code(vm);
	run_fiber();
	run_profile();
	OK(ch_heap_collect(heap));
	OK(ch_vm_discard(heap, vm, &count, &kept));
	OK(ch_vm_detach(vm));
	IS(freed == 3);
	OK(ch_thread_detach(heap));
	OK(ch_heap_destroy(heap));
	run_collector();
	puts("done");
	return 0;
}
