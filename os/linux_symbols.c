/* SPDX-License-Identifier: MIT
 * linux_symbols.c: the one user of the dynamic linker: symbols of the process, the object and the
 * symbol at an address, and C++ names. Nothing here is async-signal-safe: the dynamic linker takes
 * its lock, the demangler allocates. No lock of the library. */
#define _GNU_SOURCE
#include "os/files.h"
#include "os/os.h"
#include "os/text.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* From the C++ runtime, if the program has one. The result is malloc's. */
extern char *__cxa_demangle(const char *symbol, char *buffer, size_t *bytes, int *status)
	__attribute__((weak));
typedef char *demangler(const char *, char *, size_t *, int *);

void *ch__os_symbol(const char *library, const char *name)
{
	if (ch__os_may_fail())
		return NULL;
	Dl_info info;
	void *at = dlsym(RTLD_DEFAULT, name);
	if (at) {
		/* A caller keeps using a symbol, so the object must stay. */
		if (dladdr(at, &info) && info.dli_fname)
			dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
		return at;
	}
	/* For a library opened for its user alone (RTLD_LOCAL). Nothing is loaded here. */
	void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
	return handle ? dlsym(handle, name) : NULL;
}

bool ch__os_place_of(uintptr_t address, struct ch__os_place *place)
{
	Dl_info info;
	if (!dladdr((void *)address, &info) || !info.dli_fname)
		return false;
	*place = (struct ch__os_place){.object = info.dli_fname,
				       .object_at = (uintptr_t)info.dli_fbase,
				       .symbol = info.dli_sname,
				       .symbol_at = (uintptr_t)info.dli_saddr};
	return true;
}

void ch__os_put_symbol(const char *symbol, struct ch__text *text)
{
	/* The demangler also takes names of types, and a single letter is one. */
	bool is_cxx = strncmp(symbol, "_Z", 2) == 0;
	demangler *demangle = is_cxx ? __cxa_demangle : NULL;
	int status = 0;
	if (is_cxx && !demangle)
		demangle = (demangler *)ch__os_symbol("libstdc++.so.6", "__cxa_demangle");
	char *name = demangle ? demangle(symbol, NULL, NULL, &status) : NULL;
	ch__text_put_name(text, name ? name : symbol);
	free(name);
}
