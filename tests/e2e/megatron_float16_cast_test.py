"""Pack 16 on real megatron-core releases, on the CPU: every form of the wrapper rounds a mixer's float32 parameters and what is marked."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers import answer, case_words, need_reproducer, seen

SLUG = "megatron_float16_cast"
need_reproducer(SLUG)

WANTED = {
    **dict.fromkeys(("bf16_mamba_mixer", "fp16_mamba3", "bf16_mamba3_mimo", "bf16_mamba3_mimo_gradients", "bf16_mamba_mixer_wrapped_twice",
                     "bf16_mamba_mixer_derived", "fp16_mamba3_mimo_tied_after", "bf16_mamba3_mimo_frozen", "bf16_mamba3_marked_buffer"),
                    "mixer_parameters_rounded"),
    "bf16_mixer": "fp32_lost", "fp16_mixer": "fp32_lost", "bf16_buffer": "fp32_lost", "bf16_gradients": "fp32_lost",
    "bf16_1000_steps_in_place": "steps_rounded", "bf16_1000_steps_main_params": "fp32_lost", "fp16_unmarked_beyond_range": "absent",
    "bf16_unmarked": "absent", "bf16_unmarked_gradients": "absent",
}  # fmt: skip


@pytest.mark.parametrize("version", ["0.15.0", "0.17.1", "0.18.2", "0.19.2"])
def test_each_form_of_the_wrapper_rounds_what_must_stay(tmp_path: Path, version: str) -> None:
    chosen = case_words(*WANTED)
    _, document = answer(tmp_path, "reproduce", SLUG, version, *chosen, "--device", "cpu")
    assert seen(document, "upstream") == WANTED


def test_the_model_has_the_classes_of_the_red_pin(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "model")
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(mixer_parameters_rounded)")
    assert {name: seen(document, "model")[name] for name in WANTED} == WANTED
