#!/usr/bin/env bash
# Installs the wheels of dist/ into bare Debian roots without a compiler and without a network, and runs what they promise.
# Usage: env/try_wheels.sh [--out FILE.json] [SUITE...]    default: bullseye bookworm trixie (glibc 2.31, 2.36, 2.41)
# --out writes what was checked and measured, a row a suite.
# The pages of docs/ are followed as far as the wheels serve them (tests/python/pages_check.py).
# env/wheels.sh builds the wheels; of patchbench-py, patchbench-judge and env/release.sh's archive what is in dist/ is tried. The roots (debootstrap) and the
# libtorch of the judge (env/locks/judge.txt, 518 MiB) lie in the cache. Only their making has a network. The judge and the page about mitigations run in the suites
# for whose interpreter the environment torch-2.11 is in the cache: env/bootstrap.sh brings that of Python 3.11, which is bookworm's;
# python3 env/fetch.py env env/locks/torch-2.11.txt --tag cp313 brings trixie's. torch has no wheel for bullseye's Python 3.9.
# Exit: 0 all green, 1 something is not, 4 not possible here (needs root, debootstrap and bwrap).
set -u
umask 022
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/patchbench
say() { printf 'try_wheels: %s\n' "$*" >&2; }
out=
[ "${1:-}" = --out ] && { out=${2:?}; shift 2; }
. "$root/env/debian_root.sh"
can_make_roots || exit 4
compgen -G "$root/dist/patchbench-[0-9]*.whl" >/dev/null || { say "no wheel in dist/; run env/wheels.sh"; exit 1; }

# libtorch for a judge that brings none; its libraries know no Python, so that one interpreter's serve all.
if compgen -G "$root/dist/patchbench_judge-*.whl" >/dev/null; then
  python3 "$root/env/fetch.py" env "$root/env/locks/judge.txt" --tag cp311 >/dev/null || say "the libtorch of the judge could not be fetched"
fi

# What runs inside: each command must end with 0. A failure prints what the command said.
inside() {
  failed=0
  try() { # WORDS: WHAT COMMAND...
    local what=$1 said
    shift
    if said=$("$@" 2>&1); then echo "ok: $what"; else echo "FAILED: $what: $said" | tail -n 15; failed=1; fi
  }
  # Processor time of this shell's commands, in ms.
  milliseconds() { awk '{print ($16 + $17) * 10}' "/proc/$$/stat"; }
  # Starts the clock that `within` reads.
  start_clock() { start_us=${EPOCHREALTIME/./} start_cpu=$(milliseconds); }
  # within NAME SECONDS: the time since start_clock. The lesser of wall and processor time counts, for other work on the machine is not ours.
  within() {
    local wall=$(((${EPOCHREALTIME/./} - start_us) / 1000)) cpu=$(($(milliseconds) - start_cpu))
    echo "measured: $1_wall_ms $wall"
    echo "measured: $1_cpu_ms $cpu"
    try "$1: the lesser of wall and processor time is at most $2 s" test $((wall < cpu ? wall : cpu)) -le $(($2 * 1000))
  }
  echo "about: glibc $(ldd --version | sed -n '1s/.* //p')"
  echo "about: python $(python3 -c 'import platform; print(platform.python_version())')"
  ! command -v gcc cc c++ >/dev/null || { echo "FAILED: this root has a compiler"; exit 1; }
  if ls /mnt/patchbench-*.tar.gz >/dev/null 2>&1; then archive; else echo "about: archive not tried"; fi
  python3 -m venv /tmp/venv || exit 1
  export PATH=/tmp/venv/bin:$PATH VIRTUAL_ENV=/tmp/venv
  start_clock
  try "pip install patchbench" pip install -q --no-index --find-links /mnt patchbench
  try "first scan: nothing that a pack asks about" sh -c 'patchbench scan; test $? = 3'
  within pip_to_first_answer 10
  try "the program needs no shared library" sh -c '! ldd /tmp/venv/bin/patchbench'
  try list patchbench list
  try show patchbench show liger_flce_none_bwd
  try status patchbench status liger_flce_none_bwd
  try "status windows" patchbench status windows liger_flce_none_bwd
  try claims patchbench status claims
  for format in osv openvex junit csv json; do try "export $format" patchbench export --format $format -o "/tmp/out-$format"; done
  try "export intoto" sh -c 'patchbench ledger keygen /tmp/key && patchbench export --format intoto --key /tmp/key -o /tmp/out-intoto'
  try "ledger lint" sh -c 'echo "no number here" >/tmp/a.md; patchbench ledger lint /tmp/a.md'
  try "patch read" sh -c 'patchbench patch read /tmp/venv/share/patchbench/patches/liger_flce_none_bwd/0001-*.edit'
  try "third-party notices" sh -c 'test -s /tmp/venv/lib/python3*/site-packages/patchbench-*.dist-info/licenses/third-party/libgit2'
  # The packs that the wheel carries; every part must know these and no others.
  PACKS=$(cd /tmp/venv/share/patchbench/packs && printf '%s ' */manifest.json)
  export PACKS
  try "import patchbench" python -c 'import os, patchbench as p, sys
packs = sorted(name.split("/")[0] for name in os.environ["PACKS"].split())
assert packs and packs == sorted(one.slug for one in p.packs()) == sorted({one.slug for one in p.scan().answers})
assert p.windows() and p.verdicts() and "torch" not in sys.modules'
  try "a scan of 300 packages: the lesser of wall and processor time is below 0.3 s" sh -c 'python /opt/installed_check.py speed >/tmp/speed'
  sed 's/^/measured: /' /tmp/speed
  try "the same hits as text, SARIF, VEX and the other formats, with their advice" python /opt/installed_check.py formats
  # The root's own pytest: 6.0 in bullseye, 7.2 in bookworm, 8.3 in trixie.
  try "the pytest plugin" env PYTHONPATH=/usr/lib/python3/dist-packages python /opt/installed_check.py plugin
  try "a hit in a requirements file" python -c 'import patchbench as p
open("/tmp/r.txt", "w").write("liger-kernel==0.8.0\n")
assert "liger_flce_none_bwd" in {a.slug for a in p.scan("/tmp/r.txt").hits}'
  if python -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    try "pip install patchbench-mitigations" pip install -q --no-index --find-links /mnt patchbench-mitigations
    try "its registry" python -c 'from patchbench_mitigations import registry
import os; assert registry.known() == sorted(name.split("/")[0] for name in os.environ["PACKS"].split())'
  fi
  if ls /mnt/patchbench_py-*-"$(python -c 'import sys; print("cp%d%d" % sys.version_info[:2])')"-*.whl >/dev/null 2>&1; then
    try "pip install patchbench-py" pip install -q --no-index --find-links /mnt patchbench-py
    try "_patchbench answers as the program does" python /opt/native_check.py
  fi
  [ ! -d /media/torch ] || stacks
  try "the pages of docs/" sh -c 'python /opt/pages_check.py /srv /tmp/stacks >/tmp/followed 2>&1 || { cat /tmp/followed; exit 1; }'
  tail -n 1 /tmp/followed
  if [ -d /media/torch ] && ls /mnt/patchbench_judge-*.whl >/dev/null 2>&1; then judge; else echo "about: judge not tried"; fi
  return $failed
}

# The archive: unpacked, and asked without an environment. A hit ends with 1.
archive() {
  echo "about: archive tried"
  try "the archive is unpacked" tar -xzf /mnt/patchbench-*.tar.gz -C /tmp
  echo "liger-kernel==0.8.0" >/tmp/hit.txt
  echo "deepspeed==0.18.3" >/tmp/right.txt
  start_clock
  try "the archive's program finds a hit" sh -c 'env -i /tmp/patchbench-*/bin/patchbench scan /tmp/hit.txt >/tmp/said; test $? = 1 || { cat /tmp/said; exit 1; }'
  try "and names it" grep -q '^hit: liger_flce_none_bwd, liger-kernel 0.8.0' /tmp/said
  try "the archive's program finds no hit in a right release" sh -c 'env -i /tmp/patchbench-*/bin/patchbench scan /tmp/right.txt >/tmp/said'
  within archive_scans 10
  try "and says so" grep -q '^zero2_grad_accumulation *deepspeed 0.18.3 *not_hit' /tmp/said
}

# A user's stacks: torch of the cache, a release of Liger-Kernel, the mitigations.
stacks() {
  local release stack
  for release in 0.8.0 0.8.5; do
    stack=/tmp/stacks/liger-kernel==$release
    python3 -m venv "$stack" && echo /media >"$(echo "$stack"/lib/python3*/site-packages)/torch.pth"
    try "a stack with Liger-Kernel $release" "$stack/bin/pip" install -q --no-index --no-deps "/tmp/liger_kernel-$release-py3-none-any.whl"
    try "the mitigations there" "$stack/bin/pip" install -q --no-index --find-links /mnt patchbench-mitigations
  done
}

# The first of them is judged without a compiler and, in this root, without bubblewrap.
judge() {
  echo "about: judge tried"
  start_clock
  try "pip install patchbench-judge" pip install -q --no-index --find-links /mnt patchbench-judge
  try "reproduce --python" sh -c 'patchbench reproduce liger_flce_none_bwd --python /tmp/stacks/liger-kernel==0.8.0 --device cpu >/tmp/judged 2>&1 || { cat /tmp/judged; exit 1; }'
  within pip_to_first_verdict 120
  try "its verdict" grep -q 'BUG_REPRODUCED(wrong_gradients)' /tmp/judged
  try "marked unisolated" grep -q unisolated /tmp/judged
  cat >/tmp/mine.py <<'END'
def double(x):
    y = x * 2
    return y if x.shape[0] <= 20 else y * 1.01


def right(x):
    return x * 2
END
  echo '{"axes": {"rows": {"from": 1, "to": 40}}, "tensors": {"x": {"shape": ["rows", 8]}}}' >/tmp/axes.json
  try "explore finds a planted fault" sh -c 'patchbench explore mine:double --against mine:right --axes /tmp/axes.json \
    --python /tmp/stacks/liger-kernel==0.8.0 --device cpu >/tmp/explored 2>&1; test $? = 1 || { cat /tmp/explored; exit 1; }'
  try "and says where it is" grep -q 'rows > 20' /tmp/explored
}

# What of the cache stacks and judge need, as mounts: the torch of the interpreter, the lock of libtorch, the releases.
cache_mounts() { # TAG
  local torch libtorch old new
  torch=$(compgen -G "$cache/env/torch-2.11-$1-*/patchbench-env.json") && old=$(compgen -G "$cache/files/*/liger_kernel-0.8.0-py3-none-any.whl") &&
    new=$(compgen -G "$cache/files/*/liger_kernel-0.8.5-py3-none-any.whl") || return 0
  printf '%s\n' --ro-bind "${torch%/*}" /media --ro-bind "$old" "/tmp/${old##*/}" --ro-bind "$new" "/tmp/${new##*/}"
  libtorch=$(compgen -G "$cache/env/judge-cp311-*/patchbench-env.json") || return 0
  libtorch=${libtorch%/*}
  printf '%s\n' --ro-bind "$libtorch" "/tmp/home/.cache/patchbench/env/${libtorch##*/}"
}

# Writes the record: the wheels, and what each suite's log says. The digests name the wheels, since nobody publishes them.
record() { # FILE SUITE...
  python3 - "$root" "$@" <<'END' && python3 "$root/env/json_rows.py" "$1"
import datetime
import hashlib
import json
import os
import re
import sys
from pathlib import Path

root, out, *suites = sys.argv[1:]
rows = []
for suite in suites:
    log = Path(root, f"build/wheels/try-{suite}.log").read_text()
    about = dict(re.findall(r"^about: (\S+) (.*)$", log, re.M))
    failed, measured = re.findall(r"^FAILED: ([^:\n]*)", log, re.M), re.findall(r"^measured: (\S+) (\d+)$", log, re.M)
    counts = {"ok": len(re.findall("^ok: ", log, re.M)), "failed": failed}
    rows.append({"suite": suite} | about | counts | {name: int(value) for name, value in measured})
wheels = [(file.name, file.read_bytes()) for file in sorted(Path(root, "dist").glob("*.whl"))]
document = {
    "what": "env/try_wheels.sh: wheels installed with pip into bare roots without a compiler and without a network",
    "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    "machine": f"{os.cpu_count()} cores; load {os.getloadavg()[1]:.1f} over the last 5 minutes",
    "wheels": [{"file": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in wheels],
    "rows": rows,
}
Path(out).write_text(json.dumps(document))
END
}

# Programs and libraries of the wheels that hold a path of the machine that built them, as messages with __FILE__ do.
paths_in_wheels() {
  python3 - "$root/" "$HOME/" "$root"/dist/*.whl <<'END'
import sys
import zipfile

folders, wheels = sys.argv[1:3], sys.argv[3:]
for name in wheels:
    with zipfile.ZipFile(name) as wheel:
        for member in wheel.namelist():
            data = wheel.read(member)
            found = [folder for folder in folders if data.startswith(b"\x7fELF") and folder.encode() in data]
            if found:
                print(f"{name}: {member} holds {found[0]}")
END
}

failed=0
mkdir -p "$root/build/wheels"
if found=$(paths_in_wheels) && [ -z "$found" ]; then echo "ok: no binary holds a path of this machine"; else echo "FAILED: $found"; failed=1; fi
[ $# = 0 ] && set -- bullseye bookworm trixie
for suite; do
  log=$root/build/wheels/try-$suite.log
  tree=$(debian_root wheels "$suite" python3,python3-venv,python3-pytest) || { echo "FAILED: the root was not made" >"$log"; failed=1; continue; }
  tag=$(bwrap --ro-bind "$tree" / python3 -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  mapfile -t mounts < <(cache_mounts "$tag")
  [ ${#mounts[@]} = 0 ] && say "$suite: mitigations and judge are not tried: the environment torch-2.11 of $tag or a release is not in the cache"
  say "$suite"
  bwrap --die-with-parent --unshare-all --clearenv --ro-bind "$tree" / --dev /dev --proc /proc --perms 1777 --tmpfs /tmp \
    --ro-bind "$root/dist" /mnt --ro-bind "$root/tests/python" /opt --ro-bind "$root/docs" /srv --dir /tmp/home "${mounts[@]}" --chdir /tmp --setenv HOME /tmp/home \
    --setenv LC_ALL C.UTF-8 --setenv PATH /usr/sbin:/usr/bin:/sbin:/bin -- bash -c "$(declare -f inside archive stacks judge); inside" |
    tee "$log"
  [ "${PIPESTATUS[0]}" = 0 ] || failed=1
done
[ -z "$out" ] || record "$out" "$@" || failed=1
exit $failed
