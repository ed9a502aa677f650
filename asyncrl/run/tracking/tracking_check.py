"""Checks before a run starts that its metrics can be kept where the recipe says. Nothing is made and nothing is written."""

import os
import shlex
import socket
import sqlite3
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.storage.address import local_run_dir
from asyncrl.core.text import without_passwords, writable
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.tracking.mlflow_tables import tables_problem
from asyncrl.run.tracking.sqlite_address import sqlite_file, sqlite_uri

ANSWER_S = 5.0
"""How long a tracking server may take to accept a connection."""
LONGEST_NAME = 200
"""Most characters of a run's name: file systems take 255, and the time and endings of files come after it."""
_BUSY_S = 60.0
LOCKED = "database is locked"
"""What SQLite says of a database that another process holds."""
_SERVERS = {"http": 80, "https": 443}
_ELSEWHERE = ("databricks", "databricks-uc", "uc")
"""What MLflow reaches by settings of its own, as a whole address or as its scheme."""
_URI = "tracking.uri"
CREDENTIALS = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the environment"
"""How a server of MLflow gets to know who asks."""
_REFUSED = ("error code 401", "error code 403")


def check_tracking(recipe: Recipe, *, resumed: bool) -> None:
    """Check the place of the run folder, and that of its metrics. A run that is resumed has both already.

    Raises:
        RecipeError: the path of the current folder or of ``run_dir`` is not UTF-8, or ``run_dir`` cannot be written to; ``name``
            is too long for a folder; MLflow does not know the kind of ``tracking.uri``, or lacks a package for it; there are
            credentials in it; nothing answers there; or a database is damaged, read-only or another MLflow's.
    """
    uri = recipe.tracking.uri
    check_names(Path.cwd())
    if not resumed:
        _refuse_home("run_dir", recipe.run_dir, recipe.run_dir)
        _refuse_home(_URI, uri, uri.partition(":///")[2])
        _check_run_dir(str(local_run_dir(recipe.run_dir)))
        check_names(local_run_dir(recipe.run_dir).resolve())
        _check_name(recipe.name)
    if not uri:
        if not resumed:
            _check_sqlite(local_run_dir(recipe.run_dir).absolute() / "mlflow.db", "run_dir", recipe)
        return
    if (file := sqlite_file(uri)) is not None:
        _check_sqlite(file, _URI, recipe)
        return
    kind = uri if uri in _ELSEWHERE else uri.partition("://")[0] if "://" in uri else ""
    if kind in _SERVERS:
        _check_server(uri, kind)
    elif kind in ("", "file"):
        problem = f"{uri!r} is a folder, into which MLflow no longer writes"
        raise RecipeError(_URI, problem, "name a database file as sqlite:///FILE, or leave it empty")
    elif kind not in (*_ELSEWHERE, *entry_points(group="mlflow.tracking_store").names):
        _check_dialect(uri)


def database_problem(file: Path, *, whole: bool) -> str:
    """Why an MLflow database in a file cannot take more metrics; empty if it can. Changes nothing, except that SQLite finishes
    what a killed run had begun to write.

    Args:
        whole: read all of it, which takes a second for some hundred megabytes; else only what its tables are.
    """
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True, timeout=_BUSY_S)) as database:
            (problem,) = database.execute("PRAGMA quick_check(1)").fetchone() if whole else ("ok",)
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except (sqlite3.Error, OSError, ValueError) as error:
        return str(error)
    if problem == "ok" and not os.access(file, os.W_OK):
        return "it is read-only"
    return "" if problem == "ok" else str(problem)


def check_names(folder: Path) -> None:
    """Refuse a folder whose path is not UTF-8.

    Raises:
        RecipeError: it is not.
    """
    if writable(str(folder)) != str(folder):
        raise RecipeError("", f"{str(folder)!r} is not UTF-8, and neither Ray nor Arrow works there", "rename the folder")


def _check_run_dir(run_dir: str) -> None:
    """Refuse a folder that cannot be made, or in which no folder can be made."""
    path = Path(run_dir).absolute()
    there = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    remedy = "name a folder that you may write to, e.g. with run_dir=runs"
    if not there.is_dir():
        raise RecipeError("run_dir", f"cannot make a run folder in {run_dir!r}: {there} is no folder", remedy)
    if not os.access(there, os.W_OK | os.X_OK):
        raise RecipeError("run_dir", f"cannot make a run folder in {run_dir!r}: {there} cannot be written to", remedy)


def _check_name(name: str) -> None:
    """Refuse a name of which, with the time that is put after it, no folder can be made."""
    if len(name) > LONGEST_NAME:
        problem = f"a run folder cannot be named after {len(name)} characters"
        raise RecipeError("name", problem, f"choose a name of at most {LONGEST_NAME}; a sentence fits into --note")


def _refuse_home(place: str, given: str, path: str) -> None:
    """Refuse a path with the shell's ``~`` for the home folder: as it stands, it would be a folder of that name right here."""
    if path == "~" or path.startswith("~/"):
        problem = f"{given!r} begins in a folder named ~: only a shell takes that for your home folder"
        whole, there = given.replace(path, os.path.expanduser(path)), given.replace(path, f"./{path}")
        remedy = f"write {whole!r}, or {there!r} if you mean that name"
        raise RecipeError(place, problem, remedy)


def _check_sqlite(file: Path, place: str, recipe: Recipe) -> None:
    if file.exists():
        if problem := database_problem(file, whole=False):
            problem = f"the MLflow database {file} cannot be used: {problem}"
            raise RecipeError(place, problem, f"{_mended(problem)}, or track elsewhere (tracking.uri, run_dir)")
        problem, remedy = tables_problem(file)
        if problem:
            problem = f"the MLflow database {file} cannot be used: {problem}"
            raise RecipeError(place, problem, f"{remedy}, or track elsewhere (tracking.uri, run_dir)")
        if _is_deleted(file, recipe.tracking.experiment):
            problem = f"experiment {recipe.tracking.experiment!r} has been deleted in {file}"
            raise RecipeError("tracking.experiment", problem, "restore it with `mlflow experiments restore`, or name another")
        return
    there = next(parent for parent in file.parents if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise RecipeError(place, f"the MLflow database {file} cannot be made", "name a file in a folder that you may write to")


def _mended(problem: str) -> str:
    """Say what to do about what :func:`database_problem` says."""
    held = "wait for the process that holds it, or end it (fuser names it)"
    return held if LOCKED in problem else "repair it or put it back"


def _is_deleted(file: Path, experiment: str) -> bool:
    """Whether the experiment lies in MLflow's bin, where runs cannot be added to it."""
    asked = "SELECT 1 FROM experiments WHERE name = ? AND lifecycle_stage = 'deleted'"
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)) as database:
        try:
            return database.execute(asked, (experiment,)).fetchone() is not None
        except sqlite3.OperationalError:
            return False  # an empty file: MLflow makes the tables


def wants_credentials(said: str) -> bool:
    """Whether an error of MLflow says that a server does not know who asks, or does not let them."""
    return any(refused in said for refused in _REFUSED)


def _check_server(uri: str, scheme: str) -> None:
    try:
        parts = urlsplit(uri)
        if parts.username or parts.password:
            problem = f"there are credentials in the address of {parts.hostname}, which is written into recipes, logs and reports"
            raise RecipeError(_URI, problem, f"take them out of the address, and {CREDENTIALS}")
        socket.create_connection((parts.hostname or "", parts.port or _SERVERS[scheme]), ANSWER_S).close()
    except (OSError, ValueError) as error:  # ValueError: a port that is no number, or half of a bracket
        remedy = "start the MLflow server, correct the address, or leave it empty to track beside the run folder"
        raise RecipeError(_URI, f"nothing answers at {uri} ({getattr(error, 'strerror', None) or error})", remedy) from error


def _check_dialect(uri: str) -> None:
    """Refuse an address that SQLAlchemy, by which MLflow reaches databases, cannot use here."""
    from sqlalchemy import make_url  # takes a while, and most runs track in a file
    from sqlalchemy.exc import ArgumentError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except (ArgumentError, ImportError) as error:
        remedy = "install the package of that database, or name a server (http://...) or a file (sqlite:///FILE)"
        raise RecipeError(_URI, without_passwords(f"MLflow cannot use {uri!r}: {error}"), remedy) from error


def elsewhere(folder: RunFolder) -> str:
    """Say how a run is resumed whose database cannot be used: it is never to be removed, since other runs are in it."""
    return f"resume with the metrics elsewhere (--resume {folder.path} tracking.uri=sqlite:////PATH/mlflow.db)"


def check_database(folder: RunFolder) -> None:
    """Check that the tracking database of a run that is resumed, if there is one, can take more metrics.

    Changes nothing, except that SQLite finishes what a killed run had begun to write.

    Raises:
        RecipeError: it cannot be read or written, or has no such run.
    """
    if not folder.database.is_file():
        return
    problem = database_problem(folder.database, whole=True)
    remedy = f"{_mended(problem)}, then resume; or {elsewhere(folder)}"
    if not problem:
        problem, mended = tables_problem(folder.database)
        remedy = f"{mended}, then resume; or {elsewhere(folder)}"
    if not problem and folder.tracked_as.is_file():
        problem, remedy = _run_problem(folder, folder.read_tracked_as())
    if problem:
        raise RecipeError("", f"the MLflow database {folder.database} cannot be used: {problem}", remedy)


def _run_problem(folder: RunFolder, run_id: str) -> tuple[str, str]:
    """Why MLflow cannot go on with a run, and a remedy; both empty if it can."""
    anew = f"or remove {folder.tracked_as} to begin the metrics of this run anew; then resume"
    asked = (
        "SELECT runs.lifecycle_stage, experiments.lifecycle_stage, experiments.experiment_id "
        "FROM runs JOIN experiments ON runs.experiment_id = experiments.experiment_id WHERE run_uuid = ?"
    )
    with closing(sqlite3.connect(folder.database, timeout=_BUSY_S)) as database:
        try:
            found = database.execute(asked, (run_id,)).fetchone()
        except sqlite3.Error as error:
            return str(error), f"{_mended(str(error))}, then resume; or {elsewhere(folder)}"
    if found is None:
        return f"it has no run {run_id!r}, which {folder.tracked_as.name} names", f"put it back; {anew}"
    of_run, of_experiment, experiment = found
    restore = f"restore it (MLFLOW_TRACKING_URI={shlex.quote(sqlite_uri(folder.database))} mlflow"
    if of_experiment == "deleted":
        problem = "the experiment of this run has been deleted"
        return problem, f"{restore} experiments restore --experiment-id {experiment}), then resume; or {elsewhere(folder)}"
    if of_run == "deleted":
        problem = f"run {run_id!r}, which {folder.tracked_as.name} names, has been deleted"
        return problem, f"{restore} runs restore --run-id {run_id}); {anew}"
    return "", ""
