// SPDX-License-Identifier: MIT
// module.cc: what the checks of memory managers load and drop: functions that call back, with
// destructors and handlers in their frames, and data of all three kinds.
#include <cstring>
#include <stdexcept>

extern "C" {
int variable = 5;
int zeros[1000];
extern const int table[4] = {10, 20, 30, 40};
int ended; // destructors that ran

int through(int (*f)(void *), void *arg, int depth);
int caught_inside(int (*f)(void *), void *arg, int depth);
int thrown_inside(int n);
long use_data(int n);
}

namespace
{
struct guard {
	int *count;
	~guard()
	{
		++*count;
	}
};
} // namespace

[[gnu::noinline]] int through(int (*f)(void *), void *arg, int depth)
{
	guard g{static_cast<int *>(arg)};
	return depth == 0 ? f(arg) : through(f, arg, depth - 1) + 1;
}

int caught_inside(int (*f)(void *), void *arg, int depth)
{
	try {
		return through(f, arg, depth);
	} catch (const std::runtime_error &e) {
		return 1000 + static_cast<int>(std::strlen(e.what()));
	}
}

[[gnu::noinline]] static int throw_at(int n)
{
	guard g{&ended};
	if (n == 0)
		throw std::out_of_range("the end");
	return throw_at(n - 1) + 1;
}

int thrown_inside(int n)
{
	int before = ended;
	try {
		throw_at(n);
	} catch (const std::logic_error &) {
		return ended - before;
	}
	return -1;
}

long use_data(int n)
{
	variable += table[n & 3];
	zeros[n] = variable;
	return variable + zeros[(n + 1) % 1000];
}
