/* SPDX-License-Identifier: MIT
 * linked_part.c: the second module of linked.c. */
extern long main_calls;
long main_twice(long n);

int part_calls = 7;
const char *const part_names[3] = {"none", "one", "two"};

long part_fold(long (*f)(long, long), const long *numbers, int count)
{
	long value = 0;
	part_calls++;
	for (int i = 0; i < count; i++)
		value = f(value, main_twice(numbers[i]));
	main_calls += 1000;
	return value;
}
