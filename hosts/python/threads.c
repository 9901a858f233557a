/* SPDX-License-Identifier: MIT
 * threads.c: the threads of CPython as the heap's world. Each thread that calls a Python function
 * is attached, and parked from then on. Only the holder of the interpreter lock enters, leaves,
 * makes and frees code, so the lock alone stops all other threads for a collection, wherever they
 * are in C code. A thread is unparked only around calls that make or free code.
 *
 * A parked thread's stack pointer is older than its frames, so the roots are reported here. Every
 * running trampoline called an evaluator. The evaluator's _PyCFrame, a local variable that CPython
 * keeps in a list per thread state, tells where the return address lies. */
#include <codeheap/collector.h>

#include "host.h"

#include <pthread.h>

_Atomic(uint64_t) the_era = 1;
_Thread_local struct thread the_thread __attribute__((tls_model("initial-exec")));

static _Atomic(bool) collection_is_wanted; /* set by any thread that the library serves */
static pthread_key_t exit_key;
static bool has_exit_key;

/* From an evaluator's _PyCFrame to behind the evaluator's return address. */
static size_t frame_bytes;
size_t the_return_at;

/* --- the world --- */

/* Destructor of the key. The thread does not hold the interpreter lock, so it detaches parked. */
static void leave(void *unused)
{
	(void)unused;
	the_thread = (struct thread){0};
	/* Fails only for a thread that is not attached. */
	enum ch_status status = ch_thread_detach(the_heap);
	(void)status;
}

static bool attach(void)
{
	if (!has_exit_key) {
		if (pthread_key_create(&exit_key, leave))
			return false;
		has_exit_key = true;
	}
	if (pthread_setspecific(exit_key, &the_thread))
		return false;
	if (ch_thread_attach(the_heap, NULL, NULL) != CH_OK) {
		pthread_setspecific(exit_key, NULL);
		return false;
	}
	ch_thread_park();
	the_thread.is_attached = true;
	return true;
}

void thread_begin(void)
{
	ch_thread_unpark();
}

void thread_end(void)
{
	ch_thread_park();
}

void threads_ask_collection(void)
{
	collection_is_wanted = true;
	atomic_fetch_add_explicit(&the_era, 1, memory_order_relaxed);
}

enum ch_status thread_collect(void)
{
	collection_is_wanted = false;
	thread_begin();
	enum ch_status status = ch_heap_collect(the_heap);
	thread_end();
	/* Where the stop synchronizes cores, each thread is served before entering code. */
	atomic_fetch_add_explicit(&the_era, 1, memory_order_relaxed);
	return status;
}

bool thread_serve(void)
{
	if (!the_thread.is_attached && !attach())
		return false;
	thread_begin();
	thread_end();
	/* The heap asks again for an abandoned collection. */
	if (UNLIKELY(collection_is_wanted) && thread_collect() != CH_OK)
		collection_is_wanted = false;
	the_thread.era = atomic_load_explicit(&the_era, memory_order_relaxed);
	return true;
}

/* --- roots --- */

static void report_thread(const PyThreadState *thread, struct ch_marker *marker)
{
	/* NULL in a fresh thread state. */
	for (const _PyCFrame *frame = thread->cframe; frame && frame != &thread->root_cframe;
	     frame = frame->previous) {
		uintptr_t low = (uintptr_t)frame & ~(uintptr_t)7;
		ch_mark_stack(marker, (const void *)low, (const void *)(low + frame_bytes));
	}
}

/* The lists change under this lock of CPython's. Threads of C programs that come to Python hold the
 * lock for some instructions, without the interpreter lock. The calling thread itself may hold the
 * lock for longer, to clear thread states at an interpreter's end. Objects that die then may start
 * a collection, and no other thread is there. */
bool threads_lock_lists(void)
{
	enum { WAIT_US = 100000 };
	return PyThread_acquire_lock_timed(_PyRuntime.interpreters.mutex, WAIT_US, 0) ==
	       PY_LOCK_ACQUIRED;
}

void threads_unlock_lists(void)
{
	PyThread_release_lock(_PyRuntime.interpreters.mutex);
}

void threads_report(void *user, struct ch_marker *marker)
{
	(void)user;
	bool is_locked = threads_lock_lists();
	for (PyInterpreterState *i = PyInterpreterState_Head(); i; i = PyInterpreterState_Next(i))
		for (PyThreadState *t = PyInterpreterState_ThreadHead(i); t;
		     t = PyThreadState_Next(t))
			report_thread(t, marker);
	if (is_locked)
		threads_unlock_lists();
}

/* --- how an evaluator lies on the stack --- */

/* An address above the evaluator's return address. Per thread, since several may learn at a
 * time. */
static _Thread_local uintptr_t learning_from;
static size_t learnt_bytes, learnt_return_at;

__attribute__((noinline)) static PyObject *
evaluate_known(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throw_flag)
{
	uintptr_t outer = learning_from;
	learning_from = (uintptr_t)__builtin_frame_address(0);
	PyObject *result = _PyEval_EvalFrameDefault(thread, frame, throw_flag);
	learning_from = outer;
	return result;
}

/* The offset of the highest word between low and high that leads back into evaluate_known; 0 = no
 * such word. Above lies evaluate_known's own frame; below may lie stale words of earlier calls. */
static size_t find_return(uintptr_t low, uintptr_t high)
{
	enum { KNOWN_BYTES = 256, WORD = sizeof(uintptr_t) };
	const uintptr_t known = (uintptr_t)evaluate_known;
	for (uintptr_t at = (high - WORD) & ~(uintptr_t)(WORD - 1); at > low; at -= WORD) {
		uintptr_t word = *(const volatile uintptr_t *)at;
		if (word > known && word < known + KNOWN_BYTES)
			return at - low;
	}
	return 0;
}

/* Called by the code that evaluate_known evaluates. */
static PyObject *measure(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
	uintptr_t low = (uintptr_t)PyThreadState_Get()->cframe;
	learnt_bytes = learning_from - low;
	learnt_return_at = find_return(low, learning_from);
	Py_RETURN_NONE;
}

static bool run_measurement(PyObject *function)
{
	PyInterpreterState *state = PyInterpreterState_Get();
	_PyFrameEvalFunction before = _PyInterpreterState_GetEvalFrameFunc(state);
	if (before != _PyEval_EvalFrameDefault && before != evaluate_known) {
		PyErr_SetString(PyExc_RuntimeError, refused_other_hook);
		return false;
	}
	PyObject *names =
		Py_BuildValue("{sOsO}", "measure", function, "__builtins__", PyEval_GetBuiltins());
	if (!names)
		return false;
	_PyInterpreterState_SetEvalFrameFunc(state, evaluate_known);
	PyObject *result = PyRun_String("measure()", Py_eval_input, names, names);
	/* Another thread may have learnt, and be active, by now. */
	if (_PyInterpreterState_GetEvalFrameFunc(state) == evaluate_known)
		_PyInterpreterState_SetEvalFrameFunc(state, _PyEval_EvalFrameDefault);
	Py_DECREF(names);
	Py_XDECREF(result);
	return result != NULL;
}

bool threads_learn(void)
{
	enum { MOST_BYTES = 16384 };
	static PyMethodDef definition = {"measure", measure, METH_NOARGS, NULL};
	PyObject *function = PyCFunction_New(&definition, NULL);
	if (!function)
		return false;
	bool is_done = run_measurement(function);
	Py_DECREF(function);
	if (!is_done)
		return false;
	if (learnt_bytes < 16 || learnt_bytes > MOST_BYTES) {
		PyErr_SetString(PyExc_RuntimeError,
				"this Python keeps its evaluators' frames in an unknown way");
		return false;
	}
	frame_bytes = (learnt_bytes + 7 + 8) & ~(size_t)7;
	the_return_at = learnt_return_at;
	return true;
}
