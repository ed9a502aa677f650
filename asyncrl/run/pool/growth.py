"""Finds room in the cluster for the newcomers of pools that grow, however long that takes.

What always holds: a pool waits for at most one growth, the last that was asked for; room that was found is taken by whoever asked
for it before anybody else looks how large the pool is; room that nobody needs is given back.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from asyncrl.core.errors import RecipeError
from asyncrl.core.text import pluralize
from asyncrl.run.pool.successors import FindRoom

ANSWER_S = 3.0
"""How long whoever asks for newcomers waits for room, before being told that the pool waits for it."""


class _Search(NamedTuple):
    """A search for room for so many newcomers; ``over`` once its room is taken, or nobody wants it any more."""

    finding: asyncio.Task[None]
    number: int
    over: asyncio.Event


class PoolGrowth:
    """The pools that wait for room.

    Args:
        room: finds places for further generators of a pool.
        note: shows a line to the user.
    """

    def __init__(self, room: FindRoom, note: Callable[[str], None]) -> None:
        self._room, self._note = room, note
        self._finding: dict[str, _Search] = {}

    def waiting(self, pool: str) -> int:
        """How many newcomers of a pool wait for room."""
        return self._finding[pool].number if pool in self._finding else 0

    async def begin(self, pool: str, number: int) -> "asyncio.Task[None]":
        """Look for room for newcomers instead of those that the pool has waited for.

        Returns:
            what looks for it: done if there is room within :data:`ANSWER_S`, or is none in time; else it goes on.

        Raises:
            RecipeError: somebody changed the size of the pool again meanwhile.
        """

        def tell(no_room: RecipeError) -> None:
            self._note(f"Pool {pool} waits for room for {pluralize(number, 'newcomer')}: {no_room}")

        self.give_up(pool)
        finding = asyncio.ensure_future(self._room(pool, number, False, tell))
        self._finding[pool] = _Search(finding, number, asyncio.Event())
        try:
            await asyncio.wait([finding], timeout=ANSWER_S)
        except asyncio.CancelledError:  # nobody would take the room
            finding.cancel()
            self._forget(pool, finding)
            raise
        if finding.cancelled():
            raise RecipeError(pool, "another command has changed the size of the pool", "see how many engines it has now")
        if finding.done():
            self._forget(pool, finding)
        return finding

    async def found(self, pool: str, finding: "asyncio.Task[None]", stopping: asyncio.Event) -> bool:
        """Wait until there is room, as long as the pool is to grow; whether there is."""
        ending = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait([finding, ending], return_when=asyncio.FIRST_COMPLETED)
            if not finding.done() or finding.cancelled():
                return False
            finding.result()
            return True
        except RecipeError as no_room:
            self._note(f"Pool {pool} stays as it is: {no_room}")
            return False
        finally:
            ending.cancel()
            finding.cancel()
            self._forget(pool, finding)

    async def taken(self, pool: str) -> None:
        """Wait until room that has just been found for a pool's newcomers is taken."""
        while (search := self._finding.get(pool)) is not None and search.finding.done():
            await search.over.wait()

    def give_up(self, pool: str) -> None:
        """Look for room for a pool's newcomers no longer."""
        if pool in self._finding:
            search = self._finding.pop(pool)
            search.finding.cancel()
            search.over.set()

    def _forget(self, pool: str, finding: "asyncio.Task[None]") -> None:
        if pool in self._finding and self._finding[pool].finding is finding:
            self._finding.pop(pool).over.set()
