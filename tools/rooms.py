# SPDX-License-Identifier: MIT
"""The rooms of the library and their order (docs/design.md, section 3), their files, and the public headers."""
import glob
import os

# Each may know those before it. codeheap.h comes first: its values and layouts are those of all rooms. codeheap/ has parts, and
# invalidate/ stands between two of them; "codeheap" is the other headers that are seen from outside, which know no part.
ORDER = ("codeheap/codeheap.h", "arch", "os", "pages", "unwind", "sinks", "codeheap", "codeheap/base", "codeheap/events",
         "codeheap/graph", "codeheap/places", "invalidate", "codeheap/collect", "codeheap/life", "codeheap/look",
         "codeheap/gc_bdw.c", "flame", "observe")
ROOMS = tuple(dict.fromkeys(part.split("/")[0] for part in ORDER[1:]))
# Rooms that the core does not know: clients of a heap, and what these draw with.
GUESTS = ("flame", "observe")
# The first is the one that all programs include; in the order of the manual page.
PUBLIC = ("codeheap/codeheap.h", "codeheap/collector.h", "codeheap/look.h", "codeheap/profile.h", "codeheap/codeheap_bdw.h")
# The same for C++: inline functions over the first one.
PUBLIC_CXX = "codeheap/codeheap.hpp"


def files_of_rooms():
    """Sources and headers of the library."""
    return sorted(path for room in ROOMS for path in glob.glob(room + "/**/*.[chS]", recursive=True))


def ports():
    """The machines that there is a port to, by their files."""
    return [os.path.basename(name)[:-2] for name in glob.glob("arch/*.S")]


def part_of(path):
    """The part of ORDER that the file belongs to; None: it is in no room."""
    return max((part for part in ORDER if (path + "/").startswith(part + "/")), key=len, default=None)


def is_upward(path, used):
    """Whether the file is in a room, or a part of one, that may not know the other's."""
    parts = part_of(path), part_of(used)
    return None not in parts and ORDER.index(parts[0]) < ORDER.index(parts[1])
