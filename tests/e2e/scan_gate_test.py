"""`patchbench scan` as a gate: conditions that code and configurations meet or rule out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scan_test import LIGER, document, scan, uv_lock

ZERO2, TRAINER = "zero2_grad_accumulation", "trainer_grad_accumulation"
DEEPSPEED = '{"gradient_accumulation_steps": %s,\n"zero_optimization": {"stage": %s}}\n'
LOSS = "from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss as Loss\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "uv.lock").write_text(uv_lock(("deepspeed", "0.18.2")))
    (tmp_path / "code").mkdir()
    return tmp_path


def answer(folder: Path, *words: Any, pack: str = ZERO2) -> tuple[int, str, str, list[tuple[str, str]]]:
    """Exit status, state, reason, and the state and place of each class of one pack."""
    status, found = document("uv.lock", "--code", "code", "--pack", pack, *words, cwd=folder)
    (one,) = found["answers"]
    return status, one["state"], one["why"], [(row["condition_state"], row["condition_at"]) for row in one["classes"]]


NOT_MET = {
    "micro_batches.json": (DEEPSPEED % (1, 2), 1),
    "stage.json": (DEEPSPEED % (8, 3), 2),
    "minified.json": ('{"zero_optimization":{"stage":3},"gradient_accumulation_steps":8}', 1),
    "accelerate.yaml": ("deepspeed_config:\n  zero_stage: 3  # no stage 2\n", 2),
}


@pytest.mark.parametrize("file", NOT_MET)
def test_a_configuration_rules_a_class_out(project: Path, file: str) -> None:
    text, line = NOT_MET[file]
    (project / "code" / file).write_text(text)
    place = f"code/{file}:{line}"
    for words in ((), ("--fail-on-condition", "open"), ("--fail-on-condition", "met")):
        assert answer(project, *words) == (0, "present", f"condition not met ({place})", [("not met", place)])


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("none.json", "{}\n"),
        ("stage_2.json", '{"zero_optimization":\n{"stage": 2}}\n'),
        ("auto.json", DEEPSPEED % ('"auto"', 2)),
        ("both.json", '{"a": {"zero_optimization": {"stage": 3}}, "b": {"zero_optimization": {"stage": 2}}}\n'),
        ("list.yaml", "zero_optimization:\n  stage: [1, 2]\n"),
        ("text.yaml", "run: |\n  zero_stage: 3\n"),
        ("comment.yaml", "a: b # x, zero_stage: 3\n# zero_stage: 3\n"),
        ("words.yaml", "run: train --zero_stage 3\n"),
        ("inside.json", '{"what": "x, \\"zero_stage\\": 3"}\n'),
        ("other.yaml", "stage: 3\n"),
        ("run.sh", "train.py --zero_stage 3 $@\n"),
        ("default.py", "zero_stage = 3\nCONFIG = dict(zero_stage=3)\n"),
    ],
)
def test_what_rules_nothing_out(project: Path, file: str, text: str) -> None:
    """The condition stays open: the hit fails by default, and not where only a condition that is met does."""
    (project / "code" / file).write_text(text)
    status, state, why, classes = answer(project)
    assert (status, state, why, classes) == (1, "hit", "last_micro_batch", [("open", "")])
    unknown = any(word in text for word in ('"auto"', '"stage": 2'))
    assert answer(project, "--fail-on-condition", "met")[:2] == (3 if unknown else 0, "hit")


def test_a_place_that_meets_comes_before_one_that_rules_out(project: Path) -> None:
    (project / "code/a.json").write_text(DEEPSPEED % (1, 3))
    (project / "code/b.json").write_text(DEEPSPEED % (8, 2))
    for words in ((), ("--fail-on-condition", "met")):
        assert answer(project, *words) == (1, "hit", "last_micro_batch", [("met", "code/b.json:1")])
    (project / "code/b.json").write_text('{"zero_optimization": {"stage": 2}}\n')
    assert answer(project) == (1, "hit", "last_micro_batch", [("open", "")]), "a place that cannot be known"


def test_calls_meet_and_rule_out(project: Path) -> None:
    (project / "uv.lock").write_text(uv_lock(("liger-kernel", "0.8.0")))
    code = project / "code/train.py"
    for text, status, state in (
        ('Loss(reduction="mean")', 0, "not met"),
        ("Loss()", 1, "open"),  # a default says nothing
        ('from functools import partial\npartial(Loss, reduction="mean")', 1, "open"),
        ('Loss(reduction="mean")\nLoss(reduction="none")', 1, "met"),
        ('Loss(reduction="mean")\nLoss(reduction=args.reduction)', 1, "open"),
        ('Loss(reduction="mean" if x else "sum")', 0, "not met"),
    ):
        code.write_text(LOSS + text + "\n")
        found = answer(project, pack=LIGER)
        assert (found[0], {row[0] for row in found[3]}) == (status, {state}), text


def test_a_class_that_is_not_ruled_out_keeps_the_hit(project: Path) -> None:
    """gradient_accumulation_steps 1 rules out all classes of the Trainer's release but first_label_counted."""
    (project / "uv.lock").write_text(uv_lock(("transformers", "5.24.0")))
    (project / "code/train.py").write_text("import transformers\ntransformers.TrainingArguments(gradient_accumulation_steps=1)\n")
    status, state, why, classes = answer(project, pack=TRAINER)
    assert (status, state, why) == (1, "hit", "first_label_counted")
    assert classes == [("open", ""), *[("not met", "code/train.py:2")] * 2]
    assert answer(project, "--fail-on-condition", "met", pack=TRAINER)[0] == 0
    said = scan("uv.lock", "--code", "code", "--pack", TRAINER, "--fail-on-condition", "met", cwd=project).stdout
    assert "The condition is not met (code/train.py:2)." in said
    assert "note: 1 hit, whose condition is not known, does not fail: --fail-on-condition met" in said
    (project / "code/more.py").write_text("import transformers\ntransformers.Trainer(model)\n")
    assert answer(project, "--fail-on-condition", "met", pack=TRAINER)[0] == 1


def test_a_class_that_the_release_does_not_have_is_met_in_vain(project: Path) -> None:
    """The release 4.44.0 does not have first_label_counted, which a Trainer meets."""
    (project / "uv.lock").write_text(uv_lock(("transformers", "4.44.0")))
    (project / "code/train.py").write_text("import transformers\ntransformers.Trainer(model)\n")
    (project / "code/run.yaml").write_text("per_device_train_batch_size: 1\ngradient_accumulation_steps: 1\n")
    assert answer(project, pack=TRAINER)[:2] == (0, "present")


def test_every_format_says_present_and_none_an_error(project: Path) -> None:
    (project / "code/ds.json").write_text(DEEPSPEED % (8, 3))
    said = {name: scan("uv.lock", "--code", "code", "--pack", ZERO2, "--format", name, cwd=project)
            for name in ("table", "sarif", "cyclonedx", "openvex", "markdown", "github")}  # fmt: skip
    assert {one.returncode for one in said.values()} == {0}
    why = "condition not met (code/ds.json:2)"
    assert (
        f"present, {why}" in said["table"].stdout and "0 hit, 0 unknown, 0 not hit, 0 packs not listed, 1 present" in said["table"].stdout
    )
    assert "present, condition not met (code/ds.json:2)" in said["markdown"].stdout
    assert said["github"].stdout.startswith("::notice ") and said["github"].stdout.count("\n") == 1 and why in said["github"].stdout
    (result,) = json.loads(said["sarif"].stdout)["runs"][0]["results"]
    assert result["level"] == "note" and why in result["message"]["text"]
    (statement,) = json.loads(said["openvex"].stdout)["statements"]
    assert (statement["status"], statement["impact_statement"]) == ("not_affected", why)
    (weakness,) = json.loads(said["cyclonedx"].stdout)["vulnerabilities"]
    assert (weakness["analysis"]["state"], weakness["analysis"]["justification"]) == ("not_affected", "requires_configuration")
    # The statement is about this configuration: elsewhere the release is a hit.
    (project / "vex.json").write_text(said["openvex"].stdout)
    assert scan("uv.lock", "--pack", ZERO2, "--vex", "vex.json", cwd=project).returncode == 1


@pytest.mark.parametrize(("setting", "status"), [(DEEPSPEED % (8, 2), 1), (DEEPSPEED % (8, 3), 0), ('{"train": 1}', 0)])
def test_the_code_of_a_project_says_what_is_met(project: Path, setting: str, status: int) -> None:
    (project / "code/ds.json").write_text(setting)
    words = (".", "--pack", ZERO2, "--fail-on-condition", "met")
    assert document(*words, cwd=project)[0] == status
    assert document(*words, "--code", "code", cwd=project)[0] == status
    (project / "code/ds.json").unlink()
    found = scan(*words, cwd=project)
    assert found.returncode == 2 and "none was read" in found.stderr


TE = "import transformer_engine.pytorch as te\nte.parallel_cross_entropy(x, y, 0.0, "
LOSS_CLASSES, MEAN = {"row_zero_gradient", "sum_scaled", "out_of_bounds_read", "storage_order_gradient"}, {"ignored_labels"}
DSA = {"capture_illegal", "first_capture_illegal", "sentinel_index_rejected"}
FUSED = {"shape_declined", "silent_decline", "dense_fallback", "out_of_memory"}


@pytest.mark.parametrize(
    ("release", "pack", "file", "text", "want"),
    [
        (("transformer-engine", "2.7.0"), "te_fused_ce", "a.py", TE + "True)\n", LOSS_CLASSES),
        (("transformer-engine", "2.10.0"), "te_fused_ce", "a.py", TE + "reduce_loss=False)\n", MEAN),
        (("transformer-engine", "2.10.0"), "te_fused_ce", "a.py", TE + "reduce_loss=args.mean)\n", set()),
        (("transformer-engine", "2.10.0"), "te_fused_ce", "a.py", TE.rstrip(", ") + ")\n", set()),  # a default
        (("megatron-core", "0.19.2"), "dsa_graph_capture", "a.yaml", "experimental_attention_variant: gated_delta_net\n", DSA),
        (("megatron-core", "0.19.2"), "dsa_graph_capture", "a.yaml", "experimental_attention_variant: dsa\n", set()),
        (("megatron-core", "0.19.2"), "dsa_graph_capture", "a.sh", "--experimental-attention-variant gated_delta_net\n", set()),
        (("megatron-core", "0.19.2"), "sparse_mla_dims", "a.yaml", "dsa_kernel_backend: none\n", FUSED),
        (("megatron-core", "0.19.2"), "sparse_mla_dims", "a.yaml", "dsa_kernel_backend: cudnn\n", set()),
        (("megatron-core", "0.19.2"), "sparse_mla_pdp_precision", "a.yaml", "dsa_kernel_backend: cudnn\n", {"precision_lost"}),
        (("megatron-core", "0.19.2"), "sparse_mla_pdp_precision", "a.yaml", "dsa_kernel_backend: tilelang\n", set()),
        (("megatron-core", "0.19.2"), "sparse_mla_pdp_precision", "a.yaml", "dsa_kernel_backend: ${backend}\n", set()),
    ],
)
def test_what_a_setting_rules_out(project: Path, release: tuple[str, str], pack: str, file: str, text: str, want: set[str]) -> None:
    (project / "uv.lock").write_text(uv_lock(release, ("tilelang", "0.1.12")))
    (project / "code" / file).write_text(text)
    _, found = document("uv.lock", "--code", "code", "--pack", pack, cwd=project)
    answers = (one for one in found["answers"] if one["package"] == release[0])
    rows = {row["class"]: row["condition_state"] for one in answers for row in one["classes"]}
    assert {name for name, state in rows.items() if state == "not met"} == want & set(rows)
    assert rows and bool(want) == bool(want & set(rows))


def test_a_gate_on_what_is_met_needs_code(project: Path) -> None:
    found = scan("uv.lock", "--fail-on-condition", "met", cwd=project)
    assert found.returncode == 2 and found.stderr.count("\n") == 1 and "--code DIR" in found.stderr
    assert scan("uv.lock", "--fail-on-condition", "mett", "--code", "code", cwd=project).returncode == 2
