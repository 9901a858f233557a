#!/bin/bash
# SPDX-License-Identifier: MIT
# The library as its users get it: installed, found by pkg-config, compiled against from a folder that has nothing of the
# tree, in C and C++, with gcc and clang, shared and static; its versions; what `make uninstall` leaves, and the tarball of
# `make dist`. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
tree=$PWD
gc=${CODEHEAP_TEST_GC:-bdw}
packages="codeheap codeheap-dl codeheap-profile"
[ "$gc" = none ] || packages="$packages codeheap-bdw"
strict="-O1 -Wall -Wextra -Wpedantic -Wundef -Wshadow -Werror"
make_work

header_version() { sed -n 's/^#define CH_VERSION_'"$1"' "\{0,1\}\([0-9.]*\).*/\1/p' "$tree/codeheap/codeheap.h"; }
# What is asked of make in this build; nothing is built again.
install_here() { make --no-print-directory GC="$gc" BUILD="$build" "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "make $*"; }; }

# A program in the words that C11 and C++17 share. It makes a heap and a trampoline, calls it through its owner's cell,
# collects it, and says which version it was compiled with and which one it runs on.
write_program() { # write_program PACKAGE FILE
  echo "#define WITH_BDW $([ "$1" = codeheap-bdw ] && echo 1 || echo 0)" >"$2"
  cat >>"$2" <<'C'
#include <codeheap/codeheap.h>
#include <stdio.h>
#if WITH_BDW
#include <codeheap/codeheap_bdw.h>
static void *anchor;
#define HEAP_CREATE ch_bdw_heap_create
#define OWNER_CREATE(vm, name, fallback, owner) ch_bdw_owner_create(vm, name, fallback, NULL, owner, &anchor)
#else
#define HEAP_CREATE ch_heap_create
#define OWNER_CREATE(vm, name, fallback, owner) ch_owner_create(vm, name, fallback, NULL, owner)
#endif
#define OK(call)                                                                    \
	do {                                                                        \
		enum ch_status status = call;                                       \
		if (status != CH_OK)                                                \
			return fprintf(stderr, "%s: %s\n", #call, ch_status_text(status)), 1; \
	} while (0)

static int count(int n)
{
	return n + 1;
}
static int interpret(int n)
{
	return -n;
}

int main(void)
{
	struct ch_config config;
	struct ch_ops ops;
	struct ch_heap *heap;
	struct ch_vm *vm;
	struct ch_owner owner;
	struct ch_block block;
	struct ch_stats stats;
	char report[200], wanted[40];
	int results[3];

	ch_config_init(&config);
	memset(&ops, 0, sizeof ops);
	ops.size = sizeof ops;
	OK(HEAP_CREATE(&config, &heap));
	OK(ch_vm_attach(heap, &ops, NULL, &vm));
	OK(ch_thread_attach(heap, NULL, NULL));
	OK(OWNER_CREATE(vm, "counts", (const void *)(uintptr_t)interpret, &owner));
	int (*const *cell)(int) = (int (*const *)(int))ch_owner_cell(owner);
	results[0] = (*cell)(1);
	OK(ch_trampoline_make(owner, CH_TRAMPOLINE_FRAMED, (const void *)(uintptr_t)count, 0, NULL, NULL, &block));
	OK(ch_owner_set_entry(owner, block));
	results[1] = (*cell)(1);
	OK(ch_blocks_invalidate(&block, 1, NULL));
	results[2] = (*cell)(1);
	OK(ch_heap_collect(heap));
	OK(ch_heap_check(heap, report, sizeof report));
	stats.size = sizeof stats;
	OK(ch_heap_stats(heap, &stats));
	OK(ch_vm_detach(vm));
	OK(ch_heap_destroy(heap));
	snprintf(wanted, sizeof wanted, "%d.%d.%d", CH_VERSION_MAJOR, CH_VERSION_MINOR, CH_VERSION_PATCH);
	if (strcmp(stats.version, wanted) || strcmp(wanted, CH_VERSION_TEXT))
		return fprintf(stderr, "%s is not %s\n", stats.version, wanted), 1;
	return printf("%d %d %d %s\n", results[0], results[1], results[2], CH_VERSION_TEXT) < 0;
}
C
}

each_compiler() { # each_compiler COMMAND...: with `compiler -std=... -x language` behind it
  "$@" gcc -std=c11 -x c
  "$@" clang-14 -std=c11 -x c
  "$@" g++ -std=c++17 -x c++
  "$@" clang++-14 -std=c++17 -x c++
}
run_shared() { # run_shared PACKAGE compiler...
  local package=$1 loaded
  shift
  flags_of "$package"
  must "$@" $strict -o program program.c -x none "${flags[@]}"
  loaded=$(LD_LIBRARY_PATH=$root/lib ldd program) || fail "ldd"
  grep -qF "$root/lib/lib$package.so.$(header_version BINARY) " <<<"$loaded" || fail "$*: not linked with the installed lib$package: $loaded"
  said=$(LD_LIBRARY_PATH=$root/lib ./program) || fail "$* $package: the program failed"
  [ "$said" = "$wanted" ] || fail "$* $package: said $said, wanted $wanted"
}
# The linker's own warnings are of glibc, which would rather be shared.
run_static() { # run_static PACKAGE compiler...
  local package=$1
  shift
  flags_of --static "$package"
  "$@" $strict -static -o program program.c -x none "${flags[@]}" 2>link.log || fail "$*: $(cat link.log)"
  ! readelf -dW program | grep NEEDED || fail "$* $package: needs shared objects"
  said=$(./program) || fail "$* $package, static: the program failed"
  [ "$said" = "$wanted" ] || fail "$* $package, static: said $said, wanted $wanted"
}
in_empty_folder() {
  version=$(header_version TEXT)
  wanted="-1 2 -1 $version"
  root=$tree/$build/installed
  export PKG_CONFIG_PATH=$root/lib/pkgconfig
  unset CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH LIBRARY_PATH LD_LIBRARY_PATH LD_RUN_PATH
  mkdir "$work/empty"
  cd "$work/empty" || exit 1
}
package_works() {
  in_empty_folder
  write_program "$1" program.c
  each_compiler run_shared "$1"
  each_compiler run_static "$1"
}
case_install_codeheap_in_c_and_cxx_shared_and_static() { package_works codeheap; }
case_install_codeheap_dl_in_c_and_cxx_shared_and_static() { package_works codeheap-dl; }
case_install_codeheap_bdw_in_c_and_cxx_shared_and_static() { package_works codeheap-bdw; }

# An extension that has the archive inside, and hides it: it loads, works, and stays.
case_install_dl_archive_goes_into_a_loaded_object() {
  in_empty_folder
  write_program codeheap-dl program.c
  sed -i 's/^int main(void)/int run(void); int run(void)/' program.c
  cat >loader.c <<'C'
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
	void *object = dlopen("./extension.so", RTLD_NOW | RTLD_LOCAL);
	if (!object)
		return fprintf(stderr, "%s\n", dlerror()), 1;
	int (*run)(void) = (int (*)(void))dlsym(object, "run");
	return !run || run();
}
C
  echo '{ global: run; local: *; };' >extension.map
  flags_of --static codeheap-dl
  must gcc -std=c11 -shared -fPIC -o extension.so program.c -Wl,--version-script=extension.map -Wl,-z,defs \
    "${flags[@]/#-lcodeheap-dl/-l:libcodeheap-dl.a}"
  ! readelf -dW extension.so | grep 'NEEDED.*codeheap' || fail "the archive was not taken"
  readelf -dW extension.so | grep -q 'FLAGS_1.*NODELETE' || fail "dlclose may unmap the extension"
  must gcc -o loader loader.c
  [ "$(./loader)" = "$wanted" ] || fail "the extension failed"
}

# Loaded 300 times, an object makes a heap each time, of 255 that a process may have: unless it stays, or destroys its heap.
case_install_object_that_is_loaded_again_has_one_heap() {
  in_empty_folder
  cat >extension.c <<'C'
#include <codeheap/codeheap.h>
static struct ch_heap *heap;
static enum ch_status made;
__attribute__((constructor)) static void begin(void) { made = ch_heap_create(NULL, &heap); }
#ifdef ENDS
__attribute__((destructor)) static void end(void) { (void)!ch_heap_destroy(heap); }
#endif
int has_heap(void);
int has_heap(void) { return made == CH_OK; }
C
  cat >loader.c <<'C'
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
	int round = 1;
	for (void *object; round <= 300 && (object = dlopen("./extension.so", RTLD_NOW)); round++) {
		if (!((int (*)(void))dlsym(object, "has_heap"))())
			break;
		dlclose(object);
	}
	return !printf("%d\n", round);
}
C
  flags_of codeheap-dl
  must gcc -o loader loader.c
  local of
  for of in 256: 301:-Wl,-z,nodelete 301:-DENDS; do
    must gcc -shared -fPIC -o extension.so extension.c "${flags[@]}" -Wl,-rpath,"$root/lib" ${of#*:}
    [ "$(./loader)" = "${of%%:*}" ] || fail "linked with '${of#*:}': $(./loader)"
  done
}

# What the header and the manual page show is x86-64 code.
case_install_example_of_the_header_runs() {
  in_empty_folder
  [ "$(uname -m)" = x86_64 ] || { echo "skip: the example is code of x86-64"; exit 77; }
  cp "$tree/examples/min.c" program.c
  flags_of codeheap
  local cc said
  for cc in gcc clang-14; do
    must "$cc" -std=c11 -Wall -Wextra -Werror -o program program.c "${flags[@]}" -Wl,-rpath,"$root/lib"
    said=$(set -o pipefail; ./program | tr '\n' ' ') || fail "the example failed"
    [ "$said" = "compiled: 42 invalidated: -1 collected: yes " ] || fail "the example said $said"
  done
}

# The shell lines that README gives for a PREFIX of one's own, word for word, with a home that is the case's.
case_install_lines_of_the_readme_run() {
  [ "$(uname -m)" = x86_64 ] || { echo "skip: the example is code of x86-64"; exit 77; }
  unset PKG_CONFIG_PATH CPATH LIBRARY_PATH LD_LIBRARY_PATH LD_RUN_PATH MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES
  sed -n '/^```sh$/,/^```$/p' README.md | sed '/^```/d' >"$work/lines"
  grep -q pkg-config "$work/lines" && grep -q rpath "$work/lines" || fail "README has no such lines: $(cat "$work/lines")"
  make() { command make --no-print-directory SETUP=no GC="$gc" BUILD="$build" "$@" >"$work/log" 2>&1; }
  # The program is put where it is out of the tree's way.
  (set -e; HOME=$work/home; . <(sed "s,-o ,-o $work/,; s,\\./,$work/," "$work/lines")
    [ "$(command -v codeheap-top)" = "$HOME/codeheap/bin/codeheap-top" ]) >"$work/said" 2>&1
  # Before || a shell would go on behind a line that failed.
  [ $? = 0 ] || { cat "$work/lines" "$work/said" "$work/log" >&2; fail "the lines of README"; }
  grep -qx 42 "$work/said" || fail "they said $(cat "$work/said")"
}

# What is installed to be read is the tree's, its links lead to installed files, and what is installed to be compiled compiles
# there, and runs.
case_install_has_the_documents() {
  local file link docs=$work/root/share/doc/libcodeheap
  install_here install PREFIX="$work/root"
  for file in README.md LICENSE docs/*.md examples/*; do must cmp "$file" "$docs/$file"; done
  [ "$(find "$docs" -type f | wc -l)" = "$(ls README.md LICENSE docs/*.md examples/* | wc -l)" ] || fail "more is there than the tree has"
  while IFS=: read -r file link; do
    [ -e "$docs/$(dirname "$file")/$link" ] || fail "$file leads to $link, which is not installed"
  done < <(cd "$docs" && grep -oHP '\]\(\K[^)#:]+(?=[)#])' README.md docs/*.md)
  for file in $(tools/public_names.sh "$work"/root/include/codeheap/*.h); do
    [ -s "$work/root/share/man/man3/$file.3" ] || fail "$file has no page"
  done
}

# A user has what is installed, and no tree: a file that a document says to give to a tool is there.
case_install_has_each_file_that_a_newcomer_is_told_to_load() {
  local file files
  install_here install PREFIX="$work/root"
  files=$(grep -ohE 'PREFIX/share/[a-z/_.]+' docs/*.md docs/man/*.[1-9] | sort -u)
  [ "$(wc -w <<<"$files")" -gt 2 ] || fail "the documents name none: $files"
  [ "$gc" != none ] || files=$(grep -v libgc <<<"$files")
  for file in $files; do
    [ -e "$work/root/${file#PREFIX/}" ] || fail "$file is not installed"
  done
  grep -nE '(-x|source|suppressions=) ?tools/' docs/operating.md docs/unwinders.md docs/man/* && fail "a user has no tools/"
  return 0
}
case_install_examples_build_where_they_are_installed() {
  in_empty_folder
  [ "$(uname -m)" = x86_64 ] || { echo "skip: the examples are code of x86-64"; exit 77; }
  local file found=0
  for file in "$root"/share/doc/libcodeheap/examples/*; do
    case "$gc/$file" in none/*_boehm.c) continue ;; *_boehm.c) flags_of codeheap-bdw ;; *) flags_of codeheap-profile codeheap ;; esac
    case "$file" in *.cc) must g++ -std=c++17 -Wall -Wextra -Werror -o program "$file" "${flags[@]}" -Wl,-rpath,"$root/lib" ;;
      *) must gcc -std=c11 -Wall -Wextra -Werror -o program "$file" "${flags[@]}" -lm -pthread -Wl,-rpath,"$root/lib" ;; esac
    ./program >said 2>&1 || fail "$file ended with $?: $(cat said)"
    found=$((found + 1))
  done
  [ $found -ge 5 ] || fail "$found examples"
}

# Each header is the first one of a file, and comes twice.
case_install_headers_stand_alone() {
  in_empty_folder
  local header compiler standard
  for header in "$root"/include/codeheap/*.h; do
    for compiler in gcc clang-14; do
      for standard in c11 c17 c++17 c++20; do
        printf '#include <codeheap/%s>\n' "${header##*/}" "${header##*/}" >"unit.c"
        must $compiler -x "$([[ $standard == c++* ]] && echo c++ || echo c)" -std=$standard $strict -Wconversion -Wcast-qual \
          -I"$root/include" -c -o unit.o unit.c
      done
    done
  done
  [ "$gc" = none ] || [ -f "$root/include/codeheap/codeheap_bdw.h" ] || fail "codeheap_bdw.h is not installed"
}

# Of C++, with and without exceptions, as the first header of a file and twice; and what it is for, made by each.
case_install_cxx_header_by_each_compiler_and_standard() {
  in_empty_folder
  local compiler standard without
  printf '#include <codeheap/codeheap.hpp>\n%.0s' 1 2 >unit.cc
  # Statuses, where there are no exceptions.
  cat >>unit.cc <<'C'
int main()
{
	codeheap::heap heap;
	codeheap::vm vm;
	codeheap::function<int()> none;
	if (heap.create() != CH_OK || vm.attach(heap) != CH_OK)
		return 1;
	if (none || none.create(vm, "none", nullptr) != CH_OK || !none)
		return 2;
	return none.create(vm, "none", nullptr) == CH_E_STATE ? 0 : 3;
}
C
  flags_of codeheap
  for compiler in g++ clang++-14; do
    for standard in c++17 c++20 c++2b; do
      for without in -fexceptions "-fno-exceptions -fno-rtti"; do
        must $compiler -std=$standard $without $strict -Wconversion -Wcast-qual -Wold-style-cast -o unit unit.cc "${flags[@]}" -Wl,-rpath,"$root/lib"
        must ./unit
      done
      [ "$(uname -m)" = x86_64 ] || continue
      must $compiler -std=$standard $strict -o program "$tree/examples/cxx.cc" "${flags[@]}" -Wl,-rpath,"$root/lib"
      [ "$(./program | tail -n 1)" = "compiled: 42" ] || fail "examples/cxx.cc by $compiler as $standard"
    done
  done
}

case_install_refers_to_nothing_of_the_tree() {
  install_here install PREFIX="$work/root"
  local named
  named=$(grep -rlaF -- "$tree" "$work/root")
  [ -z "$named" ] || fail "these name $tree: $named"
  [ "$(find "$work/root" -name '*.so.*.*' -type f | wc -l)" = "$(wc -w <<<"$packages")" ] || fail "not all shared objects were looked at"
  find "$work/root" -type l -lname '/*' | grep . && fail "a link is not relative"
  return 0
}

# --- versions ---

case_install_all_say_the_same_version() {
  local version soname package
  in_empty_folder
  cd "$tree" || exit 1
  version=$(header_version MAJOR).$(header_version MINOR).$(header_version PATCH)
  [ "$version" = "$(header_version TEXT)" ] || fail "the header says $version and $(header_version TEXT)"
  for package in $packages; do
    [ "$(pkg-config --modversion $package)" = "$version" ] || fail "$package.pc says $(pkg-config --modversion $package)"
    pkg-config --exists "$package >= $version" || fail "$package is not of version $version"
    soname=$(readelf -dW "$root/lib/lib$package.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
    [ "$soname" = "lib$package.so.$(header_version BINARY)" ] || fail "the loader is asked for $soname"
    [ "$(readlink -f "$root/lib/$soname")" = "$root/lib/lib$package.so.$version" ] || fail "$soname leads elsewhere"
    [ "$(readlink -f "$root/lib/lib$package.so")" = "$root/lib/lib$package.so.$version" ] || fail "lib$package.so leads elsewhere"
  done
}

# The names of the public headers, those that gdb looks for, and nothing else; each with its version. What the core exports
# to libcodeheap-profile has a node of its own; lint has its names.
case_install_every_name_has_its_symbol_version() {
  local package headers
  for package in $packages; do
    headers="codeheap/codeheap.h codeheap/collector.h codeheap/look.h"
    [ $package != codeheap-bdw ] || headers="$headers codeheap/codeheap_bdw.h"
    if [ $package = codeheap-profile ]; then
      tools/public_names.sh codeheap/profile.h | sed 's/$/@@LIBCODEHEAP_0.2/' >"$work/wanted"
    else
      { tools/public_names.sh $headers; printf '%s\n' __jit_debug_descriptor __jit_debug_register_code; } |
        sed 's/$/@@LIBCODEHEAP_0.2/' | LC_ALL=C sort >"$work/wanted"
      [ "$(wc -l <"$work/wanted")" -gt 40 ] || fail "the headers have no names"
    fi
    readelf -W --dyn-syms "$build/lib$package.so" |
      awk '$5 != "LOCAL" && $7 != "UND" && $7 != "ABS" && $8 != "" && $1 ~ /^[0-9]+:$/ { print $8 }' | grep -v '^ch__.*@@LIBCODEHEAP_PRIVATE$' | LC_ALL=C sort >"$work/found"
    diff "$work/wanted" "$work/found" || fail "lib$package.so: < is wanted, > is there"
  done
}

# The same name without the version is not taken for the library: the program does not begin.
case_install_library_of_another_version_is_refused() {
  in_empty_folder
  write_program codeheap program.c
  flags_of codeheap
  must gcc -std=c11 -o program program.c "${flags[@]}"
  mkdir other
  "$tree/tools/public_names.sh" "$tree/codeheap/codeheap.h" | sed 's/.*/void &(void); void &(void) {}/' >other.c
  echo 'LIBCODEHEAP_2 { global: ch_*; };' >other.map
  must gcc -shared -fPIC -o other/libcodeheap.so.$(header_version BINARY) -Wl,-soname,libcodeheap.so.$(header_version BINARY) \
    -Wl,--version-script=other.map other.c
  if said=$(LD_LIBRARY_PATH=other ./program 2>&1); then fail "it ran: $said"; fi
  grep -q "libcodeheap.so.$(header_version BINARY): version .LIBCODEHEAP_0.2' not found" <<<"$said" || fail "the loader said: $said"
}

# Both want the installed library, which is not there yet: one of them makes it, the other one waits.
case_install_once_for_hosts_of_one_command() {
  local again=$work/build
  mkdir "$again"
  must cp -a "$build"/obj "$build"/libcodeheap* "$build"/callgrind-names "$build"/codeheap-top "$again"
  unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES
  make --no-print-directory -j4 SETUP=no GC="$gc" BUILD="$again" libffi python >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; fail "make libffi python"; }
  [ -s "$again/installed/lib/pkgconfig/codeheap.pc" ] || fail "nothing was installed"
  grep -q 'cc .*obj/codeheap' "$work/log" && fail "the library was built again"
  [ -x "$again/libffi/cases" ] && [ -s "$again/python/codeheap/__init__.py" ] || fail "a host is missing: $(ls "$again")"
}

# --- folders, modes, and taking it away again ---

picture_of() { # picture_of FOLDER: every name with its mode, what links lead to, and the content
  (cd "$1" && find . -printf '%M %p %l\n' | sort && find . -type f -print0 | sort -z | xargs -0 sha256sum)
}

case_install_is_staged_in_the_folders_that_packagers_choose() {
  local stage=$work/stage path
  umask 077
  install_here install DESTDIR="$stage" PREFIX=/usr libdir=/usr/lib/some-abi includedir=/usr/include/some mandir=/usr/man datadir=/data
  umask 022
  find "$stage" -type d ! -perm 755 | grep . && fail "folders that not all may enter"
  find "$stage" -path '*/bin/*' ! -perm 755 | grep . && fail "a program that not all may run"
  find "$stage" -type f ! -name '*.so.*' ! -path '*/bin/*' ! -perm 644 | grep . && fail "files of another mode than 644"
  for path in usr/lib/some-abi/libcodeheap.so usr/lib/some-abi/libcodeheap.a usr/lib/some-abi/pkgconfig/codeheap-dl.pc \
    usr/lib/some-abi/pkgconfig/codeheap-profile.pc usr/include/some/codeheap/profile.h \
    usr/include/some/codeheap/codeheap.h usr/include/some/codeheap/collector.h usr/include/some/codeheap/look.h usr/man/man3/codeheap.3 usr/man/man3/libcodeheap.3 usr/man/man1/codeheap-gdb.1 \
    data/codeheap/gdb/codeheap.py; do
    [ -s "$stage/$path" ] || fail "$path is not there"
  done
  find "$stage" -mindepth 2 -maxdepth 2 ! -path "$stage/usr/*" ! -path "$stage/data/codeheap" ! -path "$stage/data/doc" | grep . && fail "outside of the folders"
  [ -s "$stage/data/doc/libcodeheap/docs/embedding.md" ] || fail "the documents are not there"
  find "$stage/usr" -mindepth 1 -maxdepth 1 ! -name bin ! -name lib ! -name include ! -name man | grep . && fail "outside of the folders"
  grep -rlF -- "$stage" "$stage" && fail "these name the stage"
  export PKG_CONFIG_PATH= PKG_CONFIG_LIBDIR=$stage/usr/lib/some-abi/pkgconfig
  [ "$(pkg-config --variable=libdir codeheap)" = /usr/lib/some-abi ] || fail "libdir is $(pkg-config --variable=libdir codeheap)"
  # As one builds against a system image.
  write_program codeheap "$work/program.c"
  export PKG_CONFIG_SYSROOT_DIR=$stage
  flags_of codeheap
  must gcc -std=c11 -o "$work/program" "$work/program.c" "${flags[@]}"
  must env LD_LIBRARY_PATH="$stage/usr/lib/some-abi" "$work/program" >/dev/null
  picture_of "$stage" >"$work/once"
  install_here install DESTDIR="$stage" PREFIX=/usr libdir=/usr/lib/some-abi includedir=/usr/include/some mandir=/usr/man datadir=/data
  picture_of "$stage" >"$work/twice"
  must diff "$work/once" "$work/twice"
}

# Neither to write into a stage nor to look at a finished build needs root.
case_install_needs_no_root() {
  local as=()
  chmod 755 "$work"
  mkdir "$work/stage"
  if [ "$(id -u)" = 0 ]; then
    as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    "${as[@]}" test -r "$tree/Makefile" -a -r "$tree/$build/libcodeheap.so" || { echo "skip: no other user may read this tree"; exit 77; }
    must chown 65534:65534 "$work/stage"
  fi
  "${as[@]}" make --no-print-directory GC="$gc" BUILD="$build" install DESTDIR="$work/stage" PREFIX=/opt/it >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; fail "make install as user $(id -u)"; }
  [ -s "$work/stage/opt/it/lib/libcodeheap.so" ] || fail "nothing was installed"
}

# A slash at the end of PREFIX is a user's way to write it.
case_install_tells_the_loader_of_its_folder_however_it_is_written() {
  [ "$(id -u)" = 0 ] || { echo "skip: the loader's cache is root's"; exit 77; }
  mkdir "$work/bin"
  printf '%s\n' '#!/bin/sh' "[ \$# = 0 ] && touch '$work/told' || echo '$work/root/lib: (from a file)'" >"$work/bin/ldconfig"
  chmod +x "$work/bin/ldconfig"
  local prefix PATH=$work/bin:$PATH
  for prefix in "$work/root" "$work/root/" "$work//root"; do
    install_here install PREFIX="$prefix"
    must rm "$work/told"
  done
  install_here install PREFIX="$work/elsewhere"
  [ ! -e "$work/told" ] || fail "the cache has nothing of elsewhere, and was made anew"
  install_here install PREFIX="$work/root" DESTDIR="$work/stage"
  [ ! -e "$work/told" ] || fail "the cache knows no stage, and was made anew"
}

# Root's umask may be strict. A library that a program has loaded is not written in place.
case_install_is_for_all_users_and_for_the_next_program() {
  local held=$work/held library
  library=$work/root/lib/libcodeheap.so.$(header_version TEXT)
  umask 077
  install_here install PREFIX="$work/root"
  find "$work/root" ! -type l ! -perm -o=r -o -type d ! -perm -o=x | grep . && fail "others may not read these"
  must ln "$library" "$held"
  install_here install PREFIX="$work/root"
  [ -s "$library" ] && [ ! "$library" -ef "$held" ] || fail "the library was written in place"
}

# The disk is full behind a part of the library.
case_install_that_fails_leaves_the_library_that_was_there() {
  local library=$work/root/lib/libcodeheap.so.$(header_version TEXT)
  install_here install PREFIX="$work/root"
  picture_of "$work/root" >"$work/before"
  mkdir "$work/bin"
  printf '%s\n' '#!/bin/sh' 'for to; do :; done' 'case $to in */lib/libcodeheap.so.*) echo part >"$to"; echo full >&2; exit 1 ;; esac' \
    "exec $(command -v install) \"\$@\"" >"$work/bin/install"
  chmod +x "$work/bin/install"
  PATH=$work/bin:$PATH make --no-print-directory GC="$gc" BUILD="$build" install PREFIX="$work/root" >"$work/log" 2>&1 && fail "it counts as done"
  grep -qx full "$work/log" || fail "it ended elsewhere: $(cat "$work/log")"
  picture_of "$work/root" >"$work/after"
  must diff "$work/before" "$work/after"
  rm "$library"
  must mkdir "$library"
  make --no-print-directory GC="$gc" BUILD="$build" install PREFIX="$work/root" >"$work/log" 2>&1 && fail "a folder is taken for the library"
  [ -z "$(ls "$library")" ] || fail "the library is in a folder of its name"
}

case_install_under_a_name_with_blank_and_quote_and_moved() {
  install_here vars PREFIX="$work/a user's place"
  must grep -qxF "PREFIX=$work/a user's place" "$work/log"
  install_here install PREFIX="$work/a user's place"
  export PKG_CONFIG_PATH="$work/a user's place/lib/pkgconfig"
  write_program codeheap "$work/program.c"
  flags_of codeheap
  must gcc -std=c11 -o "$work/program" "$work/program.c" "${flags[@]}"
  must env LD_LIBRARY_PATH="$work/a user's place/lib" "$work/program" >/dev/null
  mv "$work/a user's place" "$work/moved"
  export PKG_CONFIG_PATH="$work/moved/lib/pkgconfig"
  flags_of --define-prefix codeheap
  must gcc -std=c11 -o "$work/program" "$work/program.c" "${flags[@]}"
  must env LD_LIBRARY_PATH="$work/moved/lib" "$work/program" >/dev/null
}

# Else all later installs would lack the pages, without a word.
case_install_ends_when_the_manual_pages_cannot_be_made() {
  mkdir "$work/bin"
  printf '#!/bin/sh\nexit 1\n' >"$work/bin/python3"
  chmod +x "$work/bin/python3"
  PATH=$work/bin:$PATH make --no-print-directory SETUP=no BUILD="$work/build" "$work/build/man/stamp" >"$work/log" 2>&1 && fail "it goes on"
  [ ! -e "$work/build/man/stamp" ] || fail "the pages count as made"
  make --no-print-directory SETUP=no BUILD="$work/build" "$work/build/man/stamp" >"$work/log" 2>&1 || fail "it fails with a python3, too: $(cat "$work/log")"
}

case_install_of_a_relative_prefix_is_refused() {
  make --no-print-directory GC="$gc" BUILD="$build" install PREFIX=somewhere DESTDIR="$work" >"$work/log" 2>&1 && fail "it was taken"
  grep -q 'PREFIX must begin with a slash' "$work/log" || fail "it said: $(cat "$work/log")"
  [ -z "$(find "$work" -mindepth 1 ! -name log)" ] || fail "something was written"
}

# What begins a comment in a .pc file would cut the paths there.
case_install_of_a_prefix_that_pkg_config_cannot_read_is_refused() {
  local name
  for name in 'with#comment' 'with"quote' 'with\backslash'; do
    make --no-print-directory GC="$gc" BUILD="$build" install PREFIX="$work/$name" >"$work/log" 2>&1 && fail "$name was taken"
    grep -q 'a character that a .pc file cannot hold' "$work/log" || fail "it said: $(cat "$work/log")"
    [ -z "$(find "$work" -mindepth 1 ! -name log)" ] || fail "something was written"
  done
}

# What others put beside stays, and the folder that it is in; else nothing of ours is left, nor what gdb's Python wrote.
case_install_uninstall_takes_away_what_is_ours() {
  local root=$work/root gdb=$work/root/share/codeheap/gdb
  mkdir -p "$root/lib" "$root/share/man/man3"
  chmod 2775 "$root/lib"
  chmod 700 "$root/share/man/man3"
  echo theirs >"$root/lib/libother.so"
  echo theirs >"$root/share/man/man3/other.3"
  picture_of "$root" >"$work/before"
  install_here install PREFIX="$root"
  echo theirs >"$root/include/codeheap/theirs.h"
  mkdir -p "$gdb/codeheap_gdb/__pycache__"
  echo compiled >"$gdb/codeheap_gdb/__pycache__/heaps.cpython-311.pyc"
  install_here uninstall GC=none PREFIX="$root"
  [ ! -e "$root/include/codeheap/codeheap_bdw.h" ] || fail "a build without the Boehm driver leaves what is of it"
  [ "$(cat "$root/include/codeheap/theirs.h")" = theirs ] || fail "their header is gone"
  rm "$root/include/codeheap/theirs.h"
  install_here uninstall PREFIX="$root"
  find "$root" -type f -o -type l | grep -v '/libother.so$\|/other.3$' && fail "left behind"
  find "$root" -name '*codeheap*' | grep . && fail "folders of ours are left behind"
  find "$root" -type d -empty -delete
  picture_of "$root" >"$work/after"
  must diff "$work/before" "$work/after"
}

# A folder has the name of a file of ours. All else goes.
case_install_uninstall_says_what_it_cannot_take_away() {
  local theirs=$work/root/include/codeheap/codeheap.h
  install_here install PREFIX="$work/root"
  must rm "$theirs"
  must mkdir "$theirs"
  make --no-print-directory GC="$gc" BUILD="$build" uninstall PREFIX="$work/root" >"$work/log" 2>&1 && fail "it counts as done"
  grep -qF "$theirs" "$work/log" || fail "it said: $(cat "$work/log")"
  find "$work/root" -type f -o -type l | grep . && fail "left behind"
  return 0
}

# --- the tarball ---

# The same bytes from the tree under any umask, and from what was unpacked; which builds, installs and runs.
case_install_tarball_is_reproducible_and_builds() {
  local version inside object
  version=$(header_version TEXT)
  [ -e .git ] || [ -f MANIFEST ] || { echo "skip: nothing says which files belong to the tree"; exit 77; }
  pack() { tools/dist.sh "$version" "$1" >"$work/log" 2>&1 || fail "dist: $(cat "$work/log")"; }
  (umask 077 && pack "$work/one.tar.gz") || exit 1
  pack "$work/two.tar.gz"
  must cmp "$work/one.tar.gz" "$work/two.tar.gz"
  tar -tzvf "$work/one.tar.gz" | awk '$2 != "0/0" || $6 !~ /^libcodeheap-/' | grep . && fail "an owner, or a file outside"
  mkdir "$work/out" && must tar -C "$work/out" -xzf "$work/one.tar.gz"
  inside=$work/out/libcodeheap-$version
  [ ! -e .git ] || must diff <(git -c safe.directory="$(pwd -P)" ls-files | LC_ALL=C sort) <(cd "$inside" && find . -type f ! -name MANIFEST -printf '%P\n' | LC_ALL=C sort)
  cd "$inside" || exit 1
  unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES BUILD
  # Whoever unpacked it, and when it was touched, does not count.
  must chmod -R go-rwx .
  find . -type f ! -name MANIFEST -exec touch {} +
  must make --no-print-directory dist >/dev/null
  must cmp "$work/one.tar.gz" "build/libcodeheap-$version.tar.gz"
  # The library of the tree is the same one, byte by byte, when it was made with the same settings. But with LONG=1 three of its
  # objects are looked at, and all is built without optimization, which takes half as long.
  local same=build/obj/codeheap/life/heap.o\ build/obj/unwind/walk.o\ build/obj/pages/pool.o quickly=-O0\ -g0
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || same=build/libcodeheap.so quickly=
  must make --no-print-directory SETUP=no GC="$gc" $same >"$work/log" 2>&1
  if cmp -s "$inside/$build/obj/flags" <(sed "s,$tree,$inside,g" "$tree/$build/obj/flags"); then
    for object in $same; do must cmp "$object" "$tree/$build/${object#build/}"; done
  fi
  must make --no-print-directory SETUP=no GC="$gc" EXTRA_CFLAGS="$quickly" install PREFIX="$work/root" >"$work/log" 2>&1
  write_program codeheap "$work/program.c"
  export PKG_CONFIG_PATH=$work/root/lib/pkgconfig
  flags_of codeheap
  must gcc -std=c11 -o "$work/program" "$work/program.c" "${flags[@]}"
  must env LD_LIBRARY_PATH="$work/root/lib" "$work/program" >/dev/null
}

# name -> seconds, where it is not the usual.
if [ $# = 0 ]; then
  left_out='^none$'
  [ "$gc" != none ] || left_out='_bdw_|_of_one_command'
  list_functions 120 | grep -vE "$left_out" |
    sed -E 's/^(\S*_and_builds) 120/\1 400/; s/^(\S*_of_one_command) 120/\1 240/'
  exit 0
fi
"case_$1"
