"""The generators of a run, of all its pools. If one dies, the run goes on without it until a successor has taken its place.

What always holds:

* a generator that died is reported to the buffer before its successor is made, so its episodes are issued again exactly once;
* successors and newcomers lease nothing before they have loaded a publication. :mod:`asyncrl.weights.delivery_rules` says
  which one each generator has, and who is waited for;
* a generator whose pool only evaluates leases nothing; :mod:`asyncrl.run.pool.evaluation` says who plays an evaluation;
* a generator that is to end, because its pool shrinks or its process got SIGTERM, hands its episodes back first;
* counters only grow, and include those of generators that died or ended;
* nobody waits for a generator whose node does not answer, and no successor is made there. A generator that is lost with its node
  counts neither as a failure nor as one of several deaths in a row.

A generator is replaced if SIGTERM ended it, or if its process is dead or only looks alive: its event loop ended or is
blocked, its worker ended although nobody stopped it, it could not be reached for ``deadlines.lease``, or it missed the deadline
of a call, for example because its engine is frozen. While the cluster has no room for the successor, the others go on. The run
ends if several successors in a row die in one slot while they come up, if the event loops of several generators in one slot are
blocked, and on any other error.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeVar

from asyncrl.core.errors import (
    AsyncRLError,
    ComponentFailed,
    DeadlineExceeded,
    ProcessDied,
    ProcessUnreachable,
    RecipeError,
    first_error,
)
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.recipe.schema import DeadlinesConfig
from asyncrl.core.text import pluralize
from asyncrl.generators.evaluation import HeldOutTask
from asyncrl.generators.worker import GeneratorStatistics
from asyncrl.run.nodes.node_watch import NodeWatch
from asyncrl.run.pool.delivery_calls import WeightDelivery
from asyncrl.run.pool.evaluation import Evaluation, PoolEvaluation
from asyncrl.run.pool.generator_remarks import GeneratorRemarks
from asyncrl.run.pool.growth import PoolGrowth
from asyncrl.run.pool.handle import GeneratorHandle
from asyncrl.run.pool.probe_scores import EngineScores
from asyncrl.run.pool.slots import GeneratorSlot, GeneratorSlots
from asyncrl.run.pool.successors import FindRoom, Successors
from asyncrl.run.publications.transport import PublicationTransport

logger = logging.getLogger(__name__)

T = TypeVar("T")

BLOCKED_IN_A_SLOT = 3
"""The run ends if the event loops of this many generators in one slot are blocked: once may be due to the task or the
policy, this often it is due to the environment."""


async def _always(pool: str, number: int, successors: bool, lacking: Callable[[RecipeError], None]) -> None:
    """There is room."""


class GeneratorSupply(NamedTuple):
    """Where generators come from, and what becomes known of those that are gone.

    Attributes:
        make: makes the process of a generator of a pool, given a number that no other of the run had, in a place that was found
            for it: before the pool was made, or by ``room``.
        report_lost: tells the buffer that a worker is gone, and whether it was lost with its node; may refuse to go on
            (``BudgetExceeded``).
        room: finds places for further generators; by default there is always one.
    """

    make: Callable[[str, int], GeneratorHandle]
    report_lost: Callable[[WorkerId, bool], Awaitable[None]]
    room: FindRoom = _always


class GeneratorPool:
    """The generators that work side by side; each method acts on all that are up.

    Args:
        pools: the pools by name; their sizes and roles count here.
        supply: makes generators.
        note: shows a line to the user.
        transport: brings publications to the generators' nodes; None if nothing is ever published.
        clock: returns the time in seconds; must never go back.
        nodes: knows which nodes answer; by default all do.
    """

    def __init__(
        self,
        pools: Mapping[str, GeneratorsConfig],
        supply: GeneratorSupply,
        deadlines: DeadlinesConfig,
        note: Callable[[str], None],
        transport: PublicationTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        nodes: NodeWatch | None = None,
    ) -> None:
        self._nodes = nodes or NodeWatch.watching_nobody()
        self._pools, self._supply, self._note = pools, supply, note
        self._numbers, self._at_once = count(), {name: pool.max_running for name, pool in pools.items()}
        places = [(name, pool.role) for name, pool in pools.items() for _ in range(pool.count)]
        slots = [GeneratorSlot(self._make(name), name, role) for name, role in places]
        self._slots = GeneratorSlots(slots, lambda worker: self._delivery.leave(worker), self._nodes)
        self._delivery = WeightDelivery(transport, deadlines, self._slots.lost, note, clock)
        self._successors = Successors(self._slots, self._delivery, self._make, supply.report_lost, supply.room, note)
        self._evaluation = PoolEvaluation(self._slots, self._delivery, self._successors)
        self._remarks = GeneratorRemarks(note)
        self._growth = PoolGrowth(supply.room, note)
        self._tended: set[asyncio.Task[None]] = set()

    def _make(self, pool: str) -> GeneratorHandle:
        generator = self._supply.make(pool, next(self._numbers))
        generator.at_once = self._at_once[pool]
        return generator

    async def start(self, up: Callable[[WorkerId], None] = lambda worker: None) -> None:
        """Bring all up side by side, and call ``up`` for each that is. It takes one of them for the run to begin."""

        async def start(slot: GeneratorSlot) -> None:
            await self._successors.begin(slot)
            if slot.up:
                up(slot.generator.worker)

        with first_error():
            async with asyncio.TaskGroup() as starting:
                for slot in self._slots.all:
                    starting.create_task(start(slot))
        self._slots.check_alive(self._slots.all)

    async def generate(self) -> None:
        """Run the generation pump: every generator pulls tickets until :meth:`stop`, and so do successors.

        Raises:
            BudgetExceeded: more generators died than ``buffer.max_failures`` allows.
            ComponentFailed: a successor did not come up, or environments block one generator after another.
        """
        try:
            with first_error():
                async with asyncio.TaskGroup() as self._slots.pump:
                    failing = self._slots.pump.create_task(self._delivery.failure(), name="weight delivery")
                    for slot in self._slots.all:
                        self._tend(self._keep(slot), f"a slot of pool {slot.pool}")
                    while self._tended:
                        done, _ = await asyncio.wait(self._tended, return_when=asyncio.FIRST_COMPLETED)
                        self._tended -= done
                    failing.cancel()
        finally:
            self._slots.pump = None
            self._slots.changed.set()

    def _tend(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Have the generation pump do ``work``, and end only after it."""
        assert self._slots.pump is not None
        self._tended.add(self._slots.pump.create_task(work, name=name))

    async def _keep(self, slot: GeneratorSlot) -> None:
        """Have the generator of a slot generate, and replace it when it dies, until the slot is given up or the pool stops."""
        if slot.newcomer and not await self._begin(slot):
            return
        while not self._slots.needs_nobody(slot):
            try:
                await slot.generator.run()
                if not self._slots.needs_nobody(slot):
                    raise ProcessDied(f"{slot.generator.worker}: it stopped generating, although nobody stopped it; see its log")
            except ProcessDied as died:
                death = await self._slots.explained(slot.generator, died)
                self._slots.died(slot, death)
                if slot.blocked == BLOCKED_IN_A_SLOT:
                    raise ComponentFailed(f"{slot.death}; {slot.blocked} generators in one slot ended like this") from death
                if not self._slots.needs_nobody(slot):
                    await self._successors.replace(slot)

    async def _begin(self, slot: GeneratorSlot) -> bool:
        """Bring a newcomer up. If that fails, or it is to end meanwhile, the pool stays as large as it was."""
        newcomer = slot.generator
        try:
            await self._successors.come_up(slot)
        except AsyncRLError as error:
            if not slot.given_up:
                logger.warning("%s did not come up", newcomer.worker, exc_info=error)
                self._note(f"{newcomer.worker} did not come up, and the run goes on without it: {error}")
                await self._give_up(slot)
        return slot.up

    async def stop(self) -> None:
        """Make :meth:`generate` return."""
        self._slots.stopping.set()
        await self._slots.ask(self._slots.up, lambda generator: generator.stop())

    async def scale(self, pool: str, size: int) -> str:
        """Change how many generators a pool has while they generate; newcomers come up, and others end, after this has returned.

        Returns:
            what happens now, as a sentence.

        Raises:
            RecipeError: there is no such pool, the size is less than 1, the cluster has no room and gets none, or nothing is
                generated now.
        """
        if pool not in self._pools:
            known = ", ".join(self._pools)
            raise RecipeError(
                pool, "the run has no pool of that name", f"name one of {known}, such as {next(iter(self._pools))}=2"
            )
        if size < 1:
            raise RecipeError(pool, f"nobody would play with {size} engines", "choose 1 or more, or end the run with Ctrl-C")
        await self._growth.taken(pool)
        self._check_generating(pool)
        self._growth.give_up(pool)
        slots = self._slots.in_pool(pool)
        if size > len(slots):
            change = await self._grow(pool, size - len(slots))
        elif size < len(slots):
            # First those that do least: they are not up, or behind, or came last.
            slots.sort(key=lambda slot: (slot.up, self._delivery.is_current(slot.generator.worker), -self._slots.all.index(slot)))
            ending = slots[: len(slots) - size]
            for slot in ending:
                slot.given_up = True
                self._tend(self._give_up(slot), f"{slot.generator.worker} ending")
            names = ", ".join(slot.generator.worker for slot in ending)
            change = f"{names} {'hands back its' if len(ending) == 1 else 'hand back their'} episodes"
        else:
            change = f"pool {pool} has {pluralize(size, 'engine')} already"
        self._note(f"Pool {pool} is to have {pluralize(size, 'engine')}: {change}")
        return change

    async def bound(self, pools: Collection[str], episodes: int) -> None:
        """Have each generator of some pools, and those that come later, play at most so many episodes at once."""
        self._at_once |= dict.fromkeys(pools, episodes)
        slots = [slot for slot in self._slots.all if slot.pool in pools]
        for slot in slots:
            slot.generator.at_once = episodes  # of one that is coming up
        up = [slot for slot in slots if slot.up]
        await self._slots.ask(up, lambda generator: self._if_reached(generator, generator.bound(episodes)))

    def _check_generating(self, pool: str) -> None:
        if self._slots.pump is None or self._slots.stopping.is_set():
            raise RecipeError(pool, "the run is not generating: it is starting or ending", "try again once it trains")

    async def _grow(self, pool: str, number: int) -> str:
        """Add newcomers to a pool, all or none, now or once there is room; returns what happens now."""
        finding = await self._growth.begin(pool, number)
        try:
            self._check_generating(pool)
        except RecipeError:
            self._growth.give_up(pool)
            raise
        if finding.done():
            finding.result()
            names = ", ".join(self._add_newcomer(pool) for _ in range(number))
            return f"{names} {'is' if number == 1 else 'are'} coming up"
        self._tend(self._grow_later(pool, number, finding), f"room for pool {pool}")
        return f"{pluralize(number, 'engine')} wait for room in the cluster, which the run's notes tell of"

    async def _grow_later(self, pool: str, number: int, finding: "asyncio.Task[None]") -> None:
        if await self._growth.found(pool, finding, self._slots.stopping):
            for _ in range(number):
                self._add_newcomer(pool)

    def _add_newcomer(self, pool: str) -> WorkerId:
        slot = GeneratorSlot(self._make(pool), pool, self._pools[pool].role, newcomer=True)
        self._slots.all.append(slot)
        self._tend(self._keep(slot), f"a slot of pool {pool}")
        return slot.generator.worker

    async def _give_up(self, slot: GeneratorSlot) -> None:
        """Have the generator of a slot hand its episodes back, and end it."""
        slot.given_up = True
        generator, was_up = slot.generator, slot.up
        if slot.coming_up is not None:
            slot.coming_up.cancel()
        if was_up:
            try:
                await generator.hand_back()
                slot.note_counters(await generator.statistics())
                self._note(f"{generator.worker} has handed back its episodes, and ends")
            except (ProcessDied, DeadlineExceeded) as death:
                self._note(f"{death}. Its episodes are issued again")
        slot.close()
        self._delivery.leave(generator.worker)
        generator.kill()
        await self._supply.report_lost(generator.worker, False)
        self._slots.changed.set()

    def cut_off(self, node: str) -> list[WorkerId]:
        """Wait no longer for the generators of a node that does not answer, and return those that are up. They may come back."""
        workers = [slot.generator.worker for slot in self._slots.up if node in slot.generator.nodes]
        for worker in workers:
            self._delivery.overlook(worker)
        return workers

    async def deliver(self, publication: Publication) -> None:
        """Have the generators load ``publication``; return when its version may be published.

        Raises:
            WeightMismatch: what was loaded is not what was published.
            ComponentFailed: no generator is left.
        """
        await self._delivery.deliver(publication)
        self._slots.check_alive(self._slots.all)

    async def may_write(self) -> frozenset[PolicyVersion]:
        """Wait until one more version can be written; return those whose files must stay as they are."""
        return await self._delivery.may_write()

    async def evaluate(self, tasks: Sequence[HeldOutTask], version: PolicyVersion, *, pinned: bool = False) -> Evaluation:
        """Play the episodes of all tasks, divided over the generators; if one dies, its tasks are given out again.

        Args:
            version: what was published when the evaluation was due.
            pinned: while generators train, play only on some that load no other version meanwhile; if all of them die,
                others play the rest with their own version.

        Raises:
            ComponentFailed: no generator is left, or all that were asked died, several times in a row.
        """
        if pinned and self._slots.pump:  # nothing is published while nothing is trained
            return await self._evaluation.play_pinned(tasks, version)
        return await self._evaluation.play(tasks, version)

    async def score(self, rows: Sequence[Sequence[int]], turn: int) -> EngineScores | None:
        """Have one generator score ``rows``, another one in each turn; None if none is up, or it died or was cut off."""
        up = [slot for slot in self._slots.up if not any(map(self._nodes.is_silent, slot.generator.nodes))]
        if not up:
            return None
        slot = up[turn % len(up)]
        asked = self._slots.ask([slot], lambda generator: self._if_reached(generator, generator.score(rows)))
        worker, (scored,) = slot.generator.worker, await asked
        return None if scored is None else EngineScores(worker, slot.pool, scored)

    async def statistics(self) -> list[GeneratorStatistics]:
        """Return the counters of each slot that trains; if its generator is gone, the last known ones. New slots come last.

        A pool that only evaluates would seem idle most of the time, although nothing waits for it. Generators whose node does
        not answer keep the counters that were known before.
        """

        slots = self._slots.up
        asked = [slot.generator for slot in slots]
        answers = await self._slots.ask(slots, lambda generator: self._if_reached(generator, generator.statistics()))
        for slot, generator, answer in zip(slots, asked, answers, strict=True):
            if answer is not None and slot.up and slot.generator is generator:
                slot.note_counters(answer)
                self._remarks.tell(generator.worker, answer)
        return [slot.counters for slot in self._slots.training]

    async def _if_reached(self, generator: GeneratorHandle, answer: Awaitable[T]) -> T | None:
        """Await an answer of a generator; None if a node of its or its process cannot be reached: it may come back."""
        try:
            return await self._nodes.unless_silent(generator.nodes, answer)
        except ProcessUnreachable:
            return None

    @property
    def workers(self) -> list[WorkerId]:
        """The generators that the pools have now, up or not."""
        return [slot.generator.worker for slot in self._slots.all]

    @property
    def sizes(self) -> dict[str, int]:
        """How many engines each pool is to have now."""
        return {pool: len(self._slots.in_pool(pool)) + self._growth.waiting(pool) for pool in self._pools}

    @property
    def settled(self) -> bool:
        """Whether each pool has just the generators that it is to have, all of them up."""
        waiting = any(map(self._growth.waiting, self._pools))
        return not waiting and all(slot.up != slot.given_up for slot in self._slots.all)

    @property
    def training_pools(self) -> list[str]:
        """The pool of each entry of :meth:`statistics`, in the same order."""
        return [slot.pool for slot in self._slots.training]

    async def close(self, seconds: float) -> None:
        """Stop all in an orderly way within ``seconds``; what does not answer is left to be killed."""
        coming_up = [slot.coming_up for slot in self._slots.all if slot.coming_up is not None]
        for start in coming_up:
            start.cancel()
        closing = [slot.generator.close(seconds) for slot in self._slots.all if not slot.given_up]
        self._delivery.close()
        for outcome in await asyncio.gather(*coming_up, *closing, return_exceptions=True):
            if isinstance(outcome, AsyncRLError) and not isinstance(outcome, ProcessDied):
                logger.warning("closing: %s", outcome)
            elif isinstance(outcome, BaseException) and not isinstance(outcome, AsyncRLError | asyncio.CancelledError):
                raise outcome
