"""Drives a run with a fixed name, and goes on with it when it fails, until it has completed.

What always holds: each attempt is a process of its own, so that whatever ends it, the next one begins anew; an attempt goes on
with what there is of the run, in its folder or in its object store; and who asks for it to end is obeyed, not tried again.
"""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_formats import UnknownFormat
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.storage.address import local_run_dir
from asyncrl.core.storage.errors import StorageError
from asyncrl.core.storage.storage import Storage
from asyncrl.core.text import pluralize
from asyncrl.learners.checkpointing import checkpoints
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.signals import hearing
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.storage.stored_checkpoints import stored_versions
from asyncrl.run.storage.upload_places import resumed_from

FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 300.0
"""Seconds until a failed attempt is followed by another: at first, and at most, since they double."""
COMPLETED, REFUSED, INTERRUPTED = 0, 2, 130
"""Exit codes of ``asyncrl launch`` after which there is nothing to try again, the second one on the first attempt only."""


class NamedRun:
    """What there is of a run with a fixed name.

    Args:
        recipe: says where its folder and its copies are.
    """

    def __init__(self, recipe: Recipe, name: str) -> None:
        self.folder = RunFolder(local_run_dir(recipe.run_dir) / name)
        places: tuple[str | None, str | None] = resumed_from(recipe, name) or (None, None)
        self.address, self._checkpoints = places

    @property
    def place(self) -> str | None:
        """Where the run is resumed from; None if it has not begun, or nothing of it is left that could be gone on with."""
        if self._stored_version() is not None:
            return self.address  # if this machine has driven it last, the resume takes the folder
        return str(self.folder.path) if self.folder.recipe.is_file() else None

    @property
    def progress(self) -> int:
        """The version of its newest checkpoint; -1 if it has none."""
        newest = checkpoints.newest(self.folder.checkpoints)
        stored = self._stored_version()
        return max(-1 if newest is None else newest[0], -1 if stored is None else stored)

    def has_completed(self, steps: int) -> bool:
        """Whether the run has completed at least ``steps`` training steps.

        Raises:
            RecipeError: the object store with its summary cannot be asked.
        """
        path = self.folder.summary
        try:
            content = path.read_bytes() if self.address is None else Storage(self.address).read(path.name) or b""
            summary = Summary.decoded(content, path)
        except StorageError as error:
            raise error.of_key("") from error
        except (OSError, ValueError, RecursionError, UnknownFormat):
            return False
        return summary.status is Status.COMPLETED and summary.steps >= steps

    def _stored_version(self) -> int | None:
        if self._checkpoints is None:
            return None
        try:
            return max(stored_versions(Storage(self._checkpoints)), default=None)
        except StorageError as error:
            raise error.of_key("") from error


def keep_at_it(
    run: NamedRun,
    command: Callable[[str | None], Sequence[str]],
    retries: int,
    note: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Launch the run or go on with it, again after each failure; return the exit code of the last attempt.

    Args:
        command: returns the command that goes on with it from a place; with None, the one that launches it.
        retries: how many failures in a row, without a new checkpoint between them, are followed by another attempt.
        note: shows the user a line.

    Raises:
        RecipeError: the object store with its checkpoints cannot be asked.
    """
    failures, before, place, tried = 0, run.progress, run.place, False
    while True:
        code = _attempt(command(place))
        if code in (COMPLETED, INTERRUPTED) or (code == REFUSED and not tried):
            return code
        tried = True
        place, now = _looked_for(run, place, before)
        failures, before = (1 if now > before else failures + 1), max(now, before)
        if failures > retries:
            note(f"The run failed {pluralize(failures, 'time')} in a row without a new checkpoint: it is not tried again")
            return code if code > 0 else 1
        wait = min(FIRST_WAIT_S * 2 ** (failures - 1), LONGEST_WAIT_S)
        why = f"was refused (exit code {code})" if code == REFUSED else f"failed (exit code {code})"
        note(f"The run {why}; it is gone on with in {wait:g} s, {retries - failures + 1} times more at most")
        sleep(wait)


def _looked_for(run: NamedRun, place: str | None, progress: int) -> tuple[str | None, int]:
    """The run's place and progress; while the store cannot be asked, its folder here, and what they were before."""
    try:
        return run.place, run.progress
    except RecipeError:
        return (str(run.folder.path) if run.folder.recipe.is_file() else place), progress


def _attempt(words: Sequence[str]) -> int:
    """Run a command, pass on who asks it to end, and return its exit code."""
    asked, command = list[int](), None

    def pass_on(number: int) -> None:
        asked.append(number)
        if command is not None:
            command.send_signal(number)

    with hearing(pass_on):
        command = subprocess.Popen(words)
        if asked:  # before there was somebody to pass it on to
            command.send_signal(asked[0])
        code = command.wait()
    return INTERRUPTED if asked else code


def fixed_place(recipe: Recipe) -> bool:
    """Whether the run's folder or its copies stay when the folder that it was launched in is gone."""
    return resumed_from(recipe, "") is not None or Path(recipe.run_dir).is_absolute()
