/* SPDX-License-Identifier: MIT
 * files.h: files of sinks, and the dynamic linker's knowledge (linux*.c).
 * Functions of linux_symbols.c must not run in a signal handler. */
#pragma once

#include "arch/base.h"

struct ch__text;

enum { CH__OS_PATH_BYTES = 4096 }; /* the system's longest path, with the 0 at its end */

/* Makes a regular file, open for both, which only the owner may read and write. Follows no link,
 * and replaces only a regular file of the same user. Returns -1 and errno on failure. With `own`
 * the name is one that others in the process may write, too: EBUSY when the file there is open in
 * this process or was written since the process began. `own`, held or let go, is replaced all the
 * same, unless somebody else changed its own_bytes. */
struct ch__os_held;
int ch__os_file_create(const char *path, const struct ch__os_held *own, uint64_t own_bytes)
	CH_MAY_WAIT;
/* Holds the file. From here on writes append, whoever else writes. Returns false and errno. */
bool ch__os_file_hold(int fd, struct ch__os_held *) CH_MAY_WAIT;
int64_t ch__os_file_bytes(int fd); /* -1: errno */
/* Returns the number of bytes read at the offset, fewer than n at the file's end; -1 and errno. */
int64_t ch__os_file_read(int fd, uint64_t offset, void *bytes, size_t n) CH_MAY_WAIT;
/* Returns the number of bytes written; fewer than n: errno. SIGXFSZ and SIGPIPE do not kill. */
size_t ch__os_file_put(int fd, const void *bytes, size_t n) CH_MAY_WAIT;
/* Whether the path leads to the open file. Returns false and errno, EEXIST when something else has
 * the name. */
bool ch__os_file_is_at(int fd, const char *path) CH_MAY_WAIT;
bool ch__os_file_rename(const char *from, const char *to) CH_MAY_WAIT;
void ch__os_file_remove(const char *path) CH_MAY_WAIT;
/* The file's first page, mapped readable and executable so that profilers note the file's name.
 * Never touched; EPERM where the folder's file system is mounted noexec. */
void *ch__os_file_marker(int fd) CH_MAY_WAIT;

/* The address of a symbol that the process has loaded, also where `library` was opened for its user
 * alone (RTLD_LOCAL). The symbol's object is never unloaded from then on. NULL: not found. */
void *ch__os_symbol(const char *library, const char *name) CH_HOLDS_NONE;
/* The name is a copy, since another thread may unload the object: ch__os_place_end frees it. */
struct ch__os_place {
	char *name;   /* of the symbol; where none is exported, of the object's file */
	uintptr_t at; /* of the symbol, or of the object */
	bool is_symbol;
};
/* Asks the dynamic linker about an address. Returns false when the address lies in no object, or
 * when there is no memory for the name. */
bool ch__os_place_of(uintptr_t address, struct ch__os_place *) CH_HOLDS_NONE;
void ch__os_place_end(struct ch__os_place *);
/* Puts the C++ name of a symbol; the symbol itself when it has none, or the process has no C++
 * runtime. */
void ch__os_put_symbol(const char *symbol, struct ch__text *) CH_HOLDS_NONE;
