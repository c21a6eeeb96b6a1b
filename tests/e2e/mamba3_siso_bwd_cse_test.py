"""Pack 04 on the real mamba-ssm kernel, on the CPU: the redundant product, the edit that changes nothing else, the op."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers import answer, case_words, need_reproducer, seen, seen_of_model, seen_of_wrong_op

SLUG = "mamba3_siso_bwd_cse"
need_reproducer(SLUG)


def test_the_edit_is_proved_equivalent(tmp_path: Path) -> None:
    cases = ("source_dense", "packed_short", "half_one_chunk", "ptx_sm90", "whole_packed", "whole_packed_width_48")
    status, document = answer(tmp_path, "validate", SLUG, *case_words(*cases))
    assert (status, document["sentinel"]) == (0, "EQUIVALENCE_PROVED(named_cases)"), document["why"]
    before, after = seen(document, "upstream"), seen(document, "patched")
    red = {"source_dense": "redundant_product", "whole_packed_width_48": "states_overlap"}
    assert before == dict.fromkeys(cases, "absent") | {"ptx_sm90": "unjudged"} | red
    assert after == before | dict.fromkeys(red, "absent")
    # The states of the other mutants have room: what these get wrong is their own.
    room = {name: seen(document, f"mutant:{name}")["whole_packed_width_48"] for name in ("room-for-one-chunk", "product-formed-twice")}
    assert room == {"room-for-one-chunk": "states_overlap", "product-formed-twice": "absent"}
    observed = [o for s in document["subjects"] for o in s["observations"] if ":region:" not in o["subject"]]
    numbers = {name: [o["self_reported"].get("numbers") for o in observed if o["case"] == name] for name in cases}
    assert numbers["source_dense"][0] | {"file_lines": 0} == {"value_products": 3, "value_masks": 3, "file_lines": 0}
    assert all(launch == {"num_warps": 4, "num_stages": 1} for launch in numbers["half_one_chunk"])


def test_a_release_without_the_layer_has_no_verdict(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "2.3.1", "--case", "dense")
    assert status == 3 and set(seen(document, "upstream").values()) == {"unsupported"}


def test_the_op_holds(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "op", "--draw", "0")
    assert (status, document["sentinel"]) == (0, "OP_VALIDATED(few_drawn)"), document["why"]


@pytest.mark.parametrize("case", ["op_float32", "op_bfloat16_packed"])
def test_a_wrong_op_is_red(tmp_path: Path, case: str) -> None:
    assert seen_of_wrong_op(tmp_path, SLUG, "unmasked", case) == "present"


def test_the_model_forms_the_product_three_times_and_once_gives_the_same_bits(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "model", "--device", "cpu")
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(redundant_product)"), document["why"]
    # elements_changed is among what is judged: no element differs between the two forms.
    assert set(seen_of_model(tmp_path, SLUG, "model_fixed").values()) == {"absent"}


WRONG = {"formed_twice": "redundant_product", "unmasked": "undeclared", "transpose_lost": "undeclared", "modified_in_place": "undeclared"}


@pytest.mark.parametrize("mutant", WRONG)
def test_a_wrong_form_of_the_model_is_red(tmp_path: Path, mutant: str) -> None:
    found = seen_of_model(tmp_path, SLUG, f"model_mutant:{mutant}")
    assert {found[name] for name in ("counted_dense", "counted_packed", "counted_bfloat16")} == {WRONG[mutant]}
