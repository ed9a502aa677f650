"""One kept episode: a trajectory, and what training made of its tokens."""

from typing import NamedTuple

import numpy as np

from asyncrl.core.trajectory import Trajectory
from asyncrl.episodes.schema import Kind, TokenFate

FATES = tuple(TokenFate)
"""The fates in the order of their codes."""


class KeptEpisode(NamedTuple):
    """A row of the table, before its tokens are text.

    Attributes:
        trajectory: the record of the episode.
        kind: what it was played for.
        step: the training step that trained it; None in an evaluation.
        version: the policy version that was trained or evaluated.
        source: the task source, where it is known.
        fates: int8 [T], for each token its place in :data:`FATES`.
        learner_logprobs, advantages, weights: float32 [T], see the schema; None where no loss saw the episode.
    """

    trajectory: Trajectory
    kind: Kind
    step: int | None
    version: int
    source: str | None
    fates: np.ndarray
    learner_logprobs: np.ndarray | None = None
    advantages: np.ndarray | None = None
    weights: np.ndarray | None = None


def untrained(trajectory: Trajectory, kind: Kind, *, step: int | None, version: int, source: str | None) -> KeptEpisode:
    """Return an episode that no loss trains: one of an evaluation, or a greedy one."""
    fates = np.where(trajectory.loss_mask, fate_code(TokenFate.NOT_TRAINED), fate_code(TokenFate.GIVEN)).astype(np.int8)
    return KeptEpisode(trajectory, kind, step, version, source, fates)


def fate_code(fate: TokenFate) -> int:
    """The number that stands for ``fate`` in :attr:`KeptEpisode.fates`."""
    return FATES.index(fate)
