"""Two published reward architectures that transformers does not carry. Needs torch and transformers.

The names of weights and settings are those of the published checkpoints. Sequences are padded on the right. Importing this
file makes the transformers auto classes know the first; `PUBLISHED` finds the second.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, LlamaConfig, LlamaModel, LlamaPreTrainedModel
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXConfig, GPTNeoXModel, GPTNeoXPreTrainedModel
from transformers.utils import ModelOutput


@dataclass
class RewardOutput(ModelOutput):  # type: ignore[misc]  # here and below: transformers is not followed
    """Scores, shape (batch, 1), under both names that reward models use."""

    logits: torch.Tensor | None = None
    score: torch.Tensor | None = None


class GPTNeoXRewardConfig(GPTNeoXConfig):  # type: ignore[misc]
    """A GPT-NeoX configuration under the model type of OpenAssistant's checkpoints."""

    model_type = "gpt_neox_reward_model"
    pooling: str = "last"


class GPTNeoXRewardModel(GPTNeoXPreTrainedModel):  # type: ignore[misc]
    """`OpenAssistant/oasst-rm-2.1-pythia-1.4b-epoch-2.5` and its kin: one linear layer on the last token's hidden state."""

    config_class = GPTNeoXRewardConfig

    def __init__(self, config: GPTNeoXRewardConfig) -> None:
        super().__init__(config)
        if config.pooling != "last":
            raise ValueError(f"pooling {config.pooling!r} is not supported; the published models use 'last'")
        self.gpt_neox = GPTNeoXModel(config)
        self.out_proj = torch.nn.Linear(config.hidden_size, 1)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> RewardOutput:
        """Scores of sequences padded on the right."""
        hidden = self.gpt_neox(input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        score = self.out_proj(_at(hidden, attention_mask.sum(dim=1) - 1))
        return RewardOutput(logits=score, score=score)


class Gating(torch.nn.Module):  # type: ignore[misc]
    """Weights of the objectives, from the hidden state at the end of the prompt."""

    def __init__(self, config: LlamaConfig, objectives: int) -> None:
        super().__init__()
        width = getattr(config, "gating_hidden_dim", 1024)
        sizes = [config.hidden_size, *[width] * getattr(config, "gating_n_hidden", 3), objectives]
        self.temperature = getattr(config, "gating_temperature", 10)
        self.logit_scale = torch.nn.Parameter(torch.ones(1))
        self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Weights, shape (batch, objectives)."""
        *first, last = self.layers
        for layer in first:
            hidden = layer(hidden).relu()
        weights: torch.Tensor = (last(hidden) / self.temperature).softmax(dim=-1) * self.logit_scale
        return weights


class LlamaForRewardModelWithGating(LlamaPreTrainedModel):  # type: ignore[misc]
    """`RLHFlow/ArmoRM-Llama3-8B-v0.1`: objectives read at the last token, weighted by what is read at the end of the prompt.

    The checkpoint brings code of its own, which does not import with current versions of transformers; this takes its place.
    """

    config_class = LlamaConfig
    END_OF_PROMPT = (128009, 128006, 78191, 128007, 271)  # <|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        objectives = getattr(config, "num_objectives", 19)
        self.model = LlamaModel(config)
        self.regression_layer = torch.nn.Linear(config.hidden_size, objectives, bias=False)
        self.reward_transform_matrix = torch.nn.Parameter(torch.eye(objectives), requires_grad=False)
        self.gating = Gating(config, objectives)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> RewardOutput:
        """Scores of sequences padded on the right, each with an assistant's turn."""
        hidden = self.model(input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        objectives = self.regression_layer(_at(hidden, attention_mask.sum(dim=1) - 1)) @ self.reward_transform_matrix
        prompt_ends = torch.tensor([self._end_of_prompt(row) for row in input_ids.tolist()], device=hidden.device)
        score = (self.gating(_at(hidden, prompt_ends)) * objectives).sum(dim=-1, keepdim=True)
        return RewardOutput(logits=score, score=score)

    def _end_of_prompt(self, tokens: list[int]) -> int:
        """Where the header of the last assistant's turn begins."""
        size = len(self.END_OF_PROMPT)
        starts = [start for start in range(len(tokens) - size + 1) if tuple(tokens[start : start + size]) == self.END_OF_PROMPT]
        return starts[-1]


PUBLISHED: dict[str, Any] = {"LlamaForRewardModelWithGating": LlamaForRewardModelWithGating}
"""Architectures by the name in a checkpoint's configuration, where its model type does not tell."""

AutoConfig.register(GPTNeoXRewardConfig.model_type, GPTNeoXRewardConfig)
AutoModelForSequenceClassification.register(GPTNeoXRewardConfig, GPTNeoXRewardModel)


def _at(hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The hidden state at one position a sequence, shape (batch, hidden)."""
    return hidden[torch.arange(len(hidden), device=hidden.device), positions]
