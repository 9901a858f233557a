// SPDX-License-Identifier: MIT
/* A shared library with a thread's own variable, for which it asks the dynamic linker. */
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
