"""The leases of a worker: the tickets it works on, and how much room they take in its engine.

What always holds:

* the worker holds a group at most once, by its newest ticket: a group that is issued again ends its older lease;
* an episode takes room from the moment its ticket is accepted until the episode is over, however it ends, and even if
  it never began;
* the worker holds a group until all its samples are settled or the group is given up. After a group is given up, none
  of its samples is settled any more.
"""

import asyncio
import time
from collections.abc import Callable

from asyncrl.core.ids import GroupId
from asyncrl.core.ticket import Ticket


class Lease:
    """A worker's hold on one ticket.

    Attributes:
        playing: indexes of the samples whose episode is waiting for a slot or running.
        unsettled: indexes of the samples that were neither handed in nor given back.
        work: the asyncio task of each sample, by sample index.
    """

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.playing = set(ticket.samples)
        self.unsettled = set(ticket.samples)
        self.work: dict[int, asyncio.Task[None]] = {}


class Leases:
    """All leases of one worker.

    Attributes:
        playing: episodes that have begun, or are about to, and are not over.

    Args:
        max_running: most episodes that may be played at once, until :meth:`limit` changes it.
        group_size: number of episodes in a group.
        room_made: called whenever an episode has ended or the limit has changed.
        room_changes: called whenever the room is about to change.
        clock: returns the time in seconds; must never go back.
    """

    def __init__(
        self,
        max_running: int,
        group_size: int,
        room_made: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        room_changes: Callable[[], None] = lambda: None,
    ) -> None:
        self._room_changes = room_changes
        self._limit, self._group_size, self._room_made, self._clock = max_running, group_size, room_made, clock
        self._settled_at = clock()
        self._episode_seconds = self._held_back_seconds = 0.0
        self._held: dict[GroupId, Lease] = {}
        self.playing = 0

    @property
    def room(self) -> int:
        """Number of further episodes that may begin; negative when more are played than the limit allows."""
        return self._limit - self.playing

    def limit(self, episodes: int) -> None:
        """Change how many episodes may be played at once. Those that have begun go on."""
        self._settle()
        self._limit = episodes
        self._room_made()

    @property
    def episode_seconds(self) -> float:
        """Seconds for which episodes took room, summed over all episodes."""
        self._settle()
        return self._episode_seconds

    @property
    def held_back_seconds(self) -> float:
        """Seconds in which the engine had room for a whole group but the worker had no ticket for one."""
        self._settle()
        return self._held_back_seconds

    def _settle(self) -> None:
        self._room_changes()
        now = self._clock()
        elapsed, self._settled_at = now - self._settled_at, now
        self._episode_seconds += self.playing * elapsed
        if self.room >= self._group_size:
            self._held_back_seconds += elapsed

    def accept(self, ticket: Ticket, begin: Callable[[Lease, int], "asyncio.Task[None]"]) -> None:
        """Lease ``ticket``, and call ``begin`` for each of its samples. An older lease on the group is given up."""
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
        """Note that the episode of a sample is over and takes no room any more. A second call does nothing."""
        if index in lease.playing:
            lease.playing.remove(index)
            self._settle()
            self.playing -= 1
            self._room_made()

    def settled(self, lease: Lease, index: int) -> None:
        """Note that a sample was handed in or given back. After the last one, the worker no longer holds the group."""
        lease.unsettled.remove(index)
        if not lease.unsettled and self.holds(lease):
            del self._held[lease.ticket.group_id]

    def holds(self, lease: Lease) -> bool:
        """Whether ``lease`` is still current: it was neither settled, nor given up, nor replaced."""
        return self._held.get(lease.ticket.group_id) is lease

    def held(self) -> dict[GroupId, Lease]:
        """Return a copy of the current leases, by group."""
        return dict(self._held)

    def give_up(self, lease: Lease) -> None:
        """Cancel all work on a group at once. Does nothing if the lease is no longer current."""
        if self.holds(lease):
            del self._held[lease.ticket.group_id]
            for work in lease.work.values():
                work.cancel()
