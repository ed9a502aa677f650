"""One kept trajectory of an episode, and what training made of its tokens."""

from typing import NamedTuple

import numpy as np

from asyncrl.core.episode import Episode
from asyncrl.core.trajectory import Trajectory
from asyncrl.episodes.schema import Kind, TokenFate

FATES = tuple(TokenFate)
"""The fates in the order of their codes."""


class KeptTrajectory(NamedTuple):
    """A row of the table, before its tokens are text.

    Attributes:
        episode: the episode that it is a trajectory of.
        part: its place among the episode's trajectories.
        kind: what it was played for.
        step: the training step that trained it; None in an evaluation.
        version: the policy version that was trained or evaluated.
        source: the task source, where it is known.
        fates: int8 [T], for each token its place in :data:`FATES`.
        learner_logprobs, advantages, weights: float32 [T], see the schema; None where no loss saw the trajectory.
    """

    episode: Episode
    part: int
    kind: Kind
    step: int | None
    version: int
    source: str | None
    fates: np.ndarray
    learner_logprobs: np.ndarray | None = None
    advantages: np.ndarray | None = None
    weights: np.ndarray | None = None

    @property
    def trajectory(self) -> Trajectory:
        """The trajectory itself."""
        return self.episode.trajectories[self.part]


def untrained(episode: Episode, part: int, kind: Kind, *, step: int | None, version: int, source: str | None) -> KeptTrajectory:
    """Return a trajectory that no loss trains: of an evaluation, of a greedy episode, or of a role that is not trained."""
    sampled = episode.trajectories[part].loss_mask
    fates = np.where(sampled, fate_code(TokenFate.NOT_TRAINED), fate_code(TokenFate.GIVEN)).astype(np.int8)
    return KeptTrajectory(episode, part, kind, step, version, source, fates)


def fate_code(fate: TokenFate) -> int:
    """The number that stands for ``fate`` in :attr:`KeptTrajectory.fates`."""
    return FATES.index(fate)
