"""What becomes of an episode between its end and its being handed in: a reward model scores it, and a teacher looks at it."""

from asyncrl.core.episode import Episode
from asyncrl.core.task import Task
from asyncrl.generators.scoring import Scoring, ScoringUse, Teaching, TeachingUse


class Judging:
    """Has finished episodes judged.

    Args:
        scoring: rewards them; if None, the environment's rewards are used.
        teaching: asks a teacher about what they sampled; if None, nobody is asked.
    """

    def __init__(self, scoring: Scoring | None = None, teaching: Teaching | None = None) -> None:
        self._scoring, self._teaching = scoring, teaching

    @classmethod
    def of(cls, scoring: Scoring | None, teaching: Teaching | None) -> "Judging | None":
        """Return what has episodes judged; None if nobody judges."""
        return None if scoring is None and teaching is None else cls(scoring, teaching)

    async def judged(self, task: Task, episode: Episode) -> Episode:
        """Return the episode as it is handed in. A greedy one has nothing to be taught.

        Raises:
            ScoringFailed, ComponentFailed: as :meth:`Scoring.reward` and :meth:`Teaching.taught` do.
        """
        if self._scoring is not None:
            episode = await self._scoring.reward(task, episode)
        if self._teaching is not None and episode.sampling.temperature:
            episode = await self._teaching.taught(episode)
        return episode

    @property
    def scored(self) -> ScoringUse:
        """Counters of the scores that a reward model gave."""
        return ScoringUse() if self._scoring is None else self._scoring.use

    @property
    def taught(self) -> TeachingUse:
        """Counters of what a teacher was asked."""
        return TeachingUse() if self._teaching is None else self._teaching.use
