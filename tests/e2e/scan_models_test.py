"""`patchbench scan`: what the config.json of a model says of the gradient accumulation of transformers' Trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scan_test import ROOT, document, scan, uv_lock

TRAINER = "trainer_grad_accumulation"
TRAIN = "from transformers import Trainer, TrainingArguments\nTrainer(args=TrainingArguments(gradient_accumulation_steps=4))\n"
TABLE = json.loads((ROOT / f"reports/evidence/{TRAINER}/families.json").read_text())["rows"]
BUILDER = ROOT / "env/model_families.py"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "uv.lock").write_text(uv_lock(("transformers", "5.24.0")))
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "model").mkdir()
    return tmp_path


def answer(folder: Path, config: Any, *words: Any) -> tuple[int, str, str, dict[str, str]]:
    """Exit status, state, reason, and the state of each class, where a model's configuration is named with the code."""
    text = config if isinstance(config, str) else json.dumps(config, indent=1)
    (folder / "model/config.json").write_text(text)
    code = words or ("--code", "train.py", "--code", "model/config.json")
    status, found = document("uv.lock", *code, "--pack", TRAINER, cwd=folder)
    (one,) = found["answers"]
    return status, one["state"], one["why"], {row["class"]: row["condition_state"] for row in one["classes"]}


def config(*names: str, **more: Any) -> dict[str, Any]:
    return {"architectures": list(names), "model_type": "x"} | more


def test_a_model_class_that_is_right_does_not_meet_the_condition(project: Path) -> None:
    status, state, why, classes = answer(project, config("LlamaForCausalLM"))
    assert (status, state, why) == (0, "present", "condition not met (model/config.json:2: LlamaForCausalLM)")
    assert set(classes.values()) == {"not met"}


def test_a_model_class_that_is_wrong_is_met_and_has_its_measured_size(project: Path) -> None:
    status, state, why, classes = answer(project, config("GPT2LMHeadModel"))
    assert (status, state, why) == (1, "hit", "first_label_counted")
    assert classes == {"first_label_counted": "met", "mean_of_means": "not met", "scaled_by_steps": "not met"}
    words = ("uv.lock", "--code", "train.py", "--code", "model/config.json", "--pack", TRAINER)
    said = " ".join(scan(*words, cwd=project, COLUMNS="100").stdout.split())
    assert "GPT2LMHeadModel (model/config.json:2): the gradient of a step" in said
    assert "is off by 0.082 of its length in 5.24.0" in said
    assert answer(project, config("BertForMaskedLM"))[2] == "scaled_by_steps"


OPEN = {
    "not measured": config("SomeForCausalLM"),
    "two that differ": config("LlamaForCausalLM", "GPT2LMHeadModel"),
    "one not measured": config("LlamaForCausalLM", "SomeForCausalLM"),
    "custom code": config("LlamaForCausalLM", auto_map={"AutoModelForCausalLM": "modeling.LlamaForCausalLM"}),
    "a text": {"architectures": "LlamaForCausalLM", "model_type": "llama"},
    "numbers": {"architectures": [1]},
    "none": {"architectures": None, "model_type": "llama"},
    "an empty list": config(),
    "no key": {"model_type": "llama"},
    "one inside": config("LlamaForCausalLM", vision_config={"architectures": ["Other"]}),
    "twice": '{"architectures": ["GPT2LMHeadModel"],\n"architectures": ["LlamaForCausalLM"], "model_type": "llama"}',
    "cut off": '{"architectures": ["LlamaForCausalLM"],\n',
    "nested": "[" * 100000,
    "of something else": {"compilerOptions": {"target": "es2020"}},
    "a list": [1, 2],
    "in upper case": config("LLAMAFORCAUSALLM"),
}


@pytest.mark.parametrize("what", OPEN)
def test_what_says_nothing_of_a_model_class_clears_nothing(project: Path, what: str) -> None:
    status, state, _, classes = answer(project, OPEN[what])
    assert (status, state, classes["first_label_counted"]) == (1, "hit", "met")
    if what == "of something else":
        assert "config.json" not in scan("uv.lock", "--code", "model/config.json", "--pack", TRAINER, cwd=project).stdout


def test_a_configuration_that_is_found_below_a_folder_clears_nothing(project: Path) -> None:
    """The code may train another model; that a class is wrong is told."""
    for words in (("--code", "."), ("--code", "model", "--code", "train.py")):
        assert answer(project, config("LlamaForCausalLM"), *words)[:2] == (1, "hit")
    status, found = document(".", "--pack", TRAINER, cwd=project)
    assert (status, found["answers"][0]["state"]) == (1, "hit")
    answer(project, config("GPT2LMHeadModel"))
    (one,) = document(".", "--pack", TRAINER, cwd=project)[1]["answers"]
    assert "GPT2LMHeadModel" in next(row["size"] for row in one["classes"] if row["class"] == "first_label_counted")


@pytest.mark.parametrize(
    "line",
    ["import peft", "from trl import SFTTrainer", "class M(LlamaForCausalLM): ...", "class T(Trainer): ...", "x.compute_loss = f",
     "A(label_smoothing_factor=0.1)", "use_liger_kernel = True", "A(deepspeed='ds.json')", "config.loss_type = 'Other'"],
)  # fmt: skip
def test_another_loss_or_loop_than_the_measured_one_leaves_it_open(project: Path, line: str) -> None:
    (project / "train.py").write_text(TRAIN + line + "\n")
    status, state, _, classes = answer(project, config("LlamaForCausalLM"))
    assert (status, state, classes["first_label_counted"]) == (1, "hit", "met")
    assert "was not measured" in scan("uv.lock", "--code", "train.py", "--code", "model/config.json", cwd=project).stdout


@pytest.mark.parametrize("spec", ["5.20.1", "4.44.0"])
def test_a_release_that_was_not_measured_is_open(project: Path, spec: str) -> None:
    assert all(row["release"] != spec for row in TABLE)
    (project / "uv.lock").write_text(uv_lock(("transformers", spec)))
    assert answer(project, config("LlamaForCausalLM"))[:2] == (1, "hit")


def test_each_row_of_the_table_names_classes_that_the_pack_has(project: Path) -> None:
    known = {one["name"] for one in json.loads((ROOT / f"packs/{TRAINER}/manifest.json").read_text())["classes"]} | {"unexplained"}
    assert TABLE and all(set(row["classes"]) <= known for row in TABLE)
    for row in TABLE:
        is_right = all(one["off"] < 1e-3 and abs(one.get("loss", 1) - 1) < 2e-3 for one in row["cases"].values())
        assert is_right == (not row["classes"]), row
        assert row["off"] == max(one["off"] for one in row["cases"].values())
    for release in {row["release"] for row in TABLE if {"divided_twice"} & set(row["classes"])}:
        assert not any(row["release"] == release and not row["classes"] for row in TABLE), release


def test_the_program_that_measures_says_what_it_needs() -> None:
    for words, said in ((["measure"], "model_families.py measure"), (["measure", "1.0"], "1.0 is no release of env/pins.json")):
        found = subprocess.run([sys.executable, BUILDER, *words], capture_output=True, text=True, env=os.environ, check=False)
        assert found.returncode != 0 and said in found.stderr
