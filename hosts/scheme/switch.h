/* SPDX-License-Identifier: MIT
 * switch.h: one C stack for another. switch_<isa>.c implements it.
 */
#ifndef SCHEME_SWITCH_H
#define SCHEME_SWITCH_H

#include "vm.h"

/* Saves the registers that the C ABI preserves on the current stack, its pointer in *save, and goes
 * on where the stack `load` was left. */
void switch_stacks(struct context *ctx, void **save, void *load);

/* The stack pointer of a stack that has not run yet and will start at entry(ctx of the switch). */
void *switch_prepare(char *high, void (*entry)(struct context *ctx));

#endif
