"""Evaluations of models, done from Python and read from their folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from asyncrl.api.driver_process import drive
from asyncrl.api.errors import NotThere
from asyncrl.api.recipes import Overrides, PathLike, RecipeLike, override_texts, recipe_file
from asyncrl.api.run import Run, read_trajectories
from asyncrl.cli.driving.messages import EvaluateRequest
from asyncrl.core.errors import RecipeError

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncrl.run.evaluation.summary import EvaluationSummary


def evaluate(
    models: PathLike | Run | Sequence[PathLike | Run],
    recipe: RecipeLike | None = None,
    overrides: Overrides = (),
    *,
    samples: int | None = None,
    versions: Sequence[int] = (),
) -> Evaluation:
    """Play the held-out tasks of a recipe with one or several models, as ``asyncrl evaluate`` does; see docs/how-to/evaluate.md.

    Args:
        models: Hugging Face folders, runs or their folders, or ``tiny``.
        recipe: path or name of the recipe, or a dictionary; None for that of the first run among the models.
        overrides: changes of the recipe, e.g. ``["evaluation.temperature=1"]`` or ``{"evaluation": {"temperature": 1}}``.
        samples: episodes of each task; by default ``evaluation.samples``, and where that is null 8, or 1 if
            ``evaluation.temperature`` is 0.
        versions: policy versions of each run; by default its newest.

    Raises:
        RecipeError: a model, a version, the recipe or an argument was refused; nothing was started.
        RunFailed: the evaluation failed.
        RunInterrupted: a signal to the evaluation's own process stopped it.
        ComponentFailed: that process could not begin.
    """
    from asyncrl.run.evaluation.request import EvaluationRequest

    several = [models] if isinstance(models, str | os.PathLike | Run) else models
    changes = override_texts(overrides)
    with nullcontext() if recipe is None else recipe_file(recipe) as file:
        asked = {"recipe": file, "overrides": changes, "samples": samples, "versions": versions}
        try:
            named = [str(model.path) if isinstance(model, Run) else os.fspath(model) for model in several]
            request = msgspec.convert({"models": named, **asked}, EvaluationRequest)
        except (TypeError, msgspec.ValidationError) as error:
            remedy = "models are paths, names or runs; samples is a number from 1, and versions are numbers"
            raise RecipeError("", f"what is to be evaluated cannot be read: {error}", remedy) from error
        ended = drive(EvaluateRequest(request))
    evaluation = Evaluation(ended.folder)
    ended.require_completed(evaluation)
    return evaluation


class Evaluation:
    """An evaluation of models, read from its folder.

    Args:
        path: the folder, as ``asyncrl evaluate`` names it at its end.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path).resolve()

    def __repr__(self) -> str:
        return f"asyncrl.Evaluation({str(self.path)!r})"

    @cached_property
    def summary(self) -> EvaluationSummary:
        """The scores of each model, as in ``evaluation.json``.

        Raises:
            NotThere: the evaluation has not ended, or was killed.
            UnknownFormat: another version of asyncrl wrote them, in another way.
        """
        from asyncrl.run.evaluation.folder import EvaluationFolder
        from asyncrl.run.evaluation.summary import EvaluationSummary

        try:
            return EvaluationSummary.read(EvaluationFolder(self.path).scores)
        except (OSError, ValueError, RecursionError) as error:
            raise NotThere(f"{self.path} has no scores ({error}): the evaluation has not ended, or was killed") from error

    def trajectories(self, model: str | None = None) -> pa.Table:
        """Return the episodes of one model, or of all, with the model's name in the first column, ``model``.

        Raises:
            NotThere: there is no such model, or no episodes of it are there.
        """
        import pyarrow as pa

        from asyncrl.run.folder.run_folder import RunFolder

        found = [each for each in self.summary.models if model in (None, each.model)]
        if not found:
            names = ", ".join(each.model for each in self.summary.models) or "none"
            raise NotThere(f"{self.path} has no model {model!r}; it has {names}")
        tables = [(each.model, read_trajectories(RunFolder(self.path / Path(each.folder).name).trajectories)) for each in found]
        return pa.concat_tables(
            [table.add_column(0, "model", pa.array([name] * len(table), pa.string())) for name, table in tables]
        )
