"""Plans a replay: which steps are computed in one go, by which recipe, on how many ranks of this machine.

What always holds: each step is computed by the recipe that it was trained by, even if a resume has changed that since; a leg
begins where the one before has ended; the run's own layout is taken wherever it fits.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from asyncrl.core.batch import Batch, BatchEpisode
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.replay.kept_steps import KeptSteps
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.compose import compose

_PLACES = ("deadlines", "model.path")
"""Keys that say where and how long a replay computes."""
_LAYOUT = (
    "tensor_parallel", "pipeline_parallel", "data_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel",
    "virtual_pipeline", "recompute", "micro_batch_tokens", "dtype", "fp8",
)  # fmt: skip
"""Keys of ``learner`` that change what is computed by rounding alone."""


class Row(msgspec.Struct, frozen=True):
    """What ``--without`` names: a group, a sample of it, or one trajectory of that."""

    group: int
    sample: int | None = None
    part: int | None = None

    def __str__(self) -> str:
        return "/".join(str(number) for number in (self.group, self.sample, self.part) if number is not None)

    def holds(self, episode: BatchEpisode) -> bool:
        """Whether an episode is, or has, what is named."""
        group, sample = episode.name
        return group == self.group and self.sample in (None, sample) and (self.part or 0) < len(episode.trajectories)


class Leg(msgspec.Struct, frozen=True):
    """Batches that are trained one after the other by one recipe."""

    recipe: Recipe
    batches: tuple[Batch, ...]


def is_about_computing(override: str) -> bool:
    """Whether an override only says where and how something is computed, so that the result is the run's, up to rounding.

    Raises:
        RecipeError: a replay does not depend on the key.
    """
    key = override.lstrip("~+").partition("=")[0].strip()
    if _within(key, _PLACES) or key in {f"learner.{name}" for name in _LAYOUT}:
        return True
    if key == "steps" or _within(key, ("algorithm", "learner")):
        return False
    problem = "has no effect on a replay, which trains what was sampled"
    raise RecipeError(key, problem, "change keys of algorithm or learner, or model.path where the model lies elsewhere here")


def _within(key: str, sections: Sequence[str]) -> bool:
    """Whether a key is one of the sections, or in one."""
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def legs(kept: KeptSteps, batches: Sequence[Batch], overrides: Sequence[str], machine: Machine) -> list[Leg]:
    """Divide steps into legs of one recipe each, with ``overrides`` made to every one."""
    known: dict[str, Recipe] = {}
    found: list[Leg] = []
    for batch in batches:
        recipe = trained_by(kept, batch.version + 1, overrides, known)
        if found and _about_training(found[-1].recipe) == _about_training(recipe):
            found[-1] = msgspec.structs.replace(found[-1], batches=(*found[-1].batches, batch))
        else:
            found.append(Leg(recipe, (batch,)))
    return [msgspec.structs.replace(leg, recipe=fitted(leg.recipe, machine, overrides)) for leg in found]


def trained_by(kept: KeptSteps, step: int, overrides: Sequence[str] = (), known: dict[str, Recipe] | None = None) -> Recipe:
    """Return the recipe that a step was trained by, with ``overrides``; ``known`` keeps what was composed before, by its text."""
    known = {} if known is None else known
    text = kept.record.recipe_of(step) or kept.folder.recipe.read_text(encoding="utf-8")
    if text not in known:
        with TemporaryDirectory(prefix="asyncrl-recipe-") as place:
            path = Path(place, "recipe.yaml")
            path.write_text(text, encoding="utf-8")
            known[text] = compose(str(path), overrides)
    return known[text]


def _about_training(recipe: Recipe) -> tuple[Any, ...]:
    return recipe.algorithm, recipe.learner, recipe.sampling.temperature, recipe.steps, recipe.seed, recipe.model.path


def fitted(recipe: Recipe, machine: Machine, overrides: Sequence[str]) -> Recipe:
    """Return the recipe with a layout that fits the machine: its own, one that ``overrides`` name, or else a single rank."""
    learner = recipe.learner
    if not machine.gpus and learner.fp8 != "none":
        learner = msgspec.structs.replace(learner, fp8="none")
    named = any("_parallel" in override or "virtual_pipeline" in override for override in overrides)
    if not named and learner.layout.ranks > (machine.gpus or machine.cores):
        learner = _on_one_rank(learner)
    return msgspec.structs.replace(recipe, learner=learner)


def _on_one_rank(learner: LearnerConfig) -> LearnerConfig:
    sizes = {f"{name}_parallel": 1 for name in ParallelLayout.__struct_fields__ if name != "virtual_pipeline"}
    return msgspec.structs.replace(learner, **sizes, virtual_pipeline=1)


def without(batch: Batch, rows: Sequence[Row]) -> Batch:
    """Return a batch without what ``rows`` name, as if it had never been sampled: nothing is compared with it either.

    Raises:
        RecipeError: nothing is left.
    """
    left = []
    for episode in batch.episodes:
        found = [row for row in rows if row.holds(episode)]
        if any(row.part is None for row in found):
            continue
        parts = {row.part for row in found}
        trajectories = tuple(
            msgspec.structs.replace(each, trained=each.trained and number not in parts)
            for number, each in enumerate(episode.trajectories)
        )
        left.append(msgspec.structs.replace(episode, trajectories=trajectories))
    changed = msgspec.structs.replace(batch, episodes=tuple(left))
    if not any(row.loss_tokens for row in changed.rows):
        raise RecipeError("--without", f"step {batch.version + 1} has nothing left to train", "leave fewer rows out")
    return changed


def check_rows(batches: Sequence[Batch], rows: Sequence[Row]) -> None:
    """Refuse rows that none of the batches has.

    Raises:
        RecipeError: names the first of them.
    """
    for row in rows:
        if not any(row.holds(episode) for batch in batches for episode in batch.episodes):
            groups = sorted({int(episode.group_id) for batch in batches for episode in batch.episodes})
            problem = f"no step that is replayed has {row}"
            raise RecipeError("--without", problem, f"their groups are {groups[0]} to {groups[-1]}; --top names rows")


def version_after(leg: Leg) -> PolicyVersion:
    """Return the policy version that a leg ends at."""
    return PolicyVersion(leg.batches[-1].version + 1)
