#!/bin/sh
# SPDX-License-Identifier: MIT
# tools/sysroot.sh ARCH FOLDER: fetches the libraries that a build for a foreign Debian architecture links and runs with,
# and unpacks them below FOLDER. Lists, cache and status are folders of its own beside it: neither apt's nor dpkg's state of
# the machine changes, and root is not needed. Goes on where it was cut off; does nothing when all is there.
set -eu
. "$(dirname "$0")/debian.sh"
arch=$1 sysroot=$2
packages='libc6 libgcc-s1 libstdc++6 libgc1 libgc-dev libjemalloc2 libjemalloc-dev libunwind8 libunwind-dev liblzma5 liblzma-dev'
[ "$(cat "$sysroot/complete" 2>/dev/null)" = "$packages" ] && exit 0
mkdir -p "$sysroot"
sysroot=$(cd "$sysroot" && pwd)
exec 9>"$sysroot/lock"
flock 9
[ "$(cat "$sysroot/complete" 2>/dev/null)" = "$packages" ] && exit 0

apt=$sysroot/apt
mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/no-parts" "$apt/log" "$apt/debs"
: >"$apt/status"
printf '%s\n' "deb $mirror $release main" "deb $mirror $release-updates main" >"$apt/sources.list"
# Read behind the machine's own settings, such as its proxy; hooks that would touch its state are cleared.
cat >"$apt/apt.conf" <<END
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
APT::Architecture "$arch";
APT::Architectures { "$arch"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
Dir::State "$apt/state";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Log "$apt/log";
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "$apt/no-parts";
Dir::Etc::preferencesparts "$apt/no-parts";
END
echo "sysroot: $arch packages of $mirror $release into $sysroot"
fetch() {
  timeout -s KILL 300 apt-get -c "$apt/apt.conf" -q update &&
    rm -f "$apt"/debs/*.deb &&
    (cd "$apt/debs" && timeout -s KILL 300 apt-get -c "$apt/apt.conf" -q download $packages)
}
again fetch >"$apt/log/fetch" 2>&1 </dev/null || {
  tail -n 5 "$apt/log/fetch" >&2
  echo "sysroot: cannot fetch $packages" >&2
  exit 2
}
for deb in "$apt"/debs/*.deb; do dpkg -x "$deb" "$sysroot"; done
# Absolute links would lead to the machine's own files.
find "$sysroot" -path "$apt" -prune -o -type l -lname '/*' -print | while read -r link; do
  ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$sysroot$(readlink "$link")")" "$link"
done
rm -rf "$apt/state" "$apt/cache" "$apt/debs"
echo "$packages" >"$sysroot/complete"
