/* SPDX-License-Identifier: MIT
 * limits.c: a process that has something taken away, before its heap begins or while the heap
 * lives: membarrier, memfd_create, mremap, maps. The heap goes on where possible, else a call says
 * why not. `make hostile` runs every case of the core tier under restrictions from the start of the
 * process (tests/runner/hostile.c). */
#define _GNU_SOURCE
#include "codeheap/graph/block.h"
#include "codeheap/graph/block_parts.h"
#include "tests/support/heap_rig.h"
#include "tests/support/own_mounts.h"
#include "tests/support/refuse_call.h"
#include "tests/support/stage_code.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- only stops sync --- */

/* Code freed by a collection waits for the next stop: an open that may collect makes both stops. A
 * vm is asked, so that no other collection comes unasked. */
TEST(full_pool_is_served_by_a_second_stop_where_only_stops_sync)
{
	unsigned asked = 0;
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = rig_count_asked};
	struct ch_config config = rig_config(rig_page_bytes());
	refuse_call(SYS_membarrier, EPERM);
	struct rig rig = rig_create(&config, &ops, &asked);
	struct ch_owner rest = rig_owner(&rig, "rest"), large = rig_owner(&rig, "large");
	struct emitter e;
	emit_open(&e, large, 3000, 0);
	emit_filler(&e, 3000 - CODE_RETURN_BYTES);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	struct ch_open open = {.owner = rest, .hot_bytes = 900};
	while (emit_open_as(&e, &open) == CH_OK) {
		emit_filler(&e, 900 - CODE_RETURN_BYTES);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
	}
	rig_collect(&rig, 2); /* newborn no more */
	CHECK_EQ(ch_owner_release(large, CH_RELEASE_COLLECT), CH_OK);
	open.hot_bytes = 2900;
	CHECK_EQ(emit_open_as(&e, &open), CH_E_FULL);
	open.flags = CH_OPEN_MAY_COLLECT;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	rig_end(&rig);
}

/* --- other ways to two views --- */

static bool has_mapping_of(const struct ch_heap *heap, const char *name)
{
	char line[300];
	bool found = false;
	uintptr_t exec = heap->pool->runtime_exec, from, to;
	FILE *f = fopen("/proc/self/maps", "r");
	CHECK(f);
	while (fgets(line, sizeof line, f))
		if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= exec && exec < to)
			found = strstr(line, name) != NULL && strstr(line, "r-xs") != NULL;
	fclose(f);
	return found;
}

static void use_heap(struct rig *rig)
{
	struct ch_owner owner = rig_owner(rig, "owner");
	CHECK_EQ(ch_owner_set_entry(owner, rig_block(owner, 50)), CH_OK);
	CHECK_EQ(code_call_owner(owner), 50);
	/* More than a chunk, given back and taken again. */
	for (int i = 0; i < 2; i++) {
		struct ch_owner large = rig_owner(rig, "large");
		struct emitter e;
		emit_open(&e, large, 2500000, 0);
		emit_answer(&e, 51);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_owner_set_entry(large, e.code.block), CH_OK);
		CHECK_EQ(code_call_owner(large), 51);
		CHECK_EQ(ch_owner_release(large, CH_RELEASE_NOT_RUNNING), CH_OK);
		rig_collect(rig, 2);
	}
	pid_t child = fork_child();
	if (!child) {
		CHECK_EQ(code_call_owner(owner), 50);
		CHECK_EQ(ch_owner_set_entry(owner, rig_block(owner, 52)), CH_OK);
		CHECK_EQ(code_call_owner(owner), 52);
		_exit(0);
	}
	expect_exit(child, 0);
	CHECK_EQ(code_call_owner(owner), 50);
}

static struct ch_config plain_config(enum ch_backend backend)
{
	struct ch_config config = rig_config(8 << 20);
	unsetenv("CODEHEAP_WX");
	config.backend = backend;
	return config;
}

/* The first backend is tried with smaller and smaller pools. */
TEST(backend_that_comes_next_has_a_pool_of_the_size_that_was_asked_for)
{
	struct ch_config config = plain_config(CH_BACKEND_AUTO);
	refuse_call(SYS_mremap, ENOMEM);
	struct rig rig = rig_create(&config, NULL, NULL);
	CHECK_EQ(rig_stats(&rig).pool_bytes, config.pool_bytes);
	rig_end(&rig);
}

static bool may_run_files_of(const char *folder)
{
	int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	void *at = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	return at != MAP_FAILED;
}

static void use_nameless_file(int error)
{
	if (!may_run_files_of("/dev/shm") && !may_run_files_of("/tmp"))
		skip("no folder has files that may be executed");
	struct ch_config config = plain_config(CH_BACKEND_MEMFD);
	refuse_call(SYS_memfd_create, error);
	struct rig rig = rig_create(&config, NULL, NULL);
	CHECK(has_mapping_of(rig.heap, "(deleted)"));
	CHECK(!has_mapping_of(rig.heap, "memfd:"));
	use_heap(&rig);
	rig_end(&rig);
}

TEST(s50_memfd_that_is_forbidden_is_a_file_without_a_name)
{
	use_nameless_file(EPERM);
}

TEST(s50_memfd_that_is_unknown_is_a_file_without_a_name)
{
	use_nameless_file(ENOSYS);
}

TEST(s50_forbidden_memfd_is_named_where_no_folder_may_run_files)
{
	struct ch_config config = plain_config(CH_BACKEND_MEMFD);
	struct ch_heap *heap;
	if (!own_mounts() || mount("none", "/dev/shm", "tmpfs", MS_NOEXEC, NULL) != 0 ||
	    mount("none", "/tmp", "tmpfs", MS_NOEXEC, NULL) != 0)
		skip("the kernel allows no mounts");
	refuse_call(SYS_memfd_create, EPERM);
	int next = dup(STDERR_FILENO);
	close(next);
	CHECK(ch_heap_create(&config, &heap) != CH_OK);
	if (!strstr(ch_why(), "memfd_create EPERM"))
		FAIL("the sentence is: %s", ch_why());
	CHECK_EQ(dup(STDERR_FILENO), next); /* no file stays open */
}

TEST(s50_default_needs_no_memfd)
{
	struct ch_config config = plain_config(CH_BACKEND_AUTO);
	refuse_call(SYS_memfd_create, EPERM);
	refuse_call_with(SYS_openat, EPERM, 2, O_TMPFILE);
	struct rig rig = rig_create(&config, NULL, NULL);
	/* `dual` needs neither. */
	CHECK_EQ(rig.heap->pool->backend, CH_BACKEND_DUAL);
	use_heap(&rig);
	rig_end(&rig);
}

TEST(s50_default_goes_on_to_files_where_mremap_is_refused)
{
	struct ch_config config = plain_config(CH_BACKEND_AUTO);
	refuse_call(SYS_mremap, EPERM);
	struct rig rig = rig_create(&config, NULL, NULL);
	CHECK(has_mapping_of(rig.heap, "(deleted)")); /* a memfd or its replacement */
	CHECK(!has_mapping_of(rig.heap, "/dev/zero"));
	struct ch_owner owner = rig_owner(&rig, "owner");
	CHECK_EQ(code_call(block_info(rig_block(owner, 50)).entry), 50);
	rig_end(&rig);
}

TEST(s50_no_way_to_two_views_is_a_status_with_its_errno)
{
	struct ch_config config = plain_config(CH_BACKEND_AUTO);
	struct ch_heap *heap = (struct ch_heap *)(uintptr_t)8;
	refuse_call(SYS_mremap, EPERM);
	refuse_call(SYS_memfd_create, EPERM);
	refuse_call_with(SYS_openat, ENFILE, 2, O_TMPFILE);
	errno = 0;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_E_OS);
	CHECK_EQ(errno, ENFILE); /* of the last way tried */
	CHECK(strstr(ch_why(), "open with O_TMPFILE ENFILE"));
	CHECK_EQ((uintptr_t)heap, 0);
}

/* --- random numbers --- */

/* As on a kernel before 3.17, or behind a filter: places are guessed from other differences. */
TEST(random_places_are_found_where_the_kernel_gives_no_random_numbers)
{
	enum { DRAWS = 64 };
	uint64_t draws[DRAWS];
	refuse_call(SYS_getrandom, ENOSYS);
	for (unsigned i = 0; i < DRAWS; i++) {
		ch__os_random(&draws[i], sizeof draws[i]);
		for (unsigned j = 0; j < i; j++)
			if (draws[i] == draws[j])
				FAIL("random numbers %u and %u are the same", i, j);
	}
	struct rig one = rig_start(1 << 20), two = rig_start(1 << 20);
	ptrdiff_t delta = one.heap->pool->delta;
	if (!CH_TSAN && !one.heap->pool->stub_lead_bytes && delta == two.heap->pool->delta)
		FAIL("two heaps have their views at one distance");
	struct ch_block block = rig_block(rig_owner(&one, "block"), 62);
	CHECK_EQ(code_call(block_info(block).exec), 62);
	rig_end(&two);
	rig_end(&one);
}

/* --- the side list of a block --- */

/* The count has 16 bits: an attachment beyond is refused, and the block goes on. */
TEST_RIG(block_has_no_more_than_65535_attachments)
{
	enum { MOST = 65535 };
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block target = rig_block(owner, 1);
	struct emitter e;
	emit_open(&e, owner, 64, 0);
	for (uint32_t i = 0; i < MOST; i++)
		CHECK_EQ(ch_edge_attach(e.code.block, target), CH_OK);
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(ch_edge_attach(e.code.block, target), CH_E_MEMORY);
		CHECK_EQ(ch_edge_attach_owner(e.code.block, owner), CH_E_MEMORY);
	}
	emit_answer(&e, 63);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(code_call(block_info(e.code.block).exec), 63);
	rig_check(&rig);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
}

/* A patch point takes two, and one more where another block has the exit. */
TEST_RIG(last_patch_point_has_the_room_that_it_takes)
{
	enum { MOST = 65535 };
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block target = rig_block(owner, 1);
	for (uint32_t takes = 2; takes <= 3; takes++) {
		struct emitter e;
		emit_open(&e, owner, 64, 0);
		const uint8_t *exit = takes == 3 ? block_info(target).exec : e.code.exec;
		const uint8_t *first = emit_point(&e), *last = emit_point(&e);
		for (uint32_t i = 0; i < MOST - takes; i++)
			CHECK_EQ(ch_edge_attach(e.code.block, target), CH_OK);
		CHECK_EQ(ch_patch_point_attach(e.code.block, first, exit, NULL), CH_OK);
		CHECK_EQ(ch_patch_point_attach(e.code.block, last, exit, NULL), CH_E_MEMORY);
		CHECK_EQ(ch_edge_attach(e.code.block, target), CH_E_MEMORY);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		emit_open(&e, owner, 64, 0);
		exit = takes == 3 ? exit : e.code.exec;
		first = emit_point(&e);
		for (uint32_t i = 0; i <= MOST - takes; i++)
			CHECK_EQ(ch_edge_attach(e.code.block, target), CH_OK);
		CHECK_EQ(ch_patch_point_attach(e.code.block, first, exit, NULL), CH_E_MEMORY);
		for (uint32_t left = takes - 1; left; left--)
			CHECK_EQ(ch_edge_attach(e.code.block, target), CH_OK);
		CHECK_EQ(ch_edge_attach(e.code.block, target), CH_E_MEMORY);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	}
}

/* --- the cold part of a block, and the runtime page --- */

/* A cold part's granules are counted by 16 bits: a larger part is refused. */
TEST_RIG(cold_part_has_no_more_than_65535_granules)
{
	enum { MOST = 65535 * CH__GRANULE_BYTES - CH__HEAD_BYTES };
	struct ch_open open = {.hot_bytes = 64};
	struct ch_block found;
	struct emitter e;
	uint32_t each = ch__stub_bytes(rig.heap);
	/* The numbers of codeheap.h. */
	CHECK_EQ(MOST, 524272);
	CHECK_EQ(each, rig.heap->pool->stub_lead_bytes ? 24 : CH_ARCH_STUB_BYTES);
	for (uint32_t stubs = 0; stubs <= 3 * each; stubs += each) {
		open.owner = rig_owner(&rig, "owner");
		open.branch_room = stubs / each;
		for (uint32_t over = 1; over <= CH__GRANULE_BYTES; over++) {
			open.cold_bytes = MOST - stubs + over;
			CHECK_EQ(emit_open_as(&e, &open), CH_E_ARG);
		}
		open.cold_bytes = MOST - stubs;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		CHECK_EQ(e.code.cold_bytes, MOST - stubs);
		emit_answer(&e, 64);
		e.code.cold_used = MOST - stubs;
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(block_info(e.code.block).cold_bytes, MOST);
		CHECK_EQ(code_call(block_info(e.code.block).exec), 64);
		for (uint32_t at = 0; at < MOST - stubs; at += MOST - stubs - 1) {
			CHECK(block_at(rig.heap, e.code.cold_exec + at, &found));
			CHECK_EQ(found.bits, e.code.block.bits);
		}
		rig_check(&rig);
		CHECK_EQ(ch_owner_release(open.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	}
}

TEST_RIG(veneers_fill_the_runtime_page_to_its_end)
{
	const struct ch__pool *pool = rig.heap->pool;
	uint32_t rest = (uint32_t)(pool->runtime_bytes - rig.heap->veneers_from);
	uint32_t room = rest / CH_ARCH_VENEER_BYTES;
	struct emitter e;
	const void *at = NULL;
	emit_open(&e, rig_owner(&rig, "owner"), 64, 0);
	for (uintptr_t i = 1; i <= room; i++)
		CHECK_EQ(ch_block_veneer(&e.code, (const void *)i, &at), CH_OK);
	CHECK((uintptr_t)at + CH_ARCH_VENEER_BYTES <= pool->runtime_exec + pool->runtime_bytes);
	CHECK_EQ(ch_block_veneer(&e.code, (const void *)(uintptr_t)(room + 1), &at), CH_E_FULL);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

/* --- maps --- */

enum { MAPS_STEP = 5, MAPS_MOST = 60, LIVED = 3, REFUSED };

/* Does everything once with `left` maps more. A status says what is impossible. */
static void live_with(long left, bool heap_is_there)
{
	struct rig rig = {0};
	struct ch_ops ops = {.size = sizeof ops};
	struct ch_config config = plain_config(CH_BACKEND_AUTO);
	enum ch_status status = CH_OK;
	struct ch_owner owner = {0};
	int how = LIVED;
	if (heap_is_there) {
		rig = rig_create(&config, NULL, NULL);
		owner = rig_owner(&rig, "first");
		CHECK_EQ(ch_owner_set_entry(owner, rig_block(owner, 60)), CH_OK);
	}
	fill_maps(left);
	if (!heap_is_there) {
		status = ch_heap_create(&config, &rig.heap);
		if (status == CH_OK)
			status = ch_vm_attach(rig.heap, &ops, NULL, &rig.vm);
		if (status == CH_OK)
			status = ch_thread_attach(rig.heap, NULL, NULL);
		CHECK(status == CH_OK || status == CH_E_OS || status == CH_E_MEMORY);
		if (status != CH_OK)
			_exit(REFUSED);
	}
	for (int i = 0; i < 20; i++) {
		struct ch_open open = {.hot_bytes = i % 4 ? 3000 : 1500000,
				       .flags = CH_OPEN_MAY_COLLECT};
		struct emitter e;
		status = ch_owner_create(rig.vm, "of many", (const void *)(uintptr_t)rig_fallback,
					 NULL, &open.owner);
		CHECK(status == CH_OK || status == CH_E_MEMORY);
		if (status != CH_OK) {
			how = REFUSED;
			continue;
		}
		status = emit_open_as(&e, &open);
		CHECK(status == CH_OK || status == CH_E_FULL || status == CH_E_MEMORY ||
		      status == CH_E_OS);
		if (status == CH_OK) {
			emit_answer(&e, 61);
			CHECK_EQ(emit_commit(&e), CH_OK);
			CHECK_EQ(ch_owner_set_entry(open.owner, e.code.block), CH_OK);
			CHECK_EQ(code_call_owner(open.owner), 61);
		} else {
			how = REFUSED;
		}
		CHECK_EQ(ch_owner_release(open.owner, CH_RELEASE_COLLECT), CH_OK);
		status = ch_heap_collect(rig.heap);
		CHECK(status == CH_OK || status == CH_E_MEMORY);
		rig_check(&rig);
	}
	if (heap_is_there)
		CHECK_EQ(code_call_owner(owner), 60);
	CHECK_EQ(ch_vm_detach(rig.vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
	_exit(how);
}

static void live_in_children(bool heap_is_there)
{
	if (TEST_SANITIZED)
		skip("a sanitizer maps memory of its own");
	int refused = 0, lived = 0;
	for (long left = 0; left <= MAPS_MOST; left += MAPS_STEP) {
		int how;
		pid_t child = fork_child();
		if (!child)
			live_with(left, heap_is_there);
		CHECK_EQ(waitpid(child, &how, 0), child);
		if (!WIFEXITED(how) || (WEXITSTATUS(how) != LIVED && WEXITSTATUS(how) != REFUSED))
			FAIL("with %ld maps left it ends with 0x%x", left, how);
		refused += WEXITSTATUS(how) == REFUSED;
		lived += WEXITSTATUS(how) == LIVED;
	}
	printf("%d lived, %d were refused something\n", lived, refused);
	CHECK(lived > 0 && refused > 0);
}

TEST(s26_maps_run_out_before_a_heap_begins)
{
	live_in_children(false);
}

TEST(s26_maps_run_out_while_a_heap_lives)
{
	live_in_children(true);
}

/* --- a personality in which readable memory may run --- */

/* Nothing in the views of the pool is writable and executable. */
static void check_views(const struct ch__pool *pool)
{
	char line[300], access[5];
	unsigned seen = 0;
	uintptr_t from, to, exec = pool->runtime_exec, write = exec + (uintptr_t)pool->delta;
	uint64_t bytes = pool->runtime_bytes + pool->pool_bytes;
	FILE *f = fopen("/proc/self/maps", "r");
	CHECK(f);
	while (fgets(line, sizeof line, f)) {
		CHECK_EQ(sscanf(line, "%lx-%lx %4s", &from, &to, access), 3);
		bool is_exec = from < exec + bytes && to > exec;
		bool is_write = from < write + bytes && to > write;
		seen += is_exec || is_write;
		if (access[2] == 'x' && (is_write || (is_exec && access[1] == 'w')))
			FAIL("code can be written and run: %s", line);
	}
	fclose(f);
	CHECK(seen >= 2);
}

static void live_where_reading_implies_execution(void *backend)
{
	struct ch_config config = plain_config(*(const enum ch_backend *)backend);
	config.pool_bytes = 4 << 20;
	struct rig rig = rig_create(&config, NULL, NULL);
	check_views(rig.heap->pool);
	use_heap(&rig);
	struct ch_owner owner = rig_owner(&rig, "data");
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 100};
	struct ch_code code;
	for (int kind = CH_KIND_RODATA; kind <= CH_KIND_DATA; kind++) {
		open.kind = (enum ch_kind)kind;
		CHECK_EQ(ch_block_open(&open, &code), CH_OK);
		check_views(rig.heap->pool);
		CHECK_EQ(ch_block_abort(&code), CH_OK);
	}
	check_views(rig.heap->pool);
	CHECK(personality(0xffffffff) & READ_IMPLIES_EXEC);
	rig_end(&rig);
}

TEST(s50_readable_memory_that_runs_by_itself_does_not_run)
{
	enum ch_backend backends[] = {CH_BACKEND_DUAL, CH_BACKEND_MEMFD, CH_BACKEND_PROCMEM};
	if (personality(READ_IMPLIES_EXEC) == -1)
		skip("the system keeps the personality");
	for (unsigned i = 0; i < (CH_ARCH_LEAD_BYTES ? 3 : 2); i++)
		expect_signal(live_where_reading_implies_execution, &backends[i], 0);
}

/* Each new heap looks at the personality again, for the existing heaps, too. */
static void come_where_reading_implies_execution(void *backend)
{
	struct ch_config config = plain_config(*(const enum ch_backend *)backend);
	config.pool_bytes = 4 << 20;
	struct rig early = rig_create(&config, NULL, NULL);
	use_heap(&early);
	uint64_t before = rig_stats(&early).committed_bytes_now;
	CHECK(personality(READ_IMPLIES_EXEC) != -1);
	struct rig late = rig_create(&config, NULL, NULL);
	use_heap(&late);
	struct ch_owner owner = rig_owner(&early, "more");
	for (int i = 0; rig_stats(&early).committed_bytes_now == before; i++) {
		struct emitter e;
		/* More than a page of any size. A page of the block stays in use. */
		emit_open(&e, owner, 1 << 20, 0);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK(i < 1000);
	}
	check_views(early.heap->pool);
	check_views(late.heap->pool);
	rig_end(&late);
	rig_end(&early);
}

TEST(s50_personality_of_a_heap_that_comes_later_is_looked_at)
{
	enum ch_backend backends[] = {CH_BACKEND_DUAL, CH_BACKEND_MEMFD};
	int before = personality(0xffffffff);
	if (before == -1 || personality((unsigned long)before | READ_IMPLIES_EXEC) == -1)
		skip("the system keeps the personality");
	CHECK(personality((unsigned long)before) != -1);
	for (unsigned i = 0; i < sizeof backends / sizeof *backends; i++)
		expect_signal(come_where_reading_implies_execution, &backends[i], 0);
}

/* --- branches at the limit of mappings --- */

enum { JUMPERS = 64, ROUNDS = 30 };

struct jumpers {
	struct rig rig;
	struct ch_block four, five;
	struct ch_branch branches[JUMPERS];
	uintptr_t entries[JUMPERS];
	_Atomic(bool) is_over;
	_Atomic(uint64_t) runs;
};

static void *run_jumpers(void *arg)
{
	struct jumpers *j = arg;
	CHECK_EQ(ch_thread_attach(j->rig.heap, NULL, NULL), CH_OK);
	for (unsigned i = 0; !atomic_load(&j->is_over); i = (i + 1) % JUMPERS) {
		uint64_t is = code_call((const void *)j->entries[i]);
		if (is != 4 && is != 5 && is != RIG_FALLBACK)
			FAIL("a branch led to neither of its targets");
		atomic_fetch_add(&j->runs, 1);
	}
	CHECK_EQ(ch_thread_detach(j->rig.heap), CH_OK);
	return NULL;
}

/* Takes each mapping for good. */
static void take_every_mapping(void)
{
	fill_maps(40);
	while (map_one())
		continue;
}

/* Called between two stored bytes of code: threads would run a half. Other takers get the mappings
 * that came free for the store. */
static unsigned halves;
static void note_half(const void *to)
{
	(void)to;
	halves++;
	while (map_one())
		continue;
}

static void lead_all(struct jumpers *j, struct ch_block to, uint64_t answer)
{
	for (unsigned i = 0; i < JUMPERS; i++) {
		CHECK_EQ(ch_branch_link(j->branches[i], to), CH_OK);
		CHECK_EQ(code_call((const void *)j->entries[i]), answer);
	}
}

static void link_at_the_limit(void *arg)
{
	static struct jumpers j;
	struct ch_config config = rig_config(1 << 20);
	pthread_t runner;
	config.backend = CH_BACKEND_PROCMEM;
	unsetenv("CODEHEAP_WX");
	j.rig = rig_create(&config, NULL, NULL);
	struct ch_owner owner = rig_owner(&j.rig, "owner");
	j.four = rig_block(owner, 4);
	j.five = rig_block(owner, 5);
	for (unsigned i = 0; i < JUMPERS; i++)
		j.entries[i] = (uintptr_t)block_info(rig_jumper(owner, arg, &j.branches[i])).exec;
	lead_all(&j, j.four, 4);
	CHECK_EQ(pthread_create(&runner, NULL, run_jumpers, &j), 0);
	TEST_UNTIL(atomic_load(&j.runs) > JUMPERS);
	take_every_mapping();
	ch__os_pretended.between_bytes = note_half;
	for (unsigned round = 0; round < ROUNDS; round++) {
		uint64_t runs = atomic_load(&j.runs);
		lead_all(&j, j.five, 5);
		lead_all(&j, (struct ch_block){0}, RIG_FALLBACK);
		lead_all(&j, j.four, 4);
		TEST_UNTIL(atomic_load(&j.runs) > runs);
	}
	CHECK_EQ(halves, 0);
	struct ch_block both[] = {j.four, j.five};
	CHECK_EQ(ch_blocks_invalidate(both, 2, NULL), CH_OK);
	for (unsigned i = 0; i < JUMPERS; i++)
		CHECK_EQ(code_call((const void *)j.entries[i]), RIG_FALLBACK);
	CHECK_EQ(halves, 0);
	ch__os_pretended.between_bytes = NULL;
	atomic_store(&j.is_over, true);
	CHECK_EQ(pthread_join(runner, NULL), 0);
	rig_check(&j.rig);
}

/* Runs in a child, with a limit of its own. */
TEST(branches_are_led_elsewhere_where_others_hold_every_mapping)
{
	skip_without_procmem();
	if (TEST_SANITIZED)
		skip("a sanitizer maps memory of its own");
	expect_signal(link_at_the_limit, NULL, 0);
}

/* The C library reads the first thread's stack from a file. */
TEST(stack_that_is_not_known_is_told_with_its_errno)
{
	struct ch_config config = rig_config(rig_page_bytes());
	struct ch_heap *heap;
	struct rlimit files;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, files.rlim_max}), 0);
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_E_OS);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
	CHECK(strstr(ch_why(), ": EMFILE"));
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

/* --- files that a program closed --- */

/* A memfd, or the nameless file in its place. */
static void close_nameless_files(void)
{
	for (int fd = STDERR_FILENO + 1; fd < 256; fd++) {
		char name[32], path[32] = "";
		snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
		if (readlink(name, path, sizeof path - 1) > 0 && strstr(path, " (deleted)"))
			close(fd);
	}
}

/* No code waits for a collection, and nearly all of the pool is free. */
TEST(pool_whose_file_was_closed_is_full_and_says_that_memory_was_refused)
{
	struct ch_config config = rig_config(1 << 20);
	CHECK_EQ(setenv("CODEHEAP_WX", "memfd", 1), 0);
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_block block = rig_block(rig_owner(&rig, "code"), 7);
	struct ch_open open = {.size = sizeof open, .heap = rig.heap, .hot_bytes = 4000};
	struct ch_code code;
	enum ch_status status;
	close_nameless_files();
	do
		status = ch_block_open(&open, &code);
	while (status == CH_OK);
	CHECK_EQ(status, CH_E_FULL);
	CHECK(strstr(ch_why(), "the system refused"));
	CHECK_EQ(code_call(block_info(block).exec), 7);
	rig_end(&rig);
}

/* --- standard streams --- */

/* The numbers of the streams are free for the next file: code, or the names of code. */
TEST(process_without_standard_streams_prints_into_nothing)
{
	int out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 100);
	int words = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 100);
	CHECK(out > 0 && words > 0);
	struct ch_config config = rig_config(1 << 20);
	config.sinks = CH_SINK_PERF_MAP;
	CHECK_EQ(setenv("CODEHEAP_WX", "memfd", 1), 0);
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		close(fd);
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_block block = rig_block(rig_owner(&rig, "code"), 7);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	unsigned taken = 0;
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		taken += write(fd, "text", 4) >= 0 || errno != EBADF || fcntl(fd, F_GETFD) >= 0;
	CHECK_EQ(dup2(out, STDOUT_FILENO), STDOUT_FILENO);
	CHECK_EQ(dup2(words, STDERR_FILENO), STDERR_FILENO);
	CHECK_EQ(taken, 0);
	CHECK_EQ(code_call(block_info(block).exec), 7);
	rig_end(&rig);
}
