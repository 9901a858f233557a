/* SPDX-License-Identifier: MIT
 * steps_x86_64.cc: code that says of each of its instructions where its caller's frame is
 * (CH_FRAME_STEPS): seen by walks from a signal at each, and by exceptions; in a place that serves
 * again; behind a call that is the last thing of its code; and which frames are refused. Code with
 * a frame pointer is walked from each instruction, too, and from another stack. */
#include "tests/support/frames_rig.h"
#include "tests/support/trap_flag_x86_64.h"

#include <iterator>
#include <signal.h>
#include <ucontext.h>

using namespace frames;

enum { MIB = 1 << 20 };

/* push rbx, r12, rbp; sub rsp, ROOM; xor ebx, r12d, ebp; mov rax, rdi; mov edi, esi; call rax;
 * add rsp, ROOM; pop rbp, r12, rbx; ret */
enum { FRAME_AT = 8, CALL = 20, RETURN = 22, SIZE = 31, INSTRUCTIONS = 15 };
static bytes code_of(uint8_t room)
{
	return bytes()({0x53, 0x41, 0x54, 0x55, 0x48, 0x83, 0xec, room})(
		{0x31, 0xdb, 0x45, 0x31, 0xe4, 0x31, 0xed})(
		{0x48, 0x89, 0xf8, 0x89, 0xf7, 0xff, 0xd0})(
		{0x48, 0x83, 0xc4, room, 0x5d, 0x41, 0x5c, 0x5b, 0xc3});
}

struct described {
	ch_frame_step steps[8];
	ch_frame_save saves[3];
	ch_frame frame;
};
static void describe(described *d, uint8_t room)
{
	auto whole = static_cast<uint16_t>(32 + room);
	*d = {{{1, 16}, {3, 24}, {4, 32}, {8, whole}, {26, 32}, {27, 24}, {29, 16}, {30, 8}},
	      {{3, 2, 1}, {12, 3, 3}, {6, 4, 4}},
	      {}};
	d->frame = {d->steps, d->saves, 8, 3};
}

static ch_status try_commit(const rig &r, const bytes &b, const ch_frame *frame, block *out)
{
	ch_open open = {};
	ch_code code;
	open.size = sizeof open;
	open.owner = new_owner(r, "steps");
	open.hot_bytes = b.size();
	open.frame = CH_FRAME_STEPS;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK_EQ(code.hot_bytes, b.size());
	std::memcpy(code.write, b.at.data(), b.size());
	code.used_to = b.size();
	code.frame = frame;
	ch_status status = ch_block_commit(&code, 1);
	*out = {open.owner, code.block, code.exec, b.size()};
	if (status != CH_OK)
		CHECK_EQ(ch_block_abort(&code), CH_OK);
	else
		CHECK_EQ(ch_owner_set_entry(open.owner, code.block), CH_OK);
	return status;
}

static block new_steps(const rig &r, uint8_t room)
{
	described d;
	block b;
	describe(&d, room);
	CHECK_EQ(try_commit(r, code_of(room), &d.frame, &b), CH_OK);
	return b;
}

/* code(fn, 1) with the registers that a callee keeps set to 0x1111 and the next. */
extern "C" void steps_call(entry *code, callee *fn);
extern "C" char steps_call_end[];
asm(R"(
	.text
	.type steps_call, @function
steps_call:
	.cfi_startproc
	.irp r, rbx, rbp, r12, r13, r14, r15
	push %\r
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset %\r, 0
	.endr
	sub $8, %rsp
	.cfi_adjust_cfa_offset 8
	mov $0x1111, %ebx
	mov $0x1112, %ebp
	mov $0x1113, %r12d
	mov $0x1114, %r13d
	mov $0x1115, %r14d
	mov $0x1116, %r15d
	mov %rdi, %rax
	mov %rsi, %rdi
	mov $1, %esi
	call *%rax
	add $8, %rsp
	.cfi_adjust_cfa_offset -8
	.irp r, r15, r14, r13, r12, rbp, rbx
	pop %\r
	.cfi_adjust_cfa_offset -8
	.cfi_restore %\r
	.endr
	ret
	.cfi_endproc
steps_call_end:
	.size steps_call, . - steps_call
)");

/* 1: the caller is there with its registers; -1: with others; 0: it is not. */
static _Unwind_Reason_Code see(_Unwind_Context *context, void *found)
{
	static const int numbers[] = {3, 6, 12, 13, 14, 15};
	auto pc = _Unwind_GetIP(context);
	if (pc <= reinterpret_cast<uintptr_t>(&steps_call) ||
	    pc >= reinterpret_cast<uintptr_t>(steps_call_end))
		return _URC_NO_REASON;
	int result = 1;
	for (unsigned i = 0; i < 6; i++)
		if (_Unwind_GetGR(context, numbers[i]) != 0x1111 + i)
			result = -1;
	*static_cast<int *>(found) = result;
	return _URC_NO_REASON;
}

static int look()
{
	int found = 0;
	_Unwind_Backtrace(see, &found);
	return found;
}

static volatile int looked;
static int look_from_a_callee(int number)
{
	looked = look();
	return number;
}

static const uint8_t *stepped;
static bool was_at[5000]; /* bytes of the longest code */
static bool wants_registers;

static void on_step(int, siginfo_t *, void *ucontext)
{
	auto *context = static_cast<ucontext_t *>(ucontext);
	auto at = static_cast<uintptr_t>(context->uc_mcontext.gregs[REG_RIP]) -
		  reinterpret_cast<uintptr_t>(stepped);
	if (at >= sizeof was_at)
		return;
	was_at[at] = true;
	int found = look();
	if (!found || (wants_registers && found != 1))
		FAIL("unwinding from offset %u does not find the caller%s",
		     static_cast<unsigned>(at), found ? "'s registers" : "");
}

static int nothing(int number)
{
	return number;
}

/* Looks from a callee of the code, then at each of its instructions. Returns their number. */
static unsigned step_through(const block &b)
{
	struct sigaction action = {};
	action.sa_sigaction = on_step;
	action.sa_flags = SA_SIGINFO;
	CHECK_EQ(sigaction(SIGTRAP, &action, nullptr), 0);
	steps_call(b.run(), look_from_a_callee);
	CHECK_EQ(looked, 1);
	stepped = b.exec;
	std::memset(was_at, 0, sizeof was_at);
	trap_flag_set();
	steps_call(b.run(), nothing);
	trap_flag_clear();
	unsigned count = 0;
	for (bool was : was_at)
		count += was;
	return count;
}

TEST_FRAMES(caller_is_found_at_each_instruction)
{
	wants_registers = true;
	for (uint8_t room : {16, 48, 112})
		CHECK_EQ(step_through(new_steps(r, room)), INSTRUCTIONS);
}

/* The words of note, steps and saves have two bytes each: the code of code_of lies two KiB behind a
 * jump to it and in front of its note, and has a frame of more than 255 bytes. */
TEST_FRAMES(caller_is_found_in_long_code_with_a_large_frame)
{
	enum { AT = 2304, ROOM = 400 };
	bytes b = bytes()({0xe9, (AT - 5) % 256, (AT - 5) / 256, 0, 0});
	b.at.resize(AT, 0x90);
	b({0x53, 0x41, 0x54, 0x55, 0x48, 0x81, 0xec, ROOM % 256, ROOM / 256, 0, 0})(
		{0x31, 0xdb, 0x45, 0x31, 0xe4, 0x31, 0xed})(
		{0x48, 0x89, 0xf8, 0x89, 0xf7, 0xff, 0xd0})(
		{0x48, 0x81, 0xc4, ROOM % 256, ROOM / 256, 0, 0, 0x5d, 0x41, 0x5c, 0x5b, 0xc3});
	b.at.resize(b.size() + AT, 0x90);
	ch_frame_step steps[] = {{AT + 1, 16},	{AT + 3, 24},  {AT + 4, 32},  {AT + 11, 32 + ROOM},
				 {AT + 32, 32}, {AT + 33, 24}, {AT + 35, 16}, {AT + 36, 8}};
	ch_frame_save saves[] = {{3, 2, AT + 1}, {12, 3, AT + 3}, {6, 4, AT + 4}};
	ch_frame frame = {steps, saves, 8, 3};
	block code;
	CHECK_EQ(try_commit(r, b, &frame, &code), CH_OK);
	wants_registers = true;
	CHECK_EQ(step_through(code), INSTRUCTIONS + 1);
}

/* Push rbx, rbp, r12 to r15; sub rsp, 24; xor each; mov rax, rdi; mov edi, esi; call rax;
 * add rsp, 24; pop r15 to r12, rbp, rbx; ret. */
TEST_FRAMES(caller_is_found_at_each_instruction_of_code_that_saves_all_registers)
{
	bytes code = bytes()({0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57})(
		{0x48, 0x83, 0xec, 24, 0x31, 0xdb, 0x31, 0xed, 0x45, 0x31, 0xe4})(
		{0x45, 0x31, 0xed, 0x45, 0x31, 0xf6, 0x45, 0x31, 0xff})(
		{0x48, 0x89, 0xf8, 0x89, 0xf7, 0xff, 0xd0, 0x48, 0x83, 0xc4, 24})(
		{0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3});
	ch_frame_step steps[] = {{1, 16},  {2, 24},  {4, 32},  {6, 40},	 {8, 48},
				 {10, 56}, {14, 80}, {41, 56}, {43, 48}, {45, 40},
				 {47, 32}, {49, 24}, {50, 16}, {51, 8}};
	ch_frame_save saves[] = {{3, 2, 1},  {6, 3, 2},	 {12, 4, 4},
				 {13, 5, 6}, {14, 6, 8}, {15, 7, 10}};
	ch_frame frame = {steps, saves, 14, 6};
	block b;
	CHECK_EQ(try_commit(r, code, &frame, &b), CH_OK);
	wants_registers = true;
	CHECK_EQ(step_through(b), 24);
}

/* --- code with a frame pointer --- */

static ch_status try_framed(const rig &r, shape kind, const bytes &b, block *out)
{
	ch_owner owner = new_owner(r, "framed");
	ch_code code;
	ch_status status = open_block(r, kind, b.size(), owner, nullptr, &code);
	if (status == CH_OK)
		*out = commit_block(code, b, owner);
	return status;
}
static block new_framed(const rig &r, shape kind, const bytes &b)
{
	block out;
	CHECK_EQ(try_framed(r, kind, b, &out), CH_OK);
	return out;
}

/* The frame is there from behind the prologue to the epilogue. Before and after that, the caller's
 * rbp may be anything, as steps_call's is, and must not be taken for a frame. */
TEST_FRAMES(caller_is_found_before_and_after_a_frame_whatever_its_frame_pointer_is)
{
	/* mov rax, rdi; mov edi, esi; call rax */
	static const auto body = {0x48, 0x89, 0xf8, 0x89, 0xf7, 0xff, 0xd0};
	/* push rbp; mov rbp, rsp .. pop rbp, or leave; ret; the second form of mov; endbr64 */
	bytes plain = bytes()({0x55, 0x48, 0x89, 0xe5})(body)({0x5d, 0xc3});
	bytes other = bytes()({0x55, 0x48, 0x8b, 0xec})(body)({0xc9, 0xc3});
	bytes with_endbr =
		bytes()({0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5})(body)({0x5d, 0xc3});
	/* and push rbx, r12 to r15 and rcx, which come back before pop rbp */
	bytes saving = bytes()({0x55, 0x48, 0x89, 0xe5})(
		{0x53, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x51})(body)(
		{0x59, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5b, 0x5d, 0xc3});
	CHECK_EQ(step_through(new_framed(r, FRAMED, plain)), 7);
	CHECK_EQ(step_through(new_framed(r, FRAMED, other)), 7);
	CHECK_EQ(step_through(new_framed(r, FRAMED, with_endbr)), 8);
	CHECK_EQ(step_through(new_framed(r, SAVING, saving)), 19);
}

/* A block of one's own: its code begins at exec + from, behind the library's first instruction. */
static block new_at(const rig &r, ch_open open, uint32_t from, const bytes &b)
{
	ch_code code;
	open.size = sizeof open;
	open.owner = new_owner(r, "at");
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	code.entry_offset = code.used_from = from;
	code.used_to = from + code.entry_bytes + b.size();
	std::memcpy(code.write + from + code.entry_bytes, b.at.data(), b.size());
	block out = {open.owner, code.block, code.exec + from, code.used_to - from};
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	return out;
}

/* The ret is the last byte of a system page, or a nop follows it there. */
TEST_FRAMES(caller_is_found_at_a_ret_at_the_end_of_a_page_whatever_its_frame_pointer_is)
{
	enum { PAGE = 4096, BYTES = 16 };
	for (bool has_nop : {false, true}) {
		bytes code = bytes()({0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0x89, 0xf7, 0xff,
				      0xd0, 0x90, 0x90});
		has_nop ? code({0x5d, 0xc3, 0x90}) : code({0x90, 0x5d, 0xc3});
		ch_open open = {};
		open.hot_bytes = open.align = PAGE;
		CHECK_EQ(step_through(new_at(r, open, PAGE - BYTES, code)), has_nop ? 9 : 10);
	}
}

static int not_entrant()
{
	return 0;
}

/* The first instruction is the library's, then comes the frame. */
TEST_FRAMES(caller_is_found_at_an_entry_that_can_be_shut_whatever_its_frame_pointer_is)
{
	for (bool has_endbr : {false, true}) {
		bytes code = has_endbr ? bytes()({0xf3, 0x0f, 0x1e, 0xfa}) : bytes();
		code({0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0x89, 0xf7, 0xff, 0xd0, 0x5d,
		      0xc3});
		ch_open open = {};
		open.hot_bytes = 64;
		open.entry = CH_ENTRY_PATCH;
		open.not_entrant = reinterpret_cast<void *>(not_entrant);
		CHECK_EQ(step_through(new_at(r, open, 0, code)), has_endbr ? 9 : 8);
	}
}

/* Far from the thread's stack, as all that the linker places is. */
alignas(16) static uint8_t far_stack[1 << 18];

/* push rbp; mov rbp, rsp; mov rsp, end of far_stack; mov rax, rdi; mov edi, esi */
static bytes switches()
{
	return bytes()({0x55, 0x48, 0x89, 0xe5, 0x48, 0xbc}).word(std::end(far_stack))(
		{0x48, 0x89, 0xf8, 0x89, 0xf7});
}

/* The frame lies on the caller's stack, while what the code calls runs on another. */
TEST_FRAMES(caller_is_found_from_a_call_on_another_stack)
{
	/* call rax; leave; ret */
	block b = new_framed(r, FRAMED, switches()({0xff, 0xd0, 0xc9, 0xc3}));
	steps_call(b.run(), look_from_a_callee);
	CHECK_EQ(looked, 1);
}

/* Code up to the last byte of each page of a full pool: the call, or a nop or ud2 behind it. */
TEST(exception_passes_a_call_that_is_the_last_thing_in_memory_on_another_stack)
{
	enum { HEAD = 8 };
	static const std::initializer_list<int> tails[] = {{}, {0x90}, {0x0f, 0x0b}};
	for (const auto &tail : tails) {
		rig r = start(MIB);
		ch_stats stats = {};
		stats.size = sizeof stats;
		CHECK_EQ(ch_heap_stats(r.heap, &stats), CH_OK);
		bytes b = switches();
		while (b.size() < stats.page_bytes - HEAD - 2 - tail.size())
			b({0x90});
		b({0xff, 0xd0})(tail);
		block full;
		unsigned count = 0;
		for (; try_framed(r, FRAMED, b, &full) == CH_OK; count++)
			CHECK_EQ(catch_from(full, throw_it, 4), -4);
		CHECK(count > 8);
		end(r);
	}
}

TEST_FRAMES(exception_passes_code_with_steps)
{
	block first = new_steps(r, 48), second = new_steps(r, 16), third = new_steps(r, 112);
	for (int i = 1; i < 100; i++)
		for (const block &b : {first, second, third}) {
			CHECK_EQ(catch_from(b, throw_it, i), -i);
			CHECK_EQ(catch_from(b, return_it, i), i);
		}
}

/* The table of the chunk is older than the notes. */
TEST_FRAMES(exception_passes_code_with_steps_beside_older_code_without)
{
	block plain = new_block(r, FRAMED, "plain");
	CHECK_EQ(catch_from(plain, throw_it, 1), -1);
	CHECK_EQ(catch_from(new_steps(r, 48), throw_it, 2), -2);
}

TEST_FRAMES(place_that_serves_again_has_the_frame_of_what_is_there)
{
	const uint8_t *place = nullptr;
	unsigned reused = 0;
	for (unsigned i = 0; i < 300; i++) {
		block b = new_steps(r, static_cast<uint8_t>(16 + 16 * (i % 6)));
		reused += b.exec == place;
		place = b.exec;
		looked = 0;
		steps_call(b.run(), look_from_a_callee);
		if (looked != 1)
			FAIL("code in a place that served before has another frame (round %u)", i);
		CHECK_EQ(catch_from(b, throw_it, 3), -3);
		release(b);
	}
	CHECK(reused > 100);
}

/* In its place are traps, and no note: a walk from there may not look for one. */
static void on_freed(int, siginfo_t *, void *ucontext)
{
	greg_t *registers = static_cast<ucontext_t *>(ucontext)->uc_mcontext.gregs;
	looked = look();
	auto *sp = reinterpret_cast<greg_t *>(registers[REG_RSP]);
	registers[REG_RIP] = *sp;
	registers[REG_RSP] += 8;
}

TEST_FRAMES(caller_of_freed_code_is_found)
{
	struct sigaction action = {};
	action.sa_sigaction = on_freed;
	action.sa_flags = SA_SIGINFO;
	CHECK_EQ(sigaction(SIGTRAP, &action, nullptr), 0);
	block neighbour = new_steps(r, 16), freed = new_steps(r, 48);
	/* The first walk sorts the unwinder's table, which no handler may do. */
	CHECK_EQ(catch_from(freed, throw_it, 7), -7);
	release(freed);
	steps_call(freed.run(), nothing);
	CHECK_EQ(looked, 1);
	CHECK_EQ(catch_from(neighbour, throw_it, 7), -7);
}

/* What returns there would be the block behind it, or its note. */
TEST_FRAMES(exception_passes_a_call_that_is_the_last_instruction)
{
	for (uint8_t pad = 0; pad < 8; pad++) {
		bytes b;
		for (unsigned i = 0; i < pad; i++)
			b({0x90});
		/* push rbx; xor ebx, ebx; mov rax, rdi; mov edi, esi; call rax */
		b({0x53, 0x31, 0xdb, 0x48, 0x89, 0xf8, 0x89, 0xf7, 0xff, 0xd0});
		auto at = static_cast<uint16_t>(pad + 1);
		ch_frame_step step = {at, 16};
		ch_frame_save save = {3, 2, at};
		ch_frame frame = {&step, &save, 1, 1};
		block first, second;
		CHECK_EQ(try_commit(r, b, &frame, &first), CH_OK);
		CHECK_EQ(try_commit(r, b, &frame, &second), CH_OK);
		CHECK_EQ(catch_from(first, throw_it, 4), -4);
		CHECK_EQ(catch_from(second, throw_it, 5), -5);
	}
}

/* Whether the frame is taken, after one change. */
template <class Change> static ch_status with(const rig &r, Change change)
{
	described d;
	block b;
	describe(&d, 48);
	change(d);
	return try_commit(r, code_of(48), &d.frame, &b);
}

TEST_FRAMES(frame_that_is_malformed_is_refused)
{
	block b;
	CHECK_EQ(with(r, [](described &) {}), CH_OK);
	CHECK_EQ(try_commit(r, code_of(48), nullptr, &b), CH_E_ARG);
	CHECK_EQ(with(r, [](described &d) { d.steps[2].at = 1; }), CH_E_ARG);
	CHECK_EQ(with(r, [](described &d) { d.steps[7].at = SIZE; }), CH_E_ARG);
	CHECK_EQ(with(r, [](described &d) { d.steps[0].cfa = 12; }), CH_E_ARG);
	CHECK_EQ(with(r, [](described &d) { d.steps[0].cfa = 0; }), CH_E_ARG);
	CHECK_EQ(with(r, [](described &d) { d.steps[3].cfa = 32768; }), CH_E_ARG);
	CHECK_EQ(with(r, [](described &d) { d.frame.steps_n = 17; }), CH_E_ARG);
	CHECK_EQ(with(r, [](described &d) { d.frame.saves_n = 17; }), CH_E_ARG);
	CHECK_EQ(with(r, [](described &d) { d.saves[0].reg = 5; }), CH_E_ARG);
	CHECK_EQ(with(r, [](described &d) { d.saves[1].reg = 3; }), CH_E_ARG);
	CHECK_EQ(with(r, [](described &d) { d.saves[0].below = 1; }), CH_E_ARG);
	CHECK_EQ(with(r, [](described &d) { d.saves[0].at = SIZE; }), CH_E_ARG);
	ch_open open = {};
	ch_code code;
	open.size = sizeof open;
	open.owner = new_owner(r, "refused");
	open.frame = CH_FRAME_STEPS;
	open.hot_bytes = 65001;
	CHECK_EQ(ch_block_open(&open, &code), CH_E_ARG);
	open.hot_bytes = 64;
	open.cold_bytes = 8;
	CHECK_EQ(ch_block_open(&open, &code), CH_E_ARG);
	open.cold_bytes = 0;
	open.branch_room = 1;
	CHECK_EQ(ch_block_open(&open, &code), CH_E_ARG);
	open.branch_room = 0;
	open.entry = CH_ENTRY_PATCH;
	CHECK_EQ(ch_block_open(&open, &code), CH_E_ARG);
}

/* A block of whole pages has room behind the bytes that were asked for. A walk from there would
 * look for its frame behind the note. */
TEST_FRAMES(more_bytes_than_a_note_describes_are_refused)
{
	described d;
	ch_open open = {};
	ch_code code;
	open.size = sizeof open;
	open.owner = new_owner(r, "steps");
	open.hot_bytes = 65000;
	open.frame = CH_FRAME_STEPS;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	bytes b = code_of(48);
	describe(&d, 48);
	std::memset(code.write, 0x90, 65000);
	std::memcpy(code.write, b.at.data(), b.size());
	code.frame = &d.frame;
	code.used_to = 65001;
	CHECK_EQ(ch_block_commit(&code, 1), CH_E_ARG);
	code.used_to = 65000;
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
}
