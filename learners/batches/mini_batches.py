"""Decides which rows of a batch each optimizer step trains, and in which order. Pure planning; the same answer on every
rank.

What always holds:
* every row is in exactly one mini-batch, every epoch trains each mini-batch once, and groups stay whole, so that rows
  that are compared are trained in the same optimizer step;
* the numbers of groups in mini-batches differ by at most one;
* mini-batches are the same in every epoch, so that a rank needs no rows but its own; only their order is drawn again;
* the plan depends only on the batch and the arguments, so that a batch trained again after a crash gives the same
  weights.
"""

import msgspec
import numpy as np

from asyncrl.core.batch import Batch


def mini_batches(batch: Batch, count: int) -> list[Batch]:
    """Divide the batch into ``count`` parts, with groups dealt out at random. If there are fewer groups than parts,
    some parts are empty."""
    if count == 1:
        return [batch]
    groups = list(dict.fromkeys(row.group_id for row in batch.rows))
    dealt = np.random.default_rng(batch.version).permutation(len(groups))
    part_of = {groups[group]: place % count for place, group in enumerate(dealt)}
    return [
        msgspec.structs.replace(batch, episodes=tuple(each for each in batch.episodes if part_of.get(each.group_id) == part))
        for part in range(count)
    ]


def order(batch: Batch, count: int, epochs: int) -> list[int]:
    """Numbers of the mini-batches in the order in which they are trained, over all epochs."""
    return [int(part) for epoch in range(epochs) for part in np.random.default_rng((batch.version, epoch)).permutation(count)]
