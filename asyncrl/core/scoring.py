"""What a generator worker needs of a reward model."""

from typing import Protocol

from asyncrl.core.task import Task
from asyncrl.core.trajectory import Trajectory


class Scorer(Protocol):
    """Scores finished episodes, many at once. Every call is bounded by the implementation's own deadline."""

    async def score(self, task: Task, trajectory: Trajectory) -> float:
        """Return the score of an episode of ``task``; NaN or infinite if the model gives it no score.

        Raises:
            ScoringFailed: there was no answer in time.
            ComponentFailed: there will never be one.
        """
        ...
