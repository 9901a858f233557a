/* SPDX-License-Identifier: MIT
 * flame_text.c: the buffer for the text of both writers of a flame graph, and the characters of
 * names as the writers show them. */
#include "flame/flame_tree.h"

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

enum { REPLACEMENT = 0xfffd, PICTURE_OF_NUL = 0x2400, PICTURE_OF_DELETE = 0x2421 };

/* Replaces characters that XML cannot carry or an eye cannot see. */
static uint32_t visible(uint32_t code_point)
{
	if (code_point < 0x20)
		return PICTURE_OF_NUL + code_point;
	if (code_point == 0x7f)
		return PICTURE_OF_DELETE;
	if ((code_point >= 0x80 && code_point < 0xa0) || code_point == 0xfffe ||
	    code_point == 0xffff)
		return REPLACEMENT;
	/* Line ends of Unicode, and characters that change the direction of the text behind. */
	if ((code_point >= 0x2028 && code_point <= 0x202e) ||
	    (code_point >= 0x2066 && code_point <= 0x2069))
		return REPLACEMENT;
	return code_point;
}

uint32_t ch__flame_decode(const char *text, size_t bytes, size_t *length)
{
	const uint8_t *at = (const uint8_t *)text;
	*length = 1;
	if (at[0] < 0x80)
		return at[0];
	unsigned more = at[0] >= 0xf0 ? 3 : at[0] >= 0xe0 ? 2 : 1;
	static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
	if (at[0] < 0xc2 || at[0] > 0xf4)
		return REPLACEMENT;
	uint32_t code_point = at[0] & (0x3fu >> more);
	for (unsigned i = 1; i <= more; i++) {
		if (i == bytes || (at[i] & 0xc0) != 0x80)
			return REPLACEMENT;
		code_point = code_point << 6 | (at[i] & 0x3f);
	}
	if (code_point < least[more] || code_point > 0x10ffff ||
	    (code_point >= 0xd800 && code_point < 0xe000))
		return REPLACEMENT;
	*length = 1 + more;
	return code_point;
}

/* The byte 0 behind a name continues no character, so the name's length is not asked for. */
uint32_t ch__flame_character(const char *name, const char **end)
{
	size_t length;
	uint32_t code_point = ch__flame_decode(name, SIZE_MAX, &length);
	*end = name + length;
	return visible(code_point);
}

/* In a line "outer;trace 7 42" flamegraph.pl takes 7 and 42 for the weights of two profiles. */
uint32_t ch__flame_folded_character(const char *name, const char **end)
{
	static const char digits[] = "0123456789";
	uint32_t character = ch__flame_character(name, end);
	if (character != ' ')
		return character == ';' ? ':' : character;
	const char *number = *end, *behind = number + strspn(number, digits);
	if (behind == number)
		return character;
	if (*behind == '.')
		behind += 1 + strspn(behind + 1, digits);
	return *behind ? character : '_';
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
