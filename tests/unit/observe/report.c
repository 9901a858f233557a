/* SPDX-License-Identifier: MIT
 * report.c: the profile's report, to the letter, of stacks in the tree made by the test; and
 * signals ignored by the profile. */
#include "tests/support/profile_rig.h"

#include "codeheap/base/heap.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

static struct profile_rig rig;

/* --- reports --- */

enum { CODES = 2 };
static uint64_t codes[CODES]; /* as frame words; the second code has a cold part */

static void make_codes(void)
{
	struct method m[CODES];
	method_constant(rig.stage, &m[0], "inner", 1);
	method_jumper(rig.stage, &m[1], "outer");
	for (unsigned i = 0; i < CODES; i++) {
		struct ch_info info = block_info(m[i].block);
		codes[i] = ch__look_code(rig.stage->heap, (uintptr_t)info.exec, 0);
		CHECK(codes[i]);
	}
}

static void add(const uint64_t *frames, uint32_t count, bool is_cut, uint32_t weight)
{
	struct ch__profiler *p = profile_running(&rig);
	ch__profile_lock(p);
	CHECK(ch__tree_add(p, frames, count, is_cut, weight));
	ch__profile_unlock(p);
}

static void expect_folded(unsigned flags, const char *wanted)
{
	profile_read(&rig, flags);
	CHECK_STR(rig.text, wanted);
}

TEST_PROFILE(report_says_what_was_seen_to_the_letter)
{
	profile_start_still(&rig, 0);
	make_codes();
	uint64_t cold = codes[1] | CH__LOOK_COLD;
	uint64_t stacks[][3] = {{codes[0], codes[1], CH__FRAME_WORD_UNKNOWN},
				{codes[0], cold, CH__FRAME_WORD_UNKNOWN},
				{CH__FRAME_WORD_RUNTIME, codes[1], CH__FRAME_WORD_UNKNOWN},
				{CH__FRAME_WORD_NO_BLOCK, codes[0], codes[0]}};
	for (uint32_t i = 0; i < 4; i++)
		add(stacks[i], 3, i == 3, i + 1);
	add(&stacks[0][1], 2, false, 10);
	add(stacks[0], 3, false, 20);
	struct ch__profiler *p = profile_running(&rig);
	ch__profile_lock(p);
	uint32_t nodes = p->tree.count, names = p->tree.names_count;
	p->counts.dropped++;
	ch__profile_unlock(p);
	/* The root; three nodes of stack 0, two more of 1, one more of 2, four with [cut]. */
	CHECK_EQ(nodes, 1 + 3 + 2 + 1 + 4);
	CHECK_EQ(names, CODES);
	expect_folded(0, "[cut];inner;inner;[code memory without a block] 4\n"
			 "[dropped] 1\n"
			 "[unknown];outer 10\n"
			 "[unknown];outer;[runtime page of the code heap] 3\n"
			 "[unknown];outer;inner 21\n"
			 "[unknown];outer (cold);inner 2\n");
}


/* Reversed, a stack begins with the frame that was running. */
TEST_PROFILE(reversed_report_begins_with_what_ran)
{
	profile_start_still(&rig, 0);
	make_codes();
	uint64_t stacks[][2] = {{codes[0], codes[1]}, {codes[0], CH__FRAME_WORD_UNKNOWN}};
	add(stacks[0], 2, false, 3);
	add(stacks[1], 2, false, 4);
	add(stacks[1], 1, false, 5);
	expect_folded(0, "[unknown];inner 4\ninner 5\nouter;inner 3\n");
	expect_folded(CH_PROFILE_REVERSED, "inner 5\ninner;[unknown] 4\ninner;outer 3\n");
}

/* Noted code that went before being named is shown without a name. */
TEST_PROFILE(code_without_a_name_is_freed_code)
{
	profile_start_still(&rig, 0);
	make_codes();
	uint64_t gone = codes[0] + (UINT64_C(1) << 24); /* a later life of the record */
	add(&codes[0], 1, false, 1);
	add(&gone, 1, false, 2);
	expect_folded(0, "[freed code] 2\ninner 1\n");
}

TEST_PROFILE(code_of_no_file_is_anonymous)
{
	void *at = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	profile_start_still(&rig, 0);
	add(&(uint64_t){(uintptr_t)at + 8}, 1, false, 3);
	expect_folded(0, "[anonymous code] 3\n");
	CHECK_EQ(munmap(at, 4096), 0);
}

/* Both have the start 0. */
TEST_PROFILE(code_without_a_symbol_is_no_fallback_without_one)
{
	struct ch_owner owner;
	uint8_t *at = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	CHECK_EQ(ch_owner_create(rig.stage->vm, "raw", at, NULL, &owner), CH_OK);
	profile_start_still(&rig, 0);
	add(&(uint64_t){(uintptr_t)at + 8}, 1, false, 3);
	CHECK_EQ(ch_profile_write(rig.stage->heap, rig.path, NULL), CH_OK);
	char *svg = profile_file(rig.path);
	CHECK(strstr(svg, "class=\"kind native\" data-self=\"3\""));
	free(svg);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(munmap(at, 4096), 0);
}

TEST(name_that_is_too_long_is_cut)
{
	enum { LONG = CH__PROFILE_NAME_BYTES + 88, MOST = CH__PROFILE_NAME_BYTES - 1 };
	struct method m;
	struct ch_info info = {.size = sizeof info};
	char name[LONG + 1], line[LONG];
	for (int bytes = MOST - 1; bytes <= MOST + 1; bytes++) {
		profile_begin(&rig, STAGE_POLLS);
		profile_start_still(&rig, 0);
		memset(name, 'x', sizeof name);
		name[bytes] = 0;
		method_constant(rig.stage, &m, name, 1);
		CHECK_EQ(ch_block_info(m.block, &info), CH_OK);
		profile_take_pc(&rig, info.exec, 1);
		snprintf(line, sizeof line, "%.*s 1\n", bytes < MOST ? bytes : MOST, name);
		expect_folded(0, line);
		profile_end(&rig);
	}
}

static bool put_text(void *arg, const char *text, size_t n)
{
	strncat(arg, text, n);
	return true;
}

/* A report is complete, or says that memory was refused. */
TEST_PROFILE(report_has_memory_or_says_so)
{
	const struct ch__profiler_view view = {.is_folded = true};
	profile_start_still(&rig, 0);
	make_codes();
	add(codes, CODES, false, 3);
	CHECK_EQ(ch_profile_stop(rig.stage->heap, NULL), CH_OK);
	struct ch__profiler *p = ch__profile_of(rig.stage->heap)->profiler;
	ch__profile_lock(p);
	p->counts.dropped = 7;
	ch__profile_unlock(p);
	unsigned refused = 0;
	uint64_t calls, nth = 0;
	do {
		char text[200] = "";
		struct ch__profiler_copy *copy = ch__profiler_copy(p);
		CHECK(copy && ch__profiler_copy_names(p, copy));
		ch__os_fail_at(++nth, false);
		int error = ch__profiler_report(copy, &view, put_text, text);
		calls = ch__os_failable_calls();
		ch__os_fail_at(0, false);
		ch__profiler_copy_free(copy);
		CHECK(!error || error == ENOMEM);
		if (!error)
			CHECK_STR(text, "[dropped] 7\nouter;inner 3\n");
		refused += error != 0;
	} while (calls >= nth);
	CHECK(refused > 10);
}

/* The picture says how many samples of which kind it shows. */
TEST_PROFILE(picture_says_what_it_was_made_of)
{
	struct ch_profile_options options = {.size = sizeof options, .by_wall_clock = true};
	CHECK_EQ(ch_profile_start(rig.stage->heap, 1, &options), CH_OK);
	struct ch__profiler *p = profile_running(&rig);
	CHECK_EQ(ch_profile_stop(rig.stage->heap, NULL), CH_OK);
	p = ch__profile_of(rig.stage->heap)->profiler;
	for (int refused = 0; refused <= 3; refused += 3) {
		ch__profile_lock(p);
		p->counts = (struct ch_profile_counts){.samples = 11, .threads = refused ? 2 : 1,
							 .dropped = 5,
							 .cut = 4, .refused = (uint64_t)refused};
		ch__profile_unlock(p);
		CHECK_EQ(ch_profile_write(rig.stage->heap, rig.path, NULL), CH_OK);
		char *svg = profile_file(rig.path);
		const char *wanted = refused ? "1 Hz of wall-clock time; 11 samples of 2 threads "
					       "(3 more were refused), 5 dropped, 4 cut at 512 "
					       "frames"
					     : "1 Hz of wall-clock time; 11 samples of 1 thread, "
					       "5 dropped, 4 cut at 512 frames";
		if (!strstr(svg, wanted))
			FAIL("the picture does not say: %s", wanted);
		free(svg);
	}
}

/* --- frames of a VM --- */

static size_t give_address(void *user, const void *pc, const void *sp, const void *end,
			   const void **return_addresses, size_t max)
{
	(void)pc, (void)sp, (void)end;
	CHECK(max > 0);
	return_addresses[0] = user;
	return 1;
}

/* When a call ends a block, the return address lies behind the block. */
TEST_PROFILE(frame_of_the_vm_is_of_the_byte_before_it)
{
	struct method m, below;
	struct ch_info info = {.size = sizeof info};
	method_constant(rig.stage, &below, "below", 1);
	method_constant(rig.stage, &m, "caller", 1);
	CHECK_EQ(ch_block_info(m.block, &info), CH_OK);
	void *end = (void *)((uintptr_t)info.exec + info.hot_bytes);
	struct ch_profile_options options = {
		.size = sizeof options, .frames = give_address, .user = end};
	CHECK_EQ(ch_profile_start(rig.stage->heap, 1, &options), CH_OK);
	static uintptr_t words[16];
	struct ch__sampler_stack stack = {.pc = (uintptr_t)profile_burn_all + 8,
					  .sp = (uintptr_t)words,
					  .high = (uintptr_t)(words + 16)};
	profile_take(&rig, &stack, 9);
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, "caller"), 9);
}

/* A mapping that could not be noted may lie anywhere, so no native code has a name then. */
TEST_PROFILE(native_code_has_no_name_where_a_mapping_was_not_noted)
{
	profile_start_still(&rig, 0);
	struct ch__profiler *p = profile_running(&rig);
	add(&(uint64_t){(uintptr_t)profile_burn_all + 1}, 1, false, 3);
	void *mapped = profile_map_file(&rig, "object", NULL, 4096);
	bool is_whole = true;
	for (uint64_t nth = 1; is_whole && nth < 20; nth++) {
		ch__os_fail_at(nth, false);
		ch__profile_lock(p);
		(void)ch__maps_read(p);
		is_whole = p->seen.is_whole;
		ch__profile_unlock(p);
		ch__os_fail_at(0, false);
	}
	CHECK(!is_whole);
	expect_folded(0, "[unknown] 3\n");
	CHECK_EQ(munmap(mapped, 4096), 0);
}

/* The object that was sampled was another one than lies there now. */
TEST(native_code_has_no_name_of_what_lies_there_later)
{
	bool is_several;
	uintptr_t pc = (uintptr_t)profile_burn_all + 1;
	profile_skip_without_names();
	profile_begin(&rig, STAGE_POLLS);
	profile_start_still(&rig, 0);
	struct ch__profiler *p = profile_running(&rig);
	add(&(uint64_t){pc}, 1, false, 3);
	(void)profile_stop(&rig);
	expect_folded(0, "profile_burn_all 3\n");
	ch__profile_lock(p);
	uint32_t at = (uint32_t)(ch__seen_find(&p->seen, pc, &is_several) - p->seen.at);
	p->seen.at[at].inode++;
	ch__profile_unlock(p);
	profile_read(&rig, 0);
	CHECK(!strstr(rig.text, "profile_burn_all"));
	CHECK(strstr(rig.text, "+0x") && strstr(rig.text, " 3\n"));
	profile_end(&rig);
}

/* --- maps --- */

enum { MAP_BYTES = 1 << 16 };

static _Atomic(uint64_t) told_ns;
static _Atomic(unsigned) worker_waits;

static uint64_t told_time(uint64_t waited_ns)
{
	enum { WORKER_NS = 4000000 };
	atomic_fetch_add(&worker_waits, waited_ns == WORKER_NS);
	usleep((useconds_t)(waited_ns / 1000));
	return atomic_load(&told_ns);
}

/* Says whether the worker reads the maps again, `passed_ns` after the last reading. The worker
 * looks for samples first, and at the clock afterwards. */
static bool reads_maps_after(uint64_t passed_ns, bool is_wanted)
{
	struct ch__profiler *p = profile_running(&rig);
	ch__profile_lock(p);
	uint64_t before = p->maps_read_ns;
	atomic_store(&told_ns, before + passed_ns);
	atomic_store(&p->maps_wanted, is_wanted);
	ch__profile_unlock(p);
	profile_take_pc(&rig, (const void *)((uintptr_t)profile_burn_all + 8), 1);
	profile_wait_for_worker(&rig);
	ch__profile_lock(p);
	bool is_read = p->maps_read_ns != before;
	CHECK_EQ(atomic_load(&p->maps_wanted), is_wanted && !is_read);
	ch__profile_unlock(p);
	return is_read;
}

TEST(memory_is_read_again_soon_where_a_sample_asks_and_seldom_else)
{
	enum { ASKED_NS = 20000000, UNASKED_NS = 100000000 };
	atomic_store(&told_ns, now_ns());
	ch__os_pretended.clock = told_time;
	profile_begin(&rig, STAGE_POLLS);
	profile_start_still(&rig, 0);
	CHECK(!reads_maps_after(ASKED_NS, true));
	CHECK(reads_maps_after(ASKED_NS + 1, true));
	CHECK(!reads_maps_after(UNASKED_NS, false));
	CHECK(reads_maps_after(UNASKED_NS + 1, false));
	CHECK(atomic_load(&worker_waits));
	profile_end(&rig);
}

TEST(memory_that_was_replaced_before_the_end_is_seen)
{
	atomic_store(&told_ns, now_ns());
	ch__os_pretended.clock = told_time;
	profile_begin(&rig, STAGE_POLLS);
	uint8_t *at = profile_map_file(&rig, "first", NULL, MAP_BYTES);
	profile_start_still(&rig, 0);
	profile_take_pc(&rig, at, 4);
	CHECK(profile_map_file(&rig, "second", at, MAP_BYTES) == at);
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, ";[code that was replaced];"), 4);
	munmap(at, MAP_BYTES);
	profile_end(&rig);
}

TEST_PROFILE(code_of_no_file_that_grows_down_is_not_replaced)
{
	const int may = PROT_READ | PROT_EXEC, how = MAP_PRIVATE | MAP_ANONYMOUS;
	uint8_t *at = mmap(NULL, 2 * MAP_BYTES, PROT_NONE, how, -1, 0), *high = at + MAP_BYTES;
	CHECK(at != MAP_FAILED);
	CHECK(mmap(high, MAP_BYTES, may, how | MAP_FIXED, -1, 0) == high);
	profile_start_still(&rig, 0);
	profile_take_pc(&rig, high, 4);
	CHECK(mmap(at, MAP_BYTES, may, how | MAP_FIXED, -1, 0) == at);
	profile_stop(&rig);
	expect_folded(0, "[anonymous code] 4\n");
	CHECK_EQ(munmap(at, 2 * MAP_BYTES), 0);
}

TEST_PROFILE(mappings_that_were_seen_are_no_news)
{
	profile_start_still(&rig, 0);
	struct ch__profiler *p = profile_running(&rig);
	ch__profile_lock(p);
	CHECK_EQ(ch__maps_read(p), 0);
	uint32_t seen = p->seen.count;
	size_t bytes = ch__meta_bytes(p->meta);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(ch__maps_read(p), 0);
	CHECK_EQ(p->seen.count, seen);
	CHECK_EQ(ch__meta_bytes(p->meta), bytes);
	ch__profile_unlock(p);
}

/* The kernel calls its own mapping [vdso], and lays it beside anybody's. */
TEST(memory_of_the_system_beside_code_of_no_file_is_another)
{
	char system[] = "[vdso]", again[] = "[vdso]", none[] = "";
	char file[] = "/a", gone[] = "/a (deleted)";
	struct ch__seen named = {.low = 4096, .high = 8192, .path = system}, other = named;
	other.path = again;
	CHECK(ch__seen_is_same(&named, &other));
	other.path = none;
	CHECK(!ch__seen_is_same(&named, &other));
	struct ch__seen of_file = {.inode = 2, .path = file}, of_gone = {.inode = 2, .path = gone};
	CHECK(ch__seen_is_same(&of_file, &of_gone));
}

static void check_has_page(const struct ch__ranges *ranges, const uint8_t *page)
{
	unsigned found = 0;
	for (uint32_t i = 0; i < ranges->count; i++)
		found += (uintptr_t)page >= ranges->at[i].low &&
			 (uintptr_t)page + 4096 <= ranges->at[i].high;
	CHECK_EQ(found, 1);
}

/* More than the first reading has room for. Neighbours in the memory are one range. */
TEST_PROFILE(ranges_are_those_of_all_memory_however_many)
{
	enum { PAGES = 200, PAGE = 4096 };
	profile_start_still(&rig, 0);
	uint8_t *at = mmap(NULL, (PAGES + 1) * PAGE, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(at != MAP_FAILED);
	for (int i = 1; i < PAGES; i += i == 1 ? 1 : 2)
		CHECK(mmap(at + i * PAGE, PAGE, i == 2 ? PROT_EXEC : PROT_READ | PROT_EXEC,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
	struct ch__profiler *p = profile_running(&rig);
	ch__profile_lock(p);
	CHECK_EQ(ch__maps_read(p), 0);
	const struct ch__ranges *ranges = atomic_load(&p->ranges);
	CHECK(ranges->count >= PAGES / 2);
	CHECK(ranges->bytes >= sizeof *ranges + ranges->count * sizeof ranges->at[0]);
	for (uint32_t i = 1; i < ranges->count; i++)
		CHECK(ranges->at[i - 1].high < ranges->at[i].low);
	for (int i = 1; i < PAGES; i += i == 1 ? 1 : 2)
		check_has_page(ranges, at + i * PAGE);
	ch__profile_unlock(p);
	CHECK_EQ(munmap(at, (PAGES + 1) * PAGE), 0);
}

TEST_PROFILE(map_that_cannot_be_read_leaves_the_one_that_was)
{
	profile_start_still(&rig, 0);
	struct ch__profiler *p = profile_running(&rig);
	ch__profile_lock(p);
	struct ch__ranges *before = atomic_load(&p->ranges);
	CHECK(before);
	ch__os_fail_at(1, true);
	int error = ch__maps_read(p);
	ch__os_fail_at(0, false);
	CHECK(error != 0);
	CHECK(atomic_load(&p->ranges) == before);
	ch__profile_unlock(p);
}

/* --- the tree --- */

static bool is_added(struct ch__profiler *p, uint64_t word, size_t bytes_left)
{
	uint32_t count = p->tree.count, names = p->tree.names_count;
	ch__profile_lock(p);
	p->config.asked.memory_bytes = p->used_bytes + bytes_left;
	bool is_added = ch__tree_add(p, &word, 1, false, 1);
	ch__profile_unlock(p);
	CHECK_EQ(p->tree.count, count + is_added);
	CHECK_EQ(p->tree.names_count, names + is_added);
	return is_added;
}

/* Code enters the tree together with room for its name, or not at all. */
TEST_PROFILE(code_is_noted_with_room_for_its_name_or_not_at_all)
{
	profile_start_still(&rig, 0);
	make_codes();
	struct ch__profiler *p = profile_running(&rig);
	CHECK(!is_added(p, codes[0], CH__PROFILE_NAME_BYTES - 1));
	CHECK(is_added(p, codes[0], CH__PROFILE_NAME_BYTES));
	CHECK(!is_added(p, codes[1], 0));
	CHECK(is_added(p, codes[1], 2 * CH__PROFILE_NAME_BYTES));
	expect_folded(0, "inner 1\nouter 1\n");
}

/* The tables grow with the content: a look-up stays short. */
TEST_PROFILE(tables_of_the_tree_grow_with_it)
{
	enum { NODES = 3000, NAMES = 300 };
	profile_start_still(&rig, 0);
	make_codes();
	struct ch__profiler *p = profile_running(&rig);
	const struct ch__tree *tree = &p->tree;
	for (uint64_t i = 0; i < NODES; i++) {
		uint64_t word = i < NAMES ? codes[0] + (i << 24) : 0x1000 + i;
		add(&word, 1, false, 1);
		CHECK(tree->buckets_mask + 1 >= tree->count);
		CHECK(tree->buckets_mask + 1 <= (tree->count < 256 ? 256 : 2 * tree->count));
		CHECK(tree->names_mask + 1 >= 2 * tree->names_count);
		CHECK(tree->names_mask + 1 <= 64 + 4 * tree->names_count);
	}
	CHECK_EQ(tree->count, 1 + NODES);
	CHECK_EQ(tree->names_count, NAMES);
	for (uint64_t i = 0; i < NAMES; i++)
		CHECK_EQ(ch__tree_name(tree, codes[0] + (i << 24))->key, codes[0] + (i << 24));
	CHECK(!ch__tree_name(tree, codes[1]));
}

/* A profile starts only if the starting thread has a ring, whatever the memory. */
TEST_PROFILE(profile_without_room_for_a_ring_does_not_start)
{
	enum { MOST = 64 << 10, STEP = 512 };
	size_t least = 0;
	for (size_t bytes = STEP; bytes < MOST; bytes += STEP) {
		struct ch_profile_options options = {.size = sizeof options,
						     .memory_bytes = bytes};
		enum ch_status status = ch_profile_start(rig.stage->heap, 1, &options);
		if (status != CH_OK) {
			CHECK_EQ(status, CH_E_ARG);
			CHECK_EQ(least, 0);
			continue;
		}
		struct ch__profiler *p = profile_running(&rig);
		ch__profile_lock(p);
		CHECK(p->samplers && p->samplers->ring);
		CHECK(p->used_bytes <= bytes);
		ch__profile_unlock(p);
		CHECK_EQ(profile_stop(&rig).threads, 1);
		least = least ? least : bytes;
	}
	CHECK(least > 2 * STEP);
}

/* --- signals --- */

/* Sends this thread a signal as a timer of the profile does. */
static void send(void *tag, int code)
{
	siginfo_t info = {.si_signo = SIGPROF, .si_code = code};
	info.si_value.sival_ptr = tag;
	info.si_overrun = 2;
	CHECK_EQ(syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), SIGPROF, &info), 0);
}

static uint64_t words_taken(struct ch__sampler_slot *slot)
{
	return atomic_load(&atomic_load(&slot->sampler)->head);
}

struct leaving {
	_Atomic(int) tid;
	_Atomic(struct ch__sampler_slot *) slot;
	_Atomic(bool) leaves, has_left;
};

static void *attach_and_wait(void *arg)
{
	struct leaving *l = arg;
	CHECK_EQ(ch_thread_attach(rig.stage->heap, NULL, NULL), CH_OK);
	atomic_store(&l->tid, (int)syscall(SYS_gettid));
	TEST_UNTIL(atomic_load(&l->leaves))
		usleep(1000);
	CHECK_EQ(ch_thread_detach(rig.stage->heap), CH_OK);
	return NULL;
}

static void *detach_and_wait(void *arg)
{
	struct leaving *l = arg;
	CHECK_EQ(ch_thread_attach(rig.stage->heap, NULL, NULL), CH_OK);
	CHECK_EQ(ch_thread_detach(rig.stage->heap), CH_OK);
	atomic_store(&l->tid, (int)syscall(SYS_gettid));
	TEST_UNTIL(atomic_load(&l->leaves))
		usleep(1000);
	return NULL;
}

TEST_PROFILE(each_thread_that_is_there_is_sampled)
{
	enum { THREADS = 3, DETACHED = THREADS };
	static struct leaving waiting[THREADS + 1];
	pthread_t threads[THREADS + 1];
	for (int i = 0; i <= THREADS; i++) {
		void *(*wait)(void *) = i == DETACHED ? detach_and_wait : attach_and_wait;
		CHECK_EQ(pthread_create(&threads[i], NULL, wait, &waiting[i]), 0);
		TEST_UNTIL(atomic_load(&waiting[i].tid))
			usleep(1000);
	}
	profile_start_still(&rig, 0);
	CHECK_EQ(profile_stop(&rig).threads, 1 + THREADS);
	for (int i = 0; i <= THREADS; i++) {
		atomic_store(&waiting[i].leaves, true);
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	}
}

/* A thread ended without leaving the heap: the number belongs to nobody. */
TEST_PROFILE(thread_that_is_gone_is_not_sampled_and_not_refused)
{
	struct ch__sampler_slot slot = {.inside = 0};
	struct ch__thread *self = ch__thread_self(rig.stage->heap);
	int tid = self->thread_id;
	self->thread_id = INT32_MAX;
	CHECK_EQ(ch_profile_start(rig.stage->heap, 1, NULL), CH_OK);
	CHECK_EQ(ch__profiler_add(profile_running(&rig), &slot, INT32_MAX), ESRCH);
	CHECK(!atomic_load(&slot.sampler));
	self->thread_id = tid;
	struct ch_profile_counts counts = profile_stop(&rig);
	CHECK(counts.threads == 0 && counts.refused == 0);
}

static void *come_and_leave(void *arg)
{
	struct leaving *l = arg;
	struct ch_heap *heap = rig.stage->heap;
	atomic_store(&l->tid, (int)syscall(SYS_gettid));
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_OK);
	atomic_store(&l->slot, profile_slot(&rig));
	TEST_UNTIL(atomic_load(&l->leaves))
		usleep(1000);
	CHECK_EQ(ch_thread_detach(heap), CH_OK);
	atomic_store(&l->has_left, true);
	return NULL;
}

/* The sampler of a thread that leaves goes when others have done with it. */
TEST_PROFILE(thread_that_leaves_waits_while_rings_are_emptied)
{
	struct leaving l = {0};
	pthread_t thread;
	profile_start_still(&rig, 0);
	struct ch__profiler *p = profile_running(&rig);
	CHECK_EQ(pthread_create(&thread, NULL, come_and_leave, &l), 0);
	TEST_UNTIL(atomic_load(&l.slot))
		usleep(1000);
	struct ch__sampler_slot *slot = atomic_load(&l.slot);
	struct ch__sampler *s = atomic_load(&slot->sampler);
	ch__profile_lock(p);
	atomic_store(&l.leaves, true);
	TEST_UNTIL(atomic_load(&l.has_left) ||
		   (!atomic_load(&slot->sampler) && thread_is_asleep(atomic_load(&l.tid))))
		usleep(1000);
	CHECK(p->samplers == s);
	ch__profile_unlock(p);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* A signal within another signal's handler takes no sample, and leaves the sampler to the other. */
TEST(signal_within_a_handler_takes_nothing)
{
	profile_skip_if_signals_wait();
	profile_begin(&rig, STAGE_POLLS);
	profile_start_still(&rig, 0);
	struct ch__sampler_slot *slot = profile_slot(&rig);
	void *tag = ch__profile_tag(rig.stage->heap->id);
	uint64_t before = words_taken(slot);
	send(tag, SI_TIMER);
	uint64_t one = words_taken(slot);
	CHECK(one > before);
	CHECK_EQ(atomic_load(&slot->inside), 0);
	atomic_store(&slot->inside, 1);
	send(tag, SI_TIMER);
	CHECK_EQ(words_taken(slot), one);
	CHECK_EQ(atomic_load(&slot->inside), 1);
	atomic_store(&slot->inside, 0);
	/* Three ticks at once count as a weight of three. */
	CHECK_EQ(profile_stop(&rig).samples, 3);
	profile_end(&rig);
}

static void send_here(int signal)
{
	(void)signal;
	send(ch__profile_tag(rig.stage->heap->id), SI_TIMER);
}

static size_t end_process(void *user, const void *pc, const void *sp, const void *end,
			  const void **frames, size_t max)
{
	(void)user, (void)pc, (void)sp, (void)end, (void)frames, (void)max;
	_exit(1);
}

/* Nobody says where the alternate stack ends: the words above it may be in no memory. A VM's walk
 * is not asked. */
TEST(signal_on_a_stack_that_the_heap_does_not_know_takes_the_pc_alone)
{
	static uint8_t words[64 << 10];
	stack_t alternate = {.ss_sp = words, .ss_size = sizeof words};
	profile_skip_if_signals_wait();
	profile_begin(&rig, STAGE_POLLS);
	profile_start_still(&rig, 0);
	struct ch__sampler_slot *slot = profile_slot(&rig);
	CHECK_EQ(sigaltstack(&alternate, NULL), 0);
	for (int flags = 0; flags <= SA_ONSTACK; flags += SA_ONSTACK) {
		struct sigaction action = {.sa_handler = send_here, .sa_flags = flags};
		CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
		uint64_t before = words_taken(slot);
		CHECK_EQ(raise(SIGUSR1), 0);
		uint64_t taken = words_taken(slot) - before;
		CHECK(flags ? taken == 2 : taken > 2); /* with the header */
		profile_running(&rig)->config.asked.frames = end_process;
	}
	profile_end(&rig);
}
