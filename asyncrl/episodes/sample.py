"""Chooses which trajectories of a training step are kept, on every rank alike.

What always holds: the choice depends on the batch alone, so that all ranks agree on it and a step that is done again after a
resume keeps the same; it takes a second trajectory from a group only when it has one from every group.
"""

from itertools import islice

import numpy as np

from asyncrl.core.batch import Batch
from asyncrl.core.ids import GroupId
from asyncrl.core.recipe.trajectories import NoTrajectoriesConfig, SampledTrajectoriesConfig, TrajectoriesConfig


def kept_rows(batch: Batch, config: TrajectoriesConfig) -> list[tuple[GroupId, int]]:
    """Return group and sample index of the rows that are kept, in the order of the batch."""
    names = [(row.group_id, row.sample_index) for row in batch.rows]
    match config:
        case NoTrajectoriesConfig():
            return []
        case SampledTrajectoriesConfig(count=count) if count < len(names):
            chosen = set(_spread(names, count, batch.version))
            return [name for name in names if name in chosen]
        case _:
            return names


def _spread(names: list[tuple[GroupId, int]], count: int, seed: int) -> list[tuple[GroupId, int]]:
    """Draw ``count`` names at random, first one of each group, then a second of each, and so on."""
    turns: dict[GroupId, int] = {}
    drawn: list[tuple[int, int, tuple[GroupId, int]]] = []
    for number in np.random.default_rng(seed).permutation(len(names)):
        name = names[number]
        turns[name[0]] = turn = turns.get(name[0], -1) + 1
        drawn.append((turn, len(drawn), name))
    return [name for _, _, name in islice(sorted(drawn), count)]
