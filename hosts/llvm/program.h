/* SPDX-License-Identifier: MIT
 * program.h: the runner gives a program, beside its code, an end of its own (exit, atexit,
 * destructors of globals), so that many programs run in one process, and threads known to the
 * heap. */
#pragma once

#include <codeheap/codeheap.h>
#include <llvm-c/ExecutionEngine.h>

/* program_start: from here on, new threads are attached to the heap. */
void program_start(struct ch_heap *heap);

/* program_map: lead a program's atexit, exit and __dso_handle to the runner. */
void program_map(LLVMExecutionEngineRef engine, LLVMModuleRef module);

/* program_run: run main until main returns or exit is called, at any depth. Before the return the
 * exit handlers have run, in reverse order of registration.
 * ret   the exit status, 0 to 255 */
int program_run(int (*start)(void *arg), void *arg);
