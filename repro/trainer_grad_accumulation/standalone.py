"""The gradient of one optimizer step of Hugging Face's Trainer with gradient accumulation, and the mean over the step's tokens in float64.

Needs: transformers[torch]. Runs on a CPU in seconds. Exit: 0 all right, 1 something is wrong, 2 cannot say.
"""

import os
import sys
import tempfile

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
try:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, __version__
except ImportError as error:
    print(f"cannot say: {error}; pip install 'transformers[torch]==5.24.0'", file=sys.stderr)
    sys.exit(2)

LENGTHS, VOCAB = (30, 2, 5, 12), 64


class OwnForCausalLM(LlamaForCausalLM):
    """A user's own forward: it takes no count of labels, its loss is the mean over its batch."""

    def forward(self, input_ids, labels):
        logits = super().forward(input_ids).logits[:, :-1]
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())}


class OwnWithKeywordsForCausalLM(OwnForCausalLM):
    """The same, with keywords that it does not look at."""

    def forward(self, input_ids, labels, **_):
        return super().forward(input_ids, labels)


class Keeps(torch.optim.SGD):
    def step(self, closure=None):
        self.kept = [p.grad.double() for group in self.param_groups for p in group["params"]]


def gradient(model, rows):
    """What the optimizer is given, all parameters in one vector."""
    optimizer = Keeps(model.parameters(), lr=0.0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=1, gradient_accumulation_steps=len(rows), max_steps=1, max_grad_norm=0.0,
            use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, remove_unused_columns=False,
            label_names=["labels"])  # fmt: skip
        Trainer(
            model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows],
            data_collator=lambda batch: {name: torch.stack([row[name] for row in batch]) for name in batch[0]},
            optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0))).train()  # fmt: skip
    return torch.cat([grad.flatten() for grad in optimizer.kept])


def right_gradient(model, base, rows):
    """By the release's own class in float64, one row at a time, divided by all labels that have a prediction."""
    wide = base(model.config).double()
    wide.load_state_dict(model.state_dict())
    losses = [torch.nn.functional.cross_entropy(wide(row[None]).logits[0, :-1], row[1:], reduction="sum") for row in rows]
    (torch.stack(losses).sum() / sum(len(row) - 1 for row in rows)).backward()
    return torch.cat([p.grad.flatten() for p in wide.parameters()])


torch.manual_seed(1)
rows = [torch.randint(0, VOCAB, (length,)) for length in LENGTHS]
llama = LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
gpt2 = GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0, **no_dropout)
MODELS = {
    "LlamaForCausalLM": (LlamaForCausalLM, LlamaForCausalLM, llama),
    "GPT2LMHeadModel": (GPT2LMHeadModel, GPT2LMHeadModel, gpt2),
    "a forward that takes no count of labels": (OwnForCausalLM, LlamaForCausalLM, llama),
    "a forward that ignores the count": (OwnWithKeywordsForCausalLM, LlamaForCausalLM, llama),
}
num_wrong, lines = 0, []
for name, (own, base, config) in MODELS.items():
    model = own(config)
    right, got = right_gradient(model, base, rows), gradient(model, rows)
    off = ((got - right).norm() / right.norm()).item()
    factor = (got @ right / (right @ right)).item()
    num_wrong += off > 1e-3
    lines.append(f"{'WRONG ' if off > 1e-3 else 'right '} {name}: {off:.0e} off float64, {factor:.3f} times as long in its direction")
print(f"transformers {__version__}, accumulation over rows of {', '.join(map(str, LENGTHS))} tokens")
print("\n".join(lines))
print(f"WRONG: {num_wrong} of {len(MODELS)} models" if num_wrong else f"right: all {len(MODELS)} models")
sys.exit(num_wrong > 0)
