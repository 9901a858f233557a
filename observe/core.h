/* SPDX-License-Identifier: MIT
 * core.h: whether the process has a core for the observers. Their library is linked apart from the
 * core. A process has one of several flavours of the core, perhaps of another release, or none. */
#pragma once

#include <stdbool.h>

/* Whether the process has a core of the observers' release. Ask before any other call of the core.
 * A core of another release is reported on stderr, once. */
bool ch__core_is_ours(void);
