/* SPDX-License-Identifier: MIT
 * image.h: the heap of a VM as a file (--save, --load): the global variables and all objects
 * reachable from them. Machine code, trampolines, names and unwind data are not in the file: a
 * loaded VM makes new ones as its procedures run, wherever its pool lies.
 *
 * A file is words of 64 bits, the low byte first: the header, then the objects, beginning with
 * number 1. Nothing in the file depends on addresses or on the architecture, so one heap has one
 * text. A value is a word: fixnums and immediates as value.h has them, an object as its number in
 * place of an address, number << 2. An object is a head, kind | length << 8, then its body:
 *
 *   pair      car, cdr                          closure    code, `length` free variables
 *   box       content                           vector     `length` values; so are multiple values
 *   flonum    bits of the double                string     `length` code points, two in a word
 *   bytes     `length`, eight in a word         symbol     its name, likewise; interned when loaded
 *   record    type, `length` fields             primitive  `length` bytes of its name
 *   type      name, names of fields, their count
 *   cell      name, content, is_builtin         code       below; `length` instructions
 *   condition message, irritants, kind, file, line
 *   mutex     nothing: it is free               port       0, 1, 2: the standard ones
 *
 *   code      required_args | has_rest << 32, frame_slots | const_count << 32,
 *             free_count | line << 32, name, file, instructions, constants, a line for each
 *             instruction, two in a word
 *
 * Bound cells are loaded into cells of the VM. A cell that still holds its built-in is in the file
 * only if a saved object refers to the cell.
 */
#pragma once

#include "vm.h"

enum {
	IMAGE_MAGIC, /* the bytes "SCMIMAGE" */
	IMAGE_VERSION,
	IMAGE_WORDS, /* of the whole file */
	IMAGE_OBJECTS,
	IMAGE_BYTECODE, /* image_bytecode: the instruction set of the code objects */
	IMAGE_GENSYMS,  /* how many names the VM has made up */
	IMAGE_EVENTS,   /* value: the events recorded by trace! */
	IMAGE_CHECKSUM, /* of all words but this one */
	IMAGE_HEADER,
};

enum image_kind {
	IMAGE_PAIR = 1,
	IMAGE_BOX,
	IMAGE_FLONUM,
	IMAGE_BYTES,
	IMAGE_CLOSURE,
	IMAGE_VECTOR,
	IMAGE_VALUES,
	IMAGE_STRING,
	IMAGE_SYMBOL,
	IMAGE_RECORD,
	IMAGE_PRIM,
	IMAGE_RTD,
	IMAGE_CELL,
	IMAGE_CONDITION,
	IMAGE_CODE,
	IMAGE_MUTEX,
	IMAGE_PORT,
	IMAGE_KINDS,
};

enum {
	IMAGE_FORMAT = 2,
	IMAGE_NAME_BYTES = 80, /* of a primitive, at most */
	IMAGE_WHY_BYTES = 400, /* for the text of a reason */
	IMAGE_CODE_WORDS = 5,  /* of a code object, in front of its instructions */
};

/* The bytes "SCMIMAGE" as a word. */
static const uint64_t IMAGE_MAGIC_WORD = 0x4547414d494d4353u;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a word of a file is one of memory");

/* struct image: the words of a file after a successful check. */
struct image {
	const uint64_t *words;
	size_t count;
	uint64_t object_count;
	size_t *at; /* by number: index of an object's head; for free() */
};

static inline enum image_kind image_kind(const struct image *image, uint64_t number)
{
	return (enum image_kind)(image->words[image->at[number]] & 0xff);
}
static inline uint64_t image_length(const struct image *image, uint64_t number)
{
	return image->words[image->at[number]] >> 8;
}
static inline const uint64_t *image_body(const struct image *image, uint64_t number)
{
	return image->words + image->at[number] + 1;
}
static inline int is_image_object(uint64_t word)
{
	return word != 0 && (word & 3) == 0;
}

/* ---- image_check.c: pure, knows no VM ---- */
/* Writes the reason, cut to IMAGE_WHY_BYTES. Returns 0. */
__attribute__((format(printf, 2, 3))) int image_fail(char *why, const char *format, ...);
uint64_t image_checksum(const uint64_t *words, size_t count);
uint64_t image_bytecode(void);
/* Returns 0 with the reason in `why` when the header is wrong for a file of so many words. */
int image_check_header(const uint64_t *header, uint64_t file_words, char *why);
/* Returns 0 with the reason in `why` when the words are wrong; nothing is allocated then. */
int image_check(struct image *image, const uint64_t *words, size_t count, char *why);

/* ---- image_file.c ---- */
/* Returns words for free() and their count, or NULL and `why`. Checks only the header. */
uint64_t *image_read_file(const char *path, size_t *count, char *why);
int image_replace_file(const char *path, const uint64_t *words, size_t count, char *why);

/* ---- image_save.c, image_load.c: return 0 with a text in `why`, at most IMAGE_WHY_BYTES ---- */
/* On failure nothing is written and an old file stays. Fails while other threads of the VM run. */
int image_save(struct context *ctx, const char *path, char *why);
/* The VM must have its primitives and nothing else. After a failure only vm_destroy is allowed. */
int image_load(struct context *ctx, const char *path, char *why);
void init_images(struct context *ctx);
