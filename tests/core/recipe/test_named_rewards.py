import math

import msgspec
import numpy as np
import pytest
from played_episodes import played

from asyncrl.core.episode import named_rewards
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.trajectory import Sampling, StopReason, Turn, VersionSpan

ENDED = played(
    task_id=TaskId("t"),
    group_id=GroupId(0),
    sample_index=0,
    attempt=0,
    token_ids=np.zeros(1, np.int32),
    logprobs=np.zeros(1, np.float32),
    loss_mask=np.ones(1, bool),
    version_spans=(VersionSpan(0, 1, PolicyVersion(0)),),
    turns=(Turn(0, 1, 2.0),),
    reward=2.0,
    stop_reason=StopReason.ENVIRONMENT_DONE,
    sampling=Sampling(1.0, 1.0, 0),
    metrics={"right": 1.0, "polite": 0.5, "odd": math.nan},
)


def test_rewards_come_in_the_order_of_their_names():
    assert named_rewards(ENDED, ()) == ()
    assert named_rewards(ENDED, ("polite", "reward", "right")) == (0.5, 2.0, 1.0)


def test_what_the_environment_did_not_report_is_an_error_that_says_what_it_did():
    with pytest.raises(ValueError, match=r"no metric 'rihgt' .* reports odd, polite, right"):
        named_rewards(ENDED, ("polite", "rihgt"))


@pytest.mark.parametrize("stop_reason", [reason for reason in StopReason if reason is not StopReason.ENVIRONMENT_DONE])
def test_an_episode_that_was_cut_off_earned_nothing_of_what_was_not_reported(stop_reason: StopReason):
    cut_off = msgspec.structs.replace(ENDED, stop_reason=stop_reason)
    assert named_rewards(cut_off, ("polite", "rihgt")) == (0.5, 0.0)


def test_a_reward_is_finite():
    with pytest.raises(ValueError, match="'odd' is nan"):
        named_rewards(ENDED, ("odd",))
    with pytest.raises(ValueError, match="'reward' is inf"):
        named_rewards(msgspec.structs.replace(ENDED, reward=math.inf), ("reward",))
    with pytest.raises(ValueError, match=r"'reward' is 1e\+300; it must be a number of at most 1e\+15 in size"):
        named_rewards(msgspec.structs.replace(ENDED, reward=1e300), ("reward",))


def test_rewards_of_roles_are_not_combined_with_named_rewards():
    by_role = msgspec.structs.replace(ENDED, role_rewards={"critic": 1.0})
    assert named_rewards(by_role, ()) == ()
    with pytest.raises(ValueError, match=r"roles \['critic'\].*one reward for all roles"):
        named_rewards(by_role, ("polite",))
