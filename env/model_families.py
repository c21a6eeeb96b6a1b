#!/usr/bin/env python3
"""Measures which model classes of transformers its Trainer trains rightly, release by release, on a CPU.

  model_families.py measure RELEASE...   measure each release and write its rows into the table
  model_families.py one RELEASE          print the rows of the release that this Python imports (measure starts it)

The table is reports/evidence/trainer_grad_accumulation/families.json. A row has a model class, a release, the failure classes of the
pack that explain the gradient (none: it is right), and how far the gradient and the reported loss are off. Each class is built small,
with random weights and without dropout, and trained by the release's own Trainer in float32, without a change of weights:

  uneven      accumulation over four rows of 30, 2, 5 and 12 tokens, each a micro-batch
  masked      the same rows, of which the first tokens have no label
  one_batch   the rows of `uneven` padded to one batch, without accumulation
  later_step  `uneven` as the second step, after `masked`

Right is the mean over the labels of the step, by the same weights in float64, one row at a time (in float32 where a class's code takes
no other). What differs by less than LIMIT of it is right. Of a wrong row `classes` are the failure classes whose gradient it is within
LIMIT, else ["unexplained"].
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "reports/evidence/trainer_grad_accumulation/families.json"
LENGTHS, MASKED, VOCAB, LIMIT = (30, 2, 5, 12), (7, 1, 2, 3), 64, 1e-3
LLAMA = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
HEADED = LLAMA | {"head_dim": 16}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 0}
ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
}
LATENT_EXPERTS = LLAMA | LATENT | ROUTED
GPT2 = {"n_embd": 32, "n_layer": 1, "n_head": 2}
BERT = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
BART = {"d_model": 32, "decoder_start_token_id": 0} | {
    f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 64))
}
FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "MixtralForCausalLM": LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2ForCausalLM": LLAMA,
    "Qwen2MoeForCausalLM": LLAMA | EXPERTS,
    "Qwen3ForCausalLM": HEADED,
    "Qwen3MoeForCausalLM": HEADED | EXPERTS,
    "GemmaForCausalLM": HEADED,
    "Gemma2ForCausalLM": HEADED,
    "Gemma3ForCausalLM": HEADED,
    "PhiForCausalLM": LLAMA,
    "Phi3ForCausalLM": LLAMA,
    "OlmoForCausalLM": LLAMA,
    "Olmo2ForCausalLM": LLAMA,
    "GraniteForCausalLM": LLAMA,
    "CohereForCausalLM": LLAMA,
    "StableLmForCausalLM": LLAMA,
    "DeepseekV3ForCausalLM": LATENT_EXPERTS,
    "GptOssForCausalLM": HEADED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "SmolLM3ForCausalLM": LLAMA,
    "GPT2LMHeadModel": GPT2,
    "GPTNeoXForCausalLM": BERT,
    "OPTForCausalLM": {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "word_embed_proj_dim": 32},
    "BloomForCausalLM": {"hidden_size": 32, "n_layer": 1, "n_head": 2},
    "FalconForCausalLM": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    "MambaForCausalLM": {"hidden_size": 32, "num_hidden_layers": 1, "state_size": 4},
    "BertForMaskedLM": BERT,
    "RobertaForMaskedLM": BERT | {"max_position_embeddings": 64},
    "T5ForConditionalGeneration": T5,
    "BartForConditionalGeneration": BART,
}
# Their logits are of the labels in the same place; all others predict the next token.
IN_PLACE = ("ForMaskedLM", "ForConditionalGeneration")


def model_of(name: str) -> Any:
    import torch
    import transformers

    cls = getattr(transformers, name)
    special = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    config = cls.config_class(vocab_size=VOCAB, **special, **FAMILIES[name])
    for key, value in list(vars(config).items()):
        if isinstance(value, float) and ("drop" in key):
            setattr(config, key, 0.0)
    config._attn_implementation = "eager"
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = "eager"
    torch.manual_seed(1)
    return cls(config)


def rows_of(masked: tuple[int, ...]) -> list[dict[str, Any]]:
    """Tokens from 3 on: none is a special one."""
    import torch

    generator = torch.Generator().manual_seed(2)
    rows = []
    for length, num_masked in zip(LENGTHS, masked, strict=True):
        tokens = torch.randint(3, VOCAB, (length,), generator=generator)
        labels = tokens.clone()
        labels[:num_masked] = -100
        rows.append({"input_ids": tokens, "labels": labels, "attention_mask": torch.ones_like(tokens)})
    return rows


def padded(rows: list[dict[str, Any]]) -> dict[str, Any]:
    from torch.nn.utils.rnn import pad_sequence

    fill = {"input_ids": 0, "labels": -100, "attention_mask": 0}
    return {key: pad_sequence([row[key] for row in rows], batch_first=True, padding_value=value) for key, value in fill.items()}


def flat(model: Any, grads: list[Any]) -> Any:
    import torch

    pairs = zip(model.parameters(), grads, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).double().flatten() for p, g in pairs])


def trained(model: Any, steps: list[list[dict[str, Any]]], accumulation: int) -> tuple[Any, float]:
    """What the release's Trainer hands to its optimizer in the last of the steps, and the loss that it reports."""
    import torch
    import transformers

    kept: list[Any] = []

    class Keeps(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            kept.append(flat(model, [p.grad for p in model.parameters()]))

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    rows = [row for step in steps for row in step]
    optimizer = Keeps(model.parameters(), lr=0.0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=len(steps[0]) // accumulation, gradient_accumulation_steps=accumulation,
            max_steps=len(steps), max_grad_norm=0.0, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
            remove_unused_columns=False, dataloader_pin_memory=False, label_names=["labels"])  # fmt: skip
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        trainer = InOrder(model=model, args=arguments, train_dataset=rows, data_collator=padded, optimizers=(optimizer, schedule))
        loss = trainer.train().training_loss
    if len(kept) != len(steps):
        raise RuntimeError(f"{len(kept)} optimizer steps, not {len(steps)}")
    return kept[-1], loss


def means_of(model: Any, name: str, rows: list[dict[str, Any]]) -> list[tuple[int, Any, float]]:
    """Of each row: how many labels its loss is over, the gradient of their mean in float64, and that mean."""
    wide = copy.deepcopy(model).train()
    try:
        return means_by(wide.double(), name, rows)
    except RuntimeError:  # code that mixes float64 with a type of its own
        return means_by(wide.float(), name, rows)


def means_by(wide: Any, name: str, rows: list[dict[str, Any]]) -> list[tuple[int, Any, float]]:
    import torch

    found = []
    shift = not name.endswith(IN_PLACE)
    for row in rows:
        given = {"labels": row["labels"][None]} if name.endswith("ForConditionalGeneration") else {}
        logits = wide(input_ids=row["input_ids"][None], attention_mask=row["attention_mask"][None], **given).logits[0].double()
        labels = row["labels"][1:] if shift else row["labels"]
        loss = torch.nn.functional.cross_entropy(logits[:-1] if shift else logits, labels, ignore_index=-100)
        wide.zero_grad()
        loss.backward()
        found.append((int((labels != -100).sum()), flat(wide, [p.grad for p in wide.parameters()]), loss.item()))
    return found


def gradients_of(means: list[tuple[int, Any, float]], rows: list[dict[str, Any]], accumulation: int) -> list[tuple[list[str], Any]]:
    """The gradient of each failure class; first the right one."""
    total = sum(count for count, _, _ in means)
    right = sum(count * grad for count, grad, _ in means) / total
    all_labels = sum(int((row["labels"] != -100).sum()) for row in rows)
    later_labels = sum(int((row["labels"][1:] != -100).sum()) for row in rows)
    found: list[tuple[list[str], Any]] = [([], right)]
    if all_labels != total:
        found.append((["first_label_counted"], right * (total / all_labels)))
    if later_labels != total:
        found.append((["first_label_left_out"], right * (total / later_labels)))
    if accumulation > 1:
        added = sum(grad for _, grad, _ in means)
        found += [(["mean_of_means"], added / accumulation), (["scaled_by_steps"], added)]
        found += [([*names, "divided_twice"], grad / accumulation) for names, grad in found[:] if names != ["scaled_by_steps"]]
    return found


def off(got: Any, right: Any) -> float:
    return float((got - right).norm() / right.norm())


def measured(name: str) -> dict[str, Any]:
    """The row of a model class, without its release."""
    model = model_of(name)
    classes: set[str] = set()
    cases: dict[str, dict[str, float]] = {}
    all_labels, masked = rows_of((0, 0, 0, 0)), rows_of(MASKED)
    for case, steps, accumulation in (
        ("uneven", [all_labels], 4), ("masked", [masked], 4), ("one_batch", [all_labels], 1), ("later_step", [masked, all_labels], 4)
    ):  # fmt: skip
        rows = steps[-1]
        means = means_of(model, name, rows)
        got, loss = trained(model, steps, accumulation)
        candidates = gradients_of(means, rows, accumulation)
        right = candidates[0][1]
        names = next((names for names, grad in candidates if off(got, grad) < LIMIT), ["unexplained"])
        classes.update(names)
        mean = sum(count * one for count, _, one in means) / sum(count for count, _, _ in means)
        cases[case] = {"off": float(f"{off(got, right):.2g}")}
        if len(steps) == 1:  # of several the Trainer reports the mean
            cases[case]["loss"] = float(f"{loss / mean:.4g}")
            if not names and abs(loss / mean - 1) > LIMIT:
                classes.add("loss_wrong")
    return {"family": name, "classes": sorted(classes), "off": max(one["off"] for one in cases.values()), "cases": cases}


def one(release: str) -> list[dict[str, Any]]:
    """What of FAMILIES the release has; a class that could not be measured is named on stderr."""
    import transformers

    if transformers.__version__ != release:
        raise SystemExit(f"model_families: {transformers.__file__} is {transformers.__version__}, not {release}")
    transformers.logging.set_verbosity_error()
    rows = []
    for name in FAMILIES:
        try:
            with open(os.devnull, "w") as devnull, contextlib.redirect_stdout(devnull):
                rows.append({"release": release} | measured(name))
        except AttributeError as error:
            if hasattr(transformers, name):
                print(f"{release} {name}: not measured: {error}", file=sys.stderr)
        except Exception as error:  # one class that a release cannot train says nothing of the others
            print(f"{release} {name}: not measured: {type(error).__name__}: {error}"[:300], file=sys.stderr)
    return rows


def folder_of(release: str, into: str) -> list[str]:
    """The release's own modules and its environment, as a path of Python."""
    upstream = json.loads((ROOT / "env/pins.json").read_text())["upstreams"]["transformers"]
    pin = next((pin for pin in upstream["releases"] if pin["version"] == release), None)
    if pin is None:
        raise SystemExit(f"model_families: {release} is no release of env/pins.json")
    lock = ROOT / "env/locks" / f"{pin.get('environment', upstream['environment'])}.txt"

    def fetch(*words: str) -> str:
        return subprocess.run(
            [sys.executable, str(ROOT / "env/fetch.py"), *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    archive = fetch("file", upstream["project"], pin["file"], pin["sha256"])
    fetch("unzip", archive, into)
    below = [line.split()[1] for line in lock.read_text().splitlines() if line.startswith("-r ")]
    return [into, *(fetch("env", str(lock.parent / name)) for name in [lock.name, *below])]


def measure(releases: list[str]) -> int:
    sys.path.insert(0, str(ROOT / "env"))
    from json_rows import text_of

    for release in releases:
        with tempfile.TemporaryDirectory() as folder:
            path = os.pathsep.join(folder_of(release, str(Path(folder) / "site")))
            extra = {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, str(Path(__file__).resolve()), "one", release]
            printed = subprocess.run(command, env=os.environ | extra, stdout=subprocess.PIPE, text=True)
        if printed.returncode != 0:
            return printed.returncode
        table = json.loads(TABLE.read_text()) if TABLE.is_file() else {"upstream": "transformers", "rows": []}
        rows = [row for row in table["rows"] if row["release"] != release] + json.loads(printed.stdout)
        order = list(FAMILIES)
        rows.sort(key=lambda row: ([int(part) for part in row["release"].split(".")], order.index(row["family"])))
        TABLE.write_text(text_of(table | {"rows": rows}) + "\n")
        print(f"{release}: {sum(row['release'] == release for row in rows)} model classes")
    return 0


def main(words: list[str]) -> int:
    match words:
        case ["measure", *releases] if releases:
            return measure(releases)
        case ["one", release]:
            print(json.dumps(one(release)))
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
