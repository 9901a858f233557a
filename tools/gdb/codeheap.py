# SPDX-License-Identifier: MIT
"""GDB commands for programs that use libcodeheap; load it with `source codeheap.py` or `gdb -x`.

Works on a running process and on a core, from the library's debug information alone; nothing is
called in the program. `help codeheap` lists the commands. Needs GDB 12 or later with Python.
"""
import os
import sys

import gdb

# __file__ is the script's that sourced this one, if there is one.
_own = sys._getframe().f_code.co_filename
_folder = os.path.dirname(os.path.realpath(os.path.expanduser(_own)))
if _folder not in sys.path:
    sys.path.insert(0, _folder)

if not hasattr(gdb, "BP_HARDWARE_BREAKPOINT"):
    raise gdb.GdbError("codeheap.py needs GDB 12 or later; this is GDB " + gdb.VERSION)

from codeheap_gdb import breaks, commands, disassemble, frames  # noqa: E402

for _part in (commands, disassemble, breaks, frames):
    _part.register()
