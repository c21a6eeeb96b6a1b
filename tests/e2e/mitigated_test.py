"""The plain command on each pack that has a mitigation: what the release does wrong is right with it, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from answers import PROGRAM, ROOT, answer, case_words, need_reproducer, seen, takes_minutes

MANIFESTS = {path.parent.name: json.loads(path.read_text()) for path in sorted(ROOT.glob("packs/*/manifest.json"))}
MITIGATED = [slug for slug, manifest in MANIFESTS.items() if "mitigated" in manifest["subjects"]]
need_reproducer("sparse_mla_dims")


def planned(tmp_path: Path, slug: str) -> list[list[str]]:
    """The cases of the release and of the release with the mitigation, as the plain command runs them."""
    status, document = answer(tmp_path, "reproduce", slug, "--subject", "mitigated", "--device", "cpu", "--draw", "0", "--plan")
    upstream, mitigated = document["plan"]["steps"]
    assert (status, upstream["subject"], mitigated["subject"]) == (0, "upstream", "mitigated")
    return [upstream["cases"], mitigated["cases"]]


@pytest.mark.parametrize("slug", MITIGATED)
def test_upstream_is_red_and_with_the_mitigation_green(tmp_path: Path, slug: str) -> None:
    """On two triggers and a control; records hold what the whole of them showed, and judged_test which of these are of today."""
    upstream, mitigated = planned(tmp_path, slug)
    left = {case for group in MANIFESTS[slug]["mitigation"].get("leaves", []) for case in group["cases"]}
    assert not left & set(mitigated) and left & set(upstream) == set(upstream) - set(mitigated)
    roles = {case["name"]: case["role"] for case in MANIFESTS[slug]["cases"]}
    _, recorded = answer(tmp_path, "status", "cases", slug)
    tested = {upstream["name"]: upstream["red_pin"] for upstream in MANIFESTS[slug]["upstreams"]}
    red = {
        case
        for table in recorded
        for case, states in table["cases"].items()
        if table["device"] == "cpu" and states.get(tested[table["upstream"]], "absent") not in ("absent", "unsupported")
    }
    triggers = [case for case in mitigated if roles[case] == "trigger" and case in red][:2]
    control = next(case for case in mitigated if roles[case] == "control")
    words = ("--subject", "mitigated", "--device", "cpu", *case_words(*triggers, control))
    _, document = answer(tmp_path, "reproduce", slug, *words)
    found = seen(document, "upstream")
    assert found.pop(control) == "absent" and found and not {"absent", "unsupported"} & set(found.values()), document["why"]
    assert set(seen(document, "mitigated").values()) == {"absent"}, document["why"]


@takes_minutes
@pytest.mark.parametrize("slug", MITIGATED)
def test_every_case_is_green_with_the_mitigation(tmp_path: Path, slug: str) -> None:
    status, document = answer(tmp_path, "reproduce", slug, "--subject", "mitigated", "--device", "cpu", "--draw", "0")
    assert (status, document["sentinel"]) == (0, "MITIGATION_VERIFIED(few_drawn)"), document["why"]
    upstream, mitigated = planned(tmp_path, slug)
    # Each is red without the mitigation: the answer names it.
    assert set(filter(None, document["why"].partition("left: ")[2].partition(";")[0].split(", "))) == set(upstream) - set(mitigated)


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
