#!/usr/bin/env bash
# Installs the wheel patchbench-ops into a fresh virtual environment for each locked torch, 2.11 and 2.15, and runs the ops' tests on it.
# Usage: env/try_ops.sh [WHEEL]    default: the newest dist/patchbench_ops-*.whl, which env/wheels.sh patchbench-ops builds
# No GPU is needed; where one is, the tests use it. An environment takes 2.8 GiB to fetch, once.
# Exit: 0 all green, 1 something is not.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
say() { printf 'try_ops: %s\n' "$*" >&2; }
wheel=${1:-$(ls -t "$root"/dist/patchbench_ops-*.whl 2>/dev/null | head -n 1)}
[ -f "$wheel" ] || { say "no wheel; run env/wheels.sh patchbench-ops"; exit 1; }
tools=$(python3 "$root/env/fetch.py" env "$root/env/locks/tools.txt") || exit 1
mapfile -t tests < <(grep -l '^from ops_package import' "$root"/tests/python/*_test.py)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
for lock in torch-2.11 torch-2.15; do
  site=$(python3 "$root/env/fetch.py" env "$root/env/locks/$lock.txt") && python3 -m venv "$scratch/$lock" || exit 1
  python=$scratch/$lock/bin/python
  echo "$site" >"$(echo "$scratch/$lock"/lib/python3*/site-packages)/torch.pth"
  # With its dependencies: pip must find them in the environment, where venv's own setuptools would hide the locked one.
  "$python" -m pip uninstall -qy setuptools
  "$python" -m pip install -q --disable-pip-version-check --no-index "$wheel" || { say "$lock: pip does not take the wheel"; failed=1; continue; }
  (cd "$scratch" && env -u PATCHBENCH_OPS_LIB PYTHONPATH="$tools" "$python" -m pytest -q -p no:cacheprovider "${tests[@]}") || failed=1
  (cd "$scratch" && "$python" -c 'import patchbench_ops, torch; print(f"torch {torch.__version__}: {patchbench_ops.library.path()}")') || failed=1
done
exit $failed
