/* SPDX-License-Identifier: MIT
 * profile.c: the library's profiler, told of Python's frames. Debian's interpreter keeps no frame
 * pointers, so a walk by frame pointers ends in the evaluator. But each evaluator has a _PyCFrame
 * on the C stack, in a list of CPython's from the innermost outward. A fixed distance above lies
 * the return address into the function's trampoline (threads.c). The handler of a sample reads
 * these words of its own thread's stack, and the head of the list.
 *
 * Functions that were running when the profile began may have no trampoline, or share an evaluator,
 * as CPython calls without a hook. The start notes such frames, with the cells of trampolines made
 * for them. */
#include "host.h"

#include <errno.h>
#include <unistd.h>

bool the_profile_is_on;
static const struct interpreter *started_by;
static pid_t started_in;

/* A Python frame that was running at the start. */
struct base_frame {
	const _PyCFrame *cframe;
	const struct _PyInterpreterFrame *frame;
	PyCodeObject *code;      /* held, so that no new code object has its address */
	const void *const *cell; /* NULL: the code has no cell */
};

/* Sorted by frame. Handlers read the list, so the list changes only while no profile runs. */
static struct {
	struct base_frame *frames;
	size_t count, room;
} base;

/* --- in the handler --- */

static const struct base_frame *find_base(const struct _PyInterpreterFrame *frame)
{
	size_t low = 0, high = base.count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (base.frames[middle].frame < frame)
			low = middle + 1;
		else
			high = middle;
	}
	return low < base.count && base.frames[low].frame == frame ? &base.frames[low] : NULL;
}

/* The result of the walk, and the bounds of the stack. */
struct walk {
	uintptr_t low, high;
	const void **codes;
	size_t count, most;
};

static void put(struct walk *walk, uintptr_t code)
{
	if (walk->count < walk->most)
		walk->codes[walk->count++] = (const void *)code;
}

/* Puts all functions of an evaluator from the start, innermost first. Returns false for a later
 * evaluator, whose return address says all. Only a noted frame is read: its memory is there while
 * the evaluator runs (see is_kept), and the code object shows that the frame is the same. */
static bool put_base(struct walk *walk, const _PyCFrame *cframe)
{
	size_t before = walk->count;
	const struct _PyInterpreterFrame *frame = cframe->current_frame;
	for (;;) {
		const struct base_frame *known = find_base(frame);
		if (!known || known->cframe != cframe || known->code != frame->f_code) {
			walk->count = before;
			return false;
		}
		/* A return address lies behind a call: hence + 1. */
		if (known->cell)
			put(walk, *(const volatile uintptr_t *)known->cell + 1);
		if (frame->is_entry)
			return true;
		frame = frame->previous;
	}
}

static bool is_evaluator(const struct walk *walk, uintptr_t at)
{
	uintptr_t above = the_return_at + sizeof(uintptr_t);
	return at > walk->low && at < walk->high && walk->high - at >= above &&
	       at % sizeof(uintptr_t) == 0;
}

/* A new evaluator is first in the list before its link to the outer evaluator is set; the hook has
 * noted the outer evaluator. An evaluator that has made a call has the right link. */
static bool is_half_made(const void *pc, const _PyCFrame *cframe)
{
	enum { PROLOGUE_BYTES = 256 };
	return (uintptr_t)pc - (uintptr_t)_PyEval_EvalFrameDefault < PROLOGUE_BYTES &&
	       (uintptr_t)the_thread.caller > (uintptr_t)cframe;
}

static uintptr_t return_address(const _PyCFrame *cframe)
{
	return *(const volatile uintptr_t *)((uintptr_t)cframe + the_return_at);
}

/* The outer evaluator of a half-made evaluator. If no trampoline entered the half-made evaluator,
 * perhaps no hook ran, and the noted caller is of an earlier call. */
static const _PyCFrame *outer_of_half(const _PyCFrame *cframe)
{
	struct ch_spot spot = {.size = sizeof spot};
	return ch_code_at(the_heap, (const void *)return_address(cframe), true, &spot)
		       ? the_thread.caller
		       : NULL;
}

/* ch_profile_options.frames: the functions of the calling thread. */
static size_t frames_of_thread(void *user, const void *pc, const void *low, const void *high,
			       const void **codes, size_t most)
{
	(void)user;
	const PyThreadState *state = the_thread.inner;
	if (!state)
		state = PyGILState_GetThisThreadState();
	if (!state)
		return 0;
	struct walk walk = {(uintptr_t)low, (uintptr_t)high, codes, 0, most};
	const _PyCFrame *at = state->cframe;
	bool is_half = is_half_made(pc, at);
	while (walk.count < most && at != &state->root_cframe &&
	       is_evaluator(&walk, (uintptr_t)at)) {
		const _PyCFrame *outer = is_half ? outer_of_half(at) : at->previous;
		if (is_half || !put_base(&walk, at))
			put(&walk, return_address(at));
		walk.low = (uintptr_t)at;
		at = outer;
		is_half = false;
	}
	return walk.count;
}

/* --- the frames at the start --- */

/* Whether the frame's memory stays as long as its evaluator runs. The first frame of a chunk takes
 * the chunk along at the return, before the evaluator records the return. */
static bool is_kept(const PyThreadState *thread, const struct _PyInterpreterFrame *frame)
{
	if (frame->is_entry)
		return true;
	for (_PyStackChunk *chunk = thread->datastack_chunk; chunk; chunk = chunk->previous)
		if ((const void *)frame == (const void *)chunk->data)
			return false;
	return true;
}

static bool note(const _PyCFrame *cframe, const struct _PyInterpreterFrame *frame)
{
	if (base.count == base.room) {
		size_t room = base.room ? 2 * base.room : 64;
		struct base_frame *grown = PyMem_RawRealloc(base.frames, room * sizeof *grown);
		if (!grown)
			return false;
		base.frames = grown;
		base.room = room;
	}
	Py_INCREF(frame->f_code);
	base.frames[base.count++] =
		(struct base_frame){.cframe = cframe, .frame = frame, .code = frame->f_code};
	return true;
}

static bool note_evaluator(const PyThreadState *thread, const _PyCFrame *cframe)
{
	const struct _PyInterpreterFrame *frame = cframe->current_frame;
	for (; frame; frame = frame->previous) {
		if (is_kept(thread, frame) && !note(cframe, frame))
			return false;
		if (frame->is_entry)
			break;
	}
	return true;
}

static bool note_threads(const PyInterpreterState *state)
{
	bool has_room = true;
	for (PyThreadState *t = PyInterpreterState_ThreadHead((PyInterpreterState *)state);
	     t && has_room; t = PyThreadState_Next(t))
		for (const _PyCFrame *at = t->cframe; at && at != &t->root_cframe && has_room;
		     at = at->previous)
			has_room = note_evaluator(t, at);
	return has_room;
}

static int by_frame(const void *a, const void *b)
{
	const struct base_frame *left = a, *right = b;
	return (left->frame > right->frame) - (left->frame < right->frame);
}

static void forget_base(void)
{
	struct base_frame *frames = base.frames;
	size_t count = base.count;
	base.frames = NULL;
	base.count = base.room = 0;
	for (size_t i = 0; i < count; i++)
		Py_DECREF(frames[i].code);
	PyMem_RawFree(frames);
}

static bool refuse(PyObject *type, const char *text)
{
	PyErr_SetString(type, text);
	return false;
}

static bool note_base(struct interpreter *interpreter)
{
	if (!threads_lock_lists())
		return refuse(PyExc_RuntimeError, "CPython's list of threads is locked");
	bool has_room = note_threads(interpreter->state);
	threads_unlock_lists();
	if (!has_room) {
		forget_base();
		PyErr_NoMemory();
		return false;
	}
	for (size_t i = 0; i < base.count; i++) {
		const struct method *method = hook_method(interpreter, base.frames[i].code);
		if (method)
			base.frames[i].cell = method->cell;
	}
	if (base.count)
		qsort(base.frames, base.count, sizeof *base.frames, by_frame);
	return true;
}

/* --- start, stop, write --- */

static void turn_off(void)
{
	the_profile_is_on = false;
	interpreters_change_hooks();
	forget_base();
}

void profile_forget_of_parent(void)
{
	if (the_profile_is_on && started_in != getpid())
		turn_off();
}

void profile_end_of(const struct interpreter *interpreter)
{
	if (!the_profile_is_on || started_by != interpreter)
		return;
	/* CH_E_STATE in a child of fork. */
	enum ch_status status = ch_profile_stop(the_heap, NULL);
	(void)status;
	turn_off();
}

bool profile_start(unsigned rate, bool by_wall_clock, size_t memory_bytes, bool has_callers)
{
	struct interpreter *interpreter = interpreter_now();
	profile_forget_of_parent();
	if (!interpreter || interpreter->mode < MODE_TRAMPOLINES)
		return refuse(PyExc_RuntimeError, "functions have no code: nothing is active");
	if (!the_return_at)
		return refuse(PyExc_RuntimeError,
			      "this Python's evaluators return in an unknown way");
	if (the_profile_is_on)
		return refuse(PyExc_RuntimeError, "a profile runs already");
	if (!thread_serve()) {
		process_raise(CH_E_THREAD, "no profile");
		return false;
	}
	if (has_callers && !note_base(interpreter))
		return false;
	the_profile_is_on = true;
	started_by = interpreter;
	started_in = getpid();
	interpreters_change_hooks();
	struct ch_profile_options options = {.size = sizeof options,
					     .by_wall_clock = by_wall_clock,
					     .memory_bytes = memory_bytes,
					     .frames = frames_of_thread};
	errno = 0;
	enum ch_status status = ch_profile_start(the_heap, rate, &options);
	if (status == CH_OK)
		return true;
	process_raise(status, status == CH_E_STATE ? "a profile runs already" : "no profile");
	turn_off();
	return false;
}

bool profile_stop(struct ch_profile_counts *counts)
{
	*counts = (struct ch_profile_counts){.size = sizeof *counts};
	profile_forget_of_parent();
	if (!the_profile_is_on)
		return refuse(PyExc_RuntimeError, "no profile runs");
	enum ch_status status = ch_profile_stop(the_heap, counts);
	bool has_ended = status == CH_OK || status == CH_E_OS;
	errno = 0; /* a RuntimeError: an OSError says that there is no file */
	if (status != CH_OK)
		process_raise(status, has_ended ? "samples are missing" : "no profile runs");
	turn_off();
	return has_ended;
}

bool profile_write(const char *path, unsigned flags, const char *title)
{
	static const char *const interpreters[] = {"_PyEval_EvalFrameDefault", NULL};
	const struct ch_profile_view view = {
		.size = sizeof view, .flags = flags, .title = title, .interpreter = interpreters};
	if (!the_heap)
		return refuse(PyExc_RuntimeError, "there is no profile");
	errno = 0;
	enum ch_status status = ch_profile_write(the_heap, path, &view);
	if (status == CH_OK)
		return true;
	process_raise(status,
		      status == CH_E_STATE ? "there is no profile" : "no profile was written");
	return false;
}
