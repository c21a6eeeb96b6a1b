"""`patchbench mitigations doctor` on environments that are files alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from answers import PROGRAM

DATA = Path(__file__).parents[2] / "mitigations/patchbench_mitigations/data"
LOCKS = {
    "uv.lock": '[[package]]\nname = "liger-kernel"\nversion = "0.8.0"\nsource = { registry = "x" }\n\n[[package]]\nname = "torch"\nversion = "2.11.0"\n',
    "pylock.toml": 'lock-version = "1.0"\n[[packages]]\nname = "Liger_Kernel"\nversion = "0.8.0"\n[packages.sdist]\nname = "x"\n',
    "Pipfile.lock": '{"_meta": {}, "default": {"liger-kernel": {"version": "==0.8.0"}}, "develop": {}}',
    "requirements.lock": "# made by a tool\nliger.kernel==0.8.0 \\\n    --hash=sha256:00\n",
}


def doctor(*words: Any, **env: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The run, and its packs by slug."""
    found = subprocess.run([PROGRAM, "--json", "mitigations", "doctor", *map(str, words)], capture_output=True, text=True,
                           env={**os.environ, "VIRTUAL_ENV": "", **env}, check=False)  # fmt: skip
    document = json.loads(found.stdout) if found.stdout else {"packs": []}
    return found, {one["slug"]: one for one in document["packs"]} | {"command": document.get("command")}


def venv(folder: Path, **packages: str) -> Path:
    """A folder laid out as a venv, with the METADATA of each package and nothing else."""
    for name, version in packages.items():
        info = folder / "lib/python3.12/site-packages" / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: other\n")
    return folder


@pytest.mark.parametrize("name", LOCKS)
def test_every_kind_of_lock_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(LOCKS[name])
    found, packs = doctor("--lock", tmp_path / name, "--exit-code")
    assert found.returncode == 1, found.stderr
    assert packs["liger_flce_none_bwd"] | {"state": "hit", "why": "wrong_gradients", "acts": True} == packs["liger_flce_none_bwd"]
    assert packs["command"] == "PATCHBENCH_MITIGATE=liger_flce_none_bwd python -m patchbench_mitigations train.py"
    assert packs["mamba3_mimo_gqa_bwd"]["state"] == "not_installed"


def test_a_venv_is_read_without_being_run(tmp_path: Path) -> None:
    packages = {"megatron_core": "0.19.2+1a2b3c", "mamba_ssm": "2.3.2.post1", "liger_kernel": "0.8.5"}
    found, packs = doctor("--python", venv(tmp_path, **packages))
    assert packs["fp8_storage_dispatch"]["acts"] and packs["dsa_graph_capture"]["acts"] and packs["mamba3_mimo_gqa_bwd"]["acts"]
    assert packs["liger_flce_none_bwd"]["state"] == "not_hit"
    assert packs["mamba3_siso_bwd_cse"] | {"state": "not_hit", "why": "no mitigation is needed"} == packs["mamba3_siso_bwd_cse"]
    assert found.returncode == 0 and "dsa_graph_capture,sparse_mla_dims,fp8_storage_dispatch,mamba3_mimo_gqa_bwd" in packs["command"]
    assert doctor(VIRTUAL_ENV=str(tmp_path))[1] == packs
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text("exit 1")
    assert doctor("--python", tmp_path / "bin/python")[1] == packs


@pytest.mark.parametrize("data", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_what_would_act_is_what_the_package_lets_act(tmp_path: Path, data: Path) -> None:
    """Of each release; the package alone looks at the functions, too."""
    sys.path.insert(0, str(DATA.parents[1]))
    from patchbench_mitigations import fingerprint

    told = json.loads(data.read_text())
    if "not_needed" in told:
        return
    for version in [*told["releases"], "99.0"]:
        (tmp_path / "requirements.txt").write_text(f"{told['package']}=={version}")
        acts = doctor("--requirements", tmp_path / "requirements.txt")[1][data.stem]["acts"]
        assert acts == (not fingerprint.why_unmeasured(data.stem, version, [])), version


def test_what_was_not_measured_or_not_pinned_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("mamba-ssm==2.3.*\nmegatron-core[dev]==0.15.3; python_version > '3'\n")
    (tmp_path / "requirements.txt").write_text("-r more.txt\nliger-kernel==99.0\n# mamba-ssm==2.3.2.post1\n--no-binary :all:\n")
    found, packs = doctor("--requirements", tmp_path / "requirements.txt", "--exit-code")
    assert found.returncode == 125 and packs["command"] == ""
    assert packs["liger_flce_none_bwd"]["why"] == "patchbench reproduce liger_flce_none_bwd --upstream 99.0"
    states = {slug: packs[slug]["state"] for slug in ("liger_flce_none_bwd", "mamba3_mimo_gqa_bwd", "fp8_storage_dispatch")}
    assert list(states.values()) == ["not_measured", "version_unknown", "not_hit"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no venv is active; name one: --python VENV, --lock FILE or --requirements FILE"),
        (("--python", "nowhere"), "--python nowhere: no lib/python3*/site-packages belongs to it"),
        (("--lock", "nowhere.lock"), "nowhere.lock: cannot be read"),
        (("--lock", "{empty}"), "names no package; want requirements"),
        (("--lock", "a", "--python", "b"), "excludes"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "empty").write_text("# nothing\n")
    found, _ = doctor(*(word.format(empty=tmp_path / "empty") for word in words))
    assert found.returncode == 2 and found.stderr.count("\n") == 1 and said in found.stderr, found.stderr


def test_the_table_fits_80_columns(tmp_path: Path) -> None:
    packages = {"liger_kernel": "0.8.0", "megatron_core": "99.0"}
    words = [PROGRAM, "mitigations", "doctor", "--python", venv(tmp_path, **packages)]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "pip install ./mitigations" in shown and max(map(len, shown.split("\n\n")[0].splitlines())) <= 80
    assert "not measured: patchbench reproduce dsa_graph_capture --upstream 99.0\n" in shown
    assert "hit: wrong_gradients" in shown
