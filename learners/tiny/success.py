"""How many tasks a model would solve greedily, measured without playing a single episode, to show how a warm-up goes on.

In an ideal demonstration, the task determines every turn, and the tool always gives the same answer to a correct call.
So a greedy episode succeeds if and only if each of the assistant's tokens is the model's first choice after the
demonstration up to there, which one forward pass shows. (An episode that departs from the demonstration and still ends
well does not count.)
"""

from collections.abc import Sequence
from statistics import fmean

import torch
from transformers import Qwen3ForCausalLM

from learners.tiny.conversations import PaddedRows


def spoken_logits(model: Qwen3ForCausalLM, rows: PaddedRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [S, V] that predict the assistant's S tokens in ``rows``, and the ids [S] of those tokens."""
    hidden = model.model(input_ids=rows.token_ids[:, :-1], use_cache=False).last_hidden_state
    spoken = rows.spoken[:, 1:]
    return model.lm_head(hidden[spoken]), rows.token_ids[:, 1:][spoken]


@torch.no_grad()
def measure(model: Qwen3ForCausalLM, kinds: Sequence[PaddedRows | None]) -> float:
    """The share of tasks solved greedily, averaged over the kinds of tasks, each with equal weight.

    Args:
        model: the model to measure.
        kinds: for each kind of task, ideal demonstrations; None if there are none.
    """
    shares = []
    for rows in kinds:
        if rows is None:
            continue
        logits, targets = spoken_logits(model, rows)
        spoken = rows.spoken[:, 1:]
        right = torch.ones(spoken.shape, dtype=torch.bool)
        right[spoken] = logits.argmax(-1) == targets
        shares.append(right.all(1).float().mean().item())
    return fmean(shares)
