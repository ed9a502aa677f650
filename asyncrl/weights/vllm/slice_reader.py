"""Reads from publications the slices that one worker of an engine needs, straight into its parameters.

What always holds: no whole tensor is put together; every shard of which the worker takes a part is read as a whole, in one pass,
and its fingerprint is that of the very bytes that were read; every tensor is covered exactly once. The shards that the worker
takes nothing of are not read: other workers need them, and prove them.
"""

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from asyncrl.core.publication import Publication, Shard, ShardRecord
from asyncrl.core.rectangle import Rectangle
from asyncrl.device.pinning import NoPinning, PinnedFiles
from asyncrl.weights.coverage import by_tensor, check_coverage
from asyncrl.weights.fingerprint import Fingerprints
from asyncrl.weights.shm.shared_tensors import SharedMemory
from asyncrl.weights.vllm.engine_shards import Target
from asyncrl.weights.vllm.slice_plan import Slice, plan_slices

logger = logging.getLogger(__name__)

AT_ONCE = 1 << 21
"""How many elements a thread of a CPU takes at once, at most, so that all threads end at about the same time."""
WHOLE = 1 << 62
"""Elements at once where nothing is divided, because a GPU copies everything as it likes."""


class _Move(NamedTuple):
    """A part of a shard that is read at once.

    Attributes:
        shard: its number in the publication.
        inside: which part of it.
        rectangle: the same, in the whole tensor.
        to: which part of the parameter it becomes; None if it is read for the proof alone.
        transposed: whether its rows become columns there.
    """

    shard: int
    inside: tuple[slice, ...]
    rectangle: Rectangle
    to: tuple[slice, ...] | None
    transposed: bool = False

    def into(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return the part of the parameter that it becomes, in the rectangle's shape."""
        if self.to is None:
            return None
        extent = self.rectangle.extent
        return parameter[self.to].view(extent[::-1]).t() if self.transposed else parameter[self.to].view(extent)


class SliceReader:
    """Knows what a worker needs, and plans the reading anew only if publications are divided in another way than before.

    Args:
        targets: which parts of tensors become which parts of the worker's parameters; no part of a tensor twice.
        at_once: how many elements are read at once, at most.
        mappings: keeps the files mapped, and pinned for a GPU; by default they are not pinned.
    """

    def __init__(self, targets: Sequence[Target], at_once: int = AT_ONCE, mappings: PinnedFiles | None = None) -> None:
        self._targets, self._at_once = targets, at_once
        self._mappings = mappings or PinnedFiles(NoPinning())
        self._planned: tuple[ShardRecord, ...] = ()
        self._moves: dict[str, list[_Move]] = {}

    def read(self, publication: Publication) -> "Reading":
        """Begin to read a publication.

        Raises:
            WeightMismatch: a tensor is not covered exactly once, or one that is needed is not there.
        """
        if publication.shards != self._planned:
            self._moves = _plan(publication.shards, self._targets, self._at_once)
            self._planned = publication.shards
        return Reading(publication, self._moves, SharedMemory.read_shards(publication, self._mappings), self._at_once)

    def close(self) -> None:
        """Let go of the files. They are unmapped with the last tensor that views them."""
        self._mappings.close()


class Reading:
    """One publication on its way into a worker's parameters."""

    def __init__(
        self, publication: Publication, moves: Mapping[str, Sequence[_Move]], shards: Sequence[Shard], at_once: int
    ) -> None:
        self._at_once = at_once
        self._publication, self._moves, self._shards = publication, moves, shards
        self._sums = {move.shard: 0 for each in moves.values() for move in each}
        self._adding = threading.Lock()
        self._whole, self._fingerprints = list[int](), Fingerprints()

    @torch.no_grad()
    def fill(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Fill parameters, by their names, from their slices. As many threads as torch uses share the work."""
        moves = deque((move, parameters[name]) for name in parameters for move in self._moves.get(name, ()))
        threads = min(torch.get_num_threads(), sum(move.rectangle.elements for move, _ in moves) // self._at_once)
        if threads < 2:
            self._run(moves)
            return
        with ThreadPoolExecutor(threads - 1, "slices") as pool:
            others = [pool.submit(self._run, moves) for _ in range(threads - 1)]
            self._run(moves)
            for other in others:
                other.result()

    @torch.no_grad()
    def fill_on_device(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Fill parameters on a GPU, by their names. Each shard is copied there as a whole, and added up and cut there.

        Nothing waits for the GPU: what is launched afterwards on torch's current stream sees the parameters.
        """
        there: dict[int, torch.Tensor] = {}
        for name, parameter in parameters.items():
            for move in self._moves.get(name, ()):
                shard = self._shards[move.shard]
                if move.shard not in there:
                    there[move.shard] = shard.tensor.to(parameter.device, non_blocking=True)
                    self._whole.append(move.shard)
                    self._fingerprints.add(Shard(shard.name, shard.shape, shard.start, there[move.shard]))
                if (into := move.into(parameter)) is not None:
                    into.copy_(there[move.shard][move.inside])

    def _run(self, moves: "deque[tuple[_Move, torch.Tensor]]") -> None:
        fingerprints, done = Fingerprints(threads=1), []
        while True:
            try:
                move, parameter = moves.popleft()
            except IndexError:
                break
            shard, rectangle = self._shards[move.shard], move.rectangle
            part = Shard(rectangle.name, shard.shape, rectangle.start, shard.tensor[move.inside])
            fingerprints.add(part, move.into(parameter))
            done.append(move.shard)
        with self._adding:
            for number, found in zip(done, fingerprints.each(), strict=True):
                self._sums[number] += found

    def total(self) -> int:
        """Return the fingerprint of the publication, as far as this worker has read it.

        What it need not read counts as published. So it is the publication's own if what was read is what ranks wrote.
        """
        for number, found in zip(self._whole, self._fingerprints.each(), strict=True):
            if found != self._publication.fingerprints[number] or not self._sums[number]:  # of several copies, the wrong one
                self._sums[number] = found
        total = 0
        for number, published in enumerate(self._publication.fingerprints):
            found = self._sums.get(number, published) % 2**64
            if found != published:
                name = self._publication.shards[number].name
                logger.error("version %d: %s is not what was published", self._publication.version, name)
            total += found
        return total % 2**64


def _plan(shards: Sequence[ShardRecord], targets: Sequence[Target], at_once: int) -> dict[str, list[_Move]]:
    """Plan what to read for each parameter."""
    for name, records in by_tensor(shards).items():
        check_coverage(name, records)
    rectangles = [Rectangle(shard.name, shard.start, shard.extent) for shard in shards]
    # Each shard counts as what a rank of its own publishes.
    slices = plan_slices({number: [rectangle] for number, rectangle in enumerate(rectangles)}, [targets])
    taken: defaultdict[int, list[Slice]] = defaultdict(list)
    for each in slices:
        taken[each.rank].append(each)
    moves: defaultdict[str, list[_Move]] = defaultdict(list)
    for number, parts in taken.items():
        shard, rest = rectangles[number], [rectangles[number]]
        for part in parts:
            rest = [left for each in rest for left in each.without(part.source)]
            to = Target(part.source, part.parameter, part.at, part.transposed)
            moves[part.parameter] += [_move(number, shard, piece, to) for piece in part.source.pieces(at_once)]
        moves[parts[0].parameter] += [_move(number, shard, piece, None) for each in rest for piece in each.pieces(at_once)]
    return dict(moves)


def _move(number: int, shard: Rectangle, piece: Rectangle, target: Target | None) -> _Move:
    inside = _window((begin - origin for begin, origin in zip(piece.start, shard.start, strict=True)), piece.extent)
    if target is None:
        return _Move(number, inside, piece, None)
    moved = target.turned(tuple(begin - origin for begin, origin in zip(piece.start, target.source.start, strict=True)))
    before = (0,) * (len(target.at) - len(moved))
    to = _window(map(sum, zip(target.at, before + moved, strict=True)), target._replace(source=piece).extent)
    return _Move(number, inside, piece, to, target.transposed)


def _window(start: Iterable[int], extent: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(begin, begin + size) for begin, size in zip(start, extent, strict=True))
