"""Tallies: the sums behind the learner's readings. Those of micro-batches and data-parallel ranks add up to exact
global values."""

from collections.abc import Callable

import torch
from torch import Tensor

from asyncrl.core.measures.metrics import Metric

Tally = dict[Metric, Tensor]
"""For each metric, float64 [2]: the total, and the weight behind it. The tallies of a batch's parts add up to the
batch's tally."""


def tally_means(values: dict[Metric, Tensor], chosen: Tensor) -> Tally:
    """Sum each metric's ``values``, one for each token, over the ``chosen`` tokens (bool [tokens]); the weight is their
    number."""
    weight = chosen.sum(dtype=torch.float64)
    return {
        metric: torch.stack([torch.where(chosen, value.detach(), 0).sum(dtype=torch.float64), weight])
        for metric, value in values.items()
    }


def tally_count(metric: Metric, chosen: Tensor) -> Tally:
    """Count the ``chosen`` tokens (bool [tokens])."""
    count = chosen.sum(dtype=torch.float64)
    return {metric: torch.stack([count, torch.ones_like(count)])}


def tally_total(metric: Metric, total: Tensor) -> Tally:
    """Tally a scalar whose parts add up to the batch's."""
    total = total.detach().double()
    return {metric: torch.stack([total, torch.ones_like(total)])}


def add_to(tally: Tally, part: Tally) -> None:
    """Add ``part`` to ``tally`` in place."""
    for metric, sums in part.items():
        tally[metric] = tally[metric] + sums if metric in tally else sums


def summed(tally: Tally, all_reduce: Callable[[Tensor], None]) -> Tally:
    """Return the sum of all ranks' tallies, which hold the same metrics. ``all_reduce`` sums its argument over ranks,
    in place."""
    stacked = torch.stack(list(tally.values()))
    all_reduce(stacked)
    return dict(zip(tally, stacked, strict=True))
