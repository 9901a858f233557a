/* SPDX-License-Identifier: MIT
 * hook.c: the frame evaluation hooks (PEP 523), and the record at a code object: an owner, made
 * when the function is called first, and a trampoline, made then and again when it is gone. The
 * fallback of each cell is enter_without_code, which ends in the plain evaluator, so a function
 * runs with or without its trampoline.
 *
 * The owner is released when the code object dies (methods.c), also while the trampoline is on a
 * stack: the code goes with a later collection (threads.c). */
#include "host.h"

Py_ssize_t the_shared_slot = -1;
uint64_t the_collect_every;

/* As in CPython's Objects/codeobject.c; interpreters.c checks the layout. */
struct code_extra {
	Py_ssize_t count;
	void *extras[];
};

static inline struct method *method_of(const PyCodeObject *code, Py_ssize_t slot)
{
	const struct code_extra *extra = code->co_extra;
	return LIKELY(extra && extra->count > slot) ? extra->extras[slot] : NULL;
}

static inline evaluator *entry_of(const struct method *method)
{
	return (evaluator *)*(const void *const volatile *)method->cell;
}

/* --- making --- */

/* Returns false on failure: the fallback stays. Between thread_begin and thread_end. */
static bool stamp(const struct method *method)
{
	struct ch_block block;
	return ch_trampoline_make(method->owner, CH_TRAMPOLINE_FRAMED,
				  (const void *)(uintptr_t)_PyEval_EvalFrameDefault, 0, NULL, NULL,
				  &block) == CH_OK &&
	       ch_owner_set_entry(method->owner, block) == CH_OK;
}

/* The era in which the pool was full; a collection begins a new era. */
static uint64_t full_era;

static evaluator enter_without_code;

/* Code objects of frozen modules are part of the binary and belong to all interpreters. CPython
 * 3.11 gives such an object a count of references that never reaches 0. */
static bool is_of_the_binary(PyCodeObject *code)
{
	return Py_REFCNT(code) >= 999999999 / 2;
}

/* CPython gives a code object slots up to the last extension's, and calls all their free functions
 * when the object dies: with NULL for an extension that never saw the object, and perhaps when the
 * extension's interpreter is half gone. Slots behind the given one grow again when set. */
static void give_back_slots(PyCodeObject *code, Py_ssize_t slot)
{
	struct code_extra *extra = code->co_extra;
	while (extra->count > slot + 1 && !extra->extras[extra->count - 1])
		extra->count--;
}

static struct method *make(struct interpreter *interpreter, PyCodeObject *code)
{
	char name[METHOD_NAME_BYTES];
	size_t bytes = method_name(code, name);
	bool is_shared = is_of_the_binary(code);
	struct method *method = is_shared ? NULL : method_wake(interpreter, name, bytes);
	if (!method) {
		thread_begin();
		method = method_new(is_shared ? the_shared_vm : interpreter->vm, name, bytes,
				    (const void *)(uintptr_t)enter_without_code);
		if (method && !stamp(method))
			full_era = atomic_load_explicit(&the_era, memory_order_relaxed);
		thread_end();
	}
	if (!method)
		return NULL;
	method->is_kept = interpreter->mode == MODE_KEPT;
	if (!_PyCode_SetExtra((PyObject *)code, interpreter->slot, method)) {
		give_back_slots(code, interpreter->slot);
		return method;
	}
	method_end(method);
	return NULL;
}

/* Puts an exception aside that may be on its way into the frame. */
static struct method *make_aside(struct interpreter *interpreter, PyCodeObject *code)
{
	PyObject *type, *value, *traceback;
	PyErr_Fetch(&type, &value, &traceback);
	struct method *method = make(interpreter, code);
	PyErr_Restore(type, value, traceback);
	return method;
}

const struct method *hook_method(struct interpreter *interpreter, PyCodeObject *code)
{
	const struct method *method = method_of(code, interpreter->slot);
	return method ? method : make_aside(interpreter, code);
}

/* The free function of a code object's slot. CPython also calls it for a slot that was never set,
 * when another extension has set a later slot. */
void hook_release(void *extra)
{
	struct method *method = extra;
	if (!method)
		return;
	struct interpreter *interpreter = interpreter_now();
	if (!interpreter || !method_wait(interpreter, method))
		method_end(method);
}

/* --- entering --- */

static PyObject *enter_without_code(PyThreadState *thread, struct _PyInterpreterFrame *frame,
				    int throw_flag)
{
	const struct interpreter *interpreter = interpreter_of(thread);
	if (interpreter && interpreter->mode >= MODE_TRAMPOLINES && the_thread.is_attached &&
	    full_era != atomic_load_explicit(&the_era, memory_order_relaxed)) {
		const struct method *method = method_of(frame->f_code, interpreter->slot);
		thread_begin();
		bool has_code = method && stamp(method);
		thread_end();
		if (has_code)
			return entry_of(method)(thread, frame, throw_flag);
		full_era = atomic_load_explicit(&the_era, memory_order_relaxed);
	}
	return _PyEval_EvalFrameDefault(thread, frame, throw_flag);
}

__attribute__((noinline)) static PyObject *
enter_slowly(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throw_flag)
{
	struct interpreter *interpreter = interpreter_of(thread);
	if (!interpreter || interpreter->mode < MODE_TRAMPOLINES ||
	    (!thread_is_served() && !thread_serve()))
		return _PyEval_EvalFrameDefault(thread, frame, throw_flag);
	const struct method *method = method_of(frame->f_code, interpreter->slot);
	if (!method)
		method = make_aside(interpreter, frame->f_code);
	if (!method)
		return _PyEval_EvalFrameDefault(thread, frame, throw_flag);
	return entry_of(method)(thread, frame, throw_flag);
}

PyObject *hook_forward(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throw_flag)
{
	return _PyEval_EvalFrameDefault(thread, frame, throw_flag);
}

PyObject *hook_shared_slot(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throw_flag)
{
	const struct method *method = method_of(frame->f_code, the_shared_slot);
	if (LIKELY(method && thread_is_served()))
		return entry_of(method)(thread, frame, throw_flag);
	return enter_slowly(thread, frame, throw_flag);
}

PyObject *hook_own_slot(PyThreadState *thread, struct _PyInterpreterFrame *frame, int throw_flag)
{
	static uint64_t calls;
	if (the_collect_every && ++calls % the_collect_every == 0)
		threads_ask_collection();
	return enter_slowly(thread, frame, throw_flag);
}

/* --- while a profile runs --- */

/* An evaluator puts its _PyCFrame in front of the thread's list some instructions before it fills
 * the _PyCFrame. A sample in between goes on at the caller noted here (profile.c). */
static inline void note_caller(const PyThreadState *thread)
{
	the_thread.caller = thread->cframe;
	atomic_signal_fence(memory_order_release);
}

PyObject *hook_sampled_shared_slot(PyThreadState *thread, struct _PyInterpreterFrame *frame,
				   int throw_flag)
{
	note_caller(thread);
	return hook_shared_slot(thread, frame, throw_flag);
}

/* Also for interpreters with thread states unknown to PyGILState_GetThisThreadState (profile.c). */
PyObject *hook_sampled_own_slot(PyThreadState *thread, struct _PyInterpreterFrame *frame,
				int throw_flag)
{
	const PyThreadState *outer = the_thread.inner;
	note_caller(thread);
	the_thread.inner = thread;
	PyObject *result = hook_own_slot(thread, frame, throw_flag);
	the_thread.inner = outer;
	return result;
}
