/* SPDX-License-Identifier: MIT
 * pointers.c: tables of functions, a machine that jumps by computed addresses, mutual recursion,
 * callbacks of the C library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef long operation(long, long);
static long add(long a, long b)
{
	return a + b;
}
static long subtract(long a, long b)
{
	return a - b;
}
static long multiply(long a, long b)
{
	return a * b;
}

static const struct {
	const char *name;
	operation *run;
} table[] = {{"add", add}, {"multiply", multiply}, {"subtract", subtract}};
static operation *writable[3] = {subtract, multiply, add};

static int by_name(const void *key, const void *entry)
{
	return strcmp(key, *(const char *const *)entry);
}

static int is_odd(unsigned n);
static int is_even(unsigned n)
{
	return n == 0 ? 1 : is_odd(n - 1);
}
static int is_odd(unsigned n)
{
	return n == 0 ? 0 : is_even(n - 1);
}

enum { PUSH, ADD, MULTIPLY, LOOP, HALT };

static long machine(const unsigned char *code)
{
	static const void *const labels[] = {&&push, &&add, &&multiply, &&loop, &&halt};
	long stack[16];
	unsigned at = 0, count = 5;
	const unsigned char *start = code;
	goto *labels[*code];
push:
	stack[at++] = code[1];
	code += 2;
	goto *labels[*code];
add:
	at--;
	stack[at - 1] += stack[at];
	goto *labels[*++code];
multiply:
	at--;
	stack[at - 1] *= stack[at];
	goto *labels[*++code];
loop:
	code = --count ? start + code[1] : code + 2;
	goto *labels[*code];
halt:
	return stack[at - 1];
}

static const char *day(int n)
{
	switch (n) {
	case 0:
		return "Monday";
	case 1:
		return "Tuesday";
	case 2:
		return "Wednesday";
	case 3:
		return "Thursday";
	case 4:
		return "Friday";
	case 5:
		return "Saturday";
	default:
		return "Sunday";
	}
}

int main(void)
{
	static const unsigned char code[] = {PUSH, 1,   PUSH, 3, MULTIPLY, PUSH,
					     2,    ADD, LOOP, 2, HALT};
	const char *names[] = {"multiply", "subtract", "add", "divide"};
	for (int i = 0; i < 4; i++) {
		const void *found = bsearch(names[i], table, 3, sizeof table[0], by_name);
		if (found)
			printf("%s %ld\n", names[i],
			       ((const struct {
				       const char *n;
				       operation *run;
			       } *)found)
				       ->run(12, 5));
		else
			printf("%s: none\n", names[i]);
	}
	writable[0] = writable[1];
	printf("%ld %ld\n", writable[0](6, 7), writable[2](6, 7));
	printf("%d %d\n", is_even(10000), is_odd(10000));
	printf("%ld\n", machine(code));
	for (int i = 0; i < 7; i++)
		printf("%s%c", day(i), i == 6 ? '\n' : ' ');
	return 0;
}
