/* SPDX-License-Identifier: MIT
 * text.h: a text, also in a signal handler or before a panic: no lock, no allocation, no call of
 * the C library but strerrorname_np. */
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct ch__text {
	char *at;
	size_t room, length; /* length: of the whole text, of which room - 1 bytes are kept */
};

static inline void ch__text_put_byte(struct ch__text *text, char byte)
{
	if (text->length + 1 < text->room)
		text->at[text->length] = byte;
	text->length++;
}

static inline void ch__text_put(struct ch__text *text, const char *words)
{
	for (; *words; words++)
		ch__text_put_byte(text, *words);
}

static inline void ch__text_put_number(struct ch__text *text, uint64_t value, unsigned base)
{
	char digits[24];
	int n = 0;
	do
		digits[n++] = "0123456789abcdef"[value % base];
	while (value /= base);
	if (base == 16)
		ch__text_put(text, "0x");
	while (n)
		ch__text_put_byte(text, digits[--n]);
}

/* Puts a name from a VM or a file, which may hold anything. Control characters become question
 * marks, also the UTF-8 ones beyond ASCII: a terminal would obey them. */
void ch__text_put_name(struct ch__text *, const char *name);
/* Puts by a format like printf's: %s, %d, %u, %x, %lu, %lx and %zu, and %m for a refused call of
 * the system. A string is put as a name. */
void ch__text_format(struct ch__text *, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void ch__text_put_list(struct ch__text *, const char *format, va_list *);
/* How many of the first bytes of a text are whole characters of UTF-8: all, or without the last. */
size_t ch__text_whole(const char *text, size_t bytes);
/* Ends the kept part with a 0, after a whole character. Returns the length of the whole text. */
size_t ch__text_end(struct ch__text *);
