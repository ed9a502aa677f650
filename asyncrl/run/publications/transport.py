"""The plug point for transports: what brings publications from the nodes of the learner's ranks to those of the engines.

Ranks write their shards to files in their own node's memory, and engines map files of their own node, wherever these came from.
What lies between is a transport's: for each engine, the files of each publication are to lie on the engine's node. So neither
what ranks write with nor what engines load with knows any transport. Broadcasts between GPUs are the exception: they leave the
files where they are, and put into a publication who sends them.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, Self

from asyncrl.core.publication import Publication
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.text import pluralize
from asyncrl.run.folder.run_folder import RunFolder

STORE = "object_store_memory"
"""What Ray calls the bytes of an object store, among the resources of a node."""


class ObjectStore(NamedTuple):
    """Ray's object store on a node: the node's address, for people, and its bytes."""

    host: str
    size: int


IN_STORE = 2
"""The versions of weights that may be in an object store at once; a third waits until one has arrived or been given up."""


MIRRORED = 2
"""The versions of weights that lie side by side in the memory file system of a node that they are brought to."""


class Room(NamedTuple):
    """What a version must find room in.

    Attributes:
        version: its bytes.
        gpu: bytes of an engine's GPU, 0 if not known.
        stores: the object stores that are known, by node.
    """

    version: int
    gpu: int
    stores: Mapping[str, ObjectStore] = {}


class Routes:
    """Where the publications of a run come from and go to.

    Args:
        ranks_on: the node of each of the learner's ranks, all of which write publications.
        engines_on: how many engines are on each node, or parts of engines that are on several.

    Attributes:
        folder: the run's folder.
        on_gpus: learner and engines compute on GPUs.
        room: for a plan that says whether versions fit; None where that is not asked.
        ranks_on: how many ranks write on each node.
        engines: how many engines or parts there are.
        near: how many engines or parts are on the node that all ranks write on. They map the ranks' files, and have nothing to
            fetch.
        beside: how many are on each node that some ranks write on, others elsewhere.
        apart: how many are on each node that no rank writes on.
    """

    def __init__(
        self,
        recipe: Recipe,
        ranks_on: Collection[str],
        engines_on: Mapping[str, int],
        folder: Path,
        *,
        on_gpus: bool,
        room: Room | None = None,
    ) -> None:
        self.recipe, self.folder, self.on_gpus, self.room = recipe, folder, on_gpus, room
        self.ranks_on = Counter(ranks_on)
        only = set(ranks_on) if len(set(ranks_on)) == 1 else set()
        whole = all(pool.engine_nodes == 1 for pool in recipe.generators.by_pool.values())
        self._what = "engine" if whole else "engine part"
        self.engines = sum(engines_on.values())
        self.near = sum(count for node, count in engines_on.items() if node in only)
        self.beside = {node: count for node, count in engines_on.items() if node in ranks_on and node not in only}
        self.apart = {node: count for node, count in engines_on.items() if node not in ranks_on}

    @cached_property
    def far(self) -> dict[str, int]:
        """How many engines or parts are on each node that something must be brought to."""
        return self.beside | self.apart

    @property
    def through_memory(self) -> list[str]:
        """How the engines that are near get weights, whatever the transport; empty if none is."""
        return [f"shm to {self.counted(self.near)} on the learner's node, whose memory they share"] if self.near else []

    def counted(self, engines: int) -> str:
        """Say how many engines or parts of engines there are."""
        return pluralize(engines, self._what)

    def on_nodes(self, engines_on: Mapping[str, int]) -> str:
        """Say how many engines or parts of engines are on how many nodes."""
        return f"{self.counted(sum(engines_on.values()))} on {pluralize(len(engines_on), 'node')}"


def read_stores() -> dict[str, ObjectStore]:
    """Return the object store of each node of the cluster that this process has joined."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    return {node["NodeID"]: ObjectStore(node["NodeManagerAddress"], int(node["Resources"].get(STORE, 0))) for node in nodes}


class PublicationTransport(Protocol):
    """Makes publications readable on other nodes than those they were written on. Lives in the driver.

    What :meth:`fetch_to_node` returned stays readable on its node until a publication two fetches later begins to arrive there.
    The files of a publication may be overwritten once no call of :meth:`fetch_to_node` for it is under way.

    Attributes:
        ranks_broadcast: whether each rank also offers its part from its GPU (``Publication.senders``).
    """

    ranks_broadcast: ClassVar[bool] = False

    @classmethod
    def for_run(cls, recipe: Recipe, folder: RunFolder) -> Self:
        """Make the transport of a run, whose section ``weights`` may hold settings of it."""
        ...

    @classmethod
    def describe(cls, routes: Routes) -> str:
        """Say how weights reach the engines, in a few words each with its reason.

        Raises:
            RecipeError: they would not reach all of them.
        """
        ...

    @classmethod
    def memory_apart(cls, version: int, store: int) -> int:
        """Return the bytes that publications take of the memory file system of a node on which no rank writes; by default none.

        Args:
            version: bytes of a version.
            store: those of the node's object store.
        """
        return 0

    async def fetch_to_node(self, publication: Publication, node: str) -> Publication:
        """Bring ``publication`` to a node, and return it with files that all lie there.

        Returns at once where it lies there already. Calls for one node share one transfer, which goes on if a caller is
        cancelled. Engines go on sampling meanwhile.

        Args:
            publication: as the ranks wrote it.
            node: Ray's id of the node.

        Raises:
            ComponentFailed: the node cannot be reached (``ProcessDied``), its memory file system is full, or the files are gone.
            DeadlineExceeded: they did not arrive within ``deadlines.publish``.
        """
        ...

    async def check_reach(self, newest: Publication, node: str) -> None:
        """Check that publications can come to a node on which an engine is about to start; by default they can.

        Args:
            newest: the newest publication.

        Raises:
            WeightsOutOfReach: they cannot.
            ComponentFailed: the node cannot be asked.
            DeadlineExceeded: it did not answer in time.
        """
        return

    async def leave(self, node: str) -> None:
        """End what serves a node on which no engine is left; by default there is nothing."""
        return

    async def close(self, seconds: float) -> None:
        """End what is under way, and remove what lies on other nodes; by default there is nothing."""
        return
