"""Trains a model whose forward takes no count of labels with Hugging Face's Trainer, a row of another length in each micro-batch; ranks
have them in turn. The error is the largest relative difference of a weight from plain torch on the mean over all labels of a step."""

import json
import os
import tempfile

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments  # noqa: E402

RANKS = 2


class OwnForCausalLM(LlamaForCausalLM):
    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = super().forward(input_ids).logits[:, :-1]
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())}


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return OwnForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2))


got, right, size = model(), model(), int(os.environ.get("WORLD_SIZE", "1"))
rows = [torch.randint(0, 32, (length,)) for length in (30, 2, 5, 12)]
optimizer, plain = (torch.optim.SGD(one.parameters(), lr=0.5) for one in (got, right))
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=1, gradient_accumulation_steps=len(rows) // size, num_train_epochs=2,
    max_grad_norm=0.0, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, remove_unused_columns=False,
    label_names=["labels"], ddp_backend="gloo" if size > 1 else None)  # fmt: skip
Trainer(model=got, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0))).train()  # fmt: skip
for _ in range(2):
    plain.zero_grad()
    sum(right(row[None], row[None])["loss"] * (len(row) - 1) for row in rows).div(sum(len(row) - 1 for row in rows)).backward()
    plain.step()
a, b = (torch.cat([p.detach().flatten() for p in one.parameters()]) for one in (got, right))
print(json.dumps({"error": ((a - b).abs().max() / b.abs().max()).item(), "bound": 1e-4}) if os.environ.get("RANK", "0") == "0" else "")
