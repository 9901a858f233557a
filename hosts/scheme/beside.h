/* SPDX-License-Identifier: MIT
 * beside.h: a second VM instance that comes and goes while the first one runs.
 */
#pragma once

#include "vm.h"

struct beside;
struct beside *beside_start(const struct vm_options *options, const char *path);
int beside_stop(struct beside *beside); /* returns the number of failed runs */
