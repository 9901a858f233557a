/* SPDX-License-Identifier: MIT
 * module.c: the functions of the module _codeheap, as thin as they can be. The package codeheap,
 * for people, is made of these functions. */
#include <codeheap/look.h>

#include "host.h"

#include <errno.h>
#include <limits.h>

static const char *const mode_names[] = {"off", "forward", "trampolines", "kept", NULL};
static const char *const backend_names[] = {"auto", "dual", "memfd", "procmem", NULL};
static const char *const fork_names[] = {"copy", "none", "cow", NULL};
static const char *const dead_names_names[] = {"replaced", "kept", NULL};

/* The index of a word in a list; -1 with an exception. */
static int choose(const char *what, const char *word, const char *const *names)
{
	for (int i = 0; names[i]; i++)
		if (!strcmp(names[i], word))
			return i;
	PyErr_Format(PyExc_ValueError, "there is no %s '%s'", what, word);
	return -1;
}

static PyObject *activate(PyObject *Py_UNUSED(self), PyObject *args, PyObject *keywords)
{
	static char *names[] = {"mode",       "pool_bytes",    "backend", "fork", "sinks",
				"dead_names", "collect_every", "reuse",   NULL};
	const char *mode = "trampolines", *backend = "auto", *fork = "copy",
		   *dead_names = "replaced";
	Py_ssize_t pool_bytes = 0, collect_every = 0;
	unsigned sinks = CH_SINK_DEFAULT;
	int reuse = 1;
	if (!PyArg_ParseTupleAndKeywords(args, keywords, "|snssIsnp:activate", names, &mode,
					 &pool_bytes, &backend, &fork, &sinks, &dead_names,
					 &collect_every, &reuse))
		return NULL;
	int mode_at = choose("mode", mode, mode_names);
	int backend_at = choose("backend", backend, backend_names);
	int fork_at = choose("fork policy", fork, fork_names);
	int dead_names_at = choose("policy for names", dead_names, dead_names_names);
	if (mode_at < 0 || backend_at < 0 || fork_at < 0 || dead_names_at < 0)
		return NULL;
	if (mode_at == MODE_OFF || pool_bytes < 0 || collect_every < 0) {
		PyErr_SetString(PyExc_ValueError, "an option is out of its range");
		return NULL;
	}
	struct options options = {
		.pool_bytes = (size_t)pool_bytes,
		.backend = (enum ch_backend)backend_at,
		.fork = (enum ch_fork)fork_at,
		.sinks = sinks,
		.dead_names = (enum ch_dead_names)dead_names_at,
		.has_any = pool_bytes || backend_at || fork_at || dead_names_at,
	};
	if (!process_need_heap(&options))
		return NULL;
	uint64_t before = the_collect_every;
	the_collect_every = (uint64_t)collect_every;
	if (!interpreter_activate((enum mode)mode_at, reuse != 0)) {
		the_collect_every = before;
		return NULL;
	}
	Py_RETURN_NONE;
}

static PyObject *counts(bool is_done, size_t freed, size_t kept)
{
	return is_done ? Py_BuildValue("(nn)", (Py_ssize_t)freed, (Py_ssize_t)kept) : NULL;
}

static PyObject *deactivate(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
	size_t freed, kept;
	bool is_done = interpreter_deactivate(&freed, &kept);
	return counts(is_done, freed, kept);
}

static PyObject *discard(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
	size_t freed, kept;
	bool is_done = interpreter_discard(&freed, &kept);
	return counts(is_done, freed, kept);
}

static PyObject *end(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
	interpreter_end();
	Py_RETURN_NONE;
}

static PyObject *mode(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
	const struct interpreter *now = interpreter_now();
	return PyUnicode_FromString(mode_names[now ? now->mode : MODE_OFF]);
}

/* --- the heap --- */

static bool need_heap(void)
{
	if (the_heap)
		return true;
	PyErr_SetString(PyExc_RuntimeError, "there is no code heap: nothing was activated");
	return false;
}

static PyObject *collect(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
	if (!need_heap())
		return NULL;
	if (!thread_serve())
		return process_raise(CH_E_THREAD, "nothing is collected");
	struct ch_stats before = {.size = sizeof before}, after = {.size = sizeof after};
	enum ch_status status = ch_heap_stats(the_heap, &before);
	if (status == CH_OK)
		status = thread_collect();
	if (status == CH_OK)
		status = ch_heap_stats(the_heap, &after);
	if (status != CH_OK)
		return process_raise(status, "nothing is collected");
	return PyLong_FromUnsignedLongLong(after.blocks_freed - before.blocks_freed);
}

static const struct {
	const char *name;
	unsigned bit;
} sink_names[] = {{"unwind", CH_SINK_UNWIND},       {"perfmap", CH_SINK_PERF_MAP},
		  {"jitdump", CH_SINK_JITDUMP},     {"gdb", CH_SINK_GDB},
		  {"libunwind", CH_SINK_LIBUNWIND}, {"none", CH_SINK_NONE}};

/* Takes over a reference to the value, which may be NULL. */
static bool put(PyObject *into, const char *name, PyObject *value)
{
	bool is_put = value && PyDict_SetItemString(into, name, value) == 0;
	Py_XDECREF(value);
	return is_put;
}

static PyObject *names_of_sinks(unsigned on)
{
	char text[100] = "";
	for (size_t i = 0; i < sizeof sink_names / sizeof *sink_names; i++) {
		if (!(on & sink_names[i].bit))
			continue;
		strcat(text, *text ? "," : "");
		strcat(text, sink_names[i].name);
	}
	return PyUnicode_FromString(*text ? text : "none");
}

static PyObject *stats(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
	struct ch_stats now = {.size = sizeof now};
	if (!need_heap())
		return NULL;
	enum ch_status status = ch_heap_stats(the_heap, &now);
	if (status != CH_OK)
		return process_raise(status, "there are no statistics");
	PyObject *all = PyDict_New();
	bool is_filled = all && put(all, "version", PyUnicode_FromString(now.version)) &&
			 put(all, "backend", PyUnicode_FromString(now.backend)) &&
			 put(all, "sinks", names_of_sinks(now.sinks_on));
#define X(name) is_filled = is_filled && put(all, #name, PyLong_FromUnsignedLongLong(now.name));
	CH_STATS_LIST(X)
#undef X
	if (!is_filled)
		Py_CLEAR(all);
	return all;
}

static PyObject *check(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
	char report[1024];
	if (!need_heap())
		return NULL;
	enum ch_status status = ch_heap_check(the_heap, report, sizeof report);
	if (status == CH_OK)
		Py_RETURN_NONE;
	if (status != CH_E_BROKEN)
		return process_raise(status, "the heap was not checked");
	return PyErr_Format(PyExc_RuntimeError, "%s", report);
}

/* The name of the code at an address, for tools and tests. */
static PyObject *address_name(PyObject *Py_UNUSED(self), PyObject *args)
{
	unsigned long long address;
	char text[1024];
	if (!PyArg_ParseTuple(args, "K:address_name", &address) || !need_heap())
		return NULL;
	size_t bytes = ch_address_name(the_heap, (const void *)(uintptr_t)address, false, text,
				       sizeof text);
	return PyUnicode_DecodeUTF8(
		text, (Py_ssize_t)(bytes < sizeof text ? bytes : sizeof text - 1), "replace");
}

/* The names on the caller's stack, innermost first. */
static PyObject *backtrace(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
	enum { MOST = 512 };
	const void *pcs[MOST];
	if (!need_heap())
		return NULL;
	size_t count = ch_backtrace(the_heap, CH_BACKTRACE_TABLES, NULL, pcs, MOST);
	PyObject *list = PyList_New(0);
	for (size_t i = 0; list && i < count && i < MOST; i++) {
		char text[1024];
		size_t bytes = ch_address_name(the_heap, pcs[i], true, text, sizeof text);
		PyObject *name = PyUnicode_DecodeUTF8(
			text, (Py_ssize_t)(bytes < sizeof text ? bytes : sizeof text - 1),
			"replace");
		if (!name || PyList_Append(list, name))
			Py_CLEAR(list);
		Py_XDECREF(name);
	}
	return list;
}

/* --- sinks --- */

static PyObject *set_sinks(PyObject *Py_UNUSED(self), PyObject *args)
{
	unsigned sinks;
	if (!PyArg_ParseTuple(args, "I:set_sinks", &sinks) || !need_heap())
		return NULL;
	errno = 0;
	enum ch_status status = ch_sink_set(the_heap, sinks);
	if (status != CH_OK)
		return process_raise(status, "a sink is not on");
	Py_RETURN_NONE;
}

static PyObject *flush(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
	if (!need_heap())
		return NULL;
	errno = 0;
	enum ch_status status = ch_sink_flush(the_heap);
	if (status != CH_OK)
		return process_raise(status, "a sink is off");
	Py_RETURN_NONE;
}

static PyObject *sink_status(PyObject *Py_UNUSED(self), PyObject *args)
{
	unsigned sink;
	if (!PyArg_ParseTuple(args, "I:sink_status", &sink) || !need_heap())
		return NULL;
	const char *path;
	int failed;
	bool is_on = ch_sink_status(the_heap, (enum ch_sink)sink, &path, &failed);
	PyObject *text = PyUnicode_DecodeFSDefault(path ? path : "");
	return text ? Py_BuildValue("(ONi)", is_on ? Py_True : Py_False, text, failed) : NULL;
}

/* --- profile --- */

static PyObject *start_profile(PyObject *Py_UNUSED(self), PyObject *args)
{
	Py_ssize_t rate, memory_bytes;
	int by_wall_clock, has_callers;
	if (!PyArg_ParseTuple(args, "npnp:profile_start", &rate, &by_wall_clock, &memory_bytes,
			      &has_callers))
		return NULL;
	if (rate < 0 || rate > UINT_MAX || memory_bytes < 0) {
		PyErr_SetString(PyExc_ValueError, "a rate or size is out of its range");
		return NULL;
	}
	if (!profile_start((unsigned)rate, by_wall_clock, (size_t)memory_bytes, has_callers))
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *write_profile(PyObject *Py_UNUSED(self), PyObject *args)
{
	PyObject *path;
	const char *title;
	int is_folded, is_icicle, is_reversed;
	if (!PyArg_ParseTuple(args, "O&zppp:profile_write", PyUnicode_FSConverter, &path, &title,
			      &is_folded, &is_icicle, &is_reversed))
		return NULL;
	unsigned flags = (is_folded ? CH_PROFILE_FOLDED : 0u) |
			 (is_icicle ? CH_PROFILE_ICICLE : 0u) |
			 (is_reversed ? CH_PROFILE_REVERSED : 0u);
	bool is_written = profile_write(PyBytes_AS_STRING(path), flags, title);
	Py_DECREF(path);
	return is_written ? Py_NewRef(Py_None) : NULL;
}

/* A single call stops and writes: no signal's Python handler comes between. */
static PyObject *end_profile(PyObject *self, PyObject *args)
{
	struct ch_profile_counts counts;
	PyObject *type, *value, *trace;
	if (!profile_stop(&counts))
		return NULL;
	PyErr_Fetch(&type, &value, &trace);
	PyObject *written = write_profile(self, args);
	_PyErr_ChainExceptions(type, value, trace);
	Py_XDECREF(written);
	if (PyErr_Occurred())
		return NULL;
	return Py_BuildValue("(KKKK)", (unsigned long long)counts.samples,
			     (unsigned long long)counts.dropped, (unsigned long long)counts.cut,
			     (unsigned long long)counts.threads);
}

static PyObject *forget_profile(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
	profile_forget_of_parent();
	Py_RETURN_NONE;
}

/* Ends a profile whose start a signal's Python handler interrupted. */
static PyObject *abandon_profile(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
	profile_end_of(interpreter_now());
	Py_RETURN_NONE;
}

/* --- module --- */

static PyMethodDef methods[] = {
	{"activate", (PyCFunction)(void (*)(void))activate, METH_VARARGS | METH_KEYWORDS, NULL},
	{"deactivate", deactivate, METH_NOARGS, NULL},
	{"discard", discard, METH_NOARGS, NULL},
	{"end", end, METH_NOARGS, NULL},
	{"mode", mode, METH_NOARGS, NULL},
	{"collect", collect, METH_NOARGS, NULL},
	{"stats", stats, METH_NOARGS, NULL},
	{"check", check, METH_NOARGS, NULL},
	{"address_name", address_name, METH_VARARGS, NULL},
	{"backtrace", backtrace, METH_NOARGS, NULL},
	{"set_sinks", set_sinks, METH_VARARGS, NULL},
	{"flush", flush, METH_NOARGS, NULL},
	{"sink_status", sink_status, METH_VARARGS, NULL},
	{"profile_start", start_profile, METH_VARARGS, NULL},
	{"profile_write", write_profile, METH_VARARGS, NULL},
	{"profile_end", end_profile, METH_VARARGS, NULL},
	{"profile_forget", forget_profile, METH_NOARGS, NULL},
	{"profile_abandon", abandon_profile, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static int fill(PyObject *module)
{
	PyObject *all = PyDict_New();
	for (size_t i = 0; all && i < sizeof sink_names / sizeof *sink_names; i++)
		if (!put(all, sink_names[i].name, PyLong_FromUnsignedLong(sink_names[i].bit)))
			Py_CLEAR(all);
	int failed = !all || PyModule_AddObjectRef(module, "SINKS", all);
	Py_XDECREF(all);
	return failed || PyModule_AddIntConstant(module, "VERSION_MAJOR", CH_VERSION_MAJOR) ||
			       PyModule_AddIntConstant(module, "VERSION_MINOR", CH_VERSION_MINOR)
		       ? -1
		       : 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)fill}, {0, NULL}};
static struct PyModuleDef definition = {
	.m_base = PyModuleDef_HEAD_INIT,
	.m_name = "_codeheap",
	.m_methods = methods,
	.m_slots = slots,
};

PyMODINIT_FUNC PyInit__codeheap(void);
PyMODINIT_FUNC PyInit__codeheap(void)
{
	return PyModuleDef_Init(&definition);
}
