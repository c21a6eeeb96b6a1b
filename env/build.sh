#!/usr/bin/env bash
# Brings one preset's build up to date and prints its folder: env/build.sh [PRESET|best|elsewhere] [TARGET...]
# best: cuda where a GPU and nvcc are, cpu where the torch wheel is, else host, which has no reproducers. elsewhere: for a machine with
# a GPU, so cuda where nvcc is. Without TARGET all that there is. Quiet when nothing is to do.
# Exit: 0 built, 1 not (the compiler's last lines on stderr).
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/patchbench
say() { printf 'build: %s\n' "$*" >&2; }
has_nvcc() { command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; }
preset=${1:-best}
[ $# -gt 0 ] && shift
if [ "$preset" = best ] || [ "$preset" = elsewhere ]; then
  where=$preset preset=host
  compgen -G "$cache/env/torch-2.11-*/patchbench-env.json" >/dev/null && preset=cpu
  if [ $preset = cpu ] && { [ $where = elsewhere ] || nvidia-smi -L >/dev/null 2>&1; }; then
    if has_nvcc; then preset=cuda; else say "no nvcc for a GPU: the ops go without their CUDA halves (install the CUDA 13.0 toolkit)"; fi
  fi
  if [ $preset = host ]; then
    say "no torch wheel in the cache: the runner alone, no reproducers (run env/bootstrap.sh)"
    for target; do
      shift
      case $target in repro* | patchbench_ops) ;; *) set -- "$@" "$target" ;; esac
    done
  fi
fi
folder=$root/build/$preset
log=$folder/build.log
mkdir -p "$folder"
# Every clone of the repository on this machine takes the same objects from ccache.
export CCACHE_BASEDIR=$root CCACHE_ABSSTDERR=1
exec 9>"$folder/.lock"
flock 9
if [ ! -e "$folder/build.ninja" ]; then
  say "configuring $preset"
  (cd "$root" && cmake --preset "$preset" >"$log" 2>&1) || { tail -n 20 "$log" >&2; say "cmake failed; log: $log"; rm -f "$folder/build.ninja"; exit 1; }
fi
ninja -C "$folder" "$@" >"$log" 2>&1 &
ninja=$!
trap 'kill $ninja 2>/dev/null; exit 130' INT TERM
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 $ninja 2>/dev/null && sleep 0.1; done
kill -0 $ninja 2>/dev/null && say "compiling $preset (once; minutes on 2 cores the first time)"
wait $ninja || { grep -m 5 -A 8 'error' "$log" >&2 || tail -n 20 "$log" >&2; say "the build failed; log: $log"; exit 1; }
printf '%s\n' "$folder"
