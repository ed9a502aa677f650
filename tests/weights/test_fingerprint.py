import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.publication import Shard
from asyncrl.weights.fingerprint import Fingerprints, _coordinate_weights, _on_device, device_weights, fingerprint

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float64]


def whole(name: str, tensor: torch.Tensor) -> Shard:
    return Shard(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor)


def random_tensor(shape: list[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 50).to(dtype)


def cut(shard: Shard, dimension: int, at: int) -> tuple[Shard, Shard]:
    first, second = shard.tensor.tensor_split([at], dimension)
    moved = tuple(start + (at if d == dimension else 0) for d, start in enumerate(shard.start))
    return Shard(shard.name, shard.shape, shard.start, first), Shard(shard.name, shard.shape, moved, second)


@settings(max_examples=60)
@given(
    data=st.data(),
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_is_independent_of_how_a_tensor_is_cut(data: st.DataObject, shape: list[int], dtype: torch.dtype, seed: int) -> None:
    shards = [whole("w", random_tensor(shape, dtype, seed))]
    expected = fingerprint(shards[0])
    for _ in range(data.draw(st.integers(1, 4))):
        shard = shards.pop(data.draw(st.integers(0, len(shards) - 1)))
        dimension = data.draw(st.integers(0, len(shape) - 1))
        shards.extend(cut(shard, dimension, data.draw(st.integers(0, shard.tensor.shape[dimension]))))
    assert sum(map(fingerprint, shards)) % 2**64 == expected


@settings(max_examples=60)
@given(shape=st.lists(st.integers(1, 6), min_size=1, max_size=3), dtype=st.sampled_from(DTYPES), data=st.data())
def test_every_bit_counts(shape: list[int], dtype: torch.dtype, data: st.DataObject) -> None:
    tensor = random_tensor(shape, dtype, 1)
    changed = tensor.clone()
    raw = changed.view(torch.uint8).view(-1)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert fingerprint(whole("w", tensor)) != fingerprint(whole("w", changed))


@settings(max_examples=60)
@given(data=st.data(), shape=st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_sees_permutations(data: st.DataObject, shape: list[int]) -> None:
    tensor = random_tensor(shape, torch.float32, 2)
    order = data.draw(st.permutations(range(tensor.numel())))
    permuted = tensor.view(-1)[list(order)].view(shape)
    same = torch.equal(tensor, permuted)
    assert (fingerprint(whole("w", tensor)) == fingerprint(whole("w", permuted))) is same


def test_sees_swapped_transposed_and_missing_tensors() -> None:
    one, other = random_tensor([4, 4], torch.float32, 3), random_tensor([4, 4], torch.float32, 4)
    right = fingerprint(whole("a", one)) + fingerprint(whole("b", other))
    swapped = fingerprint(whole("a", other)) + fingerprint(whole("b", one))
    assert len({right % 2**64, swapped % 2**64, fingerprint(whole("a", one))}) == 3
    assert fingerprint(whole("a", one)) != fingerprint(whole("a", one.T))
    assert fingerprint(whole("zeros", torch.zeros(3))) != 0


def test_is_one_known_number() -> None:
    """The two sides may run different releases of torch: the number is part of the protocol."""
    tensor = torch.arange(6, dtype=torch.float32).view(2, 3)
    assert fingerprint(whole("model.norm.weight", tensor)) == 0xF5D69A2800180B92
    assert fingerprint(whole("scalar", torch.tensor(1.0))) == fingerprint(Shard("scalar", (1,), (0,), torch.tensor([1.0])))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES)
def test_is_the_same_on_a_gpu(dtype: torch.dtype) -> None:
    tensor = random_tensor([700, 3001], dtype, 5)
    assert fingerprint(whole("w", tensor)) == fingerprint(whole("w", tensor.cuda()))


def test_refuses_wide_elements() -> None:
    with pytest.raises(ValueError, match="complex128 are 16 bytes"):
        fingerprint(whole("w", torch.zeros(2, dtype=torch.complex128)))


@given(name=st.text(min_size=1), dimension=st.integers(0, 3), first=st.integers(0, 2**40), extent=st.integers(1, 50))
def test_a_device_computes_the_numbers_that_a_cpu_does(name: str, dimension: int, first: int, extent: int) -> None:
    cpu = torch.device("cpu")
    expected = _coordinate_weights(name, dimension, first, extent)
    assert (device_weights(name, dimension, first, extent, cpu).numpy().view(np.uint64) == expected).all()


def test_a_total_is_the_sum_of_each() -> None:
    shards = [whole(name, random_tensor([5, 3], dtype, 1)) for name, dtype in zip("abcde", DTYPES, strict=True)]
    found = Fingerprints()
    assert found.total() == 0
    for shard in [*shards, whole("empty", torch.empty(0, 2)), whole("scalar", torch.tensor(3.0))]:
        found.add(shard)
    expected = [*map(fingerprint, shards), 0, fingerprint(whole("scalar", torch.tensor(3.0)))]
    assert found.each() == expected
    assert found.total() == sum(expected) % 2**64


SHAPES = [(3,), (200, 64), (700, 1024), (2, 5, 7), (1100, 700), (3, 129)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_loop_on_a_cpu_gives_the_number_that_a_device_gives(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    shard = whole("w", random_tensor(list(shape), dtype, 3))
    assert fingerprint(shard) == int(_on_device(shard)) % 2**64


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_copied_on_the_way_is_the_same(dtype: torch.dtype, shape: tuple[int, ...], threads: int) -> None:
    """Large ones go past the caches, where they lie at a cache line; those with a gap between their rows, too."""
    shard = whole("w", random_tensor(list(shape), dtype, 3))
    wider = torch.zeros(*shape[:-1], shape[-1] + 64, dtype=dtype)
    targets = [torch.zeros(shape, dtype=dtype), wider[..., 1:-63], wider[..., -shape[-1] :]]
    for into in targets:
        found = Fingerprints(threads=threads)
        found.add(shard, into)
        assert torch.equal(into, shard.tensor)
        assert found.total() == fingerprint(shard)
    assert not wider[..., 0].any()


def test_what_is_rounded_on_the_way_has_the_fingerprint_of_what_was_read() -> None:
    for shape in [(5,), (400, 300), (3, 200, 100)]:
        shard = whole("w", random_tensor(list(shape), torch.float32, 3))
        into, found = torch.zeros(shape, dtype=torch.bfloat16), Fingerprints(threads=2)
        found.add(shard, into)
        assert torch.equal(into, shard.tensor.bfloat16())
        assert found.total() == fingerprint(shard)


def test_a_part_between_other_columns_has_the_number_of_a_copy_of_it() -> None:
    tensor = random_tensor([50, 200], torch.bfloat16, 3)
    part, into = Shard("w", (50, 200), (0, 70), tensor[:, 70:170]), torch.zeros(50, 100, dtype=torch.bfloat16)
    found = Fingerprints()
    found.add(part, into)
    assert torch.equal(into, part.tensor)
    assert found.total() == fingerprint(Shard("w", (50, 200), (0, 70), part.tensor.clone()))
