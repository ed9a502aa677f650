"""A generator and, after its death, its successors; what the dead had counted is added to what their successors count."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from asyncrl.core.ids import WorkerId
from asyncrl.core.publication import Publication
from asyncrl.core.task import Task
from generators.evaluation import EvaluationResult
from generators.worker import GeneratorStatistics


class Generator(Protocol):
    """A generator in a process of its own. Every call but :meth:`run` has a deadline of its own.

    Every call raises ``ProcessDied`` when the process or its event loop is gone, and what the generator itself raised otherwise.
    """

    worker: WorkerId

    async def start(self) -> None:
        """Bring its engine up, with the weights of version 0."""
        ...

    async def run(self) -> None:
        """Generate until stopped; returns at once if it was stopped before."""
        ...

    async def install(self, publication: Publication) -> int:
        """Load a publication; returns the fingerprint of what was loaded."""
        ...

    async def evaluate(self, tasks: Sequence[Task], temperature: float) -> list[EvaluationResult]:
        """One episode of each task."""
        ...

    async def statistics(self) -> GeneratorStatistics:
        """Counters since it came up."""
        ...

    async def stop(self) -> None:
        """Make :meth:`run` return."""
        ...

    async def close(self, seconds: float) -> None:
        """Shut its engine down."""
        ...

    def kill(self) -> None:
        """End its process, if there still is one."""
        ...


class GeneratorSlot:
    """The place of one generator in the pool and, after its death, of its successors.

    Attributes:
        generator: the one that works here, or is coming up.
        up: whether it has the newest weights and takes part in everything.
        coming_up: the start of the last successor, if there was one.
        death: how the last generator died.
        blocked: how many died of a blocked event loop.
    """

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.up = False
        self.coming_up: asyncio.Task[None] | None = None
        self.death = ""
        self.blocked = 0
        self._dead: Generator | None = None
        self._past = self._latest = GeneratorStatistics()

    def counted(self, statistics: GeneratorStatistics) -> None:
        """Take note of what the generator here has counted."""
        self._latest = statistics

    def vacate(self, death: str, *, blocked: bool = False) -> None:
        """The generator here died. Harmless the second time: what is said first of a death is its cause."""
        if self._dead is not self.generator:
            self._dead, self.death = self.generator, death
            self.blocked += blocked
        self.up = False
        self._past, self._latest = self.counters, GeneratorStatistics()

    @property
    def counters(self) -> GeneratorStatistics:
        """What all generators that ever worked here have counted, as far as that is known."""
        return self._past + self._latest
