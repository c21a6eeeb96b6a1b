"""Pack 22 on real transformers releases, on the CPU: each release has its classes."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers import answer, case_words, need_reproducer, seen

SLUG = "trainer_grad_accumulation"
need_reproducer(SLUG)

CASES = ("reads_uneven", "unlisted_uneven", "none_uneven", "none_even", "ignores_even", "unshifted_uneven", "none_single")


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("4.45.2", ("mean_of_means", "mean_of_means", "mean_of_means", "absent", "absent", "mean_of_means")),
        ("4.46.1", ("absent", "absent", "scaled_by_steps", "scaled_by_steps", "scaled_by_steps", "first_label_left_out")),
        ("4.47.1", ("first_label_counted", "first_label_counted", "scaled_by_steps", "scaled_by_steps", "scaled_by_steps", "absent")),
        ("5.24.0", ("absent", "first_label_counted", "mean_of_means", "absent", "scaled_by_steps", "absent")),
    ],
)
def test_each_release_has_its_classes(tmp_path: Path, version: str, found: tuple[str, ...]) -> None:
    chosen = case_words(*CASES)
    _, document = answer(tmp_path, "reproduce", SLUG, version, *chosen, "--device", "cpu")
    assert seen(document, "upstream") == dict(zip(CASES, (*found, "absent"), strict=True))


def test_the_model_has_the_classes_of_the_red_pin(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "model")
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(mean_of_means)")
    found = seen(document, "model")
    assert {found[name] for name in CASES} == {"absent", "first_label_counted", "mean_of_means", "scaled_by_steps"}
