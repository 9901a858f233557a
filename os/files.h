/* SPDX-License-Identifier: MIT
 * files.h: the gate's files of sinks and what the dynamic linker knows (linux_process.c,
 * linux_symbols.c). None of the latter in a signal handler. */
#ifndef CH_OS_FILES_H
#define CH_OS_FILES_H

#include "arch/base.h"

/* --- files of sinks --- */
/* A new regular file, open for both, which only its owner may read and write; follows no link,
 * replaces no file but our own; -1: errno. */
int ch__os_file_create(const char *path) CH_EXCLUDES(CH__STANDING);
/* Which file one is, while it exists; all 0: none. */
struct ch__os_file_id {
	uint64_t device, inode;
};
struct ch__os_file_id ch__os_file_identify(int fd);
/* As ch__os_file_create, for a name that others in the process may write, too: a file there stays
 * when it is open in this process or was written since the process began, EBUSY. `own` is replaced
 * all the same. */
int ch__os_file_create_known(const char *path, struct ch__os_file_id own) CH_EXCLUDES(CH__STANDING);
/* From here on writes go to its end, whoever else writes to it. False: errno. */
bool ch__os_file_append(int fd) CH_EXCLUDES(CH__STANDING);
int64_t ch__os_file_bytes(int fd); /* -1: errno */
/* How many bytes were read at an offset: fewer than n at the file's end; -1: errno. */
int64_t ch__os_file_read(int fd, uint64_t offset, void *bytes, size_t n) CH_EXCLUDES(CH__STANDING);
/* All or false; SIGXFSZ and SIGPIPE do not kill. */
bool ch__os_file_write(int fd, const void *bytes, size_t n) CH_EXCLUDES(CH__STANDING);
/* Whether the path still leads to the open file itself; false: errno, EEXIST when something else
 * has its name. */
bool ch__os_file_is_at(int fd, const char *path) CH_EXCLUDES(CH__STANDING);
/* Two files change places in one step; ENOSYS, EINVAL where there is no such call. */
bool ch__os_file_exchange(const char *one, const char *other) CH_EXCLUDES(CH__STANDING);
bool ch__os_file_rename(const char *from, const char *to) CH_EXCLUDES(CH__STANDING);
void ch__os_file_remove(const char *path) CH_EXCLUDES(CH__STANDING);
/* The file's first page, mapped so that profilers note the file's name: readable and executable,
 * as they ask for. Never touched; EPERM where the folder's file system is mounted noexec. */
void *ch__os_file_marker(int fd) CH_EXCLUDES(CH__STANDING);
/* --- symbols of the process --- */
/* The address of a symbol that the process has loaded, be it local to what loaded `library`; the
 * object that has it is never unloaded from then on. NULL: nobody has it. */
void *ch__os_symbol(const char *library, const char *name) CH_EXCLUDES(CH__STANDING);
struct ch__os_place {
	const char *object; /* path of its file */
	uintptr_t object_at;
	const char *symbol; /* NULL: it has none that is exported */
	uintptr_t symbol_at;
};
/* What the dynamic linker knows of an address; false: it lies in no object. */
bool ch__os_place_of(uintptr_t address, struct ch__os_place *) CH_EXCLUDES(CH__STANDING);
/* The C++ name that a symbol stands for, cut to bytes; false: it stands for none, or the process
 * has no C++ runtime. */
bool ch__os_demangle(const char *symbol, char *text, size_t bytes) CH_EXCLUDES(CH__STANDING);

#endif
