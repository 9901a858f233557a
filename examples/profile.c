/* SPDX-License-Identifier: MIT
 * profile.c: two loops of machine code, sampled for half a second of processor time: each
 * procedure's share, as a picture and as lines. x86-64.
 *
 *     profile [FILE.svg [FILE.folded]] */
#include <codeheap/profile.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void ok(enum ch_status status)
{
	if (status == CH_OK)
		return;
	fprintf(stderr, "profile: %s\n", ch_why());
	exit(1);
}

/* A procedure that counts to zero. The frame pointer leads the profiler to the caller. */
static void (*compile(struct ch_heap *heap, const char *name, unsigned turns))(void)
{
	/* push rbp; mov rbp, rsp; mov eax, turns; dec eax; jnz -4; pop rbp; ret */
	unsigned char bytes[] = {0x55, 0x48, 0x89, 0xe5, 0xb8, 0,    0,   0,
				 0,    0xff, 0xc8, 0x75, 0xfc, 0x5d, 0xc3};
	void (*procedure)(void);
	memcpy(bytes + 5, &turns, sizeof turns);
	ok(ch_code_add(heap, bytes, sizeof bytes, name, &procedure));
	return procedure;
}

int main(int argc, char **argv)
{
	const char *svg = argc > 1 ? argv[1] : "profile.svg";
	const char *folded = argc > 2 ? argv[2] : "profile.folded";
	struct ch_heap *heap;
	ok(ch_heap_create(NULL, &heap));
	void (*slow)(void) = compile(heap, "slow", 300000);
	void (*quick)(void) = compile(heap, "quick", 100000);
	/* [example] */
	ok(ch_profile_start(heap, 250, NULL)); // samples a second of each thread's processor time
	clock_t end = clock() + CLOCKS_PER_SEC / 2;
	while (clock() < end) {
		slow();
		quick();
	}
	struct ch_profile_counts counts = {.size = sizeof counts};
	ok(ch_profile_stop(heap, &counts));
	struct ch_profile_view picture = {.size = sizeof picture, .title = "slow and quick"};
	ok(ch_profile_write(heap, svg, &picture));
	struct ch_profile_view lines = {.size = sizeof lines, .flags = CH_PROFILE_FOLDED};
	ok(ch_profile_write(heap, folded, &lines)); // `outer;inner COUNT` each
	/* [example end] */
	printf("%llu samples of %llu thread, %llu dropped; in %s and %s\n",
	       (unsigned long long)counts.samples, (unsigned long long)counts.threads,
	       (unsigned long long)counts.dropped, svg, folded);
	ok(ch_heap_destroy(heap));
	return 0;
}
