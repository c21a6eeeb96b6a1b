"""Hugging Face's Trainer with gradient accumulation: each micro-batch weighs by its labels.

Two hooks on the class object: `get_batch_samples` counts the labels of one optimizer step; `training_step` hands no count on, so that
every model returns the mean over its own micro-batch, goes backward from that mean times the micro-batch's share of the labels, and
returns that product, of which the reported loss is made. What the model's forward does with a count does not matter then.

Over which labels the loss is a mean is known of the release's own models. A forward of the user's is run once more, on the
micro-batch with the most labels, without gradients: the one cross entropy that it returns tells.

Mode "exact" (what "auto" stands for) is exact for a loss that is a mean over the labels: the gradient of a step is that of the mean
over all its labels. Under DistributedDataParallel, which averages the gradients of the ranks, they are the labels of all ranks with
`average_tokens_across_devices`, and without it each rank's loss is a mean over its own. The ranks agree on each step in one gather of
three numbers. Left to the release, said once each and counted as "left": what the user replaced (a loss in a subclass or on the
object, `training_step`, the samples or their count, accelerate's `backward`, a `compute_loss_func`, `loss_is_scaled_for_ga`), a loss
that is not one cross entropy, label smoothing, labels that cannot be counted, one process with several GPUs, FSDP, DeepSpeed and other
ways to spread a model. Releases before 4.46.0 have no `get_batch_samples` and are refused.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from patchbench_mitigations.after_import import LOG
from patchbench_mitigations.fingerprint import installed_version, own_function
from patchbench_mitigations.registry import MODE_AUTO
from patchbench_mitigations.switch import Finding, Hook, Mitigation, Placement

SLUG = "trainer_grad_accumulation"
UPSTREAM = "transformers"
TARGET = "transformers.trainer"
CLASS = "Trainer"
EXACT = "exact"
KEYS = tuple(f"{TARGET}:{CLASS}.{name}" for name in ("get_batch_samples", "training_step", "compute_loss"))
MEANS = ("ForCausalLMLoss", "ForMaskedLMLoss", "ForSequenceClassificationLoss", "ForTokenClassification")  # over the labels
# On a trainer: (by what the loss of a micro-batch of the step that is under way is divided, a label; whether the loss leaves out the first
# of each row), None where the step is left to the release; and what was seen of a user's model.
STEP, SEEN = "_patchbench_step", "_patchbench_seen"


# ---- what counts ----


def loss_of(model: torch.nn.Module) -> str:
    """The name under which the release lists this model's loss, "" for none. A model whose class no loss is listed for gets that of a
    causal language model if it generates."""
    losses = importlib.import_module("transformers.loss.loss_utils")
    names = sorted(losses.LOSS_MAPPING, key=len, reverse=True)
    listed = getattr(model, "loss_type", None) or next((n for n in names if n in type(model).__name__), None)
    if listed is None and hasattr(model, "can_generate") and model.can_generate():
        return "ForCausalLMLoss"
    return getattr(losses.LOSS_MAPPING.get(listed), "__name__", "")


def is_releases(model: torch.nn.Module) -> bool:
    """Whether the forward is the release's, or the one that Liger-Kernel puts in its place."""
    forward = getattr(model, "_original_forward", model.forward)  # accelerate keeps it there under mixed precision
    return inspect.unwrap(getattr(forward, "__func__", forward)).__module__.partition(".")[0] in ("transformers", "liger_kernel")


def num_labels(batch: dict[str, Any], is_shifted: bool) -> int:
    """The labels of a batch that its loss averages over."""
    if "shift_labels" in batch:
        return int(batch["shift_labels"].ne(-100).sum())
    return int((batch["labels"][..., 1:] if is_shifted else batch["labels"]).ne(-100).sum())


def model_of(trainer: Any) -> torch.nn.Module:
    model = trainer.accelerator.unwrap_model(trainer.model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def takes_count(model: torch.nn.Module) -> bool:
    """Whether the release hands the count of labels to a model of the user. A forward that takes keywords and ignores them cannot be told
    from one that hands them to its loss: that is why the hooks hand on none."""
    if hasattr(model, "accepts_loss_kwargs"):
        return bool(model.accepts_loss_kwargs)
    kinds = {p.kind for p in inspect.signature(model.forward).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds


class _Watch(torch.overrides.TorchFunctionMode):
    """Keeps the arguments by name and the result of each cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[dict[str, Any], torch.Tensor]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = function(*args, **(kwargs or {}))
        if function in (F.cross_entropy, F.nll_loss):
            bound = inspect.signature(function).bind(*args, **(kwargs or {}))
            bound.apply_defaults()
            self.seen.append((bound.arguments, answer))
        return answer


def shifts_by_itself(trainer: Any, batch: dict[str, Any]) -> bool | None:
    """Whether the loss that the model returns for a micro-batch is the mean over its labels but the first of each row; False: over all
    labels; None: over neither, or it cannot be seen. The model runs once, without gradients; its buffers and torch's random numbers
    are as before."""
    labels = batch["labels"].clone()
    labels[..., 0] = labels[labels.ne(-100)][0]  # one that counts, so that the two differ
    model = trainer.accelerator.unwrap_model(trainer.model)
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = list({p.device for p in model.parameters() if p.device.type == "cuda"})
    model.train()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices), _Watch() as watch, trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(model, trainer._prepare_inputs({**batch, "labels": labels}))
    except Exception:  # whatever a user's forward raises without a count
        return None
    finally:
        for buffer, value in kept:
            buffer.data.copy_(value)
    if len(watch.seen) != 1:
        return None
    (given, mean), *_ = watch.seen
    if given["reduction"] != "mean" or given["weight"] is not None or given["target"].is_floating_point() or not mean.to(loss).equal(loss):
        return None
    counted = int(given["target"].ne(given["ignore_index"]).sum())
    found = [is_shifted for is_shifted in (True, False) if num_labels({**batch, "labels": labels}, is_shifted) == counted]
    return found[0] if found else None


def shifts_labels(trainer: Any, batches: list[dict[str, Any]]) -> bool | None:
    """Whether the loss leaves out the first label of each row; None where it is not a mean over labels, or nobody can tell. What was
    seen of a user's model is kept on the trainer. Raises LookupError where no label of the step tells."""
    model = model_of(trainer)
    loss = loss_of(model) if is_releases(model) else ""
    if loss in MEANS:
        return loss == "ForCausalLMLoss" and not getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    known = vars(trainer).get(SEEN, (None, None))
    if known[0] is not model:
        fullest = max(batches, key=lambda batch: num_labels(batch, True))
        if not num_labels(fullest, True):
            raise LookupError  # rows of one label: a later step may tell
        known = (model, shifts_by_itself(trainer, fullest))
        setattr(trainer, SEEN, known)
    return known[1]


def users_own(trainer: Any) -> str:
    """What the user put in the place of something that takes part in a step, "" for nothing."""
    home, accelerate = sys.modules[TARGET], importlib.import_module("accelerate.accelerator")
    parts = [(trainer, name, home) for name in ("compute_loss", "training_step", "get_batch_samples", "_get_num_items_in_batch")]
    for holder, name, module in (*parts, (trainer.accelerator, "backward", accelerate)):
        function = getattr(type(holder), name, None)  # the third came with 4.51.0
        if name in vars(holder) or (function is not None and not own_function(function, module)):
            return f"{name} is the user's own"
    return ""


def how_spread(trainer: Any) -> str:
    """Why a step is left to the release for the way in which the run is spread, "" for no reason. The same on each rank."""
    kind = str(trainer.accelerator.distributed_type).rpartition(".")[2]
    if trainer.args.n_gpu > 1:
        return "one process has several GPUs"
    if kind == "DEEPSPEED" or getattr(trainer, "use_apex", False):
        return "another engine goes backward"
    if trainer.args.world_size > 1 and not kind.startswith("MULTI_"):
        return f"the model is spread by {kind}"
    if getattr(trainer.accelerator, "parallelism_config", None) is not None or getattr(trainer, "is_tp_enabled", False):
        return "the model is spread over the ranks"
    return ""


def why_left(trainer: Any) -> str:
    """Why a step is left to the release, whatever its labels are; "" for no reason."""
    if getattr(trainer, "compute_loss_func", None) is not None or getattr(trainer, "loss_is_scaled_for_ga", None) is not None:
        return "the trainer has a loss of its own"
    if getattr(trainer, "label_smoother", None) is not None:
        return "labels are smoothed"
    return users_own(trainer)


def counts_of(trainer: Any, batches: list[dict[str, Any]]) -> tuple[int, int, int]:
    """Of a rank's step: whether its loss leaves out the first label of each row (SHIFTED, WHOLE, UNTOLD where no label tells), or else
    UNSEEN or UNCOUNTED; its labels without the first of each row, and all."""
    try:
        shifted, every = (sum(num_labels(batch, is_shifted) for batch in batches) for is_shifted in (True, False))
        is_shifted = shifts_labels(trainer, batches)
    except LookupError as error:  # KeyError: a batch without labels
        return (UNCOUNTED, 0, 0) if isinstance(error, KeyError) else (UNTOLD, shifted, every)
    except (AttributeError, TypeError):
        return UNCOUNTED, 0, 0
    return {True: SHIFTED, False: WHOLE, None: UNSEEN}[is_shifted], shifted, every


UNTOLD, SHIFTED, WHOLE, UNSEEN, UNCOUNTED, LEFT = range(6)
WHY = {
    UNSEEN: "its loss is not seen to be a mean over its labels",
    UNCOUNTED: "its labels cannot be counted",
    LEFT: "another rank leaves it",
}


def step_of(trainer: Any, batches: list[dict[str, Any]]) -> tuple[tuple[float, bool] | None, str]:
    """What STEP holds of one optimizer step; and why it is left to the release."""
    if why := how_spread(trainer):
        return None, why
    why = why_left(trainer)
    own = (LEFT, 0, 0) if why else counts_of(trainer, batches)
    every, num_ranks = [own], trainer.args.world_size
    if num_ranks > 1:  # each rank has to come to the same, or they would wait for each other
        every = trainer.accelerator.gather(torch.tensor([own], device=trainer.args.device)).tolist()
    told = {code for code, *_ in every} - {UNTOLD}
    if left := told & WHY.keys():
        return None, why or WHY[max(left)]
    if len(told) != 1:
        return None, "its loss differs from rank to rank" if told else "no label counts"
    is_shifted = told == {SHIFTED}
    column = 1 if is_shifted else 2
    total = sum(one[column] for one in every)
    if not total:
        return None, "no label counts"
    if num_ranks == 1:
        return (total, is_shifted), ""
    # What the mean of the ranks' gradients divides by is multiplied by before.
    is_over_ranks = getattr(trainer.args, "average_tokens_across_devices", False)
    return (total / num_ranks if is_over_ranks else max(own[column], 1), is_shifted), ""


# ---- the hooks ----


def _samples_for(hook: Hook, original: Callable[..., Any]) -> Callable[..., Any]:
    said: set[str] = set()

    @functools.wraps(original)
    def get_batch_samples(self: Any, *args: Any, **words: Any) -> Any:
        batches, count = original(self, *args, **words)
        step, why = step_of(self, batches)
        setattr(self, STEP, step)
        if step is None:
            hook.serve(left=1)
        name = type(model_of(self)).__name__
        forward = "takes" if takes_count(model_of(self)) else "does not take"
        text = f"{name}: left to the release: {why}" if why else f"{name}, whose forward {forward} a count of labels, is weighed by labels"
        if not hook.is_proving and text not in said:
            said.add(text)
            LOG.warning("%s: %s", SLUG, text)
        return batches, count

    return get_batch_samples


def _step_for(hook: Hook, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def training_step(self: Any, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **words: Any) -> torch.Tensor:
        step = getattr(self, STEP, None)
        if step is None:
            return original(self, model, inputs, *args, **words)
        total, is_shifted = step
        share = num_labels(inputs, is_shifted) / total
        compute_loss, backward = self.compute_loss, self.accelerator.backward
        weighed: list[torch.Tensor] = []

        def keeps(*a: Any, **w: Any) -> Any:
            answer = compute_loss(*a, **w)
            loss = answer[0] if isinstance(answer, tuple) else answer
            # A micro-batch without a label has no mean.
            weighed.append(loss * share if share > 0 else loss.nan_to_num() * 0.0)
            return answer

        def goes_back(_: torch.Tensor, **w: Any) -> None:
            backward(weighed[0] * self.accelerator.gradient_accumulation_steps, **w)  # by which accelerate divides

        self.compute_loss, self.accelerator.backward = keeps, goes_back
        try:
            original(self, model, inputs)
        finally:
            del self.compute_loss, self.accelerator.backward
        hook.serve(served=1)
        return weighed[0].detach()

    return training_step


# ---- probe: one optimizer step of the release's Trainer, in a process of its own ----


class _NoArgument(torch.nn.Module):
    """A user's own model, whose forward takes no count."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.model(input_ids).logits[:, :-1]
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())}


class _Ignores(_NoArgument):
    """The same, with keywords that it does not look at."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return super().forward(input_ids, labels)


class NoArgumentForCausalLM(_NoArgument):
    pass


class IgnoresForCausalLM(_Ignores):
    pass


class Decoder(_NoArgument):
    pass


def _deviation(transformers: Any, wrap: Callable[[torch.nn.Module], torch.nn.Module]) -> float:
    """How far the gradient of one step over rows of 9, 2 and 4 tokens is from that of the mean over their labels."""
    torch.manual_seed(22)
    sizes = {"n_layer": 1, "n_head": 1, "n_embd": 8, "vocab_size": 11, "n_positions": 16}
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    core = transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes, **off))
    model, rows = wrap(core), [torch.randint(0, 11, (n,)) for n in (9, 2, 4)]
    weight = core.transformer.wte.weight
    losses = [F.cross_entropy(core(r[None]).logits[0, :-1], r[1:], reduction="sum") for r in rows]
    (right,) = torch.autograd.grad(torch.stack(losses).sum() / sum(len(r) - 1 for r in rows), weight)
    kept: list[torch.Tensor] = []

    class Keeps(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            kept.append(weight.grad.clone())

    optimizer = Keeps(model.parameters(), lr=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=1, gradient_accumulation_steps=len(rows), max_steps=1, max_grad_norm=0.0,
            use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, remove_unused_columns=False,
            label_names=["labels"])  # fmt: skip
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=[{"input_ids": r, "labels": r} for r in rows], optimizers=(optimizer, schedule),
            data_collator=lambda batch: {name: torch.stack([row[name] for row in batch]) for name in batch[0]})  # fmt: skip
        trainer.train()
    return ((kept[0] - right).norm() / right.norm()).item()


MODELS: dict[str, Callable[[torch.nn.Module], torch.nn.Module]] = {
    "GPT2LMHeadModel": lambda core: core,
    "a forward that takes no count": NoArgumentForCausalLM,
    "a forward that ignores it": IgnoresForCausalLM,
    "a loss of the model's own": Decoder,
}


def tell() -> None:
    """Prints {"release": {model: deviation}, "mitigated": …}; what the probe's process runs."""
    import transformers

    told = {"release": {name: _deviation(transformers, wrap) for name, wrap in MODELS.items()}}
    trainer, hook = transformers.Trainer, Hook(EXACT, Finding("", ""), "", "", _own, Counter(dict.fromkeys(_own.counted, 0)))
    trainer.get_batch_samples = _samples_for(hook, trainer.get_batch_samples)
    trainer.training_step = _step_for(hook, trainer.training_step)
    told["mitigated"] = {name: _deviation(transformers, wrap) for name, wrap in MODELS.items()}
    print(json.dumps(told), flush=True)


@functools.cache
def observed() -> dict[str, dict[str, float]]:
    """What `tell` prints; {} where its process fails. A Trainer sets up state of the process that it runs in, and the user's run has not
    begun: therefore the process of its own, without GPUs and without the variables of a distributed run."""
    of_run = ("RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "ACCELERATE_", "PATCHBENCH_MITIGATE", "CUDA_VISIBLE_DEVICES", "SLURM_", "OMPI_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(of_run)}
    env |= {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-c", f"from patchbench_mitigations.{SLUG} import tell; tell()"]
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=600, check=True)
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}


def _wrong(deviations: dict[str, float]) -> Iterator[str]:
    return (f"{name}: {value:.0e} off" for name, value in deviations.items() if not value < 1e-3)


# ---- switch ----


class _Accumulation(Mitigation):
    slug, package, op, keys = SLUG, UPSTREAM, "", KEYS
    counted = ("served", "left")

    def meaning(self, mode: str) -> str:
        return EXACT if mode == MODE_AUTO else mode

    def op_note(self, mode: str) -> str:
        return "no op: the release computes"

    def served_by(self, hook: Hook) -> str:
        return "the release's own loss, weighed by labels (one process, or DistributedDataParallel)"

    def release(self) -> tuple[type, str]:
        try:
            trainer = getattr(importlib.import_module(TARGET), CLASS)
        except (ImportError, AttributeError, RuntimeError) as e:
            raise self.refusal(f"{TARGET} cannot be imported ({e}); is transformers installed?") from e
        if not hasattr(trainer, "get_batch_samples"):
            raise self.refusal(f"{CLASS} has no get_batch_samples: the labels of a step are not known before it; 4.46.1 and newer have it")
        for name in ("get_batch_samples", "training_step"):
            if not own_function(getattr(trainer, name), sys.modules[TARGET]):
                raise self.refusal(f"{CLASS}.{name} is wrapped already; undo that first")
        return trainer, installed_version(UPSTREAM, TARGET)

    def look(self, release: type, version: str) -> Finding:
        seen = observed()
        if not seen:
            return Finding("unknown", version, "the probe's process gave no answer")
        wrong = list(_wrong(seen["release"]))
        state = "micro_batches_weighed_wrongly" if wrong else "right"
        return Finding(state, version, "; ".join(wrong) or "four models get the mean over the labels")

    def placements(self, release: type, hook: Hook) -> list[Placement]:
        made = {"get_batch_samples": _samples_for, "training_step": _step_for}
        return [
            Placement(release, name, vars(release)[name], make(hook, vars(release)[name]), f"{CLASS}.{name}") for name, make in made.items()
        ]

    def left(self, release: type, hook: Hook) -> str:
        return "; ".join(_wrong(observed().get("mitigated", {"the probe": float("nan")})))


_own = _Accumulation()
probe, enable, disable, status = _own.probe, _own.enable, _own.disable, _own.status
