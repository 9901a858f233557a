/* SPDX-License-Identifier: MIT
 * process.c: the heap of the process, made by the first activation of any interpreter and never
 * destroyed, since threads run on around a process's end; and statuses as exceptions. */
#include "host.h"

#include <errno.h>

struct ch_heap *the_heap;
struct ch_vm *the_shared_vm;
static struct options the_options;

PyObject *process_raise(enum ch_status status, const char *what)
{
	int error = errno;
	PyObject *type = PyExc_RuntimeError;
	if (status == CH_E_OS && error) {
		PyObject *text =
			PyUnicode_FromFormat("%s: %s (%s)", what, strerror(error), ch_why());
		PyObject *both = text ? Py_BuildValue("(iN)", error, text) : NULL;
		if (both)
			PyErr_SetObject(PyExc_OSError, both);
		Py_XDECREF(both);
		return NULL;
	}
	if (status == CH_E_ARG)
		type = PyExc_ValueError;
	if (status == CH_E_MEMORY)
		type = PyExc_MemoryError;
	return PyErr_Format(type, "%s: %s", what, ch_why());
}

static void ask_collection(void *user)
{
	(void)user;
	threads_ask_collection();
}

struct ch_vm *process_vm_new(void *user)
{
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = ask_collection};
	/* The heap asks for roots once a cycle, so only one vm reports. */
	if (!the_shared_vm)
		ops.roots = threads_report;
	struct ch_vm *vm;
	enum ch_status status = ch_vm_attach(the_heap, &ops, user, &vm);
	if (status == CH_OK)
		return vm;
	process_raise(status, "an interpreter cannot have code");
	return NULL;
}

static bool is_same(const struct options *options)
{
	return options->pool_bytes == the_options.pool_bytes &&
	       options->backend == the_options.backend && options->fork == the_options.fork &&
	       options->dead_names == the_options.dead_names;
}

static bool takes_what_is_there(const struct options *options)
{
	if (!options->has_any || is_same(options))
		return true;
	PyErr_SetString(PyExc_RuntimeError, "the process has its heap already, with other options");
	return false;
}

bool process_need_heap(const struct options *options)
{
	if (the_heap)
		return takes_what_is_there(options);
	if (!threads_learn())
		return false;
	/* threads_learn runs Python, so another thread may have come first. */
	if (the_heap)
		return takes_what_is_there(options);
	struct ch_config config;
	ch_config_init(&config);
	config.pool_bytes = options->pool_bytes;
	config.backend = options->backend;
	config.fork = options->fork;
	config.sinks = options->sinks;
	config.dead_names = options->dead_names;
	config.near_address = (const void *)(uintptr_t)_PyEval_EvalFrameDefault;
	enum ch_status status = ch_heap_create(&config, &the_heap);
	if (status != CH_OK) {
		process_raise(status, "no code heap");
		return false;
	}
	the_shared_vm = process_vm_new(NULL);
	if (!the_shared_vm) {
		/* The fresh heap has no users. */
		if (ch_heap_destroy(the_heap) == CH_OK)
			the_heap = NULL;
		return false;
	}
	the_options = *options;
	return true;
}
