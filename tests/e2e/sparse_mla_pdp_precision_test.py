"""Pack 14 without a GPU: the sweep at short contexts, the release's kernels run as written, and where TileLang puts their buffers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from answers import BIN, ROOT, answer, need_reproducer, seen, whole_cases

SLUG = "sparse_mla_pdp_precision"
need_reproducer(SLUG)
CASES = {case["name"]: case for case in whole_cases(SLUG)}
sys.path.insert(0, str(ROOT / f"repro/{SLUG}"))
import shared_memory  # noqa: E402: a cell of the pack


def swept(tmp_path: Path, subject: str, *names: str) -> dict[str, dict]:
    """case -> observation of sweeps cut to three contexts; the manifest's go to 64k and take minutes."""
    cases = [{key: CASES[name][key] for key in ("name", "role", "judged_on")} for name in names]
    for case in cases:
        case["axes"] = CASES[case["name"]]["axes"] | {"contexts": [1024, 2048, 4096]}
    (tmp_path / "cases.json").write_text(json.dumps({"slug": SLUG, "classes": ["precision_lost", "drift"], "cases": cases}))
    words = [
        "--cases",
        tmp_path / "cases.json",
        "--subject",
        subject,
        "--device",
        "cpu",
        "--seed",
        "1",
        "--work",
        tmp_path,
        "--records-fd",
        "1",
    ]
    done = subprocess.run([BIN / f"repro_{SLUG}", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {o["case"]: o for o in map(json.loads, done.stdout.splitlines())}


def test_staging_does_not_drift_and_sums_in_bf16_would_be_seen_to(tmp_path: Path) -> None:
    names = ("sweep_mean_pdp_bf16", "sweep_iid_pdp_bf16")
    assert {o["seen"] for o in swept(tmp_path, "model", *names).values()} == {"absent"}
    assert {o.get("class") for o in swept(tmp_path, "model_mutant:sums_bf16", *names).values()} == {"drift"}


def test_staging_drifts_on_sink_data_alone(tmp_path: Path) -> None:
    case = "sweep_sink_pdp_bf16"
    assert swept(tmp_path, "model", case)[case]["class"] == "drift"
    assert swept(tmp_path, "model_fixed", case)[case]["seen"] == "absent"


def test_a_staging_of_four_bits_would_be_seen_to_cost(tmp_path: Path) -> None:
    names = ("sweep_mean_today", "sweep_sink_today")
    assert {o["seen"] for o in swept(tmp_path, "model", *names).values()} == {"absent"}
    assert {o.get("class") for o in swept(tmp_path, "model_mutant:staged_in_4_bits", *names).values()} == {"precision_lost"}


def test_the_op_keeps_what_rounding_took_and_stages_in_two_terms(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "op", "--draw", "0")
    assert (status, document["sentinel"]) == (0, "OP_VALIDATED(few_drawn)"), document["why"]
    assert seen(document, "op")["op_sink"] == "precision_lost"
    wanted = [("op_delta_of_rounded_output", "CLAIM_CONFIRMED"), ("op_delta_of_16_bits", "CLAIM_REFUTED(precision_lost)")]
    for claim, sentinel in [*wanted, ("split_leaves_the_cast", "CLAIM_CONFIRMED")]:
        _, (found,) = answer(tmp_path, "claim", SLUG, claim)
        assert found["sentinel"] == sentinel, found["why"]


def test_the_release_loses_dq_and_the_edit_does_not(tmp_path: Path) -> None:
    delta = ("--case", "delta_mean", "--case", "delta_iid")
    status, document = answer(tmp_path, "reproduce", SLUG, *delta)
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(precision_lost)"), document["why"]
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "patched", *delta)
    assert set(seen(document, "patched").values()) == {"absent"}, (status, document)


def test_the_one_line_fix_is_turned_down_by_the_compiler(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "claim", SLUG, "one_line_fix_compiles")
    assert (status, document[0]["sentinel"]) == (0, "CLAIM_REFUTED(patch_does_not_compile)"), document


SOURCE = """
  void* Q_shared = ((void*)((char*)buf_dyn_shmem + 1024));
  for (int i = 0; i < 2; ++i) {
    *(uint4*)(((bfloat16_t*)Q_shared) + ((i * 512) + (((int)threadIdx.x) * 8))) = *(uint4*)(Q + ((int64_t)i));
  }
  for (int i_1 = 0; i_1 < 4; ++i_1) {
    AtomicAddx4((&(dKV[((int64_t)idx)])), (&(((float*)buf_dyn_shmem)[((i_1 * 128) + ((((int)threadIdx.x) & 31) * 4))])));
  }
"""


def test_bytes_are_read_off_named_and_unnamed_buffers() -> None:
    held, staged = shared_memory.bytes_of_q_and_staging(SOURCE, threads=64)
    assert (min(held), max(held), min(staged), max(staged)) == (1024, 3071, 0, 2047)
    assert len(held & staged) == 1024
    for broken in (SOURCE.replace("Q_shared)", "K_shared)"), SOURCE.replace("(i * 512)", "(j * 512)"), ""):
        with pytest.raises(shared_memory.Unread):
            shared_memory.bytes_of_q_and_staging(broken, threads=64)
