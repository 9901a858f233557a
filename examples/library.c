/* SPDX-License-Identifier: MIT
 * library.c: a library in a program that makes the threads. A function of the library compiles code
 * for any caller. Making code attaches the calling thread, and the end of the thread detaches the
 * thread. main and the threads are the program, without a word of code heaps; one thread waits
 * in read() all along. */
#include <codeheap/codeheap.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

/* --- the library --- */

static struct ch_heap *heap;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void start(void)
{
	struct ch_config config;
	ch_config_init(&config);
	config.stop_signal = SIGURG; /* a program's threads neither poll nor park */
	(void)!ch_heap_create(&config, &heap); /* NULL: the callers do without code */
}

/* Twice the number, by code made and thrown away here. */
static int library_twice(int number)
{
	static const unsigned char bytes[] = {0x8d, 0x04, 0x3f, 0xc3}; /* lea eax, [rdi+rdi]; ret */
	int (*twice)(int);
	pthread_once(&once, start); /* first in each public function */
	if (!heap || ch_code_add(heap, bytes, sizeof bytes, "twice", &twice))
		return number + number;
	int result = twice(number);
	(void)!ch_code_free(heap, (void *)(uintptr_t)twice, CH_RELEASE_COLLECT);
	return result;
}

static bool library_tidy(void)
{
	pthread_once(&once, start);
	return !heap || ch_heap_collect(heap) == CH_OK;
}

/* --- the program --- */

static int never[2];

static void *wait_for_ever(void *called)
{
	char byte;
	*(int *)called = library_twice(1);
	return read(never[0], &byte, 1) < 0 ? called : NULL;
}
static void *call(void *wrong)
{
	for (int i = 0; i < 1000; i++)
		*(int *)wrong += library_twice(i) != 2 * i;
	return NULL;
}

int main(void)
{
	pthread_t waits, calls;
	int called = 0, wrong = 0, collected = 0, late = 0;
	if (pipe(never) || pthread_create(&waits, NULL, wait_for_ever, &called))
		return 1;
	for (int i = 0; i < 10; i++) {
		if (pthread_create(&calls, NULL, call, &wrong) || pthread_join(calls, NULL))
			return 1;
		while (!library_tidy()) /* a thread may have been slow to stop */
			late++;
		collected++;
	}
	close(never[1]);
	pthread_join(waits, NULL);
	printf("wrong: %d; %d collections beside a thread in read(), %d late\n", wrong, collected,
	       late);
	return wrong || called != 2;
}
