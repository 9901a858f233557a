/* SPDX-License-Identifier: MIT
 * native_names.h: the names of native functions, for reports: as written, static functions and
 * those of separate debug files included where elfutils' libdw is there, else those that the
 * dynamic linker knows. What was loaded when an address is first asked for is what counts. Not in
 * signal handlers; one thread at a time. Neither the network is asked, nor is anything written. */
#ifndef CH_OBSERVE_NATIVE_NAMES_H
#define CH_OBSERVE_NATIVE_NAMES_H

#include "os/meta.h"

struct ch__native_names;

/* NULL: no memory. libdw and the files are read as names are asked for. What is known is of the
 * side memory, and goes with it; what libdw has, and the files, go by close. */
struct ch__native_names *ch__native_names_open(struct ch__meta *) CH_EXCLUDES(CH__STANDING);
void ch__native_names_close(struct ch__native_names *)
	CH_EXCLUDES(CH__STANDING); /* NULL: nothing */
/* The function that an address lies in and where it starts, C++ demangled, cut to bytes and
 * 0-terminated; names may be NULL: then the dynamic linker's. False: nobody knows one, or bytes is
 * 0. */
bool ch__native_name(struct ch__native_names *names, uintptr_t pc, char *text, size_t bytes,
		     uintptr_t *start) CH_EXCLUDES(CH__STANDING);

#endif
