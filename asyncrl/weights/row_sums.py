"""Sums up the rows of integers with weights, which is nearly all the work of a fingerprint on a CPU.

What always holds: the result does not depend on whether it is computed by torch, or by a compiled loop, which is ten times as
fast (torch widens each element in memory). Compiling takes seconds and 100 MB of memory, so it is done only for large models.
"""

import threading
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch

_TORCH_ELEMENTS = 1 << 15
"""How many elements torch widens to int64 at once: as many as fit a core's cache."""
_BYTES_OF_A_THREAD = 1 << 20
"""With less to do than this, another thread is not worth its start."""


def row_sums(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return ``(rows * weights).sum(-1)`` as int64, modulo 2**64, computed by torch.

    Args:
        rows: integers [R, C] on the CPU.
        weights: int64 [C].
    """
    return torch.cat([(part.long() * weights).sum(-1) for part in rows.split(max(1, _TORCH_ELEMENTS // rows.shape[1]))])


def compiled_row_sums(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return what :func:`row_sums` does, by a compiled loop, with as many threads as torch has; for contiguous ``rows``."""
    sums, loop = np.empty(len(rows), np.int64), _compiled()
    numbers, factors = rows.numpy(), weights.numpy()
    count = max(1, min(torch.get_num_threads(), len(rows), rows.nbytes // _BYTES_OF_A_THREAD))
    bounds = [len(rows) * part // count for part in range(count + 1)]
    others = [
        threading.Thread(target=loop, args=(numbers[begin:end], factors, sums[begin:end]), name="fingerprint")
        for begin, end in pairwise(bounds[1:])
    ]
    for thread in others:
        thread.start()
    loop(numbers[: bounds[1]], factors, sums[: bounds[1]])
    for thread in others:
        thread.join()
    return torch.from_numpy(sums)


def is_compiled() -> bool:
    """Whether this process has the compiled loop already."""
    return _compiled.cache_info().currsize > 0


@lru_cache(maxsize=1)
def _compiled() -> Callable[..., None]:
    import numba  # takes most of a second, and comes with vLLM

    @numba.njit(nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
    def add_up(numbers: np.ndarray, factors: np.ndarray, sums: np.ndarray) -> None:
        for row in range(numbers.shape[0]):
            total = np.int64(0)
            for column in range(numbers.shape[1]):
                total += np.int64(numbers[row, column]) * factors[column]
            sums[row] = total

    compiled: Callable[..., None] = add_up
    return compiled
