"""The ``nccl`` transport: engines take publications from the ranks' GPUs themselves (:mod:`asyncrl.weights.nccl`)."""

from typing import Self

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.measures.units import memory
from asyncrl.core.publication import LEFT_FREE, Publication
from asyncrl.core.recipe.network import NoTlsConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.weights import NcclWeightsConfig
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.publications.transport import PublicationTransport, Room, Routes


class NcclTransport(PublicationTransport):
    """Has engines take broadcasts. Whether an engine's GPU reaches those of the ranks shows when they make a group.

    Args:
        everywhere: so do engines that share the memory of all ranks.
    """

    ranks_broadcast = True

    def __init__(self, *, everywhere: bool) -> None:
        self._everywhere = everywhere

    @classmethod
    def for_run(cls, recipe: Recipe, folder: RunFolder) -> Self:
        """Make the transport. With kind ``auto``, engines beside all ranks map these ranks' files."""
        return cls(everywhere=isinstance(recipe.weights, NcclWeightsConfig))

    @classmethod
    def describe(cls, routes: Routes) -> str:
        """Say which engines take broadcasts, and whether they pause meanwhile.

        Raises:
            RecipeError: there is no GPU, or connections are to be encrypted.
        """
        recipe = routes.recipe
        if not routes.on_gpus:
            problem = "NCCL carries weights between GPUs, and learner and engines have none here"
            raise RecipeError(
                "weights.kind", problem, "set it to auto, which takes memory within a node and Ray's object store between nodes"
            )
        if not isinstance(recipe.network.tls, NoTlsConfig):
            problem = "NCCL does not encrypt what it sends, and network.tls asks for that"
            raise RecipeError("weights.kind", problem, "set it to auto or ray, or leave network.tls out if the network is yours")
        if isinstance(recipe.weights, NcclWeightsConfig):
            ways = [f"nccl to {routes.counted(routes.engines)}, from GPU to GPU, since the recipe asks for it"]
        elif routes.far:
            ways = [*routes.through_memory, f"nccl to {routes.on_nodes(routes.far)} away from a rank, from GPU to GPU"]
        else:
            return "; ".join(routes.through_memory)
        room = [] if routes.room is None else [describe_room(recipe, routes.room)]
        return "; ".join([*ways, *room])

    async def fetch_to_node(self, publication: Publication, node: str) -> Publication:
        """Leave the files where they are: the engine takes them when it makes the publication ready."""
        near = all(file.node == node for file in publication.files)
        return msgspec.structs.replace(publication, senders=()) if near and not self._everywhere else publication


def describe_room(recipe: Recipe, room: Room) -> str:
    """Say whether engines pause while NCCL brings them a version."""
    share = max(pool.gpu_memory_share for pool in recipe.generators.by_pool.values())
    version = memory(room.version)
    left = f"generators.gpu_memory_share {share:g} leaves {memory(int(room.gpu * (1 - share)))}"
    if not room.gpu:
        return f"an engine whose GPU has no room for {version} beside the weights in use pauses while a version arrives"
    if room.version + LEFT_FREE <= room.gpu * (1 - share):
        return f"a version arrives while engines sample, in {version} beside the weights in use ({left})"
    return f"engines pause while a version arrives: {version} do not fit beside the weights in use ({left})"
