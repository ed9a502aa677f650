"""Sweeps of recipes that nobody runs."""

from asyncrl.run.recipe.sweep_axes import Axis
from asyncrl.sweeps.sweep import Setting, Sweep, settings_of


def made_sweep(*axes: Axis, seeds: tuple[int, ...] = (0, 1), settings: tuple[Setting, ...] | None = None, **changes) -> Sweep:
    """A sweep of two settings and two seeds, unless something else is said."""
    chosen = axes or (Axis("buffer.max_staleness", ("0", "4")),)
    known = {"recipe": "made", "fixed": (), "launched_in": "/", **changes}
    return Sweep(axes=chosen, settings=settings_of(chosen) if settings is None else settings, seeds=seeds, **known)
