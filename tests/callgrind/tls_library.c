// SPDX-License-Identifier: MIT
/* A shared library with a thread-local variable, whose address the dynamic linker gives. */
#include <pthread.h>

static __thread int counter __attribute__((tls_model("global-dynamic")));

int tls_bump(int by);
int tls_outer(int by);

__attribute__((noipa)) int tls_bump(int by)
{
	return counter += by;
}

__attribute__((noipa)) int tls_outer(int by)
{
	return tls_bump(by) + tls_bump(by + 1) + 1;
}
