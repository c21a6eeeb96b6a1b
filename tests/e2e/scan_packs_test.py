"""What `scan` answers of each pack, and where the mitigations would act, on environments that are files alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from answers import PROGRAM

DATA = Path(__file__).parents[2] / "mitigations/patchbench_mitigations/data"
UPSTREAMS_OF = {
    path.parent.name: {use["name"] for use in json.loads(path.read_text())["upstreams"]}
    for path in DATA.parents[2].glob("packs/*/manifest.json")
}
LOCKS = {
    "uv.lock": '[[package]]\nname = "liger-kernel"\nversion = "0.8.0"\nsource = { registry = "x" }\n\n'
    '[[package]]\nname = "torch"\nversion = "2.11.0"\n',
    "pylock.toml": 'lock-version = "1.0"\n[[packages]]\nname = "Liger_Kernel"\nversion = "0.8.0"\n[packages.sdist]\nname = "x"\n',
    "Pipfile.lock": '{"_meta": {}, "default": {"liger-kernel": {"version": "==0.8.0"}}, "develop": {}}',
    "requirements.lock": "# made by a tool\nliger.kernel==0.8.0 \\\n    --hash=sha256:00\n",
}


def asked(*words: Any, **env: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The run, and its document; with a ledger that is not there."""
    found = subprocess.run([PROGRAM, "--json", "scan", *map(str, words)], capture_output=True, text=True,
                           env={**os.environ, "VIRTUAL_ENV": "", "PATCHBENCH_LEDGER": "/nowhere/ledger.db", **env},
                           check=False)  # fmt: skip
    return found, json.loads(found.stdout) if found.stdout else {"answers": []}


def packs_of(*words: Any, **env: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The run, and its packs by slug; the last answer of a pack that has several."""
    found, document = asked(*words, **env)
    return found, {one["slug"]: one | {"input": ""} for one in document["answers"]} | {"command": document.get("command")}


def answers(*words: Any) -> tuple[int, set[tuple[str, str, str, str]]]:
    """Exit status and (slug, package, version, state) of each answer about what is installed."""
    found, document = asked(*words)
    assert found.stdout, found.stderr
    rows = {(one["slug"], one["package"], one["version"], one["state"]) for one in document["answers"]}
    return found.returncode, {row for row in rows if row[3] != "not_installed"}


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
    found, packs = packs_of(tmp_path / name)
    assert found.returncode == 1, found.stderr
    assert packs["liger_flce_none_bwd"] | {"state": "hit", "why": "wrong_gradients", "acts": True} == packs["liger_flce_none_bwd"]
    assert packs["command"] == "PATCHBENCH_MITIGATE=liger_flce_none_bwd python -m patchbench_mitigations train.py"
    assert packs["mamba3_mimo_gqa_bwd"]["state"] == "not_installed"


def test_a_venv_is_read_without_being_run(tmp_path: Path) -> None:
    packages = {"megatron_core": "0.19.2", "mamba_ssm": "2.3.2.post1", "liger_kernel": "0.8.5", "transformer_engine": "2.20.2"}
    packages |= {"tilelang": "0.1.15"}
    found, packs = packs_of(venv(tmp_path, **packages))
    assert packs["fp8_storage_dispatch"]["acts"] and packs["dsa_graph_capture"]["acts"] and packs["mamba3_mimo_gqa_bwd"]["acts"]
    assert packs["liger_flce_none_bwd"]["state"] == "not_hit"
    assert packs["mamba3_siso_bwd_cse"] | {"state": "hit", "is_harmless": False, "acts": True} == packs["mamba3_siso_bwd_cse"]
    switched_on = packs["command"].partition("PATCHBENCH_MITIGATE=")[2].split()[0].split(",")
    acting = {"dsa_graph_capture", "sparse_mla_dims", "fp8_storage_dispatch", "mamba3_mimo_gqa_bwd", "mamba3_siso_bwd_cse"}
    assert found.returncode == 1 and acting <= set(switched_on)
    rows = asked(tmp_path)[1]["answers"]
    assert set(switched_on) == {row["slug"] for row in rows if row["acts"]}
    assert packs_of(VIRTUAL_ENV=str(tmp_path))[1] == packs
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text("exit 1")
    assert packs_of(tmp_path / "bin/python")[1] == packs


@pytest.mark.parametrize("data", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_what_would_act_is_what_the_package_lets_act(tmp_path: Path, data: Path) -> None:
    """Of each release; the package alone looks at the functions, too."""
    sys.path.insert(0, str(DATA.parents[1]))
    from patchbench_mitigations import fingerprint

    told = json.loads(data.read_text())
    if "not_needed" in told:
        return
    seen = {version: one.get("seen", "") for version, one in told["releases"].items()}
    for version in [*seen, "99.0", *(f"{version}+local" for version in list(seen)[-1:])]:
        (tmp_path / "requirements.txt").write_text(f"{told['package']}=={version}")
        rows = asked(tmp_path / "requirements.txt")[1]["answers"]
        (one,) = [row for row in rows if row["slug"] == data.stem and row["version"] == version]
        says = seen.get(version, "unresolved")
        state = {"absent": "not_hit", "unsupported": "not_hit", "unresolved": "unknown"}.get(says, "hit")
        if one["state"] == "hit":
            assert one["acts"] == (fingerprint.measured_as(data.stem, version, []) == (version, "")), version
        if one["state"] == "unknown" and one["classes"]:
            assert state == "hit" and all(row["open"] for row in one["classes"]), version
            continue  # the second package of the condition is not listed
        assert one["state"] == state, version


@pytest.mark.parametrize(
    ("package", "version", "slug"),
    [
        ("transformer-engine", "2.20.2", "fp8_storage_dispatch"),
        ("tilelang", "0.1.9", "sparse_mla_dims"),
        ("tilelang", "0.1.9", "sparse_mla_pdp_precision"),
        ("nemo-automodel", "0.7.0", "sparse_mla_dims"),
    ],
)
def test_each_upstream_of_a_pack_is_looked_at_alone(tmp_path: Path, package: str, version: str, slug: str) -> None:
    """With the package whose kernels TileLang builds, where the hit is TileLang's."""
    kernels = "megatron-core==0.19.2\n" if package == "tilelang" else ""
    (tmp_path / "requirements.txt").write_text(f"{package}=={version}\n{kernels}")
    status, found = answers(tmp_path / "requirements.txt")
    assert status == 1 and (slug, package, version, "hit") in found, found
    found = {row for row in found if row[1] == package}
    assert {(row[1], row[2]) for row in found} == {(package, version)}
    assert {row[0] for row in found} <= {name for name, upstreams in UPSTREAMS_OF.items() if package in upstreams}


def test_a_pack_answers_for_each_of_its_upstreams(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("megatron-core==0.16.1\ntilelang==0.1.15\nnemo-automodel==0.7.0\n")
    status, found = answers(tmp_path / "requirements.txt")
    mine = {row[1:] for row in found if row[0] == "sparse_mla_pdp_precision"}
    assert status == 1
    assert mine == {("megatron-core", "0.16.1", "not_hit"), ("tilelang", "0.1.15", "not_hit"), ("nemo-automodel", "0.7.0", "hit")}


def test_two_versions_of_one_package_are_two_answers(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("liger-kernel==0.8.0 ; python_version < '3.12'\nliger-kernel==0.8.5\nliger_kernel\n")
    (tmp_path / "uv.lock").write_text("".join(f'[[package]]\nname = "liger-kernel"\nversion = "{v}"\n' for v in ("0.8.0", "0.8.5")))
    both = {("liger_flce_none_bwd", "liger-kernel", "0.8.0", "hit"), ("liger_flce_none_bwd", "liger-kernel", "0.8.5", "not_hit")}
    for name in ("requirements.txt", "uv.lock"):
        status, found = answers(tmp_path / name)
        assert status == 1 and {row for row in found if row[0] == "liger_flce_none_bwd"} == both


BUILDS = {
    "local.txt": "liger-kernel==0.8.5+abc\n",
    "git.txt": "liger-kernel @ git+https://github.com/linkedin/Liger-Kernel@abc\n",
    "egg.txt": "-e git+https://github.com/linkedin/Liger-Kernel#egg=liger-kernel\n",
    "uv.lock": '[[package]]\nname = "liger-kernel"\nversion = "0.8.5"\nsource = { git = "https://github.com/linkedin/Liger-Kernel#abc" }\n',
    "poetry.lock": '[[package]]\nname = "liger-kernel"\nversion = "0.8.5"\n\n[package.source]\ntype = "git"\nurl = "x"\n',
    "pdm.lock": '[[package]]\nname = "liger-kernel"\nversion = "0.8.5"\ngit = "https://github.com/linkedin/Liger-Kernel"\n',
    "pylock.toml": '[[packages]]\nname = "liger-kernel"\nversion = "0.8.5"\nvcs = { type = "git", url = "x" }\n',
    "Pipfile.lock": '{"default": {"liger-kernel": {"git": "https://github.com/linkedin/Liger-Kernel"}}}',
}


@pytest.mark.parametrize("name", BUILDS)
def test_a_build_of_its_own_is_not_taken_for_the_release(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(BUILDS[name])
    status, found = answers(tmp_path / name)
    assert status == 3 and {row[3] for row in found} == {"unknown"}, found


def test_a_url_whose_package_is_not_named_leaves_the_answer_open(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy==2.3.5\nhttps://example.org/megatron.tar.gz\n-e ./vendored\n")
    found, document = asked(tmp_path / "requirements.txt")
    assert found.returncode == 3 and document["unread"] == ["https://example.org/megatron.tar.gz", "./vendored"]


def test_installed_files_decide_where_they_are_recorded(tmp_path: Path) -> None:
    """A local version with the release's own files is that release; the release's version with other files is not."""
    root = DATA.parents[2]
    pin = next(
        r for r in json.loads((root / "env/pins.json").read_text())["upstreams"]["liger-kernel"]["releases"] if r["version"] == "0.8.0"
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "patchbench/files"
    (upstream,) = json.loads((root / "packs/liger_flce_none_bwd/manifest.json").read_text())["upstreams"]
    with zipfile.ZipFile(cache / pin["sha256"] / pin["file"]) as wheel:
        released = {file: wheel.read(file) for file in upstream["files"]}

    def answer(version: str, files: dict[str, bytes]) -> tuple[str, str, bool]:
        folder = venv(tmp_path / f"{version}-{len(files)}-{hash(str(files))}", liger_kernel=version)
        for file, content in files.items():
            path = folder / "lib/python3.12/site-packages" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        one = packs_of(folder)[1]["liger_flce_none_bwd"]
        return one["state"], one["why"], one["acts"]

    changed = {file: content.replace(b"grad_output", b"grad_out") + b"\nx = 1\n" for file, content in released.items()}
    assert answer("0.8.0", released) == answer("0.8.0", {}) == ("hit", "wrong_gradients", True)
    assert answer("0.8.0+abc", released) == answer("99.0", released) == ("hit", "wrong_gradients", False)
    differs = "3 of its functions are those of 0.8.0; these differ: LigerFusedLinearCrossEntropyFunction.backward, "
    assert answer("0.8.0", changed) == (
        "unknown",
        f"its files are not those of the release 0.8.0; {differs}fused_linear_cross_entropy_backward",
        False,
    )
    assert answer("0.8.5+abc", {}) == ("unknown", "a local version is a build of its own", False)
    assert answer("0.8.5+abc", changed) == (
        "unknown",
        f"its files are those of no version that was measured; {differs}fused_linear_cross_entropy_backward",
        False,
    )


def test_what_was_not_measured_or_not_pinned_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("mamba-ssm==2.2.*\ntilelang[dev]==0.1.15; python_version > '3'\n")
    (tmp_path / "requirements.txt").write_text("-r more.txt\nliger-kernel==99.0\n# mamba-ssm==2.3.2.post1\n--no-binary :all:\n")
    found, packs = packs_of(tmp_path / "requirements.txt")
    assert found.returncode == 3 and packs["command"] == ""
    assert packs["liger_flce_none_bwd"]["next"] == "", "reproduce takes a release that is locked"
    states = {slug: packs[slug]["state"] for slug in ("liger_flce_none_bwd", "mamba3_mimo_gqa_bwd", "sparse_mla_pdp_precision")}
    assert list(states.values()) == ["unknown", "not_hit", "not_hit"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("nowhere", "nowhere: is not there; name a venv"),
        ("nowhere.lock", "nowhere.lock: is not there"),
        ("{empty}", "names no package; want requirements"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, word: str, said: str) -> None:
    (tmp_path / "empty").write_text("# nothing\n")
    found, _ = packs_of(word.format(empty=tmp_path / "empty"))
    assert found.returncode == 2 and found.stderr.count("\n") == 1 and said in found.stderr, found.stderr


def test_the_table_is_one_row_a_line(tmp_path: Path) -> None:
    packages = {"liger_kernel": "0.8.0", "megatron_core": "99.0"}
    words = [PROGRAM, "scan", venv(tmp_path, **packages)]
    shown = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    listed = [row.split()[0] for row in shown.split("\n\n")[0].splitlines()[1:]]
    found = json.loads(subprocess.run([*words, "--json"], capture_output=True, text=True, check=False).stdout)
    asked = [one["slug"] for one in found["answers"] if one["state"] != "not_installed"]
    assert "patchbench-mitigations is not among these packages" in shown and listed == asked
    (unlisted,) = (line for line in shown.splitlines() if line.startswith("not listed: "))
    assert "mamba-ssm" in unlisted and "transformers" in unlisted and "liger" not in unlisted
    said = "no record: newer than 0.19.2, the newest that was measured"
    assert (
        f"unknown: dsa_graph_capture, megatron-core 99.0: {said}\n  patchbench reproduce dsa_graph_capture --python {tmp_path}\n" in shown
    )
    assert "hit: wrong_gradients" in shown
