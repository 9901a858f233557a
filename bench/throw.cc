// SPDX-License-Identifier: MIT
// throw.cc: C++ exceptions between native frames, which find their handler by the unwinder's tables
// of the whole process. Knows nothing of the heap.
#include "bench/bench.h"

namespace
{

struct failure {
	int number;
};

__attribute__((noinline)) void fail(int number)
{
	throw failure{number};
}

__attribute__((noinline)) int pass_on(int number)
{
	fail(number);
	return number;
}

} // namespace

extern "C" double bench_throw_ns(int throws)
{
	int sum = 0;
	double start = bench_cpu_ns();
	for (int i = 0; i < throws; i++) {
		try {
			sum += pass_on(i);
		} catch (const failure &f) {
			sum += f.number & 1;
		}
	}
	double time = bench_cpu_ns() - start;
	if (sum != throws / 2)
		bench_die("an exception was lost");
	return time / throws;
}
