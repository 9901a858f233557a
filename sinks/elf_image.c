/* SPDX-License-Identifier: MIT
 * elf_image.c: writes an ELF file in memory that shows code to a debugger: symbols with sizes, call
 * frames, and where blocks have them, source lines. It registers nothing, keeps nothing and takes
 * no lock: all it needs is in its input, and its memory is mapped.
 *
 *   [ELF header] [.eh_frame] [.symtab] [.debug_line] [.debug_info] [.debug_abbrev] [.strtab]
 *   [.shstrtab] [section headers]
 *
 * There is a .text, without contents, for each run of ranges that follow each other without a gap.
 * A debugger looks for a symbol only in the file whose section holds the pc, and several files may
 * show code of one page: so a section covers what its file shows and no byte more. A symbol begins
 * behind the range's head: a breakpoint is set there, and would destroy what is not code. A range
 * has a frame, of its page or as the block brought it. Pcs are absolute. A range with lines
 * is a compilation unit of its own, which has one file and one function. So is, without a file, a
 * range whose name GDB would show as another language's. The debug sections are measured by what
 * their contents may need at most and then cut to what they did; names are asked for twice.
 * Sources: System V ABI (ELF); LSB Core 5.0, 10.6 (.eh_frame); DWARF 4, 6.2 and 7.5. */
#include "sinks/elf_image.h"

#include "arch/arch.h"

#include <elf.h>
#include <string.h>

_Static_assert(sizeof(uintptr_t) == 8 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	       "the image is ELF64, little endian");

enum {
	NAME_BYTES = 512,
	FDE_BYTES = 24,
	FDE_SLOT_BYTES = FDE_BYTES + CH__FRAME_FDE_BYTES,
	INFO_BYTES = 64, /* of a unit and its function, without names */
	LINE_BYTES = 96, /* of a unit's line header and program, without file and rows */
	ROW_BYTES = 13,  /* advance_pc, advance_line, copy */
	TEXTS_MOST = SHN_LORESERVE - 16, /* the others are fewer; a section's number has 16 bits */
};

/* How much of everything there is. */
struct sizes {
	uint32_t texts, fdes, slot_fdes, symbols, frames; /* frames: a bit for each shape in use */
	size_t own;                                       /* bytes of frames that blocks brought */
	size_t names, info, line;
	size_t lines_at_once; /* of the range that has most */
};

struct image {
	const struct ch__elf_input *in;
	struct sizes sizes;
	uint8_t *base;
	Elf64_Shdr *sections;
	uint32_t section_count;
	struct ch__sink_line *lines; /* room for lines_at_once */
	/* Where the next of each goes. */
	uint8_t *frame, *symbol, *line, *info, *name, *name_end;
};

static const char section_names[] = "\0.text\0.eh_frame\0.symtab\0.strtab\0.shstrtab\0"
				    ".debug_line\0.debug_info\0.debug_abbrev";
enum {
	NAME_TEXT = 1,
	NAME_EH_FRAME = 7,
	NAME_SYMTAB = 17,
	NAME_STRTAB = 25,
	NAME_SHSTRTAB = 33,
	NAME_LINE = 43,
	NAME_INFO = 55,
	NAME_ABBREV = 67
};

/* --- ranges of the input --- */
struct cursor {
	const struct ch__elf_page *page; /* of the range that came last */
	uint32_t page_at, range_at;
};

static const struct ch__elf_range *next_range(const struct ch__elf_input *in, struct cursor *c)
{
	for (; c->page_at < in->page_count; c->page_at++, c->range_at = 0) {
		c->page = &in->pages[c->page_at];
		while (c->range_at < c->page->count) {
			const struct ch__elf_range *range = &c->page->ranges[c->range_at++];
			if (range->image == in->image)
				return range;
		}
	}
	return NULL;
}

/* The section that a block brought is told of the page that the block begins in. */
static const uint8_t *own_of(const struct ch__elf_page *page, const struct ch__elf_range *range)
{
	return range == page->ranges ? page->own : NULL;
}

static bool has_slots(const struct ch__elf_input *in, const struct ch__elf_page *page)
{
	return page->frame && in->shapes[page->frame - 1].slot_bytes != 0;
}

/* What of a range is code. */
static void code_of(const struct ch__elf_input *in, const struct ch__elf_page *page,
		    const struct ch__elf_range *range, uintptr_t *low, uintptr_t *high)
{
	size_t head = in->name ? 0 : in->config->head_bytes;
	*low = in->base + range->offset + (head < range->bytes ? head : 0);
	*high = in->base + range->offset + range->bytes;
	if (has_slots(in, page)) {
		*low = in->base + range->offset + in->shapes[page->frame - 1].code_at;
		*high = *low + in->shapes[page->frame - 1].code_bytes;
	}
}

/* Returns the length, less than `bytes`. */
static size_t write_name(const struct ch__elf_input *in, const struct ch__elf_range *range,
			 char *to, size_t bytes)
{
	static const char cold[] = " [cold]";
	size_t room = bytes - 1 - (range->is_cold ? sizeof cold - 1 : 0);
	size_t n = in->name ? strlen(in->name) : 0;
	if (in->name)
		memcpy(to, in->name, n);
	else
		n = in->config->name(in->config->context, range->key, to, room + 1);
	if (n > room)
		n = room;
	if (range->is_cold) {
		memcpy(to + n, cold, sizeof cold - 1);
		n += sizeof cold - 1;
	}
	to[n] = 0;
	return n;
}

/* GDB shows a symbol of which it knows no language as Ada's decoded name, where that can be: dots
 * and double underlines become something else, in a name without capitals and spaces. */
static bool is_taken_apart(const char *name)
{
	bool has_marks = false;
	for (const char *c = name; *c; c++) {
		if (*c == ' ' || (*c >= 'A' && *c <= 'Z'))
			return false;
		has_marks |= *c == '.' || (*c == '_' && c[1] == '_');
	}
	return has_marks;
}

/* --- sizes --- */
static void measure_range(const struct ch__elf_input *in, const struct ch__elf_range *range,
			  struct sizes *s)
{
	char name[NAME_BYTES];
	const char *file = "";
	size_t n = write_name(in, range, name, sizeof name) + 1, lines = 0;
	s->symbols++;
	s->names += n;
	if (!in->name && in->config->lines)
		lines = in->config->lines(in->config->context, range->key, &file, NULL, 0);
	if (!lines) {
		s->info += !in->name && is_taken_apart(name) ? INFO_BYTES + n : 0;
		return;
	}
	/* The file's name is known with the first line only. */
	struct ch__sink_line first;
	in->config->lines(in->config->context, range->key, &file, &first, 1);
	s->info += INFO_BYTES + strlen(file) + 1 + n;
	s->line += LINE_BYTES + strlen(file) + 1 + lines * ROW_BYTES;
	if (lines > s->lines_at_once)
		s->lines_at_once = lines;
}

/* Of a FDE in a section of a block's own, with a CIE of its own. */
static size_t own_cie_bytes(const struct ch__eh_frame_fde *fde)
{
	return (10 + fde->facts_bytes + fde->initial_bytes + 7) & ~(size_t)7;
}

static size_t own_fde_bytes(const struct ch__eh_frame_fde *fde)
{
	return (FDE_BYTES + fde->program_bytes + 7) & ~(size_t)7;
}

static size_t measure_own(const uint8_t *section)
{
	struct ch__eh_frame_fde fde;
	size_t bytes = 0;
	for (size_t at = 0; ch__eh_frame_next(section, &at, &fde);)
		bytes += own_cie_bytes(&fde) + own_fde_bytes(&fde);
	return bytes;
}

static struct sizes measure(const struct ch__elf_input *in)
{
	struct sizes s = {.names = 1};
	struct cursor c = {0};
	const struct ch__elf_range *range;
	uint64_t run_end = UINT64_MAX;
	while ((range = next_range(in, &c))) {
		s.texts += range->offset != run_end;
		run_end = (uint64_t)range->offset + range->bytes;
		if (c.page->frame)
			s.frames |= UINT32_C(1) << (c.page->frame - 1);
		if (has_slots(in, c.page))
			s.slot_fdes++;
		else
			s.fdes += c.page->frame != 0;
		if (own_of(c.page, range))
			s.own += measure_own(c.page->own);
		measure_range(in, range, &s);
	}
	return s;
}

/* --- bytes --- */
static void put(uint8_t **at, const void *bytes, size_t n)
{
	memcpy(*at, bytes, n);
	*at += n;
}

static void put8(uint8_t **at, unsigned byte)
{
	*(*at)++ = (uint8_t)byte;
}

static void put16(uint8_t **at, uint16_t word)
{
	put(at, &word, sizeof word);
}

static void put32(uint8_t **at, uint32_t word)
{
	put(at, &word, sizeof word);
}

static void put64(uint8_t **at, uint64_t word)
{
	put(at, &word, sizeof word);
}

static void put_text(uint8_t **at, const char *text)
{
	put(at, text, strlen(text) + 1);
}

static void put_unsigned(uint8_t **at, uint32_t value)
{
	for (; value >= 0x80; value >>= 7)
		put8(at, value | 0x80);
	put8(at, value);
}

static void put_signed(uint8_t **at, int64_t value)
{
	while (value < -0x40 || value >= 0x40) {
		put8(at, (unsigned)(value & 0x7f) | 0x80);
		value >>= 7;
	}
	put8(at, (unsigned)value & 0x7f);
}

/* A word that counts the bytes behind it. */
static void close_length(uint8_t *length, const uint8_t *end)
{
	put32(&length, (uint32_t)(end - length - 4));
}

/* --- call frames --- */
static const uint8_t *put_cies(struct image *m, const uint8_t *cies[CH__FRAMES])
{
	for (unsigned frame = 0; frame < CH__FRAMES; frame++) {
		if (!(m->sizes.frames >> frame & 1))
			continue;
		cies[frame] = m->frame;
		ch__eh_frame_cie(m->frame, &m->in->shapes[frame]);
		m->frame += CH__CIE_BYTES;
	}
	return m->frame;
}

static void put_fde(struct image *m, const uint8_t *cie, uintptr_t low, size_t bytes,
		    const struct ch__frame_shape *slots)
{
	put32(&m->frame, (slots ? FDE_SLOT_BYTES : FDE_BYTES) - 4);
	put32(&m->frame, (uint32_t)(m->frame - cie));
	put64(&m->frame, low);
	put64(&m->frame, bytes);
	if (slots)
		put(&m->frame, slots->fde, sizeof slots->fde);
}

static void pad_to(struct image *m, const uint8_t *record, size_t bytes)
{
	memset(m->frame, 0, (size_t)(record + bytes - m->frame)); /* DW_CFA_nop */
	m->frame = (uint8_t *)(uintptr_t)record + bytes;
}

/* A block's own frames, without what a debugger has no use for: pcs become absolute, personality
 * and LSDA go. */
static void put_own(struct image *m, const uint8_t *section)
{
	struct ch__eh_frame_fde fde;
	for (size_t at = 0; ch__eh_frame_next(section, &at, &fde);) {
		const uint8_t *cie = m->frame;
		put32(&m->frame, (uint32_t)own_cie_bytes(&fde) - 4);
		put32(&m->frame, 0);
		put8(&m->frame, fde.version);
		put8(&m->frame, 0);
		put(&m->frame, fde.facts, fde.facts_bytes);
		put(&m->frame, fde.initial, fde.initial_bytes);
		pad_to(m, cie, own_cie_bytes(&fde));
		const uint8_t *record = m->frame;
		put32(&m->frame, (uint32_t)own_fde_bytes(&fde) - 4);
		put32(&m->frame, (uint32_t)(m->frame - cie));
		put64(&m->frame, fde.low);
		put64(&m->frame, fde.bytes);
		put(&m->frame, fde.program, fde.program_bytes);
		pad_to(m, record, own_fde_bytes(&fde));
	}
}

static void put_frames(struct image *m)
{
	const uint8_t *cies[CH__FRAMES];
	struct cursor c = {0};
	const struct ch__elf_range *range;
	put_cies(m, cies);
	while ((range = next_range(m->in, &c))) {
		if (own_of(c.page, range))
			put_own(m, c.page->own);
		if (!c.page->frame)
			continue;
		const struct ch__frame_shape *slots =
			has_slots(m->in, c.page) ? &m->in->shapes[c.page->frame - 1] : NULL;
		uintptr_t low = m->in->base + range->offset, high = low + range->bytes;
		if (slots)
			code_of(m->in, c.page, range, &low, &high);
		put_fde(m, cies[c.page->frame - 1], low, high - low, slots);
	}
	put32(&m->frame, 0);
}

/* --- source lines --- */
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

static const uint8_t abbreviations[] = {
	UNIT_OF_LINES,
	TAG_COMPILE_UNIT,
	1,
	AT_LANGUAGE,
	FORM_DATA1,
	AT_NAME,
	FORM_STRING,
	AT_STMT_LIST,
	FORM_SEC_OFFSET,
	AT_LOW_PC,
	FORM_ADDR,
	AT_HIGH_PC,
	FORM_DATA8,
	0,
	0,
	FUNCTION,
	TAG_SUBPROGRAM,
	0,
	AT_NAME,
	FORM_STRING,
	AT_EXTERNAL,
	FORM_FLAG_PRESENT,
	AT_LOW_PC,
	FORM_ADDR,
	AT_HIGH_PC,
	FORM_DATA8,
	0,
	0,
	UNIT_OF_A_NAME,
	TAG_COMPILE_UNIT,
	1,
	AT_LANGUAGE,
	FORM_DATA1,
	AT_LOW_PC,
	FORM_ADDR,
	AT_HIGH_PC,
	FORM_DATA8,
	0,
	0,
	0,
};

static void put_line_header(uint8_t **at, const char *file)
{
	static const uint8_t operands[] = {0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1};
	put16(at, 4); /* version */
	uint8_t *header = *at;
	put32(at, 0);
	put8(at, 1);    /* bytes of the smallest instruction */
	put8(at, 1);    /* operations an instruction */
	put8(at, 1);    /* rows begin statements */
	put8(at, 0xfb); /* line base -5, range 14: of opcodes that are not used */
	put8(at, 14);
	put8(at, sizeof operands + 1);
	put(at, operands, sizeof operands);
	put8(at, 0); /* no folders */
	put_text(at, file);
	put(at, "\0\0\0\0", 4); /* folder, time and bytes of the file; no more files */
	close_length(header, *at);
}

static void put_rows(uint8_t **at, const struct ch__sink_line *lines, size_t n, uintptr_t high)
{
	uintptr_t pc = lines[0].exec;
	int64_t line = 1;
	put8(at, 0);
	put_unsigned(at, 9);
	put8(at, LNE_SET_ADDRESS);
	put64(at, pc);
	for (size_t i = 0; i < n; i++) {
		if (lines[i].exec != pc) {
			put8(at, LNS_ADVANCE_PC);
			put_unsigned(at, (uint32_t)(lines[i].exec - pc));
		}
		put8(at, LNS_ADVANCE_LINE);
		put_signed(at, (int64_t)lines[i].line - line);
		put8(at, LNS_COPY);
		pc = lines[i].exec;
		line = lines[i].line;
	}
	put8(at, LNS_ADVANCE_PC);
	put_unsigned(at, (uint32_t)(high - pc));
	put(at, ((const uint8_t[]){0, 1, LNE_END_SEQUENCE}), 3);
}

/* Without a file there are no lines either. */
static void put_unit(struct image *m, const char *name, const char *file, uint32_t line_at,
		     uintptr_t low, uintptr_t high)
{
	uint8_t *unit = m->info;
	put32(&m->info, 0);
	put16(&m->info, 4); /* version */
	put32(&m->info, 0); /* the abbreviations */
	put8(&m->info, sizeof(uintptr_t));
	put8(&m->info, file ? UNIT_OF_LINES : UNIT_OF_A_NAME);
	put8(&m->info, LANG_C99);
	if (file) {
		put_text(&m->info, file);
		put32(&m->info, line_at);
	}
	put64(&m->info, low);
	put64(&m->info, high - low);
	put8(&m->info, FUNCTION);
	put_text(&m->info, name);
	put64(&m->info, low);
	put64(&m->info, high - low);
	put8(&m->info, 0);
	close_length(unit, m->info);
}

/* Of a block's lines, those of this range; false if there are none. */
static bool put_lines(struct image *m, uint64_t key, const char *name, const uint8_t *line_section,
		      uintptr_t low, uintptr_t high)
{
	const struct ch__sinks_config *config = m->in->config;
	const char *file = "";
	size_t n = config->lines(config->context, key, &file, m->lines, m->sizes.lines_at_once);
	size_t first = 0, last;
	while (first < n && m->lines[first].exec < low)
		first++;
	for (last = first; last < n && m->lines[last].exec < high; last++)
		continue;
	if (first == last)
		return false;
	uint8_t *unit = m->line;
	put32(&m->line, 0);
	put_line_header(&m->line, file);
	put_rows(&m->line, m->lines + first, last - first, high);
	close_length(unit, m->line);
	put_unit(m, name, file, (uint32_t)(unit - line_section), low, high);
	return true;
}

/* --- symbols --- */
static void put_range(struct image *m, const struct ch__elf_page *page,
		      const struct ch__elf_range *range, const uint8_t *names,
		      const uint8_t *line_section)
{
	size_t room = (size_t)(m->name_end - m->name);
	const char *name = (const char *)m->name;
	uintptr_t low, high;
	code_of(m->in, page, range, &low, &high);
	Elf64_Sym symbol = {
		.st_name = (Elf64_Word)(m->name - names),
		.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
		.st_shndx = (Elf64_Half)(m->section_count - 1), /* the run that was begun last */
		.st_value = low,
		.st_size = high - low,
	};
	put(&m->symbol, &symbol, sizeof symbol);
	m->name +=
		write_name(m->in, range, (char *)m->name, room < NAME_BYTES ? room : NAME_BYTES) +
		1;
	bool has_lines = m->lines && put_lines(m, range->key, name, line_section, low, high);
	if (!has_lines && !m->in->name && is_taken_apart(name))
		put_unit(m, name, NULL, 0, low, high);
}

static Elf64_Shdr *add_section(struct image *m, uint32_t name, uint32_t type, const uint8_t *from,
			       const uint8_t *to)
{
	Elf64_Shdr *section = &m->sections[m->section_count++];
	*section = (Elf64_Shdr){
		.sh_name = name,
		.sh_type = type,
		.sh_offset = (Elf64_Off)(from - m->base),
		.sh_size = (Elf64_Xword)(to - from),
		.sh_addralign = 1,
	};
	return section;
}

static void put_ranges(struct image *m, const uint8_t *names, const uint8_t *line_section)
{
	struct cursor c = {0};
	const struct ch__elf_range *range;
	Elf64_Shdr *text = NULL;
	put8(&m->name, 0);
	m->symbol += sizeof(Elf64_Sym); /* the first is none */
	while ((range = next_range(m->in, &c))) {
		uintptr_t low = m->in->base + range->offset;
		if (!text || text->sh_addr + text->sh_size != low) {
			text = add_section(m, NAME_TEXT, SHT_NOBITS, m->base, m->base);
			text->sh_flags = SHF_ALLOC | SHF_EXECINSTR;
			text->sh_addr = low;
		}
		text->sh_size += range->bytes;
		put_range(m, c.page, range, names, line_section);
	}
}

/* --- the file --- */
static size_t round_up(size_t bytes)
{
	return (bytes + 15) & ~(size_t)15;
}

/* Offsets of the parts from the image's base, and the bytes of the whole. */
struct layout {
	size_t frame, symbol, line, info, abbrev, name, section_name, sections, end;
};

static struct layout lay_out(const struct sizes *s)
{
	struct layout l = {.frame = sizeof(Elf64_Ehdr)};
	size_t cies = (size_t)__builtin_popcount(s->frames) * CH__CIE_BYTES;
	bool has_units = s->info != 0;
	l.symbol = round_up(l.frame + cies + (size_t)s->fdes * FDE_BYTES +
			    (size_t)s->slot_fdes * FDE_SLOT_BYTES + s->own + 4);
	l.line = l.symbol + (s->symbols + 1) * sizeof(Elf64_Sym);
	l.info = l.line + s->line;
	l.abbrev = l.info + s->info;
	l.name = l.abbrev + (has_units ? sizeof abbreviations : 0);
	l.section_name = l.name + s->names;
	l.sections = round_up(l.section_name + sizeof section_names);
	l.end = l.sections + (5 + s->texts + (has_units ? 3 : 0)) * sizeof(Elf64_Shdr);
	return l;
}

static void put_sections(struct image *m, const struct layout *l)
{
	uint8_t *base = m->base;
	add_section(m, NAME_EH_FRAME, SHT_PROGBITS, base + l->frame, m->frame);
	uint32_t strings = m->section_count;
	add_section(m, NAME_STRTAB, SHT_STRTAB, base + l->name, m->name);
	Elf64_Shdr *symbols = add_section(m, NAME_SYMTAB, SHT_SYMTAB, base + l->symbol, m->symbol);
	symbols->sh_link = strings;
	symbols->sh_info = 1; /* the first that is global */
	symbols->sh_entsize = sizeof(Elf64_Sym);
	symbols->sh_addralign = 8;
	if (m->sizes.info) {
		memcpy(base + l->abbrev, abbreviations, sizeof abbreviations);
		if (m->lines)
			add_section(m, NAME_LINE, SHT_PROGBITS, base + l->line, m->line);
		add_section(m, NAME_INFO, SHT_PROGBITS, base + l->info, m->info);
		add_section(m, NAME_ABBREV, SHT_PROGBITS, base + l->abbrev,
			    base + l->abbrev + sizeof abbreviations);
	}
	memcpy(base + l->section_name, section_names, sizeof section_names);
	add_section(m, NAME_SHSTRTAB, SHT_STRTAB, base + l->section_name,
		    base + l->section_name + sizeof section_names);
}

static void put_header(const struct image *m, const struct layout *l)
{
	Elf64_Ehdr header = {
		.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT,
			    ELFOSABI_NONE},
		.e_type = ET_EXEC, /* addresses are what they say */
		.e_machine = CH_ARCH_ELF_MACHINE,
		.e_version = EV_CURRENT,
		.e_shoff = l->sections,
		.e_ehsize = sizeof header,
		.e_shentsize = sizeof(Elf64_Shdr),
		.e_shnum = (Elf64_Half)m->section_count,
		.e_shstrndx = (Elf64_Half)(m->section_count - 1),
	};
	memcpy(m->base, &header, sizeof header);
}

struct ch__elf_memory ch__elf_image_make(const struct ch__elf_input *in, size_t head_bytes)
{
	struct image m = {.in = in, .sizes = measure(in), .section_count = 1};
	struct layout l = lay_out(&m.sizes);
	size_t head = round_up(head_bytes);
	if (m.sizes.texts > TEXTS_MOST)
		return (struct ch__elf_memory){0};
	struct ch__elf_memory memory = {
		.bytes = head + l.end + m.sizes.lines_at_once * sizeof *m.lines,
		.image_bytes = l.end,
	};
	memory.at = ch__os_private(memory.bytes);
	if (!memory.at)
		return memory;
	memory.image = m.base = (uint8_t *)memory.at + head;
	m.sections = (Elf64_Shdr *)(void *)(m.base + l.sections);
	if (m.sizes.lines_at_once)
		m.lines = (struct ch__sink_line *)(void *)(m.base + l.end);
	m.frame = m.base + l.frame;
	m.symbol = m.base + l.symbol;
	m.line = m.base + l.line;
	m.info = m.base + l.info;
	m.name = m.base + l.name;
	m.name_end = m.base + l.section_name;
	put_frames(&m);
	put_ranges(&m, m.name, m.line);
	put_sections(&m, &l);
	put_header(&m, &l);
	return memory;
}
