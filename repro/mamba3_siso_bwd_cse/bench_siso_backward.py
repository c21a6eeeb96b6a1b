"""Times mamba-ssm's whole Mamba-3 SISO backward, its parts one by one, and the same with the pack's ops in their places.

    PYTHONPATH=MAMBA_SSM:repro/harness:repro/bench PATCHBENCH_OPS_LIB=libpatchbench_ops.so python3 bench_siso_backward.py

bfloat16, chunks of 64, with D and Z, no input state. The release's autotuners choose among CONFIGS alone, for each shape anew, by the
median of 5 calls.

The release keeps its states as [.., head_dim_v, chunks * head_dim_qk]; mamba3_siso_bwd takes a view of them, "contiguous" has them in
the op's own order. Errors are of the rotary part on the first group's heads, against the op's plain form in float64: [the release's,
the op's].
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from types import ModuleType

import stand_in
import torch
from backward_by_ops import BackwardByOps, Given
from bench_main import Bench, Shape, bench_main, best_peer, difference, versions
from device_time import in_turn, spread

CONFIGS = (
    (4, 1, None),
    (4, 2, None),
    (4, 2, 256),
    (8, 1, None),
    (8, 2, None),
    (2, 1, None),
    (2, 2, None),
)  # warps, stages, registers a thread
CHUNK = 64
PARTS = ("compute_dzdo", "compute_dqkv", "compute_dqktheta", "compute_ddt_dtrap_dinput_states", "angle_dt_bwd")
Call = Callable[[], object]
Tensors = dict[str, torch.Tensor]


def narrow_autotuners(*modules: object) -> None:
    """Leaves each kernel CONFIGS, none of them chosen; a config's own block length becomes the chunk's."""
    import triton

    for module in modules:
        for kernel in vars(module).values():
            if not isinstance(kernel, triton.runtime.Autotuner):
                continue
            block = {"CHUNK_SIZE": CHUNK} if "CHUNK_SIZE" in kernel.configs[0].kwargs else {}
            takes_registers = any(config.maxnreg for config in kernel.configs)
            kernel.configs = [
                triton.Config(block, num_warps=w, num_stages=s, maxnreg=r if takes_registers else None) for w, s, r in CONFIGS
            ]
            kernel.cache.clear()
            kernel.do_bench = lambda call, quantiles: spread(call, 5)


def release() -> ModuleType:
    """The module of the whole recurrence, its kernels tuned among CONFIGS alone."""
    stand_in.install()
    from mamba_ssm.ops.triton.mamba3 import angle_dt, mamba3_siso_bwd, mamba3_siso_combined, mamba3_siso_fwd

    narrow_autotuners(angle_dt, mamba3_siso_bwd, mamba3_siso_fwd)
    return mamba3_siso_combined


def inputs(shape: Shape) -> Tensors:
    batch, seqlen, heads, groups, width, values = shape
    torch.manual_seed(9)

    def bf16(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, device="cuda").bfloat16()

    dt = 0.1 * torch.rand(batch, heads, seqlen, device="cuda") + 0.01
    made = {
        "Q": bf16(batch, seqlen, groups, width), "K": bf16(batch, seqlen, groups, width), "V": bf16(batch, seqlen, heads, values),
        "ADT": -dt * (0.5 + torch.rand(heads, 1, device="cuda")), "DT": dt,
        "Trap": torch.rand(batch, heads, seqlen, device="cuda").bfloat16(),
        "Q_bias": torch.randn(heads, width, device="cuda"), "K_bias": torch.randn(heads, width, device="cuda"),
        "Angles": bf16(batch, seqlen, heads, width // 4), "D": torch.randn(heads, device="cuda"), "Z": bf16(batch, seqlen, heads, values),
    }  # fmt: skip
    return {name: tensor.requires_grad_() for name, tensor in made.items()}


def seen_calls(module: object, backward: Call) -> dict[str, Call]:
    """Each part of the release's backward as it is called in one."""
    seen: dict[str, Call] = {}
    real = {name: getattr(module, name) for name in PARTS}

    def recorder(name: str) -> Callable:
        def record(*words: object, **named: object) -> object:
            seen[name] = lambda: real[name](*words, **named)
            return seen[name]()

        return record

    for name in PARTS:
        setattr(module, name, recorder(name))
    backward()
    for name in PARTS:
        setattr(module, name, real[name])
    return seen


def rotary_errors(seen: dict[str, Call], operands: tuple[torch.Tensor, ...]) -> dict[str, list[float]]:
    """Of the release and of the op, on the first group's heads, against the plain form in float64."""
    heads = operands[2].shape[0] // operands[0].shape[2]
    first = [t[:, :, :1] for t in operands[:2]] + [t[:heads] for t in operands[2:4]] + [t[:, :, :heads] for t in operands[4:6]]
    first += [t[:, :heads] for t in operands[6:8]] + [t[:, :, :heads] for t in operands[8:10]] + [operands[10][:, :heads]]
    exact = torch.ops.patchbench.mamba3_siso_rotary_bwd(*(t.double() for t in first))
    turned, scalars, angles = (seen[name]() for name in PARTS[2:])
    release = (*turned[:4], angles[0], scalars[0] + angles[1], scalars[1])
    ours = torch.ops.patchbench.mamba3_siso_rotary_bwd(*operands)
    again = torch.ops.patchbench.mamba3_siso_rotary_bwd(*operands)
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))
    axes = {"q": 2, "k": 2, "q_bias": 0, "k_bias": 0, "angles": 2, "dt": 1, "trap": 1}  # of heads or groups
    return {
        name: [difference(found[i].narrow(axis, 0, exact[i].shape[axis]), exact[i]) for found in (release, ours)]
        for i, (name, axis) in enumerate(axes.items())
    }


def rows_of(shape: Shape, options: Namespace) -> list[dict]:
    module, t = release(), inputs(shape)
    out = module.mamba3_siso_combined(**t, chunk_size=CHUNK)
    grad = torch.randn_like(out)

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out, list(t.values()), grad, retain_graph=True)

    def whole_with(parts: dict[str, Call]) -> Call:
        """The backward with these in their places."""

        def run() -> tuple[torch.Tensor, ...]:
            for name, part in parts.items():
                setattr(module, name, part)
            return backward()

        return run

    wanted = backward()
    seen = seen_calls(module, backward)
    released = {name: getattr(module, name) for name in PARTS}
    ops = BackwardByOps(lambda: Given(*(t[name].detach() for name in ("ADT", "Angles", "DT", "Trap"))))
    by_three = {**released, **ops.all()}
    got, again = whole_with(by_three)(), whole_with(by_three)()
    gate = (grad, t["Z"].detach(), torch.randn_like(grad))
    contiguous = (*ops.walk_operands[:-1], ops.walk_operands[-1].contiguous())
    calls = {"release, whole": whole_with(released), **{f"release, {name}": seen[name] for name in PARTS},
             "mamba3_siso_bwd in its place, whole": whole_with({**released, **ops.walk()}),
             "both ops in their places, whole": whole_with({**released, **ops.walk_and_rotary()}),
             "three ops in their places, whole": whole_with(by_three),
             "mamba3_siso_gate_bwd": lambda: torch.ops.patchbench.mamba3_siso_gate_bwd(*gate),
             "mamba3_siso_bwd": lambda: torch.ops.patchbench.mamba3_siso_bwd(*ops.walk_operands),
             "mamba3_siso_bwd, states contiguous": lambda: torch.ops.patchbench.mamba3_siso_bwd(*contiguous),
             "mamba3_siso_rotary_bwd": lambda: torch.ops.patchbench.mamba3_siso_rotary_bwd(*ops.rotary_operands)}  # fmt: skip
    row: dict[str, object] = {"shape": shape}
    row |= in_turn({name: lambda _, call=call: call() for name, call in calls.items()}, options.repeats)
    whole_with(released)()  # the next shape begins with the release's own parts
    ours, theirs = "three ops in their places, whole", "release, whole"
    row["of_best_peer"] = best_peer(row[ours][0], {theirs: row[theirs][0]})
    row["differences of the three from the release"] = {name: difference(a, b) for name, a, b in zip(t, got, wanted, strict=True)}
    row["bitwise equal when run again"] = all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
    del got, again, wanted
    return [row | {"errors of the rotary part": rotary_errors(seen, ops.rotary_operands)}]


AXES = "batch, seqlen, heads, groups, head_dim_qk, head_dim_v"
VERSIONS = versions("mamba-ssm", "triton", "torch")
CHOICE = {"choice": "warps, stages, registers a thread", "among": CONFIGS}
ABOUT = {"order": "all in turn", "versions": VERSIONS, "configs": CHOICE}
BENCH = Bench("mamba-ssm's whole SISO backward", rows_of, [[2, 8192, 128, 8, 128, 64]], AXES, about=lambda: ABOUT)

if __name__ == "__main__":
    bench_main(BENCH)
