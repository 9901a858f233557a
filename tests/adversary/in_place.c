/* SPDX-License-Identifier: MIT
 * in_place.c: blocks in place and blocks of data while the process forks, the system refuses calls,
 * other threads look up addresses, and sinks are on. */
#define _GNU_SOURCE
#include "codeheap/graph/block_parts.h"
#include "codeheap/places/places.h"
#include "pages/inner.h"
#include "tests/support/in_place_rig.h"
#include "tests/support/perfmap_reader.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

static struct rig start_on(enum ch_backend backend, enum ch_fork fork_mode)
{
	struct ch_config config = rig_config(4 << 20);
	if (backend != CH_BACKEND_AUTO)
		unsetenv("CODEHEAP_WX");
	config.backend = backend;
	config.fork = fork_mode;
	return rig_create(&config, NULL, NULL);
}

/* --- private memory --- */

/* The write view has no copy of bytes written in place until the library takes over the bytes. */
TEST(image_in_private_memory_is_taken_over)
{
	skip_without_procmem();
	struct rig rig = start_on(CH_BACKEND_PROCMEM, CH_FORK_COPY);
	struct image image = image_make(&rig, 0);
	for (uint32_t i = 0; i < 3; i++)
		CHECK_EQ(code_call_owner(image.owner), IMAGE_CONSTANT + i);
	expect_no_both(&rig);
	struct ch_info info = block_info(image.blocks[IMAGE_CODE]);
	CHECK_EQ(memcmp(ch__pool_read(rig.heap->pool, (uintptr_t)info.exec), info.exec, 64), 0);
	rig_end(&rig);
}

/* --- fork --- */

struct opener {
	struct rig *rig;
	struct emitter e;
	pthread_barrier_t barrier;
};

static void *keep_open(void *arg)
{
	struct opener *o = arg;
	CHECK_EQ(ch_thread_attach(o->rig->heap, NULL, NULL), CH_OK);
	emit_open_in_place(&o->e, rig_owner(o->rig, "other"), CH_KIND_CODE, 5000);
	memset(o->e.code.write, 0x33, 5000);
	ch_thread_park();
	pthread_barrier_wait(&o->barrier);
	pthread_barrier_wait(&o->barrier);
	ch_thread_unpark();
	CHECK_EQ(ch_block_abort(&o->e.code), CH_OK);
	CHECK_EQ(ch_thread_detach(o->rig->heap), CH_OK);
	return NULL;
}

/* The child has data of its own and goes on with its open block. Another thread's block is free. */
static void live_as_child(struct rig *rig, struct image *image, struct emitter *mine,
			  const struct opener *other)
{
	expect_no_both(rig);
	expect_access(image->variable, 4, "rw-");
	expect_access(block_info(image->blocks[0]).exec, 4, "r--");
	expect_access(block_info(image->blocks[IMAGE_CODE]).exec, 4, "r-x");
	CHECK_EQ(code_call_owner(image->owner), IMAGE_CONSTANT + 1);
	CHECK_EQ(code_call(image->reset), IMAGE_CONSTANT);
	*image->variable = 5;
	CHECK_EQ(code_call_owner(image->owner), 5);
	CHECK(!rig_is_there(other->e.code.block));
	expect_free(other->e.code.exec, 5000);
	expect_access(mine->code.exec, mine->code.hot_bytes, "rw-");
	emit_answer(mine, 66);
	CHECK_EQ(emit_commit(mine), CH_OK);
	CHECK_EQ(code_call(mine->code.exec), 66);
	rig_check(rig);
	CHECK_EQ(ch_owner_release(image->owner, CH_RELEASE_COLLECT), CH_OK);
	const uint8_t *variable = (const uint8_t *)image->variable;
	image->variable = NULL;
	/* The stack of a thread that is not attached is not scanned. (With ThreadSanitizer a child
	 * cannot start a thread instead.) */
	CHECK_EQ(ch_thread_detach(rig->heap), CH_OK);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(ch_heap_collect(rig->heap), CH_OK);
	CHECK_EQ(ch_thread_attach(rig->heap, NULL, NULL), CH_OK);
	expect_free(variable, 4);
	rig_check(rig);
	expect_no_both(rig);
}

static void fork_with_image(enum ch_backend backend, enum ch_fork mode, unsigned flags)
{
	struct rig rig = start_on(backend, mode);
	struct image image = image_make(&rig, flags);
	struct emitter mine;
	struct opener other = {.rig = &rig};
	pthread_t thread;
	CHECK_EQ(code_call_owner(image.owner), IMAGE_CONSTANT);
	emit_open_in_place(&mine, rig_owner(&rig, "mine"), CH_KIND_CODE, 100);
	CHECK_EQ(pthread_barrier_init(&other.barrier, NULL, 2), 0);
	ch_thread_park();
	CHECK_EQ(pthread_create(&thread, NULL, keep_open, &other), 0);
	pthread_barrier_wait(&other.barrier);
	ch_thread_unpark();
	pid_t child = fork_child();
	if (!child) {
		live_as_child(&rig, &image, &mine, &other);
		_exit(3);
	}
	expect_exit(child, 3);
	/* The child changed nothing of the parent's. */
	CHECK_EQ(*image.variable, IMAGE_CONSTANT + 1);
	CHECK_EQ(code_call_owner(image.owner), IMAGE_CONSTANT + 1);
	for (int i = 0; i < 5000; i++)
		CHECK_EQ(other.e.code.exec[i], 0x33);
	expect_access(mine.code.exec, mine.code.hot_bytes, "rw-");
	CHECK_EQ(ch_block_abort(&mine.code), CH_OK);
	ch_thread_park();
	pthread_barrier_wait(&other.barrier);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	ch_thread_unpark();
	rig_end(&rig);
}

static void fork_with_images(enum ch_backend backend, enum ch_fork mode)
{
	fork_with_image(backend, mode, 0);
	fork_with_image(backend, mode, IMAGE_SHARES);
}

TEST(fork_copies_images_and_what_is_open)
{
	fork_with_images(CH_BACKEND_AUTO, CH_FORK_COPY);
}

TEST(fork_of_a_memfd_copies_images_and_what_is_open)
{
	fork_with_images(CH_BACKEND_MEMFD, CH_FORK_COPY);
}

TEST(fork_shares_images_until_one_of_both_writes)
{
	skip_without_procmem();
	fork_with_images(CH_BACKEND_PROCMEM, CH_FORK_COW);
}

static void read_from(void *at)
{
	(void)*(volatile uint8_t *)at;
}

/* Tables known to unwinders read as the end of a table. */
static void fork_without_copy(unsigned flags)
{
	struct rig rig = start_on(CH_BACKEND_AUTO, CH_FORK_NONE);
	struct image image = image_make(&rig, flags);
	const uint32_t *constant = (const void *)block_info(image.blocks[0]).exec;
	CHECK_EQ(*constant, IMAGE_CONSTANT);
	pid_t child = fork_child();
	if (!child) {
		CHECK_EQ(code_call_owner(image.owner), RIG_FALLBACK);
		for (int i = 0; i < 3; i++)
			CHECK(!rig_is_there(image.blocks[i]));
		expect_signal(read_from, image.variable, SIGSEGV);
		CHECK_EQ(*constant, 0);
		struct emitter e;
		struct ch_open open = {.owner = image.owner, .hot_bytes = 9, .kind = CH_KIND_DATA};
		CHECK_EQ(emit_open_as(&e, &open), CH_E_OS);
		CHECK_EQ(errno, EACCES);
		_exit(3);
	}
	expect_exit(child, 3);
	CHECK_EQ(code_call_owner(image.owner), IMAGE_CONSTANT);
	rig_end(&rig);
}

TEST(child_without_copy_has_neither_code_nor_data)
{
	fork_without_copy(0);
	fork_without_copy(IMAGE_SHARES);
}

/* --- refusals of the system --- */

/* Lives a whole life of the owner, in which the nth call fails. Calls return statuses, and nothing
 * is lost. Returns false when the life has fewer than n calls. */
static bool live_with_failure(const struct rig *rig, struct ch_owner owner, uint32_t bytes,
			      uint64_t n, bool is_persistent)
{
	static const enum ch_kind kinds[] = {CH_KIND_RODATA, CH_KIND_DATA, CH_KIND_CODE};
	struct emitter parts[3];
	struct ch_code codes[3];
	int opened = 0;
	enum ch_status status = CH_OK;
	ch__os_fail_at(n, is_persistent);
	for (int i = 0; i < 3 && status == CH_OK; i++) {
		struct ch_open open = {.owner = owner,
				       .hot_bytes = bytes,
				       .kind = kinds[i],
				       .flags = i == 2 ? CH_OPEN_IN_PLACE : 0};
		status = emit_open_as(&parts[i], &open);
		CHECK(status == CH_OK || status == CH_E_OS || status == CH_E_MEMORY ||
		      status == CH_E_FULL);
		opened += status == CH_OK;
	}
	if (status == CH_OK) {
		emit_count(&parts[2], parts[0].code.exec, parts[1].code.exec);
		memset(parts[0].code.write, 0, bytes);
		memset(parts[1].code.write, 0, bytes);
		for (int i = 0; i < 3; i++) {
			parts[i].code.used_to = bytes;
			codes[i] = parts[i].code;
		}
		status = ch_block_commit(codes, 3);
		CHECK(status == CH_OK || status == CH_E_OS || status == CH_E_MEMORY);
		for (int i = 0; i < 3; i++)
			CHECK_EQ(block_info(codes[i].block).state,
				 status == CH_OK ? CH_BLOCK_LIVE : CH_BLOCK_OPEN);
		/* The second try completes the first. */
		if (status != CH_OK && !is_persistent)
			CHECK_EQ(status = ch_block_commit(codes, 3), CH_OK);
	}
	if (status == CH_OK)
		CHECK_EQ(code_call(codes[2].exec), 0);
	/* The blocks and the owner may go while calls still fail. */
	for (int i = 0; i < opened; i++)
		if (rig_is_there(parts[i].code.block) && status != CH_OK)
			CHECK_EQ(ch_block_abort(&parts[i].code), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	bool is_over = ch__os_failable_calls() < n;
	expect_no_both(rig);
	rig_check(rig);
	ch__os_fail_at(0, false);
	rig_check(rig);
	return !is_over;
}

/* Data of so many bytes has pages of its own, or shares a page. */
static void walk_with(enum ch_backend backend, uint32_t bytes, bool is_persistent)
{
	struct rig rig = start_on(backend, CH_FORK_COPY);
	uint64_t n = 1;
	for (; live_with_failure(&rig, rig_owner(&rig, "owner"), bytes, n, is_persistent); n++) {
		CHECK(n < 200);
		/* Pages that did not come back do so once the system allows. */
		rig_collect(&rig, 1);
		CHECK_EQ(rig_stats(&rig).pages_now, 0);
		rig_check(&rig);
	}
	CHECK(n > 6);
	CHECK_EQ(code_call(block_info(rig_block(rig_owner(&rig, "code"), 4)).entry), 4);
	rig_end(&rig);
}

static void walk_failures(enum ch_backend backend, bool is_persistent)
{
	walk_with(backend, (uint32_t)rig_page_bytes(), is_persistent);
	walk_with(backend, 500, is_persistent);
}

TEST(each_failing_call_of_an_image_is_a_status)
{
	walk_failures(CH_BACKEND_AUTO, false);
	walk_failures(CH_BACKEND_AUTO, true);
}

TEST(each_failing_call_of_an_image_in_a_memfd_is_a_status)
{
	walk_failures(CH_BACKEND_MEMFD, false);
	walk_failures(CH_BACKEND_MEMFD, true);
}

TEST(each_failing_call_of_an_image_in_private_memory_is_a_status)
{
	skip_without_procmem();
	walk_failures(CH_BACKEND_PROCMEM, false);
	walk_failures(CH_BACKEND_PROCMEM, true);
}

static struct emitter open_full_of_zeros(struct ch_owner owner)
{
	struct emitter e;
	emit_open_in_place(&e, owner, CH_KIND_CODE, rig_page_bytes());
	memset(e.code.write, 0, e.code.hot_bytes);
	emit_answer(&e, 5);
	e.code.used_to = e.at;
	return e;
}

/* The commit of the second block is refused. Pages that run have traps behind the used bytes. */
TEST(code_in_place_that_landed_in_vain_has_traps_behind_what_is_used)
{
	enum ch_status status = CH_E_OS;
	bool has_landed = ch__valgrind_runs() || getenv("CODEHEAP_TEST_EMULATOR");
	for (uint64_t n = 1; status != CH_OK; n++) {
		struct rig rig = rig_start(2 << 20);
		struct ch_owner owner = rig_owner(&rig, "owner");
		struct emitter first = open_full_of_zeros(owner);
		struct emitter second = open_full_of_zeros(owner);
		struct ch_code codes[] = {first.code, second.code};
		char access[8] = "";
		ch__os_fail_at(n, true);
		status = ch_block_commit(codes, 2);
		ch__os_fail_at(0, false);
		walk_maps((uintptr_t)first.code.exec, (uintptr_t)first.code.exec + 1, note_access,
			  access);
		if (status != CH_OK && access[2] == 'x') {
			has_landed = true;
			CHECK(ch__arch_are_traps(first.code.exec + first.at,
						 first.code.hot_bytes - first.at));
		}
		CHECK(status == CH_OK || ch_block_commit(codes, 2) == CH_OK);
		CHECK_EQ(code_call(first.code.exec), 5);
		rig_end(&rig);
	}
	CHECK(has_landed);
}

/* Runs in a child, for a fresh limit. Exits with 3 when there was room enough, else 4. */
static void live_at_the_limit(long left)
{
	struct rig rig = rig_start(4 << 20);
	struct image image = image_make(&rig, 0);
	struct ch_owner owner = rig_owner(&rig, "owner"), code = rig_owner(&rig, "code");
	CHECK_EQ(code_call(block_info(rig_block(code, 4)).entry), 4);
	uint64_t before = rig_stats(&rig).blocks_committed;
	fill_maps(left);
	live_with_failure(&rig, owner, (uint32_t)rig_page_bytes(), UINT64_MAX, true);
	bool has_room = rig_stats(&rig).blocks_committed == before + 3;
	CHECK_EQ(code_call_owner(image.owner), IMAGE_CONSTANT);
	CHECK_EQ(code_call(block_info(rig_block(code, 5)).entry), 5);
	expect_no_both(&rig);
	rig_check(&rig);
	_exit(has_room ? 3 : 4);
}

/* A commit is refused the access of its second block, and made again. */
TEST_RIG_BY(code_in_place_that_landed_before_another_was_refused_gives_back_its_rest,
	    start_on(CH_BACKEND_AUTO, CH_FORK_COPY))
{
	enum { ROOM_PAGES = 8 };
	struct ch_owner owner = rig_owner(&rig, "two in place");
	struct ch_code codes[2];
	uint64_t refused = 0;
	for (int i = 0; i < 2; i++) {
		struct emitter e;
		emit_open_in_place(&e, owner, CH_KIND_CODE,
				   ROOM_PAGES * (uint32_t)rig_page_bytes() - 64);
		emit_ret(&e);
		codes[i] = e.code;
		codes[i].used_to = e.at;
	}
	for (enum ch_status status = CH_E_OS; status != CH_OK; refused++) {
		ch__os_fail_at(refused + 1, false);
		status = ch_block_commit(codes, 2);
		ch__os_fail_at(0, false);
		CHECK(status == CH_OK || status == CH_E_OS);
	}
	CHECK(refused > 2 || ch__valgrind_runs() || getenv("CODEHEAP_TEST_EMULATOR"));
	CHECK_EQ(rig_stats(&rig).pages_now, 2);
	CHECK_EQ(rig_stats(&rig).code_bytes_now, 2 * rig_page_bytes());
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_collect(&rig, 3);
	CHECK_EQ(rig_stats(&rig).code_bytes_now, 0);
}

TEST(images_at_the_limit_of_mappings_are_a_status)
{
	if (TEST_SANITIZED)
		skip("a sanitizer maps memory of its own");
	int refused = 0;
	for (long left = 0; left < 16; left++) {
		int status;
		pid_t child = fork_child();
		if (!child)
			live_at_the_limit(left);
		CHECK_EQ(waitpid(child, &status, 0), child);
		if (!WIFEXITED(status) || (WEXITSTATUS(status) != 3 && WEXITSTATUS(status) != 4))
			FAIL("with %ld mappings left the child ends with 0x%x", left, status);
		refused += WEXITSTATUS(status) == 4;
	}
	CHECK(refused > 0 && refused < 16);
}

/* The system has no mapping left but those that the blocks took. */
TEST(images_at_the_limit_of_mappings_give_theirs_back)
{
	enum { BLOCKS = 24 };
	if (TEST_SANITIZED)
		skip("a sanitizer maps memory of its own");
	struct rig rig = rig_start(4 << 20);
	struct ch_owner owner = rig_owner(&rig, "owner"), next = rig_owner(&rig, "next");
	struct emitter e[BLOCKS], last;
	for (int i = 0; i < BLOCKS; i++)
		e[i] = open_full_of_zeros(owner);
	for (int i = 0; i < BLOCKS; i += 2)
		CHECK_EQ(ch_block_abort(&e[i].code), CH_OK);
	fill_maps(0);
	for (int i = 1; i < BLOCKS; i += 2)
		CHECK_EQ(ch_block_abort(&e[i].code), CH_OK);
	rig_check(&rig);
	emit_open_in_place(&last, next, CH_KIND_CODE, 100);
	emit_answer(&last, 5);
	last.code.used_to = last.at;
	CHECK_EQ(ch_block_commit(&last.code, 1), CH_OK);
	CHECK_EQ(code_call(last.code.exec), 5);
	CHECK_EQ(ch_owner_release(next, CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_collect(&rig, 1);
	for (int i = 0; i < BLOCKS; i++)
		expect_free(e[i].code.exec, e[i].code.hot_bytes);
	rig_end(&rig);
}

TEST(child_without_code_collects_beside_pages_that_wait_for_the_system)
{
	struct rig rig = start_on(CH_BACKEND_AUTO, CH_FORK_NONE);
	struct emitter e;
	emit_open_in_place(&e, rig_owner(&rig, "owner"), CH_KIND_DATA, 40000);
	ch__os_fail_at(1, true);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	ch__os_fail_at(0, false);
	CHECK_EQ(rig.heap->pool->inner->spans_retired, 1);
	pid_t child = fork_child();
	if (!child) {
		rig_collect(&rig, 2);
		rig_check(&rig);
		_exit(3);
	}
	expect_exit(child, 3);
	rig_end(&rig);
}

TEST_RIG(pages_that_do_not_come_back_stay_out_of_use_until_they_do)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e;
	emit_open_in_place(&e, owner, CH_KIND_DATA, 40000);
	memset(e.code.write, 0x44, 40000);
	ch__os_fail_at(1, true);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	ch__os_fail_at(0, false);
	CHECK(!rig_is_there(e.code.block));
	expect_access(e.code.exec, 40000, "rw-");
	CHECK(rig_stats(&rig).pages_now > 0);
	rig_check(&rig);
	/* A block gets these pages when there are no others, and the system gives them back. */
	uintptr_t low = (uintptr_t)e.code.exec, high = low + 40000;
	bool are_back = false;
	for (;;) {
		struct emitter small;
		struct ch_open open = {.owner = owner, .hot_bytes = 1000};
		if (emit_open_as(&small, &open) != CH_OK)
			break;
		emit_answer(&small, 1);
		if ((uintptr_t)small.code.exec < high && (uintptr_t)small.code.exec >= low) {
			expect_access(e.code.exec, 40000, "r-x");
			are_back = true;
		}
		small.code.used_to = 1000;
		CHECK_EQ(ch_block_commit(&small.code, 1), CH_OK);
		CHECK_EQ(code_call(small.code.exec), 1);
	}
	CHECK(are_back);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_collect(&rig, 2);
	CHECK_EQ(rig_stats(&rig).pages_now, 0);
	expect_free(e.code.exec, 40000);
}

/* The memfd's pages were mapped, and then not kept from children. A child has its code all the
 * same, at the same addresses, too. */
TEST_RIG_BY(child_has_its_code_where_pages_were_not_kept_from_it,
	    start_on(CH_BACKEND_MEMFD, CH_FORK_COPY))
{
	struct image image = image_make(&rig, 0);
	struct emitter e;
	emit_open_in_place(&e, rig_owner(&rig, "owner"), CH_KIND_CODE, 100);
	emit_answer(&e, 3);
	e.code.used_to = e.at;
	ch__os_fail_at(2, true);
	enum ch_status status = ch_block_commit(&e.code, 1);
	/* Under Valgrind children have all the pages. */
	CHECK_EQ(status, ch__valgrind_runs() ? CH_OK : CH_E_OS);
	if (status != CH_OK)
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	ch__os_fail_at(0, false);
	pid_t child = fork_child();
	if (!child) {
		CHECK_EQ(code_call_owner(image.owner), IMAGE_CONSTANT);
		rig_check(&rig);
		_exit(3);
	}
	expect_exit(child, 3);
}

/* --- look-ups meanwhile --- */

struct watcher {
	const struct rig *rig;
	_Atomic(bool) is_over;
	_Atomic(uint64_t) found;
};

static void *look_up(void *arg)
{
	struct watcher *w = arg;
	const struct ch__pool *pool = w->rig->heap->pool;
	uint64_t at = 0;
	while (!atomic_load(&w->is_over)) {
		struct ch_block block;
		struct ch_info info = {.size = sizeof info};
		at = (at * 25214903917u + 11) % pool->pool_bytes;
		const uint8_t *pc = (const uint8_t *)pool->exec_base + at;
		if (!block_at(w->rig->heap, pc, &block) || ch_block_info(block, &info) != CH_OK)
			continue;
		CHECK(pc >= info.exec - 64 && pc < info.exec + info.hot_bytes);
		atomic_fetch_add(&w->found, 1);
	}
	return NULL;
}

TEST(storm_of_lookups_while_images_come_and_go)
{
	struct rig rig = rig_start(2 << 20);
	struct watcher watcher = {.rig = &rig};
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, look_up, &watcher), 0);
	uint64_t end = now_ns() + storm_ms() * 1000000ull;
	while (now_ns() < end || !atomic_load(&watcher.found)) {
		struct image image = image_make(&rig, 0);
		CHECK_EQ(code_call_owner(image.owner), IMAGE_CONSTANT);
		CHECK_EQ(ch_owner_release(image.owner, CH_RELEASE_COLLECT), CH_OK);
		memset(&image, 0, sizeof image);
		rig_collect(&rig, 1);
	}
	atomic_store(&watcher.is_over, true);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	rig_end(&rig);
}

/* --- sinks --- */

TEST(sinks_hear_of_code_in_place_and_of_no_data)
{
	use_own_folder();
	struct ch_config config = rig_config(4 << 20);
	config.sinks = CH_SINK_UNWIND | CH_SINK_PERF_MAP | CH_SINK_GDB;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct image image = image_make(&rig, 0);
	const uint8_t *code = block_info(image.blocks[IMAGE_CODE]).exec;
	char path[128], text[100];
	path_of(getpid(), path);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
		struct map_file *map = read_map(path);
		const struct map_line *line = line_of(map, (uintptr_t)code);
		CHECK(line && !strcmp(line->name, "image"));
		CHECK_EQ(line->start, code);
		CHECK(!line_of(map, (uintptr_t)image.variable));
		CHECK(!line_of(map, (uintptr_t)block_info(image.blocks[0]).exec));
		free(map);
		/* A sink that comes on late hears the same. */
		CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_NONE), CH_OK);
		CHECK_EQ(ch_sink_set(rig.heap, config.sinks), CH_OK);
	}
	ch_address_name(rig.heap, code + 8, false, text, sizeof text);
	CHECK_STR(text, "image+0x8");
	ch_address_name(rig.heap, image.variable, false, text, sizeof text);
	CHECK(strncmp(text, "image+", 6) == 0);
	CHECK_EQ(ch_owner_release(image.owner, CH_RELEASE_COLLECT), CH_OK);
	memset(&image, 0, sizeof image);
	rig_collect(&rig, 3);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	check_named(path, code, NULL);
	rig_end(&rig);
	remove_own_folder();
}

/* --- places --- */

static struct ch__place place_of(const struct rig *rig, const uint8_t *exec)
{
	struct ch__place place;
	ch__place_read_begin();
	ch__place_find(rig->heap, ch__offset(rig->heap, (uintptr_t)exec), &place);
	ch__place_read_end();
	return place;
}

/* A trap's report of an address agrees with the address's name in a backtrace or profile. */
TEST_RIG_BY(offsets_into_a_block_in_place_count_from_where_its_name_begins, rig_start(4 << 20))
{
	/* Less would share its page. */
	const uint32_t bytes = (uint32_t)rig_page_bytes();
	for (int kind = CH_KIND_CODE; kind <= CH_KIND_DATA; kind++) {
		struct ch_owner owner = rig_owner(&rig, "named");
		struct emitter e;
		char text[100];
		emit_open_in_place(&e, owner, (enum ch_kind)kind, bytes);
		CHECK_EQ(place_of(&rig, e.code.exec + 16).state, CH_BLOCK_OPEN);
		CHECK_EQ(place_of(&rig, e.code.exec + 16).at, 16);
		e.code.used_to = bytes;
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		ch_address_name(rig.heap, e.code.exec + 16, false, text, sizeof text);
		CHECK_STR(text, "named+0x10");
		CHECK_EQ(place_of(&rig, e.code.exec + 16).state, CH_BLOCK_LIVE);
		CHECK_EQ(place_of(&rig, e.code.exec + 16).at, 16);
		/* The bytes before the block in its page belong to no block. */
		ch_address_name(rig.heap, e.code.exec - 16, false, text, sizeof text);
		CHECK_STR(text, "named+0x0");
		CHECK_EQ(place_of(&rig, e.code.exec - 16).at, 0);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		CHECK_EQ(place_of(&rig, e.code.exec + 16).state, CH_BLOCK_DEAD);
		CHECK_EQ(place_of(&rig, e.code.exec + 16).at, 16);
		CHECK_EQ(place_of(&rig, e.code.exec - 16).at, 0);
	}
}

/* A long block of code has as many granules as the word of a tombstone has bits for a place. */
TEST_RIG_BY(offsets_into_a_long_block_are_those_of_code_when_it_is_dead, rig_start(8 << 20))
{
	enum { BYTES = CH__GRANULE_BYTES << 16, AT = 16 };
	struct ch_owner owner = rig_owner(&rig, "long");
	struct ch_open open = {.owner = owner, .hot_bytes = BYTES};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	e.code.used_to = BYTES;
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	uint32_t at = place_of(&rig, e.code.exec + AT).at;
	CHECK_EQ(at, AT);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(place_of(&rig, e.code.exec + AT).state, CH_BLOCK_DEAD);
	CHECK_EQ(place_of(&rig, e.code.exec + AT).at, at);
}
