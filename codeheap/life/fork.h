/* SPDX-License-Identifier: MIT
 * fork.h: heaps over a fork (fork.c). */
#ifndef CH_CODEHEAP_LIFE_FORK_H
#define CH_CODEHEAP_LIFE_FORK_H

#include "codeheap/codeheap.h"

bool ch__fork_register(void);

#endif
