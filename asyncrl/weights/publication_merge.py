"""The merge of the parts that ranks wrote into one publication, for any transport. Importing this does not import torch."""

import re
from collections.abc import Sequence

from asyncrl.core.errors import WeightMismatch
from asyncrl.core.publication import BroadcastAddress, Publication, ShardRecord, WeightFile
from asyncrl.weights.coverage import by_tensor, check_coverage

_LAYER = re.compile(r"\.layers\.(\d+)\.")


def merge(parts: Sequence[Publication]) -> Publication:
    """Merge the parts that the ranks wrote into the whole publication, whose shards are in the order of the model's layers.

    Where ranks share out a layer's experts, each rank names its experts of all layers. An engine holds what it has of a layer
    until the layer is complete: in the order of the ranks, it would hold nearly all experts at once. A rank that holds
    only copies of what others publish has no file in the publication.

    Raises:
        WeightMismatch: the parts have different versions, or do not cover every tensor exactly once.
    """
    versions = sorted({part.version for part in parts})
    if len(versions) != 1:
        raise WeightMismatch(f"the parts to merge have versions {versions}; every rank must write the same version")
    files: list[WeightFile] = []
    shards: list[tuple[ShardRecord, int]] = []
    senders: list[BroadcastAddress] = []
    for part in parts:
        if not part.shards:
            continue
        records = (ShardRecord(s.name, s.shape, s.start, s.extent, s.dtype, len(files) + s.file, s.offset) for s in part.shards)
        shards += zip(records, part.fingerprints, strict=True)
        files += part.files
        senders += part.senders
    for name, of_tensor in by_tensor(record for record, _ in shards).items():
        check_coverage(name, of_tensor)
    shards.sort(key=lambda shard: _layer(shard[0]))
    return Publication(
        version=versions[0],
        files=tuple(files),
        shards=tuple(record for record, _ in shards),
        fingerprints=tuple(number for _, number in shards),
        fingerprint=sum(part.fingerprint for part in parts) % 2**64,
        senders=tuple(senders),
    )


def _layer(shard: ShardRecord) -> int:
    """The layer that a shard is of; -1 for what belongs to no layer."""
    found = _LAYER.search(shard.name)
    return int(found[1]) if found else -1
