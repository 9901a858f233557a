// SPDX-License-Identifier: MIT
// overloaded.cc: functions of one name, one of them in a namespace without a name, whose addresses
// unit_observe_native asks for.
#include <cstdint>
#include <string>

#if defined(__clang__)
#define OPAQUE __attribute__((noinline))
#else
#define OPAQUE __attribute__((noipa))
#endif

namespace shapes
{
OPAQUE int area(int side)
{
	return side * side;
}
OPAQUE int area(double side, const char *unit)
{
	return static_cast<int>(side) + unit[0];
}
namespace
{
OPAQUE int only_here(const std::string &text)
{
	/* An allocation needs the C++ runtime, which has the demangler. */
	const std::string twice = text + text;
	return static_cast<int>(twice.size()) + area(2);
}
} // namespace
} // namespace shapes

extern "C" uintptr_t overloaded_at(int which)
{
	int (*by_int)(int) = shapes::area;
	int (*by_double)(double, const char *) = shapes::area;
	if (which == 0)
		return reinterpret_cast<uintptr_t>(by_int);
	if (which == 1)
		return reinterpret_cast<uintptr_t>(by_double);
	return reinterpret_cast<uintptr_t>(&shapes::only_here);
}
