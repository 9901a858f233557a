/* SPDX-License-Identifier: MIT
 * interpreters.c: the interpreters of the process, each a vm of the heap with a slot of co_extra.
 * All share one interpreter lock, so the list here needs no lock of its own. */
#include "host.h"

const char refused_other_hook[] = "another extension evaluates frames (PEP 523)";
static const char refused_at_the_end[] = "the interpreter is ending";

static struct interpreter *the_interpreters;

struct interpreter *interpreter_of(const PyThreadState *thread)
{
	struct interpreter *at = the_interpreters;
	while (at && at->state != thread->interp)
		at = at->next;
	return at;
}

struct interpreter *interpreter_now(void)
{
	return interpreter_of(PyThreadState_Get());
}

/* --- birth and end --- */

/* Checks the layout of co_extra before method_of in hook.c relies on the layout. */
static bool slot_is_as_known(Py_ssize_t slot)
{
	PyCodeObject *code = PyCode_NewEmpty("codeheap", "slot_is_as_known", 1);
	if (!code)
		return false;
	void *mine = PyMem_Malloc(sizeof(struct method));
	bool is_known = false;
	if (mine) {
		*(struct method *)mine = (struct method){.is_kept = true};
		if (_PyCode_SetExtra((PyObject *)code, slot, mine)) {
			PyMem_Free(mine);
		} else {
			const struct {
				Py_ssize_t count;
				void *extras[];
			} *extra = code->co_extra;
			is_known = extra && extra->count > slot && extra->extras[slot] == mine;
		}
	}
	Py_DECREF(code);
	if (!is_known && !PyErr_Occurred())
		PyErr_SetString(PyExc_RuntimeError, "this Python keeps co_extra in an unknown way");
	return is_known;
}

static const char capsule_name[] = "_codeheap.interpreter";

/* Called when the interpreter's dictionary goes: none of its code runs any more. Code objects that
 * die later release stale owners. */
static void forget(PyObject *capsule)
{
	struct interpreter *gone = PyCapsule_GetPointer(capsule, capsule_name);
	for (struct interpreter **link = &the_interpreters; *link; link = &(*link)->next)
		if (*link == gone) {
			*link = gone->next;
			break;
		}
	profile_end_of(gone);
	methods_end_waiting(gone);
	enum ch_status status = ch_vm_detach(gone->vm);
	(void)status;
	PyMem_RawFree(gone);
}

/* Has forget called when the interpreter ends. */
static bool keep_until_the_end(struct interpreter *fresh)
{
	PyObject *dictionary = PyInterpreterState_GetDict(fresh->state);
	if (!dictionary) {
		PyErr_SetString(PyExc_RuntimeError, "the interpreter has no dictionary");
		return false;
	}
	PyObject *capsule = PyCapsule_New(fresh, capsule_name, NULL);
	bool is_kept = capsule && !PyDict_SetItemString(dictionary, capsule_name, capsule) &&
		       !PyCapsule_SetDestructor(capsule, forget);
	Py_XDECREF(capsule);
	return is_kept;
}

static struct interpreter *need_interpreter(void)
{
	struct interpreter *at = interpreter_now();
	if (at)
		return at;
	/* The interpreter's end would go unnoticed: atexit or dictionary may be gone. */
	if (PyInterpreterState_Get()->finalizing) {
		PyErr_SetString(PyExc_RuntimeError, refused_at_the_end);
		return NULL;
	}
	struct interpreter *fresh = PyMem_RawCalloc(1, sizeof *fresh);
	if (!fresh)
		return (struct interpreter *)PyErr_NoMemory();
	fresh->state = PyInterpreterState_Get();
	fresh->slot = _PyEval_RequestCodeExtraIndex(hook_release);
	if (fresh->slot < 0)
		PyErr_SetString(PyExc_RuntimeError, "all slots of code objects are taken");
	else if (slot_is_as_known(fresh->slot))
		fresh->vm = process_vm_new(fresh);
	if (!fresh->vm || !keep_until_the_end(fresh)) {
		if (fresh->vm && ch_vm_detach(fresh->vm) != CH_OK)
			PyErr_SetString(PyExc_RuntimeError, "a vm that did not begin does not end");
		PyMem_RawFree(fresh);
		return NULL;
	}
	if (the_shared_slot < 0)
		the_shared_slot = fresh->slot;
	fresh->next = the_interpreters;
	the_interpreters = fresh;
	return fresh;
}

/* --- on and off --- */

static bool is_ours(_PyFrameEvalFunction hook)
{
	return hook == hook_forward || hook == hook_shared_slot || hook == hook_own_slot ||
	       hook == hook_sampled_shared_slot || hook == hook_sampled_own_slot;
}

static _PyFrameEvalFunction hook_of(const struct interpreter *interpreter)
{
	if (interpreter->mode == MODE_FORWARD)
		return hook_forward;
	bool has_shared_slot = interpreter->slot == the_shared_slot && !the_collect_every;
	if (!the_profile_is_on)
		return has_shared_slot ? hook_shared_slot : hook_own_slot;
	return has_shared_slot && interpreter->state == PyInterpreterState_Main()
		       ? hook_sampled_shared_slot
		       : hook_sampled_own_slot;
}

void interpreters_change_hooks(void)
{
	for (struct interpreter *at = the_interpreters; at; at = at->next)
		if (at->mode != MODE_OFF &&
		    is_ours(_PyInterpreterState_GetEvalFrameFunc(at->state)))
			_PyInterpreterState_SetEvalFrameFunc(at->state, hook_of(at));
}

bool interpreter_activate(enum mode mode, bool reuses)
{
	struct interpreter *self = need_interpreter();
	if (!self)
		return false;
	_PyFrameEvalFunction before = _PyInterpreterState_GetEvalFrameFunc(self->state);
	const char *refusal = NULL;
	if (self->is_over)
		refusal = refused_at_the_end;
	else if (before != _PyEval_EvalFrameDefault && !is_ours(before))
		refusal = refused_other_hook;
	else if (self->mode != MODE_OFF && self->mode != mode)
		refusal = "active already, in another mode";
	if (refusal) {
		PyErr_SetString(PyExc_RuntimeError, refusal);
		return false;
	}
	self->mode = mode;
	self->reuses = reuses && mode == MODE_TRAMPOLINES;
	_PyInterpreterState_SetEvalFrameFunc(self->state, hook_of(self));
	return true;
}

static void switch_off(struct interpreter *self)
{
	if (is_ours(_PyInterpreterState_GetEvalFrameFunc(self->state)))
		_PyInterpreterState_SetEvalFrameFunc(self->state, _PyEval_EvalFrameDefault);
	self->mode = MODE_OFF;
	self->reuses = false;
	methods_end_waiting(self);
}

/* An idle greenlet's stack is copied away, where no scan looks for return addresses. The greenlet's
 * code objects live, so only a discard could free code under the greenlet. Returns -1 with an
 * exception when nobody can say. */
static int stacks_are_copied(void)
{
	PyObject *name = PyUnicode_FromString("greenlet");
	PyObject *module = name ? PyImport_GetModule(name) : NULL;
	Py_XDECREF(name);
	Py_XDECREF(module);
	return module ? 1 : PyErr_Occurred() ? -1 : 0;
}

static enum ch_status discard_both(struct interpreter *self, size_t *freed, size_t *kept)
{
	size_t shared_freed = 0, shared_kept = 0, own_freed = 0, own_kept = 0;
	thread_begin();
	enum ch_status status = ch_vm_discard(the_heap, the_shared_vm, &shared_freed, &shared_kept);
	enum ch_status own = ch_vm_discard(the_heap, self->vm, &own_freed, &own_kept);
	thread_end();
	*freed = shared_freed + own_freed;
	*kept = shared_kept + own_kept;
	return status == CH_OK ? own : status;
}

static bool discard_own(struct interpreter *self, size_t *freed, size_t *kept)
{
	if (!thread_serve()) {
		process_raise(CH_E_THREAD, "nothing is discarded");
		return false;
	}
	enum ch_status status = discard_both(self, freed, kept);
	threads_ask_collection();
	if (status == CH_OK)
		return true;
	process_raise(status, "everything is invalidated, nothing was freed");
	return false;
}

bool interpreter_discard(size_t *freed, size_t *kept)
{
	struct interpreter *self = interpreter_now();
	*freed = *kept = 0;
	if (!self)
		return true;
	int are_copied = stacks_are_copied();
	if (are_copied > 0)
		PyErr_SetString(PyExc_RuntimeError,
				"greenlets keep return addresses where nobody finds them");
	return are_copied == 0 && discard_own(self, freed, kept);
}

bool interpreter_deactivate(size_t *freed, size_t *kept)
{
	struct interpreter *self = interpreter_now();
	*freed = *kept = 0;
	if (!self || self->mode == MODE_OFF)
		return true;
	bool keeps = self->mode == MODE_KEPT || self->mode == MODE_FORWARD;
	int are_copied = keeps ? 0 : stacks_are_copied();
	if (are_copied < 0)
		return false;
	switch_off(self);
	return keeps || are_copied || discard_own(self, freed, kept);
}

/* At exit: threads that go on return through their trampolines, and make no new trampolines. */
void interpreter_end(void)
{
	struct interpreter *self = interpreter_now();
	if (!self)
		return;
	profile_end_of(self);
	switch_off(self);
	self->is_over = true;
}
