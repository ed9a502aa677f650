"""Checks that the shards of a publication tile every tensor: each element in exactly one shard, no gap and no overlap."""

import math
from collections.abc import Iterable
from itertools import combinations

from asyncrl.core.errors import WeightMismatch
from asyncrl.core.publication import ShardRecord


def by_tensor(shards: Iterable[ShardRecord]) -> dict[str, list[ShardRecord]]:
    """Group the records by tensor, in the order in which the tensors first appear."""
    tensors: dict[str, list[ShardRecord]] = {}
    for shard in shards:
        tensors.setdefault(shard.name, []).append(shard)
    return tensors


def check_coverage(name: str, shards: list[ShardRecord]) -> None:
    """Check that ``shards`` cover the tensor ``name`` exactly once.

    Raises:
        WeightMismatch: shards disagree, overlap, stick out or leave a gap; the text names the tensor and the shards.
    """
    shape, dtype = shards[0].shape, shards[0].dtype
    for shard in shards:
        if shard.shape != shape or shard.dtype != dtype:
            raise WeightMismatch(
                f"{name}: one rank published it as {dtype}{list(shape)}, another as {shard.dtype}{list(shard.shape)}; "
                "every rank must export a tensor with the same shape and dtype"
            )
        ends = zip(shard.start, shard.extent, shape, strict=True)
        if any(start < 0 or start + extent > size for start, extent, size in ends):
            raise WeightMismatch(f"{name}: the shard at {shard.start} of extent {shard.extent} is not inside shape {list(shape)}")
    for one, other in combinations(shards, 2):
        if _overlap(one, other):
            raise WeightMismatch(
                f"{name}: the shards at {one.start} and {other.start} overlap; "
                "if several ranks hold the same values, only one of them may publish these"
            )
    covered = sum(math.prod(shard.extent) for shard in shards)
    if covered != math.prod(shape):
        raise WeightMismatch(
            f"{name}: only {covered} of {math.prod(shape)} elements were published; every learner rank must publish what it owns"
        )


def _overlap(one: ShardRecord, other: ShardRecord) -> bool:
    return all(
        start < other_start + other_extent and other_start < start + extent
        for start, extent, other_start, other_extent in zip(one.start, one.extent, other.start, other.extent, strict=True)
    )
