"""Trajectories made for tests."""

import numpy as np

from asyncrl.core.ids import NOT_SAMPLED
from asyncrl.core.trajectory import Sampling, StopReason, Trajectory, Turn, VersionSpan, encode


def row(ticket, index, versions=(0,), reward=0.0, prompt=3, tokens_per_version=2):
    """An encoded trajectory of ``ticket`` whose sampled tokens come from ``versions``, some of each."""
    sampled = tokens_per_version * len(versions)
    length = prompt + sampled
    spans = [VersionSpan(0, prompt, NOT_SAMPLED)]
    for version in versions:
        spans.append(VersionSpan(spans[-1].end, spans[-1].end + tokens_per_version, version))
    mask = np.arange(length) >= prompt
    return encode(
        Trajectory(
            task_id=ticket.task.id,
            group_id=ticket.group_id,
            sample_index=index,
            attempt=ticket.attempt,
            token_ids=np.arange(length, dtype=np.int32),
            logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
            loss_mask=mask,
            version_spans=tuple(spans),
            turns=(Turn(prompt, length, reward),) if sampled else (),
            reward=reward,
            stop_reason=StopReason.ENVIRONMENT_DONE,
            sampling=Sampling(1.0, 1.0, -1),
        )
    )
