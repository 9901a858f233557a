/* SPDX-License-Identifier: MIT
 * methods.c: the records at code objects: names, owners, and records whose function died.
 * Trampolines differ only by name, so a few dead records wait for a new function of the same name:
 * programs that run the same text again and again (templates, `exec`, named tuples) need neither
 * make nor free code. All other dead records are released, and collected. */
#include "host.h"

/* --- names --- */

static size_t append(char *name, size_t at, const char *text, size_t bytes)
{
	if (bytes > METHOD_NAME_BYTES - 1 - at)
		bytes = METHOD_NAME_BYTES - 1 - at;
	memcpy(name + at, text, bytes);
	return at + bytes;
}

static size_t append_object(char *name, size_t at, PyObject *text)
{
	if (LIKELY(PyUnicode_IS_COMPACT_ASCII(text)))
		return append(name, at, PyUnicode_DATA(text), (size_t)PyUnicode_GET_LENGTH(text));
	Py_ssize_t bytes;
	const char *utf8 = PyUnicode_AsUTF8AndSize(text, &bytes);
	if (utf8)
		return append(name, at, utf8, (size_t)bytes);
	/* Lone surrogates, or no memory: the function runs without this part of its name. */
	PyErr_Clear();
	return append(name, at, "?", 1);
}

size_t method_name(const PyCodeObject *code, char *name)
{
	size_t at = append(name, 0, "py::", 4);
	at = append_object(name, at, code->co_qualname);
	at = append(name, at, ":", 1);
	at = append_object(name, at, code->co_filename);
	/* A 0 would end the name; a new line would break a table of lines. */
	for (size_t i = 0; i < at; i++)
		if ((unsigned char)name[i] < ' ')
			name[i] = '?';
	name[at] = 0;
	return at;
}

static uint32_t hash_of(const char *name, size_t bytes)
{
	uint32_t hash = 2166136261u; /* FNV-1a */
	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ (uint8_t)name[i]) * 16777619u;
	return hash;
}

/* --- life --- */

struct method *method_new(struct ch_vm *vm, const char *name, size_t bytes, const void *fallback)
{
	struct method *method = PyMem_Malloc(sizeof *method + bytes + 1);
	if (!method)
		return NULL;
	*method = (struct method){.vm = vm, .hash = hash_of(name, bytes), .bytes = (uint32_t)bytes};
	memcpy(method->name, name, bytes + 1);
	if (ch_owner_create(vm, name, fallback, method, &method->owner) != CH_OK) {
		PyMem_Free(method);
		return NULL;
	}
	method->cell = ch_owner_cell(method->owner);
	return method;
}

void method_end(struct method *method)
{
	if (!method->is_kept) {
		/* Stale when the vm of the interpreter is gone. */
		enum ch_status status = ch_owner_release(method->owner, CH_RELEASE_COLLECT);
		(void)status;
	}
	PyMem_Free(method);
}

/* --- waiting records --- */

struct method *method_wake(struct interpreter *interpreter, const char *name, size_t bytes)
{
	if (!interpreter->waiting_now)
		return NULL;
	uint32_t hash = hash_of(name, bytes);
	struct method **link = &interpreter->waiting[hash % WAITING_LISTS];
	for (; *link; link = &(*link)->next) {
		struct method *method = *link;
		if (method->hash != hash || method->bytes != bytes ||
		    memcmp(method->name, name, bytes) != 0)
			continue;
		*link = method->next;
		interpreter->waiting_now--;
		return method;
	}
	return NULL;
}

bool method_wait(struct interpreter *interpreter, struct method *method)
{
	if (!interpreter->reuses || method->is_kept || method->vm != interpreter->vm)
		return false;
	/* Stale names would stay, so all names go; names in use come again. */
	if (interpreter->waiting_now == WAITING_MOST)
		methods_end_waiting(interpreter);
	struct method **list = &interpreter->waiting[method->hash % WAITING_LISTS];
	method->next = *list;
	*list = method;
	interpreter->waiting_now++;
	return true;
}

void methods_end_waiting(struct interpreter *interpreter)
{
	for (int i = 0; i < WAITING_LISTS; i++)
		while (interpreter->waiting[i]) {
			struct method *method = interpreter->waiting[i];
			interpreter->waiting[i] = method->next;
			method_end(method);
		}
	interpreter->waiting_now = 0;
}
