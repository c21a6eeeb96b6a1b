#!/usr/bin/env bash
# Prepares a bare Debian of another release as a user's machine, compiles the program and tests there, and runs them.
# Usage: env/try_debian.sh [SUITE [TEST...]]    default: trixie patch_cli_test; a TEST is a unit test's name
# The root (debootstrap, then env/bootstrap.sh --host-only) lies in the cache and is made again when the bootstrap or its list of
# packages changes. The source is read-only there. Only the preparation has a network.
# Exit: 0 compiled and green, 1 not, 4 not possible here (needs root, debootstrap and bwrap).
set -u
umask 022
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/patchbench/debian
suite=${1:-trixie}
shift
[ $# = 0 ] && set -- patch_cli_test
say() { printf 'try_debian: %s\n' "$*" >&2; }
lap=0
lap() { say "$1: $((SECONDS - lap)) s"; lap=$SECONDS; }
give_up() { tail -n 20 "$1" >&2; say "$2; log: $1"; exit 1; }

# Never what is mounted in a root: /proc there is the machine's own.
remove() { rm -rf --one-file-system "$@"; }

[ "$(id -u)" = 0 ] || { say "only root can make a Debian root"; exit 4; }
for program in debootstrap bwrap; do
  command -v $program >/dev/null || { say "$program is not installed; run env/bootstrap.sh --host-only"; exit 4; }
done

bwrap --ro-bind / / true 2>/dev/null || { say "bwrap may not make namespaces here"; exit 4; }

# Runs a command in a root: in_root TREE BWRAP-WORDS... -- COMMAND...
in_root() {
  local words=()
  while [ "$1" != -- ]; do words+=("$1"); shift; done
  shift
  bwrap --die-with-parent --unshare-pid --unshare-ipc --clearenv "${words[@]}" --dev /dev --proc /proc --perms 1777 --tmpfs /tmp \
    --ro-bind "$root" /src --chdir /src --setenv PATH /usr/sbin:/usr/bin:/sbin:/bin --setenv HOME /root \
    --setenv LC_ALL C.UTF-8 --setenv CI true ${http_proxy:+--setenv http_proxy "$http_proxy"} -- "$@" 9>&-
}

prepare() { # TREE LOG: a bare Debian, then what a user's first start does
  if [ ! -e "$1/bare" ]; then
    remove "$1"
    # In a mount namespace of its own: what debootstrap mounts is gone with it, even if it is killed.
    unshare --mount debootstrap --variant=minbase --include=ca-certificates "$suite" "$1" >"$2" 2>&1 || give_up "$2" "debootstrap failed"
    # Nobody needs this root after a power cut, and nobody reads its manuals.
    printf '%s\n' force-unsafe-io path-exclude=/usr/share/{doc,man,locale,info}/'*' >"$1/etc/dpkg/dpkg.cfg.d/try_debian"
    mkdir -p "$1"/{src,build,ccache}
    touch "$1/bare"
    lap debootstrap
  fi
  # A start that was stopped left packages half installed, and apt-get refuses to go on before they are.
  in_root --cap-add ALL --bind "$1" / --ro-bind /etc/resolv.conf /etc/resolv.conf \
    -- sh -c 'dpkg --configure -a && env/bootstrap.sh --host-only --yes' >>"$2" 2>&1 || give_up "$2" "env/bootstrap.sh failed in $suite"
  rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*
  lap bootstrap
}

key=$(cat "$root/env/bootstrap.sh" <(declare -f prepare; sed -n '/"packages"/,/^  }/p' "$root/env/policy.json") | sha256sum | cut -c1-12)
tree=$cache/$suite-$key build=$root/build/$suite
mkdir -p "$cache/ccache/tmp" "$build"
exec 9>"$cache/$suite.lock"
flock 9
if [ ! -d "$tree" ]; then
  say "makes a root of $suite with debootstrap and prepares it (minutes, once)"
  # What another state of the scripts left is of no use any more.
  for old in "$cache/$suite"-*; do [ "$old" = "$tree.part" ] || remove "$old"; done
  prepare "$tree.part" "$cache/$suite.log"
  mv "$tree.part" "$tree"
fi

# Objects of another root are of no use in this one.
[ "$(cat "$build/root" 2>/dev/null)" = "$key" ] || { rm -rf "$build"; mkdir -p "$build"; echo "$key" >"$build/root"; }
offline() {
  in_root --unshare-net --ro-bind "$tree" / --bind "$build" /build --bind "$cache/ccache" /ccache --setenv CCACHE_DIR /ccache \
    --setenv CCACHE_TEMPDIR /ccache/tmp -- "$@"
}
offline cmake --preset host -B /build >"$build/cmake.log" 2>&1 || give_up "$build/cmake.log" "cmake failed in $suite"
if ! offline ninja -C /build patchbench patchbench-sandbox "$@" >"$build/build.log" 2>&1; then
  grep -m 5 -A 8 'error' "$build/build.log" >&2 || tail -n 20 "$build/build.log" >&2
  say "the build failed in $suite; log: $build/build.log"
  exit 1
fi
lap compile
failed=0
for command in "patchbench list" "$@"; do
  log=$build/${command%% *}.log
  # Words of a command are split on purpose.
  offline /build/bin/$command >"$log" 2>&1 || { tail -n 40 "$log" >&2; say "$command failed in $suite"; failed=1; }
done
lap run
exit $failed
