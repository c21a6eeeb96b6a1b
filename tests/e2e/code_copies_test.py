"""Copies of a pack's functions in a project: `scan .` and `scan --code` know them by their tokens, whatever the file is called."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
from scan_test import FLCE, LIGER, document, released, scan, write

CE = "liger_kernel/ops/cross_entropy.py"
FROZEN = "liger_flce_frozen_hidden"
DSA = "megatron/core/transformer/experimental_attention_variant/dsa.py"
MODULE = "megatron/core/transformer/module.py"


def vendored(version: str) -> dict[str, bytes]:
    """The loss of a release and its kernel, as a trainer carries them: other names, other imports, a header of its own."""
    files = released("liger-kernel", version)
    return {
        "train/losses.py": b"# Taken from Liger-Kernel.\n" + files[FLCE].replace(b"liger_kernel.ops.", b"train.triton_"),
        "train/triton_cross_entropy.py": files[CE].replace(b"liger_kernel.ops.", b"train.triton_"),
    }


def answers(folder: Path, *words: Any, pack: str = LIGER) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and answers about a project that names a package of no pack."""
    (folder / "requirements.txt").write_text("numpy==2.0.0\n")
    status, found = document(*(words or (folder,)), "--pack", pack)
    return status, [one for one in found["answers"] if one["state"] != "not_installed"]


def test_a_copy_is_a_hit_whatever_its_file_is_called(tmp_path: Path) -> None:
    write(tmp_path, vendored("0.6.1"))
    status, (answer,) = answers(tmp_path)
    assert (status, answer["state"], answer["why"]) == (1, "hit", "reduction_ignored")
    assert (answer["file"], answer["source"]) == (str(tmp_path / "train/losses.py"), "code")
    assert (answer["same_functions_as"], answer["same_code_as"]) == ("0.6.1", "")
    assert answer["right_release"] == ""
    found = scan(".", "--pack", LIGER, cwd=tmp_path)
    assert found.returncode == 1
    for said in ("liger-kernel (a copy in ./train/losses.py)", "hit: reduction_ignored (silent_wrong, same functions as 0.6.1",
                 "right release: an upgrade of liger-kernel does not reach this copy", "mitigation: does not reach a copy"):  # fmt: skip
        assert said in found.stdout, found.stdout
    assert "pip install" not in found.stdout and "PATCHBENCH_MITIGATE" not in found.stdout


def test_code_alone_says_the_same_and_says_it_once(tmp_path: Path) -> None:
    write(tmp_path, vendored("0.6.1"))
    status, (answer,) = answers(tmp_path, "--code", tmp_path)
    assert (status, answer["state"], answer["same_functions_as"]) == (1, "hit", "0.6.1")
    status, (answer,) = answers(tmp_path, tmp_path, "--code", tmp_path / "train")
    assert (status, answer["state"]) == (1, "hit")
    # Of one file alone the kernel is not at hand.
    status, (answer,) = answers(tmp_path, "--code", tmp_path / "train/losses.py")
    assert (status, answer["state"]) == (3, "unknown")


def test_one_file_may_hold_it_all(tmp_path: Path) -> None:
    write(tmp_path, {"all_in_one.py": b"".join(vendored("0.6.1").values())})
    status, (answer,) = answers(tmp_path)
    assert (status, answer["state"], answer["same_functions_as"]) == (1, "hit", "0.6.1")


def test_a_function_that_was_changed_is_named(tmp_path: Path) -> None:
    files = vendored("0.6.1")
    changed = files["train/losses.py"].replace(b"grad_output, torch.tensor(1.0", b"grad_output, torch.tensor(2.0")
    assert changed != files["train/losses.py"]
    write(tmp_path, files | {"train/losses.py": changed})
    status, (answer,) = answers(tmp_path)
    assert (status, answer["state"]) == (3, "unknown")
    assert answer["why"] == "3 of its functions are those of 0.6.1; these differ: fused_linear_cross_entropy_backward"


def test_a_function_that_is_nowhere_is_named(tmp_path: Path) -> None:
    files = vendored("0.6.1")
    del files["train/triton_cross_entropy.py"]
    write(tmp_path, files)
    status, (answer,) = answers(tmp_path)
    assert (status, answer["state"]) == (3, "unknown")
    assert answer["why"] == "its functions are those of 0.6.1; nowhere here: liger_cross_entropy_kernel"


def test_functions_of_a_right_release_are_no_all_clear(tmp_path: Path) -> None:
    """The judged cases ran more than these functions."""
    write(tmp_path, vendored("0.8.2"))
    status, (answer,) = answers(tmp_path)
    assert (status, answer["state"]) == (3, "unknown")
    assert answer["why"].startswith("its functions are those of 0.8.2, where the bug is not")
    status, (answer,) = answers(tmp_path, pack=FROZEN)
    assert (status, answer["state"], answer["same_functions_as"]) == (1, "hit", "0.8.2")


def test_the_same_names_alone_are_no_copy(tmp_path: Path) -> None:
    source = "def fused_linear_cross_entropy_forward(x): return x\ndef fused_linear_cross_entropy_backward(x): return x\n"
    source += "class LigerFusedLinearCrossEntropyFunction:\n  def forward(x): return x\n  def backward(x): return x\n"
    write(tmp_path, {"losses.py": source.encode(), "kernel.py": b"def liger_cross_entropy_kernel(): pass\n"})
    assert answers(tmp_path)[1] == []


def test_the_kernel_alone_is_no_copy(tmp_path: Path) -> None:
    files = vendored("0.6.1")
    del files["train/losses.py"]
    write(tmp_path, files)
    assert answers(tmp_path)[1] == []


def test_a_whole_package_is_one_answer_and_its_other_files_are_read_for_hits(tmp_path: Path) -> None:
    """Liger-Kernel has a variant of the loss for other devices; a copy with the bug inside of a right release is one more answer."""
    right = released("liger-kernel", "0.8.5")
    write(tmp_path, right)
    assert [(one["source"], one["state"]) for one in answers(tmp_path)[1]] == [("copy", "not_hit")]
    bad = released("liger-kernel", "0.8.0")
    write(tmp_path, {"liger_kernel/ours/loss.py": bad[FLCE], "liger_kernel/ours/kernel.py": bad[CE]})
    status, found = answers(tmp_path)
    assert (status, [(one["source"], one["state"]) for one in found]) == (1, [("copy", "not_hit"), ("code", "hit")])


@pytest.mark.parametrize("folder", [".hidden", "node_modules", "lib/site-packages", "env"])
def test_what_is_no_source_of_the_project_is_not_read(tmp_path: Path, folder: str) -> None:
    write(tmp_path, {f"{folder}/{name}": text for name, text in vendored("0.6.1").items()} | {"env/pyvenv.cfg": b"home = /usr\n"})
    assert answers(tmp_path)[1] == []


def test_a_file_that_cannot_be_read_as_python_is_no_all_clear(tmp_path: Path) -> None:
    write(tmp_path, {"requirements.txt": b"liger-kernel==0.8.2\n", "losses.py": b"def liger_cross_entropy_kernel(:\n  x = (\n"})
    found = scan(tmp_path, "--pack", LIGER)
    assert found.returncode == 3, found.stdout
    assert "losses.py" in found.stdout
    (tmp_path / "losses.py").write_bytes(b"def other(:\n  x = (\n")
    assert scan(tmp_path, "--pack", LIGER).returncode == 0


def test_other_packs_and_several_copies(tmp_path: Path) -> None:
    dsa = released("megatron-core", "0.16.0")[DSA]
    write(tmp_path, {"a/attention.py": dsa, "b/attention.py": dsa.replace(b"def unfused_dsa_fn(", b"def unfused_dsa_fn(ours=0, ")})
    status, found = answers(tmp_path, pack="dsa_graph_capture")
    assert status == 1
    assert [(one["file"].rpartition("/")[0][-1], one["state"]) for one in found] == [("a", "hit"), ("b", "unknown")]
    assert found[1]["why"].endswith("these differ: unfused_dsa_fn")


@pytest.mark.parametrize("version", ["0.16.0", "0.18.2"])
def test_a_fork_is_known_by_the_functions_that_carry_the_bug(tmp_path: Path, version: str) -> None:
    """Another version string, another function, a new one: no release has these files."""
    files = {name: text for name, text in released("megatron-core", version).items() if name.startswith("megatron/core/")}
    files["megatron/core/package_info.py"] = files["megatron/core/package_info.py"].replace(b"PRE_RELEASE", b"PRE_RELEASE_OF_OURS")
    files[DSA] = files[DSA].replace(b"def rotate_activation(x", b"def rotate_activation(ours, x") + b"\n\ndef ours():\n    return 1\n"
    files[MODULE] += b"\n\ndef ours():\n    return 1\n"
    write(tmp_path, files)
    status, found = answers(tmp_path, pack="dsa_graph_capture,megatron_float16_cast")
    assert status == 1
    newest = {"dsa_graph_capture": {"0.16.0": "0.16.1", "0.18.2": "0.18.2"}[version], "megatron_float16_cast": "0.19.2"}
    assert {one["slug"]: (one["state"], one["same_functions_as"]) for one in found} == {
        slug: ("hit", release) for slug, release in newest.items()
    }
    before, cast = files[MODULE].split(b"class Float16Module", 1)
    files[MODULE] = before + b"class Float16Module" + cast.replace(b"__init__(self, ", b"__init__(self, ours, ", 1)
    files[DSA] = files[DSA].replace(b"def compute_dsa_indexer_loss(", b"def compute_dsa_indexer_loss(ours, ")
    write(tmp_path, files)
    status, found = answers(tmp_path, pack="dsa_graph_capture,megatron_float16_cast")
    assert (status, {one["state"] for one in found}) == (3, {"unknown"})
    assert "these differ: compute_dsa_indexer_loss" in found[0]["why"]


def test_five_thousand_files_take_seconds_of_a_core(tmp_path: Path) -> None:
    """2 s of an idle machine, where it was 1.4; three times that much here, for a slower one."""
    filler = "\n\n".join(f"def step_{i}(a, b):\n    return a * {i} + b" for i in range(200))
    write(tmp_path, {f"pkg_{i % 50}/module_{i}.py": filler.encode() for i in range(5000)} | vendored("0.6.1"))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert scan(tmp_path, "--pack", LIGER).returncode == 1
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 6
