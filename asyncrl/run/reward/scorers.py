"""Chooses what scores a generator's episodes: the run's own reward model, whose client is here, or a service.

Asks a reward model behind HTTP for scores.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from asyncrl.core.deadline import deadline
from asyncrl.core.episode import Episode
from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, FailureKind, ProcessDied, ScoringFailed
from asyncrl.core.messages import Message
from asyncrl.core.recipe.reward import EnvironmentRewardConfig, ModelRewardConfig, RemoteRewardConfig, RewardConfig
from asyncrl.core.task import Task
from asyncrl.envs.secrets import Secrets
from asyncrl.generators.scoring import Scoring
from asyncrl.run.buffer.request_coalescer import RequestCoalescer
from asyncrl.run.host.ray_calls import ask
from asyncrl.run.reward.json_service import FIRST_RETRY_S, JsonService
from asyncrl.run.reward.service_tokens import token_of

_SEE_LOG = "see logs/reward-model.log; raise deadlines.reward"
ANSWER_BYTES, SCORE_BYTES = 64 * 1024, 64
"""The longest answer that is read: ``ANSWER_BYTES``, and ``SCORE_BYTES`` more for each episode."""


def make_scoring(
    reward: RewardConfig,
    seconds: float,
    reward_model: Any | None,
    secrets: Secrets,
    decode: Callable[[Sequence[int]], str],
    client: str,
) -> Scoring | None:
    """Make what scores a generator's episodes; None if the reward is the environment's own.

    Args:
        seconds: how long the score of an episode may take.
        secrets: have the service's token, if it wants one.
        client: the generator's name.
    """
    match reward:
        case EnvironmentRewardConfig():
            return None
        case ModelRewardConfig():
            return Scoring(ModelScorer(reward_model, client, seconds), reward.environment_weight)
        case RemoteRewardConfig():
            return Scoring(RemoteScorer(reward, secrets, decode, seconds), reward.environment_weight)


class ModelScorer:
    """Asks the run's own reward model for scores; see :class:`asyncrl.generators.scoring.Scorer`.

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


class EpisodeToScore(msgspec.Struct, frozen=True):
    """One episode as it is sent to a service.

    Attributes:
        prompt, data: the task's prompt and data.
        text: the whole episode, decoded with the policy's tokenizer, special tokens included; of several trajectories, the one
            with the final answer.
        turns: the parts of ``text`` that the policy wrote.
        reward: the environment's own reward.
        stop_reason: why the episode ended.
        metrics: the metrics that the environment reported.
    """

    task_id: str
    prompt: str | tuple[Message, ...]
    data: dict[str, Any]
    text: str
    turns: tuple[str, ...]
    reward: float
    stop_reason: str
    metrics: dict[str, float]


class ScoreAnswer(msgspec.Struct, frozen=True):
    """A service's answer: the score of each episode, in order, or null where it has none."""

    scores: tuple[float | None, ...]


class RemoteScorer:
    """A reward model behind HTTP; see :class:`asyncrl.generators.scoring.Scorer`.

    It is asked as :class:`JsonService` is. An episode that has no score after ``deadline_s`` fails, as a failure of the
    infrastructure.

    Args:
        secrets: have the service's token, if it wants one.
        deadline_s: how long the score of an episode may take, waiting for its turn and repeated requests included.
        first_retry_s: wait before a request is made for the second time; each further wait is twice as long.
    """

    def __init__(
        self,
        reward: RemoteRewardConfig,
        secrets: Secrets,
        decode: Callable[[Sequence[int]], str],
        deadline_s: float,
        *,
        first_retry_s: float = FIRST_RETRY_S,
    ) -> None:
        self._decode, self._deadline_s = decode, deadline_s
        name, token = f"the reward service at {reward.url}", token_of(reward, secrets)
        self._service = JsonService(name, reward.url, reward.timeout_s, "reward", token=token, first_retry_s=first_retry_s)
        self._episodes: RequestCoalescer[EpisodeToScore, float] = RequestCoalescer(
            self._ask, calls=reward.requests, limit=reward.batch_size, for_nobody=False
        )

    async def score(self, task: Task, episode: Episode) -> float:
        """Return the service's score; NaN if it answers null.

        Raises:
            ScoringFailed: the service gave no score in time.
            ComponentFailed: the service refuses the request, or answers with the wrong number of scores.
        """
        final = episode.final_trajectory()
        tokens: list[int] = final.token_ids.tolist()
        asked = EpisodeToScore(
            task_id=task.id,
            prompt=task.prompt,
            data=task.data,
            text=self._decode(tokens),
            turns=tuple(self._decode(tokens[turn.start : turn.end]) for turn in final.turns),
            reward=episode.reward,
            stop_reason=episode.stop_reason,
            metrics=episode.metrics,
        )
        try:
            async with deadline(
                self._deadline_s, waiter="a generator", owner=self._service.name, remedy="raise deadlines.reward"
            ):
                return await self._episodes.send(asked)
        except DeadlineExceeded as late:
            raise ScoringFailed(FailureKind.INFRASTRUCTURE, f"{late}; the last time {self._service.last_problem}") from late

    async def _ask(self, episodes: Sequence[EpisodeToScore]) -> list[float]:
        body = msgspec.json.encode({"episodes": episodes})
        async with deadline(self._deadline_s, waiter="a generator", owner=self._service.name, remedy="raise deadlines.reward"):
            most = ANSWER_BYTES + SCORE_BYTES * len(episodes)
            scores = (await self._service.answer(body, most, ScoreAnswer, "scores")).scores
        if len(scores) != len(episodes):
            raise ComponentFailed(
                f"{self._service.name} answered {len(scores)} scores for {len(episodes)} episodes; it must answer one for each, "
                "in order, and null for one that it cannot score"
            )
        return [math.nan if score is None else score for score in scores]
