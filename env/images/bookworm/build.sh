#!/usr/bin/env bash
# Builds the base image of subjects as a tar: Debian 12 (minbase), Python 3.11 with its headers, a C and a C++ compiler
# (Triton and torch.compile build launchers at run time), and the user patchbench-runtime that subjects run as.
#
# Usage: build.sh TREE TAR     TREE: a folder to build in, removed afterwards; TAR: the result
# stdout: tree_digest=…, python=… and tag=… lines. Needs root, debootstrap and a Debian mirror. What differs between two builds
# of the same packages (logs, caches, dates, machine names) is removed or fixed, so that equal trees have equal digests.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tree=$1 tar=$2
trap 'rm -rf --one-file-system "$tree" "$tar.part"' EXIT

rm -rf --one-file-system "$tree"
packages=$(paste -sd, "$here/packages.txt")
debootstrap --variant=minbase --include="$packages" bookworm "$tree" >&2

useradd --root "$tree" --uid 10001 --user-group --no-create-home --home-dir /work/home --shell /usr/sbin/nologin patchbench-runtime >&2
rm -rf "$tree"/var/{log,cache,tmp}/* "$tree"/var/lib/apt/{lists,extended_states} "$tree"/usr/share/{doc,man,info,locale}/* \
  "$tree"/etc/{passwd,group,shadow,gshadow,subuid,subgid}- "$tree"/etc/resolv.conf "$tree"/debootstrap "$tree"/tmp/*
rm -f "$tree"/var/lib/dpkg/*-old "$tree"/etc/.pwd.lock
find "$tree" -name __pycache__ -prune -exec rm -rf {} +
: > "$tree/etc/machine-id"
echo sandbox > "$tree/etc/hostname"
# The third field is the day of the last change.
sed -i -E 's/^([^:]*:[^:]*):[0-9]+:/\1:1:/' "$tree/etc/shadow"
mkdir -p "$tree"/{work,upstream,env,harness,subject,mitigations}

echo "tree_digest=$(python3 "$here/../tree_digest.py" "$tree")"
echo "python=/usr/bin/python3.11"
echo "tag=cp311"
tar -C "$tree" --sort=name --numeric-owner --exclude=./dev/* -cf "$tar.part" .
mv "$tar.part" "$tar"
