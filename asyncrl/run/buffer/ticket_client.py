"""A worker's client of the buffer: gets tickets, writes episodes to this node's files, and reports them.

What always holds: the buffer is told about an episode only after its bytes are written; no finished episode is
lost because the disk is full: its worker pauses, and goes on renewing its leases.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from asyncrl.buffers.journal.disk import DiskFull
from asyncrl.core.episode import Episode, encode
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef
from asyncrl.core.errors import ComponentFailed, FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.ticket import Ticket
from asyncrl.run.buffer.client import BufferClient
from asyncrl.run.buffer.request_coalescer import RequestCoalescer

logger = logging.getLogger(__name__)

FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0
"""Seconds until a full disk is tried again: at first, and at most. No event tells that a file system has room."""


class Sink(Protocol):
    """Keeps encoded episodes; see :class:`asyncrl.run.buffer.payload_shards.PayloadSink`."""

    async def append(self, group_id: GroupId, payloads: Sequence[bytes]) -> list[PayloadRef]:
        """Keep these episodes of one group, or raise ``DiskFull`` and keep none."""
        ...


class RemoteTicketClient:
    """The :class:`asyncrl.core.ticket.TicketClient` of one worker, over TCP.

    Args:
        reward_names: names of the rewards that the buffer gets one by one; see
            :func:`asyncrl.core.episode.named_rewards`.
    """

    def __init__(self, buffer: BufferClient, worker: WorkerId, sink: Sink, reward_names: Sequence[str] = ()) -> None:
        self._buffer, self._worker, self._sink, self._reward_names = buffer, worker, sink, reward_names
        self._commits = RequestCoalescer(self._send)
        self._room = asyncio.Lock()

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        """Lease up to ``limit`` tickets; returns none if there are none at present."""
        return await self._buffer.lease(worker, version, limit)

    async def commit(self, episode: Episode) -> None:
        """Write an episode into the files, and tell the buffer about it.

        Raises:
            ComponentFailed: the episode is malformed, which is a bug.
        """
        payload = await self._keep(episode.group_id, encode(episode))
        try:
            record = EpisodeRecord.of(episode, payload, self._reward_names)
        except ValueError as error:
            name = f"task {episode.task_id}, group {episode.group_id}, sample {episode.sample_index}"
            raise ComponentFailed(f"{self._worker} made a malformed episode ({name}): {error}") from error
        await self._commits.send(record)

    async def fail(self, group_id: GroupId, sample_index: int, kind: FailureKind, reason: str, incident: str = "") -> None:
        """Give one episode back as failed."""
        await self._buffer.fail(group_id, sample_index, kind, reason, incident)

    async def leave_out(self, group_id: GroupId, reason: str) -> None:
        """Tell the buffer that the prompt of a group's task leaves no room for a turn."""
        await self._buffer.leave_out(group_id, reason)

    async def renew(self, worker: WorkerId, running: Sequence[GroupId]) -> Sequence[GroupId]:
        """Tell the buffer that the worker is alive; returns the groups that nobody waits for any more."""
        return await self._buffer.renew(worker, running)

    async def hand_back(self, worker: WorkerId) -> None:
        """Give back all that the worker has, because it was told to end."""
        await self._buffer.hand_back(worker, "was told to end")

    async def _send(self, records: Sequence[EpisodeRecord]) -> Sequence[None]:
        await self._buffer.commit(records)
        return [None] * len(records)

    async def _keep(self, group_id: GroupId, payload: bytes) -> PayloadRef:
        if not self._room.locked():
            with suppress(DiskFull):
                (ref,) = await self._sink.append(group_id, [payload])
                return ref
        async with self._room:  # on a full disk one call tries again and again, and the others wait for it
            return await self._keep_when_there_is_room(group_id, payload)

    async def _keep_when_there_is_room(self, group_id: GroupId, payload: bytes) -> PayloadRef:
        paused, retry = False, FIRST_RETRY_S
        try:
            while True:
                try:
                    (ref,) = await self._sink.append(group_id, [payload])
                except DiskFull as full:
                    if not paused:
                        paused = True
                        logger.warning("paused: %s", full)
                        await self._buffer.report_pause(self._worker, str(full))
                    await asyncio.sleep(retry)
                    retry = min(2 * retry, LAST_RETRY_S)
                else:
                    if paused:
                        logger.warning("there is room again: %s goes on", self._worker)
                    return ref
        finally:
            if paused:
                await self._buffer.report_pause(self._worker, "")
