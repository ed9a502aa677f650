import errno
import os
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import torch
from msgspec.structs import replace

from asyncrl.core.errors import WeightMismatch
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, Shard
from asyncrl.device.pinning import PinnedFiles
from asyncrl.weights.fingerprint import fingerprint
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.memory_file import MemoryFull
from asyncrl.weights.shm.shared_tensors import SharedMemory

V1, V2, V3 = PolicyVersion(1), PolicyVersion(2), PolicyVersion(3)


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed": torch.randn(10, 6, generator=generator).bfloat16(),
        "proj": torch.randn(8, 5, generator=generator),
        "norm": torch.randn(7, generator=generator).half(),
    }


def shards_of_rank(rank: int, model: dict[str, torch.Tensor]) -> list[Shard]:
    """Two ranks: ``embed`` split by rows, ``proj`` by columns, ``norm`` owned by rank 1."""
    embed, proj, norm = model["embed"], model["proj"], model["norm"]
    rows, columns = slice(5 * rank, 5 * rank + 5), slice(3 * rank, 3 + 2 * rank)
    own = [
        Shard("embed", (10, 6), (rows.start, 0), embed[rows]),
        Shard("proj", (8, 5), (0, columns.start), proj[:, columns]),
    ]
    return [*own, Shard("norm", (7,), (0,), norm)] if rank else own


@pytest.fixture
def writers(tmp_path: Path):
    folder = str(tmp_path)
    with closing(SharedMemory("run", 0, folder)) as first, closing(SharedMemory("run", 1, folder)) as second:
        yield first, second


def publish(writers: tuple[SharedMemory, ...], version: PolicyVersion, model: dict[str, torch.Tensor]) -> Publication:
    return merge([writer.write(version, shards_of_rank(rank, model)) for rank, writer in enumerate(writers)])


def test_what_ranks_write_is_what_engines_read(writers) -> None:
    model = tensors(1)
    publication = publish(writers, V1, model)
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(publication), type=Publication)
    loaded = dict(SharedMemory.read(travelled))
    assert loaded.keys() == model.keys()
    assert all(torch.equal(loaded[name], model[name]) and loaded[name].dtype == model[name].dtype for name in model)
    whole = (Shard(name, tuple(t.shape), (0,) * t.dim(), t) for name, t in model.items())
    assert publication.fingerprint == sum(map(fingerprint, whole)) % 2**64


def test_a_publication_survives_the_next_one_in_reused_files(writers, tmp_path: Path) -> None:
    first, second = tensors(1), tensors(2)
    earlier = publish(writers, V1, first)
    later = publish(writers, V2, second)
    assert earlier.fingerprint != later.fingerprint
    assert torch.equal(dict(SharedMemory.read(earlier))["proj"], first["proj"])
    assert torch.equal(dict(SharedMemory.read(later))["proj"], second["proj"])
    assert publish(writers, V3, first).files == earlier.files
    assert len(list(tmp_path.iterdir())) == 4


def test_large_and_small_shards_are_proven_alike(tmp_path: Path) -> None:
    """The fingerprint of the large ones is computed in a thread; a shard cut by columns is not contiguous."""
    wide = torch.randn(1024, 2048)
    shards = [
        Shard("wide", (1024, 2048), (0, 0), wide[:, :1000]),
        Shard("norm", (3,), (0,), torch.ones(3)),
        Shard("wide", (1024, 2048), (0, 1000), wide[:, 1000:]),
    ]
    with closing(SharedMemory("run", 0, str(tmp_path))) as writer:
        publication = writer.write(V1, shards)
        assert publication.fingerprint == sum(map(fingerprint, shards)) % 2**64
        assert torch.equal(dict(SharedMemory.read(publication))["wide"], wide)


def test_what_somebody_still_reads_is_not_overwritten(tmp_path: Path) -> None:
    """A third file is written meanwhile, and used again afterwards."""
    with closing(SharedMemory("run", 0, str(tmp_path))) as writer:

        def write(version: int, *read: int) -> Publication:
            shards = [Shard("w", (2,), (0,), torch.full((2,), float(version)))]
            return writer.write(PolicyVersion(version), shards, [PolicyVersion(each) for each in read])

        parts = [write(1), write(2), write(3, 1), write(4, 1), write(5, 1, 4)]
        assert [dict(SharedMemory.read(parts[index]))["w"].tolist() for index in (0, 3, 4)] == [[1.0] * 2, [4.0] * 2, [5.0] * 2]
        assert parts[3].files == parts[1].files
        assert parts[4].files == parts[2].files
        assert write(6).files == parts[0].files
        assert len(list(tmp_path.iterdir())) == 3


def test_a_whole_tensor_is_read_without_a_copy(writers) -> None:
    writer, _ = writers
    part = writer.write(V1, [Shard("w", (4,), (0,), torch.ones(4))])
    loaded = dict(SharedMemory.read(part))["w"]
    writer.write(V2, [Shard("w", (4,), (0,), torch.ones(4))])
    writer.write(V3, [Shard("w", (4,), (0,), torch.full((4,), 5.0))])
    assert loaded.tolist() == [5.0] * 4, "a view shows what the file holds now"


def test_closing_removes_the_files(tmp_path: Path) -> None:
    writer = SharedMemory("run", 0, str(tmp_path))
    publication = writer.write(V1, [Shard("w", (3,), (0,), torch.ones(3))])
    loaded = dict(SharedMemory.read(publication))["w"]
    writer.close()
    writer.close()
    assert list(tmp_path.iterdir()) == []
    assert loaded.tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("shards", "problem"),
    [
        ([Shard("w", (4,), (0,), torch.ones(3))], "3 of 4 elements"),
        ([Shard("w", (4,), (0,), torch.ones(3)), Shard("w", (4,), (2,), torch.ones(2))], r"\(0,\) and \(2,\) overlap"),
        ([Shard("w", (4,), (2,), torch.ones(3))], "is not inside shape"),
        (
            [Shard("w", (4,), (0,), torch.ones(2)), Shard("w", (4,), (2,), torch.ones(2).half())],
            r"float32\[4\], another as float16",
        ),
        ([Shard("w", (2, 2), (0, 0), torch.ones(2, 1)), Shard("w", (2, 2), (1, 1), torch.ones(1, 1))], "3 of 4 elements"),
    ],
)
def test_a_tensor_not_covered_exactly_once_is_refused(writers, shards: list[Shard], problem: str) -> None:
    with pytest.raises(WeightMismatch, match=problem):
        merge([writers[0].write(V1, shards)])


def test_parts_of_different_versions_are_refused(writers) -> None:
    model = tensors(1)
    parts = [writers[0].write(V1, shards_of_rank(0, model)), writers[1].write(V2, shards_of_rank(1, model))]
    with pytest.raises(WeightMismatch, match=r"versions \[1, 2\]"):
        merge(parts)


def test_a_full_file_system_is_named_with_size_and_remedy(writers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(MemoryFull, match=rf"{tmp_path}.*no room for 16 bytes of weights.*has \d+ bytes.*--shm-size"):
        writers[0].write(V1, [Shard("w", (4,), (0,), torch.ones(4))])


class CountingPins:
    """Pins nothing, and keeps account of it."""

    def __init__(self):
        self.pinned = 0

    def pin(self, address: int, size: int) -> str:
        self.pinned += 1
        return ""

    def unpin(self, address: int) -> None:
        self.pinned -= 1


def test_a_device_writes_through_a_pinned_mapping_once_the_file_has_its_memory(tmp_path: Path) -> None:
    pins, read_pins = CountingPins(), CountingPins()
    readers = PinnedFiles(read_pins)
    with closing(SharedMemory("run", 0, str(tmp_path), PinnedFiles(pins), mapped_from="cpu")) as writer:
        for number in range(6):
            model = tensors(number)
            if number == 5:  # larger than the file was
                model["norm"] = torch.randn(500)
            shards = [Shard(name, tuple(t.shape), (0,) * t.dim(), t) for name, t in model.items()]
            publication = merge([writer.write(PolicyVersion(number), shards)])
            assert pins.pinned == max(0, min(2, number - 1))
            loaded = dict(SharedMemory.read(publication, mappings=readers))
            assert all(torch.equal(loaded[name], tensor) for name, tensor in model.items())
            assert publication.fingerprint == sum(map(fingerprint, shards)) % 2**64
        assert read_pins.pinned == 2
    readers.close()
    assert pins.pinned == read_pins.pinned == 0


def test_what_is_reserved_is_pinned_before_the_first_version_and_no_more_is_later(tmp_path: Path) -> None:
    pins = CountingPins()
    with closing(SharedMemory("run", 0, str(tmp_path), PinnedFiles(pins), mapped_from="cpu")) as writer:
        writer.reserve(Shard(name, tuple(t.shape), (0,) * t.dim(), t) for name, t in tensors(0).items())
        reserved = {path: path.stat().st_size for path in tmp_path.iterdir()}
        assert pins.pinned == len(reserved) == 2
        for number in range(4):
            shards = [Shard(name, tuple(t.shape), (0,) * t.dim(), t) for name, t in tensors(number).items()]
            publication = merge([writer.write(PolicyVersion(number), shards)])
            loaded = dict(SharedMemory.read(publication))
            assert all(torch.equal(loaded[shard.name], shard.tensor) for shard in shards)
            assert publication.files[0].size == reserved[Path(publication.files[0].path)]
            assert pins.pinned == 2
    assert pins.pinned == 0


def test_nothing_is_reserved_where_no_device_writes(tmp_path: Path) -> None:
    with closing(SharedMemory("run", 0, str(tmp_path))) as writer:
        writer.reserve([Shard("w", (4,), (0,), torch.ones(4))])
        assert not list(tmp_path.iterdir())


def test_a_publication_is_in_the_order_of_layers_whichever_rank_has_which_experts(tmp_path: Path) -> None:
    parts = []
    for rank in range(2):
        names = [f"model.layers.{layer}.mlp.experts.{2 * rank + expert}.w" for layer in (0, 2, 10) for expert in range(2)]
        if rank == 0:
            names = ["model.embed_tokens.weight", *names, "lm_head.weight"]
        with closing(SharedMemory("order", rank, str(tmp_path))) as writer:
            parts.append(writer.write(V1, [Shard(name, (2,), (0,), torch.ones(2)) for name in names]))
    whole = merge(parts)
    layers = [int(shard.name.split(".")[2]) for shard in whole.shards if ".layers." in shard.name]
    assert layers == sorted(layers)
    assert len(whole.shards) == 14
    assert {shard.file for shard in whole.shards if ".experts.3" in shard.name} == {1}


def test_a_version_that_differs_from_those_before_is_written_as_it_is(tmp_path: Path) -> None:
    """What the versions before have settled for a shard is used for the same shard at the same byte only."""
    a = Shard("a", (64, 2), (0, 0), torch.zeros(64, 2))
    b = Shard("b", (3,), (0,), torch.zeros(3))
    c = Shard("c", (), (), torch.ones(()))
    d = Shard("d", (900,), (0,), torch.full((900,), 0.5))
    upper = replace(a, shape=(128, 2))
    changes = [
        ([a, b, c], [replace(a, tensor=torch.arange(128.0).view(64, 2)), b, c]),
        ([a, b, c], [replace(a, name="z"), b, c]),
        ([a, b, c], [upper, b, c]),
        ([upper, b, c], [replace(upper, start=(64, 0)), b, c]),
        ([a, b, c], [replace(a, tensor=torch.arange(128, dtype=torch.int32).view(64, 2)), b, c]),
        ([a, b, c], [replace(a, tensor=torch.arange(128.0).view(2, 64).T), b, c]),  # not contiguous
        ([a, b, c], [replace(a, tensor=torch.arange(64.0).view(32, 2)), b]),
        ([a, b, c], [a, replace(b, name="a", tensor=torch.ones(2)), c]),
        ([a, b, c], [b, c]),
        ([b, c], []),
        ([b, c], [a, b, c, d]),  # the file grows
        ([a, b, c, d], [a, b, d, c]),
    ]
    versions = [shards for before, after in changes for shards in (*[before] * 4, *[after] * 3)]  # there are two files
    with closing(SharedMemory("run", 0, str(tmp_path))) as writer:
        for number, shards in enumerate(versions):
            part = writer.write(PolicyVersion(number), shards)
            assert part.fingerprints == tuple(map(fingerprint, shards)), number
            lying = SharedMemory.read_shards(part)
            assert [(each.name, each.shape, each.start) for each in lying] == [(s.name, s.shape, s.start) for s in shards], number
            assert all(torch.equal(there.tensor, s.tensor) for there, s in zip(lying, shards, strict=True)), number
            assert all(there.tensor.dtype == s.tensor.dtype for there, s in zip(lying, shards, strict=True)), number
