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
    """What a batch gives to compute.

    Attributes:
        tokens, rows, micro_batches: of the data-parallel rank with the most tokens; a pass over it computes ``tokens``.
        computed: tokens that a pass computes on all data-parallel ranks together.
        balance: tokens of a rank on average over those of the one with the most.
    """

    tokens: int
    rows: int
    micro_batches: int
    computed: int
    balance: float


def work(batch: Batch, recipe: Recipe, preamble: int, times: float = 1) -> Work:
    """Divide a batch as the learner does.

    Args:
        preamble: tokens that all prompts begin with.
        times: how many times as large the batch is that this one stands for.
    """
    config = recipe.learner
    shares = config.context_parallel == 1
    ranks = packing.plan(batch, config.data_parallel, config.micro_batch_tokens, share_prefixes=shares)
    tokens = [sum(_computed(batch, rows, preamble if shares else 0) for rows in rank) for rank in ranks]
    most = max(range(len(ranks)), key=tokens.__getitem__)
    computed = round(times * sum(tokens))
    return Work(
        round(times * tokens[most]),
        round(times * sum(map(len, ranks[most]))),
        round(times * len(ranks[most])),
        computed,
        computed / len(ranks) / max(1, times * tokens[most]),
    )


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
