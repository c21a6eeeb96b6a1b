#!/usr/bin/env bash
# Builds wheels into dist/, on Debian 12: env/wheels.sh [NAME...]    default: all but patchbench-judge and -ops, which need torch
#   patchbench              the static program, what it reads, `import patchbench` (pyproject.toml)
#   patchbench-py           the compiled module for CPython 3.11 and 3.13, and its sdist (runner/python/native)
#   patchbench-judge        the reproducers as one program, bound to the locked torch (repro/wheel)
#   patchbench-mitigations  the runtime fixes, Python alone (mitigations)
#   patchbench-ops          the ops for torch 2.11 and later (packs/python), with CUDA halves where nvcc is; compiled in a root of
#                           Debian 11 (glibc 2.31), as far as one can be made here
# Compiled with the packages of env/policy.json and the locked wheels of env/locks/wheels.txt; nothing is published.
# Exit: 0 built (a path a line on stdout), 1 not, 2 usage.
set -u
umask 022
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/patchbench
. "$root/env/debian_pool.sh"
. "$root/env/debian_root.sh"
say() { printf 'wheels: %s\n' "$*" >&2; }
logs=$root/build/wheels
mkdir -p "$root/dist" "$logs"
# Every clone of the repository on this machine takes the same objects from ccache, which tells compilers apart by their names: the
# backend would take g++, and CMake takes c++ where nobody says.
export CCACHE_BASEDIR=$root CC=cc CXX=c++
backend=$(python3 "$root/env/fetch.py" env "$root/env/locks/wheels.txt") || { say "the build backend could not be fetched"; exit 1; }

# build FOLDER KIND LOG: one wheel or sdist by the folder's own backend (PEP 517), without a network.
build() {
  local built
  built=$(cd "$root/$1" && PYTHONPATH=$backend python3 -c "import os, scikit_build_core.build as b
os.write(3, b.build_$2('$root/dist').encode())" 3>&1 >"$logs/$3.log" 2>&1) && printf '%s\n' "$root/dist/$built" && return 0
  tail -n 20 "$logs/$3.log" >&2
  say "$3 was not built; log: $logs/$3.log"
  return 1
}

# Headers of CPython 3.13, which Debian 12 lacks: unpacked, never installed.
python313_headers() {
  local folder=$cache/headers/python3.13 deb=libpython3.13-dev_3.13.5-2+deb13u5_amd64.deb
  if [ ! -d "$folder" ]; then
    local part
    part=$(mktemp -d "$cache/headers/python3.13.XXXXXX") || return 1
    pool_file main/p/python3.13 "$deb" 4bd7b17ffbeb367ce1fef8b6ff02536a25f29fc07372d1bdd3ed1e1faa5b9409 "$part" "$logs/headers.log" &&
      dpkg-deb -x "$part/$deb" "$part/root" && mv -T "$part/root" "$folder"
    rm -rf "$part"
  fi
  [ -d "$folder" ] || { say "$deb is on no mirror of apt; run apt-get update, or name a newer revision in env/wheels.sh"; return 1; }
  printf '%s\n' "$folder/usr/include"
}

module() { # TAG INCLUDE: the compiled module for one CPython
  SKBUILD_BUILD_DIR=$root/build/wheels/native SKBUILD_WHEEL_TAGS="cp$1-cp$1-manylinux_2_34_x86_64" SKBUILD_CMAKE_DEFINE="PATCHBENCH_PYTHON_TAG=$1;PATCHBENCH_PYTHON_INCLUDE=$2" \
    build runner/python/native wheel "patchbench-py-$1"
}

# Compiles the op library with the g++ of Debian 11, so that its symbol versions are those of glibc 2.31, or where no root can be made
# with this machine's. The wheel's tag says which. CMake, ninja and nvcc are this machine's; preset cuda needs no GPU.
ops_library() {
  local preset=cpu folder=$root/build/ops old compiler
  { command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; } && preset=cuda
  if ! can_make_roots || ! old=$(debian_root ops bullseye g++); then
    say "patchbench-ops is compiled on this machine, and needs its glibc"
    folder=$("$root/env/build.sh" $preset patchbench_ops_wheel)
  else
    compiler=$folder/g++
    mkdir -p "$folder"
    printf '#!/bin/sh\nexec bwrap --die-with-parent --dev-bind / / --ro-bind %q/usr /usr --ro-bind %q/etc /etc --ro-bind /usr/local /usr/local g++ "$@"\n' \
      "$old" "$old" >"$compiler" && chmod +x "$compiler"
    # ccache would look for the root's headers on this machine; CMake looks for libraries here, and would link the root's static librt.
    (cd "$root" && cmake --preset $preset -B "$folder" -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CUDA_HOST_COMPILER="$compiler" \
      -DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu -DCUDAToolkit_rt_LIBRARY=rt -DPATCHBENCH_CCACHE=OFF && ninja -C "$folder" patchbench_ops_wheel) >"$logs/patchbench-ops.log" 2>&1 ||
      { tail -n 20 "$logs/patchbench-ops.log" >&2; say "patchbench-ops was not built; log: $logs/patchbench-ops.log"; return 1; }
  fi
  [ -f "$folder/wheel/libpatchbench_ops.so" ] && printf '%s\n' "$folder/wheel/libpatchbench_ops.so"
}

one() { # NAME
  case $1 in
    patchbench) build . wheel patchbench ;;
    patchbench-mitigations) build mitigations wheel patchbench-mitigations ;;
    patchbench-judge) build repro/wheel wheel patchbench-judge ;;
    patchbench-py)
      local headers
      headers=$(python313_headers) && module 311 /usr/include && module 313 "$headers" &&
        build runner/python/native sdist patchbench-py-sdist
      ;;
    patchbench-ops)
      local library
      library=$(ops_library) && (cd "$root/packs/python" && PATCHBENCH_OPS_LIB=$library python3 -c "import build_wheel as b
print('$root/dist/' + b.build_wheel('$root/dist'))")
      ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
}

"$root/env/bootstrap.sh" --host-only --wheels || say "goes on without what is missing above"
[ $# = 0 ] && set -- patchbench patchbench-py patchbench-mitigations
failed=0
for name; do one "$name" || failed=1; done
exit $failed
