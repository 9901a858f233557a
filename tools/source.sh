#!/bin/sh
# SPDX-License-Identifier: MIT
# tools/source.sh PACKAGE: fetches the source of a Debian package, unpacked, into build/source/PACKAGE. Lists of its
# own beside it: apt's state of the machine does not change, and root is not needed. Does nothing when it is there.
set -eu
. "$(dirname "$0")/debian.sh"
package=$1 folder=build/source/$1
[ -e "$folder" ] && exit 0
mkdir -p "$(dirname "$folder")"
work=$(cd "$(dirname "$folder")" && mktemp -d "$PWD/$package.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/parts" "$work/files" "$work/tree"
echo "deb-src $mirror $release main" >"$work/sources.list"
get() {
  timeout -s KILL 300 apt-get -q -o Acquire::Retries=3 -o Acquire::Languages=none -o APT::Sandbox::User=root \
    -o Dir::State::lists="$work/lists" -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts="$work/parts" "$@"
}
fetch() {
  get update && (cd "$work/files" && get source --download-only "$package")
}
again fetch >"$work/log" 2>&1 </dev/null || {
  tail -n 5 "$work/log" >&2
  echo "source: cannot fetch the source of $package" >&2
  exit 1
}
tar -xf "$work"/files/*.orig.tar.* -C "$work/tree" --strip-components=1
mv -T "$work/tree" "$folder" || [ -e "$folder" ] # another set-up was first
