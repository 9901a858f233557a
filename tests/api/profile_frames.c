/* SPDX-License-Identifier: MIT
 * profile_frames.c: a VM that tells the profiler its frames, in place of the walk by frame
 * pointers: those of its code stand, all else that it says is left out. */
#include "tests/support/profile_rig.h"

enum { FRAMES_MOST = 1000 };

static struct profile_rig rig;
static const void *told[FRAMES_MOST]; /* by the walk of the VM, innermost first */
static size_t told_count;
static _Atomic(unsigned) calls, wrong;

static size_t walk_of_vm(void *user, const void *pc, const void *sp, const void *end,
			 const void **frames, size_t max)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);
	calls++;
	/* The handler runs below what it interrupted; not where ThreadSanitizer held the signal
	 * back, which then comes in a later call. */
	bool is_above = (uintptr_t)sp > here || CH_TSAN;
	if (user != &rig || !pc || !is_above || (uintptr_t)end <= (uintptr_t)sp)
		wrong++;
	size_t n = told_count < max ? told_count : max;
	memcpy(frames, told, n * sizeof *told);
	return n;
}

/* As a return address in the method: behind a byte of its code. */
static const void *place_in(const struct method *m)
{
	return (const uint8_t *)*m->cell + 1;
}

static struct ch_profile_counts profile_once(const struct method *busy)
{
	struct ch_profile_options options = {
		.size = sizeof options, .frames = walk_of_vm, .user = &rig};
	calls = 0;
	CHECK_EQ(ch_profile_start(rig.stage->heap, 1000, &options), CH_OK);
	/* A clock of processor time goes off at ticks of the system only, once for what is due: a
	 * thread that shares its processor may have few. */
	do
		method_call(busy, (void *)300);
	while (calls <= 10);
	struct ch_profile_counts counts = profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK(counts.samples > 0 && !wrong);
	CHECK_EQ(profile_weight(&rig, ""), counts.samples + counts.dropped);
	return counts;
}

/* The last of as many profiles as it takes until 30 samples had the text. None is read while it
 * runs: ThreadSanitizer would hand on, in the calls of the reader, signals that it held back, and
 * their handlers do not run below what was interrupted. */
static struct ch_profile_counts profile_with_walk(const struct method *busy, const char *part)
{
	struct ch_profile_counts counts;
	uint64_t weight = 0;
	do {
		counts = profile_once(busy);
		weight += profile_weight(&rig, part);
	} while (weight < 30);
	return counts;
}

static unsigned frames_of_line(const char *line)
{
	unsigned n = 1;
	for (; *line && *line != '\n'; line++)
		n += *line == ';';
	return n;
}

static void frames_begin(struct method *busy, struct method *inner, struct method *outer)
{
	profile_begin(&rig, STAGE_POLLS);
	method_native(rig.stage, busy, "busy", (void *)profile_burn_all);
	method_constant(rig.stage, inner, "inner", 1);
	method_constant(rig.stage, outer, "outer", 2);
}

TEST(frames_of_a_vm_stand_for_those_by_frame_pointers)
{
	struct method busy, inner, outer;
	frames_begin(&busy, &inner, &outer);
	/* Native code, nothing, and bytes of the pool that no block has are between. */
	const void *free_bytes = (const uint8_t *)place_in(&outer) + (1 << 20);
	told[0] = (const void *)(uintptr_t)profile_burn;
	told[1] = place_in(&inner);
	told[2] = NULL;
	told[3] = free_bytes;
	told[4] = (const void *)(uintptr_t)1;
	told[5] = place_in(&outer);
	told_count = 6;
	struct ch_profile_counts counts = profile_with_walk(&busy, "");
	CHECK_EQ(profile_weight(&rig, ";outer;inner;"), counts.samples);
	CHECK_EQ(profile_weight(&rig, ";busy;"), 0);
	CHECK_EQ(profile_weight(&rig, "[cut]"), 0);
	/* Those two and the innermost. */
	for (const char *line = rig.text; *line; line += strcspn(line, "\n") + 1)
		CHECK(frames_of_line(line) <= 3);
	profile_end(&rig);
}

TEST(a_vm_without_frames_is_walked_by_frame_pointers)
{
	struct method busy, inner, outer;
	frames_begin(&busy, &inner, &outer);
	told_count = 0;
	profile_with_walk(&busy, ";busy;");
	CHECK_EQ(profile_weight(&rig, ";inner;"), 0);
	profile_end(&rig);
}

TEST(more_frames_of_a_vm_than_are_kept_are_cut)
{
	struct method busy, inner, outer;
	frames_begin(&busy, &inner, &outer);
	for (told_count = 0; told_count < FRAMES_MOST; told_count++)
		told[told_count] = place_in(told_count < 256 ? &inner : &outer);
	struct ch_profile_counts counts = profile_with_walk(&busy, "");
	CHECK_EQ(counts.cut, counts.samples);
	CHECK_EQ(profile_weight(&rig, ";outer;inner;inner;"), counts.samples);
	profile_end(&rig);
}
