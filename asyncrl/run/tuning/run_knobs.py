"""The knobs of a run that goes on: how they stand, and the ways by which they are turned, which are those of a person.

Engines are added and ended as ``asyncrl scale`` does, and the pipeline depth changes as it does by itself. The run's recipe says
what was turned, so that a resume begins with what there was, or with what a person writes there.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from asyncrl.core.buffer_api import BufferApi
from asyncrl.core.recipe.knobs import pool_of
from asyncrl.core.recipe.tune import DEPTH, RUNNING
from asyncrl.run.control import RunControl

if TYPE_CHECKING:
    from asyncrl.run.pool.generator_pool import GeneratorPool


class RunKnobs:
    """The knobs named ``names``."""

    def __init__(self, names: Mapping[str, object], control: RunControl, pools: "GeneratorPool", buffer: BufferApi) -> None:
        self._names, self._control, self._pools, self._buffer = tuple(names), control, pools, buffer

    async def setting(self) -> dict[str, int]:
        """How each stands: of engines, how many there are to be."""
        depth, sizes = (await self._buffer.statistics()).depth, self._pools.sizes
        others = {DEPTH: depth, RUNNING: self._control.at_once}
        return {knob: others[knob] if (pool := pool_of(knob)) is None else sizes[pool] for knob in self._names}

    @property
    def arrived(self) -> bool:
        """Whether all engines are there that are to be."""
        return self._pools.settled

    async def turn(self, knob: str, value: int) -> None:
        """Turn one; engines may come up afterwards.

        Raises:
            RecipeError: the run refuses it.
        """
        if knob == DEPTH:
            await self._buffer.pace(value)
            self._control.paced(value)
        elif knob == RUNNING:
            await self._control.bound(value)
        elif (pool := pool_of(knob)) is not None:
            await self._control.scale(pool, value)
