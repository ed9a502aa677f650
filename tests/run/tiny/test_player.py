"""The tiny model plays before a run as it will in the run, and what it is warmed up on follows from the recipe."""

import asyncio
import random
from pathlib import Path
from typing import cast

import msgspec
import pytest
import torch
from transformers import PreTrainedModel

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.environment import ClassEnvironmentConfig, MixedEnvironmentConfig, RemoteEnvironmentConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.core.trajectory import Sampling
from asyncrl.envs.builtin import calculator
from asyncrl.envs.builtin.calculator import Calculator
from asyncrl.envs.builtin.lessons.calculator import CalculatorLessons
from asyncrl.envs.lessons import Lessons, Script, lessons_for
from asyncrl.envs.lessons.base import REGISTERED
from asyncrl.envs.lessons.demonstrations import demonstrate
from asyncrl.generators.episode import EpisodeLimits
from asyncrl.learners.tiny.conversations import encode, pad, render
from asyncrl.learners.tiny.settings import Size, WarmUp
from asyncrl.learners.tiny.tokenizer import fit_tokenizer
from asyncrl.learners.tiny.warmup import Rows, config_of, spoken_logits, warm_up
from asyncrl.run.recipe.compose import compose
from asyncrl.run.tiny.lessons import players_of, remarks_on
from asyncrl.run.tiny.player import Player, _TorchEngine, play_greedily


@pytest.fixture(scope="module")
def quickstart() -> Recipe:
    return compose("quickstart")


def test_episodes_end_as_each_token_says(tmp_path: Path, quickstart: Recipe):
    """A model that knows some tasks by heart: it solves by playing what it solves by its first choices at each token."""
    tasks = Calculator.make_tasks("train", 24, 0, max_operations=1)
    shown = demonstrate(lambda task: Calculator(), [(task, CalculatorLessons().ideal(task)) for task in tasks])
    tokenizer = fit_tokenizer(render(shown), 1024)
    rows = encode(shown, tokenizer)
    settings = WarmUp(lr_steps=5, batch_size=16, measure_every=18, threads=1)
    config = config_of(tokenizer, Size(), (tokenizer.eos_token_id,))
    model, _ = warm_up(config, [Rows(1.0, rows[:8], rows, rows)], settings, 18, 0, lambda measured: None)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with torch.no_grad():
        solved = [bool((logits.argmax(-1) == wanted).all()) for logits, wanted in (spoken_logits(model, pad([r])) for r in rows)]
    assert 0 < sum(solved) < len(solved)

    limits = EpisodeLimits.of(quickstart)
    players = {"": Player(quickstart.environment, limits), "hasty": Player(quickstart.environment, limits)}
    players["hasty"] = Player(quickstart.environment, msgspec.structs.replace(limits, max_turns=1))
    rewards = play_greedily(tmp_path, players, quickstart.model, {"": tasks, "hasty": tasks[:4]})
    assert all(reward == 1.0 for reward, follows in zip(rewards[""], solved, strict=True) if follows)
    assert sum(rewards[""]) - sum(solved) <= 2  # right although it departed from the demonstration, by luck
    assert rewards["hasty"] == [0.0] * 4  # one turn is not enough for a call and an answer


class Failing:
    """A model that fails to sample."""

    def generate(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("no memory")


async def test_an_error_in_sampling_reaches_every_episode_and_an_ended_one_holds_nobody_up():
    engine = _TorchEngine(cast(PreTrainedModel, Failing()))
    turns = [
        asyncio.create_task(engine.generate([1, 2], max_tokens=4, sampling=Sampling(temperature=0.0), stop_token_ids=(0,)))
        for _ in range(3)
    ]
    await asyncio.sleep(0)
    turns[0].cancel()
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*turns, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert [str(each) for each in outcomes[1:]] == ["no memory"] * 2


class Untaught(Calculator):
    """An environment of the user's own, without lessons."""


@lessons_for(Untaught)
def no_lessons(**options: object) -> Lessons | None:
    return None


OWN = ClassEnvironmentConfig(name=f"{__name__}:Untaught")


def test_all_members_with_lessons_are_taught(quickstart: Recipe):
    easy = ClassEnvironmentConfig(name="calculator", options={"max_operations": 1}, max_turns=3)
    members = {"easy": easy, "own": OWN, "hard": quickstart.environment}
    mixed = msgspec.structs.replace(quickstart, environment=MixedEnvironmentConfig(members=members))
    players = players_of(mixed)
    assert {name: (player.environment, player.limits.max_turns) for name, player in players.items()} == {
        "easy": (easy, 6),
        "hard": (quickstart.environment, 6),
    }
    (remark,) = remarks_on(mixed)
    assert f"not been warmed up on {OWN.name}" in remark


def test_environments_elsewhere_get_the_calculators_model_and_a_remark(quickstart: Recipe):
    remote = msgspec.structs.replace(quickstart, environment=RemoteEnvironmentConfig(urls=("ws://there:1",)))
    (remark,) = remarks_on(remote)
    assert "unless remote has tools like the calculator's" in remark


def test_an_environment_of_ones_own_gets_the_calculators_model_and_a_remark(quickstart: Recipe):
    own = msgspec.structs.replace(quickstart, environment=msgspec.structs.replace(OWN, max_turns=1))
    (player,) = players_of(own).values()
    assert (player.environment.name, player.environment.options, player.limits.max_turns) == ("calculator", {}, 6)
    assert "name a better model, or give the environment lessons" in remarks_on(own)[0]
    assert remarks_on(quickstart) == ()
    other = msgspec.structs.replace(own, model=msgspec.structs.replace(own.model, path="/some/folder"))
    assert remarks_on(other) == ()


class Tempting(Untaught):
    """An environment of the user's own, whose lessons know no task without temptation."""


@lessons_for(Tempting)
class AlwaysHabitual(CalculatorLessons):
    def habitual(self, task: Task, share: float, generator: random.Random) -> Script:
        return Script((), "0") if generator.random() < share else self.ideal(task)


class Raising(Untaught):
    """An environment of the user's own, whose lessons raise."""


@lessons_for(Raising)
class Unable(CalculatorLessons):
    def ideal(self, task: Task) -> Script:
        raise KeyError("answers")


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        (
            Tempting,
            r"habitual\(\) of its lessons gives in .* at all 300 held-out tasks.*; let it return the ideal script for some",
        ),
        (Raising, r"the lessons of '.*:Raising' raised KeyError: 'answers'"),
    ],
)
def test_lessons_that_cannot_be_taught_are_refused_at_launch(quickstart: Recipe, environment: type, problem: str):
    own = msgspec.structs.replace(quickstart, environment=ClassEnvironmentConfig(name=f"{__name__}:{environment.__name__}"))
    with pytest.raises(RecipeError, match=f"environment: {problem}"):
        remarks_on(own)


def test_a_built_in_environment_without_lessons_is_refused(quickstart: Recipe, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calculator.Calculator, REGISTERED, no_lessons)
    with pytest.raises(RecipeError, match=r"model.path: tiny .* environment \(calculator\): .*; name a Hugging Face folder"):
        remarks_on(quickstart)


def test_the_model_is_tried_within_limits_that_its_lessons_fit_in_whatever_those_of_the_run_are():
    tight = [
        "environment.max_turns=2",
        "environment.max_calls=1",
        "environment.on_malformed_call=end",
        "sampling.max_turn_tokens=8",
    ]
    (player,) = players_of(compose("quickstart", tight)).values()
    limits = player.limits
    assert (limits.max_turns, limits.max_calls, limits.end_on, limits.max_turn_tokens) == (6, None, frozenset(), 64)
