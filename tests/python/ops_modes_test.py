"""Every op of patchbench_ops, forward and backward, in torch's modes: full graph, autocast, checkpointing, no_grad, deterministic mode;
on a GPU also CUDA graphs, streams and a second device. The gradients themselves are held against fp64 in the tests of each op."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable

import pytest
import torch
from ops_cases import ATOMIC, CASES, Case
from ops_package import OPS, patchbench_ops
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Without it torch refuses cuBLAS in deterministic mode.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
HAS_GPU = torch.cuda.is_available()
DEVICES = ["cpu", *(["cuda:0"] if HAS_GPU else [])]
on_devices = pytest.mark.parametrize("device", DEVICES)
of_cases = pytest.mark.parametrize("name", CASES)
on_a_gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU")
DIFFERENTIABLE = [name for name in CASES if CASES[name]().leaves]


def tensors_on(case: Case, device: str) -> dict[str, Tensor]:
    return {name: t.to(device).requires_grad_(name in case.leaves) for name, t in case.tensors.items()}


def gradient_like(out: Tensor) -> Tensor:
    return (torch.arange(out.numel(), device=out.device).view_as(out) / out.numel()).to(out.dtype)


def gradients(case: Case, t: dict[str, Tensor], out: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, [t[name] for name in case.leaves], gradient_like(out)) if case.leaves else ()


def results(case: Case, t: dict[str, Tensor]) -> list[Tensor]:
    """What the case gives, and its gradients."""
    got = case.run(t)
    return [*got, *gradients(case, t, got[0])]


def is_close(got: Iterable[Tensor], wanted: Iterable[Tensor], bound: float) -> bool:
    """The norm of the difference, over finite elements; the others are the same."""
    pairs = [(g.detach().double().cpu(), w.detach().double().cpu()) for g, w in zip(got, wanted, strict=True)]
    alike = all(torch.equal(g.isfinite(), w.isfinite()) for g, w in pairs)
    finite = [(g[g.isfinite()], w[w.isfinite()]) for g, w in pairs] if alike else []
    return alike and all((g - w).norm() <= bound * w.norm() for g, w in finite)


def bound_of(device: str) -> float:
    """How much two runs of the same op may differ: nothing on a CPU; on a GPU the order of float32 adds to grad_kv, or cuBLAS's choice
    in a plain forward, may move a bfloat16 by one rounding."""
    return 0 if device == "cpu" else 4e-3


def test_every_function_has_a_case() -> None:
    text = inspect.getsource(inspect.getmodule(CASES["sparse_mla"]))
    missing = [name for name in patchbench_ops.__all__ if f"patchbench_ops.{name}(" not in text and not name.endswith("_path")]
    assert missing == []
    assert {"cross_entropy", "sparse_mla", "sparse_mla_fp8_token", "mamba3_siso", "mamba3_mimo_qk_dot"} <= set(DIFFERENTIABLE)


@on_devices
@of_cases
def test_runs_forward_and_backward_in_eager_mode(name: str, device: str) -> None:
    case = CASES[name]()
    got = results(case, tensors_on(case, device))
    assert len(got) > len(case.leaves) and all(not t.isnan().any() for t in got)
    assert all(grad.abs().sum() > 0 for grad in got[len(got) - len(case.leaves) :])


@on_devices
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@of_cases
def test_a_full_graph_gives_the_same(name: str, backend: str, device: str) -> None:
    torch.compiler.reset()
    case = CASES[name]()
    t = tensors_on(case, device)
    compiled = case._replace(run=torch.compile(case.run, fullgraph=True, backend=backend))
    assert is_close(results(compiled, t), results(case, t), bound_of(device))


@on_devices
@of_cases
def test_autocast_does_not_change_it(name: str, device: str) -> None:
    case = CASES[name]()
    t = tensors_on(case, device)
    wanted = results(case, t)
    with torch.autocast(device.split(":")[0], dtype=torch.bfloat16):
        got = results(case, t)
    assert is_close(got, wanted, bound_of(device)) and [g.dtype for g in got] == [w.dtype for w in wanted]


@on_devices
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_checkpointing_gives_the_same_gradients(name: str, use_reentrant: bool, device: str) -> None:
    case = CASES[name]()
    t = tensors_on(case, device)
    out = checkpoint(lambda *values: case.run(dict(zip(t, values, strict=True)))[0], *t.values(), use_reentrant=use_reentrant)
    out.backward(gradient_like(out))
    got = [t[leaf].grad for leaf in case.leaves]
    assert is_close(got, results(case, t)[-len(case.leaves) :], bound_of(device))


@on_devices
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_without_grad_nothing_is_recorded(name: str, device: str) -> None:
    case = CASES[name]()
    t = tensors_on(case, device)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            got = case.run(t)
        assert not any(x.requires_grad for x in got) and is_close(got, case.run(t), 0)


@on_devices
@of_cases
def test_deterministic_mode_repeats_itself_or_refuses(name: str, device: str) -> None:
    case = CASES[name]()
    t = tensors_on(case, device)
    torch.use_deterministic_algorithms(True)
    try:
        if name in ATOMIC and case.path(t) == "cuda":
            with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
                results(case, t)
        else:
            assert is_close(results(case, t), results(case, t), 0)
    finally:
        torch.use_deterministic_algorithms(False)


# ---- a GPU ----


@on_a_gpu
@of_cases
def test_a_gpu_answers_as_a_cpu_does(name: str) -> None:
    """To a few roundings of bfloat16; how exact the kernels are is measured in tests/packs."""
    case = CASES[name]()
    t = tensors_on(case, "cuda:0")
    if torch.cuda.get_device_capability()[0] == 9:
        assert case.path(t) in ("cuda", "tma")
    assert is_close(results(case, t), results(case, tensors_on(case, "cpu")), 3e-2)


@on_a_gpu
@of_cases
def test_a_cuda_graph_replays_on_other_values(name: str) -> None:
    case = CASES[name]()
    t = tensors_on(case, "cuda:0")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            results(case, t)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = results(case, t)
    with torch.no_grad():
        for x in t.values():
            x.copy_(x.roll(1, 1) if x.dim() > 1 else x.flip(0))
    graph.replay()
    torch.cuda.synchronize()
    got = [x.clone() for x in held]
    assert is_close(got, results(case, t), bound_of("cuda:0"))


@on_a_gpu
@of_cases
def test_the_current_stream_is_used(name: str) -> None:
    """Values that a busy stream writes late are seen by an op on that stream; one on another stream would read zeros."""
    case = CASES[name]()
    wanted = results(case, tensors_on(case, "cuda:0"))
    source = {key: x.to("cuda:0") for key, x in case.tensors.items()}
    t = {key: torch.zeros_like(x).requires_grad_(key in case.leaves) for key, x in source.items()}
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        with torch.no_grad():
            for key, x in t.items():
                x.copy_(source[key])
        got = results(case, t)
    stream.synchronize()
    assert is_close(got, wanted, bound_of("cuda:0"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")
@of_cases
def test_a_second_device_is_used_where_the_tensors_are(name: str) -> None:
    case = CASES[name]()
    got = results(case, tensors_on(case, "cuda:1"))
    assert all(x.device == torch.device("cuda:1") for x in got)
    assert is_close(got, results(case, tensors_on(case, "cuda:0")), bound_of("cuda:0"))


@on_a_gpu
def test_a_tensor_of_another_device_is_named() -> None:
    t = CASES["sparse_mla"]().tensors
    with pytest.raises(RuntimeError, match=r"topk_indices must be .*cuda:0, got .*cpu"):
        OPS.sparse_mla_forward(t["q"].cuda(), t["kv"].cuda(), t["topk_indices"], softmax_scale=1.0, head_dim_v=512)
