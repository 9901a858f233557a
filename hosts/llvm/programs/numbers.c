/* SPDX-License-Identifier: MIT
 * numbers.c: variable arguments, recursion, floating point, the mathematical library. */
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

static double sum(const char *kinds, ...)
{
	va_list list;
	double total = 0;
	va_start(list, kinds);
	for (; *kinds; kinds++) {
		if (*kinds == 'i')
			total += va_arg(list, int);
		else if (*kinds == 'l')
			total += (double)va_arg(list, int64_t);
		else if (*kinds == 'd')
			total += va_arg(list, double);
		else
			total += *va_arg(list, const float *);
	}
	va_end(list);
	return total;
}

static int say(char *text, size_t bytes, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	int length = vsnprintf(text, bytes, format, list);
	va_end(list);
	return length;
}

static unsigned ackermann(unsigned m, unsigned n)
{
	if (m == 0)
		return n + 1;
	return ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1));
}

static unsigned queens(unsigned row, unsigned n, unsigned columns, unsigned left, unsigned right)
{
	unsigned found = 0;
	if (row == n)
		return 1;
	for (unsigned free = ~(columns | left | right) & ((1u << n) - 1); free; free &= free - 1) {
		unsigned bit = free & -free;
		found += queens(row + 1, n, columns | bit, (left | bit) << 1, (right | bit) >> 1);
	}
	return found;
}

static double integrate(double (*f)(double), double low, double high, unsigned steps)
{
	double area = 0, step = (high - low) / steps;
	for (unsigned i = 0; i < steps; i++)
		area += f(low + (i + 0.5) * step) * step;
	return area;
}

static double bell(double x)
{
	return exp(-x * x);
}

int main(void)
{
	float quarter = 0.25f;
	char text[80];
	printf("%.3f\n", sum("ildfiiiddddddddd", 1, (int64_t)1 << 40, 0.5, &quarter, 1, 2, 3, 1.0,
			     2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0));
	int length = say(text, sizeof text, "%s %d %lld %g %c", "text", -7, 1LL << 50, 2.5, 'x');
	printf("%d %s\n", length, text);
	printf("%u %u\n", ackermann(2, 9), queens(0, 8, 0, 0, 0));
	printf("%.9f %.9f\n", integrate(bell, -4, 4, 1000), integrate(sin, 0, M_PI, 1000));
	printf("%.6f %.6f %.6f\n", pow(2, 0.5), atan2(1, -1), fmod(10, 3));
	return (int)ackermann(1, 40);
}
