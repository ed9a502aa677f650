"""How many tasks a model would solve greedily, without running a single episode.

In an ideal demonstration every turn is determined by the task, and the tool always answers a right call in the same way. So a
greedy episode succeeds if and only if every spoken token is the model's first choice given the demonstration before it, and one
forward pass tells. (An episode that leaves the demonstration and still ends well is not counted.)
"""

from collections.abc import Sequence
from statistics import fmean

import torch
from transformers import Qwen3ForCausalLM

from learners.tiny.conversations import PaddedRows


def spoken_logits(model: Qwen3ForCausalLM, rows: PaddedRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [S, V] that predict the S spoken tokens of ``rows``, and those tokens' ids [S]."""
    hidden = model.model(input_ids=rows.token_ids[:, :-1], use_cache=False).last_hidden_state
    spoken = rows.spoken[:, 1:]
    return model.lm_head(hidden[spoken]), rows.token_ids[:, 1:][spoken]


@torch.no_grad()
def measure(model: Qwen3ForCausalLM, kinds: Sequence[PaddedRows]) -> float:
    """Share of tasks solved greedily, over equally many of each kind, by ideal demonstrations of each kind."""
    shares = []
    for rows in kinds:
        logits, targets = spoken_logits(model, rows)
        spoken = rows.spoken[:, 1:]
        right = torch.ones(spoken.shape, dtype=torch.bool)
        right[spoken] = logits.argmax(-1) == targets
        shares.append(right.all(1).float().mean().item())
    return fmean(shares)
