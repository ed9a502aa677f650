"""Uploads what a run has finished to an object store, beside training, in a thread of its own.

What always holds: training never waits for the store; a checkpoint there is whole or does not count; what could not be uploaded
is tried again, for as long as the run goes on; when :meth:`Upload.finish` has returned, all is there.
"""

import logging
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from asyncrl.core.errors import AsyncRLError, DeadlineExceeded
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.storage.errors import StorageError
from asyncrl.core.storage.storage import Storage
from asyncrl.learners.checkpointing import checkpoints
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.storage import stored_checkpoints
from asyncrl.run.storage.driver_mark import BEAT_S, Driver, RunTakenOver
from asyncrl.run.storage.known_copies import with_driver

logger = logging.getLogger(__name__)

RETRY_S, LONGEST_RETRY_S = 1.0, 60.0
"""Seconds until a failed upload is tried again: at first, and at most, since they double."""
DATABASE_S = 120.0
"""Seconds between two copies of the run's own MLflow database, which changes with every step."""
STUCK_S = 600.0
"""Seconds after which the user hears that an upload has not come to an end."""
EPISODES, MODEL = "trajectories", "model"
_NEVER = ("buffer", stored_checkpoints.FOLDER)
_OF_THIS_HOST = ("driver.lock", "control")
_LAST = ("summary.json", f"{MODEL}/config.json")
"""What readers look for to know that the rest is there."""


class Wanted(msgspec.Struct, frozen=True):
    """What an address gets of a run.

    Attributes:
        checkpoints: the checkpoints, with what else a resume needs.
        episodes: the kept episodes.
        rest: logs, the trained model, metrics; if not, only the few files beside these folders.
    """

    checkpoints: bool
    episodes: bool
    rest: bool


class Upload:
    """The upload of one run to one address.

    Args:
        keep: how many of the newest checkpoints are kept there.
        note: shows a line to the user.
    """

    def __init__(self, folder: RunFolder, storage: Storage, wanted: Wanted, keep: int, note: Callable[[str], None]) -> None:
        self._folder, self._storage, self._wanted, self._keep, self._note = folder, storage, wanted, keep, note
        self._driver = Driver(storage, partial(os.kill, os.getpid(), signal.SIGTERM))
        self._known: dict[str, tuple[int, int]] = {}
        """Size and time of each file as it was uploaded."""
        self._whole: set[PolicyVersion] = set()
        self._begun_with = frozenset(checkpoints.versions(folder.checkpoints))
        """What the run folder has: others in the store are of steps that the run does again."""
        self._listed = False
        self._database_due = 0.0
        self._doing, self._since, self._stuck = "", 0.0, False
        self._problem = ""
        self._wake, self._ending = threading.Event(), threading.Event()
        self._taken_over: RunTakenOver | None = None
        self._thread = threading.Thread(target=self._run, name=f"uploading to {storage.address}", daemon=True)

    @property
    def address(self) -> str:
        """Where the run is uploaded to."""
        return self._storage.address

    def start(self) -> None:
        """Take the address for this driver, and begin to upload.

        Raises:
            StorageError: the store refuses.
        """
        self._driver.mark()
        with_driver(self._folder, self.address, self._driver.token)
        self._thread.start()

    def wake(self) -> None:
        """Look for new files now rather than in a while."""
        self._wake.set()

    def check(self) -> None:
        """Raise ``RunTakenOver`` if another driver has the run by now; tell the user once of an upload that does not end."""
        if self._taken_over is not None:
            raise self._taken_over
        doing, seconds = self._doing, time.monotonic() - self._since
        if doing and seconds > STUCK_S and not self._stuck:
            self._stuck = True
            self._note(f"{self.address}: {doing} has been on its way for {seconds:.0f} s; training goes on")

    def wind_up(self) -> None:
        """Begin to upload the rest; nothing of the run changes any more."""
        self._ending.set()
        self._wake.set()

    def finish(self, seconds: float) -> None:
        """Upload the rest within ``seconds``, and say there that the run has ended. Blocks.

        Raises:
            DeadlineExceeded: it took longer, or the store refused until then; the run folder has all.
            RunTakenOver: another driver has the run.
        """
        self.wind_up()
        self._thread.join(seconds)
        if self._taken_over is not None:
            raise self._taken_over
        if self._thread.is_alive():
            why = f" ({self._problem})" if self._problem else ""
            remedy = f"{self._folder.path} has all of it: resume it to upload the rest, or raise deadlines.upload"
            raise DeadlineExceeded("the run", f"{self._doing or 'its last files'} to reach {self.address}{why}", seconds, remedy)

    def _run(self) -> None:
        wait = RETRY_S
        while True:
            self._wake.clear()
            ending = self._ending.is_set()
            try:
                self._upload(ending)
                if ending:
                    self._driver.mark(ended=True)
                    return
                wait = RETRY_S
                self._recovered()
                self._wake.wait(BEAT_S)
            except RunTakenOver as error:
                self._taken_over = error
                return
            except (AsyncRLError, OSError, sqlite3.Error) as error:
                self._failed(error)
                self._ending.wait(wait) if not ending else time.sleep(wait)
                wait = min(2 * wait, LONGEST_RETRY_S if not ending else 4 * RETRY_S)
            except Exception as error:  # a bug of ours must not look like a store that is down
                logger.exception("uploading to %s", self.address)
                self._failed(error)
                self._ending.wait(LONGEST_RETRY_S) if not ending else time.sleep(RETRY_S)
            finally:
                self._doing = ""

    def _failed(self, error: Exception) -> None:
        before, self._problem = self._problem, str(error) or type(error).__name__
        if self._problem != before:
            logger.warning("uploading to %s: %s", self.address, self._problem)
        if not before:
            said = self._problem if isinstance(error, StorageError) else f"{self.address}: {self._problem}"
            self._note(f"{said}. Training goes on, and the upload is tried again")

    def _recovered(self) -> None:
        if self._problem:
            self._problem = ""
            self._note(f"{self.address} takes uploads again; all is there")

    def _upload(self, ending: bool) -> None:
        """Bring the store to what the run folder has now.

        Before a checkpoint comes what was recorded of the steps up to it, which a resume from it does not do again.
        """
        self._now("its mark")
        if not self._listed:
            self._look_at_store()
        files = self._files()
        for name, file in files:
            if ("/" not in name or name.startswith(f"{EPISODES}/")) and name not in _LAST:
                self._upload_file(name, file)
        if self._wanted.checkpoints:
            self._upload_checkpoints()
        for name, file in files:
            self._upload_file(name, file)
        self._remove_forgotten()
        if self._wanted.rest:
            self._upload_database(ending)

    def _look_at_store(self) -> None:
        """Find out what a run that is resumed has uploaded before.

        Of the episodes of a step that was done again in the meantime, the store has those of the first time, which are older.
        """
        if self._wanted.checkpoints:
            self._whole = set(self._begun_with).intersection(stored_checkpoints.stored_versions(self._storage))
            stored_checkpoints.prune(self._storage, self._keep)
        there = self._storage.listing(EPISODES)
        for name, file in self._files():
            if name in there and name.startswith(f"{EPISODES}/"):
                size, written_ns = state = _state(file)
                if there[name].size == size and there[name].written_ns >= written_ns:
                    self._known[name] = state
        self._listed = True

    def _upload_checkpoints(self) -> None:
        folder = self._folder.checkpoints
        for version in stored_checkpoints.uploadable(folder)[:1]:
            if version in self._whole:
                continue
            self._now(f"the checkpoint of version {version}")
            try:
                stored_checkpoints.upload(self._storage, folder, version, self._beat)
            except FileNotFoundError:
                self._wake.set()  # the run has removed it, since it has newer ones
                continue
            self._driver.mark()
            self._whole.add(version)
            stored_checkpoints.prune(self._storage, self._keep, None if version in self._begun_with else version)
            self._whole = set(sorted(self._whole)[-self._keep :])
            logger.info("the checkpoint of version %d is whole at %s", version, self.address)
        for file in stored_checkpoints.totals_changed(folder, self._whole).values():
            self._upload_file(f"{stored_checkpoints.FOLDER}/{file.name}", file)

    def _files(self) -> list[tuple[str, Path]]:
        """The files of the run folder that this address gets, by name; those come last that say that others are there."""
        found = []
        for path in self._folder.path.rglob("*"):
            parts = path.relative_to(self._folder.path).parts
            name = "/".join(parts)
            hidden = any(part.startswith(".") for part in parts)
            if hidden or parts[0] in _NEVER or name in _OF_THIS_HOST or parts[0].startswith("mlflow.db"):
                continue
            if self._wants(name) and path.is_file() and not path.is_symlink():
                found.append((name, path))
        return sorted(found, key=lambda each: (each[0] in _LAST, each))

    def _wants(self, name: str) -> bool:
        if name.startswith(f"{EPISODES}/"):
            return self._wanted.episodes
        return self._wanted.rest or "/" not in name

    def _upload_file(self, name: str, file: Path) -> None:
        try:
            state = _state(file)
            if self._known.get(name) == state:
                return
            self._now(name)
            self._storage.put(name, file, self._beat)
        except FileNotFoundError:
            return  # the run has removed it
        self._known[name] = state

    def _remove_forgotten(self) -> None:
        """Remove the episodes of steps and evaluations that are done again."""
        for name in [each for each in self._known if each.startswith(f"{EPISODES}/")]:
            if not (self._folder.path / name).exists():
                self._now(name)
                self._storage.remove(name)
                del self._known[name]

    def _upload_database(self, ending: bool) -> None:
        """Upload the MLflow database if it is the run's own, as it is between two writes."""
        database = self._folder.database
        if database.parent != self._folder.path or not database.is_file() or not database.stat().st_size:
            return
        if not ending and time.monotonic() < self._database_due:
            return
        copy = self._folder.path / f".{database.name}.copy"
        try:
            with closing(sqlite3.connect(database, timeout=30)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            self._now(database.name)
            self._storage.put(database.name, copy, self._beat)
        finally:
            copy.unlink(missing_ok=True)
        self._database_due = time.monotonic() + DATABASE_S

    def _beat(self) -> None:
        """Mark the driver as alive during a long upload; what goes wrong is found by the next upload's own mark."""
        try:
            self._driver.mark()
        except AsyncRLError as error:
            logger.info("no mark at %s: %s", self.address, error)

    def _now(self, what: str) -> None:
        self._driver.mark()
        self._doing, self._since, self._stuck = what, time.monotonic(), False


def _state(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns
