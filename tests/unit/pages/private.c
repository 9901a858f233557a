/* SPDX-License-Identifier: MIT
 * private.c: the special promises of procmem, the backend of private memory: no second address of
 * code, no cost for a write that changes nothing, a lost file is opened again. A program's file at
 * the same number is left alone, on memfd too. */
#define _GNU_SOURCE
#include "arch/stubs.h"
#include "pages/inner.h"
#include "tests/support/pool_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t pool_bytes = 8 << 20;

static struct pool_rig create_as(enum ch_backend backend)
{
	struct ch__pool_config config = rig_config(pool_bytes);
	config.backend = backend;
	unsetenv("CODEHEAP_WX");
	return rig_create(&config);
}

/* Checks the mapping's protection, and that neither file nor shared memory is behind. */
static void check_mapping(uintptr_t at, const char *expected)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[500];
	bool is_found = false;
	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		unsigned long low, high, offset, node;
		char seen[5];
		CHECK_EQ(sscanf(line, "%lx-%lx %4s %lx %*s %lu", &low, &high, seen, &offset, &node),
			 5);
		if (seen[1] == 'w' && seen[2] == 'x')
			FAIL("writable and executable: %s", line);
		if (at < low || at >= high)
			continue;
		is_found = true;
		CHECK_STR(seen, expected);
		CHECK_EQ(node, 0);
	}
	fclose(maps);
	CHECK(is_found);
}

/* A fork copies a page-table entry a page, so a chunk is a large page and comes whole. */
TEST(procmem_for_forks_takes_large_pages)
{
	skip_without_procmem();
	struct ch__pool_config config = rig_config(pool_bytes);
	config.backend = CH_BACKEND_PROCMEM;
	config.is_for_forks = true;
	unsetenv("CODEHEAP_WX");
	struct pool_rig rig = rig_create(&config);
	struct ch__pool *pool = rig.pool;
	uintptr_t code = ch__pool_page_exec(pool, rig_take(&rig));
	CHECK_EQ((size_t)pool->pages_committed << pool->page_log2, CH__LARGE_CHUNK_BYTES);
	CHECK_EQ(pool->exec_base % CH__LARGE_CHUNK_BYTES, 0);
	CHECK_EQ((uintptr_t)pool->delta % CH__LARGE_CHUNK_BYTES, 0);
	/* A kernel without large pages marks neither view. */
	uint8_t *own = mmap(NULL, 2 * CH__LARGE_CHUNK_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS,
			    -1, 0);
	CHECK(own != MAP_FAILED);
	bool has_large = madvise(own, CH__LARGE_CHUNK_BYTES, MADV_HUGEPAGE) == 0 &&
			 mapping_has_flag(own, " hg");
	CHECK_EQ(mapping_has_flag(ch__pool_read(pool, code), " hg"), has_large);
	CHECK_EQ(mapping_has_flag((const void *)code, " hg"), has_large);
	CHECK(!mapping_has_flag((const void *)pool->runtime_exec, " hg"));
	rig_destroy(&rig);
}

#define TEST_PROCMEM(name)                                                                  \
	TEST_WITH(name, struct pool_rig, rig,                                               \
		  (skip_without_procmem(), create_as(CH_BACKEND_PROCMEM)), rig_destroy(&rig))

TEST_PROCMEM(procmem_has_no_other_address_of_its_code)
{
	uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
	rig_write(&rig, code, 1);
	check_mapping(code, "r-xp");
	check_mapping((uintptr_t)ch__pool_write(rig.pool, code), "rw-p");
	/* The written bytes are a copy; only a sync carries them over. */
	size_t bytes = ch__arch_constant_function_write(ch__pool_write(rig.pool, code), 2);
	CHECK_EQ(rig_call(code), 1);
	ch__pool_sync(rig.pool, code, bytes);
	CHECK_EQ(rig_call(code), 2);
	check_mapping(code, "r-xp");
}

TEST(words_beside_a_pool_of_procmem_go_with_it)
{
	skip_without_procmem();
	struct pool_rig rig = create_as(CH_BACKEND_PROCMEM);
	const void *words = (const void *)rig.pool->inner->views.is_own;
	CHECK(ch__os_is_readable(words));
	rig_destroy(&rig);
	CHECK(!ch__os_is_readable(words));
}

/* A branch leads by a word in the copy. Nobody knows where the copy of another heap lies. */
TEST(views_of_procmem_are_within_reach_of_a_lead_at_a_random_distance)
{
	skip_without_procmem();
	struct ch__pool_config config = rig_config(pool_bytes);
	config.backend = CH_BACKEND_PROCMEM;
	config.near_address = 0x200000000000;
	unsetenv("CODEHEAP_WX");
	ptrdiff_t delta = 0;
	bool is_random = false;
	for (int i = 0; i < 4; i++) {
		struct pool_rig rig = rig_create(&config);
		CHECK(ch__arch_lead_reaches((ptrdiff_t)rig.pool->delta));
		is_random |= delta && rig.pool->delta != delta;
		delta = rig.pool->delta;
		rig_destroy(&rig);
	}
	CHECK(is_random || CH_TSAN);
}

/* --- memory in use --- */

TEST_PROCMEM(write_of_what_is_there_keeps_pages_shared_procmem)
{
	enum { CHUNK_PAGES = 128 };
	struct ch__pool *pool = rig.pool;
	uint32_t pages = (uint32_t)(CHUNK_PAGES * 4096) >> pool->page_log2;
	uint32_t span = ch__pool_take_span(pool, pages, 0, CH__SPAN_CODE);
	CHECK(span != CH__PAGE_NONE);
	uintptr_t code = ch__pool_page_exec(pool, span);
	size_t bytes = (size_t)pages << pool->page_log2;
	CHECK(rig_copy_for_child(pool, true));
	pid_t pid = fork_child();
	if (pid == 0) {
		CHECK(ch__pool_fork_child(pool));
		ch__pool_sync(pool, code, bytes);
		if (private_kib(code, bytes) >= CHUNK_PAGES)
			FAIL("a write of what is there made %u KiB the child's own",
			     (unsigned)private_kib(code, bytes));
		_exit(0);
	}
	ch__pool_fork_parent(pool);
	expect_exit(pid, 0);
}

TEST_PROCMEM(chunks_that_are_given_up_have_no_memory_procmem)
{
	struct ch__pool *pool = rig.pool;
	size_t chunk_bytes = (size_t)1 << pool->chunk_log2;
	uintptr_t second = pool->exec_base + chunk_bytes;
	CHECK(pool->chunk_count > 1);
	uint32_t span = ch__pool_take_span(pool, pool->page_count, 0, CH__SPAN_CODE);
	CHECK_EQ(span, 0);
	CHECK(private_kib(second, chunk_bytes) > 0);
	ch__pool_release_span(pool, span);
	ch__pool_trim(pool);
	CHECK(!pool->inner->chunks[1].pages && !pool->inner->chunks[1].lingers);
	CHECK_EQ(private_kib(second, chunk_bytes), 0);
	/* The copy is one mapping: the first chunk stays, for the next block. */
	uintptr_t copy = (uintptr_t)ch__pool_write(pool, pool->exec_base);
	CHECK(private_kib(copy, pool_bytes) <= (chunk_bytes + pool->runtime_bytes) >> 10);
}

/* The page has three mappings, since a word was stored where threads may run the bytes. At the
 * limit the system takes execute access from the first two, and cannot split the last. */
static void lose_access_in_part(long left)
{
	enum { SPARE = 64, DATA = 1 };
	size_t system = ch__os_page_bytes();
	struct ch__pool_config config = rig_config(pool_bytes);
	config.backend = CH_BACKEND_PROCMEM;
	config.uses[DATA] = CH__PAGE_DATA;
	unsetenv("CODEHEAP_WX");
	struct pool_rig rig = rig_create(&config);
	/* The third: where pages are large, memory, and so a mapping, begins with the second. */
	for (int i = 0; i < 2; i++)
		(void)rig_take(&rig);
	uint32_t page = rig_take(&rig);
	uintptr_t at = ch__pool_page_exec(rig.pool, page) + system;
	CHECK(ch__pool_store(rig.pool, at, 0));
	ch__pool_poison(rig.pool, at, 8);
	/* The page is the first that is taken, and another the next. */
	uint32_t other = page;
	for (uint32_t taken = 3; taken < rig.pool->pages_committed; taken++)
		other = rig_take(&rig);
	ch__pool_retire_page(rig.pool, page);
	ch__pool_retire_page(rig.pool, other);
	uint8_t *spare = mmap(NULL, SPARE * system, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(spare != MAP_FAILED);
	for (int i = 0; i < SPARE; i += 2)
		CHECK_EQ(mprotect(spare + (size_t)i * system, system, PROT_NONE), 0);
	fill_maps(left);
	bool is_refused = ch__pool_take_page(rig.pool, DATA) == CH__PAGE_NO_ACCESS;
	bool is_again = ch__pool_take_page(rig.pool, DATA) == CH__PAGE_NO_ACCESS;
	if (!is_refused || !is_again)
		_exit(4);
	CHECK(rig.pool->inner->spans_retired <= 1);
	CHECK_EQ(munmap(spare, SPARE * system), 0);
	CHECK(rig_retry_retired(rig.pool));
	for (uint32_t taken = CH__PAGE_NONE; taken != page;) {
		taken = rig_take(&rig);
		uintptr_t code = rig_reserve(&rig, taken, 16);
		rig_write(&rig, code, 22);
		CHECK_EQ(rig_call(code), 22);
	}
	rig_check(&rig);
	_exit(3);
}

TEST(page_that_kept_a_part_of_its_execute_access_gets_all_back_procmem)
{
	skip_without_procmem();
	if (TEST_SANITIZED)
		skip("a sanitizer maps memory of its own");
	if (3 * ch__os_page_bytes() > rig_config(0).page_bytes)
		skip("a page of the pool has no place for three mappings");
	bool is_refused = false;
	for (long left = 0; left < 4; left++) {
		int status;
		pid_t child = fork_child();
		if (child == 0)
			lose_access_in_part(left);
		CHECK_EQ(waitpid(child, &status, 0), child);
		CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 3 || WEXITSTATUS(status) == 4));
		is_refused |= WEXITSTATUS(status) == 3;
	}
	CHECK(is_refused);
}

TEST_PROCMEM(code_that_is_refused_its_place_leaves_no_mapping_procmem)
{
	enum { TIMES = 64, BYTES = 1 << 20, THE_MOVE = 3 };
	uint32_t first =
		ch__pool_take_span(rig.pool, BYTES >> rig.pool->page_log2, 0, CH__SPAN_IN_PLACE);
	CHECK(first < CH__PAGE_NO_ACCESS);
	size_t before = mapped_bytes();
	for (int i = 0; i < TIMES; i++) {
		ch__os_fail_at(THE_MOVE, true);
		CHECK(!ch__pool_land_span(rig.pool, first, 0));
		ch__os_fail_at(0, false);
	}
	CHECK(mapped_bytes() < before + TIMES / 4 * BYTES);
	CHECK(ch__pool_land_span(rig.pool, first, 0));
}

/* --- extent of a write --- */

enum { WORDS = 8 };
struct words {
	struct ch__pool *pool;
	uintptr_t at;
	uint64_t before[WORDS], after[WORDS];
};

static void fill_words(struct words *w, const uint64_t *values)
{
	memcpy(ch__pool_write(w->pool, w->at), values, sizeof w->before);
}

/* In the running code exactly the words between `from` and `to` must be new. */
static void expect_written(const struct words *w, size_t from, size_t to)
{
	for (size_t i = 0; i < WORDS; i++) {
		bool is_new = i * 8 < to && (i + 1) * 8 > from;
		if (((const volatile uint64_t *)w->at)[i] != (is_new ? w->after : w->before)[i])
			FAIL("word %zu, of a sync from %zu to %zu", i, from, to);
	}
}

/* Neighbours of the synced words may be half written; their writer syncs them later. */
TEST_PROCMEM(sync_carries_over_the_words_that_it_touches_and_no_others)
{
	struct words w = {.pool = rig.pool};
	w.at = (rig_reserve(&rig, rig_take(&rig), sizeof w.before + 8) + 7) & ~(uintptr_t)7;
	for (size_t i = 0; i < WORDS; i++)
		w.before[i] = (w.after[i] = UINT64_C(0x1111111111111111) * (i + 1)) ^ 1;
	for (size_t from = 0; from < sizeof w.before; from += 3)
		for (size_t to = from + 1; to <= sizeof w.before; to += 5) {
			fill_words(&w, w.before);
			ch__pool_sync(w.pool, w.at, sizeof w.before);
			expect_written(&w, 0, 0);
			fill_words(&w, w.after);
			ch__pool_sync(w.pool, w.at + from, to - from);
			expect_written(&w, from, to);
		}
}

static void nothing_between(const void *to)
{
	(void)to;
}

/* A kernel may take fewer bytes than given. */
TEST_PROCMEM(what_is_carried_over_in_pieces_is_whole)
{
	struct words w = {.pool = rig.pool};
	w.at = (rig_reserve(&rig, rig_take(&rig), sizeof w.before + 8) + 7) & ~(uintptr_t)7;
	for (size_t i = 0; i < WORDS; i++)
		w.before[i] = (w.after[i] = UINT64_C(0x0123456789abcdef) * (i + 1)) ^ 1;
	fill_words(&w, w.after);
	ch__os_pretended.between_bytes = nothing_between;
	ch__pool_sync(w.pool, w.at, sizeof w.after);
	ch__os_pretended.between_bytes = NULL;
	expect_written(&w, 0, sizeof w.after);
}

/* --- the file --- */

static int file_of(const struct pool_rig *rig)
{
	return atomic_load(&rig->pool->inner->views.file.fd);
}

/* Closes the library's file, as a host that closes all descriptors does. If `other` names a file,
 * puts that file at the number. */
static int lose_file(const struct pool_rig *rig, const char *other)
{
	int fd = file_of(rig);
	CHECK_EQ(close(fd), 0);
	if (other) {
		int opened = open(other, O_RDWR);
		CHECK(opened >= 0);
		CHECK_EQ(dup2(opened, fd), fd);
		if (opened != fd)
			close(opened);
	}
	return fd;
}

TEST_PROCMEM(lost_file_is_opened_again)
{
	static const char *const others[] = {NULL, "/dev/null", "/dev/zero"};
	uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
	for (uint32_t i = 0; i < sizeof others / sizeof *others; i++) {
		int fd = lose_file(&rig, others[i]);
		rig_write(&rig, code, 10 + i);
		if (rig_call(code) != 10 + i)
			FAIL("a write went to a file that is not the process's memory");
		CHECK(!others[i] || fcntl(fd, F_GETFD) >= 0);
	}
}

/* CRIU 3.17 restores a process without the advice, and with another file at the number. */
TEST_PROCMEM(child_of_a_process_that_was_restored_writes_its_own_memory)
{
	uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
	void *words = (void *)rig.pool->inner->views.is_own;
	CHECK_EQ(madvise(words, ch__os_page_bytes(), MADV_KEEPONFORK), 0);
	lose_file(&rig, NULL);
	rig_write(&rig, code, 5);
	pid_t pid = fork_child();
	if (pid == 0) {
		rig_write(&rig, code, 6);
		_exit(rig_call(code) != 6);
	}
	expect_exit(pid, 0);
	CHECK_EQ(rig_call(code), 5);
}

/* The thread that opens the file may be stopped by a collection that writes code. The case takes
 * the word of the lock itself. */
TEST_PROCMEM(lost_file_is_awaited_from_no_thread)
{
	uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
	_Atomic(uint32_t) *word = &rig.pool->inner->views.opening->word;
	lose_file(&rig, NULL);
	unsigned files = open_files();
	atomic_store(word, CH__LOCK_TAKEN);
	rig_write(&rig, code, 5);
	CHECK_EQ(rig_call(code), 5);
	CHECK_EQ(open_files(), files);
	atomic_store(word, CH__LOCK_FREE);
	rig_write(&rig, code, 6);
	CHECK_EQ(rig_call(code), 6);
}

static void make_code_alone(void)
{
	struct pool_rig rig = create_as(CH_BACKEND_PROCMEM);
	uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
	rig_write(&rig, code, 21);
	CHECK_EQ(rig_call(code), 21);
	rig_destroy(&rig);
}

TEST(pool_is_made_after_the_end_of_the_first_thread_procmem)
{
	skip_without_procmem();
	run_behind_first_thread(make_code_alone);
}

static unsigned open_descriptors(void)
{
	unsigned count = 0;
	for (int fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

/* Otherwise a server whose children fork again for each request would run out of descriptors. */
static void fork_with_as_many_descriptors(enum ch_backend backend)
{
	struct pool_rig rig = create_as(backend);
	rig_write(&rig, rig_reserve(&rig, rig_take(&rig), 16), 1);
	unsigned before = open_descriptors();
	CHECK(rig_copy_for_child(rig.pool, true));
	pid_t pid = fork_child();
	if (pid == 0) {
		CHECK(ch__pool_fork_child(rig.pool));
		rig_write(&rig, rig_reserve(&rig, rig_take(&rig), 16), 2);
		CHECK_EQ(open_descriptors(), before);
		_exit(0);
	}
	ch__pool_fork_parent(rig.pool);
	expect_exit(pid, 0);
	rig_destroy(&rig);
}

TEST(child_of_a_fork_closes_the_file_of_its_parent_s_memory)
{
	fork_with_as_many_descriptors(CH_BACKEND_MEMFD);
	skip_without_procmem();
	fork_with_as_many_descriptors(CH_BACKEND_PROCMEM);
}

/* Likewise memory must be born with traps: zeros execute. */
TEST(memory_is_born_with_traps_when_the_file_was_lost)
{
	static const char *const others[] = {NULL, "/dev/null"};
	skip_without_procmem();
	for (uint32_t i = 0; i < sizeof others / sizeof *others; i++) {
		struct pool_rig rig = create_as(CH_BACKEND_PROCMEM);
		lose_file(&rig, others[i]);
		uintptr_t code = ch__pool_page_exec(rig.pool, rig_take(&rig));
		if (!ch__arch_are_traps((const uint8_t *)code, 1024))
			FAIL("a new page can be executed and holds no traps: its file was lost");
		rig_destroy(&rig);
	}
}

/* A file of the program, if possible in a file system with offsets as high as addresses: there a
 * stray write to code would succeed, and show in the size. */
struct own_file {
	char path[40];
	struct stat before;
};

static struct own_file make_own_file(void)
{
	struct own_file own = {.path = "/dev/shm/codeheap-own-XXXXXX"};
	int fd = mkstemp(own.path);
	if (fd < 0) {
		memcpy(own.path, "/tmp/codeheap-own-XXXXXX", sizeof "/tmp/codeheap-own-XXXXXX");
		fd = mkstemp(own.path);
	}
	CHECK(fd >= 0);
	CHECK_EQ(fstat(fd, &own.before), 0);
	close(fd);
	return own;
}

/* The file must not be written, made longer or closed. */
static void check_own_file(const struct own_file *own, int fd)
{
	struct stat after;
	CHECK_EQ(fstat(fd, &after), 0);
	CHECK_EQ(after.st_ino, own->before.st_ino);
	if (after.st_size != own->before.st_size || after.st_blocks != own->before.st_blocks)
		FAIL("the library wrote to a file of the program's: %llu bytes in %llu blocks",
		     (unsigned long long)after.st_size, (unsigned long long)after.st_blocks);
	close(fd);
	CHECK_EQ(unlink(own->path), 0);
}

static void write_word(struct pool_rig *rig, uintptr_t code)
{
	ch__arch_constant_function_write(ch__pool_write(rig->pool, code), 2);
	ch__pool_sync(rig->pool, code & ~(uintptr_t)7, 8);
}
static void write_function(struct pool_rig *rig, uintptr_t code)
{
	rig_write(rig, code, 3);
}
static void take_chunk(struct pool_rig *rig, uintptr_t code)
{
	(void)code;
	uint32_t span = ch__pool_take_span(
		rig->pool, 2 * rig->pool->page_count / rig->pool->chunk_count, 0, CH__SPAN_CODE);
	CHECK(span != CH__PAGE_NONE);
	CHECK(ch__arch_are_traps((const uint8_t *)ch__pool_page_exec(rig->pool, span), 1024));
}

TEST(file_of_the_program_at_the_number_of_ours_is_left_alone)
{
	static void (*const ways[])(struct pool_rig *, uintptr_t) = {write_word, write_function,
								     take_chunk};
	skip_without_procmem();
	for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
		struct own_file own = make_own_file();
		struct pool_rig rig = create_as(CH_BACKEND_PROCMEM);
		uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
		rig_write(&rig, code, 1);
		int fd = lose_file(&rig, own.path);
		ways[i](&rig, code);
		CHECK(file_of(&rig) != fd);
		rig_destroy(&rig);
		check_own_file(&own, fd);
	}
}

/* A lost memfd is not opened again: calls that need the memfd are refused, and mappings stay. */
TEST(file_of_the_program_at_the_number_of_a_memfd_is_left_alone)
{
	struct own_file own = make_own_file();
	struct ch__pool_config config = rig_config(pool_bytes / 2);
	config.backend = CH_BACKEND_MEMFD;
	struct pool_rig rig = rig_create(&config);
	uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
	rig_write(&rig, code, 1);
	/* An emulator that remaps each page cannot write without the file. */
	bool is_remapped = (rig.pool->sync_steps & CH__SYNC_REMAP) != 0;
	int fd = lose_file(&rig, own.path);
	errno = 0;
	CHECK_EQ(ch__pool_take_span(rig.pool, 2 * rig.pool->page_count / rig.pool->chunk_count, 0,
				    CH__SPAN_CODE),
		 CH__PAGE_NONE);
	CHECK_EQ(errno, EBADF);
	CHECK_EQ(rig_call(code), 1);
	if (!is_remapped)
		rig_write(&rig, code, 2);
	rig_destroy(&rig);
	check_own_file(&own, fd);
}

/* The check looks at the running bytes, not only at the copy. */
TEST_PROCMEM(check_finds_free_code_that_is_no_trap)
{
	uint8_t zeros[CH__GRANULE_BYTES] = {0};
	char reason[160];
	uint32_t page = rig_take(&rig);
	uint8_t *free_code = (uint8_t *)rig_reserve(&rig, page, 16) + 16;
	CHECK(rig_is_sound(rig.pool, reason, sizeof reason));
	CHECK(ch__os_self_write(&rig.pool->inner->views.file, free_code, zeros, sizeof zeros));
	if (rig_is_sound(rig.pool, reason, sizeof reason))
		FAIL("free code that is no trap is not found");
	/* The sync makes the bytes equal to the copy. */
	ch__pool_sync(rig.pool, (uintptr_t)free_code, sizeof zeros);
}

/* --- exchanged pages --- */

enum { EXCHANGES = 40000, LOOKS = 500 };
struct exchange {
	struct ch__pool *pool;
	uintptr_t exchanged, published; /* words in the same page */
	_Atomic(uint32_t) count;
};

static void *exchange(void *arg)
{
	struct exchange *x = arg;
	for (uint64_t i = 0; i < EXCHANGES; i++) {
		uint64_t word = i * 0x0101010101010101;
		CHECK(ch__pool_store(x->pool, x->exchanged, word));
		CHECK_EQ(*(const volatile uint64_t *)x->exchanged, word);
		atomic_fetch_add(&x->count, 1);
	}
	return NULL;
}

/* The new page holds words that others published after the copy was made. */
TEST_PROCMEM(word_that_is_published_beside_an_exchange_of_its_page_is_there)
{
	uintptr_t at = rig_reserve(&rig, rig_take(&rig), 64) & ~(uintptr_t)7;
	struct exchange x = {.pool = rig.pool, .exchanged = at + 8, .published = at + 16};
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, exchange, &x), 0);
	for (uint64_t word = 1; atomic_load(&x.count) < EXCHANGES; word += 0x1234567) {
		uint64_t *write = (uint64_t *)(void *)ch__pool_lend(x.pool, x.published);
		__atomic_store_n(write, word, __ATOMIC_RELAXED);
		ch__pool_publish(x.pool, x.published, sizeof word);
		for (int looks = 0; looks < LOOKS; looks++)
			CHECK_EQ(*(const volatile uint64_t *)x.published, word);
	}
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

static _Atomic(int) publisher;
static _Atomic(bool) is_published;

static void *publish(void *arg)
{
	const struct exchange *x = arg;
	atomic_store(&publisher, (int)gettid());
	ch__pool_publish(x->pool, x->published, sizeof(uint64_t));
	atomic_store(&is_published, true);
	return NULL;
}

/* The exchange may have copied the page already. */
TEST_PROCMEM(word_waits_for_the_exchange_that_has_begun)
{
	uintptr_t at = rig_reserve(&rig, rig_take(&rig), 64) & ~(uintptr_t)7;
	struct exchange x = {.pool = rig.pool, .published = at + 16};
	_Atomic(uint32_t) *exchanges = rig.pool->inner->views.exchanges;
	pthread_t thread;
	*(uint64_t *)(void *)ch__pool_lend(x.pool, x.published) = 0x1234567;
	atomic_fetch_add(exchanges, 1);
	CHECK_EQ(pthread_create(&thread, NULL, publish, &x), 0);
	TEST_UNTIL(atomic_load(&is_published) ||
		   (atomic_load(&publisher) && thread_is_asleep(atomic_load(&publisher))))
		usleep(100);
	CHECK(!atomic_load(&is_published));
	CHECK(*(const volatile uint64_t *)x.published != 0x1234567);
	atomic_fetch_add(exchanges, 1);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(*(const volatile uint64_t *)x.published, 0x1234567);
}

/* --- when code can no longer be written --- */

static void write_without_file(void *arg)
{
	struct pool_rig *rig = arg;
	lose_file(rig, NULL);
	ch__os_fail_at(1, true);
	rig_write(rig, ch__pool_page_exec(rig->pool, 0), 2);
}

/* Otherwise the old code would run on. */
TEST_PROCMEM(write_that_the_system_refuses_ends_the_process)
{
	char text[400];
	uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
	rig_write(&rig, code, 1);
	expect_signal_text(write_without_file, &rig, SIGABRT, text, sizeof text);
	if (!strstr(text, "the system does not let code be written any more"))
		FAIL("the panic says \"%s\"", text);
	CHECK_EQ(rig_call(code), 1);
}

static void sync_two_pages(void *at)
{
	static struct ch__views views;
	(void)!ch__views_sync(&views, at, 2 * (size_t)sysconf(_SC_PAGESIZE));
}

/* On arm64, and in checked builds. */
TEST(sync_of_bytes_without_access_faults)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint8_t *at = mmap(NULL, 2 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED && mprotect(at + page, page, PROT_NONE) == 0);
	expect_signal(sync_two_pages, at, SIGSEGV);
}
