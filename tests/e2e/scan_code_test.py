"""`patchbench scan --code`: the calls and keys that meet a pack's condition, and where it cannot be known."""

from __future__ import annotations

from pathlib import Path

import pytest
from scan_test import LIGER, document, scan, uv_lock, write

IMPORT = "from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss as Loss\nimport liger_kernel.transformers as lt\n"


def sites(folder: Path, *words: object, slug: str = LIGER) -> tuple[int, set[tuple[str, int, str]]]:
    """Exit status and (file, line, state) of the places of one pack."""
    status, found = document("--code", folder, *words)
    rows = {(Path(one["file"]).relative_to(folder).as_posix(), one["line"], one["state"]) for one in found["code"] if one["slug"] == slug}
    return status, rows


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ('Loss(reduction="none")', "meets"),
        ('lt.LigerFusedLinearCrossEntropyLoss(None, -100, 0.0, 0.0, "none")', "meets"),
        ('Loss(**{"reduction": "none"})', "meets"),
        ('Loss(reduction="none" if x else "none")', "meets"),
        ('import functools as f; f.partial(Loss, reduction="none")', "meets"),
        ('mode = "none"; Loss(reduction=mode)', "meets"),
        ('X = Loss; X(reduction="none")', "meets"),
        ('from liger_kernel.transformers import *; LigerFusedLinearCrossEntropyLoss(reduction="none")', "meets"),
        ('Loss(reduction="none" if x else "mean")', "cannot_know"),
        ("Loss(reduction=args.reduction)", "cannot_know"),
        ("Loss(**options)", "cannot_know"),
        ("Loss(*options)", "cannot_know"),
        ("make(Loss)", "cannot_know"),
        ("class Mine(Loss): pass", "cannot_know"),
        ('getattr(lt, "LigerFusedLinearCrossEntropyLoss")', "cannot_know"),
        ('mode = "mean"; mode = other(); Loss(reduction=mode)', "cannot_know"),
        ("Loss()", None),
        ('Loss(reduction="mean")', None),
        ('Loss(None, -100, 0.0, 0.0, "sum")', None),
        ("def f(x: Loss) -> Loss: ...", None),
        ('torch.nn.CrossEntropyLoss(reduction="none")', None),
        ('"""Loss(reduction=\'none\') of LigerFusedLinearCrossEntropyLoss"""', None),
    ],
)
def test_a_call_meets_or_cannot_be_known(tmp_path: Path, line: str, state: str | None) -> None:
    (tmp_path / "train.py").write_text(IMPORT + line + "\n")
    status, rows = sites(tmp_path)
    assert rows == ({("train.py", 3, state)} if state else set())
    assert status == {"meets": 1, "cannot_know": 3, None: 0}[state]


def test_names_are_followed_through_the_modules_of_the_code(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("from .losses import Fused\n")
    (tmp_path / "pkg/losses.py").write_text("from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss as Fused\n")
    (tmp_path / "train.py").write_text('import pkg\npkg.Fused(reduction="none")\nfrom pkg.losses import Fused as F\nF(reduction="mean")\n')
    assert sites(tmp_path) == (1, {("train.py", 2, "meets")})


def test_positions_of_a_function_and_its_apply(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as F\n"
        'F.apply(x, w, t, None, None, -100, 0.0, 0.0, "none")\nrun = F.apply\nrun(x, w, t, None, None, -100, 0.0, 0.0, "none")\n'
        'F.apply(x, w, t, None, None, -100, 0.0, 0.0, "mean")\n'
    )
    assert sites(tmp_path) == (1, {("a.py", 2, "meets"), ("a.py", 4, "meets")})


def test_keys_of_configurations(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        'TransformerConfig(dsa_kernel_backend="tilelang")\nconfig.dsa_kernel_backend = "none"\nconfig["dsa_kernel_backend"] = "tilelang"\n'
        'options = ["--dsa-kernel-backend", "tilelang"]\nsetattr(config, "dsa_kernel_backend", value)\n'
        'parser.add_argument("--dsa-kernel-backend", default="none")\n'
    )
    (tmp_path / "b.yaml").write_text("model:\n  dsa_kernel_backend: tilelang\n  # dsa_kernel_backend: tilelang\nother: 1\n")
    (tmp_path / "c.sh").write_text('torchrun train.py --dsa-kernel-backend "$BACKEND"\ntorchrun train.py --dsa-kernel-backend=none\n')
    status, rows = sites(tmp_path, slug="sparse_mla_pdp_precision")
    assert status == 1
    assert rows == {("a.py", 1, "meets"), ("a.py", 3, "meets"), ("a.py", 4, "meets"), ("a.py", 5, "cannot_know"),
                    ("a.py", 6, "cannot_know"), ("b.yaml", 2, "meets"), ("c.sh", 1, "cannot_know")}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "state"), [("1", None), ("1.0", None), ("8", "meets"), ('"1"', None), ("auto", "cannot_know"), ("$N", "cannot_know")]
)
def test_a_number_of_a_configuration_is_a_number(tmp_path: Path, value: str, state: str | None) -> None:
    name = "gradient_accumulation_steps"
    texts = {"a.yaml": f"{name}: {value}\n", "b.json": f'{{\n"{name}": {value}\n}}\n', "c.sh": f"python train.py --{name} {value}\n"}
    for file, text in texts.items():
        (tmp_path / file).write_text(text)
    _, rows = sites(tmp_path, slug="trainer_grad_accumulation")
    assert {row[2] for row in rows} == ({state} if state else set()) and len(rows) == (3 if state else 0)


DEEPSPEED = '{"gradient_accumulation_steps": %s,\n"zero_optimization": {"stage": %s}}\n'
CONFIGS = {
    "ds_stage_2.json": (DEEPSPEED % (4, 2), {("zero2_grad_accumulation", 1, "meets")}),
    "ds_auto.json": (DEEPSPEED % ('"auto"', 2), {("zero2_grad_accumulation", 1, "cannot_know")}),
    "ds_one.json": (DEEPSPEED % (1, 2), set()),
    "ds_stage_3.json": (DEEPSPEED % (4, 3), set()),
    "ds_open.json": ('{"zero_optimization":\n{"stage": 2}}\n', {("zero2_grad_accumulation", 2, "cannot_know")}),
    "accelerate.yaml": ("deepspeed_config:\n  zero_stage: 2\n", {("zero2_grad_accumulation", 2, "cannot_know")}),
    "run.yaml": ("stage: sft\ngradient_accumulation_steps: 2\n", {("trainer_grad_accumulation", 2, "meets")}),
    "train.py": ('import deepspeed\nC = {"gradient_accumulation_steps": 4, "zero_optimization": {"stage": 2}}\n',
                 {("zero2_grad_accumulation", 2, "meets")}),
}  # fmt: skip


@pytest.mark.parametrize("file", CONFIGS)
def test_a_configuration_is_of_the_framework_that_reads_it(tmp_path: Path, file: str) -> None:
    text, expected = CONFIGS[file]
    (tmp_path / file).write_text(text)
    _, found = document("--code", tmp_path)
    assert {(one["slug"], one["line"], one["state"]) for one in found["code"]} == expected


def test_a_key_with_the_value_of_another_kernel_is_no_hit(tmp_path: Path) -> None:
    """Megatron calls Transformer Engine's loss where cross_entropy_fusion_impl is "te"; "native" is its own."""
    (tmp_path / "a.py").write_text(
        'TransformerConfig(cross_entropy_loss_fusion=True, cross_entropy_fusion_impl="te")\n'
        'TransformerConfig(cross_entropy_loss_fusion=True, cross_entropy_fusion_impl="native")\n'
        "config.cross_entropy_fusion_impl = impl\n"
    )
    (tmp_path / "b.yaml").write_text("cross_entropy_fusion_impl: te\n")
    (tmp_path / "c.sh").write_text("torchrun pretrain.py --cross-entropy-loss-fusion --cross-entropy-fusion-impl te\n")
    rows = {("a.py", 1, "meets"), ("a.py", 3, "cannot_know"), ("b.yaml", 1, "meets"), ("c.sh", 1, "meets")}
    assert sites(tmp_path, slug="te_fused_ce") == (1, rows)


def test_hostile_code_is_parsed_and_never_run(tmp_path: Path) -> None:
    """What cannot be parsed and has the words is unknown; what has none of them says nothing."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/broken.py").write_text("def (:\nLigerFusedLinearCrossEntropyLoss\n")
    (tmp_path / "code/deep.py").write_text("x = " + "(" * 5000 + "LigerFusedLinearCrossEntropyLoss" + ")" * 5000 + "\n")
    (tmp_path / "code/long.py").write_text("LigerFusedLinearCrossEntropyLoss\n" + "x = 1\n" * 800_000)
    (tmp_path / "code/sum.py").write_text("x = " + "+".join(["1"] * 20_000) + " + LigerFusedLinearCrossEntropyLoss\n")
    (tmp_path / "code/zero.py").write_bytes(b"\0\xff LigerFusedLinearCrossEntropyLoss")
    (tmp_path / "code/other.py").write_text("def (:\n")
    (tmp_path / "code/ast.py").write_text("raise SystemExit(7)\n")
    (tmp_path / "code/loop").symlink_to(".")
    (tmp_path / "code/run.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    status, rows = sites(tmp_path / "code")
    assert status == 3 and {row[0] for row in rows if row[2] == "cannot_know"} >= {"broken.py", "deep.py", "long.py", "zero.py"}
    assert not (tmp_path / "ran").exists()
    for words in ("nowhere", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        found = scan("--code", words)
        assert found.returncode == 2 and found.stderr.count("\n") == 1, found.stderr


def test_packages_and_code_together(tmp_path: Path) -> None:
    """A place counts where the packages are hit, or where nothing is known of them; it narrows no hit."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(IMPORT + 'Loss(reduction="none")\n')
    for version, status in (("0.8.0", 1), ("0.8.5", 0), ("99.0", 1)):
        (tmp_path / "uv.lock").write_text(uv_lock(("liger-kernel", version)))
        assert scan(tmp_path / "uv.lock", "--code", tmp_path / "code", "--pack", LIGER).returncode == status, version
    (tmp_path / "uv.lock").write_text(uv_lock(("liger-kernel", "0.8.0")))
    (tmp_path / "code/train.py").write_text("import torch\n")
    assert scan(tmp_path / "uv.lock", "--code", tmp_path / "code").returncode == 1


def test_a_file_of_another_kind_is_no_code(tmp_path: Path) -> None:
    """A list that is named behind --code was read as code that calls nothing: a false all-clear."""
    write(tmp_path, {"train.py": b"print()\n", "requirements.txt": b"liger-kernel==0.8.0\n"})
    found = scan("--code", "train.py", "requirements.txt", cwd=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert "requirements.txt: is not read as code" in found.stderr and found.stderr.count("\n") == 1
    assert scan("requirements.txt", "--code", "train.py", cwd=tmp_path).returncode == 1
