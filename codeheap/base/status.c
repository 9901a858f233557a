/* SPDX-License-Identifier: MIT
 * status.c: the texts of statuses. */
#include "codeheap/codeheap.h"

const char *ch_status_text(enum ch_status status)
{
	static const char *const texts[] = {
#define X(name, text) text,
		CH_STATUS_LIST(X)
#undef X
	};
	if ((unsigned)status >= sizeof texts / sizeof texts[0])
		return "unknown status";
	return texts[status];
}
