"""What a replay says of a step beside its numbers: rewards that stand out, which overrides change a result, how it compares."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_samples import batch_of, make_episode

from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import PolicyVersion
from asyncrl.learners.metrics import GRAD_NORM, POLICY_LOSS, STEP_SECONDS
from asyncrl.replay.comparison import compare
from asyncrl.replay.kept_steps import Start
from asyncrl.replay.odd_rewards import odd_rewards
from asyncrl.replay.replay import Replay, ReplayedStep
from asyncrl.replay.replay_plan import is_about_computing
from asyncrl.replay.view import replay_view
from asyncrl.run.folder.step_log import StepRecord


def odd(rewards: list[float]) -> dict[tuple[int, int], float]:
    episodes = [make_episode(number // 4, number % 4, 4, 3, (5,), reward) for number, reward in enumerate(rewards)]
    return odd_rewards(batch_of(episodes)[0])


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=8, max_size=32), st.integers(0, 31), st.floats(5.0, 1e9), st.booleans())
def test_one_poisoned_reward_is_named_wherever_it_is(rewards: list[float], place: int, size: float, negative: bool):
    place %= len(rewards)
    rewards[place] = -size if negative else size
    assert odd(rewards) == {(place // 4, place % 4): rewards[place]}


@pytest.mark.parametrize(
    ("rewards", "named"),
    [
        ([0.0] * 7 + [0.5], {(1, 3): 0.5}),
        ([0.0] * 6 + [1.0] * 2, {}),
        ([1.0] * 7 + [0.0], {(1, 3): 0.0}),
        ([0.0] * 8, {}),
        ([0.0, 1.0] * 4, {}),
    ],
)
def test_a_single_other_reward_is_named_and_a_rare_value_is_not(rewards: list[float], named: dict[tuple[int, int], float]):
    assert odd(rewards) == named


@pytest.mark.parametrize(
    ("override", "about"),
    [
        ("model.path=x", True),
        ("deadlines.step=9", True),
        ("learner.dtype=float32", True),
        ("learner.lr=1", False),
        ("+algorithm.teacher={path: x}", False),
        ("learner={lr: 1}", False),
        ("steps=3", False),
    ],
)
def test_overrides_of_where_and_how_are_told_from_others(override: str, about: bool):
    assert is_about_computing(override) is about


@pytest.mark.parametrize("key", ["learners.lr", "algorithmic=1", "model.pathology", "deadlines_of.step"])
def test_a_key_that_only_begins_like_a_section_is_refused(key: str):
    with pytest.raises(RecipeError, match="has no effect on a replay"):
        is_about_computing(f"{key.partition('=')[0]}=1")


def record(step: int, norm: float) -> StepRecord:
    return StepRecord(step, {POLICY_LOSS.name: 0.1, GRAD_NORM.name: norm, STEP_SECONDS.name: 1.0}, None, f"{norm}")


def last_line(*norms: tuple[float | None, float]) -> str:
    """Of a replay of steps with these gradient norms, as recorded (None for no record) and as computed."""
    steps = []
    for number, (before, now) in enumerate(norms, 1):
        recorded, made = None if before is None else record(number, before), record(number, now)
        comparison = compare(recorded, made, exact=True, dtypes={"float32"})
        batch = batch_of([make_episode(0, 0, 4, 3, (number - 1,), 1.0)])[0]
        steps.append(ReplayedStep(batch, made, recorded, comparison, 0, (), (), (), {}, ""))
    done = Replay(Start(PolicyVersion(0), None), tuple(steps), None, None, Path(), {}, (), looked_at=False)
    *_, last = replay_view(done, lambda step: {}, lambda ids: "")
    return str(last)


@pytest.mark.parametrize(
    ("norms", "said"),
    [
        ([(1.0, 1.0), (2.0, 2.0)], "Bit-equal: loss, gradient norm and weights of 2 steps are those recorded"),
        ([(1.0, 1.0), (2.0, 3.0)], "1 step of 2 are not what was recorded"),
        ([(None, 1.0), (None, 2.0), (3.0, 3.0)], "Nothing is recorded of step 1 to 2, so nothing is compared there; "),
        ([(None, 1.0), (2.0, 3.0)], "Nothing is recorded of step 1, so nothing is compared there; 1 other of 2 are not what"),
    ],
)
def test_what_is_not_recorded_is_not_said_to_agree(norms: list[tuple[float | None, float]], said: str):
    assert last_line(*norms).startswith(said)
