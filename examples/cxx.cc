/* SPDX-License-Identifier: MIT
 * cxx.cc: the smallest program in C++17: code that is called by type and freed by a destructor; and
 * a function that is interpreted first and compiled then. */
#include <codeheap/codeheap.hpp>

#include <iostream>

static int interpret(int number)
{
	return number + number;
}

int main()
{
	/* lea eax, [rdi + rdi]; ret */
	static const unsigned char twice_bytes[] = {0x8d, 0x04, 0x3f, 0xc3};
	try {
		codeheap::heap heap;
		codeheap::check(heap.create());
		codeheap::code<int(int)> code;
		codeheap::check(code.add(heap, twice_bytes, sizeof twice_bytes, "twice"));
		std::cout << "code: " << code(21) << "\n";

		codeheap::vm vm;
		codeheap::check(vm.attach(heap));
		codeheap::function<int(int)> twice;
		codeheap::check(twice.create(vm, "twice", interpret));
		std::cout << "interpreted: " << twice(21) << "\n";
		codeheap::check(twice.compile(twice_bytes, sizeof twice_bytes));
		std::cout << "compiled: " << twice(21) << "\n";
	} catch (const codeheap::error &error) {
		std::cerr << "cxx: " << error.what() << "\n";
		return 1;
	}
	return 0;
}
