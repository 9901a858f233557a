# SPDX-License-Identifier: MIT
"""The rooms of the library: each may know those before it (docs/design.md, section 3)."""
ROOMS = ("arch", "os", "pages", "unwind", "sinks", "codeheap", "invalidate", "flame", "observe")
# Rooms that the core does not know: clients of a heap, and what these draw with.
GUESTS = ("flame", "observe")
