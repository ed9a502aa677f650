"""Environments that raise what nothing should raise, or ignore that their episode is over: each fails alone, in time."""

import asyncio
import contextvars
import logging
from collections.abc import Callable
from typing import NoReturn

import numpy as np
import pytest
from fake_engine import FakeEngine
from msgspec.structs import replace
from scripted_environment import task
from virtual_time import in_virtual_time

from asyncrl.core.episode import Episode
from asyncrl.core.errors import EnvironmentBroken, EnvironmentLost
from asyncrl.core.ids import GroupId
from asyncrl.core.messages import Message
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.schema import ModelConfig, Recipe
from asyncrl.core.task import Task
from asyncrl.core.trajectory import StopReason
from asyncrl.envs import ToolEnvironment, tool
from asyncrl.envs.base import Action, Environment, Observation, StepResult
from asyncrl.envs.hosting import guarded_calls, hosted
from asyncrl.envs.rewards.base import RewardUnavailable
from asyncrl.generators.episode import EpisodeLimits, EpisodeName, EpisodeTools, run_episode
from asyncrl.generators.tool_calls.reader import ToolCallReader

LIMITS = EpisodeLimits.of(Recipe(name="r", steps=1, model=ModelConfig(path="m"), environment=ClassEnvironmentConfig(name="e")))

IN_ORDER: contextvars.ContextVar[str] = contextvars.ContextVar("in order", default="")


class Unprintable(Exception):
    def __str__(self) -> NoReturn:
        raise SystemExit(1)


RAISED: dict[str, Callable[[], BaseException]] = {
    "SystemExit: 3": lambda: SystemExit(3),
    "KeyboardInterrupt: ": KeyboardInterrupt,
    "GeneratorExit: ": GeneratorExit,
    "CancelledError: mine": lambda: asyncio.CancelledError("mine"),
    "Unprintable: (no text: its __str__ raised SystemExit)": Unprintable,
}


class Hostile(Environment):
    """``raises`` in the method that ``where`` names, or there ``ignores`` its cancellation until :attr:`ends`."""

    def __init__(self, where: str = "", raises: str = "", ignores: bool = False) -> None:
        self._where, self._raises, self._ignores = where, raises, ignores
        self.ends = asyncio.Event()
        self.calls: list[str] = []
        self.tasks: list[asyncio.Task[object] | None] = []

    async def reset(self, task: Task) -> Observation:
        IN_ORDER.set("reset")
        await self._act("reset")
        return Observation((Message("user", task.prompt),))

    async def step(self, action: Action) -> StepResult:
        IN_ORDER.set(IN_ORDER.get() + " step")
        await self._act("step")
        return StepResult(Observation((Message("user", "go on"),)), 1.0, done=self.calls.count("step") == 2)

    async def close(self) -> None:
        IN_ORDER.set(IN_ORDER.get() + " close")
        await self._act("close")

    async def _act(self, method: str) -> None:
        self.calls.append(method)
        self.tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        if method != self._where:
            return
        if self._raises:
            raise RAISED[self._raises]()
        while self._ignores and not self.ends.is_set():
            try:
                await self.ends.wait()
            except asyncio.CancelledError:
                self.calls.append(f"{method} cancelled")


async def play(environment: Environment, **limits: object) -> Episode:
    engine = FakeEngine(lambda row: "a")
    tools = EpisodeTools(engine, engine.chat, ToolCallReader(engine.chat.tokenizer, "hermes"), lambda task: environment)
    async with asyncio.timeout(60):
        return await run_episode(task(), EpisodeName(GroupId(7), 2, 1), replace(LIMITS, **limits), tools)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted, "CANCELLED_ENVIRONMENT_S", 0.05)


async def test_all_calls_run_in_one_task_and_one_context() -> None:
    """Libraries whose contexts may not be left in another task, anyio's above all, can be entered in reset and left in close."""
    environment = Hostile()
    episode = await play(environment)
    assert (episode.reward, environment.calls) == (2.0, ["reset", "step", "step", "close"])
    assert len(set(environment.tasks)) == 1


async def test_the_context_of_an_episode_is_its_own() -> None:
    seen: list[str] = []

    class Watched(Hostile):
        async def close(self) -> None:
            await super().close()
            seen.append(IN_ORDER.get())

    await play(Watched())
    assert (seen, IN_ORDER.get()) == (["reset step step close"], "")


@pytest.mark.parametrize("method", ["reset", "step", "close"])
@pytest.mark.parametrize("what", RAISED)
async def test_whatever_an_environment_raises_fails_the_attempt(method: str, what: str) -> None:
    environment = Hostile(method, raises=what)
    with pytest.raises(EnvironmentBroken) as broken:
        await play(environment)
    raised = broken.value.raised
    assert raised is not None
    assert str(broken.value) == f"task t: Hostile.{method} raised {what} ({__file__}:{raised.line})"
    assert (raised.method, raised.problem) == (method, f"raised {what}")
    assert "asyncrl/envs/hosting/hosted.py" not in raised.traceback
    assert "raise RAISED[self._raises]()" in raised.traceback
    assert environment.calls.count("close") == 1
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


@pytest.mark.parametrize("what", RAISED)
async def test_whatever_making_an_environment_raises_fails_the_attempt(what: str) -> None:
    def make(task: Task) -> NoReturn:
        raise RAISED[what]()

    engine = FakeEngine(lambda row: "a")
    tools = EpisodeTools(engine, engine.chat, ToolCallReader(engine.chat.tokenizer, "hermes"), make)
    with pytest.raises(EnvironmentBroken) as broken:
        await run_episode(task(), EpisodeName(GroupId(7), 2, 1), LIMITS, tools)
    assert str(broken.value).startswith(f"task t: the environment could not be made: {what} ({__file__}:")


async def test_a_very_long_error_is_told_without_its_middle() -> None:
    class Verbose(Hostile):
        async def step(self, action: Action) -> StepResult:
            raise ValueError("begin" + "x" * 10_000_000 + "end")

    with pytest.raises(EnvironmentBroken, match=r"raised ValueError: beginx+ \[9,996,008 characters cut\] x+end \(") as broken:
        await play(Verbose())
    assert len(str(broken.value)) < 5_000


async def test_a_done_that_is_neither_true_nor_false_fails_the_attempt() -> None:
    class Undecided(Hostile):
        async def step(self, action: Action) -> StepResult:
            return replace(await super().step(action), done=np.array([True, False]))  # type: ignore[arg-type]

    with pytest.raises(EnvironmentBroken, match=r"Undecided\.step raised ValueError: The truth value of an array"):
        await play(Undecided())


async def test_an_environment_that_cancels_its_own_task_fails_the_attempt() -> None:
    class Suicidal(Hostile):
        async def step(self, action: Action) -> StepResult:
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
            return await super().step(action)

    environment = Suicidal()
    with pytest.raises(EnvironmentBroken, match=r"Suicidal\.step raised CancelledError"):
        await play(environment)
    assert environment.calls == ["reset", "step", "close"]


@in_virtual_time
async def test_a_timeout_of_the_environments_own_works_after_a_cancellation() -> None:
    """Earlier cancellations are forgotten: a task group or timeout in ``close`` counts cancellations, too."""
    inner: list[str] = []

    class Patient(Hostile):
        async def close(self) -> None:
            try:
                async with asyncio.timeout(0.01), asyncio.TaskGroup() as group:
                    group.create_task(asyncio.Event().wait())
            except TimeoutError:
                inner.append("timed out")
            await super().close()

    environment = Patient("step", ignores=True)
    environment.ends.clear()

    async def let_go() -> None:
        while "step cancelled" not in environment.calls:  # noqa: ASYNC110 - it changes with the passes of the loop
            await asyncio.sleep(0.001)
        environment.ends.set()

    letting_go = asyncio.create_task(let_go())
    episode = await play(environment, episode_timeout_s=0.05)
    await letting_go
    assert (episode.stop_reason, inner) == (StopReason.EPISODE_TIMEOUT, ["timed out"])
    assert environment.calls == ["reset", "step", "step cancelled", "close"]
    assert len(set(environment.tasks)) == 1


@in_virtual_time
async def test_a_step_that_ignores_the_end_of_its_episode_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    environment = Hostile("step", ignores=True)
    episode = await play(environment, episode_timeout_s=0.05)
    assert (episode.stop_reason, episode.reward, len(list(episode.turns()))) == (StopReason.EPISODE_TIMEOUT, 0.0, 1)
    assert environment.calls == ["reset", "step", "step cancelled", "close"]
    (said,) = [
        each.getMessage() for each in caplog.records if (each.levelno, each.name) == (logging.WARNING, guarded_calls.__name__)
    ]
    assert "task t" in said
    assert "Hostile.step" in said
    assert "let asyncio.CancelledError out of it" in said
    environment.ends.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert environment.calls == ["reset", "step", "step cancelled", "close"], "what was left behind goes on with nothing"


@in_virtual_time
async def test_a_reset_that_ignores_its_deadline_fails_the_attempt() -> None:
    environment = Hostile("reset", ignores=True)
    with pytest.raises(EnvironmentBroken, match=r"reset\(\) took longer than environment\.episode_timeout_s"):
        await play(environment, episode_timeout_s=0.05)
    assert environment.calls == ["reset", "reset cancelled", "close"]
    environment.ends.set()


@in_virtual_time
async def test_a_close_that_ignores_its_deadline_fails_the_attempt() -> None:
    environment = Hostile("close", ignores=True)
    with pytest.raises(EnvironmentBroken, match=r"Hostile\.close cannot go on: .*; raise environment\.tool_timeout_s"):
        await play(environment, close_timeout_s=0.05)
    assert environment.calls == ["reset", "step", "step", "close", "close cancelled"]
    environment.ends.set()


@pytest.mark.parametrize("method", ["reset", "step"])
async def test_an_episode_that_is_given_up_ends_however_its_environment_likes_it(method: str) -> None:
    environment = Hostile(method, ignores=True)
    playing = asyncio.create_task(play(environment))
    while method not in environment.calls:  # noqa: ASYNC110 - it changes with the passes of the loop
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    playing.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait({playing})
    assert playing.cancelled()
    assert environment.calls[-1] == "close"
    environment.ends.set()


class SlowToScore(ToolEnvironment):
    """One tool call of 0.3 s, and a reward that comes ``late_s`` after an episode of one second would have been over."""

    def __init__(self, late_s: float, loses_judge: bool = False) -> None:
        self._late_s, self._loses_judge = late_s, loses_judge

    async def reset(self, task: Task) -> Observation:
        self._began = asyncio.get_running_loop().time()
        return await super().reset(task)

    @tool
    async def wait(self) -> str:
        await asyncio.sleep(0.3)
        return "waited"

    async def reward(self, task: Task, answer: str) -> float:
        await asyncio.sleep(self._began + 1.0 + self._late_s - asyncio.get_running_loop().time())
        if self._loses_judge:
            raise RewardUnavailable("the judge is away", "judge 1")
        return 1.0


async def play_slow_to_score(environment: SlowToScore) -> Episode:
    turns = ['<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>', "an answer"]
    engine = FakeEngine(lambda row: turns.pop(0))
    tools = EpisodeTools(engine, engine.chat, ToolCallReader(engine.chat.tokenizer, "hermes"), lambda task: environment)
    limits = replace(LIMITS, episode_timeout_s=1.0, max_turn_tokens=200, max_context=2_000)
    return await run_episode(task(), EpisodeName(GroupId(7), 2, 1), limits, tools)


@in_virtual_time
async def test_a_reward_that_comes_after_the_episodes_deadline_is_the_reward() -> None:
    episode = await play_slow_to_score(SlowToScore(late_s=0.05))
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.ENVIRONMENT_DONE)


@in_virtual_time
async def test_a_judge_that_is_lost_after_the_episodes_deadline_is_lost() -> None:
    with pytest.raises(EnvironmentLost, match="the judge is away"):
        await play_slow_to_score(SlowToScore(late_s=0.05, loses_judge=True))


@in_virtual_time
async def test_a_reward_that_never_comes_fails_the_attempt_and_is_never_0() -> None:
    with pytest.raises(
        EnvironmentBroken, match=r"task t: scoring its final answer took longer than environment\.episode_timeout_s = 1 s"
    ):
        await play_slow_to_score(SlowToScore(late_s=600.0))


class Broken(ToolEnvironment):
    @tool
    async def find(self) -> str:
        raise OSError("the index is gone")

    def reward(self, task: Task, answer: str) -> float:
        return float(task.data["answer"])


async def test_errors_of_tools_and_of_rewards_are_counted_by_place() -> None:
    call = '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>'
    turns = [call, call, "an answer"]
    engine = FakeEngine(lambda row: turns.pop(0))
    tools = EpisodeTools(engine, engine.chat, ToolCallReader(engine.chat.tokenizer, "hermes"), lambda task: Broken())
    with pytest.raises(EnvironmentBroken, match=r"Broken\.reward raised KeyError: 'answer'"):
        await run_episode(task(), EpisodeName(GroupId(7), 2, 1), replace(LIMITS, max_turn_tokens=200, max_context=2_000), tools)
    of_tool, of_reward = tools.errors.counted
    assert (of_tool.method, of_tool.file, of_tool.kind, of_tool.times, of_tool.example) == (
        "find",
        __file__,
        "OSError",
        2,
        "task t",
    )
    assert (of_reward.method, of_reward.file, of_reward.kind, of_reward.times) == ("reward", __file__, "KeyError", 1)
