"""Pack 01 on the real megatron-core, on the CPU: the sites that break a capture, the index that is rejected, the edits."""

from __future__ import annotations

import subprocess
from pathlib import Path

from answers import PROGRAM, answer, case_words, need_reproducer, seen

SLUG = "dsa_graph_capture"
need_reproducer(SLUG)
# A trigger of each edit, a survey, a control, and gradients; the whole validation is a record.
FEW = case_words("indexer_loss_scalar", "boolean_index_positions", "item_lengths", "loss_scale_set", "indexer_loss_gradients_small")


def test_the_release_breaks_capture_outside_of_the_scatter(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG)
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(capture_illegal)")
    cases = seen(document, "upstream")
    assert cases["historic_scatter"] == cases["sentinel_index"] == "absent"
    assert cases["indexer_loss_scalar"] == cases["boolean_index_positions"] == "capture_illegal"


def test_an_older_release_rejects_the_sentinel_index(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "0.18.2")
    assert (status, document["alias"]) == (0, "SENTINEL_INDEX_REJECTED")
    assert seen(document, "upstream")["historic_scatter"] == "unsupported"


def test_the_edits_hold_and_every_mutant_is_red(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "validate", SLUG, "--draw", "0", *FEW)
    assert (status, document["sentinel"]) == (0, "FIX_VALIDATED(named_cases)"), document["why"]
    # Without an output size the length is read back by design: that case is a survey.
    assert {case: what for case, what in seen(document, "patched").items() if what != "absent"} == {"item_lengths": "capture_illegal"}
    # The edit of the scalar leaves every bit of the gradients as it was.
    observations = [o for s in document["subjects"] for o in s["observations"] if o["case"] == "indexer_loss_gradients_small"]
    outputs = {o["subject"]: o["outputs_sha256"] for o in observations}
    assert outputs["patched"] == outputs["upstream"]


def test_claims_are_settled_by_a_contrast(tmp_path: Path) -> None:
    status, documents = answer(tmp_path, "claim", SLUG, "host_scalar_breaks_capture")
    assert (status, [d["sentinel"] for d in documents]) == (0, ["CLAIM_CONFIRMED"]), documents
    wrong = subprocess.run([PROGRAM, "claim", SLUG, "host_scaler"], capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and "no claim 'host_scaler'" in wrong.stderr


def test_the_model_shows_the_historic_scatter_without_any_release(tmp_path: Path) -> None:
    status, document = answer(tmp_path, "reproduce", SLUG, "--subject", "model")
    assert (status, document["sentinel"]) == (0, "BUG_REPRODUCED(capture_illegal)")


def test_capture_check_names_the_lines_of_a_users_script(tmp_path: Path) -> None:
    script = tmp_path / "step.py"
    script.write_text("import torch\nx = torch.ones(3)\nif x.sum() > 2:\n    print('large')\n")
    found = subprocess.run([PROGRAM, "job", "capture-check", "--", "python3", script], capture_output=True, text=True)
    assert found.returncode == 1 and "step.py:3" in found.stdout, found.stderr
    script.write_text("import torch\nprint(torch.ones(3).clamp(0, 1).shape)\n")
    assert subprocess.run([PROGRAM, "job", "capture-check", "--", script], capture_output=True).returncode == 0
    wrong = subprocess.run([PROGRAM, "job", "capture-check", "--", "python9.99", script], capture_output=True, text=True)
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and "python9.99: no such program" in wrong.stderr
