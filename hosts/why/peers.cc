/* SPDX-License-Identifier: MIT
 * peers.cc: code memory by mmap alone, by a code cache as VMs write, by AsmJit's JitRuntime, and by
 * the code heap. LLVM takes no bytes, and has a file apart (llvm.cc). */
#include "why.h"

#include <asmjit/x86.h>
#include <codeheap/codeheap.h>

#include <cstdio>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

std::size_t emit(kind kind, int number, std::uint8_t *bytes)
{
	std::uint8_t *at = bytes;
	auto put = [&at](std::initializer_list<int> some) {
		for (int byte : some)
			*at++ = static_cast<std::uint8_t>(byte);
	};
	put({0x55, 0x48, 0x89, 0xe5}); /* push rbp; mov rbp, rsp */
	if (kind == kind::CALLS_FIRST)
		put({0xff, 0xd7});                /* call rdi */
	put({0xb8, number, 0, 0, 0, 0x5d, 0xc3}); /* mov eax, number; pop rbp; ret */
	return static_cast<std::size_t>(at - bytes);
}

static bool nothing_to_start()
{
	return true;
}

/* --- plain mmap: pages for each function, writable first, executable then --- */

static void *mmap_make(kind kind, int number, const char *)
{
	void *room =
		mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (room == MAP_FAILED)
		return nullptr;
	emit(kind, number, static_cast<std::uint8_t *>(room));
	if (mprotect(room, 4096, PROT_READ | PROT_EXEC) == 0)
		return room;
	munmap(room, 4096);
	return nullptr;
}
static void mmap_release(void *code, bool)
{
	munmap(code, 4096);
}
const peer plain_mmap = {"plain `mmap`", nothing_to_start, mmap_make, mmap_release};

/* --- a cache of one's own: an arena, a lock, a free list, a line in the perf map --- */

enum { ARENA_BYTES = 1 << 20, SLOT_BYTES = 64 };
static std::uint8_t *arena, *arena_next;
static std::vector<std::uint8_t *> free_slots;
static std::mutex arena_lock;
static std::FILE *names;

static bool cache_start()
{
	void *room = mmap(nullptr, ARENA_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	arena = arena_next = room == MAP_FAILED ? nullptr : static_cast<std::uint8_t *>(room);
	char path[64];
	std::snprintf(path, sizeof path, "/tmp/perf-%d.map", static_cast<int>(getpid()));
	names = std::fopen(path, "w");
	return arena != nullptr;
}
static void *cache_make(kind kind, int number, const char *name)
{
	std::lock_guard<std::mutex> lock(arena_lock);
	std::uint8_t *slot = arena_next;
	if (free_slots.empty()) {
		if (arena_next == arena + ARENA_BYTES)
			return nullptr;
		arena_next += SLOT_BYTES;
	} else {
		slot = free_slots.back();
		free_slots.pop_back();
	}
	std::size_t bytes = emit(kind, number, slot);
	if (names) {
		std::fprintf(names, "%lx %zx %s\n", reinterpret_cast<unsigned long>(slot), bytes,
			     name);
		std::fflush(names);
	}
	return slot;
}
static void cache_release(void *code, bool)
{
	std::lock_guard<std::mutex> lock(arena_lock);
	free_slots.push_back(static_cast<std::uint8_t *>(code));
}
const peer own_cache = {"a cache of one's own", cache_start, cache_make, cache_release};

/* --- AsmJit: its JitRuntime, as its examples use it --- */

static asmjit::JitRuntime *runtime;

static bool asmjit_start()
{
	runtime = new asmjit::JitRuntime;
	return true;
}
static void *asmjit_make(kind kind, int number, const char *)
{
	std::uint8_t bytes[MOST_BYTES];
	asmjit::CodeHolder code;
	void *made = nullptr;
	code.init(runtime->environment());
	asmjit::x86::Assembler assembler(&code);
	assembler.embed(bytes, emit(kind, number, bytes));
	return runtime->add(&made, &code) == asmjit::kErrorOk ? made : nullptr;
}
static void asmjit_release(void *code, bool)
{
	runtime->release(code);
}
const peer asmjit_runtime = {"AsmJit", asmjit_start, asmjit_make, asmjit_release};

/* --- the code heap --- */

static ch_heap *heap;

static bool heap_start()
{
	return ch_heap_create(nullptr, &heap) == CH_OK && ch_trap_install(heap) == CH_OK;
}
static void *heap_make(kind kind, int number, const char *name)
{
	std::uint8_t bytes[MOST_BYTES];
	void *made = nullptr;
	if (ch_code_add(heap, bytes, emit(kind, number, bytes), name, &made) != CH_OK)
		return nullptr;
	return made;
}
static void heap_release(void *code, bool is_running)
{
	if (ch_code_free(heap, code, is_running ? CH_RELEASE_COLLECT : CH_RELEASE_NOT_RUNNING) !=
	    CH_OK)
		std::fputs("why: not freed\n", stderr);
	if (is_running && ch_heap_collect(heap) != CH_OK)
		std::fputs("why: not collected\n", stderr);
}
const peer code_heap = {"here", heap_start, heap_make, heap_release};
