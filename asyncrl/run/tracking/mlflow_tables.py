"""Finds out whether the tables of an MLflow database are those of the installed MLflow, without importing it: that takes seconds.

MLflow itself says so when a run begins to track, which is after everything has started; and it says of the tables of a newer
MLflow, too, that they are out of date.
"""

import importlib.util
import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

from asyncrl.run.tracking.sqlite_address import sqlite_uri

_REVISION = re.compile(r"^(down_)?revision = \"(\w+)\"", re.MULTILINE)


def tables_problem(file: Path) -> tuple[str, str]:
    """Return what is wrong with the tables of the database in ``file``, and a remedy; both are empty if MLflow can use or
    make them, or is to say why they cannot be read."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
        try:
            found = {revision for (revision,) in database.execute("SELECT version_num FROM alembic_version")}
        except sqlite3.Error:
            return "", ""
    known, newest = _revisions()
    if not known or found <= newest:
        return "", ""
    if found <= known:
        upgrade = f"mlflow db upgrade {shlex.quote(sqlite_uri(file))}"
        return "an earlier MLflow made its tables", f"copy it, then have MLflow bring it up to date ({upgrade})"
    return "a later MLflow than the one installed here made its tables", "install that one (pip install --upgrade mlflow)"


def _revisions() -> tuple[set[str], set[str]]:
    """Return the revisions of tables that the installed MLflow knows, and the newest of them, which follows no other."""
    package = importlib.util.find_spec("mlflow")
    known, before = set[str](), set[str]()
    for folder in (package and package.submodule_search_locations) or ():
        for file in Path(folder, "store", "db_migrations", "versions").glob("*.py"):
            for is_before, revision in _REVISION.findall(file.read_text(encoding="utf-8")):
                (before if is_before else known).add(revision)
    return known, known - before
