import math
import re

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from played_episodes import played

from asyncrl.core.episode import Episode
from asyncrl.core.errors import ComponentFailed, FailureKind, ScoringFailed
from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion, TaskId
from asyncrl.core.task import Task
from asyncrl.core.trajectory import Sampling, StopReason, Turn, VersionSpan
from asyncrl.generators.scoring import Scoring, ScoringUse

TASK = Task(id=TaskId("t"), prompt="?")
REWARDS = st.floats(-10, 10)


def episode(rewards: list[float]) -> Episode:
    """One trajectory of a given token and one-token turns."""
    length = 1 + len(rewards)
    spans = (VersionSpan(0, 1, NOT_SAMPLED), VersionSpan(1, length, PolicyVersion(0)))
    return played(
        task_id=TASK.id,
        group_id=GroupId(7),
        sample_index=2,
        attempt=0,
        token_ids=np.arange(length, dtype=np.int32),
        logprobs=np.zeros(length, np.float32),
        loss_mask=np.arange(length) > 0,
        version_spans=spans if rewards else spans[:1],
        turns=tuple(Turn(1 + index, 2 + index, reward) for index, reward in enumerate(rewards)),
        reward=sum(rewards),
        stop_reason=StopReason.ENVIRONMENT_DONE,
        sampling=Sampling(1.0, 1.0, 0),
        metrics={"calls": 3.0},
    )


class Says:
    def __init__(self, score: float) -> None:
        self._score, self.asked = score, 0

    async def score(self, task: Task, episode: Episode) -> float:
        assert task is TASK
        self.asked += 1
        return self._score


@given(rewards=st.lists(REWARDS, min_size=1, max_size=5), score=REWARDS, weight=st.floats(0, 3))
async def test_a_reward_is_the_score_and_a_share_of_the_environment_s(rewards: list[float], score: float, weight: float) -> None:
    before = episode(rewards)
    after = await Scoring(Says(score), weight).reward(TASK, before)
    after.check()
    assert after.reward == pytest.approx(score + weight * sum(rewards), abs=1e-9)
    assert [turn.reward for turn in list(after.turns())[:-1]] == [weight * reward for reward in rewards[:-1]]
    assert sum(turn.reward for turn in after.turns()) == after.reward
    assert after.metrics == {"calls": 3.0, "model_score": score, "environment_reward": before.reward}


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 1e300])
async def test_an_episode_without_a_finite_score_has_failed_and_is_named(score: float) -> None:
    scoring = Scoring(Says(score), 0.0)
    with pytest.raises(ScoringFailed, match=re.escape(f"task t, group 7, sample 2 is {score}")) as caught:
        await scoring.reward(TASK, episode([1.0]))
    assert caught.value.kind is FailureKind.DATA
    assert scoring.use == ScoringUse()


async def test_a_reward_that_is_not_finite_has_failed_and_is_named() -> None:
    with pytest.raises(ScoringFailed, match=r"the reward of task t is inf: score 0.5 and 1e\+308 times the environment's 20"):
        await Scoring(Says(0.5), 1e308).reward(TASK, episode([20.0]))


async def test_a_metric_of_the_environment_is_not_overwritten() -> None:
    before = episode([1.0])
    before = msgspec.structs.replace(before, metrics={**before.metrics, "model_score": 2.0})
    with pytest.raises(ComponentFailed, match="reports a metric 'model_score'"):
        await Scoring(Says(0.5), 0.0).reward(TASK, before)


async def test_what_was_scored_is_counted() -> None:
    now = iter([1.0, 1.5, 3.0, 4.0])
    scoring = Scoring(Says(0.5), 0.0, lambda: next(now))
    for _ in range(2):
        await scoring.reward(TASK, episode([1.0, 0.0]))
    assert scoring.use == ScoringUse(episodes=2, total=1.0, seconds=1.5)
    assert scoring.use - ScoringUse(1, 0.5, 0.5) == ScoringUse(1, 0.5, 1.0)


async def test_an_episode_in_which_nothing_was_sampled_is_not_scored() -> None:
    says = Says(0.5)
    before = episode([])
    assert await Scoring(says, 0.0).reward(TASK, before) is before
    assert says.asked == 0
