"""Pack 07 on the real kernels and a real TileLang, without a GPU: what lowers with TMA on, before and after the edit; its op."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers import answer, need_reproducer, seen, seen_of_model, seen_of_wrong_op

SLUG = "mamba3_mimo_smem_2d"
need_reproducer(SLUG)
FORWARD = ("--case", "forward_tma", "--case", "forward_plain")


def test_the_release_does_not_lower_with_tma(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, *FORWARD)
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(tma_lowering_fails)"), document["why"]
    assert seen(document, "upstream") == {"forward_tma": "tma_lowering_fails", "forward_plain": "absent"}


def test_the_edit_lowers_and_loads_through_tma(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "patched", *FORWARD)
    assert set(seen(document, "patched").values()) == {"absent"}, (status, document)
    by_case = {o["case"]: o for s in document["subjects"] for o in s["observations"]}
    assert by_case["forward_tma"]["self_reported"]["numbers"]["tma_loads"] > 0
    assert by_case["forward_plain"]["self_reported"]["numbers"]["tma_loads"] == 0


def test_another_tilelang_stands_beside(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "mamba-ssm", "tilelang@0.1.15", *FORWARD)
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(tma_not_used)"), document["why"]


def test_the_op_is_right(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "op", "--device", "cpu", "--draw", "0")
    assert (status, document["sentinel"]) == (0, "OP_VALIDATED(few_drawn)"), document["why"]


@pytest.mark.parametrize("mutant", ["transposed_ranks", "strided_groups", "shifted_in_rank3"])
def test_a_wrong_op_is_seen(tmp_path: Path, mutant: str) -> None:
    assert seen_of_wrong_op(tmp_path, SLUG, mutant, "products_4_ranks") == "present"


def test_the_model_copies_flat_tiles_in_bulk_and_no_rank_3_ones(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "model", "--device", "cpu")
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(tma_lowering_fails)"), document["why"]
    assert set(seen_of_model(tmp_path, SLUG, "model_fixed").values()) == {"absent"}


@pytest.mark.parametrize("mutant", ["products_rank3", "read_transposed", "rows_rank_major", "second_tile", "unswizzled"])
def test_a_wrong_form_of_the_model_is_seen(tmp_path: Path, mutant: str) -> None:
    assert seen_of_model(tmp_path, SLUG, f"model_mutant:{mutant}")["tiles_4_ranks_tma"] == "undeclared"
