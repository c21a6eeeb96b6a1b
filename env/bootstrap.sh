#!/usr/bin/env bash
# Prepares a machine (Debian 12 or 13; Ubuntu 24.04 is untried): Debian packages, locked wheels, upstream releases, base image.
# Usage: env/bootstrap.sh [--yes] [--host-only | --pack] [--tests] [--wheels]
#   --yes        do not ask before apt-get (also where CI=true, and where no terminal can be asked)
#   --host-only  the runner's packages alone: no wheels, no releases, no image
#   --pack       and the wheels that a reproducer is built with: the program fetches what the pack's run needs beside them
#   --tests      what the tests alone need, too: a Slurm to start on this machine, the schema of CycloneDX, pip-audit
#   --wheels     what env/wheels.sh alone needs, too: archives that the static program links
# Goes on as far as it can: what is missing is said with the command that brings it. A second run takes no time.
# Exit: 0 all is there, 1 something is missing (said on stderr), 2 usage.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/patchbench
yes=${CI:+--yes} host_only= pack= tests= wheels=
for word in "$@"; do
  case $word in
    --yes) yes=--yes ;;
    --host-only) host_only=1 ;;
    --pack) pack=1 ;;
    --tests) tests=1 ;;
    --wheels) wheels=1 ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
say() { printf 'bootstrap: %s\n' "$*" >&2; }

# The packages of one purpose, one package a line in the policy, which `patchbench env doctor` reads too. No Python: it may not
# be there yet.
packages_for() { sed -n '/"packages"/,$p' "$root/env/policy.json" | sed -n '/"'"$1"'": \[/,/\]/s/^ *"\([a-z0-9+.-]*\)",\{0,1\}$/\1/p'; }
wanted_packages=$(packages_for build; packages_for sandbox; [ -n "$tests" ] && packages_for tests; [ -n "$wheels" ] && packages_for wheels)
# Two machines of different releases may share a cache.
release=$(. /etc/os-release 2>/dev/null && echo "$ID-$VERSION_ID")

inputs=("$0" "$root"/env/{fetch.py,pins.json,policy.json} "$root"/env/locks/* "$root"/packs/*/manifest.json
  "$root"/mitigations/patchbench_mitigations/data/*.json)
stamp=$cache/bootstrap/$(cat "${inputs[@]}" <(echo "$host_only $pack $tests $wheels $release"; cd "$root" && echo repro/*/repro.cpp) | sha256sum | cut -c1-16)
# What is installed; a stamp that lacks packages holds until this changes.
installed=$(stat -c %Y /var/lib/dpkg/status 2>/dev/null)
if [ -e "$stamp" ]; then
  read -r state <"$stamp"
  [ "$state" = complete ] && exit 0
  if [ "$state" = "without packages $installed" ] && [ -z "$yes" ]; then
    say "some Debian packages are missing; ./patchbench env doctor names them"
    exit 1
  fi
fi
missing=0

packages() {
  local wanted=() there
  there=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' $wanted_packages 2>/dev/null | sed -n 's/ installed$//p')
  for package in $wanted_packages; do
    grep -qxF "$package" <<<"$there" || wanted+=("$package")
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
  if [ -z "$yes" ] && [ -t 0 ]; then
    read -r -p "Install them now? [y/N] " answer
    case $answer in [yY]*) ;; *) return 1 ;; esac
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq >&2 && apt-get install -y -qq --no-install-recommends "${wanted[@]}" >&2 && return 0
  say "apt-get failed; run: apt-get update && apt-get install -y --no-install-recommends ${wanted[*]}"
  return 1
}

# Headers that are used without what their package depends on: cmake/runner.cmake finds them in the cache. apt checks the
# signature of the package list, and the package's digest against the list.
headers() { # PACKAGE
  local final=$cache/headers/$release/$1 part
  [ -d "$final" ] && return 0
  if ! command -v apt-get >/dev/null; then
    say "no apt-get here; unpack what the Debian package $1 holds into $final"
    return 1
  fi
  mkdir -p "${final%/*}" && part=$(mktemp -d "$final.XXXXXX") || return 1
  # apt's own user cannot write into a home folder.
  download() { (cd "$part" && apt-get download -qq -o APT::Sandbox::User=root "$1") >&2; }
  if download "$1" 2>/dev/null || {
    # Where the whole package is installed, the compiler finds the headers in /usr/include.
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ] && { rm -rf "$part"; return 0; }
    # A machine without package lists; only root can bring them.
    [ "$(id -u)" = 0 ] && apt-get update -qq >&2 && download "$1"
  }; then
    dpkg-deb -x "$part"/*.deb "$part/root" && chmod 755 "$part/root" && mv -T "$part/root" "$final" 2>/dev/null
  fi
  rm -rf "$part"
  # Another process may have brought them meanwhile.
  [ -d "$final" ] && return 0
  if [ "$(id -u)" = 0 ]; then
    say "the headers of $1 could not be fetched; run: apt-get update && $0 --host-only"
  else
    say "the headers of $1 could not be fetched without package lists; run: sudo apt-get update, then $0"
  fi
  return 1
}

packages || missing=1
without_packages=$missing
for package in $(packages_for headers); do
  headers "$package" || missing=2
done
if [ -z "$host_only" ]; then
  say "locked wheels (torch 2.11.0 and what it needs: 2.5 GiB to fetch once, 4.4 GiB on disk)"
  locks=(torch-2.11)
  [ -z "$pack" ] && locks+=(tools wheels ${tests:+schemas pip-audit})
  for lock in "${locks[@]}"; do
    python3 "$root/env/fetch.py" env "$root/env/locks/$lock.txt" >/dev/null || missing=2
  done
  # The base image has Python 3.11, whatever this machine has.
  if [ -z "$pack" ] && command -v podman >/dev/null; then
    for lock in "$root"/env/locks/*.txt; do
      case ${lock##*/} in
        # torch 2.15: env/try_ops.sh fetches it.
        tools.txt | wheels.txt | schemas.txt | pip-audit.txt | judge.txt | torch-2.15.txt) ;;
        *) python3 "$root/env/fetch.py" env "$lock" --tag cp311 >/dev/null || missing=2 ;;
      esac
    done
  fi
  # Red pins, the newest releases and what the tests need; reproduce and window fetch the others when they run them.
  [ -n "$pack" ] || python3 "$root/env/fetch.py" pins "$root/env/pins.json" || missing=2
  command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] ||
    say "no nvcc: preset cpu is built, the ops go without their CUDA halves (CUDA 13.0 toolkit: developer.nvidia.com/cuda-downloads)"
fi
# A fetch that failed is tried again next time; packages that nobody could install are not.
mkdir -p "$cache/bootstrap"
[ "$missing" = 0 ] && echo complete >"$stamp"
[ "$missing" = 1 ] && [ "$without_packages" = 1 ] && echo "without packages $installed" >"$stamp"
[ "$missing" = 0 ]
