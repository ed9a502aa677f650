"""How long the learner trains a batch: the production packer divides it over ranks and micro-batches, and rates say the rest."""

from collections.abc import Sequence

import msgspec

from asyncrl.core.batch import Batch
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.batches import packing
from asyncrl.simulation.rates import LearnerRates

_LEAST_PREAMBLE = 16
"""A preamble of fewer tokens is not shared (``asyncrl.learners.batches.prefixes``)."""


class Work(msgspec.Struct, frozen=True):
    """What a batch gives to compute: tokens, rows and micro-batches of the data-parallel rank with the most tokens."""

    tokens: int
    rows: int
    micro_batches: int


def work(batch: Batch, recipe: Recipe, preamble: int, scale: float = 1) -> Work:
    """Divide a batch as the learner does.

    A batch that stands for one that is ``scale`` times as large is divided over as many times fewer ranks, so that each has the
    rows of a real one: with fewer, its longest row would be its load.

    Args:
        preamble: tokens that all prompts begin with.
    """
    config = recipe.learner
    shares = config.context_parallel == 1
    divided = max(1, round(config.data_parallel / scale))
    times = scale * divided / config.data_parallel
    ranks = packing.plan(batch, divided, config.micro_batch_tokens, share_prefixes=shares)
    tokens = [sum(_computed(batch, rows, preamble if shares else 0) for rows in rank) for rank in ranks]
    most = max(range(len(ranks)), key=tokens.__getitem__)
    return Work(round(times * tokens[most]), round(times * sum(map(len, ranks[most]))), round(times * len(ranks[most])))


def _computed(batch: Batch, rows: Sequence[int], preamble: int) -> int:
    """Tokens of one micro-batch, where the prompt of a group, which is the same in all its rows, is computed once, and so is the
    preamble of all groups."""
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(batch.rows[row].group_id, []).append(row)
    tokens, sharing = 0, 0
    for members in groups.values():
        prefix = min(batch.rows[row].prompt_length for row in members) - 1 if len(members) > 1 else 0
        sharing += prefix >= preamble > 0
        # What a row has from its last sampled token on predicts nothing, and is not computed.
        tokens += sum(batch.rows[row].length - 1 for row in members) - prefix * (len(members) - 1)
    return tokens - (preamble * (sharing - 1) if preamble >= _LEAST_PREAMBLE and sharing > 1 else 0)


def seconds(rates: LearnerRates, given: Work) -> tuple[float, float]:
    """Return how long a training step takes, and the part of it that does not depend on the batch."""
    fixed = rates.step.value
    return (
        fixed + given.tokens * rates.token.value + given.rows * rates.row.value + given.micro_batches * rates.micro_batch.value,
        fixed,
    )
