"""Calls the sites of the installed megatron-core that a captured step passes, with the capture detectors around them."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import capture_check
import torch
from subject_runtime import Case, Unsupported

PACKAGE = "megatron.core"
ONE_RANK = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1))
SITES = {
    "index_mask": ("dsa_masking", "scatter_topk_into_index_mask"),
    "loss_forward": ("dsa", "compute_dsa_indexer_loss"),
    "loss_backward": ("dsa", "bwd_fused_indexer_loss_naive"),
    "packed_positions": ("dsa_layout", "build_packed_allgather_cp_local_positions"),
    "varlen_bounds": ("dsa_masking", "build_fused_indexer_varlen_bounds"),
}


def find(module: str, name: str) -> Callable[..., Any]:
    """A function of the release's attention variant; Unsupported where the release has none of that name."""
    try:
        found = getattr(importlib.import_module(f"megatron.core.transformer.experimental_attention_variant.{module}"), name, None)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise Unsupported(f"this release has no {module}.{name}")
    return found


def words_of(case: Case, device: str) -> dict[str, Any]:
    """The arguments by name, on fresh tensors: some of the functions write into theirs."""
    axes, words = case.axes, {name: tensor.clone() for name, tensor in case.tensors.items()}
    if axes["site"].startswith("loss"):
        scale = 1 / math.sqrt(axes["head_dim"])
        words |= {"softmax_scale": scale, "loss_coeff": 0.7, "sparse_loss": axes["sparse_loss"], "pg_collection": ONE_RANK, "mask": None}
    if axes["site"] == "packed_positions":
        words |= {"cp_size": axes["cp_size"], "cp_rank": axes["cp_rank"], "device": torch.device(device)}
        words |= {"output_size": sum(axes["seqlens"]) // axes["cp_size"] + axes["padding"]}
    if axes["site"] == "varlen_bounds":
        absent = dict.fromkeys(("mask", "varlen_starts", "varlen_ends", "key_positions"))
        words = absent | words | {"sq": axes["seqlen"], "skv": axes["seqlen"], "device": torch.device(device)}
    return words


def as_if_capturing() -> Any:
    """Code that asks torch whether a capture is under way is told so; without a driver the first question alone raises."""
    return mock.patch.multiple(torch.cuda, is_current_stream_capturing=lambda: True, is_initialized=lambda: True)


def breaks(case: Case, call: Callable[[str], Any], function: Callable[..., Any], words: Callable[[str], dict[str, Any]]) -> float:
    """On a GPU in how many of the three modes the call is not captured; without one at how many places it would not be."""
    if case.device != "cpu":
        return sum(not one.captured for one in capture_check.check_capture(lambda: call(case.device), within="megatron"))
    if case.axes["site"] == "varlen_bounds":  # may decline before it looks at a tensor, of which a fake run makes nothing
        with as_if_capturing():
            report = capture_check.check_reads(lambda: call("cpu"), within="megatron")
    else:
        report = capture_check.check_fake(function, within="megatron", **words("cuda:0"))
    if report.stopped and not report.sites:
        raise RuntimeError(f"the detector ended early: {report.stopped}")
    for site, count in report.sites:
        print(f"{case.name}: {count} x {site.kind} {site.op} {site.file}:{site.line} {site.function}")
    return sum(count for _, count in report.sites)


def accepted_while_capturing(case: Case, call: Callable[[str], Any]) -> bool:
    """Whether the bounds are built while the stream captures; a capture that fails has not accepted."""
    if case.device == "cpu":
        with as_if_capturing():
            return call("cpu") is not None
    accepted = []
    capture_check.check_capture(lambda: accepted.append(torch.cuda.is_current_stream_capturing() and call(case.device) is not None))
    return any(accepted)


def run(case: Case) -> dict[str, torch.Tensor]:
    """The site's values and how often it would break a capture."""
    function, site = find(*SITES[case.axes["site"]]), case.axes["site"]

    known = inspect.signature(function).parameters
    if case.axes.get("padding") and "cu_seqlens_cover_output" not in known:
        raise Unsupported("this release knows no padding rows")

    def words(device: str) -> dict[str, Any]:
        return {name: value for name, value in words_of(case, device).items() if name in known}

    def call(device: str) -> Any:
        return function(**words(device))

    if site == "index_mask":
        given = words(case.device)
        function(**given)
        values = {"index_mask": given["index_mask"]}
    elif site == "varlen_bounds":
        found = {"eager": call(case.device) is not None, "capturing": accepted_while_capturing(case, call)}
        values = {f"accepted_{when}": torch.tensor(float(is_there)) for when, is_there in found.items()}
    else:
        names = {"loss_forward": ("loss",), "loss_backward": ("grad_q", "grad_weights", "grad_k")}.get(site, ("positions",))
        result = call(case.device)
        values = dict(zip(names, result if isinstance(result, tuple) else (result,), strict=True))
    if case.axes.get("detect", True):
        values["capture_breaks"] = torch.tensor(float(breaks(case, call, function, words)))
    return values
