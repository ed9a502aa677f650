"""Reward models as a generator sees them: the run's own, and a service behind HTTP."""

import asyncio
import http.client
import io
import json
import logging
import math
import socket
import time
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, FailureKind, ProcessDied, ScoringFailed
from asyncrl.core.recipe.reward import EnvironmentReward, ModelReward, RemoteReward
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.core.trajectory import Trajectory
from asyncrl.envs.threads import run_in_daemon_thread
from asyncrl.run.asking import ask
from asyncrl.run.request_coalescer import RequestCoalescer
from generators.scoring import Scoring

logger = logging.getLogger(__name__)

FIRST_RETRY_S, LAST_RETRY_S = 0.5, 10.0
"""How soon a service that is down is asked again, at first and at last."""
PASSING = (408, 425, 429)
"""Statuses below 500 that say nothing against the request: timeout, too early, too many."""
_SEE_LOG = "see logs/reward-model.log; raise deadlines.reward"
TOLD_BYTES = 200
"""Of an answer that is an error."""
ANSWER_BYTES, SCORE_BYTES = 64 * 1024, 64
"""The most of an answer that is read, headers included: so much, and so much more for each episode."""


def make_scoring(recipe: Recipe, reward_model: Any | None, decode: Callable[[Sequence[int]], str], client: str) -> Scoring | None:
    """What the recipe's kind of reward needs in a generator; nothing if that is the environment's own.

    Args:
        reward_model: handle of the reward model's actor, where there is one.
        decode: the text of token ids.
        client: the generator's name.
    """
    reward, seconds = recipe.reward, recipe.deadlines.reward
    match reward:
        case EnvironmentReward():
            return None
        case ModelReward():
            return Scoring(ModelScorer(reward_model, client, seconds), reward.environment_weight)
        case RemoteReward():
            return Scoring(RemoteScorer(reward, decode, seconds), reward.environment_weight)


class ModelScorer:
    """The run's own reward model; see :class:`asyncrl.core.scoring.Scorer`.

    Args:
        actor: handle of the model's actor.
        client: who asks, for error messages.
        deadline_s: for the score of an episode.
    """

    def __init__(self, actor: Any, client: str, deadline_s: float) -> None:
        self._actor, self._client, self._deadline_s = actor, client, deadline_s
        self._rows: RequestCoalescer[np.ndarray, float] = RequestCoalescer(self._ask, for_nobody=False)

    async def score(self, task: Task, trajectory: Trajectory) -> float:
        """What the model says of the tokens, as they were sampled.

        Raises:
            ScoringFailed: it said nothing in time.
            ComponentFailed: it died.
        """
        try:
            async with deadline(self._deadline_s, waiter=self._client, owner="the reward model", remedy=_SEE_LOG):
                return await self._rows.send(trajectory.token_ids)
        except DeadlineExceeded as late:
            raise ScoringFailed(FailureKind.INFRASTRUCTURE, str(late)) from late

    async def _ask(self, rows: Sequence[np.ndarray]) -> list[float]:
        of = f"the reward model to score {len(rows)} episodes"
        try:
            return await ask(self._actor.score.remote(rows), of=of, by=self._client, seconds=self._deadline_s, remedy=_SEE_LOG)
        except ProcessDied as death:  # not the asking generator's own death, for which there would be another
            raise ComponentFailed(str(death)) from death


class EpisodeToScore(msgspec.Struct, frozen=True):
    """One episode as a service gets it.

    Attributes:
        prompt, data: of the task.
        text: all of the episode, decoded with the policy's tokenizer, special tokens included.
        turns: what the policy wrote, of this.
        reward: the environment's own.
        stop_reason: why the episode ended.
        metrics: that the environment reported.
    """

    task_id: str
    prompt: str
    data: dict[str, Any]
    text: str
    turns: tuple[str, ...]
    reward: float
    stop_reason: str
    metrics: dict[str, float]


class Answer(msgspec.Struct, frozen=True):
    """What a service answers: of each episode, in order, its score, or null where it has none."""

    scores: tuple[float | None, ...]


class _NotNow(Exception):
    """The service did not answer, or said something it may not say next time."""


class RemoteScorer:
    """A reward model behind HTTP; see :class:`asyncrl.core.scoring.Scorer`.

    A request that is not answered in time, or with something that is no :class:`Answer`, or at too great length, or with a status
    that a service has when it is down or overloaded, is made again. A redirection is not followed. An episode without a score
    after ``deadline_s`` has failed for the infrastructure's fault.

    Args:
        reward: the recipe's.
        decode: the text of token ids.
        deadline_s: for the score of an episode, waiting for its turn and repeated requests included.
        first_retry_s: after this long it is made for the second time; then the waits double.
    """

    def __init__(
        self,
        reward: RemoteReward,
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

    async def score(self, task: Task, trajectory: Trajectory) -> float:
        """What the service says; not a number where it says null.

        Raises:
            ScoringFailed: it could not be asked in time.
            ComponentFailed: it refuses the request, or answers other episodes than it was asked for.
        """
        tokens: list[int] = trajectory.token_ids.tolist()
        episode = EpisodeToScore(
            task_id=task.id,
            prompt=task.prompt,
            data=task.data,
            text=self._decode(tokens),
            turns=tuple(self._decode(tokens[turn.start : turn.end]) for turn in trajectory.turns),
            reward=trajectory.reward,
            stop_reason=trajectory.stop_reason,
            metrics=trajectory.metrics,
        )
        try:
            async with deadline(self._deadline_s, waiter="a generator", owner=self._name, remedy="raise deadlines.reward"):
                return await self._episodes.send(episode)
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
        url, seconds = self._reward.url, self._reward.timeout_s
        try:
            # The thread ends by itself at that time, unless it is resolving the host's name.
            async with asyncio.timeout(seconds):
                status, answer = await run_in_daemon_thread(lambda: _post(url, body, seconds, most), "asking for scores")
            if 200 <= status < 300:
                return msgspec.convert(json.loads(answer), Answer).scores
        except TimeoutError as error:
            raise _NotNow(f"it did not answer within reward.timeout_s {seconds:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise _NotNow(f"it could not be asked ({type(error).__name__}: {error})") from error
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            raise _NotNow(f"it answered no scores ({error})") from error
        told = f"it answered status {status}: {answer[:TOLD_BYTES].decode(errors='replace')!r}"
        if status >= 500 or status in PASSING:
            raise _NotNow(told)
        raise ComponentFailed(f"{self._name} refuses what it is asked: {told}; see its log and the recipe's reward.url")


def _post(url: str, body: bytes, seconds: float, most: int) -> tuple[int, bytes]:
    """Status and body of the answer; of one that is an error, the beginning."""
    until = time.monotonic() + seconds
    opener = urllib.request.OpenerDirector()  # an empty one follows no redirection, and has no opinion of a status
    opener.add_handler(urllib.request.ProxyHandler())
    opener.add_handler(_Connections(partial(_BoundedResponse, until=until, most=most)))
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    with opener.open(request, timeout=seconds) as response:
        return response.status, response.read(most if 200 <= response.status < 300 else TOLD_BYTES)


class _Connections(urllib.request.AbstractHTTPHandler):
    """Opens connections whose responses are made by ``response``."""

    def __init__(self, response: Callable[..., http.client.HTTPResponse]) -> None:
        super().__init__()
        self._response = response

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connection, http.client.HTTPConnection), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connection, http.client.HTTPSConnection), request)

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def _connection(self, kind: type[http.client.HTTPConnection], host: str, **keys: Any) -> http.client.HTTPConnection:
        connection = kind(host, **keys)
        connection.response_class = self._response
        return connection


class _BoundedResponse(http.client.HTTPResponse):
    """A response that is read in blocks, status and headers too, until a time and up to a length."""

    def __init__(self, sock: socket.socket, *args: Any, until: float, most: int, **keys: Any) -> None:
        super().__init__(sock, *args, **keys)
        self.fp = io.BufferedReader(_BoundedSocket(sock, self.fp.detach(), until, most))


class _BoundedSocket(io.RawIOBase):
    def __init__(self, sock: socket.socket, raw: io.RawIOBase, until: float, most: int) -> None:
        self._sock, self._raw, self._until, self._most, self._read = sock, raw, until, most, 0

    def readable(self) -> bool:
        return True

    def readinto(self, block: Any) -> int | None:
        # A socket's own timeout is for each block, so it is set anew.
        if (left := self._until - time.monotonic()) <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        count = self._raw.readinto(block)
        self._read += count or 0
        if self._read > self._most:
            raise _NotNow(f"it answered more than {self._most} bytes")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
