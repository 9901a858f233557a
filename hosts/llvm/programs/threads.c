/* SPDX-License-Identifier: MIT
 * threads.c: threads that wait for each other, hand results back, and end from the depth. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, ITEMS = 2000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int queue[16], queued, taken;
static pthread_key_t key;
static int destroyed;

static void on_end(void *value)
{
	pthread_mutex_lock(&lock);
	destroyed += *(int *)value;
	pthread_mutex_unlock(&lock);
	free(value);
}

static _Noreturn void deep(int n, void *result)
{
	if (n == 0)
		pthread_exit(result);
	deep(n - 1, result);
}

static void *worker(void *arg)
{
	int *mine = malloc(sizeof *mine);
	long sum = 0;
	*mine = 1 + (int)(long)arg;
	pthread_setspecific(key, mine);
	pthread_mutex_lock(&lock);
	for (;;) {
		while (queued == 0 && taken < ITEMS)
			pthread_cond_wait(&changed, &lock);
		if (queued == 0)
			break;
		sum += queue[--queued];
		taken++;
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&lock);
	deep(10, (void *)sum);
}

int main(void)
{
	pthread_t threads[THREADS];
	long total = 0;
	pthread_key_create(&key, on_end);
	for (long i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, worker, (void *)i) != 0)
			return 1;
	for (int i = 1; i <= ITEMS; i++) {
		pthread_mutex_lock(&lock);
		while (queued == 16)
			pthread_cond_wait(&changed, &lock);
		queue[queued++] = i;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
	}
	for (int i = 0; i < THREADS; i++) {
		void *sum;
		pthread_join(threads[i], &sum);
		total += (long)sum;
	}
	printf("%ld %d\n", total, destroyed);
	pthread_key_delete(key);
	return 0;
}
