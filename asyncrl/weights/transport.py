"""The interface of a weight transport."""

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

import torch

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, Shard
from asyncrl.device.pinning import PinnedFiles

CPU = torch.device("cpu")


class Transport(Protocol):
    """Carries weights from the learner's ranks to the engines.

    Each rank has an instance of its own to write with. Engines need none: a publication holds all that they need to read it.
    """

    def write(self, version: PolicyVersion, shards: Iterable[Shard], read: Collection[PolicyVersion] = ()) -> Publication:
        """Write this rank's part of ``version``. The last version can still be read, and those that are named in ``read``."""

    def close(self) -> None:
        """Remove what this rank has written."""

    @staticmethod
    def read(
        publication: Publication, device: torch.device = CPU, mappings: PinnedFiles | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and the whole tensor of everything published, on ``device``."""
