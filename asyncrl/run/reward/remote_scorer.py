"""Asks a reward model behind HTTP for scores."""

import asyncio
import json
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import msgspec

from asyncrl.core.deadline import deadline
from asyncrl.core.episode import Episode
from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, FailureKind, ScoringFailed
from asyncrl.core.messages import Message
from asyncrl.core.recipe.reward import RemoteRewardConfig
from asyncrl.core.task import Task
from asyncrl.run.buffer.request_coalescer import RequestCoalescer

logger = logging.getLogger(__name__)

FIRST_RETRY_S, LAST_RETRY_S = 0.5, 10.0
"""How soon a service that is down is asked again: at first, and at most."""
PASSING = (408, 425, 429)
"""Statuses below 500 after which the request is made again: timeout, too early, too many requests."""
SHOWN_BYTES = 200
"""How many bytes of an error's answer are shown to the user."""
ANSWER_BYTES, SCORE_BYTES = 64 * 1024, 64
"""The longest answer that is read: ``ANSWER_BYTES``, and ``SCORE_BYTES`` more for each episode."""
_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


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


class _NotNow(Exception):
    """The service did not answer, or gave an error that may not come again."""


class RemoteScorer:
    """A reward model behind HTTP; see :class:`generators.scoring.Scorer`.

    A request is made again if the answer does not come in time, is not a :class:`ScoreAnswer`, is too long, or has a
    status of a service that is down or overloaded. Redirections are not followed. An episode that has no score after
    ``deadline_s`` fails, as a failure of the infrastructure.

    Args:
        deadline_s: how long the score of an episode may take, waiting for its turn and repeated requests included.
        first_retry_s: wait before a request is made for the second time; each further wait is twice as long.
    """

    def __init__(
        self,
        reward: RemoteRewardConfig,
        decode: Callable[[Sequence[int]], str],
        deadline_s: float,
        *,
        first_retry_s: float = FIRST_RETRY_S,
    ) -> None:
        self._reward, self._decode, self._deadline_s, self._first_retry_s = reward, decode, deadline_s, first_retry_s
        self._name = f"the reward service at {reward.url}"
        self._episodes: RequestCoalescer[EpisodeToScore, float] = RequestCoalescer(
            self._ask, calls=reward.requests, limit=reward.batch_size, for_nobody=False
        )
        self._last_problem = "there was no answer"

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
            async with deadline(self._deadline_s, waiter="a generator", owner=self._name, remedy="raise deadlines.reward"):
                return await self._episodes.send(asked)
        except DeadlineExceeded as late:
            raise ScoringFailed(FailureKind.INFRASTRUCTURE, f"{late}; the last time {self._last_problem}") from late

    async def _ask(self, episodes: Sequence[EpisodeToScore]) -> list[float]:
        body = msgspec.json.encode({"episodes": episodes})
        async with deadline(self._deadline_s, waiter="a generator", owner=self._name, remedy="raise deadlines.reward"):
            scores = await self._post_until_answered(body, ANSWER_BYTES + SCORE_BYTES * len(episodes))
        if len(scores) != len(episodes):
            raise ComponentFailed(
                f"{self._name} answered {len(scores)} scores for {len(episodes)} episodes; it must answer one for each, in "
                "order, and null for one that it cannot score"
            )
        return [math.nan if score is None else score for score in scores]

    async def _post_until_answered(self, body: bytes, most: int) -> tuple[float | None, ...]:
        wait = self._first_retry_s
        while True:
            try:
                return await self._post(body, most)
            except _NotNow as problem:
                self._last_problem = str(problem)
                logger.warning("%s: %s; it is asked again in %g s", self._name, problem, wait)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LAST_RETRY_S)

    async def _post(self, body: bytes, most: int) -> tuple[float | None, ...]:
        seconds = self._reward.timeout_s
        try:
            status, answer = await self._exchange(body, seconds, most)
            if 200 <= status < 300:
                return msgspec.convert(json.loads(answer), ScoreAnswer).scores
        except TimeoutError as error:
            raise _NotNow(f"it did not answer within reward.timeout_s {seconds:g} s") from error
        except (OSError, aiohttp.ClientError) as error:
            raise _NotNow(f"it could not be reached ({type(error).__name__}: {error})") from error
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            raise _NotNow(f"its answer holds no scores ({error})") from error
        problem = f"it answered status {status}: {answer[:SHOWN_BYTES].decode(errors='replace')!r}"
        if status >= 500 or status in PASSING:
            raise _NotNow(problem)
        raise ComponentFailed(f"{self._name} refuses the request: {problem}; see its log, and check reward.url in the recipe")

    async def _exchange(self, body: bytes, seconds: float, most: int) -> tuple[int, bytes]:
        """Post ``body``, and return status and body of the answer; of an error's body only the beginning."""
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds), trust_env=True, auto_decompress=False) as session,
            session.post(self._reward.url, data=body, headers=_HEADERS, allow_redirects=False) as response,
        ):
            good = 200 <= response.status < 300
            received = bytearray()
            async for block in response.content.iter_any():
                received += block
                if good and len(received) > most:
                    raise _NotNow(f"it answered more than {most} bytes")
                if not good and len(received) >= SHOWN_BYTES:
                    break
            return response.status, bytes(received)
