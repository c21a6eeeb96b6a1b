"""What the release's public op does with packed sequences on a GPU, in bfloat16, without and with the mitigation: elements after the
stored states that were written, and the largest relative difference of a gradient from a call for each sequence. Of rows that are not
packed: from the same call with zeros up to a power of two.

Wants mamba-ssm's sources, the harness and the mitigations on the path. One line of JSON for each case.
"""

from __future__ import annotations

import json
import sys
from unittest import mock

import stand_in
import torch
from patchbench_mitigations import mamba3_siso_bwd_cse as mitigation

ALONG = {"Q": 1, "K": 1, "V": 1, "Angles": 1, "Z": 1, "ADT": 2, "DT": 2, "Trap": 2}
HEADS, HEAD_DIM, CHUNK = 32, 64, 64
CASES = {
    "packed_96": (96, [700, 33, 1, 290]), "packed_48": (48, [700, 33, 1, 290]), "packed_128": (128, [700, 33, 1, 290]),
    "packed_96_short": (96, [30] * 40), "rows_96": (96, [1024]), "rows_48": (48, [1024]),
}  # fmt: skip


class Guarded(stand_in.GuardedTorch):
    bfloat16 = torch.bfloat16


def problem(width: int, seqlen: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(3)

    def normal(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(sizes, generator=generator).to(dtype).cuda()

    rows = {name: normal(1, seqlen, 1, width) for name in ("Q", "K")} | {name: normal(1, seqlen, HEADS, HEAD_DIM) for name in ("V", "Z")}
    dt = (torch.rand(1, HEADS, seqlen, generator=generator) * 0.1 + 0.01).cuda()
    rows |= {
        "ADT": -dt,
        "DT": dt,
        "Trap": normal(1, HEADS, seqlen),
        "Angles": normal(1, seqlen, HEADS, width // 8 * 2),
        "D": normal(HEADS, dtype=torch.float32),
    }
    rows |= {name: normal(HEADS, width, dtype=torch.float32) for name in ("Q_bias", "K_bias")}
    return {name: tensor.requires_grad_() for name, tensor in rows.items()}, normal(1, seqlen, HEADS, HEAD_DIM)


def gradients(width: int, lengths: list[int], how: str) -> tuple[dict[str, torch.Tensor], int]:
    """`how`: "packed", "single" (a call for each sequence), or "padded" (zeros to a power of two)."""
    leaves, grad_out = problem(width, sum(lengths))
    given, guarded = dict(leaves), Guarded()
    if how == "padded":
        zeros = (1 << (width - 1).bit_length()) - width
        given |= {name: mitigation.wider(leaves[name], zeros) for name in ("Q", "K", "Q_bias", "K_bias")}
    parts = {
        name: one.split(lengths, ALONG[name]) if how == "single" and name in ALONG else [one] * len(lengths) for name, one in given.items()
    }
    bounds = torch.tensor([0, *lengths], dtype=torch.int32, device="cuda").cumsum(0, dtype=torch.int32) if how == "packed" else None
    with mock.patch.object(sys.modules[stand_in.FORWARD], "torch", guarded):
        calls = len(lengths) if how == "single" else 1
        rows = [{name: parts[name][i] for name in given} for i in range(calls)]
        out = torch.cat([stand_in.op().mamba3_siso_combined(**row, chunk_size=CHUNK, cu_seqlens=bounds) for row in rows], 1)
    found = torch.autograd.grad(out, list(leaves.values()), grad_out)
    return dict(zip(leaves, found, strict=True)), guarded.past_end()


def main() -> None:
    stand_in.install()
    stand_in.op()
    for is_on in (False, True):
        if is_on:
            mitigation.enable()
        for name, (width, lengths) in CASES.items():
            found, past = gradients(width, lengths, "packed" if len(lengths) > 1 else "rows")
            wanted, _ = gradients(width, lengths, "single" if len(lengths) > 1 else "padded")
            off = {key: ((found[key].float() - one.float()).abs().max() / one.float().abs().max()).item() for key, one in wanted.items()}
            print(json.dumps({"case": name, "is_mitigated": is_on, "elements_past_states": past, "off": off}), flush=True)


if __name__ == "__main__":
    main()
