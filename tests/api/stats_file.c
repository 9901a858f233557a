/* SPDX-License-Identifier: MIT
 * stats_file.c: the statistics file says the same as ch_heap_stats, is never seen torn, and lies at
 * the requested path only. No disk, file or fork harms the VM. */
#define _GNU_SOURCE
#include "codeheap/base/heap.h"
#include "codeheap/base/park.h"
#include "observe/stats_walk.h"
#include "tests/support/heap_rig.h"
#include "tests/support/stats_reader.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char folder[] = "/tmp/ch-stats-XXXXXX";
static bool has_folder;
static char path[128];

static const char *in_folder(const char *name)
{
	if (!has_folder)
		CHECK(mkdtemp(folder) != NULL);
	has_folder = true;
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return path;
}

static unsigned files_in_folder(bool are_removed)
{
	unsigned count = 0;
	DIR *dir = opendir(folder);
	for (struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir)) {
		if (entry->d_name[0] == '.')
			continue;
		count++;
		if (are_removed)
			CHECK_EQ(unlinkat(dirfd(dir), entry->d_name, 0), 0);
	}
	if (dir)
		closedir(dir);
	return count;
}

static void remove_folder(void)
{
	files_in_folder(true);
	CHECK_EQ(rmdir(folder), 0);
}

static struct rig start_with(size_t pool_bytes, const char *pattern)
{
	struct ch_config config = rig_config(pool_bytes);
	unsetenv("CODEHEAP_STATS");
	config.stats_file = pattern;
	return rig_create(&config, NULL, NULL);
}

/* The kernel may know a thread for a moment after the join. */
static void expect_no_writing_threads(void)
{
	while (stats_threads(NULL))
		usleep(1000);
}

/* Makes the thread write without a pause, so no case waits for a write. Otherwise a pause is at
 * least a hundred times the work of a write, which takes long on a busy machine. */
static void hurry(struct ch_heap *heap)
{
	atomic_store(ch__stats_file_period(heap->listeners), 0);
}

/* --- contents --- */

static void check_sums(const struct stats_image *image, uint64_t code_bytes, uint64_t page_bytes)
{
	struct ch__stats_section section;
	uint64_t by_owner = 0, by_block = 0, by_page = 0, by_part = 0;
	const struct ch__stats_kind *kind = stats_section(image, CH__STATS_OWNER_KINDS, &section);
	for (uint32_t i = 0; i < section.count; i++)
		by_owner += kind[i].live_bytes + kind[i].notentrant_bytes;
	kind = stats_section(image, CH__STATS_BLOCK_KINDS, &section);
	for (uint32_t i = 0; i < section.count; i++)
		by_block += kind[i].live_bytes + kind[i].notentrant_bytes;
	const struct ch__stats_page *page = stats_section(image, CH__STATS_PAGES, &section);
	for (uint32_t i = 0; i < section.count; i++) {
		uint64_t code =
			(uint64_t)page[i].hot_bytes + page[i].cold_bytes + page[i].notentrant_bytes;
		by_page += code;
		CHECK_EQ(code + page[i].dead_bytes + page[i].free_bytes,
			 page[i].pages * page_bytes);
		CHECK(i == 0 || page[i].page > page[i - 1].page);
	}
	const struct ch__stats_part *part = stats_section(image, CH__STATS_PARTS, &section);
	for (uint32_t i = 0; i < section.count; i++)
		if (part[i].bytes_kind >> CH__STATS_PART_SHIFT != CH__STATS_PART_DEAD)
			by_part += part[i].bytes_kind & ((1u << CH__STATS_PART_SHIFT) - 1);
	CHECK_EQ(by_owner, code_bytes);
	CHECK_EQ(by_block, code_bytes);
	CHECK_EQ(by_page, code_bytes);
	CHECK_EQ(by_part, code_bytes);
}

static void check_numbers(const struct stats_image *image, const struct ch_stats *stats)
{
#define X(name)                                                         \
	if (stats_number(image, #name) != stats->name)                  \
		FAIL(#name ": %llu in the file, %llu of ch_heap_stats", \
		     (unsigned long long)stats_number(image, #name),    \
		     (unsigned long long)stats->name);
	CH_STATS_LIST(X)
#undef X
	CHECK_STR(stats_text(image, "version"), stats->version);
	CHECK_STR(stats_text(image, "backend"), stats->backend);
	CHECK_STR(stats_text(image, "sinks"), "unwind");
}

static void fill(const struct rig *rig)
{
	static const char *const names[] = {"scm::one", "scm::two", "py::three",
					    "four",     ":five",    "::six"};
	for (unsigned i = 0; i < 6; i++) {
		struct ch_owner owner = rig_owner(rig, names[i]);
		struct ch_block block = {0}, hop;
		struct ch_branch branch;
		for (unsigned n = 0; n < 100 * (i + 1); n++)
			block = rig_block(owner, n);
		CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
		if (i < 2)
			CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
		rig_jumper(owner, NULL, &branch);
		CHECK_EQ(ch_trampoline_make(owner, CH_TRAMPOLINE_TAIL,
					    (const void *)(uintptr_t)rig_fallback, 0, NULL, NULL,
					    &hop),
			 CH_OK);
	}
}

#define TEST_FILE(name, pool_bytes)                                                   \
	TEST_WITH(name, struct rig, rig, start_with(pool_bytes, in_folder("file")),   \
		  (rig_end(&rig), remove_folder()))

TEST_FILE(file_says_at_rest_what_stats_say, 4 << 20)
{
	fill(&rig);
	hurry(rig.heap);
	struct stats_image *image = stats_read(path, 3);
	struct ch_stats stats = rig_stats(&rig);
	check_numbers(image, &stats);
	check_sums(image, stats.code_bytes_now, stats.page_bytes);
	CHECK_EQ(stats_kind(image, CH__STATS_OWNER_KINDS, "scm")->live_blocks, 100 + 200 + 4 - 2);
	CHECK_EQ(stats_kind(image, CH__STATS_OWNER_KINDS, "scm")->notentrant_blocks, 2);
	CHECK_EQ(stats_kind(image, CH__STATS_OWNER_KINDS, "py")->live_blocks, 302);
	CHECK_EQ(stats_kind(image, CH__STATS_OWNER_KINDS, "other")->live_blocks, 402 + 502 + 602);
	CHECK_EQ(stats_kind(image, CH__STATS_BLOCK_KINDS, "trampoline")->live_blocks, 6);
	CHECK_EQ(stats_kind(image, CH__STATS_BLOCK_KINDS, "data")->live_blocks, 0);
	CHECK_EQ(image->head.process, getpid());
	CHECK_EQ(image->head.heap, rig.heap->id);
	CHECK(!strncmp(stats_text(image, "process"), "api_stats_file", 14));
	free(image);
}

static void *build_kinds(void *arg)
{
	char name[20];
	for (int i = 0; i < 60; i++) {
		snprintf(name, sizeof name, "kind%d::x", i);
		rig_block(rig_owner(arg, name), 1);
	}
	rig_block(rig_owner(arg, "a name that is longer than a kind's may be::x"), 1);
	return NULL;
}

TEST_FILE(kinds_of_owners_are_bounded, 4 << 20)
{
	struct ch__stats_section section;
	build_kinds(&rig);
	hurry(rig.heap);
	struct stats_image *image = stats_read(path, 3);
	stats_section(image, CH__STATS_OWNER_KINDS, &section);
	CHECK_EQ(section.count, 32);
	CHECK_EQ(section.left_out, 0); /* the rest is one kind */
	(void)stats_section(image, CH__STATS_SAMPLES, &section);
	CHECK_EQ(section.left_out, 0);
	CHECK_EQ(stats_kind(image, CH__STATS_OWNER_KINDS, "other")->live_blocks, 60 - 31 + 1);
	CHECK_EQ(stats_kind(image, CH__STATS_OWNER_KINDS, "kind30")->live_blocks, 1);
	check_sums(image, rig_stats(&rig).code_bytes_now, rig_stats(&rig).page_bytes);
	free(image);
}

/* A block of several pages, code in place, and data in place. */
TEST_FILE(spans_and_data_are_listed_once, 16 << 20)
{
	struct ch_owner owner = rig_owner(&rig, "scm::large");
	for (int i = 0; i < 3; i++) {
		struct ch_code code;
		struct ch_open open = {.size = sizeof open,
				       .owner = owner,
				       .hot_bytes = 200000,
				       .flags = i ? CH_OPEN_IN_PLACE : 0,
				       .kind = i == 2 ? CH_KIND_DATA : CH_KIND_CODE};
		CHECK_EQ(ch_block_open(&open, &code), CH_OK);
		memset(code.write, 0, 200000);
		code.used_to = 200000;
		CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	}
	hurry(rig.heap);
	struct stats_image *image = stats_read(path, 3);
	struct ch__stats_section section;
	const struct ch__stats_page *page = stats_section(image, CH__STATS_PAGES, &section);
	CHECK_EQ(section.count, 3);
	for (int i = 0; i < 3; i++)
		CHECK(page[i].pages * rig_stats(&rig).page_bytes >= 200000 && page[i].blocks == 1);
	CHECK_EQ(stats_kind(image, CH__STATS_BLOCK_KINDS, "data")->live_blocks, 1);
	CHECK_EQ(stats_kind(image, CH__STATS_BLOCK_KINDS, "code")->live_blocks, 2);
	check_sums(image, rig_stats(&rig).code_bytes_now, rig_stats(&rig).page_bytes);
	free(image);
}

/* With more parts than room, the parts of a page are all there or all left out. */
TEST_FILE(parts_are_those_of_whole_pages, 4 << 20)
{
	enum { BLOCKS = 30000 };
	struct ch_owner owner = rig_owner(&rig, "scm::many");
	struct ch__stats_section section, listed;
	uint32_t whole = 0, blocks = 0;
	for (int i = 0; i < BLOCKS; i++)
		rig_block(owner, 1);
	hurry(rig.heap);
	struct stats_image *image = stats_read(path, 3);
	uint64_t page_bytes = rig_stats(&rig).page_bytes;
	const struct ch__stats_page *page = stats_section(image, CH__STATS_PAGES, &section);
	const struct ch__stats_part *part = stats_section(image, CH__STATS_PARTS, &listed);
	for (uint32_t i = 0; i < section.count; i++) {
		uint64_t bytes = 0;
		for (uint32_t p = 0; p < listed.count; p++)
			if (part[p].offset / page_bytes == page[i].page)
				bytes += part[p].bytes_kind & ((1u << CH__STATS_PART_SHIFT) - 1);
		if (bytes)
			CHECK_EQ(bytes, page[i].hot_bytes);
		CHECK(!bytes || whole == i); /* the first pages are listed */
		whole += bytes > 0;
		blocks += page[i].blocks;
	}
	CHECK_EQ(blocks, BLOCKS);
	CHECK_EQ(listed.count + listed.left_out, BLOCKS);
	CHECK(whole > 0 || page_bytes > 1 << 16);
	CHECK(whole < section.count && listed.left_out > 0);
	free(image);
}

TEST_FILE(pauses_and_samples_are_the_last_ones, 1 << 20)
{
	hurry(rig.heap);
	for (int i = 0; i < 40; i++)
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	struct stats_image *image = stats_read(path, 70);
	struct ch__stats_section section;
	const struct ch__stats_pause *pause = stats_section(image, CH__STATS_PAUSES, &section);
	CHECK_EQ(section.count, CH__STATS_PAUSES_MOST - 1);
	CHECK_EQ(pause[CH__STATS_PAUSES_MOST - 2].ns, rig_stats(&rig).pause_ns_last);
	for (uint32_t i = 1; i < section.count; i++)
		CHECK(pause[i].at_ns > pause[i - 1].at_ns && pause[i].ns > 0);
	const struct ch__stats_sample *sample = stats_section(image, CH__STATS_SAMPLES, &section);
	CHECK_EQ(section.count, 64);
	for (uint32_t i = 1; i < section.count; i++)
		CHECK(sample[i].at_ns > sample[i - 1].at_ns);
	CHECK_EQ(sample[63].cycles, rig_stats(&rig).cycles);
	/* The oldest go. */
	struct stats_image *later = stats_read(path, 64);
	const struct ch__stats_sample *oldest = stats_section(later, CH__STATS_SAMPLES, &section);
	CHECK(oldest->at_ns > sample[63].at_ns);
	free(later);
	free(image);
}

/* --- never torn --- */

static _Atomic(bool) is_over;

static void *read_on(void *arg)
{
	struct stats_image *image = malloc(sizeof *image);
	_Atomic(uint64_t) *reads = arg;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(image && fd >= 0);
	while (!atomic_load(&is_over)) {
		if (!stats_try(fd, image))
			continue;
		if (!stats_is_whole(image))
			FAIL("torn at sequence %llu", (unsigned long long)image->head.sequence);
		atomic_fetch_add(reads, 1);
	}
	close(fd);
	free(image);
	return NULL;
}

TEST_FILE(readers_see_whole_states_of_a_heap_at_work, 1 << 20)
{
	_Atomic(uint64_t) reads = 0;
	uint64_t start = now_ns();
	pthread_t reader;
	free(stats_read(path, 1));
	hurry(rig.heap);
	CHECK_EQ(pthread_create(&reader, NULL, read_on, &reads), 0);
	struct ch_owner owner = rig_owner(&rig, "scm::storm");
	/* On a busy machine the reader comes late. */
	while (now_ns() - start < UINT64_C(1000000) * storm_ms() || atomic_load(&reads) <= 100) {
		for (int i = 0; i < 300; i++)
			rig_block(owner, 7);
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	}
	atomic_store(&is_over, true);
	ch_thread_park();
	pthread_join(reader, NULL);
	ch_thread_unpark();
	printf("# %llu reads\n", (unsigned long long)atomic_load(&reads));
}

/* --- name and end of the file --- */

TEST(file_is_marked_as_ended_and_stays)
{
	struct rig rig = start_with(1 << 20, in_folder("file.%p")), second;
	char first[128], number[128];
	snprintf(first, sizeof first, "%s/file.%d", folder, getpid());
	snprintf(number, sizeof number, "%s/file.%d.2", folder, getpid());
	second = start_with(1 << 20, path);
	const char *where = NULL;
	int failed = 1;
	CHECK(ch_sink_status(second.heap, CH_SINK_STATS_FILE, &where, &failed));
	CHECK_STR(where, number);
	CHECK_EQ(failed, 0);
	free(stats_read(first, 1)); /* a thread has a name before the first write */
	free(stats_read(number, 1));
	CHECK_EQ(stats_threads(NULL), 2);
	rig_block(rig_owner(&rig, "scm::x"), 1);
	rig_end(&rig);
	rig_end(&second);
	struct stats_image *image = stats_read(first, 0);
	CHECK_EQ(image->head.state, CH__STATS_ENDED);
	CHECK_EQ(stats_number(image, "blocks_committed"), 1);
	free(image);
	image = stats_read(number, 0);
	CHECK_EQ(image->head.state, CH__STATS_ENDED);
	CHECK_EQ(image->head.heap, 2);
	free(image);
	expect_no_writing_threads();
	remove_folder();
}

static void wait_for(pid_t pid)
{
	int status;
	CHECK_EQ(waitpid(pid, &status, 0), pid);
}

/* With a clock that stands still, an exit waits for the last write without a limit. */
static uint64_t stand_still(uint64_t waited_ns)
{
	usleep(waited_ns ? 1000 : 0);
	return UINT64_C(3600000000000); /* later than all limits */
}

TEST(file_of_a_process_that_exits_has_ended_and_of_one_that_is_killed_has_no_writer)
{
	in_folder("file");
	for (int is_killed = 0; is_killed < 2; is_killed++) {
		pid_t pid;
		do {
			fflush(NULL);
			pid = fork_child();
			if (pid == 0) {
				ch__os_pretended.clock = stand_still;
				struct rig rig = start_with(1 << 20, path);
				free(stats_read(path, 1));
				CHECK(stats_has_writer(path));
				rig_block(rig_owner(&rig, "scm::x"), 1);
				if (is_killed)
					kill(getpid(), SIGKILL);
				exit(0);
			}
			wait_for(pid);
		} while (is_killed && stats_is_torn(path));
		struct stats_image *image = stats_read(path, 0);
		CHECK_EQ(image->head.state, is_killed ? CH__STATS_RUNNING : CH__STATS_ENDED);
		if (!is_killed)
			CHECK_EQ(stats_number(image, "blocks_committed"), 1);
		CHECK_EQ(image->head.process, pid);
		CHECK(!stats_has_writer(path));
		free(image);
	}
	remove_folder();
}

static _Atomic(bool) is_held;

static void *hold_the_heap(void *arg)
{
	struct ch_heap *heap = arg;
	ch__heap_lock(heap);
	atomic_store(&is_held, true);
	usleep(600000);
	ch__heap_unlock(heap);
	return NULL;
}

TEST(process_that_exits_waits_for_the_last_word_of_its_file)
{
	in_folder("file");
	fflush(NULL);
	pid_t pid = fork_child();
	if (pid == 0) {
		ch__os_pretended.clock = stand_still;
		struct rig rig = start_with(1 << 20, path);
		pthread_t thread;
		free(stats_read(path, 1));
		CHECK_EQ(pthread_create(&thread, NULL, hold_the_heap, rig.heap), 0);
		while (!atomic_load(&is_held))
			usleep(1000);
		exit(0);
	}
	wait_for(pid);
	struct stats_image *image = stats_read(path, 0);
	CHECK_EQ(image->head.state, CH__STATS_ENDED);
	free(image);
	remove_folder();
}

TEST(heap_without_a_file_has_no_thread)
{
	struct rig rig = start_with(1 << 20, NULL);
	const char *where = NULL;
	expect_no_writing_threads();
	CHECK(!ch_sink_status(rig.heap, CH_SINK_STATS_FILE, &where, NULL));
	CHECK_STR(where, "");
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_STATS_FILE), CH_E_ARG);
	rig_end(&rig);
	setenv("CODEHEAP_STATS", "", 1); /* no file, whatever the VM asks for */
	struct ch_config config = rig_config(1 << 20);
	config.stats_file = in_folder("file");
	rig = rig_create(&config, NULL, NULL);
	expect_no_writing_threads();
	rig_end(&rig);
	CHECK_EQ(files_in_folder(false), 0);
	remove_folder();
}

TEST(heaps_come_and_go_with_their_files)
{
	in_folder("file");
	for (int i = 0; i < 200; i++) {
		struct rig rig = start_with(1 << 20, path);
		if (i % 2)
			rig_block(rig_owner(&rig, "scm::x"), 1);
		if (i % 3)
			atomic_store(ch__stats_file_period(rig.heap->listeners), 0);
		rig_end(&rig);
		struct stats_image *image = stats_read(path, 0);
		CHECK_EQ(image->head.state, CH__STATS_ENDED);
		CHECK_EQ(stats_number(image, "blocks_committed"), i % 2);
		free(image);
	}
	remove_folder();
}

/* --- things found at the name --- */

static void expect_refusal(const char *pattern, int error)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_heap *heap = NULL;
	int failed = 0;
	unsetenv("CODEHEAP_STATS");
	config.stats_file = pattern;
	errno = 0;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_E_OS);
	CHECK_EQ(errno, error);
	CHECK_EQ((uintptr_t)heap, 0);
	/* A refused wish of the environment is no reason to have no heap. */
	setenv("CODEHEAP_STATS", pattern, 1);
	CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	CHECK(!ch_sink_status(heap, CH_SINK_STATS_FILE, NULL, &failed));
	CHECK_EQ(failed, error);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	unsetenv("CODEHEAP_STATS");
}

TEST(file_takes_no_bait)
{
	char victim[128], bait[128];
	struct stat s;
	strcpy(victim, in_folder("victim"));
	strcpy(bait, in_folder("bait"));
	int fd = open(victim, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && write(fd, "keep", 4) == 4);
	close(fd);
	CHECK_EQ(symlink(victim, bait), 0);
	expect_refusal(bait, EEXIST);
	CHECK(stat(victim, &s) == 0 && s.st_size == 4);
	CHECK_EQ(unlink(bait), 0);
	CHECK_EQ(mkfifo(bait, 0600), 0);
	expect_refusal(bait, EEXIST);
	expect_refusal(in_folder("no/such/folder"), ENOENT);
	char long_name[5000];
	memset(long_name, 'x', sizeof long_name - 1);
	long_name[sizeof long_name - 1] = 0;
	expect_refusal(long_name, ENAMETOOLONG);
	remove_folder();
}

/* A program started by a VM inherits the environment, and so the name of the file. */
TEST(file_of_a_living_process_is_not_taken_away)
{
	struct rig rig = start_with(1 << 20, in_folder("file"));
	free(stats_read(path, 1));
	fflush(NULL);
	pid_t pid = fork_child();
	if (pid == 0) {
		char *argv[] = {(char *)(uintptr_t) "x",
				(char *)(uintptr_t) "refused_by_its_writer_helper", NULL};
		setenv("CODEHEAP_STATS", path, 1);
		char self[1000] = "";
		CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
		execv(self, argv);
		_exit(9);
	}
	expect_exit(pid, 0);
	struct stats_image *image = stats_read(path, 2);
	CHECK_EQ(image->head.process, getpid());
	free(image);
	rig_end(&rig);
	/* The file has no writer any more. */
	rig = start_with(1 << 20, path);
	rig_end(&rig);
	remove_folder();
}

/* Run by the case above. Without CODEHEAP_STATS the helper does nothing. */
TEST(refused_by_its_writer_helper)
{
	if (!getenv("CODEHEAP_STATS"))
		return;
	struct ch_heap *heap;
	int failed = 0;
	CHECK_EQ(ch_heap_create(NULL, &heap), CH_OK);
	CHECK(!ch_sink_status(heap, CH_SINK_STATS_FILE, NULL, &failed));
	CHECK_EQ(failed, EBUSY);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

static void wait_until_off(struct ch_heap *heap, int error)
{
	int failed = 0;
	const char *none = NULL;
	while (ch_sink_status(heap, CH_SINK_STATS_FILE, &none, &failed) || !failed)
		usleep(1000);
	CHECK_EQ(failed, error);
	CHECK_STR(none, "");
}

TEST_FILE(full_disk_turns_the_file_off_and_the_vm_runs_on, 1 << 20)
{
	struct rlimit limit;
	free(stats_read(path, 1));
	hurry(rig.heap);
	getrlimit(RLIMIT_FSIZE, &limit);
	struct rlimit small = {100, limit.rlim_max};
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
	wait_until_off(rig.heap, EFBIG);
	setrlimit(RLIMIT_FSIZE, &limit);
	rig_block(rig_owner(&rig, "scm::x"), 1);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
}

TEST(file_that_somebody_removes_is_off)
{
	struct rig rig = start_with(1 << 20, in_folder("file"));
	char moved[128];
	free(stats_read(path, 1));
	hurry(rig.heap);
	snprintf(moved, sizeof moved, "%s/moved", folder);
	CHECK_EQ(rename(path, moved), 0);
	free(stats_read(moved, 3)); /* the file still has a name */
	CHECK(ch_sink_status(rig.heap, CH_SINK_STATS_FILE, NULL, NULL));
	CHECK_EQ(unlink(moved), 0);
	wait_until_off(rig.heap, ENOENT);
	rig_end(&rig);
	CHECK_EQ(files_in_folder(false), 0);
	remove_folder();
}

static void lose_the_file(void *file)
{
	CHECK_EQ(setenv("CODEHEAP_DEBUG", "1", 1), 0);
	struct rig rig = start_with(1 << 20, file);
	CHECK_EQ(unlink(path), 0);
	wait_until_off(rig.heap, ENOENT);
	rig_end(&rig);
}

TEST(debug_says_why_a_file_went_off)
{
	char text[400];
	expect_signal_text(lose_the_file, (void *)(uintptr_t)in_folder("file"), 0, text,
			   sizeof text);
	CHECK(strstr(text, "codeheap: CH_E_OS: the statistics file "));
	CHECK(strstr(text, " is off: ENOENT\n"));
	remove_folder();
}

TEST_FILE(file_that_somebody_cuts_is_written_on, 1 << 20)
{
	free(stats_read(path, 1));
	hurry(rig.heap);
	for (int i = 0; i < 50; i++) {
		CHECK_EQ(truncate(path, i % 2 ? 0 : 3000), 0);
		usleep(2000);
	}
	free(stats_read(path, 2));
}

static void fail_each_call_of_creation(bool is_asked_by_vm)
{
	uint64_t nth = 1;
	struct ch_config config = rig_config(1 << 20);
	unsigned told = 0;
	for (bool is_through = false; !is_through; nth++) {
		struct ch_heap *heap = NULL;
		int failed = 0;
		config.stats_file = is_asked_by_vm ? path : NULL;
		ch__os_fail_at(nth, false);
		enum ch_status status = ch_heap_create(&config, &heap);
		is_through = ch__os_failable_calls() < nth;
		ch__os_fail_at(0, false);
		if (status == CH_OK) { /* perhaps a write failed, in the writing thread */
			if (!ch_sink_status(heap, CH_SINK_STATS_FILE, NULL, &failed)) {
				CHECK(failed != 0);
				told++;
			}
			CHECK_EQ(ch_heap_destroy(heap), CH_OK);
			files_in_folder(true);
		}
		CHECK(status == CH_OK || status == CH_E_MEMORY || status == CH_E_OS);
		CHECK_EQ(files_in_folder(false), 0);
		expect_no_writing_threads();
	}
	CHECK(nth > 10);
	CHECK(told > 0 || is_asked_by_vm);
}

TEST(creation_that_fails_leaves_no_file_and_no_thread)
{
	in_folder("file");
	unsetenv("CODEHEAP_STATS");
	fail_each_call_of_creation(true);
	setenv("CODEHEAP_STATS", path, 1);
	fail_each_call_of_creation(false);
	remove_folder();
}

/* --- fork --- */

TEST(child_of_fork_never_writes_to_its_parents_file)
{
	struct rig rig = start_with(1 << 20, in_folder("file"));
	int ends[2];
	hurry(rig.heap);
	free(stats_read(path, 1));
	CHECK_EQ(pipe(ends), 0);
	fflush(NULL);
	pid_t pid = fork_child();
	if (pid == 0) {
		char byte;
		close(ends[1]);
		for (int i = 0; i < 300; i++)
			rig_block(rig_owner(&rig, "scm::child"), 1);
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		CHECK(!ch_sink_status(rig.heap, CH_SINK_STATS_FILE, NULL, NULL));
		expect_no_writing_threads();
		CHECK_EQ(read(ends[0], &byte, 1), 0);
		rig_end(&rig);
		_exit(0);
	}
	close(ends[0]);
	struct stats_image *image = stats_read(path, 20);
	CHECK_EQ(image->head.process, getpid());
	CHECK_EQ(stats_number(image, "blocks_committed"), 0);
	free(image);
	CHECK_EQ(files_in_folder(false), 1);
	rig_end(&rig);
	/* The child still lives, and holds nothing of the file once the child has begun to run. */
	while (stats_has_writer(path))
		usleep(1000);
	close(ends[1]);
	expect_exit(pid, 0);
	remove_folder();
}

TEST(child_of_fork_makes_a_file_of_its_own_when_it_works)
{
#if CH_TSAN
	skip("ThreadSanitizer has no threads in a child of a process with some");
#endif
	struct rig rig = start_with(1 << 20, in_folder("file.%p"));
	rig_block(rig_owner(&rig, "scm::parent"), 1);
	snprintf(path, sizeof path, "%s/file.%d", folder, getpid());
	free(stats_read(path, 1));
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	/* A child collects; a child opens whole pages. */
	for (int work = 0; work < 3; work++) {
		uint64_t forked_ns = now_ns();
		fflush(NULL);
		pid_t pid = fork_child();
		if (pid == 0) {
			char own[128];
			snprintf(own, sizeof own, "%s/file.%d", folder, getpid());
			if (!work)
				_exit(0);
			struct ch_open open = {.size = sizeof open,
					       .heap = rig.heap,
					       .hot_bytes = 8,
					       .flags = CH_OPEN_IN_PLACE};
			struct ch_code code;
			if (work == 1)
				CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
			else
				CHECK_EQ(ch_block_open(&open, &code), CH_OK);
			struct stats_image *image = stats_read(own, 2);
			CHECK_EQ(image->head.process, getpid());
			CHECK_EQ(stats_number(image, "blocks_committed"), 1);
			struct ch__stats_section section;
			const struct ch__stats_sample *samples =
				stats_section(image, CH__STATS_SAMPLES, &section);
			CHECK(section.count && samples->at_ns > forked_ns);
			const struct ch__stats_pause *pauses =
				stats_section(image, CH__STATS_PAUSES, &section);
			CHECK(!section.count || pauses->at_ns > forked_ns);
			free(image);
			rig_end(&rig);
			_exit(0);
		}
		expect_exit(pid, 0);
		CHECK_EQ(files_in_folder(false), 1 + work);
	}
	struct stats_image *image = stats_read(path, 2);
	CHECK_EQ(image->head.process, getpid());
	free(image);
	rig_end(&rig);
	remove_folder();
}

/* --- beside working threads --- */

static void *churn(void *arg)
{
	struct rig *rig = arg;
	uint64_t start = now_ns();
	CHECK_EQ(ch_thread_attach(rig->heap, NULL, NULL), CH_OK);
	for (unsigned n = 0; n < 100 || now_ns() - start < UINT64_C(1000000) * storm_ms(); n++) {
		struct ch_owner owner = rig_owner(rig, n % 2 ? "scm::churn" : "plain");
		struct ch_block block = {0};
		for (int i = 0; i < 20; i++)
			block = rig_block(owner, n);
		CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
		CHECK_EQ(ch_owner_release(owner,
					  n % 3 ? CH_RELEASE_COLLECT : CH_RELEASE_NOT_RUNNING),
			 CH_OK);
		if (n % 20 == 0)
			CHECK(ch_heap_collect(rig->heap) != CH_E_MEMORY);
		ch_thread_poll();
	}
	CHECK_EQ(ch_thread_detach(rig->heap), CH_OK);
	return NULL;
}

TEST(file_is_written_while_threads_make_and_free_code)
{
	struct rig rig = start_with(4 << 20, in_folder("file"));
	pthread_t threads[2];
	hurry(rig.heap);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, churn, &rig), 0);
	ch_thread_park();
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	ch_thread_unpark();
	CHECK(ch_sink_status(rig.heap, CH_SINK_STATS_FILE, NULL, NULL));
	rig_end(&rig);
	struct stats_image *image = stats_read(path, 0);
	CHECK_EQ(image->head.state, CH__STATS_ENDED);
	CHECK(stats_number(image, "blocks_freed") > 100);
	free(image);
	remove_folder();
}
