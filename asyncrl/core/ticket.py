"""A ticket: the right, and the duty, to generate episodes of one group."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.task import Task
from asyncrl.core.trajectory import Trajectory


class Ticket(msgspec.Struct, frozen=True):
    """Episodes of ``task`` to generate: all of a group, or those that are missing from one that lost some.

    Attributes:
        group_id: the group's id; a group that is issued again keeps it.
        samples: sample indexes of the episodes to generate, ascending.
        attempt: 0 the first time, one more after each time the task broke its environment.
        version: the published version when the ticket was issued; no token of its episodes is sampled by an older one.
    """

    group_id: GroupId
    task: Task
    samples: tuple[int, ...]
    attempt: int
    version: PolicyVersion


class TicketClient(Protocol):
    """What a generator worker needs of the buffer. Every call is bounded by the implementation's own deadline."""

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        """Wait for up to ``limit`` tickets; an empty answer after a few seconds means: ask again.

        A worker whose ``version`` is behind the published one gets nothing.
        """
        ...

    async def commit(self, trajectory: Trajectory) -> None:
        """Hand in one finished episode. Handing it in twice does no harm."""
        ...

    async def fail(self, group_id: GroupId, sample_index: int, kind: FailureKind, reason: str) -> None:
        """Give one episode back as failed."""
        ...

    async def renew(self, worker: WorkerId, running: Sequence[GroupId]) -> Sequence[GroupId]:
        """Say that the worker lives and what it is running; returns the groups to stop, which nobody waits for any more.

        A worker that is silent for ``deadlines.lease`` seconds is given up: its episodes are issued again.
        """
        ...
