# SPDX-License-Identifier: MIT
"""Which program is made of which source: tests/unit/pages/pool.c is that of unit_pages_pool (name_of in mk/tests.mk)."""
import glob
import os


def program_of(source):
    return os.path.splitext(source)[0].removeprefix("tests/").replace("/", "_")


def sources():
    """Those of the test programs, and the scripts that are tests."""
    return sorted(path for kind in ("unit", "api", "adversary", "bdw", "tool", "host")
                  for ending in (".c", ".cc", ".sh") for path in glob.glob(f"tests/{kind}/**/*{ending}", recursive=True))
