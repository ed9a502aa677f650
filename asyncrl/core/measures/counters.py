"""Counters that only grow: numbers, and structs and dictionaries of them.

Their growth between two readings and their sum over several places are computed entry by entry. An entry that a dictionary lacks
counts as 0.
"""

from typing import Any, Self, TypeVar, cast

import msgspec

Counted = TypeVar("Counted")


class Counters:
    """What makes a struct one of counters: ``+`` adds two, and the later reading less the earlier one is what they grew by."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        return added(self, other)

    def __sub__(self, before: Self) -> Self:
        return cast(Self, _combined(self, before, -1))


def added(one: Counted, other: Counted) -> Counted:
    """Return the sum of two readings. It shares nothing that can change with either."""
    return cast(Counted, _combined(one, other, 1))


def snapshot(counters: Counted) -> Counted:
    """Return a copy that later counting does not change."""
    return cast(Counted, _combined(counters, None, 1))


def _combined(one: Any, other: Any, sign: int) -> Any:
    """Return ``one + sign * other``; either may be None, which counts as 0."""
    known = one if one is not None else other
    if isinstance(known, msgspec.Struct):
        return type(known)(
            **{
                name: _combined(
                    None if one is None else getattr(one, name), None if other is None else getattr(other, name), sign
                )
                for name in known.__struct_fields__
            }
        )
    if isinstance(known, dict):
        one, other = one or {}, other or {}
        return {key: _combined(one.get(key), other.get(key), sign) for key in {**one, **other}}
    return (one or 0) + sign * (other or 0)
