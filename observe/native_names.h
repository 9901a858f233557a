/* SPDX-License-Identifier: MIT
 * native_names.h: the names of native functions, for reports, as written. If elfutils' libdw is
 * there, static functions and functions of separate debug files have names; else only the names of
 * the dynamic linker are known. The first question for an address decides which object counts. Not
 * in signal handlers; one thread at a time. Asks no network and writes nothing. */
#pragma once

#include "os/meta.h"

struct ch__native_names;

/* Loads libdw; files are read as names are asked for. Returns NULL if there is no memory. The names
 * lie in the side memory and go with it; close frees libdw's data and closes the files. */
struct ch__native_names *ch__native_names_open(struct ch__meta *) CH_MAY_WAIT;
void ch__native_names_close(struct ch__native_names *) CH_MAY_WAIT; /* NULL is allowed */
/* Writes the name of the function around an address, C++ demangled, cut to bytes and 0-terminated,
 * and its start. If names is NULL only the dynamic linker is asked. Returns false if no name is
 * known. */
bool ch__native_name(struct ch__native_names *names, uintptr_t pc, char *text, size_t bytes,
		     uintptr_t *start) CH_MAY_WAIT;
