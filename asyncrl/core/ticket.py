"""Tickets: permission to play the open episodes of one group."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from asyncrl.core.episode import Episode
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.task import Task


class Ticket(msgspec.Struct, frozen=True):
    """Permission to generate episodes of ``task``: all of a group, or the missing ones of a group that lost some.

    Attributes:
        group_id: the group's id; a group that is issued again keeps it.
        samples: sample indexes of the episodes to generate, ascending.
        attempt: 0 the first time, one more after each time the task broke its environment.
        version: the published version when the ticket was issued; no token of its episodes is sampled by an older one.
        source: the task source that the task was drawn from.
    """

    group_id: GroupId
    task: Task
    samples: tuple[int, ...]
    attempt: int
    version: PolicyVersion
    source: str = ""


class TicketClient(Protocol):
    """What a generator's worker may ask of the buffer. The implementation gives every call a deadline."""

    async def lease(self, worker: WorkerId, version: PolicyVersion, limit: int) -> Sequence[Ticket]:
        """Wait for up to ``limit`` tickets. If there are none within a few seconds, the answer is empty; then ask again.

        A worker whose ``version`` is behind the published version gets no ticket.
        """

    async def commit(self, episode: Episode) -> None:
        """Hand in one finished episode. Handing it in twice does no harm."""

    async def fail(self, group_id: GroupId, sample_index: int, kind: FailureKind, reason: str, incident: str = "") -> None:
        """Report that one episode failed."""

    async def leave_out(self, group_id: GroupId, reason: str) -> None:
        """Report that the prompt of a group's task leaves no room for a turn."""

    async def renew(self, worker: WorkerId, running: Sequence[GroupId]) -> Sequence[GroupId]:
        """Report that the worker is alive and ``running`` these groups; return those that nobody waits for any more.

        A worker that is silent for ``deadlines.lease`` seconds is given up, and its episodes are issued again.
        """

    async def hand_back(self, worker: WorkerId) -> None:
        """Give back all that the worker has, because it was told to end: it is issued again at once, and nothing counts."""
