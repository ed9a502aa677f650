"""Counts errors of the user's code by kind and place."""

import logging
from collections.abc import Iterable
from typing import Any

from asyncrl.core.plug_ins.users_error import UsersError

logger = logging.getLogger(__name__)

MOST_PLACES = 50
"""How many different errors are counted. More than that are a flood, of which the first tell enough."""


class CountedError(UsersError, frozen=True):
    """An error of the user's code, and how often it occurred.

    Attributes:
        times: how often an error of this kind came from this place.
        example: what it first occurred with, e.g. ``task train-17``.
    """

    times: int = 1
    example: str = ""

    @property
    def sentence(self) -> str:
        """One line without the count, e.g. ``reward() of my_env.py:41 raised KeyError: 'answer'``."""
        return super().__str__()

    def __str__(self) -> str:
        """One line, e.g. ``reward() of my_env.py:41 raised KeyError: 'answer' (12 times)``."""
        return f"{self.sentence} ({'once' if self.times == 1 else f'{self.times:,} times'})"


class ErrorCounts:
    """Errors of the user's code so far. Logs the first from each place with its traceback, and later its 10th, 100th, ..."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, str, int, str], CountedError] = {}

    def count(self, error: UsersError, example: str) -> None:
        """Count an error that occurred with ``example``."""
        key = _key(error)
        before = self._counted.get(key)
        if before is None:
            if len(self._counted) == MOST_PLACES:
                return
            logger.warning("%s", f"{example}: {error}\n{error.traceback}".rstrip())
        times = 1 if before is None else before.times + 1
        self._counted[key] = CountedError(**_fields(before or error), times=times, example=before.example if before else example)
        if times > 1 and str(times).strip("0") == "1":
            logger.warning("for the %dth time: %s", times, error)

    @property
    def counted(self) -> tuple[CountedError, ...]:
        """All errors, in the order in which they first occurred."""
        return tuple(self._counted.values())


def merged(counted: Iterable[CountedError]) -> tuple[CountedError, ...]:
    """Add up counts of several counters, such as those of several processes."""
    sums: dict[tuple[str, str, int, str], CountedError] = {}
    for each in counted:
        known = sums.get(key := _key(each))
        sums[key] = (
            each if known is None else CountedError(**_fields(known), times=known.times + each.times, example=known.example)
        )
    return tuple(sums.values())


def at_least(counted: Iterable[CountedError], before: Iterable[CountedError]) -> tuple[CountedError, ...]:
    """Return the errors of both, each with the higher of its two counts."""
    highest = {_key(each): each for each in before}
    for each in counted:
        known = highest.get(key := _key(each))
        if known is None or known.times < each.times:
            highest[key] = each
    return tuple(highest.values())


def _key(error: UsersError) -> tuple[str, str, int, str]:
    return error.method, error.file, error.line, error.kind


def _fields(error: UsersError) -> dict[str, Any]:
    return {name: getattr(error, name) for name in UsersError.__struct_fields__}
