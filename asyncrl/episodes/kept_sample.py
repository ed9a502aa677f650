"""Chooses which episodes of a training step are kept, on every rank alike.

What always holds: the choice depends on the batch alone, so that all ranks agree on it and a step that is done again after a
resume keeps the same; it takes a second episode from a group only when it has one from every group.
"""

from itertools import islice

import numpy as np

from asyncrl.core.batch import Batch, SampleName
from asyncrl.core.ids import GroupId
from asyncrl.core.recipe.trajectories import NoTrajectoriesConfig, SampledTrajectoriesConfig, TrajectoriesConfig


def kept_episodes(batch: Batch, config: TrajectoriesConfig) -> list[SampleName]:
    """Return the names of the episodes that are kept, in the order of the batch."""
    names = [episode.name for episode in batch.episodes]
    match config:
        case NoTrajectoriesConfig():
            return []
        case SampledTrajectoriesConfig(count=count) if count < len(names):
            chosen = set(_spread(names, count, batch.version))
            return [name for name in names if name in chosen]
        case _:
            return names


def _spread(names: list[SampleName], count: int, seed: int) -> list[SampleName]:
    """Draw ``count`` names at random, first one of each group, then a second of each, and so on."""
    turns: dict[GroupId, int] = {}
    drawn: list[tuple[int, int, SampleName]] = []
    for number in np.random.default_rng(seed).permutation(len(names)):
        name = names[number]
        turns[name[0]] = turn = turns.get(name[0], -1) + 1
        drawn.append((turn, len(drawn), name))
    return [name for _, _, name in islice(sorted(drawn), count)]
