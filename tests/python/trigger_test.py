"""The rules of each manifest's `trigger` are what an exploration on record found."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "env"))
import records  # noqa: E402

TRIGGERS = [
    (manifest.parent.name, trigger)
    for manifest in sorted(ROOT.glob("packs/*/manifest.json"))
    for trigger in json.loads(manifest.read_text()).get("trigger", [])
    if "rules" in trigger
]


def found(slug: str, digests: list[str]) -> list[dict[str, Any]]:
    """What the explorations explained whose verdicts have these digests."""
    texts = [text for file in sorted((ROOT / "reports/evidence" / slug).glob("*.jsonl")) for text in records.records_of(file)]
    known = {hashlib.sha256(text.encode()).hexdigest() for text in texts}
    assert known.issuperset(digests), f"{slug}: no record has a digest that its trigger names"
    found = [json.loads(text)["predicate"] for text in texts if '"explained":' in text]
    return [one for predicate in found if predicate["verdict"] in digests for one in predicate["explained"]]


def test_four_triggers_were_found() -> None:
    assert {slug for slug, _ in TRIGGERS} >= {"dsa_graph_capture", "liger_flce_none_bwd", "mamba3_mimo_gqa_bwd", "sparse_mla_dims"}


@pytest.mark.parametrize(("slug", "trigger"), TRIGGERS, ids=[f"{slug}-{one['class']}-{one.get('site', '')}" for slug, one in TRIGGERS])
def test_the_rules_are_those_that_were_found(slug: str, trigger: dict[str, Any]) -> None:
    of_class = [one for one in found(slug, trigger["records"]) if one["class"] == trigger["class"]]
    sites = [one for one in of_class if trigger.get("site", one["site"]) == one["site"]]
    assert trigger["rules"] in [one["rules"] for one in sites], sites
