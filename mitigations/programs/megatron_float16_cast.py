"""Trains a Mamba mixer in bf16 under Float16Module: its A_log, which it makes in float32, must move by the sum of its steps."""

import json
import os

os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")  # 0.15 asks for it when imported, and raises without a GPU
import torch
from megatron.core import parallel_state
from megatron.core.ssm.mamba_mixer import MambaMixer
from megatron.core.transformer.module import Float16Module, MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig


class Mixer(MambaMixer):  # in plain torch: the constructor and the scan of Megatron's want mamba-ssm, which wants a GPU
    def __init__(self, config: TransformerConfig):
        MegatronModule.__init__(self, config)
        self.in_proj = torch.nn.Linear(8, 16)
        self.A_log = torch.nn.Parameter(torch.linspace(1, 16, 8).log())
        self.D = torch.nn.Parameter(torch.ones(8))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        x, dt = self.in_proj(hidden).float().chunk(2, -1)
        states, dt = [torch.zeros_like(x[0])], torch.nn.functional.softplus(dt)
        for x_t, dt_t in zip(x, dt, strict=True):
            states.append(torch.exp(-self.A_log.exp() * dt_t) * states[-1] + dt_t * x_t)
        return torch.stack(states[1:]) + self.D * x


torch.manual_seed(0)
torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
parallel_state.initialize_model_parallel()
config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, bf16=True, params_dtype=torch.bfloat16)
model, data = Float16Module(config, mixer := Mixer(config)), torch.randn(2, 12, 4, 8)
right, optimizer = torch.linspace(1, 16, 8).log().double(), torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(50):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(data[0]), data[1]).backward()
    right -= 0.01 * mixer.A_log.grad.double()
    optimizer.step()
print(json.dumps({"error": ((mixer.A_log.double() - right).abs().max() / right.abs().max()).item(), "bound": 1e-5}))
