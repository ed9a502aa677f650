"""The plug point for transports: what brings publications from the nodes they were written on to the nodes of the engines.

Ranks write their shards to files in their own node's memory, and engines map files of their own node, wherever these came from.
What lies between is a transport's: for each engine, the files of each publication are to lie on the engine's node. So neither
what ranks write with nor what engines load with knows any transport. Broadcasts between GPUs are the exception: they leave the
files where they are, and put into a publication who sends them.
"""

from typing import ClassVar, Protocol, Self

import msgspec

from asyncrl.core.network.tls import TlsKeys
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.publications.routes import Routes


class TransportRun(msgspec.Struct, frozen=True):
    """The run that a transport is made for.

    Attributes:
        secret: what the run's processes show to one another.
        tls: the run's keys if its connections are encrypted.
    """

    recipe: Recipe
    folder: RunFolder
    secret: bytes
    tls: TlsKeys | None


class PublicationTransport(Protocol):
    """Makes publications readable on other nodes than those they were written on. Lives in the driver.

    What :meth:`fetch_to_node` returned stays readable on its node until a publication two fetches later begins to arrive there.
    The files of a publication may be overwritten once no call of :meth:`fetch_to_node` for it is under way.

    Attributes:
        ranks_broadcast: whether each rank also offers its part from its GPU (``Publication.senders``).
    """

    ranks_broadcast: ClassVar[bool] = False

    @classmethod
    def for_run(cls, run: TransportRun) -> Self:
        """Make the transport of a run, whose section ``weights`` may hold settings of it."""
        ...

    @classmethod
    def describe(cls, routes: Routes) -> str:
        """Say how weights reach the engines, in a few words each with its reason.

        Raises:
            RecipeError: they would not reach all of them.
        """
        ...

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

    async def close(self, seconds: float) -> None:
        """End what is under way, and remove what lies on other nodes; by default there is nothing."""
        return
