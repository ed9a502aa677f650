"""How often a model would solve tasks, without running a single episode.

In an ideal demonstration every turn is determined by the task, and the tool answers a right call always the same. So a greedy
episode succeeds if and only if every spoken token is the model's first choice given the demonstration before it, and an episode
sampled at temperature 1 follows the demonstration with the product of its tokens' probabilities. One forward pass measures both.
(An episode that leaves the demonstration and still ends well is not counted.)
"""

from collections.abc import Sequence

import msgspec
import torch
from transformers import Qwen3ForCausalLM

from learners.tiny.conversations import PaddedRows


class Success(msgspec.Struct, frozen=True):
    """Share of tasks solved, by kind of task: by number of operations, from one on.

    Attributes:
        greedy: at temperature 0.
        sampled: expected at temperature 1.
    """

    greedy: tuple[float, ...]
    sampled: tuple[float, ...]

    @property
    def mean_greedy(self) -> float:
        """The mean of ``greedy`` over equally many tasks of each kind."""
        return sum(self.greedy) / len(self.greedy)


def spoken_logits(model: Qwen3ForCausalLM, rows: PaddedRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [S, V] that predict the S spoken tokens of ``rows``, and those tokens' ids [S]."""
    hidden = model.model(input_ids=rows.token_ids[:, :-1], use_cache=False).last_hidden_state
    spoken = rows.spoken[:, 1:]
    return model.lm_head(hidden[spoken]), rows.token_ids[:, 1:][spoken]


@torch.no_grad()
def measure(model: Qwen3ForCausalLM, kinds: Sequence[PaddedRows]) -> Success:
    """Success on ideal demonstrations of each kind of task."""
    greedy, sampled = [], []
    for rows in kinds:
        logits, targets = spoken_logits(model, rows)
        spoken = rows.spoken[:, 1:]
        right = torch.ones(spoken.shape, dtype=torch.bool)
        right[spoken] = logits.argmax(-1) == targets
        logprobs = torch.zeros(spoken.shape)
        logprobs[spoken] = -torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        greedy.append(right.all(1).float().mean().item())
        sampled.append(logprobs.sum(1).exp().mean().item())
    return Success(tuple(greedy), tuple(sampled))
