"""Brings generators up in their slots, those that a run begins with and successors of those that died.

What always holds: a generator that died is reported to the buffer before its successor is made; a generator that comes up takes
part in nothing before it has caught up with the newest publication.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from asyncrl.core.errors import (
    AsyncRLError,
    BudgetExceeded,
    ComponentFailed,
    DeadlineExceeded,
    NodeFull,
    NodeLost,
    ProcessDied,
    RecipeError,
)
from asyncrl.core.ids import WorkerId
from asyncrl.run.pool.delivery_calls import WeightDelivery
from asyncrl.run.pool.handle import GeneratorHandle
from asyncrl.run.pool.slots import GeneratorSlot, GeneratorSlots

logger = logging.getLogger(__name__)

SUCCESSORS_IN_A_ROW = 3
"""The run ends if this many successors in a row die in one slot while they come up: that is not an accident any more. Those that
are lost with their node, or on a node that is full or that new weights do not come to, do not count."""

AT_ONCE_S = 1.0
"""How long it may take to be given room that is there."""
NEEDED_CHECK_S = 5.0
"""Seconds between two looks at whether a successor that waits for room in the cluster is still needed."""

FindRoom = Callable[[str, int, bool, Callable[[RecipeError], None]], Coroutine[Any, Any, None]]
"""Finds places for so many further generators of a pool, which ``make`` then takes, or none of them if it is cancelled.

It is told whether they are successors, for which it waits as long as it takes; for newcomers it raises ``RecipeError`` if there
is no room in time. What it is given last it calls once with what is missing, if there is no room yet.
"""


class Successors:
    """Makes successors of generators, and brings them up.

    Args:
        make: makes the process of a generator of a pool, once there is room for it.
        report_lost: tells the buffer that a worker is gone, and whether it was lost with its node; may refuse to go on
            (``BudgetExceeded``).
        room: finds room for it.
        note: shows a line to the user.
    """

    def __init__(
        self,
        slots: GeneratorSlots,
        delivery: WeightDelivery,
        make: Callable[[str], GeneratorHandle],
        report_lost: Callable[[WorkerId, bool], Awaitable[None]],
        room: FindRoom,
        note: Callable[[str], None],
    ) -> None:
        self._slots, self._delivery = slots, delivery
        self._make, self._report_lost, self._room, self._note = make, report_lost, room, note

    async def begin(self, slot: GeneratorSlot) -> None:
        """Bring up a generator that the run begins with. One whose node is lost or full meanwhile gets a successor later.

        Raises:
            ComponentFailed, DeadlineExceeded: it did not come up for another reason.
        """
        generator = slot.generator
        try:
            await generator.start()
        except (ComponentFailed, DeadlineExceeded) as failed:
            death = await self._slots.explained(generator, failed)
            if not isinstance(death, NodeLost | NodeFull):
                raise
            self._slots.died(slot, death)
            self._note(f"{slot.death}. The run begins without it")
            return
        self._delivery.join(generator, waited_for=True)
        slot.up = True

    async def replace(self, slot: GeneratorSlot) -> None:
        """Make a successor; return when it is up, or the generation pump is to end: an evaluation may still need it then.

        Raises:
            BudgetExceeded: more generators died than ``buffer.max_failures`` allows.
            ComponentFailed: :data:`SUCCESSORS_IN_A_ROW` died, or one could not come up for another reason.
        """
        left = SUCCESSORS_IN_A_ROW
        while True:
            try:
                await self._replace_once(slot)
                return
            except ProcessDied as died:
                death = await self._slots.explained(slot.generator, died)
                self._slots.died(slot, death)
                if self._slots.needs_nobody(slot):
                    return
                left -= not slot.blameless
                if not left:
                    problem = f"no successor came up, {SUCCESSORS_IN_A_ROW} in a row died; the last: {slot.death}"
                    raise ComponentFailed(problem) from death

    async def _replace_once(self, slot: GeneratorSlot) -> None:
        gone = slot.generator.worker
        try:
            await self._report_lost(gone, slot.blameless or await self._slots.was_lost_with_its_node(slot.generator))
        except BudgetExceeded as one_too_many:
            raise BudgetExceeded(f"{one_too_many}: {slot.death}") from one_too_many
        logger.warning("%s", slot.death)
        successor = await self._make_when_there_is_room(slot)
        if successor is None:
            return
        if slot.given_up:
            successor.kill()
            await self._report_lost(successor.worker, False)
            return
        slot.generator = successor
        self._note(f"{slot.death}. Its episodes are issued again, and {successor.worker} takes its place")
        try:
            await self.come_up(slot)
        except ProcessDied:
            raise
        except AsyncRLError as error:
            self._slots.last_death = str(error)
            raise ComponentFailed(f"{successor.worker} could not take the place of {gone}: {error}") from error

    async def _make_when_there_is_room(self, slot: GeneratorSlot) -> GeneratorHandle | None:
        """Make a successor; None if nobody is needed any more before the cluster has room for it."""

        def tell(no_room: RecipeError) -> None:
            goes_on = "and the run goes on without it while there is no room"
            self._note(f"{slot.death}. Its episodes are issued again, {goes_on}: {no_room}")

        finding = asyncio.create_task(self._room(slot.pool, 1, True, tell), name=f"room for a successor in {slot.pool}")
        stopping = asyncio.create_task(self._slots.stopping.wait())
        try:
            await asyncio.wait([finding], timeout=AT_ONCE_S)  # also at the end: the last evaluation may need the successor
            while not finding.done() and not self._slots.needs_nobody(slot):
                await asyncio.wait([finding, stopping], timeout=NEEDED_CHECK_S, return_when=asyncio.FIRST_COMPLETED)
            if not finding.done():
                return None
            finding.result()
            return self._make(slot.pool)
        finally:
            stopping.cancel()
            finding.cancel()

    async def come_up(self, slot: GeneratorSlot) -> None:
        """Bring up the generator in a slot; return when it is up, or the generation pump is to end.

        Raises:
            ProcessDied: it died.
        """
        slot.coming_up = asyncio.create_task(self._bring_up(slot), name=f"{slot.generator.worker} coming up")
        slot.coming_up.add_done_callback(lambda _: self._slots.changed.set())
        stopping = asyncio.create_task(self._slots.stopping.wait())
        try:
            await asyncio.wait({slot.coming_up, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if slot.coming_up.done() and not slot.coming_up.cancelled():
            slot.coming_up.result()

    async def _bring_up(self, slot: GeneratorSlot) -> None:
        generator = slot.generator
        try:
            await self._delivery.check_reach(generator)  # before its engine, which takes long to start
            await generator.start()
            self._delivery.join(generator, waited_for=False)
            version = await self._delivery.caught_up(generator)
        except (ComponentFailed, DeadlineExceeded) as failed:
            death = await self._slots.explained(generator, failed)
            if not isinstance(death, ProcessDied):
                raise
            self._slots.died(slot, death)
            if death is failed:
                raise
            raise death from failed
        slot.up = True
        self._note(f"{generator.worker} is up, and has caught up with version {version or 0}")
