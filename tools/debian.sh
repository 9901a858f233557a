# SPDX-License-Identifier: MIT
# What fetches from Debian's archive reads this: the mirror and release of the machine itself. What else its sources name has no
# place here.
release=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME" || echo bookworm)
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
  grep -ohE '^[^#]*https?://[^ ]*/debian/?( |$)' | grep -oE 'https?://[^ ]*' | head -n 1)
mirror=${mirror:-http://deb.debian.org/debian}
# A mirror may be slow or away for a moment.
again() { # again COMMAND
  for pause in 10 30 0; do
    "$@" && return
    sleep $pause
  done
  return 1
}
