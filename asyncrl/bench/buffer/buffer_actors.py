"""The two sides of ``asyncrl bench buffer``: a producer in place of a generator, and a consumer in place of a learner rank.

Both use what a run uses: ticket client, payload files and the buffer's own process. Only engine and model are missing: the
producer hands in the same trajectory again and again, under different ids.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import ray

from asyncrl.buffers.service import BufferService
from asyncrl.core.episode import Episode, decode
from asyncrl.core.episode_records import EpisodeRecord
from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion, WorkerId
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.ticket import Ticket
from asyncrl.core.trajectory import Sampling, StopReason, Trajectory, Turn, VersionSpan
from asyncrl.run.buffer.buffer_actor import BufferActor
from asyncrl.run.buffer.client import BufferClient
from asyncrl.run.buffer.payload_shards import PayloadSink, PayloadSource
from asyncrl.run.buffer.ticket_client import RemoteTicketClient
from asyncrl.run.host.actor_process import begin_actor

logger = logging.getLogger(__name__)


SampleKey = tuple[GroupId, int]
"""Group and sample index."""


class _TimedService(BufferService):
    """The buffer's service, which also notes when each trajectory could be taken.

    Attributes:
        takeable_at: time, in seconds of the host's monotonic clock, from which each trajectory could be taken.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.takeable_at: dict[SampleKey, float] = {}

    async def commit(self, records: Sequence[EpisodeRecord]) -> None:
        """Accept the trajectories, and note the time."""
        await super().commit(records)
        now = time.monotonic()
        self.takeable_at.update(((record.group_id, record.sample_index), now) for record in records)


class TimedBufferActor(BufferActor):
    """The buffer's actor with a service that notes when each trajectory could be taken."""

    service_type = _TimedService

    async def takeable_at(self) -> dict[SampleKey, float]:
        """The time, in seconds of the host's monotonic clock, from which each trajectory could be taken."""
        assert isinstance(self._service, _TimedService)
        return self._service.takeable_at

    async def worked(self) -> float:
        """The processor time that this process has taken so far, in seconds."""
        return time.process_time()


def episode_of(ticket: Ticket, index: int, tokens: int, version: PolicyVersion) -> Episode:
    """Make the episode of sample ``index`` of ``ticket``: a prompt, and two turns with a tool's answer between them."""
    a, b, c = tokens // 8, tokens // 2, tokens * 5 // 8
    mask = np.zeros(tokens, bool)
    mask[a:b] = mask[c:] = True
    trajectory = Trajectory(
        token_ids=np.arange(tokens, dtype=np.int32),
        logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        loss_mask=mask,
        version_spans=(
            VersionSpan(0, a, NOT_SAMPLED),
            VersionSpan(a, b, version),
            VersionSpan(b, c, NOT_SAMPLED),
            VersionSpan(c, tokens, version),
        ),
        turns=(Turn(a, b, 0.0), Turn(c, tokens, float(index % 2))),
    )
    return Episode(
        task_id=ticket.task.id,
        group_id=ticket.group_id,
        sample_index=index,
        attempt=ticket.attempt,
        trajectories=(trajectory,),
        reward=float(index % 2),
        stop_reason=StopReason.ENVIRONMENT_DONE,
        sampling=Sampling(1.0, 1.0, -1),
    )


class ProducerActor:
    """Hands in trajectories of ``tokens`` tokens until it is stopped; it asks for tickets as a generator's worker does."""

    def __init__(self, recipe: Recipe, buffer: Any, tokens: int, log_file: Path) -> None:
        begin_actor(log_file)
        self._recipe, self._buffer, self._tokens = recipe, buffer, tokens
        self._worker = WorkerId("producer")
        self._version = PolicyVersion(0)
        self._asked_as: PolicyVersion | None = None
        self._changed = asyncio.Event()
        self._stopping = False
        self._like: Episode | None = None
        self._handed_in: dict[SampleKey, tuple[float, float]] = {}

    async def run(self, per_second: float | None) -> dict[SampleKey, tuple[float, float]]:
        """Hand in trajectories until :meth:`stop`.

        Args:
            per_second: trajectories handed in per second; None for as many as the buffer accepts.

        Returns:
            For each trajectory the monotonic times, in seconds, at which it was handed in and at which the buffer answered.
        """
        sink = await PayloadSink.of(self._recipe.buffer, self._buffer, self._worker)
        buffer = await BufferClient.connect(self._buffer, self._worker, logger.warning)
        ticket_client = RemoteTicketClient(buffer, self._worker, sink)
        pace = None if per_second is None else _Pace(per_second)
        gc.freeze()  # as a generator does
        async with asyncio.TaskGroup() as work:
            while not self._stopping:
                self._changed.clear()
                if self._asked_as != self._version:
                    self._asked_as = self._version
                    work.create_task(self._serve(ticket_client, self._version, pace))
                await self._changed.wait()
        sink.close()
        buffer.close()
        return self._handed_in

    async def _serve(self, ticket_client: RemoteTicketClient, version: PolicyVersion, pace: "_Pace | None") -> None:
        tickets = await ticket_client.lease(self._worker, version, self._recipe.batch.groups_per_step)
        if self._asked_as == version:
            self._asked_as = None
            self._changed.set()
        async with asyncio.TaskGroup() as commits:
            for ticket in tickets:
                for index in ticket.samples:
                    if pace is not None:
                        await pace.next()
                    commits.create_task(self._hand_in(ticket_client, ticket, index))

    async def _hand_in(self, ticket_client: RemoteTicketClient, ticket: Ticket, index: int) -> None:
        if self._like is None or self._like.trajectories[0].version_spans[1].version != self._version:
            self._like = episode_of(ticket, 0, self._tokens, self._version)
        episode = msgspec.structs.replace(
            self._like, task_id=ticket.task.id, group_id=ticket.group_id, sample_index=index, reward=float(index % 2)
        )
        begin = time.monotonic()
        await ticket_client.commit(episode)
        self._handed_in[ticket.group_id, index] = begin, time.monotonic()

    async def set_version(self, version: PolicyVersion) -> None:
        """Make trajectories of policy version ``version`` from now on."""
        self._version = version
        self._changed.set()

    async def stop(self) -> None:
        """Make :meth:`run` return."""
        self._stopping = True
        self._changed.set()


class _Pace:
    """Lets ``per_second`` callers per second pass, evenly spaced."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1 / per_second
        self._due = asyncio.get_running_loop().time()

    async def next(self) -> None:
        now = asyncio.get_running_loop().time()
        self._due = max(self._due + self._interval, now - 1.0)
        await asyncio.sleep(self._due - now)


class ConsumerActor:
    """Takes batch after batch, and reads, checks and decodes its trajectories."""

    def __init__(self, recipe: Recipe, buffer: Any, producer: Any, log_file: Path) -> None:
        begin_actor(log_file)
        self._recipe, self._buffer, self._producer = recipe, buffer, producer

    async def run(self, warm_up: int, steps: int) -> tuple[int, float]:
        """Consume ``warm_up`` batches and then ``steps`` more; return the trajectories and the seconds of the latter."""
        buffer = await BufferClient.connect(self._buffer, "consumer", logger.warning)
        source = await asyncio.to_thread(PayloadSource.of, self._buffer, "consumer")
        rows, begin = 0, time.perf_counter()
        for step in range(warm_up + steps):
            if step == warm_up:
                rows, begin = 0, time.perf_counter()
            rows += await self._step(buffer, source, PolicyVersion(step))
        seconds = time.perf_counter() - begin
        buffer.close()
        return rows, seconds

    async def _step(self, buffer: BufferClient, source: PayloadSource, version: PolicyVersion) -> int:
        batch = await buffer.take(version)
        payloads = await asyncio.to_thread(source.fetch_payloads, [episode.payload for episode in batch.episodes])
        tokens = sum(len(decode(payload)) for payload in payloads)
        if tokens != sum(episode.length for episode in batch.episodes):
            raise AssertionError(f"{tokens} tokens were read, but the batch of version {version} counts a different number")
        following = PolicyVersion(version + 1)
        await asyncio.gather(self._producer.set_version.remote(following), buffer.trained(version))
        if following % self._recipe.checkpoint.every == 0:
            await buffer.checkpointed(following)
        await buffer.advance(following)
        return len(batch.episodes)


RemoteTimedBuffer = ray.remote(TimedBufferActor)
RemoteProducer = ray.remote(ProducerActor)
RemoteConsumer = ray.remote(ConsumerActor)
