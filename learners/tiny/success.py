"""How many tasks a model would solve greedily, measured without playing a single episode, to show how a warm-up goes on.

In an ideal demonstration, the task determines every turn, and the tool always gives the same answer to a correct call.
So a greedy episode succeeds if and only if each of the assistant's tokens is the model's first choice after the
demonstration up to there, which one forward pass shows. (An episode that departs from the demonstration and still ends
well does not count.)
"""

from collections.abc import Sequence
from statistics import fmean

import torch
from transformers import DynamicCache, Qwen3ForCausalLM

from learners.tiny.conversations import PaddedRows

_PAYS = 100
"""Tokens from which on it pays to compute once what all rows begin with."""


def spoken_logits(model: Qwen3ForCausalLM, rows: PaddedRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [S, V] that predict the assistant's S tokens in ``rows``, and the ids [S] of those tokens.

    What all rows begin with is computed once: with the templates of others, that is half of a row and more.
    """
    shared = _shared(rows)
    beginning, rest = rows.token_ids[:1, :shared], rows.token_ids[:, shared:]
    cache = None
    if shared:
        cache = DynamicCache()
        for number, layer in enumerate(model.model(input_ids=beginning, use_cache=True).past_key_values.layers):
            cache.update(*(each.expand(len(rest), -1, -1, -1) for each in (layer.keys, layer.values)), number)
    hidden = model.model(input_ids=rest[:, :-1], past_key_values=cache, use_cache=bool(shared)).last_hidden_state
    spoken = rows.spoken[:, shared + 1 :]
    return model.lm_head(hidden[spoken]), rest[:, 1:][spoken]


def _shared(rows: PaddedRows) -> int:
    """Return how many tokens all rows begin with, without the last one that none of them speaks; 0 if sharing does not pay."""
    alike = (rows.token_ids == rows.token_ids[:1]).all(0) & ~rows.spoken.any(0)
    shared = int(alike.long().cumprod(0).sum()) - 1
    return shared if shared >= _PAYS else 0


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
