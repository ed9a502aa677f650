"""A generator and, after its death, its successors; what the dead had counted is added to what their successors count."""

import asyncio

import msgspec

from asyncrl.core.recipe.generators import Role
from asyncrl.run.pool.handle import GeneratorHandle
from generators.worker import GeneratorStatistics


class GeneratorSlot:
    """The place of one generator in the pool and, after its death, of its successors.

    Attributes:
        generator: the one that works here, or is coming up.
        pool: the name of its pool in the recipe.
        role: what the pool plays.
        up: whether it has loaded weights and takes part in everything.
        newcomer: whether the slot was added to a pool that grew.
        given_up: whether the generator is told to end, or has ended, without a successor.
        coming_up: the task that starts the last successor, if there was one.
        death: how the last generator died.
        blocked: how many died of a blocked event loop.
    """

    def __init__(self, generator: GeneratorHandle, pool: str, role: Role, *, newcomer: bool = False) -> None:
        self.generator, self.pool, self.role, self.newcomer = generator, pool, role, newcomer
        self.given_up = False
        self.up = False
        self.coming_up: asyncio.Task[None] | None = None
        self.death = ""
        self.blocked = 0
        self._dead: GeneratorHandle | None = None
        self._past = self._latest = GeneratorStatistics()

    def counted(self, statistics: GeneratorStatistics) -> None:
        """Note what the generator here has counted."""
        self._latest = statistics

    def vacate(self, death: str, *, blocked: bool = False) -> None:
        """Note that the generator here died. Harmless the second time: the first report of a death is its cause."""
        if self._dead is not self.generator:
            self._dead, self.death = self.generator, death
            self.blocked += blocked
        self.up = False
        self._past = self.counters
        # The gauges of the dead stay until its successor is heard of.
        self._latest = GeneratorStatistics(
            last_pause_seconds=self._past.last_pause_seconds,
            episode_limit=self._past.episode_limit,
            blocked_by=self._past.blocked_by,
            remarks=self._past.remarks,
        )

    def close(self) -> None:
        """Note that the generator here has ended and nobody takes its place: its counters stay, its gauges are 0."""
        self.up = False
        self._past = msgspec.structs.replace(self.counters, last_pause_seconds=0.0, episode_limit=0)
        self._latest = GeneratorStatistics()

    @property
    def counters(self) -> GeneratorStatistics:
        """What all generators that ever worked in this slot have counted, as far as that is known."""
        return self._past + self._latest
