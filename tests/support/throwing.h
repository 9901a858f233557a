/* SPDX-License-Identifier: MIT
 * throwing.h: C++ exceptions for tests in C. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { THROWING_CAUGHT = 1000 };

/* Returns the result of fn, or the thrown number + THROWING_CAUGHT. */
uint64_t throwing_catch(uint64_t (*fn)(void *), void *arg);
__attribute__((noreturn)) void throwing_throw(int number);
/* Calls leave(arg) when fn has returned or its frame is unwound, also by a cancellation. */
void throwing_guard(uint64_t (*fn)(void *), void *arg, void (*leave)(void *));

#ifdef __cplusplus
}
#endif
