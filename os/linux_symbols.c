/* SPDX-License-Identifier: MIT
 * linux_symbols.c: what the core asks the dynamic linker: symbols of the process, the object and
 * the symbol at an address, and C++ names. Nothing here is async-signal-safe: the dynamic linker
 * takes its lock, the demangler allocates. No lock of the library. */
#define _GNU_SOURCE
#include "arch/arch.h"
#include "os/files.h"
#include "os/os.h"
#include "os/text.h"
#include "os/threads.h"

#include <dlfcn.h>
#include <stdlib.h>

/* From the C++ runtime, if the program has one. The result is malloc's. */
extern char *__cxa_demangle(const char *symbol, char *buffer, size_t *bytes, int *status)
	__attribute__((weak));
typedef char *demangler(const char *, char *, size_t *, int *);

void *ch__os_symbol(const char *library, const char *name)
{
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

/* Copies a text in an object that another thread may be unloading. Under the dynamic linker's lock
 * the text would stay; but a child of fork never gets the lock of dl_iterate_phdr back. Returns
 * NULL when the text is gone, or when there is no memory. */
static char *copy_text(const char *from)
{
	enum { PART = 128 };
	size_t skipped = (uintptr_t)from % sizeof(uintptr_t), used = 0;
	char *text = NULL, *longer;
	while ((longer = realloc(text, used + PART))) {
		text = longer;
		uintptr_t at = (uintptr_t)from - skipped + used;
		size_t in_page = CH_ARCH_SMALLEST_PAGE - at % CH_ARCH_SMALLEST_PAGE;
		size_t copied = ch__os_copy(text + used, at, in_page < PART ? in_page : PART);
		if (!copied)
			break;
		size_t first = used ? used : skipped;
		used += copied;
		if (memchr(text + first, 0, used - first))
			return memmove(text, text + skipped, used - skipped);
	}
	free(text);
	return NULL;
}

static bool ask(uintptr_t address, Dl_info *info)
{
	return dladdr((void *)address, info) && info->dli_fname;
}

/* The copy is of the object that has the address if the linker gives the same answer afterwards. */
bool ch__os_place_of(uintptr_t address, struct ch__os_place *place)
{
	Dl_info info, again;
	char *name = NULL;
	do {
		free(name);
		if (!ask(address, &info))
			return false;
		name = copy_text(info.dli_sname ? info.dli_sname : info.dli_fname);
	} while (!ask(address, &again) || memcmp(&info, &again, sizeof info) != 0);
	if (!name)
		return false;
	place->name = name;
	place->is_symbol = info.dli_sname != NULL;
	place->at = (uintptr_t)(place->is_symbol ? info.dli_saddr : info.dli_fbase);
	char *slash = place->is_symbol ? NULL : strrchr(name, '/');
	if (slash)
		memmove(name, slash + 1, strlen(slash));
	return true;
}

void ch__os_place_end(struct ch__os_place *place)
{
	free(place->name);
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
