"""Episodes of several trajectories: what holds between them, and their bytes."""

import msgspec
import numpy as np
import pytest

from asyncrl.core.episode import Episode, decode, encode
from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion, TaskId
from asyncrl.core.trajectory import Sampling, StartReason, StopReason, Trajectory, Turn, VersionSpan


def stream(prompt, sampled=2, **changed):
    """``prompt`` tokens that count up from 0, then ``sampled`` tokens of one turn."""
    length = prompt + sampled
    mask = np.arange(length) >= prompt
    made = {
        "token_ids": np.arange(length, dtype=np.int32),
        "logprobs": np.where(mask, -0.5, 0.0).astype(np.float32),
        "loss_mask": mask,
        "version_spans": (VersionSpan(0, prompt, NOT_SAMPLED), VersionSpan(prompt, length, PolicyVersion(3))),
        "turns": (Turn(prompt, length, 1.0),),
    }
    return Trajectory(**made | changed)


def branch(prompt=6, **changed):
    return stream(prompt, **({"part": 1, "parent": 0, "shared": 5, "why": StartReason.PARALLEL} | changed))


def episode(*trajectories):
    return Episode(
        task_id=TaskId("task"),
        group_id=GroupId(1),
        sample_index=2,
        attempt=0,
        trajectories=trajectories,
        reward=1.0,
        role_rewards={"critic": 0.5},
        stop_reason=StopReason.ENVIRONMENT_DONE,
        sampling=Sampling(temperature=1.0),
    )


def test_an_episode_comes_back_from_its_bytes():
    made = episode(stream(3), branch(role="critic", trained=False), stream(4, part=2, why=StartReason.HISTORY_REWRITTEN))
    made.check()
    back = decode(encode(made))
    back.check()
    assert len(back) == len(made) == 5 + 8 + 6
    assert msgspec.to_builtins(back, enc_hook=np.ndarray.tolist) == msgspec.to_builtins(made, enc_hook=np.ndarray.tolist)


@pytest.mark.parametrize(
    ("trajectories", "problem"),
    [
        ((), "no trajectory"),
        ((stream(3, part=1),), "says that it is part 1"),
        ((stream(3, why=StartReason.PARALLEL),), "only trajectory 0 is the first"),
        ((stream(3), stream(3, part=1)), "only trajectory 0 is the first"),
        ((stream(3), branch(parent=1)), "a parent comes before it"),
        ((stream(3), branch(parent=-1)), "a parent comes before it"),
        ((stream(3), branch(parent=None)), "and has none"),
        ((stream(3), branch(prompt=4)), "more than its prompt"),
        ((stream(3, sampled=1), branch()), "or than its parent"),
        ((stream(3), branch(token_ids=np.zeros(8, np.int32))), "are not those of its parent 0"),
        ((stream(3), branch(logprobs=np.zeros(3, np.float32))), "trajectory 1: 8 tokens, 3 logprobs"),
    ],
)
def test_what_cannot_be_is_named(trajectories, problem):
    with pytest.raises(ValueError, match=problem):
        episode(*trajectories).check()
