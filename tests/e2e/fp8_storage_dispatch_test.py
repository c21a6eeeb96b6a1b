"""Pack 03 on the real TransformerEngine classes and the real Megatron dispatcher, on the CPU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from answers import PROGRAM, ROOT, answer, case_words, need_reproducer, seen, seen_of_wrong_op

SLUG = "fp8_storage_dispatch"
need_reproducer(SLUG)


def test_the_wrapper_hands_out_null_and_the_table_tells_call_from_call(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG)
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(raw_null)")
    cases = seen(document, "upstream")
    assert cases["raw_null"] == cases["mxfp8_dlpack"] == cases["call_contiguous"] == "raw_null"
    assert cases["call_permute"] == cases["call_registered_op"] == "silent_dense"
    assert cases["call_dequantize"] == cases["dense_pointer"] == "absent"
    assert "silent_dense" not in cases  # the dispatcher's cases belong to the other upstream
    ledger = os.environ | {"PATCHBENCH_LEDGER": str(tmp_path / "ledger.db")}
    shown = subprocess.run([PROGRAM, "status", "cases", SLUG], env=ledger, capture_output=True, text=True).stdout
    row = next(line for line in shown.splitlines() if line.startswith("call_permute"))
    assert "silent_dense" in row and "2.20.2" in row


def test_the_dispatcher_is_fooled_and_the_edits_read_the_stored_bytes_or_decline(tmp_path: Path) -> None:
    kernel = ("null_at_the_kernel", "mxfp8_at_the_kernel", "columnwise_only_at_the_kernel")
    few = case_words("silent_dense", "mixed_operands_kv", *kernel, "entry_training", "guard_float8", "no_fp8_variant")
    _, document = answer(tmp_path, "validate", SLUG, "megatron-core", *few)
    assert seen(document, "upstream") == dict.fromkeys(kernel, "raw_null") | {
        "silent_dense": "silent_dense", "mixed_operands_kv": "silent_dense", "entry_training": "silent_dense",
        "guard_float8": "guard_fooled", "no_fp8_variant": "silent_dense",
    }  # fmt: skip
    after = seen(document, "patched")
    assert after.pop("no_fp8_variant") == "unsupported" and set(after.values()) == {"absent"}  # it asks what is done without a variant
    edits = [edit for edit in (ROOT / "patches" / SLUG).glob("mutant-*.edit") if "Upstream: megatron-core" in edit.read_text()]
    mutants = {edit.stem: seen(document, edit.stem.replace("-", ":", 1)) for edit in edits}
    assert len(mutants) == 8 and all(set(found.values()) - {"absent", "unsupported"} for found in mutants.values()), mutants


def test_the_proposal_to_the_wrapper_holds(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "validate", SLUG)
    assert (status, document["sentinel"]) == (0, "FIX_VALIDATED"), document["why"]
    assert seen(document, "patched")["call_permute"] == "silent_dense"  # by the wrapper's design, before and after


def test_a_release_without_the_dispatcher_has_no_verdict(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "megatron-core@0.18.2")
    assert status == 3 and seen(document, "upstream")["silent_dense"] == "unsupported"


@pytest.mark.parametrize("claim", ["mode_dequantize_gives_stored_values", "mode_fp8_attends_over_stored_bytes"])
def test_a_mode_of_the_mitigation_does_what_it_says(tmp_path: Path, claim: str) -> None:
    status, documents = answer(tmp_path, "claim", SLUG, claim, "--device", "cpu")
    assert (status, documents[0]["sentinel"]) == (0, "CLAIM_CONFIRMED"), documents[0]["why"]


def of_attention(cases: dict[str, str]) -> set[str]:
    """What was seen in the cases of attention. The indexer is left to the release."""
    assert {cases[name] for name in cases if name.startswith("indexer_") and "_dense" not in name} <= {"raw_null", "silent_dense"}
    return {what for name, what in cases.items() if not name.startswith("indexer_")}


def test_mode_fp8_hands_over_no_null_and_no_copy(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "mitigated:fp8", "--device", "cpu", "--draw", "0")
    assert (status, document["sentinel"]) == (0, "MITIGATION_VERIFIED(fp8, few_drawn)"), document["why"]
    assert of_attention(seen(document, "mitigated:fp8")) == {"absent"}


def test_mode_dequantize_has_no_answer_for_mxfp8_without_a_gpu(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "mitigated:dequantize", "--device", "cpu", "--draw", "0")
    assert (status, document["why"]) == (3, "mxfp8_at_the_kernel was not judged green")
    cases = seen(document, "mitigated:dequantize")
    assert {cases.pop(name) for name in ("silent_dense_mxfp8", "mxfp8_at_the_kernel")} == {"unsupported"}
    assert of_attention(cases) == {"absent"}


@pytest.mark.parametrize(("subject", "sentinel"), [("model", "BUG_REPRODUCED(raw_null)"), ("op", "OP_VALIDATED(few_drawn)")])
def test_the_model_and_the_op(tmp_path: Path, subject: str, sentinel: str) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", subject, *(("--draw", "0") if subject == "op" else ()))
    assert (status, document["sentinel"]) == (0, sentinel), document["why"]


@pytest.mark.parametrize("mutant", ["sentinel_is_key_zero", "query_unscaled", "dense"])
def test_a_wrong_op_is_red(tmp_path: Path, mutant: str) -> None:
    assert seen_of_wrong_op(tmp_path, SLUG, mutant, "attention_token") == "present"
