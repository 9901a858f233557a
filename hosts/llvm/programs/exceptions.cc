// SPDX-License-Identifier: MIT
// exceptions.cc: exceptions thrown and caught in many ways: by type, by base, again, out of
// destructors' way, through frames of the C and the C++ library, out of constructors.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <vector>

namespace
{

struct base {
	virtual ~base() = default;
	virtual const char *name() const
	{
		return "base";
	}
};
struct derived : base {
	const char *name() const override
	{
		return "derived";
	}
};
struct other final : virtual base, std::runtime_error {
	other() : std::runtime_error("other's text")
	{
	}
	const char *name() const override
	{
		return "other";
	}
};

int alive;
struct guard {
	guard()
	{
		alive++;
	}
	guard(const guard &)
	{
		alive++;
	}
	~guard()
	{
		alive--;
	}
};

[[gnu::noinline]] int throw_by(int what)
{
	guard g;
	std::vector<guard> more(3);
	switch (what) {
	case 0:
		throw 17;
	case 1:
		throw derived();
	case 2:
		throw other();
	case 3:
		throw std::string("a long text that does not fit in the string itself");
	case 4:
		return std::vector<int>(3).at(10);
	case 5:
		throw "text";
	case 6:
		return (int)reinterpret_cast<long>(::operator new(~0ul >> 1));
	default:
		return what;
	}
}

[[gnu::noinline]] int deep(int depth, int what)
{
	guard g;
	return depth == 0 ? throw_by(what) : deep(depth - 1, what) + 1;
}

void show(int what)
{
	try {
		std::printf("%d\n", deep(what * 10, what));
	} catch (int n) {
		std::printf("int %d\n", n);
	} catch (const std::exception &e) {
		std::printf("standard: %s\n", e.what());
	} catch (const base &b) {
		std::printf("%s\n", b.name());
	} catch (const std::string &s) {
		std::printf("%s\n", s.c_str());
	} catch (...) {
		std::puts("something");
	}
	std::printf("%d alive\n", alive);
}

int compare(const void *a, const void *b)
{
	guard g;
	int x = *static_cast<const int *>(a), y = *static_cast<const int *>(b);
	if (x == 5 && y == 5)
		throw std::logic_error("through qsort");
	return (x > y) - (x < y);
}

struct half {
	guard one;
	guard two;
	explicit half(bool fails)
	try : one(), two() {
		if (fails)
			throw derived();
	} catch (...) {
		std::printf("half made, %d alive\n", alive);
	}
};

} // namespace

int main()
{
	for (int what = 0; what < 9; what++)
		show(what);
	try {
		try {
			deep(5, 1);
		} catch (...) {
			guard g;
			throw;
		}
	} catch (const base &b) {
		std::printf("again: %s\n", dynamic_cast<const derived *>(&b) ? "derived" : "not");
	}
	int numbers[] = {9, 5, 3, 5, 1, 5};
	try {
		std::qsort(numbers, 6, sizeof(int), compare);
		std::puts("sorted");
	} catch (const std::logic_error &e) {
		std::printf("%s, %d alive\n", e.what(), alive);
	}
	try {
		half h(true);
	} catch (const base &b) {
		std::printf("out of a constructor: %s\n", b.name());
	}
	std::exception_ptr kept;
	try {
		std::function<int(int)> f = [](int n) { return deep(n, 2); };
		f(4);
	} catch (...) {
		kept = std::current_exception();
	}
	try {
		std::rethrow_exception(kept);
	} catch (const base &b) {
		std::printf("kept: %s %d\n", b.name(), (int)(typeid(b) == typeid(other)));
	}
	for (int i = 0; i < 2000; i++) {
		try {
			deep(i % 40, i % 6);
		} catch (...) {
			continue;
		}
	}
	return alive;
}
