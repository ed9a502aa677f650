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

_CPU_CHUNK, _DEVICE_CHUNK = 1 << 15, 1 << 24
"""How many elements are widened to int64 at once: on a CPU as many as fit a core's cache, elsewhere enough to fill the device."""

_INTEGER_OF_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(shard: Shard) -> int:
    """Return the fingerprint of one rectangle, in ``[0, 2**64)``. Fingerprints of disjoint rectangles add up, modulo 2**64.

    Raises:
        ValueError: the tensor's elements are not 1, 2, 4 or 8 bytes wide.
    """
    tensor = shard.tensor.detach()
    width = tensor.element_size()
    if width not in _INTEGER_OF_WIDTH:
        raise ValueError(
            f"{shard.name}: elements of {tensor.dtype} are {width} bytes wide; only 1, 2, 4 and 8 have a fingerprint"
        )
    if tensor.numel() == 0:
        return 0
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    bits = tensor.contiguous().view(_INTEGER_OF_WIDTH[width])
    start = shard.start or (0,)
    weights = [
        _coordinate_weights(shard.name, dimension, first, extent, tensor.device)
        for dimension, (first, extent) in enumerate(zip(start, bits.shape, strict=True))
    ]
    # Contract the last dimension first: that is one multiply and one add per element, and what remains is small.
    rows = bits.reshape(-1, bits.shape[-1])
    chunk = max(1, (_CPU_CHUNK if rows.device.type == "cpu" else _DEVICE_CHUNK) // rows.shape[1])
    total = torch.cat([(part.long() * weights[-1]).sum(-1) for part in rows.split(chunk)]) + weights[-1].sum()
    for weight in reversed(weights[:-1]):
        total = (total.reshape(-1, len(weight)) * weight).sum(-1)
    return int(total) % 2**64


@lru_cache(maxsize=1024)  # a model publishes the same tensors again and again
def _coordinate_weights(name: str, dimension: int, first: int, extent: int, device: torch.device) -> torch.Tensor:
    """Return int64 [extent], the odd numbers of indexes ``first`` onwards. Name and dimension choose the seed of the sequence."""
    digest = hashlib.blake2b(f"{dimension}:{name}".encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little")
    index = np.arange(first + 1, first + extent + 1, dtype=np.uint64)
    numbers = mixed(index * STEP + seed) | 1
    return torch.from_numpy(numbers.view(np.int64)).to(device)
