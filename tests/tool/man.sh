#!/bin/bash
# SPDX-License-Identifier: MIT
# The manual pages: without a warning of two formatters, and true: the library's page lists what the headers declare, a
# program's page the switches that the program says it has, and no others. Without arguments it lists its cases, with a
# name it runs one.
. tests/support/script.sh
make_work

# What each page tells of, and a file by which one knows that the tree has it. A page that is missing here is looked at by no
# case below, and so is refused.
page_is_known() {
  case "$1" in
    codeheap.3 | codeheap.7 | codeheap-gdb.1) ;;
    scheme.1 | callgrind-names.1 | codeheap-top.1 | codeheap-python.1 | codeheap-lli.1) [ -e "$(source_of "$1")" ] || fail "there is no $(source_of "$1")" ;;
    *) fail "tests/tool/man.sh does not say what $1 tells of" ;;
  esac
}
source_of() {
  case "$1" in
    scheme.1) echo hosts/scheme/main.c ;;
    callgrind-names.1) echo tools/callgrind/main.c ;;
    codeheap-top.1) echo tools/codeheap-top/main.c ;;
    codeheap-lli.1) echo hosts/llvm/lli.c ;;
    codeheap-python.1) echo hosts/python/codeheap/__main__.py ;;
  esac
}
# What a program says of itself.
help_of() {
  case "$1" in
    scheme.1) "$build/scheme" --help </dev/null 2>&1 ;;
    callgrind-names.1) "$build/callgrind-names" --help </dev/null 2>&1 ;;
    codeheap-top.1) "$build/codeheap-top" --help </dev/null 2>&1 ;;
    # What needs LLVM, or Python's headers, to be built says it in its source.
    codeheap-lli.1) sed -n '/^static void usage/,/^}/p' "$(source_of "$1")" ;;
    codeheap-python.1)
      python3 -c 'import ast, sys; print(ast.get_docstring(ast.parse(open(sys.argv[1]).read())))' "$(source_of "$1")"
      ;;
  esac
}

# The switches that a page explains: those of its list, a `.It` each.
switches_of_page() {
  sed -n 's/^\.It \(Fl .*\)/\1/p' "$1" | sed 's/ Ns = Ns.*//; s/ Ar .*//; s/Fl /-/g' | LC_ALL=C sort -u
}
switches_of_text() { grep -oE '(^|[][ (|,"])--?[a-z][a-z0-9-]*' | sed 's/^[][ (|,"]*//' | LC_ALL=C sort -u; }
same() { # same PAGE: the files `says` and `explains`
  [ -s "$work/says" ] || fail "$1: nothing to compare with"
  diff "$work/says" "$work/explains" || fail "$1: < what the program says, > what the page explains"
}

case_man_pages_are_well_formed() {
  local page found=0
  command -v mandoc >/dev/null || fail "no mandoc"
  for page in docs/man/*.[1-9]; do
    found=$((found + 1))
    # What other pages there are on this machine is not the page's affair.
    mandoc -T lint -W warning "$page" 2>&1 | grep -v 'mandoc.db' >"$work/said"
    ! grep . "$work/said" || fail "mandoc objects to $page"
    LC_ALL=C.UTF-8 man --warnings -l "$page" 2>&1 >"$work/text" | grep . && fail "groff objects to $page"
    [ "$(wc -l <"$work/text")" -gt 20 ] || fail "$page is empty"
    # What apropos reads.
    lexgrog "$page" >"$work/said" 2>&1 || fail "$page has no name that whatis can find: $(cat "$work/said")"
    page_is_known "${page##*/}"
  done
  [ $found -ge 3 ] || fail "$found pages"
  # The comparison is one: a page with a wrong request is told.
  { cat docs/man/scheme.1; printf '.Sh NAME\n.Nonsense\n'; } >"$work/wrong.1"
  mandoc -T lint -W warning "$work/wrong.1" >/dev/null 2>&1 && fail "mandoc objects to nothing"
  return 0
}

case_man_page_of_the_library_is_the_headers() {
  tools/man_functions.py || fail "docs/man/codeheap.3 is not what the headers say"
  local name
  for name in $(tools/public_names.sh codeheap/*.h); do
    grep -q "^\.Fn $name " docs/man/codeheap.3 || fail "$name is not in the page"
  done
  for name in $(sed -n 's/^\.Fn \(ch_[a-z_]*\).*/\1/p' docs/man/codeheap.3 | sort -u) \
    $(grep -oE '\bch_[a-z_]+\b' docs/man/codeheap.3 | sort -u); do
    grep -qw "$name" codeheap/*.h || fail "the page speaks of $name, which no header has"
  done
  local binary
  binary=$(sed -n 's/^#define CH_VERSION_BINARY \([0-9]*\).*/\1/p' codeheap/codeheap.h)
  for name in $(grep -oE 'lib[a-z-]+\.so\.[0-9]+' docs/man/codeheap.3); do
    [ "${name##*.}" = "$binary" ] || fail "the page speaks of $name; programs ask for number $binary"
  done
  for name in $(sed -n 's/^\.It Ev \(CODEHEAP_[A-Z_]*\|JITDUMPDIR\)$/\1/p' docs/man/codeheap.3); do
    grep -rq "\"$name\"" codeheap os pages unwind sinks observe || fail "the page speaks of $name, which the library does not read"
  done
}

# Each function has a page, which formatters take and which says every status and argument of the contract in the header, and
# the constants to give.
case_man_page_of_each_function_is_its_contract() {
  local page name file
  tools/man_pages.py "$work/pages" || fail "tools/man_pages.py"
  ls "$work/pages" | sed 's/\.3$//' | LC_ALL=C sort >"$work/found"
  { tools/public_names.sh codeheap/*.h; echo ch_config_init; } | LC_ALL=C sort -u | diff - "$work/found" || fail "< a function, > a page"
  for page in "$work"/pages/*.3; do
    mandoc -T lint -W warning "$page" 2>&1 | grep -v 'mandoc.db' >"$work/said"
    ! grep . "$work/said" || fail "mandoc objects to $page"
    LC_ALL=C.UTF-8 MANWIDTH=400 man --warnings -l "$page" 2>&1 >"$work/${page##*/}.text" | grep . && fail "groff objects to $page"
  done
  python3 - "$work" <<'PYTHON'
import glob, re, sys
for header in glob.glob("codeheap/*.h"):
    for name, text in re.findall(r"^/\* (ch_\w+): ((?:(?!\*/).)*)\*/", open(header).read(), re.M | re.S):
        said = re.sub(r"\s", "", open(f"{sys.argv[1]}/{name}.3.text").read())
        for line in text.split("\n"):
            line = re.sub(r"^ \* *(?:(?:in|out|ret|lock|safe|cost|note) +)?", "", line).replace("`", "")
            for word in line.split():
                assert word.strip("|.,:;").lower() in said.lower(), f"{name}: its page does not say {word}"
# An argument's constants stand in the page of a function that takes them.
said = "".join(open(page).read() for page in glob.glob(f"{sys.argv[1]}/*.3.text"))
for header in glob.glob("codeheap/*.h"):
    for constants in re.findall(r"^enum ch_\w+ \{(.*?)\};", re.sub(r"/\*.*?\*/", "", open(header).read(), flags=re.S), re.M | re.S):
        for constant in re.findall(r"\bCH_[A-Z][A-Z_]*\b", re.sub(r"#.*|CH_STATUS_LIST", "", constants)):
            assert re.search(rf"\b{constant}\b", said), f"no page says {constant}"
PYTHON
}

# Commands and switches, as gdb says them itself.
case_man_page_of_gdb_has_its_commands() {
  local page=docs/man/codeheap-gdb.1
  gdb -nx -batch -ex 'source tools/gdb/codeheap.py' -ex 'help codeheap' >"$work/help" 2>&1 || fail "gdb: $(cat "$work/help")"
  sed -n 's/^\(codeheap [a-z]*\) -- .*/\1/p' "$work/help" | sort >"$work/says"
  sed -n 's/^\.It Ic \(codeheap [a-z]*\).*/\1/p' "$page" | sort >"$work/explains"
  same $page
  gdb -nx -batch -ex 'source tools/gdb/codeheap.py' -ex 'help codeheap break' 2>&1 | switches_of_text >"$work/says"
  switches_of_page $page >"$work/explains"
  same $page
}

program_page() { # program_page PAGE
  help_of "$1" >"$work/help"
  [ -s "$work/help" ] || fail "$1: the program says nothing"
  # Behind its own name, what python3.11 -m and -c run is said in the synopsis.
  switches_of_text <"$work/help" | grep -vxE -- '--help|-[mc]' >"$work/says"
  switches_of_page "docs/man/$1" | grep -vx -- --help >"$work/explains"
  same "docs/man/$1"
}
case_man_page_of_scheme_has_its_switches() { program_page scheme.1; }
case_man_page_of_callgrind_names_has_its_switches() { program_page callgrind-names.1; }
case_man_page_of_codeheap_top_has_its_switches() { program_page codeheap-top.1; }
case_man_page_of_lli_has_its_switches() { program_page codeheap-lli.1; }
case_man_page_of_python_has_its_switches() {
  program_page codeheap-python.1
  grep -oE '\bCODEHEAP_PYTHON_[A-Z_]+' hosts/python/codeheap/__init__.py | LC_ALL=C sort -u >"$work/says"
  sed -n 's/^\.It Ev \(CODEHEAP_PYTHON_[A-Z_]*\)$/\1/p' docs/man/codeheap-python.1 | LC_ALL=C sort -u >"$work/explains"
  same docs/man/codeheap-python.1
}

# As a user finds them; both names of the library's.
case_man_pages_are_found_where_they_are_installed() {
  local page
  make --no-print-directory GC="${CODEHEAP_TEST_GC:-bdw}" BUILD="$build" install PREFIX="$work/root" >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; fail "make install"; }
  for page in "3 codeheap" "3 libcodeheap" "7 codeheap" ch_block_open "3 ch_heap_check" "1 codeheap-gdb" "1 callgrind-names" "1 codeheap-top"; do
    LC_ALL=C.UTF-8 man -M "$work/root/share/man" $page >"$work/text" 2>&1 </dev/null || fail "man $page: $(cat "$work/text")"
    grep -q '^NAME' "$work/text" || fail "man $page shows no page"
  done
}

# Without the Boehm driver there is no Scheme.
if [ $# = 0 ]; then
  left_out='^none$'
  [ "${CODEHEAP_TEST_GC:-bdw}" != none ] || left_out='_scheme_'
  list_functions 120 | grep -vE "$left_out"
  exit 0
fi
"case_$1"
