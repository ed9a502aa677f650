"""Slices, read from files of real ranks into the parameters of each worker: the right ones, proven, and no others."""

from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.architectures.architecture import Architecture
from asyncrl.core.errors import WeightMismatch
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.core.publication import Publication, Shard
from asyncrl.core.rectangle import Rectangle
from asyncrl.learners.held_weights import held_weights
from asyncrl.learners.rank import RankPlace
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.shared_tensors import SharedMemory
from asyncrl.weights.vllm.engine_shards import EngineLayout, parameters, targets
from asyncrl.weights.vllm.slice_reader import AT_ONCE, WHOLE, SliceReader

MODEL = Architecture(
    hidden_size=64,
    heads=4,
    key_value_heads=2,
    head_size=16,
    intermediate_size=96,
    vocabulary=322,
    tied=False,
    biases=True,
    head_norms=True,
    with_experts=(False, True),
    experts=4,
    expert_size=32,
)
LEARNERS = {
    "one": ParallelLayout(),
    "tensor": ParallelLayout(tensor=2),
    "pipeline": ParallelLayout(tensor=2, pipeline=2),
    "experts": ParallelLayout(data=2, expert=2),
}
ENGINES = {
    "one": EngineLayout(1),
    "two": EngineLayout(2),
    "four": EngineLayout(4),
    "experts": EngineLayout(2, whole_experts=True),
    "ranks": EngineLayout(2, 2),
}


def model(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {tensor.name: torch.randn(tensor.shape, generator=generator).to(dtype) for tensor in MODEL.tensors()}


def window(start: tuple[int, ...], extent: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(begin, begin + size) for begin, size in zip(start, extent, strict=True))


class Ranks:
    """Ranks in a layout, each with its files."""

    def __init__(self, layout: ParallelLayout, folder: Path, stack: ExitStack) -> None:
        self.held = [
            [held for held in held_weights(MODEL, RankPlace(rank=rank, layout=layout)) if held.published]
            for rank in range(layout.ranks)
        ]
        self.writers = [stack.enter_context(closing(SharedMemory("slices", rank, str(folder)))) for rank in range(layout.ranks)]

    def publish(self, version: int, tensors: dict[str, torch.Tensor]) -> Publication:
        parts = []
        for writer, held in zip(self.writers, self.held, strict=True):
            rectangles = [(each.shape, each.rectangle) for each in held]
            shards = [Shard(r.name, shape, r.start, tensors[r.name][window(r.start, r.extent)]) for shape, r in rectangles]
            parts.append(writer.write(PolicyVersion(version), shards))
        return merge(parts)


class Workers:
    """The workers of one engine."""

    def __init__(
        self, layout: EngineLayout, stack: ExitStack, dtype: torch.dtype = torch.float32, at_once: int = AT_ONCE
    ) -> None:
        self.layout, self.dtype, self.at_once = layout, dtype, at_once
        needed = [list(targets(MODEL, layout, worker)) for worker in range(layout.workers)]
        self.readers = [stack.enter_context(closing(SliceReader(each, at_once))) for each in needed]

    def load(self, publication: Publication) -> list[tuple[dict[str, torch.Tensor], int]]:
        """What each has in its parameters, with -1 for padding, and the fingerprint that it acknowledges."""
        loaded = []
        for worker, reader in enumerate(self.readers):
            shapes = parameters(MODEL, self.layout, worker)
            filled = {name: torch.full(shape, -1.0, dtype=self.dtype) for name, shape in shapes.items()}
            reading = reader.read(publication)
            for name, tensor in filled.items():  # one after the other, as layers are packed
                fill = reading.fill_on_device if self.at_once == WHOLE else reading.fill
                fill({name: tensor})
            loaded.append((filled, reading.total()))
        return loaded

    def expected(self, tensors: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        made = []
        for worker in range(self.layout.workers):
            shapes = parameters(MODEL, self.layout, worker)
            filled = {name: torch.full(shape, -1.0, dtype=self.dtype) for name, shape in shapes.items()}
            for target in targets(MODEL, self.layout, worker):
                source = tensors[target.source.name][window(target.source.start, target.source.extent)]
                filled[target.parameter][window(target.at, target.extent)] = source.to(self.dtype)
            made.append(filled)
        return made


def as_expected(loaded: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(loaded[name], expected[name]) for name in expected)


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("at_once", [500, WHOLE], ids=["pieces shared by threads", "as on a GPU"])
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("learner", LEARNERS.values(), ids=LEARNERS)
def test_every_worker_gets_its_slices_of_version_after_version(learner, engine, at_once, stack, tmp_path) -> None:
    ranks, workers = Ranks(learner, tmp_path, stack), Workers(engine, stack, at_once=at_once)
    for version in range(1, 5):
        publication = ranks.publish(version, model(version))
        for (filled, acknowledged), expected in zip(workers.load(publication), workers.expected(model(version)), strict=True):
            assert acknowledged == publication.fingerprint
            assert as_expected(filled, expected)


@pytest.mark.parametrize(("published", "kept"), [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16)])
def test_slices_are_rounded_to_what_the_engine_keeps(published, kept, stack, tmp_path) -> None:
    ranks, workers = Ranks(LEARNERS["tensor"], tmp_path, stack), Workers(ENGINES["two"], stack, kept)
    publication = ranks.publish(1, model(1, published))
    for (filled, acknowledged), expected in zip(workers.load(publication), workers.expected(model(1, published)), strict=True):
        assert acknowledged == publication.fingerprint
        assert as_expected(filled, expected)


def test_a_worker_reads_no_shard_that_it_takes_nothing_of(stack, tmp_path) -> None:
    """With the same layout on both sides, each reads its half, and what both need."""
    ranks, workers = Ranks(LEARNERS["tensor"], tmp_path, stack), Workers(ENGINES["two"], stack)
    publication = ranks.publish(1, model(1))
    read = [{move.shard for moves in reader.read(publication)._moves.values() for move in moves} for reader in workers.readers]
    names = [shard.name for shard in publication.shards]
    assert read[0] | read[1] == set(range(len(names)))
    both = {names[number] for number in read[0] & read[1]}
    divided = {name for name in names if any(part in name for part in ("o_proj", "q_proj.weight", "mlp.down"))}
    assert divided
    assert both.isdisjoint(divided)
    assert "model.norm.weight" in both


def bytes_of(publication: Publication, name: str) -> np.ndarray:
    """The bytes of the tensor's first shard, which may be written."""
    (shard, *_) = [shard for shard in publication.shards if shard.name == name]
    size = 4 * int(np.prod(shard.extent))
    return np.memmap(publication.files[shard.file].path, np.uint8, "r+", shard.offset, (size,))


def flip(publication: Publication) -> None:
    bytes_of(publication, "model.layers.1.mlp.experts.3.up_proj.weight")[-1] ^= 1


def permute(publication: Publication) -> None:
    rows = bytes_of(publication, "model.layers.0.self_attn.q_proj.weight").reshape(-1, 256)
    rows[[0, 1]] = rows[[1, 0]]


def swap(publication: Publication) -> None:
    one, other = (bytes_of(publication, f"model.layers.{layer}.input_layernorm.weight") for layer in range(2))
    one[:], other[:] = other.copy(), one.copy()


def stale(publication: Publication) -> None:
    bytes_of(publication, "model.layers.0.mlp.gate_proj.weight")[:] = (
        model(1)["model.layers.0.mlp.gate_proj.weight"][:48].numpy().view(np.uint8).ravel()
    )


@pytest.mark.parametrize("at_once", [AT_ONCE, WHOLE], ids=["on a CPU", "as on a GPU"])
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("spoil", [flip, permute, swap, stale])
def test_wrong_bytes_are_not_acknowledged_as_the_publication(spoil, engine, at_once, stack, tmp_path, caplog) -> None:
    """Whoever takes a part of the shard finds out, whichever part is wrong; the log names the tensor."""
    ranks, workers = Ranks(LEARNERS["tensor"], tmp_path, stack), Workers(engine, stack, at_once=at_once)
    for version in range(1, 4):  # readers have mapped all files
        publication = ranks.publish(version, model(version))
        assert {acknowledged for _, acknowledged in workers.load(publication)} == {publication.fingerprint}
    spoil(publication)
    found, expected = workers.load(publication), workers.expected(model(3))
    assert any(acknowledged != publication.fingerprint for _, acknowledged in found)
    for (filled, acknowledged), right in zip(found, expected, strict=True):
        assert as_expected(filled, right) or acknowledged != publication.fingerprint
    assert "is not what was published" in caplog.text


def test_what_was_not_filled_is_not_acknowledged(stack, tmp_path) -> None:
    publication = Ranks(LEARNERS["one"], tmp_path, stack).publish(1, model(1))
    reader = stack.enter_context(closing(SliceReader(list(targets(MODEL, ENGINES["one"], 0)))))
    reading = reader.read(publication)
    names = parameters(MODEL, ENGINES["one"], 0)
    reading.fill({name: torch.zeros(shape) for name, shape in names.items() if name != "model.norm.weight"})
    assert reading.total() != publication.fingerprint


def test_ranks_in_another_layout_are_read_by_another_plan(stack, tmp_path) -> None:
    workers = Workers(ENGINES["two"], stack)
    for version, learner in enumerate(LEARNERS.values(), start=1):
        folder = tmp_path / str(version)
        folder.mkdir()
        publication = Ranks(learner, folder, stack).publish(version, model(version))
        for (filled, acknowledged), expected in zip(workers.load(publication), workers.expected(model(version)), strict=True):
            assert acknowledged == publication.fingerprint
            assert as_expected(filled, expected)


def test_a_tensor_that_is_not_covered_is_refused(stack, tmp_path) -> None:
    publication = Ranks(LEARNERS["tensor"], tmp_path, stack).publish(1, model(1))
    (reader, _) = Workers(ENGINES["two"], stack).readers
    broken = msgspec.structs.replace(publication, shards=publication.shards[1:], fingerprints=publication.fingerprints[1:])
    with pytest.raises(WeightMismatch, match="elements were published"):
        reader.read(broken)
    assert reader.read(publication) is not None


boxes = st.integers(1, 3).flatmap(
    lambda dimensions: st.tuples(
        *[
            st.tuples(*[st.tuples(st.integers(0, 4), st.integers(1, 4)) for _ in range(dimensions)]).map(
                lambda sides: Rectangle("w", tuple(start for start, _ in sides), tuple(extent for _, extent in sides))
            )
            for _ in range(2)
        ]
    )
)


def drawn(rectangles) -> np.ndarray:
    """How many of the rectangles have each element."""
    counts = np.zeros((9,) * 3, int)
    for each in rectangles:
        counts[window(each.start, each.extent)] += 1
    return counts


@given(boxes, st.integers(1, 30))
def test_what_is_left_of_a_rectangle_and_its_pieces_have_each_element_once(pair, elements: int) -> None:
    one, other = pair
    shared = one.shared(other)
    assert (drawn([*one.without(other), *([shared] if shared else [])]) == drawn([one])).all()
    pieces = list(one.pieces(elements))
    assert (drawn(pieces) == drawn([one])).all()
    assert max(piece.elements for piece in pieces) <= max(elements, one.elements // one.extent[0])
