"""Everything that a report says about one run, read from its folder. No code of the user is imported, and nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_formats import UnknownFormat
from asyncrl.core.recipe.flatten import flatten
from asyncrl.core.recipe.schema import TrackingConfig
from asyncrl.core.text import without_passwords
from asyncrl.core.tuning.moves import Judged
from asyncrl.episodes.reader import EpisodeReader
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.event_log import read_end
from asyncrl.run.measures.summary import Summary
from asyncrl.run.tracking.metric_history import Series, metric_history
from asyncrl.run.tuning.move_journal import MoveJournal


class RunRecord:
    """One run.

    Attributes:
        name: that of its folder; see :func:`name_apart`.
        recipe: every key of the resolved recipe, and its value as text; see :func:`recipe_to_show`.
        summary: how it ended; None if it has not, or was killed.
        metrics: every metric, by name.
        episodes: reads the kept episodes; None if there are none.
        moves: how `tune` turned its sizes.
        missing: sentences on what could not be read, and why.

    Raises:
        RecipeError: there is no run in ``path``, or its recipe cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder.find(path)
        self.name = self.folder.path.name
        self.missing: list[str] = []
        recipe = read_recipe(self.folder.recipe)
        self.recipe = recipe_to_show(recipe)
        self.summary = self._ended()
        self.metrics = self._metrics(recipe)
        self.episodes = self._episodes()
        self.moves = [line for line in MoveJournal(self.folder.tuning).read() if isinstance(line, Judged)]

    def series(self, name: str) -> Series | None:
        """Return a metric, if it has a value."""
        found = self.metrics.get(name)
        return found if found is not None and found.steps else None

    def _ended(self) -> Summary | None:
        try:
            return read_end(self.folder)
        except FileNotFoundError:
            self.missing.append("It has no summary.json: it still runs, or it was killed.")
        except (OSError, ValueError, RecursionError, UnknownFormat) as error:
            self.missing.append(f"Its summary.json cannot be read: {error}.")
        return None

    def _metrics(self, recipe: dict[str, Any]) -> dict[str, Series]:
        try:
            found = metric_history(self.folder, tracking_of(recipe))
        except RecipeError as error:
            self.missing.append(f"It is shown without metrics: {error}.")
            return {}
        if not found and self.summary is None:
            self.missing.append("It has tracked no metrics yet.")
        elif not found:
            known = (
                "it has no metrics in MLflow"
                if self.folder.tracked_as.is_file()
                else "its file mlflow-run, which names them, is gone"
            )
            self.missing.append(f"It is shown without metrics: {known}.")
        return found

    def _episodes(self) -> EpisodeReader | None:
        try:
            return EpisodeReader(self.folder.trajectories)
        except RecipeError as error:
            self.missing.append(f"It is shown without episodes: {error}.")
            return None


def name_apart(runs: Sequence[RunRecord]) -> None:
    """Put as many of the folders above them before the names of runs as tell those of one name apart."""
    for record in runs:
        if alike := [
            each.folder.path for each in runs if each is not record and each.folder.path.name == record.folder.path.name
        ]:
            parts = record.folder.path.parts
            record.name = next(
                name
                for many in range(2, len(parts) + 1)
                if not any(each.parts[-many:] == parts[-many:] for each in alike) and (name := "/".join(parts[-many:]))
            )


def tracking_of(recipe: Mapping[str, Any]) -> TrackingConfig:
    """Return the section ``tracking``, with the keys that this version knows: the run may have been made by another."""
    section = recipe.get("tracking", {})
    return TrackingConfig(**{name: section[name] for name in ("uri", "experiment") if name in section})


def recipe_to_show(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return every key of a resolved recipe with its value as text, in which no address has a password."""
    return {key: without_passwords(str(value)) for key, value in flatten(recipe)}


def read_recipe(file: Path) -> dict[str, Any]:
    """Read a resolved recipe as plain values. The schema is not asked, because it would import the user's classes.

    Raises:
        RecipeError: it cannot be read.
    """
    try:
        values = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
        if not isinstance(values, dict):
            raise ValueError("it holds no mapping")
    except (OSError, ValueError, YAMLError, OmegaConfBaseException, RecursionError) as error:
        raise RecipeError("", f"cannot read {file}: {error}", "put back the recipe that the run wrote there") from error
    return {str(key): value for key, value in values.items()}
