"""The plan of slices: which rectangle of which learner rank becomes which rectangle of which worker of an engine.

A dry run makes it from the architecture alone, before there is a process. A worker of an engine makes it from the shards of a
publication and from what vLLM's loaders do (:mod:`asyncrl.weights.vllm.slice_reader`), and it moves the bytes. What always holds:
every slice lies in what its rank publishes, and the slices and the padding fill every parameter of every worker exactly once.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from asyncrl.core.errors import WeightMismatch
from asyncrl.core.rectangle import Rectangle
from asyncrl.weights.vllm.engine_shards import Target

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class Slice(NamedTuple):
    """One copy.

    Attributes:
        rank: the learner rank that publishes the rectangle.
        worker: the worker of an engine that needs it.
        source: the rectangle.
        parameter, at, transposed: where it goes; see :class:`asyncrl.weights.vllm.engine_shards.Target`.
    """

    rank: int
    worker: int
    source: Rectangle
    parameter: str
    at: tuple[int, ...]
    transposed: bool = False


class Merge(NamedTuple):
    """How parameters of one kind are made, in all layers alike.

    Attributes:
        parameter: their name, with ``*`` for numbers.
        tensors: the tensors that one of them is made of, named likewise.
        pieces: the slices that make one of them on one worker, at most.
        divided: whether a worker needs only a part of these tensors.
    """

    parameter: str
    tensors: tuple[str, ...]
    pieces: int
    divided: bool


def plan_slices(published: Mapping[int, Iterable[Rectangle]], workers: Sequence[Iterable[Target]]) -> list[Slice]:
    """Plan the copies from what each learner rank publishes to what each worker of an engine needs.

    Raises:
        WeightMismatch: no rank publishes a part that a worker needs, or several do.
    """
    sources: defaultdict[str, list[tuple[int, Rectangle]]] = defaultdict(list)
    for rank, rectangles in published.items():
        for rectangle in rectangles:
            sources[rectangle.name].append((rank, rectangle))
    slices: list[Slice] = []
    for worker, needed in enumerate(workers):
        for target in needed:
            found = [
                Slice(rank, worker, part, target.parameter, _moved(target, part), target.transposed)
                for rank, rectangle in sources[target.source.name]
                if (part := rectangle.shared(target.source)) is not None
            ]
            elements = sum(each.source.elements for each in found)
            if elements != target.source.elements:
                raise WeightMismatch(
                    f"{target.source.name}: worker {worker} needs {target.source.elements} elements from {target.source.start} "
                    f"on, and the learner's ranks publish {elements} of them; each must be published by exactly one"
                )
            slices += found
    return slices


def _moved(target: Target, part: Rectangle) -> tuple[int, ...]:
    """Where in the parameter ``part`` of a target begins."""
    inside = target.turned(tuple(begin - origin for begin, origin in zip(part.start, target.source.start, strict=True)))
    return tuple(map(sum, zip(target.at, (0,) * (len(target.at) - len(inside)) + inside, strict=True)))


def moved_elements(slices: Iterable[Slice]) -> Counter[tuple[int, int]]:
    """Count the elements that go from each learner rank to each worker."""
    elements: Counter[tuple[int, int]] = Counter()
    for each in slices:
        elements[each.rank, each.worker] += each.source.elements
    return elements


def merges(slices: Iterable[Slice], shapes: Mapping[str, tuple[int, ...]]) -> list[Merge]:
    """Say how the parameters are made that are not whole tensors of one rank.

    Args:
        shapes: the shape of each tensor.
    """
    made: defaultdict[tuple[str, int], list[Slice]] = defaultdict(list)
    for each in slices:
        made[each.parameter, each.worker].append(each)
    kinds: dict[str, Merge] = {}
    for (parameter, _), parts in made.items():
        kind = _NUMBER.sub("*", parameter)
        tensors = tuple(dict.fromkeys(_NUMBER.sub("*", part.source.name) for part in parts))
        needed: Counter[str] = Counter()
        for part in parts:
            needed[part.source.name] += part.source.elements
        divided = any(count < math.prod(shapes[name]) for name, count in needed.items())
        before = kinds.get(kind, Merge(kind, tensors, 0, False))
        kinds[kind] = Merge(kind, before.tensors, max(before.pieces, len(parts)), before.divided or divided)
    return [merge for merge in kinds.values() if merge.pieces > 1 or merge.divided]
