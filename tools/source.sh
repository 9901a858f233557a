#!/bin/sh
# SPDX-License-Identifier: MIT
# tools/source.sh PACKAGE [FOLDER]: fetches the source of a Debian package, unpacked, into build/source/PACKAGE. Lists of its
# own beside it: apt's state of the machine does not change, and root is not needed. Does nothing when it is there.
set -eu
package=$1 folder=${2:-build/source/$1}
[ -e "$folder" ] && exit 0
mkdir -p "$(dirname "$folder")"
work=$(cd "$(dirname "$folder")" && mktemp -d "$PWD/$package.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/parts" "$work/files"
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
  grep -ohE '^[^#]*https?://[^ ]*/debian/?( |$)' | grep -oE 'https?://[^ ]*' | head -n 1)
echo "deb-src ${mirror:-http://deb.debian.org/debian} bookworm main" >"$work/sources.list"
get() {
  timeout -s KILL 300 apt-get -q -o Acquire::Retries=3 -o Acquire::Languages=none -o APT::Sandbox::User=root \
    -o Dir::State::lists="$work/lists" -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts="$work/parts" "$@"
}
# A mirror may be slow or away for a moment.
for pause in 10 30 0; do
  get update >"$work/log" 2>&1 </dev/null && (cd "$work/files" && get source --download-only "$package") >>"$work/log" 2>&1 </dev/null && break
  [ $pause != 0 ] || { tail -n 5 "$work/log" >&2; echo "source: cannot fetch the source of $package" >&2; exit 1; }
  sleep $pause
done
mkdir "$work/tree"
tar -xf "$work"/files/*.orig.tar.* -C "$work/tree" --strip-components=1
mv "$work/tree" "$folder"
