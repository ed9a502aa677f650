"""Plays an episode by a script in place of a model, and keeps what was seen."""

import random
import time
from collections.abc import Callable, Sequence

import msgspec

from asyncrl.authoring.calls import made_call
from asyncrl.core.messages import CallOutcome, CallRecord, MalformedCall, Message, ToolCall, ToolSpec
from asyncrl.core.plug_ins.users_error import UsersError
from asyncrl.core.task import Task
from asyncrl.envs.base import Action, Environment
from asyncrl.envs.hosting.hosted import HostedEnvironment
from asyncrl.generators.episode import EpisodeLimits, checked_reset, checked_step

Script = Callable[[int, Sequence[ToolSpec]], Action]
"""Gives the turn of a number, counted from 0, for the tools of the episode."""


class Played(msgspec.Struct):
    """What was seen in an episode.

    Attributes:
        prompt: the messages of the first observation.
        tools: the tools.
        answers: the messages of each turn's observation.
        rewards: the reward of each turn.
        metrics: names of the metrics that were reported.
        reset_s, step_s: seconds that reset, and each step, took.
        calls: the records of its calls.
        errors: those of the environment's own code that did not break it.
        done: whether the environment ended the episode.
    """

    prompt: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    answers: list[tuple[Message, ...]] = []
    rewards: list[float] = []
    metrics: set[str] = set()
    reset_s: float = 0.0
    step_s: list[float] = []
    calls: list[CallRecord] = []
    errors: list[UsersError] = []
    done: bool = False

    @property
    def seen(self) -> bytes:
        """All that the model was shown and rewarded with, to compare episodes by."""
        return msgspec.json.encode([self.prompt, self.answers, self.rewards, self.done])

    @property
    def late(self) -> list[str]:
        """The tools of calls that passed their deadlines, each as often as it did."""
        return [call.tool for call in self.calls if call.outcome is CallOutcome.TIMEOUT]


async def play(make: Callable[[Task], Environment], task: Task, script: Script, limits: EpisodeLimits) -> Played:
    """Play one episode of ``task``.

    Raises:
        EnvironmentBroken: a method raised or returned something invalid.
    """
    played = Played()
    environment = HostedEnvironment(make(task), task)
    try:
        await environment.ready()
        began = time.perf_counter()
        observation = await checked_reset(environment)
        played.reset_s = time.perf_counter() - began
        played.prompt, played.tools = observation.messages, observation.tools
        for number in range(limits.max_turns):
            began = time.perf_counter()
            result = await checked_step(environment, script(number, observation.tools))
            played.step_s.append(time.perf_counter() - began)
            played.answers.append(result.observation.messages)
            played.rewards.append(result.reward)
            played.metrics.update(result.metrics)
            played.calls += result.calls
            played.errors += result.errors
            if result.done:
                played.done = True
                break
    finally:
        await environment.close(limits.close_timeout_s)
    return played


def answering(answer: str) -> Script:
    """The script that answers at once."""
    return lambda number, tools: Action(answer, ())


def calling(turns: int, answer: str, seed: str) -> Script:
    """The script that calls tools for some turns, with arguments of the right types, and then answers."""
    generator = random.Random(seed)

    def turn(number: int, tools: Sequence[ToolSpec]) -> Action:
        if number >= turns or not tools:
            return Action(answer, ())
        return Action("", (made_call(generator.choice(tools), generator),))

    return turn


def saying(call: ToolCall | MalformedCall) -> Script:
    """The script that makes one call, and then answers with nothing."""
    return lambda number, tools: Action("", (call,) if number == 0 else ())
