/* SPDX-License-Identifier: MIT
 * memory.c: the memory of a profile: counted, bounded, and given back: by the next profile, by one
 * that cannot start or be written, by threads that leave, and with the heap. */
#include "tests/support/profile_rig.h"

#include <errno.h>
#include <glob.h>

static struct profile_rig rig;

/* Counts the memory of the profile from its parts. */
static size_t bytes_of(const struct ch__profiler *p)
{
	const struct ch__tree *tree = &p->tree;
	size_t pieces = (tree->count + (1u << CH__NODES_LOG2) - 1) >> CH__NODES_LOG2;
	size_t bytes = pieces * (sizeof(struct ch__node) << CH__NODES_LOG2) +
		       (tree->buckets_mask + 1) * sizeof *tree->buckets +
		       (tree->names_mask + 1) * sizeof *tree->names;
	for (const struct ch__sampler *s = p->samplers; s; s = s->next)
		bytes += sizeof *s + s->ring_bytes;
	for (uint32_t i = 0; i <= tree->names_mask; i++)
		if (tree->names[i].key && !tree->names[i].is_taken)
			bytes += CH__PROFILE_NAME_BYTES;
		else if (tree->names[i].text)
			bytes += strlen(tree->names[i].text) + 1;
	return bytes;
}

static void expect_bounded(size_t memory_bytes)
{
	struct ch__profiler *p = profile_running(&rig);
	profile_wait_for_worker(&rig);
	ch__profile_lock(p);
	size_t bytes = bytes_of(p), used = p->used_bytes;
	ch__profile_unlock(p);
	CHECK_EQ(used, bytes);
	CHECK(used <= memory_bytes);
}

static void take_codes(int count, size_t memory_bytes)
{
	for (int i = 0; i < count; i++) {
		struct method m;
		struct ch_info info = {.size = sizeof info};
		method_constant(rig.stage, &m, "code", 1);
		CHECK_EQ(ch_block_info(m.block, &info), CH_OK);
		profile_take_pc(&rig, info.exec, 1);
		expect_bounded(memory_bytes);
	}
}

/* Takes code with a name each, beyond the first table of names, then stacks until no stack has
 * room, then code again. */
TEST_PROFILE(memory_of_a_profile_is_counted_and_bounded)
{
	enum { BYTES = 300000, TAKES = 8000, CODES = 100, FIRST_CODES = 40 };
	profile_start_still(&rig, BYTES);
	take_codes(FIRST_CODES, BYTES);
	CHECK(profile_running(&rig)->tree.names_count == FIRST_CODES);
	for (uintptr_t i = 0; i < TAKES; i++) {
		profile_take_pc(&rig, (const void *)((uintptr_t)profile_burn_all + i), 1);
		if (i % 500 == 0)
			expect_bounded(BYTES);
	}
	take_codes(CODES, BYTES);
	CHECK(profile_stop(&rig).dropped > 0);
}

/* What is taken already does not count: the bound is so chosen that a ring twice as large would be
 * a fourth of the bound, and more than a fourth of what is left. */
TEST_PROFILE(ring_takes_at_most_a_fourth_of_what_is_left)
{
	enum { SHARE = 4, WORDS = 4096 };
	size_t twice = (2 * WORDS + CH__PROFILE_FRAMES_MAX + 2) * sizeof(uint64_t);
	profile_start_still(&rig, SHARE * twice);
	struct ch__profiler *p = profile_running(&rig);
	ch__profile_lock(p);
	const struct ch__sampler *s = p->samplers;
	CHECK_EQ(s->words, WORDS);
	CHECK(s->ring_bytes * SHARE <= SHARE * twice - (p->used_bytes - s->ring_bytes));
	ch__profile_unlock(p);
}

TEST_PROFILE(code_in_the_last_place_of_the_table_gets_its_name)
{
	struct method m;
	profile_start_still(&rig, 0);
	struct ch__profiler *p = profile_running(&rig);
	method_constant(rig.stage, &m, "code", 1);
	profile_take_pc(&rig, block_info(m.block).exec, 1);
	profile_wait_for_worker(&rig);
	ch__profile_lock(p);
	struct ch__code_name *names = p->tree.names, *last = &names[p->tree.names_mask];
	for (struct ch__code_name *at = names; at < last; at++)
		if (at->key) {
			*last = *at;
			*at = (struct ch__code_name){.key = 0};
		}
	uint64_t key = last->key;
	ch__profile_unlock(p);
	ch__profiler_name_all(p, rig.stage->heap, (uint32_t)(key >> CH__LOOK_HEAP_SHIFT));
	ch__profile_lock(p);
	CHECK(last->is_taken);
	CHECK_STR(last->text, "code");
	ch__profile_unlock(p);
}

/* A leak would be an arena each time. Sanitizers keep freed memory on purpose. */
static void see_that_nothing_stays(size_t first, int rounds)
{
	enum { EACH_MOST = 256 << 10 };
	const char *sanitizer = getenv("CODEHEAP_TEST_SAN");
	size_t bytes = mapped_bytes();
	if ((!sanitizer || !*sanitizer) && bytes > first + (size_t)rounds * EACH_MOST)
		FAIL("%zu bytes are mapped after %d rounds, %zu before them", bytes, rounds, first);
}

static void take_many_stacks(uintptr_t from, uintptr_t count)
{
	for (uintptr_t i = from; i < from + count; i++) {
		profile_take_pc(&rig, (const void *)((uintptr_t)profile_burn_all + i), 1);
		if (i % 500 == 0)
			profile_wait_for_worker(&rig);
	}
}

TEST_PROFILE(profile_that_another_one_follows_leaves_no_memory)
{
	enum { FIRST = 5, ROUNDS = 30, STACKS = 200 };
	size_t first = 0;
	for (int round = 0; round < FIRST + ROUNDS; round++) {
		if (round == FIRST)
			first = mapped_bytes();
		profile_start_still(&rig, 1 << 20);
		take_many_stacks(0, STACKS);
		(void)profile_stop(&rig);
	}
	see_that_nothing_stays(first, ROUNDS);
}

/* Meanwhile the table of nodes grows again and again. */
TEST_PROFILE(stack_that_comes_again_is_found_again)
{
	enum { STACKS = 5000 };
	profile_start_still(&rig, 8 << 20);
	struct ch__profiler *p = profile_running(&rig);
	uint32_t nodes[2];
	for (int i = 0; i < 2; i++) {
		take_many_stacks(0, STACKS);
		profile_wait_for_worker(&rig);
		ch__profile_lock(p);
		nodes[i] = p->tree.count;
		ch__profile_unlock(p);
	}
	CHECK(nodes[0] > STACKS);
	CHECK_EQ(nodes[1], nodes[0]);
	CHECK_EQ(profile_stop(&rig).dropped, 0);
}

TEST_PROFILE(profile_that_cannot_be_written_for_want_of_memory_leaves_none)
{
	enum { STACKS = 200, FIRST = 5, ROUNDS = 30, CALLS = 10 };
	profile_start_still(&rig, 16 << 20);
	take_many_stacks(0, STACKS);
	(void)profile_stop(&rig);
	unsigned refused = 0, files = open_files();
	size_t first = 0, side = ch__meta_bytes(ch__profile_of(rig.stage->heap)->meta);
	for (int round = 0; round < FIRST + ROUNDS; round++) {
		if (round == FIRST)
			first = mapped_bytes();
		CHECK_EQ(ch_profile_write(rig.stage->heap, rig.path, NULL), CH_OK);
		for (uint64_t nth = 1; nth < CALLS; nth++) {
			ch__os_fail_at(nth, false);
			enum ch_status status =
				ch_profile_write(rig.stage->heap, rig.path, NULL);
			uint64_t calls = ch__os_failable_calls();
			ch__os_fail_at(0, false);
			CHECK_EQ(ch__meta_bytes(ch__profile_of(rig.stage->heap)->meta), side);
			CHECK_EQ(open_files(), files);
			refused += status == CH_E_MEMORY;
			CHECK(status == CH_OK || calls >= nth);
		}
	}
	CHECK(refused > 0);
	see_that_nothing_stays(first, ROUNDS);
}

/* Nothing of the file that is made beside stays. */
static unsigned files_beside(void)
{
	char pattern[100];
	glob_t found;
	snprintf(pattern, sizeof pattern, "%s.*", rig.path);
	unsigned count = glob(pattern, 0, NULL, &found) == 0 ? (unsigned)found.gl_pathc : 0;
	globfree(&found);
	return count;
}

static enum ch_status write_over(const char *text, uint64_t failing)
{
	int fd = open(rig.path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	CHECK_EQ(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	ch__os_fail_as(failing, false, EIO);
	return ch_profile_write(rig.stage->heap, rig.path, NULL);
}

/* The last two calls close the file and give it its name. */
TEST_PROFILE(file_is_the_old_one_or_whole_whatever_call_fails)
{
	static const char before[] = "what stood here before";
	profile_start_still(&rig, 0);
	profile_stop(&rig);
	unsigned beside = files_beside();
	CHECK_EQ(write_over(before, UINT64_MAX), CH_OK);
	uint64_t calls = ch__os_failable_calls();
	for (uint64_t nth = 1; nth <= calls; nth++) {
		enum ch_status status = write_over(before, nth);
		int error = errno;
		ch__os_fail_at(0, false);
		char *text = profile_file(rig.path);
		if (status == CH_OK)
			CHECK(strstr(text, "</svg>"));
		else
			CHECK_STR(text, before);
		free(text);
		CHECK_EQ(files_beside(), beside);
		if (nth + 2 > calls)
			CHECK(status == CH_E_OS && error == EIO);
	}
}

TEST_PROFILE(profile_that_cannot_start_leaves_nothing_and_the_next_one_starts)
{
	unsigned refused = 0;
	uint64_t calls, nth = 0;
	struct ch__profile *profile = ch__profile_of(rig.stage->heap);
	profile_start_still(&rig, 1 << 20);
	(void)profile_stop(&rig);
	do {
		size_t side = ch__meta_bytes(profile->meta);
		ch__os_fail_at(++nth, false);
		enum ch_status status = ch_profile_start(rig.stage->heap, 1, NULL);
		calls = ch__os_failable_calls();
		ch__os_fail_at(0, false);
		if (status == CH_OK) {
			CHECK_EQ(profile_running(&rig)->worker.process, getpid());
			(void)profile_stop(&rig);
		}
		CHECK_EQ(ch__meta_bytes(profile->meta), side);
		CHECK_EQ(ch_profile_stop(rig.stage->heap, NULL), CH_E_STATE);
		refused += status != CH_OK;
	} while (calls >= nth);
	CHECK(refused > 5);
	profile_start_still(&rig, 0);
}

TEST(memory_of_a_profile_goes_with_its_heap)
{
	enum { ROUNDS = 40, FIRST = 20 };
	size_t first = 0;
	for (int round = 0; round < FIRST + ROUNDS; round++) {
		if (round == FIRST)
			first = mapped_bytes();
		profile_begin(&rig, STAGE_POLLS);
		profile_start_still(&rig, 1 << 20);
		profile_end(&rig);
	}
	see_that_nothing_stays(first, ROUNDS);
}

/* A profile that is read while it runs takes the names of its code, and gives their room back. */
TEST_PROFILE(names_are_taken_once_however_often_a_profile_is_read)
{
	enum { BYTES = 300000, CODES = 3, READS = 3 };
	profile_start_still(&rig, BYTES);
	take_codes(CODES, BYTES);
	size_t before = profile_running(&rig)->used_bytes, first = 0;
	for (int i = 0; i < READS; i++) {
		profile_read(&rig, 0);
		expect_bounded(BYTES);
		size_t used = profile_running(&rig)->used_bytes;
		CHECK(used < before && (!first || used == first));
		first = used;
	}
	(void)profile_stop(&rig);
}

static void come_and_go(struct stage *stage, void *arg)
{
	(void)stage, (void)arg;
}

/* The memory is that of two threads, whether the worker comes between or not. */
TEST_PROFILE(thread_that_left_leaves_nothing_in_a_profile)
{
	enum { THREADS = 100 };
	profile_start_still(&rig, 2 * ch__profiler_least_bytes());
	const struct ch__profiler *p = profile_running(&rig);
	const struct ch__sampler *own = p->samplers;
	size_t before = p->used_bytes;
	for (int i = 0; i < THREADS; i++)
		stage_apart(rig.stage, come_and_go, NULL);
	CHECK(p->samplers == own && !own->next);
	CHECK_EQ(p->used_bytes, before);
	struct ch_profile_counts counts = profile_stop(&rig);
	CHECK_EQ(counts.threads, 1 + THREADS);
	CHECK_EQ(counts.refused, 0);
}
