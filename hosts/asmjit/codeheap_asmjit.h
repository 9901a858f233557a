/* SPDX-License-Identifier: MIT
 * codeheap_asmjit.h: a JitRuntime of AsmJit whose code lies in a code heap: named, known to
 * unwinders and profilers, collected when nothing runs the code. One file to copy; C++17, AsmJit of
 * 2022-12 (1.9), x86-64. Uses no exceptions, like AsmJit.
 *
 *     ch_asmjit_runtime runtime(heap);
 *     asmjit::CodeHolder code;
 *     code.init(runtime.environment());
 *     ...
 *     int (*twice)(int);
 *     runtime.add(&twice, &code, "twice"); // the address lives until runtime.release(twice)
 *
 *     ch_asmjit_function<int(int)> handle;  // or a handle, which calls through the owner's cell
 *     runtime.add(&handle, &code, "twice", interpret);
 *     handle(21);
 *
 * Rules, with their reasons in README.md: the heap's driver is the built-in one. Each thread that
 * runs code is attached: add() attaches the calling thread, other threads call attach(), and the
 * end of a thread detaches the thread. add() may collect: the caller holds no lock that another
 * attached thread waits for unparked. Code keeps the frame pointer (runtime.prepare(func)), unless
 * the options say otherwise. */
#ifndef CODEHEAP_ASMJIT_H
#define CODEHEAP_ASMJIT_H

#include <asmjit/x86.h>
#include <codeheap/codeheap.h>

#include <cerrno>
#include <utility>

/* --- errors --- */

/* The AsmJit error for a status of the heap. "Out of memory" is also a pool without room: collect,
 * release, and add again. */
inline asmjit::Error ch_asmjit_error(ch_status status) noexcept
{
	switch (status) {
	case CH_OK:
		return asmjit::kErrorOk;
	case CH_E_FULL:
	case CH_E_MEMORY:
		return asmjit::kErrorOutOfMemory;
	case CH_E_ARG:
		return asmjit::kErrorInvalidArgument;
	case CH_E_REACH:
		return asmjit::kErrorRelocOffsetOutOfRange;
	case CH_E_OS:
		if (errno == EMFILE || errno == ENFILE)
			return asmjit::kErrorTooManyHandles;
		/* For example in a child of fork without code. */
		return errno == ENOMEM ? asmjit::kErrorOutOfMemory
				       : asmjit::kErrorFeatureNotEnabled;
	default:
		return asmjit::kErrorInvalidState;
	}
}

/* --- a function --- */

/* A function that is called through its owner's entry cell. A call is right at all times: when the
 * code is gone, the fallback is called. The end of the handle ends the function; the code goes when
 * no stack is in it. Movable. A thread that calls is attached. */
template <class Signature> class ch_asmjit_function;
template <class Result, class... Arguments> class ch_asmjit_function<Result(Arguments...)>
{
      public:
	ch_asmjit_function() noexcept = default;
	ch_asmjit_function(ch_asmjit_function &&other) noexcept
	{
		swap(other);
	}
	ch_asmjit_function &operator=(ch_asmjit_function other) noexcept
	{
		swap(other);
		return *this;
	}
	ch_asmjit_function(const ch_asmjit_function &) = delete;
	~ch_asmjit_function() noexcept
	{
		release();
	}
	explicit operator bool() const noexcept
	{
		return cell != nullptr;
	}
	Result operator()(Arguments... arguments) const
	{
		const void *entry = __atomic_load_n(cell, __ATOMIC_RELAXED);
		return reinterpret_cast<Result (*)(Arguments...)>(const_cast<void *>(entry))(
			std::forward<Arguments>(arguments)...);
	}
	/* The word through which other code may call while the handle lives. */
	const void *const *entry_cell() const noexcept
	{
		return cell;
	}
	ch_owner owner() const noexcept
	{
		return its_owner;
	}
	void release() noexcept
	{
		/* CH_E_STALE when the runtime is gone. */
		if (cell)
			(void)(ch_owner_release(its_owner, how) == CH_OK);
		cell = nullptr;
		its_owner = {};
	}

      private:
	friend class ch_asmjit_runtime;
	void swap(ch_asmjit_function &other) noexcept
	{
		std::swap(its_owner, other.its_owner);
		std::swap(cell, other.cell);
		std::swap(how, other.how);
	}
	ch_owner its_owner = {};
	const void *const *cell = nullptr;
	ch_release how = CH_RELEASE_COLLECT;
};

/* --- the runtime --- */

struct ch_asmjit_options {
	/* COLLECT: released code goes when no stack is in it, so a function may release itself.
	 * NOT_RUNNING: released code goes at once; the caller vouches that no thread runs it. */
	ch_release release = CH_RELEASE_COLLECT;
	/* Alignment of the first byte of each code: a power of two, at most 64, as in AsmJit's own
	 * allocator. AsmJit's align() and AsmJit's constants count from the first byte. */
	uint32_t alignment = 64;
	/* How code is unwound: enum ch_frame_shape, or a number of ch_frame_register. */
	uint8_t frame = 0;
	/* True: exceptions pass the code. Each function of the compiler is given to prepare(), and
	 * saves every register that a callee keeps; code by hand pushes rbp, sets rbp, and pushes
	 * rbx, r12, r13, r14, r15 (CH_FRAME_KEEPS_ALL). */
	bool passes_exceptions = false;
	/* False: the code has no known frame. Unwinding ends there, and each code takes whole
	 * pages. */
	bool is_unwound = true;
	/* False: add() never polls and never collects; the program does. */
	bool may_collect = true;
};

class ch_asmjit_runtime : public asmjit::JitRuntime
{
      public:
	/* in   heap  BUILTIN driver; outlives the runtime
	 * note when this fails, status() and each add() return the error */
	explicit ch_asmjit_runtime(ch_heap *heap, const ch_asmjit_options &options = {}) noexcept
	    : its_heap(heap), its_options(options)
	{
		if (options.alignment == 0 || options.alignment > asmjit::Globals::kMaxAlignment ||
		    (options.alignment & (options.alignment - 1)) != 0)
			its_status = CH_E_ARG;
		else if (options.passes_exceptions + (options.frame != 0) + !options.is_unwound > 1)
			its_status = CH_E_ARG;
		else if (options.passes_exceptions)
			its_options.frame = CH_FRAME_KEEPS_ALL;
		if (its_status == CH_OK)
			open_vm();
	}
	/* Ends all functions of the runtime: no thread is in a function, or will be. */
	~ch_asmjit_runtime() noexcept override
	{
		close_vm();
	}
	asmjit::Error status() const noexcept
	{
		return ch_asmjit_error(its_status);
	}
	ch_heap *heap() const noexcept
	{
		return its_heap;
	}
	ch_vm *vm() const noexcept
	{
		return its_vm;
	}
	/* Lets the calling thread run code until the thread ends. May be called again. */
	asmjit::Error attach() const noexcept
	{
		ch_status status = ch_thread_attach(its_heap, nullptr, nullptr);
		return status == CH_E_THREAD ? asmjit::kErrorOk : ch_asmjit_error(status);
	}
	/* Sets the frame that the options ask for; for a function of a compiler, before the
	 * function is finished. */
	void prepare(asmjit::FuncNode *func) const noexcept
	{
		func->frame().setPreservedFP();
		if (its_options.passes_exceptions)
			func->frame().addDirtyRegs(asmjit::RegGroup::kGp, KEPT_BY_CALLEES);
	}
	/* Ends all functions, as the destructor does; the runtime serves on. */
	asmjit::Error reset(asmjit::ResetPolicy = asmjit::ResetPolicy::kSoft) noexcept
	{
		if (!its_vm)
			return status();
		close_vm();
		open_vm();
		return status();
	}
	/* The heap allocates, so there is no AsmJit allocator. */
	asmjit::JitAllocator *allocator() const noexcept = delete;

	using JitRuntime::add;
	/* add() with a name. Without a name, the code is named by a label at the code's beginning,
	 * else by the first label with a name. */
	template <class Function>
	asmjit::Error add(Function *to, asmjit::CodeHolder *code, const char *name) noexcept
	{
		return add_address(reinterpret_cast<void **>(to), code, name);
	}
	/* add() with a handle, whose old function is released. The fallback is called where the
	 * code is gone; without a fallback such a call ends in a trap that says so. */
	template <class Signature>
	asmjit::Error add(ch_asmjit_function<Signature> *to, asmjit::CodeHolder *code,
			  const char *name = nullptr, Signature *fallback = nullptr) noexcept
	{
		ch_asmjit_function<Signature> made; /* on an error the destructor undoes all */
		made.how = its_options.release;
		asmjit::Error error = prepare(code);
		if (error)
			return error;
		ch_status status = ch_owner_create(
			its_vm, name ? name : name_in(code),
			reinterpret_cast<const void *>(fallback), nullptr, &made.its_owner);
		if (status != CH_OK)
			return ch_asmjit_error(status);
		made.cell = ch_owner_cell(made.its_owner);
		error = make(made.its_owner, code, nullptr, nullptr);
		if (error) {
			made.how = CH_RELEASE_NOT_RUNNING; /* no caller has seen the owner */
			return error;
		}
		to->release();
		to->swap(made);
		return asmjit::kErrorOk;
	}
	/* Gives a function other code. Later calls run the new code. Calls that run already finish
	 * in the old code, which goes when no stack is in it. On an error the function stays as it
	 * was. */
	template <class Signature>
	asmjit::Error replace(const ch_asmjit_function<Signature> *of,
			      asmjit::CodeHolder *code) noexcept
	{
		if (!*of)
			return asmjit::kErrorInvalidArgument;
		asmjit::Error error = prepare(code);
		return error ? error : make(of->its_owner, code, nullptr, nullptr);
	}

	asmjit::Error _add(void **to, asmjit::CodeHolder *code) noexcept override
	{
		return add_address(to, code, nullptr);
	}
	/* Takes an address from add(), once. */
	asmjit::Error _release(void *address) noexcept override
	{
		ch_spot spot = {};
		spot.size = sizeof spot;
		bool is_ours = address && ch_code_at(its_heap, address, false, &spot) &&
			       spot.owner.bits == its_owner.bits;
		forget(&spot);
		if (!is_ours)
			return asmjit::kErrorInvalidArgument;
		return ch_asmjit_error(ch_code_free(its_heap, address, its_options.release));
	}

      private:
	ch_heap *its_heap;
	ch_vm *its_vm = nullptr;
	ch_owner its_owner = {}; /* a group: the owner of all functions known by address */
	ch_asmjit_options its_options;
	ch_status its_status = CH_OK;

	/* x86-64: rbx, r12 to r15. AsmJit pushes them behind rbp, in the order of their numbers. */
	static constexpr uint32_t KEPT_BY_CALLEES = 1u << 3 | 0xfu << 12;

	void open_vm() noexcept
	{
		ch_ops ops = {};
		ops.size = sizeof ops;
		its_status = ch_vm_attach(its_heap, &ops, nullptr, &its_vm);
		if (its_status == CH_OK)
			its_status = ch_owner_create(its_vm, nullptr, nullptr, nullptr, &its_owner);
	}
	void close_vm() noexcept
	{
		if (its_vm)
			(void)(ch_vm_detach(its_vm) == CH_OK);
		its_vm = nullptr;
	}

	static const char *name_in(const asmjit::CodeHolder *code) noexcept
	{
		const char *first = nullptr;
		for (const asmjit::LabelEntry *label : code->labelEntries()) {
			if (!label->hasName() || !label->isBound() || label->hasParent())
				continue;
			if (label->offset() + label->section()->offset() == 0)
				return label->name();
			if (!first)
				first = label->name();
		}
		return first ? first : "asmjit";
	}

	asmjit::Error add_address(void **to, asmjit::CodeHolder *code, const char *name) noexcept
	{
		*to = nullptr;
		asmjit::Error error = prepare(code);
		return error ? error : make(its_owner, code, name ? name : name_in(code), to);
	}

	/* Makes the code's size and labels known. On an error nothing is lost. */
	asmjit::Error prepare(asmjit::CodeHolder *code) noexcept
	{
		if (its_status != CH_OK)
			return status();
		if (its_options.may_collect)
			ch_thread_poll();
		asmjit::Error error = code->flatten();
		if (!error)
			error = code->resolveUnresolvedLinks();
		if (!error && code->codeSize() == 0)
			error = asmjit::kErrorNoCodeGenerated;
		return error;
	}

	/* Error of a refused open: too large for the pool, or an unknown frame in the options. */
	asmjit::Error refused(uint64_t bytes) const noexcept
	{
		ch_stats stats;
		stats.size = sizeof stats;
		if (ch_heap_stats(its_heap, &stats) == CH_OK &&
		    bytes + stats.page_bytes < stats.pool_bytes)
			return asmjit::kErrorInvalidArgument;
		return asmjit::kErrorTooLarge;
	}

	/* Addresses on a stack would hold the block. */
	template <class T> static void forget(T *addresses) noexcept
	{
		*addresses = T();
		asm volatile("" : : "r"(addresses) : "memory");
	}

	/* Makes a block with the code. address NULL: the block becomes the entry of a handle's
	 * owner. Or a block of the group, with a name; *address is its address. */
	asmjit::Error make(ch_owner owner, asmjit::CodeHolder *code, const char *name,
			   void **address) noexcept
	{
		size_t bytes = code->codeSize();
		uint32_t alignment = its_options.alignment;
		for (const asmjit::Section *section : code->sections())
			alignment = asmjit::Support::max(alignment, section->alignment());
		ch_open open = {};
		open.size = sizeof open;
		open.owner = owner;
		open.name = name;
		open.hot_bytes = static_cast<uint32_t>(bytes);
		if (open.hot_bytes != bytes)
			return asmjit::kErrorTooLarge;
		open.align = alignment;
		open.frame = its_options.frame;
		open.flags = (address ? CH_OPEN_KEPT : 0) |
			     (its_options.may_collect ? CH_OPEN_MAY_COLLECT : 0) |
			     (its_options.is_unwound ? 0 : CH_OPEN_OWN_FRAMES);
		ch_code room;
		ch_status status = ch_block_open(&open, &room);
		if (status == CH_E_ARG)
			return refused(open.hot_bytes);
		if (status != CH_OK)
			return ch_asmjit_error(status);
		asmjit::Error error = fill(&room, code);
		if (!error)
			error = ch_asmjit_error(ch_block_commit(&room, 1));
		if (error) /* the commit may have aborted the block */
			(void)(ch_block_abort(&room) == CH_OK);
		else if (address)
			*address = room.exec;
		else
			error = ch_asmjit_error(ch_owner_set_entry(owner, room.block));
		forget(&room);
		return error;
	}

	static asmjit::Error fill(ch_code *room, asmjit::CodeHolder *code) noexcept
	{
		uintptr_t base = reinterpret_cast<uintptr_t>(room->exec);
		asmjit::Error error = lead_by_veneers(room, base, code);
		if (!error)
			error = code->relocateToBase(base);
		if (!error)
			error = code->copyFlattenedData(
				room->write, room->hot_bytes,
				asmjit::CopySectionFlags::kPadSectionBuffer);
		if (error)
			return error;
		/* Less than was asked for: a call that reaches its target needs no word in AsmJit's
		 * table of addresses. */
		room->used_to = static_cast<uint32_t>(code->codeSize());
		return asmjit::kErrorOk;
	}

	/* AsmJit leads calls and jumps that do not reach their target through a table behind the
	 * code. A conditional jump cannot go through a table: it goes to a veneer. */
	static asmjit::Error lead_by_veneers(const ch_code *room, uintptr_t base,
					     asmjit::CodeHolder *code) noexcept
	{
		for (asmjit::RelocEntry *reloc : code->relocEntries()) {
			if (reloc->relocType() != asmjit::RelocType::kAbsToRel ||
			    reloc->format().valueSize() != 4 || reloc->format().valueOffset() < 2)
				continue;
			asmjit::Section *section = code->sectionById(reloc->sourceSectionId());
			uint64_t end = base + section->offset() + reloc->sourceOffset() +
				       reloc->format().regionSize();
			const uint8_t *opcode = section->data() + reloc->sourceOffset() +
						reloc->format().valueOffset() - 2;
			if (opcode[0] != 0x0f || (opcode[1] & 0xf0) != 0x80 ||
			    asmjit::Support::isInt32(static_cast<int64_t>(reloc->payload() - end)))
				continue;
			const void *at;
			ch_status status = ch_block_veneer(
				room, reinterpret_cast<const void *>(reloc->payload()), &at);
			if (status != CH_OK)
				return ch_asmjit_error(status);
			reloc->_payload = reinterpret_cast<uintptr_t>(at);
		}
		return asmjit::kErrorOk;
	}
};

#endif
