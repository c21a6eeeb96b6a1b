"""Small language models of our own (a table of embeddings, a head) that differ in what forward does with the trainer's count of labels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel


class TinyConfig(PretrainedConfig):
    model_type = "tiny"

    def __init__(self, vocab_size: int = 2, hidden_size: int = 1, **rest: Any) -> None:
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        super().__init__(**rest)


class Tiny(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config: TinyConfig) -> None:
        super().__init__(config)
        self.table = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def _init_weights(self, module: torch.nn.Module) -> None:
        pass

    def next_token_loss(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean over the labels of this batch, by a loss of the model's own."""
        logits = self.head(self.table(input_ids))[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


class TinyForCausalLM(Tiny, GenerationMixin):
    """As the release's models: what the trainer hands over goes to the release's own loss, where it has one (from 4.46 on)."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **loss_kwargs: Any) -> dict[str, torch.Tensor]:
        if not hasattr(PreTrainedModel, "loss_function"):
            return {"loss": self.next_token_loss(input_ids, labels)}
        logits = self.head(self.table(input_ids))
        return {"loss": self.loss_function(logits, labels, self.config.vocab_size, **loss_kwargs)}

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": input_ids}


class TinyLMHeadModel(TinyForCausalLM):
    """The same under a name for which the release lists no loss, as GPT2LMHeadModel: it gets the loss of a causal model by default."""


class TinyTagger(Tiny):
    """A loss of its own, one label for each position, that reads the count."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **loss_kwargs: Any) -> dict[str, torch.Tensor]:
        logits = self.head(self.table(input_ids)).flatten(0, 1)
        count = loss_kwargs.get("num_items_in_batch")
        if count is None:
            return {"loss": F.cross_entropy(logits, labels.flatten())}
        return {"loss": F.cross_entropy(logits, labels.flatten(), reduction="sum") / count}


class TinyForTokenClassification(TinyTagger):
    """The same under a name for which the release lists a loss that does not shift its labels."""


class NoArgumentForCausalLM(Tiny):
    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.next_token_loss(input_ids, labels)}


class NoArgumentDecoder(NoArgumentForCausalLM):
    """The same under a name that says nothing of its loss."""


class TargetsForCausalLM(Tiny):
    """Its labels have another name, so that a trainer counts none."""

    def forward(self, input_ids: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.next_token_loss(input_ids, targets)}


class IgnoringForCausalLM(Tiny):
    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return {"loss": self.next_token_loss(input_ids, labels)}


BY_FORWARD = {
    "reads": TinyForCausalLM,
    "reads_unlisted": TinyLMHeadModel,
    "reads_unshifted": TinyTagger,
    "reads_listed_unshifted": TinyForTokenClassification,
    "takes_none": NoArgumentForCausalLM,
    "takes_none_unlisted": NoArgumentDecoder,
    "takes_targets": TargetsForCausalLM,
    "ignores": IgnoringForCausalLM,
}
