"""Pack 02 on the real dispatcher and the real TileLang, without a GPU: which shapes are taken, what is said, what lowers."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers import answer, case_words, need_reproducer, seen, seen_of_wrong_op

SLUG = "sparse_mla_dims"
need_reproducer(SLUG)
FEW = case_words("declined_128_64", "declined_rope_free", "silent_80_64", "asserted_128_64", "native")


def test_the_release_declines_without_a_word_and_asserts(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, *FEW, "--case", "dense_scores", "--case", "lowers_forward_128_96")
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(shape_declined)"), document["why"]
    assert seen(document, "upstream") == {
        "declined_128_64": "shape_declined", "declined_rope_free": "shape_declined", "silent_80_64": "silent_decline",
        "asserted_128_64": "shape_asserted", "dense_scores": "dense_fallback", "lowers_forward_128_96": "shape_asserted",
        "native": "absent",
    }  # fmt: skip
    numbers = {o["case"]: o["self_reported"].get("numbers", {}) for s in document["subjects"] for o in s["observations"]}
    assert 7 < numbers["dense_scores"]["training_units"] < 8.5
    assert numbers["native"] == {"sparse_mla_fwd": 2, "preprocess": 1, "bwd": 1, "postprocess": 1}


def test_another_project_asserts_in_its_wrapper(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "nemo-automodel")
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(shape_asserted)"), document["why"]
    assert seen(document, "upstream")["automodel_native"] == "absent"


def test_tilelang_is_judged_by_megatrons_kernels_the_backward_included(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "tilelang", "--case", "lowers_backward_rope_free", "--case", "native")
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(lowering_fails)"), document["why"]
    assert seen(document, "upstream") == {"lowers_backward_rope_free": "lowering_fails", "native": "absent"}


def test_the_edit_takes_what_lowers_and_says_what_it_declines(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "patched", *FEW, "--case", "lowers_backward_rope_free")
    assert set(seen(document, "patched").values()) == {"absent"}, (status, document)


def test_the_four_edits_first_proposed_are_not_enough(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "claim", SLUG, "four_edits_are_enough")
    (one,) = document
    assert (status, one["sentinel"]) == (0, "CLAIM_REFUTED(backward_raises)"), one["why"]


@pytest.mark.parametrize(
    ("mutant", "case", "found"),
    [("recompute-width-lost", "declined_128_64", "shape_asserted"), ("multiples-of-16", "silent_80_64", "undeclared")],
)
def test_a_nearly_right_edit_is_red(tmp_path: Path, mutant: str, case: str, found: str) -> None:
    _, document = answer(tmp_path, "reproduce", SLUG, "--subject", f"mutant:{mutant}", "--case", case)
    assert seen(document, f"mutant:{mutant}") == {case: found}


def test_a_release_without_the_kernels_has_no_verdict(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "0.18.2", "--case", "declined_128_64", "--case", "native")
    assert status == 3 and seen(document, "upstream") == {"declined_128_64": "unsupported", "native": "unsupported"}


@pytest.mark.parametrize(("subject", "sentinel"), [("model", "BUG_REPRODUCED(shape_declined)"), ("op", "OP_VALIDATED(few_drawn)")])
def test_the_model_and_the_op(tmp_path: Path, subject: str, sentinel: str) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", subject, *(("--draw", "0") if subject == "op" else ()))
    assert (status, document["sentinel"]) == (0, sentinel), document["why"]


@pytest.mark.parametrize("mutant", ["sentinel_is_key_zero", "scale_of_the_width", "last_columns_lost"])
def test_a_wrong_op_is_red(tmp_path: Path, mutant: str) -> None:
    assert seen_of_wrong_op(tmp_path, SLUG, mutant, "op_96_64") == "present"
