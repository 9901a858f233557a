/* SPDX-License-Identifier: MIT
 * elf_image.h: makes an ELF image in memory of ranges of code, private to sinks/. */
#pragma once

#include "sinks/tools.h"
#include "unwind/unwinders.h"

/* Code of a key, from the input's base. */
struct ch__elf_range {
	uint64_t key;
	const void *image; /* the image that shows the range, or why none does */
	uint32_t offset;
	uint32_t bytes : 31;
	uint32_t is_cold : 1;
};

/* The ranges that begin in a page. */
struct ch__elf_page {
	struct ch__elf_range *ranges; /* rising by offset, disjoint */
	uint32_t count, capacity;
};

/* An image shows the ranges of [pages, pages + page_count) whose `image` equals the input's. */
struct ch__elf_input {
	const struct ch__sinks_config *config;
	const struct ch__elf_page *pages;
	uint32_t page_count;
	const void *image;
	uintptr_t base; /* of ranges */
};

/* Returns private pages of *bytes, with the image behind a head of a multiple of 16 bytes. NULL: no
 * memory, or more gaps than a file has sections. Signal-safe if `name`, `lines` and `section` of
 * the configuration are. */
uint8_t *ch__elf_image_make(const struct ch__elf_input *, size_t head_bytes, size_t *bytes);
