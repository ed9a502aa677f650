"""Reads what a sweep is to vary, in Hydra's grammar: ``a,b,c``, ``choice(...)``, ``range(...)``, ``glob(...)`` and the like.

Hydra's own parser reads it. What always holds: a value of an axis, written after its key, is an override that stands for that one
value, whatever its text holds.
"""

import math
import random
from collections.abc import Sequence
from decimal import Decimal
from functools import cache

import msgspec
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep

from asyncrl.core.errors import RecipeError
from asyncrl.run.recipe.compose import composing, group_options, locate

MOST_VALUES = 400
"""The most values of one key."""


class Axis(msgspec.Struct, frozen=True):
    """A key, as it stands in overrides (``learner.lr``, ``+pace``), and the values that it is to have, in Hydra's grammar."""

    key: str
    values: tuple[str, ...]

    @property
    def shown(self) -> tuple[str, ...]:
        """The values as people read them, texts without quotes; all as they are written where two would look alike."""
        plain = tuple(map(_plain, self.values))
        return plain if len(set(plain)) == len(plain) else self.values


class RepeatedValue(RecipeError):
    """A key is given a value twice."""


class Varied(msgspec.Struct, frozen=True):
    """What overrides ask for: keys with several values, and overrides that hold for all."""

    axes: tuple[Axis, ...]
    fixed: tuple[str, ...]


def read_axes(recipe: str, overrides: Sequence[str]) -> Varied:
    """Tell the overrides apart that give a key several values.

    Args:
        recipe: path or name of the recipe, whose config groups ``glob`` chooses from.

    Raises:
        RepeatedValue: a key has the same value twice.
        RecipeError: an override cannot be read; it asks for an interval, which has no list of values; a key has no value, or too
            many; or a swept key is given twice.
    """
    axes: dict[str, Axis] = {}
    fixed: dict[str, list[str]] = {}
    with composing(locate(recipe)):
        for parsed in OverridesParser.create(GlobalHydra.instance().config_loader()).parse_overrides(list(overrides)):
            key = parsed.key_or_group
            if key in axes or (key in fixed and parsed.is_sweep_override()):
                raise RecipeError(key, "it is swept, and given a second time", "give its values once, as KEY=A,B,C")
            if parsed.is_sweep_override():
                axes[key] = Axis(parsed.get_key_element(), _values(parsed))
            else:
                fixed.setdefault(key, []).append(str(parsed.input_line))
    return Varied(tuple(axes.values()), tuple(text for texts in fixed.values() for text in texts))


@cache
def _plain(value: str) -> str:
    meant = OverridesParser.create().parse_override(f"key={value}").value()
    return meant if isinstance(meant, str) else value


def _values(parsed: Override) -> tuple[str, ...]:
    key, text = parsed.key_or_group, str(parsed.input_line)
    if not parsed.is_discrete_sweep():
        raise RecipeError(key, f"{text!r} names an interval, of which no list can be made", f"write {key}=range(1,9,2)")
    options = group_options(key)
    values: list[str] = []
    swept = parsed.value()
    for given in _range(key, text, swept) if isinstance(swept, RangeSweep) else parsed.sweep_string_iterator():
        value = given.lower() if given in ("True", "False") else given  # as recipes have it; a text has quotes
        if options and value.startswith("_"):  # Hydra's own option of every group, which glob(*) finds
            continue
        if value in values:
            raise RepeatedValue(key, f"{text!r} gives it the value {value} twice", "give each value once; --seeds repeats points")
        values.append(value)
        if len(values) > MOST_VALUES:
            raise _too_many(key, text)
    if not values:
        remedy = f"it chooses from a config group: {', '.join(options)}" if options else "give values, as KEY=A,B,C"
        raise RecipeError(key, f"{text!r} gives it no value", remedy)
    return tuple(values)


def _range(key: str, text: str, swept: RangeSweep) -> list[str]:
    """The values of a range, as a person would write them: sums of floats would give 0.30000000000000004."""
    given = (swept.start, swept.stop, swept.step)
    start, stop, step = (Decimal(repr(each)) for each in given)
    if not (start.is_finite() and stop.is_finite() and step.is_finite()):
        raise RecipeError(key, f"the range in {text!r} does not go from one number to another", "give three finite numbers")
    if not step:
        raise RecipeError(key, f"the range in {text!r} has steps of 0 and no end", "give its third number another value")
    count = max(0, math.ceil((stop - start) / step))
    if count > MOST_VALUES:
        raise _too_many(key, text)
    kind = int if all(isinstance(each, int) for each in given) else float
    values = [str(kind(start + place * step)) for place in range(count)]
    if swept.shuffle:
        random.shuffle(values)
    return values


def _too_many(key: str, text: str) -> RecipeError:
    return RecipeError(key, f"{text!r} gives it more than {MOST_VALUES} values", "give fewer")
