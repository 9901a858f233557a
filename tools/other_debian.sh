#!/bin/sh
# SPDX-License-Identifier: MIT
# tools/other_debian.sh RELEASE: the core tier, the Scheme, and gdb, Valgrind, libunwind and callgrind as judges, on another Debian:
# with its compiler, C library, unwinder and libgc. The system lies in build/debian-RELEASE (debootstrap, the first time), and what
# is built in its /build. Needs root. All mounts are in a namespace of their own, so they go with this process, however it ends.
set -eu
[ "$(id -u)" = 0 ] || { echo 'other_debian: needs root, for debootstrap and chroot' >&2; exit 2; }
[ -n "${own_mounts:-}" ] || own_mounts=1 exec unshare --mount --propagation private "$0" "$@"
cd "$(dirname "$0")/.."
. tools/debian.sh
system=build/debian-$1
packages=gcc,g++,make,pkg-config,libgc-dev,libjemalloc-dev,libunwind-dev,libdw-dev,gdb,valgrind,libc6-dbg,python3,procps
if [ "$(cat "$system/complete" 2>/dev/null)" != "$packages" ]; then
  rm -rf "$system"
  mkdir -p "$system/tree" "$system/build"
  again debootstrap --variant=minbase --include="$packages" "$1" "$system" "$mirror"
  echo "$packages" >"$system/complete"
fi
mount --bind . "$system/tree"
mount -t proc proc "$system/proc"
mount --rbind /dev "$system/dev"
mount -t tmpfs tmp "$system/tmp"
exec chroot "$system" sh <<'END'
cd /tree
check() { make check SETUP=no STRICT=1 WERROR=1 BUILD_ROOT=/build "$@" || failed=1; }
failed=0
{
  check TIER=core
  for program in tool_gdb tool_gdb_commands tool_valgrind tool_libunwind tool_callgrind host_scheme; do check T=$program; done
  echo $failed >/build/failed
} 2>&1 | tee /build/log
awk '/^[0-9]+ passed, [0-9]+ failed$/ { passed += $1; failed += $3 } END { print passed " passed, " failed " failed" }' /build/log
exit "$(cat /build/failed)"
END
