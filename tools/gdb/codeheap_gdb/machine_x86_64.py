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
RETURNS = (0xc3, 0xc2)
ENDBR64 = b"\xf3\x0f\x1e\xfa"
PATCH_ENTRY = (0xa9, 0xe9)  # five bytes that the library writes at a patchable entry


def before_frame(heap, pc):
    """Bytes on the stack above the return address when rbp is still the caller's, else None."""
    try:
        code = heap.code_up_to(pc - 1, 16)
    except gdb.MemoryError:
        return None
    before, code = code[:1], code[1:]
    if code[0] in RETURNS:
        return 0
    if before == PUSH_RBP and code[:3] in SETS_FRAME:
        return 8
    while code.startswith(ENDBR64) or code[0] == 0x90 or code[0] in PATCH_ENTRY:
        code = code[4:] if code.startswith(ENDBR64) else code[1 if code[0] == 0x90 else 5:]
    return 0 if code[:1] == PUSH_RBP and code[1:4] in SETS_FRAME else None
