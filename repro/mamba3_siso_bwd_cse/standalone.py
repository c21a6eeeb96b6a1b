"""How often mamba-ssm's Mamba-3 SISO backward forms the product V dO^T of a chunk.

Needs: mamba-ssm, triton and torch; runs in Triton's interpreter, on whatever device. Exit: 0 once, 1 more often, 2
cannot say.
"""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import torch  # noqa: E402
import triton  # noqa: E402
from triton.runtime.interpreter import InterpreterBuilder  # noqa: E402

try:
    from mamba_ssm.ops.triton.mamba3 import mamba3_siso_bwd as release
except ImportError as error:
    print(f"cannot say: {error}; pip install mamba-ssm==2.3.2.post1", file=sys.stderr)
    sys.exit(2)


class Operand(torch.Tensor):
    """The host function asks whether its tensors are on a GPU; the interpreter does not mind."""

    is_cuda = True


def tensor(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, device="cuda" if torch.cuda.is_available() else "cpu").as_subclass(Operand)


# Sizes that tell the operands apart: one program, one chunk of 32 tokens.
chunk, d, d_v = 32, 64, 16
release.mamba3_siso_bwd_kernel_dqkv.configs = [triton.Config({}, num_warps=4, num_stages=1)]
products = []
create_dot = InterpreterBuilder.create_dot


def counted(self: InterpreterBuilder, a: object, b: object, *rest: object) -> object:
    products.append((*a.data.shape, *b.data.shape))
    return create_dot(self, a, b, *rest)


InterpreterBuilder.create_dot = counted
release.compute_dqkv(
    tensor(1, chunk, 1, d), tensor(1, chunk, 1, d), tensor(1, chunk, 1, d_v), tensor(1, 1, chunk), tensor(1, 1, 1),
    tensor(1, 1, chunk), tensor(1, 1, d_v, d), tensor(1, chunk, 1, d_v), chunk_size=chunk,
)  # fmt: skip
count = products.count((chunk, d_v, d_v, chunk))
print(f"{len(products)} products in a chunk, {count} of them of [{chunk}, {d_v}] by [{d_v}, {chunk}]: V dO^T")
if count == 0:
    print("cannot say: no such product was seen", file=sys.stderr)
    sys.exit(2)
print("right" if count == 1 else "WRONG: it is formed again for another gradient")
sys.exit(count > 1)
