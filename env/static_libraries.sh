#!/usr/bin/env bash
# Builds what the static program links and Debian has no usable archive of: libgit2 (Debian's archive wants Kerberos, which has
# none) and fmt (a shared object alone). Prints the folder: lib/, include/, notices/.
# Usage: env/static_libraries.sh
# Sources are Debian's own, by sha256, from the mirror that apt uses. Without HTTPS and SSH: `git` does all fetching.
# libgit2 has the fixes of Debian's patch series deb12u1. Bookworm's newest series is deb12u2 (bookworm-security, October 2026), whose
# source no mirror here serves (404 on 2026-11-25; its .debian.tar.xz, under updates/main/libg/libgit2, has the sha256
# 6a05d338adb95329616650f71d9cb3622d2e7c4a8f2767b7bbf08c36eb87e284). Of its four fixes three are in code that the program does not
# call: CVE-2026-53584 (submodule paths), CVE-2026-53586 (HTTP redirects), CVE-2026-5917 (SSH, which is not compiled). The fourth,
# CVE-2026-53585, limits the memory that a delta of a pack may ask for; the program reads packs that `git` fetched from the
# repositories of env/pins.json. tests/python/static_libraries_test.py holds the first three. A newer series is one changed line below.
# Exit: 0 built or already there, 1 not, 4 not possible here (needs Debian 12).
set -u
umask 022
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/patchbench
. "$root/env/debian_pool.sh"
say() { printf 'static_libraries: %s\n' "$*" >&2; }
give_up() { [ -e "$2" ] && tail -n 15 "$2" >&2; say "$1"; exit "${3:-1}"; }

# Folder of the pool, file, sha256.
sources="
main/libg/libgit2 libgit2_1.5.1+ds.orig.tar.xz 96369433500bb528f036c16be9921bd437c098b745f1aaeccb91290815518970
main/libg/libgit2 libgit2_1.5.1+ds-1+deb12u1.debian.tar.xz e869077309d8fa0bc56701970af7c6908d02674a89271f7cb29cb31814b69382
main/f/fmtlib fmtlib_9.1.0+ds1.orig.tar.gz 84ce1c2d0be3a9863935137969dcec6970125caac032f82474640bfc81463583
"
release=$(. /etc/os-release 2>/dev/null && echo "$ID-$VERSION_ID")
[ "$release" = debian-12 ] || give_up "the pinned sources fit the headers of Debian 12, and this is $release" "" 4

final=$cache/static/$release-$(cat "$0" "$root/env/debian_pool.sh" | sha256sum | cut -c1-12)
mkdir -p "$cache/static"
exec 9>"$final.lock"
flock 9
[ -e "$final/lib/libgit2.a" ] && { printf '%s\n' "$final"; exit 0; }
work=$final.part log=$final.log
rm -rf "$work"
mkdir -p "$work"/{files,src,prefix/lib,prefix/notices}

: >"$log"
while read -r folder file sha256; do
  [ -z "$folder" ] || pool_file "$folder" "$file" "$sha256" "$work/files" "$log" ||
    give_up "$file with sha256 $sha256 is on no mirror of apt; run apt-get update, or take the source of a newer Debian revision" "$log"
done <<<"$sources"

for file in "$work"/files/*.orig.tar.*; do tar -C "$work/src" -xf "$file" || exit 1; done
git2=$work/src/libgit2-1.5.1 fmt=$(echo "$work"/src/fmt*)
tar -C "$git2" -xf "$work"/files/libgit2_*.debian.tar.xz || exit 1
while read -r patch; do
  [ -z "$patch" ] || patch -d "$git2" -p1 -s <"$git2/debian/patches/$patch" >>"$log" 2>&1 || give_up "$patch does not apply" "$log"
done <"$git2/debian/patches/series"

say "compiles libgit2 and fmt (once; seconds)"
cmake -S "$git2" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$work/prefix" \
  -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTS=OFF -DBUILD_CLI=OFF -DUSE_HTTPS=OFF -DUSE_SSH=OFF -DUSE_GSSAPI=OFF \
  -DUSE_NTLMCLIENT=OFF -DUSE_SHA256=Builtin -DREGEX_BACKEND=pcre2 -DUSE_HTTP_PARSER=system -DENABLE_REPRODUCIBLE_BUILDS=ON \
  -DCMAKE_C_FLAGS="-ffunction-sections -fdata-sections -ffile-prefix-map=$work=." >>"$log" 2>&1 &&
  ninja -C "$work/build" install >>"$log" 2>&1 || give_up "libgit2 does not compile; log: $log" "$log"
grep -q '#define FMT_VERSION 90100' /usr/include/fmt/core.h || give_up "libfmt-dev is not 9.1.0, which the pinned fmt is" ""
g++ -std=c++20 -O2 -fPIC -ffunction-sections -fdata-sections "-ffile-prefix-map=$work=." -c "$fmt/src/format.cc" -o "$work/format.o" >>"$log" 2>&1 &&
  ar rcsD "$work/prefix/lib/libfmt.a" "$work/format.o" || give_up "fmt does not compile; log: $log" "$log"
cp "$git2/COPYING" "$work/prefix/notices/libgit2" && cp "$fmt"/LICENSE* "$work/prefix/notices/fmt" || exit 1
mv -T "$work/prefix" "$final" && rm -rf "$work"
printf '%s\n' "$final"
