"""Runs, launched from Python and read from their folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from asyncrl.api.driven import drive
from asyncrl.api.errors import NotThere, RunFailed, RunInterrupted
from asyncrl.api.messages import LaunchRequest

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncrl.core.recipe.schema import Recipe
    from asyncrl.run.folder import RunFolder
    from asyncrl.run.summary import Summary

PathLike = str | os.PathLike[str]


def launch(recipe: PathLike, overrides: Sequence[str] = ()) -> Run:
    """Run a recipe to its end, showing what ``asyncrl launch`` shows.

    The run is driven by a process of its own. So it may be launched from any thread and under a running event loop, as in a
    notebook; an interrupt ends it in order.

    Args:
        recipe: path of a ``.yaml`` file, or the name of a shipped recipe.
        overrides: changes as on the command line, e.g. ``["learner.lr=1e-4", "steps=20"]``.

    Raises:
        RecipeError: the recipe was refused; nothing was started. Further problems are its notes.
        RunFailed: the run failed; the error has the reason and the folder.
        RunInterrupted: a signal to the run's own process stopped it.
        ComponentFailed: the process that drives the run could not begin.
    """
    return _ended(drive(LaunchRequest(os.fspath(recipe), tuple(overrides))))


class Run:
    """A run, read from its folder: while it goes on, after it has ended, or wherever the folder was copied to.

    Args:
        path: the run's folder, as ``asyncrl launch`` names it at its end.

    Raises:
        RecipeError: there is no run in it.
    """

    def __init__(self, path: PathLike) -> None:
        from asyncrl.run.folder import RunFolder

        self._folder = RunFolder.find(Path(path))

    def __repr__(self) -> str:
        return f"asyncrl.Run({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The run's folder, absolute."""
        return self._folder.path

    @property
    def summary(self) -> Summary:
        """How the run ended, as in ``summary.json``.

        Raises:
            NotThere: the run has not ended, or was killed before it could tell.
        """
        from asyncrl.run.summary import Summary

        try:
            return Summary.read(self._folder.summary)
        except (OSError, ValueError, RecursionError) as error:
            raise NotThere(f"{self.path} has no summary ({error}): the run has not ended, or was killed; resume it") from error

    @cached_property
    def recipe(self) -> Recipe:
        """The resolved recipe, every key.

        Raises:
            RecipeError: its file was changed and is no valid recipe now.
        """
        from asyncrl.run.compose import compose

        return compose(str(self._folder.recipe))

    @property
    def model_path(self) -> Path:
        """The Hugging Face folder of the trained model.

        Raises:
            NotThere: the run has not completed.
        """
        if not (self._folder.model / "config.json").is_file():
            remedy = "resume it; asyncrl.evaluate also takes its checkpoints"
            raise NotThere(f"{self.path} has no trained model: the run has not completed; {remedy}")
        return self._folder.model

    def metrics(self) -> pa.Table:
        """Return everything that was tracked, as columns ``step``, ``name`` and ``value``, in the order of steps.

        Raises:
            NotThere: nothing was tracked yet, or the tracking server does not know the run.
        """
        import pyarrow as pa

        rows = sorted(_tracked(self._folder, self.recipe))
        steps, names, values = zip(*rows, strict=True) if rows else ((), (), ())
        types = [("step", pa.int64()), ("name", pa.string()), ("value", pa.float64())]
        return pa.table([steps, names, values], schema=pa.schema(types))

    def trajectories(self, step: int | None = None, kind: Literal["train", "evaluation"] | None = None) -> pa.Table:
        """Return the episodes that were kept; docs/trajectories.md describes the columns.

        Args:
            step: of this training step, or of the evaluation of this policy version; None for all.
            kind: of training or of evaluations; None for both.

        Raises:
            NotThere: no episodes are kept.
        """
        return read_trajectories(self._folder.trajectories, step, kind)

    def resume(self) -> Run:
        """Go on with the run to its end, by its own recipe, as ``asyncrl launch --resume`` does.

        Raises what :func:`launch` raises.
        """
        return _ended(drive(LaunchRequest(None, resume=str(self.path))))


def read_trajectories(folder: Path, step: int | None = None, kind: Literal["train", "evaluation"] | None = None) -> pa.Table:
    """Read the kept episodes in ``folder``; see :meth:`Run.trajectories`."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    from asyncrl.episodes.schema import SCHEMA, Kind

    files = sorted(str(file) for file in folder.glob("*.parquet") if not file.name.startswith("."))
    if not files:
        remedy = "tracking.trajectories of the recipe says which are; a run has none before its first training step"
        raise NotThere(f"no episodes are kept in {folder}; {remedy}")
    chosen = pc.scalar(True)
    if kind is not None:
        chosen &= pc.field("kind") == Kind(kind).value
    if step is not None:
        trained = (pc.field("kind") == Kind.TRAIN.value) & (pc.field("step") == step)
        chosen &= trained | ((pc.field("kind") == Kind.EVALUATION.value) & (pc.field("version") == step))
    return ds.dataset(files, schema=SCHEMA, format="parquet").to_table(filter=chosen)


def _tracked(folder: RunFolder, recipe: Recipe) -> Iterator[tuple[int, str, float]]:
    """Yield step, name and value of everything that was tracked."""
    if not folder.tracked_as.is_file():
        raise NotThere(f"{folder.path} has no metrics yet: tracking begins with the run, and takes seconds")

    from asyncrl.run.tracking import keep_mlflow_quiet, tracking_uri

    keep_mlflow_quiet()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    uri, run_id = tracking_uri(recipe.tracking, folder), folder.tracked_as.read_text(encoding="utf-8")
    client = MlflowClient(uri)
    try:
        for name in client.get_run(run_id).data.metrics:
            for point in client.get_metric_history(run_id, name):
                yield point.step, name, point.value
    except MlflowException as error:
        raise NotThere(f"MLflow at {uri} does not give the metrics of {folder.path}: {error}") from error


def _ended(folder: Path) -> Run:
    """Return the run in ``folder``, which a process has just driven.

    Raises:
        RunFailed, RunInterrupted: it did not complete.
    """
    from asyncrl.run.summary import Status

    run = Run(folder)
    try:
        summary = run.summary
    except NotThere as error:
        raise RunFailed(folder, "the process that drove the run was killed") from error
    match summary.status:
        case Status.COMPLETED:
            return run
        case Status.INTERRUPTED:
            raise RunInterrupted(folder, summary.reason)
        case Status.FAILED:
            raise RunFailed(folder, summary.reason)
