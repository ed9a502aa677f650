"""Sweeps of recipes that nobody runs."""

import msgspec

from asyncrl.run.recipe.sweep_axes import Axis
from asyncrl.sweeps.sweep import RunSize, Setting, Sweep, settings_of


def made_sweep(
    *axes: Axis,
    seeds: tuple[int, ...] = (0, 1),
    settings: tuple[Setting, ...] | None = None,
    size: RunSize | None = None,
    **changes,
) -> Sweep:
    """A sweep of two settings and two seeds, unless something else is said; each run takes ``size``."""
    chosen = axes or (Axis("buffer.max_staleness", ("0", "4")),)
    known = {"recipe": "made", "fixed": (), "launched_in": "/", **changes}
    made = settings_of(chosen) if settings is None else settings
    made = tuple(msgspec.structs.replace(setting, size=size or RunSize()) for setting in made)
    return Sweep(axes=chosen, settings=made, seeds=seeds, **known)
