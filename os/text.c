/* SPDX-License-Identifier: MIT
 * text.c: formats and names in a text of os/text.h, and the end of a text. Source: Unicode 15, 3.9
 * (UTF-8). */
#include "os/text.h"
#include "os/os.h"

static size_t control_bytes(const char *at)
{
	uint8_t first = (uint8_t)at[0], second = (uint8_t)at[1]; /* `at` is no end */
	if (first < ' ' || first == 0x7f)
		return 1;
	return first == 0xc2 && second >= 0x80 && second < 0xa0 ? 2 : 0;
}

void ch__text_put_name(struct ch__text *text, const char *name)
{
	size_t controls = 0;
	for (; *name; name++) {
		if (!controls)
			controls = control_bytes(name);
		if (controls) {
			ch__text_put_byte(text, '?');
			controls--;
		} else {
			ch__text_put_byte(text, *name);
		}
	}
}

void ch__text_put_list(struct ch__text *text, const char *format, va_list *args)
{
	for (; *format; format++) {
		if (*format != '%') {
			ch__text_put_byte(text, *format);
			continue;
		}
		bool is_long = *++format == 'l' || *format == 'z', is_signed = *format == 'd';
		format += is_long;
		if (*format == 's') {
			ch__text_put_name(text, va_arg(*args, const char *));
		} else if (*format == 'm') {
			ch__os_put_error(text, errno);
		} else {
			int64_t value = is_signed ? va_arg(*args, int)
				      : is_long ? va_arg(*args, int64_t)
						: va_arg(*args, unsigned);
			bool is_below = is_signed && value < 0;
			ch__text_put(text, is_below ? "-" : "");
			ch__text_put_number(text, (uint64_t)(is_below ? -value : value),
					    *format == 'x' ? 16 : 10);
		}
	}
}

void ch__text_format(struct ch__text *text, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	ch__text_put_list(text, format, &args);
	va_end(args);
}

size_t ch__text_whole(const char *text, size_t bytes)
{
	size_t start = bytes;
	while (start && ((uint8_t)text[start - 1] & 0xc0) == 0x80)
		start--;
	uint8_t first = start ? (uint8_t)text[start - 1] : 0;
	size_t whole = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 0;
	return bytes - start + 1 < whole ? start - 1 : bytes;
}

size_t ch__text_end(struct ch__text *text)
{
	if (text->room)
		text->at[text->length < text->room ? text->length
						   : ch__text_whole(text->at, text->room - 1)] = 0;
	return text->length;
}
