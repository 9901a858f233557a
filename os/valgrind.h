/* SPDX-License-Identifier: MIT
 * valgrind.h: requests to Valgrind. Without Valgrind a request is some instructions that do
 * nothing. No lock, no system call. */
#pragma once

#include "arch/base.h"

/* From valgrind.h of 3.19. The numbers of memcheck's requests begin with MC. */
enum ch__valgrind_request {
	CH__ASK_RUNS = 0x1001,
	CH__ASK_DISCARD = 0x1002, /* translations of these instructions */
	CH__ASK_CREATE_MEMPOOL = 0x1303,
	CH__ASK_DESTROY_MEMPOOL = 0x1304,
	CH__ASK_MEMPOOL_ALLOC = 0x1305,
	CH__ASK_MEMPOOL_FREE = 0x1306,
	CH__ASK_STACK_REGISTER = 0x1501, /* a stack for threads to switch to; answers its number */
	CH__ASK_STACK_DEREGISTER = 0x1502,
	CH__ASK_CHANGE_REPORTS = 0x1801,
	CH__ASK_MEMCHECK = 'M' << 24 | 'C' << 16,
	CH__ASK_MAKE_NOACCESS = CH__ASK_MEMCHECK,
	CH__ASK_MAKE_DEFINED = CH__ASK_MEMCHECK + 2,
};

uintptr_t ch__valgrind_ask(enum ch__valgrind_request, uintptr_t a, uintptr_t b, uintptr_t c);
bool ch__valgrind_runs(void);
/* Copies words. memcheck reports no undefined or inaccessible word. The copy is defined. Sanitizers
 * judge no read. */
void ch__valgrind_copy(uintptr_t *to, uintptr_t from, size_t words) CH_COLD;
/* For the calling thread; calls nest. */
void ch__valgrind_reports(bool are_wanted) CH_COLD;
