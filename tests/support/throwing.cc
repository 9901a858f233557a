/* SPDX-License-Identifier: MIT
 * throwing.cc: code that a test in C cannot write: a throw, a catch, and a destructor that runs
 * when its frame is unwound. Nothing here knows the library. */
#include "tests/support/throwing.h"

uint64_t throwing_catch(uint64_t (*fn)(void *), void *arg)
{
	try {
		return fn(arg);
	} catch (int number) {
		return THROWING_CAUGHT + static_cast<uint64_t>(number);
	}
}

void throwing_throw(int number)
{
	throw number;
}

namespace
{
struct guard {
	void (*leave)(void *);
	void *arg;
	~guard()
	{
		leave(arg);
	}
};
} // namespace

void throwing_guard(uint64_t (*fn)(void *), void *arg, void (*leave)(void *))
{
	guard at_end = {leave, arg};
	(void)fn(arg);
}
