/* SPDX-License-Identifier: MIT
 * threads.c: threads and mutexes of Scheme programs, on pthreads that the collector knows.
 */
#define GC_THREADS
#include <errno.h>
#include <gc/gc.h>
#include <sched.h>
#include <time.h>

#include "vm.h"

enum { THREAD_STACK_BYTES = 8 << 20 };
enum thread_state { THREAD_NEW, THREAD_RUNNING, THREAD_DONE };

struct thread {
	uint64_t header;
	enum thread_state state; /* [lock] */
	int failed;
	value thunk, result;
	struct vm *vm;
	pthread_mutex_t lock;
	pthread_cond_t changed;
};

struct mutex {
	uint64_t header;
	/* [lock] thread object, #f for the main thread, 0: free. Holds the thread object, so that
	 * no later one has its address. */
	value owner;
	pthread_mutex_t lock;
	pthread_cond_t changed;
};

static void run_thunk(struct context *ctx, struct thread *thread, const char *refusal)
{
	struct catcher catcher;

	catcher_enter(ctx, &catcher);
	if (_setjmp(catcher.target) == 0) {
		if (refusal)
			raise_error(ctx, "thread", refusal, 0);
		thread->result = apply(ctx, thread->thunk, 0, NULL);
	} else {
		thread->result = catcher.error;
		thread->failed = 1;
	}
	catcher_leave(ctx, &catcher);
}

static void *thread_main(void *argument)
{
	struct thread *thread = argument;
	struct vm *vm = thread->vm;
	struct context *ctx = context_create(vm);

	if (ctx) {
		const char *refusal = NULL;
		ctx->thread = (value)thread;
		if (vm->hooks.thread_started)
			refusal = vm->hooks.thread_started(ctx);
		run_thunk(ctx, thread, refusal);
		if (vm->hooks.thread_ended && !refusal)
			vm->hooks.thread_ended(ctx);
		vm->interpreted_calls_ended += ctx->interpreted_calls;
		context_destroy(ctx);
	} else {
		thread->failed = 1;
		thread->result = V_NONE;
	}
	/* Before any join can return: after joining all threads a program finds none running. */
	vm->threads_running--;
	pthread_mutex_lock(&thread->lock);
	thread->state = THREAD_DONE;
	pthread_cond_broadcast(&thread->changed);
	pthread_mutex_unlock(&thread->lock);
	return NULL;
}

static struct thread *thread_arg(struct context *ctx, const char *who, value v)
{
	return AS(thread, object_arg(ctx, who, T_THREAD, v));
}

PRIM(make_thread)
{
	if (!is_procedure(args[0]))
		raise_type(ctx, "make-thread", "procedure", args[0]);
	struct thread *thread = alloc_bytes(ctx, T_THREAD, sizeof *thread);
	thread->thunk = args[0];
	thread->vm = ctx->vm;
	pthread_mutex_init(&thread->lock, NULL);
	pthread_cond_init(&thread->changed, NULL);
	return (value)thread;
}

PRIM(thread_start)
{
	struct thread *thread = thread_arg(ctx, "thread-start!", args[0]);
	pthread_attr_t attr;
	pthread_t id;

	pthread_mutex_lock(&thread->lock);
	int is_new = thread->state == THREAD_NEW;
	thread->state = is_new ? THREAD_RUNNING : thread->state;
	pthread_mutex_unlock(&thread->lock);
	if (!is_new)
		raise_error(ctx, "error", "thread was started before", 0);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, THREAD_STACK_BYTES);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	ctx->vm->threads_running++;
	int failed = pthread_create(&id, &attr, thread_main, thread);
	pthread_attr_destroy(&attr);
	if (failed) {
		ctx->vm->threads_running--;
		thread->state = THREAD_NEW;
		raise_error(ctx, "thread", "cannot start a thread", 0);
	}
	return (value)thread;
}

PRIM(spawn)
{
	value thread = make_thread(ctx, args, argc);
	return thread_start(ctx, &thread, 1);
}

PRIM(thread_join)
{
	struct thread *thread = thread_arg(ctx, "thread-join!", args[0]);

	if ((value)thread == ctx->thread)
		raise_error(ctx, "error", "thread joins itself", 0);
	if (thread->state == THREAD_NEW)
		raise_error(ctx, "error", "thread was not started", 0);
	pthread_mutex_lock(&thread->lock);
	while (thread->state != THREAD_DONE)
		pthread_cond_wait(&thread->changed, &thread->lock);
	pthread_mutex_unlock(&thread->lock);
	if (thread->failed && thread->result == V_NONE)
		raise_error(ctx, "thread", "no memory for the stacks of a thread", 0);
	if (thread->failed)
		raise_value(ctx, thread->result);
	return thread->result;
}

PRIM(thread_yield)
{
	sched_yield();
	return V_UNSPEC;
}

PRIM(thread_sleep)
{
	if (!is_number(args[0]) || !(double_of(args[0]) >= 0 && double_of(args[0]) < 1e6))
		raise_type(ctx, "thread-sleep!", "number of seconds", args[0]);
	double seconds = double_of(args[0]);
	struct timespec left = {.tv_sec = (time_t)seconds};
	left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
	/* The collector's stop signal interrupts nanosleep. */
	while (nanosleep(&left, &left) && errno == EINTR)
		;
	return V_UNSPEC;
}

PRIM(thread_p) { return make_bool(is_type(args[0], T_THREAD)); }
PRIM(current_thread) { return ctx->thread; }

static struct mutex *mutex_arg(struct context *ctx, const char *who, value v)
{
	return AS(mutex, object_arg(ctx, who, T_MUTEX, v));
}

value make_mutex(struct context *ctx)
{
	struct mutex *mutex = alloc_bytes(ctx, T_MUTEX, sizeof *mutex);
	pthread_mutex_init(&mutex->lock, NULL);
	pthread_cond_init(&mutex->changed, NULL);
	return (value)mutex;
}

int mutex_is_free(value mutex)
{
	struct mutex *m = AS(mutex, mutex);

	pthread_mutex_lock(&m->lock);
	int is_free = m->owner == 0;
	pthread_mutex_unlock(&m->lock);
	return is_free;
}

PRIM(new_mutex) { return make_mutex(ctx); }

PRIM(mutex_lock)
{
	struct mutex *mutex = mutex_arg(ctx, "mutex-lock!", args[0]);

	pthread_mutex_lock(&mutex->lock);
	int is_own = mutex->owner == ctx->thread;
	while (!is_own && mutex->owner)
		pthread_cond_wait(&mutex->changed, &mutex->lock);
	mutex->owner = ctx->thread;
	pthread_mutex_unlock(&mutex->lock);
	if (is_own)
		raise_error(ctx, "error", "mutex is locked by this thread already", 0);
	return V_TRUE;
}

PRIM(mutex_unlock)
{
	struct mutex *mutex = mutex_arg(ctx, "mutex-unlock!", args[0]);

	pthread_mutex_lock(&mutex->lock);
	int is_own = mutex->owner == ctx->thread;
	if (is_own) {
		mutex->owner = 0;
		pthread_cond_signal(&mutex->changed);
	}
	pthread_mutex_unlock(&mutex->lock);
	if (!is_own)
		raise_error(ctx, "error", "mutex is not locked by this thread", 0);
	return V_UNSPEC;
}

void init_threads(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"make-thread", make_thread, 1, 2}, {"thread-start!", thread_start, 1, 1},
		{"thread-start", thread_start, 1, 1}, {"spawn", spawn, 1, 1},
		{"thread-join!", thread_join, 1, 1}, {"thread-join", thread_join, 1, 1},
		{"thread-yield!", thread_yield, 0, 0}, {"thread-sleep!", thread_sleep, 1, 1},
		{"thread?", thread_p, 1, 1}, {"current-thread", current_thread, 0, 0},
		{"make-mutex", new_mutex, 0, 1}, {"mutex-lock!", mutex_lock, 1, 1},
		{"mutex-unlock!", mutex_unlock, 1, 1},
	};

	DEFINE_PRIMS(ctx, defs);
}
