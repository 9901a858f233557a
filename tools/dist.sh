#!/bin/bash
# SPDX-License-Identifier: MIT
# tools/dist.sh VERSION FILE: packs the sources of this tree into FILE, a .tar.gz with one folder libcodeheap-VERSION. The same
# sources make the same bytes: names sorted, no owner, modes without the packer's umask, one time for all. What belongs
# to it is what git tracks; in a tree that was itself unpacked, what its MANIFEST says, whose time is then everybody's.
set -eu
export LC_ALL=C
version=$1 file=$2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
fail() { echo "dist: $*" >&2; exit 2; }
# Root may pack what another user has checked out; git would not look at it unasked.
git() { command git -c safe.directory="$(pwd -P)" "$@"; }

if [ -e .git ]; then
  type -P git >/dev/null || fail "git says which files belong to it: install git"
  git ls-files >"$work/names"
  when=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
  git diff --quiet HEAD -- || echo "dist: with changes that are not committed" >&2
elif [ -f MANIFEST ]; then
  cp MANIFEST "$work/names"
  when=${SOURCE_DATE_EPOCH:-$(stat -c %Y MANIFEST)}
else
  fail "this tree has neither .git nor MANIFEST: nothing says which files belong to it"
fi
grep -vx MANIFEST "$work/names" | sort -u >"$work/MANIFEST"
[ -s "$work/MANIFEST" ] || fail "no file belongs to it"
while IFS= read -r name; do
  [ -f "$name" ] || fail "$name belongs to it and is not there"
done <"$work/MANIFEST"

mkdir -p "$(dirname "$file")"
tar --create --file="$work/tar" --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mode=a=rX,u+w \
  --mtime="@$when" --no-recursion --transform="s,^,libcodeheap-$version/," --files-from="$work/MANIFEST" \
  -C "$work" MANIFEST
gzip -9 --no-name <"$work/tar" >"$file.new"
mv -f "$file.new" "$file"
echo "$file"
