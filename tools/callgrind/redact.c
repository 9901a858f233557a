// SPDX-License-Identifier: MIT
/* What becomes of a name:
 * - a path: its last part; of several that end alike, as many parts more as tell them apart, so
 *   that two files of one name stay two;
 * - libc.so.6, libc-2.36.so: libc.so; unless two libraries would become one;
 * - a function that is called by its address: [unnamed]; an address in a name: [address], and
 *   behind a block's name, where it tells two blocks of one name apart, nothing;
 * - a path in a function's name: behind its last slash, whatever lies between, since a folder's
 *   name may have spaces;
 * - name@@GLIBC_2.34: name. */
#include "tools/callgrind/redact.h"

#include <stdlib.h>
#include <string.h>

/* ---- paths ----------------------------------------------------------------------------------- */

static bool is_number(const char *at, const char *end, bool may_have_dots)
{
	for (const char *c = at; c < end; c++) {
		if ((*c != '.' || !may_have_dots) && (*c < '0' || *c > '9'))
			return false;
	}
	return at < end;
}

/* Appends the path without the versions of a shared library. */
static bool put_unversioned(struct cg_output *output, struct cg_text path)
{
	static const char so[] = ".so";
	const char *end = path.at + path.length, *found = NULL;
	for (const char *at = path.at; at + 3 <= end; at++) {
		if (!memcmp(at, so, 3) &&
		    (at + 3 == end || (at[3] == '.' && is_number(at + 4, end, true))))
			found = at;
	}
	if (!found)
		return cg_output_text(output, path);
	const char *dash = found;
	while (dash > path.at && *dash != '-' && *dash != '/')
		dash--;
	/* ld-linux-x86-64.so is of no version 64. */
	if (dash == path.at || *dash != '-' || !is_number(dash + 1, found, true) ||
	    is_number(dash + 1, found, false))
		dash = found;
	return cg_output_put(output, path.at, (size_t)(dash - path.at)) &&
	       cg_output_put(output, so, 3);
}

bool cg_paths_add(struct cg_paths *paths, struct cg_text path)
{
	return cg_table_make(&paths->labels, path.at, path.length) != NULL;
}

/* A path as its ends are compared: one slash between parts, and none in front. */
struct seen {
	struct cg_entry *path;
	struct cg_output text;
};

static bool put_seen(struct seen *seen, struct cg_text path, bool has_version)
{
	struct cg_output *text = &seen->text;
	size_t last = path.length;
	while (last && path.at[last - 1] != '/')
		last--;
	for (size_t i = 0; i < last; i++) {
		bool is_more = path.at[i] == '/' && (!text->length || path.at[i - 1] == '/');
		if (!is_more)
			cg_output_put(text, path.at + i, 1);
	}
	struct cg_text name = cg_text(path.at + last, path.length - last);
	/* So that there are bytes to point to. */
	return (has_version ? cg_output_text(text, name) : put_unversioned(text, name)) &&
	       cg_output_put(text, "", 1);
}

static size_t length_of(const struct seen *seen)
{
	return seen->text.length - 1;
}

/* The n-th byte from the end, 1 the last one. The start and slashes come before all others, so that
 * in the order of ends those with a part in common stand together. */
static int byte_from_end(const struct seen *seen, size_t n)
{
	if (n > length_of(seen))
		return -1;
	char c = seen->text.at[length_of(seen) - n];
	return c == '/' ? 0 : (unsigned char)c + 1;
}

static int by_end(const void *left, const void *right)
{
	for (size_t n = 1;; n++) {
		int a = byte_from_end(left, n), b = byte_from_end(right, n);
		if (a != b)
			return a < b ? -1 : 1;
		if (a < 0)
			return 0;
	}
}

/* How many of their last parts are the same; SIZE_MAX: all of both. */
static size_t parts_in_common(const struct seen *left, const struct seen *right)
{
	size_t parts = 0;
	for (size_t n = 1;; n++) {
		int a = byte_from_end(left, n), b = byte_from_end(right, n);
		parts += a <= 0 && b <= 0;
		if (a != b)
			return parts;
		if (a < 0)
			return SIZE_MAX;
	}
}

/* The last `parts` parts; all when there are fewer. */
static struct cg_text end_of(const struct seen *seen, size_t parts)
{
	size_t n = 0;
	while (n < length_of(seen) && (parts -= byte_from_end(seen, n + 1) == 0))
		n++;
	return cg_text(seen->text.at + length_of(seen) - n, n);
}

/* Gives a path that has no label the least of its ends that no other path has. */
static bool give_label(struct cg_paths *paths, const struct seen *all, size_t i, size_t count)
{
	size_t before = i ? parts_in_common(&all[i], &all[i - 1]) : 0;
	size_t behind = i + 1 < count ? parts_in_common(&all[i], &all[i + 1]) : 0;
	size_t most = before > behind ? before : behind;
	if (all[i].path->text.at || most == SIZE_MAX)
		return true;
	struct cg_text end = end_of(&all[i], most + 1);
	struct cg_entry *kept = cg_table_make(&paths->ends, end.at, end.length);
	if (kept)
		all[i].path->text = kept->key;
	return kept != NULL;
}

/* False: no memory. */
static bool label_by(struct cg_paths *paths, bool has_version)
{
	size_t count = 0;
	struct seen *all = calloc(paths->labels.count + 1, sizeof *all);
	bool is_done = all != NULL;
	for (size_t i = 0; is_done && i < paths->labels.slot_count; i++) {
		struct cg_entry *path = paths->labels.slots[i];
		if (!path)
			continue;
		all[count].path = path;
		is_done = put_seen(&all[count++], path->key, has_version);
	}
	if (is_done)
		qsort(all, count, sizeof *all, by_end);
	for (size_t i = 0; is_done && i < count; i++)
		is_done = give_label(paths, all, i, count);
	for (size_t i = 0; i < count; i++)
		cg_output_end(&all[i].text);
	free(all);
	return is_done;
}

bool cg_paths_label(struct cg_paths *paths)
{
	/* With versions those that differ in nothing else. */
	if (!label_by(paths, false) || !label_by(paths, true))
		return false;
	/* Those that differ in nothing but slashes. */
	for (size_t i = 0; i < paths->labels.slot_count; i++) {
		struct cg_entry *path = paths->labels.slots[i];
		if (!path || path->text.at)
			continue;
		size_t start = path->key.length;
		while (start && path->key.at[start - 1] != '/')
			start--;
		path->text = cg_text(path->key.at + start, path->key.length - start);
	}
	return true;
}

struct cg_text cg_paths_find(const struct cg_paths *paths, struct cg_text path)
{
	return cg_table_find(&paths->labels, path.at, path.length)->text;
}

void cg_paths_end(struct cg_paths *paths)
{
	cg_table_end(&paths->labels);
	cg_table_end(&paths->ends);
}

bool cg_redact_bytes(struct cg_output *output, struct cg_text text)
{
	while (text.length) {
		unsigned bytes = cg_character(text);
		cg_output_put(output, bytes ? text.at : "\xef\xbf\xbd", bytes ? bytes : 3);
		bytes += !bytes;
		text = cg_text(text.at + bytes, text.length - bytes);
	}
	return !output->failed;
}

/* ---- functions ------------------------------------------------------------------------------- */

static bool is_alphanumeric(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* The bytes of the address at the beginning, or 0. */
static size_t address_at(struct cg_text text)
{
	size_t n = 2;
	if (text.length < 3 || text.at[0] != '0' || text.at[1] != 'x')
		return 0;
	while (n < text.length && ((text.at[n] >= '0' && text.at[n] <= '9') ||
				   (text.at[n] >= 'a' && text.at[n] <= 'f')))
		n++;
	return n > 2 ? n : 0;
}

/* Is the rest what tells two blocks of one name apart: an address, perhaps a size? */
static bool is_mark(struct cg_text rest)
{
	if (rest.length < 3 || rest.at[0] != ' ' || rest.at[1] != '@')
		return false;
	size_t n = address_at(cg_text(rest.at + 2, rest.length - 2)) + 2;
	return n > 2 &&
	       (n == rest.length ||
		(rest.at[n] == '+' && is_number(rest.at + n + 1, rest.at + rest.length, false)));
}

/* The bytes up to behind the last slash of a path that begins here, or 0. One slash is none: there
 * are procedures of that name. */
static size_t folders_at(struct cg_text rest, char before)
{
	if (*rest.at != '/' || (before && !strchr(" :@(<[,=\"", before)) || rest.length < 2 ||
	    !(is_alphanumeric(rest.at[1]) || strchr("._~", rest.at[1])))
		return 0;
	size_t last = rest.length - 1;
	while (rest.at[last] != '/')
		last--;
	return last ? last + 1 : 0;
}

/* Is the rest the version of a symbol? */
static bool is_symbol_version(struct cg_text rest)
{
	if (*rest.at != '@')
		return false;
	size_t n = rest.length > 1 && rest.at[1] == '@' ? 2 : 1;
	if (n == rest.length || rest.at[n] < 'A' || rest.at[n] > 'Z')
		return false;
	while (n < rest.length && (is_alphanumeric(rest.at[n]) || strchr("._", rest.at[n])))
		n++;
	return n == rest.length;
}

enum { LEAST_ADDRESS = 8 }; /* bytes of 0x and digits: shorter ones are numbers */

static void put_piece(struct cg_output *output, struct cg_text piece, bool may_be_block,
		      bool may_be_symbol)
{
	char before = 0;
	if (piece.length && address_at(piece) == piece.length) {
		cg_output_print(output, "[unnamed]");
		return;
	}
	while (piece.length) {
		unsigned bytes = cg_character(piece);
		size_t skipped = folders_at(piece, before), address = address_at(piece);
		if ((may_be_block && is_mark(piece)) || (may_be_symbol && is_symbol_version(piece)))
			return;
		if (!may_be_block || is_alphanumeric(before) || address < LEAST_ADDRESS)
			address = 0;
		if (address)
			cg_output_print(output, "[address]");
		else if (!skipped)
			cg_redact_bytes(output, cg_text(piece.at, bytes ? bytes : 1));
		size_t n = skipped ? skipped : address ? address : bytes ? bytes : 1;
		before = piece.at[n - 1];
		piece = cg_text(piece.at + n, piece.length - n);
	}
}

bool cg_redact_function(struct cg_output *output, struct cg_text name, bool is_in_no_object)
{
	bool may_be_block = is_in_no_object, may_be_symbol = !is_in_no_object;
	while (!output->failed) {
		const char *mark = memchr(name.at, '\'', name.length);
		size_t n = mark ? (size_t)(mark - name.at) : name.length;
		put_piece(output, cg_text(name.at, n), may_be_block, may_be_symbol);
		if (!mark)
			break;
		cg_output_put(output, "'", 1);
		name = cg_text(name.at + n + 1, name.length - n - 1);
		/* Callers are in an object or in none, whatever the function itself is. */
		may_be_block = may_be_symbol = true;
	}
	return !output->failed;
}
