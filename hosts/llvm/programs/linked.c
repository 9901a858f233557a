/* SPDX-License-Identifier: MIT
 * linked.c: a program of two modules, with linked_part.c: each module calls the other, and reads
 * and writes the other's data. */
#include <stdio.h>

extern int part_calls;
extern const char *const part_names[3];
long part_fold(long (*f)(long, long), const long *numbers, int count);

long main_calls;
long main_twice(long n)
{
	main_calls++;
	return 2 * n;
}

static long add(long a, long b)
{
	return main_twice(a) + b;
}

int main(void)
{
	static const long numbers[] = {1, 2, 3, 4, 5};
	printf("%ld\n", part_fold(add, numbers, 5));
	part_calls += 100;
	printf("%ld\n", part_fold(add, numbers, 3));
	printf("%d %ld %s\n", part_calls, main_calls, part_names[main_calls % 3]);
	return 3;
}
