"""Watches whether the other nodes of a run answer, so that nobody waits long for one that does not.

A process of its own on each node is asked again and again: no engine and no environment keeps it from answering. What always
holds: a node is *silent* from the moment at which it has not answered for the given time until it answers again; both are
reported, in that order; a node that is not watched is not silent.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NoReturn, TypeVar

from asyncrl.core.errors import AsyncRLError, NodeLost
from asyncrl.core.files.memory_files import LEAST_BYTES
from asyncrl.core.measures.units import memory

T = TypeVar("T")

ASK_EVERY_S = 1.0
"""Seconds between an answer of a node and the next time that it is asked."""
SHARE_OF_LEASE = 0.1
"""A node is silent once it has not answered for this share of ``deadlines.lease``."""


class NodeWatch:
    """Watches nodes while :meth:`run` runs.

    Args:
        ask: asks a node, and returns how many bytes are free in its memory file system.
        nodes: returns the ids of the nodes to watch now.
        silence_s: how long an answer may take, in seconds.
    """

    def __init__(self, ask: Callable[[str], Awaitable[int]], nodes: Callable[[], Collection[str]], silence_s: float) -> None:
        self._ask, self._nodes, self._silence_s = ask, nodes, silence_s
        self._silent: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._free: dict[str, int] = {}
        self._needed: dict[str, int] = {}
        self._out_of_reach: set[str] = set()

    @classmethod
    def watching_nobody(cls) -> "NodeWatch":
        """Return a watch of no node, for a pool whose nodes need not be watched."""

        async def ask(node: str) -> int:
            raise NodeLost(f"node {node} is not watched")

        return cls(ask, tuple, 0.0)

    async def run(self, silent: Callable[[str], Awaitable[None]], answers: Callable[[str], Awaitable[None]]) -> NoReturn:
        """Watch until cancelled.

        Args:
            silent: called with a node that has become silent.
            answers: called with a node that was silent and answers again.
        """
        watching: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                for node in self._nodes():
                    if node not in watching or watching[node].done():
                        watching[node] = group.create_task(self._watch(node, silent, answers), name=f"watching node {node}")
                await asyncio.sleep(ASK_EVERY_S)

    async def _watch(
        self, node: str, silent: Callable[[str], Awaitable[None]], answers: Callable[[str], Awaitable[None]]
    ) -> None:
        gone = False
        while node in self._nodes() or (node in self.avoided and not gone):
            try:
                answered = await self._answers(node)
            except NodeLost:
                answered, gone = False, True
            is_silent = self._silent[node]
            if answered and is_silent.is_set():
                is_silent.clear()
                await answers(node)
            elif not answered and not is_silent.is_set():
                is_silent.set()
                await silent(node)
            await asyncio.sleep(ASK_EVERY_S)
        self._silent.pop(node, None)
        self._free.pop(node, None)
        self._needed.pop(node, None)
        self._out_of_reach.discard(node)

    async def _answers(self, node: str) -> bool:
        """Ask a node. Raises ``NodeLost`` if it will never answer again."""
        try:
            async with asyncio.timeout(self._silence_s):
                self._free[node] = await self._ask(node)
        except NodeLost:
            raise
        except (TimeoutError, AsyncRLError):
            return False
        return True

    async def look(self, node: str) -> bool:
        """Whether a node answers now; true for one that is not watched."""
        if node not in self._nodes():
            return True
        if self._silent[node].is_set():
            return False
        try:
            return await self._answers(node)
        except NodeLost:
            return False

    def is_silent(self, node: str) -> bool:
        """Whether a node is silent, as far as is known without asking it."""
        return node in self._silent and self._silent[node].is_set()

    async def unless_silent(self, nodes: Sequence[str], work: Awaitable[T]) -> T | None:
        """Await ``work``, but only as long as none of ``nodes`` is silent; None if one is."""
        asked, silences = asyncio.ensure_future(work), [asyncio.create_task(self._silent[node].wait()) for node in nodes]
        try:
            await asyncio.wait({asked, *silences}, return_when=asyncio.FIRST_COMPLETED)
            return asked.result() if asked.done() else None
        finally:
            for waiting in (asked, *silences):
                waiting.cancel()

    def lacks(self, node: str, needed: int) -> None:
        """Note that a node needs so many free bytes in its memory file system before a generator can be there, if it is watched.

        Each time that what was needed was free and not enough, twice as much is. What was free there is not known any more, until
        it answers again.
        """
        if node in self._nodes():
            self._needed[node] = max(needed, 2 * self._needed.get(node, 0))
            self._free.pop(node, None)

    def has_no_weights(self, node: str) -> None:
        """Note that new weights do not come to a node, so that no generator can be there."""
        self._out_of_reach.add(node)

    def full(self, nodes: Collection[str]) -> str:
        """Say how much was free on those of ``nodes`` that were full when they last answered; empty if none was."""
        free = [memory(self._free[node]) for node in nodes if self._free.get(node, LEAST_BYTES) < LEAST_BYTES]
        return f"its memory file system had {' and '.join(free)} free" if free else ""

    @property
    def avoided(self) -> dict[str, str]:
        """The nodes on which no generator should be started now, each with the reason."""
        why = {node: "it does not answer" for node, is_silent in self._silent.items() if is_silent.is_set()}
        for node, needed in self._needed.items():
            if (free := self._free.get(node)) is None or free < needed:
                has = "too little" if free is None else memory(free)
                why[node] = f"its memory file system has {has} free, and {memory(needed)} are needed"
        return why | dict.fromkeys(self._out_of_reach, "new weights do not come to it")
