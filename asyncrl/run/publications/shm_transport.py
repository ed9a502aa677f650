"""The ``shm`` transport: engines on the node that all ranks write on map the ranks' files, and there are no others."""

from typing import Self

from asyncrl.core.errors import RecipeError, WeightsOutOfReach
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.publications.transport import PublicationTransport, Routes


class ShmTransport(PublicationTransport):
    """Leaves publications where they are."""

    @classmethod
    def for_run(cls, recipe: Recipe, folder: RunFolder) -> Self:
        """Return a transport, which needs nothing of the run."""
        return cls()

    @classmethod
    def describe(cls, routes: Routes) -> str:
        """Say that engines share the learner's memory.

        Raises:
            RecipeError: some are on other nodes.
        """
        if routes.far:
            nodes = "engines and learner ranks are on different nodes"
            far = routes.counted(sum(routes.far.values()))
            raise RecipeError(
                "weights.kind",
                f"shm reaches engines on the node of all learner ranks alone, and {nodes} ({far})",
                "set it to auto, which goes by network there, or to disk; or have placement.strategy pack everything onto one "
                "node",
            )
        return "; ".join(routes.through_memory)

    async def fetch_to_node(self, publication: Publication, node: str) -> Publication:
        """Return the publication as it is.

        Raises:
            RecipeError: the engine is on another node.
        """
        if any(file.node != node for file in publication.files):
            problem = f"shm does not reach an engine on node {node[:8]}, where the learner does not write"
            raise RecipeError("weights.kind", problem, "set it to auto, and resume the run")
        return publication

    async def check_reach(self, newest: Publication, node: str) -> None:
        """Check that all ranks write on the node."""
        if any(file.node != node for file in newest.files):
            problem = f"weights.kind=shm does not reach node {node[:8]}, where the learner does not write"
            raise WeightsOutOfReach(f"{problem}; to use that node, set it to auto, and resume the run")
