/* SPDX-License-Identifier: MIT
 * throwing.h: C++ exceptions for tests in C. */
#ifndef CH_TESTS_THROWING_H
#define CH_TESTS_THROWING_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { THROWING_CAUGHT = 1000 };

/* What fn returns, or the number that was thrown and THROWING_CAUGHT. */
uint64_t throwing_catch(uint64_t (*fn)(void *), void *arg);
__attribute__((noreturn)) void throwing_throw(int number);
/* Calls leave(arg) when fn returned or its frame is unwound, by a cancellation, too. */
void throwing_guard(uint64_t (*fn)(void *), void *arg, void (*leave)(void *));

#ifdef __cplusplus
}
#endif
#endif
