"""The experts that an engine sent tokens to, in as few bits as keep each token on whole bytes.

What always holds: what is unpacked is what was packed, and the bytes of two stretches of tokens end to end are those of both.
"""

from collections.abc import Sequence

import msgspec
import numpy as np


class RoutedExperts(msgspec.Struct, frozen=True, array_like=True):
    """The experts of the first tokens of a trajectory, in each layer that has experts.

    Those of a token are of its first pass through the engine, with which the tokens after it were sampled. The last token of a
    turn passes through it at the beginning of the next turn, so there are none yet of the last token of a trajectory.

    Attributes:
        experts: experts of a layer.
        layers: layers that have experts.
        per_token: experts that a token goes to in a layer.
        packed: uint8 [tokens * bytes of a token]; a token's experts, layer by layer, in the order in which the engine lists them.
    """

    experts: int
    layers: int
    per_token: int
    packed: np.ndarray

    @classmethod
    def pack(cls, chosen: np.ndarray, experts: int) -> "RoutedExperts":
        """Pack the numbers of experts, [tokens, layers, per_token], of layers with ``experts`` experts."""
        tokens, layers, per_token = chosen.shape
        bits = _bits(experts)
        numbers = chosen.reshape(tokens, layers * per_token)
        if bits == 16:
            packed = np.ascontiguousarray(numbers, "<u2").view(np.uint8)
        elif bits == 8:
            packed = numbers.astype(np.uint8)
        else:
            each = 8 // bits
            padded = np.zeros((tokens, -(-numbers.shape[1] // each) * each), np.uint8)
            padded[:, : numbers.shape[1]] = numbers
            shifted = padded.reshape(tokens, -1, each) << (bits * np.arange(each, dtype=np.uint8))
            packed = np.bitwise_or.reduce(shifted, axis=2)
        return cls(experts, layers, per_token, packed.reshape(-1))

    @property
    def token_bytes(self) -> int:
        """Bytes of a token."""
        return -(-self.layers * self.per_token * _bits(self.experts) // 8)

    def __len__(self) -> int:
        return len(self.packed) // self.token_bytes

    def chosen(self) -> np.ndarray:
        """Return int16 [tokens, layers, per_token], the numbers of the experts."""
        bits, count = _bits(self.experts), self.layers * self.per_token
        rows = self.packed.reshape(-1, self.token_bytes)
        if bits == 16:
            numbers = np.ascontiguousarray(rows).view("<u2")
        elif bits == 8:
            numbers = rows
        else:
            shifts = bits * np.arange(8 // bits, dtype=np.uint8)
            numbers = ((rows[:, :, None] >> shifts) & ((1 << bits) - 1)).reshape(len(rows), -1)[:, :count]
        return numbers.astype(np.int16).reshape(-1, self.layers, self.per_token)

    def first(self, tokens: int) -> np.ndarray:
        """Return the bytes of the first ``tokens`` tokens."""
        return self.packed[: tokens * self.token_bytes]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Experts of a layer, layers with experts, and experts that a token goes to in each."""
        return self.experts, self.layers, self.per_token


def joined(parts: Sequence[RoutedExperts]) -> RoutedExperts | None:
    """Return the experts of stretches of tokens that follow each other; None if there is no stretch."""
    if not parts:
        return None
    return msgspec.structs.replace(parts[0], packed=np.concatenate([part.packed for part in parts]))


def _bits(experts: int) -> int:
    """Return the bits of an expert's number: a power of two, so that numbers do not cross the bounds of bytes."""
    return next(bits for bits in (1, 2, 4, 8, 16) if experts <= 1 << bits)
