"""What a Mamba mixer makes in float32, and a dt_bias that is marked to stay so, through megatron-core's Float16Module; and the dt of the
latter after 1,000 small steps.

Needs: megatron-core and torch; no GPU. Exit: 0 right, 1 wrong, 2 cannot say.
"""

import os
import sys
from types import SimpleNamespace

import torch
import torch.nn.functional as F

os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")  # 0.15 asks for it when imported, and raises without a GPU
try:
    from megatron.core.ssm.mamba_mixer import MambaMixer
    from megatron.core.transformer.module import Float16Module
except ImportError as error:
    print(f"cannot say: {error}; pip install megatron-core==0.19.2", file=sys.stderr)
    sys.exit(2)

STEPS, STEP = 1000, 1e-4
HEADS = torch.linspace(-6.9, -2.25, 8)  # softplus of these is 1e-3 to 0.1, as the mixer's own start
right = F.softplus(HEADS.double() + STEPS * STEP)


class Mixer(MambaMixer):
    """Megatron's mixer with the two parameters that its own constructor, which needs mamba-ssm, makes in float32, as it makes them."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.A_log = torch.nn.Parameter(torch.linspace(1, 16, 8).log())
        self.D = torch.nn.Parameter(torch.ones(8))


def wrap(module: torch.nn.Module, dtype: torch.dtype) -> None:
    config = SimpleNamespace(bf16=dtype == torch.bfloat16, fp16=dtype == torch.float16, virtual_pipeline_model_parallel_size=None)
    Float16Module(config, module)


def wrapped(dtype: torch.dtype) -> torch.nn.Parameter:
    """dt_bias after the cast."""
    module = torch.nn.Module()
    module.dt_bias = torch.nn.Parameter(HEADS.clone())
    module.dt_bias.keep_in_fp32 = True  # what mark_keep_in_fp32 of Megatron's main branch sets
    wrap(module, dtype)
    return module.dt_bias


def dt_after(dt_bias: torch.nn.Parameter, has_copy: bool) -> torch.Tensor:
    """softplus(dt_bias) after the steps, in place or on a float32 copy made after the cast, as Megatron's optimizers have it."""
    trained = torch.nn.Parameter(dt_bias.detach().clone().float()) if has_copy else dt_bias
    optimizer = torch.optim.SGD([trained], lr=1.0)
    trained.grad = torch.full_like(trained, -STEP)
    for _ in range(STEPS):
        optimizer.step()
    return F.softplus(trained.detach().to(dt_bias.dtype).float())


num_wrong = 0
for dtype in (torch.bfloat16, torch.float16):
    mixer = Mixer()
    made = mixer.A_log.detach().clone()
    wrap(mixer, dtype)
    num_wrong += mixer.A_log.dtype != torch.float32 or not torch.equal(mixer.A_log.detach(), made)
    rounded = ((mixer.A_log.detach().double() - made).abs().max() / made.abs().max()).item()
    print(f"wrapped in {dtype}, the mixer's A_log is {mixer.A_log.dtype}, {rounded:.1e} off, and its D is {mixer.D.dtype}")
    found = wrapped(dtype)
    is_wrong = found.dtype != torch.float32 or not torch.equal(found.detach(), HEADS)
    num_wrong += is_wrong
    rounded = ((found.detach().double() - HEADS).abs().max() / HEADS.abs().max()).item()
    print(f"wrapped in {dtype}, a marked dt_bias is {found.dtype}, {rounded:.1e} off")
    for how, has_copy in (("updated in place", False), ("with a float32 copy in the optimizer", True)):
        off = ((dt_after(wrapped(dtype), has_copy).double() - right).abs() / right).max().item()
        print(f"  dt after {STEPS} steps of {STEP}, {how}: at most {100 * off:.3f} % off float64")
print("WRONG: what has to stay in float32 is cast" if num_wrong else "right")
sys.exit(num_wrong > 0)
