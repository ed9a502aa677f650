"""Reads the reward that a function of the user's returned: a number, or several by name."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from asyncrl.core.plug_ins.users_error import WrongResult
from asyncrl.core.reward_range import LARGEST_REWARD, is_reward
from asyncrl.core.text import short


async def returned_reward(function: Callable[..., Any], returned: object) -> tuple[dict[str, float], float]:
    """Return the named rewards that ``function`` returned, if there are any, and their sum or the only reward.

    Args:
        returned: a number of any library, or a mapping of names to numbers; or what is to be waited for one of these.

    Raises:
        WrongResult: it is something else, or a number that cannot be trained on.
    """
    value = await returned if inspect.isawaitable(returned) else returned
    try:
        named = {name: _number(one) for name, one in value.items()} if isinstance(value, Mapping) else {}
        total = float(sum(named.values())) if isinstance(value, Mapping) else _number(value)
    except (TypeError, ValueError, OverflowError):
        named, total = {}, math.nan
    if not all(map(is_reward, [*named.values(), total])):
        expected = (
            f"it must return a finite number, or a dictionary of finite numbers by name, in size at most {LARGEST_REWARD:g}"
        )
        raise WrongResult(function, f"returned {short(value)}; {expected}")
    return named, total


def _number(value: Any) -> float:
    """Return a number of any library as Python's.

    Raises:
        TypeError, ValueError, OverflowError: it is none. A text that reads as a number is none either: it may be the answer
            that was to be judged.
    """
    if isinstance(value, str | bytes | bytearray):
        raise TypeError("a text")
    return float(value)
