"""What a process that tracks a run does; forked from a server that has imported this."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - takes seconds, and is imported by the first use of a database else

from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import Status
from asyncrl.run.recipe.compose import compose
from asyncrl.run.tracking.tracker import Tracker


def track(path: Path, steps: Sequence[int], said: Path) -> None:
    """Track ``steps`` of the run in the folder ``path``; what is said on the way, or at a failure, goes to ``said``."""
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
    logging.basicConfig()
    folder = RunFolder.find(path)
    tracker = Tracker(compose(str(folder.recipe), []), folder)
    tracker.start()
    for step in steps:
        tracker.log(step, {f"metric/{name}": 0.5 * name for name in range(20)} | {"reward/mean": 0.5})
    tracker.finish(Status.COMPLETED, seconds=120)
