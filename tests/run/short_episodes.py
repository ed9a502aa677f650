"""Episodes of a few tokens."""

import numpy as np
from played_episodes import played

from asyncrl.core.episode import Episode
from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion, TaskId
from asyncrl.core.trajectory import Sampling, StopReason, Turn, VersionSpan


def episode(index: int, group: int = 3) -> Episode:
    """Two given tokens and then ``index + 1`` sampled ones."""
    length = 3 + index
    return played(
        task_id=TaskId("t"),
        group_id=GroupId(group),
        sample_index=index,
        attempt=0,
        token_ids=np.arange(length, dtype=np.int32),
        logprobs=np.zeros(length, np.float32),
        loss_mask=np.array([False, False] + [True] * (index + 1)),
        version_spans=(VersionSpan(0, 2, NOT_SAMPLED), VersionSpan(2, length, PolicyVersion(5))),
        turns=(Turn(2, length, 0.5),),
        reward=0.5,
        stop_reason=StopReason.ENVIRONMENT_DONE,
        sampling=Sampling(1.0, 1.0, 0),
    )
