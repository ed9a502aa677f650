"""Before anything starts, a task of each split and source is played: a bug is told with its line, and a hang in time."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from asyncrl.buffers.tasks.task_stream import TaskSource
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.schema import ModelConfig, Recipe
from asyncrl.core.task import Task
from asyncrl.envs import ToolEnvironment
from asyncrl.envs.base import Action, Environment, Observation, StepResult
from asyncrl.envs.hosting import hosted
from asyncrl.envs.rewards import Endpoint, Judge
from asyncrl.run.dry_run import environment_trial
from asyncrl.run.dry_run.environment_trial import Rehearsed, play_first_tasks
from asyncrl.run.dry_run.model_trial import TrialPrompt

released = threading.Event()


class Sound(Environment):
    """A class whose methods do what a subclass says, and else what they should."""

    played: ClassVar[list[str]] = []
    answered: ClassVar[list[str]] = []

    async def reset(self, task: Task) -> Observation:
        self.played.append(task.id)
        self.task = task
        return Observation((Message("user", task.prompt),))

    async def step(self, action: Action) -> StepResult:
        assert action == Action("", ())
        self.answered.append(self.task.id)
        return StepResult(Observation(()), 0.0, done=True)


class Constructor(Sound):
    def __init__(self) -> None:
        raise KeyError("here")  # Constructor


class Reset(Sound):
    async def reset(self, task: Task) -> Observation:
        raise KeyError("here")  # Reset


class Step(Sound):
    async def step(self, action: Action) -> StepResult:
        raise KeyError("here")  # Step


class Close(Sound):
    async def close(self) -> None:
        raise KeyError("here")  # Close


class Reward(ToolEnvironment):
    def reward(self, task: Task, answer: str) -> float:
        raise KeyError("here")  # Reward


class NoReward(ToolEnvironment):
    def reward(self, task: Task, answer: str) -> float:  # NoReward
        answer.strip()  # type: ignore[return]


class NoObservation(Sound):
    async def reset(self, task: Task) -> Any:  # NoObservation
        return task.prompt


class NoText(Sound):
    async def reset(self, task: Task) -> Any:  # NoText
        return Observation((Message("user", 7),))  # type: ignore[arg-type]


class NoSchema(Sound):
    async def reset(self, task: Task) -> Observation:  # NoSchema
        return Observation((Message("user", "x"),), (ToolSpec("find", "", {"type": "object", "properties": {"x": str}}),))


class TwoOfOneName(Sound):
    async def reset(self, task: Task) -> Observation:  # TwoOfOneName
        return Observation((Message("user", "x"),), (ToolSpec("find", "", {"type": "object"}),) * 2)


class Infinite(Sound):
    async def step(self, action: Action) -> StepResult:  # Infinite
        return StepResult(Observation(()), float("inf"), done=True)


class Waits(Sound):
    async def reset(self, task: Task) -> Observation:
        await asyncio.Event().wait()
        raise AssertionError


class Blocks(Sound):
    async def reset(self, task: Task) -> Observation:
        released.wait()  # Blocks
        return await super().reset(task)


class Deaf(Sound):
    async def close(self) -> None:
        while not released.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue


class Judged(ToolEnvironment):
    judge = Judge(Endpoint("http://127.0.0.1:9/v1", "m"), deadline_s=2.0)

    async def reward(self, task: Task, answer: str) -> float:
        self.answered_by.append(task.id)
        return await self.judge(task, answer)

    answered_by: ClassVar[list[str]] = []


class Slow(Sound):
    async def reset(self, task: Task) -> Observation:
        time.sleep(1.6)  # noqa: ASYNC251 - Slow
        return await super().reset(task)


class Picky(Sound):
    async def reset(self, task: Task) -> Observation:
        if task.id == "bad":
            raise KeyError("answer")
        return await super().reset(task)


@pytest.fixture(autouse=True)
def free() -> Iterator[None]:
    released.clear()
    Sound.played.clear()
    Sound.answered.clear()
    yield
    released.set()


def tasks(*names: str) -> TaskSource:
    return TaskSource("some.jsonl", [Task(id=TaskId(name), prompt=name) for name in names])


def play(
    environment: type[Environment], *sources: TaskSource, note: Callable[[str], None] = print, **limits: float
) -> tuple[str, ...]:
    config = ClassEnvironmentConfig(name=f"{__name__}:{environment.__name__}", **limits)  # type: ignore[arg-type]
    recipe = Recipe(name="r", steps=1, model=ModelConfig(path="m"), environment=config)
    return rehearsed(recipe, *sources, note=note).remarks


def rehearsed(recipe: Recipe, *sources: TaskSource, note: Callable[[str], None] = print) -> Rehearsed:
    return play_first_tasks(recipe, [("train", sources or (tasks("a", "b", "c"),)), ("evaluation", (tasks("x", "y"),))], note)


def refused(environment: type[Environment], **limits: float) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        play(environment, **limits)
    return caught.value


def line_of(name: str) -> int:
    with open(__file__) as file:
        (line,) = [number for number, line in enumerate(file, 1) if line.rstrip().endswith((f"# {name}", f"- {name}"))]
    return line


def test_a_sound_environment_is_played_once_for_each_source_and_shows_three_prompts_of_it():
    config = ClassEnvironmentConfig(name=f"{__name__}:Sound")
    recipe = Recipe(name="r", steps=1, model=ModelConfig(path="m"), environment=config)
    found = rehearsed(recipe, tasks("a", "b", "c", "d"), tasks("e"))
    assert found.remarks == ()
    assert Sound.played == ["a", "c", "d", "e", "x", "y"]
    assert Sound.answered == ["a", "e", "x"]
    train = "tasks.train (some.jsonl)"
    assert [(shown.source, shown.task) for shown in found.prompts[:4]] == [(train, "a"), (train, "c"), (train, "d"), (train, "e")]
    assert found.prompts[1] == TrialPrompt.of(train, "c", (Message("user", "c"),), ())


@pytest.mark.parametrize("environment", [Constructor, Reset, Step, Close, Reward])
def test_what_a_method_raises_is_told_with_its_line_and_the_users_frames(environment: type[Environment]):
    refusal = refused(environment)
    line = line_of(environment.__name__)
    assert f"KeyError: 'here' ({__file__}:{line})" in refusal.problem
    assert refusal.place == "environment.name"
    (trace,) = refusal.__notes__
    assert f'{__file__}", line {line}' in trace
    assert "generators/" not in trace
    if environment is not Constructor:
        assert f"{environment.__name__}.{environment.__name__.lower()} raised" in refusal.problem


@pytest.mark.parametrize("environment", [NoReward, NoObservation, NoText, NoSchema, TwoOfOneName, Infinite])
def test_a_wrong_result_is_told_with_the_line_of_its_method(environment: type[Environment]):
    assert f"({__file__}:{line_of(environment.__name__)})" in refused(environment).problem


def test_a_reset_that_takes_too_long_is_told():
    assert "reset() took longer than environment.episode_timeout_s = 0.1 s" in refused(Waits, episode_timeout_s=0.1).problem


def test_a_method_that_blocks_for_good_is_told_with_the_line_where_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment_trial, "SLACK_S", 0.1)
    monkeypatch.setattr(environment_trial, "SLOW_S", 0.3)
    monkeypatch.setattr(environment_trial, "CANCELLED_ENVIRONMENT_S", 0.1)
    said: list[str] = []
    with pytest.raises(RecipeError, match=rf"reset\(\) has not returned .* \({__file__}:{line_of('Blocks')}"):
        play(Blocks, note=said.append, episode_timeout_s=0.1, tool_timeout_s=0.1)
    assert said == ["playing task a once, to check the environment: reset() has been running for 0.3 s"]


def test_a_close_that_ignores_its_deadline_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hosted, "CANCELLED_ENVIRONMENT_S", 0.05)
    assert "Deaf.close cannot go on: task a waited 0.1 s" in refused(Deaf, tool_timeout_s=0.1).problem


def test_what_blocks_the_event_loop_for_a_while_is_only_noted():
    remarks = play(Slow, tasks("a"))
    assert len(remarks) == 1
    assert f"Slow.reset ({__file__}:{line_of('Slow')}" in remarks[0]


def test_a_judge_that_is_away_is_told_at_once_and_waited_for_once():
    notes: list[str] = []
    with pytest.raises(RecipeError, match=r"m at http://127.0.0.1:9/v1/chat/completions gave no score in \d+ s"):
        play(Judged, note=notes.append)
    (told,) = [note for note in notes if "it could not be reached" in note]
    assert "it is asked again, for at most deadline_s = 2 in all" in told
    assert Judged.answered_by == ["a"]


def test_one_bad_task_does_not_refuse_a_source():
    (remark,) = play(Picky, tasks("bad", "good"))
    assert "tasks.train (some.jsonl): task bad: Picky.reset raised KeyError: 'answer'" in remark
    with pytest.raises(RecipeError, match="task bad"):
        play(Picky, tasks("good"), tasks("bad"))


def test_where_the_generators_are_elsewhere_it_is_only_noted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    remarks = play(Reset)
    assert [remark.partition(":")[0] for remark in remarks] == ["tasks.train (some.jsonl)", "tasks.evaluation (some.jsonl)"]
