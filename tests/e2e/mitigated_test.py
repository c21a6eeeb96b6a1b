"""The plain command on each pack that has a mitigation: what the release does wrong is right with it, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from answers import PROGRAM, ROOT, answer, need_reproducer

MANIFESTS = {path.parent.name: json.loads(path.read_text()) for path in sorted(ROOT.glob("packs/*/manifest.json"))}
MITIGATED = [slug for slug, manifest in MANIFESTS.items() if "mitigated" in manifest["subjects"]]
need_reproducer("sparse_mla_dims")


@pytest.mark.parametrize("slug", MITIGATED)
def test_upstream_is_red_and_with_the_mitigation_green(tmp_path: Path, slug: str) -> None:
    status, document = answer(tmp_path, "reproduce", slug, "--subject", "mitigated", "--device", "cpu", "--draw", "0")
    assert (status, document["sentinel"]) == (0, "MITIGATION_VERIFIED(few_drawn)"), document["why"]
    groups = MANIFESTS[slug]["mitigation"].get("leaves", [])
    on_cpu = {case["name"] for case in MANIFESTS[slug]["cases"] if "cpu" in case["judged_on"]}
    left = {case for group in groups for case in group["cases"]} & on_cpu
    run = {o["case"] for s in document["subjects"] for o in s["observations"] if o["subject"] == "mitigated"}
    assert not left & run
    # Each is red without the mitigation: the answer names it.
    assert set(filter(None, document["why"].partition("left: ")[2].partition(";")[0].split(", "))) == left


def error_of(tmp_path: Path, *words: str) -> str:
    """What a command that ends with 2 before it has run anything says."""
    ledger = os.environ | {"PATCHBENCH_LEDGER": str(tmp_path / "ledger.db")}
    done = subprocess.run([PROGRAM, "reproduce", *words], env=ledger, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_what_cannot_be_asked_is_said_in_a_line(tmp_path: Path) -> None:
    of = error_of(tmp_path, "fp8_storage_dispatch", "--subject", "mitigated", "transformer-engine")
    assert of == "patchbench: fp8_storage_dispatch: the mitigation acts on megatron-core, not on transformer-engine\n"
    left = error_of(tmp_path, "sparse_mla_dims", "--subject", "mitigated", "--case", "silent_80_64")
    assert left.startswith("patchbench: sparse_mla_dims: case 'silent_80_64' is not for 'mitigated': they ask that")
    other = error_of(tmp_path, "sparse_mla_dims", "--subject", "op", "--case", "declined_128_64")
    assert other == "patchbench: sparse_mla_dims: case 'declined_128_64' is not for 'op': it is for upstream\n"
    mode = error_of(tmp_path, "fp8_storage_dispatch", "--subject", "mitigated:fp9")
    assert mode == "patchbench: fp8_storage_dispatch: --subject mitigated:fp9: the mitigation has no mode 'fp9'; did you mean fp8?\n"
    assert error_of(tmp_path, "--all", "--subject", "mitigatd") == "patchbench: no pack has a subject 'mitigatd'\n"
