/* SPDX-License-Identifier: MIT
 * event.c: the last events of all heaps, in a ring that every thread writes without a lock; and the
 * panic that ends with them. Signal-safe, save for the hook of the VM. */
#include "codeheap/events/events.h"

#include "os/text.h"

#include <stdlib.h>

/* An event is one word, so no reader sees half of it. From the low bits up: the number's low 16
 * bits, heap, kind, value. 0: no event yet. Relaxed: an event publishes no other memory. */
enum { NUMBER_BITS = 16, HEAP_BITS = 8, WHAT_BITS = 8 };
_Static_assert(CH__HEAPS_MAX < 1 << HEAP_BITS && CH__EVENTS <= 1 << WHAT_BITS, "they fit");
static _Atomic(uint64_t) ring[CH__EVENTS_KEPT];
static _Atomic(uint64_t) noted;

void ch__event_note(const struct ch_heap *heap, enum ch__event what, uint64_t value)
{
	uint64_t number = atomic_fetch_add_explicit(&noted, 1, memory_order_relaxed) + 1;
	uint64_t word = value < UINT32_MAX ? value : UINT32_MAX;
	word = word << WHAT_BITS | (uint64_t)what;
	word = word << HEAP_BITS | heap->id;
	word = word << NUMBER_BITS | (uint16_t)number;
	CH_STORE_RELAXED(&ring[number % CH__EVENTS_KEPT], word);
}

size_t ch__event_text(unsigned age, char text[CH__EVENT_TEXT_BYTES])
{
	static const char *const texts[] = {
#define X(name, words) words,
		CH__EVENT_LIST(X)
#undef X
	};
	uint64_t number = CH_LOAD_RELAXED(&noted) - age;
	uint64_t word = CH_LOAD_RELAXED(&ring[number % CH__EVENTS_KEPT]);
	uint64_t heap = word >> NUMBER_BITS & ((1 << HEAP_BITS) - 1);
	uint64_t what = word >> (NUMBER_BITS + HEAP_BITS) & ((1 << WHAT_BITS) - 1);
	uint64_t value = word >> (NUMBER_BITS + HEAP_BITS + WHAT_BITS);
	/* The place has no event, or a later one. */
	if (!word || (uint16_t)word != (uint16_t)number)
		return 0;
	struct ch__text line = {text, CH__EVENT_TEXT_BYTES, 0};
	ch__text_format(&line, "  %lu heap %lu: %s %lu\n", number, heap, texts[what], value);
	ch__text_end(&line);
	return line.length;
}

static void (*_Atomic panic_hook)(const char *);

void ch__panic_set_hook(void (*hook)(const char *))
{
	atomic_store(&panic_hook, hook);
}

static void say(const char *text)
{
	ch__os_write_last(text, strlen(text));
}

/* Oldest first. */
static void say_events(void)
{
	char text[CH__EVENT_TEXT_BYTES];
	bool is_first = true;
	for (unsigned age = CH__EVENTS_KEPT; age-- > 0;) {
		if (!ch__event_text(age, text))
			continue;
		if (is_first)
			say("libcodeheap: what happened last:\n");
		is_first = false;
		say(text);
	}
}

_Noreturn void ch__panic(const char *reason)
{
	void (*hook)(const char *) = atomic_exchange(&panic_hook, NULL);
	if (hook)
		hook(reason);
	say("libcodeheap: broken invariant: ");
	say(reason);
	say("\n");
	say_events();
	abort();
}
