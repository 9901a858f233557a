/* SPDX-License-Identifier: MIT
 * ports.c: properties of some machines: return addresses in a register or signed, shadow stacks,
 * system pages of 64 KiB, emulators that miss stores through another view. A case asks arch/ or
 * pages/ whether this machine has the property, and is skipped where not. Other cases need no such
 * machine: a test's own record of return addresses, and machines pretended by the gate to the
 * system. */
#define _GNU_SOURCE
#include "pages/inner.h"
#include "pages/write.h"
#include "tests/support/stage.h"

#include <errno.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <unistd.h>

struct play {
	struct stage *stage;
	struct method m, other;
	_Atomic(int) go; /* 1 the leaf spins, 2 the leaf may go on */
	uintptr_t place; /* the complement of an address */
	uint64_t result;
	unsigned stops, in_registers, on_stack;
	int depth;
	jmp_buf back;
};

static struct play *new_play(struct stage *stage)
{
	stage->counts_only = true;
	return stage_play(stage, sizeof(struct play));
}

/* --- 18: the return address of a leaf is in the link register, and nowhere else --- */

static uint64_t spin_in_leaf(void *arg)
{
	struct play *p = arg;
	atomic_store_explicit(&p->go, 1, memory_order_release);
	while (atomic_load_explicit(&p->go, memory_order_acquire) != 2)
		ch__arch_pause();
	return 18;
}

static void build_leaf_caller(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m, "caller of a leaf", (void *)spin_in_leaf);
}

static void enter_leaf_caller(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	p->result = method_call(&p->m, p);
}

/* Checks, in the stopped world, the case's premise: registers alone lead to the block. */
__attribute__((no_sanitize("address", "thread"))) static void
look_for_return(struct stage *stage, struct ch_marker *marker)
{
	struct play *p = stage->user;
	const struct ch_heap *heap = stage->heap;
	uintptr_t low = heap->pool->exec_base, bytes = heap->pool->pool_bytes;
	(void)marker;
	for (const struct ch__thread *t = heap->threads; t; t = t->next) {
		if (!t->is_attached || t == ch__thread_self(heap))
			continue;
		p->stops++;
		for (uint32_t i = 0; i < t->shown.words_count; i++)
			p->in_registers += ch__arch_strip(t->shown.words[i]) - low < bytes;
		for (uintptr_t at = t->shown.sp; at < t->stack_high; at += 8)
			p->on_stack += ch__arch_strip(*(volatile uintptr_t *)at) - low < bytes;
	}
}

STOPPING_DRIVER(s18_return_address_in_the_link_register_only)
{
	if (!CH_ARCH_HAS_LINK_REGISTER)
		skip("a call leaves its return address on the stack");
	struct play *p = new_play(stage);
	struct stage_thread t;
	stage_apart(stage, build_leaf_caller, p);
	stage->roots = look_for_return;
	stage_spawn(stage, &t, enter_leaf_caller, p);
	stage_wait(&p->go, 1);
	method_invalidate(&p->m);
	method_drop(stage, &p->m);
	for (int i = 0; i < 3; i++) {
		stage_collect(stage);
		CHECK_EQ(block_state(p->m.block), CH_BLOCK_NOTENTRANT);
	}
	CHECK(p->stops >= 3 && p->in_registers >= 3);
	CHECK_EQ(p->on_stack, 0);
	atomic_store(&p->go, 2);
	stage_join(&t);
	CHECK_EQ(p->result, 18);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
}

/* --- 44: signed return addresses --- */

static void build_dropped(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct ch_info info = {.size = sizeof info};
	method_constant(stage, &p->m, "signed", 1);
	CHECK_EQ(ch_block_info(p->m.block, &info), CH_OK);
	p->place = ~(uintptr_t)(info.exec + 3);
	method_drop(stage, &p->m);
}

/* Returns the word as in a frame, or 0 where the processor signs nothing. Some signatures are zero,
 * so several frames are tried. */
static __attribute__((noinline)) uintptr_t signed_word(const struct play *p)
{
	for (uintptr_t sp = 1 << 20; sp < 1 << 24; sp += 1 << 16) {
		uintptr_t word = code_sign(~p->place, sp);
		if (word != ~p->place)
			return word;
	}
	return 0;
}

static __attribute__((noinline)) void collect_with_signed_word(struct play *p)
{
	volatile uintptr_t word = signed_word(p);
	for (int i = 0; i < 2; i++) {
		stage_collect(p->stage);
		CHECK(method_is_known(&p->m));
	}
	word = 0;
	CHECK_EQ(word, 0);
}

EVERY_DRIVER(s44_signed_return_address_holds_its_block)
{
	struct play *p = new_play(stage);
	stage_apart(stage, build_dropped, p);
	if (!signed_word(p))
		skip("the processor does not sign return addresses");
	collect_with_signed_word(p);
	stage_collect(stage);
	CHECK(!method_is_known(&p->m));
}

/* --- 44: a second stack of return addresses, the processor's --- */

static struct ch_block link_or_leave(struct stage *stage, struct ch_branch branch, void *user,
				     struct ch_regs *regs)
{
	struct play *p = stage->user;
	(void)branch, (void)user, (void)regs;
	if (p->depth == 1)
		longjmp(p->back, 1);
	return p->depth == 2 ? (struct ch_block){0} : p->other.block;
}

static void build_call_and_jump(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_callee(stage, &p->m, "calls by a stub");
	method_constant(stage, &p->other, "target", 7);
}

static __attribute__((noinline)) uint64_t call_through(struct play *p, int frames)
{
	return frames ? call_through(p, frames - 1) + 1 : method_call(&p->m, NULL);
}

/* Each way out of a stub, below some frames that return afterwards. If the two stacks differ, the
 * processor ends the process at the next return. */
EVERY_DRIVER(s44_stubs_leave_a_shadow_stack_in_step)
{
	struct play *p = new_play(stage);
	if (!stage_thread_has_shadow_stack())
		skip("the thread has no shadow stack");
	stage->hit = link_or_leave;
	stage_apart(stage, build_call_and_jump, p);
	for (int i = 0; i < 100; i++) {
		p->depth = 0; /* linked, and entered */
		CHECK_EQ(call_through(p, 3), 7 + 1 + 3);
		CHECK_EQ(ch_branch_link(p->m.branch[0], (struct ch_block){0}), CH_OK);
		p->depth = 1; /* left by longjmp */
		if (!setjmp(p->back)) {
			call_through(p, 3);
			FAIL("came back from a longjmp");
		}
		p->depth = 2; /* unlinked, on to the fallback */
		CHECK_EQ(call_through(p, 3), STAGE_FALLBACK + 1 + 3);
	}
}

/* --- 44: the demands of a shadow stack, checked without one --- */

enum { SHADOWED = 12 };
static struct shadow {
	uintptr_t fp, word;
} shadows[SHADOWED];

/* Copies the frames from `fp` outwards. The frame at `fp` keeps a return address; a function
 * without calls may keep none. */
static unsigned copy_returns(uintptr_t fp)
{
	unsigned n = 0;
	while (n < SHADOWED) {
		uintptr_t next, word;
		ch__arch_frame_step(fp, &next, &word);
		shadows[n++] = (struct shadow){fp, word};
		/* The C library's functions may keep another word in the register of frames. */
		if (next <= fp || next % sizeof next != 0)
			break;
		fp = next;
	}
	return n;
}

static uint64_t end_under_own_frames(void *arg)
{
	struct play *p = arg;
	if (p->depth-- > 0)
		return method_call(&p->m, p) + 1;
	unsigned n = copy_returns((uintptr_t)__builtin_frame_address(0));
	CHECK(n >= 8);
	method_invalidate(&p->m);
	CHECK_EQ(ch_vm_discard(p->stage->heap, NULL, NULL, NULL), CH_OK);
	for (int i = 0; i < 2; i++)
		stage_collect(p->stage);
	unsigned in_heap = 0;
	for (unsigned i = 0; i < n; i++) {
		uintptr_t next, word;
		ch__arch_frame_step(shadows[i].fp, &next, &word);
		if (word != shadows[i].word)
			FAIL("frame %u: its return address was written", i);
		in_heap += ch__pool_has(p->stage->heap->pool, ch__arch_strip(shadows[i].word));
	}
	CHECK(in_heap >= 3);
	memset(shadows, 0, sizeof shadows);
	return 1;
}

static void build_recursive(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m, "recursive", (void *)end_under_own_frames);
}

EVERY_DRIVER(s44_no_return_address_in_a_frame_is_written)
{
	struct play *p = new_play(stage);
	stage_apart(stage, build_recursive, p);
	p->depth = 3;
	CHECK_EQ(method_call(&p->m, p), 4);
}

/* --- 45: system pages of 64 KiB --- */

enum { LARGE_PAGE = 65536, MIB = 1 << 20 };

static void check_config_of_large_pages(void)
{
	struct ch_config config;
	struct ch_heap *heap;
	ch_config_init(&config);
	config.pool_bytes = MIB;
	/* Part of a page cannot be given another protection. */
	for (size_t bytes = 4096; bytes <= LARGE_PAGE; bytes *= 2) {
		config.page_bytes = bytes < LARGE_PAGE ? bytes : 0;
		config.pool_bytes = bytes < 16384 ? bytes : MIB;
		enum ch_status status = ch_heap_create(&config, &heap);
		if (status != CH_OK)
			FAIL("page of %zu bytes: %s", bytes, ch_status_text(status));
		CHECK_EQ((size_t)1 << heap->pool->page_log2, LARGE_PAGE);
		CHECK_EQ(heap->pool->pool_bytes, bytes < 16384 ? LARGE_PAGE : MIB);
		CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	}
}

static void fill_and_drop(struct stage *stage, void *arg)
{
	(void)arg;
	for (int i = 0; i < 90; i++) {
		struct method m;
		struct emitter e;
		method_new(stage, &m, "large");
		struct ch_open open = {.owner = m.owner, .hot_bytes = 60000};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_filler(&e, 59000);
		emit_answer(&e, (uint32_t)i);
		method_commit(&e, &m);
		CHECK_EQ(method_call(&m, NULL), i);
		method_drop(stage, &m);
	}
}

/* Chunks come, go back to the system and come again; a child gets copies; all by whole pages. */
static void use_large_pages(struct stage *stage)
{
	stage->config.page_bytes = 0;
	stage->config.pool_bytes = 8 << 20;
	stage->config.sinks = CH_SINK_UNWIND | CH_SINK_GDB;
	struct play *p = new_play(stage);
	CHECK_EQ((size_t)1 << stage->heap->pool->page_log2, LARGE_PAGE);
	for (int round = 0; round < 2; round++) {
		stage_apart(stage, fill_and_drop, NULL);
		uint64_t before = stage_stats(stage).committed_bytes_now;
		for (int i = 0; i < 3; i++)
			stage_collect(stage);
		CHECK(before >= 5 * MIB && stage_stats(stage).committed_bytes_now <= MIB);
		stage_check(stage);
	}
	method_constant(stage, &p->m, "kept", 45);
	CHECK_EQ(ch_sink_flush(stage->heap), CH_OK);
	pid_t pid = fork();
	if (pid == 0) {
		CHECK_EQ(method_call(&p->m, NULL), 45);
		stage_check(stage);
		_exit(0);
	}
	expect_exit(pid, 0);
	CHECK_EQ(method_call(&p->m, NULL), 45);
	stage_end(p->stage);
}

/* The gate refuses calls that a kernel with such pages would refuse, or round up over a
 * neighbour. */
static void pretend_large_pages(void)
{
	if (ch__os_page_bytes() < LARGE_PAGE)
		ch__os_pretended.page_bytes = LARGE_PAGE;
}

EVERY_DRIVER(s45_heap_on_a_system_with_pages_of_64_kib)
{
	pretend_large_pages();
	check_config_of_large_pages();
	use_large_pages(stage);
}

static void use_pretended_pages(enum ch_backend backend)
{
	unsetenv("CODEHEAP_WX");
	pretend_large_pages();
	check_config_of_large_pages();
	struct stage *stage = stage_new(STAGE_POLLS);
	stage->config.backend = backend;
	use_large_pages(stage);
}

TEST(s45_no_range_is_smaller_than_the_system_says_dual)
{
	use_pretended_pages(CH_BACKEND_DUAL);
}

TEST(s45_no_range_is_smaller_than_the_system_says_memfd)
{
	use_pretended_pages(CH_BACKEND_MEMFD);
}

TEST(s45_no_range_is_smaller_than_the_system_says_procmem)
{
	skip_without_procmem();
	use_pretended_pages(CH_BACKEND_PROCMEM);
}

/* --- 51: views whose stores execution does not follow --- */

static void check_rewritten_code_runs(struct stage *stage)
{
	for (uint32_t i = 0; i < 200; i++) {
		struct method m;
		method_constant(stage, &m, "rewritten", i);
		CHECK_EQ(method_call(&m, NULL), i);
		CHECK_EQ(ch_owner_release(m.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		if (stage->driver == STAGE_HOST || stage->driver == STAGE_BOEHM)
			method_drop(stage, &m);
	}
	struct method from, one, two;
	method_jumper(stage, &from, "from");
	method_constant(stage, &one, "one", 1);
	method_constant(stage, &two, "two", 2);
	for (uint32_t i = 0; i < 200; i++) {
		method_link(&from, 0, i % 2 ? &two : &one);
		if (method_call(&from, NULL) != 1 + i % 2)
			FAIL("execution does not follow a store: the self-test chose wrongly");
	}
}

static bool has_dual(void)
{
	struct ch_config config;
	struct ch_heap *heap;
	ch_config_init(&config);
	config.backend = CH_BACKEND_DUAL;
	unsetenv("CODEHEAP_WX");
	if (ch_heap_create(&config, &heap) != CH_OK)
		return false;
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	return true;
}

EVERY_DRIVER(s51_emulator_gets_views_that_execution_follows)
{
	if (has_dual())
		skip("execution follows the first views: no emulator");
	new_play(stage);
	check_rewritten_code_runs(stage);
}

static void translate_as(uint8_t *exec, size_t bytes, int sharing)
{
	uint8_t *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
	CHECK(copy != MAP_FAILED);
	memcpy(copy, exec, bytes);
	CHECK_EQ(mprotect(copy, bytes, PROT_READ | PROT_EXEC), 0);
	CHECK(mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, exec) == exec);
}

/* Imitates an emulator that runs its translation until the page is mapped again. */
static void translate(uint8_t *exec, size_t bytes)
{
	translate_as(exec, bytes, MAP_PRIVATE);
}

static unsigned stale_backends;
static void (*between_runs)(struct ch__views *);

/* Between the two runs of a self-test; each of its two stores is the first sync of its views. */
bool __real_ch__views_sync(struct ch__views *v, const uint8_t *exec, size_t bytes);
bool __wrap_ch__views_sync(struct ch__views *v, const uint8_t *exec, size_t bytes);
bool __wrap_ch__views_sync(struct ch__views *v, const uint8_t *exec, size_t bytes)
{
	static unsigned small_syncs;
	bool follows = __real_ch__views_sync(v, exec, bytes);
	bool is_self_test = between_runs && !v->has_code && bytes < v->runtime_bytes;
	if (is_self_test && small_syncs++ % 2 == 0 && (stale_backends & 1u << v->backend))
		between_runs(v);
	return follows;
}

/* Imitates an emulator that translated the first code: stores through the view change memory that
 * the emulator does not look at. */
static void detach_view(struct ch__views *v)
{
	/* Shared memory is not written as a file. */
	if (v->backend == CH_BACKEND_PROCMEM)
		translate_as(v->exec, v->runtime_bytes, MAP_SHARED);
	else
		CHECK(mmap(v->write, v->runtime_bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == v->write);
}

static void pretend_emulator(unsigned backends)
{
	unsetenv("CODEHEAP_WX");
	stale_backends = backends;
	between_runs = detach_view;
}

EVERY_DRIVER(s51_stale_views_are_passed_over)
{
	pretend_emulator(1u << CH_BACKEND_DUAL);
	new_play(stage);
	if (stage->heap->pool->backend != CH_BACKEND_MEMFD)
		FAIL("self-test: views that execution does not follow were taken");
	check_rewritten_code_runs(stage);
}

static void translate_all(struct ch__views *v)
{
	translate(v->exec, v->runtime_bytes);
}

static void translate_pool(struct ch__pool *pool)
{
	translate((uint8_t *)pool->runtime_exec, pool->runtime_bytes);
	translate((uint8_t *)pool->exec_base, (size_t)pool->pages_committed << pool->page_log2);
}

/* Everything that writes code, in translated pages: commits, links, entries, invalidation,
 * poison. */
EVERY_DRIVER(s51_translated_pages_are_mapped_again)
{
	pretend_emulator(1u << CH_BACKEND_DUAL | 1u << CH_BACKEND_MEMFD);
	between_runs = translate_all;
	new_play(stage);
	struct ch__pool *pool = stage->heap->pool;
	CHECK_EQ(pool->backend, CH_BACKEND_MEMFD);
	CHECK(pool->sync_steps & CH__SYNC_REMAP);
	struct method from, one, two;
	method_jumper(stage, &from, "from");
	method_constant(stage, &one, "one", 1);
	method_constant(stage, &two, "two", 2);
	for (uint32_t i = 0; i < 50; i++) {
		struct method m;
		translate_pool(pool);
		method_constant(stage, &m, "rewritten", i);
		if (method_call(&m, NULL) != i)
			FAIL("sync: code in a translated page is what was there before");
		translate_pool(pool);
		method_link(&from, 0, i % 2 ? &two : &one);
		if (method_call(&from, NULL) != 1 + i % 2)
			FAIL("sync: a link in a translated page is not followed");
		translate_pool(pool);
		CHECK_EQ(ch_owner_release(m.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		if (stage->driver == STAGE_HOST || stage->driver == STAGE_BOEHM)
			method_drop(stage, &m);
	}
}

EVERY_DRIVER(s51_memory_written_as_a_file_is_the_third_way)
{
	skip_without_procmem();
	pretend_emulator(1u << CH_BACKEND_DUAL | 1u << CH_BACKEND_MEMFD);
	new_play(stage);
	CHECK_EQ(stage->heap->pool->backend, CH_BACKEND_PROCMEM);
	check_rewritten_code_runs(stage);
}

/* Creation refuses a heap that would run old code. Creation knows no driver. */
TEST(s51_heap_of_stale_views_only_is_a_status)
{
	struct ch_heap *heap;
	pretend_emulator(1u << CH_BACKEND_DUAL | 1u << CH_BACKEND_MEMFD |
			 1u << CH_BACKEND_PROCMEM);
	CHECK_EQ(ch_heap_create(NULL, &heap), CH_E_OS); /* a first try leaves things for ever */
	long mappings = count_mappings();
	for (int i = 0; i < 20; i++) {
		errno = 0;
		CHECK_EQ(ch_heap_create(NULL, &heap), CH_E_OS);
		CHECK_EQ(errno, ENOTSUP);
		CHECK_EQ((uintptr_t)heap, 0);
	}
	CHECK(count_mappings() <= mappings + 4);
	int fd = dup(STDERR_FILENO);
	CHECK(fd >= 0 && fd < 10); /* no memory file was left open */
	close(fd);
}
