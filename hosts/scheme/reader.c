/* SPDX-License-Identifier: MIT
 * reader.c: data from text, and the line of each pair for the compiler.
 */
#include <stdlib.h>

#include "vm.h"

/* ---- positions: an open table from pair to line ---- */

struct position_table {
	uint64_t header;
	int64_t count, capacity;
	struct {
		value datum;
		int64_t line;
	} *slots;
};

value make_positions(struct context *ctx)
{
	struct position_table *table = alloc_bytes(ctx, T_TABLE, sizeof *table);

	table->capacity = 64;
	table->slots = new_scanned((size_t)table->capacity * sizeof *table->slots);
	return (value)table;
}

static int64_t find_position(struct position_table *table, value datum)
{
	uint64_t at = (datum >> 4) * 0x9e3779b97f4a7c15u >> 20;

	for (;; at++) {
		int64_t i = (int64_t)(at & (uint64_t)(table->capacity - 1));
		if (!table->slots[i].datum || table->slots[i].datum == datum)
			return i;
	}
}

void note_position(struct context *ctx, value positions, value datum, int64_t line)
{
	(void)ctx;
	if (!is_type(positions, T_TABLE))
		return;
	struct position_table *table = (struct position_table *)positions;
	if (table->count * 2 >= table->capacity) {
		struct position_table old = *table;
		table->slots = new_scanned((size_t)old.capacity * 2 * sizeof *table->slots);
		table->capacity *= 2;
		for (int64_t i = 0; i < old.capacity; i++)
			if (old.slots[i].datum)
				table->slots[find_position(table, old.slots[i].datum)] =
					old.slots[i];
	}
	int64_t at = find_position(table, datum);
	table->count += !table->slots[at].datum;
	table->slots[at].datum = datum;
	table->slots[at].line = line;
}

int64_t position_of(value positions, value datum)
{
	if (!is_type(positions, T_TABLE) || !is_pointer(datum))
		return 0;
	struct position_table *table = (struct position_table *)positions;
	int64_t at = find_position(table, datum);
	return table->slots[at].datum ? table->slots[at].line : 0;
}

/* ---- data ---- */

struct reader {
	struct context *ctx;
	struct port *port;
	value positions;
	int closed_by; /* the character of the last CLOSE */
};

static value read_value(struct reader *r);
/* Results of read_value at a closing parenthesis and at a dot; no datum equals them. */
enum { CLOSE = 0x82, DOT = 0x92 };

static _Noreturn void fail(struct reader *r, const char *message)
{
	struct condition *c =
		condition_new(r->ctx, "read", string_from(r->ctx, message), V_NIL);

	c->file = r->port->name;
	c->line = r->port->line;
	raise_value(r->ctx, (value)c);
}

static int is_delimiter(int c)
{
	return c < 0 || strchr(" \t\r\n\f()[]\";'`,", c) != NULL;
}

static int peek(struct reader *r) { return port_peek_byte(r->ctx, r->port); }
static int next(struct reader *r) { return port_read_byte(r->ctx, r->port); }

static void skip_block_comment(struct reader *r)
{
	for (int depth = 1; depth > 0;) {
		int c = next(r);
		if (c < 0)
			fail(r, "comment not closed");
		if (c == '|' && peek(r) == '#') {
			next(r);
			depth--;
		} else if (c == '#' && peek(r) == '|') {
			next(r);
			depth++;
		}
	}
}

static value read_list(struct reader *r, int end)
{
	value first = V_NIL, last = V_NIL;
	int64_t line = r->port->line;

	for (;;) {
		int64_t item_line = r->port->line;
		value item = read_value(r);
		if (item == V_NONE)
			fail(r, "list not closed");
		if (item == CLOSE && r->closed_by != end)
			fail(r, "list closed by another bracket");
		if (item == CLOSE)
			return first;
		if (item == DOT) {
			if (first == V_NIL)
				fail(r, "bad dot");
			CDR(last) = read_value(r);
			if (CDR(last) == CLOSE || CDR(last) == DOT || CDR(last) == V_NONE ||
			    read_value(r) != CLOSE || r->closed_by != end)
				fail(r, "bad dot");
			return first;
		}
		value pair = cons(r->ctx, item, V_NIL);
		note_position(r->ctx, r->positions, pair, first == V_NIL ? line : item_line);
		if (first == V_NIL)
			first = pair;
		else
			CDR(last) = pair;
		last = pair;
	}
}

static value read_vector(struct reader *r)
{
	value items = read_list(r, ')');
	int64_t count = list_length(items);

	if (count < 0)
		fail(r, "bad vector");
	struct vector *vector = AS(vector, make_vector(r->ctx, count, V_NIL));
	for (int64_t i = 0; i < count; i++, items = CDR(items))
		vector->items[i] = CAR(items);
	return (value)vector;
}

static value read_bytevector(struct reader *r)
{
	struct vector *items = AS(vector, read_vector(r));
	struct bytes *bytes = make_bytes(r->ctx, items->length);

	for (int64_t i = 0; i < items->length; i++) {
		if (!is_fixnum(items->items[i]) || items->items[i] > make_fixnum(255))
			fail(r, "bad byte");
		bytes->data[i] = (uint8_t)fixnum_of(items->items[i]);
	}
	return (value)bytes;
}

static uint32_t read_hex(struct reader *r)
{
	uint32_t c = 0;
	int digit;

	while ((digit = next(r)) != ';') {
		char text[2] = {(char)digit, 0}, *end;
		long n = strtol(text, &end, 16);
		if (digit < 0 || end == text || c > 0x10ffff)
			fail(r, "bad escape");
		c = c << 4 | (uint32_t)n;
	}
	if (c > 0x10ffff || is_surrogate(c))
		fail(r, "bad escape");
	return c;
}

static void read_escape(struct reader *r, struct port *text)
{
	int c = next(r);

	if (c == 'n' || c == 't' || c == 'r' || c == 'a' || c == '0' || c == 'b')
		port_write_char(text, c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r'
				      : c == 'a' ? 7 : c == 'b' ? 8 : 0);
	else if (c == 'x' || c == 'X')
		port_write_char(text, read_hex(r));
	else if (c == '\n' || c == ' ' || c == '\t') {
		while (c == ' ' || c == '\t')
			c = next(r);
		if (c != '\n')
			fail(r, "bad escape");
		while (peek(r) == ' ' || peek(r) == '\t')
			next(r);
	} else {
		port_write_bytes(text, &(char){(char)c}, 1); /* may begin a character of several */
	}
}

static struct port *read_until(struct reader *r, int end)
{
	struct port *text = port_open_buffer();
	int c;

	while ((c = next(r)) != end) {
		char byte = (char)c;
		if (c < 0)
			fail(r, end == '"' ? "string not closed" : "symbol not closed");
		if (c == '\\')
			read_escape(r, text);
		else
			port_write_bytes(text, &byte, 1);
	}
	return text;
}

static value read_char_name(struct reader *r)
{
	static const struct {
		const char *name;
		uint32_t c;
	} names[] = {
		{"space", ' '}, {"newline", '\n'}, {"tab", '\t'}, {"return", '\r'}, {"nul", 0},
		{"null", 0}, {"alarm", 7}, {"backspace", 8}, {"delete", 127}, {"rubout", 127},
		{"escape", 27}, {"altmode", 27}, {"linefeed", '\n'}, {"page", 12},
	};
	char text[32];
	size_t count = 0;
	int64_t first = port_read_char(r->ctx, r->port, 0);

	if (first < 0)
		fail(r, "bad character");
	if (first > 127)
		return make_char((uint32_t)first);
	text[count++] = (char)first;
	while (!is_delimiter(peek(r)) && count + 1 < sizeof text)
		text[count++] = (char)next(r);
	text[count] = 0;
	if (count == 1)
		return make_char((uint32_t)first);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(text, names[i].name))
			return make_char(names[i].c);
	unsigned long code = strtoul(text + 1, NULL, 16);
	size_t digits = strspn(text + 1, "0123456789abcdefABCDEF");
	if ((text[0] == 'x' || text[0] == 'U' || text[0] == 'u') && digits == count - 1 &&
	    code <= 0x10ffff && !is_surrogate((uint32_t)code))
		return make_char((uint32_t)code);
	fail(r, "unknown character name");
}

static value read_atom(struct reader *r, int first)
{
	char small[128], *text = small;
	size_t count = 0, capacity = sizeof small;
	int c = first;

	for (;;) {
		if (count + 2 > capacity) {
			char *grown = new_plain(capacity * 2);
			memcpy(grown, text, count);
			text = grown;
			capacity *= 2;
		}
		if (c == '|') {
			struct port *inside = read_until(r, '|');
			value name =
				string_from_bytes(r->ctx, inside->bytes, (size_t)inside->length);
			if (count == 0)
				return intern_string(AS(string, name));
			fail(r, "bar inside a symbol");
		}
		text[count++] = (char)c;
		if (is_delimiter(peek(r)))
			break;
		c = next(r);
	}
	text[count] = 0;
	if (!strcmp(text, "."))
		return DOT;
	value number = parse_number(text, 10);
	if (number != V_FALSE)
		return number;
	return intern_string(AS(string, string_from_bytes(r->ctx, text, count)));
}

static value read_quoted(struct reader *r, const char *name)
{
	int64_t line = r->port->line;
	value datum = read_value(r);

	if (datum == CLOSE || datum == DOT || datum == V_NONE)
		fail(r, "nothing to quote");
	value form = cons(r->ctx, intern(name), cons(r->ctx, datum, V_NIL));
	note_position(r->ctx, r->positions, form, line);
	return form;
}

static value read_word(struct reader *r, const char *word)
{
	static const struct {
		const char *word;
		value v;
	} words[] = {{"t", V_TRUE}, {"true", V_TRUE}, {"f", V_FALSE}, {"false", V_FALSE},
		     {"!eof", V_EOF}, {"!unspecific", V_UNSPEC}, {"!default", V_UNSPEC}};

	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (!strcmp(word, words[i].word))
			return words[i].v;
	char text[80];
	snprintf(text, sizeof text, "#%s", word);
	value number = parse_number(text, 10);
	if (number == V_FALSE)
		fail(r, "unknown # syntax");
	return number;
}

/* Reads the rest after "#". Returns V_UNDEF for a comment. */
static value read_hash(struct reader *r)
{
	char word[64];
	size_t count = 0;
	int c = next(r);

	if (c == '(')
		return read_vector(r);
	if (c == '\\')
		return read_char_name(r);
	if (c == '|') {
		skip_block_comment(r);
		return V_UNDEF;
	}
	if (c == ';') {
		value skipped = read_value(r);
		if (skipped == CLOSE || skipped == DOT || skipped == V_NONE)
			fail(r, "nothing to skip");
		return V_UNDEF;
	}
	for (; c >= 0; c = next(r)) {
		if (count + 1 == sizeof word)
			fail(r, "unknown # syntax");
		word[count++] = (char)c;
		if (is_delimiter(peek(r)))
			break;
	}
	word[count] = 0;
	if (!strcmp(word, "u8") && peek(r) == '(') {
		next(r);
		return read_bytevector(r);
	}
	if (!strcmp(word, "!fold-case") || !strcmp(word, "!no-fold-case") ||
	    !strcmp(word, "!r6rs") || !strcmp(word, "!r7rs"))
		return V_UNDEF;
	return read_word(r, word);
}

static value read_value(struct reader *r)
{
	check_c_stack(r->ctx);
	for (;;) {
		int c = next(r);
		value v;
		switch (c) {
		case -1:
			return V_NONE;
		case ' ':
		case '\t':
		case '\r':
		case '\n':
		case '\f':
			continue;
		case ';':
			while (c >= 0 && c != '\n')
				c = next(r);
			continue;
		case '(':
		case '[':
			return read_list(r, c == '(' ? ')' : ']');
		case ')':
		case ']':
			r->closed_by = c;
			return CLOSE;
		case '\'':
			return read_quoted(r, "quote");
		case '`':
			return read_quoted(r, "quasiquote");
		case ',':
			if (peek(r) != '@')
				return read_quoted(r, "unquote");
			next(r);
			return read_quoted(r, "unquote-splicing");
		case '"': {
			struct port *text = read_until(r, '"');
			return string_from_bytes(r->ctx, text->bytes, (size_t)text->length);
		}
		case '#':
			v = read_hash(r);
			if (v == V_UNDEF)
				continue;
			return v;
		default:
			return read_atom(r, c);
		}
	}
}

/* Returns V_EOF at the end. */
value read_datum(struct context *ctx, struct port *port, value positions)
{
	struct reader r = {ctx, port, positions, 0};
	value v = read_value(&r);

	if (v == CLOSE || v == DOT)
		fail(&r, v == CLOSE ? "unexpected closing parenthesis" : "unexpected dot");
	if (is_symbol(v)) /* A form that is a name alone has a line, too. */
		note_position(ctx, positions, v, port->line);
	return v == V_NONE ? V_EOF : v;
}
