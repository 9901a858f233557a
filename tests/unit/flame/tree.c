/* SPDX-License-Identifier: MIT
 * tree.c: the tree of a flame graph and the folded form: merged, sorted, with exact weights, for
 * all names. When memory or a writer fails, the tree stays as before. */
#include "tests/support/flame_rig.h"

#include <errno.h>
#include <inttypes.h>

static void end_flame(void)
{
	ch__meta_destroy(meta);
	meta = NULL;
}

#define TEST_FLAME(name) TEST_WITH(name, struct ch__flame *, flame, new_flame(), end_flame())

TEST_FLAME(stacks_are_merged_and_sorted)
{
	check_folded(flame, false, "");
	CHECK(flame_add(flame, "main;b", CH__FLAME_NATIVE, 3));
	CHECK(flame_add(flame, "main;a;x", CH__FLAME_CODE, 2));
	CHECK(flame_add(flame, "main;b", CH__FLAME_NATIVE, 4));
	CHECK(flame_add(flame, "main", CH__FLAME_NATIVE, 1));
	CHECK(flame_add(flame, "main;nothing", CH__FLAME_NATIVE, 0));
	CHECK(flame_add(flame, "begin;a;x", CH__FLAME_CODE, 5));
	check_folded(flame, false, "begin;a;x 5\nmain 1\nmain;a;x 2\nmain;b 7\n");
	check_folded(flame, true, "b;main 7\nmain 1\nx;a;begin 5\nx;a;main 2\n");
	check_folded(flame, false, "begin;a;x 5\nmain 1\nmain;a;x 2\nmain;b 7\n");
}

TEST_FLAME(a_child_is_found_again_by_name_and_kind)
{
	uint32_t native = ch__flame_child(flame, 0, "f", CH__FLAME_NATIVE);
	uint32_t code = ch__flame_child(flame, 0, "f", CH__FLAME_CODE);
	CHECK(native && code && native != code);
	CHECK_EQ(ch__flame_child(flame, 0, "f", CH__FLAME_NATIVE), native);
	/* Whatever stands in front of a name. */
	CHECK_EQ(ch__flame_child(flame, 0, &"af"[1], CH__FLAME_NATIVE), native);
	CHECK_EQ(ch__flame_child(flame, 0, &"bf"[1], CH__FLAME_NATIVE), native);
	CHECK(ch__flame_child(flame, native, "f", CH__FLAME_NATIVE) != native);
	/* Folded stacks know no kinds: both are one line. */
	ch__flame_weigh(flame, native, 1);
	ch__flame_weigh(flame, code, 2);
	uint32_t below = ch__flame_child(flame, code, "h", CH__FLAME_NATIVE);
	ch__flame_weigh(flame, below, 4);
	ch__flame_weigh(flame, ch__flame_child(flame, native, "h", CH__FLAME_CODE), 8);
	check_folded(flame, false, "f 3\nf;h 12\n");
	check_folded(flame, true, "f 3\nh;f 12\n");
}

/* Each name and each child exists once, however many there are, wherever the tables grew. */
TEST_FLAME(each_of_many_children_is_found_again)
{
	enum { CHILDREN = 5000 };
	static uint32_t nodes[CHILDREN];
	size_t bytes = 0;
	for (int round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < CHILDREN; i++) {
			char name[20];
			snprintf(name, sizeof name, "f%u", i / 2);
			uint32_t parent = i % 2 ? nodes[i - 1] : 0;
			uint32_t node = ch__flame_child(flame, parent, name, CH__FLAME_CODE);
			CHECK(node && (round == 0 || node == nodes[i]));
			nodes[i] = node;
		}
		CHECK(round == 0 || ch__meta_bytes(meta) == bytes);
		bytes = ch__meta_bytes(meta);
	}
}

static void check_written(const char *name, const char *written)
{
	static uint64_t weight;
	char wanted[100];
	struct ch__flame *one = new_flame();
	uint32_t node = ch__flame_child(one, 0, name, CH__FLAME_CODE);
	CHECK(node);
	ch__flame_weigh(one, node, ++weight);
	snprintf(wanted, sizeof wanted, "%s %" PRIu64 "\n", written, weight);
	check_folded(one, false, wanted);
}

TEST_FLAME(names_of_any_bytes_stay_one_line_of_text)
{
	static const struct {
		const char *name, *written;
	} names[] = {
		{"a;b", "a:b"},
		{"a\nb\r\t", "a\xe2\x90\x8a"
			     "b\xe2\x90\x8d\xe2\x90\x89"},
		{"\x7f", "\xe2\x90\xa1"},
		{"caf\xc3\xa9 \xf0\x9f\x94\xa5", "caf\xc3\xa9 \xf0\x9f\x94\xa5"},
		/* The first byte of each length, with and without bits of the character. */
		{"\xc2\xa7\xdf\x80", "\xc2\xa7\xdf\x80"},
		{"\xe0\xa4\x85\xef\xb9\xb0", "\xe0\xa4\x85\xef\xb9\xb0"},
		{"\xf0\x90\x8d\x88\xf3\xa0\x84\x80", "\xf0\x90\x8d\x88\xf3\xa0\x84\x80"},
		/* The last character of a length and the first of the next length. */
		{"\xdf\xbf\xe0\xa0\x80", "\xdf\xbf\xe0\xa0\x80"},
		{"\xef\xbf\xbc\xf0\x90\x80\x80", "\xef\xbf\xbc\xf0\x90\x80\x80"},
		{"\xff", "\xef\xbf\xbd"}, {"\xc3", "\xef\xbf\xbd"}, /* no beginning; cut */
		{"\xf0\x9f\x94", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* cut */
		{"\xe0\x80\xaf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
		{"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},                 /* too long a form */
		{"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* a surrogate */
		{"\xed\xbf\xbf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* the last surrogate */
		/* The neighbours of the surrogates. */
		{"\xed\x9f\xbb\xee\x80\x80", "\xed\x9f\xbb\xee\x80\x80"},
		{"\xef\xbf\xbf", "\xef\xbf\xbd"},                         /* no character of XML */
		{"\xc2\x85", "\xef\xbf\xbd"},                             /* a control character */
		{"\xe2\x80\xa8\xe2\x80\xae",
		 "\xef\xbf\xbd\xef\xbf\xbd"}, /* a line end; right to left */
		{"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
		/* The ends of the replaced ranges, and the characters beside them. */
		{"\x1f ", "\xe2\x90\x9f "},
		{"\xc2\x80\xc2\x9f\xc2\xa0", "\xef\xbf\xbd\xef\xbf\xbd\xc2\xa0"},
		{"\xe2\x80\xa7\xe2\x80\xaf", "\xe2\x80\xa7\xe2\x80\xaf"},
		{"\xe2\x81\xa5\xe2\x81\xa6\xe2\x81\xa9\xe2\x81\xaa",
		 "\xe2\x81\xa5\xef\xbf\xbd\xef\xbf\xbd\xe2\x81\xaa"},
		{"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"}, /* the last character of all */
		{"\xf8\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
		{"\xef\xbf\xbe\xbf\xbf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* no beginning */
		{"\xe0\x9f\xbf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* too long a form */
		{"\xf0\x8f\xbf\xbf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
		{"", "[unknown]"},
	};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		check_written(names[i].name, names[i].written);
	/* Names that are written alike are one stack. */
	CHECK(ch__flame_child(flame, 0, "a;b", CH__FLAME_CODE));
	ch__flame_weigh(flame, 1, 1);
	CHECK(ch__flame_child(flame, 0, "a:b", CH__FLAME_CODE));
	ch__flame_weigh(flame, 2, 2);
	check_folded(flame, false, "a:b 3\n");
}

/* flamegraph.pl takes two numbers at the end of a line for the weights of two profiles. */
TEST_FLAME(number_at_the_end_of_a_name_is_no_weight)
{
	static const char *const names[][2] = {
		{"trace 7", "trace_7"}, {"trace  7.25", "trace _7.25"}, {"a 1 2.", "a 1_2."},
		{" 0123456789", "_0123456789"}, {"f 7a", "f 7a"}, {"f 7 ", "f 7 "}, {"f7", "f7"},
		{"f .5", "f .5"}, {"f 1.5.2", "f 1.5.2"}, {"f 1.5x", "f 1.5x"}, {"f ", "f "},
	};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		check_written(names[i][0], names[i][1]);
	ch__flame_weigh(flame, ch__flame_child(flame, 0, "loop 3", CH__FLAME_CODE), 4);
	ch__flame_weigh(flame, ch__flame_child(flame, 0, "loop_3", CH__FLAME_CODE), 8);
	check_folded(flame, false, "loop_3 12\n");
}

TEST_FLAME(weights_of_the_root_and_huge_ones_are_shown)
{
	ch__flame_weigh(flame, 0, 5);
	CHECK(flame_add(flame, "f", CH__FLAME_CODE, UINT64_MAX - 6));
	CHECK(flame_add(flame, "g", CH__FLAME_CODE, UINT64_MAX)); /* 1 is left */
	check_folded(flame, false, "[unknown] 5\nf 18446744073709551609\ng 1\n");
	check_folded(flame, true, "[unknown] 5\nf 18446744073709551609\ng 1\n");
}

enum { STACKS = 3000, LONGEST = 40 };
static struct weighed {
	char stack[2 * LONGEST];
	uint64_t weight;
} weighed[STACKS];

static int by_stack(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* The lines come in the order of bytes, as all names are of one byte. */
static void check_lines(char *folded)
{
	char *rest = folded, wanted[sizeof weighed->stack + 24];
	qsort(weighed, STACKS, sizeof *weighed, by_stack);
	for (unsigned i = 0; i < STACKS;) {
		const char *stack = weighed[i].stack;
		uint64_t weight = 0;
		while (i < STACKS && !strcmp(weighed[i].stack, stack))
			weight += weighed[i++].weight;
		snprintf(wanted, sizeof wanted, "%.*s %" PRIu64, (int)sizeof weighed->stack, stack,
			 weight);
		if (!weight)
			continue;
		CHECK(*rest);
		CHECK_STR(strsep(&rest, "\n"), wanted);
	}
	CHECK_STR(rest, "");
	free(folded);
}

static void turn(char *stack)
{
	for (char *low = stack, *high = stack + strlen(stack) - 1; low < high; low++, high--) {
		char kept = *low;
		*low = *high;
		*high = kept;
	}
}

/* Random trees against sums made without a tree. */
TEST(random_stacks_keep_their_weights)
{
	struct test_random random = test_random_new();
	for (unsigned round = 0; round < 10; round++) {
		struct ch__flame *flame = new_flame();
		for (unsigned i = 0; i < STACKS; i++) {
			char *stack = weighed[i].stack;
			unsigned depth = 1 + (unsigned)test_random_below(&random, LONGEST - 1);
			for (unsigned d = 0; d < depth; d++) {
				stack[2 * d] = (char)('a' + test_random_below(&random, 3));
				stack[2 * d + 1] = d + 1 < depth ? ';' : 0;
			}
			weighed[i].weight = test_random_below(&random, 100);
			CHECK(flame_add(flame, stack, (enum ch__flame_kind)(round % 6),
					weighed[i].weight));
		}
		check_lines(flame_folded(flame, false));
		for (unsigned i = 0; i < STACKS; i++)
			turn(weighed[i].stack);
		check_lines(flame_folded(flame, true));
		end_flame();
	}
}

TEST_FLAME(refused_write_ends_the_writing)
{
	char stack[20];
	for (unsigned i = 0; i < 5000; i++) {
		snprintf(stack, sizeof stack, "main;f%u", i);
		CHECK(flame_add(flame, stack, CH__FLAME_CODE, 1));
	}
	struct flame_text out = {.limit = 20000};
	CHECK(!ch__flame_write_folded(flame, false, flame_take, &out));
	CHECK(out.bytes > 0 && out.bytes <= out.limit);
	free(out.text);
}

static bool fill(struct ch__flame *flame)
{
	char stack[40];
	bool is_whole = true;
	for (unsigned i = 0; i < 300; i++) {
		snprintf(stack, sizeof stack, "main;f%u;g%u", i % 150, i);
		is_whole &= flame_add(flame, stack, CH__FLAME_CODE, 1);
	}
	return is_whole;
}

/* Each allocation fails once: the tree keeps its content, and the same call works afterwards. */
TEST(each_failing_allocation_leaves_the_tree_as_it_was)
{
	struct ch__flame *whole = new_flame();
	CHECK(fill(whole));
	char *wanted[] = {flame_folded(whole, false), flame_folded(whole, true)};
	unsigned failures = 0;
	for (uint64_t nth = 1;; nth++) {
		ch__os_fail_at(nth, false);
		struct ch__flame *flame = ch__flame_create(meta);
		bool was_made = flame != NULL, was_filled = flame && fill(flame);
		struct flame_text out[2] = {{0}, {0}};
		bool were_written[2] = {false, false};
		for (unsigned i = 0; i < 2 && was_filled; i++)
			were_written[i] = ch__flame_write_folded(flame, i, flame_take, &out[i]);
		uint64_t calls = ch__os_failable_calls();
		ch__os_fail_at(0, false);
		if (calls < nth) {
			CHECK(were_written[0] && were_written[1]);
			free(out[0].text);
			free(out[1].text);
			break;
		}
		failures++;
		CHECK(!was_made || !was_filled || !were_written[0] || !were_written[1]);
		if (was_made && was_filled) {
			check_folded(flame, false, wanted[0]);
			check_folded(flame, true, wanted[1]);
		}
		free(out[0].text);
		free(out[1].text);
	}
	CHECK(failures > 30);
	end_flame();
	free(wanted[0]);
	free(wanted[1]);
}
