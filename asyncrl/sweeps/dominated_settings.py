"""Drops settings of a sweep that a plan finds dominated: another is at least as fast and as fresh, and clearly better in one.

What always holds: only settings are compared that learn the same, so that they differ in speed and staleness alone, and where the
other takes no more GPUs; of settings that drop each other, one is run.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.recipe.network import NetworkConfig
from asyncrl.core.recipe.schema import CheckpointConfig, DeadlinesConfig, Recipe, TrackingConfig
from asyncrl.core.recipe.weights import AutoWeightsConfig
from asyncrl.planning.grid import SAME
from asyncrl.planning.prediction import Prediction
from asyncrl.run.report.figures import number
from asyncrl.sweeps.sweep import Setting

SAME_AGE = 0.02
"""Mean staleness that differs by less is the same."""
_LEARNER = (
    *("data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel"),
    *("virtual_pipeline", "micro_batch_tokens", "recompute", "gpu"),
)
_GENERATORS = ("count", "max_running", "kv_cache_mb", "gpu_memory_share", "tensor_parallel", "data_parallel")
"""Keys that do not change what is learnt, of each pool."""

Config = TypeVar("Config", bound=msgspec.Struct)


def without_dominated(settings: Sequence[Setting], recipes: Sequence[Recipe]) -> tuple[Setting, ...]:
    """Say of each setting that is dominated why it is dropped.

    Args:
        settings: with what is foreseen of each; one of which nothing is, is never dropped.
        recipes: those of the settings.
    """
    kept = list(settings)
    foreseen = {place: each.foreseen for place, each in enumerate(settings) if each.foreseen is not None}
    for place in sorted(foreseen, key=lambda each: foreseen[each].trajectories_per_s.mean):
        for other in foreseen:
            if other == place or kept[other].dropped or not _alike(recipes[place], recipes[other]):
                continue
            if why := _why(foreseen[place], foreseen[other]):
                kept[place] = msgspec.structs.replace(kept[place], dropped=f"{kept[other].name} is foreseen to be {why}")
                break
    return tuple(kept)


def _why(this: Prediction, other: Prediction) -> str:
    """Say in what ``other`` is better than ``this`` without being worse in anything; empty if it is not."""
    speed, others = this.trajectories_per_s, other.trajectories_per_s
    age, fresher = this.staleness_mean, other.staleness_mean
    if other.gpus > this.gpus or others.mean < speed.mean * (1 - SAME) or fresher.mean > age.mean + SAME_AGE:
        return ""
    fast = f"{number(others.mean)} against {number(speed.mean)} trajectories/s"
    fresh = f"staleness {fresher.mean:.2f} against {age.mean:.2f}"
    if others.low > speed.high:
        return f"faster and no staler ({fast}, {fresh})"
    if fresher.high < age.low and age.mean - fresher.mean > SAME_AGE:
        return f"fresher and no slower ({fresh}, {fast})"
    return ""


def _alike(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes differ only in what decides about speed and staleness."""
    return _what_is_learnt(one) == _what_is_learnt(other)


def _what_is_learnt(recipe: Recipe) -> tuple[Recipe, Mapping[str, GeneratorsConfig]]:
    """The recipe, and its pools, without what does not change what is learnt, but for staleness: sizes, places, names."""
    learnt = msgspec.structs.replace(
        recipe,
        name="any",
        seed=0,
        run_dir="any",
        generators=GeneratorsConfig(),
        learner=_neutral(recipe.learner, _LEARNER),
        buffer=msgspec.structs.replace(recipe.buffer, max_staleness=0, pipeline_depth=0),
        weights=AutoWeightsConfig(),
        checkpoint=CheckpointConfig(),
        tracking=TrackingConfig(),
        network=NetworkConfig(),
        deadlines=DeadlinesConfig(),
    )
    return learnt, {name: _neutral(pool, _GENERATORS) for name, pool in recipe.generators.by_pool.items()}


def _neutral(section: Config, keys: Sequence[str]) -> Config:
    """The section with its defaults for some keys."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(type(section)) if field.name in keys}
    return msgspec.structs.replace(section, **defaults)
