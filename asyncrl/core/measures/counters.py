"""Counters that only grow: numbers, and structs and dictionaries of them.

Their growth between two readings and their sum over several places are computed entry by entry. An entry that a dictionary lacks
counts as 0.
"""

from typing import Any, TypeVar, cast

import msgspec

Counters = TypeVar("Counters")


def added(one: Counters, other: Counters) -> Counters:
    """Return the sum of two readings. It shares nothing that can change with either."""
    return cast(Counters, _combined(one, other, 1))


def grown(before: Counters, after: Counters) -> Counters:
    """Return how much the counters grew from ``before`` to ``after``, which has all entries of ``before``."""
    return cast(Counters, _combined(after, before, -1))


def snapshot(counters: Counters) -> Counters:
    """Return a copy that later counting does not change."""
    return cast(Counters, _combined(counters, None, 1))


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
