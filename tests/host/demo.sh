#!/bin/bash
# SPDX-License-Identifier: MIT
# What `make demo` shows, as tests: the heap's picture holds the heap's own numbers, the adversary runs to its end, the
# chain and the short promises keep their word, and the page that colleagues are shown is whole. Without arguments it lists its cases, with a name it runs one.
set -u
build=$(realpath -m "${CODEHEAP_BUILD:-build}")
# Behind the words of an emulator, where the programs are another machine's.
read -ra run <<<"${CODEHEAP_TEST_EMULATOR:-}"
if [ $# = 0 ]; then
  printf '%s\n' "demo_picture_holds_the_statistics 60 0 -" "demo_adversary_runs_to_its_end 60 0 -" \
    "demo_chain_keeps_its_promises 60 0 -" "demo_short_promises_are_kept 60 0 alone"
  [ -n "${CODEHEAP_TEST_EMULATOR:-}" ] || echo "demo_page_is_whole_in_a_browser 300 0 -"
  exit 0
fi
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT

picture() {
  "${run[@]}" "$build/scheme" --jit -e "(begin (load \"hosts/scheme/programs/queens.scm\") (code-discard!) \
    (load \"hosts/scheme/programs/deriv.scm\") (code-map \"$out/heap.svg\") (write (code-stats)) (newline))" \
    >"$out/stats" </dev/null || return 1
  python3 - "$out/heap.svg" "$out/stats" <<'PYTHON'
import re, sys
import xml.etree.ElementTree as tree
svg = tree.parse(sys.argv[1]).getroot()
space = "{http://www.w3.org/2000/svg}"
said = dict((n.replace("-", "_"), int(v)) for n, v in re.findall(r"\(([a-z-]+) \. (\d+)\)", open(sys.argv[2]).read()))
panels = [g for g in svg.iter(space + "g") if g.get("class") == "panel"]
assert len(panels) == 2, "two panels"
before, after = ({k[5:]: int(v) for k, v in g.items() if k.startswith("data-")} for g in panels)
assert after["cycles"] > before["cycles"] and after["blocks_freed"] > before["blocks_freed"], "a collection between"
# What is printed after the picture was made in the same process: what only a collection changes is the same.
for name in ("pool_bytes", "page_bytes", "cycles"):
    assert after[name] == said[name], (name, after[name], said[name])
for numbers, g in zip((before, after), panels):
    assert numbers["drawn"] == numbers["blocks_now"] - numbers["blocks_open_now"], "each block is drawn"
    parts = [r for r in g.iter(space + "rect") if r.get("class") in ("hot", "notentrant", "cold")]
    assert parts or not numbers["drawn"], "something is drawn"
    per_byte = 520 / numbers["page_bytes"]
    drawn = sum(float(r.get("width")) for r in parts) / per_byte
    assert abs(drawn - numbers["code_bytes_now"]) <= 0.02 * numbers["code_bytes_now"] + 64, (drawn, numbers["code_bytes_now"])
    text = " ".join(t.text for t in g.iter(space + "text"))
    for name in ("blocks_now", "code_bytes_now", "pages_now", "blocks_notentrant_now", "blocks_freed"):
        assert str(numbers[name]) in text, name
PYTHON
}

page() {
  for tool in chromedriver chromium; do
    command -v $tool >/dev/null || { echo "skip: there is no $tool"; exit 77; }
  done
  # A build whose folder is the case's own, so that a demo beside it is left alone.
  ln -s "$build"/scheme "$out" && mkdir "$out/demo" && ln -s "$build"/demo/{chain,promises} "$out/demo" || return 1
  CODEHEAP_BUILD=$out CODEHEAP_DEMO_TIMES=25000 CODEHEAP_DEMO_PEERS=0 hosts/demo/demo.py >"$out/said" || { cat "$out/said"; return 1; }
  tail -n 1 "$out/said" | grep -qx '10 of 10 promises kept. Read next: examples/min.c, then docs/embedding.md' || { cat "$out/said"; return 1; }
  python3 tests/host/demo_page.py "$out/demo" || return 1
  # What is broken is said, and the exit code says it.
  printf '#!/bin/sh\necho "chain verdict: BROKEN"\n' >"$out/chain" && chmod +x "$out/chain" && mv -f "$out/chain" "$out/demo/chain" || return 1
  ! CODEHEAP_BUILD=$out CODEHEAP_DEMO_TIMES=1000 CODEHEAP_DEMO_PEERS=0 hosts/demo/demo.py >"$out/said" || { cat "$out/said"; return 1; }
  grep -q '^P2 *BROKEN' "$out/said" && grep -q '^P4 *BROKEN' "$out/said" && tail -n 1 "$out/said" | grep -q '^[67] of 10'
}

case $1 in
  demo_picture_holds_the_statistics) picture ;;
  demo_adversary_runs_to_its_end)
    set -o pipefail
    "${run[@]}" "$build/scheme" --jit hosts/demo/adversary.scm </dev/null | diff - hosts/demo/adversary.out ;;
  demo_chain_keeps_its_promises) "${run[@]}" "$build/demo/chain" ;;
  demo_short_promises_are_kept) "${run[@]}" "$build/demo/promises" >"$out/text" && cat "$out/text" && ! grep -q BROKEN "$out/text" ;;
  demo_page_is_whole_in_a_browser) page ;;
  *) exit 2 ;;
esac
