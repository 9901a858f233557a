# SPDX-License-Identifier: MIT
"""What the commands know of x86-64: stubs, veneers, traps, registers and frames (arch/x86_64.h)."""
import gdb

NAME = "x86-64"
GDB_NAME = "i386:x86-64"  # and what begins so

STUB_BYTES = 8
VENEER, VENEER_BYTES = b"\xff\x25\x02\0\0\0\xcc\xcc", 16  # then the literal it jumps to
VENEER_LITERAL = 8
TRAP = b"\xcc"             # INT3
TRAP_PC = 1                # the pc of the signal, from the trap's address
TRAP_SIGNAL = (5, 0x80)    # SIGTRAP, SI_KERNEL: the kernel says so of an INT3 and nothing else
DEBUG_REGISTERS = 4
PC, SP, FP = "rip", "rsp", "rbp"
TRAMPOLINE_PUSHED = 6      # from here on the trampoline's context lies above the return address

PUSH_RBP = b"\x55"
SETS_FRAME = (b"\x48\x89\xe5", b"\x48\x8b\xec")  # mov rbp, rsp
RETURNS = (b"\xc3", b"\xc2")
ENDBR64 = b"\xf3\x0f\x1e\xfa"
NOP = b"\x90"
PATCH_ENTRY = (b"\xa9", b"\xe9")  # five bytes that the library writes at a patchable entry
SAVED_BELOW_FRAME = ("rbx", "r12", "r13", "r14", "r15")  # CH_FRAME_KEEPS_ALL, from rbp downwards
STEPS_KEPT = ("rbx", "rbp", "r12", "r13", "r14", "r15")  # unwind/steps.c: in the order of a note
RULE_KEPT = {3: "rbx", 6: "rbp", 12: "r12", 13: "r13", 14: "r14", 15: "r15"}  # DWARF's numbers
DEF_CFA, UNDEFINED, SAME_VALUE, OFFSET, OFFSET_ARGUMENT = 0x0c, 0x07, 0x08, 0x80, 0x3f  # DW_CFA_...
RULE_SP, RULE_FP, RULE_PC = 7, 6, 16
NOTE_SAVES = 4
NOTE_STEPS = NOTE_SAVES + 4 * len(STEPS_KEPT)


def before_frame(heap, pc):
    """Bytes on the stack above the return address when rbp is still the caller's, else None."""
    try:
        code = heap.code_up_to(pc - 1, 16)
    except gdb.MemoryError:
        return None
    before, code = code[:1], code[1:]
    if code.startswith(RETURNS):
        return 0
    if before == PUSH_RBP and code[:3] in SETS_FRAME:
        return 8
    while code.startswith((ENDBR64, NOP, *PATCH_ENTRY)):
        code = code[4 if code.startswith(ENDBR64) else 1 if code.startswith(NOP) else 5:]
    return 0 if code[:1] == PUSH_RBP and code[1:4] in SETS_FRAME else None


def out_of_runtime(heap, pc, sp, _):
    """As out_of, of the runtime page."""
    offset = pc - heap.pool["runtime_exec"]
    pushed = 8 if TRAMPOLINE_PUSHED <= offset < heap.record["veneers_from"] else 0
    return sp + pushed + 8, {FP: None}


def out_of_call(_heap, _pc, sp, _fp):
    """As out_of, where a call has just led and no frame was made."""
    return sp + 8, dict.fromkeys(STEPS_KEPT)


def out_of(heap, pc, sp, fp):
    """The caller's sp, and where each register of the caller is: on the stack, or None where the
    code left it. None for a shape that has no rule here."""
    shape = heap.frame_shape(pc)
    if shape == "STEPS":
        return out_of_steps(heap, pc, sp)
    if shape == "OTHER":
        return out_of_rule(heap.frame_rule(pc), sp, fp)
    if shape in ("TAIL", "LEAF"):
        return out_of_call(heap, pc, sp, fp)
    if shape not in ("POINTER", "KEEPS_ALL", "FRAMED"):
        return None
    places = dict.fromkeys(STEPS_KEPT if shape == "KEEPS_ALL" else (FP,))
    pushed = before_frame(heap, pc)
    if pushed is not None:
        if pushed:
            places[FP] = sp
        return sp + pushed + 8, places
    places[FP] = fp
    if shape == "KEEPS_ALL":  # above sp: not pushed yet, or popped
        places.update((name, fp - 8 * nth) for nth, name in enumerate(SAVED_BELOW_FRAME, 1)
                      if sp <= fp - 8 * nth)
    return fp + 16, places


def out_of_steps(heap, pc, sp):
    """The same by the note behind the code."""
    note = heap.frame_note(pc)
    if note is None:
        return out_of_call(heap, pc, sp, None)

    def number(at, size=2):
        return int.from_bytes(heap.code(note + at, size), "little")
    offset = pc - note + number(0, 4)
    places = dict.fromkeys(STEPS_KEPT)
    step = NOTE_STEPS
    while number(step + 4) <= offset:
        step += 4
    cfa = sp + number(step + 2)
    for nth, name in enumerate(STEPS_KEPT):
        if number(NOTE_SAVES + 4 * nth) <= offset:
            places[name] = cfa - number(NOTE_SAVES + 4 * nth + 2)
    return cfa, places


def out_of_rule(rule, sp, fp):
    """The same by the call-frame instructions that a VM registered: a CFA from rsp or rbp, and
    registers saved below it. None where there are other instructions, no register of code that
    has no caller."""
    rest = iter(rule)

    def number():
        value = shift = 0
        for byte in rest:
            value |= (byte & 0x7f) << shift
            if byte < 0x80:
                return value
            shift += 7
        return value
    base, saved = None, {}
    for instruction in rest:
        if instruction == DEF_CFA:
            base, cfa = number(), number()
        elif instruction & ~OFFSET_ARGUMENT == OFFSET:
            saved[instruction & OFFSET_ARGUMENT] = number()
        elif instruction == SAME_VALUE:
            saved.pop(number(), None)
        elif instruction == UNDEFINED:
            if number() == RULE_PC:
                return sp, {}
        else:
            return None
    if base not in (RULE_SP, RULE_FP) or saved.get(RULE_PC) != 1:
        return None
    cfa += sp if base == RULE_SP else fp
    return cfa, {name: cfa - 8 * saved[known] if known in saved else None
                 for known, name in RULE_KEPT.items()}
