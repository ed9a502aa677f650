"""Plays tasks with the tiny model before a run begins, by the code that plays them in the run.

What always holds: an episode is that of a run in everything but the engine, which here is torch. Turns are sampled greedily.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from asyncrl.core.episode import Episode
from asyncrl.core.ids import GroupId, PolicyVersion
from asyncrl.core.messages import CallOutcome
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.core.task import Task
from asyncrl.core.trajectory import Sampling, VersionSpan
from asyncrl.envs.hosting.worker_environments import WorkerEnvironments
from asyncrl.envs.lessons.demonstrations import SHARING_S
from asyncrl.envs.load import load_member
from asyncrl.envs.secrets import Secrets, read_secrets
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.completion import Completion, Sampler
from asyncrl.generators.episode import EpisodeLimits, EpisodeName, EpisodeTools, run_episode
from asyncrl.generators.tool_calls.reader import ToolCallReader
from asyncrl.generators.tool_calls.reasoning import Reasoning

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TRIES = 3
"""How often a task is played at most until no tool fails in its episode: tools may fail by chance, and the model is tried."""
AT_ONCE = 128
"""Episodes that are played side by side; their turns are sampled together."""


class Player(msgspec.Struct, frozen=True):
    """An environment, and the limits of its episodes."""

    environment: ClassEnvironmentConfig
    limits: EpisodeLimits


def play_greedily(
    folder: Path, players: Mapping[str, Player], model: ModelConfig, tasks: Mapping[str, Sequence[Task]]
) -> dict[str, list[float]]:
    """Play each task of each member with the model in a folder, and return the rewards; again if a tool failed in its episode.

    Args:
        model: the recipe's section, which says how its turns are read.

    Raises:
        EnvironmentBroken: an environment raised.
    """
    from transformers import AutoModelForCausalLM

    chat = ChatFormat.load(str(folder), model)
    engine = _TorchEngine(AutoModelForCausalLM.from_pretrained(folder))
    secrets = Secrets(
        {name: value for each in players.values() for name, value in read_secrets(each.environment, os.environ).items()}
    )
    environments = WorkerEnvironments({name: load_member(each.environment) for name, each in players.items()}, secrets, "tiny")
    reasoning = None if model.reasoning_parser is None else Reasoning(chat, model.reasoning_parser)
    tools = EpisodeTools(engine, chat, ToolCallReader(chat.tokenizer, model.tool_parser, reasoning), environments.make)

    async def play_all() -> dict[str, list[float]]:
        room = asyncio.Semaphore(AT_ONCE)

        async def play(task: Task, limits: EpisodeLimits, number: int) -> float:
            async with room:
                for attempt in range(TRIES):
                    episode = await run_episode(task, EpisodeName(GroupId(number), 0, attempt), limits, tools)
                    if not _a_tool_failed(episode):
                        break
                return episode.reward

        await environments.start(SHARING_S)
        try:
            return {
                member: list(
                    await asyncio.gather(
                        *(play(task, players[member].limits.greedy(), number) for number, task in enumerate(some))
                    )
                )
                for member, some in tasks.items()
            }
        finally:
            await environments.close(SHARING_S)

    return asyncio.run(play_all())


def _a_tool_failed(episode: Episode) -> bool:
    failures = (CallOutcome.ERROR, CallOutcome.TIMEOUT)
    return any(call.outcome in failures for turn in episode.turns() for call in turn.calls)


class _Request(msgspec.Struct):
    """A turn that is to be sampled."""

    token_ids: Sequence[int]
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    answer: "asyncio.Future[list[int]]"


class _TorchEngine:
    """Samples turns greedily with torch; requests that wait at the same time are sampled together."""

    def __init__(self, model: "PreTrainedModel") -> None:
        self._model = model
        self._waiting: list[_Request] = []

    def episode(self) -> AbstractContextManager[Sampler]:
        """Return the context of one episode; there is one version."""
        return nullcontext(self)

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        known_experts: int = 0,
    ) -> Completion:
        """Sample one turn greedily; log-probabilities are 0, as nothing is trained on them."""
        loop = asyncio.get_running_loop()
        request = _Request(list(token_ids), max_tokens, stop_token_ids, loop.create_future())
        if not self._waiting:
            loop.call_later(_GATHERING_S, self._sample)
        self._waiting.append(request)
        sampled = await request.answer
        return Completion(
            np.array(sampled, np.int32),
            np.zeros(len(sampled), np.float32),
            (VersionSpan(0, len(sampled), PolicyVersion(0)),),
            finished_by_stop=sampled[-1] in stop_token_ids,
        )

    def _sample(self) -> None:
        """Sample all waiting turns. This blocks the event loop, in which nothing else has to be done.

        An error is raised where each of the turns is awaited. Turns of episodes that have ended meanwhile are left out.
        """
        requests, self._waiting = [each for each in self._waiting if not each.answer.done()], []
        if not requests:
            return
        try:
            sampled = self._sampled(requests)
        except Exception as error:  # noqa: BLE001 - raised in the episodes; here the event loop would only log it
            for request in requests:
                request.answer.set_exception(error)
            return
        for request, token_ids in zip(requests, sampled, strict=True):
            request.answer.set_result(token_ids)

    def _sampled(self, requests: Sequence[_Request]) -> list[list[int]]:
        """Return the sampled tokens of each request."""
        import torch

        longest = max(len(each.token_ids) for each in requests)
        padding = [longest - len(each.token_ids) for each in requests]
        token_ids = torch.tensor([[0] * pad + list(each.token_ids) for pad, each in zip(padding, requests, strict=True)])
        attended = torch.tensor([[0] * pad + [1] * len(each.token_ids) for pad, each in zip(padding, requests, strict=True)])
        stops = {token_id for each in requests for token_id in each.stop_token_ids}
        written = self._model.generate(
            token_ids,
            attention_mask=attended,
            do_sample=False,
            max_new_tokens=max(each.max_tokens for each in requests),
            eos_token_id=list(stops),
            pad_token_id=requests[0].stop_token_ids[0],
        )
        sampled = []
        for request, row in zip(requests, written[:, longest:].tolist(), strict=True):
            ends = (place + 1 for place, token_id in enumerate(row) if token_id in request.stop_token_ids)
            sampled.append(row[: min(next(ends, len(row)), request.max_tokens)])
        return sampled


_GATHERING_S = 0.02
"""Seconds that the engine waits for further requests, so that many are sampled together."""
