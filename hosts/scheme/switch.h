/* SPDX-License-Identifier: MIT
 * switch.h: the switch from one C stack to another. switch_<isa>.c implements it.
 */
#pragma once

#include "vm.h"

/* Saves the registers preserved by the C ABI on the current stack, stores the stack pointer in
 * *save, and continues the stack whose pointer is `load`. */
void switch_stacks(struct context *ctx, void **save, void *load);

/* Returns the stack pointer for a new stack; the switch starts entry(ctx of the switch) there. */
void *switch_prepare(char *high, void (*entry)(struct context *ctx));
