# SPDX-License-Identifier: MIT
"""The parts of codeheap.py: memory (records of the library), heaps, and the commands on them."""
