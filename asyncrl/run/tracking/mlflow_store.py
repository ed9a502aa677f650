"""What a run and a sweep need of MLflow before they track anything: quiet, tables, an experiment, and who is nested in whom."""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.storage.address import is_address
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.tracking.sqlite_address import sqlite_file

if TYPE_CHECKING:
    from mlflow import MlflowClient

TRACKED_AS = "mlflow-run"
"""The file of a run folder, or of a sweep's folder, that holds the id of its run in MLflow."""
_PARENT = "mlflow.parentRunId"


@contextlib.contextmanager
def only_one_makes(uri: str) -> Iterator[None]:
    """Let one process at a time make the tables of a SQLite database, which MLflow does not see to."""
    file = sqlite_file(uri)
    if file is None:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_name(f".{file.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def experiment_of(client: "MlflowClient", name: str, uri: str) -> str:
    """Return the id of the experiment of that name, which is made if there is none."""
    from mlflow.exceptions import MlflowException

    if found := client.get_experiment_by_name(name):
        return found.experiment_id
    # A server decides where its artifacts go. Those of a file would go into the folder that this process happens to be in.
    database = sqlite_file(uri)
    location = None if database is None else database.with_name("mlflow-artifacts").as_uri()
    try:
        return client.create_experiment(name, artifact_location=location)
    except MlflowException:
        # Another run that shares the server may have made it meanwhile; any other error is raised.
        if found := client.get_experiment_by_name(name):
            return found.experiment_id
        raise


def nested_in(folder: Path) -> dict[str, str]:
    """Return the tags that nest a run in the run of the sweep whose folder holds it; none if ``folder`` is no sweep's."""
    try:
        return {_PARENT: (folder / TRACKED_AS).read_text(encoding="utf-8")}
    except OSError:
        return {}


def original_of(folder: RunFolder, recipe: Recipe, tracked: str) -> Path | None:
    """Return the folder whose copy ``folder`` is: it is another one, and tracked as the same run; None if there is none.

    Of a run in an object store, the same machine may have several folders, one after the other.

    Args:
        tracked: the name of the run in MLflow, that of the folder in which it began.
    """
    if is_address(recipe.run_dir) or recipe.checkpoint.dir is not None:
        return None
    began_in = (folder.launched_in or Path()) / recipe.run_dir
    with contextlib.suppress(OSError, ValueError):
        for parent in dict.fromkeys((folder.path.parent, began_in)):
            other = parent / tracked
            if (other / TRACKED_AS).is_file() and not other.samefile(folder.path):
                return other if (other / TRACKED_AS).read_bytes() == folder.tracked_as.read_bytes() else None
    return None


def errors_of_mlflow() -> tuple[type[Exception], ...]:
    """What MLflow raises where it cannot read or write: its own, and those of what it reaches a database by, if that is missing,
    too. Takes MLflow's import."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, ImportError, OSError


def keep_mlflow_quiet() -> None:
    """Have MLflow, when it is imported, send no usage reports and write only warnings to the terminal."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    logging.getLogger("mlflow").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"])  # in case it was imported before
    # It also logs every error that it raises, with its traceback; the tracker logs each of them once.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
