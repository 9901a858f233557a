/* SPDX-License-Identifier: MIT
 * beside.c: --beside=FILE: while the program runs, a thread makes another VM instance in the same
 * process, runs FILE in it and destroys it, over and over. Both VMs share the code heap.
 */
#define GC_THREADS
#include "beside.h"

#include <gc/gc.h>
#include <stdlib.h>

struct beside {
	struct vm_options options;
	const char *path;
	atomic_int must_stop;
	int runs, failures;
	char *first; /* output of the first run */
	size_t first_bytes;
	pthread_t thread;
};

static void compare(struct beside *beside, struct vm *vm)
{
	size_t bytes;
	const char *text = vm_captured(vm, &bytes);

	if (!beside->first) {
		beside->first = malloc(bytes + 1);
		beside->first_bytes = bytes;
		if (beside->first)
			memcpy(beside->first, text, bytes);
	} else if (bytes != beside->first_bytes || memcmp(text, beside->first, bytes) != 0) {
		beside->failures++;
	}
}

static void *run(void *argument)
{
	struct beside *beside = argument;

	do {
		struct vm *vm = vm_create(&beside->options);
		if (!vm) {
			beside->failures++;
			break;
		}
		vm_capture_output(vm);
		if (vm_run_file(vm->main, beside->path) != 0)
			beside->failures++;
		compare(beside, vm);
		beside->runs++;
		vm_destroy(vm);
	} while (!atomic_load(&beside->must_stop));
	return NULL;
}

struct beside *beside_start(const struct vm_options *options, const char *path)
{
	struct beside *beside = calloc(1, sizeof *beside);

	if (!beside)
		return NULL;
	beside->options = *options;
	beside->path = path;
	if (pthread_create(&beside->thread, NULL, run, beside)) {
		free(beside);
		return NULL;
	}
	return beside;
}

int beside_stop(struct beside *beside)
{
	int failures;

	atomic_store(&beside->must_stop, 1);
	pthread_join(beside->thread, NULL);
	failures = beside->failures;
	fprintf(stderr, "beside: %d runs, %d failures\n", beside->runs, failures);
	free(beside->first);
	free(beside);
	return failures;
}
