/* SPDX-License-Identifier: MIT
 * strings.c: strings, characters and bytevectors.
 */
#include <wctype.h>

#include "vm.h"

static uint32_t char_arg(struct context *ctx, const char *who, value v)
{
	if (!is_char(v))
		raise_type(ctx, who, "character", v);
	return char_of(v);
}

PRIM(string_p) { return make_bool(is_type(args[0], T_STRING)); }
PRIM(char_p) { return make_bool(is_char(args[0])); }

PRIM(make_string_of)
{
	return make_string(ctx, index_arg(ctx, "make-string", args[0], INT64_MAX >> 8),
			   argc > 1 ? char_arg(ctx, "make-string", args[1]) : ' ');
}

PRIM(string_of)
{
	value s = make_string(ctx, argc, 0);
	for (int64_t i = 0; i < argc; i++)
		AS(string, s)->chars[i] = char_arg(ctx, "string", args[i]);
	return s;
}

PRIM(string_length) { return make_fixnum(string_arg(ctx, "string-length", args[0])->length); }

PRIM(string_ref)
{
	struct string *s = string_arg(ctx, "string-ref", args[0]);
	return make_char(s->chars[index_arg(ctx, "string-ref", args[1], s->length - 1)]);
}

PRIM(string_set)
{
	struct string *s = string_arg(ctx, "string-set!", args[0]);
	int64_t at = index_arg(ctx, "string-set!", args[1], s->length - 1);
	s->chars[at] = char_arg(ctx, "string-set!", args[2]);
	return V_UNSPEC;
}

PRIM(string_to_list)
{
	int64_t start, end;
	struct string *s = string_arg(ctx, "string->list", args[0]);
	value list = V_NIL;
	range_args(ctx, "string->list", args, argc, 1, s->length, &start, &end);
	while (end-- > start)
		list = cons(ctx, make_char(s->chars[end]), list);
	return list;
}

PRIM(list_to_string)
{
	int64_t length = list_length(args[0]);
	if (length < 0)
		raise_type(ctx, "list->string", "list", args[0]);
	value s = make_string(ctx, length, 0), at = args[0];
	for (int64_t i = 0; i < length; i++)
		AS(string, s)->chars[i] = char_arg(
			ctx, "list->string", next_of(ctx, "list->string", args[0], &at));
	return s;
}

PRIM(string_to_vector)
{
	int64_t start, end;
	struct string *s = string_arg(ctx, "string->vector", args[0]);
	range_args(ctx, "string->vector", args, argc, 1, s->length, &start, &end);
	value v = make_vector(ctx, end - start, V_NIL);
	for (int64_t i = start; i < end; i++)
		AS(vector, v)->items[i - start] = make_char(s->chars[i]);
	return v;
}

PRIM(vector_to_string)
{
	int64_t start, end;
	struct vector *v = AS(vector, object_arg(ctx, "vector->string", T_VECTOR, args[0]));
	range_args(ctx, "vector->string", args, argc, 1, v->length, &start, &end);
	value s = make_string(ctx, end - start, 0);
	for (int64_t i = start; i < end; i++)
		AS(string, s)->chars[i - start] = char_arg(ctx, "vector->string", v->items[i]);
	return s;
}

PRIM(string_fill)
{
	int64_t start, end;
	struct string *s = string_arg(ctx, "string-fill!", args[0]);
	uint32_t c = char_arg(ctx, "string-fill!", args[1]);
	range_args(ctx, "string-fill!", args, argc, 2, s->length, &start, &end);
	for (; start < end; start++)
		s->chars[start] = c;
	return V_UNSPEC;
}

static uint32_t fold(uint32_t c) { return (uint32_t)towlower((wint_t)c); }

static int order(struct string *a, struct string *b, int is_ci)
{
	for (int64_t i = 0; i < a->length && i < b->length; i++) {
		uint32_t x = a->chars[i], y = b->chars[i];
		if (is_ci) {
			x = fold(x);
			y = fold(y);
		}
		if (x != y)
			return x < y ? -1 : 1;
	}
	return a->length < b->length ? -1 : a->length > b->length;
}

#define STRING_COMPARE(name, text, relation, is_ci) \
	PRIM(name) \
	{ \
		int holds = 1; \
		string_arg(ctx, text, args[0]); \
		for (int64_t i = 0; i + 1 < argc; i++) \
			holds &= order(string_arg(ctx, text, args[i]), \
				       string_arg(ctx, text, args[i + 1]), is_ci) relation 0; \
		return make_bool(holds); \
	}
STRING_COMPARE(string_eq, "string=?", ==, 0) STRING_COMPARE(string_lt, "string<?", <, 0)
STRING_COMPARE(string_gt, "string>?", >, 0) STRING_COMPARE(string_le, "string<=?", <=, 0)
STRING_COMPARE(string_ge, "string>=?", >=, 0) STRING_COMPARE(string_ci_eq, "string-ci=?", ==, 1)
STRING_COMPARE(string_ci_lt, "string-ci<?", <, 1) STRING_COMPARE(string_ci_gt, "string-ci>?", >, 1)
STRING_COMPARE(string_ci_le, "string-ci<=?", <=, 1)
STRING_COMPARE(string_ci_ge, "string-ci>=?", >=, 1)

#define CHAR_COMPARE(name, text, relation, function) \
	PRIM(name) \
	{ \
		int holds = 1; \
		char_arg(ctx, text, args[0]); \
		for (int64_t i = 0; i + 1 < argc; i++) \
			holds &= function(char_arg(ctx, text, args[i])) relation \
				function(char_arg(ctx, text, args[i + 1])); \
		return make_bool(holds); \
	}
CHAR_COMPARE(char_eq, "char=?", ==, ) CHAR_COMPARE(char_lt, "char<?", <, )
CHAR_COMPARE(char_gt, "char>?", >, ) CHAR_COMPARE(char_le, "char<=?", <=, )
CHAR_COMPARE(char_ge, "char>=?", >=, ) CHAR_COMPARE(char_ci_eq, "char-ci=?", ==, fold)
CHAR_COMPARE(char_ci_lt, "char-ci<?", <, fold) CHAR_COMPARE(char_ci_gt, "char-ci>?", >, fold)
CHAR_COMPARE(char_ci_le, "char-ci<=?", <=, fold) CHAR_COMPARE(char_ci_ge, "char-ci>=?", >=, fold)

#define CHAR_TEST(name, text, test) \
	PRIM(name) \
	{ \
		wint_t c = (wint_t)char_arg(ctx, text, args[0]); \
		return make_bool(test); \
	}
CHAR_TEST(char_alphabetic, "char-alphabetic?", iswalpha(c) != 0)
CHAR_TEST(char_numeric, "char-numeric?", c >= '0' && c <= '9')
CHAR_TEST(char_whitespace, "char-whitespace?", iswspace(c) != 0)
CHAR_TEST(char_upper, "char-upper-case?", iswupper(c) != 0)
CHAR_TEST(char_lower, "char-lower-case?", iswlower(c) != 0)

PRIM(char_upcase)
{
	return make_char((uint32_t)towupper((wint_t)char_arg(ctx, "char-upcase", args[0])));
}
PRIM(char_downcase) { return make_char(fold(char_arg(ctx, "char-downcase", args[0]))); }
PRIM(char_to_integer) { return make_fixnum(char_arg(ctx, "char->integer", args[0])); }
PRIM(integer_to_char)
{
	uint32_t c = (uint32_t)index_arg(ctx, "integer->char", args[0], 0x10ffff);

	if (is_surrogate(c))
		raise_range(ctx, "integer->char", args[0]);
	return make_char(c);
}
PRIM(digit_value)
{
	uint32_t c = char_arg(ctx, "digit-value", args[0]);
	return c >= '0' && c <= '9' ? make_fixnum(c - '0') : V_FALSE;
}

static value in_case(struct context *ctx, const struct string *s, wint_t (*other)(wint_t c))
{
	value copy = make_string(ctx, s->length, 0);
	for (int64_t i = 0; i < s->length; i++)
		AS(string, copy)->chars[i] = (uint32_t)other((wint_t)s->chars[i]);
	return copy;
}
PRIM(string_upcase) { return in_case(ctx, string_arg(ctx, "string-upcase", args[0]), towupper); }
PRIM(string_downcase)
{
	return in_case(ctx, string_arg(ctx, "string-downcase", args[0]), towlower);
}

static int64_t radix_arg(struct context *ctx, value *args, int64_t argc)
{
	int64_t radix = argc > 1 ? index_arg(ctx, "radix", args[1], 36) : 10;

	if (radix < 2)
		raise_range(ctx, "radix", args[1]);
	return radix;
}

PRIM(number_to_string)
{
	char text[96];
	if (!is_number(args[0]))
		raise_type(ctx, "number->string", "number", args[0]);
	int radix = (int)radix_arg(ctx, args, argc);
	if (radix != 10 && !is_fixnum(args[0]))
		raise_type(ctx, "number->string", "exact number, as the radix is not 10", args[0]);
	format_number(args[0], radix, text, sizeof text);
	return string_from(ctx, text);
}

PRIM(string_to_number)
{
	size_t bytes;
	string_arg(ctx, "string->number", args[0]);
	const char *text = string_to_utf8(args[0], &bytes);
	int radix = (int)radix_arg(ctx, args, argc);
	return strlen(text) == bytes ? parse_number(text, radix) : V_FALSE;
}

PRIM(string_search)
{
	struct string *needle = string_arg(ctx, "string-search", args[0]);
	struct string *s = string_arg(ctx, "string-search", args[1]);
	for (int64_t i = 0; i + needle->length <= s->length; i++)
		if (!memcmp(s->chars + i, needle->chars, (size_t)needle->length * 4))
			return make_fixnum(i);
	return V_FALSE;
}

/* ---- bytevectors ---- */

PRIM(make_bytevector)
{
	int64_t length = index_arg(ctx, "make-bytevector", args[0], INT32_MAX - 64);
	struct bytes *bytes = make_bytes(ctx, length);
	memset(bytes->data, argc > 1 ? (int)index_arg(ctx, "make-bytevector", args[1], 255) : 0,
	       (size_t)length);
	return (value)bytes;
}
PRIM(bytevector)
{
	struct bytes *bytes = make_bytes(ctx, argc);
	for (int64_t i = 0; i < argc; i++)
		bytes->data[i] = (uint8_t)index_arg(ctx, "bytevector", args[i], 255);
	return (value)bytes;
}
PRIM(bytevector_p) { return make_bool(is_type(args[0], T_BYTES)); }
PRIM(bytevector_length)
{
	return make_fixnum(bytes_arg(ctx, "bytevector-length", args[0])->length);
}
PRIM(bytevector_ref)
{
	struct bytes *b = bytes_arg(ctx, "bytevector-u8-ref", args[0]);
	return make_fixnum(b->data[index_arg(ctx, "bytevector-u8-ref", args[1], b->length - 1)]);
}
PRIM(bytevector_set)
{
	struct bytes *b = bytes_arg(ctx, "bytevector-u8-set!", args[0]);
	int64_t at = index_arg(ctx, "bytevector-u8-set!", args[1], b->length - 1);
	b->data[at] = (uint8_t)index_arg(ctx, "bytevector-u8-set!", args[2], 255);
	return V_UNSPEC;
}

PRIM(bytevector_fill)
{
	int64_t start, end;
	struct bytes *b = bytes_arg(ctx, "bytevector-fill!", args[0]);
	int byte = (int)index_arg(ctx, "bytevector-fill!", args[1], 255);
	range_args(ctx, "bytevector-fill!", args, argc, 2, b->length, &start, &end);
	memset(b->data + start, byte, (size_t)(end - start));
	return V_UNSPEC;
}
PRIM(utf8_to_string)
{
	int64_t start, end;
	struct bytes *from = bytes_arg(ctx, "utf8->string", args[0]);
	range_args(ctx, "utf8->string", args, argc, 1, from->length, &start, &end);
	return string_from_bytes(ctx, (const char *)from->data + start, (size_t)(end - start));
}
PRIM(string_to_utf8_bytes)
{
	int64_t start, end;
	struct string *s = string_arg(ctx, "string->utf8", args[0]);
	struct port *text = port_open_buffer();
	range_args(ctx, "string->utf8", args, argc, 1, s->length, &start, &end);
	while (start < end)
		port_write_char(text, s->chars[start++]);
	struct bytes *bytes = make_bytes(ctx, text->length);
	memcpy(bytes->data, text->bytes, (size_t)text->length);
	return (value)bytes;
}

void init_strings(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"string?", string_p, 1, 1}, {"make-string", make_string_of, 1, 2},
		{"string", string_of, 0, -1}, {"string-length", string_length, 1, 1},
		{"string-ref", string_ref, 2, 2}, {"string-set!", string_set, 3, 3},
 {"string->list", string_to_list, 1, 3},
		{"list->string", list_to_string, 1, 1}, {"string->vector", string_to_vector, 1, 3},
		{"vector->string", vector_to_string, 1, 3}, {"string-fill!", string_fill, 2, 4},
 {"string=?", string_eq, 1, -1},
		{"string<?", string_lt, 1, -1}, {"string>?", string_gt, 1, -1},
		{"string<=?", string_le, 1, -1}, {"string>=?", string_ge, 1, -1},
		{"string-ci=?", string_ci_eq, 1, -1}, {"string-ci<?", string_ci_lt, 1, -1},
		{"string-ci>?", string_ci_gt, 1, -1}, {"string-ci<=?", string_ci_le, 1, -1},
		{"string-ci>=?", string_ci_ge, 1, -1},
		{"string-upcase", string_upcase, 1, 1}, {"string-downcase", string_downcase, 1, 1},
		{"string-foldcase", string_downcase, 1, 1}, {"string-search", string_search, 2, 2},
		{"number->string", number_to_string, 1, 2},
		{"string->number", string_to_number, 1, 2},
		{"make-bytevector", make_bytevector, 1, 2}, {"bytevector", bytevector, 0, -1},
		{"bytevector?", bytevector_p, 1, 1}, {"bytevector-length", bytevector_length, 1, 1},
		{"bytevector-u8-ref", bytevector_ref, 2, 2},
		{"bytevector-u8-set!", bytevector_set, 3, 3},
		{"bytevector-fill!", bytevector_fill, 2, 4},
		{"utf8->string", utf8_to_string, 1, 3},
		{"string->utf8", string_to_utf8_bytes, 1, 3},
	};

	DEFINE_PRIMS(ctx, defs);
}

void init_chars(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"char?", char_p, 1, 1},
		{"char=?", char_eq, 1, -1},
		{"char<?", char_lt, 1, -1},
		{"char>?", char_gt, 1, -1},
		{"char<=?", char_le, 1, -1},
		{"char>=?", char_ge, 1, -1},
		{"char-ci=?", char_ci_eq, 1, -1},
		{"char-ci<?", char_ci_lt, 1, -1},
		{"char-ci>?", char_ci_gt, 1, -1},
		{"char-ci<=?", char_ci_le, 1, -1},
		{"char-ci>=?", char_ci_ge, 1, -1},
		{"char-alphabetic?", char_alphabetic, 1, 1},
		{"char-numeric?", char_numeric, 1, 1},
		{"char-whitespace?", char_whitespace, 1, 1},
		{"char-upper-case?", char_upper, 1, 1},
		{"char-lower-case?", char_lower, 1, 1},
		{"char-upcase", char_upcase, 1, 1},
		{"char-downcase", char_downcase, 1, 1},
		{"char-foldcase", char_downcase, 1, 1},
		{"char->integer", char_to_integer, 1, 1},
		{"integer->char", integer_to_char, 1, 1},
		{"digit-value", digit_value, 1, 1},
	};

	DEFINE_PRIMS(ctx, defs);
}
