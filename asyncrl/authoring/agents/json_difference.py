"""Says where two JSON values begin to differ, and how."""

from typing import Any

from asyncrl.authoring.agents.conversations import at_difference
from asyncrl.core.text import short


def first_difference(was: Any, now: Any, place: str = "") -> str | None:
    """Return the first difference of two values in words; None if there is none.

    Args:
        place: where the values stand.
    """
    if was == now and type(was) is type(now):
        return None
    match was, now:
        case dict(), dict():
            inner = (first_difference(was[name], now[name], f"{place}.{name}") for name in was if name in now)
            if found := next(filter(None, inner), None):
                return found
            gone, new = [name for name in was if name not in now], [name for name in now if name not in was]
            if gone:
                return f"{_named(place, gone[0])} is left out, and was {short(was[gone[0]])}"
            return f"{_named(place, new[0])} is new: {short(now[new[0]])}"
        case list(), list():
            inner = (first_difference(a, b, f"{place}[{index}]") for index, (a, b) in enumerate(zip(was, now, strict=False)))
            if found := next(filter(None, inner), None):
                return found
            more = (now if len(now) > len(was) else was)[min(len(was), len(now))]
            what = "the first that is new" if len(now) > len(was) else "the first that is left out"
            return f"{place.lstrip('.')} has {len(now)} items, and had {len(was)}; {what} is {short(more)}"
        case str(), str():
            return f"{place.lstrip('.')}: {at_difference(was, now)}"
        case _:
            return f"{place.lstrip('.') or 'the request'} is {short(now)}, and was {short(was)}"


def _named(place: str, name: str) -> str:
    return f"{place}.{name}".lstrip(".")
