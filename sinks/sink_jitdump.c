/* SPDX-License-Identifier: MIT
 * sink_jitdump.c: the file by which perf inject names code by time: jit-PID.dump, with the bytes,
 * source lines and unwind rules of every piece of code from the moment of publication. Uses, and
 * the fate of freed code: docs/unwinders.md, section 6.
 *
 *   file      header, then records: [id u32 | bytes u32 | CLOCK_MONOTONIC ns u64 | body]
 *   LOAD      pid tid u32, address, address, bytes, index u64, name, 0, code
 *   DEBUG     address, entries u64, then entries: address u64, line u32, column u32, file, 0
 *   UNWINDING bytes, bytes of .eh_frame_hdr, bytes mapped behind the code u64, .eh_frame,
 *             .eh_frame_hdr, padding to 8
 *
 * perf inject makes a shared object of each LOAD: the code, then .eh_frame at the next 8 bytes,
 * then .eh_frame_hdr; the UNWINDING record before the LOAD tells both. Two things may surprise:
 *   - The bytes mapped behind the code are 0. perf would take mapped bytes from the next block in
 *     memory, and samples of the next block would lose the name.
 *   - .eh_frame_hdr has no table: perf with libunwind would read it through those bytes. Without a
 *     table libunwind finds no information and follows the frame pointer, which is right for blocks
 *     that keep the frame pointer. perf with libdw has the rules, from .eh_frame in the file. It
 *     cannot read the map of code with steps: such code has no rules.
 * The last entry of DEBUG is at the code's end: a line holds up to the next entry only.
 *
 * The file belongs to the process and stays open until exit, in the folder of the heap that opened
 * it. A failed write switches the sink off for every heap; the next heap that turns the sink on
 * starts the file anew. An add writes loads at once. The load named "[freed]" of freed code, with
 * the bytes that are still there, waits in the buffer for the next add or flush, also at exit,
 * unless the heap's lock is held then. No reader asks for a close record. Lock: the tool's.
 * Sources: Linux, tools/perf/Documentation/jitdump-specification.txt; LSB Core 5.0, 10.6. */
#include "sinks/tools.h"

enum {
	MAGIC = 0x4a695444, /* "JiTD", in the writer's byte order */
	VERSION = 1,
	HDR_BYTES = 20,
	ENTRY_FIXED_BYTES = 17, /* of a CIE and of an FDE, before the program */
	PROGRAM_BYTES = CH__FRAME_CFI_BYTES + 7, /* of the longest, with no-ops up to 8 bytes */
	PCREL_SDATA4 = 0x1b,
	OMIT = 0xff,
};
_Static_assert(CH__FRAME_FDE_BYTES <= CH__FRAME_CFI_BYTES, "room for a program");

enum record { LOAD = 0, DEBUG_INFO = 2, UNWINDING_INFO = 4 };

/* The fixed parts of the file and of records. */
struct file_head {
	uint32_t magic, version, bytes, machine, unused, process;
	uint64_t now_ns, flags; /* no flag: times of the clock, not the processor */
};
struct prefix {
	uint32_t id, bytes;
	uint64_t now_ns;
};
struct load_head {
	struct prefix prefix;
	uint32_t process, thread;
	uint64_t exec, code, bytes, index;
};
struct debug_head {
	struct prefix prefix;
	uint64_t exec, entries;
};
struct debug_entry {
	uint64_t at;
	uint32_t line, column;
};
struct unwinding_head {
	struct prefix prefix;
	uint64_t bytes, hdr_bytes, mapped;
};
struct cie {
	uint32_t length, id;
	uint8_t version;
	char letters[3];
	uint8_t code_align, data_align, return_register, data_bytes, encoding;
	uint8_t program[PROGRAM_BYTES];
};
struct fde {
	uint32_t length, cie, start, bytes; /* cie: from the field back to the CIE */
	uint8_t data_bytes, program[PROGRAM_BYTES];
};
struct unwinding_hdr {
	uint8_t version, section_encoding, count_encoding, table_encoding;
	uint32_t section, rest[4];
};
_Static_assert(sizeof(struct file_head) == 40 && sizeof(struct prefix) == 16 &&
		       sizeof(struct load_head) == 56 && sizeof(struct debug_head) == 32 &&
		       sizeof(struct debug_entry) == 16 && sizeof(struct unwinding_head) == 40 &&
		       offsetof(struct cie, program) == ENTRY_FIXED_BYTES &&
		       offsetof(struct fde, program) == ENTRY_FIXED_BYTES,
	       "they lie in the file as they lie in memory");

static void forget_file(void) CH_HAS_FILE;
static struct ch__tool tool = {.rank = CH__RANK_JITDUMP, .sink = CH_SINK_JITDUMP, .stem = "jit",
			       .extension = "dump", .forget = forget_file, .file.fd = -1};
static struct {
	uint64_t now_ns; /* with the thread: of all records that are put until the next take_time */
	uint32_t thread;
	CH_BY_FILE void *marker;
	uint64_t index; /* of the last load record; none is reused in the process */
} file;

static void put(const void *bytes, size_t n) CH_UNANALYSED("records are put under the file lock")
{
	ch__tool_put(&tool, bytes, n);
}

static void take_time(void)
{
	file.now_ns = ch__os_now_ns();
	file.thread = (uint32_t)ch__os_thread_id();
}

static struct prefix prefix_of(enum record id, size_t bytes)
{
	return (struct prefix){id, (uint32_t)bytes, file.now_ns};
}

static void put_load(const struct ch__sink_range *code, const char *name)
{
	size_t name_bytes = strlen(name) + 1;
	struct load_head head = {
		prefix_of(LOAD, sizeof head + name_bytes + code->bytes),
		(uint32_t)tool.process,
		file.thread,
		code->exec,
		code->exec,
		code->bytes,
		++file.index,
	};
	put(&head, sizeof head);
	put(name, name_bytes);
	put((const void *)code->exec, code->bytes);
}

static void put_line(uint64_t at, uint32_t line, const char *source)
{
	struct debug_entry entry = {at, line, 0};
	put(&entry, sizeof entry);
	put(source, strlen(source) + 1);
}

static void put_lines(const struct ch__sink_range *code, const struct ch__tool_lines *lines)
{
	size_t n = lines->count, name_bytes = n ? strlen(lines->file) + 1 : 0;
	struct debug_head head;
	size_t bytes = sizeof head + (n + 1) * (sizeof(struct debug_entry) + name_bytes);
	if (!n || bytes > UINT32_MAX) /* a record's length has 32 bits */
		return;
	head = (struct debug_head){prefix_of(DEBUG_INFO, bytes), code->exec, n + 1};
	put(&head, sizeof head);
	for (size_t i = 0; i < n; i++)
		put_line(ch__tool_line_exec(lines, i), lines->at[i].line, lines->file);
	put_line(code->exec + code->bytes, lines->at[n - 1].line, lines->file);
}

static void put_unwinding(const struct ch__sink_range *code, const struct ch__frame_shape *shape)
{
	struct cie cie = {
		.version = 1,
		.letters = "zR",
		.code_align = CH_ARCH_DWARF_CODE_ALIGN,
		.data_align = CH_ARCH_DWARF_DATA_ALIGN & 0x7f, /* SLEB128 of a small number */
		.return_register = CH_ARCH_DWARF_RETURN,
		.data_bytes = 1,
		.encoding = PCREL_SDATA4,
	};
	struct fde fde = {.bytes = (uint32_t)code->bytes};
	size_t n = shape->fde_bytes;
	memcpy(cie.program, shape->cfi, shape->bytes);
	memcpy(fde.program, shape->fde, n);
	/* For code without a shape the section is the end mark only. */
	uint32_t cie_bytes = shape->bytes ? CH_ROUND_UP(ENTRY_FIXED_BYTES + shape->bytes, 8) : 8;
	uint32_t fde_bytes = shape->bytes ? CH_ROUND_UP(ENTRY_FIXED_BYTES + n, 8) : 0;
	uint32_t section_bytes = cie_bytes + fde_bytes;
	cie.length = shape->bytes ? cie_bytes - sizeof cie.length : 0;
	fde.length = fde_bytes - sizeof fde.length;
	fde.cie = cie_bytes + offsetof(struct fde, cie);
	/* The section begins behind the code, at the next 8 bytes. */
	fde.start = 0 - (CH_ROUND_UP(code->bytes, 8) + cie_bytes + offsetof(struct fde, start));
	struct unwinding_hdr hdr = {1, PCREL_SDATA4, OMIT, OMIT, 0 - (section_bytes + 4), {0}};
	struct unwinding_head head = {
		prefix_of(UNWINDING_INFO, sizeof head + section_bytes + sizeof hdr),
		section_bytes + HDR_BYTES,
		HDR_BYTES,
		0,
	};
	put(&head, sizeof head);
	put(&cie, cie_bytes);
	put(&fde, fde_bytes);
	put(&hdr, sizeof hdr);
}

static void close_file(void) CH_HAS_FILE
{
	if (file.marker)
		ch__os_unmap(file.marker, ch__os_page_bytes());
	file.marker = NULL;
	ch__tool_close(&tool);
}

static void forget_file(void)
{
	close_file();
	ch__tool_forget(&tool);
}

/* The header comes before the marker: a tool that sees the mapping may read at once. */
static bool begin_file(void) CH_HAS_FILE
{
	take_time();
	struct file_head head = {.magic = MAGIC,
				 .version = VERSION,
				 .bytes = sizeof head,
				 .machine = CH_ARCH_ELF_MACHINE,
				 .process = (uint32_t)tool.process,
				 .now_ns = file.now_ns};
	put(&head, sizeof head);
	if (ch__tool_flush(&tool) && !(file.marker = ch__os_file_marker(tool.file.fd)))
		tool.error = errno;
	if (tool.error)
		ch__os_file_remove(tool.path);
	return !tool.error;
}

static int open_jitdump(const struct ch__sinks_config *config, void **state) CH_HAS_FILE
{
	struct ch__tool_user *user = ch__tool_state(config, state, sizeof *user);
	if (!user)
		return ENOMEM;
	if (tool.file.fd >= 0 && !ch__os_file_is_at(tool.file.fd, tool.path))
		ch__tool_fail(&tool, errno);
	if (tool.file.fd < 0) {
		const char *folder = config->jitdump_dir;
		if (!folder || !*folder)
			folder = ch__os_environment("JITDUMPDIR");
		if (!ch__tool_start(&tool, folder) || !begin_file()) {
			forget_file();
			return tool.error;
		}
	}
	ch__tool_join(&tool, user);
	return 0;
}

static void flush_jitdump(void *state, enum ch__flush how) CH_HAS_FILE
{
	(void)state, (void)how;
	(void)ch__tool_write(&tool);
}

/* The caller has removed every range before. */
static void close_jitdump(void *state, int error) CH_HAS_FILE
{
	if (ch__tool_write(&tool))
		ch__tool_leave(&tool, state, error);
}

static void add_ranges(void *state, const struct ch__sink_range *ranges, size_t n, bool is_late)
	CH_HAS_FILE
{
	static const struct ch__frame_shape none;
	const struct ch__sinks_config *config = ((struct ch__tool_user *)state)->config;
	char name[CH__TOOL_NAME_BYTES];
	(void)is_late;
	take_time();
	for (const struct ch__sink_range *range = ranges; range < ranges + n; range++) {
		uint8_t frame = ch__sink_frame_at(config, range->exec);
		ch__tool_name(config, range->exec, range->key, name);
		struct ch__tool_lines lines = ch__tool_lines(config, range);
		put_lines(range, &lines);
		bool has_rules = frame && frame - 1 != CH_FRAME_STEPS;
		put_unwinding(range, has_rules ? &config->shapes[frame - 1] : &none);
		put_load(range, name);
	}
	if (!ch__tool_flush(&tool))
		ch__tool_fail(&tool, tool.error);
}

static void remove_ranges(void *state, const struct ch__sink_range *ranges, size_t n) CH_HAS_FILE
{
	(void)state;
	take_time();
	for (size_t i = 0; i < n; i++)
		put_load(&ranges[i], "[freed]");
}

/* The old file and the bytes in the buffer belong to the parent. Each heap of the child tells of
 * live code when its code is back. */
static void resume_child(void) CH_HAS_FILE
{
	/* With every heap's sink off, a file would name nothing. Users have a file. */
	if (!tool.users) {
		forget_file();
		return;
	}
	close_file();
	if (!ch__tool_create(&tool) || !begin_file())
		ch__tool_fail(&tool, tool.error);
}

const struct ch__sink_ops ch__sink_jitdump = {
	.name = "jitdump",
	.bit = CH_SINK_JITDUMP,
	.knows_time = true,
	.tool = &tool,
	.open = open_jitdump,
	.close = close_jitdump,
	.add = add_ranges,
	.remove = remove_ranges,
	.flush = flush_jitdump,
	.fork_child = resume_child,
};
