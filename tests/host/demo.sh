#!/bin/bash
# SPDX-License-Identifier: MIT
# What `make demo` shows, as tests: the heap's picture holds the heap's own numbers, the adversary runs to its end, the
# chain and the short promises keep their word. Without arguments it lists its cases, with a name it runs one.
set -u
build=${CODEHEAP_BUILD:-build}
# Behind the words of an emulator, where the programs are another machine's.
read -ra run <<<"${CODEHEAP_TEST_EMULATOR:-}"
if [ $# = 0 ]; then
  printf '%s\n' "demo_picture_holds_the_statistics 60 0 -" "demo_adversary_runs_to_its_end 60 0 -" \
    "demo_chain_keeps_its_promises 60 0 -" "demo_short_promises_are_kept 60 0 alone"
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

case $1 in
  demo_picture_holds_the_statistics) picture ;;
  demo_adversary_runs_to_its_end)
    "${run[@]}" "$build/scheme" --jit hosts/demo/adversary.scm </dev/null | diff - hosts/demo/adversary.out ;;
  demo_chain_keeps_its_promises) "${run[@]}" "$build/demo/chain" ;;
  demo_short_promises_are_kept) "${run[@]}" "$build/demo/promises" >"$out/text" && cat "$out/text" && ! grep -q BROKEN "$out/text" ;;
  *) exit 2 ;;
esac
