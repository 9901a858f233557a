/* SPDX-License-Identifier: MIT
 * images.c: a loaded object is described by its own headers, to the byte. The headers are made up
 * here, so that the bytes behind the last header are known. */
#define _GNU_SOURCE
#include "observe/system.h"
#include "tests/support/harness.h"

#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The objects that replace the dynamic linker's list; NULL: the linker's list is used. */
static struct dl_phdr_info *objects;
static unsigned objects_now;

int __real_dl_iterate_phdr(int (*see)(struct dl_phdr_info *, size_t, void *), void *arg);
int __wrap_dl_iterate_phdr(int (*see)(struct dl_phdr_info *, size_t, void *), void *arg);
int __wrap_dl_iterate_phdr(int (*see)(struct dl_phdr_info *, size_t, void *), void *arg)
{
	int result = 0;
	if (!objects)
		return __real_dl_iterate_phdr(see, arg);
	for (unsigned i = 0; i < objects_now && !result; i++)
		result = see(&objects[i], sizeof objects[i], arg);
	return result;
}

/* A library at `memory` with two segments and a hole between them. The first header is of no
 * segment; the last header lies behind the object's count and belongs to no object. */
enum { HEAD = 40, LOW_BYTES = 100, HIGH_AT = 300, HIGH_BYTES = 50, BEHIND_AT = 1000 };
static uint8_t memory[4096];
static char name[8000] = "/nowhere/library.so";
static ElfW(Phdr) segments[4] = {
	{.p_type = PT_NOTE, .p_flags = PF_R, .p_filesz = 8, .p_vaddr = 120, .p_memsz = 8},
	{.p_type = PT_LOAD, .p_flags = PF_R, .p_filesz = HEAD, .p_memsz = LOW_BYTES},
	{.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_offset = 4096, .p_filesz = HIGH_BYTES,
	 .p_vaddr = HIGH_AT, .p_memsz = HIGH_BYTES},
	{.p_type = PT_LOAD, .p_flags = PF_R, .p_filesz = 1, .p_vaddr = BEHIND_AT, .p_memsz = 64},
};
static struct dl_phdr_info made_up[2];
static struct ch__os_image image;

static bool is_found_at(size_t offset)
{
	memset(&image, 0xee, sizeof image);
	return ch__os_image_of((uintptr_t)memory + offset, &image);
}

static void make_objects(void)
{
	for (size_t i = 0; i < sizeof memory; i++)
		memory[i] = (uint8_t)(i * 7 + 1);
	/* The program comes first, with a segment at another place. */
	made_up[0] = (struct dl_phdr_info){
		.dlpi_addr = 0, .dlpi_name = "", .dlpi_phdr = &segments[1], .dlpi_phnum = 1};
	made_up[1] = (struct dl_phdr_info){.dlpi_addr = (uintptr_t)memory, .dlpi_name = name,
					   .dlpi_phdr = segments, .dlpi_phnum = 3};
	objects = made_up;
	objects_now = 2;
}

TEST(object_is_found_at_each_byte_of_its_segments_and_at_no_other)
{
	make_objects();
	for (size_t at = 0; at < BEHIND_AT + 100; at++) {
		bool is_inside = at < LOW_BYTES || (at >= HIGH_AT && at < HIGH_AT + HIGH_BYTES);
		if (is_found_at(at) != is_inside)
			FAIL("byte %zu of the object", at);
		if (!is_inside)
			continue;
		CHECK_EQ(image.low, (uintptr_t)memory);
		CHECK_EQ(image.high, (uintptr_t)memory + HIGH_AT + HIGH_BYTES);
		CHECK_EQ(image.bias, (uintptr_t)memory);
		CHECK_STR(image.path, name);
		CHECK(!image.is_program);
		CHECK_EQ(image.head_bytes, HEAD);
		CHECK_EQ(memcmp(image.head, memory, HEAD), 0);
		CHECK_EQ(image.head[HEAD], 0xee);
	}
}

TEST(head_is_of_the_files_first_bytes_as_far_as_they_can_be_read)
{
	make_objects();
	segments[1].p_filesz = segments[1].p_memsz = sizeof image.head + 1;
	segments[2].p_type = PT_NULL;
	CHECK(is_found_at(0));
	CHECK_EQ(image.head_bytes, sizeof image.head);
	CHECK_EQ(memcmp(image.head, memory, sizeof image.head), 0);
	/* The file's start may lie at another address than the object's first. */
	segments[1].p_vaddr = 64;
	CHECK(is_found_at(64));
	CHECK_EQ(memcmp(image.head, memory + 64, sizeof image.head), 0);
	segments[1].p_vaddr = 0;
	segments[1].p_flags = PF_X;
	CHECK(is_found_at(0));
	CHECK_EQ(image.head_bytes, 0);
	segments[1].p_flags = PF_R;
	segments[1].p_offset = 4096;
	CHECK(is_found_at(0));
	CHECK_EQ(image.head_bytes, 0);
}

TEST(path_ends_where_the_name_or_the_room_does)
{
	make_objects();
	memset(name, '/', sizeof name - 1);
	CHECK(is_found_at(0));
	CHECK_EQ(strlen(image.path), sizeof image.path - 1);
	made_up[1].dlpi_name = NULL;
	CHECK(is_found_at(0));
	CHECK_STR(image.path, "");
}

/* The dynamic linker has no name for the program. */
TEST(program_is_the_first_object_and_has_the_path_of_its_file)
{
	char path[4096] = "";
	make_objects();
	made_up[0].dlpi_addr = (uintptr_t)memory + BEHIND_AT;
	CHECK(readlink("/proc/self/exe", path, sizeof path - 1) > 0);
	CHECK(is_found_at(BEHIND_AT));
	CHECK(image.is_program);
	CHECK_STR(image.path, path);
	int fd = ch__os_image_open(&image);
	CHECK(fd >= 0);
	ch__os_close(fd);
	CHECK(is_found_at(0) && !image.is_program);
	CHECK_EQ(ch__os_image_open(&image), -1);
	CHECK(!is_found_at(2000));
}

static void see_program_alone(void)
{
	CHECK(ch__os_image_of((uintptr_t)&see_program_alone, &image));
	CHECK(image.is_program && image.path[0] == '/');
	int fd = ch__os_image_open(&image);
	CHECK(fd >= 0);
	ch__os_close(fd);
}

TEST(program_is_seen_after_the_end_of_the_first_thread)
{
	run_behind_first_thread(see_program_alone);
}

/* The header behind the program's only header would be PT_INTERP. */
TEST(program_that_no_loader_started_loads_nothing)
{
	static const ElfW(Phdr) headers[] = {{.p_type = PT_LOAD}, {.p_type = PT_INTERP}};
	make_objects();
	made_up[0].dlpi_phdr = headers;
	CHECK(!ch__os_library_load("libc.so.6"));
}
