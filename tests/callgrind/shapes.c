// SPDX-License-Identifier: MIT
/* Call graphs of known shape and known numbers of calls, each run once. Functions are never inlined
 * or merged. Calls in tail position are jumps in the tail functions, and calls elsewhere.
 */
#include "tests/callgrind/shapes.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>

static volatile int sink;
static jmp_buf place;

/* Recursion: fibonacci(10) is 177 calls. */
FUNCTION int fibonacci(int n)
{
	return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

FUNCTION int chain_c(int x)
{
	return x + 1;
}
FUNCTION int chain_b(int x)
{
	return chain_c(x) + 1;
}
FUNCTION int chain_a(int x)
{
	return chain_b(x) + chain_b(x + 1) + 1;
}

FUNCTION int diamond_bottom(int x)
{
	return x ^ 5;
}
FUNCTION int diamond_left(int x)
{
	return diamond_bottom(x) + 1;
}
FUNCTION int diamond_right(int x)
{
	return diamond_bottom(x) + diamond_bottom(x + 1);
}
FUNCTION int diamond_top(int x)
{
	return diamond_left(x) + diamond_right(x) + 1;
}

FUNCTION int mutual_odd(int n);
FUNCTION int mutual_even(int n)
{
	return n == 0 ? 1 : 1 + mutual_odd(n - 1);
}
FUNCTION int mutual_odd(int n)
{
	return n == 0 ? 1 : 1 + mutual_even(n - 1);
}

/* Jumps from function to function: callgrind takes the jumps for calls. */
FUNCTION int tail_c(int x)
{
	return x * 3;
}
FUNCTION __attribute__((optimize("O2"))) int tail_b(int x)
{
	return tail_c(x + 1);
}
FUNCTION __attribute__((optimize("O2"))) int tail_a(int x)
{
	return tail_b(x + 2);
}

/* A loop, whose jumps are no calls. */
FUNCTION int looping(int n)
{
	int sum = 0;
	while (n-- > 0)
		sum += n & 1 ? n : -n;
	return sum;
}

FUNCTION void *make_thing(int n)
{
	return malloc((size_t)n);
}
FUNCTION void drop_thing(void *thing)
{
	free(thing);
}
FUNCTION void work_on_thing(char *thing)
{
	*thing = 1;
}
FUNCTION void cycles_of_things(void)
{
	for (int i = 0; i < 20; i++) {
		char *thing = make_thing(100 + i);
		work_on_thing(thing);
		drop_thing(thing);
	}
}

/* Three frames are left at once, twice. */
FUNCTION void jump_out(int n)
{
	longjmp(place, n);
}
FUNCTION void jump_middle(int n)
{
	jump_out(n);
	sink++;
}
FUNCTION void jump_outer(int n)
{
	jump_middle(n);
	sink++;
}
FUNCTION void after_jumps(void)
{
	sink++;
}
FUNCTION void jump_scene(void)
{
	volatile int times = 0;
	setjmp(place);
	if (++times <= 2)
		jump_outer(times);
	after_jumps();
}

FUNCTION int same_name(int x)
{
	return x + 2;
}
FUNCTION int statics_of_a(int x)
{
	return same_name(x) + same_name(x + 1);
}

/* Inlined code of another file has lines of that file; the callee behind is in this file again. */
FUNCTION int inlines(int x)
{
	int y = chain_c(x);
	y = inlined_loop(y);
	y += inlined_hop(y);
	return chain_c(y) + 1;
}
FUNCTION int behind_inlines(int x)
{
	return chain_c(x) + 3;
}

FUNCTION void *thread_work(void *n)
{
	sink += looping(*(int *)n);
	return NULL;
}

FUNCTION void more_threads(void)
{
	int n = 50;
	pthread_t thread;
	if (pthread_create(&thread, NULL, thread_work, &n) || pthread_join(thread, NULL))
		abort();
}

int main(int argc, char **argv)
{
	(void)argv;
	sink = fibonacci(10);
	sink = chain_a(argc);
	sink = diamond_top(argc);
	sink = mutual_even(9);
	for (int i = 0; i < 6; i++)
		sink = tail_a(i) + 1;
	sink = looping(100);
	cycles_of_things();
	jump_scene();
	sink = statics_of_a(argc) + statics_of_b(argc);
	sink = inlines(argc) + behind_inlines(argc);
	more_threads();
	return 0;
}
