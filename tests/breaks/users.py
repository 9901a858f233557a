# SPDX-License-Identifier: MIT
"""Which objects have the code of a header's function: those of sources that name it, or name a function or macro of a header
that does, and so on. A header that all include so costs the compilation of few.

    users = Users(build)
    users.of("os/locks/lock.h", "ch__lock_take")  # objects
"""
import functools
import glob
import re

from operators import Source
from rooms import ROOMS

MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:\\\n|[^\n])*)", re.M)


@functools.lru_cache(None)
def words_of(path):
    with open(path, encoding="utf-8") as file:
        return frozenset(re.findall(r"\w+", file.read()))


class Users:
    def __init__(self, build):
        self.build = build
        self.parts = []  # (function or macro, the words in it)
        for room in ROOMS + ("tests",):
            for path in glob.glob(f"{room}/**/*.h", recursive=True):
                with open(path, encoding="utf-8") as file:
                    text = file.read()
                source = Source(text)
                self.parts += [(name, {token.text for token in source.tokens[brace:source.tokens[brace].partner]})
                               for name, brace in source.functions()]
                self.parts += [(name, set(re.findall(r"\w+", body))) for name, body in MACRO.findall(text)]

    @functools.lru_cache(None)
    def names(self, name):
        """It, and those that use it."""
        known, more = set(), {name}
        while more:
            known |= more
            more = {part for part, words in self.parts if part not in known and words & known}
        return known

    def of(self, file, function):
        made = self.build.includers.get(file, [])
        if not file.endswith(".h"):
            return set(made)
        names = self.names(function)
        return {object for object in made
                if any(words_of(path) & names for path in self.build.files_of(object) if not path.endswith(".h"))}
