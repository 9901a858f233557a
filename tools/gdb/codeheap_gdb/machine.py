# SPDX-License-Identifier: MIT
"""Which machine the code of the process is for, and what the commands know of it.

Each machine that they know has a module machine_NAME.py beside this one. On any other they refuse:
they would read stubs where there are none, and write an INT3 into code that has no such trap.
"""
import importlib
import os

import gdb

from codeheap_gdb import memory


def _modules():
    for leaf in sorted(os.listdir(os.path.dirname(os.path.abspath(__file__)))):
        if leaf.startswith("machine_") and leaf.endswith(".py"):
            yield importlib.import_module("codeheap_gdb." + leaf[:-3])


KNOWN = list(_modules())


def name():
    """The machine of the process or core, as gdb calls it."""
    return gdb.selected_inferior().architecture().name()


def find():
    """The module of the machine, or None."""
    return next((module for module in KNOWN if name().startswith(module.GDB_NAME)), None)


def demand():
    """The same, or the sentence that names the machines that are known."""
    module = find()
    if not module:
        known = ", ".join(each.NAME for each in KNOWN)
        memory.fail(f"The codeheap commands know code for {known}, and this is {name()}.")
    return module
