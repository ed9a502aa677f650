"""Measures the bookkeeping for one trajectory in the plain buffer class while very many groups are outstanding."""

import gc
import time
from collections import deque

import msgspec

from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef, TrajectoryRecord
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.ticket import Ticket
from asyncrl.core.trajectory import StopReason
from asyncrl.run.buffer.tasks import make_task_stream

_WORKER = WorkerId("producer")


def core_us_per_trajectory(recipe: Recipe, steps: int) -> float:
    """Microseconds that lease, commit, take, trained and advance take per trajectory.

    They are averaged over ``steps`` training steps at full pipeline depth.
    """
    gc.collect()
    gc.freeze()  # as the buffer's process does
    buffer = ReplayBuffer(recipe.batch, recipe.buffer, make_task_stream(recipe), steps=recipe.steps, seed=recipe.seed)
    groups, rows = recipe.batch.groups_per_step, recipe.batch.groups_per_step * recipe.batch.group_size
    outstanding = deque(buffer.lease(_WORKER, buffer.room(), 0.0))
    spent = 0.0
    for version in range(steps):
        finished = [sample for _ in range(groups) for sample in _finish(outstanding.popleft(), version, recipe)]
        begin = time.perf_counter()
        for start in range(0, rows, recipe.batch.group_size):
            buffer.commit(finished[start : start + recipe.batch.group_size], 0.0)
        buffer.batches.take(PolicyVersion(version), groups)
        buffer.batches.trained(PolicyVersion(version))
        buffer.batches.checkpointed(PolicyVersion(version + 1))
        buffer.advance(PolicyVersion(version + 1))
        buffer.drain_freed()
        tickets = buffer.lease(_WORKER, groups, 0.0)
        spent += time.perf_counter() - begin
        outstanding.extend(tickets)
    return spent / (steps * rows) * 1e6


def _finish(ticket: Ticket, version: int, recipe: Recipe) -> list[EpisodeRecord]:
    like = EpisodeRecord(
        group_id=ticket.group_id,
        sample_index=0,
        reward=0.0,
        stop_reason=StopReason.ENVIRONMENT_DONE,
        payload=PayloadRef(0, "producer-1-000000.rows", 0, 18_749, 0),
        trajectories=(TrajectoryRecord(2048, ((PolicyVersion(version), 1000),)),),
    )
    return [
        msgspec.structs.replace(like, sample_index=index, reward=float(index % 2)) for index in range(recipe.batch.group_size)
    ]
