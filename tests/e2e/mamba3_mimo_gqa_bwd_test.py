"""Pack 05 on the real mamba-ssm host functions, on the CPU: refused group numbers, the edit, the op's wrong forms."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers import ROOT, answer, case_words, need_reproducer, seen, seen_of_model, seen_of_wrong_op, takes_minutes

SLUG = "mamba3_mimo_gqa_bwd"
need_reproducer(SLUG)


def test_the_release_refuses_groups_and_the_edit_reduces_them(tmp_path: Path) -> None:
    cases = ("dense_2_groups", "packed_4_groups", "half_bias_1_group", "dense_1_groups", "packed_8_groups")
    status, document = answer(tmp_path, "validate", SLUG, *case_words(*cases))
    assert (status, document["sentinel"]) == (0, "FIX_VALIDATED(named_cases)"), document["why"]
    before = seen(document, "upstream")
    assert before["dense_2_groups"] == before["packed_4_groups"] == "groups_refused"
    assert before["dense_1_groups"] == before["packed_8_groups"] == "absent"
    assert before["half_bias_1_group"] == "bias_in_input_dtype"
    assert set(seen(document, "patched").values()) == {"absent"}


def test_the_flat_tiles_of_another_edit_are_judged_too(tmp_path: Path) -> None:
    edit = ROOT / "patches/mamba3_mimo_smem_2d/0001-flatten-tiles.edit"
    cases = ("dense_2_groups", "dense_1_groups", "packed_8_groups")
    _, document = answer(tmp_path, "validate", SLUG, "--edit", edit, *case_words(*cases))
    assert seen(document, "patched") == {"dense_2_groups": "groups_refused", "dense_1_groups": "absent", "packed_8_groups": "absent"}


WRONG_IN = {  # right on small cases of ordinary gradients: groups of more than 8 heads, large gradients, tiny ones
    "dense_model_counts": "dx_heads = dx_heads if dx_heads.shape[3] // num_groups <= 8 else dx_heads * 1.01",
    "dense_gradient_65536": "dx_heads = dx_heads.clamp(-1e4, 1e4)",
    "dense_gradient_1e_7": "dx_heads = dx_heads.masked_fill(dx_heads.abs() < 1e-8, 0)",
}


@takes_minutes
def test_a_fix_that_is_wrong_in_regions_is_red_in_each(tmp_path: Path) -> None:
    _, shown = answer(tmp_path, "patch", "show", SLUG)
    right, first = shown[0]["diff"], "dx_bias = dx_heads.sum("
    assert right.count(first) == 1
    candidate = tmp_path / "candidate.diff"
    candidate.write_text(right.replace(first, "; ".join([*WRONG_IN.values(), first])))
    cases = ("dense_1_groups", "dense_2_groups", "packed_4_groups", *WRONG_IN)
    status, document = answer(tmp_path, "validate", SLUG, "--edit", candidate, *case_words(*cases))
    found = seen(document, "patched")
    assert (status, document["sentinel"]) == (1, "FIX_REJECTED")
    assert {name for name, state in found.items() if state == "absent"} == {"dense_1_groups", "dense_2_groups", "packed_4_groups"}


def test_a_layer_cut_in_parts_mixes_groups_of_several_ranks(tmp_path: Path) -> None:
    cases = ("parts_1_groups_2", "parts_2_groups_2", "parts_2_groups_2_one_rank", "parts_2_one_group")
    _, document = answer(tmp_path, "reproduce", SLUG, *case_words(*cases))
    found = seen(document, "upstream")
    assert found.pop("parts_2_groups_2") == "groups_mixed" and set(found.values()) == {"absent"}


def test_a_release_without_the_layer_has_no_verdict(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "2.3.1")
    assert status == 3 and set(seen(document, "upstream").values()) == {"unsupported"}


def test_the_op_holds(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "op", "--draw", "0")
    assert (status, document["sentinel"]) == (0, "OP_VALIDATED(few_drawn)"), document["why"]


@pytest.mark.parametrize("mutant", ["strided_groups", "rounded_biases"])
def test_a_wrong_op_is_red(tmp_path: Path, mutant: str) -> None:
    assert seen_of_wrong_op(tmp_path, SLUG, mutant, "reduce_4_groups_half") == "present"


@pytest.mark.parametrize("mutant", ["packed_as_one", "no_trapezoid", "turned_backwards"])
def test_a_wrong_backward_is_red(tmp_path: Path, mutant: str) -> None:
    assert seen_of_wrong_op(tmp_path, SLUG, mutant, "whole_packed") == "present"


def test_the_model_refuses_the_same_groups_as_the_release(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "model", "--device", "cpu", "--explain")
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(groups_refused)"), document["why"]
    explained = {(one["class"], one["site"]): one["rules"] for one in document["explained"]}
    assert explained["groups_refused", "backward"] == ["red where num_groups < num_heads and num_groups > 1", "green"]
    found = seen(document, "model")
    assert found["dense_2_groups"] == found["packed_4_groups"] == found["half_2_groups"] == "groups_refused"
    assert found["half_bias_1_group"] == found["half_bias_overflow"] == "bias_in_input_dtype"
    assert {found[name] for name in ("dense_1_groups", "packed_1_groups", "dense_8_groups", "packed_8_groups")} == {"absent"}
    assert set(seen_of_model(tmp_path, SLUG, "model_fixed").values()) == {"absent"}


WRONG_FORMS = {
    "bias_in_input_dtype": ("half_bias_1_group", "bias_in_input_dtype"),
    "bias_of_groups": ("dense_2_groups", "wrong_gradients"),
    "groups_strided": ("packed_4_groups", "wrong_gradients"),
    "groups_averaged": ("dense_six_heads", "wrong_gradients"),
}


@pytest.mark.parametrize("mutant", WRONG_FORMS)
def test_a_wrong_form_of_the_model_is_red(tmp_path: Path, mutant: str) -> None:
    case, failure = WRONG_FORMS[mutant]
    assert seen_of_model(tmp_path, SLUG, f"model_mutant:{mutant}")[case] == failure
