/* SPDX-License-Identifier: MIT
 * unit_pages_private.c: what procmem, the backend of private memory, promises beside what all do:
 * no second address of its code; a write that changes nothing costs nothing; a lost file is opened
 * again, and one that a program has at its number is left alone, on memfd too. */
#define _GNU_SOURCE
#include "pages/inner.h"
#include "tests/pool_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t pool_bytes = 8 << 20;

static struct pool_rig create_as(enum ch__backend backend)
{
	struct ch__pool_config config = rig_config(pool_bytes);
	config.backend = backend;
	unsetenv("CODEHEAP_WX");
	return rig_create(&config);
}

/* The protection of a mapping, and whether a file or shared memory is behind it; returns how many
 * mappings the process has. */
static unsigned check_mapping(uintptr_t at, const char *expected)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[500];
	bool is_found = false;
	unsigned count = 0;
	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		unsigned long low, high, offset, node;
		char seen[5];
		count++;
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
	return count;
}

TEST(procmem_has_no_other_address_of_its_code)
{
	skip_without_procmem();
	struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
	uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
	rig_write(&rig, code, 1);
	check_mapping(code, "r-xp");
	check_mapping((uintptr_t)ch__pool_write(rig.pool, code), "rw-p");
	/* What is written is a copy: only a sync carries it over. */
	size_t bytes = ch__arch_constant_function_write(ch__pool_write(rig.pool, code), 2);
	CHECK_EQ(rig_call(code), 1);
	ch__pool_sync(rig.pool, code, bytes);
	CHECK_EQ(rig_call(code), 2);
	check_mapping(code, "r-xp");
	rig_check(&rig);
	rig_destroy(&rig);
}

/* --- what is there already --- */

/* What of the range no other process shares, in KiB. */
static uint64_t private_dirty(uintptr_t from, size_t bytes)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	char line[500];
	bool is_ours = false;
	uint64_t sum = 0;
	CHECK(f);
	while (fgets(line, sizeof line, f)) {
		unsigned long low, high, kib;
		if (sscanf(line, "%lx-%lx ", &low, &high) == 2)
			is_ours = low < from + bytes && high > from;
		else if (is_ours && sscanf(line, "Private_Dirty: %lu kB", &kib) == 1)
			sum += kib;
	}
	fclose(f);
	return sum;
}

TEST(write_of_what_is_there_keeps_pages_shared_procmem)
{
	enum { CHUNK_PAGES = 128 };
	skip_without_procmem();
	struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
	struct ch__pool *pool = rig.pool;
	uint32_t pages = (uint32_t)(CHUNK_PAGES * 4096) >> pool->page_log2;
	uint32_t span = ch__pool_take_span(pool, pages, 0);
	CHECK(span != CH__PAGE_NONE);
	uintptr_t code = ch__pool_page_exec(pool, span);
	size_t bytes = (size_t)pages << pool->page_log2;
	CHECK(ch__pool_fork_prepare(pool, CH__FORK_COPY));
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(ch__pool_fork_child(pool));
		ch__pool_sync(pool, code, bytes);
		if (private_dirty(code, bytes) >= CHUNK_PAGES)
			FAIL("a write of what is there made %u KiB the child's own",
			     (unsigned)private_dirty(code, bytes));
		_exit(0);
	}
	ch__pool_fork_parent(pool);
	int status;
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	rig_destroy(&rig);
}

/* --- how far a write goes --- */

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

/* Where it runs, words from `from` to `to` are the new ones, and no others. */
static void expect_written(const struct words *w, size_t from, size_t to)
{
	for (size_t i = 0; i < WORDS; i++) {
		bool is_new = i * 8 < to && (i + 1) * 8 > from;
		if (((const volatile uint64_t *)w->at)[i] != (is_new ? w->after : w->before)[i])
			FAIL("word %zu, of a sync from %zu to %zu", i, from, to);
	}
}

/* Neighbours of what is synced may be half written, and are their writer's to sync. */
TEST(sync_carries_over_the_words_that_it_touches_and_no_others)
{
	skip_without_procmem();
	struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
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
	/* A live one of which one byte changes, too. */
	for (size_t from = 0; from < sizeof w.before; from += 8) {
		fill_words(&w, w.before);
		ch__pool_sync(w.pool, w.at, sizeof w.before);
		fill_words(&w, w.after);
		ch__pool_sync_live(w.pool, w.at + from, 8);
		expect_written(&w, from, from + 8);
	}
	rig_destroy(&rig);
}

/* --- the file --- */

static int file_of(const struct pool_rig *rig)
{
	return atomic_load(&rig->pool->inner->views.file.fd);
}

/* Closes the library's file as a host does that closes all descriptors, and has another file at its
 * number, be it by a path. */
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

TEST(lost_file_is_opened_again)
{
	static const char *const others[] = {NULL, "/dev/null", "/dev/zero"};
	skip_without_procmem();
	struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
	uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
	for (uint32_t i = 0; i < sizeof others / sizeof *others; i++) {
		int fd = lose_file(&rig, others[i]);
		rig_write(&rig, code, 10 + i);
		if (rig_call(code) != 10 + i)
			FAIL("a write went to a file that is not the process's memory");
		CHECK(!others[i] || fcntl(fd, F_GETFD) >= 0);
	}
	rig_check(&rig);
	rig_destroy(&rig);
}

/* The same when memory is born: it would be zeros, which execute. */
TEST(memory_is_born_with_traps_when_the_file_was_lost)
{
	static const char *const others[] = {NULL, "/dev/null"};
	skip_without_procmem();
	for (uint32_t i = 0; i < sizeof others / sizeof *others; i++) {
		struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
		lose_file(&rig, others[i]);
		uintptr_t code = ch__pool_page_exec(rig.pool, rig_take(&rig));
		if (!ch__arch_are_traps((const uint8_t *)code + CH__PAGE_HEADER_BYTES, 1024))
			FAIL("a new page can be executed and holds no traps: its file was lost");
		rig_check(&rig);
		rig_destroy(&rig);
	}
}

/* A file of the program's, in a file system whose files have bytes at our addresses, too, if there
 * is one: it would take all that is written to code. */
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

/* Neither written, nor made longer, nor closed. */
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
	ch__pool_sync_live(rig->pool, code & ~(uintptr_t)7, 8);
}
static void write_function(struct pool_rig *rig, uintptr_t code)
{
	rig_write(rig, code, 3);
}
static void take_chunk(struct pool_rig *rig, uintptr_t code)
{
	(void)code;
	uint32_t span = ch__pool_take_span(
		rig->pool, 2 * rig->pool->page_count / rig->pool->chunk_count, 0);
	CHECK(span != CH__PAGE_NONE);
	CHECK(ch__arch_are_traps(
		(const uint8_t *)ch__pool_page_exec(rig->pool, span) + CH__PAGE_HEADER_BYTES,
		1024));
}

TEST(file_of_the_program_at_the_number_of_ours_is_left_alone)
{
	static void (*const ways[])(struct pool_rig *, uintptr_t) = {write_word, write_function,
								     take_chunk};
	skip_without_procmem();
	for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
		struct own_file own = make_own_file();
		struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
		uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
		rig_write(&rig, code, 1);
		int fd = lose_file(&rig, own.path);
		ways[i](&rig, code);
		CHECK(file_of(&rig) != fd);
		rig_check(&rig);
		rig_destroy(&rig);
		check_own_file(&own, fd);
	}
}

/* A memfd is gone for good with its number: what needs it is refused, and what is mapped stays. */
TEST(file_of_the_program_at_the_number_of_a_memfd_is_left_alone)
{
	struct own_file own = make_own_file();
	struct ch__pool_config config = rig_config(pool_bytes / 2);
	config.backend = CH__BACKEND_MEMFD;
	struct pool_rig rig = rig_create(&config);
	uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
	rig_write(&rig, code, 1);
	/* An emulator that needs each page mapped again has no way to write without the file. */
	bool is_remapped = (rig.pool->sync_steps & CH__SYNC_REMAP) != 0;
	int fd = lose_file(&rig, own.path);
	errno = 0;
	CHECK_EQ(ch__pool_take_span(rig.pool, 2 * rig.pool->page_count / rig.pool->chunk_count, 0),
		 CH__PAGE_NONE);
	CHECK_EQ(errno, EBADF);
	CHECK_EQ(rig_call(code), 1);
	if (!is_remapped)
		rig_write(&rig, code, 2);
	rig_check(&rig);
	rig_destroy(&rig);
	check_own_file(&own, fd);
}

/* The check looks at what would run, not only at what it is written from. */
TEST(check_finds_free_code_that_is_no_trap)
{
	skip_without_procmem();
	struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
	uint8_t zeros[CH__GRANULE_BYTES] = {0};
	char reason[160];
	uint32_t page = rig_take(&rig);
	uint8_t *free_code = (uint8_t *)rig_reserve(&rig, page, 16) + 16;
	CHECK(ch__pool_check(rig.pool, reason, sizeof reason));
	CHECK(ch__os_self_write(&rig.pool->inner->views.file, free_code, zeros, sizeof zeros));
	if (ch__pool_check(rig.pool, reason, sizeof reason))
		FAIL("free code that is no trap is not found");
	/* As the copy says. */
	ch__pool_sync(rig.pool, (uintptr_t)free_code, sizeof zeros);
	rig_check(&rig);
	rig_destroy(&rig);
}

/* A patch is a word of 8: half of one is never seen. */
static _Atomic(bool) is_over;
static _Atomic(uint64_t) torn, reads;

static void *read_word(void *at)
{
	const volatile uint64_t *word = at;
	while (!atomic_load(&is_over))
		for (int i = 0; i < 1000; i++) {
			uint64_t seen = *word;
			if (seen != UINT64_C(0x1111111111111111) &&
			    seen != UINT64_C(0x2222222222222222))
				atomic_fetch_add(&torn, 1);
			atomic_fetch_add_explicit(&reads, 1, memory_order_relaxed);
		}
	return NULL;
}

TEST(word_of_8_is_seen_whole)
{
	skip_without_procmem();
	struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
	uintptr_t code = rig_reserve(&rig, rig_take(&rig), 64) & ~(uintptr_t)7;
	uint64_t *write = (uint64_t *)(void *)ch__pool_write(rig.pool, code);
	pthread_t reader;
	*write = UINT64_C(0x1111111111111111);
	ch__pool_sync(rig.pool, code, 8);
	CHECK_EQ(pthread_create(&reader, NULL, read_word, (void *)code), 0);
	while (!atomic_load(&reads))
		;
	/* A write waits for the other core to forget its page: long where that is kept waiting. */
	uint64_t end = now_ns() + UINT64_C(5000000000);
	for (uint32_t i = 0; i < 100000 && now_ns() < end; i++) {
		*write = i % 2 ? UINT64_C(0x1111111111111111) : UINT64_C(0x2222222222222222);
		ch__pool_sync_live(rig.pool, code, 8);
	}
	atomic_store(&is_over, true);
	CHECK_EQ(pthread_join(reader, NULL), 0);
	if (atomic_load(&torn))
		FAIL("half of a word that was written as a file was seen");
	rig_destroy(&rig);
}

struct neighbour {
	struct ch__pool *pool;
	uintptr_t code; /* a word of the page that is replaced */
	_Atomic(uint64_t) rounds, replaced;
	_Atomic(int) thread_id;
	uint64_t lost;
};

/* As who compiles beside code that is patched: what was synced stays, whatever is replaced then. */
static void *write_beside(void *arg)
{
	struct neighbour *n = arg;
	uint64_t *write = (uint64_t *)(void *)ch__pool_write(n->pool, n->code);
	const volatile uint64_t *exec = (const volatile uint64_t *)n->code;
	while (!atomic_load(&is_over)) {
		uint64_t round = atomic_fetch_add(&n->rounds, 1) + 1;
		*write = round;
		for (volatile uint64_t i = 0; i < round * 37 % 4000; i = i + 1)
			;
		ch__pool_sync(n->pool, n->code, 8);
		uint64_t replaced = atomic_load(&n->replaced);
		while (atomic_load(&n->replaced) == replaced && !atomic_load(&is_over))
			;
		n->lost += *exec != round;
	}
	return NULL;
}

TEST(word_beside_one_that_runs_is_kept)
{
	skip_without_procmem();
	struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
	uintptr_t code = (rig_reserve(&rig, rig_take(&rig), 64) + 8) & ~(uintptr_t)7;
	uint64_t *write = (uint64_t *)(void *)ch__pool_write(rig.pool, code);
	struct neighbour beside = {.pool = rig.pool, .code = code + 16};
	pthread_t writer;
	CHECK_EQ(pthread_create(&writer, NULL, write_beside, &beside), 0);
	uint64_t end = now_ns() + UINT64_C(1000000000);
	for (uint64_t i = 1; now_ns() < end || !atomic_load(&beside.rounds); i++) {
		*write = i * UINT64_C(0x0101010101010101);
		ch__pool_sync_live(rig.pool, code, 8);
		CHECK_EQ(*(const volatile uint64_t *)code, *write);
		atomic_fetch_add(&beside.replaced, 1);
		for (volatile uint64_t k = 0; k < 10000; k = k + 1)
			; /* or the other thread would never get the lock of the mappings */
	}
	atomic_store(&is_over, true);
	CHECK_EQ(pthread_join(writer, NULL), 0);
	CHECK_EQ(beside.lost, 0);
	rig_destroy(&rig);
}

/* What the linker leads through here (--wrap): the page is replaced while a word is written. */
static _Atomic(uint32_t) *replaced_by_write;
static unsigned writes_seen;

bool __real_ch__os_self_write(const struct ch__os_held *, void *, const void *, size_t);
bool __wrap_ch__os_self_write(const struct ch__os_held *, void *, const void *, size_t);
bool __wrap_ch__os_self_write(const struct ch__os_held *file, void *to, const void *from,
			      size_t bytes)
{
	bool is_written = __real_ch__os_self_write(file, to, from, bytes);
	_Atomic(uint32_t) *replaced = replaced_by_write;
	writes_seen++;
	replaced_by_write = NULL;
	if (replaced)
		atomic_fetch_add(replaced, 2);
	return is_written;
}

TEST(word_is_written_again_where_its_page_was_replaced_meanwhile)
{
	skip_without_procmem();
	struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
	uintptr_t code = (rig_reserve(&rig, rig_take(&rig), 64) + 8) & ~(uintptr_t)7;
	uint64_t *write = (uint64_t *)(void *)ch__pool_write(rig.pool, code);
	*write = 1;
	writes_seen = 0;
	ch__pool_sync(rig.pool, code, 8);
	CHECK_EQ(writes_seen, 1);
	*write = 2;
	writes_seen = 0;
	replaced_by_write = rig.pool->inner->views.replaced;
	ch__pool_sync(rig.pool, code, 8);
	CHECK_EQ(writes_seen, 2);
	CHECK_EQ(*(const volatile uint64_t *)code, 2);
	rig_destroy(&rig);
}

/* The system may store a word byte by byte: more than one that changes is never left to it. */
TEST(patch_of_two_bytes_replaces_its_page_and_of_one_does_not)
{
	skip_without_procmem();
	struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
	uintptr_t code = rig_reserve(&rig, rig_take(&rig), 64) & ~(uintptr_t)7;
	_Atomic(uint32_t) *replaced = rig.pool->inner->views.replaced;
	uint8_t *write = ch__pool_write(rig.pool, code);
	memset(write, 0x11, 8);
	ch__pool_sync(rig.pool, code, 8);
	uint32_t before = atomic_load(replaced);
	write[3] = 0x22;
	ch__pool_sync_live(rig.pool, code, 8);
	CHECK_EQ(atomic_load(replaced), before);
	write[3] = write[4] = 0x33;
	ch__pool_sync_live(rig.pool, code, 8);
	CHECK_EQ(atomic_load(replaced), before + 2);
	CHECK_EQ(memcmp((const void *)code, write, 8), 0);
	rig_destroy(&rig);
}

static void *write_once(void *arg)
{
	struct neighbour *n = arg;
	atomic_store(&n->thread_id, ch__os_thread_id());
	*(uint64_t *)(void *)ch__pool_write(n->pool, n->code) = 7;
	ch__pool_sync(n->pool, n->code, 8);
	atomic_fetch_add(&n->rounds, 1);
	return NULL;
}

TEST(write_waits_while_a_page_is_replaced)
{
	skip_without_procmem();
	struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
	struct neighbour beside = {.pool = rig.pool};
	_Atomic(uint32_t) *replaced = rig.pool->inner->views.replaced;
	beside.code = (rig_reserve(&rig, rig_take(&rig), 64) + 8) & ~(uintptr_t)7;
	pthread_t writer;
	atomic_fetch_add(replaced, 1);
	CHECK_EQ(pthread_create(&writer, NULL, write_once, &beside), 0);
	while (!atomic_load(&beside.rounds) && !thread_is_asleep(atomic_load(&beside.thread_id)))
		usleep(1000);
	CHECK_EQ(atomic_load(&beside.rounds), 0);
	atomic_fetch_add(replaced, 1);
	ch__os_futex_wake(replaced);
	CHECK_EQ(pthread_join(writer, NULL), 0);
	CHECK_EQ(*(const volatile uint64_t *)beside.code, 7);
	rig_destroy(&rig);
}

/* A page that cannot be replaced is not patched; nothing stays mapped of the try. */
TEST(page_is_not_made_ready_where_the_system_gives_none)
{
	skip_without_procmem();
	struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
	uintptr_t code = (rig_reserve(&rig, rig_take(&rig), 64) + 8) & ~(uintptr_t)7;
	uint64_t *write = (uint64_t *)(void *)ch__pool_write(rig.pool, code);
	struct rlimit room, none;
	CHECK_EQ(getrlimit(RLIMIT_AS, &room), 0);
	none = (struct rlimit){.rlim_cur = 1, .rlim_max = room.rlim_max};
	for (uint64_t i = 1; i < 4; i++) {
		unsigned maps = check_mapping(code, "r-xp");
		uint64_t before = *(const volatile uint64_t *)code;
		CHECK_EQ(setrlimit(RLIMIT_AS, &none), 0);
		errno = 0;
		bool is_ready = ch__pool_patch_ready(rig.pool, code);
		int error = errno;
		CHECK_EQ(setrlimit(RLIMIT_AS, &room), 0);
		CHECK(!is_ready);
		CHECK_EQ(error, ENOMEM);
		CHECK_EQ(*(const volatile uint64_t *)code, before);
		CHECK_EQ(check_mapping(code, "r-xp"), maps);
	}
	CHECK(ch__pool_patch_ready(rig.pool, code));
	*write = UINT64_C(0x0101010101010101);
	ch__pool_sync_live(rig.pool, code, 8);
	CHECK_EQ(*(const volatile uint64_t *)code, *write);
	rig_destroy(&rig);
}

/* What is done to the word of these cases is seen between any two bytes that are stored. */
static const volatile uint64_t *watched;
static uint64_t old_word, new_word, stores;

static void watch(const void *to)
{
	if ((uintptr_t)to - (uintptr_t)watched < 8)
		stores++;
	if (*watched != old_word && *watched != new_word)
		FAIL("half of a word that may run is seen");
}

static void take_every_mapping(void)
{
	fill_maps(40);
	while (map_one())
		continue;
}

static void patch_at_the_limit(void *arg)
{
	(void)arg;
	struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
	uintptr_t code = (rig_reserve(&rig, rig_take(&rig), 64) + 8) & ~(uintptr_t)7;
	uintptr_t other = (rig_reserve(&rig, rig_take(&rig), 64) + 8) & ~(uintptr_t)7;
	uint64_t *write = (uint64_t *)(void *)ch__pool_write(rig.pool, code);
	CHECK(ch__pool_patch_ready(rig.pool, code));
	take_every_mapping();
	CHECK(!ch__pool_patch_ready(rig.pool, other));
	watched = (const volatile uint64_t *)code;
	ch__os_pretended.between_bytes = watch;
	/* A patch is a call for each byte of a page. */
	for (uint64_t i = 1; i < 800000 / ch__os_page_bytes(); i++) {
		old_word = *watched;
		new_word = *write = i * UINT64_C(0x0101010101010101);
		ch__pool_sync_live(rig.pool, code, 8);
		CHECK_EQ(*watched, new_word);
	}
	CHECK_EQ(stores, 0);
	ch__os_pretended.between_bytes = NULL;
	CHECK(ch__pool_patch_ready(rig.pool, code));
}

/* In a child, which has the limit for itself. */
TEST(word_of_a_ready_page_is_patched_whole_at_the_limit_of_mappings)
{
	skip_without_procmem();
	if (TEST_SANITIZED)
		skip("a sanitizer maps memory of its own");
	expect_signal(patch_at_the_limit, NULL, 0);
}

/* Takes what comes free within a patch, and keeps it. */
static unsigned taken, taken_at_most;

static void take_what_comes_free(const void *to)
{
	(void)to;
	while (taken < taken_at_most && map_one())
		taken++;
}

static void patch_beside_who_keeps(void *arg)
{
	(void)arg;
	struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
	uintptr_t code = (rig_reserve(&rig, rig_take(&rig), 64) + 8) & ~(uintptr_t)7;
	uint64_t *write = (uint64_t *)(void *)ch__pool_write(rig.pool, code);
	CHECK(ch__pool_patch_ready(rig.pool, code));
	take_every_mapping();
	ch__os_pretended.between_bytes = take_what_comes_free;
	for (uint64_t i = 1; i < 10; i++) {
		taken_at_most = i < 5 ? 10 * (unsigned)i : 40;
		*write = i * UINT64_C(0x0101010101010101);
		ch__pool_sync_live(rig.pool, code, 8);
		CHECK_EQ(*(const volatile uint64_t *)code, *write);
	}
	CHECK_EQ(taken, 40);
	ch__os_pretended.between_bytes = NULL;
}

TEST(word_of_a_ready_page_is_patched_where_others_take_forty_mappings_for_good)
{
	skip_without_procmem();
	if (TEST_SANITIZED)
		skip("a sanitizer maps memory of its own");
	expect_signal(patch_beside_who_keeps, NULL, 0);
}

/* As above, and other threads take what comes free, and give it back. */
static _Atomic(bool) is_enough;

static void *take_and_give(void *arg)
{
	while (!atomic_load(&is_enough)) {
		void *spares[40];
		unsigned n = 0;
		while (n < 40 && (spares[n] = map_one()))
			n++;
		while (n)
			unmap_one(spares[--n]);
	}
	return arg;
}

static void patch_beside_the_hungry(void *arg)
{
	(void)arg;
	struct pool_rig rig = create_as(CH__BACKEND_PROCMEM);
	uintptr_t code = (rig_reserve(&rig, rig_take(&rig), 64) + 8) & ~(uintptr_t)7;
	uint64_t *write = (uint64_t *)(void *)ch__pool_write(rig.pool, code);
	pthread_t hungry;
	CHECK(ch__pool_patch_ready(rig.pool, code));
	fill_maps(60);
	CHECK_EQ(pthread_create(&hungry, NULL, take_and_give, NULL), 0);
	while (map_one())
		continue;
	for (uint64_t i = 1; i < 200; i++) {
		*write = i * UINT64_C(0x0101010101010101);
		ch__pool_sync_live(rig.pool, code, 8);
		CHECK_EQ(*(const volatile uint64_t *)code, *write);
	}
	atomic_store(&is_enough, true);
	CHECK_EQ(pthread_join(hungry, NULL), 0);
}

TEST(word_of_a_ready_page_is_patched_beside_threads_that_take_every_mapping)
{
	skip_without_procmem();
	if (TEST_SANITIZED)
		skip("a sanitizer maps memory of its own");
	expect_signal(patch_beside_the_hungry, NULL, 0);
}
