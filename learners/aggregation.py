"""How the loss terms of tokens become one loss, always over the whole batch.

The denominator and each row's share follow from the rows' token counts before anything is rejected. Micro-batches, packing and
data parallelism therefore never change the loss or its gradient: the sums of the parts add up to it.
"""

import torch
from torch import Tensor

from asyncrl.core.recipe.algorithm import (
    Aggregation,
    ConstantAggregation,
    SequenceMeanTokenMean,
    SequenceMeanTokenSum,
    TokenMean,
)


def row_shares(loss_tokens: Tensor, config: Aggregation) -> Tensor:
    """float64 [rows], the factor of each row's loss terms.

    Args:
        loss_tokens: int64 [rows], tokens of each row of the whole batch that may enter the loss.
    """
    match config:
        case SequenceMeanTokenMean():
            return 1.0 / loss_tokens.clamp(min=1).double()
        case TokenMean() | SequenceMeanTokenSum() | ConstantAggregation():
            return torch.ones_like(loss_tokens, dtype=torch.float64)


def denominator(loss_tokens: Tensor, weights: Tensor, config: Aggregation) -> float:
    """The number that the sum over the batch is divided by. Rows without a token in the loss do not count.

    A row counts as much here as its terms count in the sum. So the loss is the ratio of two estimates that the sampler's weights
    make unbiased: of the terms, and of the tokens (or rows), of all groups that were ready.

    Args:
        loss_tokens: int64 [rows], as in :func:`row_shares`.
        weights: float64 [rows], the sampler's weights; 1 where it needs none.
    """
    rows = float(weights[loss_tokens > 0].sum())
    match config:
        case TokenMean():
            return float((weights * loss_tokens).sum())
        case SequenceMeanTokenSum() | SequenceMeanTokenMean():
            return rows
        case ConstantAggregation(tokens=tokens):
            return rows * tokens
