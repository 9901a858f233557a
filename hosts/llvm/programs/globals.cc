// SPDX-License-Identifier: MIT
// globals.cc: constructors and destructors of globals, of locals that are made at first use, and
// what the standard library keeps behind a stream.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

struct noisy {
	const char *name;
	explicit noisy(const char *n) : name(n)
	{
		std::cout << "make " << name << '\n';
	}
	~noisy()
	{
		std::cout << "end " << name << std::endl;
	}
};

static noisy first("first");
static std::map<std::string, int> ages = {{"Ada", 36}, {"Alan", 41}, {"Grace", 85}};
static const std::vector<int> numbers = [] {
	std::vector<int> v(20);
	std::iota(v.begin(), v.end(), 1);
	return v;
}();
static noisy last("last");

static noisy &at_first_use()
{
	static noisy once("at first use");
	return once;
}

struct shape {
	virtual ~shape() = default;
	virtual double area() const = 0;
};
struct circle : shape {
	double radius;
	explicit circle(double r) : radius(r)
	{
	}
	double area() const override
	{
		return 3.14159265 * radius * radius;
	}
};
struct square : shape {
	double side;
	explicit square(double s) : side(s)
	{
	}
	double area() const override
	{
		return side * side;
	}
};

template <typename T, unsigned N> T power(T x)
{
	if constexpr (N == 0)
		return 1;
	else
		return x * power<T, N - 1>(x);
}

int main(int argc, char **argv)
{
	std::vector<std::unique_ptr<shape>> shapes;
	shapes.push_back(std::make_unique<circle>(2));
	shapes.push_back(std::make_unique<square>(3));
	std::cout << std::fixed << std::setprecision(3);
	for (const auto &s : shapes)
		std::cout << s->area() << '\n';
	for (const auto &[name, age] : ages)
		std::cout << name << ' ' << age << '\n';
	std::vector<int> odd;
	std::copy_if(numbers.begin(), numbers.end(), std::back_inserter(odd),
		     [argc](int n) { return n % 2 == argc % 2; });
	std::sort(odd.rbegin(), odd.rend());
	for (int n : odd)
		std::cout << n << ' ';
	std::cout << '\n' << power<long, 10>(3) << ' ' << power<double, 3>(1.5) << '\n';
	std::istringstream in("12 0x1f word");
	int n;
	std::string hex, word;
	in >> n >> hex >> word;
	std::cout << n + std::stoi(hex, nullptr, 16) << word << '\n';
	at_first_use();
	noisy local("local");
	if (argc > 1)
		std::exit(static_cast<int>(std::string(argv[1]).size()));
	return 5;
}
