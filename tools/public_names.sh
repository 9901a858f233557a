#!/bin/sh
# SPDX-License-Identifier: MIT
# Prints the name of every function and object that the given headers declare with CH_API, one per line, sorted.
# Used by the build (which symbols stay global) and by lint (which symbols must exist). With --guests first: those that they
# declare with CH_GUEST, which the core exports to libcodeheap-profile only.
mark=CH_API
[ "${1:-}" != --guests ] || { mark=CH_GUEST; shift; }
[ $# -gt 0 ] || exit 0
cat "$@" | awk -v mark=$mark '
  { text = text $0 "\n" }
  END {
    while ((i = index(text, "/*")) > 0) {              # comments may speak of CH_API too
      j = index(substr(text, i + 2), "*/")
      if (j == 0) break
      text = substr(text, 1, i - 1) " " substr(text, i + j + 3)
    }
    n = split(text, line, "\n")
    text = ""
    for (k = 1; k <= n; k++)
      if (line[k] !~ /^[ \t]*#/) { sub(/\/\/.*/, "", line[k]); text = text line[k] "\n" }
    n = split(text, part, mark)
    for (k = 2; k <= n; k++) {
      s = part[k]
      gsub(/__attribute__[ \t\n]*\(\([^)]*\)\)/, " ", s)
      if (match(s, /ch_[a-z0-9_]+[ \t\n]*\(/)) s = substr(s, RSTART, RLENGTH)
      else if (match(s, /[A-Za-z_0-9]+[ \t\n]*;/)) s = substr(s, RSTART, RLENGTH)
      else continue
      gsub(/[^A-Za-z0-9_]/, "", s)
      print s
    }
  }' | sort -u
