"""Pack 20 on real TransformerEngine releases, on the CPU: each case has its class, damaged memory included."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from answers import PROGRAM, answer, case_words, need_reproducer, seen

SLUG = "te_fused_ce"
need_reproducer(SLUG)

RED = {
    "sum": "out_of_bounds_read", "gradient_transposed": "storage_order_gradient", "transposed_view": "transposed_view",
    "mean_ignored": "ignored_labels", "confident_fp16": "target_gradient_rounded", "sliced_logits": "sliced_sequence",
    "sliced_labels": "sliced_labels", "weights": "absent", "mean": "absent",
}  # fmt: skip


def of_cases(tmp_path: Path, names: list[str], *words: str) -> dict[str, str]:
    chosen = case_words(*names)
    _, document = answer(tmp_path, "reproduce", SLUG, *words, *chosen, "--device", "cpu")
    return seen(document, "upstream")


def test_a_release_is_red_in_seven_classes_at_once(tmp_path: Path) -> None:
    assert of_cases(tmp_path, list(RED)) == RED


@pytest.mark.parametrize(
    ("version", "wanted"),
    [
        ("2.2.0", {"mask_row0_off": "row_zero_gradient", "constant": "sum_scaled", "mean_ignored": "unsupported", "mean": "absent"}),
        ("2.18.0", {"sliced_logits": "sliced_sequence", "transposed_view": "absent", "confident_fp16": "absent", "mean": "absent"}),
        ("2.20.2", {"sum": "absent", "sliced_logits": "absent", "sliced_labels": "absent", "mean": "absent"}),
    ],
)
def test_each_class_has_a_window_of_its_own(tmp_path: Path, version: str, wanted: dict[str, str]) -> None:
    assert of_cases(tmp_path, list(wanted), version) == wanted


def test_the_model_has_the_classes_of_the_red_pin(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "model")
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(out_of_bounds_read)")
    assert {name: seen(document, "model")[name] for name in RED} == RED


def test_a_bundle_has_the_releases_of_every_class(tmp_path: Path) -> None:
    """From the committed evidence. A release is in several classes at once, and its verdict names the first of them."""
    ledger = os.environ | {"PATCHBENCH_LEDGER": str(tmp_path / "ledger.db")}
    done = subprocess.run([PROGRAM, "bundle", SLUG, tmp_path / "out"], env=ledger, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    evidence = (tmp_path / "out/evidence.md").read_text()
    window = dict(re.findall(r"^- (\w+) on cpu: transformer-engine (.*) \[", evidence, re.MULTILINE))
    assert "2.7.0" in window["row_zero_gradient"] and "2.7.0" in window["transposed_view"]
    assert "2.18.0" in window["sliced_sequence"] and "2.18.0" not in window["transposed_view"]
    assert set(RED.values()) - {"absent"} <= set(re.findall(r"\| trigger \| cpu \| `(\w+)`", evidence))
