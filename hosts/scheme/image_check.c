/* SPDX-License-Identifier: MIT
 * image_check.c: checks that the words of a file are an image: every number within its bounds,
 * every object of the wanted kind, every instruction with existing slots, constants and targets. A
 * checked image can be loaded without another look. Beyond these checks bytecode is trusted as a
 * program is.
 */
#include <stdarg.h>
#include <stdlib.h>

#include "image.h"

enum { MOST_SLOTS = 1 << 16, CHECKSUM_PRIME = 0x1b3 };

uint64_t image_checksum(const uint64_t *words, size_t count)
{
	uint64_t sum = 14695981039346656037u;

	for (size_t i = 0; i < count; i++) {
		if (i == IMAGE_CHECKSUM)
			continue;
		sum ^= words[i];
		sum = (sum << 29 | sum >> 35) * (((uint64_t)1 << 40) + CHECKSUM_PRIME);
	}
	return sum;
}

uint64_t image_bytecode(void)
{
	uint64_t hash = OP_COUNT;

	for (int i = 0; i < OP_COUNT; i++) {
		for (const char *at = op_names[i]; *at; at++)
			hash = (hash ^ (unsigned char)*at) * (((uint64_t)1 << 40) + CHECKSUM_PRIME);
		hash = (hash ^ op_formats[i]) * (((uint64_t)1 << 40) + CHECKSUM_PRIME);
	}
	return hash;
}

int image_fail(char *why, const char *format, ...)
{
	va_list rest;

	va_start(rest, format);
	vsnprintf(why, IMAGE_WHY_BYTES, format, rest);
	va_end(rest);
	return 0;
}

int image_check_header(const uint64_t *header, uint64_t file_words, char *why)
{
	if (file_words < 1 || header[IMAGE_MAGIC] != IMAGE_MAGIC_WORD)
		return image_fail(why, "not an image");
	if (file_words < IMAGE_HEADER)
		return image_fail(why, "truncated in its header");
	if (header[IMAGE_VERSION] != IMAGE_FORMAT)
		return image_fail(why, "of format %llu, this Scheme reads %d",
				  (unsigned long long)header[IMAGE_VERSION], IMAGE_FORMAT);
	if (header[IMAGE_BYTECODE] != image_bytecode())
		return image_fail(why, "of a Scheme with other instructions");
	if (header[IMAGE_WORDS] != file_words)
		return image_fail(why, "has %llu words of %llu", (unsigned long long)file_words,
				  (unsigned long long)header[IMAGE_WORDS]);
	/* An object has one word at least. */
	if (header[IMAGE_OBJECTS] > file_words - IMAGE_HEADER)
		return image_fail(why, "has no room for its objects");
	return 1;
}

/* ---- positions of objects ---- */

/* Returns the number of words behind a head; UINT64_MAX: wrong head, or more words than `left`. */
static uint64_t body_words(uint64_t head, const uint64_t *body, uint64_t left)
{
	static const uint8_t fixed[IMAGE_KINDS] = {
		[IMAGE_PAIR] = 2,   [IMAGE_BOX] = 1,  [IMAGE_FLONUM] = 1, [IMAGE_CLOSURE] = 1,
		[IMAGE_RECORD] = 1, [IMAGE_RTD] = 3,  [IMAGE_CELL] = 3,   [IMAGE_CONDITION] = 5,
		[IMAGE_PORT] = 1,   [IMAGE_CODE] = 5,
	};
	uint64_t kind = head & 0xff, length = head >> 8, words;

	if (kind == 0 || kind >= IMAGE_KINDS || fixed[kind] > left)
		return UINT64_MAX;
	words = fixed[kind];
	switch (kind) {
	case IMAGE_STRING:
	case IMAGE_SYMBOL:
		words += length / 2 + length % 2;
		break;
	case IMAGE_BYTES:
	case IMAGE_PRIM:
		words += length / 8 + (length % 8 != 0);
		break;
	case IMAGE_CODE:
		words += length + (body[1] >> 32) + length / 2 + length % 2;
		break;
	case IMAGE_CLOSURE:
	case IMAGE_VECTOR:
	case IMAGE_VALUES:
	case IMAGE_RECORD:
		words += length;
		break;
	default:
		if (length)
			return UINT64_MAX;
	}
	return words <= left ? words : UINT64_MAX;
}

static int find_objects(struct image *image, char *why)
{
	size_t at = IMAGE_HEADER;

	for (uint64_t number = 1; number <= image->object_count; number++) {
		uint64_t words = UINT64_MAX;
		if (at < image->count)
			words = body_words(image->words[at], image->words + at + 1,
					   image->count - at - 1);
		if (words == UINT64_MAX)
			return image_fail(why, "object %llu has no room or no such kind",
					  (unsigned long long)number);
		image->at[number] = at;
		at += 1 + words;
	}
	return at == image->count ? 1 : image_fail(why, "has words behind its last object");
}

/* ---- contents of objects ---- */

static int is_of_kind(const struct image *image, uint64_t word, enum image_kind kind)
{
	return is_image_object(word) && word >> 2 <= image->object_count &&
	       image_kind(image, word >> 2) == kind;
}

/* Accepts values that a program may hold, and the filler of an unset free variable. */
static int is_sound_value(const struct image *image, uint64_t word)
{
	if (is_fixnum(word) || word == 0)
		return 1;
	if (is_image_object(word))
		return word >> 2 <= image->object_count &&
		       image_kind(image, word >> 2) != IMAGE_CODE &&
		       image_kind(image, word >> 2) != IMAGE_CELL;
	if (is_char(word))
		return word >> 40 == 0;
	return word == V_FALSE || word == V_TRUE || word == V_NIL || word == V_UNSPEC ||
	       word == V_EOF || word == V_UNDEF || word == V_NONE;
}

/* Accepts what code holds beside values: variables, and the code of closures that it makes. */
static int is_sound_constant(const struct image *image, uint64_t word)
{
	return is_sound_value(image, word) || is_of_kind(image, word, IMAGE_CELL) ||
	       is_of_kind(image, word, IMAGE_CODE);
}

static int are_sound_values(const struct image *image, const uint64_t *words, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		if (!is_sound_value(image, words[i]))
			return 0;
	return 1;
}

/* The printer walks the names of a type's fields by their count. */
static int is_sound_type(const struct image *image, const uint64_t *body)
{
	uint64_t names = body[1];

	if (!are_sound_values(image, body, 2) || body[2] > MOST_SLOTS)
		return 0;
	for (uint64_t i = 0; i < body[2]; i++) {
		if (!is_of_kind(image, names, IMAGE_PAIR))
			return 0;
		names = image_body(image, names >> 2)[1];
	}
	return 1;
}

/* ---- code ---- */

struct checked_code {
	const struct image *image;
	const uint64_t *insns; /* the constants follow */
	uint64_t insn_count, const_count, slots, frees;
};

static struct insn decode_insn(uint64_t word)
{
	struct insn insn;

	memcpy(&insn, &word, sizeof insn);
	return insn;
}

static int has_constant(const struct checked_code *code, uint64_t at, int32_t distance,
			enum image_kind kind)
{
	int64_t index = (int64_t)at + distance;

	if (index < (int64_t)code->insn_count ||
	    index >= (int64_t)(code->insn_count + code->const_count))
		return 0;
	return kind == IMAGE_KINDS ? is_sound_value(code->image, code->insns[index])
				   : is_of_kind(code->image, code->insns[index], kind);
}

static int is_target(const struct checked_code *code, uint64_t at, int32_t distance)
{
	int64_t index = (int64_t)at + distance;

	return index >= 0 && index < (int64_t)code->insn_count;
}

/* Checks the extension word of an instruction, which is the next instruction. */
static int has_extension(const struct checked_code *code, uint64_t at, int is_call)
{
	if (at + 1 >= code->insn_count)
		return 0;
	struct insn next = decode_insn(code->insns[at + 1]);
	if (next.op != OP_EXT)
		return 0;
	return !is_call ||
	       (next.a < code->slots && has_constant(code, at + 1, next.bc, IMAGE_CELL));
}

/* Checks by the meaning of the instruction; returns -1 if the format says everything. */
static int is_sound_special(const struct checked_code *code, uint64_t at, struct insn insn)
{
	int holds_arguments = (uint64_t)insn.b + 3 + insn.c <= code->slots;

	switch (insn.op) {
	case OP_GREF:
	case OP_GSET:
	case OP_GDEF:
		return insn.a < code->slots && has_constant(code, at, insn.bc, IMAGE_CELL);
	case OP_CLOSURE:
		return insn.a < code->slots && has_constant(code, at, insn.bc, IMAGE_CODE);
	case OP_FREE:
		return insn.a < code->slots && insn.b < code->frees;
	case OP_CAPTURE:
		return insn.a < code->slots && insn.c < code->slots;
	case OP_CALL:
		return insn.a < code->slots && holds_arguments;
	case OP_TAILCALL:
	case OP_TTAILCALL:
		return insn.a < code->slots && holds_arguments && insn.c <= MOST_TAIL_ARGS;
	case OP_CALLG:
		return holds_arguments && has_extension(code, at, 1);
	case OP_TAILCALLG:
	case OP_TTAILCALLG:
		return holds_arguments && insn.c <= MOST_TAIL_ARGS && has_extension(code, at, 1);
	case OP_APPLY:
	case OP_TAILAPPLY:
	case OP_TTAILAPPLY:
		return insn.a < code->slots && (uint64_t)insn.b + 4 <= code->slots;
	case OP_RECREF:
	case OP_RECSET:
		if (!has_extension(code, at, 0))
			return 0;
		return -1;
	default:
		return -1;
	}
}

static int is_sound_insn(const struct checked_code *code, uint64_t at, struct insn insn)
{
	int has_a = insn.a < code->slots, has_b = insn.b < code->slots;
	int has_c = insn.c < code->slots;
	int special = is_sound_special(code, at, insn);

	if (special >= 0)
		return special;
	switch (op_formats[insn.op]) {
	case F_N:
	case F_X:
		return 1;
	case F_A:
	case F_AF:
		return has_a;
	case F_AK:
		return has_a && has_constant(code, at, insn.bc, IMAGE_KINDS);
	case F_AB:
	case F_ABI:
		return has_a && has_b;
	case F_ABC:
		return has_a && has_b && has_c;
	case F_J:
		return is_target(code, at, insn.bc);
	case F_AJ:
		return has_a && is_target(code, at, insn.bc);
	case F_ABJ:
		return has_a && has_b && is_target(code, at, (int16_t)insn.c);
	case F_AIJ:
	case F_ATJ:
		return has_a && is_target(code, at, (int16_t)insn.c);
	default:
		return 0;
	}
}

/* Returns true if no code runs past the last instruction. */
static int ends(const struct checked_code *code)
{
	uint64_t last = code->insn_count - 1;
	struct insn insn = decode_insn(code->insns[last]);

	if (insn.op == OP_EXT && last > 0) {
		insn = decode_insn(code->insns[last - 1]);
		return insn.op == OP_TAILCALLG || insn.op == OP_TTAILCALLG;
	}
	return insn.op == OP_RETURN || insn.op == OP_TRETURN || insn.op == OP_TAILCALL ||
	       insn.op == OP_TTAILCALL || insn.op == OP_TAILAPPLY || insn.op == OP_TTAILAPPLY ||
	       insn.op == OP_JMP;
}

static int is_sound_code(const struct image *image, uint64_t number)
{
	const uint64_t *body = image_body(image, number);
	struct checked_code code = {
		.image = image,
		.insns = body + IMAGE_CODE_WORDS,
		.insn_count = image_length(image, number),
		.const_count = body[1] >> 32,
		.slots = body[1] & UINT32_MAX,
		.frees = body[2] & UINT32_MAX,
	};
	uint64_t required = body[0] & UINT32_MAX, has_rest = body[0] >> 32;

	if (!code.insn_count || code.insn_count > INT32_MAX || code.const_count > INT32_MAX ||
	    code.slots > MOST_SLOTS || code.frees > MOST_SLOTS || has_rest > 1 ||
	    required + has_rest > code.slots || (has_rest && code.slots < MOST_TAIL_ARGS) ||
	    !are_sound_values(image, body + 3, 2))
		return 0;
	for (uint64_t at = 0; at < code.insn_count; at++) {
		struct insn insn = decode_insn(code.insns[at]);
		if (insn.op >= OP_COUNT || !is_sound_insn(&code, at, insn))
			return 0;
	}
	/* Also those that no instruction names: the load looks each object up. */
	for (uint64_t i = 0; i < code.const_count; i++)
		if (!is_sound_constant(image, code.insns[code.insn_count + i]))
			return 0;
	return ends(&code);
}

/* ---- all objects ---- */

static int is_sound_object(const struct image *image, uint64_t number)
{
	const uint64_t *body = image_body(image, number);
	uint64_t length = image_length(image, number);

	switch (image_kind(image, number)) {
	case IMAGE_PAIR:
		return are_sound_values(image, body, 2);
	case IMAGE_BOX:
		return is_sound_value(image, body[0]);
	case IMAGE_VECTOR:
	case IMAGE_VALUES:
		return are_sound_values(image, body, length);
	case IMAGE_CLOSURE:
		return is_of_kind(image, body[0], IMAGE_CODE) &&
		       (image_body(image, body[0] >> 2)[2] & UINT32_MAX) == length &&
		       are_sound_values(image, body + 1, length);
	case IMAGE_RECORD:
		return is_of_kind(image, body[0], IMAGE_RTD) &&
		       image_body(image, body[0] >> 2)[2] == length &&
		       are_sound_values(image, body + 1, length);
	case IMAGE_RTD:
		return is_sound_type(image, body);
	case IMAGE_CELL:
		return is_of_kind(image, body[0], IMAGE_SYMBOL) && is_sound_value(image, body[1]) &&
		       body[2] <= 1;
	case IMAGE_CONDITION:
		return are_sound_values(image, body, 4);
	case IMAGE_CODE:
		return is_sound_code(image, number);
	case IMAGE_PRIM:
		return length < IMAGE_NAME_BYTES;
	case IMAGE_PORT:
		return body[0] < 3;
	default:
		return 1;
	}
}

int image_check(struct image *image, const uint64_t *words, size_t count, char *why)
{
	if (!image_check_header(words, count, why))
		return 0;
	if (image_checksum(words, count) != words[IMAGE_CHECKSUM])
		return image_fail(why, "its checksum is wrong");
	image->words = words;
	image->count = count;
	image->object_count = words[IMAGE_OBJECTS];
	image->at = calloc(image->object_count + 1, sizeof *image->at);
	if (!image->at)
		return image_fail(why, "no memory");
	int is_sound = find_objects(image, why);
	for (uint64_t number = 1; is_sound && number <= image->object_count; number++)
		if (!is_sound_object(image, number))
			is_sound = image_fail(why, "object %llu is malformed",
					      (unsigned long long)number);
	if (is_sound && !is_sound_value(image, words[IMAGE_EVENTS]))
		is_sound = image_fail(why, "its trace events are malformed");
	if (!is_sound)
		free(image->at);
	return is_sound;
}
