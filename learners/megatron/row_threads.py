"""Divides work among as many threads as torch uses."""

import threading
from collections.abc import Callable
from itertools import pairwise

import torch

_LEAST_NUMBERS = 1 << 16
"""Numbers of a thread's part: with fewer, its start would take longer than it saves."""


def in_threads(count: int, numbers: int, compute: Callable[[int, int, int], None]) -> None:
    """Call ``compute`` for parts of ``count`` items, each in a thread of its own, with the part's number, its first item and the
    one after its last. Code that lets other threads of Python run is needed for a gain.

    Args:
        numbers: how many numbers all items have; for few, there is one part.
    """
    parts = max(1, min(torch.get_num_threads(), count, numbers // _LEAST_NUMBERS))
    (first, *others) = enumerate(pairwise(count * part // parts for part in range(parts + 1)))
    threads = [threading.Thread(target=compute, args=(number, *bounds), name="rows") for number, bounds in others]
    for thread in threads:
        thread.start()
    compute(first[0], *first[1])
    for thread in threads:
        thread.join()
