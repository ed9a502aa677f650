"""Reads the metrics of a run, live or dead, from where it is tracked. Changes nothing."""

import sys
from collections.abc import Collection

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import TrackingConfig
from asyncrl.core.text import without_passwords
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.tracking.mlflow_store import errors_of_mlflow, keep_mlflow_quiet
from asyncrl.run.tracking.mlflow_tables import tables_problem
from asyncrl.run.tracking.sqlite_address import sqlite_file
from asyncrl.run.tracking.tracker import tracking_uri
from asyncrl.run.tracking.tracking_check import CREDENTIALS, wants_credentials

_REMEDY = "see that tracking.uri in the run's recipe.yaml can be reached from here, or read the run where it was made"


class Series(msgspec.Struct, frozen=True):
    """The finite values of one metric, by training step; ``steps`` ascend, and a step has one value."""

    steps: tuple[int, ...]
    values: tuple[float, ...]


def metric_history(folder: RunFolder, tracking: TrackingConfig, wanted: Collection[str] | None = None) -> dict[str, Series]:
    """Return every metric of the run by its name; nothing of a run that has not begun to track.

    Args:
        wanted: the names of those that are asked for; None for all.

    Raises:
        RecipeError: the run was tracked, and where cannot be read from here.
    """
    uri = tracking_uri(tracking, folder)
    if not folder.tracked_as.is_file():
        return {}
    database = sqlite_file(uri)
    if database is not None and not database.is_file():  # MLflow would make one
        raise RecipeError("tracking.uri", f"the metrics of {folder.path.name} are not in {database}, which is gone", _REMEDY)
    problem, remedy = ("", "") if database is None else tables_problem(database)
    if problem:
        raise RecipeError("tracking.uri", f"cannot read the metrics of {folder.path.name} in {database}: {problem}", remedy)
    keep_mlflow_quiet()
    from mlflow import MlflowClient

    try:
        client = MlflowClient(uri)
        run_id = folder.read_tracked_as()
        names = client.get_run(run_id).data.metrics
        chosen = [name for name in sorted(names) if wanted is None or name in wanted]
        return {name: _series({m.step: m.value for m in client.get_metric_history(run_id, name)}) for name in chosen}
    except errors_of_mlflow() as error:
        first_line = str(error).partition("\n")[0]
        problem = without_passwords(f"cannot read the metrics of {folder.path.name} at {uri}: {first_line}")
        raise RecipeError("tracking.uri", problem, CREDENTIALS if wants_credentials(first_line) else _REMEDY) from error


def _series(values: dict[int, float]) -> Series:
    # MLflow's database has no infinity: it holds the largest float in its place.
    known = sorted((step, value) for step, value in values.items() if abs(value) < sys.float_info.max)
    return Series(tuple(step for step, _ in known), tuple(value for _, value in known))
