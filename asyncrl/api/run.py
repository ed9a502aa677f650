"""Runs, launched from Python and read from their folders."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from asyncrl.api.driven import Ended, drive
from asyncrl.api.errors import NotThere
from asyncrl.api.messages import LaunchRequest
from asyncrl.api.recipes import Overrides, PathLike, RecipeLike, override_texts, recipe_file
from asyncrl.core.errors import RecipeError
from asyncrl.core.text import short

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncrl.core.recipe.schema import Recipe
    from asyncrl.run.measures.summary import Summary


def launch(recipe: RecipeLike, overrides: Overrides = ()) -> Run:
    """Run a recipe to its end, showing what ``asyncrl launch`` shows.

    The run is driven by a process of its own. So it may be launched from any thread and under a running event loop, as in a
    notebook. If this is the main thread, an interrupt ends it in order; Python interrupts no other thread.

    Args:
        recipe: path of a ``.yaml`` file, the name of a shipped recipe, or a dictionary of what such a file would hold, e.g.
            ``{"defaults": ["quickstart", "_self_"], "steps": 20}``.
        overrides: changes as on the command line, e.g. ``["learner.lr=1e-4", "steps=20"]``, or as a dictionary, e.g.
            ``{"learner": {"lr": 1e-4}, "steps": 20}``.

    Raises:
        RecipeError: the recipe was refused; nothing was started. Further problems are its notes.
        RunFailed: the run failed; the error has the reason and the folder.
        RunInterrupted: a signal to the run's own process stopped it.
        ComponentFailed: the process that drives the run could not begin.
    """
    changes = override_texts(overrides)
    with recipe_file(recipe) as file:
        return _ended(drive(LaunchRequest(file, changes)))


class Run:
    """A run, read from its folder: while it goes on, after it has ended, or wherever the folder was copied to.

    Args:
        path: the run's folder, as ``asyncrl launch`` names it at its end.

    Raises:
        RecipeError: there is no run in it.
    """

    def __init__(self, path: PathLike) -> None:
        from asyncrl.run.folder.run_folder import RunFolder

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
            NotThere: the run has not ended, or was killed before it could write one.
            UnknownFormat: another version of asyncrl wrote it, in another way.
        """
        from asyncrl.run.measures.summary import Summary

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
        from asyncrl.run.recipe.compose import compose

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
        """Return what was tracked, as columns ``step``, ``name`` and ``value``, in the order of steps.

        A metric has one value in a step; values that are not finite are left out.

        Raises:
            NotThere: nothing was tracked yet, or where it was tracked cannot be read.
        """
        import pyarrow as pa

        from asyncrl.run.tracking.metric_history import metric_history

        try:
            history = metric_history(self._folder, self.recipe.tracking)
        except RecipeError as error:
            raise NotThere(str(error)) from error
        if not history:
            raise NotThere(f"{self.path} has no metrics yet: tracking begins with the run, and takes seconds")
        rows = sorted(
            (step, name, value)
            for name, series in history.items()
            for step, value in zip(series.steps, series.values, strict=True)
        )
        steps, names, values = zip(*rows, strict=True) if rows else ((), (), ())
        types = [("step", pa.int64()), ("name", pa.string()), ("value", pa.float64())]
        return pa.table([steps, names, values], schema=pa.schema(types))

    def trajectories(self, step: int | None = None, kind: Literal["train", "evaluation"] | None = None) -> pa.Table:
        """Return the episodes that were kept; docs/trajectories.md describes the columns.

        Args:
            step: of this training step, or of the evaluation of this policy version; None for all.
            kind: of training or of evaluations; None for both.

        Raises:
            RecipeError: there is no such kind.
            NotThere: no episodes are kept.
            EpisodesUnreadable: a file of them is damaged.
        """
        return read_trajectories(self._folder.trajectories, step, kind)

    def resume(self, overrides: Overrides = ()) -> Run:
        """Go on with the run to its end, by its own recipe and these changes of it, as ``asyncrl launch --resume`` does.

        Raises what :func:`launch` raises.
        """
        return _ended(drive(LaunchRequest(None, override_texts(overrides), str(self.path))))


def read_trajectories(folder: Path, step: int | None = None, kind: Literal["train", "evaluation"] | None = None) -> pa.Table:
    """Read the kept episodes in ``folder``; see :meth:`Run.trajectories`."""
    from asyncrl.episodes.reader import Choice, EpisodeReader
    from asyncrl.episodes.schema import Kind

    if kind is not None and kind not in [each.value for each in Kind]:
        raise RecipeError("kind", f"there are no episodes of kind {short(kind)}", f"give {' or '.join(Kind)}, or None for both")
    try:
        reader = EpisodeReader(folder)
    except RecipeError as error:
        raise NotThere(str(error)) from error
    return reader.table(Choice(kind=None if kind is None else Kind(kind), step=step))


def _ended(ended: Ended) -> Run:
    """Return the run that a process has just driven.

    Raises:
        RunFailed, RunInterrupted: it did not complete.
    """
    run = Run(ended.folder)
    ended.require_completed(run)
    return run
