/* SPDX-License-Identifier: MIT
 * profile_frames.c: a VM that gives the profiler its frames, in place of the walk by frame
 * pointers. Frames of the VM's code are shown, and all other addresses are left out. */
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
	/* The handler runs below the interrupted frame. If ThreadSanitizer held the signal back,
	 * the signal comes in a later call, and the handler may run elsewhere. */
	bool is_above = (uintptr_t)sp > here || CH_TSAN;
	if (user != &rig || !pc || !is_above || (uintptr_t)end <= (uintptr_t)sp)
		wrong++;
	size_t n = told_count < max ? told_count : max;
	memcpy(frames, told, n * sizeof *told);
	return told_count;
}

/* An address in the method, like a return address: behind a byte of the code. */
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
	/* A clock of processor time fires at ticks of the system only, a single time for all that
	 * is due. A thread on a shared processor may have few samples. */
	do
		method_call(busy, (void *)300);
	while (calls <= 10);
	struct ch_profile_counts counts = profile_stop(&rig);
	profile_read(&rig, 0);
	CHECK(counts.samples > 0 && !wrong);
	CHECK_EQ(profile_weight(&rig, ""), counts.samples + counts.dropped);
	return counts;
}

/* Profiles until 30 samples had the text, and returns the counts of the last profile. No running
 * profile is read: in the reader's calls ThreadSanitizer would pass on signals held back, and their
 * handlers would not run below the interrupted frame. */
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
	/* Between the frames stand native code, NULL, and bytes of the pool without a block. */
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
	/* The two frames of the VM, and the innermost frame. */
	for (const char *line = rig.text; *line; line += strcspn(line, "\n") + 1)
		CHECK_EQ(frames_of_line(line), strncmp(line, "outer;", 6) ? 1 : 3);
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

/* Frames that are left out took the room of others. */
TEST(a_walk_of_a_vm_that_filled_its_room_is_cut)
{
	struct method busy, inner, outer;
	frames_begin(&busy, &inner, &outer);
	for (told_count = 0; told_count < FRAMES_MOST; told_count++)
		told[told_count] = told_count % 2 ? (const void *)(uintptr_t)profile_burn
						  : place_in(&inner);
	struct ch_profile_counts counts = profile_with_walk(&busy, "");
	CHECK_EQ(counts.cut, counts.samples);
	CHECK_EQ(profile_weight(&rig, ";[cut];inner;inner;"), counts.samples);
	profile_end(&rig);
}
