/* SPDX-License-Identifier: MIT
 * profile.h: profiles of programs, as flame graphs: --profile and with-flame-profile.
 */
#ifndef SCHEME_PROFILE_H
#define SCHEME_PROFILE_H

#include "vm.h"

enum { PROFILE_RATE = 100, PROFILE_RATE_MOST = 20000, PROFILE_WHY_BYTES = 320 };

struct profile_request {
	const char *path;  /* of the report */
	const char *title; /* NULL: none */
	int64_t rate;      /* samples a second and thread */
	int by_wall_clock; /* threads that wait are sampled, too */
	int is_folded;     /* lines instead of an SVG */
	int is_icicle, is_reversed;
};

/* The words of (with-flame-profile (FILE WORD VALUE ...) ...). */
enum profile_key {
	PROFILE_KEY_NONE,
	PROFILE_KEY_RATE,
	PROFILE_KEY_TITLE,
	PROFILE_KEY_WALL,
	PROFILE_KEY_FOLDED,
	PROFILE_KEY_ICICLE,
	PROFILE_KEY_REVERSED
};
enum profile_key profile_keyword(value symbol);

/* profile_is_folded: what a file's name says of its form. */
int profile_is_folded(const char *path);

/* profile_begin: sample all threads of the process. Returns a number above 0 that is the profile's,
 * or one of these and why: nothing runs then, and no file was touched. */
enum { PROFILE_REFUSED = 0, PROFILE_NO_FILE = -1 };
int64_t profile_begin(struct context *ctx, const struct profile_request *request, char *why);

/* profile_finish: stop whatever runs and write it, where the process ends. 0: it could not be
 * written; said on standard error. */
int profile_finish(struct context *ctx);

/* profile_describe: a line about the last profile that ended: samples, and those that were lost. */
void profile_describe(char *text, size_t bytes);

#endif
