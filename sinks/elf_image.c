/* SPDX-License-Identifier: MIT
 * elf_image.c: writes an ELF file in memory that shows code to a debugger: symbols with sizes, call
 * frames, and source lines of blocks that have some. It registers nothing, keeps nothing and takes
 * no lock: everything comes from the input, and the memory is mapped.
 *
 *   [ELF header] [.eh_frame] [.symtab] [.debug_line] [.debug_info] [.debug_abbrev] [.strtab]
 *   [section headers]
 *
 * Each run of ranges with nothing but heads between has a .text without contents. A debugger looks
 * for a symbol only in the file whose section holds the pc, and several files may show code of one
 * page: so a section covers no range of another file. A range has the frame of its page, or the
 * frame that the block brought. Pcs are absolute. A range with lines is a compilation unit of its
 * own, with one file and one function. A range whose name GDB would show as another language's is
 * such a unit without a file. Everything is written twice, and names and lines are asked for twice:
 * the first time there is no memory, and bytes are counted.
 * Sources: System V ABI (ELF); LSB Core 5.0, 10.6 (.eh_frame); DWARF 4, 6.2 and 7.5. */
#include "sinks/elf_image.h"

#include <elf.h>

_Static_assert(sizeof(uintptr_t) == 8 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	       "the image is ELF64, little endian");

/* In the order of the file, behind the header. */
enum part_kind { FRAMES, SYMBOLS, LINES, INFO, ABBREVIATIONS, STRINGS, SECTIONS, PARTS };
enum { ALIGN = 16 }; /* of each part */

struct part {
	uint8_t *at; /* NULL: bytes are counted */
	size_t used, room;
};

struct image {
	const struct ch__elf_input *in;
	uint8_t *base;
	struct part part[PARTS];
	size_t cies[CH__FRAMES]; /* of each shape in use, + 1; 0: not written */
};

/* The strings begin so, before the names of symbols and of the other sections. */
static const char first_strings[] = "\0.text";
enum { NAME_TEXT = 1 };

/* GDB decodes a symbol without a language as Ada or Objective-C if the name looks like one of their
 * encodings, and shows something else. Names with a space, or with a capital that Ada's encodings
 * do not use, are never decoded: so names of C++ (_Z) and Rust (_R) stay for GDB's own readers. */
static bool is_taken_apart(const char *name)
{
	if (name[0] == '_' && name[1] >= 'a') /* _ada_, _i_ */
		return true;
	return !strpbrk(name, " ACDFGHIJLMPQRSVYZ") &&
	       (strpbrk(name, ".$BENOUWX") || strstr(name, "__"));
}

static void put(struct part *p, const void *bytes, size_t n)
{
	if (p->at && n <= p->room && p->used <= p->room - n)
		memcpy(p->at + p->used, bytes, n);
	p->used += n;
}

/* The low bytes of the number. */
static void put_number(struct part *p, uint64_t number, size_t bytes)
{
	put(p, &number, bytes);
}

static void put_text(struct part *p, const char *text)
{
	put(p, text, strlen(text) + 1);
}

static void put_signed(struct part *p, int64_t value)
{
	while (value < -0x40 || value >= 0x40) {
		put_number(p, (unsigned)(value & 0x7f) | 0x80, 1);
		value >>= 7;
	}
	put_number(p, (unsigned)value & 0x7f, 1);
}

/* Leaves room for a word that counts the bytes from the returned place on. */
static size_t open_length(struct part *p)
{
	put_number(p, 0, 4);
	return p->used;
}

static void close_length(struct part *p, size_t from)
{
	size_t used = p->used;
	p->used = from - sizeof(uint32_t);
	put_number(p, (uint32_t)(used - from), 4);
	p->used = used;
}

static void close_record(struct part *p, size_t from)
{
	while ((p->used - from) % 8 != 4)
		put_number(p, 0, 1); /* DW_CFA_nop */
	close_length(p, from);
}

static void put_fde(struct part *p, size_t cie, uint64_t low, uint64_t bytes,
		    const uint8_t *program, size_t program_bytes)
{
	size_t record = p->used + sizeof(uint32_t); /* behind the length, which comes last */
	struct {
		uint32_t length, cie;
		uint64_t low, bytes;
	} head = {0, (uint32_t)(record - cie), low, bytes};
	put(p, &head, sizeof head);
	put(p, program, program_bytes);
	close_record(p, record);
}

/* A block's own frames, with absolute pcs, and no personality and LSDA, of no use to a debugger. */
static void put_own(struct image *m, const struct ch__elf_range *range)
{
	const struct ch__sinks_config *config = m->in->config;
	const uint8_t *section = NULL;
	struct part *p = &m->part[FRAMES];
	struct ch__eh_frame_fde fde;
	if (config->section && !range->is_cold) /* once a block */
		section = config->section(config->context, range->key);
	for (size_t at = 0; section && ch__eh_frame_next(section, &at, &fde);) {
		size_t cie = p->used, record = open_length(p);
		put_number(p, (uint64_t)fde.version << 32, 6); /* id, version, no letters */
		put(p, fde.facts, fde.facts_bytes);
		put(p, fde.initial, fde.initial_bytes);
		close_record(p, record);
		put_fde(p, cie, fde.low, fde.bytes, fde.program, fde.program_bytes);
	}
}

static void put_frame(struct image *m, const struct ch__elf_range *range)
{
	struct part *p = &m->part[FRAMES];
	uintptr_t low = m->in->base + range->offset;
	uint8_t frame = ch__sink_frame_at(m->in->config, low);
	if (!frame) {
		put_own(m, range);
		return;
	}
	const struct ch__frame_shape *shapes = m->in->config->shapes, *shape = &shapes[--frame];
	if (!m->cies[frame]) {
		uint8_t cie[CH__CIE_MOST_BYTES] = {0};
		size_t bytes = ch__eh_frame_cie(cie, shapes, frame);
		m->cies[frame] = p->used + 1;
		put(p, cie, bytes);
	}
	put_fde(p, m->cies[frame] - 1, low, range->bytes, shape->fde, shape->fde_bytes);
}

enum { /* DWARF 4: figures 34 and 37, section 7.5 */
       LNS_COPY = 1,
       LNS_ADVANCE_PC = 2,
       LNS_ADVANCE_LINE = 3,
       LNE_END_SEQUENCE = 1,
       LNE_SET_ADDRESS = 2,
       TAG_COMPILE_UNIT = 0x11,
       TAG_SUBPROGRAM = 0x2e,
       AT_NAME = 0x03,
       AT_STMT_LIST = 0x10,
       AT_LOW_PC = 0x11,
       AT_HIGH_PC = 0x12,
       AT_LANGUAGE = 0x13,
       AT_EXTERNAL = 0x3f,
       FORM_ADDR = 0x01,
       FORM_DATA8 = 0x07,
       FORM_STRING = 0x08,
       FORM_DATA1 = 0x0b,
       FORM_SEC_OFFSET = 0x17,
       FORM_FLAG_PRESENT = 0x19,
       LANG_C99 = 0x0c, /* names are not taken apart */
};

enum { UNIT_OF_LINES = 1, FUNCTION, UNIT_OF_A_NAME };

/* A number, a tag, whether there are children, then attributes with forms. */
static const uint8_t abbreviations[] = {
	UNIT_OF_LINES, TAG_COMPILE_UNIT, 1,
	AT_LANGUAGE, FORM_DATA1,
	AT_NAME, FORM_STRING,
	AT_STMT_LIST, FORM_SEC_OFFSET,
	AT_LOW_PC, FORM_ADDR,
	AT_HIGH_PC, FORM_DATA8,
	0, 0,
	FUNCTION, TAG_SUBPROGRAM, 0,
	AT_NAME, FORM_STRING,
	AT_EXTERNAL, FORM_FLAG_PRESENT,
	AT_LOW_PC, FORM_ADDR,
	AT_HIGH_PC, FORM_DATA8,
	0, 0,
	UNIT_OF_A_NAME, TAG_COMPILE_UNIT, 1,
	AT_LANGUAGE, FORM_DATA1,
	AT_LOW_PC, FORM_ADDR,
	AT_HIGH_PC, FORM_DATA8,
	0, 0,
	0,
};

static void put_rows(struct part *p, const struct ch__tool_lines *lines, uintptr_t high)
{
	uintptr_t pc = ch__tool_line_exec(lines, 0);
	int64_t line = 1;
	put(p, ((const uint8_t[]){0, 9, LNE_SET_ADDRESS}), 3);
	put_number(p, pc, 8);
	for (size_t i = 0; i < lines->count; i++) {
		uintptr_t next = ch__tool_line_exec(lines, i);
		if (next != pc) {
			put_number(p, LNS_ADVANCE_PC, 1);
			put_signed(p, (int64_t)(next - pc)); /* unsigned, but not below 0 */
		}
		put_number(p, LNS_ADVANCE_LINE, 1);
		put_signed(p, (int64_t)lines->at[i].line - line);
		put_number(p, LNS_COPY, 1);
		pc = next;
		line = lines->at[i].line;
	}
	put_number(p, LNS_ADVANCE_PC, 1);
	put_signed(p, (int64_t)(high - pc));
	put(p, ((const uint8_t[]){0, 1, LNE_END_SEQUENCE}), 3);
}

/* file: NULL for a unit without lines. */
static void put_unit(struct image *m, const char *name, const char *file, size_t line_at,
		     uintptr_t low, uintptr_t high)
{
	struct part *p = &m->part[INFO];
	size_t unit = open_length(p);
	put_number(p, 4, 6); /* version, 2 bytes; then the abbreviations, at 0 */
	put_number(p, sizeof(uintptr_t), 1);
	put_number(p, file ? UNIT_OF_LINES : UNIT_OF_A_NAME, 1);
	put_number(p, LANG_C99, 1);
	if (file) {
		put_text(p, file);
		put_number(p, (uint32_t)line_at, 4);
	}
	put_number(p, low, 8);
	put_number(p, high - low, 8);
	put_number(p, FUNCTION, 1);
	put_text(p, name);
	put_number(p, low, 8);
	put_number(p, high - low, 8);
	put_number(p, 0, 1);
	close_length(p, unit);
}

static bool put_lines(struct image *m, const struct ch__elf_range *range, const char *name,
		      uintptr_t low, uintptr_t high)
{
	static const uint8_t facts[] = {
		1, /* bytes of the smallest instruction */
		1, /* operations an instruction */
		1, /* rows begin statements */
		0xfb, 14, /* line base -5, range 14: of opcodes that are not used */
		13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, /* opcodes + 1, the operands of each */
		0, /* no folders */
	};
	struct part *p = &m->part[LINES];
	struct ch__sink_range code = {low, high - low, range->key, range->is_cold};
	struct ch__tool_lines lines = ch__tool_lines(m->in->config, &code);
	if (!lines.count)
		return false;
	size_t unit = p->used, length = open_length(p);
	put_number(p, 4, 2); /* version */
	size_t header = open_length(p);
	put(p, facts, sizeof facts);
	put_text(p, lines.file);
	put(p, "\0\0\0\0", 4); /* folder, time and bytes of the file; no more files */
	close_length(p, header);
	put_rows(p, &lines, high);
	close_length(p, length);
	put_unit(m, name, lines.file, unit, low, high);
	return true;
}

static uint32_t sections_of(const struct image *m)
{
	return (uint32_t)(m->part[SECTIONS].used / sizeof(Elf64_Shdr));
}

static void put_section(struct image *m, Elf64_Shdr section)
{
	put(&m->part[SECTIONS], &section, sizeof section);
}

/* text: the section of the run before; then that of the range. */
static void put_range(struct image *m, const struct ch__elf_range *range, Elf64_Shdr *text)
{
	static const char cold[] = " [cold]";
	char name[CH__TOOL_NAME_BYTES + sizeof cold];
	uintptr_t low = m->in->base + range->offset, high = low + range->bytes;
	size_t n = ch__tool_name(m->in->config, low, range->key, name);
	if (low - (text->sh_addr + text->sh_size) > m->in->config->head_bytes) {
		put_section(m, *text);
		*text = (Elf64_Shdr){
			.sh_name = NAME_TEXT,
			.sh_type = SHT_NOBITS,
			.sh_flags = SHF_ALLOC | SHF_EXECINSTR,
			.sh_addr = low,
			.sh_addralign = 1,
		};
	}
	text->sh_size = high - text->sh_addr;
	if (range->is_cold) {
		memcpy(name + n, cold, sizeof cold);
		n += sizeof cold - 1;
	}
	Elf64_Sym symbol = {
		.st_name = (Elf64_Word)m->part[STRINGS].used,
		.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
		.st_shndx = (Elf64_Half)sections_of(m), /* the run's, put at the run's end */
		.st_value = low,
		.st_size = range->bytes,
	};
	put(&m->part[SYMBOLS], &symbol, sizeof symbol);
	put(&m->part[STRINGS], name, n + 1);
	if (m->base && !m->part[INFO].room) /* no unit was counted */
		return;
	if (!put_lines(m, range, name, low, high) && is_taken_apart(name))
		put_unit(m, name, NULL, 0, low, high);
}

static void put_ranges(struct image *m)
{
	static const Elf64_Sym no_symbol;
	const struct ch__elf_input *in = m->in;
	Elf64_Shdr text = {0}; /* the null section, far from any code, then one for each run */
	put(&m->part[STRINGS], first_strings, sizeof first_strings);
	put(&m->part[SYMBOLS], &no_symbol, sizeof no_symbol);
	for (uint32_t i = 0; i < in->page_count; i++) {
		for (uint32_t k = 0; k < in->pages[i].count; k++) {
			const struct ch__elf_range *range = &in->pages[i].ranges[k];
			if (range->image != in->image)
				continue;
			put_frame(m, range);
			put_range(m, range, &text);
		}
	}
	put_number(&m->part[FRAMES], 0, 4);
	put_section(m, text);
}

static Elf64_Shdr section_of(struct image *m, const char *name, uint32_t type, enum part_kind kind)
{
	const struct part *p = &m->part[kind];
	size_t name_at = m->part[STRINGS].used;
	put_text(&m->part[STRINGS], name);
	return (Elf64_Shdr){
		.sh_name = (uint32_t)name_at,
		.sh_type = type,
		.sh_offset = (uintptr_t)p->at - (uintptr_t)m->base,
		.sh_size = p->room,
		.sh_addralign = 1,
	};
}

static void put_all(struct image *m)
{
	memset(m->cies, 0, sizeof m->cies);
	put_ranges(m);
	Elf64_Shdr symbols = section_of(m, ".symtab", SHT_SYMTAB, SYMBOLS);
	put_section(m, section_of(m, ".eh_frame", SHT_PROGBITS, FRAMES));
	if (m->part[LINES].used)
		put_section(m, section_of(m, ".debug_line", SHT_PROGBITS, LINES));
	if (m->part[INFO].used) {
		put(&m->part[ABBREVIATIONS], abbreviations, sizeof abbreviations);
		put_section(m, section_of(m, ".debug_info", SHT_PROGBITS, INFO));
		put_section(m, section_of(m, ".debug_abbrev", SHT_PROGBITS, ABBREVIATIONS));
	}
	symbols.sh_link = sections_of(m) + 1; /* the section of strings, which is the last */
	symbols.sh_info = 1; /* the first that is global */
	symbols.sh_entsize = sizeof(Elf64_Sym);
	symbols.sh_addralign = 8;
	put_section(m, symbols);
	put_section(m, section_of(m, ".strtab", SHT_STRTAB, STRINGS));
}

uint8_t *ch__elf_image_make(const struct ch__elf_input *in, size_t head_bytes, size_t *bytes)
{
	struct image m = {.in = in};
	put_all(&m);
	*bytes = head_bytes + CH_ROUND_UP(sizeof(Elf64_Ehdr), ALIGN);
	for (unsigned i = 0; i < PARTS; i++)
		*bytes += CH_ROUND_UP(m.part[i].used, ALIGN);
	/* a section's number has 16 bits */
	uint8_t *memory = sections_of(&m) < SHN_LORESERVE ? ch__os_private(*bytes) : NULL;
	if (!memory)
		return NULL;
	m.base = memory + head_bytes;
	uint8_t *at = m.base + CH_ROUND_UP(sizeof(Elf64_Ehdr), ALIGN);
	for (unsigned i = 0; i < PARTS; i++) {
		m.part[i] = (struct part){.at = at, .room = m.part[i].used};
		at += CH_ROUND_UP(m.part[i].room, ALIGN);
	}
	put_all(&m);
	Elf64_Ehdr header = {
		.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT,
			    ELFOSABI_NONE},
		.e_type = ET_EXEC, /* addresses are absolute */
		.e_machine = CH_ARCH_ELF_MACHINE,
		.e_version = EV_CURRENT,
		.e_shoff = (Elf64_Off)(m.part[SECTIONS].at - m.base),
		.e_ehsize = sizeof header,
		.e_shentsize = sizeof(Elf64_Shdr),
		.e_shnum = (Elf64_Half)sections_of(&m),
		.e_shstrndx = (Elf64_Half)(sections_of(&m) - 1),
	};
	memcpy(m.base, &header, sizeof header);
	return memory;
}
