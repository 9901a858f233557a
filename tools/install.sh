#!/bin/bash
# SPDX-License-Identifier: MIT
# tools/install.sh install|uninstall|list: puts the built library where a system looks for it, or takes away exactly that.
# One list says what there is: both read it, so that nothing which is installed can be left behind. `list` prints it.
# From the environment: CODEHEAP_BUILD the folder of the build, CODEHEAP_GC (none: without the Boehm driver),
# CODEHEAP_TOOLS programs for users, CODEHEAP_VERSION, CODEHEAP_BINARY (the number that programs ask for), DESTDIR, PREFIX, and the directories bindir libdir includedir datadir mandir docdir.
set -eu
umask 022
build=${CODEHEAP_BUILD:-build}
version=$CODEHEAP_VERSION binary=$CODEHEAP_BINARY
DESTDIR=${DESTDIR:-}
folders=(PREFIX bindir libdir includedir datadir mandir docdir)
ours=("$includedir/codeheap" "$datadir/codeheap/gdb/codeheap_gdb" "$datadir/codeheap/gdb" "$datadir/codeheap"
  "$docdir/docs" "$docdir/examples" "$docdir")

fail() { echo "install: $*" >&2; exit 2; }
for name in "${folders[@]}"; do
  case "${!name}" in
    /*) ;;
    *) fail "$name must begin with a slash: the .pc files name it (it is \`${!name}\`)" ;;
  esac
  case "${!name}" in *$'\n'* | *$'\t'* | *\"* | *\$* | *\\* | *\#*) fail "$name has a character that a .pc file cannot hold" ;; esac
done

# Lines of the form KIND<tab>SOURCE<tab>DESTINATION. KIND is a file's mode, `link` (SOURCE is what it leads to), `pc`, or
# `page`, which a machine without python3 has not.
entry() { printf '%s\t%s\t%s\n' "$@"; }
library() { # library NAME: archive, shared object, the name that programs load and the one that they are linked with
  entry 644 "$build/lib$1.a" "$libdir/lib$1.a"
  entry 755 "$build/lib$1.so.$version" "$libdir/lib$1.so.$version"
  entry link "lib$1.so.$version" "$libdir/lib$1.so.$binary"
  entry link "lib$1.so.$binary" "$libdir/lib$1.so"
  entry pc "tools/$1.pc.in" "$libdir/pkgconfig/$1.pc"
}
page() { # page FILE
  entry 644 "docs/man/$1" "$mandir/man${1##*.}/$1"
}
entries() { # entries GC: of a build with or without the Boehm driver
  local file headers="codeheap/codeheap.h codeheap/collector.h codeheap/look.h codeheap/profile.h"
  [ "$1" = none ] || headers="$headers codeheap/codeheap_bdw.h"
  for file in $headers codeheap/codeheap.hpp; do
    entry 644 "$file" "$includedir/$file"
  done
  library codeheap
  library codeheap-dl
  library codeheap-profile
  if [ "$1" != none ]; then
    library codeheap-bdw
    entry 644 tools/libgc.supp "$datadir/codeheap/libgc.supp"
  fi
  for file in tools/gdb/codeheap.py tools/gdb/codeheap_gdb/*.py; do
    entry 644 "$file" "$datadir/codeheap/${file#tools/}"
  done
  for file in ${CODEHEAP_TOOLS:-}; do
    entry 755 "$file" "$bindir/${file##*/}"
    page "${file##*/}.1"
  done
  page codeheap.3
  entry link codeheap.3 "$mandir/man3/libcodeheap.3"
  page codeheap.7
  page codeheap-gdb.1
  for file in $(sed -n 's,^/\* \(ch_[a-z_]*\): .*,\1,p' $headers); do
    entry page "$build/man/$file.3" "$mandir/man3/$file.3"
  done
  # Beside each other as in the tree, so that their links lead somewhere.
  for file in README.md LICENSE docs/*.md examples/*.c examples/*.cc; do
    [ ! -f "$file" ] || entry 644 "$file" "$docdir/$file"
  done
}

# A folder below PREFIX is written relative to it, so that a tree that was moved needs one word changed.
pc_value() { # pc_value PATH
  case "$1" in
    "$PREFIX"/*) printf '%s' "\${prefix}${1#"$PREFIX"}" ;;
    *) printf '%s' "$1" ;;
  esac
}
pc_file() { # pc_file TEMPLATE
  local text
  text=$(<"$1")
  text=${text//@PREFIX@/"$PREFIX"}
  text=${text//@LIBDIR@/"$(pc_value "$libdir")"}
  text=${text//@INCLUDEDIR@/"$(pc_value "$includedir")"}
  printf '%s\n' "${text//@VERSION@/"$version"}"
}

# The loader's cache knows the standard folders; where nobody has a cache, there is nothing to tell.
tell_loader() {
  [ -z "$DESTDIR" ] && [ "$(id -u)" = 0 ] || return 0
  local ldconfig folder
  ldconfig=$(PATH=$PATH:/sbin:/usr/sbin command -v ldconfig) || return 0
  "$ldconfig" -v -N -X 2>/dev/null | sed -n 's/^\(\/[^:]*\):.*/\1/p' | while IFS= read -r folder; do
    [ "$folder" -ef "$libdir" ] || continue
    "$ldconfig" || echo "install: $ldconfig failed" >&2
    break # one folder may stand there twice: /lib and /usr/lib
  done
}

# A program that starts meanwhile finds the old file or the new one, whole.
do_install() {
  local kind source destination
  to=
  trap '[ -z "$to" ] || rm -f -- "$to.new"' EXIT
  while IFS=$'\t' read -r kind source destination; do
    to=$DESTDIR$destination
    [ "$kind" != page ] || { [ -f "$source" ] || continue; kind=644; }
    # A folder that is there keeps its mode: /usr/local/lib may be a group's.
    [ -d "${to%/*}" ] || install -d -- "${to%/*}"
    case "$kind" in
      link) ln -sfn -- "$source" "$to.new" ;;
      pc) pc_file "$source" >"$to.new" ;;
      *) install -m "$kind" -- "$source" "$to.new" ;;
    esac
    mv -fT -- "$to.new" "$to"
    echo "$to"
  done < <(entries "${CODEHEAP_GC:-bdw}")
  tell_loader
}

# What any build installs goes, whatever this one has; GDB's Python compiles our modules beside them.
do_uninstall() {
  local kind source destination to left=0
  while IFS=$'\t' read -r kind source destination; do
    to=$DESTDIR$destination
    if [ -e "$to" ] || [ -L "$to" ]; then rm -f -- "$to" && echo "$to" || left=1; fi
    case "$to" in *.py) rm -f -- "${to%/*}/__pycache__/$(basename "$to" .py)".cpython-*.pyc || left=1 ;; esac
  done < <(entries bdw)
  for to in "${ours[@]}"; do
    rmdir -- "$DESTDIR$to/__pycache__" "$DESTDIR$to" 2>/dev/null || true
  done
  tell_loader
  return $left
}

case "${1:-}" in
  install) do_install ;;
  uninstall) do_uninstall ;;
  list) entries "${CODEHEAP_GC:-bdw}" | cut -f3 ;;
  *) fail "usage: tools/install.sh install|uninstall|list" ;;
esac
