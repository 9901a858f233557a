/* SPDX-License-Identifier: MIT
 * ports.c: ports on descriptors and on strings, and their procedures. Output to a shared port
 * is appended whole, one procedure call at a time, under vm->out_lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "vm.h"

enum { BUFFER_BYTES = 16384, TEXT_BYTES = 64 };

static struct port *port_open(int fd, int is_output, char *bytes, int64_t capacity)
{
	struct port *port = new_scanned(sizeof *port);

	port->header = T_PORT;
	port->fd = fd;
	port->is_output = is_output;
	port->is_open = 1;
	port->line = 1;
	port->capacity = capacity;
	port->bytes = bytes;
	port->name = V_FALSE;
	return port;
}

struct port *port_open_fd(int fd, int is_output)
{
	return port_open(fd, is_output, new_plain(BUFFER_BYTES), BUFFER_BYTES);
}

struct port *port_open_string(const char *bytes, int64_t length)
{
	struct port *port = port_open(-1, 0, new_plain((size_t)length + 1), length);

	memcpy(port->bytes, bytes, (size_t)length);
	port->length = length;
	return port;
}

struct port *port_open_buffer(void)
{
	return port_open(-1, 1, new_plain(TEXT_BYTES), TEXT_BYTES);
}

void port_flush(struct port *port)
{
	int64_t done = 0;

	if (port->fd < 0 || !port->is_output)
		return;
	/* The descriptor of a port that was shut may be another file's. */
	while ((port->is_open || port->fd <= 2) && done < port->length) {
		ssize_t n = write(port->fd, port->bytes + done, (size_t)(port->length - done));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			port->lost = n < 0 ? errno : EIO;
			break;
		}
		done += n;
	}
	port->length = 0;
}

/* Makes room for count more bytes in a string port. */
static void port_grow(struct port *port, size_t count)
{
	int64_t capacity = (port->length + (int64_t)count) * 2;
	char *grown = new_plain((size_t)capacity);

	memcpy(grown, port->bytes, (size_t)port->length);
	port->bytes = grown;
	port->capacity = capacity;
}

static int has_room(const struct port *port, size_t count)
{
	return port->length + (int64_t)count <= port->capacity;
}

/* A port on a descriptor needs no memory. */
void port_write_bytes(struct port *port, const char *bytes, size_t count)
{
	while (!has_room(port, count)) {
		size_t part = (size_t)(port->capacity - port->length);
		if (port->fd < 0) {
			port_grow(port, count);
			continue;
		}
		memcpy(port->bytes + port->length, bytes, part);
		port->length += (int64_t)part;
		bytes += part;
		count -= part;
		port_flush(port);
	}
	memcpy(port->bytes + port->length, bytes, count);
	port->length += (int64_t)count;
}

void port_puts(struct port *port, const char *text) { port_write_bytes(port, text, strlen(text)); }

void port_write_char(struct port *port, uint32_t c)
{
	char text[4];
	size_t count = encode_utf8(c, text);

	port_write_bytes(port, text, count);
}

static void flush_shared(struct context *ctx, struct port *port)
{
	pthread_mutex_lock(&ctx->vm->out_lock);
	port_flush(port);
	pthread_mutex_unlock(&ctx->vm->out_lock);
}

void port_shut(struct port *port)
{
	if (port->fd > 2 && port->is_open)
		close(port->fd);
	port->is_open = 0;
}

/* Shuts the port, so that later reads find the end. */
static _Noreturn void fail_with_port(struct context *ctx, struct port *port, const char *what,
				     int error)
{
	char text[160];

	snprintf(text, sizeof text, "%s: %s:", what, strerror(error));
	port_shut(port);
	raise_error(ctx, "file", text, 1, port->name);
}

/* Reads on until the buffer has count bytes. Returns 0 at the end of the input. */
static int port_fill(struct context *ctx, struct port *port, int64_t count)
{
	while (port->length - port->position < count) {
		ssize_t n = 0;
		if (port->fd < 0 || !port->is_open)
			return 0;
		if (ctx->vm->output)
			flush_shared(ctx, ctx->vm->output);
		port->length -= port->position;
		memmove(port->bytes, port->bytes + port->position, (size_t)port->length);
		port->position = 0;
		do
			n = read(port->fd, port->bytes + port->length,
				 (size_t)(port->capacity - port->length));
		while (n < 0 && errno == EINTR);
		if (n < 0)
			fail_with_port(ctx, port, "cannot read", errno);
		if (n == 0)
			return 0;
		port->length += n;
	}
	return 1;
}

int port_peek_byte(struct context *ctx, struct port *port)
{
	return port_fill(ctx, port, 1) ? (unsigned char)port->bytes[port->position] : -1;
}

int port_read_byte(struct context *ctx, struct port *port)
{
	int byte = port_peek_byte(ctx, port);

	if (byte >= 0)
		port->position++;
	port->line += byte == '\n';
	return byte;
}

/* Waits for no byte behind the character. */
int64_t port_read_char(struct context *ctx, struct port *port, int peek)
{
	int first = port_peek_byte(ctx, port);
	uint32_t c;

	if (first < 0)
		return -1;
	if (first >= 0xc2 && first < 0xf5)
		port_fill(ctx, port, first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4);
	size_t count = decode_utf8((const unsigned char *)port->bytes + port->position,
				   (size_t)(port->length - port->position), &c);
	if (!peek) {
		port->position += (int64_t)count;
		port->line += c == '\n';
	}
	return c;
}

/* ---- procedures ---- */

static struct port *port_arg(struct context *ctx, value *args, int64_t argc, int64_t index,
			     int is_output)
{
	struct port *usual = is_output ? ctx->vm->output : ctx->vm->input;
	value port = argc > index ? args[index] : (value)usual;

	if (!is_type(port, T_PORT) || AS(port, port)->is_output != is_output)
		raise_type(ctx, "port operation", is_output ? "output port" : "input port", port);
	if (!AS(port, port)->is_open)
		raise_error(ctx, "file", "port is closed", 0);
	return AS(port, port);
}

/* A string port grows without the lock, as allocation may raise an error. The new buffer replaces
 * the old buffer only if the old one is still too small. */
void port_append(struct context *ctx, struct port *port, const char *bytes, size_t count)
{
	pthread_mutex_lock(&ctx->vm->out_lock);
	while (port->fd < 0 && !has_room(port, count)) {
		size_t wanted = ((size_t)port->length + count) * 2;
		pthread_mutex_unlock(&ctx->vm->out_lock);
		char *grown = new_plain(wanted);
		pthread_mutex_lock(&ctx->vm->out_lock);
		if (has_room(port, count) || (size_t)port->length + count > wanted)
			continue;
		memcpy(grown, port->bytes, (size_t)port->length);
		port->bytes = grown;
		port->capacity = (int64_t)wanted;
	}
	port_write_bytes(port, bytes, count);
	pthread_mutex_unlock(&ctx->vm->out_lock);
}

static void append_char(struct context *ctx, struct port *port, uint32_t c)
{
	char text[4];

	port_append(ctx, port, text, encode_utf8(c, text));
}

static value print(struct context *ctx, value *args, int64_t argc, int is_display)
{
	struct port *port = port_arg(ctx, args, argc, 1, 1);
	struct port *text = port_open_buffer();

	write_value(ctx, text, args[0], is_display);
	port_append(ctx, port, text->bytes, (size_t)text->length);
	return V_UNSPEC;
}

PRIM(display) { return print(ctx, args, argc, 1); }
PRIM(write_datum) { return print(ctx, args, argc, 0); }

PRIM(write_char)
{
	struct port *port = port_arg(ctx, args, argc, 1, 1);

	if (!is_char(args[0]))
		raise_type(ctx, "write-char", "character", args[0]);
	append_char(ctx, port, char_of(args[0]));
	return V_UNSPEC;
}

PRIM(write_string)
{
	struct port *port = port_arg(ctx, args, argc, 1, 1), *text = port_open_buffer();

	struct string *s = string_arg(ctx, "write-string", args[0]);
	int64_t start, end;
	range_args(ctx, "write-string", args, argc, 2, s->length, &start, &end);
	for (; start < end; start++)
		port_write_char(text, s->chars[start]);
	port_append(ctx, port, text->bytes, (size_t)text->length);
	return V_UNSPEC;
}

PRIM(newline)
{
	struct port *port = port_arg(ctx, args, argc, 0, 1);

	append_char(ctx, port, '\n');
	return V_UNSPEC;
}

PRIM(flush_output)
{
	flush_shared(ctx, port_arg(ctx, args, argc, 0, 1));
	return V_UNSPEC;
}

PRIM(read_char)
{
	int64_t c = port_read_char(ctx, port_arg(ctx, args, argc, 0, 0), 0);
	return c < 0 ? V_EOF : make_char((uint32_t)c);
}

PRIM(peek_char)
{
	int64_t c = port_read_char(ctx, port_arg(ctx, args, argc, 0, 0), 1);
	return c < 0 ? V_EOF : make_char((uint32_t)c);
}

PRIM(read_line)
{
	struct port *port = port_arg(ctx, args, argc, 0, 0), *text = port_open_buffer();
	int c = port_read_byte(ctx, port);

	if (c < 0)
		return V_EOF;
	for (; c >= 0 && c != '\n'; c = port_read_byte(ctx, port)) {
		char byte = (char)c;
		port_write_bytes(text, &byte, 1);
	}
	return string_from_bytes(ctx, text->bytes, (size_t)text->length);
}

PRIM(read_string)
{
	struct port *port = port_arg(ctx, args, argc, 1, 0), *text = port_open_buffer();

	int64_t count = index_arg(ctx, "read-string", args[0], INT64_MAX), left = count;

	for (; left > 0; left--) {
		int64_t c = port_read_char(ctx, port, 0);
		if (c < 0)
			break;
		port_write_char(text, (uint32_t)c);
	}
	if (left && left == count)
		return V_EOF;
	return string_from_bytes(ctx, text->bytes, (size_t)text->length);
}

PRIM(read_proc) { return read_datum(ctx, port_arg(ctx, args, argc, 0, 0), V_FALSE); }

PRIM(char_ready)
{
	port_arg(ctx, args, argc, 0, 0);
	return V_TRUE;
}

PRIM(open_input_string)
{
	size_t bytes;

	string_arg(ctx, "open-input-string", args[0]);
	char *text = string_to_utf8(args[0], &bytes);
	return (value)port_open_string(text, (int64_t)bytes);
}

PRIM(open_output_string) { return (value)port_open_buffer(); }

/* The bytes of a string port so far, which stay there when the port grows. Returns their count. */
static int64_t collected(struct context *ctx, value *args, int64_t argc, const char **bytes)
{
	struct port *port = port_arg(ctx, args, argc, 0, 1);

	if (port->fd >= 0)
		raise_type(ctx, "get-output-string", "string port", (value)port);
	pthread_mutex_lock(&ctx->vm->out_lock);
	*bytes = port->bytes;
	int64_t length = port->length;
	pthread_mutex_unlock(&ctx->vm->out_lock);
	return length;
}

PRIM(get_output_string)
{
	const char *bytes;
	int64_t length = collected(ctx, args, argc, &bytes);

	return string_from_bytes(ctx, bytes, (size_t)length);
}

/* For vm_flush. Ports that were shut leave the list. */
static void note_file(struct vm *vm, struct port *port)
{
	struct port **at = &vm->files;

	pthread_mutex_lock(&vm->out_lock);
	while (*at) {
		if ((*at)->is_open)
			at = &(*at)->next_file;
		else
			*at = (*at)->next_file;
	}
	*at = port;
	pthread_mutex_unlock(&vm->out_lock);
}

static value open_file(struct context *ctx, value name, int is_output)
{
	const char *path = text_arg(ctx, is_output ? "open-output-file" : "open-input-file",
				    "file name", name);
	int fd = open(path, is_output ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY, 0666);
	if (fd < 0)
		raise_error(ctx, "file", "cannot open", 1, name);
	struct port *port = port_open_fd(fd, is_output);
	port->name = name;
	if (is_output)
		note_file(ctx->vm, port);
	return (value)port;
}

PRIM(open_input_file) { return open_file(ctx, args[0], 0); }
PRIM(open_output_file) { return open_file(ctx, args[0], 1); }

PRIM(close_port)
{
	struct port *port = AS(port, object_arg(ctx, "close-port", T_PORT, args[0]));
	flush_shared(ctx, port);
	if (port->is_open && port->lost)
		fail_with_port(ctx, port, "cannot write", port->lost);
	port_shut(port);
	return V_UNSPEC;
}

PRIM(current_output) { return (value)ctx->vm->output; }
PRIM(current_error) { return (value)ctx->vm->error_output; }
PRIM(current_input) { return (value)ctx->vm->input; }

PRIM(set_output)
{
	ctx->vm->output = port_arg(ctx, args, argc, 0, 1);
	return V_UNSPEC;
}

PRIM(set_input)
{
	ctx->vm->input = port_arg(ctx, args, argc, 0, 0);
	return V_UNSPEC;
}

PRIM(eof_object) { return V_EOF; }
PRIM(eof_p) { return make_bool(args[0] == V_EOF); }
PRIM(port_p) { return make_bool(is_type(args[0], T_PORT)); }

PRIM(input_port_p)
{
	return make_bool(is_type(args[0], T_PORT) && !AS(port, args[0])->is_output);
}

PRIM(output_port_p)
{
	return make_bool(is_type(args[0], T_PORT) && AS(port, args[0])->is_output);
}

PRIM(port_open_p)
{
	return make_bool(AS(port, object_arg(ctx, "port-open?", T_PORT, args[0]))->is_open);
}

/* ---- bytes: every port carries bytes and text ---- */

static value bytes_from(struct context *ctx, const char *data, int64_t length)
{
	struct bytes *bytes = make_bytes(ctx, length);

	memcpy(bytes->data, data, (size_t)length);
	return (value)bytes;
}

PRIM(read_u8)
{
	int byte = port_read_byte(ctx, port_arg(ctx, args, argc, 0, 0));
	return byte < 0 ? V_EOF : make_fixnum(byte);
}

PRIM(peek_u8)
{
	int byte = port_peek_byte(ctx, port_arg(ctx, args, argc, 0, 0));
	return byte < 0 ? V_EOF : make_fixnum(byte);
}

PRIM(read_bytes)
{
	struct port *port = port_arg(ctx, args, argc, 1, 0), *text = port_open_buffer();
	int64_t left = index_arg(ctx, "read-bytevector", args[0], INT32_MAX);

	for (; left > 0; left--) {
		int byte = port_read_byte(ctx, port);
		char one = (char)byte;
		if (byte < 0)
			break;
		port_write_bytes(text, &one, 1);
	}
	if (!text->length && args[0] != make_fixnum(0))
		return V_EOF;
	return bytes_from(ctx, text->bytes, text->length);
}

PRIM(read_bytes_into)
{
	struct bytes *to = bytes_arg(ctx, "read-bytevector!", args[0]);
	struct port *port = port_arg(ctx, args, argc, 1, 0);
	int64_t start, end;
	range_args(ctx, "read-bytevector!", args, argc, 2, to->length, &start, &end);
	int64_t at = start;

	for (; at < end; at++) {
		int byte = port_read_byte(ctx, port);
		if (byte < 0)
			break;
		to->data[at] = (uint8_t)byte;
	}
	return at == start && start < end ? V_EOF : make_fixnum(at - start);
}

PRIM(write_u8)
{
	struct port *port = port_arg(ctx, args, argc, 1, 1);
	char byte = (char)index_arg(ctx, "write-u8", args[0], 255);

	port_append(ctx, port, &byte, 1);
	return V_UNSPEC;
}

PRIM(write_bytes)
{
	struct bytes *from = bytes_arg(ctx, "write-bytevector", args[0]);
	struct port *port = port_arg(ctx, args, argc, 1, 1);
	int64_t start, end;
	range_args(ctx, "write-bytevector", args, argc, 2, from->length, &start, &end);
	port_append(ctx, port, (const char *)from->data + start, (size_t)(end - start));
	return V_UNSPEC;
}

PRIM(open_input_bytes)
{
	struct bytes *from = bytes_arg(ctx, "open-input-bytevector", args[0]);

	return (value)port_open_string((const char *)from->data, from->length);
}

PRIM(get_output_bytes)
{
	const char *bytes;
	int64_t length = collected(ctx, args, argc, &bytes);

	return bytes_from(ctx, bytes, length);
}

static void init_binary_ports(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"read-u8", read_u8, 0, 1}, {"peek-u8", peek_u8, 0, 1},
		{"u8-ready?", char_ready, 0, 1}, {"read-bytevector", read_bytes, 1, 2},
		{"read-bytevector!", read_bytes_into, 1, 4}, {"write-u8", write_u8, 1, 2},
		{"write-bytevector", write_bytes, 1, 4},
		{"open-input-bytevector", open_input_bytes, 1, 1},
		{"open-output-bytevector", open_output_string, 0, 0},
		{"get-output-bytevector", get_output_bytes, 1, 1},
		{"open-binary-input-file", open_input_file, 1, 1},
		{"open-binary-output-file", open_output_file, 1, 1},
		{"input-port?", input_port_p, 1, 1}, {"output-port?", output_port_p, 1, 1},
		{"textual-port?", port_p, 1, 1}, {"binary-port?", port_p, 1, 1},
		{"input-port-open?", port_open_p, 1, 1}, {"output-port-open?", port_open_p, 1, 1},
	};

	DEFINE_PRIMS(ctx, defs);
}

void init_ports(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"display", display, 1, 2}, {"write", write_datum, 1, 2},
		{"write-simple", write_datum, 1, 2}, {"write-shared", write_datum, 1, 2},
		{"write-char", write_char, 1, 2}, {"write-string", write_string, 1, 4},
		{"newline", newline, 0, 1}, {"flush-output-port", flush_output, 0, 1},
		{"flush-output", flush_output, 0, 1}, {"read-char", read_char, 0, 1},
		{"peek-char", peek_char, 0, 1}, {"read-line", read_line, 0, 1},
		{"read-string", read_string, 1, 2}, {"read", read_proc, 0, 1},
		{"char-ready?", char_ready, 0, 1}, {"open-input-string", open_input_string, 1, 1},
		{"open-output-string", open_output_string, 0, 0},
		{"get-output-string", get_output_string, 1, 1},
		{"open-input-file", open_input_file, 1, 1},
		{"open-output-file", open_output_file, 1, 1}, {"close-port", close_port, 1, 1},
		{"close-input-port", close_port, 1, 1}, {"close-output-port", close_port, 1, 1},
		{"current-output-port", current_output, 0, 0},
		{"current-error-port", current_error, 0, 0},
		{"current-input-port", current_input, 0, 0}, {"%set-output", set_output, 1, 1},
		{"%set-input", set_input, 1, 1}, {"eof-object", eof_object, 0, 0},
		{"eof-object?", eof_p, 1, 1}, {"port?", port_p, 1, 1},
	};

	DEFINE_PRIMS(ctx, defs);
	init_binary_ports(ctx);
}
