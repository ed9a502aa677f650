"""The knobs that may be turned while a run trains: how they are named, read from a recipe and written into one.

What always holds: turning one changes how fast a run is and how stale its tokens are, never what a training step computes of
its batch.
"""

from collections.abc import Mapping

import msgspec

from asyncrl.core.recipe.generators import MAIN_POOL
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.tune import DEPTH, RUNNING

Setting = Mapping[str, int]
"""The value of each knob, by its name."""


def pool_of(knob: str) -> str | None:
    """The pool whose engines a knob counts; None for any other key."""
    match knob.split("."):
        case ["generators", "count"]:
            return MAIN_POOL
        case ["generators", "pools", name, "count"]:
            return name
    return None


def knob_of(pool: str) -> str:
    """The knob that counts the engines of a pool."""
    return "generators.count" if pool == MAIN_POOL else f"generators.pools.{pool}.count"


def setting_of(recipe: Recipe) -> dict[str, int]:
    """The values that a recipe begins with, of the knobs that it may turn."""
    return {} if recipe.tune is None else {knob: value_of(recipe, knob) for knob in recipe.tune.knobs}


def value_of(recipe: Recipe, knob: str) -> int:
    """The value that a recipe begins with."""
    if knob == DEPTH:
        return recipe.buffer.first_depth
    if knob == RUNNING:
        return recipe.generators.max_running
    pool = pool_of(knob)
    assert pool is not None, knob
    return recipe.generators.by_pool[pool].count


def with_setting(recipe: Recipe, setting: Setting) -> Recipe:
    """Return a recipe with other values of some knobs."""
    buffer, generators = recipe.buffer, recipe.generators
    sizes = {name: pool.count for name, pool in generators.by_pool.items()}
    for knob, value in setting.items():
        if knob == DEPTH:
            buffer = msgspec.structs.replace(buffer, pipeline_depth=value)
        elif knob == RUNNING:
            generators = msgspec.structs.replace(generators, max_running=value)
        elif (pool := pool_of(knob)) is not None:
            sizes[pool] = value
    return msgspec.structs.replace(recipe, buffer=buffer, generators=generators.resized(sizes))


def bounds_widened(recipe: Recipe) -> Recipe:
    """Return a recipe whose bounds of ``tune`` hold the values that it begins with, though somebody has set others."""
    if recipe.tune is None:
        return recipe
    values = setting_of(recipe)
    knobs = {knob: (min(least, values[knob]), max(most, values[knob])) for knob, (least, most) in recipe.tune.knobs.items()}
    return msgspec.structs.replace(recipe, tune=msgspec.structs.replace(recipe.tune, knobs=knobs))


def largest_running(recipe: Recipe) -> Recipe:
    """Return a recipe whose engines are made for as many episodes as they may ever play at once."""
    bounds = recipe.tune.knobs.get(RUNNING) if recipe.tune is not None else None
    return recipe if bounds is None else with_setting(recipe, {RUNNING: bounds[1]})
