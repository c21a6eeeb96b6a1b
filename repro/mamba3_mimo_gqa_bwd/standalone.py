"""For which numbers of groups mamba-ssm's Mamba-3 MIMO backward gives gradients at all.

Needs: mamba-ssm, tilelang, triton and torch; without a GPU the TileLang kernels are left out (set
TRITON_INTERPRET=1), and only the host function runs. Exit: 0 for every divisor of the heads, 1 not, 2 cannot say.
"""

import inspect
import sys

import torch

try:
    from mamba_ssm.ops.tilelang.mamba3 import mamba3_mimo_bwd as release
    from mamba_ssm.ops.triton.mamba3 import mamba3_mimo_utils as helpers
except ImportError as error:
    print(f"cannot say: {error}; pip install mamba-ssm==2.3.2.post1", file=sys.stderr)
    sys.exit(2)

device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16 if device == "cuda" else torch.float32
if device == "cpu":
    for factory in ("mamba_mimo_bwd_fwd", "mamba_mimo_bwd_bwd"):
        setattr(release, factory, lambda *_, **__: lambda *tensors: None)
    for kernel in vars(helpers).values():  # the interpreter has no clock to tune by
        if hasattr(kernel, "configs"):
            kernel.configs = kernel.configs[:1]


def backward(num_groups: int) -> None:
    """One chunk of 8 heads and 4 ranks, with `num_groups` groups of B and C."""
    s, h, r, n, p = 16, 8, 4, 64, 64

    def made(*sizes: int, of: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.rand(sizes, dtype=of, device=device)

    adt = -made(1, h, s)
    decays = dict(zip(("dA_cs", "dA_cs_rev", "segsum"), helpers.compute_dacs_segsum_triton(adt, s), strict=True))
    given = decays | {
        "q": made(1, s, r, num_groups, n, of=dtype), "k": made(1, s, r, num_groups, n, of=dtype),
        "v": made(1, s, h, p, of=dtype), "dout": made(1, s, h, p, of=dtype),
        "q_bias": made(h, r, n), "k_bias": made(h, r, n), "mimo_v": made(h, r, p),
        "mimo_o": made(h, r, p), "angles": made(1, s, h, n // 4), "dt": made(1, h, s), "trap": made(1, h, s),
        "chunk_size": s, "rotary_dim_divisor": 4, "dtype": dtype,
    }  # fmt: skip
    host = release.mamba_mimo_bwd_combined
    known = inspect.signature(host).parameters.values()
    host(**{k.name: given.get(k.name) for k in known if k.name in given or k.default is k.empty})


refused = []
for num_groups in (1, 8, 2, 4):
    try:
        backward(num_groups)
        print(f"{num_groups} groups of 8 heads: gradients")
    except ValueError as error:
        print(f"{num_groups} groups of 8 heads: ValueError: {error}")
        refused.append(num_groups)
if {1, 8} & set(refused):
    print("cannot say: what is known to work was refused, too", file=sys.stderr)
    sys.exit(2)
print("WRONG: only one group, and as many groups as heads, have gradients" if refused else "right")
sys.exit(bool(refused))
