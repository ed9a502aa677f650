"""The fingerprint of weights: one 64-bit number that two sides compare to prove that they hold the same bits.

It is a sum over elements, modulo 2**64, so the parts of a model can be summed in any order and by any number of ranks. Each
element adds ``(bits + 1) * w``, where the odd weight ``w`` is the product of one pseudo-random odd number for each coordinate,
drawn from the tensor's name, the dimension and the element's index in the whole tensor. What always holds:

* it does not depend on how tensors are cut into shards, nor on the device;
* changing the bits of any one element changes it, for dtypes of up to 64 bits (an odd number is invertible modulo 2**64);
* permuting elements, swapping tensors, or leaving one out changes it, except with a probability of about 2**-64.

It detects mistakes, not malice: the weights are not secret.
"""

import hashlib
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from asyncrl.core.publication import Shard
from asyncrl.core.splitmix import STEP, mixed

if TYPE_CHECKING:
    from asyncrl.weights.row_copies import Rows

_DEVICE_CHUNK = 1 << 24
"""How many elements are widened to int64 at once on a GPU: enough to fill it."""
_ROUNDED_AT_ONCE = (1 << 15) - 1
"""How many elements are rounded to another dtype at once: a core's cache still has them when they are added up, and torch starts
no threads for so few."""

_INTEGER_OF_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Fingerprints:
    """Computes the fingerprints of rectangles where these lie: on a GPU, nothing waits for it before a result is asked for.

    Args:
        threads: how many threads share a rectangle on the CPU; by default as many as torch uses.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or torch.get_num_threads()
        self._found: list[int | torch.Tensor] = []

    def add(self, shard: Shard, into: torch.Tensor | None = None) -> None:
        """Compute the fingerprint of one more rectangle, and copy it on the way.

        Args:
            into: where to copy it, of its shape; rounded if the dtype is another one.

        Raises:
            ValueError: the tensor's elements are not 1, 2, 4 or 8 bytes wide.
        """
        _check_width(shard)
        if shard.tensor.device.type == "cpu":
            self._found.append(_on_cpu(shard, into, self._threads))
            return
        self._found.append(_on_device(shard))
        if into is not None:
            into.copy_(shard.tensor.detach(), non_blocking=True)

    def each(self) -> list[int]:
        """Return the fingerprint of each rectangle, in ``[0, 2**64)``. Waits for the devices."""
        waiting = [found for found in self._found if isinstance(found, torch.Tensor)]
        numbers = iter(torch.stack(waiting).tolist() if waiting else [])
        self._found = [next(numbers) if isinstance(found, torch.Tensor) else found for found in self._found]
        return [int(found) % 2**64 for found in self._found]

    def total(self) -> int:
        """Return their sum, in ``[0, 2**64)``. Waits for the devices."""
        return sum(self.each()) % 2**64


def fingerprint(shard: Shard) -> int:
    """Return the fingerprint of one rectangle, in ``[0, 2**64)``. Fingerprints of disjoint rectangles add up, modulo 2**64.

    Raises:
        ValueError: the tensor's elements are not 1, 2, 4 or 8 bytes wide.
    """
    found = Fingerprints()
    found.add(shard)
    return found.total()


def _check_width(shard: Shard) -> None:
    width = shard.tensor.element_size()
    if width not in _INTEGER_OF_WIDTH:
        raise ValueError(
            f"{shard.name}: elements of {shard.tensor.dtype} are {width} bytes wide; only 1, 2, 4 and 8 have a fingerprint"
        )


def _on_cpu(shard: Shard, into: torch.Tensor | None, threads: int) -> int:
    from asyncrl.weights.row_copies import sum_of_rows  # imports numba, which a host with a GPU need not have

    tensor = shard.tensor.detach()
    if tensor.numel() == 0:
        return 0
    if tensor.dim() == 0:
        tensor, into = tensor.reshape(1), None if into is None else into.reshape(1)
    if into is not None and into.dtype != tensor.dtype:
        return _rounded(shard, tensor, into)
    source = _rows(tensor) or _rows(tensor.contiguous())
    assert source is not None
    target = None if into is None else _rows(into)
    if into is not None and target is None:
        into.copy_(tensor)
    weights = _weights(shard.name, shard.start or (0,), tensor.shape)
    return weights.total + sum_of_rows(source, target, weights.rows, weights.columns, threads)


def _rounded(shard: Shard, tensor: torch.Tensor, into: torch.Tensor) -> int:
    """Copy ``tensor`` to another dtype, and return its fingerprint."""
    total, rows = 0, max(1, _ROUNDED_AT_ONCE * len(tensor) // tensor.numel())
    first, *rest = shard.start or (0,)
    for part, there in zip(tensor.split(rows), into.split(rows), strict=True):
        there.copy_(part)
        total += _on_cpu(Shard(shard.name, shard.shape, (first, *rest), part), None, 1)
        first += rows
    return total


def _rows(tensor: torch.Tensor) -> "Rows | None":
    """The rows of a tensor, all its dimensions but the last taken together; None if these are not evenly spaced."""
    from asyncrl.weights.row_copies import Rows

    bits = tensor.view(_INTEGER_OF_WIDTH[tensor.element_size()])
    if bits.is_contiguous():
        return Rows(bits.view(-1).numpy(), bits.shape[-1])
    if bits.dim() == 2 and bits.stride(1) == 1:
        reach = (len(bits) - 1) * bits.stride(0) + bits.shape[1]
        return Rows(bits.as_strided((reach,), (1,)).numpy(), bits.stride(0))
    return None


class _Weights(NamedTuple):
    """The numbers that the elements of a rectangle are multiplied with.

    Attributes:
        total: their sum.
        rows, columns: the factors of each row and of each column, int64.
    """

    total: int
    rows: np.ndarray
    columns: np.ndarray


@lru_cache(maxsize=1 << 17)  # a model publishes the same tensors again and again
def _weights(name: str, start: tuple[int, ...], shape: tuple[int, ...]) -> _Weights:
    numbers = [_coordinate_weights(name, axis, *place) for axis, place in enumerate(zip(start, shape, strict=True))]
    rows, columns = np.ones(1, np.uint64), numbers.pop()
    if numbers:
        rows = numbers[0] if len(numbers) == 1 else reduce(np.multiply.outer, numbers).ravel()
    total = int(rows.sum(dtype=np.uint64)) * int(columns.sum(dtype=np.uint64)) % 2**64
    return _Weights(total, rows.view(np.int64), columns.view(np.int64))


def _on_device(shard: Shard) -> torch.Tensor:
    """The fingerprint as an int64 scalar on the tensor's device, modulo 2**64: integers wrap around."""
    tensor = shard.tensor.detach()
    if tensor.numel() == 0:
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    bits = tensor.contiguous().view(_INTEGER_OF_WIDTH[tensor.element_size()])
    weights = [
        device_weights(shard.name, dimension, first, extent, tensor.device)
        for dimension, (first, extent) in enumerate(zip(shard.start or (0,), bits.shape, strict=True))
    ]
    # Contract the last dimension first: that is one multiply and one add per element, and what remains is small.
    parts = bits.reshape(-1, bits.shape[-1]).split(max(1, _DEVICE_CHUNK // bits.shape[-1]))
    total = torch.cat([(part.long() * weights[-1]).sum(-1) for part in parts]) + weights[-1].sum()
    for weight in reversed(weights[:-1]):
        total = (total.reshape(-1, len(weight)) * weight).sum(-1)
    return total.reshape(())


@lru_cache(maxsize=1 << 17)
def _coordinate_weights(name: str, dimension: int, first: int, extent: int) -> np.ndarray:
    """Return uint64 [extent], the odd numbers of indexes ``first`` onwards. Name and dimension choose the sequence's seed."""
    index = np.arange(first + 1, first + extent + 1, dtype=np.uint64)
    numbers: np.ndarray = mixed(index * STEP + _seed(name, dimension)) | 1
    return numbers


@lru_cache(maxsize=1 << 17)  # they take about a hundredth of the weights' memory, and most of the kernels of a fingerprint
def device_weights(name: str, dimension: int, first: int, extent: int, device: torch.device) -> torch.Tensor:
    """The numbers of :func:`_coordinate_weights`, computed on the device itself, so that nothing is copied there.

    Whoever asks first waits for the device before another stream asks, as :meth:`Fingerprints.each` does.
    """
    index = torch.arange(first + 1, first + extent + 1, device=device)
    number = index * _signed(STEP) + _signed(_seed(name, dimension))
    # `mixed`, in signed integers.
    number = (number ^ _shifted(number, 30)) * _signed(0xBF58476D1CE4E5B9)
    number = (number ^ _shifted(number, 27)) * _signed(0x94D049BB133111EB)
    return (number ^ _shifted(number, 31)) | 1


def _shifted(number: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift all 64 bits to the right; torch would repeat the sign."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    """The same 64 bits as a signed integer."""
    return number - (1 << 64) if number >> 63 else number


def _seed(name: str, dimension: int) -> int:
    digest = hashlib.blake2b(f"{dimension}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
