/* SPDX-License-Identifier: MIT
 * linux_symbols.c: the one user of the dynamic linker: symbols of the process, the object and the
 * symbol at an address, and C++ names. Nothing here is async-signal-safe: the dynamic linker takes
 * its lock, the demangler allocates. No lock of the library. */
#define _GNU_SOURCE
#include "os/files.h"
#include "os/os.h"
#include "os/text.h"

#include <dlfcn.h>
#include <link.h>
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

/* What dladdr answers lies in the object, and the answer holds while nothing is unloaded. */
struct answer {
	Dl_info info;
	unsigned long long unloads; /* of the process, before dladdr was asked */
	char *name;
};

static int note_unloads(struct dl_phdr_info *now, size_t bytes, void *arg)
{
	(void)bytes;
	((struct answer *)arg)->unloads = now->dlpi_subs;
	return 1;
}

/* The dynamic linker is locked here. Returns 1 when the answer holds. */
static int copy_name(struct dl_phdr_info *now, size_t bytes, void *arg)
{
	struct answer *answer = arg;
	(void)bytes;
	if (now->dlpi_subs != answer->unloads)
		return -1;
	const char *symbol = answer->info.dli_sname, *object = answer->info.dli_fname;
	const char *slash = strrchr(object, '/');
	answer->name = strdup(symbol ? symbol : slash ? slash + 1 : object);
	return 1;
}

bool ch__os_place_of(uintptr_t address, struct ch__os_place *place)
{
	struct answer answer = {.name = NULL};
	do {
		dl_iterate_phdr(note_unloads, &answer);
		if (!dladdr((void *)address, &answer.info) || !answer.info.dli_fname)
			return false;
	} while (dl_iterate_phdr(copy_name, &answer) < 0);
	bool is_symbol = answer.info.dli_sname != NULL;
	*place = (struct ch__os_place){
		answer.name,
		(uintptr_t)(is_symbol ? answer.info.dli_saddr : answer.info.dli_fbase),
		is_symbol,
	};
	return place->name != NULL;
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
