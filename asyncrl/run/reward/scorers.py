"""Chooses what scores a generator's episodes: the run's own reward model, whose client is here, or a service."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asyncrl.core.deadline import deadline
from asyncrl.core.episode import Episode
from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, FailureKind, ProcessDied, ScoringFailed
from asyncrl.core.recipe.reward import EnvironmentRewardConfig, ModelRewardConfig, RemoteRewardConfig, RewardConfig
from asyncrl.core.task import Task
from asyncrl.run.buffer.request_coalescer import RequestCoalescer
from asyncrl.run.host.ray_calls import ask
from asyncrl.run.reward.remote_scorer import RemoteScorer
from generators.scoring import Scoring

_SEE_LOG = "see logs/reward-model.log; raise deadlines.reward"


def make_scoring(
    reward: RewardConfig,
    seconds: float,
    reward_model: Any | None,
    decode: Callable[[Sequence[int]], str],
    client: str,
) -> Scoring | None:
    """Make what scores a generator's episodes; None if the reward is the environment's own.

    Args:
        seconds: how long the score of an episode may take.
        client: the generator's name.
    """
    match reward:
        case EnvironmentRewardConfig():
            return None
        case ModelRewardConfig():
            return Scoring(ModelScorer(reward_model, client, seconds), reward.environment_weight)
        case RemoteRewardConfig():
            return Scoring(RemoteScorer(reward, decode, seconds), reward.environment_weight)


class ModelScorer:
    """Asks the run's own reward model for scores; see :class:`generators.scoring.Scorer`.

    Args:
        client: the asking generator's name, for error messages.
        deadline_s: how long the score of an episode may take.
    """

    def __init__(self, actor: Any, client: str, deadline_s: float) -> None:
        self._actor, self._client, self._deadline_s = actor, client, deadline_s
        self._rows: RequestCoalescer[np.ndarray, float] = RequestCoalescer(self._ask, for_nobody=False)

    async def score(self, task: Task, episode: Episode) -> float:
        """Return the model's score of the tokens of the episode's final trajectory, exactly as they were sampled.

        Raises:
            ScoringFailed: no score came in time.
            ComponentFailed: the model's process died.
        """
        try:
            async with deadline(self._deadline_s, waiter=self._client, owner="the reward model", remedy=_SEE_LOG):
                return await self._rows.send(episode.final_trajectory().token_ids)
        except DeadlineExceeded as late:
            raise ScoringFailed(FailureKind.INFRASTRUCTURE, str(late)) from late

    async def _ask(self, rows: Sequence[np.ndarray]) -> list[float]:
        of = f"the reward model to score {len(rows)} episodes"
        try:
            return await ask(self._actor.score.remote(rows), of=of, by=self._client, seconds=self._deadline_s, remedy=_SEE_LOG)
        except ProcessDied as death:  # ProcessDied would mean that this generator died, and would get it replaced
            raise ComponentFailed(str(death)) from death
