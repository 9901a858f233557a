/* SPDX-License-Identifier: MIT
 * linux_images.c: the object files of the process, for reports: the object around an address, the
 * first bytes of its file, and libraries to load. The calls take the dynamic linker's lock, so
 * signal handlers cannot use them (os/linux_threads.c serves handlers). */
#define _GNU_SOURCE
#include "observe/system.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const ElfW(Phdr) * header_of(const struct dl_phdr_info *info, ElfW(Word) type)
{
	for (ElfW(Half) i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == type)
			return &info->dlpi_phdr[i];
	return NULL;
}

/* Looks at the first object, the program. A static program has no PT_INTERP. */
static int see_loader(struct dl_phdr_info *info, size_t bytes, void *arg)
{
	(void)bytes;
	*(bool *)arg = header_of(info, PT_INTERP) != NULL;
	return 1;
}

bool ch__os_library_load(const char *library)
{
	bool has_loader = false;
	dl_iterate_phdr(see_loader, &has_loader);
	return has_loader && dlopen(library, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
}

struct seeker {
	uintptr_t address;
	struct ch__os_image *image;
	bool is_first;
};

static bool measure(const struct dl_phdr_info *info, uintptr_t address, struct ch__os_image *image)
{
	bool is_inside = false;
	image->low = UINTPTR_MAX;
	image->high = 0;
	for (ElfW(Half) i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *header = &info->dlpi_phdr[i];
		if (header->p_type != PT_LOAD)
			continue;
		uintptr_t low = info->dlpi_addr + header->p_vaddr, high = low + header->p_memsz;
		is_inside |= address >= low && address < high;
		image->low = low < image->low ? low : image->low;
		image->high = high > image->high ? high : image->high;
	}
	return is_inside;
}

/* The dynamic linker is locked here, so no object is unloaded. */
static int seek(struct dl_phdr_info *info, size_t bytes, void *arg)
{
	struct seeker *s = arg;
	struct ch__os_image *image = s->image;
	bool is_program = s->is_first;
	(void)bytes;
	s->is_first = false;
	if (!measure(info, s->address, image))
		return 0;
	image->bias = info->dlpi_addr;
	image->is_program = is_program;
	image->head_bytes = 0;
	const char *path = info->dlpi_name ? info->dlpi_name : "";
	size_t length = strnlen(path, sizeof image->path - 1);
	memcpy(image->path, path, length);
	image->path[length] = 0;
	for (ElfW(Half) i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *header = &info->dlpi_phdr[i];
		if (header->p_type != PT_LOAD || header->p_offset != 0 || !(header->p_flags & PF_R))
			continue;
		size_t most = sizeof image->head;
		image->head_bytes = header->p_filesz < most ? header->p_filesz : most;
		memcpy(image->head, (const void *)(info->dlpi_addr + header->p_vaddr),
		       image->head_bytes);
		break;
	}
	return 1;
}

/* Lead to the program's file even when the path has changed. The first link leads nowhere after the
 * end of the first thread. Emulators show the guest's program by the first link alone. */
static const char *const program_files[] = {"/proc/self/exe", "/proc/thread-self/exe"};

static bool take_path(void *arg, const struct ch__os_mapping *mapping)
{
	struct ch__os_image *image = arg;
	bool is_here = image->low >= mapping->low && image->low < mapping->high;
	if (is_here)
		snprintf(image->path, sizeof image->path, "%s", mapping->path);
	return !is_here;
}

bool ch__os_image_of(uintptr_t address, struct ch__os_image *image)
{
	struct seeker s = {address, image, true};
	if (!dl_iterate_phdr(seek, &s))
		return false;
	if (image->is_program) {
		size_t most = sizeof image->path - 1;
		ssize_t length = readlink(program_files[0], image->path, most);
		if (length < 0)
			length = readlink(program_files[1], image->path, most);
		image->path[length > 0 ? length : 0] = 0;
	} else if (*image->path != '/') {
		/* The process may have left the folder from which the path leads. */
		(void)ch__os_each_mapping(take_path, image);
	}
	return true;
}

/* The kernel's object has no path from the root. A file of its name in the working folder may be
 * anybody's. */
int ch__os_image_open(const struct ch__os_image *image)
{
	if (!image->is_program)
		return *image->path == '/' ? ch__os_file_open(image->path) : -1;
	int fd = ch__os_file_open(program_files[0]);
	return fd >= 0 ? fd : ch__os_file_open(program_files[1]);
}
