/* SPDX-License-Identifier: MIT
 * cases.h: shared by the cases of the AsmJit runtime: functions made with AsmJit's compiler. */
#pragma once

#include "../cases.h"
#include "codeheap_asmjit.h"

#include <asmjit/x86.h>

#include <string>
#include <vector>

using namespace asmjit;

enum { MIB = 1 << 20 };

inline ch_heap *new_heap(size_t pool_bytes = 0, unsigned sinks = CH_SINK_DEFAULT,
			 const void *near_address = nullptr)
{
	return heap_of(pool_bytes, sinks, near_address);
}

/* --- code made with AsmJit's compiler --- */

struct complaints : ErrorHandler {
	void handleError(Error, const char *message, BaseEmitter *) override
	{
		case_failed(__FILE__, __LINE__, message);
	}
};
inline complaints complain;

/* A function under construction: the holder and its compiler. */
struct draft {
	CodeHolder code;
	x86::Compiler cc;
	FuncNode *func = nullptr;
	draft(const ch_asmjit_runtime &runtime, const FuncSignature &signature)
	{
		OK(code.init(runtime.environment()));
		code.setErrorHandler(&complain);
		OK(code.attach(&cc));
		func = cc.addFunc(signature);
		runtime.prepare(func);
	}
	CodeHolder *done()
	{
		OK(cc.endFunc());
		OK(cc.finalize());
		return &code;
	}
};

/* n + more */
inline CodeHolder *draft_adder(draft *d, int more)
{
	x86::Gp n = d->cc.newInt32("n");
	d->func->setArg(0, n);
	d->cc.add(n, more);
	d->cc.ret(n);
	return d->done();
}

inline int (*add_adder(ch_asmjit_runtime *runtime, int more, const char *name))(int)
{
	draft d(*runtime, FuncSignatureT<int, int>());
	int (*fn)(int);
	OK(runtime->add(&fn, draft_adder(&d, more), name));
	return fn;
}

/* Calls the callee with the first argument, and adds one. */
inline CodeHolder *draft_caller(draft *d, uint64_t callee)
{
	InvokeNode *call;
	x86::Gp n = d->cc.newInt64("n"), result = d->cc.newInt64("result");
	d->func->setArg(0, n);
	OK(d->cc.invoke(&call, imm(callee), FuncSignatureT<int64_t, int64_t>()));
	call->setArg(0, n);
	call->setRet(0, result);
	d->cc.add(result, 1);
	d->cc.ret(result);
	return d->done();
}

typedef int64_t caller(int64_t);

inline caller *add_caller(ch_asmjit_runtime *runtime, const void *callee, const char *name)
{
	draft d(*runtime, FuncSignatureT<int64_t, int64_t>());
	caller *fn;
	OK(runtime->add(&fn, draft_caller(&d, reinterpret_cast<uintptr_t>(callee)), name));
	return fn;
}

template <class Function> inline const void *address_of(Function *function)
{
	return reinterpret_cast<const void *>(function);
}
