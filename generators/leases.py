"""The leases of a worker: the tickets it works on, and how much of its engine they take.

What always holds:

* a group is held at most once, by its newest ticket: one that is issued again supersedes what is left of the last;
* an episode takes room from the moment its ticket is accepted until it is over, however it ends, and even if it never began;
* a group is held until each of its samples was settled or it was given up, and a group that is given up settles nothing any more.
"""

import asyncio
import time
from collections.abc import Callable

from asyncrl.core.ids import GroupId
from asyncrl.core.ticket import Ticket


class Lease:
    """One ticket being worked on.

    Attributes:
        playing: samples whose episode is waiting or running.
        unsettled: samples that were neither handed in nor given back.
        work: the task of each sample.
    """

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.playing = set(ticket.samples)
        self.unsettled = set(ticket.samples)
        self.work: dict[int, asyncio.Task[None]] = {}


class Leases:
    """The tickets of one worker.

    Attributes:
        playing: episodes that have begun, or are about to, and are not over.

    Args:
        max_running: episodes that may be played at once, to begin with.
        group_size: episodes of a group.
        room_made: called whenever an episode has ended, or the limit was changed.
        clock: tells the time in seconds, and never goes back.
    """

    def __init__(
        self, max_running: int, group_size: int, room_made: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._group_size, self._room_made, self._clock = max_running, group_size, room_made, clock
        self._settled_at = clock()
        self._episode_seconds = self._held_back_seconds = 0.0
        self._held: dict[GroupId, Lease] = {}
        self.playing = 0

    @property
    def room(self) -> int:
        """Episodes that may begin besides those that are played already; negative when more are played than may be."""
        return self._limit - self.playing

    def limit(self, episodes: int) -> None:
        """Change how many episodes may be played at once. Those that have begun go on."""
        self._settle()
        self._limit = episodes
        self._room_made()

    @property
    def episode_seconds(self) -> float:
        """How long episodes took room, added up."""
        self._settle()
        return self._episode_seconds

    @property
    def held_back_seconds(self) -> float:
        """How long there was room for a group: its ticket was not to be had."""
        self._settle()
        return self._held_back_seconds

    def _settle(self) -> None:
        now = self._clock()
        elapsed, self._settled_at = now - self._settled_at, now
        self._episode_seconds += self.playing * elapsed
        if self.room >= self._group_size:
            self._held_back_seconds += elapsed

    def accept(self, ticket: Ticket, begin: Callable[[Lease, int], "asyncio.Task[None]"]) -> None:
        """Hold ``ticket``, and ``begin`` the work on each of its samples."""
        superseded = self._held.get(ticket.group_id)
        if superseded is not None:
            self.give_up(superseded)
        lease = self._held[ticket.group_id] = Lease(ticket)
        self._settle()
        self.playing += len(ticket.samples)
        for index in ticket.samples:
            lease.work[index] = work = begin(lease, index)
            work.add_done_callback(lambda _, index=index: self.played(lease, index))  # type: ignore[misc]

    def played(self, lease: Lease, index: int) -> None:
        """The episode of a sample is over and takes no room any more. Harmless the second time."""
        if index in lease.playing:
            lease.playing.remove(index)
            self._settle()
            self.playing -= 1
            self._room_made()

    def settled(self, lease: Lease, index: int) -> None:
        """A sample was handed in or given back; with its last one the group is held no longer."""
        lease.unsettled.remove(index)
        if not lease.unsettled and self.holds(lease):
            del self._held[lease.ticket.group_id]

    def holds(self, lease: Lease) -> bool:
        """Whether somebody still waits for what ``lease`` brings."""
        return self._held.get(lease.ticket.group_id) is lease

    def held(self) -> dict[GroupId, Lease]:
        """The groups in hand, as they are now."""
        return dict(self._held)

    def give_up(self, lease: Lease) -> None:
        """Stop all work on a group at once. Does nothing if it is not held any more."""
        if self.holds(lease):
            del self._held[lease.ticket.group_id]
            for work in lease.work.values():
                work.cancel()
