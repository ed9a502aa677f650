"""Changes the size of a pool while the run goes on, and has the run's recipe say so: a resume begins with what was asked for."""

import logging
from collections.abc import Mapping
from typing import Protocol

import msgspec

from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.folder.run_folder import RunFolder

logger = logging.getLogger(__name__)


class Pools(Protocol):
    """The generators of a run; see :class:`asyncrl.run.pool.generator_pool.GeneratorPool`."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """How many engines each pool is to have now."""
        ...

    async def scale(self, pool: str, size: int) -> str:
        """Change how many engines a pool is to have."""
        ...


class Scaling:
    """Answers ``asyncrl scale``.

    Args:
        recipe: that of the run, as its folder has it.
    """

    def __init__(self, pools: Pools, recipe: Recipe, folder: RunFolder) -> None:
        self._pools, self._recipe, self._folder = pools, recipe, folder

    async def scale(self, pool: str, size: int) -> str:
        """Change the size of a pool, and return what happens now; raises what the pools raise."""
        told = await self._pools.scale(pool, size)
        generators = self._recipe.generators.of_sizes(self._pools.sizes)
        try:
            self._folder.keep_recipe(msgspec.structs.replace(self._recipe, generators=generators))
        except OSError as error:  # a full disk is no reason to refuse what has begun
            logger.warning("a resume will not know of it: %s", error)
            return f"{told}. The run's recipe.yaml could not be written ({error.strerror}), so a resume begins with what it says"
        return told
