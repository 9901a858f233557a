/* SPDX-License-Identifier: MIT
 * jumps.c: longjmp over many frames, signals, and an exit from the depth of a recursion whose
 * handlers run in reverse order. */
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static jmp_buf out;
static sigjmp_buf back;
static volatile sig_atomic_t signals;

static void descend(int depth, int bottom)
{
	volatile char frame[200];
	frame[depth % 200] = (char)depth;
	if (depth == bottom)
		longjmp(out, depth + frame[0]);
	descend(depth + 1, bottom);
	frame[0]++; /* keeps the call from becoming a jump */
}

static void on_signal(int number)
{
	signals++;
	if (number == SIGUSR2)
		siglongjmp(back, 5);
}

static void first(void)
{
	puts("registered first, runs last");
}

static void third(void)
{
	puts("registered by a handler");
}

static void second(void)
{
	puts("registered second");
	atexit(third);
}

static int leave(int n)
{
	if (n == 0)
		exit(43);
	return leave(n - 1) + 1;
}

int main(void)
{
	atexit(first);
	atexit(second);
	for (volatile int round = 1; round <= 3; round++) {
		int from = setjmp(out);
		if (from == 0)
			descend(1, round * 100);
		printf("back from %d\n", from);
	}
	signal(SIGUSR1, on_signal);
	signal(SIGUSR2, on_signal);
	raise(SIGUSR1);
	if (sigsetjmp(back, 1) == 0) {
		raise(SIGUSR2);
		puts("never");
	}
	raise(SIGUSR2 + 0 * signals == SIGUSR1 ? SIGUSR2 : SIGUSR1);
	printf("%d signals\n", (int)signals);
	return leave(30);
}
