/* SPDX-License-Identifier: MIT
 * svg.c: the picture of a flame graph as a strict reader sees it. The picture is well formed for
 * all names, boxes lie where the sums say, and nothing is wider than its parent. The picture is
 * whole or refused when memory or a writer fails. tests/tool/flame.sh has a browser draw a
 * picture. */
#include "tests/support/flame_reader.h"

#include <locale.h>
#include <time.h>

static const struct ch__flame_view plain = {
	.title = "a title", .subtitle = "997 Hz, 20 samples, 0 dropped", .unit = "samples"};

static void draw(struct ch__flame *flame, const struct ch__flame_view *view, struct flame_svg *svg)
{
	struct flame_text out = {0};
	CHECK(ch__flame_write_svg(flame, view, flame_take, &out));
	flame_read(svg, out.text);
	free(out.text);
}

static bool is_about(double a, double b)
{
	return a - b < 0.0011 && b - a < 0.0011;
}

/* Checks that every box lies in the parent box, right of the box before, a row above or below, at
 * the place that the numbers say. Returns the sum of the boxes' own weights. */
static uint64_t check_boxes(const struct flame_svg *svg, bool is_icicle)
{
	const struct flame_box *last[200] = {svg->boxes}; /* by depth */
	const struct flame_box *all = &svg->boxes[0];
	uint64_t ended = 0;
	CHECK(svg->count && all->depth == 0 && all->width == 1180 && all->x == 10);
	for (size_t i = 1; i < svg->count; i++) {
		const struct flame_box *box = &svg->boxes[i];
		CHECK(box->depth > 0 && box->depth <= box[-1].depth + 1 && box->depth < 200);
		const struct flame_box *parent = last[box->depth - 1], *before = last[box->depth];
		CHECK(box->start >= parent->start);
		CHECK(box->start + box->count <= parent->start + parent->count);
		CHECK(box->self <= box->count);
		CHECK(box->x >= parent->x - 1e-9);
		CHECK(box->x + box->width <= parent->x + parent->width + 1e-9);
		CHECK(is_about(box->width, 1180.0 * (double)box->count / (double)all->count));
		CHECK(is_about(box->x, 10 + 1180.0 * (double)box->start / (double)all->count));
		CHECK(box->y == parent->y + (is_icicle ? 17 : -17));
		CHECK(box->count >= all->count / 11800);
		CHECK(!before || before->x + before->width <= box->x + 1e-9);
		CHECK(!before || before->start + before->count <= box->start);
		last[box->depth] = box;
		ended += box->self;
	}
	return ended;
}

TEST(boxes_lie_where_the_weights_say)
{
	struct ch__flame *flame = new_flame();
	struct flame_svg svg;
	CHECK(flame_add(flame, "main;b", CH__FLAME_NATIVE, 3));
	CHECK(flame_add(flame, "main;a;x", CH__FLAME_NATIVE, 5));
	CHECK(flame_add(flame, "main", CH__FLAME_NATIVE, 2));
	CHECK(flame_add(flame, "jit;a", CH__FLAME_CODE, 10));
	draw(flame, &plain, &svg);
	CHECK_EQ(svg.count, 7);
	CHECK_EQ(check_boxes(&svg, false), 20);
	/* Siblings are in the order of names; a parent's own weight lies right of the children. */
	const struct flame_box *main_box = flame_find(&svg, "main", 1);
	CHECK_EQ(main_box->start, 10);
	CHECK_EQ(main_box->count, 10);
	CHECK_EQ(main_box->self, 2);
	CHECK_EQ(flame_find(&svg, "b", 2)->start, 15);
	CHECK_EQ(flame_find(&svg, "x", 3)->start, 10);
	CHECK(strncmp(main_box->class, "frame native s", 14) == 0);
	CHECK(strncmp(flame_find(&svg, "jit", 1)->class, "frame hot s", 11) == 0);
	CHECK_STR(main_box->title, "main\nnative: 10 samples, 50.00 %, 2 of its own");
	CHECK_STR(flame_find(&svg, "all", 0)->title, "all\nother: 20 samples, 100.00 %");
	CHECK_STR(main_box->label, "main");
	CHECK_EQ(flame_whole(svg.root, "data-total"), 20);
	CHECK_EQ(flame_whole(svg.root, "data-left-out"), 0);
	CHECK(strstr(svg.text, "a title\n997 Hz, 20 samples, 0 dropped\n"));
	CHECK(strstr(svg.text, "native 50.00 %\n") && strstr(svg.text, "JIT hot 50.00 %\n"));
	CHECK(strstr(svg.text, "trampoline\n") && svg.has_script);
	CHECK(!strstr(svg.text, "left out"));
	flame_forget(&svg);
}

/* The legend has a box of 14 pixels for each kind, with the name behind, and then the next box: a
 * letter is at most 6 pixels wide. */
TEST(names_of_kinds_stand_6_pixels_behind_their_boxes)
{
	enum { LETTER = 6 };
	int end = 0;
	struct ch__flame *flame = new_flame();
	struct flame_text out = {0};
	unsigned kinds = 0;
	CHECK(flame_add(flame, "main;b", CH__FLAME_NATIVE, 3));
	CHECK(ch__flame_write_svg(flame, &plain, flame_take, &out));
	const char *at = strstr(out.text, "<g class=\"legend\">");
	CHECK(at);
	while ((at = strstr(at, "\" y=\"56\" width=\"14\""))) {
		const char *box = at, *name = strstr(at, "<text x=\"");
		while (box[-1] != '"')
			box--;
		const char *group = box - strlen("<rect x=\"") - 2; /* the ends of group and line */
		while (*group != '\n' && *group != '<')
			group--;
		CHECK(name && strncmp(group, "<g class=\"kind ", 15) == 0);
		CHECK_EQ(atoi(name + strlen("<text x=\"")), atoi(box) + 14 + 6);
		CHECK(atoi(box) > end);
		const char *text = strchr(name, '>') + 1;
		end = atoi(box) + 14 + 6 + LETTER * (int)strcspn(text, "<");
		kinds++;
		at = name;
	}
	CHECK_EQ(kinds, CH__FLAME_KINDS);
	free(out.text);
}

TEST(icicle_and_reversed_turn_the_picture)
{
	struct ch__flame *flame = new_flame();
	struct flame_svg svg;
	CHECK(flame_add(flame, "main;a;x", CH__FLAME_NATIVE, 5));
	CHECK(flame_add(flame, "main;b;x", CH__FLAME_NATIVE, 15));
	CHECK(flame_add(flame, "main;b", CH__FLAME_NATIVE, 20));
	for (unsigned i = 0; i < 4; i++) {
		struct ch__flame_view view = {
			.unit = "Ir", .is_icicle = i & 1, .is_reversed = i & 2};
		draw(flame, &view, &svg);
		CHECK_EQ(check_boxes(&svg, view.is_icicle), 40);
		CHECK_EQ(flame_whole(svg.root, "data-icicle"), view.is_icicle);
		CHECK(strstr(svg.root, "data-unit=\"Ir\""));
		CHECK_EQ(flame_whole(svg.root, "data-reversed"), view.is_reversed);
		if (view.is_reversed) {
			CHECK_EQ(flame_find(&svg, "x", 1)->count, 20);
			CHECK_EQ(flame_find(&svg, "x", 1)->self, 0);
			CHECK_EQ(flame_find(&svg, "a", 2)->count, 5);
			CHECK_EQ(flame_find(&svg, "b", 1)->start, 0);
			CHECK_STR(flame_find(&svg, "b", 1)->title, "b\nnative: 20 Ir, 50.00 %");
			CHECK_STR(flame_find(&svg, "main", 2)->title,
				  "main\nnative: 20 Ir, 50.00 %"); /* none of its own */
		} else {
			CHECK_EQ(flame_find(&svg, "main", 1)->count, 40);
			CHECK_EQ(flame_find(&svg, "b", 2)->self, 20);
		}
		CHECK(!strstr(svg.text, "title") && strstr(svg.text, " graph\n"));
		flame_forget(&svg);
	}
}

TEST(names_of_any_bytes_are_text_to_a_reader)
{
	static const char *const names[][2] = {
		{"a<b>&\"c\"'d'", "a<b>&\"c\"'d'"},
		{"]]></script><script>alert(1)</script>", "]]></script><script>alert(1)</script>"},
		{"&lt;&#10;", "&lt;&#10;"},
		{"\x01\x1f\x7f\n", "\xe2\x90\x81\xe2\x90\x9f\xe2\x90\xa1\xe2\x90\x8a"},
		{"\xff\xfe\xed\xa0\x80\xef\xbf\xbe", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf"
						     "\xbd\xef\xbf\xbd\xef\xbf\xbd"},
		{"\xf0\x9f\x94\xa5\xc3", "\xf0\x9f\x94\xa5\xef\xbf\xbd"},
	};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		struct ch__flame *flame = new_flame();
		struct flame_svg svg;
		uint32_t node = ch__flame_child(flame, 0, names[i][0], CH__FLAME_CODE);
		CHECK(node);
		ch__flame_weigh(flame, node, 1);
		struct ch__flame_view view = {names[i][0], names[i][0], names[i][0], false, false};
		draw(flame, &view, &svg);
		CHECK_EQ(svg.count, 2);
		CHECK_STR(flame_find(&svg, names[i][1], 1)->label, names[i][1]);
		char lines[300];
		snprintf(lines, sizeof lines, "%s\n%s\n%s\n", names[i][1], names[i][1],
			 names[i][1]);
		CHECK(strstr(svg.text, lines)); /* the document's title, too */
		/* In an attribute a quote would end the unit. */
		CHECK(i || strstr(svg.root, "=\"a&#60;b&#62;&#38;&#34;c&#34;'d'\" data-total=\""));
		flame_forget(&svg);
	}
}

TEST(labels_are_cut_to_their_boxes)
{
	struct ch__flame *flame = new_flame();
	struct flame_svg svg;
	char name[5000];
	memset(name, 'n', sizeof name);
	name[sizeof name - 1] = 0;
	uint32_t node = ch__flame_child(flame, 0, name, CH__FLAME_CODE);
	ch__flame_weigh(flame, node, 80);
	/* A tenth of the width is 118 pixels, of which 112 / 7.25 = 15 columns. */
	ch__flame_weigh(flame, ch__flame_child(flame, 0, "o23456789012345", CH__FLAME_CODE), 10);
	ch__flame_weigh(flame, ch__flame_child(flame, 0, "p234567890123456", CH__FLAME_CODE), 10);
	draw(flame, &plain, &svg);
	CHECK_STR(flame_find(&svg, "o23456789012345", 1)->label, "o23456789012345");
	CHECK_STR(flame_find(&svg, "p234567890123456", 1)->label, "p2345678901234\xe2\x80\xa6");
	/* 944 pixels hold 129 columns; the last column is the sign. */
	const struct flame_box *box = &svg.boxes[1];
	CHECK_EQ(strspn(box->label, "n"), 128);
	CHECK_STR(box->label + 128, "\xe2\x80\xa6");
	CHECK_EQ(strspn(box->title, "n"), sizeof svg.boxes[0].title - 1);
	flame_forget(&svg);
	/* Characters of two columns, and boxes too narrow for a name. */
	flame = new_flame();
	ch__flame_weigh(flame, ch__flame_child(flame, 0, "a", CH__FLAME_CODE), 20);
	ch__flame_weigh(flame,
			ch__flame_child(flame, 0, "b\xe6\x97\xa5\xe6\x9c\xac", CH__FLAME_CODE), 40);
	ch__flame_weigh(flame,
			ch__flame_child(flame, 0, "d\xe6\x97\xa5\xe6\x9c\xac", CH__FLAME_CODE), 35);
	ch__flame_weigh(flame, ch__flame_child(flame, 0, "c", CH__FLAME_CODE), 905);
	draw(flame, &plain, &svg);
	CHECK_STR(flame_find(&svg, "a", 1)->label, "");
	CHECK_STR(flame_find(&svg, "b\xe6\x97\xa5\xe6\x9c\xac", 1)->label,
		  "b\xe6\x97\xa5\xe6\x9c\xac");
	CHECK_STR(flame_find(&svg, "d\xe6\x97\xa5\xe6\x9c\xac", 1)->label,
		  "d\xe6\x97\xa5\xe2\x80\xa6");
	CHECK_STR(flame_find(&svg, "c", 1)->label, "c");
	flame_forget(&svg);
}

TEST(narrow_frames_are_left_out_and_counted)
{
	struct ch__flame *flame = new_flame();
	struct flame_svg svg;
	/* A weight of 1 in 11,800 is a tenth of a pixel. */
	CHECK(flame_add(flame, "wide", CH__FLAME_CODE, 11796));
	CHECK(flame_add(flame, "narrow;inner;innermost", CH__FLAME_CODE, 1));
	CHECK(flame_add(flame, "wide;just", CH__FLAME_CODE, 2));
	CHECK(flame_add(flame, "wide;narrow", CH__FLAME_CODE, 1));
	CHECK(ch__flame_child(flame, 0, "nothing", CH__FLAME_CODE)); /* of no stack: no frame */
	draw(flame, &plain, &svg);
	CHECK_EQ(flame_whole(svg.root, "data-left-out"), 0);
	CHECK_EQ(svg.count, 7);
	flame_forget(&svg);
	CHECK(flame_add(flame, "wide", CH__FLAME_CODE, 1));
	draw(flame, &plain, &svg);
	CHECK_EQ(flame_whole(svg.root, "data-left-out"), 2);
	CHECK_EQ(svg.count, 3);
	CHECK(strstr(svg.text, "2 frames narrower than a tenth of a pixel left out"));
	check_boxes(&svg, false);
	flame_forget(&svg);
	/* The line stands below three rows of boxes, which end at 155. */
	struct flame_text out = {0};
	CHECK(ch__flame_write_svg(flame, &plain, flame_take, &out));
	CHECK(strstr(out.text, "class=\"note\" x=\"10\" y=\"170\""));
	free(out.text);
}

TEST(nothing_at_all_and_huge_weights_are_drawn)
{
	struct ch__flame *flame = new_flame();
	struct flame_svg svg;
	draw(flame, &plain, &svg);
	CHECK_EQ(svg.count, 1);
	CHECK_STR(flame_find(&svg, "all", 0)->title, "all\nother: 0 samples, 0.00 %");
	CHECK_EQ(flame_whole(svg.root, "data-total"), 0);
	flame_forget(&svg);
	CHECK(flame_add(flame, "f", CH__FLAME_CODE, UINT64_MAX / 2));
	CHECK(flame_add(flame, "g;h", CH__FLAME_CODE, UINT64_MAX));
	draw(flame, &plain, &svg);
	CHECK_EQ(check_boxes(&svg, false), UINT64_MAX);
	CHECK(strstr(flame_find(&svg, "h", 2)->title,
		     "9,223,372,036,854,775,808 samples, 50.00 %"));
	flame_forget(&svg);
}

TEST(shares_are_rounded_and_thousands_are_apart)
{
	struct ch__flame *flame = new_flame();
	struct flame_svg svg;
	CHECK(flame_add(flame, "f", CH__FLAME_CODE, 1000));
	CHECK(flame_add(flame, "g", CH__FLAME_CODE, 6000));
	draw(flame, &plain, &svg);
	CHECK(strstr(flame_find(&svg, "f", 1)->title, "1,000 samples, 14.29 %"));
	CHECK(strstr(flame_find(&svg, "g", 1)->title, "6,000 samples, 85.71 %"));
	flame_forget(&svg);
}

TEST(names_have_all_shades)
{
	struct ch__flame *flame = new_flame();
	struct flame_svg svg;
	unsigned seen = 0;
	char name[] = "fa", *last = name + 1;
	for (; *last <= 'z'; ++*last)
		CHECK(flame_add(flame, name, CH__FLAME_CODE, 1));
	draw(flame, &plain, &svg);
	for (*last = 'a'; *last <= 'z'; ++*last)
		seen |= 1u << (strstr(flame_find(&svg, name, 1)->class, " s")[2] - '0');
	CHECK_EQ(seen, 7);
	flame_forget(&svg);
}

/* 590 samples on 1180 pixels: one sample has two pixels, the narrowest box with a line around. */
TEST(box_of_two_pixels_has_a_line_around_it_and_a_thinner_one_has_none)
{
	struct ch__flame *flame = new_flame();
	struct flame_svg svg;
	CHECK(flame_add(flame, "edge", CH__FLAME_CODE, 1));
	CHECK(flame_add(flame, "rest", CH__FLAME_CODE, 589));
	draw(flame, &plain, &svg);
	CHECK(flame_find(&svg, "edge", 1)->width == 2);
	CHECK(!strstr(flame_find(&svg, "edge", 1)->class, "thin"));
	flame_forget(&svg);
	CHECK(flame_add(flame, "rest", CH__FLAME_CODE, 1));
	draw(flame, &plain, &svg);
	CHECK(flame_find(&svg, "edge", 1)->width < 2);
	CHECK(strstr(flame_find(&svg, "edge", 1)->class, "thin"));
	CHECK(!strstr(flame_find(&svg, "rest", 1)->class, "thin"));
	flame_forget(&svg);
}

/* Names may look like places of the template; the template may contain an @, too. */
TEST(each_place_of_the_template_is_filled_once)
{
	struct ch__flame *flame = new_flame();
	struct flame_text out = {0};
	CHECK(flame_add(flame, "@frames@", CH__FLAME_CODE, 1));
	CHECK(ch__flame_write_svg(flame, &plain, flame_take, &out));
	/* 104 above, two rows of 17, 30 below. */
	CHECK(strstr(out.text, " height=\"168\""));
	unsigned left = 0;
	for (const char *at = out.text; (at = strchr(at, '@')); at++)
		left += strncmp(at, "@media ", 7) != 0;
	/* The name appears in the box's title and label, with two @ each. */
	CHECK_EQ(left, 4);
	CHECK(strcmp(out.text + out.bytes - 7, "</svg>\n") == 0);
	free(out.text);
}

/* Writes numbers with a comma, where a locale that does can be made. */
static bool use_comma(void)
{
	char folder[] = "/tmp/codeheap-locale-XXXXXX", command[300];
	CHECK(mkdtemp(folder));
	snprintf(command, sizeof command,
		 "cd %s && printf 'LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\n"
		 "grouping 3\nEND LC_NUMERIC\n' >text && "
		 "localedef -c -f ANSI_X3.4-1968 -i text ./comma >/dev/null 2>&1; :", /* warns */
		 folder);
	bool is_made = system(command) == 0 && !setenv("LOCPATH", folder, 1) &&
		       setlocale(LC_NUMERIC, "comma");
	snprintf(command, sizeof command, "rm -rf %s", folder);
	CHECK_EQ(system(command), 0);
	return is_made && *localeconv()->decimal_point == ',';
}

/* Numbers in the picture do not follow the locale. */
TEST(locale_changes_no_number)
{
	struct ch__flame *flame = new_flame();
	CHECK(flame_add(flame, "f;g", CH__FLAME_CODE, 1));
	CHECK(flame_add(flame, "f;h", CH__FLAME_CODE, 2));
	struct flame_text out[2] = {{0}, {0}};
	CHECK(ch__flame_write_svg(flame, &plain, flame_take, &out[0]));
	if (!use_comma())
		skip("no locale with a comma can be made here");
	CHECK(ch__flame_write_svg(flame, &plain, flame_take, &out[1]));
	CHECK_STR(out[0].text, out[1].text);
	CHECK(strstr(out[0].text, "33.33 %"));
	free(out[0].text);
	free(out[1].text);
}

static char *random_stack(struct test_random *random, char *stack, size_t room, unsigned names,
			  unsigned longest)
{
	unsigned depth = 1 + (unsigned)test_random_below(random, longest);
	size_t used = 0;
	for (unsigned d = 0; d < depth; d++)
		used += (size_t)snprintf(stack + used, room - used, "%sf%u", d ? ";" : "",
					 (unsigned)test_random_below(random, names));
	return stack;
}

TEST(random_trees_have_no_box_out_of_place)
{
	struct test_random random = test_random_new();
	char stack[4000];
	for (unsigned round = 0; round < (TEST_SANITIZED ? 3 : 10); round++) {
		struct ch__flame *flame = new_flame();
		for (unsigned i = 0; i < 200; i++) {
			enum ch__flame_kind kind =
				(enum ch__flame_kind)test_random_below(&random, CH__FLAME_KINDS);
			CHECK(flame_add(flame, random_stack(&random, stack, sizeof stack, 4, 60),
					kind, test_random_next(&random) >> (4 + 6 * round % 60)));
		}
		for (unsigned i = 0; i < 4; i++) {
			struct ch__flame_view view = {
				.unit = "Ir", .is_icicle = i & 1, .is_reversed = i & 2};
			struct flame_svg svg;
			draw(flame, &view, &svg);
			uint64_t ended = check_boxes(&svg, view.is_icicle);
			CHECK(ended <= flame_whole(svg.root, "data-total"));
			CHECK(flame_whole(svg.root, "data-left-out") ||
			      ended == flame_whole(svg.root, "data-total"));
			flame_forget(&svg);
		}
	}
}

TEST(writer_that_refuses_ends_the_picture)
{
	struct ch__flame *flame = new_flame();
	CHECK(flame_add(flame, "main;f", CH__FLAME_CODE, 1));
	struct flame_text whole = {0};
	CHECK(ch__flame_write_svg(flame, &plain, flame_take, &whole));
	for (size_t limit = 1; limit < whole.bytes; limit += whole.bytes / 20) {
		struct flame_text out = {.limit = limit};
		CHECK(!ch__flame_write_svg(flame, &plain, flame_take, &out));
		CHECK(out.bytes <= limit);
		free(out.text);
	}
	free(whole.text);
}

TEST(each_failing_allocation_refuses_the_picture)
{
	struct ch__flame *flame = new_flame();
	char stack[60];
	for (unsigned i = 0; i < 300; i++) {
		snprintf(stack, sizeof stack, "main;f%u;g%u", i % 150, i);
		CHECK(flame_add(flame, stack, CH__FLAME_CODE, 1));
	}
	size_t bytes = ch__meta_bytes(meta);
	for (unsigned reversed = 0; reversed < 2; reversed++) {
		struct ch__flame_view view = {.unit = "samples", .is_reversed = reversed};
		unsigned failures = 0;
		for (uint64_t nth = 1;; nth++) {
			struct flame_text out = {0};
			ch__os_fail_at(nth, false);
			bool is_whole = ch__flame_write_svg(flame, &view, flame_take, &out);
			uint64_t calls = ch__os_failable_calls();
			ch__os_fail_at(0, false);
			CHECK_EQ(ch__meta_bytes(meta), bytes);
			CHECK_EQ(is_whole, calls < nth);
			free(out.text);
			if (is_whole)
				break;
			failures++;
		}
		CHECK(failures >= 8);
	}
}

/* Each stack goes on from some frame of the stack before, as in a sampled program: 200,000 stacks,
 * at most 100 frames deep, in 1.5 million boxes. */
static void add_walked_stacks(struct ch__flame *flame, unsigned stacks)
{
	enum { DEEPEST = 100, STEPS = 16 };
	struct test_random random = test_random_new();
	uint32_t path[DEEPEST + 1] = {0};
	unsigned depth = 0;
	char name[20];
	for (unsigned i = 0; i < stacks; i++) {
		unsigned up = (unsigned)test_random_below(&random, STEPS);
		unsigned down = 1 + (unsigned)test_random_below(&random, STEPS);
		depth = up < depth ? depth - up : 0;
		for (; down && depth < DEEPEST; down--, depth++) {
			snprintf(name, sizeof name, "f%u",
				 (unsigned)test_random_below(&random, 500));
			path[depth + 1] = ch__flame_child(flame, path[depth], name, CH__FLAME_CODE);
			CHECK(path[depth + 1]);
		}
		ch__flame_weigh(flame, path[depth], 1 + test_random_below(&random, 1000));
	}
}

static uint64_t cpu_ms(void)
{
	struct timespec time;
	CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
	return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

static bool count_bytes(void *arg, const char *text, size_t bytes)
{
	(void)text;
	*(size_t *)arg += bytes;
	return true;
}

/* Returns the longest processor time of a picture with the folded stacks. */
static uint64_t write_many_stacks(void)
{
	/* Fewer under sanitizers and emulators, which show the same in less time. */
	unsigned stacks = TEST_SANITIZED || getenv("CODEHEAP_TEST_SLOW") ? 20000 : 200000;
	struct ch__flame *flame = new_flame();
	uint64_t began = cpu_ms(), longest = 0;
	add_walked_stacks(flame, stacks);
	uint64_t filled = cpu_ms();
	size_t bytes = ch__meta_bytes(meta);
	printf("filled in %u ms, %zu MiB\n", (unsigned)(filled - began), bytes >> 20);
	CHECK(bytes < 256u << 20);
	for (unsigned reversed = 0; reversed < 2; reversed++) {
		struct ch__flame_view view = {.unit = "samples", .is_reversed = reversed};
		struct flame_text picture = {0};
		size_t folded_bytes = 0;
		uint64_t start = cpu_ms();
		CHECK(ch__flame_write_svg(flame, &view, flame_take, &picture));
		uint64_t drawn = cpu_ms();
		CHECK(ch__flame_write_folded(flame, reversed, count_bytes, &folded_bytes));
		uint64_t ended = cpu_ms();
		printf("svg %u ms, %zu bytes; folded %u ms, %zu bytes\n", (unsigned)(drawn - start),
		       picture.bytes, (unsigned)(ended - drawn), folded_bytes);
		struct flame_svg svg;
		flame_read(&svg, picture.text);
		check_boxes(&svg, false);
		CHECK(svg.count > 200 && flame_whole(svg.root, "data-left-out") > 200);
		longest = ended - start > longest ? ended - start : longest;
		flame_forget(&svg);
		free(picture.text);
	}
	CHECK_EQ(ch__meta_bytes(meta), bytes);
	return longest;
}

TEST_LIMIT(two_hundred_thousand_stacks_are_written, 120)
{
	write_many_stacks();
}

TEST_TIMED(two_hundred_thousand_stacks_are_written_in_ten_seconds, 120)
{
	CHECK(write_many_stacks() < 10000);
}
