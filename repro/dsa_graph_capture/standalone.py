"""Whether megatron-core's packed context-parallel positions can be captured into a CUDA graph.

Needs: megatron-core, torch; with a GPU a real capture, without one fake CUDA tensors. Exit: 0 captured, 1 not, 2
cannot say.
"""

import sys

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

try:
    from megatron.core.transformer.experimental_attention_variant import dsa_layout
except ImportError as error:
    print(f"cannot say: {error}; pip install megatron-core==0.19.2", file=sys.stderr)
    sys.exit(2)


def positions(bounds: torch.Tensor) -> torch.Tensor:
    """The values of rank 1 of 2, whose 14 tokens the caller knows: nothing has to be read back."""
    return dsa_layout.build_packed_allgather_cp_local_positions(bounds, 2, 1, bounds.device, 14)


if torch.cuda.is_available():
    bounds = torch.tensor([0, 8, 8, 24, 28], dtype=torch.int32, device="cuda")
    positions(bounds)  # the first call makes some tensors once; a capture does not hold them
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            positions(bounds)
    except RuntimeError as error:
        print(f"WRONG: the capture failed: {str(error).splitlines()[0]}")
        sys.exit(1)
else:
    try:
        with FakeTensorMode():
            positions(torch.empty(5, dtype=torch.int32, device="cuda"))
    except (DynamicOutputShapeException, DataDependentOutputException) as error:
        print(f"WRONG: {error.func} waits for a value on the device, which a capture forbids")
        sys.exit(1)
print("right: nothing on the way waits for the device")
