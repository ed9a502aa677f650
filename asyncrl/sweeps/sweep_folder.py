"""The folder of a sweep: what it consists of, and the run folders of its points.

    runs/quickstart-sweep-20260901T120000Z/
        sweep.json      what the sweep consists of, with the plan's predictions
        recipes/        the resolved recipe of each point
        logs/           what the driver of each point printed
        0-...-seed-0-TIME/   run folders; of several of one point, the newest counts
        mlflow.db       the metrics of all points, if tracking.uri names no other place
        mlflow-run      the id of the run in MLflow that theirs are nested in
        report.html     the last report
        sweep.lock      the lock of the process that drives the sweep

What always holds: the folder is complete before the first point begins, so that a sweep which is killed at any time can be
resumed; how far a point is, its run folder says, and nothing else.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_errors import refusing, remedy_of
from asyncrl.core.files.file_formats import check_json_format
from asyncrl.core.files.whole_file import write_whole
from asyncrl.core.recipe.schema import TrackingConfig
from asyncrl.run.folder.run_folder import RunFolder, claim
from asyncrl.run.measures.event_log import read_end
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.report.run_record import read_recipe, tracking_of
from asyncrl.run.tracking.mlflow_store import TRACKED_AS
from asyncrl.sweeps.sweep import Point, Sweep

FORMAT = 1
"""The format of ``sweep.json``."""
_TIME = re.compile(r"-(\d{8}T\d{6}Z)(?:-(\d+))?")
"""What follows the name of a point in the name of a run folder: when it was made, and a number if there were several then."""


class PointState(StrEnum):
    """How far a point is."""

    MISSING = "missing"
    """It has not begun."""
    RUNNING = "running"
    KILLED = "killed"
    """Its run was not able to say how it ended."""
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    COMPLETED = "completed"


_STATES = {
    Status.COMPLETED: PointState.COMPLETED,
    Status.INTERRUPTED: PointState.INTERRUPTED,
    Status.FAILED: PointState.FAILED,
}


class _Written(msgspec.Struct, frozen=True):
    format: int
    sweep: Sweep


class SweepFolder:
    """Paths of a sweep, all absolute. :meth:`create` makes the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.definition = self.path / "sweep.json"
        self.recipes = self.path / "recipes"
        self.logs = self.path / "logs"
        self.report = self.path / "report.html"
        self.tracked_as = self.path / TRACKED_AS
        self._lock = self.path / "sweep.lock"

    @classmethod
    def create(cls, run_dir: str, sweep: Sweep, recipes: Mapping[str, str]) -> "SweepFolder":
        """Make the folder of a sweep that begins now.

        Args:
            run_dir: where it is made.
            recipes: the resolved recipe of each point, by the point's name.

        Raises:
            RecipeError: ``run_dir`` cannot be written to.
        """
        claimed: Path | None = None
        try:
            claimed = claim(Path(run_dir), f"{sweep.recipe}-sweep-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
            folder = cls(claimed)
            folder.recipes.mkdir()
            folder.logs.mkdir()
            for name, text in recipes.items():
                folder.recipe_of(name).write_text(text, encoding="utf-8")
            write_whole(folder.definition, msgspec.json.format(msgspec.json.encode(_Written(FORMAT, sweep)), indent=2))
        except OSError as error:
            if claimed is not None:
                shutil.rmtree(claimed, ignore_errors=True)
            problem = f"cannot make the folder of a sweep in {run_dir!r}: {error.strerror}"
            remedy = remedy_of(error, "name a folder that you may write to, e.g. with run_dir=runs")
            raise RecipeError("run_dir", problem, remedy) from error
        return folder

    @classmethod
    def is_one(cls, path: Path) -> bool:
        """Whether a sweep was made there."""
        return (path / "sweep.json").is_file()

    @classmethod
    def find(cls, path: Path) -> "SweepFolder":
        """Find the folder of a sweep that was begun before.

        Raises:
            RecipeError: there is none.
        """
        if not cls.is_one(path):
            problem = f"{str(path)!r} is not the folder of a sweep: it has no sweep.json"
            raise RecipeError("", problem, "name a folder that `asyncrl sweep` made, e.g. runs/quickstart-sweep-20260901T120000Z")
        return cls(path)

    def read(self) -> Sweep:
        """Read what the sweep consists of.

        Raises:
            RecipeError: that cannot be read.
            UnknownFormat: another version of asyncrl wrote it, in another way.
        """
        try:
            content = self.definition.read_bytes()
            check_json_format(content, self.definition, FORMAT)
            return msgspec.json.decode(content, type=_Written).sweep
        except (OSError, ValueError, RecursionError) as error:
            raise RecipeError("", f"cannot read {self.definition}: {error}", "put it back, or begin a new sweep") from error

    def recipe_of(self, point: str) -> Path:
        """The file of the recipe of the point of that name."""
        return self.recipes / f"{point}.yaml"

    def log_of(self, point: Point) -> Path:
        """The file of what the drivers of a point print."""
        return self.logs / f"{point.name}.log"

    def run_of(self, point: Point) -> RunFolder | None:
        """The newest run of a point; None if there is none."""
        found: dict[tuple[str, int], Path] = {}
        for each in self.path.glob(f"{point.name}-*"):
            made = _TIME.fullmatch(each.name.removeprefix(point.name))
            if made is not None and (each / "recipe.yaml").is_file():
                found[made[1], int(made[2] or 1)] = each
        return RunFolder(found[max(found)]) if found else None

    def state_of(self, point: Point) -> tuple[PointState, Summary | None]:
        """How far a point is; with its summary, if its run has ended and could write one."""
        run = self.run_of(point)
        if run is None:
            return PointState.MISSING, None
        if run.is_driven:
            return PointState.RUNNING, None
        try:
            summary = read_end(run)
        except (OSError, ValueError, RecursionError):
            return PointState.KILLED, None
        return _STATES[summary.status], summary

    def completed(self, sweep: Sweep) -> list[dict[int, Summary]]:
        """For each setting, the summaries of its runs that have completed, by seed."""
        done: list[dict[int, Summary]] = [{} for _ in sweep.settings]
        for point in sweep.points:
            state, summary = self.state_of(point)
            if state is PointState.COMPLETED and summary is not None:
                done[point.setting][point.seed] = summary
        return done

    def tracking(self, sweep: Sweep) -> TrackingConfig:
        """Where the points are tracked, as the recipe of the first says.

        Raises:
            RecipeError: that cannot be read.
        """
        return tracking_of(read_recipe(self.recipe_of(sweep.points[0].name)))

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Hold the lock that lets one process at a time drive the sweep.

        Raises:
            RecipeError: another process holds it, or the system refuses it.
        """
        with refusing(f"lock {str(self._lock)!r}", "make the folder writable for yourself"):
            file = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            problem = f"another process is still running the sweep {str(self.path)!r}"
            raise RecipeError("", problem, "wait for it, or stop it first") from error
        finally:
            os.close(file)
