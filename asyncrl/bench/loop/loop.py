"""Throughput of the whole loop with the quickstart's model and task, over a fixed number of training steps.

The clock starts when everything is up and warm and version 0 has been evaluated, and stops at the end of the last training step.
So the time to fill the pipeline counts, and the time to start does not.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from asyncrl.core.measures.time_split import IdleShares
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.launch import launch
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.recipe.compose import compose
from asyncrl.run.views.live_view import LiveView

STEPS = 40


class LoopResult(msgspec.Struct, frozen=True):
    """What ``asyncrl bench loop`` writes. Rates are averages over ``training_s``; idle shares are in [0, 1]."""

    trajectories_per_s: float
    completion_tokens_per_s: float
    idle: IdleShares
    steps: int
    training_s: float


def recipe(overrides: Sequence[str] = ()) -> Recipe:
    """The quickstart with ``STEPS`` training steps, evaluated only before the first and after the last.

    Raises:
        RecipeError: an override is refused.
    """
    return compose("quickstart", ["name=bench-loop", f"steps={STEPS}", f"evaluation.every={STEPS}", *overrides])


def run(recipe: Recipe, folder: RunFolder, view: LiveView, json_file: Path) -> Summary:
    """Run the loop, and write ``json_file`` if the run completed."""
    summary, totals = launch(recipe, folder, view)
    if summary.status is Status.COMPLETED:
        result = LoopResult(
            totals.trajectories_per_s, totals.time.generated_per_s, summary.idle, totals.steps, totals.time.seconds
        )
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    return summary
