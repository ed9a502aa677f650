"""Leaves nodes on which a run has nothing to do any more, so that an autoscaler may take them away.

Ray takes a node with any process on it for a busy one, whatever that process does. What always holds: a node that is left has
nothing of the run, and gets nothing while it is left.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import NoReturn

from asyncrl.run.nodes.remote_files import FarFiles
from asyncrl.run.publications.transport import PublicationTransport

UNUSED_S = 10.0
"""Seconds between two looks at which nodes are unused. One that is at two of them is left."""


class UnusedNodes:
    """Leaves nodes while :meth:`run` runs.

    Args:
        watched: returns nodes that are not left: whether they answer decides whether they may be used again.

    Attributes:
        leaving: the nodes that are being left.
    """

    def __init__(self, files: FarFiles, transport: PublicationTransport, watched: Callable[[], Collection[str]]) -> None:
        self._files, self._transport, self._watched = files, transport, watched
        self.leaving: set[str] = set()

    async def run(self) -> NoReturn:
        """Leave nodes until cancelled."""
        before: set[str] = set()
        while True:
            await asyncio.sleep(UNUSED_S)
            unused = self._files.unused - set(self._watched())
            self.leaving = unused & before
            for node in self.leaving:
                await self._transport.leave(node)
                await self._files.leave(node)
            before, self.leaving = unused - self.leaving, set()
