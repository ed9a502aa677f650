"""Plays held-out tasks on the generators of a run.

What always holds: each task is answered once; the tasks of a generator that died are given out again, and if nobody has answered
by then, the evaluation is of the version that engines have then. A generator whose pool only
trains plays none. Pinned episodes are played by generators that hold the version they have, and are given no publication until
the evaluation has ended, then catch up; a publication that finds all generators holding waits for that.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.ids import PolicyVersion
from asyncrl.generators.evaluation import Evaluated, HeldOutTask
from asyncrl.run.pool.delivery_calls import WeightDelivery
from asyncrl.run.pool.handle import GeneratorHandle
from asyncrl.run.pool.slots import GeneratorSlot, GeneratorSlots
from asyncrl.run.pool.successors import Successors

IN_VAIN = 3
"""The run ends if nobody answers an evaluation this many times in a row: that is not an accident any more."""


class Evaluation(NamedTuple):
    """What one evaluation gave.

    Attributes:
        version: what the engines had, at least, when the tasks were given out; the version that was asked for unless generators
            died and training went on meanwhile.
    """

    version: PolicyVersion
    episodes: list[Evaluated]


class PoolEvaluation:
    """Divides the tasks of evaluations over the generators that play them."""

    def __init__(self, slots: GeneratorSlots, delivery: WeightDelivery, successors: Successors) -> None:
        self._slots, self._delivery, self._successors = slots, delivery, successors

    async def play(self, tasks: Sequence[HeldOutTask], version: PolicyVersion) -> Evaluation:
        """Play the episodes of all tasks on all generators that play evaluations.

        Args:
            version: what was published when the evaluation was due.

        Raises:
            ComponentFailed: no generator is left, or all that were asked died, several times in a row.
        """
        return await self._play(tasks, version, self._living)

    async def play_pinned(self, tasks: Sequence[HeldOutTask], version: PolicyVersion) -> Evaluation:
        """Play the episodes of all tasks on generators that load no other version meanwhile.

        If all of them die, others play the rest with their own version. Arguments and errors are those of :meth:`play`.
        """
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
        """Choose the generators that only evaluate, or half of all that do if there are none, those behind last."""
        slots = await self._living()
        slots.sort(key=lambda slot: not self._delivery.is_current(slot.generator.worker))
        return [slot for slot in slots if slot.role == "evaluation"] or slots[: max(1, len(slots) // 2)]

    async def _play(
        self,
        tasks: Sequence[HeldOutTask],
        version: PolicyVersion,
        players: Callable[[], Awaitable[list[GeneratorSlot]]],
    ) -> Evaluation:
        results: list[Evaluated] = []
        waiting, in_vain = list(tasks), 0
        while waiting:
            slots = (await players())[: len(waiting)]
            if not results:  # training may have gone on while nobody could play
                version = max(version, self._oldest_version(slots, version))
            shares = [waiting[i :: len(slots)] for i in range(len(slots))]
            answers = await self._evaluate(slots, shares, version)
            results += [result for answer in answers if answer is not None for result in answer]
            waiting = [task for share, answer in zip(shares, answers, strict=True) if answer is None for task in share]
            in_vain = in_vain + 1 if all(answer is None for answer in answers) else 0
            if in_vain == IN_VAIN:
                raise ComponentFailed(
                    f"nobody answered an evaluation, {in_vain} times in a row; the last death: {self._slots.last_death}"
                )
        return Evaluation(version, results)

    def _oldest_version(self, slots: Sequence[GeneratorSlot], default: PolicyVersion) -> PolicyVersion:
        known = [self._delivery.version(slot.generator.worker) for slot in slots]
        return min((version for version in known if version is not None), default=default)

    async def _evaluate(
        self, slots: Sequence[GeneratorSlot], shares: Sequence[Sequence[HeldOutTask]], version: PolicyVersion
    ) -> list[list[Evaluated] | None]:
        share_of = {slot.generator: share for slot, share in zip(slots, shares, strict=True)}
        return await self._slots.ask(slots, lambda generator: generator.evaluate(share_of[generator], version))

    async def _living(self) -> list[GeneratorSlot]:
        """Return the slots whose generator is up and plays evaluations, as soon as there is one.

        While the generation pump runs, it replaces dead generators. Before and after, this method replaces one of them,
        because an evaluation needs no more.
        """
        replaced = False
        while True:
            self._slots.changed.clear()
            evaluating = self._slots.evaluating
            if living := [slot for slot in evaluating if slot.up]:
                return living
            if not (self._slots.pump or self._slots.are_coming_up(evaluating) or replaced):
                replaced = True
                await self._successors.replace(evaluating[0])
                continue
            self._slots.check_alive(evaluating)
            await self._slots.changed.wait()
