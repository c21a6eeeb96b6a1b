"""`patchbench scan` on environments, locks, SBOMs and images that are files alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from answers import PROGRAM, ROOT

sys.path.insert(0, str(ROOT / "tests/python"))
import installed_check  # noqa: E402

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "patchbench/files"
LIGER = "liger_flce_none_bwd"
FLCE = "liger_kernel/ops/fused_linear_cross_entropy.py"


def scan(*words: Any, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """One run, with a ledger that is not there."""
    hidden = {"VIRTUAL_ENV": "", "PYTHONPATH": "", "PYENV_VERSION": "", "PATCHBENCH_LEDGER": "/nowhere/ledger.db"}
    return subprocess.run([PROGRAM, "scan", *map(str, words)], capture_output=True, text=True, cwd=cwd or "/",
                          env={**os.environ, **hidden, **env}, check=False)  # fmt: skip


def document(*words: Any, **options: Any) -> tuple[int, dict[str, Any]]:
    found = scan(*words, "--format", "json", **options)
    assert found.stdout, found.stderr
    assert json.loads(found.stdout)["exit"] == found.returncode
    return found.returncode, json.loads(found.stdout)


def states(*words: Any, pack: str = LIGER, **options: Any) -> tuple[int, set[tuple[str, str, str, str]]]:
    """Exit status and (slug, package, version, state) of each installed package, for the packs that are named."""
    status, found = document(*words, "--pack", pack, **options)
    rows = {(one["slug"], one["package"], one["version"], one["state"]) for one in found["answers"]}
    return status, {row for row in rows if row[3] != "not_installed"}


def released(package: str, version: str) -> dict[str, bytes]:
    """Every Python file of a release in the cache."""
    pins = json.loads((ROOT / "env/pins.json").read_text())["upstreams"][package]["releases"]
    pin = next(one for one in pins if one["version"] == version)
    path = CACHE / pin["sha256"] / pin["file"]
    if not path.exists():
        pytest.skip(f"{pin['file']} is not in the cache")
    if path.name.endswith(".tar.gz"):  # a source release: its files are below one folder
        with tarfile.open(path) as source:
            files = {one.name.partition("/")[2]: source.extractfile(one) for one in source if one.name.endswith(".py") and one.isfile()}
            return {name: file.read() for name, file in files.items() if file}
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if name.endswith(".py")}


def site(folder: Path) -> Path:
    return folder / "lib/python3.12/site-packages"


def install(folder: Path, name: str, version: str, files: dict[str, bytes] | None = None, **direct_url: Any) -> Path:
    """A package in a folder laid out as a venv."""
    info = site(folder) / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n")
    if direct_url:
        (info / "direct_url.json").write_text(json.dumps(direct_url))
    write(site(folder), files or {})
    return folder


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def uv_lock(*packages: tuple[str, str]) -> str:
    return "version = 1\n" + "".join(
        f'\n[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {{ registry = "https://index.example/simple" }}\n'
        for name, version in packages
    )


def test_a_hit_says_what_when_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(uv_lock(("liger-kernel", "0.8.0")))
    found = scan("uv.lock", cwd=tmp_path)
    assert found.returncode == 1
    for said in ("hit: liger_flce_none_bwd, liger-kernel 0.8.0 (uv.lock:5): ", 'when: The loss is called with reduction="none"',
                 "right release: 0.8.5 cures liger_flce_none_bwd, keeps liger_flce_frozen_hidden",
                 "PATCHBENCH_MITIGATE=liger_flce_none_bwd python -m patchbench_mitigations train.py",
                 "record: ", "exit 1; verdicts of 20"):  # fmt: skip
        assert said in found.stdout, said


@pytest.mark.parametrize(
    ("version", "status", "state"),
    [("0.8.0", 1, "hit"), ("0.8", 1, "hit"), ("0.8.2", 0, "not_hit"), ("99.0", 3, "unknown"), ("0.0.1", 3, "unknown"),
     ("0.8.5rc1", 3, "unknown"), ("0.8.5+abc", 3, "unknown"), ("1!0.8.5", 3, "unknown"), ("v0.8.5", 0, "not_hit")],
)  # fmt: skip
def test_exit_statuses_are_its_own(tmp_path: Path, version: str, status: int, state: str) -> None:
    (tmp_path / "uv.lock").write_text(uv_lock(("liger-kernel", version)))
    assert states(tmp_path / "uv.lock") == (status, {(LIGER, "liger-kernel", version, state)})
    assert scan(tmp_path / "uv.lock", "--allow-unknown", "--pack", LIGER).returncode == (0 if status == 3 else status)


def test_impacts_choose_what_fails(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(uv_lock(("megatron-core", "0.19.2"), ("tilelang", "0.1.15")))
    rows = {(one["slug"], one["package"]): one for one in document(tmp_path / "uv.lock")[1]["answers"]}
    assert rows["sparse_mla_dims", "megatron-core"]["impact"] == "crash"
    assert {row["impact"] for row in rows["sparse_mla_dims", "megatron-core"]["classes"]} == {"crash", "memory"}
    assert rows["dsa_graph_capture", "megatron-core"]["impact"] == "crash"
    assert scan(tmp_path / "uv.lock", "--fail-on", "memory_corruption,speed").returncode == 0
    assert scan(tmp_path / "uv.lock", "--fail-on", "memory").returncode == 1
    assert scan(tmp_path / "uv.lock", "--fail-on", "sped").returncode == 2


def test_a_bug_that_harms_no_run_is_no_hit_and_says_why(tmp_path: Path) -> None:
    """The page of this pack says BUG_REPRODUCED. Under TileLang 0.1.13 and newer a case without the pack's condition is red, too."""

    def answer(slug: str, package: str, *packages: tuple[str, str]) -> dict[str, Any]:
        (tmp_path / "uv.lock").write_text(uv_lock(("mamba-ssm", "2.3.2.post1"), *packages))
        status, found = document(tmp_path / "uv.lock", "--pack", slug)
        (one,) = [row for row in found["answers"] if row["package"] == package]
        return one | {"status": status}

    for package, packages in (("mamba-ssm", [("tilelang", "0.1.8")]), ("tilelang", [("tilelang", "0.1.12")])):
        one = answer("mamba3_mimo_smem_2d", package, *packages)
        assert (one["status"], one["state"], one["is_harmless"]) == (0, "not_hit", True) and "harms no run" in one["why"], one
        for words in ([], ["--format", "markdown"]):
            assert one["why"].split(":")[0].replace("_", "") in scan(tmp_path / "uv.lock", *words).stdout.replace("\\_", "").replace(
                "_", ""
            )
    one = answer("mamba3_mimo_smem_2d", "tilelang", ("tilelang", "0.1.13"))
    assert (one["status"], one["state"], one["why"], one["impact"]) == (1, "hit", "reduce_lowering_fails", "crash")
    assert not one["is_harmless"] and "with TMA on or off" in one["condition"] and one["record"] and one["mitigation"] == "none"


def test_a_conditional_corruption_is_a_hit_with_its_condition(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(uv_lock(("mamba-ssm", "2.3.2.post1")))
    status, found = document(tmp_path / "uv.lock", "--pack", "mamba3_siso_bwd_cse")
    (one,) = found["answers"]
    assert (status, one["state"], one["why"], one["impact"]) == (1, "hit", "states_overlap", "memory_corruption")
    assert "cu_seqlens" in one["condition"] and "cu_seqlens" in scan(tmp_path / "uv.lock").stdout


# Every class that the records of these releases show, the worst first.
CLASSES = {
    ("transformer-engine", "2.9.0", "te_fused_ce"): {
        "out_of_bounds_read", "storage_order_gradient", "transposed_view"},
    ("transformers", "4.57.1", "trainer_grad_accumulation"): {"first_label_counted"},
    ("liger-kernel", "0.8.0", LIGER): {"wrong_gradients"},
}  # fmt: skip


@pytest.mark.parametrize(("package", "version", "slug"), CLASSES)
def test_every_class_of_a_release_is_answered_in_every_format(tmp_path: Path, package: str, version: str, slug: str) -> None:
    (tmp_path / "uv.lock").write_text(uv_lock((package, version)))
    status, found = document(tmp_path / "uv.lock", "--pack", slug)
    (one,) = found["answers"]
    names = [row["class"] for row in one["classes"]]
    assert status == 1 and set(names) >= CLASSES[package, version, slug] and names[0] == one["why"]
    worst = ["silent_wrong", "memory_corruption", "crash", "memory", "speed", "claim"]
    impacts = [worst.index(row["impact"]) for row in one["classes"]]
    assert impacts == sorted(impacts) and all(row["record"] and row["wrong"] for row in one["classes"])
    for form in ("table", "sarif", "cyclonedx", "openvex", "markdown", "github"):
        said = " ".join(scan(tmp_path / "uv.lock", "--pack", slug, "--format", form).stdout.replace("\\", "").split())
        for row in one["classes"]:
            assert f"{row['class']} ({row['impact']})" in said, (form, row["class"])
            assert row["condition"].split('"')[0] in said, (form, row["class"])


def test_only_what_can_be_fixed_fails(tmp_path: Path) -> None:
    """transformer-engine has no release that is right for FP8, and the mitigation acts on megatron-core."""
    (tmp_path / "uv.lock").write_text(uv_lock(("transformer-engine", "2.20.2")))
    words = (tmp_path / "uv.lock", "--pack", "fp8_storage_dispatch")
    assert scan(*words).returncode == 1
    assert scan(*words, "--only-fixable").returncode == 0
    (tmp_path / "uv.lock").write_text(uv_lock(("liger-kernel", "0.8.1")))
    assert scan(tmp_path / "uv.lock", "--only-fixable").returncode == 1


def test_a_hit_needs_the_packages_of_its_condition(tmp_path: Path) -> None:
    def state(*packages: tuple[str, str]) -> dict[tuple[str, str], str]:
        (tmp_path / "uv.lock").write_text(uv_lock(*packages))
        return {(one["slug"], one["package"]): one["state"] for one in document(tmp_path / "uv.lock")[1]["answers"]}

    alone = state(("megatron-core", "0.19.2"))
    assert alone["sparse_mla_dims", "megatron-core"] == alone["fp8_storage_dispatch", "megatron-core"] == "not_hit"
    both = state(("megatron-core", "0.19.2"), ("transformer-engine", "1.0"))
    assert both["fp8_storage_dispatch", "megatron-core"] == "hit"
    assert state(("transformer-engine", "2.20.2"))["fp8_storage_dispatch", "transformer-engine"] == "hit"
    kernel = ("sparse_mla_pdp_precision", "tilelang")
    assert state(("tilelang", "0.1.9"))[kernel] == state(("tilelang", "0.1.9"), ("megatron-core", "0.18.2"))[kernel] == "not_hit"
    assert state(("tilelang", "0.1.9"), ("megatron-core", "0.19.0"))[kernel] == "hit"
    assert state(("tilelang", "0.1.9"), ("megatron-core", "0.18.2+local"))[kernel] == "unknown"


@pytest.mark.parametrize("text", ["{}\n", "{}\nnumpy==1.26.4\n", "numpy\n{}\n"])
@pytest.mark.parametrize(
    ("pin", "slug"),
    [("megatron-core==0.19.2", "fp8_storage_dispatch"),
     ("tilelang==0.1.9", "sparse_mla_pdp_precision"), ("tilelang==0.1.9", "sparse_mla_dims")],
)  # fmt: skip
def test_what_a_list_that_is_not_whole_leaves_out_is_not_proved_absent(tmp_path: Path, pin: str, slug: str, text: str) -> None:
    (tmp_path / "r.txt").write_text(text.format(pin))
    status, found = document(tmp_path / "r.txt", "--pack", slug)
    package = pin.partition("==")[0]
    (one,) = [row for row in found["answers"] if row["package"] == package]
    assert (status, one["state"]) == (3, "unknown") and "not known here" in one["why"], one
    assert all(row["open"] and row["impact"] for row in one["classes"]) and one["classes"]
    said = scan(tmp_path / "r.txt", "--pack", slug).stdout
    assert "No release with a known bug" not in said and one["classes"][0]["class"] in said


def test_a_class_that_needs_no_other_package_is_a_hit_alone(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("megatron-core==0.15.0\n")
    status, found = document(tmp_path / "r.txt", "--pack", "megatron_float16_cast")
    (one,) = [row for row in found["answers"] if row["package"] == "megatron-core"]
    assert (status, one["state"], one["why"]) == (1, "hit", "fp32_lost") and not one["classes"][0]["open"]


def test_no_hit_for_want_of_a_package_says_so(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(uv_lock(("tilelang", "0.1.9")))
    said = " ".join(scan(tmp_path / "uv.lock", "--pack", "sparse_mla_pdp_precision").stdout.split())
    assert "not hit: sparse_mla_pdp_precision, tilelang 0.1.9: a hit with megatron-core >=0.19.0" in said and "which is not here" in said


def test_files_decide_where_they_are_at_hand(tmp_path: Path) -> None:
    """As installed, editable, in a checkout, on PYTHONPATH, vendored; a changed file is unknown whatever the version says."""
    bad, good = released("liger-kernel", "0.8.0"), released("liger-kernel", "0.8.5")
    changed = bad | {FLCE: bad[FLCE].replace(b"ctx", b"our_ctx")}
    edited = bad | {"liger_kernel/version_note.py": b"# not a file of the pack\n"}

    def one(folder: Path, *words: Any, **options: Any) -> tuple[int, set[tuple[str, str]]]:
        status, rows = states(folder, *words, **options)
        return status, {(row[2], row[3]) for row in rows if row[0] == LIGER}

    assert one(install(tmp_path / "a", "liger-kernel", "0.8.0", bad)) == (1, {("0.8.0", "hit")})
    assert one(install(tmp_path / "b", "liger-kernel", "0.8.5", bad)) == (1, {("0.8.5", "hit")})
    assert one(install(tmp_path / "c", "liger-kernel", "0.8.5", changed)) == (3, {("0.8.5", "unknown")})
    assert one(install(tmp_path / "d", "liger-kernel", "0.8.5+abc", good)) == (0, {("0.8.5+abc", "not_hit")})
    assert one(install(tmp_path / "e", "liger-kernel", "0.8.0", edited)) == (1, {("0.8.0", "hit")})
    git = {"url": "https://example.org/x", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}}
    assert one(install(tmp_path / "f", "liger-kernel", "0.8.5", changed, **git)) == (3, {("0.8.5", "unknown")})
    assert one(install(tmp_path / "g", "liger-kernel", "0.8.5", None, **git)) == (3, {("0.8.5", "unknown")})
    write(tmp_path / "checkout/src", bad)
    editable = {"url": f"file://{tmp_path}/checkout", "dir_info": {"editable": True}}
    assert one(install(tmp_path / "h", "liger-kernel", "0.8.5", None, **editable)) == (1, {("0.8.5", "hit")})
    assert one(tmp_path / "checkout") == (1, {("", "hit")})
    vendored = install(tmp_path / "i", "liger-kernel", "0.8.5", good)
    write(site(vendored) / "other/_vendor", changed)
    assert one(vendored) == (3, {("0.8.5", "not_hit"), ("", "unknown")})
    path = install(tmp_path / "j", "liger-kernel", "0.8.5", good)
    (path / "pyvenv.cfg").write_text("home = /nowhere/bin\n")
    status, rows = states(VIRTUAL_ENV=str(path), PYTHONPATH=str(tmp_path / "checkout/src"))
    assert status == 1 and {(row[2], row[3]) for row in rows} == {("0.8.5", "not_hit"), ("", "hit")}
    linked = install(tmp_path / "k", "liger-kernel", "0.8.5", None)
    (site(linked) / "liger_kernel").symlink_to(tmp_path / "checkout/src/liger_kernel")
    assert one(linked) == (1, {("0.8.5", "hit")})
    shared = install(tmp_path / "shared", "liger-kernel", "0.8.0")
    (site(install(tmp_path / "m", "numpy", "1.0")) / "shared.pth").write_text(f"{site(shared)}\n")
    assert one(tmp_path / "m") == (1, {("0.8.0", "hit")})
    (site(install(tmp_path / "l", "numpy", "1.0")) / "dev.pth").write_text(f"{tmp_path}/checkout/src\n")
    assert one(tmp_path / "l") == (1, {("", "hit")})


def test_a_megatron_from_git_with_one_file_changed_is_unknown_to_the_packs_of_that_file(tmp_path: Path) -> None:
    git = {"url": "https://example.org/Megatron-LM.git", "vcs_info": {"vcs": "git", "commit_id": "1" * 40}}
    released_files = released("megatron-core", "0.19.2")
    dsa = "megatron/core/transformer/experimental_attention_variant/dsa.py"
    for changed, state in (("", "hit"), ("megatron/core/optimizer/__init__.py", "hit"), (dsa, "unknown")):
        files = released_files | ({changed: released_files[changed].replace(b"query", b"our_query")} if changed else {})
        venv = install(tmp_path / (changed or "as_it_is"), "megatron-core", "0.20.0rc0", files, **git)
        install(venv, "tilelang", "0.1.9")
        rows = {one["slug"]: one["state"] for one in document(venv)[1]["answers"] if one["package"] == "megatron-core"}
        assert rows["dsa_graph_capture"] == state, changed
        assert rows["sparse_mla_dims"] == rows["sparse_mla_pdp_precision"] == "hit", changed


def test_our_edit_is_no_hit_and_half_of_it_is_unknown(tmp_path: Path) -> None:
    bad = released("liger-kernel", "0.8.0")
    program = [PROGRAM, "patch", "apply", LIGER, tmp_path / "src"]
    write(tmp_path / "src", bad)
    done = subprocess.run([str(word) for word in program], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(done.stderr)
    edited = {FLCE: (tmp_path / "src" / FLCE).read_bytes()}
    assert edited[FLCE] != bad[FLCE]
    status, found = document(install(tmp_path / "venv", "liger-kernel", "0.8.0", bad | edited), "--pack", LIGER)
    (one,) = found["answers"]
    assert status == 0 and one["state"] == "not_hit" and one["why"] == "patched: 0001-row-scale" and one["record"]
    assert "not_hit (patched: 0001-row-scale)" in scan(tmp_path / "venv").stdout
    half = b"\n".join(edited[FLCE].split(b"\n")[:-2])
    assert document(install(tmp_path / "half", "liger-kernel", "0.8.0", bad | {FLCE: half}))[0] == 3


def test_what_no_name_and_no_file_of_a_record_tells_is_unknown(tmp_path: Path) -> None:
    """A variant of a package, and modules without metadata whose files are elsewhere."""
    (tmp_path / "uv.lock").write_text(uv_lock(("liger-kernel-nightly", "0.8.6")))
    assert states(tmp_path / "uv.lock") == (3, {(LIGER, "liger-kernel", "", "unknown")})
    write(site(install(tmp_path / "venv", "numpy", "1.0")), {"liger_kernel/ops/moved/fused.py": b"x = 1\n"})
    assert states(tmp_path / "venv") == (3, {(LIGER, "liger-kernel", "", "unknown")})
    sources = tmp_path / "sources/megatron_core.egg-info"
    sources.mkdir(parents=True)
    (sources / "PKG-INFO").write_text("Name: megatron-core\nVersion: 0.19.2\n")
    found = document(tmp_path / "sources", "--pack", "sparse_mla_dims")
    assert "unknown" in {one["state"] for one in found[1]["answers"]}, "a folder of sources does not say what else is installed"


def test_every_environment_of_an_image_is_found(tmp_path: Path) -> None:
    image = tmp_path / "image"
    install(image / "usr", "liger-kernel", "0.8.0")
    install(image / "opt/venv", "liger-kernel", "0.8.5")
    install(image / "home/u/conda/envs/train", "liger-kernel", "99.0")
    (image / "opt/loop").symlink_to("..")
    (image / "etc").mkdir()
    (image / "etc/outside").symlink_to(ROOT)
    status, found = document("--root", image)
    rows = {(one["input"].removeprefix(str(image)), one["state"]) for one in found["answers"] if one["slug"] == LIGER}
    assert status == 1
    assert rows == {("/usr", "hit"), ("/opt/venv", "not_hit"), ("/home/u/conda/envs/train", "unknown")}
    bad = released("liger-kernel", "0.8.0")
    write(image / "workspace/src", bad)
    assert ("", "hit") in {(one["version"], one["state"]) for one in document("--root", image)[1]["answers"]}
    assert scan("--root", image / "etc").returncode == 2


def test_the_environment_that_runs_is_the_default(tmp_path: Path) -> None:
    """A venv, an interpreter on PATH, and what a shim of pyenv starts."""
    venv = install(tmp_path / "venv", "liger-kernel", "0.8.0")
    (venv / "bin").mkdir()
    (venv / "bin/python3").write_text("exit 1")
    hit = (1, {(LIGER, "liger-kernel", "0.8.0", "hit")})
    assert states(VIRTUAL_ENV=str(venv)) == hit
    assert states(PATH=str(venv / "bin"), HOME=str(tmp_path)) == hit
    user = install(tmp_path / "home/.local", "liger-kernel", "0.8.5")
    assert states(PATH=str(venv / "bin"), HOME=str(tmp_path / "home"))[1] == {*hit[1], (LIGER, "liger-kernel", "0.8.5", "not_hit")}, user
    (tmp_path / "pyenv/shims").mkdir(parents=True)
    (tmp_path / "pyenv/shims/python3").write_text("exit 1")
    (tmp_path / "pyenv/version").write_text("3.12.1\n")
    found = scan(PATH=str(tmp_path / "pyenv/shims"), HOME=str(tmp_path))
    assert found.returncode == 2 and "name a venv" in found.stderr
    (tmp_path / "pyenv/versions").mkdir()
    (tmp_path / "pyenv/versions/3.12.1").symlink_to(venv)
    assert states(PATH=str(tmp_path / "pyenv/shims"), HOME=str(tmp_path)) == hit


def test_a_venv_with_the_packages_of_its_base_has_them(tmp_path: Path) -> None:
    install(tmp_path / "base", "liger-kernel", "0.8.0")
    install(tmp_path / "venv", "numpy", "1.0")
    (tmp_path / "venv/pyvenv.cfg").write_text(f"home = {tmp_path}/base/bin\ninclude-system-site-packages = true\n")
    assert states(tmp_path / "venv") == (1, {(LIGER, "liger-kernel", "0.8.0", "hit")})


def test_a_pack_is_asked_alone(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(uv_lock(("liger-kernel", "0.8.0"), ("megatron-core", "99.0")))
    assert {one["slug"] for one in document(tmp_path / "uv.lock")[1]["answers"]} > {LIGER, "sparse_mla_dims"}
    status, found = document(tmp_path / "uv.lock", "--pack", f"{LIGER},sparse_mla_dims")
    assert status == 1 and {one["slug"] for one in found["answers"]} == {LIGER, "sparse_mla_dims"}
    assert document(tmp_path / "uv.lock", "--pack", "sparse_mla_dims")[0] == 3
    (tmp_path / ".patchbench.toml").write_text('[[ignore]]\npack = "sparse_mla_dims"\nreason = "not used"\nuntil = 2999-01-01\n')
    assert document("uv.lock", "--pack", LIGER, cwd=tmp_path)[0] == 1
    wrong = scan(tmp_path / "uv.lock", "--pack", "liger_flce_none_bwb")
    assert wrong.returncode == 2 and "did you mean liger_flce_none_bwd" in wrong.stderr


def test_300_packages_take_a_fraction_of_a_second(tmp_path: Path) -> None:
    assert installed_check.check_speed(str(PROGRAM), tmp_path)
