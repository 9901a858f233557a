/* SPDX-License-Identifier: MIT
 * profile.c: samples of stacks that the test makes, one by one: where the stacks end, the frames'
 * names, what happens when room runs out, and who waits for a handler. */
#define _GNU_SOURCE /* _Fork */
#include "tests/support/profile_rig.h"

#include <limits.h>

enum { MAP_BYTES = 1 << 16 };

static struct profile_rig rig;

/* A stack of frame records, innermost first, with the given return addresses. */
struct made_stack {
	uintptr_t words[2048];
};

static struct ch__sampler_stack make_stack(struct made_stack *made, const void *pc,
					   const uintptr_t *returns, size_t count)
{
	uintptr_t low = (uintptr_t)made->words;
	for (size_t i = 0; i < count; i++) {
		uintptr_t next = i + 1 < count ? low + 16 * (i + 1) : 0;
		made->words[2 * i] = next ? next - (uintptr_t)(intptr_t)CH_ARCH_RECORD_AT : 0;
		made->words[2 * i + 1] = returns[i];
	}
	return (struct ch__sampler_stack){.pc = (uintptr_t)pc,
					  .fp = low - (uintptr_t)(intptr_t)CH_ARCH_RECORD_AT,
					  .sp = low,
					  .high = (uintptr_t)(made->words + 2048)};
}

static struct made_stack made;

TEST(stack_ends_at_an_address_that_is_no_code)
{
	profile_skip_without_names();
	profile_begin(&rig, STAGE_POLLS);
	uintptr_t in_main = (uintptr_t)profile_burn_all + 8;
	uintptr_t returns[] = {in_main, (uintptr_t)&made, in_main};
	profile_start_still(&rig, 0);
	struct ch__sampler_stack stack = make_stack(&made, (void *)in_main, returns, 3);
	profile_take(&rig, &stack, 7);
	returns[1] = 0x1234567;
	stack = make_stack(&made, (void *)in_main, returns, 3);
	profile_take(&rig, &stack, 5);
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, ";profile_burn_all;profile_burn_all;"), 12);
	CHECK_EQ(profile_weight(&rig, ""), 12);
	CHECK_EQ(profile_weight(&rig, "["), 0);
	CHECK_EQ(profile_weight(&rig, "0x"), 0);
	profile_end(&rig);
}

/* What stands in the frame pointer then is no frame's. */
TEST_PROFILE(stack_of_code_that_is_not_known_has_no_caller)
{
	uintptr_t returns[] = {(uintptr_t)profile_burn_all + 8};
	profile_start_still(&rig, 0);
	struct ch__pool *pool = rig.stage->heap->pool;
	const void *free_code = (const void *)(pool->exec_base + pool->pool_bytes - 64);
	struct ch__sampler_stack stack = make_stack(&made, (void *)0x1234567, returns, 1);
	profile_take(&rig, &stack, 5);
	stack = make_stack(&made, free_code, returns, 1);
	profile_take(&rig, &stack, 3);
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK_STR(rig.text, "[code memory without a block] 3\n[unknown] 5\n");
}

/* Linux on x86-64 shows [vsyscall] there as executable; other machines have nothing there. */
TEST(code_of_the_system_at_the_top_of_the_address_space_is_no_frame)
{
	profile_skip_without_names();
	profile_begin(&rig, STAGE_POLLS);
	uintptr_t in_main = (uintptr_t)profile_burn_all + 8;
	uintptr_t returns[] = {in_main, (uintptr_t)-0xa00000 + 8, in_main};
	profile_start_still(&rig, 0);
	struct ch__sampler_stack stack = make_stack(&made, (void *)in_main, returns, 3);
	profile_take(&rig, &stack, 5);
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, ";profile_burn_all;profile_burn_all;"), 5);
	CHECK_EQ(profile_weight(&rig, ""), 5);
	CHECK_EQ(profile_weight(&rig, "["), 0);
	profile_end(&rig);
}

/* Waits until the worker has read the maps once more from the beginning. A reading under way ends
 * before the profile's lock is free. */
static void wait_for_maps(void)
{
	struct ch__profiler *p = profile_running(&rig);
	ch__profile_lock(p);
	uint64_t from_ns = ch__os_now_ns(), read_ns;
	do {
		ch__profile_unlock(p);
		stage_sleep(1);
		ch__profile_lock(p);
		read_ns = p->maps_read_ns;
	} while (read_ns <= from_ns);
	ch__profile_unlock(p);
}

TEST_PROFILE(return_address_is_of_the_call_before_it)
{
	profile_start_still(&rig, 0);
	uint8_t *at = profile_map_file(&rig, "after", NULL, MAP_BYTES);
	wait_for_maps();
	uintptr_t returns[] = {(uintptr_t)at + 0x1000};
	struct ch__sampler_stack stack = make_stack(&made, at + 0x40, returns, 1);
	profile_take(&rig, &stack, 3);
	profile_stop(&rig);
	profile_read(&rig, 0);
	char line[200];
	const char *file = strrchr(rig.path, '/') + 1;
	snprintf(line, sizeof line, ";%s.after (deleted)+0xfff;%s.after (deleted)+0x40;", file,
		 file);
	CHECK_EQ(profile_weight(&rig, line), 3);
	munmap(at, MAP_BYTES);
}

TEST_PROFILE(memory_that_is_mapped_meanwhile_is_known_soon)
{
	profile_start_still(&rig, 0);
	/* The worker does not see the mapping before the first sample. */
	struct ch__profiler *p = profile_running(&rig);
	ch__profile_lock(p);
	uint8_t *at = profile_map_file(&rig, "new", NULL, MAP_BYTES);
	profile_take_pc(&rig, at, 1);
	CHECK(atomic_load(&p->maps_wanted));
	ch__profile_unlock(p);
	wait_for_maps();
	profile_take_pc(&rig, at, 10);
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, ".new (deleted)+0x0;"), 10);
	CHECK_EQ(profile_weight(&rig, ";[unknown];"), 1);
	munmap(at, MAP_BYTES);
}

/* More of a file is mapped, on both sides of the part that was mapped and seen. */
TEST_PROFILE(object_that_grows_is_named_to_its_new_end)
{
	char path[128];
	snprintf(path, sizeof path, "%s.grown", rig.path);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0700);
	CHECK(fd >= 0 && ftruncate(fd, 3 * MAP_BYTES) == 0);
	uint8_t *at = mmap(NULL, 3 * MAP_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	CHECK(mmap(at + MAP_BYTES, MAP_BYTES, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd,
		   MAP_BYTES) == at + MAP_BYTES);
	profile_start_still(&rig, 0);
	wait_for_maps();
	CHECK(mmap(at, 3 * MAP_BYTES, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0) == at);
	wait_for_maps();
	profile_take_pc(&rig, at + 0x10, 3);
	profile_take_pc(&rig, at + 2 * MAP_BYTES + 0x20, 5);
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, ".grown+0x10;"), 3);
	CHECK_EQ(profile_weight(&rig, ".grown+0x20020;"), 5);
	close(fd);
	unlink(path);
	munmap(at, 3 * MAP_BYTES);
}

/* Returns how many frames the sample of a stack has. */
static uint32_t frames_of(const void *pc, const uintptr_t *returns, size_t count)
{
	const struct ch__sampler *s = atomic_load(&profile_slot(&rig)->sampler);
	uint64_t head = atomic_load(&s->head);
	struct ch__sampler_stack stack = make_stack(&made, pc, returns, count);
	profile_take(&rig, &stack, 1);
	return (uint32_t)(s->ring[head & (s->words - 1)] & (CH__SAMPLE_CUT - 1));
}

/* A return address belongs to the byte before. */
TEST_PROFILE(memory_is_known_from_its_first_byte_to_its_last)
{
	uint8_t *around = mmap(NULL, 3 * MAP_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(around != MAP_FAILED);
	uintptr_t low = (uintptr_t)around + MAP_BYTES, high = low + MAP_BYTES;
	profile_map_file(&rig, "edges", around + MAP_BYTES, MAP_BYTES);
	profile_start_still(&rig, 0);
	const void *native = (const void *)((uintptr_t)profile_burn_all + 8);
	uintptr_t behind[] = {high + 1, high}, last[] = {high, high}, first[] = {low + 1, high};
	uintptr_t before[] = {low, high};
	CHECK_EQ(frames_of(native, last, 2), 3);
	CHECK_EQ(frames_of(native, behind, 2), 1);
	CHECK_EQ(frames_of(native, first, 2), 3);
	CHECK_EQ(frames_of(native, before, 2), 1);
	/* The range is the last range that was hit. */
	uintptr_t then_behind[] = {high, high + 1, high}, then_before[] = {low + 1, low, high};
	CHECK_EQ(frames_of(native, then_behind, 3), 2);
	CHECK_EQ(frames_of(native, then_before, 3), 2);
	profile_stop(&rig);
	munmap(around, 3 * MAP_BYTES);
}

TEST(each_range_of_memory_is_known_after_each_other)
{
	enum { RANGES = 3, RANGE_BYTES = 0x1000 };
	const uintptr_t lows[RANGES] = {0x10000, 0x20000, 0x30000};
	struct ch__ranges *made_up = calloc(1, sizeof *made_up + RANGES * sizeof *made_up->at);
	CHECK(made_up);
	made_up->count = RANGES;
	for (int i = 0; i < RANGES; i++)
		made_up->at[i] = (struct ch__range){lows[i], lows[i] + RANGE_BYTES};
	profile_begin(&rig, STAGE_POLLS);
	profile_start_still(&rig, 0);
	struct ch__profiler *p = profile_running(&rig);
	ch__profile_lock(p);
	struct ch__ranges *real = atomic_exchange(&p->ranges, made_up);
	for (int from = 0; from < RANGES; from++)
		for (int to = 0; to < RANGES; to++) {
			uintptr_t returns[] = {lows[from] + 9, lows[to] + 9, lows[from] + 9};
			CHECK_EQ(frames_of((void *)lows[to], returns, 3), 4);
		}
	atomic_store(&p->ranges, real);
	ch__profile_unlock(p);
	profile_end(&rig);
	free(made_up);
}

TEST(object_is_named_from_its_first_byte_to_its_last)
{
	struct ch__seen objects[] = {{.low = 0x1000, .high = 0x3000, .inode = 1},
				     {.low = 0x3000, .high = 0x4000, .inode = 2}};
	const struct ch__seen_list list = {.is_whole = true, .at = objects, .count = 2};
	bool is_several;
	CHECK(!ch__seen_find(&list, 0xfff, &is_several));
	CHECK(ch__seen_find(&list, 0x1000, &is_several) == &objects[0]);
	CHECK(ch__seen_find(&list, 0x2fff, &is_several) == &objects[0]);
	CHECK(ch__seen_find(&list, 0x3000, &is_several) == &objects[1] && !is_several);
	CHECK(ch__seen_find(&list, 0x3fff, &is_several) == &objects[1]);
	CHECK(!ch__seen_find(&list, 0x4000, &is_several) && !is_several);
}

/* File systems give the same numbers to their files. */
TEST(object_of_another_device_or_at_another_place_in_its_file_is_another)
{
	const struct ch__seen one = {.low = 0x1000, .high = 0x3000, .inode = 1, .device = 1};
	struct ch__seen objects[] = {one, one};
	const struct ch__seen_list list = {.is_whole = true, .at = objects, .count = 2};
	bool is_several;
	CHECK(ch__seen_find(&list, 0x1000, &is_several) && !is_several);
	objects[1].device = 2;
	CHECK(!ch__seen_find(&list, 0x1000, &is_several) && is_several);
	objects[1] = one;
	objects[1].base = 0x1000;
	CHECK(!ch__seen_find(&list, 0x1000, &is_several) && is_several);
}

/* Two objects had the same addresses, first and later: a sample there cannot tell which. */
TEST_PROFILE(object_that_was_replaced_lends_its_name_to_nobody)
{
	uint8_t *at = profile_map_file(&rig, "first", NULL, MAP_BYTES);
	uint8_t *alone = profile_map_file(&rig, "gone", NULL, MAP_BYTES);
	profile_start_still(&rig, 0);
	profile_take_pc(&rig, at, 4);
	profile_take_pc(&rig, alone + 0x20, 8);
	munmap(alone, MAP_BYTES);
	CHECK(profile_map_file(&rig, "second", at, MAP_BYTES) == at);
	wait_for_maps();
	profile_take_pc(&rig, at, 2);
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, ";[code that was replaced];"), 6);
	CHECK_EQ(profile_weight(&rig, ".gone (deleted)+0x20;"), 8);
	CHECK_EQ(profile_weight(&rig, ""), 14);
	munmap(at, MAP_BYTES);
}

TEST(deep_stack_keeps_its_innermost_frames)
{
	enum { DEEP = 800 };
	static uintptr_t returns[DEEP];
	profile_skip_without_names();
	profile_begin(&rig, STAGE_POLLS);
	profile_start_still(&rig, 0);
	for (int i = 0; i < DEEP; i++)
		returns[i] = (uintptr_t)profile_burn_all + 8;
	struct ch__sampler_stack stack =
		make_stack(&made, (void *)((uintptr_t)profile_burn + 8), returns, DEEP);
	profile_take(&rig, &stack, 3);
	/* The walk looks at one frame more, to know whether the stack goes on, and no further. */
	const uint64_t *ring = atomic_load(&profile_slot(&rig)->sampler)->ring;
	CHECK_EQ(ring[1 + CH__PROFILE_FRAMES_MAX + 1], 0);
	/* A stack with exactly as many frames as a sample keeps. */
	stack = make_stack(&made, (void *)((uintptr_t)profile_burn_all + 8), returns,
			   CH__PROFILE_FRAMES_MAX - 1);
	profile_take(&rig, &stack, 4);
	/* A stack that ends at an address without code is whole, whatever lies behind: one of
	 * exactly as many frames, too. */
	returns[CH__PROFILE_FRAMES_MAX - 1] = (uintptr_t)&made;
	stack = make_stack(&made, (void *)((uintptr_t)profile_burn_all + 8), returns, DEEP);
	profile_take(&rig, &stack, 6);
	returns[10] = (uintptr_t)&made;
	stack = make_stack(&made, (void *)((uintptr_t)profile_burn_all + 8), returns, DEEP);
	profile_take(&rig, &stack, 5);
	struct ch_profile_counts counts = profile_stop(&rig);
	CHECK_EQ(counts.samples, 18);
	CHECK_EQ(counts.cut, 3);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, ";[cut];profile_burn_all;"), 3);
	CHECK_EQ(profile_weight(&rig, ";profile_burn_all;profile_burn;"), 3);
	unsigned frames = 0;
	for (const char *at = strstr(rig.text, "[cut]"); *at != '\n'; at++)
		frames += *at == ';';
	CHECK_EQ(frames, CH__PROFILE_FRAMES_MAX);
	profile_end(&rig);
}

/* The ring begins anew at each take; from `room` on lies what the worker has not read. */
TEST(deep_sample_leaves_what_is_not_read_yet)
{
	enum { WORDS = 1024, MOST = CH__PROFILE_FRAMES_MAX + 4, UNREAD = 42 };
	static uintptr_t returns[WORDS];
	static uint64_t ring[WORDS];
	static struct ch__sampler sampler;
	profile_begin(&rig, STAGE_POLLS);
	profile_start_still(&rig, 0);
	memcpy(&sampler, atomic_load(&profile_slot(&rig)->sampler), sizeof sampler);
	sampler.ring = ring;
	sampler.words = WORDS;
	for (int i = 0; i < WORDS; i++)
		returns[i] = (uintptr_t)profile_burn_all + 8;
	struct ch__sampler_stack stack = make_stack(
		&made, (void *)((uintptr_t)profile_burn + 8), returns, WORDS);
	for (uint64_t room = MOST - 8; room <= MOST; room++) {
		for (int i = 0; i < WORDS; i++)
			ring[i] = UNREAD;
		atomic_store(&sampler.head, 2 * WORDS);
		atomic_store(&sampler.tail, WORDS + room);
		ch__sampler_take(&sampler, &stack, 1);
		for (uint64_t i = room; i < WORDS; i++)
			CHECK_EQ(ring[i], UNREAD);
	}
	CHECK_EQ(atomic_load(&sampler.head), 2 * WORDS + 1 + CH__PROFILE_FRAMES_MAX);
	CHECK(atomic_load(&sampler.dropped) > 0);
	profile_stop(&rig);
	profile_end(&rig);
}

/* Samples and drops add up to all takes, with any memory and any delay. When nobody waits for the
 * worker, takes go on until some sample is dropped. */
static void take_many(size_t memory_bytes, bool waits, uint64_t takes)
{
	uintptr_t returns[40];
	profile_begin(&rig, STAGE_POLLS);
	profile_start_still(&rig, memory_bytes);
	const struct ch__sampler *sampler = atomic_load(&profile_slot(&rig)->sampler);
	uintptr_t code = (uintptr_t)profile_burn_all;
	uint64_t n = 0;
	for (; n < takes || (!waits && !atomic_load(&sampler->dropped)); n++) {
		for (unsigned i = 0; i < 40; i++)
			returns[i] = code + 1 + (n >> (i % 16) & 1) * 8;
		struct ch__sampler_stack stack = make_stack(&made, (void *)code, returns, 40);
		profile_take(&rig, &stack, 2);
		if (waits && n % 30 == 29)
			profile_wait_for_worker(&rig);
	}
	CHECK_EQ(atomic_load(&sampler->dropped) == 0, waits);
	/* The sum holds while the profile runs, too. */
	struct ch_profile_counts so_far;
	ch__profiler_count(profile_running(&rig), &so_far);
	CHECK_EQ(so_far.samples + so_far.dropped, 2 * n);
	struct ch_profile_counts counts = profile_stop(&rig);
	CHECK_EQ(counts.samples + counts.dropped, 2 * n);
	CHECK(counts.dropped > 0);
	CHECK(counts.samples > 0);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, ";[dropped];"), counts.dropped);
	CHECK_EQ(profile_weight(&rig, ""), 2 * n);
	profile_end(&rig);
}

TEST(ring_that_is_full_drops_and_counts)
{
	take_many(0, false, 200000);
}

TEST(memory_that_is_full_drops_and_counts)
{
	enum { LITTLE_BYTES = 100000 };
	take_many(LITTLE_BYTES, true, 2000);
}

TEST_PROFILE(least_memory_has_room_for_some_code)
{
	struct ch_info info[CH__PROFILE_NAMES_LEAST];
	char name[8], line[16];
	profile_start_still(&rig, ch__profiler_least_bytes());
	for (unsigned i = 0; i < CH__PROFILE_NAMES_LEAST; i++) {
		struct method m;
		snprintf(name, sizeof name, "code%u", i);
		method_jumper(rig.stage, &m, name);
		info[i] = (struct ch_info){.size = sizeof info[i]};
		CHECK_EQ(ch_block_info(m.block, &info[i]), CH_OK);
		profile_take_pc(&rig, info[i].exec, 1 + i);
	}
	CHECK_EQ(profile_stop(&rig).dropped, 0);
	profile_read(&rig, 0);
	for (unsigned i = 0; i < CH__PROFILE_NAMES_LEAST; i++) {
		snprintf(line, sizeof line, ";code%u;", i);
		CHECK_EQ(profile_weight(&rig, line), 1 + i);
	}
}

/* --- code without a frame record --- */

static struct ch_info make_moments(const char *name)
{
	struct method m;
	struct emitter e;
	struct ch_info info = {.size = sizeof info};
	method_new(rig.stage, &m, name);
	method_open(&e, &m);
	emit_moments(&e);
	method_commit(&e, &m);
	CHECK_EQ(ch_block_info(m.block, &info), CH_OK);
	return info;
}

/* Takes a sample at each instruction of code that `caller` called; the record of `caller` leads to
 * `above`. Garbage, also code, lies where the return address would be at other instructions. */
TEST_PROFILE(code_without_a_frame_record_has_its_caller)
{
	enum { MOMENTS = sizeof code_moments / sizeof *code_moments, RECORD = 4 };
	struct ch_info above = make_moments("above"), caller = make_moments("caller");
	struct ch_info framed = make_moments("framed");
	profile_start_still(&rig, 0);
	uint64_t with_record = 0;
	for (unsigned i = 0; i < MOMENTS; i++) {
		uintptr_t *words = made.words, return_to = (uintptr_t)caller.exec + 4;
		ucontext_t context = {0};
		words[RECORD] = 0;
		words[RECORD + 1] = (uintptr_t)above.exec + 4;
		code_make_trap(&context,
			       (const uint8_t *)framed.exec + code_moments[i].at -
				       CODE_TRAP_BEHIND_BYTES,
			       words, return_to);
		words[0] = 0;
		words[code_moments[i].words] = return_to;
		struct ch__sampler_stack stack = {.pc = (uintptr_t)framed.exec + code_moments[i].at,
						  .fp = (uintptr_t)(words + RECORD) -
							(uintptr_t)(intptr_t)CH_ARCH_RECORD_AT,
						  .sp = (uintptr_t)words,
						  .high = (uintptr_t)(words + 2048),
						  .ucontext = &context};
		profile_take(&rig, &stack, 1);
		with_record += code_moments[i].has_record;
		/* Two words of a stack suffice for a look; fewer do not. */
		for (unsigned left = 1; left <= 2 && !code_moments[i].has_record; left++) {
			stack.high = (uintptr_t)(words + left);
			profile_take(&rig, &stack, 1);
		}
	}
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, ";above;framed;"), with_record);
	CHECK_EQ(profile_weight(&rig, ";above;caller;framed;"), MOMENTS - with_record);
	CHECK_EQ(profile_weight(&rig, ";caller;framed;"), 2 * (MOMENTS - with_record));
	CHECK_EQ(profile_weight(&rig, ";framed;"), MOMENTS + 2 * (MOMENTS - with_record));
}

/* --- blocks --- */

/* Memory that is full of stacks still has room for the names of all code in the stacks. */
TEST_PROFILE(sampled_code_has_room_for_its_name)
{
	enum { LITTLE_BYTES = 120000, CODES = 60, TAKES = 5000 };
	struct method m;
	struct ch_info info = {.size = sizeof info};
	char name[300];
	profile_start_still(&rig, LITTLE_BYTES);
	for (int i = 0; i < CODES; i++) {
		snprintf(name, sizeof name, "%0280d", i);
		method_constant(rig.stage, &m, name, 1);
		CHECK_EQ(ch_block_info(m.block, &info), CH_OK);
		profile_take_pc(&rig, info.exec, 1);
	}
	profile_wait_for_worker(&rig);
	for (uintptr_t i = 0; i < TAKES; i++) {
		profile_take_pc(&rig, (const void *)((uintptr_t)profile_burn_all + i), 1);
		if (i % 500 == 0)
			profile_wait_for_worker(&rig);
	}
	/* The ring has its part of the memory here, too. */
	profile_read(&rig, 0);
	CHECK(profile_stop(&rig).dropped > 0);
	for (int i = 0; i < CODES; i++) {
		snprintf(name, sizeof name, ";%0280d;", i);
		CHECK_EQ(profile_weight(&rig, name), 1);
	}
}

TEST_PROFILE(sampled_code_keeps_its_name_when_its_place_is_used_again)
{
	struct stage *s = rig.stage;
	profile_start_still(&rig, 0);
	const void *at = NULL;
	for (unsigned i = 0; i < 8; i++) {
		struct method m;
		struct ch_info info = {.size = sizeof info};
		char name[20], line[30];
		snprintf(name, sizeof name, "life%u", i);
		method_constant(s, &m, name, i);
		CHECK_EQ(ch_block_info(m.block, &info), CH_OK);
		/* Where a core may still run fetched bytes, the place waits for a cycle. */
		CHECK(!CH_ARCH_FETCH_FOLLOWS || !at || at == info.exec);
		at = info.exec;
		profile_take_pc(&rig, at, 1 + i);
		CHECK_EQ(ch_owner_release(m.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		profile_take_pc(&rig, at, 100);
		/* Read while the profile runs, and after the stop. */
		if (i == 7)
			profile_stop(&rig);
		profile_read(&rig, 0);
		for (unsigned k = 0; k <= i; k++) {
			snprintf(line, sizeof line, ";life%u", k);
			CHECK_EQ(profile_weight(&rig, line), 1 + k);
		}
	}
	CHECK_EQ(profile_weight(&rig, ";[code memory without a block];"), 800);
	CHECK_EQ(profile_weight(&rig, "[freed code]"), 0);
}

/* A record serves many codes in turn. */
TEST_PROFILE(sampled_code_is_not_another_of_the_same_record)
{
	enum { OTHERS_MOST = 4000 };
	struct stage *s = rig.stage;
	struct method first, again;
	struct ch_info info = {.size = sizeof info};
	method_constant(s, &first, "first", 1);
	profile_start_still(&rig, 0);
	CHECK_EQ(ch_block_info(first.block, &info), CH_OK);
	profile_take_pc(&rig, info.exec, 3);
	CHECK_EQ(ch_owner_release(first.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	stage_settle(s);
	ch_thread_poll();
	for (int i = 0;; i++) {
		CHECK(i < OTHERS_MOST);
		method_constant(s, &again, "again", 2);
		if (ch__handle_index(again.block.bits) == ch__handle_index(first.block.bits))
			break;
	}
	CHECK_EQ(ch_block_info(again.block, &info), CH_OK);
	profile_take_pc(&rig, info.exec, 5);
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, ";first;"), 3);
	CHECK_EQ(profile_weight(&rig, ";again;"), 5);
}

struct short_life {
	struct ch_vm *vm;
	struct ch_block block;
};

static void live_shortly(struct stage *s, void *arg)
{
	struct short_life *life = arg;
	struct ch_ops ops = {.size = sizeof ops};
	struct ch_owner owner;
	CHECK_EQ(ch_vm_attach(s->heap, &ops, NULL, &life->vm), CH_OK);
	CHECK_EQ(ch_owner_create(life->vm, "short-lived", stage_fallback, NULL, &owner), CH_OK);
	struct emitter e;
	emit_open(&e, owner, 64, 0);
	emit_nops(&e, 4);
	const void *at = e.code.exec;
	life->block = e.code.block;
	CHECK_EQ(emit_commit(&e), CH_OK);
	profile_take_pc(&rig, at, 9);
}

TEST_PROFILE(profile_outlives_the_vm_whose_code_it_has)
{
	struct short_life life;
	profile_start_still(&rig, 0);
	stage_apart(rig.stage, live_shortly, &life);
	CHECK_EQ(ch_vm_detach(life.vm), CH_OK);
	stage_collect(rig.stage);
	CHECK(!block_is_known(life.block));
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, ";short-lived;"), 9);
}

static uint64_t interpret(void *arg)
{
	return (uintptr_t)arg + 1;
}

TEST(kinds_of_frames_have_their_colours)
{
	profile_skip_without_names();
	profile_begin(&rig, STAGE_POLLS);
	struct stage *s = rig.stage;
	struct method jumper;
	struct ch_owner owner;
	struct ch_info info = {.size = sizeof info};
	struct ch_block slot;
	method_jumper(s, &jumper, "with-stubs");
	CHECK_EQ(ch_owner_create(s->vm, "slot", (const void *)(uintptr_t)interpret, NULL, &owner),
		 CH_OK);
	bool has_slots = ch_trampoline_make(owner, CH_TRAMPOLINE_FRAMED, (const void *)interpret, 0,
					    NULL, NULL, &slot) == CH_OK;
	profile_start_still(&rig, 0);
	CHECK_EQ(ch_block_info(jumper.block, &info), CH_OK);
	profile_take_pc(&rig, info.exec, 1);
	profile_take_pc(&rig, info.cold_exec + 4, 2);
	if (has_slots) {
		CHECK_EQ(ch_block_info(slot, &info), CH_OK);
		profile_take_pc(&rig, info.exec, 3);
	}
	profile_take_pc(&rig, (const void *)((uintptr_t)interpret + 1), 4);
	profile_take_pc(&rig, (const void *)((uintptr_t)profile_burn + 1), 5);
	profile_take_pc(&rig, (const void *)((uintptr_t)profile_burn_all + 1), 6);
	profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK_EQ(profile_weight(&rig, ";with-stubs;"), 1);
	CHECK_EQ(profile_weight(&rig, ";with-stubs (cold);"), 2);
	const char *named[] = {"profile_burn_all", NULL};
	struct ch_profile_view view = {.size = sizeof view, .title = "kinds", .interpreter = named};
	CHECK_EQ(ch_profile_write(s->heap, rig.path, &view), CH_OK);
	char *svg = profile_file(rig.path);
	CHECK(strstr(svg, ">kinds<"));
	CHECK(strstr(svg, "1 Hz of CPU time; "));
	CHECK(strstr(svg, "class=\"kind hot\" data-self=\"1\""));
	CHECK(strstr(svg, "class=\"kind cold\" data-self=\"2\""));
	CHECK(!has_slots || strstr(svg, "class=\"kind trampoline\" data-self=\"3\""));
	CHECK(strstr(svg, "class=\"kind native\" data-self=\"5\""));
	CHECK(strstr(svg, "class=\"kind interpreter\" data-self=\"10\""));
	free(svg);
	if (has_slots)
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	profile_end(&rig);
}

/* --- waiting --- */

/* The occupied handler leaves in the middle of the wait: the waiter has limited patience, and
 * another thread might not run in time. */
static _Thread_local struct ch__sampler_slot *occupied; /* by this thread */
static _Thread_local int waits;

static uint64_t pretend_time(uint64_t waited_ns)
{
	enum { WAITS = 100 };
	if (occupied && waited_ns) {
		if (++waits == WAITS)
			atomic_store(&occupied->inside, 0);
	} else if (waited_ns) {
		usleep((useconds_t)(waited_ns / 1000));
	}
	return now_ns();
}

TEST_PROFILE(sampler_waits_for_its_handler)
{
	ch__os_pretended.clock = pretend_time;
	profile_start_still(&rig, 0);
	struct ch__sampler_slot *slot = profile_slot(&rig);
	struct ch__profiler *p = profile_running(&rig);
	atomic_store(&slot->inside, 1);
	waits = 0;
	occupied = slot;
	profile_stop(&rig);
	occupied = NULL;
	CHECK_EQ(atomic_load(&slot->inside), 0);
	ch__profile_lock(p);
	CHECK(!p->samplers);
	ch__profile_unlock(p);
}

/* However often the worker reads while a debugger holds a thread in its handler. */
TEST_PROFILE(ranges_stay_while_a_handler_may_read_them)
{
	profile_start_still(&rig, 0);
	struct ch__sampler_slot *slot = profile_slot(&rig);
	struct ch__profiler *p = profile_running(&rig);
	ch__profile_lock(p);
	const struct ch__ranges *read_by_handler = atomic_load(&p->ranges);
	CHECK_EQ(ch__maps_read(p), 0);
	atomic_store(&slot->inside, 1);
	size_t bytes = ch__meta_bytes(p->meta);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(ch__maps_read(p), EBUSY);
	CHECK(p->replaced == read_by_handler);
	CHECK_EQ(ch__meta_bytes(p->meta), bytes);
	atomic_store(&slot->inside, 0);
	CHECK_EQ(ch__maps_read(p), 0);
	CHECK_EQ(ch__meta_bytes(p->meta), bytes);
	ch__profile_unlock(p);
}

TEST_PROFILE(handler_that_does_not_end_keeps_its_sampler)
{
	ch__os_pretended.clock = pretend_time;
	profile_start_still(&rig, 0);
	struct ch__sampler_slot *slot = profile_slot(&rig);
	struct ch__profiler *p = profile_running(&rig);
	atomic_store(&slot->inside, 1);
	waits = INT_MIN;
	occupied = slot;
	profile_stop(&rig);
	occupied = NULL;
	ch__profile_lock(p);
	CHECK(p->samplers && p->samplers->slot == slot);
	ch__profile_unlock(p);
	atomic_store(&slot->inside, 0);
}

static void *end_unseen(void *heap)
{
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_OK);
	syscall(SYS_exit, 0); /* no destructor of a key detaches the thread */
	return NULL;
}

TEST(profile_begins_though_an_attached_thread_has_ended)
{
	pthread_t thread;
	profile_begin(&rig, STAGE_POLLS);
	CHECK_EQ(pthread_create(&thread, NULL, end_unseen, rig.stage->heap), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	profile_start_still(&rig, 0);
	profile_stop(&rig);
	CHECK_EQ(ch_heap_destroy(rig.stage->heap), CH_E_BUSY);
}

TEST(child_that_ran_no_handler_of_fork_stops_the_profile)
{
	profile_begin(&rig, STAGE_POLLS);
	profile_start_still(&rig, 0);
	pid_t pid = _Fork();
	if (pid == 0) {
		profile_stop(&rig);
		_exit(0);
	}
	expect_exit_at_once(pid, NULL);
	profile_stop(&rig);
	profile_end(&rig);
}
