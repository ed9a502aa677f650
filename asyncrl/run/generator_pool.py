"""The generators of a run, of all its pools. If one dies, the run goes on without it until a successor has taken its place.

What always holds:

* a generator that died is reported to the buffer before its successor is made, so its episodes are issued again exactly once;
* a successor leases nothing before it has loaded the newest publication that was delivered;
* a generator that holds its version, for an evaluation of that version alone, is given no publication; afterwards it
  catches up like a successor, and leases nothing before. A publication that would find all generators holding waits
  for the end of the evaluation;
* a generator whose pool only trains plays no evaluation, and one whose pool only evaluates leases nothing;
* a publication is overwritten only when nobody reads it any more. Publications alternate between two places, so a
  successor catches up while it holds the lock of deliveries: the next version is delivered after that, and only then is
  the one after it written, in the place that the successor has read;
* counters only grow, and include what dead generators had counted.

A generator is replaced only if its process is dead or only looks alive: its event loop ended or is blocked, its worker
ended although nobody stopped it, or it missed the deadline of a call, for example because its engine is frozen. The run
ends if several successors in a row die in one slot while they come up, if the event loops of several generators in one
slot are blocked, and on any other error.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple, TypeVar

from asyncrl.core.error_counts import CountedError
from asyncrl.core.errors import (
    AsyncRLError,
    BudgetExceeded,
    ComponentFailed,
    DeadlineExceeded,
    EventLoopBlocked,
    ProcessDied,
    WeightMismatch,
)
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.schema import GeneratorsConfig
from asyncrl.core.users_error import UsersError
from asyncrl.run.generator_handle import GeneratorHandle
from asyncrl.run.generator_slot import GeneratorSlot
from asyncrl.run.probe_scores import EngineScores
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

ERRORS_SHOWN = 10
"""How many errors of the environments' code are shown with their tracebacks; all are logged and counted."""


class GeneratorPool:
    """The generators that work side by side; each method acts on all that are up.

    Args:
        pools: the pools by name; their sizes and roles count here.
        make: makes the process of a generator of a pool, given a number that no other of the run had.
        report_lost: tells the buffer that a worker is gone; may refuse to go on (``BudgetExceeded``).
        note: shows a line to the user.
    """

    def __init__(
        self,
        pools: Mapping[str, GeneratorsConfig],
        make: Callable[[str, int], GeneratorHandle],
        report_lost: Callable[[WorkerId], Awaitable[None]],
        note: Callable[[str], None],
    ) -> None:
        self._make, self._report_lost, self._note = make, report_lost, note
        self._numbers = count()
        of_each = [(name, pool.role) for name, pool in pools.items() for _ in range(pool.count)]
        self._slots = [GeneratorSlot(make(name, next(self._numbers)), name, role) for name, role in of_each]
        self._newest: Publication | None = None
        self._delivering = asyncio.Lock()
        self._holding: set[GeneratorHandle] = set()
        self._released = asyncio.Event()
        self._generating = False
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._last_death = "none was ever up"
        self._told_remarks: set[str] = set()
        self._told_errors: set[tuple[str, str, int, str]] = set()

    async def start(self) -> None:
        """Bring all up side by side."""

        async def start(slot: GeneratorSlot) -> None:
            await slot.generator.start()
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
        self._generating = True
        try:
            with first_error():
                async with asyncio.TaskGroup() as tending:
                    for slot in self._slots:
                        tending.create_task(self._tend(slot))
        finally:
            self._generating = False
            self._changed.set()

    async def _tend(self, slot: GeneratorSlot) -> None:
        while not self._stopping.is_set():
            try:
                await slot.generator.run()
                if not self._stopping.is_set():
                    raise ProcessDied(f"{slot.generator.worker}: it stopped generating, although nobody told it to; see its log")
            except ProcessDied as death:
                self._died(slot, death)
                if slot.blocked == BLOCKED_IN_A_SLOT:
                    raise ComponentFailed(f"{slot.death}; {slot.blocked} generators in one slot ended like this") from death
                if not self._stopping.is_set():
                    await self._replace(slot)

    async def _replace(self, slot: GeneratorSlot) -> None:
        """Make a successor; return when it is up, or the pool is stopped: an evaluation may still need it then."""
        for left in reversed(range(SUCCESSORS_IN_A_ROW)):
            try:
                await self._replace_once(slot)
                return
            except ProcessDied as death:
                self._died(slot, death)
                if self._stopping.is_set():
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
        slot.generator = self._make(slot.pool, next(self._numbers))
        logger.warning("%s", slot.death)
        self._note(f"{slot.death}. Its episodes are issued again, and {slot.generator.worker} takes its place")
        slot.coming_up = asyncio.create_task(self._bring_up(slot, gone), name=f"{slot.generator.worker} coming up")
        slot.coming_up.add_done_callback(lambda _: self._changed.set())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({slot.coming_up, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if slot.coming_up.done():
            slot.coming_up.result()

    async def _bring_up(self, slot: GeneratorSlot, gone: WorkerId) -> None:
        generator = slot.generator
        try:
            await generator.start()
            async with self._delivering:
                if self._newest is not None:
                    await _install(generator, self._newest)
                slot.up = True
        except ProcessDied as death:
            self._last_death = str(death)
            raise
        except AsyncRLError as error:
            self._last_death = str(error)
            raise ComponentFailed(f"{generator.worker} could not take the place of {gone}: {error}") from error
        version = "version 0" if self._newest is None else f"version {self._newest.version}"
        self._note(f"{generator.worker} is up, and has caught up with {version}")

    async def stop(self) -> None:
        """Make :meth:`generate` return."""
        self._stopping.set()
        await self._of_each(self._up(), lambda generator: generator.stop())

    async def install(self, publication: Publication) -> None:
        """Have every generator load ``publication``. One that is coming up or holds its version is not waited for, and catches
        up later. If all hold their version, wait for the first that does not any more.

        Raises:
            WeightMismatch: what was loaded is not what was published.
            ComponentFailed: no generator is left.
        """
        while True:
            self._released.clear()
            async with self._delivering:
                slots = self._up()
                free = [slot for slot in slots if slot.generator not in self._holding]
                if free or not slots:
                    await self._of_each(free, lambda generator: _install(generator, publication))
                    self._newest = publication
                    break
            await self._released.wait()
        self._check_alive(self._slots)

    async def evaluate(self, tasks: Sequence[HeldOutTask], version: PolicyVersion, *, pinned: bool = False) -> list[Evaluated]:
        """Play the episodes of all tasks, divided over the generators; if one dies, its tasks are given out again.

        Args:
            version: what is being evaluated.
            pinned: while generators train, play only on some that load no other version meanwhile; if all of them die,
                others play the rest with their own version.

        Raises:
            ComponentFailed: no generator is left, or all that were asked died, several times in a row.
        """
        if not (pinned and self._generating):  # nothing is published while nothing is trained
            return await self._play(tasks, version, self._living)
        held: list[_Held] = []

        async def holding() -> list[GeneratorSlot]:
            if not any(each.alive for each in held):
                held.extend(await self._hold())
            return [each.slot for each in held if each.alive]

        try:
            results = await self._play(tasks, version, holding)
            await self._catch_up(held)
            return results
        finally:
            self._holding.difference_update(each.generator for each in held)
            self._released.set()

    async def _hold(self) -> "list[_Held]":
        """Have the generators that only evaluate keep the version they have, or half of all that evaluate if there are none."""
        while True:
            slots = await self._living()
            async with self._delivering:
                slots = [slot for slot in slots if slot.up]
                if slots:
                    only = [slot for slot in slots if slot.role == "evaluation"]
                    chosen = only or slots[: max(1, len(slots) // 2)]
                    self._holding.update(slot.generator for slot in chosen)
                    return [_Held(slot, slot.generator, self._newest) for slot in chosen]

    async def _catch_up(self, held: "Sequence[_Held]") -> None:
        """Have generators that held an older version load the newest one, while nothing else is delivered."""
        async with self._delivering:
            newest = self._newest
            if newest is not None:
                behind = [each.slot for each in held if each.alive and each.publication is not newest]
                await self._of_each(behind, lambda generator: _install(generator, newest))
            self._holding.difference_update(each.generator for each in held)

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
            evaluating = [slot for slot in self._slots if slot.role != "train"]
            if living := [slot for slot in evaluating if slot.up]:
                return living
            if not (self._generating or _coming_up(evaluating) or replaced):
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
        """Return the counters of each slot; if its generator is gone, the last known ones."""
        slots = self._up()
        asked = [slot.generator for slot in slots]
        answers = await self._of_each(slots, lambda generator: generator.statistics())
        for slot, generator, answer in zip(slots, asked, answers, strict=True):
            if answer is not None and slot.up and slot.generator is generator:
                slot.counted(answer)
                self._tell_remarks(generator.worker, answer)
                self._tell_errors(answer.errors)
        return [slot.counters for slot in self._slots]

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
        closing = [slot.generator.close(seconds) for slot in self._slots]
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
        slot.generator.kill()

    def _check_alive(self, slots: Sequence[GeneratorSlot]) -> None:
        """Raise ``ComponentFailed`` if no generator in ``slots`` is up or will be, so that nobody waits for one in vain."""
        will_come = self._generating and not self._stopping.is_set()
        if not (will_come or _coming_up(slots) or any(slot.up for slot in slots)):
            raise ComponentFailed(f"no generator is left: {self._last_death}")


class _Held(NamedTuple):
    """A generator that keeps the version it has; ``publication`` is its newest one, None if it has the first weights."""

    slot: GeneratorSlot
    generator: GeneratorHandle
    publication: Publication | None

    @property
    def alive(self) -> bool:
        """Whether the generator is still up."""
        return self.slot.up and self.slot.generator is self.generator


def _coming_up(slots: Sequence[GeneratorSlot]) -> bool:
    return any(slot.coming_up is not None and not slot.coming_up.done() for slot in slots)


async def _in_time(answer: Awaitable[T]) -> T:
    """Await a generator's answer. If it is late, it counts as dead: a frozen engine would never end by itself."""
    try:
        return await answer
    except DeadlineExceeded as late:
        raise ProcessDied(str(late)) from late


async def _install(generator: GeneratorHandle, publication: Publication) -> None:
    """Have ``generator`` load ``publication``, and prove that it did."""
    fingerprint = await _in_time(generator.install(publication))
    if fingerprint != publication.fingerprint:
        raise WeightMismatch(
            f"{generator.worker} loaded weights with fingerprint {fingerprint:#018x}, version {publication.version} was "
            f"published with {publication.fingerprint:#018x}; the transfer corrupted or lost tensors"
        )
