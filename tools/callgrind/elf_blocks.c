// SPDX-License-Identifier: MIT
/* The image is the one that debuggers get in memory (sinks/elf_image.h), of one page that is as
 * long as the code; its .text, which is empty there, gets the code behind all else.
 *
 * Names come from a program's user. A file is called by the block's index and of its name what no
 * shell and no file system minds; a block whose index was there before has its time as well. */
#define _GNU_SOURCE /* strerrordesc_np */
#include "tools/callgrind/elf_blocks.h"

#include "os/os.h"
#include "tools/callgrind/command.h"
#include "sinks/elf_image.h"

#include <elf.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { NAME_MOST = 100, PATH_BYTES = 4096, CODE_ALIGN = 16 };

static bool failed(struct cg_elf_blocks *blocks, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(blocks->error, sizeof blocks->error, format, arguments);
	va_end(arguments);
	return false;
}

/* ---- what the image asks --------------------------------------------------------------------- */

static size_t name_of(void *context, uint64_t key, char *out, size_t out_bytes)
{
	const struct cg_block *block = context;
	size_t n = block->name.length < out_bytes ? block->name.length : out_bytes - 1;
	memcpy(out, block->name.at, n);
	(void)key;
	return n;
}

static const struct ch__sink_line *lines_of(void *context, uint64_t key, const char **file,
					    size_t *n)
{
	const struct cg_block *block = context;
	(void)key;
	*file = block->file;
	*n = block->line_count;
	return block->lines;
}

/* ---- one file -------------------------------------------------------------------------------- */

static void put_code(struct cg_output *file, uint8_t *image, size_t bytes,
		     const struct cg_block *block, uint16_t machine)
{
	Elf64_Ehdr *header = (Elf64_Ehdr *)(void *)image;
	Elf64_Shdr *sections = (Elf64_Shdr *)(void *)(image + header->e_shoff);
	size_t pad = -bytes % CODE_ALIGN;
	header->e_machine = machine;
	for (unsigned i = 0; i < header->e_shnum; i++) {
		if (sections[i].sh_type != SHT_NOBITS)
			continue;
		sections[i].sh_type = SHT_PROGBITS;
		sections[i].sh_offset = bytes + pad;
	}
	cg_output_put(file, image, bytes);
	cg_output_put(file, (const char[CODE_ALIGN]){0}, pad);
	cg_output_text(file, block->code);
}

static bool make_file(struct cg_output *file, struct cg_block *block, uint16_t machine)
{
	struct ch__elf_range range = {.bytes = (uint32_t)block->code.length & INT32_MAX};
	struct ch__elf_page page = {.ranges = &range, .count = 1, .capacity = 1};
	const _Atomic(uint8_t) no_frame = 0;
	struct ch__sinks_config config = {.context = block,
					  .name = name_of,
					  .lines = lines_of,
					  .pool_exec = (uintptr_t)block->address,
					  .pool_bytes = block->code.length,
					  .frames = &no_frame,
					  .runtime_exec = UINTPTR_MAX, /* none */
					  .page_bytes = 1u << 31}; /* a single page */
	struct ch__elf_input input = {
		.config = &config,
		.pages = &page,
		.page_count = 1,
		.image = range.image,
		.base = (uintptr_t)block->address,
	};
	size_t bytes;
	uint8_t *image = ch__elf_image_make(&input, 0, &bytes);
	if (!image)
		return false;
	put_code(file, image, bytes, block, machine);
	ch__os_unmap(image, bytes);
	return !file->failed;
}

/* ---- names of files -------------------------------------------------------------------------- */

static bool is_harmless(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       (c && strchr("._+-", c));
}

/* Is the block to be written? False, too, with `error`. */
static bool name_file(struct cg_elf_blocks *blocks, const struct cg_block *block, char *leaf,
		      size_t room)
{
	uint64_t both[2] = {block->index, block->time};
	size_t before = blocks->indexes.count;
	bool is_new = cg_table_find(&blocks->indexes, both, sizeof both[0]) == NULL;
	if (!cg_table_make(&blocks->indexes, both, is_new ? sizeof both[0] : sizeof both))
		return failed(blocks, "out of memory");
	if (blocks->indexes.count == before) {
		blocks->dump.wrong++;
		blocks->dump.wrong_at = (size_t)(block->name.at - blocks->dump.start);
		blocks->dump.why = "an index that another block of the same time has";
		return false;
	}
	int n = snprintf(leaf, room, "%08" PRIu64, block->index);
	if (!is_new)
		n += snprintf(leaf + n, room - (size_t)n, "@%" PRIu64, block->time);
	char *at = leaf + n;
	if (block->name.length)
		*at++ = '-';
	for (size_t i = 0; i < block->name.length && i < NAME_MOST; i++)
		*at++ = (char)(is_harmless(block->name.at[i]) ? block->name.at[i] : '_');
	memcpy(at, ".elf", sizeof ".elf");
	return true;
}

/* ---- all ------------------------------------------------------------------------------------- */

/* INDEX TIME ADDRESS BYTES FILE NAME: the name last, as it may have spaces. */
static void list_block(struct cg_elf_blocks *blocks, const struct cg_block *block, const char *leaf)
{
	cg_output_print(&blocks->list, "%" PRIu64 " %" PRIu64 " 0x%" PRIx64 " %zu %s ",
			block->index, block->time, block->address, block->code.length, leaf);
	cg_output_word(&blocks->list, block->name);
	cg_output_put(&blocks->list, "\n", 1);
}

static bool write_block(struct cg_elf_blocks *blocks, struct cg_block *block)
{
	char leaf[NAME_MOST + 64], path[PATH_BYTES];
	if (!name_file(blocks, block, leaf, sizeof leaf))
		return !blocks->error[0];
	int n = snprintf(path, sizeof path, "%s/%s", blocks->folder, leaf);
	if (n < 0 || (size_t)n >= sizeof path)
		return failed(blocks, "%.100s…: the name of the folder is too long",
			      blocks->folder);
	struct cg_output file = {0};
	bool is_made = make_file(&file, block, blocks->dump.machine);
	bool is_written = is_made && cg_output_save(&file, path);
	int why = is_made ? errno : ENOMEM;
	cg_output_end(&file);
	if (!is_written)
		return failed(blocks, "%.300s: %s", path, strerrordesc_np(why));
	blocks->written++;
	list_block(blocks, block, leaf);
	return !blocks->list.failed || failed(blocks, "out of memory");
}

bool cg_elf_blocks_run(struct cg_elf_blocks *blocks, const char *text, size_t length)
{
	struct cg_block block;
	struct stat there;
	if (!cg_jitdump_begin(&blocks->dump, text, length))
		return failed(blocks, "%s", blocks->dump.error);
	if (mkdir(blocks->folder, 0777) && errno != EEXIST)
		return failed(blocks, "%.300s: %s", blocks->folder, strerrordesc_np(errno));
	if (stat(blocks->folder, &there) || !S_ISDIR(there.st_mode))
		return failed(blocks, "%.300s is no folder", blocks->folder);
	while (cg_jitdump_next(&blocks->dump, &block)) {
		if (!write_block(blocks, &block))
			return false;
	}
	return !blocks->dump.error[0] || failed(blocks, "%s", blocks->dump.error);
}

void cg_elf_blocks_end(struct cg_elf_blocks *blocks)
{
	cg_jitdump_end(&blocks->dump);
	cg_output_end(&blocks->list);
	cg_table_end(&blocks->indexes);
}

/* ---- the command ----------------------------------------------------------------------------- */

static void tell(const char *name, const struct cg_jitdump *dump)
{
	if (dump->wrong)
		fprintf(stderr,
			"callgrind-names: %s: %zu records are wrong and left out; at byte %zu: "
			"%s\n",
			name, dump->wrong, dump->wrong_at, dump->why);
	if (dump->is_cut)
		fprintf(stderr, "callgrind-names: %s: the last record is not whole\n", name);
	if (dump->others)
		fprintf(stderr, "callgrind-names: %s: %zu records are of kinds not known here\n",
			name, dump->others);
	if (dump->left_out)
		fprintf(stderr,
			"callgrind-names: %s: %zu source lines are of a second file, or not in "
			"their code\n",
			name, dump->left_out);
}

int cg_command_elf(const struct cg_command *command)
{
	const struct cg_input *input = &command->inputs[0];
	struct cg_elf_blocks blocks = {.folder = command->folder};
	bool is_good = cg_elf_blocks_run(&blocks, input->text, input->length);
	if (!is_good)
		cg_complain(input->name, blocks.error);
	is_good = is_good && cg_command_save(command, &blocks.list);
	tell(input->name, &blocks.dump);
	fprintf(stderr, "callgrind-names: %zu blocks written, %zu times code was freed\n",
		blocks.written, blocks.dump.freed);
	is_good = is_good && !blocks.dump.wrong;
	cg_elf_blocks_end(&blocks);
	return is_good ? 0 : 1;
}
