"""Calls the sites of the installed megatron-core that a captured step passes, with the capture detectors around them."""

from __future__ import annotations

import importlib
import inspect
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import capture_check
import ranks
import torch
from subject_runtime import Case, Unsupported

PACKAGE = "megatron.core"
ONE_RANK = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1))
SITES = {
    "index_mask": ("dsa_masking", "scatter_topk_into_index_mask"),
    "loss_forward": ("dsa", "compute_dsa_indexer_loss"),
    "loss_backward": ("dsa", "bwd_fused_indexer_loss_naive"),
    "loss_scale": ("dsa", "DSAIndexerLossAutoScaler"),
    "packed_positions": ("dsa_layout", "build_packed_allgather_cp_local_positions"),
    "unsized_positions": ("dsa_layout", "build_packed_allgather_cp_local_positions"),
    "context_parallel": ("dsa", "_validate_nonpacked_cp_uniform_length"),
    "varlen_bounds": ("dsa_masking", "build_fused_indexer_varlen_bounds"),
    "eager_bounds": ("dsa_masking", "build_fused_indexer_varlen_bounds"),
    "eligible_bounds": ("dsa_masking", "build_fused_indexer_varlen_bounds"),
}
BOUNDS = ("varlen_bounds", "eager_bounds", "eligible_bounds")


def find(module: str, name: str) -> Callable[..., Any]:
    """A function of the release's attention variant; Unsupported where the release has none of that name."""
    try:
        found = getattr(importlib.import_module(f"megatron.core.transformer.experimental_attention_variant.{module}"), name, None)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise Unsupported(f"this release has no {module}.{name}")
    return found


def scaler_of(scaler: Any) -> Callable[..., Any]:
    """A call of the function that ties the indexer's loss to the attention's output, forward and backward without the engine of
    autograd, which wants a real device; before it the optimizer has set a scale or none."""

    def call(output: torch.Tensor, indexer_loss: torch.Tensor, arriving: torch.Tensor, scale: torch.Tensor | None = None) -> Any:
        scaler.main_loss_backward_scale = scale
        context = SimpleNamespace(save_for_backward=lambda *saved: setattr(context, "saved_tensors", saved))
        scaler.forward(context, output, indexer_loss)
        return scaler.backward(context, arriving)

    return call


def words_of(case: Case, device: str) -> dict[str, Any]:
    """The arguments by name; the mask, which is written in place, is a copy."""
    axes, words = case.axes, dict(case.tensors)
    if "index_mask" in words:
        words["index_mask"] = words["index_mask"].clone()
    if axes["site"] in ("loss_forward", "loss_backward"):
        scale = 1 / math.sqrt(axes["head_dim"])
        words |= {
            "softmax_scale": scale,
            "loss_coeff": axes.get("loss_coeff", 0.7),
            "sparse_loss": axes["sparse_loss"],
            "pg_collection": ONE_RANK,
            "mask": None,
            "calculate_per_token_loss": axes.get("is_per_token", False),
        }
    if axes["site"].endswith("_positions"):
        words |= {"cp_size": axes["cp_size"], "cp_rank": axes["cp_rank"], "device": torch.device(device)}
    if axes["site"] == "packed_positions":
        words |= {"output_size": sum(axes["seqlens"]) // axes["cp_size"] + axes["padding"]}
    if axes["site"] in BOUNDS:
        absent = dict.fromkeys(("mask", "varlen_starts", "varlen_ends", "key_positions"))
        words = absent | words | {"sq": axes["seqlen"], "skv": axes["seqlen"], "device": torch.device(device)}
    return words


def values_of(site: str, function: Callable[..., Any], words: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What the site computes; the mask is written in place."""
    result = function(**words)
    if site == "index_mask":
        return {"index_mask": words["index_mask"]}
    named = {"loss_forward": ("loss",), "loss_backward": ("grad_q", "grad_weights", "grad_k"), "loss_scale": ("passed_on", "scale")}
    names = named.get(site, ("positions",))
    return dict(zip(names, result if isinstance(result, tuple) else (result,), strict=True))


def rewritten(words: dict[str, Any], times: int) -> dict[str, Any]:
    """The same call on other indices: from another batch entry, and the packed sequences in another order."""
    changed = dict(words)
    if "topk_indices" in words:
        changed["topk_indices"] = words["topk_indices"].roll(times, 0).flip(-1)
    if "cu_seqlens" in words:
        changed["cu_seqlens"] = torch.cat([words["cu_seqlens"][:1], words["cu_seqlens"].diff().roll(times).cumsum(0)])
    return changed


def captured_breaks(case: Case, function: Callable[..., Any], words: Callable[[str], dict[str, Any]]) -> int:
    """Modes that do not capture the call, and of those that do the replays (three, on rewritten indices) unlike an eager call."""
    held = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in words(case.device).items()}
    values, differing = {}, []

    def step() -> None:
        if case.axes["site"] in BOUNDS:  # whether it takes them is asked apart from this
            function(**held)
        else:
            values.update(values_of(case.axes["site"], function, held))

    def replay_thrice(replay: Callable[[], None]) -> int:
        for times in (1, 2, 3) if values else ():
            fresh = rewritten(words(case.device), times)
            for name, given in fresh.items():
                if isinstance(given, torch.Tensor):
                    held[name].copy_(given)
            replay()
            wanted = values_of(case.axes["site"], function, fresh)
            differing.extend(name for name in wanted if not torch.equal(values[name], wanted[name]))
        return 3 if values else 0

    outcomes = capture_check.check_capture(step, within="megatron", played=replay_thrice)
    for one in outcomes:
        print(f"{case.name}: {one.mode}: {one.failure or f'captured, {one.replays} replays'}")
    print(f"{case.name}: replays unlike an eager call: {differing or 'none'}")
    return sum(not one.captured or one.failure is not None for one in outcomes) + len(differing)


def breaks(case: Case, call: Callable[[str], Any], function: Callable[..., Any], words: Callable[[str], dict[str, Any]]) -> int:
    """How often a capture would break: by a real one where there is a GPU, else by what the detectors find."""
    if case.device != "cpu":
        return captured_breaks(case, function, words)
    if case.axes["site"] in BOUNDS:  # may decline before it looks at a tensor, of which a fake run makes nothing
        with capture_check.as_if_capturing():
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
        with capture_check.as_if_capturing():
            return call("cpu") is not None
    accepted = []
    capture_check.check_capture(lambda: accepted.append(torch.cuda.is_current_stream_capturing() and call(case.device) is not None))
    return any(accepted)


def acceptance(case: Case, call: Callable[[str], Any]) -> dict[str, torch.Tensor]:
    """Whether the bounds are built, in eager mode and while the stream captures, as the case's site wants it told."""
    is_taken_eager, site = call(case.device) is not None, case.axes["site"]
    if site == "eager_bounds":
        return {"accepted_eager": torch.tensor(float(is_taken_eager))}
    is_taken_capturing = accepted_while_capturing(case, call)
    print(f"{case.name}: taken in eager mode: {is_taken_eager}, while capturing: {is_taken_capturing}")
    if site == "eligible_bounds":
        return {"declined_capturing": torch.tensor(float(is_taken_eager and not is_taken_capturing))}
    return {"accepted_eager": torch.tensor(float(is_taken_eager)), "accepted_capturing": torch.tensor(float(is_taken_capturing))}


def kept_from_capture(case: Case, scaler: Any, call: Callable[[str], Any]) -> torch.Tensor:
    """Whether a scale that was made while the stream captures stays: it lies in the graph's memory, and each replay overwrites it."""
    if case.device == "cpu":
        with capture_check.as_if_capturing():
            call("cpu")
    else:
        capture_check.check_capture(lambda: call(case.device))
    return torch.tensor(float(scaler.main_loss_backward_scale is not None))


def over_ranks(case: Case) -> dict[str, torch.Tensor]:
    """The context-parallel sites in as many processes as the case has ranks, each with a GPU of its own where there are any."""
    num_ranks, kind = case.axes["ranks"], case.device.split(":")[0]
    if kind == "cuda" and torch.cuda.device_count() < num_ranks:
        raise Unsupported(f"wants {num_ranks} GPUs, here is {torch.cuda.device_count()}")
    seen = ranks.run(num_ranks, kind, Path(tempfile.mkdtemp()) / case.name)
    print(f"{case.name}: {seen}")
    return {
        "uneven_rejected": torch.tensor(float(all(one["is_uneven_rejected"] for one in seen))),
        "capture_breaks": torch.tensor(float(sum(sum(one["breaks"].values()) for one in seen))),
    }


def run(case: Case) -> dict[str, torch.Tensor]:
    """The site's values and how often it would break a capture."""
    function, site = find(*SITES[case.axes["site"]]), case.axes["site"]
    function = scaler_of(function) if site == "loss_scale" else function
    if case.device == "cpu":
        torch.set_num_threads(1)  # small products: threads that wait for one another cost more than they give

    if site == "context_parallel":
        return over_ranks(case)
    known = inspect.signature(function).parameters
    if case.axes.get("padding") and "cu_seqlens_cover_output" not in known:
        raise Unsupported("this release knows no padding rows")
    if case.axes.get("is_per_token") and "calculate_per_token_loss" not in known:
        raise Unsupported("this release knows no sum over the tokens")

    def words(device: str) -> dict[str, Any]:
        return {name: value for name, value in words_of(case, device).items() if name in known}

    def call(device: str) -> Any:
        return function(**words(device))

    values = acceptance(case, call) if site in BOUNDS else values_of(site, function, words(case.device))
    if case.axes.get("detect", site != "eager_bounds"):
        values["capture_breaks"] = torch.tensor(float(breaks(case, call, function, words)))
    if case.axes.get("is_set") is False:
        values["kept_from_capture"] = kept_from_capture(case, find(*SITES[site]), call)
    return values
