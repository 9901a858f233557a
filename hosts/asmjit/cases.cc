/* SPDX-License-Identifier: MIT
 * cases.cc: what the AsmJit runtime promises, one case a process: `cases NAME`; without a name the
 * list. Exit 77: the machine lacks what the case needs. */
#include "cases.h"

int main(int argc, char **argv)
{
	for (const test_case *c = test_case::first; c; c = c->next) {
		if (argc < 2) {
			std::puts(c->name);
		} else if (!std::strcmp(c->name, argv[1])) {
			c->run();
			return 0;
		}
	}
	return argc < 2 ? 0 : 2;
}
