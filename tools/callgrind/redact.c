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

/* The last `parts` parts of the path; all when there are fewer. */
static struct cg_text end_of(struct cg_text path, unsigned parts)
{
	size_t start = path.length;
	while (start) {
		if (path.at[start - 1] == '/' && !--parts)
			break;
		start--;
	}
	while (start < path.length && path.at[start] == '/')
		start++;
	return cg_text(path.at + start, path.length - start);
}

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

/* The label of this many parts, or NULL. */
static struct cg_entry *make_end(struct cg_table *ends, struct cg_text path, unsigned parts,
				 bool has_version)
{
	struct cg_output text = {0};
	struct cg_entry *entry = NULL;
	path = end_of(path, parts);
	if (has_version ? cg_output_text(&text, path) : put_unversioned(&text, path))
		entry = cg_table_make(ends, text.at, text.length);
	cg_output_end(&text);
	return entry;
}

/* Labels that one path only has are given to it; false: no memory. */
static bool label_by(struct cg_paths *paths, unsigned parts, bool has_version, size_t *left)
{
	struct cg_table counts = {0};
	bool is_done = true;
	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < paths->labels.slot_count && is_done; i++) {
			struct cg_entry *path = paths->labels.slots[i];
			struct cg_entry *end =
				path ? make_end(&counts, path->key, parts, has_version) : NULL;
			is_done = !path || end;
			if (!end)
				continue;
			end->number += round == 0;
			if (round == 0 || end->number > 1 || path->text.at)
				continue;
			struct cg_entry *kept =
				cg_table_make(&paths->ends, end->key.at, end->key.length);
			is_done = kept != NULL;
			if (kept)
				path->text = kept->key;
			*left -= kept != NULL;
		}
	}
	cg_table_end(&counts);
	return is_done;
}

bool cg_paths_label(struct cg_paths *paths)
{
	size_t left = paths->labels.count;
	unsigned most = 0;
	for (size_t i = 0; i < paths->labels.slot_count; i++) {
		const struct cg_entry *path = paths->labels.slots[i];
		unsigned parts = 1;
		for (size_t c = 0; path && c < path->key.length; c++)
			parts += path->key.at[c] == '/';
		most = parts > most ? parts : most;
	}
	/* With versions those that differ in nothing else. */
	for (int has_version = 0; has_version < 2; has_version++) {
		for (unsigned parts = 1; parts <= most && left; parts++) {
			if (!label_by(paths, parts, has_version, &left))
				return false;
		}
	}
	/* Two that differ in nothing but slashes. */
	for (size_t i = 0; i < paths->labels.slot_count && left; i++) {
		struct cg_entry *path = paths->labels.slots[i];
		if (path && !path->text.at)
			path->text = end_of(path->key, 1);
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
