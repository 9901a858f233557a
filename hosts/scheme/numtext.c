/* SPDX-License-Identifier: MIT
 * numtext.c: numbers as text, both ways. Flonums print as the shortest digits that read back.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "vm.h"

static int digit_of(int c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'Z')
		return c - 'A' + 10;
	return 99;
}

static value parse_integer(const char *text, int radix)
{
	const char *at = text;
	double approximate = 0;
	__int128 exact = 0;
	int negative = *at == '-';

	if (*at == '-' || *at == '+')
		at++;
	if (!*at)
		return V_FALSE;
	for (; *at; at++) {
		int digit = digit_of(*at);
		if (digit >= radix)
			return V_FALSE;
		approximate = approximate * radix + digit;
		if (exact <= -(__int128)FIXNUM_MIN)
			exact = exact * radix + digit;
	}
	if (exact - negative > FIXNUM_MAX)
		return make_flonum(radix == 10 ? strtod(text, NULL)
					       : negative ? -approximate : approximate);
	return make_fixnum((int64_t)(negative ? -exact : exact));
}

static int is_decimal(const char *text)
{
	int digits = 0, points = 0;

	text += *text == '-' || *text == '+';
	for (; *text && *text != 'e' && *text != 'E'; text++) {
		if (*text == '.')
			points++;
		else if (*text >= '0' && *text <= '9')
			digits++;
		else
			return 0;
	}
	if (!digits || points > 1)
		return 0;
	if (!*text)
		return 1;
	text++;
	text += *text == '-' || *text == '+';
	if (!*text)
		return 0;
	for (; *text; text++)
		if (*text < '0' || *text > '9')
			return 0;
	return 1;
}

static value parse_ratio(const char *text, const char *slash, int radix)
{
	char above[64];

	if ((size_t)(slash - text) >= sizeof above || digit_of(slash[1]) >= radix)
		return V_FALSE;
	memcpy(above, text, (size_t)(slash - text));
	above[slash - text] = 0;
	value n = parse_integer(above, radix), d = parse_integer(slash + 1, radix);
	if (n == V_FALSE || d == V_FALSE || double_of(d) == 0)
		return V_FALSE;
	if (is_fixnum(n) && is_fixnum(d) && fixnum_of(n) % fixnum_of(d) == 0)
		return make_fixnum(fixnum_of(n) / fixnum_of(d));
	return make_flonum(double_of(n) / double_of(d));
}

value parse_number(const char *text, int radix)
{
	int exactness = 0;

	while (*text == '#') {
		int c = text[1] | 0x20;
		if (c == 'x' || c == 'b' || c == 'o' || c == 'd')
			radix = c == 'x' ? 16 : c == 'b' ? 2 : c == 'o' ? 8 : 10;
		else if (c == 'e' || c == 'i')
			exactness = c;
		else
			return V_FALSE;
		text += 2;
	}
	value v = parse_integer(text, radix);
	const char *slash = strchr(text, '/');
	if (v == V_FALSE && slash)
		v = parse_ratio(text, slash, radix);
	if (v == V_FALSE && radix == 10 && is_decimal(text))
		v = make_flonum(strtod(text, NULL));
	if (v == V_FALSE && (!strcmp(text, "+inf.0") || !strcmp(text, "-inf.0")))
		v = make_flonum(text[0] == '-' ? -INFINITY : INFINITY);
	if (v == V_FALSE && (!strcmp(text, "+nan.0") || !strcmp(text, "-nan.0")))
		v = make_flonum(NAN);
	if (exactness == 'e' && is_flonum(v)) {
		v = FLO(v) == floor(FLO(v)) ? make_integer(FLO(v)) : V_FALSE;
		if (is_flonum(v))
			v = V_FALSE;
	}
	if (v != V_FALSE && exactness == 'i' && is_fixnum(v))
		v = make_flonum((double)fixnum_of(v));
	return v;
}

/* Digits and exponent of the shortest form: value = 0.DIGITS * 10^exponent. */
static int shortest_digits(double number, char *digits, size_t bytes)
{
	char text[48];
	int precision = 1;

	for (; precision < 17; precision++) {
		snprintf(text, sizeof text, "%.*e", precision - 1, number);
		if (strtod(text, NULL) == number)
			break;
	}
	snprintf(text, sizeof text, "%.*e", precision - 1, number);
	size_t count = 0;
	char *at = text;
	for (; *at && *at != 'e'; at++)
		if (*at != '.' && count + 1 < bytes)
			digits[count++] = *at;
	while (count > 1 && digits[count - 1] == '0')
		count--;
	digits[count] = 0;
	return *at ? atoi(at + 1) + 1 : 1;
}

/* When digits alone would need many zeros, an exponent is printed, by Guile's limits. */
static void format_flonum(double number, char *out, size_t bytes)
{
	char digits[32];
	const char *sign = signbit(number) ? "-" : "";

	if (isnan(number) || isinf(number)) {
		snprintf(out, bytes, isnan(number) ? "+nan.0" : *sign ? "-inf.0" : "+inf.0");
		return;
	}
	int exponent = shortest_digits(fabs(number), digits, sizeof digits);
	int count = (int)strlen(digits);
	if (number == 0)
		snprintf(out, bytes, "%s0.0", sign);
	else if (exponent < -2 || (exponent > 7 && exponent - count > 3))
		snprintf(out, bytes, "%s%c.%se%d", sign, digits[0], count > 1 ? digits + 1 : "0",
			 exponent - 1);
	else if (exponent <= 0)
		snprintf(out, bytes, "%s0.%.*s%s", sign, -exponent, "00", digits);
	else if (count <= exponent)
		snprintf(out, bytes, "%s%s%.*s.0", sign, digits, exponent - count,
			 "0000000000000000000000");
	else
		snprintf(out, bytes, "%s%.*s.%s", sign, exponent, digits, digits + exponent);
}

void format_number(value number, int radix, char *out, size_t bytes)
{
	char reversed[80];
	int count = 0;

	if (!is_fixnum(number)) {
		format_flonum(FLO(number), out, bytes);
		return;
	}
	int64_t n = fixnum_of(number);
	uint64_t left = n < 0 ? -(uint64_t)n : (uint64_t)n;
	do {
		reversed[count++] = "0123456789abcdefghijklmnopqrstuvwxyz"[left % (uint64_t)radix];
		left /= (uint64_t)radix;
	} while (left);
	if (n < 0)
		reversed[count++] = '-';
	size_t i = 0;
	while (count > 0 && i + 1 < bytes)
		out[i++] = reversed[--count];
	out[i] = 0;
}
