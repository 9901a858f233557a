/* SPDX-License-Identifier: MIT
 * codeheap.hpp: codeheap.h for C++17 and later, with a class for each thing to give back: its
 * destructor gives the thing back. For calls without a function here, get() of a heap, a vm or a
 * function gives the pointer or handle of codeheap.h, get() of a code its address, and
 * open_block::code() the ch_code.
 *
 *     codeheap::heap heap;
 *     codeheap::check(heap.create());
 *     codeheap::code<int(int)> twice;
 *     codeheap::check(twice.add(heap, bytes, sizeof bytes, "twice"));
 *     std::cout << twice(21);
 *
 * codeheap::function is for functions that a VM compiles, interprets and compiles again.
 *
 * Each call answers with a status, and is noexcept. check() makes a codeheap::error of every status
 * but CH_OK; programs without exceptions look at the status. No object is copied. Objects move, but
 * for `attached` and `parked`, which belong to one thread. An object that was moved from, or not
 * made yet, is empty. A call that gives the thing back empties its object on CH_OK; free(),
 * release() and abort() do so, too, when the thing was gone before, and commit() when it aborted
 * the block (CH_E_STALE). A call that needs what an empty object lacks fails; calls of code itself
 * (operator()) have no status. Declare the heap before the objects that live in the heap:
 * destructors run in reverse order. A code or function that outlives its heap frees nothing. A call
 * that makes code attaches its thread; a thread that only runs code makes an `attached`. */
#ifndef CODEHEAP_CODEHEAP_HPP
#define CODEHEAP_CODEHEAP_HPP

#include <codeheap/codeheap.h>
#include <codeheap/look.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#ifdef __cpp_exceptions
#include <stdexcept>
#include <string>
#endif

namespace codeheap
{

/* --- status --- */

namespace inner
{

/* A call that a class of this header refused by itself: the library has no sentence of the call. */
struct refusal {
	ch_status status;
	const char *sentence;
	std::size_t earlier; /* the hash of ch_why, which has the sentence of an earlier failure */
};
inline thread_local refusal last = {};

inline std::size_t hash_of_why() noexcept
{
	return std::hash<std::string_view>()(ch_why());
}
inline ch_status refuse(ch_status status, const char *sentence) noexcept
{
	last = {status, sentence, hash_of_why()};
	return status;
}

} // namespace inner

#ifdef __cpp_exceptions
/* A status other than CH_OK, as a sentence: the text of the status, then the sentence of ch_why, or
 * of the class that refused the call. The sentence of another failure is left out. */
class error : public std::runtime_error
{
      public:
	explicit error(ch_status status) : std::runtime_error(sentence(status)), its_status(status)
	{
	}
	ch_status status() const noexcept
	{
		return its_status;
	}

      private:
	static std::string sentence(ch_status status)
	{
		static const char *const names[] = {
#define X(name, text) #name ": ",
			CH_STATUS_LIST(X)
#undef X
		};
		inner::refusal last = std::exchange(inner::last, inner::refusal());
		std::string said = ch_status_text(status), why = ch_why();
		if (last.sentence && last.status == status &&
		    last.earlier == inner::hash_of_why())
			return said + ": " + last.sentence;
		bool is_known = static_cast<std::size_t>(status) < sizeof names / sizeof *names;
		return is_known && why.rfind(names[status], 0) == 0 ? said + ": " + why : said;
	}
	ch_status its_status;
};

/* Takes the status of the last call: make no other call of the library in between. */
inline void check(ch_status status)
{
	if (status != CH_OK)
		throw error(status);
}
#endif

/* A structure of codeheap.h with its size filled in, and all other fields zero: the default. */
template <class Structure> Structure sized() noexcept
{
	Structure made = {};
	made.size = sizeof made;
	return made;
}

/* --- heap, vm --- */

class heap
{
      public:
	heap() noexcept = default;
	heap(heap &&other) noexcept : its_heap(std::exchange(other.its_heap, nullptr))
	{
	}
	heap &operator=(heap other) noexcept
	{
		std::swap(its_heap, other.its_heap);
		return *this;
	}
	/* A heap in use (CH_E_BUSY) stays: its code may run. */
	~heap()
	{
		(void)(its_heap && destroy() == CH_OK);
	}
	/* ret  as ch_heap_create | CH_E_STATE the object has a heap already */
	[[nodiscard]] ch_status create(const ch_config *config = nullptr) noexcept
	{
		return its_heap ? inner::refuse(CH_E_STATE, "the object has a heap already")
				: ch_heap_create(config, &its_heap);
	}
	[[nodiscard]] ch_status destroy() noexcept
	{
		ch_status status = ch_heap_destroy(its_heap);
		if (status == CH_OK)
			its_heap = nullptr;
		return status;
	}
	[[nodiscard]] ch_status collect() noexcept
	{
		return ch_heap_collect(its_heap);
	}
	/* The request that open_block::open takes for code that a `code` has in the end. */
	ch_open opens(std::uint32_t hot_bytes, const char *name = nullptr) const noexcept
	{
		ch_open request = sized<ch_open>();
		request.heap = its_heap;
		request.hot_bytes = hot_bytes;
		request.name = name;
		return request;
	}
	[[nodiscard]] ch_status stats(ch_stats &stats) const noexcept
	{
		stats = sized<ch_stats>();
		return ch_heap_stats(its_heap, &stats);
	}
	ch_heap *get() const noexcept
	{
		return its_heap;
	}
	explicit operator bool() const noexcept
	{
		return its_heap != nullptr;
	}

      private:
	ch_heap *its_heap = nullptr;
};

class vm
{
      public:
	vm() noexcept = default;
	vm(vm &&other) noexcept : its_vm(std::exchange(other.its_vm, nullptr))
	{
	}
	vm &operator=(vm other) noexcept
	{
		std::swap(its_vm, other.its_vm);
		return *this;
	}
	~vm()
	{
		while (its_vm && detach() == CH_E_BUSY)
			continue;
	}
	/* in   ops  none: a vm without callbacks
	 * ret  as ch_vm_attach | CH_E_STATE the vm is attached already */
	[[nodiscard]] ch_status attach(const heap &heap, const ch_ops &ops = sized<ch_ops>(),
				       void *user = nullptr) noexcept
	{
		return its_vm ? inner::refuse(CH_E_STATE, "the object has a vm already")
			      : ch_vm_attach(heap.get(), &ops, user, &its_vm);
	}
	/* No thread runs code of the vm, or will. After a failure the object has the vm still. */
	[[nodiscard]] ch_status detach() noexcept
	{
		ch_status status = ch_vm_detach(its_vm);
		if (status == CH_OK)
			its_vm = nullptr;
		return status;
	}
	ch_vm *get() const noexcept
	{
		return its_vm;
	}
	explicit operator bool() const noexcept
	{
		return its_vm != nullptr;
	}

      private:
	ch_vm *its_vm = nullptr;
};

/* --- thread --- */

/* The thread that makes the object is attached to the heap until the object ends. A thread that was
 * attached before, by ch_thread_attach, an `attached` or a call that makes code, stays attached
 * afterwards. So a function that leaves its thread as it was makes the object first. Make the
 * object on the thread's own stack, or on an attached fiber's: on another stack the object does not
 * see that a call attached the thread, and detaches the thread. */
class attached
{
      public:
	explicit attached(const heap &heap) noexcept : attached(heap.get())
	{
	}
	explicit attached(ch_heap *heap) noexcept
	    : was_attached(has(heap)), its_heap(heap),
	      its_status(was_attached ? CH_OK : ch_thread_attach(its_heap, nullptr, nullptr))
	{
	}
	attached(const attached &) = delete;
	attached &operator=(const attached &) = delete;
	~attached()
	{
		(void)(!was_attached && its_status == CH_OK && ch_thread_detach(its_heap) == CH_OK);
	}
	/* ret  as ch_thread_attach; CH_OK also where the thread was attached before */
	[[nodiscard]] ch_status status() const noexcept
	{
		return its_status == CH_E_THREAD ? CH_OK : its_status;
	}

      private:
	/* Only in an attached thread a walk by frame pointers knows the stack. */
	static bool has(ch_heap *heap) noexcept
	{
		const void *caller;
		return ch_thread_poll_word(heap) &&
		       ch_backtrace(heap, CH_BACKTRACE_FRAMES, nullptr, &caller, 1) > 0;
	}
	bool was_attached;
	ch_heap *its_heap;
	ch_status its_status;
};

/* For each wait: a parked thread holds up no collection. */
class parked
{
      public:
	parked() noexcept
	{
		ch_thread_park();
	}
	parked(const parked &) = delete;
	parked &operator=(const parked &) = delete;
	~parked()
	{
		ch_thread_unpark();
	}
};

/* --- block --- */

/* A block that is being written. The destructor aborts a block that was not committed, but in a
 * thread that is not attached: there the block stays OPEN until its heap ends. */
class open_block
{
      public:
	open_block() noexcept = default;
	open_block(open_block &&other) noexcept
	    : its_code(std::exchange(other.its_code, ch_code())),
	      is_open(std::exchange(other.is_open, false)), can_be_freed(other.can_be_freed)
	{
	}
	open_block &operator=(open_block other) noexcept
	{
		std::swap(its_code, other.its_code);
		std::swap(is_open, other.is_open);
		std::swap(can_be_freed, other.can_be_freed);
		return *this;
	}
	~open_block()
	{
		const int before = errno; // of a commit that failed
		(void)(is_open && abort() == CH_OK);
		errno = before;
	}
	/* ret  as ch_block_open | CH_E_STATE the object has an open block already */
	[[nodiscard]] ch_status open(const ch_open &request) noexcept
	{
		if (is_open)
			return inner::refuse(CH_E_STATE, "the object has an open block already");
		ch_status status = ch_block_open(&request, &its_code);
		is_open = status == CH_OK;
		can_be_freed = request.heap || (request.flags & CH_OPEN_KEPT);
		return status;
	}
	/* Puts bytes behind the bytes of earlier calls. False: no room, and nothing was put. */
	[[nodiscard]] bool append(const void *bytes, std::size_t count) noexcept
	{
		std::uint32_t room = its_code.hot_bytes, used = its_code.used_to;
		if (used > room || count > room - used)
			return false;
		if (count)
			std::memcpy(its_code.write + used, bytes, count);
		its_code.used_to += static_cast<std::uint32_t>(count);
		return true;
	}
	/* Clears the addresses: on a stack the addresses would hold the block. */
	[[nodiscard]] ch_status commit(ch_block &made) noexcept
	{
		ch_block handle = its_code.block;
		ch_status status = ch_block_commit(&its_code, 1);
		made = status == CH_OK ? handle : ch_block();
		if (status == CH_OK || status == CH_E_STALE)
			forget();
		return status;
	}
	[[nodiscard]] ch_status abort() noexcept
	{
		bool was_there = is_there(); /* asked first: ch_why is of the abort */
		ch_status status = ch_block_abort(&its_code);
		if (status == CH_OK || !was_there)
			forget();
		return status;
	}
	/* The fields that codeheap.h marks "in", and `write` and `exec`. */
	ch_code &code() noexcept
	{
		return its_code;
	}
	/* ch_code_free takes the block: it has no owner, or CH_OPEN_KEPT. */
	bool is_freed_by_address() const noexcept
	{
		return can_be_freed;
	}
	explicit operator bool() const noexcept
	{
		return is_open;
	}

      private:
	/* Whether the block is OPEN, or every call with a lock is refused (CH_E_STATE). */
	bool is_there() const noexcept
	{
		ch_info info = sized<ch_info>();
		ch_status status = ch_block_info(its_code.block, &info);
		return status == CH_OK ? info.state == CH_BLOCK_OPEN : status == CH_E_STATE;
	}
	/* The compiler may not leave out the stores, though nobody reads the fields. */
	void forget() noexcept
	{
		its_code = ch_code();
		is_open = false;
		__asm__ volatile("" : : "r"(&its_code) : "memory");
	}
	ch_code its_code = {};
	bool is_open = false, can_be_freed = false;
};

/* --- code --- */

/* Code without a vm and an owner. The code lives until free(), or until the object ends: then a
 * collection frees the code when no thread runs the code any more. A thread that made code and
 * sleeps holds collections up: give a ch_config.stop_signal, or put a `parked` around the sleep.
 *
 * An emitter writes bytes that depend on their address into an open block first:
 *
 *     codeheap::open_block block;
 *     codeheap::check(block.open(heap.opens(64, "twice")));
 *     block.code().used_to = emit(block.code().write, block.code().exec);
 *     codeheap::check(twice.commit(block)); */
template <class Signature> class code;
template <class Result, class... Arguments> class code<Result(Arguments...)>
{
      public:
	using pointer = Result (*)(Arguments...);
	code() noexcept = default;
	code(code &&other) noexcept
	    : its_block(other.its_block), its_entry(std::exchange(other.its_entry, nullptr))
	{
	}
	code &operator=(code other) noexcept
	{
		std::swap(its_block, other.its_block);
		std::swap(its_entry, other.its_entry);
		return *this;
	}
	~code()
	{
		(void)(its_entry && free() == CH_OK);
	}
	/* in   bytes, count  run at any address
	 * ret  as ch_code_add | CH_E_STATE the object has code already */
	[[nodiscard]] ch_status add(const heap &heap, const void *bytes, std::size_t count,
				    const char *name) noexcept
	{
		if (its_entry)
			return inner::refuse(CH_E_STATE, "the object has code already");
		ch_status status = ch_code_add(heap.get(), bytes, count, name, &its_entry);
		if (status == CH_OK)
			its_block = block_at(reinterpret_cast<const void *>(its_entry));
		return status;
	}
	/* in   block  opened with heap::opens, or with CH_OPEN_KEPT; the code is entered where
	 *             entry_offset says. On CH_OK the open_block is empty afterwards
	 * ret  as ch_block_commit | CH_E_STATE the object has code, or the block is an owner's */
	[[nodiscard]] ch_status commit(open_block &block) noexcept
	{
		if (its_entry)
			return inner::refuse(CH_E_STATE, "the object has code already");
		if (block && !block.is_freed_by_address())
			return inner::refuse(CH_E_STATE, "an owner's block: function::set_entry");
		/* An empty block has no exec to count from. */
		auto entry = reinterpret_cast<std::uintptr_t>(block.code().exec) +
			     block.code().entry_offset;
		ch_block made;
		ch_status status = block.commit(made);
		if (status != CH_OK)
			return status;
		its_block = made;
		its_entry = reinterpret_cast<pointer>(entry);
		return status;
	}
	/* Not inlined: a copy of the address in the caller's frame would hold the block.
	 * ret  as ch_code_free | CH_E_STALE the code is gone, and maybe the heap, too */
	[[nodiscard]] __attribute__((noinline)) ch_status
	free(ch_release how = CH_RELEASE_COLLECT) noexcept
	{
		const void *at = reinterpret_cast<const void *>(its_entry);
		/* Another heap may have code there by now. */
		bool is_there = at && block_at(at).bits == its_block.bits;
		ch_status status = is_there ? ch_code_free(nullptr, at, how)
					    : inner::refuse(CH_E_STALE, "the code is gone");
		if (status == CH_OK || status == CH_E_STALE)
			its_entry = nullptr;
		return status;
	}
	Result operator()(Arguments... arguments) const
	{
		return its_entry(std::forward<Arguments>(arguments)...);
	}
	pointer get() const noexcept
	{
		return its_entry;
	}
	explicit operator bool() const noexcept
	{
		return its_entry != nullptr;
	}

      private:
	__attribute__((noinline)) static ch_block block_at(const void *at) noexcept
	{
		ch_spot spot = sized<ch_spot>();
		bool is_there = ch_code_at(nullptr, at, false, &spot);
		ch_block found = is_there ? spot.block : ch_block();
		/* On a stack its addresses would hold the block. */
		spot = ch_spot();
		__asm__ volatile("" : : "r"(&spot) : "memory");
		return found;
	}
	ch_block its_block = {};
	pointer its_entry = nullptr;
};

/* --- function --- */

/* An owner whose code has a type. A call goes through the entry cell: the call is right at any
 * time, in any attached thread, and calls the fallback while there is no code. */
template <class Signature> class function;
template <class Result, class... Arguments> class function<Result(Arguments...)>
{
      public:
	using pointer = Result (*)(Arguments...);
	function() noexcept = default;
	function(function &&other) noexcept
	    : its_owner(std::exchange(other.its_owner, ch_owner())),
	      its_cell(std::exchange(other.its_cell, nullptr))
	{
	}
	function &operator=(function other) noexcept
	{
		std::swap(its_owner, other.its_owner);
		std::swap(its_cell, other.its_cell);
		return *this;
	}
	/* A collection frees the code when no thread runs the code any more. The program collects
	 * where a vm has collect_wanted or stop_world. Else ch_thread_poll collects, as compile
	 * does with the flag CH_OPEN_MAY_COLLECT: a program that never does either frees none. */
	~function()
	{
		(void)(its_cell && release() == CH_OK);
	}
	/* in   fallback  called while there is no code; nullptr: a trap that says so
	 * ret  as ch_owner_create | CH_E_STATE the owner was created already */
	[[nodiscard]] ch_status create(const vm &vm, const char *name, pointer fallback,
				       void *user = nullptr) noexcept
	{
		if (its_cell)
			return inner::refuse(CH_E_STATE, "the object has an owner already");
		ch_status status = ch_owner_create(
			vm.get(), name, reinterpret_cast<const void *>(fallback), user, &its_owner);
		its_cell = status == CH_OK ? ch_owner_cell(its_owner) : nullptr;
		return status;
	}
	/* Makes code of bytes that run at any address: calls enter the new code from here on.
	 * ret  as ch_block_open, ch_block_commit and ch_owner_set_entry */
	[[nodiscard]] ch_status compile(const void *bytes, std::size_t count,
					unsigned flags = 0) noexcept
	{
		if (!bytes)
			return inner::refuse(CH_E_ARG, "bytes is NULL");
		if (count > UINT32_MAX)
			return inner::refuse(CH_E_ARG, "count is beyond 4294967295");
		ch_open request = opens(static_cast<std::uint32_t>(count));
		request.flags = flags;
		open_block block;
		ch_block made;
		ch_status status = block.open(request);
		if (status != CH_OK)
			return status;
		if (!block.append(bytes, count))
			return inner::refuse(CH_E_ARG, "the block has no room for the bytes");
		/* Other threads may collect before the entry: the word holds the block. */
		[[maybe_unused]] const void *volatile held = block.code().exec;
		status = block.commit(made);
		if (status == CH_OK)
			status = set_entry(made);
		held = nullptr;
		return status;
	}
	/* The request that open_block::open takes for code of the function. Calls enter the code
	 * after open_block::commit and set_entry. CH_E_STALE of set_entry: three collections came
	 * in between and freed the block; compile again. */
	ch_open opens(std::uint32_t hot_bytes) const noexcept
	{
		ch_open request = sized<ch_open>();
		request.owner = its_owner;
		request.hot_bytes = hot_bytes;
		return request;
	}
	/* in   block  of the function; none = back to the fallback */
	[[nodiscard]] ch_status set_entry(ch_block block) noexcept
	{
		return ch_owner_set_entry(its_owner, block);
	}
	[[nodiscard]] ch_status release(ch_release how = CH_RELEASE_COLLECT) noexcept
	{
		ch_status status = ch_owner_release(its_owner, how);
		if (status == CH_OK || status == CH_E_STALE) {
			its_owner = ch_owner();
			its_cell = nullptr;
		}
		return status;
	}
	Result operator()(Arguments... arguments) const
	{
		const void *entry = __atomic_load_n(its_cell, __ATOMIC_RELAXED);
		return reinterpret_cast<pointer>(const_cast<void *>(entry))(
			std::forward<Arguments>(arguments)...);
	}
	ch_owner get() const noexcept
	{
		return its_owner;
	}
	explicit operator bool() const noexcept
	{
		return its_cell != nullptr;
	}

      private:
	ch_owner its_owner = {};
	const void *const *its_cell = nullptr;
};

} // namespace codeheap

#endif
