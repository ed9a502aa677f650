"""Aggregation: how the loss terms of tokens become one loss, always over the whole batch.

The denominator and each sequence's share depend only on token counts before anything is rejected. Micro-batches, packing and
data parallelism therefore never change the loss or its gradient: the parts add up to it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from asyncrl.core.batch import BatchRow
from asyncrl.core.recipe.algorithm import (
    AggregationConfig,
    ConstantAggregationConfig,
    SequenceMeanTokenMeanConfig,
    SequenceMeanTokenSumConfig,
    TokenMeanConfig,
)
from asyncrl.core.recipe.custom import CustomAggregationConfig
from asyncrl.learners.custom.calls import RowShares, call_aggregation, loaded
from asyncrl.learners.custom.inputs import AggregationInputs


class Sequences(NamedTuple):
    """What aggregation counts: the episodes of the rows, or each row as one.

    Attributes:
        loss_tokens: int64 [sequences], the number of tokens of each that may enter the loss, for the whole batch.
        weights: float64 [sequences], the sampler's weights; 1 where the sampler needs none.
        of_rows: int64 [rows], the sequence that each row belongs to.
    """

    loss_tokens: Tensor
    weights: Tensor
    of_rows: Tensor

    @classmethod
    def of(cls, rows: Sequence[BatchRow], config: AggregationConfig) -> "Sequences":
        """Return the sequences of the rows of a batch."""
        by_episode = not isinstance(config, TokenMeanConfig) and config.unit == "episode"
        names = [row.episode for row in rows] if by_episode else list(range(len(rows)))
        number = {name: place for place, name in enumerate(dict.fromkeys(names))}
        of_rows = torch.tensor([number[name] for name in names], dtype=torch.int64)
        tokens = torch.tensor([row.loss_tokens for row in rows], dtype=torch.int64)
        weights = torch.zeros(len(number), dtype=torch.float64)
        weights[of_rows] = torch.tensor([row.weight for row in rows], dtype=torch.float64)
        return cls(torch.zeros(len(number), dtype=torch.int64).index_add(0, of_rows, tokens), weights, of_rows)


def shares(sequences: Sequences, config: AggregationConfig) -> Tensor:
    """float64 [sequences], the factor that multiplies the loss terms of each, besides the sampler's weight."""
    loss_tokens = sequences.loss_tokens
    match config:
        case CustomAggregationConfig():
            return _custom(sequences, config).shares
        case SequenceMeanTokenMeanConfig():
            return 1.0 / loss_tokens.clamp(min=1).double()
        case TokenMeanConfig() | SequenceMeanTokenSumConfig() | ConstantAggregationConfig():
            return torch.ones_like(loss_tokens, dtype=torch.float64)


def denominator(sequences: Sequences, config: AggregationConfig) -> float:
    """The number that divides the sum of the loss terms over the batch. Sequences without a token in the loss do not count.

    Each sequence is weighted here as its terms are weighted in the sum. So the loss is a ratio of two estimates, both
    unbiased thanks to the sampler's weights: the sum of the terms, and the number of tokens (or sequences), of all groups
    that were ready.
    """
    loss_tokens, weights = sequences.loss_tokens, sequences.weights
    count = float(weights[loss_tokens > 0].sum())
    match config:
        case CustomAggregationConfig():
            return _custom(sequences, config).denominator
        case TokenMeanConfig():
            return float((weights * loss_tokens).sum())
        case SequenceMeanTokenSumConfig() | SequenceMeanTokenMeanConfig():
            return count
        case ConstantAggregationConfig(tokens=tokens):
            return count * tokens


def _custom(sequences: Sequences, config: CustomAggregationConfig) -> RowShares:
    """Have a function of the user's own aggregate, unless no token may enter the loss."""
    loss_tokens = sequences.loss_tokens
    if not int(loss_tokens.sum()):
        return RowShares(torch.ones_like(loss_tokens, dtype=torch.float64), 0.0)
    return call_aggregation(loaded(config), AggregationInputs(loss_tokens=loss_tokens, weights=sequences.weights))
