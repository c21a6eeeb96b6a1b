# Sourced: bare Debian roots in the cache, each made once by debootstrap. Needs `cache` and `say`.

# can_make_roots: 1 with a line on stderr where no root can be made or entered here.
can_make_roots() {
  local program
  [ "$(id -u)" = 0 ] || { say "only root can make a Debian root"; return 1; }
  for program in debootstrap bwrap; do
    command -v $program >/dev/null || { say "$program is not installed; run env/bootstrap.sh --host-only"; return 1; }
  done
  bwrap --ro-bind / / true 2>/dev/null || { say "bwrap may not make namespaces here"; return 1; }
}

# debian_root NAME SUITE PACKAGES: prints the folder of the root; 1 if it cannot be made.
debian_root() {
  local tree=$cache/debian/$1-$2-$(sha256sum <<<"$3" | cut -c1-12) log=$cache/debian/$1-$2.log
  if [ ! -d "$tree" ]; then
    say "makes a root of $2 with debootstrap (minutes, once)"
    rm -rf --one-file-system "$tree.part"
    mkdir -p "$cache/debian"
    # In a mount namespace of its own: what debootstrap mounts is gone with it, even if it is killed.
    unshare --mount debootstrap --variant=minbase --include="$3" "$2" "$tree.part" >"$log" 2>&1 ||
      { tail -n 5 "$log" >&2; say "debootstrap failed; log: $log"; return 1; }
    mv "$tree.part" "$tree"
  fi
  printf '%s\n' "$tree"
}
