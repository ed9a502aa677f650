"""A seeded shuffle of ``range(size)``, computed position by position: no list is held, and a new epoch costs nothing.

A Feistel network over pairs (left, right) of digits in base ceil(sqrt(size)) is a bijection whatever its round function is
(Luby and Rackoff 1988); walking its cycle until a number falls below ``size`` restricts it to the range (Black and Rogaway
2002). The base is the smallest that covers the range, so one step is almost always enough.
"""

from hashlib import blake2b
from math import isqrt
from struct import unpack

from asyncrl.core.splitmix import mixed

_ROUNDS = 8


class Permutation:
    """A shuffle of ``range(size)``: ``permutation[position]`` is the number at that position.

    Args:
        size: size of the range, at least 1.
        key: equal keys give equal orders.
    """

    def __init__(self, size: int, key: str) -> None:
        self._size = size
        self._base = isqrt(size - 1) + 1
        self._round_keys: tuple[int, ...] = unpack(f"<{_ROUNDS}Q", blake2b(key.encode(), digest_size=8 * _ROUNDS).digest())

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self._size:
            raise IndexError(f"position {position} of a permutation of {self._size}")
        number = self._step(position)
        while number >= self._size:
            number = self._step(number)
        return number

    def _step(self, number: int) -> int:
        left, right = divmod(number, self._base)
        for key in self._round_keys:
            left, right = right, (left + mixed(right ^ key)) % self._base
        return left * self._base + right
