/* SPDX-License-Identifier: MIT
 * program.c: an end for each program, and threads.
 *
 * A program's exit handlers are code of its module, so they cannot wait for the end of the process:
 * the runner has its own `atexit` and `__cxa_atexit`, and `exit` in the thread that runs main comes
 * back to the runner. `exit` elsewhere, in a library or in another thread, ends the process, as it
 * should; the handlers run before.
 *
 * A thread that runs a program's code must be attached; the end of a thread detaches it. Programs
 * make threads by pthread_create, also through libstdc++, so the runner has a pthread_create of its
 * own, which the dynamic linker finds first. */
#include "program.h"

#include <dlfcn.h>
#include <errno.h>
#include <llvm-c/Core.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct handler {
	void (*run)(void *arg);
	void *arg;
	struct handler *before;
};

static struct {
	struct ch_heap *heap;
	pthread_mutex_t lock; /* held for some instructions */
	struct handler *last; /* [lock] */
	pthread_t runner;
	jmp_buf *end; /* the runner's: exit jumps here; NULL outside of a program */
	int status;
} program = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- the end --- */

static int add_handler(void (*run)(void *), void *arg, void *object)
{
	struct handler *handler = malloc(sizeof *handler);
	(void)object;
	if (!handler)
		return -1;
	*handler = (struct handler){.run = run, .arg = arg};
	pthread_mutex_lock(&program.lock);
	handler->before = program.last;
	program.last = handler;
	pthread_mutex_unlock(&program.lock);
	return 0;
}

static int add_plain_handler(void (*run)(void))
{
	/* In the calling conventions of all supported architectures, a function without parameters
	 * ignores an argument. */
	return add_handler((void (*)(void *))(uintptr_t)run, NULL, NULL);
}

/* Handlers may register handlers, and may call exit: each handler runs once. */
static void run_handlers(void)
{
	for (;;) {
		pthread_mutex_lock(&program.lock);
		struct handler *handler = program.last;
		if (handler)
			program.last = handler->before;
		pthread_mutex_unlock(&program.lock);
		if (!handler)
			return;
		void (*run)(void *) = handler->run;
		void *arg = handler->arg;
		free(handler);
		run(arg);
	}
}

static _Noreturn void leave(int status)
{
	if (!program.end || !pthread_equal(pthread_self(), program.runner))
		exit(status);
	program.status = status;
	longjmp(*program.end, 1);
}

int program_run(int (*start)(void *), void *arg)
{
	jmp_buf end;
	program.runner = pthread_self();
	program.end = &end;
	if (setjmp(end) == 0)
		program.status = start(arg);
	/* A handler that calls exit comes here again, to the remaining handlers. */
	setjmp(end);
	run_handlers();
	program.end = NULL;
	fflush(NULL);
	return program.status & 0xff;
}

/* --- threads --- */

struct start {
	void *(*run)(void *);
	void *arg;
};

static void *run_thread(void *arg)
{
	struct start start = *(struct start *)arg;
	free(arg);
	enum ch_status status = ch_thread_attach(program.heap, NULL, NULL);
	if (status != CH_OK) {
		fprintf(stderr, "codeheap-lli: a thread: %s\n", ch_why());
		abort();
	}
	return start.run(start.arg);
}

typedef int create_function(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

__attribute__((visibility("default"))) int
pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg)
{
	static create_function *original;
	create_function *create = __atomic_load_n(&original, __ATOMIC_RELAXED);
	if (!create) {
		*(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
		__atomic_store_n(&original, create, __ATOMIC_RELAXED);
	}
	if (!program.heap)
		return create(thread, attributes, run, arg);
	struct start *start = malloc(sizeof *start);
	if (!start)
		return EAGAIN; /* as for any lack of resources */
	*start = (struct start){run, arg};
	int status = create(thread, attributes, run_thread, start);
	if (status != 0)
		free(start);
	return status;
}

void program_start(struct ch_heap *heap)
{
	program.heap = heap;
	if (atexit(run_handlers) != 0)
		fprintf(stderr, "codeheap-lli: no memory for an exit handler\n");
}

/* --- names --- */

void program_map(LLVMExecutionEngineRef engine, LLVMModuleRef module)
{
	static char handle; /* __dso_handle may be any address */
	const struct {
		const char *name;
		void *at;
	} functions[] = {
		{"atexit", (void *)(uintptr_t)add_plain_handler},
		{"__cxa_atexit", (void *)(uintptr_t)add_handler},
		{"exit", (void *)(uintptr_t)leave},
	};
	for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
		LLVMValueRef f = LLVMGetNamedFunction(module, functions[i].name);
		if (f && LLVMIsDeclaration(f))
			LLVMAddGlobalMapping(engine, f, functions[i].at);
	}
	LLVMValueRef global = LLVMGetNamedGlobal(module, "__dso_handle");
	if (global && LLVMIsDeclaration(global))
		LLVMAddGlobalMapping(engine, global, &handle);
}
