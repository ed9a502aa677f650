"""A ticket: the right, and the duty, to generate one group."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.task import Task


class Ticket(msgspec.Struct, frozen=True):
    """One group to generate: ``size`` episodes of ``task``.

    Attributes:
        group_id: unique over the run; a task issued again gets a new one.
        attempt: 0 the first time this task is issued in its epoch, one more after each failed attempt.
        version: the clock when the ticket was issued.
    """

    group_id: GroupId
    task: Task
    size: int
    attempt: int
    version: PolicyVersion


class TicketDesk(Protocol):
    """What a generator worker needs of the buffer. Every call is bounded by the implementation's own deadline."""

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        """Wait for up to ``limit`` tickets; an empty answer after a few seconds means: ask again.

        A worker whose ``version`` is behind the clock gets nothing.
        """
        ...

    async def commit(self, rows: Sequence[bytes]) -> None:
        """Hand in encoded trajectories; a group is committed when all its samples are in."""
        ...

    async def fail(self, group_id: GroupId, kind: FailureKind, reason: str) -> None:
        """Give a group back as failed; its task is issued again or, after too many attempts, filtered and named."""
        ...
