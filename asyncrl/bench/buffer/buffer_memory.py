"""Measures the memory and files that held trajectories take, per byte of their payload."""

import gc
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec
import psutil

from asyncrl.bench.buffer.buffer_actors import episode_of
from asyncrl.buffers import commands
from asyncrl.buffers.payload_store import PayloadStore, PayloadWriter
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.episode import encode
from asyncrl.core.episode_records import EpisodeRecord
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.ticket import Ticket
from asyncrl.run.buffer.payload_shards import open_writer
from asyncrl.run.buffer.tasks import make_task_stream

_WORKER = WorkerId("producer")
_TOGETHER = 64
"""Trajectories committed by one command."""


class HeldMemory(msgspec.Struct, frozen=True):
    """Bytes of memory and files per byte of payload that is held.

    Attributes:
        at_first: when the buffer has been filled for the first time.
        refilled: after half of its groups were trained and freed, and new ones have taken their place.
    """

    at_first: float
    refilled: float


def held_memory(recipe: Recipe, tokens: int, folder: Path) -> HeldMemory:
    """Fill a buffer to its full pipeline depth with trajectories of ``tokens`` tokens, and measure what they take.

    The payload is written to ``folder``. The trajectories of all groups are written in random order, so freed bytes are scattered
    over the files more than in any run.
    """
    buffer = ReplayBuffer(recipe.batch, recipe.buffer, make_task_stream(recipe), steps=recipe.steps, seed=recipe.seed)
    store = PayloadStore(folder)
    writer = open_writer(recipe.buffer, 0, folder, _WORKER)
    process = psutil.Process()
    gc.collect()
    empty = process.memory_info().rss

    def fill(version: int) -> None:
        samples = _finished(buffer.lease(_WORKER, buffer.room(), 0.0), PolicyVersion(version), recipe.seed, tokens, writer)
        while together := tuple(islice(samples, _TOGETHER)):
            command = commands.decode(commands.encode(commands.Commit(together, 0.0)))  # as it arrives over the wire
            command.apply(buffer)

    def held() -> float:
        gc.collect()
        return float(process.memory_info().rss - empty + store.bytes_on_disk()) / buffer.statistics().payload_bytes

    fill(0)
    at_first = held()
    groups = recipe.batch.groups_per_step
    trained = buffer.statistics().ledger.committed // groups // 2
    for step in range(trained):
        buffer.batches.take(PolicyVersion(step), groups)
        buffer.batches.trained(PolicyVersion(step))
        buffer.batches.checkpointed(PolicyVersion(step + 1))
        buffer.advance(PolicyVersion(step + 1))
        store.free(buffer.drain_freed())
    fill(trained)
    refilled = held()
    writer.close()
    return HeldMemory(at_first, refilled)


def _finished(
    tickets: Sequence[Ticket], version: PolicyVersion, seed: int, tokens: int, writer: PayloadWriter
) -> Iterator[EpisodeRecord]:
    order = [(ticket, index) for ticket in tickets for index in ticket.samples]
    random.Random(seed).shuffle(order)
    like = episode_of(tickets[0], 0, tokens, version)
    for ticket, index in order:
        episode = msgspec.structs.replace(
            like, task_id=ticket.task.id, group_id=ticket.group_id, sample_index=index, reward=float(index % 2)
        )
        (ref,) = writer.append([encode(episode)])
        yield EpisodeRecord.of(episode, ref)
