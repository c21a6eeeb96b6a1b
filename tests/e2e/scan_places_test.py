"""`patchbench scan --code`: comments that ignore a place, calls that take no gradient, and what a hit did to a training run."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from answers import ROOT
from scan_test import LIGER, document, scan, uv_lock

FLCE = "from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy as flce\n"
LOSS = "from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss as Loss\n"
PACKS = {path.parent.name: json.loads(path.read_text()) for path in sorted(ROOT.glob("packs/*/manifest.json"))}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "uv.lock").write_text(uv_lock(("liger-kernel", "0.8.0")))
    (tmp_path / "code").mkdir()
    return tmp_path


def test_a_comment_ignores_the_place_on_its_line(project: Path) -> None:
    code = project / "code/train.py"
    code.write_text(LOSS + f'Loss(reduction="none")  # patchbench: ignore {LIGER} the losses are summed\n')
    (project / "code/a.yaml").write_text("dsa_kernel_backend: tilelang  # patchbench: ignore sparse_mla_pdp_precision our keys\n")
    (project / "code/b.sh").write_text("train --dsa-kernel-backend tilelang # patchbench: ignore sparse_mla_pdp_precision  ours \n")
    words = ("--code", "code", "--pack", f"{LIGER},sparse_mla_pdp_precision")
    status_, found = document(*words, cwd=project)
    assert status_ == 0 and not found["notes"]
    reasons = {"code/train.py:2: the losses are summed", "code/a.yaml:1: our keys", "code/b.sh:1: ours"}
    assert {one["ignored"] for one in found["code"]} == reasons
    said = scan(*words, cwd=project).stdout
    assert "meets: wrong_gradients, ignored" in said and "ignored: code/train.py:2: the losses are summed" in said
    # It meets no condition, and does not say that the condition is not met.
    rows = document("uv.lock", "--code", "code", "--pack", LIGER, cwd=project)[1]["answers"]
    assert [(row["condition_state"], row["condition_at"]) for one in rows for row in one["classes"]] == [("open", "")]


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("# patchbench: ignore", "write # patchbench: ignore PACK REASON"),
        (f"# patchbench: ignore {LIGER}", f"write a reason after {LIGER}"),
        ("# patchbench: ignore liger_flce_none_bw why", "did you mean liger_flce_none_bwd?"),
        ("# patchbench: ignore trainer_grad_accumulation another pack", ""),
        ("# patchbench: ignored liger_flce_none_bwd why", ""),
        (f'; "# patchbench: ignore {LIGER} a text"', ""),
    ],
)
def test_a_comment_that_ignores_nothing_is_named(project: Path, comment: str, said: str) -> None:
    (project / "code/train.py").write_text(LOSS + f'Loss(reduction="none") {comment}\n')
    status_, found = document("--code", "code", cwd=project)
    assert status_ == 1 and not any(one["ignored"] for one in found["code"])
    assert len(found["notes"]) == bool(said)
    assert not said or (found["notes"][0].startswith("code/train.py:2: ") and said in found["notes"][0])


NO_GRADIENT = {
    "with torch.no_grad():\n    {}": 3,
    "with torch.inference_mode():\n    {}": 3,
    "with torch.inference_mode(True):\n    {}": 3,
    "with torch.no_grad(), torch.autocast('cuda'):\n    {}": 3,
    "from torch import no_grad as off\nwith off():\n    with torch.cuda.device(0):\n        {}": 4,
    "@torch.no_grad()\ndef evaluate():\n    {}": 3,
    "@torch.inference_mode\nasync def evaluate():\n    if x:\n        {}": 3,
    "class T:\n    @torch.no_grad()\n    def evaluate(self):\n        {}": 4,
}
GRADIENT = (
    "{}",
    "with torch.inference_mode(False):\n    {}",
    "with torch.no_grad():\n    with torch.enable_grad():\n        {}",
    "with torch.no_grad():\n    with mode(train):\n        {}",
    "with torch.no_grad():\n    torch.set_grad_enabled(True)\n    {}",
    "with torch.no_grad():\n    run = lambda: {}",
    "with torch.no_grad():\n    def step():\n        {}",
    "with torch.no_grad():\n    torch.func.grad(lambda x: x)(y)\n    {}",
    "@torch.enable_grad()\n@torch.no_grad()\ndef step():\n    {}",
    "with other.no_grad():\n    {}",
    "with torch.no_grad():\n    pass\n{}",
)
CALL = "flce(x, w, y, reduction='none')"


@pytest.mark.parametrize("form", [*NO_GRADIENT, *GRADIENT])
def test_a_call_without_a_gradient_meets_no_bug_of_a_backward(project: Path, form: str) -> None:
    (project / "code/train.py").write_text(FLCE + "import torch\n" + form.format(CALL) + "\n")
    status_, found = document("uv.lock", "--code", "code", "--pack", LIGER, "--fail-on-condition", "met", cwd=project)
    (place,) = found["code"]
    of = {row["class"]: row["state"] for row in place["classes"]}
    assert of["reduction_ignored"] == "meets", "the forward is as wrong without a gradient"
    if form in NO_GRADIENT:
        assert (status_, of["wrong_gradients"]) == (0, "no_gradient")
        assert f"no gradient here (code/train.py:{NO_GRADIENT[form]})" in scan("--code", "code", "--pack", LIGER, cwd=project).stdout
    else:
        assert (status_, of["wrong_gradients"]) == (1, "meets")


def test_a_call_without_a_gradient_leaves_no_condition_open(project: Path) -> None:
    text = FLCE + f"import torch\nwith torch.no_grad():\n    {CALL}\nflce(x, w, y, reduction='mean')\n"
    (project / "code/train.py").write_text(text)
    status_, found = document("uv.lock", "--code", "code", "--pack", LIGER, cwd=project)
    (one,) = found["answers"]
    assert (status_, one["state"], one["why"]) == (0, "present", "condition not met (code/train.py:5)")


def test_no_gradient_around_the_making_of_a_module_says_nothing(project: Path) -> None:
    (project / "code/train.py").write_text(LOSS + "import torch\nwith torch.no_grad():\n    loss = Loss(reduction='none')\n")
    ((state,),) = {tuple({row["state"] for row in one["classes"]}) for one in document("--code", "code", cwd=project)[1]["code"]}
    assert state == "meets"


def test_a_rule_that_needs_a_gradient_has_a_control_without_one() -> None:
    """The pack's own cases show that the bug is in the backward alone."""
    found = 0
    for slug, pack in PACKS.items():
        rules = [rule for trigger in pack.get("trigger", []) for rule in trigger.get("code", [])]
        if any(rule.get("needs_gradient") for rule in rules):
            roles = {case["axes"].get("scenario"): case["role"] for case in pack["cases"]}
            assert roles["no_grad"] == roles["inference_mode"] == "control", slug
            found += 1
    assert found


SIZES = [(slug, trigger) for slug, pack in PACKS.items() for trigger in pack.get("trigger", []) if "size" in trigger]


def at(record: Any, pointer: str) -> float:
    """The number there, or the mean of the numbers."""
    for part in pointer.split("/")[1:]:
        record = record[int(part)] if isinstance(record, list) else record[part]
    return statistics.mean(record) if isinstance(record, list) else record


@pytest.mark.parametrize(("slug", "trigger"), SIZES, ids=[f"{slug}-{trigger['class']}" for slug, trigger in SIZES])
def test_a_size_is_what_its_record_shows(slug: str, trigger: dict[str, Any]) -> None:
    size = trigger["size"]
    record = json.loads((ROOT / "reports/evidence" / size["record"]).read_text())
    for side in ("wrong", "right"):
        digits = len(str(size[side]).partition(".")[2])
        assert round(at(record, size[f"{side}_at"]), digits) == size[side], (slug, side)
    release = size["of"].partition(" on ")[0]
    package, _, version = release.partition(" ")
    assert json.dumps(record).count(version) and package in {one["name"] for one in PACKS[slug]["upstreams"]}


def test_a_hit_says_its_size_and_its_record(project: Path) -> None:
    (project / "uv.lock").write_text(uv_lock(("transformers", "5.24.0")))
    sentence = "held-out loss of a token after 200 optimizer steps 2.16 instead of 1.52 (transformers 5.24.0 on a CPU, "
    for name in ("table", "markdown", "github", "sarif", "cyclonedx", "openvex"):
        said = scan("uv.lock", "--pack", "trainer_grad_accumulation", "--format", name, cwd=project, COLUMNS="300").stdout
        assert sentence in said.replace("\\", ""), name
    (one,) = document("uv.lock", "--pack", "trainer_grad_accumulation", cwd=project)[1]["answers"]
    rows = {row["class"]: (row["size"], row["size_record"]) for row in one["classes"]}
    assert rows["mean_of_means"][0].startswith(sentence) and (ROOT / rows["mean_of_means"][1]).is_file()
    assert rows["first_label_counted"] == ("", ""), "1.52 instead of 1.52 is no size"
