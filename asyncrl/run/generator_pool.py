"""The generators of a run, of all its pools. If one dies, the run goes on without it until a successor has taken its place.

What always holds:

* a generator that died is reported to the buffer before its successor is made, so its episodes are issued again exactly once;
* successors and newcomers lease nothing before they have loaded a publication. Which one each generator has, and who is waited
  for, is told in :mod:`asyncrl.weights.deliveries`;
* a generator that holds its version, for an evaluation of that version alone, is given no publication; afterwards it catches up.
  A publication that finds all generators holding waits for the end of the evaluation;
* a generator whose pool only trains plays no evaluation, and one whose pool only evaluates leases nothing;
* a generator that is told to end, because its pool shrinks or its process got SIGTERM, hands its episodes back first;
* counters only grow, and include what generators had counted that died or were told to end.

A generator is replaced if SIGTERM told it to end, or if its process is dead or only looks alive: its event loop ended or is
blocked, its worker ended although nobody stopped it, or it missed the deadline of a call, for example because its engine is
frozen. While the cluster has no room for the successor, the others go on. The run ends if several successors in a row die in one
slot while they come up, if the event loops of several generators in one slot are blocked, and on any other error.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import TypeVar

from asyncrl.core.error_counts import CountedError
from asyncrl.core.errors import (
    AsyncRLError,
    BudgetExceeded,
    ComponentFailed,
    DeadlineExceeded,
    EventLoopBlocked,
    ProcessDied,
    RecipeError,
)
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.schema import DeadlinesConfig, GeneratorsConfig
from asyncrl.core.text import counted
from asyncrl.core.users_error import UsersError
from asyncrl.run.generator_handle import GeneratorHandle
from asyncrl.run.generator_slot import GeneratorSlot
from asyncrl.run.mirrors import LocalPublications
from asyncrl.run.probe_scores import EngineScores
from asyncrl.run.weight_delivery import WeightDelivery
from generators.evaluation import Evaluated, HeldOutTask
from generators.first_error import first_error
from generators.worker import GeneratorStatistics

logger = logging.getLogger(__name__)

T = TypeVar("T")

SUCCESSORS_IN_A_ROW = 3
"""The run ends if this many successors in a row die in one slot while they come up, or if nobody answers an evaluation
this many times in a row: that is not an accident any more."""
BLOCKED_IN_A_SLOT = 3
"""The run ends if the event loops of this many generators in one slot are blocked: once may be due to the task or the
policy, this often it is due to the environment."""

ROOM_CHECK_S = 5.0
"""Seconds between two looks at whether the cluster has room for a successor. Ray has no event for it."""
ERRORS_SHOWN = 10
"""How many errors of the environments' code are shown with their tracebacks; all are logged and counted."""


class GeneratorPool:
    """The generators that work side by side; each method acts on all that are up.

    Args:
        pools: the pools by name; their sizes and roles count here.
        make: makes the process of a generator of a pool, given a number that no other of the run had. Raises ``RecipeError`` if
            the cluster has no room for it.
        report_lost: tells the buffer that a worker is gone; may refuse to go on (``BudgetExceeded``).
        note: shows a line to the user.
        publications: brings publications to the generators' nodes; None if nothing is ever published.
        clock: returns the time in seconds; must never go back.
        check_room: raises ``RecipeError`` if there is no room for so many newcomers of a pool, where ``make`` would not notice.
    """

    def __init__(
        self,
        pools: Mapping[str, GeneratorsConfig],
        make: Callable[[str, int], GeneratorHandle],
        report_lost: Callable[[WorkerId], Awaitable[None]],
        deadlines: DeadlinesConfig,
        note: Callable[[str], None],
        publications: LocalPublications | None = None,
        clock: Callable[[], float] = time.monotonic,
        check_room: Callable[[str, int], None] = lambda pool, newcomers: None,
    ) -> None:
        self._check_room = check_room
        self._pools, self._make, self._report_lost, self._note = pools, make, report_lost, note
        self._delivery = WeightDelivery(publications, deadlines, self._lost, note, clock)
        self._numbers = count()
        of_each = [(name, pool.role) for name, pool in pools.items() for _ in range(pool.count)]
        self._slots = [GeneratorSlot(make(name, next(self._numbers)), name, role) for name, role in of_each]
        self._tending: asyncio.TaskGroup | None = None
        self._tended: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._last_death = "none was ever up"
        self._told_remarks: set[str] = set()
        self._told_errors: set[tuple[str, str, int, str]] = set()

    async def start(self) -> None:
        """Bring all up side by side."""

        async def start(slot: GeneratorSlot) -> None:
            await slot.generator.start()
            self._delivery.join(slot.generator, waited_for=True)
            slot.up = True

        with first_error():
            async with asyncio.TaskGroup() as starting:
                for slot in self._slots:
                    starting.create_task(start(slot))

    async def generate(self) -> None:
        """Run the generation pump: every generator pulls tickets until :meth:`stop`, and so do successors.

        Raises:
            BudgetExceeded: more generators died than ``buffer.max_failures`` allows.
            ComponentFailed: a successor did not come up, or environments block one generator after another.
        """
        try:
            with first_error():
                async with asyncio.TaskGroup() as self._tending:
                    failing = self._tending.create_task(self._delivery.failure(), name="weight delivery")
                    for slot in self._slots:
                        self._tend(slot)
                    while self._tended:
                        done, _ = await asyncio.wait(self._tended, return_when=asyncio.FIRST_COMPLETED)
                        self._tended -= done
                    failing.cancel()
        finally:
            self._tending = None
            self._changed.set()

    def _tend(self, slot: GeneratorSlot) -> None:
        assert self._tending is not None
        self._tended.add(self._tending.create_task(self._keep(slot), name=f"a place of pool {slot.pool}"))

    async def _keep(self, slot: GeneratorSlot) -> None:
        """Have the generator of a slot generate, and replace it when it dies, until the slot is given up or the pool stops."""
        if slot.newcomer and not await self._begin(slot):
            return
        while not (self._stopping.is_set() or slot.given_up):
            try:
                await slot.generator.run()
                if not (self._stopping.is_set() or slot.given_up):
                    raise ProcessDied(f"{slot.generator.worker}: it stopped generating, although nobody told it to; see its log")
            except ProcessDied as death:
                self._died(slot, death)
                if slot.blocked == BLOCKED_IN_A_SLOT:
                    raise ComponentFailed(f"{slot.death}; {slot.blocked} generators in one slot ended like this") from death
                if not (self._stopping.is_set() or slot.given_up):
                    await self._replace(slot)

    async def _begin(self, slot: GeneratorSlot) -> bool:
        """Bring a newcomer up. If that fails, or it is told to end meanwhile, the pool stays as large as it was."""
        newcomer = slot.generator
        try:
            await self._come_up(slot)
        except AsyncRLError as error:
            if not slot.given_up:
                logger.warning("%s did not come up", newcomer.worker, exc_info=error)
                self._note(f"{newcomer.worker} did not come up, and the run goes on without it: {error}")
                await self._give_up(slot)
        return slot.up

    async def _replace(self, slot: GeneratorSlot) -> None:
        """Make a successor; return when it is up, or the pool is stopped: an evaluation may still need it then."""
        for left in reversed(range(SUCCESSORS_IN_A_ROW)):
            try:
                await self._replace_once(slot)
                return
            except ProcessDied as death:
                self._died(slot, death)
                if self._stopping.is_set() or slot.given_up:
                    return
                if not left:
                    problem = f"no successor came up, {SUCCESSORS_IN_A_ROW} in a row died; the last: {slot.death}"
                    raise ComponentFailed(problem) from death

    async def _replace_once(self, slot: GeneratorSlot) -> None:
        gone = slot.generator.worker
        try:
            await self._report_lost(gone)
        except BudgetExceeded as one_too_many:
            raise BudgetExceeded(f"{one_too_many}: {slot.death}") from one_too_many
        logger.warning("%s", slot.death)
        successor = await self._make_when_there_is_room(slot)
        if successor is None:
            return
        slot.generator = successor
        self._note(f"{slot.death}. Its episodes are issued again, and {successor.worker} takes its place")
        try:
            await self._come_up(slot)
        except ProcessDied:
            raise
        except AsyncRLError as error:
            self._last_death = str(error)
            raise ComponentFailed(f"{successor.worker} could not take the place of {gone}: {error}") from error

    async def _make_when_there_is_room(self, slot: GeneratorSlot) -> GeneratorHandle | None:
        """Make a successor; None if the pool is stopped, or the slot given up, before the cluster has room for it."""
        waits = False
        while True:
            try:
                return self._make(slot.pool, next(self._numbers))
            except RecipeError as no_room:
                if not waits:
                    waits = True
                    problem = (
                        f"{slot.death}. Its episodes are issued again, and the run goes on without it while there is no room"
                    )
                    self._note(f"{problem}: {no_room}")
            with suppress(TimeoutError):
                async with asyncio.timeout(ROOM_CHECK_S):
                    await self._stopping.wait()
            if self._stopping.is_set() or slot.given_up:
                return None

    async def _come_up(self, slot: GeneratorSlot) -> None:
        """Bring up the generator in a slot. Return when it is up, or the pool is stopped: an evaluation may still need it."""
        slot.coming_up = asyncio.create_task(self._bring_up(slot), name=f"{slot.generator.worker} coming up")
        slot.coming_up.add_done_callback(lambda _: self._changed.set())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({slot.coming_up, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if slot.coming_up.done() and not slot.coming_up.cancelled():
            slot.coming_up.result()

    async def _bring_up(self, slot: GeneratorSlot) -> None:
        generator = slot.generator
        try:
            await generator.start()
            self._delivery.join(generator, waited_for=False)
            version = await self._delivery.caught_up(generator)
        except ProcessDied as death:
            self._last_death = str(death)
            raise
        slot.up = True
        self._note(f"{generator.worker} is up, and has caught up with version {version or 0}")

    async def stop(self) -> None:
        """Make :meth:`generate` return."""
        self._stopping.set()
        await self._of_each(self._up(), lambda generator: generator.stop())

    async def scale(self, pool: str, size: int) -> str:
        """Change how many generators a pool has while they generate; newcomers come up, and others end, after this has returned.

        Returns:
            what happens now, as a sentence.

        Raises:
            RecipeError: there is no such pool, the size is less than 1, the cluster has no room, or nothing is generated now.
        """
        if pool not in self._pools:
            known = ", ".join(self._pools)
            raise RecipeError(
                pool, "the run has no pool of that name", f"name one of {known}, such as {next(iter(self._pools))}=2"
            )
        if size < 1:
            raise RecipeError(
                pool, f"{size} is less than 1, and a pool without engines would wait for ever", "stop the run instead"
            )
        if self._tending is None or self._stopping.is_set():
            raise RecipeError(pool, "the run is not generating: it is starting or ending", "try again once it trains")
        slots = [slot for slot in self._slots if slot.pool == pool and not slot.given_up]
        if size > len(slots):
            newcomers = await self._make_all(pool, size - len(slots))
            for newcomer in newcomers:
                slot = GeneratorSlot(newcomer, pool, self._pools[pool].role, newcomer=True)
                self._slots.append(slot)
                self._tend(slot)
            names = ", ".join(each.worker for each in newcomers)
            told = f"{names} {'is' if len(newcomers) == 1 else 'are'} coming up"
        elif size < len(slots):
            # First those that do least: they are not up, or behind, or came last.
            slots.sort(key=lambda slot: (slot.up, self._delivery.is_current(slot.generator.worker), -self._slots.index(slot)))
            ending = slots[: len(slots) - size]
            for slot in ending:
                slot.given_up = True
                self._tended.add(self._tending.create_task(self._give_up(slot), name=f"{slot.generator.worker} ending"))
            names = ", ".join(slot.generator.worker for slot in ending)
            told = f"{names} {'hands back its' if len(ending) == 1 else 'hand back their'} episodes"
        else:
            told = f"pool {pool} has {counted(size, 'engine')} already"
        self._note(f"Pool {pool} is to have {counted(size, 'engine')}: {told}")
        return told

    async def _make_all(self, pool: str, number: int) -> list[GeneratorHandle]:
        """Make several newcomers of a pool, or none."""
        self._check_room(pool, number)
        made: list[GeneratorHandle] = []
        try:
            made.extend(self._make(pool, next(self._numbers)) for _ in range(number))
        except RecipeError:
            for each in made:
                each.kill()
                await self._report_lost(each.worker)
            raise
        return made

    async def _give_up(self, slot: GeneratorSlot) -> None:
        """Have the generator of a slot hand its episodes back, and end it."""
        slot.given_up = True
        generator, was_up = slot.generator, slot.up
        if slot.coming_up is not None:
            slot.coming_up.cancel()
        if was_up:
            try:
                await generator.hand_back()
                slot.counted(await generator.statistics())
                self._note(f"{generator.worker} has handed back its episodes, and ends")
            except (ProcessDied, DeadlineExceeded) as death:
                self._note(f"{death}. Its episodes are issued again")
        slot.close()
        self._delivery.leave(generator.worker)
        generator.kill()
        await self._report_lost(generator.worker)
        self._changed.set()

    async def install(self, publication: Publication) -> None:
        """Have the generators load ``publication``; return when its version may be published.

        Raises:
            WeightMismatch: what was loaded is not what was published.
            ComponentFailed: no generator is left.
        """
        await self._delivery.deliver(publication)
        self._check_alive(self._slots)

    async def may_write(self) -> frozenset[PolicyVersion]:
        """Wait until one more version can be written; return those whose files must stay as they are."""
        return await self._delivery.may_write()

    async def evaluate(self, tasks: Sequence[HeldOutTask], version: PolicyVersion, *, pinned: bool = False) -> list[Evaluated]:
        """Play the episodes of all tasks, divided over the generators; if one dies, its tasks are given out again.

        Args:
            version: what is being evaluated.
            pinned: while generators train, play only on some that load no other version meanwhile; if all of them die,
                others play the rest with their own version.

        Raises:
            ComponentFailed: no generator is left, or all that were asked died, several times in a row.
        """
        if not (pinned and self._tending):  # nothing is published while nothing is trained
            return await self._play(tasks, version, self._living)
        held: list[tuple[GeneratorSlot, GeneratorHandle]] = []

        async def holding() -> list[GeneratorSlot]:
            living = [slot for slot, generator in held if slot.up and slot.generator is generator]
            while not living:
                living = await self._choose_to_hold()
                held.extend((slot, slot.generator) for slot in living)
                await self._delivery.hold([slot.generator.worker for slot in living])
                living = [slot for slot, generator in held if slot.up and slot.generator is generator]
            return living

        try:
            return await self._play(tasks, version, holding)
        finally:
            self._delivery.release([generator.worker for _, generator in held])

    async def _choose_to_hold(self) -> list[GeneratorSlot]:
        """Choose the generators that only evaluate, or half of all that evaluate if there are none; rather not one behind."""
        slots = await self._living()
        slots.sort(key=lambda slot: not self._delivery.is_current(slot.generator.worker))
        return [slot for slot in slots if slot.role == "evaluation"] or slots[: max(1, len(slots) // 2)]

    async def _play(
        self,
        tasks: Sequence[HeldOutTask],
        version: PolicyVersion,
        players: Callable[[], Awaitable[list[GeneratorSlot]]],
    ) -> list[Evaluated]:
        results: list[Evaluated] = []
        waiting, in_vain = list(tasks), 0
        while waiting:
            slots = (await players())[: len(waiting)]
            shares = [waiting[i :: len(slots)] for i in range(len(slots))]
            answers = await self._evaluate(slots, shares, version)
            results += [result for answer in answers if answer is not None for result in answer]
            waiting = [task for share, answer in zip(shares, answers, strict=True) if answer is None for task in share]
            in_vain = in_vain + 1 if all(answer is None for answer in answers) else 0
            if in_vain == SUCCESSORS_IN_A_ROW:
                raise ComponentFailed(
                    f"nobody answered an evaluation, {in_vain} times in a row; the last death: {self._last_death}"
                )
        return results

    async def _evaluate(
        self, slots: Sequence[GeneratorSlot], shares: Sequence[Sequence[HeldOutTask]], version: PolicyVersion
    ) -> list[list[Evaluated] | None]:
        share_of = {slot.generator: share for slot, share in zip(slots, shares, strict=True)}
        return await self._of_each(slots, lambda generator: generator.evaluate(share_of[generator], version))

    async def _living(self) -> list[GeneratorSlot]:
        """Return the slots whose generator is up and plays evaluations, as soon as there is one.

        While the generation pump runs, it replaces dead generators. Before and after, this method replaces one of them,
        because an evaluation needs no more.
        """
        replaced = False
        while True:
            self._changed.clear()
            evaluating = [slot for slot in self._slots if slot.role != "train" and not slot.given_up]
            if living := [slot for slot in evaluating if slot.up]:
                return living
            if not (self._tending or _coming_up(evaluating) or replaced):
                replaced = True
                await self._replace(evaluating[0])
                continue
            self._check_alive(evaluating)
            await self._changed.wait()

    async def score(self, rows: Sequence[Sequence[int]], turn: int) -> EngineScores | None:
        """Have one generator score ``rows``, another one in each turn; None if none is up, or it died."""
        up = self._up()
        if not up:
            return None
        slot = up[turn % len(up)]
        worker, (scored,) = slot.generator.worker, await self._of_each([slot], lambda generator: generator.score(rows))
        return None if scored is None else EngineScores(worker, slot.pool, scored)

    async def statistics(self) -> list[GeneratorStatistics]:
        """Return the counters of each slot that trains; if its generator is gone, the last known ones. New slots come last.

        A pool that only evaluates would seem idle most of the time, although nothing waits for it.
        """
        slots = self._up()
        asked = [slot.generator for slot in slots]
        answers = await self._of_each(slots, lambda generator: generator.statistics())
        for slot, generator, answer in zip(slots, asked, answers, strict=True):
            if answer is not None and slot.up and slot.generator is generator:
                slot.counted(answer)
                self._tell_remarks(generator.worker, answer)
                self._tell_errors(answer.errors)
        return [slot.counters for slot in self._training()]

    @property
    def training_pools(self) -> list[str]:
        """The pool of each entry of :meth:`statistics`, in the same order."""
        return [slot.pool for slot in self._training()]

    def _training(self) -> list[GeneratorSlot]:
        return [slot for slot in self._slots if slot.role != "evaluation"]

    def _tell_remarks(self, worker: WorkerId, statistics: GeneratorStatistics) -> None:
        for sentence in statistics.blocked_by + statistics.remarks:
            if sentence not in self._told_remarks:
                self._told_remarks.add(sentence)
                self._note(f"{worker}: {sentence}")

    def _tell_errors(self, errors: Sequence[CountedError]) -> None:
        """Show the first error of each kind and place with its traceback."""
        for error in errors:
            place = (error.method, error.file, error.line, error.kind)
            if place not in self._told_errors and len(self._told_errors) < ERRORS_SHOWN:
                self._told_errors.add(place)
                self._note(f"{error.example}: {UsersError.__str__(error)}\n{error.traceback}".rstrip())

    async def close(self, seconds: float) -> None:
        """Stop all in an orderly way within ``seconds``; what does not answer is left to be killed."""
        coming_up = [slot.coming_up for slot in self._slots if slot.coming_up is not None]
        for start in coming_up:
            start.cancel()
        closing = [slot.generator.close(seconds) for slot in self._slots if not slot.given_up]
        self._delivery.close()
        for outcome in await asyncio.gather(*coming_up, *closing, return_exceptions=True):
            if isinstance(outcome, AsyncRLError) and not isinstance(outcome, ProcessDied):
                logger.warning("closing: %s", outcome)
            elif isinstance(outcome, BaseException) and not isinstance(outcome, AsyncRLError | asyncio.CancelledError):
                raise outcome

    def _up(self) -> list[GeneratorSlot]:
        return [slot for slot in self._slots if slot.up]

    async def _of_each(self, slots: Sequence[GeneratorSlot], ask: Callable[[GeneratorHandle], Awaitable[T]]) -> list[T | None]:
        """Return the answers of the generators in ``slots``, None for one that died. Raises any other error at once."""

        async def answer(slot: GeneratorSlot) -> T | None:
            generator = slot.generator
            try:
                return await _in_time(ask(generator))
            except ProcessDied as death:
                if slot.generator is generator:
                    self._died(slot, death)
                return None

        with first_error():
            async with asyncio.TaskGroup() as asking:
                answers = [asking.create_task(answer(slot)) for slot in slots]
        return [done.result() for done in answers]

    def _died(self, slot: GeneratorSlot, death: ProcessDied) -> None:
        """Note that the generator in ``slot`` or its engine is gone; kill what is left, which also ends its ``run``."""
        worker, why = slot.generator.worker, str(death)
        slot.vacate(why if why.startswith(worker) else f"{worker}: {why}", blocked=isinstance(death, EventLoopBlocked))
        self._last_death = slot.death
        self._delivery.leave(worker)
        slot.generator.kill()
        self._changed.set()

    def _lost(self, generator: GeneratorHandle, death: ProcessDied) -> None:
        """Note that a generator was lost while weights were delivered to it."""
        for slot in self._slots:
            if slot.generator is generator:
                self._died(slot, death)

    def _check_alive(self, slots: Sequence[GeneratorSlot]) -> None:
        """Raise ``ComponentFailed`` if no generator in ``slots`` is up or will be, so that nobody waits for one in vain."""
        will_come = self._tending is not None and not self._stopping.is_set()
        if not (will_come or _coming_up(slots) or any(slot.up for slot in slots)):
            raise ComponentFailed(f"no generator is left: {self._last_death}")


def _coming_up(slots: Sequence[GeneratorSlot]) -> bool:
    return any(slot.coming_up is not None and not slot.coming_up.done() for slot in slots)


async def _in_time(answer: Awaitable[T]) -> T:
    """Await a generator's answer. If it is late, it counts as dead: a frozen engine would never end by itself."""
    try:
        return await answer
    except DeadlineExceeded as late:
        raise ProcessDied(str(late)) from late
