/* SPDX-License-Identifier: MIT
 * elf_image.h: what an ELF image in memory is made of, private to unwind/. */
#ifndef CH_UNWIND_ELF_IMAGE_H
#define CH_UNWIND_ELF_IMAGE_H

#include "unwind/sink.h"

/* Code of one key, from the input's base. */
struct ch__elf_range {
	uint64_t key;
	uint32_t offset;
	uint32_t bytes : 31;
	uint32_t is_cold : 1;
};

/* A page of code, and behind it the other pages of its span. */
struct ch__elf_page {
	struct ch__elf_range *ranges; /* rising by offset, disjoint */
	uint32_t count, capacity;
	uint8_t image; /* whose the ranges are shown in; 0: none */
	uint8_t frame; /* shape of the page's frames, + 1; 0: it has none */
	uint8_t change;
	const uint8_t *own; /* a sound section for code that begins here, or NULL */
};

/* Shows the pages of [pages, pages + page_count) that belong to `image`. */
struct ch__elf_input {
	const struct ch__sinks_config *config;
	const struct ch__frame_shape *shapes;
	const struct ch__elf_page *pages;
	uint32_t page_count;
	uint8_t image;
	uintptr_t base; /* of ranges */
	uintptr_t exec; /* of pages[0] */
	size_t page_bytes;
	const char *name; /* of every range; NULL: the names and lines of the configuration */
};

struct ch__elf_memory {
	void *at;       /* private pages; NULL when there is no memory */
	size_t bytes;   /* of them */
	uint8_t *image; /* 16-aligned, head_bytes and more from `at` */
	size_t image_bytes;
};

/* Signal-safe where the configuration's questions are. */
struct ch__elf_memory ch__elf_image_make(const struct ch__elf_input *, size_t head_bytes);

#endif
