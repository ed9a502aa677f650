"""Aggregation: how the loss terms of tokens become one loss, always over the whole batch.

The denominator and each row's share depend only on the rows' token counts before anything is rejected. Micro-batches,
packing and data parallelism therefore never change the loss or its gradient: the parts add up to it.
"""

import torch
from torch import Tensor

from asyncrl.core.recipe.algorithm import (
    AggregationConfig,
    ConstantAggregationConfig,
    SequenceMeanTokenMeanConfig,
    SequenceMeanTokenSumConfig,
    TokenMeanConfig,
)
from asyncrl.core.recipe.custom import CustomAggregationConfig
from learners.custom.calls import RowShares, call_aggregation, loaded
from learners.custom.inputs import AggregationInputs


def row_shares(loss_tokens: Tensor, weights: Tensor, config: AggregationConfig) -> Tensor:
    """float64 [rows], the factor that multiplies each row's loss terms.

    Args:
        loss_tokens: int64 [rows], the number of tokens of each row that may enter the loss, for the whole batch.
        weights: float64 [rows], the sampler's weights, which multiply the terms besides.
    """
    match config:
        case CustomAggregationConfig():
            return _custom(loss_tokens, weights, config).shares
        case SequenceMeanTokenMeanConfig():
            return 1.0 / loss_tokens.clamp(min=1).double()
        case TokenMeanConfig() | SequenceMeanTokenSumConfig() | ConstantAggregationConfig():
            return torch.ones_like(loss_tokens, dtype=torch.float64)


def denominator(loss_tokens: Tensor, weights: Tensor, config: AggregationConfig) -> float:
    """The number that divides the sum of the loss terms over the batch. Rows without a token in the loss do not count.

    Each row is weighted here as its terms are weighted in the sum. So the loss is a ratio of two estimates, both
    unbiased thanks to the sampler's weights: the sum of the terms, and the number of tokens (or rows), of all groups
    that were ready.

    Args:
        loss_tokens: int64 [rows], as in :func:`row_shares`.
        weights: float64 [rows], the sampler's weights; 1 where the sampler needs none.
    """
    rows = float(weights[loss_tokens > 0].sum())
    match config:
        case CustomAggregationConfig():
            return _custom(loss_tokens, weights, config).denominator
        case TokenMeanConfig():
            return float((weights * loss_tokens).sum())
        case SequenceMeanTokenSumConfig() | SequenceMeanTokenMeanConfig():
            return rows
        case ConstantAggregationConfig(tokens=tokens):
            return rows * tokens


def _custom(loss_tokens: Tensor, weights: Tensor, config: CustomAggregationConfig) -> RowShares:
    """Have a function of the user's own aggregate, unless no token may enter the loss."""
    if not int(loss_tokens.sum()):
        return RowShares(torch.ones_like(loss_tokens, dtype=torch.float64), 0.0)
    return call_aggregation(loaded(config), AggregationInputs(loss_tokens=loss_tokens, weights=weights))
