/* SPDX-License-Identifier: MIT
 * flame_folded.c: folded stacks, the form that flamegraph.pl, inferno and speedscope read; and text
 * as both writers of a flame graph put it out. Kinds are not written: a name stays what it is to
 * every reader. */
#include "unwind/flame_tree.h"

/* --- text --- */

void ch__flame_put(struct ch__flame_text *out, const char *text, size_t bytes)
{
	while (bytes && !out->has_failed) {
		size_t part = sizeof out->bytes - out->used;
		part = part < bytes ? part : bytes;
		memcpy(out->bytes + out->used, text, part);
		out->used += part;
		text += part;
		bytes -= part;
		if (out->used == sizeof out->bytes)
			ch__flame_text_end(out);
	}
}

bool ch__flame_text_end(struct ch__flame_text *out)
{
	if (!out->has_failed && out->used && !out->write(out->arg, out->bytes, out->used))
		out->has_failed = true;
	out->used = 0;
	return !out->has_failed;
}

void ch__flame_put_text(struct ch__flame_text *out, const char *text)
{
	ch__flame_put(out, text, strlen(text));
}

void ch__flame_put_number(struct ch__flame_text *out, uint64_t number)
{
	char digits[20];
	size_t at = sizeof digits;
	do
		digits[--at] = (char)('0' + number % 10);
	while (number /= 10);
	ch__flame_put(out, digits + at, sizeof digits - at);
}

/* --- characters --- */

enum { REPLACEMENT = 0xfffd, PICTURE_OF_NUL = 0x2400, PICTURE_OF_DELETE = 0x2421 };

/* What XML can carry and an eye can see, of what UTF-8 can say. */
static uint32_t visible(uint32_t code_point)
{
	if (code_point < 0x20)
		return PICTURE_OF_NUL + code_point;
	if (code_point == 0x7f)
		return PICTURE_OF_DELETE;
	if ((code_point >= 0x80 && code_point < 0xa0) || code_point == 0xfffe ||
	    code_point == 0xffff)
		return REPLACEMENT;
	/* Line ends of Unicode, and what changes the direction of the text behind it. */
	if ((code_point >= 0x2028 && code_point <= 0x202e) ||
	    (code_point >= 0x2066 && code_point <= 0x2069))
		return REPLACEMENT;
	return code_point;
}

uint32_t ch__flame_character(const char *name, const char **end)
{
	const uint8_t *at = (const uint8_t *)name;
	*end = name + 1;
	if (at[0] < 0x80)
		return visible(at[0]);
	unsigned more = at[0] >= 0xf0 ? 3 : at[0] >= 0xe0 ? 2 : 1;
	static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
	if (at[0] < 0xc2 || at[0] > 0xf4)
		return REPLACEMENT;
	uint32_t code_point = at[0] & (0x3fu >> more);
	for (unsigned i = 1; i <= more; i++) {
		if ((at[i] & 0xc0) != 0x80) /* also the end of the name */
			return REPLACEMENT;
		code_point = code_point << 6 | (at[i] & 0x3f);
	}
	if (code_point < least[more] || code_point > 0x10ffff ||
	    (code_point >= 0xd800 && code_point < 0xe000))
		return REPLACEMENT;
	*end = name + 1 + more;
	return visible(code_point);
}

void ch__flame_put_character(struct ch__flame_text *out, uint32_t code_point)
{
	char bytes[4];
	size_t count = code_point < 0x80      ? 1
		       : code_point < 0x800   ? 2
		       : code_point < 0x10000 ? 3
					      : 4;
	static const uint8_t first[] = {0, 0, 0xc0, 0xe0, 0xf0};
	for (size_t i = count; --i > 0; code_point >>= 6)
		bytes[i] = (char)(0x80 | (code_point & 0x3f));
	bytes[0] = (char)(first[count] | code_point);
	ch__flame_put(out, bytes, count);
}

/* --- folded stacks --- */

static void put_frame(struct ch__flame_text *out, const char *name)
{
	while (*name) {
		uint32_t character = ch__flame_character(name, &name);
		ch__flame_put_character(out, character == ';' ? ':' : character);
	}
}

static void put_stack(struct ch__flame_text *out, const char *const *names, uint32_t depth,
		      uint64_t weight)
{
	for (uint32_t i = 0; i <= depth; i++) {
		if (i)
			ch__flame_put(out, ";", 1);
		put_frame(out, names[i]);
	}
	ch__flame_put(out, " ", 1);
	ch__flame_put_number(out, weight);
	ch__flame_put(out, "\n", 1);
}

bool ch__flame_write_folded(struct ch__flame *flame, bool is_reversed, ch__flame_write *write,
			    void *arg)
{
	struct ch__flame_text out = {.write = write, .arg = arg};
	struct ch__flame_walk walk;
	struct ch__flame_box box;
	const char **names = NULL; /* of the box and the frames around it, by depth */
	size_t room = 0;
	enum ch__flame_step step = CH__FLAME_NO_MEMORY;
	bool goes_on = ch__flame_walk_begin(&walk, flame, is_reversed, true);
	while (goes_on && !out.has_failed) {
		step = ch__flame_walk_next(&walk, &box);
		if (step != CH__FLAME_BOX)
			break;
		void *grown = ch__flame_grown(flame->meta, names, &room, (size_t)box.depth + 1,
					      sizeof *names);
		goes_on = grown != NULL;
		if (!goes_on)
			break;
		names = grown;
		names[box.depth] = box.name;
		if (box.self)
			put_stack(&out, names, box.depth, box.self);
	}
	ch__meta_free(flame->meta, names, room * sizeof *names);
	ch__flame_walk_end(&walk);
	return ch__flame_text_end(&out) && step == CH__FLAME_DONE;
}
