/* SPDX-License-Identifier: MIT
 * native_names.c: names of native functions from the symbol tables of object files. The first
 * question for an address in an object opens the object's file. A file is believed if its first
 * bytes equal the loaded bytes: the build ID is there, so a file replaced on the disk names
 * nothing. libdw finds tables and debug files. Files of a debug link are searched here, because
 * libdw would go on to a debug server. No lock: only the opener uses the names. Source: gdb manual,
 * "Debugging Information in Separate Files", for places and checksums. */
#include "observe/elfutils.h"
#include "observe/native_names.h"
#include "observe/system.h"
#include "os/files.h"
#include "os/text.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct object {
	struct object *next;
	uintptr_t low, high;
	struct ch__elfutils_module *module; /* NULL: the file gives no names */
};

struct ch__native_names {
	struct ch__meta *meta;
	struct object *objects; /* the object used last comes first */
	/* The function found last. libdw looks through all symbols each time, and a caller with
	 * many addresses asks in rising order. So a function that lies inside this one may get
	 * this one's name. */
	struct function {
		uintptr_t start, end;
		const char *name; /* libdw's, valid as long as the session; NULL: none yet */
	} last;
	struct ch__elfutils elfutils;
	struct ch__elfutils_session *session; /* NULL: there is no libdw */
};

/* --- separate debug files --- */

/* The CRC-32 of a debug link, four bits at a time. */
static uint32_t crc_of(uint32_t crc, const uint8_t *bytes, size_t n)
{
	static const uint32_t table[16] = {
		0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
		0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
		0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
	};
	for (size_t i = 0; i < n; i++) {
		crc = crc >> 4 ^ table[(crc ^ bytes[i]) & 15];
		crc = crc >> 4 ^ table[(crc ^ bytes[i] >> 4) & 15];
	}
	return crc;
}

static bool has_crc(int fd, uint32_t wanted)
{
	uint8_t bytes[16384];
	uint32_t crc = UINT32_MAX;
	int64_t n;
	for (uint64_t at = 0; (n = ch__os_file_read(fd, at, bytes, sizeof bytes)) > 0;
	     at += (uint64_t)n)
		crc = crc_of(crc, bytes, (size_t)n);
	return n == 0 && ~crc == wanted;
}

static int find_linked(const char *file, const char *link, uint32_t crc)
{
	static const char *const places[][2] = {
		{"", "/"}, {"", "/.debug/"}, {"/usr/lib/debug", "/"}};
	const char *slash = file ? strrchr(file, '/') : NULL;
	if (!link || !slash)
		return -1;
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		char path[8192]; /* no file has a path so long that it is cut */
		snprintf(path, sizeof path, "%s%.*s%s%s", places[i][0], (int)(slash - file), file,
			 places[i][1], link);
		int fd = ch__os_file_open(path);
		if (fd >= 0 && has_crc(fd, crc))
			return fd;
		if (fd >= 0)
			ch__os_close(fd);
	}
	return -1;
}

/* Global, because libdw gives a callback no word of the session, only of a module. Relaxed: a
 * process has one libdw, so every opener of a session stores the same value first. */
static _Atomic(ch__elfutils_find_debug *) find_by_build_id;

static int find_debug(struct ch__elfutils_module *module, void **user, const char *name,
		      uint64_t base, const char *file, const char *link, uint32_t crc, char **path)
{
	ch__elfutils_find_debug *by_build_id = CH_LOAD_RELAXED(&find_by_build_id);
	int fd = by_build_id(module, user, name, base, file, link, crc, path);
	if (fd < 0)
		fd = find_linked(file, link, crc);
	/* With errno set, libdw would not look into the object itself either. */
	errno = 0;
	return fd;
}

/* --- libdw --- */

#define FIND(member, symbol)                                                 \
	do {                                                                 \
		void *found = ch__os_symbol(CH__ELFUTILS_LIBRARY, (symbol)); \
		if (!found)                                                  \
			return false;                                        \
		memcpy(&e->member, &found, sizeof found);                    \
	} while (0)

static bool find_elfutils(struct ch__elfutils *e)
{
	if (!ch__os_library_load(CH__ELFUTILS_LIBRARY))
		return false;
	FIND(begin, "dwfl_begin");
	FIND(end, "dwfl_end");
	FIND(report_begin, "dwfl_report_begin_add");
	FIND(report, "dwfl_report_elf");
	FIND(report_end, "dwfl_report_end");
	FIND(symbol, "dwfl_module_addrinfo");
	FIND(find_by_build_id, "dwfl_build_id_find_debuginfo");
	return true;
}

static bool is_what_was_loaded(int fd, const struct ch__os_image *image)
{
	uint8_t head[CH__OS_HEAD_BYTES];
	return image->head_bytes != 0 &&
	       ch__os_file_read(fd, 0, head, image->head_bytes) == (int64_t)image->head_bytes &&
	       memcmp(head, image->head, image->head_bytes) == 0;
}

static struct ch__elfutils_module *open_module(struct ch__native_names *names,
					       const struct ch__os_image *image)
{
	int fd = names->session ? ch__os_image_open(image) : -1;
	if (fd < 0)
		return NULL;
	struct ch__elfutils_module *module = NULL;
	if (is_what_was_loaded(fd, image)) {
		const struct ch__elfutils *e = &names->elfutils;
		e->report_begin(names->session);
		module = e->report(names->session, image->path, image->path, fd, image->bias, true);
		e->report_end(names->session, NULL, NULL);
	}
	if (!module)
		ch__os_close(fd);
	return module;
}

/* --- objects --- */

static struct object *know_object(struct ch__native_names *names, uintptr_t pc)
{
	for (struct object **at = &names->objects, *object; (object = *at); at = &object->next)
		if (pc >= object->low && pc < object->high) {
			*at = object->next;
			object->next = names->objects;
			names->objects = object;
			return object;
		}
	return NULL;
}

static struct object *object_of(struct ch__native_names *names, uintptr_t pc)
{
	struct object *object = know_object(names, pc);
	struct ch__os_image image;
	if (object || !ch__os_image_of(pc, &image))
		return object;
	object = ch__meta_alloc(names->meta, sizeof *object);
	if (!object)
		return NULL;
	*object =
		(struct object){names->objects, image.low, image.high, open_module(names, &image)};
	names->objects = object;
	return object;
}

/* --- names --- */

/* Labels that assemblers leave behind, not functions: "$x", ".L1". elfutils gives no empty name. */
static bool is_label(const char *symbol)
{
	return *symbol == '$' || strncmp(symbol, ".L", 2) == 0;
}

static void put_name(const char *symbol, char *text, size_t bytes)
{
	enum { SYMBOL_BYTES = 4096 };
	char plain[SYMBOL_BYTES];
	/* Linkers add a version behind an @. */
	snprintf(plain, sizeof plain, "%.*s", (int)strcspn(symbol, "@"), symbol);
	struct ch__text name = {text, bytes, 0};
	ch__os_put_symbol(plain, &name);
	ch__text_end(&name);
}

static bool name_by_file(struct ch__native_names *names, uintptr_t pc, char *text, size_t bytes,
			 uintptr_t *start)
{
	if (names->last.name && pc >= names->last.start && pc < names->last.end) {
		*start = names->last.start;
		put_name(names->last.name, text, bytes);
		return true;
	}
	const struct object *object = object_of(names, pc);
	if (!object || !object->module)
		return false;
	struct ch__elfutils_symbol symbol = {0};
	uint64_t offset = 0;
	const char *name =
		names->elfutils.symbol(object->module, pc, &offset, &symbol, NULL, NULL, NULL);
	if (!name || is_label(name) || offset > pc || (symbol.bytes && offset >= symbol.bytes))
		return false;
	*start = pc - (uintptr_t)offset;
	names->last = (struct function){*start, *start + (uintptr_t)symbol.bytes, name};
	put_name(name, text, bytes);
	return true;
}

bool ch__native_name(struct ch__native_names *names, uintptr_t pc, char *text, size_t bytes,
		     uintptr_t *start)
{
	struct ch__os_place place;
	if (names && name_by_file(names, pc, text, bytes, start))
		return true;
	if (!ch__os_place_of(pc, &place))
		return false;
	bool is_named = place.is_symbol;
	if (is_named) {
		put_name(place.name, text, bytes);
		*start = place.at;
	}
	ch__os_place_end(&place);
	return is_named;
}

struct ch__native_names *ch__native_names_open(struct ch__meta *meta)
{
	static const struct ch__elfutils_callbacks callbacks = {.find_debug = find_debug};
	struct ch__native_names *names = ch__meta_alloc(meta, sizeof *names);
	if (!names)
		return NULL;
	names->meta = meta;
	if (find_elfutils(&names->elfutils)) {
		CH_STORE_RELAXED(&find_by_build_id, names->elfutils.find_by_build_id);
		names->session = names->elfutils.begin(&callbacks);
	}
	return names;
}

void ch__native_names_close(struct ch__native_names *names)
{
	if (names && names->session)
		names->elfutils.end(names->session);
}
