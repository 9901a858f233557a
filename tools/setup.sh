#!/bin/sh
# SPDX-License-Identifier: MIT
# tools/setup.sh TARGET: sees to it that the tools and libraries of a make target are there. Prints the apt line for what
# is missing, and runs it when root; exits 2 with the list when something needed stays missing. SETUP=no skips all of it.
# GC=none leaves out what only the Boehm driver needs; CROSS=prefix- asks for a cross compiler, an emulator and a folder
# build/sysroot-ARCH of foreign libraries. Peers (other runtimes to compare with) are wanted, not needed.
#
# target: lib hosts core check coverage demo stress fuzz bench lint tidy model ci

[ "$SETUP" = no ] && exit 0
target=${1:-check}
needed='' wanted=''

has_file() { for f in "$@"; do [ -e "$f" ] && return 0; done; return 1; }
has_tool() { command -v "$1" >/dev/null 2>&1; }
need() { case " $needed " in *" $1 "*) ;; *) needed="$needed $1" ;; esac; }
want() { case " $wanted " in *" $1 "*) ;; *) wanted="$wanted $1" ;; esac; }

# The other machines that there is a port to.
machines() {
  for machine in arch/*.S; do
    machine=${machine#arch/} machine=${machine%.S}
    [ "$machine" = "$(uname -m)" ] || echo "$machine"
  done
}
# What builds and runs programs of another architecture; its libraries come by tools/sysroot.sh, not from apt.
probe_cross() {
  prefix=${CROSS##*/}
  has_tool gcc || need gcc
  has_tool make || need make
  has_tool "${CROSS}gcc" || need "gcc-${prefix%-}"
  has_tool "${CROSS}g++" || need "g++-${prefix%-}"
  case "$prefix" in "$(uname -m)"-*) ;; *) has_tool "qemu-${prefix%%-*}-static" || need qemu-user-static ;; esac
}
probe_lib() {
  [ -z "$CROSS" ] || { probe_cross; return; }
  has_tool gcc || need gcc
  has_tool make || need make
  has_tool objcopy || need binutils
  has_file /usr/include/stdio.h || need libc6-dev
  case "$CC" in
    *clang*)
      has_tool "$CC" || need "$(case "$CC" in *-*) echo "${CC##*/}" ;; *) echo clang ;; esac)"
      [ -z "$SAN" ] || has_file /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.asan-*.a || need "libclang-rt${CC##*clang}-dev" ;;
  esac
  if [ -z "$SAN" ] && [ "$ALLOC" != malloc ]; then
    { has_file /usr/include/jemalloc/jemalloc.h && has_file /usr/lib/*/libjemalloc_pic.a; } || need libjemalloc-dev
  fi
  if [ "$GC" != none ]; then
    { has_file /usr/include/gc/gc.h && has_file /usr/lib/*/libgc.so; } || need libgc-dev
  fi
}
probe_check() {
  probe_lib
  has_tool g++ || need g++
  has_tool pkg-config || need pkg-config
  has_tool gdb || need gdb
  has_tool perf || need linux-perf
  has_tool pgrep || need procps
  has_tool valgrind || need valgrind
  has_file /usr/share/doc/libc6-dbg || need libc6-dbg
  has_file /usr/bin/python3.11 || need python3
  [ ! -e .git ] || has_tool git || need git
  # A browser, which draws flame graphs: the largest of all, and left out where the archive has none.
  has_tool chromium || want chromium
  has_tool chromedriver || want chromium-driver
  has_tool man || need man-db
  has_tool mandoc || need mandoc
  has_tool clang-14 || need clang-14
  has_file /usr/lib/*/libunwind.so || need libunwind-dev
  has_file /usr/lib/*/libunwind.so.1 || need libunwind-14
  probe_names
  [ "$GC" = none ] || probe_hosts
}
# Names of native functions that no object exports; where it is not there, their tests are skipped.
probe_names() {
  [ -n "$CROSS" ] || has_file /usr/lib/*/libdw.so.1 || want libdw1
}
# Programs that others wrote, which run on the heap.
probe_hosts() {
  has_file /usr/include/python3.11/Python.h || need python3-dev
  has_file /usr/lib/python3.11/test/test_generators.py || need libpython3.11-testsuite
  has_file /usr/lib/llvm-14/bin/llvm-config || need llvm-14-dev
  has_tool clang-14 || need clang-14
  has_file /usr/include/asmjit/asmjit.h || need libasmjit-dev
  has_file /usr/include/*/ffi.h || need libffi-dev
  has_file /usr/include/xbyak/xbyak.h || need libxbyak-dev
}
probe_demo() {
  probe_lib
  has_file /usr/bin/python3 || need python3
  has_tool ruby || want ruby
  has_tool luajit || want luajit
}
probe_bench() {
  probe_lib
  has_tool g++ || need g++
  has_file /usr/include/asmjit/asmjit.h || need libasmjit-dev
  has_file /usr/lib/*/libunwind.so.8 || want libunwind8
  has_tool tinyscheme || want tinyscheme
  has_tool luajit || want luajit
  has_file /usr/bin/python3.11 || need python3
  has_tool pkg-config || need pkg-config
  has_file /usr/include/valgrind/callgrind.h || need valgrind
  has_file /usr/include/python3.11/Python.h || need python3-dev
}
probe_coverage() {
  probe_check
  has_tool gcov || need gcc
}
probe_lint() {
  has_tool python3 || need python3
  probe_lib
  has_tool g++ || need g++
  has_tool clang-14 || need clang-14
}
probe_fuzz() {
  probe_lib
  has_tool clang-14 || need clang-14
  has_file /usr/lib/llvm-14/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a || need libclang-rt-14-dev
}
probe_model() {
  has_tool gcc || need gcc
  has_tool spin || need spin
}
probe_tidy() {
  probe_lib
  has_tool python3 || need python3
  has_tool clang-14 || need clang-14
  has_tool clang-tidy-14 || need clang-tidy-14
  has_tool cppcheck || need cppcheck
  has_tool pkg-config || need pkg-config
  [ "$GC" = none ] || probe_hosts
}
probe() {
  needed='' wanted=''
  case "$target" in
    lib | stress) probe_lib ;;
    core) probe_lib; [ -n "$CROSS" ] || has_tool g++ || need g++; probe_names ;;
    check) probe_check ;;
    coverage) probe_coverage ;;
    demo) probe_demo ;;
    bench) probe_bench ;;
    fuzz) probe_fuzz ;;
    lint) probe_lint ;;
    tidy) probe_tidy ;;
    model) probe_model ;;
    hosts) probe_lib; has_tool pkg-config || need pkg-config; has_tool g++ || need g++; probe_hosts ;;
    ci) probe_check; probe_lint; probe_tidy; probe_model; probe_fuzz
        has_tool debootstrap || need debootstrap
        for machine in $(machines); do CROSS=$machine-linux-gnu-; probe_cross; done
        CROSS= ;;
    *) echo "setup: no target $target" >&2; exit 2 ;;
  esac
}

# Ends the set-up when all that is installed is there: the libraries of a foreign architecture are in the tree, and the source
# of a host that is built anew.
finish() {
  case "$target,$CROSS,$GC" in
    check,,none | coverage,,none) ;;
    check,,* | coverage,,* | hosts,,* | ci,,*) tools/source.sh pcre2 || exit 2 ;;
  esac
  wanted=${CROSS##*/}
  [ "$target" != ci ] || wanted=$(machines)
  for machine in $wanted; do
    debian=$(sed -n 's/^debian //p' "tools/machines/${machine%%-*}.list" 2>/dev/null)
    [ -z "$debian" ] || tools/sysroot.sh "$debian" "build/sysroot-$debian" || exit
  done
  exit 0
}

# What only fetches may be cut off; dpkg must not be. Lists that cannot be renewed may still do.
apt_get='apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3'
fetch() {
  timeout -s KILL 300 $apt_get update
  timeout -s KILL 900 $apt_get install -y --no-install-recommends --download-only $1
}
# A mirror may be slow or away for a moment.
install_all() {
  for pause in 10 30 0; do
    if fetch "$1" >"$log" 2>&1 </dev/null && $apt_get install -y --no-install-recommends $1 >"$log" 2>&1 </dev/null; then
      return 0
    fi
    tail -n 5 "$log" >&2
    sleep "$pause"
  done
  return 1
}

probe
[ -z "$needed$wanted" ] && finish
packages="$needed$wanted"
line="apt-get install -y --no-install-recommends$packages"
echo "setup: $line"
if [ "$(id -u)" = 0 ] && has_tool apt-get; then
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  install_all "$needed$wanted" ||
    # One peer that the archive lacks must not keep the rest away.
    { [ -n "$needed" ] && [ -n "$wanted" ] && install_all "$needed"; }
  rm -f "$log"
  probe
fi
[ -z "$wanted" ] || echo "setup: goes on without$wanted"
[ -z "$needed" ] && finish
echo "setup: $target needs what is missing here:$needed" >&2
echo "setup: as root: apt-get update && $line" >&2
exit 2
