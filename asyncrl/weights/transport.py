"""The interface of a weight transport, and the merge of the parts that ranks wrote into one publication, for any transport."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch

from asyncrl.core.errors import WeightMismatch
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, Shard, ShardRecord
from asyncrl.weights.coverage import by_tensor, check_coverage


class Transport(Protocol):
    """Carries weights from the learner's ranks to the engines.

    Each rank has an instance of its own to write with. Engines need none: a publication holds all that they need to read it.
    """

    def write(self, version: PolicyVersion, shards: Iterable[Shard]) -> Publication:
        """Write this rank's part of ``version``. It can be read until the version after the next is written."""

    def close(self) -> None:
        """Remove what this rank has written."""

    @staticmethod
    def read(publication: Publication) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and the whole tensor of everything published."""

    @staticmethod
    def remove_left_behind(run_id: str) -> None:
        """Remove what the ranks of a killed run have left behind."""


def merge(parts: Sequence[Publication]) -> Publication:
    """Merge the parts that the ranks wrote into the whole publication.

    Raises:
        WeightMismatch: the parts have different versions, or do not cover every tensor exactly once.
    """
    versions = sorted({part.version for part in parts})
    if len(versions) != 1:
        raise WeightMismatch(f"the parts to merge have versions {versions}; every rank must write the same version")
    files: list[str] = []
    shards: list[ShardRecord] = []
    for part in parts:
        shards += [ShardRecord(s.name, s.shape, s.start, s.extent, s.dtype, len(files) + s.file, s.offset) for s in part.shards]
        files += part.files
    for name, records in by_tensor(shards).items():
        check_coverage(name, records)
    return Publication(
        version=versions[0],
        files=tuple(files),
        shards=tuple(shards),
        fingerprint=sum(part.fingerprint for part in parts) % 2**64,
    )
