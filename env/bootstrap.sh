#!/usr/bin/env bash
# Prepares a machine (Debian 12, Ubuntu 24.04): Debian packages, locked wheels, upstream releases, base image.
# Usage: env/bootstrap.sh [--yes] [--host-only]
#   --yes        do not ask before apt-get (also where CI=true)
#   --host-only  the runner's packages alone: no wheels, no releases, no image
# Goes on as far as it can: what is missing is said with the command that brings it. A second run takes no time.
# Exit: 0 all is there, 1 something is missing (said on stderr), 2 usage.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/patchbench
yes=${CI:+--yes} host_only=
for word in "$@"; do
  case $word in
    --yes) yes=--yes ;;
    --host-only) host_only=1 ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
say() { printf 'bootstrap: %s\n' "$*" >&2; }

build="g++ cmake ninja-build ccache pkg-config git python3 python3-dev ed libgit2-dev nlohmann-json3-dev
  libvalijson-dev libcli11-dev libfmt-dev libsqlitecpp-dev libsqlite3-dev libssl-dev libgtest-dev libbenchmark-dev
  pybind11-dev ca-certificates"
sandbox="podman runc bubblewrap debootstrap uidmap"

stamp=$cache/bootstrap/$(cat "$0" "$root"/env/fetch.py "$root"/env/pins.json "$root"/env/locks/* "$root"/env/images/*/* \
  2>/dev/null | cat - <(echo "$host_only") | sha256sum | cut -c1-16)
[ -e "$stamp" ] && exit 0
missing=0

packages() {
  local wanted=()
  for package in $build $sandbox; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || wanted+=("$package")
  done
  [ ${#wanted[@]} -eq 0 ] && return 0
  if ! command -v apt-get >/dev/null; then
    say "no apt-get here; install what these Debian packages hold: ${wanted[*]}"
    return 1
  fi
  if [ "$(id -u)" != 0 ]; then
    say "not root, so not installed; run: sudo apt-get install -y --no-install-recommends ${wanted[*]}"
    return 1
  fi
  say "installs with apt-get: ${wanted[*]}"
  if [ -z "$yes" ]; then
    if [ ! -t 0 ]; then
      say "not a terminal: say --yes to let it install"
      return 1
    fi
    read -r -p "Install them now? [y/N] " answer
    case $answer in [yY]*) ;; *) return 1 ;; esac
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >&2 && apt-get install -y -qq --no-install-recommends "${wanted[@]}" >&2 && return 0
  say "apt-get failed; run: apt-get update && apt-get install -y --no-install-recommends ${wanted[*]}"
  return 1
}

packages || missing=1
if [ -z "$host_only" ]; then
  say "locked wheels (torch 2.11.0 and what it needs: 2.3 GiB to fetch once, 4.7 GiB on disk), tools, upstream releases"
  for lock in torch-2.11 tools; do
    python3 "$root/env/fetch.py" env "$root/env/locks/$lock.txt" >/dev/null || missing=1
  done
  # The base image has Python 3.11, whatever this machine has.
  command -v podman >/dev/null && { python3 "$root/env/fetch.py" env "$root/env/locks/torch-2.11.txt" --tag cp311 >/dev/null || missing=1; }
  python3 "$root/env/fetch.py" pins "$root/env/pins.json" liger-kernel || missing=1
fi
[ "$missing" = 0 ] && mkdir -p "$cache/bootstrap" && : >"$stamp"
exit "$missing"
