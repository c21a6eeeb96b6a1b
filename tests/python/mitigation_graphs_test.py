"""What torch.compile makes of a call does not change by a mitigation that leaves the call to the release.

Compared are the graphs, their nodes with targets and shapes, their number and so their breaks, and what they compute.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mitigation_dsa_graph_capture_test as dsa_test
import mitigation_fp8_storage_dispatch_test as fp8_test
import mitigation_liger_flce_none_bwd_test as liger_test
import mitigation_mamba3_mimo_gqa_bwd_test as mamba_test
import mitigation_sparse_mla_test as mla_test
import pytest
import torch
from evidence import speaks_for
from mitigation_sparse_mla_test import checkout, kernels, modules  # noqa: F401  fixtures

sys.path.insert(0, str(Path(__file__).parents[2] / "mitigations"))

from patchbench_mitigations import dsa_graph_capture as dsa  # noqa: E402
from patchbench_mitigations import fp8_storage_dispatch as fp8  # noqa: E402
from patchbench_mitigations import liger_flce_none_bwd as liger  # noqa: E402
from patchbench_mitigations import mamba3_mimo_gqa_bwd as mamba  # noqa: E402
from patchbench_mitigations import sparse_mla_dims as dims  # noqa: E402
from patchbench_mitigations import sparse_mla_pdp_precision as pdp  # noqa: E402

BACKENDS = ("eager", "aot_eager")
Graphs = list[list[tuple[str, str, tuple[int, ...]]]]


def compiled(call: Callable[..., Any], tensors: tuple[torch.Tensor, ...], backend: str) -> tuple[Graphs, list[torch.Tensor]]:
    """Every graph that dynamo hands over, as its nodes, and what two calls give."""
    torch.compiler.reset()
    # Dynamo keeps modules by their names: an earlier test's stand-in stays there.
    torch._dynamo.symbolic_convert._import_module.cache_clear()
    for name in [name for name in globals() if name.startswith("__import_")]:
        del globals()[name]
    graphs: Graphs = []
    lowered = torch._dynamo.lookup_backend(backend)

    def record(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        shapes = [getattr(node.meta.get("example_value"), "shape", ()) for node in module.graph.nodes]
        graphs.append([(n.op, str(n.target), tuple(shape)) for n, shape in zip(module.graph.nodes, shapes, strict=True)])
        return lowered(module, inputs)

    function = torch.compile(call, backend=record)
    outputs = [function(*tensors) for _ in range(2)]
    return graphs, [x for out in outputs for x in (out if isinstance(out, tuple) else (out,)) if isinstance(x, torch.Tensor)]


def same(call: Callable[..., Any], tensors: tuple[torch.Tensor, ...], backend: str, enable: Callable[[], Any]) -> None:
    before = compiled(call, tensors, backend)
    assert enable()["on"]
    after = compiled(call, tensors, backend)
    assert before[0] and after[0] == before[0]
    assert after[1] and all(map(torch.equal, before[1], after[1]))


@pytest.fixture
def standing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`standing(test module, arguments of its Upstream)`: that stand-in on the path, everything off afterwards."""
    used = []

    def stand(tests: Any, *words: str) -> Any:
        for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.syspath_prepend(str(tmp_path))
        speaks_for(monkeypatch, words[-1])
        tests.forget()
        used.append(tests)
        made = tests.Upstream(tmp_path, *words)
        __import__("importlib").invalidate_caches()
        return made

    yield stand
    for fix in (dsa, fp8, mamba):
        fix.disable()
    for tests in used:
        tests.forget()


@pytest.mark.parametrize("backend", BACKENDS)
def test_dense_operands_of_fp8_storage_dispatch(standing: Any, backend: str) -> None:
    upstream = standing(fp8_test, "fooled", "0.19.2")
    query, kv, indices = fp8_test.problem("kernels")
    dispatcher, dense = upstream.kernels, [x.dequantize()[..., :512].contiguous() for x in (query, kv)]

    def call(q: torch.Tensor, k: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        out = dispatcher.run_fused_absorbed_sparse_attention(None, q * 2, k, i, 0.1, 512)
        return q + k.sum() if out is None else out  # the stand-in declines 512 columns

    same(call, (*dense, indices), backend, fp8.enable)


@pytest.mark.parametrize("backend", BACKENDS)
def test_as_many_groups_as_heads_of_mamba3_mimo_gqa_bwd(standing: Any, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = standing(mamba_test, "faulty", "2.3.2.post1")
    t = mamba_test.tensors(6, torch.float32)
    home = upstream.module("mamba3_mimo_bwd")
    names = ("dout", "q", "k", "v", "q_bias", "k_bias")

    def call(*tensors: torch.Tensor) -> Any:
        return home.mamba_mimo_bwd_combined(*tensors, *[None] * 14)[:2]

    same(call, tuple(t[name] for name in names), backend, lambda: mamba.enable("plain"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_eager_bounds_and_valid_rows_of_dsa_graph_capture(standing: Any, backend: str) -> None:
    upstream = standing(dsa_test, "host", "0.19.0")
    masking = upstream.module("dsa_masking")

    def call(x: torch.Tensor) -> Any:
        absent = dict.fromkeys(("mask", "varlen_starts", "varlen_ends", "key_positions"))
        starts, ends = masking.build_fused_indexer_varlen_bounds(sq=4, skv=8, device=x.device, **absent)
        return x + starts + ends

    same(call, (torch.ones(4),), backend, dsa.enable)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fix", [dims, pdp], ids=["sparse_mla_dims", "sparse_mla_pdp_precision"])
def test_the_shape_that_the_release_takes_of(kernels: Any, modules: Any, fix: Any, backend: str) -> None:  # noqa: F811
    tensors = [x.detach() for x in mla_test.problem(576)]

    def call(query: torch.Tensor, key: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return mla_test.called(modules, [query * 2, key, indices], 512) + 1

    call(*tensors)  # the dispatcher imports its kernels in the first call, which breaks a graph
    same(call, tuple(tensors), backend, fix.enable)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_mean_of_liger_flce_none_bwd(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speaks_for(monkeypatch, "0.8.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE", "PATCHBENCH_OPS_LIB", "LIGER_KERNEL_IMPL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    upstream = liger_test.Upstream(tmp_path, "faulty", "0.8.0")
    __import__("importlib").invalidate_caches()
    target = torch.tensor([1, 0, 2])

    def call(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return upstream.loss({"_input": hidden * 2, "weight": weight, "target": target}, reduction="mean") + 1

    try:
        same(call, (torch.randn(3, 4), torch.randn(5, 4)), backend, liger.enable)
    finally:
        liger.disable()
        for name in [one for one in sys.modules if one.partition(".")[0] == "liger_kernel"]:
            del sys.modules[name]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mitigated_call_is_one_graph_where_the_release_breaks(standing: Any, backend: str) -> None:
    upstream = standing(dsa_test, "host", "0.19.0")
    masking, indices = upstream.module("dsa_masking"), dsa_test.indices_of("sentinels")

    def call(mask: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        mask = mask.clone()
        masking.scatter_topk_into_index_mask(mask, chosen)
        return mask + 1

    tensors = (torch.full((2, 5, 7), float("-inf")), indices)
    before, wanted = compiled(call, tensors, backend)
    dsa.enable()
    after, got = compiled(call, tensors, backend)
    assert len(after) == 1 < len(before) and all(map(torch.equal, got, wanted))
