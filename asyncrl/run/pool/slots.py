"""The slots of all generators of a run: asks the generators in them side by side, and notes who died and why.

What always holds: a generator that died, or missed the deadline of a call, is given no weights any more, and what is left of its
process is killed; the first report of a death is its cause; whoever waits for :attr:`GeneratorSlots.changed` hears of each death.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from asyncrl.core.errors import (
    AsyncRLError,
    ComponentFailed,
    DeadlineExceeded,
    EventLoopBlocked,
    HandedBack,
    NodeFull,
    NodeLost,
    ProcessDied,
    WeightsOutOfReach,
    first_error,
)
from asyncrl.core.files.memory_files import LEAST_BYTES
from asyncrl.core.ids import WorkerId
from asyncrl.core.recipe.generators import Role
from asyncrl.generators.worker import GeneratorStatistics
from asyncrl.run.nodes.node_watch import NodeWatch
from asyncrl.run.pool.handle import GeneratorHandle

T = TypeVar("T")
F = TypeVar("F", bound=AsyncRLError)


class GeneratorSlot:
    """The place of one generator in the pool and, after its death, of its successors.

    Attributes:
        generator: the one that works here, or is coming up.
        pool: the name of its pool in the recipe.
        role: what the pool plays.
        up: whether it has loaded weights and takes part in everything.
        newcomer: whether the slot was added to a pool that grew.
        given_up: whether the generator is to end, or has ended, without a successor.
        coming_up: the task that starts the last successor, if there was one.
        death: how the last generator died.
        blameless: whether that was no failure of its own, but of its node or of the way to it.
        blocked: how many died of a blocked event loop.
    """

    def __init__(self, generator: GeneratorHandle, pool: str, role: Role, *, newcomer: bool = False) -> None:
        self.generator, self.pool, self.role, self.newcomer = generator, pool, role, newcomer
        self.given_up = False
        self.up = False
        self.coming_up: asyncio.Task[None] | None = None
        self.death = ""
        self.blameless = False
        self.blocked = 0
        self._dead: GeneratorHandle | None = None
        self._past = self._latest = GeneratorStatistics()

    def note_counters(self, statistics: GeneratorStatistics) -> None:
        """Note the counters of the generator here."""
        self._latest = statistics

    def vacate(self, death: str, *, blocked: bool = False, blameless: bool = False) -> None:
        """Note that the generator here died. Harmless the second time: the first report of a death is its cause."""
        if self._dead is not self.generator:
            self._dead, self.death, self.blameless = self.generator, death, False
            self.blocked += blocked
        self.blameless |= blameless
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
        """The sum of the counters of all generators that ever worked in this slot, as far as they are known."""
        return self._past + self._latest


class GeneratorSlots:
    """The slots of all pools.

    Args:
        slots: in the order in which they are shown.
        forget: ends the deliveries of weights to a generator.
        nodes: knows which nodes answer.

    Attributes:
        all: every slot there ever was, newcomers last.
        pump: the tasks of the generation pump, which replaces generators that die; None before it began and after it ended.
        stopping: set once the pump is to end.
        changed: set when a generator died, ended or is done coming up, and when the pump ended.
        last_death: how the last generator died.
    """

    def __init__(self, slots: Sequence[GeneratorSlot], forget: Callable[[WorkerId], None], nodes: NodeWatch) -> None:
        self.all, self._forget, self._nodes = list(slots), forget, nodes
        self.pump: asyncio.TaskGroup | None = None
        self.stopping = asyncio.Event()
        self.changed = asyncio.Event()
        self.last_death = "none was ever up"

    @property
    def up(self) -> list[GeneratorSlot]:
        """The slots whose generator takes part in everything."""
        return [slot for slot in self.all if slot.up]

    @property
    def training(self) -> list[GeneratorSlot]:
        """The slots that play training episodes, or did so before they were given up."""
        return [slot for slot in self.all if slot.role != "evaluation"]

    @property
    def evaluating(self) -> list[GeneratorSlot]:
        """The slots that play evaluations."""
        return [slot for slot in self.all if slot.role != "train" and not slot.given_up]

    def in_pool(self, pool: str) -> list[GeneratorSlot]:
        """Return the slots that count in the size of a pool."""
        return [slot for slot in self.all if slot.pool == pool and not slot.given_up]

    def needs_nobody(self, slot: GeneratorSlot) -> bool:
        """Whether nobody is to take the place of the generator in ``slot``: the slot was given up, or the pump is to end."""
        return self.stopping.is_set() or slot.given_up

    async def ask(self, slots: Sequence[GeneratorSlot], question: Callable[[GeneratorHandle], Awaitable[T]]) -> list[T | None]:
        """Return the answers of the generators in ``slots``, None for one that died. Raises any other error at once."""

        async def answer(slot: GeneratorSlot) -> T | None:
            generator = slot.generator
            try:
                return await _in_time(question(generator))
            except ProcessDied as death:
                if slot.generator is generator:
                    self.died(slot, death)
                return None

        with first_error():
            async with asyncio.TaskGroup() as asking:
                answers = [asking.create_task(answer(slot)) for slot in slots]
        return [done.result() for done in answers]

    async def was_lost_with_its_node(self, generator: GeneratorHandle) -> bool:
        """Whether a node of a generator that died does not answer either."""
        return not all([await self._nodes.look(node) for node in generator.nodes])

    async def explained(self, generator: GeneratorHandle, death: F) -> F | NodeLost | NodeFull:
        """Return what a generator died of: the loss of its node if that does not answer, or a full memory file system there."""
        if isinstance(death, NodeLost | NodeFull | WeightsOutOfReach):
            return death
        lost, full = await self.was_lost_with_its_node(generator), self._nodes.full(generator.nodes)
        if lost:
            why = f"{death}; {full}: make room there, and start Ray again" if full else str(death)
            return NodeLost(f"{generator.worker}: its node does not answer, and it is lost with it ({why})")
        if full and not isinstance(death, HandedBack | EventLoopBlocked):
            remedy = "make it larger (--shm-size for a container, else mount -o remount,size=...), or make room"
            return NodeFull(f"{generator.worker}: its node is full ({death}); {full}: {remedy}", LEAST_BYTES)
        return death

    def died(self, slot: GeneratorSlot, death: ProcessDied) -> None:
        """Note that the generator in ``slot`` or its engine is gone; kill what is left, which also ends its ``run``."""
        if isinstance(death, NodeFull):
            for node in slot.generator.nodes:  # only those that have less are avoided
                self._nodes.lacks(node, death.needed)
        if isinstance(death, WeightsOutOfReach):
            self._nodes.has_no_weights(death.node)
        worker, why = slot.generator.worker, str(death)
        blocked, blameless = isinstance(death, EventLoopBlocked), isinstance(death, NodeLost | WeightsOutOfReach)
        if isinstance(death, NodeFull):  # a successor must not go there again at once
            blameless = not self._nodes.avoided.keys().isdisjoint(slot.generator.nodes)
        slot.vacate(why if why.startswith(worker) else f"{worker}: {why}", blocked=blocked, blameless=blameless)
        self.last_death = slot.death
        self._forget(worker)
        slot.generator.kill()
        self.changed.set()

    def lost(self, generator: GeneratorHandle, death: ProcessDied) -> None:
        """Note that a generator died, wherever it is now."""
        for slot in self.all:
            if slot.generator is generator:
                self.died(slot, death)

    def are_coming_up(self, slots: Sequence[GeneratorSlot]) -> bool:
        """Whether the generator of one of ``slots`` is coming up."""
        return any(slot.coming_up is not None and not slot.coming_up.done() for slot in slots)

    def check_alive(self, slots: Sequence[GeneratorSlot]) -> None:
        """Raise ``ComponentFailed`` if no generator in ``slots`` is up or will be, so that nobody waits for one in vain."""
        will_come = self.pump is not None and not self.stopping.is_set()
        if not (will_come or self.are_coming_up(slots) or any(slot.up for slot in slots)):
            raise ComponentFailed(f"no generator is left: {self.last_death}")


async def _in_time(answer: Awaitable[T]) -> T:
    """Await a generator's answer. If it is late, it counts as dead: a frozen engine would never end by itself."""
    try:
        return await answer
    except DeadlineExceeded as late:
        raise ProcessDied(str(late)) from late
