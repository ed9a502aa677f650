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
from functools import lru_cache

import numpy as np
import torch

from asyncrl.core.publication import Shard
from asyncrl.core.splitmix import STEP, mixed
from asyncrl.weights.row_sums import compiled_row_sums, is_compiled, row_sums

_DEVICE_CHUNK = 1 << 24
"""How many elements are widened to int64 at once on a GPU: enough to fill it."""
_LARGE_BYTES = 64 << 20
"""Once a sum has more bytes on the CPU than this, a loop is compiled, and used from then on."""

_INTEGER_OF_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class FingerprintSum:
    """Adds up the fingerprints of rectangles where these lie: on a GPU, nothing waits for it before :meth:`total`."""

    def __init__(self) -> None:
        self._cpu_bytes = 0
        self._sums: dict[torch.device, torch.Tensor] = {}

    def add(self, shard: Shard) -> None:
        """Add the fingerprint of one rectangle.

        Raises:
            ValueError: the tensor's elements are not 1, 2, 4 or 8 bytes wide.
        """
        device = shard.tensor.device
        if device not in self._sums:
            self._sums[device] = torch.zeros((), dtype=torch.int64, device=device)
        if device.type == "cpu":
            self._cpu_bytes += shard.tensor.nbytes
        self._sums[device] += _fingerprint(shard, compiled=is_compiled() or self._cpu_bytes > _LARGE_BYTES)

    def total(self) -> int:
        """Return the sum, in ``[0, 2**64)``. Waits for the devices."""
        return sum(int(each) for each in self._sums.values()) % 2**64


def fingerprint(shard: Shard) -> int:
    """Return the fingerprint of one rectangle, in ``[0, 2**64)``. Fingerprints of disjoint rectangles add up, modulo 2**64.

    Raises:
        ValueError: the tensor's elements are not 1, 2, 4 or 8 bytes wide.
    """
    return int(_fingerprint(shard, compiled=False)) % 2**64


def _fingerprint(shard: Shard, *, compiled: bool) -> torch.Tensor:
    """The fingerprint as an int64 scalar on the tensor's device, modulo 2**64: integers wrap around.

    Args:
        compiled: on the CPU, use a compiled loop.
    """
    tensor = shard.tensor.detach()
    width = tensor.element_size()
    if width not in _INTEGER_OF_WIDTH:
        raise ValueError(
            f"{shard.name}: elements of {tensor.dtype} are {width} bytes wide; only 1, 2, 4 and 8 have a fingerprint"
        )
    if tensor.numel() == 0:
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    bits = tensor.contiguous().view(_INTEGER_OF_WIDTH[width])
    start = shard.start or (0,)
    on_cpu = tensor.device.type == "cpu"
    numbers = _coordinate_weights if on_cpu else device_weights
    weights = [
        numbers(shard.name, dimension, first, extent, tensor.device)
        for dimension, (first, extent) in enumerate(zip(start, bits.shape, strict=True))
    ]
    # Contract the last dimension first: that is one multiply and one add per element, and what remains is small.
    rows = bits.reshape(-1, bits.shape[-1])
    add_up = (compiled_row_sums if compiled else row_sums) if on_cpu else _device_row_sums
    total = add_up(rows, weights[-1]) + weights[-1].sum()
    for weight in reversed(weights[:-1]):
        total = (total.reshape(-1, len(weight)) * weight).sum(-1)
    return total.reshape(())


def _device_row_sums(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    parts = rows.split(max(1, _DEVICE_CHUNK // rows.shape[1]))
    return torch.cat([(part.long() * weights).sum(-1) for part in parts])


@lru_cache(maxsize=1024)  # a model publishes the same tensors again and again
def _coordinate_weights(name: str, dimension: int, first: int, extent: int, device: torch.device) -> torch.Tensor:
    """Return int64 [extent], the odd numbers of indexes ``first`` onwards. Name and dimension choose the seed of the sequence."""
    index = np.arange(first + 1, first + extent + 1, dtype=np.uint64)
    numbers = mixed(index * STEP + _seed(name, dimension)) | 1
    return torch.from_numpy(numbers.view(np.int64)).to(device)


def device_weights(name: str, dimension: int, first: int, extent: int, device: torch.device) -> torch.Tensor:
    """The numbers of :func:`_coordinate_weights`, computed on the device itself, so that nothing is copied there."""
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
