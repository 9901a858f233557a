/* SPDX-License-Identifier: MIT
 * panic.h: the VM's hook of a panic (panic.c). */
#ifndef CH_CODEHEAP_BASE_PANIC_H
#define CH_CODEHEAP_BASE_PANIC_H

#include "codeheap/codeheap.h"

void ch__panic_set_hook(void (*hook)(const char *));

#endif
