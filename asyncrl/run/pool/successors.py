"""Brings generators up in their slots, and successors of those that died.

What always holds: a generator that died is reported to the buffer before its successor is made; a generator that comes up takes
part in nothing before it has caught up with the newest publication.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from asyncrl.core.errors import (
    AsyncRLError,
    BudgetExceeded,
    ComponentFailed,
    NodeLost,
    ProcessDied,
    RecipeError,
    WeightsOutOfReach,
)
from asyncrl.core.ids import WorkerId
from asyncrl.run.pool.handle import GeneratorHandle
from asyncrl.run.pool.slots import GeneratorSlot, GeneratorSlots
from asyncrl.run.pool.weight_delivery import WeightDelivery

logger = logging.getLogger(__name__)

SUCCESSORS_IN_A_ROW = 3
"""The run ends if this many successors in a row die in one slot while they come up: that is not an accident any more. Those that
are lost with their node, or on a node that new weights do not come to, do not count."""

ROOM_CHECK_S = 5.0
"""Seconds between two looks at whether the cluster has room for a successor. Ray has no event for it."""


class Successors:
    """Makes successors of generators, and brings up all but those that a run begins with.

    Args:
        make: makes the process of a generator of a pool. Raises ``RecipeError`` if the cluster has no room for it.
        report_lost: tells the buffer that a worker is gone, and whether it was lost with its node; may refuse to go on
            (``BudgetExceeded``).
        note: shows a line to the user.
    """

    def __init__(
        self,
        slots: GeneratorSlots,
        delivery: WeightDelivery,
        make: Callable[[str], GeneratorHandle],
        report_lost: Callable[[WorkerId, bool], Awaitable[None]],
        note: Callable[[str], None],
    ) -> None:
        self._slots, self._delivery = slots, delivery
        self._make, self._report_lost, self._note = make, report_lost, note

    async def replace(self, slot: GeneratorSlot) -> None:
        """Make a successor; return when it is up, or the generation pump is to end: an evaluation may still need it then.

        Raises:
            BudgetExceeded: more generators died than ``buffer.max_failures`` allows.
            ComponentFailed: :data:`SUCCESSORS_IN_A_ROW` died, or one could not come up for another reason.
        """
        left, blameless = SUCCESSORS_IN_A_ROW, False
        while True:
            try:
                await self._replace_once(slot, blameless=blameless)
                return
            except ProcessDied as died:
                death = await self._slots.explained(slot.generator, died)
                self._slots.died(slot, death)
                if self._slots.needs_nobody(slot):
                    return
                blameless = isinstance(death, NodeLost | WeightsOutOfReach)
                left -= not blameless
                if not left:
                    problem = f"no successor came up, {SUCCESSORS_IN_A_ROW} in a row died; the last: {slot.death}"
                    raise ComponentFailed(problem) from death

    async def _replace_once(self, slot: GeneratorSlot, *, blameless: bool) -> None:
        gone = slot.generator.worker
        try:
            await self._report_lost(gone, blameless or await self._slots.was_lost_with_its_node(slot.generator))
        except BudgetExceeded as one_too_many:
            raise BudgetExceeded(f"{one_too_many}: {slot.death}") from one_too_many
        logger.warning("%s", slot.death)
        successor = await self._make_when_there_is_room(slot)
        if successor is None:
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
        waits = False
        while True:
            try:
                return self._make(slot.pool)
            except RecipeError as no_room:
                if not waits:
                    waits = True
                    problem = (
                        f"{slot.death}. Its episodes are issued again, and the run goes on without it while there is no room"
                    )
                    self._note(f"{problem}: {no_room}")
            with suppress(TimeoutError):
                async with asyncio.timeout(ROOM_CHECK_S):
                    await self._slots.stopping.wait()
            if self._slots.needs_nobody(slot):
                return None

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
        except ProcessDied as death:
            self._slots.died(slot, await self._slots.explained(generator, death))
            raise
        slot.up = True
        self._note(f"{generator.worker} is up, and has caught up with version {version or 0}")
