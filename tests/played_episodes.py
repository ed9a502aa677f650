"""Episodes as they were played, and records of them, for tests."""

from typing import Any

import numpy as np

from asyncrl.core.batch import BatchEpisode
from asyncrl.core.episode import Episode
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef, TrajectoryRecord
from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion, TaskId
from asyncrl.core.messages import CallOutcome, CallRecord
from asyncrl.core.trajectory import EpisodeTimes, Sampling, StopReason, Trajectory, Turn, VersionSpan

CALL = CallRecord("calculator", 0.25, CallOutcome.OK)
BROKEN = CallRecord("", 0.0, CallOutcome.MALFORMED, "no JSON")
TIMES = EpisodeTimes(began=1_700_000_000.5, queued_s=0.25, reset_s=0.5, scoring_s=1.0)


def played(**fields: Any) -> Episode:
    """An episode of one trajectory, given the fields of both."""
    of_trajectory = {name: value for name, value in fields.items() if name in Trajectory.__struct_fields__}
    of_episode = {name: value for name, value in fields.items() if name not in of_trajectory}
    return Episode(trajectories=(Trajectory(**of_trajectory),), **of_episode)


def record(**fields: Any) -> EpisodeRecord:
    """The record of an episode of one trajectory, given the fields of both; what is not given is of no concern."""
    of_trajectory = {name: value for name, value in fields.items() if name in TrajectoryRecord.__struct_fields__}
    of_episode = {name: value for name, value in fields.items() if name not in of_trajectory}
    usual = {"stop_reason": StopReason.ENVIRONMENT_DONE, "payload": PayloadRef(0, "", 0, 0, 0)}
    return EpisodeRecord(trajectories=(TrajectoryRecord(**of_trajectory),), **usual | of_episode)


def in_batch(of: EpisodeRecord, task: str = "t", source: str = "", weight: float = 1.0) -> BatchEpisode:
    """An episode of a batch."""
    return BatchEpisode.around(of, TaskId(task), source, weight)


def episode(group: int = 0, sample: int = 0, prompt: int = 3, turns: int = 2) -> Episode:
    """``prompt`` tokens, then turns of two tokens, each answered with one token, but for the last. Tokens count up from 0."""
    mask = [False] * prompt
    spans = [VersionSpan(0, prompt, NOT_SAMPLED)]
    answered = []
    for turn in range(turns):
        start = len(mask)
        calls = (CALL, BROKEN) if turn == 0 else ()
        rewards = {"right": 0.5 * turn} if turn else {}
        answered.append(Turn(start, start + 2, 0.5 * turn, calls, generating_s=2.0, environment_s=0.5, rewards=rewards))
        spans.append(VersionSpan(start, start + 2, PolicyVersion(turn)))
        mask += [True, True]
        if turn < turns - 1:
            spans.append(VersionSpan(start + 2, start + 3, NOT_SAMPLED))
            mask.append(False)
    length = len(mask)
    made = played(
        task_id=TaskId(f"task-{group}"),
        group_id=GroupId(group),
        sample_index=sample,
        attempt=1,
        token_ids=np.arange(length, dtype=np.int32),
        logprobs=np.where(mask, -0.5, 0.0).astype(np.float32),
        loss_mask=np.array(mask),
        version_spans=tuple(spans),
        turns=tuple(answered),
        reward=sum(turn.reward for turn in answered),
        stop_reason=StopReason.ENVIRONMENT_DONE,
        sampling=Sampling(temperature=0.75, top_p=1.0, top_k=0),
        metrics={"tool_calls": 2.0},
        times=TIMES,
    )
    made.check()
    return made


def words(token_ids: list[int]) -> str:
    """Text of tokens that no tokenizer knows."""
    return " ".join(f"t{token}" for token in token_ids)
