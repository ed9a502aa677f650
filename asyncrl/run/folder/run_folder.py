"""The run folder: everything one run leaves behind, in one place.

    runs/quickstart-20260901T120000Z/
        recipe.yaml     the resolved recipe, every key
        launched-in     the folder that the command was run in
        summary.json    how the run ended
        measures.jsonl  what each training step took, for `asyncrl plan --from`
        tuning.jsonl    how `tune` turned the run's sizes: its journal
        mlflow-run      the id of the run in MLflow
        steps.jsonl     what each training step made, for `asyncrl replay`
        events.jsonl    what happens, for `asyncrl attach` and Python
        labels.json     how it was launched, tags and a note, for `asyncrl runs`
        code/           classes and functions that a program gave the run
        trajectories/   episodes that were kept, as Parquet files: docs/reference/trajectories.md
        tensorboard/, wandb/  files of other trackers, if the recipe asks for them
        logs/           one file a process
        buffer/         the replay buffer's journal and the trajectories it holds
        checkpoints/    what the learner is resumed from
        model/          the trained model, a Hugging Face folder
        resumes         a line for each time that the run was resumed, or a zero byte where the disk was full
        driver.lock     the lock of the process that drives the run
        terminal.txt    what a detached run would have shown
        control         how ``asyncrl scale`` reaches that process, while it trains

Beside the folder lie ``mlflow.db``, with the metrics of all runs there, and ``mlflow-artifacts/``, with the files that MLflow
keeps, unless the recipe names another place for them.
Runs that are kept in an object store, and those of earlier versions, have an ``mlflow.db`` of their own in the folder.

A folder belongs to exactly one run: that run makes it, atomically, and uses it again when it is resumed. One
process at a time drives a run: it holds the folder's lock, which the system releases however that process ends.

The folder that a run was launched in: where the relative paths and the modules of its recipe are looked for.

A run can be resumed and looked into from anywhere. If its project has moved since, the user names its new folder.
"""

import errno
import fcntl
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.files.file_errors import naming, remedy_of
from asyncrl.core.files.file_lock import lock_within
from asyncrl.core.files.whole_file import write_whole
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.storage.address import is_address, local_run_dir
from asyncrl.run.folder.config_yaml import resolved_yaml

MOST_NAMED = 8
"""The most folders that are named to a user who named the one above them."""
_LOCK_BYTES = 32
"""The size of a lock file, which holds a process id."""
_LOOKED_AT_S = 0.5
"""Seconds for which those may hold a lock who only look whether a run is driven, on a network drive too."""


class RunFolder:
    """Paths of one run, all absolute. :meth:`create` makes the folder."""

    _TRACKED_ANEW = "put it back from a copy, or move it away, so that the metrics of this run begin anew"

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.recipe = self.path / "recipe.yaml"
        self.summary = self.path / "summary.json"
        self.tracked_as = self.path / "mlflow-run"
        self.steps = self.path / "steps.jsonl"
        self.measures = self.path / "measures.jsonl"
        self.tuning = self.path / "tuning.jsonl"
        self.events = self.path / "events.jsonl"
        self.labels = self.path / "labels.json"
        self.code = self.path / "code"
        self.trajectories = self.path / "trajectories"
        self.logs = self.path / "logs"
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model"
        self.terminal = self.path / "terminal.txt"
        self.control = self.path / "control"
        self.own_database = self.path / "mlflow.db"
        self.run_id_before: str | None = None
        """:attr:`run_id` of the driver before this one, known once :meth:`driven`."""
        self._driven: int | None = None
        """The folder, held open while this process drives the run."""
        self.lock = self.path / "driver.lock"
        self._launched_in = self.path / "launched-in"
        self._resumes = self.path / "resumes"

    def learner_log(self, rank: int) -> Path:
        """The log file of one rank of the learner."""
        return self.logs / f"learner-{rank}.log"

    def generator_log(self, worker: str) -> Path:
        """The log file of one generator."""
        return self.logs / f"{worker}.log"

    @classmethod
    def create(cls, recipe: Recipe, name: str | None = None) -> "RunFolder":
        """Make the folder of a run that starts now, and write its recipe there.

        Args:
            name: of the folder; None for one that is made of the recipe's name and the time.

        Raises:
            RecipeError: ``run_dir`` cannot be written to.
        """
        claimed: Path | None = None
        try:
            parent, stored = local_run_dir(recipe.run_dir), is_address(recipe.run_dir)
            if name is not None:
                claimed = parent / name
                claimed.mkdir(parents=True, exist_ok=True)  # one without a recipe was left by who was killed right here
            else:
                name = f"{recipe.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
                # In a store, no machine sees which names others are about to use.
                claimed = claim(parent, f"{name}-{secrets.token_hex(2)}" if stored else name)
            folder = cls(claimed)
            folder.logs.mkdir(exist_ok=True)
            if stored:
                folder.own_database.touch()  # its metrics go where the run goes
            folder.recipe.write_text(resolved_yaml(recipe), encoding="utf-8")
            folder._launched_in.write_bytes(os.fsencode(Path.cwd()))
        except OSError as error:
            if claimed is not None:
                shutil.rmtree(claimed, ignore_errors=True)  # a half-made run folder is of no use
            problem = f"cannot make a run folder in {recipe.run_dir!r}: {error.strerror}"
            remedy = remedy_of(error, "name a folder that you may write to, e.g. with run_dir=runs")
            raise RecipeError("run_dir", problem, remedy) from error
        return folder

    def keep_recipe(self, recipe: Recipe) -> None:
        """Write the recipe that the run has from now on, in place of the one before, for whoever resumes it.

        Raises:
            OSError: the disk refuses; the recipe before is still there.
        """
        write_whole(self.recipe, resolved_yaml(recipe).encode())

    @classmethod
    def find(cls, path: Path) -> "RunFolder":
        """Find the folder of a run that was launched before.

        Raises:
            RecipeError: there is no run in it, or it cannot be read.
        """
        remedy, found = "name a folder that `asyncrl launch` made, e.g. runs/quickstart-20260901T120000Z", False
        try:
            folder = cls(path)
            with suppress(FileNotFoundError, NotADirectoryError):
                found = stat.S_ISREG(folder.recipe.stat().st_mode)
        except (OSError, RuntimeError) as error:  # links that lead in a circle are a RuntimeError, before Python 3.13
            raise RecipeError("", f"cannot look into {str(path)!r}: {getattr(error, 'strerror', error)}", remedy) from error
        if not found and (models := [each.name for each in cls.below(path)]):
            problem = f"{str(path)!r} is the folder of several runs, or of an evaluation of several models"
            raise RecipeError("", problem, f"name one of {', '.join(str(path / model) for model in models[:MOST_NAMED])}")
        if not found:
            if (meant := cls._meant_by(path)) is not None:
                remedy = f"did you mean {str(meant)!r}?"
            elif path.name.startswith("mlflow"):
                remedy = f"leave out what MLflow keeps beside runs: {path.parent / '*-*T*Z*'} names runs alone"
            raise RecipeError("", f"{str(path)!r} is not a run folder: it has no {folder.recipe.name}", remedy)
        return folder

    @classmethod
    def _meant_by(cls, path: Path) -> Path | None:
        """The run in ``runs`` of this name, or the run that ``path`` lies in; None if there is none."""
        near = (Path("runs", path), *path.parents[:2])
        return next((each for each in near if all(os.path.isfile(each / name) for name in ("recipe.yaml", "launched-in"))), None)

    @classmethod
    def below(cls, path: Path) -> list[Path]:
        """The folders of runs, or of an evaluation's models, right below a folder that is none itself."""
        return sorted(each.parent for each in path.glob("*/recipe.yaml"))

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Hold the lock that lets one process at a time drive the run.

        Raises:
            RecipeError: another process holds it, or the system refuses it.
        """
        with self._locked(os.O_RDWR | os.O_CREAT) as (file, before):
            try:
                # It has the length of what it overwrites, and so needs no room on a full disk.
                os.pwrite(file, str(os.getpid()).encode().ljust(_LOCK_BYTES), 0)
            except OSError as error:
                raise self._cannot_lock(error) from error
            self.run_id_before = None if before is None else self._id_of(before)
            self._driven = os.open(self.path, os.O_PATH | os.O_DIRECTORY)
            try:
                yield
            finally:
                os.close(self._driven)
                self._driven = None

    def check_there(self) -> None:
        """Check that the folder is still where it was when this process began to drive the run.

        Raises:
            ComponentFailed: it was moved or removed. What is written at its path would be another run's, or nobody's.
        """
        if self._driven is None:
            return
        try:
            if os.path.samestat(os.fstat(self._driven), os.stat(self.path)):
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            return  # a network drive that does not answer just now: what is written there will say so
        instead = ", in the place of what is there now" if os.path.lexists(self.path) else ""
        raise ComponentFailed(f"{self.path} was moved or removed while its run went on; put it back{instead}, then resume it")

    def check_not_driven(self) -> None:
        """Raise a ``RecipeError`` if a process drives the run, because its files would change while they are read."""
        if self.lock.is_file():
            with self._locked(os.O_RDWR):
                pass

    @property
    def is_driven(self) -> bool:
        """Whether a process drives the run. The folder need not be writable; a lock that cannot be read counts as free."""
        with ExitStack() as held:
            try:
                file = os.open(self.lock, os.O_RDONLY)
                held.callback(os.close, file)
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:
                return False
        return False

    @property
    def driver(self) -> int | None:
        """The id of the process that drives the run, on its machine; None if none does."""
        if not self.is_driven:
            return None
        try:
            return _process_in(self.lock.read_bytes())
        except OSError:
            return None

    @contextmanager
    def _locked(self, flags: int) -> Iterator[tuple[int, int | None]]:
        """Open and lock the lock file; yields its descriptor and the id of the process that held it last."""
        with ExitStack() as held:
            try:
                file = os.open(self.lock, flags, 0o644)
                held.callback(os.close, file)
                before = _process_in(os.pread(file, _LOCK_BYTES, 0))
                lock_within(file, _LOOKED_AT_S)
            except BlockingIOError as error:
                who = "another process" if before is None else f"process {before}"
                raise RecipeError("", f"{who} is still running {str(self.path)!r}", "wait for it, or stop it first") from error
            except OSError as error:
                raise self._cannot_lock(error) from error
            yield file, before

    def _cannot_lock(self, error: OSError) -> RecipeError:
        remedy = remedy_of(error, "make the folder writable for yourself, on a file system that has locks")
        return RecipeError("", f"cannot lock {str(self.lock)!r}: {error.strerror}", remedy)

    @property
    def database(self) -> Path:
        """The MLflow database if the recipe names none: the run's own if it has one, else that of all runs beside it."""
        return self.own_database if self.own_database.is_file() else self.path.parent / "mlflow.db"

    @property
    def launched_in(self) -> Path | None:
        """The folder that the run was launched in; None if that is not recorded."""
        try:
            return Path(os.fsdecode(self._launched_in.read_bytes()))
        except OSError:
            return None

    def read_tracked_as(self) -> str:
        """Read the id of the run in MLflow.

        Raises:
            RecipeError: the file cannot be read, or holds no id.
        """
        try:
            found = self.tracked_as.read_text(encoding="utf-8")
            if not found.isalnum():
                raise ValueError("it holds no id of a run")
        except (OSError, ValueError) as error:
            problem = f"{self.tracked_as} cannot be read: {getattr(error, 'strerror', None) or error}"
            raise RecipeError("", problem, f"{self._TRACKED_ANEW}; then try again") from error
        return found

    def count_resume(self) -> None:
        """Note that the run is resumed now, however that ends. Call it while the run is :meth:`driven`.

        A full disk, on which a run only pauses, has no room for a line; a zero byte, as a hole, takes none.

        Raises:
            OSError: the file cannot be written.
        """
        line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} process {os.getpid()}\n".encode()
        with naming(self._resumes), self._resumes.open("ab", buffering=0) as file:
            end, written = file.tell(), 0
            try:
                written = file.write(line)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
            if written < len(line):
                file.truncate(end)
                file.truncate(end + 1)

    @property
    def resumes(self) -> int:
        """How often the run was resumed so far."""
        noted = self._resumes.read_bytes() if self._resumes.is_file() else b""
        return noted.count(b"\n") + noted.count(b"\0")

    @property
    def run_id(self) -> str:
        """The name of the run's files in shared memory. The driver's process id in it keeps it unique on this host."""
        return self._id_of(os.getpid())

    def _id_of(self, driver: int) -> str:
        return f"{self.path.name}-{driver}"


def _process_in(lock: bytes) -> int | None:
    """The id of the process that wrote ``lock``; None if there is none in it, because it is new or was damaged."""
    text = lock.strip()
    return int(text) if text.isdigit() else None


def claim(parent: Path, name: str) -> Path:
    """Make the first of ``name``, ``name-2``, ``name-3``... that is not there yet; ``mkdir`` lets only one process win each."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("count() never ends")


def make_importable(code: Path) -> None:
    """Have modules in the folder ``code`` found by this process and those that it starts, after all others."""
    place = str(code)
    if code.is_dir() and place not in sys.path:
        sys.path.append(place)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), place)))


@contextmanager
def in_launch_directory(folder: RunFolder, instead: Path | None = None) -> Iterator[None]:
    """Work in the folder that the run was launched in, or in ``instead``; in the current one if that is gone.

    Classes and functions that a program gave the run are importable from then on, here and in processes that start here.

    Raises:
        RecipeError: ``instead`` is not a folder. An error about a recipe key gets a note that says where it was looked for.
    """
    recorded = folder.launched_in
    if instead is not None and not instead.is_dir():
        raise RecipeError("", f"{str(instead)!r} is not a folder", "name the folder in which the recipe's relative paths begin")
    make_importable(folder.code)
    place = instead or (recorded if recorded is not None and recorded.is_dir() else Path())
    with chdir(place):
        here = Path.cwd()
        try:
            yield
        except RecipeError as error:
            if not error.place or error.place.startswith("--"):
                raise  # not about what the recipe names
            gone = f" ({recorded}, where the run was launched, is gone)" if recorded is not None and not recorded.is_dir() else ""
            error.add_note(
                f"relative paths of its recipe begin in {here}{gone}; give an absolute one, or, to go on with the run, "
                "begin in another folder by `launch --resume RUN --from FOLDER`"
            )
            raise
