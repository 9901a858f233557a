// SPDX-License-Identifier: MIT
/* Uses a thread-local variable of another file 40 times in this thread and 40 times in another. */
#include <pthread.h>
#include <stdlib.h>

int tls_outer(int by);

__attribute__((noipa)) static void *tls_work(void *unused)
{
	for (int i = 0; i < 20; i++)
		tls_outer(i);
	return unused;
}

int main(void)
{
	pthread_t thread;
	tls_work(NULL);
	if (pthread_create(&thread, NULL, tls_work, NULL) || pthread_join(thread, NULL))
		abort();
	return 0;
}
