"""What brings a publication to the nodes of the engines that are to load it."""

from typing import Protocol

from asyncrl.core.publication import Publication


class LocalPublications(Protocol):
    """Makes publications readable on other nodes than those they were written on.

    What :meth:`fetch` returned stays readable on its node until a publication two versions later is fetched there. The files of a
    publication may be overwritten, by the version after the next, once no call of :meth:`fetch` for it is under way.
    """

    async def fetch(self, publication: Publication, node: str) -> Publication:
        """Bring ``publication`` to a node, and return it with files that all lie there.

        Returns at once where it lies there already. Calls for one node share one transfer. Engines go on sampling meanwhile.

        Args:
            publication: as the ranks wrote it.
            node: Ray's id of the node.

        Raises:
            ComponentFailed: the node, or every node that has the publication, cannot be reached.
            DeadlineExceeded: it did not arrive within ``deadlines.publish``.
        """
        ...
