"""Which rows each data-parallel rank trains, in which micro-batches. Pure planning; the same answer on every rank.

What always holds of a plan:
* every row of the batch is in it exactly once;
* every data-parallel rank has the same number of micro-batches, at least one, as the pipeline's schedule needs; if rows are
  few and long, some may be empty;
* no micro-batch holds more than ``micro_batch_tokens`` tokens;
* tokens are balanced by assigning the longest row first: the heaviest micro-batch is within 4/3 of the best possible
  (Graham 1969);
* the plan depends on the batch's rows and the arguments alone;
* in a micro-batch the longest rows come first, so that rows of similar length are neighbours.
"""

import heapq
from collections.abc import Sequence
from math import ceil

from asyncrl.core.batch import Batch
from asyncrl.core.errors import RecipeError

FP8_MULTIPLE = 16
"""TransformerEngine multiplies matrices in fp8 only if their sides, tokens and channels, are multiples of this."""

MicroBatchRows = list[int]
"""Indexes into ``Batch.rows``."""


def plan(batch: Batch, data_parallel: int, micro_batch_tokens: int) -> list[list[MicroBatchRows]]:
    """Micro-batches of each data-parallel rank, in the order they are trained.

    As few micro-batches as the token budget and the greedy assignment allow.

    Raises:
        RecipeError: if a row alone is longer than the budget.
    """
    lengths = [row.length for row in batch.rows]
    longest = max(lengths, default=0)
    if longest > micro_batch_tokens:
        row = batch.rows[lengths.index(longest)]
        raise RecipeError(
            "learner.micro_batch_tokens",
            f"{micro_batch_tokens} tokens cannot hold sample {row.sample_index} of group {row.group_id}, which has {longest}",
            f"set it to at least {longest}, best to model.max_context or more",
        )
    micro_batches = max(1, ceil(sum(lengths) / (micro_batch_tokens * data_parallel)))
    while True:
        parts = _spread(lengths, micro_batches * data_parallel)
        if all(sum(lengths[row] for row in part) <= micro_batch_tokens for part in parts):
            return _deal(parts, lengths, data_parallel)
        micro_batches += 1


def _spread(lengths: Sequence[int], count: int) -> list[MicroBatchRows]:
    """``count`` parts: the longest row first, each row goes into the part with the fewest tokens so far."""
    parts: list[MicroBatchRows] = [[] for _ in range(count)]
    lightest = [(0, part) for part in range(count)]
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        tokens, part = lightest[0]
        parts[part].append(row)
        heapq.heapreplace(lightest, (tokens + lengths[row], part))
    return parts


def _deal(parts: list[MicroBatchRows], lengths: Sequence[int], data_parallel: int) -> list[list[MicroBatchRows]]:
    """Give each rank as many parts as the others, heaviest first; the order of the ranks is reversed each time round."""
    heaviest_first = sorted(parts, key=lambda part: -sum(lengths[row] for row in part))
    ranks: list[list[MicroBatchRows]] = [[] for _ in range(data_parallel)]
    for start in range(0, len(parts), data_parallel):
        one_each = heaviest_first[start : start + data_parallel]
        if start // data_parallel % 2:
            one_each.reverse()
        for rank, part in zip(ranks, one_each, strict=True):
            rank.append(part)
    return ranks
