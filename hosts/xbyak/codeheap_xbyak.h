/* SPDX-License-Identifier: MIT
 * codeheap_xbyak.h: an Allocator for xbyak on a code heap, for the generators of one thread. Code
 * is written where it runs, and runs once it is committed:
 *
 *     codeheap_xbyak memory(heap, "adder");
 *     Adder adder(4096, nullptr, &memory); // class Adder : Xbyak::CodeGenerator
 *     if (memory.commit(adder) == CH_OK)   // instead of ready()
 *             adder.getCode<int (*)(int)>()(1); */
#ifndef CODEHEAP_XBYAK_H
#define CODEHEAP_XBYAK_H

#include <codeheap/codeheap.h>
#include <string>
#include <vector>
#include <xbyak/xbyak.h>

class codeheap_xbyak : public Xbyak::Allocator
{
      public:
	/* its_name: copied. its_frame: how code is unwound. CH_FRAME_POINTER: each function begins
	 * with push(rbp); mov(rbp, rsp). README.md has a shape for other code, in which unwinders
	 * would crash. */
	codeheap_xbyak(ch_heap *its_heap, const char *its_name,
		       uint8_t its_frame = CH_FRAME_POINTER)
	    : name(its_name ? its_name : "")
	{
		open.size = sizeof open;
		open.heap = its_heap;
		open.frame = its_frame;
		open.flags = CH_OPEN_IN_PLACE;
	}
	uint8_t *alloc(size_t bytes) override
	{
		open.name = name.empty() ? nullptr : name.c_str();
		open.hot_bytes = bytes <= UINT32_MAX ? uint32_t(bytes) : UINT32_MAX;
		opened.emplace_back(); // throws before there is a block
		if (ch_block_open(&open, &opened.back()) == CH_OK)
			return opened.back().exec;
		opened.pop_back();
		return nullptr; // xbyak throws ERR_CANT_ALLOC
	}
	void free(uint8_t *exec) override
	{
		auto code = find(exec);
		if (code == opened.end())
			(void)!ch_code_free(open.heap, exec, CH_RELEASE_NOT_RUNNING);
		else if (ch_block_abort(&*code) == CH_OK) // not committed
			opened.erase(code);
	}
	bool useProtect() const override { return false; }
	ch_status commit(Xbyak::CodeGenerator &generator)
	{
		generator.ready();
#ifdef XBYAK_NO_EXCEPTION
		if (Xbyak::GetError()) // the code lacks what xbyak refused
			return CH_E_STATE;
#endif
		auto code = find(generator.getCode());
		if (code == opened.end())
			return CH_E_STATE;
		code->used_to = uint32_t(generator.getSize());
		ch_status status = ch_block_commit(&*code, 1);
		if (status == CH_OK)
			opened.erase(code);
		return status;
	}

      private:
	std::string name;
	ch_open open = {}; // what each block is opened by
	std::vector<ch_code> opened;

	std::vector<ch_code>::iterator find(const uint8_t *exec)
	{
		auto code = opened.begin();
		while (code != opened.end() && code->exec != exec)
			++code;
		return code;
	}
};
#endif
