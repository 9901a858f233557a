/* SPDX-License-Identifier: MIT
 * program.h: what the runner gives to a program beside its code: an end of its own (exit, atexit,
 * destructors of globals), so that many programs run in one process, and threads that the heap
 * knows. */
#ifndef CODEHEAP_LLI_PROGRAM_H
#define CODEHEAP_LLI_PROGRAM_H

#include <codeheap/codeheap.h>
#include <llvm-c/ExecutionEngine.h>

/* program_start: from here on, threads that are made are attached to the heap. */
void program_start(struct ch_heap *heap);

/* program_map: names that a program refers to and that are not the process's lead here instead. */
void program_map(LLVMExecutionEngineRef engine, LLVMModuleRef module);

/* program_run: main, or what ends it: exit in any depth. Its exit handlers have run, in reverse
 * order of their registration, when this returns.
 * ret   the exit status, 0 to 255 */
int program_run(int (*start)(void *arg), void *arg);

#endif
