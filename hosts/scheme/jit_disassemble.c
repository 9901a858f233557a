/* SPDX-License-Identifier: MIT
 * jit_disassemble.c: (code-disassemble f): the blocks of a procedure as objdump (binutils) shows
 * them, with branches, stubs, refs and patch points marked.
 */
#define _GNU_SOURCE
#include <codeheap/look.h>

#include <stdlib.h>
#include <unistd.h>

#include "jit.h"

enum { MAX_MARKS = 64 };

struct marks {
	int count;
	struct ch_site sites[MAX_MARKS];
};

static bool note_site(void *arg, const struct ch_site *site)
{
	struct marks *marks = arg;

	if (marks->count < MAX_MARKS)
		marks->sites[marks->count++] = *site;
	return true;
}

static void print_mark(FILE *out, const struct ch_site *site)
{
	switch (site->kind) {
	case CH_SITE_BRANCH:
		fprintf(out, "   ; branch, %s", site->is_linked ? "linked" : "not linked");
		break;
	case CH_SITE_STUB:
		fprintf(out, "   ; stub");
		break;
	case CH_SITE_REF:
		fprintf(out, "   ; ref %#llx", (unsigned long long)site->word);
		break;
	case CH_SITE_PATCH_POINT:
		fprintf(out, "   ; patch point, %s", site->is_linked ? "diverted" : "not diverted");
		break;
	}
}

/* A mark belongs to the instruction that covers its address: the last line at or below. */
static void print_listing(FILE *out, FILE *listing, const struct marks *marks, const uint8_t *end)
{
	char line[512], held[512] = "";
	uintptr_t at = 0, next;

	for (;;) {
		int is_line = fgets(line, sizeof line, listing) != NULL;
		if (is_line) {
			char *tail;
			next = strtoull(line, &tail, 16);
			if (*tail != ':' || !next)
				continue;
			line[strcspn(line, "\n")] = 0;
		} else {
			next = (uintptr_t)end;
		}
		if (*held) {
			fputs(held, out);
			for (int i = 0; i < marks->count; i++)
				if ((uintptr_t)marks->sites[i].at >= at &&
				    (uintptr_t)marks->sites[i].at < next)
					print_mark(out, &marks->sites[i]);
			fputc('\n', out);
		}
		if (!is_line)
			return;
		memcpy(held, line, sizeof held);
		at = next;
	}
}

static void disassemble_range(FILE *out, const char *title, const uint8_t *exec, uint32_t bytes,
			      const struct marks *marks)
{
	char path[] = "/tmp/scheme-code-XXXXXX", command[256];
	int fd = mkstemp(path);

	if (fd < 0)
		return;
	fprintf(out, "  %s, %u bytes\n", title, bytes);
	if (write(fd, exec, bytes) == (ssize_t)bytes) {
		snprintf(command, sizeof command,
			 "%s -D -w -b binary --no-show-raw-insn --adjust-vma=%p %s "
			 "2>/dev/null",
			 emit_objdump, (const void *)exec, path);
		FILE *listing = popen(command, "r");
		if (listing) {
			print_listing(out, listing, marks, exec + bytes);
			pclose(listing);
		}
	}
	close(fd);
	unlink(path);
}

static void disassemble_block(FILE *out, const struct version *version)
{
	static const char *const kinds[] = {"point", "generic", "entry",
					     "body",  "bare",    "case"};
	struct ch_info info = {.size = sizeof info};
	struct marks marks = {0};

	if (!version->block.bits || ch_block_info(version->block, &info) != CH_OK ||
	    ch_block_sites(version->block, note_site, &marks) != CH_OK)
		return;
	fprintf(out, "block at pc %u, %s, types %llx:%llx%s\n", version->pc,
		kinds[version->kind < K_CASE ? version->kind : K_CASE],
		(unsigned long long)version->types.words[1],
		(unsigned long long)version->types.words[0],
		info.state == CH_BLOCK_LIVE ? "" : ", not entrant");
	disassemble_range(out, "hot", info.exec, info.hot_bytes, &marks);
	if (info.cold_bytes)
		disassemble_range(out, "cold", info.cold_exec, info.cold_bytes, &marks);
}

value jit_disassemble(struct context *ctx, value *args, int64_t argc)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *out;

	(void)argc;
	if (!is_type(args[0], T_CLOSURE))
		raise_type(ctx, "code-disassemble", "procedure", args[0]);
	struct method *method = AS(closure, args[0])->code->jit;
	if (!jit_of(ctx) || jit_of(ctx)->is_arena || !method ||
	    !(out = open_memstream(&text, &bytes)))
		return V_UNSPEC;
	for (uint32_t i = 0; i < method->count; i++)
		disassemble_block(out, &method->versions[i]);
	fclose(out);
	port_append(ctx, ctx->vm->output, text, bytes);
	free(text);
	return V_UNSPEC;
}
