"""What a teacher is asked about an episode, and what becomes of its answer."""

import msgspec
import numpy as np
import pytest
from learner_samples import make_episode, make_several

from asyncrl.core.episode import Episode, decode, encode
from asyncrl.core.errors import FailureKind, ScoringFailed
from asyncrl.core.task import Task
from asyncrl.core.trajectory import Sampling
from asyncrl.generators.judging import Judging
from asyncrl.generators.scoring import Teaching, TeachingUse

TASK = Task(id="t", prompt="1+1", data={})


class Counting:
    """Gives each token of a row minus its place as log-probability."""

    def __init__(self, strange: float | None = None) -> None:
        self.rows: list[int] = []
        self._strange = strange

    async def logprobs(self, row: np.ndarray) -> np.ndarray:
        self.rows.append(len(row))
        found = -np.arange(1, len(row), dtype=np.float32)
        if self._strange is not None:
            found[-1] = self._strange
        return found


async def test_each_sampled_token_has_the_teachers_log_probability():
    now = iter([0.0, 2.0])
    teaching = Teaching(Counting(), lambda: next(now))
    episode = make_episode(0, 0, 4, 3, (1,), 1.0)
    taught = await teaching.taught(episode)
    (trajectory,) = taught.trajectories
    assert trajectory.teacher_logprobs.tolist() == (-np.flatnonzero(trajectory.loss_mask)).tolist()
    assert trajectory.teacher_logprobs.dtype == np.float32
    taught.check()
    assert teaching.use == TeachingUse(tokens=6, seconds=2.0, episodes=1)
    assert taught.times.scoring_s == 2.0
    assert decode(encode(taught)).trajectories[0].teacher_logprobs.tolist() == trajectory.teacher_logprobs.tolist()


async def test_nobody_is_asked_about_what_is_not_trained():
    teacher = Counting()
    episode = make_several(0, 0, [("a", 4, 3), ("b", 5, 2)], 1.0)
    first, second = episode.trajectories
    episode = msgspec.structs.replace(episode, trajectories=(first, msgspec.structs.replace(second, trained=False)))
    taught = await Judging(teaching=Teaching(teacher)).judged(TASK, episode)
    assert teacher.rows == [len(first)]
    assert taught.trajectories[0].teacher_logprobs is not None
    assert taught.trajectories[1].teacher_logprobs is None
    greedy = msgspec.structs.replace(episode, sampling=Sampling(0.0))
    assert await Judging(teaching=Teaching(teacher)).judged(TASK, greedy) is greedy
    assert len(teacher.rows) == 1


@pytest.mark.parametrize("strange", [float("nan"), float("-inf")])
async def test_what_is_no_number_fails_the_task(strange: float):
    with pytest.raises(ScoringFailed, match=r"log-probability of token \d+, sampled as number 5 of task task-0") as caught:
        await Teaching(Counting(strange)).taught(make_episode(0, 0, 4, 3, (1,), 1.0))
    assert caught.value.kind is FailureKind.DATA


async def test_an_episode_without_turns_is_left_alone():
    episode = make_episode(0, 0, 4, 3, (1,), 1.0)
    bare = [msgspec.structs.replace(each, turns=()) for each in episode.trajectories]
    without: Episode = msgspec.structs.replace(episode, trajectories=tuple(bare))
    assert await Teaching(Counting()).taught(without) is without


def test_a_wrong_number_of_them_is_found_and_old_episodes_have_none():
    episode = make_episode(0, 0, 4, 3, (1,), 1.0)
    (trajectory,) = episode.trajectories
    with pytest.raises(ValueError, match="2 log-probabilities of a teacher for 6 sampled tokens"):
        msgspec.structs.replace(trajectory, teacher_logprobs=np.zeros(2, np.float32)).check()
    before = msgspec.msgpack.decode(encode(episode), ext_hook=lambda code, data: msgspec.msgpack.Ext(code, data))
    del before["trajectories"][0]["teacher_logprobs"]
    assert decode(msgspec.msgpack.encode(before)).trajectories[0].teacher_logprobs is None
