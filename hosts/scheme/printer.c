/* SPDX-License-Identifier: MIT
 * printer.c: values as text. A circular list is cut where it meets itself; a value that nests too
 * deep, or contains itself in a car, is an error.
 */
#include "vm.h"

static void write_char_name(struct port *port, uint32_t c)
{
	static const char *const low[] = {"nul", NULL, NULL, NULL, NULL, NULL, NULL, "alarm",
					  "backspace", "tab", "newline", NULL, NULL, "return"};
	char text[24];

	port_puts(port, "#\\");
	if (c < sizeof low / sizeof *low && low[c])
		port_puts(port, low[c]);
	else if (c == ' ' || c == 127 || c == 27)
		port_puts(port, c == ' ' ? "space" : c == 27 ? "escape" : "delete");
	else if (c < 32) {
		snprintf(text, sizeof text, "x%x", c);
		port_puts(port, text);
	} else {
		port_write_char(port, c);
	}
}

/* Writes the text between two quote characters, escaped for the reader. */
static void write_quoted(struct port *port, const struct string *string, uint32_t quote)
{
	char text[24];

	port_write_char(port, quote);
	for (int64_t i = 0; i < string->length; i++) {
		uint32_t c = string->chars[i];
		if (c == quote || c == '\\') {
			port_write_char(port, '\\');
			port_write_char(port, c);
		} else if (c == '\n' || c == '\t' || c == '\r' || c == 7) {
			port_puts(port, c == '\n'   ? "\\n"
					: c == '\t' ? "\\t"
					: c == 7    ? "\\a"
						    : "\\r");
		} else if (c < 32 || c == 127) {
			snprintf(text, sizeof text, "\\x%x;", c);
			port_puts(port, text);
		} else {
			port_write_char(port, c);
		}
	}
	port_write_char(port, quote);
}

static void write_string(struct port *port, const struct string *string, int is_display)
{
	if (!is_display) {
		write_quoted(port, string, '"');
		return;
	}
	for (int64_t i = 0; i < string->length; i++)
		port_write_char(port, string->chars[i]);
}

static int needs_bars(struct string *name)
{
	if (name->length == 0 || name->chars[0] == '#')
		return 1;
	for (int64_t i = 0; i < name->length; i++) {
		uint32_t c = name->chars[i];
		if (c <= ' ' || (c < 128 && strchr("()[]\";'`,|\\", (int)c)))
			return 1;
	}
	if (name->chars[0] > '9')
		return 0;
	const char *text = string_to_utf8((value)name, NULL);
	return !strcmp(text, ".") || parse_number(text, 10) != V_FALSE;
}

static void write_symbol(struct port *port, value symbol, int is_display)
{
	struct string *name = AS(symbol, symbol)->name;
	if (!is_display && needs_bars(name))
		write_quoted(port, name, '|');
	else
		write_string(port, name, 1);
}

static void write_list(struct context *ctx, struct port *port, value list, int is_display)
{
	value mark = list;
	int64_t count = 0, next_mark = 1024;

	port_puts(port, "(");
	write_value(ctx, port, CAR(list), is_display);
	for (list = CDR(list); is_pair(list); list = CDR(list)) {
		if (list == mark) {
			port_puts(port, " ...");
			break;
		}
		if (++count == next_mark) {
			mark = list;
			next_mark *= 2;
		}
		port_puts(port, " ");
		write_value(ctx, port, CAR(list), is_display);
	}
	if (!is_pair(list) && list != V_NIL) {
		port_puts(port, " . ");
		write_value(ctx, port, list, is_display);
	}
	port_puts(port, ")");
}

static void write_items(struct context *ctx, struct port *port, struct vector *vector,
			int is_display, const char *open)
{
	port_puts(port, open);
	for (int64_t i = 0; i < vector->length; i++) {
		if (i)
			port_puts(port, " ");
		write_value(ctx, port, vector->items[i], is_display);
	}
	port_puts(port, ")");
}

static void write_bytes(struct port *port, struct bytes *bytes)
{
	char text[8];

	port_puts(port, "#u8(");
	for (int64_t i = 0; i < bytes->length; i++) {
		snprintf(text, sizeof text, i ? " %d" : "%d", bytes->data[i]);
		port_puts(port, text);
	}
	port_puts(port, ")");
}

static void write_record(struct context *ctx, struct port *port, struct record *record,
			 int is_display)
{
	value field = record->type->fields;

	port_puts(port, "#<");
	write_value(ctx, port, record->type->name, 1);
	for (int64_t i = 0; i < record->type->count && is_pair(field); i++, field = CDR(field)) {
		port_puts(port, " ");
		write_value(ctx, port, CAR(field), 1);
		port_puts(port, ": ");
		write_value(ctx, port, record->fields[i], is_display);
	}
	port_puts(port, ">");
}

void write_condition(struct context *ctx, struct port *port, value condition)
{
	struct condition *c = AS(condition, condition);

	write_value(ctx, port, c->message, 1);
	for (value at = c->irritants; is_pair(at); at = CDR(at)) {
		port_puts(port, " ");
		write_value(ctx, port, CAR(at), 0);
	}
}

static void write_named(struct port *port, const char *kind, value name)
{
	port_puts(port, "#<");
	port_puts(port, kind);
	if (is_symbol(name)) {
		port_puts(port, " ");
		write_symbol(port, name, 1);
	}
	port_puts(port, ">");
}

static void write_object(struct context *ctx, struct port *port, value v, int is_display)
{
	char text[64];

	switch (*(uint64_t *)v) {
	case T_PAIR:
		write_list(ctx, port, v, is_display);
		break;
	case T_FLONUM:
		format_number(v, 10, text, sizeof text);
		port_puts(port, text);
		break;
	case T_STRING:
		write_string(port, AS(string, v), is_display);
		break;
	case T_SYMBOL:
		write_symbol(port, v, is_display);
		break;
	case T_VECTOR:
		write_items(ctx, port, AS(vector, v), is_display, "#(");
		break;
	case T_VALUES:
		write_items(ctx, port, AS(vector, v), is_display, "#<values (");
		port_puts(port, ">");
		break;
	case T_BYTES:
		write_bytes(port, AS(bytes, v));
		break;
	case T_RECORD:
		write_record(ctx, port, AS(record, v), is_display);
		break;
	case T_CONDITION:
		port_puts(port, "#<error ");
		write_condition(ctx, port, v);
		port_puts(port, ">");
		break;
	case T_CLOSURE:
		write_named(port, "procedure", AS(closure, v)->code->name);
		break;
	case T_PRIM:
		write_named(port, "procedure", intern(AS(prim, v)->name));
		break;
	case T_RTD:
		write_named(port, "record-type", AS(rtd, v)->name);
		break;
	default: {
		static const char *const names[] = {
			[T_ESCAPE] = "continuation", [T_FIBER] = "fiber", [T_THREAD] = "thread",
			[T_MUTEX] = "mutex",         [T_PORT] = "port",   [T_CONDITION] = NULL};
		uint64_t type = *(uint64_t *)v;
		write_named(port, type < T_CONDITION && names[type] ? names[type] : "object",
			    V_FALSE);
	}
	}
}

void write_value(struct context *ctx, struct port *port, value v, int is_display)
{
	char text[96];

	check_c_stack(ctx);
	if (is_pointer(v)) {
		write_object(ctx, port, v, is_display);
		return;
	}
	if (is_fixnum(v)) {
		format_number(v, 10, text, sizeof text);
		port_puts(port, text);
		return;
	}
	if (is_char(v)) {
		if (is_display)
			port_write_char(port, char_of(v));
		else
			write_char_name(port, char_of(v));
		return;
	}
	port_puts(port, v == V_TRUE    ? "#t"
			: v == V_FALSE ? "#f"
			: v == V_NIL   ? "()"
			: v == V_EOF   ? "#<eof>"
				       : "#<unspecified>");
}
