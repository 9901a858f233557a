/* SPDX-License-Identifier: MIT
 * linux_objects.c: the loaded object at an address, for signal handlers, by the C library's lookup
 * without a lock. No function is named: addr2line names functions, from object and offset, also
 * without an exported symbol. No lock, no allocation. Callers outside of handlers use
 * linux_symbols.c, which knows more. */
#define _GNU_SOURCE
#include "os/threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>

extern __typeof__(_dl_find_object) _dl_find_object __attribute__((weak));

bool ch__os_object_of(uintptr_t address, struct ch__os_object *object)
{
	struct dl_find_object found;
	/* A return address is behind its call. */
	if (!_dl_find_object || _dl_find_object((void *)(address - 1), &found) != 0)
		return false;
	const char *path = found.dlfo_link_map->l_name;
	object->path = path && *path ? path : program_invocation_name;
	object->at = (uintptr_t)found.dlfo_map_start;
	return true;
}
