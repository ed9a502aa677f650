"""Finds how a run's model did on held-out tasks: in the evaluations beside training, and in those of ``asyncrl evaluate``.

What always holds: an interval is given only where every episode that it is about is known, so it is of the mean beside it.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_formats import UnknownFormat
from asyncrl.episodes.reader import Choice, EpisodeReader
from asyncrl.episodes.schema import Kind
from asyncrl.run.evaluation.found_model import EvaluatedModel
from asyncrl.run.evaluation.summary import EvaluationSummary, ModelScores
from asyncrl.run.measures import metrics
from asyncrl.run.measures.scores import Scores, score
from asyncrl.run.measures.summary import Status
from asyncrl.run.report.run_record import RunRecord, read_recipe

_SAME = 1e-6
"""Means of the same episodes differ by no more than this."""


class Beside(msgspec.Struct, frozen=True):
    """An evaluation beside training.

    Attributes:
        scores: with intervals; None unless all its episodes are kept.
    """

    version: int
    reward: float
    scores: Scores | None


def beside_training(run: RunRecord, passing: float) -> list[Beside]:
    """Return the first and the last evaluation beside training, if there were any.

    Args:
        passing: the recipe's ``evaluation.passing_reward``.

    Raises:
        EpisodesUnreadable: a file of kept episodes is damaged.
    """
    ended = () if run.summary is None else run.summary.evaluation.played
    played = [(int(each.version), each.reward) for each in ended]
    if not played and (series := run.series(metrics.EVALUATION_REWARD.name)) is not None:
        played = list(zip(series.steps, series.values, strict=True))
    ends = played if len(played) < 2 else [played[0], played[-1]]
    all_kept = run.recipe.get("tracking.trajectories.keep") == "all"
    found = run.episodes if all_kept else None
    return [
        Beside(version, reward, None if found is None else _scores(found, version, reward, passing)) for version, reward in ends
    ]


def _scores(episodes: EpisodeReader, version: int, reward: float, passing: float) -> Scores | None:
    """Score the kept episodes of an evaluation; None if they are not those that its reward is the mean of."""
    columns = ["source", "task_id", "sample_index", "part", "reward"]
    rows = episodes.table(Choice(kind=Kind.EVALUATION, step=version), columns).to_pylist()
    rewards = {(row["source"], row["task_id"], row["sample_index"]): row["reward"] for row in rows if not row["part"]}
    if not rewards or abs(fmean(rewards.values()) - reward) > _SAME:
        return None
    by_task: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (source, task, _), value in rewards.items():
        by_task[source, task].append(value)
    return score(list(by_task.values()), max(map(len, by_task.values())), passing)


class Afterwards(msgspec.Struct, frozen=True):
    """What ``asyncrl evaluate`` found of versions of the run, the one that is pushed among them."""

    summary: EvaluationSummary
    models: tuple[ModelScores, ...]


def afterwards(model: EvaluatedModel, recipe: Mapping[str, Any]) -> Afterwards | None:
    """Return the newest evaluation beside the run's folder that has scored this model on the run's own held-out tasks.

    Args:
        model: a version of a run.
        recipe: the run's resolved recipe.

    Returns:
        None if there is none: that of another environment, or of other tasks, says nothing here.
    """
    assert model.run is not None
    own = _within(model.path, model.run.name)
    for file in sorted(
        model.run.parent.glob("evaluation-*/evaluation.json"), key=lambda each: each.stat().st_mtime, reverse=True
    ):
        try:
            summary = EvaluationSummary.read(file)
        except (OSError, ValueError, RecursionError, UnknownFormat):
            continue  # it is still being played, or of another release: another one may do
        of_run = tuple(each for each in summary.models if _within(Path(each.path), model.run.name))
        this = [each for each in of_run if _within(Path(each.path), model.run.name) == own and each.version == model.version]
        if this and summary.status is Status.COMPLETED and _on_its_tasks(file.parent / Path(this[0].folder).name, recipe):
            return Afterwards(summary, of_run)
    return None


def _on_its_tasks(evaluated: Path, recipe: Mapping[str, Any]) -> bool:
    """Whether a model of an evaluation, with this folder, has played all held-out tasks of a recipe; it may have played more."""
    try:
        played = read_recipe(evaluated / "recipe.yaml")
    except RecipeError:
        return False
    theirs, own = (each.get("tasks", {}) for each in (played, recipe))
    if played.get("environment") != recipe.get("environment") or theirs.get("kind") != own.get("kind"):
        return False
    if own.get("kind") == "files":
        return bool(theirs.get("evaluation") == own.get("evaluation"))
    return played.get("seed") == recipe.get("seed") and bool(theirs.get("evaluation", 0) >= own.get("evaluation", 0))


def _within(path: Path, run: str) -> tuple[str, ...]:
    """The parts of a path from the run's folder on, which may have moved since; empty if it is not in one of this name."""
    parts = path.parts
    return parts[parts.index(run) :] if run in parts else ()
